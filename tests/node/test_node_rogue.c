/* A peer that grants what no honest sink does, to a node whose pages are in a GPU's memory: into slots of that peer's
 * own GPU, and of its host's memory. Nothing is written but where a chunk may be, the request alone fails, and the node
 * goes on. */
#include "tests/node/rogue_sink.h"

/* ---- What is right ----------------------------------------------------------------------------------------------- */

/* Without it the tests below would show nothing. */
START_TEST(honest_grants_are_filled)
{
    struct scene s;
    struct strait_chunk_info info;
    scene_begin(&s, (enum where)_i);
    for (uint32_t i = 0; i < 4; i++)
        grant(&s, 1 + i, 8 * i, 8, 2 * i);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.chunk_count == 4);
    for (uint32_t i = 0; i < 4; i++) {
        const struct chunk_header *chunk = &s.rogue.heard.chunks[i];
        const uint8_t *slot = _i == FAR ? s.rogue.far + (size_t)(chunk->slot - FAR_FIRST) * FAR_SLOT_BYTES
                                        : (uint8_t *)s.rogue.arena.base + (size_t)chunk->slot * ROGUE_SLOT_BYTES;
        ck_assert_uint_eq(first_slots[_i] + 2 * (chunk->grant - 1), chunk->slot);
        ck_assert_int_eq(STRAIT_OK, strait_chunk_info(slot, s.rogue.heard.chunk_sizes[i], &info));
        ck_assert_uint_eq(8, info.page_count);
    }
    end_done(&s);
    scene_end(&s, 0x55);
}
END_TEST

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

START_TEST(a_bad_grant_fails_its_request_alone)
{
    struct scene s;
    int which = _i / WHERES;
    scene_begin(&s, (enum where)(_i % WHERES));
    uint32_t right = bad[which].grants[1].id != 0 ? 2 : 0;
    for (uint32_t i = 0; i < COUNT(bad[which].grants) && bad[which].grants[i].id != 0; i++)
        grant(&s, bad[which].grants[i].id, bad[which].grants[i].first, bad[which].grants[i].count,
              bad[which].grants[i].slot);
    ROGUE_WAIT(&s.rogue, s.offer->decided);
    ends_failed(s.offer, bad[which].dropped ? STRAIT_REASON_PEER_DOWN : STRAIT_REASON_GEOMETRY);
    ROGUE_WAIT(&s.rogue, s.rogue.went_down == bad[which].dropped);
    if (!bad[which].dropped) {
        ROGUE_WAIT(&s.rogue, s.rogue.heard.end_count != 0);
        ck_assert_int_eq(STRAIT_REASON_GEOMETRY, (int)s.rogue.heard.end.reason);
    }
    scene_end(&s, right);
}
END_TEST

/* Who grants late, or to others, gets the slot back. */
START_TEST(grants_of_other_legs_and_epochs_are_released)
{
    struct scene s;
    scene_begin(&s, (enum where)_i);
    struct message others[] = {grant_of(&s, 11, 0, 1, 0), grant_of(&s, 12, 0, 1, 0), grant_of(&s, 13, 0, 1, 0)};
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
    grant(&s, 1, 0, 8, 3); /* its own are good as before */
    ROGUE_WAIT(&s.rogue, s.rogue.heard.chunk_count == 1);
    end_done(&s);
    scene_end(&s, 1u << 3);
}
END_TEST

/* Each is answered, by a chunk or by RELEASED: a slot is never lost. */
START_TEST(grants_beyond_the_window_are_released)
{
    enum { MANY = 60 };
    struct scene s;
    const struct rogue_heard *heard = &s.rogue.heard;
    scene_begin(&s, (enum where)_i);
    far_control()->stall_us[0] = 20000;
    for (uint32_t i = 0; i < MANY; i++)
        grant(&s, 1 + i, i, 1, i % ROGUE_SLOTS);
    ROGUE_WAIT(&s.rogue, heard->chunk_count + heard->released_count == MANY);
    ck_assert_uint_ge(heard->chunk_count, SOURCE_GRANTS);
    ck_assert_uint_gt(heard->released_count, 0);
    end_done(&s);
    scene_end(&s, (1u << ROGUE_SLOTS) - 1);
}
END_TEST

/* The slot is the sink's: what it makes of two chunks in one is its own affair. */
START_TEST(a_slot_may_be_granted_twice)
{
    struct scene s;
    scene_begin(&s, (enum where)_i);
    grant(&s, 1, 0, 8, 2);
    grant(&s, 2, 8, 8, 2);
    grant(&s, 3, 0, 8, 2); /* and units, too */
    grant(&s, 3, 0, 8, 5); /* but not under one number */
    grant(&s, 2, 0, 8, 5);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.chunk_count == 3);
    end_done(&s);
    scene_end(&s, 1u << 2);
}
END_TEST

START_TEST(grants_to_a_request_that_is_over_are_released)
{
    struct scene s;
    scene_begin(&s, (enum where)_i);
    strait_abort(s.offer->transfer);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.end_count == 1);
    grant(&s, 1, 0, 8, 0);
    grant(&s, 2, 0, UNITS, 0);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.released_count == 2);
    ck_assert_uint_eq(0, s.rogue.heard.chunk_count);
    scene_end(&s, 0);
}
END_TEST

/* The sink has said that it needs no more, while a chunk of the pages is still being encoded. */
START_TEST(done_waits_until_nothing_reads_the_pages)
{
    enum { STALL = 300 };
    struct scene s;
    scene_begin(&s, (enum where)_i);
    far_control()->stall_us[0] = STALL * 1000;
    const uint64_t began = uv_hrtime();
    grant(&s, 1, 0, 8, 0);
    ROGUE_WAIT(&s.rogue, far_control()->stall_us[0] == 0);
    end_done(&s);
    ck_assert(s.offer->drained);
    ck_assert_uint_ge(s.offer->decided_at - began, STALL * 1000000ull);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.released_count == 1);
    scene_end(&s, 1u << 0);
}
END_TEST

/* ---- Arenas that are not as they are said to be ------------------------------------------------------------------ */

/* One slot of all memory: a chunk that fills it is larger than what this node's GPU codes in. */
START_TEST(slots_larger_than_ours_are_filled_to_our_size)
{
    struct scene s;
    scene_init(&s, NEAR);
    s.rogue.slot_bytes = ROGUE_SLOTS * ROGUE_SLOT_BYTES;
    s.rogue.slot_count = 1;
    ck_assert_uint_gt(s.rogue.slot_bytes, s.pair.a->options.chunk_bytes);
    scene_meet(&s);
    scene_offer(&s);
    grant(&s, 1, 0, _i == 0 ? 32 : UNITS - PAGES, 0);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.chunk_count == 1 || s.offer->decided);
    if (_i == 0)
        end_done(&s);
    else
        ends_failed(s.offer, STRAIT_REASON_GEOMETRY);
    scene_end(&s, _i == 0 ? 0x7 : 0); /* 128 KiB, and what is told about them */
}
END_TEST

START_TEST(an_arena_smaller_than_its_slots_is_not_taken)
{
    struct scene s;
    scene_init(&s, NEAR);
    if (_i == 0)
        s.rogue.slot_count++;
    else
        s.rogue.slot_bytes += 4096;
    double before = stat_of(s.pair.source, "counters.peer_errors");
    ROGUE_WAIT(&s.rogue, (rogue_dial(&s.rogue, s.pair.a), stat_of(s.pair.source, "counters.peer_errors") > before));
    scene_end(&s, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("node_rogue");
    TCase *tcase = node_case(suite, "grants");
    tcase_add_loop_test(tcase, honest_grants_are_filled, 0, WHERES);
    tcase_add_loop_test(tcase, a_bad_grant_fails_its_request_alone, 0, WHERES * COUNT(bad));
    tcase_add_loop_test(tcase, grants_of_other_legs_and_epochs_are_released, 0, WHERES);
    tcase_add_loop_test(tcase, grants_beyond_the_window_are_released, 0, WHERES);
    tcase_add_loop_test(tcase, a_slot_may_be_granted_twice, 0, WHERES);
    tcase_add_loop_test(tcase, grants_to_a_request_that_is_over_are_released, 0, WHERES);
    tcase_add_loop_test(tcase, done_waits_until_nothing_reads_the_pages, 0, WHERES);
    tcase = node_case(suite, "arenas");
    tcase_add_loop_test(tcase, slots_larger_than_ours_are_filled_to_our_size, 0, 2);
    tcase_add_loop_test(tcase, an_arena_smaller_than_its_slots_is_not_taken, 0, 2);
    return node_main(suite);
}
