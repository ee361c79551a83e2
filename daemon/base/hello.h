/* What daemons tell people of themselves in PEER_HELLO: version of the software, and clock. */
#ifndef STRAIT_DAEMON_BASE_HELLO_H
#define STRAIT_DAEMON_BASE_HELLO_H

#include "proto/message.h"

#define HELLO_NO_CLOCK INT64_MAX

/* Sets both fields of a hello that is sent now; `version` is borrowed, NULL: not told. */
void hello_tell(struct message_peer_hello *hello, const char *version);

/* Version of the sender's software, printable characters only; "": not told. */
void hello_software(const struct message_peer_hello *hello, char text[MESSAGE_SOFTWARE_MAX + 1]);
/* Microseconds by which the sender's clock was ahead of this one's when the hello came: the time that the hello took is
 * in it, below 0. HELLO_NO_CLOCK: not told. */
int64_t hello_clock_skew_us(const struct message_peer_hello *hello);

#endif
