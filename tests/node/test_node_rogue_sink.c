/* A malicious sink, for a node whose pages are in GPU memory: grants, also open ones that come with requests, that no
 * honest sink sends. Nothing is written but where a chunk may be, the request alone fails, and the node goes on. */
#include "tests/node/harness.h"
#include "tests/node/rogue.h"

enum { PAGES = 64, LAYERS = 2, UNITS = PAGES * LAYERS, FAR_FIRST = 100, FAR_SLOT_BYTES = 260 << 10 };

enum where { NEAR, FAR, WHERES }; /* the host's slots, the GPU's */

static const uint32_t first_slots[] = {0, FAR_FIRST};
static const struct wire_span all_pages = {.count = PAGES};

static struct scene {
    enum where where;
    struct pair pair;
    struct rogue rogue;
    struct pool_blob blob;
    struct flow *offer;
} s;

/* The pools and the rogue are there; scene_meet makes it known to the node and, where it is to be, reached. */
static void scene_init(int where)
{
    s.where = (enum where)where;
    s.pair = pair_open(SHM, (struct geometry){.pages = PAGES, .layers = LAYERS, .gpu = 1, .sink_gpu = 2});
    rogue_init(&s.rogue, FAR_SLOT_BYTES);
    move_all(s.pair.source, s.pair.sink);
}

static void scene_meet(void)
{
    struct fake_handle handle = rogue_handle(&s.rogue);
    struct message arena = rogue_arena(&s.rogue, &handle, 1, FAR_FIRST);
    rogue_meet(&s.rogue, s.pair.a);
    s.blob = blob_of(s.pair.source);
    if (s.where != FAR)
        return;
    rogue_say(&s.rogue, &arena);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.reach_count != 0);
    ck_assert_mem_eq(&s.blob.pool, &s.rogue.heard.reach.pool, sizeof(s.blob.pool));
    ck_assert_uint_eq(1u << 1, s.rogue.heard.reach.devices);
}

/* All pages are offered, and the rogue knows that they are ready. */
static void scene_offer(void)
{
    struct message request = rogue_request(&s.blob, "r", 1, &all_pages);
    pool_fill(s.pair.source, 1);
    s.offer = offer_all(s.pair.source, "r");
    rogue_say(&s.rogue, &request);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.last);
    ck_assert_uint_eq(UNITS, s.rogue.heard.units);
}

static void scene_begin(int where)
{
    scene_init(where);
    scene_meet();
    scene_offer();
}

/* The node has nothing left of it, has written to no other slots, and serves others as before. */
static void scene_end(uint32_t written)
{
    rogue_leave(&s.rogue);
    WAIT(s.offer == NULL || (s.offer->decided && s.offer->drained));
    ck_assert(rogue_untouched(&s.rogue, s.where == NEAR ? written : 0, s.where == FAR ? written : 0));
    ck_assert(pool_as_imagined(s.pair.source));
    move_all(s.pair.source, s.pair.sink);
    pair_quiet(&s.pair);
    ck_assert_uint_eq(0, s.pair.from->disconnects);
    blob_fini(&s.blob);
    rogue_fini(&s.rogue);
}

static struct message grant_of(uint64_t id, uint32_t first, uint32_t count, uint32_t slot)
{
    return (struct message){.type = MESSAGE_GRANT,
                            .grant = {.leg = 1,
                                      .epoch = {.incarnation = 666, .counter = 1},
                                      .grant = id,
                                      .first = first,
                                      .count = count,
                                      .slot = first_slots[s.where] + slot}};
}

static void grant(uint64_t id, uint32_t first, uint32_t count, uint32_t slot)
{
    struct message message = grant_of(id, first, count, slot);
    rogue_say(&s.rogue, &message);
}

/* The rogue says that all is well. */
static void end_done(void)
{
    const struct message done = {
        .type = MESSAGE_END,
        .end = {.leg = 1, .epoch = {.incarnation = 666, .counter = 1}, .from_sink = true, .state = STRAIT_DONE}};
    rogue_say(&s.rogue, &done);
    ROGUE_WAIT(&s.rogue, s.offer->decided);
    ends_done(s.offer);
}

TEST_CASE(node_rogue);

/* ---- What is right ----------------------------------------------------------------------------------------------- */

/* Without it the tests below would show nothing. */
TEST_LOOP(honest_grants_are_filled, WHERES)
{
    struct strait_chunk_info info;
    scene_begin(_i);
    for (uint32_t i = 0; i < 4; i++)
        grant(1 + i, 8 * i, 8, 2 * i);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.chunk_count == 4);
    for (uint32_t i = 0; i < 4; i++) {
        const struct chunk_header *chunk = &s.rogue.heard.chunks[i];
        const uint8_t *slot = _i == FAR ? s.rogue.far + (size_t)(chunk->slot - FAR_FIRST) * FAR_SLOT_BYTES
                                        : (uint8_t *)s.rogue.arena.base + (size_t)chunk->slot * ROGUE_SLOT_BYTES;
        ck_assert_uint_eq(first_slots[_i] + 2 * (chunk->grant - 1), chunk->slot);
        ck_assert_int_eq(STRAIT_OK, strait_chunk_info(slot, s.rogue.heard.chunk_sizes[i], &info));
        ck_assert_uint_eq(8, info.page_count);
    }
    end_done();
    scene_end(0x55);
}

/* ---- What is not ------------------------------------------------------------------------------------------------- */

static const struct {
    const char *what;
    struct {
        uint64_t id;
        uint32_t first, count, slot;
    } grants[3];
    bool dropped; /* the connection ends; else the leg alone fails */
} bad[] = {
    {.what = "more units than the slot takes", .grants = {{1, 0, UNITS, 0}}},
    {.what = "more units than the slot takes, after one that is right", .grants = {{1, 0, 1, 1}, {2, 0, UNITS, 0}}},
    {.what = "units that were not announced", .grants = {{1, UNITS, 1, 0}}},
    {.what = "units beyond those that were announced", .grants = {{1, UNITS - 1, 2, 0}}},
    {.what = "the last units that can be named", .grants = {{1, UINT32_MAX - 1, 1, 0}}},
    {.what = "parts of two rows", .grants = {{1, PAGES - 2, 4, 0}}},
    {.what = "a row and a half", .grants = {{1, 0, PAGES + PAGES / 2, 0}}},
    {.what = "a slot behind the arena", .grants = {{1, 0, 1, ROGUE_SLOTS}}, .dropped = true},
    {.what = "the last slot that can be named", .grants = {{1, 0, 1, UINT32_MAX - FAR_FIRST}}, .dropped = true},
    {.what = "a slot behind the arena, after one that is right",
     .grants = {{1, 0, 8, 1}, {2, 8, 8, ROGUE_SLOTS}},
     .dropped = true},
};

TEST_LOOP(a_bad_grant_fails_its_request_alone, COUNT(bad) * WHERES)
{
    int which = _i / WHERES;
    scene_begin(_i % WHERES);
    uint32_t right = bad[which].grants[1].id != 0 ? 2 : 0;
    for (uint32_t i = 0; i < COUNT(bad[which].grants) && bad[which].grants[i].id != 0; i++)
        grant(bad[which].grants[i].id, bad[which].grants[i].first, bad[which].grants[i].count,
              bad[which].grants[i].slot);
    ROGUE_WAIT(&s.rogue, s.offer->decided);
    ends_failed(s.offer, bad[which].dropped ? STRAIT_REASON_PEER_DOWN : STRAIT_REASON_GEOMETRY);
    ROGUE_WAIT(&s.rogue, s.rogue.went_down == bad[which].dropped);
    if (!bad[which].dropped) {
        ROGUE_WAIT(&s.rogue, s.rogue.heard.end_count != 0);
        ck_assert_int_eq(STRAIT_REASON_GEOMETRY, (int)s.rogue.heard.end.reason);
    }
    scene_end(right);
}

/* Who grants late, or to others, gets the slot back. */
TEST_LOOP(grants_of_other_legs_and_epochs_are_released, WHERES)
{
    scene_begin(_i);
    struct message others[] = {grant_of(11, 0, 1, 0), grant_of(12, 0, 1, 0), grant_of(13, 0, 1, 0)};
    others[0].grant.leg = 2;
    others[1].grant.epoch.counter = 2;
    others[2].grant.epoch.incarnation = 667;
    for (uint32_t i = 0; i < 3; i++)
        rogue_say(&s.rogue, &others[i]);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.released_count == 3);
    for (uint32_t i = 0; i < 3; i++)
        ck_assert_uint_eq(11 + i, s.rogue.heard.released[i]);
    ck_assert(!s.offer->decided);
    ck_assert(rogue_untouched(&s.rogue, 0, 0));
    grant(1, 0, 8, 3); /* its own are good as before */
    ROGUE_WAIT(&s.rogue, s.rogue.heard.chunk_count == 1);
    end_done();
    scene_end(1u << 3);
}

/* Each is answered, by a chunk or by RELEASED: a slot is never lost. */
TEST_LOOP(grants_beyond_the_window_are_released, WHERES)
{
    enum { MANY = 60 };
    const struct rogue_heard *heard = &s.rogue.heard;
    scene_begin(_i);
    fake_control()->stall_us[0] = 20000;
    for (uint32_t i = 0; i < MANY; i++)
        grant(1 + i, i, 1, i % ROGUE_SLOTS);
    ROGUE_WAIT(&s.rogue, heard->chunk_count + heard->released_count == MANY);
    ck_assert_uint_ge(heard->chunk_count, SOURCE_GRANTS);
    ck_assert_uint_gt(heard->released_count, 0);
    end_done();
    scene_end((1u << ROGUE_SLOTS) - 1);
}

/* The slot is the sink's: what it makes of two chunks in one is its own affair. */
TEST_LOOP(a_slot_may_be_granted_twice, WHERES)
{
    scene_begin(_i);
    grant(1, 0, 8, 2);
    grant(2, 8, 8, 2);
    grant(3, 0, 8, 2); /* and units, too */
    grant(3, 0, 8, 5); /* but not under one number */
    grant(2, 0, 8, 5);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.chunk_count == 3);
    end_done();
    scene_end(1u << 2);
}

TEST_LOOP(grants_to_a_request_that_is_over_are_released, WHERES)
{
    scene_begin(_i);
    strait_abort(s.offer->transfer);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.end_count == 1);
    grant(1, 0, 8, 0);
    grant(2, 0, UNITS, 0);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.released_count == 2);
    ck_assert_uint_eq(0, s.rogue.heard.chunk_count);
    scene_end(0);
}

/* The sink has said that it needs no more, while a chunk of the pages is still being encoded. */
TEST_LOOP(done_waits_until_nothing_reads_the_pages, WHERES)
{
    enum { STALL = 300 };
    scene_begin(_i);
    fake_control()->stall_us[0] = STALL * 1000;
    const uint64_t began = uv_hrtime();
    grant(1, 0, 8, 0);
    ROGUE_WAIT(&s.rogue, fake_control()->stall_us[0] == 0);
    end_done();
    ck_assert(s.offer->drained);
    ck_assert_uint_ge(s.offer->decided_at - began, STALL * 1000000ull);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.released_count == 1);
    scene_end(1u << 0);
}

/* ---- Arenas that are not as they are said to be ------------------------------------------------------------------ */

/* One slot of all memory: a chunk that fills it is larger than what this node's GPU codes in. */
TEST_LOOP(slots_larger_than_ours_are_filled_to_our_size, 2)
{
    scene_init(NEAR);
    s.rogue.slot_bytes = ROGUE_SLOTS * ROGUE_SLOT_BYTES;
    s.rogue.slot_count = 1;
    ck_assert_uint_gt(s.rogue.slot_bytes, s.pair.a->options.chunk_bytes);
    scene_meet();
    scene_offer();
    grant(1, 0, _i == 0 ? 32 : UNITS - PAGES, 0);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.chunk_count == 1 || s.offer->decided);
    if (_i == 0)
        end_done();
    else
        ends_failed(s.offer, STRAIT_REASON_GEOMETRY);
    scene_end(_i == 0 ? 0x7 : 0); /* 128 KiB, and what is told about them */
}

TEST_LOOP(an_arena_smaller_than_its_slots_is_not_taken, 2)
{
    scene_init(NEAR);
    if (_i == 0)
        s.rogue.slot_count++;
    else
        s.rogue.slot_bytes += 4096;
    double before = stat_of(s.pair.from, "counters.peer_errors");
    ROGUE_WAIT(&s.rogue, (rogue_dial(&s.rogue, s.pair.a), stat_of(s.pair.from, "counters.peer_errors") > before));
    scene_end(0);
}

TEST_CASE(node_rogue_request);

/* A request for all pages, with open grants from `grant` on. */
static struct message open_request(uint64_t grant, const uint32_t *slots, uint32_t count)
{
    struct message request = rogue_request(&s.blob, "r", 1, &all_pages);
    request.request.grant = grant;
    request.request.slots = slots;
    request.request.slot_count = count;
    return request;
}

static void offer_early(void)
{
    s.offer = offer_all(s.pair.source, "r");
    pump_for(20);
}

/* Slots in an order of their own. */
static void some_slots(uint32_t slots[ROGUE_SLOTS])
{
    for (uint32_t i = 0; i < ROGUE_SLOTS; i++)
        slots[i] = first_slots[s.where] + (5 * i + 3) % ROGUE_SLOTS;
}

/* Requires a chunk of these units for the grant. */
static void check_chunk(const struct chunk_header *chunk, size_t size, uint32_t units)
{
    struct strait_chunk_info info;
    size_t slot_bytes = s.where == FAR ? s.rogue.far_slot_bytes : ROGUE_SLOT_BYTES;
    const uint8_t *base = s.where == FAR ? s.rogue.far : s.rogue.arena.base;
    const uint8_t *slot = base + (chunk->slot - first_slots[s.where]) * slot_bytes;
    ck_assert_uint_le(size, slot_bytes);
    ck_assert_int_eq(STRAIT_OK, strait_chunk_info(slot, size, &info));
    ck_assert_uint_eq(units, info.page_count);
}

/* Chunks came for the grants that were named, each with the units that were named for it; returns their slots. */
static uint32_t check_chunks(uint64_t grant, const uint32_t *slots)
{
    const struct rogue_heard *heard = &s.rogue.heard;
    uint32_t mask = 0;
    ck_assert_uint_eq(heard->granted_count, heard->chunk_count);
    for (uint32_t i = 0; i < heard->chunk_count; i++) {
        const uint64_t which = heard->chunks[i].grant - grant;
        ck_assert_uint_lt(which, heard->granted_count);
        ck_assert_uint_eq(slots[which], heard->chunks[i].slot);
        check_chunk(&heard->chunks[i], heard->chunk_sizes[i], heard->granted[which]);
        mask |= 1u << (heard->chunks[i].slot - first_slots[s.where]);
    }
    ck_assert_uint_eq(heard->chunk_count, (uint32_t)__builtin_popcount(mask));
    return mask;
}

static const struct {
    enum where where;
    uint32_t far_slot_bytes, used;
    uint64_t first;
    bool all; /* units are in chunks for open grants */
} opened[] = {{NEAR, FAR_SLOT_BYTES, ROGUE_SLOTS, 1, false},
              {FAR, FAR_SLOT_BYTES, 2, 1000, true},
              {FAR, 132 << 10, 4, 1, true},
              {FAR, 64 << 10, ROGUE_SLOTS, UINT64_MAX - ROGUE_SLOTS, false}};

/* With nothing but the request, the source encodes as many chunks as it brings grants, or as there are. */
TEST_LOOP(open_grants_are_used_at_once_as_far_as_needed, COUNT(opened))
{
    uint32_t slots[ROGUE_SLOTS], units = 0;
    const struct rogue_heard *heard = &s.rogue.heard;
    scene_init(opened[_i].where);
    s.rogue.far_slot_bytes = opened[_i].far_slot_bytes;
    scene_meet();
    some_slots(slots);
    struct message request = open_request(opened[_i].first, slots, ROGUE_SLOTS);
    offer_early();
    fake_control()->stall_us[0] = 20000;
    rogue_say(&s.rogue, &request);
    ROGUE_WAIT(&s.rogue, heard->segments_count != 0);
    ck_assert_uint_eq(0, heard->chunk_count);
    ck_assert_uint_eq(opened[_i].used, heard->granted_count);
    ROGUE_WAIT(&s.rogue, heard->chunk_count + heard->released_count == ROGUE_SLOTS);
    const uint32_t mask = check_chunks(opened[_i].first, slots);
    for (uint32_t i = 0; i < heard->granted_count; i++)
        units += heard->granted[i];
    ck_assert(opened[_i].all ? units == UNITS : units < UNITS);
    for (uint32_t i = 0; i < heard->released_count; i++)
        ck_assert_uint_eq(opened[_i].first + heard->granted_count + i, heard->released[i]);
    end_done();
    scene_end(mask);
}

TEST_LOOP(open_grants_that_come_too_soon_or_in_vain_come_back, 2 * WHERES)
{
    uint32_t slots[ROGUE_SLOTS];
    scene_init(_i % WHERES);
    scene_meet();
    some_slots(slots);
    struct message request = open_request(1, slots, ROGUE_SLOTS);
    if (_i / WHERES == 0) { /* no offer */
        rogue_say(&s.rogue, &request);
    } else {
        offer_early();
        request.request.geometry ^= 1;
        rogue_say(&s.rogue, &request);
        ROGUE_WAIT(&s.rogue, s.rogue.heard.end_count == 1);
        ck_assert_int_eq(STRAIT_REASON_GEOMETRY, (int)s.rogue.heard.end.reason);
        strait_abort(s.offer->transfer);
    }
    ROGUE_WAIT(&s.rogue, s.rogue.heard.released_count == ROGUE_SLOTS);
    for (uint32_t i = 0; i < ROGUE_SLOTS; i++)
        ck_assert_uint_eq(1 + i, s.rogue.heard.released[i]);
    ck_assert_uint_eq(0, s.rogue.heard.chunk_count);
    scene_end(0);
}

/* The first part is refused already when the last one comes, which brings the grants. */
TEST_LOOP(open_grants_of_a_request_that_was_refused_half_way_come_back, WHERES)
{
    static const struct wire_span falling[] = {{.first = 1, .count = 1}, {.count = 1}};
    uint32_t slots[ROGUE_SLOTS];
    scene_init(_i);
    scene_meet();
    some_slots(slots);
    struct message first = rogue_request(&s.blob, "r", 1, falling), last = open_request(1, slots, ROGUE_SLOTS);
    first.request.span_count = COUNT(falling);
    first.request.more = last.request.rest = true;
    rogue_say(&s.rogue, &first);
    rogue_say(&s.rogue, &last);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.released_count == ROGUE_SLOTS);
    for (uint32_t i = 0; i < ROGUE_SLOTS; i++)
        ck_assert_uint_eq(1 + i, s.rogue.heard.released[i]);
    ck_assert_uint_eq(1, s.rogue.heard.end_count);
    ck_assert_int_eq(STRAIT_REASON_GEOMETRY, (int)s.rogue.heard.end.reason);
    scene_end(0);
}

TEST_LOOP(a_slot_may_be_open_twice, WHERES)
{
    scene_init(_i);
    scene_meet();
    const uint32_t slot = first_slots[_i] + 2, slots[] = {slot, slot, slot, slot};
    struct message request = open_request(1, slots, COUNT(slots));
    offer_early();
    rogue_say(&s.rogue, &request);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.chunk_count + s.rogue.heard.released_count == COUNT(slots));
    end_done();
    scene_end(1u << 2);
}

TEST_LOOP(an_open_grant_behind_the_arena_ends_the_connection, 2 * ROGUE_SLOTS * WHERES)
{
    static const uint32_t behind[] = {ROGUE_SLOTS, UINT32_MAX - FAR_FIRST};
    uint32_t slots[ROGUE_SLOTS];
    scene_init(_i % WHERES);
    scene_meet();
    some_slots(slots);
    slots[_i / WHERES % ROGUE_SLOTS] = first_slots[s.where] + behind[_i / WHERES / ROGUE_SLOTS];
    struct message request = open_request(1, slots, ROGUE_SLOTS);
    offer_early();
    rogue_say(&s.rogue, &request);
    ROGUE_WAIT(&s.rogue, s.rogue.went_down);
    ck_assert(!s.offer->decided); /* nobody who asked for it in order has come */
    strait_abort(s.offer->transfer);
    scene_end(0);
}

/* It is known by its leg, and what comes again over the same connection says nothing new. */
TEST_LOOP(a_request_that_comes_again_is_not_served_again, WHERES)
{
    uint32_t slots[ROGUE_SLOTS];
    scene_init(_i);
    scene_meet();
    some_slots(slots);
    struct message request = open_request(1, slots, 2);
    offer_early();
    rogue_say(&s.rogue, &request);
    rogue_say(&s.rogue, &request);
    request.request.grant = 3;
    rogue_say(&s.rogue, &request);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.chunk_count == 2);
    grant(9, 0, 1, 7);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.chunk_count == 3);
    ck_assert_uint_eq(9, s.rogue.heard.chunks[2].grant);
    ck_assert_uint_eq(1, s.rogue.heard.segments_count);
    end_done();
    scene_end(1u << 3 | 1u << 0 | 1u << 7);
}

int main(void)
{
    return node_main("node_rogue_sink");
}
