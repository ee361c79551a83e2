/* The sink's half of a leg, rule by rule, and under events of any kind in any order. How the halves work together is
 * what test_model.c explores. */
#include "tests/protocol/leg_harness.h"

static struct sink_leg sink;

/* ---- The sink ---------------------------------------------------------------------------------------------------- */

static bool at_sink(struct leg_event event)
{
    return sink_step(&sink, &event, &actions);
}

static bool segments(uint32_t before, uint32_t count, bool last)
{
    return at_sink((struct leg_event){.type = SINK_SEGMENTS, .before = before, .count = count, .last = last});
}

static void grant(uint32_t slot, uint32_t count)
{
    ck_assert(at_sink((struct leg_event){.type = SINK_GRANT, .slot = slot, .count = count}));
}

static void on_grant(enum leg_event_type type, uint64_t id, enum strait_reason reason)
{
    ck_assert(at_sink((struct leg_event){.type = type, .grant = id, .reason = reason}));
}

/* A bound sink with `ready` units. */
static void bound_sink(uint32_t window, uint32_t ready, bool last)
{
    sink_init(&sink, window);
    at_sink((struct leg_event){.type = SINK_START});
    did(LEG_SEND_REQUEST);
    ck_assert(segments(0, ready, last));
}

/* With a grant 1 of slot 7 in this state. */
static void sink_with(enum grant_state state)
{
    bound_sink(2, 4, true);
    grant(7, 4);
    if (state == GRANT_REVOKING)
        on_grant(SINK_RECLAIM, 0, STRAIT_REASON_NONE);
    if (state == GRANT_ARRIVING || state == GRANT_DECODING)
        on_grant(SINK_ARRIVING, 1, STRAIT_REASON_NONE);
    if (state == GRANT_DECODING)
        on_grant(SINK_ARRIVED, 1, STRAIT_REASON_NONE);
    ck_assert_uint_eq(sink.grants[0].state, state);
}

static void expect_wanted(uint32_t wanted_first, uint32_t wanted_count)
{
    uint32_t range_first = 0, count = 0;
    ck_assert(sink_wants(&sink, &range_first, &count) == (wanted_count > 0));
    ck_assert_uint_eq(count, wanted_count);
    ck_assert_uint_eq(range_first, wanted_first);
}

START_TEST(a_transfer_seen_by_its_sink)
{
    bound_sink(1, 2, false);
    did(LEG_STATE);
    ck_assert_int_eq((int)actions.list[0].state, STRAIT_READY);
    expect_wanted(0, 2);
    grant(5, 2);
    did(LEG_STATE, LEG_SEND_GRANT);
    const struct leg_grant expected = {.id = 1, .count = 2, .slot = 5, .state = GRANT_GIVEN};
    ck_assert_mem_eq(&actions.list[1].grant, &expected, sizeof(expected));
    on_grant(SINK_ARRIVING, 1, STRAIT_REASON_NONE);
    did(LEG_ACCEPT);
    on_grant(SINK_ARRIVED, 1, STRAIT_REASON_NONE);
    did(LEG_DECODE);
    on_grant(SINK_DECODED, 1, STRAIT_REASON_NONE);
    did(LEG_FREE_SLOT);
    at_sink((struct leg_event){.type = SINK_FINISH}); /* not yet */
    did_nothing();
    ck_assert(segments(2, 0, true));
    did(LEG_COMPLETE);
    at_sink((struct leg_event){.type = SINK_FINISH});
    did(LEG_VERDICT, LEG_SEND_END, LEG_DRAINED, LEG_CLOSED);
    ck_assert_int_eq((int)actions.list[1].reason, STRAIT_REASON_NONE);
    ck_assert_uint_eq(sink.state, STRAIT_DONE);
}
END_TEST

START_TEST(no_units_are_complete_with_the_last)
{
    bound_sink(1, 0, true);
    did(LEG_STATE, LEG_COMPLETE);
    expect_wanted(0, 0);
}
END_TEST

START_TEST(a_request_is_sent_again_while_not_bound)
{
    sink_init(&sink, 1);
    at_sink((struct leg_event){.type = SINK_START});
    at_sink((struct leg_event){.type = SINK_QUIET}); /* the link it went over */
    did_nothing();
    at_sink((struct leg_event){.type = SINK_START});
    did(LEG_SEND_REQUEST);
    ck_assert(segments(0, 1, true));
    at_sink((struct leg_event){.type = SINK_START});
    did_nothing();
    expect_wanted(0, 1);
}
END_TEST

/* ---- Open grants ------------------------------------------------------------------------------------------------- */

/* A request that brings these slots. */
static void start(uint32_t opens, uint32_t first_slot)
{
    struct leg_event event = {.type = SINK_START, .opens = opens};
    for (uint32_t i = 0; i < opens; i++)
        event.slots[i] = first_slot + i;
    ck_assert(at_sink(event));
}

/* With open grants 1, 2, ... of slots 3, 4, ... */
static void open_sink(uint32_t opens)
{
    sink_init(&sink, LEG_GRANTS);
    start(opens, 3);
    did(LEG_SEND_REQUEST);
    ck_assert_uint_eq(1, actions.list[0].grant.id);
    ck_assert_uint_eq(opens, actions.list[0].count);
    for (uint32_t i = 0; i < opens; i++) {
        const struct leg_grant expected = {.id = 1 + i, .slot = 3 + i, .state = GRANT_OPEN};
        ck_assert_mem_eq(&sink.grants[i], &expected, sizeof(expected));
    }
}

/* Two units are ready; `units` of them are for grant 1. */
static bool opened(uint32_t units)
{
    return at_sink((struct leg_event){
        .type = SINK_SEGMENTS, .grant = units > 0, .opens = units > 0, .units = {units}, .count = 2, .last = true});
}

/* Six units are ready; these are for grants from `grant` on. */
static bool named(uint64_t grant, uint32_t opens, uint32_t a, uint32_t b, uint32_t c)
{
    return at_sink((struct leg_event){
        .type = SINK_SEGMENTS, .grant = grant, .opens = opens, .units = {a, b, c}, .count = 6, .last = true});
}

static void arrive(uint64_t id)
{
    on_grant(SINK_ARRIVING, id, STRAIT_REASON_NONE);
    on_grant(SINK_ARRIVED, id, STRAIT_REASON_NONE);
}

static void land_and_finish(void)
{
    on_grant(SINK_DECODED, 1, STRAIT_REASON_NONE);
    did(LEG_FREE_SLOT, LEG_COMPLETE);
    at_sink((struct leg_event){.type = SINK_FINISH});
    did(LEG_VERDICT, LEG_SEND_END, LEG_DRAINED, LEG_CLOSED);
}

START_TEST(an_open_grant_saves_a_round_trip)
{
    open_sink(1);
    ck_assert(opened(2));
    did(LEG_STATE, LEG_STATE);
    expect_wanted(2, 0);
    on_grant(SINK_ARRIVING, 1, STRAIT_REASON_NONE);
    did(LEG_ACCEPT);
    on_grant(SINK_ARRIVED, 1, STRAIT_REASON_NONE);
    did(LEG_DECODE);
    ck_assert_uint_eq(first(LEG_DECODE)->grant.count, 2);
    land_and_finish();
}
END_TEST

START_TEST(a_chunk_may_overtake_its_segments)
{
    open_sink(1);
    on_grant(SINK_ARRIVING, 1, STRAIT_REASON_NONE);
    did(LEG_ACCEPT);
    if (_i == 0) {
        on_grant(SINK_ARRIVED, 1, STRAIT_REASON_NONE);
        did_nothing();
    }
    ck_assert(opened(2));
    if (_i == 1)
        on_grant(SINK_ARRIVED, 1, STRAIT_REASON_NONE);
    ck_assert_uint_eq(first(LEG_DECODE)->grant.count, 2);
    land_and_finish();
}
END_TEST

START_TEST(an_open_grant_that_is_not_used_is_free_again)
{
    open_sink(1);
    ck_assert(opened(0));
    on_grant(SINK_RELEASED, 1, STRAIT_REASON_NONE);
    did(LEG_FREE_SLOT);
    expect_wanted(0, 2);
    open_sink(1);
    on_grant(SINK_RELEASED, 1, STRAIT_REASON_NONE); /* overtakes the segments */
    ck_assert(opened(2));
    expect_wanted(0, 2);
}
END_TEST

START_TEST(what_a_used_open_grant_leaves_is_granted)
{
    open_sink(1);
    ck_assert(opened(1));
    expect_wanted(1, 1);
    on_grant(SINK_RELEASED, 1, STRAIT_REASON_NONE);
    expect_wanted(0, 1);
}
END_TEST

START_TEST(an_open_grant_is_never_asked_back)
{
    open_sink(1);
    ck_assert_uint_eq(sink_unused(&sink), 0);
    at_sink((struct leg_event){.type = SINK_RECLAIM});
    did_nothing();
}
END_TEST

START_TEST(open_grants_are_named_in_order)
{
    open_sink(4);
    arrive(3); /* early */
    did_nothing();
    ck_assert(named(1, 3, 2, 1, 3));
    did(LEG_STATE, LEG_STATE, LEG_DECODE);
    ck_assert_uint_eq(3, actions.list[2].grant.first);
    ck_assert_uint_eq(3, actions.list[2].grant.count);
    expect_wanted(6, 0);
    on_grant(SINK_RELEASED, 4, STRAIT_REASON_NONE); /* the one that was not needed */
    did(LEG_FREE_SLOT);
    arrive(2);
    ck_assert_uint_eq(2, first(LEG_DECODE)->grant.first);
    ck_assert_uint_eq(1, first(LEG_DECODE)->grant.count);
    arrive(1);
    ck_assert_uint_eq(0, first(LEG_DECODE)->grant.first);
    on_grant(SINK_DECODED, 2, STRAIT_REASON_NONE);
    on_grant(SINK_DECODED, 3, STRAIT_REASON_NONE);
    land_and_finish();
}
END_TEST

START_TEST(what_open_grants_leave_is_granted)
{
    open_sink(2);
    ck_assert(named(1, 2, 2, 1, 0));
    expect_wanted(3, 3);
    on_grant(SINK_RELEASED, 1, STRAIT_REASON_NONE);
    expect_wanted(0, 2);
    grant(3, 2);
    expect_wanted(3, 3);
}
END_TEST

/* One was given back before it was heard that it is used: its source has failed, but that is not known yet. */
START_TEST(units_of_an_open_grant_that_came_back_are_granted)
{
    open_sink(3);
    on_grant(SINK_RELEASED, 2, STRAIT_REASON_NONE);
    did(LEG_FREE_SLOT);
    ck_assert(named(1, 3, 2, 1, 3));
    expect_wanted(2, 1);
    ck_assert_uint_eq(sink.granted, 6);
}
END_TEST

START_TEST(a_false_source_sends_for_no_units)
{
    open_sink(1);
    ck_assert(!opened(3));
    arrive(1);
    ck_assert(!opened(0));
    open_sink(1);
    ck_assert(opened(0));
    arrive(1);
    did(LEG_FREE_SLOT, LEG_VERDICT, LEG_SEND_END, LEG_DRAINED, LEG_CLOSED);
    ck_assert_uint_eq(sink.reason, STRAIT_REASON_GEOMETRY);
}
END_TEST

START_TEST(a_false_source_names_what_cannot_be)
{
    open_sink(3);
    const struct sink_leg before = sink;
    ck_assert(!named(1, 3, 2, 0, 1)); /* none */
    ck_assert(!named(1, 3, 2, 2, 3)); /* more than are ready */
    ck_assert(!named(1, 3, 2, UINT32_MAX, UINT32_MAX));
    ck_assert(!named(1, LEG_GRANTS + 1, 1, 1, 1));
    ck_assert_mem_eq(&sink, &before, sizeof(sink));
    arrive(2);
    ck_assert(!named(1, 1, 6, 0, 0)); /* others than those whose chunks came */
    ck_assert(!named(3, 1, 6, 0, 0));
    ck_assert(!named(0, 0, 0, 0, 0));
}
END_TEST

/* Its units are granted like all others, and chunks for what was never open are refused. */
START_TEST(a_false_source_names_what_was_not_open)
{
    static const uint64_t strange[] = {4, 3, 0, UINT64_MAX, UINT64_MAX - 1};
    open_sink(3);
    ck_assert(named(strange[_i], 3, 1, 2, 3));
    for (uint64_t id = 4; id < 7; id++) {
        on_grant(SINK_ARRIVING, id, STRAIT_REASON_NONE);
        did_nothing();
    }
    for (uint64_t id = 1; id <= 3; id++)
        on_grant(SINK_RELEASED, id, STRAIT_REASON_NONE);
    for (uint32_t given = 0, at, count; given < 6; given += count) { /* each unit once */
        ck_assert(sink_wants(&sink, &at, &count));
        ck_assert_uint_eq(given, at);
        grant(9, count);
        ck_assert_uint_eq(count, first(LEG_SEND_GRANT)->grant.count);
    }
    expect_wanted(6, 0);
}
END_TEST

/* The next link brings another grant; what arrives for the first one is of no use. */
START_TEST(an_open_grant_ends_with_its_link)
{
    static const enum grant_state after[] = {GRANT_NONE, GRANT_VOID, GRANT_NONE};
    open_sink(1);
    if (_i > 0)
        on_grant(SINK_ARRIVING, 1, STRAIT_REASON_NONE);
    if (_i > 1)
        on_grant(SINK_ARRIVED, 1, STRAIT_REASON_NONE);
    at_sink((struct leg_event){.type = SINK_QUIET});
    if (_i == 1)
        did_nothing();
    else
        did(LEG_FREE_SLOT);
    ck_assert_int_eq((int)sink.grants[0].state, (int)after[_i]);
    start(1, 2);
    did(LEG_SEND_REQUEST);
    ck_assert_uint_eq(actions.list[0].grant.id, 2);
    ck_assert(opened(2)); /* names the old one */
    expect_wanted(0, 2);
    on_grant(SINK_ARRIVED, 1, STRAIT_REASON_NONE);
    if (_i == 1)
        did(LEG_FREE_SLOT);
    else
        did_nothing();
    expect_wanted(0, 2);
}
END_TEST

START_TEST(slots_that_cannot_be_opened_are_free_again)
{
    open_sink(LEG_GRANTS - 1);
    start(3, 20);
    did(LEG_FREE_SLOT, LEG_FREE_SLOT, LEG_SEND_REQUEST);
    ck_assert_uint_eq(actions.list[0].grant.slot, 21);
    ck_assert_uint_eq(actions.list[1].grant.slot, 22);
    ck_assert_uint_eq(actions.list[2].grant.id, LEG_GRANTS); /* the new one */
    ck_assert_uint_eq(actions.list[2].count, 1);
    start(1, 20);
    did(LEG_FREE_SLOT, LEG_SEND_REQUEST);
    ck_assert_uint_eq(actions.list[1].grant.id, 0);
    ck_assert(opened(2));
    start(2, 20);
    did(LEG_FREE_SLOT, LEG_FREE_SLOT);
}
END_TEST

START_TEST(a_failed_sink_frees_what_came_early)
{
    open_sink(1);
    arrive(1);
    at_sink((struct leg_event){.type = SINK_FAIL, .reason = STRAIT_REASON_TIMEOUT});
    did(LEG_FREE_SLOT, LEG_VERDICT, LEG_SEND_END, LEG_DRAINED, LEG_CLOSED);
}
END_TEST

/* ---- Units, grants and ends -------------------------------------------------------------------------------------- */

START_TEST(units_out_of_order_are_not_counted)
{
    sink_init(&sink, 1);
    ck_assert(segments(0, 3, false)); /* nobody asked */
    ck_assert_uint_eq(sink.ready, 0);
    bound_sink(1, 3, false);
    static const uint32_t others[][2] = {{0, 3}, {0, 0}, {0, 5}, {2, 1}, {2, 5}, {4, 1}};
    for (int i = 0; i < COUNT(others); i++) {
        ck_assert(segments(others[i][0], others[i][1], true));
        did_nothing();
        ck_assert_uint_eq(sink.ready, 3);
    }
    ck_assert(segments(3, 2, false));
    ck_assert_uint_eq(sink.ready, 5);
}
END_TEST

START_TEST(a_false_source_is_told_by_its_units)
{
    bound_sink(1, 3, true);
    const struct sink_leg before = sink;
    ck_assert(!segments(3, 1, true)); /* after the last */
    ck_assert(!segments(2, UINT32_MAX - 1, false));
    ck_assert(!at_sink((struct leg_event){.type = SINK_END})); /* DONE is not the source's to say */
    ck_assert_mem_eq(&sink, &before, sizeof(sink));
    ck_assert(segments(3, 0, true));
    did_nothing();
}
END_TEST

START_TEST(grants_stay_within_the_window_and_the_units)
{
    bound_sink(2, 10, false);
    grant(0, 4);
    expect_wanted(4, 6);
    grant(1, 7); /* more than there is */
    did(LEG_FREE_SLOT);
    ck_assert_uint_eq(actions.list[0].grant.slot, 1);
    grant(1, 6);
    did(LEG_SEND_GRANT);
    ck_assert_uint_eq(actions.list[0].grant.id, 2);
    ck_assert_uint_eq(actions.list[0].grant.first, 4);
    expect_wanted(0, 0);
    ck_assert(segments(10, 5, true));
    expect_wanted(0, 0);
    grant(2, 5);
    did(LEG_FREE_SLOT);
}
END_TEST

START_TEST(the_window_is_within_its_limits)
{
    sink_init(&sink, 0);
    ck_assert_uint_eq(sink.window, 1);
    sink_init(&sink, 1000);
    ck_assert_uint_eq(sink.window, LEG_GRANTS);
}
END_TEST

START_TEST(what_comes_back_is_granted_first_and_in_order)
{
    bound_sink(4, 10, true);
    grant(0, 2);
    grant(1, 2);
    grant(2, 2);
    on_grant(SINK_RELEASED, 3, STRAIT_REASON_NONE);
    did(LEG_FREE_SLOT);
    on_grant(SINK_RELEASED, 1, STRAIT_REASON_NONE);
    on_grant(SINK_RELEASED, 1, STRAIT_REASON_NONE);
    did_nothing();
    expect_wanted(0, 2);
    grant(0, 1);
    expect_wanted(1, 1);
    grant(0, 1);
    expect_wanted(4, 2);
    grant(2, 2);
    ck_assert_uint_eq(first(LEG_SEND_GRANT)->grant.id, 6);
    on_grant(SINK_RELEASED, 2, STRAIT_REASON_NONE);
    grant(2, 2);
    on_grant(SINK_RELEASED, 6, STRAIT_REASON_NONE);
    expect_wanted(4, 2);
}
END_TEST

START_TEST(ranges_are_not_cut_into_more_pieces_than_can_be_remembered)
{
    bound_sink(LEG_GRANTS, 100, true);
    for (uint32_t i = 0; i < LEG_GRANTS; i++)
        grant(i, 4);
    for (uint64_t id = 1; id <= LEG_GRANTS; id++)
        on_grant(SINK_RELEASED, id, STRAIT_REASON_NONE);
    ck_assert_uint_eq(sink.returned_count, LEG_GRANTS);
    grant(0, 3);
    did(LEG_FREE_SLOT);
    grant(0, 4);
    did(LEG_SEND_GRANT);
    on_grant(SINK_ARRIVING, 9, STRAIT_REASON_NONE);
    on_grant(SINK_ARRIVED, 9, STRAIT_REASON_NONE);
    on_grant(SINK_DECODED, 9, STRAIT_REASON_NONE);
    grant(0, 3); /* now there is room */
    did(LEG_SEND_GRANT);
    expect_wanted(7, 1);
}
END_TEST

START_TEST(unused_grants_are_asked_back_once)
{
    sink_with(GRANT_GIVEN);
    ck_assert_uint_eq(sink_unused(&sink), 1);
    on_grant(SINK_RECLAIM, 0, STRAIT_REASON_NONE);
    did(LEG_SEND_REVOKE);
    ck_assert_uint_eq(actions.list[0].grant.id, 1);
    ck_assert_uint_eq(sink_unused(&sink), 0);
    on_grant(SINK_RECLAIM, 0, STRAIT_REASON_NONE);
    did_nothing();
    on_grant(SINK_ARRIVING, 1, STRAIT_REASON_NONE); /* used after all */
    did(LEG_ACCEPT);
    on_grant(SINK_RELEASED, 1, STRAIT_REASON_NONE);
    did_nothing();
}
END_TEST

START_TEST(chunks_without_a_grant_are_refused)
{
    sink_with((enum grant_state)_i);
    on_grant(SINK_ARRIVING, 2, STRAIT_REASON_NONE);
    did_nothing();
    on_grant(SINK_ARRIVING, 0, STRAIT_REASON_NONE);
    did_nothing();
    on_grant(SINK_ARRIVING, 1, STRAIT_REASON_NONE);
    if (_i == GRANT_ARRIVING || _i == GRANT_DECODING)
        did_nothing();
    else
        did(LEG_ACCEPT);
}
END_TEST

START_TEST(a_bad_chunk_fails_its_leg)
{
    sink_with((enum grant_state)_i);
    on_grant(_i == GRANT_ARRIVING ? SINK_ARRIVED : SINK_DECODED, 1, STRAIT_REASON_INTEGRITY);
    did(LEG_FREE_SLOT, LEG_VERDICT, LEG_SEND_END, LEG_DRAINED, LEG_CLOSED);
    ck_assert_int_eq((int)actions.list[1].reason, STRAIT_REASON_INTEGRITY);
    ck_assert_uint_eq(sink.reason, STRAIT_REASON_INTEGRITY);
}
END_TEST

START_TEST(a_failed_sink_waits_for_its_grants)
{
    sink_with((enum grant_state)_i);
    at_sink((struct leg_event){.type = SINK_FAIL, .reason = STRAIT_REASON_TIMEOUT});
    if (_i == GRANT_DECODING)
        did(LEG_VERDICT, LEG_SEND_END);
    else
        did(LEG_VERDICT, LEG_SEND_END, LEG_DRAINED);
    expect_wanted(0, 0);
    at_sink((struct leg_event){.type = SINK_FAIL, .reason = STRAIT_REASON_ABORTED});
    did_nothing();
    at_sink((struct leg_event){.type = SINK_END, .reason = STRAIT_REASON_PEER_ABORT});
    did_nothing();
    ck_assert_uint_eq(sink.reason, STRAIT_REASON_TIMEOUT);
    if (_i == GRANT_GIVEN) {
        on_grant(SINK_RELEASED, 1, STRAIT_REASON_NONE);
        did(LEG_FREE_SLOT, LEG_CLOSED);
    } else if (_i == GRANT_REVOKING) {
        on_grant(SINK_ARRIVING, 1, STRAIT_REASON_NONE); /* refused */
        did(LEG_FREE_SLOT, LEG_CLOSED);
    } else if (_i == GRANT_ARRIVING) {
        on_grant(SINK_ARRIVED, 1, STRAIT_REASON_NONE);
        did(LEG_FREE_SLOT, LEG_CLOSED);
    } else {
        on_grant(SINK_DECODED, 1, STRAIT_REASON_CODEC); /* nobody cares any more */
        did(LEG_FREE_SLOT, LEG_DRAINED, LEG_CLOSED);
    }
}
END_TEST

START_TEST(a_closed_link_gives_back_what_was_not_used)
{
    sink_with((enum grant_state)_i);
    at_sink((struct leg_event){.type = SINK_QUIET});
    bool unused = _i == GRANT_GIVEN || _i == GRANT_REVOKING;
    if (unused)
        did(LEG_FREE_SLOT);
    else
        did_nothing();
    expect_wanted(0, 0); /* nobody would answer */
    at_sink((struct leg_event){.type = SINK_FAIL, .reason = STRAIT_REASON_PEER_DOWN});
    ck_assert(sink.closed == unused);
}
END_TEST

START_TEST(a_complete_leg_needs_its_source_no_more)
{
    bound_sink(1, 0, true);
    at_sink((struct leg_event){.type = SINK_END, .reason = STRAIT_REASON_LEASE_EXPIRED});
    did_nothing();
    at_sink((struct leg_event){.type = SINK_QUIET});
    at_sink((struct leg_event){.type = SINK_FINISH});
    did(LEG_VERDICT, LEG_SEND_END, LEG_DRAINED, LEG_CLOSED);
}
END_TEST

START_TEST(what_the_source_says_is_not_said_back)
{
    bound_sink(1, 1, false);
    at_sink((struct leg_event){.type = SINK_END, .reason = STRAIT_REASON_PEER_ABORT});
    did(LEG_VERDICT, LEG_DRAINED, LEG_CLOSED);
    sink_init(&sink, 1); /* nor is one that was never asked told of the end */
    at_sink((struct leg_event){.type = SINK_FAIL});
    did(LEG_VERDICT, LEG_DRAINED, LEG_CLOSED);
    ck_assert_int_eq((int)actions.list[0].reason, STRAIT_REASON_LOCAL);
}
END_TEST

/* ---- Any event in any state -------------------------------------------------------------------------------------- */

static uint32_t units_elsewhere(void)
{
    uint32_t units = sink.landed + (sink.ready - sink.granted);
    for (uint32_t i = 0; i < LEG_GRANTS; i++)
        units += sink.grants[i].count + sink.returned[i].count;
    return units;
}

START_TEST(a_sink_keeps_its_books_whatever_happens)
{
    struct rng rng = rng_init(500 + (uint64_t)_i);
    for (int run = 0; run < 300 / STRIDE; run++) {
        struct ledger ledger = {.state = STRAIT_BOOTSTRAP};
        sink_init(&sink, 1 + rng_below(&rng, LEG_GRANTS));
        for (int step = 0; step < 300; step++) {
            struct leg_event event = random_event(&rng, SINK_START, SOURCE_BIND - 1);
            bool rare = event.type == SINK_FAIL || event.type == SINK_END || event.type == SINK_QUIET;
            if (rare && rng_below(&rng, 20) != 0)
                continue;
            if (event.type >= SINK_RELEASED && event.type <= SINK_DECODED)
                event.grant = some_grant(&rng, sink.grants, LEG_GRANTS, event.grant);
            event.before = rng_below(&rng, 5) ? sink.ready : event.first;
            if (event.type == SINK_SEGMENTS && rng_below(&rng, 4))
                event.grant = some_grant(&rng, sink.grants, LEG_GRANTS, event.grant);
            const struct sink_leg before = sink;
            ledger.slots += event.type == SINK_GRANT ? 1 : event.type == SINK_START ? (int)event.opens : 0;
            bool honest = at_sink(event);
            ck_assert(honest || memcmp(&before, &sink, sizeof(sink)) == 0);
            keep(&ledger);
            check_table(sink.grants, LEG_GRANTS, ledger.slots);
            ck_assert(ledger.verdict || units_elsewhere() == sink.ready);
            ck_assert(!before.closed || memcmp(&before, &sink, sizeof(sink)) == 0);
        }
        at_sink((struct leg_event){.type = SINK_FAIL, .reason = STRAIT_REASON_TIMEOUT});
        keep(&ledger);
        for (uint64_t id; (id = sink.grants[0].id) != 0;) {
            at_sink((struct leg_event){.type = SINK_RELEASED, .grant = id});
            keep(&ledger);
            at_sink((struct leg_event){.type = SINK_ARRIVED, .grant = id});
            keep(&ledger);
            at_sink((struct leg_event){.type = SINK_DECODED, .grant = id});
            keep(&ledger);
        }
        at_sink((struct leg_event){.type = SINK_QUIET});
        keep(&ledger);
        ck_assert(ledger.closed);
    }
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("sink");
    tcase_add_test(tcase, a_transfer_seen_by_its_sink);
    tcase_add_test(tcase, no_units_are_complete_with_the_last);
    tcase_add_test(tcase, a_request_is_sent_again_while_not_bound);
    tcase_add_test(tcase, an_open_grant_saves_a_round_trip);
    tcase_add_loop_test(tcase, a_chunk_may_overtake_its_segments, 0, 2);
    tcase_add_test(tcase, an_open_grant_that_is_not_used_is_free_again);
    tcase_add_test(tcase, what_a_used_open_grant_leaves_is_granted);
    tcase_add_test(tcase, an_open_grant_is_never_asked_back);
    tcase_add_test(tcase, a_false_source_sends_for_no_units);
    tcase_add_loop_test(tcase, an_open_grant_ends_with_its_link, 0, 3);
    tcase_add_test(tcase, open_grants_are_named_in_order);
    tcase_add_test(tcase, what_open_grants_leave_is_granted);
    tcase_add_test(tcase, units_of_an_open_grant_that_came_back_are_granted);
    tcase_add_test(tcase, a_false_source_names_what_cannot_be);
    tcase_add_loop_test(tcase, a_false_source_names_what_was_not_open, 0, 5);
    tcase_add_test(tcase, slots_that_cannot_be_opened_are_free_again);
    tcase_add_test(tcase, a_failed_sink_frees_what_came_early);
    tcase_add_test(tcase, units_out_of_order_are_not_counted);
    tcase_add_test(tcase, a_false_source_is_told_by_its_units);
    tcase_add_test(tcase, grants_stay_within_the_window_and_the_units);
    tcase_add_test(tcase, the_window_is_within_its_limits);
    tcase_add_test(tcase, what_comes_back_is_granted_first_and_in_order);
    tcase_add_test(tcase, ranges_are_not_cut_into_more_pieces_than_can_be_remembered);
    tcase_add_test(tcase, unused_grants_are_asked_back_once);
    tcase_add_loop_test(tcase, chunks_without_a_grant_are_refused, GRANT_GIVEN, GRANT_DECODING + 1);
    tcase_add_loop_test(tcase, a_bad_chunk_fails_its_leg, GRANT_ARRIVING, GRANT_DECODING + 1);
    tcase_add_loop_test(tcase, a_failed_sink_waits_for_its_grants, GRANT_GIVEN, GRANT_DECODING + 1);
    tcase_add_loop_test(tcase, a_closed_link_gives_back_what_was_not_used, GRANT_GIVEN, GRANT_DECODING + 1);
    tcase_add_test(tcase, a_complete_leg_needs_its_source_no_more);
    tcase_add_test(tcase, what_the_source_says_is_not_said_back);
    tcase_add_loop_test(tcase, a_sink_keeps_its_books_whatever_happens, 0, 4);
    return leg_main("sink_leg", tcase);
}
