#include "tests/gpu/ep_sides.h"

enum { CANARY_BYTE = 0xA5 };

struct ep_setting setting;

static const char *const names[BUFFERS] = {"topk",       "rows",     "weights", "scales", "out rows", "out weights",
                                           "out scales", "out topk", "counts",  "sums",   "gradients"};

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static void *take(const struct side *side, size_t bytes)
{
    void *memory;

    if (side->cuda)
        require_cuda(cudaMalloc(&memory, bytes + 16));
    else
        require((memory = aligned_alloc(64, (bytes + 64) / 64 * 64)) != NULL);
    return memory;
}

static void clear(const struct side *side, enum buffer which)
{
    if (side->cuda)
        require_cuda(cudaMemset(side->buffer[which], CANARY_BYTE, side->bytes[which]));
    else
        memset(side->buffer[which], CANARY_BYTE, side->bytes[which]);
}

uint32_t most_rows(const struct strait_ep_config *config, const struct step_shape *shape)
{
    const uint32_t all = config->rank_count * config->tokens_max, local = config->experts / config->rank_count;

    if (shape->layout != STRAIT_EP_EXPERT_MAJOR)
        return all;
    return config->algorithm == STRAIT_EP_LOW_LATENCY ? all * local : all * shape->topk + local * shape->alignment;
}

static void take_buffers(struct side *side)
{
    const struct step_shape *shape = &side->shape;
    const size_t tokens = shape->tokens, rows = most_rows(&side->config, shape);
    const size_t bytes[BUFFERS] = {[TOPK] = tokens * shape->topk * 8,
                                   [ROWS] = tokens * shape->row_bytes,
                                   [WEIGHTS] = tokens * shape->topk * 4,
                                   [SCALES] = tokens * shape->scale_bytes,
                                   [OUT_ROWS] = rows * shape->row_bytes,
                                   [OUT_WEIGHTS] = rows * shape->topk * 4,
                                   [OUT_SCALES] = rows * shape->scale_bytes,
                                   [OUT_TOPK] = rows * shape->topk * 4,
                                   [COUNTS] = (2 * STRAIT_EP_EXPERTS_MAX + STRAIT_EP_RANKS_MAX + 1) * 4,
                                   [SUMS] = tokens * shape->row_bytes,
                                   [GRADIENTS] = tokens * shape->topk * 4};

    side->in_heap = false;
    for (int which = 0; which < BUFFERS; which++) {
        side->bytes[which] = bytes[which];
        side->buffer[which] = NULL;
        if (which == OUT_ROWS && shape->heap && (side->buffer[which] = strait_ep_alloc(side->group, bytes[which])))
            side->in_heap = true;
        if (side->buffer[which] == NULL)
            side->buffer[which] = take(side, bytes[which]);
        clear(side, (enum buffer)which);
    }
    if (side->cuda)
        require_cuda(cudaStreamSynchronize(NULL));
}

static void drop_buffers(struct side *side)
{
    for (int which = 0; which < BUFFERS; which++)
        if (which == OUT_ROWS && side->in_heap)
            strait_ep_free(side->group, side->buffer[which]);
        else if (side->cuda)
            require_cuda(cudaFree(side->buffer[which]));
        else
            free(side->buffer[which]);
}

/* The same inputs on both sides: in memory of the host, then copied. */
static void give(struct side *sides, enum buffer which, const void *data)
{
    memcpy(sides[0].buffer[which], data, sides[0].bytes[which]);
    require_cuda(
        cudaMemcpyAsync(sides[1].buffer[which], data, sides[1].bytes[which], cudaMemcpyDefault, sides[1].stream));
    require_cuda(cudaStreamSynchronize(sides[1].stream));
}

void draw_routing(struct side *sides, struct rng *rng)
{
    const struct step_shape *shape = &sides[0].shape;
    const uint32_t count = shape->tokens * shape->topk, experts = sides[0].config.experts;
    const uint32_t some = rng_below(rng, 4) == 0 ? 1 + rng_below(rng, experts) : experts;
    int64_t *numbers = malloc(count * sizeof(*numbers) + 1);

    for (uint32_t i = 0; i < count; i++)
        numbers[i] = rng_below(rng, 12) == 0 ? -1 : (int64_t)rng_below(rng, some);
    give(sides, TOPK, numbers);
    free(numbers);
}

/* Half of all rows have few exponents, so that they shrink; the others are noise. */
void draw_inputs(struct side *sides, struct rng *rng)
{
    const enum buffer inputs[] = {ROWS, WEIGHTS, SCALES};
    const enum strait_element type = sides[0].shape.type;
    const uint32_t size = type == STRAIT_ELEMENT_FP32 ? 4 : type == STRAIT_ELEMENT_FP8_E4M3 ? 1 : 2;
    const bool few = rng_below(rng, 2);

    draw_routing(sides, rng);
    for (int i = 0; i < COUNT(inputs); i++) {
        uint8_t *data = malloc(sides[0].bytes[inputs[i]] + 8);
        for (size_t at = 0; at < sides[0].bytes[inputs[i]]; at++)
            data[at] = (uint8_t)rng_next(rng);
        for (size_t at = size - 1; at < sides[0].bytes[ROWS] && inputs[i] == ROWS && few; at += size)
            data[at] = (data[at] & 0x87) | 0x38; /* sign and upper bits of the exponent */
        give(sides, inputs[i], data);
        free(data);
    }
}

void compare(struct side *sides, const char *what)
{
    for (int which = 0; which < BUFFERS; which++) {
        const size_t bytes = sides[0].bytes[which];
        uint8_t *got = malloc(bytes + 1);
        require_cuda(cudaMemcpy(got, sides[1].buffer[which], bytes, cudaMemcpyDefault));
        if (memcmp(got, sides[0].buffer[which], bytes) != 0) {
            const struct step_shape *shape = &sides[0].shape;
            fprintf(stderr, "%s: rank %u: %s differ (%s, layout %d, type %d, %u tokens, topk %u, row %u)\n", what,
                    sides[0].config.rank, names[which],
                    sides[0].config.algorithm == STRAIT_EP_LOW_LATENCY ? "LL" : "HT", (int)shape->layout,
                    (int)shape->type, shape->tokens, shape->topk, shape->row_bytes);
            abort();
        }
        free(got);
    }
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

bool low_latency(const struct side *side)
{
    return side->config.algorithm == STRAIT_EP_LOW_LATENCY;
}

enum strait_status update(struct side *side)
{
    int32_t *counts = side->buffer[COUNTS];
    struct strait_ep_routing routing = {
        .size = sizeof(routing), .topk = side->buffer[TOPK], .tokens = side->shape.tokens, .topk_bytes = 8};

    if (!low_latency(side)) {
        routing.expert_counts = counts;
        routing.expert_offsets = side->shape.layout == STRAIT_EP_EXPERT_MAJOR ? counts + STRAIT_EP_EXPERTS_MAX : NULL;
        routing.rank_counts = counts + 2 * STRAIT_EP_EXPERTS_MAX;
        routing.total = counts + 2 * STRAIT_EP_EXPERTS_MAX + STRAIT_EP_RANKS_MAX;
    }
    return strait_ep_update(side->handle, &routing, side->stream);
}

static struct strait_ep_tensor tensor(const struct side *side, enum buffer which, uint32_t bytes,
                                      enum strait_element type)
{
    return (struct strait_ep_tensor){side->buffer[which], bytes, type};
}

enum strait_status dispatch(struct side *side, uint32_t flags)
{
    const struct step_shape *shape = &side->shape;
    const bool experts = shape->layout == STRAIT_EP_EXPERT_MAJOR;
    int32_t *counts = side->buffer[COUNTS];
    struct strait_ep_dispatch_in in = {.size = sizeof(in), .tokens = tensor(side, ROWS, shape->row_bytes, shape->type)};
    struct strait_ep_dispatch_out out = {.size = sizeof(out),
                                         .tokens = tensor(side, OUT_ROWS, shape->row_bytes, shape->type),
                                         .rows = low_latency(side) ? 0 : shape->row_count};

    if (shape->weights) {
        in.weights = side->buffer[WEIGHTS];
        out.weights = side->buffer[OUT_WEIGHTS];
    }
    if (shape->scale_bytes != 0) {
        in.scales = tensor(side, SCALES, shape->scale_bytes, STRAIT_ELEMENT_BYTES);
        out.scales = tensor(side, OUT_SCALES, shape->scale_bytes, STRAIT_ELEMENT_BYTES);
    }
    if (!experts)
        out.topk = side->buffer[OUT_TOPK];
    if (low_latency(side)) {
        out.expert_counts = experts ? counts : NULL;
        out.rank_counts = counts + 2 * STRAIT_EP_EXPERTS_MAX;
    }
    return strait_ep_dispatch(side->handle, &in, &out, flags, side->stream);
}

enum strait_status combine(struct side *side, uint32_t flags)
{
    const struct step_shape *shape = &side->shape;
    struct strait_ep_combine_in in = {.size = sizeof(in),
                                      .tokens = tensor(side, OUT_ROWS, shape->row_bytes, shape->type)};
    struct strait_ep_combine_out out = {.size = sizeof(out),
                                        .tokens = tensor(side, SUMS, shape->row_bytes, shape->type)};

    if (shape->gradients) {
        in.weights = side->buffer[OUT_WEIGHTS];
        out.weights = side->buffer[GRADIENTS];
    }
    return strait_ep_combine(side->handle, &in, &out, flags, side->stream);
}

void require_good(const struct side *side, enum strait_status status)
{
    const struct step_shape *shape = &side->shape;
    uint32_t rank = 0;

    if (status == STRAIT_OK)
        return;
    const enum strait_status told = strait_ep_async_error(side->group, &rank);
    fprintf(stderr, "rank %u: %s; the group: %s, rank %u (%s, layout %d, type %d, %u tokens, topk %u, row %u, %s)\n",
            side->config.rank, strait_status_string(status), strait_status_string(told), rank,
            low_latency(side) ? "LL" : "HT", (int)shape->layout, (int)shape->type, shape->tokens, shape->topk,
            shape->row_bytes, side->config.coding == STRAIT_EP_CODED ? "coded" : "raw");
    abort();
}

void step(struct side *side)
{
    const uint32_t flags = side->shape.staged ? STRAIT_EP_SEND_ONLY : 0;

    require_good(side, update(side));
    require_good(side, dispatch(side, flags));
    require_good(side, flags == 0 ? STRAIT_OK : strait_ep_complete(side->handle, side->stream));
    if (side->shape.type == STRAIT_ELEMENT_FP8_E4M3) /* cannot be summed */
        return;
    require_good(side, combine(side, flags));
    require_good(side, flags == 0 ? STRAIT_OK : strait_ep_complete(side->handle, side->stream));
}

void make_handles(struct member *member, struct side *sides)
{
    const struct step_shape *shape = &sides[1].shape;
    const struct strait_ep_handle_config config = {
        .size = sizeof(config), .layout = shape->layout, .topk = shape->topk, .expert_alignment = shape->alignment};

    for (int s = 0; s < 2; s++) {
        if (sides[s].group == NULL)
            continue;
        require(strait_ep_handle_create(sides[s].group, &config, &sides[s].handle) == STRAIT_OK);
        take_buffers(&sides[s]);
    }
    world_barrier(member);
}

void drop_handles(struct member *member, struct side *sides)
{
    require_cuda(cudaStreamSynchronize(sides[1].stream));
    world_barrier(member);
    for (int s = 0; s < 2; s++)
        if (sides[s].group != NULL) {
            strait_ep_handle_destroy(sides[s].handle);
            drop_buffers(&sides[s]);
        }
    world_barrier(member);
}

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

void make_groups(struct member *member, struct strait_ep_config like, bool host, struct side *sides)
{
    const struct strait_ep_config own = world_config(member);
    char text[256];

    require_cuda(cudaSetDevice((int)member->rank % setting.devices));
    like.size = own.size, like.all_gather = own.all_gather, like.context = own.context, like.rank = own.rank,
    like.rank_count = own.rank_count;
    if (setting.threads && setting.devices == 1 && like.sm_budget == 0)
        like.sm_budget = 4;
    memset(sides, 0, 2 * sizeof(*sides));
    const enum strait_ep_coding coding = like.coding;
    for (int s = host ? 0 : 1; s < 2; s++) {
        like.memory = s == 1 ? STRAIT_EP_CUDA : STRAIT_EP_HOST;
        like.coding = s == 1 ? coding : STRAIT_EP_RAW;
        sides[s].cuda = s == 1;
        sides[s].config = like;
        if (strait_ep_group_create(&like, &sides[s].group, text, sizeof(text)) != STRAIT_OK) {
            fprintf(stderr, "rank %u: no group: %s\n", member->rank, text);
            abort();
        }
    }
    require_cuda(cudaStreamCreateWithFlags(&sides[1].stream, cudaStreamNonBlocking));
}

void drop_groups(struct member *member, struct side *sides)
{
    require_cuda(cudaStreamSynchronize(sides[1].stream));
    world_barrier(member);
    for (int s = 0; s < 2; s++)
        strait_ep_group_destroy(sides[s].group);
    require_cuda(cudaStreamDestroy(sides[1].stream));
}

const char *medium_of(const struct side *side)
{
    struct strait_ep_info info = {.size = sizeof(info)};
    strait_ep_info(side->group, &info);
    return info.medium;
}
