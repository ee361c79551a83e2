/* Jobs: copies, what makes no job, who is told, and when. */
#include "tests/memory/job_harness.h"

#include <pthread.h>

#include "daemon/memory/job.h"

/* ---- Copy -------------------------------------------------------------------------------------------------------- */

START_TEST(pages_are_copied_whatever_their_rows_and_nothing_else_is_written)
{
    struct rng rng = rng_init(30);
    struct world a, b;
    open_worlds(&a, &b);
    jobs_open(no_codebook, _i == 0 ? 0 : UINT64_MAX);
    for (int p = 0; p < COUNT(pieces); p++) {
        fill_pages(&a, &pieces[p], ids_there, &rng, PATTERN_NOISE);
        struct job_result result = copy(&a, ids_there, &b, ids_here, &pieces[p]);
        ck_assert_int_eq(result.reason, STRAIT_REASON_NONE);
        ck_assert_uint_eq(result.bytes, raw_bytes(&pieces[p]));
        ck_assert_uint_eq(result.raw_bytes, raw_bytes(&pieces[p]));
        arrived(&a, ids_there, &b, ids_here, &pieces[p]);
        ck_assert(only_pages_touched(&b, &pieces[p], ids_here));
        ck_assert(only_pages_touched(&a, &pieces[p], ids_there));
    }
    jobs_close();
    world_close(&a);
    world_close(&b);
}
END_TEST

/* Pieces large enough for stores past the caches: pages of odd sizes at odd places, with and without rows. */
START_TEST(large_pieces_are_copied_to_the_byte)
{
    const uint32_t rows = _i == 0 ? 1 : 37, row_bytes = _i == 0 ? 98765 : 2669;
    const struct piece piece = {.region_count = 1, .count = 24};
    struct wire_region there =
        with_rows(region_of(0, 0, STRAIT_ROLE_K, 3), rows, row_bytes, row_bytes + 5, 200001, STRAIT_ELEMENT_BYTES);
    struct wire_region here = with_rows(region_of(0, 0, STRAIT_ROLE_K, 61), rows, row_bytes, row_bytes + (uint64_t)_i,
                                        (uint64_t)rows * (row_bytes + (uint64_t)_i) + 1, STRAIT_ELEMENT_BYTES);
    struct rng rng = rng_init(31);
    struct world a, b;
    uint32_t from[24], to[24];
    for (uint32_t i = 0; i < 24; i++) {
        from[i] = i * 7 % 24;
        to[i] = i * 11 % 24;
    }
    world_open(&a, &there, 1, BIG_ROOM);
    world_open(&b, &here, 1, BIG_ROOM);
    jobs_open(no_codebook, 1 << 16);
    fill_pages(&a, &piece, from, &rng, PATTERN_NOISE);
    ck_assert_int_eq(copy(&a, from, &b, to, &piece).reason, STRAIT_REASON_NONE);
    arrived(&a, from, &b, to, &piece);
    ck_assert(only_pages_touched(&b, &piece, to));
    jobs_close();
    world_close(&a);
    world_close(&b);
}
END_TEST

START_TEST(pages_are_copied_within_one_pool_and_onto_themselves)
{
    const uint32_t same[] = {2}, from[] = {4, 5, 6}, to[] = {14, 15, 2};
    const struct piece three = {.group = 1, .region_count = 2, .count = 3},
                       one = {.group = 1, .region_count = 2, .count = 1};
    struct rng rng = rng_init(32);
    struct world a, b;
    open_worlds(&a, &b);
    jobs_open(no_codebook, 0);
    fill_pages(&a, &three, from, &rng, PATTERN_NOISE);
    ck_assert_int_eq(copy(&a, from, &a, to, &three).reason, STRAIT_REASON_NONE);
    arrived(&a, from, &a, to, &three);
    ck_assert_int_eq(copy(&a, same, &a, same, &one).reason, STRAIT_REASON_NONE);
    arrived(&a, from, &a, to, &three);
    jobs_close();
    world_close(&a);
    world_close(&b);
}
END_TEST

START_TEST(streamed_copies_are_memcpy_at_every_offset_and_size)
{
    uint8_t src[600], dst[600], expected[600];
    struct rng rng = rng_init(33);
    rng_fill(&rng, src, sizeof(src));
    for (size_t to = 0; to < 64; to++)
        for (size_t size = 0; size < 330; size += STRIDE) {
            size_t from = rng_below(&rng, 64);
            memset(dst, CANARY, sizeof(dst));
            memset(expected, CANARY, sizeof(expected));
            memcpy(expected + to, src + from, size);
            stream_copy(dst + to, src + from, size);
            stream_flush();
            ck_assert_mem_eq(dst, expected, sizeof(dst));
        }
}
END_TEST

/* ---- Pieces that are none ---------------------------------------------------------------------------------------- */

START_TEST(a_piece_that_is_none_of_the_pools_makes_no_job)
{
    static const struct piece none[] = {
        {.group = 3, .region_count = 1, .count = 1},
        {.group = UINT32_MAX, .region_count = 1, .count = 1},
        {.group = 0, .region_count = 0, .count = 1},
        {.group = 0, .region_count = 1, .count = 0},
        {.group = 0, .region_count = 5, .count = 1},
        {.group = 0, .region_first = 3, .region_count = 2, .count = 1},
        {.group = 0, .region_first = UINT32_MAX, .region_count = 2, .count = 1},
    };
    const uint32_t beyond[] = {1, PAGES};
    const struct piece two = {.group = 0, .region_count = 1, .count = 2};
    struct told told = {0};
    struct world a, b;
    open_worlds(&a, &b);
    jobs_open(codebook, 0);
    for (int i = 0; i <= COUNT(none); i++) {
        const struct piece *piece = i < COUNT(none) ? &none[i] : &two;
        const uint32_t *ids = i < COUNT(none) ? ids_here : beyond;
        ck_assert_int_eq(
            job_encode(jobs, a.pool, piece, ids, STRAIT_MODE_AUTO, CHUNK(chunk, sizeof(chunk)), on_told, &told, 0),
            STRAIT_ERR_INVALID);
        ck_assert_int_eq(job_decode(jobs, a.pool, piece, ids, CHUNK(chunk, sizeof(chunk)), on_told, &told, 0),
                         STRAIT_ERR_INVALID);
        ck_assert_int_eq(job_copy(jobs, a.pool, ids, b.pool, ids_here, piece, on_told, &told, 0), STRAIT_ERR_INVALID);
        ck_assert_int_eq(job_copy(jobs, a.pool, ids_here, b.pool, ids, piece, on_told, &told, 0), STRAIT_ERR_INVALID);
    }
    ck_assert_uint_eq(jobs_running(jobs), 0);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(told.count, 0);
    jobs_close();
    world_close(&a);
    world_close(&b);
}
END_TEST

START_TEST(pages_of_another_size_are_not_copied)
{
    struct wire_region region = with_rows(region_of(0, 0, STRAIT_ROLE_K, 0), 2, 64, 64, 128, STRAIT_ELEMENT_BF16);
    const struct piece piece = {.region_count = 1, .count = 1};
    struct told told = {0};
    struct world a, b;
    world_open(&a, &region, 1, ROOM);
    region.rows = 1;
    world_open(&b, &region, 1, ROOM);
    jobs_open(codebook, 0);
    ck_assert_int_eq(job_copy(jobs, a.pool, ids_here, b.pool, ids_here, &piece, on_told, &told, 0), STRAIT_ERR_INVALID);
    jobs_close();
    world_close(&a);
    world_close(&b);
}
END_TEST

/* ---- When it is told --------------------------------------------------------------------------------------------- */

static void on_timer(uv_timer_t *timer)
{
    *(bool *)timer->data = true;
}

static void on_closed(uv_handle_t *handle)
{
    (void)handle;
}

START_TEST(small_jobs_are_told_of_in_the_next_turn_which_does_not_wait)
{
    struct told told = {0};
    bool waited = false;
    uv_timer_t timer;
    struct world a, b;
    open_worlds(&a, &b);
    jobs_open(codebook, raw_bytes(&pieces[0]));
    uv_timer_init(&loop, &timer);
    timer.data = &waited;
    uv_timer_start(&timer, on_timer, 60000, 0);
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(job_encode(jobs, a.pool, &pieces[0], ids_there, STRAIT_MODE_RAW, CHUNK(chunk, sizeof(chunk)),
                                    on_told, &told, (uint64_t)i),
                         STRAIT_OK);
    ck_assert_int_eq(told.count, 0);
    ck_assert_uint_eq(jobs_running(jobs), 5);
    uv_run(&loop, UV_RUN_ONCE);
    ck_assert_int_eq(told.count, 5);
    ck_assert_uint_eq(told.cookie, 4); /* in their order */
    ck_assert(!waited);
    uv_close((uv_handle_t *)&timer, on_closed);
    jobs_close();
    world_close(&a);
    world_close(&b);
}
END_TEST

struct chain {
    struct world *world;
    int left, inside;
};

static void on_link(void *owner, uint64_t cookie, const struct job_result *result)
{
    struct chain *chain = owner;
    ck_assert_int_eq(chain->inside++, 0);
    ck_assert_uint_eq(cookie, (uint64_t)chain->left);
    ck_assert_int_eq(result->reason, STRAIT_REASON_NONE);
    if (--chain->left > 0)
        ck_assert_int_eq(job_encode(jobs, chain->world->pool, &pieces[chain->left % 2], ids_there, STRAIT_MODE_AUTO,
                                    CHUNK(chunk, sizeof(chunk)), on_link, chain, (uint64_t)chain->left),
                         STRAIT_OK);
    else
        jobs_destroy(jobs); /* the last job: none is left */
    chain->inside--;
}

START_TEST(callbacks_may_start_jobs_and_the_last_one_may_end_them)
{
    struct world a, b;
    struct chain chain = {.world = &a, .left = 50};
    open_worlds(&a, &b);
    const uint64_t small[] = {0, UINT64_MAX, raw_bytes(&pieces[1])}; /* workers, in place, by turns */
    jobs_open(codebook, small[_i]);
    ck_assert_int_eq(job_encode(jobs, a.pool, &pieces[0], ids_there, STRAIT_MODE_AUTO, CHUNK(chunk, sizeof(chunk)),
                                on_link, &chain, 50),
                     STRAIT_OK);
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_eq(chain.left, 0);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    world_close(&a);
    world_close(&b);
}
END_TEST

START_TEST(ids_are_the_jobs_own)
{
    uint32_t ids[7];
    struct told told = {0};
    struct world a, b;
    struct piece piece = pieces[0];
    open_worlds(&a, &b);
    jobs_open(codebook, 0);
    struct job_result out = make_chunk(&a, 0, STRAIT_MODE_RAW);
    memcpy(ids, ids_here, sizeof(ids));
    ck_assert_int_eq(job_decode(jobs, b.pool, &piece, ids, CHUNK(chunk, out.bytes), on_told, &told, 0), STRAIT_OK);
    memset(ids, 0xFF, sizeof(ids));
    memset(&piece, 0xFF, sizeof(piece));
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(told.result.reason, STRAIT_REASON_NONE);
    arrived(&a, ids_there, &b, ids_here, &pieces[0]);
    jobs_close();
    world_close(&a);
    world_close(&b);
}
END_TEST

/* ---- Many at once ------------------------------------------------------------------------------------------------ */

START_TEST(jobs_run_side_by_side)
{
    enum { MANY = 64 };
    static uint8_t chunks[MANY][40000];
    struct told told[MANY], in[MANY];
    struct rng rng = rng_init(40);
    const struct piece piece = {.group = 0, .region_count = 4, .count = 1};
    const struct piece all = {.group = 0, .region_count = 4, .count = PAGES};
    uint32_t ids[PAGES];
    struct world a, b;
    for (uint32_t i = 0; i < PAGES; i++)
        ids[i] = i;
    memset(told, 0, sizeof(told));
    memset(in, 0, sizeof(in));
    open_worlds(&a, &b);
    jobs_open(codebook, 0);
    fill_pages(&a, &all, ids, &rng, PATTERN_RARE);
    for (uint32_t i = 0; i < MANY; i++)
        ck_assert_int_eq(job_encode(jobs, a.pool, &piece, &ids[i % PAGES], STRAIT_MODE_TIERED,
                                    CHUNK(chunks[i], sizeof(chunks[i])), on_told, &told[i], i),
                         STRAIT_OK);
    ck_assert_uint_eq(jobs_running(jobs), MANY);
    uv_run(&loop, UV_RUN_DEFAULT);
    for (uint32_t i = 0; i < PAGES; i++)
        ck_assert_int_eq(
            job_decode(jobs, b.pool, &piece, &ids[i], CHUNK(chunks[i], told[i].result.bytes), on_told, &in[i], i),
            STRAIT_OK);
    uv_run(&loop, UV_RUN_DEFAULT);
    for (uint32_t i = 0; i < MANY; i++) {
        ck_assert_int_eq(told[i].count, 1);
        ck_assert_uint_eq(told[i].cookie, i);
        ck_assert_int_eq(in[i].count, i < PAGES);
        ck_assert_int_eq(in[i].result.reason, STRAIT_REASON_NONE);
    }
    arrived(&a, ids, &b, ids, &all);
    ck_assert(only_pages_touched(&b, &all, ids));
    jobs_close();
    world_close(&a);
    world_close(&b);
}
END_TEST

struct called {
    pthread_t worker, teller;
    int worked, done;
};

static void work_call(void *arg)
{
    struct called *called = arg;
    called->worker = pthread_self();
    called->worked++;
}

static void on_call(void *arg)
{
    struct called *called = arg;
    called->teller = pthread_self();
    ck_assert_int_eq(called->worked, 1);
    called->done++;
}

START_TEST(any_function_runs_on_a_worker_and_is_told_of_on_the_loop)
{
    struct called called = {.worked = 0};
    jobs_open(no_codebook, UINT64_MAX);
    ck_assert_int_eq(job_call(jobs, work_call, on_call, &called), STRAIT_OK);
    ck_assert_uint_eq(jobs_running(jobs), 1);
    ck_assert_int_eq(called.done, 0);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(called.done, 1);
    ck_assert(!pthread_equal(called.worker, pthread_self()));
    ck_assert(pthread_equal(called.teller, pthread_self()));
    jobs_close();
}
END_TEST

int main(void)
{
    TCase *tcase = job_case();
    tcase_add_loop_test(tcase, pages_are_copied_whatever_their_rows_and_nothing_else_is_written, 0, 2);
    tcase_add_loop_test(tcase, large_pieces_are_copied_to_the_byte, 0, 2);
    tcase_add_test(tcase, pages_are_copied_within_one_pool_and_onto_themselves);
    tcase_add_test(tcase, streamed_copies_are_memcpy_at_every_offset_and_size);
    tcase_add_test(tcase, a_piece_that_is_none_of_the_pools_makes_no_job);
    tcase_add_test(tcase, pages_of_another_size_are_not_copied);
    tcase_add_test(tcase, small_jobs_are_told_of_in_the_next_turn_which_does_not_wait);
    tcase_add_loop_test(tcase, callbacks_may_start_jobs_and_the_last_one_may_end_them, 0, 3);
    tcase_add_test(tcase, ids_are_the_jobs_own);
    tcase_add_test(tcase, jobs_run_side_by_side);
    tcase_add_test(tcase, any_function_runs_on_a_worker_and_is_told_of_on_the_loop);
    return job_main("job", tcase);
}
