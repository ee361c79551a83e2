/* A communicator is aborted while another thread has a call of it under way: the call ends with an error, asks NCCL for
 * nothing any more, and what it uses is there until it has ended. */
#include <pthread.h>
#include <unistd.h>

#include "tests/coll_engine/harness.h"

enum { COUNT_OF = 40001, PATIENCE_MS = 20000 };

static coll_id id_for_all;

struct aborting {
    struct rank *rank;
    atomic_bool called; /* the call is under way, but not on the GPU */
};

static void await(const atomic_bool *what)
{
    for (int i = 0; !*what; i++) {
        require(i < PATIENCE_MS);
        usleep(1000);
    }
}

/* Of rank 0, by its watchdog. */
static void *abort_it(void *argument)
{
    struct aborting *aborting = argument;
    await(&aborting->called);
    require_ok(ncclCommAbort(aborting->rank->comm));
    return NULL;
}

static void *abort_what_is_halted(void *argument)
{
    struct aborting *aborting = argument;
    for (int i = 0; fake_gpu.halted == 0; i++) {
        require(i < PATIENCE_MS);
        usleep(1000);
    }
    require_ok(ncclCommAbort(aborting->rank->comm)); /* and does not wait for the call */
    require(fake_gpu.made > 0);
    fake_gpu.halt = 0;
    return NULL;
}

static void call_beside(struct rank *rank, void *(*watchdog)(void *), bool grouped)
{
    struct aborting aborting = {.rank = rank};
    pthread_t thread;
    uint8_t *own = values_new(COLL_BF16, COUNT_OF, 0), *all = values_new(COLL_BF16, COUNT_OF * 2, 0);
    values_fill(own, COLL_BF16, COUNT_OF, VALUES_NORMAL, 0);
    coll_comm comm = rank->comm;
    if (!grouped)
        fake_gpu.halt = 1;
    require(pthread_create(&thread, NULL, watchdog, &aborting) == 0);
    if (grouped)
        require_ok(ncclGroupStart());
    const coll_result result = ncclAllGather(own, all, COUNT_OF, COLL_BF16, comm, rank->stream);
    require(grouped ? result == COLL_SUCCESS : result != COLL_SUCCESS);
    aborting.called = true;
    require(pthread_join(thread, NULL) == 0);
    if (grouped)
        require(ncclGroupEnd() != COLL_SUCCESS);
    require(ends_within(rank->stream, PATIENCE_MS));
    values_free(own, COLL_BF16, 0);
    values_free(all, COLL_BF16, 0);
}

static void run(struct rank *rank)
{
    const bool grouped = rank->argument != NULL;
    rank_begin(rank, id_for_all);
    ranks_meet();
    if (rank->rank == 0)
        call_beside(rank, grouped ? abort_it : abort_what_is_halted, grouped);
    ranks_meet();
    if (rank->rank != 0)
        require_ok(ncclCommAbort(rank->comm));
    fake_stream_end(rank->stream);
}

static void abort_beside(void *grouped)
{
    setenv("STRAIT_COLL", "compress", 1);
    require_ok(ncclGetUniqueId(&id_for_all));
    ranks_start(2, run, grouped);
    require(fake_gpu.made == 0);
}

START_TEST(a_call_that_is_under_way_keeps_what_it_uses)
{
    abort_beside(NULL);
}
END_TEST

START_TEST(a_group_that_is_open_keeps_what_it_uses)
{
    static int grouped;
    abort_beside(&grouped);
}
END_TEST

/* Freeing memory of a GPU waits for all of its work, such as that of a communicator that is aborted next. */
static void end_in_group(struct rank *rank)
{
    coll_result (*const end)(coll_comm comm) = *(const int *)rank->argument == 0 ? ncclCommAbort : ncclCommDestroy;
    rank_begin(rank, id_for_all);
    rank_gather(rank, rank->comm, true);
    ranks_meet();
    for (int turn = 0; turn < rank->ranks; turn++) {
        if (turn == rank->rank) {
            const int64_t made = fake_gpu.made;
            require_ok(ncclGroupStart());
            require_ok(end(rank->comm));
            require(fake_gpu.made == made);
            require_ok(ncclGroupEnd());
            require(fake_gpu.made < made);
        }
        ranks_meet();
    }
    fake_stream_end(rank->stream);
}

START_TEST(nothing_is_freed_before_the_end_of_a_group)
{
    setenv("STRAIT_COLL", "compress", 1);
    require_ok(ncclGetUniqueId(&id_for_all));
    ranks_start(2, end_in_group, &_i);
    require(fake_gpu.made == 0);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("abort");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, a_call_that_is_under_way_keeps_what_it_uses);
    tcase_add_test(tests, a_group_that_is_open_keeps_what_it_uses);
    tcase_add_loop_test(tests, nothing_is_freed_before_the_end_of_a_group, 0, 2);
    return suite_run("abort", tests);
}
