/* GPUs of two daemons that store into each other's memory: every byte in place in every coding, and how fast. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/gpu/scenes.h"

#define TIMES 20

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
    uint64_t times[TIMES];
    require_cuda(cudaSetDevice(last_device()));
    require_cuda(cudaMalloc((void **)&to, size));
    require_cuda(cudaSetDevice(0));
    require_cuda(cudaMalloc((void **)&from, size));
    if (last_device() > 0 && cudaDeviceEnablePeerAccess(last_device(), 0) == cudaErrorPeerAccessAlreadyEnabled)
        (void)cudaGetLastError();
    for (int i = -3; i < TIMES; i++) {
        uint64_t began = now_ns();
        require_cuda(cudaMemcpyPeer(to, last_device(), from, 0, size));
        require_cuda(cudaDeviceSynchronize());
        if (i >= 0)
            times[i] = now_ns() - began;
    }
    require_cuda(cudaFree(to));
    require_cuda(cudaSetDevice(0));
    require_cuda(cudaFree(from));
    return (double)size / (double)median(times, TIMES);
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
    uint64_t times[TIMES], bytes = (uint64_t)regions * shape.pages * shape.page_bytes, first;
    pool_fill(source, 1);
    first = move_all(source, sink, 1, true);
    usleep(100000); /* the daemons tell each other of their GPUs */
    double pinned = counter_of(from, "wire_bytes_pinned");
    move_all(source, sink, 2, true);
    double peer = counter_of(from, "wire_bytes_peer");
    for (int i = 0; i < TIMES; i++)
        times[i] = move_all(source, sink, 3 + (uint64_t)i, i == TIMES - 1);
    require(counter_of(from, "wire_bytes_pinned") == pinned);
    double sent = (counter_of(from, "wire_bytes_peer") - peer) / TIMES, middle = (double)median(times, TIMES);
    printf("  %4llu MiB %-6s %7.1f GB/s = %.2f x copy, median %8.1f us, best %8.1f, worst %8.1f, first %8.1f; wire "
           "%.3f\n",
           (unsigned long long)bytes >> 20, coding, (double)bytes / middle, (double)bytes / middle / copied,
           middle * 1e-3, (double)times[0] * 1e-3, (double)times[TIMES - 1] * 1e-3, (double)first * 1e-3,
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
