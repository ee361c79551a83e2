/* Pieces of the wire `peer` cover a message, in order, and fit into their slots. */
#include <check.h>

#include "collective/engine/peer_gpu.h"
#include "collective/engine/peer.h"
#include "tests/run_suite.h"
#include "tests/support.h"

static const char *const tunings[] = {NULL,
                                      "piece=32",
                                      "piece=64",
                                      "piece=128",
                                      "piece=1024",
                                      "piece=256,flat",
                                      "piece=64,bare=0",
                                      "bare=1",
                                      "direct,piece=1024",
                                      "piece=256,flat,bare=0"};

static void check_pieces(const struct peer_cut *cut, uint64_t bytes, const struct peer_tuning *tuning)
{
    const uint64_t slot = peer_slot_bytes(tuning);
    uint64_t at = 0;
    for (uint32_t i = 0; i < cut->pieces; i++) {
        const struct peer_piece piece = peer_piece_of(cut, i);
        ck_assert_uint_eq(piece.at, at);
        ck_assert_uint_ge(piece.pages, 1);
        ck_assert_uint_le((uint64_t)piece.pages * PEER_PAGE, tuning->piece);
        ck_assert_uint_eq(piece.bytes, (uint64_t)piece.pages * PEER_PAGE + piece.tail_bytes);
        ck_assert(piece.tail_bytes == 0 || i + 1 == cut->pieces);
        ck_assert_uint_le(piece.main_at + piece.main_bound, slot);
        ck_assert_uint_le(piece.room, piece.bare ? slot : piece.main_at + piece.main_bound);
        ck_assert_uint_ge(piece.room, piece.bare ? PEER_HEAD_BYTES + piece.bytes : piece.main_at);
        ck_assert_uint_ge(piece.main_at, PEER_HEAD_BYTES + piece.tail_bound);
        ck_assert_uint_eq(piece.main_at % 128 + piece.room % 128, 0);
        at += piece.bytes;
    }
    ck_assert_uint_eq(at, bytes);
}

START_TEST(pieces_cover_a_message)
{
    struct peer_tuning tuning;
    ck_assert(peer_tuning_of(&tuning, tunings[_i], 2));
    for (uint64_t pages = 1; pages < 3000; pages += pages < 100 ? 1 : 171)
        for (uint64_t more = 0; more < 3; more++) {
            struct peer_cut cut;
            const uint64_t count = pages * PEER_PAGE / 2 + more * 5461;
            ck_assert(peer_cut_of(&cut, COLL_BF16, count, &tuning));
            check_pieces(&cut, 2 * count, &tuning);
        }
}
END_TEST

START_TEST(less_than_a_page_is_no_message)
{
    struct peer_tuning tuning;
    struct peer_cut cut;
    ck_assert(peer_tuning_of(&tuning, NULL, 2));
    ck_assert(!peer_cut_of(&cut, COLL_BF16, PEER_PAGE / 2 - 1, &tuning));
    ck_assert(!peer_cut_of(&cut, COLL_BF16, 0, &tuning));
    ck_assert(!peer_cut_of(&cut, COLL_FP32, UINT64_MAX / 2, &tuning));
}
END_TEST

START_TEST(what_is_not_understood_changes_nothing)
{
    static const char *const bad[] = {"fast",      "piece",           "piece=",   "piece=0",
                                      "piece=64x", "kernel,blocks=0", "engine,,", "direct,encoders=4"};
    struct peer_tuning best, tuning;
    ck_assert(peer_tuning_of(&best, NULL, 2));
    ck_assert(!peer_tuning_of(&tuning, bad[_i], 2));
    ck_assert_mem_eq(&best, &tuning, sizeof(best));
}
END_TEST

/* What comes is only believed when it begins like that. */
START_TEST(chunks_begin_as_is_foreseen)
{
    static const enum strait_element elements[] = {STRAIT_ELEMENT_BF16, STRAIT_ELEMENT_FP16, STRAIT_ELEMENT_FP32};
    static _Alignas(16) uint8_t values[3 * PEER_PAGE], dst[4 * PEER_PAGE];
    static const uint32_t sizes[][2] = {{1, PEER_PAGE}, {3, PEER_PAGE}, {1, 16384}, {1, 16386}, {1, 4}};
    const uint32_t pages = sizes[_i % 5][0], bytes = sizes[_i % 5][1];
    const struct strait_region region = {
        .base = values, .page_stride = bytes, .row_stride = bytes, .page_count = pages, .rows = 1, .row_bytes = bytes};
    const struct strait_encode_params params = {sizeof(params), elements[_i / 5], STRAIT_MODE_BASE, NULL};
    const struct strait_run how = {.size = sizeof(how)};
    struct strait_result result;
    struct strait_chunk_info info;
    for (size_t i = 0; i < sizeof(values); i++)
        values[i] = (uint8_t)(i % 2 == 0 ? 7 * i + i / 251 : 0x3c + i % 3);
    const struct strait_encode_item item = {.src = {.regions = &region, .region_count = 1, .id_count = pages},
                                            .dst = dst,
                                            .dst_capacity = sizeof(dst),
                                            .result = &result};
    ck_assert_int_eq(strait_encode_batch(NULL, &params, &item, 1, &how), STRAIT_OK);
    ck_assert_int_eq(result.status, STRAIT_OK);
    const struct peer_chunk chunk = peer_chunk_of(elements[_i / 5], pages, bytes);
    ck_assert_mem_eq(chunk.begins, dst, sizeof(chunk.begins));
    ck_assert_int_eq(strait_chunk_info(dst, result.bytes, &info), STRAIT_OK);
    ck_assert_uint_eq(chunk.metadata_bytes, info.metadata_bytes);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coll_peer_plan");
    TCase *tests = add_case(suite, "peer plan");
    tcase_add_loop_test(tests, pieces_cover_a_message, 0, COUNT(tunings));
    tcase_add_test(tests, less_than_a_page_is_no_message);
    tcase_add_loop_test(tests, what_is_not_understood_changes_nothing, 0, 8);
    tcase_add_loop_test(tests, chunks_begin_as_is_foreseen, 0, 15);
    return run_suite(suite);
}
