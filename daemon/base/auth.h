/* How two daemons prove to each other that they know the same secret: each sends an HMAC-SHA256 over its role and both
 * hellos. The nonces in the hellos make a proof worthless on any other connection; the role keeps a proof from being
 * reflected to its sender. */
#ifndef STRAIT_DAEMON_BASE_AUTH_H
#define STRAIT_DAEMON_BASE_AUTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/message.h"

#define SECRET_BYTES_MIN 16u
#define SECRET_BYTES_MAX 4096u

struct secret {
    size_t size;
    uint8_t bytes[SECRET_BYTES_MAX];
};

/* Reads the file as it is, including a newline at its end. It must be a regular file (a link to one will do) that
 * belongs to this process's user and gives nobody else any permission. ERR_INVALID (not such a file, or too short or
 * too long), ERR_IO; `why` then names the file and says what is wrong, and *secret is wiped. */
enum strait_status auth_secret_read(const char *path, struct secret *secret, char *why, size_t why_size);
void auth_secret_wipe(struct secret *secret);

/* Computes the proof that the dialler (`dialler` true) or the acceptor sends. It covers every field of both hellos.
 * Should the cryptographic library fail, the bytes are random and equal no other proof. */
void auth_proof(const struct secret *secret, bool dialler, const struct message_peer_hello *dialler_hello,
                const struct message_peer_hello *acceptor_hello, uint8_t mac[MAC_BYTES]);

/* Compares in time that does not depend on where they differ. */
bool auth_equal(const uint8_t a[MAC_BYTES], const uint8_t b[MAC_BYTES]);

/* Random bytes from the kernel, fit for nonces, tokens and ids. Ends the process when there are none: nothing would be
 * safe without them. */
void auth_random(void *dst, size_t size);

#endif
