/* Who sends what to whom in strait bench ep, and what comes of it, computed from the routing alone: lists by source
 * rank and token, sums as strait/ep.h documents them. Compiled without fused operations. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/ep.h"
#include "internal/bytes.h"

/* ---- Types ------------------------------------------------------------------------------------------------------- */

static const struct {
    uint32_t bytes;
    enum strait_element element;
    enum ep_type combined;
} types[] = {
    [EP_BF16] = {2, STRAIT_ELEMENT_BF16, EP_BF16},
    [EP_FP16] = {2, STRAIT_ELEMENT_FP16, EP_FP16},
    [EP_FP32] = {4, STRAIT_ELEMENT_FP32, EP_FP32},
    [EP_FP8] = {1, STRAIT_ELEMENT_FP8_E4M3, EP_BF16},
};

uint32_t ep_type_bytes(enum ep_type type)
{
    return types[type].bytes;
}

uint32_t ep_row_bytes(const struct ep_plan *plan, enum ep_type type)
{
    return (uint32_t)plan->options->hidden * types[type].bytes;
}

uint32_t ep_scale_bytes(const struct ep_plan *plan, enum ep_type type)
{
    return type == EP_FP8 ? (uint32_t)((plan->options->hidden + EP_SCALED - 1) / EP_SCALED * sizeof(float)) : 0;
}

enum ep_type ep_combined(enum ep_type type)
{
    return types[type].combined;
}

enum strait_element ep_element(enum ep_type type)
{
    return types[type].element;
}

/* ---- Routing ----------------------------------------------------------------------------------------------------- */

/* An expert by the skew: uniform, or the e-th with a probability that falls as 1 / (e + 1). */
static uint32_t draw(const double *up_to, uint32_t experts, uint64_t *state)
{
    const double at = (double)(random_next(state) >> 11) / 9007199254740992.0 * up_to[experts - 1];
    uint32_t low = 0, high = experts - 1;

    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (up_to[middle] <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool has(const int32_t *topk, uint32_t count, uint32_t expert)
{
    for (uint32_t k = 0; k < count; k++)
        if (topk[k] == (int32_t)expert)
            return true;
    return false;
}

/* Distinct experts of one token, out of the first `experts`. */
static void draw_token(int32_t *topk, uint32_t count, const double *up_to, uint32_t experts, uint64_t *state)
{
    for (uint32_t k = 0; k < count; k++) {
        uint32_t expert = k < experts ? draw(up_to, experts, state) : 0;
        for (uint32_t tries = 0; k < experts && has(topk, k, expert); tries++)
            expert = tries < 64 ? draw(up_to, experts, state) : (expert + 1) % experts;
        topk[k] = k < experts ? (int32_t)expert : -1;
    }
}

static uint64_t most_of(const uint64_t *counts, unsigned ranks)
{
    uint64_t most = 0;

    for (unsigned d = 0; d < ranks; d++)
        most = counts[d] > most ? counts[d] : most;
    return most;
}

static const int32_t *token_of(const struct ep_plan *plan, const struct ep_row *row, const struct ep_routing *routing,
                               unsigned rank, uint32_t token)
{
    return routing->topk + ((uint64_t)rank * row->tokens + token) * plan->options->topk;
}

/* Experts of a token on a rank. */
static uint32_t count_on(const struct ep_plan *plan, const int32_t *topk, unsigned rank)
{
    uint32_t count = 0;

    for (uint32_t k = 0; k < plan->options->topk; k++)
        count += topk[k] >= 0 && (uint32_t)topk[k] / plan->local == rank;
    return count;
}

static void count_rows(struct ep_routing *routing, const struct ep_plan *plan, const struct ep_row *row)
{
    uint64_t rows[RANKS_PROCESSES_MAX] = {0}, selections[RANKS_PROCESSES_MAX] = {0};
    const uint64_t slots = (uint64_t)plan->ranks * row->tokens;

    for (unsigned s = 0; s < plan->ranks; s++)
        for (uint32_t t = 0; t < row->tokens; t++)
            for (unsigned d = 0; d < plan->ranks; d++) {
                const uint32_t count = count_on(plan, token_of(plan, row, routing, s, t), d);
                rows[d] += count > 0;
                selections[d] += count;
            }
    routing->rows = most_of(rows, plan->ranks);
    routing->selections = most_of(selections, plan->ranks);
    if (row->algorithm == STRAIT_EP_LOW_LATENCY)
        routing->most_rows = row->layout == STRAIT_EP_EXPERT_MAJOR ? slots * plan->local : slots;
    else
        routing->most_rows = row->layout == STRAIT_EP_EXPERT_MAJOR ? routing->selections : routing->rows;
}

bool ep_routing_init(struct ep_routing *routing, const struct ep_plan *plan, const struct ep_row *row)
{
    const struct ep_options *options = plan->options;
    const uint32_t topk = (uint32_t)options->topk;
    const uint32_t experts = row->skew == EP_ONE ? plan->local : (uint32_t)options->experts;
    const uint64_t tokens = (uint64_t)plan->ranks * row->tokens;
    double *up_to = malloc(experts * sizeof(*up_to));
    uint64_t state = 1;

    *routing = (struct ep_routing){.topk = malloc(tokens * topk * sizeof(int32_t) + 1),
                                   .weights = malloc(tokens * topk * sizeof(float) + 1)};
    if (up_to == NULL || routing->topk == NULL || routing->weights == NULL) {
        print_error(NULL, "out of memory");
        free(up_to);
        return false;
    }
    for (uint32_t e = 0; e < experts; e++)
        up_to[e] = (e > 0 ? up_to[e - 1] : 0) + (row->skew == EP_ZIPF ? 1.0 / (e + 1) : 1.0);
    for (uint64_t t = 0; t < tokens; t++) {
        draw_token(routing->topk + t * topk, topk, up_to, experts, &state);
        for (uint32_t k = 0; k < topk; k++)
            routing->weights[t * topk + k] = (float)(random_next(&state) >> 40) / 16777216.0f;
    }
    free(up_to);
    count_rows(routing, plan, row);
    return true;
}

void ep_routing_fini(struct ep_routing *routing)
{
    free(routing->topk);
    free(routing->weights);
    *routing = (struct ep_routing){0};
}

/* ---- What ranks have --------------------------------------------------------------------------------------------- */

void ep_fill_row(const struct ep_plan *plan, enum ep_type type, unsigned rank, uint32_t token, uint8_t *dst)
{
    const struct collective_values *values = &plan->values[type];
    const uint64_t size = ep_row_bytes(plan, type);
    uint64_t from = (collective_values_start(values, rank, 0) + token * size) % values->period;

    for (uint64_t at = 0, piece; at < size; at += piece) {
        piece = values->period - from < size - at ? values->period - from : size - at;
        memcpy(dst + at, values->bytes + from, piece);
        from = 0;
    }
}

void ep_fill_scales(const struct ep_plan *plan, enum ep_type type, unsigned rank, uint32_t token, uint8_t *dst)
{
    const uint32_t count = ep_scale_bytes(plan, type) / (uint32_t)sizeof(float);

    for (uint32_t i = 0; i < count; i++) {
        const float scale = ldexpf(1.0f + (float)((token * 7 + i) % 64) / 64.0f, -(int)(rank % 8));
        memcpy(dst + i * sizeof(scale), &scale, sizeof(scale));
    }
}

/* ---- What arrives ------------------------------------------------------------------------------------------------ */

/* Rows of local experts so far, and where their zones begin. */
struct zones {
    uint64_t *begin, *used;
};

static bool zones_init(struct zones *zones, const struct ep_plan *plan, const struct ep_row *row,
                       const struct ep_routing *routing, unsigned rank)
{
    const uint64_t slots = (uint64_t)plan->ranks * row->tokens, numbers = slots * plan->options->topk;

    zones->begin = calloc(plan->local + 1, sizeof(uint64_t));
    zones->used = calloc(plan->local, sizeof(uint64_t));
    if (zones->begin == NULL || zones->used == NULL)
        return false;
    for (uint64_t i = 0; i < numbers; i++)
        if (routing->topk[i] >= 0 && (uint32_t)routing->topk[i] / plan->local == rank)
            zones->begin[(uint32_t)routing->topk[i] % plan->local + 1]++;
    for (uint32_t e = 0; e < plan->local; e++)
        zones->begin[e + 1] =
            row->algorithm == STRAIT_EP_LOW_LATENCY ? (e + 1) * slots : zones->begin[e] + zones->begin[e + 1];
    return true;
}

static void zones_fini(struct zones *zones)
{
    free(zones->begin);
    free(zones->used);
}

/* What is compared: rows of a tensor, and scratch for the expected one. */
struct compared {
    const uint8_t *rows, *scales;
    uint8_t *row, *scale;
    uint32_t row_bytes, scale_bytes;
};

static bool is_wrong(const struct compared *compared, uint64_t at)
{
    return memcmp(compared->rows + at * compared->row_bytes, compared->row, compared->row_bytes) != 0 ||
           (compared->scales != NULL &&
            memcmp(compared->scales + at * compared->scale_bytes, compared->scale, compared->scale_bytes) != 0);
}

/* A token that came: in each of its places. `place` is its number in the list of its source rank, `slot` that of all.
 */
static uint64_t wrong_places(const struct ep_plan *plan, const struct ep_row *row, const struct compared *compared,
                             struct zones *zones, const int32_t *topk, unsigned rank, uint64_t slot)
{
    uint64_t wrong = 0;

    if (row->layout != STRAIT_EP_EXPERT_MAJOR)
        return is_wrong(compared, slot);
    for (uint32_t k = 0; k < plan->options->topk; k++) {
        if (topk[k] < 0 || (uint32_t)topk[k] / plan->local != rank)
            continue;
        const uint32_t expert = (uint32_t)topk[k] % plan->local;
        wrong += is_wrong(compared, zones->begin[expert] + zones->used[expert]++);
    }
    return wrong;
}

uint64_t ep_wrong_rows(const struct ep_plan *plan, const struct ep_row *row, const struct ep_routing *routing,
                       unsigned rank, const uint8_t *rows, const uint8_t *scales)
{
    struct compared compared = {.rows = rows,
                                .scales = scales,
                                .row_bytes = ep_row_bytes(plan, row->type),
                                .scale_bytes = ep_scale_bytes(plan, row->type)};
    struct zones zones = {0};
    uint64_t wrong = 0, came = 0;

    compared.row = malloc(compared.row_bytes);
    compared.scale = malloc(compared.scale_bytes + 1);
    if (compared.row == NULL || compared.scale == NULL || !zones_init(&zones, plan, row, routing, rank))
        wrong = UINT32_MAX;
    for (unsigned s = 0; s < plan->ranks && wrong != UINT32_MAX; s++) {
        uint64_t slot = row->algorithm == STRAIT_EP_LOW_LATENCY ? (uint64_t)s * row->tokens : came;
        for (uint32_t t = 0; t < row->tokens; t++) {
            const int32_t *topk = token_of(plan, row, routing, s, t);
            if (count_on(plan, topk, rank) == 0)
                continue;
            ep_fill_row(plan, row->type, s, t, compared.row);
            ep_fill_scales(plan, row->type, s, t, compared.scale);
            wrong += wrong_places(plan, row, &compared, &zones, topk, rank, slot++);
            came++;
        }
    }
    zones_fini(&zones);
    free(compared.row);
    free(compared.scale);
    return wrong;
}

/* ---- Sums -------------------------------------------------------------------------------------------------------- */

static float value_of(enum ep_type type, const uint8_t *src)
{
    const uint32_t bits = type == EP_FP32 ? load_le32(src) : (uint32_t)load_le16(src) << 16;
    float value;

    memcpy(&value, &bits, sizeof(value));
    return type == EP_FP16 ? collective_fp16_value(load_le16(src)) : value;
}

static void store_value(enum ep_type type, uint8_t *dst, float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    if (type == EP_FP32)
        store_le32(dst, bits);
    else
        store_le16(dst, type == EP_FP16 ? collective_fp16_of(value) : collective_bf16_of(value));
}

static float rounded(enum ep_type type, float value)
{
    uint8_t bytes[4];

    store_value(type, bytes, value);
    return value_of(type, bytes);
}

/* The sum of one value over the ranks of its token; `terms` of them on a rank, HT rounds their sum. */
static float sum_of(const struct ep_plan *plan, const struct ep_row *row, const int32_t *topk, const float *weights,
                    enum ep_type type, float x)
{
    const bool experts = row->layout == STRAIT_EP_EXPERT_MAJOR, weighed = row->algorithm == STRAIT_EP_LOW_LATENCY;
    float sum = 0;
    bool begun = false;

    for (unsigned d = 0; d < plan->ranks; d++) {
        float part = 0;
        bool here = false;
        for (uint32_t k = 0; k < plan->options->topk; k++) {
            if (topk[k] < 0 || (uint32_t)topk[k] / plan->local != d)
                continue;
            const float term = experts && weighed ? weights[k] * x : x;
            if (experts && weighed)
                sum = begun ? sum + term : term;
            else if (!here || experts)
                part = here ? part + term : term;
            here = true;
            begun |= experts && weighed;
        }
        if (!here || (experts && weighed))
            continue;
        part = experts ? rounded(type, part) : part;
        sum = begun ? sum + part : part;
        begun = true;
    }
    return sum;
}

uint64_t ep_wrong_sums(const struct ep_plan *plan, const struct ep_row *row, const struct ep_routing *routing,
                       unsigned rank, const uint8_t *sums)
{
    const enum ep_type type = ep_combined(row->type);
    const uint32_t row_bytes = ep_row_bytes(plan, type), bytes = types[type].bytes;
    uint8_t *values = malloc(row_bytes), *expected = malloc(row_bytes);
    uint64_t wrong = 0;

    for (uint32_t t = 0; t < row->tokens && values != NULL && expected != NULL; t++) {
        const int32_t *topk = token_of(plan, row, routing, rank, t);
        const float *weights = routing->weights + (topk - routing->topk);
        ep_fill_row(plan, type, rank, t, values);
        for (uint32_t at = 0; at < row_bytes; at += bytes)
            store_value(type, expected + at, sum_of(plan, row, topk, weights, type, value_of(type, values + at)));
        wrong += memcmp(sums + (uint64_t)t * row_bytes, expected, row_bytes) != 0;
    }
    wrong = values == NULL || expected == NULL ? UINT32_MAX : wrong;
    free(values);
    free(expected);
    return wrong;
}
