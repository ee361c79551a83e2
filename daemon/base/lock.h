/* Decides which process serves a socket path: the holder of an flock on "<path>.lock". The kernel drops the lock when
 * the process ends, however it ends, so there are no stale locks to detect. */
#ifndef STRAIT_DAEMON_BASE_LOCK_H
#define STRAIT_DAEMON_BASE_LOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include <strait/status.h>

#define LISTEN_PATH_MAX   103u   /* bytes of a socket's path, without its NUL */
#define LISTEN_SUFFIX_NEW ".new" /* a socket is bound at this name beside its path, and then renamed */

/* Takes the lock of a socket path, and makes its folder (one level) when it is missing. On OK the caller owns *lock_fd
 * and keeps it open for as long as it serves the path; the file stays behind, with the pid in it. ERR_AGAIN: another
 * process has the lock, and *holder is its pid, or 0 when that is unknown. ERR_INVALID (path empty or too long),
 * ERR_IO. `why` says it in words. */
enum strait_status lock_acquire(const char *socket_path, int *lock_fd, pid_t *holder, char *why, size_t why_size);

/* Is this descriptor, which another process has handed over, the lock of that path? Then the pid in it is this one's.
 */
bool lock_adopt(const char *socket_path, int fd);

/* Tries what lock_acquire and listen_unix would do, and leaves everything as it is: *held says whether another process
 * has the lock. ERR_IO (no permission, no folder), ERR_INVALID, ERR_AGAIN; `why`. */
enum strait_status lock_try(const char *socket_path, bool *held, char *why, size_t why_size);

/* A listening unix socket at `path` with exactly these permissions, non-blocking and close-on-exec: it appears only
 * when it can be connected to. A socket that a dead process left there is replaced, anything else is not: ERR_AGAIN
 * (somebody listens there), ERR_INVALID (not a socket; path empty or too long), ERR_IO. Call it with the lock held. On
 * OK the caller owns *fd, and unlinks the path before it lets go of the lock. */
enum strait_status listen_unix(const char *path, mode_t mode, int *fd, char *why, size_t why_size);

#endif
