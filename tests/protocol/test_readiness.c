/* Which units of an offer are ready: beside a plain model, and what is refused. */
#include <check.h>
#include <string.h>

#include "daemon/protocol/readiness.h"
#include "tests/run_suite.h"
#include "tests/support.h"

enum { GROUPS = 2, REGIONS = 5, PAGES_MAX = 700 };
static const uint32_t region_counts[GROUPS] = {REGIONS, 3};

/* Of a test: the pages, what is kept of them, and the same as the model sees it, by logical index. */
static struct page_set pages;
static struct readiness readiness;
static struct {
    bool later, known, ready[REGIONS];
} model[GROUPS][PAGES_MAX];

static void setup(void)
{
    ck_assert_int_eq(STRAIT_OK, page_set_init(&pages, GROUPS));
    readiness = (struct readiness){.groups = NULL};
    memset(model, 0, sizeof(model));
}

static void teardown(void)
{
    readiness_fini(&readiness);
    page_set_fini(&pages);
}

static void list(uint32_t group, uint32_t first, uint32_t count, bool later)
{
    const struct wire_page_list list = {.group = group, .first = first, .count = count, .first_id = first + 1000};
    ck_assert_int_eq(STRAIT_OK, page_set_add(&pages, &list));
    if (readiness.groups != NULL)
        ck_assert_int_eq(STRAIT_OK, readiness_add(&readiness, &pages, &list, later));
    for (uint32_t i = first; i < first + count; i++) {
        model[group][i].known = true;
        model[group][i].later = later;
        for (uint32_t r = 0; readiness.groups == NULL && r < region_counts[group]; r++)
            model[group][i].ready[r] = !later;
    }
}

static void keep(bool later)
{
    ck_assert_int_eq(STRAIT_OK, readiness_init(&readiness, &pages, region_counts, later));
}

static bool model_mark(struct segment s)
{
    for (uint32_t i = s.first; i < s.first + s.count; i++)
        for (uint32_t r = s.region_first; r < s.region_first + s.region_count; r++)
            if (!model[s.group][i].known || model[s.group][i].ready[r])
                return false;
    for (uint32_t i = s.first; i < s.first + s.count; i++)
        for (uint32_t r = s.region_first; r < s.region_first + s.region_count; r++)
            model[s.group][i].ready[r] = true;
    return true;
}

static void mark(struct segment s)
{
    ck_assert_int_eq(model_mark(s), readiness_mark(&readiness, &pages, &s) == STRAIT_OK);
}

/* What comes is new, of pages for later, and in the model from now on. */
static bool take(void *owner, const struct segment *s)
{
    uint32_t *emitted = owner;
    for (uint32_t i = s->first; i < s->first + s->count; i++)
        ck_assert(model[s->group][i].later);
    ck_assert(s->count > 0 && s->region_count > 0 && model_mark(*s));
    ++*emitted;
    return true;
}

static uint32_t mark_later(uint32_t group, uint32_t begin, uint32_t end)
{
    uint32_t emitted = 0;
    ck_assert(readiness_mark_later(&readiness, &pages, group, begin, end, UINT32_MAX, take, &emitted));
    for (uint32_t i = 0; i < PAGES_MAX; i++)
        for (uint32_t r = begin; r < end; r++)
            ck_assert(!model[group][i].later || model[group][i].ready[r]);
    return emitted;
}

static void check_complete(void)
{
    struct segment missing = {0};
    bool complete = true;
    for (uint32_t g = 0; g < GROUPS; g++)
        for (uint32_t i = 0; i < PAGES_MAX; i++)
            for (uint32_t r = 0; r < region_counts[g]; r++)
                complete = complete && (!model[g][i].known || model[g][i].ready[r]);
    ck_assert_int_eq(complete, readiness_is_complete(&readiness, &pages, &missing));
    if (!complete)
        ck_assert(missing.count == 1 && missing.region_count == 1 && model[missing.group][missing.first].known &&
                  !model[missing.group][missing.first].ready[missing.region_first]);
}

TEST(regions_that_are_ready_alike_come_together)
{
    list(0, 0, 100, true);
    keep(true);
    check_complete();
    ck_assert_uint_eq(1, mark_later(0, 1, 3)); /* one segment for both regions */
    ck_assert_uint_eq(2, mark_later(0, 0, REGIONS));
    ck_assert_uint_eq(0, mark_later(0, 0, REGIONS));
    check_complete();
}

TEST(pages_that_were_there_are_ready_unless_for_later)
{
    list(0, 0, 10, false);
    keep(false);
    check_complete();
    mark((struct segment){0, 0, 1, 9, 1}); /* refused: ready already */
    list(0, 10, 64, false);                /* added while kept: not ready */
    check_complete();
    mark((struct segment){0, 0, 1, 9, 2}); /* refused, and the tenth stays as it was */
    mark((struct segment){0, 0, 1, 10, 64});
    ck_assert_uint_eq(0, mark_later(0, 0, REGIONS)); /* they are not for later */
    mark((struct segment){0, 1, REGIONS - 1, 10, 64});
    check_complete();
}

TEST(pages_beyond_the_limit_are_left)
{
    uint32_t emitted = 0;
    list(0, 0, 130, true);
    keep(true);
    ck_assert(readiness_mark_later(&readiness, &pages, 0, 0, REGIONS, 65, take, &emitted));
    ck_assert(emitted == 1 && model[0][64].ready[0] && !model[0][65].ready[0]);
    ck_assert(readiness_mark_later(&readiness, &pages, 0, 0, REGIONS, 0, take, &emitted));
    ck_assert_uint_eq(1, emitted);
    check_complete();
}

TEST(unknown_pages_are_not_marked)
{
    list(0, 0, 4, true);
    keep(true);
    mark((struct segment){0, 0, 1, 2, 4});
    mark((struct segment){1, 0, 1, 0, 1});
    ck_assert(!model[0][2].ready[0]);
    mark((struct segment){0, 0, 1, 2, 2});
}

/* Lists in any order, with gaps; rectangles, and everything for later, in any order. */
TEST_LOOP(any_order_gives_what_the_model_gives, 20)
{
    struct rng rng = rng_init((uint64_t)_i);
    for (int step = 0; step < 400; step++) {
        const uint32_t group = rng_below(&rng, GROUPS), regions = region_counts[group];
        const uint32_t first = rng_below(&rng, PAGES_MAX - 80), count = 1 + rng_below(&rng, 80);
        const uint32_t begin = rng_below(&rng, regions), end = begin + 1 + rng_below(&rng, regions - begin);
        bool is_free = true;
        for (uint32_t i = first; i < first + count; i++)
            is_free = is_free && !model[group][i].known;
        if (step == 20)
            keep(_i % 2 == 0);
        if (is_free && rng_below(&rng, 3) == 0)
            list(group, first, count, step < 20 ? _i % 2 == 0 : rng_below(&rng, 2) == 0);
        else if (readiness.groups != NULL && rng_below(&rng, 8) == 0)
            mark_later(group, begin, end);
        else if (readiness.groups != NULL)
            mark((struct segment){group, begin, end - begin, first, rng_below(&rng, 4) == 0 ? count : 1});
    }
    check_complete();
    ck_assert_uint_gt(readiness_bytes(&readiness), 0);
}

int main(void)
{
    return run_tests("readiness", setup, teardown);
}
