/* Tracks which units of an expectation have landed, each at most once; which layers are complete; and what is missing
 * in the end. */
#ifndef STRAIT_DAEMON_PROTOCOL_COVERAGE_H
#define STRAIT_DAEMON_PROTOCOL_COVERAGE_H

#include "daemon/protocol/page_set.h"
#include "daemon/protocol/segments.h"

#define COVERAGE_BYTES_MAX (64u * 1024 * 1024) /* of bitmaps: larger expectations are */

struct coverage;

/* The regions of one group of the sink's pool, in the group's order. */
struct coverage_group {
    uint32_t region_count;
    const int32_t *layers; /* of each region, rising; -1: of no layer */
};

/* Begins with nothing claimed and nothing landed. `pages` is borrowed and must not change while the coverage exists. On
 * OK the caller owns *coverage. ERR_INVALID (another number of groups than `pages` has), ERR_NO_MEMORY (also beyond
 * COVERAGE_BYTES_MAX). */
enum strait_status coverage_create(const struct page_set *pages, const struct coverage_group *groups,
                                   uint32_t group_count, struct coverage **coverage);
void coverage_destroy(struct coverage *coverage); /* NULL is allowed */

/* A source announces units. False: some are not expected, or were announced before by any leg; then none is claimed. */
bool coverage_claim(struct coverage *coverage, const struct segment *segment);

/* A piece is in place. Calls `layer` (may be NULL) for each layer that this completes. A piece must have been claimed
 * and may land only once: otherwise false, and nothing changes. */
bool coverage_land(struct coverage *coverage, const struct piece *piece, void (*layer)(void *owner, int32_t layer),
                   void *owner);

/* Collects layers: a `layer` for the calls above and below, with a struct layers as its owner. */
struct layers {
    uint32_t count;
    int32_t list[STRAIT_REGIONS_MAX];
};
void layers_add(void *owner, int32_t layer);

bool coverage_complete(const struct coverage *coverage); /* every unit of every expected page has landed */
/* Nothing that is expected of the layer is missing; also true where nothing is expected. */
bool coverage_layer_landed(const struct coverage *coverage, int32_t layer);
/* Number of layers reported as complete: those of which nothing is expected do not count. */
uint32_t coverage_layers_landed(const struct coverage *coverage);

/* The logical index behind the last page of a group that has landed in any region; *end is set if it is the same in all
 * of which something has been claimed. False: it is not, or none has landed. */
bool coverage_end(const struct coverage *coverage, uint32_t group, uint32_t *end);
/* The same of the first page of a group that has landed. */
bool coverage_begin(const struct coverage *coverage, uint32_t group, uint32_t *begin);

/* Reports ranges of pages of which some region has not landed, in order of group and index, until `range` has enough
 * and returns false. Each range lies in one span of `pages` and is not empty; its ids are borrowed from there. Long
 * ranges are split soon after COVERAGE_RANGE_MAX pages, and have less than twice as many, so that a receiver that has
 * enough need not wait for their end. */
#define COVERAGE_RANGE_MAX 4096u
void coverage_missing(const struct coverage *coverage, bool (*range)(void *owner, const struct wire_page_list *range),
                      void *owner);

/* Reports, in the same form, those pages of a piece that have landed in all regions. Of a piece that has just landed
 * they are new: a unit lands once, and the last unit of a page was among them. */
void coverage_whole(const struct coverage *coverage, const struct piece *piece,
                    bool (*range)(void *owner, const struct wire_page_list *range), void *owner);

#endif
