/* Quantization of rows on GPUs, beside that on processors: the scene `quantize`. */
#include "tests/gpu/ep_sides.h"

enum { VALUES = 65536, BLOCKS = VALUES / STRAIT_EP_SCALE_VALUES, ROUNDS = 40, REPLAYS = 200 };

/* What a side has: inputs, outputs. */
struct tensors {
    uint16_t *rows;
    uint8_t *quantized;
    float *scales;
};

/* On the host. */
static struct tensors take_host(void)
{
    const struct tensors made = {aligned_alloc(64, VALUES * sizeof(*made.rows)), aligned_alloc(64, VALUES),
                                 aligned_alloc(64, BLOCKS * sizeof(*made.scales))};
    require(made.rows != NULL && made.quantized != NULL && made.scales != NULL);
    return made;
}

static void drop_host(const struct tensors *tensors)
{
    free(tensors->rows);
    free(tensors->quantized);
    free(tensors->scales);
}

static struct tensors take_device(size_t values)
{
    struct tensors made;
    require_cuda(cudaMalloc((void **)&made.rows, values * sizeof(*made.rows)));
    require_cuda(cudaMalloc((void **)&made.quantized, values));
    require_cuda(cudaMalloc((void **)&made.scales, values / STRAIT_EP_SCALE_VALUES * sizeof(*made.scales)));
    return made;
}

static void drop_device(const struct tensors *tensors)
{
    require_cuda(cudaFree(tensors->rows));
    require_cuda(cudaFree(tensors->quantized));
    require_cuda(cudaFree(tensors->scales));
}

/* Each value once (kind 0), any, or those of sizes that are not far apart, with a few that are odd (kind 3 and more).
 */
static void draw_rows(struct rng *rng, uint32_t kind, uint16_t *rows)
{
    static const uint16_t odd[] = {0x7F80, 0xFF80, 0x7FC0, 0xFFFF, 0x7F7F, 0x0001, 0x8000};
    const uint32_t middle = rng_below(rng, 256);

    for (uint32_t i = 0; i < VALUES; i++) {
        const uint32_t value = (uint32_t)rng_next(rng) & 0xFFFF, exponent = (middle + (value >> 7 & 7)) & 0xFF;
        rows[i] = (uint16_t)(kind == 0 ? i : kind == 1 ? value : (value & 0x807F) | exponent << 7);
    }
    for (uint32_t i = 0; i < 4 && kind > 2; i++)
        rows[rng_below(rng, VALUES)] = odd[rng_below(rng, COUNT(odd))];
}

static void quantize(const struct side *side, const struct tensors *tensors, uint32_t count, uint32_t values,
                     bool powers)
{
    const struct strait_ep_quantization quantization = {
        .size = sizeof(quantization),
        .rows = {tensors->rows, 2 * values, STRAIT_ELEMENT_BF16},
        .quantized = {tensors->quantized, values, STRAIT_ELEMENT_FP8_E4M3},
        .scales = tensors->scales,
        .count = count,
        .powers_of_two = powers,
    };
    require_good(side, strait_ep_quantize(side->group, &quantization, side->stream));
}

/* On both sides, from what the first has. What is beyond the rows stays as it is. */
static void compare_sides(const struct side *sides, const struct tensors *tensors, const struct tensors *found,
                          uint32_t count, uint32_t values, bool powers)
{
    const cudaStream_t stream = sides[1].stream;

    memset(tensors[0].quantized, 0x55, VALUES);
    memset(tensors[0].scales, 0x55, BLOCKS * sizeof(*tensors[0].scales));
    require_cuda(cudaMemsetAsync(tensors[1].quantized, 0x55, VALUES, stream));
    require_cuda(cudaMemsetAsync(tensors[1].scales, 0x55, BLOCKS * sizeof(*tensors[1].scales), stream));
    require_cuda(cudaMemcpyAsync(tensors[1].rows, tensors[0].rows, 2 * VALUES, cudaMemcpyDefault, stream));
    for (int s = 0; s < 2; s++)
        quantize(&sides[s], &tensors[s], count, values, powers);
    require_cuda(cudaMemcpyAsync(found->quantized, tensors[1].quantized, VALUES, cudaMemcpyDefault, stream));
    require_cuda(
        cudaMemcpyAsync(found->scales, tensors[1].scales, BLOCKS * sizeof(*found->scales), cudaMemcpyDefault, stream));
    require_cuda(cudaStreamSynchronize(stream));
    for (uint32_t i = 0; i < VALUES; i++)
        if (found->quantized[i] != tensors[0].quantized[i] ||
            memcmp(&found->scales[i / STRAIT_EP_SCALE_VALUES], &tensors[0].scales[i / STRAIT_EP_SCALE_VALUES],
                   sizeof(float)) != 0) {
            fprintf(stderr,
                    "quantize: value %u, %04x: %02x with scale %a, on processors %02x with %a (%u rows of %u%s)\n", i,
                    tensors[0].rows[i], found->quantized[i], (double)found->scales[i / STRAIT_EP_SCALE_VALUES],
                    tensors[0].quantized[i], (double)tensors[0].scales[i / STRAIT_EP_SCALE_VALUES], count, values,
                    powers ? ", powers" : "");
            abort();
        }
}

static struct strait_ep_config config_of(uint32_t ranks, uint32_t sm_budget)
{
    return (struct strait_ep_config){.algorithm = STRAIT_EP_LOW_LATENCY,
                                     .experts = ranks,
                                     .tokens_max = 1,
                                     .row_bytes_max = 16,
                                     .topk_max = 1,
                                     .sm_budget = sm_budget};
}

/* As a graph of many, since one takes less than its launch: the tokens of a step of decoding. */
static void time_quantize(const struct side *side, uint32_t rank)
{
    enum { TOKENS = 128, HIDDEN = 7168 };
    const struct tensors tensors = take_device(TOKENS * HIDDEN);
    cudaEvent_t marks[2];
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    float ms;

    require_cuda(cudaMemsetAsync(tensors.rows, 0x3F, 2 * TOKENS * HIDDEN, side->stream));
    require_cuda(cudaStreamBeginCapture(side->stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < REPLAYS; i++)
        quantize(side, &tensors, TOKENS, HIDDEN, false);
    require_cuda(cudaStreamEndCapture(side->stream, &graph));
    require_cuda(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 2; i++)
        require_cuda(cudaEventCreate(&marks[i]));
    require_cuda(cudaGraphLaunch(exec, side->stream)); /* GPUs get faster */
    require_cuda(cudaEventRecord(marks[0], side->stream));
    require_cuda(cudaGraphLaunch(exec, side->stream));
    require_cuda(cudaEventRecord(marks[1], side->stream));
    require_cuda(cudaStreamSynchronize(side->stream));
    require_cuda(cudaEventElapsedTime(&ms, marks[0], marks[1]));
    if (rank == 0)
        printf("quantize: %d tokens, hidden %d, %u multiprocessors: %.2f us\n", TOKENS, HIDDEN, side->config.sm_budget,
               (double)ms * 1e3 / REPLAYS);
    for (int i = 0; i < 2; i++)
        require_cuda(cudaEventDestroy(marks[i]));
    require_cuda(cudaGraphExecDestroy(exec));
    require_cuda(cudaGraphDestroy(graph));
    drop_device(&tensors);
}

void run_quantize(struct member *member)
{
    static const uint32_t budgets[] = {1, 3, 16};
    struct rng rng = rng_init(setting.seed + member->rank);
    const struct tensors found = take_host();
    struct tensors tensors[2] = {take_host()};
    struct side sides[2];

    for (int b = 0; b < COUNT(budgets); b++) {
        make_groups(member, config_of(member->world->ranks, budgets[b]), true, sides);
        tensors[1] = take_device(VALUES);
        for (int round = 0; round < ROUNDS; round++) {
            const uint32_t most = round % 2 != 0 ? 7 : BLOCKS, blocks = round < 2 ? 1 : 1 + rng_below(&rng, most);
            const uint32_t rows = BLOCKS / blocks, count = round < 2 ? rows : rng_below(&rng, rows + 1);
            draw_rows(&rng, round < 2 ? 0 : rng_below(&rng, 5), tensors[0].rows);
            compare_sides(sides, tensors, &found, count, blocks * STRAIT_EP_SCALE_VALUES, round % 4 % 3 != 0);
        }
        if (!setting.alone)
            time_quantize(&sides[1], member->rank);
        drop_device(&tensors[1]);
        drop_groups(member, sides);
    }
    drop_host(&tensors[0]);
    drop_host(&found);
    if (member->rank == 0)
        printf("quantize: %d times %d rounds equal\n", COUNT(budgets), ROUNDS);
}
