/* Default path of a daemon's socket: one rule for straitd, which creates it, and for clients, which look for it. */
#ifndef STRAIT_INTERNAL_DEFAULT_SOCKET_H
#define STRAIT_INTERNAL_DEFAULT_SOCKET_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define SOCKET_PATH_MAX 103u /* sun_path, less the suffix of the name under which a new socket is prepared */
#define SOCKET_OF_NODE  "/run/strait/straitd.sock"

/* Path of the socket of this user's own daemon. False when it is the node's: for root, or without XDG_RUNTIME_DIR. */
static inline bool socket_of_user(char path[SOCKET_PATH_MAX + 1])
{
    const char *folder = getenv("XDG_RUNTIME_DIR");
    if (geteuid() == 0 || folder == NULL || folder[0] != '/')
        return false;
    int size = snprintf(path, SOCKET_PATH_MAX + 1, "%s/strait/straitd.sock", folder);
    return size > 0 && size <= (int)SOCKET_PATH_MAX;
}

/* A socket that another user has put there is not this user's daemon; connecting would hand it the user's memory. */
static inline bool socket_is_ours(const char *path)
{
    struct stat found;
    return lstat(path, &found) == 0 && S_ISSOCK(found.st_mode) && (found.st_uid == geteuid() || found.st_uid == 0);
}

/* $STRAIT_SOCKET; NULL: unset or empty. */
static inline const char *socket_from_environment(void)
{
    const char *path = getenv("STRAIT_SOCKET");
    return path != NULL && path[0] != '\0' ? path : NULL;
}

/* Path of the daemon to connect to now: $STRAIT_SOCKET, the user's own socket if it exists, else the node's. `own` is
 * memory for the path. */
static inline const char *socket_find(char own[SOCKET_PATH_MAX + 1])
{
    if (socket_from_environment() != NULL)
        return socket_from_environment();
    return socket_of_user(own) && socket_is_ours(own) ? own : SOCKET_OF_NODE;
}

#endif
