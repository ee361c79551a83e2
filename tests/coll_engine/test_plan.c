/* The engine's parts that need no GPU: levels, layouts of messages, plans of steps. */
#include <stdlib.h>

#include "collective/engine/ccomm.h"
#include "collective/engine/levels.h"
#include "collective/engine/plan.h"
#include "tests/run_suite.h"
#include "tests/support.h"

/* ---- Levels ------------------------------------------------------------------------------------------------------ */

static const int types[] = {COLL_BF16, COLL_FP16, COLL_FP32};

TEST_LOOP(shares_of_higher_levels_are_larger_and_end_raw, COUNT(types))
{
    unsigned before = levels_share(types[_i], 0);
    ck_assert_uint_gt(before, 0);
    for (unsigned level = 1; level < 100; level++) {
        const unsigned share = levels_share(types[_i], level);
        ck_assert_uint_lt(share, 1024);
        ck_assert(share == 0 || (before != 0 && share > before && share - before <= 8));
        before = share;
    }
    ck_assert_uint_eq(before, 0);
}

TEST_LOOP(levels_are_the_lowest_that_fit, COUNT(types))
{
    unsigned level = 0;
    for (; levels_share(types[_i], level) != 0; level++) {
        ck_assert_uint_eq(levels_fitting(types[_i], levels_share(types[_i], level)), level);
        ck_assert_uint_eq(levels_fitting(types[_i], levels_share(types[_i], level) + 1), level + 1);
    }
    ck_assert_uint_eq(levels_fitting(types[_i], 0), 0);
    ck_assert_uint_eq(levels_fitting(types[_i], 1024), level);
}

TEST(one_overflow_alone_is_no_step)
{
    struct level level = {0};
    ck_assert(!levels_overflowed(&level, 10, 9));
    ck_assert(!levels_overflowed(&level, 75, 3)); /* 65 later */
    ck_assert(levels_overflowed(&level, 139, 2)); /* 64 later */
    levels_step(&level, 139, 150);
    ck_assert_uint_eq(levels_at(&level, 150), 3); /* not of the first, which was alone */
}

TEST(repeats_of_one_operation_are_one_overflow)
{
    struct level level = {0};
    ck_assert(!levels_overflowed(&level, 10, 3) && !levels_overflowed(&level, 10, 5) &&
              !levels_overflowed(&level, 10, 4));
    ck_assert(levels_overflowed(&level, 11, 2));
    levels_step(&level, 11, 13);
    ck_assert_uint_eq(levels_at(&level, 13), 5);
}

TEST(steps_go_to_what_was_needed)
{
    struct level level = {0};
    ck_assert(!levels_overflowed(&level, 1, 4) && levels_overflowed(&level, 2, 3));
    levels_step(&level, 2, 5);
    ck_assert_uint_eq(levels_at(&level, 4), 0); /* as far back as it matters */
    ck_assert_uint_eq(levels_at(&level, 5), 4);
    /* Those under way since before the step change nothing. */
    ck_assert(!levels_overflowed(&level, 3, 20) && !levels_overflowed(&level, 4, 20));
    ck_assert(!levels_overflowed(&level, 6, 6) && levels_overflowed(&level, 7, 6));
    levels_step(&level, 7, 9);
    ck_assert_uint_eq(levels_at(&level, 8), 4);
    ck_assert_uint_eq(levels_at(&level, 9), 6);
    ck_assert_uint_eq(levels_at(&level, 9 + 1023), 6);
    ck_assert_uint_eq(levels_at(&level, 9 + 1024), 0);
}

/* Of operations of different sizes what fits in one may be no room in another. */
TEST(steps_go_up_whatever_was_needed)
{
    struct level level = {0};
    for (unsigned step = 1; step < 50; step++) {
        const uint64_t at = 10 * step;
        ck_assert(!levels_overflowed(&level, at, 0) && levels_overflowed(&level, at + 1, 1));
        levels_step(&level, at + 1, at + 2);
        ck_assert_uint_eq(levels_at(&level, at + 2), step);
    }
}

/* Operations after a rest that have little room while it is not known whether that will do. */
enum { EVERY = 61, TRIES = 16 };

TEST(lower_levels_are_tried_seldom)
{
    struct level level = {0};
    unsigned tried = 0;
    ck_assert(!levels_overflowed(&level, 0, 7) && levels_overflowed(&level, 1, 7));
    levels_step(&level, 1, 3);
    for (uint64_t i = 3; i < 3 + 1024; i++)
        ck_assert_uint_eq(levels_at(&level, i), 7);
    for (uint64_t i = 0; i < TRIES * EVERY; i++) {
        ck_assert_uint_eq(levels_at(&level, 3 + 1024 + i), i % EVERY == 0 ? 0 : 7);
        tried += i % EVERY == 0;
    }
    ck_assert_uint_eq(tried, TRIES);
    for (uint64_t i = 0; i < 100; i++)
        ck_assert_uint_eq(levels_at(&level, 3 + 1024 + TRIES * EVERY + i), 0);
}

TEST(rests_get_longer_while_tries_fail)
{
    struct level level = {0};
    uint64_t from = 100, rest = 1024;
    ck_assert(!levels_overflowed(&level, from - 20, 7) && levels_overflowed(&level, from - 10, 7));
    levels_step(&level, from - 10, from);
    for (unsigned try = 0; try < 10; try++) {
        ck_assert_uint_eq(levels_at(&level, from), 7);
        ck_assert_uint_eq(levels_at(&level, from + rest - 1), 7);
        ck_assert_uint_eq(levels_at(&level, from + rest), 0);
        const uint64_t at = from + rest + EVERY * try; /* one is enough */
        ck_assert(levels_overflowed(&level, at, 7));
        levels_step(&level, at, at + 3);
        ck_assert_uint_eq(levels_at(&level, at + 2), 7);
        ck_assert_uint_eq(levels_at(&level, at), 0);
        from = at + 3;
        rest = rest < 16384 ? 2 * rest : rest;
    }
}

TEST(a_try_that_fails_goes_to_the_level_needed_lately)
{
    struct level level = {0};
    ck_assert(!levels_overflowed(&level, 1, 7) && levels_overflowed(&level, 2, 7));
    levels_step(&level, 2, 5);
    ck_assert(levels_overflowed(&level, 5 + 1024, 4));
    levels_step(&level, 5 + 1024, 1040);
    ck_assert_uint_eq(levels_at(&level, 1039), 7);
    ck_assert_uint_eq(levels_at(&level, 1040), 4);
}

TEST(levels_stay_down_when_tries_hold)
{
    struct level level = {0};
    const uint64_t first = 5 + 1024, down = 1040 + 2048 + TRIES * EVERY;
    ck_assert(!levels_overflowed(&level, 1, 7) && levels_overflowed(&level, 2, 7));
    levels_step(&level, 2, 5);
    ck_assert(levels_overflowed(&level, first, 7)); /* fails once: 2048 */
    levels_step(&level, first, 1040);
    ck_assert(!levels_overflowed(&level, down, 3)); /* as at first */
    ck_assert_uint_eq(levels_at(&level, down + 1), 0);
    ck_assert(levels_overflowed(&level, down + 2, 2));
    levels_step(&level, down + 2, down + 10);
    ck_assert_uint_eq(levels_at(&level, down + 10 + 1023), 3);
    ck_assert_uint_eq(levels_at(&level, down + 10 + 1024), 0);
}

/* ---- Heads ------------------------------------------------------------------------------------------------------- */

TEST(every_bit_of_a_head_changes_its_sum)
{
    struct message_head head = {.magic = MESSAGE_MAGIC, .main_bytes = 123456, .row = {{5}}, .most = 200000};
    const uint64_t sum = head_sum(&head);
    ck_assert_uint_eq(sizeof(head), HEAD_BYTES);
    for (size_t bit = 0; bit < 8 * offsetof(struct message_head, sum); bit++) {
        uint8_t *byte = (uint8_t *)&head + bit / 8;
        *byte ^= (uint8_t)(1u << bit % 8);
        ck_assert_uint_ne(head_sum(&head), sum);
        *byte ^= (uint8_t)(1u << bit % 8);
    }
    ck_assert_uint_eq(head_sum(&head), sum);
}

/* ---- Layouts ----------------------------------------------------------------------------------------------------- */

static const uint64_t counts[] = {0, 1, 8191, 16383, 16384, 16385, 32767, 65536, 65537, 1000003, UINT64_C(1) << 29};

TEST_LOOP(layouts_hold_what_the_codec_writes, COUNT(types) * COUNT(counts))
{
    const int type = types[_i / COUNT(counts)];
    const uint64_t count = counts[_i % COUNT(counts)], bytes = count * (type == COLL_FP32 ? 4 : 2);
    struct message_layout layout;
    const bool shrinks = message_layout_of(&layout, type, count, 0);
    ck_assert(shrinks == (bytes >= PLAN_PAGE && bytes <= UINT64_C(1) << 31));
    if (!shrinks)
        return;
    ck_assert_uint_eq(layout.raw, bytes);
    ck_assert_uint_eq((uint64_t)layout.pages * PLAN_PAGE + layout.tail_bytes, bytes);
    ck_assert_uint_lt(layout.message, layout.raw);
    ck_assert(layout.message % 128 == 0 && layout.encoded % 128 == 0 && layout.main_at % 128 == 0);
    ck_assert_uint_ge(layout.main_at, HEAD_BYTES);
    ck_assert_uint_ge(layout.encoded, layout.main_at + layout.main_bound);
    ck_assert_uint_ge(layout.encoded, layout.message);
    ck_assert_uint_eq(layout.message, layout.main_at + layout.main_room);
    ck_assert((layout.tail_at != 0) == (layout.tail_bytes != 0));
    struct message_part parts[2];
    static uint8_t somewhere;
    const unsigned n = message_parts(&layout, &somewhere, parts);
    ck_assert_uint_eq(n, layout.tail_at != 0 ? 2 : 1);
    for (unsigned i = 0; i < n; i++) {
        const struct strait_pages pages = message_part_pages(&parts[i]);
        ck_assert_uint_ge(parts[i].bound, strait_encode_bound(&pages));
        ck_assert_uint_ge(parts[i].at, i == 0 ? HEAD_BYTES : parts[0].at + parts[0].bound);
        ck_assert_uint_le(parts[i].at + parts[i].room, layout.message);
    }
    /* A tail never overflows. */
    ck_assert(n == 1 || parts[0].room >= parts[0].bound);
}

TEST_LOOP(layouts_end_where_levels_do, COUNT(types))
{
    struct message_layout layout;
    for (unsigned level = 0; level < 100; level++)
        ck_assert(message_layout_of(&layout, types[_i], 1 << 20, level) == (levels_share(types[_i], level) != 0));
}

/* ---- Phases ------------------------------------------------------------------------------------------------------ */

TEST_LOOP(all_reduce_of_many_is_reduce_scatter_and_all_gather, 6 * 5)
{
    static const uint64_t sizes[] = {100, 32768, 131072, 131073, 1000003};
    static uint8_t send[1], receive[1];
    const int ranks = 3 + _i / COUNT(sizes);
    struct coll_call call = {.operation = COLL_ALL_REDUCE, .send = send, .receive = receive, .type = COLL_BF16};
    size_t seen = 0;
    call.count = sizes[_i % COUNT(sizes)];
    for (int rank = 0; rank < ranks; rank++) {
        const struct coll_ccomm ccomm = {.rank = rank, .ranks = ranks};
        ck_assert_uint_eq(phase_count(&ccomm, &call), 2);
        const struct coll_call first = phase_call(&ccomm, &call, 0), second = phase_call(&ccomm, &call, 1);
        const struct coll_call rest = phase_rest(&ccomm, &call, 0);
        ck_assert(first.operation == COLL_REDUCE_SCATTER && second.operation == COLL_ALL_GATHER);
        ck_assert(first.send == send && (uint8_t *)first.receive == receive + 2 * seen);
        ck_assert(second.send == first.receive && second.receive == receive && second.count == first.count);
        ck_assert_uint_eq(2 * seen % 16, 0);
        seen += first.count;
        ck_assert((uint8_t *)rest.receive == receive + 2 * (size_t)ranks * first.count);
        ck_assert((const uint8_t *)rest.send == send + 2 * (size_t)ranks * first.count);
        ck_assert_uint_eq((size_t)ranks * first.count + rest.count, call.count);
        ck_assert_uint_lt(rest.count, 8 * (size_t)ranks);
        ck_assert_uint_eq(phase_rest(&ccomm, &call, 1).count, 0);
    }
}

/* Of rank 4 of six on three hosts: what it gets from its host's ranks, and then from those of its place. */
TEST_LOOP(sums_of_several_hosts_are_local_and_then_by_rail, 2)
{
    static uint8_t send[1], receive[1], staging[1], kept[1];
    const struct coll_ccomm ccomm = {
        .codec = strait_codec_get("scalar"), .rank = 4, .ranks = 6, .shared.rails = {.hosts = 3, .each = 2}};
    const bool all = _i == 1;
    const struct coll_call call = {.operation = all ? COLL_ALL_REDUCE : COLL_REDUCE_SCATTER,
                                   .send = send,
                                   .receive = receive,
                                   .type = COLL_BF16,
                                   .count = all ? 6 * 20000 + 11 : 20000};
    struct plan local, rail;
    ck_assert_uint_eq(phase_count(&ccomm, &call), all ? 3 : 2);
    ck_assert(phase_scope(&ccomm, &call, 0) == PLAN_LOCAL && phase_scope(&ccomm, &call, 1) == PLAN_RAIL);
    ck_assert(plan_of(&local, &ccomm, &call, 0, 0) && plan_of(&rail, &ccomm, &call, 1, 0));
    local.copies = true;
    ck_assert(plan_measure(&local, &ccomm) && plan_measure(&rail, &ccomm));
    ck_assert(!local.sends && !local.receives && local.reduces && local.in == 2 && local.skip == 0);
    ck_assert(local.first == 4 && local.step == 1 && local.hosts == 3 && local.whole.send == send);
    ck_assert(rail.sends && rail.receives && rail.reduces && rail.in == 3 && rail.out == 3 && rail.skip == 2);
    ck_assert(rail.first == 0 && rail.step == 2 && rail.hosts == 3 && rail.whole.send == NULL);
    ck_assert_ptr_eq(rail.whole.receive, receive + (all ? 4 * 40000 : 0));
    ck_assert_uint_eq(plan_sources(&rail), 2);
    ck_assert_uint_eq(plan_kept(&local), plan_aligned(3 * 40000));
    ck_assert_uint_eq(plan_kept(&rail), plan_kept(&local));
    ck_assert_uint_eq(local.scratch_at, plan_aligned(6 * 40000));
    ck_assert_uint_eq(local.rest_at, local.scratch_at + 2 * plan_kept(&local));
    ck_assert_uint_ge(local.size, local.rest_at + 6 * local.left);
    ck_assert_uint_eq(local.left, all ? 2 * 11 : 0);
    rail.call.send = kept;
    ck_assert_ptr_eq(plan_source(&rail, 2), kept + 2 * 40000);
    ck_assert_ptr_eq(plan_target(&rail, staging, 1), staging + rail.scratch_at + plan_aligned(40000));
    ck_assert_uint_eq(plan_values(&rail), 2 * 40000);
    ck_assert_uint_eq(plan_values(&local), local.left);
    if (all)
        ck_assert(phase_call(&ccomm, &call, 2).operation == COLL_ALL_GATHER &&
                  phase_scope(&ccomm, &call, 2) == PLAN_ALL && phase_rest(&ccomm, &call, 1).count == 0);
}

/* Nobody else has a message in the job of a rail. */
TEST(messages_of_a_rail_are_those_of_its_ranks)
{
    const struct exchange_job rail = {.first = 1, .step = 4}, every = {.step = 1};
    static const uint32_t of_rail[] = {EXCHANGE_NO_MESSAGE, 0, EXCHANGE_NO_MESSAGE, EXCHANGE_NO_MESSAGE,
                                       EXCHANGE_NO_MESSAGE, 1, EXCHANGE_NO_MESSAGE};
    for (uint32_t rank = 0; rank < COUNT(of_rail); rank++) {
        ck_assert_uint_eq(exchange_message(&rail, rank), of_rail[rank]);
        ck_assert_uint_eq(exchange_message(&every, rank), rank);
    }
}

/* Leaders by rank, and whether there are rails. */
TEST(rails_are_of_even_hosts_whose_ranks_follow_each_other)
{
    static const struct {
        int ranks;
        uint16_t leader[8];
        struct rails rails;
    } worlds[] = {
        {8, {0, 0, 0, 0, 4, 4, 4, 4}, {2, 4}},
        {6, {0, 0, 2, 2, 4, 4}, {3, 2}},
        {4, {0, 0, 0, 0}, {0, 0}},
        {4, {0, 1, 2, 3}, {0, 0}},
        {4, {0, 1, 0, 1}, {0, 0}},
        {5, {0, 0, 2, 2, 4}, {0, 0}},
        {6, {0, 0, 0, 0, 4, 4}, {0, 0}},
        {6, {0, 0, 2, 2, 0, 0}, {0, 0}},
        {6, {0, 0, 2, 3, 4, 4}, {0, 0}},
    };
    for (int i = 0; i < COUNT(worlds); i++) {
        struct host_groups groups = {0};
        memcpy(groups.leader, worlds[i].leader, sizeof(worlds[i].leader));
        const struct rails rails = rails_of(&groups, worlds[i].ranks);
        ck_assert(rails.hosts == worlds[i].rails.hosts && rails.each == worlds[i].rails.each);
    }
}

/* ---- Plans ------------------------------------------------------------------------------------------------------- */

/* By operation and phase, of four ranks, or of two, of which this one is the last but one or the last: messages out and
 * in, and of these coded. */
struct expected {
    enum coll_operation operation;
    int ranks;
    unsigned phase;
    uint32_t out, in, coded_out, coded_in;
    bool reduces;
};

static const struct expected plans[] = {
    {COLL_ALL_GATHER, 4, 0, 1, 4, 1, 3, false},    {COLL_ALL_TO_ALL, 4, 0, 4, 4, 3, 3, false},
    {COLL_REDUCE_SCATTER, 4, 0, 4, 4, 3, 3, true}, {COLL_ALL_REDUCE, 2, 0, 1, 2, 1, 1, true},
    {COLL_ALL_REDUCE, 4, 0, 4, 4, 3, 3, true},     {COLL_ALL_REDUCE, 4, 1, 1, 4, 1, 3, false},
    {COLL_SEND, 4, 0, 1, 0, 1, 0, false},          {COLL_RECV, 4, 0, 0, 1, 0, 1, false},
    {COLL_BROADCAST, 4, 0, 0, 1, 0, 1, false},     {COLL_BROADCAST, 2, 0, 1, 0, 1, 0, false}, /* of rank 1 */
};

static struct coll_call call_of(const struct expected *expected, uint8_t *send, uint8_t *receive)
{
    return (struct coll_call){.operation = expected->operation,
                              .send = send,
                              .receive = receive,
                              .count = expected->operation == COLL_ALL_REDUCE ? 200005 : 50001, /* pages and a tail */
                              .type = COLL_BF16,
                              .peer = 1};
}

struct span {
    size_t from, to;
};

static void check_list(const struct plan *plan, uint32_t coded, bool encoding)
{
    static uint8_t staging[1];
    struct codec_list list;
    ck_assert(plan_list(&list, plan, staging, encoding));
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

TEST_LOOP(parts_of_a_plan_do_not_overlap, COUNT(plans))
{
    const struct expected *expected = &plans[_i];
    const struct coll_ccomm ccomm = {
        .codec = strait_codec_get("scalar"), .rank = expected->ranks / 2, .ranks = expected->ranks};
    static uint8_t send[8], receive[8];
    const struct coll_call call = call_of(expected, send, receive);
    struct plan plan;
    ck_assert(plan_of(&plan, &ccomm, &call, expected->phase, 0) && plan_measure(&plan, &ccomm));
    ck_assert(plan.out == expected->out && plan.in == expected->in && plan.reduces == expected->reduces);
    ck_assert(plan.sends == (expected->out > 0) && plan.receives == (expected->in > 0));
    const struct span parts[] = {
        {plan.out_at, plan.out_at + plan.out * plan.layout.encoded},
        {plan.in_at, plan.in_at + plan.in * plan.layout.message},
        {plan.scratch_at, plan.scratch_at + (plan.reduces ? plan.in * plan.raw : 0)},
        {plan.rest_at, plan.rest_at + 4 * 2 * plan.rest.count},
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
        check_list(&plan, expected->coded_out, true);
    if (plan.receives)
        check_list(&plan, expected->coded_in, false);
}

/* Pages of a head and of a tail; a last page that is not whole belongs to the tail, if there is one. Of three ranks,
 * which send; of two, which gather; each from the program's memory, and from a copy; with tails that end at a multiple
 * of 16 bytes, and others. */
TEST_LOOP(heads_and_tails_stay_uncompressed, 32)
{
    static const uint32_t ends[][2] = {{1, 2}, {3, 0}, {0, 1}, {5, 1}};
    enum { PAGE = 16384 };
    const uint32_t rest = _i < 16 ? 5 : 8;
    const uint32_t ranks = _i / 4 % 2 == 0 ? 3 : 2;
    const struct coll_ccomm ccomm = {.codec = strait_codec_get("scalar"), .rank = 1, .ranks = (int)ranks};
    static uint8_t send[1], receive[1];
    const struct coll_call call = {.operation = COLL_REDUCE_SCATTER,
                                   .send = send,
                                   .receive = receive,
                                   .count = PAGE * 7 + rest,
                                   .type = COLL_BF16};
    const struct coll_op step = {.head = ends[_i % 4][0], .tail = ends[_i % 4][1]};
    struct plan plan, whole;
    ck_assert(plan_of(&plan, &ccomm, &call, 0, 0));
    plan.copies = _i / 8 % 2 != 0;
    whole = plan;
    ck_assert(plan.gathers == (ranks == 2) && plan_cut(&plan, step.head, step.tail, 0) && plan_measure(&plan, &ccomm));
    const struct plan_raw_part *head = &plan.raw_parts[PLAN_HEAD], *tail = &plan.raw_parts[PLAN_TAIL];
    ck_assert_uint_eq(head->count, step.head * PAGE);
    ck_assert_uint_eq(tail->count, step.tail > 0 ? step.tail * PAGE + rest : 0);
    ck_assert_uint_eq(head->count + plan.call.count + tail->count, call.count);
    ck_assert(head->from == 0 && tail->from == call.count - tail->count);
    ck_assert(plan_source(&plan, ranks - 1) == send + (ranks - 1) * 2 * call.count + 2 * head->count);
    ck_assert((plan.layout.tail_at != 0) == (step.tail == 0));
    ck_assert_uint_eq(plan_wire(&plan), (ranks - 1) * (plan.layout.message + head->bytes + tail->bytes));
    ck_assert_uint_gt(plan_wire(&plan), plan_wire(&whole));
    /* What comes of them has a place of its own. */
    const size_t copies = plan.copies ? ranks : 0;
    ck_assert(head->at >= plan.rest_at && head->out_at >= head->at + ranks * head->stride &&
              tail->at >= head->out_at + copies * head->stride && tail->out_at >= tail->at + ranks * tail->stride &&
              plan.found_at >= tail->out_at + copies * tail->stride);
    ck_assert(head->gathers == plan.gathers && tail->gathers == (plan.gathers && (tail->count == 0 || rest == 8)));
    ck_assert(head->gathers ? head->stride == head->bytes : head->stride == plan_aligned(head->bytes));
    ck_assert_uint_eq(tail->stride, tail->gathers ? tail->bytes : plan_aligned(tail->bytes));
    const size_t places[] = {head->at,      head->out_at,    tail->at,     tail->out_at,
                             plan.found_at, plan.results_at, plan.codec_at};
    for (int i = 0; i < COUNT(places); i++)
        ck_assert_uint_eq(places[i], plan_aligned(places[i]));
}

TEST(op_classes_differ_by_peer_direction_phase_and_type)
{
    enum { RANKS = 5, MOST = 64 };
    const struct coll_ccomm ccomm = {.ranks = RANKS};
    bool seen[MOST * 2] = {0};
    ck_assert_uint_le(ccomm_local_classes(&ccomm), COUNT(seen));
    for (int operation = 0; operation < COLL_OPERATIONS; operation++) {
        const bool pair = operation == COLL_SEND || operation == COLL_RECV;
        if (!pair && operation != COLL_ALL_GATHER && operation != COLL_ALL_REDUCE && operation != COLL_ALL_TO_ALL &&
            operation != COLL_REDUCE_SCATTER && operation != COLL_BROADCAST)
            continue;
        for (int i = 0; i < (pair ? RANKS : operation == COLL_ALL_REDUCE ? 2 : 1) * 3; i++) {
            const struct coll_call call = {.operation = operation, .type = types[i % 3], .peer = i / 3};
            const unsigned class = ccomm_local_class(&ccomm, &call, !pair && i / 3 > 0);
            ck_assert_int_eq(ccomm_local_class_type(class), types[i % 3]);
            ck_assert_uint_lt(class, ccomm_local_classes(&ccomm));
            ck_assert(!seen[class]);
            seen[class] = true;
        }
    }
}

int main(void)
{
    return run_tests("coll_plan", NULL, NULL);
}
