/* Shared by test programs that consist of one suite. */
#ifndef STRAIT_TESTS_RUN_SUITE_H
#define STRAIT_TESTS_RUN_SUITE_H

#include <check.h>
#include <stdlib.h>

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

#endif
