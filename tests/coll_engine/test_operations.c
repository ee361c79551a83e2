/* Every operation that is compressed gives what it gives without, bit for bit. */
#include <string.h>

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

static int ranks_at(int i)
{
    return ranks_of[i / COUNT(kinds)];
}

static const char *type_of(const struct kind *kind)
{
    return type_name(kind->type);
}

enum { TIMES = 3 };

/* ---- All-gather -------------------------------------------------------------------------------------------------- */

static void gather(struct rank *rank)
{
    const struct kind *kind = rank->argument;
    const size_t count = kind->count, size = element_bytes(kind->type);
    uint8_t *all = values_new(kind->type, count * (size_t)rank->ranks, kind->shift);
    uint8_t *own = kind->in_place ? all + (size_t)rank->rank * count * size : values_new(kind->type, count, kind->shift);
    for (unsigned turn = 0; turn < TIMES; turn++) {
        values_fill(own, kind->type, count, kind->values, 100 * turn + (unsigned)rank->rank);
        require_ok(ncclAllGather(own, all, count, kind->type, rank->comm, rank->stream));
        fake_stream_wait(rank->stream);
        for (unsigned from = 0; from < (unsigned)rank->ranks; from++)
            require(values_are(all + from * count * size, kind->type, count, kind->values, 100 * turn + from));
    }
    const struct told told = told_of(rank->comm, "all_gather", type_of(kind));
    require(told.calls == TIMES && told.compressed == TIMES && told.wire > 0);
    require(told.wire < TIMES * count * size * (unsigned)(rank->ranks - 1));
    if (!kind->in_place)
        values_free(own, kind->type, kind->shift);
    values_free(all, kind->type, kind->shift);
}

START_TEST(all_gather_gives_every_rank_all_values)
{
    fake_gpu.jitter_us = 300;
    setenv("STRAIT_COLL", "compress", 1);
    ranks_run(ranks_at(_i), gather, (void *)(uintptr_t)kind_of(_i));
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("operations");
    tcase_add_loop_test(tests, all_gather_gives_every_rank_all_values, 0, COUNT(kinds) * COUNT(ranks_of));
    return suite_run("operations", tests);
}
