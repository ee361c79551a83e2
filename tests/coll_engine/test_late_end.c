/* Communicators that do not block, and end while they join or while they are asked for errors. */
#include <pthread.h>
#include <unistd.h>

#include "tests/coll_engine/lazy.h"

struct watchdog {
    pthread_t thread;
    coll_comm comm;
    bool revokes;
    atomic_bool over;
    coll_result result;
};

static void *end_soon(void *argument)
{
    struct watchdog *watchdog = argument;
    usleep(100000);
    watchdog->result = watchdog->revokes ? ncclCommRevoke(watchdog->comm, 0) : ncclCommAbort(watchdog->comm);
    return NULL;
}

enum ending { OWN_ABORT, OWN_REVOKE, ABORT, REVOKE, ENDINGS };

/* Beside the call that waits. */
static coll_result gather_watched(struct rank *rank, const struct lazy_buffers *buffers, bool revokes)
{
    struct watchdog watchdog = {.comm = rank->comm, .revokes = revokes};
    require(pthread_create(&watchdog.thread, NULL, end_soon, &watchdog) == 0);
    const coll_result result = lazy_ask(rank, buffers);
    require(pthread_join(watchdog.thread, NULL) == 0 && watchdog.result == COLL_SUCCESS);
    return result;
}

/* Rank 0 waits in its first collective for rank 1, which is ended, or for nobody any more. */
static void give_up(struct rank *rank)
{
    const enum ending ending = *(const enum ending *)rank->argument;
    const bool own = ending == OWN_ABORT || ending == OWN_REVOKE;
    lazy_begin(rank);
    ranks_meet();
    if (rank->rank == 0) {
        struct lazy_buffers buffers = lazy_buffers(rank);
        const coll_result result =
            own ? gather_watched(rank, &buffers, ending == OWN_REVOKE) : lazy_ask(rank, &buffers);
        require(result == (ending == OWN_ABORT ? COLL_INVALID_USAGE : COLL_IN_PROGRESS));
        if (ending != OWN_ABORT)
            require_ok(ncclCommAbort(rank->comm));
        fake_stream_wait(rank->stream);
        values_free(buffers.own, COLL_BF16, 0);
        values_free(buffers.all, COLL_BF16, 0);
    } else if (!own) {
        usleep(100000);
        if (ending == REVOKE)
            require_ok(ncclCommRevoke(rank->comm, 0));
        require_ok(ncclCommAbort(rank->comm));
    }
    ranks_meet();
    if (rank->rank == 1 && own)
        require_ok(ncclCommAbort(rank->comm));
    fake_stream_end(rank->stream);
}

START_TEST(who_waits_for_the_first_collective_can_be_ended)
{
    static enum ending ending;
    ending = (enum ending)_i;
    lazy_run(2, give_up, &ending);
}
END_TEST

static void *look_again_and_again(void *argument)
{
    struct watchdog *watchdog = argument;
    while (!watchdog->over)
        (void)error_of(watchdog->comm);
    return NULL;
}

/* A watchdog looks for errors while calls wait until NCCL has put them on the stream. */
static void be_watched(struct rank *rank)
{
    enum { CALLS = 200 };
    struct watchdog watchdog = {0};
    lazy_begin(rank);
    lazy_gather(rank);
    watchdog.comm = rank->comm;
    require(pthread_create(&watchdog.thread, NULL, look_again_and_again, &watchdog) == 0);
    for (int i = 0; i < CALLS; i++) {
        struct lazy_buffers buffers = lazy_buffers(rank);
        require_ok(lazy_ask(rank, &buffers));
        lazy_check(rank, &buffers);
    }
    watchdog.over = true;
    require(pthread_join(watchdog.thread, NULL) == 0);
    lazy_require_told(rank, "all_gather", CALLS + 1, CALLS + 1);
    lazy_end(rank);
}

START_TEST(one_thread_at_a_time_asks_what_is_in_progress)
{
    lazy_run(2, be_watched, NULL);
}
END_TEST

static void *abort_what_is_halted(void *argument)
{
    struct watchdog *watchdog = argument;
    for (int i = 0; fake_gpu.halted == 0; i++) {
        require(i < LAZY_LONG_MS);
        usleep(1000);
    }
    watchdog->result = ncclCommAbort(watchdog->comm);
    fake_gpu.halt = 0;
    return NULL;
}

/* Rank 0 is aborted while it makes ready what joining takes: others need not wait for it. */
static void be_aborted_as_it_joins(struct rank *rank)
{
    struct lazy_buffers buffers = lazy_buffers(rank);
    struct watchdog watchdog = {0};
    lazy_begin(rank);
    watchdog.comm = rank->comm;
    if (rank->rank == 0) {
        fake_gpu.halt = 1;
        require(pthread_create(&watchdog.thread, NULL, abort_what_is_halted, &watchdog) == 0);
    }
    ranks_meet();
    require(lazy_ask(rank, &buffers) == (rank->rank == 0 ? COLL_INVALID_USAGE : COLL_IN_PROGRESS));
    if (rank->rank == 0)
        require(pthread_join(watchdog.thread, NULL) == 0 && watchdog.result == COLL_SUCCESS);
    else
        require_ok(ncclCommAbort(rank->comm));
    fake_stream_wait(rank->stream);
    values_free(buffers.own, COLL_BF16, 0);
    values_free(buffers.all, COLL_BF16, 0);
    fake_stream_end(rank->stream);
}

START_TEST(who_joins_can_be_aborted)
{
    lazy_run(3, be_aborted_as_it_joins, NULL);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("late_end");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, who_waits_for_the_first_collective_can_be_ended, 0, ENDINGS);
    tcase_add_test(tests, one_thread_at_a_time_asks_what_is_in_progress);
    tcase_add_test(tests, who_joins_can_be_aborted);
    return suite_run("late_end", tests);
}
