/* Chunks between GPUs of two daemons: by peer access, by NCCL without it, and by UCX with CUDA memory. Every byte in
 * place in every coding, and the end of transfers whose daemon is killed. NCCL has P2P only if GPU_TEST_P2P is set. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/gpu/scenes.h"

/* GPUs of two daemons that store into each other's memory: every byte in place in every coding, and how fast. */

#define reach_TIMES 20

static int compare_times(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return a < b ? -1 : a > b;
}

static uint64_t median(uint64_t *times, int count)
{
    qsort(times, (size_t)count, sizeof(times[0]), compare_times);
    return times[count / 2];
}

/* Of one contiguous buffer, by the copy engine. */
static double copy_rate(size_t size)
{
    uint8_t *from, *to;
    uint64_t times[reach_TIMES];
    require_cuda(cudaSetDevice(last_device()));
    require_cuda(cudaMalloc((void **)&to, size));
    require_cuda(cudaSetDevice(0));
    require_cuda(cudaMalloc((void **)&from, size));
    if (last_device() > 0 && cudaDeviceEnablePeerAccess(last_device(), 0) == cudaErrorPeerAccessAlreadyEnabled)
        (void)cudaGetLastError();
    for (int i = -3; i < reach_TIMES; i++) {
        uint64_t began = now_ns();
        require_cuda(cudaMemcpyPeer(to, last_device(), from, 0, size));
        require_cuda(cudaDeviceSynchronize());
        if (i >= 0)
            times[i] = now_ns() - began;
    }
    require_cuda(cudaFree(to));
    require_cuda(cudaSetDevice(0));
    require_cuda(cudaFree(from));
    return (double)size / (double)median(times, reach_TIMES);
}

static const char *stats_of(struct strait_client *client)
{
    static struct strait_event event;
    event.type = STRAIT_EVENT_POOL;
    require(strait_stats(client) == STRAIT_OK);
    while (event.type != STRAIT_EVENT_STATS)
        require(strait_wait(client, &event, 1, 5000) == 1);
    return (const char *)event.data;
}

/* The number behind the last of these names, each looked for behind the one before. */
static double number_in(const char *text, const char *first, const char *second)
{
    const char *names[] = {first, second};
    char quoted[64];
    for (int i = 0; i < 2 && names[i] != NULL; i++) {
        snprintf(quoted, sizeof(quoted), "\"%s\":", names[i]);
        text = strstr(text, quoted);
        require(text != NULL);
        text += strlen(quoted);
    }
    return strtod(text, NULL);
}

/* What the daemon counts under this name. */
static double counter_of(struct strait_client *client, const char *name)
{
    return number_in(stats_of(client), name, NULL);
}

/* A chunk's microseconds in a stage, on average. */
static double stage_of(struct strait_client *client, const char *stage)
{
    const char *text = strstr(stats_of(client), "\"stages\":");
    require(text != NULL);
    return number_in(text, stage, "sum_us") / number_in(text, stage, "count");
}

static void rate(const char *coding, uint32_t regions, double copied)
{
    struct daemon_process a, b;
    struct pool_shape shape = {.device = 0, .handle = STRAIT_HANDLE_CUDA_IPC, .page_bytes = 32768, .pages = 256};
    shape.regions = regions;
    daemon_start(&a, "a", "shm", coding, NULL);
    daemon_start(&b, "b", "shm", coding, NULL);
    struct strait_client *from = client_open(&a), *to = client_open(&b);
    struct gpu_pool *source = pool_make(from, shape);
    shape.device = last_device();
    struct gpu_pool *sink = pool_make(to, shape);
    uint64_t times[reach_TIMES], bytes = (uint64_t)regions * shape.pages * shape.page_bytes, first;
    pool_fill(source, 1);
    first = move_all(source, sink, 1, true);
    usleep(100000); /* the daemons tell each other of their GPUs */
    double pinned = counter_of(from, "wire_bytes_pinned");
    move_all(source, sink, 2, true);
    double peer = counter_of(from, "wire_bytes_peer");
    for (int i = 0; i < reach_TIMES; i++)
        times[i] = move_all(source, sink, 3 + (uint64_t)i, i == reach_TIMES - 1);
    require(counter_of(from, "wire_bytes_pinned") == pinned);
    double sent = (counter_of(from, "wire_bytes_peer") - peer) / reach_TIMES,
           middle = (double)median(times, reach_TIMES);
    printf("  %4llu MiB %-6s %7.1f GB/s = %.2f x copy, median %8.1f us, best %8.1f, worst %8.1f, first %8.1f; wire "
           "%.3f\n",
           (unsigned long long)bytes >> 20, coding, (double)bytes / middle, (double)bytes / middle / copied,
           middle * 1e-3, (double)times[0] * 1e-3, (double)times[reach_TIMES - 1] * 1e-3, (double)first * 1e-3,
           sent / (double)bytes);
    printf("                  a chunk: queued %.1f us, encoded %.1f, sent %.1f, decoded %.1f\n",
           stage_of(from, "queue"), stage_of(from, "encode"), stage_of(from, "wire"), stage_of(to, "decode"));
    strait_client_close(from);
    strait_client_close(to);
    require_cuda(cudaFree(source->memory));
    require_cuda(cudaFree(sink->memory));
    daemon_stop(&a);
    daemon_stop(&b);
}

void scene_reach(void)
{
    static const char *const codings[] = {"raw", "top16", "tiered", "auto"};
    static const uint32_t regions[] = {1, 8, 32, 128};
    for (int r = 0; r < COUNT(regions); r++) {
        double copied = copy_rate((size_t)regions[r] * 256 * 32768);
        printf("  %4u MiB copy   %7.1f GB/s\n", regions[r] * 8, copied);
        for (int c = 0; c < COUNT(codings); c++)
            rate(codings[c], regions[r], copied);
    }
}

#define CONNECT_SECONDS 40u
#define TIMES           5

static const char *wanted = "nccl", *forced = "--gpu-wires=nccl";

struct pair {
    struct daemon_process daemons[2]; /* the source's and the sink's */
    struct strait_client *clients[2];
    struct gpu_pool *source, *sink;
};

static void pair_open(struct pair *pair, const char *coding, struct pool_shape shape, const char *wires)
{
    static const char *const names[] = {"a", "b"};
    for (int i = 0; i < 2; i++) {
        daemon_start(&pair->daemons[i], names[i], "shm", coding, wires);
        pair->clients[i] = client_open(&pair->daemons[i]);
    }
    pair->source = pool_make(pair->clients[0], on(shape, 0, STRAIT_HANDLE_CUDA_IPC));
    pair->sink = pool_make(pair->clients[1], on(shape, last_device(), STRAIT_HANDLE_CUDA_VMM));
    pool_fill(pair->source, 1);
}

static void pair_close(struct pair *pair)
{
    for (int i = 0; i < 2; i++) {
        strait_client_close(pair->clients[i]);
        daemon_stop(&pair->daemons[i]);
    }
    require_cuda(cudaFree(pair->source->memory));
}

static double sent_by(struct gpu_pool *source, const char *wire)
{
    char name[64];
    snprintf(name, sizeof(name), "\"wire_bytes_%s\":", wire);
    const char *at = strstr(client_stats(source->client), name);
    require(at != NULL);
    return strtod(at + strlen(name), NULL);
}

/* Moves until chunks go by that wire: how long that took, in ms. */
static uint64_t connect_gpus(struct gpu_pool *source, struct gpu_pool *sink)
{
    const double before = sent_by(source, wanted);
    const uint64_t began = now_ns(), end = began + CONNECT_SECONDS * 1000000000u * patience();
    while (sent_by(source, wanted) == before) {
        if (now_ns() > end)
            fprintf(stderr, "not by %s: %s\n", wanted, client_stats(source->client));
        require(now_ns() <= end);
        move_all(source, sink, 1, false);
        usleep(20000);
    }
    return (now_ns() - began) / 1000000;
}

/* Processor time of a process so far, in ms. */
static uint64_t busy_ms(pid_t pid)
{
    char path[64];
    unsigned long user, system;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    require(file != NULL);
    require(fscanf(file, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) == 2);
    fclose(file);
    return (user + system) * 1000 / (unsigned long)sysconf(_SC_CLK_TCK);
}

/* With links that are up and carry nothing. */
static void look_idle(const struct pair *pair)
{
    usleep(100000);
    uint64_t before = busy_ms(pair->daemons[0].pid) + busy_ms(pair->daemons[1].pid);
    usleep(400000);
    uint64_t spent = busy_ms(pair->daemons[0].pid) + busy_ms(pair->daemons[1].pid) - before;
    printf("  idle for 400 ms: %llu ms of processors\n", (unsigned long long)spent);
    require(spent < 200 || getenv("GPU_TEST_UNDER") != NULL);
}

static void move_by_link(const char *coding)
{
    struct pair pair;
    uint64_t best = UINT64_MAX, bytes;
    pair_open(&pair, coding, medium, forced);
    uint64_t connected = connect_gpus(pair.source, pair.sink);
    double others = sent_by(pair.source, "pinned") + sent_by(pair.source, "peer"), sent = sent_by(pair.source, wanted);
    for (uint64_t i = 0; i < TIMES; i++) {
        pool_fill(pair.source, 10 + i);
        uint64_t taken = move_all(pair.source, pair.sink, i, true);
        best = taken < best ? taken : best;
    }
    require(sent_by(pair.source, "pinned") + sent_by(pair.source, "peer") == others);
    sent = (sent_by(pair.source, wanted) - sent) / TIMES;
    bytes = (uint64_t)medium.regions * medium.pages * medium.page_bytes;
    printf("  %-6s connected in %llu ms; %llu MiB in %.2f ms at best, %.1f GB/s, wire %.3f; and back\n", coding,
           (unsigned long long)connected, (unsigned long long)bytes >> 20, (double)best * 1e-6,
           (double)bytes / (double)best, sent / (double)bytes);
    pool_fill(pair.sink, 99);
    connect_gpus(pair.sink, pair.source);
    move_all(pair.sink, pair.source, 7, true);
    look_idle(&pair);
    pair_close(&pair);
}

static void begin(void)
{
    if (getenv("GPU_TEST_P2P") == NULL)
        setenv("NCCL_P2P_DISABLE", "1", 1);
    setenv("STRAITD_NCCL_OPTIONS", "tls=tcp timeout_ms=8000", 0);
}

void scene_nccl(void)
{
    static const char *const codings[] = {"raw", "top16", "tiered", "auto"};
    begin();
    for (int c = 0; c < COUNT(codings); c++)
        move_by_link(codings[c]);
}

/* Has this machine a UCX that knows CUDA's memory? Not to have it is no failure, unless GPU_TEST_UCX_CUDA is set. */
static bool begin_ucx(void)
{
    struct daemon_process daemon;
    wanted = "ucx_cuda";
    forced = "--gpu-wires=ucx";
    setenv("GPU_TEST_OPTIONS", "--ucx-options=tls=tcp,cuda_copy,cuda_ipc", 0); /* the last one counts */
    daemon_start(&daemon, "a", "shm", "raw", forced);
    struct strait_client *client = client_open(&daemon);
    struct gpu_pool *pool = pool_make(client, on(small, 0, STRAIT_HANDLE_CUDA_IPC));
    const char *state = NULL;
    for (uint64_t end = now_ns() + 20000000000u; now_ns() < end; usleep(20000)) {
        state = strstr(client_stats(client), "\"ucx\":\"");
        if (state != NULL && strncmp(state, "\"ucx\":\"being loaded", 19) != 0)
            break;
    }
    require(state != NULL);
    const bool is_there = strncmp(state, "\"ucx\":\"ready", 12) == 0;
    printf("  %.*s\n", (int)strcspn(state, "}"), state);
    strait_client_close(client);
    require_cuda(cudaFree(pool->memory));
    daemon_stop(&daemon);
    require(is_there || getenv("GPU_TEST_UCX_CUDA") == NULL);
    return is_there;
}

void scene_ucx_link(void)
{
    static const char *const codings[] = {"raw", "top16", "tiered", "auto"};
    for (int c = 0; c < COUNT(codings) && (c > 0 || begin_ucx()); c++)
        move_by_link(codings[c]);
}

/* What the daemon says of the wire to the peer's GPU. */
static void print_ways(struct gpu_pool *source)
{
    const char *ways = strstr(client_stats(source->client), "\"gpu_ways\":");
    require(ways != NULL);
    printf("  %.*s\n", (int)strcspn(ways, "]") + 1, ways);
}

/* Both wires are measured; from then on one of them has it all. */
void scene_nccl_auto(void)
{
    static const char *const codings[] = {"raw", "tiered"};
    begin();
    for (int c = 0; c < COUNT(codings); c++) {
        struct pair pair;
        pair_open(&pair, codings[c], medium, "--gpu-wires=auto");
        connect_gpus(pair.source, pair.sink);
        for (uint64_t i = 0; i < 30; i++)
            move_all(pair.source, pair.sink, i, false);
        double nccl = sent_by(pair.source, "nccl"), pinned = sent_by(pair.source, "pinned");
        move_all(pair.source, pair.sink, 31, true);
        require((sent_by(pair.source, "nccl") == nccl) != (sent_by(pair.source, "pinned") == pinned));
        print_ways(pair.source);
        pair_close(&pair);
    }
}

/* ---- Much at once ------------------------------------------------------------------------------------------------ */

#define ROUNDS 60

/* A process of its own, which registers and removes pools with both daemons: what the driver does then can wait for
 * kernels that wait for the other daemon's. */
static pid_t start_registering(const struct daemon_process daemons[2])
{
    pid_t parent = getpid(), pid = fork();
    require(pid >= 0);
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (uint64_t i = 0; getppid() == parent; i++) {
        int device = i % 2 == 0 ? 0 : last_device();
        struct strait_client *client = client_open(&daemons[i % 2]);
        struct gpu_pool *pool = pool_make(client, on(small, device, STRAIT_HANDLE_CUDA_IPC));
        strait_client_close(client);
        require_cuda(cudaFree(pool->memory));
    }
    _exit(0);
}

struct way {
    struct flow offer, expect;
    struct gpu_pool *source, *sink;
    struct strait_peer *peer;
};

static void begin_way(struct way *way, int round)
{
    char key[32];
    snprintf(key, sizeof(key), "%p %d", (void *)way, round);
    flow_offer(&way->offer, way->source, key, NULL, large.pages, false);
    flow_expect(&way->expect, way->sink, key, NULL, large.pages);
    require(strait_start(way->expect.transfer, way->peer, NULL) == STRAIT_OK);
}

static void end_way(struct way *way)
{
    require(way->offer.state == STRAIT_DONE && way->expect.state == STRAIT_DONE);
    strait_release(way->offer.transfer);
    strait_release(way->expect.transfer);
}

/* Both directions at once. */
static void busy(void)
{
    struct pair pair = {0};
    struct way ways[2];
    uint64_t longest = 0;
    for (int i = 0; i < 2; i++)
        daemon_start(&pair.daemons[i], i == 0 ? "a" : "b", "shm", "tiered", forced);
    pid_t child = start_registering(pair.daemons); /* before CUDA is begun here */
    for (int i = 0; i < 2; i++)
        pair.clients[i] = client_open(&pair.daemons[i]);
    for (int i = 0; i < 2; i++) {
        int to = i == 0 ? last_device() : 0, from = i == 0 ? 0 : last_device();
        ways[i].source = pool_make(pair.clients[i], on(large, from, STRAIT_HANDLE_CUDA_IPC));
        ways[i].sink = pool_make(pair.clients[!i], on(large, to, STRAIT_HANDLE_CUDA_IPC));
        ways[i].peer = pool_peer(ways[i].source, pair.clients[!i]);
        pool_fill(ways[i].source, (uint64_t)i);
        connect_gpus(ways[i].source, ways[i].sink);
    }
    double pinned = sent_by(ways[0].source, "pinned") + sent_by(ways[1].source, "pinned");
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t began = now_ns();
        for (int i = 0; i < 2; i++)
            begin_way(&ways[i], round);
        WAIT(pair.clients, 2,
             ways[0].expect.decided && ways[0].offer.decided && ways[1].expect.decided && ways[1].offer.decided, 15000);
        for (int i = 0; i < 2; i++)
            end_way(&ways[i]);
        longest = now_ns() - began > longest ? now_ns() - began : longest;
    }
    kill(child, SIGKILL);
    require(waitpid(child, NULL, 0) == child);
    printf("  %d rounds of both directions, the longest %.1f ms; by way of the host %.0f bytes\n", ROUNDS,
           (double)longest * 1e-6, sent_by(ways[0].source, "pinned") + sent_by(ways[1].source, "pinned") - pinned);
    require(sent_by(ways[0].source, "pinned") + sent_by(ways[1].source, "pinned") == pinned);
    for (int i = 0; i < 2; i++)
        move_all(ways[i].source, ways[i].sink, 5, true);
    for (int i = 0; i < 2; i++) {
        strait_client_close(pair.clients[i]);
        daemon_stop(&pair.daemons[i]);
    }
}

void scene_nccl_busy(void)
{
    begin();
    busy();
}

void scene_ucx_link_busy(void)
{
    if (begin_ucx())
        busy();
}

/* ---- Daemons that die -------------------------------------------------------------------------------------------- */

static void kill_one(struct pair *pair, int victim, unsigned pause_us)
{
    struct strait_peer *peer = pool_peer(pair->source, pair->clients[1]);
    struct flow offer, expect;
    flow_offer(&offer, pair->source, "doomed", NULL, large.pages, false);
    flow_expect(&expect, pair->sink, "doomed", NULL, large.pages);
    require(strait_start(expect.transfer, peer, NULL) == STRAIT_OK);
    WAIT(pair->clients, 2, expect.moved || expect.decided, 5000);
    usleep(pause_us);
    daemon_kill(&pair->daemons[victim]);
    WAIT(pair->clients, 2, offer.decided && expect.decided && offer.drained && expect.drained, 12000);
    printf("  killed %s after %u us: sink %s (%s), source %s (%s)\n", victim == 0 ? "source's" : "sink's", pause_us,
           strait_state_string(expect.state), strait_reason_string(expect.reason), strait_state_string(offer.state),
           strait_reason_string(offer.reason));
    pool_check(pair->source);
    strait_release(offer.transfer);
    strait_release(expect.transfer);
    strait_peer_remove(peer);
}

/* The other daemon's GPU is through with the one that died: it connects with the next one, and gives all slots back. */
static void recover(struct pair *pair, int victim)
{
    pair->source->told = pair->sink->told = false;
    daemon_restart(&pair->daemons[victim]);
    WAIT(pair->clients, 2, victim == 0 ? pair->source->told : pair->sink->told, 15000);
    require(pair->source->status == STRAIT_OK && pair->sink->status == STRAIT_OK);
    uint64_t connected = connect_gpus(pair->source, pair->sink);
    move_all(pair->source, pair->sink, 10, true);
    require(strstr(client_stats(pair->clients[1]), "\"slots_quarantined\":0") != NULL);
    printf("  connected again in %llu ms\n", (unsigned long long)connected);
}

static void dies(void)
{
    struct pair pair;
    pair_open(&pair, "raw", large, forced);
    connect_gpus(pair.source, pair.sink);
    for (int victim = 0; victim < 2; victim++) {
        kill_one(&pair, victim, 1000u * (unsigned)victim);
        recover(&pair, victim);
    }
    pair_close(&pair);
}

void scene_nccl_dies(void)
{
    begin();
    dies();
}

void scene_ucx_link_dies(void)
{
    if (begin_ucx())
        dies();
}
