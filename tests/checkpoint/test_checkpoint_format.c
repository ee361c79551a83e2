/* The files' format in memory: what is built is parsed, what section 8 of FORMAT.md does not allow is refused, and
 * coverage by boxes is what trying every value says. */
#include <string.h>

#include "checkpoint/boxes.h"
#include "checkpoint/format.h"
#include "tests/run_suite.h"
#include "tests/support.h"

static char text[512];

/* ---- Covering ---------------------------------------------------------------------------------------------------- */

enum { BOXES = 12, SIDE = 5 };

static bool inside(const struct checkpoint_box *box, const uint64_t *at, uint32_t dims)
{
    for (uint32_t d = 0; d < dims; d++)
        if (at[d] < box->offsets[d] || at[d] - box->offsets[d] >= box->sizes[d])
            return false;
    return true;
}

static bool in_any(const struct checkpoint_box *boxes, uint32_t count, const uint64_t *at, uint32_t dims)
{
    for (uint32_t i = 0; i < count; i++)
        if (inside(&boxes[i], at, dims))
            return true;
    return false;
}

/* Looks at every value of the shape. */
static bool covers(const struct checkpoint_box *boxes, uint32_t count, const uint64_t *shape, uint32_t dims)
{
    uint64_t at[4] = {0}, all = 1;

    for (uint32_t d = 0; d < dims; d++)
        all *= shape[d];
    for (uint64_t i = 0; i < all; i++) {
        uint64_t rest = i;
        for (uint32_t d = 0; d < dims; d++) {
            at[d] = rest % shape[d];
            rest /= shape[d];
        }
        if (!in_any(boxes, count, at, dims))
            return false;
    }
    return true;
}

TEST(random_boxes)
{
    struct rng rng = rng_init(1);
    int covered = 0;

    for (int round = 0; round < 20000; round += STRIDE) {
        const uint32_t dims = rng_below(&rng, 4), count = rng_below(&rng, BOXES);
        uint64_t shape[4], offsets[BOXES][4], sizes[BOXES][4], gap[STRAIT_CHECKPOINT_DIMS_MAX] = {0};
        struct checkpoint_box boxes[BOXES], sorted[BOXES];
        for (uint32_t d = 0; d < dims; d++)
            shape[d] = 1 + rng_below(&rng, SIDE);
        for (uint32_t i = 0; i < count; i++) {
            for (uint32_t d = 0; d < dims; d++) {
                /* Often all of a dimension, as programs cut. */
                offsets[i][d] = rng_below(&rng, 2) ? 0 : rng_below(&rng, (uint32_t)shape[d] + 1);
                sizes[i][d] = rng_below(&rng, 3) ? shape[d] - offsets[i][d]
                                                 : rng_below(&rng, (uint32_t)(shape[d] - offsets[i][d]) + 1);
            }
            boxes[i] = sorted[i] = (struct checkpoint_box){.offsets = offsets[i], .sizes = sizes[i]};
        }
        uint64_t budget = CHECKPOINT_COVER_BUDGET;
        const bool expected = covers(boxes, count, shape, dims);
        const enum checkpoint_cover found = checkpoint_boxes_cover(sorted, count, shape, dims, &budget, gap);
        ck_assert_int_eq(found, expected ? CHECKPOINT_COVERED : CHECKPOINT_GAP);
        ck_assert(expected || !in_any(boxes, count, gap, dims));
        for (uint32_t d = 0; d < dims && !expected; d++)
            ck_assert_uint_lt(gap[d], shape[d]);
        covered += expected;
    }
    ck_assert_int_gt(covered, 1000 / STRIDE);
}
END_TEST

/* The cuts of many ranks: by rows, by columns, and in a grid, in any order, quickly; one that lacks is noticed. */
TEST_LOOP(many_boxes, 3)
{
    enum { SHARDS = 65536 };
    const uint64_t shape[3] = {65536, 65536, 7};
    uint64_t(*offsets)[3] = calloc(SHARDS, sizeof(*offsets)), gap[STRAIT_CHECKPOINT_DIMS_MAX];
    uint64_t budget = CHECKPOINT_COVER_BUDGET;
    const uint64_t size[3][3] = {{1, 65536, 7}, {65536, 1, 7}, {256, 256, 7}};
    struct checkpoint_box *boxes = calloc(SHARDS, sizeof(*boxes));
    struct rng rng = rng_init(2);
    const double began = clock_s();

    for (uint32_t i = 0; i < SHARDS; i++) {
        const uint64_t row = _i == 0 ? i : _i == 1 ? 0 : i / 256, column = _i == 0 ? 0 : _i == 1 ? i : i % 256;
        offsets[i][0] = row * size[_i][0];
        offsets[i][1] = column * size[_i][1];
        boxes[i] = (struct checkpoint_box){.offsets = offsets[i], .sizes = size[_i]};
    }
    for (uint32_t i = SHARDS - 1; i > 0; i--) {
        const uint32_t other = rng_below(&rng, i + 1);
        const struct checkpoint_box kept = boxes[i];
        boxes[i] = boxes[other];
        boxes[other] = kept;
    }
    ck_assert_int_eq(checkpoint_boxes_cover(boxes, SHARDS, shape, 3, &budget, gap), CHECKPOINT_COVERED);
    const uint64_t *missing = boxes[SHARDS - 1].offsets;
    ck_assert_int_eq(checkpoint_boxes_cover(boxes, SHARDS - 1, shape, 3, &budget, gap), CHECKPOINT_GAP);
    ck_assert_mem_eq(gap, missing, 3 * sizeof(*gap));
    ck_assert(SANITIZED || clock_s() - began - machine_late_s() < 2);
    free(boxes);
    free(offsets);
}
END_TEST

/* Boxes that overlap in ever new ways, each from one end of every dimension to beyond its middle: no answer, but soon.
 */
TEST(boxes_made_to_take_long)
{
    enum { SHARDS = 2000 };
    const uint64_t shape[4] = {100000, 100000, 100000, 100000};
    uint64_t(*offsets)[4] = calloc(SHARDS, sizeof(*offsets)), (*sizes)[4] = calloc(SHARDS, sizeof(*sizes));
    uint64_t gap[STRAIT_CHECKPOINT_DIMS_MAX], budget = CHECKPOINT_COVER_BUDGET;
    struct checkpoint_box *boxes = calloc(SHARDS, sizeof(*boxes));
    struct rng rng = rng_init(3);
    const double began = clock_s();

    for (uint32_t i = 0; i < SHARDS; i++) {
        for (int d = 0; d < 4; d++) {
            sizes[i][d] = 60000 + rng_below(&rng, 39999);
            offsets[i][d] = rng_below(&rng, 2) ? 0 : shape[d] - sizes[i][d];
        }
        boxes[i] = (struct checkpoint_box){.offsets = offsets[i], .sizes = sizes[i]};
    }
    ck_assert_int_eq(checkpoint_boxes_cover(boxes, SHARDS, shape, 4, &budget, gap), CHECKPOINT_INTRICATE);
    ck_assert(SANITIZED || clock_s() - began - machine_late_s() < 15);
    free(boxes);
    free(offsets);
    free(sizes);
}
END_TEST

/* The budget is that of all who share it: what one has used is gone for the next. */
TEST(boxes_share_a_budget)
{
    const uint64_t shape[1] = {4}, offsets[4] = {0, 1, 2, 3}, sizes[1] = {1};
    uint64_t gap[STRAIT_CHECKPOINT_DIMS_MAX], budget = CHECKPOINT_COVER_BUDGET;
    struct checkpoint_box boxes[4];

    for (uint32_t i = 0; i < 4; i++)
        boxes[i] = (struct checkpoint_box){.offsets = &offsets[i], .sizes = sizes, .dims = 1};
    ck_assert_int_eq(checkpoint_boxes_cover(boxes, 4, shape, 1, &budget, gap), CHECKPOINT_COVERED);
    const uint64_t used = CHECKPOINT_COVER_BUDGET - budget;
    budget = 2 * used;
    ck_assert_int_eq(checkpoint_boxes_cover(boxes, 4, shape, 1, &budget, gap), CHECKPOINT_COVERED);
    ck_assert_uint_eq(used, budget);
    ck_assert_int_eq(checkpoint_boxes_cover(boxes, 4, shape, 1, &budget, gap), CHECKPOINT_COVERED);
    ck_assert_uint_eq(0, budget);
    ck_assert_int_eq(checkpoint_boxes_cover(boxes, 4, shape, 1, &budget, gap), CHECKPOINT_INTRICATE);
    budget = used - 1;
    ck_assert_int_eq(checkpoint_boxes_cover(boxes, 4, shape, 1, &budget, gap), CHECKPOINT_INTRICATE);
}
END_TEST

/* ---- A footer ---------------------------------------------------------------------------------------------------- */

static const uint64_t shape_a[2] = {100, 1000}, zero[2], sizes_a[2] = {50, 1000}, offsets_b[2] = {50, 0};
static const uint64_t small[1] = {10}, none[1] = {0};

enum { MASTER, OTHER_HALF, MODEL, BIAS, SCALE, EMPTY, SHARDS_OF_FOOTER };

/* Chunk 0: 13 pages of FP32, of two shards; chunk 1: one page of bytes, of two small shards. */
struct sample {
    struct checkpoint_chunk chunks[3];
    struct checkpoint_shard shards[SHARDS_OF_FOOTER];
    struct checkpoint_footer footer;
};

static struct checkpoint_shard shard_of(const char *name, const char *dtype, uint32_t dims, const uint64_t *shape,
                                        const uint64_t *offsets, const uint64_t *sizes)
{
    struct checkpoint_shard shard = {.name = name, .dtype = checkpoint_dtype_find(dtype), .dims = dims};

    shard.shape = shape;
    shard.offsets = offsets;
    shard.sizes = sizes;
    shard.bytes = checkpoint_box_bytes(sizes, dims, shard.dtype->bytes);
    shard.page_bytes = 32768;
    return shard;
}

static void sample_init(struct sample *sample)
{
    *sample = (struct sample){.chunks = {{4096, 4800, 14, 1}, {12288, 96, 1, 2}}};
    sample->shards[MASTER] = shard_of("master", "F32", 2, shape_a, zero, sizes_a);
    sample->shards[OTHER_HALF] = shard_of("master", "F32", 2, shape_a, offsets_b, sizes_a);
    sample->shards[OTHER_HALF].first_page = 7;
    sample->shards[MODEL] = shard_of("model", "BF16", 2, shape_a, zero, sizes_a);
    sample->shards[MODEL].rounded_from = 1 + MASTER;
    sample->shards[MODEL].page_bytes = 0;
    sample->shards[BIAS] = shard_of("bias", "I64", 1, small, zero, small);
    sample->shards[BIAS].first_chunk = 1;
    sample->shards[SCALE] = shard_of("scale", "U8", 1, small, zero, small);
    sample->shards[SCALE].first_chunk = 1;
    sample->shards[SCALE].first_byte = 80;
    sample->shards[EMPTY] = shard_of("empty", "U8", 1, none, zero, none);
    sample->shards[EMPTY].page_bytes = 0;
    sample->footer = (struct checkpoint_footer){.rank = 2,
                                                .rank_count = 5,
                                                .save_id = "0123456789abcdef",
                                                .chunks = sample->chunks,
                                                .shards = sample->shards,
                                                .chunk_count = 2,
                                                .shard_count = SHARDS_OF_FOOTER};
}

static enum strait_status parse(const struct sample *sample, struct checkpoint_footer *found)
{
    uint8_t *message, tail_bytes[CHECKPOINT_TAIL_BYTES];
    struct checkpoint_tail tail;
    size_t bytes;

    text[0] = 0;
    ck_assert_int_eq(checkpoint_footer_build(&sample->footer, &message, &bytes), STRAIT_OK);
    checkpoint_tail_build(tail_bytes, 16384, message, (uint32_t)bytes);
    ck_assert_int_eq(checkpoint_tail_parse(&tail, tail_bytes, 16384 + bytes + sizeof(tail_bytes), text, sizeof(text)),
                     STRAIT_OK);
    const enum strait_status status = checkpoint_footer_parse(found, message, &tail, text, sizeof(text));
    free(message);
    return status;
}

TEST(a_footer_is_what_was_built)
{
    struct sample sample;
    struct checkpoint_footer found;

    sample_init(&sample);
    ck_assert_msg(parse(&sample, &found) == STRAIT_OK, "%s", text);
    ck_assert_uint_eq(found.rank, 2);
    ck_assert_uint_eq(found.rank_count, 5);
    ck_assert_uint_eq(found.chunk_count, 2);
    ck_assert_mem_eq(found.chunks, sample.chunks, 2 * sizeof(found.chunks[0]));
    ck_assert_uint_eq(found.shard_count, SHARDS_OF_FOOTER);
    for (int i = 0; i < SHARDS_OF_FOOTER; i++) {
        const struct checkpoint_shard *a = &found.shards[i], *b = &sample.shards[i];
        ck_assert_str_eq(a->name, b->name);
        ck_assert_ptr_eq(a->dtype, b->dtype);
        ck_assert_uint_eq(a->bytes, b->bytes);
        ck_assert_mem_eq(a->offsets, b->offsets, a->dims * sizeof(uint64_t));
        ck_assert_mem_eq(a->sizes, b->sizes, a->dims * sizeof(uint64_t));
        ck_assert_mem_eq(&a->dims, &b->dims, sizeof(*a) - offsetof(struct checkpoint_shard, dims));
    }
    checkpoint_footer_free(&found);
}
END_TEST

/* One thing that is wrong at a time. */
#define SPOIL(name, change)                         \
    static void spoil_##name(struct sample *sample) \
    {                                               \
        change;                                     \
    }
static const uint64_t huge[2] = {UINT64_C(1) << 40, UINT64_C(1) << 40};

SPOIL(rank, sample->footer.rank = 5)
SPOIL(ranks, sample->footer.rank_count = STRAIT_CHECKPOINT_RANKS_MAX + 1)
SPOIL(offset, sample->chunks[1].offset += 16)
SPOIL(overlap, sample->chunks[1].offset = 8192)
SPOIL(in_header, sample->chunks[0].offset = 0)
SPOIL(past_footer, sample->chunks[1].bytes = 4112)
SPOIL(no_bytes, sample->chunks[1].bytes = 48)
SPOIL(odd_bytes, sample->chunks[1].bytes = 100)
SPOIL(no_pages, sample->chunks[1].pages = 0)
SPOIL(many_pages, sample->chunks[1].pages = STRAIT_CHUNK_PAGES_MAX + 1)
SPOIL(no_name, sample->shards[BIAS].name = "")
SPOIL(bad_name, sample->shards[BIAS].name = "\xFF")
SPOIL(outside, sample->shards[MASTER].offsets = sizes_a; sample->shards[MASTER].sizes = shape_a)
SPOIL(huge_shape, sample->shards[EMPTY].dims = 2; sample->shards[EMPTY].shape = huge;
      sample->shards[EMPTY].sizes = zero)
SPOIL(page_bytes, sample->shards[BIAS].page_bytes = 32)
SPOIL(page_bytes_odd, sample->shards[BIAS].page_bytes = 100)
SPOIL(page_bytes_large, sample->shards[BIAS].page_bytes = STRAIT_PAGE_BYTES_MAX + 64)
SPOIL(first_byte_odd, sample->shards[BIAS].first_byte = 4)
SPOIL(first_byte_late, sample->shards[SCALE].first_byte = 32759)
SPOIL(first_byte_of_many, sample->shards[MASTER].first_byte = 4)
SPOIL(same_bytes, sample->shards[SCALE].first_byte = 79)
SPOIL(same_pages, sample->shards[OTHER_HALF].first_page = 6)
SPOIL(no_such_chunk, sample->shards[BIAS].first_chunk = 2)
SPOIL(no_such_page, sample->shards[BIAS].first_page = 1)
SPOIL(pages_end, sample->shards[OTHER_HALF].first_page = 13)
SPOIL(two_types, sample->shards[OTHER_HALF].first_page = 8)
SPOIL(pages_of_none, sample->shards[EMPTY].page_bytes = 64)
SPOIL(rounded_pages, sample->shards[MODEL].first_page = 1)
SPOIL(rounded_of_none, sample->shards[MODEL].rounded_from = SHARDS_OF_FOOTER + 1)
SPOIL(rounded_of_other_box, sample->shards[MODEL].rounded_from = 1 + OTHER_HALF)
SPOIL(rounded_of_other_type, sample->shards[MODEL].rounded_from = 1 + BIAS)
SPOIL(rounded_itself, sample->shards[MODEL].rounded_from = 1 + MODEL)
SPOIL(names_a_file, sample->shards[BIAS].file = 1)

#undef SPOIL
#define SPOIL(name, expected)  \
    {                          \
        expected, spoil_##name \
    }
static const struct {
    const char *text; /* that the refusal contains */
    void (*spoil)(struct sample *sample);
} spoils[] = {
    SPOIL(rank, "is of rank 5 of 5"),
    SPOIL(ranks, "is of rank 2 of"),
    SPOIL(offset, "chunk 1 begins at 12304"),
    SPOIL(overlap, "the one before ends at 8896"),
    SPOIL(in_header, "chunk 0 begins at 0"),
    SPOIL(past_footer, "chunk 1 ends behind the footer's beginning"),
    SPOIL(no_bytes, "chunk 1 has 48 bytes"),
    SPOIL(odd_bytes, "chunk 1 has 100 bytes"),
    SPOIL(no_pages, "and 0 pages"),
    SPOIL(many_pages, "and 1048577 pages"),
    SPOIL(no_name, "shard 3 has no name"),
    SPOIL(bad_name, "shard 3 has no name"),
    SPOIL(outside, "shard 0 has a box outside its shape"),
    SPOIL(huge_shape, "shard 5 has a shape of 2^63 bytes"),
    SPOIL(page_bytes, "shard 3 has pages of 32 bytes"),
    SPOIL(page_bytes_odd, "shard 3 has pages of 100 bytes"),
    SPOIL(page_bytes_large, "shard 3 has pages of"),
    SPOIL(first_byte_odd, "shard 3 begins at byte 4 of a page"),
    SPOIL(first_byte_late, "shard 4 begins at byte 32759 of a page"),
    SPOIL(first_byte_of_many, "shard 0 begins at byte 4 of a page"),
    SPOIL(same_bytes, "shards 3 and 4 overlap in the file"),
    SPOIL(same_pages, "shards 0 and 1 overlap in the file"),
    SPOIL(no_such_chunk, "in page 0 of chunk 2, which is not there"),
    SPOIL(no_such_page, "in page 1 of chunk 1, which is not there"),
    SPOIL(pages_end, "shard 1 has more pages than the file"),
    SPOIL(two_types, "overlap in the file"),
    SPOIL(pages_of_none, "shard 5 has pages of nothing"),
    SPOIL(rounded_pages, "shard 2 has pages of nothing"),
    SPOIL(rounded_of_none, "shard 2 is the rounding of a shard that is not there"),
    SPOIL(rounded_of_other_box, "shard 2 cannot be the rounding of shard 1"),
    SPOIL(rounded_of_other_type, "shard 2 cannot be the rounding of shard 3"),
    SPOIL(rounded_itself, "shard 2 cannot be the rounding of shard 2"),
    SPOIL(names_a_file, "shard 3 names a file"),
};

TEST_LOOP(a_footer_is_refused, COUNT(spoils))
{
    struct sample sample;
    struct checkpoint_footer found;

    sample_init(&sample);
    spoils[_i].spoil(&sample);
    ck_assert_int_eq(parse(&sample, &found), STRAIT_ERR_CORRUPT);
    ck_assert_msg(strstr(text, spoils[_i].text) != NULL, "%s, not %s", text, spoils[_i].text);
}
END_TEST

/* A page of a chunk that has another element type, without an overlap. */
TEST(a_chunk_of_two_types)
{
    struct sample sample;
    struct checkpoint_footer found;

    sample_init(&sample);
    sample.chunks[1].pages = 2;
    sample.shards[SCALE].first_byte = 0;
    sample.shards[SCALE].first_page = 1;
    ck_assert_msg(parse(&sample, &found) == STRAIT_OK, "%s", text);
    checkpoint_footer_free(&found);
    sample.shards[SCALE].dtype = checkpoint_dtype_find("F8_E5M2");
    ck_assert_int_eq(parse(&sample, &found), STRAIT_ERR_CORRUPT);
    ck_assert_msg(strstr(text, "chunk 1 has shards of two element types") != NULL, "%s", text);
}
END_TEST

/* ---- Bytes ------------------------------------------------------------------------------------------------------- */

/* Any single byte of a header, tail or footer that changes is noticed. */
TEST(every_byte_counts)
{
    uint8_t header[CHECKPOINT_HEADER_BYTES], id[STRAIT_CHECKPOINT_ID_BYTES], tail_bytes[CHECKPOINT_TAIL_BYTES];
    struct checkpoint_tail tail;
    struct checkpoint_footer found;
    struct sample sample;
    uint8_t *message;
    size_t bytes;

    sample_init(&sample);
    ck_assert_int_eq(checkpoint_footer_build(&sample.footer, &message, &bytes), STRAIT_OK);
    checkpoint_header_build(header, sample.footer.save_id);
    checkpoint_tail_build(tail_bytes, 16384, message, (uint32_t)bytes);
    const uint64_t size = 16384 + bytes + sizeof(tail_bytes);
    for (size_t i = 0; i < sizeof(header); i++) {
        header[i] ^= 1;
        const enum strait_status status = checkpoint_header_parse(id, header, sizeof(header), text, sizeof(text));
        ck_assert_int_eq(status, i < 4    ? STRAIT_ERR_CORRUPT
                                 : i == 4 ? STRAIT_ERR_UNSUPPORTED
                                 : i < 32 ? STRAIT_ERR_INTEGRITY
                                          : STRAIT_ERR_CORRUPT);
        header[i] ^= 1;
    }
    for (size_t i = 0; i < sizeof(tail_bytes); i++) {
        tail_bytes[i] ^= 1;
        ck_assert_int_eq(checkpoint_tail_parse(&tail, tail_bytes, size, text, sizeof(text)),
                         i < 40 ? STRAIT_ERR_INTEGRITY : STRAIT_ERR_TRUNCATED);
        tail_bytes[i] ^= 1;
    }
    ck_assert_int_eq(checkpoint_tail_parse(&tail, tail_bytes, size + 1, text, sizeof(text)), STRAIT_ERR_CORRUPT);
    ck_assert_int_eq(checkpoint_tail_parse(&tail, tail_bytes, CHECKPOINT_FILE_BYTES_MIN - 1, text, sizeof(text)),
                     STRAIT_ERR_TRUNCATED);
    ck_assert_int_eq(checkpoint_tail_parse(&tail, tail_bytes, size, text, sizeof(text)), STRAIT_OK);
    for (size_t i = 0; i < bytes; i++) {
        message[i] ^= 1;
        ck_assert_int_eq(checkpoint_footer_parse(&found, message, &tail, text, sizeof(text)), STRAIT_ERR_INTEGRITY);
        message[i] ^= 1;
    }
    free(message);
}
END_TEST

/* ---- An index ---------------------------------------------------------------------------------------------------- */

static struct checkpoint_index index_of(struct sample *sample, struct checkpoint_entry *entries,
                                        struct strait_checkpoint_attachment *attachments)
{
    struct checkpoint_index index = {.save_id = "0123456789abcdef",
                                     .committed_ns = 77,
                                     .files = entries,
                                     .shards = sample->shards,
                                     .attachments = attachments,
                                     .file_count = 2,
                                     .shard_count = SHARDS_OF_FOOTER,
                                     .attachment_count = 1};
    for (int i = 0; i < 2; i++)
        entries[i] = (struct checkpoint_entry){.bytes = 20000};
    attachments[0] = (struct strait_checkpoint_attachment){"step", "12", 2};
    return index;
}

static enum strait_status parse_index(const struct checkpoint_index *index, struct checkpoint_index *found)
{
    uint8_t *file;
    size_t bytes;

    text[0] = 0;
    ck_assert_int_eq(checkpoint_index_build(index, &file, &bytes), STRAIT_OK);
    const enum strait_status status = checkpoint_index_parse(found, file, bytes, text, sizeof(text));
    free(file);
    return status;
}

TEST(an_index)
{
    struct sample sample;
    struct checkpoint_entry entries[2];
    struct strait_checkpoint_attachment attachments[1];
    struct checkpoint_index found;

    sample_init(&sample);
    struct checkpoint_index index = index_of(&sample, entries, attachments);
    /* The model's other half is missing. */
    ck_assert_int_eq(parse_index(&index, &found), STRAIT_ERR_CORRUPT);
    ck_assert_msg(strstr(text, "tensor model: no shard has its value at [50, 0]") != NULL, "%s", text);
    sample.shards[MODEL].shape = sample.shards[MODEL].sizes;
    ck_assert_int_eq(parse_index(&index, &found),
                     STRAIT_ERR_CORRUPT); /* no longer the box of what it is rounded from */
    sample.shards[MODEL].rounded_from = 0;
    sample.shards[MODEL].page_bytes = 64;
    ck_assert_msg(parse_index(&index, &found) == STRAIT_OK, "%s", text);
    ck_assert_uint_eq(found.tensor_count, 5);
    static const char *const names[] = {"bias", "empty", "master", "model", "scale"};
    for (int i = 0; i < 5; i++)
        ck_assert_str_eq(found.shards[found.order[found.tensors[i].first]].name, names[i]);
    ck_assert_uint_eq(found.tensors[2].count, 2);
    ck_assert_uint_eq(found.committed_ns, 77);
    ck_assert_str_eq(found.attachments[0].name, "step");
    /* A footer of it: the one whose shards it repeats. */
    sample.footer.rank = 0;
    sample.footer.rank_count = 2;
    ck_assert_int_eq(checkpoint_index_compare(&found, 0, &sample.footer, text, sizeof(text)), STRAIT_OK);
    sample.shards[BIAS].first_page ^= 1;
    ck_assert_int_eq(checkpoint_index_compare(&found, 0, &sample.footer, text, sizeof(text)), STRAIT_ERR_CORRUPT);
    sample.shards[BIAS].first_page ^= 1;
    sample.footer.shard_count--;
    ck_assert_int_eq(checkpoint_index_compare(&found, 0, &sample.footer, text, sizeof(text)), STRAIT_ERR_CORRUPT);
    sample.footer.shard_count++;
    sample.footer.save_id[3] ^= 1;
    ck_assert_int_eq(checkpoint_index_compare(&found, 0, &sample.footer, text, sizeof(text)), STRAIT_ERR_CORRUPT);
    checkpoint_index_free(&found);
}
END_TEST

TEST(an_index_is_refused)
{
    struct sample sample;
    struct checkpoint_entry entries[2];
    struct strait_checkpoint_attachment attachments[1];
    struct checkpoint_index found;

    sample_init(&sample);
    struct checkpoint_index good = index_of(&sample, entries, attachments), index = good;
    sample.shards[MODEL].shape = sample.shards[MODEL].sizes;
    sample.shards[MODEL].rounded_from = 0;
    sample.shards[MODEL].page_bytes = 64;
    entries[1].bytes = CHECKPOINT_FILE_BYTES_MIN - 1;
    ck_assert_int_eq(parse_index(&index, &found), STRAIT_ERR_CORRUPT);
    ck_assert_msg(strstr(text, "00001.strait has 4143 bytes") != NULL, "%s", text);
    entries[1].bytes = 20000;
    index.file_count = 0;
    ck_assert_int_eq(parse_index(&index, &found), STRAIT_ERR_CORRUPT);
    index = good;
    sample.shards[BIAS].file = 1; /* then a shard of file 0 follows */
    ck_assert_int_eq(parse_index(&index, &found), STRAIT_ERR_CORRUPT);
    sample.shards[SCALE].file = sample.shards[EMPTY].file = 1;
    ck_assert_msg(parse_index(&index, &found) == STRAIT_OK, "%s", text);
    checkpoint_index_free(&found);
    sample.shards[EMPTY].file = 2;
    ck_assert_int_eq(parse_index(&index, &found), STRAIT_ERR_CORRUPT);
    ck_assert_msg(strstr(text, "of file 2, which is not there") != NULL, "%s", text);
    sample.shards[EMPTY].file = 1;
    sample.shards[SCALE].name = "bias";
    ck_assert_int_eq(parse_index(&index, &found), STRAIT_ERR_CORRUPT);
    ck_assert_msg(strstr(text, "tensor bias differs in type or shape") != NULL, "%s", text);
    sample.shards[SCALE].name = "scale";
    attachments[0].name = "";
    ck_assert_int_eq(parse_index(&index, &found), STRAIT_ERR_CORRUPT);
}
END_TEST

/* Messages of many empty parts are as long as what they make the parser allocate. */
TEST(memory_is_bounded)
{
    enum { PARTS = 1 << 20 };
    uint8_t *message = calloc(PARTS, 2);
    struct checkpoint_tail tail = {.footer_offset = 4096, .footer_bytes = PARTS * 2};
    struct checkpoint_footer found;

    for (size_t i = 0; i < PARTS; i++)
        message[2 * i] = i % 2 ? 0x2A : 0x22; /* a shard, a chunk, of no bytes */
    checkpoint_sum(tail.footer_sum, message, tail.footer_bytes);
    ck_assert_int_eq(checkpoint_footer_parse(&found, message, &tail, text, sizeof(text)), STRAIT_ERR_CORRUPT);
    free(message);
}
END_TEST

int main(void)
{
    print_conditions();
    machine_watch();
    return run_tests("checkpoint_format", NULL, NULL);
}
