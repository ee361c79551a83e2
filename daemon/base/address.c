#include "daemon/base/address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <string.h>

static bool parse_port(const char *text, unsigned *port)
{
    unsigned value = 0;
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 5 || text[digits] != 0)
        return false;
    for (size_t i = 0; i < digits; i++)
        value = value * 10 + (unsigned)(text[i] - '0');
    *port = value;
    return value <= 65535;
}

/* Accepts names, IPv4 and, in brackets, IPv6 with an optional zone. */
static bool host_is_sane(const char *host, size_t size, bool bracketed)
{
    static const char name[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
    if (size == 0 || size >= ADDRESS_HOST_MAX)
        return false;
    for (size_t i = 0; i < size; i++)
        if (strchr(name, host[i]) == NULL && !(bracketed && (host[i] == ':' || host[i] == '%')))
            return false;
    return !bracketed || memchr(host, ':', size) != NULL;
}

bool address_split(const char *text, char host[ADDRESS_HOST_MAX], unsigned *port)
{
    const char *colon = strrchr(text, ':');
    bool bracketed = text[0] == '[';
    unsigned number;
    if (colon == NULL || !parse_port(colon + 1, &number))
        return false;
    const char *begin = text + bracketed, *end = colon - bracketed;
    if (end < begin || (bracketed && *end != ']') || !host_is_sane(begin, (size_t)(end - begin), bracketed))
        return false;
    memcpy(host, begin, (size_t)(end - begin));
    host[end - begin] = 0;
    *port = number;
    return true;
}

bool address_numeric(const char *text, struct sockaddr_storage *address)
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
    char host[ADDRESS_HOST_MAX];
    struct addrinfo *found = NULL;
    unsigned port;
    if (!address_split(text, host, &port) || getaddrinfo(host, NULL, &hints, &found) != 0)
        return false;
    memset(address, 0, sizeof(*address));
    memcpy(address, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    if (address->ss_family == AF_INET)
        ((struct sockaddr_in *)address)->sin_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in6 *)address)->sin6_port = htons((uint16_t)port);
    return true;
}

bool address_is_loopback(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
    const struct in6_addr *ip = &((const struct sockaddr_in6 *)address)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(ip) || (IN6_IS_ADDR_V4MAPPED(ip) && ip->s6_addr[12] == 127);
}

bool address_is_wildcard(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET)
        return ((const struct sockaddr_in *)address)->sin_addr.s_addr == htonl(INADDR_ANY);
    const struct in6_addr *ip = &((const struct sockaddr_in6 *)address)->sin6_addr;
    static const uint8_t mapped_any[4] = {0};
    return IN6_IS_ADDR_UNSPECIFIED(ip) || (IN6_IS_ADDR_V4MAPPED(ip) && memcmp(ip->s6_addr + 12, mapped_any, 4) == 0);
}

unsigned address_port(const struct sockaddr_storage *address)
{
    return ntohs(address->ss_family == AF_INET ? ((const struct sockaddr_in *)address)->sin_port
                                               : ((const struct sockaddr_in6 *)address)->sin6_port);
}
