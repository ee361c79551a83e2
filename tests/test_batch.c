/* Many chunks in one call, with the processor's variants: what single calls give, and what is refused. And the image of
 * a codebook set that devices read. */
#include <check.h>
#include <string.h>

#include "kernels/device.h"
#include "tests/run_suite.h"
#include "tests/support.h"

enum { ITEMS = 3, PAGE = 3000, ROOM = 16384 };

static struct strait_codebook *codebook;
static uint8_t pages[ITEMS][2 * PAGE], back[ITEMS][2 * PAGE], single[ITEMS][ROOM], chunks[ITEMS][ROOM];
static struct strait_region from[ITEMS], to[ITEMS];
static struct strait_result results[ITEMS];
static int32_t statuses[ITEMS][2];
static struct strait_encode_item encode[ITEMS];
static struct strait_decode_item decode[ITEMS];
static struct strait_encode_params params;

static void setup(void)
{
    struct rng rng = rng_init(1);
    uint8_t ranking[256];
    codebook = test_codebook();
    params = (struct strait_encode_params){sizeof(params), STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED, codebook};
    for (uint32_t i = 0; i < ITEMS; i++) {
        test_ranking(ranking, i);
        fill_pattern(&rng, PATTERN_FALLING, ranking, pages[i], sizeof(pages[i]));
        memset(back[i], CANARY, sizeof(back[i]));
        from[i] = (struct strait_region){
            .base = pages[i], .page_stride = PAGE, .page_count = 2, .rows = 1, .row_bytes = PAGE, .table = i};
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

static void teardown(void)
{
    strait_codebook_destroy(codebook);
}

START_TEST(a_batch_gives_what_single_calls_give)
{
    const struct strait_codec *codec = variant(_i);
    struct strait_run run = {.size = sizeof(run)};
    if (codec == NULL)
        return;
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
        ck_assert_mem_eq(pages[i], back[i], sizeof(back[i]));
    }
}
END_TEST

START_TEST(a_chunk_may_be_shorter_than_the_room_that_it_is_in)
{
    const struct strait_codec *codec = variant(_i);
    struct strait_run run = {.size = sizeof(run)};
    if (codec == NULL)
        return;
    ck_assert_int_eq(STRAIT_OK, strait_encode_batch(codec, &params, encode, ITEMS, &run));
    for (uint32_t i = 0; i < ITEMS; i++) {
        decode[i].src_size = results[i].bytes + (i == 0 ? 0 : i == 1 ? 1 : ROOM - results[i].bytes);
        decode[i].flags = STRAIT_DECODE_AT_MOST;
    }
    ck_assert_int_eq(STRAIT_OK, strait_decode_batch(codec, codebook, decode, ITEMS, &run));
    for (uint32_t i = 0; i < ITEMS; i++) {
        ck_assert_int_eq(STRAIT_OK, results[i].status);
        ck_assert_mem_eq(pages[i], back[i], sizeof(back[i]));
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
END_TEST

START_TEST(an_error_in_one_item_is_the_calls_and_nothing_runs)
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
END_TEST

START_TEST(the_run_of_a_batch_reports_nothing_itself)
{
    struct strait_run run = {.size = sizeof(run), .result = &results[0]};
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_encode_batch(NULL, &params, encode, ITEMS, &run));
    run = (struct strait_run){.size = sizeof(run), .metadata = chunks};
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_decode_batch(NULL, codebook, decode, ITEMS, &run));
    run.metadata = NULL;
    ck_assert_int_eq(STRAIT_OK, strait_encode_batch(NULL, &params, NULL, 0, &run));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_encode_batch(NULL, &params, NULL, 1, &run));
}
END_TEST

START_TEST(a_run_without_the_newest_fields_is_accepted)
{
    struct strait_run run = {.size = offsetof(struct strait_run, tables)};
    ck_assert_int_eq(STRAIT_OK, strait_encode_batch(NULL, &params, encode, ITEMS, &run));
    run.size = offsetof(struct strait_run, caching);
    ck_assert_int_eq(STRAIT_OK, strait_encode_batch(NULL, &params, encode, ITEMS, &run));
}
END_TEST

START_TEST(the_image_ranks_exponents_as_the_set_does)
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
END_TEST

int main(void)
{
    Suite *suite = suite_create("batch");
    TCase *cases = tcase_create("batch");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_loop_test(cases, a_batch_gives_what_single_calls_give, 0, VARIANTS);
    tcase_add_loop_test(cases, a_chunk_may_be_shorter_than_the_room_that_it_is_in, 0, VARIANTS);
    tcase_add_test(cases, an_error_in_one_item_is_the_calls_and_nothing_runs);
    tcase_add_test(cases, the_run_of_a_batch_reports_nothing_itself);
    tcase_add_test(cases, a_run_without_the_newest_fields_is_accepted);
    tcase_add_test(cases, the_image_ranks_exponents_as_the_set_does);
    suite_add_tcase(suite, cases);
    print_conditions();
    return run_suite(suite);
}
