/* How communicators of two GPUs join and end.
 *
 *   collective_join [--threads] LIBRARY SCENE ...
 *
 *   times   what ncclCommInitRank takes: the first time, and then
 *   late    communicators that do not block: they join with their first collective; values are compared
 *   bare    rank 1 has STRAIT_COLL=raw: the others find out, stay raw and go on (processes only)
 *   full    rank 1 has no memory for messages: no error, and soon all is raw, or between hosts by the host's memory
 *   beside  a thread aborts a communicator whose first collective waits for the other rank, and one that has a group
 *           open; again and again
 *
 * LIBRARY is libstrait-coll, or NCCL for times. Ranks are processes, or threads. Settings are the environment's. A
 * scene that does not end within a minute has failed. Exit status: 1 a scene failed, 77 no two GPUs. */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/gpu/collective_nccl.h"

enum { SKIPPED = 77, RANKS = 2, SECONDS_MAX = 60, IDS = 24, BYTES = 16 << 20, COUNT_OF = BYTES / 2, BF16 = 9 };

/* What ncclConfig_t began with in 2.14. */
struct config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size;
};

struct shared {
    pthread_barrier_t barrier;
    coll_id ids[IDS];
};

struct rank {
    int number;
    struct shared *shared;
    const char *library;
    bool (*scene)(struct rank *rank);
    cudaStream_t stream;
    uint8_t *send, *receive, *host;
    bool good;
};

static coll_result (*init_rank_config)(coll_comm *made, int ranks, coll_id id, int rank, void *config);

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static void meet(struct rank *rank)
{
    (void)pthread_barrier_wait(&rank->shared->barrier);
}

static void draw_ids(struct rank *rank)
{
    for (unsigned i = 0; i < IDS && rank->number == 0; i++)
        require_nccl(nccl.GetUniqueId(&rank->shared->ids[i]));
    meet(rank);
}

/* ---- Communicators ----------------------------------------------------------------------------------------------- */

static coll_comm make(struct rank *rank, unsigned id)
{
    coll_comm comm;
    require(nccl.CommInitRank(&comm, RANKS, rank->shared->ids[id], rank->number) == COLL_SUCCESS);
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
    require_nccl(init_rank_config(&comm, RANKS, rank->shared->ids[id], rank->number, &config));
    settle(comm, COLL_IN_PROGRESS);
    return comm;
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

/* BF16 that shrinks: few exponents. */
static uint16_t value_of(int rank, unsigned turn, size_t i)
{
    const uint32_t mixed = (uint32_t)(i + 1) * 2654435761u ^ (uint32_t)rank * 40503u ^ turn * 97u;
    return (uint16_t)((mixed >> 16 & 0x807f) | (0x7cu + (mixed >> 9 & 3)) << 7);
}

static void fill(struct rank *rank, unsigned turn)
{
    uint16_t *values = (uint16_t *)(void *)rank->host;
    for (size_t i = 0; i < COUNT_OF; i++)
        values[i] = value_of(rank->number, turn, i);
    require_cuda(cudaMemcpy(rank->send, values, BYTES, cudaMemcpyHostToDevice));
    require_cuda(cudaDeviceSynchronize()); /* the copy may return before it has reached the GPU */
}

static bool check(struct rank *rank, unsigned turn)
{
    const uint16_t *values = (const uint16_t *)(const void *)rank->host;
    require_cuda(cudaStreamSynchronize(rank->stream));
    require_cuda(cudaMemcpy(rank->host, rank->receive, (size_t)RANKS * BYTES, cudaMemcpyDeviceToHost));
    for (int from = 0; from < RANKS; from++)
        for (size_t i = 0; i < COUNT_OF; i++)
            if (values[(size_t)from * COUNT_OF + i] != value_of(from, turn, i))
                return false;
    return true;
}

static coll_result ask(struct rank *rank, coll_comm comm)
{
    return nccl.AllGather(rank->send, rank->receive, COUNT_OF, BF16, comm, (coll_stream)(void *)rank->stream);
}

static bool gather(struct rank *rank, coll_comm comm, unsigned turn)
{
    fill(rank, turn);
    settle(comm, ask(rank, comm));
    return check(rank, turn);
}

/* ---- Scenes ------------------------------------------------------------------------------------------------------ */

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool times(struct rank *rank)
{
    enum { TURNS = 7 };
    double took[TURNS];
    bool good = true;
    for (unsigned turn = 0; turn < TURNS; turn++) {
        meet(rank);
        const double begin = now_ms();
        coll_comm comm = make(rank, turn);
        took[turn] = now_ms() - begin;
        good = gather(rank, comm, turn) && good;
        meet(rank);
        require_nccl(nccl.CommDestroy(comm));
    }
    const double first = took[0];
    qsort(took + 1, TURNS - 1, sizeof(*took), compare);
    if (rank->number == 0)
        printf("ncclCommInitRank: the first %.1f ms, then %.1f (%.1f to %.1f)\n", first, took[TURNS / 2], took[1],
               took[TURNS - 1]);
    return good;
}

static bool late(struct rank *rank)
{
    const double begin = now_ms();
    coll_comm comm = make_late(rank, 0);
    const double made = now_ms();
    bool good = gather(rank, comm, 1);
    const double joined = now_ms();
    for (unsigned turn = 2; turn < 6; turn++) {
        if (turn % 2 == 1)
            require_nccl(nccl.GroupStart());
        fill(rank, turn);
        const coll_result result = ask(rank, comm);
        settle(comm, turn % 2 == 1 ? nccl.GroupEnd() : result);
        good = check(rank, turn) && good;
    }
    if (rank->number == 0)
        printf("does not block: made in %.1f ms, the first all_gather took %.1f; %llu of 5 compressed\n", made - begin,
               joined - made, nccl_compressed(comm, "all_gather"));
    if (nccl_compressed(comm, "all_gather") != 5 && getenv("STRAIT_COLL") != NULL &&
        strcmp(getenv("STRAIT_COLL"), "compress") == 0)
        good = false;
    meet(rank);
    require_nccl(nccl.CommDestroy(comm));
    return good;
}

static bool bare(struct rank *rank)
{
    const double begin = now_ms();
    coll_comm comm = make(rank, 0);
    const double took = now_ms() - begin;
    const bool good = gather(rank, comm, 1) && nccl_compressed(comm, "all_gather") == 0;
    if (rank->number == 0)
        printf("rank 1 is raw: ncclCommInitRank of rank 0 took %.0f ms\n", took);
    meet(rank);
    require_nccl(nccl.CommDestroy(comm));
    return good && took < 1e3 * 20;
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

/* Of rank 1: what it has begun goes on by the host's memory, and what comes next is raw on both. */
static bool full(struct rank *rank)
{
    void *chunks[CHUNKS_MAX];
    coll_comm comm = make(rank, 0);
    const unsigned count = rank->number == 1 ? take_memory(chunks) : 0;
    meet(rank);
    double begin = now_ms();
    bool good = gather(rank, comm, 1);
    const double hosted = now_ms() - begin;
    good = gather(rank, comm, 2) && good;
    const unsigned long long compressed = nccl_compressed(comm, "all_gather");
    if (rank->number == 1)
        printf("%u pieces of memory taken: all_gather took %.1f ms; %llu of 2 compressed\n", count, hosted, compressed);
    /* between hosts it goes on by the host's memory */
    good = good && (compressed == (are_apart() ? 2 : 1) || rank->number == 0 || count == 0);
    for (unsigned i = 0; i < count; i++)
        require_cuda(cudaFree(chunks[i]));
    meet(rank);
    require_nccl(nccl.CommDestroy(comm));
    return good;
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

/* Rank 1 never comes to the first collective. */
static bool abort_what_waits(struct rank *rank, unsigned id)
{
    coll_comm comm = make_late(rank, id);
    bool good = true;
    meet(rank);
    if (rank->number == 0) {
        struct watchdog watchdog = {.comm = comm, .after_us = 20000 + 7000 * id};
        pthread_t thread;
        watchdog.called = true;
        require(pthread_create(&thread, NULL, abort_it, &watchdog) == 0);
        const coll_result result = ask(rank, comm);
        good = result != COLL_SUCCESS && result != COLL_IN_PROGRESS;
        require(pthread_join(thread, NULL) == 0);
    }
    meet(rank);
    if (rank->number == 1)
        require_nccl(nccl.CommAbort(comm));
    return good;
}

static bool abort_what_is_grouped(struct rank *rank, unsigned id)
{
    coll_comm comm = make(rank, id);
    bool good = true;
    meet(rank);
    if (rank->number == 0) {
        struct watchdog watchdog = {.comm = comm};
        pthread_t thread;
        require(pthread_create(&thread, NULL, abort_it, &watchdog) == 0);
        require_nccl(nccl.GroupStart());
        require_nccl(ask(rank, comm));
        const bool compressed = nccl_compressed(comm, "all_gather") == 1;
        watchdog.called = true;
        require(pthread_join(thread, NULL) == 0);
        good = nccl.GroupEnd() != COLL_SUCCESS || !compressed;
    }
    meet(rank);
    if (rank->number == 1)
        require_nccl(nccl.CommAbort(comm));
    return good;
}

static bool beside(struct rank *rank)
{
    bool good = true;
    for (unsigned turn = 0; turn < 6; turn++) {
        good = abort_what_waits(rank, 2 * turn) && good;
        good = abort_what_is_grouped(rank, 2 * turn + 1) && good;
    }
    coll_comm comm = make(rank, IDS - 1); /* the GPU goes on */
    good = gather(rank, comm, 1) && good;
    meet(rank);
    require_nccl(nccl.CommDestroy(comm));
    if (rank->number == 0)
        printf("12 aborts beside calls: each call has ended with an error\n");
    return good;
}

/* ---- Ranks ------------------------------------------------------------------------------------------------------- */

static void open_all(const char *path)
{
    nccl_open(path);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    require(handle != NULL && (*(void **)&init_rank_config = dlsym(handle, "ncclCommInitRankConfig")) != NULL);
}

static void *run_rank(void *argument)
{
    struct rank *rank = argument;
    use_device(rank->number);
    require_cuda(cudaStreamCreateWithFlags(&rank->stream, cudaStreamNonBlocking));
    require_cuda(cudaMalloc((void **)&rank->send, BYTES));
    require_cuda(cudaMalloc((void **)&rank->receive, (size_t)RANKS * BYTES));
    require((rank->host = malloc((size_t)RANKS * BYTES)) != NULL);
    draw_ids(rank);
    rank->good = rank->scene(rank);
    require_cuda(cudaStreamDestroy(rank->stream));
    require_cuda(cudaFree(rank->send));
    require_cuda(cudaFree(rank->receive));
    free(rank->host);
    return NULL;
}

static int run_threads(struct rank *ranks)
{
    pthread_t threads[RANKS];
    bool good = true;
    open_all(ranks[0].library);
    for (int i = 0; i < RANKS; i++)
        require(pthread_create(&threads[i], NULL, run_rank, &ranks[i]) == 0);
    for (int i = 0; i < RANKS; i++)
        require(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < RANKS; i++)
        good &= ranks[i].good;
    return good ? 0 : 1;
}

static int run_process(struct rank *rank)
{
    if (rank->scene == bare && rank->number == 1)
        require(setenv("STRAIT_COLL", "raw", 1) == 0);
    open_all(rank->library);
    (void)run_rank(rank);
    return rank->good ? 0 : 1;
}

static bool run(const char *library, bool threads, bool (*scene)(struct rank *rank))
{
    struct rank ranks[RANKS];
    pthread_barrierattr_t attributes;
    bool good = true;
    struct shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    require(shared != MAP_FAILED && pthread_barrierattr_init(&attributes) == 0);
    require(pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
    require(pthread_barrier_init(&shared->barrier, &attributes, RANKS) == 0);
    for (int i = 0; i < RANKS; i++)
        ranks[i] = (struct rank){.number = i, .shared = shared, .library = library, .scene = scene};
    fflush(stdout);
    for (int i = 0; i < (threads ? 1 : RANKS); i++) {
        const pid_t pid = fork();
        require(pid >= 0);
        if (pid > 0)
            continue;
        end_with_parent();
        alarm(patience(SECONDS_MAX));
        if (!threads)
            tell_host(i);
        const int status = threads ? run_threads(ranks) : run_process(&ranks[i]);
        fflush(stdout);
        _exit(status);
    }
    for (int status; wait(&status) > 0;)
        good &= status == 0;
    require(munmap(shared, sizeof(*shared)) == 0);
    return good;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        bool (*scene)(struct rank *rank);
    } scenes[] = {{"times", times}, {"late", late}, {"bare", bare}, {"full", full}, {"beside", beside}};
    const bool threads = argc > 1 && strcmp(argv[1], "--threads") == 0;
    const int at = threads ? 2 : 1;
    bool good = true, may_thread;
    if (argc < at + 2) {
        fprintf(stderr, "usage: collective_join [--threads] LIBRARY SCENE ...\n");
        return 2;
    }
    if (!have_devices(RANKS, &may_thread) || (threads && !may_thread)) {
        printf("skipped: no two GPUs\n");
        return SKIPPED;
    }
    for (size_t i = 0; i < COUNT(scenes); i++) {
        if (!is_named(scenes[i].name, argc - at - 1, argv + at + 1) || (threads && scenes[i].scene == bare))
            continue;
        const bool passed = run(argv[at], threads, scenes[i].scene);
        printf("%-7s %s\n", scenes[i].name, passed ? "ok" : "FAILED");
        good &= passed;
    }
    return good ? 0 : 1;
}
