#include "tests/ep/party.h"

#include <string.h>

struct strait_ep_config party_config(struct member *member, const struct strait_ep_config *like)
{
    struct strait_ep_config config = *like;
    const struct strait_ep_config own = world_config(member);

    config.size = own.size;
    config.all_gather = own.all_gather;
    config.context = own.context;
    config.rank = own.rank;
    config.rank_count = own.rank_count;
    return config;
}

struct strait_ep_group *party_group(struct member *member, const struct strait_ep_config *like)
{
    const struct strait_ep_config config = party_config(member, like);
    struct strait_ep_group *group;
    char text[256];

    const enum strait_status status = strait_ep_group_create(&config, &group, text, sizeof(text));
    if (status != STRAIT_OK)
        fprintf(stderr, "group: %s\n", text);
    require(status == STRAIT_OK);
    return group;
}

void party_begin(struct party *party, struct strait_ep_group *group, const struct scenario *scenario, uint32_t rank,
                 struct party_options options)
{
    const struct strait_ep_handle_config config = {.size = sizeof(config),
                                                   .layout = scenario->layout,
                                                   .topk = scenario->topk,
                                                   .expert_alignment =
                                                       scenario->alignment > 1 ? scenario->alignment : 0};

    *party = (struct party){
        .group = group, .scenario = scenario, .options = options, .rank = rank, .weight_round = UINT32_MAX};
    require(strait_ep_handle_create(group, &config, &party->handle) == STRAIT_OK);
}

void party_end(struct party *party)
{
    strait_ep_handle_destroy(party->handle);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* Filled with CANARY, 16-byte aligned; NULL for nothing. Held until the call is over. */
static void *tensor(struct party *party, size_t bytes, bool heap)
{
    const size_t room = (bytes + 63) / 64 * 64;
    void *memory = NULL;

    if (bytes == 0)
        return NULL;
    if (heap)
        memory = strait_ep_alloc(party->group, room);
    require(party->held_count < COUNT(party->held));
    party->held[party->held_count].heap = memory != NULL;
    if (memory == NULL)
        memory = aligned_alloc(64, room);
    require(memory != NULL && (uintptr_t)memory % 16 == 0);
    party->held[party->held_count++].memory = memory;
    memset(memory, CANARY, room);
    return memory;
}

/* Addresses of all ranks' tensors; NULL: they are not told. A tensor without rows has one all the same. */
static void *const *gather_peers(struct party *party, void **tensor, void *peers[STRAIT_EP_RANKS_MAX])
{
    static uint8_t nothing[16] __attribute__((aligned(16)));

    if (party->options.peers == NULL)
        return NULL;
    if (*tensor == NULL)
        *tensor = nothing;
    require(world_gather(party->options.peers, tensor, peers, sizeof(*tensor)) == 0);
    return peers;
}

static void drop_tensors(struct party *party)
{
    while (party->held_count > 0) {
        party->held_count--;
        if (party->held[party->held_count].heap)
            strait_ep_free(party->group, party->held[party->held_count].memory);
        else
            free(party->held[party->held_count].memory);
    }
}

static bool experts_major(const struct party *party)
{
    return party->scenario->layout == STRAIT_EP_EXPERT_MAJOR;
}

static bool low_latency(const struct party *party)
{
    return party->scenario->algorithm == STRAIT_EP_LOW_LATENCY;
}

static uint32_t local_experts(const struct party *party)
{
    return party->scenario->experts / party->scenario->ranks;
}

static void require_equal(const void *got, const void *expected, size_t bytes)
{
    require(bytes == 0 || memcmp(got, expected, bytes) == 0);
}

/* ---- Update ------------------------------------------------------------------------------------------------------ */

/* Local experts' counts and offsets, ranks' counts, the total. */
struct counts {
    int32_t experts[REF_EXPERTS], offsets[REF_EXPERTS], ranks[REF_RANKS], total;
};

static void expected_counts(const struct party *party, struct counts *counts)
{
    memset(counts, CANARY, sizeof(*counts));
    ref_counts(party->scenario, party->rank, counts->experts, counts->offsets, counts->ranks, &counts->total);
}

void party_update(struct party *party)
{
    const struct scenario *scenario = party->scenario;
    const uint32_t tokens = scenario->tokens[party->rank], topk = scenario->topk;
    int64_t wide[REF_TOKENS * REF_TOPK];
    int32_t narrow[REF_TOKENS * REF_TOPK];
    struct counts got, expected;
    struct strait_ep_routing routing = {.size = sizeof(routing), .tokens = tokens};

    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t k = 0; k < topk; k++) {
            wide[t * topk + k] = scenario->numbers[party->rank][t][k];
            narrow[t * topk + k] = (int32_t)wide[t * topk + k];
        }
    routing.topk = tokens == 0 ? NULL : party->options.narrow ? (const void *)narrow : (const void *)wide;
    routing.topk_bytes = party->options.narrow ? 4 : 8;
    expected_counts(party, &expected);
    memset(&got, CANARY, sizeof(got));
    if (!low_latency(party) && party->options.counts) {
        routing.expert_counts = got.experts;
        routing.rank_counts = got.ranks;
        routing.total = &got.total;
        if (experts_major(party))
            routing.expert_offsets = got.offsets;
    }
    require(strait_ep_update(party->handle, &routing, NULL) == STRAIT_OK);
    if (routing.total == NULL)
        return;
    if (!experts_major(party))
        memset(expected.offsets, CANARY, sizeof(expected.offsets));
    require_equal(&got, &expected, sizeof(got));
}

/* ---- Dispatch ---------------------------------------------------------------------------------------------------- */

/* Rows, scales and weights of the own tokens, as the caller has them. */
static struct strait_ep_dispatch_in make_dispatch_in(struct party *party)
{
    const struct scenario *scenario = party->scenario;
    const uint32_t tokens = scenario->tokens[party->rank], topk = scenario->topk;
    struct strait_ep_dispatch_in in = {.size = sizeof(in)};

    party->rows = tensor(party, (size_t)tokens * scenario->row_bytes, false);
    party->scales = party->options.scales ? tensor(party, (size_t)tokens * scenario->scale_bytes, false) : NULL;
    party->weights = party->options.weights ? tensor(party, (size_t)tokens * topk * sizeof(float), false) : NULL;
    for (uint32_t t = 0; t < tokens; t++) {
        ref_token_row(scenario, party->round, party->rank, t, party->rows + (size_t)t * scenario->row_bytes);
        if (party->scales != NULL)
            ref_token_scales(scenario, party->round, party->rank, t, party->scales + (size_t)t * scenario->scale_bytes);
        for (uint32_t k = 0; k < topk && party->weights != NULL; k++)
            party->weights[t * topk + k] = ref_token_weight(scenario, party->round, party->rank, t, k);
    }
    in.tokens = (struct strait_ep_tensor){party->rows, scenario->row_bytes, scenario->type};
    in.weights = party->weights;
    in.scales = (struct strait_ep_tensor){party->scales, scenario->scale_bytes, STRAIT_ELEMENT_BYTES};
    return in;
}

/* Bytes of the weights' and the numbers' outputs. */
static size_t weight_bytes(const struct party *party)
{
    return party->out_row_count * sizeof(float) * (experts_major(party) ? 1 : party->scenario->topk);
}

/* Of the numbers of experts. */
static size_t number_bytes(const struct party *party)
{
    return weight_bytes(party) * (party->options.wide_ids ? 2 : 1);
}

void party_dispatch(struct party *party, uint32_t flags)
{
    const struct scenario *scenario = party->scenario;
    const struct strait_ep_dispatch_in in = make_dispatch_in(party);
    struct strait_ep_dispatch_out out = {.size = sizeof(out)};
    void *peers[STRAIT_EP_RANKS_MAX];

    party->out_row_count = ref_rows(scenario, party->rank) + (!low_latency(party) && party->options.spare ? 3 : 0);
    party->out_rows = tensor(party, (size_t)party->out_row_count * scenario->row_bytes, party->options.heap);
    party->out_scales =
        party->options.scales ? tensor(party, (size_t)party->out_row_count * scenario->scale_bytes, false) : NULL;
    party->out_weights = party->options.weights ? tensor(party, weight_bytes(party), false) : NULL;
    party->out_topk = !experts_major(party) ? tensor(party, number_bytes(party), false) : NULL;
    party->out_counts =
        low_latency(party) && party->options.counts ? tensor(party, sizeof(struct counts), false) : NULL;
    if (party->out_counts != NULL) {
        struct counts *counts = (struct counts *)party->out_counts;
        out.rank_counts = counts->ranks;
        out.expert_counts = experts_major(party) ? counts->experts : NULL;
    }
    out.tokens = (struct strait_ep_tensor){party->out_rows, scenario->row_bytes, scenario->type};
    out.weights = party->out_weights;
    out.scales = (struct strait_ep_tensor){party->out_scales, scenario->scale_bytes, STRAIT_ELEMENT_BYTES};
    out.topk = party->out_topk;
    out.rows = low_latency(party) ? 0 : party->out_row_count;
    out.peers = gather_peers(party, &out.tokens.data, peers);
    party->weight_round = party->options.weights ? party->round : UINT32_MAX;
    if (party->options.global_ids)
        flags |= STRAIT_EP_GLOBAL_IDS;
    if (party->options.wide_ids)
        flags |= STRAIT_EP_WIDE_IDS;
    require(strait_ep_dispatch(party->handle, &in, &out, flags, NULL) == STRAIT_OK);
    if ((flags & STRAIT_EP_SEND_ONLY) == 0)
        party_complete_dispatch(party);
}

static void check_dispatch(struct party *party)
{
    const struct scenario *scenario = party->scenario;
    const size_t rows = (size_t)party->out_row_count * scenario->row_bytes;
    const size_t scales = (size_t)party->out_row_count * scenario->scale_bytes;
    const struct ref_dispatch expected = {
        .rows = tensor(party, rows, false),
        .scales = party->out_scales != NULL ? tensor(party, scales, false) : NULL,
        .weights = party->out_weights != NULL ? tensor(party, weight_bytes(party), false) : NULL,
        .topk = party->out_topk != NULL ? tensor(party, number_bytes(party), false) : NULL,
        .wide_ids = party->options.wide_ids};

    ref_dispatch(scenario, party->round, party->rank, party->options.global_ids, &expected);
    require_equal(party->out_rows, expected.rows, rows);
    require_equal(party->out_scales, expected.scales, expected.scales != NULL ? scales : 0);
    require_equal(party->out_weights, expected.weights, expected.weights != NULL ? weight_bytes(party) : 0);
    require_equal(party->out_topk, expected.topk, expected.topk != NULL ? number_bytes(party) : 0);
    if (party->out_counts != NULL) {
        const struct counts *got = (const struct counts *)party->out_counts;
        struct counts counts;
        expected_counts(party, &counts);
        require_equal(got->ranks, counts.ranks, sizeof(counts.ranks));
        if (experts_major(party))
            require_equal(got->experts, counts.experts, local_experts(party) * sizeof(int32_t));
    }
}

void party_complete_dispatch(struct party *party)
{
    check_dispatch(party);
    drop_tensors(party);
    party->round++;
}

/* ---- Combine ----------------------------------------------------------------------------------------------------- */

void party_combine(struct party *party, uint32_t flags, bool gradients)
{
    const struct scenario *scenario = party->scenario;
    const uint32_t tokens = scenario->tokens[party->rank];
    struct strait_ep_combine_in in = {.size = sizeof(in)};
    struct strait_ep_combine_out out = {.size = sizeof(out)};
    void *peers[STRAIT_EP_RANKS_MAX];

    party->out_row_count = ref_rows(scenario, party->rank);
    party->rows = tensor(party, (size_t)party->out_row_count * scenario->combine_bytes, party->options.heap);
    party->weights = gradients ? tensor(party, weight_bytes(party), false) : NULL;
    party->out_rows = tensor(party, (size_t)tokens * scenario->combine_bytes, false);
    party->out_weights = gradients ? tensor(party, (size_t)tokens * scenario->topk * sizeof(float), false) : NULL;
    ref_combine_in(scenario, party->round, party->rank, party->rows, party->weights);
    in.tokens = (struct strait_ep_tensor){party->rows, scenario->combine_bytes, scenario->combine_type};
    in.weights = party->weights;
    in.peers = gather_peers(party, &in.tokens.data, peers);
    in.rows = party->out_row_count;
    out.tokens = (struct strait_ep_tensor){party->out_rows, scenario->combine_bytes, scenario->combine_type};
    out.weights = party->out_weights;
    require(strait_ep_combine(party->handle, &in, &out, flags, NULL) == STRAIT_OK);
    if ((flags & STRAIT_EP_SEND_ONLY) == 0)
        party_complete_combine(party);
}

void party_complete_combine(struct party *party)
{
    const struct scenario *scenario = party->scenario;
    const uint32_t tokens = scenario->tokens[party->rank];
    const size_t rows = (size_t)tokens * scenario->combine_bytes;
    const size_t weights = (size_t)tokens * scenario->topk * sizeof(float);
    uint8_t *expected_rows = tensor(party, rows, false);
    float *expected_weights = party->out_weights != NULL ? tensor(party, weights, false) : NULL;

    ref_combine(scenario, party->round, party->weight_round, party->options.gone, party->rank, expected_rows,
                expected_weights);
    require_equal(party->out_rows, expected_rows, rows);
    require_equal(party->out_weights, expected_weights, expected_weights != NULL ? weights : 0);
    drop_tensors(party);
    party->round++;
}

void party_step(struct party *party)
{
    const struct party_options options = party->options;

    party_update(party);
    party_dispatch(party, 0);
    party_combine(party, 0, false);
    if (low_latency(party))
        return;
    party->options.weights = false;
    party_dispatch(party, 0);
    party_combine(party, 0, true);
    party->options = options;
}
