/* What libstrait-coll knows after calls of a program: communicators, groups, counts. Bytes are not moved by the fake.
 */
#include <stdint.h>
#include <string.h>

#include "tests/collective/caller.h"

enum { FP32 = 7, BF16 = 9, SUM = 0, AUTO = 0, RAW = 1 };

static coll_id id;

static coll_comm make(int rank, int ranks)
{
    coll_comm comm = NULL;
    require(nccl.CommInitRank(&comm, ranks, id, rank) == COLL_SUCCESS && comm != NULL);
    return comm;
}

static void reduce(coll_comm comm, size_t count, int type)
{
    require(nccl.AllReduce(NULL, NULL, count, type, SUM, comm, NULL) == COLL_SUCCESS);
}

/* ---- Groups --------------------------------------------------------------------------------------------------------
 */

static void group(coll_comm comm, int depth)
{
    for (int i = 0; i < depth; i++)
        require(nccl.GroupStart() == COLL_SUCCESS);
    require(nccl.Send(NULL, 10, BF16, 1, comm, NULL) == COLL_SUCCESS);
    require(nccl.Recv(NULL, 10, BF16, 1, comm, NULL) == COLL_SUCCESS);
    for (int i = 0; i < depth; i++)
        require(nccl.GroupEnd() == COLL_SUCCESS);
}

void check_groups(void)
{
    coll_comm comm = make(0, 2), made[3] = {NULL};
    /* Ends without a start, then groups within groups, then calls outside of them. */
    require(nccl.GroupEnd() == COLL_INVALID_USAGE);
    group(comm, 0);
    require_row(comm, "send", "bf16", "1 20 0 0 0");
    group(comm, 1);
    group(comm, 3);
    require_row(comm, "send", "bf16", "3 60 2 0 0");
    group(comm, 0);
    require_row(comm, "recv", "bf16", "4 80 2 0 0");
    /* A simulated end is one too. */
    require(nccl.GroupStart() == COLL_SUCCESS && nccl.GroupSimulateEnd(NULL) == COLL_SUCCESS);
    group(comm, 0);
    require_row(comm, "send", "bf16", "5 100 2 0 0");
    /* Communicators made in a group are known when it ends. */
    require(nccl.GroupStart() == COLL_SUCCESS && nccl.GroupStart() == COLL_SUCCESS);
    require(nccl.CommInitRank(&made[0], 4, id, 1) == COLL_SUCCESS);
    require(nccl.CommInitRank(&made[1], 4, id, 3) == COLL_SUCCESS);
    require(nccl.CommSplit(comm, 0, 0, &made[2], NULL) == COLL_SUCCESS);
    require(nccl.GroupEnd() == COLL_SUCCESS && made[0] == NULL);
    require(nccl.GroupEnd() == COLL_SUCCESS && made[0] != NULL && made[2] != NULL);
    require(report_has(made[0], ", rank 1 of 4\n") && report_has(made[1], ", rank 3 of 4\n"));
    require(report_has(made[2], ", rank 2 of 3\n"));
    for (int i = 0; i < 3; i++)
        require(nccl.CommDestroy(made[i]) == COLL_SUCCESS);
    /* Those of a group that fails are not. */
    coll_comm stays = NULL;
    require(nccl.GroupStart() == COLL_SUCCESS);
    require(nccl.CommInitRank(&stays, 4, id, 1) == COLL_SUCCESS);
    nccl.answer(3, 0);
    require(nccl.GroupEnd() == 3 && stays == NULL);
    nccl.answer(0, 0);
    require(nccl.CommDestroy(comm) == COLL_SUCCESS);
}

/* ---- Communicators -------------------------------------------------------------------------------------------------
 */

static void check_not_blocking(coll_comm parent)
{
    int blocking = 0;
    coll_result error;
    coll_comm child = NULL;
    require(nccl.CommSplit(parent, 1, 0, &child, &blocking) == COLL_IN_PROGRESS);
    require(report_has(child, "communicator") && !report_has(child, ", rank "));
    require(nccl.CommGetAsyncError(child, &error) == COLL_SUCCESS && error == COLL_IN_PROGRESS);
    require(!report_has(child, ", rank "));
    require(nccl.CommGetAsyncError(child, &error) == COLL_SUCCESS && error == COLL_SUCCESS);
    require(report_has(child, ", rank 2 of 3\n"));
    require(nccl.CommAbort(child) == COLL_SUCCESS && nccl.report(child, NULL, 0) == 0);
    require(nccl.CommInitRankConfig(&child, 9, id, 8, &blocking) == COLL_IN_PROGRESS);
    require(report_has(child, ", rank 8 of 9\n"));
    require(nccl.CommDestroy(child) == COLL_SUCCESS);
}

static void check_pins(coll_comm comm)
{
    coll_comm other = make(0, 2);
    require(!report_has(comm, "pinned"));
    require(nccl.pin(comm, RAW) == 0 && report_has(comm, ", pinned to raw\n") && !report_has(other, "pinned"));
    reduce(comm, 1, FP32);
    require(report_has(comm, "raw: pinned\n"));
    require(nccl.pin(comm, AUTO) == 0 && !report_has(comm, "pinned to raw"));
    require(nccl.pin(comm, 2) == -1 && nccl.pin(comm, -1) == -1 && nccl.pin((coll_comm)&comm, RAW) == -1);
    require(nccl.pin(NULL, RAW) == 0 && report_has(comm, "pinned to raw") && report_has(other, "pinned to raw"));
    require(nccl.CommDestroy(other) == COLL_SUCCESS);
    other = make(0, 2);
    require(report_has(other, "pinned to raw") && nccl.pin(NULL, AUTO) == 0 && !report_has(other, "pinned to raw"));
    require(nccl.CommDestroy(other) == COLL_SUCCESS && nccl.pin(other, RAW) == -1);
}

static void check_all(void)
{
    coll_comm made[3];
    require(nccl.CommInitAll(made, 3, NULL) == COLL_SUCCESS);
    require(report_has(made[0], ", rank 0 of 3\n") && report_has(made[2], ", rank 2 of 3\n"));
    for (int i = 0; i < 3; i++)
        require(nccl.CommDestroy(made[i]) == COLL_SUCCESS && nccl.report(made[i], NULL, 0) == 0);
}

void check_comms(void)
{
    coll_comm comm = make(5, 6), child = (coll_comm)&id;
    void *handle = NULL;
    require(report_has(comm, ", rank 5 of 6\n"));
    require(nccl.CommSplit(comm, -1, 0, &child, NULL) == COLL_SUCCESS && child == NULL);
    require(nccl.CommSplit(comm, 1, 0, &child, NULL) == COLL_SUCCESS && report_has(child, ", rank 2 of 3\n"));
    require(nccl.CommDestroy(child) == COLL_SUCCESS);
    require(nccl.CommShrink(comm, NULL, 0, &child, NULL, 0) == COLL_SUCCESS && report_has(child, ", rank 0 of 3\n"));
    require(nccl.CommFinalize(child) == COLL_SUCCESS && report_has(child, ", ending\n"));
    require(nccl.CommDestroy(child) == COLL_SUCCESS);
    require(nccl.CommRegister(comm, &id, sizeof(id), &handle) == COLL_SUCCESS && report_has(comm, ", 1 registered\n"));
    require(nccl.CommDeregister(comm, handle) == COLL_SUCCESS && !report_has(comm, "registered"));
    check_not_blocking(comm);
    check_pins(comm);
    check_all();
    nccl.answer(3, 0);
    require(nccl.CommInitRank(&child, 2, id, 0) == 3);
    nccl.answer(0, 0);
    require(nccl.CommDestroy(comm) == COLL_SUCCESS && nccl.CommDestroy(NULL) == COLL_SUCCESS);
}

/* ---- Counts --------------------------------------------------------------------------------------------------------
 */

void check_counts(void)
{
    coll_comm comm = make(0, 2);
    const char *path = NULL;
    int version = 0;
    require(nccl.nccl != NULL && nccl.report != NULL && nccl.pin != NULL && nccl.version != NULL);
    require(nccl.nccl(&path, &version) == 0 && version == FAKE_VERSION && strcmp(path, getenv("FAKE_NCCL")) == 0);
    require(nccl.version()[0] != '\0' && report_has(NULL, path));
    reduce(comm, 1000, BF16);
    reduce(comm, 24, BF16);
    reduce(comm, 3, FP32);
    reduce(NULL, 1, 12); /* neither communicator nor type are known */
    require(nccl.Bcast(NULL, 5, 8, 0, comm, NULL) == COLL_SUCCESS);
    nccl.answer(4, 0);
    require(nccl.AllGather(NULL, NULL, 5, 0, comm, NULL) == 4);
    nccl.answer(COLL_IN_PROGRESS, 0);
    require(nccl.AllGather(NULL, NULL, 6, 0, comm, NULL) == COLL_IN_PROGRESS);
    nccl.answer(0, 0);
    require_row(comm, "all_reduce", "bf16", "2 2048 0 0 0");
    require_row(comm, "all_reduce", "fp32", "1 12 0 0 0");
    require_row(comm, "broadcast", "fp64", "1 40 0 0 0"); /* once, though NCCL calls itself */
    require_row(comm, "all_gather", "int8", "1 6 0 0 1");
    require(!report_has(comm, "unknown") && !report_has(comm, "\nsend "));
    require_row(NULL, "all_reduce", "unknown", "1 0 0 0 0");
    /* Of a buffer that is too small the beginning is written, and an end. */
    char part[40];
    memset(part, 'x', sizeof(part));
    size_t size = nccl.report(comm, part, 20);
    require(size > 100 && strlen(part) == 19 && part[20] == 'x');
    require(nccl.CommDestroy(comm) == COLL_SUCCESS);
    require_row(NULL, "all_reduce", "bf16", "2 2048 0 0 0"); /* what was, stays */
    comm = make(1, 2);
    require(!report_has(comm, "all_reduce"));
    require(nccl.CommDestroy(comm) == COLL_SUCCESS);
}
