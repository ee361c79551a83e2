#include "tests/node/rogue.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/peers/peer.h"
#include "proto/channel.h"

/* ---- What the node does ------------------------------------------------------------------------------------------ */

static void on_up(void *owner, struct peer *peer)
{
    struct rogue *rogue = owner;
    rogue->peer = peer;
}

#define KEEP(list, count, item)                \
    do {                                       \
        ck_assert_uint_lt(count, COUNT(list)); \
        (list)[(count)++] = (item);            \
    } while (0)

static void keep_arena(struct rogue_heard *heard, const struct message_arena *arena)
{
    ck_assert_uint_eq(sizeof(heard->handle), arena->ipc.size);
    memcpy(&heard->handle, arena->ipc.data, sizeof(heard->handle));
    heard->arena = *arena;
    heard->arena_count++;
}

static bool on_message(void *owner, struct peer *peer, const struct message *message)
{
    struct rogue_heard *heard = &((struct rogue *)owner)->heard;
    (void)peer;
    switch (message->type) {
    case MESSAGE_ARENA:
        keep_arena(heard, &message->arena);
        break;
    case MESSAGE_REACH:
        heard->reach = message->reach;
        heard->reach_count++;
        break;
    case MESSAGE_REQUEST:
        heard->request = message->request; /* what it points to is gone */
        for (uint32_t i = 0; i < heard->request.slot_count; i++)
            heard->slots[i] = message->request.slots[i];
        heard->request_count++;
        break;
    case MESSAGE_SEGMENTS:
        for (uint32_t i = 0; i < message->segments.segment_count; i++)
            heard->units += message->segments.segments[i].region_count * message->segments.segments[i].count;
        for (uint32_t i = 0; i < message->segments.granted_count; i++)
            heard->granted[i] = message->segments.granted[i];
        heard->granted_count = message->segments.granted_count;
        heard->last |= message->segments.last;
        heard->reshaped = message->segments.reshaped;
        heard->segments_count++;
        break;
    case MESSAGE_GRANT:
        KEEP(heard->grants, heard->grant_count, message->grant);
        break;
    case MESSAGE_RELEASED:
        KEEP(heard->released, heard->released_count, message->grant_id.grant);
        break;
    case MESSAGE_PEER_NOTED:
        snprintf(heard->noted, sizeof(heard->noted), "%.*s", (int)message->noted.text.size,
                 (const char *)message->noted.text.data);
        heard->noted_count++;
        break;
    case MESSAGE_CODEBOOK_ASK:
        heard->ask = message->codebook_ask;
        heard->ask_count++;
        break;
    case MESSAGE_CODEBOOK_PART:
        heard->part = message->codebook_part;
        heard->part_count++;
        break;
    case MESSAGE_CODEBOOK_KNOWN:
        memcpy(heard->known, message->codebook_known.id.data, sizeof(heard->known));
        heard->known_count++;
        break;
    case MESSAGE_POOL_ASK:
        heard->asked_count++;
        break;
    case MESSAGE_POOL_DESCRIPTION:
        heard->described_count++;
        break;
    case MESSAGE_END:
        heard->end = message->end;
        heard->end_count++;
        break;
    default:
        break;
    }
    return true;
}

static void on_down(void *owner, struct peer *peer)
{
    struct rogue *rogue = owner;
    snprintf(rogue->why, sizeof(rogue->why), "%s", peer->why);
    rogue->peer = NULL;
    rogue->went_down = true;
    peer_quit_link(peer);
}

static void on_quiet(void *owner, struct peer *peer)
{
    (void)owner, (void)peer;
}

static struct landing on_arriving(void *owner, struct peer *peer, int32_t device, const void *header,
                                  size_t header_size, size_t size)
{
    struct rogue *rogue = owner;
    ck_assert_int_eq(-1, device);
    struct rogue_heard *heard = &rogue->heard;
    ck_assert_uint_lt(heard->chunk_count, ROGUE_LIST_MAX);
    ck_assert(chunk_header_read(&heard->chunks[heard->chunk_count], header, header_size));
    ck_assert_uint_eq(peer->token, heard->chunks[heard->chunk_count].token);
    heard->chunk_sizes[heard->chunk_count++] = size;
    return (struct landing){.address = rogue->arena.base};
}

static void on_arrived(void *owner, struct peer *peer, uint64_t cookie, enum strait_status status)
{
    (void)owner, (void)peer, (void)cookie, (void)status;
}

static void on_sent(void *owner, struct peer *peer, uint64_t cookie, enum strait_status status)
{
    struct rogue *rogue = owner;
    (void)peer, (void)cookie, (void)status;
    rogue->heard.sent_count++;
}

static void on_codebook(void *owner, struct peer *peer)
{
    (void)owner, (void)peer;
}

static bool knows_codebook(void *owner, const uint8_t id[CODEBOOK_ID_BYTES])
{
    (void)owner, (void)id;
    return false;
}

static void on_gpu_link(void *owner, struct peer *peer, struct gpu_ends ends)
{
    (void)owner, (void)peer, (void)ends;
}

static void on_closed(void *owner)
{
    struct rogue *rogue = owner;
    rogue->closed = true;
}

static const struct peers_events events = {.up = on_up,
                                           .message = on_message,
                                           .codebook = on_codebook,
                                           .knows_codebook = knows_codebook,
                                           .down = on_down,
                                           .quiet = on_quiet,
                                           .arriving = on_arriving,
                                           .arrived = on_arrived,
                                           .sent = on_sent,
                                           .gpu_link = on_gpu_link,
                                           .closed = on_closed};

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static bool slots_untouched(const uint8_t *base, size_t slot_bytes, size_t size, uint32_t but)
{
    for (uint32_t i = 0; i * slot_bytes < size; i++) {
        size_t left = size - i * slot_bytes;
        if ((i >= 32 || (but >> i & 1) == 0) &&
            !is_filled(base + i * slot_bytes, left < slot_bytes ? left : slot_bytes, CANARY))
            return false;
    }
    return true;
}

bool rogue_untouched(const struct rogue *rogue, uint32_t near_slots, uint32_t far_slots)
{
    return slots_untouched(rogue->arena.base, ROGUE_SLOT_BYTES, rogue->arena.size, near_slots) &&
           slots_untouched(rogue->far, rogue->far_slot_bytes, rogue->far_size, far_slots);
}

/* ---- Its unix socket: nodes that dial it say SHM_HELLO there ----------------------------------------------------- */

static void shm_accept(struct rogue *rogue)
{
    struct channel *channel;
    struct message message = {0};
    uint32_t fd_count;
    int fds[CHANNEL_FDS_MAX], fd = accept4(rogue->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return;
    ck_assert_int_eq(STRAIT_OK, channel_create(fd, 4096, 4096, &channel));
    do {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        poll(&ready, 1, 1000);
        channel_read(channel);
    } while (channel_next(channel, &message, fds, &fd_count) == STRAIT_ERR_AGAIN);
    ck_assert_int_eq(MESSAGE_SHM_HELLO, message.type);
    peers_accept_shm(rogue->peers, channel, &message.shm_hello);
    message_fini(&message);
}

/* ---- Life -------------------------------------------------------------------------------------------------------- */

static void on_pulse(uv_timer_t *timer)
{
    (void)timer;
}

void rogue_init(struct rogue *rogue, uint32_t far_slot_bytes)
{
    static uint32_t made;
    struct test_node like;
    char name[16];
    memset(rogue, 0, sizeof(*rogue));
    snprintf(name, sizeof(name), "rogue%u", made++);
    test_node_init(&like, name, "shm");
    rogue->options = like.options;
    rogue->slot_bytes = ROGUE_SLOT_BYTES;
    rogue->slot_count = ROGUE_SLOTS;
    rogue->arena = (struct transport_arena){.size = ROGUE_SLOTS * ROGUE_SLOT_BYTES, .memory = TRANSPORT_HOST};
    rogue->arena.fd = sealed_memory(rogue->arena.size, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, &rogue->arena.base);
    memset(rogue->arena.base, CANARY, rogue->arena.size);
    rogue->far_slot_bytes = far_slot_bytes;
    rogue->far_size = 2 * (size_t)ROGUE_FAR_SLOTS * far_slot_bytes;
    rogue->far_fd = sealed_memory(rogue->far_size, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, (void **)&rogue->far);
    memset(rogue->far, CANARY, rogue->far_size);
    ck_assert_int_eq(0, uv_loop_init(&rogue->loop));
    uv_timer_init(&rogue->loop, &rogue->pulse);
    uv_timer_start(&rogue->pulse, on_pulse, 1, 1);
    rogue->listener = unix_listen(rogue->options.socket);
}

static void rogue_open(struct rogue *rogue)
{
    char why[256] = "";
    rogue->closed = false;
    const struct peers_config config = {.loop = &rogue->loop,
                                        .options = &rogue->options,
                                        .metrics = &rogue->metrics,
                                        .arena = &rogue->arena,
                                        .slot_bytes = rogue->slot_bytes,
                                        .slot_count = rogue->slot_count,
                                        .send_base = rogue->arena.base,
                                        .send_size = rogue->arena.size,
                                        .incarnation = 666,
                                        .node = 667,
                                        .codebook_id = rogue->codebook,
                                        .codebooks = rogue->codebooks,
                                        .block_modes = rogue->block_modes,
                                        .reshapes = rogue->reshapes,
                                        .events = &events,
                                        .owner = rogue};
    ck_assert_msg(peers_open(&config, &rogue->peers, why, sizeof(why)) == STRAIT_OK, "%s", why);
}

void rogue_dial(struct rogue *rogue, const struct test_node *node)
{
    if (rogue->peers == NULL)
        rogue_open(rogue);
    (void)peers_get(rogue->peers, peers_address(node->node->peers), 0); /* constant */
}

void rogue_meet(struct rogue *rogue, const struct test_node *node)
{
    rogue->went_down = false;
    ROGUE_WAIT(rogue, (rogue_dial(rogue, node), rogue->peer != NULL));
}

void rogue_leave(struct rogue *rogue)
{
    if (rogue->peers == NULL)
        return;
    peers_close(rogue->peers);
    ROGUE_WAIT(rogue, rogue->closed);
    rogue->peers = NULL;
    rogue->peer = NULL;
}

void rogue_fini(struct rogue *rogue)
{
    rogue_leave(rogue);
    close(rogue->listener);
    uv_close((uv_handle_t *)&rogue->pulse, NULL);
    uv_run(&rogue->loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(0, uv_loop_close(&rogue->loop));
    munmap(rogue->arena.base, rogue->arena.size);
    munmap(rogue->far, rogue->far_size);
    close(rogue->arena.fd);
    close(rogue->far_fd);
}

void rogue_turn(struct rogue *rogue)
{
    if (rogue->peers != NULL)
        shm_accept(rogue);
    uv_run(&rogue->loop, UV_RUN_NOWAIT);
}

/* ---- What it says ------------------------------------------------------------------------------------------------ */

void rogue_say(struct rogue *rogue, const struct message *message)
{
    if (rogue->peer != NULL) /* else the node has had enough */
        ck_assert_int_eq(STRAIT_OK, peer_send(rogue->peer, message));
}

void rogue_send(struct rogue *rogue, const struct chunk_header *header, size_t size)
{
    uint8_t bytes[CHUNK_HEADER_BYTES];
    chunk_header_write(bytes, header);
    if (rogue->peer != NULL)
        ck_assert_int_eq(STRAIT_OK, peer_send_chunk(rogue->peer, bytes, sizeof(bytes), NULL, size, 0));
}

struct fake_handle rogue_handle(const struct rogue *rogue)
{
    return (struct fake_handle){.pid = getpid(), .fd = rogue->far_fd, .device = 1};
}

struct message rogue_arena(const struct rogue *rogue, const struct fake_handle *handle, uint32_t device,
                           uint32_t first_slot)
{
    return (struct message){.type = MESSAGE_ARENA,
                            .arena = {.device = device,
                                      .first_slot = first_slot,
                                      .slot_bytes = rogue->far_slot_bytes,
                                      .slot_count = ROGUE_FAR_SLOTS,
                                      .ipc = view_of(handle, sizeof(*handle))}};
}

struct pool_blob blob_of(struct test_pool *pool)
{
    size_t size = 0;
    struct pool_blob blob;
    ck_assert_int_eq(STRAIT_ERR_NO_SPACE, strait_pool_export(pool->pool, NULL, 0, &size));
    uint8_t *bytes = malloc(size);
    ck_assert_int_eq(STRAIT_OK, strait_pool_export(pool->pool, bytes, size, &size));
    ck_assert_int_eq(STRAIT_OK, blob_unpack(bytes, size, &blob));
    free(bytes);
    return blob;
}

struct message rogue_request(const struct pool_blob *pool, const char *key, uint64_t leg, const struct wire_span *span)
{
    return (struct message){.type = MESSAGE_REQUEST,
                            .request = {.leg = leg,
                                        .epoch = {.incarnation = 666, .counter = leg},
                                        .source_pool = pool->pool,
                                        .sink_pool = {{13}},
                                        .source_key = view_of(key, strlen(key)),
                                        .sink_key = view_of(key, strlen(key)),
                                        .geometry = blob_geometry(pool->regions, pool->region_count, view_of(NULL, 0)),
                                        .deadline_ms = 10000,
                                        .span_count = 1,
                                        .spans = span}};
}
