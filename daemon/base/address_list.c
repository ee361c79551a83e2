#include <errno.h>
#include <ifaddrs.h>
#include <linux/if_addr.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/address.h"

/* Lists of addresses: what they stand for on this host, and what peers are told of it. */

/* ---- Interfaces -------------------------------------------------------------------------------------------------- */

/* Will the address go, or has it never come? Temporary addresses (RFC 8981) are for clients. */
static bool is_passing(const struct in6_addr *ip)
{
    const unsigned passing = IFA_F_TEMPORARY | IFA_F_DEPRECATED | IFA_F_DADFAILED;
    char number[33], line[33];
    unsigned flags = 0, found = 0;
    FILE *file = fopen("/proc/net/if_inet6", "re");
    if (file == NULL)
        return false;
    for (int i = 0; i < 16; i++)
        snprintf(number + 2 * i, 3, "%02x", ip->s6_addr[i]);
    while (found == 0 && fscanf(file, "%32s %*s %*s %*s %x %*s", line, &flags) == 2)
        found = strcmp(line, number) == 0;
    fclose(file);
    return found != 0 && (flags & passing) != 0;
}

/* Sets *address to an address of an interface, with port 0. False: of another family, or none that lasts. */
static bool address_of(const struct ifaddrs *at, struct sockaddr_storage *address)
{
    if (at->ifa_addr == NULL || (at->ifa_addr->sa_family != AF_INET && at->ifa_addr->sa_family != AF_INET6))
        return false;
    memset(address, 0, sizeof(*address));
    memcpy(address, at->ifa_addr,
           at->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
    return address->ss_family == AF_INET || !is_passing(&((struct sockaddr_in6 *)address)->sin6_addr);
}

/* Adds an address unless the list has it. False: the list is full. */
static bool add(struct address_list *list, const struct address_found *found)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (address_equal(&list->found[i].address, &found->address))
            return true;
    if (list->count == ADDRESS_FOUND_MAX)
        return false;
    list->found[list->count++] = *found;
    return true;
}

/* Adds the addresses of an interface: link-local ones only if it has no others. False: it has none. */
static bool add_interface(struct address_list *list, const char *name, unsigned port, uint32_t item, bool *fits)
{
    struct ifaddrs *all = NULL;
    struct address_found found = {.item = item, .optional = true};
    bool any = false;
    if (getifaddrs(&all) != 0)
        return false;
    for (int link_local = 0; link_local < 2 && !any; link_local++)
        for (const struct ifaddrs *at = all; at != NULL; at = at->ifa_next) {
            if (strcmp(at->ifa_name, name) != 0 || !address_of(at, &found.address) ||
                address_is_link_local(&found.address) != (link_local == 1))
                continue;
            address_set_port(&found.address, port);
            *fits = add(list, &found) && *fits;
            any = true;
        }
    freeifaddrs(all);
    return any;
}

/* ---- Resolving --------------------------------------------------------------------------------------------------- */

/* Adds the addresses of a host by its name. Returns getaddrinfo's error. */
static int add_name(struct address_list *list, const char *host, unsigned port, uint32_t item, bool *fits)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *all = NULL;
    const int error = getaddrinfo(host, NULL, &hints, &all);
    for (const struct addrinfo *at = error == 0 ? all : NULL; at != NULL; at = at->ai_next) {
        struct address_found found = {.item = item};
        memcpy(&found.address, at->ai_addr, at->ai_addrlen);
        address_normalise(&found.address);
        address_set_port(&found.address, port);
        *fits = add(list, &found) && *fits;
    }
    if (error == 0)
        freeaddrinfo(all);
    return error;
}

/* IPv6 may be switched off in the kernel. */
static bool add_any(struct address_list *list, unsigned port, uint32_t item)
{
    struct address_found wide = {.address.ss_family = AF_INET6, .item = item, .optional = true};
    struct address_found plain = {.address.ss_family = AF_INET, .item = item, .optional = true};
    address_set_port(&wide.address, port);
    address_set_port(&plain.address, port);
    return add(list, &wide) && add(list, &plain);
}

static enum strait_status resolve_one(const char *text, uint32_t item, struct address_list *list, char *why,
                                      size_t why_size)
{
    char host[ADDRESS_HOST_MAX];
    struct address_found found = {.item = item};
    bool fits = true, any = true;
    unsigned port;
    if (!address_split(text, host, &port)) {
        snprintf(why, why_size, "\"%s\" is not host:port", text);
        return STRAIT_ERR_INVALID;
    }
    const enum address_kind kind = address_numeric(host, port, &found.address);
    int error = 0;
    if (kind == ADDRESS_NO_ZONE)
        snprintf(why, why_size,
                 "%s is link-local: it needs a zone that is an interface here, as in [fe80::1%%eth0]:7350", text);
    else if (kind == ADDRESS_NUMERIC)
        fits = add(list, &found);
    else if (strcmp(host, "*") == 0)
        fits = add_any(list, port, item);
    else if (if_nametoindex(host) != 0)
        any = add_interface(list, host, port, item, &fits);
    else
        error = add_name(list, host, port, item, &fits);
    if (error != 0)
        snprintf(why, why_size, "%s: %s", text, gai_strerror(error));
    else if (!fits)
        snprintf(why, why_size, "%s: these are more than %u addresses", text, ADDRESS_FOUND_MAX);
    else if (!any)
        snprintf(why, why_size, "%s: interface %s has no address", text, host);
    else if (kind != ADDRESS_NO_ZONE)
        return STRAIT_OK;
    return STRAIT_ERR_INVALID;
}

enum strait_status address_resolve(const char *text, struct address_list *list, char *why, size_t why_size)
{
    char item[ADDRESS_TEXT_MAX];
    enum strait_status status = STRAIT_OK;
    list->count = 0;
    for (uint32_t i = 0; text != NULL && status == STRAIT_OK; i++) {
        text = address_next(text, item);
        if (i == ADDRESS_LIST_MAX) {
            snprintf(why, why_size, "more than %u addresses are named", ADDRESS_LIST_MAX);
            return STRAIT_ERR_INVALID;
        }
        status = resolve_one(item, i, list, why, why_size);
    }
    return status;
}

/* ---- Advertising ------------------------------------------------------------------------------------------------- */

enum rank { RANK_GLOBAL, RANK_UNIQUE_LOCAL, RANK_LINK_LOCAL, RANK_LOOPBACK, RANK_NEVER };

static enum rank rank_of(const struct sockaddr_storage *address)
{
    if (address_is_link_local(address) || address_is_wildcard(address))
        return RANK_NEVER;
    if (address_is_loopback(address))
        return RANK_LOOPBACK;
    if (address->ss_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 16 == 0xa9fe ? RANK_LINK_LOCAL
                                                                                             : RANK_GLOBAL;
    return (((const struct sockaddr_in6 *)address)->sin6_addr.s6_addr[0] & 0xfe) == 0xfc ? RANK_UNIQUE_LOCAL
                                                                                         : RANK_GLOBAL;
}

/* Appends host:port to a list; false: it does not fit. */
static bool append(char *text, size_t size, const char *item)
{
    const size_t used = strlen(text);
    uint32_t count = used > 0;
    for (const char *at = text; (at = strchr(at, ',')) != NULL; at++)
        count++;
    if (count == ADDRESS_LIST_MAX || used + (used > 0) + strlen(item) + 1 > size)
        return false;
    snprintf(text + used, size - used, "%s%s", used > 0 ? "," : "", item);
    return true;
}

/* Appends the addresses of these ranks, the best first. */
static void append_ranked(const struct address_list *list, enum rank best, enum rank worst, char *text, size_t size)
{
    char item[ADDRESS_TEXT_MAX];
    for (enum rank rank = best; rank <= worst; rank++)
        for (uint32_t i = 0; i < list->count; i++)
            if (rank_of(&list->found[i].address) == rank)
                (void)append(text, size, address_text(&list->found[i].address, item));
}

/* Adds the addresses of interfaces that a wildcard address stands for. False: there are several interfaces, which
 * `several` lists. */
static bool add_interfaces(struct address_list *list, const struct sockaddr_storage *wildcard, const char **only,
                           char name[IF_NAMESIZE], char *several, size_t size)
{
    struct ifaddrs *all = NULL;
    struct address_found found = {0};
    char item[ADDRESS_TEXT_MAX];
    bool alone = true;
    if (getifaddrs(&all) != 0) { /* a sandbox may forbid to ask for them */
        snprintf(name, IF_NAMESIZE, "eth0");
        snprintf(several, size, "the interfaces are not told: %s", strerror(errno));
        return false;
    }
    for (const struct ifaddrs *at = all; at != NULL; at = at->ifa_next) {
        if ((at->ifa_flags & IFF_UP) == 0 || !address_of(at, &found.address) ||
            found.address.ss_family != wildcard->ss_family || rank_of(&found.address) >= RANK_LOOPBACK)
            continue;
        address_set_port(&found.address, address_port(wildcard));
        alone = alone && (*only == NULL || strcmp(name, at->ifa_name) == 0);
        snprintf(name, IF_NAMESIZE, "%s", at->ifa_name);
        *only = name;
        const size_t used = strlen(several);
        snprintf(several + used, size - used, "%s%s %s", used > 0 ? ", " : "", at->ifa_name,
                 address_text(&found.address, item));
        (void)add(list, &found);
    }
    freeifaddrs(all);
    return alone;
}

/* Collects what the addresses that we listen at mean to others. */
static bool concrete(const struct address_list *listening, struct address_list *list, char *why, size_t why_size)
{
    char name[IF_NAMESIZE], several[160] = "";
    const char *only = NULL;
    bool alone = true;
    list->count = 0;
    for (uint32_t i = 0; i < listening->count; i++) {
        const struct sockaddr_storage *address = &listening->found[i].address;
        if (address_is_wildcard(address))
            alone = add_interfaces(list, address, &only, name, several, sizeof(several)) && alone;
        else
            (void)add(list, &listening->found[i]);
    }
    if (!alone)
        snprintf(why, why_size, "which of its addresses do peers reach? Set advertise, as in advertise = %s:%u (%s)",
                 name, address_port(&listening->found[0].address), several);
    return alone;
}

static enum strait_status advertise_listening(const struct address_list *listening, char *text, size_t size, char *why,
                                              size_t why_size)
{
    struct address_list list;
    if (!concrete(listening, &list, why, why_size))
        return STRAIT_ERR_INVALID;
    append_ranked(&list, RANK_GLOBAL, RANK_LINK_LOCAL, text, size);
    if (text[0] == 0)
        append_ranked(&list, RANK_LOOPBACK, RANK_LOOPBACK, text, size);
    if (text[0] != 0)
        return STRAIT_OK;
    snprintf(why, why_size, "%s",
             list.count > 0 ? "peers do not know its zone: set advertise to the address with the zone as they name it, "
                              "like [fe80::1%eth0]:7350"
                            : "no interface but the loopback has an address: set advertise");
    return STRAIT_ERR_INVALID;
}

/* The name of an interface means nothing to others; the name of a host is left to them to look up. */
static bool advertise_one(const char *item, char *text, size_t size, char *why, size_t why_size)
{
    struct address_list list = {0};
    struct sockaddr_storage address;
    char host[ADDRESS_HOST_MAX], one[ADDRESS_TEXT_MAX];
    unsigned port;
    if (!address_split(item, host, &port))
        return false;
    const enum address_kind kind = address_numeric(host, port, &address);
    if (kind == ADDRESS_NO_ZONE && strchr(host, '%') == NULL) {
        snprintf(why, why_size, "%s is link-local: it needs the zone as peers name it, like [fe80::1%%eth0]:7350",
                 item);
        return false;
    }
    if (kind != ADDRESS_NAME || if_nametoindex(host) == 0) {
        const bool plain = kind == ADDRESS_NUMERIC && !address_is_link_local(&address);
        (void)append(text, size, plain ? address_text(&address, one) : item);
        return true;
    }
    const size_t before = strlen(text);
    bool fits = true;
    (void)add_interface(&list, host, port, 0, &fits);
    append_ranked(&list, RANK_GLOBAL, RANK_LOOPBACK, text, size);
    if (strlen(text) == before)
        snprintf(why, why_size, "%s: interface %s has no address that peers could dial", item, host);
    return strlen(text) > before;
}

enum strait_status address_advertise(const char *advertise, const struct address_list *listening, char *text,
                                     size_t size, char *why, size_t why_size)
{
    char item[ADDRESS_TEXT_MAX];
    text[0] = 0;
    if (advertise[0] == 0)
        return listening->count > 0 ? advertise_listening(listening, text, size, why, why_size) : STRAIT_OK;
    if (!address_list_ok(advertise)) {
        snprintf(why, why_size, "\"%s\" is not host:port", advertise);
        return STRAIT_ERR_INVALID;
    }
    for (const char *rest = advertise; rest != NULL;) {
        rest = address_next(rest, item);
        if (!advertise_one(item, text, size, why, why_size))
            return STRAIT_ERR_INVALID;
    }
    return STRAIT_OK;
}
