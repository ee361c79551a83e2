/* A pool's memory as the driver sees it: what every byte must be, whoever writes to it. A page is filled from a tag
 * that is never used twice; guards lie between pages. All memory belongs to the driver, so that it outlives every
 * daemon and every client. */
#ifndef STRAIT_TESTS_CHAOS_PAGES_H
#define STRAIT_TESTS_CHAOS_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <strait/strait.h>

#ifdef __cplusplus
extern "C" {
#endif

#define POOL_PAGES   48u
#define POOL_REGIONS 4u
#define PAGE_BYTES   (32u * 1024)
#define GUARD_BYTES  192u
#define PAGE_STRIDE  (PAGE_BYTES + GUARD_BYTES)
#define REGION_BYTES ((size_t)POOL_PAGES * PAGE_STRIDE)
#define POOL_BYTES   (GUARD_BYTES + POOL_REGIONS * REGION_BYTES)

enum page_use {
    PAGE_KNOWN, /* has the content of its tag */
    PAGE_OPEN,  /* may be written by the daemon: content unknown */
};

struct pages {
    const struct memory_kind *kind;
    int32_t device; /* -1: the host's */
    int fd;         /* of the host's memory; -1: none */
    uint8_t *base;  /* NULL: there is no pool */
    uint8_t ipc[64];
    char name[48]; /* of the memfd, as /proc/PID/maps shows it */
    uint64_t tags[POOL_PAGES];
    uint8_t uses[POOL_PAGES];  /* enum page_use */
    uint8_t taken[POOL_PAGES]; /* in a transfer that is not over */
};

void pages_begin(void); /* once, before anything else */
/* Call it once in each process that creates pools of a kind. False: impossible. */
bool pages_use_kind(const struct memory_kind *kind);
/* Ends a child of such a process. */
void __attribute__((noreturn)) pages_exit_child(int status);
bool pages_create(struct pages *pages, const struct memory_kind *kind, int32_t device, const char *name,
                  uint64_t first_tag);
void pages_destroy(struct pages *pages);
/* The region to register, the same in every process. */
struct strait_pool_region pages_region(const struct pages *pages, uint32_t region);

void pages_fill(struct pages *pages, uint32_t page, uint64_t tag); /* and marks it PAGE_KNOWN */
bool pages_hold(const struct pages *pages, uint32_t page, uint64_t tag);
/* Checks all known pages and all guards; names the first wrong one in `why`. */
bool pages_verify(const struct pages *pages, char *why, size_t why_size);

/* ---- What differs between memory of the host, of the fake devices and of GPUs ------------------------------------ */

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
