#include "tests/gpu/collective_world.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#ifdef ON_FAKE_GPUS
#include "tests/fakes/gpu.h"
#endif

#define SKIPPED 77

/* ---- NCCL -------------------------------------------------------------------------------------------------------- */

struct nccl nccl;

void nccl_open(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
#define FIND(name) require((*(void **)&nccl.name = dlsym(handle, "nccl" #name)) != NULL)
    FIND(GetUniqueId);
    FIND(CommInitRank);
    FIND(CommInitRankConfig);
    FIND(CommInitAll);
    FIND(CommSplit);
    FIND(CommDestroy);
    FIND(CommAbort);
    FIND(CommGetAsyncError);
    FIND(AllGather);
    FIND(AlltoAll);
    FIND(Broadcast);
    FIND(ReduceScatter);
    FIND(AllReduce);
    FIND(Send);
    FIND(Recv);
    FIND(GroupStart);
    FIND(GroupEnd);
    FIND(GetErrorString);
#undef FIND
    *(void **)&nccl.report = dlsym(handle, "strait_coll_report");
}

void require_nccl(coll_result result)
{
    if (result != COLL_SUCCESS && result != COLL_IN_PROGRESS)
        fprintf(stderr, "NCCL: %s\n", nccl.GetErrorString(result));
    require(result == COLL_SUCCESS || result == COLL_IN_PROGRESS);
}

unsigned long long nccl_compressed(coll_comm comm, const char *operation)
{
    static _Thread_local char text[1 << 16];
    unsigned long long found = 0;
    if (nccl.report == NULL)
        return 0;
    require(nccl.report(comm, text, sizeof(text)) <= sizeof(text));
    for (char *rest = text, *line; (line = strtok_r(rest, "\n", &rest)) != NULL;) {
        char of[32], type[32];
        unsigned long long compressed;
        if (sscanf(line, "%31s %31s %*u %*u %*u %*u %*u %llu", of, type, &compressed) == 3 &&
            strcmp(of, operation) == 0)
            found += compressed;
    }
    return found;
}

/* ---- Where ranks are --------------------------------------------------------------------------------------------- */

static int number_in(const char *name)
{
    const char *value = getenv(name);
    return value != NULL ? atoi(value) : 0;
}

bool are_apart(void)
{
    return number_in("STRAIT_TEST_HOSTS") > 0;
}

/* NCCL refuses ranks of one host that share a GPU, unless NCCL_MULTI_RANK_GPU_ENABLE=1 (2.30). */
static bool may_share(void)
{
    return number_in("STRAIT_TEST_HOSTS") == 1 || number_in("NCCL_MULTI_RANK_GPU_ENABLE") == 1;
}

/* In a process that is this rank alone, before NCCL is opened. */
static void tell_host(int rank)
{
    char host[32];
    if (!are_apart())
        return;
    snprintf(host, sizeof(host), "host %d", rank / number_in("STRAIT_TEST_HOSTS"));
    require(setenv("NCCL_HOSTID", host, 1) == 0);
}

/* Fake GPUs have hosts, whatever thread uses them. */
static void tell_hosts_of_fakes(void)
{
#ifdef ON_FAKE_GPUS
    for (int i = 0; i < WORLD_RANKS_MAX && are_apart(); i++)
        fake_gpu.hosts[i] = 1 + (uint32_t)(i / number_in("STRAIT_TEST_HOSTS"));
#endif
}

/* Are there GPUs enough for so many ranks? *threads: they can be threads of a process, too. */
static bool have_devices(int ranks, bool *threads)
{
    const int count = count_devices();
    *threads = count >= ranks;
    return count >= ranks || (count > 0 && may_share());
}

/* Of a limit in seconds: ranks that share a GPU have it by turns, and each waits for the others. */
static unsigned patience(unsigned seconds)
{
    return may_share() ? 4 * seconds : seconds;
}

void use_device(int rank)
{
    int count = 0;
    require_cuda(cudaGetDeviceCount(&count));
    require_cuda(cudaSetDevice(may_share() ? rank % count : rank));
}

bool is_demanding(void)
{
    const char *way = getenv("STRAIT_COLL");
    return nccl.report != NULL && way != NULL && strcmp(way, "compress") == 0;
}

double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* ---- Values and graphs ------------------------------------------------------------------------------------------- */

void rank_upload(struct rank *rank, void *gpu, size_t size)
{
    require_cuda(cudaMemcpy(gpu, rank->host, size, cudaMemcpyHostToDevice));
    require_cuda(cudaDeviceSynchronize());
}

void rank_download(struct rank *rank, const void *gpu, size_t size)
{
    require_cuda(cudaMemcpy(rank->host, gpu, size, cudaMemcpyDeviceToHost));
}

void rank_fill(struct rank *rank, void *gpu, int type, size_t count, enum values kind, uint64_t seed)
{
    values_fill(rank->host, type, count, kind, seed);
    rank_upload(rank, gpu, count * element_bytes(type));
}

void rank_require(struct rank *rank, const void *gpu, int type, size_t count, enum values kind, uint64_t seed)
{
    rank_download(rank, gpu, count * element_bytes(type));
    require(values_are(rank->host, type, count, kind, seed));
}

void rank_settle(struct rank *rank)
{
    coll_result error;
    for (unsigned slot = 0; slot < WORLD_SLOTS; slot++)
        if (rank->stream[slot] != NULL)
            require_cuda(cudaStreamSynchronize(rank->stream[slot]));
    require_nccl(nccl.CommGetAsyncError(rank->comm[0], &error));
    require_nccl(error);
}

cudaGraphExec_t graph_capture(struct rank *rank, unsigned slot, void (*call)(struct rank *rank, void *argument),
                              void *argument)
{
    cudaGraph_t graph;
    cudaGraphExec_t made;
    require_cuda(cudaStreamBeginCapture(rank->stream[slot], cudaStreamCaptureModeThreadLocal));
    call(rank, argument);
    require_cuda(cudaStreamEndCapture(rank->stream[slot], &graph));
    require_cuda(cudaGraphInstantiateWithFlags(&made, graph, 0));
    require_cuda(cudaGraphDestroy(graph));
    return made;
}

/* ---- A rank ------------------------------------------------------------------------------------------------------ */

struct start {
    const struct world *world;
    struct rank rank;
};

struct world {
    const struct world_program *program;
    bool threads, only_threads; /* only: asked for, as for fakes, which take their time */
    int ranks;
    const char *library;
    const struct world_scene *scene;
};

void world_meet(struct rank *rank)
{
    (void)pthread_barrier_wait(&rank->shared->barrier);
}

void world_allocate(struct rank *rank, size_t bytes, unsigned slots)
{
    const size_t size = (size_t)rank->ranks * bytes;
    use_device(rank->number);
    require((rank->host = malloc(size)) != NULL);
    for (unsigned slot = 0; slot < slots; slot++) {
        require_cuda(cudaStreamCreateWithFlags(&rank->stream[slot], cudaStreamNonBlocking));
        require_cuda(cudaMalloc((void **)&rank->send[slot], size));
        require_cuda(cudaMalloc((void **)&rank->receive[slot], size));
    }
}

static void *run_rank(void *argument)
{
    const struct start *start = argument;
    const struct world_program *program = start->world->program;
    struct rank own = start->rank, *rank = &own;
    const struct world_scene *scene = rank->scene;
    use_device(rank->number);
    const unsigned ids = scene->own_comms ? WORLD_IDS : program->slots;
    for (unsigned i = 0; i < ids && rank->number == 0; i++)
        require_nccl(nccl.GetUniqueId(&rank->shared->ids[i]));
    world_meet(rank);
    for (unsigned slot = 0; slot < program->slots && !scene->own_comms; slot++)
        require_nccl(nccl.CommInitRank(&rank->comm[slot], rank->ranks, rank->shared->ids[slot], rank->number));
    world_allocate(rank, program->bytes, program->slots);
    scene->play(rank);
    const unsigned long long compressed = scene->own_comms ? 0 : nccl_compressed(rank->comm[0], scene->compressed);
    if (rank->number == 0 && scene->own_comms)
        printf("%-14s ok\n", scene->name);
    else if (rank->number == 0)
        printf("%-14s ok, %llu calls of %s compressed\n", scene->name, compressed, scene->compressed);
    require(scene->own_comms || compressed > 0 || !is_demanding());
    world_meet(rank);
    for (unsigned slot = 0; slot < program->slots; slot++) {
        if (!scene->own_comms)
            require_nccl(nccl.CommDestroy(rank->comm[slot]));
        require_cuda(cudaStreamDestroy(rank->stream[slot]));
        require_cuda(cudaFree(rank->send[slot]));
        require_cuda(cudaFree(rank->receive[slot]));
    }
    free(rank->host);
    return NULL;
}

static void *run_alone(void *argument)
{
    struct start *start = argument;
    start->world->scene->play(&start->rank);
    printf("%-14s ok, of one thread\n", start->world->scene->name);
    return NULL;
}

/* ---- All of them ------------------------------------------------------------------------------------------------- */

static void *run_threads(void *argument)
{
    struct start *starts = argument;
    const int ranks = starts[0].world->ranks;
    pthread_t threads[WORLD_RANKS_MAX];
    for (int i = 0; i < ranks; i++)
        require(pthread_create(&threads[i], NULL, run_rank, &starts[i]) == 0);
    for (int i = 0; i < ranks; i++)
        require(pthread_join(threads[i], NULL) == 0);
    return NULL;
}

/* Of threads, too: whoever forks must not have started the driver. */
static pid_t start_process(void *(*run)(void *), void *argument, const char *library)
{
    pid_t pid = fork();
    require(pid >= 0);
    if (pid > 0)
        return pid;
    end_with_parent();
    const struct start *start = argument;
    alarm(start->world->only_threads ? 0 : patience(WORLD_SECONDS_MAX));
    start->rank.shared->pids[start->rank.number] = getpid();
    tell_host(start->rank.number);
    if (start->world->scene->prepare != NULL)
        start->world->scene->prepare(start->rank.number);
    nccl_open(library);
    (void)run(argument);
    fflush(stdout);
    _exit(0);
}

/* The first that fails ends the others, which would wait for it; the rank that a scene loses is ended when all others
 * have ended, if none of them has killed it before. */
static bool await_all(const struct world *world, pid_t *pids, int count)
{
    bool good = true;
    for (int left = count; left > 0; left--) {
        int status, ended = 0;
        const pid_t pid = wait(&status);
        while (ended < count && pids[ended] != pid)
            ended++;
        require(pid > 0 && ended < count);
        pids[ended] = 0;
        const bool is_lost = world->scene->loses_one && ended == count - 1;
        good &= is_lost ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : status == 0;
        for (int i = 0; i < count; i++)
            if (pids[i] > 0 && (!good || (world->scene->loses_one && i == count - 1 && left == 2)))
                kill(pids[i], SIGKILL);
    }
    return good;
}

static bool run_starts(struct start *starts, const struct world *world)
{
    pid_t pids[WORLD_RANKS_MAX];
    const bool alone = world->scene->alone;
    const int processes = alone || world->threads ? 1 : world->ranks;
    void *(*run)(void *) = alone ? run_alone : world->threads ? run_threads : run_rank;
    for (int i = 0; i < processes; i++)
        pids[i] = start_process(run, &starts[i], world->library);
    return await_all(world, pids, processes);
}

/* False: one of the ranks failed, or took too long, which stderr has been told. */
static bool run_scene(const struct world *world)
{
    struct start starts[WORLD_RANKS_MAX];
    pthread_barrierattr_t attributes;
    struct world_shared *shared =
        mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    require(shared != MAP_FAILED && world->ranks <= WORLD_RANKS_MAX && pthread_barrierattr_init(&attributes) == 0);
    require(pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
    require(pthread_barrier_init(&shared->barrier, &attributes, (unsigned)world->ranks) == 0);
    for (int i = 0; i < world->ranks; i++)
        starts[i] =
            (struct start){world, {.number = i, .ranks = world->ranks, .shared = shared, .scene = world->scene}};
    fflush(stdout);
    const bool good = run_starts(starts, world);
    require(munmap(shared, sizeof(*shared)) == 0);
    return good;
}

/* ---- The program ------------------------------------------------------------------------------------------------- */

static bool read_options(struct world *world, int *argc, char ***argv)
{
    for (; *argc > 1 && strncmp((*argv)[1], "--", 2) == 0; (*argc)--, (*argv)++) {
        const char *option = (*argv)[1];
        if (strncmp(option, "--ranks=", 8) == 0)
            world->ranks = atoi(option + 8);
        else if (strcmp(option, "--threads") == 0)
            world->threads = true;
        else if (world->program->option != NULL && strcmp(option, world->program->option) == 0)
            *world->program->chosen = true;
        else
            return false;
    }
    return *argc > 1 && world->ranks >= 2 && world->ranks <= WORLD_RANKS_MAX;
}

int world_main(int argc, char **argv, const struct world_program *program)
{
    const struct world_scene *scenes = program->scenes;
    struct world world = {.ranks = 2, .program = program};
    int failed = 0, run = 0;
    bool threads;
    const char *name = argv[0];
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!read_options(&world, &argc, &argv)) {
        fprintf(stderr, "usage: %s [--threads] [--ranks=N] LIBRARY [SCENE ...]\n", name);
        return 2;
    }
    world.library = argv[1];
    if (!have_devices(world.ranks, &threads) || (world.threads && !threads)) {
        printf("skipped: %d GPUs are needed\n", world.ranks);
        return SKIPPED;
    }
    world.only_threads = world.threads;
    tell_hosts_of_fakes();
    for (int i = 0; i < program->count; i++) {
        if (!is_named(scenes[i].name, argc - 2, argv + 2) || (scenes[i].alone && !threads) ||
            (scenes[i].processes_only && world.only_threads))
            continue;
        world.scene = &scenes[i];
        for (int way = world.only_threads; way <= (world.only_threads || (scenes[i].threads_too && threads)); way++) {
            world.threads = way == 1;
            const bool good = run_scene(&world);
            if (!good)
                printf("%-14s FAILED\n", scenes[i].name);
            failed += !good;
            run++;
        }
    }
    printf("%d of %d failed\n", failed, run);
    return failed > 0 || run == 0;
}
