/* What does not fit arrives all the same, and then more room is given, by all ranks from the same operation on. */
#include <string.h>

#include "collective/engine/levels.h"
#include "tests/coll_engine/harness.h"

enum { COUNT_OF = 60001 };

/* Who has noise, at every turn. */
struct noise {
    const char *of; /* a letter for each turn: n: no rank, a: all, 0, 1, ...: that rank alone */
    int type;
};

static unsigned noisy_at(const struct noise *noise, unsigned turn)
{
    const char who = noise->of[turn];
    return who == 'a' ? ~0u : who == 'n' ? 0 : 1u << (who - '0');
}

static void set_up(void)
{
    fake_gpu.jitter_us = 200;
}

/* ---- Collectives ------------------------------------------------------------------------------------------------- */

static const struct noise gathers_of[] = {
    {"nnnnnnnn", COLL_BF16}, {"annnnnnn", COLL_BF16}, {"0nnn0nnn", COLL_BF16}, {"nnaannnn", COLL_BF16},
    {"n1n0n1n0", COLL_BF16}, {"aaaaaaaa", COLL_FP16}, {"1nnnnnn1", COLL_FP16}, {"01nnnnnn", COLL_FP16},
};

/* That noise needs. */
static unsigned raw_level(int type)
{
    unsigned level = 0;
    while (levels_share(type, level) != 0)
        level++;
    return level;
}

/* How many are compressed, when all ranks have asked for an operation and nothing else when it turns out not to fit.
 * `who`: whose noise counts. */
static unsigned long long count_compressed(const struct noise *noise, const char *who)
{
    struct level level = {0};
    unsigned long long compressed = 0;
    for (unsigned turn = 0; noise->of[turn] != '\0'; turn++) {
        if (levels_share(noise->type, levels_at(&level, turn)) == 0)
            continue;
        compressed++;
        if (strchr(who, noise->of[turn]) != NULL && levels_overflowed(&level, turn, raw_level(noise->type)))
            levels_step(&level, turn, turn + 1);
    }
    return compressed;
}

static void require_decisions(const struct rank *rank, const char *operation, const struct noise *noise,
                              const char *who)
{
    const struct told told = told_of(rank->comm, operation, type_name(noise->type));
    require(told.calls == strlen(noise->of) && told.compressed == count_compressed(noise, who));
}

/* Of a broadcast the root's noise counts: rank 1's. */
struct flow {
    const struct noise *noise;
    enum coll_operation what;
};

static void gather_or_broadcast(struct rank *rank)
{
    const struct flow *flow = rank->argument;
    const struct noise *noise = flow->noise;
    const bool gathers = flow->what == COLL_ALL_GATHER;
    struct operation operation = {
        .what = flow->what, .type = noise->type, .count = COUNT_OF, .other = VALUES_NOISE, .root = 1};
    operation_new(rank, &operation, 1, false);
    for (unsigned turn = 0; noise->of[turn] != '\0'; turn++) {
        operation.others = noisy_at(noise, turn);
        operation.seed = seed_of(turn, 0, 0);
        operation_fill(rank, &operation);
        require_ok(operation_post(rank, &operation));
        operation_check(rank, &operation);
        ranks_meet();
    }
    require_decisions(rank, gathers ? "all_gather" : "broadcast", noise, gathers ? "a01" : "a1");
}

START_TEST(operations_that_overflow_twice_get_a_higher_level)
{
    const bool gathers = _i < 2 * COUNT(gathers_of);
    const struct flow flow = {&gathers_of[_i % COUNT(gathers_of)], gathers ? COLL_ALL_GATHER : COLL_BROADCAST};
    ranks_run(2 + _i / COUNT(gathers_of) % 2, gather_or_broadcast, &flow);
    require((fake_gpu.taken == 0) == (strpbrk(flow.noise->of, gathers ? "a01" : "a1") == NULL));
}
END_TEST

/* Reductions, all-to-all and broadcasts: one block of one rank alone does not fit. Nothing waits in between. */
static void exchange_and_sum(struct rank *rank)
{
    enum { TURNS = 2, EACH = 3 };
    static const enum coll_operation whats[EACH] = {COLL_ALL_TO_ALL, COLL_REDUCE_SCATTER, COLL_BROADCAST};
    struct operation operations[TURNS][EACH];
    if (rank->argument != NULL)
        overlap_warm_up(rank, rank->comm, COLL_BF16);
    for (unsigned turn = 0; turn < TURNS; turn++)
        for (unsigned i = 0; i < EACH; i++) {
            operations[turn][i] = (struct operation){.what = whats[i],
                                                     .type = COLL_BF16,
                                                     .count = COUNT_OF,
                                                     .other = VALUES_NOISE,
                                                     .seed = seed_of(turn, 0, 0),
                                                     .root = 1};
            operation_new(rank, &operations[turn][i], 0, false);
            operation_fill(rank, &operations[turn][i]);
            if (rank->rank == 1)
                values_fill(operations[turn][i].out, COLL_BF16, COUNT_OF, VALUES_NOISE, seed_of(turn, 1, 0));
        }
    for (unsigned turn = 0; turn < TURNS; turn++)
        for (unsigned i = 0; i < EACH; i++)
            require_ok(operation_post(rank, &operations[turn][i]));
    for (unsigned turn = 0; turn < TURNS; turn++)
        for (unsigned i = 0; i < EACH; i++) {
            operations[turn][i].others =
                rank->rank == 0 || whats[i] == COLL_BROADCAST ? 1u << 1 : 0; /* that comes here */
            operation_check(rank, &operations[turn][i]);
        }
}

/* The second time with ends that stay uncompressed. */
static void run_maybe_overlapped(int i, void (*body)(struct rank *))
{
    static bool overlaps = true;
    if (i >= 3)
        overlap_begin();
    ranks_run(2 + i % 3, body, i >= 3 ? &overlaps : NULL);
}

START_TEST(one_block_that_overflows_arrives)
{
    run_maybe_overlapped(_i, exchange_and_sum);
    require(fake_gpu.taken > 0);
}
END_TEST

/* ---- Pairs ------------------------------------------------------------------------------------------------------- */

/* Both directions at once, some of them or all too large; a third rank is not asked. */
static void swap(struct rank *rank)
{
    const struct noise *noise = rank->argument;
    struct rank pair = *rank;
    struct operation operation = {.what = COLL_SEND, .type = noise->type, .count = COUNT_OF, .other = VALUES_NOISE};
    pair.ranks = 2;
    operation_new(rank, &operation, 0, false);
    for (unsigned turn = 0; noise->of[turn] != '\0' && rank->rank < 2; turn++) {
        operation.others = noisy_at(noise, turn);
        operation.seed = seed_of(turn, 0, 0);
        operation_fill(&pair, &operation);
        require_ok(operation_post(&pair, &operation));
        operation_check(&pair, &operation);
    }
    if (rank->rank < 2) /* what rank 0 sent did or did not fit */
        require_decisions(rank, rank->rank == 0 ? "send" : "recv", noise, "a0");
}

static const struct noise swaps[] = {
    {"nnnnnn", COLL_BF16}, {"aaaaaa", COLL_BF16}, {"111111", COLL_BF16},
    {"000000", COLL_BF16}, {"0nnnnn", COLL_FP16}, {"01a1n0", COLL_FP16},
};

START_TEST(directions_of_a_pair_have_levels_of_their_own)
{
    ranks_run(3, swap, &swaps[_i]);
}
END_TEST

/* Many messages of several types in one group, of which every other one is too large. */
static void flood(struct rank *rank)
{
    enum { MESSAGES = 12 };
    static const int types[] = {COLL_BF16, COLL_FP16, COLL_FP32};
    struct operation operations[MESSAGES];
    require_ok(ncclGroupStart());
    for (unsigned i = 0; i < MESSAGES; i++) {
        operations[i] = (struct operation){.what = COLL_SEND,
                                           .type = types[i % 3],
                                           .count = COUNT_OF,
                                           .kind = i % 2 == 0 ? VALUES_NOISE : VALUES_WIDENED,
                                           .seed = seed_of(i, 0, 0)};
        operation_new(rank, &operations[i], 0, false);
        operation_fill(rank, &operations[i]);
        require_ok(operation_post(rank, &operations[i]));
    }
    require_ok(ncclGroupEnd());
    for (unsigned i = 0; i < MESSAGES; i++)
        operation_check(rank, &operations[i]);
}

START_TEST(groups_of_many_overflows_arrive)
{
    ranks_run(_i, flood, NULL);
    require(fake_gpu.taken > 0);
}
END_TEST

/* ---- Steps and rest ---------------------------------------------------------------------------------------------- */

/* After a rest some operations try whether there can be less room: so few of so many (levels.c). */
enum { REST = 1024, TRIES = 16, TRYING = 16 * 61 };

/* The first ones and the last ones wait, so that what is agreed is as expected. */
static void wait_at_ends(const struct rank *rank, unsigned turn, unsigned turns)
{
    if (turn >= 10 && turn + 10 < turns)
        return;
    fake_stream_wait(rank->stream);
    ranks_meet();
}

/* FP32 of full mantissas goes up to what it needs and stays compressed; noise then goes up to raw; after the rest it is
 * tried again. */
static void step(struct rank *rank)
{
    enum { SMALL = 8200, TURNS = 6 + REST + TRYING + 20 };
    struct gather gather = gather_new(rank, COLL_FP32, SMALL, VALUES_NORMAL);
    unsigned long long seen[2] = {0};
    for (unsigned turn = 0; turn < TURNS; turn++) {
        const bool looked_at = turn < 10 || turn + 10 >= TURNS;
        if (looked_at) {
            fake_stream_wait(rank->stream); /* those before have not been waited for */
            gather_fill(rank, &gather,
                        turn < 4   ? VALUES_NORMAL
                        : turn < 8 ? VALUES_NOISE
                                   : VALUES_WIDENED,
                        seed_of(turn, 0, 0));
        }
        require_ok(gather_post(rank, &gather));
        wait_at_ends(rank, turn, TURNS);
        if (turn == 3 || turn == 7)
            seen[turn / 4] = told_of(rank->comm, "all_gather", "fp32").compressed;
        if (looked_at)
            gather_check(rank, &gather);
    }
    require(seen[0] == 4 && seen[1] == 6);
    /* Two overflowed at each of the levels. */
    const struct told told = told_of(rank->comm, "all_gather", "fp32");
    require(told.compressed == TURNS - REST - (TRYING - TRIES));
}

START_TEST(levels_go_up_and_after_a_rest_down)
{
    fake_gpu.jitter_us = 0;
    ranks_run(2, step, NULL);
}
END_TEST

/* One of four pages is noise, but of rank 1 two are: after two operations there is room for that, and no more; after
 * the rest, when there is no noise any more, there is again as little as at first. */
static void learn(struct rank *rank)
{
    enum { PAGE = 16384, PAGES = 4, TURNS = 2 + REST + TRYING + 20 };
    const size_t count = PAGES * PAGE, noise = (rank->rank == 1 ? 2 : 1) * PAGE;
    struct gather gather = gather_new(rank, COLL_BF16, count, VALUES_NORMAL);
    unsigned long long wire[TURNS + 1] = {0}, repaired = 0;
    values_fill(gather.own, COLL_BF16, noise, VALUES_NOISE, (unsigned)rank->rank);
    for (unsigned turn = 0; turn < TURNS; turn++) {
        if (turn == 5) /* before the rest ends */
            gather_fill(rank, &gather, VALUES_NORMAL, 0);
        require_ok(gather_post(rank, &gather));
        wait_at_ends(rank, turn, TURNS);
        wire[turn + 1] = told_of(rank->comm, "all_gather", "bf16").wire;
        if (turn == 1)
            repaired = fake_gpu.taken;
    }
    require(repaired > 0 && fake_gpu.taken == repaired);
    const unsigned long long first = wire[1], learnt = wire[3] - wire[2], last = wire[TURNS] - wire[TURNS - 1];
    require(learnt > first && last == first);
    /* Noise is moved as it is. */
    require(learnt >= count * 2 * (2 * 1024 + 2 * 650) / (4 * 1024));
    require(learnt <= count * 2 * (2 * 1024 + 2 * 700) / (4 * 1024) + count * 2 / 100);
}

START_TEST(levels_go_up_to_what_was_needed)
{
    fake_gpu.jitter_us = 0;
    ranks_run(2, learn, NULL);
}
END_TEST

/* Sums of all, of which parts or what they are made of do not fit: both phases are moved again, and arrive. */
static void sum_noise(struct rank *rank)
{
    const struct noise noise = {"n0n1aan", COLL_FP32};
    struct operation operation = {.what = COLL_ALL_REDUCE,
                                  .type = COLL_FP32,
                                  .count = 40001 * (size_t)rank->ranks,
                                  .kind = VALUES_WIDENED,
                                  .other = VALUES_NORMAL};
    unsigned long long calls = strlen(noise.of);
    operation_new(rank, &operation, 0, true);
    if (rank->argument != NULL) {
        overlap_warm_up(rank, rank->comm, COLL_FP32);
        calls += OVERLAP_AFTER;
    }
    for (unsigned turn = 0; noise.of[turn] != '\0'; turn++) {
        operation.others = noisy_at(&noise, turn);
        operation.seed = seed_of(turn, 0, 0);
        operation_fill(rank, &operation);
        require_ok(operation_post(rank, &operation));
        operation_check(rank, &operation);
        ranks_meet();
    }
    require_told(rank->comm, "all_reduce", "fp32", calls, calls); /* more room was all it took */
}

START_TEST(all_reduce_is_right_though_both_phases_overflow)
{
    run_maybe_overlapped(_i, sum_noise);
    require(fake_gpu.taken > 0);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("overflow");
    tcase_add_checked_fixture(tests, set_up, NULL);
    add_loop(tests, operations_that_overflow_twice_get_a_higher_level, 0, 4 * COUNT(gathers_of));
    add_loop(tests, one_block_that_overflows_arrives, 0, 6);
    add_loop(tests, directions_of_a_pair_have_levels_of_their_own, 0, COUNT(swaps));
    tcase_add_loop_test(tests, groups_of_many_overflows_arrive, 2, 5);
    tcase_add_test(tests, levels_go_up_and_after_a_rest_down);
    tcase_add_test(tests, levels_go_up_to_what_was_needed);
    add_loop(tests, all_reduce_is_right_though_both_phases_overflow, 0, 6);
    return suite_run("overflow", tests);
}
