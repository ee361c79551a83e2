#include "ep/cuda/backend.h"

#include <stdio.h>
#include <stdlib.h>

#include <strait/codec.h>

#include "ep/cuda/phases.h"

struct ep_cuda_coder {
    const struct strait_codec *codec;
    void *memory;     /* of the coding, and: */
    void *scratch[2]; /* scratch_bytes, of one launch at a time: of the call's stream, and of the side stream */
    uint64_t scratch_bytes;
    void *zeroes; /* a row */
};

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* A piece of memory: counts its bytes, and is its address once there is memory. */
static void *piece(uint8_t *memory, uint64_t *bytes, uint64_t size)
{
    void *at = memory != NULL ? memory + *bytes : NULL;

    *bytes += (size + 255) / 256 * 256;
    return at;
}

/* Lists, results and scratch twice where there is a side stream. */
static uint64_t place(struct ep_cuda_coder *coder, const struct ep_open_args *args, uint8_t *memory)
{
    const struct strait_ep_config *config = args->config;
    const struct ep_arena *at = &args->at;
    const bool low_latency = config->algorithm == STRAIT_EP_LOW_LATENCY;
    const uint64_t ranks = config->rank_count, came = ranks * config->tokens_max, sides = at->parts > 0 ? 2 : 1;
    const uint64_t decoded = low_latency && at->row_slots > came ? at->row_slots : came;
    const uint64_t chunks = ranks * ep_arena_chunks(at);
    struct ep_coding *coding = args->coding;
    uint64_t bytes = 0;

    coding->metadata_bytes = (at->chunk_bytes - (uint64_t)at->chunk_rows * config->row_bytes_max) / 16 * 16;
    coding->decoded = piece(memory, &bytes, decoded * config->row_bytes_max);
    coding->chunks = piece(memory, &bytes, low_latency ? ranks * at->chunk_bytes : 0);
    coding->metadata = piece(memory, &bytes, low_latency ? 0 : chunks * coding->metadata_bytes);
    coding->rows = piece(memory, &bytes, sides * chunks * at->chunk_rows * sizeof(*coding->rows));
    coding->counts = piece(memory, &bytes, sides * chunks * sizeof(*coding->counts));
    coding->results = piece(memory, &bytes, sides * chunks * sizeof(*coding->results));
    coder->zeroes = piece(memory, &bytes, config->row_bytes_max);
    for (uint64_t side = 0; side < sides; side++)
        coder->scratch[side] = piece(memory, &bytes, coder->scratch_bytes);
    return bytes;
}

/* Of the longest launch, either way: a chunk for each other rank. */
static uint64_t scratch_bytes(const struct strait_codec *codec, const struct ep_open_args *args)
{
    const struct strait_region region = {.base = (void *)args, /* only sizes count */
                                         .page_stride = args->config->row_bytes_max,
                                         .page_count = args->at.chunk_rows,
                                         .rows = 1,
                                         .row_bytes = args->config->row_bytes_max};
    const struct strait_pages pages = {&region, NULL, 1, args->at.chunk_rows};
    struct strait_encode_item encode[STRAIT_EP_RANKS_MAX];
    struct strait_decode_item decode[STRAIT_EP_RANKS_MAX];
    const uint32_t count = args->config->rank_count;

    for (uint32_t i = 0; i < count; i++) {
        encode[i] = (struct strait_encode_item){.src = pages};
        decode[i] = (struct strait_decode_item){.dst = pages, .src_size = args->at.chunk_bytes};
    }
    const uint64_t encoding = strait_encode_scratch_size(codec, encode, count);
    const uint64_t decoding = strait_decode_scratch_size(codec, decode, count);
    return encoding > decoding ? encoding : decoding;
}

enum strait_status ep_cuda_coder_open(struct ep_cuda *cuda, const struct ep_open_args *args)
{
    const struct strait_codec *codec = strait_codec_get("cuda");

    if (codec == NULL || strait_codec_prepare(codec) != STRAIT_OK) {
        if (args->text_size > 0)
            snprintf(args->text, args->text_size, "compressed rows need libstrait-cuda.so.0 with kernels for this GPU");
        return STRAIT_ERR_UNSUPPORTED;
    }
    struct ep_cuda_coder *coder = calloc(1, sizeof(*coder));
    if (coder == NULL)
        return STRAIT_ERR_NO_MEMORY;
    coder->codec = codec;
    coder->scratch_bytes = scratch_bytes(codec, args);
    coder->memory = ep_cuda_alloc(cuda, place(coder, args, NULL));
    if (coder->memory == NULL) {
        free(coder);
        return STRAIT_ERR_NO_MEMORY;
    }
    place(coder, args, coder->memory);
    cuda->coder = coder;
    return STRAIT_OK;
}

void ep_cuda_coder_close(struct ep_cuda *cuda)
{
    if (cuda->coder == NULL)
        return;
    ep_cuda_free(cuda, cuda->coder->memory);
    free(cuda->coder);
    cuda->coder = NULL;
}

/* ---- Launches of the codec --------------------------------------------------------------------------------------- */

/* Rows of a tensor: `count` of row_bytes from base on; NULL: there are none. */
struct tensor {
    const void *base;
    uint64_t count;
    uint32_t row_bytes;
    enum strait_element type;
};

static struct strait_region region_of(const struct ep_cuda_coder *coder, const struct tensor *tensor)
{
    const bool some = tensor->base != NULL && tensor->count > 0;

    return (struct strait_region){.base = some ? (void *)tensor->base : coder->zeroes,
                                  .page_stride = tensor->row_bytes,
                                  .page_count = some ? (uint32_t)tensor->count : 1,
                                  .rows = 1,
                                  .row_bytes = tensor->row_bytes};
}

static struct strait_run run_of(const struct ep_cuda_coder *coder, const struct ep_group_view *group,
                                enum strait_caching caching, cudaStream_t stream)
{
    return (struct strait_run){.size = sizeof(struct strait_run),
                               .scratch = coder->scratch[group->coding.side],
                               .scratch_size = coder->scratch_bytes,
                               .stream = stream,
                               .caching = caching,
                               .sm_budget = group->sm_budget < 2 ? 2 : group->sm_budget / 2 * 2}; /* in pairs */
}

/* Number of a chunk in what the coding has of them. */
static uint64_t number_of(const struct ep_group_view *group, uint32_t rank, uint32_t part)
{
    return (uint64_t)rank * ep_arena_chunks(&group->at) + part;
}

static uint32_t *rows_of(const struct ep_group_view *group, uint32_t rank, uint32_t part)
{
    return group->coding.rows + number_of(group, rank, part) * group->at.chunk_rows;
}

/* The chunk of the own arena that a rank writes or reads. HT; LL: its copy. */
static uint8_t *chunk_here(const struct ep_group_view *group, uint32_t rank, uint32_t part)
{
    return group->low_latency ? group->coding.chunks + rank * group->at.chunk_bytes
                              : ep_chunk_of(group, group->rank, 0, rank, part);
}

/* The own chunk in the arena of a rank. LL: as above. */
static uint8_t *chunk_there(const struct ep_group_view *group, uint32_t rank, uint32_t part)
{
    return group->low_latency ? chunk_here(group, rank, part) : ep_chunk_of(group, rank, 0, group->rank, part);
}

/* Encodes the listed rows of a part for each other rank, to its arena or to the own one. */
static bool encode(const struct ep_cuda *cuda, const struct ep_group_view *group, const struct tensor *tensor,
                   bool there, uint32_t part, cudaStream_t stream)
{
    const struct ep_cuda_coder *coder = cuda->coder;
    const struct strait_region region = region_of(coder, tensor);
    const struct strait_encode_params params = {.size = sizeof(params),
                                                .element = tensor->type,
                                                .mode = tensor->type == STRAIT_ELEMENT_BYTES ? STRAIT_MODE_RAW
                                                                                             : STRAIT_MODE_BASE,
                                                .absent = coder->zeroes};
    const bool far = (cuda->far || there) && !group->low_latency; /* behind a link */
    const struct strait_run run = run_of(coder, group, far ? STRAIT_CACHING_LINK : STRAIT_CACHING_AUTO, stream);
    struct strait_encode_item items[STRAIT_EP_RANKS_MAX];
    uint32_t count = 0;

    for (uint32_t rank = 0; rank < group->rank_count; rank++)
        if (rank != group->rank)
            items[count++] = (struct strait_encode_item){
                .src = {&region, rows_of(group, rank, part), 1, group->coding.pages},
                .dst = there ? chunk_there(group, rank, part) : chunk_here(group, rank, part),
                .dst_capacity = group->at.chunk_bytes,
                .result = &group->coding.results[number_of(group, rank, part)]};
    return strait_encode_batch(coder->codec, &params, items, count, &run) == STRAIT_OK;
}

/* Decodes the chunks of a part of the other ranks, in the own arena or in theirs, to the listed rows. */
static bool decode(const struct ep_cuda_coder *coder, const struct ep_group_view *group, const struct tensor *tensor,
                   bool there, uint32_t part, cudaStream_t stream)
{
    const struct strait_region region = region_of(coder, tensor);
    const struct strait_run run = run_of(coder, group, STRAIT_CACHING_AUTO, stream);
    struct strait_decode_item items[STRAIT_EP_RANKS_MAX];
    uint32_t count = 0;

    for (uint32_t rank = 0; rank < group->rank_count; rank++) {
        if (rank == group->rank)
            continue;
        struct strait_decode_item *item = &items[count++];
        *item =
            (struct strait_decode_item){.dst = {&region, rows_of(group, rank, part), 1, group->coding.pages},
                                        .src = there ? chunk_there(group, rank, part) : chunk_here(group, rank, part),
                                        .src_size = group->at.chunk_bytes,
                                        .result = &group->coding.results[number_of(group, rank, part)],
                                        .flags = STRAIT_DECODE_AT_MOST};
        if (!group->low_latency) {
            item->metadata = group->coding.metadata + number_of(group, rank, part) * group->coding.metadata_bytes;
            item->metadata_size = group->coding.metadata_bytes;
        }
    }
    return strait_decode_batch(coder->codec, NULL, items, count, &run) == STRAIT_OK;
}

/* ---- Phases ------------------------------------------------------------------------------------------------------ */

/* Pages of a chunk. */
static uint32_t pages_of(const struct ep_group_view *group)
{
    return group->at.parts > 0 ? group->at.chunk_rows : group->tokens_max;
}

/* Pages of a LL combine's chunks. */
static uint32_t pages_back(const struct ep_group_view *group, const struct ep_handle_view *handle)
{
    const uint32_t most = handle->topk < group->local_experts ? handle->topk : group->local_experts;

    return group->tokens_max * (handle->layout == STRAIT_EP_EXPERT_MAJOR ? most : 1);
}

static bool hand_over(const struct ep_cuda *cuda, const struct ep_list_args *listed, enum ep_flag signal, uint32_t part,
                      cudaStream_t stream)
{
    const struct ep_hand_over_args args = {
        .group = listed->group, .handle = listed->handle, .signal = signal, .part = part};

    return ep_cuda_good(ep_cuda_hand_over(&args, cuda->multiprocessors, stream));
}

/* Lists all chunks, then encodes and hands over one part of all lists after the other. */
static bool send_chunks(const struct ep_cuda *cuda, struct ep_list_args *listed, const struct tensor *rows, bool there,
                        enum ep_flag signal, cudaStream_t stream)
{
    const uint32_t parts = ep_arena_chunks(&listed->group.at);
    bool good;

    listed->end = parts;
    good = ep_cuda_good(ep_cuda_list(listed, cuda->multiprocessors, stream));
    for (uint32_t part = 0; part < parts && good; part++)
        good = encode(cuda, &listed->group, rows, there, part, stream) &&
               hand_over(cuda, listed, signal, part, stream) && ep_cuda_record_part(cuda, part);
    return good;
}

/* Lists and decodes one part of all lists after the other. */
static bool take_chunks(const struct ep_cuda *cuda, struct ep_list_args *listed, const struct tensor *rows, bool there,
                        cudaStream_t stream)
{
    const struct ep_group_view whole = listed->group;
    const uint32_t parts = ep_arena_chunks(&whole.at);
    bool good = true;

    for (uint32_t part = 0; part < parts && good; part++) {
        listed->first = part;
        listed->end = part + 1;
        ep_cuda_share_budget(cuda, &whole, part, &listed->group);
        good = ep_cuda_wait_part(cuda, part, stream) &&
               ep_cuda_good(ep_cuda_list(listed, cuda->multiprocessors, stream)) &&
               decode(cuda->coder, &listed->group, rows, there, part, stream);
    }
    return good;
}

bool ep_cuda_coded_send(const struct ep_cuda *cuda, const struct ep_send_args *args, cudaStream_t stream)
{
    struct ep_send_args coded = *args;
    const struct tensor tokens = {args->rows, args->tokens, args->row_bytes, args->type};

    coded.group.coding.pages = pages_of(&args->group);
    struct ep_list_args listed = {.group = coded.group, .handle = args->handle, .kind = EP_LIST_SEND};
    if (!ep_cuda_good(ep_cuda_send(&coded, cuda->multiprocessors, stream)))
        return false;
    return args->rows == NULL || send_chunks(cuda, &listed, &tokens, true, args->signal, stream);
}

bool ep_cuda_coded_receive(const struct ep_cuda *cuda, const struct ep_receive_args *args, cudaStream_t stream)
{
    struct ep_receive_args coded = *args;
    const uint64_t all = (uint64_t)args->group.rank_count * args->group.tokens_max;
    struct tensor rows = {args->rows, args->group.low_latency ? all : args->row_count, args->row_bytes, args->type};

    coded.group.coding.pages = pages_of(&args->group);
    if (args->handle.layout == STRAIT_EP_EXPERT_MAJOR) {
        rows.base = coded.group.coding.decoded;
        rows.count = all;
    }
    struct ep_list_args listed = {
        .group = coded.group, .handle = args->handle, .kind = EP_LIST_RECEIVE, .row_count = args->row_count};
    ep_cuda_share_budget(cuda, &args->group, ep_arena_chunks(&args->group.at) - 1, &coded.group);
    return take_chunks(cuda, &listed, &rows, false, stream) &&
           ep_cuda_good(ep_cuda_receive(&coded, cuda->multiprocessors, stream));
}

bool ep_cuda_coded_stage(const struct ep_cuda *cuda, const struct ep_stage_args *args, cudaStream_t stream)
{
    struct ep_stage_args coded = *args;
    struct tensor rows = {args->rows, args->group.at.row_slots, args->row_bytes, args->type};

    coded.group.coding.pages = pages_of(&args->group);
    if (args->handle.layout == STRAIT_EP_EXPERT_MAJOR)
        rows.base = coded.group.coding.own; /* sums of each record; HT has one buffer */
    struct ep_list_args listed = {.group = coded.group, .handle = args->handle, .kind = EP_LIST_STAGE};
    if (!ep_cuda_good(ep_cuda_stage(&coded, cuda->multiprocessors, stream)))
        return false;
    return args->rows == NULL || send_chunks(cuda, &listed, &rows, false, EP_FLAG_READY, stream);
}

bool ep_cuda_coded_send_back(const struct ep_cuda *cuda, const struct ep_send_back_args *args, cudaStream_t stream)
{
    const bool by_expert = args->handle.layout == STRAIT_EP_EXPERT_MAJOR;
    struct ep_send_back_args coded = *args;
    const uint64_t zones = by_expert ? args->group.local_experts : 1;
    const struct tensor rows = {args->rows, zones * args->group.rank_count * args->group.tokens_max, args->row_bytes,
                                args->type};

    coded.group.coding.pages = pages_back(&args->group, &args->handle);
    struct ep_list_args listed = {
        .group = coded.group, .handle = args->handle, .kind = EP_LIST_SEND_BACK, .by_expert = by_expert};
    return ep_cuda_good(ep_cuda_send_back(&coded, cuda->multiprocessors, stream)) &&
           send_chunks(cuda, &listed, &rows, true, EP_FLAG_DATA, stream);
}

bool ep_cuda_coded_reduce(const struct ep_cuda *cuda, const struct ep_reduce_args *args, cudaStream_t stream)
{
    const bool low_latency = args->group.low_latency;
    const bool by_expert = low_latency && args->handle.layout == STRAIT_EP_EXPERT_MAJOR;
    const uint64_t came = (uint64_t)args->group.rank_count * args->group.tokens_max;
    struct ep_reduce_args coded = *args;

    coded.group.coding.pages = low_latency ? pages_back(&args->group, &args->handle) : pages_of(&args->group);
    const struct tensor rows = {coded.group.coding.decoded, low_latency ? args->group.at.row_slots : came,
                                args->row_bytes, args->type};
    struct ep_list_args listed = {
        .group = coded.group, .handle = args->handle, .kind = EP_LIST_REDUCE, .by_expert = by_expert};
    ep_cuda_share_budget(cuda, &args->group, ep_arena_chunks(&args->group.at) - 1, &coded.group);
    return take_chunks(cuda, &listed, &rows, true, stream) &&
           ep_cuda_good(ep_cuda_reduce(&coded, cuda->multiprocessors, stream));
}
