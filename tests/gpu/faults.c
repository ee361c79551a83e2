/* What clients and daemons do wrong, or have done to them, while a GPU works for them: others must not notice. */
#include "tests/gpu/scenes.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/gpu/trap.h"

/* ---- Daemons that are killed ------------------------------------------------------------------------------------- */

/* What is told when a daemon is gone is that its GPU has let go too, not only its processes. */
static void kill_in_the_middle(struct daemon_process *sinks, struct strait_client **clients, struct gpu_pool *source,
                               struct gpu_pool *sink, int turn)
{
    struct strait_peer *peer = pool_peer(source, clients[1]);
    struct flow offer, expect;
    char key[16];
    snprintf(key, sizeof(key), "doomed%d", turn);
    if (turn % 2 == 0)
        move_all(source, sink, 1, false); /* else kernels are being loaded */
    flow_offer(&offer, source, key, NULL, large.pages, false);
    flow_expect(&expect, sink, key, NULL, large.pages);
    require(strait_start(expect.transfer, peer, NULL) == STRAIT_OK);
    WAIT(clients, 2, expect.moved || expect.decided, 5000);
    usleep(700u * (unsigned)turn);
    kill(sinks->pid, SIGKILL);
    WAIT(clients + 1, 1, expect.decided && expect.drained, 8000);
    pool_overwrite(sink);
    uint64_t told = now_ns();
    require(waitpid(sinks->pid, NULL, 0) == sinks->pid);
    printf("  killed after %u us: %s (%s); its process was gone %.1f ms after the pages had been overwritten\n",
           700u * (unsigned)turn, strait_state_string(expect.state), strait_reason_string(expect.reason),
           (double)(now_ns() - told) * 1e-6);
    usleep(100000);
    pool_check(sink);
    WAIT(clients, 2, offer.decided && offer.drained, 8000);
    strait_release(offer.transfer);
    strait_release(expect.transfer);
    strait_peer_remove(peer);
}

void scene_silence(void)
{
    struct daemon_process daemons[2];
    daemon_start(&daemons[0], "a", "shm", "tiered", NULL);
    daemon_start(&daemons[1], "b", "shm", "tiered", NULL);
    struct strait_client *clients[] = {client_open(&daemons[0]), client_open(&daemons[1])};
    struct gpu_pool *source = pool_make(clients[0], on(large, 0, STRAIT_HANDLE_CUDA_IPC));
    struct gpu_pool *sink = pool_make(clients[1], on(large, last_device(), STRAIT_HANDLE_CUDA_IPC));
    pool_fill(source, 1);
    for (int turn = 0; turn < 8; turn++) {
        kill_in_the_middle(&daemons[1], clients, source, sink, turn);
        sink->told = false;
        daemon_restart(&daemons[1]);
        WAIT(clients, 2, sink->told, 15000);
        require(sink->status == STRAIT_OK);
    }
    pool_check(source);
    strait_client_close(clients[0]);
    strait_client_close(clients[1]);
    daemon_stop(&daemons[0]);
    daemon_stop(&daemons[1]);
}

/* ---- Clients that stumble ---------------------------------------------------------------------------------------- */

struct clients {
    struct strait_client *both[2];
    struct gpu_pool *source, *sink;
    struct strait_peer *peer;
};

static struct clients clients_open(const struct daemon_process *daemons, struct pool_shape shape)
{
    struct clients c = {.both = {client_open(&daemons[0]), client_open(&daemons[1])}};
    c.source = pool_make(c.both[0], on(shape, 0, STRAIT_HANDLE_CUDA_IPC));
    c.sink = pool_make(c.both[1], on(shape, last_device(), STRAIT_HANDLE_CUDA_IPC));
    c.peer = pool_peer(c.source, c.both[1]);
    pool_fill(c.source, 1);
    return c;
}

/* A process that moves pages and looks at them until it is told to end; its exit status is 0 when all was right. */
static pid_t bystander(const struct daemon_process *daemons, int stop, int ready)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    struct clients c = clients_open(daemons, small);
    struct pollfd polled = {.fd = stop, .events = POLLIN};
    uint64_t turns = 0;
    while (poll(&polled, 1, 0) == 0) {
        move_all(c.source, c.sink, turns, true);
        if (turns++ == 0)
            require(write(ready, "", 1) == 1);
    }
    printf("  beside it: %u transfers, all as they should be\n", (unsigned)turns);
    fflush(stdout);
    _exit(0);
}

static void ends_well(pid_t pid, const char *who)
{
    int status;
    require(waitpid(pid, &status, 0) == pid);
    if (status != 0)
        fprintf(stderr, "%s ended with status %x\n", who, (unsigned)status);
    require(status == 0);
}

static void tell_verdicts(const char *what, const struct flow *offer, const struct flow *expect)
{
    printf("  %s: source %s (%s%s%s), sink %s (%s%s%s)\n", what, strait_state_string(offer->state),
           strait_reason_string(offer->reason), offer->text[0] != 0 ? ": " : "", offer->text,
           strait_state_string(expect->state), strait_reason_string(expect->reason), expect->text[0] != 0 ? ": " : "",
           expect->text);
}

/* Lets `stumble` happen while pages move, or before they do; the verdicts must come all the same. */
static void move_and_stumble(struct clients *c, const char *what, bool before,
                             void (*stumble)(struct clients *c, int arg), int arg)
{
    struct flow offer, expect;
    if (before)
        stumble(c, arg);
    flow_offer(&offer, c->source, what, NULL, c->source->shape.pages, false);
    flow_expect_for(&expect, c->sink, what, NULL, c->sink->shape.pages, 5000);
    require(strait_start(expect.transfer, c->peer, NULL) == STRAIT_OK);
    if (!before) {
        WAIT(c->both, 2, expect.moved || expect.decided, 5000);
        stumble(c, arg);
    }
    WAIT(c->both, 2, offer.decided && expect.decided && offer.drained && expect.drained, 8000);
    tell_verdicts(what, &offer, &expect);
    strait_release(offer.transfer);
    strait_release(expect.transfer);
}

/* Runs `body` in a child beside a bystander. Nothing of CUDA may have been begun here before. */
static void run_beside(void (*body)(const struct daemon_process *daemons, int arg), int count)
{
    struct daemon_process daemons[2];
    int stop[2], ready[2];
    char byte;
    daemon_start(&daemons[0], "a", "shm", "tiered", NULL);
    daemon_start(&daemons[1], "b", "shm", "tiered", NULL);
    require(pipe(stop) == 0 && pipe(ready) == 0);
    fflush(stdout);
    pid_t other = bystander(daemons, stop[0], ready[1]);
    require(read(ready[0], &byte, 1) == 1);
    for (int arg = 0; arg < count; arg++) {
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            body(daemons, arg);
            fflush(stdout);
            _exit(0);
        }
        ends_well(pid, "the client");
    }
    usleep(100000);
    require(write(stop[1], "", 1) == 1);
    ends_well(other, "the bystander");
    daemon_stop(&daemons[0]);
    daemon_stop(&daemons[1]);
}

static void trap(struct clients *c, int kind)
{
    (void)c;
    printf("  the client's own kernel: %s\n", trap_here(0, (enum trap_kind)kind));
}

static void stumble_in_own_kernel(const struct daemon_process *daemons, int arg)
{
    struct clients c = clients_open(daemons, medium);
    move_all(c.source, c.sink, 1, true);
    move_and_stumble(&c, arg % 2 == 0 ? "before" : "meanwhile", arg % 2 == 0, trap, arg / 2);
}

void scene_client_faults(void)
{
    run_beside(stumble_in_own_kernel, 2 * TRAPS);
}

/* ---- Memory that is gone ----------------------------------------------------------------------------------------- */

static void free_one(struct clients *c, int which)
{
    const struct gpu_pool *pool = which == 0 ? c->source : c->sink;
    require_cuda(cudaSetDevice(pool->shape.device));
    require_cuda(cudaFree(pool->memory));
    /* and something else has the memory now */
    uint8_t *other;
    require_cuda(cudaMalloc((void **)&other, pool->size));
    require_cuda(cudaMemset(other, 0, pool->size));
    require_cuda(cudaDeviceSynchronize());
}

static void free_a_pool(const struct daemon_process *daemons, int arg)
{
    static const char *const what[] = {"source freed before", "source freed meanwhile", "sink freed before",
                                       "sink freed meanwhile"};
    struct clients c = clients_open(daemons, medium);
    move_all(c.source, c.sink, 1, true);
    move_and_stumble(&c, what[arg], arg % 2 == 0, free_one, arg / 2);
}

/* A client must not do this; when one does, it has itself to blame for its bytes, and nobody else notices. */
void scene_freed(void)
{
    run_beside(free_a_pool, 4);
}
