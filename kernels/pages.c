#include "kernels/pages.h"

#include <string.h>

static enum strait_status region_check(const struct strait_region *region, uint32_t alignment)
{
    if (region->reserved[0] != 0 || region->reserved[1] != 0)
        return STRAIT_ERR_INVALID;
    if (region->base == NULL || region->rows == 0 || region->row_bytes == 0 ||
        (uint64_t)region->rows * region->row_bytes > STRAIT_PAGE_BYTES_MAX)
        return STRAIT_ERR_INVALID;
    uint64_t all = (uintptr_t)region->base;
    if (region->page_count > 1)
        all |= region->page_stride;
    if (region->rows > 1)
        all |= region->row_stride | region->row_bytes;
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
    if (id >= page->region->page_count)
        return false;
    page->base = (uint8_t *)page->region->base + id * page->region->page_stride;
    return true;
}

uint8_t *page_span(const struct page *page, uint32_t offset, uint32_t size)
{
    const struct strait_region *region = page->region;
    if (region->rows == 1 || region->row_stride == region->row_bytes)
        return page->base + offset;
    uint32_t row = offset / region->row_bytes, inside = offset % region->row_bytes;
    return inside + size <= region->row_bytes ? page->base + row * region->row_stride + inside : NULL;
}

/* Address of the byte at `offset` of the page; *piece becomes how many of the `left` bytes lie in that row. */
static uint8_t *row_piece(const struct page *page, uint32_t offset, uint32_t left, uint32_t *piece)
{
    uint32_t row = offset / page->region->row_bytes, inside = offset % page->region->row_bytes;
    uint32_t rest = page->region->row_bytes - inside;
    *piece = rest < left ? rest : left;
    return page->base + row * page->region->row_stride + inside;
}

void page_read(const struct page *page, uint32_t offset, uint32_t size, uint8_t *dst)
{
    for (uint32_t piece; size > 0; offset += piece, dst += piece, size -= piece) {
        const uint8_t *src = row_piece(page, offset, size, &piece);
        memcpy(dst, src, piece);
    }
}

void page_write(const struct page *page, uint32_t offset, uint32_t size, const uint8_t *src)
{
    for (uint32_t piece; size > 0; offset += piece, src += piece, size -= piece) {
        uint8_t *dst = row_piece(page, offset, size, &piece);
        memcpy(dst, src, piece);
    }
}
