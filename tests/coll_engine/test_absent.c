/* Ranks that do not compress: the others find out, stay raw, and go on. */
#include <string.h>
#include <unistd.h>

#include "tests/coll_engine/harness.h"

enum { LONG_MS = 20000 };

static coll_id id_for_all;

static void gather_raw(struct rank *rank)
{
    rank_gather(rank, rank->comm, false);
}

/* ---- No library -------------------------------------------------------------------------------------------------- */

static void at_once(void)
{
}

static void go_without_library(struct rank *rank)
{
    const long begin = now_ms();
    if (rank->rank == *(const int *)rank->argument) {
        rank_without_library(rank, id_for_all, at_once);
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
    setenv("STRAIT_COLL_WAIT", "200ms", 1);
    require_ok(ncclGetUniqueId(&id_for_all));
    ranks_start(3, go_without_library, &_i);
    require(fake_gpu.makings == 0); /* nobody took a GPU's memory for it */
}
END_TEST

/* ---- A rank that is slow ----------------------------------------------------------------------------------------- */

static _Atomic int gave_up;

static void begin_and_release(struct rank *rank)
{
    rank_begin(rank, id_for_all);
    if (++gave_up == rank->ranks - 1)
        fake_nccl.held = false;
    gather_raw(rank);
    rank_end(rank);
}

/* The others have given up, and it finds out. */
START_TEST(a_rank_that_comes_too_late_is_as_raw_as_the_others)
{
    setenv("STRAIT_COLL", "compress", 1);
    setenv("STRAIT_COLL_WAIT", "200ms", 1);
    fake_nccl.slow = _i + 1;
    fake_nccl.held = true;
    require_ok(ncclGetUniqueId(&id_for_all));
    ranks_start(3, begin_and_release, NULL);
}
END_TEST

static void gather_compressed(struct rank *rank)
{
    rank_gather(rank, rank->comm, true);
}

START_TEST(a_rank_that_is_slow_is_waited_for)
{
    setenv("STRAIT_COLL", "compress", 1);
    setenv("STRAIT_COLL_WAIT", "60", 1);
    fake_nccl.slow = 2;
    fake_nccl.slow_ms = 300;
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
