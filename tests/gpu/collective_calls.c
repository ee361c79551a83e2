/* What small operations cost with libstrait-coll between, beside NCCL in the same process, by turns: two threads with a
 * GPU each. NCCL is measured twice, so the table tells what is noise.
 *
 *   gpu_collective_calls LIBRARY NCCL [ROUNDS [CALLS]]     STRAIT_COLL as the environment says
 *
 * `call`: until it returns; `all`: until it is over, of calls one right behind the other; medians of rounds, us. x:
 * time of NCCL over that of the library, of `all`; again: over that of NCCL's second turn. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "tests/gpu/collective_world.h"

enum { RANKS = 2, WAYS = 3, ROUNDS_MAX = 1000 };
enum { PLAIN, AGAIN, OURS };

static const char *const operations[] = {"all_gather", "all_to_all", "reduce_scatter", "all_reduce"};
static const size_t sizes[] = {64 << 10, 1 << 20, 8 << 20}; /* of the whole, as in nccl-tests */
enum { OPERATIONS = 4, SIZES = 3 };

static struct nccl libraries[WAYS];
static coll_id ids[WAYS];
static pthread_barrier_t barrier;
static unsigned rounds = 40, calls = 50; /* of a round */

struct side {
    int rank;
    coll_comm comms[WAYS];
    cudaStream_t stream;
    uint8_t *send, *receive;
    double call[WAYS][ROUNDS_MAX], all[WAYS][ROUNDS_MAX]; /* us */
};

static double now_us(void)
{
    struct timespec now;
    require(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void call(const struct side *side, int way, int operation, size_t size)
{
    const struct nccl *library = &libraries[way];
    const size_t count = size / 2, part = count / RANKS;
    coll_comm comm = side->comms[way];
    coll_result result = COLL_SUCCESS;
    if (operation == 0)
        result = library->AllGather(side->send, side->receive, part, 9, comm, side->stream);
    else if (operation == 1)
        result = library->AlltoAll(side->send, side->receive, part, 9, comm, side->stream);
    else if (operation == 2)
        result = library->ReduceScatter(side->send, side->receive, part, 9, 0, comm, side->stream);
    else
        result = library->AllReduce(side->send, side->receive, count, 9, 0, comm, side->stream);
    require(result == COLL_SUCCESS);
}

static void measure(struct side *side, int way, int operation, size_t size, unsigned round)
{
    pthread_barrier_wait(&barrier);
    const double begun = now_us();
    for (unsigned i = 0; i < calls; i++)
        call(side, way, operation, size);
    const double called = now_us();
    require_cuda(cudaStreamSynchronize(side->stream));
    side->call[way][round] = (called - begun) / calls;
    side->all[way][round] = (now_us() - begun) / calls;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(double *values)
{
    qsort(values, rounds, sizeof(*values), by_size);
    return values[rounds / 2];
}

static void print_row(struct side *side, int operation, size_t size)
{
    double call[WAYS], all[WAYS];
    for (int way = 0; way < WAYS; way++) {
        call[way] = median_of(side->call[way]);
        all[way] = median_of(side->all[way]);
    }
    printf("%-15s %8zu %9.2f %9.2f %9.2f %9.2f %7.3f %7.3f\n", operations[operation], size >> 10, call[PLAIN],
           call[OURS], all[PLAIN], all[OURS], all[PLAIN] / all[OURS], all[PLAIN] / all[AGAIN]);
    fflush(stdout);
}

static void run_row(struct side *side, int operation, size_t size)
{
    for (int way = 0; way < WAYS; way++)
        for (unsigned i = 0; i < calls; i++)
            call(side, way, operation, size);
    for (unsigned round = 0; round < rounds; round++)
        for (int turn = 0; turn < WAYS; turn++)
            measure(side, (int)(round + (unsigned)turn) % WAYS, operation, size, round);
    if (side->rank == 0)
        print_row(side, operation, size);
}

static void open_side(struct side *side)
{
    require_cuda(cudaSetDevice(side->rank));
    require_cuda(cudaStreamCreateWithFlags(&side->stream, cudaStreamNonBlocking));
    require_cuda(cudaMalloc((void **)&side->send, sizes[SIZES - 1]));
    require_cuda(cudaMalloc((void **)&side->receive, sizes[SIZES - 1]));
    require_cuda(cudaMemset(side->send, 0, sizes[SIZES - 1]));
    for (int way = PLAIN; way < WAYS; way += OURS - PLAIN)
        require(libraries[way].CommInitRank(&side->comms[way], RANKS, ids[way], side->rank) == COLL_SUCCESS);
    side->comms[AGAIN] = side->comms[PLAIN];
}

static void *run_side(void *argument)
{
    struct side *side = argument;
    open_side(side);
    for (int operation = 0; operation < OPERATIONS; operation++)
        for (int i = 0; i < SIZES; i++)
            run_row(side, operation, sizes[i]);
    pthread_barrier_wait(&barrier);
    for (int way = PLAIN; way < WAYS; way += OURS - PLAIN)
        require(libraries[way].CommDestroy(side->comms[way]) == COLL_SUCCESS);
    require_cuda(cudaStreamDestroy(side->stream));
    require_cuda(cudaFree(side->send));
    require_cuda(cudaFree(side->receive));
    return NULL;
}

int main(int argc, char **argv)
{
    static struct side sides[RANKS];
    pthread_t threads[RANKS];
    if (argc < 3) {
        fprintf(stderr, "usage: gpu_collective_calls LIBRARY NCCL [ROUNDS [CALLS]]\n");
        return 2;
    }
    if (count_devices() < RANKS) {
        printf("skipped: fewer than two GPUs\n");
        return 77;
    }
    rounds = argc > 3 ? (unsigned)atoi(argv[3]) : rounds;
    calls = argc > 4 ? (unsigned)atoi(argv[4]) : calls;
    require(calls > 0 && rounds > 0 && rounds <= ROUNDS_MAX);
    nccl_open(argv[2]);
    libraries[PLAIN] = libraries[AGAIN] = nccl;
    nccl_open(argv[1]);
    libraries[OURS] = nccl;
    require(nccl.report != NULL && libraries[PLAIN].report == NULL);
    for (int way = 0; way < WAYS; way++)
        require(libraries[way].GetUniqueId(&ids[way]) == COLL_SUCCESS);
    require(pthread_barrier_init(&barrier, NULL, RANKS) == 0);
    printf("%-15s %8s %9s %9s %9s %9s %7s %7s\n", "operation", "KiB", "NCCL call", "ours", "NCCL all", "ours", "x",
           "again");
    for (int i = 0; i < RANKS; i++) {
        sides[i].rank = i;
        require(pthread_create(&threads[i], NULL, run_side, &sides[i]) == 0);
    }
    for (int i = 0; i < RANKS; i++)
        require(pthread_join(threads[i], NULL) == 0);
    return 0;
}
