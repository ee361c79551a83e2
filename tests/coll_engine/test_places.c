/* The default rendezvous, by TCP at the process that asked for the unique id. Ranks on several hosts are simulated by
 * failing shm_open. */
#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/coll_engine/harness.h"
#include "tests/coll_engine/maker.h"

enum { RANKS = 3, LONG_MS = 30000 };

static coll_id id_for_all;

/* ---- The host's memory ------------------------------------------------------------------------------------------- */

static bool has_memory;
static _Atomic int asked_for_memory;

/* In place of the system's. */
__attribute__((visibility("default"))) int shm_open(const char *name, int flags, mode_t mode)
{
    int (*real)(const char *name, int flags, mode_t mode) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "shm_open");
    asked_for_memory++;
    return has_memory && real != NULL ? real(name, flags, mode) : -1;
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static void gather_in_time(struct rank *rank)
{
    const long begin = now_ms();
    rank_begin(rank, id_for_all);
    require(now_ms() - begin < LONG_MS);
    rank_gather(rank, rank->comm, *(const unsigned *)rank->argument);
    rank_end(rank);
}

static void run_all(unsigned compressed)
{
    ranks_start(RANKS, gather_in_time, &compressed);
    require(fake_gpu.made == 0);
}

static void set_up(void)
{
    has_memory = false;
    setenv("STRAIT_COLL", "compress", 1);
    setenv("STRAIT_COLL_WAIT", "300ms", 1);
    setenv("STRAIT_TEST_HOSTS", "1", 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
}

/* ---- Of this process --------------------------------------------------------------------------------------------- */

static void gather_with_child(struct rank *rank)
{
    coll_comm child = NULL;
    rank_gather(rank, rank->comm, true);
    require_ok(ncclCommSplit(rank->comm, 4, rank->rank, &child, NULL));
    rank_gather(rank, child, true);
    ranks_meet();
    require_ok(ncclCommDestroy(child));
}

START_TEST(ranks_that_share_nothing_join)
{
    ranks_run(RANKS, gather_with_child, NULL);
    require(asked_for_memory == 0);
}
END_TEST

START_TEST(those_that_may_use_shared_memory_only_stay_raw)
{
    setenv("STRAIT_COLL_MEET", "host", 1);
    require_ok(ncclGetUniqueId(&id_for_all));
    run_all(0);
    require(asked_for_memory == RANKS);
}
END_TEST

/* They would only wait for ranks of other hosts, which cannot come. */
START_TEST(more_ranks_than_the_host_has_gpus_do_not_wait_in_shared_memory)
{
    char folder[] = "/tmp/strait-gpus-XXXXXX", gpu[sizeof(folder) + 16];
    require(mkdtemp(folder) != NULL);
    snprintf(gpu, sizeof(gpu), "%s/0000:01:00.0", folder);
    require(mkdir(gpu, 0700) == 0);
    fake_gpu.list = folder;
    has_memory = true;
    setenv("STRAIT_COLL_MEET", "host", 1);
    require_ok(ncclGetUniqueId(&id_for_all));
    run_all(0);
    require(asked_for_memory == 0);
    require(rmdir(gpu) == 0 && rmdir(folder) == 0);
}
END_TEST

/* ---- Of another process ------------------------------------------------------------------------------------------ */

static struct maker maker;

static void begin_maker(void)
{
    maker = maker_begin();
    id_for_all = maker.ids[0];
}

START_TEST(the_process_that_made_the_id_needs_not_be_one_of_them)
{
    begin_maker();
    run_all(1);
    require(asked_for_memory == 0);
    maker_end(&maker);
}
END_TEST

/* Those of one host may still meet there. */
START_TEST(when_it_has_ended_ranks_join_in_shared_memory)
{
    has_memory = _i == 1;
    begin_maker();
    maker_end(&maker);
    run_all(_i == 1);
    require(asked_for_memory == RANKS);
}
END_TEST

static void end_when_others_wait(void)
{
    await_connected(RANKS - 1);
    maker_end(&maker);
}

/* One has no library. The others wait for it, and would for a minute. */
static void lose_the_server(struct rank *rank)
{
    if (rank->rank == 0)
        rank_without_library(rank, id_for_all, end_when_others_wait);
    else
        gather_in_time(rank);
}

START_TEST(when_it_goes_while_ranks_wait_they_stay_raw_at_once)
{
    setenv("STRAIT_COLL_WAIT", "60", 1);
    const unsigned compressed = 0;
    begin_maker();
    ranks_start(RANKS, lose_the_server, (void *)(uintptr_t)&compressed);
}
END_TEST

/* ---- Ids --------------------------------------------------------------------------------------------------------- */

static bool has_payload(void)
{
    static const char nothing[64];
    require_ok(ncclGetUniqueId(&id_for_all));
    return memcmp(id_for_all.bytes + 64, nothing, sizeof(nothing)) != 0;
}

static const struct {
    const char *name, *value;
    bool has_payload;
} settings[] = {{"STRAIT_COLL", "compress", true},
                {"STRAIT_COLL", "auto", true},
                {"STRAIT_COLL", "raw", false},
                {"STRAIT_COLL", "off", false},
                {"STRAIT_COLL_MEET", "auto", true},
                {"STRAIT_COLL_MEET", "host", false},
                {"NCCL_COMM_ID", "127.0.0.1:7000", false},
                {"NCCL_SOCKET_IFNAME", "=no-such-interface", false}};

START_TEST(ids_name_a_server_if_ranks_may_use_it)
{
    setenv(settings[_i].name, settings[_i].value, 1);
    require(has_payload() == settings[_i].has_payload);
}
END_TEST

#if !defined(__SANITIZE_THREAD__) /* by which no child of several threads may start one */
/* Its parent's is not its own: nobody would answer there. */
START_TEST(a_child_has_a_server_of_its_own)
{
    require(has_payload());
    const coll_id before = id_for_all;
    const pid_t child = fork();
    require(child >= 0);
    if (child == 0) {
        require(has_payload());
        _exit(memcmp(before.bytes + 64, id_for_all.bytes + 64, 64) == 0);
    }
    int status;
    require(waitpid(child, &status, 0) == child && status == 0);
    require(has_payload() && memcmp(before.bytes + 64, id_for_all.bytes + 64, 64) == 0);
    run_all(1);
}
END_TEST
#endif

int main(void)
{
    TCase *tests = tcase_create("places");
    tcase_set_timeout(tests, 90);
    tcase_add_checked_fixture(tests, set_up, NULL);
    tcase_add_test(tests, ranks_that_share_nothing_join);
    tcase_add_test(tests, those_that_may_use_shared_memory_only_stay_raw);
    tcase_add_test(tests, more_ranks_than_the_host_has_gpus_do_not_wait_in_shared_memory);
    tcase_add_test(tests, the_process_that_made_the_id_needs_not_be_one_of_them);
    tcase_add_loop_test(tests, when_it_has_ended_ranks_join_in_shared_memory, 0, 2);
    tcase_add_test(tests, when_it_goes_while_ranks_wait_they_stay_raw_at_once);
    tcase_add_loop_test(tests, ids_name_a_server_if_ranks_may_use_it, 0, COUNT(settings));
#if !defined(__SANITIZE_THREAD__)
    tcase_add_test(tests, a_child_has_a_server_of_its_own);
#endif
    return suite_run("places", tests);
}
