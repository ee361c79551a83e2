#include <string.h>
#include <time.h>

#include "daemon/base/hello.h"

static uint64_t clock_ns(void)
{
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void hello_tell(struct message_peer_hello *hello, const char *version)
{
    hello->software = view_of(version, version != NULL ? strnlen(version, MESSAGE_SOFTWARE_MAX) : 0);
    hello->clock_ns = clock_ns();
}

void hello_software(const struct message_peer_hello *hello, char text[MESSAGE_SOFTWARE_MAX + 1])
{
    const uint8_t *from = hello->software.data;
    size_t size = hello->software.size < MESSAGE_SOFTWARE_MAX ? hello->software.size : MESSAGE_SOFTWARE_MAX;
    for (size_t i = 0; i < size; i++)
        text[i] = from[i] > ' ' && from[i] <= '~' ? (char)from[i] : '?';
    text[size] = '\0';
}

int64_t hello_clock_skew_us(const struct message_peer_hello *hello)
{
    return hello->clock_ns != 0 ? (int64_t)(hello->clock_ns - clock_ns()) / 1000 : HELLO_NO_CLOCK;
}
