#include "collective/patient.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "collective/decide.h"
#include "collective/grow.h"
#include "collective/track.h"

/* Of the calling thread: its group depth, and the communicators in the group. */
static _Thread_local struct {
    unsigned depth, count, capacity;
    coll_comm *comms;
} open_group;

static const struct coll_table *nccl(void)
{
    return &coll_library()->pnccl;
}

static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;

void coll_patient_lock(void)
{
    pthread_mutex_lock(&asking);
}

void coll_patient_unlock(void)
{
    pthread_mutex_unlock(&asking);
}

static bool is_known(coll_comm comm)
{
    struct coll_standing standing;
    return coll_track_standing(comm, &standing);
}

/* Under the lock: a thread that has made the communicator unknown, and has held the lock since, may end it. */
static coll_result ask(coll_comm comm, coll_result *result)
{
    coll_patient_lock();
    const coll_result asked = is_known(comm) ? nccl()->CommGetAsyncError(comm, result) : COLL_INVALID_USAGE;
    coll_patient_unlock();
    return asked;
}

coll_result coll_patient_await(coll_comm comm, coll_result result)
{
    while (result == COLL_IN_PROGRESS) {
        const coll_result asked = ask(comm, &result);
        if (asked != COLL_SUCCESS)
            return asked;
        if (result == COLL_IN_PROGRESS)
            nanosleep(&(struct timespec){.tv_nsec = 5000}, NULL);
    }
    return result;
}

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

static bool is_noted(coll_comm comm)
{
    for (unsigned i = 0; i < open_group.count; i++)
        if (open_group.comms[i] == comm)
            return true;
    return false;
}

static bool note(coll_comm comm)
{
    if (is_noted(comm))
        return true;
    coll_comm *comms = coll_grown(open_group.comms, open_group.count, &open_group.capacity, sizeof(coll_comm));
    if (comms == NULL)
        return false;
    open_group.comms = comms;
    open_group.comms[open_group.count++] = comm;
    return true;
}

static coll_result group_start(void)
{
    const coll_result result = nccl()->GroupStart();
    open_group.depth += result == COLL_SUCCESS;
    return result;
}

static coll_result await_all(coll_result result)
{
    const coll_result ended = result;
    for (unsigned i = 0; i < open_group.count; i++) {
        const coll_result came = coll_patient_await(open_group.comms[i], ended);
        result = result == COLL_IN_PROGRESS || result == COLL_SUCCESS ? came : result;
    }
    free(open_group.comms);
    open_group.comms = NULL;
    open_group.count = open_group.capacity = 0;
    return result;
}

static coll_result group_end(void)
{
    const coll_result result = nccl()->GroupEnd();
    if (open_group.depth > 0 && --open_group.depth > 0)
        return result;
    return await_all(result);
}

/* ---- Calls in groups --------------------------------------------------------------------------------------------- */

/* In a group of the program's own (depth 0 here), waiting is up to the program, or to run.c. NCCL is not asked about a
 * communicator that another thread has ended meanwhile. */
static coll_result asked_for(coll_comm comm, coll_result result)
{
    if (result != COLL_IN_PROGRESS && result != COLL_SUCCESS)
        return result;
    if (open_group.depth > 0)
        return note(comm) ? COLL_SUCCESS : COLL_SYSTEM_ERROR;
    return result == COLL_IN_PROGRESS ? COLL_SUCCESS : result;
}

#define ASK(comm, invocation) (is_known(comm) ? asked_for(comm, nccl()->invocation) : COLL_INVALID_USAGE)

static coll_result all_gather(const void *send, void *receive, size_t count, coll_type type, coll_comm comm,
                              coll_stream stream)
{
    return ASK(comm, AllGather(send, receive, count, type, comm, stream));
}

static coll_result all_to_all(const void *send, void *receive, size_t count, coll_type type, coll_comm comm,
                              coll_stream stream)
{
    return ASK(comm, AlltoAll(send, receive, count, type, comm, stream));
}

static coll_result gather(const void *send, void *receive, size_t count, coll_type type, int root, coll_comm comm,
                          coll_stream stream)
{
    return ASK(comm, Gather(send, receive, count, type, root, comm, stream));
}

static coll_result scatter(const void *send, void *receive, size_t count, coll_type type, int root, coll_comm comm,
                           coll_stream stream)
{
    return ASK(comm, Scatter(send, receive, count, type, root, comm, stream));
}

static coll_result reduce_scatter(const void *send, void *receive, size_t count, coll_type type,
                                  coll_reduction reduction, coll_comm comm, coll_stream stream)
{
    return ASK(comm, ReduceScatter(send, receive, count, type, reduction, comm, stream));
}

static coll_result send(const void *values, size_t count, coll_type type, int peer, coll_comm comm, coll_stream stream)
{
    return ASK(comm, Send(values, count, type, peer, comm, stream));
}

static coll_result receive(void *values, size_t count, coll_type type, int peer, coll_comm comm, coll_stream stream)
{
    return ASK(comm, Recv(values, count, type, peer, comm, stream));
}

/* ---- The table --------------------------------------------------------------------------------------------------- */

static struct coll_table table;

static void fill(void)
{
    table = *nccl();
    table.GroupStart = group_start;
    table.GroupEnd = group_end;
    table.AllGather = all_gather;
    table.AlltoAll = all_to_all;
    table.Gather = gather;
    table.Scatter = scatter;
    table.ReduceScatter = reduce_scatter;
    table.Send = send;
    table.Recv = receive;
}

const struct coll_table *coll_patient(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill);
    return &table;
}
