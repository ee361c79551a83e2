/* Groups, several communicators, several ranks of one thread, streams of one communicator, and graphs. */
#include <string.h>

#include "tests/coll_engine/harness.h"

enum { TIMES = 4, MOST = 150000 };

static uint64_t seed_of(unsigned turn, int from, int to)
{
    return 10000 * turn + 100 * (unsigned)from + (unsigned)to;
}

static void begin(void)
{
    fake_gpu.jitter_us = 300;
    setenv("STRAIT_COLL", "compress", 1);
}

/* Of a pair, the same on both sides: none, too few, many, odd. */
static size_t count_of(unsigned turn, int from, int to)
{
    static const size_t counts[] = {0, 100, 40000, 70001, 16384, MOST, 33333};
    return counts[((unsigned)from * 5 + (unsigned)to * 3 + turn) % COUNT(counts)];
}

/* ---- One group --------------------------------------------------------------------------------------------------- */

/* What frameworks make of it: sends and receives of all ranks, also to oneself, in one group. */
static void exchange_ragged(struct rank *rank)
{
    void *out[8], *in[8];
    for (int peer = 0; peer < rank->ranks; peer++) {
        out[peer] = values_new(COLL_BF16, MOST, (size_t)peer);
        in[peer] = values_new(COLL_BF16, MOST, 1);
    }
    for (unsigned turn = 0; turn < TIMES; turn++) {
        require_ok(ncclGroupStart());
        for (int peer = 0; peer < rank->ranks; peer++) {
            const size_t count = count_of(turn, rank->rank, peer);
            values_fill(out[peer], COLL_BF16, count, VALUES_NORMAL, seed_of(turn, rank->rank, peer));
            require_ok(ncclSend(out[peer], count, COLL_BF16, peer, rank->comm, rank->stream));
            require_ok(ncclRecv(in[peer], count_of(turn, peer, rank->rank), COLL_BF16, peer, rank->comm, rank->stream));
        }
        require_ok(ncclGroupEnd());
        fake_stream_wait(rank->stream);
        for (int peer = 0; peer < rank->ranks; peer++)
            require(values_are(in[peer], COLL_BF16, count_of(turn, peer, rank->rank), VALUES_NORMAL,
                               seed_of(turn, peer, rank->rank)));
    }
    require(told_of(rank->comm, "send", "bf16").compressed > 0);
    for (int peer = 0; peer < rank->ranks; peer++) {
        values_free(out[peer], COLL_BF16, (size_t)peer);
        values_free(in[peer], COLL_BF16, 1);
    }
}

START_TEST(ragged_exchanges_arrive)
{
    begin();
    ranks_run(_i, exchange_ragged, NULL);
}
END_TEST

/* Collectives and sends of several types, compressed and not, one after another and in groups of groups. */
static void mix(struct rank *rank)
{
    const size_t count = 40000;
    const int peer = 1 - rank->rank;
    uint8_t *own = values_new(COLL_BF16, count, 0), *all = values_new(COLL_BF16, 2 * count, 0);
    uint8_t *out = values_new(COLL_FP16, count, 1), *in = values_new(COLL_FP16, count, 1);
    int32_t small_out = 7 + rank->rank, small_in = 0;
    for (unsigned turn = 0; turn < TIMES; turn++) {
        values_fill(own, COLL_BF16, count, VALUES_NORMAL, seed_of(turn, rank->rank, 50));
        values_fill(out, COLL_FP16, count, VALUES_NORMAL, seed_of(turn, rank->rank, peer));
        require_ok(ncclGroupStart());
        require_ok(ncclAllGather(own, all, count, COLL_BF16, rank->comm, rank->stream));
        require_ok(ncclGroupStart());
        require_ok(ncclSend(&small_out, 1, COLL_INT32, peer, rank->comm, rank->stream));
        require_ok(ncclSend(out, count, COLL_FP16, peer, rank->comm, rank->stream));
        require_ok(ncclGroupEnd());
        require_ok(ncclRecv(&small_in, 1, COLL_INT32, peer, rank->comm, rank->stream));
        require_ok(ncclRecv(in, count, COLL_FP16, peer, rank->comm, rank->stream));
        require_ok(ncclGroupEnd());
        fake_stream_wait(rank->stream);
        require(small_in == 7 + peer);
        require(values_are(in, COLL_FP16, count, VALUES_NORMAL, seed_of(turn, peer, rank->rank)));
        for (int from = 0; from < 2; from++)
            require(
                values_are(all + (size_t)from * count * 2, COLL_BF16, count, VALUES_NORMAL, seed_of(turn, from, 50)));
    }
    require(told_of(rank->comm, "all_gather", "bf16").compressed == TIMES);
    require(told_of(rank->comm, "recv", "fp16").compressed == TIMES);
    values_free(own, COLL_BF16, 0);
    values_free(all, COLL_BF16, 0);
    values_free(out, COLL_FP16, 1);
    values_free(in, COLL_FP16, 1);
}

START_TEST(groups_hold_whatever_there_is)
{
    begin();
    ranks_run(2, mix, NULL);
}
END_TEST

/* What one rank sends another comes in the order of its calls, compressed or not, whichever of the two groups them. */
struct parcel {
    int type;
    size_t count;
    uint8_t *values;
};

static coll_result pass_on(const struct rank *rank, const struct parcel *parcel)
{
    const int peer = 1 - rank->rank;
    return rank->rank == 0 ? ncclSend(parcel->values, parcel->count, parcel->type, peer, rank->comm, rank->stream)
                           : ncclRecv(parcel->values, parcel->count, parcel->type, peer, rank->comm, rank->stream);
}

static void pass_all(struct rank *rank)
{
    struct parcel parcels[] = {{COLL_INT32, 3, NULL},    {COLL_BF16, 40000, NULL}, {COLL_INT32, 5, NULL},
                               {COLL_INT32, 7, NULL},    {COLL_FP16, 33333, NULL}, {COLL_INT32, 9000, NULL},
                               {COLL_BF16, 50001, NULL}, {COLL_BF16, 11, NULL}};
    const unsigned grouped = *(const unsigned *)rank->argument >> rank->rank & 1;
    for (unsigned i = 0; i < COUNT(parcels); i++)
        parcels[i].values = values_new(parcels[i].type, parcels[i].count, 0);
    for (unsigned turn = 0; turn < TIMES; turn++) {
        for (unsigned i = 0; i < COUNT(parcels) && rank->rank == 0; i++)
            values_fill(parcels[i].values, parcels[i].type, parcels[i].count, VALUES_NORMAL, seed_of(turn, 0, (int)i));
        if (grouped != 0)
            require_ok(ncclGroupStart());
        for (unsigned i = 0; i < COUNT(parcels); i++)
            require_ok(pass_on(rank, &parcels[i]));
        if (grouped != 0)
            require_ok(ncclGroupEnd());
        fake_stream_wait(rank->stream);
        for (unsigned i = 0; i < COUNT(parcels); i++)
            require(values_are(parcels[i].values, parcels[i].type, parcels[i].count, VALUES_NORMAL,
                               seed_of(turn, 0, (int)i)));
    }
    require(told_of(rank->comm, rank->rank == 0 ? "send" : "recv", "fp16").compressed == TIMES);
    for (unsigned i = 0; i < COUNT(parcels); i++)
        values_free(parcels[i].values, parcels[i].type, 0);
}

START_TEST(sends_come_in_the_order_of_their_calls)
{
    unsigned grouped = (unsigned)_i; /* bits: ranks that group */
    begin();
    ranks_run(2, pass_all, &grouped);
}
END_TEST

/* One rank asks for estimates, which concern nobody else: levels change at the same operation afterwards. */
static void simulate(struct rank *rank, void *own, void *all, size_t count)
{
    const int peer = 1 - rank->rank;
    const uint32_t before = fake_nccl.simulated;
    require_ok(ncclGroupStart());
    require_ok(ncclAllGather(own, all, count, COLL_BF16, rank->comm, rank->stream));
    require_ok(ncclSend(own, count, COLL_BF16, peer, rank->comm, rank->stream));
    require_ok(ncclSend(own, 1, COLL_INT32, peer, rank->comm, rank->stream));
    require_ok(ncclGroupSimulateEnd(NULL));
    require(fake_nccl.simulated > before); /* what goes raw */
}

static void gather_estimated(struct rank *rank)
{
    enum { COUNT_OF = 40000, TIMES_TRIED = 1100 }; /* after 1024 operations that went raw, one is tried */
    uint8_t *own = values_new(COLL_BF16, COUNT_OF, 0), *all = values_new(COLL_BF16, 2 * COUNT_OF, 0);
    values_fill(own, COLL_BF16, COUNT_OF, VALUES_NOISE, (unsigned)rank->rank);
    for (unsigned turn = 0; turn < TIMES_TRIED; turn++) {
        if (rank->rank == 1 && turn < 20)
            simulate(rank, own, all, COUNT_OF);
        require_ok(ncclAllGather(own, all, COUNT_OF, COLL_BF16, rank->comm, rank->stream));
        fake_stream_wait(rank->stream);
        for (unsigned from = 0; from < 2; from++)
            require(values_are(all + from * COUNT_OF * 2, COLL_BF16, COUNT_OF, VALUES_NOISE, from));
        ranks_meet();
    }
    values_free(own, COLL_BF16, 0);
    values_free(all, COLL_BF16, 0);
}

START_TEST(estimates_count_as_nothing)
{
    begin();
    ranks_run(2, gather_estimated, NULL);
}
END_TEST

/* ---- Streams and communicators ------------------------------------------------------------------------------------
 */

/* Operations on one communicator from two streams, without waiting in between: the memory that they share is used by
 * one after another. */
static void alternate(struct rank *rank)
{
    enum { STEPS = 8, COUNT_OF = 50000 };
    coll_stream other = fake_stream_make();
    uint8_t *own[STEPS], *all[STEPS];
    for (unsigned i = 0; i < STEPS; i++) {
        own[i] = values_new(COLL_BF16, COUNT_OF, 0);
        all[i] = values_new(COLL_BF16, COUNT_OF * (size_t)rank->ranks, 0);
        values_fill(own[i], COLL_BF16, COUNT_OF, VALUES_NORMAL, seed_of(i, rank->rank, 0));
    }
    for (unsigned i = 0; i < STEPS; i++) {
        if (i == 4)
            require_ok(ncclGroupStart()); /* the later ones are one group */
        require_ok(ncclAllGather(own[i], all[i], COUNT_OF, COLL_BF16, rank->comm, i % 2 == 0 ? rank->stream : other));
    }
    require_ok(ncclGroupEnd());
    fake_stream_wait(rank->stream);
    fake_stream_wait(other);
    for (unsigned i = 0; i < STEPS; i++) {
        for (int from = 0; from < rank->ranks; from++)
            require(values_are(all[i] + (size_t)from * COUNT_OF * 2, COLL_BF16, COUNT_OF, VALUES_NORMAL,
                               seed_of(i, from, 0)));
        values_free(own[i], COLL_BF16, 0);
        values_free(all[i], COLL_BF16, 0);
    }
    require(told_of(rank->comm, "all_gather", "bf16").compressed == STEPS);
    ranks_meet();
    fake_stream_end(other);
}

START_TEST(streams_of_one_communicator_take_turns)
{
    begin();
    ranks_run(_i, alternate, NULL);
}
END_TEST

/* A second communicator, made by a split, with a stream of its own, and work of both under way at once. */
static void with_second(struct rank *rank)
{
    enum { COUNT_OF = 60000 };
    coll_comm second;
    coll_stream stream = fake_stream_make();
    const enum values kind = rank->argument != NULL ? VALUES_NOISE : VALUES_NORMAL;
    uint8_t *own = values_new(COLL_BF16, COUNT_OF, 0), *all = values_new(COLL_BF16, COUNT_OF * 2, 0);
    uint8_t *out = values_new(COLL_BF16, COUNT_OF * 2, 0), *in = values_new(COLL_BF16, COUNT_OF * 2, 0);
    require_ok(ncclCommSplit(rank->comm, 0, -rank->rank, &second, NULL)); /* ranks the other way round */
    for (unsigned turn = 0; turn < TIMES; turn++) {
        values_fill(own, COLL_BF16, COUNT_OF, kind, seed_of(turn, rank->rank, 9));
        for (int to = 0; to < 2; to++) /* the other's rank there */
            values_fill(out + (size_t)to * COUNT_OF * 2, COLL_BF16, COUNT_OF, kind, seed_of(turn, 1 - rank->rank, to));
        if (turn % 2 != 0)
            require_ok(ncclGroupStart());
        require_ok(ncclAllGather(own, all, COUNT_OF, COLL_BF16, rank->comm, rank->stream));
        require_ok(ncclAlltoAll(out, in, COUNT_OF, COLL_BF16, second, stream));
        if (turn % 2 != 0)
            require_ok(ncclGroupEnd());
        fake_stream_wait(rank->stream);
        fake_stream_wait(stream);
        for (int from = 0; from < 2; from++) {
            require(values_are(all + (size_t)from * COUNT_OF * 2, COLL_BF16, COUNT_OF, kind, seed_of(turn, from, 9)));
            require(values_are(in + (size_t)from * COUNT_OF * 2, COLL_BF16, COUNT_OF, kind,
                               seed_of(turn, from, 1 - rank->rank)));
        }
    }
    require(told_of(second, "all_to_all", "bf16").compressed > 0);
    ranks_meet();
    require_ok(ncclCommDestroy(second));
    fake_stream_end(stream);
    values_free(own, COLL_BF16, 0);
    values_free(all, COLL_BF16, 0);
    values_free(out, COLL_BF16, 0);
    values_free(in, COLL_BF16, 0);
}

START_TEST(two_communicators_work_at_once)
{
    static int noise;
    begin();
    ranks_run(2, with_second, _i == 1 ? &noise : NULL);
}
END_TEST

/* ---- One thread ---------------------------------------------------------------------------------------------------
 */

/* Several ranks of one thread: everything in groups. */
START_TEST(one_thread_can_be_several_ranks)
{
    enum { RANKS = 3, COUNT_OF = 45000 };
    coll_comm comms[RANKS];
    coll_stream streams[RANKS];
    uint8_t *own[RANKS], *all[RANKS];
    float *sums[RANKS];
    const enum values kind = _i == 1 ? VALUES_NOISE : VALUES_NORMAL;
    begin();
    require_ok(ncclCommInitAll(comms, RANKS, NULL));
    for (int rank = 0; rank < RANKS; rank++) {
        fake_device_set(rank);
        streams[rank] = fake_stream_make();
        own[rank] = values_new(COLL_BF16, COUNT_OF, 0);
        all[rank] = values_new(COLL_BF16, COUNT_OF * RANKS, 0);
        sums[rank] = values_new(COLL_FP32, COUNT_OF, 0);
    }
    fake_device_set(5); /* whichever: every call finds its own */
    for (unsigned turn = 0; turn < TIMES; turn++) {
        require_ok(ncclGroupStart());
        for (int rank = 0; rank < RANKS; rank++) {
            values_fill(own[rank], COLL_BF16, COUNT_OF, kind, seed_of(turn, rank, 0));
            require_ok(ncclAllGather(own[rank], all[rank], COUNT_OF, COLL_BF16, comms[rank], streams[rank]));
            values_fill_whole(sums[rank], COUNT_OF, true, seed_of(turn, 0, 1) + (unsigned)rank);
            require_ok(
                ncclAllReduce(sums[rank], sums[rank], COUNT_OF, COLL_FP32, COLL_SUM, comms[rank], streams[rank]));
        }
        require_ok(ncclGroupEnd());
        require(fake_device() == 5);
        for (int rank = 0; rank < RANKS; rank++)
            fake_stream_wait(streams[rank]);
        for (int rank = 0; rank < RANKS; rank++)
            require(values_are_sums(sums[rank], COUNT_OF, RANKS, true, seed_of(turn, 0, 1)));
        for (int rank = 0; rank < RANKS; rank++)
            for (int from = 0; from < RANKS; from++)
                require(values_are(all[rank] + (size_t)from * COUNT_OF * 2, COLL_BF16, COUNT_OF, kind,
                                   seed_of(turn, from, 0)));
    }
    for (int rank = 0; rank < RANKS; rank++) {
        require(told_of(comms[rank], "all_gather", "bf16").compressed >= 2);
        require(told_of(comms[rank], "all_reduce", "fp32").compressed == TIMES);
        require_ok(ncclCommDestroy(comms[rank]));
        fake_device_set(rank);
        fake_stream_end(streams[rank]);
        values_free(own[rank], COLL_BF16, 0);
        values_free(all[rank], COLL_BF16, 0);
        values_free(sums[rank], COLL_FP32, 0);
    }
    require(fake_gpu.made == 0);
}
END_TEST

/* ---- Graphs -------------------------------------------------------------------------------------------------------
 */

struct buffers {
    uint8_t *own, *all, *out, *in;
};

enum { GRAPH_COUNT = 60001 };

static void ask_for_both(struct rank *rank, const struct buffers *at, coll_stream other)
{
    struct CUevent_st *event = fake_event_make();
    require_ok(ncclAllGather(at->own, at->all, GRAPH_COUNT, COLL_BF16, rank->comm, rank->stream));
    fake_event_record(event, rank->stream); /* the second stream joins the graph */
    fake_event_follow(other, event);
    require_ok(ncclAlltoAll(at->out, at->in, GRAPH_COUNT, COLL_BF16, rank->comm, other));
    fake_event_record(event, other);
    fake_event_follow(rank->stream, event);
    fake_event_end(event);
}

static void fill_both(const struct rank *rank, const struct buffers *at, enum values kind, unsigned turn)
{
    values_fill(at->own, COLL_BF16, GRAPH_COUNT, kind, seed_of(turn, rank->rank, 77));
    for (int to = 0; to < rank->ranks; to++)
        values_fill(at->out + (size_t)to * GRAPH_COUNT * 2, COLL_BF16, GRAPH_COUNT, kind,
                    seed_of(turn, rank->rank, to));
}

static void require_both(const struct rank *rank, const struct buffers *at, enum values kind, unsigned turn)
{
    for (int from = 0; from < rank->ranks; from++) {
        const size_t place = (size_t)from * GRAPH_COUNT * 2;
        require(values_are(at->all + place, COLL_BF16, GRAPH_COUNT, kind, seed_of(turn, from, 77)));
        require(values_are(at->in + place, COLL_BF16, GRAPH_COUNT, kind, seed_of(turn, from, rank->rank)));
    }
}

/* A graph of two operations, launched with data that fits and data that does not, between calls as they are. */
static void replay(struct rank *rank)
{
    const size_t all = (size_t)GRAPH_COUNT * (size_t)rank->ranks;
    const struct buffers at = {values_new(COLL_BF16, GRAPH_COUNT, 0), values_new(COLL_BF16, all, 0),
                               values_new(COLL_BF16, all, 0), values_new(COLL_BF16, all, 0)};
    coll_stream other = fake_stream_make();
    if (rank->argument != NULL)
        overlap_warm_up(rank, rank->comm, COLL_BF16);
    fill_both(rank, &at, VALUES_NORMAL, 1000);
    ask_for_both(rank, &at, other);
    fake_stream_wait(rank->stream);
    fake_stream_wait(other);
    require_both(rank, &at, VALUES_NORMAL, 1000);
    fake_capture_begin(rank->stream);
    ask_for_both(rank, &at, other);
    struct fake_graph *graph = fake_capture_end(rank->stream);
    for (unsigned turn = 0; turn < 9; turn++) {
        const enum values kind = turn % 3 == 1 ? VALUES_NOISE : VALUES_NORMAL;
        fill_both(rank, &at, kind, turn);
        fake_graph_launch(graph, rank->stream);
        fake_stream_wait(rank->stream);
        require_both(rank, &at, kind, turn);
        if (turn % 2 == 0)
            continue;
        fill_both(rank, &at, VALUES_NORMAL, 100 + turn);
        ask_for_both(rank, &at, other);
        fake_stream_wait(rank->stream);
        fake_stream_wait(other);
        require_both(rank, &at, VALUES_NORMAL, 100 + turn);
    }
    require(told_of(rank->comm, "all_gather", "bf16").compressed >= 4);
    ranks_meet();
    fake_graph_end(graph);
    fake_stream_end(other);
    values_free(at.own, COLL_BF16, 0);
    values_free(at.all, COLL_BF16, 0);
    values_free(at.out, COLL_BF16, 0);
    values_free(at.in, COLL_BF16, 0);
}

START_TEST(graphs_are_launched_again_and_again)
{
    static bool overlaps = true;
    begin();
    if (_i >= 2)
        overlap_begin();
    ranks_run(2 + _i % 2, replay, _i >= 2 ? &overlaps : NULL);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("groups");
    tcase_add_loop_test(tests, ragged_exchanges_arrive, 2, 5);
    tcase_add_test(tests, groups_hold_whatever_there_is);
    tcase_add_loop_test(tests, sends_come_in_the_order_of_their_calls, 0, 4);
    tcase_add_test(tests, estimates_count_as_nothing);
    tcase_add_loop_test(tests, streams_of_one_communicator_take_turns, 2, 4);
    tcase_add_loop_test(tests, two_communicators_work_at_once, 0, 2);
    tcase_add_loop_test(tests, one_thread_can_be_several_ranks, 0, 2);
    tcase_add_loop_test(tests, graphs_are_launched_again_and_again, 0, 4);
    return suite_run("groups", tests);
}
