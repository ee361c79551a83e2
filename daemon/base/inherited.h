/* Listening sockets that this process did not open: handed over by the daemon before it, or opened by the service
 * manager. Whoever wants to listen at an address takes the one that is bound to it. They belong to the process, not to
 * a node; only the thread that starts the daemon uses them. */
#ifndef STRAIT_DAEMON_BASE_INHERITED_H
#define STRAIT_DAEMON_BASE_INHERITED_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define INHERITED_MAX 62u /* and the lock: all of them fit one message */

/* Takes over the descriptor; one that is no listening socket, or too many, is closed. */
void inherited_add(int fd);
/* Takes over the lock of the socket's path, which is held. */
void inherited_add_lock(int fd);
/* Those of systemd's protocol: $LISTEN_FDS from descriptor 3 on, if $LISTEN_PID is this process. The service manager
 * keeps them open too: their paths are not removed when the daemon ends. */
void inherited_from_manager(void);
bool inherited_has_manager(void);

/* The socket bound to that path, or to that address (port 0: any port), or the lock; the caller then owns it. -1: there
 * is none. */
int inherited_take_unix(const char *path);
int inherited_take_tcp(const struct sockaddr_storage *address);
int inherited_take_lock(void);
/* Closes what nobody took, and returns how many that were. */
uint32_t inherited_close(void);

#endif
