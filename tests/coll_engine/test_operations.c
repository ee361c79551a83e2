/* Every operation that is compressed gives what it gives without, bit for bit. */
#include <string.h>

#include "collective/reduce.h"

#include "tests/coll_engine/harness.h"

struct kind {
    int type;
    enum values values;
    size_t count;
    size_t shift;
    bool in_place;
};

/* One page, pages and a tail of one value, many pages and a tail; addresses of elements. */
static const struct kind kinds[] = {
    {COLL_BF16, VALUES_NORMAL, 65536, 0, false},  {COLL_BF16, VALUES_NORMAL, 32769, 1, true},
    {COLL_FP16, VALUES_NORMAL, 100001, 3, false}, {COLL_FP32, VALUES_WIDENED, 16384, 0, true},
    {COLL_FP32, VALUES_WIDENED, 50003, 1, false}, {COLL_BF16, VALUES_NORMAL, 16384, 5, false},
};

static const int ranks_of[] = {2, 3, 4};

static const struct kind *kind_of(int i)
{
    return &kinds[i % COUNT(kinds)];
}

/* Each kind goes with two of the three, by turns. */
static int ranks_at(int i)
{
    return ranks_of[(i / COUNT(kinds) + i) % COUNT(ranks_of)];
}

static const char *type_of(const struct kind *kind)
{
    return type_name(kind->type);
}

enum { TIMES = 3 };
static unsigned times = TIMES;                 /* that each operation is called */
static _Thread_local unsigned long long first; /* bytes that NCCL was handed for the first of them */

static void require_compressed(const struct rank *rank, const char *operation, unsigned long long calls, size_t raw)
{
    const struct kind *kind = rank->argument;
    const struct told told = told_of(rank->comm, operation, type_of(kind));
    require(told.calls == calls && told.compressed == calls && told.wire > 0 && told.wire < calls * raw);
}

static void note_first(const struct rank *rank, const char *operation, unsigned turn)
{
    if (turn == 0)
        first = told_of(rank->comm, operation, type_of(rank->argument)).wire;
}

static void run(int i, void (*body)(struct rank *))
{
    fake_gpu.jitter_us = 300;
    setenv("STRAIT_COLL", "compress", 1);
    ranks_run(ranks_at(i), body, (void *)(uintptr_t)kind_of(i));
}

/* ---- What arrives as it was -------------------------------------------------------------------------------------- */

static void gather(struct rank *rank)
{
    const struct kind *kind = rank->argument;
    const size_t count = kind->count, bytes = count * element_bytes(kind->type);
    uint8_t *all = values_new(kind->type, count * (size_t)rank->ranks, kind->shift);
    uint8_t *own = kind->in_place ? all + (size_t)rank->rank * bytes : values_new(kind->type, count, kind->shift);
    for (unsigned turn = 0; turn < times; turn++) {
        values_fill(own, kind->type, count, kind->values, 100 * turn + (unsigned)rank->rank);
        require_ok(ncclAllGather(own, all, count, kind->type, rank->comm, rank->stream));
        fake_stream_wait(rank->stream);
        note_first(rank, "all_gather", turn);
        for (unsigned from = 0; from < (unsigned)rank->ranks; from++)
            require(values_are(all + from * bytes, kind->type, count, kind->values, 100 * turn + from));
    }
    require_compressed(rank, "all_gather", times, bytes);
    if (!kind->in_place)
        values_free(own, kind->type, kind->shift);
    values_free(all, kind->type, kind->shift);
}

START_TEST(all_gather_gives_every_rank_all_values)
{
    run(_i, gather);
}
END_TEST

static uint64_t seed_of(unsigned turn, int from, int to)
{
    return 10000 * turn + 100 * (unsigned)from + (unsigned)to;
}

static void exchange(struct rank *rank)
{
    const struct kind *kind = rank->argument;
    const size_t count = kind->count, bytes = count * element_bytes(kind->type), all = count * (size_t)rank->ranks;
    uint8_t *out = values_new(kind->type, all, kind->shift), *in = values_new(kind->type, all, kind->shift);
    for (unsigned turn = 0; turn < times; turn++) {
        for (int to = 0; to < rank->ranks; to++)
            values_fill(out + (size_t)to * bytes, kind->type, count, kind->values, seed_of(turn, rank->rank, to));
        require_ok(ncclAlltoAll(out, in, count, kind->type, rank->comm, rank->stream));
        fake_stream_wait(rank->stream);
        note_first(rank, "all_to_all", turn);
        for (int from = 0; from < rank->ranks; from++)
            require(values_are(in + (size_t)from * bytes, kind->type, count, kind->values,
                               seed_of(turn, from, rank->rank)));
    }
    require_compressed(rank, "all_to_all", times, (size_t)(rank->ranks - 1) * bytes);
    values_free(out, kind->type, kind->shift);
    values_free(in, kind->type, kind->shift);
}

START_TEST(all_to_all_gives_every_rank_its_part)
{
    run(_i, exchange);
}
END_TEST

/* Around the ring: each sends to the next one, in one group and, by turns, out of groups. */
static void send_around(struct rank *rank)
{
    const struct kind *kind = rank->argument;
    const size_t count = kind->count;
    const int next = (rank->rank + 1) % rank->ranks, before = (rank->rank + rank->ranks - 1) % rank->ranks;
    void *out = values_new(kind->type, count, kind->shift), *in = values_new(kind->type, count, kind->shift);
    for (unsigned turn = 0; turn < TIMES; turn++) {
        values_fill(out, kind->type, count, kind->values, seed_of(turn, rank->rank, next));
        if (turn != 1)
            require_ok(ncclGroupStart());
        if (rank->rank % 2 == 0)
            require_ok(ncclSend(out, count, kind->type, next, rank->comm, rank->stream));
        require_ok(ncclRecv(in, count, kind->type, before, rank->comm, rank->stream));
        if (rank->rank % 2 != 0)
            require_ok(ncclSend(out, count, kind->type, next, rank->comm, rank->stream));
        if (turn != 1)
            require_ok(ncclGroupEnd());
        fake_stream_wait(rank->stream);
        require(values_are(in, kind->type, count, kind->values, seed_of(turn, before, rank->rank)));
    }
    require_compressed(rank, "send", TIMES, count * element_bytes(kind->type));
    require(told_of(rank->comm, "recv", type_of(kind)).compressed == TIMES);
    values_free(out, kind->type, kind->shift);
    values_free(in, kind->type, kind->shift);
}

START_TEST(sends_arrive_around_a_ring)
{
    run(_i, send_around);
}
END_TEST

/* ---- Sums -------------------------------------------------------------------------------------------------------- */

static enum coll_reduce_order order = COLL_REDUCE_IN_FP32;

/* What `rank` of all has: the sum that the reduction is specified by. Values of rank r for block d: seed_of(turn, r,
 * d). */
static void sum_of(const struct kind *kind, size_t count, int ranks, int block, bool same, int reduction, unsigned turn,
                   void *sum)
{
    struct coll_reduce reduce = {.type = kind->type == COLL_BF16   ? COLL_REDUCE_BF16
                                         : kind->type == COLL_FP16 ? COLL_REDUCE_FP16
                                                                   : COLL_REDUCE_FP32,
                                 .operation = reduction == COLL_AVG ? COLL_REDUCE_AVG : COLL_REDUCE_SUM,
                                 .order = order,
                                 .sources = (uint32_t)ranks,
                                 .rank = (uint32_t)block,
                                 .dst = sum,
                                 .count = count};
    void *values[8];
    for (int from = 0; from < ranks; from++) {
        reduce.source[from] = values[from] = values_new(kind->type, count, 0);
        values_fill(values[from], kind->type, count, kind->values, seed_of(turn, from, same ? 0 : block));
    }
    require(coll_reduce_scalar(&reduce) == STRAIT_OK);
    for (int from = 0; from < ranks; from++)
        values_free(values[from], kind->type, 0);
}

static int reduction_of(unsigned turn)
{
    return turn == 1 ? COLL_AVG : COLL_SUM;
}

static void scatter_sums(struct rank *rank)
{
    const struct kind *kind = rank->argument;
    const size_t count = kind->count, bytes = count * element_bytes(kind->type), all = count * (size_t)rank->ranks;
    uint8_t *out = values_new(kind->type, all, kind->shift), *sum = values_new(kind->type, count, 0);
    uint8_t *in = kind->in_place ? out + (size_t)rank->rank * bytes : values_new(kind->type, count, kind->shift);
    for (unsigned turn = 0; turn < times; turn++) {
        for (int to = 0; to < rank->ranks; to++)
            values_fill(out + (size_t)to * bytes, kind->type, count, kind->values, seed_of(turn, rank->rank, to));
        require_ok(ncclReduceScatter(out, in, count, kind->type, reduction_of(turn), rank->comm, rank->stream));
        fake_stream_wait(rank->stream);
        note_first(rank, "reduce_scatter", turn);
        sum_of(kind, count, rank->ranks, rank->rank, false, reduction_of(turn), turn, sum);
        require(memcmp(in, sum, bytes) == 0);
    }
    require_compressed(rank, "reduce_scatter", times, (size_t)(rank->ranks - 1) * bytes);
    if (!kind->in_place)
        values_free(in, kind->type, kind->shift);
    values_free(out, kind->type, kind->shift);
    values_free(sum, kind->type, 0);
}

START_TEST(reduce_scatter_gives_every_rank_its_sum)
{
    run(_i, scatter_sums);
}
END_TEST

START_TEST(sums_can_be_those_of_the_ring_of_nccl)
{
    order = COLL_REDUCE_NCCL_RING;
    setenv("STRAIT_COLL_ORDER", "nccl-ring", 1);
    run(_i, scatter_sums);
}
END_TEST

/* Of more than two ranks every part is a message, and some values are left behind them. */
static size_t count_of_all(const struct kind *kind, int ranks)
{
    return ranks == 2 ? kind->count : kind->count * (size_t)ranks + 8 * (size_t)ranks - 1;
}

static void sum_all(struct rank *rank)
{
    const struct kind *kind = rank->argument;
    const size_t count = count_of_all(kind, rank->ranks), bytes = count * element_bytes(kind->type);
    uint8_t *out = values_new(kind->type, count, kind->shift), *sum = values_new(kind->type, count, 0);
    uint8_t *in = kind->in_place ? out : values_new(kind->type, count, kind->shift);
    for (unsigned turn = 0; turn < times; turn++) {
        values_fill(out, kind->type, count, kind->values, seed_of(turn, rank->rank, 0));
        require_ok(ncclAllReduce(out, in, count, kind->type, reduction_of(turn), rank->comm, rank->stream));
        fake_stream_wait(rank->stream);
        note_first(rank, "all_reduce", turn);
        sum_of(kind, count, rank->ranks, 0, true, reduction_of(turn), turn, sum);
        require(memcmp(in, sum, bytes) == 0);
    }
    require_compressed(rank, "all_reduce", times, bytes);
    if (!kind->in_place)
        values_free(in, kind->type, kind->shift);
    values_free(out, kind->type, kind->shift);
    values_free(sum, kind->type, 0);
}

START_TEST(all_reduce_gives_every_rank_the_sum)
{
    run(_i, sum_all);
}
END_TEST

START_TEST(all_reduce_of_eight_gives_every_rank_the_sum)
{
    fake_gpu.jitter_us = 100;
    setenv("STRAIT_COLL", "compress", 1);
    ranks_run(8, sum_all, (void *)(uintptr_t)&kinds[_i]);
}
END_TEST

/* Of two ranks the order makes no difference. Of more NCCL's own bits are wanted, which only its own cuts give. */
static void sum_around(struct rank *rank)
{
    const struct kind *kind = rank->argument;
    const size_t count = count_of_all(kind, rank->ranks), bytes = count * element_bytes(kind->type);
    uint8_t *own = values_new(kind->type, count, 0);
    values_fill(own, kind->type, count, kind->values, seed_of(0, rank->rank, 0));
    require_ok(ncclAllReduce(own, own, count, kind->type, COLL_SUM, rank->comm, rank->stream));
    fake_stream_wait(rank->stream);
    const struct told told = told_of(rank->comm, "all_reduce", type_of(kind));
    if (rank->ranks == 2)
        require_compressed(rank, "all_reduce", 1, bytes);
    else
        require(told.compressed == 0 && strcmp(told.reason, "raw: NCCL's ring cuts it otherwise") == 0);
    values_free(own, kind->type, 0);
}

START_TEST(all_reduce_of_more_than_two_keeps_the_ring_of_nccl)
{
    setenv("STRAIT_COLL_ORDER", "nccl-ring", 1);
    setenv("STRAIT_COLL", "compress", 1);
    ranks_run(2 + _i, sum_around, (void *)(uintptr_t)&kinds[1]);
}
END_TEST

/* ---- With a prologue and an epilogue that stay uncompressed --------------------------------------------------------
 */

static const struct overlapped {
    void (*body)(struct rank *rank);
    const char *operation;
} overlapped[] = {
    {gather, "all_gather"}, {exchange, "all_to_all"}, {scatter_sums, "reduce_scatter"}, {sum_all, "all_reduce"}};
static const struct overlapped *overlaps;

/* Another thread of the process may wait for a GPU meanwhile, and hold up who makes a stream. */
static void make_no_streams(struct rank *rank)
{
    ranks_meet();
    fake_gpu.no_streams = true;
    overlaps->body(rank);
    const unsigned long long wire = told_of(rank->comm, overlaps->operation, type_of(rank->argument)).wire;
    require((wire > times * first) == (getenv("STRAIT_TEST_HOSTS") == NULL));
}

START_TEST(overlapped_operations_give_the_same)
{
    static const int long_kinds[] = {0, 2, 4}; /* of at least three pages */
    const int at = _i / COUNT(overlapped);
    overlaps = &overlapped[_i % COUNT(overlapped)];
    times = OVERLAP_AFTER + TIMES;
    fake_gpu.jitter_us = 300;
    overlap_begin();
    ranks_run(ranks_of[(_i + at) % COUNT(ranks_of)], make_no_streams, (void *)(uintptr_t)&kinds[long_kinds[at]]);
}
END_TEST

/* ---- What stays as it was ---------------------------------------------------------------------------------------- */

/* By NCCL itself, and counted as that: of other types, reductions and operations, of little. */
static void pass(struct rank *rank)
{
    enum { COUNT_OF = 40000 };
    float *out = values_new(COLL_FP32, COUNT_OF, 0), *in = values_new(COLL_FP32, COUNT_OF * 3, 0);
    values_fill(out, COLL_FP32, COUNT_OF, VALUES_WIDENED, (unsigned)rank->rank);
    require_ok(ncclAllReduce(out, in, 3 * 8191, COLL_FP32, COLL_SUM, rank->comm, rank->stream)); /* parts are small */
    require_ok(ncclBroadcast(out, in, COUNT_OF, COLL_FP32, 1, rank->comm, rank->stream));
    fake_stream_wait(rank->stream);
    require(values_are(in, COLL_FP32, COUNT_OF, VALUES_WIDENED, 1));
    require_ok(ncclAllGather(out, in, 8191, COLL_FP32, rank->comm, rank->stream));
    require_ok(ncclAllGather(out, in, COUNT_OF, COLL_INT32, rank->comm, rank->stream));
    fake_stream_wait(rank->stream);
    for (unsigned from = 0; from < 3; from++)
        require(values_are(in + from * COUNT_OF, COLL_FP32, COUNT_OF, VALUES_WIDENED, from));
    const struct told reduced = told_of(rank->comm, "all_reduce", "fp32");
    require(reduced.calls == 1 && reduced.compressed == 0);
    require(strcmp(reduced.reason, "raw: too small or too large") == 0);
    require(strcmp(told_of(rank->comm, "broadcast", "fp32").reason, "raw: operation is not compressed") == 0);
    require(strcmp(told_of(rank->comm, "all_gather", "fp32").reason, "raw: too small or too large") == 0);
    require(strcmp(told_of(rank->comm, "all_gather", "int32").reason, "raw: type is not compressed") == 0);
    values_free(out, COLL_FP32, 0);
    values_free(in, COLL_FP32, 0);
}

START_TEST(what_is_not_compressed_is_done_by_nccl)
{
    setenv("STRAIT_COLL", "compress", 1);
    ranks_run(3, pass, NULL);
}
END_TEST

int main(void)
{
    const int all = 2 * COUNT(kinds);
    TCase *tests = tcase_create("operations");
    add_loop(tests, all_gather_gives_every_rank_all_values, 0, all);
    add_loop(tests, all_to_all_gives_every_rank_its_part, 0, all);
    add_loop(tests, sends_arrive_around_a_ring, 0, all);
    add_loop(tests, reduce_scatter_gives_every_rank_its_sum, 0, all);
    add_loop(tests, sums_can_be_those_of_the_ring_of_nccl, 0, all);
    add_loop(tests, all_reduce_gives_every_rank_the_sum, 0, all);
    tcase_add_loop_test(tests, all_reduce_of_eight_gives_every_rank_the_sum, 3, 6);
    tcase_add_loop_test(tests, all_reduce_of_more_than_two_keeps_the_ring_of_nccl, 0, 2);
    add_loop(tests, overlapped_operations_give_the_same, 0, 3 * COUNT(overlapped));
    tcase_add_test(tests, what_is_not_compressed_is_done_by_nccl);
    return suite_run("operations", tests);
}
