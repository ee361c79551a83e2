/* Daemons, clients and pools in memory of real GPUs. Of every pool an image on the host tells what its memory has to
 * hold, gaps between pages included. What is not freed lives until the end of the process.
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

#include "tests/daemon.h"
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
    uint32_t rows, row_gap;      /* rows 0: 1 */
    enum strait_element element; /* 0: BF16 */
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
/* The number of this name: the first one behind the name `object`, unless that is NULL. */
double json_number(const char *json, const char *object, const char *name);
struct gpu_pool *pool_try(struct strait_client *client, struct pool_shape shape, uint64_t claim_more, int claim_device);
struct gpu_pool *pool_make(struct strait_client *client, struct pool_shape shape);
void pool_free(struct gpu_pool *pool);                /* when its client is closed; NULL is allowed */
void pool_fill(struct gpu_pool *pool, uint64_t seed); /* with values like those of a KV cache */
uint8_t *pool_page(const struct gpu_pool *pool, uint8_t *base, uint32_t region, uint32_t id);
/* All of the memory is as the image tells. */
void pool_check(const struct gpu_pool *pool);
void pool_check_gaps(const struct gpu_pool *pool); /* whatever the pages hold */
/* Nothing but canaries, at once. */
void pool_overwrite(struct gpu_pool *pool);
/* Registers a pool like pool_try, and requires that it is refused with this status. */
void refused(struct strait_client *client, struct pool_shape shape, uint64_t claim_more, int claim_device, int status);

extern const struct pool_shape small, medium, large; /* 24, 96 and 256 MiB */
struct pool_shape on(struct pool_shape shape, int device, enum strait_handle handle);
int last_device(void);

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
/* With deadline_ms 0: one that nothing should reach. */
void flow_offer(struct flow *flow, struct gpu_pool *pool, const char *key, const uint32_t *ids, uint32_t count,
                bool later);
void flow_expect(struct flow *flow, struct gpu_pool *pool, const char *key, const uint32_t *ids, uint32_t count,
                 uint32_t deadline_ms);

/* Reads the peer's pages with a deadline of 20 s. */
void flow_read(struct flow *flow, struct gpu_pool *pool, const struct strait_peer *peer, const uint32_t *ids,
               const uint32_t *peer_ids, uint32_t count);

/* All pages of a pool to those of another. */
struct request {
    struct gpu_pool *source, *sink;
    uint32_t deadline_ms; /* 0: as of flow_expect */
    bool later;           /* pages are appended */
    struct flow offer, expect;
};

void request_begin(struct request *request, const char *key); /* the sink starts it */
bool request_over(const struct request *request);             /* both sides have a verdict, and are drained */
void request_print(const struct request *request, const char *what);
void request_end(struct request *request);

void pump(struct strait_client *const *clients, int count, int ms);
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
/* As move_all, but the sink reads pages that the source serves from now on. */
uint64_t read_all(struct gpu_pool *source, struct gpu_pool *sink, uint64_t seed, bool check);
/* From each of the pools to each other one, all of it checked. */
void move_among(struct gpu_pool *const *pools, int count);

/* ---- Two daemons ------------------------------------------------------------------------------------------------- */

/* "a" and "b", a client of each, and a pool of the source's and the sink's. */
struct pair {
    struct daemon_process daemons[2];
    struct strait_client *clients[2];
    struct gpu_pool *source, *sink;
};

void pair_start(struct pair *pair, const char *transport, const char *coding, const char *more); /* the daemons only */
void pair_connect(struct pair *pair);
/* The source on the first GPU, filled; the sink on the last, named by `handle`. */
void pair_pools(struct pair *pair, struct pool_shape shape, enum strait_handle handle);
void pair_disconnect(struct pair *pair);
void pair_close(struct pair *pair); /* disconnects, stops the daemons, and frees the memory of source and sink */

/* Kills a daemon so long after pages began to move: both sides are told within `ms`, and the source is as it was. */
void pair_kill(struct pair *pair, int victim, unsigned pause_us, uint32_t ms);
/* What the library does by itself: it connects again and registers the pools. */
void pair_restart(struct pair *pair, int victim);

/* ---- Times ------------------------------------------------------------------------------------------------------- */

uint64_t median(uint64_t *times, int count); /* which are in order then */

/* ---- Scenes ------------------------------------------------------------------------------------------------------ */

/* links.c */
void scene_reach(void);
void scene_ucx_link(void);
void scene_ucx_link_dies(void);
void scene_ucx_link_busy(void);
void scene_nccl(void);
void scene_nccl_dies(void);
void scene_nccl_auto(void);
void scene_nccl_busy(void);
/* faults.c */
void scene_silence(void);
void scene_client_faults(void);
void scene_freed(void);
void scene_device_fails(void);
void scene_device_stalls(void);

#endif
