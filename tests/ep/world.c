#include "tests/ep/world.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

/* The last to arrive begins the next turn. */
static uint32_t arrive(struct world *world)
{
    const uint32_t turn = __atomic_load_n(&world->turn, __ATOMIC_ACQUIRE);

    if (__atomic_add_fetch(&world->arrived, 1, __ATOMIC_ACQ_REL) == world->ranks) {
        __atomic_store_n(&world->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&world->turn, turn + 1, __ATOMIC_RELEASE);
    }
    while (__atomic_load_n(&world->turn, __ATOMIC_ACQUIRE) == turn)
        nanosleep(&(struct timespec){.tv_nsec = 10000}, NULL);
    return turn;
}

void world_barrier(struct member *member)
{
    arrive(member->world);
}

int world_gather(void *context, const void *send, void *receive, size_t bytes)
{
    struct member *member = context;
    struct world *world = member->world;
    const uint32_t turn = __atomic_load_n(&world->turn, __ATOMIC_ACQUIRE) % 2;

    require(bytes <= WORLD_GATHER_BYTES);
    memcpy(world->gathered[turn][member->rank], send, bytes);
    arrive(world);
    for (uint32_t rank = 0; rank < world->ranks; rank++)
        memcpy((uint8_t *)receive + rank * bytes, world->gathered[turn][rank], bytes);
    return 0;
}

struct strait_ep_config world_config(struct member *member)
{
    return (struct strait_ep_config){.size = sizeof(struct strait_ep_config),
                                     .all_gather = world_gather,
                                     .context = member,
                                     .rank = member->rank,
                                     .rank_count = member->world->ranks};
}

struct running {
    struct member member;
    member_run *run;
};

static void *run_thread(void *arg)
{
    struct running *running = arg;

    running->run(&running->member);
    return NULL;
}

static void run_threads(struct running *running, uint32_t ranks)
{
    pthread_t threads[STRAIT_EP_RANKS_MAX];

    for (uint32_t rank = 0; rank < ranks; rank++)
        require(pthread_create(&threads[rank], NULL, run_thread, &running[rank]) == 0);
    for (uint32_t rank = 0; rank < ranks; rank++)
        require(pthread_join(threads[rank], NULL) == 0);
}

/* For this process and those that it starts. */
static void be_on_host(uint32_t host)
{
    char name[16];

    snprintf(name, sizeof(name), "host-%u", host);
    require(setenv("NCCL_HOSTID", name, 1) == 0 && setenv("NCCL_SOCKET_IFNAME", "=lo", 1) == 0);
}

static void run_processes(struct running *running, uint32_t ranks, uint32_t hosts)
{
    pid_t children[STRAIT_EP_RANKS_MAX];

    fflush(NULL);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        children[rank] = fork();
        require(children[rank] >= 0);
        if (children[rank] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (hosts > 1)
                be_on_host(rank * hosts / ranks);
            running[rank].run(&running[rank].member);
            fflush(NULL);
            _exit(0);
        }
    }
    for (uint32_t rank = 0; rank < ranks; rank++) {
        int status;
        require(waitpid(children[rank], &status, 0) == children[rank]);
        require((WIFEXITED(status) && WEXITSTATUS(status) == 0) ||
                (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
    }
}

static void run_world(uint32_t ranks, bool processes, uint32_t hosts, member_run *run, const void *context)
{
    struct world *world = mmap(NULL, sizeof(*world), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct running running[STRAIT_EP_RANKS_MAX];

    require(world != MAP_FAILED);
    world->ranks = ranks;
    for (uint32_t rank = 0; rank < ranks; rank++)
        running[rank] = (struct running){{world, rank, context}, run};
    if (processes)
        run_processes(running, ranks, hosts);
    else
        run_threads(running, ranks);
    munmap(world, sizeof(*world));
}

void world_run(uint32_t ranks, bool processes, member_run *run, const void *context)
{
    run_world(ranks, processes, 1, run, context);
}

void world_run_hosts(uint32_t ranks, uint32_t hosts, member_run *run, const void *context)
{
    run_world(ranks, true, hosts, run, context);
}
