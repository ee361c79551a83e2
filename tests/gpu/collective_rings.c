/* What does not fit, on two real GPUs: incompressible values, compressed whatever it costs.
 *
 *   collective_rings [--threads] LIBRARY [SCENE ...]
 *
 * LIBRARY is libstrait-coll, opened by its path. Two ranks, as processes, as threads, and as one thread; with --threads
 * not as processes. Every value that arrives is compared. Operations in graphs keep overflowing, while others of their
 * class go raw after the second time. Exit status 77: no two GPUs. */
#include <stdatomic.h>
#include <time.h>

#include "tests/coll_engine/values.h"
#include "tests/gpu/collective_world.h"

enum { SMALL = 1 << 18, LARGE = 12 << 20, REPLAYS = 40 };

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* ---- Values of any bits ------------------------------------------------------------------------------------------ */

static uint64_t seed_of(unsigned turn, int rank)
{
    return 1 + 2 * turn + (unsigned)rank;
}

/* A copy from such host memory may return before it has reached the GPU, and the ranks' streams do not wait for it. */
static void fill(struct rank *rank, unsigned slot, uint64_t seed, size_t count)
{
    values_fill(rank->host, COLL_BF16, count, VALUES_NOISE, seed);
    require_cuda(cudaMemcpy(rank->send[slot], rank->host, count * 2, cudaMemcpyHostToDevice));
    require_cuda(cudaDeviceSynchronize());
}

static void require_values(struct rank *rank, const void *gpu, uint64_t seed, size_t count)
{
    require_cuda(cudaMemcpy(rank->host, gpu, count * 2, cudaMemcpyDeviceToHost));
    require(values_are(rank->host, COLL_BF16, count, VALUES_NOISE, seed));
}

static void settle(struct rank *rank)
{
    coll_result error;
    require_cuda(cudaStreamSynchronize(rank->stream[0]));
    require_nccl(nccl.CommGetAsyncError(rank->comm[0], &error));
    require_nccl(error);
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
        require_values(rank, rank->receive[slot] + (size_t)from * LARGE * 2, seed_of(turn, from), LARGE);
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

/* Rank 0 has both in a group; rank 1 one after the other. */
static void one_sided_of(struct rank *rank, size_t count, bool receives_first, unsigned turn)
{
    const int peer = 1 - rank->number;
    fill(rank, 0, seed_of(turn, rank->number), count);
    if (rank->number == 0)
        require_nccl(nccl.GroupStart());
    if (rank->number == 0 || !receives_first)
        require_nccl(nccl.Send(rank->send[0], count, COLL_BF16, peer, rank->comm[0], rank->stream[0]));
    require_nccl(nccl.Recv(rank->receive[0], count, COLL_BF16, peer, rank->comm[0], rank->stream[0]));
    if (rank->number == 1 && receives_first)
        require_nccl(nccl.Send(rank->send[0], count, COLL_BF16, peer, rank->comm[0], rank->stream[0]));
    if (rank->number == 0)
        require_nccl(nccl.GroupEnd());
    settle(rank);
    require_values(rank, rank->receive[0], seed_of(turn, peer), count);
}

/* NCCL connects two ranks when they first send to each other, and there both have to group alike. */
static void connect_pair(struct rank *rank)
{
    require_nccl(nccl.GroupStart());
    require_nccl(nccl.Send(rank->send[0], 1, COLL_BF16, 1 - rank->number, rank->comm[0], rank->stream[0]));
    require_nccl(nccl.Recv(rank->receive[0], 1, COLL_BF16, 1 - rank->number, rank->comm[0], rank->stream[0]));
    require_nccl(nccl.GroupEnd());
    settle(rank);
}

static void one_sided(struct rank *rank)
{
    connect_pair(rank);
    one_sided_of(rank, LARGE, true, 0);
    one_sided_of(rank, LARGE, false, 1);
}

static void one_sided_small(struct rank *rank)
{
    connect_pair(rank);
    one_sided_of(rank, SMALL, true, 0);
    one_sided_of(rank, SMALL, false, 1);
}

struct graph {
    cudaGraph_t graph;
    cudaGraphExec_t made;
};

static struct graph capture(struct rank *rank, unsigned slot)
{
    struct graph graph;
    require_cuda(cudaStreamBeginCapture(rank->stream[slot], cudaStreamCaptureModeThreadLocal));
    gather(rank, slot);
    require_cuda(cudaStreamEndCapture(rank->stream[slot], &graph.graph));
    require_cuda(cudaGraphInstantiateWithFlags(&graph.made, graph.graph, 0));
    return graph;
}

static void drop(struct graph graph)
{
    require_cuda(cudaGraphExecDestroy(graph.made));
    require_cuda(cudaGraphDestroy(graph.graph));
}

static void replay(struct rank *rank, struct graph graph, const char *name)
{
    const uint64_t began = now_us();
    for (unsigned i = 0; i < REPLAYS; i++)
        require_cuda(cudaGraphLaunch(graph.made, rank->stream[0]));
    require_cuda(cudaStreamSynchronize(rank->stream[0]));
    if (rank->number == 0)
        printf("    %s: %llu us for each all_gather of %u MiB, none of which fits\n", name,
               (unsigned long long)(now_us() - began) / REPLAYS, LARGE / (1u << 19));
}

static void graphs(struct rank *rank)
{
    struct graph graph = capture(rank, 0);
    for (unsigned turn = 0; turn < 2; turn++) {
        fill(rank, 0, seed_of(turn, rank->number), LARGE);
        require_cuda(cudaMemset(rank->receive[0], 0, (size_t)LARGE * 2 * (size_t)rank->ranks));
        require_cuda(cudaDeviceSynchronize());
        replay(rank, graph, "graph");
        settle(rank);
        require_gathered(rank, 0, turn);
    }
    drop(graph);
}

/* Graphs and calls on streams of their own, nobody waiting in between. */
static void interleaved(struct rank *rank)
{
    struct graph graph = capture(rank, 0);
    fill(rank, 0, seed_of(0, rank->number), LARGE);
    fill(rank, 1, seed_of(1, rank->number), LARGE);
    for (unsigned i = 0; i < REPLAYS; i++) {
        require_cuda(cudaGraphLaunch(graph.made, rank->stream[0]));
        gather(rank, 1);
    }
    require_cuda(cudaStreamSynchronize(rank->stream[1]));
    settle(rank);
    require_gathered(rank, 0, 0);
    require_gathered(rank, 1, 1);
    drop(graph);
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
    struct graph graph = capture(rank, 0);
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
    drop(graph);
}

/* On streams of their own at once; of the second one ranks are the other way round. */
static void two_communicators(struct rank *rank)
{
    struct rank other = *rank;
    require_nccl(nccl.CommSplit(rank->comm[0], 0, -rank->number, &other.comm[0], NULL));
    fill(rank, 0, seed_of(0, rank->number), LARGE);
    fill(rank, 1, seed_of(0, 1 - rank->number), LARGE);
    struct graph first = capture(rank, 0), second = capture(&other, 1);
    for (unsigned i = 0; i < REPLAYS; i++) {
        require_cuda(cudaGraphLaunch(first.made, rank->stream[0]));
        require_cuda(cudaGraphLaunch(second.made, rank->stream[1]));
    }
    require_cuda(cudaStreamSynchronize(rank->stream[1]));
    settle(rank);
    require_gathered(rank, 0, 0);
    require_gathered(rank, 1, 0);
    drop(first); /* destroying a communicator waits for the end of its graphs */
    drop(second);
    require_nccl(nccl.CommDestroy(other.comm[0]));
}

/* Both ranks are one thread's. */
static void one_thread(struct rank *rank)
{
    enum { RANKS = 2 };
    struct rank ranks[RANKS];
    coll_comm comms[RANKS];
    require(rank->ranks == RANKS);
    require_nccl(nccl.CommInitAll(comms, RANKS, NULL));
    for (int i = 0; i < RANKS; i++) {
        ranks[i] = (struct rank){.number = i, .ranks = RANKS, .comm = {comms[i]}};
        world_allocate(&ranks[i], 2 * LARGE);
    }
    for (unsigned turn = 0; turn < 3; turn++) {
        for (int i = 0; i < RANKS; i++)
            fill(&ranks[i], 0, seed_of(turn, i), LARGE);
        require_nccl(nccl.GroupStart());
        for (int i = 0; i < RANKS; i++)
            gather(&ranks[i], 0);
        require_nccl(nccl.GroupEnd());
        for (int i = 0; i < RANKS; i++)
            require_cuda(cudaStreamSynchronize(ranks[i].stream[0]));
        for (int i = 0; i < RANKS; i++)
            require_gathered(&ranks[i], 0, turn);
    }
    for (int i = 0; i < RANKS; i++) {
        require(nccl_compressed(comms[i], "all_gather") > 0);
        require_nccl(nccl.CommDestroy(comms[i]));
    }
}

static const struct world_scene scenes[] = {{.name = "calls", calls, "all_gather"},
                                            {.name = "one_sided_small", one_sided_small, "send"},
                                            {.name = "one_sided", one_sided, "send", .threads_too = true},
                                            {.name = "graphs", graphs, "all_gather", .threads_too = true},
                                            {.name = "interleaved", interleaved, "all_gather"},
                                            {.name = "two_communicators", two_communicators, "all_gather"},
                                            {.name = "driver_calls", driver_calls, "all_gather", .threads_too = true},
                                            {.name = "one_thread", one_thread, NULL, .alone = true}};

int main(int argc, char **argv)
{
    setenv("STRAIT_COLL", "compress", 1);
    return world_main(argc, argv, scenes, COUNT(scenes), 2 * LARGE);
}
