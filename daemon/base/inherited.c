#include "daemon/base/inherited.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/base/address.h"
#include "daemon/base/lock.h"

#define FIRST_FD 3 /* SD_LISTEN_FDS_START */

static struct {
    int fds[INHERITED_MAX];
    uint32_t count;
    int lock; /* plus one; 0: none */
    bool of_manager;
} inherited;

static bool is_listening(int fd)
{
    int listens = 0;
    socklen_t size = sizeof(listens);
    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0;
}

void inherited_add(int fd)
{
    if (inherited.count == INHERITED_MAX || !is_listening(fd) || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0 ||
        fcntl(fd, F_SETFL, O_NONBLOCK) != 0)
        close(fd);
    else
        inherited.fds[inherited.count++] = fd;
}

void inherited_from_manager(void)
{
    const char *pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");
    if (pid != NULL && count != NULL && strtol(pid, NULL, 10) == (long)getpid()) {
        const long fds = strtol(count, NULL, 10);
        for (int fd = FIRST_FD; fds <= (long)INHERITED_MAX && fd < FIRST_FD + fds; fd++)
            inherited_add(fd);
        inherited.of_manager = inherited.count > 0;
    }
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
}

typedef bool is_wanted(const struct sockaddr_storage *bound, const void *wanted);

static int take(is_wanted *fits, const void *wanted)
{
    for (uint32_t i = 0; i < inherited.count; i++) {
        struct sockaddr_storage bound = {0};
        socklen_t size = sizeof(bound) - 1; /* a path keeps its NUL */
        const int fd = inherited.fds[i];
        if (getsockname(fd, (struct sockaddr *)&bound, &size) != 0 || !fits(&bound, wanted))
            continue;
        inherited.fds[i] = inherited.fds[--inherited.count];
        return fd;
    }
    return -1;
}

/* A daemon binds the socket under another name and renames it: the kernel remembers the first. */
static bool is_path(const struct sockaddr_storage *bound, const void *wanted)
{
    const struct sockaddr_un *address = (const struct sockaddr_un *)bound;
    const char *path = wanted;
    const size_t size = strlen(path);
    return bound->ss_family == AF_UNIX && strncmp(address->sun_path, path, size) == 0 &&
           (address->sun_path[size] == '\0' || strcmp(address->sun_path + size, LISTEN_SUFFIX_NEW) == 0);
}

int inherited_take_unix(const char *path)
{
    return take(is_path, path);
}

static bool is_address(const struct sockaddr_storage *bound, const void *wanted)
{
    struct sockaddr_storage with_port = *(const struct sockaddr_storage *)wanted;
    if (bound->ss_family != with_port.ss_family)
        return false;
    if (address_port(&with_port) == 0)
        address_set_port(&with_port, address_port(bound));
    return address_equal(bound, &with_port);
}

int inherited_take_tcp(const struct sockaddr_storage *address)
{
    return take(is_address, address);
}

void inherited_add_lock(int fd)
{
    inherited.lock = fd + 1;
}

bool inherited_has_manager(void)
{
    return inherited.of_manager;
}

int inherited_take_lock(void)
{
    const int fd = inherited.lock - 1;
    inherited.lock = 0;
    return fd;
}

uint32_t inherited_close(void)
{
    const uint32_t count = inherited.count;
    for (uint32_t i = 0; i < count; i++)
        close(inherited.fds[i]);
    const int lock = inherited_take_lock();
    if (lock >= 0)
        close(lock);
    inherited.count = 0;
    return count;
}
