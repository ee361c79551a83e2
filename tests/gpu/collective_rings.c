/* What does not fit, on two real GPUs: incompressible values, compressed whatever it costs.
 *
 *   collective_rings [--threads] LIBRARY [SCENE ...]
 *
 * LIBRARY is libstrait-coll, opened by its path. Two ranks, as processes, as threads, and as one thread; with --threads
 * not as processes. Every value that arrives is compared. Operations in graphs keep overflowing, while others of their
 * kind go raw after the second time. A scene that does not end within 25 seconds has failed. Exit status 77: no two
 * GPUs. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "collective/call.h"
#include "tests/gpu/apart.h"

enum { SKIPPED = 77, RANKS = 2, SECONDS_MAX = 25, TYPE_BFLOAT16 = 9, SMALL = 1 << 18, LARGE = 12 << 20, REPLAYS = 40 };

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* ---- NCCL -------------------------------------------------------------------------------------------------------- */

static struct {
    coll_result (*GetUniqueId)(coll_id *id);
    coll_result (*CommInitRank)(coll_comm *made, int ranks, coll_id id, int rank);
    coll_result (*CommInitAll)(coll_comm *made, int count, const int *devices);
    coll_result (*CommSplit)(coll_comm comm, int color, int key, coll_comm *made, void *config);
    coll_result (*CommDestroy)(coll_comm comm);
    coll_result (*CommGetAsyncError)(coll_comm comm, coll_result *error);
    coll_result (*AllGather)(const void *send, void *receive, size_t count, coll_type type, coll_comm comm,
                             coll_stream stream);
    coll_result (*Send)(const void *send, size_t count, coll_type type, int peer, coll_comm comm, coll_stream stream);
    coll_result (*Recv)(void *receive, size_t count, coll_type type, int peer, coll_comm comm, coll_stream stream);
    coll_result (*GroupStart)(void);
    coll_result (*GroupEnd)(void);
    const char *(*GetErrorString)(coll_result result);
} nccl;

static size_t (*report)(coll_comm comm, char *dst, size_t dst_capacity);

static void open_library(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
#define FIND(name) require((*(void **)&nccl.name = dlsym(handle, "nccl" #name)) != NULL)
    FIND(GetUniqueId);
    FIND(CommInitRank);
    FIND(CommInitAll);
    FIND(CommSplit);
    FIND(CommDestroy);
    FIND(CommGetAsyncError);
    FIND(AllGather);
    FIND(Send);
    FIND(Recv);
    FIND(GroupStart);
    FIND(GroupEnd);
    FIND(GetErrorString);
    require((*(void **)&report = dlsym(handle, "strait_coll_report")) != NULL);
}

static void require_nccl(coll_result result)
{
    if (result != COLL_SUCCESS)
        fprintf(stderr, "NCCL: %s\n", nccl.GetErrorString(result));
    require(result == COLL_SUCCESS);
}

/* ---- A rank ------------------------------------------------------------------------------------------------------ */

struct rank {
    int number, control; /* control: a stream socket to the other */
    coll_comm comm;
    cudaStream_t stream;
    uint16_t *own, *all; /* on the GPU: values to send, and of both ranks */
};

/* Of any bits; of a seed. */
static uint16_t *values_of(uint64_t seed, size_t count)
{
    uint16_t *values = malloc(count * sizeof(*values));
    uint64_t state = 88172645463325252u + 1000003 * seed;
    require(values != NULL);
    for (size_t i = 0; i < count; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        values[i] = (uint16_t)(state >> 20);
    }
    return values;
}

/* A copy from such host memory may return before it has reached the GPU, and the ranks' streams do not wait for it. */
static void fill(void *gpu, uint64_t seed, size_t count)
{
    uint16_t *values = values_of(seed, count);
    require_cuda(cudaMemcpy(gpu, values, count * 2, cudaMemcpyHostToDevice));
    require_cuda(cudaDeviceSynchronize());
    free(values);
}

static void require_values(const void *gpu, uint64_t seed, size_t count, const char *what)
{
    uint16_t *expected = values_of(seed, count), *got = malloc(count * 2);
    require(got != NULL);
    require_cuda(cudaMemcpy(got, gpu, count * 2, cudaMemcpyDeviceToHost));
    size_t wrong = 0, first = 0;
    for (size_t i = 0; i < count; i++) {
        first = wrong == 0 ? i : first;
        wrong += got[i] != expected[i];
    }
    if (wrong > 0)
        fprintf(stderr, "%s: %zu of %zu values differ; number %zu is %04x, not %04x, the last is %04x\n", what, wrong,
                count, first, got[first], expected[first], got[count - 1]);
    require(wrong == 0);
    free(expected);
    free(got);
}

static void make_buffers(struct rank *rank)
{
    require_cuda(cudaStreamCreateWithFlags(&rank->stream, cudaStreamNonBlocking));
    require_cuda(cudaMalloc((void **)&rank->own, (size_t)LARGE * 2));
    require_cuda(cudaMalloc((void **)&rank->all, (size_t)LARGE * 2 * RANKS));
    require_cuda(cudaMemset(rank->all, 0x5a, (size_t)LARGE * 2 * RANKS));
    require_cuda(cudaDeviceSynchronize());
}

static void rank_open(struct rank *rank)
{
    coll_id id;
    use_device(rank->number);
    if (rank->number == 0) {
        require_nccl(nccl.GetUniqueId(&id));
        require(write(rank->control, &id, sizeof(id)) == sizeof(id));
    } else {
        require(read(rank->control, &id, sizeof(id)) == sizeof(id));
    }
    require_nccl(nccl.CommInitRank(&rank->comm, RANKS, id, rank->number));
    make_buffers(rank);
}

static void meet(struct rank *rank)
{
    char byte = 0;
    require(write(rank->control, &byte, 1) == 1 && read(rank->control, &byte, 1) == 1);
}

static void settle(struct rank *rank)
{
    coll_result error;
    require_cuda(cudaStreamSynchronize(rank->stream));
    require_nccl(nccl.CommGetAsyncError(rank->comm, &error));
    require_nccl(error);
    meet(rank);
}

static void require_way(const struct rank *rank)
{
    char text[4096];
    require(report(rank->comm, text, sizeof(text)) > 0);
    require(strstr(text, "could not agree") == NULL); /* then nothing was compressed */
}

static void rank_close(struct rank *rank)
{
    settle(rank);
    require_way(rank);
    require_nccl(nccl.CommDestroy(rank->comm));
    require_cuda(cudaStreamDestroy(rank->stream));
    require_cuda(cudaFree(rank->own));
    require_cuda(cudaFree(rank->all));
}

static uint64_t seed_of(unsigned turn, int rank)
{
    return 1 + 2 * turn + (unsigned)rank;
}

/* ---- Scenes ------------------------------------------------------------------------------------------------------ */

static void gather(struct rank *rank, cudaStream_t stream)
{
    require_nccl(nccl.AllGather(rank->own, rank->all, LARGE, TYPE_BFLOAT16, rank->comm, stream));
}

static void require_gathered(const struct rank *rank, unsigned turn)
{
    for (int from = 0; from < RANKS; from++)
        require_values(rank->all + (size_t)from * LARGE, seed_of(turn, from), LARGE, "all_gather");
}

static void calls(struct rank *rank)
{
    for (unsigned turn = 0; turn < 3; turn++) {
        fill(rank->own, seed_of(turn, rank->number), LARGE);
        gather(rank, rank->stream);
        settle(rank);
        require_gathered(rank, turn);
    }
}

/* Rank 0 has both in a group; rank 1 one after the other. */
static void one_sided_of(struct rank *rank, size_t count, bool receives_first, unsigned turn)
{
    const int peer = 1 - rank->number;
    fill(rank->own, seed_of(turn, rank->number), count);
    if (rank->number == 0)
        require_nccl(nccl.GroupStart());
    if (rank->number == 0 || !receives_first)
        require_nccl(nccl.Send(rank->own, count, TYPE_BFLOAT16, peer, rank->comm, rank->stream));
    require_nccl(nccl.Recv(rank->all, count, TYPE_BFLOAT16, peer, rank->comm, rank->stream));
    if (rank->number == 1 && receives_first)
        require_nccl(nccl.Send(rank->own, count, TYPE_BFLOAT16, peer, rank->comm, rank->stream));
    if (rank->number == 0)
        require_nccl(nccl.GroupEnd());
    settle(rank);
    require_values(rank->all, seed_of(turn, peer), count, "one side grouped");
}

/* NCCL connects two ranks when they first send to each other, and there both have to group alike. */
static void connect_pair(struct rank *rank)
{
    require_nccl(nccl.GroupStart());
    require_nccl(nccl.Send(rank->own, 1, TYPE_BFLOAT16, 1 - rank->number, rank->comm, rank->stream));
    require_nccl(nccl.Recv(rank->all, 1, TYPE_BFLOAT16, 1 - rank->number, rank->comm, rank->stream));
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

static struct graph capture(struct rank *rank)
{
    struct graph graph;
    require_cuda(cudaStreamBeginCapture(rank->stream, cudaStreamCaptureModeThreadLocal));
    gather(rank, rank->stream);
    require_cuda(cudaStreamEndCapture(rank->stream, &graph.graph));
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
        require_cuda(cudaGraphLaunch(graph.made, rank->stream));
    require_cuda(cudaStreamSynchronize(rank->stream));
    if (rank->number == 0)
        printf("    %s: %llu us for each all_gather of %u MiB, none of which fits\n", name,
               (unsigned long long)(now_us() - began) / REPLAYS, LARGE / (1u << 19));
}

static void graphs(struct rank *rank)
{
    struct graph graph = capture(rank);
    for (unsigned turn = 0; turn < 2; turn++) {
        fill(rank->own, seed_of(turn, rank->number), LARGE);
        require_cuda(cudaMemset(rank->all, 0, (size_t)LARGE * 2 * RANKS));
        require_cuda(cudaDeviceSynchronize());
        replay(rank, graph, "graph");
        settle(rank);
        require_gathered(rank, turn);
    }
    drop(graph);
}

/* Graphs and calls on streams of their own, nobody waiting in between. */
static void interleaved(struct rank *rank)
{
    struct rank other = *rank;
    struct graph graph = capture(rank);
    make_buffers(&other);
    fill(rank->own, seed_of(0, rank->number), LARGE);
    fill(other.own, seed_of(1, rank->number), LARGE);
    for (unsigned i = 0; i < REPLAYS; i++) {
        require_cuda(cudaGraphLaunch(graph.made, rank->stream));
        gather(&other, other.stream);
    }
    require_cuda(cudaStreamSynchronize(other.stream));
    settle(rank);
    require_gathered(rank, 0);
    require_gathered(&other, 1);
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
    struct graph graph = capture(rank);
    meet(rank);
    require(pthread_create(&thread, NULL, storm, rank) == 0);
    fill(rank->own, seed_of(0, rank->number), LARGE);
    for (unsigned turn = 0; turn < 3; turn++) {
        replay(rank, graph, "graph beside cudaFree");
        for (unsigned i = 0; i < 20; i++)
            gather(rank, rank->stream);
        settle(rank);
    }
    meet(rank);
    storm_over = true;
    require(pthread_join(thread, NULL) == 0);
    require_gathered(rank, 0);
    drop(graph);
}

/* On streams of their own at once; of the second one ranks are the other way round. */
static void two_communicators(struct rank *rank)
{
    struct rank other = *rank;
    require_nccl(nccl.CommSplit(rank->comm, 0, -rank->number, &other.comm, NULL));
    make_buffers(&other);
    fill(rank->own, seed_of(0, rank->number), LARGE);
    fill(other.own, seed_of(0, 1 - rank->number), LARGE);
    struct graph first = capture(rank), second = capture(&other);
    for (unsigned i = 0; i < REPLAYS; i++) {
        require_cuda(cudaGraphLaunch(first.made, rank->stream));
        require_cuda(cudaGraphLaunch(second.made, other.stream));
    }
    require_cuda(cudaStreamSynchronize(other.stream));
    settle(rank);
    require_gathered(rank, 0);
    require_gathered(&other, 0);
    drop(first); /* destroying a communicator waits for the end of its graphs */
    drop(second);
    require_nccl(nccl.CommDestroy(other.comm));
}

static const struct scene {
    const char *name;
    void (*play)(struct rank *rank);
    bool threads; /* by threads too */
} scenes[] = {{"calls", calls, false},
              {"one_sided_small", one_sided_small, false},
              {"one_sided", one_sided, true},
              {"graphs", graphs, true},
              {"interleaved", interleaved, false},
              {"two_communicators", two_communicators, false},
              {"driver_calls", driver_calls, true}};

/* ---- Ranks as processes and threads ------------------------------------------------------------------------------ */

static const char *library;
static bool only_threads;

static void play(struct rank *rank, const struct scene *scene)
{
    rank_open(rank);
    scene->play(rank);
    rank_close(rank);
}

struct start {
    struct rank rank;
    const struct scene *scene;
};

static void *play_thread(void *argument)
{
    struct start *start = argument;
    play(&start->rank, start->scene);
    return NULL;
}

static void play_threads(const struct scene *scene, const int control[2])
{
    struct start starts[RANKS] = {{{.number = 0, .control = control[0]}, scene},
                                  {{.number = 1, .control = control[1]}, scene}};
    pthread_t other;
    require(pthread_create(&other, NULL, play_thread, &starts[1]) == 0);
    play_thread(&starts[0]);
    require(pthread_join(other, NULL) == 0);
}

static pid_t start_process(const struct scene *scene, int number, const int control[2], bool threads)
{
    struct rank rank = {.number = number, .control = control[number]};
    pid_t pid = fork();
    require(pid >= 0);
    if (pid > 0)
        return pid;
    end_with_parent();
    alarm(only_threads ? 0 : patience(SECONDS_MAX));
    tell_host(number);
    open_library(library);
    if (threads)
        play_threads(scene, control);
    else
        play(&rank, scene);
    fflush(stdout);
    _exit(0); /* what NCCL and CUDA would do at exit is not looked at here */
}

static bool has_passed(pid_t pid)
{
    int status;
    require(waitpid(pid, &status, 0) == pid);
    return status == 0;
}

static int run_scene(const struct scene *scene, bool threads)
{
    int control[2];
    pid_t ranks[RANKS];
    const uint64_t began = now_us();
    bool passed = true;
    fflush(stdout);
    require(socketpair(AF_UNIX, SOCK_STREAM, 0, control) == 0);
    for (int i = 0; i < (threads ? 1 : RANKS); i++)
        ranks[i] = start_process(scene, i, control, threads);
    close(control[0]);
    close(control[1]);
    for (int i = 0; i < (threads ? 1 : RANKS); i++)
        passed &= has_passed(ranks[i]);
    printf("%-18s %-10s %s, %.1f s\n", scene->name, threads ? "threads" : "processes", passed ? "ok" : "FAILED",
           (double)(now_us() - began) / 1e6);
    return !passed;
}

/* ---- Ranks of one thread ----------------------------------------------------------------------------------------- */

static void play_one_thread(void)
{
    struct rank ranks[RANKS] = {{.number = 0}, {.number = 1}};
    coll_comm comms[RANKS];
    require_nccl(nccl.CommInitAll(comms, RANKS, NULL));
    for (int i = 0; i < RANKS; i++) {
        ranks[i].comm = comms[i];
        require_cuda(cudaSetDevice(i));
        make_buffers(&ranks[i]);
    }
    for (unsigned turn = 0; turn < 3; turn++) {
        for (int i = 0; i < RANKS; i++)
            fill(ranks[i].own, seed_of(turn, i), LARGE);
        require_nccl(nccl.GroupStart());
        for (int i = 0; i < RANKS; i++)
            gather(&ranks[i], ranks[i].stream);
        require_nccl(nccl.GroupEnd());
        for (int i = 0; i < RANKS; i++)
            require_cuda(cudaStreamSynchronize(ranks[i].stream));
        for (int i = 0; i < RANKS; i++)
            require_gathered(&ranks[i], turn);
    }
    for (int i = 0; i < RANKS; i++) {
        require_way(&ranks[i]);
        require_nccl(nccl.CommDestroy(comms[i]));
    }
}

static int run_one_thread(void)
{
    fflush(stdout);
    pid_t pid = fork();
    require(pid >= 0);
    if (pid == 0) {
        end_with_parent();
        alarm(only_threads ? 0 : SECONDS_MAX);
        open_library(library);
        play_one_thread();
        _exit(0);
    }
    const bool passed = has_passed(pid);
    printf("%-18s %-10s %s\n", "calls", "one thread", passed ? "ok" : "FAILED");
    return !passed;
}

int main(int argc, char **argv)
{
    int failed = 0, run = 0;
    bool may_thread;
    setvbuf(stdout, NULL, _IOLBF, 0);
    only_threads = argc > 1 && strcmp(argv[1], "--threads") == 0;
    argc -= only_threads;
    argv += only_threads;
    if (argc < 2) {
        fprintf(stderr, "usage: collective_rings [--threads] LIBRARY [SCENE ...]\n");
        return 2;
    }
    library = argv[1];
    setenv("STRAIT_COLL", "compress", 1);
    if (!have_devices(RANKS, &may_thread) || (only_threads && !may_thread)) {
        printf("skipped: two GPUs are needed\n");
        return SKIPPED;
    }
    for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++)
        for (int threads = only_threads; threads <= ((scenes[i].threads && may_thread) || only_threads); threads++)
            if (is_named(scenes[i].name, argc - 2, argv + 2)) {
                failed += run_scene(&scenes[i], threads == 1);
                run++;
            }
    if (may_thread && is_named("one_thread", argc - 2, argv + 2)) {
        failed += run_one_thread();
        run++;
    }
    printf("%d of %d failed\n", failed, run);
    return failed > 0 || run == 0;
}
