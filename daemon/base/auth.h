/* Files that hold what only their daemon may read, and random bytes. */
#ifndef STRAIT_DAEMON_BASE_AUTH_H
#define STRAIT_DAEMON_BASE_AUTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <strait/status.h>

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

/* Is the file, which OpenSSL is going to read, as private as a secret has to be? ERR_INVALID, ERR_IO; `why`. */
enum strait_status auth_private_check(const char *path, char *why, size_t why_size);

/* Random bytes from the kernel, fit for nonces, tokens and ids. Ends the process when there are none: nothing would be
 * safe without them. */
void auth_random(void *dst, size_t size);

#endif
