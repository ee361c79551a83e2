#include "kernels/pages.h"

#include <string.h>

static enum strait_status region_check(const struct strait_region *region, uint32_t alignment)
{
    const bool has_columns = region->columns > 1;
    if (has_columns ? region->row_bytes % region->columns != 0 || region->columns >= STRAIT_COLUMN_STRIDE_MAX ||
                          region->column_stride >= STRAIT_COLUMN_STRIDE_MAX
                    : region->column_stride != 0)
        return STRAIT_ERR_INVALID;
    if ((region->page_count > 1 && region->page_stride >= STRAIT_STRIDE_MAX) ||
        (region->rows > 1 && region->row_stride >= STRAIT_STRIDE_MAX))
        return STRAIT_ERR_INVALID;
    if (region->base == NULL || region->rows == 0 || region->row_bytes == 0 ||
        (uint64_t)region->rows * region->row_bytes > STRAIT_PAGE_BYTES_MAX)
        return STRAIT_ERR_INVALID;
    uint64_t all = (uintptr_t)region->base;
    if (region->page_count > 1)
        all |= region->page_stride;
    if (region->rows > 1)
        all |= region->row_stride | region->row_bytes;
    if (has_columns)
        all |= region->column_stride | region->row_bytes / region->columns;
    return all % alignment == 0 ? STRAIT_OK : STRAIT_ERR_ALIGNMENT;
}

enum strait_status pages_check(const struct strait_pages *pages, uint32_t alignment)
{
    if (pages == NULL || pages->regions == NULL || pages->region_count == 0 || pages->id_count == 0 ||
        (uint64_t)pages->region_count * pages->id_count > STRAIT_CHUNK_PAGES_MAX)
        return STRAIT_ERR_INVALID;
    for (uint32_t r = 0; r < pages->region_count; r++) {
        enum strait_status status = region_check(&pages->regions[r], alignment);
        if (status != STRAIT_OK)
            return status;
    }
    return STRAIT_OK;
}

bool pages_get(const struct strait_pages *pages, uint32_t index, struct page *page)
{
    uint32_t i = index % pages->id_count;
    uint32_t id = pages->ids == NULL ? i : pages->ids[i];
    page->region = &pages->regions[index / pages->id_count];
    page->bytes = region_page_bytes(page->region);
    bool known = id < page->region->page_count;
    page->base = known ? (uint8_t *)page->region->base + id * page->region->page_stride : NULL;
    return known;
}

bool page_is_in_row(const struct page *page)
{
    const struct strait_region *region = page->region;
    return region->columns <= 1 && (region->rows == 1 || region->row_stride == region->row_bytes);
}

uint8_t *page_span(const struct page *page, uint32_t offset, uint32_t size)
{
    const struct strait_region *region = page->region;
    if (page_is_in_row(page))
        return page->base + offset;
    if (region->columns > 1)
        return NULL;
    uint32_t row = offset / region->row_bytes, inside = offset % region->row_bytes;
    return inside + size <= region->row_bytes ? page->base + row * region->row_stride + inside : NULL;
}

struct cursor page_cursor(const struct page *page, uint32_t offset)
{
    const struct strait_region *region = page->region;
    const uint32_t columns = region->columns > 1 ? region->columns : 1, bytes = region->row_bytes / columns;
    const uint32_t number = offset / bytes, inside = offset % bytes;
    struct cursor cursor = {.left = bytes - inside,
                            .piece = bytes,
                            .column = number % columns,
                            .last = columns - 1,
                            .row = page->base + number / columns * region->row_stride,
                            .row_stride = region->row_stride,
                            .column_stride = region->column_stride};
    cursor.at = cursor.row + cursor.column * cursor.column_stride + inside;
    return cursor;
}

void page_read(const struct page *page, uint32_t offset, uint32_t size, uint8_t *dst, const uint8_t *next)
{
    struct cursor cursor = page_cursor(page, offset);
    for (uint32_t n; size > 0; dst += n, size -= n) {
        n = cursor.left < size ? cursor.left : size;
        if (next != NULL)
            cursor_prefetch(next + (cursor.at - page->base), n);
        memcpy(dst, cursor.at, n);
        cursor_pass(&cursor, n);
    }
}

bool page_sums_by_pieces(const struct page *page)
{
    const struct strait_region *region = page->region;
    const uint32_t bytes = region->columns > 1 ? region->row_bytes / region->columns : region->row_bytes;
    return bytes % BLOCK_PIECE_UNIT == 0;
}

void page_write(const struct block_ops *blocks, const struct page *page, uint32_t offset, uint32_t size,
                const uint8_t *src, bool stream)
{
    struct cursor cursor = page_cursor(page, offset);
    for (uint32_t n; size > 0; src += n, size -= n) {
        n = cursor.left < size ? cursor.left : size;
        blocks->copy(cursor.at, src, n, stream);
        cursor_pass(&cursor, n);
    }
}
