/* Quantization on GPUs against its twin on processors, bit for bit: every value, and random ones, in rows of many
 * lengths. With memory of the host that a GPU reaches, or on the emulator of kernels.
 *
 *   ep_quantize [rounds [seed]] */
#include <cuda_runtime_api.h>
#include <string.h>

#include "ep/cuda/phases.h"
#include "ep/host.h"
#include "tests/support.h"

#define require_cuda(call) require((call) == cudaSuccess)

enum { VALUES_MAX = 65536, BLOCKS = VALUES_MAX / EP_SCALE_VALUES, MULTIPROCESSORS = 3, GUARD = 64 };

/* The same here and there. */
struct side {
    uint8_t *quantized; /* [VALUES_MAX + GUARD] */
    float *scales;      /* [BLOCKS + GUARD] */
};

static uint16_t *rows;
static struct side sides[2];

static void *allocate(size_t bytes)
{
    void *memory;
    require_cuda(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped));
    return memory;
}

/* Values of all kinds; `kind` 0: each once. */
static void draw_rows(struct rng *rng, uint32_t kind)
{
    const uint32_t middle = rng_below(rng, 256);
    for (uint32_t i = 0; i < VALUES_MAX; i++) {
        const uint32_t value = (uint32_t)rng_next(rng) & 0xFFFF, exponent = (middle + (value >> 7 & 7)) & 0xFF;
        rows[i] = (uint16_t)(kind == 0 ? i : kind == 1 ? value : (value & 0x807F) | exponent << 7);
    }
    for (uint32_t i = 0; i < 4 && kind > 2; i++) { /* a few that are not as the others */
        static const uint16_t odd[] = {0x7F80, 0xFF80, 0x7FC0, 0xFFFF, 0x7F7F, 0x0001, 0x8000};
        rows[rng_below(rng, VALUES_MAX)] = odd[rng_below(rng, COUNT(odd))];
    }
}

static void compare(struct ep_quantize_args args)
{
    for (int s = 0; s < 2; s++) {
        memset(sides[s].quantized, 0x55, VALUES_MAX + GUARD);
        memset(sides[s].scales, 0x55, (BLOCKS + GUARD) * sizeof(float));
        args.quantized = sides[s].quantized;
        args.scales = sides[s].scales;
        if (s == 0)
            require(ep_host_quantize(NULL, &args, NULL) == STRAIT_OK);
        else
            require_cuda(ep_cuda_quantize(&args, MULTIPROCESSORS, NULL));
    }
    require_cuda(cudaDeviceSynchronize());
    for (uint32_t i = 0; i < VALUES_MAX + GUARD; i++)
        if (sides[0].quantized[i] != sides[1].quantized[i]) {
            fprintf(stderr, "value %u, %04x of a block with scale %a: %02x, on processors %02x (%u rows of %u%s)\n", i,
                    i < VALUES_MAX ? rows[i] : 0, (double)sides[0].scales[i / EP_SCALE_VALUES], sides[1].quantized[i],
                    sides[0].quantized[i], args.row_count, args.values, args.powers ? ", powers" : "");
            abort();
        }
    require(memcmp(sides[0].scales, sides[1].scales, (BLOCKS + GUARD) * sizeof(float)) == 0);
}

int main(int argc, char **argv)
{
    const uint32_t rounds = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 0) : 40;
    struct rng rng = rng_init(argc > 2 ? strtoull(argv[2], NULL, 0) : 1);
    uint64_t values = 0;
    int devices = 0;

    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("skipped: there is no GPU\n");
        return 77;
    }
    rows = allocate(VALUES_MAX * sizeof(*rows));
    for (int s = 0; s < 2; s++)
        sides[s] = (struct side){allocate(VALUES_MAX + GUARD), allocate((BLOCKS + GUARD) * sizeof(float))};
    for (uint32_t round = 0; round < rounds; round++) {
        const uint32_t length = EP_SCALE_VALUES * (1 + rng_below(&rng, round % 2 ? 7 : BLOCKS));
        const uint32_t most = VALUES_MAX / length, few = most < 3 ? most : 3;
        struct ep_quantize_args args = {.rows = (const uint8_t *)rows,
                                        .row_count = rng_below(&rng, (round % 3 ? most : few) + 1),
                                        .values = length,
                                        .sm_budget = 1 + rng_below(&rng, 4),
                                        .powers = rng_below(&rng, 2)};
        if (round < 2) /* all there is */
            args.row_count = VALUES_MAX / (args.values = EP_SCALE_VALUES), args.powers = round;
        draw_rows(&rng, round < 2 ? 0 : rng_below(&rng, 5));
        compare(args);
        values += (uint64_t)args.row_count * args.values;
    }
    printf("%u rounds, %llu values equal\n", rounds, (unsigned long long)values);
    require_cuda(cudaFreeHost(rows));
    for (int s = 0; s < 2; s++) {
        require_cuda(cudaFreeHost(sides[s].quantized));
        require_cuda(cudaFreeHost(sides[s].scales));
    }
    return 0;
}
