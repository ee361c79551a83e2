#include "tests/ep/reference.h"

#include <math.h>
#include <string.h>

/* ---- Values ------------------------------------------------------------------------------------------------------ */

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

enum kind { KIND_TOKEN, KIND_SCALES, KIND_WEIGHT, KIND_RESULT, KIND_GRADIENT };

static uint64_t key_of(const struct scenario *scenario, enum kind kind, uint32_t round, uint32_t a, uint32_t b,
                       uint32_t c)
{
    return mix(mix(mix(scenario->seed + kind) ^ ((uint64_t)round << 32 | a)) ^ ((uint64_t)b << 32 | c));
}

static void random_bytes(uint64_t key, uint8_t *bytes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i += 4) {
        const uint32_t word = (uint32_t)mix(key + i);
        memcpy(bytes + i, &word, count - i < 4 ? count - i : 4);
    }
}

/* Bits of a value of a type: moderate, so that sums round, or with `odd` any bits now and then. */
static uint32_t random_value(enum strait_element type, uint64_t random, bool odd)
{
    const uint32_t bits = (uint32_t)random, spread = (uint32_t)(random >> 32) % 6;

    if (odd && (random >> 40) % 16 == 0)
        return type == STRAIT_ELEMENT_FP32 ? bits : bits & 0xFFFF;
    if (type == STRAIT_ELEMENT_BF16)
        return (bits & 0x807F) | (124 + spread) << 7;
    if (type == STRAIT_ELEMENT_FP16)
        return (bits & 0x83FF) | (12 + spread) << 10;
    return (bits & 0x807FFFFF) | (124 + spread) << 23;
}

static void value_row(const struct scenario *scenario, uint64_t key, uint8_t *row)
{
    const uint32_t size = scenario->combine_type == STRAIT_ELEMENT_FP32 ? 4 : 2;

    for (uint32_t at = 0; at < scenario->combine_bytes; at += size) {
        const uint32_t value = random_value(scenario->combine_type, mix(key + at), scenario->odd_values);
        memcpy(row + at, &value, size);
    }
}

static float small_float(uint64_t key)
{
    return (float)((int32_t)(key & 0xFFFFFF) - 0x800000) / 0x1p22f;
}

/* Whether the bits are infinite or NaN, sign, exponent and mantissa apart. */
static double value_of(enum strait_element type, uint32_t bits)
{
    const int exponent_bits = type == STRAIT_ELEMENT_FP16 ? 5 : 8;
    const int mantissa_bits = type == STRAIT_ELEMENT_BF16 ? 7 : type == STRAIT_ELEMENT_FP16 ? 10 : 23;
    const int bias = (1 << (exponent_bits - 1)) - 1, most = (1 << exponent_bits) - 1;
    const int exponent = (int)(bits >> mantissa_bits) & most;
    const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
    const double sign = bits >> (exponent_bits + mantissa_bits) & 1 ? -1 : 1;

    if (exponent == most)
        return mantissa != 0 ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * ldexp(1 + ldexp(mantissa, -mantissa_bits), exponent - bias);
}

/* Rounds to nearest even. */
static uint32_t bits_of(enum strait_element type, float x)
{
    const int exponent_bits = type == STRAIT_ELEMENT_FP16 ? 5 : 8;
    const int mantissa_bits = type == STRAIT_ELEMENT_BF16 ? 7 : type == STRAIT_ELEMENT_FP16 ? 10 : 23;
    const int bias = (1 << (exponent_bits - 1)) - 1, most = (1 << exponent_bits) - 1;
    const uint32_t sign = (uint32_t)(signbit(x) != 0) << (exponent_bits + mantissa_bits);
    const uint32_t infinite = (uint32_t)most << mantissa_bits;
    int exponent;

    if (isnan(x))
        return type == STRAIT_ELEMENT_FP32 ? 0x7FFFFFFF : 0x7FFF;
    if (isinf(x))
        return sign | infinite;
    if (x == 0)
        return sign;
    frexp(x, &exponent); /* |x| in [2^(exponent - 1), 2^exponent) */
    const int lowest = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    const double unit = ldexp(1, lowest - mantissa_bits);
    const double steps = nearbyint(fabs((double)x) / unit); /* may be the next power of two */
    const double limit = ldexp(2 - ldexp(1, -mantissa_bits), bias);
    if (steps * unit > limit)
        return sign | infinite;
    /* A step of the exponent follows the largest mantissa, so the number of steps from 2^lowest on is added. */
    const uint32_t normal =
        ((uint32_t)(lowest + bias) << mantissa_bits) + (uint32_t)(int64_t)(steps - ldexp(1, mantissa_bits));
    return sign | (steps < ldexp(1, mantissa_bits) ? (uint32_t)steps : normal);
}

/* ---- Routing ----------------------------------------------------------------------------------------------------- */

static int64_t draw(const struct scenario *scenario, struct rng *rng, enum ref_routing routing, uint32_t k)
{
    switch (routing) {
    case REF_SKEWED: /* half of all to the first two */
        return rng_below(rng, 2) == 0 ? rng_below(rng, 2) : rng_below(rng, scenario->experts);
    case REF_ONE: /* the first rank's */
        return (int64_t)(k + rng_below(rng, 2)) % (scenario->experts / scenario->ranks);
    case REF_SPARSE: /* most are none */
        return rng_below(rng, 4) == 0   ? (int64_t)rng_below(rng, scenario->experts)
               : rng_below(rng, 4) == 0 ? (int64_t)scenario->experts + rng_below(rng, 1000)
                                        : -1 - (int64_t)rng_below(rng, 3);
    case REF_REPEATED:
        return rng_below(rng, scenario->experts < 3 ? scenario->experts : 3);
    default:
        return rng_below(rng, scenario->experts);
    }
}

void ref_draw(struct scenario *scenario, struct rng *rng, enum ref_routing routing)
{
    for (uint32_t s = 0; s < scenario->ranks; s++)
        for (uint32_t t = 0; t < scenario->tokens[s]; t++)
            for (uint32_t k = 0; k < scenario->topk; k++)
                scenario->numbers[s][t][k] = draw(scenario, rng, routing, k);
    ref_route(scenario);
}

static uint32_t local_experts(const struct scenario *scenario)
{
    return scenario->experts / scenario->ranks;
}

static void route_token(struct scenario *scenario, uint32_t s, uint32_t t)
{
    for (uint32_t k = 0; k < scenario->topk; k++) {
        const int64_t number = scenario->numbers[s][t][k];
        bool counts = number >= 0 && number < scenario->experts;
        for (uint32_t before = 0; before < k; before++)
            counts = counts && scenario->numbers[s][t][before] != number;
        scenario->expert[s][t][k] = counts ? (int32_t)number : -1;
        if (counts)
            scenario->sent[s][t][number / local_experts(scenario)] = true;
    }
}

void ref_route(struct scenario *scenario)
{
    memset(scenario->sent, 0, sizeof(scenario->sent));
    memset(scenario->count, 0, sizeof(scenario->count));
    scenario->overflow = false;
    for (uint32_t s = 0; s < scenario->ranks; s++)
        for (uint32_t t = 0; t < scenario->tokens[s]; t++)
            route_token(scenario, s, t);
    for (uint32_t d = 0; d < scenario->ranks; d++) {
        uint32_t taken = 0;
        for (uint32_t s = 0; s < scenario->ranks; s++)
            for (uint32_t t = 0; t < scenario->tokens[s]; t++) {
                if (!scenario->sent[s][t][d])
                    continue;
                if (scenario->algorithm == STRAIT_EP_HIGH_THROUGHPUT && taken == scenario->receive_max) {
                    scenario->sent[s][t][d] = false;
                    scenario->overflow = true;
                    continue;
                }
                taken++;
                scenario->list[s][d][scenario->count[s][d]++] = (uint8_t)t;
            }
    }
}

/* ---- Places ------------------------------------------------------------------------------------------------------ */

static bool is_here(const struct scenario *scenario, int32_t expert, uint32_t d)
{
    return expert >= 0 && (uint32_t)expert / local_experts(scenario) == d;
}

/* Rows of an expert, of its rank d. */
static uint32_t expert_rows(const struct scenario *scenario, uint32_t d, uint32_t expert)
{
    uint32_t rows = 0;

    for (uint32_t s = 0; s < scenario->ranks; s++)
        for (uint32_t j = 0; j < scenario->count[s][d]; j++)
            for (uint32_t k = 0; k < scenario->topk; k++)
                rows += scenario->expert[s][scenario->list[s][d][j]][k] == (int32_t)expert;
    return rows;
}

static uint32_t zone_start(const struct scenario *scenario, uint32_t d, uint32_t expert)
{
    const uint32_t first = d * local_experts(scenario);
    uint32_t start = 0;

    if (scenario->algorithm == STRAIT_EP_LOW_LATENCY)
        return (expert - first) * scenario->ranks * scenario->tokens_max;
    for (uint32_t e = first; e < expert; e++) {
        start += expert_rows(scenario, d, e);
        while (start % scenario->alignment != 0)
            start++;
    }
    return start;
}

uint32_t ref_rows(const struct scenario *scenario, uint32_t d)
{
    const uint32_t all = scenario->ranks * scenario->tokens_max;
    uint32_t rows = 0;

    if (scenario->algorithm == STRAIT_EP_LOW_LATENCY)
        return scenario->layout == STRAIT_EP_EXPERT_MAJOR ? local_experts(scenario) * all : all;
    if (scenario->layout == STRAIT_EP_EXPERT_MAJOR)
        return zone_start(scenario, d, (d + 1) * local_experts(scenario));
    for (uint32_t s = 0; s < scenario->ranks; s++)
        rows += scenario->count[s][d];
    return rows;
}

/* Visits what rank d gets in the order of rows: each token that came, FLAT and RANK_MAJOR with k = UINT32_MAX, or each
 * of its experts here. */
struct visit {
    const struct scenario *scenario;
    uint32_t d, s, j, t, k, row, next[REF_EXPERTS];
};

static struct visit visit_begin(const struct scenario *scenario, uint32_t d)
{
    struct visit visit = {.scenario = scenario, .d = d, .k = UINT32_MAX, .j = UINT32_MAX};

    for (uint32_t e = 0; e < scenario->experts; e++)
        if (is_here(scenario, (int32_t)e, d))
            visit.next[e] = zone_start(scenario, d, e);
    visit.row = UINT32_MAX;
    return visit;
}

static bool next_token(struct visit *visit)
{
    const struct scenario *scenario = visit->scenario;

    visit->j++;
    while (visit->s < scenario->ranks && visit->j >= scenario->count[visit->s][visit->d]) {
        visit->s++;
        visit->j = 0;
    }
    if (visit->s == scenario->ranks)
        return false;
    visit->t = scenario->list[visit->s][visit->d][visit->j];
    return true;
}

static bool visit_next(struct visit *visit)
{
    const struct scenario *scenario = visit->scenario;

    if (scenario->layout != STRAIT_EP_EXPERT_MAJOR) {
        if (!next_token(visit))
            return false;
        visit->row =
            scenario->algorithm == STRAIT_EP_LOW_LATENCY ? visit->s * scenario->tokens_max + visit->j : visit->row + 1;
        return true;
    }
    for (;;) {
        if (visit->j != UINT32_MAX)
            visit->k++;
        while (visit->j == UINT32_MAX || visit->k >= scenario->topk) {
            if (!next_token(visit))
                return false;
            visit->k = 0;
        }
        const int32_t expert = scenario->expert[visit->s][visit->t][visit->k];
        if (is_here(scenario, expert, visit->d)) {
            visit->row = visit->next[expert]++;
            return true;
        }
    }
}

/* ---- Dispatch ---------------------------------------------------------------------------------------------------- */

void ref_token_row(const struct scenario *scenario, uint32_t round, uint32_t s, uint32_t t, uint8_t *row)
{
    random_bytes(key_of(scenario, KIND_TOKEN, round, s, t, 0), row, scenario->row_bytes);
}

void ref_token_scales(const struct scenario *scenario, uint32_t round, uint32_t s, uint32_t t, uint8_t *row)
{
    random_bytes(key_of(scenario, KIND_SCALES, round, s, t, 0), row, scenario->scale_bytes);
}

float ref_token_weight(const struct scenario *scenario, uint32_t round, uint32_t s, uint32_t t, uint32_t k)
{
    return small_float(key_of(scenario, KIND_WEIGHT, round, s, t, k));
}

static void put_number(const struct ref_dispatch *out, uint64_t at, int32_t number)
{
    if (out->wide_ids)
        ((int64_t *)out->topk)[at] = number;
    else
        ((int32_t *)out->topk)[at] = number;
}

void ref_dispatch(const struct scenario *scenario, uint32_t round, uint32_t d, bool global_ids,
                  const struct ref_dispatch *out)
{
    const uint32_t topk = scenario->topk, first = d * local_experts(scenario);

    for (struct visit at = visit_begin(scenario, d); visit_next(&at);) {
        ref_token_row(scenario, round, at.s, at.t, out->rows + (size_t)at.row * scenario->row_bytes);
        if (out->scales != NULL)
            ref_token_scales(scenario, round, at.s, at.t, out->scales + (size_t)at.row * scenario->scale_bytes);
        if (out->weights != NULL && at.k != UINT32_MAX)
            out->weights[at.row] = ref_token_weight(scenario, round, at.s, at.t, at.k);
        for (uint32_t k = 0; k < topk && at.k == UINT32_MAX; k++) {
            const int32_t expert = scenario->expert[at.s][at.t][k];
            const bool here = is_here(scenario, expert, d);
            if (out->weights != NULL)
                out->weights[at.row * topk + k] = here ? ref_token_weight(scenario, round, at.s, at.t, k) : 0;
            if (out->topk != NULL)
                put_number(out, (uint64_t)at.row * topk + k,
                           !here        ? -1
                           : global_ids ? expert
                                        : expert - (int32_t)first);
        }
    }
}

void ref_counts(const struct scenario *scenario, uint32_t d, int32_t *expert_counts, int32_t *expert_offsets,
                int32_t *rank_counts, int32_t *total)
{
    for (uint32_t e = 0; e < local_experts(scenario); e++) {
        expert_counts[e] = (int32_t)expert_rows(scenario, d, d * local_experts(scenario) + e);
        expert_offsets[e] = (int32_t)zone_start(scenario, d, d * local_experts(scenario) + e);
    }
    for (uint32_t s = 0; s < scenario->ranks; s++)
        rank_counts[s] = (int32_t)scenario->count[s][d];
    *total = (int32_t)ref_rows(scenario, d);
}

/* ---- Combine ----------------------------------------------------------------------------------------------------- */

/* Row that rank d gives for a token of rank s, EXPERT_MAJOR that of an expert (else -1). */
static void result_row(const struct scenario *scenario, uint32_t round, uint32_t d, uint32_t s, uint32_t t,
                       int32_t expert, uint8_t *row)
{
    value_row(scenario, key_of(scenario, KIND_RESULT, round, d * 1000 + (uint32_t)(expert + 1), s, t), row);
}

static float gradient(const struct scenario *scenario, uint32_t round, uint32_t s, uint32_t t, uint32_t k)
{
    return small_float(key_of(scenario, KIND_GRADIENT, round, s, t, k));
}

void ref_combine_in(const struct scenario *scenario, uint32_t round, uint32_t d, uint8_t *rows, float *weights)
{
    const uint32_t topk = scenario->topk;

    for (struct visit at = visit_begin(scenario, d); visit_next(&at);) {
        const int32_t expert = at.k == UINT32_MAX ? -1 : scenario->expert[at.s][at.t][at.k];
        result_row(scenario, round, d, at.s, at.t, expert, rows + (size_t)at.row * scenario->combine_bytes);
        if (weights == NULL)
            continue;
        if (at.k != UINT32_MAX)
            weights[at.row] = gradient(scenario, round, at.s, at.t, at.k);
        for (uint32_t k = 0; k < topk && at.k == UINT32_MAX; k++)
            weights[at.row * topk + k] = gradient(scenario, round, at.s, at.t, k);
    }
}

/* A sum of rows, FP32. */
struct sum {
    const struct scenario *scenario;
    float values[256];
    bool begun;
};

static void sum_add(struct sum *sum, const uint8_t *row, float weight)
{
    const enum strait_element type = sum->scenario->combine_type;
    const uint32_t size = type == STRAIT_ELEMENT_FP32 ? 4 : 2;

    for (uint32_t i = 0; i * size < sum->scenario->combine_bytes; i++) {
        uint32_t bits = 0;
        memcpy(&bits, row + i * size, size);
        const volatile float product = (float)value_of(type, bits) * weight;
        const volatile float added = sum->values[i] + product;
        sum->values[i] = sum->begun ? added : product;
    }
    sum->begun = true;
}

static void sum_round(struct sum *sum, uint8_t *row)
{
    const enum strait_element type = sum->scenario->combine_type;
    const uint32_t size = type == STRAIT_ELEMENT_FP32 ? 4 : 2;

    for (uint32_t i = 0; i * size < sum->scenario->combine_bytes; i++) {
        const uint32_t bits = bits_of(type, sum->begun ? sum->values[i] : 0.0f);
        memcpy(row + i * size, &bits, size);
    }
}

/* The row of a rank, HT EXPERT_MAJOR: the sum of its experts', rounded. */
static void rank_row(const struct scenario *scenario, uint32_t round, uint32_t d, uint32_t s, uint32_t t, uint8_t *row)
{
    struct sum sum = {.scenario = scenario};

    if (scenario->layout != STRAIT_EP_EXPERT_MAJOR) {
        result_row(scenario, round, d, s, t, -1, row);
        return;
    }
    for (uint32_t k = 0; k < scenario->topk; k++)
        if (is_here(scenario, scenario->expert[s][t][k], d)) {
            result_row(scenario, round, d, s, t, scenario->expert[s][t][k], row);
            sum_add(&sum, row, 1);
        }
    sum_round(&sum, row);
}

static void combine_token(const struct scenario *scenario, uint32_t round, uint32_t weight_round, uint64_t gone,
                          uint32_t s, uint32_t t, uint8_t *out)
{
    const bool each = scenario->algorithm == STRAIT_EP_LOW_LATENCY && scenario->layout == STRAIT_EP_EXPERT_MAJOR;
    struct sum sum = {.scenario = scenario};
    uint8_t row[1024];

    for (uint32_t d = 0; d < scenario->ranks; d++) {
        if (!scenario->sent[s][t][d] || (gone >> d & 1) != 0)
            continue;
        if (!each) {
            rank_row(scenario, round, d, s, t, row);
            sum_add(&sum, row, 1);
            continue;
        }
        for (uint32_t k = 0; k < scenario->topk; k++) {
            const int32_t expert = scenario->expert[s][t][k];
            if (!is_here(scenario, expert, d))
                continue;
            result_row(scenario, round, d, s, t, expert, row);
            sum_add(&sum, row, weight_round == UINT32_MAX ? 1 : ref_token_weight(scenario, weight_round, s, t, k));
        }
    }
    sum_round(&sum, out);
}

void ref_combine(const struct scenario *scenario, uint32_t round, uint32_t weight_round, uint64_t gone, uint32_t s,
                 uint8_t *rows, float *weights)
{
    for (uint32_t t = 0; t < scenario->tokens[s]; t++) {
        combine_token(scenario, round, weight_round, gone, s, t, rows + (size_t)t * scenario->combine_bytes);
        for (uint32_t k = 0; k < scenario->topk && weights != NULL; k++) {
            const int32_t expert = scenario->expert[s][t][k];
            const bool there = expert >= 0 && scenario->sent[s][t][(uint32_t)expert / local_experts(scenario)];
            weights[t * scenario->topk + k] = there ? gradient(scenario, round, s, t, k) : 0;
        }
    }
}
