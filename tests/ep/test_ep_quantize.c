/* Quantization of rows: what comes of each BF16 value, and what is refused. */
#include <fenv.h>
#include <math.h>
#include <string.h>

#include "tests/ep/quantized.h"
#include "tests/ep/world.h"
#include "tests/run_suite.h"

enum { BLOCKS = 65536 / QUANTIZED_VALUES };

static struct strait_ep_group *group;
static uint16_t rows[65536] __attribute__((aligned(16)));
static uint8_t quantized[65536] __attribute__((aligned(16)));
static float scales[BLOCKS];

static int alone(void *context, const void *send, void *receive, size_t bytes)
{
    (void)context;
    memcpy(receive, send, bytes);
    return 0;
}

static void make_group(void)
{
    const struct strait_ep_config config = {.size = sizeof(config),
                                            .all_gather = alone,
                                            .rank_count = 1,
                                            .experts = 1,
                                            .tokens_max = 1,
                                            .row_bytes_max = 16,
                                            .topk_max = 1};
    require(strait_ep_group_create(&config, &group, NULL, 0) == STRAIT_OK);
}

/* `rows` as rows of `blocks` blocks. */
static struct strait_ep_quantization quantization_of(uint32_t blocks, bool powers)
{
    const uint32_t values = blocks * QUANTIZED_VALUES;
    return (struct strait_ep_quantization){.size = sizeof(struct strait_ep_quantization),
                                           .rows = {rows, 2 * values, STRAIT_ELEMENT_BF16},
                                           .quantized = {quantized, values, STRAIT_ELEMENT_FP8_E4M3},
                                           .scales = scales,
                                           .count = 65536 / values,
                                           .powers_of_two = powers};
}

static void check(bool powers)
{
    for (uint32_t b = 0; b < BLOCKS; b++) {
        const uint16_t *values = rows + b * QUANTIZED_VALUES;
        uint8_t expected[QUANTIZED_VALUES];
        const float scale = ref_quantize(values, powers, expected);
        ck_assert_msg(memcmp(&scale, &scales[b], sizeof(scale)) == 0, "block %u: scale %a, not %a", b,
                      (double)scales[b], (double)scale);
        for (uint32_t i = 0; i < QUANTIZED_VALUES; i++)
            ck_assert_msg(quantized[b * QUANTIZED_VALUES + i] == expected[i],
                          "block %u of scale %a: %04x is %02x, not %02x", b, (double)scale, values[i],
                          quantized[b * QUANTIZED_VALUES + i], expected[i]);
    }
}

/* Values in their order have neighbours of their size; in any order, of all sizes; without those that are not finite,
 * and of sizes that are not far apart, as real ones. */
TEST_LOOP(every_value_becomes_the_nearest_one, 6)
{
    const bool powers = _i % 2 != 0;
    struct rng rng = rng_init((uint64_t)_i);
    for (uint32_t i = 0; i < 65536; i++)
        rows[i] = (uint16_t)i;
    for (uint32_t i = 65535; i > 0 && _i >= 2; i--) {
        const uint32_t other = rng_below(&rng, i + 1);
        const uint16_t value = rows[i];
        rows[i] = rows[other];
        rows[other] = value;
    }
    for (uint32_t i = 0; i < 65536 && _i >= 4; i++) {
        const uint32_t exponent = i / QUANTIZED_VALUES % 240 + (rows[i] >> 7 & 15);
        rows[i] = (uint16_t)((rows[i] & 0x807F) | exponent << 7);
    }
    make_group();
    const struct strait_ep_quantization quantization = quantization_of(1u << _i, powers);
    require(strait_ep_quantize(group, &quantization, NULL) == STRAIT_OK);
    check(powers);
    strait_ep_group_destroy(group);
}
END_TEST

/* Known ones, for people. */
TEST(blocks_of_special_values_are_as_documented)
{
    static const struct {
        uint16_t others, one; /* of a block */
        bool powers;
        float scale;
        uint8_t quantized_others, quantized_one;
    } known[] = {
        {0x0000, 0x8000, false, 0x1.df595ap-23f, 0x00, 0x80}, /* zeroes: 1e-4 / 448 */
        {0x0000, 0x0001, true, 0x1p-22f, 0x00, 0x00},         /* a subnormal value */
        {0x3F80, 0xC3E0, false, 1.0f, 0x38, 0xFE},            /* 1 and -448 */
        {0x3F80, 0x7FC0, true, 0x1p-8f, 0x78, 0x7F},          /* 1 and NaN: 1 / 448 is above 2^-9 */
        {0x3F80, 0xFF80, false, INFINITY, 0x00, 0x7F},        /* 1 and -infinity */
        {0xBF80, 0x7F80, true, INFINITY, 0x80, 0x7F},         /* -1 and infinity */
        {0xFFFF, 0xFFFF, false, 0x1.df595ap-23f, 0x7F, 0x7F}, /* NaN */
    };
    make_group();
    for (int i = 0; i < COUNT(known); i++) {
        struct strait_ep_quantization quantization = quantization_of(1, known[i].powers);
        quantization.count = 1;
        for (int v = 0; v < QUANTIZED_VALUES; v++)
            rows[v] = v == 77 ? known[i].one : known[i].others;
        require(strait_ep_quantize(group, &quantization, NULL) == STRAIT_OK);
        ck_assert_msg(scales[0] == known[i].scale, "%d: %a", i, (double)scales[0]);
        for (int v = 0; v < QUANTIZED_VALUES; v++)
            ck_assert_msg(quantized[v] == (v == 77 ? known[i].quantized_one : known[i].quantized_others), "%d: %02x", i,
                          quantized[v]);
    }
    strait_ep_group_destroy(group);
}
END_TEST

/* A thread that rounds upwards, and flushes subnormal values, gets the same rows and keeps its settings. */
TEST_LOOP(rows_do_not_depend_on_the_threads_rounding, 2)
{
    struct rng rng = rng_init(9);
    fenv_t before;

    rng_fill(&rng, rows, sizeof(rows));
    memset(rows, 0, 512);
    make_group();
    const struct strait_ep_quantization quantization = quantization_of(4, _i != 0);
    fegetenv(&before);
    fesetround(FE_UPWARD);
#ifdef __SSE__
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
    const unsigned flags = __builtin_ia32_stmxcsr() & 0xE040;
#endif
    require(strait_ep_quantize(group, &quantization, NULL) == STRAIT_OK);
#ifdef __SSE__
    require((__builtin_ia32_stmxcsr() & 0xE040) == flags);
#endif
    require(fegetround() == FE_UPWARD);
    fesetenv(&before);
    check(_i != 0);
    strait_ep_group_destroy(group);
}
END_TEST

TEST(what_cannot_be_quantized_is_refused)
{
    make_group();
    const struct strait_ep_quantization good = quantization_of(3, false);
    struct strait_ep_quantization wrong[13];
    for (int i = 0; i < COUNT(wrong); i++)
        wrong[i] = good;
    wrong[0].size--;
    wrong[1].rows.type = STRAIT_ELEMENT_FP16;
    wrong[2].quantized.type = STRAIT_ELEMENT_FP8_E5M2;
    wrong[3].rows.row_bytes += 256;
    wrong[4].rows.row_bytes = 2 * (wrong[4].quantized.row_bytes = 3 * 64);
    wrong[5].rows.row_bytes = wrong[5].quantized.row_bytes = 0;
    wrong[6].rows.data = rows + 1;
    wrong[7].quantized.data = quantized + 8;
    wrong[8].scales = (float *)((uint8_t *)scales + 2);
    wrong[9].rows.data = NULL;
    wrong[10].quantized.data = NULL;
    wrong[11].scales = NULL;
    wrong[12].quantized.row_bytes = 1u << 31; /* twice as much is no uint32 */
    wrong[12].rows.row_bytes = 0;
    memset(quantized, 0x55, sizeof(quantized));
    for (int i = 0; i < COUNT(wrong); i++)
        ck_assert_msg(strait_ep_quantize(group, &wrong[i], NULL) == STRAIT_ERR_INVALID, "%d", i);
    require(strait_ep_quantize(NULL, &good, NULL) == STRAIT_ERR_INVALID);
    require(strait_ep_quantize(group, NULL, NULL) == STRAIT_ERR_INVALID);
    for (size_t i = 0; i < sizeof(quantized); i++)
        require(quantized[i] == 0x55);
    struct strait_ep_quantization none = good;
    none.count = 0;
    none.rows.data = none.quantized.data = none.scales = NULL;
    require(strait_ep_quantize(group, &none, NULL) == STRAIT_OK);
    strait_ep_group_destroy(group);
}
END_TEST

int main(void)
{
    print_conditions();
    return run_tests("ep_quantize", NULL, NULL);
}
