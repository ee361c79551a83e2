/* Transfers between pools in memory of real GPUs, through daemons of their own. Each scene runs in a process of its
 * own:
 *
 *   gpu_pools STRAITD              all scenes
 *   gpu_pools STRAITD SCENE ...    some of them
 *   gpu_pools STRAITD --run SCENE  this one, here */
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "internal/element.h"
#include "tests/gpu/world.h"

static const char *const codings[] = {"raw", "top16", "tiered"};

/* ---- Moving ------------------------------------------------------------------------------------------------------ */

/* Two daemons; device to device, to the host and from there, however the memory is named. */
static void move_as(const char *transport, const char *coding, struct pool_shape shape)
{
    struct pair pair;
    pair_start(&pair, transport, coding, NULL);
    pair_connect(&pair);
    pair_pools(&pair, shape, STRAIT_HANDLE_CUDA_VMM);
    struct gpu_pool *ipc = pair.source, *vmm = pair.sink;
    struct gpu_pool *host = pool_make(pair.clients[1], on(shape, -1, STRAIT_HANDLE_MEMFD));
    for (uint64_t i = 0; i < 3; i++) {
        pool_fill(ipc, 10 * i + 1);
        move_all(ipc, vmm, i, true);
        pool_fill(vmm, 10 * i + 2);
        move_all(vmm, ipc, i, true);
        move_all(ipc, host, i, true);
        pool_fill(host, 10 * i + 3);
        move_all(host, ipc, i, true);
    }
    pair_close(&pair);
    printf("  %s %s: every byte as it should be\n", transport, coding);
}

static void move_over(const char *transport)
{
    for (int c = 0; c < COUNT(codings); c++)
        move_as(transport, codings[c], small);
}

/* Values of each type, with the codebook's tables and without. */
static void scene_types(void)
{
    static const enum strait_element elements[] = {STRAIT_ELEMENT_BF16, STRAIT_ELEMENT_FP16, STRAIT_ELEMENT_FP32,
                                                   STRAIT_ELEMENT_FP8_E4M3};
    static const char *const typed[] = {"split", "base", "auto"};
    for (int e = 0; e < COUNT(elements); e++)
        for (int c = 0; c < COUNT(typed); c++) {
            struct pool_shape shape = small;
            shape.element = elements[e];
            printf("  %s:", element_name(elements[e]));
            move_as("shm", typed[c], shape);
        }
}

static void scene_shm(void)
{
    move_over("shm");
}

static void scene_ucx(void)
{
    move_over("ucx");
}

static void scene_local(void)
{
    struct daemon_process a;
    daemon_start(&a, "a", "shm", "auto", NULL);
    struct strait_client *one = client_open(&a), *two = client_open(&a);
    struct gpu_pool *const pools[] = {pool_make(one, on(small, 0, STRAIT_HANDLE_CUDA_IPC)),
                                      pool_make(two, on(small, 0, STRAIT_HANDLE_CUDA_VMM)),
                                      pool_make(two, on(small, last_device(), STRAIT_HANDLE_CUDA_IPC)),
                                      pool_make(one, on(small, last_device(), STRAIT_HANDLE_CUDA_VMM)),
                                      pool_make(two, on(small, -1, STRAIT_HANDLE_MEMFD))};
    move_among(pools, COUNT(pools));
    daemon_stop(&a);
}

/* No page can be read before the pool serves it, nor behind a fence. */
static void read_refused(struct gpu_pool *source, struct gpu_pool *sink)
{
    struct strait_client *clients[] = {source->client, sink->client};
    struct strait_peer *peer = pool_peer(source, sink->client);
    const uint32_t id = 0;
    struct flow flow;
    flow_read(&flow, sink, peer, &id, &id, 1);
    WAIT(clients, 2, flow.decided && flow.drained, 5000);
    require(flow.state == STRAIT_FAILED && flow.reason == STRAIT_REASON_NOT_SERVED);
    strait_release(flow.transfer);
    strait_peer_remove(peer);
}

static void fence(struct gpu_pool *source)
{
    bool fenced = false;
    struct strait_fence_params params = {.size = sizeof(params), .grace_ms = 1000, .context = &fenced};
    require(strait_pool_fence(source->pool, &params) == STRAIT_OK);
    WAIT(&source->client, 1, fenced, 5000);
}

static void read_between(struct gpu_pool *const *pools, int count)
{
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++) {
            if (i == j)
                continue;
            pool_fill(pools[i], (uint64_t)(i * 10 + j));
            read_refused(pools[i], pools[j]);
            read_all(pools[i], pools[j], (uint64_t)j, true);
            fence(pools[i]);
            read_refused(pools[i], pools[j]);
        }
}

/* Pools of two GPUs (of one, where there is no other) and of the host, of two daemons and of one. */
static void scene_read(void)
{
    static const char *const transports[] = {"shm", "ucx", "tcp"};
    for (int t = 0; t < COUNT(transports); t++)
        for (int c = 0; c < COUNT(codings); c += 2) {
            struct pair pair;
            pair_start(&pair, transports[t], codings[c], NULL);
            pair_connect(&pair);
            pair_pools(&pair, small, STRAIT_HANDLE_CUDA_VMM);
            struct gpu_pool *const pools[] = {
                pair.source, pair.sink, pool_make(pair.clients[1], on(small, -1, STRAIT_HANDLE_MEMFD)),
                pool_make(pair.clients[0], on(small, last_device(), STRAIT_HANDLE_CUDA_IPC))};
            read_between(pools, COUNT(pools));
            pair_close(&pair);
            printf("  %s %s: every byte as it should be\n", transports[t], codings[c]);
        }
}

/* From daemon to daemon, under one, to the host and from there. */
static void move_shapes(const char *coding, const struct pool_shape *shapes, int count, enum strait_handle handle)
{
    struct pair pair;
    pair_start(&pair, "shm", coding, NULL);
    pair_connect(&pair);
    for (int i = 0; i < count; i++) {
        pair_pools(&pair, shapes[i], handle);
        struct gpu_pool *near = pool_make(pair.clients[0], on(shapes[i], last_device(), STRAIT_HANDLE_CUDA_IPC));
        struct gpu_pool *host = pool_make(pair.clients[0], on(shapes[i], -1, STRAIT_HANDLE_MEMFD));
        move_all(pair.source, pair.sink, 1, true);
        move_all(pair.source, near, 2, true);
        move_all(near, host, 3, true);
        move_all(host, pair.source, 4, true);
        move_all(pair.sink, pair.source, 5, true);
    }
    pair_close(&pair);
}

static void scene_shapes(void)
{
    static const struct pool_shape shapes[] = {
        {.regions = 2, .pages = 64, .page_bytes = 4096, .gap = 16},
        {.regions = 2, .pages = 33, .page_bytes = 40 * 26, .rows = 26, .row_gap = 8, .gap = 8},
        {.regions = 3, .pages = 17, .page_bytes = 98 * 8, .rows = 8, .row_gap = 6, .gap = 2},
        {.regions = 2, .pages = 5, .page_bytes = 1 << 20, .gap = 4096},
        {.regions = 70, .pages = 700, .page_bytes = 512},
    };
    move_shapes("tiered", shapes, COUNT(shapes), STRAIT_HANDLE_CUDA_IPC);
}

/* Little of everything: what a tool can follow that slows a daemon down a hundred times. */
static void scene_few(void)
{
    static const struct pool_shape shapes[] = {
        {.regions = 4, .pages = 12, .page_bytes = 32768, .gap = 64},
        {.regions = 2, .pages = 9, .page_bytes = 98 * 8, .rows = 8, .row_gap = 6, .gap = 2},
        {.regions = 2, .pages = 7, .page_bytes = 20480, .gap = 64, .element = STRAIT_ELEMENT_FP16},
        {.regions = 2, .pages = 7, .page_bytes = 20480, .gap = 64, .element = STRAIT_ELEMENT_FP32},
    };
    move_shapes("top16", shapes, 2, STRAIT_HANDLE_CUDA_VMM);
    move_shapes("tiered", shapes, COUNT(shapes), STRAIT_HANDLE_CUDA_VMM);
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

static void sleep_a_while(void *arg)
{
    (void)arg;
    usleep(60000);
}

struct late {
    struct strait_client *clients[2];
    struct gpu_pool *source, *sink;
    cudaStream_t stream;
    cudaEvent_t event;
    cudaIpcEventHandle_t handle; /* what another process knows the event by */
    bool embedded;
};

static void late_begin(struct late *late)
{
    require_cuda(cudaSetDevice(0));
    require_cuda(cudaStreamCreateWithFlags(&late->stream, cudaStreamNonBlocking));
    require_cuda(cudaEventCreateWithFlags(
        &late->event, late->embedded ? cudaEventDisableTiming : cudaEventDisableTiming | cudaEventInterprocess));
    if (!late->embedded)
        require_cuda(cudaIpcGetEventHandle(&late->handle, late->event));
}

/* Bytes come to the device late; the event is behind them on the stream. */
static void write_late(const struct late *late, uint64_t seed)
{
    struct gpu_pool *source = late->source;
    pool_fill(source, seed);
    require_cuda(cudaSetDevice(0));
    require_cuda(cudaMemset(source->memory, CANARY, source->size));
    require_cuda(cudaDeviceSynchronize());
    require_cuda(cudaLaunchHostFunc(late->stream, sleep_a_while, NULL));
    require_cuda(cudaMemcpyAsync(source->memory, source->image, source->size, cudaMemcpyHostToDevice, late->stream));
    require_cuda(cudaEventRecord(late->event, late->stream));
}

static void imagine_same(const struct gpu_pool *source, struct gpu_pool *sink)
{
    for (uint32_t r = 0; r < source->shape.regions; r++)
        for (uint32_t p = 0; p < source->shape.pages; p++)
            memcpy(pool_page(sink, sink->image, r, p), pool_page(source, source->image, r, p),
                   source->shape.page_bytes);
}

static void move_late(struct late *late, uint64_t turn)
{
    char key[16];
    struct request r = {.source = late->source, .sink = late->sink, .later = true};
    snprintf(key, sizeof(key), "late%u", (unsigned)turn);
    write_late(late, 100 + turn);
    request_begin(&r, key);
    struct strait_append_params append = {
        .size = sizeof(append), .ready = late->embedded ? (void *)late->event : &late->handle, .last = true};
    require(strait_append(r.offer.transfer, &append) == STRAIT_OK);
    WAIT(late->clients, 2, r.expect.decided && r.offer.decided, 10000);
    require(r.expect.state == STRAIT_DONE && r.offer.state == STRAIT_DONE);
    imagine_same(late->source, late->sink);
    pool_check(late->sink);
    request_end(&r);
}

static void scene_ready(void)
{
    struct pair pair;
    pair_start(&pair, "shm", "tiered", NULL);
    pair_connect(&pair);
    pair_pools(&pair, small, STRAIT_HANDLE_CUDA_IPC);
    struct late late = {.clients = {pair.clients[0], pair.clients[1]}, .source = pair.source, .sink = pair.sink};
    late_begin(&late);
    for (uint64_t i = 0; i < 4; i++)
        move_late(&late, i);
    pair_close(&pair);
}

/* ---- Embedded ---------------------------------------------------------------------------------------------------- */

/* Plain pointers, to memory of either kind, on every device and on the host, under one daemon. */
static void move_inside(struct strait_client *client)
{
    struct pool_shape mapped = on(small, last_device(), STRAIT_HANDLE_POINTER);
    mapped.exportable = true;
    struct gpu_pool *const pools[] = {pool_make(client, on(small, 0, STRAIT_HANDLE_POINTER)), pool_make(client, mapped),
                                      pool_make(client, on(small, last_device(), STRAIT_HANDLE_POINTER)),
                                      pool_make(client, on(small, -1, STRAIT_HANDLE_MEMFD))};
    move_among(pools, COUNT(pools));
    printf("  inside of one daemon: every byte as it should be\n");
}

/* From one daemon to another, both in this process or one of them apart, and with events. */
static void move_between(struct strait_client *source_client, struct strait_client *sink_client,
                         enum strait_handle sink_handle, const char *what)
{
    struct late late = {.clients = {source_client, sink_client}, .embedded = true};
    late.source = pool_make(source_client, on(small, 0, STRAIT_HANDLE_POINTER));
    late.sink = pool_make(sink_client, on(small, last_device(), sink_handle));
    for (uint64_t i = 0; i < 3; i++) {
        pool_fill(late.source, i);
        move_all(late.source, late.sink, i, true);
        move_all(late.sink, late.source, i, true);
    }
    late_begin(&late);
    for (uint64_t i = 0; i < 3; i++)
        move_late(&late, i);
    printf("  %s: every byte as it should be, also with events\n", what);
}

/* Whether a process may open its own handles is for the driver to say: either is told, or it works. */
static void move_own_handle(struct strait_client *client)
{
    struct gpu_pool *own = pool_try(client, on(small, 0, STRAIT_HANDLE_CUDA_IPC), 0, 0);
    printf("  its own IPC handle: %s %s\n", strait_status_string(own->status), own->text);
    require(own->status == STRAIT_OK || own->status == STRAIT_ERR_INVALID);
    if (own->status != STRAIT_OK)
        return;
    pool_fill(own, 1);
    move_all(own, pool_make(client, on(small, 0, STRAIT_HANDLE_POINTER)), 1, true);
}

static void scene_embedded(void)
{
    struct daemon_process a;
    struct strait_client *one = client_embedded("tiered"), *two = client_embedded("tiered");
    daemon_start(&a, "a", "shm", "tiered", NULL);
    struct strait_client *apart = client_open(&a);
    move_inside(one);
    move_between(one, two, STRAIT_HANDLE_POINTER, "between two in one process");
    move_between(one, one, STRAIT_HANDLE_POINTER, "under one");
    move_between(one, apart, STRAIT_HANDLE_CUDA_IPC, "to one of another process");
    move_own_handle(one);
    refused(one, on(small, 0, STRAIT_HANDLE_POINTER), 64u << 20, 0, STRAIT_ERR_INVALID);
    refused(one, on(small, 0, STRAIT_HANDLE_POINTER), 0, 50, STRAIT_ERR_UNSUPPORTED);
    if (last_device() > 0)
        refused(one, on(small, 1, STRAIT_HANDLE_POINTER), 0, -1, STRAIT_ERR_INVALID);
    strait_client_close(one); /* its thread ends, and lets go of the GPU in our midst */
    strait_client_close(two);
    strait_client_close(apart);
    daemon_stop(&a);
    require_cuda(cudaSetDevice(0));
    require_cuda(cudaDeviceSynchronize());
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static void scene_refusals(void)
{
    struct daemon_process a;
    daemon_start(&a, "a", "shm", "auto", NULL);
    struct strait_client *client = client_open(&a);
    struct pool_shape shape = on(small, 0, STRAIT_HANDLE_CUDA_IPC);
    refused(client, shape, 64u << 20, 0, STRAIT_ERR_INVALID);
    refused(client, shape, 0, 50, STRAIT_ERR_UNSUPPORTED);
    if (last_device() > 0) {
        refused(client, on(small, 1, STRAIT_HANDLE_CUDA_VMM), 0, -1, STRAIT_ERR_INVALID);
        refused(client, on(small, 0, STRAIT_HANDLE_CUDA_VMM), 0, 1, STRAIT_ERR_INVALID);
    }
    refused(client, on(small, 0, STRAIT_HANDLE_CUDA_VMM), 64u << 20, 0, STRAIT_ERR_INVALID);
    (void)pool_make(client, shape);
    daemon_stop(&a);
}

/* ---- Deaths ------------------------------------------------------------------------------------------------------ */

/* A client in a process of its own, which moves its pages to a pool of this daemon until it is killed. */
static pid_t start_client(struct pair *pair, int ready)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    pair_connect(pair);
    pair_pools(pair, large, STRAIT_HANDLE_CUDA_VMM);
    for (uint64_t i = 0;; i++) {
        move_all(pair->source, pair->sink, i, false);
        if (write(ready, "", 1) != 1)
            _exit(1);
    }
}

/* Nothing of CUDA may have been begun here before the first child. */
static void scene_client_dies(void)
{
    struct pair pair;
    pair_start(&pair, "shm", "tiered", NULL);
    for (int i = 0; i < 4; i++) {
        int ready[2];
        char byte;
        require(pipe(ready) == 0);
        pid_t pid = start_client(&pair, ready[1]);
        for (int k = 0; k < 3; k++)
            require(read(ready[0], &byte, 1) == 1);
        usleep(500u * (unsigned)i);
        kill(pid, SIGKILL);
        require(waitpid(pid, NULL, 0) == pid);
        close(ready[0]);
        close(ready[1]);
    }
    pair_connect(&pair);
    pair_pools(&pair, small, STRAIT_HANDLE_CUDA_VMM);
    move_all(pair.source, pair.sink, 1, true);
    pair_close(&pair);
}

static void scene_daemon_dies(void)
{
    struct pair pair;
    pair_start(&pair, "shm", "tiered", NULL);
    for (int i = 0; i < 4; i++) {
        pair_connect(&pair);
        pair_pools(&pair, large, STRAIT_HANDLE_CUDA_IPC);
        move_all(pair.source, pair.sink, 9, true);
        pair_kill(&pair, i % 2, i < 2 ? 0 : 1200, 8000);
        pair_restart(&pair, i % 2);
        move_all(pair.source, pair.sink, 10, true);
        if (i < 3)
            pair_disconnect(&pair);
    }
    pair_close(&pair);
}

/* ---- Rates ------------------------------------------------------------------------------------------------------- */

/* By offers and by reads in turn. */
static void rate_of(struct gpu_pool *source, struct gpu_pool *sink, const char *what)
{
    enum { TURNS = 9 };
    uint64_t times[2][TURNS], bytes = (uint64_t)source->shape.regions * source->shape.pages * source->shape.page_bytes;
    for (int i = 0; i < TURNS; i++) {
        const bool check = i == 0 || i == TURNS - 1;
        times[0][i] = move_all(source, sink, (uint64_t)i, check);
        times[1][i] = read_all(source, sink, (uint64_t)i + TURNS, check);
    }
    for (int way = 0; way < 2; way++) {
        const uint64_t first = times[way][0], middle = median(times[way] + 1, TURNS - 1);
        printf("  %s %s %llu MiB: %.2f GB/s (median %.3f ms, best %.3f ms, first %.3f ms)\n", what,
               way == 0 ? "offered" : "read", (unsigned long long)bytes >> 20, (double)bytes / (double)middle,
               (double)middle * 1e-6, (double)times[way][1] * 1e-6, (double)first * 1e-6);
    }
}

/* What the bus carries: one contiguous buffer from the first device to pinned memory, and from there to the last. */
static void rate_of_bus(void)
{
    enum { BYTES = 256 << 20 };
    uint8_t *device, *host;
    uint64_t times[2][5];
    for (int way = 0; way < 2; way++) {
        require_cuda(cudaSetDevice(way == 0 ? 0 : last_device()));
        require_cuda(cudaMalloc((void **)&device, BYTES));
        require_cuda(cudaHostAlloc((void **)&host, BYTES, cudaHostAllocDefault));
        for (int i = 0; i < 5; i++) {
            uint64_t began = now_ns();
            require_cuda(way == 0 ? cudaMemcpy(host, device, BYTES, cudaMemcpyDeviceToHost)
                                  : cudaMemcpy(device, host, BYTES, cudaMemcpyHostToDevice));
            require_cuda(cudaDeviceSynchronize());
            times[way][i] = now_ns() - began;
        }
        times[way][2] = median(times[way], 5);
        require_cuda(cudaFreeHost(host));
        require_cuda(cudaFree(device));
    }
    printf("  copy engine: %.2f GB/s to the host, %.2f GB/s from it\n", (double)BYTES / (double)times[0][2],
           (double)BYTES / (double)times[1][2]);
}

static void scene_rates(void)
{
    static const struct pool_shape shape = {.regions = 64, .pages = 128, .page_bytes = 32768};
    static const char *const chunks[] = {"--chunk-bytes=4M", "--chunk-bytes=8M", "--chunk-bytes=16M"};
    rate_of_bus();
    for (int t = 0; t < COUNT(chunks); t++)
        for (int c = 0; c < COUNT(codings); c++) {
            struct pair pair;
            char what[64];
            pair_start(&pair, "shm", codings[c], chunks[t]);
            pair_connect(&pair);
            pair_pools(&pair, shape, STRAIT_HANDLE_CUDA_IPC);
            snprintf(what, sizeof(what), "shm %s %s", codings[c], chunks[t] + 8);
            rate_of(pair.source, pair.sink, what);
            pair_close(&pair);
        }
}

/* ---- The program ------------------------------------------------------------------------------------------------- */

#define SECONDS_MAX 120u

extern char **environ;

static const struct scene {
    const char *name;
    void (*run)(void);
} scenes[] = {
    {"shm", scene_shm},
    {"local", scene_local},
    {"read", scene_read},
    {"shapes", scene_shapes},
    {"types", scene_types},
    {"ready", scene_ready},
    {"embedded", scene_embedded},
    {"refusals", scene_refusals},
    {"ucx", scene_ucx},
    {"client_dies", scene_client_dies},
    {"daemon_dies", scene_daemon_dies},
    {"silence", scene_silence},
    {"client_faults", scene_client_faults},
    {"freed", scene_freed},
    {"device_fails", scene_device_fails},
    {"device_stalls", scene_device_stalls},
    {"few", scene_few},
    {"rates", scene_rates},
    {"reach", scene_reach},
#if STRAIT_HAVE_NCCL
    {"nccl", scene_nccl},
    {"nccl_dies", scene_nccl_dies},
    {"nccl_auto", scene_nccl_auto},
    {"nccl_busy", scene_nccl_busy},
#endif
#if STRAIT_HAVE_UCX
    {"ucx_link", scene_ucx_link},
    {"ucx_link_dies", scene_ucx_link_dies},
    {"ucx_link_busy", scene_ucx_link_busy},
#endif
};

static int run_here(const char *name)
{
    int i = 0;
    while (i < COUNT(scenes) && strcmp(scenes[i].name, name) != 0)
        i++;
    require(i < COUNT(scenes));
    setpgid(0, 0); /* its daemons are in its group */
    alarm(SECONDS_MAX * (unsigned)patience());
    world_begin();
    scenes[i].run();
    world_end();
    printf("%s: passed\n", name);
    return 0;
}

/* 0: passed. */
static int run_apart(const char *program, const char *name)
{
    char *arguments[] = {(char *)program, (char *)straitd_path, "--run", (char *)name, NULL};
    pid_t pid;
    int status = -1;
    fflush(stdout);
    require(posix_spawn(&pid, program, NULL, NULL, arguments, environ) == 0);
    require(waitpid(pid, &status, 0) == pid);
    kill(-pid, SIGKILL); /* what it left behind */
    if (status != 0)
        printf("%s: FAILED, status %x\n", name, (unsigned)status);
    return status != 0;
}

int main(int argc, char **argv)
{
    require(argc >= 2);
    straitd_path = argv[1];
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 4 && strcmp(argv[2], "--run") == 0)
        return run_here(argv[3]);
    if (count_devices() == 0) {
        printf("skipped: no GPU here\n");
        return 77;
    }
    int failed = 0;
    for (int i = 0; i < COUNT(scenes); i++)
        if (is_named(scenes[i].name, argc - 2, argv + 2))
            failed += run_apart(argv[0], scenes[i].name);
    return failed != 0;
}
