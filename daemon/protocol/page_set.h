/* The pages of one expectation or offer: for each group, the map from logical index to page id. */
#ifndef STRAIT_DAEMON_PROTOCOL_PAGE_SET_H
#define STRAIT_DAEMON_PROTOCOL_PAGE_SET_H

#include "proto/message.h"

/* Logical indexes [first, first + count) without a gap; their ids begin at ids[ordinal] of the group. */
struct page_span {
    uint32_t first, count, ordinal;
};

/* A run of successive spans. Blocks are short and many, so that inserting a span in the middle moves little. */
struct page_block {
    struct page_span *spans;
    uint32_t count, capacity;
};

struct page_group {
    struct page_block *blocks; /* no block is empty */
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

/* group_count: the pool's. ERR_NO_MEMORY. fini is safe on a zeroed set. */
enum strait_status page_set_init(struct page_set *set, uint32_t group_count);
void page_set_fini(struct page_set *set);

/* Lists so unordered that one group needs more spans are refused. */
#define PAGE_SET_SPANS_MAX (64u * 1024)

/* Adds all pages of a list or none; an empty list adds none. ERR_INVALID: no such group, a logical index twice, indexes
 * or ids beyond 32 bits, more than STRAIT_TRANSFER_PAGES_MAX in all, or more than PAGE_SET_SPANS_MAX spans.
 * ERR_NO_MEMORY. Lists may come in any order; rising order is the fastest (no search, no move). */
enum strait_status page_set_add(struct page_set *set, const struct wire_page_list *list);

/* Iterates over the spans of a group, from a zeroed cursor: sorted by first, disjoint; adjacent ones are merged when
 * their ids are adjacent too. NULL: there are no more. Borrowed until the next add, which invalidates the cursor. */
struct page_cursor {
    uint32_t block, at;
};
const struct page_span *page_group_next(const struct page_group *group, struct page_cursor *cursor);

/* Replaces ids that rise by one with the first of them. */
void page_list_shorten(struct wire_page_list *list);

/* All spans, sorted by group and first, malloc'ed; NULL without memory. */
struct wire_span *page_set_spans(const struct page_set *set, uint32_t *count);

/* Could spans [0, count) be those of a set: sorted by group and first, disjoint, not empty, at most PAGE_SET_SPANS_MAX
 * of a group? The first `known` were checked before: only the others are looked at. */
bool page_spans_valid(const struct wire_span *spans, uint32_t known, uint32_t count);

/* Ids of logical indexes [first, first + count) of a group, borrowed until the next add. NULL unless all are in the set
 * without a gap. */
const uint32_t *page_set_ids(const struct page_set *set, uint32_t group, uint32_t first, uint32_t count);

/* Iterates over the set, from a zeroed cursor, by lists of at most `most` pages, shortened, which borrow ids until
 * the next add. False: there are no more. */
struct page_lists_cursor {
    uint32_t group;
    struct page_cursor at;
    struct page_span rest; /* of the span that was begun */
};
bool page_set_next_list(const struct page_set *set, struct page_lists_cursor *cursor, uint32_t most,
                        struct wire_page_list *list);

/* The largest n such that [first, first + n) is in the set with consecutive ordinals: what one lookup can cover. */
uint32_t page_set_run(const struct page_set *set, uint32_t group, uint32_t first);

#endif
