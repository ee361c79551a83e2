/* A rank that is killed in mid-collective, on two real GPUs, one process each:
 *
 *   collective_kill [--told] LIBRARY [SCENE ...]
 *
 * LIBRARY is NCCL's or libstrait-coll, opened by its path. The rank that is left has to get ncclCommAbort back within 5
 * s, its stream and its GPU have to work afterwards, and with --told ncclCommGetAsyncError has to tell of an error
 * within 10 s; without, it is printed whether and when it does: NCCL alone may never notice. In the scene "repair"
 * nothing fits any more (it is about libstrait-coll with STRAIT_COLL=compress); in "stopped" the other one is stopped
 * for a while and nothing may be told. Exit status 77: no two GPUs. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/gpu/collective_nccl.h"

#define SKIPPED       77
#define RANKS         2
#define SECONDS_MAX   60u
#define TOLD_MAX_MS   10000u
#define ABORT_MAX_MS  5000u
#define VALUES        ((size_t)16 << 20) /* of a rank, BF16: 32 MiB */
#define UNDER_WAY_MAX 4u
#define STOPPED_MS    3000u
#define ALONE_MS      1000u /* that both work before one is killed */

enum { TYPE_BFLOAT16 = 9, SUM = 0 };

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* ---- A rank ------------------------------------------------------------------------------------------------------ */

struct rank {
    int number, control; /* control: a stream socket to the other */
    bool told;           /* an error has to be told */
    coll_comm comm;
    cudaStream_t stream;
    cudaGraphExec_t graph; /* of scenes that replay one */
    cudaEvent_t done[UNDER_WAY_MAX];
    char *send, *receive;
    uint64_t begun;
};

/* Values like those of weights: compressible, and not alike; or any bits. */
static void fill(struct rank *rank, bool noisy)
{
    uint16_t *values = malloc(RANKS * VALUES * sizeof(values[0]));
    uint64_t state = 88172645463325252u + (uint64_t)rank->number;
    require(values != NULL);
    for (size_t i = 0; i < RANKS * VALUES; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        values[i] =
            noisy ? (uint16_t)state : (uint16_t)((state & 0x807f) | (0x3c80u - (((unsigned)(state >> 32) % 5) << 7)));
    }
    require_cuda(cudaMemcpy(rank->send, values, RANKS * VALUES * sizeof(values[0]), cudaMemcpyHostToDevice));
    free(values);
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
    require_cuda(cudaStreamCreateWithFlags(&rank->stream, cudaStreamNonBlocking));
    for (unsigned i = 0; i < UNDER_WAY_MAX; i++)
        require_cuda(cudaEventCreateWithFlags(&rank->done[i], cudaEventDisableTiming));
    require_cuda(cudaMalloc((void **)&rank->send, RANKS * VALUES * 2));
    require_cuda(cudaMalloc((void **)&rank->receive, RANKS * VALUES * 2));
    fill(rank, false);
}

static void meet(struct rank *rank)
{
    char byte = 0;
    require(write(rank->control, &byte, 1) == 1 && read(rank->control, &byte, 1) == 1);
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static coll_result gather(struct rank *rank)
{
    return nccl.AllGather(rank->send, rank->receive, VALUES, TYPE_BFLOAT16, rank->comm, rank->stream);
}

static coll_result exchange(struct rank *rank)
{
    return nccl.AlltoAll(rank->send, rank->receive, VALUES, TYPE_BFLOAT16, rank->comm, rank->stream);
}

static coll_result scatter(struct rank *rank)
{
    return nccl.ReduceScatter(rank->send, rank->receive, VALUES, TYPE_BFLOAT16, SUM, rank->comm, rank->stream);
}

static coll_result reduce(struct rank *rank)
{
    return nccl.AllReduce(rank->send, rank->receive, VALUES, TYPE_BFLOAT16, SUM, rank->comm, rank->stream);
}

static coll_result swap(struct rank *rank)
{
    require_nccl(nccl.GroupStart());
    require_nccl(nccl.Send(rank->send, VALUES, TYPE_BFLOAT16, 1 - rank->number, rank->comm, rank->stream));
    require_nccl(nccl.Recv(rank->receive, VALUES, TYPE_BFLOAT16, 1 - rank->number, rank->comm, rank->stream));
    return nccl.GroupEnd();
}

static coll_result replay(struct rank *rank)
{
    require_cuda(cudaGraphLaunch(rank->graph, rank->stream));
    return COLL_SUCCESS;
}

/* What was captured stays compressed, though from now on nothing of it fits: each replay moves it again, which takes
 * most of its time. */
static void capture_noise(struct rank *rank)
{
    cudaGraph_t graph;
    require_nccl(gather(rank)); /* connects the ranks, which a capture cannot */
    require_cuda(cudaStreamSynchronize(rank->stream));
    require_cuda(cudaStreamBeginCapture(rank->stream, cudaStreamCaptureModeThreadLocal));
    require_nccl(gather(rank));
    require_cuda(cudaStreamEndCapture(rank->stream, &graph));
    require_cuda(cudaGraphInstantiateWithFlags(&rank->graph, graph, 0));
    require_cuda(cudaGraphDestroy(graph));
    meet(rank);
    fill(rank, true);
}

struct scene {
    const char *name;
    coll_result (*operate)(struct rank *rank);
    void (*prepare)(struct rank *rank); /* NULL: nothing */
    bool late;                          /* killed between two operations: the other waits for one that never begins */
    bool stopped;                       /* and not killed at all, but stopped for a while */
};

/* Begins as much as may be under way; never waits. */
static coll_result try_on(struct rank *rank, const struct scene *scene)
{
    cudaEvent_t done = rank->done[rank->begun % UNDER_WAY_MAX];
    if (rank->begun >= UNDER_WAY_MAX && cudaEventQuery(done) == cudaErrorNotReady)
        return COLL_SUCCESS;
    const coll_result result = scene->operate(rank);
    if (result != COLL_SUCCESS)
        return result;
    require_cuda(cudaEventRecord(done, rank->stream));
    rank->begun++;
    return COLL_SUCCESS;
}

static void go_on(struct rank *rank, const struct scene *scene)
{
    require_nccl(try_on(rank, scene));
}

static void work_for(struct rank *rank, const struct scene *scene, uint64_t ms)
{
    for (uint64_t start = now_ms(); now_ms() - start < ms;)
        go_on(rank, scene);
}

/* Both run the same number: the last ones of a time differ. */
static void work_times(struct rank *rank, const struct scene *scene, unsigned times)
{
    for (unsigned i = 0; i < times; i++)
        require_nccl(scene->operate(rank));
    require_cuda(cudaStreamSynchronize(rank->stream));
    meet(rank);
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

static bool await_error(struct rank *rank, const struct scene *scene, uint64_t since, coll_result *error)
{
    *error = COLL_SUCCESS;
    while (now_ms() - since < TOLD_MAX_MS) {
        require(nccl.CommGetAsyncError(rank->comm, error) == COLL_SUCCESS);
        if (*error != COLL_SUCCESS && *error != COLL_IN_PROGRESS)
            return true;
        if (!scene->late && rank->begun > 0 && cudaEventQuery(rank->done[(rank->begun - 1) % UNDER_WAY_MAX]) == 0)
            (void)try_on(rank, scene); /* an error is told above, next time */
        sleep_ms(1);
    }
    return false;
}

/* The stream has to come to its end, and the GPU to go on. */
static void use_gpu(struct rank *rank)
{
    unsigned char last = 0;
    require_cuda(cudaStreamSynchronize(rank->stream));
    require_cuda(cudaMemset(rank->receive, 0x5a, RANKS * VALUES * 2));
    require_cuda(cudaMemcpy(&last, rank->receive + RANKS * VALUES * 2 - 1, 1, cudaMemcpyDeviceToHost));
    require(last == 0x5a);
}

/* A row of the table: what was told and when, how long ncclCommAbort took. */
static void print_row(const struct scene *scene, uint64_t told_ms, coll_result error, uint64_t abort_ms,
                      coll_result aborted)
{
    const bool told = error != COLL_SUCCESS && error != COLL_IN_PROGRESS;
    printf("%-15s %-6s %6llu ms   abort %6llu ms %s%s%s\n", scene->name, told ? "told" : "untold",
           (unsigned long long)told_ms, (unsigned long long)abort_ms, abort_ms > ABORT_MAX_MS ? "TOO LONG, " : "",
           told ? nccl.GetErrorString(error) : "no error",
           aborted != COLL_SUCCESS ? ", and an error of ncclCommAbort" : "");
}

/* NCCL's abort waits until no graph knows the communicator, and a graph that runs is gone when the abort has ended it.
 */
static void *drop_graph(void *argument)
{
    struct rank *rank = argument;
    use_device(rank->number);
    require_cuda(cudaGraphExecDestroy(rank->graph));
    return NULL;
}

static coll_result abort_comm(struct rank *rank)
{
    pthread_t dropping;
    if (rank->graph == NULL)
        return nccl.CommAbort(rank->comm);
    require(pthread_create(&dropping, NULL, drop_graph, rank) == 0);
    coll_result result = nccl.CommAbort(rank->comm);
    require(pthread_join(dropping, NULL) == 0);
    return result;
}

static int be_left(struct rank *rank, const struct scene *scene)
{
    coll_result error;
    uint64_t since = now_ms();
    bool told = await_error(rank, scene, since, &error);
    uint64_t told_ms = now_ms() - since, abort_since = now_ms();
    coll_result result = abort_comm(rank);
    uint64_t abort_ms = now_ms() - abort_since;
    use_gpu(rank);
    print_row(scene, told_ms, error, abort_ms, result);
    return abort_ms > ABORT_MAX_MS || (rank->told && !told);
}

/* Who is stopped is not dead: nothing is told, and all goes on when it does. */
static int wait_for_stopped(struct rank *rank, const struct scene *scene, pid_t peer)
{
    coll_result error = COLL_SUCCESS;
    uint64_t since = now_ms();
    char byte = 0;
    require(kill(peer, SIGSTOP) == 0);
    require_nccl(scene->operate(rank));
    while (now_ms() - since < STOPPED_MS && error == COLL_SUCCESS) {
        require(nccl.CommGetAsyncError(rank->comm, &error) == COLL_SUCCESS);
        sleep_ms(1);
    }
    const uint64_t told_ms = now_ms() - since;
    require(kill(peer, SIGCONT) == 0 && write(rank->control, &byte, 1) == 1);
    if (error == COLL_SUCCESS)
        require_cuda(cudaStreamSynchronize(rank->stream));
    print_row(scene, told_ms, error, 0, COLL_SUCCESS);
    return error != COLL_SUCCESS;
}

static int come_late(struct rank *rank, const struct scene *scene)
{
    char byte;
    require(read(rank->control, &byte, 1) == 1);
    require_nccl(scene->operate(rank));
    for (;;)
        pause();
}

/* Rank 1 is killed by rank 0, which so knows when. */
static int run_rank(struct rank *rank, const struct scene *scene, const char *library)
{
    pid_t self = getpid(), peer;
    alarm(SECONDS_MAX);
    nccl_open(library);
    require(write(rank->control, &self, sizeof(self)) == sizeof(self));
    require(read(rank->control, &peer, sizeof(peer)) == sizeof(peer));
    rank_open(rank);
    if (scene->prepare != NULL)
        scene->prepare(rank);
    work_times(rank, scene, 3);
    if (scene->stopped)
        return rank->number == 1 ? come_late(rank, scene) : wait_for_stopped(rank, scene, peer);
    if (rank->number == 1) {
        for (;;)
            if (scene->late)
                pause();
            else
                go_on(rank, scene);
    }
    if (scene->late)
        require_nccl(scene->operate(rank));
    else
        work_for(rank, scene, ALONE_MS);
    require(kill(peer, SIGKILL) == 0);
    return be_left(rank, scene);
}

/* ---- Scenes ------------------------------------------------------------------------------------------------------ */

static const struct scene scenes[] = {
    {.name = "all_gather", .operate = gather},
    {.name = "all_to_all", .operate = exchange},
    {.name = "reduce_scatter", .operate = scatter},
    {.name = "all_reduce", .operate = reduce},
    {.name = "send_recv", .operate = swap},
    {.name = "waiting", .operate = gather, .late = true},
    {.name = "repair", .operate = replay, .prepare = capture_noise},
    {.name = "stopped", .operate = gather, .stopped = true},
};

static pid_t start_rank(const struct scene *scene, int number, bool told, const int control[2], const char *library)
{
    pid_t pid = fork();
    require(pid >= 0);
    if (pid > 0)
        return pid;
    struct rank rank = {.number = number, .control = control[number], .told = told};
    end_with_parent();
    close(control[!number]);
    tell_host(number);
    int status = run_rank(&rank, scene, library);
    fflush(stdout);
    _exit(status); /* what NCCL and CUDA would do at exit is not looked at here */
}

static int run_scene(const struct scene *scene, bool told, const char *library)
{
    int control[2], status[RANKS];
    pid_t ranks[RANKS];
    fflush(stdout);
    require(socketpair(AF_UNIX, SOCK_STREAM, 0, control) == 0);
    for (int i = 0; i < RANKS; i++)
        ranks[i] = start_rank(scene, i, told, control, library);
    for (int i = 0; i < RANKS; i++)
        close(control[i]);
    require(waitpid(ranks[0], &status[0], 0) == ranks[0]);
    kill(ranks[1], SIGKILL); /* where rank 0 failed before */
    require(waitpid(ranks[1], &status[1], 0) == ranks[1]);
    bool passed = status[0] == 0 && WIFSIGNALED(status[1]) && WTERMSIG(status[1]) == SIGKILL;
    if (!passed)
        printf("%-15s FAILED (statuses %x and %x)\n", scene->name, (unsigned)status[0], (unsigned)status[1]);
    return !passed;
}

int main(int argc, char **argv)
{
    int failed = 0, run = 0;
    bool threads; /* ranks never are */
    bool told = argc > 1 && strcmp(argv[1], "--told") == 0;
    argc -= 1 + told;
    argv += 1 + told;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < 1) {
        fprintf(stderr, "usage: collective_kill [--told] LIBRARY [SCENE ...]\n");
        return 2;
    }
    if (!have_devices(RANKS, &threads)) {
        printf("skipped: two GPUs are needed\n");
        return SKIPPED;
    }
    for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++)
        if (is_named(scenes[i].name, argc - 1, argv + 1)) {
            failed += run_scene(&scenes[i], told, argv[0]);
            run++;
        }
    printf("%d of %d failed\n", failed, run);
    return failed > 0 || run == 0;
}
