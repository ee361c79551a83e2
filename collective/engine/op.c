#include <stdlib.h>

#include "collective/engine/ccomm.h"
#include "collective/engine/op.h"

/* When a graph runs, it waits for what was last marked outside of it, and later work waits for the graph. A handle
 * alone does not identify a stream: each thread has another one by that of cudaStreamPerThread. */
static bool follow_in_graph(struct coll_ccomm *member, const struct coll_staging *staging, coll_stream stream)
{
    if (!staging->used)
        return member->gpu->event_follow_outside(stream, member->last);
    return member->gpu->event_follow(stream, staging->last);
}

bool order_follow(struct coll_ccomm *member, const struct coll_staging *staging, coll_stream stream)
{
    if (staging->capture != 0)
        return follow_in_graph(member, staging, stream);
    return member->gpu->event_follow(stream, member->last);
}

bool order_mark(struct coll_ccomm *member, struct coll_staging *staging, coll_stream stream)
{
    staging->used = true;
    return member->gpu->event_record(staging->capture == 0 ? member->last : staging->last, stream);
}

bool order_end(struct coll_ccomm *member, struct coll_staging *staging, coll_stream stream)
{
    if (!order_mark(member, staging, stream))
        return false;
    return staging->capture == 0 || member->gpu->event_record_outside(member->last, stream);
}

bool streams_join(struct coll_ccomm *member, const coll_stream *streams, unsigned count)
{
    const struct gpu_ops *gpu = member->gpu;
    bool good = true;
    for (unsigned i = 1; i < count && good; i++)
        good = gpu->event_record(member->tie, streams[i]) && gpu->event_follow(streams[0], member->tie);
    good = good && gpu->event_record(member->tie, streams[0]);
    for (unsigned i = 1; i < count && good; i++)
        good = gpu->event_follow(streams[i], member->tie);
    return good;
}

static void release(const struct gpu_ops *gpu, void *memory, bool hosted)
{
    if (hosted)
        gpu->release_pinned(memory);
    else
        gpu->release(memory);
}

static void destroy(struct coll_staging *staging, const struct gpu_ops *gpu)
{
    for (unsigned i = 0; i < staging->outgrown_count; i++)
        release(gpu, staging->outgrown[i].memory, staging->outgrown[i].hosted);
    release(gpu, staging->memory, staging->hosted);
    gpu_event const events[] = {staging->last, staging->fork, staging->join, staging->turn};
    for (unsigned i = 0; i < sizeof(events) / sizeof(events[0]); i++)
        if (events[i] != NULL)
            gpu->event_end(events[i]);
    if (staging->side != NULL)
        gpu->stream_end(staging->side);
    free(staging->outgrown);
    free(staging);
}

static struct coll_staging *make(const struct gpu_ops *gpu, uint64_t capture)
{
    struct coll_staging *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return NULL;
    made->capture = capture;
    made->side = gpu->stream_make();
    gpu_event *const events[] = {&made->last, &made->fork, &made->join, &made->turn};
    bool good = made->side != NULL;
    for (unsigned i = 0; i < sizeof(events) / sizeof(events[0]) && good; i++)
        good = (*events[i] = gpu->event_make(false)) != NULL;
    if (good)
        return made;
    destroy(made, gpu);
    return NULL;
}

struct coll_staging *staging_get(struct staging_list *list, const struct gpu_ops *gpu, coll_stream stream)
{
    const uint64_t capture = gpu->stream_capture(stream);
    for (struct coll_staging *staging = list->first; staging != NULL; staging = staging->next)
        if (staging->capture == capture)
            return staging;
    struct coll_staging *made = make(gpu, capture);
    if (made == NULL)
        return NULL;
    made->next = list->first;
    __atomic_store_n(&list->first, made, __ATOMIC_RELEASE);
    return made;
}

/* Grows by powers of two, so outgrown memory adds up to no more than the current size. */
bool staging_grow(struct coll_staging *staging, const struct gpu_ops *gpu)
{
    size_t size = staging->size > 0 ? staging->size : (size_t)4 << 20;
    while (size < staging->reserved)
        size *= 2;
    if (size == staging->size)
        return true;
    if (staging->memory != NULL) {
        struct outgrown *outgrown = realloc(staging->outgrown, (staging->outgrown_count + 1) * sizeof(*outgrown));
        if (outgrown == NULL)
            return false;
        staging->outgrown = outgrown;
        outgrown[staging->outgrown_count++] = (struct outgrown){staging->memory, staging->hosted};
        staging->memory = NULL;
        staging->size = 0;
    }
    staging->memory = gpu->allocate(size, false);
    staging->hosted = staging->memory == NULL;
    if (staging->hosted)
        staging->memory = gpu->allocate_pinned(size);
    staging->size = staging->memory != NULL ? size : 0;
    return staging->memory != NULL;
}

void staging_end(struct staging_list *list, const struct gpu_ops *gpu)
{
    while (list->first != NULL) {
        struct coll_staging *next = list->first->next;
        destroy(list->first, gpu);
        list->first = next;
    }
}

/* Other ranks come to move overflow as soon as the operation is over for them too, so waiting longer means that they
 * are lost. The other side of a pair may have other things to do first: it gets as long as frameworks wait. */
#define PATIENCE_NS      UINT64_C(10000000000)
#define PAIR_PATIENCE_NS UINT64_C(600000000000)

struct exchange_job plain_job(const struct coll_op *step, const struct plan *plan, uint8_t *memory)
{
    struct exchange_job job = {
        .bytes = plan->raw, .found = plan_found(plan, memory), .peer = plan->skip == UINT32_MAX ? step->call.peer : -1};
    if (plan->sends) {
        job.send = plan_source(plan, 0);
        job.sent = memory + plan->out_at;
        job.send_stride = plan->out > 1 ? plan->stride : 0;
        job.sent_stride = plan->out > 1 ? plan->layout.encoded : 0;
    }
    if (plan->receives) {
        job.receive = plan_target(plan, memory, 0);
        job.received = memory + plan->in_at;
        job.receive_stride = plan->in > 1 ? (uint64_t)(plan_target(plan, memory, 1) - job.receive) : 0;
        job.received_stride = plan->in > 1 ? plan->layout.message : 0;
    }
    return job;
}

/* For all steps of the staging memory. */
static bool exchange(const struct coll_op *step, enum exchange_kind kind, coll_stream stream)
{
    const struct coll_ccomm *member = step->member;
    const struct gpu_exchange what = {.rings = member->share.rings,
                                      .ends = member->ends,
                                      .jobs = (const void *)step->staging->memory,
                                      .host_status = member->host_status,
                                      .patience_ns = PATIENCE_NS,
                                      .pair_patience_ns = PAIR_PATIENCE_NS,
                                      .count = step->staging->steps,
                                      .kind = kind};
    return member->gpu->exchange(&what, stream);
}

bool overflow_prepare(const struct coll_op *step)
{
    return step->member->gpu->event_record(step->staging->fork, step->call.stream);
}

bool overflow_start(const struct coll_op *step)
{
    const struct gpu_ops *gpu = step->member->gpu;
    const struct coll_staging *staging = step->staging;
    return gpu->event_follow(staging->side, staging->fork) && exchange(step, EXCHANGE_BESIDE, staging->side) &&
           gpu->event_record(staging->join, staging->side);
}

bool overflow_finish(const struct coll_op *step, bool forked)
{
    const struct gpu_ops *gpu = step->member->gpu;
    return exchange(step, EXCHANGE_BEHIND, step->call.stream) &&
           (!forked || gpu->event_follow(step->call.stream, step->staging->join));
}

static const struct coll_phase *phase_of(const struct coll_op *step)
{
    return &step->of[step->phase];
}

uint8_t *launch_memory(const struct coll_op *step)
{
    return step->staging->memory + step->at;
}

coll_result launch_failed(const struct coll_op *step, const char *why)
{
    member_fail(step->member, COLL_UNHANDLED_CUDA_ERROR, why);
    return COLL_UNHANDLED_CUDA_ERROR;
}

static bool is_pair(const struct coll_op *step)
{
    return step->call.operation == COLL_SEND || step->call.operation == COLL_RECV;
}

/* ---- Encoding ---------------------------------------------------------------------------------------------------- */

static struct message_list sent_list(const struct plan *plan, uint8_t *memory)
{
    return (struct message_list){.base = memory + plan->out_at,
                                 .stride = plan->layout.encoded,
                                 .count = plan->out,
                                 .skip = plan->everybody ? UINT32_MAX : plan->skip,
                                 .tail_at = plan->layout.tail_at,
                                 .main_at = plan->layout.main_at,
                                 .main_room = plan->layout.main_room};
}

static struct message_list received_list(const struct plan *plan, uint8_t *memory)
{
    return (struct message_list){.base = memory + plan->in_at,
                                 .stride = plan->layout.message,
                                 .count = plan->in,
                                 .skip = plan->skip,
                                 .tail_at = plan->layout.tail_at,
                                 .main_at = plan->layout.main_at,
                                 .main_room = plan->layout.main_room};
}

/* If NCCL moves data meanwhile, it needs some of the multiprocessors, and at once. */
static struct strait_run run_of(const struct coll_op *step, const struct plan *plan, uint8_t *memory, uint32_t beside)
{
    return (struct strait_run){.size = sizeof(struct strait_run),
                               .scratch = memory + plan->codec_at,
                               .scratch_size = plan->codec_size,
                               .stream = step->call.stream,
                               .sm_budget = beside > 0 ? step->member->multiprocessors * 3 / 4 : 0};
}

static bool encode(const struct coll_op *step, const struct plan *plan, uint8_t *memory)
{
    const struct strait_encode_params params = {sizeof(params), plan->layout.element, STRAIT_MODE_BASE, NULL};
    const struct strait_run run = run_of(step, plan, memory, step->head);
    struct codec_list list;
    if (!plan_list(&list, plan, memory, true))
        return false;
    bool good = strait_encode_batch(step->member->codec, &params, list.encode, list.count, &run) == STRAIT_OK;
    plan_list_free(&list);
    return good;
}

/* Also for a step that sends nothing: its job has to be stored. */
static bool seal(const struct coll_op *step, const struct plan *plan, uint8_t *memory)
{
    struct gpu_write_headers what = {.results = (void *)(memory + plan->results_at),
                                     .rings = step->member->share.rings,
                                     .ends = step->member->ends,
                                     .slots = ring_slots(&step->member->share.rings, plan->raw),
                                     .job = plain_job(step, plan, memory),
                                     .place = (struct exchange_job *)(void *)step->staging->memory + step->number};
    if (plan->sends)
        what.list = sent_list(plan, memory);
    return step->member->gpu->seal(&what, step->call.stream);
}

bool launch_encode(const struct coll_op *step)
{
    const struct plan *plan = launch_plan(step);
    uint8_t *memory = launch_memory(step);
    return step->member->gpu->zero(memory + plan->codec_at, plan->codec_size, step->call.stream) &&
           (!plan->sends || encode(step, plan, memory)) && seal(step, plan, memory);
}

/* ---- Moving ------------------------------------------------------------------------------------------------------ */

static coll_result move_pair(const struct coll_op *step, const struct plan *plan, uint8_t *memory, int peer,
                             coll_stream stream)
{
    const struct coll_table *nccl = step->member->host.nccl;
    const struct coll_call *call = &plan->call;
    const size_t size = plan->layout.message, out = plan->out > 1 ? (size_t)peer : 0,
                 in = plan->in > 1 ? (size_t)peer : 0;
    coll_result result = COLL_SUCCESS;
    if (plan->sends)
        result =
            nccl->Send(memory + plan->out_at + out * plan->layout.encoded, size, COLL_UINT8, peer, call->comm, stream);
    if (plan->receives && result == COLL_SUCCESS)
        result = nccl->Recv(memory + plan->in_at + in * size, size, COLL_UINT8, peer, call->comm, stream);
    return result;
}

static coll_result gather(const struct coll_op *step, const void *send, void *receive, size_t size, coll_stream stream)
{
    return step->member->host.nccl->AllGather(send, receive, size, COLL_UINT8, step->call.comm, stream);
}

coll_result launch_move(const struct coll_op *step, coll_stream stream)
{
    const struct plan *plan = launch_plan(step);
    uint8_t *memory = launch_memory(step);
    if (plan->call.operation == COLL_ALL_GATHER)
        return gather(step, memory + plan->out_at, memory + plan->in_at, plan->layout.message, stream);
    if (plan->call.operation == COLL_SEND || plan->call.operation == COLL_RECV)
        return move_pair(step, plan, memory, plan->call.peer, stream);
    coll_result result = COLL_SUCCESS;
    if (plan->left > 0)
        result = gather(step, plan->rest.send, plan_rest(plan, memory, 0), plan->left, stream);
    for (int peer = 0; peer < step->member->ranks && result == COLL_SUCCESS; peer++)
        if (peer != step->member->rank)
            result = move_pair(step, plan, memory, peer, stream);
    return result;
}

/* ---- Overflow ---------------------------------------------------------------------------------------------------- */

bool launch_check(const struct coll_op *step)
{
    const struct plan *plan = launch_plan(step);
    uint8_t *memory = launch_memory(step);
    struct coll_ccomm *member = step->member;
    struct gpu_check look = {.bit = plan->everybody || is_pair(step) ? 0 : (uint32_t)member->rank,
                             .found = plan_found(plan, memory),
                             .unit = plan->layout.pages * (uint64_t)PLAN_PAGE / 1024,
                             .host_status = member->host_status,
                             .overflow_counter = member->tallies + phase_of(step)->key,
                             .index = phase_of(step)->index,
                             .key = phase_of(step)->key};
    if (plan->receives)
        look.list = received_list(plan, memory);
    if (plan->sends)
        look.own = memory + plan->out_at + (plan->out > 1 && plan->skip == 0 ? plan->layout.encoded : 0);
    return member->gpu->check(&look, step->call.stream);
}

/* ---- Decoding ---------------------------------------------------------------------------------------------------- */

static bool decode(const struct coll_op *step, const struct plan *plan, uint8_t *memory)
{
    const struct gpu_ops *gpu = step->member->gpu;
    const struct strait_run run = run_of(step, plan, memory, step->tail);
    struct codec_list list;
    if (!plan_list(&list, plan, memory, false))
        return false;
    const struct gpu_verify verify = {received_list(plan, memory), (void *)(memory + plan->results_at),
                                      plan_found(plan, memory), step->member->host_status};
    bool good = strait_decode_batch(step->member->codec, NULL, list.decode, list.count, &run) == STRAIT_OK &&
                gpu->verify(&verify, step->call.stream);
    plan_list_free(&list);
    return good;
}

bool launch_own(const struct coll_op *step)
{
    const struct plan *plan = launch_plan(step);
    const struct coll_call *whole = &plan->whole;
    if (whole->operation != COLL_ALL_GATHER && whole->operation != COLL_ALL_TO_ALL)
        return true;
    const uint8_t *from = (const uint8_t *)whole->send + (plan->everybody ? 0 : plan->skip * plan->stride);
    uint8_t *to = (uint8_t *)whole->receive + plan->skip * plan->stride;
    return from == to || step->member->gpu->copy(to, from, plan->stride, step->call.stream);
}

/* All ranks of an all_reduce add up the same values, so all use the order of rank 0's block. */
struct coll_reduce launch_sum_of(const struct coll_op *step, const struct coll_call *call)
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

static bool reduce(const struct coll_op *step, const struct plan *plan, uint8_t *memory)
{
    if (!plan->reduces)
        return true;
    struct coll_reduce sum = launch_sum_of(step, &plan->call);
    for (uint32_t i = 0; i < sum.sources; i++)
        sum.source[i] = i == plan->skip ? plan_source(plan, i) : plan_target(plan, memory, i);
    return step->member->gpu->reduce(&sum, step->call.stream);
}

static bool reduce_rest(const struct coll_op *step, const struct plan *plan, uint8_t *memory)
{
    if (plan->left == 0)
        return true;
    struct coll_reduce sum = launch_sum_of(step, &plan->rest);
    for (uint32_t i = 0; i < sum.sources; i++)
        sum.source[i] = plan_rest(plan, memory, i);
    return step->member->gpu->reduce(&sum, step->call.stream);
}

bool launch_decode(const struct coll_op *step)
{
    const struct plan *plan = launch_plan(step);
    return !plan->receives || decode(step, plan, launch_memory(step));
}

bool launch_sums(const struct coll_op *step)
{
    const struct plan *plan = launch_plan(step);
    uint8_t *memory = launch_memory(step);
    return reduce(step, plan, memory) && reduce_rest(step, plan, memory);
}

/* Of those that share its staging memory. */
static bool is_last(const struct coll_op *step)
{
    return step->number + 1 == step->staging->steps;
}

static bool follow(const struct coll_op *step)
{
    return order_follow(step->member, step->staging, step->call.stream);
}

/* Steps of a group may be on several streams. */
static bool mark(const struct coll_op *step, unsigned count)
{
    return count == 1 || order_mark(step->member, step->staging, step->call.stream);
}

/* For grouped steps, NCCL may finish only after other ranks have received their overflow. */
static bool is_grouped(const struct coll_op *steps, unsigned count)
{
    return count > 1 || steps[0].call.grouped;
}

/* ---- Encoding ---------------------------------------------------------------------------------------------------- */

/* All steps of a group are under way at once, so each has its own place, behind the jobs of all. */
static bool reserve_one(struct coll_op *step)
{
    struct coll_ccomm *member = step->member;
    int before;
    if (!member->gpu->enter(member->device, &before))
        return false;
    step->staging = staging_get(&member->stagings, member->gpu, step->call.stream);
    member->gpu->leave(before);
    return step->staging != NULL;
}

coll_result steps_reserve(struct coll_op *steps, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        if (!reserve_one(&steps[i]))
            return launch_failed(&steps[i], "no memory");
        steps[i].staging->steps = 0;
    }
    for (unsigned i = 0; i < count; i++) {
        steps[i].number = steps[i].staging->steps++;
        steps[i].staging->reserved = plan_aligned(steps[i].staging->steps * sizeof(struct exchange_job));
    }
    for (unsigned i = 0; i < count; i++) {
        struct plan *plan = &steps[i].of[steps[i].phase].plan;
        plan->copies = plan->reduces && (steps[i].call.registered || steps[i].staging->capture != 0);
        if (!plan_measure(plan, steps[i].member))
            return launch_failed(&steps[i], "no memory to plan with");
        steps[i].at = steps[i].staging->reserved;
        steps[i].staging->reserved += plan->size;
    }
    return COLL_SUCCESS;
}

/* Other ranks are at this operation already, or will be, so it has to be compressed. Later ones need not be. */
bool steps_grow(const struct coll_op *step)
{
    struct coll_ccomm *member = step->member;
    const bool hosted = step->staging->hosted;
    if (!staging_grow(step->staging, member->gpu))
        return false;
    if (!step->staging->hosted || hosted)
        return true;
    kinds_stop(member);
    member->host.say(
        "communicator %p, rank %d of %d: no memory of the GPU for messages: the host's has to do, and what "
        "comes next is raw on all ranks",
        (void *)member->comm, member->rank, member->ranks);
    return true;
}

static bool encode_step(const struct coll_op *step, unsigned count)
{
    return follow(step) && launch_encode(step) && mark(step, count);
}

static coll_result encode_one(const struct coll_op *steps, unsigned count, unsigned i)
{
    const struct coll_op *step = &steps[i];
    if (!steps_grow(step))
        return launch_failed(step, "no memory for messages");
    if (!encode_step(step, count) || (is_last(step) && is_grouped(steps, count) && !overflow_prepare(step)))
        return launch_failed(step, "encoding could not be launched");
    return COLL_SUCCESS;
}

/* What the ranks would move is not the same. */
static coll_result refuse_different(const struct coll_op *steps, unsigned count)
{
    coll_result result = COLL_SUCCESS;
    for (unsigned i = 0; i < count; i++) {
        if (!steps[i].differs)
            continue;
        result = COLL_INVALID_USAGE;
        member_fail(steps[i].member, result, "a rank groups an operation that another has begun outside of groups");
    }
    return result;
}

coll_result steps_encode(struct coll_op *steps, unsigned count)
{
    coll_result result = refuse_different(steps, count);
    if (result == COLL_SUCCESS)
        result = steps_reserve(steps, count);
    for (unsigned i = 0; i < count && result == COLL_SUCCESS; i++) {
        const struct gpu_ops *gpu = steps[i].member->gpu;
        int before;
        if (!gpu->enter(steps[i].member->device, &before))
            return launch_failed(&steps[i], "no GPU");
        result = encode_one(steps, count, i);
        gpu->leave(before);
    }
    return result;
}

coll_result steps_move(struct coll_op *steps, unsigned count)
{
    coll_result result = COLL_SUCCESS;
    for (unsigned i = 0; i < count && result == COLL_SUCCESS; i++)
        result = launch_move(&steps[i], steps[i].call.stream);
    return result;
}

/* ---- Overflow ---------------------------------------------------------------------------------------------------- */

/* Calls `what` on the GPU of each step. */
static bool each(const struct coll_op *steps, unsigned count,
                 bool (*what)(const struct coll_op *steps, unsigned count, unsigned i))
{
    bool good = true;
    for (unsigned i = 0; i < count && good; i++) {
        const struct gpu_ops *gpu = steps[i].member->gpu;
        int before;
        if (!gpu->enter(steps[i].member->device, &before))
            return false;
        good = what(steps, count, i);
        gpu->leave(before);
    }
    return good;
}

static bool move_beside(const struct coll_op *steps, unsigned count, unsigned i)
{
    return !is_last(&steps[i]) || !is_grouped(steps, count) || overflow_start(&steps[i]);
}

static bool check_one(const struct coll_op *steps, unsigned count, unsigned i)
{
    const bool last = is_last(&steps[i]);
    return follow(&steps[i]) && launch_check(&steps[i]) &&
           (!last || overflow_finish(&steps[i], is_grouped(steps, count))) && mark(&steps[i], count);
}

/* ---- Decoding ---------------------------------------------------------------------------------------------------- */

static bool decode_one(const struct coll_op *steps, unsigned count, unsigned i)
{
    const struct coll_op *step = &steps[i];
    (void)count;
    return follow(step) && launch_decode(step) && launch_own(step) && launch_sums(step) &&
           order_end(step->member, step->staging, step->call.stream);
}

coll_result steps_decode(struct coll_op *steps, unsigned count)
{
    if (!each(steps, count, move_beside) || !each(steps, count, check_one))
        return launch_failed(&steps[0], "what did not fit could not be looked for");
    if (!each(steps, count, decode_one))
        return launch_failed(&steps[0], "decoding could not be launched");
    return COLL_SUCCESS;
}
