/* Tables of sizes as text: what is understood, what is not, and that what is written says the same. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "collective/settings.h"

static uint64_t from(const struct coll_sizes *sizes, enum coll_operation operation, coll_type type)
{
    return coll_sizes_from(sizes, &(struct coll_call){.operation = operation, .type = type});
}

START_TEST(later_entries_win)
{
    struct coll_sizes sizes;
    ck_assert(coll_sizes_read(&sizes, "all_gather=16M,all_gather:fp32=never,pairs:fp16=3K,all_gather:fp16=0"));
    ck_assert_uint_eq(16 << 20, from(&sizes, COLL_ALL_GATHER, COLL_BF16));
    ck_assert_uint_eq(COLL_SIZES_NEVER, from(&sizes, COLL_ALL_GATHER, COLL_FP32));
    ck_assert_uint_eq(1, from(&sizes, COLL_ALL_GATHER, COLL_FP16));
    ck_assert_uint_eq(3 << 10, from(&sizes, COLL_SEND, COLL_FP16));
    ck_assert_uint_eq(3 << 10, from(&sizes, COLL_RECV, COLL_FP16));
    ck_assert_uint_eq(0, from(&sizes, COLL_SEND, COLL_BF16));
    ck_assert_uint_eq(0, from(&sizes, COLL_ALL_REDUCE, COLL_BF16));
    ck_assert_uint_eq(0, from(&sizes, COLL_ALL_GATHER, COLL_INT8));
    ck_assert_uint_eq(0, from(&sizes, COLL_BROADCAST, COLL_BF16));
}
END_TEST

static const struct {
    const char *text, *written; /* NULL: as it is */
} good[] = {
    {"all_gather=16M", NULL},
    {"all_gather:bf16=1G,all_to_all=never,reduce_scatter:fp16=12345,reduce_scatter:fp32=1,all_reduce=96K", NULL},
    {"pairs:fp32=2048K,pairs:bf16=1,pairs:fp16=1", "pairs:bf16=1,pairs:fp16=1,pairs:fp32=2M"},
    {"all_reduce:bf16=8M,all_reduce:fp16=8192K,all_reduce:fp32=8388608", "all_reduce=8M"},
    {"all_gather=0", "all_gather=1"},
    {"all_gather=17179869183G", NULL},
    {"all_gather=18446744073709551614", NULL},
};

START_TEST(what_is_written_says_the_same)
{
    struct coll_sizes sizes, again;
    char text[COLL_SIZES_TEXT];
    ck_assert(coll_sizes_read(&sizes, good[_i].text));
    coll_sizes_write(&sizes, text);
    ck_assert_str_eq(good[_i].written != NULL ? good[_i].written : good[_i].text, text);
    ck_assert(coll_sizes_read(&again, text));
    ck_assert_mem_eq(&sizes, &again, sizeof(sizes));
}
END_TEST

static const char *const bad[] = {
    "",
    ",",
    "all_gather",
    "all_gather=",
    "=16M",
    "all_gather=16M,",
    ",all_gather=16M",
    "all_gather=16MB",
    "all_gather=16m",
    "all_gather=-1",
    "all_gather=+1",
    "all_gather= 1",
    "all_gather=0x10",
    "all_gather=1.5M",
    "all_gather=neve",
    "all_gather=nevernever",
    "all_gathe=1",
    "all_gather2=1",
    "broadcast=1",
    "all_gather:=1",
    "all_gather:int8=1",
    "all_gather:bf16:fp16=1",
    ":bf16=1",
    "all_gather=17179869184G",
    "all_gather=18446744073709551615",
    "all_gather=18446744073709551616",
    "all_gather=99999999999999999999999",
    "all_gather=000000000000000000000000000000001",
    "all_gather=1 all_to_all=1",
    "all_gather=1;all_to_all=1",
};

START_TEST(other_texts_are_not_understood)
{
    struct coll_sizes sizes;
    const struct coll_sizes nothing = {0};
    ck_assert_msg(!coll_sizes_read(&sizes, bad[_i]), "%s", bad[_i]);
    ck_assert_mem_eq(&nothing, &sizes, sizeof(sizes));
}
END_TEST

/* The longest there is. */
START_TEST(any_table_can_be_written)
{
    struct coll_sizes sizes = {.given = 1}, again;
    char text[COLL_SIZES_TEXT];
    for (unsigned row = 0; row < COLL_SIZES_OPERATIONS; row++)
        for (unsigned column = 0; column < COLL_SIZES_TYPES; column++)
            sizes.from[row][column] = COLL_SIZES_NEVER - 1 - row - column;
    coll_sizes_write(&sizes, text);
    ck_assert(coll_sizes_read(&again, text));
    ck_assert_mem_eq(&sizes, &again, sizeof(sizes));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coll_sizes");
    TCase *tests = tcase_create("table");
    suite_add_tcase(suite, tests);
    tcase_add_test(tests, later_entries_win);
    tcase_add_loop_test(tests, what_is_written_says_the_same, 0, sizeof(good) / sizeof(good[0]));
    tcase_add_loop_test(tests, other_texts_are_not_understood, 0, sizeof(bad) / sizeof(bad[0]));
    tcase_add_test(tests, any_table_can_be_written);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
