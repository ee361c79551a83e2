#include "tests/chaos/attack.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define STRANGERS 6u
#define PORTS_MAX 16u
#define RUBBISH   4096u

static bool owns(pid_t pid, unsigned long inode)
{
    char path[64], link[320], target[64], wanted[64];
    bool found = false;
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    snprintf(wanted, sizeof(wanted), "socket:[%lu]", inode);
    DIR *folder = opendir(path);
    const struct dirent *entry;
    while (folder != NULL && !found && (entry = readdir(folder)) != NULL) {
        snprintf(link, sizeof(link), "%s/%s", path, entry->d_name);
        ssize_t size = readlink(link, target, sizeof(target) - 1);
        found = size > 0 && strncmp(target, wanted, (size_t)size) == 0 && strlen(wanted) == (size_t)size;
    }
    if (folder != NULL)
        closedir(folder);
    return found;
}

/* TCP ports that the process listens on. */
static uint32_t listening(pid_t pid, unsigned ports[PORTS_MAX])
{
    char line[512];
    uint32_t count = 0;
    FILE *file = fopen("/proc/net/tcp", "re");
    while (file != NULL && count < PORTS_MAX && fgets(line, sizeof(line), file) != NULL) {
        unsigned port, state;
        unsigned long inode;
        if (sscanf(line, " %*u: %*x:%x %*x:%*x %x %*x:%*x %*x:%*x %*x %*u %*u %lu", &port, &state, &inode) == 3 &&
            state == TCP_LISTEN && owns(pid, inode))
            ports[count++] = port;
    }
    if (file != NULL)
        fclose(file);
    return count;
}

/* Half of it is noise, half begins like a plausible length. */
static bool write_rubbish(struct world *w, int fd)
{
    uint8_t bytes[RUBBISH];
    uint32_t size = 1 + draw(w, RUBBISH);
    for (uint32_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)draw(w, 256);
    if (size > 8 && draw(w, 2) == 0)
        memcpy(bytes, (const uint8_t[]){0x40, 0, 0, 0, 0x0a, 0x3e, 0, 1}, 8);
    return send(fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
}

static bool meet(struct world *w, const struct sockaddr *address, socklen_t size)
{
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    (void)connect(fd, address, size); /* loopback: it is made at once or not at all */
    bool met = write_rubbish(w, fd);
    if (draw(w, 3) == 0) {
        const struct linger reset = {.l_onoff = 1};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    }
    close(fd);
    return met;
}

static uint32_t attack_port(struct world *w, unsigned port)
{
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    uint32_t met = 0;
    for (uint32_t i = 0; i < STRANGERS; i++)
        met += meet(w, (const struct sockaddr *)&address, sizeof(address));
    return met;
}

uint32_t attack_ucx(struct world *w, int side)
{
    unsigned ports[PORTS_MAX];
    const struct side *s = &w->sides[side];
    uint32_t met = 0, count = listening(s->daemon, ports);
    for (uint32_t i = 0; i < count; i++)
        if (ports[i] != s->port && ports[i] != s->metrics)
            met += attack_port(w, ports[i]);
    return met;
}

uint32_t attack_ports(struct world *w, int side)
{
    const struct side *s = &w->sides[side];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%.100s", s->socket);
    uint32_t met = attack_port(w, s->port) + attack_port(w, s->metrics);
    for (uint32_t i = 0; i < STRANGERS; i++)
        met += meet(w, (const struct sockaddr *)&address, sizeof(address));
    return met;
}
