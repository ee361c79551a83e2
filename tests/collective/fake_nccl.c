/* A libnccl.so.2 that moves nothing: it writes down what it was called with. Built a second time as an older NCCL,
 * without what came later. Like NCCL it exports pncclX and weak aliases ncclX, and calls some of the latter itself.
 * Here: what has a meaning to it, communicators and groups; all else is in fake_calls.c. */
#include "tests/collective/fake_calls.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC visibility push(default)
struct ncclComm {
    int rank, ranks;
    bool starting; /* does not block, and has not been asked yet */
};

enum { PENDING_MAX = 64 };

static _Thread_local struct {
    char lines[1 << 16], taken[1 << 16];
    size_t size;
    int result;
    bool blind;
    int depth, pending_count;
    struct {
        coll_comm *slot, comm;
    } pending[PENDING_MAX];
} here;

/* ---- For tests --------------------------------------------------------------------------------------------------- */

const char *fake_take(void)
{
    memcpy(here.taken, here.lines, here.size);
    here.taken[here.size] = '\0';
    here.size = 0;
    return here.taken;
}

void fake_answer(int result, int blind)
{
    here.result = result;
    here.blind = blind;
}

const char *fake_last_error(void)
{
    static const char text[] = "fake: the last error";
    return text;
}

int told(const char *format, ...)
{
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(line, sizeof(line) - 1, format, arguments);
    va_end(arguments);
    line[size++] = '\n';
    if (here.size + (size_t)size < sizeof(here.lines)) {
        memcpy(here.lines + here.size, line, (size_t)size);
        here.size += (size_t)size;
    }
    return here.result;
}

static const char *hex(const coll_id *id)
{
    static _Thread_local char text[2 * COLL_ID_BYTES + 1];
    for (unsigned i = 0; i < COLL_ID_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", (unsigned char)id->bytes[i]);
    return text;
}

/* ---- Communicators -------------------------------------------------------------------------------------------------
 */

/* At once, or when the group ends: until then the slot is as it was. */
static int make(int result, coll_comm *slot, int rank, int ranks, const int *config)
{
    if (here.blind || result != COLL_SUCCESS)
        return result;
    coll_comm comm = calloc(1, sizeof(*comm));
    *comm = (struct ncclComm){rank, ranks, config != NULL && *config == 0};
    if (here.depth == 0) {
        *slot = comm;
        return comm->starting ? COLL_IN_PROGRESS : result;
    }
    here.pending[here.pending_count].slot = slot;
    here.pending[here.pending_count++].comm = comm;
    return result;
}

int pncclCommInitRank(coll_comm *comm, int nranks, coll_id id, int rank)
{
    return make(told("CommInitRank %p %d %s %d", (void *)comm, nranks, hex(&id), rank), comm, rank, nranks, NULL);
}
ALIAS(CommInitRank)

int pncclCommInitRankConfig(coll_comm *comm, int nranks, coll_id id, int rank, void *config)
{
    return make(told("CommInitRankConfig %p %d %s %d %p", (void *)comm, nranks, hex(&id), rank, config), comm, rank,
                nranks, config);
}
ALIAS(CommInitRankConfig)

int pncclCommInitAll(coll_comm *comms, int ndev, const int *devices)
{
    int result = told("CommInitAll %p %d %p", (void *)comms, ndev, (const void *)devices);
    for (int i = 0; i < ndev && !here.blind; i++)
        make(result, &comms[i], i, ndev, NULL);
    return result;
}
ALIAS(CommInitAll)

/* The children of this NCCL have three ranks; color -1 is left out. */
int pncclCommSplit(coll_comm comm, int color, int key, coll_comm *child, void *config)
{
    int result = told("CommSplit %p %d %d %p %p", (void *)comm, color, key, (void *)child, config);
    if (color >= 0)
        return make(result, child, 2, 3, config);
    if (!here.blind)
        *child = NULL;
    return result;
}
ALIAS(CommSplit)

int pncclCommFinalize(coll_comm comm)
{
    return told("CommFinalize %p", (void *)comm);
}
ALIAS(CommFinalize)

int pncclCommDestroy(coll_comm comm)
{
    int result = told("CommDestroy %p", (void *)comm);
    if (!here.blind && result == COLL_SUCCESS)
        free(comm);
    return result;
}
ALIAS(CommDestroy)

int pncclCommAbort(coll_comm comm)
{
    int result = told("CommAbort %p", (void *)comm);
    if (!here.blind && result == COLL_SUCCESS)
        free(comm);
    return result;
}
ALIAS(CommAbort)

int pncclCommGetAsyncError(coll_comm comm, coll_result *error)
{
    int result = told("CommGetAsyncError %p %p", (void *)comm, (void *)error);
    if (here.blind)
        return result;
    *error = comm->starting ? COLL_IN_PROGRESS : COLL_SUCCESS;
    comm->starting = false;
    return result;
}
ALIAS(CommGetAsyncError)

/* NCCL refuses these while a communicator is not ready. */
int pncclCommCount(coll_comm comm, int *count)
{
    int result = told("CommCount %p %p", (void *)comm, (void *)count);
    if (here.blind || result != COLL_SUCCESS)
        return result;
    *count = comm->ranks;
    return comm->starting ? 4 : COLL_SUCCESS;
}
ALIAS(CommCount)

int pncclCommUserRank(coll_comm comm, int *rank)
{
    int result = told("CommUserRank %p %p", (void *)comm, (void *)rank);
    if (here.blind || result != COLL_SUCCESS)
        return result;
    *rank = comm->rank;
    return comm->starting ? 4 : COLL_SUCCESS;
}
ALIAS(CommUserRank)

int pncclCommCuDevice(coll_comm comm, int *device)
{
    return told("CommCuDevice %p %p", (void *)comm, (void *)device);
}
ALIAS(CommCuDevice)

/* ---- Groups --------------------------------------------------------------------------------------------------------
 */

int pncclGroupStart(void)
{
    int result = told("GroupStart");
    here.depth += result == COLL_SUCCESS && !here.blind;
    return result;
}
ALIAS(GroupStart)

static int end_group(int result)
{
    if (here.blind)
        return result;
    if (here.depth == 0)
        return COLL_INVALID_USAGE;
    if (--here.depth > 0)
        return result;
    for (int i = 0; i < here.pending_count; i++) {
        coll_comm comm = here.pending[i].comm;
        if (result == COLL_SUCCESS)
            *here.pending[i].slot = comm;
        else
            free(comm);
    }
    here.pending_count = 0;
    return result;
}

int pncclGroupEnd(void)
{
    return end_group(told("GroupEnd"));
}
ALIAS(GroupEnd)

#ifndef FAKE_OLD
int pncclCommInitRankScalable(coll_comm *comm, int nranks, int rank, int nid, coll_id *ids, void *config)
{
    return make(told("CommInitRankScalable %p %d %d %d %p %p", (void *)comm, nranks, rank, nid, (void *)ids, config),
                comm, rank, nranks, config);
}
ALIAS(CommInitRankScalable)

int pncclCommShrink(coll_comm comm, int *list, int count, coll_comm *child, void *config, int flags)
{
    int result = told("CommShrink %p %p %d %p %p %d", (void *)comm, (void *)list, count, (void *)child, config, flags);
    return make(result, child, 0, 3, config);
}
ALIAS(CommShrink)

int pncclGroupSimulateEnd(void *info)
{
    return end_group(told("GroupSimulateEnd %p", info));
}
ALIAS(GroupSimulateEnd)
#endif
#pragma GCC visibility pop
