/* Chunks that change during the call, as memory does that a peer may write to. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "tests/chunk_harness.h"
#include "tests/run_suite.h"

START_TEST(with_a_copy_of_the_metadata_that_of_the_chunk_is_not_looked_at)
{
    uint8_t metadata[METADATA];
    struct verdict verdict;
    memcpy(metadata, chunk, METADATA);
    memset(chunk, _i, METADATA);
    for (int v = 0; v < VARIANTS; v++) {
        if (variant(v) == NULL)
            continue;
        struct strait_run run = verdict_begin(&verdict);
        run.metadata = metadata;
        layout_clear(&dst);
        ck_assert_int_eq(STRAIT_OK, strait_decode(variant(v), codebook, &dst.pages, NULL, chunk, chunk_size, &run));
        ck_assert_int_eq(STRAIT_OK, verdict.result.status);
        ck_assert_mem_eq(src.memory.bytes, dst.memory.bytes, src.memory.size);
        ck_assert_int_eq(STRAIT_OK, strait_verify(variant(v), codebook, chunk, chunk_size, &run));
        ck_assert_int_eq(STRAIT_OK, verdict.result.status);
    }
}
END_TEST

static const struct shape busy_shape = {
    .page_count = 3, .rows = 1, .row_bytes = 16384 + 4001, .page_gap = 1, .table = 4};

/* Writes to the blocks of the chunk until it is told to stop. */
struct meddler {
    uint8_t *blocks;
    size_t size;
    atomic_bool stop;
};

static void *meddle(void *arg)
{
    struct meddler *meddler = arg;
    struct rng rng = rng_init(600);
    while (!atomic_load(&meddler->stop)) {
        uint64_t random = rng_next(&rng);
        volatile uint8_t *byte = meddler->blocks + random % meddler->size;
        uint8_t before = *byte;
        *byte ^= (uint8_t)(random >> 56 | 1);
        for (int wait = 0; wait < 20; wait++) /* or nobody would see it */
            rng_next(&rng);
        *byte = before;
    }
    return NULL;
}

/* Pages that passed are what was encoded. */
static void check_passed(const struct verdict *verdict)
{
    static uint8_t a[16384 + 4001], b[16384 + 4001];
    for (uint32_t p = 0; p < layout_count(&dst); p++) {
        layout_read(&src, p, a);
        layout_read(&dst, p, b);
        ck_assert(verdict->page_status[p] != STRAIT_OK || memcmp(a, b, sizeof(a)) == 0);
    }
}

static const enum strait_mode busy_modes[] = {STRAIT_MODE_RAW, STRAIT_MODE_TOP16, STRAIT_MODE_TIERED};

START_TEST(blocks_that_change_during_the_call_fail_or_are_what_was_encoded)
{
    struct meddler meddler = {.stop = false};
    struct verdict verdict;
    struct rng rng = rng_init(601);
    pthread_t thread;
    if (variant(_i % VARIANTS) == NULL)
        return;
    setup_pages(&busy_shape);
    layout_fill(&src, &rng, PATTERN_RARE, codebook);
    encode_chunk(busy_modes[_i / VARIANTS]);
    uint8_t *bytes = room.bytes + room.size - chunk_size;
    memcpy(bytes, chunk, chunk_size);
    meddler.blocks = bytes + 16 * (load_le32(bytes + 48) >> 4);
    meddler.size = (size_t)(room.bytes + room.size - meddler.blocks);
    ck_assert_int_eq(0, pthread_create(&thread, NULL, meddle, &meddler));
    for (int k = 0; k < 2000; k++) {
        layout_clear(&dst);
        decode_layout(variant(_i % VARIANTS), codebook, &dst, NULL, bytes, chunk_size, &verdict);
        ck_assert_int_eq(STRAIT_OK, verdict.result.chunk_status);
        ck_assert(layout_intact(&dst));
        check_passed(&verdict);
    }
    atomic_store(&meddler.stop, true);
    pthread_join(thread, NULL);
    teardown();
}
END_TEST

/* ---- All of it ------------------------------------------------------------------------------------------------- */

int main(void)
{
    Suite *suite = suite_create("chunk_changing");
    TCase *change = add_case(suite, "changing"), *busy = add_case(suite, "busy");
    print_conditions();
    tcase_add_checked_fixture(change, setup, teardown);
    tcase_add_loop_test(change, with_a_copy_of_the_metadata_that_of_the_chunk_is_not_looked_at, 0, 2);
    tcase_add_loop_test(busy, blocks_that_change_during_the_call_fail_or_are_what_was_encoded, 0,
                        COUNT(busy_modes) * VARIANTS);
    return run_suite(suite);
}
