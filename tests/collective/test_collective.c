/* The parts of libstrait-coll that need no NCCL: types, decisions, counts, reports, and tables of sizes as text. */
#include <stdlib.h>
#include <string.h>

#include "collective/api.h"
#include "collective/comm.h"
#include "collective/engine.h"
#include "collective/group.h"
#include "collective/join.h"
#include "collective/report.h"
#include "collective/settings.h"
#include "tests/run_suite.h"
#include "tests/support.h"

#define COMM ((coll_comm)(uintptr_t)0x1000)

TEST(bytes_are_those_of_the_type)
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

TEST(unknown_types_have_a_row_and_no_bytes)
{
    static const int types[] = {-1, 12, 13, 99, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        struct coll_call call = {.count = 1000, .type = types[i]};
        ck_assert_uint_eq(coll_type_row(types[i]), COLL_UNKNOWN);
        ck_assert_uint_eq(coll_call_bytes(&call), 0);
    }
    ck_assert_str_eq(coll_type_name(COLL_UNKNOWN), "unknown");
}

static const char *reason(struct coll_comm_info info, int type)
{
    struct coll_call call = {.operation = COLL_ALL_GATHER, .count = 1, .type = type};
    struct coll_op op;
    struct coll_decision decision = coll_decide(&info, &call, &op);
    ck_assert_int_eq(decision.route, COLL_ROUTE_NCCL);
    return decision.reason;
}

TEST(what_stays_raw_is_told_why)
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

TEST(many_communicators_are_told_apart)
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

/* One call of every operation and type, in the longest numbers. */
static void count_everything(void)
{
    struct coll_decision decision = {.route = COLL_ROUTE_NCCL, .reason = "one rank"};
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

TEST(a_report_has_every_row)
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

TEST(counts_of_a_communicator_end_with_it)
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

/* ---- Tables of sizes --------------------------------------------------------------------------------------------- */

static uint64_t from(const struct coll_sizes *sizes, enum coll_operation operation, coll_type type)
{
    return coll_sizes_from(sizes, &(struct coll_call){.operation = operation, .type = type});
}

TEST(of_two_entries_of_a_table_the_later_wins)
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

TEST_LOOP(a_table_that_is_written_says_what_was_read, COUNT(good))
{
    struct coll_sizes sizes, again;
    char text[COLL_SIZES_TEXT];
    ck_assert(coll_sizes_read(&sizes, good[_i].text));
    coll_sizes_write(&sizes, text);
    ck_assert_str_eq(good[_i].written != NULL ? good[_i].written : good[_i].text, text);
    ck_assert(coll_sizes_read(&again, text));
    ck_assert_mem_eq(&sizes, &again, sizeof(sizes));
}

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
    "gather=1",
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

TEST_LOOP(texts_that_are_no_table_are_refused, COUNT(bad))
{
    struct coll_sizes sizes;
    const struct coll_sizes nothing = {0};
    ck_assert_msg(!coll_sizes_read(&sizes, bad[_i]), "%s", bad[_i]);
    ck_assert_mem_eq(&nothing, &sizes, sizeof(sizes));
}

TEST(the_longest_table_can_be_written)
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

/* It asks nobody: neither the server, which would refuse it, nor for shared memory. The last one, as it looks for NCCL,
 * which reports of the same process tell. */
TEST(more_ranks_than_there_may_be_stay_raw)
{
    const struct coll_key key = coll_key_random();
    struct coll_join_args args = {.comm = COMM, .rank = COLL_RANKS_MAX, .ranks = COLL_RANKS_MAX + 1};
    coll_join(&args, &key, 1);
    ck_assert_ptr_null(args.ccomm);
    ck_assert_str_eq(args.why, "more than 1024 ranks");
}

/* ---- Settings ---------------------------------------------------------------------------------------------------- */

/* By the setting's text: milliseconds of STRAIT_COLL_WAIT, and STRAIT_COLL_SMS. */
static const struct {
    const char *text;
    unsigned wait_ms, sms;
} numbers[] = {
    {"", 5000, 0},
    {"7", 7000, 7},
    {"3600", 3600000, 3600},
    {"3601", 5000, 3601},
    {"200ms", 200, 0},
    {"3600001ms", 5000, 0},
    {"0", 5000, 0},
    {"0ms", 5000, 0},
    {"7s", 5000, 0},
    {"ms", 5000, 0},
    {" 7", 5000, 0},
    {"7 ", 5000, 0},
    {"+7", 5000, 0},
    {"-7", 5000, 0},
    {"-18446744073709551615", 5000, 0}, /* which is 1 where it wraps */
    {"18446744073709551617", 5000, 0},
    {"-18446744073709551615ms", 5000, 0},
    {"0x7", 5000, 0},
};

TEST_LOOP(numbers_are_digits_and_nothing_else, sizeof(numbers) / sizeof(numbers[0]))
{
    setenv("STRAIT_COLL_WAIT", numbers[_i].text, 1);
    setenv("STRAIT_COLL_SMS", numbers[_i].text, 1);
    const struct coll_settings settings = coll_settings_read();
    ck_assert_uint_eq(settings.wait_ms, numbers[_i].wait_ms);
    ck_assert_uint_eq(settings.sms, numbers[_i].sms);
}

int main(void)
{
    return run_tests("collective", NULL, NULL);
}
