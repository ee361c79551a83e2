/* Every operation that is compressed gives what it gives without, bit for bit. */
#include <string.h>

#include "tests/coll_engine/harness.h"

/* One page, pages and a tail of one value, many pages and a tail; addresses of elements. */
static const struct kind {
    int type;
    enum values values;
    size_t count, shift;
    bool in_place;
} kinds[] = {
    {COLL_BF16, VALUES_NORMAL, 65536, 0, false},  {COLL_BF16, VALUES_NORMAL, 32769, 1, true},
    {COLL_FP16, VALUES_NORMAL, 100001, 3, false}, {COLL_FP32, VALUES_WIDENED, 16384, 0, true},
    {COLL_FP32, VALUES_WIDENED, 50003, 1, false}, {COLL_BF16, VALUES_NORMAL, 16384, 5, false},
};

static const struct subject {
    enum coll_operation what;
    const char *name;
    enum coll_reduce_order order;
} subjects[] = {
    {COLL_ALL_GATHER, "all_gather", COLL_REDUCE_IN_FP32},
    {COLL_ALL_TO_ALL, "all_to_all", COLL_REDUCE_IN_FP32},
    {COLL_REDUCE_SCATTER, "reduce_scatter", COLL_REDUCE_IN_FP32},
    {COLL_ALL_REDUCE, "all_reduce", COLL_REDUCE_IN_FP32},
    {COLL_BROADCAST, "broadcast", COLL_REDUCE_IN_FP32},
    {COLL_REDUCE_SCATTER, "reduce_scatter", COLL_REDUCE_NCCL_RING},
    {COLL_SEND, "send", COLL_REDUCE_IN_FP32},
};

enum { ALL_REDUCE = 3, OVERLAPPED = 5 /* so many of them */, EACH = 2 * COUNT(kinds) };

static const int ranks_of[] = {2, 3, 4};

struct scene {
    const struct subject *subject;
    const struct kind *kind;
    unsigned times;
    bool overlaps;
};

/* Of all_reduce of more than two ranks every part is a message, and some values are left behind them. */
static size_t count_of(const struct scene *scene, int ranks)
{
    if (scene->subject->what != COLL_ALL_REDUCE || ranks == 2)
        return scene->kind->count;
    return scene->kind->count * (size_t)ranks + 8 * (size_t)ranks - 1;
}

static void require_compressed(const struct rank *rank, const struct operation *operation, const char *name,
                               unsigned long long calls)
{
    const size_t bytes = operation->count * element_bytes(operation->type);
    const size_t raw = operation_scatters(operation->what) ? (size_t)(rank->ranks - 1) * bytes : bytes;
    const struct told told = told_of(rank->comm, name, type_name(operation->type));
    require(told.calls == calls && told.compressed == calls && told.wire > 0 && told.wire < calls * raw);
}

/* In no group: ranks with even numbers send first. */
static void send_then_receive(const struct rank *rank, const struct operation *operation)
{
    for (int i = 0; i < 2; i++)
        if (rank->rank % 2 == i)
            require_ok(
                ncclSend(operation->out, operation->count, operation->type, rank_next(rank), rank->comm, rank->stream));
        else
            require_ok(ncclRecv(operation->in, operation->count, operation->type, rank_before(rank), rank->comm,
                                rank->stream));
}

/* On one host; between hosts none. Sums that are sent, as by all_reduce of more than two ranks and between hosts of
 * several, overflow, and get a higher level sooner or later. */
static void require_ends_uncompressed(const struct rank *rank, const struct operation *operation,
                                      unsigned long long wire, unsigned long long compressed)
{
    const char *neighbours = getenv("STRAIT_TEST_HOSTS"); /* on one host */
    if (neighbours == NULL || rank->ranks <= atoi(neighbours))
        require(wire > compressed);
    else
        require(wire == compressed || (operation_reduces(operation->what) && rank->ranks > 2));
}

static void run(struct rank *rank)
{
    const struct scene *scene = rank->argument;
    const struct kind *kind = scene->kind;
    const char *type = type_name(kind->type), *name = scene->subject->name;
    struct operation operation = {.what = scene->subject->what,
                                  .type = kind->type,
                                  .count = count_of(scene, rank->ranks),
                                  .kind = kind->values,
                                  .order = scene->subject->order};
    unsigned long long first = 0; /* bytes that NCCL was handed for the first of them */
    operation_new(rank, &operation, kind->shift, kind->in_place);
    for (unsigned turn = 0; turn < scene->times; turn++) {
        operation.seed = seed_of(turn, 0, 0);
        operation.reduction = turn == 1 ? COLL_AVG : COLL_SUM;
        operation.root = (int)turn % rank->ranks;
        operation_fill(rank, &operation);
        if (operation.what == COLL_SEND && turn == 1)
            send_then_receive(rank, &operation);
        else
            require_ok(operation_post(rank, &operation));
        operation_check(rank, &operation);
        if (turn == 0)
            first = told_of(rank->comm, name, type).wire;
    }
    require_compressed(rank, &operation, name, scene->times);
    if (operation.what == COLL_SEND)
        require_told(rank->comm, "recv", type, scene->times, scene->times);
    if (scene->overlaps)
        require_ends_uncompressed(rank, &operation, told_of(rank->comm, name, type).wire, scene->times * first);
}

/* Each kind goes with two numbers of ranks, by turns. */
START_TEST(every_operation_gives_the_values_of_nccl)
{
    const int i = _i % EACH;
    const struct scene scene = {&subjects[_i / EACH], &kinds[i % COUNT(kinds)], 3, false};
    if (scene.subject->order == COLL_REDUCE_NCCL_RING)
        setenv("STRAIT_COLL_ORDER", "nccl-ring", 1);
    fake_gpu.jitter_us = 300;
    ranks_run(ranks_of[(i / COUNT(kinds) + i) % COUNT(ranks_of)], run, &scene);
}
END_TEST

START_TEST(all_reduce_of_eight_gives_every_rank_the_sum)
{
    const struct scene scene = {&subjects[ALL_REDUCE], &kinds[_i], 3, false};
    fake_gpu.jitter_us = 100;
    ranks_run(8, run, &scene);
}
END_TEST

/* Of two ranks the order makes no difference. Of more NCCL's own bits are wanted, which only its own cuts give. */
static void sum_around(struct rank *rank)
{
    const struct scene scene = {&subjects[ALL_REDUCE], &kinds[1], 1, false};
    struct operation operation = {.what = COLL_ALL_REDUCE,
                                  .type = scene.kind->type,
                                  .count = count_of(&scene, rank->ranks),
                                  .kind = scene.kind->values};
    operation_new(rank, &operation, 0, true);
    operation_fill(rank, &operation);
    require_ok(operation_post(rank, &operation));
    fake_stream_wait(rank->stream);
    const struct told told = told_of(rank->comm, "all_reduce", type_name(operation.type));
    if (rank->ranks == 2)
        require_compressed(rank, &operation, "all_reduce", 1);
    else
        require(told.compressed == 0 && strcmp(told.reason, "raw: NCCL's ring cuts it otherwise") == 0);
}

START_TEST(all_reduce_of_more_than_two_keeps_the_ring_of_nccl)
{
    setenv("STRAIT_COLL_ORDER", "nccl-ring", 1);
    ranks_run(2 + _i, sum_around, NULL);
}
END_TEST

/* With a prologue and an epilogue that stay uncompressed. Another thread of the process may wait for a GPU meanwhile,
 * and hold up a rank that makes a stream. */
static void run_without_streams(struct rank *rank)
{
    ranks_meet();
    fake_gpu.no_streams = true;
    run(rank);
}

START_TEST(overlapped_operations_give_the_same)
{
    static const int long_kinds[] = {0, 2, 4}; /* of at least three pages */
    const int at = _i / OVERLAPPED;
    const struct scene scene = {&subjects[_i % OVERLAPPED], &kinds[long_kinds[at]], OVERLAP_AFTER + 3, true};
    fake_gpu.jitter_us = 300;
    overlap_begin();
    ranks_run(ranks_of[(_i % OVERLAPPED + at) % COUNT(ranks_of)], run_without_streams, &scene);
}
END_TEST

/* By NCCL itself, and counted as that: of other types, reductions and operations, of little. */
static void pass_on(struct rank *rank)
{
    enum { COUNT_OF = 40000 };
    float *out = values_new(rank, COLL_FP32, COUNT_OF), *in = values_new(rank, COLL_FP32, COUNT_OF * 3);
    values_fill(out, COLL_FP32, COUNT_OF, VALUES_WIDENED, (unsigned)rank->rank);
    require_ok(ncclAllReduce(out, in, 3 * 8191, COLL_FP32, COLL_SUM, rank->comm, rank->stream)); /* parts are small */
    require_ok(ncclBroadcast(out, in, 8191, COLL_FP32, 1, rank->comm, rank->stream));
    fake_stream_wait(rank->stream);
    require(values_are(in, COLL_FP32, 8191, VALUES_WIDENED, 1));
    require_ok(ncclAllGather(out, in, 8191, COLL_FP32, rank->comm, rank->stream));
    require_ok(ncclAllGather(out, in, COUNT_OF, COLL_INT32, rank->comm, rank->stream));
    fake_stream_wait(rank->stream);
    require(parts_are(in, COLL_FP32, COUNT_OF, 3, VALUES_WIDENED, 0, 1));
    require_told(rank->comm, "all_reduce", "fp32", 1, 0);
    static const char *const reasons[][3] = {{"all_reduce", "fp32", "raw: too small or too large"},
                                             {"broadcast", "fp32", "raw: too small or too large"},
                                             {"all_gather", "fp32", "raw: too small or too large"},
                                             {"all_gather", "int32", "raw: type is not compressed"}};
    for (int i = 0; i < COUNT(reasons); i++)
        require(strcmp(told_of(rank->comm, reasons[i][0], reasons[i][1]).reason, reasons[i][2]) == 0);
}

int main(void)
{
    TCase *tests = tcase_create("operations");
    /* Preloaded, the library only has to be found: what it does then is the same. */
    const bool preloaded = getenv("LD_PRELOAD") != NULL;
    for (int i = 0; i < COUNT(subjects); i++)
        add_loop(tests, every_operation_gives_the_values_of_nccl, EACH * i, EACH * i + (preloaded ? 1 : EACH));
    if (!preloaded) {
        tcase_add_loop_test(tests, all_reduce_of_eight_gives_every_rank_the_sum, 3, 6);
        tcase_add_loop_test(tests, all_reduce_of_more_than_two_keeps_the_ring_of_nccl, 0, 2);
        add_loop(tests, overlapped_operations_give_the_same, 0, 3 * OVERLAPPED);
    }
    add_ranks(tests, "what_is_not_compressed_is_done_by_nccl", ranks_run, pass_on, 3, 1);
    return suite_run("operations", tests);
}
