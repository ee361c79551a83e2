/* The public calls: what is counted, what memory they take, and two of them at once. */
#include <check.h>
#include <pthread.h>
#include <string.h>

#include "tests/run_suite.h"
#include "tests/support.h"

static struct strait_codebook *codebook;

static void setup(void)
{
    codebook = test_codebook();
}

static void teardown(void)
{
    strait_codebook_destroy(codebook);
}

static const enum strait_mode coded_modes[] = {STRAIT_MODE_TOP16, STRAIT_MODE_TIERED};

static uint64_t units_of(uint64_t bytes)
{
    return (bytes + 15) / 16;
}

/* ---- Statistics ------------------------------------------------------------------------------------------------ */

struct counted {
    uint64_t values, escapes;
};

/* Expected statistics of a table when all blocks are coded. */
static struct counted count_escapes(const uint8_t *bytes, uint32_t n, uint32_t table, uint32_t first_escape)
{
    uint8_t ranking[256], rank[256];
    struct counted counted = {.values = n};
    test_ranking(ranking, table);
    for (unsigned r = 0; r < 256; r++)
        rank[ranking[r]] = (uint8_t)r;
    for (uint32_t i = 0; i < n; i++)
        counted.escapes += rank[get_value(bytes, i) >> 7 & 255] >= first_escape;
    return counted;
}

START_TEST(statistics_count_values_and_escapes_per_table)
{
    const struct shape shapes[] = {{.page_count = 2, .rows = 1, .row_bytes = 40000, .table = 3},
                                   {.page_count = 2, .rows = 1, .row_bytes = 20000, .table = 1}};
    const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, coded_modes[_i]};
    struct counted expected[TEST_TABLES] = {{0, 0}};
    struct rng rng = rng_init(600);
    struct layout src;
    struct verdict verdict;
    layout_init(&src, 2, shapes, 2, NULL, 2);
    layout_fill(&src, &rng, PATTERN_RARE, codebook);
    for (uint32_t p = 0; p < 4; p++) {
        uint8_t page[40000];
        uint32_t table = shapes[p / 2].table;
        layout_read(&src, p, page);
        struct counted one =
            count_escapes(page, layout_page_bytes(&src, p) / 2, table, asked.mode == STRAIT_MODE_TOP16 ? 16 : 21);
        expected[table].values += one.values;
        expected[table].escapes += one.escapes;
    }
    free(round_trip(&asked, &src, &verdict));
    for (int t = 0; t < TEST_TABLES; t++) {
        ck_assert_uint_eq(expected[t].values, verdict.stats[t].values);
        ck_assert_uint_eq(expected[t].escapes, verdict.stats[t].escapes);
    }
    layout_fini(&src);
}
END_TEST

/* Also for a caller who knows the struct as it was before. */
START_TEST(caching_changes_no_byte)
{
    const struct shape shape = {.page_count = 40, .rows = 1, .row_bytes = 32768, .table = 1};
    struct rng rng = rng_init(602);
    struct layout src;
    layout_init(&src, 64, &shape, 1, NULL, 40);
    layout_fill(&src, &rng, PATTERN_LOW, codebook);
    uint64_t bound = strait_encode_bound(&src.pages);
    uint8_t *first = malloc(bound), *chunk = malloc(bound);
    for (int mode = STRAIT_MODE_RAW; mode <= STRAIT_MODE_TIERED; mode++) {
        const struct strait_encode_params params = {sizeof(params), STRAIT_ELEMENT_BF16, mode, codebook};
        uint64_t bytes = 0;
        for (uint32_t caching = 0; caching <= STRAIT_CACHING_LINK + 1; caching++) {
            bool old = caching > STRAIT_CACHING_LINK;
            struct strait_result result;
            struct strait_run run = {.size = old ? offsetof(struct strait_run, caching) : sizeof(run),
                                     .result = &result,
                                     .caching = caching};
            uint8_t *dst = caching == 0 ? first : chunk;
            memset(dst, (int)caching, bound);
            ck_assert_int_eq(STRAIT_OK, strait_encode(NULL, &params, dst, bound, &src.pages, &run));
            bytes = caching == 0 ? result.bytes : bytes;
            ck_assert_uint_eq(bytes, result.bytes);
            ck_assert(memcmp(first, dst, bytes) == 0);
            ck_assert_int_eq(STRAIT_OK, strait_decode(NULL, codebook, &src.pages, NULL, dst, bytes, &run));
            ck_assert_int_eq(STRAIT_OK, result.status);
        }
    }
    free(first);
    free(chunk);
    layout_fini(&src);
}
END_TEST

START_TEST(statistics_are_added_to_and_tables_beyond_are_not_counted)
{
    const struct shape shapes[] = {{.page_count = 1, .rows = 1, .row_bytes = 4000, .table = 1},
                                   {.page_count = 1, .rows = 1, .row_bytes = 4000, .table = 2}};
    const struct strait_encode_params params = {sizeof(params), STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED, codebook};
    struct strait_class_stats stats[3] = {{1, 2}, {3, 4}, {5, 6}};
    struct strait_result result;
    struct strait_run run = {.size = sizeof(run), .result = &result, .class_stats = stats, .class_count = 2};
    struct rng rng = rng_init(601);
    struct layout src;
    layout_init(&src, 2, shapes, 2, NULL, 1);
    layout_fill(&src, &rng, PATTERN_LOW, codebook);
    uint8_t *chunk = malloc(strait_encode_bound(&src.pages));
    ck_assert_int_eq(STRAIT_OK, strait_encode(NULL, &params, chunk, strait_encode_bound(&src.pages), &src.pages, &run));
    ck_assert_uint_eq(1, stats[0].values);
    ck_assert_uint_eq(2003, stats[1].values);
    ck_assert_uint_eq(4, stats[1].escapes);
    ck_assert_uint_eq(5, stats[2].values);
    free(chunk);
    layout_fini(&src);
}
END_TEST

/* ---- Buffers --------------------------------------------------------------------------------------------------- */

static const struct shape buffer_shapes[] = {{.page_count = 1, .rows = 1, .row_bytes = 2},
                                             {.page_count = 5, .rows = 1, .row_bytes = 64},
                                             {.page_count = 2, .rows = 3, .row_bytes = 16390, .row_gap = 2},
                                             {.page_count = 3, .rows = 1, .row_bytes = 16384}};

/* A chunk of raw pages of one length: nothing is longer. */
static uint64_t raw_chunk_bytes(uint64_t pages, uint64_t page_bytes)
{
    uint64_t rows = (page_bytes + 16383) / 16384 - 1;
    return 16 * units_of(48 + 16 * pages + 4 * pages * rows) + 16 * pages * units_of(page_bytes);
}

START_TEST(a_buffer_of_exactly_the_bound_is_enough_and_one_byte_less_is_not)
{
    const struct strait_encode_params params = {sizeof(params), STRAIT_ELEMENT_BF16, STRAIT_MODE_RAW, codebook};
    const struct shape *shape = &buffer_shapes[_i];
    struct rng rng = rng_init(700);
    struct layout src;
    struct verdict verdict;
    layout_init(&src, 2, shape, 1, NULL, shape->page_count);
    layout_fill(&src, &rng, PATTERN_NOISE, codebook);
    uint64_t bound = strait_encode_bound(&src.pages);
    for (uint64_t short_by = 0; short_by <= bound; short_by = 2 * short_by + 1) {
        struct strait_run run = verdict_begin(&verdict);
        struct guarded dst;
        guarded_init(&dst, bound - short_by);
        ck_assert_int_eq(short_by == 0 ? STRAIT_OK : STRAIT_ERR_NO_SPACE,
                         strait_encode(NULL, &params, dst.bytes, bound - short_by, &src.pages, &run));
        ck_assert_int_eq(short_by == 0 ? STRAIT_OK : STATUS_UNSET, verdict.result.status);
        ck_assert(short_by == 0 || is_filled(dst.bytes, dst.size, CANARY));
        guarded_fini(&dst);
    }
    ck_assert_uint_eq(raw_chunk_bytes(shape->page_count, layout_page_bytes(&src, 0)), bound);
    layout_fini(&src);
}
END_TEST

START_TEST(chunks_may_lie_at_any_address)
{
    const struct strait_encode_params params = {sizeof(params), STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED, codebook};
    const struct shape shapes[] = {{.page_count = 2, .rows = 1, .row_bytes = 20003, .page_gap = 1, .table = 1},
                                   {.page_count = 2, .rows = 1, .row_bytes = 300, .table = 2}};
    const struct strait_codec *codec = variant(_i);
    struct rng rng = rng_init(701);
    struct layout src, dst;
    struct verdict verdict;
    if (codec == NULL)
        return;
    layout_init(&src, 2, shapes, 2, NULL, 2);
    layout_mirror(&dst, &src);
    layout_fill(&src, &rng, PATTERN_FALLING, codebook);
    uint64_t bound = strait_encode_bound(&src.pages);
    for (uint32_t shift = 0; shift < 64; shift++) {
        struct strait_run run = verdict_begin(&verdict);
        struct guarded room;
        guarded_init(&room, bound + 64 - shift); /* the chunk ends before its buffer does */
        ck_assert_int_eq(STRAIT_OK, strait_encode(codec, &params, room.bytes, bound, &src.pages, &run));
        ck_assert(is_filled(room.bytes + bound, 64 - shift, CANARY));
        uint64_t size = verdict.result.bytes;
        uint8_t *end = room.bytes + room.size - shift % 16;
        memmove(end - size, room.bytes, size);
        layout_clear(&dst);
        decode_layout(codec, codebook, &dst, NULL, end - size, size, &verdict);
        ck_assert_int_eq(STRAIT_OK, verdict.result.status);
        ck_assert_mem_eq(src.memory.bytes, dst.memory.bytes, src.memory.size);
        guarded_fini(&room);
    }
    layout_fini(&src);
    layout_fini(&dst);
}
END_TEST

START_TEST(scratch_of_the_caller_changes_no_byte)
{
    const struct shape shape = {.page_count = 2, .rows = 11, .row_bytes = 3000, .row_gap = 2};
    const struct strait_codec *codec = variant(_i);
    struct rng rng = rng_init(702);
    struct layout src, dst;
    struct verdict a, b;
    if (codec == NULL)
        return;
    layout_init(&src, 2, &shape, 1, NULL, 2);
    layout_mirror(&dst, &src);
    layout_fill(&src, &rng, PATTERN_FALLING, codebook);
    const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED};
    uint8_t *chunk = encode_layout(codec, &asked, &src, &a);
    struct guarded scratch, out;
    ck_assert_uint_eq(0, strait_scratch_size(codec) % 64);
    guarded_init(&scratch, strait_scratch_size(codec));
    guarded_init(&out, strait_encode_bound(&src.pages));
    struct strait_encode_params params = {sizeof(params), STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED, codebook};
    struct strait_run run = verdict_begin(&b);
    run.scratch = scratch.bytes;
    run.scratch_size = scratch.size;
    ck_assert_int_eq(STRAIT_OK, strait_encode(codec, &params, out.bytes, out.size, &src.pages, &run));
    ck_assert_mem_eq(&a, &b, sizeof(a));
    ck_assert_mem_eq(chunk, out.bytes, a.result.bytes);
    ck_assert_int_eq(STRAIT_OK, strait_decode(codec, codebook, &dst.pages, NULL, chunk, a.result.bytes, &run));
    ck_assert_int_eq(STRAIT_OK, b.result.status);
    ck_assert_mem_eq(src.memory.bytes, dst.memory.bytes, src.memory.size);
    guarded_fini(&scratch);
    guarded_fini(&out);
    free(chunk);
    layout_fini(&src);
    layout_fini(&dst);
}
END_TEST

/* ---- Threads --------------------------------------------------------------------------------------------------- */

enum { THREAD_PAGES = 8, THREAD_ROUNDS = 12 };

struct worker {
    const struct strait_codec *codec;
    const struct asked *asked;
    const struct layout *src, *dst;
    const uint8_t *chunk;
    uint64_t size;
    uint32_t first; /* every second page from here */
    bool good;
};

static bool encode_same(const struct worker *w)
{
    struct verdict verdict;
    uint8_t *chunk = encode_layout(w->codec, w->asked, w->src, &verdict);
    bool same = chunk != NULL && verdict.result.bytes == w->size && memcmp(chunk, w->chunk, w->size) == 0;
    free(chunk);
    return same;
}

/* Decodes its half of the pages into the memory that both threads share. */
static bool decode_half(const struct worker *w)
{
    uint32_t ids[THREAD_PAGES / 2];
    struct layout half = *w->dst;
    struct verdict verdict;
    for (uint32_t i = 0; i < THREAD_PAGES / 2; i++)
        ids[i] = 2 * i + w->first;
    half.pages.ids = ids;
    half.pages.id_count = THREAD_PAGES / 2;
    half.pages.regions = half.regions;
    decode_layout(w->codec, w->asked->codebook, &half, ids, w->chunk, w->size, &verdict);
    return verdict.returned == STRAIT_OK && verdict.result.status == STRAIT_OK;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    w->good = true;
    for (int i = 0; i < THREAD_ROUNDS; i++)
        w->good = w->good && encode_same(w) && decode_half(w);
    return NULL;
}

START_TEST(two_threads_on_disjoint_pages_of_one_chunk_do_as_one)
{
    const struct shape shape = {.page_count = THREAD_PAGES, .rows = 3, .row_bytes = 12002, .row_gap = 6, .table = 2};
    const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, coded_modes[_i % 2]};
    struct worker workers[2];
    struct rng rng = rng_init(800);
    struct layout src, dst;
    struct verdict verdict;
    pthread_t threads[2];
    if (variant(_i / 2) == NULL)
        return;
    layout_init(&src, 2, &shape, 1, NULL, THREAD_PAGES);
    layout_mirror(&dst, &src);
    layout_fill(&src, &rng, PATTERN_RARE, codebook);
    uint8_t *chunk = encode_layout(variant(0), &asked, &src, &verdict);
    for (uint32_t k = 0; k < 2; k++) {
        workers[k] = (struct worker){variant(_i / 2), &asked, &src, &dst, chunk, verdict.result.bytes, k, false};
        ck_assert_int_eq(0, pthread_create(&threads[k], NULL, work, &workers[k]));
    }
    for (int k = 0; k < 2; k++) {
        pthread_join(threads[k], NULL);
        ck_assert(workers[k].good);
    }
    ck_assert_mem_eq(src.memory.bytes, dst.memory.bytes, src.memory.size);
    free(chunk);
    layout_fini(&src);
    layout_fini(&dst);
}
END_TEST

/* ---- All of it ------------------------------------------------------------------------------------------------- */

int main(void)
{
    Suite *suite = suite_create("codec_runs");
    TCase *counts = add_case(suite, "counts");
    TCase *buffers = add_case(suite, "buffers");
    TCase *threads = add_case(suite, "threads");
    print_conditions();
    tcase_add_checked_fixture(counts, setup, teardown);
    tcase_add_checked_fixture(buffers, setup, teardown);
    tcase_add_checked_fixture(threads, setup, teardown);
    tcase_add_loop_test(counts, statistics_count_values_and_escapes_per_table, 0, COUNT(coded_modes));
    tcase_add_test(counts, statistics_are_added_to_and_tables_beyond_are_not_counted);
    tcase_add_test(counts, caching_changes_no_byte);
    tcase_add_loop_test(buffers, a_buffer_of_exactly_the_bound_is_enough_and_one_byte_less_is_not, 0,
                        COUNT(buffer_shapes));
    tcase_add_loop_test(buffers, chunks_may_lie_at_any_address, 0, VARIANTS);
    tcase_add_loop_test(buffers, scratch_of_the_caller_changes_no_byte, 0, VARIANTS);
    tcase_add_loop_test(threads, two_threads_on_disjoint_pages_of_one_chunk_do_as_one, 0, 2 * VARIANTS);
    return run_suite(suite);
}
