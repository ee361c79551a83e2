#include "tests/chaos/pages.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BASE_WORDS 65536u /* a power of two */
#define GUARD_BYTE 0xc7
#define FRACTIONS  0x003f003f003f003fu /* of four BF16 values: bits that no exponent depends on */

static uint64_t base[BASE_WORDS + PAGE_BYTES / 8];

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
    uint16_t *values = (uint16_t *)base;
    for (uint32_t i = 0; i < sizeof(base) / 2; i++)
        values[i] = value(mix(i));
}

bool pages_create(struct pages *pages, const char *name, uint64_t first_tag)
{
    memset(pages, 0, sizeof(*pages));
    snprintf(pages->name, sizeof(pages->name), "%s", name);
    pages->fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (pages->fd < 0)
        return false;
    if (ftruncate(pages->fd, (off_t)POOL_BYTES) != 0 || fcntl(pages->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
        goto err_close;
    pages->base = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, pages->fd, 0);
    if (pages->base == MAP_FAILED)
        goto err_close;
    memset(pages->base, GUARD_BYTE, POOL_BYTES);
    for (uint32_t i = 0; i < POOL_PAGES; i++)
        pages_fill(pages, i, first_tag + i);
    return true;
err_close:
    close(pages->fd);
    return false;
}

void pages_destroy(struct pages *pages)
{
    if (pages->base == NULL)
        return;
    munmap(pages->base, POOL_BYTES);
    close(pages->fd);
    pages->base = NULL;
}

static uint8_t *at(const struct pages *pages, uint32_t region, uint32_t page)
{
    return pages->base + pages_region_offset(region) + (size_t)page * PAGE_STRIDE;
}

static const uint64_t *source_of(uint64_t tag, uint32_t region, uint64_t *flip)
{
    uint64_t random = mix(tag * POOL_REGIONS + region);
    *flip = random & FRACTIONS;
    return base + (random >> 40) % BASE_WORDS;
}

void pages_fill(struct pages *pages, uint32_t page, uint64_t tag)
{
    for (uint32_t r = 0; r < POOL_REGIONS; r++) {
        uint64_t flip;
        const uint64_t *from = source_of(tag, r, &flip);
        uint64_t *to = (uint64_t *)(void *)at(pages, r, page);
        for (uint32_t i = 0; i < PAGE_BYTES / 8; i++)
            to[i] = from[i] ^ flip;
    }
    pages->tags[page] = tag;
    pages->uses[page] = PAGE_KNOWN;
}

bool pages_hold(const struct pages *pages, uint32_t page, uint64_t tag)
{
    for (uint32_t r = 0; r < POOL_REGIONS; r++) {
        uint64_t flip, wrong = 0;
        const uint64_t *from = source_of(tag, r, &flip);
        const uint64_t *is = (const uint64_t *)(const void *)at(pages, r, page);
        for (uint32_t i = 0; i < PAGE_BYTES / 8; i++)
            wrong |= is[i] ^ from[i] ^ flip;
        if (wrong != 0)
            return false;
    }
    return true;
}

static bool is_guard(const uint8_t *bytes)
{
    for (uint32_t i = 0; i < GUARD_BYTES; i++)
        if (bytes[i] != GUARD_BYTE)
            return false;
    return true;
}

bool pages_check(const struct pages *pages, char *why, size_t why_size)
{
    if (!is_guard(pages->base)) {
        snprintf(why, why_size, "the guard in front of pool %s was written to", pages->name);
        return false;
    }
    for (uint32_t i = 0; i < POOL_PAGES; i++) {
        for (uint32_t r = 0; r < POOL_REGIONS; r++)
            if (!is_guard(at(pages, r, i) + PAGE_BYTES)) {
                snprintf(why, why_size, "the guard behind page %u of pool %s was written to", i, pages->name);
                return false;
            }
        if (pages->uses[i] == PAGE_KNOWN && !pages_hold(pages, i, pages->tags[i])) {
            snprintf(why, why_size, "page %u of pool %s changed, although nobody expects it", i, pages->name);
            return false;
        }
    }
    return true;
}
