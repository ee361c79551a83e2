/* Jobs that encode and decode, on workers and in place: pages come back, and hostile chunks do no harm. */
#include "tests/memory/job_harness.h"

#include <pthread.h>

static const enum strait_mode modes[] = {STRAIT_MODE_AUTO, STRAIT_MODE_RAW, STRAIT_MODE_TOP16, STRAIT_MODE_TIERED};

/* ---- Encode and decode ------------------------------------------------------------------------------------------- */

START_TEST(pages_come_back_at_other_places_and_nothing_else_is_written)
{
    struct rng rng = rng_init((uint64_t)_i);
    struct world a, b;
    open_worlds(&a, &b);
    jobs_open(codebook, _i % 2 == 0 ? 0 : UINT64_MAX); /* on workers, in place */
    for (int p = 0; p < COUNT(pieces); p++)
        for (int pattern = 0; pattern < PATTERNS; pattern++) {
            const struct piece *piece = &pieces[p];
            fill_pages(&a, piece, ids_there, &rng, (enum pattern)pattern);
            struct job_result out = encode(&a, piece, ids_there, modes[_i / 2], chunk, sizeof(chunk));
            ck_assert_int_eq(out.reason, STRAIT_REASON_NONE);
            struct job_result in = decode(&b, piece, ids_here, chunk, out.bytes);
            ck_assert_int_eq(in.reason, STRAIT_REASON_NONE);
            ck_assert_uint_eq(out.raw_bytes, raw_bytes(piece));
            ck_assert_uint_eq(in.raw_bytes, raw_bytes(piece));
            ck_assert_uint_eq(in.bytes, raw_bytes(piece));
            ck_assert_mem_eq(in.values, out.values, sizeof(in.values));
            ck_assert_uint_eq(in.escapes, out.escapes);
            ck_assert_uint_eq(in.coded_values, out.coded_values);
            ck_assert_uint_gt(out.nanoseconds, 0);
            arrived(&a, ids_there, &b, ids_here, piece);
            ck_assert(only_pages_touched(&b, piece, ids_here));
            ck_assert(only_pages_touched(&a, piece, ids_there));
        }
    jobs_close();
    world_close(&a);
    world_close(&b);
}
END_TEST

START_TEST(statistics_are_those_of_the_codec)
{
    struct rng rng = rng_init(9);
    struct world a, b;
    open_worlds(&a, &b);
    jobs_open(codebook, 0);
    fill_pages(&a, &pieces[0], ids_there, &rng, PATTERN_RARE);
    struct job_result out = encode(&a, &pieces[0], ids_there, STRAIT_MODE_TOP16, chunk, sizeof(chunk));
    struct strait_class_stats stats[TEST_TABLES] = {{0, 0}};
    uint64_t values = 0, escapes = 0;
    struct strait_result result;
    struct strait_run run = {.size = sizeof(run), .result = &result, .class_count = TEST_TABLES, .class_stats = stats};
    ck_assert_int_eq(strait_verify(NULL, codebook, chunk, out.bytes, &run), STRAIT_OK);
    ck_assert_int_eq(result.status, STRAIT_OK);
    for (int t = 0; t < TEST_TABLES; t++) {
        values += stats[t].values;
        escapes += stats[t].escapes;
    }
    ck_assert_uint_gt(escapes, 0);
    ck_assert_uint_eq(out.escapes, escapes);
    ck_assert_uint_eq(out.coded_values, values);
    ck_assert_mem_eq(out.values, result.values, sizeof(out.values));
    jobs_close();
    world_close(&a);
    world_close(&b);
}
END_TEST

START_TEST(a_raw_chunk_names_no_codebook_and_is_read_without_one)
{
    static const uint8_t none[STRAIT_CODEBOOK_ID_BYTES];
    const struct strait_class classes[2] = {{0}, {STRAIT_ROLE_K, 0}};
    uint8_t rankings[2][256];
    struct rng rng = rng_init(10);
    struct strait_chunk_info info;
    struct world a, b;
    test_ranking(rankings[0], 1);
    test_ranking(rankings[1], 2);
    strait_codebook_destroy(codebook);
    ck_assert_int_eq(strait_codebook_create((const uint8_t(*)[256])rankings, classes, 2, &codebook), STRAIT_OK);
    open_worlds(&a, &b);
    ck_assert_uint_eq(a.pool->groups[0].regions[0].table, 1); /* which no raw chunk may name */
    fill_pages(&a, &pieces[0], ids_there, &rng, PATTERN_FALLING);
    for (int set = 0; set < 2; set++) { /* RAW with a codebook; TIERED without */
        jobs_open(set == 0 ? codebook : no_codebook, 0);
        struct job_result out =
            encode(&a, &pieces[0], ids_there, set == 0 ? STRAIT_MODE_RAW : STRAIT_MODE_TIERED, chunk, sizeof(chunk));
        jobs_close();
        ck_assert_int_eq(out.reason, STRAIT_REASON_NONE);
        ck_assert_uint_eq(out.coded_values, 0);
        ck_assert_int_eq(strait_chunk_info(chunk, out.bytes, &info), STRAIT_OK);
        ck_assert_mem_eq(info.codebook_id, none, sizeof(none));
        jobs_open(no_codebook, 0);
        ck_assert_int_eq(decode(&b, &pieces[0], ids_here, chunk, out.bytes).reason, STRAIT_REASON_NONE);
        arrived(&a, ids_there, &b, ids_here, &pieces[0]);
        jobs_close();
    }
    world_close(&a);
    world_close(&b);
}
END_TEST

START_TEST(a_chunk_of_another_codebook_is_refused_and_nothing_is_written)
{
    struct rng rng = rng_init(11);
    struct world a, b;
    uint8_t ranking[1][256];
    struct strait_codebook *other;
    test_ranking(ranking[0], 4);
    ck_assert_int_eq(strait_codebook_create((const uint8_t(*)[256])ranking, NULL, 1, &other), STRAIT_OK);
    open_worlds(&a, &b);
    fill_pages(&a, &pieces[0], ids_there, &rng, PATTERN_FALLING);
    jobs_open(codebook, 0);
    struct job_result out = encode(&a, &pieces[0], ids_there, STRAIT_MODE_TIERED, chunk, sizeof(chunk));
    jobs_close();
    for (int set = 0; set < 2; set++) {
        jobs_open(set == 0 ? other : no_codebook, 0);
        ck_assert_int_eq(decode(&b, &pieces[0], ids_here, chunk, out.bytes).reason, STRAIT_REASON_CODEC);
        ck_assert(is_filled(b.memory, b.size, CANARY));
        jobs_close();
    }
    strait_codebook_destroy(other);
    world_close(&a);
    world_close(&b);
}
END_TEST

START_TEST(a_chunk_that_does_not_fit_its_slot_is_not_written)
{
    struct world a, b;
    open_worlds(&a, &b);
    jobs_open(codebook, 0);
    struct job_result out = encode(&a, &pieces[0], ids_there, STRAIT_MODE_AUTO, chunk, raw_bytes(&pieces[0]));
    ck_assert_int_eq(out.reason, STRAIT_REASON_GEOMETRY);
    ck_assert_uint_eq(out.bytes, 0);
    jobs_close();
    world_close(&a);
    world_close(&b);
}
END_TEST

/* ---- Hostile chunks ---------------------------------------------------------------------------------------------- */

START_TEST(a_chunk_of_other_pages_is_refused_and_nothing_is_written)
{
    struct world a, b;
    open_worlds(&a, &b);
    jobs_open(codebook, _i == 1 ? UINT64_MAX : 0);
    struct job_result out = make_chunk(&a, 0, STRAIT_MODE_TIERED);
    struct piece others[] = {pieces[0], pieces[0], pieces[0], {.group = 1, .region_count = 2, .count = 7}};
    others[0].count--;
    others[1].region_count--;
    others[2].count = 1;
    for (int i = 0; i < COUNT(others); i++)
        ck_assert_int_eq(decode(&b, &others[i], ids_here, chunk, out.bytes).reason, STRAIT_REASON_CODEC);
    const struct piece four = {.group = 1, .region_count = 2, .count = 2}; /* as many pages, of another size */
    out = encode(&a, &(struct piece){.group = 0, .region_count = 4, .count = 1}, ids_there, STRAIT_MODE_RAW, chunk,
                 sizeof(chunk));
    ck_assert_int_eq(decode(&b, &four, ids_here, chunk, out.bytes).reason, STRAIT_REASON_CODEC);
    const struct piece bytes = {.group = 2, .region_count = 1, .count = 4}; /* and of another element */
    ck_assert_int_eq(decode(&b, &bytes, ids_here, chunk, out.bytes).reason, STRAIT_REASON_CODEC);
    ck_assert(is_filled(b.memory, b.size, CANARY));
    jobs_close();
    world_close(&a);
    world_close(&b);
}
END_TEST

START_TEST(equal_bytes_of_another_element_type_are_refused)
{
    struct wire_region region = with_rows(region_of(0, 0, STRAIT_ROLE_K, 0), 1, 4096, 0, 4096, STRAIT_ELEMENT_BF16);
    const struct piece piece = {.region_count = 1, .count = 3};
    struct world a, b;
    world_open(&a, &region, 1, ROOM);
    region.element = STRAIT_ELEMENT_FP16;
    world_open(&b, &region, 1, ROOM);
    jobs_open(no_codebook, 0);
    struct job_result out = encode(&a, &piece, ids_there, STRAIT_MODE_RAW, chunk, sizeof(chunk));
    ck_assert_int_eq(decode(&b, &piece, ids_here, chunk, out.bytes).reason, STRAIT_REASON_CODEC);
    ck_assert_int_eq(decode(&a, &piece, ids_here, chunk, out.bytes).reason, STRAIT_REASON_NONE);
    jobs_close();
    world_close(&a);
    world_close(&b);
}
END_TEST

START_TEST(a_chunk_cut_short_is_refused_and_its_end_is_not_read)
{
    struct world a, b;
    open_worlds(&a, &b);
    jobs_open(codebook, UINT64_MAX);
    struct job_result out = make_chunk(&a, 2, STRAIT_MODE_TIERED);
    for (uint64_t size = 0; size < out.bytes; size += size < 400 ? 1 : 97) {
        struct guarded cut;
        guarded_init(&cut, size);
        memcpy(cut.bytes, chunk, size);
        ck_assert_int_eq(decode(&b, &pieces[2], ids_here, cut.bytes, size).reason, STRAIT_REASON_CODEC);
        guarded_fini(&cut);
    }
    ck_assert_int_eq(decode(&b, &pieces[2], ids_here, chunk, out.bytes + 16).reason, STRAIT_REASON_CODEC);
    ck_assert(is_filled(b.memory, b.size, CANARY));
    jobs_close();
    world_close(&a);
    world_close(&b);
}
END_TEST

START_TEST(a_damaged_chunk_fails_and_only_its_pages_are_touched)
{
    struct rng rng = rng_init(21);
    struct world a, b;
    open_worlds(&a, &b);
    jobs_open(codebook, UINT64_MAX);
    struct job_result out = make_chunk(&a, 4, modes[_i]);
    int integrity = 0, codec = 0;
    for (uint64_t bit = 0; bit < 8 * out.bytes; bit += (bit < 8 * 128 ? 1 : 1 + rng_below(&rng, 5000)) * STRIDE) {
        chunk[bit / 8] ^= (uint8_t)(1u << bit % 8);
        enum strait_reason reason = decode(&b, &pieces[4], ids_here, chunk, out.bytes).reason;
        ck_assert_msg(reason == STRAIT_REASON_CODEC || reason == STRAIT_REASON_INTEGRITY, "bit %llu: reason %d",
                      (unsigned long long)bit, reason);
        integrity += reason == STRAIT_REASON_INTEGRITY;
        codec += reason == STRAIT_REASON_CODEC;
        chunk[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    ck_assert_int_gt(integrity, 0);
    ck_assert_int_gt(codec, 0);
    ck_assert(only_pages_touched(&b, &pieces[4], ids_here));
    ck_assert_int_eq(decode(&b, &pieces[4], ids_here, chunk, out.bytes).reason, STRAIT_REASON_NONE);
    arrived(&a, ids_there, &b, ids_here, &pieces[4]);
    jobs_close();
    world_close(&a);
    world_close(&b);
}
END_TEST

#if !defined(__SANITIZE_THREAD__) /* the race is the point, and what the decoder is made to bear */

struct vandal {
    uint64_t size;
    int stop;
};

/* Flips bytes, mostly of the metadata, and puts them back. */
static void *vandalise(void *arg)
{
    struct vandal *vandal = arg;
    struct rng rng = rng_init(22);
    while (!__atomic_load_n(&vandal->stop, __ATOMIC_RELAXED)) {
        uint64_t at = rng_below(&rng, (uint32_t)(rng_below(&rng, 4) == 0 ? vandal->size : 256));
        uint8_t with = (uint8_t)(1 + rng_below(&rng, 255));
        __atomic_fetch_xor(&chunk[at], with, __ATOMIC_RELAXED);
        for (uint32_t i = rng_below(&rng, 2000); i > 0; i--)
            __atomic_load_n(&vandal->stop, __ATOMIC_RELAXED);
        __atomic_fetch_xor(&chunk[at], with, __ATOMIC_RELAXED);
    }
    return NULL;
}

START_TEST(a_chunk_that_changes_under_the_decoder_harms_no_other_page)
{
    struct world a, b;
    pthread_t thread;
    open_worlds(&a, &b);
    jobs_open(codebook, UINT64_MAX);
    struct vandal vandal = {.size = make_chunk(&a, 3, modes[_i]).bytes};
    int failed = 0;
    ck_assert_int_eq(pthread_create(&thread, NULL, vandalise, &vandal), 0);
    for (int i = 0; i < 600; i++) {
        enum strait_reason reason = decode(&b, &pieces[3], ids_here, chunk, vandal.size).reason;
        ck_assert(reason == STRAIT_REASON_NONE || reason == STRAIT_REASON_CODEC || reason == STRAIT_REASON_INTEGRITY);
        failed += reason != STRAIT_REASON_NONE;
        if (reason == STRAIT_REASON_NONE)
            arrived(&a, ids_there, &b, ids_here, &pieces[3]);
    }
    __atomic_store_n(&vandal.stop, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    ck_assert_int_gt(failed, 0);
    ck_assert(only_pages_touched(&b, &pieces[3], ids_here));
    jobs_close();
    world_close(&a);
    world_close(&b);
}
END_TEST
#endif

int main(void)
{
    TCase *tcase = job_case();
    tcase_add_loop_test(tcase, pages_come_back_at_other_places_and_nothing_else_is_written, 0, 2 * COUNT(modes));
    tcase_add_test(tcase, statistics_are_those_of_the_codec);
    tcase_add_test(tcase, a_raw_chunk_names_no_codebook_and_is_read_without_one);
    tcase_add_test(tcase, a_chunk_of_another_codebook_is_refused_and_nothing_is_written);
    tcase_add_test(tcase, a_chunk_that_does_not_fit_its_slot_is_not_written);
    tcase_add_loop_test(tcase, a_chunk_of_other_pages_is_refused_and_nothing_is_written, 0, 2);
    tcase_add_test(tcase, equal_bytes_of_another_element_type_are_refused);
    tcase_add_test(tcase, a_chunk_cut_short_is_refused_and_its_end_is_not_read);
    tcase_add_loop_test(tcase, a_damaged_chunk_fails_and_only_its_pages_are_touched, 0, COUNT(modes));
#if !defined(__SANITIZE_THREAD__)
    tcase_add_loop_test(tcase, a_chunk_that_changes_under_the_decoder_harms_no_other_page, 1, COUNT(modes));
#endif
    return job_main("job_chunks", tcase);
}
