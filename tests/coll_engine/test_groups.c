/* Groups, several communicators, several ranks of one thread, streams of one communicator, and graphs. */
#include <string.h>

#include "tests/coll_engine/harness.h"

enum { TIMES = 4, MOST = 150000, COUNT_OF = 40000 };

static void set_up(void)
{
    fake_gpu.jitter_us = 300;
}

/* ---- One group --------------------------------------------------------------------------------------------------- */

/* Of a pair, the same on both sides: none, too few, many, odd. */
static size_t count_of(unsigned turn, int from, int to)
{
    static const size_t counts[] = {0, 100, 40000, 70001, 16384, MOST, 33333};
    return counts[((unsigned)from * 5 + (unsigned)to * 3 + turn) % COUNT(counts)];
}

/* What frameworks make of it: sends and receives of all ranks, also to oneself, in one group. */
static void exchange_ragged(struct rank *rank)
{
    void *out[8], *in[8];
    for (int peer = 0; peer < rank->ranks; peer++) {
        out[peer] = values_at(rank, COLL_BF16, MOST, (size_t)peer);
        in[peer] = values_at(rank, COLL_BF16, MOST, 1);
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
}

/* Collectives and sends of several types, compressed and not, one after another and in groups of groups. */
static void mix(struct rank *rank)
{
    const int peer = 1 - rank->rank;
    struct gather gather = gather_new(rank, COLL_BF16, COUNT_OF, VALUES_NORMAL);
    uint8_t *out = values_at(rank, COLL_FP16, COUNT_OF, 1), *in = values_at(rank, COLL_FP16, COUNT_OF, 1);
    int32_t small_out = 7 + rank->rank, small_in = 0;
    for (unsigned turn = 0; turn < TIMES; turn++) {
        gather_fill(rank, &gather, VALUES_NORMAL, seed_of(turn, 0, 50));
        values_fill(out, COLL_FP16, COUNT_OF, VALUES_NORMAL, seed_of(turn, rank->rank, peer));
        require_ok(ncclGroupStart());
        require_ok(gather_post(rank, &gather));
        require_ok(ncclGroupStart());
        require_ok(ncclSend(&small_out, 1, COLL_INT32, peer, rank->comm, rank->stream));
        require_ok(ncclSend(out, COUNT_OF, COLL_FP16, peer, rank->comm, rank->stream));
        require_ok(ncclGroupEnd());
        require_ok(ncclRecv(&small_in, 1, COLL_INT32, peer, rank->comm, rank->stream));
        require_ok(ncclRecv(in, COUNT_OF, COLL_FP16, peer, rank->comm, rank->stream));
        require_ok(ncclGroupEnd());
        gather_check(rank, &gather);
        require(small_in == 7 + peer);
        require(values_are(in, COLL_FP16, COUNT_OF, VALUES_NORMAL, seed_of(turn, peer, rank->rank)));
    }
    require(told_of(rank->comm, "all_gather", "bf16").compressed == TIMES);
    require(told_of(rank->comm, "recv", "fp16").compressed == TIMES);
}

/* Compressed or not, whichever of the two ranks groups them. */
static void send_all(struct rank *rank)
{
    static const struct {
        int type;
        size_t count;
    } parcels[] = {{COLL_INT32, 3},    {COLL_BF16, 40000}, {COLL_INT32, 5},    {COLL_INT32, 7},
                   {COLL_FP16, 33333}, {COLL_INT32, 9000}, {COLL_BF16, 50001}, {COLL_BF16, 11}};
    const bool grouped = (*(const int *)rank->argument >> rank->rank & 1) != 0;
    void *values[COUNT(parcels)];
    for (int i = 0; i < COUNT(parcels); i++)
        values[i] = values_new(rank, parcels[i].type, parcels[i].count);
    for (unsigned turn = 0; turn < TIMES; turn++) {
        for (int i = 0; i < COUNT(parcels) && rank->rank == 0; i++)
            values_fill(values[i], parcels[i].type, parcels[i].count, VALUES_NORMAL, seed_of(turn, 0, i));
        if (grouped)
            require_ok(ncclGroupStart());
        for (int i = 0; i < COUNT(parcels); i++)
            require_ok(pair_post(rank, values[i], parcels[i].type, parcels[i].count));
        if (grouped)
            require_ok(ncclGroupEnd());
        fake_stream_wait(rank->stream);
        for (int i = 0; i < COUNT(parcels); i++)
            require(values_are(values[i], parcels[i].type, parcels[i].count, VALUES_NORMAL, seed_of(turn, 0, i)));
    }
    require(told_of(rank->comm, rank->rank == 0 ? "send" : "recv", "fp16").compressed == TIMES);
}

START_TEST(sends_arrive_in_the_order_of_their_calls)
{
    ranks_run(2, send_all, &_i); /* bits: ranks that group */
}
END_TEST

/* One rank asks for estimates, which concern nobody else: levels change at the same operation afterwards. */
static void simulate(struct rank *rank, const struct gather *gather)
{
    const int peer = 1 - rank->rank;
    const uint32_t before = fake_nccl.simulated;
    require_ok(ncclGroupStart());
    require_ok(gather_post(rank, gather));
    require_ok(ncclSend(gather->own, COUNT_OF, COLL_BF16, peer, rank->comm, rank->stream));
    require_ok(ncclSend(gather->own, 1, COLL_INT32, peer, rank->comm, rank->stream));
    require_ok(ncclGroupSimulateEnd(NULL));
    require(fake_nccl.simulated > before); /* what goes raw */
}

static void gather_estimated(struct rank *rank)
{
    enum { TIMES_TRIED = 1100 }; /* after 1024 operations that went raw, one is tried */
    const struct gather gather = gather_new(rank, COLL_BF16, COUNT_OF, VALUES_NOISE);
    for (unsigned turn = 0; turn < TIMES_TRIED; turn++) {
        if (rank->rank == 1 && turn < 20)
            simulate(rank, &gather);
        gather_run(rank, &gather, false);
        ranks_meet();
    }
}

/* ---- Streams and communicators ----------------------------------------------------------------------------------- */

/* Operations on one communicator from two streams, without waiting in between: the memory that they share is used by
 * one after another. */
static void alternate(struct rank *rank)
{
    enum { STEPS = 8 };
    struct rank other = *rank;
    struct gather gathers[STEPS];
    other.stream = fake_stream_make();
    for (unsigned i = 0; i < STEPS; i++) {
        gathers[i] = gather_new(rank, COLL_BF16, 50000, VALUES_NORMAL);
        gather_fill(rank, &gathers[i], VALUES_NORMAL, seed_of(i, 0, 0));
    }
    for (unsigned i = 0; i < STEPS; i++) {
        if (i == 4)
            require_ok(ncclGroupStart()); /* the later ones are one group */
        require_ok(gather_post(i % 2 == 0 ? rank : &other, &gathers[i]));
    }
    require_ok(ncclGroupEnd());
    fake_stream_wait(other.stream);
    for (unsigned i = 0; i < STEPS; i++)
        gather_check(rank, &gathers[i]);
    require(told_of(rank->comm, "all_gather", "bf16").compressed == STEPS);
    ranks_meet();
    fake_stream_end(other.stream);
}

/* A second communicator, made by a split, with a stream of its own, and work of both under way at once. */
static void with_second(struct rank *rank)
{
    enum { EACH = 60000 };
    coll_comm second;
    coll_stream stream = fake_stream_make();
    const enum values kind = *(const int *)rank->argument == 1 ? VALUES_NOISE : VALUES_NORMAL;
    struct gather gather = gather_new(rank, COLL_BF16, EACH, kind);
    uint8_t *out = values_new(rank, COLL_BF16, EACH * 2), *in = values_new(rank, COLL_BF16, EACH * 2);
    require_ok(ncclCommSplit(rank->comm, 0, -rank->rank, &second, NULL)); /* ranks the other way round */
    const int number = 1 - rank->rank;                                    /* of this rank there */
    for (unsigned turn = 0; turn < TIMES; turn++) {
        gather_fill(rank, &gather, kind, seed_of(turn, 0, 9));
        parts_fill(out, COLL_BF16, EACH, 2, kind, seed_of(turn, number, 0), 1);
        if (turn % 2 != 0)
            require_ok(ncclGroupStart());
        require_ok(gather_post(rank, &gather));
        require_ok(ncclAlltoAll(out, in, EACH, COLL_BF16, second, stream));
        if (turn % 2 != 0)
            require_ok(ncclGroupEnd());
        gather_check(rank, &gather);
        fake_stream_wait(stream);
        require(parts_are(in, COLL_BF16, EACH, 2, kind, seed_of(turn, 0, number), SEED_STEP));
    }
    require(told_of(second, "all_to_all", "bf16").compressed > 0);
    ranks_meet();
    require_ok(ncclCommDestroy(second));
    fake_stream_end(stream);
}

/* ---- One thread -------------------------------------------------------------------------------------------------- */

/* Everything in groups. */
static void be_three_ranks(struct rank *thread)
{
    enum { RANKS = 3, EACH = 45000 };
    coll_comm comms[RANKS];
    struct rank ranks[RANKS];
    struct gather gathers[RANKS];
    float *sums[RANKS];
    const enum values kind = *(const int *)thread->argument == 1 ? VALUES_NOISE : VALUES_NORMAL;
    require_ok(ncclCommInitAll(comms, RANKS, NULL));
    for (int i = 0; i < RANKS; i++) {
        ranks[i] = (struct rank){.rank = i, .ranks = RANKS, .comm = comms[i], .memory = thread->memory};
        fake_device_set(i);
        ranks[i].stream = fake_stream_make();
        gathers[i] = gather_new(&ranks[i], COLL_BF16, EACH, kind);
        sums[i] = values_new(thread, COLL_FP32, EACH);
    }
    fake_device_set(5); /* whichever: every call finds its own */
    for (unsigned turn = 0; turn < TIMES; turn++) {
        require_ok(ncclGroupStart());
        for (int i = 0; i < RANKS; i++) {
            gather_fill(&ranks[i], &gathers[i], kind, seed_of(turn, 0, 0));
            require_ok(gather_post(&ranks[i], &gathers[i]));
            values_fill_whole(sums[i], EACH, true, seed_of(turn, 0, 10) + (unsigned)i);
            require_ok(ncclAllReduce(sums[i], sums[i], EACH, COLL_FP32, COLL_SUM, comms[i], ranks[i].stream));
        }
        require_ok(ncclGroupEnd());
        require(fake_device() == 5);
        for (int i = 0; i < RANKS; i++) {
            gather_check(&ranks[i], &gathers[i]);
            require(values_are_sums(sums[i], EACH, RANKS, true, seed_of(turn, 0, 10)));
        }
    }
    for (int i = 0; i < RANKS; i++) {
        require(told_of(comms[i], "all_gather", "bf16").compressed >= 2);
        require(told_of(comms[i], "all_reduce", "fp32").compressed == TIMES);
        require_ok(ncclCommDestroy(comms[i]));
        fake_device_set(i);
        fake_stream_end(ranks[i].stream);
    }
}

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

/* An all_gather, and an all_to_all on another stream. */
struct both {
    struct gather gather;
    uint8_t *out, *in;
    coll_stream other;
};

static void fill_both(const struct rank *rank, struct both *both, enum values kind, unsigned turn)
{
    gather_fill(rank, &both->gather, kind, seed_of(turn, 0, 77));
    parts_fill(both->out, COLL_BF16, both->gather.count, rank->ranks, kind, seed_of(turn, rank->rank, 0), 1);
}

static void post_both(const struct rank *rank, const struct both *both)
{
    struct CUevent_st *event = fake_event_make();
    require_ok(gather_post(rank, &both->gather));
    fake_event_record(event, rank->stream); /* the second stream joins the graph */
    fake_event_follow(both->other, event);
    require_ok(ncclAlltoAll(both->out, both->in, both->gather.count, COLL_BF16, rank->comm, both->other));
    fake_event_record(event, both->other);
    fake_event_follow(rank->stream, event);
    fake_event_end(event);
}

static void check_both(const struct rank *rank, const struct both *both, unsigned turn)
{
    gather_check(rank, &both->gather);
    require(parts_are(both->in, COLL_BF16, both->gather.count, rank->ranks, both->gather.kind,
                      seed_of(turn, 0, rank->rank), SEED_STEP));
}

/* Not in the graph. */
static void run_both(const struct rank *rank, struct both *both, unsigned turn)
{
    fill_both(rank, both, VALUES_NORMAL, turn);
    post_both(rank, both);
    fake_stream_wait(rank->stream);
    fake_stream_wait(both->other);
    check_both(rank, both, turn);
}

/* A graph of two operations, launched with data that fits and data that does not, between calls as they are. */
static void replay(struct rank *rank)
{
    enum { EACH = 60001 };
    const size_t all = (size_t)EACH * (size_t)rank->ranks;
    struct both both = {gather_new(rank, COLL_BF16, EACH, VALUES_NORMAL), values_new(rank, COLL_BF16, all),
                        values_new(rank, COLL_BF16, all), fake_stream_make()};
    if (rank->argument != NULL)
        overlap_warm_up(rank, rank->comm, COLL_BF16);
    run_both(rank, &both, 1000);
    fake_capture_begin(rank->stream);
    post_both(rank, &both);
    struct fake_graph *graph = fake_capture_end(rank->stream);
    for (unsigned turn = 0; turn < 9; turn++) {
        fill_both(rank, &both, turn % 3 == 1 ? VALUES_NOISE : VALUES_NORMAL, turn);
        fake_graph_launch(graph, rank->stream);
        check_both(rank, &both, turn);
        if (turn % 2 != 0)
            run_both(rank, &both, 100 + turn);
    }
    require(told_of(rank->comm, "all_gather", "bf16").compressed >= 4);
    ranks_meet();
    fake_graph_end(graph);
    fake_stream_end(both.other);
}

START_TEST(graphs_are_launched_again_and_again)
{
    const bool overlaps = _i >= 2;
    if (overlaps)
        overlap_begin();
    ranks_run(2 + _i % 2, replay, overlaps ? &overlaps : NULL);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("groups");
    tcase_add_checked_fixture(tests, set_up, NULL);
    add_ranks(tests, "sends_and_receives_of_any_sizes_arrive", ranks_run, exchange_ragged, 2, 1);
    add_ranks(tests, "sends_and_receives_of_any_sizes_arrive", ranks_run, exchange_ragged, 3, 1);
    add_ranks(tests, "sends_and_receives_of_any_sizes_arrive", ranks_run, exchange_ragged, 4, 1);
    add_ranks(tests, "groups_mix_collectives_and_sends_of_any_types", ranks_run, mix, 2, 1);
    tcase_add_loop_test(tests, sends_arrive_in_the_order_of_their_calls, 0, 4);
    add_ranks(tests, "estimates_count_as_nothing", ranks_run, gather_estimated, 2, 1);
    add_ranks(tests, "streams_of_one_communicator_take_turns", ranks_run, alternate, 2, 1);
    add_ranks(tests, "streams_of_one_communicator_take_turns", ranks_run, alternate, 3, 1);
    add_ranks(tests, "two_communicators_work_at_once", ranks_run, with_second, 2, 2);
    add_ranks(tests, "one_thread_can_be_several_ranks", ranks_start, be_three_ranks, 1, 2);
    tcase_add_loop_test(tests, graphs_are_launched_again_and_again, 0, 4);
    return suite_run("groups", tests);
}
