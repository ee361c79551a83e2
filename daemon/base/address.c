#include "daemon/base/address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS "0123456789"

static const struct sockaddr_in *v4(const struct sockaddr_storage *address)
{
    return (const struct sockaddr_in *)address;
}

static const struct sockaddr_in6 *v6(const struct sockaddr_storage *address)
{
    return (const struct sockaddr_in6 *)address;
}

/* ---- Text -------------------------------------------------------------------------------------------------------- */

static bool parse_port(const char *text, unsigned *port)
{
    unsigned value = 0;
    size_t digits = strspn(text, DIGITS);
    if (digits == 0 || digits > 5 || text[digits] != 0)
        return false;
    for (size_t i = 0; i < digits; i++)
        value = value * 10 + (unsigned)(text[i] - '0');
    *port = value;
    return value <= 65535;
}

/* Splits "fe80::1%eth0". False: no IPv6 address, or an empty zone. */
static bool parse_v6(const char *host, struct in6_addr *ip, char zone[IF_NAMESIZE])
{
    char number[INET6_ADDRSTRLEN];
    size_t size = strcspn(host, "%"), rest = strlen(host + size);
    if (size >= sizeof(number) || rest == 1 || rest > IF_NAMESIZE)
        return false;
    memcpy(number, host, size);
    number[size] = 0;
    memcpy(zone, rest > 0 ? host + size + 1 : "", rest > 0 ? rest : 1);
    return inet_pton(AF_INET6, number, ip) == 1;
}

/* Names of hosts and interfaces, the wildcard of both families, and numbers that are complete: what inet_aton would
 * make of "10.7" is nobody's intention. */
static bool host_is_sane(const char *host, bool bracketed)
{
    static const char name[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-_" DIGITS;
    struct in6_addr ip;
    char zone[IF_NAMESIZE];
    if (bracketed)
        return parse_v6(host, &ip, zone) && strspn(zone, name) == strlen(zone);
    if (host[strspn(host, "." DIGITS)] == 0)
        return inet_pton(AF_INET, host, &ip) == 1;
    return strcmp(host, "*") == 0 || host[strspn(host, name)] == 0;
}

bool address_split(const char *text, char host[ADDRESS_HOST_MAX], unsigned *port)
{
    const char *colon = strrchr(text, ':');
    const bool bracketed = text[0] == '[';
    char copy[ADDRESS_HOST_MAX];
    unsigned number;
    if (colon == NULL || !parse_port(colon + 1, &number))
        return false;
    const char *begin = text + bracketed, *end = colon - bracketed;
    if (end <= begin || (size_t)(end - begin) >= sizeof(copy) || (bracketed && *end != ']'))
        return false;
    const size_t size = (size_t)(end - begin);
    memcpy(copy, begin, size);
    copy[size] = 0;
    if (!host_is_sane(copy, bracketed))
        return false;
    memcpy(host, copy, size + 1);
    *port = number;
    return true;
}

const char *address_next(const char *list, char item[ADDRESS_TEXT_MAX])
{
    const size_t size = strcspn(list, ",");
    const bool fits = size < ADDRESS_TEXT_MAX;
    memcpy(item, list, fits ? size : 0);
    item[fits ? size : 0] = 0;
    return list[size] == ',' ? list + size + 1 : NULL;
}

bool address_list_ok(const char *list)
{
    char item[ADDRESS_TEXT_MAX], host[ADDRESS_HOST_MAX];
    struct sockaddr_storage address;
    unsigned port;
    uint32_t count = 0;
    while (list != NULL) {
        list = address_next(list, item);
        if (++count > ADDRESS_LIST_MAX || !address_split(item, host, &port) || port == 0 || strcmp(host, "*") == 0 ||
            (address_numeric(host, port, &address) == ADDRESS_NUMERIC && address_is_wildcard(&address)))
            return false;
    }
    return true;
}

bool address_lists_meet(const char *a, const char *b)
{
    char one[ADDRESS_TEXT_MAX], other[ADDRESS_TEXT_MAX];
    while (a != NULL) {
        a = address_next(a, one);
        for (const char *rest = b; rest != NULL;) {
            rest = address_next(rest, other);
            if (one[0] != 0 && strcmp(one, other) == 0)
                return true;
        }
    }
    return false;
}

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

void address_normalise(struct sockaddr_storage *address)
{
    struct sockaddr_in plain = {.sin_family = AF_INET, .sin_port = v6(address)->sin6_port};
    if (address->ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&v6(address)->sin6_addr))
        return;
    memcpy(&plain.sin_addr, v6(address)->sin6_addr.s6_addr + 12, sizeof(plain.sin_addr));
    memset(address, 0, sizeof(*address));
    memcpy(address, &plain, sizeof(plain));
}

/* The number of an interface stands for its name too. */
static uint32_t zone_index(const char *zone)
{
    char name[IF_NAMESIZE];
    uint32_t index = if_nametoindex(zone);
    if (index == 0 && strlen(zone) <= 9 && zone[strspn(zone, DIGITS)] == 0)
        index = (uint32_t)strtoul(zone, NULL, 10);
    return index != 0 && if_indextoname(index, name) != NULL ? index : 0;
}

enum address_kind address_numeric(const char *host, unsigned port, struct sockaddr_storage *address)
{
    struct sockaddr_in plain = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct sockaddr_in6 wide = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    char zone[IF_NAMESIZE];
    const bool is_plain = inet_pton(AF_INET, host, &plain.sin_addr) == 1;
    if (!is_plain && (strchr(host, ':') == NULL || !parse_v6(host, &wide.sin6_addr, zone)))
        return ADDRESS_NAME;
    if (!is_plain && IN6_IS_ADDR_LINKLOCAL(&wide.sin6_addr)) {
        wide.sin6_scope_id = zone[0] != 0 ? zone_index(zone) : 0;
        if (wide.sin6_scope_id == 0)
            return ADDRESS_NO_ZONE;
    }
    memset(address, 0, sizeof(*address));
    memcpy(address, is_plain ? (const void *)&plain : (const void *)&wide, is_plain ? sizeof(plain) : sizeof(wide));
    address_normalise(address);
    return ADDRESS_NUMERIC;
}

const char *address_text(const struct sockaddr_storage *address, char text[ADDRESS_TEXT_MAX])
{
    char number[INET6_ADDRSTRLEN] = "?", zone[IF_NAMESIZE] = "";
    struct sockaddr_storage plain = *address;
    address_normalise(&plain);
    if (plain.ss_family == AF_INET) {
        (void)inet_ntop(AF_INET, &v4(&plain)->sin_addr, number, sizeof(number));
        snprintf(text, ADDRESS_TEXT_MAX, "%s:%u", number, address_port(&plain));
        return text;
    }
    (void)inet_ntop(AF_INET6, &v6(&plain)->sin6_addr, number, sizeof(number));
    if (v6(&plain)->sin6_scope_id != 0 && if_indextoname(v6(&plain)->sin6_scope_id, zone) == NULL)
        snprintf(zone, sizeof(zone), "%u", (unsigned)v6(&plain)->sin6_scope_id);
    snprintf(text, ADDRESS_TEXT_MAX, "[%s%s%s]:%u", number, zone[0] != 0 ? "%" : "", zone, address_port(&plain));
    return text;
}

const char *address_reached(int fd, char text[ADDRESS_TEXT_MAX])
{
    struct sockaddr_storage address = {0};
    socklen_t size = sizeof(address);
    if (getpeername(fd, (struct sockaddr *)&address, &size) != 0 ||
        (address.ss_family != AF_INET && address.ss_family != AF_INET6))
        return "?";
    return address_text(&address, text);
}

bool address_is_loopback(const struct sockaddr_storage *address)
{
    struct sockaddr_storage plain = *address;
    address_normalise(&plain);
    return plain.ss_family == AF_INET ? ntohl(v4(&plain)->sin_addr.s_addr) >> 24 == 127
                                      : IN6_IS_ADDR_LOOPBACK(&v6(&plain)->sin6_addr);
}

bool address_is_wildcard(const struct sockaddr_storage *address)
{
    struct sockaddr_storage plain = *address;
    address_normalise(&plain);
    return plain.ss_family == AF_INET ? v4(&plain)->sin_addr.s_addr == htonl(INADDR_ANY)
                                      : IN6_IS_ADDR_UNSPECIFIED(&v6(&plain)->sin6_addr);
}

bool address_is_link_local(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6(address)->sin6_addr);
}

unsigned address_port(const struct sockaddr_storage *address)
{
    return ntohs(address->ss_family == AF_INET ? v4(address)->sin_port : v6(address)->sin6_port);
}

void address_set_port(struct sockaddr_storage *address, unsigned port)
{
    if (address->ss_family == AF_INET)
        ((struct sockaddr_in *)address)->sin_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in6 *)address)->sin6_port = htons((uint16_t)port);
}

socklen_t address_size(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

bool address_equal(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    if (a->ss_family != b->ss_family || address_port(a) != address_port(b))
        return false;
    if (a->ss_family == AF_INET)
        return v4(a)->sin_addr.s_addr == v4(b)->sin_addr.s_addr;
    return v6(a)->sin6_scope_id == v6(b)->sin6_scope_id && IN6_ARE_ADDR_EQUAL(&v6(a)->sin6_addr, &v6(b)->sin6_addr);
}

bool address_same_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    if (a->ss_family != b->ss_family)
        return false;
    if (a->ss_family == AF_INET)
        return v4(a)->sin_addr.s_addr == v4(b)->sin_addr.s_addr;
    return memcmp(&v6(a)->sin6_addr, &v6(b)->sin6_addr, 8) == 0;
}
