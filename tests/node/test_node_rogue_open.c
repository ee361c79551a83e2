/* A peer that makes what it likes of the open grants of a request: between GPUs there are several. Honest or not, each
 * page lands once, no slot is lost, and what cannot be fails its request alone. */
#include "tests/node/rogue_source.h"

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

START_TEST(the_first_chunks_are_asked_for_with_the_request)
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
END_TEST

START_TEST(what_is_not_needed_comes_back)
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
END_TEST

/* Half of an arena is all that requests take before anybody knows what is ready. */
START_TEST(others_are_left_as_much)
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
END_TEST

/* ---- What is not ------------------------------------------------------------------------------------------------- */

START_TEST(units_of_a_grant_that_comes_back_are_granted_again)
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
END_TEST

/* More pieces than a leg can remember are not made of it at once. */
START_TEST(a_range_that_fits_no_slot_is_cut)
{
    struct scene s;
    begin(&s);
    say_segments(&s, open_grant(&s, 0), (const uint32_t[]){EXPECTED}, 1);
    release_open(&s, 0);
    serve(&s);
    ck_assert_uint_eq(EXPECTED, s.rogue.heard.grant_count);
    scene_end(&s);
}
END_TEST

/* Some of the named grants are open, or none. */
START_TEST(grants_that_were_not_open_are_given_nothing)
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
END_TEST

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

START_TEST(what_cannot_be_fails_its_request_alone)
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
END_TEST

START_TEST(a_chunk_of_an_open_grant_lands_once)
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
END_TEST

int main(void)
{
    Suite *suite = suite_create("node_rogue_open");
    TCase *tcase = node_case(suite, "honest");
    tcase_add_loop_test(tcase, the_first_chunks_are_asked_for_with_the_request, 0, 2);
    tcase_add_loop_test(tcase, what_is_not_needed_comes_back, 0, OPEN + 1);
    tcase_add_test(tcase, others_are_left_as_much);
    tcase = node_case(suite, "not");
    tcase_add_test(tcase, units_of_a_grant_that_comes_back_are_granted_again);
    tcase_add_test(tcase, a_range_that_fits_no_slot_is_cut);
    tcase_add_loop_test(tcase, grants_that_were_not_open_are_given_nothing, 0, 5);
    tcase_add_loop_test(tcase, what_cannot_be_fails_its_request_alone, 0, COUNT(false_ones));
    tcase_add_loop_test(tcase, a_chunk_of_an_open_grant_lands_once, 0, 2);
    return node_main(suite);
}
