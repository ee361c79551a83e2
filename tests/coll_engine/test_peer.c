/* The wire `peer`: what crosses, in which order, and what happens when it does not. That operations give what they give
 * without it, test_operations, test_groups and test_stress tell when it is asked for. */
#include <string.h>
#include <unistd.h>

#include "collective/engine/peer_gpu.h"
#include "collective/reduce.h"
#include "tests/coll_engine/harness.h"

enum { COUNT_OF = 500001, BYTES = COUNT_OF * 2, LEAST_MS = 500, PATIENCE_MS = 20000 };

/* Of a tuning that leaves bare or cross open, what is best is measured; most tests have better things to wait for. */
static void begin(const char *tuning)
{
    fake_gpu.jitter_us = 200;
    setenv("STRAIT_COLL", "compress", 1);
    setenv("STRAIT_COLL_WIRE", "peer", 1);
    setenv("STRAIT_COLL_PEER", tuning, 1);
}

static void require_by(const struct rank *rank, const char *operation, const char *reason)
{
    const struct told told = told_of(rank->comm, operation, "bf16");
    require(told.calls > 0 && strcmp(told.reason, reason) == 0);
}

/* ---- What crosses ------------------------------------------------------------------------------------------------ */

static void gather(struct rank *rank, unsigned turns, enum values kind)
{
    uint8_t *own = values_new(COLL_BF16, COUNT_OF, 0), *all = values_new(COLL_BF16, COUNT_OF * (size_t)rank->ranks, 0);
    for (unsigned turn = 0; turn < turns; turn++) {
        values_fill(own, COLL_BF16, COUNT_OF, kind, 100 * turn + (unsigned)rank->rank);
        require_ok(ncclAllGather(own, all, COUNT_OF, COLL_BF16, rank->comm, rank->stream));
        fake_stream_wait(rank->stream);
        for (unsigned from = 0; from < (unsigned)rank->ranks; from++)
            require(values_are(all + (size_t)from * BYTES, COLL_BF16, COUNT_OF, kind, 100 * turn + from));
    }
    values_free(own, COLL_BF16, 0);
    values_free(all, COLL_BF16, 0);
}

static void gather_kind(struct rank *rank)
{
    gather(rank, 3, *(const enum values *)rank->argument);
    require_by(rank, "all_gather", "the last: compressed, wire peer");
}

START_TEST(copy_engines_move_what_can_be_compressed)
{
    enum values kind = VALUES_NORMAL;
    begin("piece=128,bare=4");
    ranks_run(2 + _i, gather_kind, &kind);
    require(fake_gpu.pushed == 0 && fake_gpu.offered == 0);
}
END_TEST

START_TEST(kernels_push_what_is_longer)
{
    enum values kind = VALUES_NOISE;
    begin("piece=128,bare=4");
    ranks_run(2 + _i, gather_kind, &kind);
    require(fake_gpu.pushed > 0 && fake_gpu.offered == 0);
}
END_TEST

START_TEST(kernels_can_push_all)
{
    enum values kind = VALUES_NORMAL;
    begin("kernel,piece=64,bare=0,flat");
    ranks_run(2, gather_kind, &kind);
    require(fake_gpu.pushed > 3 * BYTES);
}
END_TEST

/* What one rank gets its encoder has stored there, but for what is the same for several. */
START_TEST(encoders_store_what_one_rank_gets)
{
    enum values kind = _i % 2 == 0 ? VALUES_NORMAL : VALUES_NOISE;
    begin("direct,piece=64,encoders=3");
    ranks_run(2 + _i / 2, gather_kind, &kind);
    require((fake_gpu.stored > 3 * BYTES) == (_i / 2 == 0) && fake_gpu.offered == 0);
}
END_TEST

/* To and from all others, block by block. */
static void exchange_blocks(struct rank *rank)
{
    const size_t ranks = (size_t)rank->ranks;
    uint8_t *out = values_new(COLL_BF16, COUNT_OF * ranks, 0), *in = values_new(COLL_BF16, COUNT_OF * ranks, 0);
    for (size_t to = 0; to < ranks; to++)
        values_fill(out + to * BYTES, COLL_BF16, COUNT_OF, VALUES_NORMAL, (unsigned)(100 * rank->rank) + (unsigned)to);
    for (unsigned turn = 0; turn < 3; turn++) {
        memset(in, 0, COUNT_OF * ranks * 2);
        require_ok(ncclAlltoAll(out, in, COUNT_OF, COLL_BF16, rank->comm, rank->stream));
        fake_stream_wait(rank->stream);
        for (unsigned from = 0; from < ranks; from++)
            require(
                values_are(in + from * BYTES, COLL_BF16, COUNT_OF, VALUES_NORMAL, 100 * from + (unsigned)rank->rank));
    }
    require_by(rank, "all_to_all", "the last: compressed, wire peer");
    values_free(out, COLL_BF16, 0);
    values_free(in, COLL_BF16, 0);
}

START_TEST(encoders_store_what_each_rank_gets)
{
    begin("direct,piece=64");
    ranks_run(2 + _i, exchange_blocks, NULL);
    require(fake_gpu.stored > 2 * BYTES && fake_gpu.pushed == 0);
}
END_TEST

/* Sums of any number of ranks are those that are specified, the same on all. */
static void sum_all(struct rank *rank)
{
    const bool in_place = rank->ranks % 2 == 1;
    uint8_t *out = values_new(COLL_BF16, COUNT_OF, 0), *sum = values_new(COLL_BF16, COUNT_OF, 0);
    uint8_t *in = in_place ? out : values_new(COLL_BF16, COUNT_OF, 0);
    for (unsigned turn = 0; turn < 3; turn++) {
        struct coll_reduce reduce = {.type = COLL_REDUCE_BF16,
                                     .operation = turn == 1 ? COLL_REDUCE_AVG : COLL_REDUCE_SUM,
                                     .sources = (uint32_t)rank->ranks,
                                     .dst = sum,
                                     .count = COUNT_OF};
        void *from[8];
        for (int i = 0; i < rank->ranks; i++) {
            reduce.source[i] = from[i] = values_new(COLL_BF16, COUNT_OF, 0);
            values_fill(from[i], COLL_BF16, COUNT_OF, VALUES_NORMAL, 100 * turn + (unsigned)i);
        }
        memcpy(out, from[rank->rank], BYTES);
        require(coll_reduce_scalar(&reduce) == STRAIT_OK);
        require_ok(
            ncclAllReduce(out, in, COUNT_OF, COLL_BF16, turn == 1 ? COLL_AVG : COLL_SUM, rank->comm, rank->stream));
        fake_stream_wait(rank->stream);
        require(memcmp(in, sum, BYTES) == 0);
        for (int i = 0; i < rank->ranks; i++)
            values_free(from[i], COLL_BF16, 0);
    }
    require_by(rank, "all_reduce", "the last: compressed, wire peer");
    if (!in_place)
        values_free(in, COLL_BF16, 0);
    values_free(out, COLL_BF16, 0);
    values_free(sum, COLL_BF16, 0);
}

START_TEST(sums_are_those_that_are_specified)
{
    begin(_i / 3 == 0 ? "piece=64,bare=4,cross=2" : "direct,piece=64");
    ranks_run(2 + _i % 3, sum_all, NULL);
}
END_TEST

/* ---- Order ------------------------------------------------------------------------------------------------------- */

/* Straight operations on one stream and a graph on another one, which is launched again and again, take turns as they
 * are launched: on all ranks the same order, whatever each of them is slow at. */
static void take_turns(struct rank *rank)
{
    enum { TURNS = 12 };
    const coll_stream beside = fake_stream_make();
    uint8_t *own = values_new(COLL_BF16, COUNT_OF, 0), *all = values_new(COLL_BF16, 2 * COUNT_OF, 0);
    uint8_t *graph_own = values_new(COLL_BF16, COUNT_OF, 0), *graph_all = values_new(COLL_BF16, 2 * COUNT_OF, 0);
    values_fill(own, COLL_BF16, COUNT_OF, VALUES_NORMAL, (unsigned)rank->rank);
    values_fill(graph_own, COLL_BF16, COUNT_OF, VALUES_NOISE, 10 + (unsigned)rank->rank);
    fake_capture_begin(beside);
    require_ok(ncclAllGather(graph_own, graph_all, COUNT_OF, COLL_BF16, rank->comm, beside));
    require_ok(ncclAllGather(graph_own, graph_all, COUNT_OF, COLL_BF16, rank->comm, beside));
    struct fake_graph *graph = fake_capture_end(beside);
    for (unsigned turn = 0; turn < TURNS; turn++) {
        require_ok(ncclAllGather(own, all, COUNT_OF, COLL_BF16, rank->comm, rank->stream));
        fake_graph_launch(graph, beside);
    }
    fake_stream_wait(rank->stream);
    fake_stream_wait(beside);
    for (unsigned from = 0; from < 2; from++) {
        require(values_are(all + (size_t)from * BYTES, COLL_BF16, COUNT_OF, VALUES_NORMAL, from));
        require(values_are(graph_all + (size_t)from * BYTES, COLL_BF16, COUNT_OF, VALUES_NOISE, 10 + from));
    }
    fake_graph_end(graph);
    fake_stream_end(beside);
    values_free(own, COLL_BF16, 0);
    values_free(all, COLL_BF16, 0);
    values_free(graph_own, COLL_BF16, 0);
    values_free(graph_all, COLL_BF16, 0);
}

START_TEST(graphs_and_straight_operations_take_turns)
{
    begin(_i == 0 ? "piece=256,cross=2" : "direct,piece=64");
    ranks_run(2, take_turns, NULL);
}
END_TEST

/* ---- Where it cannot be ------------------------------------------------------------------------------------------ */

static void gather_by_nccl(struct rank *rank)
{
    gather(rank, 1, VALUES_NORMAL);
    require_by(rank, "all_gather", "the last: compressed");
}

START_TEST(without_access_the_wire_of_nccl_stays)
{
    begin("piece=128,bare=4");
    if (_i == 0)
        fake_gpu.apart = 5; /* 0 and 2 */
    else
        setenv("NCCL_P2P_DISABLE", "1", 1);
    ranks_run(3, gather_by_nccl, NULL);
    require(fake_gpu.pushed == 0);
}
END_TEST

/* ---- Which is faster --------------------------------------------------------------------------------------------- */

struct speeds {
    uint32_t plain[2], own; /* femtoseconds a byte: NCCL by rank, what is pushed */
    const char *reason, *tuning;
};

/* What is pushed are three quarters of the values, or so. */
static const struct speeds speeds[] = {
    {{2700, 2700}, 2800, "the last: compressed, wire peer", "piece=1024"},
    {{2700, 2700}, 4500, "raw: the link is fast", "piece=1024,bare=4"},
    {{2700, 9000}, 4500, "raw: the link is fast", "piece=1024,bare=4"}, /* the fastest rank counts for all */
    {{9000, 9000}, 4500, "the last: compressed, wire peer", "piece=1024,bare=4"},
};

static void gather_the_faster_way(struct rank *rank)
{
    gather(rank, 1, VALUES_NORMAL);
    require_by(rank, "all_gather", ((const struct speeds *)rank->argument)->reason);
}

START_TEST(auto_takes_what_was_measured_to_be_faster)
{
    const struct speeds *speed = &speeds[_i];
    begin(speed->tuning);
    setenv("STRAIT_COLL", "auto", 1);
    setenv("STRAIT_COLL_WIRE", "auto", 1);
    fake_gpu.jitter_us = 0;
    fake_gpu.push_fs = speed->own;
    for (int rank = 0; rank < 2; rank++)
        fake_gpu.link_fs[rank] = speed->plain[rank];
    ranks_run(2, gather_the_faster_way, (void *)(uintptr_t)speed);
}
END_TEST

/* How much crosses as it is follows from what crosses how fast; the same on all ranks. */
static const struct balance {
    uint32_t push, code;  /* femtoseconds a byte */
    unsigned least, most; /* of a hundred bytes of values cross so many */
} balances[] = {{2700, 100, 60, 75}, {2700, 20000, 100, 110}};

static void gather_balanced(struct rank *rank)
{
    const struct balance *balance = rank->argument;
    gather(rank, 1, VALUES_NORMAL);
    const struct told told = told_of(rank->comm, "all_gather", "bf16");
    const unsigned long long values = BYTES * (unsigned long long)told.calls * (unsigned)(rank->ranks - 1);
    require(100 * told.wire >= balance->least * values && 100 * told.wire <= balance->most * values);
}

START_TEST(so_much_stays_as_it_is_as_was_measured_to_be_fastest)
{
    const struct balance *balance = &balances[_i];
    begin("piece=64");
    fake_gpu.jitter_us = 0;
    fake_gpu.push_fs = balance->push;
    fake_gpu.code_fs = balance->code;
    ranks_run(2, gather_balanced, (void *)(uintptr_t)balance);
}
END_TEST

/* ---- What goes wrong --------------------------------------------------------------------------------------------- */

static coll_id id_for_all;

static void abort_rank(struct rank *rank)
{
    require_ok(ncclCommAbort(rank->comm));
    fake_stream_wait(rank->stream);
    fake_stream_end(rank->stream);
}

/* Bytes of a slot: magic, number, results, chunk header, tables, blocks. */
static const uint32_t bad_bytes[] = {
    0, 8, PEER_HEAD_BYTES, PEER_HEAD_BYTES + 9, PEER_HEAD_BYTES + 60, PEER_HEAD_BYTES + 9000};

/* The one who reads it says so, and with it the one who sent it, though nothing is wrong with what that one got. */
static void read_nonsense(struct rank *rank)
{
    uint8_t *own = values_new(COLL_BF16, COUNT_OF, 0), *all = values_new(COLL_BF16, 2 * COUNT_OF, 0);
    rank_begin(rank, id_for_all);
    ranks_meet();
    fake_gpu.spoil_at = bad_bytes[*(const int *)rank->argument % (int)COUNT(bad_bytes)];
    if (rank->rank == 0)
        fake_gpu.spoil = 5;
    ranks_meet();
    values_fill(own, COLL_BF16, COUNT_OF, VALUES_NORMAL, (unsigned)rank->rank);
    require_ok(ncclAllGather(own, all, COUNT_OF, COLL_BF16, rank->comm, rank->stream));
    for (unsigned behind = 0; behind < 2; behind++) /* they end too, or are refused when it is known already */
        (void)ncclAllGather(own, all, COUNT_OF, COLL_BF16, rank->comm, rank->stream);
    await_error(rank->comm);
    require(ends_within(rank->stream, PATIENCE_MS));
    ranks_meet();
    abort_rank(rank);
    values_free(own, COLL_BF16, 0);
    values_free(all, COLL_BF16, 0);
}

START_TEST(nonsense_in_a_slot_is_an_error)
{
    begin(_i < (int)COUNT(bad_bytes) ? "piece=128,bare=0"
                                     : "piece=128,direct"); /* who has nothing to decode cannot tell */
    require_ok(ncclGetUniqueId(&id_for_all));
    ranks_start(2, read_nonsense, &_i);
}
END_TEST

/* Rank 1 has one operation less, and stays. */
static void wait_for_the_other(struct rank *rank)
{
    uint8_t *own = values_new(COLL_BF16, COUNT_OF, 0), *all = values_new(COLL_BF16, 2 * COUNT_OF, 0);
    rank_begin(rank, id_for_all);
    values_fill(own, COLL_BF16, COUNT_OF, VALUES_NORMAL, (unsigned)rank->rank);
    for (int turn = rank->rank; turn < 2; turn++)
        require_ok(ncclAllGather(own, all, COUNT_OF, COLL_BF16, rank->comm, rank->stream));
    if (rank->rank == 0) {
        require(!ends_within(rank->stream, LEAST_MS));
        require(error_of(rank->comm) == COLL_SUCCESS); /* it may come yet */
        abort_rank(rank);
    }
    ranks_meet();
    if (rank->rank == 1)
        abort_rank(rank);
    values_free(own, COLL_BF16, 0);
    values_free(all, COLL_BF16, 0);
}

START_TEST(aborting_ends_waiting_for_a_rank)
{
    begin(_i == 0 ? "piece=128,bare=4" : "piece=128,direct");
    require_ok(ncclGetUniqueId(&id_for_all));
    ranks_start(2, wait_for_the_other, NULL);
}
END_TEST

/* Rank 0 has sent all, and leaves before rank 1 asks for it, which is busy for longer than kernels wait in an
 * operation. */
static void leave_early(struct rank *rank)
{
    uint8_t *values = values_new(COLL_BF16, COUNT_OF, 0);
    rank_begin(rank, id_for_all);
    if (rank->rank == 0) {
        values_fill(values, COLL_BF16, COUNT_OF, VALUES_NORMAL, 1);
        require_ok(ncclSend(values, COUNT_OF, COLL_BF16, 1, rank->comm, rank->stream));
        fake_stream_wait(rank->stream);
    } else {
        usleep(1000 * LEAST_MS);
        require_ok(ncclRecv(values, COUNT_OF, COLL_BF16, 0, rank->comm, rank->stream));
        fake_stream_wait(rank->stream);
        require_ok(error_of(rank->comm));
        require(values_are(values, COLL_BF16, COUNT_OF, VALUES_NORMAL, 1));
    }
    require_by(rank, rank->rank == 0 ? "send" : "recv", "the last: compressed, wire peer");
    require_ok(ncclCommDestroy(rank->comm));
    fake_stream_end(rank->stream);
    values_free(values, COLL_BF16, 0);
}

START_TEST(who_leaves_takes_nothing_away)
{
    begin(_i == 0 ? "piece=1024,bare=4" : "piece=1024,direct");
    fake_gpu.hurry = 10;
    require_ok(ncclGetUniqueId(&id_for_all));
    ranks_start(2, leave_early, NULL);
    require(fake_gpu.made == 0);
}
END_TEST

/* The n-th thing that is asked for cannot be: an error, of which the other rank learns. */
static _Atomic int failures;
enum { PARTS = 4 };

static void fail_at(struct rank *rank)
{
    uint8_t *own = values_new(COLL_BF16, COUNT_OF, 0), *all = values_new(COLL_BF16, 2 * COUNT_OF, 0);
    rank_begin(rank, id_for_all);
    ranks_meet();
    if (rank->rank == 0)
        fake_gpu.fail_work = *(const int *)rank->argument;
    ranks_meet();
    values_fill(own, COLL_BF16, COUNT_OF, VALUES_NORMAL, (unsigned)rank->rank);
    if (ncclAllGather(own, all, COUNT_OF, COLL_BF16, rank->comm, rank->stream) != COLL_SUCCESS)
        failures++;
    ranks_meet();
    if (failures > 0)
        abort_rank(rank);
    else
        rank_end(rank);
    values_free(own, COLL_BF16, 0);
    values_free(all, COLL_BF16, 0);
}

START_TEST(what_cannot_be_launched_is_an_error)
{
    int n = 1 + _i / 2;
    begin(_i % 2 == 0 ? "piece=512,cross=2" : "piece=512,direct");
    for (failures = 1; failures > 0; n += PARTS) {
        require(n < 1000);
        failures = 0;
        require_ok(ncclGetUniqueId(&id_for_all));
        ranks_start(2, fail_at, &n);
    }
    require(n > 20);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("peer");
    tcase_add_loop_test(tests, copy_engines_move_what_can_be_compressed, 0, 3);
    tcase_add_loop_test(tests, kernels_push_what_is_longer, 0, 3);
    tcase_add_test(tests, kernels_can_push_all);
    tcase_add_loop_test(tests, encoders_store_what_one_rank_gets, 0, 4);
    tcase_add_loop_test(tests, encoders_store_what_each_rank_gets, 0, 3);
    add_loop(tests, sums_are_those_that_are_specified, 0, 6);
    tcase_add_loop_test(tests, graphs_and_straight_operations_take_turns, 0, 2);
    tcase_add_loop_test(tests, without_access_the_wire_of_nccl_stays, 0, 2);
    tcase_add_loop_test(tests, auto_takes_what_was_measured_to_be_faster, 0, COUNT(speeds));
    tcase_add_loop_test(tests, so_much_stays_as_it_is_as_was_measured_to_be_fastest, 0, COUNT(balances));
    add_loop(tests, nonsense_in_a_slot_is_an_error, 0, 2 * COUNT(bad_bytes));
    tcase_add_loop_test(tests, aborting_ends_waiting_for_a_rank, 0, 2);
    tcase_add_loop_test(tests, who_leaves_takes_nothing_away, 0, 2);
    add_loop(tests, what_cannot_be_launched_is_an_error, 0, 2 * PARTS);
    return suite_run("peer", tests);
}
