/* A plugin for the tests of everything around GPUs: its devices are threads, their memory is that of memfds or of the
 * process. It takes nothing for granted: what is not mapped or pinned as the interface demands ends the program.
 *
 * An IPC handle of it names a descriptor of a process; an event is an eventfd, readable when it has completed, with
 * FAKE_EVENT_FAILED when it has failed. */
#ifndef STRAIT_TESTS_FAKE_DEVICE_H
#define STRAIT_TESTS_FAKE_DEVICE_H

#include <stdatomic.h>
#include <stdint.h>

#define FAKE_DEVICES      2u
#define FAKE_EVENT_FAILED 1000u

/* In place of a cudaIpcMemHandle_t or a cudaIpcEventHandle_t; in embedded mode an event is a pointer to one. */
struct fake_handle {
    int32_t pid, fd;
    int32_t device; /* of memory */
    uint8_t padding[52];
};

/* What the tests tell the devices of this process, and learn of them: the symbol "fake_device_control". */
struct fake_control {
    _Atomic uint32_t delay_us;               /* of every batch and copy */
    _Atomic uint32_t bus_delay_us;           /* and of every batch to or from the host's memory */
    _Atomic uint32_t stall_us[FAKE_DEVICES]; /* of a device's next batch alone */
    _Atomic uint32_t fail;                   /* bits: these devices fail with their next work, and with one of them */
                                             /* all others of its node, as those of a process do */
    _Atomic uint32_t fail_alone;             /* bits: these fail with their next work, and no other one with them */
    _Atomic uint32_t refuse_map;             /* memory cannot be mapped: no device fails of that */
    _Atomic uint32_t no_device;              /* there are none */
    _Atomic uint32_t refuse_pin, refuse_arena, refuse_reach;
    /* Counted. */
    _Atomic uint32_t batches, tasks, largest_batch, copies, mapped, pinned, reached, roused;
};

#endif
