/* NCCL EP's functions as a program calls them: ranks are processes with a fake NCCL whose device is the host. */
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/nccl_ep/ranks.h"
#include "tests/run_suite.h"

/* ---- Sizes and offsets, as NCCL EP's header has them ------------------------------------------------------------- */

#define SIZE(type, bytes)       _Static_assert(sizeof(struct type) == (bytes), #type)
#define OFFSET(type, field, at) _Static_assert(offsetof(struct type, field) == (at), #type "." #field)
SIZE(nep_tensor, 48);
OFFSET(nep_tensor, dims, 8);
OFFSET(nep_tensor, type, 12);
OFFSET(nep_tensor, data, 16);
OFFSET(nep_tensor, window, 24);
OFFSET(nep_tensor, window_offset, 32);
OFFSET(nep_tensor, sizes, 40);
SIZE(nep_group_config, 112);
OFFSET(nep_group_config, version, 8);
OFFSET(nep_group_config, algorithm, 12);
OFFSET(nep_group_config, experts, 16);
OFFSET(nep_group_config, tokens_max, 20);
OFFSET(nep_group_config, receive_max, 24);
OFFSET(nep_group_config, token_bytes_max, 28);
OFFSET(nep_group_config, rdma_bytes, 32);
OFFSET(nep_group_config, qps, 40);
OFFSET(nep_group_config, channels, 44);
OFFSET(nep_group_config, sms, 48);
OFFSET(nep_group_config, allocator, 56);
OFFSET(nep_group_config, mask, 80);
OFFSET(nep_group_config, timeout_ns, 88);
OFFSET(nep_group_config, zero_copy, 96);
OFFSET(nep_group_config, overflow, 100);
OFFSET(nep_group_config, topk_max, 104);
SIZE(nep_layout_info, 48);
OFFSET(nep_layout_info, expert_counts, 8);
OFFSET(nep_layout_info, rank_counts, 16);
OFFSET(nep_layout_info, expert_offsets, 24);
OFFSET(nep_layout_info, total, 32);
OFFSET(nep_layout_info, ids, 40);
SIZE(nep_dispatch_in, 32);
OFFSET(nep_dispatch_in, tokens, 8);
OFFSET(nep_dispatch_in, weights, 16);
OFFSET(nep_dispatch_in, scales, 24);
SIZE(nep_dispatch_out, 40);
OFFSET(nep_dispatch_out, weights, 16);
OFFSET(nep_dispatch_out, scales, 24);
OFFSET(nep_dispatch_out, topk, 32);
SIZE(nep_combine_in, 32);
OFFSET(nep_combine_in, weights, 16);
OFFSET(nep_combine_in, scales, 24);
SIZE(nep_combine_out, 24);
OFFSET(nep_combine_out, weights, 16);
SIZE(nep_handle_config, 16);
OFFSET(nep_handle_config, alignment, 8);
SIZE(nep_dispatch_config, 24);
OFFSET(nep_dispatch_config, send_only, 8);
OFFSET(nep_dispatch_config, round_scales, 12);
OFFSET(nep_dispatch_config, pass, 16);
OFFSET(nep_dispatch_config, recipe, 20);
SIZE(nep_combine_config, 20);
OFFSET(nep_combine_config, send_only, 8);
OFFSET(nep_combine_config, pass, 12);
OFFSET(nep_combine_config, recipe, 16);
SIZE(nep_empty_config, 8);

/* ---- A rank's step ----------------------------------------------------------------------------------------------- */

enum { HIDDEN = 32, SCALES = 16 };

/* Small whole numbers: sums of a few are exact in every type. */
static float value_of(unsigned rank, unsigned token, unsigned h)
{
    return (float)(1 + rank * 8 + token + h % 5);
}

static float scale_of(unsigned rank, unsigned token, unsigned i)
{
    return (float)(rank * 100 + token * 10 + i);
}

static unsigned rows_of(unsigned d)
{
    unsigned count = 0;
    for (unsigned s = 0; s < RANKS; s++)
        for (unsigned t = 0; t < token_counts[s]; t++)
            count += is_on(s, t, d);
    return count;
}

static struct nep_group_config config_of(int algorithm)
{
    struct nep_group_config config =
        STRUCT(nep_group_config, .version = 2, .algorithm = algorithm, .experts = EXPERTS, .tokens_max = TOKENS_MAX,
               .token_bytes_max = 8 * HIDDEN * sizeof(float), .timeout_ns = 20000000000u);
    if (algorithm == NEP_HIGH_THROUGHPUT)
        config.receive_max = RANKS * TOKENS_MAX;
    return config;
}

/* A rank's step. Tensors have room for the largest layout. */
struct step {
    unsigned rank, tokens;
    nep_comm comm;
    nep_group group;
    nep_handle handle;
    int64_t topk[TOKENS_MAX][TOPK];
    float weights[TOKENS_MAX][TOPK], x[TOKENS_MAX][HIDDEN] __attribute__((aligned(16)));
    float scales[TOKENS_MAX][SCALES] __attribute__((aligned(16)));
    float rows[LOCAL * RANKS * TOKENS_MAX][HIDDEN] __attribute__((aligned(16)));
    float row_scales[LOCAL * RANKS * TOKENS_MAX][SCALES] __attribute__((aligned(16)));
    float row_weights[LOCAL * RANKS * TOKENS_MAX * TOPK];
    int32_t row_topk[RANKS * TOKENS_MAX * TOPK]; /* LL */
    int64_t row_topk_ht[RANKS * TOKENS_MAX * TOPK];
    float sums[TOKENS_MAX][HIDDEN] __attribute__((aligned(16))), gradients[TOKENS_MAX][TOPK];
    int32_t counts[EXPERTS];
};

static struct step *step_make(unsigned rank, nep_comm comm, int algorithm)
{
    const struct nep_group_config config = config_of(algorithm);
    struct step *step = aligned_alloc(64, (sizeof(*step) + 63) / 64 * 64);
    require(step != NULL);
    memset(step, 0, sizeof(*step));
    step->rank = rank;
    step->comm = comm;
    step->tokens = token_counts[rank];
    for (unsigned t = 0; t < step->tokens; t++) {
        for (unsigned k = 0; k < TOPK; k++) {
            step->topk[t][k] = expert_of(rank, t, k);
            step->weights[t][k] = weight_of(rank, t, k);
        }
        for (unsigned h = 0; h < HIDDEN; h++)
            step->x[t][h] = value_of(rank, t, h);
        for (unsigned i = 0; i < SCALES; i++)
            step->scales[t][i] = scale_of(rank, t, i);
    }
    require(ncclEpCreateGroup(&step->group, comm, &config) == NEP_SUCCESS);
    return step;
}

static void step_end(struct step *step)
{
    require(ncclEpHandleDestroy(step->handle) == NEP_SUCCESS);
    require(ncclEpGroupDestroy(step->group) == NEP_SUCCESS);
    free(step);
}

static void make_handle(struct step *step, int layout, const struct nep_layout_info *info, size_t alignment)
{
    const struct nep_handle_config config = STRUCT(nep_handle_config, .alignment = alignment);
    struct shaped topk;
    require(ncclEpCreateHandle(&step->handle, step->group, layout,
                               shape(&topk, NEP_INT64, step->topk, step->tokens, TOPK, 0), info, &config,
                               NULL) == NEP_SUCCESS);
}

/* Whether row `at` is the token's. */
static void check_row(const struct step *step, unsigned at, unsigned s, unsigned t)
{
    for (unsigned h = 0; h < HIDDEN; h++)
        ck_assert_msg(step->rows[at][h] == value_of(s, t, h), "rank %u: row %u is not token %u of rank %u", step->rank,
                      at, t, s);
}

static void check_sums(const struct step *step, float (*expected)(unsigned rank, unsigned token, unsigned h))
{
    for (unsigned t = 0; t < step->tokens; t++)
        for (unsigned h = 0; h < HIDDEN; h++)
            ck_assert_msg(step->sums[t][h] == expected(step->rank, t, h), "rank %u, token %u: %g, not %g", step->rank,
                          t, step->sums[t][h], expected(step->rank, t, h));
}

static float times_ranks(unsigned rank, unsigned token, unsigned h)
{
    return (float)ranks_of(rank, token) * value_of(rank, token, h);
}

static unsigned experts_of(unsigned rank, unsigned token)
{
    unsigned count = 0;
    for (unsigned k = 0; k < TOPK; k++)
        count += expert_of(rank, token, k) >= 0;
    return count;
}

static float times_experts(unsigned rank, unsigned token, unsigned h)
{
    return (float)experts_of(rank, token) * value_of(rank, token, h);
}

static float times_weights(unsigned rank, unsigned token, unsigned h)
{
    float sum = 0;
    for (unsigned k = 0; k < TOPK; k++)
        sum += expert_of(rank, token, k) >= 0 ? weight_of(rank, token, k) : 0;
    return sum * value_of(rank, token, h);
}

/* ---- HT FLAT: forward, backward, scales -------------------------------------------------------------------------- */

static void combine(struct step *step, size_t a, size_t b, bool weights, const struct nep_combine_config *config)
{
    struct shaped in, out, given;
    struct nep_combine_in inputs =
        STRUCT(nep_combine_in, .tokens = b != 0 ? shape(&in, NEP_FP32, step->rows, a, b, HIDDEN)
                                                : shape(&in, NEP_FP32, step->rows, a, HIDDEN, 0));
    struct nep_combine_out outputs =
        STRUCT(nep_combine_out, .tokens = shape(&out, NEP_FP32, step->sums, step->tokens, HIDDEN, 0));
    if (weights)
        outputs.weights = shape(&given, NEP_FP32, step->weights, step->tokens, TOPK, 0);
    require(ncclEpCombine(step->handle, &inputs, &outputs, config, NULL) == NEP_SUCCESS);
}

static void check_flat(const struct step *step)
{
    unsigned at = 0;
    for (unsigned s = 0; s < RANKS; s++)
        for (unsigned t = 0; t < token_counts[s]; t++) {
            if (!is_on(s, t, step->rank))
                continue;
            check_row(step, at, s, t);
            for (unsigned i = 0; i < SCALES; i++)
                require(step->row_scales[at][i] == scale_of(s, t, i));
            for (unsigned k = 0; k < TOPK; k++) {
                const int64_t expert = expert_of(s, t, k);
                const bool here = expert >= 0 && (unsigned)expert / LOCAL == step->rank;
                require(step->row_topk_ht[at * TOPK + k] == (here ? expert : -1)); /* global ids */
                require(step->row_weights[at * TOPK + k] == (here ? weight_of(s, t, k) : 0));
            }
            at++;
        }
    for (; at < RANKS * TOKENS_MAX; at++)
        require(step->row_topk_ht[at * TOPK] == -1);
}

static void backward_flat(struct step *step)
{
    struct shaped tokens, rows, weights, gradients, sums;
    const struct nep_dispatch_config dispatch = STRUCT(nep_dispatch_config, .pass = NEP_BACKWARD);
    const struct nep_combine_config config = STRUCT(nep_combine_config, .pass = NEP_BACKWARD);
    const struct nep_dispatch_in in =
        STRUCT(nep_dispatch_in, .tokens = shape(&tokens, NEP_FP32, step->x, step->tokens, HIDDEN, 0));
    const struct nep_dispatch_out out =
        STRUCT(nep_dispatch_out, .tokens = shape(&rows, NEP_FP32, step->rows, RANKS * TOKENS_MAX, HIDDEN, 0));
    memset(step->rows, 0, sizeof(step->rows));
    require(ncclEpDispatch(step->handle, &in, &out, NULL, &dispatch, NULL) == NEP_SUCCESS);
    const struct nep_combine_in inputs =
        STRUCT(nep_combine_in, .tokens = &rows.tensor,
               .weights = shape(&weights, NEP_FP32, step->row_weights, RANKS * TOKENS_MAX, TOPK, 0));
    const struct nep_combine_out outputs =
        STRUCT(nep_combine_out, .tokens = shape(&sums, NEP_FP32, step->sums, step->tokens, HIDDEN, 0),
               .weights = shape(&gradients, NEP_FP32, step->gradients, step->tokens, TOPK, 0));
    require(ncclEpCombine(step->handle, &inputs, &outputs, &config, NULL) == NEP_SUCCESS);
    check_sums(step, times_ranks);
    for (unsigned t = 0; t < step->tokens; t++)
        for (unsigned k = 0; k < TOPK; k++)
            require(step->gradients[t][k] == (step->topk[t][k] >= 0 ? step->weights[t][k] : 0));
}

static void run_flat(unsigned rank, nep_comm comm)
{
    struct step *step = step_make(rank, comm, NEP_HIGH_THROUGHPUT);
    struct shaped counts, total, tokens, weights, scales, rows, row_weights, row_scales, row_topk;
    int32_t received[LOCAL], all;
    const struct nep_layout_info info =
        STRUCT(nep_layout_info, .expert_counts = shape(&counts, NEP_INT32, received, LOCAL, 0, 0),
               .total = shape(&total, NEP_INT32, &all, 1, 0, 0), .ids = NEP_IDS_GLOBAL);
    make_handle(step, NEP_FLAT, &info, 0);
    require(all == (int32_t)rows_of(rank));
    for (unsigned e = 0; e < LOCAL; e++)
        require(received[e] == (int32_t)rows_of_expert(rank * LOCAL + e));

    const struct nep_dispatch_config config = STRUCT(nep_dispatch_config, .recipe = NEP_QUANT_FORWARD);
    const struct nep_dispatch_in in =
        STRUCT(nep_dispatch_in, .tokens = shape(&tokens, NEP_FP32, step->x, step->tokens, HIDDEN, 0),
               .weights = shape(&weights, NEP_FP32, step->weights, step->tokens, TOPK, 0),
               .scales = shape(&scales, NEP_FP32, step->scales, step->tokens, SCALES, 0));
    const struct nep_dispatch_out out =
        STRUCT(nep_dispatch_out, .tokens = shape(&rows, NEP_FP32, step->rows, RANKS * TOKENS_MAX, HIDDEN, 0),
               .weights = shape(&row_weights, NEP_FP32, step->row_weights, RANKS * TOKENS_MAX, TOPK, 0),
               .scales = shape(&row_scales, NEP_FP32, step->row_scales, RANKS * TOKENS_MAX, SCALES, 0),
               .topk = shape(&row_topk, NEP_INT64, step->row_topk_ht, RANKS * TOKENS_MAX, TOPK, 0));
    require(ncclEpDispatch(step->handle, &in, &out, NULL, &config, NULL) == NEP_SUCCESS);
    check_flat(step);
    combine(step, RANKS * TOKENS_MAX, 0, false, NULL);
    check_sums(step, times_ranks);
    backward_flat(step);
    step_end(step);
}

TEST(ht_flat_brings_each_token_once_with_weights_and_scales_and_goes_back)
{
    run_ranks(RANKS, run_flat);
}
END_TEST

/* ---- HT FLAT in windows --------------------------------------------------------------------------------------------
 */

enum { WINDOW_OFFSET = 48, WINDOW_BYTES = 1 << 16 };

/* Memory of all ranks, mapped by all; the program's own functions stand for those of an NCCL that has windows. */
struct ncclWindow_vidmem {
    uint8_t *base;
    unsigned rank;
    bool refuses; /* peers are not in reach */
    unsigned told;
};
static struct ncclWindow_vidmem window;

__attribute__((visibility("default"))) nep_result ncclWinGetUserPtr(nep_comm comm, nep_window of, void **pointer);
__attribute__((visibility("default"))) nep_result ncclGetPeerDevicePointer(nep_window of, size_t offset, int peer,
                                                                           void **pointer);

nep_result ncclWinGetUserPtr(nep_comm comm, nep_window of, void **pointer)
{
    (void)comm;
    *pointer = of->base + (size_t)of->rank * WINDOW_BYTES;
    return NEP_SUCCESS;
}

nep_result ncclGetPeerDevicePointer(nep_window of, size_t offset, int peer, void **pointer)
{
    of->told++;
    *pointer = of->base + (size_t)peer * WINDOW_BYTES + offset;
    return of->refuses ? NEP_INVALID_USAGE : NEP_SUCCESS;
}

static struct nep_tensor *in_window(struct nep_tensor *tensor)
{
    tensor->data = NULL;
    tensor->window = &window;
    tensor->window_offset = WINDOW_OFFSET;
    return tensor;
}

static void run_windows(unsigned rank, nep_comm comm)
{
    struct step *step = step_make(rank, comm, NEP_HIGH_THROUGHPUT);
    struct shaped tokens, weights, rows, row_weights, sums;
    uint8_t *own = window.base + (size_t)rank * WINDOW_BYTES;

    window.rank = rank;
    make_handle(step, NEP_FLAT, NULL, 0);
    const struct nep_dispatch_in in =
        STRUCT(nep_dispatch_in, .tokens = shape(&tokens, NEP_FP32, step->x, step->tokens, HIDDEN, 0),
               .weights = shape(&weights, NEP_FP32, step->weights, step->tokens, TOPK, 0));
    const struct nep_dispatch_out out =
        STRUCT(nep_dispatch_out, .tokens = in_window(shape(&rows, NEP_FP32, NULL, RANKS * TOKENS_MAX, HIDDEN, 0)),
               .weights = shape(&row_weights, NEP_FP32, step->row_weights, RANKS * TOKENS_MAX, TOPK, 0));
    const struct nep_combine_in inputs = STRUCT(nep_combine_in, .tokens = &rows.tensor);
    const struct nep_combine_out outputs =
        STRUCT(nep_combine_out, .tokens = shape(&sums, NEP_FP32, step->sums, step->tokens, HIDDEN, 0));
    for (unsigned turn = 0; turn < 3; turn++) {
        memset(step->sums, 0, sizeof(step->sums));
        require(ncclEpDispatch(step->handle, &in, &out, NULL, NULL, NULL) == NEP_SUCCESS);
        memcpy(step->rows, own + WINDOW_OFFSET, RANKS * TOKENS_MAX * sizeof(step->rows[0]));
        unsigned at = 0;
        for (unsigned s = 0; s < RANKS; s++)
            for (unsigned t = 0; t < token_counts[s]; t++)
                if (is_on(s, t, rank))
                    check_row(step, at++, s, t);
        require(ncclEpCombine(step->handle, &inputs, &outputs, NULL, NULL) == NEP_SUCCESS);
        check_sums(step, times_ranks);
    }
    require(window.refuses ? window.told > 0 : window.told == 6 * RANKS);
    step_end(step);
}

/* In place, and by a copy where peers are not in reach. */
TEST_LOOP(ht_flat_goes_straight_into_windows, 2)
{
    void *base = mmap(NULL, RANKS * WINDOW_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    require(base != MAP_FAILED);
    memset(base, 0x55, RANKS * WINDOW_BYTES);
    window = (struct ncclWindow_vidmem){.base = base, .refuses = _i};
    run_ranks(RANKS, run_windows);
    require(munmap(base, RANKS * WINDOW_BYTES) == 0);
}
END_TEST

/* ---- HT EXPERT_MAJOR --------------------------------------------------------------------------------------------- */

enum { ALIGNMENT = 4, SLOTS = 40 };

static void run_zones(unsigned rank, nep_comm comm)
{
    struct step *step = step_make(rank, comm, NEP_HIGH_THROUGHPUT);
    struct shaped counts, offsets, total, tokens, weights, rows, row_weights;
    int64_t received[LOCAL], begins[LOCAL], all;
    const struct nep_layout_info info =
        STRUCT(nep_layout_info, .expert_counts = shape(&counts, NEP_INT64, received, LOCAL, 0, 0),
               .expert_offsets = shape(&offsets, NEP_INT64, begins, LOCAL, 0, 0),
               .total = shape(&total, NEP_INT64, &all, 1, 0, 0));
    make_handle(step, NEP_EXPERT_MAJOR, &info, ALIGNMENT);
    int64_t at = 0;
    for (unsigned e = 0; e < LOCAL; e++) {
        const int64_t padded = (rows_of_expert(rank * LOCAL + e) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        ck_assert_int_eq(begins[e], at);
        ck_assert_int_eq(received[e], padded);
        at += padded;
    }
    ck_assert_int_eq(all, at);
    require(at <= SLOTS);

    const struct nep_dispatch_in in =
        STRUCT(nep_dispatch_in, .tokens = shape(&tokens, NEP_FP32, step->x, step->tokens, HIDDEN, 0),
               .weights = shape(&weights, NEP_FP32, step->weights, step->tokens, TOPK, 0));
    const struct nep_dispatch_out out =
        STRUCT(nep_dispatch_out, .tokens = shape(&rows, NEP_FP32, step->rows, SLOTS, HIDDEN, 0),
               .weights = shape(&row_weights, NEP_FP32, step->row_weights, SLOTS, 0, 0));
    memset(step->rows, 0x55, sizeof(step->rows));
    require(ncclEpDispatch(step->handle, &in, &out, NULL, NULL, NULL) == NEP_SUCCESS);
    for (unsigned e = 0; e < LOCAL; e++) {
        unsigned row = (unsigned)begins[e];
        for (unsigned s = 0; s < RANKS; s++)
            for (unsigned t = 0; t < token_counts[s]; t++)
                for (unsigned k = 0; k < TOPK; k++)
                    if (expert_of(s, t, k) == rank * LOCAL + e) {
                        require(step->row_weights[row] == weight_of(s, t, k));
                        check_row(step, row++, s, t);
                    }
        for (; row < (unsigned)(begins[e] + received[e]); row++)
            for (unsigned h = 0; h < HIDDEN; h++)
                require(step->rows[row][h] == 0);
    }
    combine(step, SLOTS, 0, false, NULL);
    check_sums(step, times_experts);
    step_end(step);
}

TEST(ht_expert_major_has_padded_zones_whose_gaps_are_zero)
{
    run_ranks(RANKS, run_zones);
}
END_TEST

/* ---- LL ---------------------------------------------------------------------------------------------------------- */

static void check_rank_major(const struct step *step, const int32_t *from)
{
    for (unsigned s = 0; s < RANKS; s++) {
        unsigned j = 0;
        for (unsigned t = 0; t < token_counts[s]; t++) {
            if (!is_on(s, t, step->rank))
                continue;
            const unsigned at = s * TOKENS_MAX + j++;
            check_row(step, at, s, t);
            for (unsigned k = 0; k < TOPK; k++) {
                const int64_t expert = expert_of(s, t, k);
                const bool here = expert >= 0 && (unsigned)expert / LOCAL == step->rank;
                require(step->row_topk[at * TOPK + k] == (here ? (int32_t)expert % LOCAL : -1));
                require(step->row_weights[at * TOPK + k] == (here ? weight_of(s, t, k) : 0));
            }
        }
        require(from[s] == (int32_t)j);
        for (; j < TOKENS_MAX; j++)
            require(step->row_topk[(s * TOKENS_MAX + j) * TOPK] == -1);
    }
}

static void run_rank_major(unsigned rank, nep_comm comm)
{
    struct step *step = step_make(rank, comm, NEP_LOW_LATENCY);
    struct shaped tokens, weights, rows, row_weights, row_topk, counts;
    int32_t from[RANKS];
    const struct nep_dispatch_config later = STRUCT(nep_dispatch_config, .send_only = 1);
    const struct nep_combine_config combine_later = STRUCT(nep_combine_config, .send_only = 1);
    const struct nep_layout_info info =
        STRUCT(nep_layout_info, .rank_counts = shape(&counts, NEP_INT32, from, RANKS, 0, 0));
    make_handle(step, NEP_RANK_MAJOR, NULL, 0);
    const struct nep_dispatch_in in =
        STRUCT(nep_dispatch_in, .tokens = shape(&tokens, NEP_FP32, step->x, step->tokens, HIDDEN, 0),
               .weights = shape(&weights, NEP_FP32, step->weights, step->tokens, TOPK, 0));
    const struct nep_dispatch_out out =
        STRUCT(nep_dispatch_out, .tokens = shape(&rows, NEP_FP32, step->rows, RANKS, TOKENS_MAX, HIDDEN),
               .weights = shape(&row_weights, NEP_FP32, step->row_weights, RANKS, TOKENS_MAX, TOPK),
               .topk = shape(&row_topk, NEP_INT32, step->row_topk, RANKS, TOKENS_MAX, TOPK));
    for (int staged = 0; staged < 2; staged++) {
        memset(step->rows, 0, sizeof(step->rows));
        require(ncclEpDispatch(step->handle, &in, &out, &info, staged ? &later : NULL, NULL) == NEP_SUCCESS);
        require(!staged || ncclEpComplete(step->handle, NULL, NULL) == NEP_SUCCESS);
        check_rank_major(step, from);
        combine(step, RANKS, TOKENS_MAX, false, staged ? &combine_later : NULL);
        require(!staged || ncclEpComplete(step->handle, NULL, NULL) == NEP_SUCCESS);
        check_sums(step, times_ranks);
    }
    step_end(step);
}

TEST(ll_rank_major_has_a_place_for_each_token_in_one_call_and_in_two)
{
    run_ranks(RANKS, run_rank_major);
}
END_TEST

static void run_experts(unsigned rank, nep_comm comm)
{
    struct step *step = step_make(rank, comm, NEP_LOW_LATENCY);
    struct shaped tokens, rows, counts;
    const struct nep_layout_info info =
        STRUCT(nep_layout_info, .expert_counts = shape(&counts, NEP_INT32, step->counts, LOCAL, 0, 0));
    make_handle(step, NEP_EXPERT_MAJOR, NULL, 0);
    const struct nep_dispatch_in in =
        STRUCT(nep_dispatch_in, .tokens = shape(&tokens, NEP_FP32, step->x, step->tokens, HIDDEN, 0));
    const struct nep_dispatch_out out =
        STRUCT(nep_dispatch_out, .tokens = shape(&rows, NEP_FP32, step->rows, LOCAL, RANKS * TOKENS_MAX, HIDDEN));
    require(ncclEpDispatch(step->handle, &in, &out, &info, NULL, NULL) == NEP_SUCCESS);
    for (unsigned e = 0; e < LOCAL; e++) {
        unsigned row = e * RANKS * TOKENS_MAX;
        require(step->counts[e] == (int32_t)rows_of_expert(rank * LOCAL + e));
        for (unsigned s = 0; s < RANKS; s++)
            for (unsigned t = 0; t < token_counts[s]; t++)
                for (unsigned k = 0; k < TOPK; k++)
                    if (expert_of(s, t, k) == rank * LOCAL + e)
                        check_row(step, row++, s, t);
    }
    combine(step, LOCAL, RANKS * TOKENS_MAX, true, NULL);
    check_sums(step, times_weights);
    step_end(step);
}

TEST(ll_expert_major_weighs_the_rows_that_come_back)
{
    run_ranks(RANKS, run_experts);
}
END_TEST

/* ---- Ranks that are left out ------------------------------------------------------------------------------------- */

static void run_mask(unsigned rank, nep_comm comm)
{
    struct nep_group_config config = config_of(NEP_LOW_LATENCY);
    int mask[2] = {7, 7}, error = 7;
    nep_group group;
    config.mask = 1;
    require(ncclEpCreateGroup(&group, comm, &config) == NEP_SUCCESS);
    require(ncclEpMaskQuery(group, mask, NULL) == NEP_SUCCESS && mask[0] == 1 && mask[1] == 1);
    mask[1 - rank] = 0;
    require(ncclEpMaskUpdate(group, mask, NULL) == NEP_SUCCESS);
    mask[0] = mask[1] = 7;
    require(ncclEpMaskQuery(group, mask, NULL) == NEP_SUCCESS && mask[rank] == 1 && mask[1 - rank] == 0);
    require(ncclEpMaskClean(group, NULL) == NEP_SUCCESS);
    require(ncclEpMaskQuery(group, mask, NULL) == NEP_SUCCESS && mask[0] == 1 && mask[1] == 1);
    require(ncclEpGetAsyncError(group, &error) == NEP_SUCCESS && error == 0);
    require(ncclEpErrorClear(group) == NEP_SUCCESS);
    require(ncclEpGroupDestroy(group) == NEP_SUCCESS);
}

TEST(a_mask_is_asked_for_set_and_cleaned)
{
    run_ranks(2, run_mask);
}
END_TEST

/* ---- What is refused --------------------------------------------------------------------------------------------- */

static void run_refused_configs(unsigned rank, nep_comm comm)
{
    static const struct {
        size_t offset;
        unsigned value;
    } wrong[] = {
        {offsetof(struct nep_group_config, head.magic), 1},
        {offsetof(struct nep_group_config, head.size), NEP_GROUP_CONFIG_V1 - 1},
        {offsetof(struct nep_group_config, version), 0},
        {offsetof(struct nep_group_config, algorithm), 2},
        {offsetof(struct nep_group_config, experts), 0},
        {offsetof(struct nep_group_config, tokens_max), 0},
        {offsetof(struct nep_group_config, token_bytes_max), 0},
        {offsetof(struct nep_group_config, token_bytes_max), 24},
        {offsetof(struct nep_group_config, receive_max), TOKENS_MAX - 1},
        {offsetof(struct nep_group_config, mask), 1},
        {offsetof(struct nep_group_config, overflow), 3},
        {offsetof(struct nep_group_config, zero_copy), 3},
        {offsetof(struct nep_group_config, topk_max), EXPERTS + 1},
    };
    (void)rank;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct nep_group_config config = config_of(NEP_HIGH_THROUGHPUT);
        nep_group group = NULL;
        memcpy((char *)&config + wrong[i].offset, &wrong[i].value, sizeof(wrong[i].value));
        ck_assert_msg(ncclEpCreateGroup(&group, comm, &config) == NEP_INVALID_ARGUMENT && group == NULL, "%zu", i);
    }
    struct nep_group_config config = config_of(NEP_HIGH_THROUGHPUT);
    nep_group group;
    require(ncclEpCreateGroup(NULL, comm, &config) == NEP_INVALID_ARGUMENT);
    require(ncclEpCreateGroup(&group, NULL, &config) == NEP_INVALID_ARGUMENT);
    require(ncclEpCreateGroup(&group, comm, NULL) == NEP_INVALID_ARGUMENT);
    /* a program built with a later header, and one with the first version's */
    struct {
        struct nep_group_config config;
        uint64_t later;
    } longer = {config, 1};
    longer.config.head.size = sizeof(longer);
    require(ncclEpCreateGroup(&group, comm, &longer.config) == NEP_SUCCESS);
    require(ncclEpGroupDestroy(group) == NEP_SUCCESS);
    config.head.size = NEP_GROUP_CONFIG_V1;
    config.overflow = 99; /* beyond its end */
    require(ncclEpCreateGroup(&group, comm, &config) == NEP_SUCCESS);
    require(ncclEpGroupDestroy(group) == NEP_SUCCESS);
}

TEST(wrong_configurations_are_refused_and_other_versions_are_read)
{
    run_ranks(1, run_refused_configs);
}
END_TEST

static void run_refused_calls(unsigned rank, nep_comm comm)
{
    struct step *step = step_make(rank, comm, NEP_HIGH_THROUGHPUT);
    struct shaped topk, tokens, weights, rows;
    nep_handle handle = NULL;
    size_t size = 0;
    int error = 7;
    require(ncclEpInitHandle(&handle, step->group, NEP_RANK_MAJOR, NULL, TOPK, NULL) == NEP_INVALID_ARGUMENT);
    require(ncclEpInitHandle(&handle, step->group, 0, NULL, TOPK, NULL) == NEP_INVALID_ARGUMENT);
    require(ncclEpInitHandle(&handle, step->group, NEP_FLAT, NULL, 33, NULL) == NEP_INVALID_ARGUMENT);
    const struct nep_handle_config odd = STRUCT(nep_handle_config, .alignment = 3);
    require(ncclEpInitHandle(&handle, step->group, NEP_EXPERT_MAJOR, &odd, TOPK, NULL) == NEP_INVALID_ARGUMENT);
    require(ncclEpHandleMemSize(step->group, NEP_FLAT, NULL, &size, TOPK) == NEP_SUCCESS && size > 0);
    /* topk is known when the first routing comes */
    require(ncclEpInitHandle(&step->handle, step->group, NEP_FLAT, NULL, -1, NULL) == NEP_SUCCESS);
    const struct nep_dispatch_in in =
        STRUCT(nep_dispatch_in, .tokens = shape(&tokens, NEP_FP32, step->x, step->tokens, HIDDEN, 0),
               .weights = shape(&weights, NEP_FP32, step->weights, step->tokens, TOPK, 0));
    const struct nep_dispatch_out out =
        STRUCT(nep_dispatch_out, .tokens = shape(&rows, NEP_FP32, step->rows, RANKS * TOKENS_MAX, HIDDEN, 0));
    require(ncclEpDispatch(step->handle, &in, &out, NULL, NULL, NULL) == NEP_INVALID_USAGE); /* no update yet */
    shape(&topk, NEP_FP32, step->topk, step->tokens, TOPK, 0);
    require(ncclEpUpdateHandle(step->handle, &topk.tensor, NULL, NULL) == NEP_INVALID_ARGUMENT);
    shape(&topk, NEP_INT64, step->topk, step->tokens, TOPK, 0);
    require(ncclEpUpdateHandle(step->handle, &topk.tensor, NULL, NULL) == NEP_SUCCESS);

    const struct {
        struct nep_dispatch_config config;
        nep_result result;
    } configs[] = {
        {STRUCT(nep_dispatch_config, .send_only = 1), NEP_INVALID_USAGE},
        {STRUCT(nep_dispatch_config, .recipe = NEP_QUANT_E4M3), NEP_INVALID_USAGE},
        {STRUCT(nep_dispatch_config, .recipe = 3), NEP_INVALID_ARGUMENT},
        {STRUCT(nep_dispatch_config, .recipe = NEP_QUANT_FORWARD), NEP_INVALID_ARGUMENT}, /* no scales */
        {STRUCT(nep_dispatch_config, .pass = NEP_BACKWARD), NEP_INVALID_ARGUMENT},        /* has weights */
        {STRUCT(nep_dispatch_config, .pass = 2), NEP_INVALID_ARGUMENT},
    };
    for (size_t i = 0; i < sizeof(configs) / sizeof(configs[0]); i++)
        ck_assert_msg(ncclEpDispatch(step->handle, &in, &out, NULL, &configs[i].config, NULL) == configs[i].result,
                      "%zu", i);
    tokens.tensor.head.magic = 0;
    require(ncclEpDispatch(step->handle, &in, &out, NULL, NULL, NULL) == NEP_INVALID_ARGUMENT);
    tokens.tensor.head.magic = NEP_TENSOR_MAGIC;
    tokens.sizes[0]--;
    require(ncclEpDispatch(step->handle, &in, &out, NULL, NULL, NULL) == NEP_INVALID_ARGUMENT);
    tokens.sizes[0]++;
    rows.sizes[1] = HIDDEN - 4;
    require(ncclEpDispatch(step->handle, &in, &out, NULL, NULL, NULL) == NEP_INVALID_ARGUMENT);
    rows.sizes[1] = HIDDEN;
    const struct nep_combine_config fp4 = STRUCT(nep_combine_config, .recipe = NEP_COMBINE_QUANT_NVFP4);
    const struct nep_combine_in inputs = STRUCT(nep_combine_in, .tokens = &rows.tensor);
    const struct nep_combine_out outputs = STRUCT(nep_combine_out, .tokens = &tokens.tensor);
    require(ncclEpCombine(step->handle, &inputs, &outputs, &fp4, NULL) == NEP_INVALID_USAGE);
    require(ncclEpComplete(step->handle, NULL, NULL) == NEP_INVALID_USAGE);
    require(ncclEpMaskQuery(step->group, &error, NULL) == NEP_INVALID_USAGE);
    require(ncclEpGetAsyncError(step->group, &error) == NEP_SUCCESS && error == 0);
    require(ncclEpGroupDestroy(step->group) == NEP_INVALID_USAGE); /* it has a handle */
    step_end(step);
}

TEST(what_cannot_be_done_is_refused)
{
    run_ranks(1, run_refused_calls);
}
END_TEST

/* ---- Descriptors and version ------------------------------------------------------------------------------------- */

TEST(descriptors_are_made_with_sizes_of_their_own)
{
    size_t sizes[2] = {3, 4};
    struct nep_tensor *tensor = NULL;
    struct shaped own;
    require(ncclEpTensorAlloc(&tensor, 2, NEP_BF16, sizes, NULL) == NEP_SUCCESS);
    sizes[0] = 9;
    require(tensor->dims == 2 && tensor->type == NEP_BF16 && tensor->data == NULL && tensor->sizes[0] == 3 &&
            tensor->sizes[1] == 4 && tensor->head.size == sizeof(*tensor));
    require(ncclEpTensorDestroy(tensor) == NEP_SUCCESS && ncclEpTensorDestroy(NULL) == NEP_SUCCESS);
    require(ncclEpTensorDestroy(shape(&own, NEP_BF16, NULL, 1, 1, 0)) == NEP_INVALID_ARGUMENT);
    require(ncclEpTensorAlloc(&tensor, 0, NEP_BF16, sizes, NULL) == NEP_INVALID_ARGUMENT);
    require(ncclEpTensorAlloc(&tensor, 2, 77, sizes, NULL) == NEP_INVALID_ARGUMENT);
}
END_TEST

TEST(the_version_is_that_of_the_interface)
{
    int version = 0;
    require(ncclEpGetVersion(&version) == NEP_SUCCESS && version == 200);
    require(ncclEpGetVersion(NULL) == NEP_INVALID_ARGUMENT);
}
END_TEST

/* One line, and only where NCCL would speak. */
TEST(why_a_call_is_refused_is_said_where_nccl_would_say_it)
{
    for (int speaks = 0; speaks < 2; speaks++) {
        char text[1000] = "";
        int ends[2];
        require(pipe(ends) == 0);
        const pid_t pid = fork();
        require(pid >= 0);
        if (pid == 0) {
            dup2(ends[1], STDERR_FILENO);
            setenv("NCCL_DEBUG", speaks ? "WARN" : "VERSION", 1);
            _exit(ncclEpGetVersion(NULL) == NEP_INVALID_ARGUMENT ? 0 : 1);
        }
        int status;
        close(ends[1]);
        require(waitpid(pid, &status, 0) == pid && status == 0);
        require(read(ends[0], text, sizeof(text) - 1) >= 0);
        close(ends[0]);
        require((strstr(text, "version is NULL\n") != NULL) == speaks && (speaks || text[0] == '\0'));
    }
}
END_TEST

int main(void)
{
    return run_tests("nccl_ep", NULL, NULL);
}
