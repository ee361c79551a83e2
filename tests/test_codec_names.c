/* The public calls: variants by their names, the version, and the texts of statuses. */
#include <string.h>

#include "tests/run_suite.h"
#include "tests/support.h"

START_TEST(a_variant_is_found_by_its_name_or_not_at_all)
{
    for (int v = 0; v < VARIANTS; v++)
        if (variant(v) != NULL)
            ck_assert_str_eq(variant_names[v], strait_codec_name(variant(v)));
    ck_assert_ptr_nonnull(variant(0));
    ck_assert_ptr_null(strait_codec_get(""));
    ck_assert_ptr_null(strait_codec_get("AVX2"));
    ck_assert_ptr_null(strait_codec_get("cuda"));
}
END_TEST

/* Every case is a process of its own: the environment is looked at once. */
START_TEST(without_a_name_the_environment_chooses_once_and_else_the_best)
{
    const struct strait_codec *best = NULL, *wanted = NULL;
    for (int v = 0; v < VARIANTS; v++)
        best = variant(v) == NULL ? best : variant(v);
    ck_assert_int_eq(0, unsetenv("STRAIT_CODEC"));
    if (_i <= VARIANTS)
        ck_assert_int_eq(0, setenv("STRAIT_CODEC", _i < VARIANTS ? variant_names[_i] : "none such", 1));
    if (_i < VARIANTS)
        wanted = variant(_i);
    wanted = wanted == NULL ? best : wanted;
    ck_assert_ptr_eq(wanted, strait_codec_get(NULL));
    ck_assert_int_eq(0, setenv("STRAIT_CODEC", "scalar", 1));
    ck_assert_ptr_eq(wanted, strait_codec_get(NULL));
    ck_assert_uint_eq(strait_scratch_size(wanted), strait_scratch_size(NULL));
}
END_TEST

START_TEST(variants_are_listed_best_first)
{
    uint32_t count = 0;
    while (strait_codec_name_at(count) != NULL)
        count++;
    ck_assert_uint_ge(count, 1);
    ck_assert_str_eq("scalar", strait_codec_name_at(count - 1));
    for (uint32_t i = 0; i < count; i++)
        if (strait_codec_get(strait_codec_name_at(i)) != NULL)
            ck_assert_str_eq(strait_codec_name_at(i), strait_codec_name(strait_codec_get(strait_codec_name_at(i))));
    for (int v = 0; v < VARIANTS; v++) /* tests know every variant of this build */
        count -= variant(v) != NULL;
    for (int v = 0; v < VARIANTS; v++)
        for (uint32_t i = 0; strait_codec_name_at(i) != NULL && variant(v) == NULL; i++)
            count -= strcmp(strait_codec_name_at(i), variant_names[v]) == 0;
    ck_assert_uint_eq(0, count);
    ck_assert_ptr_null(strait_codec_name_at(UINT32_MAX));
}
END_TEST

START_TEST(the_library_tells_its_version)
{
    unsigned major, minor, patch;
    char more;
    ck_assert_int_eq(3, sscanf(strait_version(), "%u.%u.%u%c", &major, &minor, &patch, &more));
}
END_TEST

static const struct status_text {
    int status;
    const char *text;
} status_texts[] = {
#define X(name, value, text) {value, text},
    STRAIT_STATUS_MAP(X)
#undef X
        {1, "unknown status"},
    {-14, "unknown status"},
    {INT32_MIN, "unknown status"},
    {INT32_MAX, "unknown status"},
};

START_TEST(every_status_has_its_text)
{
    ck_assert_str_eq(status_texts[_i].text, strait_status_string(status_texts[_i].status));
}
END_TEST

START_TEST(status_values_are_pinned)
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
                          STRAIT_ERR_DEVICE};
    ck_assert_str_eq("unknown status", strait_status_string(-COUNT(pinned))); /* all there are */
    for (int i = 0; i < COUNT(pinned); i++)
        ck_assert_int_eq(-i, pinned[i]);
}
END_TEST

/* ---- All of it ------------------------------------------------------------------------------------------------- */

int main(void)
{
    Suite *suite = suite_create("codec_names");
    TCase *names = tcase_create("names");
    print_conditions();
    tcase_add_test(names, a_variant_is_found_by_its_name_or_not_at_all);
    tcase_add_loop_test(names, without_a_name_the_environment_chooses_once_and_else_the_best, 0, VARIANTS + 2);
    tcase_add_test(names, variants_are_listed_best_first);
    tcase_add_test(names, the_library_tells_its_version);
    tcase_add_loop_test(names, every_status_has_its_text, 0, COUNT(status_texts));
    tcase_add_test(names, status_values_are_pinned);
    suite_add_tcase(suite, names);
    return run_suite(suite);
}
