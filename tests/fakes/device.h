/* A device plugin for tests without GPUs: its devices are threads, their memory is in memfds or in the process. It is
 * strict: memory that is not mapped or pinned as the interface demands aborts the program.
 *
 * Its IPC handle names a descriptor of a process. An event is an eventfd, readable when it has completed, with
 * FAKE_EVENT_FAILED when it has failed. */
#ifndef STRAIT_TESTS_FAKE_DEVICE_H
#define STRAIT_TESTS_FAKE_DEVICE_H

#include <stdatomic.h>
#include <stdint.h>

#define FAKE_DEVICES      2u
#define FAKE_EVENT_FAILED 1000u

/* Stands for a cudaIpcMemHandle_t or a cudaIpcEventHandle_t; in embedded mode an event is a pointer to one. */
struct fake_handle {
    int32_t pid, fd;
    int32_t device; /* of memory */
    uint8_t padding[52];
};

/* How the tests control the devices of this process and what they count: the symbol "fake_device_control". */
struct fake_control {
    _Atomic uint32_t delay_us;               /* of every batch and copy */
    _Atomic uint32_t bus_delay_us;           /* in addition, of every batch to or from host memory */
    _Atomic uint32_t stall_us[FAKE_DEVICES]; /* delay of a device's next batch only */
    _Atomic uint32_t fail;       /* bits: these devices fail at their next work, and each takes all others */
                                 /* of its node with it, as with GPUs of one process */
    _Atomic uint32_t fail_alone; /* bits: these fail at their next work, without affecting others */
    _Atomic uint32_t close_us;   /* so long does closing a device take */
    _Atomic uint32_t refuse_map; /* mapping memory fails, but no device does */
    _Atomic uint32_t no_device;  /* there are no devices */
    _Atomic uint32_t refuse_pin, refuse_arena, refuse_reach;
    _Atomic uint32_t ignore_flags; /* no flag is seen in time */
    _Atomic uint32_t flag_us;      /* how long one is waited for; 0: as long as a GPU waits */
    /* Counted; waited: chunks that were decoded by their flags; waiting: decoders that have begun to. */
    _Atomic uint32_t batches, tasks, largest_batch, copies, mapped, pinned, reached, woken, waited, waiting;
};

#endif
