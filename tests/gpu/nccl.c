/* The NCCL transport on two real GPUs, one process each, with UCX over TCP as carrier:
 *
 *   gpu_nccl              all scenes, with and without P2P between the GPUs
 *   gpu_nccl SCENE ...    some of them, with P2P
 *
 * It exits with 77 where two GPUs, NCCL or UCX are not to be had. */
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/gpu/nccl_side.h"

#define SKIPPED     77
#define SECONDS_MAX 60u
#define OPTIONS     "tls=tcp devices=lo timeout_ms=20000 "
#define CHUNKS      240u
#define MEASURED    256u
/* What stays of the first link of a process are modules and pools of CUDA and NCCL. What each one after it leaves
 * behind is a leak: NCCL's smallest buffer of a link is 4 MiB. */
#define KEPT_MAX ((size_t)2 << 20)

/* ---- Exchanging -------------------------------------------------------------------------------------------------- */

static const size_t sizes[] = {0, 1, 15, 4096, 65537, 1 << 20, (4 << 20) + 13, SLOT_BYTES};

static void exchange(struct nccl_side *side)
{
    unsigned begun = 0;
    side->refuse_every = 17;
    side_connect(side);
    while (side->sent < CHUNKS || side->arrived + side->refused < CHUNKS) {
        if (begun < CHUNKS)
            begun += side_send(side, sizes[(begun * 5 + begun / 7) % (unsigned)COUNT(sizes)]);
        side_step(side, 1);
        require(!side->broken);
    }
    require(side->sent_badly + side->arrived_badly == 0 && side->refused == CHUNKS / 17);
    side_meet(side);
    side_close(side);
    side->refuse_every = 0;
}

#define LINKS_AGAIN 8

/* Each in turn closes first; the transport goes on. */
static void open_again(struct nccl_side *side)
{
    for (int round = 0; round < LINKS_AGAIN; round++) {
        side_forget(side);
        side_connect(side);
        for (unsigned begun = 0; side->sent < 10 || side->arrived < 10;) {
            if (begun < 10)
                begun += side_send(side, 1 << 20);
            side_step(side, 1);
        }
        side_meet(side);
        if (side->number == round % 2)
            side_close(side);
        SIDE_AWAIT(side, 20, side->closed);
    }
}

/* Of the whole GPU: what the peer has mapped of this side's buffers counts until it has let go of them, too. */
static size_t free_bytes(void)
{
    size_t available, total;
    require_cuda(cudaMemGetInfo(&available, &total));
    return available;
}

static void run_exchange(struct nccl_side *side)
{
    exchange(side);
    side_meet(side);
    size_t before = free_bytes();
    open_again(side);
    side_meet(side);
    size_t after = free_bytes(), kept = before > after ? (before - after) / LINKS_AGAIN : 0;
    printf("side %d: %u chunks verified, %u links; GPU memory kept by each after the first: %zu KiB\n", side->number,
           CHUNKS, LINKS_AGAIN + 1, kept >> 10);
    require(kept < KEPT_MAX);
}

/* ---- The end in mid-transfer ------------------------------------------------------------------------------------- */

/* Both send all they can, until `condition`. */
#define SEND_UNTIL(side, condition)             \
    do {                                        \
        while (!(condition)) {                  \
            while (side_send(side, SLOT_BYTES)) \
                ;                               \
            side_step(side, 10);                \
        }                                       \
    } while (0)

static void report_end(const struct nccl_side *side, const char *what, uint64_t since)
{
    printf("side %d: closed %llu ms after %s; %u chunks had arrived, %u did not; %u sends failed%s%s\n", side->number,
           (unsigned long long)(now_ms() - since), what, side->arrived, side->arrived_badly, side->sent_badly,
           side->broken ? ": " : "", side->broken ? side->why : "");
}

static void run_close(struct nccl_side *side)
{
    side->unchecked = true;
    side_connect(side);
    if (side->number == 0) {
        SEND_UNTIL(side, side->arrived > 40);
        uint64_t since = now_ms();
        side_close(side);
        report_end(side, "link_close", since);
    } else {
        SEND_UNTIL(side, side->broken);
        uint64_t since = now_ms();
        SIDE_AWAIT(side, 20, side->closed);
        report_end(side, "the peer closed", since);
    }
    require(side->broken == (unsigned)side->number);
    side_watch_arena(side);
}

static pid_t learn_peer(struct nccl_side *side)
{
    pid_t self = getpid(), peer;
    side_tell(side, &self, sizeof(self));
    side_hear(side, &peer, sizeof(peer));
    return peer;
}

static void run_kill(struct nccl_side *side)
{
    pid_t peer = learn_peer(side);
    side->unchecked = true;
    side_connect(side);
    SEND_UNTIL(side, side->number == 0 && side->arrived > 40);
    require(kill(peer, SIGKILL) == 0);
    uint64_t since = now_ms();
    SIDE_AWAIT(side, 20, side->closed);
    require(side->broken);
    report_end(side, "the peer was killed", since);
    side_watch_arena(side);
}

/* The peer's GPU goes on, its process does not: only the limit for an operation tells. */
static void run_stop(struct nccl_side *side)
{
    pid_t peer = learn_peer(side);
    side->unchecked = true;
    side_connect(side);
    if (side->number == 0) {
        SEND_UNTIL(side, side->arrived > 40);
        require(kill(peer, SIGSTOP) == 0);
        uint64_t since = now_ms();
        SEND_UNTIL(side, side->broken);
        SIDE_AWAIT(side, 20, side->closed);
        report_end(side, "the peer was stopped", since);
        side_watch_arena(side);
        require(kill(peer, SIGCONT) == 0);
        return;
    }
    SEND_UNTIL(side, side->broken);
    SIDE_AWAIT(side, 20, side->closed);
    side_watch_arena(side);
}

static void run_vanish(struct nccl_side *side)
{
    pid_t peer = learn_peer(side);
    side_open(side);
    uint64_t start = now_ms();
    while (side->number == 1 || now_ms() - start < 300)
        side_step(side, 5);
    require(kill(peer, SIGKILL) == 0);
    uint64_t since = now_ms();
    while (!side->broken && now_ms() - since < 2000)
        side_step(side, 10);
    side_close(side);
    report_end(side, side->connected ? "the peer was killed" : "the peer was killed while connecting", since);
}

/* ---- Speed ------------------------------------------------------------------------------------------------------- */

static void pump(struct nccl_side *side, unsigned to_send, unsigned to_receive)
{
    unsigned begun = 0;
    while (side->sent < to_send || side->arrived < to_receive) {
        while (begun < to_send && side_send(side, SLOT_BYTES))
            begun++;
        side_step(side, 100);
    }
}

static double measure(struct nccl_side *side, bool both_ways)
{
    bool sends = both_ways || side->number == 0, receives = both_ways || side->number == 1;
    side->sent = side->arrived = 0;
    side_meet(side);
    uint64_t start = now_us();
    pump(side, sends ? MEASURED : 0, receives ? MEASURED : 0);
    side_meet(side);
    return (double)MEASURED * (double)SLOT_BYTES / 1e3 / (double)(now_us() - start);
}

static void run_speed(struct nccl_side *side)
{
    static const char *const blocks[] = {"blocks=1", "blocks=4", "blocks=8", "blocks=16", "blocks=32"};
    for (int i = 0; i < COUNT(blocks); i++) {
        char options[128];
        snprintf(options, sizeof(options), OPTIONS "%s", blocks[i]);
        side_destroy(side);
        require(side_create(side, options));
        side_forget(side);
        side->unchecked = true;
        size_t before = free_bytes();
        uint64_t start = now_ms();
        side_connect(side);
        uint64_t connected = now_ms();
        measure(side, true); /* the first chunks connect NCCL's channels */
        size_t after = free_bytes();
        double one = measure(side, false), both = measure(side, true);
        if (side->number == 0)
            printf("%-9s one way %6.1f GB/s, both ways %6.1f GB/s each; connected in %llu ms, %zu MiB of the GPU\n",
                   blocks[i], one, both, (unsigned long long)(connected - start), (before - after) >> 20);
        side_meet(side);
        side_close(side);
    }
}

/* ---- Scenes ------------------------------------------------------------------------------------------------------ */

static const struct scene {
    const char *name, *options;
    void (*run)(struct nccl_side *side);
    bool loses_one;   /* side 1 is killed */
    bool without_p2p; /* worth while there, too */
} scenes[] = {
    {"exchange", OPTIONS, run_exchange, false, true},
    {"close", OPTIONS, run_close, false, false},
    {"kill", OPTIONS, run_kill, true, true},
    {"stop", "tls=tcp devices=lo timeout_ms=5000", run_stop, false, false},
    {"vanish", OPTIONS, run_vanish, true, false},
    {"speed", OPTIONS, run_speed, false, true},
};

static pid_t start_side(const struct scene *scene, int number, const int control[2])
{
    pid_t pid = fork();
    require(pid >= 0);
    if (pid > 0)
        return pid;
    static struct nccl_side side;
    close(control[!number]);
    alarm(SECONDS_MAX);
    side.number = number;
    side.control = control[number];
    if (!side_create(&side, scene->options))
        _exit(SKIPPED);
    scene->run(&side);
    side_destroy(&side);
    exit(0);
}

/* 0: passed. */
static int run_scene(const struct scene *scene, const char *mode)
{
    int control[2], status[2];
    pid_t sides[2];
    uint64_t start = now_ms();
    fflush(stdout);
    require(socketpair(AF_UNIX, SOCK_STREAM, 0, control) == 0);
    for (int i = 0; i < 2; i++)
        sides[i] = start_side(scene, i, control);
    for (int i = 0; i < 2; i++)
        close(control[i]);
    for (int i = 0; i < 2; i++)
        require(waitpid(sides[i], &status[i], 0) == sides[i]);
    if (WIFEXITED(status[0]) && WEXITSTATUS(status[0]) == SKIPPED)
        exit(SKIPPED);
    bool killed = WIFSIGNALED(status[1]) && WTERMSIG(status[1]) == SIGKILL;
    bool passed = status[0] == 0 && (scene->loses_one ? killed : status[1] == 0);
    printf("%s, %s: %s after %.1f s", scene->name, mode, passed ? "passed" : "FAILED",
           (double)(now_ms() - start) / 1000);
    printf(passed ? "\n" : " (statuses %x and %x)\n", (unsigned)status[0], (unsigned)status[1]);
    return !passed;
}

int main(int argc, char **argv)
{
    int failed = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    transport_leave_signals();
    if (count_devices() < 2 || transport_find("ucx") == NULL) {
        printf("skipped: two GPUs and UCX are needed\n");
        return SKIPPED;
    }
    for (int i = 0; i < COUNT(scenes); i++)
        if (is_named(scenes[i].name, argc - 1, argv + 1))
            failed += run_scene(&scenes[i], "P2P");
    setenv("NCCL_P2P_DISABLE", "1", 1);
    for (int i = 0; argc == 1 && i < COUNT(scenes); i++)
        if (scenes[i].without_p2p)
            failed += run_scene(&scenes[i], "no P2P");
    printf("%d failed\n", failed);
    return failed > 0;
}
