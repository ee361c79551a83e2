/* The memory of pools: what differs between host memory, memory of the fake devices and of real GPUs. All of it belongs
 * to the driver, so that it outlives every daemon and every client. */
#ifndef TESTS_CHAOS_MEMORY_H
#define TESTS_CHAOS_MEMORY_H

#include "tests/chaos/pages.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Some bytes of a pool and their required content: words of the table from which all content is made, each XORed with
 * `flip`. */
struct part {
    uint64_t offset; /* in the pool; a multiple of 8, as is: */
    uint32_t bytes;
    uint32_t first; /* word of the table */
    uint64_t flip;
};

#define PARTS_MAX (1u + 2u * POOL_REGIONS * POOL_PAGES) /* pages and guards of a pool */

struct memory_kind {
    const char *name;
    /* The memory is behind a driver: /proc/PID/maps does not name it, and children of a process that uses it may not
     * run the driver's exit handlers. */
    bool has_driver;

    /* The number of devices. 0: there is no memory of this kind here. Leaves no device in use. */
    uint32_t (*devices)(void);
    /* Called before anything else in this process; the table stays valid as long as the process. */
    bool (*begin)(const uint64_t *table, size_t words);

    /* Allocates POOL_BYTES of any content, on pages->device. */
    bool (*take)(struct pages *pages);
    void (*give)(struct pages *pages);
    /* How the client names the memory to its daemon: works in any process, also in a child that cannot use the devices.
     */
    void (*describe)(const struct pages *pages, struct strait_pool_region *region);

    /* Writes on the device itself; complete on return. */
    void (*write)(const struct pages *pages, const struct part *parts, uint32_t count);
    /* The first part with wrong content; `count`: none. */
    uint32_t (*find_wrong)(const struct pages *pages, const struct part *parts, uint32_t count);
};

extern const struct memory_kind memory_host, memory_fake;
extern const struct memory_kind memory_cuda; /* with CUDA only: TESTS_CHAOS_CUDA */

#ifdef __cplusplus
}
#endif
#endif
