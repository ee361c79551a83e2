#include "tests/kernels/chunk_harness.h"

#include <string.h>
#include <sys/mman.h>

struct strait_codebook *codebook;
struct layout src, dst;
static struct layout first; /* what the scalar variant decoded */
struct guarded room;
uint8_t chunk[CHUNK_MAX];
uint64_t chunk_size;

/* ---- Verdicts -------------------------------------------------------------------------------------------------- */

/* Pages that passed hold the same bytes as in the scalar variant's memory. */
static void compare_pages(const struct verdict *decoded)
{
    static uint8_t a[CHUNK_MAX], b[CHUNK_MAX];
    for (uint32_t p = 0; p < layout_count(&dst); p++) {
        if (decoded->page_status[p] != STRAIT_OK)
            continue;
        layout_read(&first, p, a);
        layout_read(&dst, p, b);
        require(memcmp(a, b, layout_page_bytes(&dst, p)) == 0);
    }
}

static struct judgement judge_by(const struct strait_codec *codec, const uint8_t *bytes, uint64_t size)
{
    struct judgement j;
    layout_clear(&dst);
    verify_chunk(codec, codebook, bytes, size, &j.verified);
    decode_layout(codec, codebook, &dst, NULL, bytes, size, &j.decoded);
    require(layout_intact(&dst));
    require(STRAIT_OK == j.verified.returned);
    require(STRAIT_OK == j.decoded.returned);
    if (j.decoded.result.chunk_status != STRAIT_OK)
        require(layout_untouched(&dst));
    return j;
}

struct judgement judge(uint64_t size)
{
    uint8_t *bytes = room.bytes + room.size - size;
    memcpy(bytes, chunk, size);
    struct judgement judgement = judge_by(variant(0), bytes, size);
    memcpy(first.memory.bytes, dst.memory.bytes, dst.memory.size);
    for (int v = 1; v < variant_count(); v++) {
        struct judgement other = judge_by(variant(v), bytes, size);
        require(memcmp(&judgement, &other, sizeof(other)) == 0);
        compare_pages(&other.decoded);
    }
    return judgement;
}

struct judgement judge_repaired(uint64_t size)
{
    repair_metadata(chunk, size);
    return judge(size);
}

void assert_refused(struct judgement j, enum strait_status expected, const char *what)
{
    const struct strait_result *verified = &j.verified.result, *decoded = &j.decoded.result;
    if (verified->chunk_status != (int)expected)
        ck_abort_msg("%s: %d, not %d", what, verified->chunk_status, expected);
    require(expected == decoded->chunk_status);
    require(expected == verified->status);
    require(expected == decoded->status);
    require(0 == verified->failed_pages);
    require(layout_count(&dst) == decoded->failed_pages);
    require(STATUS_UNSET == j.verified.page_status[0]);
    require(expected == j.decoded.page_status[0]);
    require(0 == verified->bytes + decoded->bytes);
}

void assert_page_fails(struct judgement j, uint32_t page, enum strait_status expected, const char *what)
{
    const struct strait_result *verified = &j.verified.result;
    if (verified->status != (int)expected)
        ck_abort_msg("%s: %d, not %d", what, verified->status, expected);
    if (verified->failed_pages != 1)
        ck_abort_msg("%s: %u pages failed", what, verified->failed_pages);
    require(STRAIT_OK == verified->chunk_status);
    require(expected == j.verified.page_status[page]);
    require(expected == j.decoded.page_status[page]);
}

bool same_as_parts(uint8_t row, uint8_t changed)
{
    return (row & 15) == STRAIT_BLOCK_TIERED && changed == (row ^ (STRAIT_BLOCK_TIERED ^ STRAIT_BLOCK_PARTS));
}

bool is_refused(const struct judgement *j)
{
    return j->verified.result.status != STRAIT_OK;
}

/* ---- A chunk with everything in it ----------------------------------------------------------------------------- */

const struct shape shapes[] = {{.page_count = 2, .rows = 1, .row_bytes = 16384 + 601, .page_gap = 1, .table = 2},
                               {.page_count = 2, .rows = 3, .row_bytes = 134, .row_gap = 2, .table = 1}};

const enum strait_mode coded_modes[] = {STRAIT_MODE_TOP16, STRAIT_MODE_TIERED};

static void fill_source(void)
{
    struct rng rng = rng_init(1);
    uint8_t ranking[256], page[LONG];
    for (uint32_t p = 0; p < PAGES; p++) {
        test_ranking(ranking, shapes[p / 2].table);
        fill_pattern(&rng, PATTERN_CONST, ranking, page, 16384);
        fill_pattern(&rng, PATTERN_RARE, ranking, page + 16384, 601);
        if (p >= 2)
            fill_pattern(&rng, p == 2 ? PATTERN_FALLING : PATTERN_NOISE, ranking, page, SHORT);
        layout_write(&src, p, page);
    }
}

static void setup_shapes(uint32_t alignment, const struct shape *list, uint32_t count, uint32_t ids)
{
    codebook = test_codebook();
    layout_init(&src, alignment, list, count, NULL, ids);
    layout_mirror(&dst, &src);
    layout_mirror(&first, &src);
    guarded_init(&room, CHUNK_MAX);
}

void setup_pages(uint32_t alignment, const struct shape *shape)
{
    setup_shapes(alignment, shape, 1, shape->page_count);
}

void encode_asked(const struct asked *asked)
{
    struct verdict verdict;
    uint8_t *bytes = round_trip(asked, &src, &verdict);
    chunk_size = verdict.result.bytes;
    ck_assert_uint_lt(chunk_size, CHUNK_MAX);
    memcpy(chunk, bytes, chunk_size);
    free(bytes);
}

void encode_values(enum strait_element element, enum strait_mode mode)
{
    encode_asked(&(struct asked){mode == STRAIT_MODE_BASE ? NULL : codebook, element, mode});
}

void encode_chunk(enum strait_mode mode)
{
    encode_values(STRAIT_ELEMENT_BF16, mode);
}

void chunk_setup(void)
{
    setup_shapes(2, shapes, COUNT(shapes), 2);
    fill_source();
    encode_chunk(coded_modes[0]);
    ck_assert_uint_eq(METADATA, 16 * (load_le32(chunk + 48) >> 4));
}

void chunk_teardown(void)
{
    strait_codebook_destroy(codebook);
    layout_fini(&src);
    layout_fini(&dst);
    layout_fini(&first);
    munmap(room.map, room.map_size); /* full of chunks */
}

/* ---- Changes to it --------------------------------------------------------------------------------------------- */

void store_bytes(uint64_t offset, uint32_t bytes, uint32_t value)
{
    for (uint32_t i = 0; i < bytes; i++)
        chunk[offset + i] = (uint8_t)(value >> 8 * i);
}

void block_resize(int by)
{
    memset(chunk + chunk_size, 0, 64);
    chunk_size = (uint64_t)((int64_t)chunk_size + 16 * by);
    store_le32(chunk + 16, (uint32_t)chunk_size);
}

uint8_t exponent_of_rank(uint32_t rank)
{
    return strait_codebook_ranking(codebook, 0)[rank];
}
