#include "tests/node/rogue_source.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/peers/peer.h"

/* The node is to find a pool at the rogue's address. */
static struct strait_peer *import_rogue(struct scene *s)
{
    uint8_t bytes[4096];
    size_t size = 0;
    struct strait_peer *peer;
    s->blob = blob_of(s->sink);
    memset(&s->blob.pool, 66, sizeof(s->blob.pool));
    snprintf(s->blob.address, sizeof(s->blob.address), "%s", peers_address(s->rogue.peers));
    ck_assert_int_eq(STRAIT_OK, blob_pack(&s->blob, bytes, sizeof(bytes), &size));
    ck_assert_int_eq(STRAIT_OK, strait_peer_import(s->pair.sink->client, bytes, size, &peer));
    return peer;
}

static struct flow *expect(struct scene *s, const char *key)
{
    uint32_t before = s->rogue.heard.request_count;
    struct flow *e = flow_expect(s->sink, (struct strait_expect_params){KEY(key), LISTS({.count = s->expected})});
    ck_assert_int_eq(STRAIT_OK, strait_start(e->transfer, s->peer, NULL));
    ROGUE_WAIT(&s->rogue, s->rogue.heard.request_count > before);
    ck_assert_uint_ne(0, s->rogue.heard.request.grant);
    return e;
}

/* The first request makes the connection, over which the rogue can then say what it reaches. That the node has heard so
 * is known when it has heard what was said after it: that the rogue gives up. */
static void say_that_it_is_reached(struct scene *s)
{
    const struct message reach = {.type = MESSAGE_REACH, .reach = {.pool = s->blob.pool, .devices = 1u << 1}};
    struct flow *first = expect(s, "first");
    ROGUE_WAIT(&s->rogue, s->rogue.heard.arena_count != 0);
    const struct message end = {.type = MESSAGE_END,
                                .end = {.leg = s->rogue.heard.request.leg,
                                        .epoch = s->rogue.heard.request.epoch,
                                        .state = STRAIT_FAILED,
                                        .reason = STRAIT_REASON_ABORTED}};
    rogue_say(&s->rogue, &reach);
    rogue_say(&s->rogue, &end);
    ROGUE_WAIT(&s->rogue, first->decided);
    say_released(s, s->rogue.heard.request.grant);
}

static void map_arena(struct scene *s)
{
    const struct message_arena *told = &s->rogue.heard.arena;
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", s->rogue.heard.handle.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    s->arena_size = (size_t)told->slot_bytes * told->slot_count;
    s->arena = mmap(NULL, s->arena_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(MAP_FAILED, s->arena);
    close(fd);
}

uint8_t *slot_at(const struct scene *s, uint32_t slot)
{
    if (s->where == FAR)
        return s->arena + (size_t)(slot - s->rogue.heard.arena.first_slot) * s->slot_bytes;
    return link_map(s->rogue.peer->link, (size_t)slot * s->slot_bytes, s->slot_bytes);
}

size_t encode_chunk(struct scene *s, uint32_t slot, uint32_t first, uint32_t count)
{
    uint32_t ids[EXPECTED_MAX];
    struct strait_result result;
    const struct strait_region region = {.base = s->pages,
                                         .page_stride = s->page_bytes,
                                         .page_count = s->expected,
                                         .rows = 1,
                                         .row_bytes = (uint32_t)s->page_bytes};
    const struct strait_pages pages = {.regions = &region, .region_count = 1, .ids = ids, .id_count = count};
    const struct strait_encode_params params = {
        .size = sizeof(params), .element = STRAIT_ELEMENT_BF16, .mode = STRAIT_MODE_RAW};
    const struct strait_run run = {.size = sizeof(run), .result = &result};
    for (uint32_t i = 0; i < count; i++)
        ids[i] = first + i;
    ck_assert_int_eq(STRAIT_OK, strait_encode(NULL, &params, slot_at(s, slot), s->slot_bytes, &pages, &run));
    ck_assert_int_eq(STRAIT_OK, (int)result.status);
    return result.bytes;
}

struct chunk_header header_of(const struct scene *s, uint64_t grant, uint32_t slot)
{
    return (struct chunk_header){.slot = slot,
                                 .token = s->rogue.peer->peer_token,
                                 .leg = s->rogue.heard.request.leg,
                                 .grant = grant,
                                 .epoch = s->rogue.heard.request.epoch};
}

void say_segments(struct scene *s, uint64_t grant, const uint32_t *granted, uint32_t count)
{
    const struct segment segment = {.region_count = 1, .count = s->expected};
    const struct message message = {.type = MESSAGE_SEGMENTS,
                                    .segments = {.leg = s->rogue.heard.request.leg,
                                                 .epoch = s->rogue.heard.request.epoch,
                                                 .last = true,
                                                 .segment_count = 1,
                                                 .segments = &segment,
                                                 .grant = grant,
                                                 .granted_count = count,
                                                 .granted = granted}};
    rogue_say(&s->rogue, &message);
}

void say_released(struct scene *s, uint64_t grant)
{
    const struct message released = {
        .type = MESSAGE_RELEASED,
        .grant_id = {.leg = s->rogue.heard.request.leg, .epoch = s->rogue.heard.request.epoch, .grant = grant}};
    rogue_say(&s->rogue, &released);
}

void scene_begin(struct scene *s, enum where where, uint32_t pages, size_t page_bytes)
{
    struct rng rng = rng_init(5);
    struct geometry shape = {.pages = 2 * EXPECTED_MAX, .rows = 1, .row_bytes = (uint32_t)page_bytes, .gpu = 1};
    ck_assert_uint_le(pages, EXPECTED_MAX);
    memset(s, 0, sizeof(*s));
    s->where = where;
    s->expected = pages;
    s->page_bytes = page_bytes;
    s->pages = malloc(pages * page_bytes);
    rng_fill(&rng, s->pages, pages * page_bytes);
    pair_open(&s->pair, SHM);
    s->source = pool_open(s->pair.source, shape);
    shape.gpu = 2;
    s->sink = pool_open(s->pair.sink, shape);
    far_move(s->source, s->sink);
    rogue_init(&s->rogue, 4096);
    rogue_meet(&s->rogue, s->pair.b); /* opens; the node makes a connection of its own */
    s->peer = import_rogue(s);
    if (where == FAR)
        say_that_it_is_reached(s);
    s->expectation = expect(s, "k");
    ck_assert((s->rogue.heard.slots[0] >= s->rogue.peer->slot_count) == (where == FAR));
    s->slot_bytes = where == FAR ? s->rogue.heard.arena.slot_bytes : s->rogue.peer->slot_bytes;
    if (where == FAR)
        map_arena(s);
}

void scene_end(struct scene *s)
{
    rogue_leave(&s->rogue);
    undefined(s->expectation);
    ck_assert(pool_as_imagined(s->sink));
    strait_release(s->expectation->transfer);
    far_move(s->source, s->sink);
    wait_quiet(s->pair.sink);
    ck_assert_uint_eq(0, s->pair.sink->disconnects);
    if (s->arena != NULL)
        munmap(s->arena, s->arena_size);
    strait_peer_remove(s->peer);
    blob_fini(&s->blob);
    rogue_fini(&s->rogue);
    free(s->pages);
}

void ends_whole(struct scene *s)
{
    ROGUE_WAIT(&s->rogue, s->expectation->decided);
    ends_done(s->expectation);
    for (uint32_t id = 0; id < s->expected; id++)
        ck_assert_mem_eq(s->pages + id * s->page_bytes, pool_page(s->sink, 0, id), s->page_bytes);
}
