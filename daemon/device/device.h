/* What the daemon asks of GPUs. Behind this interface is a plugin, a shared object that knows the vendor's runtime; the
 * daemon loads it when the first client registers memory of a GPU, and without it, or without a GPU, has none. The
 * tests have a plugin of their own, whose devices are threads and whose memory is the host's.
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

#define DEVICE_EVENT_BYTES  64u /* of an event that another process recorded: a cudaIpcEventHandle_t */
#define FAR_PAGES_MAX       32768u
#define DEVICE_HANDLE_BYTES 64u /* of memory that another process allocated: a cudaIpcMemHandle_t */

/* ---- Work -------------------------------------------------------------------------------------------------------- */

enum device_work {
    DEVICE_ENCODE,
    DEVICE_DECODE,
    DEVICE_READY, /* an event has completed */
};

/* One piece of work. The pages' bases are addresses of the device's memory as it is mapped here; regions and ids, the
 * metadata and the task itself are the owner's and stay until it is finished. */
struct device_task {
    enum device_work work;
    struct device_task *next;                   /* of the list that it is in */
    void (*finished)(struct device_task *task); /* by the daemon, on its loop */
    uint64_t created, queued;                   /* ns: uv_hrtime then, and from then until the work began */

    struct strait_pages pages;
    enum strait_element element; /* encode */
    enum strait_mode mode;       /* encode */
    bool far;                    /* the chunk is in a GPU's arena: encode: any; decode: this device's own */
    bool away;                   /* encode, far: another GPU's, so that the chunk crosses a link while it is encoded */
    void *dst;                   /* encode: in memory that is pinned; far: in what was reached, or in the arena */
    const void *src;             /* decode: likewise; far: in the arena */
    uint64_t size;               /* of dst or src */
    const void *metadata;        /* decode: a copy of the chunk's, that nobody changes; far: the plugin makes it */
    uint64_t metadata_size;      /* of it; far: that of any chunk that begins like `begins` */
    uint8_t begins[16];          /* decode, far: if the chunk does not, its metadata is taken as zeroes */
    uint8_t event[DEVICE_EVENT_BYTES]; /* ready: as the client told it; of this process: a pointer's bytes */
    uint32_t event_size;
    bool forgotten; /* ready: nobody waits any more; set at any time, and it is over soon */

    enum strait_status status;   /* of the call: ERR_DEVICE when the device failed */
    struct strait_result result; /* when that is OK */
    uint64_t escapes;            /* of all tasks that ran together, told with one of them */
    uint64_t nanoseconds;        /* this one's share of the time that they took */
};

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* Memory as a client names it. */
struct device_handle {
    enum strait_handle kind;
    const uint8_t *ipc; /* CUDA_IPC: 64 bytes */
    int fd;             /* CUDA_VMM: borrowed */
    uint8_t *pointer;   /* POINTER: the first byte that is needed */
    uint64_t size;      /* bytes needed, from the beginning of the memory or from the pointer */
};

/* The same as it is mapped here. */
struct device_memory {
    uint8_t *base; /* the beginning of the memory, or the pointer */
    uint64_t size; /* of the mapping */
    void *mapping; /* the plugin's */
};

/* Where an error is told, for people. */
struct device_why {
    char *text;
    size_t size;
};

/* ---- The plugin -------------------------------------------------------------------------------------------------- */

struct device; /* a GPU in use: the plugin's */

/* The codec, which a plugin does not link. */
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
    uint64_t slot_bytes;                    /* the largest chunk but for far ones, */
    uint64_t far_bytes;                     /* whose size this is, of at most FAR_PAGES_MAX pages */
    uint32_t multiprocessors;               /* that a launch may occupy; 0: all */
    uint64_t attention_ns;                  /* after the latest task: so long its thread does not sleep */
    /* A task is over. On any thread; the plugin does not look at the task any more. */
    void (*done)(void *owner, struct device_task *task);
    /* This device has failed for good: `failure` says with what, and all its tasks come back, if they have not. On any
     * thread, once. */
    void (*failed)(void *owner);
    void *owner;
};

/* All but `submit`, `rouse` and `failure` may block, and are called on workers. Where pages lie on the host, `device`
 * is NULL.
 */
struct device_ops {
    uint32_t version; /* DEVICE_VERSION */

    /* How many GPUs there are. 0: none that can be used. */
    uint32_t (*count)(const struct device_why *why);
    /* Takes a GPU into use: a context, memory and threads of its own. ERR_UNSUPPORTED (it cannot run the codec),
     * ERR_NO_MEMORY, ERR_DEVICE. */
    enum strait_status (*open)(const struct device_setup *setup, int32_t number, struct device **device,
                               const struct device_why *why);
    /* All tasks are over but for events, which come back through `done`. */
    void (*close)(struct device *device);

    /* A list of tasks, in any mixture; those that fit together are run together. Never blocks, never fails: each comes
     * back through `done`. */
    void (*submit)(struct device *device, struct device_task *first);
    /* Work is about to come: whatever takes time before the first of it can run may begin. Never blocks. */
    void (*rouse)(struct device *device);
    /* Has the device failed for good? Then with what. One that breaks what all devices of the process share fails all
     * of them, with a reason that names it. Any thread. */
    bool (*failure)(struct device *device, const struct device_why *why);

    /* ERR_INVALID: no such memory, too little of it, or another device's. ERR_UNSUPPORTED, ERR_NO_MEMORY, ERR_DEVICE.
     */
    enum strait_status (*map)(struct device *device, const struct device_handle *handle, struct device_memory *memory,
                              const struct device_why *why);
    /* Memory of any device of this host, which another process allocated by `arena`, for encoders of this device to
     * store to. ERR_UNSUPPORTED: it cannot be reached from here. */
    enum strait_status (*reach)(struct device *device, const uint8_t handle[DEVICE_HANDLE_BYTES], uint64_t size,
                                struct device_memory *memory, const struct device_why *why);
    /* Undoes either. */
    void (*unmap)(struct device *device, struct device_memory *memory);

    /* Memory of the device that others reach by the handle. */
    enum strait_status (*arena)(struct device *device, uint64_t size, void **base, uint8_t handle[DEVICE_HANDLE_BYTES],
                                const struct device_why *why);
    void (*arena_free)(struct device *device, void *base);

    /* Host memory that devices may read and write from now on: a whole mapping. */
    enum strait_status (*pin)(void *base, size_t size, const struct device_why *why);
    void (*unpin)(void *base);

    /* Pages of one list to the pages of another, of equal rows; done on return. One of the two is a device's. */
    enum strait_status (*copy)(struct device *to_device, const struct strait_pages *to, struct device *from_device,
                               const struct strait_pages *from);
};

/* Grows with every change of what is above. */
#define DEVICE_VERSION 5u

/* The plugin, and what it exports. */
#define DEVICE_PLUGIN        "libstrait-node-cuda.so.0"
#define DEVICE_PLUGIN_SYMBOL "strait_node_device_ops"
typedef const struct device_ops *device_ops_get(void);

#ifdef __cplusplus
}
#endif
#endif
