/* The ready units of a leg, in the order of their numbers, and how they are cut into chunks. */
#ifndef STRAIT_DAEMON_PROTOCOL_SEGMENTS_H
#define STRAIT_DAEMON_PROTOCOL_SEGMENTS_H

#include <strait/codec.h>

#include "daemon/protocol/page_set.h"

struct segments {
    struct segment *list;
    uint32_t *starts; /* per segment: number of its first unit */
    uint32_t count, capacity;
    uint32_t units; /* units of all segments */
};

/* A rectangle of units inside one segment: what one chunk carries. */
struct piece {
    uint32_t group;
    uint32_t region_first, region_count;
    uint32_t first, count; /* logical indexes */
};

void segments_fini(struct segments *segments);

/* ERR_INVALID: empty, or the units would overflow; ERR_NO_MEMORY. */
enum strait_status segments_add(struct segments *segments, const struct segment *segment);

/* Units [first, first + count) as a rectangle. False: they form none: beyond the end, across segments, or neither part
 * of one row nor whole rows. */
bool segments_piece(const struct segments *segments, uint32_t first, uint32_t count, struct piece *piece);

/* Sizes of a pool's regions, by group and place in the group's order: filled in by the pool. The regions' `table` and
 * `base` are not used here, but `base` must not be NULL (strait_encode_bound checks). */
struct region_sizes {
    const struct strait_region *const *groups; /* [group][region] */
    const uint32_t *region_counts;             /* per group */
    uint32_t group_count;
};

/* How many units from `first` on, at most `most`, one chunk can carry such that its strait_encode_bound is at most
 * `capacity`: whole rows when one fits, else part of a row; never across segments. A chunk is also cut where the pages'
 * ids would not be consecutive ordinals of `pages` (NULL: not checked). 0: not even one page fits, or `sizes` lacks the
 * region. */
uint32_t segments_cut(const struct segments *segments, uint32_t first, uint32_t most, const struct region_sizes *sizes,
                      const struct page_set *pages, uint64_t capacity);

/* The same for one chunk, as both sides cut it: about `target` bytes, or one page alone when that is larger, but at
 * most `limit`. 0: even one page does not fit. */
uint32_t segments_cut_chunk(const struct segments *segments, uint32_t first, uint32_t most,
                            const struct region_sizes *sizes, const struct page_set *pages, uint64_t target,
                            uint64_t limit);

/* Bytes of the pages of a segment; 0: `sizes` lacks its regions. */
uint64_t segment_bytes(const struct segment *segment, const struct region_sizes *sizes);

/* Finds the wanted part of `offered`: calls `emit` with each piece of the segment whose logical indexes lie in a span
 * of `wanted` (sorted, disjoint, one group or several). Stops at emit's first error. */
enum strait_status segment_intersect(const struct segment *offered, const struct wire_span *wanted,
                                     uint32_t wanted_count,
                                     enum strait_status (*emit)(void *owner, const struct segment *segment),
                                     void *owner);

#endif
