#include "collective/engine/plain.h"

/* Other ranks come to move overflow as soon as the operation is over for them too, so waiting longer means that they
 * are lost. The other side of a pair may have other things to do first: it gets as long as frameworks wait. */
#define PATIENCE_NS      UINT64_C(10000000000)
#define PAIR_PATIENCE_NS UINT64_C(600000000000)

struct exchange_job plain_job(const struct coll_step *step, const struct plan *plan, uint8_t *memory)
{
    struct exchange_job job = {
        .bytes = plan->raw, .found = plan_found(plan, memory), .peer = plan->skip == UINT32_MAX ? step->call.peer : -1};
    if (plan->sends) {
        job.send = plan_source(plan, 0);
        job.sent = memory + plan->out_at;
        job.send_stride = plan->out > 1 ? plan->stride : 0;
        job.sent_stride = plan->out > 1 ? plan->shape.encoded : 0;
    }
    if (plan->receives) {
        job.receive = plan_target(plan, memory, 0);
        job.received = memory + plan->in_at;
        job.receive_stride = plan->in > 1 ? (uint64_t)(plan_target(plan, memory, 1) - job.receive) : 0;
        job.received_stride = plan->in > 1 ? plan->shape.message : 0;
    }
    return job;
}

/* For all steps of the staging memory. */
static bool exchange(const struct coll_step *step, enum exchange_kind kind, coll_stream stream)
{
    const struct coll_member *member = step->member;
    const struct gpu_exchange what = {.rings = member->share.rings,
                                      .ends = member->ends,
                                      .jobs = (const void *)step->staging->memory,
                                      .mail = member->mail,
                                      .patience_ns = PATIENCE_NS,
                                      .pair_patience_ns = PAIR_PATIENCE_NS,
                                      .count = step->staging->steps,
                                      .kind = kind};
    return member->gpu->exchange(&what, stream);
}

bool plain_fork(const struct coll_step *step)
{
    return step->member->gpu->event_record(step->staging->fork, step->call.stream);
}

bool plain_beside(const struct coll_step *step)
{
    const struct gpu_ops *gpu = step->member->gpu;
    const struct coll_staging *staging = step->staging;
    return gpu->event_follow(staging->side, staging->fork) && exchange(step, EXCHANGE_BESIDE, staging->side) &&
           gpu->event_record(staging->join, staging->side);
}

bool plain_behind(const struct coll_step *step, bool forked)
{
    const struct gpu_ops *gpu = step->member->gpu;
    return exchange(step, EXCHANGE_BEHIND, step->call.stream) &&
           (!forked || gpu->event_follow(step->call.stream, step->staging->join));
}
