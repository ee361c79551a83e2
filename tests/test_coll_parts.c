/* The engine's parts that need no GPU: levels, shapes of messages, plans of steps. */
#include <check.h>
#include <stdlib.h>

#include "collective/engine/levels.h"
#include "collective/engine/plan.h"
#include "collective/engine/shape.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

/* ---- Levels ------------------------------------------------------------------------------------------------------ */

static const int types[] = {COLL_BF16, COLL_FP16, COLL_FP32};

START_TEST(shares_of_higher_levels_are_larger_and_end_raw)
{
    unsigned before = levels_share(types[_i], 0);
    ck_assert_uint_gt(before, 0);
    for (unsigned level = 1; level < 10; level++) {
        const unsigned share = levels_share(types[_i], level);
        ck_assert_uint_lt(share, 1024);
        ck_assert(share == 0 || (before != 0 && share > before));
        before = share;
    }
    ck_assert_uint_eq(before, 0);
}
END_TEST

START_TEST(one_overflow_alone_is_no_step)
{
    struct level level = {0};
    ck_assert(!levels_overflowed(&level, 10));
    ck_assert(!levels_overflowed(&level, 75)); /* 65 later */
    ck_assert(levels_overflowed(&level, 139)); /* 64 later */
}
END_TEST

START_TEST(steps_begin_where_agreed_and_rest_longer_each_time)
{
    struct level level = {0};
    uint64_t from = 100, rest = 1024;
    for (unsigned step = 0; step < 14; step++) {
        ck_assert(!levels_overflowed(&level, from - 20));
        ck_assert(levels_overflowed(&level, from - 10));
        const unsigned before = levels_at(&level, from - 1);
        levels_step(&level, from - 10, from);
        ck_assert_uint_eq(levels_at(&level, from - 1), before);
        ck_assert_uint_eq(levels_at(&level, from), before + 1);
        ck_assert_uint_eq(levels_at(&level, from + rest - 1), before + 1);
        ck_assert_uint_eq(levels_at(&level, from + rest), 0);
        /* Those under way since before the step change nothing. */
        ck_assert(!levels_overflowed(&level, from - 1));
        ck_assert(!levels_overflowed(&level, from - 1));
        from += rest + 100;
        rest = rest < 1 << 20 ? 2 * rest : rest;
    }
}
END_TEST

START_TEST(steps_within_a_span_go_up)
{
    struct level level = {0};
    ck_assert(!levels_overflowed(&level, 1) && levels_overflowed(&level, 2));
    levels_step(&level, 2, 5);
    ck_assert(!levels_overflowed(&level, 6) && levels_overflowed(&level, 7));
    levels_step(&level, 7, 9);
    ck_assert_uint_eq(levels_at(&level, 4), 0); /* as far back as it matters */
    ck_assert_uint_eq(levels_at(&level, 8), 1);
    ck_assert_uint_eq(levels_at(&level, 9), 2);
    ck_assert_uint_eq(levels_at(&level, 9 + 2048), 0);
}
END_TEST

/* ---- Shapes ------------------------------------------------------------------------------------------------------ */

static const uint64_t counts[] = {0, 1, 8191, 16383, 16384, 16385, 32767, 65536, 65537, 1000003, UINT64_C(1) << 29};

START_TEST(shapes_hold_what_the_codec_writes)
{
    const int type = types[_i / COUNT(counts)];
    const uint64_t count = counts[_i % COUNT(counts)], bytes = count * (type == COLL_FP32 ? 4 : 2);
    struct shape shape;
    const bool shrinks = shape_of(&shape, type, count, 0);
    ck_assert(shrinks == (bytes >= SHAPE_PAGE && bytes <= UINT64_C(1) << 31));
    if (!shrinks)
        return;
    ck_assert_uint_eq(shape.raw, bytes);
    ck_assert_uint_eq((uint64_t)shape.pages * SHAPE_PAGE + shape.tail_bytes, bytes);
    ck_assert_uint_lt(shape.message, shape.raw);
    ck_assert(shape.message % 128 == 0 && shape.encoded % 128 == 0 && shape.main_at % 128 == 0);
    ck_assert_uint_ge(shape.main_at, HEAD_BYTES);
    ck_assert_uint_ge(shape.encoded, shape.main_at + shape.main_bound);
    ck_assert_uint_ge(shape.encoded, shape.message);
    ck_assert_uint_eq(shape.message, shape.main_at + shape.main_room);
    ck_assert((shape.tail_at != 0) == (shape.tail_bytes != 0));
    struct shape_part parts[2];
    static uint8_t somewhere;
    const unsigned n = shape_parts(&shape, &somewhere, parts);
    ck_assert_uint_eq(n, shape.tail_at != 0 ? 2 : 1);
    for (unsigned i = 0; i < n; i++) {
        const struct strait_pages pages = shape_pages(&parts[i]);
        ck_assert_uint_ge(parts[i].bound, strait_encode_bound(&pages));
        ck_assert_uint_ge(parts[i].at, i == 0 ? HEAD_BYTES : parts[0].at + parts[0].bound);
        ck_assert_uint_le(parts[i].at + parts[i].room, shape.message);
    }
    /* A tail never overflows. */
    ck_assert(n == 1 || parts[0].room >= parts[0].bound);
}
END_TEST

START_TEST(shapes_end_where_levels_do)
{
    struct shape shape;
    for (unsigned level = 0; level < 5; level++)
        ck_assert(shape_of(&shape, types[_i], 1 << 20, level) == (levels_share(types[_i], level) != 0));
}
END_TEST

/* ---- Plans ------------------------------------------------------------------------------------------------------- */

/* By operation, of four ranks of which this one is the third: messages out and in, and of these coded. */
struct expected {
    enum coll_operation operation;
    uint32_t out, in, coded_out, coded_in;
    bool reduces;
};

static const struct expected plans[] = {
    {COLL_ALL_GATHER, 1, 4, 1, 3, false}, {COLL_ALL_TO_ALL, 4, 4, 3, 3, false}, {COLL_REDUCE_SCATTER, 4, 4, 3, 3, true},
    {COLL_ALL_REDUCE, 1, 4, 1, 3, true},  {COLL_SEND, 1, 0, 1, 0, false},       {COLL_RECV, 0, 1, 0, 1, false},
};

static struct coll_call call_of(const struct expected *expected, uint8_t *send, uint8_t *receive)
{
    return (struct coll_call){.operation = expected->operation,
                              .send = send,
                              .receive = receive,
                              .count = 50001, /* pages and a tail */
                              .type = COLL_BF16,
                              .peer = 1};
}

struct span {
    size_t from, to;
};

static void check_list(const struct plan *plan, const struct coll_call *call, uint32_t coded, bool encoding)
{
    static uint8_t staging[1];
    struct codec_list list;
    ck_assert(plan_list(&list, plan, call, staging, encoding));
    ck_assert_uint_eq(list.count, 2 * coded);
    for (unsigned i = 0; i < list.count; i++) {
        const uint8_t *chunk = encoding ? (const uint8_t *)list.encode[i].dst : list.decode[i].src;
        const uint64_t size = encoding ? list.encode[i].dst_capacity : list.decode[i].src_size;
        const size_t from = (size_t)(chunk - staging), until = encoding ? plan->in_at : plan->scratch_at;
        ck_assert_uint_ge(from, encoding ? plan->out_at : plan->in_at);
        ck_assert_uint_le(from + size, until);
        ck_assert_uint_eq(from % 16, 0);
        ck_assert_ptr_ne(encoding ? (void *)list.encode[i].result : (void *)list.decode[i].result, NULL);
    }
    plan_list_free(&list);
}

START_TEST(plans_place_everything_apart)
{
    const struct expected *expected = &plans[_i];
    const struct coll_member member = {.codec = strait_codec_get("scalar"), .rank = 2, .ranks = 4};
    static uint8_t send[8], receive[8];
    const struct coll_call call = call_of(expected, send, receive);
    struct plan plan;
    ck_assert(plan_of(&plan, &member, &call, 0) && plan_measure(&plan, &member, &call));
    ck_assert(plan.out == expected->out && plan.in == expected->in && plan.reduces == expected->reduces);
    ck_assert(plan.sends == (expected->out > 0) && plan.receives == (expected->in > 0));
    const struct span parts[] = {
        {plan.out_at, plan.out_at + plan.out * plan.shape.encoded},
        {plan.in_at, plan.in_at + plan.in * plan.shape.message},
        {plan.scratch_at, plan.scratch_at + (plan.reduces ? plan.in * plan.raw : 0)},
        {plan.found_at, plan.found_at + 4 * plan.in},
        {plan.results_at,
         plan.results_at + 2 * (expected->coded_out > expected->coded_in ? expected->coded_out : expected->coded_in) *
                               sizeof(struct strait_result)},
        {plan.codec_at, plan.codec_at + plan.codec_size},
        {plan.size, plan.size},
    };
    for (int i = 0; i + 1 < COUNT(parts); i++) {
        ck_assert_uint_le(parts[i].to, parts[i + 1].from);
        ck_assert_uint_eq(parts[i].from % 256, 0);
    }
    if (plan.sends)
        check_list(&plan, &call, expected->coded_out, true);
    if (plan.receives)
        check_list(&plan, &call, expected->coded_in, false);
}
END_TEST

START_TEST(keys_of_a_pair_differ_by_peer_direction_and_type)
{
    enum { RANKS = 5, MOST = 64 };
    const struct coll_member member = {.ranks = RANKS};
    bool seen[MOST * 2] = {0};
    ck_assert_uint_le(member_keys(&member), COUNT(seen));
    for (int operation = 0; operation < COLL_OPERATIONS; operation++) {
        const bool pair = operation == COLL_SEND || operation == COLL_RECV;
        if (!pair && operation != COLL_ALL_GATHER && operation != COLL_ALL_REDUCE && operation != COLL_ALL_TO_ALL &&
            operation != COLL_REDUCE_SCATTER)
            continue;
        for (int i = 0; i < (pair ? RANKS : 1) * 3; i++) {
            const struct coll_call call = {.operation = operation, .type = types[i % 3], .peer = i / 3};
            const unsigned key = member_key(&member, &call);
            ck_assert_uint_lt(key, member_keys(&member));
            ck_assert(!seen[key]);
            seen[key] = true;
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coll_parts");
    TCase *tests = tcase_create("parts");
    tcase_add_loop_test(tests, shares_of_higher_levels_are_larger_and_end_raw, 0, COUNT(types));
    tcase_add_test(tests, one_overflow_alone_is_no_step);
    tcase_add_test(tests, steps_begin_where_agreed_and_rest_longer_each_time);
    tcase_add_test(tests, steps_within_a_span_go_up);
    tcase_add_loop_test(tests, shapes_hold_what_the_codec_writes, 0, COUNT(types) * COUNT(counts));
    tcase_add_loop_test(tests, shapes_end_where_levels_do, 0, COUNT(types));
    tcase_add_loop_test(tests, plans_place_everything_apart, 0, COUNT(plans));
    tcase_add_test(tests, keys_of_a_pair_differ_by_peer_direction_and_type);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
