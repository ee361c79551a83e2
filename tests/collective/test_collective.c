/* The parts of libstrait-coll that need no NCCL: types, decisions, counts and reports. */
#include <stdlib.h>
#include <string.h>

#include "collective/api.h"
#include "collective/engine.h"
#include "collective/group.h"
#include "collective/comm.h"
#include "tests/run_suite.h"

#define COMM ((coll_comm)(uintptr_t)0x1000)

START_TEST(bytes_are_those_of_the_type)
{
    static const unsigned sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    for (int type = 0; type < 12; type++) {
        struct coll_call call = {.count = 1000, .type = type};
        ck_assert_uint_eq(coll_call_bytes(&call), 1000 * sizes[type]);
        ck_assert_uint_eq(coll_type_row(type), type);
    }
    struct coll_call large = {.count = SIZE_MAX / 4, .type = COLL_FP32};
    ck_assert_uint_eq(coll_call_bytes(&large), SIZE_MAX / 4 * 4);
}
END_TEST

START_TEST(unknown_types_have_a_row_and_no_bytes)
{
    static const int types[] = {-1, 12, 13, 99, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        struct coll_call call = {.count = 1000, .type = types[i]};
        ck_assert_uint_eq(coll_type_row(types[i]), COLL_UNKNOWN);
        ck_assert_uint_eq(coll_call_bytes(&call), 0);
    }
    ck_assert_str_eq(coll_type_name(COLL_UNKNOWN), "unknown");
}
END_TEST

static const char *reason(struct coll_comm_info info, int type)
{
    struct coll_call call = {.operation = COLL_ALL_GATHER, .count = 1, .type = type};
    struct coll_op op;
    struct coll_decision decision = coll_decide(&info, &call, &op);
    ck_assert_int_eq(decision.route, COLL_ROUTE_NCCL);
    return decision.reason;
}

START_TEST(what_stays_raw_is_told_why)
{
    struct coll_comm_info info = {.rank = 0, .ranks = 2};
    ck_assert_str_eq(reason(info, COLL_INT8), "type is not compressed");
    ck_assert_str_eq(reason(info, 99), "type is not compressed");
    ck_assert_str_eq(reason(info, COLL_BF16), "nothing is known of it");
    info.why = "the ranks could not agree";
    ck_assert_str_eq(reason(info, COLL_BF16), "the ranks could not agree");
    ck_assert_str_eq(reason((struct coll_comm_info){.ranks = 1}, COLL_BF16), "one rank");
    ck_assert_str_eq(reason((struct coll_comm_info){.ranks = 2, .ending = true}, COLL_BF16), "ending");
    ck_assert_str_eq(reason((struct coll_comm_info){.ranks = 2, .pinned = true}, COLL_BF16), "pinned");
}
END_TEST

START_TEST(many_communicators_are_told_apart)
{
    enum { MANY = 5000 };
    struct coll_comm_info info;
    for (uintptr_t i = 1; i <= MANY; i++)
        coll_comm_insert((coll_comm)(i * 64), (int)i, MANY);
    for (uintptr_t i = 1; i <= MANY; i += 2)
        coll_comm_remove((coll_comm)(i * 64));
    for (uintptr_t i = 1; i <= MANY; i++) {
        ck_assert_int_eq(coll_comm_lookup((coll_comm)(i * 64), &info), i % 2 == 0);
        ck_assert_int_eq(info.rank, i % 2 == 0 ? (int)i : -1);
    }
    for (uintptr_t i = 2; i <= MANY; i += 2)
        coll_comm_remove((coll_comm)(i * 64));
}
END_TEST

/* One call of every operation and type, in the longest numbers. */
static void count_everything(void)
{
    struct coll_decision decision = {COLL_ROUTE_NCCL, "one rank", 0};
    for (int operation = 0; operation < COLL_OPERATIONS; operation++)
        for (int type = 0; type < COLL_TYPES; type++) {
            struct coll_call call = {.operation = operation,
                                     .count = SIZE_MAX,
                                     .type = type,
                                     .comm = COMM,
                                     .grouped = true,
                                     .captured = true};
            coll_comm_count(&call, &decision, COLL_SUCCESS);
        }
}

START_TEST(a_report_has_every_row)
{
    coll_comm_insert(COMM, 0, 2);
    count_everything();
    size_t size = coll_report(COMM, NULL, 0), rows = 0;
    char *text = malloc(size);
    ck_assert_uint_eq(coll_report(COMM, text, size), size);
    for (const char *at = text; (at = strstr(at, "raw: ")) != NULL; at++)
        rows++;
    ck_assert_uint_eq(rows, COLL_OPERATIONS * COLL_TYPES);
    ck_assert_ptr_nonnull(strstr(text, "NCCL not called yet"));
    free(text);
    coll_comm_remove(COMM);
    ck_assert_uint_eq(coll_report(COMM, NULL, 0), 0);
}
END_TEST

START_TEST(counts_of_a_communicator_end_with_it)
{
    struct coll_counts counts;
    struct coll_comm_info info;
    coll_comm_insert(COMM, 0, 2);
    count_everything();
    coll_comm_insert(COMM, 1, 3);
    ck_assert(coll_comm_counts(COMM, &info, &counts));
    ck_assert_uint_eq(counts.of[COLL_SEND][COLL_BF16].calls, 0);
    ck_assert_int_eq(info.rank, 1);
    ck_assert(coll_comm_counts(NULL, &info, &counts));
    ck_assert_uint_gt(counts.of[COLL_SEND][COLL_BF16].calls, 0);
    coll_comm_remove(COMM);
    coll_comm_lock();
    coll_comm_clear_counts();
    coll_comm_unlock();
    ck_assert(!coll_comm_any_counts());
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("collective");
    TCase *parts = tcase_create("parts");
    tcase_add_test(parts, bytes_are_those_of_the_type);
    tcase_add_test(parts, unknown_types_have_a_row_and_no_bytes);
    tcase_add_test(parts, what_stays_raw_is_told_why);
    tcase_add_test(parts, many_communicators_are_told_apart);
    tcase_add_test(parts, a_report_has_every_row);
    tcase_add_test(parts, counts_of_a_communicator_end_with_it);
    suite_add_tcase(suite, parts);
    return run_suite(suite);
}
