/* Walking a caller's page list. */
#ifndef STRAIT_KERNELS_PAGES_H
#define STRAIT_KERNELS_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/codec.h>

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

/* Page `index` of a checked list; false when its id is out of range. */
bool pages_get(const struct strait_pages *pages, uint32_t index, struct page *page);

/* Address of the `size` bytes from `offset` of the page, or NULL when they cross rows. */
uint8_t *page_span(const struct page *page, uint32_t offset, uint32_t size);

/* The same bytes gathered to, or scattered from, a buffer; they may cross rows. */
void page_read(const struct page *page, uint32_t offset, uint32_t size, uint8_t *dst);
void page_write(const struct page *page, uint32_t offset, uint32_t size, const uint8_t *src);

#endif
