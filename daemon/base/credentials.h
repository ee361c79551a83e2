/* Credentials of a daemon: the secret that all daemons share, or a certificate with its key and the CA of the others.
 * They make the TLS context of new control connections (tls.h). Connections keep theirs when a daemon takes new ones.
 */
#ifndef STRAIT_DAEMON_BASE_CREDENTIALS_H
#define STRAIT_DAEMON_BASE_CREDENTIALS_H

#include <stdbool.h>
#include <stddef.h>

#include <strait/status.h>

struct credentials;

/* Paths, and the name that every peer's certificate has to have; "": none. */
struct credentials_files {
    const char *secret;
    const char *certificate, *key, *ca;
    const char *name;
};

/* Reads the files. *credentials is NULL when none is named; else the caller owns a reference. ERR_INVALID (a file that
 * is unfit, or does not go with the others), ERR_IO, ERR_NO_MEMORY; `why` says which file and what is wrong. On any
 * thread. */
enum strait_status credentials_read(const struct credentials_files *files, struct credentials **credentials, char *why,
                                    size_t why_size);
/* Before they are used in place of `previous`: peers that have its secret, and not yet this one, are let in for as long
 * as these are in use. False: it is the same secret. */
bool credentials_follow(struct credentials *credentials, const struct credentials *previous);

struct credentials *credentials_reference(struct credentials *credentials);
void credentials_release(struct credentials *credentials); /* NULL is allowed */

bool credentials_are_secret(const struct credentials *credentials); /* else a certificate */
bool credentials_have_previous(const struct credentials *credentials);
const char *credentials_name(const struct credentials *credentials);

/* ---- For tls.c --------------------------------------------------------------------------------------------------- */

#define CREDENTIALS_IDENTITY 32u /* bytes of a PSK's identity */

struct ssl_ctx_st;
struct ssl_session_st;

struct ssl_ctx_st *credentials_context(const struct credentials *credentials);
/* The PSK made from the secret, or from the previous one, as TLS wants it, and its identity; borrowed. NULL: there is
 * none. */
struct ssl_session_st *credentials_psk(const struct credentials *credentials, bool previous,
                                       const unsigned char **identity);
/* The PSK with this identity; NULL: none. */
struct ssl_session_st *credentials_find_psk(const struct credentials *credentials, const unsigned char *identity,
                                            size_t size);

#endif
