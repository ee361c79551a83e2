/* A peer that brings chunks which nobody granted, or that are none, to a node whose pages are in a GPU's memory: into
 * slots of that GPU, and of the node's host memory. What was not granted is refused and changes nothing; what cannot be
 * decoded fails its request alone, and no byte lands outside of the pages that were expected. */
#include "tests/far_harness.h"
#include "tests/rogue.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/peers/peer.h"

enum { PAGES = 16, EXPECTED = 8, PAGE_BYTES = 4096 };

enum where { NEAR, FAR, WHERES };

struct scene {
    enum where where;
    struct pair pair;
    struct test_pool *source, *sink; /* honest ones, which go on */
    struct rogue rogue;
    struct pool_blob blob; /* of the rogue's pool, that looks like theirs */
    struct strait_peer *peer;
    struct flow *expectation;
    uint8_t *arena, *slot; /* the node's GPU's; the slot that was granted */
    size_t arena_size, slot_bytes;
    uint8_t pages[EXPECTED * PAGE_BYTES];
    struct chunk_header header; /* as it should be */
    size_t size;
};

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
    struct flow *e = flow_expect(s->sink, (struct strait_expect_params){KEY(key), LISTS({.count = EXPECTED})});
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
    const struct message released = {.type = MESSAGE_RELEASED,
                                     .grant_id = {.leg = s->rogue.heard.request.leg,
                                                  .epoch = s->rogue.heard.request.epoch,
                                                  .grant = s->rogue.heard.request.grant}};
    rogue_say(&s->rogue, &released);
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

static uint8_t *slot_at(const struct scene *s, uint32_t slot)
{
    if (s->where == FAR)
        return s->arena + (size_t)(slot - s->rogue.heard.arena.first_slot) * s->slot_bytes;
    return link_map(s->rogue.peer->link, (size_t)slot * s->slot_bytes, s->slot_bytes);
}

/* A good chunk of all that is expected is in the slot that was granted. */
static void encode_chunk(struct scene *s, uint32_t count)
{
    static const uint32_t ids[EXPECTED] = {0, 1, 2, 3, 4, 5, 6, 7};
    struct rng rng = rng_init(5);
    struct strait_result result;
    const struct strait_region region = {
        .base = s->pages, .page_stride = PAGE_BYTES, .page_count = EXPECTED, .rows = 1, .row_bytes = PAGE_BYTES};
    const struct strait_pages pages = {.regions = &region, .region_count = 1, .ids = ids, .id_count = count};
    const struct strait_encode_params params = {
        .size = sizeof(params), .element = STRAIT_ELEMENT_BF16, .mode = STRAIT_MODE_RAW};
    const struct strait_run run = {.size = sizeof(run), .result = &result};
    rng_fill(&rng, s->pages, sizeof(s->pages));
    ck_assert_int_eq(STRAIT_OK, strait_encode(NULL, &params, s->slot, s->slot_bytes, &pages, &run));
    ck_assert_int_eq(STRAIT_OK, (int)result.status);
    s->size = result.bytes;
}

static void say_segments(struct scene *s)
{
    static const struct segment segment = {.region_count = 1, .count = EXPECTED};
    const struct message_request *r = &s->rogue.heard.request;
    const struct message message = {.type = MESSAGE_SEGMENTS,
                                    .segments = {.leg = r->leg,
                                                 .epoch = r->epoch,
                                                 .last = true,
                                                 .segment_count = 1,
                                                 .segments = &segment,
                                                 .grant = r->grant,
                                                 .granted = EXPECTED}};
    rogue_say(&s->rogue, &message);
}

static void scene_begin(struct scene *s, enum where where)
{
    memset(s, 0, sizeof(*s));
    s->where = where;
    pair_open(&s->pair, SHM);
    struct geometry shape = {.pages = PAGES, .gpu = 1};
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
    const struct message_request *r = &s->rogue.heard.request;
    ck_assert((r->slot >= s->rogue.peer->slot_count) == (where == FAR));
    s->slot_bytes = where == FAR ? s->rogue.heard.arena.slot_bytes : s->rogue.peer->slot_bytes;
    if (where == FAR)
        map_arena(s);
    s->slot = slot_at(s, r->slot);
    s->header = (struct chunk_header){
        .slot = r->slot, .token = s->rogue.peer->peer_token, .leg = r->leg, .grant = r->grant, .epoch = r->epoch};
    encode_chunk(s, EXPECTED);
}

static void scene_end(struct scene *s)
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
}

static void arrives_whole(struct scene *s)
{
    say_segments(s);
    rogue_send(&s->rogue, &s->header, s->size);
    ROGUE_WAIT(&s->rogue, s->expectation->decided);
    ends_done(s->expectation);
    for (uint32_t id = 0; id < EXPECTED; id++)
        ck_assert_mem_eq(s->pages + id * PAGE_BYTES, pool_page(s->sink, 0, id), PAGE_BYTES);
}

static double refused(struct scene *s)
{
    return stat_of(s->pair.sink, "counters.chunks_refused");
}

/* ---- What was not granted ---------------------------------------------------------------------------------------- */

static void another_slot(struct scene *s)
{
    s->header.slot++;
}

static void a_slot_of_the_other_arena(struct scene *s)
{
    s->header.slot = s->where == FAR ? 0 : s->rogue.peer->slot_count;
}

static void a_slot_behind_all(struct scene *s)
{
    s->header.slot = s->where == FAR ? s->rogue.heard.arena.first_slot + s->rogue.heard.arena.slot_count : UINT32_MAX;
}

static void another_token(struct scene *s)
{
    s->header.token ^= 1;
}

static void another_leg(struct scene *s)
{
    s->header.leg++;
}

static void another_grant(struct scene *s)
{
    s->header.grant++;
}

static void another_epoch(struct scene *s)
{
    s->header.epoch.counter++;
}

static void another_incarnation(struct scene *s)
{
    s->header.epoch.incarnation++;
}

static void no_bytes(struct scene *s)
{
    s->size = 0;
}

static void more_bytes_than_the_slot_has(struct scene *s)
{
    s->size = s->slot_bytes + 1;
}

static void (*const strange[])(struct scene *s) = {another_slot,      a_slot_of_the_other_arena,
                                                   a_slot_behind_all, another_token,
                                                   another_leg,       another_grant,
                                                   another_epoch,     another_incarnation,
                                                   no_bytes,          more_bytes_than_the_slot_has};

START_TEST(what_was_not_granted_is_refused_and_what_was_still_lands)
{
    struct scene s;
    scene_begin(&s, (enum where)(_i % WHERES));
    const struct chunk_header header = s.header;
    const size_t size = s.size;
    double before = refused(&s);
    strange[_i / WHERES](&s);
    rogue_send(&s.rogue, &s.header, s.size);
    ROGUE_WAIT(&s.rogue, refused(&s) == before + 1);
    ck_assert(!s.expectation->decided && !s.rogue.went_down);
    ck_assert(pool_as_imagined(s.sink));
    s.header = header;
    s.size = size;
    arrives_whole(&s);
    scene_end(&s);
}
END_TEST

START_TEST(a_chunk_lands_once)
{
    struct scene s;
    scene_begin(&s, (enum where)_i);
    double before = refused(&s);
    arrives_whole(&s);
    memset(s.slot, 1, s.size);
    rogue_send(&s.rogue, &s.header, s.size);
    ROGUE_WAIT(&s.rogue, refused(&s) == before + 1);
    scene_end(&s);
}
END_TEST

/* ---- What cannot be decoded -------------------------------------------------------------------------------------- */

static void noise(struct scene *s)
{
    struct rng rng = rng_init(6);
    rng_fill(&rng, s->slot, s->size);
}

static void zeroes(struct scene *s)
{
    memset(s->slot, 0, s->size);
}

static void one_bit_of_a_page(struct scene *s)
{
    s->slot[s->size - 1] ^= 1;
}

static void one_bit_of_a_sum(struct scene *s)
{
    s->slot[STRAIT_CHUNK_HEADER_BYTES + 15] ^= 1;
}

static void a_byte_too_few(struct scene *s)
{
    s->size--;
}

static void a_header_alone(struct scene *s)
{
    s->size = STRAIT_CHUNK_HEADER_BYTES;
}

static void half_a_header(struct scene *s)
{
    s->size = STRAIT_CHUNK_HEADER_BYTES / 2;
}

static void fewer_pages(struct scene *s)
{
    encode_chunk(s, EXPECTED - 1);
}

static void (*const spoilt[])(struct scene *s) = {noise,          zeroes,         one_bit_of_a_page, one_bit_of_a_sum,
                                                  a_byte_too_few, a_header_alone, half_a_header,     fewer_pages};

START_TEST(what_is_no_chunk_fails_its_request_alone)
{
    struct scene s;
    scene_begin(&s, (enum where)(_i % WHERES));
    spoilt[_i / WHERES](&s);
    say_segments(&s);
    rogue_send(&s.rogue, &s.header, s.size);
    ROGUE_WAIT(&s.rogue, s.expectation->decided && s.expectation->drained);
    ck_assert_int_eq(STRAIT_FAILED, s.expectation->state);
    ck_assert_msg(s.expectation->reason == STRAIT_REASON_CODEC || s.expectation->reason == STRAIT_REASON_INTEGRITY,
                  "%s", strait_reason_string((int)s.expectation->reason));
    ck_assert(!s.rogue.went_down);
    scene_end(&s);
}
END_TEST

/* Without it the tests above would show nothing. */
START_TEST(an_honest_chunk_lands)
{
    struct scene s;
    scene_begin(&s, (enum where)_i);
    arrives_whole(&s);
    scene_end(&s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("node_rogue_source");
    TCase *tcase = node_case(suite, "chunks");
    tcase_add_loop_test(tcase, an_honest_chunk_lands, 0, WHERES);
    tcase_add_loop_test(tcase, what_was_not_granted_is_refused_and_what_was_still_lands, 0, WHERES * COUNT(strange));
    tcase_add_loop_test(tcase, a_chunk_lands_once, 0, WHERES);
    tcase_add_loop_test(tcase, what_is_no_chunk_fails_its_request_alone, 0, WHERES * COUNT(spoilt));
    return node_main(suite);
}
