/* Daemons, clients and pools in memory of real GPUs. Of every pool an image on the host tells what its memory has to
 * hold, gaps between pages included. Everything lives until the end of the process.
 *
 * Variables of the environment: GPU_TEST_LOG (daemons tell much), GPU_TEST_TRANSPORTS (in place of shm),
 * GPU_TEST_OPTIONS (more options of every daemon), GPU_TEST_P2P (NCCL may use it), GPU_TEST_UCX_CUDA (a UCX that does
 * not know CUDA's memory is a failure), GPU_TEST_UNDER (the command that runs daemons, as
 * "compute-sanitizer --tool memcheck"), GPU_TEST_PLUGIN and GPU_TEST_BEHIND (the folder of the plugin that is put in
 * front of a daemon's own to make devices fail, and the file of that one). */
#ifndef STRAIT_TESTS_GPU_WORLD_H
#define STRAIT_TESTS_GPU_WORLD_H

#include <sys/types.h>

#include <strait/strait.h>

#include "tests/gpu/device.h"

/* ---- Daemons ----------------------------------------------------------------------------------------------------- */

struct chaos_side;

struct daemon_process {
    pid_t pid; /* of what was started: straitd, or GPU_TEST_UNDER with it */
    char socket[96];
    const char *transport, *coding, *more; /* more: one option "--name=value", or NULL */
    struct chaos_side *faults;             /* NULL: it is a daemon like any other */
};

extern const char *straitd_path;
extern char world_folder[64];
void world_begin(void); /* a folder, and a codebook in it */
void world_end(void);   /* removes it */
void daemon_start(struct daemon_process *daemon, const char *name, const char *transport, const char *coding,
                  const char *more);
/* One whose devices can be made to fail or to stall: `breaks`, `stalls` of its faults. False: not here. */
bool daemon_start_faulty(struct daemon_process *daemon, const char *name, const char *transport, const char *coding,
                         const char *more);
void daemon_restart(struct daemon_process *daemon);
void daemon_kill(struct daemon_process *daemon);
void daemon_stop(struct daemon_process *daemon); /* SIGTERM; its exit status must be 0 */
/* The exit status of one that is to end by itself within so long. */
int daemon_ended(struct daemon_process *daemon, uint32_t ms);

/* ---- Pools ------------------------------------------------------------------------------------------------------- */

struct pool_shape {
    int device;                /* -1: the host's memory */
    enum strait_handle handle; /* CUDA_IPC, CUDA_VMM or POINTER */
    bool exportable;           /* POINTER: to memory like that of CUDA_VMM */
    uint32_t regions, pages, page_bytes, gap;
    uint32_t rows, row_gap; /* rows 0: 1 */
};

struct gpu_pool {
    struct strait_client *client;
    struct strait_pool *pool;
    struct pool_shape shape;
    uint8_t *memory, *image;
    size_t size, region_bytes, page_stride, row_stride;
    struct strait_memory host;
    int fd;
    bool told;
    int status;
    char text[256];
};

struct strait_client *client_open(const struct daemon_process *daemon);
struct strait_client *client_embedded(const char *coding); /* its daemon is in this process */
const char *client_stats(struct strait_client *client);    /* JSON, until the next call */
struct gpu_pool *pool_try(struct strait_client *client, struct pool_shape shape, uint64_t claim_more, int claim_device);
struct gpu_pool *pool_make(struct strait_client *client, struct pool_shape shape);
void pool_fill(struct gpu_pool *pool, uint64_t seed); /* with values like those of a KV cache */
uint8_t *pool_page(const struct gpu_pool *pool, uint8_t *base, uint32_t region, uint32_t id);
/* All of the memory is as the image tells. */
void pool_check(const struct gpu_pool *pool);
void pool_check_gaps(const struct gpu_pool *pool); /* whatever the pages hold */
/* Nothing but canaries, at once. */
void pool_overwrite(struct gpu_pool *pool);

/* ---- Transfers --------------------------------------------------------------------------------------------------- */

struct flow {
    struct gpu_pool *pool;
    struct strait_transfer *transfer;
    enum strait_state state;
    enum strait_reason reason;
    bool decided, drained, moved;
    uint64_t decided_at, drained_at; /* now_ns */
    char text[256];
};

struct strait_peer *pool_peer(struct gpu_pool *of, struct strait_client *client);
void flow_offer(struct flow *flow, struct gpu_pool *pool, const char *key, const uint32_t *ids, uint32_t count,
                bool later);
void flow_expect(struct flow *flow, struct gpu_pool *pool, const char *key, const uint32_t *ids, uint32_t count);
void flow_expect_for(struct flow *flow, struct gpu_pool *pool, const char *key, const uint32_t *ids, uint32_t count,
                     uint32_t deadline_ms);
void pump(struct strait_client *const *clients, int count, int ms);
uint64_t now_ns(void);
uint64_t patience(void); /* how many times as long things may take: daemons run under a tool */

#define WAIT(clients, count, expression, ms)                                 \
    do {                                                                     \
        uint64_t wait_end = now_ns() + (uint64_t)(ms)*1000000u * patience(); \
        while (!(expression) && now_ns() < wait_end)                         \
            pump((clients), (count), 1);                                     \
        require(expression);                                                 \
    } while (0)

/* Moves all pages in a random order, checks both pools, and returns the nanoseconds from start to DONE at the sink. */
uint64_t move_all(struct gpu_pool *source, struct gpu_pool *sink, uint64_t seed, bool check);

#endif
