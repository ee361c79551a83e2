/* Sequences of operations drawn by chance, the same on all ranks, which run through them at different speeds: on two
 * communicators and streams, grouped and not, some of whose messages overflow. Where ranks decided differently, what
 * they send would not match and end the program. */
#include <pthread.h>
#include <unistd.h>

#include "tests/coll_engine/harness.h"

enum { BATCH = 12, BATCHES = 8, MOST = 70000 };
static bool overlaps; /* coding and transfer: no collective is grouped then, which would end that */

static const int types[] = {COLL_BF16, COLL_FP16, COLL_FP32};

struct drawn {
    struct operation operation;
    const struct rank *side; /* communicator and stream */
};

static struct drawn draw(struct rng *rng, const struct rank sides[2])
{
    static const enum coll_operation whats[] = {COLL_ALL_GATHER, COLL_ALL_TO_ALL, COLL_REDUCE_SCATTER,
                                                COLL_ALL_REDUCE, COLL_BROADCAST,  COLL_SEND};
    const uint32_t ranks = (uint32_t)sides[0].ranks;
    struct drawn drawn = {.operation = {.what = whats[rng_below(rng, COUNT(whats))],
                                        .type = types[rng_below(rng, COUNT(types))],
                                        .count = 1000 + rng_below(rng, MOST - 1000),
                                        .kind = VALUES_WIDENED,
                                        .other = VALUES_NOISE,
                                        .seed = seed_of(1 + rng_below(rng, 1000000), 0, 0),
                                        .root = (int)rng_below(rng, ranks)},
                          .side = &sides[rng_below(rng, 2)]};
    if (rng_below(rng, 4) == 0)
        drawn.operation.others = rng_below(rng, 2) == 0 ? (1u << ranks) - 1 : rng_below(rng, 1u << ranks);
    return drawn;
}

/* A batch without waiting, some of it grouped. */
static void run_batch(struct rng *rng, const struct rank sides[2], unsigned *speed)
{
    struct drawn batch[BATCH];
    bool grouped = false;
    for (int i = 0; i < BATCH; i++) {
        batch[i] = draw(rng, sides);
        operation_new(batch[i].side, &batch[i].operation, 0, false);
        operation_fill(batch[i].side, &batch[i].operation);
    }
    for (int i = 0; i < BATCH; i++) {
        const bool alone = overlaps && batch[i].operation.what != COLL_SEND;
        if (grouped && alone) {
            require_ok(ncclGroupEnd());
            grouped = false;
        }
        if (!grouped && rng_below(rng, 3) == 0 && !alone) {
            require_ok(ncclGroupStart());
            grouped = true;
        }
        require_ok(operation_post(batch[i].side, &batch[i].operation));
        if (grouped && rng_below(rng, 3) == 0) {
            require_ok(ncclGroupEnd());
            grouped = false;
        }
        usleep((useconds_t)rand_r(speed) % 1000);
    }
    if (grouped)
        require_ok(ncclGroupEnd());
    fake_stream_wait(sides[0].stream);
    fake_stream_wait(sides[1].stream);
    /* Raw or compressed, the order of additions differs: only of two ranks it does not matter. */
    for (int i = 0; i < BATCH; i++)
        if (sides[0].ranks == 2 || !operation_reduces(batch[i].operation.what))
            operation_check(batch[i].side, &batch[i].operation);
    values_free_all(&sides[0]);
}

static void run(struct rank *rank)
{
    struct rng rng = rng_init(*(const uint64_t *)rank->argument);
    unsigned speed = (unsigned)rank->rank + 1;
    struct rank sides[2] = {*rank, *rank};
    sides[1].stream = fake_stream_make();
    require_ok(ncclCommSplit(rank->comm, 0, rank->rank, &sides[1].comm, NULL));
    for (unsigned i = 0; i < 6 && overlaps; i++)
        overlap_warm_up(rank, sides[i % 2].comm, types[i / 2]);
    for (int i = 0; i < BATCHES; i++)
        run_batch(&rng, sides, &speed);
    ranks_meet();
    require_ok(ncclCommDestroy(sides[1].comm));
    fake_stream_end(sides[1].stream);
}

START_TEST(any_sequence_of_operations_arrives)
{
    const uint64_t seed = (uint64_t)_i;
    fake_gpu.jitter_us = 100;
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
    add_loop(tests, any_sequence_of_operations_arrives, 0, 9);
    return suite_run("stress", tests);
}
