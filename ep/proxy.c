#include "ep/proxy.h"

#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "ep/host.h"
#include "internal/bytes.h"
#include "internal/socket_address.h"
#include "internal/thread.h"
#include "transport/rank_address.h"
#include "transport/rank_listener.h"

enum { FRAMES_MAX = 64, CONNECT_MS = 10000 };
#define PIECE_MAX (1ull << 30) /* bytes of a frame; links take less than 4 GiB at once */
/* How often the thread looks at flags, as those who write them wake nobody: often for a while after anything moved. */
enum { SOON_NS = 20000, LATER_NS = 1000000, BUSY_TURNS = 2000 };

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

static void end_link(struct ep_proxy_peer *peer)
{
    if (peer->link != NULL)
        link_close(peer->link);
    peer->link = NULL;
}

/* A link that has ended takes nothing. */
static void send_frame(struct ep_proxy_peer *peer, enum ep_frame_type type, uint32_t small, uint64_t a,
                       const void *bytes, uint64_t size)
{
    uint8_t header[EP_FRAME_BYTES] = {0};

    if (peer->link == NULL)
        return;
    store_le32(header, type);
    store_le32(header + 4, small);
    store_le64(header + 8, a);
    const enum strait_status status = link_send(peer->link, header, sizeof(header), bytes, size, NULL, 0);
    peer->frames += status == STRAIT_OK;
    if (status != STRAIT_OK)
        end_link(peer);
}

/* The signal of this kind that is to be sent next: its manifest, or NULL. */
static const struct ep_manifest *next_of(const struct ep_proxy_peer *peer, enum ep_flag kind, uint64_t *value)
{
    const struct ep_group_view *view = peer->view;
    const uint64_t last = __atomic_load_n(ep_signal_of(view, kind, peer->rank), __ATOMIC_ACQUIRE);
    const struct ep_manifest *found = NULL;

    for (uint64_t i = 0; i < EP_MANIFESTS && last > peer->sent[kind]; i++) {
        const struct ep_manifest *manifest = ep_manifest_of(view, kind, i, peer->rank);
        const uint64_t of = __atomic_load_n(&manifest->value, __ATOMIC_RELAXED);
        if (of <= peer->sent[kind] || of > last || (found != NULL && of > *value))
            continue;
        found = manifest;
        *value = of;
    }
    return found;
}

static bool begin_signal(struct ep_proxy_peer *peer)
{
    const struct ep_manifest *manifest = NULL;

    for (enum ep_flag kind = 0; kind < EP_FLAG_KINDS && manifest == NULL; kind++) {
        peer->kind = kind;
        manifest = next_of(peer, kind, &peer->value);
    }
    peer->under_way = manifest != NULL;
    if (manifest != NULL)
        peer->manifest = *manifest;
    if (peer->manifest.count > EP_RANGES) /* overwritten meanwhile: nobody awaits this signal any more */
        peer->manifest.count = 0;
    peer->range = peer->row = 0;
    peer->piece = 0;
    return peer->under_way;
}

/* The next piece of the signal's ranges. */
static void send_piece(struct ep_proxy_peer *peer)
{
    const struct ep_group_view *view = peer->view;
    const struct ep_range *range = &peer->manifest.ranges[peer->range];
    const uint32_t owner = range->flags & EP_OF_SENDER ? view->rank : peer->rank;
    const uint64_t place =
        range->flags & EP_LISTED ? ep_places_of(view, peer->value, peer->rank)[peer->row] : peer->row;
    const uint64_t offset = range->offset + place * range->bytes + peer->piece, left = range->bytes - peer->piece;
    const uint64_t bytes = left < PIECE_MAX ? left : PIECE_MAX;

    if (offset > view->at.bytes || bytes > view->at.bytes - offset) { /* overwritten while it was copied */
        end_link(peer);
        return;
    }
    send_frame(peer, EP_FRAME_RANGE, range->flags & EP_OF_SENDER, offset, view->arenas[owner] + offset, bytes);
    peer->piece += bytes;
    if (peer->piece < range->bytes)
        return;
    peer->piece = 0;
    if (++peer->row < range->rows)
        return;
    peer->row = 0;
    peer->range++;
}

bool ep_proxy_peer_send(struct ep_proxy_peer *peer)
{
    bool any = false;

    while (peer->link != NULL && peer->frames < FRAMES_MAX && (peer->under_way || begin_signal(peer))) {
        any = true;
        if (peer->range < peer->manifest.count) {
            send_piece(peer);
            continue;
        }
        send_frame(peer, EP_FRAME_SIGNAL, peer->kind, peer->value, NULL, 0);
        peer->sent[peer->kind] = peer->value;
        peer->under_way = false;
    }
    return any;
}

bool ep_proxy_peer_flush(struct ep_proxy_peer *peer)
{
    if (peer->link != NULL && !peer->flushing && !peer->under_way && !begin_signal(peer)) {
        peer->flushing = true;
        send_frame(peer, EP_FRAME_FLUSH, 0, 0, NULL, 0);
    }
    return peer->link == NULL || peer->flushed;
}

/* ---- Receiving --------------------------------------------------------------------------------------------------- */

/* NULL: the range is not one of what a rank may write. */
static void *place_of(const struct ep_proxy_peer *peer, uint32_t flags, uint64_t offset, uint64_t bytes)
{
    const struct ep_arena *at = &peer->view->at;

    if ((flags & ~(uint32_t)EP_OF_SENDER) != 0 || offset < at->announce || offset > at->bytes ||
        bytes > at->bytes - offset)
        return NULL;
    return peer->view->arenas[flags & EP_OF_SENDER ? peer->rank : peer->view->rank] + offset;
}

static bool take_signal(struct ep_proxy_peer *peer, uint32_t kind, uint64_t value)
{
    if (kind >= EP_FLAG_KINDS || value <= peer->came[kind])
        return false;
    peer->came[kind] = value;
    ep_host_set_flag(peer->view, peer->view->rank, (enum ep_flag)kind, peer->rank, value);
    return true;
}

/* A frame without bytes. False: it is invalid. */
static bool take_frame(struct ep_proxy_peer *peer, uint32_t type, uint32_t small, uint64_t a)
{
    switch (type) {
    case EP_FRAME_SIGNAL:
        return take_signal(peer, small, a);
    case EP_FRAME_FLUSH:
        if (peer->answered)
            return false;
        peer->answered = true;
        send_frame(peer, EP_FRAME_FLUSHED, 0, 0, NULL, 0);
        return true;
    case EP_FRAME_FLUSHED:
        peer->flushed = peer->flushing;
        return peer->flushing;
    default:
        return false;
    }
}

static struct landing on_arriving(void *owner, struct link *link, const void *header, size_t header_size, size_t size)
{
    struct ep_proxy_peer *peer = link->owner;
    const uint8_t *frame = header;
    struct landing landing = {0};

    (void)owner;
    if (header_size == EP_FRAME_BYTES && size > 0 && load_le32(frame) == EP_FRAME_RANGE)
        landing.address = place_of(peer, load_le32(frame + 4), load_le64(frame + 8), size);
    else if (header_size == EP_FRAME_BYTES && size == 0 &&
             take_frame(peer, load_le32(frame), load_le32(frame + 4), load_le64(frame + 8)))
        return landing;
    if (landing.address == NULL)
        end_link(peer);
    return landing;
}

static void on_arrived(void *owner, struct link *link, uint64_t cookie, enum strait_status status)
{
    (void)owner, (void)link, (void)cookie, (void)status; /* the signal behind it does not come if the link ends */
}

static void on_sent(void *owner, struct link *link, uint64_t cookie, enum strait_status status)
{
    (void)owner, (void)cookie, (void)status;
    ((struct ep_proxy_peer *)link->owner)->frames--;
}

static void on_connected(void *owner, struct link *link)
{
    (void)owner;
    ((struct ep_proxy_peer *)link->owner)->connected = true;
}

static void on_broken(void *owner, struct link *link, const char *why)
{
    (void)owner, (void)why;
    end_link(link->owner);
}

static void on_closed(void *owner, struct link *link)
{
    (void)link;
    --*(uint32_t *)owner;
}

const struct transport_events ep_proxy_events = {
    .arriving = on_arriving,
    .arrived = on_arrived,
    .sent = on_sent,
    .connected = on_connected,
    .broken = on_broken,
    .closed = on_closed,
};

/* ---- The thread -------------------------------------------------------------------------------------------------- */

struct ep_proxy {
    struct transport *transport;
    struct rank_listener listener; /* closed once all are connected */
    uint32_t links;                /* not closed yet */
    bool started;
    pthread_t thread;
    pid_t process;          /* the one that has the thread; a child of it has copies of descriptors alone */
    struct address address; /* where ranks of other hosts connect to */
    int leaving;            /* 1: the thread ends when all is sent, or at the deadline */
    int64_t deadline_ms;
    uint32_t count;
    struct ep_proxy_peer peers[];
};

static struct ep_proxy_peer *peer_of(struct ep_proxy *proxy, uint64_t rank)
{
    for (uint32_t i = 0; i < proxy->count; i++)
        if (proxy->peers[i].rank == rank)
            return &proxy->peers[i];
    return NULL;
}

/* Carries what can be carried. False: there was nothing. */
static bool progress(struct ep_proxy *proxy)
{
    bool moved = false;

    for (uint32_t i = 0; i < proxy->count; i++)
        if (proxy->peers[i].connected)
            moved |= ep_proxy_peer_send(&proxy->peers[i]);
    return transport_progress(proxy->transport) || moved;
}

static void rest(struct ep_proxy *proxy, bool busy)
{
    struct pollfd ready[2] = {{.fd = transport_fd(proxy->transport), .events = POLLIN},
                              {.fd = proxy->listener.file, .events = POLLIN}};
    const struct timespec most = {.tv_nsec = busy ? SOON_NS : LATER_NS};

    if (transport_arm(proxy->transport) != STRAIT_ERR_AGAIN)
        (void)ppoll(ready, 2, &most, NULL);
    proxy->listener.ready = true;
}

/* Whether all ranks have what was signalled, as they have answered. */
static bool is_flushed(struct ep_proxy *proxy)
{
    bool all = true;

    for (uint32_t i = 0; i < proxy->count; i++)
        all = ep_proxy_peer_flush(&proxy->peers[i]) && all;
    return all;
}

static void *run(void *argument)
{
    struct ep_proxy *proxy = argument;
    uint32_t quiet = 0;

    (void)prctl(PR_SET_TIMERSLACK, 1000UL);
    for (;;) {
        const bool leaving = __atomic_load_n(&proxy->leaving, __ATOMIC_ACQUIRE) != 0;
        const bool moved = progress(proxy);
        quiet = moved ? 0 : quiet + (quiet < BUSY_TURNS);
        if (leaving && (is_flushed(proxy) || now_ms() >= proxy->deadline_ms))
            return NULL;
        if (!moved)
            rest(proxy, quiet < BUSY_TURNS);
    }
}

/* ---- Its life ---------------------------------------------------------------------------------------------------- */

/* A link to each rank of another host, not connected yet. On both sides it has the number of the other rank. */
static enum strait_status open_links(struct ep_proxy *proxy, const struct ep_group_view *view,
                                     const struct ep_proxy_info *own)
{
    for (uint32_t rank = 0; rank < view->rank_count; rank++) {
        struct ep_proxy_peer *peer = &proxy->peers[proxy->count];
        if (!ep_is_remote(view, rank))
            continue;
        peer->rank = rank;
        if (link_open(proxy->transport, -1, rank > view->rank ? LINK_DIALLED : LINK_ACCEPTED, peer, &peer->link) !=
            STRAIT_OK)
            return STRAIT_ERR_NO_MEMORY;
        tcp_name(peer->link, rank, own->secret);
        proxy->links++;
        proxy->count++;
    }
    return STRAIT_OK;
}

enum strait_status ep_proxy_create(const struct ep_group_view *view, struct ep_proxy_info *info,
                                   struct ep_proxy **proxy)
{
    const struct transport_arena arena = {.fd = -1, .memory = TRANSPORT_HOST};
    struct ep_proxy *made = calloc(1, sizeof(*made) + view->rank_count * sizeof(made->peers[0]));
    enum strait_status status = STRAIT_ERR_IO;

    if (made == NULL)
        return STRAIT_ERR_NO_MEMORY;
    made->process = getpid();
    rank_listener_init(&made->listener);
    if (rank_listener_open(&made->listener, &info->address))
        status = getrandom(info->secret, sizeof(info->secret), 0) == sizeof(info->secret)
                     ? transport_create(&transport_tcp, &arena, &ep_proxy_events, &made->links,
                                        "listen=none connections=1", &made->transport)
                     : STRAIT_ERR_NO_MEMORY;
    made->address = info->address;
    if (status == STRAIT_OK)
        status = open_links(made, view, info);
    if (status == STRAIT_OK)
        *proxy = made;
    else
        ep_proxy_destroy(made, 0);
    return status;
}

static bool awaits(void *arg, uint64_t rank)
{
    const struct ep_proxy_peer *peer = peer_of(arg, rank);

    return peer != NULL && peer->rank < peer->view->rank && peer->link != NULL && !peer->connected;
}

/* False: no connection can be begun from here. */
static bool begin_link(struct ep_proxy_peer *peer, const struct ep_proxy_info *info)
{
    uint8_t address[TCP_ADDRESS_BYTES(1)];
    struct sockaddr_storage at;
    const socklen_t size = address_unpack(&at, &info->address);

    tcp_address_write(address, peer->view->rank, info->secret);
    if (size > 0 && peer->rank > peer->view->rank)
        tcp_reach(peer->link, (struct sockaddr *)&at, size);
    return size > 0 && link_connect(peer->link, address, sizeof(address)) == STRAIT_OK;
}

/* A rank that is not connected yet; NULL: there is none. */
static const struct ep_proxy_peer *unconnected(const struct ep_proxy *proxy)
{
    for (uint32_t i = 0; i < proxy->count; i++)
        if (!proxy->peers[i].connected || proxy->peers[i].link == NULL)
            return &proxy->peers[i];
    return NULL;
}

/* Both sides of each link are here at the same time, or their threads are. */
static const struct ep_proxy_peer *connect_all(struct ep_proxy *proxy, const struct ep_proxy_info *infos)
{
    const int64_t deadline = now_ms() + CONNECT_MS;
    const struct ep_proxy_peer *missing;

    for (uint32_t i = 0; i < proxy->count; i++)
        if (!begin_link(&proxy->peers[i], &infos[proxy->peers[i].rank]))
            end_link(&proxy->peers[i]);
    while ((missing = unconnected(proxy)) != NULL && missing->link != NULL && now_ms() < deadline) {
        rank_listener_accept(&proxy->listener, proxy->transport, awaits, proxy);
        if (!transport_progress(proxy->transport))
            rest(proxy, false);
    }
    return missing;
}

/* What went wrong with a link: the rank with the larger number is the one that is dialled. */
static enum strait_status explain(const struct ep_proxy *proxy, const struct ep_proxy_peer *missing,
                                  const struct ep_proxy_info *infos, char *text, size_t text_size)
{
    const bool dialled = missing->rank > missing->view->rank;
    char at[ADDRESS_TEXT];

    address_write(dialled ? &infos[missing->rank].address : &proxy->address, at);
    const char *what = missing->link != NULL && tcp_is_reached(missing->link) ? "does not answer over a connection with"
                       : dialled                                              ? "cannot be connected to at"
                                                                              : "has not connected to";
    snprintf(text, text_size, "rank %" PRIu32 ", on another host, %s %s", missing->rank, what, at);
    return missing->link != NULL ? STRAIT_ERR_TIMEOUT : STRAIT_ERR_IO;
}

enum strait_status ep_proxy_start(struct ep_proxy *proxy, const struct ep_group_view *view,
                                  const struct ep_proxy_info *infos, char *text, size_t text_size)
{
    for (uint32_t i = 0; i < proxy->count; i++)
        proxy->peers[i].view = view;
    const struct ep_proxy_peer *missing = connect_all(proxy, infos);
    rank_listener_close(&proxy->listener);
    if (missing != NULL)
        return explain(proxy, missing, infos, text, text_size);
    proxy->started = thread_start(&proxy->thread, run, proxy) == 0;
    return proxy->started ? STRAIT_OK : STRAIT_ERR_NO_MEMORY;
}

void ep_proxy_destroy(struct ep_proxy *proxy, uint64_t timeout_ns)
{
    if (proxy == NULL)
        return;
    if (proxy->process !=
        getpid()) { /* the links are the parent's, and so is the set that descriptors are watched by */
        transport_after_fork(proxy->transport);
        free(proxy);
        return;
    }
    if (proxy->started) {
        proxy->deadline_ms = now_ms() + (int64_t)(timeout_ns / 1000000);
        __atomic_store_n(&proxy->leaving, 1, __ATOMIC_RELEASE);
        (void)pthread_join(proxy->thread, NULL);
    }
    for (uint32_t i = 0; i < proxy->count; i++)
        end_link(&proxy->peers[i]);
    while (proxy->links > 0)
        (void)transport_progress(proxy->transport);
    rank_listener_close(&proxy->listener);
    transport_destroy(proxy->transport);
    free(proxy);
}
