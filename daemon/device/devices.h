/* The GPUs of a node: the plugin, loaded on first use; the devices in use; and the completion of their tasks, reported
 * on the loop. */
#ifndef STRAIT_DAEMON_DEVICE_DEVICES_H
#define STRAIT_DAEMON_DEVICE_DEVICES_H

#include "daemon/device/device.h"

struct uv_loop_s;
struct devices;

#define DEVICES_MAX 64

struct devices_config {
    const struct strait_codebook *codebook; /* borrowed; NULL: none */
    uint64_t slot_bytes, gpu_chunk_bytes;   /* largest chunks, see device.h */
    uint64_t arena_bytes;                   /* size of each device's arena; 0: no arenas */
    uint32_t multiprocessors;               /* that a launch may occupy; 0: all */
    uint64_t busy_poll_ns;                  /* see device.h */
    void (*failed)(void *owner); /* called on the loop: one or more devices in use have failed; may be NULL */
    void *owner;
};

/* `leave` is called when the process exits, before the driver's own handlers: those of a process run in the opposite
 * order of their registration, and this one is registered when the first device has been opened. Afterwards no device
 * may be in use. To be called before any is opened. */
void devices_before_exit(void (*leave)(void));

/* Loads and opens nothing yet. ERR_NO_MEMORY. */
enum strait_status devices_create(struct uv_loop_s *loop, const struct devices_config *config,
                                  struct devices **devices);
/* Nothing of it may be in use. Blocks while devices are closed; its handle closes on the loop afterwards. NULL is
 * allowed. */
void devices_destroy(struct devices *devices);
/* Reports the tasks that are done, and looks from now on: until devices_sleep the loop is not woken for others. To be
 * called in every turn in between. */
void devices_look(struct devices *devices);
/* The loop may sleep. True: there are tasks to be looked at, for which it will not be woken. */
bool devices_sleep(struct devices *devices);
/* Adds memory of this process that every device is to reach; it is pinned when the first device is taken into use. At
 * most two. */
void devices_add_arena(struct devices *devices, void *base, size_t size);

/* Another codebook set (borrowed; NULL: none) for devices that will be taken into use. False: one is in use or being
 * opened, and has its tables from the set that there is, which stays. */
bool devices_set_codebook(struct devices *devices, const struct strait_codebook *codebook);

/* ---- On workers: these may block --------------------------------------------------------------------------------- */

/* Takes device `number` into use unless it is already. ERR_UNSUPPORTED: no plugin, no driver, no such device;
 * ERR_DEVICE: it has failed; ERR_NO_MEMORY. */
enum strait_status devices_open(struct devices *devices, int32_t number, const struct device_why *why);
/* The device must be in use; errors as in device.h. */
enum strait_status devices_map(struct devices *devices, int32_t number, const struct device_handle *handle,
                               struct device_memory *memory, const struct device_why *why);
enum strait_status devices_reach(struct devices *devices, int32_t number, const uint8_t handle[DEVICE_HANDLE_BYTES],
                                 uint64_t size, struct device_memory *memory, const struct device_why *why);
void devices_unmap(struct devices *devices, int32_t number, struct device_memory *memory); /* undoes map or reach */
/* Some device must be in use. */
enum strait_status devices_pin(struct devices *devices, void *base, size_t size, const struct device_why *why);
void devices_unpin(struct devices *devices, void *base);
/* A number of -1 means host memory. */
enum strait_status devices_copy(struct devices *devices, int32_t to_number, const struct strait_pages *to,
                                int32_t from_number, const struct strait_pages *from);

/* ---- On the loop ------------------------------------------------------------------------------------------------- */

/* Tells a device in use that work for it is about to come. */
void devices_wake(struct devices *devices, int32_t number);
/* Submits a list of tasks to a device in use. `finished` of each is called in a later turn. */
void devices_submit(struct devices *devices, int32_t number, struct device_task *first);

/* State of a device; devices_state returns false when the device is not in use. */
struct device_state {
    bool failed;
    char why[256];  /* set when it failed */
    char codec[96]; /* kernels of the codec that it runs */
};
bool devices_state(struct devices *devices, int32_t number, struct device_state *state);

/* The arena of a device in use, valid until devices_destroy. */
struct devices_arena {
    void *base; /* NULL: it could not be made */
    uint8_t handle[DEVICE_HANDLE_BYTES];
    char why[256];               /* reason for a NULL base */
    uint8_t id[DEVICE_ID_BYTES]; /* of the GPU */
};
/* NULL: the device is not in use, or arenas are off. */
const struct devices_arena *devices_arena(struct devices *devices, int32_t number);

#endif
