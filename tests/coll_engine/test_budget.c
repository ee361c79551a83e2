/* Budgets of overflows, by themselves: operations of a class on networks of several rates, of which reports come later
 * and steps later still, in modelled time. */
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
    const struct need need = {index, fitting, LEVELS};
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

int main(void)
{
    return run_tests("coll_budget", NULL, NULL);
}
