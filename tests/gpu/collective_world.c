#include "tests/gpu/collective_world.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>

#define SKIPPED 77

struct world {
    bool threads, only_threads; /* only: asked for, as for fakes, which take their time */
    int ranks;
    const char *library;
    size_t bytes; /* of the memory of each rank, by ranks */
    const struct world_scene *scene;
};

struct start {
    const struct world *world;
    struct rank rank;
};

void world_meet(struct rank *rank)
{
    (void)pthread_barrier_wait(&rank->shared->barrier);
}

/* ---- A rank ------------------------------------------------------------------------------------------------------ */

void world_allocate(struct rank *rank, size_t bytes)
{
    const size_t size = (size_t)rank->ranks * bytes;
    use_device(rank->number);
    require((rank->host = malloc(size)) != NULL);
    for (unsigned slot = 0; slot < WORLD_SLOTS; slot++) {
        require_cuda(cudaStreamCreateWithFlags(&rank->stream[slot], cudaStreamNonBlocking));
        require_cuda(cudaMalloc((void **)&rank->send[slot], size));
        require_cuda(cudaMalloc((void **)&rank->receive[slot], size));
    }
}

static void open_rank(struct rank *rank, size_t bytes)
{
    use_device(rank->number);
    for (unsigned slot = 0; slot < WORLD_SLOTS; slot++) {
        if (rank->number == 0)
            require_nccl(nccl.GetUniqueId(&rank->shared->ids[slot]));
        world_meet(rank);
        require_nccl(nccl.CommInitRank(&rank->comm[slot], rank->ranks, rank->shared->ids[slot], rank->number));
    }
    world_allocate(rank, bytes);
}

static void close_rank(struct rank *rank)
{
    world_meet(rank);
    for (unsigned slot = 0; slot < WORLD_SLOTS; slot++) {
        require_nccl(nccl.CommDestroy(rank->comm[slot]));
        require_cuda(cudaStreamDestroy(rank->stream[slot]));
        require_cuda(cudaFree(rank->send[slot]));
        require_cuda(cudaFree(rank->receive[slot]));
    }
    free(rank->host);
}

static bool is_demanding(void)
{
    const char *way = getenv("STRAIT_COLL");
    return nccl.report != NULL && way != NULL && strcmp(way, "compress") == 0;
}

static void play(struct rank *rank, const struct world_scene *scene)
{
    scene->play(rank);
    const unsigned long long compressed = nccl_compressed(rank->comm[0], scene->compressed);
    if (rank->number == 0)
        printf("%-14s ok, %llu calls of %s compressed\n", scene->name, compressed, scene->compressed);
    require(compressed > 0 || !is_demanding());
}

static void *run_rank(void *argument)
{
    struct start *start = argument;
    open_rank(&start->rank, start->world->bytes);
    play(&start->rank, start->world->scene);
    close_rank(&start->rank);
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
    tell_host(start->rank.number);
    nccl_open(library);
    (void)run(argument);
    fflush(stdout);
    _exit(0);
}

/* The first that fails ends the others, which would wait for it. */
static bool await_all(const pid_t *pids, int count)
{
    bool good = true;
    for (int left = count; left > 0; left--) {
        int status;
        require(wait(&status) > 0);
        for (int i = 0; i < count && good && status != 0; i++)
            kill(pids[i], SIGKILL);
        good &= status == 0;
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
    return await_all(pids, processes);
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
        starts[i] = (struct start){world, {.number = i, .ranks = world->ranks, .shared = shared}};
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
        else
            return false;
    }
    return *argc > 1 && world->ranks >= 2 && world->ranks <= WORLD_RANKS_MAX;
}

int world_main(int argc, char **argv, const struct world_scene *scenes, int count, size_t bytes)
{
    struct world world = {.ranks = 2, .bytes = bytes};
    int failed = 0, run = 0;
    bool threads;
    const char *program = argv[0];
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!read_options(&world, &argc, &argv)) {
        fprintf(stderr, "usage: %s [--threads] [--ranks=N] LIBRARY [SCENE ...]\n", program);
        return 2;
    }
    world.library = argv[1];
    if (!have_devices(world.ranks, &threads) || (world.threads && !threads)) {
        printf("skipped: %d GPUs are needed\n", world.ranks);
        return SKIPPED;
    }
    world.only_threads = world.threads;
    for (int i = 0; i < count; i++) {
        if (!is_named(scenes[i].name, argc - 2, argv + 2) || (scenes[i].alone && !threads))
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
