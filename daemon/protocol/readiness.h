/* Which units of an offer are ready to be sent. Pages may be listed before they are ready, and become ready by pages
 * and layers in any order, each unit once. Kept only for offers that need it: where there is none, every listed page
 * is ready. */
#ifndef STRAIT_DAEMON_PROTOCOL_READINESS_H
#define STRAIT_DAEMON_PROTOCOL_READINESS_H

#include "daemon/protocol/page_set.h"

struct ready_group {
    uint32_t region_count;
    uint32_t words; /* of a row */
    uint64_t *rows; /* bits by the ordinals of pages: first those that were listed as `later`, then, for each region,
                       those that are ready */
};

struct readiness {
    uint32_t group_count;
    struct ready_group *groups; /* NULL: not kept */
};

/* Begins to keep it. Pages that are in the set already are all ready, or (later) all not ready and listed as `later`.
 * region_counts: of each group of the set. ERR_NO_MEMORY. */
enum strait_status readiness_init(struct readiness *readiness, const struct page_set *pages,
                                  const uint32_t *region_counts, bool later);
void readiness_fini(struct readiness *readiness); /* safe on a zeroed one */
uint64_t readiness_bytes(const struct readiness *readiness);

/* Takes in a list that was added to the set: none of it is ready, and it is listed as `later` if it says so.
 * ERR_NO_MEMORY. */
enum strait_status readiness_add(struct readiness *readiness, const struct page_set *pages,
                                 const struct wire_page_list *list, bool later);

/* A segment is ready now. ERR_INVALID, and nothing is marked: part of it was ready before. All of its pages must be in
 * the set, and have been added. */
enum strait_status readiness_mark(struct readiness *readiness, const struct page_set *pages,
                                  const struct segment *segment);

/* Regions [begin, end) of a group's pages that were listed as `later` and whose ordinals are below `limit` are ready
 * now, but for those that were ready before: `emit` receives the new ones as segments, until it returns false. False
 * then. */
bool readiness_mark_later(struct readiness *readiness, const struct page_set *pages, uint32_t group, uint32_t begin,
                          uint32_t end, uint32_t limit, bool (*emit)(void *owner, const struct segment *segment),
                          void *owner);

/* False: something is not ready; *missing receives the first such unit. */
bool readiness_is_complete(const struct readiness *readiness, const struct page_set *pages, struct segment *missing);

#endif
