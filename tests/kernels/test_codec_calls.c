/* The public calls: names of variants and statuses, what calls refuse, calls for many chunks, what is counted, what
 * memory they take, and two of them at once. And the image of a codebook set that devices read. */
#include <check.h>
#include <pthread.h>
#include <string.h>

#include "kernels/device.h"
#include "tests/run_suite.h"
#include "tests/support.h"

static struct strait_codebook *codebook;

static void setup(void)
{
    codebook = test_codebook();
}

static void teardown(void)
{
    strait_codebook_destroy(codebook);
}

TEST(a_variant_is_found_by_its_name_or_not_at_all)
{
    for (int v = 0; v < variant_count(); v++)
        ck_assert_str_eq(variant_names[v], strait_codec_name(variant(v)));
    ck_assert_ptr_nonnull(variant(0));
    ck_assert_ptr_null(strait_codec_get(""));
    ck_assert_ptr_null(strait_codec_get("AVX2"));
    ck_assert_ptr_null(strait_codec_get("cuda"));
}

/* Every case is a process of its own: the environment is looked at once. */
TEST_LOOP(without_a_name_the_environment_chooses_once_and_else_the_best, VARIANTS + 2)
{
    const struct strait_codec *wanted = variant(_i < variant_count() ? _i : variant_count() - 1);
    ck_assert_int_eq(0, unsetenv("STRAIT_CODEC"));
    if (_i <= VARIANTS)
        ck_assert_int_eq(0, setenv("STRAIT_CODEC", _i < VARIANTS ? variant_names[_i] : "none such", 1));
    ck_assert_ptr_eq(wanted, strait_codec_get(NULL));
    ck_assert_int_eq(0, setenv("STRAIT_CODEC", "scalar", 1));
    ck_assert_ptr_eq(wanted, strait_codec_get(NULL));
    ck_assert_uint_eq(strait_scratch_size(wanted), strait_scratch_size(NULL));
}

TEST(variants_are_listed_best_first)
{
    uint32_t count = 0;
    while (strait_codec_name_at(count) != NULL)
        count++;
    ck_assert_uint_ge(count, 1);
    ck_assert_str_eq("scalar", strait_codec_name_at(count - 1));
    for (uint32_t i = 0; i < count; i++)
        if (strait_codec_get(strait_codec_name_at(i)) != NULL)
            ck_assert_str_eq(strait_codec_name_at(i), strait_codec_name(strait_codec_get(strait_codec_name_at(i))));
    count -= (uint32_t)variant_count(); /* tests know every variant of this build */
    for (int v = variant_count(); v < VARIANTS; v++)
        for (uint32_t i = 0; strait_codec_name_at(i) != NULL; i++)
            count -= strcmp(strait_codec_name_at(i), variant_names[v]) == 0;
    ck_assert_uint_eq(0, count);
    ck_assert_ptr_null(strait_codec_name_at(UINT32_MAX));
}

TEST(a_variant_is_described_by_its_name_cut_to_the_room)
{
    char text[4] = "???";
    const struct strait_codec *scalar = strait_codec_get("scalar");
    ck_assert_uint_eq(6, strait_codec_describe(scalar, text, sizeof(text)));
    ck_assert_str_eq("sca", text);
    ck_assert_uint_eq(6, strait_codec_describe(scalar, text, 0));
    ck_assert_str_eq("sca", text);
    ck_assert_uint_eq(6, strait_codec_describe(scalar, text, 1));
    ck_assert_str_eq("", text);
}

TEST(the_library_tells_its_version)
{
    unsigned major, minor, patch;
    char more;
    ck_assert_int_eq(3, sscanf(strait_version(), "%u.%u.%u%c", &major, &minor, &patch, &more));
}

static const struct status_text {
    int status;
    const char *text;
} status_texts[] = {
#define X(name, value, text) {value, text},
    STRAIT_STATUS_MAP(X)
#undef X
        {1, "unknown status"},
    {-15, "unknown status"},
    {INT32_MIN, "unknown status"},
    {INT32_MAX, "unknown status"},
};

TEST_LOOP(every_status_has_its_text, COUNT(status_texts))
{
    ck_assert_str_eq(status_texts[_i].text, strait_status_string(status_texts[_i].status));
}

TEST(status_values_are_pinned)
{
    const int pinned[] = {STRAIT_OK,
                          STRAIT_ERR_INVALID,
                          STRAIT_ERR_NO_MEMORY,
                          STRAIT_ERR_NO_SPACE,
                          STRAIT_ERR_ALIGNMENT,
                          STRAIT_ERR_TRUNCATED,
                          STRAIT_ERR_CORRUPT,
                          STRAIT_ERR_UNSUPPORTED,
                          STRAIT_ERR_CODEBOOK,
                          STRAIT_ERR_INTEGRITY,
                          STRAIT_ERR_PAGE_ID,
                          STRAIT_ERR_IO,
                          STRAIT_ERR_AGAIN,
                          STRAIT_ERR_DEVICE,
                          STRAIT_ERR_TIMEOUT};
    ck_assert_str_eq("unknown status", strait_status_string(-COUNT(pinned))); /* all there are */
    for (int i = 0; i < COUNT(pinned); i++)
        ck_assert_int_eq(-i, pinned[i]);
}

/* A valid call of each kind, which one case spoils. */
static struct call {
    struct strait_region region;
    struct strait_pages pages;
    struct strait_encode_params params;
    struct strait_result result;
    struct strait_run run;
    uint8_t *dst;
    const uint8_t *src;
    uint64_t capacity, src_size;
} call;

static _Alignas(64) uint8_t call_pages[8192], call_chunk[16384], call_scratch[131072];
static int32_t call_status[2];

static void call_init(void)
{
    setup();
    call.region = (struct strait_region){.base = call_pages,
                                         .page_stride = 4096,
                                         .row_stride = 1024,
                                         .page_count = 2,
                                         .rows = 4,
                                         .row_bytes = 1024,
                                         .table = 1};
    call.pages = (struct strait_pages){.regions = &call.region, .region_count = 1, .id_count = 2};
    call.params = (struct strait_encode_params){
        .size = sizeof(call.params), .element = STRAIT_ELEMENT_BF16, .mode = STRAIT_MODE_AUTO, .codebook = codebook};
    call.result.status = STATUS_UNSET;
    call.run = (struct strait_run){.size = sizeof(call.run),
                                   .result = &call.result,
                                   .scratch = call_scratch,
                                   .scratch_size = sizeof(call_scratch)};
    call.dst = call_chunk;
    call.capacity = sizeof(call_chunk);
    ck_assert_int_eq(STRAIT_OK, strait_encode(NULL, &call.params, call_chunk, call.capacity, &call.pages, &call.run));
    ck_assert_int_eq(STRAIT_OK, call.result.status);
    call.src = call_chunk;
    call.src_size = call.result.bytes;
    call.result.status = STATUS_UNSET;
}

enum { ENCODE = 1, DECODE = 2, VERIFY = 4, IN_RESULT = 8 /* decoding only: the chunk does not fit the list */ };

/* Name, what is found, by which calls, how it is made. */
#define FAULTS(X)                                                                                                    \
    X(region_without_base, INVALID, ENCODE | DECODE, call.region.base = NULL)                                        \
    X(no_rows, INVALID, ENCODE | DECODE, call.region.rows = 0)                                                       \
    X(no_row_bytes, INVALID, ENCODE | DECODE, call.region.row_bytes = 0)                                             \
    X(page_too_long, INVALID, ENCODE | DECODE, call.region.row_bytes = STRAIT_PAGE_BYTES_MAX / 4 + 2)                \
    X(page_size_overflows, INVALID, ENCODE | DECODE, call.region.rows = call.region.row_bytes = 65536)               \
    X(no_regions, INVALID, ENCODE | DECODE, call.pages.region_count = 0)                                             \
    X(regions_null, INVALID, ENCODE | DECODE, call.pages.regions = NULL)                                             \
    X(no_ids, INVALID, ENCODE | DECODE, call.pages.id_count = 0)                                                     \
    X(too_many_pages, INVALID, ENCODE | DECODE, call.pages.id_count = STRAIT_CHUNK_PAGES_MAX + 1)                    \
    X(page_count_overflows, INVALID, ENCODE | DECODE, call.pages.region_count = call.pages.id_count = 65536)         \
    X(odd_base, ALIGNMENT, ENCODE | IN_RESULT, call.region.base = call_pages + 1)                                    \
    X(odd_page_stride, ALIGNMENT, ENCODE | IN_RESULT, call.region.page_stride = 4097)                                \
    X(odd_row_stride, ALIGNMENT, ENCODE | IN_RESULT, call.region.row_stride = 1025)                                  \
    X(odd_row_bytes, ALIGNMENT, ENCODE | IN_RESULT, call.region.row_bytes = 1023)                                    \
    X(odd_columns, INVALID, ENCODE | DECODE, call.region.columns = 3)                                                \
    X(a_column_stride_of_one_column, INVALID, ENCODE | DECODE, call.region.column_stride = 64)                       \
    X(odd_column_stride, ALIGNMENT, ENCODE | IN_RESULT, call.region.columns = 2, call.region.column_stride = 2001)   \
    X(odd_pieces, ALIGNMENT, ENCODE | IN_RESULT, call.region.columns = 1024, call.region.column_stride = 4)          \
    X(overlapping_columns, INVALID, DECODE, call.region.columns = 2, call.region.column_stride = 510)                \
    X(run_of_no_size, INVALID, ENCODE | DECODE | VERIFY, call.run.size = 0)                                          \
    X(caching_unknown, INVALID, ENCODE | DECODE | VERIFY, call.run.caching = STRAIT_CACHING_LINK + 1)                \
    X(run_too_small, INVALID, ENCODE | DECODE | VERIFY, call.run.size = offsetof(struct strait_run, caching) - 8)    \
    X(statuses_of_no_count, INVALID, ENCODE | DECODE | VERIFY, call.run.page_status = call_status,                   \
      call.run.page_status_count = 0)                                                                                \
    X(statuses_null, INVALID, ENCODE | DECODE | VERIFY, call.run.page_status_count = 2)                              \
    X(overlapping_rows, INVALID, DECODE, call.region.row_stride = 1022)                                              \
    X(no_result, INVALID, ENCODE | DECODE | VERIFY, call.run.result = NULL)                                          \
    X(scratch_unaligned, ALIGNMENT, ENCODE | DECODE | VERIFY, call.run.scratch = call_scratch + 32)                  \
    X(scratch_too_small, NO_SPACE, ENCODE | DECODE | VERIFY, call.run.scratch_size = strait_scratch_size(NULL) - 1)  \
    X(params_of_no_size, INVALID, ENCODE, call.params.size = 0)                                                      \
    X(params_too_small, INVALID, ENCODE, call.params.size--)                                                         \
    X(element_unknown, INVALID, ENCODE, call.params.element = (enum strait_element)6)                                \
    X(element_negative, INVALID, ENCODE, call.params.element = (enum strait_element) - 1)                            \
    X(mode_unknown, INVALID, ENCODE, call.params.mode = (enum strait_mode)7)                                         \
    X(mode_negative, INVALID, ENCODE, call.params.mode = (enum strait_mode) - 1)                                     \
    X(coded_without_codebook, INVALID, ENCODE, call.params.codebook = NULL)                                          \
    X(fp16_split_without_codebook, INVALID, ENCODE, call.params.element = STRAIT_ELEMENT_FP16,                       \
      call.params.mode = STRAIT_MODE_SPLIT, call.params.codebook = NULL, call.region.table = 0)                      \
    X(table_beyond, CODEBOOK, ENCODE, call.region.table = TEST_TABLES)                                               \
    X(table_without_codebook, CODEBOOK, ENCODE, call.params.codebook = NULL, call.params.mode = STRAIT_MODE_RAW)     \
    X(fp32_half_aligned, ALIGNMENT, ENCODE, call.params.element = STRAIT_ELEMENT_FP32,                               \
      call.region.base = call_pages + 2)                                                                             \
    X(fp32_half_stride, ALIGNMENT, ENCODE, call.params.element = STRAIT_ELEMENT_FP32, call.region.row_stride = 1026) \
    X(fp16_odd, ALIGNMENT, ENCODE, call.params.element = STRAIT_ELEMENT_FP16, call.region.base = call_pages + 1)     \
    X(dst_null, INVALID, ENCODE, call.dst = NULL)                                                                    \
    X(dst_too_small, NO_SPACE, ENCODE, call.capacity = strait_encode_bound(&call.pages) - 1)                         \
    X(src_null, INVALID, DECODE | VERIFY, call.src = NULL)                                                           \
    X(fewer_pages_than_the_chunk, INVALID, IN_RESULT, call.pages.id_count = 1)                                       \
    X(more_pages_than_the_chunk, INVALID, IN_RESULT, call.pages.id_count = 3)

#define X(name, expected, calls, ...) \
    static void name(void)            \
    {                                 \
        __VA_ARGS__;                  \
    }
FAULTS(X)
#undef X

static const struct bad_call {
    void (*spoil)(void);
    enum strait_status expected;
    unsigned calls;
} bad_calls[] = {
#define X(name, expected, calls, ...) {name, STRAIT_ERR_##expected, calls},
    FAULTS(X)
#undef X
};

static enum strait_status call_again(unsigned which)
{
    if (which == ENCODE)
        return strait_encode(NULL, &call.params, call.dst, call.capacity, &call.pages, &call.run);
    if (which == DECODE)
        return strait_decode(NULL, codebook, &call.pages, NULL, call.src, call.src_size, &call.run);
    return strait_verify(NULL, codebook, call.src, call.src_size, &call.run);
}

TEST_LOOP(a_bad_argument_is_refused_and_nothing_is_written, COUNT(bad_calls))
{
    const struct bad_call *bad = &bad_calls[_i];
    static uint8_t pages[sizeof(call_pages)], chunk[sizeof(call_chunk)];
    for (unsigned which = ENCODE; which <= VERIFY; which *= 2) {
        call_init();
        bad->spoil();
        memcpy(pages, call_pages, sizeof(pages));
        memcpy(chunk, call_chunk, sizeof(chunk));
        if ((bad->calls & which) != 0) {
            ck_assert_int_eq(bad->expected, call_again(which));
            ck_assert_int_eq(STATUS_UNSET, call.result.status);
            ck_assert_mem_eq(chunk, call_chunk, sizeof(chunk));
            ck_assert_mem_eq(pages, call_pages, sizeof(pages));
        }
        if (which == DECODE && (bad->calls & IN_RESULT) != 0) {
            ck_assert_int_eq(STRAIT_OK, call_again(which));
            ck_assert_int_eq(bad->expected, call.result.chunk_status);
            ck_assert_int_eq(bad->expected, call.result.status);
            ck_assert_uint_eq(call.pages.id_count, call.result.failed_pages);
            ck_assert_mem_eq(pages, call_pages, sizeof(pages));
        }
        teardown();
    }
}

TEST(null_structs_are_refused)
{
    struct strait_chunk_info info;
    struct strait_page_info page;
    call_init();
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_encode(NULL, NULL, call.dst, call.capacity, &call.pages, &call.run));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_encode(NULL, &call.params, call.dst, call.capacity, NULL, &call.run));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_encode(NULL, &call.params, call.dst, call.capacity, &call.pages, NULL));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_decode(NULL, codebook, NULL, NULL, call.src, call.src_size, &call.run));
    ck_assert_int_eq(STRAIT_ERR_INVALID,
                     strait_decode(NULL, codebook, &call.pages, NULL, call.src, call.src_size, NULL));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_verify(NULL, codebook, call.src, call.src_size, NULL));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_chunk_info(NULL, 100, &info));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_chunk_info(call.src, call.src_size, NULL));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_chunk_pages(NULL, 100, 1, &page));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_chunk_pages(call.src, call.src_size, 1, NULL));
    ck_assert_uint_eq(0, strait_encode_bound(NULL));
    teardown();
}

TEST_LOOP(bytes_may_lie_anywhere, 3)
{
    call_init();
    call.params.element =
        (enum strait_element[]){STRAIT_ELEMENT_BYTES, STRAIT_ELEMENT_FP8_E4M3, STRAIT_ELEMENT_FP8_E5M2}[_i];
    call.region.base = call_pages + 1;
    call.region.row_bytes = 1023;
    call.region.row_stride = 1025;
    call.region.page_stride = 4093;
    ck_assert_int_eq(STRAIT_OK, call_again(ENCODE));
    ck_assert_int_eq(STRAIT_OK, call.result.status);
    teardown();
}

/* 2^20 pages of 4 KiB: nothing is encoded, only sizes are read. */
TEST(the_bound_is_zero_where_it_would_reach_4_gib)
{
    call_init();
    call.pages.id_count = STRAIT_CHUNK_PAGES_MAX;
    ck_assert_uint_eq(0, strait_encode_bound(&call.pages));
    ck_assert_int_eq(STRAIT_ERR_INVALID, call_again(ENCODE));
    call.region.rows = 1;
    call.region.row_bytes = 4064;
    ck_assert_uint_eq(48 + (16 + 4064ull) * STRAIT_CHUNK_PAGES_MAX, strait_encode_bound(&call.pages));
    ck_assert_int_eq(STRAIT_ERR_NO_SPACE, call_again(ENCODE));
    teardown();
}

enum { ITEMS = 3, PAGE = 3000, ROOM = 16384 };

static uint8_t batch_pages[ITEMS][2 * PAGE], back[ITEMS][2 * PAGE], single[ITEMS][ROOM], chunks[ITEMS][ROOM];
static struct strait_region from[ITEMS], to[ITEMS];
static struct strait_result results[ITEMS];
static int32_t statuses[ITEMS][2];
static struct strait_encode_item encode[ITEMS];
static struct strait_decode_item decode[ITEMS];
static struct strait_encode_params params;

static void batch_setup(void)
{
    struct rng rng = rng_init(1);
    uint8_t ranking[256];
    codebook = test_codebook();
    params = (struct strait_encode_params){
        .size = sizeof(params), .element = STRAIT_ELEMENT_BF16, .mode = STRAIT_MODE_TIERED, .codebook = codebook};
    for (uint32_t i = 0; i < ITEMS; i++) {
        test_ranking(ranking, i);
        fill_pattern(&rng, PATTERN_FALLING, ranking, batch_pages[i], sizeof(batch_pages[i]));
        memset(back[i], CANARY, sizeof(back[i]));
        from[i] = (struct strait_region){
            .base = batch_pages[i], .page_stride = PAGE, .page_count = 2, .rows = 1, .row_bytes = PAGE, .table = i};
        to[i] = from[i];
        to[i].base = back[i];
        encode[i] = (struct strait_encode_item){.src = {.regions = &from[i], .region_count = 1, .id_count = 2},
                                                .dst = chunks[i],
                                                .dst_capacity = ROOM,
                                                .result = &results[i],
                                                .page_status = statuses[i],
                                                .page_status_count = 2};
        decode[i] = (struct strait_decode_item){.dst = {.regions = &to[i], .region_count = 1, .id_count = 2},
                                                .src = chunks[i],
                                                .result = &results[i],
                                                .page_status = statuses[i],
                                                .page_status_count = 2};
    }
}

TEST_FIXTURE(batch, batch_setup, teardown);

TEST_LOOP(a_batch_gives_what_single_calls_give, variant_count())
{
    const struct strait_codec *codec = variant(_i);
    struct strait_run run = {.size = sizeof(run)};
    ck_assert_int_eq(STRAIT_OK, strait_encode_batch(codec, &params, encode, ITEMS, &run));
    for (uint32_t i = 0; i < ITEMS; i++) {
        struct strait_result result;
        struct strait_run one = {.size = sizeof(one), .result = &result};
        ck_assert_int_eq(STRAIT_OK, strait_encode(codec, &params, single[i], ROOM, &encode[i].src, &one));
        ck_assert_mem_eq(&result, &results[i], sizeof(result));
        ck_assert_mem_eq(single[i], chunks[i], result.bytes);
        decode[i].src_size = result.bytes;
    }
    ck_assert_int_eq(STRAIT_OK, strait_decode_batch(codec, codebook, decode, ITEMS, &run));
    for (uint32_t i = 0; i < ITEMS; i++) {
        ck_assert_int_eq(STRAIT_OK, results[i].status);
        ck_assert_uint_eq(2 * PAGE, results[i].bytes);
        ck_assert_mem_eq(batch_pages[i], back[i], sizeof(back[i]));
    }
}

TEST_LOOP(a_chunk_may_be_shorter_than_the_room_that_it_is_in, variant_count())
{
    const struct strait_codec *codec = variant(_i);
    struct strait_run run = {.size = sizeof(run)};
    ck_assert_int_eq(STRAIT_OK, strait_encode_batch(codec, &params, encode, ITEMS, &run));
    for (uint32_t i = 0; i < ITEMS; i++) {
        decode[i].src_size = results[i].bytes + (i == 0 ? 0 : i == 1 ? 1 : ROOM - results[i].bytes);
        decode[i].flags = STRAIT_DECODE_AT_MOST;
    }
    ck_assert_int_eq(STRAIT_OK, strait_decode_batch(codec, codebook, decode, ITEMS, &run));
    for (uint32_t i = 0; i < ITEMS; i++) {
        ck_assert_int_eq(STRAIT_OK, results[i].status);
        ck_assert_mem_eq(batch_pages[i], back[i], sizeof(back[i]));
    }
    /* Not longer, and no other header. */
    decode[0].src_size -= 16;
    decode[1].flags = 0;
    memset(chunks[2], 0, STRAIT_CHUNK_HEADER_BYTES);
    ck_assert_int_eq(STRAIT_OK, strait_decode_batch(codec, codebook, decode, ITEMS, &run));
    ck_assert_int_eq(STRAIT_ERR_TRUNCATED, results[0].chunk_status);
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, results[1].chunk_status);
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, results[2].chunk_status);
}

TEST(a_flag_is_set_once_its_chunk_is_whole)
{
    struct strait_run run = {.size = sizeof(run)};
    uint64_t flags[ITEMS] = {7, 7, 7};
    uint32_t ids[2] = {0, 2}; /* the second is no page */
    for (uint32_t i = 0; i < ITEMS; i++) {
        encode[i].flag = i == 1 ? NULL : &flags[i];
        encode[i].flag_value = 100 + i;
    }
    encode[2].src.ids = ids;
    ck_assert_int_eq(STRAIT_OK, strait_encode_batch(NULL, &params, encode, ITEMS, &run));
    ck_assert_uint_eq(100, flags[0]);
    ck_assert_uint_eq(7, flags[1]);
    ck_assert_int_eq(STRAIT_ERR_PAGE_ID, results[2].status);
    ck_assert_uint_eq(7, flags[2]);
    encode[0].flag = (uint64_t *)((uint8_t *)flags + 4);
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_encode_batch(NULL, &params, encode, ITEMS, &run));
}

TEST(an_error_in_one_item_is_the_calls_and_nothing_runs)
{
    struct strait_run run = {.size = sizeof(run)};
    encode[2].dst_capacity = 16;
    results[0].status = STATUS_UNSET;
    ck_assert_int_eq(STRAIT_ERR_NO_SPACE, strait_encode_batch(NULL, &params, encode, ITEMS, &run));
    ck_assert_int_eq(STATUS_UNSET, results[0].status);
    encode[2].dst_capacity = ROOM;
    encode[1].result = NULL;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_encode_batch(NULL, &params, encode, ITEMS, &run));
    decode[1].flags = 2;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_decode_batch(NULL, codebook, decode, ITEMS, &run));
}

TEST(the_run_of_a_batch_reports_nothing_itself)
{
    struct strait_run run = {.size = sizeof(run), .result = &results[0]};
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_encode_batch(NULL, &params, encode, ITEMS, &run));
    run = (struct strait_run){.size = sizeof(run), .metadata = chunks};
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_decode_batch(NULL, codebook, decode, ITEMS, &run));
    run.metadata = NULL;
    ck_assert_int_eq(STRAIT_OK, strait_encode_batch(NULL, &params, NULL, 0, &run));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_encode_batch(NULL, &params, NULL, 1, &run));
}

TEST(a_run_without_the_newest_fields_is_accepted)
{
    struct strait_run run = {.size = offsetof(struct strait_run, tables)};
    ck_assert_int_eq(STRAIT_OK, strait_encode_batch(NULL, &params, encode, ITEMS, &run));
    run.size = offsetof(struct strait_run, caching);
    ck_assert_int_eq(STRAIT_OK, strait_encode_batch(NULL, &params, encode, ITEMS, &run));
}

TEST(the_image_ranks_exponents_as_the_set_does)
{
    size_t size = strait_codebook_image_size(codebook);
    uint8_t *image = malloc(size);
    ck_assert_int_eq(STRAIT_ERR_NO_SPACE, strait_codebook_image(codebook, image, size - 1));
    ck_assert_int_eq(STRAIT_OK, strait_codebook_image(codebook, image, size));
    for (uint32_t t = 0; t < TEST_TABLES; t++) {
        const uint8_t *ranking = strait_codebook_ranking(codebook, t);
        struct table_image table;
        memcpy(&table, image + IMAGE_HEADER_BYTES + t * sizeof(table), sizeof(table));
        for (uint32_t r = 0; r < 256; r++) {
            uint8_t e = ranking[r];
            ck_assert_uint_eq(r, table.rank[e]);
            ck_assert_uint_eq(r < 16 ? r : IMAGE_ESCAPE, table.top16[e]);
            ck_assert_uint_eq(r < 3 ? r : 3 + ((r < 6 ? r - 3 : 3) << 16), table.tiers[e]);
            ck_assert_uint_eq(r < 6 ? 0 : r < 21 ? r - 6 : 15, table.tier3[e]);
            if (r < 16)
                ck_assert_uint_eq(e, table.codes[r]);
            if (r < 21)
                ck_assert_uint_eq(e, r < 6 ? table.first[r] : table.third[r - 6]);
        }
    }
    free(image);
}

/* ---- Runs ------------------------------------------------------------------------------------------------------ */

static struct layout src, dst;

/* Pages of `count` regions with values of a pattern, and as many to be decoded to. */
static void runs_init(const struct shape *shapes, uint32_t count, enum pattern pattern)
{
    struct rng rng = rng_init(600);
    layout_init(&src, 2, shapes, count, NULL, shapes[0].page_count);
    layout_mirror(&dst, &src);
    layout_fill(&src, &rng, pattern, codebook);
}

static void runs_teardown(void)
{
    layout_fini(&src);
    layout_fini(&dst);
    teardown();
}

static const enum strait_mode coded_modes[] = {STRAIT_MODE_TOP16, STRAIT_MODE_TIERED};

/* Expected statistics of a table when all blocks are coded. */
static struct strait_class_stats count_escapes(const uint8_t *bytes, uint32_t n, uint32_t table, uint32_t first_escape)
{
    uint8_t ranking[256], rank[256];
    struct strait_class_stats counted = {.values = n};
    test_ranking(ranking, table);
    for (unsigned r = 0; r < 256; r++)
        rank[ranking[r]] = (uint8_t)r;
    for (uint32_t i = 0; i < n; i++)
        counted.escapes += rank[get_value(bytes, i) >> 7 & 255] >= first_escape;
    return counted;
}

TEST_FIXTURE(runs, setup, runs_teardown);

TEST_LOOP(statistics_count_values_and_escapes_per_table, COUNT(coded_modes))
{
    const struct shape shapes[] = {{.page_count = 2, .rows = 1, .row_bytes = 40000, .table = 3},
                                   {.page_count = 2, .rows = 1, .row_bytes = 20000, .table = 1}};
    const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, coded_modes[_i]};
    struct strait_class_stats expected[TEST_TABLES] = {{0, 0}};
    struct verdict verdict;
    runs_init(shapes, 2, PATTERN_RARE);
    for (uint32_t p = 0; p < 4; p++) {
        uint8_t page[40000];
        uint32_t table = shapes[p / 2].table;
        layout_read(&src, p, page);
        struct strait_class_stats one =
            count_escapes(page, layout_page_bytes(&src, p) / 2, table, asked.mode == STRAIT_MODE_TOP16 ? 16 : 21);
        expected[table].values += one.values;
        expected[table].escapes += one.escapes;
    }
    free(round_trip(&asked, &src, &verdict));
    for (int t = 0; t < TEST_TABLES; t++) {
        ck_assert_uint_eq(expected[t].values, verdict.stats[t].values);
        ck_assert_uint_eq(expected[t].escapes, verdict.stats[t].escapes);
    }
}

TEST(statistics_are_added_to_and_tables_beyond_are_not_counted)
{
    const struct shape shapes[] = {{.page_count = 1, .rows = 1, .row_bytes = 4000, .table = 1},
                                   {.page_count = 1, .rows = 1, .row_bytes = 4000, .table = 2}};
    const struct strait_encode_params tiered = {
        .size = sizeof(tiered), .element = STRAIT_ELEMENT_BF16, .mode = STRAIT_MODE_TIERED, .codebook = codebook};
    struct strait_class_stats stats[3] = {{1, 2}, {3, 4}, {5, 6}};
    struct strait_result result;
    struct strait_run run = {.size = sizeof(run), .result = &result, .class_stats = stats, .class_count = 2};
    runs_init(shapes, 2, PATTERN_LOW);
    uint64_t bound = strait_encode_bound(&src.pages);
    uint8_t *chunk = malloc(bound);
    ck_assert_int_eq(STRAIT_OK, strait_encode(NULL, &tiered, chunk, bound, &src.pages, &run));
    ck_assert_uint_eq(1, stats[0].values);
    ck_assert_uint_eq(2003, stats[1].values);
    ck_assert_uint_eq(4, stats[1].escapes);
    ck_assert_uint_eq(5, stats[2].values);
    free(chunk);
}

/* Callers too who know the struct as it was before. */
TEST_LOOP(scratch_and_caching_change_no_byte, variant_count())
{
    const struct shape shapes[] = {{.page_count = 20, .rows = 11, .row_bytes = 3000, .row_gap = 2, .table = 1},
                                   {.page_count = 20, .rows = 1, .row_bytes = 32768, .table = 1}};
    const struct strait_codec *codec = variant(_i);
    runs_init(shapes, 2, PATTERN_LOW);
    struct guarded scratch, out;
    ck_assert_uint_eq(0, strait_scratch_size(codec) % 64);
    guarded_init(&scratch, strait_scratch_size(codec));
    guarded_init(&out, strait_encode_bound(&src.pages));
    for (int mode = STRAIT_MODE_RAW; mode <= STRAIT_MODE_TIERED; mode++) {
        const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, (enum strait_mode)mode};
        const struct strait_encode_params coded = {
            .size = sizeof(coded), .element = asked.element, .mode = asked.mode, .codebook = codebook};
        struct verdict first, verdict;
        uint8_t *chunk = encode_layout(codec, &asked, &src, &first);
        for (uint32_t k = 0; k < 2 * (STRAIT_CACHING_LINK + 2); k++) {
            struct strait_run run = verdict_begin(&verdict);
            run.caching = k / 2;
            if (run.caching > STRAIT_CACHING_LINK)
                run.size = offsetof(struct strait_run, caching);
            if (k % 2 != 0) {
                run.scratch = scratch.bytes;
                run.scratch_size = scratch.size;
            }
            memset(out.bytes, (int)k, out.size);
            layout_clear(&dst);
            ck_assert_int_eq(STRAIT_OK, strait_encode(codec, &coded, out.bytes, out.size, &src.pages, &run));
            ck_assert_mem_eq(&first, &verdict, sizeof(first));
            ck_assert_mem_eq(chunk, out.bytes, first.result.bytes);
            ck_assert_int_eq(STRAIT_OK,
                             strait_decode(codec, codebook, &dst.pages, NULL, chunk, first.result.bytes, &run));
            ck_assert_int_eq(STRAIT_OK, verdict.result.status);
            ck_assert_mem_eq(src.memory.bytes, dst.memory.bytes, src.memory.size);
        }
        free(chunk);
    }
    guarded_fini(&scratch);
    guarded_fini(&out);
}

static const struct shape buffer_shapes[] = {{.page_count = 1, .rows = 1, .row_bytes = 2},
                                             {.page_count = 5, .rows = 1, .row_bytes = 64},
                                             {.page_count = 2, .rows = 3, .row_bytes = 16390, .row_gap = 2},
                                             {.page_count = 3, .rows = 1, .row_bytes = 16384}};

/* A chunk of raw pages of one length: nothing is longer. */
static uint64_t raw_chunk_bytes(uint64_t pages, uint64_t page_bytes)
{
    uint64_t rows = (page_bytes + 16383) / 16384 - 1;
    return (48 + 16 * pages + 4 * pages * rows + 15) / 16 * 16 + pages * ((page_bytes + 15) / 16 * 16);
}

TEST_LOOP(a_buffer_of_exactly_the_bound_is_enough_and_one_byte_less_is_not, COUNT(buffer_shapes))
{
    const struct strait_encode_params raw = {
        .size = sizeof(raw), .element = STRAIT_ELEMENT_BF16, .mode = STRAIT_MODE_RAW, .codebook = codebook};
    const struct shape *shape = &buffer_shapes[_i];
    struct verdict verdict;
    runs_init(shape, 1, PATTERN_NOISE);
    uint64_t bound = strait_encode_bound(&src.pages);
    for (uint64_t short_by = 0; short_by <= bound; short_by = 2 * short_by + 1) {
        struct strait_run run = verdict_begin(&verdict);
        struct guarded out;
        guarded_init(&out, bound - short_by);
        ck_assert_int_eq(short_by == 0 ? STRAIT_OK : STRAIT_ERR_NO_SPACE,
                         strait_encode(NULL, &raw, out.bytes, out.size, &src.pages, &run));
        ck_assert_int_eq(short_by == 0 ? STRAIT_OK : STATUS_UNSET, verdict.result.status);
        ck_assert(short_by == 0 || is_filled(out.bytes, out.size, CANARY));
        guarded_fini(&out);
    }
    ck_assert_uint_eq(raw_chunk_bytes(shape->page_count, layout_page_bytes(&src, 0)), bound);
}

TEST_LOOP(chunks_may_lie_at_any_address, variant_count())
{
    const struct strait_encode_params tiered = {
        .size = sizeof(tiered), .element = STRAIT_ELEMENT_BF16, .mode = STRAIT_MODE_TIERED, .codebook = codebook};
    const struct shape shapes[] = {{.page_count = 2, .rows = 1, .row_bytes = 20003, .page_gap = 1, .table = 1},
                                   {.page_count = 2, .rows = 1, .row_bytes = 300, .table = 2}};
    const struct strait_codec *codec = variant(_i);
    struct verdict verdict;
    runs_init(shapes, 2, PATTERN_FALLING);
    uint64_t bound = strait_encode_bound(&src.pages);
    for (uint32_t shift = 0; shift < 64; shift++) {
        struct strait_run run = verdict_begin(&verdict);
        struct guarded room;
        guarded_init(&room, bound + 64 - shift); /* the chunk ends before its buffer does */
        ck_assert_int_eq(STRAIT_OK, strait_encode(codec, &tiered, room.bytes, bound, &src.pages, &run));
        ck_assert(is_filled(room.bytes + bound, 64 - shift, CANARY));
        uint64_t size = verdict.result.bytes;
        uint8_t *end = room.bytes + room.size - shift % 16;
        memmove(end - size, room.bytes, size);
        layout_clear(&dst);
        decode_layout(codec, codebook, &dst, NULL, end - size, size, &verdict);
        ck_assert_int_eq(STRAIT_OK, verdict.result.status);
        ck_assert_mem_eq(src.memory.bytes, dst.memory.bytes, src.memory.size);
        guarded_fini(&room);
    }
}

enum { THREAD_PAGES = 8, THREAD_ROUNDS = 12 };

struct worker {
    const struct strait_codec *codec;
    const struct asked *asked;
    const uint8_t *chunk;
    uint64_t size;
    uint32_t first; /* every second page from here */
    bool good;
};

static bool encode_same(const struct worker *w)
{
    struct verdict verdict;
    uint8_t *chunk = encode_layout(w->codec, w->asked, &src, &verdict);
    bool same = chunk != NULL && verdict.result.bytes == w->size && memcmp(chunk, w->chunk, w->size) == 0;
    free(chunk);
    return same;
}

/* Decodes its half of the pages into the memory that both threads share. */
static bool decode_half(const struct worker *w)
{
    uint32_t ids[THREAD_PAGES / 2];
    struct layout half = dst;
    struct verdict verdict;
    for (uint32_t i = 0; i < THREAD_PAGES / 2; i++)
        ids[i] = 2 * i + w->first;
    half.pages.ids = ids;
    half.pages.id_count = THREAD_PAGES / 2;
    half.pages.regions = half.regions;
    decode_layout(w->codec, w->asked->codebook, &half, ids, w->chunk, w->size, &verdict);
    return verdict.returned == STRAIT_OK && verdict.result.status == STRAIT_OK;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    w->good = true;
    for (int i = 0; i < THREAD_ROUNDS; i++)
        w->good = w->good && encode_same(w) && decode_half(w);
    return NULL;
}

TEST_LOOP(two_threads_on_disjoint_pages_of_one_chunk_do_as_one, 2 * variant_count())
{
    const struct shape shape = {.page_count = THREAD_PAGES, .rows = 3, .row_bytes = 12002, .row_gap = 6, .table = 2};
    const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, coded_modes[_i % 2]};
    struct worker workers[2];
    struct verdict verdict;
    pthread_t threads[2];
    runs_init(&shape, 1, PATTERN_RARE);
    uint8_t *chunk = encode_layout(variant(0), &asked, &src, &verdict);
    for (uint32_t k = 0; k < 2; k++) {
        workers[k] = (struct worker){variant(_i / 2), &asked, chunk, verdict.result.bytes, k, false};
        ck_assert_int_eq(0, pthread_create(&threads[k], NULL, work, &workers[k]));
    }
    for (int k = 0; k < 2; k++) {
        pthread_join(threads[k], NULL);
        ck_assert(workers[k].good);
    }
    ck_assert_mem_eq(src.memory.bytes, dst.memory.bytes, src.memory.size);
    free(chunk);
}

int main(void)
{
    print_conditions();
    return run_tests("codec_calls", NULL, NULL);
}
