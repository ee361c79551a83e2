/* Pages of a caller's list on a CPU: checks, places, gathering and scattering. */
#ifndef STRAIT_KERNELS_PAGES_H
#define STRAIT_KERNELS_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <strait/codec.h>

#include "kernels/block.h"

/* One page of a list. */
struct page {
    const struct strait_region *region;
    uint8_t *base; /* of its first row */
    uint32_t bytes;
};

static inline uint32_t pages_count(const struct strait_pages *pages)
{
    return pages->region_count * pages->id_count;
}

static inline uint32_t region_page_bytes(const struct strait_region *region)
{
    return region->rows * region->row_bytes;
}

/* Checks counts, sizes and, for elements of `alignment` bytes, alignments, but not ids. ERR_INVALID, ERR_ALIGNMENT. */
enum strait_status pages_check(const struct strait_pages *pages, uint32_t alignment);

/* Address of the `size` bytes from `offset` of the page, or NULL when they cross rows. */
uint8_t *page_span(const struct page *page, uint32_t offset, uint32_t size);

/* Page `index` of a checked list; false when its id is out of range. */
bool pages_get(const struct strait_pages *pages, uint32_t index, struct page *page);

/* Whether the page's bytes lie one after another. */
bool page_is_in_row(const struct page *page);

/* The piece that has the byte at `offset` of the page, from there on. */
struct cursor page_cursor(const struct page *page, uint32_t offset);

/* Whether pieces of the page, from any block's beginning on, can be summed as they are copied. */
bool page_sums_by_pieces(const struct page *page);

/* Gathers `size` bytes from `offset` of the page to a buffer; they may cross rows. `next`: the page that is read next,
 * whose same rows are prefetched, as processors prefetch no rows; NULL: none. */
void page_read(const struct page *page, uint32_t offset, uint32_t size, uint8_t *dst, const uint8_t *next);

/* Scatters them. With `stream` the stores go past the caches. */
void page_write(const struct block_ops *blocks, const struct page *page, uint32_t offset, uint32_t size,
                const uint8_t *src, bool stream);

#endif
