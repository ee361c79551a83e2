#include "collective/engine/steps.h"

#include <string.h>

#include "collective/engine/plan.h"

/* Other ranks come to a meeting as soon as the operation is over for them too, so one that waits longer has lost them.
 */
#define MEET_PATIENCE_NS UINT64_C(10000000000)

static const struct coll_phase *phase_of(const struct coll_step *step)
{
    return &step->of[step->phase];
}

/* A phase's plan follows from the step alone, so it is made anew by each part of it. */
static bool plan_again(struct plan *plan, const struct coll_step *step)
{
    return plan_of(plan, step->member, &step->call, step->phase, phase_of(step)->level) &&
           plan_measure(plan, step->member);
}

static uint8_t *memory_of(const struct coll_step *step)
{
    return step->staging->memory + step->at;
}

static uint32_t *found_of(const struct plan *plan, uint8_t *memory)
{
    return (void *)(memory + plan->found_at);
}

static coll_result failed(const struct coll_step *step, const char *why)
{
    member_fail(step->member, COLL_UNHANDLED_CUDA_ERROR, why);
    return COLL_UNHANDLED_CUDA_ERROR;
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

static struct strait_run run_of(const struct coll_step *step, const struct plan *plan, uint8_t *memory)
{
    return (struct strait_run){.size = sizeof(struct strait_run),
                               .scratch = memory + plan->codec_at,
                               .scratch_size = plan->codec_size,
                               .stream = step->call.stream};
}

static bool encode(const struct coll_step *step, const struct plan *plan, uint8_t *memory)
{
    const struct strait_encode_params params = {sizeof(params), plan->shape.element, STRAIT_MODE_BASE, NULL};
    const struct strait_run run = run_of(step, plan, memory);
    struct codec_list list;
    if (!plan_list(&list, plan, memory, true))
        return false;
    bool good = strait_encode_batch(step->member->codec, &params, list.encode, list.count, &run) == STRAIT_OK;
    plan_list_free(&list);
    return good;
}

static bool encode_step(const struct coll_step *step)
{
    const struct gpu_ops *gpu = step->member->gpu;
    struct coll_staging *staging = step->staging;
    coll_stream stream = step->call.stream;
    struct plan plan;
    if (!plan_again(&plan, step))
        return false;
    uint8_t *memory = memory_of(step);
    if (staging->used && staging->stream != stream && !gpu->event_follow(stream, staging->last))
        return false;
    if (!gpu->zero(memory + plan.codec_at, plan.codec_size, stream))
        return false;
    if (!plan.sends)
        return true;
    const struct gpu_seal seal = {sent_list(&plan, memory), (void *)(memory + plan.results_at)};
    return encode(step, &plan, memory) && gpu->seal(&seal, stream);
}

/* All steps of a group are under way at once, so each has a place of its own. */
static coll_result reserve(struct coll_step *steps, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        struct coll_step *step = &steps[i];
        struct coll_member *member = step->member;
        struct plan plan;
        int before;
        if (!plan_again(&plan, step) || !member->gpu->enter(member->device, &before))
            return failed(step, "no plan, or no GPU");
        step->staging = staging_get(&member->stagings, member->gpu, step->call.stream);
        member->gpu->leave(before);
        if (step->staging == NULL)
            return failed(step, "no memory");
        step->staging->reserved = 0;
    }
    for (unsigned i = 0; i < count; i++) {
        struct plan plan;
        if (!plan_again(&plan, &steps[i]))
            return failed(&steps[i], "no plan");
        steps[i].at = steps[i].staging->reserved;
        steps[i].staging->reserved += plan.size;
    }
    return COLL_SUCCESS;
}

coll_result steps_encode(struct coll_step *steps, unsigned count)
{
    coll_result result = reserve(steps, count);
    for (unsigned i = 0; i < count && result == COLL_SUCCESS; i++) {
        const struct coll_step *step = &steps[i];
        const struct gpu_ops *gpu = step->member->gpu;
        int before;
        if (!gpu->enter(step->member->device, &before))
            return failed(step, "no GPU");
        if (!staging_grow(step->staging, gpu))
            result = failed(step, "no memory for messages");
        else if (!encode_step(step))
            result = failed(step, "encoding could not be launched");
        gpu->leave(before);
    }
    return result;
}

/* ---- Moving ------------------------------------------------------------------------------------------------------ */

static coll_result move_pair(const struct coll_step *step, const struct plan *plan, uint8_t *memory, int peer)
{
    const struct coll_table *nccl = step->member->host.nccl;
    const struct coll_call *call = &plan->call;
    const size_t size = plan->shape.message, out = plan->out > 1 ? (size_t)peer : 0,
                 in = plan->in > 1 ? (size_t)peer : 0;
    coll_result result = COLL_SUCCESS;
    if (plan->sends)
        result = nccl->Send(memory + plan->out_at + out * plan->shape.encoded, size, COLL_UINT8, peer, call->comm,
                            call->stream);
    if (plan->receives && result == COLL_SUCCESS)
        result = nccl->Recv(memory + plan->in_at + in * size, size, COLL_UINT8, peer, call->comm, call->stream);
    return result;
}

static coll_result gather(const struct coll_step *step, const void *send, void *receive, size_t size)
{
    return step->member->host.nccl->AllGather(send, receive, size, COLL_UINT8, step->call.comm, step->call.stream);
}

static coll_result move_step(const struct coll_step *step)
{
    struct plan plan;
    if (!plan_again(&plan, step))
        return failed(step, "no plan");
    uint8_t *memory = memory_of(step);
    if (plan.call.operation == COLL_ALL_GATHER)
        return gather(step, memory + plan.out_at, memory + plan.in_at, plan.shape.message);
    if (plan.call.operation == COLL_SEND || plan.call.operation == COLL_RECV)
        return move_pair(step, &plan, memory, plan.call.peer);
    coll_result result = COLL_SUCCESS;
    if (plan.left > 0)
        result = gather(step, plan.rest.send, plan_rest(&plan, memory, 0), plan.left);
    for (int peer = 0; peer < step->member->ranks && result == COLL_SUCCESS; peer++)
        if (peer != step->member->rank)
            result = move_pair(step, &plan, memory, peer);
    return result;
}

coll_result steps_move(struct coll_step *steps, unsigned count)
{
    coll_result result = COLL_SUCCESS;
    for (unsigned i = 0; i < count && result == COLL_SUCCESS; i++)
        result = move_step(&steps[i]);
    return result;
}

/* ---- What did not fit -------------------------------------------------------------------------------------------- */

static struct repair_job job_of(const struct coll_step *step, const struct plan *plan, uint8_t *memory)
{
    const bool pair = plan->skip == UINT32_MAX;
    const uint64_t stride = plan->in > 1 ? (uint64_t)(plan_target(plan, memory, 1) - plan_target(plan, memory, 0)) : 0;
    return (struct repair_job){.send = plan->sends ? plan_source(plan, 0) : NULL,
                               .receive = plan->receives ? plan_target(plan, memory, 0) : NULL,
                               .send_stride = plan->everybody ? 0 : plan->raw,
                               .receive_stride = stride,
                               .bytes = plan->raw,
                               .index = phase_of(step)->index,
                               .key = phase_of(step)->key,
                               .peer = pair ? step->call.peer : -1};
}

static bool check(const struct coll_step *step)
{
    struct plan plan;
    if (!plan_again(&plan, step))
        return false;
    uint8_t *memory = memory_of(step);
    struct gpu_check look = {.whole = plan.skip != UINT32_MAX,
                             .found = found_of(&plan, memory),
                             .unit = plan.shape.pages * (uint64_t)SHAPE_PAGE / 1024,
                             .mail = step->staging->mail,
                             .control = step->staging->control,
                             .job = job_of(step, &plan, memory)};
    if (plan.receives)
        look.list = received_list(&plan, memory);
    if (plan.sends)
        look.own = memory + plan.out_at + (plan.out > 1 && plan.skip == 0 ? plan.shape.encoded : 0);
    return step->member->gpu->check(&look, step->call.stream);
}

/* What of one staging memory comes before goes before, whatever streams it is on. */
static bool follow(const struct coll_step *step)
{
    const struct coll_staging *staging = step->staging;
    return !staging->used || staging->stream == step->call.stream ||
           step->member->gpu->event_follow(step->call.stream, staging->last);
}

static bool mark(const struct coll_step *step)
{
    struct coll_staging *staging = step->staging;
    staging->used = true;
    staging->stream = step->call.stream;
    return step->member->gpu->event_record(staging->last, step->call.stream);
}

/* One meeting for all steps of a staging memory: two ranks that each wait for the other in a meeting of its own would
 * wait for ever. It comes after the last step's check. */
static bool meets_here(const struct coll_step *steps, unsigned count, unsigned i)
{
    for (unsigned later = i + 1; later < count; later++)
        if (steps[later].staging == steps[i].staging)
            return false;
    return true;
}

static bool check_all(const struct coll_step *steps, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        const struct gpu_ops *gpu = steps[i].member->gpu;
        const struct gpu_meet meet = {steps[i].staging->mail, steps[i].staging->control, MEET_PATIENCE_NS};
        int before;
        if (!gpu->enter(steps[i].member->device, &before))
            return false;
        bool good = follow(&steps[i]) && check(&steps[i]) &&
                    (!meets_here(steps, count, i) || gpu->meet(&meet, steps[i].call.stream)) && mark(&steps[i]);
        gpu->leave(before);
        if (!good)
            return false;
    }
    return true;
}

/* ---- Decoding ---------------------------------------------------------------------------------------------------- */

static bool decode(const struct coll_step *step, const struct plan *plan, uint8_t *memory)
{
    const struct gpu_ops *gpu = step->member->gpu;
    const struct strait_run run = run_of(step, plan, memory);
    const struct gpu_void no_chunks = {received_list(plan, memory), found_of(plan, memory)};
    struct codec_list list;
    if (!gpu->make_void(&no_chunks, step->call.stream) || !plan_list(&list, plan, memory, false))
        return false;
    const struct gpu_verify verify = {(void *)(memory + plan->results_at), list.count, found_of(plan, memory),
                                      step->staging->mail};
    bool good = strait_decode_batch(step->member->codec, NULL, list.decode, list.count, &run) == STRAIT_OK &&
                gpu->verify(&verify, step->call.stream);
    plan_list_free(&list);
    return good;
}

/* What a rank has for itself. */
static bool copy_own(const struct coll_step *step, const struct plan *plan)
{
    const struct coll_call *call = &plan->call;
    if (call->operation != COLL_ALL_GATHER && call->operation != COLL_ALL_TO_ALL)
        return true;
    const uint8_t *from = plan_source(plan, plan->skip);
    uint8_t *to = plan_target(plan, NULL, plan->skip);
    return from == to || step->member->gpu->copy(to, from, plan->raw, call->stream);
}

/* What all ranks have alike is added up alike on all of them, whatever the order. */
static struct coll_reduce sum_of(const struct coll_step *step, const struct coll_call *call)
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
    struct coll_reduce sum = sum_of(step, &plan->call);
    for (uint32_t i = 0; i < sum.sources; i++)
        sum.source[i] = i == plan->skip ? plan_source(plan, i) : plan_target(plan, memory, i);
    return step->member->gpu->reduce(&sum, step->call.stream);
}

static bool reduce_rest(const struct coll_step *step, const struct plan *plan, uint8_t *memory)
{
    if (plan->left == 0)
        return true;
    struct coll_reduce sum = sum_of(step, &plan->rest);
    for (uint32_t i = 0; i < sum.sources; i++)
        sum.source[i] = plan_rest(plan, memory, i);
    return step->member->gpu->reduce(&sum, step->call.stream);
}

static bool decode_step(const struct coll_step *step)
{
    struct plan plan;
    if (!plan_again(&plan, step))
        return false;
    uint8_t *memory = memory_of(step);
    return follow(step) && (!plan.receives || decode(step, &plan, memory)) && copy_own(step, &plan) &&
           reduce(step, &plan, memory) && reduce_rest(step, &plan, memory) && mark(step);
}

coll_result steps_decode(struct coll_step *steps, unsigned count)
{
    if (!check_all(steps, count))
        return failed(&steps[0], "a check could not be launched");
    for (unsigned i = 0; i < count; i++) {
        const struct gpu_ops *gpu = steps[i].member->gpu;
        int before;
        if (!gpu->enter(steps[i].member->device, &before))
            return failed(&steps[i], "no GPU");
        bool good = decode_step(&steps[i]);
        gpu->leave(before);
        if (!good)
            return failed(&steps[i], "decoding could not be launched");
    }
    return COLL_SUCCESS;
}
