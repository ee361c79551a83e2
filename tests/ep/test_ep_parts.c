/* Parts of expert parallelism by themselves: the heap, the layout of arenas, sums of rows. */
#include <fenv.h>
#include <math.h>
#include <string.h>

#include "ep/heap.h"
#include "ep/host.h"
#include "tests/run_suite.h"
#include "tests/support.h"

/* ---- Heap -------------------------------------------------------------------------------------------------------- */

TEST(parts_of_the_heap_never_overlap)
{
    enum { UNITS = 64, HELD = 40 };
    struct ep_heap heap = {.bytes = UNITS * EP_HEAP_ALIGNMENT};
    struct rng rng = rng_init(1);
    bool taken[UNITS] = {false};
    struct {
        uint64_t offset, units;
    } held[HELD];
    uint32_t count = 0;

    for (int i = 0; i < 20000; i++) {
        if (count > 0 && (count == HELD || rng_below(&rng, 2) == 0)) {
            const uint32_t gone = rng_below(&rng, count);
            ep_heap_give(&heap, held[gone].offset);
            for (uint64_t u = 0; u < held[gone].units; u++)
                taken[held[gone].offset / EP_HEAP_ALIGNMENT + u] = false;
            held[gone] = held[--count];
            continue;
        }
        const uint64_t bytes = 1 + rng_below(&rng, 8 * EP_HEAP_ALIGNMENT);
        const uint64_t units = (bytes + EP_HEAP_ALIGNMENT - 1) / EP_HEAP_ALIGNMENT;
        uint64_t offset, run = 0, longest = 0;
        for (int u = 0; u < UNITS; u++) {
            run = taken[u] ? 0 : run + 1;
            longest = run > longest ? run : longest;
        }
        const bool found = ep_heap_take(&heap, bytes, &offset);
        require(found == (longest >= units)); /* where there is room it is found */
        if (!found)
            continue;
        require(offset % EP_HEAP_ALIGNMENT == 0 && offset / EP_HEAP_ALIGNMENT + units <= UNITS);
        require(ep_heap_room(&heap, offset) == units * EP_HEAP_ALIGNMENT &&
                ep_heap_room(&heap, offset + 16) == units * EP_HEAP_ALIGNMENT - 16);
        for (uint64_t u = 0; u < units; u++) {
            require(!taken[offset / EP_HEAP_ALIGNMENT + u]);
            taken[offset / EP_HEAP_ALIGNMENT + u] = true;
        }
        held[count].offset = offset;
        held[count++].units = units;
    }
    ep_heap_free(&heap);
    uint64_t offset;
    require(!ep_heap_take(&heap, 0, &offset) && !ep_heap_take(&heap, UINT64_MAX, &offset) &&
            !ep_heap_take(&heap, heap.bytes + 1, &offset) && ep_heap_take(&heap, heap.bytes, &offset) && offset == 0);
    ep_heap_free(&heap);
}
END_TEST

/* ---- Arenas ------------------------------------------------------------------------------------------------------ */

TEST(areas_of_an_arena_follow_each_other_and_have_room)
{
    struct rng rng = rng_init(2);

    for (int i = 0; i < 2000; i++) {
        const uint32_t ranks = 1 + rng_below(&rng, 64);
        const bool low_latency = rng_below(&rng, 2) == 0, coded = rng_below(&rng, 2) == 0;
        const struct strait_ep_config config = {.rank_count = ranks,
                                                .algorithm =
                                                    low_latency ? STRAIT_EP_LOW_LATENCY : STRAIT_EP_HIGH_THROUGHPUT,
                                                .experts = ranks * (1 + rng_below(&rng, 4096 / ranks)),
                                                .tokens_max = 1 + rng_below(&rng, 300),
                                                .receive_max = rng_below(&rng, 3000),
                                                .row_bytes_max = 16 * (1 + rng_below(&rng, 100)),
                                                .scale_bytes_max = 4 * rng_below(&rng, 50),
                                                .topk_max = 1 + rng_below(&rng, 32),
                                                .heap_bytes = rng_below(&rng, 100000)};
        struct ep_arena at;
        const uint32_t parts = low_latency ? 0 : rng_below(&rng, EP_PARTS_MAX + 1), chunks = parts > 0 ? parts : 1;
        const enum ep_rows rows = !coded ? EP_ROWS_RAW : rng_below(&rng, 2) ? EP_ROWS_CODED : EP_ROWS_BOTH;
        require(ep_arena_plan(&config, rows, parts, &at) == STRAIT_OK);
        require(!coded || low_latency || at.chunk_rows * chunks >= config.tokens_max);
        const uint64_t all = (uint64_t)ranks * config.tokens_max;
        require(low_latency ? at.slots == all && at.row_slots >= (uint64_t)config.tokens_max * config.topk_max
                            : at.slots <= all && at.row_slots == at.slots);
        const uint64_t starts[] = {at.flags,  at.wake, at.announce, at.counts, at.numbers, at.weights,
                                   at.scales, at.rows, at.chunks,   at.heap,   at.bytes};
        const uint64_t needs[] = {(uint64_t)EP_FLAG_KINDS * ranks * 8,
                                  sizeof(struct ep_wake),
                                  (uint64_t)ranks * sizeof(struct ep_announce),
                                  (uint64_t)at.buffers * ranks * ranks * 4,
                                  at.buffers * all * (config.topk_max + 1) * 4,
                                  (uint64_t)at.row_buffers * at.slots * config.topk_max * 4,
                                  (uint64_t)at.row_buffers * at.slots * config.scale_bytes_max,
                                  (uint64_t)at.row_buffers * at.row_slots * config.row_bytes_max,
                                  (uint64_t)at.row_buffers * ranks * chunks * at.chunk_bytes,
                                  config.heap_bytes};
        for (int a = 0; a < COUNT(needs); a++)
            require(starts[a] % 256 == 0 && starts[a] + needs[a] <= starts[a + 1]);
        require((at.chunk_bytes > 0) == coded && at.bytes % 4096 == 0);
    }
}
END_TEST

TEST(a_chunk_of_4_gib_is_refused)
{
    const struct strait_ep_config config = {.rank_count = 2,
                                            .algorithm = STRAIT_EP_HIGH_THROUGHPUT,
                                            .experts = 2,
                                            .tokens_max = 1u << 17,
                                            .row_bytes_max = 32768,
                                            .topk_max = 1};
    struct ep_arena at;

    require(ep_arena_plan(&config, EP_ROWS_CODED, 0, &at) == STRAIT_ERR_INVALID);
    require(ep_arena_plan(&config, EP_ROWS_RAW, 0, &at) == STRAIT_OK && at.bytes > 8ull << 30);
}
END_TEST

/* ---- Sums -------------------------------------------------------------------------------------------------------- */

/* All 16-bit values of a type in a row. */
static uint16_t every[65536];

static bool is_nan16(enum strait_element type, uint32_t x)
{
    return type == STRAIT_ELEMENT_BF16 ? (x & 0x7FFF) > 0x7F80 : (x & 0x7FFF) > 0x7C00;
}

TEST_LOOP(a_sum_of_one_row_is_that_row, 2)
{
    static uint16_t out[65536];
    const enum strait_element type = _i == 0 ? STRAIT_ELEMENT_BF16 : STRAIT_ELEMENT_FP16;
    const uint8_t *terms[] = {(const uint8_t *)every};

    for (uint32_t x = 0; x < 65536; x++)
        every[x] = (uint16_t)x;
    ep_host_sum(type, (uint8_t *)out, terms, NULL, 1, sizeof(every));
    for (uint32_t x = 0; x < 65536; x++)
        require(out[x] == (is_nan16(type, x) ? 0x7FFF : x));
}
END_TEST

/* Half the distance to the next value is added: ties go to even, what is a little more goes up. */
TEST(sums_are_rounded_to_nearest_even)
{
    const struct {
        enum strait_element type;
        uint32_t a, b, sum;
    } known[] = {
        {STRAIT_ELEMENT_BF16, 0x3F80, 0x3B80, 0x3F80}, /* 1 + 2^-8: a tie, down to 1 */
        {STRAIT_ELEMENT_BF16, 0x3F81, 0x3B80, 0x3F82}, /* a tie, up */
        {STRAIT_ELEMENT_BF16, 0x3F80, 0x3B81, 0x3F81},
        {STRAIT_ELEMENT_BF16, 0x7F7F, 0x7F7F, 0x7F80}, /* infinite */
        {STRAIT_ELEMENT_BF16, 0x7F80, 0xFF80, 0x7FFF}, /* infinite - infinite */
        {STRAIT_ELEMENT_BF16, 0x8000, 0x8000, 0x8000}, /* -0 + -0 */
        {STRAIT_ELEMENT_BF16, 0x8000, 0x0000, 0x0000},
        {STRAIT_ELEMENT_BF16, 0x0001, 0x0001, 0x0002}, /* subnormal */
        {STRAIT_ELEMENT_FP16, 0x3C00, 0x1000, 0x3C00}, /* 1 + 2^-11 */
        {STRAIT_ELEMENT_FP16, 0x3C01, 0x1000, 0x3C02},
        {STRAIT_ELEMENT_FP16, 0x7BFF, 0x4C00, 0x7C00}, /* 65504 + 16 */
        {STRAIT_ELEMENT_FP16, 0x7BFF, 0x4BFF, 0x7BFF}, /* a little less than 16 */
        {STRAIT_ELEMENT_FP16, 0x0001, 0x0001, 0x0002},
        {STRAIT_ELEMENT_FP16, 0x03FF, 0x0001, 0x0400}, /* subnormal to normal */
        {STRAIT_ELEMENT_FP32, 0x3F800000, 0x33800000, 0x3F800000},
        {STRAIT_ELEMENT_FP32, 0x00000001, 0x00000001, 0x00000002},
        {STRAIT_ELEMENT_FP32, 0xFF800001, 0x00000000, 0x7FFFFFFF},
    };

    for (int i = 0; i < COUNT(known); i++) {
        uint32_t a[4], b[4], out[4];
        const uint32_t size = known[i].type == STRAIT_ELEMENT_FP32 ? 4 : 2;
        const uint8_t *terms[] = {(const uint8_t *)a, (const uint8_t *)b};
        for (uint32_t at = 0; at < 16; at += size) {
            memcpy((uint8_t *)a + at, &known[i].a, size);
            memcpy((uint8_t *)b + at, &known[i].b, size);
        }
        ep_host_sum(known[i].type, (uint8_t *)out, terms, NULL, 2, 16);
        for (uint32_t at = 0; at < 16; at += size)
            require(memcmp((uint8_t *)out + at, &known[i].sum, size) == 0);
    }
}
END_TEST

/* A product is rounded before it is added: (1 + 2^-23)^2 - (1 + 2^-22) is 0 then, 2^-46 if it is fused. */
TEST(products_are_rounded_before_they_are_added)
{
    uint32_t first[4], second[4], out[4];
    const float weights[] = {-1.0f, 0x1.000002p0f};
    const uint8_t *terms[] = {(const uint8_t *)first, (const uint8_t *)second};

    for (int i = 0; i < 4; i++) {
        first[i] = 0x3F800002;
        second[i] = 0x3F800001;
    }
    ep_host_sum(STRAIT_ELEMENT_FP32, (uint8_t *)out, terms, weights, 2, 16);
    for (int i = 0; i < 4; i++)
        require(out[i] == 0);
}
END_TEST

/* A thread that rounds upwards, and flushes subnormal values, gets the same sums and keeps its settings. */
TEST(sums_do_not_depend_on_the_threads_rounding)
{
    static uint8_t a[4096], b[4096], expected[4096], out[4096];
    struct rng rng = rng_init(3);
    const uint8_t *terms[] = {a, b};
    fenv_t before;

    for (int type = STRAIT_ELEMENT_BF16; type <= STRAIT_ELEMENT_FP32; type++) {
        rng_fill(&rng, a, sizeof(a));
        rng_fill(&rng, b, sizeof(b));
        memset(a, 0, 256); /* subnormal ones too */
        for (int i = 0; i < 256; i += 4)
            a[i] = b[i] = 1;
        ep_host_sum(type, expected, terms, NULL, 2, sizeof(out));
        fegetenv(&before);
        fesetround(FE_UPWARD);
#ifdef __SSE__
        __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
        const unsigned flags = __builtin_ia32_stmxcsr() & 0xE040;
#endif
        ep_host_sum(type, out, terms, NULL, 2, sizeof(out));
#ifdef __SSE__
        require((__builtin_ia32_stmxcsr() & 0xE040) == flags);
#endif
        require(fegetround() == FE_UPWARD);
        fesetenv(&before);
        require(memcmp(out, expected, sizeof(out)) == 0);
    }
}
END_TEST

int main(void)
{
    print_conditions();
    return run_tests("ep_parts", NULL, NULL);
}
