/* The source's half of a leg, rule by rule, and under events of any kind in any order. How the halves work together is
 * what test_model.c explores. */
#include "tests/protocol/leg_harness.h"

static struct source_leg source;

/* ---- The source -------------------------------------------------------------------------------------------------- */

static bool at_source(struct leg_event event)
{
    return source_step(&source, &event, &actions);
}

static bool given(uint64_t id, uint32_t from, uint32_t count)
{
    return at_source((struct leg_event){.type = SOURCE_GRANT, .grant = id, .first = from, .count = count, .slot = 3});
}

static void job(enum leg_event_type type, uint64_t id, enum strait_reason reason)
{
    ck_assert(at_source((struct leg_event){.type = type, .grant = id, .reason = reason}));
}

static void bound_source(uint32_t ready, bool last)
{
    source_init(&source);
    ck_assert(at_source((struct leg_event){.type = SOURCE_BIND, .count = ready, .last = last}));
    did(LEG_STATE, LEG_SEND_SEGMENTS);
}

/* With a grant 1 in this state. */
static void source_with(enum grant_state state)
{
    bound_source(4, true);
    ck_assert(given(1, 0, 4));
    if (state != GRANT_QUEUED)
        at_source((struct leg_event){.type = SOURCE_ENCODE});
    if (state == GRANT_SENDING)
        job(SOURCE_ENCODED, 1, STRAIT_REASON_NONE);
    ck_assert_uint_eq(source.grants[0].state, state);
}

START_TEST(a_transfer_seen_by_its_source)
{
    bound_source(2, false);
    ck_assert(at_source((struct leg_event){.type = SOURCE_MORE, .count = 3, .last = true}));
    did(LEG_SEND_SEGMENTS);
    ck_assert_uint_eq(actions.list[0].first, 2);
    ck_assert_uint_eq(actions.list[0].count, 3);
    ck_assert(actions.list[0].last);
    ck_assert(!source_wants(&source));
    ck_assert(given(1, 1, 4));
    did(LEG_STATE);
    ck_assert(source_wants(&source));
    at_source((struct leg_event){.type = SOURCE_ENCODE});
    did(LEG_ENCODE);
    const struct leg_grant expected = {1, 1, 4, 3, GRANT_ENCODING};
    ck_assert_mem_eq(&actions.list[0].grant, &expected, sizeof(expected));
    at_source((struct leg_event){.type = SOURCE_ENCODE}); /* nothing is queued */
    did_nothing();
    job(SOURCE_ENCODED, 1, STRAIT_REASON_NONE);
    did(LEG_TRANSMIT);
    job(SOURCE_SENT, 1, STRAIT_REASON_NONE);
    did(LEG_FREE_SLOT);
    ck_assert(at_source((struct leg_event){.type = SOURCE_END}));
    did(LEG_VERDICT, LEG_DRAINED, LEG_CLOSED);
    ck_assert_uint_eq(source.state, STRAIT_DONE);
}
END_TEST

START_TEST(a_request_that_comes_again_gets_the_whole_answer)
{
    bound_source(2, false);
    ck_assert(at_source((struct leg_event){.type = SOURCE_MORE, .count = 3}));
    ck_assert(at_source((struct leg_event){.type = SOURCE_BIND, .count = 1}));
    did(LEG_SEND_SEGMENTS);
    ck_assert_uint_eq(actions.list[0].first, 0);
    ck_assert_uint_eq(actions.list[0].count, 5);
    at_source((struct leg_event){.type = SOURCE_FAIL, .reason = STRAIT_REASON_ABORTED});
    ck_assert(at_source((struct leg_event){.type = SOURCE_BIND, .count = 1}));
    did(LEG_SEND_END);
    ck_assert_int_eq((int)actions.list[0].reason, STRAIT_REASON_ABORTED);
}
END_TEST

START_TEST(nothing_follows_the_last)
{
    bound_source(2, true);
    ck_assert(at_source((struct leg_event){.type = SOURCE_MORE, .count = 3}));
    did_nothing();
    bound_source(2, false);
    ck_assert(at_source((struct leg_event){.type = SOURCE_MORE}));
    did_nothing();
    ck_assert(!at_source((struct leg_event){.type = SOURCE_MORE, .count = UINT32_MAX - 1}));
    ck_assert_uint_eq(source.ready, 2);
}
END_TEST

START_TEST(a_grant_beyond_what_is_ready_is_false)
{
    static const uint32_t ranges[][2] = {{0, 0}, {0, 6}, {5, 1}, {4, 2}, {6, 1}, {UINT32_MAX, 1}, {1, UINT32_MAX}};
    bound_source(5, true);
    ck_assert(!given(7, ranges[_i][0], ranges[_i][1]));
    did(LEG_SEND_RELEASED);
    ck_assert_uint_eq(actions.list[0].grant.id, 7);
    ck_assert_uint_eq(source.seen, 7);
    ck_assert(!source_wants(&source));
    ck_assert(!given(0, 0, 1));
    did_nothing();
}
END_TEST

START_TEST(a_grant_is_met_once)
{
    source_with((enum grant_state)_i);
    ck_assert(given(1, 0, 4));
    did_nothing();
    ck_assert(given(5, 0, 1));
    ck_assert(given(3, 0, 1)); /* overtaken: void */
    did(LEG_SEND_RELEASED);
    ck_assert_uint_eq(actions.list[0].grant.id, 3);
}
END_TEST

START_TEST(grants_may_come_before_the_last_chunks_are_known_to_be_sent)
{
    bound_source(100, true);
    for (uint64_t id = 1; id <= SOURCE_GRANTS; id++) {
        ck_assert(given(id, 0, 1));
        ck_assert_uint_eq(actions.count, id == 1);
        at_source((struct leg_event){.type = SOURCE_ENCODE});
        job(SOURCE_ENCODED, id, STRAIT_REASON_NONE);
    }
    ck_assert(given(SOURCE_GRANTS + 1, 0, 1)); /* no room: not used, no harm */
    did(LEG_SEND_RELEASED);
    job(SOURCE_SENT, 4, STRAIT_REASON_NONE);
    ck_assert(given(SOURCE_GRANTS + 2, 0, 1));
    did_nothing();
    ck_assert(source_wants(&source));
}
END_TEST

START_TEST(the_lowest_grant_is_encoded_first)
{
    bound_source(100, true);
    for (uint64_t id = 1; id <= 4; id++)
        ck_assert(given(id, 0, 1));
    at_source((struct leg_event){.type = SOURCE_ENCODE});
    ck_assert_uint_eq(first(LEG_ENCODE)->grant.id, 1);
    at_source((struct leg_event){.type = SOURCE_REVOKE, .grant = 2});
    did(LEG_SEND_RELEASED);
    at_source((struct leg_event){.type = SOURCE_ENCODE});
    ck_assert_uint_eq(first(LEG_ENCODE)->grant.id, 3);
}
END_TEST

START_TEST(an_open_grant_is_used_at_once_or_never)
{
    source_init(&source);
    struct leg_event event = {
        .type = SOURCE_BIND, .grant = 1, .opens = 1, .slots = {6}, .units = {(uint32_t)_i}, .count = 2, .last = true};
    ck_assert(at_source(event));
    if (_i == 0) {
        did(LEG_STATE, LEG_SEND_SEGMENTS, LEG_SEND_RELEASED);
        ck_assert_uint_eq(source.opened, 0);
        ck_assert(!source_wants(&source));
        return;
    }
    did(LEG_STATE, LEG_STATE, LEG_SEND_SEGMENTS);
    ck_assert(source_wants(&source));
    for (int again = 0; again < 2; again++) {
        ck_assert_uint_eq(source.opened, 1);
        ck_assert_uint_eq(source.opened_units[0], (uint32_t)_i);
        ck_assert_uint_eq(source.opened_units[1], 0);
        ck_assert(at_source(event)); /* doubled: the same answer */
        did(LEG_SEND_SEGMENTS);
    }
    event.grant = 2; /* over another link */
    ck_assert(at_source(event));
    did(LEG_SEND_SEGMENTS, LEG_SEND_RELEASED);
    at_source((struct leg_event){.type = SOURCE_ENCODE});
    ck_assert_uint_eq(first(LEG_ENCODE)->grant.count, (uint32_t)_i);
    ck_assert_uint_eq(first(LEG_ENCODE)->grant.slot, 6);
}
END_TEST

/* The first chunks are all to be encoded when nothing but the REQUEST has come. */
START_TEST(open_grants_are_used_in_order_as_far_as_needed)
{
    source_init(&source);
    const struct leg_event event = {.type = SOURCE_BIND,
                                    .grant = 5,
                                    .opens = 5,
                                    .slots = {9, 2, 7, 1, 3},
                                    .units = {2, 1, 4},
                                    .count = 7,
                                    .last = true};
    ck_assert(at_source(event));
    did(LEG_STATE, LEG_STATE, LEG_SEND_SEGMENTS, LEG_SEND_RELEASED, LEG_SEND_RELEASED);
    ck_assert_uint_eq(actions.list[3].grant.id, 8);
    ck_assert_uint_eq(actions.list[4].grant.id, 9);
    ck_assert_uint_eq(source.opened, 5);
    ck_assert_mem_eq(source.opened_units, event.units, sizeof(event.units));
    static const struct leg_grant expected[] = {
        {5, 0, 2, 9, GRANT_ENCODING}, {6, 2, 1, 2, GRANT_ENCODING}, {7, 3, 4, 7, GRANT_ENCODING}};
    for (int i = 0; i < COUNT(expected); i++) {
        at_source((struct leg_event){.type = SOURCE_ENCODE});
        ck_assert_mem_eq(&first(LEG_ENCODE)->grant, &expected[i], sizeof(expected[i]));
    }
    ck_assert(!source_wants(&source));
    ck_assert(at_source(event)); /* doubled: nothing is begun twice */
    did(LEG_SEND_SEGMENTS, LEG_SEND_RELEASED, LEG_SEND_RELEASED);
    ck_assert(!source_wants(&source));
    ck_assert(given(9, 0, 1)); /* was open, and came back */
    did(LEG_SEND_RELEASED);
    ck_assert(given(10, 0, 1));
    did_nothing();
}
END_TEST

START_TEST(open_grants_are_for_units_that_are_ready)
{
    source_init(&source);
    ck_assert(at_source(
        (struct leg_event){.type = SOURCE_BIND, .grant = 1, .opens = 3, .units = {2, 2, 1}, .count = 3, .last = true}));
    did(LEG_STATE, LEG_STATE, LEG_SEND_SEGMENTS, LEG_SEND_RELEASED, LEG_SEND_RELEASED);
    source_init(&source);
    ck_assert(at_source(
        (struct leg_event){.type = SOURCE_BIND, .grant = 1, .opens = 3, .units = {0, 2, 1}, .count = 3, .last = true}));
    did(LEG_STATE, LEG_SEND_SEGMENTS, LEG_SEND_RELEASED, LEG_SEND_RELEASED, LEG_SEND_RELEASED);
}
END_TEST

START_TEST(open_grants_of_a_failed_source_come_back)
{
    source_init(&source);
    ck_assert(
        at_source((struct leg_event){.type = SOURCE_BIND, .grant = 1, .opens = 3, .units = {1, 1, 1}, .count = 3}));
    at_source((struct leg_event){.type = SOURCE_ENCODE});
    at_source((struct leg_event){.type = SOURCE_FAIL, .reason = STRAIT_REASON_ABORTED});
    did(LEG_VERDICT, LEG_SEND_END, LEG_SEND_RELEASED, LEG_SEND_RELEASED);
    ck_assert_uint_eq(actions.list[2].grant.id, 2);
    ck_assert_uint_eq(actions.list[3].grant.id, 3);
    ck_assert(at_source((struct leg_event){.type = SOURCE_BIND, .grant = 4, .opens = 2, .units = {1, 1}, .count = 3}));
    did(LEG_SEND_END, LEG_SEND_RELEASED, LEG_SEND_RELEASED);
    job(SOURCE_ENCODED, 1, STRAIT_REASON_NONE);
    did(LEG_FREE_SLOT, LEG_SEND_RELEASED, LEG_DRAINED, LEG_CLOSED);
}
END_TEST

START_TEST(a_grant_that_was_used_is_not_given_back)
{
    source_with(GRANT_SENDING);
    job(SOURCE_SENT, 1, STRAIT_REASON_NONE);
    at_source((struct leg_event){.type = SOURCE_REVOKE, .grant = 1}); /* its chunk is under way */
    did_nothing();
}
END_TEST

START_TEST(a_grant_that_is_begun_is_not_given_back)
{
    source_with((enum grant_state)_i);
    at_source((struct leg_event){.type = SOURCE_REVOKE, .grant = 1});
    if (_i == GRANT_QUEUED)
        did(LEG_SEND_RELEASED);
    else
        did_nothing();
    at_source((struct leg_event){.type = SOURCE_REVOKE, .grant = 9});
    did(LEG_SEND_RELEASED);
    ck_assert(given(9, 0, 1)); /* asked back before it came */
    did(LEG_SEND_RELEASED);
    ck_assert(!at_source((struct leg_event){.type = SOURCE_REVOKE}));
}
END_TEST

START_TEST(a_failed_source_ends_its_jobs_first)
{
    source_with((enum grant_state)_i);
    at_source((struct leg_event){.type = SOURCE_FAIL, .reason = STRAIT_REASON_LEASE_EXPIRED});
    if (_i == GRANT_QUEUED)
        did(LEG_VERDICT, LEG_SEND_END, LEG_SEND_RELEASED, LEG_DRAINED, LEG_CLOSED);
    else if (_i == GRANT_ENCODING)
        did(LEG_VERDICT, LEG_SEND_END);
    else
        did(LEG_VERDICT, LEG_SEND_END, LEG_DRAINED);
    ck_assert(given(1, 0, 1));
    if (_i == GRANT_QUEUED)
        did(LEG_SEND_RELEASED, LEG_SEND_END);
    else
        did_nothing(); /* it will be answered when the job is over */
    ck_assert(given(2, 0, 1));
    did(LEG_SEND_RELEASED, LEG_SEND_END); /* the sink has not heard of the end */
    ck_assert(at_source((struct leg_event){.type = SOURCE_END, .reason = STRAIT_REASON_NONE}));
    did_nothing();
    if (_i == GRANT_ENCODING) {
        job(SOURCE_ENCODED, 1, STRAIT_REASON_NONE);
        did(LEG_FREE_SLOT, LEG_SEND_RELEASED, LEG_DRAINED, LEG_CLOSED);
    } else if (_i == GRANT_SENDING) {
        job(SOURCE_SENT, 1, STRAIT_REASON_PEER_DOWN);
        did(LEG_FREE_SLOT, LEG_SEND_RELEASED, LEG_CLOSED);
    }
    ck_assert(source.closed);
    ck_assert_uint_eq(source.reason, STRAIT_REASON_LEASE_EXPIRED);
}
END_TEST

START_TEST(a_job_that_fails_fails_the_leg)
{
    source_with((enum grant_state)_i);
    job(_i == GRANT_ENCODING ? SOURCE_ENCODED : SOURCE_SENT, 1, STRAIT_REASON_CODEC);
    did(LEG_FREE_SLOT, LEG_SEND_RELEASED, LEG_VERDICT, LEG_SEND_END, LEG_DRAINED, LEG_CLOSED);
    ck_assert_uint_eq(source.reason, _i == GRANT_ENCODING ? STRAIT_REASON_CODEC : STRAIT_REASON_PEER_DOWN);
}
END_TEST

START_TEST(the_sinks_verdict_is_not_said_back)
{
    source_with(GRANT_QUEUED);
    ck_assert(at_source((struct leg_event){.type = SOURCE_END, .reason = STRAIT_REASON_TIMEOUT}));
    did(LEG_VERDICT, LEG_SEND_RELEASED, LEG_DRAINED, LEG_CLOSED);
    ck_assert_int_eq((int)actions.list[0].reason, STRAIT_REASON_TIMEOUT);
}
END_TEST

START_TEST(done_before_the_last_is_false)
{
    bound_source(5, false);
    const struct source_leg before = source;
    ck_assert(!at_source((struct leg_event){.type = SOURCE_END}));
    did_nothing();
    ck_assert_mem_eq(&source, &before, sizeof(source));
    source_init(&source);
    ck_assert(!at_source((struct leg_event){.type = SOURCE_END}));
}
END_TEST

START_TEST(a_source_that_is_not_bound_uses_no_grant)
{
    source_init(&source);
    ck_assert(given(1, 0, 1));
    did(LEG_SEND_RELEASED);
    ck_assert(at_source((struct leg_event){.type = SOURCE_MORE, .count = 1}));
    did_nothing();
}
END_TEST

START_TEST(failures_of_the_peer_are_seen_from_here)
{
    ck_assert_int_eq((int)leg_peer_reason(STRAIT_REASON_NONE), STRAIT_REASON_NONE);
    ck_assert_int_eq((int)leg_peer_reason(STRAIT_REASON_ABORTED), STRAIT_REASON_PEER_ABORT);
    ck_assert_int_eq((int)leg_peer_reason(STRAIT_REASON_LOCAL), STRAIT_REASON_PEER_DOWN);
    ck_assert_int_eq((int)leg_peer_reason(STRAIT_REASON_INTEGRITY), STRAIT_REASON_INTEGRITY);
}
END_TEST

/* ---- Any event in any state -------------------------------------------------------------------------------------- */

/* A grant is used, or comes back; a false one too. */
static bool is_answered(uint64_t id)
{
    for (uint32_t i = 0; i < SOURCE_GRANTS; i++)
        if (source.grants[i].id == id)
            return true;
    for (uint32_t i = 0; i < actions.count; i++)
        if (actions.list[i].type == LEG_SEND_RELEASED && actions.list[i].grant.id == id)
            return true;
    return source.opened != 0 && id >= source.opened && id < source.opened + LEG_GRANTS &&
           source.opened_units[id - source.opened] != 0;
}

START_TEST(a_source_keeps_its_books_whatever_happens)
{
    struct rng rng = rng_init(550 + (uint64_t)_i);
    for (int run = 0; run < 300 / STRIDE; run++) {
        struct ledger ledger = {.state = STRAIT_BOOTSTRAP};
        source_init(&source);
        for (int step = 0; step < 300; step++) {
            struct leg_event event = random_event(&rng, SOURCE_BIND, SOURCE_FAIL);
            if ((event.type == SOURCE_FAIL || event.type == SOURCE_END) && rng_below(&rng, 20) != 0)
                continue;
            if (event.type >= SOURCE_REVOKE && event.type <= SOURCE_SENT)
                event.grant = some_grant(&rng, source.grants, SOURCE_GRANTS, event.grant);
            if (event.type == SOURCE_GRANT && rng_below(&rng, 3))
                event.grant = source.seen + 1;
            const struct source_leg before = source;
            bool honest = at_source(event);
            keep(&ledger);
            check_table(source.grants, SOURCE_GRANTS, ledger.slots);
            if (event.type == SOURCE_GRANT && event.grant != 0)
                ck_assert(is_answered(event.grant));
            for (uint32_t i = 0; i < event.opens && event.type == SOURCE_BIND; i++)
                ck_assert(is_answered(event.grant + i));
            ck_assert(honest || source.state == before.state);
        }
        at_source((struct leg_event){.type = SOURCE_FAIL, .reason = STRAIT_REASON_TIMEOUT});
        keep(&ledger);
        for (uint64_t id; (id = source.grants[0].id) != 0;) {
            at_source((struct leg_event){.type = SOURCE_ENCODED, .grant = id});
            keep(&ledger);
            at_source((struct leg_event){.type = SOURCE_SENT, .grant = id});
            keep(&ledger);
        }
        ck_assert(ledger.closed);
        ck_assert_int_eq(ledger.slots, 0);
    }
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("source");
    tcase_add_test(tcase, a_transfer_seen_by_its_source);
    tcase_add_test(tcase, a_request_that_comes_again_gets_the_whole_answer);
    tcase_add_test(tcase, nothing_follows_the_last);
    tcase_add_loop_test(tcase, a_grant_beyond_what_is_ready_is_false, 0, 7);
    tcase_add_loop_test(tcase, a_grant_is_met_once, GRANT_QUEUED, GRANT_SENDING + 1);
    tcase_add_test(tcase, grants_may_come_before_the_last_chunks_are_known_to_be_sent);
    tcase_add_test(tcase, the_lowest_grant_is_encoded_first);
    tcase_add_loop_test(tcase, an_open_grant_is_used_at_once_or_never, 0, 3);
    tcase_add_test(tcase, open_grants_are_used_in_order_as_far_as_needed);
    tcase_add_test(tcase, open_grants_are_for_units_that_are_ready);
    tcase_add_test(tcase, open_grants_of_a_failed_source_come_back);
    tcase_add_test(tcase, a_grant_that_was_used_is_not_given_back);
    tcase_add_loop_test(tcase, a_grant_that_is_begun_is_not_given_back, GRANT_QUEUED, GRANT_SENDING + 1);
    tcase_add_loop_test(tcase, a_failed_source_ends_its_jobs_first, GRANT_QUEUED, GRANT_SENDING + 1);
    tcase_add_loop_test(tcase, a_job_that_fails_fails_the_leg, GRANT_ENCODING, GRANT_SENDING + 1);
    tcase_add_test(tcase, the_sinks_verdict_is_not_said_back);
    tcase_add_test(tcase, done_before_the_last_is_false);
    tcase_add_test(tcase, a_source_that_is_not_bound_uses_no_grant);
    tcase_add_test(tcase, failures_of_the_peer_are_seen_from_here);
    tcase_add_loop_test(tcase, a_source_keeps_its_books_whatever_happens, 0, 4);
    return leg_main("source_leg", tcase);
}
