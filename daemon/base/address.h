/* Network addresses as people write them: host:port, or several of them separated by commas, best first. A host is a
 * numeric address (127.0.0.1, [::1], [fe80::1%eth0]) or a name; where a daemon listens, and in what it advertises, also
 * the name of an interface, which stands for the addresses of that interface. The wildcard is 0.0.0.0, [::], or * for
 * both families. An IPv4-mapped address (::ffff:a.b.c.d) is read as the IPv4 address that it stands for. */
#ifndef STRAIT_DAEMON_BASE_ADDRESS_H
#define STRAIT_DAEMON_BASE_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include <strait/status.h>

#define ADDRESS_HOST_MAX  254u /* of a host's name or number, with its NUL */
#define ADDRESS_TEXT_MAX  264u /* of host:port, with its NUL */
#define ADDRESS_LIST_MAX  8u   /* host:port in a list */
#define ADDRESS_FOUND_MAX 64u  /* addresses that a list stands for */

/* ---- Text -------------------------------------------------------------------------------------------------------- */

/* Splits "host:port"; an IPv6 host stands in brackets and is returned without them. False: not of this form, and
 * nothing is written. */
bool address_split(const char *text, char host[ADDRESS_HOST_MAX], unsigned *port);
/* Takes the first host:port off a list. Returns the rest of the list; NULL: there was no other. An item that is too
 * long becomes "". */
const char *address_next(const char *list, char item[ADDRESS_TEXT_MAX]);
/* Is it a list of 1 to ADDRESS_LIST_MAX of them, none of which is the wildcard, with ports of 1..65535? */
bool address_list_ok(const char *list);
/* Is one of the list's items one of the other's, letter for letter? */
bool address_lists_meet(const char *a, const char *b);

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

enum address_kind {
    ADDRESS_NUMERIC,
    ADDRESS_NAME,
    ADDRESS_NO_ZONE, /* link-local: without a zone, or this host has no interface that is called so */
};

/* Reads a host as address_split returns it. *address is set when it is ADDRESS_NUMERIC; the zone of a link-local
 * address is an interface of this host. Never asks a name server. */
enum address_kind address_numeric(const char *host, unsigned port, struct sockaddr_storage *address);
/* Makes an IPv4-mapped address the IPv4 address that it stands for. */
void address_normalise(struct sockaddr_storage *address);
/* Writes it as people do; returns `text`. */
const char *address_text(const struct sockaddr_storage *address, char text[ADDRESS_TEXT_MAX]);

/* The same for the other end of a connected socket; "?": it has no such address. */
const char *address_reached(int fd, char text[ADDRESS_TEXT_MAX]);

bool address_is_loopback(const struct sockaddr_storage *address);
bool address_is_wildcard(const struct sockaddr_storage *address);   /* 0.0.0.0 or [::] */
bool address_is_link_local(const struct sockaddr_storage *address); /* of IPv6: it needs a zone */
unsigned address_port(const struct sockaddr_storage *address);
void address_set_port(struct sockaddr_storage *address, unsigned port);
socklen_t address_size(const struct sockaddr_storage *address);
bool address_equal(const struct sockaddr_storage *a, const struct sockaddr_storage *b); /* with port and zone */
/* Whether both are of one host as far as addresses tell: equal but for the port, and of IPv6 the first 64 bits. */
bool address_same_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b);

/* ---- What a list stands for -------------------------------------------------------------------------------------- */

struct address_list {
    uint32_t count;
    struct address_found {
        struct sockaddr_storage address;
        uint32_t item; /* its place in the list */
        bool optional; /* one of several that the item stands for: others of them may do without it */
    } found[ADDRESS_FOUND_MAX];
};

/* Looks up interfaces and names, and waits for name servers: for the start. ERR_INVALID: an item is malformed, or
 * stands for nothing here; ERR_NO_MEMORY; `why` names the item. */
enum strait_status address_resolve(const char *text, struct address_list *list, char *why, size_t why_size);

/* Writes what peers are told to dial into `text`, of `size` bytes: `advertise`, where names of interfaces become their
 * addresses; or, when it is "", where we listen:
 *   - addresses of the loopback only if there are no others, link-local ones never: their zone is our interface's name,
 *     not the peer's;
 *   - for the wildcard the addresses of the only interface, besides the loopback, that has some. Which of several
 *     interfaces reaches the peers is for the operator to say (bridges of containers have the same address everywhere);
 *   - global ones before unique local ones of IPv6 before link-local ones of IPv4;
 *   - as many as ADDRESS_LIST_MAX and `size` allow.
 * ERR_INVALID: there is no such address, or `advertise` is wrong; `why` says what to do. */
enum strait_status address_advertise(const char *advertise, const struct address_list *listening, char *text,
                                     size_t size, char *why, size_t why_size);

#endif
