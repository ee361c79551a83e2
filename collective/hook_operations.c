/* Hooks for collectives, send and recv: describe the call, decide about it, and count it. */
#include "collective/capture.h"
#include "collective/decide.h"
#include "collective/group.h"
#include "collective/hooks.h"
#include "collective/late.h"
#include "collective/run.h"
#include "collective/thread.h"
#include "collective/track.h"

/* A step to be run holds its communicator until it is over, and one that only counts until its group is. */
static struct coll_decision begin(struct coll_call *call, struct coll_step *step)
{
    struct coll_standing standing;
    call->grouped = coll_thread.depth > 0;
    call->captured = coll_is_captured(call->stream);
    call->registered = coll_track_any_memory();
    (void)coll_track_hold(call->comm, &standing);
    if (standing.late != NULL && !coll_late_call(call, &standing))
        return (struct coll_decision){COLL_REFUSE, "aborted", 0};
    struct coll_decision decision = coll_decide(&standing, call, step);
    if (decision.way == COLL_PASS && !coll_group_counts(step))
        coll_run_release(standing.held);
    if (!call->grouped || standing.member == NULL || standing.pinned)
        return decision;
    coll_group_note(call);
    if (decision.way == COLL_PASS && coll_group_holds(call, standing.ranks))
        decision.way = COLL_HOLD;
    return decision;
}

static coll_result end(const struct coll_call *call, const struct coll_decision *decision, coll_result result)
{
    if (call->grouped && result != COLL_SUCCESS && result != COLL_IN_PROGRESS)
        coll_group_fail(result);
    coll_track_count(call, decision, result);
    return result;
}

/* `call` as the program made it; `invocation` is the same call of NCCL. */
#define RUN(call, invocation)                                         \
    do {                                                              \
        struct coll_step step;                                        \
        const struct coll_decision decision = begin(&(call), &step);  \
        if (decision.way == COLL_COMPRESS)                            \
            return end(&(call), &decision, coll_run(&step));          \
        if (decision.way == COLL_REFUSE)                              \
            return end(&(call), &decision, COLL_INVALID_USAGE);       \
        if (decision.way == COLL_HOLD)                                \
            return end(&(call), &decision, coll_group_keep(&(call))); \
        return end(&(call), &decision, COLL_NCCL(invocation));        \
    } while (0)

coll_result coll_hook_AllGather(const void *send, void *receive, size_t count, coll_type type, coll_comm comm,
                                coll_stream stream)
{
    struct coll_call call = {.operation = COLL_ALL_GATHER,
                             .send = send,
                             .receive = receive,
                             .count = count,
                             .type = type,
                             .comm = comm,
                             .stream = stream};
    RUN(call, AllGather(send, receive, count, type, comm, stream));
}

coll_result coll_hook_AllReduce(const void *send, void *receive, size_t count, coll_type type, coll_reduction reduction,
                                coll_comm comm, coll_stream stream)
{
    struct coll_call call = {.operation = COLL_ALL_REDUCE,
                             .send = send,
                             .receive = receive,
                             .count = count,
                             .type = type,
                             .reduction = reduction,
                             .comm = comm,
                             .stream = stream};
    RUN(call, AllReduce(send, receive, count, type, reduction, comm, stream));
}

coll_result coll_hook_AlltoAll(const void *send, void *receive, size_t count, coll_type type, coll_comm comm,
                               coll_stream stream)
{
    struct coll_call call = {.operation = COLL_ALL_TO_ALL,
                             .send = send,
                             .receive = receive,
                             .count = count,
                             .type = type,
                             .comm = comm,
                             .stream = stream};
    RUN(call, AlltoAll(send, receive, count, type, comm, stream));
}

coll_result coll_hook_Bcast(void *buffer, size_t count, coll_type type, int root, coll_comm comm, coll_stream stream)
{
    struct coll_call call = {.operation = COLL_BROADCAST,
                             .send = buffer,
                             .receive = buffer,
                             .count = count,
                             .type = type,
                             .peer = root,
                             .comm = comm,
                             .stream = stream};
    RUN(call, Bcast(buffer, count, type, root, comm, stream));
}

coll_result coll_hook_Broadcast(const void *send, void *receive, size_t count, coll_type type, int root, coll_comm comm,
                                coll_stream stream)
{
    struct coll_call call = {.operation = COLL_BROADCAST,
                             .send = send,
                             .receive = receive,
                             .count = count,
                             .type = type,
                             .peer = root,
                             .comm = comm,
                             .stream = stream};
    RUN(call, Broadcast(send, receive, count, type, root, comm, stream));
}

coll_result coll_hook_Gather(const void *send, void *receive, size_t count, coll_type type, int root, coll_comm comm,
                             coll_stream stream)
{
    struct coll_call call = {.operation = COLL_GATHER,
                             .send = send,
                             .receive = receive,
                             .count = count,
                             .type = type,
                             .peer = root,
                             .comm = comm,
                             .stream = stream};
    RUN(call, Gather(send, receive, count, type, root, comm, stream));
}

coll_result coll_hook_Reduce(const void *send, void *receive, size_t count, coll_type type, coll_reduction reduction,
                             int root, coll_comm comm, coll_stream stream)
{
    struct coll_call call = {.operation = COLL_REDUCE,
                             .send = send,
                             .receive = receive,
                             .count = count,
                             .type = type,
                             .reduction = reduction,
                             .peer = root,
                             .comm = comm,
                             .stream = stream};
    RUN(call, Reduce(send, receive, count, type, reduction, root, comm, stream));
}

coll_result coll_hook_ReduceScatter(const void *send, void *receive, size_t count, coll_type type,
                                    coll_reduction reduction, coll_comm comm, coll_stream stream)
{
    struct coll_call call = {.operation = COLL_REDUCE_SCATTER,
                             .send = send,
                             .receive = receive,
                             .count = count,
                             .type = type,
                             .reduction = reduction,
                             .comm = comm,
                             .stream = stream};
    RUN(call, ReduceScatter(send, receive, count, type, reduction, comm, stream));
}

coll_result coll_hook_Scatter(const void *send, void *receive, size_t count, coll_type type, int root, coll_comm comm,
                              coll_stream stream)
{
    struct coll_call call = {.operation = COLL_SCATTER,
                             .send = send,
                             .receive = receive,
                             .count = count,
                             .type = type,
                             .peer = root,
                             .comm = comm,
                             .stream = stream};
    RUN(call, Scatter(send, receive, count, type, root, comm, stream));
}

coll_result coll_hook_Send(const void *send, size_t count, coll_type type, int peer, coll_comm comm, coll_stream stream)
{
    struct coll_call call = {.operation = COLL_SEND,
                             .send = send,
                             .count = count,
                             .type = type,
                             .peer = peer,
                             .comm = comm,
                             .stream = stream};
    RUN(call, Send(send, count, type, peer, comm, stream));
}

coll_result coll_hook_Recv(void *receive, size_t count, coll_type type, int peer, coll_comm comm, coll_stream stream)
{
    struct coll_call call = {.operation = COLL_RECV,
                             .receive = receive,
                             .count = count,
                             .type = type,
                             .peer = peer,
                             .comm = comm,
                             .stream = stream};
    RUN(call, Recv(receive, count, type, peer, comm, stream));
}
