/* Groups that some ranks make and others do not, streams of a group, and groups that fail. */
#include <string.h>
#include <unistd.h>

#include "tests/coll_engine/harness.h"

enum { MANY = 60000, TIMES = 4 };

static void set_up(void)
{
    fake_gpu.jitter_us = 300;
}

/* ---- Collectives and pairs --------------------------------------------------------------------------------------- */

/* What rank 0 sends rank 1 besides, in a group with a collective; NCCL moves the collective first. Rank 1 has neither
 * in a group. */
static const struct scene {
    enum coll_operation collective;
    const char *compressed; /* its name */
    bool before;            /* the sends are called first */
    size_t raw, coded;      /* how many values */
    int ranks;
} scenes[] = {
    {COLL_REDUCE_SCATTER, "reduce_scatter", false, 3, 0, 2},
    {COLL_REDUCE_SCATTER, "reduce_scatter", true, 3, 0, 2},
    {COLL_REDUCE_SCATTER, "reduce_scatter", false, 3, 40000, 3},
    {COLL_REDUCE_SCATTER, "reduce_scatter", true, 9000, 40000, 3},
    {COLL_ALL_REDUCE, "all_reduce", false, 3, 0, 2},
    {COLL_ALL_REDUCE, "all_reduce", true, 3, 40000, 2},
    {COLL_ALL_REDUCE, "all_reduce", false, 3, 0, 3},
    {COLL_ALL_REDUCE, "all_reduce", false, 0, 40000, 3},
    {COLL_ALL_REDUCE, "all_reduce", true, 9000, 40000, 3},
    {COLL_ALL_GATHER, "all_gather", true, 3, 40000, 3},
    {COLL_BROADCAST, "broadcast", true, 9000, 40000, 3},
    {COLL_BROADCAST, "broadcast", false, 3, 40000, 2},
};

struct all {
    float *own, *result;
    int32_t *raw;
    uint8_t *coded;
};

static coll_result call_collective(const struct rank *rank, enum coll_operation operation, const struct all *all)
{
    switch (operation) {
    case COLL_REDUCE_SCATTER:
        return ncclReduceScatter(all->own, all->result, MANY, COLL_FP32, COLL_SUM, rank->comm, rank->stream);
    case COLL_ALL_REDUCE:
        return ncclAllReduce(all->own, all->result, MANY, COLL_FP32, COLL_SUM, rank->comm, rank->stream);
    case COLL_ALL_GATHER:
        return ncclAllGather(all->own, all->result, MANY, COLL_FP32, rank->comm, rank->stream);
    default:
        return ncclBroadcast(all->own, all->result, MANY, COLL_FP32, 0, rank->comm, rank->stream);
    }
}

static void call_pairs(const struct rank *rank, const struct scene *scene, const struct all *all)
{
    if (rank->rank <= 1 && scene->raw > 0)
        require_ok(pair_post(rank, all->raw, COLL_INT32, scene->raw));
    if (rank->rank <= 1 && scene->coded > 0)
        require_ok(pair_post(rank, all->coded, COLL_BF16, scene->coded));
}

static void call_all(struct rank *rank, const struct scene *scene, const struct all *all)
{
    if (rank->rank == 0)
        require_ok(ncclGroupStart());
    if (rank->rank == 0 && scene->before)
        call_pairs(rank, scene, all);
    require_ok(call_collective(rank, scene->collective, all));
    if (rank->rank != 0 || !scene->before)
        call_pairs(rank, scene, all);
    if (rank->rank == 0)
        require_ok(ncclGroupEnd());
    fake_stream_wait(rank->stream);
}

static void fill(const struct rank *rank, const struct scene *scene, const struct all *all, unsigned turn)
{
    for (int part = 0; part < rank->ranks; part++)
        values_fill_whole(all->own + part * MANY, MANY, true, seed_of(turn, 0, 20 * part) + (unsigned)rank->rank);
    values_fill(all->raw, COLL_INT32, scene->raw, VALUES_NORMAL, seed_of(turn, rank->rank, 1));
    values_fill(all->coded, COLL_BF16, scene->coded, VALUES_NORMAL, seed_of(turn, rank->rank, 2));
}

/* Of each rank's own, or of one rank's, or of all ranks' sums. */
static void check_collective(const struct rank *rank, enum coll_operation operation, const float *result, unsigned turn)
{
    const bool sums = operation == COLL_REDUCE_SCATTER || operation == COLL_ALL_REDUCE;
    const int part = operation == COLL_REDUCE_SCATTER ? rank->rank : 0;
    const int results = operation == COLL_ALL_GATHER ? rank->ranks : 1;
    for (int from = 0; from < results; from++)
        require(values_are_sums(result + from * MANY, MANY, sums ? rank->ranks : 1, true,
                                seed_of(turn, 0, 20 * part) + (unsigned)from));
}

static void check(const struct rank *rank, const struct scene *scene, const struct all *all, unsigned turn)
{
    check_collective(rank, scene->collective, all->result, turn);
    if (rank->rank != 1)
        return;
    require(values_are(all->raw, COLL_INT32, scene->raw, VALUES_NORMAL, seed_of(turn, 0, 1)));
    require(values_are(all->coded, COLL_BF16, scene->coded, VALUES_NORMAL, seed_of(turn, 0, 2)));
}

static void play(struct rank *rank)
{
    const struct scene *scene = rank->argument;
    const size_t most = (size_t)MANY * (size_t)rank->ranks;
    const struct all all = {values_new(rank, COLL_FP32, most), values_new(rank, COLL_FP32, most),
                            values_new(rank, COLL_INT32, scene->raw), values_new(rank, COLL_BF16, scene->coded)};
    for (unsigned turn = 0; turn < TIMES; turn++) {
        fill(rank, scene, &all, turn);
        call_all(rank, scene, &all);
        check(rank, scene, &all, turn);
    }
    require(told_of(rank->comm, scene->compressed, "fp32").compressed == TIMES);
}

START_TEST(a_rank_that_groups_sends_with_a_collective_meets_one_that_does_not)
{
    ranks_run(scenes[_i].ranks, play, &scenes[_i]);
}
END_TEST

/* NCCL makes sends and receives of an all_to_all, in the order of the calls; also of one that goes raw. */
static void exchange_after_send(struct rank *rank)
{
    int32_t few[2] = {10 * rank->rank, 10 * rank->rank + 1}, got[2];
    uint8_t *sent = values_new(rank, COLL_BF16, MANY), *out = values_new(rank, COLL_BF16, 2 * MANY),
            *in = values_new(rank, COLL_BF16, 2 * MANY);
    for (unsigned turn = 0; turn < TIMES; turn++) {
        if (rank->rank == 0)
            values_fill(sent, COLL_BF16, MANY, VALUES_NORMAL, seed_of(turn, 0, 1));
        parts_fill(out, COLL_BF16, MANY, 2, VALUES_NORMAL, seed_of(turn, 10 + rank->rank, 0), 1);
        if (rank->rank == 0)
            require_ok(ncclGroupStart());
        require_ok(pair_post(rank, sent, COLL_BF16, MANY));
        require_ok(ncclAlltoAll(few, got, 1, COLL_INT32, rank->comm, rank->stream));
        require_ok(ncclAlltoAll(out, in, MANY, COLL_BF16, rank->comm, rank->stream));
        if (rank->rank == 0)
            require_ok(ncclGroupEnd());
        fake_stream_wait(rank->stream);
        require(got[0] == rank->rank && got[1] == 10 + rank->rank);
        require(values_are(sent, COLL_BF16, MANY, VALUES_NORMAL, seed_of(turn, 0, 1)));
        require(parts_are(in, COLL_BF16, MANY, 2, VALUES_NORMAL, seed_of(turn, 10, rank->rank), SEED_STEP));
    }
    require(told_of(rank->comm, "all_to_all", "bf16").compressed == TIMES);
}

/* ---- What is cut ------------------------------------------------------------------------------------------------- */

/* Long messages that are in no group on any rank leave head and tail uncompressed. Then rank 0 has one in a group:
 * before rank 1 comes to it, or after, which is an error, as rank 1 has cut its own; unless it only asks for an
 * estimate. */
enum { LONG = 1 << 20, ALONE = 17, LINK_FS = 400000 }; /* as much as is cut over such a link */

static void group_first(struct rank *rank, const struct gather *gather)
{
    if (rank->rank == 0)
        require_ok(ncclGroupStart());
    else
        ranks_meet();
    require_ok(gather_post(rank, gather));
    if (rank->rank == 0) {
        ranks_meet();
        require_ok(ncclGroupEnd());
    }
    gather_check(rank, gather);
    gather_run(rank, gather, false);
    require_ok(ncclCommDestroy(rank->comm));
}

/* Rank 1 has begun it when rank 0 calls it in a group. */
static void begin_behind(const struct rank *rank, const struct gather *gather)
{
    if (rank->rank == 1)
        require_ok(gather_post(rank, gather));
    ranks_meet();
    if (rank->rank == 0) {
        require_ok(ncclGroupStart());
        require_ok(gather_post(rank, gather));
    }
}

static void group_behind(struct rank *rank, const struct gather *gather)
{
    begin_behind(rank, gather);
    if (rank->rank == 0) {
        require(ncclGroupEnd() == COLL_INVALID_USAGE);
        require(error_of(rank->comm) == COLL_INVALID_USAGE);
    }
    ranks_meet();
    require_ok(ncclCommAbort(rank->comm));
    fake_stream_wait(rank->stream);
}

static void estimate_behind(struct rank *rank, const struct gather *gather)
{
    begin_behind(rank, gather);
    if (rank->rank == 0) {
        require_ok(ncclGroupSimulateEnd(NULL));
        require_ok(gather_post(rank, gather));
    }
    gather_check(rank, gather);
    require_ok(error_of(rank->comm));
    ranks_meet();
    require_ok(ncclCommDestroy(rank->comm));
}

static const struct later {
    void (*play)(struct rank *rank, const struct gather *gather);
    int type;
} laters[] = {{group_first, COLL_BF16},
              {group_behind, COLL_BF16},
              {group_behind, COLL_FP16}, /* which only pays because it is cut */
              {estimate_behind, COLL_BF16}};

static void cut(struct rank *rank)
{
    const struct later *later = rank->argument;
    const struct gather gather = gather_new(rank, later->type, LONG, VALUES_NORMAL);
    rank_begin(rank);
    for (unsigned i = 0; i < ALONE; i++) {
        require_ok(gather_post(rank, &gather));
        fake_stream_wait(rank->stream);
        ranks_meet();
    }
    require(told_of(rank->comm, "all_gather", type_name(later->type)).compressed > 0);
    later->play(rank, &gather);
    fake_stream_end(rank->stream);
}

START_TEST(an_operation_that_one_rank_groups_later_ends_cutting_or_fails)
{
    if (getenv("STRAIT_TEST_HOSTS") != NULL)
        return; /* nothing is cut there */
    links_begin(0, LINK_FS);
    ranks_start_and_leak(2, cut, &laters[_i]);
}
END_TEST

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

struct copying {
    uint8_t *to;
    const uint8_t *from;
    size_t size;
};

static void copy_late(coll_stream stream, void *argument)
{
    const struct copying *copying = argument;
    (void)stream;
    usleep(30000);
    memcpy(copying->to, copying->from, copying->size);
}

static void queue_copy(coll_stream stream, uint8_t *to, const uint8_t *from, size_t size)
{
    const struct copying copying = {to, from, size};
    fake_queue(stream, copy_late, NULL, &copying, sizeof(copying));
}

/* What is gathered is written on one stream, gathered on another, and read on the first: the group is what orders them.
 * The first has a call of its own in it, compressed or not. */
static void cross_streams(struct rank *rank)
{
    const bool raw = *(const int *)rank->argument % 2 != 0;
    const size_t size = MANY * 2, all = MANY * (size_t)rank->ranks;
    struct rank second = *rank;
    struct gather other = gather_new(rank, COLL_BF16, MANY, VALUES_NORMAL), gather = other;
    uint8_t *source = values_new(rank, COLL_BF16, MANY), *read = values_new(rank, COLL_BF16, all);
    gather.own = values_new(rank, COLL_BF16, MANY);
    gather.all = values_new(rank, COLL_BF16, all);
    other.count = raw ? 100 : MANY;
    second.stream = fake_stream_make();
    for (unsigned turn = 0; turn < TIMES; turn++) {
        values_fill(source, COLL_BF16, MANY, VALUES_NORMAL, seed_of(turn, rank->rank, 0));
        memset(read, 0, all * 2);
        queue_copy(rank->stream, gather.own, source, size);
        require_ok(ncclGroupStart());
        require_ok(gather_post(rank, &other));
        require_ok(gather_post(&second, &gather));
        require_ok(ncclGroupEnd());
        queue_copy(rank->stream, read, gather.all, all * 2);
        fake_stream_wait(rank->stream);
        require(parts_are(read, COLL_BF16, MANY, rank->ranks, VALUES_NORMAL, seed_of(turn, 0, 0), SEED_STEP));
        ranks_meet();
    }
    require(told_of(rank->comm, "all_gather", "bf16").compressed == (raw ? TIMES : 2 * TIMES));
    fake_stream_wait(second.stream);
    ranks_meet();
    fake_stream_end(second.stream);
}

START_TEST(streams_of_a_group_wait_for_each_other)
{
    fake_gpu.jitter_us = 0;
    ranks_run(2 + _i / 2, cross_streams, &_i);
}
END_TEST

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

/* One rank's group is refused, and comes again without what was wrong: the refused one counts as nothing, or else
 * levels would change at different operations. */
static void post_again_after_refusal(struct rank *rank)
{
    enum { SENT = 40000, TURNS = 40 };
    const int peer = 1 - rank->rank;
    uint8_t *out = values_new(rank, COLL_BF16, SENT), *in = values_new(rank, COLL_BF16, SENT);
    for (unsigned turn = 0; turn < TURNS; turn++) {
        const enum values kind = turn < 30 ? VALUES_NOISE : VALUES_NORMAL;
        values_fill(out, COLL_BF16, SENT, kind, seed_of(turn, rank->rank, 0));
        if (rank->rank == 0 && turn < 5) {
            require_ok(ncclGroupStart());
            require_ok(ncclSend(out, SENT, COLL_BF16, peer, rank->comm, rank->stream));
            require(turn % 2 == 0 ? ncclBroadcast(out, in, 1, COLL_INT32, 99, rank->comm, rank->stream) != COLL_SUCCESS
                                  : ncclSend(out, 1, COLL_INT32, 99, rank->comm, rank->stream) != COLL_SUCCESS);
            require(ncclGroupEnd() != COLL_SUCCESS);
        }
        require_ok(ring_post(rank, out, in, COLL_BF16, SENT));
        fake_stream_wait(rank->stream);
        require(values_are(in, COLL_BF16, SENT, kind, seed_of(turn, peer, 0)));
        ranks_meet();
    }
}

/* When all of it was encoded, which cannot be taken back. */
static void end_refused(struct rank *rank)
{
    const struct gather gather = gather_new(rank, COLL_BF16, MANY, VALUES_NORMAL);
    rank_begin(rank);
    rank_gather(rank, rank->comm, true);
    ranks_meet();
    if (rank->rank == 0) {
        require_ok(ncclGroupStart());
        require_ok(gather_post(rank, &gather));
        fake_nccl.refuse = 1;
        const coll_result ended = ncclGroupEnd();
        require(ended != COLL_SUCCESS && error_of(rank->comm) == ended);
        require(gather_post(rank, &gather) == ended);
    }
    ranks_meet();
    require_ok(ncclCommAbort(rank->comm));
    fake_stream_end(rank->stream);
}

int main(void)
{
    TCase *tests = tcase_create("order");
    tcase_add_checked_fixture(tests, set_up, NULL);
    add_loop(tests, a_rank_that_groups_sends_with_a_collective_meets_one_that_does_not, 0, COUNT(scenes));
    add_ranks(tests, "an_all_to_all_comes_after_the_send_before_it", ranks_run, exchange_after_send, 2, 1);
    tcase_add_loop_test(tests, an_operation_that_one_rank_groups_later_ends_cutting_or_fails, 0, COUNT(laters));
    tcase_add_loop_test(tests, streams_of_a_group_wait_for_each_other, 0, 4);
    add_ranks(tests, "a_group_with_a_refused_call_counts_as_nothing", ranks_run, post_again_after_refusal, 2, 1);
    add_ranks(tests, "a_group_that_is_refused_at_its_end_fails_the_communicator", ranks_start, end_refused, 2, 1);
    return suite_run("order", tests);
}
