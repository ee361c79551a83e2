/* What does not fit goes by the rings whatever groups, streams and graphs it is in, and whoever comes first. */
#include <string.h>
#include <unistd.h>

#include "tests/coll_engine/harness.h"

enum {
    SMALL = 40001,  /* finds room in a ring */
    LARGE = 9 << 20 /* values; more than a ring of two ranks has */
};

static void begin(void)
{
    fake_gpu.jitter_us = 200;
    setenv("STRAIT_COLL", "compress", 1);
}

static uint64_t seed_of(unsigned turn, int from, int to)
{
    return 1 + 10000 * turn + 100 * (unsigned)from + (unsigned)to;
}

/* ---- Pairs in any groups ----------------------------------------------------------------------------------------- */

struct pair_buffers {
    uint8_t *out, *in;
    size_t count;
};

static struct pair_buffers pair_begin(const struct rank *rank, size_t count, unsigned turn)
{
    const struct pair_buffers at = {values_new(COLL_BF16, count, 0), values_new(COLL_BF16, count, 0), count};
    values_fill(at.out, COLL_BF16, count, VALUES_NOISE, seed_of(turn, rank->rank, 0));
    return at;
}

static void pair_end(const struct pair_buffers *at, int from, unsigned turn)
{
    require(values_are(at->in, COLL_BF16, at->count, VALUES_NOISE, seed_of(turn, from, 0)));
    values_free(at->out, COLL_BF16, 0);
    values_free(at->in, COLL_BF16, 0);
}

static void send_to(const struct rank *rank, const struct pair_buffers *at, int peer)
{
    require_ok(ncclSend(at->out, at->count, COLL_BF16, peer, rank->comm, rank->stream));
}

static void receive_from(const struct rank *rank, const struct pair_buffers *at, int peer)
{
    require_ok(ncclRecv(at->in, at->count, COLL_BF16, peer, rank->comm, rank->stream));
}

/* Rank 0 has both in a group; rank 1 one after the other, in either order. */
struct one_sided {
    size_t count;
    bool receives_first;
};

static void group_on_one_side(struct rank *rank)
{
    const struct one_sided *how = rank->argument;
    for (unsigned turn = 0; turn < 2; turn++) {
        const struct pair_buffers at = pair_begin(rank, how->count, turn);
        if (rank->rank == 0)
            require_ok(ncclGroupStart());
        if (rank->rank == 0 || !how->receives_first)
            send_to(rank, &at, 1 - rank->rank);
        receive_from(rank, &at, 1 - rank->rank);
        if (rank->rank == 1 && how->receives_first)
            send_to(rank, &at, 0);
        if (rank->rank == 0)
            require_ok(ncclGroupEnd());
        fake_stream_wait(rank->stream);
        pair_end(&at, 1 - rank->rank, turn);
    }
}

static const struct one_sided one_sided[] = {{SMALL, false}, {SMALL, true}, {LARGE, false}, {LARGE, true}};

START_TEST(one_side_may_group_what_the_other_does_not)
{
    begin();
    ranks_run(2, group_on_one_side, (void *)(uintptr_t)&one_sided[_i]);
    require(fake_gpu.taken > 0);
}
END_TEST

/* Rank 0 has no receive, but what it sends second is not taken before what it sends first has arrived. */
static void group_without_receives(struct rank *rank)
{
    const struct pair_buffers first = pair_begin(rank, LARGE, 1), second = pair_begin(rank, LARGE, 2);
    if (rank->rank == 0) {
        require_ok(ncclGroupStart());
        send_to(rank, &first, 1);
        send_to(rank, &second, 2);
        require_ok(ncclGroupEnd());
    } else if (rank->rank == 1) {
        receive_from(rank, &first, 0);
        send_to(rank, &second, 2);
    } else {
        receive_from(rank, &first, 1);
        receive_from(rank, &second, 0);
    }
    fake_stream_wait(rank->stream);
    if (rank->rank == 1)
        require(values_are(first.in, COLL_BF16, LARGE, VALUES_NOISE, seed_of(1, 0, 0)));
    if (rank->rank == 2) {
        require(values_are(first.in, COLL_BF16, LARGE, VALUES_NOISE, seed_of(2, 1, 0)));
        require(values_are(second.in, COLL_BF16, LARGE, VALUES_NOISE, seed_of(2, 0, 0)));
    }
    values_free(first.out, COLL_BF16, 0);
    values_free(first.in, COLL_BF16, 0);
    values_free(second.out, COLL_BF16, 0);
    values_free(second.in, COLL_BF16, 0);
}

START_TEST(sends_of_a_group_do_not_wait_for_each_other)
{
    begin();
    ranks_run(3, group_without_receives, NULL);
}
END_TEST

/* Rank 0 has a send before a collective in one group; rank 1 has the collective first, then the receive. */
static void group_with_a_collective(struct rank *rank)
{
    const struct pair_buffers at = pair_begin(rank, LARGE, 3);
    uint8_t *own = values_new(COLL_BF16, LARGE, 0), *all = values_new(COLL_BF16, (size_t)2 * LARGE, 0);
    values_fill(own, COLL_BF16, LARGE, VALUES_NOISE, seed_of(4, rank->rank, 0));
    if (rank->rank == 0) {
        require_ok(ncclGroupStart());
        send_to(rank, &at, 1);
    }
    require_ok(ncclAllGather(own, all, LARGE, COLL_BF16, rank->comm, rank->stream));
    if (rank->rank == 0)
        require_ok(ncclGroupEnd());
    else
        receive_from(rank, &at, 0);
    fake_stream_wait(rank->stream);
    for (int from = 0; from < 2; from++)
        require(values_are(all + (size_t)from * LARGE * 2, COLL_BF16, LARGE, VALUES_NOISE, seed_of(4, from, 0)));
    require(rank->rank == 0 || values_are(at.in, COLL_BF16, LARGE, VALUES_NOISE, seed_of(3, 0, 0)));
    values_free(at.out, COLL_BF16, 0);
    values_free(at.in, COLL_BF16, 0);
    values_free(own, COLL_BF16, 0);
    values_free(all, COLL_BF16, 0);
}

START_TEST(collectives_of_a_group_go_before_its_sends)
{
    begin();
    ranks_run(2, group_with_a_collective, NULL);
}
END_TEST

/* More messages of one group than there are records, all of which overflow. */
static void send_many(struct rank *rank)
{
    enum { TIMES = 300 };
    struct pair_buffers at[TIMES];
    const int peer = 1 - rank->rank;
    require_ok(ncclGroupStart());
    for (unsigned i = 0; i < TIMES; i++) {
        at[i] = pair_begin(rank, SMALL, i);
        send_to(rank, &at[i], peer);
        receive_from(rank, &at[i], peer);
    }
    require_ok(ncclGroupEnd());
    fake_stream_wait(rank->stream);
    for (unsigned i = 0; i < TIMES; i++)
        pair_end(&at[i], peer, i);
}

START_TEST(more_messages_than_records_arrive)
{
    begin();
    ranks_run(2, send_many, NULL);
}
END_TEST

/* A receiver that comes late is waited for. */
static void receive_late(struct rank *rank)
{
    const struct pair_buffers at = pair_begin(rank, LARGE, 5);
    if (rank->rank == 0) {
        send_to(rank, &at, 1);
        require(!fake_stream_idle(rank->stream));
    } else {
        usleep(300000);
        receive_from(rank, &at, 0);
    }
    fake_stream_wait(rank->stream);
    require(rank->rank == 0 || values_are(at.in, COLL_BF16, LARGE, VALUES_NOISE, seed_of(5, 0, 0)));
    values_free(at.out, COLL_BF16, 0);
    values_free(at.in, COLL_BF16, 0);
}

START_TEST(receivers_may_come_late)
{
    begin();
    fake_gpu.hurry = 200; /* ten seconds are 50 ms */
    ranks_run(2, receive_late, NULL);
}
END_TEST

/* Rank 1 never receives: what waits beside NCCL ends with the communicator. */
static coll_id id_for_all;

static void abort_beside(struct rank *rank)
{
    rank_begin(rank, id_for_all);
    const struct pair_buffers at = pair_begin(rank, LARGE, 6);
    if (rank->rank == 0) {
        require_ok(ncclGroupStart());
        send_to(rank, &at, 1);
        receive_from(rank, &at, 1);
        require_ok(ncclGroupEnd());
        while (fake_gpu.offered == 0)
            usleep(1000);
    }
    ranks_meet();
    require_ok(ncclCommAbort(rank->comm));
    fake_stream_wait(rank->stream);
    fake_stream_end(rank->stream);
    values_free(at.out, COLL_BF16, 0);
    values_free(at.in, COLL_BF16, 0);
}

START_TEST(aborting_ends_what_waits_beside)
{
    begin();
    require_ok(ncclGetUniqueId(&id_for_all));
    ranks_start(2, abort_beside, NULL);
    require(fake_gpu.made == 0);
}
END_TEST

/* ---- Collectives ------------------------------------------------------------------------------------------------- */

/* More than the rings hold, of which some fits: by one rank only, or by all. */
static void exchange_large(struct rank *rank)
{
    const bool all = *(const bool *)rank->argument;
    const size_t count = LARGE, ranks = (size_t)rank->ranks;
    uint8_t *out = values_new(COLL_BF16, count * ranks, 1), *in = values_new(COLL_BF16, count * ranks, 1);
    for (int to = 0; to < rank->ranks; to++)
        values_fill(out + (size_t)to * count * 2, COLL_BF16, count,
                    all || (rank->rank == 1 && to == 0) ? VALUES_NOISE : VALUES_NORMAL, seed_of(6, rank->rank, to));
    require_ok(ncclAlltoAll(out, in, count, COLL_BF16, rank->comm, rank->stream));
    fake_stream_wait(rank->stream);
    for (int from = 0; from < rank->ranks; from++)
        require(values_are(in + (size_t)from * count * 2, COLL_BF16, count,
                           all || (from == 1 && rank->rank == 0) ? VALUES_NOISE : VALUES_NORMAL,
                           seed_of(6, from, rank->rank)));
    values_free(out, COLL_BF16, 1);
    values_free(in, COLL_BF16, 1);
}

START_TEST(what_rings_do_not_hold_goes_through_them)
{
    const bool all = _i % 2 != 0;
    begin();
    ranks_run(2 + _i / 2, exchange_large, (void *)(uintptr_t)&all);
    const uint64_t slot = ((uint64_t)1 << 18) / (2 + (unsigned)_i / 2) / 4096 * 4096;
    const uint64_t messages = all ? (2 + (unsigned)_i / 2) * (1 + (unsigned)_i / 2) : 1;
    require(fake_gpu.taken == messages * ((2 * (uint64_t)LARGE + slot - 1) / slot)); /* and nothing that fits */
    require(fake_gpu.offered == fake_gpu.taken);
}
END_TEST

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

enum { GRAPH_COUNT = 50000, GRAPHS = 2, TURNS = 12 };

struct gather {
    uint8_t *own, *all;
};

static struct gather gather_begin(const struct rank *rank, unsigned number)
{
    const struct gather at = {values_new(COLL_BF16, GRAPH_COUNT, 0),
                              values_new(COLL_BF16, (size_t)rank->ranks * GRAPH_COUNT, 0)};
    values_fill(at.own, COLL_BF16, GRAPH_COUNT, number % 2 == 0 ? VALUES_NOISE : VALUES_NORMAL,
                seed_of(number, rank->rank, 7));
    return at;
}

static void gather_end(const struct rank *rank, const struct gather *at, unsigned number)
{
    for (int from = 0; from < rank->ranks; from++)
        require(values_are(at->all + (size_t)from * GRAPH_COUNT * 2, COLL_BF16, GRAPH_COUNT,
                           number % 2 == 0 ? VALUES_NOISE : VALUES_NORMAL, seed_of(number, from, 7)));
    values_free(at->own, COLL_BF16, 0);
    values_free(at->all, COLL_BF16, 0);
}

static void ask(const struct rank *rank, const struct gather *at, coll_stream stream)
{
    require_ok(ncclAllGather(at->own, at->all, GRAPH_COUNT, COLL_BF16, rank->comm, stream));
}

/* Graphs and calls take turns on streams of their own, and nobody waits for any of them in between. */
static void interleave(struct rank *rank)
{
    struct gather at[GRAPHS + TURNS];
    struct fake_graph *graphs[GRAPHS];
    coll_stream streams[GRAPHS];
    for (unsigned i = 0; i < GRAPHS + TURNS; i++)
        at[i] = gather_begin(rank, i);
    for (unsigned i = 0; i < GRAPHS; i++) {
        streams[i] = fake_stream_make();
        fake_capture_begin(streams[i]);
        ask(rank, &at[i], streams[i]);
        graphs[i] = fake_capture_end(streams[i]);
    }
    for (unsigned turn = 0; turn < TURNS; turn++) {
        ask(rank, &at[GRAPHS + turn], rank->stream);
        fake_graph_launch(graphs[turn % GRAPHS], streams[turn % GRAPHS]);
    }
    fake_stream_wait(rank->stream);
    for (unsigned i = 0; i < GRAPHS; i++)
        fake_stream_wait(streams[i]);
    for (unsigned i = 0; i < GRAPHS + TURNS; i++)
        gather_end(rank, &at[i], i);
    ranks_meet();
    for (unsigned i = 0; i < GRAPHS; i++) {
        fake_graph_end(graphs[i]);
        fake_stream_end(streams[i]);
    }
}

START_TEST(graphs_and_calls_keep_their_order)
{
    begin();
    ranks_run(_i, interleave, NULL);
}
END_TEST

/* Sends and receives in a graph, launched again and again. */
static void replay_pairs(struct rank *rank)
{
    const int next = (rank->rank + 1) % rank->ranks, before = (rank->rank + rank->ranks - 1) % rank->ranks;
    const struct pair_buffers at = pair_begin(rank, SMALL, 0);
    fake_capture_begin(rank->stream);
    require_ok(ncclGroupStart());
    send_to(rank, &at, next);
    receive_from(rank, &at, before);
    require_ok(ncclGroupEnd());
    struct fake_graph *graph = fake_capture_end(rank->stream);
    for (unsigned turn = 0; turn < 6; turn++) {
        const enum values kind = turn % 2 == 0 ? VALUES_NOISE : VALUES_NORMAL;
        values_fill(at.out, COLL_BF16, SMALL, kind, seed_of(turn, rank->rank, 0));
        fake_graph_launch(graph, rank->stream);
        fake_stream_wait(rank->stream);
        require(values_are(at.in, COLL_BF16, SMALL, kind, seed_of(turn, before, 0)));
    }
    ranks_meet();
    fake_graph_end(graph);
    values_free(at.out, COLL_BF16, 0);
    values_free(at.in, COLL_BF16, 0);
}

START_TEST(graphs_have_pairs)
{
    begin();
    ranks_run(_i, replay_pairs, NULL);
    require(fake_gpu.taken > 0);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("rings");
    tcase_add_loop_test(tests, one_side_may_group_what_the_other_does_not, 0, COUNT(one_sided));
    tcase_add_test(tests, sends_of_a_group_do_not_wait_for_each_other);
    tcase_add_test(tests, collectives_of_a_group_go_before_its_sends);
    tcase_add_test(tests, more_messages_than_records_arrive);
    tcase_add_test(tests, receivers_may_come_late);
    tcase_add_test(tests, aborting_ends_what_waits_beside);
    tcase_add_loop_test(tests, what_rings_do_not_hold_goes_through_them, 0, 4);
    tcase_add_loop_test(tests, graphs_and_calls_keep_their_order, 2, 4);
    tcase_add_loop_test(tests, graphs_have_pairs, 2, 4);
    return suite_run("rings", tests);
}
