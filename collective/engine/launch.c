#include "collective/engine/launch.h"

#include "collective/engine/plain.h"

static const struct coll_phase *phase_of(const struct coll_step *step)
{
    return &step->of[step->phase];
}

/* A phase's plan follows from the step alone, so each part of the phase computes it anew. */
bool launch_plan(struct plan *plan, const struct coll_step *step)
{
    if (!plan_of(plan, step->member, &step->call, step->phase, phase_of(step)->level) ||
        !plan_cut(plan, step, phase_of(step)->level))
        return false;
    plan->copies = plan->reduces && (step->call.registered || step->staging->capture != 0);
    return plan_measure(plan, step->member);
}

uint8_t *launch_memory(const struct coll_step *step)
{
    return step->staging->memory + step->at;
}

coll_result launch_failed(const struct coll_step *step, const char *why)
{
    member_fail(step->member, COLL_UNHANDLED_CUDA_ERROR, why);
    return COLL_UNHANDLED_CUDA_ERROR;
}

static bool is_pair(const struct coll_step *step)
{
    return step->call.operation == COLL_SEND || step->call.operation == COLL_RECV;
}

/* ---- Encoding ---------------------------------------------------------------------------------------------------- */

static struct message_list sent_list(const struct plan *plan, uint8_t *memory)
{
    return (struct message_list){.base = memory + plan->out_at,
                                 .stride = plan->shape.encoded,
                                 .count = plan->out,
                                 .skip = plan->everybody ? UINT32_MAX : plan->skip,
                                 .tail_at = plan->shape.tail_at,
                                 .main_at = plan->shape.main_at,
                                 .main_room = plan->shape.main_room};
}

static struct message_list received_list(const struct plan *plan, uint8_t *memory)
{
    return (struct message_list){.base = memory + plan->in_at,
                                 .stride = plan->shape.message,
                                 .count = plan->in,
                                 .skip = plan->skip,
                                 .tail_at = plan->shape.tail_at,
                                 .main_at = plan->shape.main_at,
                                 .main_room = plan->shape.main_room};
}

/* If NCCL moves data meanwhile, it needs some of the multiprocessors, and at once. */
static struct strait_run run_of(const struct coll_step *step, const struct plan *plan, uint8_t *memory, uint32_t beside)
{
    return (struct strait_run){.size = sizeof(struct strait_run),
                               .scratch = memory + plan->codec_at,
                               .scratch_size = plan->codec_size,
                               .stream = step->call.stream,
                               .sm_budget = beside > 0 ? step->member->multiprocessors * 3 / 4 : 0};
}

static bool encode(const struct coll_step *step, const struct plan *plan, uint8_t *memory)
{
    const struct strait_encode_params params = {sizeof(params), plan->shape.element, STRAIT_MODE_BASE, NULL};
    const struct strait_run run = run_of(step, plan, memory, step->head);
    struct codec_list list;
    if (!plan_list(&list, plan, memory, true))
        return false;
    bool good = strait_encode_batch(step->member->codec, &params, list.encode, list.count, &run) == STRAIT_OK;
    plan_list_free(&list);
    return good;
}

/* Also for a step that sends nothing: its job has to be stored. */
static bool seal(const struct coll_step *step, const struct plan *plan, uint8_t *memory)
{
    struct gpu_seal what = {.results = (void *)(memory + plan->results_at),
                            .rings = step->member->share.rings,
                            .ends = step->member->ends,
                            .slots = ring_slots(&step->member->share.rings, plan->raw),
                            .job = plain_job(step, plan, memory),
                            .place = (struct exchange_job *)(void *)step->staging->memory + step->number};
    if (plan->sends)
        what.list = sent_list(plan, memory);
    return step->member->gpu->seal(&what, step->call.stream);
}

bool launch_encode(const struct coll_step *step)
{
    struct plan plan;
    if (!launch_plan(&plan, step))
        return false;
    uint8_t *memory = launch_memory(step);
    return step->member->gpu->zero(memory + plan.codec_at, plan.codec_size, step->call.stream) &&
           (!plan.sends || encode(step, &plan, memory)) && seal(step, &plan, memory);
}

/* ---- Moving ------------------------------------------------------------------------------------------------------ */

static coll_result move_pair(const struct coll_step *step, const struct plan *plan, uint8_t *memory, int peer,
                             coll_stream stream)
{
    const struct coll_table *nccl = step->member->host.nccl;
    const struct coll_call *call = &plan->call;
    const size_t size = plan->shape.message, out = plan->out > 1 ? (size_t)peer : 0,
                 in = plan->in > 1 ? (size_t)peer : 0;
    coll_result result = COLL_SUCCESS;
    if (plan->sends)
        result =
            nccl->Send(memory + plan->out_at + out * plan->shape.encoded, size, COLL_UINT8, peer, call->comm, stream);
    if (plan->receives && result == COLL_SUCCESS)
        result = nccl->Recv(memory + plan->in_at + in * size, size, COLL_UINT8, peer, call->comm, stream);
    return result;
}

static coll_result gather(const struct coll_step *step, const void *send, void *receive, size_t size,
                          coll_stream stream)
{
    return step->member->host.nccl->AllGather(send, receive, size, COLL_UINT8, step->call.comm, stream);
}

coll_result launch_move(const struct coll_step *step, coll_stream stream)
{
    struct plan plan;
    if (!launch_plan(&plan, step))
        return launch_failed(step, "no plan");
    uint8_t *memory = launch_memory(step);
    if (plan.call.operation == COLL_ALL_GATHER)
        return gather(step, memory + plan.out_at, memory + plan.in_at, plan.shape.message, stream);
    if (plan.call.operation == COLL_SEND || plan.call.operation == COLL_RECV)
        return move_pair(step, &plan, memory, plan.call.peer, stream);
    coll_result result = COLL_SUCCESS;
    if (plan.left > 0)
        result = gather(step, plan.rest.send, plan_rest(&plan, memory, 0), plan.left, stream);
    for (int peer = 0; peer < step->member->ranks && result == COLL_SUCCESS; peer++)
        if (peer != step->member->rank)
            result = move_pair(step, &plan, memory, peer, stream);
    return result;
}

/* ---- Overflow ---------------------------------------------------------------------------------------------------- */

bool launch_check(const struct coll_step *step)
{
    struct plan plan;
    if (!launch_plan(&plan, step))
        return false;
    uint8_t *memory = launch_memory(step);
    struct coll_member *member = step->member;
    struct gpu_check look = {.bit = plan.everybody || is_pair(step) ? 0 : (uint32_t)member->rank,
                             .found = plan_found(&plan, memory),
                             .unit = plan.shape.pages * (uint64_t)SHAPE_PAGE / 1024,
                             .mail = member->mail,
                             .tally = member->tallies + phase_of(step)->key,
                             .index = phase_of(step)->index,
                             .key = phase_of(step)->key};
    if (plan.receives)
        look.list = received_list(&plan, memory);
    if (plan.sends)
        look.own = memory + plan.out_at + (plan.out > 1 && plan.skip == 0 ? plan.shape.encoded : 0);
    return member->gpu->check(&look, step->call.stream);
}

/* ---- Decoding ---------------------------------------------------------------------------------------------------- */

static bool decode(const struct coll_step *step, const struct plan *plan, uint8_t *memory)
{
    const struct gpu_ops *gpu = step->member->gpu;
    const struct strait_run run = run_of(step, plan, memory, step->tail);
    struct codec_list list;
    if (!plan_list(&list, plan, memory, false))
        return false;
    const struct gpu_verify verify = {received_list(plan, memory), (void *)(memory + plan->results_at),
                                      plan_found(plan, memory), step->member->mail};
    bool good = strait_decode_batch(step->member->codec, NULL, list.decode, list.count, &run) == STRAIT_OK &&
                gpu->verify(&verify, step->call.stream);
    plan_list_free(&list);
    return good;
}

bool launch_own(const struct coll_step *step)
{
    struct plan plan;
    const struct coll_phase *phase = phase_of(step);
    if (!plan_of(&plan, step->member, &step->call, step->phase, phase->level))
        return false;
    if (plan.whole.operation != COLL_ALL_GATHER && plan.whole.operation != COLL_ALL_TO_ALL)
        return true;
    const uint8_t *from = plan_source(&plan, plan.skip);
    uint8_t *to = plan_target(&plan, NULL, plan.skip);
    return from == to || step->member->gpu->copy(to, from, plan.raw, step->call.stream);
}

/* All ranks of an all_reduce add up the same values, so all use the order of rank 0's block. */
struct coll_reduce launch_sum_of(const struct coll_step *step, const struct coll_call *call)
{
    return (struct coll_reduce){.type = call->type == COLL_BF16   ? COLL_REDUCE_BF16
                                        : call->type == COLL_FP16 ? COLL_REDUCE_FP16
                                                                  : COLL_REDUCE_FP32,
                                .operation = call->reduction == COLL_SUM ? COLL_REDUCE_SUM : COLL_REDUCE_AVG,
                                .order = step->member->host.settings.ring ? COLL_REDUCE_NCCL_RING : COLL_REDUCE_IN_FP32,
                                .sources = (uint32_t)step->member->ranks,
                                .rank = call->operation == COLL_ALL_REDUCE ? 0 : (uint32_t)step->member->rank,
                                .dst = call->receive,
                                .count = call->count};
}

static bool reduce(const struct coll_step *step, const struct plan *plan, uint8_t *memory)
{
    if (!plan->reduces)
        return true;
    struct coll_reduce sum = launch_sum_of(step, &plan->call);
    for (uint32_t i = 0; i < sum.sources; i++)
        sum.source[i] = i == plan->skip ? plan_source(plan, i) : plan_target(plan, memory, i);
    return step->member->gpu->reduce(&sum, step->call.stream);
}

static bool reduce_rest(const struct coll_step *step, const struct plan *plan, uint8_t *memory)
{
    if (plan->left == 0)
        return true;
    struct coll_reduce sum = launch_sum_of(step, &plan->rest);
    for (uint32_t i = 0; i < sum.sources; i++)
        sum.source[i] = plan_rest(plan, memory, i);
    return step->member->gpu->reduce(&sum, step->call.stream);
}

bool launch_decode(const struct coll_step *step)
{
    struct plan plan;
    return launch_plan(&plan, step) && (!plan.receives || decode(step, &plan, launch_memory(step)));
}

bool launch_sums(const struct coll_step *step)
{
    struct plan plan;
    if (!launch_plan(&plan, step))
        return false;
    uint8_t *memory = launch_memory(step);
    return reduce(step, &plan, memory) && reduce_rest(step, &plan, memory);
}
