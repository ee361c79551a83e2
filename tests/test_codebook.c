/* Codebooks: sets of tables, classes, and the histograms that tables are made of. */
#include <string.h>

#include "tests/codec_harness.h"
#include "tests/run_suite.h"

START_TEST(a_set_has_1_to_65535_permutations)
{
    static uint8_t rankings[65536][256];
    struct strait_codebook *set = NULL;
    for (int t = 0; t < 65536; t++)
        test_ranking(rankings[t], 3);
    const uint8_t(*const given)[256] = (const uint8_t(*)[256])rankings;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_codebook_create(given, NULL, 0, &set));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_codebook_create(given, NULL, 65536, &set));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_codebook_create(NULL, NULL, 1, &set));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_codebook_create(given, NULL, 1, NULL));
    rankings[65534][255] = 0;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_codebook_create(given, NULL, 65535, &set));
    ck_assert_ptr_null(set);
    rankings[65534][255] = 255;
    ck_assert_int_eq(STRAIT_OK, strait_codebook_create(given, NULL, 65535, &set));
    ck_assert_uint_eq(65535, strait_codebook_count(set));
    ck_assert_mem_eq(rankings[3], strait_codebook_ranking(set, 65534), 256);
    ck_assert_ptr_null(strait_codebook_ranking(set, 65535));
    strait_codebook_destroy(set);
    strait_codebook_destroy(NULL);
}
END_TEST

START_TEST(equal_ids_mean_equal_tables)
{
    uint8_t rankings[2][256];
    struct strait_codebook *set[4];
    test_ranking(rankings[0], 0);
    test_ranking(rankings[1], 1);
    const uint8_t(*const given)[256] = (const uint8_t(*)[256])rankings;
    const struct strait_class classes[] = {{STRAIT_ROLE_OTHER, -1}, {STRAIT_ROLE_K, 3}};
    ck_assert_int_eq(STRAIT_OK, strait_codebook_create(given, NULL, 2, &set[0]));
    ck_assert_int_eq(STRAIT_OK, strait_codebook_create(given, classes, 2, &set[1]));
    ck_assert_int_eq(STRAIT_OK, strait_codebook_create(given, NULL, 1, &set[2]));
    ck_assert_int_eq(STRAIT_OK, strait_codebook_create(given + 1, NULL, 1, &set[3]));
    ck_assert_mem_eq(strait_codebook_id(set[0]), strait_codebook_id(set[1]), 16);
    ck_assert_mem_ne(strait_codebook_id(set[0]), strait_codebook_id(set[2]), 16);
    ck_assert_mem_ne(strait_codebook_id(set[2]), strait_codebook_id(set[3]), 16);
    for (int i = 0; i < 4; i++)
        strait_codebook_destroy(set[i]);
}
END_TEST

static const struct lookup {
    struct strait_class wanted;
    uint32_t table;
} lookups[] = {
    {{STRAIT_ROLE_K, 3}, 1},       {{STRAIT_ROLE_K, 4}, 2},     {{STRAIT_ROLE_K, -1}, 2},
    {{STRAIT_ROLE_V, 3}, 3},       {{STRAIT_ROLE_V, 4}, 0},     {{STRAIT_ROLE_V, -1}, 0},
    {{STRAIT_ROLE_OTHER, 3}, 4},   {{STRAIT_ROLE_OTHER, 0}, 4}, {{STRAIT_ROLE_OTHER, -1}, 4},
    {{(enum strait_role)9, 3}, 0},
};

START_TEST(a_class_is_found_exactly_or_by_role_or_not)
{
    const struct strait_class classes[] = {
        {STRAIT_ROLE_K, 3}, {STRAIT_ROLE_K, 3}, {STRAIT_ROLE_K, -1}, {STRAIT_ROLE_V, 3}, {STRAIT_ROLE_OTHER, -1}};
    uint8_t rankings[5][256];
    struct strait_codebook *set;
    for (uint32_t t = 0; t < 5; t++)
        test_ranking(rankings[t], t);
    ck_assert_int_eq(STRAIT_OK, strait_codebook_create((const uint8_t(*)[256])rankings, classes, 5, &set));
    for (int i = 0; i < COUNT(lookups); i++) {
        ck_assert_uint_eq(lookups[i].table, strait_codebook_find(set, lookups[i].wanted));
        ck_assert_uint_eq(0, strait_codebook_find(codebook, lookups[i].wanted));
    }
    ck_assert_int_eq(STRAIT_ROLE_OTHER, strait_codebook_class(set, 0).role);
    ck_assert_int_eq(-1, strait_codebook_class(set, 0).layer);
    ck_assert_int_eq(-1, strait_codebook_class(set, 5).layer);
    ck_assert_int_eq(3, strait_codebook_class(set, 3).layer);
    ck_assert_int_eq(STRAIT_ROLE_V, strait_codebook_class(set, 3).role);
    strait_codebook_destroy(set);
}
END_TEST

static const struct strait_class bad_classes[][3] = {
    {{STRAIT_ROLE_OTHER, -1}, {STRAIT_ROLE_K, 3}, {STRAIT_ROLE_K, 3}},
    {{STRAIT_ROLE_OTHER, -1}, {STRAIT_ROLE_OTHER, -1}, {STRAIT_ROLE_OTHER, -1}},
    {{STRAIT_ROLE_OTHER, -1}, {STRAIT_ROLE_K, -2}, {STRAIT_ROLE_K, 3}},
    {{STRAIT_ROLE_OTHER, -1}, {STRAIT_ROLE_K, 0}, {(enum strait_role)3, 3}},
    {{STRAIT_ROLE_OTHER, -1}, {(enum strait_role) - 1, 0}, {STRAIT_ROLE_K, 3}},
};

START_TEST(a_class_that_comes_twice_or_is_none_is_refused)
{
    uint8_t rankings[3][256];
    struct strait_codebook *set = NULL;
    for (uint32_t t = 0; t < 3; t++)
        test_ranking(rankings[t], t);
    ck_assert_int_eq(STRAIT_ERR_INVALID,
                     strait_codebook_create((const uint8_t(*)[256])rankings, bad_classes[_i], 3, &set));
    ck_assert_ptr_null(set);
}
END_TEST

START_TEST(a_histogram_counts_exponents_at_any_address)
{
    struct rng rng = rng_init(900);
    uint8_t bytes[2048];
    rng_fill(&rng, bytes, sizeof(bytes));
    for (size_t count = 0; count < 1000; count += 1 + count / 9) {
        uint64_t counts[256], expected[256];
        uint8_t *src = bytes + sizeof(bytes) - 2 * count - count % 2;
        for (int e = 0; e < 256; e++)
            counts[e] = expected[e] = (uint64_t)e << 40;
        for (size_t i = 0; i < count; i++)
            expected[get_value(src, i) >> 7 & 255]++;
        strait_histogram_add(counts, src, count);
        ck_assert_mem_eq(expected, counts, sizeof(counts));
    }
}
END_TEST

START_TEST(a_histogram_ranks_by_count_then_by_exponent)
{
    uint64_t counts[256] = {[200] = UINT64_MAX, [7] = UINT64_MAX - 1, [90] = 5, [80] = 5, [255] = 1};
    const uint8_t first[] = {200, 7, 80, 90, 255, 0, 1, 2, 3, 4, 5, 6, 8};
    uint8_t ranking[256];
    strait_histogram_rank(ranking, counts);
    ck_assert_mem_eq(first, ranking, sizeof(first));
    struct strait_codebook *set;
    ck_assert_int_eq(STRAIT_OK, strait_codebook_create((const uint8_t(*)[256])ranking, NULL, 1, &set));
    strait_codebook_destroy(set);
}
END_TEST

/* ---- All of it ------------------------------------------------------------------------------------------------- */

int main(void)
{
    Suite *suite = suite_create("codebook");
    TCase *sets = add_case(suite, "codebooks");
    print_conditions();
    tcase_add_checked_fixture(sets, setup, teardown);
    tcase_add_test(sets, a_set_has_1_to_65535_permutations);
    tcase_add_test(sets, equal_ids_mean_equal_tables);
    tcase_add_test(sets, a_class_is_found_exactly_or_by_role_or_not);
    tcase_add_loop_test(sets, a_class_that_comes_twice_or_is_none_is_refused, 0, COUNT(bad_classes));
    tcase_add_test(sets, a_histogram_counts_exponents_at_any_address);
    tcase_add_test(sets, a_histogram_ranks_by_count_then_by_exponent);
    return run_suite(suite);
}
