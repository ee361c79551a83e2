/* A pool's memory as the driver sees it: what every byte must be, whoever writes to it. A page is filled from a tag
 * that is never used twice; guards lie between pages. memory.h hides where the memory is and how it is accessed. */
#ifndef TESTS_CHAOS_PAGES_H
#define TESTS_CHAOS_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <strait/strait.h>

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

struct memory_kind;

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
bool check_pages(const struct pages *pages, char *why, size_t why_size);

#endif
