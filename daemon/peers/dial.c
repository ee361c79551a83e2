#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/peers/peer_internal.h"

/* Dialling: from a list of addresses to a connected socket. The addresses are tried in order; an attempt that has no
 * answer yet goes on while the next one begins, as in RFC 8305, so an address that swallows packets takes a quarter of
 * a second and not the whole time. The first socket that connects is taken. */

#define LOOKUPS_MAX        16u  /* lookups at a time: a name server that does not answer blocks each for long */
#define DIAL_ADDRESSES_MAX 16u  /* tried for one connection; more of a name's are left out */
#define DIAL_STAGGER_MS    250u /* until the next address is tried too; less where the whole time is short */

struct attempt {
    struct dial *dial;
    struct sockaddr_storage address;
    char host[ADDRESS_HOST_MAX]; /* that it stands for */
    int fd;                      /* -1: not tried yet, or over */
    struct watch *watch;
};

struct lookup {
    struct dial *dial;
    uv_getaddrinfo_t request;
    char host[ADDRESS_HOST_MAX];
    unsigned port;
    bool runs;
};

struct dial {
    struct connection *connection;
    const char *rest; /* of the list: items that were not looked at yet */
    uint32_t items;
    struct attempt attempts[DIAL_ADDRESSES_MAX]; /* in the order in which they are tried */
    uint32_t count, begun;
    struct lookup lookups[ADDRESS_LIST_MAX];
    uint32_t lookup_count;
    uint32_t failures, unreachable; /* the latter: nothing of that family is reached from here */
    char why[sizeof(((struct peer *)NULL)->why)];
};

static void try_next(struct dial *dial);

/* ---- What went wrong --------------------------------------------------------------------------------------------- */

static void note(struct dial *dial, const char *what, const char *error)
{
    const size_t used = strlen(dial->why);
    const bool named = dial->items > 1 || dial->count > 1;
    dial->failures++;
    snprintf(dial->why + used, sizeof(dial->why) - used, "%s%s%s%s", used > 0 ? "; " : "", named ? what : "",
             named ? ": " : "", error);
}

static void note_address(struct dial *dial, const struct sockaddr_storage *address, const char *error)
{
    char text[ADDRESS_TEXT_MAX];
    note(dial, address_text(address, text), error);
}

static void note_lookup(struct dial *dial, const char *host, const char *error)
{
    char text[128];
    snprintf(text, sizeof(text), "name look-up: %s", error);
    note(dial, host, text);
}

static bool is_open(const struct dial *dial)
{
    for (uint32_t i = 0; i < dial->begun; i++)
        if (dial->attempts[i].fd >= 0)
            return true;
    return false;
}

static bool looks_up(const struct dial *dial)
{
    for (uint32_t i = 0; i < dial->lookup_count; i++)
        if (dial->lookups[i].runs)
            return true;
    return false;
}

static void fail(struct dial *dial)
{
    const bool hopeless = dial->unreachable > 0 && dial->unreachable == dial->failures;
    connection_fail(dial->connection, "%s%s", hopeless ? "no address of a family that this host can reach: " : "",
                    dial->why);
}

/* ---- One address after the other --------------------------------------------------------------------------------- */

static void attempt_close(struct attempt *attempt)
{
    watch_close(attempt->watch);
    attempt->watch = NULL;
    if (attempt->fd >= 0)
        close(attempt->fd);
    attempt->fd = -1;
}

static void attempt_failed(struct attempt *attempt, int error)
{
    const bool v6 = attempt->address.ss_family == AF_INET6;
    attempt_close(attempt);
    attempt->dial->unreachable += error == ENETUNREACH || error == EAFNOSUPPORT || (v6 && error == EADDRNOTAVAIL);
    note_address(attempt->dial, &attempt->address, strerror(error));
}

static void on_connect(void *owner, uint32_t events)
{
    struct attempt *attempt = owner;
    struct connection *c = attempt->dial->connection;
    const int fd = attempt->fd;
    int error = 0;
    socklen_t size = sizeof(error);
    (void)events;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
        error = errno;
    if (error != 0) {
        attempt_failed(attempt, error);
        try_next(attempt->dial);
    } else if (!c->failing) {
        attempt->fd = -1;
        watch_close(attempt->watch);
        attempt->watch = NULL;
        memcpy(c->host, attempt->host, sizeof(c->host));
        connection_dial_end(c);
        peers_of(c)->on_connected(c, fd);
    }
}

/* False: it has failed already. */
static bool attempt_begin(struct attempt *attempt)
{
    struct peers *peers = peers_of(attempt->dial->connection);
    const struct sockaddr_storage *address = &attempt->address;
    attempt->fd = socket(address->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    int error = attempt->fd < 0 ? errno : 0;
    if (error == 0 && connect(attempt->fd, (const struct sockaddr *)address, address_size(address)) != 0 &&
        errno != EINPROGRESS)
        error = errno;
    if (error == 0 &&
        watch_open(peers->config.loop, attempt->fd, on_connect, attempt, &peers->watches, &attempt->watch) != STRAIT_OK)
        error = ENOMEM;
    if (error != 0)
        attempt_failed(attempt, error);
    else
        watch_for(attempt->watch, WATCH_WRITE);
    return error == 0;
}

/* Puts an address at this place of those that were not tried yet. */
static void insert(struct dial *dial, uint32_t place, const struct sockaddr_storage *address, const char *host)
{
    struct attempt *at = &dial->attempts[place];
    for (uint32_t i = 0; i < dial->count; i++)
        if (address_equal(&dial->attempts[i].address, address))
            return;
    if (dial->count == DIAL_ADDRESSES_MAX)
        return;
    memmove(at + 1, at, (dial->count - place) * sizeof(*at));
    *at = (struct attempt){.dial = dial, .address = *address, .fd = -1};
    snprintf(at->host, sizeof(at->host), "%s", host);
    dial->count++;
}

/* ---- Names ------------------------------------------------------------------------------------------------------- */

/* Puts the addresses of a name in front of what was not tried yet: the families in turn, the system's favourite first.
 */
static void insert_all(struct dial *dial, const struct addrinfo *list, const struct lookup *lookup)
{
    uint32_t place = dial->begun;
    const struct addrinfo *same = list, *other = list;
    for (bool turn = true; same != NULL || other != NULL; turn = !turn) {
        const struct addrinfo **next = turn ? &same : &other;
        while (*next != NULL && ((*next)->ai_family == list->ai_family) != turn)
            *next = (*next)->ai_next;
        if (*next == NULL)
            continue;
        struct sockaddr_storage address = {0};
        memcpy(&address, (*next)->ai_addr, (*next)->ai_addrlen);
        address_normalise(&address);
        address_set_port(&address, lookup->port);
        const uint32_t before = dial->count;
        insert(dial, place, &address, lookup->host);
        place += dial->count - before;
        *next = (*next)->ai_next;
    }
}

static void on_lookup(uv_getaddrinfo_t *request, int error, struct addrinfo *list)
{
    struct lookup *lookup = request->data;
    struct dial *dial = lookup->dial;
    struct connection *c = dial->connection;
    lookup->runs = false;
    peers_of(c)->lookups--;
    if (c->dial_ended || c->failing) {
        uv_freeaddrinfo(list);
        connection_dial_end(c);
        peers_of(c)->on_part_ended(c);
        return;
    }
    if (error == 0 && list != NULL)
        insert_all(dial, list, lookup);
    else
        note_lookup(dial, lookup->host, error != 0 ? uv_strerror(error) : "no address");
    uv_freeaddrinfo(list);
    try_next(dial);
}

/* False: it has failed already. */
static bool look_up(struct dial *dial, const char *host, unsigned port)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct peers *peers = peers_of(dial->connection);
    struct lookup *lookup = &dial->lookups[dial->lookup_count];
    if (peers->lookups >= LOOKUPS_MAX) {
        note_lookup(dial, host, "too many at once");
        return false;
    }
    *lookup = (struct lookup){.dial = dial, .port = port, .request.data = lookup};
    snprintf(lookup->host, sizeof(lookup->host), "%s", host);
    const int error = uv_getaddrinfo(peers->config.loop, &lookup->request, on_lookup, host, NULL, &hints);
    if (error != 0) {
        note_lookup(dial, host, uv_strerror(error));
        return false;
    }
    lookup->runs = true;
    dial->lookup_count++;
    peers->lookups++;
    return true;
}

/* ---- The list ---------------------------------------------------------------------------------------------------- */

/* Looks at the next item of the list. True: its name is being looked up. */
static bool take_item(struct dial *dial)
{
    char item[ADDRESS_TEXT_MAX], host[ADDRESS_HOST_MAX];
    struct sockaddr_storage address;
    unsigned port;
    dial->rest = address_next(dial->rest, item);
    if (!address_split(item, host, &port)) /* peers_address_ok has read it */
        return false;
    switch (address_numeric(host, port, &address)) {
    case ADDRESS_NUMERIC:
        insert(dial, dial->count, &address, host);
        return false;
    case ADDRESS_NO_ZONE:
        note(dial, item, "its zone is no interface of this host");
        return false;
    default:
        return look_up(dial, host, port);
    }
}

/* Tries the next address, or looks up the next name, and comes back after a while even if there is no answer. */
static void try_next(struct dial *dial)
{
    struct connection *c = dial->connection;
    const struct peers *peers = peers_of(c);
    const uint32_t share = peers->options.connect_ms / 4;
    bool waits = false;
    while (!waits && (dial->begun < dial->count || dial->rest != NULL))
        waits = dial->begun < dial->count ? attempt_begin(&dial->attempts[dial->begun++]) : take_item(dial);
    c->next_address = waits ? peers_now(peers) + (share < DIAL_STAGGER_MS ? share : DIAL_STAGGER_MS) : UINT64_MAX;
    if (!waits && !is_open(dial) && !looks_up(dial))
        fail(dial);
}

void connection_dial(struct connection *c)
{
    char item[ADDRESS_TEXT_MAX];
    c->peer.state = PEER_DIALLING;
    c->deadline = peers_now(peers_of(c)) + peers_of(c)->options.connect_ms;
    c->dial = calloc(1, sizeof(*c->dial));
    if (c->dial == NULL) {
        connection_fail(c, "out of memory");
        return;
    }
    c->dial->connection = c;
    c->dial->rest = c->peer.address;
    for (const char *rest = c->peer.address; rest != NULL; c->dial->items++)
        rest = address_next(rest, item);
    try_next(c->dial);
}

/* ---- Time and end ------------------------------------------------------------------------------------------------ */

void connection_dial_tick(struct connection *c)
{
    struct dial *dial = c->dial;
    const uint64_t now = peers_now(peers_of(c));
    if (now < c->deadline) {
        if (now >= c->next_address)
            try_next(dial);
        return;
    }
    for (uint32_t i = 0; i < dial->begun; i++)
        if (dial->attempts[i].fd >= 0)
            note_address(dial, &dial->attempts[i].address, strerror(ETIMEDOUT));
    for (uint32_t i = 0; i < dial->lookup_count; i++)
        if (dial->lookups[i].runs)
            note_lookup(dial, dial->lookups[i].host, "no answer in time");
    fail(dial);
}

void connection_dial_end(struct connection *c)
{
    struct dial *dial = c->dial;
    c->dial_ended = true;
    if (dial == NULL)
        return;
    for (uint32_t i = 0; i < dial->begun; i++)
        attempt_close(&dial->attempts[i]);
    for (uint32_t i = 0; i < dial->lookup_count; i++)
        if (dial->lookups[i].runs)
            uv_cancel((uv_req_t *)&dial->lookups[i].request); /* its callback is called in any case */
    if (looks_up(dial))
        return;
    free(dial);
    c->dial = NULL;
}
