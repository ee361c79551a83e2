/* Exponents of pages are counted on a worker: every value of the pages once, and none after a stop. */
#include <check.h>
#include <string.h>
#include <uv.h>

#include "daemon/memory/count.h"
#include "daemon/memory/job.h"
#include "tests/run_suite.h"
#include "tests/support.h"

enum { PAGES = 8, MEMORY = 8 << 20 };

static uv_loop_t loop;
static struct jobs *jobs;
static struct codebooks *no_codebooks;
static struct count *count;
static uint8_t *memory;
static int told;

static void setup(void)
{
    struct rng rng = rng_init(7);
    ck_assert_int_eq(0, uv_loop_init(&loop));
    ck_assert_int_eq(STRAIT_OK, codebooks_create(NULL, NULL, &no_codebooks));
    ck_assert_int_eq(STRAIT_OK, jobs_create(&loop, no_codebooks, 0, &jobs));
    memory = malloc(MEMORY);
    count = count_create();
    ck_assert(memory != NULL && count != NULL);
    for (size_t i = 0; i < MEMORY; i += 8) {
        const uint64_t random = rng_next(&rng);
        memcpy(memory + i, &random, 8);
    }
    told = 0;
}

static void teardown(void)
{
    count_destroy(count);
    free(memory);
    jobs_destroy(jobs);
    codebooks_release(no_codebooks);
    ck_assert_int_eq(0, uv_run(&loop, UV_RUN_DEFAULT));
    ck_assert_int_eq(0, uv_loop_close(&loop));
}

static void on_done(void *owner, struct count *done)
{
    ck_assert_ptr_eq(count, done);
    ck_assert_ptr_eq(&told, owner);
    told++;
}

static void run(void)
{
    ck_assert(count_start(count, jobs, on_done, &told));
    ck_assert_int_eq(0, told);
    ck_assert_int_eq(0, uv_run(&loop, UV_RUN_DEFAULT));
    ck_assert_int_eq(1, told);
    told = 0;
}

static struct strait_region region_of(uint32_t rows, uint32_t row_bytes, uint64_t gap)
{
    const uint64_t row_stride = row_bytes + gap;
    return (struct strait_region){.base = memory,
                                  .page_stride = rows * row_stride,
                                  .row_stride = row_stride,
                                  .page_count = PAGES,
                                  .rows = rows,
                                  .row_bytes = row_bytes};
}

/* As the codec counts a page whose rows have been put together. */
static void expect_page(uint64_t counts[256], enum strait_element element, const struct strait_region *region,
                        uint32_t id)
{
    const size_t bytes = (size_t)region->rows * region->row_bytes;
    uint8_t *page = malloc(bytes);
    ck_assert_ptr_nonnull(page);
    for (uint32_t r = 0; r < region->rows; r++)
        memcpy(page + (size_t)r * region->row_bytes,
               (uint8_t *)region->base + id * region->page_stride + r * region->row_stride, region->row_bytes);
    const size_t values = bytes / (element == STRAIT_ELEMENT_FP32 ? 4 : 2);
    ck_assert_int_eq(STRAIT_OK, strait_histogram_add_values(counts, element, page, values));
    free(page);
}

static const struct strait_class k0 = {.role = STRAIT_ROLE_K, .layer = 0}, v9 = {.role = STRAIT_ROLE_V, .layer = 9};

/* Rows that are short, long, odd, apart and longer than what is copied at a time. */
TEST_LOOP(every_value_of_a_page_is_counted_once, 6)
{
    static const struct {
        uint32_t rows, row_bytes, gap;
        enum strait_element element;
    } shapes[] = {{1, 8192, 0, STRAIT_ELEMENT_BF16},     {33, 2, 6, STRAIT_ELEMENT_BF16},
                  {40, 3000, 72, STRAIT_ELEMENT_BF16},   {2, 32769, 1, STRAIT_ELEMENT_BF16},
                  {3, 100000, 500, STRAIT_ELEMENT_FP32}, {1, 900000, 0, STRAIT_ELEMENT_FP16}};
    const struct strait_region region = region_of(shapes[_i].rows, shapes[_i].row_bytes, shapes[_i].gap);
    const uint64_t bytes = (uint64_t)region.rows * region.row_bytes;
    for (int turn = 0; turn < 2; turn++) { /* the second one after a clear */
        uint64_t counts[2][256] = {{0}};
        uint32_t class_count;
        ck_assert(count_add(count, k0, shapes[_i].element, &region, 5));
        expect_page(counts[0], shapes[_i].element, &region, 5);
        if (2 * bytes <= COUNT_BYTES) {
            ck_assert(count_add(count, v9, shapes[_i].element, &region, 0));
            expect_page(counts[1], shapes[_i].element, &region, 0);
        }
        run();
        const struct class_count *classes = count_results(count, &class_count);
        ck_assert_uint_eq(2 * bytes <= COUNT_BYTES ? 2 : 1, class_count);
        ck_assert(classes[0].class.role == STRAIT_ROLE_K && classes[0].class.layer == 0);
        for (uint32_t c = 0; c < class_count; c++) {
            ck_assert_uint_eq(bytes, classes[c].bytes);
            ck_assert_mem_eq(counts[c], classes[c].counts, sizeof(counts[c]));
        }
        ck_assert_uint_eq(class_count * bytes, count_size(count));
        count_clear(count);
        ck_assert_uint_eq(0, count_size(count));
    }
}

TEST(an_order_takes_so_many_bytes_pages_and_classes)
{
    const struct strait_region one = region_of(1, 2, 0), large = region_of(1, COUNT_BYTES / 4 + 2, 0);
    uint32_t class_count;
    for (uint32_t i = 0; i < COUNT_PARTS_MAX; i++)
        ck_assert(count_add(count, k0, STRAIT_ELEMENT_BF16, &one, i % PAGES));
    ck_assert(!count_add(count, k0, STRAIT_ELEMENT_BF16, &one, 0));
    run();
    ck_assert_uint_eq(2 * COUNT_PARTS_MAX, count_results(count, &class_count)->bytes);
    count_clear(count);
    for (int32_t i = 0; i < (int32_t)COUNT_CLASSES_MAX; i++)
        ck_assert(count_add(count, (struct strait_class){STRAIT_ROLE_K, i}, STRAIT_ELEMENT_BF16, &one, 0));
    ck_assert(!count_add(count, v9, STRAIT_ELEMENT_BF16, &one, 0));
    ck_assert(count_add(count, (struct strait_class){STRAIT_ROLE_K, 7}, STRAIT_ELEMENT_BF16, &one, 0));
    count_clear(count);
    for (int i = 0; i < 3; i++)
        ck_assert(count_add(count, k0, STRAIT_ELEMENT_BF16, &large, 0));
    ck_assert(!count_add(count, k0, STRAIT_ELEMENT_BF16, &large, 0));
    count_clear(count);
    run(); /* nothing */
}

TEST(types_without_exponents_are_not_counted)
{
    static const bool taken[] = {[STRAIT_ELEMENT_BF16] = true,
                                 [STRAIT_ELEMENT_FP16] = true,
                                 [STRAIT_ELEMENT_FP32] = true,
                                 [STRAIT_ELEMENT_FP8_E5M2] = false};
    for (int e = 0; e < COUNT(taken); e++)
        ck_assert(count_takes((enum strait_element)e) == taken[e]);
}

/* What is written to the pages after the stop is not counted, wherever the worker was. */
TEST(a_stopped_order_touches_nothing)
{
    enum { MARK = 0x40, MARK_EXPONENT = 0x80, PLAIN = 0x3f };
    const struct strait_region region = region_of(1, COUNT_BYTES / 4, 0);
    uint32_t early = 0;
    for (int i = 0; i < 300; i++) {
        uint32_t class_count;
        memset(memory, PLAIN, COUNT_BYTES);
        for (uint32_t id = 0; id < 4; id++)
            ck_assert(count_add(count, k0, STRAIT_ELEMENT_BF16, &region, id));
        ck_assert(count_start(count, jobs, on_done, &told));
        for (const uint64_t until = uv_hrtime() + (uint64_t)i * 2000; uv_hrtime() < until;)
            ;
        count_stop(count);
        memset(memory, MARK, COUNT_BYTES);
        count_stop(count); /* twice is once */
        ck_assert_int_eq(0, uv_run(&loop, UV_RUN_DEFAULT));
        const struct class_count *counted = count_results(count, &class_count);
        ck_assert_uint_eq(0, counted->counts[MARK_EXPONENT]);
        ck_assert_uint_eq(counted->bytes / 2, counted->counts[PLAIN << 1 & 0xff]);
        early += counted->bytes < COUNT_BYTES;
        count_clear(count);
    }
    ck_assert_uint_gt(early, 0);
}

int main(void)
{
    return run_tests("count", setup, teardown);
}
