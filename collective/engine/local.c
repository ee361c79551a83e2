#include "collective/engine/local.h"

#include "collective/engine/ccomm.h"

/* Messages of a host lie one behind another, those of rank i of the host from number i on: parts for each host. */
static uint8_t *arrival_of(const struct plan *plan, uint8_t *memory, uint32_t i)
{
    return memory + plan->scratch_at + i * plan_kept(plan);
}

/* The part that is for rank `place` of a host. */
static const uint8_t *part_of(const struct plan *plan, const uint8_t *values, uint32_t host, uint32_t place)
{
    return values + ((uint64_t)host * plan->in + place) * plan->stride;
}

static const uint8_t *sent_from(const struct plan *plan, uint8_t *memory)
{
    return plan->copies ? memory + plan->out_at : plan->whole.send;
}

bool local_copy(const struct coll_op *op, uint8_t *memory)
{
    const struct plan *plan = launch_plan(op);
    return !plan->copies ||
           op->ccomm->gpu->copy_rows(memory + plan->out_at, plan->stride, plan->whole.send, plan->stride, plan->stride,
                                     (size_t)op->ccomm->ranks, op->call.stream);
}

coll_result local_move(const struct coll_op *op, uint8_t *memory, coll_stream stream)
{
    const struct coll_table *nccl = op->ccomm->host.nccl;
    const struct plan *plan = launch_plan(op);
    coll_result result = COLL_SUCCESS;
    for (uint32_t i = 0; i < plan->in; i++) {
        const int peer = (int)(plan->first + i);
        for (uint32_t host = 0; host < plan->hosts && i != plan->skip && result == COLL_SUCCESS; host++) {
            result = nccl->Send(part_of(plan, sent_from(plan, memory), host, i), plan->stride, COLL_UINT8, peer,
                                op->call.comm, stream);
            if (result == COLL_SUCCESS)
                result = nccl->Recv(arrival_of(plan, memory, i) + host * plan->stride, plan->stride, COLL_UINT8, peer,
                                    op->call.comm, stream);
        }
    }
    return result;
}

/* What the rank has itself is copied to where that of the others is, so that one launch adds up the parts of all hosts.
 */
bool local_sum(const struct coll_op *op, uint8_t *memory, struct coll_reduce *sum)
{
    const struct gpu_ops *gpu = op->ccomm->gpu;
    const struct plan *plan = launch_plan(op);
    for (uint32_t i = 0; i < plan->in; i++)
        sum->source[i] = arrival_of(plan, memory, i);
    return gpu->copy_rows(arrival_of(plan, memory, plan->skip), plan->stride,
                          part_of(plan, sent_from(plan, memory), 0, plan->skip), plan->in * plan->stride, plan->stride,
                          plan->hosts, op->call.stream) &&
           gpu->reduce(sum, op->ccomm->host.settings.sms, op->call.stream);
}
