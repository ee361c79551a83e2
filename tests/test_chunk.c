/* Hostile chunks: every variant gives the same verdict, the documented one, and writes nothing outside the listed
 * pages. */
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "internal/bytes.h"
#include "tests/support.h"

enum { CHUNK_MAX = 64 * 1024 };

static struct strait_codebook *codebook;
static struct layout src, dst, first; /* what was encoded, what is decoded, what the scalar variant decoded */
static struct guarded room;           /* the hostile chunk ends where it does */
static uint8_t chunk[CHUNK_MAX];
static uint64_t chunk_size;

/* ---- Verdicts -------------------------------------------------------------------------------------------------- */

struct judgement {
    struct verdict verified, decoded;
};

/* Pages that passed hold the same bytes as in the scalar variant's memory. */
static void compare_pages(const struct verdict *decoded)
{
    static uint8_t a[CHUNK_MAX], b[CHUNK_MAX];
    for (uint32_t p = 0; p < layout_count(&dst); p++) {
        if (decoded->page_status[p] != STRAIT_OK)
            continue;
        layout_read(&first, p, a);
        layout_read(&dst, p, b);
        ck_assert_mem_eq(a, b, layout_page_bytes(&dst, p));
    }
}

static struct judgement judge_by(const struct strait_codec *codec, const uint8_t *bytes, uint64_t size)
{
    struct judgement j;
    layout_clear(&dst);
    verify_chunk(codec, codebook, bytes, size, &j.verified);
    decode_layout(codec, codebook, &dst, NULL, bytes, size, &j.decoded);
    ck_assert(layout_intact(&dst));
    ck_assert_int_eq(STRAIT_OK, j.verified.returned);
    ck_assert_int_eq(STRAIT_OK, j.decoded.returned);
    if (j.decoded.result.chunk_status != STRAIT_OK)
        ck_assert(layout_untouched(&dst));
    return j;
}

/* The verdict of every variant on chunk[0..size). */
static struct judgement judge(uint64_t size)
{
    uint8_t *bytes = room.bytes + room.size - size;
    memcpy(bytes, chunk, size);
    struct judgement judgement = judge_by(variant(0), bytes, size);
    memcpy(first.memory.bytes, dst.memory.bytes, dst.memory.size);
    for (int v = 1; v < VARIANTS; v++) {
        if (variant(v) == NULL)
            continue;
        struct judgement other = judge_by(variant(v), bytes, size);
        ck_assert_mem_eq(&judgement, &other, sizeof(other));
        compare_pages(&other.decoded);
    }
    return judgement;
}

/* Judges after making the metadata sum right. */
static struct judgement judge_repaired(uint64_t size)
{
    repair_metadata(chunk, size);
    return judge(size);
}

/* The chunk as a whole is refused so. */
static void assert_refused(struct judgement j, enum strait_status expected, const char *what)
{
    const struct strait_result *verified = &j.verified.result, *decoded = &j.decoded.result;
    ck_assert_msg(verified->chunk_status == (int)expected, "%s: %d, not %d", what, verified->chunk_status, expected);
    ck_assert_int_eq(expected, decoded->chunk_status);
    ck_assert_int_eq(expected, verified->status);
    ck_assert_int_eq(expected, decoded->status);
    ck_assert_uint_eq(0, verified->failed_pages);
    ck_assert_uint_eq(layout_count(&dst), decoded->failed_pages);
    ck_assert_int_eq(STATUS_UNSET, j.verified.page_status[0]);
    ck_assert_int_eq(expected, j.decoded.page_status[0]);
    ck_assert_uint_eq(0, verified->bytes + decoded->bytes);
}

/* The chunk is fine, but for this page. */
static void assert_page_fails(struct judgement j, uint32_t page, enum strait_status expected, const char *what)
{
    const struct strait_result *verified = &j.verified.result;
    ck_assert_msg(verified->status == (int)expected, "%s: %d, not %d", what, verified->status, expected);
    ck_assert_msg(verified->failed_pages == 1, "%s: %u pages failed", what, verified->failed_pages);
    ck_assert_int_eq(STRAIT_OK, verified->chunk_status);
    ck_assert_int_eq(expected, j.verified.page_status[page]);
    ck_assert_int_eq(expected, j.decoded.page_status[page]);
}

static bool is_refused(const struct judgement *j)
{
    return j->verified.result.status != STRAIT_OK;
}

/* ---- A chunk with everything in it ----------------------------------------------------------------------------- */

/* Pages 0, 1: a const block and one with an odd end; 2: short, 3: short and raw. Lengths are stored, rows are absent.
 */
static const struct shape shapes[] = {{.page_count = 2, .rows = 1, .row_bytes = 16384 + 601, .page_gap = 1, .table = 2},
                                      {.page_count = 2, .rows = 3, .row_bytes = 134, .row_gap = 2, .table = 1}};
enum { PAGES = 4, LONG = 16384 + 601, SHORT = 402, METADATA = 48 + 16 * PAGES + 4 * PAGES + 4 * PAGES };

static const enum strait_mode modes[] = {STRAIT_MODE_TOP16, STRAIT_MODE_TIERED};

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

/* Page lists of these shapes, of no values yet. */
static void setup_shapes(const struct shape *list, uint32_t count, uint32_t ids)
{
    codebook = test_codebook();
    layout_init(&src, 2, list, count, NULL, ids);
    layout_mirror(&dst, &src);
    layout_mirror(&first, &src);
    guarded_init(&room, CHUNK_MAX);
}

static void setup_pages(const struct shape *shape)
{
    setup_shapes(shape, 1, shape->page_count);
}

static void encode_chunk(enum strait_mode mode)
{
    const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, mode};
    struct verdict verdict;
    uint8_t *bytes = round_trip(&asked, &src, &verdict);
    chunk_size = verdict.result.bytes;
    ck_assert_uint_lt(chunk_size, CHUNK_MAX);
    memcpy(chunk, bytes, chunk_size);
    free(bytes);
}

static void setup(void)
{
    setup_shapes(shapes, COUNT(shapes), 2);
    fill_source();
    encode_chunk(modes[0]);
    ck_assert_uint_eq(METADATA, 16 * (load_le32(chunk + 48) >> 4));
}

static void teardown(void)
{
    strait_codebook_destroy(codebook);
    layout_fini(&src);
    layout_fini(&dst);
    layout_fini(&first);
    munmap(room.map, room.map_size); /* full of chunks */
}

START_TEST(the_chunk_is_what_the_format_says)
{
    uint8_t page[LONG], before[CHUNK_MAX];
    struct anatomy anatomy;
    encode_chunk(modes[_i]);
    memcpy(before, chunk, chunk_size);
    ck_assert(anatomy_read(&anatomy, chunk, chunk_size));
    ck_assert_uint_eq(METADATA, anatomy.metadata_bytes);
    ck_assert(repair_metadata(chunk, chunk_size));
    ck_assert_mem_eq(before, chunk, chunk_size); /* was right before */
    for (uint32_t p = 0; p < PAGES; p++) {
        const uint8_t *entry = chunk + 48 + 16 * p;
        layout_read(&src, p, page);
        ck_assert_uint_eq(p < 2 ? LONG : SHORT, load_le32(chunk + anatomy.lengths + 4 * p));
        ck_assert_uint_eq(reference_page_sum(page, layout_page_bytes(&src, p), p, load_le16(entry + 4)),
                          load_le64(entry + 8));
        ck_assert_uint_eq(p < 2    ? STRAIT_BLOCK_CONST
                          : p == 3 ? STRAIT_BLOCK_RAW
                                   : load_le32(entry) & 15,
                          load_le32(entry) & 15);
    }
    ck_assert_uint_eq(_i == 0 ? STRAIT_BLOCK_TOP16_ESCAPES : STRAIT_BLOCK_TIERED,
                      load_le32(chunk + anatomy_row(&anatomy, 1, 1)) & 15);
}
END_TEST

/* ---- Any change ------------------------------------------------------------------------------------------------ */

START_TEST(every_flipped_bit_is_seen)
{
    encode_chunk(modes[_i]);
    for (uint64_t bit = 0; bit < 8 * chunk_size; bit += STRIDE) {
        chunk[bit / 8] ^= (uint8_t)(1u << bit % 8);
        struct judgement j = judge(chunk_size);
        ck_assert_msg(is_refused(&j), "bit %u of byte %u", (unsigned)bit % 8, (unsigned)bit / 8);
        if (bit / 8 >= 24 && bit / 8 < METADATA)
            assert_refused(j, STRAIT_ERR_INTEGRITY, "metadata");
        chunk[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}
END_TEST

START_TEST(every_flipped_bit_of_the_metadata_is_seen_when_its_sum_is_repaired)
{
    uint8_t before[METADATA];
    encode_chunk(modes[_i]);
    memcpy(before, chunk, METADATA);
    for (uint64_t bit = 0; bit < 8 * METADATA; bit += STRIDE) {
        bool is_sum = bit / 64 == 5;
        chunk[bit / 8] ^= (uint8_t)(1u << bit % 8);
        struct judgement j = judge_repaired(chunk_size);
        ck_assert_msg(is_refused(&j) != is_sum, "bit %u of byte %u", (unsigned)bit % 8, (unsigned)bit / 8);
        memcpy(chunk, before, METADATA);
    }
}
END_TEST

START_TEST(every_byte_of_the_metadata_may_be_anything)
{
    uint8_t before[METADATA];
    encode_chunk(modes[1]);
    memcpy(before, chunk, METADATA);
    for (uint32_t i = (uint32_t)_i; i < METADATA; i += 8) {
        for (unsigned value = 0; value < 256; value += STRIDE) {
            chunk[i] = (uint8_t)value;
            struct judgement j = judge_repaired(chunk_size);
            ck_assert_msg(is_refused(&j) == (value != before[i] && (i < 40 || i >= 48)), "byte %u = %u", i, value);
            memcpy(chunk, before, METADATA);
        }
    }
}
END_TEST

START_TEST(random_changes_get_the_same_verdict_from_every_variant)
{
    struct rng rng = rng_init(100 + (uint64_t)_i);
    static uint8_t before[CHUNK_MAX];
    encode_chunk(modes[_i % 2]);
    memcpy(before, chunk, chunk_size);
    for (int k = 0; k < 1500 / STRIDE; k++) {
        for (uint32_t changes = 1 + rng_below(&rng, 4); changes > 0; changes--) {
            uint32_t at = rng_below(&rng, (uint32_t)(rng_below(&rng, 3) == 0 ? METADATA : chunk_size));
            chunk[at] =
                rng_below(&rng, 2) == 0 ? (uint8_t)rng_next(&rng) : (uint8_t)(chunk[at] ^ 1u << rng_below(&rng, 8));
        }
        judge_repaired(chunk_size);
        memcpy(chunk, before, chunk_size);
    }
}
END_TEST

START_TEST(a_chunk_that_ends_early_is_truncated)
{
    for (uint64_t size = 0; size < chunk_size; size += STRIDE) {
        struct strait_chunk_info info;
        struct strait_page_info pages[PAGES];
        uint8_t *bytes = room.bytes + room.size - size;
        assert_refused(judge(size), STRAIT_ERR_TRUNCATED, "cut");
        memcpy(bytes, chunk, size);
        ck_assert_int_eq(size < 48 ? STRAIT_ERR_TRUNCATED : STRAIT_OK, strait_chunk_info(bytes, size, &info));
        ck_assert_int_eq(STRAIT_ERR_TRUNCATED, strait_chunk_pages(bytes, size, PAGES, pages));
    }
}
END_TEST

START_TEST(a_chunk_with_bytes_after_it_is_corrupt)
{
    for (uint64_t more = 1; more < 100; more++) {
        struct strait_page_info pages[PAGES];
        chunk[chunk_size + more - 1] = 0;
        assert_refused(judge(chunk_size + more), STRAIT_ERR_CORRUPT, "longer");
        ck_assert_int_eq(STRAIT_ERR_CORRUPT, strait_chunk_pages(chunk, chunk_size + more, PAGES, pages));
    }
}
END_TEST

/* ---- Header ---------------------------------------------------------------------------------------------------- */

/* `bytes` bytes at `offset` become `value`. */
static const struct change {
    const char *what;
    uint32_t offset, bytes;
    uint32_t value;
    enum strait_status expected;
} header_changes[] = {
    {"first byte of the magic", 0, 1, 's', STRAIT_ERR_CORRUPT},
    {"last byte of the magic", 3, 1, 'F', STRAIT_ERR_CORRUPT},
    {"version 0", 4, 1, 0, STRAIT_ERR_UNSUPPORTED},
    {"version 2", 4, 1, 2, STRAIT_ERR_UNSUPPORTED},
    {"version 255", 4, 1, 255, STRAIT_ERR_UNSUPPORTED},
    {"element 6", 5, 1, 6, STRAIT_ERR_UNSUPPORTED},
    {"element 255", 5, 1, 255, STRAIT_ERR_UNSUPPORTED},
    {"coded blocks of bytes", 5, 1, 0, STRAIT_ERR_CORRUPT},
    {"coded blocks of FP16", 5, 1, 2, STRAIT_ERR_CORRUPT},
    {"coded blocks of FP32", 5, 1, 3, STRAIT_ERR_CORRUPT},
    {"coded blocks of FP8", 5, 1, 5, STRAIT_ERR_CORRUPT},
    {"flag 1", 6, 1, 3, STRAIT_ERR_UNSUPPORTED},
    {"flag 7", 6, 1, 0x81, STRAIT_ERR_UNSUPPORTED},
    {"no lengths: one is read as a row", 6, 1, 0, STRAIT_ERR_UNSUPPORTED},
    {"reserved byte", 7, 1, 1, STRAIT_ERR_CORRUPT},
    {"reserved byte, last bit", 7, 1, 0x80, STRAIT_ERR_CORRUPT},
    {"no pages", 8, 4, 0, STRAIT_ERR_CORRUPT},
    {"a page less", 8, 4, PAGES - 1, STRAIT_ERR_CORRUPT},
    {"a page more", 8, 4, PAGES + 1, STRAIT_ERR_CORRUPT},
    {"more pages than the chunk could list", 8, 4, 1000, STRAIT_ERR_CORRUPT},
    {"the most pages", 8, 4, STRAIT_CHUNK_PAGES_MAX, STRAIT_ERR_CORRUPT},
    {"too many pages", 8, 4, STRAIT_CHUNK_PAGES_MAX + 1, STRAIT_ERR_CORRUPT},
    {"4294967295 pages", 8, 4, UINT32_MAX, STRAIT_ERR_CORRUPT},
    {"2^28 pages: 16 times that is 0", 8, 4, 1u << 28, STRAIT_ERR_CORRUPT},
    {"pages of no bytes", 12, 4, 0, STRAIT_ERR_CORRUPT},
    {"one byte less than the longest page", 12, 4, LONG - 1, STRAIT_ERR_CORRUPT},
    {"one byte more than the longest page", 12, 4, LONG + 1, STRAIT_ERR_CORRUPT},
    {"a block more than the longest page", 12, 4, 2 * 16384 + 1, STRAIT_ERR_CORRUPT},
    {"a block less than the longest page", 12, 4, 16384, STRAIT_ERR_CORRUPT},
    {"the longest page there may be", 12, 4, STRAIT_PAGE_BYTES_MAX, STRAIT_ERR_CORRUPT},
    {"longer pages than may be", 12, 4, STRAIT_PAGE_BYTES_MAX + 1, STRAIT_ERR_CORRUPT},
    {"pages of 4294967295 bytes", 12, 4, UINT32_MAX, STRAIT_ERR_CORRUPT},
    {"no chunk bytes", 16, 4, 0, STRAIT_ERR_CORRUPT},
    {"chunk bytes less than the metadata", 16, 4, METADATA - 16, STRAIT_ERR_CORRUPT},
    {"chunk bytes of the metadata alone", 16, 4, METADATA, STRAIT_ERR_CORRUPT},
    {"chunk bytes of metadata and a unit", 16, 4, METADATA + 16, STRAIT_ERR_CORRUPT},
    {"chunk bytes no multiple of 16", 16, 4, METADATA + 17, STRAIT_ERR_CORRUPT},
    {"4 GiB less 16 chunk bytes", 16, 4, 0xFFFFFFF0u, STRAIT_ERR_TRUNCATED},
    {"4 GiB less 1 chunk bytes", 16, 4, UINT32_MAX, STRAIT_ERR_CORRUPT},
    {"reserved word", 20, 4, 1, STRAIT_ERR_CORRUPT},
    {"reserved word, last bit", 20, 4, 1u << 31, STRAIT_ERR_CORRUPT},
    {"first byte of the codebook id", 24, 1, 0xEE, STRAIT_ERR_CODEBOOK},
    {"last byte of the codebook id", 39, 1, 0xEE, STRAIT_ERR_CODEBOOK},
};

static void store_bytes(uint64_t offset, uint32_t bytes, uint32_t value)
{
    for (uint32_t i = 0; i < bytes; i++)
        chunk[offset + i] = (uint8_t)(value >> 8 * i);
}

START_TEST(a_header_field_out_of_its_limits_is_refused)
{
    const struct change *change = &header_changes[_i];
    store_bytes(change->offset, change->bytes, change->value);
    assert_refused(judge_repaired(chunk_size), change->expected, change->what);
}
END_TEST

START_TEST(a_header_field_out_of_its_limits_is_refused_by_chunk_info)
{
    const struct change *change = &header_changes[_i];
    struct strait_chunk_info info, unset;
    memset(&info, CANARY, sizeof(info));
    unset = info;
    store_bytes(change->offset, change->bytes, change->value);
    enum strait_status status = strait_chunk_info(chunk, 48, &info);
    ck_assert(status == STRAIT_OK || status == change->expected);
    if (status != STRAIT_OK)
        ck_assert_mem_eq(&unset, &info, sizeof(info));
}
END_TEST

START_TEST(a_codebook_id_of_zeros_with_coded_blocks_is_corrupt)
{
    memset(chunk + 24, 0, 16);
    assert_refused(judge_repaired(chunk_size), STRAIT_ERR_CORRUPT, "no codebook");
}
END_TEST

START_TEST(a_wrong_metadata_sum_is_an_integrity_error)
{
    chunk[40 + _i] ^= 0x40;
    assert_refused(judge(chunk_size), STRAIT_ERR_INTEGRITY, "sum");
}
END_TEST

/* Each is refused; of two, the first one in the order of section 6. */
static void spoil_magic(void)
{
    chunk[0] = 'X';
}
static void spoil_version(void)
{
    chunk[4] = 9;
}
static void spoil_reserved(void)
{
    chunk[7] = 1;
}
static void spoil_chunk_bytes(void)
{
    store_le32(chunk + 16, (uint32_t)chunk_size + 16);
}
static void spoil_sum(void)
{
    chunk[40] ^= 1;
}
static void spoil_length(void)
{
    store_le32(chunk + 48 + 16 * PAGES, 0);
}
static void spoil_mode(void)
{
    chunk[48 + 16 * 2] |= 15;
}
static void spoil_id(void)
{
    chunk[30] ^= 1;
}
static void spoil_page(void)
{
    chunk[chunk_size - 1] ^= 1;
}

static const struct step {
    void (*spoil)(void);
    enum strait_status expected;
} steps[] = {
    {spoil_magic, STRAIT_ERR_CORRUPT},    {spoil_version, STRAIT_ERR_UNSUPPORTED},
    {spoil_reserved, STRAIT_ERR_CORRUPT}, {spoil_chunk_bytes, STRAIT_ERR_TRUNCATED},
    {spoil_sum, STRAIT_ERR_INTEGRITY},    {spoil_length, STRAIT_ERR_CORRUPT},
    {spoil_mode, STRAIT_ERR_UNSUPPORTED}, {spoil_id, STRAIT_ERR_CODEBOOK},
    {spoil_page, STRAIT_ERR_CORRUPT},
};

START_TEST(the_first_failing_check_gives_the_error)
{
    static uint8_t before[CHUNK_MAX];
    memcpy(before, chunk, chunk_size);
    for (int later = _i; later < COUNT(steps); later++) {
        memcpy(chunk, before, chunk_size);
        steps[_i].spoil();
        if (later != _i)
            steps[later].spoil();
        if (steps[_i].spoil != spoil_sum && steps[later].spoil != spoil_sum)
            repair_metadata(chunk, chunk_size);
        struct judgement j = judge(chunk_size);
        ck_assert_msg(j.verified.result.status == (int)steps[_i].expected, "%d and %d: %d", _i, later,
                      j.verified.result.status);
    }
}
END_TEST

/* ---- Tables of the chunk --------------------------------------------------------------------------------------- */

enum { ENTRY = 48, LENGTHS = ENTRY + 16 * PAGES, ROWS = LENGTHS + 4 * PAGES };

static const struct change table_changes[] = {
    {"reserved field of the first entry", ENTRY + 6, 1, 1, STRAIT_ERR_CORRUPT},
    {"reserved field of the last entry", ENTRY + 16 * 3 + 7, 1, 0x80, STRAIT_ERR_CORRUPT},
    {"the first table beyond the set", ENTRY + 4, 2, TEST_TABLES, STRAIT_ERR_CODEBOOK},
    {"table 65535 for a raw page", ENTRY + 16 * 3 + 4, 2, 65535, STRAIT_ERR_CODEBOOK},
    {"a length of 0", LENGTHS + 8, 4, 0, STRAIT_ERR_CORRUPT},
    {"a length beyond the longest", LENGTHS + 8, 4, LONG + 1, STRAIT_ERR_CORRUPT},
    {"a length of 4294967295", LENGTHS + 8, 4, UINT32_MAX, STRAIT_ERR_CORRUPT},
    {"a length that needs a block more", LENGTHS + 8, 4, 16385, STRAIT_ERR_CORRUPT},
    {"a length that needs a unit more", LENGTHS + 12, 4, SHORT + 16, STRAIT_ERR_CORRUPT},
    {"a length that needs a unit less", LENGTHS + 12, 4, SHORT - 16, STRAIT_ERR_CORRUPT},
    {"a length that has a block less", LENGTHS, 4, 16384, STRAIT_ERR_CORRUPT},
    {"an absent block with a row", ROWS + 8, 4, 1, STRAIT_ERR_CORRUPT},
    {"an absent block with an offset", ROWS + 12, 4, 0xFFFFFFF0u, STRAIT_ERR_CORRUPT},
    {"an absent block of an unknown mode", ROWS + 12, 4, 15, STRAIT_ERR_CORRUPT},
    {"a first block inside the metadata", ENTRY, 4, (METADATA / 16 - 1) << 4 | 1, STRAIT_ERR_CORRUPT},
    {"a first block with a gap before", ENTRY, 4, (METADATA / 16 + 1) << 4 | 1, STRAIT_ERR_CORRUPT},
    {"a block at 0", ROWS, 4, STRAIT_BLOCK_RAW, STRAIT_ERR_CORRUPT},
    {"a block far beyond the chunk", ROWS, 4, 0xFFFFFFF0u | 4, STRAIT_ERR_CORRUPT},
    {"a last block beyond the chunk", ENTRY + 16 * 3, 4, 0xFFFFFFF0u, STRAIT_ERR_CORRUPT},
};

START_TEST(a_bad_entry_row_or_length_is_refused)
{
    const struct change *change = &table_changes[_i];
    store_bytes(change->offset, change->bytes, change->value);
    assert_refused(judge_repaired(chunk_size), change->expected, change->what);
}
END_TEST

/* Two raw pages of zeros, written here by hand, whose lengths are stored whatever they are. */
static void write_two_pages(uint32_t longest, uint32_t a, uint32_t b)
{
    static const uint8_t zeros[256];
    const uint32_t lengths[] = {a, b}, metadata = 96, units = (a + 15) / 16;
    chunk_size = metadata + 16 * units + (b + 15) / 16 * 16;
    memset(chunk, 0, chunk_size);
    memcpy(chunk, "STRC\1", 5);
    chunk[6] = 1;
    store_le32(chunk + 8, 2);
    store_le32(chunk + 12, longest);
    store_le32(chunk + 16, (uint32_t)chunk_size);
    for (uint32_t p = 0; p < 2; p++) {
        store_le32(chunk + 48 + 16 * p, (metadata / 16 + p * units) << 4);
        store_le64(chunk + 48 + 16 * p + 8, reference_page_sum(zeros, lengths[p], p, 0));
        store_le32(chunk + 80 + 4 * p, lengths[p]);
    }
    repair_metadata(chunk, chunk_size);
}

static const struct {
    uint32_t longest, a, b;
    enum strait_status expected;
} lengths[] = {
    {100, 100, 60, STRAIT_OK},           {100, 1, 100, STRAIT_OK},          {100, 100, 99, STRAIT_OK},
    {100, 100, 100, STRAIT_ERR_CORRUPT}, {100, 60, 60, STRAIT_ERR_CORRUPT}, {100, 98, 99, STRAIT_ERR_CORRUPT},
    {100, 100, 101, STRAIT_ERR_CORRUPT}, {1, 1, 1, STRAIT_ERR_CORRUPT},
};

START_TEST(lengths_differ_and_one_is_the_longest)
{
    struct verdict verdict;
    write_two_pages(lengths[_i].longest, lengths[_i].a, lengths[_i].b);
    for (int v = 0; v < VARIANTS; v++) {
        if (variant(v) == NULL)
            continue;
        verify_chunk(variant(v), NULL, chunk, chunk_size, &verdict);
        ck_assert_int_eq(lengths[_i].expected, verdict.result.status);
        ck_assert_int_eq(lengths[_i].expected, verdict.result.chunk_status);
    }
}
END_TEST

START_TEST(without_a_codebook_every_table_index_is_0)
{
    struct verdict verdict;
    write_two_pages(100, 100, 60);
    store_le16(chunk + 48 + 16 * (size_t)_i + 4, 1);
    repair_metadata(chunk, chunk_size);
    verify_chunk(NULL, codebook, chunk, chunk_size, &verdict);
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, verdict.result.chunk_status);
}
END_TEST

/* Of 3 pages: after their lengths and rows there is room. */
START_TEST(bytes_after_the_metadata_must_be_zero)
{
    const struct shape three = {.page_count = 3, .rows = 1, .row_bytes = 20000};
    const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED};
    struct rng rng = rng_init(2);
    struct layout list;
    struct verdict verdict;
    layout_init(&list, 2, &three, 1, NULL, 3);
    layout_fill(&list, &rng, PATTERN_LOW, codebook);
    uint8_t *bytes = round_trip(&asked, &list, &verdict);
    memcpy(chunk, bytes, verdict.result.bytes);
    for (uint32_t i = 48 + 16 * 3 + 4 * 3; i < 48 + 16 * 3 + 16; i++) {
        ck_assert_uint_eq(0, chunk[i]);
        chunk[i] = 0x10;
        assert_refused(judge_repaired(verdict.result.bytes), STRAIT_ERR_CORRUPT, "padding");
        chunk[i] = 0;
    }
    free(bytes);
    layout_fini(&list);
}
END_TEST

/* Where a row lies: block b of page p. */
static const struct {
    uint32_t page, block;
} rows[] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {3, 0}};

static uint32_t row_offset_of(int row)
{
    return rows[row].block == 0 ? ENTRY + 16 * rows[row].page : ROWS + 4 * rows[row].page;
}

START_TEST(a_row_of_another_mode_is_refused)
{
    encode_chunk(modes[_i % 2]);
    uint32_t at = row_offset_of(_i / 2), mode = chunk[at] & 15;
    for (uint32_t other = 0; other < 16; other++) {
        chunk[at] = (uint8_t)((chunk[at] & 0xf0) | other);
        struct judgement j = judge_repaired(chunk_size);
        ck_assert(is_refused(&j) == (other != mode));
        if (other == 5 || other > 8)
            assert_refused(j, STRAIT_ERR_UNSUPPORTED, "mode");
    }
}
END_TEST

START_TEST(a_row_of_another_offset_is_refused)
{
    encode_chunk(modes[_i % 2]);
    uint32_t at = row_offset_of(_i / 2), row = load_le32(chunk + at);
    for (int64_t by = -(int64_t)(row >> 4); by < (int64_t)(chunk_size / 16) + 3; by++) {
        store_le32(chunk + at, row + 16 * (uint32_t)by);
        struct judgement j = judge_repaired(chunk_size);
        ck_assert_int_eq(by == 0 ? STRAIT_OK : STRAIT_ERR_CORRUPT, j.verified.result.status);
    }
}
END_TEST

START_TEST(a_wrong_page_sum_fails_its_page_alone)
{
    uint32_t page = (uint32_t)_i / 8;
    chunk[ENTRY + 16 * page + 8 + _i % 8] ^= 4;
    assert_page_fails(judge_repaired(chunk_size), page, STRAIT_ERR_INTEGRITY, "page sum");
}
END_TEST

/* A page sum knows its table, even when nothing of the page is coded. */
START_TEST(a_page_of_another_table_fails_alone)
{
    uint32_t page = (uint32_t)_i;
    encode_chunk(STRAIT_MODE_TIERED);
    store_le16(chunk + ENTRY + 16 * page + 4, 0);
    struct judgement j = judge_repaired(chunk_size);
    ck_assert_uint_eq(1, j.verified.result.failed_pages);
    ck_assert_int_ne(STRAIT_OK, j.verified.page_status[page]);
}
END_TEST

/* Two raw pages: blocks and sums can change places. */
START_TEST(pages_that_changed_places_fail_both)
{
    const struct shape two = {.page_count = 2, .rows = 1, .row_bytes = 64};
    const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, STRAIT_MODE_RAW};
    struct rng rng = rng_init(3);
    struct layout list;
    struct verdict verdict;
    layout_init(&list, 2, &two, 1, NULL, 2);
    layout_fill(&list, &rng, PATTERN_NOISE, codebook);
    uint8_t *bytes = round_trip(&asked, &list, &verdict);
    memcpy(chunk, bytes, verdict.result.bytes);
    memcpy(chunk + 80, bytes + 144, 64);
    memcpy(chunk + 144, bytes + 80, 64);
    memcpy(chunk + ENTRY + 8, bytes + ENTRY + 24, 8);
    memcpy(chunk + ENTRY + 24, bytes + ENTRY + 8, 8);
    repair_metadata(chunk, verdict.result.bytes);
    verify_chunk(NULL, codebook, chunk, verdict.result.bytes, &verdict);
    ck_assert_int_eq(STRAIT_ERR_INTEGRITY, verdict.page_status[0]);
    ck_assert_int_eq(STRAIT_ERR_INTEGRITY, verdict.page_status[1]);
    free(bytes);
    layout_fini(&list);
}
END_TEST

/* ---- Looking into a chunk -------------------------------------------------------------------------------------- */

START_TEST(chunk_info_tells_the_header)
{
    struct strait_chunk_info info;
    ck_assert_int_eq(STRAIT_OK, strait_chunk_info(chunk, 48, &info));
    ck_assert_uint_eq(chunk_size, info.chunk_bytes);
    ck_assert_uint_eq(METADATA, info.metadata_bytes);
    ck_assert_uint_eq(PAGES, info.page_count);
    ck_assert_uint_eq(LONG, info.page_bytes);
    ck_assert_int_eq(STRAIT_ELEMENT_BF16, info.element);
    ck_assert_uint_eq(1, info.version);
    ck_assert_mem_eq(strait_codebook_id(codebook), info.codebook_id, 16);
}
END_TEST

START_TEST(chunk_pages_tells_lengths_tables_sums_and_modes)
{
    struct strait_page_info info[PAGES + 1];
    uint64_t coded = 0;
    memset(info, CANARY, sizeof(info));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_chunk_pages(chunk, chunk_size, PAGES + 1, info));
    ck_assert_int_eq(STRAIT_OK, strait_chunk_pages(chunk, chunk_size, 0, NULL));
    ck_assert_int_eq(STRAIT_OK, strait_chunk_pages(chunk, chunk_size, PAGES, info));
    for (uint32_t p = 0; p < PAGES; p++) {
        ck_assert_uint_eq(p < 2 ? LONG : SHORT, info[p].page_bytes);
        ck_assert_uint_eq(shapes[p / 2].table, info[p].table);
        ck_assert_uint_eq(load_le64(chunk + ENTRY + 16 * p + 8), info[p].sum);
        coded += info[p].coded_bytes;
    }
    ck_assert_uint_eq(chunk_size - METADATA, coded);
    ck_assert_uint_eq(1u << STRAIT_BLOCK_CONST | 1u << STRAIT_BLOCK_TOP16_ESCAPES, info[0].block_modes);
    ck_assert_uint_eq(1u << STRAIT_BLOCK_RAW, info[3].block_modes);
    ck_assert(is_filled((uint8_t *)&info[PAGES], sizeof(info[PAGES]), CANARY));
}
END_TEST

START_TEST(chunk_pages_gives_the_error_of_the_checks)
{
    const struct change *change = &table_changes[_i];
    struct strait_page_info info[PAGES];
    store_bytes(change->offset, change->bytes, change->value);
    ck_assert_int_eq(STRAIT_ERR_INTEGRITY, strait_chunk_pages(chunk, chunk_size, PAGES, info));
    repair_metadata(chunk, chunk_size);
    ck_assert_int_eq(change->expected == STRAIT_ERR_CODEBOOK ? STRAIT_OK : change->expected,
                     strait_chunk_pages(chunk, chunk_size, PAGES, info));
}
END_TEST

/* ---- Hostile blocks -------------------------------------------------------------------------------------------- */

enum { BLOCK = 64 }; /* header and one entry */

/* The streams of the one block, as the format says. */
static struct streams {
    uint32_t n, t, n2, n3, n4;
    uint8_t *codes;                       /* C, T1 */
    uint8_t *count, *positions, *escapes; /* top16 */
    uint8_t *t2, *t3, *t4;                /* tiered */
    uint8_t *end;                         /* the tail byte, or what is after the streams */
} streams;

static uint32_t item(const uint8_t *stream, uint32_t i, uint32_t width)
{
    return stream[i * width / 8] >> i * width % 8 & ((1u << width) - 1);
}

static uint32_t count_items(const uint8_t *stream, uint32_t items, uint32_t width, uint32_t wanted)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < items; i++)
        count += item(stream, i, width) == wanted;
    return count;
}

static void set_item(uint8_t *stream, uint32_t i, uint32_t width, uint32_t value)
{
    uint32_t shift = i * width % 8, mask = (1u << width) - 1;
    stream[i * width / 8] = (uint8_t)((stream[i * width / 8] & ~(mask << shift)) | value << shift);
}

static void find_streams(uint32_t bytes, enum strait_mode mode)
{
    struct streams *s = &streams;
    *s = (struct streams){.n = bytes / 2, .t = bytes % 2};
    s->codes = chunk + BLOCK + s->n;
    if (mode == STRAIT_MODE_TOP16) {
        s->count = s->codes + (s->n + 1) / 2;
        s->positions = s->count + 2;
        s->escapes = s->positions + 2 * load_le16(s->count);
        s->end = s->escapes + load_le16(s->count);
        return;
    }
    s->t2 = s->codes + (s->n + 3) / 4;
    s->n2 = count_items(s->codes, s->n, 2, 3);
    s->t3 = s->t2 + (s->n2 + 3) / 4;
    s->n3 = count_items(s->t2, s->n2, 2, 3);
    s->t4 = s->t3 + (s->n3 + 1) / 2;
    s->n4 = count_items(s->t3, s->n3, 4, 15);
    s->end = s->t4 + s->n4;
}

/* A page of one block, whose ranks come round and round. For n = 131 and 153 `tiered` has unused bits after T1, T2, T3.
 */
static void block_init(uint32_t n, uint32_t t, enum strait_mode mode)
{
    static const uint8_t tiered_ranks[] = {0, 1, 2, 3, 4, 5, 6, 0, 0, 1, 20, 21, 2, 0, 15, 1, 0, 200, 0, 3, 1, 0, 1, 2};
    static const uint8_t top16_ranks[] = {0, 16, 2, 3, 0, 0, 1, 2, 3, 4, 15, 14, 1, 1, 1, 1, 1, 0, 0, 0, 255, 4, 7, 7};
    const uint8_t *ranks = mode == STRAIT_MODE_TOP16 ? top16_ranks : tiered_ranks;
    uint8_t ranking[256], page[1000];
    test_ranking(ranking, 0);
    for (uint32_t i = 0; i < n; i++)
        put_value(page, i, join_value((uint8_t)(37 * i), ranking[ranks[i % sizeof(tiered_ranks)]]));
    page[2 * n] = 0x77;
    setup_pages(&(struct shape){.page_count = 1, .rows = 1, .row_bytes = 2 * n + t});
    layout_write(&src, 0, page);
    encode_chunk(mode);
    find_streams(2 * n + t, mode);
    ck_assert_ptr_eq(chunk + chunk_size, chunk + BLOCK + (streams.end + t - chunk - BLOCK + 15) / 16 * 16);
}

/* Gives the block so many units more, of zeros, or less. */
static void block_resize(int by)
{
    memset(chunk + chunk_size, 0, 64);
    chunk_size = (uint64_t)((int64_t)chunk_size + 16 * by);
    store_le32(chunk + 16, (uint32_t)chunk_size);
}

static void no_escapes(void)
{
    store_le16(streams.count, 0);
}
static void an_escape_less(void)
{
    store_le16(streams.count, load_le16(streams.count) - 1);
}
static void an_escape_more(void)
{
    store_le16(streams.count, load_le16(streams.count) + 1);
}
static void more_escapes_than_values(void)
{
    store_le16(streams.count, (uint16_t)(streams.n + 1));
}
static void as_many_escapes_as_values(void)
{
    store_le16(streams.count, (uint16_t)streams.n);
}
static void escapes_65535(void)
{
    store_le16(streams.count, 65535);
}
static void equal_positions(void)
{
    store_le16(streams.positions + 2, load_le16(streams.positions));
}
static void falling_positions(void)
{
    store_le16(streams.positions, load_le16(streams.positions + 2) + 1);
}
static uint8_t *last_position(void)
{
    return streams.escapes - 2;
}
static void position_n(void)
{
    store_le16(last_position(), (uint16_t)streams.n);
}
static void position_8192(void)
{
    store_le16(last_position(), 8192);
}
static void position_65535(void)
{
    store_le16(last_position(), 65535);
}
static void first_position_beyond(void)
{
    store_le16(streams.positions, 65535);
}
static uint8_t exponent_of_rank(uint32_t rank)
{
    return strait_codebook_ranking(codebook, 0)[rank];
}
static void escape_of_rank_15(void)
{
    streams.escapes[0] = exponent_of_rank(15);
}
static void last_escape_of_rank_0(void)
{
    streams.end[-1] = exponent_of_rank(0);
}
static void escape_of_another_rank(void)
{
    streams.escapes[0] = exponent_of_rank(17);
}
static void code_at_an_escape(void)
{
    set_item(streams.codes, load_le16(streams.positions), 4, 1);
}
static void code_at_the_last_escape(void)
{
    set_item(streams.codes, load_le16(last_position()), 4, 15);
}
static void another_code(void)
{
    set_item(streams.codes, 0, 4, 5);
}
static void another_position(void)
{
    store_le16(streams.positions, 0);
} /* of a value of rank 0 */
static void unused_code_bits(void)
{
    set_item(streams.codes, streams.n, 4, 8);
}
static void padding_begins_nonzero(void)
{
    streams.end[streams.t] = 1;
}
static void padding_ends_nonzero(void)
{
    chunk[chunk_size - 1] = 0x80;
}
static void another_tail(void)
{
    streams.end[0] ^= 0x20;
}
static void another_sign(void)
{
    chunk[BLOCK] ^= 0x80;
}
static void a_unit_more(void)
{
    block_resize(1);
}
static void a_unit_less(void)
{
    block_resize(-1);
}
static void two_units_more(void)
{
    block_resize(2);
}

static void unused_t1_bits(void)
{
    set_item(streams.codes, streams.n, 2, 1);
}
static void unused_t1_item_of_3(void)
{
    set_item(streams.codes, streams.n, 2, 3);
}
static void unused_t2_bits(void)
{
    set_item(streams.t2, streams.n2, 2, 2);
}
static void unused_t2_item_of_3(void)
{
    set_item(streams.t2, streams.n2, 2, 3);
}
static void unused_t3_bits(void)
{
    set_item(streams.t3, streams.n3, 4, 1);
}
static void unused_t3_item_of_15(void)
{
    set_item(streams.t3, streams.n3, 4, 15);
}
static void t4_of_rank_20(void)
{
    streams.t4[0] = exponent_of_rank(20);
}
static void last_t4_of_rank_0(void)
{
    streams.end[-1] = exponent_of_rank(0);
}
static void t4_of_another_rank(void)
{
    streams.t4[0] = exponent_of_rank(22);
}
static void t1_all_3(void)
{
    memset(streams.codes, 0xff, streams.n / 4);
}
static void t2_all_3(void)
{
    memset(streams.t2, 0xff, streams.n2 / 4);
}
static void t3_all_15(void)
{
    memset(streams.t3, 0xff, streams.n3 / 2);
}
static void everything_ff(void)
{
    memset(streams.codes, 0xff, (size_t)(chunk + chunk_size - streams.codes));
}
static void everything_0(void)
{
    memset(streams.codes, 0, (size_t)(chunk + chunk_size - streams.codes));
}
static void a_t3_item_more(void)
{
    set_item(streams.t2, 0, 2, 3);
}
static void a_t4_byte_too_many(void)
{
    for (uint32_t i = 0; i < streams.n3; i++)
        if (item(streams.t3, i, 4) == 15) {
            set_item(streams.t3, i, 4, 0);
            return;
        }
}

static const struct spoiled_block {
    const char *what;
    void (*spoil)(void);
    enum strait_status expected;
    enum strait_mode mode;
    uint32_t n, t;
} spoiled_blocks[] = {
#define CASE(spoil, expected, mode, n, t)                              \
    {                                                                  \
#spoil, spoil, STRAIT_ERR_##expected, STRAIT_MODE_##mode, n, t \
    }
#define TOP16(spoil, expected)  CASE(spoil, expected, TOP16, 250, 0), CASE(spoil, expected, TOP16, 251, 1)
#define TIERED(spoil, expected) CASE(spoil, expected, TIERED, 131, 0), CASE(spoil, expected, TIERED, 153, 1)
    TOP16(no_escapes, CORRUPT),
    TOP16(an_escape_less, CORRUPT),
    TOP16(an_escape_more, CORRUPT),
    TOP16(more_escapes_than_values, CORRUPT),
    TOP16(as_many_escapes_as_values, CORRUPT),
    TOP16(escapes_65535, CORRUPT),
    TOP16(equal_positions, CORRUPT),
    TOP16(falling_positions, CORRUPT),
    TOP16(position_n, CORRUPT),
    TOP16(position_8192, CORRUPT),
    TOP16(position_65535, CORRUPT),
    TOP16(first_position_beyond, CORRUPT),
    TOP16(escape_of_rank_15, CORRUPT),
    TOP16(last_escape_of_rank_0, CORRUPT),
    TOP16(escape_of_another_rank, INTEGRITY),
    TOP16(code_at_an_escape, CORRUPT),
    TOP16(code_at_the_last_escape, CORRUPT),
    TOP16(another_code, INTEGRITY),
    TOP16(another_position, INTEGRITY),
    CASE(unused_code_bits, CORRUPT, TOP16, 251, 1),
    CASE(unused_code_bits, CORRUPT, TOP16, 253, 0),
    TOP16(padding_begins_nonzero, CORRUPT),
    TOP16(padding_ends_nonzero, CORRUPT),
    CASE(another_tail, INTEGRITY, TOP16, 251, 1),
    TOP16(another_sign, INTEGRITY),
    TOP16(a_unit_more, CORRUPT),
    TOP16(two_units_more, CORRUPT),
    TOP16(a_unit_less, CORRUPT),
    TOP16(everything_ff, CORRUPT),
    TOP16(everything_0, CORRUPT),
    TIERED(unused_t1_bits, CORRUPT),
    TIERED(unused_t1_item_of_3, CORRUPT),
    TIERED(unused_t2_bits, CORRUPT),
    TIERED(unused_t2_item_of_3, CORRUPT),
    TIERED(unused_t3_bits, CORRUPT),
    TIERED(unused_t3_item_of_15, CORRUPT),
    TIERED(t4_of_rank_20, CORRUPT),
    TIERED(last_t4_of_rank_0, CORRUPT),
    TIERED(t4_of_another_rank, INTEGRITY),
    TIERED(t1_all_3, CORRUPT),
    TIERED(t2_all_3, CORRUPT),
    TIERED(t3_all_15, CORRUPT),
    TIERED(everything_ff, CORRUPT),
    TIERED(everything_0, CORRUPT),
    TIERED(a_t3_item_more, INTEGRITY),
    TIERED(a_t4_byte_too_many, CORRUPT),
    TIERED(padding_begins_nonzero, CORRUPT),
    TIERED(padding_ends_nonzero, CORRUPT),
    CASE(another_tail, INTEGRITY, TIERED, 153, 1),
    TIERED(another_sign, INTEGRITY),
    TIERED(a_unit_more, CORRUPT),
    TIERED(two_units_more, CORRUPT),
    TIERED(a_unit_less, CORRUPT),
};

START_TEST(streams_that_no_encoder_writes_are_refused)
{
    const struct spoiled_block *spoiled = &spoiled_blocks[_i];
    block_init(spoiled->n, spoiled->t, spoiled->mode);
    spoiled->spoil();
    assert_page_fails(judge_repaired(chunk_size), 0, spoiled->expected, spoiled->what);
    teardown();
}
END_TEST

/* Every change of one bit or byte of a block, for lengths with all kinds of ragged ends. */
START_TEST(every_changed_byte_of_a_block_is_seen)
{
    struct rng rng = rng_init(500 + (uint64_t)_i);
    uint32_t n = 120 + (uint32_t)_i / 2;
    block_init(n, n % 3 == 0, modes[_i % 2]);
    for (uint64_t i = BLOCK; i < chunk_size; i++) {
        for (int k = 0; k < 12; k += STRIDE) {
            uint8_t before = chunk[i], random = (uint8_t)(1 + rng_below(&rng, 255));
            chunk[i] ^= k < 8 ? (uint8_t)(1u << k) : random;
            struct judgement j = judge(chunk_size);
            ck_assert_msg(is_refused(&j), "byte %u ^ %u", (unsigned)i - BLOCK, before ^ chunk[i]);
            chunk[i] = before;
        }
    }
    teardown();
}
END_TEST

/* A chunk of one page that is written here by hand; its sums are right. */
static void craft(enum strait_block_mode mode, const uint8_t *page, uint32_t page_bytes, const uint8_t *block,
                  uint32_t size)
{
    uint32_t rounded = (size + 15) / 16 * 16;
    memset(chunk, 0, BLOCK + rounded);
    memcpy(chunk, "STRC\1", 5);
    chunk[5] = STRAIT_ELEMENT_BF16;
    chunk_size = BLOCK + rounded;
    store_le32(chunk + 8, 1);
    store_le32(chunk + 12, page_bytes);
    store_le32(chunk + 16, (uint32_t)chunk_size);
    memcpy(chunk + 24, strait_codebook_id(codebook), 16);
    store_le32(chunk + 48, BLOCK / 16 << 4 | mode);
    store_le64(chunk + 56, reference_page_sum(page, page_bytes, 0, 0));
    memcpy(chunk + BLOCK, block, size);
    repair_metadata(chunk, chunk_size);
}

static void craft_init(uint32_t page_bytes)
{
    setup_pages(&(struct shape){.page_count = 1, .rows = 1, .row_bytes = page_bytes});
}

/* n values of rank 0 as `tiered` or `top16`: sign+mantissa 0x12 each, except one, and codes of zero. */
START_TEST(a_coded_block_of_equal_values_is_corrupt_and_of_nearly_equal_ones_is_not)
{
    static const uint32_t counts[] = {50, 64, 65, 127, 128, 4096, 8192};
    uint32_t n = counts[_i / 2];
    const enum strait_block_mode mode = _i % 2 == 0 ? STRAIT_BLOCK_TOP16 : STRAIT_BLOCK_TIERED;
    uint8_t block[8192 * 2] = {0}, page[8192 * 2];
    craft_init(2 * n);
    for (int64_t other = -1; other < n; other += other < 140 || other + 200 > n ? 1 : 97) {
        memset(block, 0x12, n);
        if (other >= 0)
            block[other] = 0x92;
        for (uint32_t i = 0; i < n; i++)
            put_value(page, i, join_value(block[i], exponent_of_rank(0)));
        craft(mode, page, 2 * n, block, mode == STRAIT_BLOCK_TOP16 ? n + (n + 1) / 2 : n + (n + 3) / 4);
        struct judgement j = judge(chunk_size);
        if (other < 0)
            assert_page_fails(j, 0, STRAIT_ERR_CORRUPT, "equal values");
        else
            ck_assert_int_eq(STRAIT_OK, j.verified.result.status);
    }
    teardown();
}
END_TEST

START_TEST(a_const_block_has_a_value_a_tail_and_zeros)
{
    const uint8_t block[16] = {0x34, 0x12, 0x56};
    uint8_t page[1001];
    craft_init(sizeof(page));
    for (uint32_t i = 0; i < 500; i++)
        put_value(page, i, 0x1234);
    page[1000] = 0x56;
    craft(STRAIT_BLOCK_CONST, page, sizeof(page), block, sizeof(block));
    ck_assert_int_eq(STRAIT_OK, judge(chunk_size).verified.result.status);
    for (uint32_t i = 0; i < 16; i++) {
        chunk[BLOCK + i] ^= 0x08;
        assert_page_fails(judge(chunk_size), 0, i < 3 ? STRAIT_ERR_INTEGRITY : STRAIT_ERR_CORRUPT, "const");
        chunk[BLOCK + i] ^= 0x08;
    }
    block_resize(1);
    assert_refused(judge_repaired(chunk_size), STRAIT_ERR_CORRUPT, "two units");
    teardown();
}
END_TEST

START_TEST(a_raw_block_ends_in_zeros)
{
    uint8_t page[105];
    struct rng rng = rng_init(4);
    craft_init(sizeof(page));
    rng_fill(&rng, page, sizeof(page));
    craft(STRAIT_BLOCK_RAW, page, sizeof(page), page, sizeof(page));
    ck_assert_int_eq(STRAIT_OK, judge(chunk_size).verified.result.status);
    for (uint32_t i = 0; i < 112; i++) {
        chunk[BLOCK + i] ^= 0x80;
        assert_page_fails(judge(chunk_size), 0, i < 105 ? STRAIT_ERR_INTEGRITY : STRAIT_ERR_CORRUPT, "raw");
        chunk[BLOCK + i] ^= 0x80;
    }
    teardown();
}
END_TEST

/* Check 9: what a mode's block must take at least, and less than raw. Raw bytes: one unit for up to 16. */
START_TEST(a_block_of_impossible_size_is_refused_before_it_is_decoded)
{
    for (uint32_t bytes = 1; bytes <= 300; bytes++) {
        uint32_t n = bytes / 2, t = bytes % 2, raw = (bytes + 15) / 16;
        const uint32_t least[] = {raw, 1, (n + (n + 1) / 2 + t + 15) / 16, (n + (n + 1) / 2 + 5 + t + 15) / 16,
                                  (n + (n + 3) / 4 + t + 15) / 16};
        static const uint8_t zeros[400];
        craft_init(bytes);
        for (uint32_t units = 1; units <= raw + 1; units++) {
            bool exact = _i <= STRAIT_BLOCK_TOP16, small = _i == STRAIT_BLOCK_RAW ? units == raw : units < raw;
            bool possible = small && (exact ? units == least[_i] : units >= least[_i]);
            craft((enum strait_block_mode)_i, zeros, bytes, zeros, 16 * units);
            struct judgement j = judge(chunk_size);
            if (!possible)
                assert_refused(j, STRAIT_ERR_CORRUPT, "size");
            else if (_i > STRAIT_BLOCK_CONST)
                assert_page_fails(j, 0, STRAIT_ERR_CORRUPT, "equal values");
            else
                ck_assert_int_eq(STRAIT_OK, j.verified.result.status);
        }
        teardown();
    }
}
END_TEST

/* ---- Chunks that change during the call ------------------------------------------------------------------------ */

START_TEST(with_a_copy_of_the_metadata_that_of_the_chunk_is_not_looked_at)
{
    uint8_t metadata[METADATA];
    struct verdict verdict;
    memcpy(metadata, chunk, METADATA);
    memset(chunk, _i, METADATA);
    for (int v = 0; v < VARIANTS; v++) {
        if (variant(v) == NULL)
            continue;
        struct strait_run run = verdict_begin(&verdict);
        run.metadata = metadata;
        layout_clear(&dst);
        ck_assert_int_eq(STRAIT_OK, strait_decode(variant(v), codebook, &dst.pages, NULL, chunk, chunk_size, &run));
        ck_assert_int_eq(STRAIT_OK, verdict.result.status);
        ck_assert_mem_eq(src.memory.bytes, dst.memory.bytes, src.memory.size);
        ck_assert_int_eq(STRAIT_OK, strait_verify(variant(v), codebook, chunk, chunk_size, &run));
        ck_assert_int_eq(STRAIT_OK, verdict.result.status);
    }
}
END_TEST

static const struct shape busy_shape = {
    .page_count = 3, .rows = 1, .row_bytes = 16384 + 4001, .page_gap = 1, .table = 4};

/* Writes to the blocks of the chunk until it is told to stop. */
struct meddler {
    uint8_t *blocks;
    size_t size;
    atomic_bool stop;
};

static void *meddle(void *arg)
{
    struct meddler *meddler = arg;
    struct rng rng = rng_init(600);
    while (!atomic_load(&meddler->stop)) {
        uint64_t random = rng_next(&rng);
        volatile uint8_t *byte = meddler->blocks + random % meddler->size;
        uint8_t before = *byte;
        *byte ^= (uint8_t)(random >> 56 | 1);
        for (int wait = 0; wait < 20; wait++) /* or nobody would see it */
            rng_next(&rng);
        *byte = before;
    }
    return NULL;
}

/* Pages that passed are what was encoded. */
static void check_passed(const struct verdict *verdict)
{
    static uint8_t a[16384 + 4001], b[16384 + 4001];
    for (uint32_t p = 0; p < layout_count(&dst); p++) {
        layout_read(&src, p, a);
        layout_read(&dst, p, b);
        ck_assert(verdict->page_status[p] != STRAIT_OK || memcmp(a, b, sizeof(a)) == 0);
    }
}

static const enum strait_mode busy_modes[] = {STRAIT_MODE_RAW, STRAIT_MODE_TOP16, STRAIT_MODE_TIERED};

START_TEST(blocks_that_change_during_the_call_fail_or_are_what_was_encoded)
{
    struct meddler meddler = {.stop = false};
    struct verdict verdict;
    struct rng rng = rng_init(601);
    pthread_t thread;
    if (STRIDE > 1 || variant(_i % VARIANTS) == NULL)
        return; /* ThreadSanitizer is right: this is a race */
    setup_pages(&busy_shape);
    layout_fill(&src, &rng, PATTERN_RARE, codebook);
    encode_chunk(busy_modes[_i / VARIANTS]);
    uint8_t *bytes = room.bytes + room.size - chunk_size;
    memcpy(bytes, chunk, chunk_size);
    meddler.blocks = bytes + 16 * (load_le32(bytes + 48) >> 4);
    meddler.size = (size_t)(room.bytes + room.size - meddler.blocks);
    ck_assert_int_eq(0, pthread_create(&thread, NULL, meddle, &meddler));
    for (int k = 0; k < 2000; k++) {
        layout_clear(&dst);
        decode_layout(variant(_i % VARIANTS), codebook, &dst, NULL, bytes, chunk_size, &verdict);
        ck_assert_int_eq(STRAIT_OK, verdict.result.chunk_status);
        ck_assert(layout_intact(&dst));
        check_passed(&verdict);
    }
    atomic_store(&meddler.stop, true);
    pthread_join(thread, NULL);
    teardown();
}
END_TEST

/* ---- All of it ------------------------------------------------------------------------------------------------- */

static TCase *add_case(Suite *suite, const char *name)
{
    TCase *tcase = tcase_create(name);
    tcase_set_timeout(tcase, 0); /* CTest has one */
    suite_add_tcase(suite, tcase);
    return tcase;
}

static void add_chunk_tests(Suite *suite)
{
    TCase *any = add_case(suite, "any change"), *header = add_case(suite, "header");
    tcase_add_checked_fixture(any, setup, teardown);
    tcase_add_checked_fixture(header, setup, teardown);
    tcase_add_loop_test(any, the_chunk_is_what_the_format_says, 0, COUNT(modes));
    tcase_add_loop_test(any, every_flipped_bit_is_seen, 0, COUNT(modes));
    tcase_add_loop_test(any, every_flipped_bit_of_the_metadata_is_seen_when_its_sum_is_repaired, 0, COUNT(modes));
    tcase_add_loop_test(any, every_byte_of_the_metadata_may_be_anything, 0, 8);
    tcase_add_loop_test(any, random_changes_get_the_same_verdict_from_every_variant, 0, 4);
    tcase_add_test(any, a_chunk_that_ends_early_is_truncated);
    tcase_add_test(any, a_chunk_with_bytes_after_it_is_corrupt);
    tcase_add_loop_test(header, a_header_field_out_of_its_limits_is_refused, 0, COUNT(header_changes));
    tcase_add_loop_test(header, a_header_field_out_of_its_limits_is_refused_by_chunk_info, 0, COUNT(header_changes));
    tcase_add_test(header, a_codebook_id_of_zeros_with_coded_blocks_is_corrupt);
    tcase_add_loop_test(header, a_wrong_metadata_sum_is_an_integrity_error, 0, 8);
    tcase_add_loop_test(header, the_first_failing_check_gives_the_error, 0, COUNT(steps));
}

static void add_table_tests(Suite *suite)
{
    TCase *tables = add_case(suite, "tables"), *info = add_case(suite, "info");
    tcase_add_checked_fixture(tables, setup, teardown);
    tcase_add_checked_fixture(info, setup, teardown);
    tcase_add_loop_test(tables, a_bad_entry_row_or_length_is_refused, 0, COUNT(table_changes));
    tcase_add_loop_test(tables, lengths_differ_and_one_is_the_longest, 0, COUNT(lengths));
    tcase_add_loop_test(tables, without_a_codebook_every_table_index_is_0, 0, 2);
    tcase_add_test(tables, bytes_after_the_metadata_must_be_zero);
    tcase_add_loop_test(tables, a_row_of_another_mode_is_refused, 0, 2 * COUNT(rows));
    tcase_add_loop_test(tables, a_row_of_another_offset_is_refused, 0, 2 * COUNT(rows));
    tcase_add_loop_test(tables, a_wrong_page_sum_fails_its_page_alone, 0, 8 * PAGES);
    tcase_add_loop_test(tables, a_page_of_another_table_fails_alone, 0, PAGES);
    tcase_add_test(tables, pages_that_changed_places_fail_both);
    tcase_add_test(info, chunk_info_tells_the_header);
    tcase_add_test(info, chunk_pages_tells_lengths_tables_sums_and_modes);
    tcase_add_loop_test(info, chunk_pages_gives_the_error_of_the_checks, 0, COUNT(table_changes));
}

static void add_block_tests(Suite *suite)
{
    TCase *blocks = add_case(suite, "blocks"), *change = add_case(suite, "changing"), *busy = add_case(suite, "busy");
    tcase_add_checked_fixture(change, setup, teardown);
    tcase_add_loop_test(change, with_a_copy_of_the_metadata_that_of_the_chunk_is_not_looked_at, 0, 2);
    tcase_add_loop_test(busy, blocks_that_change_during_the_call_fail_or_are_what_was_encoded, 0,
                        COUNT(busy_modes) * VARIANTS);
    tcase_add_loop_test(blocks, streams_that_no_encoder_writes_are_refused, 0, COUNT(spoiled_blocks));
    tcase_add_loop_test(blocks, every_changed_byte_of_a_block_is_seen, 0, 40);
    tcase_add_loop_test(blocks, a_coded_block_of_equal_values_is_corrupt_and_of_nearly_equal_ones_is_not, 0, 14);
    tcase_add_test(blocks, a_const_block_has_a_value_a_tail_and_zeros);
    tcase_add_test(blocks, a_raw_block_ends_in_zeros);
    tcase_add_loop_test(blocks, a_block_of_impossible_size_is_refused_before_it_is_decoded, 0, STRAIT_BLOCK_MODES);
}

int main(void)
{
    Suite *suite = suite_create("chunk");
    print_conditions();
    add_chunk_tests(suite);
    add_table_tests(suite);
    add_block_tests(suite);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
