/* TLS 1.3 on a control connection between daemons, as a layer below its channel. What is proved is decided by the
 * credentials: both sides have the same secret (external PSK with a Diffie-Hellman exchange), or each has a certificate
 * of the CA that the other trusts. There is no way down from it: neither to clear text nor to an older version. */
#ifndef STRAIT_DAEMON_BASE_TLS_H
#define STRAIT_DAEMON_BASE_TLS_H

#include "daemon/base/credentials.h"
#include "proto/channel.h"

struct tls;

/* `host`: dialled, the name or numeric address that the peer's certificate has to have (unless the credentials name
 * one); accepted: NULL. `previous`: offers the previous secret. NULL: out of memory. */
struct tls *tls_create(struct credentials *credentials, const char *host, bool previous);
void tls_destroy(struct tls *tls); /* after the channel that uses it; NULL is allowed */
struct channel_layer *tls_layer(struct tls *tls);

/* Why it has failed, for people; "": it has not. */
const char *tls_why(const struct tls *tls);
/* This side refused the other, which did not prove itself; else it was refused, or the connection broke. */
bool tls_refused(const struct tls *tls);

/* Derives bytes that only the two ends of this connection know (RFC 8446, section 7.5). False: not established. */
bool tls_export(const struct tls *tls, const char *label, void *out, size_t size);

/* Looks at what has arrived at a socket, without taking it: is it TLS? False too when too little has come to tell. */
bool tls_is_spoken(int fd);

#endif
