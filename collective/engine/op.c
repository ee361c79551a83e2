#include <stdlib.h>

#include "collective/engine/ccomm.h"
#include "collective/engine/local.h"
#include "collective/engine/op.h"

bool order_follow(struct coll_ccomm *ccomm, const struct coll_staging *staging, coll_stream stream)
{
    if (staging->capture != 0) {
        /* When a graph runs, it waits for what was last marked outside of it, and later work waits for the graph. A
         * handle alone does not identify a stream: each thread has another one by that of cudaStreamPerThread. */
        if (!staging->used)
            return ccomm->gpu->event_follow_outside(stream, ccomm->last);
        return ccomm->gpu->event_follow(stream, staging->last);
    }
    return ccomm->gpu->event_follow(stream, ccomm->last);
}

/* Marks what is queued on the stream so far, for other ops of its group. */
static bool order_mark(struct coll_ccomm *ccomm, struct coll_staging *staging, coll_stream stream)
{
    staging->used = true;
    return ccomm->gpu->event_record(staging->capture == 0 ? ccomm->last : staging->last, stream);
}

bool order_end(struct coll_ccomm *ccomm, struct coll_staging *staging, coll_stream stream)
{
    if (!order_mark(ccomm, staging, stream))
        return false;
    return staging->capture == 0 || ccomm->gpu->event_record_outside(ccomm->last, stream);
}

bool streams_join(struct coll_ccomm *ccomm, const coll_stream *streams, unsigned count)
{
    const struct gpu_ops *gpu = ccomm->gpu;
    bool good = true;
    for (unsigned i = 1; i < count && good; i++)
        good = gpu->event_record(ccomm->joined, streams[i]) && gpu->event_follow(streams[0], ccomm->joined);
    good = good && gpu->event_record(ccomm->joined, streams[0]);
    for (unsigned i = 1; i < count && good; i++)
        good = gpu->event_follow(streams[i], ccomm->joined);
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
    gpu_event const events[] = {staging->last, staging->fork, staging->join, staging->arrived};
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
    gpu_event *const events[] = {&made->last, &made->fork, &made->join, &made->arrived};
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
static bool staging_grow(struct coll_staging *staging, const struct gpu_ops *gpu)
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
        outgrown[staging->outgrown_count++] = (struct outgrown){staging->memory, staging->size, staging->hosted};
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

static void staging_account(struct staging_list *list)
{
    uint64_t bytes[2] = {0, 0}, hosted = 0;
    for (const struct coll_staging *staging = list->first; staging != NULL; staging = staging->next) {
        uint64_t *of = &bytes[staging->capture != 0];
        *of += staging->suspended;
        *(staging->hosted ? &hosted : of) += staging->size;
        for (unsigned i = 0; i < staging->outgrown_count; i++)
            *(staging->outgrown[i].hosted ? &hosted : of) += staging->outgrown[i].size;
    }
    __atomic_store_n(&list->calls, bytes[0], __ATOMIC_RELAXED);
    __atomic_store_n(&list->graphs, bytes[1], __ATOMIC_RELAXED);
    __atomic_store_n(&list->hosted, hosted, __ATOMIC_RELAXED);
}

void staging_suspend(struct staging_list *list, const struct gpu_ops *gpu)
{
    for (struct coll_staging *staging = list->first; staging != NULL; staging = staging->next) {
        if (staging->capture != 0 || staging->memory == NULL)
            continue;
        for (unsigned i = 0; i < staging->outgrown_count; i++)
            release(gpu, staging->outgrown[i].memory, staging->outgrown[i].hosted);
        release(gpu, staging->memory, staging->hosted);
        staging->suspended = staging->size;
        staging->memory = NULL;
        staging->size = 0;
        staging->hosted = false;
        staging->outgrown_count = 0;
    }
    staging_account(list);
}

void staging_resume(struct staging_list *list, const struct gpu_ops *gpu)
{
    for (struct coll_staging *staging = list->first; staging != NULL; staging = staging->next) {
        if (staging->suspended > 0 && staging->memory == NULL) {
            staging->memory = gpu->allocate(staging->suspended, false);
            staging->size = staging->memory != NULL ? staging->suspended : 0;
        }
        staging->suspended = 0;
    }
    staging_account(list);
}

uint64_t staging_bytes(const struct staging_list *list, bool graphs)
{
    return __atomic_load_n(graphs ? &list->graphs : &list->calls, __ATOMIC_RELAXED);
}

uint64_t staging_hosted(const struct staging_list *list)
{
    return __atomic_load_n(&list->hosted, __ATOMIC_RELAXED);
}

/* Other ranks come to move overflow as soon as the operation is over for them too, so waiting longer means that they
 * are lost. The other side of a pair may have other things to do first: it gets as long as frameworks wait. */
#define PATIENCE_NS      UINT64_C(10000000000)
#define PAIR_PATIENCE_NS UINT64_C(600000000000)

/* The job that the kernel of gpu_write_headers stores for the op. */
static struct exchange_job overflow_job(const struct coll_op *op, const struct plan *plan, uint8_t *memory)
{
    struct exchange_job job = {.bytes = plan->raw,
                               .found = plan_found(plan, memory),
                               .peer = plan_is_pair(plan) ? op->call.peer : -1,
                               .first = plan->first,
                               .step = plan->step,
                               .root = plan->call.operation == COLL_BROADCAST ? (uint32_t)op->call.peer + 1 : 0};
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

/* For all ops of the staging memory. */
static bool exchange(const struct coll_op *op, enum exchange_kind kind, coll_stream stream)
{
    const struct coll_ccomm *ccomm = op->ccomm;
    const struct gpu_exchange what = {.rings = ccomm->shared.rings,
                                      .ends = ccomm->ends,
                                      .jobs = (const void *)op->staging->memory,
                                      .host_status = ccomm->host_status,
                                      .patience_ns = PATIENCE_NS,
                                      .pair_patience_ns = PAIR_PATIENCE_NS,
                                      .count = op->staging->op_count,
                                      .kind = kind};
    return ccomm->gpu->exchange(&what, stream);
}

/* For grouped ops, when NCCL's kernels have been launched, so that its kernel blocks nothing where streams share a
 * queue. It follows the staging memory's `fork`, which is recorded behind all headers, before NCCL moves. */
static bool overflow_start(const struct coll_op *op)
{
    const struct gpu_ops *gpu = op->ccomm->gpu;
    const struct coll_staging *staging = op->staging;
    return gpu->event_follow(staging->side, staging->fork) && exchange(op, EXCHANGE_BESIDE, staging->side) &&
           gpu->event_record(staging->join, staging->side);
}

bool overflow_finish(const struct coll_op *op, bool forked)
{
    const struct gpu_ops *gpu = op->ccomm->gpu;
    return exchange(op, EXCHANGE_BEHIND, op->call.stream) &&
           (!forked || gpu->event_follow(op->call.stream, op->staging->join));
}

static const struct coll_phase *phase_of(const struct coll_op *op)
{
    return &op->of[op->phase];
}

uint8_t *launch_memory(const struct coll_op *op)
{
    return op->staging->memory + op->at;
}

coll_result launch_failed(const struct coll_op *op, const char *why)
{
    ccomm_fail(op->ccomm, COLL_UNHANDLED_CUDA_ERROR, why);
    return COLL_UNHANDLED_CUDA_ERROR;
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

/* If NCCL moves data meanwhile, it needs some of the multiprocessors, and at once. 0: all of them. */
static uint32_t sm_budget_of(const struct coll_ccomm *ccomm, bool beside)
{
    const unsigned most = ccomm->host.settings.sms, left = beside ? ccomm->multiprocessors * 3 / 4 : 0;
    return most == 0 || (left != 0 && left < most) ? left : most;
}

static struct strait_run run_of(const struct coll_op *op, const struct plan *plan, uint8_t *memory, uint32_t beside)
{
    return (struct strait_run){.size = sizeof(struct strait_run),
                               .scratch = memory + plan->codec_at,
                               .scratch_size = plan->codec_size,
                               .stream = op->call.stream,
                               .sm_budget = sm_budget_of(op->ccomm, beside > 0)};
}

static bool encode(const struct coll_op *op, const struct plan *plan, uint8_t *memory)
{
    const struct strait_encode_params params = {
        .size = sizeof(params), .element = plan->layout.element, .mode = STRAIT_MODE_BASE, .codebook = NULL};
    const struct strait_run run = run_of(op, plan, memory, op->head);
    struct codec_list list;
    if (!plan_list(&list, plan, memory, true))
        return false;
    bool good = strait_encode_batch(op->ccomm->codec, &params, list.encode, list.count, &run) == STRAIT_OK;
    plan_list_free(&list);
    return good;
}

/* Also for a phase that sends nothing coded: its job has to be stored. */
static bool write_headers(const struct coll_op *op, const struct plan *plan, uint8_t *memory)
{
    struct gpu_write_headers what = {.results = (void *)(memory + plan->results_at),
                                     .rings = op->ccomm->shared.rings,
                                     .ends = op->ccomm->ends,
                                     .slots = ring_slots(&op->ccomm->shared.rings, plan->raw),
                                     .job = overflow_job(op, plan, memory),
                                     .place = (struct exchange_job *)(void *)op->staging->memory + op->number};
    if (plan->sends)
        what.list = sent_list(plan, memory);
    return op->ccomm->gpu->write_headers(&what, op->call.stream);
}

/* A rank knows of its own addresses only, so the operation is the same for the others. */
static bool is_odd(const struct coll_call *call)
{
    return call->type == COLL_UINT8 && (((uintptr_t)call->send | (uintptr_t)call->receive) & 1) != 0;
}

bool launch_odd_in(struct coll_op *op)
{
    struct plan *plan = &op->of[op->phase].plan;
    uint8_t *memory = launch_memory(op);
    if (!plan->odd)
        return true;
    const size_t before = (size_t)((const uint8_t *)plan->call.send - (const uint8_t *)plan->whole.send);
    const size_t behind = (size_t)((uint8_t *)plan->call.receive - (uint8_t *)plan->whole.receive);
    plan->whole.send = memory + plan->odd_out_at;
    plan->whole.receive = memory + plan->odd_in_at;
    plan->call.send = memory + plan->odd_out_at + before;
    plan->call.receive = memory + plan->odd_in_at + behind;
    return !plan->sends || op->ccomm->gpu->copy_rows(memory + plan->odd_out_at, plan->stride, op->call.send,
                                                     plan->stride, plan->stride, plan->out, op->call.stream);
}

bool launch_odd_out(const struct coll_op *op)
{
    const struct plan *plan = launch_plan(op);
    return !plan->odd || !plan->receives ||
           op->ccomm->gpu->copy_rows(op->call.receive, plan->stride, launch_memory(op) + plan->odd_in_at, plan->stride,
                                     plan->stride, plan->in, op->call.stream);
}

bool launch_encode(const struct coll_op *op)
{
    const struct plan *plan = launch_plan(op);
    uint8_t *memory = launch_memory(op);
    if (plan->scope == PLAN_LOCAL)
        return local_copy(op, memory) && write_headers(op, plan, memory);
    return op->ccomm->gpu->zero(memory + plan->codec_at, plan->codec_size, op->call.stream) &&
           (!plan->sends || encode(op, plan, memory)) && write_headers(op, plan, memory);
}

/* ---- Moving ------------------------------------------------------------------------------------------------------ */

/* Messages number i, or the only ones, to and from `peer`. */
static coll_result move_pair(const struct coll_op *op, const struct plan *plan, uint8_t *memory, uint32_t i, int peer,
                             coll_stream stream)
{
    const struct coll_table *nccl = op->ccomm->host.nccl;
    const struct coll_call *call = &plan->call;
    const size_t size = plan->layout.message, out = plan->out > 1 ? i : 0, in = plan->in > 1 ? i : 0;
    coll_result result = COLL_SUCCESS;
    if (plan->sends)
        result =
            nccl->Send(memory + plan->out_at + out * plan->layout.encoded, size, COLL_UINT8, peer, call->comm, stream);
    if (plan->receives && result == COLL_SUCCESS)
        result = nccl->Recv(memory + plan->in_at + in * size, size, COLL_UINT8, peer, call->comm, stream);
    return result;
}

static coll_result gather(const struct coll_op *op, const void *send, void *receive, size_t size, coll_stream stream)
{
    return op->ccomm->host.nccl->AllGather(send, receive, size, COLL_UINT8, op->call.comm, stream);
}

/* In place. */
static coll_result broadcast(const struct coll_op *op, void *message, size_t size, coll_stream stream)
{
    return op->ccomm->host.nccl->Broadcast(message, message, size, COLL_UINT8, op->call.peer, op->call.comm, stream);
}

coll_result launch_rest(const struct coll_op *op, coll_stream stream)
{
    const struct plan *plan = launch_plan(op);
    return plan->left > 0 ? gather(op, plan->rest.send, plan_rest(plan, launch_memory(op), 0), plan->left, stream)
                          : COLL_SUCCESS;
}

coll_result launch_move(const struct coll_op *op, coll_stream stream)
{
    const struct plan *plan = launch_plan(op);
    uint8_t *memory = launch_memory(op);
    if (plan->gathers) {
        const size_t other = plan->out > 1 ? 1 - plan->skip : 0; /* the message for the other one of two ranks */
        return gather(op, memory + plan->out_at + other * plan->layout.encoded, memory + plan->in_at,
                      plan->layout.message, stream);
    }
    if (plan_is_pair(plan))
        return move_pair(op, plan, memory, 0, plan->call.peer, stream);
    if (plan->call.operation == COLL_BROADCAST)
        return broadcast(op, memory + (plan->sends ? plan->out_at : plan->in_at), plan->layout.message, stream);
    coll_result result = launch_rest(op, stream);
    if (plan->scope == PLAN_LOCAL)
        return result == COLL_SUCCESS ? local_move(op, memory, stream) : result;
    for (uint32_t i = 0; i < plan->in && result == COLL_SUCCESS; i++)
        if (i != plan->skip)
            result = move_pair(op, plan, memory, i, (int)(plan->first + i * plan->step), stream);
    return result;
}

/* ---- Overflow ---------------------------------------------------------------------------------------------------- */

bool launch_check(const struct coll_op *op)
{
    const struct plan *plan = launch_plan(op);
    uint8_t *memory = launch_memory(op);
    struct coll_ccomm *ccomm = op->ccomm;
    const bool probe = phase_of(op)->level == LEVEL_PROBE && plan->scope != PLAN_LOCAL;
    struct gpu_check look = {.bit = plan->everybody || plan_is_pair(plan) ? 0 : plan->skip,
                             .found = plan_found(plan, memory),
                             .unit = plan->layout.pages * (uint64_t)PLAN_PAGE / 1024,
                             .host_status = ccomm->host_status,
                             .ends = ccomm->ends,
                             .overflow_counter = ccomm->overflow_counters + phase_of(op)->local_class,
                             .index = phase_of(op)->index,
                             .local_class = phase_of(op)->local_class,
                             .probe = probe ? REPORT_PROBE : 0};
    if (plan->receives)
        look.list = received_list(plan, memory);
    if (plan->sends)
        look.own = memory + plan->out_at + (plan->out > 1 && plan->skip == 0 ? plan->layout.encoded : 0);
    return ccomm->gpu->check(&look, op->call.stream);
}

/* ---- Decoding ---------------------------------------------------------------------------------------------------- */

static bool decode(const struct coll_op *op, const struct plan *plan, uint8_t *memory)
{
    const struct gpu_ops *gpu = op->ccomm->gpu;
    const struct strait_run run = run_of(op, plan, memory, op->tail);
    struct codec_list list;
    if (!plan_list(&list, plan, memory, false))
        return false;
    const struct gpu_verify verify = {received_list(plan, memory), (void *)(memory + plan->results_at),
                                      plan_found(plan, memory), op->ccomm->host_status};
    bool good = strait_decode_batch(op->ccomm->codec, NULL, list.decode, list.count, &run) == STRAIT_OK &&
                gpu->verify(&verify, op->call.stream);
    plan_list_free(&list);
    return good;
}

bool launch_own(const struct coll_op *op)
{
    const struct plan *plan = launch_plan(op);
    const struct coll_call *whole = &plan->whole, *coded = &plan->call;
    if (whole->operation == COLL_BROADCAST) /* NCCL does so with what is left uncompressed */
        return !plan->sends || coded->send == coded->receive ||
               op->ccomm->gpu->copy(coded->receive, coded->send, plan->raw, op->call.stream);
    if (whole->operation != COLL_ALL_GATHER && whole->operation != COLL_ALL_TO_ALL)
        return true;
    const uint8_t *from = (const uint8_t *)whole->send + (plan->everybody ? 0 : plan->skip * plan->stride);
    uint8_t *to = (uint8_t *)whole->receive + plan->skip * plan->stride;
    return from == to || op->ccomm->gpu->copy(to, from, plan->stride, op->call.stream);
}

/* All ranks of an all_reduce add up the same values, so all use the order of rank 0's block. */
struct coll_reduce launch_sum_of(const struct coll_op *op, const struct coll_call *call, uint32_t sources)
{
    return (struct coll_reduce){.type = call->type == COLL_BF16   ? COLL_REDUCE_BF16
                                        : call->type == COLL_FP16 ? COLL_REDUCE_FP16
                                                                  : COLL_REDUCE_FP32,
                                .operation = call->reduction == COLL_SUM ? COLL_REDUCE_SUM : COLL_REDUCE_AVG,
                                .order = op->ccomm->host.settings.ring ? COLL_REDUCE_NCCL_RING : COLL_REDUCE_IN_FP32,
                                .sources = sources,
                                .rank = call->operation == COLL_ALL_REDUCE ? 0 : launch_plan(op)->skip,
                                .dst = call->receive,
                                .count = call->count};
}

static bool reduce(const struct coll_op *op, const struct plan *plan, uint8_t *memory)
{
    if (!plan->reduces)
        return true;
    struct coll_reduce sum = launch_sum_of(op, &plan->call, plan->in);
    for (uint32_t i = 0; i < sum.sources; i++)
        sum.source[i] = i == plan->skip ? plan_source(plan, i) : plan_target(plan, memory, i);
    return op->ccomm->gpu->reduce(&sum, op->ccomm->host.settings.sms, op->call.stream);
}

/* Averages are of the host's ranks: those of the rail are averages of these. */
static bool reduce_locally(const struct coll_op *op, const struct plan *plan, uint8_t *memory)
{
    struct coll_call kept = plan->call;
    kept.receive = op->kept;
    kept.count = plan->hosts * plan->call.count;
    struct coll_reduce sum = launch_sum_of(op, &kept, plan->in);
    return local_sum(op, memory, &sum);
}

static bool reduce_rest(const struct coll_op *op, const struct plan *plan, uint8_t *memory)
{
    if (plan->left == 0)
        return true;
    struct coll_reduce sum = launch_sum_of(op, &plan->rest, (uint32_t)op->ccomm->ranks);
    for (uint32_t i = 0; i < sum.sources; i++)
        sum.source[i] = plan_rest(plan, memory, i);
    return op->ccomm->gpu->reduce(&sum, op->ccomm->host.settings.sms, op->call.stream);
}

bool launch_decode(const struct coll_op *op)
{
    const struct plan *plan = launch_plan(op);
    return !plan->receives || decode(op, plan, launch_memory(op));
}

bool launch_sums(const struct coll_op *op)
{
    const struct plan *plan = launch_plan(op);
    uint8_t *memory = launch_memory(op);
    return (plan->scope == PLAN_LOCAL ? reduce_locally(op, plan, memory) : reduce(op, plan, memory)) &&
           reduce_rest(op, plan, memory);
}

/* Of those that share its staging memory. */
static bool is_last(const struct coll_op *op)
{
    return op->number + 1 == op->staging->op_count;
}

static bool follow(const struct coll_op *op)
{
    return order_follow(op->ccomm, op->staging, op->call.stream);
}

/* Steps of a group may be on several streams. */
static bool mark(const struct coll_op *op, unsigned count)
{
    return count == 1 || order_mark(op->ccomm, op->staging, op->call.stream);
}

/* For grouped ops, NCCL may finish only after other ranks have received their overflow. */
static bool is_grouped(const struct coll_op *ops, unsigned count)
{
    return count > 1 || ops[0].call.grouped;
}

/* ---- Encoding ---------------------------------------------------------------------------------------------------- */

/* All ops of a group are under way at once, so each has its own place, behind the jobs of all. */
static bool reserve_one(struct coll_op *op)
{
    struct coll_ccomm *ccomm = op->ccomm;
    int before;
    if (!ccomm->gpu->enter(ccomm->device, &before))
        return false;
    op->staging = staging_get(&ccomm->stagings, ccomm->gpu, op->call.stream);
    ccomm->gpu->leave(before);
    return op->staging != NULL;
}

/* Sums of a host outlast their phase: they are before the places of all ops, and stay until those of the rail have been
 * added up. */
static void reserve_kept(struct coll_op *op)
{
    const struct plan *plan = launch_plan(op);
    size_t *reserved = &op->staging->reserved;
    if (plan->scope == PLAN_LOCAL)
        op->kept_at = *reserved;
    if (plan->scope != PLAN_ALL && op->kept_at + plan_kept(plan) > *reserved)
        *reserved = op->kept_at + plan_kept(plan);
}

/* Tells the plan of the rail's phase where they are, in memory that may have been outgrown since. */
static void find_kept(struct coll_op *op)
{
    struct plan *plan = &op->of[op->phase].plan;
    if (plan->scope == PLAN_LOCAL)
        op->kept = op->staging->memory + op->kept_at;
    if (plan->scope == PLAN_RAIL)
        plan->whole.send = plan->call.send = op->kept;
}

coll_result ops_reserve(struct coll_op *ops, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        if (!reserve_one(&ops[i]))
            return launch_failed(&ops[i], "no memory");
        ops[i].staging->op_count = 0;
    }
    for (unsigned i = 0; i < count; i++) {
        ops[i].number = ops[i].staging->op_count++;
        ops[i].staging->reserved = plan_aligned(ops[i].staging->op_count * sizeof(struct exchange_job));
    }
    for (unsigned i = 0; i < count; i++)
        reserve_kept(&ops[i]);
    for (unsigned i = 0; i < count; i++) {
        struct plan *plan = &ops[i].of[ops[i].phase].plan;
        plan->odd = is_odd(&ops[i].call);
        plan->copies = plan->reduces && !plan->shm && (ops[i].call.registered || ops[i].staging->capture != 0);
        if (!plan_measure(plan, ops[i].ccomm))
            return launch_failed(&ops[i], "no memory to plan with");
        ops[i].at = ops[i].staging->reserved;
        ops[i].staging->reserved += plan->size;
    }
    return COLL_SUCCESS;
}

/* Other ranks are at this operation already, or will be, so it has to be compressed. Later ones need not be. */
bool op_grow_staging(const struct coll_op *op)
{
    struct coll_ccomm *ccomm = op->ccomm;
    const bool hosted = op->staging->hosted;
    const size_t size = op->staging->size;
    const bool grown = staging_grow(op->staging, ccomm->gpu);
    if (!grown || op->staging->size != size)
        staging_account(&ccomm->stagings);
    if (!grown)
        return false;
    if (!op->staging->hosted || hosted)
        return true;
    op_classes_stop(ccomm);
    ccomm->host.log("communicator %p, rank %d of %d: no memory of the GPU for messages: the host's has to do, and what "
                    "comes next is raw on all ranks",
                    (void *)ccomm->comm, ccomm->rank, ccomm->ranks);
    return true;
}

static coll_result encode_one(struct coll_op *ops, unsigned count, unsigned i)
{
    struct coll_op *op = &ops[i];
    if (!op_grow_staging(op))
        return launch_failed(op, "no memory for messages");
    find_kept(op);
    if (!follow(op) || !launch_odd_in(op) || !launch_encode(op) || !mark(op, count) ||
        (is_last(op) && is_grouped(ops, count) && !op->ccomm->gpu->event_record(op->staging->fork, op->call.stream)))
        return launch_failed(op, "encoding could not be launched");
    return COLL_SUCCESS;
}

/* Ranks disagree on grouping, so the sizes of their messages differ. */
static coll_result refuse_different(const struct coll_op *ops, unsigned count)
{
    coll_result result = COLL_SUCCESS;
    for (unsigned i = 0; i < count; i++) {
        if (!ops[i].differs)
            continue;
        result = COLL_INVALID_USAGE;
        ccomm_fail(ops[i].ccomm, result, "a rank groups an operation that another has begun outside of groups");
    }
    return result;
}

coll_result ops_encode(struct coll_op *ops, unsigned count)
{
    coll_result result = refuse_different(ops, count);
    if (result == COLL_SUCCESS)
        result = ops_reserve(ops, count);
    for (unsigned i = 0; i < count && result == COLL_SUCCESS; i++) {
        const struct gpu_ops *gpu = ops[i].ccomm->gpu;
        int before;
        if (!gpu->enter(ops[i].ccomm->device, &before))
            return launch_failed(&ops[i], "no GPU");
        if (ops[i].phase == 0)
            timing_begin(&ops[i]);
        result = encode_one(ops, count, i);
        gpu->leave(before);
    }
    return result;
}

coll_result ops_move(struct coll_op *ops, unsigned count)
{
    coll_result result = COLL_SUCCESS;
    for (unsigned i = 0; i < count && result == COLL_SUCCESS; i++)
        result = launch_move(&ops[i], ops[i].call.stream);
    return result;
}

/* ---- Overflow ---------------------------------------------------------------------------------------------------- */

/* Calls `what` on the GPU of each op. */
static bool each(const struct coll_op *ops, unsigned count,
                 bool (*what)(const struct coll_op *ops, unsigned count, unsigned i))
{
    bool good = true;
    for (unsigned i = 0; i < count && good; i++) {
        const struct gpu_ops *gpu = ops[i].ccomm->gpu;
        int before;
        if (!gpu->enter(ops[i].ccomm->device, &before))
            return false;
        good = what(ops, count, i);
        gpu->leave(before);
    }
    return good;
}

static bool move_beside(const struct coll_op *ops, unsigned count, unsigned i)
{
    return !is_last(&ops[i]) || !is_grouped(ops, count) || overflow_start(&ops[i]);
}

static bool check_one(const struct coll_op *ops, unsigned count, unsigned i)
{
    const bool last = is_last(&ops[i]);
    return follow(&ops[i]) && launch_check(&ops[i]) && (!last || overflow_finish(&ops[i], is_grouped(ops, count))) &&
           mark(&ops[i], count);
}

/* ---- Decoding ---------------------------------------------------------------------------------------------------- */

static bool decode_one(const struct coll_op *ops, unsigned count, unsigned i)
{
    const struct coll_op *op = &ops[i];
    (void)count;
    const bool good = follow(op) && launch_decode(op) && launch_own(op) && launch_sums(op) && launch_odd_out(op) &&
                      order_end(op->ccomm, op->staging, op->call.stream);
    if (good && op->phase + 1 == op->phases)
        timing_end(op);
    return good;
}

coll_result ops_decode(struct coll_op *ops, unsigned count)
{
    if (!each(ops, count, move_beside) || !each(ops, count, check_one))
        return launch_failed(&ops[0], "what did not fit could not be looked for");
    if (!each(ops, count, decode_one))
        return launch_failed(&ops[0], "decoding could not be launched");
    return COLL_SUCCESS;
}
