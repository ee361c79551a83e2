/* What does not fit arrives all the same, and then more room is given, by all ranks from the same operation on. */
#include <string.h>

#include "collective/engine/levels.h"
#include "collective/reduce.h"

#include "tests/coll_engine/harness.h"

enum { COUNT_OF = 60001 };
enum { BYTES = COUNT_OF * 2 };

static uint64_t seed_of(unsigned turn, int from, int to)
{
    return 10000 * turn + 100 * (unsigned)from + (unsigned)to;
}

/* Who has noise, at every turn. */
struct noise {
    const char *of; /* a letter for each turn: n: no rank, a: all, 0, 1, ...: that rank alone */
    int type;
};

static enum values kind_at(const struct noise *noise, unsigned turn, int rank)
{
    const char who = noise->of[turn];
    return who == 'a' || who - '0' == rank ? VALUES_NOISE : VALUES_NORMAL;
}

static void begin(void)
{
    fake_gpu.jitter_us = 200;
    setenv("STRAIT_COLL", "compress", 1);
}

/* ---- Collectives ------------------------------------------------------------------------------------------------- */

static const struct noise gathers[] = {
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

static void gather(struct rank *rank)
{
    const struct noise *noise = rank->argument;
    uint8_t *own = values_new(noise->type, COUNT_OF, 1);
    uint8_t *all = values_new(noise->type, COUNT_OF * (size_t)rank->ranks, 1);
    for (unsigned turn = 0; noise->of[turn] != '\0'; turn++) {
        values_fill(own, noise->type, COUNT_OF, kind_at(noise, turn, rank->rank), seed_of(turn, rank->rank, 0));
        require_ok(ncclAllGather(own, all, COUNT_OF, noise->type, rank->comm, rank->stream));
        fake_stream_wait(rank->stream);
        for (int from = 0; from < rank->ranks; from++)
            require(values_are(all + (size_t)from * BYTES, noise->type, COUNT_OF, kind_at(noise, turn, from),
                               seed_of(turn, from, 0)));
        ranks_meet();
    }
    require_decisions(rank, "all_gather", noise, "a01");
    values_free(own, noise->type, 1);
    values_free(all, noise->type, 1);
}

START_TEST(gathers_that_overflow_twice_get_more_room)
{
    begin();
    ranks_run(2 + _i / COUNT(gathers), gather, (void *)(uintptr_t)&gathers[_i % COUNT(gathers)]);
    const bool quiet =
        strchr(gathers[_i % COUNT(gathers)].of, 'a') == NULL && strpbrk(gathers[_i % COUNT(gathers)].of, "01") == NULL;
    require((fake_gpu.taken == 0) == quiet);
}
END_TEST

/* Reductions and all-to-all: one block of one rank alone does not fit. Nothing waits in between. */
static void exchange_and_sum(struct rank *rank)
{
    enum { TURNS = 2 };
    const size_t ranks = (size_t)rank->ranks;
    uint8_t *out[TURNS], *in[TURNS], *sum[TURNS];
    if (rank->argument != NULL)
        overlap_warm_up(rank, rank->comm, COLL_BF16);
    for (unsigned turn = 0; turn < TURNS; turn++) {
        out[turn] = values_new(COLL_BF16, COUNT_OF * ranks, 0);
        in[turn] = values_new(COLL_BF16, COUNT_OF * ranks, 0);
        sum[turn] = values_new(COLL_BF16, COUNT_OF, 0);
        for (int to = 0; to < rank->ranks; to++)
            values_fill(out[turn] + (size_t)to * BYTES, COLL_BF16, COUNT_OF,
                        rank->rank == 1 && to == 0 ? VALUES_NOISE : VALUES_NORMAL, seed_of(turn, rank->rank, to));
    }
    for (unsigned turn = 0; turn < TURNS; turn++) {
        require_ok(ncclAlltoAll(out[turn], in[turn], COUNT_OF, COLL_BF16, rank->comm, rank->stream));
        require_ok(ncclReduceScatter(out[turn], sum[turn], COUNT_OF, COLL_BF16, COLL_SUM, rank->comm, rank->stream));
    }
    fake_stream_wait(rank->stream);
    for (unsigned turn = 0; turn < TURNS; turn++) {
        struct coll_reduce reduce = {.type = COLL_REDUCE_BF16, .sources = (uint32_t)ranks, .count = COUNT_OF};
        uint8_t *expected = reduce.dst = values_new(COLL_BF16, COUNT_OF, 0);
        for (int from = 0; from < rank->ranks; from++) {
            reduce.source[from] = in[turn] + (size_t)from * BYTES;
            require(values_are(reduce.source[from], COLL_BF16, COUNT_OF,
                               from == 1 && rank->rank == 0 ? VALUES_NOISE : VALUES_NORMAL,
                               seed_of(turn, from, rank->rank)));
        }
        require(coll_reduce_scalar(&reduce) == STRAIT_OK && memcmp(expected, sum[turn], BYTES) == 0);
        values_free(expected, COLL_BF16, 0);
        values_free(out[turn], COLL_BF16, 0);
        values_free(in[turn], COLL_BF16, 0);
        values_free(sum[turn], COLL_BF16, 0);
    }
}

/* The second time with ends that stay uncompressed. */
static void run_maybe_overlapped(int i, void (*body)(struct rank *))
{
    static bool overlaps = true;
    begin();
    if (i >= 3)
        overlap_begin();
    ranks_run(2 + i % 3, body, i >= 3 ? &overlaps : NULL);
}

START_TEST(one_block_that_overflows_is_known_to_all)
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
    const int peer = 1 - rank->rank;
    uint8_t *out = values_new(noise->type, COUNT_OF, 0), *in = values_new(noise->type, COUNT_OF, 0);
    for (unsigned turn = 0; noise->of[turn] != '\0' && rank->rank < 2; turn++) {
        values_fill(out, noise->type, COUNT_OF, kind_at(noise, turn, rank->rank), seed_of(turn, rank->rank, 0));
        require_ok(ncclGroupStart());
        require_ok(ncclSend(out, COUNT_OF, noise->type, peer, rank->comm, rank->stream));
        require_ok(ncclRecv(in, COUNT_OF, noise->type, peer, rank->comm, rank->stream));
        require_ok(ncclGroupEnd());
        fake_stream_wait(rank->stream);
        require(values_are(in, noise->type, COUNT_OF, kind_at(noise, turn, peer), seed_of(turn, peer, 0)));
    }
    if (rank->rank == 1) /* what rank 0 sent did or did not fit */
        require_decisions(rank, "recv", noise, "a0");
    if (rank->rank == 0)
        require_decisions(rank, "send", noise, "a0");
    values_free(out, noise->type, 0);
    values_free(in, noise->type, 0);
}

static const struct noise swaps[] = {
    {"nnnnnn", COLL_BF16}, {"aaaaaa", COLL_BF16}, {"111111", COLL_BF16},
    {"000000", COLL_BF16}, {"0nnnnn", COLL_FP16}, {"01a1n0", COLL_FP16},
};

START_TEST(directions_of_a_pair_step_on_their_own)
{
    begin();
    ranks_run(3, swap, (void *)(uintptr_t)&swaps[_i]);
}
END_TEST

/* Many messages of several types in one group, of which every other one is too large. */
static void flood(struct rank *rank)
{
    enum { MESSAGES = 12 };
    static const int types[] = {COLL_BF16, COLL_FP16, COLL_FP32};
    void *out[MESSAGES], *in[MESSAGES];
    require_ok(ncclGroupStart());
    for (unsigned i = 0; i < MESSAGES; i++) {
        const int type = types[i % 3], next = (rank->rank + 1) % rank->ranks;
        const int before = (rank->rank + rank->ranks - 1) % rank->ranks;
        out[i] = values_new(type, COUNT_OF, 0);
        in[i] = values_new(type, COUNT_OF, 0);
        values_fill(out[i], type, COUNT_OF, i % 2 == 0 ? VALUES_NOISE : VALUES_WIDENED, seed_of(i, rank->rank, 0));
        require_ok(ncclSend(out[i], COUNT_OF, type, next, rank->comm, rank->stream));
        require_ok(ncclRecv(in[i], COUNT_OF, type, before, rank->comm, rank->stream));
    }
    require_ok(ncclGroupEnd());
    fake_stream_wait(rank->stream);
    for (unsigned i = 0; i < MESSAGES; i++) {
        const int before = (rank->rank + rank->ranks - 1) % rank->ranks;
        require(values_are(in[i], types[i % 3], COUNT_OF, i % 2 == 0 ? VALUES_NOISE : VALUES_WIDENED,
                           seed_of(i, before, 0)));
        values_free(out[i], types[i % 3], 0);
        values_free(in[i], types[i % 3], 0);
    }
}

START_TEST(groups_with_many_that_overflow_arrive)
{
    begin();
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
    float *own = values_new(COLL_FP32, SMALL, 0), *all = values_new(COLL_FP32, 2 * SMALL, 0);
    unsigned long long seen[4] = {0};
    for (unsigned turn = 0; turn < TURNS; turn++) {
        const bool looked_at = turn < 10 || turn + 10 >= TURNS;
        const enum values kind = turn < 4 ? VALUES_NORMAL : turn < 8 ? VALUES_NOISE : VALUES_WIDENED;
        if (looked_at) {
            fake_stream_wait(rank->stream); /* those before have not been waited for */
            values_fill(own, COLL_FP32, SMALL, kind, seed_of(turn, rank->rank, 0));
        }
        require_ok(ncclAllGather(own, all, SMALL, COLL_FP32, rank->comm, rank->stream));
        wait_at_ends(rank, turn, TURNS);
        if (turn == 3 || turn == 7)
            seen[turn / 4] = told_of(rank->comm, "all_gather", "fp32").compressed;
        for (int from = 0; from < 2 && looked_at; from++)
            require(values_are(all + (size_t)from * SMALL, COLL_FP32, SMALL, kind, seed_of(turn, from, 0)));
    }
    require(seen[0] == 4 && seen[1] == 6);
    /* Two overflowed at each of the levels. */
    const struct told told = told_of(rank->comm, "all_gather", "fp32");
    require(told.compressed == TURNS - REST - (TRYING - TRIES));
    values_free(own, COLL_FP32, 0);
    values_free(all, COLL_FP32, 0);
}

START_TEST(levels_go_up_and_after_a_rest_down)
{
    setenv("STRAIT_COLL", "compress", 1);
    ranks_run(2, step, NULL);
}
END_TEST

/* One of four pages is noise, but of rank 1 two are: after two operations there is room for that, and no more; after
 * the rest, when there is no noise any more, there is again as little as at first. */
static void learn(struct rank *rank)
{
    enum { PAGE = 16384, PAGES = 4, TURNS = 2 + REST + TRYING + 20 };
    const size_t count = PAGES * PAGE, noise = (rank->rank == 1 ? 2 : 1) * PAGE;
    uint8_t *own = values_new(COLL_BF16, count, 0), *all = values_new(COLL_BF16, count * (size_t)rank->ranks, 0);
    unsigned long long wire[TURNS + 1] = {0}, repaired = 0;
    values_fill(own, COLL_BF16, count, VALUES_NORMAL, (unsigned)rank->rank);
    values_fill(own, COLL_BF16, noise, VALUES_NOISE, (unsigned)rank->rank);
    for (unsigned turn = 0; turn < TURNS; turn++) {
        if (turn == 5) /* before the rest ends */
            values_fill(own, COLL_BF16, count, VALUES_NORMAL, (unsigned)rank->rank);
        require_ok(ncclAllGather(own, all, count, COLL_BF16, rank->comm, rank->stream));
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
    values_free(own, COLL_BF16, 0);
    values_free(all, COLL_BF16, 0);
}

START_TEST(there_is_as_much_room_as_was_needed)
{
    setenv("STRAIT_COLL", "compress", 1);
    ranks_run(2, learn, NULL);
}
END_TEST

/* Sums of all, of which parts or what they are made of do not fit: both phases are moved again, and arrive. */
static void sum_noise(struct rank *rank)
{
    const char *of = "n0n1aan";
    const size_t count = 40001 * (size_t)rank->ranks, bytes = count * 4;
    uint8_t *own = values_new(COLL_FP32, count, 0), *sum = values_new(COLL_FP32, count, 0);
    struct coll_reduce expected = {
        .type = COLL_REDUCE_FP32, .sources = (uint32_t)rank->ranks, .dst = sum, .count = count};
    if (rank->argument != NULL)
        overlap_warm_up(rank, rank->comm, COLL_FP32);
    for (unsigned turn = 0; of[turn] != '\0'; turn++) {
        const bool noisy = of[turn] == 'a' || of[turn] - '0' == rank->rank;
        void *values[8];
        for (int from = 0; from < rank->ranks; from++) {
            expected.source[from] = values[from] = values_new(COLL_FP32, count, 0);
            values_fill(values[from], COLL_FP32, count,
                        of[turn] == 'a' || of[turn] - '0' == from ? VALUES_NORMAL : VALUES_WIDENED,
                        seed_of(turn, from, 0));
        }
        values_fill(own, COLL_FP32, count, noisy ? VALUES_NORMAL : VALUES_WIDENED, seed_of(turn, rank->rank, 0));
        require_ok(ncclAllReduce(own, own, count, COLL_FP32, COLL_SUM, rank->comm, rank->stream));
        fake_stream_wait(rank->stream);
        require(coll_reduce_scalar(&expected) == STRAIT_OK && memcmp(own, sum, bytes) == 0);
        for (int from = 0; from < rank->ranks; from++)
            values_free(values[from], COLL_FP32, 0);
        ranks_meet();
    }
    const struct told told = told_of(rank->comm, "all_reduce", "fp32");
    require(told.compressed ==
            strlen(of) + (rank->argument != NULL ? OVERLAP_AFTER : 0)); /* more room was all it took */
    values_free(own, COLL_FP32, 0);
    values_free(sum, COLL_FP32, 0);
}

START_TEST(sums_of_all_arrive_though_they_do_not_fit)
{
    run_maybe_overlapped(_i, sum_noise);
    require(fake_gpu.taken > 0);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("overflow");
    add_loop(tests, gathers_that_overflow_twice_get_more_room, 0, 2 * COUNT(gathers));
    add_loop(tests, one_block_that_overflows_is_known_to_all, 0, 6);
    add_loop(tests, directions_of_a_pair_step_on_their_own, 0, COUNT(swaps));
    tcase_add_loop_test(tests, groups_with_many_that_overflow_arrive, 2, 5);
    tcase_add_test(tests, levels_go_up_and_after_a_rest_down);
    tcase_add_test(tests, there_is_as_much_room_as_was_needed);
    add_loop(tests, sums_of_all_arrive_though_they_do_not_fit, 0, 6);
    return suite_run("overflow", tests);
}
