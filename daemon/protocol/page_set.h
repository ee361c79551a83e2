/* The pages of one expectation or offer: for each group, which logical index is which page id. */
#ifndef STRAIT_DAEMON_PROTOCOL_PAGE_SET_H
#define STRAIT_DAEMON_PROTOCOL_PAGE_SET_H

#include "proto/message.h"

/* Logical indexes [first, first + count) without a gap; their ids begin at ids[ordinal] of the group. */
struct page_span {
    uint32_t first, count, ordinal;
};

/* Spans that follow one another. Many short blocks, so that one more in the middle moves little. */
struct page_block {
    struct page_span *spans;
    uint32_t count, capacity;
};

struct page_group {
    struct page_block *blocks; /* none is empty */
    uint32_t block_count, block_capacity;
    uint32_t span_count; /* of all blocks */
    uint32_t *ids;       /* by ordinal */
    uint32_t id_count, id_capacity;
};

struct page_set {
    struct page_group *groups;
    uint32_t group_count;
    uint64_t total; /* pages of all groups */
};

/* group_count as the pool has them. ERR_NO_MEMORY. fini is safe on a zeroed set. */
enum strait_status page_set_init(struct page_set *set, uint32_t group_count);
void page_set_fini(struct page_set *set);

/* Lists in so little order that they need more spans of one group are refused. */
#define PAGE_SET_SPANS_MAX (64u * 1024)

/* Adds pages; all or none; an empty list adds none. ERR_INVALID: no such group, a logical index twice, indexes or ids
 * beyond 32 bits, more than STRAIT_TRANSFER_PAGES_MAX in all, or PAGE_SET_SPANS_MAX spans. ERR_NO_MEMORY. Any order
 * of lists will do; rising is the fastest (no search, no move). */
enum strait_status page_set_add(struct page_set *set, const struct wire_page_list *list);

/* The spans of a group, one at each call, from a zeroed cursor on: sorted by first, disjoint; adjacent ones are merged
 * when their ids are too. NULL: that was the last. Borrowed until the next add, which makes the cursor useless. */
struct page_cursor {
    uint32_t block, at;
};
const struct page_span *page_group_next(const struct page_group *group, struct page_cursor *cursor);

/* All spans, sorted by group and first, malloc'ed; NULL without memory. */
struct wire_span *page_set_spans(const struct page_set *set, uint32_t *count);

/* Could spans [0, count) be those of a set? Sorted by group and first, disjoint, not empty, at most PAGE_SET_SPANS_MAX
 * of a group. The first `known` were found so before: only the others are looked at. */
bool page_spans_valid(const struct wire_span *spans, uint32_t known, uint32_t count);

/* Ids of logical indexes [first, first + count) of a group, borrowed until the next add, when they are in the set and
 * without a gap; else NULL. */
const uint32_t *page_set_ids(const struct page_set *set, uint32_t group, uint32_t first, uint32_t count);

/* The largest n such that [first, first + n) is in the set with consecutive ordinals: what one lookup can cover. */
uint32_t page_set_run(const struct page_set *set, uint32_t group, uint32_t first);

#endif
