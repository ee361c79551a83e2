/* A rank's step by NCCL EP's interface: its routing, its tensors, and what has to arrive. Rows say whose token they
 * are, as libraries may order them differently. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/rivals/nccl_ep.h"
#include "ep/host.h"
#include "tools/util.h"

/* ---- Routing ----------------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static bool has(const int64_t *topk, uint64_t count, int64_t expert)
{
    for (uint64_t k = 0; k < count; k++)
        if (topk[k] == expert)
            return true;
    return false;
}

static bool goes_to(const struct nepb_options *options, const int64_t *topk, unsigned rank)
{
    const int64_t local = (int64_t)(options->experts / options->ranks);

    for (uint64_t k = 0; k < options->topk; k++)
        if (topk[k] / local == rank)
            return true;
    return false;
}

bool nepb_routing_init(struct nepb_routing *routing, const struct nepb_options *options)
{
    const uint64_t tokens = options->ranks * options->tokens;
    uint64_t state = options->seed;

    *routing = (struct nepb_routing){
        .topk = calloc(tokens * options->topk, sizeof(routing->topk[0])),
        .weights = calloc(tokens * options->topk, sizeof(routing->weights[0])),
    };
    if (routing->topk == NULL || routing->weights == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    for (uint64_t t = 0; t < tokens; t++)
        for (uint64_t k = 0; k < options->topk; k++) {
            int64_t *topk = &routing->topk[t * options->topk];
            do
                topk[k] = (int64_t)(mix(state += 0x9E3779B97F4A7C15u) % options->experts);
            while (has(topk, k, topk[k]));
            routing->weights[t * options->topk + k] =
                (float)(1 + mix(state += 0x9E3779B97F4A7C15u) % 256) / 256; /* never 0, which means "not here" */
        }
    for (unsigned rank = 0; rank < options->ranks; rank++) {
        uint64_t rows = 0;
        for (uint64_t t = 0; t < tokens; t++)
            rows += goes_to(options, &routing->topk[t * options->topk], rank);
        routing->most_rows = rows > routing->most_rows ? rows : routing->most_rows;
    }
    return true;
}

void nepb_routing_fini(struct nepb_routing *routing)
{
    free(routing->topk);
    free(routing->weights);
}

static const int64_t *topk_of(const struct nepb_step *step, uint64_t rank, uint64_t token)
{
    const struct nepb_options *options = step->options;
    return &step->routing->topk[(rank * options->tokens + token) * options->topk];
}

static const float *weights_of(const struct nepb_step *step, uint64_t rank, uint64_t token)
{
    const struct nepb_options *options = step->options;
    return &step->routing->weights[(rank * options->tokens + token) * options->topk];
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* A row begins with the digits of its rank and token, which E4M3 keeps apart, too. */
enum { DIGIT = 8, RANK_DIGITS = 2, NAMED = 7 };

static float value_of(uint64_t rank, uint64_t token, uint64_t h)
{
    if (h < NAMED)
        return (float)(((h < RANK_DIGITS ? rank : token) >> 3 * (h < RANK_DIGITS ? h : h - RANK_DIGITS)) % DIGIT);
    return (float)(mix(rank << 48 ^ token << 20 ^ h) % 31) / 8 - 1.875f;
}

static uint16_t to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return (uint16_t)(bits >> 16); /* of values that are exact */
}

static float from_bf16(uint16_t value)
{
    const uint32_t bits = (uint32_t)value << 16;
    float wide;
    memcpy(&wide, &bits, sizeof(wide));
    return wide;
}

/* The value as it is sent. What is quantized is of all sizes, but for a row's first ones. */
static uint16_t bits_of(const struct nepb_options *options, uint64_t rank, uint64_t token, uint64_t h)
{
    if (!options->fp8 || h < STRAIT_EP_SCALE_VALUES)
        return to_bf16(value_of(rank, token, h));
    const uint64_t value = mix(rank << 48 ^ token << 20 ^ h),
                   size = mix(rank << 48 ^ token << 20 ^ h / STRAIT_EP_SCALE_VALUES);
    return (uint16_t)((value & 0x807F) | (size % 248 + (value >> 8) % 8) << 7);
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

static size_t bytes_of(int type)
{
    return type == NEP_INT64 ? 8 : type == NEP_BF16 ? 2 : type == NEP_E4M3 ? 1 : 4;
}

/* Sizes of 0 at the end are left out. */
static bool make(struct nepb_step *step, struct nepb_tensor *made, int type, size_t a, size_t b, size_t c)
{
    const size_t value = bytes_of(type);
    struct nep_tensor *tensor = &made->tensor;

    *made = (struct nepb_tensor){.sizes = {a, b, c}, .bytes = value * a * (b != 0 ? b : 1) * (c != 0 ? c : 1)};
    *tensor = (struct nep_tensor){.head = {sizeof(*tensor), NEP_TENSOR_MAGIC},
                                  .dims = c != 0   ? 3
                                          : b != 0 ? 2
                                                   : 1,
                                  .type = type,
                                  .sizes = made->sizes};
    made->memory = step->place->alloc(made->bytes);
    tensor->data = made->memory;
    return made->memory != NULL;
}

static bool accepted(const struct nepb_step *step, nep_result result, const char *function)
{
    if (result != NEP_SUCCESS)
        print_error(NULL, "rank %u: %s: result %d", step->rank, function, result);
    return result == NEP_SUCCESS;
}

/* The tensor's memory becomes a window that all ranks have, as zero copies ask for. */
static bool move_to_window(struct nepb_step *step, struct nepb_tensor *made)
{
    const struct nepb_library *library = step->library;

    step->place->free(made->memory);
    made->memory = made->tensor.data = NULL;
    if (!accepted(step, library->MemAlloc(&step->window_memory, made->bytes), "ncclMemAlloc") ||
        !accepted(
            step,
            library->CommWindowRegister(step->comm, step->window_memory, made->bytes, &step->window, 1 /* symmetric */),
            "ncclCommWindowRegister"))
        return false;
    made->tensor.window = step->window;
    return true;
}

/* Rows that the tensor of rows has, and those of each first index. */
static uint64_t rows_max(const struct nepb_options *options)
{
    const uint64_t all = options->ranks * options->tokens, local = options->experts / options->ranks;
    const uint64_t most = options->topk < local ? options->topk : local;

    return options->high_throughput && options->expert_major ? all * most : all;
}

/* LL: rows of [a][b]. */
static bool make_slots(struct nepb_step *step, uint64_t a, uint64_t b)
{
    const uint64_t hidden = step->options->hidden;

    if (!step->options->fp8)
        return make(step, &step->rows, NEP_BF16, a, b, hidden);
    return make(step, &step->rows, NEP_E4M3, a, b, hidden) &&
           make(step, &step->scales, NEP_FP32, a, b, hidden / STRAIT_EP_SCALE_VALUES) &&
           make(step, &step->made, NEP_BF16, a, b, hidden);
}

static bool make_rows(struct nepb_step *step)
{
    const struct nepb_options *options = step->options;
    const uint64_t rows = rows_max(options), local = options->experts / options->ranks, hidden = options->hidden;
    bool good;

    if (options->high_throughput)
        good = make(step, &step->rows, NEP_BF16, rows, hidden, 0) &&
               make(step, &step->row_weights, NEP_FP32, rows, options->expert_major ? 0 : options->topk, 0) &&
               (options->expert_major || make(step, &step->row_topk, NEP_INT64, rows, options->topk, 0));
    else if (options->expert_major)
        good = make_slots(step, local, rows);
    else
        good = make_slots(step, options->ranks, options->tokens) &&
               make(step, &step->row_weights, NEP_FP32, options->ranks, options->tokens, options->topk) &&
               make(step, &step->row_topk, NEP_INT32, options->ranks, options->tokens, options->topk);
    if (good && options->windows)
        good = move_to_window(step, &step->rows);
    return good;
}

static bool write_ones(struct nepb_step *step)
{
    uint16_t *values = malloc(step->made.bytes + 1);
    const uint64_t count = step->made.bytes / sizeof(*values);

    for (uint64_t i = 0; values != NULL && i < count; i++)
        values[i] = to_bf16(1);
    if (values == NULL)
        print_error(NULL, "out of memory");
    const bool good = values != NULL && (count == 0 || step->place->write(step->made.memory, values, step->made.bytes));
    free(values);
    return good;
}

static bool write_inputs(struct nepb_step *step)
{
    const struct nepb_options *options = step->options;
    uint16_t *values = malloc(step->tokens.bytes);

    if (values == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    for (uint64_t t = 0; t < options->tokens; t++)
        for (uint64_t h = 0; h < options->hidden; h++)
            values[t * options->hidden + h] = bits_of(options, step->rank, t, h);
    const bool good = step->place->write(step->tokens.memory, values, step->tokens.bytes) &&
                      step->place->write(step->topk.memory, topk_of(step, step->rank, 0), step->topk.bytes) &&
                      step->place->write(step->weights.memory, weights_of(step, step->rank, 0), step->weights.bytes);
    free(values);
    return good;
}

static bool make_tensors(struct nepb_step *step)
{
    const struct nepb_options *options = step->options;
    const uint64_t tokens = options->tokens, local = options->experts / options->ranks;
    const bool by_rank = !options->high_throughput && !options->expert_major;

    return make(step, &step->topk, NEP_INT64, tokens, options->topk, 0) &&
           make(step, &step->weights, NEP_FP32, tokens, options->topk, 0) &&
           make(step, &step->tokens, NEP_BF16, tokens, options->hidden, 0) &&
           make(step, &step->sums, NEP_BF16, tokens, options->hidden, 0) &&
           make(step, &step->counts, NEP_INT32, by_rank ? options->ranks : local, 0, 0) &&
           make(step, &step->offsets, NEP_INT32, local, 0, 0) && make(step, &step->total, NEP_INT32, 1, 0, 0) &&
           make_rows(step) && write_inputs(step) && write_ones(step);
}

/* ---- The interface ----------------------------------------------------------------------------------------------- */

#define STRUCT(type, ...) ((struct type){.head = {sizeof(struct type), NEP_MAGIC}, __VA_ARGS__})

bool nepb_step_open(struct nepb_step *step)
{
    const struct nepb_options *options = step->options;
    const struct nep_group_config config = STRUCT(
        nep_group_config, .version = 2, .algorithm = options->high_throughput ? NEP_HIGH_THROUGHPUT : NEP_LOW_LATENCY,
        .experts = (unsigned)options->experts, .tokens_max = (unsigned)options->tokens,
        .receive_max = options->high_throughput ? (unsigned)rows_max(options) : 0,
        .token_bytes_max = (unsigned)(2 * options->hidden), .sms = (unsigned)options->sms, .timeout_ns = 20000000000u,
        .topk_max = (unsigned)options->topk);

    return make_tensors(step) &&
           accepted(step, step->library->CreateGroup(&step->group, step->comm, &config), "ncclEpCreateGroup") &&
           accepted(step,
                    step->library->InitHandle(&step->handle, step->group, nepb_layout(options), NULL,
                                              (int)options->topk, NULL),
                    "ncclEpInitHandle");
}

void nepb_step_close(struct nepb_step *step)
{
    struct nepb_tensor *all[] = {&step->topk,        &step->weights,  &step->tokens, &step->rows,
                                 &step->row_weights, &step->row_topk, &step->counts, &step->offsets,
                                 &step->total,       &step->sums,     &step->scales, &step->made};

    accepted(step, step->library->HandleDestroy(step->handle), "ncclEpHandleDestroy");
    accepted(step, step->library->GroupDestroy(step->group), "ncclEpGroupDestroy");
    if (step->window != NULL)
        accepted(step, step->library->CommWindowDeregister(step->comm, step->window), "ncclCommWindowDeregister");
    if (step->window_memory != NULL)
        step->library->MemFree(step->window_memory);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i]->memory != NULL)
            step->place->free(all[i]->memory);
}

/* NULL: such a layout has none. */
static struct nep_tensor *tensor_of(struct nepb_tensor *made)
{
    return made->bytes > 0 ? &made->tensor : NULL;
}

bool nepb_update(struct nepb_step *step)
{
    const struct nepb_options *options = step->options;
    const struct nep_layout_info info = STRUCT(
        nep_layout_info, .expert_counts = tensor_of(&step->counts),
        .expert_offsets = options->expert_major ? tensor_of(&step->offsets) : NULL, .total = tensor_of(&step->total));

    return accepted(step,
                    step->library->UpdateHandle(step->handle, &step->topk.tensor,
                                                options->high_throughput ? &info : NULL, step->stream),
                    "ncclEpUpdateHandle");
}

bool nepb_dispatch(struct nepb_step *step)
{
    const struct nepb_options *options = step->options;
    const bool weighed = options->high_throughput || !options->expert_major; /* else combine weighs */
    const struct nep_dispatch_in in = STRUCT(nep_dispatch_in, .tokens = tensor_of(&step->tokens),
                                             .weights = weighed ? tensor_of(&step->weights) : NULL);
    const struct nep_dispatch_out out =
        STRUCT(nep_dispatch_out, .tokens = tensor_of(&step->rows), .weights = tensor_of(&step->row_weights),
               .topk = tensor_of(&step->row_topk), .scales = tensor_of(&step->scales));
    const struct nep_dispatch_config config = STRUCT(nep_dispatch_config, .round_scales = options->round_scales,
                                                     .recipe = options->fp8 ? NEP_QUANT_E4M3 : NEP_QUANT_NONE);
    const struct nep_layout_info info =
        STRUCT(nep_layout_info, .expert_counts = options->expert_major ? tensor_of(&step->counts) : NULL,
               .rank_counts = options->expert_major ? NULL : tensor_of(&step->counts));

    return accepted(step,
                    step->library->Dispatch(step->handle, &in, &out, options->high_throughput ? NULL : &info, &config,
                                            step->stream),
                    "ncclEpDispatch");
}

bool nepb_combine(struct nepb_step *step)
{
    const bool weighs = !step->options->high_throughput && step->options->expert_major;
    const struct nep_combine_in in =
        STRUCT(nep_combine_in, .tokens = tensor_of(step->options->fp8 ? &step->made : &step->rows));
    const struct nep_combine_out out =
        STRUCT(nep_combine_out, .tokens = tensor_of(&step->sums), .weights = weighs ? tensor_of(&step->weights) : NULL);

    return accepted(step, step->library->Combine(step->handle, &in, &out, NULL, step->stream), "ncclEpCombine");
}

/* ---- Check ------------------------------------------------------------------------------------------------------- */

bool nepb_wipe(struct nepb_step *step)
{
    struct nepb_tensor *all[] = {&step->rows,    &step->row_weights, &step->row_topk, &step->counts,
                                 &step->offsets, &step->total,       &step->sums,     &step->scales};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        void *memory = all[i]->memory != NULL ? all[i]->memory : step->window_memory;
        if (all[i]->bytes > 0 && !step->place->fill(memory, all[i]->bytes))
            return false;
    }
    return true;
}

/* What came, on the host. */
struct arrived {
    const struct nepb_step *step;
    uint8_t *rows;
    uint16_t *sums;
    float *scales, *weights;
    void *topk;
    int32_t *counts, *offsets, *total;
    uint8_t *seen; /* [ranks][tokens][topk]; by rank: of the first */
    /* A row, as it should be: as it is sent, and quantized. */
    uint16_t *plain;
    uint8_t *quantized;
    float *quantized_scales;
    uint64_t right, wrong;
};

static void *fetch(const struct nepb_step *step, const struct nepb_tensor *tensor, bool *good)
{
    void *memory = malloc(tensor->bytes > 0 ? tensor->bytes : 1);

    if (memory == NULL)
        print_error(NULL, "out of memory");
    *good = *good && memory != NULL &&
            (tensor->bytes == 0 ||
             step->place->read(memory, tensor->memory != NULL ? tensor->memory : step->window_memory, tensor->bytes));
    return memory;
}

static void drop(struct arrived *arrived)
{
    void *all[] = {arrived->rows,   arrived->sums,   arrived->weights,   arrived->topk,
                   arrived->scales, arrived->counts, arrived->offsets,   arrived->total,
                   arrived->seen,   arrived->plain,  arrived->quantized, arrived->quantized_scales};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
}

static bool take(struct arrived *arrived, const struct nepb_step *step)
{
    const struct nepb_options *options = step->options;
    bool good = true;

    *arrived = (struct arrived){.step = step};
    arrived->rows = fetch(step, &step->rows, &good);
    arrived->sums = fetch(step, &step->sums, &good);
    arrived->scales = fetch(step, &step->scales, &good);
    arrived->weights = fetch(step, &step->row_weights, &good);
    arrived->topk = fetch(step, &step->row_topk, &good);
    arrived->counts = fetch(step, &step->counts, &good);
    arrived->offsets = fetch(step, &step->offsets, &good);
    arrived->total = fetch(step, &step->total, &good);
    arrived->seen = calloc(options->ranks * options->tokens * options->topk, 1);
    arrived->plain = malloc(options->hidden * sizeof(*arrived->plain));
    arrived->quantized = malloc(options->hidden);
    arrived->quantized_scales = malloc(options->hidden / STRAIT_EP_SCALE_VALUES * sizeof(float) + 1);
    return good && arrived->seen != NULL && arrived->plain != NULL && arrived->quantized != NULL &&
           arrived->quantized_scales != NULL;
}

/* Whether the numbers and weights beside a row are those of its token's experts here, in whatever order. */
static bool words_right(const struct arrived *arrived, uint64_t row, uint64_t s, uint64_t t)
{
    const struct nepb_step *step = arrived->step;
    const uint64_t topk = step->options->topk, local = step->options->experts / step->options->ranks;
    uint64_t here = 0, found = 0;

    for (uint64_t k = 0; k < topk; k++)
        here += (uint64_t)topk_of(step, s, t)[k] / local == step->rank;
    for (uint64_t i = 0; i < topk; i++) {
        const uint64_t at = row * topk + i;
        const int64_t number = step->row_topk.tensor.type == NEP_INT64 ? ((const int64_t *)arrived->topk)[at]
                                                                       : ((const int32_t *)arrived->topk)[at];
        for (uint64_t k = 0; k < topk && number >= 0; k++)
            found += topk_of(step, s, t)[k] == number + (int64_t)(step->rank * local) &&
                     weights_of(step, s, t)[k] == arrived->weights[at];
        if (number >= (int64_t)local)
            return false;
    }
    return found == here;
}

/* A digit that a row begins with; DIGIT: it is none. */
static uint64_t digit_of(const struct arrived *arrived, uint64_t row, uint64_t h)
{
    const uint64_t at = row * arrived->step->options->hidden + h;
    const uint8_t byte = arrived->rows[at];
    float value = from_bf16(((const uint16_t *)(const void *)arrived->rows)[arrived->step->options->fp8 ? 0 : at]);

    if (arrived->step->options->fp8) /* digits are 0 or normal values */
        value = byte < 8 ? 0
                         : ldexpf((float)(8 + byte % 8), (byte >> 3) - 10) *
                               arrived->scales[row * arrived->step->options->hidden / STRAIT_EP_SCALE_VALUES];
    return value >= 0 && value < DIGIT - 0.5f ? (uint64_t)(value + 0.5f) : DIGIT;
}

/* Whether the row has the token's values, bit for bit. */
static bool values_right(struct arrived *arrived, uint64_t row, uint64_t s, uint64_t t)
{
    const struct nepb_options *options = arrived->step->options;
    const uint64_t hidden = options->hidden, scales = hidden / STRAIT_EP_SCALE_VALUES;
    const struct ep_quantize_args args = {.rows = (const uint8_t *)arrived->plain,
                                          .quantized = arrived->quantized,
                                          .scales = arrived->quantized_scales,
                                          .row_count = 1,
                                          .values = (uint32_t)hidden,
                                          .powers = options->round_scales};

    for (uint64_t h = 0; h < hidden; h++)
        arrived->plain[h] = bits_of(options, s, t, h);
    if (!options->fp8)
        return memcmp(arrived->rows + row * hidden * 2, arrived->plain, hidden * 2) == 0;
    ep_host_quantize(NULL, &args, NULL);
    return memcmp(arrived->rows + row * hidden, args.quantized, hidden) == 0 &&
           memcmp(arrived->scales + row * scales, args.scales, scales * sizeof(float)) == 0;
}

/* expert: a local one that the row is for, or -1: it is for all of the token's here. */
static bool row_right(struct arrived *arrived, uint64_t row, int64_t expert)
{
    const struct nepb_step *step = arrived->step;
    const struct nepb_options *options = step->options;
    const int64_t global = expert + (int64_t)(step->rank * (options->experts / options->ranks));
    uint64_t k = 0, from = 0, token = 0;

    for (uint64_t h = NAMED; h-- > 0;) {
        const uint64_t digit = digit_of(arrived, row, h);
        if (digit == DIGIT)
            return false;
        if (h < RANK_DIGITS)
            from = from * DIGIT + digit;
        else
            token = token * DIGIT + digit;
    }
    if (from >= options->ranks || token >= options->tokens || !values_right(arrived, row, from, token))
        return false;
    const int64_t *topk = topk_of(step, from, token);
    if (expert < 0 ? !goes_to(options, topk, step->rank) : !has(topk, options->topk, global))
        return false;
    while (expert >= 0 && topk[k] != global)
        k++;
    uint8_t *seen = &arrived->seen[(from * options->tokens + token) * options->topk + k];
    if (*seen != 0)
        return false;
    *seen = 1;
    if (expert < 0)
        return words_right(arrived, row, from, token);
    return !options->high_throughput || arrived->weights[row] == weights_of(step, from, token)[k];
}

static void count_rows(struct arrived *arrived, uint64_t first, int64_t count, uint64_t room, int64_t expert)
{
    const uint64_t rows = count < 0 || (uint64_t)count > room ? 0 : (uint64_t)count;

    for (uint64_t row = first; row < first + rows; row++)
        if (row_right(arrived, row, expert))
            arrived->right++;
        else
            arrived->wrong++;
}

static void count_arrived(struct arrived *arrived)
{
    const struct nepb_options *options = arrived->step->options;
    const uint64_t local = options->experts / options->ranks, room = rows_max(options);

    if (options->high_throughput && !options->expert_major) {
        count_rows(arrived, 0, arrived->total[0], room, -1);
        return;
    }
    if (!options->expert_major) {
        for (uint64_t s = 0; s < options->ranks; s++)
            count_rows(arrived, s * options->tokens, arrived->counts[s], options->tokens, -1);
        return;
    }
    for (uint64_t e = 0; e < local; e++) {
        const int64_t first = options->high_throughput ? arrived->offsets[e] : (int64_t)(e * room);
        if (first >= 0 && (!options->high_throughput || (uint64_t)first <= room))
            count_rows(arrived, (uint64_t)first, arrived->counts[e],
                       options->high_throughput ? room - (uint64_t)first : room, (int64_t)e);
    }
}

static uint64_t expected_rows(const struct nepb_step *step)
{
    const struct nepb_options *options = step->options;
    const uint64_t local = options->experts / options->ranks;
    uint64_t rows = 0;

    for (uint64_t t = 0; t < options->ranks * options->tokens; t++) {
        const int64_t *topk = topk_of(step, 0, t);
        for (uint64_t k = 0; k < options->topk && options->expert_major; k++)
            rows += (uint64_t)topk[k] / local == step->rank;
        rows += !options->expert_major && goes_to(options, topk, step->rank);
    }
    return rows;
}

/* What a token's row is multiplied with on its way, as experts return what they get. */
static double factor_of(const struct nepb_step *step, uint64_t token)
{
    const struct nepb_options *options = step->options;
    double factor = 0;

    for (unsigned rank = 0; rank < options->ranks && !options->expert_major; rank++)
        factor += goes_to(options, topk_of(step, step->rank, token), rank);
    for (uint64_t k = 0; k < options->topk && options->expert_major; k++)
        factor += options->high_throughput ? 1 : (double)weights_of(step, step->rank, token)[k];
    return factor;
}

/* Sums may be rounded to BF16 in between: at most 2^-7 of the sum of their terms' sizes. */
static uint64_t count_wrong_sums(const struct arrived *arrived)
{
    const struct nepb_step *step = arrived->step;
    const struct nepb_options *options = step->options;
    uint64_t wrong = 0;

    for (uint64_t t = 0; t < options->tokens; t++) {
        const double factor = factor_of(step, t);
        for (uint64_t h = 0; h < options->hidden; h++) {
            const double expected = factor * (options->fp8 ? 1 : (double)value_of(step->rank, t, h));
            const double got = (double)from_bf16(arrived->sums[t * options->hidden + h]);
            if (!(fabs(got - expected) <= fabs(expected) / 128)) {
                wrong++;
                break;
            }
        }
    }
    return wrong;
}

bool nepb_check(const struct nepb_step *step, uint64_t *wrong_rows, uint64_t *wrong_sums)
{
    struct arrived arrived;
    const bool good = take(&arrived, step);

    if (good) {
        count_arrived(&arrived);
        const uint64_t expected = expected_rows(step);
        *wrong_rows = arrived.wrong + (expected > arrived.right ? expected - arrived.right : 0);
        *wrong_sums = count_wrong_sums(&arrived);
    }
    drop(&arrived);
    return good;
}
