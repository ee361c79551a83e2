/* What is revoked, or shrunk with abort, ends: kernels of ours do not go on waiting behind what NCCL has cut. */
#include <unistd.h>

#include "tests/coll_engine/harness.h"

enum { COUNT_OF = 40001, ALL_OF = 2 * COUNT_OF, SOON_MS = 300, CUT_MS = 6000 /* of 10000 that it would wait */ };

static coll_id id_for_all;

struct values_of_rank {
    uint8_t *own, *all;
};

static struct values_of_rank make_values(const struct rank *rank, enum values kind)
{
    const struct values_of_rank made = {values_new(COLL_BF16, COUNT_OF, 0), values_new(COLL_BF16, ALL_OF, 0)};
    values_fill(made.own, COLL_BF16, COUNT_OF, kind, (unsigned)rank->rank);
    return made;
}

static void free_values(struct values_of_rank *values)
{
    values_free(values->own, COLL_BF16, 0);
    values_free(values->all, COLL_BF16, 0);
}

static void gather(struct rank *rank, coll_comm comm, const struct values_of_rank *values)
{
    require_ok(ncclAllGather(values->own, values->all, COUNT_OF, COLL_BF16, comm, rank->stream));
}

/* Rank 0 waits for what did not fit, which rank 1 never moves. */
static void begin_waiting(struct rank *rank, const struct values_of_rank *values)
{
    rank_begin(rank, id_for_all);
    ranks_meet();
    fake_gpu.lost = 1u << 1;
    gather(rank, rank->comm, values);
    require(rank->rank == 1 || !ends_within(rank->stream, SOON_MS));
    ranks_meet();
}

static void end(struct rank *rank, struct values_of_rank *values)
{
    require_ok(ncclCommAbort(rank->comm));
    fake_stream_wait(rank->stream);
    fake_stream_end(rank->stream);
    free_values(values);
}

/* It is told as no error, and from then on nothing is compressed. */
static void revoke_all(struct rank *rank)
{
    struct values_of_rank values = make_values(rank, VALUES_NOISE);
    begin_waiting(rank, &values);
    require_ok(ncclCommRevoke(rank->comm, 0));
    require(ends_within(rank->stream, CUT_MS) && error_of(rank->comm) == COLL_SUCCESS);
    gather(rank, rank->comm, &values);
    const struct told told = told_of(rank->comm, "all_gather", "bf16");
    require(told.calls == 2 && told.compressed == 1);
    end(rank, &values);
}

START_TEST(revoking_ends_waiting_for_what_did_not_fit)
{
    setenv("STRAIT_COLL", "compress", 1);
    require_ok(ncclGetUniqueId(&id_for_all));
    ranks_start(2, revoke_all, NULL);
    require(fake_gpu.made == 0);
}
END_TEST

/* The child joins anew, and compresses. */
static void shrink_all(struct rank *rank)
{
    struct values_of_rank values = make_values(rank, VALUES_NOISE), more = make_values(rank, VALUES_NORMAL);
    coll_comm child = NULL;
    begin_waiting(rank, &values);
    const long began = now_ms(); /* what joins may wait for the GPU, too */
    require_ok(ncclCommShrink(rank->comm, NULL, 0, &child, NULL, COLL_SHRINK_ABORT));
    require(ends_within(rank->stream, CUT_MS) && now_ms() - began < CUT_MS && error_of(rank->comm) == COLL_SUCCESS);
    gather(rank, child, &more);
    fake_stream_wait(rank->stream);
    for (unsigned from = 0; from < 2; from++)
        require(values_are(more.all + from * COUNT_OF * 2, COLL_BF16, COUNT_OF, VALUES_NORMAL, from));
    require(told_of(child, "all_gather", "bf16").compressed == 1 && error_of(child) == COLL_SUCCESS);
    ranks_meet();
    require_ok(ncclCommDestroy(child));
    free_values(&more);
    end(rank, &values);
}

START_TEST(shrinking_with_abort_ends_waiting_for_what_did_not_fit)
{
    setenv("STRAIT_COLL", "compress", 1);
    require_ok(ncclGetUniqueId(&id_for_all));
    ranks_start(2, shrink_all, NULL);
    require(fake_gpu.made == 0);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("revoke");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, revoking_ends_waiting_for_what_did_not_fit);
    tcase_add_test(tests, shrinking_with_abort_ends_waiting_for_what_did_not_fit);
    return suite_run("revoke", tests);
}
