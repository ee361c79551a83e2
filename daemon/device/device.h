/* Interface to GPUs. Behind this interface is a plugin, a shared object that knows the vendor's runtime;
 * the daemon loads it when the first client registers memory of a GPU. Without the plugin or without a GPU, the daemon
 * has no devices. The tests have a plugin of their own, whose devices are threads and whose memory is the host's.
 *
 * A device is known by its number: the ordinal that the runtime gives it in the daemon's process. */
#ifndef STRAIT_DAEMON_DEVICE_DEVICE_H
#define STRAIT_DAEMON_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <strait/codec.h>
#include <strait/strait.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DEVICE_EVENT_BYTES  64u /* handle of an event that another process recorded: a cudaIpcEventHandle_t */
#define GPU_CHUNK_PAGES_MAX 32768u
#define DEVICE_HANDLE_BYTES 64u     /* handle of memory that another process allocated: a cudaIpcMemHandle_t */
#define DEVICE_ID_BYTES     16u     /* names a GPU, the same in all processes: a cudaUUID_t */
#define DEVICE_FLAG_NS      300000u /* how long a device waits for a chunk's flag */

/* ---- Work -------------------------------------------------------------------------------------------------------- */

enum device_work {
    DEVICE_ENCODE,
    DEVICE_DECODE,
    DEVICE_READY, /* an event has completed */
};

/* One piece of work. The pages' bases are addresses of the device's memory as mapped in this process. The regions, ids,
 * metadata and the task itself belong to the owner and stay valid until the task is finished. */
struct device_task {
    enum device_work work;
    struct device_task *next;                   /* in the list that holds the task */
    void (*finished)(struct device_task *task); /* called by the daemon, on its loop */
    uint64_t created, queued;                   /* ns: uv_hrtime at creation; time from then until the work began */

    struct strait_pages pages;
    enum strait_element element; /* encode */
    enum strait_mode mode;       /* encode */
    bool on_gpu;                 /* the chunk is in a GPU's arena: of any GPU (encode), of this device (decode) */
    bool on_peer_gpu;       /* encode, on_gpu: in another GPU's arena: the chunk crosses a link while it is encoded */
    void *dst;              /* encode: in pinned memory; on_gpu: in reached memory, or in the arena */
    const void *src;        /* decode: in pinned memory; on_gpu: in the arena */
    uint64_t size;          /* of dst or src */
    const void *metadata;   /* decode: a copy of the chunk's that nobody changes; on_gpu: the plugin makes it */
    uint64_t metadata_size; /* size of it; on_gpu: the same for any chunk that begins like `begins` */
    uint8_t begins[16];     /* decode, on_gpu: if the chunk begins otherwise, its metadata is taken as zeroes */
    /* Or NULL. Encode, on_peer_gpu: set to flag_value, never 0, when the chunk is whole. Decode, on_gpu: the chunk may
     * still be on its way. The device waits for the flag for DEVICE_FLAG_NS after the launch; if it does not come, no
     * page is touched and the status is ERR_AGAIN. ERR_AGAIN also when the device would have to wait with it. */
    uint64_t *flag;
    uint64_t flag_value;
    uint8_t header[STRAIT_CHUNK_HEADER_BYTES]; /* decode with a flag: the chunk's, as it was decoded */
    uint8_t event[DEVICE_EVENT_BYTES]; /* ready: as the client sent it; from this process: the bytes of a pointer */
    uint32_t event_size;
    bool forgotten; /* ready: nobody waits any more. Set at any time; the task then completes soon */

    enum strait_status status;   /* of the work: ERR_DEVICE when the device failed */
    struct strait_result result; /* valid when `status` is OK */
    uint64_t escapes;            /* of all tasks that ran together, reported with one of them */
    uint64_t nanoseconds;        /* this task's share of the time of all that ran together */
};

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* Memory as a client identifies it. */
struct device_handle {
    enum strait_handle kind;
    const uint8_t *ipc; /* CUDA_IPC: 64 bytes */
    int fd;             /* CUDA_VMM: borrowed */
    uint8_t *pointer;   /* POINTER: the first byte needed */
    uint64_t size;      /* bytes needed, from the beginning of the memory or from the pointer */
};

/* The same memory as mapped in this process. */
struct device_memory {
    uint8_t *base; /* the beginning of the memory, or the pointer */
    uint64_t size; /* of the mapping */
    void *mapping; /* private to the plugin */
};

/* Receives the text of an error, for people. */
struct device_why {
    char *text;
    size_t size;
};

/* ---- The plugin -------------------------------------------------------------------------------------------------- */

struct device; /* a GPU in use; opaque, private to the plugin */

/* The codec's functions: a plugin does not link the codec. */
struct device_codec {
    const struct strait_codec *(*get)(const char *name);
    enum strait_status (*encode)(const struct strait_codec *codec, const struct strait_encode_params *params,
                                 const struct strait_encode_item *items, uint32_t count, const struct strait_run *run);
    enum strait_status (*decode)(const struct strait_codec *codec, const struct strait_codebook *codebook,
                                 const struct strait_decode_item *items, uint32_t count, const struct strait_run *run);
    uint64_t (*encode_scratch)(const struct strait_codec *codec, const struct strait_encode_item *items,
                               uint32_t count);
    uint64_t (*decode_scratch)(const struct strait_codec *codec, const struct strait_decode_item *items,
                               uint32_t count);
    uint32_t (*tables)(const struct strait_codebook *codebook);
    size_t (*image_size)(const struct strait_codebook *codebook);
    enum strait_status (*image)(const struct strait_codebook *codebook, void *dst, size_t dst_capacity);
};

struct device_setup {
    const struct device_codec *codec;
    const struct strait_codebook *codebook; /* NULL: none */
    uint64_t slot_bytes;                    /* size of the largest chunk, except those in GPU memory, */
    uint64_t gpu_chunk_bytes; /* whose largest size this is; they have at most GPU_CHUNK_PAGES_MAX pages */
    uint32_t multiprocessors; /* that one launch may occupy; 0: all */
    uint64_t busy_poll_ns;    /* how long its thread stays awake after the latest task */
    /* A task is complete. Called on any thread; the plugin does not touch the task any more. */
    void (*done)(void *owner, struct device_task *task);
    /* This device has failed for good: `failure` tells the reason, and all tasks that have not come back yet do so.
     * Called on any thread, once. */
    void (*failed)(void *owner);
    void *owner;
};

/* All but `submit`, `wake` and `failure` may block, and are called on workers. Where pages lie on the host, `device`
 * is NULL.
 */
struct device_ops {
    uint32_t version; /* DEVICE_VERSION */

    /* The number of GPUs. 0: no usable one. */
    uint32_t (*count)(const struct device_why *why);
    /* Takes a GPU into use: a context, memory and threads of its own. ERR_UNSUPPORTED (it cannot run the codec),
     * ERR_NO_MEMORY, ERR_DEVICE. */
    enum strait_status (*open)(const struct device_setup *setup, int32_t number, struct device **device,
                               const struct device_why *why);
    /* All tasks except events must be complete; the events come back through `done`. */
    void (*close)(struct device *device);

    /* Takes a list of tasks, in any mixture; those that fit together run together. Never blocks, never fails: each task
     * comes back through `done`. */
    void (*submit)(struct device *device, struct device_task *first);
    /* Work is about to come: the device may begin whatever takes time before the first task can run. Never blocks. */
    void (*wake)(struct device *device);
    /* Has the device failed for good? If so, tells why. A failure that breaks what all devices of the process share
     * fails all of them, with a reason that names the failed one. Any thread. */
    bool (*failure)(struct device *device, const struct device_why *why);

    /* ERR_INVALID: no such memory, too small, or another device's. ERR_UNSUPPORTED, ERR_NO_MEMORY, ERR_DEVICE. */
    enum strait_status (*map)(struct device *device, const struct device_handle *handle, struct device_memory *memory,
                              const struct device_why *why);
    /* Maps memory of any device of this host, which another process allocated by `arena`, so that encoders of this
     * device can store to it. ERR_UNSUPPORTED: it cannot be reached from here. */
    enum strait_status (*reach)(struct device *device, const uint8_t handle[DEVICE_HANDLE_BYTES], uint64_t size,
                                struct device_memory *memory, const struct device_why *why);
    /* Undoes map or reach. */
    void (*unmap)(struct device *device, struct device_memory *memory);

    /* Allocates memory of the device, all zeroes, that other processes reach by the handle. Also names the device. */
    enum strait_status (*arena)(struct device *device, uint64_t size, void **base, uint8_t handle[DEVICE_HANDLE_BYTES],
                                uint8_t id[DEVICE_ID_BYTES], const struct device_why *why);
    void (*arena_free)(struct device *device, void *base);

    /* Pins host memory, a whole mapping: devices may read and write it from now on. */
    enum strait_status (*pin)(void *base, size_t size, const struct device_why *why);
    void (*unpin)(void *base);

    /* Copies the pages of one list to those of another, with equal rows; complete on return. At least one side is a
     * device's. */
    enum strait_status (*copy)(struct device *to_device, const struct strait_pages *to, struct device *from_device,
                               const struct strait_pages *from);
};

/* Incremented with every change of the interface above. */
#define DEVICE_VERSION 6u

/* The plugin's file and the symbol that it exports. */
#define DEVICE_PLUGIN        "libstrait-node-cuda.so.0"
#define DEVICE_PLUGIN_SYMBOL "strait_node_device_ops"
typedef const struct device_ops *device_ops_get(void);

#ifdef __cplusplus
}
#endif
#endif
