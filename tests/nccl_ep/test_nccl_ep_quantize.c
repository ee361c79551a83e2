/* DS_FP8E3M4 of NCCL EP: what becomes of BF16 rows, in each layout, and what is refused. */
#include <string.h>
#include <unistd.h>

#include "tests/ep/quantized.h"
#include "tests/nccl_ep/ranks.h"
#include "tests/run_suite.h"

enum { HIDDEN = 1024, SCALES = HIDDEN / QUANTIZED_VALUES, ROWS = LOCAL * RANKS * TOKENS_MAX };

/* A rank's step. Tensors have room for the largest layout. */
struct step {
    unsigned rank, tokens;
    nep_group group;
    nep_handle handle;
    int64_t topk[TOKENS_MAX][TOPK];
    float weights[TOKENS_MAX][TOPK];
    uint16_t x[TOKENS_MAX][HIDDEN] __attribute__((aligned(16)));
    uint8_t rows[ROWS][HIDDEN] __attribute__((aligned(16)));
    float scales[ROWS][SCALES] __attribute__((aligned(16)));
    float row_weights[RANKS * TOKENS_MAX * TOPK];
    int32_t counts[EXPERTS];
    uint16_t made[ROWS][HIDDEN] __attribute__((aligned(16))), sums[TOKENS_MAX][HIDDEN] __attribute__((aligned(16)));
};

/* Of sizes that are not far apart, with a few of any. */
static void draw_token(unsigned rank, unsigned token, uint16_t values[HIDDEN])
{
    struct rng rng = rng_init(rank * 100 + token);
    for (unsigned h = 0; h < HIDDEN; h++) {
        const uint32_t value = (uint32_t)rng_next(&rng) & 0xFFFF;
        values[h] = (uint16_t)(rng_below(&rng, 500) == 0 ? value : (value & 0x83FF) + ((110 + token) << 7));
    }
}

static struct nep_group_config config_of(int algorithm, unsigned token_bytes)
{
    return STRUCT(nep_group_config, .version = 2, .algorithm = algorithm, .experts = EXPERTS, .tokens_max = TOKENS_MAX,
                  .token_bytes_max = token_bytes, .timeout_ns = 20000000000u);
}

static struct step *step_make(unsigned rank, nep_comm comm, int algorithm, int layout, unsigned token_bytes)
{
    const struct nep_group_config config = config_of(algorithm, token_bytes);
    struct step *step = aligned_alloc(64, (sizeof(*step) + 63) / 64 * 64);
    struct shaped topk;
    require(step != NULL);
    memset(step, 0, sizeof(*step));
    step->rank = rank;
    step->tokens = token_counts[rank];
    for (unsigned t = 0; t < step->tokens; t++) {
        for (unsigned k = 0; k < TOPK; k++) {
            step->topk[t][k] = expert_of(rank, t, k);
            step->weights[t][k] = weight_of(rank, t, k);
        }
        draw_token(rank, t, step->x[t]);
    }
    require(ncclEpCreateGroup(&step->group, comm, &config) == NEP_SUCCESS);
    require(ncclEpCreateHandle(&step->handle, step->group, layout,
                               shape(&topk, NEP_INT64, step->topk, step->tokens, TOPK, 0), NULL, NULL,
                               NULL) == NEP_SUCCESS);
    return step;
}

static void step_end(struct step *step)
{
    require(ncclEpHandleDestroy(step->handle) == NEP_SUCCESS);
    require(ncclEpGroupDestroy(step->group) == NEP_SUCCESS);
    free(step);
}

/* ---- What arrives ------------------------------------------------------------------------------------------------ */

/* Whether row `at` is the token's. */
static void check_row(const struct step *step, unsigned at, unsigned s, unsigned t, bool powers)
{
    uint16_t values[HIDDEN];
    draw_token(s, t, values);
    for (unsigned i = 0; i < SCALES; i++) {
        uint8_t expected[QUANTIZED_VALUES];
        const float scale = ref_quantize(values + i * QUANTIZED_VALUES, powers, expected);
        ck_assert_msg(memcmp(&scale, &step->scales[at][i], sizeof(scale)) == 0 &&
                          memcmp(expected, step->rows[at] + i * QUANTIZED_VALUES, sizeof(expected)) == 0,
                      "rank %u: row %u is not token %u of rank %u, quantized", step->rank, at, t, s);
    }
}

static void check_ranks(const struct step *step, bool powers)
{
    for (unsigned s = 0; s < RANKS; s++) {
        unsigned row = s * TOKENS_MAX;
        for (unsigned t = 0; t < token_counts[s]; t++)
            if (is_on(s, t, step->rank))
                check_row(step, row++, s, t, powers);
        require(step->counts[s] == (int32_t)(row - s * TOKENS_MAX));
    }
}

static void check_experts(const struct step *step, bool powers)
{
    for (unsigned e = 0; e < LOCAL; e++) {
        unsigned row = e * RANKS * TOKENS_MAX;
        for (unsigned s = 0; s < RANKS; s++)
            for (unsigned t = 0; t < token_counts[s]; t++)
                for (unsigned k = 0; k < TOPK; k++)
                    if (expert_of(s, t, k) == step->rank * LOCAL + e)
                        check_row(step, row++, s, t, powers);
        require(step->counts[e] == (int32_t)rows_of_expert(step->rank * LOCAL + e));
    }
}

/* The experts make BF16 of E4M3: ones, here. */
static void combine_ones(struct step *step)
{
    struct shaped rows, sums;
    for (unsigned i = 0; i < ROWS * HIDDEN; i++)
        step->made[i / HIDDEN][i % HIDDEN] = 0x3F80;
    const struct nep_combine_in in =
        STRUCT(nep_combine_in, .tokens = shape(&rows, NEP_BF16, step->made, RANKS, TOKENS_MAX, HIDDEN));
    const struct nep_combine_out out =
        STRUCT(nep_combine_out, .tokens = shape(&sums, NEP_BF16, step->sums, step->tokens, HIDDEN, 0));
    require(ncclEpCombine(step->handle, &in, &out, NULL, NULL) == NEP_SUCCESS);
    for (unsigned t = 0; t < step->tokens; t++) {
        static const uint16_t counts[] = {0, 0x3F80, 0x4000, 0x4040, 0x4080};
        require(step->sums[t][0] == counts[ranks_of(step->rank, t)] && step->sums[t][HIDDEN - 1] == step->sums[t][0]);
    }
}

static void run_layout(unsigned rank, nep_comm comm, int layout)
{
    const bool by_rank = layout == NEP_RANK_MAJOR;
    const size_t a = by_rank ? RANKS : LOCAL, b = by_rank ? TOKENS_MAX : RANKS * TOKENS_MAX;
    struct step *step = step_make(rank, comm, NEP_LOW_LATENCY, layout, 2 * HIDDEN);
    struct shaped tokens, weights, rows, scales, row_weights, counts;
    const struct nep_layout_info info =
        STRUCT(nep_layout_info, .expert_counts = by_rank ? NULL : shape(&counts, NEP_INT32, step->counts, LOCAL, 0, 0),
               .rank_counts = by_rank ? shape(&counts, NEP_INT32, step->counts, RANKS, 0, 0) : NULL);
    const struct nep_dispatch_in in =
        STRUCT(nep_dispatch_in, .tokens = shape(&tokens, NEP_BF16, step->x, step->tokens, HIDDEN, 0),
               .weights = by_rank ? shape(&weights, NEP_FP32, step->weights, step->tokens, TOPK, 0) : NULL);
    const struct nep_dispatch_out out =
        STRUCT(nep_dispatch_out, .tokens = shape(&rows, NEP_E4M3, step->rows, a, b, HIDDEN),
               .weights = by_rank ? shape(&row_weights, NEP_FP32, step->row_weights, RANKS, TOKENS_MAX, TOPK) : NULL,
               .scales = shape(&scales, NEP_FP32, step->scales, a, b, SCALES));
    for (unsigned i = 0; i < 4; i++) {
        const bool powers = i % 2 != 0, staged = i / 2 != 0;
        const struct nep_dispatch_config config =
            STRUCT(nep_dispatch_config, .send_only = staged, .round_scales = powers, .recipe = NEP_QUANT_E4M3);
        memset(step->rows, 0x55, sizeof(step->rows));
        memset(step->scales, 0x55, sizeof(step->scales));
        require(ncclEpDispatch(step->handle, &in, &out, &info, &config, NULL) == NEP_SUCCESS);
        require(!staged || ncclEpComplete(step->handle, NULL, NULL) == NEP_SUCCESS);
        if (by_rank)
            check_ranks(step, powers);
        else
            check_experts(step, powers);
    }
    if (by_rank)
        combine_ones(step);
    step_end(step);
}

static void run_rank_major(unsigned rank, nep_comm comm)
{
    run_layout(rank, comm, NEP_RANK_MAJOR);
}

static void run_expert_major(unsigned rank, nep_comm comm)
{
    run_layout(rank, comm, NEP_EXPERT_MAJOR);
}

TEST(rank_major_has_e4m3_rows_with_scales)
{
    run_ranks(RANKS, run_rank_major);
}
END_TEST

TEST(expert_major_has_e4m3_rows_with_scales)
{
    run_ranks(RANKS, run_expert_major);
}
END_TEST

/* ---- What is refused --------------------------------------------------------------------------------------------- */

/* Arguments of a dispatch, of which a test spoils one. */
struct arguments {
    struct shaped tokens, weights, given_scales, rows, scales, row_weights;
    struct nep_dispatch_in in;
    struct nep_dispatch_out out;
    struct nep_dispatch_config config;
};

/* For one rank. */
static void fill_arguments(struct arguments *with, struct step *step)
{
    with->in = STRUCT(nep_dispatch_in, .tokens = shape(&with->tokens, NEP_BF16, step->x, step->tokens, HIDDEN, 0),
                      .weights = shape(&with->weights, NEP_FP32, step->weights, step->tokens, TOPK, 0));
    with->out = STRUCT(nep_dispatch_out, .tokens = shape(&with->rows, NEP_E4M3, step->rows, 1, TOKENS_MAX, HIDDEN),
                       .weights = shape(&with->row_weights, NEP_FP32, step->row_weights, 1, TOKENS_MAX, TOPK),
                       .scales = shape(&with->scales, NEP_FP32, step->scales, 1, TOKENS_MAX, SCALES));
    with->config = STRUCT(nep_dispatch_config, .recipe = NEP_QUANT_E4M3);
    shape(&with->given_scales, NEP_FP32, step->scales[TOKENS_MAX], step->tokens, SCALES, 0);
}

/* Refused, with a line that says so. */
static void refuse(struct step *step, const struct arguments *with, nep_result result, const char *line)
{
    char text[1000] = "";
    int ends[2];
    const int kept = dup(STDERR_FILENO);
    require(pipe(ends) == 0 && kept >= 0 && dup2(ends[1], STDERR_FILENO) >= 0);
    const nep_result found = ncclEpDispatch(step->handle, &with->in, &with->out, NULL, &with->config, NULL);
    require(dup2(kept, STDERR_FILENO) >= 0 && close(kept) == 0 && close(ends[1]) == 0);
    require(read(ends[0], text, sizeof(text) - 1) >= 0 && close(ends[0]) == 0);
    ck_assert_msg(found == result && strstr(text, line) != NULL, "%s: result %d, '%s'", line, found, text);
}

static void run_refused(unsigned rank, nep_comm comm)
{
    struct step *step = step_make(rank, comm, NEP_LOW_LATENCY, NEP_RANK_MAJOR, HIDDEN + SCALES * sizeof(float));
    struct arguments with;
#define REFUSED(line, ...)                               \
    do {                                                 \
        fill_arguments(&with, step);                     \
        __VA_ARGS__;                                     \
        refuse(step, &with, NEP_INVALID_ARGUMENT, line); \
    } while (0)
    setenv("NCCL_DEBUG", "WARN", 1);
    REFUSED("rows of a multiple of 512, not of 640", with.tokens.sizes[1] = with.rows.sizes[2] = 640,
            with.scales.sizes[2] = 5);
    REFUSED("rows of a multiple of 512, not of 100", with.tokens.sizes[1] = with.rows.sizes[2] = 100);
    REFUSED("rows of a multiple of 512, not of 0", with.tokens.sizes[1] = with.rows.sizes[2] = 0);
    REFUSED("1584 bytes of a token and its scales", with.tokens.sizes[1] = with.rows.sizes[2] = 1536);
    REFUSED("of ncclBfloat16, not type 10 of 6", with.tokens.tensor.type = NEP_FP16);
    REFUSED("not type 11 of 9", with.rows.tensor.type = NEP_E5M2);
    REFUSED("not type 9 of 9", with.rows.tensor.type = NEP_BF16);
    REFUSED("inputs->scales has to be NULL", with.in.scales = &with.given_scales.tensor);
    REFUSED("needs outputs->scales", with.out.scales = NULL);
    REFUSED("needs outputs->scales", with.scales.tensor.type = NEP_BF16);
    REFUSED("needs outputs->scales", with.scales.sizes[2] = SCALES / 2);
    REFUSED("needs outputs->scales", with.scales.sizes[1] = TOKENS_MAX - 1);
    REFUSED("needs outputs->scales", with.scales.tensor.dims = 2, with.scales.sizes[0] = TOKENS_MAX,
            with.scales.sizes[1] = SCALES);
    REFUSED("outputs->tokens has other rows", with.rows.sizes[2] = HIDDEN / 2);
    REFUSED("not the 6 of topk_idx", with.tokens.sizes[0]--);
    REFUSED("multiples of 16", with.tokens.tensor.data = step->x[0] + 4);
#undef REFUSED
    fill_arguments(&with, step);
    require(ncclEpDispatch(step->handle, &with.in, &with.out, NULL, &with.config, NULL) == NEP_SUCCESS);
    step_end(step);
}

TEST(what_cannot_be_quantized_is_refused)
{
    run_ranks(1, run_refused);
}
END_TEST

static void run_high_throughput(unsigned rank, nep_comm comm)
{
    struct step *step = step_make(rank, comm, NEP_HIGH_THROUGHPUT, NEP_FLAT, 2 * HIDDEN);
    struct arguments with;
    setenv("NCCL_DEBUG", "WARN", 1);
    fill_arguments(&with, step);
    refuse(step, &with, NEP_INVALID_USAGE, "DS_FP8E3M4 is for LL alone");
    step_end(step);
}

TEST(high_throughput_does_not_quantize)
{
    run_ranks(1, run_high_throughput);
}
END_TEST

int main(void)
{
    return run_tests("nccl_ep_quantize", NULL, NULL);
}
