#include <stdlib.h>
#include <string.h>

#include "daemon/base/fault.h"
#include "daemon/peers/peer_internal.h"

/* Links between GPUs, in addition to a connection's own link: by NCCL or by UCX, at most one of each for every pair of
 * GPUs, ours and the peer's, that have chunks for each other. GPU_LINK carries the addresses of their ends. The
 * dialling side begins a link; the accepting side asks it to. A link that ends is made again after a while, as long as
 * somebody here wants it: meanwhile chunks go another way, and the connection is not affected. */

#define LINK_MS        60000u /* for a peer that does not answer: NCCL's own time limits are shorter */
#define BACKOFF_MS     500u
#define BACKOFF_MAX_MS 60000u

static const char *const by_names[] = {[LINK_BY_NCCL] = "nccl", [LINK_BY_UCX] = "ucx"};

/* ---- Records ----------------------------------------------------------------------------------------------------- */

static struct gpu_link *find(const struct connection *c, struct gpu_ends ends)
{
    struct gpu_link *g;
    LIST_FOREACH(g, &c->gpu_links, entry)
    {
        if (gpu_ends_equal(g->ends, ends))
            return g;
    }
    return NULL;
}

static struct gpu_link *find_or_create(struct connection *c, struct gpu_ends ends)
{
    struct gpu_link *g = find(c, ends);
    if (g != NULL || (g = calloc(1, sizeof(*g))) == NULL)
        return g;
    *g = (struct gpu_link){.ends = ends, .backoff = BACKOFF_MS};
    LIST_INSERT_HEAD(&c->gpu_links, g, entry);
    return g;
}

void gpu_links_free(struct connection *c)
{
    struct gpu_link *g;
    while ((g = LIST_FIRST(&c->gpu_links)) != NULL) {
        LIST_REMOVE(g, entry);
        free(g);
    }
}

static void log_link(const struct connection *c, const struct gpu_link *g, const char *why)
{
    char name[2 * MESSAGE_ADDRESS_MAX], text[2 * sizeof(g->why)];
    struct peers *peers = peers_of(c);
    log_quote(name, sizeof(name), c->peer.address, strlen(c->peer.address));
    log_quote(text, sizeof(text), why != NULL ? why : "", why != NULL ? strlen(why) : 0);
    if (why == NULL)
        log_limited(peers->config.log, LOG_OF_PEERS, LOG_INFO,
                    "msg=\"GPUs linked\" peer=%s device=%u peer_device=%u transport=%s", name, g->ends.device,
                    g->ends.peer_device, by_names[g->ends.by]);
    else
        log_limited(peers->config.log, LOG_OF_PEERS, LOG_WARN,
                    "msg=\"GPUs not linked\" peer=%s device=%u peer_device=%u transport=%s why=%s", name,
                    g->ends.device, g->ends.peer_device, by_names[g->ends.by], text);
}

static void send_gpu_link(struct connection *c, struct gpu_ends ends, struct view address, const char *why)
{
    struct message message = {.type = MESSAGE_GPU_LINK,
                              .gpu_link = {.by = ends.by,
                                           .device = ends.device,
                                           .peer_device = ends.peer_device,
                                           .address = address,
                                           .why = view_of(why, why != NULL ? strlen(why) : 0)}};
    (void)peer_send(&c->peer, &message); /* if the peer is down, `down` follows */
}

static void notify_owner(struct connection *c, const struct gpu_link *g)
{
    struct peers *peers = peers_of(c);
    peers_turn_again(peers);
    peers->config.events->gpu_link(peers->config.owner, &c->peer, g->ends);
}

/* ---- Making a link ----------------------------------------------------------------------------------------------- */

/* Ends the link or its making. A repeated failure for the same reason is not logged again. */
static void fail(struct connection *c, struct gpu_link *g, const char *why)
{
    bool was_up = g->state == GPU_LINK_UP, known = strcmp(g->why, why) == 0;
    if (!known || was_up)
        log_link(c, g, why);
    snprintf(g->why, sizeof(g->why), "%s", why[0] != 0 ? why : "it broke");
    g->next_try = peers_now(peers_of(c)) + g->backoff;
    g->backoff = 2 * g->backoff < BACKOFF_MAX_MS ? 2 * g->backoff : BACKOFF_MAX_MS;
    g->state = g->link != NULL ? GPU_LINK_ENDING : GPU_LINK_NONE;
    if (g->link != NULL)
        link_end(g->link);
    notify_owner(c, g);
}

/* The same, and tells the other side, which would wait otherwise. */
static void give_up(struct connection *c, struct gpu_link *g, const char *why)
{
    send_gpu_link(c, g->ends, view_of(NULL, 0), why);
    fail(c, g, why);
}

static const char *open_link(struct connection *c, struct gpu_link *g)
{
    struct peer_transport *transport = gpu_transport_find(peers_of(c), g->ends.by, g->ends.device);
    enum strait_status status = transport != NULL ? link_make(c, transport, -1, &g->link)
                                                  : STRAIT_ERR_UNSUPPORTED; /* existed before the request */
    if (status == STRAIT_OK)
        g->link->gpu = g;
    return status == STRAIT_OK          ? NULL
           : status == STRAIT_ERR_AGAIN ? "the GPU has no room for another link"
                                        : strait_status_string(status);
}

/* Sends the address of our end. NULL, or why it failed. */
static const char *send_end(struct connection *c, struct gpu_link *g)
{
    uint8_t address[LINK_ADDRESS_MAX];
    size_t size = link_address(g->link->link, address, sizeof(address));
    if (size == 0 || size > sizeof(address))
        return "the link has no address";
    send_gpu_link(c, g->ends, view_of(address, size), NULL);
    return NULL;
}

static void begin(struct connection *c, struct gpu_link *g)
{
    g->state = GPU_LINK_MAKING;
    g->deadline = peers_now(peers_of(c)) + LINK_MS;
    if (!c->peer.dialled) {
        send_gpu_link(c, g->ends, view_of(NULL, 0), NULL);
        return;
    }
    const char *why = open_link(c, g);
    if (why == NULL)
        why = send_end(c, g);
    if (why != NULL)
        give_up(c, g, why);
}

/* The accepting side: the dialling side has begun a link. */
static void accept_link(struct connection *c, struct gpu_link *g, struct view address)
{
    if (g->link != NULL) { /* the other side saw the previous link end first */
        send_gpu_link(c, g->ends, view_of(NULL, 0), "the link before it has not ended yet");
        return;
    }
    g->state = GPU_LINK_MAKING;
    g->deadline = peers_now(peers_of(c)) + LINK_MS;
    const char *why = open_link(c, g);
    if (why == NULL && link_connect(g->link->link, address.data, address.size) != STRAIT_OK)
        why = "the address of its other end is of no use";
    if (why == NULL)
        why = send_end(c, g);
    if (why != NULL)
        give_up(c, g, why);
}

static void receive_address(struct connection *c, struct gpu_link *g, struct view address)
{
    if (g->state != GPU_LINK_MAKING || g->link == NULL || g->answered)
        return; /* of a link that was given up */
    g->answered = true;
    if (link_connect(g->link->link, address.data, address.size) != STRAIT_OK)
        give_up(c, g, "the address of its other end is of no use");
}

static void receive_refusal(struct connection *c, struct gpu_link *g, struct view why)
{
    char text[sizeof(g->why)];
    snprintf(text, sizeof(text), "the peer says: %.*s", (int)(why.size < 256 ? why.size : 256), (const char *)why.data);
    if (g->state == GPU_LINK_MAKING)
        fail(c, g, text);
}

/* The dialling side is asked for a link. */
static void receive_request(struct connection *c, struct gpu_link *g)
{
    if (g->state == GPU_LINK_NONE && peers_now(peers_of(c)) >= g->next_try)
        begin(c, g);
    else if (g->state == GPU_LINK_NONE || g->state == GPU_LINK_ENDING)
        send_gpu_link(c, g->ends, view_of(NULL, 0), g->why);
}

void gpu_link_receive(struct connection *c, const struct message_gpu_link *m)
{
    const struct gpu_ends ends = {.by = m->by, .device = m->peer_device, .peer_device = m->device};
    struct gpu_link *g = NULL;
    if (m->why.size == 0 && m->address.size == 0 && !c->peer.dialled) {
        connection_protocol_error(c, "a wish for a link, of the side that makes them");
        return;
    }
    if (gpu_transport_find(peers_of(c), ends.by, ends.device) != NULL)
        g = find_or_create(c, ends);
    if (g == NULL && m->why.size == 0)
        send_gpu_link(c, ends, view_of(NULL, 0),
                      ends.by == LINK_BY_NCCL ? "no NCCL for this GPU" : "no such link to this GPU");
    if (g == NULL)
        return;
    if (m->why.size > 0)
        receive_refusal(c, g, m->why);
    else if (m->address.size == 0)
        receive_request(c, g);
    else if (c->peer.dialled)
        receive_address(c, g, m->address);
    else
        accept_link(c, g, m->address);
}

void gpu_links_tick(struct connection *c)
{
    uint64_t now = peers_now(peers_of(c));
    struct gpu_link *g;
    LIST_FOREACH(g, &c->gpu_links, entry)
    {
        if (g->state == GPU_LINK_MAKING && now >= g->deadline)
            give_up(c, g, "not there in time");
        else if (g->state == GPU_LINK_NONE && g->wanted && now >= g->next_try)
            begin(c, g);
    }
}

/* ---- Transport events -------------------------------------------------------------------------------------------- */

void gpu_link_connected(struct connection *c, struct gpu_link *g)
{
    if (g->state != GPU_LINK_MAKING)
        return;
    g->state = GPU_LINK_UP;
    g->backoff = BACKOFF_MS;
    g->why[0] = 0;
    log_link(c, g, NULL);
    notify_owner(c, g);
}

void gpu_link_broken(struct connection *c, struct gpu_link *g, const char *why)
{
    if (c->peer.state == PEER_UP && (g->state == GPU_LINK_MAKING || g->state == GPU_LINK_UP))
        fail(c, g, why);
}

void gpu_link_closed(struct gpu_link *g)
{
    g->link = NULL;
    g->answered = false;
    g->state = GPU_LINK_NONE;
}

/* ---- Calls of the user ------------------------------------------------------------------------------------------- */

void peer_want_gpu_link(struct peer *peer, struct gpu_ends ends)
{
    struct connection *c = connection_of(peer);
    if (peer->state != PEER_UP || gpu_transport_find(peers_of(c), ends.by, ends.device) == NULL)
        return;
    struct gpu_link *g = find_or_create(c, ends);
    if (g != NULL)
        g->wanted = true; /* the next tick begins it */
}

bool peer_has_gpu_link(const struct peer *peer, struct gpu_ends ends)
{
    const struct connection *c = (const struct connection *)peer;
    const struct gpu_link *g = find(c, ends);
    return peer->state == PEER_UP && !c->failing && g != NULL && g->state == GPU_LINK_UP;
}

const char *peer_gpu_link_why(const struct peer *peer, struct gpu_ends ends)
{
    const struct gpu_link *g = find((const struct connection *)peer, ends);
    return g == NULL ? "not asked for" : g->why[0] != 0 ? g->why : g->state == GPU_LINK_UP ? "up" : "being made";
}

enum strait_status peer_send_gpu_chunk(struct peer *peer, struct gpu_ends ends, const void *header, size_t header_size,
                                       const void *data, size_t size, uint64_t cookie)
{
    struct gpu_link *g = find(connection_of(peer), ends);
    if (!peer_has_gpu_link(peer, ends))
        return STRAIT_ERR_AGAIN;
    const struct fault_chunk chunk = {g->link->link, header, header_size, data, size, NULL};
    (void)fault_at(FAULT_CHUNK, peer, &chunk);
    enum strait_status status = link_send(chunk.link, header, header_size, data, size, NULL, cookie);
    (void)fault_at(FAULT_CHUNK_SENT, peer, &chunk);
    return status;
}
