/* Threads, processes and streams that are captured. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/collective/caller.h"
#include "tests/fakes/cuda.h"

enum { FP32 = 7, SUM = 0, THREADS = 8, ROUNDS = 200, FORKS = 20 };

static coll_id id;

static coll_comm make(int rank, int ranks)
{
    coll_comm comm = NULL;
    require(nccl.CommInitRank(&comm, ranks, id, rank) == COLL_SUCCESS && comm != NULL);
    return comm;
}

static void reduce(coll_comm comm)
{
    require(nccl.AllReduce(NULL, NULL, 1, FP32, SUM, comm, NULL) == COLL_SUCCESS);
}

/* ---- Threads -------------------------------------------------------------------------------------------------------
 */

static void round_of(coll_comm shared, int rank)
{
    coll_comm own = make(rank, THREADS);
    require(nccl.GroupStart() == COLL_SUCCESS);
    require(nccl.Send(NULL, 2, FP32, 0, own, NULL) == COLL_SUCCESS);
    require(nccl.Recv(NULL, 2, FP32, 0, own, NULL) == COLL_SUCCESS);
    require(nccl.GroupEnd() == COLL_SUCCESS);
    reduce(shared);
    reduce(own);
    require_row(own, "all_reduce", "fp32", "1 4 0 0 0");
    require(nccl.pin(own, 1) == 0);
    require(nccl.CommDestroy(own) == COLL_SUCCESS);
    nccl.take();
}

struct job {
    coll_comm shared;
    int rank;
};

static void *work(void *argument)
{
    const struct job *job = argument;
    for (int i = 0; i < ROUNDS; i++)
        round_of(job->shared, job->rank);
    return NULL;
}

/* The first calls of the process, too, come from all at once. */
void check_threads(void)
{
    static char shared[8];
    pthread_t threads[THREADS];
    struct job jobs[THREADS];
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (struct job){(coll_comm)(void *)shared, i};
        require(pthread_create(&threads[i], NULL, work, &jobs[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++)
        require(pthread_join(threads[i], NULL) == 0);
    require_row(NULL, "send", "fp32", "1600 12800 1600 0 0");
    require_row(NULL, "recv", "fp32", "1600 12800 1600 0 0");
    require_row(NULL, "all_reduce", "fp32", "3200 12800 0 0 0");
}

/* ---- Processes -----------------------------------------------------------------------------------------------------
 */

static void await(pid_t child)
{
    int status;
    require(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static atomic_bool stop;

static void *go_on(void *comm)
{
    while (!atomic_load(&stop)) {
        reduce(comm);
        nccl.take();
    }
    return NULL;
}

/* While another thread calls, so that locks are held when the process forks. */
static void fork_often(coll_comm comm)
{
    pthread_t thread;
    require(pthread_create(&thread, NULL, go_on, comm) == 0);
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        if (child == 0) {
            reduce(comm);
            require_row(NULL, "all_reduce", "fp32", "1 4 0 0 0");
            _exit(0);
        }
        await(child);
    }
    atomic_store(&stop, true);
    require(pthread_join(thread, NULL) == 0);
}

static void fork_and_exit(void)
{
    pid_t child = fork();
    if (child == 0)
        exit(0);
    await(child);
}

/* With STRAIT_COLL_PRINT three reports of processes come: not of children that call nothing. */
void check_fork(void)
{
    coll_comm comm = make(0, 2);
    fork_often(comm);
    fflush(NULL);
    pid_t calls = fork();
    if (calls == 0) {
        reduce(comm);
        fork_and_exit(); /* the locks are the child's own */
        exit(0);
    }
    await(calls);
    fork_and_exit();
    require(nccl.CommDestroy(comm) == COLL_SUCCESS);
}

/* ---- Capture -------------------------------------------------------------------------------------------------------
 */

static struct fake_cuda_control *load_driver(coll_stream *stream, int (**destroy)(void *))
{
    int (*start)(unsigned) = NULL, (*retain)(void **, int) = NULL, (*push)(void *) = NULL,
        (*create)(void *, unsigned) = NULL;
    void *context = NULL;
    void *driver = dlopen(getenv("FAKE_CUDA"), RTLD_NOW | RTLD_LOCAL);
    require(driver != NULL);
    *(void **)&start = dlsym(driver, "cuInit");
    *(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
    *(void **)&push = dlsym(driver, "cuCtxPushCurrent_v2");
    *(void **)&create = dlsym(driver, "cuStreamCreate");
    *(void **)destroy = dlsym(driver, "cuStreamDestroy_v2");
    struct fake_cuda_control *control = dlsym(driver, "fake_cuda_control");
    require(start != NULL && retain != NULL && push != NULL && start(0) == 0 && retain(&context, 0) == 0 &&
            push(context) == 0);
    require(create != NULL && *destroy != NULL && control != NULL && create(stream, 0) == 0);
    return control;
}

static void reduce_on(coll_comm comm, coll_stream stream)
{
    require(nccl.AllReduce(NULL, NULL, 1, FP32, SUM, comm, stream) == COLL_SUCCESS);
}

/* The driver is the one of tests/fake_cuda; at first it has not been loaded. */
void check_capture(void)
{
    int (*destroy)(void *) = NULL;
    coll_comm comm = make(0, 2);
    coll_stream stream = NULL;
    reduce(comm);
    struct fake_cuda_control *control = load_driver(&stream, &destroy);
    require(nccl.CommDestroy(make(0, 2)) == COLL_SUCCESS); /* by when NCCL has loaded the driver */
    reduce_on(comm, stream);
    require_row(comm, "all_reduce", "fp32", "2 8 0 0 0");
    control->capturing = 1;
    reduce_on(comm, stream);
    require_row(comm, "all_reduce", "fp32", "3 12 0 1 0");
    control->capturing = 0;
    reduce_on(comm, stream);
    require_row(comm, "all_reduce", "fp32", "4 16 0 1 0");
    require(destroy(stream) == 0 && nccl.CommDestroy(comm) == COLL_SUCCESS);
}
