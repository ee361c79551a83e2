#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/fault.h"
#include "daemon/peers/peer_internal.h"

/* The link of a connection by shared memory, which is offered on one host only: the dialler connects to the other
 * daemon's unix socket and sends the token of that daemon's PEER_LINKS there. */

/* ---- The dialling side ------------------------------------------------------------------------------------------- */

/* Sends the hello on a connected socket. NULL, or why it failed. */
static const char *shm_greet(struct connection *c, struct kind *kind, int fd)
{
    const struct peers *peers = peers_of(c);
    struct channel *channel;
    struct message message = {
        .type = MESSAGE_SHM_HELLO,
        .shm_hello = {.token = c->peer.peer_token,
                      .node = peers->config.node,
                      .slot_bytes = peers->config.slot_bytes,
                      .slot_count = peers->config.slot_count},
    };
    if (channel_create(fd, PEER_HELLO_BODY_MAX, PEER_HELLO_BODY_MAX, &channel) != STRAIT_OK) {
        close(fd);
        return "out of memory";
    }
    if (channel_send(channel, &message, NULL, 0) != STRAIT_OK || channel_flush(channel) != STRAIT_OK) {
        channel_destroy(channel);
        return "its socket takes no hello";
    }
    fd = channel_release(channel);
    if (fd < 0 || link_begin(c, kind, fd) != STRAIT_OK)
        return "no link can be opened";
    return link_connect(c->current->link, NULL, 0) == STRAIT_OK ? NULL : "the link cannot be begun";
}

/* Connects to the peer's unix socket. Returns it, or -1 and errno. */
static int shm_dial(const struct connection *c)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, c->shm_path, sizeof(address.sun_path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

const char *shm_try(struct connection *c, struct kind *kind)
{
    if (!c->same_host || c->shm_path[0] == 0)
        return "on another host";
    int fd = shm_dial(c);
    c->shm_is_full = fd < 0 && errno == EAGAIN;
    if (c->shm_is_full)
        return NULL;
    return fd >= 0 ? shm_greet(c, kind, fd) : strerror(errno);
}

/* ---- The accepting side ------------------------------------------------------------------------------------------ */

static struct connection *find_token(struct peers *peers, uint64_t token)
{
    struct connection *c;
    TAILQ_FOREACH(c, &peers->connections, entry)
    {
        if (c->peer.token == token && !c->peer.dialled && c->peer.state == PEER_LINKING && !c->doomed)
            return c;
    }
    return NULL;
}

static const char *accept_shm(struct peers *peers, struct channel *channel, const struct message_shm_hello *hello)
{
    struct connection *c = find_token(peers, hello->token);
    struct kind *kind = kind_find(peers, "shm", 3);
    int fd = channel_release(channel);
    if (fd < 0)
        return "bytes followed the hello";
    if (c == NULL || kind == NULL || c->current != NULL || hello->node != c->peer.node) {
        close(fd);
        return "unknown token";
    }
    if (link_begin(c, kind, fd) != STRAIT_OK)
        return "no link can be opened";
    if (link_connect(c->current->link, NULL, 0) == STRAIT_OK)
        return NULL;
    current_end(c);
    return "the link cannot be begun";
}

void peers_accept_shm(struct peers *peers, struct channel *channel, const struct message_shm_hello *hello)
{
    const char *why = accept_shm(peers, channel, hello);
    if (why != NULL)
        peers_log_limited(peers, "msg=\"shm link refused\" error=\"%s\"", why);
}

/* Links between GPUs, in addition to a connection's own link: by NCCL or by UCX, at most one of each for every pair of
 * GPUs, ours and the peer's, that have chunks for each other. GPU_LINK carries the addresses of their ends. The
 * dialling side begins a link; the accepting side asks it to. A link that ends is made again after a while, as long as
 * somebody here wants it: meanwhile chunks go another way, and the connection is not affected. */

#define LINK_MS        60000u /* for a peer that does not answer: NCCL's own time limits are shorter */
#define BACKOFF_MS     500u
#define BACKOFF_MAX_MS 60000u

static const char *const by_names[] = {[LINK_BY_NCCL] = "nccl", [LINK_BY_UCX] = "ucx"};

/* ---- Transports -------------------------------------------------------------------------------------------------- */

static struct kind *kind_of(const struct peers *peers, enum message_link_by by, uint32_t device)
{
    struct kind *kind;
    LIST_FOREACH(kind, &peers->gpu_kinds, entry)
    {
        if (kind->by == by && kind->device == (int32_t)device)
            return kind;
    }
    return NULL;
}

enum strait_status peers_open_gpu(struct peers *peers, enum message_link_by by, uint32_t device,
                                  const struct transport_ops *ops, const struct transport_arena *arena,
                                  const char *options, char *why, size_t why_size)
{
    struct kind *kind = peers->closing || kind_of(peers, by, device) != NULL ? NULL : calloc(1, sizeof(*kind));
    snprintf(why, why_size, "%s", kind != NULL ? "" : strait_status_string(STRAIT_ERR_INVALID));
    if (kind == NULL)
        return STRAIT_ERR_INVALID;
    *kind = (struct kind){.peers = peers, .ops = ops, .device = (int32_t)device, .by = by};
    enum strait_status status = kind_open(peers, kind, arena, options);
    if (status == STRAIT_OK) {
        LIST_INSERT_HEAD(&peers->gpu_kinds, kind, entry);
        peers->ports++;
        return status;
    }
    if (status == STRAIT_ERR_UNSUPPORTED)
        transport_missing(ops, why, why_size);
    if (why[0] == 0)
        snprintf(why, why_size, "%s", strait_status_string(status));
    free(kind);
    return status;
}

bool peers_has_gpu(const struct peers *peers, enum message_link_by by, uint32_t device)
{
    return kind_of(peers, by, device) != NULL;
}

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

static struct gpu_link *find_or_make(struct connection *c, struct gpu_ends ends)
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
        log_write(peers->config.log, LOG_INFO, "msg=\"GPUs linked\" peer=%s device=%u peer_device=%u transport=%s",
                  name, g->ends.device, g->ends.peer_device, by_names[g->ends.by]);
    else
        peers_log_limited(peers, "msg=\"GPUs not linked\" peer=%s device=%u peer_device=%u transport=%s why=%s", name,
                          g->ends.device, g->ends.peer_device, by_names[g->ends.by], text);
}

static void tell(struct connection *c, struct gpu_ends ends, struct view address, const char *why)
{
    struct message message = {.type = MESSAGE_GPU_LINK,
                              .gpu_link = {.by = ends.by,
                                           .device = ends.device,
                                           .peer_device = ends.peer_device,
                                           .address = address,
                                           .why = view_of(why, why != NULL ? strlen(why) : 0)}};
    (void)peer_send(&c->peer, &message); /* if the peer is down, `down` follows */
}

static void tell_owner(struct connection *c, const struct gpu_link *g)
{
    struct peers *peers = peers_of(c);
    peers_told(peers);
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
    tell_owner(c, g);
}

/* The same, and tells the other side, which would wait otherwise. */
static void give_up(struct connection *c, struct gpu_link *g, const char *why)
{
    tell(c, g->ends, view_of(NULL, 0), why);
    fail(c, g, why);
}

static const char *open_link(struct connection *c, struct gpu_link *g)
{
    struct kind *kind = kind_of(peers_of(c), g->ends.by, g->ends.device);
    enum strait_status status =
        kind != NULL ? link_make(c, kind, -1, &g->link) : STRAIT_ERR_UNSUPPORTED; /* existed before the request */
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
    tell(c, g->ends, view_of(address, size), NULL);
    return NULL;
}

static void begin(struct connection *c, struct gpu_link *g)
{
    g->state = GPU_LINK_MAKING;
    g->deadline = peers_now(peers_of(c)) + LINK_MS;
    if (!c->peer.dialled) {
        tell(c, g->ends, view_of(NULL, 0), NULL);
        return;
    }
    const char *why = open_link(c, g);
    if (why == NULL)
        why = send_end(c, g);
    if (why != NULL)
        give_up(c, g, why);
}

/* The accepting side: the dialling side has begun a link. */
static void join(struct connection *c, struct gpu_link *g, struct view address)
{
    if (g->link != NULL) { /* the other side saw the previous link end first */
        tell(c, g->ends, view_of(NULL, 0), "the link before it has not ended yet");
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

static void take_end(struct connection *c, struct gpu_link *g, struct view address)
{
    if (g->state != GPU_LINK_MAKING || g->link == NULL || g->answered)
        return; /* of a link that was given up */
    g->answered = true;
    if (link_connect(g->link->link, address.data, address.size) != STRAIT_OK)
        give_up(c, g, "the address of its other end is of no use");
}

static void take_refusal(struct connection *c, struct gpu_link *g, struct view why)
{
    char text[sizeof(g->why)];
    snprintf(text, sizeof(text), "the peer says: %.*s", (int)(why.size < 256 ? why.size : 256), (const char *)why.data);
    if (g->state == GPU_LINK_MAKING)
        fail(c, g, text);
}

/* The dialling side is asked for a link. */
static void take_wish(struct connection *c, struct gpu_link *g)
{
    if (g->state == GPU_LINK_NONE && peers_now(peers_of(c)) >= g->next_try)
        begin(c, g);
    else if (g->state == GPU_LINK_NONE || g->state == GPU_LINK_ENDING)
        tell(c, g->ends, view_of(NULL, 0), g->why);
}

void gpu_link_take(struct connection *c, const struct message_gpu_link *m)
{
    const struct gpu_ends ends = {.by = m->by, .device = m->peer_device, .peer_device = m->device};
    struct gpu_link *g = NULL;
    if (m->why.size == 0 && m->address.size == 0 && !c->peer.dialled) {
        connection_blame(c, "a wish for a link, of the side that makes them");
        return;
    }
    if (kind_of(peers_of(c), ends.by, ends.device) != NULL)
        g = find_or_make(c, ends);
    if (g == NULL && m->why.size == 0)
        tell(c, ends, view_of(NULL, 0), ends.by == LINK_BY_NCCL ? "no NCCL for this GPU" : "no such link to this GPU");
    if (g == NULL)
        return;
    if (m->why.size > 0)
        take_refusal(c, g, m->why);
    else if (m->address.size == 0)
        take_wish(c, g);
    else if (c->peer.dialled)
        take_end(c, g, m->address);
    else
        join(c, g, m->address);
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

/* ---- What the transport tells ------------------------------------------------------------------------------------ */

void gpu_link_connected(struct connection *c, struct gpu_link *g)
{
    if (g->state != GPU_LINK_MAKING)
        return;
    g->state = GPU_LINK_UP;
    g->backoff = BACKOFF_MS;
    g->why[0] = 0;
    log_link(c, g, NULL);
    tell_owner(c, g);
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

/* ---- What the user calls ----------------------------------------------------------------------------------------- */

void peer_want_gpu_link(struct peer *peer, struct gpu_ends ends)
{
    struct connection *c = connection_of(peer);
    if (peer->state != PEER_UP || kind_of(peers_of(c), ends.by, ends.device) == NULL)
        return;
    struct gpu_link *g = find_or_make(c, ends);
    if (g != NULL)
        g->wanted = true; /* the next tick begins it */
}

bool peer_has_gpu_link(const struct peer *peer, struct gpu_ends ends)
{
    const struct connection *c = (const struct connection *)peer;
    const struct gpu_link *g = find(c, ends);
    return peer->state == PEER_UP && !c->doomed && g != NULL && g->state == GPU_LINK_UP;
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

/* Chooses the transport of a connection and makes its link. The dialling side decides: it tries, one after the other,
 * the kinds on its own list that the other side offers. shm has a way of its own (peer_shm.c); for the other kinds the
 * two sides exchange the addresses of their links. */

/* ---- Links ------------------------------------------------------------------------------------------------------- */

enum strait_status link_make(struct connection *c, struct kind *kind, int fd, struct peer_link **made)
{
    struct peer_link *link = calloc(1, sizeof(*link));
    enum strait_status status = STRAIT_ERR_NO_MEMORY;
    if (link == NULL) {
        if (fd >= 0)
            close(fd);
        return status;
    }
    link->connection = c;
    link->kind = kind;
    status = link_open(kind->transport, fd, c->peer.dialled ? LINK_DIALLED : LINK_ACCEPTED, link, &link->link);
    if (status != STRAIT_OK) {
        free(link);
        return status;
    }
    LIST_INSERT_HEAD(&c->links, link, entry);
    *made = link;
    return STRAIT_OK;
}

enum strait_status link_begin(struct connection *c, struct kind *kind, int fd)
{
    return link_make(c, kind, fd, &c->current);
}

void link_end(struct peer_link *link)
{
    if (link->closing)
        return;
    link->closing = true;
    link_close(link->link);
}

void current_end(struct connection *c)
{
    if (c->current != NULL)
        link_end(c->current);
    c->current = NULL;
    c->wants_answer = c->shm_is_full = false;
}

struct kind *kind_find(struct peers *peers, const char *name, size_t size)
{
    for (uint32_t i = 0; i < peers->kind_count; i++) {
        const char *own = peers->kinds[i].ops->name;
        if (strlen(own) == size && memcmp(own, name, size) == 0)
            return &peers->kinds[i];
    }
    return NULL;
}

static bool is_shm(const struct kind *kind)
{
    return strcmp(kind->ops->name, "shm") == 0;
}

/* Is `name` among the kinds, separated by commas, that the peer offers? */
static bool is_offered(const struct connection *c, const char *name)
{
    const char *at = c->offered;
    while (*at != 0) {
        size_t size = strcspn(at, ",");
        if (size == strlen(name) && memcmp(at, name, size) == 0)
            return true;
        at += size + (at[size] == ',');
    }
    return false;
}

/* ---- What is told ------------------------------------------------------------------------------------------------ */

static void send_links(struct connection *c, const char *transport, const void *address, size_t address_size)
{
    const struct peers *peers = peers_of(c);
    const uint8_t *id = peers->config.codebook_id;
    struct message message = {
        .type = MESSAGE_PEER_LINKS,
        .peer_links =
            {
                .token = c->peer.token,
                .host = view_of(peers->host, strlen(peers->host)),
                .shm_path = view_of(peers->shm_path, strlen(peers->shm_path)),
                .transport = view_of(transport, strlen(transport)),
                .ucx_address = view_of(address, address_size),
                .codebook_id = view_of(id, id != NULL ? CODEBOOK_ID_BYTES : 0),
                .slot_bytes = peers->config.slot_bytes,
                .slot_count = peers->config.slot_count,
            },
    };
    connection_send(c, &message);
}

void links_send(struct connection *c)
{
    send_links(c, peers_of(c)->offered, NULL, 0);
}

/* False: the link has no address to send. */
static bool send_address(struct connection *c)
{
    uint8_t address[LINK_ADDRESS_MAX];
    size_t size = link_address(c->current->link, address, sizeof(address));
    if (size == 0 || size > sizeof(address))
        return false;
    send_links(c, c->current->kind->ops->name, address, size);
    return true;
}

/* ---- The dialling side ------------------------------------------------------------------------------------------- */

/* Records why a better kind is not used, or in the end why none is. */
static void note(struct connection *c, const char *name, const char *why)
{
    size_t used = strlen(c->peer.why);
    snprintf(c->peer.why + used, sizeof(c->peer.why) - used, "%s%s: %s", used > 0 ? "; " : "", name, why);
}

static const char *try_address(struct connection *c, struct kind *kind)
{
    if (link_begin(c, kind, -1) != STRAIT_OK)
        return "no link can be opened";
    c->wants_answer = send_address(c);
    return c->wants_answer ? NULL : "no address";
}

static const char *try_kind(struct connection *c, struct kind *kind)
{
    if (!is_offered(c, kind->ops->name))
        return "not offered by the peer";
    return is_shm(kind) ? shm_try(c, kind) : try_address(c, kind);
}

/* Tries the next kind for half of the time that is left, the last one for all of it. */
static void try_kinds(struct connection *c)
{
    struct peers *peers = peers_of(c);
    uint64_t now = peers_now(peers);
    for (; c->attempt < peers->kind_count; c->attempt++) {
        struct kind *kind = &peers->kinds[c->attempt];
        const char *why = try_kind(c, kind);
        c->attempt_deadline = c->attempt + 1 < peers->kind_count ? (now + c->deadline) / 2 : c->deadline;
        if (why == NULL)
            return;
        note(c, kind->ops->name, why);
        current_end(c);
    }
    char tried[sizeof(c->peer.why)];
    memcpy(tried, c->peer.why, sizeof(tried));
    connection_doom(c, "no transport%s%s", tried[0] != 0 ? ": " : "", tried);
}

static void attempt_failed(struct connection *c, const char *why)
{
    note(c, peers_of(c)->kinds[c->attempt].ops->name, why);
    current_end(c);
    c->attempt++;
    try_kinds(c);
}

static void take_answer(struct connection *c, const struct message_peer_links *links)
{
    struct kind *kind = kind_find(peers_of(c), (const char *)links->transport.data, links->transport.size);
    if (!c->wants_answer || c->current == NULL || kind != c->current->kind)
        return; /* belongs to an attempt that was given up */
    c->wants_answer = false;
    if (links->ucx_address.size == 0)
        attempt_failed(c, "refused by the peer");
    else if (link_connect(c->current->link, links->ucx_address.data, links->ucx_address.size) != STRAIT_OK)
        attempt_failed(c, "the peer's address is of no use");
}

/* ---- The accepting side ------------------------------------------------------------------------------------------ */

static bool answer_choice(struct connection *c, struct kind *kind, const struct message_peer_links *links)
{
    return kind != NULL && !is_shm(kind) && links->ucx_address.size > 0 && link_begin(c, kind, -1) == STRAIT_OK &&
           link_connect(c->current->link, links->ucx_address.data, links->ucx_address.size) == STRAIT_OK &&
           send_address(c);
}

/* A choice ends the previous attempt. The list of kinds bounds how many choices an honest peer makes. */
static void take_choice(struct connection *c, const struct message_peer_links *links)
{
    struct kind *kind = kind_find(peers_of(c), (const char *)links->transport.data, links->transport.size);
    current_end(c);
    if (c->attempt++ >= PEER_KINDS_MAX) {
        connection_blame(c, "it cannot decide on a transport");
        return;
    }
    if (answer_choice(c, kind, links))
        return;
    current_end(c);
    char name[MESSAGE_ADDRESS_MAX + 1];
    snprintf(name, sizeof(name), "%.*s", (int)links->transport.size, (const char *)links->transport.data);
    note(c, kind != NULL ? kind->ops->name : "transport", "refused here");
    send_links(c, name, NULL, 0);
}

/* ---- Both sides -------------------------------------------------------------------------------------------------- */

static void copy_text(char *dst, size_t capacity, struct view text)
{
    size_t size = text.size < capacity ? text.size : 0; /* a truncated text would be useless */
    if (size > 0)
        memcpy(dst, text.data, size);
    dst[size] = 0;
}

/* Can all slots that the peer claims be mapped here? Otherwise a grant of one could not be filled, and the arena could
 * not be pinned for GPUs. */
static bool has_its_slots(const struct connection *c)
{
    return !c->current->kind->ops->direct ||
           link_map(c->current->link, 0, (size_t)c->peer.slot_bytes * c->peer.slot_count) != NULL;
}

/* The unix socket may be faster than TCP: then the link is ready before the peer's PEER_LINKS has come. */
static void up_if_ready(struct connection *c)
{
    const struct peer_link *link = c->current;
    if (c->peer.state != PEER_LINKING || !c->has_links || c->doomed || link == NULL || !link->connected ||
        link->closing)
        return;
    if (has_its_slots(c))
        connection_up(c);
    else
        connection_blame(c, "an arena smaller than its slots");
}

static void take_first(struct connection *c, const struct message_peer_links *links)
{
    const struct peers *peers = peers_of(c);
    const uint8_t *id = peers->config.codebook_id;
    c->has_links = true;
    c->peer.why[0] = 0;
    c->peer.peer_token = links->token;
    c->peer.slot_bytes = links->slot_bytes;
    c->peer.slot_count = links->slot_count;
    c->peer.codebook_matches = id != NULL && links->codebook_id.size == CODEBOOK_ID_BYTES &&
                               memcmp(id, links->codebook_id.data, CODEBOOK_ID_BYTES) == 0;
    c->same_host = links->host.size > 0 && links->host.size == strlen(peers->host) &&
                   memcmp(links->host.data, peers->host, links->host.size) == 0;
    copy_text(c->shm_path, sizeof(c->shm_path), links->shm_path);
    copy_text(c->offered, sizeof(c->offered), links->transport);
    if (links->slot_bytes == 0 || links->slot_count == 0)
        connection_blame(c, "an empty arena");
    else if (c->peer.dialled)
        try_kinds(c);
    else
        up_if_ready(c);
}

void links_take(struct connection *c, const struct message_peer_links *links)
{
    if (!c->has_links)
        take_first(c, links);
    else if (c->peer.dialled)
        take_answer(c, links);
    else
        take_choice(c, links);
}

static void shm_again(struct connection *c)
{
    const char *why = shm_try(c, &peers_of(c)->kinds[c->attempt]);
    if (why != NULL)
        attempt_failed(c, why);
}

void links_tick(struct connection *c)
{
    if (!c->peer.dialled || (c->current == NULL && !c->shm_is_full))
        return;
    if (peers_now(peers_of(c)) >= c->attempt_deadline)
        attempt_failed(c, c->shm_is_full ? "its socket has no room" : "no link in time");
    else if (c->shm_is_full)
        shm_again(c);
}

/* ---- What the transports tell ------------------------------------------------------------------------------------ */

static void on_connected(void *owner, struct link *base)
{
    struct peer_link *link = base->owner;
    struct connection *c = link->connection;
    (void)owner;
    peers_told(peers_of(c));
    link->connected = true;
    if (link->gpu != NULL)
        gpu_link_connected(c, link->gpu);
    else
        up_if_ready(c);
}

static void on_broken(void *owner, struct link *base, const char *why)
{
    struct peer_link *link = base->owner;
    struct connection *c = link->connection;
    (void)owner;
    if (link->gpu != NULL && !link->closing && !c->doomed)
        gpu_link_broken(c, link->gpu, why);
    if (link != c->current || link->closing || c->doomed)
        return;
    if (c->peer.state == PEER_UP)
        connection_doom(c, "%s: %s", link->kind->ops->name, why);
    else if (c->peer.state == PEER_LINKING && c->peer.dialled)
        attempt_failed(c, why);
    else if (c->peer.state == PEER_LINKING)
        current_end(c); /* the dialling side decides what to try next */
}

static void on_closed(void *owner, struct link *base)
{
    struct peer_link *link = base->owner;
    struct connection *c = link->connection;
    (void)owner;
    peers_told(peers_of(c));
    LIST_REMOVE(link, entry);
    if (c->current == link)
        c->current = NULL;
    if (link->gpu != NULL)
        gpu_link_closed(link->gpu);
    free(link);
    connection_settle(c);
}

/* Is the link in use by the peer? Events of other links are ignored: nobody granted them anything. */
static bool is_of_peer(const struct peer_link *link)
{
    const struct connection *c = link->connection;
    return (link == c->current || link->gpu != NULL) && (c->peer.state == PEER_UP || c->was_up);
}

static struct landing on_arriving(void *owner, struct link *base, const void *header, size_t header_size, size_t size)
{
    struct kind *kind = owner;
    struct peer_link *link = base->owner;
    if (!is_of_peer(link))
        return (struct landing){.address = NULL};
    const struct peers_config *config = &kind->peers->config;
    peers_told(kind->peers);
    return config->events->arriving(config->owner, &link->connection->peer, kind->device, header, header_size, size);
}

static void on_arrived(void *owner, struct link *base, uint64_t cookie, enum strait_status status)
{
    struct peers *peers = ((struct kind *)owner)->peers;
    const struct peers_config *config = &peers->config;
    struct peer_link *link = base->owner;
    if (!is_of_peer(link))
        return;
    peers_told(peers);
    config->events->arrived(config->owner, &link->connection->peer, cookie, status);
}

static void on_sent(void *owner, struct link *base, uint64_t cookie, enum strait_status status)
{
    struct peers *peers = ((struct kind *)owner)->peers;
    const struct peers_config *config = &peers->config;
    struct peer_link *link = base->owner;
    if (!is_of_peer(link))
        return;
    peers_told(peers);
    config->events->sent(config->owner, &link->connection->peer, cookie, status);
}

const struct transport_events peer_transport_events = {
    .arriving = on_arriving,
    .arrived = on_arrived,
    .sent = on_sent,
    .connected = on_connected,
    .broken = on_broken,
    .closed = on_closed,
};
