/* The NCCL transport on two real GPUs, one process each, with UCX over TCP as carrier:
 *
 *   gpu_nccl              all scenes, with and without P2P between the GPUs
 *   gpu_nccl SCENE ...    some of them, with P2P
 *
 * It exits with 77 where two GPUs, NCCL or UCX are not to be had. */
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "internal/bytes.h"
#include "tests/gpu/device.h"
#include "transport/nccl.h"
#include "transport/transport.h"

#define SLOT_BYTES    ((size_t)16 << 20)
#define SEND_SLOTS    8u
#define RECEIVE_SLOTS 32u /* the receiver chooses one that is free: senders are ahead of what it has looked at */

struct nccl_side {
    int number;  /* 0 or 1: of the GPU, too */
    int control; /* a stream socket to the other side */
    struct transport *transport;
    struct link *link;
    uint8_t *arena, *source, *staging; /* of the GPU, of the GPU, of the host */

    /* What to do. */
    bool unchecked;        /* content is not looked at, nor made */
    unsigned refuse_every; /* 0: none */

    /* What happened. */
    unsigned connected, broken, closed, arriving, arrived, arrived_badly, refused, sent, sent_badly;
    const char *why;
    uint64_t next;            /* number of the next chunk */
    bool sending[SEND_SLOTS]; /* without `sent` */
    bool landing[RECEIVE_SLOTS];
    uint64_t sequence[RECEIVE_SLOTS];
    size_t size[RECEIVE_SLOTS];
};

#define HEADER_BYTES 16u /* number, size */

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static uint64_t now_ms(void)
{
    return now_us() / 1000;
}

/* ---- Content ----------------------------------------------------------------------------------------------------- */

static uint64_t word_of(uint64_t sequence, size_t i)
{
    return (sequence + 1) * 0x9e3779b97f4a7c15u ^ (i * 0xbf58476d1ce4e5b9u);
}

static void fill(uint8_t *dst, size_t size, uint64_t sequence)
{
    for (size_t at = 0; at < size; at += 8) {
        uint64_t word = word_of(sequence, at / 8);
        memcpy(dst + at, &word, size - at < 8 ? size - at : 8);
    }
}

static bool is_as_sent(const uint8_t *src, size_t size, uint64_t sequence)
{
    for (size_t at = 0; at < size; at += 8) {
        uint64_t word = word_of(sequence, at / 8);
        if (memcmp(src + at, &word, size - at < 8 ? size - at : 8) != 0)
            return false;
    }
    return true;
}

/* Not on a multiple of anything, now and then. */
static size_t shift_of(uint64_t sequence, size_t size)
{
    size_t shift = sequence % 4 == 3 ? 13 : 0;
    return shift + size <= SLOT_BYTES ? shift : 0;
}

static unsigned side_under_way(const struct nccl_side *side)
{
    unsigned count = 0;
    for (unsigned i = 0; i < SEND_SLOTS; i++)
        count += side->sending[i];
    return count;
}

/* ---- Callbacks --------------------------------------------------------------------------------------------------- */

static unsigned free_slot(const bool *slots, unsigned count)
{
    unsigned slot = 0;
    while (slot < count && slots[slot])
        slot++;
    return slot;
}

static struct landing on_arriving(void *owner, struct link *link, const void *header, size_t header_size, size_t size)
{
    struct nccl_side *side = owner;
    (void)link;
    require(side->connected == 1 && side->closed == 0 && header_size == HEADER_BYTES && size <= SLOT_BYTES);
    require(load_le64((const uint8_t *)header + 8) == size);
    side->arriving++;
    if (side->refuse_every != 0 && side->arriving % side->refuse_every == 0) {
        side->refused++;
        return (struct landing){.address = NULL};
    }
    unsigned slot = free_slot(side->landing, RECEIVE_SLOTS);
    require(slot < RECEIVE_SLOTS);
    side->landing[slot] = true;
    side->sequence[slot] = load_le64(header);
    side->size[slot] = size;
    return (struct landing){.address = side->arena + slot * SLOT_BYTES + shift_of(side->sequence[slot], size),
                            .cookie = slot};
}

static void check(struct nccl_side *side, unsigned slot)
{
    size_t size = side->size[slot];
    uint64_t sequence = side->sequence[slot];
    require_cuda(cudaMemcpy(side->staging, side->arena + slot * SLOT_BYTES + shift_of(sequence, size), size,
                            cudaMemcpyDeviceToHost));
    require(is_as_sent(side->staging, size, sequence));
}

static void on_arrived(void *owner, struct link *link, uint64_t slot, enum strait_status status)
{
    struct nccl_side *side = owner;
    (void)link;
    require(slot < RECEIVE_SLOTS && side->landing[slot] && side->closed == 0);
    if (status == STRAIT_OK && !side->unchecked)
        check(side, (unsigned)slot);
    side->landing[slot] = false;
    side->arrived += status == STRAIT_OK;
    side->arrived_badly += status != STRAIT_OK;
}

static void on_sent(void *owner, struct link *link, uint64_t slot, enum strait_status status)
{
    struct nccl_side *side = owner;
    (void)link;
    require(slot < SEND_SLOTS && side->sending[slot] && side->closed == 0);
    side->sending[slot] = false;
    side->sent += status == STRAIT_OK;
    side->sent_badly += status != STRAIT_OK;
}

static void on_connected(void *owner, struct link *link)
{
    (void)link;
    ((struct nccl_side *)owner)->connected++;
}

static void on_broken(void *owner, struct link *link, const char *why)
{
    struct nccl_side *side = owner;
    side->broken++;
    side->why = why;
    link_close(link);
}

static void on_closed(void *owner, struct link *link)
{
    struct nccl_side *side = owner;
    (void)link;
    side->closed++;
    side->link = NULL;
    for (unsigned i = 0; i < RECEIVE_SLOTS; i++)
        require(!side->landing[i]);
    require(side_under_way(side) == 0);
}

static const struct transport_events events = {.arriving = on_arriving,
                                               .arrived = on_arrived,
                                               .sent = on_sent,
                                               .connected = on_connected,
                                               .broken = on_broken,
                                               .closed = on_closed};

/* ---- Sides ------------------------------------------------------------------------------------------------------- */

/* False: NCCL is not to be had here, and why was printed. */
static bool side_create(struct nccl_side *side, const char *options)
{
    char why[256];
    struct transport_arena arena = {.size = RECEIVE_SLOTS * SLOT_BYTES, .fd = -1, .memory = TRANSPORT_CUDA};
    require_cuda(cudaSetDevice(side->number));
    require_cuda(cudaMalloc((void **)&side->arena, arena.size));
    require_cuda(cudaMalloc((void **)&side->source, SEND_SLOTS * SLOT_BYTES));
    require_cuda(cudaMallocHost((void **)&side->staging, SLOT_BYTES));
    arena.base = side->arena;
    enum strait_status status = transport_create(&transport_nccl, &arena, &events, side, options, &side->transport);
    transport_missing(&transport_nccl, why, sizeof(why));
    if (status != STRAIT_OK)
        printf("no transport: %s: %s\n", strait_status_string(status), why);
    require(status == STRAIT_OK || status == STRAIT_ERR_UNSUPPORTED);
    return status == STRAIT_OK;
}

static void side_destroy(struct nccl_side *side)
{
    transport_destroy(side->transport);
    require_cuda(cudaFree(side->arena));
    require_cuda(cudaFree(side->source));
    require_cuda(cudaFreeHost(side->staging));
}

/* Progress, then sleep for at most `timeout` ms, but not when something is due. */
static void side_step(struct nccl_side *side, int timeout)
{
    bool any = false;
    while (transport_progress(side->transport))
        any = true;
    if (any || transport_arm(side->transport) != STRAIT_OK)
        return;
    struct pollfd poller = {.fd = transport_fd(side->transport), .events = POLLIN};
    poll(&poller, 1, timeout);
}

#define SIDE_AWAIT(side, seconds, condition)                    \
    do {                                                        \
        uint64_t await_start_ = now_ms();                       \
        while (!(condition)) {                                  \
            require(now_ms() - await_start_ < (seconds)*1000u); \
            side_step(side, 100);                               \
        }                                                       \
    } while (0)

/* Tells the other side something, which hears it. */
static void side_tell(struct nccl_side *side, const void *bytes, size_t size)
{
    require(write(side->control, bytes, size) == (ssize_t)size);
}

static void side_hear(struct nccl_side *side, void *bytes, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t got = read(side->control, (char *)bytes + done, size - done);
        require(got > 0);
        done += (size_t)got;
    }
}

/* Until the other side is there, too. Works on while it waits: the link may have something to do for the other side. */
static void side_meet(struct nccl_side *side)
{
    char byte = 'm';
    struct pollfd poller = {.fd = side->control, .events = POLLIN};
    side_tell(side, &byte, 1);
    while (poll(&poller, 1, 0) == 0)
        side_step(side, 0);
    side_hear(side, &byte, 1);
}

/* With the other side, which does the same. */
static void side_open(struct nccl_side *side)
{
    uint8_t address[LINK_ADDRESS_MAX];
    enum link_side which = side->number == 0 ? LINK_ACCEPTED : LINK_DIALLED;
    require(link_open(side->transport, -1, which, side, &side->link) == STRAIT_OK);
    uint64_t size = link_address(side->link, address, sizeof(address));
    side_tell(side, &size, sizeof(size));
    side_tell(side, address, size);
    side_hear(side, &size, sizeof(size));
    require(size <= sizeof(address));
    side_hear(side, address, size);
    require(link_connect(side->link, address, size) == STRAIT_OK);
}

static void side_connect(struct nccl_side *side)
{
    side_open(side);
    SIDE_AWAIT(side, 30, side->connected || side->broken);
    if (side->broken)
        printf("side %d: broken: %s\n", side->number, side->why);
    require(!side->broken);
}

static void side_close(struct nccl_side *side)
{
    if (side->link != NULL)
        link_close(side->link);
    SIDE_AWAIT(side, 20, side->closed);
}

static void side_forget(struct nccl_side *side)
{
    side->connected = side->broken = side->closed = side->arriving = side->refused = 0;
    side->arrived = side->arrived_badly = side->sent = side->sent_badly = 0;
}

/* ---- Chunks ------------------------------------------------------------------------------------------------------ */

/* Sends the next chunk when a slot is free. False: none is. */
static bool side_send(struct nccl_side *side, size_t size)
{
    uint8_t header[HEADER_BYTES];
    unsigned slot = free_slot(side->sending, SEND_SLOTS);
    if (slot == SEND_SLOTS || side->link == NULL || side->broken)
        return false;
    uint8_t *from = side->source + slot * SLOT_BYTES + shift_of(side->next, size);
    if (!side->unchecked && size > 0) {
        fill(side->staging, size, side->next);
        require_cuda(cudaMemcpy(from, side->staging, size, cudaMemcpyHostToDevice));
    }
    store_le64(header, side->next++);
    store_le64(header + 8, size);
    enum strait_status status = link_send(side->link, header, sizeof(header), from, size, NULL, slot);
    require(status == STRAIT_OK);
    return side->sending[slot] = true;
}

/* Nothing may come any more: what is written over the arena stays for some time. */
static void side_watch_arena(struct nccl_side *side)
{
    require_cuda(cudaMemset(side->arena, 0xa5, RECEIVE_SLOTS * SLOT_BYTES));
    require_cuda(cudaDeviceSynchronize());
    for (int i = 0; i < 25; i++)
        side_step(side, 20);
    for (unsigned slot = 0; slot < RECEIVE_SLOTS; slot++) {
        require_cuda(cudaMemcpy(side->staging, side->arena + slot * SLOT_BYTES, SLOT_BYTES, cudaMemcpyDeviceToHost));
        require(is_filled(side->staging, SLOT_BYTES, 0xa5));
    }
}

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
