/* Reference of expert parallelism: what each rank must get, computed from the inputs of all ranks by the text of
 * strait/ep.h, without the library's code. */
#ifndef STRAIT_TESTS_EP_REFERENCE_H
#define STRAIT_TESTS_EP_REFERENCE_H

#include <strait/ep.h>

#include "tests/support.h"

enum { REF_RANKS = 64, REF_TOKENS = 24, REF_TOPK = 8, REF_EXPERTS = 128 };

/* A step: its shape, which is equal on all ranks, and what each routes. */
struct scenario {
    uint64_t seed;
    uint32_t ranks, experts, tokens_max, topk;
    enum strait_ep_algorithm algorithm;
    enum strait_ep_layout layout;
    uint32_t alignment;   /* at least 1 */
    uint32_t receive_max; /* HT: tokens that a rank takes; the rest is dropped */
    uint32_t row_bytes, scale_bytes, combine_bytes;
    enum strait_element type, combine_type;
    bool odd_values; /* infinite, NaN, subnormal ones too */
    uint32_t tokens[REF_RANKS];
    int64_t numbers[REF_RANKS][REF_TOKENS][REF_TOPK]; /* as the caller gives them */
    /* By ref_route: */
    int32_t expert[REF_RANKS][REF_TOKENS][REF_TOPK]; /* those that count, -1 */
    uint32_t count[REF_RANKS][REF_RANKS];            /* tokens from a rank to another */
    uint8_t list[REF_RANKS][REF_RANKS][REF_TOKENS];  /* these tokens */
    bool sent[REF_RANKS][REF_TOKENS][REF_RANKS];     /* whether a token goes to a rank */
    bool overflow;                                   /* of some rank */
};

/* How numbers of experts are drawn. */
enum ref_routing { REF_UNIFORM, REF_SKEWED, REF_ONE, REF_SPARSE, REF_REPEATED, REF_ROUTINGS };
void ref_draw(struct scenario *scenario, struct rng *rng, enum ref_routing routing);
/* Fills the fields that follow from the numbers. */
void ref_route(struct scenario *scenario);

/* Rows of a tensor that rank d gets, or gives to combine. */
uint32_t ref_rows(const struct scenario *scenario, uint32_t d);

/* ---- Inputs, by what they belong to ------------------------------------------------------------------------------ */

/* Row of token t of rank s in round `round`. */
void ref_token_row(const struct scenario *scenario, uint32_t round, uint32_t s, uint32_t t, uint8_t *row);
void ref_token_scales(const struct scenario *scenario, uint32_t round, uint32_t s, uint32_t t, uint8_t *row);
float ref_token_weight(const struct scenario *scenario, uint32_t round, uint32_t s, uint32_t t, uint32_t k);

/* ---- What rank d gets from a dispatch ---------------------------------------------------------------------------- */

/* Outputs, full: what is not written keeps its bytes. NULL: not wanted. */
struct ref_dispatch {
    uint8_t *rows, *scales;
    float *weights;
    void *topk; /* int32, or int64 */
    bool wide_ids;
};
void ref_dispatch(const struct scenario *scenario, uint32_t round, uint32_t d, bool global_ids,
                  const struct ref_dispatch *out);
/* [L], [L], [R], [1] */
void ref_counts(const struct scenario *scenario, uint32_t d, int32_t *expert_counts, int32_t *expert_offsets,
                int32_t *rank_counts, int32_t *total);

/* ---- Combine ----------------------------------------------------------------------------------------------------- */

/* What rank d gives to combine, with gradients of weights unless NULL: rows without a token keep their bytes. */
void ref_combine_in(const struct scenario *scenario, uint32_t round, uint32_t d, uint8_t *rows, float *weights);
/* What rank s gets: [tokens] rows, [tokens][topk] unless NULL. LL EXPERT_MAJOR: weights of round `weight_round`,
 * UINT32_MAX: 1. `gone`: bits of ranks that are left out. */
void ref_combine(const struct scenario *scenario, uint32_t round, uint32_t weight_round, uint64_t gone, uint32_t s,
                 uint8_t *rows, float *weights);

#endif
