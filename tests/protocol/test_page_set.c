/* Page lists of one transfer: what is found again, what is refused, and that a refusal changes nothing. */
#include <check.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "daemon/protocol/page_set.h"
#include "tests/run_suite.h"
#include "tests/support.h"

static struct page_set set;

static void setup(void)
{
    ck_assert_int_eq(page_set_init(&set, 3), STRAIT_OK);
}

static void teardown(void)
{
    page_set_fini(&set);
}

static enum strait_status add(uint32_t group, uint32_t first, uint32_t count, uint32_t first_id)
{
    return page_set_add(&set, &(struct wire_page_list){group, first, count, first_id, NULL});
}

/* ---- Facts ------------------------------------------------------------------------------------------------------ */

TEST(lists_that_go_on_become_one_span)
{
    static const uint32_t ids[] = {7, 3, 9};
    ck_assert_int_eq(add(1, 100, 5, 40), STRAIT_OK);
    ck_assert_int_eq(page_set_add(&set, &(struct wire_page_list){1, 105, 3, 0, ids}), STRAIT_OK);
    ck_assert_uint_eq(set.groups[1].span_count, 1);
    ck_assert_uint_eq(page_set_run(&set, 1, 100), 8);
    ck_assert_uint_eq(page_set_run(&set, 1, 107), 1);
    const uint32_t *found = page_set_ids(&set, 1, 103, 4);
    static const uint32_t expected[] = {43, 44, 7, 3};
    ck_assert_mem_eq(found, expected, sizeof(expected));
    ck_assert_uint_eq(set.total, 8);
}

TEST(neighbours_in_another_order_stay_apart)
{
    ck_assert_int_eq(add(0, 10, 10, 0), STRAIT_OK);
    ck_assert_int_eq(add(0, 0, 10, 50), STRAIT_OK);
    ck_assert_uint_eq(set.groups[0].span_count, 2);
    ck_assert_uint_eq(page_set_run(&set, 0, 5), 5);
    ck_assert_ptr_null(page_set_ids(&set, 0, 5, 6));
    ck_assert_uint_eq(*page_set_ids(&set, 0, 5, 5), 55);
    ck_assert_uint_eq(*page_set_ids(&set, 0, 19, 1), 9);
}

TEST(what_is_not_in_the_set_is_not_found)
{
    ck_assert_int_eq(add(0, 10, 10, 0), STRAIT_OK);
    ck_assert_uint_eq(page_set_run(&set, 0, 9), 0);
    ck_assert_uint_eq(page_set_run(&set, 0, 20), 0);
    ck_assert_uint_eq(page_set_run(&set, 1, 10), 0);
    ck_assert_uint_eq(page_set_run(&set, 3, 10), 0);
    ck_assert_ptr_null(page_set_ids(&set, 0, 9, 1));
    ck_assert_ptr_null(page_set_ids(&set, 0, 9, 2));
    ck_assert_ptr_null(page_set_ids(&set, 0, 19, 2));
    ck_assert_ptr_null(page_set_ids(&set, 0, 10, 0));
    ck_assert_ptr_null(page_set_ids(&set, 7, 10, 1));
}

static const struct wire_page_list refused[] = {
    {.group = 3, .first = 0, .count = 1},                              /* no such group */
    {.group = 0, .first = 15, .count = 1},                             /* twice */
    {.group = 0, .first = 5, .count = 6},                              /* at the beginning */
    {.group = 0, .first = 19, .count = 2},                             /* at the end */
    {.group = 0, .first = 0, .count = 100},                            /* around */
    {.group = 0, .first = 10, .count = 10},                            /* the same */
    {.group = 0, .first = UINT32_MAX - 2, .count = 3},                 /* no index is UINT32_MAX */
    {.group = 0, .first = 30, .count = UINT32_MAX},                    /* around the corner */
    {.group = 0, .first = 30, .count = 2, .first_id = UINT32_MAX - 1}, /* nor an id */
    {.group = 1, .first = 0, .count = STRAIT_TRANSFER_PAGES_MAX - 9},  /* too many in all */
};

TEST_LOOP(a_refused_list_changes_nothing, COUNT(refused))
{
    ck_assert_int_eq(add(0, 10, 10, 5), STRAIT_OK);
    const struct wire_page_list list = refused[_i];
    ck_assert_int_eq(page_set_add(&set, &list), STRAIT_ERR_INVALID);
    ck_assert_uint_eq(set.total, 10);
    ck_assert_uint_eq(set.groups[0].span_count, 1);
    ck_assert_uint_eq(set.groups[0].id_count, 10);
    ck_assert_uint_eq(page_set_run(&set, 0, 10), 10);
}

TEST(an_empty_list_adds_nothing)
{
    ck_assert_int_eq(add(0, 10, 0, 5), STRAIT_OK);
    ck_assert_uint_eq(set.total, 0);
    ck_assert_uint_eq(set.groups[0].span_count, 0);
}

TEST(as_many_pages_as_allowed_can_be_added)
{
    ck_assert_int_eq(add(0, 0, STRAIT_TRANSFER_PAGES_MAX / 2, 0), STRAIT_OK);
    ck_assert_int_eq(add(1, 0, STRAIT_TRANSFER_PAGES_MAX / 2, 0), STRAIT_OK);
    ck_assert_int_eq(add(2, 0, 1, 0), STRAIT_ERR_INVALID);
    ck_assert_uint_eq(page_set_run(&set, 1, 5), STRAIT_TRANSFER_PAGES_MAX / 2 - 5);
}

TEST(too_little_order_is_refused)
{
    for (uint32_t i = 0; i < PAGE_SET_SPANS_MAX; i++)
        ck_assert_int_eq(add(0, 2 * i, 1, i), STRAIT_OK);
    ck_assert_int_eq(add(0, 2 * PAGE_SET_SPANS_MAX, 1, 0), STRAIT_ERR_INVALID);
    ck_assert_int_eq(add(0, 1, 1, 0), STRAIT_ERR_INVALID);
    ck_assert_int_eq(add(0, 2 * PAGE_SET_SPANS_MAX - 1, 1, 0), STRAIT_OK); /* the last one goes on */
    ck_assert_int_eq(add(1, 1, 1, 0), STRAIT_OK);
    ck_assert_uint_eq(set.groups[0].span_count, PAGE_SET_SPANS_MAX);
}

/* What the cursor shows must be in order, and all of it. */
static void check_order(uint32_t group)
{
    struct page_cursor cursor = {0};
    const struct page_span *span;
    uint64_t end = 0;
    uint32_t spans = 0, count = 0;
    for (; (span = page_group_next(&set.groups[group], &cursor)) != NULL; spans++) {
        ck_assert(spans == 0 || span->first >= end);
        ck_assert_uint_gt(span->count, 0);
        end = (uint64_t)span->first + span->count;
        count += span->count;
    }
    ck_assert_ptr_null(page_group_next(&set.groups[group], &cursor));
    ck_assert_uint_eq(spans, set.groups[group].span_count);
    ck_assert_uint_eq(count, set.groups[group].id_count);
}

TEST(the_cursor_of_no_pages_is_at_the_end)
{
    check_order(0);
    ck_assert_int_eq(add(1, 7, 1, 0), STRAIT_OK);
    check_order(0);
    check_order(1);
}

enum { LISTS = 60000 };
enum order { RISING, FALLING, RANDOM, INWARD, ORDERS };

/* Every index below LISTS once, each in its own way. */
static void make_order(uint32_t *indexes, enum order order)
{
    struct rng rng = rng_init(9);
    for (uint32_t i = 0; i < LISTS; i++) {
        indexes[i] = order == FALLING ? LISTS - 1 - i : i;
        if (order == INWARD)
            indexes[i] = i % 2 != 0 ? LISTS - 1 - i / 2 : i / 2;
    }
    for (uint32_t i = LISTS - 1; order == RANDOM && i > 0; i--) {
        uint32_t other = rng_below(&rng, i + 1), index = indexes[i];
        indexes[i] = indexes[other];
        indexes[other] = index;
    }
}

/* On one processor, whoever else uses it. */
static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__x86_64__) /* perhaps emulated */
#define SECONDS_MAX 0.4
#else
#define SECONDS_MAX 0.02
#endif

/* Processor time that all lists take, from an empty set on. */
static double add_all(const uint32_t indexes[LISTS])
{
    teardown();
    setup();
    const double begin = cpu_seconds();
    for (uint32_t i = 0; i < LISTS; i++)
        if (add(0, 2 * indexes[i], 1, i) != STRAIT_OK)
            ck_abort_msg("list %u", i);
    return cpu_seconds() - begin;
}

TEST_LOOP(many_lists_take_little_time_in_any_order, ORDERS)
{
    static uint32_t indexes[LISTS];
    make_order(indexes, (enum order)_i);
    double took = add_all(indexes);
    for (int again = 0; again < 5 && took >= SECONDS_MAX; again++) /* caches that others fill, pages that are new */
        took = fmin(took, add_all(indexes));
    ck_assert_double_lt(took, SECONDS_MAX);
    ck_assert_uint_eq(set.groups[0].span_count, LISTS);
    check_order(0);
    for (uint32_t i = 0; i < LISTS; i++) {
        const uint32_t *id = page_set_ids(&set, 0, 2 * indexes[i], 1);
        ck_assert(id != NULL && *id == i);
        ck_assert_uint_eq(page_set_run(&set, 0, 2 * indexes[i] + 1), 0);
        ck_assert_int_eq(add(0, 2 * indexes[i], 1, 0), STRAIT_ERR_INVALID);
    }
}

/* One list after another goes on from the one before, and the holes between others are filled to the brim. */
TEST(gaps_between_many_spans_are_filled_exactly)
{
    for (uint32_t i = 0; i < 1000; i++)
        ck_assert_int_eq(add(0, 10 * i, 4, 0), STRAIT_OK);
    for (uint32_t i = 0; i < 1000; i++) {
        ck_assert_int_eq(add(0, 10 * i + 4, 7, 0), i < 999 ? STRAIT_ERR_INVALID : STRAIT_OK);
        ck_assert_int_eq(add(0, 10 * i + 3, 2, 0), STRAIT_ERR_INVALID);
        if (i < 999)
            ck_assert_int_eq(add(0, 10 * i + 4, 6, 0), STRAIT_OK);
    }
    ck_assert_uint_eq(set.total, 999 * 10 + 11);
    check_order(0);
}

TEST(a_zeroed_set_can_be_let_go)
{
    struct page_set zeroed = {0};
    page_set_fini(&zeroed);
    page_set_fini(&zeroed);
    ck_assert_int_eq(page_set_init(&zeroed, 0), STRAIT_OK);
    ck_assert_int_eq(page_set_add(&zeroed, &(struct wire_page_list){.count = 1}), STRAIT_ERR_INVALID);
    page_set_fini(&zeroed);
}

/* ---- A table of all indexes knows better ------------------------------------------------------------------------- */

enum { INDEXES = 400, ABSENT = -1 };

struct naive {
    int64_t ids[2][INDEXES], ordinals[2][INDEXES];
    uint32_t count[2];
};

static bool naive_add(struct naive *naive, const struct wire_page_list *list)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (naive->ids[list->group][list->first + i] != ABSENT)
            return false;
    for (uint32_t i = 0; i < list->count; i++) {
        naive->ids[list->group][list->first + i] = list->ids != NULL ? list->ids[i] : list->first_id + i;
        naive->ordinals[list->group][list->first + i] = naive->count[list->group]++;
    }
    return true;
}

static uint32_t naive_run(const struct naive *naive, uint32_t group, uint32_t first)
{
    uint32_t n = 0;
    while (first + n < INDEXES && naive->ids[group][first + n] != ABSENT &&
           naive->ordinals[group][first + n] == naive->ordinals[group][first] + n)
        n++;
    return n;
}

static void compare(const struct naive *naive)
{
    for (uint32_t g = 0; g < 2; g++)
        for (uint32_t first = 0; first < INDEXES; first++) {
            uint32_t run = naive_run(naive, g, first);
            ck_assert_uint_eq(page_set_run(&set, g, first), run);
            ck_assert_ptr_null(page_set_ids(&set, g, first, run + 1));
            const uint32_t *ids = page_set_ids(&set, g, first, run);
            for (uint32_t i = 0; i < run; i++)
                ck_assert_int_eq(ids[i], naive->ids[g][first + i]);
        }
}

TEST_LOOP(random_lists_are_found_as_in_a_table, 40)
{
    struct rng rng = rng_init(700 + (uint64_t)_i);
    struct naive naive;
    uint32_t ids[40];
    memset(&naive, 0, sizeof(naive));
    memset(naive.ids, 0xFF, sizeof(naive.ids));
    uint32_t next = 0;
    for (int k = 0; k < 60; k++) {
        struct wire_page_list list = {.group = rng_below(&rng, 2), .first_id = rng_below(&rng, 1000)};
        list.first = rng_below(&rng, 3) != 0 ? rng_below(&rng, INDEXES - 40) : next;
        list.count = rng_below(&rng, _i % 2 ? 40 : 6);
        rng_fill(&rng, ids, sizeof(ids));
        list.ids = rng_below(&rng, 2) ? ids : NULL;
        ck_assert_int_eq(page_set_add(&set, &list), naive_add(&naive, &list) ? STRAIT_OK : STRAIT_ERR_INVALID);
        next = list.first + list.count < INDEXES - 40 ? list.first + list.count : 0;
    }
    compare(&naive);
    check_order(0);
    check_order(1);
    ck_assert_uint_eq(set.total, naive.count[0] + naive.count[1]);
}

/* ---- Spans of others --------------------------------------------------------------------------------------------- */

static const struct {
    const char *what;
    struct wire_span spans[3];
    bool valid;
} foreign[] = {
    {"rising", {{0, 0, 5}, {0, 7, 1}, {0, 9, 2}}, true},
    {"touching", {{0, 0, 5}, {0, 5, 2}, {0, 7, 2}}, true},
    {"groups begin anew", {{0, 8, 5}, {1, 0, 2}, {3, 0, 2}}, true},
    {"up to the last index", {{0, 0, 1}, {0, 1, UINT32_MAX - 1}, {1, 0, UINT32_MAX}}, true},
    {"falling", {{0, 7, 1}, {0, 0, 5}, {1, 0, 1}}, false},
    {"equal", {{0, 7, 1}, {0, 7, 1}, {1, 0, 1}}, false},
    {"overlapping", {{0, 1, 5}, {0, 5, 2}, {1, 0, 1}}, false},
    {"one in the other", {{0, 0, 50}, {0, 5, 2}, {1, 0, 1}}, false},
    {"groups falling", {{1, 0, 1}, {0, 5, 2}, {1, 3, 1}}, false},
    {"empty", {{0, 0, 1}, {0, 5, 0}, {0, 6, 1}}, false},
    {"empty at the beginning", {{0, 0, 0}, {0, 5, 1}, {0, 6, 1}}, false},
    {"around the corner", {{0, UINT32_MAX - 1, 1}, {0, UINT32_MAX, UINT32_MAX}, {0, 5, 1}}, false},
};

TEST_LOOP(spans_of_others_are_as_a_set_has_them, COUNT(foreign))
{
    ck_assert(page_spans_valid(foreign[_i].spans, 0, 3) == foreign[_i].valid);
    ck_assert(page_spans_valid(foreign[_i].spans, 3, 3)); /* all known */
    bool by_parts = page_spans_valid(foreign[_i].spans, 0, 1) && page_spans_valid(foreign[_i].spans, 1, 2) &&
                    page_spans_valid(foreign[_i].spans, 2, 3);
    ck_assert(by_parts == foreign[_i].valid);
}

TEST(spans_of_others_are_as_many_as_a_set_has)
{
    enum { MANY = PAGE_SET_SPANS_MAX + 1 };
    struct wire_span *spans = calloc(2 * MANY, sizeof(*spans));
    for (uint32_t i = 0; i < MANY; i++)
        spans[i] = (struct wire_span){0, 2 * i, 1};
    ck_assert(page_spans_valid(NULL, 0, 0));
    ck_assert(page_spans_valid(spans, 0, PAGE_SET_SPANS_MAX));
    ck_assert(!page_spans_valid(spans, 0, MANY));
    ck_assert(!page_spans_valid(spans, PAGE_SET_SPANS_MAX, MANY));
    for (uint32_t i = PAGE_SET_SPANS_MAX; i < 2 * MANY; i++)
        spans[i] = (struct wire_span){1, 2 * i, 1};
    ck_assert(page_spans_valid(spans, 0, 2 * PAGE_SET_SPANS_MAX)); /* as many of another group */
    ck_assert(!page_spans_valid(spans, 0, 2 * PAGE_SET_SPANS_MAX + 1));
    free(spans);
}

int main(void)
{
    return run_tests("page_set", setup, teardown);
}
