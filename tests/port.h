/* A TCP port of loopback for daemons that a test starts one after another: taken before the first, and in between, it
 * could go to somebody who asks for any, as UCX does, or who connects. */
#ifndef STRAIT_TESTS_PORT_H
#define STRAIT_TESTS_PORT_H

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

/* Bound to, not listened on: nobody is given it, and whoever names it and sets SO_REUSEADDR, as daemons do, can listen
 * there. Until the descriptor is closed. 0: there is none. */
static inline unsigned port_reserve(int *fd)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);
    const int on = 1;
    *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd >= 0 && bind(*fd, (struct sockaddr *)&address, size) == 0 &&
        setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 && /* not before: it is to be ours alone */
        getsockname(*fd, (struct sockaddr *)&address, &size) == 0)
        return ntohs(address.sin_port);
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    return 0;
}

#endif
