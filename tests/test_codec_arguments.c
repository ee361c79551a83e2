/* The public calls: what they refuse. */
#include <string.h>

#include "tests/codec_harness.h"
#include "tests/run_suite.h"

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
    call.params = (struct strait_encode_params){sizeof(call.params), STRAIT_ELEMENT_BF16, STRAIT_MODE_AUTO, codebook};
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

static void region_without_base(void)
{
    call.region.base = NULL;
}
static void region_from_the_future(void)
{
    call.region.reserved[1] = 1;
}
static void no_rows(void)
{
    call.region.rows = 0;
}
static void no_row_bytes(void)
{
    call.region.row_bytes = 0;
}
static void page_too_long(void)
{
    call.region.row_bytes = STRAIT_PAGE_BYTES_MAX / 4 + 2;
}
static void page_size_overflows(void)
{
    call.region.rows = call.region.row_bytes = 65536;
}
static void no_regions(void)
{
    call.pages.region_count = 0;
}
static void regions_null(void)
{
    call.pages.regions = NULL;
}
static void no_ids(void)
{
    call.pages.id_count = 0;
}
static void too_many_pages(void)
{
    call.pages.id_count = STRAIT_CHUNK_PAGES_MAX + 1;
}
static void page_count_overflows(void)
{
    call.pages.region_count = call.pages.id_count = 65536;
}
static void odd_base(void)
{
    call.region.base = call_pages + 1;
}
static void odd_page_stride(void)
{
    call.region.page_stride = 4097;
}
static void odd_row_stride(void)
{
    call.region.row_stride = 1025;
}
static void odd_row_bytes(void)
{
    call.region.row_bytes = 1023;
}
static void run_of_no_size(void)
{
    call.run.size = 0;
}
static void run_too_small(void)
{
    call.run.size = offsetof(struct strait_run, caching) - 8;
}
static void caching_unknown(void)
{
    call.run.caching = STRAIT_CACHING_LINK + 1;
}
static void statuses_of_no_count(void)
{
    call.run.page_status = call_status, call.run.page_status_count = 0;
}
static void statuses_null(void)
{
    call.run.page_status_count = 2;
}
static void overlapping_rows(void)
{
    call.region.row_stride = 1022;
}
static void no_result(void)
{
    call.run.result = NULL;
}
static void scratch_unaligned(void)
{
    call.run.scratch = call_scratch + 32;
}
static void scratch_too_small(void)
{
    call.run.scratch_size = strait_scratch_size(NULL) - 1;
}
static void params_of_no_size(void)
{
    call.params.size = 0;
}
static void params_too_small(void)
{
    call.params.size--;
}
static void element_unknown(void)
{
    call.params.element = (enum strait_element)6;
}
static void element_negative(void)
{
    call.params.element = (enum strait_element) - 1;
}
static void mode_unknown(void)
{
    call.params.mode = (enum strait_mode)6;
}
static void mode_negative(void)
{
    call.params.mode = (enum strait_mode) - 1;
}
static void coded_without_codebook(void)
{
    call.params.codebook = NULL;
}
static void fp16_split_without_codebook(void)
{
    call.params = (struct strait_encode_params){sizeof(call.params), STRAIT_ELEMENT_FP16, STRAIT_MODE_SPLIT, NULL};
    call.region.table = 0;
}
static void table_beyond(void)
{
    call.region.table = TEST_TABLES;
}
static void table_without_codebook(void)
{
    call.params.codebook = NULL, call.params.mode = STRAIT_MODE_RAW;
}
static void fp32_half_aligned(void)
{
    call.params.element = STRAIT_ELEMENT_FP32, call.region.base = call_pages + 2;
}
static void fp32_half_stride(void)
{
    call.params.element = STRAIT_ELEMENT_FP32, call.region.row_stride = 1026;
}
static void fp16_odd(void)
{
    call.params.element = STRAIT_ELEMENT_FP16, call.region.base = call_pages + 1;
}
static void dst_null(void)
{
    call.dst = NULL;
}
static void dst_too_small(void)
{
    call.capacity = strait_encode_bound(&call.pages) - 1;
}
static void src_null(void)
{
    call.src = NULL;
}
static void fewer_pages_than_the_chunk(void)
{
    call.pages.id_count = 1;
}
static void more_pages_than_the_chunk(void)
{
    call.pages.id_count = 3;
}

#define ENCODE    1u
#define DECODE    2u
#define VERIFY    4u
#define IN_RESULT 8u /* decoding only: the chunk does not fit the list */

static const struct bad_call {
    void (*spoil)(void);
    enum strait_status expected;
    unsigned calls; /* those that return it */
} bad_calls[] = {
    {region_without_base, STRAIT_ERR_INVALID, ENCODE | DECODE},
    {region_from_the_future, STRAIT_ERR_INVALID, ENCODE | DECODE},
    {no_rows, STRAIT_ERR_INVALID, ENCODE | DECODE},
    {no_row_bytes, STRAIT_ERR_INVALID, ENCODE | DECODE},
    {page_too_long, STRAIT_ERR_INVALID, ENCODE | DECODE},
    {page_size_overflows, STRAIT_ERR_INVALID, ENCODE | DECODE},
    {no_regions, STRAIT_ERR_INVALID, ENCODE | DECODE},
    {regions_null, STRAIT_ERR_INVALID, ENCODE | DECODE},
    {no_ids, STRAIT_ERR_INVALID, ENCODE | DECODE},
    {too_many_pages, STRAIT_ERR_INVALID, ENCODE | DECODE},
    {page_count_overflows, STRAIT_ERR_INVALID, ENCODE | DECODE},
    {odd_base, STRAIT_ERR_ALIGNMENT, ENCODE | IN_RESULT},
    {odd_page_stride, STRAIT_ERR_ALIGNMENT, ENCODE | IN_RESULT},
    {odd_row_stride, STRAIT_ERR_ALIGNMENT, ENCODE | IN_RESULT},
    {odd_row_bytes, STRAIT_ERR_ALIGNMENT, ENCODE | IN_RESULT},
    {run_of_no_size, STRAIT_ERR_INVALID, ENCODE | DECODE | VERIFY},
    {caching_unknown, STRAIT_ERR_INVALID, ENCODE | DECODE | VERIFY},
    {run_too_small, STRAIT_ERR_INVALID, ENCODE | DECODE | VERIFY},
    {statuses_of_no_count, STRAIT_ERR_INVALID, ENCODE | DECODE | VERIFY},
    {statuses_null, STRAIT_ERR_INVALID, ENCODE | DECODE | VERIFY},
    {overlapping_rows, STRAIT_ERR_INVALID, DECODE},
    {no_result, STRAIT_ERR_INVALID, ENCODE | DECODE | VERIFY},
    {scratch_unaligned, STRAIT_ERR_ALIGNMENT, ENCODE | DECODE | VERIFY},
    {scratch_too_small, STRAIT_ERR_NO_SPACE, ENCODE | DECODE | VERIFY},
    {params_of_no_size, STRAIT_ERR_INVALID, ENCODE},
    {params_too_small, STRAIT_ERR_INVALID, ENCODE},
    {element_unknown, STRAIT_ERR_INVALID, ENCODE},
    {element_negative, STRAIT_ERR_INVALID, ENCODE},
    {mode_unknown, STRAIT_ERR_INVALID, ENCODE},
    {mode_negative, STRAIT_ERR_INVALID, ENCODE},
    {coded_without_codebook, STRAIT_ERR_INVALID, ENCODE},
    {fp16_split_without_codebook, STRAIT_ERR_INVALID, ENCODE},
    {table_beyond, STRAIT_ERR_CODEBOOK, ENCODE},
    {table_without_codebook, STRAIT_ERR_CODEBOOK, ENCODE},
    {fp32_half_aligned, STRAIT_ERR_ALIGNMENT, ENCODE},
    {fp32_half_stride, STRAIT_ERR_ALIGNMENT, ENCODE},
    {fp16_odd, STRAIT_ERR_ALIGNMENT, ENCODE},
    {dst_null, STRAIT_ERR_INVALID, ENCODE},
    {dst_too_small, STRAIT_ERR_NO_SPACE, ENCODE},
    {src_null, STRAIT_ERR_INVALID, DECODE | VERIFY},
    {fewer_pages_than_the_chunk, STRAIT_ERR_INVALID, IN_RESULT},
    {more_pages_than_the_chunk, STRAIT_ERR_INVALID, IN_RESULT},
};

static enum strait_status call_again(unsigned which)
{
    if (which == ENCODE)
        return strait_encode(NULL, &call.params, call.dst, call.capacity, &call.pages, &call.run);
    if (which == DECODE)
        return strait_decode(NULL, codebook, &call.pages, NULL, call.src, call.src_size, &call.run);
    return strait_verify(NULL, codebook, call.src, call.src_size, &call.run);
}

START_TEST(a_bad_argument_is_refused_and_nothing_is_written)
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
END_TEST

START_TEST(null_structs_are_refused)
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
END_TEST

START_TEST(bytes_may_lie_anywhere)
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
END_TEST

/* 2^20 pages of 4 KiB: nothing is encoded, only sizes are read. */
START_TEST(the_bound_is_zero_where_it_would_reach_4_gib)
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
END_TEST

/* ---- All of it ------------------------------------------------------------------------------------------------- */

int main(void)
{
    Suite *suite = suite_create("codec_arguments");
    TCase *bad = tcase_create("arguments");
    print_conditions();
    tcase_add_loop_test(bad, a_bad_argument_is_refused_and_nothing_is_written, 0, COUNT(bad_calls));
    tcase_add_test(bad, null_structs_are_refused);
    tcase_add_loop_test(bad, bytes_may_lie_anywhere, 0, 3);
    tcase_add_test(bad, the_bound_is_zero_where_it_would_reach_4_gib);
    suite_add_tcase(suite, bad);
    return run_suite(suite);
}
