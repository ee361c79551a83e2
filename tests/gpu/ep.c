/* Expert parallelism on real GPUs, against the host backend: each rank has two groups, one of memory of its GPU and one
 * of processors, makes the same calls on both, and compares all outputs bit for bit.
 *
 *   gpu_ep [SCENE ...]
 *     shapes   random groups and steps, all layouts, LL and HT
 *     graphs   1000 replays of an update, dispatch and combine, with new routing each
 *     kill     a rank ends in the middle: the others are told within the time limit, with `mask` they go on
 *     times    p50 and p99 of dispatch and combine, LL 128 and HT 4096 tokens, hidden 7168, top-8 of 256, BF16 and
 *              FP8, which are a graph each; without peer access raw and coded
 *
 * With several GPUs ranks are processes, one on each of the first 2 and of the first 4, and for shapes threads as well;
 * with one GPU they are two threads, whose kernels fit on it side by side. Each scene runs with peer access and,
 * `host`, without (NCCL_P2P_DISABLE). STRAIT_TEST_SEED, STRAIT_TEST_GROUPS (40). Exit status 77: there is no GPU. */
#include <math.h>
#include <time.h>

#include "tests/ep/world.h"
#include "tests/gpu/device.h"

enum { CANARY_BYTE = 0xA5, REPLAYS = 1000, STEPS = 4, RUNS = 200, MARKS = 4 };

static struct {
    int devices;
    bool threads, no_peers, alone;
    uint64_t seed;
    uint32_t groups;
} setting;

/* A step: its shape is the same on all ranks but for the number of tokens. */
struct step_shape {
    enum strait_ep_layout layout;
    enum strait_element type;
    uint32_t topk, tokens, row_bytes, scale_bytes, alignment, row_count;
    bool weights, gradients, heap, staged;
    uint64_t seed;
};

enum buffer {
    TOPK,
    ROWS,
    WEIGHTS,
    SCALES,
    OUT_ROWS,
    OUT_WEIGHTS,
    OUT_SCALES,
    OUT_TOPK,
    COUNTS,
    SUMS,
    GRADIENTS,
    BUFFERS
};
static const char *const names[BUFFERS] = {"topk",       "rows",     "weights", "scales", "out rows", "out weights",
                                           "out scales", "out topk", "counts",  "sums",   "gradients"};

/* One of the two groups of a rank. */
struct side {
    bool cuda;
    struct strait_ep_config config;
    struct strait_ep_group *group;
    struct strait_ep_handle *handle;
    cudaStream_t stream;
    struct step_shape shape;
    void *buffer[BUFFERS];
    size_t bytes[BUFFERS];
    bool in_heap;
};

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

/* Rows that tensors of a dispatch have. */
static uint32_t most_rows(const struct strait_ep_config *config, const struct step_shape *shape)
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

static void draw_routing(struct side *sides, struct rng *rng)
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

static void draw_inputs(struct side *sides, struct rng *rng)
{
    const enum buffer inputs[] = {ROWS, WEIGHTS, SCALES};

    draw_routing(sides, rng);
    for (int i = 0; i < COUNT(inputs); i++) {
        uint8_t *data = malloc(sides[0].bytes[inputs[i]] + 8);
        for (size_t at = 0; at < sides[0].bytes[inputs[i]]; at++)
            data[at] = (uint8_t)rng_next(rng);
        give(sides, inputs[i], data);
        free(data);
    }
}

static void compare(struct side *sides, const char *what)
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

static bool low_latency(const struct side *side)
{
    return side->config.algorithm == STRAIT_EP_LOW_LATENCY;
}

static enum strait_status update(struct side *side)
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

static enum strait_status dispatch(struct side *side, uint32_t flags)
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

/* What came is what goes back, in place. */
static enum strait_status combine(struct side *side, uint32_t flags)
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

static void require_good(const struct side *side, enum strait_status status)
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

static void step(struct side *side)
{
    const uint32_t flags = side->shape.staged ? STRAIT_EP_SEND_ONLY : 0;

    require_good(side, update(side));
    require_good(side, dispatch(side, flags));
    require_good(side, flags == 0 ? STRAIT_OK : strait_ep_complete(side->handle, side->stream));
    require_good(side, combine(side, flags));
    require_good(side, flags == 0 ? STRAIT_OK : strait_ep_complete(side->handle, side->stream));
}

/* Between barriers: memory is neither made nor freed while a kernel of another rank on the GPU waits for this one's. */
static void make_handles(struct member *member, struct side *sides)
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

static void drop_handles(struct member *member, struct side *sides)
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

/* Both groups of a rank, or that of its GPU alone. */
static void make_groups(struct member *member, struct strait_ep_config like, bool host, struct side *sides)
{
    const struct strait_ep_config own = world_config(member);
    char text[256];

    require_cuda(cudaSetDevice((int)member->rank % setting.devices));
    like.size = own.size, like.all_gather = own.all_gather, like.context = own.context, like.rank = own.rank,
    like.rank_count = own.rank_count;
    if (setting.threads && setting.devices == 1 && like.sm_budget == 0)
        like.sm_budget = 4;
    if (like.timeout_ns == 0)
        like.timeout_ns = 4000000000u;
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

static void drop_groups(struct member *member, struct side *sides)
{
    require_cuda(cudaStreamSynchronize(sides[1].stream));
    world_barrier(member);
    for (int s = 0; s < 2; s++)
        strait_ep_group_destroy(sides[s].group);
    require_cuda(cudaStreamDestroy(sides[1].stream));
}

static const char *medium_of(const struct side *side)
{
    struct strait_ep_info info = {.size = sizeof(info)};
    strait_ep_info(side->group, &info);
    return info.medium;
}

/* ---- Shapes ------------------------------------------------------------------------------------------------------ */

/* Now and then. */
static bool is_large(struct rng *rng)
{
    return rng_below(rng, 4) == 0 && !setting.alone;
}

/* Drawn by all ranks alike. */
static struct strait_ep_config draw_config(struct rng *rng, uint32_t ranks)
{
    struct strait_ep_config config = {
        .algorithm = rng_below(rng, 2) ? STRAIT_EP_LOW_LATENCY : STRAIT_EP_HIGH_THROUGHPUT, .overflow = STRAIT_EP_DROP};

    config.experts = ranks * (1 + rng_below(rng, is_large(rng) ? 128 : 8));
    config.tokens_max = 1 + rng_below(rng, is_large(rng) ? 3000 : setting.alone ? 30 : 150);
    config.row_bytes_max = 16 * (1 + rng_below(rng, is_large(rng) ? 1000 : 64));
    config.scale_bytes_max = 4 * rng_below(rng, 8);
    config.topk_max = 1 + rng_below(rng, 10);
    const uint64_t copies = config.algorithm == STRAIT_EP_LOW_LATENCY ? config.experts : ranks * config.topk_max;
    while (copies * config.tokens_max * config.row_bytes_max > 1u << 27)
        config.tokens_max = (config.tokens_max + 1) / 2;
    config.mask = config.algorithm == STRAIT_EP_LOW_LATENCY && rng_below(rng, 3) == 0;
    config.heap_bytes = rng_below(rng, 2) ? (uint64_t)ranks * config.tokens_max * config.row_bytes_max : 0;
    config.receive_max = rng_below(rng, 3) == 0 ? 1 + rng_below(rng, ranks * config.tokens_max) : 0;
    config.coding = rng_below(rng, 3) == 0 ? STRAIT_EP_CODED : STRAIT_EP_RAW;
    return config;
}

static struct step_shape draw_shape(struct rng *rng, const struct strait_ep_config *config, uint32_t ranks,
                                    uint32_t rank)
{
    static const enum strait_element types[] = {STRAIT_ELEMENT_BF16, STRAIT_ELEMENT_FP16, STRAIT_ELEMENT_FP32};
    const bool ll = config->algorithm == STRAIT_EP_LOW_LATENCY;
    struct step_shape shape = {.type = types[rng_below(rng, 3)],
                               .layout = rng_below(rng, 2) ? STRAIT_EP_EXPERT_MAJOR
                                         : ll              ? STRAIT_EP_RANK_MAJOR
                                                           : STRAIT_EP_FLAT,
                               .topk = 1 + rng_below(rng, config->topk_max),
                               .row_bytes = 16 * (1 + rng_below(rng, config->row_bytes_max / 16)),
                               .weights = rng_below(rng, 3) != 0,
                               .heap = rng_below(rng, 2),
                               .staged = ll && rng_below(rng, 3) == 0,
                               .alignment = 1,
                               .seed = rng_next(rng)};

    if (config->scale_bytes_max != 0)
        shape.scale_bytes = 4 * (1 + rng_below(rng, config->scale_bytes_max / 4));
    if (!ll && shape.layout == STRAIT_EP_EXPERT_MAJOR)
        shape.alignment = 1 + rng_below(rng, 130);
    shape.gradients = !ll && shape.weights;
    for (uint32_t r = 0; r < ranks; r++) {
        const uint32_t tokens = rng_below(rng, 5) == 0 ? 0 : rng_below(rng, config->tokens_max + 1);
        shape.tokens = r == rank ? tokens : shape.tokens;
    }
    return shape;
}

static void run_shapes(struct member *member)
{
    const uint32_t ranks = member->world->ranks;
    struct rng rng = rng_init(setting.seed);
    uint64_t steps = 0, coded = 0;

    for (uint32_t g = 0; g < setting.groups; g++) {
        struct strait_ep_config config = draw_config(&rng, ranks);
        struct side sides[2];
        make_groups(member, config, true, sides);
        for (uint32_t i = 0; i < STEPS; i++) {
            const struct step_shape shape = draw_shape(&rng, &config, ranks, member->rank);
            struct rng own = rng_init(shape.seed + member->rank);
            sides[0].shape = sides[1].shape = shape;
            sides[0].shape.row_count = sides[1].shape.row_count = most_rows(&sides[0].config, &shape);
            make_handles(member, sides);
            draw_inputs(sides, &own);
            world_barrier(member); /* drawing takes longer than ranks wait for each other */
            for (int again = 0; again < 2; again++) {
                step(&sides[1]);
                step(&sides[0]);
                require_cuda(cudaStreamSynchronize(sides[1].stream));
                require_good(&sides[1], strait_ep_async_error(sides[1].group, NULL));
                compare(sides, "shapes");
                draw_routing(sides, &own);
            }
            drop_handles(member, sides);
            steps += 2;
            coded += config.coding == STRAIT_EP_CODED ? 2 : 0;
        }
        if (member->rank == 0 && g == 0)
            printf("shapes: rows cross %s\n", medium_of(&sides[1]));
        drop_groups(member, sides);
    }
    if (member->rank == 0)
        printf("shapes: %u ranks, %u groups, %llu steps equal, %llu of them coded\n", ranks, setting.groups,
               (unsigned long long)steps, (unsigned long long)coded);
}

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

static void run_graph(struct member *member, enum strait_ep_algorithm algorithm, enum strait_ep_layout layout,
                      enum strait_ep_coding coding)
{
    const struct strait_ep_config config = {.algorithm = algorithm,
                                            .experts = 16 * member->world->ranks,
                                            .tokens_max = 64,
                                            .row_bytes_max = 1024,
                                            .topk_max = 6,
                                            .coding = coding};
    struct rng own = rng_init(setting.seed + member->rank);
    struct side sides[2];
    cudaGraph_t graph;
    cudaGraphExec_t exec;

    make_groups(member, config, true, sides);
    for (int s = 0; s < 2; s++) {
        sides[s].shape = (struct step_shape){.layout = layout,
                                             .type = STRAIT_ELEMENT_BF16,
                                             .topk = 6,
                                             .tokens = 64,
                                             .row_bytes = 1024,
                                             .alignment = 1,
                                             .weights = true};
        sides[s].shape.row_count = most_rows(&sides[s].config, &sides[s].shape);
    }
    make_handles(member, sides);
    draw_inputs(sides, &own);
    require_cuda(cudaStreamBeginCapture(sides[1].stream, cudaStreamCaptureModeThreadLocal));
    step(&sides[1]);
    require_cuda(cudaStreamEndCapture(sides[1].stream, &graph));
    require_cuda(cudaGraphInstantiate(&exec, graph, 0));
    world_barrier(member);
    for (int replay = 0; replay < REPLAYS; replay++) {
        draw_routing(sides, &own);
        require_cuda(cudaGraphLaunch(exec, sides[1].stream));
        step(&sides[0]);
        require_cuda(cudaStreamSynchronize(sides[1].stream));
        require_good(&sides[1], strait_ep_async_error(sides[1].group, NULL));
        compare(sides, "graphs");
    }
    world_barrier(member);
    require_cuda(cudaGraphExecDestroy(exec));
    require_cuda(cudaGraphDestroy(graph));
    drop_handles(member, sides);
    drop_groups(member, sides);
}

static void run_graphs(struct member *member)
{
    for (enum strait_ep_coding coding = STRAIT_EP_RAW; coding <= STRAIT_EP_CODED; coding++) {
        run_graph(member, STRAIT_EP_LOW_LATENCY, STRAIT_EP_EXPERT_MAJOR, coding);
        run_graph(member, STRAIT_EP_LOW_LATENCY, STRAIT_EP_RANK_MAJOR, coding);
        run_graph(member, STRAIT_EP_HIGH_THROUGHPUT, STRAIT_EP_FLAT, coding);
        run_graph(member, STRAIT_EP_HIGH_THROUGHPUT, STRAIT_EP_EXPERT_MAJOR, coding);
    }
    if (member->rank == 0)
        printf("graphs: %u ranks, 4 graphs raw and 4 coded, %d replays each, equal\n", member->world->ranks, REPLAYS);
}

/* ---- A rank that ends -------------------------------------------------------------------------------------------- */

static double seconds_until_failed(struct strait_ep_group *group, enum strait_status *status, uint32_t *rank)
{
    const double began = clock_s();

    while ((*status = strait_ep_async_error(group, rank)) == STRAIT_OK && clock_s() - began < 10)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return clock_s() - began;
}

/* The last rank goes after three steps, killed where it is a process. */
static void run_kill_of(struct member *member, enum strait_ep_algorithm algorithm, bool mask,
                        enum strait_ep_coding coding)
{
    const struct strait_ep_config config = {.algorithm = algorithm,
                                            .experts = 8 * member->world->ranks,
                                            .tokens_max = 32,
                                            .row_bytes_max = 512,
                                            .topk_max = 4,
                                            .mask = mask,
                                            .coding = coding,
                                            .timeout_ns = 1000000000};
    const uint32_t last = member->world->ranks - 1;
    struct rng own = rng_init(setting.seed + member->rank);
    struct side sides[2];
    enum strait_status status;
    uint32_t rank = ~0u;

    make_groups(member, config, true, sides);
    for (int s = 0; s < 2; s++) {
        sides[s].shape = (struct step_shape){.layout = STRAIT_EP_EXPERT_MAJOR,
                                             .type = STRAIT_ELEMENT_FP32,
                                             .topk = 4,
                                             .tokens = 32,
                                             .row_bytes = 512,
                                             .alignment = 1};
        sides[s].shape.row_count = most_rows(&sides[s].config, &sides[s].shape);
    }
    make_handles(member, sides);
    draw_inputs(sides, &own);
    for (int i = 0; i < 3; i++)
        step(&sides[1]);
    require_cuda(cudaStreamSynchronize(sides[1].stream));
    world_barrier(member);
    if (member->rank == last && !setting.threads)
        raise(SIGKILL);
    if (member->rank == last) {
        world_barrier(member);
        world_barrier(member);
        return; /* its memory stays, as others may still write to it */
    }
    step(&sides[1]);
    const double seconds = seconds_until_failed(sides[1].group, &status, &rank);
    require(status == STRAIT_ERR_TIMEOUT && rank == last && seconds < 10);
    require_cuda(cudaStreamSynchronize(sides[1].stream));
    if (mask) {
        int32_t active[STRAIT_EP_RANKS_MAX];
        require(strait_ep_mask_get(sides[1].group, active, sides[1].stream) == STRAIT_OK);
        for (uint32_t r = 0; r <= last; r++)
            require(active[r] == (r != last));
        strait_ep_error_clear(sides[1].group);
        for (int i = 0; i < 5; i++)
            step(&sides[1]);
        require_cuda(cudaStreamSynchronize(sides[1].stream));
        require_good(&sides[1], strait_ep_async_error(sides[1].group, NULL));
    } else {
        require(update(&sides[1]) == STRAIT_ERR_TIMEOUT);
    }
    if (setting.threads)
        world_barrier(member), world_barrier(member);
    if (member->rank == 0)
        printf("kill: %s%s%s: told after %.2f s\n", algorithm == STRAIT_EP_LOW_LATENCY ? "LL" : "HT",
               coding == STRAIT_EP_CODED ? " coded" : "", mask ? " with mask, went on" : "", seconds);
}

static void run_kill_low_latency(struct member *member)
{
    run_kill_of(member, STRAIT_EP_LOW_LATENCY, false, STRAIT_EP_RAW);
}

static void run_kill_masked(struct member *member)
{
    run_kill_of(member, STRAIT_EP_LOW_LATENCY, true, STRAIT_EP_RAW);
}

static void run_kill_coded_masked(struct member *member)
{
    run_kill_of(member, STRAIT_EP_LOW_LATENCY, true, STRAIT_EP_CODED);
}

static void run_kill_high_throughput(struct member *member)
{
    run_kill_of(member, STRAIT_EP_HIGH_THROUGHPUT, false, STRAIT_EP_RAW);
}

static void run_kill_coded(struct member *member)
{
    run_kill_of(member, STRAIT_EP_HIGH_THROUGHPUT, false, STRAIT_EP_CODED);
}

/* ---- Times ------------------------------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Rows that a rank gets from others and itself, by the counts of ranks. */
static uint64_t rows_received(const struct side *side, uint32_t ranks)
{
    int32_t counts[STRAIT_EP_RANKS_MAX];
    uint64_t rows = 0;

    require_cuda(cudaMemcpy(counts, (int32_t *)side->buffer[COUNTS] + 2 * STRAIT_EP_EXPERTS_MAX,
                            ranks * sizeof(*counts), cudaMemcpyDefault));
    for (uint32_t r = 0; r < ranks; r++)
        rows += (uint64_t)counts[r];
    return rows;
}

/* What is timed: steps of one shape. */
struct timed {
    enum strait_ep_algorithm algorithm;
    enum strait_ep_layout layout;
    enum strait_element type;        /* FP8_E4M3: no combine */
    uint32_t tokens, runs, launches; /* steps of a graph; launches before the one that is timed: GPUs get faster */
};

static void show_times(const struct side *side, const char *what, float *times, uint32_t runs, uint32_t ranks)
{
    const double bytes = (double)rows_received(side, ranks) * side->shape.row_bytes;

    qsort(times, runs, sizeof(*times), ascending);
    printf("times: %s %-12s %s %-5s %u ranks %5u tokens %-8s %s: p50 %8.1f us, p99 %8.1f us, %6.1f GB/s of rows\n",
           low_latency(side) ? "LL" : "HT",
           side->shape.layout == STRAIT_EP_EXPERT_MAJOR ? "expert-major"
           : side->shape.layout == STRAIT_EP_FLAT       ? "flat"
                                                        : "rank-major",
           side->shape.type == STRAIT_ELEMENT_BF16 ? "BF16" : "FP8 ",
           side->config.coding == STRAIT_EP_CODED ? "coded" : "raw", ranks, side->shape.tokens, what, medium_of(side),
           (double)times[runs / 2] * 1e3, (double)times[runs * 99 / 100] * 1e3,
           bytes / ((double)times[runs / 2] * 1e-3) / 1e9);
}

/* Bytes of a value of a normal distribution, as FP8 E4M3 or BF16. */
static uint16_t draw_value(struct rng *rng, enum strait_element type)
{
    float sum = 0;
    int exponent;
    uint32_t bits;

    for (int i = 0; i < 6; i++)
        sum += (float)rng_below(rng, 1 << 16) / (1 << 16) - 0.5f;
    if (type == STRAIT_ELEMENT_BF16) {
        memcpy(&bits, &sum, sizeof(bits));
        return (uint16_t)(bits >> 16);
    }
    const float mantissa = frexpf(fabsf(sum) * 100, &exponent); /* 0.5 to 1 */
    if (exponent < -5)
        return 0;
    return (uint16_t)((sum < 0 ? 0x80 : 0) | (uint32_t)(exponent + 6) << 3 | ((uint32_t)(mantissa * 16) & 7));
}

static void fill_timed(struct side *side, uint64_t seed)
{
    const struct step_shape *shape = &side->shape;
    const uint32_t size = shape->type == STRAIT_ELEMENT_BF16 ? 2 : 1;
    struct rng own = rng_init(seed);
    int64_t *numbers = malloc(side->bytes[TOPK]);
    uint8_t *rows = malloc(side->bytes[ROWS] + 1);

    for (uint32_t i = 0; i < shape->tokens * shape->topk; i++)
        numbers[i] = rng_below(&own, 256);
    for (size_t i = 0; i < side->bytes[ROWS]; i += size) {
        const uint16_t value = draw_value(&own, shape->type);
        memcpy(rows + i, &value, size);
    }
    require_cuda(cudaMemcpy(side->buffer[TOPK], numbers, side->bytes[TOPK], cudaMemcpyDefault));
    require_cuda(cudaMemcpy(side->buffer[ROWS], rows, side->bytes[ROWS], cudaMemcpyDefault));
    free(numbers);
    free(rows);
}

static void mark(const struct side *side, cudaEvent_t event)
{
    require_cuda(cudaEventRecordWithFlags(event, side->stream, setting.alone ? 0 : cudaEventRecordExternal));
}

static void time_step(struct side *side, const cudaEvent_t marks[MARKS])
{
    mark(side, marks[0]);
    require(update(side) == STRAIT_OK);
    mark(side, marks[1]);
    require(dispatch(side, 0) == STRAIT_OK);
    mark(side, marks[2]);
    if (side->shape.type == STRAIT_ELEMENT_BF16)
        require(combine(side, 0) == STRAIT_OK);
    mark(side, marks[3]);
}

/* All steps as one graph, launched again and again. */
static void run_timed_steps(struct member *member, struct side *side, const struct timed *timed,
                            cudaEvent_t marks[RUNS][MARKS])
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;

    if (setting.alone) { /* the emulator has no graphs */
        for (uint32_t run = 0; run < timed->runs; run++)
            time_step(side, marks[run]);
        require_cuda(cudaStreamSynchronize(side->stream));
        return;
    }
    require_cuda(cudaStreamBeginCapture(side->stream, cudaStreamCaptureModeThreadLocal));
    for (uint32_t run = 0; run < timed->runs; run++)
        time_step(side, marks[run]);
    require_cuda(cudaStreamEndCapture(side->stream, &graph));
    require_cuda(cudaGraphInstantiate(&exec, graph, 0));
    require_cuda(cudaGraphUpload(exec, side->stream)); /* while no kernel waits for that of a rank beside it */
    require_cuda(cudaStreamSynchronize(side->stream));
    for (uint32_t launch = 0; launch <= timed->launches; launch++) {
        world_barrier(member);
        require_cuda(cudaGraphLaunch(exec, side->stream));
        require_cuda(cudaStreamSynchronize(side->stream));
    }
    world_barrier(member);
    require_cuda(cudaGraphExecDestroy(exec));
    require_cuda(cudaGraphDestroy(graph));
}

static void run_times_of(struct member *member, const struct timed *timed, enum strait_ep_coding coding)
{
    const uint32_t ranks = member->world->ranks, row_bytes = timed->type == STRAIT_ELEMENT_BF16 ? 14336 : 7168;
    const bool heap = timed->layout == STRAIT_EP_FLAT && !setting.no_peers;
    const struct strait_ep_config config = {.algorithm = timed->algorithm,
                                            .experts = 256,
                                            .tokens_max = timed->tokens,
                                            .row_bytes_max = row_bytes,
                                            .topk_max = 8,
                                            .sm_budget = setting.alone ? 0 : 16,
                                            .coding = coding,
                                            .heap_bytes = heap ? (uint64_t)ranks * timed->tokens * row_bytes : 0};
    struct side sides[2];
    cudaEvent_t marks[RUNS][MARKS];
    static float times[MARKS - 1][RUNS];

    make_groups(member, config, false, sides);
    struct side *side = &sides[1];
    side->shape = (struct step_shape){.layout = timed->layout,
                                      .type = timed->type,
                                      .topk = 8,
                                      .tokens = timed->tokens,
                                      .row_bytes = row_bytes,
                                      .alignment = 1,
                                      .weights = true,
                                      .heap = heap};
    side->shape.row_count = most_rows(&side->config, &side->shape);
    make_handles(member, sides);
    fill_timed(side, setting.seed + member->rank);
    for (uint32_t run = 0; run < timed->runs; run++)
        for (int i = 0; i < MARKS; i++)
            require_cuda(cudaEventCreate(&marks[run][i]));
    world_barrier(member);
    run_timed_steps(member, side, timed, marks);
    for (uint32_t run = 0; run < timed->runs && member->rank == 0; run++)
        for (int i = 0; i < MARKS - 1; i++)
            require_cuda(cudaEventElapsedTime(&times[i][run], marks[run][i], marks[run][i + 1]));
    for (uint32_t run = 0; run < timed->runs; run++)
        for (int i = 0; i < MARKS; i++)
            require_cuda(cudaEventDestroy(marks[run][i]));
    require_good(side, strait_ep_async_error(side->group, NULL));
    if (member->rank == 0) {
        show_times(side, "update", times[0], timed->runs, ranks);
        show_times(side, "dispatch", times[1], timed->runs, ranks);
        if (timed->type == STRAIT_ELEMENT_BF16)
            show_times(side, "combine", times[2], timed->runs, ranks);
    }
    drop_handles(member, sides);
    drop_groups(member, sides);
}

static void run_times(struct member *member)
{
    const uint32_t few = setting.alone ? 3 : 128, many = setting.alone ? 8 : 4096, runs = setting.alone ? 2 : RUNS;
    const struct timed all[] = {
        {STRAIT_EP_LOW_LATENCY, STRAIT_EP_EXPERT_MAJOR, STRAIT_ELEMENT_BF16, few, runs, 20},
        {STRAIT_EP_LOW_LATENCY, STRAIT_EP_RANK_MAJOR, STRAIT_ELEMENT_BF16, few, runs, 20},
        {STRAIT_EP_LOW_LATENCY, STRAIT_EP_RANK_MAJOR, STRAIT_ELEMENT_FP8_E4M3, few, runs, 20},
        {STRAIT_EP_HIGH_THROUGHPUT, STRAIT_EP_FLAT, STRAIT_ELEMENT_BF16, many, runs / 4 + 1, 6},
        {STRAIT_EP_HIGH_THROUGHPUT, STRAIT_EP_FLAT, STRAIT_ELEMENT_FP8_E4M3, many, runs / 4 + 1, 6},
        {STRAIT_EP_HIGH_THROUGHPUT, STRAIT_EP_EXPERT_MAJOR, STRAIT_ELEMENT_BF16, many, runs / 4 + 1, 6},
    };

    for (int i = 0; i < COUNT(all); i++) {
        run_times_of(member, &all[i], STRAIT_EP_RAW);
        if (setting.no_peers)
            run_times_of(member, &all[i], STRAIT_EP_CODED);
    }
}

/* ---- Scenes ------------------------------------------------------------------------------------------------------ */

struct scene {
    const char *name;
    member_run *run;
    bool threads_too; /* also as threads where there are several GPUs */
};

static const struct scene scenes[] = {{"shapes", run_shapes, true},
                                      {"graphs", run_graphs, false},
                                      {"kill", run_kill_low_latency, false},
                                      {"kill", run_kill_masked, false},
                                      {"kill", run_kill_high_throughput, false},
                                      {"kill", run_kill_coded_masked, false},
                                      {"kill", run_kill_coded, false},
                                      {"times", run_times, false}};

/* In a process of its own, which has not used CUDA. */
static void play(const struct scene *scene, uint32_t ranks, bool threads, bool no_peers)
{
    int status;

    fflush(NULL);
    const pid_t pid = fork();
    require(pid >= 0);
    if (pid == 0) {
        end_with_parent();
        setting.threads = threads;
        setting.no_peers = no_peers;
        if (no_peers)
            require(setenv("NCCL_P2P_DISABLE", "1", 1) == 0);
        printf("%s: %u ranks, %s%s\n", scene->name, ranks, threads ? "threads" : "processes",
               no_peers ? ", without peer access" : "");
        world_run(ranks, !threads, scene->run, NULL);
        fflush(NULL);
        _exit(0);
    }
    require(waitpid(pid, &status, 0) == pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "%s failed\n", scene->name);
        exit(1);
    }
}

static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 0) : otherwise;
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    setting.devices = count_devices();
    setting.seed = number_of("STRAIT_TEST_SEED", 1);
    setting.groups = (uint32_t)number_of("STRAIT_TEST_GROUPS", 40);
    if (setting.devices == 0) {
        printf("skipped: there is no GPU\n");
        return 77;
    }
    if (argc == 2 && strcmp(argv[1], "--alone") == 0) {
        setting.alone = true;
        play(&scenes[0], 1, true, false);
        play(&scenes[0], 1, true, true);
        play(&scenes[COUNT(scenes) - 1], 1, true, false);
        return 0;
    }
    for (int s = 0; s < COUNT(scenes); s++)
        for (int no_peers = 0; no_peers < 2 && is_named(scenes[s].name, argc - 1, argv + 1); no_peers++) {
            if (setting.devices == 1) {
                play(&scenes[s], 2, true, no_peers);
                continue;
            }
            for (uint32_t ranks = 2; ranks <= 4 && (int)ranks <= setting.devices; ranks += 2) {
                play(&scenes[s], ranks, false, no_peers);
                if (scenes[s].threads_too)
                    play(&scenes[s], ranks, true, no_peers);
            }
        }
    printf("ok\n");
    return 0;
}
