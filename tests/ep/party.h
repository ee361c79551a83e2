/* A rank that goes through the steps of a scenario and compares all that it gets with the reference. */
#ifndef STRAIT_TESTS_EP_PARTY_H
#define STRAIT_TESTS_EP_PARTY_H

#include "tests/ep/reference.h"
#include "tests/ep/world.h"

/* Options of a step that need not be equal on all ranks, but for scales, weights and their gradients. */
struct party_options {
    bool weights, scales;
    bool heap;  /* tensors of rows are in the group's heap */
    bool spare; /* the tensors have more rows than are needed */
    bool global_ids, wide_ids;
    bool narrow;          /* numbers of experts are int32 */
    bool counts;          /* outputs of counts are wanted */
    struct member *peers; /* ranks are threads and reach each other's tensors, whose addresses this member gathers */
    uint64_t gone;        /* ranks that are left out by now */
};

struct party {
    struct strait_ep_group *group;
    struct strait_ep_handle *handle;
    const struct scenario *scenario;
    struct party_options options;
    uint32_t rank, round;
    uint32_t weight_round; /* of the dispatch whose weights a combine takes */
    /* Of the call under way. */
    uint8_t *rows, *scales, *out_rows, *out_scales;
    float *weights, *out_weights;
    int32_t *out_counts;
    void *out_topk;
    uint32_t out_row_count;
    struct {
        void *memory;
        bool heap;
    } held[12]; /* tensors of the call */
    uint32_t held_count;
};

/* The fields of `like` that the test has chosen, with the member's own: of a group for scenarios of these limits. */
struct strait_ep_config party_config(struct member *member, const struct strait_ep_config *like);
/* The group of this configuration, which has to come about. */
struct strait_ep_group *party_group(struct member *member, const struct strait_ep_config *like);

void party_begin(struct party *party, struct strait_ep_group *group, const struct scenario *scenario, uint32_t rank,
                 struct party_options options);
void party_end(struct party *party);

/* Each makes its call, which must succeed; those that complete one compare the outputs. */
void party_update(struct party *party);
void party_dispatch(struct party *party, uint32_t flags);
void party_combine(struct party *party, uint32_t flags, bool gradients);
void party_complete_dispatch(struct party *party);
void party_complete_combine(struct party *party);

/* Update, dispatch, combine; HT: both once more, as a backward pass. */
void party_step(struct party *party);

#endif
