/* What does not fit, on real GPUs: incompressible values, compressed whatever it costs.
 *
 *   collective_rings [--threads] [--ranks=N] LIBRARY [SCENE ...]
 *
 * LIBRARY is libstrait-coll, opened by its path. An even number of ranks (two), as processes, as threads, and as one
 * thread; with --threads not as processes. Every value that arrives is compared. Operations in graphs keep overflowing,
 * while others of their class go raw after the second time. Exit status 77: too few GPUs. */
#include <stdatomic.h>

#include "tests/gpu/collective_world.h"

enum { SMALL = 1 << 18, LARGE = 12 << 20 };
#ifdef ON_FAKE_GPUS
enum { REPLAYS = 12 };
#else
enum { REPLAYS = 40 };
#endif

static uint64_t seed_of(unsigned turn, int rank)
{
    return 1 + WORLD_RANKS_MAX * turn + (unsigned)rank;
}

static void fill(struct rank *rank, unsigned slot, uint64_t seed, size_t count)
{
    rank_fill(rank, rank->send[slot], COLL_BF16, count, VALUES_NOISE, seed);
}

static void settle(struct rank *rank)
{
    rank_settle(rank);
    world_meet(rank);
}

/* ---- Scenes ------------------------------------------------------------------------------------------------------ */

/* Of the first communicator: a slot is a stream and its buffers. */
static void gather(struct rank *rank, unsigned slot)
{
    require_nccl(
        nccl.AllGather(rank->send[slot], rank->receive[slot], LARGE, COLL_BF16, rank->comm[0], rank->stream[slot]));
}

static void require_gathered(struct rank *rank, unsigned slot, unsigned turn)
{
    for (int from = 0; from < rank->ranks; from++)
        rank_require(rank, rank->receive[slot] + (size_t)from * LARGE * 2, COLL_BF16, LARGE, VALUES_NOISE,
                     seed_of(turn, from));
}

static void calls(struct rank *rank)
{
    for (unsigned turn = 0; turn < 3; turn++) {
        fill(rank, 0, seed_of(turn, rank->number), LARGE);
        gather(rank, 0);
        settle(rank);
        require_gathered(rank, 0, turn);
    }
}

/* Ranks 0 and 1, 2 and 3 and so on send to each other. */
static int peer_of(const struct rank *rank)
{
    require(rank->ranks % 2 == 0);
    return rank->number ^ 1;
}

/* Ranks with even numbers have both in a group; their peers one after the other. */
static void one_sided_of(struct rank *rank, size_t count, bool receives_first, unsigned turn)
{
    const int peer = peer_of(rank);
    const bool groups = rank->number % 2 == 0;
    fill(rank, 0, seed_of(turn, rank->number), count);
    if (groups)
        require_nccl(nccl.GroupStart());
    if (groups || !receives_first)
        require_nccl(nccl.Send(rank->send[0], count, COLL_BF16, peer, rank->comm[0], rank->stream[0]));
    require_nccl(nccl.Recv(rank->receive[0], count, COLL_BF16, peer, rank->comm[0], rank->stream[0]));
    if (!groups && receives_first)
        require_nccl(nccl.Send(rank->send[0], count, COLL_BF16, peer, rank->comm[0], rank->stream[0]));
    if (groups)
        require_nccl(nccl.GroupEnd());
    settle(rank);
    rank_require(rank, rank->receive[0], COLL_BF16, count, VALUES_NOISE, seed_of(turn, peer));
}

/* NCCL connects two ranks when they first send to each other, and there both have to group alike. */
static void connect_pair(struct rank *rank)
{
    require_nccl(nccl.GroupStart());
    require_nccl(nccl.Send(rank->send[0], 1, COLL_BF16, peer_of(rank), rank->comm[0], rank->stream[0]));
    require_nccl(nccl.Recv(rank->receive[0], 1, COLL_BF16, peer_of(rank), rank->comm[0], rank->stream[0]));
    require_nccl(nccl.GroupEnd());
    settle(rank);
}

static void one_sided(struct rank *rank)
{
    const size_t count = *(const size_t *)rank->scene->argument;
    connect_pair(rank);
    one_sided_of(rank, count, true, 0);
    one_sided_of(rank, count, false, 1);
}

static void gather_in(struct rank *rank, void *slot)
{
    gather(rank, *(const unsigned *)slot);
}

static cudaGraphExec_t capture(struct rank *rank, unsigned slot)
{
    return graph_capture(rank, slot, gather_in, &slot);
}

static void replay(struct rank *rank, cudaGraphExec_t graph, const char *name)
{
    const double began = now_ms();
    for (unsigned i = 0; i < REPLAYS; i++)
        require_cuda(cudaGraphLaunch(graph, rank->stream[0]));
    require_cuda(cudaStreamSynchronize(rank->stream[0]));
    if (rank->number == 0)
        printf("    %s: %.0f us for each all_gather of %u MiB, none of which fits\n", name,
               (now_ms() - began) * 1e3 / REPLAYS, LARGE / (1u << 19));
}

static void graphs(struct rank *rank)
{
    cudaGraphExec_t graph = capture(rank, 0);
    for (unsigned turn = 0; turn < 2; turn++) {
        fill(rank, 0, seed_of(turn, rank->number), LARGE);
        require_cuda(cudaMemset(rank->receive[0], 0, (size_t)LARGE * 2 * (size_t)rank->ranks));
        require_cuda(cudaDeviceSynchronize());
        replay(rank, graph, "graph");
        settle(rank);
        require_gathered(rank, 0, turn);
    }
    require_cuda(cudaGraphExecDestroy(graph));
}

/* Graphs and calls on streams of their own, nobody waiting in between. */
static void interleaved(struct rank *rank)
{
    cudaGraphExec_t graph = capture(rank, 0);
    fill(rank, 0, seed_of(0, rank->number), LARGE);
    fill(rank, 1, seed_of(1, rank->number), LARGE);
    for (unsigned i = 0; i < REPLAYS; i++) {
        require_cuda(cudaGraphLaunch(graph, rank->stream[0]));
        gather(rank, 1);
    }
    require_cuda(cudaStreamSynchronize(rank->stream[1]));
    settle(rank);
    require_gathered(rank, 0, 0);
    require_gathered(rank, 1, 1);
    require_cuda(cudaGraphExecDestroy(graph));
}

/* Another thread calls what waits for the GPU with the driver's lock held. */
static atomic_bool storm_over;

static void *storm(void *argument)
{
    void *memory;
    use_device(((const struct rank *)argument)->number);
    while (!storm_over) {
        require_cuda(cudaMalloc(&memory, (size_t)64 << 20));
        require_cuda(cudaMemset(memory, 1, 1 << 20));
        require_cuda(cudaFree(memory));
    }
    return NULL;
}

static void driver_calls(struct rank *rank)
{
    pthread_t thread;
    storm_over = false;
    cudaGraphExec_t graph = capture(rank, 0);
    world_meet(rank);
    require(pthread_create(&thread, NULL, storm, rank) == 0);
    fill(rank, 0, seed_of(0, rank->number), LARGE);
    for (unsigned turn = 0; turn < 3; turn++) {
        replay(rank, graph, "graph beside cudaFree");
        for (unsigned i = 0; i < 20; i++)
            gather(rank, 0);
        settle(rank);
    }
    world_meet(rank);
    storm_over = true;
    require(pthread_join(thread, NULL) == 0);
    require_gathered(rank, 0, 0);
    require_cuda(cudaGraphExecDestroy(graph));
}

/* On streams of their own at once; of the second one ranks are the other way round. */
static void two_communicators(struct rank *rank)
{
    struct rank other = *rank;
    require_nccl(nccl.CommSplit(rank->comm[0], 0, -rank->number, &other.comm[0], NULL));
    fill(rank, 0, seed_of(0, rank->number), LARGE);
    fill(rank, 1, seed_of(0, rank->ranks - 1 - rank->number), LARGE);
    cudaGraphExec_t first = capture(rank, 0), second = capture(&other, 1);
    for (unsigned i = 0; i < REPLAYS; i++) {
        require_cuda(cudaGraphLaunch(first, rank->stream[0]));
        require_cuda(cudaGraphLaunch(second, rank->stream[1]));
    }
    require_cuda(cudaStreamSynchronize(rank->stream[1]));
    settle(rank);
    require_gathered(rank, 0, 0);
    require_gathered(rank, 1, 0);
    require_cuda(cudaGraphExecDestroy(first)); /* destroying a communicator waits for the end of its graphs */
    require_cuda(cudaGraphExecDestroy(second));
    require_nccl(nccl.CommDestroy(other.comm[0]));
}

/* All ranks are one thread's. */
static void one_thread(struct rank *rank)
{
    const int count = rank->ranks;
    struct rank ranks[WORLD_RANKS_MAX];
    coll_comm comms[WORLD_RANKS_MAX];
    require_nccl(nccl.CommInitAll(comms, count, NULL));
    for (int i = 0; i < count; i++) {
        ranks[i] = (struct rank){.number = i, .ranks = count, .comm = {comms[i]}};
        world_allocate(&ranks[i], 2 * LARGE, 1);
    }
    for (unsigned turn = 0; turn < 3; turn++) {
        for (int i = 0; i < count; i++)
            fill(&ranks[i], 0, seed_of(turn, i), LARGE);
        require_nccl(nccl.GroupStart());
        for (int i = 0; i < count; i++)
            gather(&ranks[i], 0);
        require_nccl(nccl.GroupEnd());
        for (int i = 0; i < count; i++)
            require_cuda(cudaStreamSynchronize(ranks[i].stream[0]));
        for (int i = 0; i < count; i++)
            require_gathered(&ranks[i], 0, turn);
    }
    for (int i = 0; i < count; i++) {
        require(nccl_compressed(comms[i], "all_gather") > 0);
        require_nccl(nccl.CommDestroy(comms[i]));
    }
}

#define VALUES(count) \
    &(const size_t)   \
    {                 \
        count         \
    }

static const struct world_scene scenes[] = {
    {.name = "calls", calls, "all_gather"},
    {.name = "one_sided_small", one_sided, "send", VALUES(SMALL)},
    {.name = "one_sided", one_sided, "send", VALUES(LARGE), .threads_too = true},
    {.name = "graphs", graphs, "all_gather", .threads_too = true},
    {.name = "interleaved", interleaved, "all_gather"},
    {.name = "two_communicators", two_communicators, "all_gather"},
    {.name = "driver_calls", driver_calls, "all_gather", .threads_too = true},
    {.name = "one_thread", one_thread, .alone = true},
};

int main(int argc, char **argv)
{
    setenv("STRAIT_COLL", "compress", 1);
    return world_main(
        argc, argv, &(struct world_program){.scenes = scenes, .count = COUNT(scenes), .bytes = 2 * LARGE, .slots = 2});
}
