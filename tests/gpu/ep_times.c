/* How long dispatch and combine take on GPUs: steps of one shape as a graph. */
#include <math.h>

#include "tests/gpu/ep_sides.h"

enum { RUNS = 200, MARKS = 4 };

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

/* Times of `steps` steps from run `first` on. */
static void take_times(cudaEvent_t marks[RUNS][MARKS], uint32_t first, uint32_t steps, float times[MARKS - 1][RUNS])
{
    for (uint32_t step = 0; step < steps; step++)
        for (int i = 0; i < MARKS - 1; i++)
            require_cuda(cudaEventElapsedTime(&times[i][first + step], marks[step][i], marks[step][i + 1]));
}

/* Steps as a graph, launched again and again: all of them, or, where phases run beside the stream, one: graphs of many
 * branches of ranks that are threads wait for each other in the queues that they share. */
static void run_timed_steps(struct member *member, struct side *side, const struct timed *timed,
                            cudaEvent_t marks[RUNS][MARKS], float times[MARKS - 1][RUNS])
{
    const uint32_t steps = setting.no_peers && !low_latency(side) ? 1 : timed->runs;
    cudaGraph_t graph;
    cudaGraphExec_t exec;

    if (setting.alone) { /* the emulator has no graphs */
        for (uint32_t run = 0; run < timed->runs; run++)
            time_step(side, marks[run]);
        require_cuda(cudaStreamSynchronize(side->stream));
        take_times(marks, 0, timed->runs, times);
        return;
    }
    require_cuda(cudaStreamBeginCapture(side->stream, cudaStreamCaptureModeThreadLocal));
    for (uint32_t step = 0; step < steps; step++)
        time_step(side, marks[step]);
    require_cuda(cudaStreamEndCapture(side->stream, &graph));
    require_cuda(cudaGraphInstantiate(&exec, graph, 0));
    require_cuda(cudaGraphUpload(exec, side->stream)); /* while no kernel waits for that of a rank beside it */
    require_cuda(cudaStreamSynchronize(side->stream));
    for (uint32_t launch = 0; launch < timed->launches + timed->runs / steps; launch++) {
        world_barrier(member);
        require_cuda(cudaGraphLaunch(exec, side->stream));
        require_cuda(cudaStreamSynchronize(side->stream));
        if (launch >= timed->launches)
            take_times(marks, (launch - timed->launches) * steps, steps, times);
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
                                            .sm_budget = setting.alone ? 0 : setting.multiprocessors,
                                            .coding = coding,
                                            .heap_bytes = heap ? (uint64_t)ranks * timed->tokens * row_bytes : 0};
    struct side sides[2];
    cudaEvent_t marks[RUNS][MARKS];
    static float all_times[STRAIT_EP_RANKS_MAX][MARKS - 1][RUNS];
    float(*times)[RUNS] = all_times[member->rank];

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
    run_timed_steps(member, side, timed, marks, times);
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

void run_times(struct member *member)
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
