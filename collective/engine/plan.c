#include <stdlib.h>

#include "collective/engine/ccomm.h"
#include "collective/engine/levels.h"
#include "collective/engine/plan.h"

static bool has_rails(const struct coll_ccomm *ccomm, const struct coll_call *call)
{
    return ccomm->shared.rails.each > 0 &&
           (call->operation == COLL_REDUCE_SCATTER || call->operation == COLL_ALL_REDUCE);
}

unsigned phase_count(const struct coll_ccomm *ccomm, const struct coll_call *call)
{
    return (call->operation == COLL_ALL_REDUCE && ccomm->ranks > 2 ? 2 : 1) + has_rails(ccomm, call);
}

enum plan_scope phase_scope(const struct coll_ccomm *ccomm, const struct coll_call *call, unsigned phase)
{
    static const enum plan_scope scopes[] = {PLAN_LOCAL, PLAN_RAIL, PLAN_ALL};
    return has_rails(ccomm, call) ? scopes[phase] : PLAN_ALL;
}

static size_t part_of(const struct coll_ccomm *ccomm, const struct coll_call *call)
{
    return call->count / (size_t)ccomm->ranks / 8 * 8;
}

/* Of bytes, 1, though two of them are one value for the codec. */
static uint64_t element_size(coll_type type)
{
    return type == COLL_FP32 ? 4 : type == COLL_UINT8 ? 1 : 2;
}

static uint64_t element_bytes(const struct coll_call *call)
{
    return element_size(call->type);
}

struct coll_call phase_cut(const struct coll_call *call, size_t at, size_t count)
{
    struct coll_call part = *call;
    part.send = (const uint8_t *)call->send + at * element_bytes(call);
    part.receive = (uint8_t *)call->receive + at * element_bytes(call);
    part.count = count;
    return part;
}

struct coll_call phase_call(const struct coll_ccomm *ccomm, const struct coll_call *call, unsigned phase)
{
    const unsigned count = phase_count(ccomm, call);
    struct coll_call own = *call;
    if (call->operation == COLL_ALL_REDUCE && count > 1) {
        const size_t part = part_of(ccomm, call);
        own = phase_cut(call, (size_t)ccomm->rank * part, part);
        const bool last = phase + 1 == count;
        own.operation = last ? COLL_ALL_GATHER : COLL_REDUCE_SCATTER;
        own.send = last ? own.receive : call->send;
        own.receive = last ? call->receive : own.receive;
    }
    if (phase_scope(ccomm, call, phase) == PLAN_RAIL)
        own.send = NULL;
    return own;
}

struct coll_call phase_rest(const struct coll_ccomm *ccomm, const struct coll_call *call, unsigned phase)
{
    if (phase > 0 || call->operation != COLL_ALL_REDUCE || phase_count(ccomm, call) == 1)
        return phase_cut(call, 0, 0);
    const size_t parts = part_of(ccomm, call) * (size_t)ccomm->ranks;
    return phase_cut(call, parts, call->count - parts);
}

#define LINE        128u
#define NCCL_VECTOR 16u                 /* bytes that NCCL's kernels copy at once */
#define RAW_MAX     (UINT64_C(1) << 31) /* a chunk is shorter than 4 GiB */

static uint64_t lines(uint64_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

static enum strait_element element_of(coll_type type)
{
    return type == COLL_BF16 || type == COLL_UINT8 ? STRAIT_ELEMENT_BF16
           : type == COLL_FP16                     ? STRAIT_ELEMENT_FP16
                                                   : STRAIT_ELEMENT_FP32;
}

static struct strait_region region_at(void *raw, uint32_t page, uint32_t count)
{
    return (struct strait_region){
        .base = raw, .page_stride = page, .row_stride = page, .page_count = count, .rows = 1, .row_bytes = page};
}

/* A bound depends on sizes only, but the call requires an address. */
static uint64_t bound_of(uint32_t page, uint32_t count)
{
    static uint64_t somewhere;
    struct strait_region region = region_at(&somewhere, page, count);
    struct strait_pages pages = {.regions = &region, .region_count = 1, .id_count = count};
    return strait_encode_bound(&pages);
}

bool message_layout_of(struct message_layout *layout, coll_type type, uint64_t count, unsigned level)
{
    const uint64_t size = element_size(type);
    const unsigned share = levels_share(type, level);
    if ((share == 0 && level != LEVEL_PROBE) || count > RAW_MAX / size || count * size < PLAN_PAGE)
        return false;
    *layout = (struct message_layout){.element = element_of(type), .raw = count * size};
    layout->pages = (uint32_t)(layout->raw / PLAN_PAGE);
    layout->tail_bytes = (uint32_t)(layout->raw % PLAN_PAGE);
    uint64_t at = HEAD_BYTES;
    if (layout->tail_bytes > 0) {
        layout->tail_at = at;
        layout->tail_room = lines(bound_of(layout->tail_bytes, 1));
        at += layout->tail_room;
    }
    layout->main_at = at;
    layout->main_bound = bound_of(PLAN_PAGE, layout->pages);
    layout->main_room =
        lines(level == LEVEL_PROBE ? layout->main_bound : (uint64_t)layout->pages * PLAN_PAGE / 1024 * share);
    layout->message = at + layout->main_room;
    layout->encoded = at + lines(layout->main_bound);
    return level == LEVEL_PROBE || (layout->main_bound > layout->main_room && layout->message < layout->raw);
}

unsigned message_parts(const struct message_layout *layout, void *raw, struct message_part parts[2])
{
    uint8_t *bytes = raw;
    unsigned count = 0;
    if (layout->tail_at != 0)
        parts[count++] = (struct message_part){
            .region = region_at(bytes + (uint64_t)layout->pages * PLAN_PAGE, layout->tail_bytes, 1),
            .at = layout->tail_at,
            .room = layout->tail_room,
            .bound = layout->tail_room,
        };
    parts[count++] = (struct message_part){
        .region = region_at(bytes, PLAN_PAGE, layout->pages),
        .at = layout->main_at,
        .room = layout->main_room,
        .bound = layout->encoded - layout->main_at,
    };
    return count;
}

struct strait_pages message_part_pages(const struct message_part *part)
{
    return (struct strait_pages){.regions = &part->region, .region_count = 1, .id_count = part->region.page_count};
}

bool plan_is_pair(const struct plan *plan)
{
    return plan->call.operation == COLL_SEND || plan->call.operation == COLL_RECV;
}

uint32_t plan_sources(const struct plan *plan)
{
    return plan_is_pair(plan) || plan->call.operation == COLL_BROADCAST ? 1 : plan->in - 1;
}

size_t plan_kept(const struct plan *plan)
{
    return plan_aligned(plan->hosts * plan->stride);
}

/* Measured times are those of a message to each other rank. */
static double pair(const struct coll_ccomm *ccomm)
{
    return ccomm->cost.per[LINK_EXCHANGE] / (ccomm->ranks - 1);
}

/* A chain, of which each rank passes on one message where an all_gather has one of each other rank. */
static double broadcast(const struct coll_ccomm *ccomm)
{
    return ccomm->cost.per[LINK_GATHER] / (ccomm->ranks - 1);
}

double cost_plain(const struct coll_ccomm *ccomm, const struct plan *plan)
{
    const double *per = ccomm->cost.per;
    if (plan->scope == PLAN_LOCAL)
        return 0;
    switch (plan->call.operation) {
    case COLL_ALL_GATHER:
        return per[LINK_GATHER];
    case COLL_REDUCE_SCATTER:
        return per[LINK_SCATTER];
    case COLL_BROADCAST:
        return broadcast(ccomm);
    case COLL_ALL_REDUCE: /* of two ranks: each part crosses as in a reduce_scatter and as in an all_gather */
        return (per[LINK_SCATTER] + per[LINK_GATHER]) / 2;
    default:
        return plan_is_pair(plan) ? pair(ccomm) : per[LINK_EXCHANGE];
    }
}

static double coded_by_nccl(const struct coll_ccomm *ccomm, const struct plan *plan)
{
    if (plan_is_pair(plan))
        return pair(ccomm);
    if (plan->call.operation == COLL_BROADCAST)
        return broadcast(ccomm);
    if (plan->scope == PLAN_RAIL)
        return ccomm->cost.per[LINK_RAIL];
    return ccomm->cost.per[plan->gathers ? LINK_GATHER : LINK_EXCHANGE];
}

double cost_coded(const struct coll_ccomm *ccomm, const struct plan *plan)
{
    return plan->shm ? ccomm->cost.per[LINK_SHM] : coded_by_nccl(ccomm, plan);
}

/* NCCL's broadcast, which uses links one way, fills them already. */
static bool by_channels(const struct coll_ccomm *ccomm, const struct plan *plan)
{
    const double per = ccomm->cost.per[LINK_SHM];
    if (ccomm->shm.channels.moved == NULL || plan_is_pair(plan) || plan->scope != PLAN_ALL ||
        plan->call.operation == COLL_BROADCAST)
        return false;
    return ccomm->host.settings.shm == COLL_SHM_ALWAYS || (per > 0 && per < coded_by_nccl(ccomm, plan));
}

double cost_local(const struct coll_ccomm *ccomm, const struct plan *plan)
{
    return ccomm->cost.start + (double)plan->stride * plan->hosts * ccomm->cost.per[LINK_LOCAL];
}

double cost_most(const struct coll_ccomm *ccomm)
{
    double most = 0;
    for (int use = 0; use < LINK_USES; use++)
        most = ccomm->cost.per[use] > most ? ccomm->cost.per[use] : most;
    return most;
}

size_t plan_aligned(size_t size)
{
    return (size + 255) / 256 * 256;
}

/* ---- The plan ---------------------------------------------------------------------------------------------------- */

/* The messages of the ranks of this host, or of its rail. */
static void fill_rails(struct plan *plan, const struct coll_ccomm *ccomm)
{
    const struct rails *rails = &ccomm->shared.rails;
    const uint32_t host = (uint32_t)ccomm->rank / rails->each, place = (uint32_t)ccomm->rank % rails->each;
    const bool local = plan->scope == PLAN_LOCAL;
    plan->reduces = true;
    plan->sends = plan->receives = !local;
    plan->out = plan->in = local ? rails->each : rails->hosts;
    plan->first = local ? host * rails->each : place;
    plan->step = local ? 1 : rails->each;
    plan->skip = local ? place : host;
    plan->hosts = rails->hosts;
}

static void fill(struct plan *plan, const struct coll_ccomm *ccomm, enum coll_operation operation)
{
    const uint32_t ranks = (uint32_t)ccomm->ranks;
    plan->step = 1;
    if (plan->scope != PLAN_ALL) {
        fill_rails(plan, ccomm);
        return;
    }
    const bool broadcasts = operation == COLL_BROADCAST, is_root = plan->call.peer == ccomm->rank;
    plan->sends = operation != COLL_RECV && (!broadcasts || is_root);
    plan->receives = operation != COLL_SEND && (!broadcasts || !is_root);
    plan->everybody = operation == COLL_ALL_GATHER || operation == COLL_ALL_REDUCE || broadcasts;
    plan->reduces = operation == COLL_ALL_REDUCE || operation == COLL_REDUCE_SCATTER;
    /* Sums of two ranks are an exchange of two messages, as an all_gather is, and NCCL gathers faster than it sends, by
     * TCP above all. An all_to_all stays sends, as a group may have it before or behind its collectives. */
    plan->gathers = operation == COLL_ALL_GATHER || (plan->reduces && ranks == 2);
    if (plan_is_pair(plan) || broadcasts) {
        plan->out = plan->sends;
        plan->in = plan->receives;
        plan->skip = UINT32_MAX;
        return;
    }
    plan->out = plan->everybody ? 1 : ranks;
    plan->in = ranks;
    plan->skip = (uint32_t)ccomm->rank;
}

bool plan_of(struct plan *plan, const struct coll_ccomm *ccomm, const struct coll_call *call, unsigned phase,
             unsigned level)
{
    *plan = (struct plan){.whole = phase_call(ccomm, call, phase),
                          .rest = phase_rest(ccomm, call, phase),
                          .scope = phase_scope(ccomm, call, phase)};
    if (call->operation == COLL_BROADCAST && call->peer != ccomm->rank) /* what it would send may be NULL */
        plan->whole.send = plan->whole.receive;
    plan->call = plan->whole;
    if (!message_layout_of(&plan->layout, call->type, plan->call.count, level))
        return false;
    fill(plan, ccomm, plan->call.operation);
    plan->raw = plan->stride = plan->layout.raw;
    plan->left = plan->rest.count * (plan->raw / plan->call.count);
    plan->shm = by_channels(ccomm, plan);
    return true;
}

static struct plan_raw_part raw_part_of(const struct plan *plan, uint64_t from, uint64_t until)
{
    const uint64_t bytes = (until - from) * (plan->stride / plan->whole.count);
    /* Gathered parts lie one behind another, the second at a multiple of their bytes. NCCL copies uint8 in vectors only
     * where all addresses are multiples of these, else byte by byte: such parts of sums are sent. */
    const bool gathers = plan->gathers && !plan->shm && (!plan->reduces || bytes % NCCL_VECTOR == 0);
    return (struct plan_raw_part){.from = from,
                                  .count = until - from,
                                  .bytes = bytes,
                                  .stride = plan->reduces && !gathers ? plan_aligned(bytes) : bytes,
                                  .gathers = gathers};
}

bool plan_cut(struct plan *plan, uint32_t head, uint32_t tail, unsigned level)
{
    const uint64_t page = PLAN_PAGE / (plan->stride / plan->whole.count), all = plan->whole.count;
    const uint64_t from = head * page, until = tail > 0 ? (plan->layout.pages - tail) * page : all;
    plan->shm &= head > 0 || tail > 0;
    if (head == 0 && tail == 0)
        return true;
    plan->raw_parts[PLAN_HEAD] = raw_part_of(plan, 0, from);
    plan->raw_parts[PLAN_TAIL] = raw_part_of(plan, until, all);
    plan->call = phase_cut(&plan->whole, from, until - from);
    if (!message_layout_of(&plan->layout, plan->call.type, plan->call.count, level))
        return false;
    plan->raw = plan->layout.raw;
    return true;
}

/* In messages of so many bytes each. */
static uint64_t handed(const struct plan *plan, uint64_t message)
{
    const bool any = plan->sends || plan->call.operation == COLL_BROADCAST;
    return (any ? message * (plan->out > 1 ? plan->out - 1 : 1) : 0) + plan->left;
}

uint64_t plan_wire(const struct plan *plan)
{
    return handed(plan, plan->layout.message + plan->raw_parts[PLAN_HEAD].bytes + plan->raw_parts[PLAN_TAIL].bytes);
}

uint64_t plan_values(const struct plan *plan)
{
    return handed(plan, plan->stride);
}

/* A single message is number 0 and belongs to no rank. */
static uint32_t skip_of(const struct plan *plan, bool encoding)
{
    return encoding && plan->everybody ? UINT32_MAX : plan->skip;
}

static unsigned coded(const struct plan *plan, bool encoding)
{
    const uint32_t messages = encoding ? plan->out : plan->in;
    return messages - (skip_of(plan, encoding) < messages);
}

static unsigned parts_of(const struct plan *plan)
{
    return plan->layout.tail_at != 0 ? 2 : 1;
}

/* ---- Addresses --------------------------------------------------------------------------------------------------- */

uint8_t *plan_source(const struct plan *plan, uint32_t i)
{
    return (uint8_t *)(uintptr_t)plan->call.send + (plan->everybody ? 0 : i * plan->stride);
}

uint8_t *plan_target(const struct plan *plan, uint8_t *staging, uint32_t i)
{
    if (plan->reduces)
        return staging + plan->scratch_at + i * plan_aligned(plan->raw);
    return (uint8_t *)plan->call.receive + i * plan->stride;
}

uint8_t *plan_rest(const struct plan *plan, uint8_t *staging, uint32_t rank)
{
    return staging + plan->rest_at + rank * plan->left;
}

uint32_t *plan_found(const struct plan *plan, uint8_t *staging)
{
    return (uint32_t *)(void *)(staging + plan->found_at);
}

/* ---- For the codec ----------------------------------------------------------------------------------------------- */

static void add(struct codec_list *list, const struct plan *plan, uint8_t *raw, uint8_t *message, uint8_t *results,
                bool encoding)
{
    const unsigned parts = message_parts(&plan->layout, raw, &list->parts[list->count]);
    for (unsigned end = list->count + parts; list->count < end; list->count++) {
        const struct message_part *part = &list->parts[list->count];
        struct strait_result *result = (struct strait_result *)(void *)results + list->count;
        if (encoding)
            list->encode[list->count] = (struct strait_encode_item){.src = message_part_pages(part),
                                                                    .dst = message + part->at,
                                                                    .dst_capacity = part->bound,
                                                                    .result = result};
        else
            list->decode[list->count] = (struct strait_decode_item){.dst = message_part_pages(part),
                                                                    .src = message + part->at,
                                                                    .src_size = part->room,
                                                                    .result = result,
                                                                    .flags = STRAIT_DECODE_AT_MOST};
    }
}

bool plan_list(struct codec_list *list, const struct plan *plan, uint8_t *staging, bool encoding)
{
    const uint32_t messages = encoding ? plan->out : plan->in;
    const size_t most = 2 * (size_t)messages;
    *list = (struct codec_list){.parts = calloc(most, sizeof(*list->parts)),
                                .encode = encoding ? calloc(most, sizeof(*list->encode)) : NULL,
                                .decode = encoding ? NULL : calloc(most, sizeof(*list->decode))};
    if (list->parts == NULL || (encoding ? (void *)list->encode : (void *)list->decode) == NULL) {
        plan_list_free(list);
        return false;
    }
    for (uint32_t i = 0; i < messages; i++) {
        if (i == skip_of(plan, encoding))
            continue;
        if (encoding)
            add(list, plan, plan_source(plan, i), staging + plan->out_at + i * plan->layout.encoded,
                staging + plan->results_at, true);
        else
            add(list, plan, plan_target(plan, staging, i), staging + plan->in_at + i * plan->layout.message,
                staging + plan->results_at, false);
    }
    return true;
}

void plan_list_free(struct codec_list *list)
{
    free(list->parts);
    free(list->encode);
    free(list->decode);
}

static bool codec_scratch(size_t *most, const struct plan *plan, const struct coll_ccomm *ccomm, bool encoding)
{
    struct codec_list list;
    /* Only sizes matter, but the calls require addresses. */
    static uint64_t somewhere;
    struct plan sized = *plan;
    sized.call.send = sized.call.receive = &somewhere;
    if (!plan_list(&list, &sized, (uint8_t *)&somewhere, encoding))
        return false;
    uint64_t size = encoding ? strait_encode_scratch_size(ccomm->codec, list.encode, list.count)
                             : strait_decode_scratch_size(ccomm->codec, list.decode, list.count);
    if (size > *most)
        *most = size;
    plan_list_free(&list);
    return size > 0 || list.count == 0;
}

/* Values that NCCL gathers by rank, and those to be added up, arrive in staging memory; all others go from the
 * program's memory to the program's memory. */
static size_t place_raw_parts(struct plan *plan, size_t at)
{
    const bool kept = plan->reduces || (plan->whole.operation == COLL_ALL_GATHER && !plan->shm);
    for (unsigned end = PLAN_HEAD; end <= PLAN_TAIL && kept; end++) {
        plan->raw_parts[end].at = at;
        plan->raw_parts[end].out_at = plan_aligned(at + plan->in * plan->raw_parts[end].stride);
        at = plan_aligned(plan->raw_parts[end].out_at + (plan->copies ? plan->out * plan->raw_parts[end].stride : 0));
    }
    return at;
}

/* All that this rank sends where that is copied | what each rank of the host has for this one's rail | the rest. */
static void measure_local(struct plan *plan, const struct coll_ccomm *ccomm)
{
    const size_t all = (size_t)ccomm->ranks * plan->stride;
    plan->out_at = 0;
    plan->scratch_at = plan->copies ? plan_aligned(all) : 0;
    plan->rest_at = plan->scratch_at + plan->in * plan_kept(plan);
    plan->size = plan_aligned(plan->rest_at + (size_t)ccomm->ranks * plan->left);
}

bool plan_measure(struct plan *plan, const struct coll_ccomm *ccomm)
{
    if (plan->scope == PLAN_LOCAL) {
        measure_local(plan, ccomm);
        return true;
    }
    const unsigned out = coded(plan, true), in = coded(plan, false);
    plan->out_at = 0;
    plan->in_at = plan_aligned(plan->out_at + plan->out * plan->layout.encoded);
    plan->scratch_at = plan_aligned(plan->in_at + plan->in * plan->layout.message);
    plan->rest_at = plan_aligned(plan->scratch_at + (plan->reduces ? plan->in * plan_aligned(plan->raw) : 0));
    plan->found_at = place_raw_parts(plan, plan_aligned(plan->rest_at + plan->in * plan->left));
    plan->results_at = plan->found_at + plan_aligned(plan->in * sizeof(uint32_t));
    plan->codec_at =
        plan_aligned(plan->results_at + (out > in ? out : in) * parts_of(plan) * sizeof(struct strait_result));
    if ((plan->sends && !codec_scratch(&plan->codec_size, plan, ccomm, true)) ||
        (plan->receives && !codec_scratch(&plan->codec_size, plan, ccomm, false)))
        return false;
    plan->size = plan_aligned(plan->codec_at + plan->codec_size);
    if (!plan->odd)
        return true;
    plan->odd_out_at = plan->size;
    plan->odd_in_at = plan_aligned(plan->odd_out_at + plan->out * plan->stride);
    plan->size = plan_aligned(plan->odd_in_at + plan->in * plan->stride);
    return true;
}
