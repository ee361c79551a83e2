/* A malicious source, for a node whose pages are in GPU memory: chunks that nobody granted or that are none, and any
 * use of open grants. No byte lands outside of the pages that were expected, each page lands once, no slot is lost. */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/peers/peer.h"
#include "tests/node/far_harness.h"
#include "tests/node/rogue.h"

enum where { NEAR, FAR, WHERES }; /* slots of the host, and of the GPU */

enum { EXPECTED_MAX = 16 };

struct scene {
    enum where where;
    struct pair pair;
    struct test_pool *source, *sink; /* honest ones, which go on */
    struct rogue rogue;
    struct pool_blob blob; /* of the rogue's pool, that looks like theirs */
    struct strait_peer *peer;
    uint32_t expected; /* pages of a request */
    size_t page_bytes;
    uint8_t *pages; /* what the rogue sends of them */
    uint8_t *arena; /* the node's GPU's */
    size_t arena_size, slot_bytes;
    struct flow *expectation;
};

/* The node has asked for the first pages, of this size, with open grants. */
static void scene_begin(struct scene *s, enum where where, uint32_t pages, size_t page_bytes);
/* Nothing is left of it, and the node serves others as before. */
static void scene_end(struct scene *s);

static uint8_t *slot_at(const struct scene *s, uint32_t slot);
/* A good chunk of pages [first, first + count) is in that slot; returns its size. */
static size_t encode_chunk(struct scene *s, uint32_t slot, uint32_t first, uint32_t count);
/* For the latest request. */
static struct chunk_header header_of(const struct scene *s, uint64_t grant, uint32_t slot);
/* All pages are ready; `granted` of them are for open grants, from `grant` on. */
static void say_segments(struct scene *s, uint64_t grant, const uint32_t *granted, uint32_t count);
static void say_released(struct scene *s, uint64_t grant);
/* DONE, with the rogue's pages. */
static void ends_whole(struct scene *s);

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

static uint8_t *slot_at(const struct scene *s, uint32_t slot)
{
    if (s->where == FAR)
        return s->arena + (size_t)(slot - s->rogue.heard.arena.first_slot) * s->slot_bytes;
    return link_map(s->rogue.peer->link, (size_t)slot * s->slot_bytes, s->slot_bytes);
}

static size_t encode_chunk(struct scene *s, uint32_t slot, uint32_t first, uint32_t count)
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

static struct chunk_header header_of(const struct scene *s, uint64_t grant, uint32_t slot)
{
    return (struct chunk_header){.slot = slot,
                                 .token = s->rogue.peer->peer_token,
                                 .leg = s->rogue.heard.request.leg,
                                 .grant = grant,
                                 .epoch = s->rogue.heard.request.epoch};
}

static void say_segments(struct scene *s, uint64_t grant, const uint32_t *granted, uint32_t count)
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

static void say_released(struct scene *s, uint64_t grant)
{
    const struct message released = {
        .type = MESSAGE_RELEASED,
        .grant_id = {.leg = s->rogue.heard.request.leg, .epoch = s->rogue.heard.request.epoch, .grant = grant}};
    rogue_say(&s->rogue, &released);
}

static void scene_begin(struct scene *s, enum where where, uint32_t pages, size_t page_bytes)
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
    free(s->pages);
}

static void ends_whole(struct scene *s)
{
    ROGUE_WAIT(&s->rogue, s->expectation->decided);
    ends_done(s->expectation);
    for (uint32_t id = 0; id < s->expected; id++)
        ck_assert_mem_eq(s->pages + id * s->page_bytes, pool_page(s->sink, 0, id), s->page_bytes);
}

enum { SOURCE_EXPECTED = 8, SOURCE_PAGE_BYTES = 4096 };

/* What is to be sent for the one open grant: a chunk of all pages. */
static struct chunk_header sent_header;
static uint8_t *sent_slot;
static size_t size;

static void begin_source(struct scene *s, enum where where)
{
    scene_begin(s, where, SOURCE_EXPECTED, SOURCE_PAGE_BYTES);
    ck_assert_uint_eq(1, s->rogue.heard.request.slot_count);
    sent_slot = slot_at(s, s->rogue.heard.slots[0]);
    sent_header = header_of(s, s->rogue.heard.request.grant, s->rogue.heard.slots[0]);
    size = encode_chunk(s, s->rogue.heard.slots[0], 0, SOURCE_EXPECTED);
}

static void say_ready(struct scene *s)
{
    say_segments(s, s->rogue.heard.request.grant, (const uint32_t[]){SOURCE_EXPECTED}, 1);
}

static void arrives_whole(struct scene *s)
{
    say_ready(s);
    rogue_send(&s->rogue, &sent_header, size);
    ends_whole(s);
}

static double refused(struct scene *s)
{
    return stat_of(s->pair.sink, "counters.chunks_refused");
}

TEST_CASE(node_rogue_source);

/* ---- What was not granted ---------------------------------------------------------------------------------------- */

static void another_slot(struct scene *s)
{
    (void)s;
    sent_header.slot++;
}

static void a_slot_of_the_other_arena(struct scene *s)
{
    sent_header.slot = s->where == FAR ? 0 : s->rogue.peer->slot_count;
}

static void a_slot_behind_all(struct scene *s)
{
    sent_header.slot = s->where == FAR ? s->rogue.heard.arena.first_slot + s->rogue.heard.arena.slot_count : UINT32_MAX;
}

static void another_token(struct scene *s)
{
    (void)s;
    sent_header.token ^= 1;
}

static void another_leg(struct scene *s)
{
    (void)s;
    sent_header.leg++;
}

static void another_grant(struct scene *s)
{
    (void)s;
    sent_header.grant++;
}

static void another_epoch(struct scene *s)
{
    (void)s;
    sent_header.epoch.counter++;
}

static void another_incarnation(struct scene *s)
{
    (void)s;
    sent_header.epoch.incarnation++;
}

static void no_bytes(struct scene *s)
{
    (void)s;
    size = 0;
}

static void more_bytes_than_the_slot_has(struct scene *s)
{
    size = s->slot_bytes + 1;
}

static void (*const strange[])(struct scene *s) = {another_slot,      a_slot_of_the_other_arena,
                                                   a_slot_behind_all, another_token,
                                                   another_leg,       another_grant,
                                                   another_epoch,     another_incarnation,
                                                   no_bytes,          more_bytes_than_the_slot_has};

TEST_LOOP(what_was_not_granted_is_refused_and_what_was_still_lands, WHERES *COUNT(strange))
{
    struct scene s;
    begin_source(&s, (enum where)(_i % WHERES));
    const struct chunk_header right = sent_header;
    const size_t right_size = size;
    double before = refused(&s);
    strange[_i / WHERES](&s);
    rogue_send(&s.rogue, &sent_header, size);
    ROGUE_WAIT(&s.rogue, refused(&s) == before + 1);
    ck_assert(!s.expectation->decided && !s.rogue.went_down);
    ck_assert(pool_as_imagined(s.sink));
    sent_header = right;
    size = right_size;
    arrives_whole(&s);
    scene_end(&s);
}

TEST_LOOP(a_chunk_lands_once, WHERES)
{
    struct scene s;
    begin_source(&s, (enum where)_i);
    double before = refused(&s);
    arrives_whole(&s);
    memset(sent_slot, 1, size);
    rogue_send(&s.rogue, &sent_header, size);
    ROGUE_WAIT(&s.rogue, refused(&s) == before + 1);
    scene_end(&s);
}

/* ---- What cannot be decoded -------------------------------------------------------------------------------------- */

static void noise(struct scene *s)
{
    (void)s;
    struct rng rng = rng_init(6);
    rng_fill(&rng, sent_slot, size);
}

static void zeroes(struct scene *s)
{
    (void)s;
    memset(sent_slot, 0, size);
}

static void one_bit_of_a_page(struct scene *s)
{
    (void)s;
    sent_slot[size - 1] ^= 1;
}

static void one_bit_of_a_sum(struct scene *s)
{
    (void)s;
    sent_slot[STRAIT_CHUNK_HEADER_BYTES + 15] ^= 1;
}

static void a_byte_too_few(struct scene *s)
{
    (void)s;
    size--;
}

static void a_header_alone(struct scene *s)
{
    (void)s;
    size = STRAIT_CHUNK_HEADER_BYTES;
}

static void half_a_header(struct scene *s)
{
    (void)s;
    size = STRAIT_CHUNK_HEADER_BYTES / 2;
}

static void fewer_pages(struct scene *s)
{
    size = encode_chunk(s, s->rogue.heard.slots[0], 0, SOURCE_EXPECTED - 1);
}

static void (*const spoilt[])(struct scene *s) = {noise,          zeroes,         one_bit_of_a_page, one_bit_of_a_sum,
                                                  a_byte_too_few, a_header_alone, half_a_header,     fewer_pages};

TEST_LOOP(what_is_no_chunk_fails_its_request_alone, WHERES *COUNT(spoilt))
{
    struct scene s;
    begin_source(&s, (enum where)(_i % WHERES));
    spoilt[_i / WHERES](&s);
    say_ready(&s);
    rogue_send(&s.rogue, &sent_header, size);
    ROGUE_WAIT(&s.rogue, s.expectation->decided && s.expectation->drained);
    ck_assert_int_eq(STRAIT_FAILED, s.expectation->state);
    ck_assert_msg(s.expectation->reason == STRAIT_REASON_CODEC || s.expectation->reason == STRAIT_REASON_INTEGRITY,
                  "%s", strait_reason_string((int)s.expectation->reason));
    ck_assert(!s.rogue.went_down);
    scene_end(&s);
}

/* Without it the tests above would show nothing. */
TEST_LOOP(an_honest_chunk_lands, WHERES)
{
    struct scene s;
    begin_source(&s, (enum where)_i);
    arrives_whole(&s);
    scene_end(&s);
}

TEST_CASE(node_rogue_open);

/* A peer that makes what it likes of the open grants of a request: between GPUs there are several. Honest or not, each
 * page lands once, no slot is lost, and what cannot be fails its request alone. */

enum { EXPECTED = 12, PAGE_BYTES = 192 << 10, OPEN = 8 }; /* a chunk takes one page */

static const uint32_t one_each[OPEN] = {1, 1, 1, 1, 1, 1, 1, 1};

static void begin(struct scene *s)
{
    scene_begin(s, FAR, EXPECTED, PAGE_BYTES);
    ck_assert_uint_eq(OPEN, s->rogue.heard.request.slot_count);
}

static uint64_t open_grant(const struct scene *s, uint32_t i)
{
    return s->rogue.heard.request.grant + i;
}

static void send_chunk(struct scene *s, uint64_t grant, uint32_t slot, uint32_t first, uint32_t count)
{
    const struct chunk_header header = header_of(s, grant, slot);
    rogue_send(&s->rogue, &header, encode_chunk(s, slot, first, count));
}

static void send_open(struct scene *s, uint32_t i, uint32_t first)
{
    send_chunk(s, open_grant(s, i), s->rogue.heard.slots[i], first, 1);
}

static void release_open(struct scene *s, uint32_t from)
{
    for (uint32_t i = from; i < OPEN; i++)
        say_released(s, open_grant(s, i));
}

/* Sends a chunk for each grant, until all pages have landed. */
static void serve(struct scene *s)
{
    const struct rogue_heard *heard = &s->rogue.heard;
    for (uint32_t i = 0; !s->expectation->decided;) {
        ROGUE_WAIT(&s->rogue, s->expectation->decided || heard->grant_count > i);
        for (; i < heard->grant_count; i++)
            send_chunk(s, heard->grants[i].grant, heard->grants[i].slot, heard->grants[i].first,
                       heard->grants[i].count);
    }
    ends_whole(s);
}

/* ---- What is right ----------------------------------------------------------------------------------------------- */

TEST_LOOP(the_first_chunks_are_asked_for_with_the_request, 2)
{
    struct scene s;
    begin(&s);
    for (uint32_t i = 0; i < OPEN; i++) {
        ck_assert_uint_ge(s.rogue.heard.slots[i], s.rogue.heard.arena.first_slot);
        for (uint32_t j = 0; j < i; j++)
            ck_assert_uint_ne(s.rogue.heard.slots[i], s.rogue.heard.slots[j]);
    }
    if (_i == 0)
        say_segments(&s, open_grant(&s, 0), one_each, OPEN);
    for (uint32_t i = OPEN; i-- > 0;)
        send_open(&s, i, i);
    if (_i == 1) /* they wait for it */
        say_segments(&s, open_grant(&s, 0), one_each, OPEN);
    serve(&s);
    ck_assert_uint_eq(EXPECTED - OPEN, s.rogue.heard.grant_count);
    scene_end(&s);
}

TEST_LOOP(what_is_not_needed_comes_back, OPEN + 1)
{
    struct scene s;
    begin(&s);
    say_segments(&s, _i == 0 ? 0 : open_grant(&s, 0), one_each, (uint32_t)_i);
    release_open(&s, (uint32_t)_i);
    for (uint32_t i = 0; i < (uint32_t)_i; i++)
        send_open(&s, i, i);
    serve(&s);
    ck_assert_uint_eq(EXPECTED - _i, s.rogue.heard.grant_count);
    scene_end(&s);
}

/* Half of an arena is all that requests take before anybody knows what is ready. */
TEST(others_are_left_as_much)
{
    struct scene s;
    struct flow *others[2];
    static const char *const keys[] = {"l", "m"};
    begin(&s);
    const struct message_request first = s.rogue.heard.request;
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t before = s.rogue.heard.request_count;
        others[i] = flow_expect(
            s.sink, (struct strait_expect_params){KEY(keys[i]), LISTS({.count = 4, .first_id = EXPECTED + 4 * i})});
        ck_assert_int_eq(STRAIT_OK, strait_start(others[i]->transfer, s.peer, NULL));
        ROGUE_WAIT(&s.rogue, s.rogue.heard.request_count > before);
        ck_assert_uint_eq(i, s.rogue.heard.request.slot_count);
        if (i > 0)
            continue;
        s.rogue.heard.request = first;
        say_released(&s, open_grant(&s, OPEN - 1));
        ROGUE_WAIT(&s.rogue, stat_of(s.pair.sink, "gauges.slots_used") == OPEN - 1);
    }
    rogue_leave(&s.rogue);
    for (uint32_t i = 0; i < 2; i++) {
        strait_abort(others[i]->transfer);
        WAIT(others[i]->decided && others[i]->drained);
        undefined(others[i]);
        strait_release(others[i]->transfer);
    }
    strait_abort(s.expectation->transfer);
    scene_end(&s);
}

/* ---- What is not ------------------------------------------------------------------------------------------------- */

TEST(units_of_a_grant_that_comes_back_are_granted_again)
{
    struct scene s;
    begin(&s);
    say_segments(&s, open_grant(&s, 0), one_each, OPEN);
    for (uint32_t i = 0; i < OPEN; i++)
        if (i % 3 == 0)
            say_released(&s, open_grant(&s, i));
        else
            send_open(&s, i, i);
    serve(&s);
    scene_end(&s);
}

/* More pieces than a leg can remember are not made of it at once. */
TEST(a_range_that_fits_no_slot_is_cut)
{
    struct scene s;
    begin(&s);
    say_segments(&s, open_grant(&s, 0), (const uint32_t[]){EXPECTED}, 1);
    release_open(&s, 0);
    serve(&s);
    ck_assert_uint_eq(EXPECTED, s.rogue.heard.grant_count);
    scene_end(&s);
}

/* Some of the named grants are open, or none. */
TEST_LOOP(grants_that_were_not_open_are_given_nothing, 5)
{
    static const uint64_t beyond[] = {1, 4, OPEN, UINT32_MAX, UINT64_MAX / 2};
    struct scene s;
    begin(&s);
    say_segments(&s, open_grant(&s, 0) + beyond[_i], one_each, OPEN);
    for (uint32_t i = 0; i < OPEN; i++)
        if (i < beyond[_i])
            say_released(&s, open_grant(&s, i));
        else
            send_open(&s, i, i - (uint32_t)beyond[_i]);
    double before = stat_of(s.pair.sink, "counters.chunks_refused");
    send_chunk(&s, open_grant(&s, OPEN + 20), s.rogue.heard.slots[0], 0, 1);
    ROGUE_WAIT(&s.rogue, stat_of(s.pair.sink, "counters.chunks_refused") > before);
    serve(&s);
    scene_end(&s);
}

static void a_chunk_that_is_not_named(struct scene *s)
{
    say_segments(s, open_grant(s, 0), one_each, 2);
    send_open(s, 2, 2);
}

static void an_early_chunk_that_is_not_named(struct scene *s)
{
    send_open(s, 2, 2);
    say_segments(s, open_grant(s, 0), one_each, 2);
}

static void an_early_chunk_before_those_that_are_named(struct scene *s)
{
    send_open(s, 0, 0);
    say_segments(s, open_grant(s, 1), one_each, 2);
}

static void an_early_chunk_and_no_name(struct scene *s)
{
    send_open(s, 0, 0);
    say_segments(s, 0, NULL, 0);
}

static void a_chunk_of_fewer_pages(struct scene *s)
{
    send_open(s, 1, 2);
    say_segments(s, open_grant(s, 0), (const uint32_t[]){1, 2}, 2);
}

static void (*const false_ones[])(struct scene *s) = {a_chunk_that_is_not_named, an_early_chunk_that_is_not_named,
                                                      an_early_chunk_before_those_that_are_named,
                                                      an_early_chunk_and_no_name, a_chunk_of_fewer_pages};

TEST_LOOP(what_cannot_be_fails_its_request_alone, COUNT(false_ones))
{
    struct scene s;
    begin(&s);
    false_ones[_i](&s);
    ROGUE_WAIT(&s.rogue, s.expectation->decided && s.expectation->drained);
    ck_assert_int_eq(STRAIT_FAILED, s.expectation->state);
    ck_assert_int_eq(false_ones[_i] == a_chunk_of_fewer_pages ? STRAIT_REASON_CODEC : STRAIT_REASON_GEOMETRY,
                     (int)s.expectation->reason);
    ck_assert(!s.rogue.went_down);
    release_open(&s, 0); /* the link stays: every slot comes back all the same */
    ROGUE_WAIT(&s.rogue, stat_of(s.pair.sink, "gauges.slots_used") == 0);
    scene_end(&s);
}

TEST_LOOP(a_chunk_of_an_open_grant_lands_once, 2)
{
    struct scene s;
    begin(&s);
    double before = stat_of(s.pair.sink, "counters.chunks_refused");
    if (_i == 0)
        say_segments(&s, open_grant(&s, 0), one_each, OPEN);
    send_open(&s, 3, 3);
    send_open(&s, 3, 3);
    ROGUE_WAIT(&s.rogue, stat_of(s.pair.sink, "counters.chunks_refused") == before + 1);
    if (_i == 1)
        say_segments(&s, open_grant(&s, 0), one_each, OPEN);
    for (uint32_t i = 0; i < OPEN; i++)
        if (i != 3)
            send_open(&s, i, i);
    serve(&s);
    scene_end(&s);
}

int main(void)
{
    return node_main("node_rogue_source");
}
