/* A rank that is killed in mid-collective, on real GPUs, one process each:
 *
 *   collective_kill [--told] [--ranks=N] LIBRARY [SCENE ...]
 *
 * LIBRARY is NCCL's or libstrait-coll, opened by its path. The last of the ranks (two) is killed. Those that are left
 * have to get ncclCommAbort back within 5 s, their streams and GPUs have to work afterwards, and with --told
 * ncclCommGetAsyncError has to tell of an error within 10 s; without, it is printed whether and when it does: NCCL
 * alone may never notice. In the scene "repair" nothing fits any more (it is about libstrait-coll with
 * STRAIT_COLL=compress); in "stopped" the last one is stopped for a while and nothing may be told. Exit status 77: too
 * few GPUs. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/gpu/collective_world.h"

#define TOLD_MAX_MS   10000
#define ABORT_MAX_MS  5000
#define VALUES        ((size_t)16 << 20) /* of a rank, BF16: 32 MiB */
#define UNDER_WAY_MAX 4u
#define STOPPED_MS    3000
#define ALONE_MS      1000 /* that both work before one is killed */

static bool has_to_tell; /* --told */

struct survivor;

/* A row of the scenes. */
struct way {
    coll_result (*operate)(struct survivor *s);
    void (*prepare)(struct survivor *s); /* NULL: nothing */
    bool late;                           /* killed between two operations: the other waits for one that never begins */
    bool stopped;                        /* and not killed at all, but stopped for a while */
};

/* A rank, of which another one is killed. */
struct survivor {
    struct rank *rank;
    const struct way *way;
    cudaGraphExec_t graph; /* of ways that replay one */
    cudaEvent_t done[UNDER_WAY_MAX];
    uint64_t begun;
};

static void fill(struct rank *rank, enum values kind)
{
    rank_fill(rank, rank->send[0], COLL_BF16, (size_t)rank->ranks * VALUES, kind, 1 + (uint64_t)rank->number);
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static coll_result gather(struct survivor *s)
{
    struct rank *rank = s->rank;
    return nccl.AllGather(rank->send[0], rank->receive[0], VALUES, COLL_BF16, rank->comm[0], s->rank->stream[0]);
}

static coll_result exchange(struct survivor *s)
{
    struct rank *rank = s->rank;
    return nccl.AlltoAll(rank->send[0], rank->receive[0], VALUES, COLL_BF16, rank->comm[0], s->rank->stream[0]);
}

static coll_result scatter(struct survivor *s)
{
    struct rank *rank = s->rank;
    return nccl.ReduceScatter(rank->send[0], rank->receive[0], VALUES, COLL_BF16, COLL_SUM, rank->comm[0],
                              s->rank->stream[0]);
}

static coll_result reduce(struct survivor *s)
{
    struct rank *rank = s->rank;
    return nccl.AllReduce(rank->send[0], rank->receive[0], VALUES, COLL_BF16, COLL_SUM, rank->comm[0],
                          s->rank->stream[0]);
}

static coll_result swap(struct survivor *s)
{
    struct rank *rank = s->rank;
    const int next = (rank->number + 1) % rank->ranks, previous = (rank->number + rank->ranks - 1) % rank->ranks;
    require_nccl(nccl.GroupStart());
    require_nccl(nccl.Send(rank->send[0], VALUES, COLL_BF16, next, rank->comm[0], rank->stream[0]));
    require_nccl(nccl.Recv(rank->receive[0], VALUES, COLL_BF16, previous, rank->comm[0], rank->stream[0]));
    return nccl.GroupEnd();
}

static coll_result replay(struct survivor *s)
{
    require_cuda(cudaGraphLaunch(s->graph, s->rank->stream[0]));
    return COLL_SUCCESS;
}

static void gather_in(struct rank *rank, void *survivor)
{
    (void)rank;
    require_nccl(gather(survivor));
}

/* What was captured stays compressed, though from now on nothing of it fits: each replay moves it again, which takes
 * most of its time. */
static void capture_noise(struct survivor *s)
{
    require_nccl(gather(s)); /* connects the ranks, which a capture cannot */
    require_cuda(cudaStreamSynchronize(s->rank->stream[0]));
    s->graph = graph_capture(s->rank, 0, gather_in, s);
    world_meet(s->rank);
    fill(s->rank, VALUES_NOISE);
}

/* Begins as much as may be under way; never waits. */
static coll_result try_on(struct survivor *s)
{
    cudaEvent_t done = s->done[s->begun % UNDER_WAY_MAX];
    if (s->begun >= UNDER_WAY_MAX && cudaEventQuery(done) == cudaErrorNotReady)
        return COLL_SUCCESS;
    const coll_result result = s->way->operate(s);
    if (result != COLL_SUCCESS)
        return result;
    require_cuda(cudaEventRecord(done, s->rank->stream[0]));
    s->begun++;
    return COLL_SUCCESS;
}

/* All run the same number: the last ones of a time differ. */
static void work_times(struct survivor *s, unsigned times)
{
    for (unsigned i = 0; i < times; i++)
        require_nccl(s->way->operate(s));
    require_cuda(cudaStreamSynchronize(s->rank->stream[0]));
    world_meet(s->rank);
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

static bool is_error(coll_result result)
{
    return result != COLL_SUCCESS && result != COLL_IN_PROGRESS;
}

static coll_result await_error(struct survivor *s, double since)
{
    coll_result error = COLL_SUCCESS;
    while (now_ms() - since < TOLD_MAX_MS) {
        require(nccl.CommGetAsyncError(s->rank->comm[0], &error) == COLL_SUCCESS);
        if (is_error(error))
            return error;
        if (!s->way->late && s->begun > 0 && cudaEventQuery(s->done[(s->begun - 1) % UNDER_WAY_MAX]) == 0)
            (void)try_on(s); /* an error is told above, next time */
        usleep(1000);
    }
    return error;
}

/* The stream has to come to its end, and the GPU to go on. */
static void use_gpu(struct rank *rank)
{
    const size_t size = (size_t)rank->ranks * VALUES * 2;
    unsigned char last = 0;
    require_cuda(cudaStreamSynchronize(rank->stream[0]));
    require_cuda(cudaMemset(rank->receive[0], 0x5a, size));
    require_cuda(cudaMemcpy(&last, rank->receive[0] + size - 1, 1, cudaMemcpyDeviceToHost));
    require(last == 0x5a);
}

/* A row of the table: what was told and when, how long ncclCommAbort took. */
static void print_row(const struct survivor *s, double told_ms, coll_result error, double abort_ms, coll_result aborted)
{
    printf("%-15s rank %d %-6s %6.0f ms   abort %6.0f ms %s%s%s\n", s->rank->scene->name, s->rank->number,
           is_error(error) ? "told" : "untold", told_ms, abort_ms, abort_ms > ABORT_MAX_MS ? "TOO LONG, " : "",
           is_error(error) ? nccl.GetErrorString(error) : "no error",
           aborted != COLL_SUCCESS ? ", and an error of ncclCommAbort" : "");
}

/* NCCL's abort waits until no graph knows the communicator, and a graph that runs is gone when the abort has ended it.
 */
static void *drop_graph(void *argument)
{
    struct survivor *s = argument;
    use_device(s->rank->number);
    require_cuda(cudaStreamSynchronize(s->rank->stream[0]));
    require_cuda(cudaGraphExecDestroy(s->graph));
    return NULL;
}

static coll_result abort_comm(struct survivor *s)
{
    pthread_t dropping;
    if (s->graph == NULL)
        return nccl.CommAbort(s->rank->comm[0]);
    require(pthread_create(&dropping, NULL, drop_graph, s) == 0);
    coll_result result = nccl.CommAbort(s->rank->comm[0]);
    require(pthread_join(dropping, NULL) == 0);
    return result;
}

static void be_left(struct survivor *s)
{
    const double since = now_ms();
    const coll_result error = await_error(s, since);
    const double told_ms = now_ms() - since, abort_since = now_ms();
    const coll_result result = abort_comm(s);
    const double abort_ms = now_ms() - abort_since;
    use_gpu(s->rank);
    print_row(s, told_ms, error, abort_ms, result);
    require(abort_ms <= ABORT_MAX_MS && (is_error(error) || !has_to_tell));
}

/* Who is stopped is not dead: nothing is told, and all goes on when it does. */
static void wait_for_stopped(struct survivor *s, pid_t last)
{
    coll_result error = COLL_SUCCESS;
    const double since = now_ms();
    require(s->rank->number > 0 || kill(last, SIGSTOP) == 0);
    require_nccl(s->way->operate(s));
    while (now_ms() - since < STOPPED_MS && error == COLL_SUCCESS) {
        require(nccl.CommGetAsyncError(s->rank->comm[0], &error) == COLL_SUCCESS);
        usleep(1000);
    }
    const double told_ms = now_ms() - since;
    require(s->rank->number > 0 || kill(last, SIGCONT) == 0);
    world_meet(s->rank);
    if (error == COLL_SUCCESS)
        require_cuda(cudaStreamSynchronize(s->rank->stream[0]));
    print_row(s, told_ms, error, 0, COLL_SUCCESS);
    require(error == COLL_SUCCESS);
}

/* Until it is killed. */
static void be_killed(struct survivor *s)
{
    if (s->way->stopped) {
        world_meet(s->rank);
        require_nccl(s->way->operate(s));
    }
    for (;;)
        if (s->way->late || s->way->stopped)
            pause();
        else
            require_nccl(try_on(s));
}

/* The last rank is killed by rank 0, which so knows when; the others have worked as long as that one by then. What NCCL
 * and CUDA would do at exit is not looked at here. */
static void play(struct rank *rank)
{
    struct survivor own = {.rank = rank, .way = rank->scene->argument}, *s = &own;
    const int last = rank->ranks - 1;
    for (unsigned i = 0; i < UNDER_WAY_MAX; i++)
        require_cuda(cudaEventCreateWithFlags(&s->done[i], cudaEventDisableTiming));
    fill(rank, VALUES_NORMAL);
    if (s->way->prepare != NULL)
        s->way->prepare(s);
    work_times(s, 3);
    if (rank->number == last)
        be_killed(s);
    if (s->way->stopped) {
        wait_for_stopped(s, rank->shared->pids[last]);
    } else {
        if (s->way->late)
            require_nccl(s->way->operate(s));
        for (double start = now_ms(); !s->way->late && now_ms() - start < ALONE_MS;)
            require_nccl(try_on(s));
        require(rank->number > 0 || kill(rank->shared->pids[last], SIGKILL) == 0);
        be_left(s);
    }
    fflush(stdout);
    _exit(0);
}

/* ---- Scenes ------------------------------------------------------------------------------------------------------ */

static const struct way all_gather = {.operate = gather}, all_to_all = {.operate = exchange},
                        reduce_scatter = {.operate = scatter}, all_reduce = {.operate = reduce},
                        send_recv = {.operate = swap}, waiting = {.operate = gather, .late = true},
                        repair = {.operate = replay, .prepare = capture_noise},
                        stopped = {.operate = gather, .stopped = true};

#define SCENE(way)                                                              \
    {                                                                           \
#way, play, .argument = &way, .processes_only = true, .loses_one = true \
    }
static const struct world_scene scenes[] = {SCENE(all_gather), SCENE(all_to_all), SCENE(reduce_scatter),
                                            SCENE(all_reduce), SCENE(send_recv),  SCENE(waiting),
                                            SCENE(repair),     SCENE(stopped)};

int main(int argc, char **argv)
{
    return world_main(argc, argv,
                      &(struct world_program){.scenes = scenes,
                                              .count = COUNT(scenes),
                                              .bytes = 2 * VALUES,
                                              .slots = 1,
                                              .option = "--told",
                                              .chosen = &has_to_tell});
}
