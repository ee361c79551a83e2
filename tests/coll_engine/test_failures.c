/* What goes wrong is told, ends nothing but its communicator, and leaves nobody waiting who can be aborted. */
#include <strait/collective.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collective/engine/hosts.h"
#include "tests/coll_engine/harness.h"

enum { COUNT_OF = 40001, BYTES = COUNT_OF * 2 };

static void compress(void)
{
    setenv("STRAIT_COLL", "compress", 1);
}

#define SOON_MS       200
#define IMPATIENCE_MS 5000  /* half of what kernels wait for others */
#define PATIENCE_MS   20000 /* for what comes to its end on any machine */

static coll_id id_for_all;

static void abort_rank(struct rank *rank)
{
    require_ok(ncclCommAbort(rank->comm));
    fake_stream_wait(rank->stream);
    fake_stream_end(rank->stream);
}

/* ---- A rank that does not come ------------------------------------------------------------------------------------
 */

/* Of rank 1 NCCL moves nothing of what did not fit: rank 0 waits on its stream, and its thread too. */
static void lose(struct rank *rank)
{
    uint8_t *own = values_new(COLL_BF16, COUNT_OF, 0), *all = values_new(COLL_BF16, COUNT_OF * 2, 0);
    rank_begin(rank, id_for_all);
    ranks_meet();
    fake_gpu.lost = 1u << 1;
    values_fill(own, COLL_BF16, COUNT_OF, VALUES_NOISE, (unsigned)rank->rank);
    require_ok(ncclAllGather(own, all, COUNT_OF, COLL_BF16, rank->comm, rank->stream));
    require_ok(ncclAllGather(own, all, COUNT_OF, COLL_BF16, rank->comm, rank->stream)); /* behind it */
    if (rank->rank == 0 && rank->argument == NULL) {
        require(!ends_within(rank->stream, SOON_MS));
        require(error_of(rank->comm) == COLL_SUCCESS);
    } else if (rank->rank == 0) {
        await_error(rank->comm);
        require(ends_within(rank->stream, PATIENCE_MS)); /* the second one too, which need not wait */
    }
    ranks_meet();
    abort_rank(rank);
    values_free(own, COLL_BF16, 0);
    values_free(all, COLL_BF16, 0);
}

START_TEST(aborting_ends_waiting_for_what_did_not_fit)
{
    compress();
    require_ok(ncclGetUniqueId(&id_for_all));
    ranks_start(2, lose, NULL);
    require(fake_gpu.made == 0);
}
END_TEST

/* Nobody waits for ever for a rank that is lost: its watchdog learns of it, though the thread is busy with it. */
START_TEST(waiting_for_what_did_not_fit_ends_as_an_error)
{
    static int patient;
    compress();
    require_ok(ncclGetUniqueId(&id_for_all));
    fake_gpu.hurry = 20;
    ranks_start(2, lose, &patient);
    require(fake_gpu.made == 0);
}
END_TEST

/* What has failed is not begun anew, however its messages would be cut: the other rank has gone. */
static void call_after(struct rank *rank)
{
    enum { LONG = 8 * 16384 };
    uint8_t *own = values_new(COLL_BF16, LONG, 0), *all = values_new(COLL_BF16, LONG * 2, 0);
    rank_begin(rank, id_for_all);
    if (rank->argument != NULL)
        overlap_warm_up(rank, rank->comm, COLL_BF16);
    ranks_meet();
    fake_gpu.lost = 1u << 1;
    values_fill(own, COLL_BF16, LONG, VALUES_NOISE, (unsigned)rank->rank);
    require_ok(ncclAllGather(own, all, LONG, COLL_BF16, rank->comm, rank->stream));
    if (rank->rank == 0) {
        await_error(rank->comm);
        require(ncclAllGather(own, all, LONG, COLL_BF16, rank->comm, rank->stream) == COLL_REMOTE_ERROR);
        require(ends_within(rank->stream, PATIENCE_MS));
    }
    ranks_meet();
    abort_rank(rank);
    values_free(own, COLL_BF16, 0);
    values_free(all, COLL_BF16, 0);
}

START_TEST(calls_after_a_failure_fail)
{
    static bool overlaps = true;
    compress();
    if (_i > 0)
        overlap_begin();
    require_ok(ncclGetUniqueId(&id_for_all));
    fake_gpu.hurry = 20;
    ranks_start(2, call_after, _i > 0 ? &overlaps : NULL);
    require(fake_gpu.made == 0);
}
END_TEST

/* Rank 1 never calls. */
static void call_alone(struct rank *rank)
{
    uint8_t *own = values_new(COLL_BF16, COUNT_OF, 0), *all = values_new(COLL_BF16, COUNT_OF * 2, 0);
    rank_begin(rank, id_for_all);
    values_fill(own, COLL_BF16, COUNT_OF, VALUES_NORMAL, 0);
    if (rank->rank == 0) {
        require_ok(ncclAllGather(own, all, COUNT_OF, COLL_BF16, rank->comm, rank->stream));
        require(!ends_within(rank->stream, SOON_MS));
    }
    abort_rank(rank);
    values_free(own, COLL_BF16, 0);
    values_free(all, COLL_BF16, 0);
}

START_TEST(aborting_ends_waiting_for_messages)
{
    compress();
    require_ok(ncclGetUniqueId(&id_for_all));
    ranks_start(2, call_alone, NULL);
    require(fake_gpu.made == 0);
}
END_TEST

/* The stream of rank 0 stands still for a reason of its own, and goes on after the abort. */
static atomic_bool gate;

static void wait_at_gate(coll_stream stream, void *argument)
{
    (void)stream;
    (void)argument;
    while (!gate)
        usleep(1000);
}

static void stand_still(struct rank *rank)
{
    uint8_t *own = values_new(COLL_BF16, COUNT_OF, 0), *all = values_new(COLL_BF16, COUNT_OF * 2, 0);
    rank_begin(rank, id_for_all);
    values_fill(own, COLL_BF16, COUNT_OF, VALUES_NORMAL, 0);
    if (rank->rank == 0)
        fake_queue(rank->stream, wait_at_gate, NULL, &rank, sizeof(rank));
    require_ok(ncclAllGather(own, all, COUNT_OF, COLL_BF16, rank->comm, rank->stream));
    require_ok(ncclCommAbort(rank->comm));
    ranks_meet();
    gate = true;
    fake_stream_wait(rank->stream);
    fake_stream_end(rank->stream);
    values_free(own, COLL_BF16, 0);
    values_free(all, COLL_BF16, 0);
}

START_TEST(aborting_waits_for_no_other_work)
{
    compress();
    require_ok(ncclGetUniqueId(&id_for_all));
    ranks_start(2, stand_still, NULL);
    require(fake_gpu.made > 0); /* of rank 0 only, whose memory was in use */
}
END_TEST

/* ---- Bytes that change on their way -------------------------------------------------------------------------------
 */

/* In a message: its head (what it begins with, its row, what is needed, its sum), its chunk's header, its tables, its
 * blocks. */
static const uint32_t bad_bytes[] = {0, 3, 12, 16, 32, 33, 95, 96, 104, 128, 129, 140, 1000, 5000};

static void receive_bad(struct rank *rank)
{
    const uint32_t at = bad_bytes[*(int *)rank->argument];
    uint8_t *in = values_new(COLL_BF16, COUNT_OF, 0);
    rank_begin(rank, id_for_all);
    values_fill(in, COLL_BF16, COUNT_OF, VALUES_NORMAL, 0);
    if (rank->rank == 0) {
        fake_nccl.corrupt_at = at;
        fake_nccl.corrupt_least = 4096;
        fake_nccl.corrupt = 1;
        require_ok(ncclSend(in, COUNT_OF, COLL_BF16, 1, rank->comm, rank->stream));
    } else {
        require_ok(ncclRecv(in, COUNT_OF, COLL_BF16, 0, rank->comm, rank->stream));
    }
    require(ends_within(rank->stream, IMPATIENCE_MS)); /* and waits for nobody */
    if (rank->rank == 1)
        await_error(rank->comm);
    else
        require(error_of(rank->comm) == COLL_SUCCESS);
    ranks_meet();
    abort_rank(rank);
    values_free(in, COLL_BF16, 0);
}

START_TEST(corrupt_messages_are_errors)
{
    compress();
    require_ok(ncclGetUniqueId(&id_for_all));
    ranks_start(2, receive_bad, &_i);
    require(fake_gpu.made == 0);
}
END_TEST

/* ---- What cannot be had -------------------------------------------------------------------------------------------
 */

/* A flow of operations, some of which overflow, on ranks that are aborted as soon as one of them fails. */
struct flow {
    _Atomic int32_t *countdown; /* set to n: when communicators are there, if `late`, else before */
    int32_t n;
    bool late;
    _Atomic int failed, raw, done;
};

static bool wait_or_give_up(struct rank *rank, struct flow *flow)
{
    while (!fake_stream_idle(rank->stream) && !flow->failed)
        usleep(200);
    if (error_of(rank->comm) != COLL_SUCCESS)
        flow->failed = 1;
    return !flow->failed;
}

static void flow(struct rank *rank)
{
    enum { TURNS = 5 };
    struct flow *flow = rank->argument;
    uint8_t *own = values_new(COLL_BF16, 4 * COUNT_OF, 0), *all = values_new(COLL_BF16, 8 * COUNT_OF, 0);
    if (rank->rank == 0 && !flow->late)
        *flow->countdown = flow->n;
    ranks_meet();
    rank_begin(rank, id_for_all);
    ranks_meet();
    if (rank->rank == 0 && flow->late)
        *flow->countdown = flow->n;
    ranks_meet();
    bool good = true;
    for (unsigned turn = 0; turn < TURNS && good; turn++) {
        const size_t count = turn < 3 ? COUNT_OF : 4 * COUNT_OF; /* for which there is no room yet */
        const enum values kind = turn == 1 ? VALUES_NOISE : VALUES_NORMAL;
        values_fill(own, COLL_BF16, count, kind, 10 * turn + (unsigned)rank->rank);
        if (turn == 2)
            fake_capture_begin(rank->stream);
        const coll_result result = ncclAllGather(own, all, count, COLL_BF16, rank->comm, rank->stream);
        if (turn == 2) {
            struct fake_graph *graph = fake_capture_end(rank->stream);
            if (result == COLL_SUCCESS)
                fake_graph_launch(graph, rank->stream);
            fake_graph_end(graph);
        }
        if (result != COLL_SUCCESS)
            flow->failed = 1;
        good = wait_or_give_up(rank, flow);
        for (unsigned from = 0; from < 2 && good; from++)
            require(values_are(all + from * count * 2, COLL_BF16, count, kind, 10 * turn + from));
    }
    const struct told told = told_of(rank->comm, "all_gather", "bf16");
    flow->raw += told.calls > 0 && told.compressed == 0;
    flow->done += good;
    ranks_meet();
    if (flow->failed)
        abort_rank(rank);
    else
        rank_end(rank);
    values_free(own, COLL_BF16, 0);
    values_free(all, COLL_BF16, 0);
}

/* Says nothing when all is well: errors or none, but alike, and all that was made is gone. */
static struct flow run_flow(_Atomic int32_t *countdown, int32_t n, bool late)
{
    struct flow state = {.countdown = countdown, .n = n, .late = late};
    require_ok(ncclGetUniqueId(&id_for_all));
    ranks_start(2, flow, &state);
    require(fake_gpu.made == 0);
    require(state.failed || (state.done == 2 && (state.raw == 0 || state.raw == 2)));
    return state;
}

static void fail_every(const char *way, _Atomic int32_t *countdown, bool late)
{
    int raw = 0, failed = 0;
    setenv("STRAIT_COLL", way, 1);
    for (int32_t n = 1;; n++) {
        const struct flow state = run_flow(countdown, n, late);
        raw += state.raw == 2;
        failed += state.failed;
        if (*countdown > 0) {
            require(!state.failed && state.raw == 0);
            break;
        }
    }
    *countdown = 0;
    printf("%d times raw, %d times an error\n", raw, failed);
    require(raw + failed > 0);
}

START_TEST(what_cannot_be_made_is_an_error_or_stays_raw)
{
    fake_gpu.link_ns[0] = fake_gpu.link_ns[1] = 20000;
    fake_gpu.link_fs[0] = fake_gpu.link_fs[1] = 10000000;
    fake_gpu.fail_device = _i == 1 ? -1 : 0; /* of rank 0, or of both by chance */
    fail_every(_i < 2 ? "compress" : "auto", &fake_gpu.fail_making, false);
}
END_TEST

/* From the first operation on: before, all ranks would wait for the one that cannot even tell that it cannot. */
START_TEST(work_that_cannot_be_asked_for_is_an_error)
{
    fail_every("compress", &fake_gpu.fail_work, true);
}
END_TEST

/* ---- Ranks that differ --------------------------------------------------------------------------------------------
 */

static void require_raw(struct rank *rank)
{
    uint8_t *own = values_new(COLL_BF16, COUNT_OF, 0), *all = values_new(COLL_BF16, COUNT_OF * 3, 0);
    values_fill(own, COLL_BF16, COUNT_OF, VALUES_NORMAL, (unsigned)rank->rank);
    require_ok(ncclAllGather(own, all, COUNT_OF, COLL_BF16, rank->comm, rank->stream));
    fake_stream_wait(rank->stream);
    for (unsigned from = 0; from < 3; from++)
        require(values_are(all + from * BYTES, COLL_BF16, COUNT_OF, VALUES_NORMAL, from));
    const struct told told = told_of(rank->comm, "all_gather", "bf16");
    require(told.calls == 1 && told.compressed == 0);
    require(strstr(told.reason, "raw: the ranks could not agree") != NULL);
    values_free(own, COLL_BF16, 0);
    values_free(all, COLL_BF16, 0);
}

/* Of what ranks tell each other: the format, its version, settings, the release. */
static const uint32_t differences[] = {0, 8, 16, 20, 24, 28, 32, 40, 152, 160};

START_TEST(ranks_that_differ_stay_raw)
{
    compress();
    fake_nccl.differ = 1 + _i % 3;
    fake_nccl.differ_size = 192;
    fake_nccl.differ_at = differences[_i / 3];
    ranks_run(3, require_raw, NULL);
    require(fake_gpu.taken == 0);
}
END_TEST

/* As one of another host, or one that may not look at the process that made the memory. */
START_TEST(a_rank_that_does_not_reach_the_memory_keeps_all_raw)
{
    static const uint32_t parts[] = {0, 8, 16, 20}; /* of a segment's card */
    compress();
    fake_nccl.differ = 1 + _i % 3;
    fake_nccl.differ_size = sizeof(struct peer_info);
    fake_nccl.differ_at = parts[_i / 3];
    ranks_run(3, require_raw, NULL);
    require(fake_gpu.offered == 0);
}
END_TEST

START_TEST(a_rank_without_the_codec_keeps_all_raw)
{
    compress();
    fake_gpu.no_codec = 1u << _i;
    ranks_run(3, require_raw, NULL);
}
END_TEST

START_TEST(a_rank_that_cannot_count_on_launches_keeps_all_raw)
{
    compress();
    fake_gpu.troubled = 1u << _i;
    ranks_run(3, require_raw, NULL);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("failures");
    tcase_add_test(tests, aborting_ends_waiting_for_what_did_not_fit);
    tcase_add_test(tests, waiting_for_what_did_not_fit_ends_as_an_error);
    tcase_add_loop_test(tests, calls_after_a_failure_fail, 0, 2);
    tcase_add_test(tests, aborting_ends_waiting_for_messages);
    tcase_add_test(tests, aborting_waits_for_no_other_work);
    add_loop(tests, corrupt_messages_are_errors, 0, COUNT(bad_bytes));
    tcase_add_loop_test(tests, what_cannot_be_made_is_an_error_or_stays_raw, 0, 3);
    tcase_add_test(tests, work_that_cannot_be_asked_for_is_an_error);
    add_loop(tests, ranks_that_differ_stay_raw, 0, 3 * COUNT(differences));
    if (getenv("STRAIT_TEST_HOSTS") == NULL) /* ranks on other hosts need not reach it */
        add_loop(tests, a_rank_that_does_not_reach_the_memory_keeps_all_raw, 0, 12);
    tcase_add_loop_test(tests, a_rank_without_the_codec_keeps_all_raw, 0, 3);
    tcase_add_loop_test(tests, a_rank_that_cannot_count_on_launches_keeps_all_raw, 0, 3);
    return suite_run("failures", tests);
}
