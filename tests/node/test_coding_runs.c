/* Rates of whole legs by mode: with made-up speeds, the mode that is chosen carries nearly as much as the best one that
 * could be pinned, whatever each stage alone would suggest, and follows when the speeds change. */
#include <check.h>
#include <string.h>

#include "daemon/coding_runs.h"
#include "tests/run_suite.h"
#include "tests/support.h"

#define CHUNK (2ull << 20)
#define LEG   (64ull << 20)
#define GAIN  1.01
#define FP16  STRAIT_ELEMENT_FP16
#define RAW   STRAIT_MODE_RAW
#define SPLIT STRAIT_MODE_SPLIT
#define PARTS STRAIT_MODE_PARTS
#define BASE  STRAIT_MODE_BASE

/* A link and processors: what each mode is expected to carry, and carries. */
struct world {
    struct coding_runs runs;
    uint64_t now;
    struct coding_candidate candidates[4];
    double carries[POLICY_MODES];
    uint32_t count;
    double noise; /* of each leg's speed, as a fraction */
    struct rng rng;
};

static void setup_world(struct world *w, double raw, double parts, double split, double base)
{
    *w = (struct world){
        .candidates = {{RAW, 1.0e9, true}, {PARTS, 1.16e9, true}, {SPLIT, 1.16e9, true}, {BASE, 1.16e9, true}},
        .count = 4,
        .now = 1000};
    w->carries[RAW] = raw;
    w->carries[PARTS] = parts;
    w->carries[SPLIT] = split;
    w->carries[BASE] = base;
    w->rng = rng_init(1);
}

static enum strait_mode next_mode(struct world *w)
{
    return coding_mode(&w->runs, FP16, w->candidates, w->count, GAIN, w->now);
}

/* Moves a leg of `bytes` and returns the nanoseconds that it took. */
static uint64_t move_leg(struct world *w, uint64_t bytes)
{
    const uint64_t began = w->now;
    const double speed = 1 + w->noise * ((double)rng_below(&w->rng, 2001) / 1000 - 1);
    coding_leg_began(&w->runs, w->now);
    for (uint64_t at = 0; at < bytes; at += CHUNK) {
        const enum strait_mode mode = next_mode(w);
        w->now += (uint64_t)((double)CHUNK * 1e9 / (w->carries[mode] * speed));
        coding_carried(&w->runs, FP16, mode, CHUNK);
    }
    coding_leg_ended(&w->runs, w->now);
    const uint64_t took = w->now - began;
    w->now += 50000000; /* between legs nothing is under way */
    return took;
}

/* Bytes a second over so many legs. */
static double rate_over(struct world *w, uint32_t legs)
{
    uint64_t took = 0;
    for (uint32_t i = 0; i < legs; i++)
        took += move_leg(w, LEG);
    return (double)legs * (double)LEG * 1e9 / (double)took;
}

static const struct {
    const char *name;
    double raw, parts, split, base;
    double first; /* of the best mode, in the first 4 GiB, with what it takes to find out */
} worlds[] = {
    {"raw is best: processors are the limit", 1.25e9, 1.0e9, 0.9e9, 0.95e9, 0.97},
    {"raw is far better", 2.0e9, 0.5e9, 0.45e9, 0.4e9, 0.90},
    {"coding is best: the link is the limit", 1.0e9, 1.16e9, 1.16e9, 1.15e9, 0.97},
    {"one coding is best by far", 0.6e9, 0.5e9, 1.1e9, 0.5e9, 0.95},
    {"all are alike", 1.0e9, 1.0e9, 1.0e9, 1.0e9, 0.97},
};

TEST_LOOP(auto_carries_nearly_what_the_best_mode_does, sizeof(worlds) / sizeof(worlds[0]))
{
    struct world w;
    setup_world(&w, worlds[_i].raw, worlds[_i].parts, worlds[_i].split, worlds[_i].base);
    double best = 0;
    for (uint32_t m = 0; m < POLICY_MODES; m++)
        best = w.carries[m] > best ? w.carries[m] : best;
    w.noise = 0.05;
    const double all = rate_over(&w, 64);
    ck_assert_msg(all >= worlds[_i].first * best, "%s: %.3f of the best in the first 4 GiB", worlds[_i].name,
                  all / best);
    const double then = rate_over(&w, 256);
    ck_assert_msg(then >= 0.97 * best, "%s: %.3f of the best", worlds[_i].name, then / best);
}

TEST(a_link_that_becomes_slow_is_coded_for_at_once)
{
    struct world w;
    setup_world(&w, 1.25e9, 1.0e9, 0.9e9, 0.95e9);
    (void)rate_over(&w, 64);
    ck_assert(rate_over(&w, 64) >= 0.97 * 1.25e9);
    w.carries[RAW] = 0.12e9;
    w.carries[PARTS] = w.carries[SPLIT] = w.carries[BASE] = 0.139e9;
    (void)rate_over(&w, 8);
    ck_assert(rate_over(&w, 32) >= 0.97 * 0.139e9);
}

TEST(a_link_that_becomes_fast_is_left_raw)
{
    struct world w;
    setup_world(&w, 0.12e9, 0.139e9, 0.138e9, 0.138e9);
    (void)rate_over(&w, 64);
    ck_assert(rate_over(&w, 64) >= 0.97 * 0.139e9);
    w.carries[RAW] = 1.25e9;
    w.carries[PARTS] = w.carries[SPLIT] = w.carries[BASE] = 1.0e9;
    (void)rate_over(&w, 256);
    ck_assert(rate_over(&w, 64) >= 0.97 * 1.25e9);
}

TEST(the_first_run_is_not_counted)
{
    struct world w;
    setup_world(&w, 1e9, 1e9, 1e9, 1e9);
    (void)move_leg(&w, CODING_RUN_BYTES + CHUNK);
    ck_assert_uint_eq(0, w.runs.rates[FP16][PARTS].samples);
    (void)move_leg(&w, CODING_RUN_BYTES + CHUNK);
    ck_assert_uint_eq(1, w.runs.rates[FP16][PARTS].samples);
}

TEST(time_in_which_nothing_is_under_way_does_not_count)
{
    struct world w;
    setup_world(&w, 1e9, 1e9, 0.5e9, 0.5e9);
    for (int i = 0; i < 100; i++) {
        (void)move_leg(&w, CODING_LEG_BYTES);
        w.now += 5000000000;
    }
    const double rate = coding_rate(&w.runs, FP16, PARTS);
    ck_assert_msg(rate > 0.99e9 && rate < 1.01e9, "%.3f GB/s", rate * 1e-9);
}

TEST(legs_at_the_same_time_count_once)
{
    struct world w;
    setup_world(&w, 1e9, 1e9, 1e9, 1e9);
    for (int i = 0; i < 4; i++)
        coding_leg_began(&w.runs, w.now);
    for (int i = 0; i < 100; i++) {
        const enum strait_mode mode = next_mode(&w);
        w.now += CHUNK; /* a byte each nanosecond */
        coding_carried(&w.runs, FP16, mode, CHUNK);
    }
    const double rate = coding_rate(&w.runs, FP16, PARTS);
    ck_assert_msg(rate > 0.99e9 && rate < 1.01e9, "%.3f GB/s", rate * 1e-9);
}

/* Chunks of two types in turn tell of neither alone. */
TEST(mixed_types_are_not_measured)
{
    struct world w;
    setup_world(&w, 1e9, 1e9, 1e9, 1e9);
    coding_leg_began(&w.runs, w.now);
    for (int i = 0; i < 100; i++) {
        const enum strait_element element = i % 2 == 0 ? FP16 : STRAIT_ELEMENT_FP32;
        const enum strait_mode mode = coding_mode(&w.runs, element, w.candidates, w.count, GAIN, w.now);
        ck_assert_int_eq(PARTS, mode); /* as expected */
        w.now += CHUNK;
        coding_carried(&w.runs, element, mode, CHUNK);
    }
    for (uint32_t m = 0; m < POLICY_MODES; m++)
        ck_assert_uint_eq(0, w.runs.rates[FP16][m].samples + w.runs.rates[STRAIT_ELEMENT_FP32][m].samples);
}

/* A pool whose pages do not shrink by a mode has other candidates than the open run. */
TEST(a_mode_that_is_not_offered_is_not_taken)
{
    struct world w;
    setup_world(&w, 1e9, 1e9, 1e9, 1e9);
    coding_leg_began(&w.runs, w.now);
    ck_assert_int_eq(PARTS, next_mode(&w));
    w.count = 1;
    ck_assert_int_eq(RAW, next_mode(&w));
}

int main(void)
{
    return run_tests("coding_runs", NULL, NULL);
}
