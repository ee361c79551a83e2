/* Expert parallelism on processors, against the reference: dispatch and combine bit for bit, in all layouts, by ranks
 * that are threads and ranks that are processes. STRAIT_TEST_SHAPES: how many random shapes (10000). */
#include <math.h>
#include <string.h>
#include <time.h>

#include "tests/ep/party.h"
#include "tests/run_suite.h"

enum { BATCH = 40 }; /* shapes that one group serves */

/* What a group does. */
struct plan {
    struct strait_ep_config config;
    struct scenario scenarios[BATCH];
    struct party_options options[BATCH];
    uint32_t count;
    bool lag;    /* ranks wait at random */
    bool paired; /* two scenarios at a time: LL, their calls overlap; HT, calls of one kind follow each other */
    bool peers;  /* tensors of peers, not of pairs; ranks are threads */
};

static struct plan plan;

static void lag(struct rng *rng)
{
    if (plan.lag && rng_below(rng, 3) == 0)
        nanosleep(&(struct timespec){.tv_nsec = rng_below(rng, 200000)}, NULL);
}

/* Two steps that overlap: what is sent for one is received after what is sent for the other. */
static void run_pair(struct strait_ep_group *group, uint32_t rank, uint32_t first, struct rng *rng)
{
    struct party a, b;

    party_begin(&a, group, &plan.scenarios[first], rank, plan.options[first]);
    party_begin(&b, group, &plan.scenarios[first + 1], rank, plan.options[first + 1]);
    party_update(&a);
    party_update(&b);
    for (uint32_t round = 0; round < 2; round++) {
        party_dispatch(&a, STRAIT_EP_SEND_ONLY);
        lag(rng);
        party_dispatch(&b, STRAIT_EP_SEND_ONLY);
        require(strait_ep_complete(a.handle, NULL) == STRAIT_OK);
        party_complete_dispatch(&a);
        lag(rng);
        party_combine(&a, STRAIT_EP_SEND_ONLY, false);
        require(strait_ep_complete(b.handle, NULL) == STRAIT_OK);
        party_complete_dispatch(&b);
        party_combine(&b, round == 0 ? STRAIT_EP_SEND_ONLY : 0, false);
        lag(rng);
        require(strait_ep_complete(a.handle, NULL) == STRAIT_OK);
        party_complete_combine(&a);
        if (round == 0) {
            require(strait_ep_complete(b.handle, NULL) == STRAIT_OK);
            party_complete_combine(&b);
        }
    }
    party_end(&a);
    party_end(&b);
}

/* Two steps, call by call. */
static void run_alternately(struct strait_ep_group *group, uint32_t rank, uint32_t first, struct rng *rng)
{
    struct party parties[2];

    for (uint32_t i = 0; i < 2; i++)
        party_begin(&parties[i], group, &plan.scenarios[first + i], rank, plan.options[first + i]);
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < 4; i++) {
            lag(rng);
            party_update(&parties[i % 2]);
        }
        for (uint32_t i = 0; i < 4; i++)
            party_dispatch(&parties[i % 2], 0);
        for (uint32_t i = 0; i < 4; i++)
            party_combine(&parties[i % 2], 0, i == 0);
    }
    for (uint32_t i = 0; i < 2; i++)
        party_end(&parties[i]);
}

static void run_plan(struct member *member)
{
    const bool low_latency = plan.config.algorithm == STRAIT_EP_LOW_LATENCY;
    struct strait_ep_group *group = party_group(member, &plan.config);
    struct rng rng = rng_init(1000 + member->rank);

    for (uint32_t i = 0; i < plan.count; i++) {
        if (plan.paired && i + 1 < plan.count) {
            (low_latency ? run_pair : run_alternately)(group, member->rank, i, &rng);
            i++;
            continue;
        }
        struct party party;
        party_begin(&party, group, &plan.scenarios[i], member->rank, plan.options[i]);
        party.options.peers = plan.peers ? member : NULL;
        lag(&rng);
        party_step(&party);
        party_end(&party);
    }
    require(strait_ep_async_error(group, NULL) == STRAIT_OK);
    strait_ep_group_destroy(group);
}

/* ---- Random plans ------------------------------------------------------------------------------------------------ */

static struct strait_ep_config random_config(struct rng *rng, uint32_t ranks)
{
    struct strait_ep_config config = {.rank_count = ranks};
    const uint32_t local = 1 + rng_below(rng, 6);

    config.algorithm = rng_below(rng, 2) ? STRAIT_EP_HIGH_THROUGHPUT : STRAIT_EP_LOW_LATENCY;
    config.experts = local * ranks;
    config.tokens_max = 1 + rng_below(rng, REF_TOKENS);
    config.row_bytes_max = 16 * (1 + rng_below(rng, 8));
    config.scale_bytes_max = 4 * rng_below(rng, 5);
    config.topk_max = 1 + rng_below(rng, REF_TOPK);
    config.overflow = STRAIT_EP_DROP;
    if (rng_below(rng, 3) == 0)
        config.receive_max = 1 + rng_below(rng, ranks * config.tokens_max);
    config.heap_bytes = rng_below(rng, 2) ? 1u << 18 : 0;
    config.mask = config.algorithm == STRAIT_EP_LOW_LATENCY && rng_below(rng, 4) == 0;
    config.coding = rng_below(rng, 4) == 0 ? STRAIT_EP_CODED : STRAIT_EP_AUTO;
    config.timeout_ns = 100000000000u;
    return config;
}

static void random_scenario(struct rng *rng, const struct strait_ep_config *config, struct scenario *scenario)
{
    static const enum strait_element sums[] = {STRAIT_ELEMENT_BF16, STRAIT_ELEMENT_FP16, STRAIT_ELEMENT_FP32};
    const bool low_latency = config->algorithm == STRAIT_EP_LOW_LATENCY;
    const uint32_t all = config->rank_count * config->tokens_max;

    *scenario = (struct scenario){.seed = rng_next(rng),
                                  .ranks = config->rank_count,
                                  .experts = config->experts,
                                  .tokens_max = config->tokens_max,
                                  .topk = 1 + rng_below(rng, config->topk_max),
                                  .algorithm = config->algorithm,
                                  .alignment = 1,
                                  .type = rng_below(rng, 6),
                                  .combine_type = sums[rng_below(rng, 3)],
                                  .odd_values = rng_below(rng, 2) == 0};
    scenario->layout = rng_below(rng, 2) ? STRAIT_EP_EXPERT_MAJOR : low_latency ? STRAIT_EP_RANK_MAJOR : STRAIT_EP_FLAT;
    if (!low_latency && scenario->layout == STRAIT_EP_EXPERT_MAJOR)
        scenario->alignment = 1 + rng_below(rng, 9);
    scenario->receive_max = config->receive_max != 0 && config->receive_max < all ? config->receive_max : all;
    scenario->row_bytes = 16 * (1 + rng_below(rng, config->row_bytes_max / 16));
    scenario->combine_bytes = 16 * (1 + rng_below(rng, config->row_bytes_max / 16));
    scenario->scale_bytes = config->scale_bytes_max > 0 ? 4 * (1 + rng_below(rng, config->scale_bytes_max / 4)) : 0;
    for (uint32_t s = 0; s < scenario->ranks; s++)
        scenario->tokens[s] = rng_below(rng, 4) == 0 ? 0 : rng_below(rng, config->tokens_max + 1);
    ref_draw(scenario, rng, rng_below(rng, REF_ROUTINGS));
}

static struct party_options random_options(struct rng *rng, const struct scenario *scenario)
{
    const uint32_t bits = rng_below(rng, 256);

    return (struct party_options){.weights = bits & 1,
                                  .scales = (bits & 2) && scenario->scale_bytes > 0,
                                  .heap = bits & 4,
                                  .spare = bits & 8,
                                  .global_ids = bits & 16,
                                  .narrow = bits & 32,
                                  .counts = bits & 64,
                                  .wide_ids = bits & 128};
}

static void random_plan(struct rng *rng, uint32_t ranks, uint32_t count)
{
    plan.config = random_config(rng, ranks);
    plan.count = count < BATCH ? count : BATCH;
    plan.paired = rng_below(rng, 2) == 0;
    for (uint32_t i = 0; i < plan.count; i++) {
        random_scenario(rng, &plan.config, &plan.scenarios[i]);
        plan.options[i] = random_options(rng, &plan.scenarios[i]);
    }
}

static uint32_t shapes(void)
{
    const char *text = getenv("STRAIT_TEST_SHAPES");
    return text != NULL ? (uint32_t)strtoul(text, NULL, 10) : 10000 / STRIDE;
}

TEST(random_shapes_of_threads)
{
    struct rng rng = rng_init(1);
    uint32_t left = shapes();

    plan.lag = false;
    while (left > 0) {
        random_plan(&rng, 1 + rng_below(&rng, 4), left);
        world_run(plan.config.rank_count, false, run_plan, NULL);
        left -= plan.count;
    }
}
END_TEST

TEST(random_shapes_of_eight_threads_that_lag)
{
    struct rng rng = rng_init(2);
    uint32_t left = shapes() / 20;

    plan.lag = true;
    while (left > 0) {
        random_plan(&rng, 8, left);
        world_run(plan.config.rank_count, false, run_plan, NULL);
        left -= plan.count;
    }
}
END_TEST

TEST(random_shapes_of_processes)
{
    struct rng rng = rng_init(3);
    uint32_t left = shapes() / 10;

    while (left > 0) {
        plan.lag = rng_below(&rng, 4) == 0;
        random_plan(&rng, 2 + rng_below(&rng, 3), left);
        world_run(plan.config.rank_count, true, run_plan, NULL);
        left -= plan.count;
    }
}
END_TEST

/* Ranks of one host share memory, others have TCP. */
TEST(random_shapes_of_several_hosts)
{
    struct rng rng = rng_init(6);
    uint32_t left = shapes() / 10;

    while (left > 0) {
        plan.lag = rng_below(&rng, 4) == 0;
        random_plan(&rng, 2 + rng_below(&rng, 4), left);
        world_run_hosts(plan.config.rank_count, 2 + rng_below(&rng, plan.config.rank_count - 1), run_plan, NULL);
        left -= plan.count;
    }
}
END_TEST

/* ---- Chosen ones ------------------------------------------------------------------------------------------------- */

static const struct {
    enum strait_ep_algorithm algorithm;
    enum strait_ep_layout layout;
} layouts[] = {{STRAIT_EP_LOW_LATENCY, STRAIT_EP_EXPERT_MAJOR},
               {STRAIT_EP_LOW_LATENCY, STRAIT_EP_RANK_MAJOR},
               {STRAIT_EP_HIGH_THROUGHPUT, STRAIT_EP_FLAT},
               {STRAIT_EP_HIGH_THROUGHPUT, STRAIT_EP_EXPERT_MAJOR}};

/* A step of 4 ranks with 4 experts each, every option on. */
static void chosen_plan(int layout, enum ref_routing routing, uint32_t count)
{
    const bool low_latency = layouts[layout].algorithm == STRAIT_EP_LOW_LATENCY;
    struct rng rng = rng_init(4);

    plan = (struct plan){.config = {.rank_count = 4,
                                    .algorithm = layouts[layout].algorithm,
                                    .experts = 16,
                                    .tokens_max = REF_TOKENS,
                                    .row_bytes_max = 256,
                                    .scale_bytes_max = 16,
                                    .topk_max = 6,
                                    .heap_bytes = 1u << 20},
                         .count = count};
    for (uint32_t i = 0; i < count; i++) {
        struct scenario *scenario = &plan.scenarios[i];
        *scenario = (struct scenario){.seed = i,
                                      .ranks = 4,
                                      .experts = 16,
                                      .tokens_max = REF_TOKENS,
                                      .topk = 6,
                                      .algorithm = layouts[layout].algorithm,
                                      .layout = layouts[layout].layout,
                                      .alignment = low_latency || layouts[layout].layout == STRAIT_EP_FLAT ? 1 : 8,
                                      .receive_max = 4 * REF_TOKENS,
                                      .row_bytes = 128,
                                      .scale_bytes = 16,
                                      .combine_bytes = 256,
                                      .type = STRAIT_ELEMENT_FP8_E4M3,
                                      .combine_type = STRAIT_ELEMENT_BF16,
                                      .tokens = {REF_TOKENS, 0, 7, REF_TOKENS}};
        ref_draw(scenario, &rng, routing);
        plan.options[i] = (struct party_options){
            .weights = true, .scales = true, .heap = true, .spare = true, .global_ids = true, .counts = true};
    }
}

TEST_LOOP(tokens_that_go_to_one_rank, 4)
{
    chosen_plan(_i, REF_ONE, 3);
    world_run(4, false, run_plan, NULL);
}
END_TEST

/* Raw, and coded, where they are not used. */
TEST_LOOP(rows_go_straight_into_tensors_of_peers, 2)
{
    chosen_plan(2, REF_UNIFORM, 3);
    plan.peers = true;
    plan.config.coding = _i == 0 ? STRAIT_EP_RAW : STRAIT_EP_CODED;
    plan.options[1].heap = plan.options[2].spare = false;
    world_run(4, false, run_plan, NULL);
}
END_TEST

TEST_LOOP(tokens_with_few_experts_or_none, 4)
{
    chosen_plan(_i, REF_SPARSE, 3);
    world_run(4, false, run_plan, NULL);
}
END_TEST

TEST_LOOP(an_expert_counts_once_in_a_token, 4)
{
    chosen_plan(_i, REF_REPEATED, 3);
    world_run(4, false, run_plan, NULL);
}
END_TEST

TEST_LOOP(nobody_has_tokens, 4)
{
    chosen_plan(_i, REF_UNIFORM, 2);
    memset(plan.scenarios[0].tokens, 0, sizeof(plan.scenarios[0].tokens));
    ref_route(&plan.scenarios[0]);
    world_run(4, true, run_plan, NULL);
}
END_TEST

TEST_LOOP(coded_rows_are_the_same_bits, 4)
{
    chosen_plan(_i, REF_UNIFORM, 3);
    plan.config.coding = STRAIT_EP_CODED;
    world_run(4, false, run_plan, NULL);
    world_run(4, true, run_plan, NULL);
}
END_TEST

TEST_LOOP(rows_cross_hosts_raw_and_coded, 8)
{
    chosen_plan(_i / 2, REF_UNIFORM, 3);
    plan.config.coding = _i % 2 ? STRAIT_EP_CODED : STRAIT_EP_RAW;
    plan.paired = true;
    world_run_hosts(4, 2, run_plan, NULL);
    plan.paired = false;
    world_run_hosts(4, 4, run_plan, NULL);
}
END_TEST

TEST_LOOP(the_last_tokens_are_dropped_where_there_is_no_room, 2)
{
    chosen_plan(2 + _i, REF_SKEWED, 4);
    plan.config.overflow = STRAIT_EP_DROP;
    plan.config.receive_max = 20;
    for (uint32_t i = 0; i < plan.count; i++) {
        plan.scenarios[i].receive_max = 20;
        ref_route(&plan.scenarios[i]);
        require(plan.scenarios[i].overflow);
    }
    world_run(4, false, run_plan, NULL);
}
END_TEST

/* The largest group, of few tokens; last on eight hosts, LL and HT: processes, too many for sanitizers. */
TEST_LOOP(sixty_four_ranks, STRIDE == 1 ? 6 : 4)
{
    struct rng rng = rng_init(5);
    struct scenario *scenario = &plan.scenarios[0];

    chosen_plan(_i < 4 ? _i : 2 * (_i - 4), REF_UNIFORM, 1);
    plan.config.tokens_max = scenario->tokens_max = 3;
    plan.config.experts = scenario->experts = 128;
    scenario->ranks = STRAIT_EP_RANKS_MAX;
    scenario->receive_max = STRAIT_EP_RANKS_MAX * 3;
    for (uint32_t s = 0; s < scenario->ranks; s++)
        scenario->tokens[s] = s % 4;
    ref_draw(scenario, &rng, REF_UNIFORM);
    if (_i < 4)
        world_run(STRAIT_EP_RANKS_MAX, false, run_plan, NULL);
    else
        world_run_hosts(STRAIT_EP_RANKS_MAX, 8, run_plan, NULL);
}
END_TEST

/* What a group tells of itself. */
static void run_info(struct member *member)
{
    struct strait_ep_group *group = party_group(member, &plan.config);
    struct strait_ep_info info = {.size = sizeof(info)};
    struct party party;

    strait_ep_info(group, &info);
    require(strcmp(info.medium, "shared memory") == 0 && info.arena_bytes >= plan.config.heap_bytes);
    require(info.coded == (plan.config.coding == STRAIT_EP_CODED) && info.sent_bytes == 0 && info.raw_bytes == 0);
    party_begin(&party, group, &plan.scenarios[0], member->rank, plan.options[0]);
    party_update(&party);
    party_dispatch(&party, 0);
    strait_ep_info(group, &info);
    uint64_t rows = 0;
    for (uint32_t d = 0; d < 4; d++)
        rows += d != member->rank ? plan.scenarios[0].count[member->rank][d] : 0;
    require(info.raw_bytes == rows * plan.scenarios[0].row_bytes);
    require(info.coded || info.sent_bytes == info.raw_bytes);
    require(rows == 0 || info.sent_bytes > 0);
    party_end(&party);
    strait_ep_group_destroy(group);
}

TEST_LOOP(a_group_counts_the_bytes_it_sends, 8)
{
    chosen_plan(_i / 2, REF_UNIFORM, 1);
    plan.config.coding = _i % 2 ? STRAIT_EP_CODED : STRAIT_EP_RAW;
    world_run(4, false, run_info, NULL);
}
END_TEST

int main(void)
{
    print_conditions();
    return run_tests("ep", NULL, NULL);
}
