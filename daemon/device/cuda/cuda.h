/* What the plugin's files share: a GPU in use.
 *
 * Two threads belong to each. The coder's takes tasks, launches what fits together and looks whether it has completed:
 * all that codes is called from there, so that nothing of the driver can hold up the daemon's loop. The other one waits
 * for clients' events. What blocks by its nature (mapping, pinning, copies that are waited for) is called by the
 * daemon's workers. */
#ifndef STRAIT_DAEMON_DEVICE_CUDA_CUDA_H
#define STRAIT_DAEMON_DEVICE_CUDA_CUDA_H

#include <pthread.h>

#include <cuda_runtime_api.h>

#include "daemon/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of each direction so many run at once: one's batch begins and ends while others' are on the bus. Over a link between
 * GPUs two do not fill it, as chunks come one at a time when a transfer goes on. */
#define ENCODE_LANES 4u
#define DECODE_LANES 4u
#define LANES        (ENCODE_LANES + DECODE_LANES)
#define LANE_BATCHES 3u    /* one runs, others wait for it on the device */
#define BATCH_TASKS  64u   /* of a batch */
#define TABLES_MAX   4096u /* of a codebook whose escapes are counted */

#define STAGE_SLOTS   8u /* as many chunks as a daemon encodes at once */
#define STAGE_STREAMS 2u

/* A chunk in the device's memory while it is coded, that comes from another memory or goes to one. */
struct stage_slot {
    uint8_t *memory;
    cudaEvent_t copied;
    bool taken, leaving;      /* leaving: it is being copied to its task's dst */
    struct device_task *task; /* leaving */
    uint64_t began;           /* of its launch */
};
struct stage {
    struct stage_slot slots[STAGE_SLOTS];
    uint8_t *memory;
    size_t slot_bytes;
    cudaStream_t streams[STAGE_STREAMS];
    uint32_t turn, taken, leaving;
    uint64_t last_over;
};

/* What is launched together, and where it reports. */
struct batch {
    struct device_task *tasks[BATCH_TASKS]; /* NULL: told of already, or leaving */
    struct stage_slot *slots[BATCH_TASKS];  /* of each; NULL: it is coded where it lies, or is to */
    uint32_t count, told;
    cudaEvent_t over;
    uint8_t *staged, *staging;     /* ids and metadata: in pinned memory, and as the device has them */
    struct strait_result *results; /* pinned */
    uint64_t began;
};

/* Escapes by table, of all that a lane has encoded. They are looked at when it has nothing else to do. */
struct escapes {
    struct strait_class_stats *counters; /* on the device; NULL: too many tables */
    struct strait_class_stats *stats;    /* pinned: a copy of them, */
    cudaEvent_t copied;                  /* since then */
    bool counted, copying;               /* something was counted since; it is being copied */
    uint64_t seen, told;
};

/* A stream and the scratch that goes with it, for encoding or decoding. */
struct lane {
    cudaStream_t stream;
    uint8_t *scratch;
    size_t scratch_size;
    struct batch batches[LANE_BATCHES]; /* a ring */
    struct escapes escapes;
    uint32_t first, running;
    struct device_task *waiting, **waiting_end;
    uint64_t last_over; /* when its latest task was seen to be over */
};

/* For copies from pages to pages, one at a time. */
struct copier {
    pthread_mutex_t lock;
    cudaStream_t stream;
    cudaEvent_t event;
    struct move *moves;  /* pinned */
    uint8_t *host_stage; /* pinned */
    uint8_t *device_stage;
};

struct device {
    struct device_setup setup;
    int number;
    char name[128];
    const struct strait_codec *codec;
    void *tables; /* of the codebook, on the device; NULL: none */
    uint32_t table_count;
    size_t staging_size;
    uint32_t away_multiprocessors; /* for encoders that store to other GPUs */
    struct lane lanes[LANES];      /* those that encode, then those that decode */
    struct stage out, in;
    struct copier copier;

    pthread_t coder, waiter;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t work, events;
    struct device_task *submitted, **submitted_end; /* for the coder */
    struct device_task *awaited;                    /* events, for the waiter */
    bool closing, failed, roused;
    char why[256];
    uint64_t failed_at;
    struct device *process_next; /* failure.c's */
};

uint64_t clock_ns(void);

/* Writes the text; returns `status`. */
enum strait_status refuse(const struct device_why *why, enum strait_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same for what the runtime said, which is then forgotten. ERR_NO_MEMORY when that is what it means. */
enum strait_status refuse_error(const struct device_why *why, enum strait_status status, const char *what,
                                cudaError_t error);

/* ---- failure.c --------------------------------------------------------------------------------------------------- */

/* The device is of no use from now on: all its tasks fail, and with an error that breaks the process so do those of all
 * others. The first reason counts. Success: it says nothing of what went wrong. */
void device_fail(struct device *device, const char *what, cudaError_t error);
bool device_has_failed(struct device *device);
bool device_failure(struct device *device, const struct device_why *why); /* and why */
/* Asks the device itself, after an error that may be of another process: has it failed? */
bool device_is_sick(struct device *device, const char *what);
bool error_breaks_process(cudaError_t error);
/* A device that works, from now on or no longer. */
void process_enter(struct device *device);
void process_leave(struct device *device);
/* Can this GPU (-1: can none) be used no more as one has failed? process_is_sick asks them first. */
bool process_is_broken(int number, const struct device_why *why);
bool process_is_sick(int number, const char *what, const struct device_why *why);
/* The same for an operation that was refused with `status`: it, or ERR_DEVICE and why. */
enum strait_status device_refuse(struct device *device, enum strait_status status, const char *what,
                                 const struct device_why *why);
/* After a failure the driver waits for nothing any more, though what was launched on a GPU that only shares the process
 * with the one that failed may run to its end. These wait for what may still run, of copies and of a batch, but not
 * for longer than any of it takes. */
void device_settle(struct device *device);
void device_settle_batch(struct device *device, const struct batch *batch);

/* ---- batch.c, collect.c
 * ----------------------------------------------------------------------------------------------------- */

cudaError_t lane_init(struct device *device, struct lane *lane);
void lane_fini(struct lane *lane);
/* Launches as much of what waits as fits into one batch; there must be a free one. */
void lane_launch(struct device *device, struct lane *lane);
/* Tells of what is over. False: nothing is. */
bool lane_collect(struct device *device, struct lane *lane);
uint64_t lane_load(const struct lane *lane); /* tasks that are not over */
bool lane_is_busy(const struct lane *lane);
/* Something waits, and there is room for it. */
bool lane_may_launch(struct device *device, const struct lane *lane);
cudaError_t escapes_init(struct escapes *escapes, uint32_t tables);
void escapes_fini(struct escapes *escapes);
/* A task is over: it failed before it was launched, or with the device. */
void task_fail(struct device *device, struct device_task *task, enum strait_status status);
uint64_t task_bytes(const struct device_task *task); /* of its pages */
void lane_add(struct device *device, struct lane *lane, struct device_task *task);
/* After a failure: waits for what still runs, and fails all tasks. */
void lane_abandon(struct device *device, struct lane *lane);

/* ---- stage.c ----------------------------------------------------------------------------------------------------- */

cudaError_t stage_init(struct stage *stage, size_t slot_bytes);
void stage_fini(struct stage *stage);
struct stage_slot *stage_take(struct stage *stage); /* NULL: all are taken */
void stage_give(struct stage *stage, struct stage_slot *slot);
/* Copies the task's src into the slot; `reader` waits for it. */
cudaError_t stage_fetch(struct stage *stage, struct stage_slot *slot, const struct device_task *task,
                        cudaStream_t reader);
/* An encoded chunk, whose result is the task's, to the task's dst: it is told of when it is there. */
void stage_send(struct device *device, struct stage_slot *slot, struct device_task *task, uint64_t began);
bool stage_collect(struct device *device); /* tells of those that are there. False: none is */
void stage_abandon(struct device *device); /* after a failure */

/* ---- prepare.cu, warm.c ------------------------------------------------------------------------------------------ */

/* Metadata to be copied: whole vectors of 16 bytes, or zeroes when the first one differs from `begins`. */
struct fetch {
    uint32_t begins[4];
    const uint8_t *from;
    uint8_t *to;
    uint32_t vectors;
};
/* And what the host has staged for the device. */
struct prepare {
    const uint8_t *from;
    uint8_t *to;
    uint32_t vectors, fetch_count;
    struct fetch fetches[BATCH_TASKS];
};
cudaError_t prepare_launch(const struct prepare *prepare, cudaStream_t stream);

cudaError_t device_warm(struct device *device);

/* ---- coder.c, ready.c -------------------------------------------------------------------------------------------- */

void *coder_run(void *device);
void *waiter_run(void *device);

/* ---- copy.c, moves.cu -------------------------------------------------------------------------------------------- */

/* Bytes of one page, or a part of one: rows of equal distances. */
struct move {
    uint8_t *to;
    const uint8_t *from;
    uint64_t to_stride, from_stride;
    uint32_t rows, row_bytes;
    uint32_t width; /* 1, 2, 4, 8 or 16: what everything above is a multiple of */
    uint32_t reserved;
};
cudaError_t moves_launch(const struct move *moves, uint32_t count, cudaStream_t stream);

cudaError_t copier_init(struct copier *copier);
void copier_fini(struct copier *copier);
enum strait_status copy_pages(struct device *to_device, const struct strait_pages *to, struct device *from_device,
                              const struct strait_pages *from);

/* ---- memory.c ---------------------------------------------------------------------------------------------------- */

enum strait_status memory_reach(struct device *device, const uint8_t handle[DEVICE_HANDLE_BYTES], uint64_t size,
                                struct device_memory *memory, const struct device_why *why);
enum strait_status memory_arena(struct device *device, uint64_t size, void **base, uint8_t handle[DEVICE_HANDLE_BYTES],
                                const struct device_why *why);
void memory_arena_free(struct device *device, void *base);
enum strait_status memory_map(struct device *device, const struct device_handle *handle, struct device_memory *memory,
                              const struct device_why *why);
void memory_unmap(struct device *device, struct device_memory *memory);
enum strait_status memory_pin(void *base, size_t size, const struct device_why *why);
void memory_unpin(void *base);
/* Some device is in use: its context is the one that pins. */
void memory_use_device(int number);

#ifdef __cplusplus
}
#endif
#endif
