/* Chunks between GPUs of two daemons: by peer access, by NCCL without it, and by UCX with CUDA memory. Every byte in
 * place in every coding, and the end of transfers whose daemon is killed. NCCL has P2P only if GPU_TEST_P2P is set. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/gpu/world.h"

/* GPUs of two daemons that store into each other's memory: every byte in place in every coding, and how fast. */

#define RATE_TIMES 20

static const char *const codings[] = {"raw", "top16", "tiered", "auto"};

/* Of one contiguous buffer, by the copy engine. */
static double copy_rate(size_t size)
{
    uint8_t *from, *to;
    uint64_t times[RATE_TIMES];
    require_cuda(cudaSetDevice(last_device()));
    require_cuda(cudaMalloc((void **)&to, size));
    require_cuda(cudaSetDevice(0));
    require_cuda(cudaMalloc((void **)&from, size));
    if (last_device() > 0 && cudaDeviceEnablePeerAccess(last_device(), 0) == cudaErrorPeerAccessAlreadyEnabled)
        (void)cudaGetLastError();
    for (int i = -3; i < RATE_TIMES; i++) {
        uint64_t began = now_ns();
        require_cuda(cudaMemcpyPeer(to, last_device(), from, 0, size));
        require_cuda(cudaDeviceSynchronize());
        if (i >= 0)
            times[i] = now_ns() - began;
    }
    require_cuda(cudaFree(to));
    require_cuda(cudaSetDevice(0));
    require_cuda(cudaFree(from));
    return (double)size / (double)median(times, RATE_TIMES);
}

/* A chunk's microseconds in a stage, on average. */
static double stage_of(struct strait_client *client, const char *stage)
{
    const char *text = strstr(client_stats(client), "\"stages\":");
    require(text != NULL);
    return json_number(text, stage, "sum_us") / json_number(text, stage, "count");
}

static double sent_by(const struct gpu_pool *source, const char *wire)
{
    char name[64];
    snprintf(name, sizeof(name), "wire_bytes_%s", wire);
    return json_number(client_stats(source->client), NULL, name);
}

static void rate(const char *coding, uint32_t regions, double copied)
{
    const struct pool_shape shape = {.regions = regions, .pages = 256, .page_bytes = 32768};
    struct pair pair;
    pair_start(&pair, "shm", coding, NULL);
    pair_connect(&pair);
    pair_pools(&pair, shape, STRAIT_HANDLE_CUDA_IPC);
    struct gpu_pool *source = pair.source, *sink = pair.sink;
    uint64_t times[RATE_TIMES], bytes = (uint64_t)regions * shape.pages * shape.page_bytes, first;
    first = move_all(source, sink, 1, true);
    usleep(100000); /* the daemons tell each other of their GPUs */
    double pinned = sent_by(source, "pinned");
    move_all(source, sink, 2, true);
    double peer = sent_by(source, "peer");
    for (int i = 0; i < RATE_TIMES; i++)
        times[i] = move_all(source, sink, 3 + (uint64_t)i, i == RATE_TIMES - 1);
    require(sent_by(source, "pinned") == pinned);
    double sent = (sent_by(source, "peer") - peer) / RATE_TIMES, middle = (double)median(times, RATE_TIMES);
    printf("  %4llu MiB %-6s %7.1f GB/s = %.2f x copy, median %8.1f us, best %8.1f, worst %8.1f, first %8.1f; wire "
           "%.3f\n",
           (unsigned long long)bytes >> 20, coding, (double)bytes / middle, (double)bytes / middle / copied,
           middle * 1e-3, (double)times[0] * 1e-3, (double)times[RATE_TIMES - 1] * 1e-3, (double)first * 1e-3,
           sent / (double)bytes);
    printf("                  a chunk: queued %.1f us, encoded %.1f, sent %.1f, decoded %.1f\n",
           stage_of(source->client, "queue"), stage_of(source->client, "encode"), stage_of(source->client, "wire"),
           stage_of(sink->client, "decode"));
    pair_close(&pair);
}

void scene_reach(void)
{
    static const uint32_t regions[] = {1, 8, 32, 128};
    for (int r = 0; r < COUNT(regions); r++) {
        double copied = copy_rate((size_t)regions[r] * 256 * 32768);
        printf("  %4u MiB copy   %7.1f GB/s\n", regions[r] * 8, copied);
        for (int c = 0; c < COUNT(codings); c++)
            rate(codings[c], regions[r], copied);
    }
}

/* ---- Links between GPUs ------------------------------------------------------------------------------------------ */

#define CONNECT_SECONDS 40u
#define TIMES           5

static const char *wanted = "nccl", *forced = "--gpu-wires=nccl";

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

static void open_pair(struct pair *pair, const char *coding, struct pool_shape shape, const char *wires)
{
    pair_start(pair, "shm", coding, wires);
    pair_connect(pair);
    pair_pools(pair, shape, STRAIT_HANDLE_CUDA_VMM);
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
    open_pair(&pair, coding, medium, forced);
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
    begin();
    for (int c = 0; c < COUNT(codings); c++)
        move_by_link(codings[c]);
}

/* Has this machine a UCX that knows CUDA's memory? Not to have it is no failure, unless GPU_TEST_UCX_CUDA is set. */
static bool begin_ucx(void)
{
    struct pair pair;
    wanted = "ucx_cuda";
    forced = "--gpu-wires=ucx";
    setenv("GPU_TEST_OPTIONS", "--ucx-options=tls=tcp,cuda_copy,cuda_ipc", 0); /* the last one counts */
    open_pair(&pair, "raw", small, forced);
    move_all(pair.source, pair.sink, 1, false); /* it is made for the first peer */
    const char *state = NULL;
    bool is_known = false;
    for (uint64_t end = now_ns() + 20000000000u; !is_known && now_ns() < end; usleep(20000)) {
        state = strstr(client_stats(pair.source->client), "\"ucx\":\"");
        is_known =
            state != NULL && strncmp(state + 7, "being loaded", 12) != 0 && strncmp(state + 7, "made for", 8) != 0;
    }
    require(is_known);
    const bool is_there = strncmp(state + 7, "ready", 5) == 0;
    printf("  %.*s\n", (int)strcspn(state, "}"), state);
    pair_close(&pair);
    require(is_there || getenv("GPU_TEST_UCX_CUDA") == NULL);
    return is_there;
}

void scene_ucx_link(void)
{
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
    begin();
    for (int c = 0; c < COUNT(codings); c += 2) { /* raw, tiered */
        struct pair pair;
        open_pair(&pair, codings[c], medium, "--gpu-wires=auto");
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
        pool_free(pool);
    }
    _exit(0);
}

/* Both directions at once. */
static void busy(void)
{
    struct pair pair;
    struct request ways[2] = {{.source = NULL}};
    uint64_t longest = 0;
    pair_start(&pair, "shm", "tiered", forced);
    pid_t child = start_registering(pair.daemons); /* before CUDA is begun here */
    pair_connect(&pair);
    for (int i = 0; i < 2; i++) {
        int from = i == 0 ? 0 : last_device(), to = i == 0 ? last_device() : 0;
        ways[i].source = pool_make(pair.clients[i], on(large, from, STRAIT_HANDLE_CUDA_IPC));
        ways[i].sink = pool_make(pair.clients[!i], on(large, to, STRAIT_HANDLE_CUDA_IPC));
        pool_fill(ways[i].source, (uint64_t)i);
        connect_gpus(ways[i].source, ways[i].sink);
    }
    double pinned = sent_by(ways[0].source, "pinned") + sent_by(ways[1].source, "pinned");
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t began = now_ns();
        for (int i = 0; i < 2; i++) {
            char key[32];
            snprintf(key, sizeof(key), "way %d, round %d", i, round);
            request_begin(&ways[i], key);
        }
        WAIT(pair.clients, 2, request_over(&ways[0]) && request_over(&ways[1]), 15000);
        for (int i = 0; i < 2; i++) {
            require(ways[i].offer.state == STRAIT_DONE && ways[i].expect.state == STRAIT_DONE);
            request_end(&ways[i]);
        }
        longest = now_ns() - began > longest ? now_ns() - began : longest;
    }
    kill(child, SIGKILL);
    int status = process_reap(child);
    require(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL); /* until then it went on */
    pinned = sent_by(ways[0].source, "pinned") + sent_by(ways[1].source, "pinned") - pinned;
    printf("  %d rounds of both directions, the longest %.1f ms; by way of the host %.0f bytes\n", ROUNDS,
           (double)longest * 1e-6, pinned);
    require(pinned == 0);
    for (int i = 0; i < 2; i++)
        move_all(ways[i].source, ways[i].sink, 5, true);
    pair_close(&pair);
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

/* The other daemon's GPU is through with the one that died: it connects with the next one, and gives all slots back. */
static void recover(struct pair *pair, int victim)
{
    pair_restart(pair, victim);
    uint64_t connected = connect_gpus(pair->source, pair->sink);
    move_all(pair->source, pair->sink, 10, true);
    require(json_number(client_stats(pair->clients[1]), NULL, "slots_quarantined") == 0);
    printf("  connected again in %llu ms\n", (unsigned long long)connected);
}

static void dies(void)
{
    struct pair pair;
    open_pair(&pair, "raw", large, forced);
    connect_gpus(pair.source, pair.sink);
    for (int victim = 0; victim < 2; victim++) {
        pair_kill(&pair, victim, 1000u * (unsigned)victim, 12000);
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
