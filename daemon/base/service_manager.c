#include "daemon/base/service_manager.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "internal/clock.h"

#define DATAGRAM_MAX 1024

/* ---- Notifications ----------------------------------------------------------------------------------------------- */

/* The address in $NOTIFY_SOCKET; 0: there is none, or not one of a unix socket. */
static socklen_t notify_address(struct sockaddr_un *address)
{
    const char *name = getenv("NOTIFY_SOCKET");
    const size_t size = name != NULL ? strlen(name) : 0;
    if (size < 2 || size >= sizeof(address->sun_path) || (name[0] != '/' && name[0] != '@'))
        return 0;
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path, name, size);
    if (name[0] == '@')
        address->sun_path[0] = '\0'; /* an abstract name ends with the address, a path with a NUL */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size + (name[0] == '/'));
}

bool service_notify(const char *format, ...)
{
    struct sockaddr_un address;
    const socklen_t address_size = notify_address(&address);
    char text[DATAGRAM_MAX];
    va_list arguments;
    if (address_size == 0)
        return false;
    va_start(arguments, format);
    int size = vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (size <= 0 || (size_t)size >= sizeof(text))
        return false;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    ssize_t sent = sendto(fd, text, (size_t)size, MSG_NOSIGNAL, (const struct sockaddr *)&address, address_size);
    close(fd);
    return sent == size;
}

uint64_t service_monotonic_us(void)
{
    return clock_ns() / 1000;
}

/* ---- The watchdog ------------------------------------------------------------------------------------------------ */

/* The number in an environment variable; 0: it is not set, or no number. */
static uint64_t number_of(const char *name)
{
    const char *text = getenv(name);
    char *end;
    if (text == NULL || text[0] < '0' || text[0] > '9')
        return 0;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0' ? number : 0;
}

uint64_t service_watchdog_us(void)
{
    const char *pid = getenv("WATCHDOG_PID");
    if (pid != NULL && number_of("WATCHDOG_PID") != (uint64_t)getpid())
        return 0; /* meant for another process, which this one inherited it from */
    return number_of("WATCHDOG_USEC");
}
