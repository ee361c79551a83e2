/* What does not fit goes by the rings whatever groups, streams and graphs it is in, and whoever comes first. */
#include <string.h>
#include <unistd.h>

#include "tests/coll_engine/harness.h"

enum {
    SMALL = 40001,  /* finds room in a ring */
    LARGE = 9 << 20 /* values; more than a ring of two ranks has */
};

static void set_up(void)
{
    fake_gpu.jitter_us = 200;
}

/* ---- Pairs in any groups ----------------------------------------------------------------------------------------- */

struct pair {
    uint8_t *out, *in;
    size_t count;
};

static struct pair pair_new(const struct rank *rank, size_t count, unsigned turn)
{
    const struct pair pair = {values_new(rank, COLL_BF16, count), values_new(rank, COLL_BF16, count), count};
    values_fill(pair.out, COLL_BF16, count, VALUES_NOISE, seed_of(turn, rank->rank, 0));
    return pair;
}

static void pair_check(const struct pair *pair, int from, unsigned turn)
{
    require(values_are(pair->in, COLL_BF16, pair->count, VALUES_NOISE, seed_of(turn, from, 0)));
}

static void send_to(const struct rank *rank, const struct pair *pair, int peer)
{
    require_ok(ncclSend(pair->out, pair->count, COLL_BF16, peer, rank->comm, rank->stream));
}

static void receive_from(const struct rank *rank, const struct pair *pair, int peer)
{
    require_ok(ncclRecv(pair->in, pair->count, COLL_BF16, peer, rank->comm, rank->stream));
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
        const struct pair pair = pair_new(rank, how->count, turn);
        if (rank->rank == 0)
            require_ok(ncclGroupStart());
        if (rank->rank == 0 || !how->receives_first)
            send_to(rank, &pair, 1 - rank->rank);
        receive_from(rank, &pair, 1 - rank->rank);
        if (rank->rank == 1 && how->receives_first)
            send_to(rank, &pair, 0);
        if (rank->rank == 0)
            require_ok(ncclGroupEnd());
        fake_stream_wait(rank->stream);
        pair_check(&pair, 1 - rank->rank, turn);
    }
}

static const struct one_sided one_sided[] = {{SMALL, false}, {SMALL, true}, {LARGE, false}, {LARGE, true}};

START_TEST(one_rank_may_group_a_pair_that_the_other_does_not)
{
    ranks_run(2, group_on_one_side, &one_sided[_i]);
    require(fake_gpu.taken > 0);
}
END_TEST

/* Rank 0 has no receive, but what it sends second is not taken before what it sends first has arrived. */
static void group_without_receives(struct rank *rank)
{
    const struct pair first = pair_new(rank, LARGE, 1), second = pair_new(rank, LARGE, 2);
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
        pair_check(&first, 0, 1);
    if (rank->rank == 2) {
        pair_check(&first, 1, 2);
        pair_check(&second, 0, 2);
    }
}

/* Rank 0 has a send before a collective in one group; rank 1 has the collective first, then the receive. */
static void group_with_a_collective(struct rank *rank)
{
    const struct pair pair = pair_new(rank, LARGE, 3);
    const struct gather gather = gather_new(rank, COLL_BF16, LARGE, VALUES_NOISE);
    if (rank->rank == 0) {
        require_ok(ncclGroupStart());
        send_to(rank, &pair, 1);
    }
    require_ok(gather_post(rank, &gather));
    if (rank->rank == 0)
        require_ok(ncclGroupEnd());
    else
        receive_from(rank, &pair, 0);
    gather_check(rank, &gather);
    if (rank->rank == 1)
        pair_check(&pair, 0, 3);
}

/* In one group, and all overflow. */
static void send_many(struct rank *rank)
{
    enum { TIMES = 300 };
    struct pair pairs[TIMES];
    const int peer = 1 - rank->rank;
    require_ok(ncclGroupStart());
    for (unsigned i = 0; i < TIMES; i++) {
        pairs[i] = pair_new(rank, SMALL, i);
        send_to(rank, &pairs[i], peer);
        receive_from(rank, &pairs[i], peer);
    }
    require_ok(ncclGroupEnd());
    fake_stream_wait(rank->stream);
    for (unsigned i = 0; i < TIMES; i++)
        pair_check(&pairs[i], peer, i);
}

/* By a send, or by a broadcast. */
static void receive_late(struct rank *rank)
{
    const bool broadcasts = *(const int *)rank->argument != 0;
    const struct pair pair = pair_new(rank, LARGE, 5);
    if (rank->rank == 0) {
        if (broadcasts)
            require_ok(ncclBcast(pair.out, LARGE, COLL_BF16, 0, rank->comm, rank->stream));
        else
            send_to(rank, &pair, 1);
        require(!fake_stream_idle(rank->stream));
    } else {
        usleep(300000);
        if (broadcasts)
            require_ok(ncclBcast(pair.in, LARGE, COLL_BF16, 0, rank->comm, rank->stream));
        else
            receive_from(rank, &pair, 0);
    }
    fake_stream_wait(rank->stream);
    if (rank->rank == 1)
        pair_check(&pair, 0, 5);
}

START_TEST(a_receiver_that_comes_late_is_waited_for)
{
    fake_gpu.hurry = 200; /* ten seconds are 50 ms */
    ranks_run(2, receive_late, &_i);
}
END_TEST

/* Rank 1 never receives: what waits beside NCCL ends with the communicator. */
static void abort_beside(struct rank *rank)
{
    const struct pair pair = pair_new(rank, LARGE, 6);
    rank_begin(rank);
    if (rank->rank == 0) {
        require_ok(ncclGroupStart());
        send_to(rank, &pair, 1);
        receive_from(rank, &pair, 1);
        require_ok(ncclGroupEnd());
        while (fake_gpu.offered == 0)
            usleep(1000);
    }
    ranks_meet();
    rank_abort(rank);
}

/* ---- Collectives ------------------------------------------------------------------------------------------------- */

/* More than the rings hold: all of it by all ranks, or one block of rank 1 beside what fits. */
static void exchange_large(struct rank *rank)
{
    const bool all = *(const int *)rank->argument % 2 != 0;
    struct operation operation = {.what = COLL_ALL_TO_ALL,
                                  .type = COLL_BF16,
                                  .count = LARGE,
                                  .kind = all ? VALUES_NOISE : VALUES_NORMAL,
                                  .other = VALUES_NOISE};
    operation_new(rank, &operation, 1, false);
    operation_fill(rank, &operation);
    if (rank->rank == 1)
        values_fill(operation.out, COLL_BF16, LARGE, VALUES_NOISE, seed_of(0, 1, 0));
    require_ok(operation_post(rank, &operation));
    operation.others = rank->rank == 0 ? 1u << 1 : 0;
    operation_check(rank, &operation);
}

START_TEST(overflow_larger_than_a_ring_goes_through_it)
{
    const unsigned ranks = 2 + (unsigned)_i / 2, messages = _i % 2 != 0 ? ranks * (ranks - 1) : 1;
    ranks_run((int)ranks, exchange_large, &_i);
    const uint64_t slot = ((uint64_t)1 << 18) / ranks / 4096 * 4096;
    require(fake_gpu.taken == messages * ((2 * (uint64_t)LARGE + slot - 1) / slot)); /* and nothing that fits */
    require(fake_gpu.offered == fake_gpu.taken);
}
END_TEST

/* Every rank broadcasts, all in one group, of which rank 0's do not fit and go through the rings twice around. What
 * rank 1 sends to rank 0 besides comes after them, and on other ranks in no group. */
static void broadcast_from_all(struct rank *rank)
{
    struct operation operations[4];
    const struct pair pair = pair_new(rank, SMALL, 7);
    for (int root = 0; root < rank->ranks; root++) {
        operations[root] = (struct operation){.what = COLL_BROADCAST,
                                              .type = COLL_BF16,
                                              .count = LARGE / (size_t)rank->ranks,
                                              .other = VALUES_NOISE,
                                              .others = 1,
                                              .root = root,
                                              .seed = seed_of((unsigned)root, 0, 0)};
        operation_new(rank, &operations[root], 0, root % 2 == 1);
        operation_fill(rank, &operations[root]);
    }
    require_ok(ncclGroupStart());
    if (rank->rank == 1)
        send_to(rank, &pair, 0);
    for (int root = 0; root < rank->ranks; root++)
        require_ok(operation_post(rank, &operations[root]));
    require_ok(ncclGroupEnd());
    if (rank->rank == 0)
        receive_from(rank, &pair, 1);
    for (int root = 0; root < rank->ranks; root++)
        operation_check(rank, &operations[root]);
    if (rank->rank == 0)
        pair_check(&pair, 1, 7);
    const unsigned all = (unsigned)rank->ranks;
    require_told(rank->comm, "broadcast", "bf16", all, all);
    require(fake_gpu.taken > 0);
}

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

enum { GRAPHS = 2, TURNS = 12 };

/* Graphs and calls take turns on streams of their own, and nobody waits for any of them in between. */
static void interleave(struct rank *rank)
{
    struct gather gathers[GRAPHS + TURNS];
    struct fake_graph *graphs[GRAPHS];
    struct rank sides[GRAPHS];
    for (unsigned i = 0; i < GRAPHS + TURNS; i++) {
        gathers[i] = gather_new(rank, COLL_BF16, 50000, VALUES_NORMAL);
        gather_fill(rank, &gathers[i], i % 2 == 0 ? VALUES_NOISE : VALUES_NORMAL, seed_of(i, 0, 0));
    }
    for (unsigned i = 0; i < GRAPHS; i++) {
        sides[i] = *rank;
        sides[i].stream = fake_stream_make();
        fake_capture_begin(sides[i].stream);
        require_ok(gather_post(&sides[i], &gathers[i]));
        graphs[i] = fake_capture_end(sides[i].stream);
    }
    for (unsigned turn = 0; turn < TURNS; turn++) {
        require_ok(gather_post(rank, &gathers[GRAPHS + turn]));
        fake_graph_launch(graphs[turn % GRAPHS], sides[turn % GRAPHS].stream);
    }
    for (unsigned i = 0; i < GRAPHS + TURNS; i++)
        gather_check(i < GRAPHS ? &sides[i] : rank, &gathers[i]);
    ranks_meet();
    for (unsigned i = 0; i < GRAPHS; i++) {
        fake_graph_end(graphs[i]);
        fake_stream_end(sides[i].stream);
    }
}

/* Launched again and again. */
static void replay(struct rank *rank)
{
    static const enum coll_operation whats[] = {COLL_SEND, COLL_BROADCAST};
    struct operation operation = {
        .what = whats[*(const int *)rank->argument % 2], .type = COLL_BF16, .count = SMALL, .root = 1};
    operation_new(rank, &operation, 0, false);
    fake_capture_begin(rank->stream);
    require_ok(operation_post(rank, &operation));
    struct fake_graph *graph = fake_capture_end(rank->stream);
    for (unsigned turn = 0; turn < 6; turn++) {
        operation.kind = turn % 2 == 0 ? VALUES_NOISE : VALUES_NORMAL;
        operation.seed = seed_of(turn, 0, 0);
        operation_fill(rank, &operation);
        fake_graph_launch(graph, rank->stream);
        operation_check(rank, &operation);
    }
    ranks_meet();
    fake_graph_end(graph);
}

START_TEST(graphs_overflow)
{
    ranks_run(2 + _i / 2, replay, &_i);
    require(fake_gpu.taken > 0);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("rings");
    tcase_add_checked_fixture(tests, set_up, NULL);
    tcase_add_loop_test(tests, one_rank_may_group_a_pair_that_the_other_does_not, 0, COUNT(one_sided));
    add_ranks(tests, "sends_of_a_group_do_not_wait_for_each_other", ranks_run, group_without_receives, 3, 1);
    add_ranks(tests, "collectives_of_a_group_go_before_its_sends", ranks_run, group_with_a_collective, 2, 1);
    add_ranks(tests, "more_messages_than_records_arrive", ranks_run, send_many, 2, 1);
    tcase_add_loop_test(tests, a_receiver_that_comes_late_is_waited_for, 0, 2);
    add_ranks(tests, "abort_ends_what_waits_beside_nccl", ranks_start, abort_beside, 2, 1);
    tcase_add_loop_test(tests, overflow_larger_than_a_ring_goes_through_it, 0, 4);
    for (int ranks = 2; ranks <= 4; ranks++)
        add_ranks(tests, "broadcasts_of_all_ranks_are_in_one_group", ranks_run, broadcast_from_all, ranks, 1);
    add_ranks(tests, "graphs_and_calls_keep_their_order", ranks_run, interleave, 2, 1);
    add_ranks(tests, "graphs_and_calls_keep_their_order", ranks_run, interleave, 3, 1);
    tcase_add_loop_test(tests, graphs_overflow, 0, 4);
    return suite_run("rings", tests);
}
