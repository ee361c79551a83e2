/* Scenes of pools on real GPUs: pages move, become ready with events of the GPU, and belong to a process that has the
 * daemon inside. */
#include "tests/gpu/scenes.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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
    struct flow offer, expect;
    struct strait_peer *peer = pool_peer(late->source, late->sink->client);
    snprintf(key, sizeof(key), "late%u", (unsigned)turn);
    write_late(late, 100 + turn);
    flow_offer(&offer, late->source, key, NULL, small.pages, true);
    flow_expect(&expect, late->sink, key, NULL, small.pages);
    require(strait_start(expect.transfer, peer, NULL) == STRAIT_OK);
    struct strait_append_params append = {
        .size = sizeof(append), .ready = late->embedded ? (void *)late->event : &late->handle, .last = true};
    require(strait_append(offer.transfer, &append) == STRAIT_OK);
    WAIT(late->clients, 2, expect.decided && offer.decided, 10000);
    require(expect.state == STRAIT_DONE && offer.state == STRAIT_DONE);
    imagine_same(late->source, late->sink);
    pool_check(late->sink);
    strait_release(offer.transfer);
    strait_release(expect.transfer);
    strait_peer_remove(peer);
}

void scene_ready(void)
{
    struct daemon_process a, b;
    daemon_start(&a, "a", "shm", "tiered", NULL);
    daemon_start(&b, "b", "shm", "tiered", NULL);
    struct late late = {.clients = {client_open(&a), client_open(&b)}};
    late.source = pool_make(late.clients[0], on(small, 0, STRAIT_HANDLE_CUDA_IPC));
    late.sink = pool_make(late.clients[1], on(small, last_device(), STRAIT_HANDLE_CUDA_IPC));
    late_begin(&late);
    for (uint64_t i = 0; i < 4; i++)
        move_late(&late, i);
    daemon_stop(&a);
    daemon_stop(&b);
}

/* ---- Embedded ---------------------------------------------------------------------------------------------------- */

/* Plain pointers, to memory of either kind, on every device and on the host, under one daemon. */
static void move_inside(struct strait_client *client)
{
    struct pool_shape mapped = on(small, last_device(), STRAIT_HANDLE_POINTER);
    mapped.exportable = true;
    struct gpu_pool *pools[] = {pool_make(client, on(small, 0, STRAIT_HANDLE_POINTER)), pool_make(client, mapped),
                                pool_make(client, on(small, last_device(), STRAIT_HANDLE_POINTER)),
                                pool_make(client, on(small, -1, STRAIT_HANDLE_MEMFD))};
    for (int i = 0; i < COUNT(pools); i++)
        for (int j = 0; j < COUNT(pools); j++) {
            if (i == j)
                continue;
            pool_fill(pools[i], (uint64_t)(i * 10 + j));
            move_all(pools[i], pools[j], (uint64_t)j, true);
        }
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

void scene_embedded(void)
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

const struct scene scenes[] = {
    {"shm", scene_shm},
    {"local", scene_local},
    {"shapes", scene_shapes},
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
const int scene_count = COUNT(scenes);

static const char *const codings[] = {"raw", "top16", "tiered"};

int last_device(void)
{
    int count;
    require_cuda(cudaGetDeviceCount(&count));
    return count - 1;
}

const struct pool_shape small = {
    .handle = STRAIT_HANDLE_CUDA_IPC, .regions = 8, .pages = 96, .page_bytes = 32768, .gap = 64};

const struct pool_shape medium = {
    .handle = STRAIT_HANDLE_CUDA_IPC, .regions = 16, .pages = 192, .page_bytes = 32768, .gap = 64};
const struct pool_shape large = {
    .handle = STRAIT_HANDLE_CUDA_IPC, .regions = 32, .pages = 256, .page_bytes = 32768, .gap = 64};

struct pool_shape on(struct pool_shape shape, int device, enum strait_handle handle)
{
    shape.device = device;
    shape.handle = handle;
    return shape;
}

/* ---- Moving ------------------------------------------------------------------------------------------------------ */

/* Two daemons; device to device, to the host and from there, however the memory is named. */
static void move_over(const char *transport)
{
    for (int c = 0; c < COUNT(codings); c++) {
        struct daemon_process a, b;
        daemon_start(&a, "a", transport, codings[c], NULL);
        daemon_start(&b, "b", transport, codings[c], NULL);
        struct strait_client *source_client = client_open(&a), *sink_client = client_open(&b);
        struct gpu_pool *ipc = pool_make(source_client, on(small, 0, STRAIT_HANDLE_CUDA_IPC));
        struct gpu_pool *vmm = pool_make(sink_client, on(small, last_device(), STRAIT_HANDLE_CUDA_VMM));
        struct gpu_pool *host = pool_make(sink_client, on(small, -1, STRAIT_HANDLE_MEMFD));
        for (uint64_t i = 0; i < 3; i++) {
            pool_fill(ipc, 10 * i + 1);
            move_all(ipc, vmm, i, true);
            pool_fill(vmm, 10 * i + 2);
            move_all(vmm, ipc, i, true);
            move_all(ipc, host, i, true);
            pool_fill(host, 10 * i + 3);
            move_all(host, ipc, i, true);
        }
        strait_client_close(source_client);
        strait_client_close(sink_client);
        daemon_stop(&a);
        daemon_stop(&b);
        printf("  %s %s: every byte as it should be\n", transport, codings[c]);
    }
}

/* Little of everything: what a tool can follow that slows a daemon down a hundred times. */
void scene_few(void)
{
    static const struct pool_shape tiny = {.regions = 4, .pages = 12, .page_bytes = 32768, .gap = 64};
    static const struct pool_shape odd = {
        .regions = 2, .pages = 9, .page_bytes = 98 * 8, .rows = 8, .row_gap = 6, .gap = 2};
    for (int c = 1; c < COUNT(codings); c++) {
        struct daemon_process a, b;
        daemon_start(&a, "a", "shm", codings[c], NULL);
        daemon_start(&b, "b", "shm", codings[c], NULL);
        struct strait_client *source_client = client_open(&a), *sink_client = client_open(&b);
        const struct pool_shape *shapes[] = {&tiny, &odd};
        for (uint64_t i = 0; i < COUNT(shapes); i++) {
            struct gpu_pool *source = pool_make(source_client, on(*shapes[i], 0, STRAIT_HANDLE_CUDA_IPC));
            struct gpu_pool *sink = pool_make(sink_client, on(*shapes[i], last_device(), STRAIT_HANDLE_CUDA_VMM));
            struct gpu_pool *near = pool_make(source_client, on(*shapes[i], 0, STRAIT_HANDLE_CUDA_IPC));
            struct gpu_pool *host = pool_make(source_client, on(*shapes[i], -1, STRAIT_HANDLE_MEMFD));
            pool_fill(source, i);
            move_all(source, sink, 1, true);
            move_all(source, near, 2, true);
            move_all(near, host, 3, true);
            move_all(sink, source, 4, true);
        }
        strait_client_close(source_client);
        strait_client_close(sink_client);
        daemon_stop(&a);
        daemon_stop(&b);
    }
}

void scene_shm(void)
{
    move_over("shm");
}

void scene_ucx(void)
{
    move_over("ucx");
}

void scene_local(void)
{
    struct daemon_process a;
    daemon_start(&a, "a", "shm", "auto", NULL);
    struct strait_client *one = client_open(&a), *two = client_open(&a);
    struct gpu_pool *pools[] = {pool_make(one, on(small, 0, STRAIT_HANDLE_CUDA_IPC)),
                                pool_make(two, on(small, 0, STRAIT_HANDLE_CUDA_VMM)),
                                pool_make(two, on(small, last_device(), STRAIT_HANDLE_CUDA_IPC)),
                                pool_make(one, on(small, last_device(), STRAIT_HANDLE_CUDA_VMM)),
                                pool_make(two, on(small, -1, STRAIT_HANDLE_MEMFD))};
    for (int i = 0; i < COUNT(pools); i++)
        for (int j = 0; j < COUNT(pools); j++) {
            if (i == j)
                continue;
            pool_fill(pools[i], (uint64_t)(i * 10 + j));
            move_all(pools[i], pools[j], (uint64_t)j, true);
        }
    daemon_stop(&a);
}

void scene_shapes(void)
{
    static const struct pool_shape shapes[] = {
        {.regions = 2, .pages = 64, .page_bytes = 4096, .gap = 16},
        {.regions = 2, .pages = 33, .page_bytes = 40 * 26, .rows = 26, .row_gap = 8, .gap = 8},
        {.regions = 3, .pages = 17, .page_bytes = 98 * 8, .rows = 8, .row_gap = 6, .gap = 2},
        {.regions = 2, .pages = 5, .page_bytes = 1 << 20, .gap = 4096},
        {.regions = 70, .pages = 700, .page_bytes = 512},
    };
    struct daemon_process a, b;
    daemon_start(&a, "a", "shm", "tiered", NULL);
    daemon_start(&b, "b", "shm", "tiered", NULL);
    struct strait_client *source_client = client_open(&a), *sink_client = client_open(&b);
    for (int i = 0; i < COUNT(shapes); i++) {
        struct gpu_pool *source = pool_make(source_client, on(shapes[i], 0, STRAIT_HANDLE_CUDA_IPC));
        struct gpu_pool *sink = pool_make(sink_client, on(shapes[i], last_device(), STRAIT_HANDLE_CUDA_IPC));
        struct gpu_pool *near = pool_make(source_client, on(shapes[i], last_device(), STRAIT_HANDLE_CUDA_IPC));
        struct gpu_pool *host = pool_make(source_client, on(shapes[i], -1, STRAIT_HANDLE_MEMFD));
        pool_fill(source, (uint64_t)i);
        move_all(source, sink, 1, true);
        move_all(source, near, 2, true);
        move_all(near, host, 3, true);
        move_all(host, source, 4, true);
    }
    daemon_stop(&a);
    daemon_stop(&b);
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

void refused(struct strait_client *client, struct pool_shape shape, uint64_t claim_more, int claim_device, int status)
{
    struct gpu_pool *pool = pool_try(client, shape, claim_more, claim_device);
    printf("  %s: %s\n", strait_status_string(pool->status), pool->text);
    require(pool->status == status);
}

void scene_refusals(void)
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
static pid_t doomed_client(const struct daemon_process *a, const struct daemon_process *b, int ready)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    struct strait_client *source_client = client_open(a), *sink_client = client_open(b);
    struct gpu_pool *source = pool_make(source_client, on(large, 0, STRAIT_HANDLE_CUDA_IPC));
    struct gpu_pool *sink = pool_make(sink_client, on(large, last_device(), STRAIT_HANDLE_CUDA_VMM));
    pool_fill(source, 1);
    for (uint64_t i = 0;; i++) {
        move_all(source, sink, i, false);
        if (write(ready, "", 1) != 1)
            _exit(1);
    }
}

/* Nothing of CUDA may have been begun here before the first child. */
void scene_client_dies(void)
{
    struct daemon_process a, b;
    daemon_start(&a, "a", "shm", "tiered", NULL);
    daemon_start(&b, "b", "shm", "tiered", NULL);
    for (int i = 0; i < 4; i++) {
        int ready[2];
        char byte;
        require(pipe(ready) == 0);
        pid_t pid = doomed_client(&a, &b, ready[1]);
        for (int k = 0; k < 3; k++)
            require(read(ready[0], &byte, 1) == 1);
        usleep(500u * (unsigned)i);
        kill(pid, SIGKILL);
        require(waitpid(pid, NULL, 0) == pid);
        close(ready[0]);
        close(ready[1]);
    }
    struct strait_client *source_client = client_open(&a), *sink_client = client_open(&b);
    struct gpu_pool *source = pool_make(source_client, on(small, 0, STRAIT_HANDLE_CUDA_IPC));
    struct gpu_pool *sink = pool_make(sink_client, on(small, last_device(), STRAIT_HANDLE_CUDA_VMM));
    pool_fill(source, 1);
    move_all(source, sink, 1, true);
    strait_client_close(source_client);
    strait_client_close(sink_client);
    daemon_stop(&a);
    daemon_stop(&b);
}

static void daemon_dies(struct daemon_process *daemons, int victim, int turn)
{
    struct strait_client *clients[] = {client_open(&daemons[0]), client_open(&daemons[1])};
    struct gpu_pool *source = pool_make(clients[0], on(large, 0, STRAIT_HANDLE_CUDA_IPC));
    struct gpu_pool *sink = pool_make(clients[1], on(large, last_device(), STRAIT_HANDLE_CUDA_IPC));
    struct strait_peer *peer = pool_peer(source, clients[1]);
    struct flow offer, expect;
    pool_fill(source, 1);
    move_all(source, sink, 9, true);
    flow_offer(&offer, source, "doomed", NULL, large.pages, false);
    flow_expect(&expect, sink, "doomed", NULL, large.pages);
    require(strait_start(expect.transfer, peer, NULL) == STRAIT_OK);
    WAIT(clients, 2, expect.moved || expect.decided, 5000);
    usleep(300u * (unsigned)turn);
    daemon_kill(&daemons[victim]);
    WAIT(clients, 2, offer.decided && expect.decided && offer.drained && expect.drained, 8000);
    printf("  killed %s: sink %s (%s), source %s (%s)\n", victim == 0 ? "source's" : "sink's",
           strait_state_string(expect.state), strait_reason_string(expect.reason), strait_state_string(offer.state),
           strait_reason_string(offer.reason));
    pool_check(source);
    strait_release(offer.transfer);
    strait_release(expect.transfer);
    /* What the library does by itself: it connects again and registers the pools. */
    source->told = sink->told = false;
    daemon_restart(&daemons[victim]);
    WAIT(clients, 2, victim == 0 ? source->told : sink->told, 15000);
    require(source->status == STRAIT_OK && sink->status == STRAIT_OK);
    move_all(source, sink, 10, true);
    strait_client_close(clients[0]);
    strait_client_close(clients[1]);
}

void scene_daemon_dies(void)
{
    struct daemon_process daemons[2];
    daemon_start(&daemons[0], "a", "shm", "tiered", NULL);
    daemon_start(&daemons[1], "b", "shm", "tiered", NULL);
    for (int i = 0; i < 4; i++)
        daemon_dies(daemons, i % 2, i / 2 * 4);
    daemon_stop(&daemons[0]);
    daemon_stop(&daemons[1]);
}

/* ---- Rates ------------------------------------------------------------------------------------------------------- */

static int compare_times(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return a < b ? -1 : a > b;
}

static void rate_of(struct gpu_pool *source, struct gpu_pool *sink, const char *what)
{
    uint64_t times[9], bytes = (uint64_t)source->shape.regions * source->shape.pages * source->shape.page_bytes;
    for (int i = 0; i < COUNT(times); i++)
        times[i] = move_all(source, sink, (uint64_t)i, i == 0 || i == COUNT(times) - 1);
    qsort(times + 1, COUNT(times) - 1, sizeof(times[0]), compare_times);
    uint64_t median = times[COUNT(times) / 2];
    printf("  %s %llu MiB: %.2f GB/s (median %.3f ms, best %.3f ms, first %.3f ms)\n", what,
           (unsigned long long)bytes >> 20, (double)bytes / (double)median, (double)median * 1e-6,
           (double)times[1] * 1e-6, (double)times[0] * 1e-6);
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
        qsort(times[way], 5, sizeof(times[way][0]), compare_times);
        require_cuda(cudaFreeHost(host));
        require_cuda(cudaFree(device));
    }
    printf("  copy engine: %.2f GB/s to the host, %.2f GB/s from it\n", (double)BYTES / (double)times[0][2],
           (double)BYTES / (double)times[1][2]);
}

void scene_rates(void)
{
    rate_of_bus();
    static const char *const chunks[] = {"--chunk-bytes=4M", "--chunk-bytes=8M", "--chunk-bytes=16M"};
    for (int t = 0; t < COUNT(chunks); t++)
        for (int c = 0; c < COUNT(codings); c++) {
            struct daemon_process a, b;
            char what[64];
            daemon_start(&a, "a", "shm", codings[c], chunks[t]);
            daemon_start(&b, "b", "shm", codings[c], chunks[t]);
            struct strait_client *source_client = client_open(&a), *sink_client = client_open(&b);
            struct pool_shape shape = {.regions = 64, .pages = 128, .page_bytes = 32768};
            struct gpu_pool *source = pool_make(source_client, on(shape, 0, STRAIT_HANDLE_CUDA_IPC));
            struct gpu_pool *sink = pool_make(sink_client, on(shape, last_device(), STRAIT_HANDLE_CUDA_IPC));
            pool_fill(source, 1);
            snprintf(what, sizeof(what), "shm %s %s", codings[c], chunks[t] + 8);
            rate_of(source, sink, what);
            strait_client_close(source_client);
            strait_client_close(sink_client);
            require_cuda(cudaFree(source->memory));
            require_cuda(cudaFree(sink->memory));
            daemon_stop(&a);
            daemon_stop(&b);
        }
}
