#include "tests/chaos/pages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <strait/codec.h>

#include "tests/chaos/memory.h"

#define BASE_WORDS  65536u /* a power of two */
#define GUARD_FIRST (BASE_WORDS + PAGE_BYTES / 8)
#define TABLE_WORDS (GUARD_FIRST + GUARD_BYTES / 8)
#define GUARD_BYTE  0xc7
#define FRACTIONS   0x003f003f003f003fu /* of four BF16 values: bits that no exponent depends on */

static uint64_t table[TABLE_WORDS];

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Values like those of a KV cache: signs and fractions at random, few exponents, now and then a strange one. */
static uint16_t value(uint64_t random)
{
    uint32_t exponent = 120 + (uint32_t)__builtin_ctzll(random | 0x40);
    if (((random >> 40) & 1023) == 0)
        exponent = (random >> 50) & 0xff;
    return (uint16_t)(((random >> 32) & 0x807f) | exponent << 7);
}

void pages_begin(void)
{
    uint16_t *values = (uint16_t *)table;
    for (uint32_t i = 0; i < GUARD_FIRST * 4; i++)
        values[i] = value(mix(i));
    memset(table + GUARD_FIRST, GUARD_BYTE, GUARD_BYTES);
}

static bool driver_is_used;

bool pages_use_kind(const struct memory_kind *kind)
{
    driver_is_used |= kind->has_driver;
    return kind->begin(table, TABLE_WORDS);
}

void pages_exit_child(int status)
{
    if (driver_is_used)
        _exit(status);
    exit(status); /* where leaks are looked for */
}

/* ---- Parts ---------------------------------------------------------------------------------------------------- */

static uint64_t region_offset(uint32_t region)
{
    return GUARD_BYTES + region * REGION_BYTES;
}

static uint64_t page_offset(uint32_t region, uint32_t page)
{
    return region_offset(region) + (uint64_t)page * PAGE_STRIDE;
}

static struct part page_part(uint32_t region, uint32_t page, uint64_t tag)
{
    uint64_t random = mix(tag * POOL_REGIONS + region);
    return (struct part){.offset = page_offset(region, page),
                         .bytes = PAGE_BYTES,
                         .first = (uint32_t)((random >> 40) % BASE_WORDS),
                         .flip = random & FRACTIONS};
}

static struct part guard_part(uint64_t offset)
{
    return (struct part){.offset = offset, .bytes = GUARD_BYTES, .first = GUARD_FIRST};
}

static uint32_t add_page(struct part *parts, uint32_t page, uint64_t tag)
{
    for (uint32_t r = 0; r < POOL_REGIONS; r++)
        parts[r] = page_part(r, page, tag);
    return POOL_REGIONS;
}

/* All guards, and the pages whose content is known. */
static uint32_t add_known(const struct pages *pages, struct part *parts)
{
    uint32_t count = 0;
    parts[count++] = guard_part(0);
    for (uint32_t i = 0; i < POOL_PAGES; i++) {
        for (uint32_t r = 0; r < POOL_REGIONS; r++)
            parts[count++] = guard_part(page_offset(r, i) + PAGE_BYTES);
        if (pages->uses[i] == PAGE_KNOWN)
            count += add_page(parts + count, i, pages->tags[i]);
    }
    return count;
}

/* ---- Pools ---------------------------------------------------------------------------------------------------- */

bool pages_create(struct pages *pages, const struct memory_kind *kind, int32_t device, const char *name,
                  uint64_t first_tag)
{
    struct part parts[PARTS_MAX];
    memset(pages, 0, sizeof(*pages));
    snprintf(pages->name, sizeof(pages->name), "%s", name);
    pages->kind = kind;
    pages->device = device;
    pages->fd = -1;
    if (!kind->take(pages))
        return false;
    for (uint32_t i = 0; i < POOL_PAGES; i++)
        pages->tags[i] = first_tag + i;
    kind->write(pages, parts, add_known(pages, parts));
    return true;
}

void pages_destroy(struct pages *pages)
{
    if (pages->base == NULL)
        return;
    pages->kind->give(pages);
    pages->base = NULL;
}

struct strait_pool_region pages_region(const struct pages *pages, uint32_t r)
{
    struct strait_pool_region region = {.device = pages->device,
                                        .fd = pages->fd,
                                        .offset = region_offset(r),
                                        .page_stride = PAGE_STRIDE,
                                        .page_count = POOL_PAGES,
                                        .rows = 1,
                                        .row_bytes = PAGE_BYTES,
                                        .element = STRAIT_ELEMENT_BF16,
                                        .role = r % 2 == 0 ? STRAIT_ROLE_K : STRAIT_ROLE_V,
                                        .layer = (int32_t)r / 2};
    pages->kind->describe(pages, &region);
    return region;
}

/* ---- Bytes ---------------------------------------------------------------------------------------------------- */

void pages_fill(struct pages *pages, uint32_t page, uint64_t tag)
{
    struct part parts[POOL_REGIONS];
    pages->kind->write(pages, parts, add_page(parts, page, tag));
    pages->tags[page] = tag;
    pages->uses[page] = PAGE_KNOWN;
}

bool pages_hold(const struct pages *pages, uint32_t page, uint64_t tag)
{
    struct part parts[POOL_REGIONS];
    uint32_t count = add_page(parts, page, tag);
    return pages->kind->find_wrong(pages, parts, count) == count;
}

static void tell_wrong(const struct pages *pages, const struct part *part, char *why, size_t why_size)
{
    uint32_t page = part->offset == 0 ? 0 : (uint32_t)((part->offset - GUARD_BYTES) % REGION_BYTES / PAGE_STRIDE);
    if (part->offset == 0)
        snprintf(why, why_size, "the guard in front of pool %s was written to", pages->name);
    else if (part->first == GUARD_FIRST)
        snprintf(why, why_size, "the guard behind page %u of pool %s was written to", page, pages->name);
    else
        snprintf(why, why_size, "page %u of pool %s changed, although nobody expects it", page, pages->name);
}

bool check_pages(const struct pages *pages, char *why, size_t why_size)
{
    struct part parts[PARTS_MAX];
    uint32_t count = add_known(pages, parts), wrong = pages->kind->find_wrong(pages, parts, count);
    if (wrong < count)
        tell_wrong(pages, &parts[wrong], why, why_size);
    return wrong == count;
}
