/* Sequences of operations drawn by chance, the same on all ranks, which run through them at different speeds: on two
 * communicators and streams, grouped and not, some of whose messages overflow. Where ranks decided differently, what
 * they send would not match and end the program. */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "collective/reduce.h"
#include "tests/coll_engine/harness.h"

enum { BATCH = 12, BATCHES = 8, MOST = 70000, SECOND = 1 };
static bool overlaps; /* coding and transfer: no collective is grouped then, which would end that */

struct draw {
    uint64_t state;
};

static unsigned draw(struct draw *from, unsigned below)
{
    from->state = from->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(from->state >> 33) % below;
}

/* One operation. noisy: bit r: what rank r sends does not fit. */
struct operation {
    enum coll_operation what;
    int type;
    size_t count;
    unsigned noisy, seed, comm;
    uint8_t *out, *in;
};

static const int types[] = {COLL_BF16, COLL_FP16, COLL_FP32};

static struct operation drawn(struct draw *from, unsigned ranks)
{
    static const enum coll_operation whats[] = {COLL_ALL_GATHER, COLL_ALL_TO_ALL, COLL_REDUCE_SCATTER, COLL_ALL_REDUCE,
                                                COLL_SEND};
    struct operation operation = {.what = whats[draw(from, 5)],
                                  .type = types[draw(from, 3)],
                                  .count = 1000 + draw(from, MOST - 1000),
                                  .seed = 1 + draw(from, 1000000),
                                  .comm = draw(from, 2)};
    if (draw(from, 4) == 0)
        operation.noisy = draw(from, 2) == 0 ? (1u << ranks) - 1 : draw(from, 1u << ranks);
    return operation;
}

static enum values kind_of(const struct operation *operation, int rank)
{
    return (operation->noisy >> rank & 1) != 0 ? VALUES_NOISE : VALUES_WIDENED;
}

static uint64_t seed_of(const struct operation *operation, int from, int to)
{
    const bool same = operation->what != COLL_ALL_TO_ALL && operation->what != COLL_REDUCE_SCATTER;
    return operation->seed + 1000000u * (uint64_t)from + 100000000u * (same ? 0 : (uint64_t)to);
}

static void prepare(struct operation *operation, const struct rank *rank)
{
    const size_t size = operation->count * element_bytes(operation->type), all = operation->count * (size_t)rank->ranks;
    operation->out = values_new(operation->type, all, 0);
    operation->in = values_new(operation->type, all, 0);
    for (int to = 0; to < rank->ranks; to++)
        values_fill(operation->out + (size_t)to * size, operation->type, operation->count,
                    kind_of(operation, rank->rank), seed_of(operation, rank->rank, to));
}

static void ask(const struct operation *what, const struct rank *rank, coll_comm comm, coll_stream stream)
{
    const int next = (rank->rank + 1) % rank->ranks, before = (rank->rank + rank->ranks - 1) % rank->ranks;
    switch ((int)what->what) {
    case COLL_ALL_GATHER:
        require_ok(ncclAllGather(what->out, what->in, what->count, what->type, comm, stream));
        break;
    case COLL_ALL_TO_ALL:
        require_ok(ncclAlltoAll(what->out, what->in, what->count, what->type, comm, stream));
        break;
    case COLL_REDUCE_SCATTER:
        require_ok(ncclReduceScatter(what->out, what->in, what->count, what->type, COLL_SUM, comm, stream));
        break;
    case COLL_ALL_REDUCE:
        require_ok(ncclAllReduce(what->out, what->in, what->count, what->type, COLL_SUM, comm, stream));
        break;
    default:
        require_ok(ncclGroupStart());
        require_ok(ncclSend(what->out, what->count, what->type, next, comm, stream));
        require_ok(ncclRecv(what->in, what->count, what->type, before, comm, stream));
        require_ok(ncclGroupEnd());
    }
}

/* Of those that reduce, raw or compressed, the order of additions differs: only of two ranks it does not matter. */
static void check_sum(const struct operation *what, const struct rank *rank)
{
    const size_t size = element_bytes(what->type) * what->count;
    struct coll_reduce sum = {.type = what->type == COLL_BF16   ? COLL_REDUCE_BF16
                                      : what->type == COLL_FP16 ? COLL_REDUCE_FP16
                                                                : COLL_REDUCE_FP32,
                              .sources = (uint32_t)rank->ranks,
                              .dst = what->out,
                              .count = what->count};
    for (int from = 0; from < rank->ranks; from++) {
        uint8_t *values = values_new(what->type, what->count, 0);
        values_fill(values, what->type, what->count, kind_of(what, from), seed_of(what, from, rank->rank));
        sum.source[from] = values;
    }
    uint8_t *expected = sum.dst = values_new(what->type, what->count, 0);
    require(coll_reduce_scalar(&sum) == STRAIT_OK);
    require(rank->ranks > 2 || memcmp(what->in, expected, size) == 0);
    for (int from = 0; from < rank->ranks; from++)
        values_free((void *)(uintptr_t)sum.source[from], what->type, 0);
    values_free(expected, what->type, 0);
}

static void check(const struct operation *what, const struct rank *rank)
{
    const size_t size = element_bytes(what->type) * what->count;
    const int before = (rank->rank + rank->ranks - 1) % rank->ranks;
    if (what->what == COLL_SEND)
        require(
            values_are(what->in, what->type, what->count, kind_of(what, before), seed_of(what, before, rank->rank)));
    else if (what->what == COLL_REDUCE_SCATTER || what->what == COLL_ALL_REDUCE)
        check_sum(what, rank);
    else
        for (int from = 0; from < rank->ranks; from++)
            require(values_are(what->in + (size_t)from * size, what->type, what->count, kind_of(what, from),
                               seed_of(what, from, rank->rank)));
    values_free(what->out, what->type, 0);
    values_free(what->in, what->type, 0);
}

/* A batch without waiting, some of it grouped. */
static void run_batch(struct draw *from, const struct rank *rank, const coll_comm comms[2],
                      const coll_stream streams[2], unsigned *speed)
{
    struct operation operations[BATCH];
    bool grouped = false;
    for (int i = 0; i < BATCH; i++) {
        operations[i] = drawn(from, (unsigned)rank->ranks);
        prepare(&operations[i], rank);
    }
    for (int i = 0; i < BATCH; i++) {
        const bool alone = overlaps && operations[i].what != COLL_SEND;
        if (grouped && alone) {
            require_ok(ncclGroupEnd());
            grouped = false;
        }
        if (!grouped && draw(from, 3) == 0 && !alone) {
            require_ok(ncclGroupStart());
            grouped = true;
        }
        ask(&operations[i], rank, comms[operations[i].comm], streams[operations[i].comm]);
        if (grouped && draw(from, 3) == 0) {
            require_ok(ncclGroupEnd());
            grouped = false;
        }
        usleep((useconds_t)rand_r(speed) % 1000);
    }
    if (grouped)
        require_ok(ncclGroupEnd());
    fake_stream_wait(streams[0]);
    fake_stream_wait(streams[1]);
    for (int i = 0; i < BATCH; i++)
        check(&operations[i], rank);
}

static void run(struct rank *rank)
{
    struct draw from = {*(const uint64_t *)rank->argument};
    unsigned speed = (unsigned)rank->rank + 1;
    coll_comm comms[2] = {rank->comm, NULL};
    const coll_stream streams[2] = {rank->stream, fake_stream_make()};
    require_ok(ncclCommSplit(rank->comm, 0, rank->rank, &comms[SECOND], NULL));
    for (unsigned i = 0; i < 6 && overlaps; i++)
        overlap_warm_up(rank, comms[i % 2], types[i / 2]);
    for (int i = 0; i < BATCHES; i++)
        run_batch(&from, rank, comms, streams, &speed);
    ranks_meet();
    require_ok(ncclCommDestroy(comms[SECOND]));
    fake_stream_end(streams[1]);
}

START_TEST(whatever_comes_arrives)
{
    uint64_t seed = (uint64_t)_i;
    fake_gpu.jitter_us = 100;
    setenv("STRAIT_COLL", "compress", 1);
    overlaps = _i % 2 != 0;
    if (overlaps)
        overlap_begin();
    ranks_run(2 + _i % 3, run, &seed);
    require(fake_gpu.taken > 0);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("stress");
    add_loop(tests, whatever_comes_arrives, 0, 9);
    return suite_run("stress", tests);
}
