/* Ranks that do not compress: the others find out, stay raw, and go on. */
#include <string.h>
#include <unistd.h>

#include "tests/coll_engine/harness.h"

enum { COUNT_OF = 40001, LONG_MS = 20000 };

static coll_id id_for_all;

static void fill(const struct rank *rank, uint8_t **own, uint8_t **all)
{
    *own = values_new(COLL_BF16, COUNT_OF, 0);
    *all = values_new(COLL_BF16, (size_t)rank->ranks * COUNT_OF, 0);
    values_fill(*own, COLL_BF16, COUNT_OF, VALUES_NORMAL, (unsigned)rank->rank);
}

static void check(const struct rank *rank, uint8_t *own, uint8_t *all)
{
    for (int from = 0; from < rank->ranks; from++)
        require(values_are(all + (size_t)from * COUNT_OF * 2, COLL_BF16, COUNT_OF, VALUES_NORMAL, (unsigned)from));
    values_free(own, COLL_BF16, 0);
    values_free(all, COLL_BF16, 0);
}

static void gather_raw(struct rank *rank)
{
    uint8_t *own, *all;
    fill(rank, &own, &all);
    require_ok(ncclAllGather(own, all, COUNT_OF, COLL_BF16, rank->comm, rank->stream));
    fake_stream_wait(rank->stream);
    check(rank, own, all);
    const struct told told = told_of(rank->comm, "all_gather", "bf16");
    require(told.calls == 1 && told.compressed == 0);
}

/* ---- No library -------------------------------------------------------------------------------------------------- */

static void go_bare(struct rank *rank)
{
    const struct bare nccl = bare_nccl();
    uint8_t *own, *all;
    fake_device_set(rank->rank);
    rank->stream = fake_stream_make();
    fill(rank, &own, &all);
    require_ok(nccl.CommInitRank(&rank->comm, rank->ranks, id_for_all, rank->rank));
    require_ok(nccl.AllGather(own, all, COUNT_OF, COLL_BF16, rank->comm, rank->stream));
    fake_stream_wait(rank->stream);
    check(rank, own, all);
    ranks_meet();
    require_ok(nccl.CommDestroy(rank->comm));
    fake_stream_end(rank->stream);
}

static void go_with_bare(struct rank *rank)
{
    const long begin = now_ms();
    if (rank->rank == *(const int *)rank->argument) {
        go_bare(rank);
        return;
    }
    rank_begin(rank, id_for_all);
    require(now_ms() - begin < LONG_MS);
    gather_raw(rank);
    rank_end(rank);
}

START_TEST(a_rank_without_the_library_keeps_all_raw)
{
    setenv("STRAIT_COLL", "compress", 1);
    setenv("STRAIT_COLL_WAIT", "1", 1);
    require_ok(ncclGetUniqueId(&id_for_all));
    ranks_start(3, go_with_bare, &_i);
    require(fake_gpu.makings == 0); /* nobody took a GPU's memory for it */
}
END_TEST

/* ---- A rank that is slow ----------------------------------------------------------------------------------------- */

/* The others have given up, and it finds out. */
START_TEST(a_rank_that_comes_too_late_is_as_raw_as_the_others)
{
    setenv("STRAIT_COLL", "compress", 1);
    setenv("STRAIT_COLL_WAIT", "1", 1);
    fake_nccl.slow = _i + 1;
    fake_nccl.slow_ms = 2500;
    ranks_run(3, gather_raw, NULL);
}
END_TEST

static void gather_compressed(struct rank *rank)
{
    uint8_t *own, *all;
    fill(rank, &own, &all);
    require_ok(ncclAllGather(own, all, COUNT_OF, COLL_BF16, rank->comm, rank->stream));
    fake_stream_wait(rank->stream);
    check(rank, own, all);
    require(told_of(rank->comm, "all_gather", "bf16").compressed == 1);
}

START_TEST(a_rank_that_is_slow_is_waited_for)
{
    setenv("STRAIT_COLL", "compress", 1);
    setenv("STRAIT_COLL_WAIT", "60", 1);
    fake_nccl.slow = 2;
    fake_nccl.slow_ms = 1000;
    ranks_run(3, gather_compressed, NULL);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("absent");
    tcase_set_timeout(tests, 90);
    tcase_add_loop_test(tests, a_rank_without_the_library_keeps_all_raw, 0, 3);
    tcase_add_loop_test(tests, a_rank_that_comes_too_late_is_as_raw_as_the_others, 0, 3);
    tcase_add_test(tests, a_rank_that_is_slow_is_waited_for);
    return suite_run("absent", tests);
}
