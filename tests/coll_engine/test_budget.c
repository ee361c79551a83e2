/* Budgets of overflows and the comparison of times, without an engine: operations of a class on networks of several
 * rates, of which reports come later and steps later still, in modelled time. */
#include <string.h>

#include "collective/engine/levels.h"
#include "collective/engine/plan.h"
#include "tests/run_suite.h"
#include "tests/support.h"

/* Bytes a second: what one thread moves of overflows by TCP, and what the codec does. */
#define REPAIR 2.8e9
#define CODEC  0.5e12

enum { LEVELS = 31, NOISE = LEVELS, QUEUE_MAX = 64, AHEAD = OP_CLASS_AHEAD };

/* Of one byte of raw values, relative to NCCL's time for it: what is fitting. */
struct network {
    double coding, repair;
};

static struct network network_of(double gbit)
{
    return (struct network){.coding = gbit / 8 * 1e9 / CODEC, .repair = gbit / 8 * 1e9 / REPAIR};
}

static double coded(const struct network *network, unsigned level)
{
    return 0.684 + level / 128.0 + network->coding;
}

/* The level that operation `index` needs; NOISE: none. */
typedef unsigned needs(uint64_t index);

struct model {
    struct network network;
    needs *needs;
    unsigned queue; /* operations that are issued before anything of the first one is known */
    struct level level;
    struct budget budget;
    unsigned levels[QUEUE_MAX]; /* of those that are queued */
    double time;                /* of all so far; 1 each without the library */
    uint64_t compressed, overflows, probes;
};

static void hear(struct model *model, uint64_t index, uint64_t issued)
{
    const unsigned level = model->levels[index % QUEUE_MAX], fitting = model->needs(index);
    const struct need need = {index, fitting, LEVELS, false};
    bool step = false;
    if (level == LEVEL_PROBE)
        step = budget_probed(&model->budget, &model->level, &need);
    else if (level < LEVELS && fitting > level)
        step = budget_overflowed(&model->budget, &model->level, &need);
    if (step)
        budget_step(&model->budget, &model->level, issued + AHEAD);
}

static void issue(struct model *model, uint64_t index)
{
    const struct network *network = &model->network;
    const struct op_cost cost = {1, coded(network, 0), network->repair};
    const unsigned level = budget_level_at(&model->level, index);
    const bool probe = level == LEVEL_PROBE, raw = level == LEVEL_RAW;
    const bool overflows = !probe && !raw && model->needs(index) > level;
    budget_issue(&model->budget, level, &cost);
    model->levels[index % QUEUE_MAX] = level;
    model->time += raw ? 1 : probe ? 1.01 + network->coding : coded(network, level);
    model->time += overflows ? network->repair : 0;
    model->probes += probe;
    model->overflows += overflows;
    model->compressed += !probe && !raw;
}

/* NCCL's time by ours. */
static double run_model(struct model *model, uint64_t operations)
{
    for (uint64_t i = 0; i < operations; i++) {
        if (i >= model->queue)
            hear(model, i - model->queue, i);
        issue(model, i);
    }
    return (double)operations / model->time;
}

static unsigned fits(uint64_t index)
{
    (void)index;
    return 0;
}

static unsigned is_noise(uint64_t index)
{
    (void)index;
    return NOISE;
}

static unsigned five_of_2000_do_not(uint64_t index)
{
    return index % 400 == 399 ? NOISE : 0;
}

static unsigned needs_level_5(uint64_t index)
{
    (void)index;
    return 5;
}

/* Layers of one kind, of which the last needs more room. */
static unsigned one_layer_of_8_needs_level_5(uint64_t index)
{
    return index % 8 == 7 ? 5 : 0;
}

static unsigned turns_to_noise(uint64_t index)
{
    return index < 1000 ? 0 : NOISE;
}

static unsigned noise_at_first(uint64_t index)
{
    return index < 300 ? NOISE : 0;
}

/* The worst: nothing fits but what is asked for beforehand. */
static struct model *watched;

static unsigned is_noise_but_for_probes(uint64_t index)
{
    return watched->levels[index % QUEUE_MAX] == LEVEL_PROBE ? 0 : NOISE;
}

/* NCCL's time by ours has to be at least this; by data, network and how many operations are issued ahead. */
static const double networks[] = {10, 25, 40, 100, 400};
static const unsigned queues[] = {1, 16, 60};
static const struct bar {
    const char *what;
    needs *needs;
    uint64_t operations;
    double least[COUNT(networks)];
} bars[] = {
    {"fits", fits, 2000, {1.42, 1.40, 1.40, 1.35, 1.20}},
    {"five of 2000 do not fit", five_of_2000_do_not, 2000, {1.40, 1.38, 1.38, 1.32, 1.13}},
    {"noise", is_noise, 2000, {0.998, 0.998, 0.998, 0.998, 0.995}},
    {"noise for long", is_noise, 200000, {0.999, 0.999, 0.999, 0.999, 0.999}},
    {"needs a higher level", needs_level_5, 2000, {1.33, 1.33, 1.32, 1.29, 1.15}},
    {"one layer needs more", one_layer_of_8_needs_level_5, 20000, {1.34, 1.31, 1.30, 1.28, 1.13}},
    {"turns to noise", turns_to_noise, 400000, {0.99, 0.99, 0.99, 0.99, 0.99}},
    {"noise at first", noise_at_first, 4000, {1.26, 1.26, 1.26, 1.24, 1.15}},
    {"always another", is_noise_but_for_probes, 2000000, {0.98, 0.98, 0.98, 0.98, 0.98}},
};

TEST_LOOP(overflows_are_bounded_over_time, COUNT(bars) * COUNT(networks) * COUNT(queues))
{
    const struct bar *bar = &bars[_i / COUNT(networks) / COUNT(queues)];
    const unsigned network = (unsigned)_i / COUNT(queues) % COUNT(networks);
    struct model model = {
        .network = network_of(networks[network]), .needs = bar->needs, .queue = queues[_i % COUNT(queues)]};
    watched = &model;
    const double gain = run_model(&model, bar->operations);
    if (gain < bar->least[network] || getenv("SHOW") != NULL)
        fprintf(stderr, "%s, %.0f Gbit/s, %u ahead: %.3f, %llu compressed, %llu overflows, %llu probes\n", bar->what,
                networks[network], model.queue, gain, (unsigned long long)model.compressed,
                (unsigned long long)model.overflows, (unsigned long long)model.probes);
    ck_assert(gain >= bar->least[network]);
}

/* ---- What another rank reports of the same operation ------------------------------------------------------------- */

TEST(reports_of_a_known_operation_count_for_what_it_needs_alone)
{
    struct level level = {0};
    struct budget budget = {0};
    const struct need probe = {0, 1, LEVELS, false}, same = {0, 3, LEVELS, true}, noise = {1, LEVELS, LEVELS, true};
    ck_assert(!budget_probed(&budget, &level, &probe) && !budget_probed(&budget, &level, &same));
    ck_assert_uint_eq(budget.probes, 1);
    ck_assert_uint_eq(budget.needed, 3);
    ck_assert(budget_probed(&budget, &level, &noise)); /* what does not shrink on one rail does not on all */
    level = (struct level){.now = {.from = 0, .until = 1000, .level = 1}};
    budget = (struct budget){.credit = 10, .repair = 1};
    const struct need first = {20, 2, LEVELS, false}, known = {20, 5, LEVELS, true}, second = {30, 2, LEVELS, false};
    ck_assert(!budget_overflowed(&budget, &level, &first) && !budget_overflowed(&budget, &level, &known));
    ck_assert(budget.credit == 9);
    ck_assert(budget_overflowed(&budget, &level, &second));
    ck_assert_uint_eq(budget.next_level, 5);
}

/* ---- What takes longer than was measured ------------------------------------------------------------------------- */

/* Times of operations vary by up to a fifth, and ranks that are late make some of them take several times as long. */
static double varied(unsigned *seed)
{
    const double late = rand_r(seed) % 4 == 0 ? 3 * (double)rand_r(seed) / RAND_MAX : 0;
    return 0.9 + 0.2 * (double)rand_r(seed) / RAND_MAX + late;
}

/* Mean times of a compressed operation relative to NCCL's, NCCL's time by ours in the long run. */
static const struct {
    double coded, least, most;
} times[] = {{0.7, 1.40, 1.43}, {0.9, 1.07, 1.12}, {1.05, 0.985, 1}, {1.3, 0.985, 1}, {4, 0.97, 1}};

TEST_LOOP(what_takes_longer_goes_raw, COUNT(times) * 3)
{
    enum { OPERATIONS = 400000, EVERY = 8 };
    const double coded = times[_i % COUNT(times)].coded;
    struct comparison comparison = {0};
    unsigned seed = 1 + (unsigned)_i;
    uint64_t from = 0, raw_until = 0;
    double ours = 0;
    for (uint64_t i = 0; i < OPERATIONS; i++) {
        const bool rests = i < raw_until, left_raw = !rests && compare_leaves_raw(i - from);
        uint64_t rest = 0;
        ours += rests || left_raw ? 1 : coded;
        if (left_raw)
            rest = compare_add(&comparison, true, varied(&seed));
        else if (!rests && i % EVERY == 0)
            rest = compare_add(&comparison, false, coded * varied(&seed));
        if (rest > 0)
            raw_until = from = i + AHEAD + rest;
    }
    const double gain = OPERATIONS / ours;
    if (gain < times[_i % COUNT(times)].least || gain > times[_i % COUNT(times)].most)
        fprintf(stderr, "%.2f of NCCL's time: %.3f of its speed in the long run\n", coded, gain);
    ck_assert(gain >= times[_i % COUNT(times)].least && gain <= times[_i % COUNT(times)].most);
}

int main(void)
{
    return run_tests("coll_budget", NULL, NULL);
}
