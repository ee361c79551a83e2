/* A TCP port of loopback for daemons that a test starts one after another. It must stay reserved before the first and
 * in between, or the kernel could give it to a process that asks for any port, as UCX does, or that connects. */
#ifndef STRAIT_TESTS_PORT_H
#define STRAIT_TESTS_PORT_H

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

/* Binds the port without listening: the kernel gives it to no one else, but a process that names it and sets
 * SO_REUSEADDR, as daemons do, can listen on it. Reserved until the descriptor is closed. 0: there is none. */
static inline unsigned port_reserve(int *fd)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);
    const int on = 1;
    *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd >= 0 && bind(*fd, (struct sockaddr *)&address, size) == 0 &&
        setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 && /* only now: the port is ours alone */
        getsockname(*fd, (struct sockaddr *)&address, &size) == 0)
        return ntohs(address.sin_port);
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    return 0;
}

#endif
