/* Check programs of one suite. Their tests list themselves, in the order of the file:
 *
 *     TEST(name) { ... }                       runs once,
 *     TEST_LOOP(name, count) { ... }           for each _i of [0, count),
 *     TEST_RANGE(name, from, to) { ... }       for each _i of [from, to),
 *     TEST_CASE(name);                         begins the tests that CK_RUN_CASE=name chooses,
 *     TEST_FIXTURE(name, setup, teardown);     begins such tests with a fixture of their own in place of the suite's;
 *
 * and main ends with run_tests. The program may also add them by hand, and end with run_suite. */
#ifndef STRAIT_TESTS_RUN_SUITE_H
#define STRAIT_TESTS_RUN_SUITE_H

#include <check.h>
#include <stdbool.h>
#include <stdlib.h>

struct listed_test {
    const TTest *test; /* NULL: a case begins */
    int from, to;
    const char *tcase;
    bool own; /* the case has a fixture of its own */
    void (*setup)(void), (*teardown)(void);
};

static struct listed_test listed_tests[128];
static int listed_count;

static inline void list_test(struct listed_test test)
{
    if (listed_count == (int)(sizeof(listed_tests) / sizeof(listed_tests[0])))
        abort();
    listed_tests[listed_count++] = test;
}

#define TEST(name)             TEST_RANGE(name, 0, 1)
#define TEST_LOOP(name, count) TEST_RANGE(name, 0, count)
#define TEST_RANGE(name, from_, to_)                                                 \
    static const TTest *name;                                                        \
    __attribute__((constructor)) static void name##_is_listed(void)                  \
    {                                                                                \
        list_test((struct listed_test){.test = name, .from = (from_), .to = (to_)}); \
    }                                                                                \
    START_TEST(name)
#define TEST_CASE(name)                       TEST_BEGINS(name, false, NULL, NULL)
#define TEST_FIXTURE(name, setup_, teardown_) TEST_BEGINS(name, true, setup_, teardown_)
#define TEST_BEGINS(name, own_, setup_, teardown_)                                                                  \
    __attribute__((constructor)) static void name##_begins(void)                                                    \
    {                                                                                                               \
        list_test((struct listed_test){.tcase = #name, .own = (own_), .setup = (setup_), .teardown = (teardown_)}); \
    }                                                                                                               \
    struct listed_test

/* Adds a case to the suite; only CTest limits its time. */
static inline TCase *add_case(Suite *suite, const char *name)
{
    TCase *tcase = tcase_create(name);
    tcase_set_timeout(tcase, 0);
    suite_add_tcase(suite, tcase);
    return tcase;
}

/* Runs and frees it: the program's exit status. CK_VERBOSITY tells more or less. */
static inline int run_suite(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* Runs all that is listed, each test between setup and teardown (or NULL): the program's exit status. */
static inline int run_tests(const char *name, void (*setup)(void), void (*teardown)(void))
{
    Suite *suite = suite_create(name);
    TCase *tcase = NULL;
    for (const struct listed_test *at = listed_tests; at < listed_tests + listed_count; at++) {
        if (tcase == NULL || at->tcase != NULL) {
            tcase = add_case(suite, at->tcase != NULL ? at->tcase : name);
            tcase_add_checked_fixture(tcase, at->own ? at->setup : setup, at->own ? at->teardown : teardown);
        }
        if (at->test != NULL)
            tcase_add_loop_test(tcase, at->test, at->from, at->to);
    }
    return run_suite(suite);
}

#endif
