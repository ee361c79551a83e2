/* A peer that brings open grants with its requests, as no honest sink does too, to a node whose pages are in a GPU's
 * memory: each is used at once, or comes back, or ends the connection. */
#include "tests/node/rogue_sink.h"

/* A request for all pages, with open grants from `grant` on. */
static struct message open_request(const struct scene *s, uint64_t grant, const uint32_t *slots, uint32_t count)
{
    struct message request = rogue_request(&s->blob, "r", 1, &all_pages);
    request.request.grant = grant;
    request.request.slots = slots;
    request.request.slot_count = count;
    return request;
}

static void offer_all(struct scene *s)
{
    s->offer = flow_offer(s->source, (struct strait_offer_params){KEY("r"), LISTS({.count = PAGES}), .last = true});
    pump_for(20);
}

/* Slots in an order of their own. */
static void some_slots(const struct scene *s, uint32_t slots[ROGUE_SLOTS])
{
    for (uint32_t i = 0; i < ROGUE_SLOTS; i++)
        slots[i] = first_slots[s->where] + (5 * i + 3) % ROGUE_SLOTS;
}

/* Requires a chunk of these units for the grant. */
static void check_chunk(const struct scene *s, const struct chunk_header *chunk, size_t size, uint32_t units)
{
    struct strait_chunk_info info;
    size_t slot_bytes = s->where == FAR ? s->rogue.far_slot_bytes : ROGUE_SLOT_BYTES;
    const uint8_t *base = s->where == FAR ? s->rogue.far : s->rogue.arena.base;
    const uint8_t *slot = base + (chunk->slot - first_slots[s->where]) * slot_bytes;
    ck_assert_uint_le(size, slot_bytes);
    ck_assert_int_eq(STRAIT_OK, strait_chunk_info(slot, size, &info));
    ck_assert_uint_eq(units, info.page_count);
}

/* Chunks came for the grants that were named, each with the units that were named for it; returns their slots. */
static uint32_t check_chunks(const struct scene *s, uint64_t grant, const uint32_t *slots)
{
    const struct rogue_heard *heard = &s->rogue.heard;
    uint32_t mask = 0;
    ck_assert_uint_eq(heard->granted_count, heard->chunk_count);
    for (uint32_t i = 0; i < heard->chunk_count; i++) {
        const uint64_t which = heard->chunks[i].grant - grant;
        ck_assert_uint_lt(which, heard->granted_count);
        ck_assert_uint_eq(slots[which], heard->chunks[i].slot);
        check_chunk(s, &heard->chunks[i], heard->chunk_sizes[i], heard->granted[which]);
        mask |= 1u << (heard->chunks[i].slot - first_slots[s->where]);
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
START_TEST(open_grants_are_used_at_once_as_far_as_needed)
{
    struct scene s;
    uint32_t slots[ROGUE_SLOTS], units = 0;
    const struct rogue_heard *heard = &s.rogue.heard;
    scene_init(&s, opened[_i].where);
    s.rogue.far_slot_bytes = opened[_i].far_slot_bytes;
    scene_meet(&s);
    some_slots(&s, slots);
    struct message request = open_request(&s, opened[_i].first, slots, ROGUE_SLOTS);
    offer_all(&s);
    far_control()->stall_us[0] = 20000;
    rogue_say(&s.rogue, &request);
    ROGUE_WAIT(&s.rogue, heard->segments_count != 0);
    ck_assert_uint_eq(0, heard->chunk_count);
    ck_assert_uint_eq(opened[_i].used, heard->granted_count);
    ROGUE_WAIT(&s.rogue, heard->chunk_count + heard->released_count == ROGUE_SLOTS);
    const uint32_t mask = check_chunks(&s, opened[_i].first, slots);
    for (uint32_t i = 0; i < heard->granted_count; i++)
        units += heard->granted[i];
    ck_assert(opened[_i].all ? units == UNITS : units < UNITS);
    for (uint32_t i = 0; i < heard->released_count; i++)
        ck_assert_uint_eq(opened[_i].first + heard->granted_count + i, heard->released[i]);
    end_done(&s);
    scene_end(&s, mask);
}
END_TEST

START_TEST(open_grants_that_come_too_soon_or_in_vain_come_back)
{
    struct scene s;
    uint32_t slots[ROGUE_SLOTS];
    scene_init(&s, (enum where)(_i % WHERES));
    scene_meet(&s);
    some_slots(&s, slots);
    struct message request = open_request(&s, 1, slots, ROGUE_SLOTS);
    if (_i / WHERES == 0) { /* no offer */
        rogue_say(&s.rogue, &request);
    } else {
        offer_all(&s);
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
    scene_end(&s, 0);
}
END_TEST

/* The first part is refused already when the last one comes, which brings the grants. */
START_TEST(open_grants_of_a_request_that_was_refused_half_way_come_back)
{
    static const struct wire_span falling[] = {{.first = 1, .count = 1}, {.count = 1}};
    struct scene s;
    uint32_t slots[ROGUE_SLOTS];
    scene_init(&s, (enum where)_i);
    scene_meet(&s);
    some_slots(&s, slots);
    struct message first = rogue_request(&s.blob, "r", 1, falling), last = open_request(&s, 1, slots, ROGUE_SLOTS);
    first.request.span_count = COUNT(falling);
    first.request.more = last.request.rest = true;
    rogue_say(&s.rogue, &first);
    rogue_say(&s.rogue, &last);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.released_count == ROGUE_SLOTS);
    for (uint32_t i = 0; i < ROGUE_SLOTS; i++)
        ck_assert_uint_eq(1 + i, s.rogue.heard.released[i]);
    ck_assert_uint_eq(1, s.rogue.heard.end_count);
    ck_assert_int_eq(STRAIT_REASON_GEOMETRY, (int)s.rogue.heard.end.reason);
    scene_end(&s, 0);
}
END_TEST

START_TEST(a_slot_may_be_open_twice)
{
    struct scene s;
    scene_init(&s, (enum where)_i);
    scene_meet(&s);
    const uint32_t slot = first_slots[_i] + 2, slots[] = {slot, slot, slot, slot};
    struct message request = open_request(&s, 1, slots, COUNT(slots));
    offer_all(&s);
    rogue_say(&s.rogue, &request);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.chunk_count + s.rogue.heard.released_count == COUNT(slots));
    end_done(&s);
    scene_end(&s, 1u << 2);
}
END_TEST

START_TEST(an_open_grant_behind_the_arena_ends_the_connection)
{
    static const uint32_t behind[] = {ROGUE_SLOTS, UINT32_MAX - FAR_FIRST};
    struct scene s;
    uint32_t slots[ROGUE_SLOTS];
    scene_init(&s, (enum where)(_i % WHERES));
    scene_meet(&s);
    some_slots(&s, slots);
    slots[_i / WHERES % ROGUE_SLOTS] = first_slots[s.where] + behind[_i / WHERES / ROGUE_SLOTS];
    struct message request = open_request(&s, 1, slots, ROGUE_SLOTS);
    offer_all(&s);
    rogue_say(&s.rogue, &request);
    ROGUE_WAIT(&s.rogue, s.rogue.went_down);
    ck_assert(!s.offer->decided); /* nobody who asked for it in order has come */
    strait_abort(s.offer->transfer);
    scene_end(&s, 0);
}
END_TEST

/* It is known by its leg, and what comes again over the same connection says nothing new. */
START_TEST(a_request_that_comes_again_is_not_served_again)
{
    struct scene s;
    uint32_t slots[ROGUE_SLOTS];
    scene_init(&s, (enum where)_i);
    scene_meet(&s);
    some_slots(&s, slots);
    struct message request = open_request(&s, 1, slots, 2);
    offer_all(&s);
    rogue_say(&s.rogue, &request);
    rogue_say(&s.rogue, &request);
    request.request.grant = 3;
    rogue_say(&s.rogue, &request);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.chunk_count == 2);
    grant(&s, 9, 0, 1, 7);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.chunk_count == 3);
    ck_assert_uint_eq(9, s.rogue.heard.chunks[2].grant);
    ck_assert_uint_eq(1, s.rogue.heard.segments_count);
    end_done(&s);
    scene_end(&s, 1u << 3 | 1u << 0 | 1u << 7);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("node_rogue_request");
    TCase *tcase = node_case(suite, "open grants");
    tcase_add_loop_test(tcase, open_grants_are_used_at_once_as_far_as_needed, 0, COUNT(opened));
    tcase_add_loop_test(tcase, open_grants_that_come_too_soon_or_in_vain_come_back, 0, 2 * WHERES);
    tcase_add_loop_test(tcase, open_grants_of_a_request_that_was_refused_half_way_come_back, 0, WHERES);
    tcase_add_loop_test(tcase, a_slot_may_be_open_twice, 0, WHERES);
    tcase_add_loop_test(tcase, an_open_grant_behind_the_arena_ends_the_connection, 0, 2 * ROGUE_SLOTS * WHERES);
    tcase_add_loop_test(tcase, a_request_that_comes_again_is_not_served_again, 0, WHERES);
    return node_main(suite);
}
