#include "tests/codec_harness.h"

struct strait_codebook *codebook;

void setup(void)
{
    codebook = test_codebook();
}

void teardown(void)
{
    strait_codebook_destroy(codebook);
}

const enum strait_mode modes[] = {STRAIT_MODE_AUTO,   STRAIT_MODE_RAW,  STRAIT_MODE_TOP16,
                                  STRAIT_MODE_TIERED, STRAIT_MODE_BASE, STRAIT_MODE_SPLIT};

const enum strait_mode coded_modes[] = {STRAIT_MODE_TOP16, STRAIT_MODE_TIERED};

uint64_t units_of(uint64_t bytes)
{
    return (bytes + 15) / 16;
}

/* What addresses of an element's values are multiples of. */
static uint32_t alignment_of(enum strait_element element)
{
    static const uint32_t alignments[] = {1, 2, 2, 4, 1, 1};
    return alignments[element];
}

uint8_t *page_round_trip(const struct asked *asked, uint32_t table, const void *bytes, uint32_t size,
                         struct verdict *verdict)
{
    const struct shape shape = {.page_count = 1, .rows = 1, .row_bytes = size, .table = table};
    struct layout src;
    layout_init(&src, alignment_of(asked->element), &shape, 1, NULL, 1);
    layout_write(&src, 0, bytes);
    uint8_t *chunk = round_trip(asked, &src, verdict);
    layout_fini(&src);
    return chunk;
}
