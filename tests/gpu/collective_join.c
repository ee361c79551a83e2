/* How communicators of two GPUs, or more, join and end.
 *
 *   collective_join [--threads] [--ranks=N] LIBRARY SCENE ...
 *
 *   times   what ncclCommInitRank takes: the first time, and then
 *   late    communicators that do not block: they join with their first collective; values are compared
 *   bare    rank 1 has STRAIT_COLL=raw: the others find out, stay raw and go on (processes only)
 *   full    rank 1 has no memory for messages: no error, and soon all is raw, or between hosts by the host's memory
 *   beside  a thread aborts a communicator whose first collective waits for the others, and one that has a group
 *           open; again and again
 *
 * LIBRARY is libstrait-coll, or NCCL for times. Ranks are processes, or threads. Settings are the environment's. A
 * scene that does not end within a minute has failed. Exit status: 1 a scene failed, 77 too few GPUs. */
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/gpu/collective_world.h"

enum { BYTES = 16 << 20, COUNT_OF = BYTES / 2 };

/* What ncclConfig_t began with in 2.14. */
struct config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size;
};

/* ---- Communicators ----------------------------------------------------------------------------------------------- */

static coll_comm make(struct rank *rank, unsigned id)
{
    coll_comm comm;
    require(nccl.CommInitRank(&comm, rank->ranks, rank->shared->ids[id], rank->number) == COLL_SUCCESS);
    return comm;
}

static void settle(coll_comm comm, coll_result result)
{
    while (result == COLL_IN_PROGRESS)
        require_nccl(nccl.CommGetAsyncError(comm, &result));
    require_nccl(result);
}

static coll_comm make_late(struct rank *rank, unsigned id)
{
    struct config config = {sizeof(config), 0xcafebeefu, 21400, 0, INT_MIN};
    coll_comm comm;
    require_nccl(nccl.CommInitRankConfig(&comm, rank->ranks, rank->shared->ids[id], rank->number, &config));
    settle(comm, COLL_IN_PROGRESS);
    return comm;
}

/* All ranks have it, and go on to the next. */
static void end(struct rank *rank, coll_comm comm)
{
    world_meet(rank);
    require_nccl(nccl.CommDestroy(comm));
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static uint64_t seed_of(unsigned turn, int rank)
{
    return 1 + WORLD_RANKS_MAX * turn + (unsigned)rank;
}

static coll_result ask(struct rank *rank, coll_comm comm)
{
    return nccl.AllGather(rank->send[0], rank->receive[0], COUNT_OF, COLL_BF16, comm, rank->stream[0]);
}

static void fill(struct rank *rank, unsigned turn)
{
    rank_fill(rank, rank->send[0], COLL_BF16, COUNT_OF, VALUES_NORMAL, seed_of(turn, rank->number));
}

static void check(struct rank *rank, unsigned turn)
{
    require_cuda(cudaStreamSynchronize(rank->stream[0]));
    for (int from = 0; from < rank->ranks; from++)
        rank_require(rank, rank->receive[0] + (size_t)from * BYTES, COLL_BF16, COUNT_OF, VALUES_NORMAL,
                     seed_of(turn, from));
}

static void gather(struct rank *rank, coll_comm comm, unsigned turn)
{
    fill(rank, turn);
    settle(comm, ask(rank, comm));
    check(rank, turn);
}

/* ---- Scenes ------------------------------------------------------------------------------------------------------ */

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void times(struct rank *rank)
{
    enum { TURNS = 7 };
    double took[TURNS];
    for (unsigned turn = 0; turn < TURNS; turn++) {
        world_meet(rank);
        const double begin = now_ms();
        coll_comm comm = make(rank, turn);
        took[turn] = now_ms() - begin;
        gather(rank, comm, turn);
        end(rank, comm);
    }
    const double first = took[0];
    qsort(took + 1, TURNS - 1, sizeof(*took), compare);
    if (rank->number == 0)
        printf("ncclCommInitRank: the first %.1f ms, then %.1f (%.1f to %.1f)\n", first, took[TURNS / 2], took[1],
               took[TURNS - 1]);
}

static void late(struct rank *rank)
{
    const double begin = now_ms();
    coll_comm comm = make_late(rank, 0);
    const double made = now_ms();
    gather(rank, comm, 1);
    const double joined = now_ms();
    for (unsigned turn = 2; turn < 6; turn++) {
        if (turn % 2 == 1)
            require_nccl(nccl.GroupStart());
        fill(rank, turn);
        const coll_result result = ask(rank, comm);
        settle(comm, turn % 2 == 1 ? nccl.GroupEnd() : result);
        check(rank, turn);
    }
    if (rank->number == 0)
        printf("does not block: made in %.1f ms, the first all_gather took %.1f; %llu of 5 compressed\n", made - begin,
               joined - made, nccl_compressed(comm, "all_gather"));
    require(nccl_compressed(comm, "all_gather") == 5 || !is_demanding());
    end(rank, comm);
}

static void bare(struct rank *rank)
{
    const double begin = now_ms();
    coll_comm comm = make(rank, 0);
    const double took = now_ms() - begin;
    gather(rank, comm, 1);
    require(nccl_compressed(comm, "all_gather") == 0 && took < 20e3);
    if (rank->number == 0)
        printf("rank 1 is raw: ncclCommInitRank of rank 0 took %.0f ms\n", took);
    end(rank, comm);
}

/* ---- No memory --------------------------------------------------------------------------------------------------- */

enum { CHUNKS_MAX = 512, LEFT_BYTES = 48 << 20 };

/* All but a little, which is less than a message needs. */
static unsigned take_memory(void *chunks[CHUNKS_MAX])
{
    unsigned count = 0;
    for (size_t size = (size_t)1 << 30; size >= 1 << 20; size /= 2) {
        size_t left = 0, all;
        while (count < CHUNKS_MAX && cudaMemGetInfo(&left, &all) == cudaSuccess && left > size + LEFT_BYTES &&
               cudaMalloc(&chunks[count], size) == cudaSuccess)
            count++;
        (void)cudaGetLastError();
    }
    return count;
}

/* Of rank 1: what it has begun goes on by the host's memory, and what comes next is raw on all. */
static void full(struct rank *rank)
{
    void *chunks[CHUNKS_MAX];
    coll_comm comm = make(rank, 0);
    const unsigned count = rank->number == 1 ? take_memory(chunks) : 0;
    world_meet(rank);
    double begin = now_ms();
    gather(rank, comm, 1);
    const double hosted = now_ms() - begin;
    gather(rank, comm, 2);
    const unsigned long long compressed = nccl_compressed(comm, "all_gather");
    if (rank->number == 1)
        printf("%u pieces of memory taken: all_gather took %.1f ms; %llu of 2 compressed\n", count, hosted, compressed);
    /* between hosts it goes on by the host's memory */
    require(compressed == (are_apart() ? 2 : 1) || rank->number == 0 || count == 0);
    for (unsigned i = 0; i < count; i++)
        require_cuda(cudaFree(chunks[i]));
    end(rank, comm);
}

/* ---- Aborts beside calls ----------------------------------------------------------------------------------------- */

struct watchdog {
    coll_comm comm;
    atomic_bool called, ended;
    unsigned after_us;
};

static void *abort_it(void *argument)
{
    struct watchdog *watchdog = argument;
    while (!watchdog->called)
        usleep(100);
    usleep(watchdog->after_us);
    require_nccl(nccl.CommAbort(watchdog->comm));
    watchdog->ended = true;
    return NULL;
}

/* Rank 0 alone comes to the first collective. */
static void abort_what_waits(struct rank *rank, unsigned id)
{
    coll_comm comm = make_late(rank, id);
    world_meet(rank);
    if (rank->number == 0) {
        struct watchdog watchdog = {.comm = comm, .after_us = 20000 + 7000 * id};
        pthread_t thread;
        watchdog.called = true;
        require(pthread_create(&thread, NULL, abort_it, &watchdog) == 0);
        const coll_result result = ask(rank, comm);
        require(result != COLL_SUCCESS && result != COLL_IN_PROGRESS);
        require(pthread_join(thread, NULL) == 0);
    }
    world_meet(rank);
    if (rank->number > 0)
        require_nccl(nccl.CommAbort(comm));
}

static void abort_what_is_grouped(struct rank *rank, unsigned id)
{
    coll_comm comm = make(rank, id);
    world_meet(rank);
    if (rank->number == 0) {
        struct watchdog watchdog = {.comm = comm};
        pthread_t thread;
        require(pthread_create(&thread, NULL, abort_it, &watchdog) == 0);
        require_nccl(nccl.GroupStart());
        require_nccl(ask(rank, comm));
        const bool compressed = nccl_compressed(comm, "all_gather") == 1;
        watchdog.called = true;
        require(pthread_join(thread, NULL) == 0);
        require(nccl.GroupEnd() != COLL_SUCCESS || !compressed);
    }
    world_meet(rank);
    if (rank->number > 0)
        require_nccl(nccl.CommAbort(comm));
}

static void beside(struct rank *rank)
{
    for (unsigned turn = 0; turn < 6; turn++) {
        abort_what_waits(rank, 2 * turn);
        abort_what_is_grouped(rank, 2 * turn + 1);
    }
    coll_comm comm = make(rank, WORLD_IDS - 1); /* the GPU goes on */
    gather(rank, comm, 1);
    end(rank, comm);
    if (rank->number == 0)
        printf("12 aborts beside calls: each call has ended with an error\n");
}

/* Of rank 1, which is a process. */
static void be_raw(int number)
{
    if (number == 1)
        require(setenv("STRAIT_COLL", "raw", 1) == 0);
}

static const struct world_scene scenes[] = {
    {.name = "times", times, .own_comms = true},
    {.name = "late", late, .own_comms = true},
    {.name = "bare", bare, .own_comms = true, .prepare = be_raw, .processes_only = true},
    {.name = "full", full, .own_comms = true},
    {.name = "beside", beside, .own_comms = true},
};

int main(int argc, char **argv)
{
    return world_main(argc, argv,
                      &(struct world_program){.scenes = scenes, .count = COUNT(scenes), .bytes = BYTES, .slots = 1});
}
