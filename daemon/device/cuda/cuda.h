/* The state of a GPU in use, shared by the plugin's files.
 *
 * Each GPU has two threads. The coder thread takes tasks, launches together those that fit together and polls for their
 * completion. Everything that encodes or decodes is called from it, so that no driver call can hold up the daemon's
 * loop. The waiter thread waits for clients' events. Calls that block by nature (mapping, pinning, synchronous copies)
 * are made by the daemon's workers. */
#ifndef STRAIT_DAEMON_DEVICE_CUDA_CUDA_H
#define STRAIT_DAEMON_DEVICE_CUDA_CUDA_H

#include <pthread.h>
#include <time.h>

#include <cuda_runtime_api.h>

#include "daemon/device/device.h"
#include "internal/clock.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Lanes of each direction that run at once: one lane's batch begins and ends while others' are on the bus. Two do not
 * fill a link between GPUs, because chunks come one at a time once a transfer is under way. */
#define ENCODE_LANES 4u
#define DECODE_LANES 4u
/* Lanes whose batches may wait for chunks that are still on their way; such a batch delays no other's. */
#define AHEAD_LANES  5u
#define LANES        (ENCODE_LANES + DECODE_LANES + AHEAD_LANES)
#define LANE_BATCHES 3u    /* one runs, the others are queued behind it on the device */
#define BATCH_TASKS  64u   /* tasks of one batch */
#define TABLES_MAX   4096u /* tables of the largest codebook whose escapes are counted */

#define STAGE_SLOTS   8u /* as many chunks as a daemon encodes at once */
#define STAGE_STREAMS 2u

/* A staging slot: holds a chunk in device memory while it is encoded or decoded, because its source or destination is
 * in other memory. */
struct stage_slot {
    uint8_t *memory;
    cudaEvent_t copied;
    bool taken, leaving;      /* leaving: the chunk is being copied to its task's dst */
    struct device_task *task; /* the task of a leaving chunk */
    uint64_t began;           /* time of its launch */
};
struct stage {
    struct stage_slot slots[STAGE_SLOTS];
    uint8_t *memory;
    size_t slot_bytes;
    cudaStream_t streams[STAGE_STREAMS];
    uint32_t turn, taken, leaving;
    uint64_t last_over;
};

/* Tasks that are launched together, and where their results go. */
struct batch {
    struct device_task *tasks[BATCH_TASKS]; /* NULL: already reported, or leaving */
    struct stage_slot *slots[BATCH_TASKS];  /* of each task; NULL: its chunk is coded in place */
    uint32_t count, reported;
    cudaEvent_t over;
    uint8_t *staged, *staging;     /* ids and metadata: in pinned memory, and their copy on the device */
    struct strait_result *results; /* pinned */
    struct fetched *fetched;       /* pinned: what has become of chunks with flags */
    uint64_t began;
};

/* Escapes per table of everything that a lane has encoded. They are read when the lane has nothing else to do. */
struct escapes {
    struct strait_class_stats *counters; /* on the device; NULL: too many tables */
    struct strait_class_stats *stats;    /* pinned copy of the counters, */
    cudaEvent_t copied;                  /* complete since this event */
    bool counted, copying;               /* counters have changed since the last copy; a copy is under way */
    uint64_t seen, reported;
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
    uint64_t last_over; /* when its latest task was seen to be complete */
};

/* Copies pages to pages, one copy at a time. */
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
    void *tables; /* the codebook's, on the device; NULL: no codebook */
    uint32_t table_count;
    size_t staging_size;
    uint32_t peer_multiprocessors; /* limit for encoders that store to other GPUs */
    struct lane lanes[LANES];      /* encoding lanes first, then decoding lanes, then those that wait */
    struct stage out, in;
    struct copier copier;

    pthread_t coder, waiter;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t work, events;
    struct device_task *submitted, **submitted_end; /* for the coder */
    struct device_task *awaited;                    /* events, for the waiter */
    bool closing, failed, woken;
    char why[256];
    uint64_t failed_at;
    struct device *process_next; /* failure.c's */
};

/* ---- failure.c --------------------------------------------------------------------------------------------------- */

/* Writes the text; returns `status`. */
enum strait_status refuse(const struct device_why *why, enum strait_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same for an error of the runtime, whose error state is then cleared. Returns ERR_NO_MEMORY when the error means
 * that. */
enum strait_status refuse_error(const struct device_why *why, enum strait_status status, const char *what,
                                cudaError_t error);

/* Marks the device as failed for good: all its tasks fail, and after an error that breaks the process so do the tasks
 * of all other devices. The first reason counts. `error` is cudaSuccess when there is no code for what went wrong. */
void device_fail(struct device *device, const char *what, cudaError_t error);
bool device_has_failed(struct device *device);
bool device_failure(struct device *device, const struct device_why *why); /* also tells why */
/* Asks the device itself whether it has failed, after an error that may be another process's. */
bool device_is_sick(struct device *device, const char *what);
/* Registers a working device of this process, and removes it. */
void process_enter(struct device *device);
void process_leave(struct device *device);
/* Is this GPU (-1: every GPU) unusable because one has failed? process_is_sick asks the devices first. */
bool process_is_broken(int number, const struct device_why *why);
bool process_is_sick(int number, const char *what, const struct device_why *why);
/* For an operation that was refused with `status`: returns `status`, or ERR_DEVICE and the reason if the device has
 * failed. */
enum strait_status device_refuse(struct device *device, enum strait_status status, const char *what,
                                 const struct device_why *why);
/* After a failure the driver's waits return at once, though work launched on a GPU that merely shares the process with
 * the failed one may still run to its end. These wait for copies and for a batch that may still be running, but not for
 * longer than any of them takes. */
void device_wait_stopped(struct device *device);
void device_wait_batch(struct device *device, const struct batch *batch);

/* ---- batch.c: lanes ---------------------------------------------------------------------------------------------- */

cudaError_t lane_init(struct device *device, struct lane *lane);
void lane_fini(struct lane *lane);

/* ---- stage.c: staging slots -------------------------------------------------------------------------------------- */

cudaError_t stage_init(struct stage *stage, size_t slot_bytes);
void stage_fini(struct stage *stage);
struct stage_slot *stage_take(struct stage *stage); /* NULL: no slot is free */
void stage_give(struct stage *stage, struct stage_slot *slot);
/* Copies the task's src into the slot; the stream `reader` waits for the copy. */
cudaError_t stage_fetch(struct stage *stage, struct stage_slot *slot, const struct device_task *task,
                        cudaStream_t reader);
/* Copies an encoded chunk, whose result is already in the task, to the task's dst; the task is reported when it has
 * arrived. */
void stage_send(struct device *device, struct stage_slot *slot, struct device_task *task, uint64_t began);
bool stage_collect(struct device *device); /* reports chunks that have arrived. False: there are none */
void stage_abandon(struct device *device); /* after a failure */

/* ---- prepare.cu, plugin.c ---------------------------------------------------------------------------------------- */

/* What a device has seen of a chunk that it waited for. */
struct fetched {
    uint32_t header[STRAIT_CHUNK_HEADER_BYTES / 4];
    uint32_t came; /* 1: its flag was there in time */
    uint32_t reserved[3];
};
/* Metadata to be copied, in whole vectors of 16 bytes, at least those of a chunk's header. Zeroes are written instead
 * when the first vector differs from `begins`, or if a flag does not become `flag_value` in time. */
struct fetch {
    uint32_t begins[4];
    const uint8_t *from;
    uint8_t *to;
    const uint64_t *flag; /* or NULL */
    uint64_t flag_value;
    uint32_t vectors;
};
/* A batch's metadata, and what the host has staged for the device. */
struct prepare {
    const uint8_t *from;
    uint8_t *to;
    struct fetched *fetched; /* an entry for each fetch; written for those with flags */
    uint32_t vectors, fetch_count;
    struct fetch fetches[BATCH_TASKS];
};
cudaError_t prepare_launch(const struct prepare *prepare, cudaStream_t stream);

/* ---- batch.c: coder thread; failure.c: waiter thread ------------------------------------------------------------- */

void *coder_run(void *device);
void *waiter_run(void *device);

/* ---- copy.c, moves.cu -------------------------------------------------------------------------------------------- */

/* Copies bytes of one page or of a part of one: rows at equal distances. */
struct move {
    uint8_t *to;
    const uint8_t *from;
    uint64_t to_stride, from_stride;
    uint32_t rows, row_bytes;
    uint32_t width; /* 1, 2, 4, 8 or 16 bytes: everything above is a multiple of it */
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
                                uint8_t id[DEVICE_ID_BYTES], const struct device_why *why);
void memory_arena_free(struct device *device, void *base);
enum strait_status memory_map(struct device *device, const struct device_handle *handle, struct device_memory *memory,
                              const struct device_why *why);
void memory_unmap(struct device *device, struct device_memory *memory);
enum strait_status memory_pin(void *base, size_t size, const struct device_why *why);
void memory_unpin(void *base);
/* Names a device in use: memory is pinned in its context. */
void memory_use_device(int number);

#ifdef __cplusplus
}
#endif
#endif
