/* A pool's memory as the driver sees it: what every byte must be, whoever writes to it. A page is filled from a tag
 * that is never used twice; guards lie between pages. */
#ifndef TESTS_CHAOS_PAGES_H
#define TESTS_CHAOS_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
    int fd;
    uint8_t *base;
    char name[48]; /* of the memfd, as /proc/PID/maps shows it */
    uint64_t tags[POOL_PAGES];
    uint8_t uses[POOL_PAGES];  /* enum page_use */
    uint8_t taken[POOL_PAGES]; /* in a transfer that is not over */
};

void pages_begin(void); /* once, before anything else */
bool pages_create(struct pages *pages, const char *name, uint64_t first_tag);
void pages_destroy(struct pages *pages);

static inline size_t pages_region_offset(uint32_t region)
{
    return GUARD_BYTES + region * REGION_BYTES;
}

void pages_fill(struct pages *pages, uint32_t page, uint64_t tag); /* and makes it known */
bool pages_hold(const struct pages *pages, uint32_t page, uint64_t tag);
/* All known pages and all guards; the first that is wrong is named in `why`. */
bool pages_check(const struct pages *pages, char *why, size_t why_size);

#endif
