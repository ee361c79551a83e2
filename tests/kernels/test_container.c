#include <check.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "internal/bytes.h"
#include "kernels/container.h"
#include "tests/run_suite.h"

#define CHUNKS       3u
#define FOOTER_BYTES (16 + CHUNKS * CONTAINER_ENTRY_BYTES + CONTAINER_TAIL_BYTES)
#define COUNT(array) (int)(sizeof(array) / sizeof((array)[0]))

/* ---- Header ---------------------------------------------------------------------------------------------------- */

static const struct container_header headers[] = {
    {0, 0, {0}},
    {0, 1, {1}},
    {1, 65535, {0xff, 0xff}},
    {CONTAINER_PREAMBLE_MAX, 25, {[15] = 1}},
};

TEST_LOOP(a_header_comes_back, COUNT(headers))
{
    const struct container_header *header = &headers[_i];
    struct container_header back;
    uint8_t bytes[CONTAINER_HEADER_BYTES];
    container_write_header(bytes, header);
    ck_assert(container_is_file(bytes, sizeof(bytes)));
    ck_assert_int_eq(STRAIT_OK, container_read_header(&back, bytes, sizeof(bytes)));
    ck_assert_uint_eq(header->preamble_bytes, back.preamble_bytes);
    ck_assert_uint_eq(header->table_count, back.table_count);
    ck_assert_mem_eq(header->codebook_id, back.codebook_id, sizeof(back.codebook_id));
}

TEST(no_beginning_of_a_header_is_one)
{
    uint8_t bytes[CONTAINER_HEADER_BYTES];
    struct container_header back;
    container_write_header(bytes, &headers[3]);
    for (uint64_t size = 0; size < sizeof(bytes); size++)
        ck_assert_int_eq(STRAIT_ERR_TRUNCATED, container_read_header(&back, bytes, size));
}

TEST(no_changed_bit_of_a_header_is_overlooked)
{
    uint8_t bytes[CONTAINER_HEADER_BYTES];
    struct container_header back;
    container_write_header(bytes, &headers[1]);
    for (unsigned bit = 0; bit < 8 * sizeof(bytes); bit++) {
        enum strait_status expected = bit < 32   ? STRAIT_ERR_CORRUPT
                                      : bit < 40 ? STRAIT_ERR_UNSUPPORTED
                                                 : STRAIT_ERR_INTEGRITY;
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        ck_assert_int_eq(expected, container_read_header(&back, bytes, sizeof(bytes)));
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

/* Faults under a right hash: whoever made the file meant them. */
static const struct header_fault {
    unsigned offset, bytes;
    uint64_t value;
} header_faults[] = {
    {5, 1, 1},                             /* reserved */
    {7, 1, 0x80},                          /* reserved */
    {8, 8, CONTAINER_PREAMBLE_MAX + 1ull}, /* preamble too long */
    {8, 8, UINT64_MAX},                    /* so long that offsets would wrap */
    {16, 4, 65536},                        /* too many tables */
    {16, 4, 0},                            /* an id without tables */
    {20, 4, 1},                            /* reserved */
    {24, 8, 0},                            /* tables without an id */
};

TEST_LOOP(a_header_with_one_fault_is_refused, COUNT(header_faults))
{
    const struct header_fault *fault = &header_faults[_i];
    uint8_t bytes[CONTAINER_HEADER_BYTES];
    struct container_header back;
    container_write_header(bytes, &headers[1]);
    memcpy(bytes + fault->offset, &fault->value, fault->bytes);
    store_le64(bytes + 40, XXH3_64bits(bytes, 40));
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, container_read_header(&back, bytes, sizeof(bytes)));
}

TEST(tables_begin_at_a_multiple_of_16_behind_the_preamble)
{
    for (uint64_t preamble = 0; preamble < 40; preamble++) {
        struct container_header header = {.preamble_bytes = preamble, .table_count = 3};
        uint64_t tables = container_tables_offset(&header);
        ck_assert_uint_eq(0, tables % 16);
        ck_assert(tables >= 48 + preamble && tables < 48 + preamble + 16);
        ck_assert_uint_eq(tables + 3 * 256, container_chunks_offset(&header));
    }
}

/* ---- Footer ---------------------------------------------------------------------------------------------------- */

/* A file with a preamble of 100 bytes, one table and three chunks. */
struct sample {
    struct container_header header;
    struct container_chunk chunks[CHUNKS];
    struct container_tail tail;
};

static struct sample make_sample(void)
{
    struct sample sample = {
        .header = {.preamble_bytes = 100, .table_count = 1, .codebook_id = {1}},
        .chunks = {{0, 0, 1024, 4}, {0, 4000, 64, 1}, {0, 4001, 1 << 20, 2}},
        .tail = {.original_bytes = 100 + 4001 + 2 * STRAIT_PAGE_BYTES_MAX},
    };
    uint64_t offset = container_chunks_offset(&sample.header);
    for (unsigned i = 0; i < CHUNKS; i++) {
        sample.chunks[i].file_offset = offset;
        offset += sample.chunks[i].chunk_bytes;
    }
    sample.tail.footer_offset = offset;
    container_store_hash(sample.tail.hash, 0x0123456789abcdef, 0xfedcba9876543210);
    return sample;
}

static void write_sample(uint8_t footer[FOOTER_BYTES], const struct sample *sample)
{
    ck_assert_uint_eq(FOOTER_BYTES, container_footer_bytes(CHUNKS));
    container_write_footer(footer, sample->chunks, CHUNKS, &sample->tail);
}

static enum strait_status check(const uint8_t *footer, uint64_t size, const struct sample *sample)
{
    uint32_t count = 77;
    struct container_tail tail;
    enum strait_status status = container_check_footer(footer, size, &sample->header, &count, &tail);
    ck_assert_uint_eq(status == STRAIT_OK ? CHUNKS : 77, count);
    return status;
}

TEST(a_footer_comes_back)
{
    struct sample sample = make_sample();
    uint8_t footer[FOOTER_BYTES];
    struct container_tail tail;
    uint32_t count;
    write_sample(footer, &sample);
    ck_assert(container_is_footer(footer, sizeof(footer)));
    ck_assert_int_eq(STRAIT_OK, container_check_footer(footer, sizeof(footer), &sample.header, &count, &tail));
    ck_assert_uint_eq(CHUNKS, count);
    ck_assert_uint_eq(sample.tail.footer_offset, tail.footer_offset);
    ck_assert_uint_eq(sample.tail.original_bytes, tail.original_bytes);
    ck_assert_mem_eq(sample.tail.hash, tail.hash, sizeof(tail.hash));
    for (uint32_t i = 0; i < CHUNKS; i++) {
        struct container_chunk chunk = container_footer_chunk(footer, i);
        ck_assert_uint_eq(sample.chunks[i].file_offset, chunk.file_offset);
        ck_assert_uint_eq(sample.chunks[i].raw_offset, chunk.raw_offset);
        ck_assert_uint_eq(sample.chunks[i].chunk_bytes, chunk.chunk_bytes);
        ck_assert_uint_eq(sample.chunks[i].page_count, chunk.page_count);
    }
}

TEST(a_file_without_chunks_has_a_footer_too)
{
    struct container_header header = {.preamble_bytes = 7};
    struct container_tail tail = {.footer_offset = container_chunks_offset(&header), .original_bytes = 7}, back;
    uint8_t footer[16 + CONTAINER_TAIL_BYTES];
    uint32_t count;
    container_write_footer(footer, NULL, 0, &tail);
    ck_assert_int_eq(STRAIT_OK, container_check_footer(footer, sizeof(footer), &header, &count, &back));
    ck_assert_uint_eq(0, count);
    tail.original_bytes = 8;
    container_write_footer(footer, NULL, 0, &tail);
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, container_check_footer(footer, sizeof(footer), &header, &count, &back));
}

TEST(no_beginning_of_a_footer_is_one)
{
    struct sample sample = make_sample();
    uint8_t footer[FOOTER_BYTES];
    write_sample(footer, &sample);
    for (uint64_t size = 0; size < FOOTER_BYTES; size++) {
        uint8_t *exact = malloc(size + 1); /* the sanitizer watches its end */
        memcpy(exact, footer, size);
        ck_assert_int_eq(STRAIT_ERR_TRUNCATED, check(exact, size, &sample));
        free(exact);
    }
}

TEST(no_changed_bit_of_a_footer_is_overlooked)
{
    struct sample sample = make_sample();
    uint8_t footer[FOOTER_BYTES];
    write_sample(footer, &sample);
    for (unsigned bit = 0; bit < 8 * FOOTER_BYTES; bit++) {
        enum strait_status expected = bit / 8 >= FOOTER_BYTES - 8 ? STRAIT_ERR_TRUNCATED : STRAIT_ERR_INTEGRITY;
        footer[bit / 8] ^= (uint8_t)(1 << bit % 8);
        ck_assert_int_eq(expected, check(footer, FOOTER_BYTES, &sample));
        footer[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

TEST(the_tail_alone_tells_where_the_footer_begins)
{
    struct sample sample = make_sample();
    uint8_t footer[FOOTER_BYTES];
    struct container_tail tail;
    write_sample(footer, &sample);
    ck_assert_int_eq(STRAIT_OK, container_read_tail(&tail, footer + FOOTER_BYTES - CONTAINER_TAIL_BYTES));
    ck_assert_uint_eq(sample.tail.footer_offset, tail.footer_offset);
    footer[FOOTER_BYTES - 1]++;
    ck_assert_int_eq(STRAIT_ERR_TRUNCATED, container_read_tail(&tail, footer + FOOTER_BYTES - CONTAINER_TAIL_BYTES));
}

#define FAULT(name, change)            \
    static void name(struct sample *s) \
    {                                  \
        change;                        \
    }

/* Faults under a right hash. */
FAULT(move_chunk, s->chunks[1].file_offset += 16)
FAULT(move_all_chunks, s->header.table_count++)
FAULT(wrap_chunk, s->chunks[1].file_offset = UINT64_MAX - 15)
FAULT(shrink_chunk, s->chunks[2].chunk_bytes -= 16)
FAULT(misalign_chunk, s->chunks[0].chunk_bytes--)
FAULT(empty_chunk, s->chunks[1].chunk_bytes = 0)
FAULT(tiny_chunk, s->chunks[1].chunk_bytes = 48)
FAULT(begin_late, s->chunks[0].raw_offset = 1)
FAULT(step_back, s->chunks[2].raw_offset = 3999)
FAULT(wrap_raw, s->chunks[2].raw_offset = UINT64_MAX)
FAULT(no_pages, s->chunks[1].page_count = 0)
FAULT(many_pages, s->chunks[2].page_count = STRAIT_CHUNK_PAGES_MAX + 1)
FAULT(pages_without_bytes, s->chunks[1].page_count = 2)
FAULT(bytes_without_pages, s->tail.original_bytes++)
FAULT(short_original, s->tail.original_bytes = 99)
FAULT(footer_elsewhere, s->tail.footer_offset -= 16)

static void (*const footer_faults[])(struct sample *) = {
    move_chunk,          move_all_chunks,     wrap_chunk,     shrink_chunk,     misalign_chunk, empty_chunk,
    tiny_chunk,          begin_late,          step_back,      wrap_raw,         no_pages,       many_pages,
    pages_without_bytes, bytes_without_pages, short_original, footer_elsewhere,
};

TEST_LOOP(a_footer_with_one_fault_is_refused, COUNT(footer_faults))
{
    struct sample sample = make_sample();
    uint8_t footer[FOOTER_BYTES];
    footer_faults[_i](&sample);
    write_sample(footer, &sample);
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, check(footer, FOOTER_BYTES, &sample));
}

static const struct footer_patch {
    unsigned offset;
    uint32_t value;
} footer_patches[] = {
    {0, 0},                             /* magic */
    {4, CHUNKS - 1},                    /* fewer chunks than there is room for */
    {4, CHUNKS + 1},                    /* more */
    {4, UINT32_MAX},                    /* far more */
    {8, 1},          {12, 0x80000000u}, /* reserved */
};

TEST_LOOP(a_patched_footer_is_refused, COUNT(footer_patches))
{
    struct sample sample = make_sample();
    uint8_t footer[FOOTER_BYTES];
    write_sample(footer, &sample);
    store_le32(footer + footer_patches[_i].offset, footer_patches[_i].value);
    store_le64(footer + FOOTER_BYTES - 16, XXH3_64bits(footer, FOOTER_BYTES - 16));
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, check(footer, FOOTER_BYTES, &sample));
}

int main(void)
{
    return run_tests("container", NULL, NULL);
}
