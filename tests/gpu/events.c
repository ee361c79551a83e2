/* Pages that become ready with an event of the GPU, and daemons inside of the process that the GPU is used by. */
#include "tests/gpu/scenes.h"

#include <string.h>
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
