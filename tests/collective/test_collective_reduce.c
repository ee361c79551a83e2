/* The scalar sums against numbers: each BF16 and FP16 value with many others, by a reference that rounds by looking for
 * the nearest value in a list of all. */
#include <math.h>
#include <string.h>

#include "tests/collective/reduce_values.h"
#include "tests/run_suite.h"

enum { ALL = 65536, RANKS = 7, PARTNERS = 96 };

/* ---- The reference ----------------------------------------------------------------------------------------------- */

/* Finite values of a type of 16 bits that are not negative, ascending; one more, where infinity would follow. */
static struct list {
    double value[0x8000];
    uint32_t infinity;
} lists[2];

static double value_of(enum coll_reduce_type type, uint32_t bits)
{
    const int mantissa = type == COLL_REDUCE_BF16 ? 7 : 10, bias = type == COLL_REDUCE_BF16 ? 127 : 15;
    const int exponent = (int)((bits & 0x7fff) >> mantissa);
    const double fraction = (double)(bits & ((1u << mantissa) - 1));
    double x = exponent == 0 ? ldexp(fraction, 1 - bias - mantissa)
                             : ldexp(fraction + (1 << mantissa), exponent - bias - mantissa);
    if (exponent == 2 * bias + 1)
        x = fraction != 0 ? NAN : INFINITY;
    return bits & 0x8000 ? -x : x;
}

static void setup(void)
{
    for (int type = 0; type < 2; type++) {
        struct list *list = &lists[type];
        list->infinity = type == COLL_REDUCE_BF16 ? 0x7f80 : 0x7c00;
        for (uint32_t i = 0; i < list->infinity; i++)
            list->value[i] = value_of((enum coll_reduce_type)type, i);
        list->value[list->infinity] = 2 * list->value[list->infinity - 1] - list->value[list->infinity - 2];
    }
}

static uint32_t nearest(enum coll_reduce_type type, double x)
{
    const struct list *list = &lists[type];
    const uint32_t sign = signbit(x) ? 0x8000 : 0;
    const double size = fabs(x);
    uint32_t low = 0, high = list->infinity;
    if (isnan(x))
        return 0x7fff;
    if (size >= list->value[high])
        return sign | list->infinity;
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (list->value[middle] <= size)
            low = middle;
        else
            high = middle;
    }
    const double below = size - list->value[low], above = list->value[high] - size;
    return sign | (above < below || (above == below && low % 2 != 0) ? high : low);
}

/* Of numbers with at most 17 bits: exact, but that what is so small that only its sign matters is made larger. */
static double add_exactly(double a, double b)
{
    if (fabs(a) < fabs(b)) {
        const double c = a;
        a = b;
        b = c;
    }
    if (b != 0 && fabs(b) < ldexp(fabs(a), -30) && !isinf(a))
        b = copysign(ldexp(fabs(a), -30), b);
    return a + b;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

static uint8_t values[RANKS][4 * ALL], sums[4 * ALL];

static struct coll_reduce ask(enum coll_reduce_type type, enum coll_reduce_operation operation, uint32_t sources)
{
    struct coll_reduce reduce = {.type = type, .operation = operation, .sources = sources, .dst = sums, .count = ALL};
    for (uint32_t i = 0; i < sources && i < RANKS; i++)
        reduce.source[i] = values[i];
    return reduce;
}

static void run(const struct coll_reduce *reduce)
{
    ck_assert_int_eq(STRAIT_OK, coll_reduce_scalar(reduce));
}

/* Check's own assertions tell where they are each time, which is too much for so many. */
static void expect(enum coll_reduce_type type, uint32_t expected, uint32_t at)
{
    const uint32_t sum = reduce_get(type, sums, at);
    if (sum != expected)
        ck_abort_msg("element %x: %x and %x: %x, not %x", at, reduce_get(type, values[0], at),
                     reduce_get(type, values[1], at), sum, expected);
}

/* Of values one by one; by rank. */
static uint32_t of(struct coll_reduce reduce, const uint32_t *bits)
{
    for (uint32_t i = 0; i < reduce.sources; i++)
        reduce_put(reduce.type, values[i], 0, bits[i]);
    reduce.count = 1;
    run(&reduce);
    return reduce_get(reduce.type, sums, 0);
}

static uint32_t of_two(enum coll_reduce_type type, enum coll_reduce_operation operation, uint32_t a, uint32_t b)
{
    const uint32_t bits[] = {a, b};
    return of(ask(type, operation, 2), bits);
}

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

START_TEST(every_value_of_16_bits_plus_others_is_rounded_once_in_both_orders)
{
    struct rng rng = rng_init(700 + (uint64_t)_i);
    const enum coll_reduce_type type = (enum coll_reduce_type)(_i % 2);
    const uint32_t partner = reduce_addend(&rng, type, (enum addend)(_i / 2 % ADDENDS));
    struct coll_reduce reduce = ask(type, COLL_REDUCE_SUM, 2);
    if (_i % STRIDE != 0)
        return;
    for (uint32_t i = 0; i < ALL; i++) {
        reduce_put(type, values[0], i, i);
        reduce_put(type, values[1], i, partner);
    }
    for (int k = 0; k < 3; k++) {
        reduce.order = k == 0 ? COLL_REDUCE_IN_FP32 : COLL_REDUCE_NCCL_RING;
        reduce.rank = k == 2;
        run(&reduce);
        for (uint32_t i = 0; i < ALL; i++) {
            const uint32_t expected = nearest(type, add_exactly(value_of(type, i), value_of(type, partner)));
            expect(type, expected, i);
        }
    }
}
END_TEST

START_TEST(the_ring_rounds_after_each_rank_and_means_are_fused_but_for_the_first)
{
    struct rng rng = rng_init(710 + (uint64_t)_i);
    const enum coll_reduce_type type = (enum coll_reduce_type)(_i % 2);
    const bool mean = _i / 2 % 2 != 0;
    const uint32_t n = (const uint32_t[]){2, 3, 5, RANKS}[_i / 4 % 4]; /* by 1/7, products may be ties */
    struct coll_reduce reduce = ask(type, mean ? COLL_REDUCE_AVG : COLL_REDUCE_SUM, n);
    const double share = mean ? value_of(type, nearest(type, (double)(float)(1.0 / n))) : 1;
    for (uint32_t r = 0; r < n; r++)
        reduce_fill(&rng, type, (enum addend)(_i / 16), values[r], ALL);
    reduce.order = COLL_REDUCE_NCCL_RING;
    reduce.rank = rng_below(&rng, n);
    run(&reduce);
    for (uint32_t i = 0; i < ALL; i++) {
        uint32_t sum = 0;
        for (uint32_t k = 1; k <= n; k++) {
            const double x = value_of(type, reduce_get(type, values[(reduce.rank + k) % n], i)) * share;
            sum = nearest(type, k == 1 ? x : add_exactly(x, value_of(type, sum)));
        }
        expect(type, sum, i);
    }
}
END_TEST

START_TEST(in_fp32_values_are_added_by_rank_and_rounded_to_the_type_once)
{
    struct rng rng = rng_init(720 + (uint64_t)_i);
    const enum coll_reduce_type type = (enum coll_reduce_type)(_i % 2);
    const bool mean = _i / 2 % 2 != 0;
    struct coll_reduce reduce = ask(type, mean ? COLL_REDUCE_AVG : COLL_REDUCE_SUM, RANKS);
    for (uint32_t r = 0; r < RANKS; r++)
        reduce_fill(&rng, type, (enum addend)(_i / 4), values[r], ALL);
    run(&reduce);
    for (uint32_t i = 0; i < ALL; i++) {
        volatile float sum = (float)value_of(type, reduce_get(type, values[0], i));
        for (uint32_t r = 1; r < RANKS; r++)
            sum = sum + (float)value_of(type, reduce_get(type, values[r], i));
        sum = mean ? sum * (1.0f / RANKS) : sum;
        expect(type, nearest(type, (double)sum), i);
    }
}
END_TEST

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return isnan(x) ? 0x7fffffff : bits;
}

START_TEST(sums_and_means_of_fp32_are_those_of_the_processor)
{
    struct rng rng = rng_init(730 + (uint64_t)_i);
    struct coll_reduce ring, in_fp32 = ask(COLL_REDUCE_FP32, COLL_REDUCE_AVG, 3);
    for (uint32_t r = 0; r < 3; r++)
        reduce_fill(&rng, COLL_REDUCE_FP32, (enum addend)_i, values[r], ALL);
    ring = in_fp32;
    ring.order = COLL_REDUCE_NCCL_RING;
    ring.rank = 1;
    for (uint32_t i = 0; i < ALL / 4; i++) {
        float x[3];
        uint32_t bits[3];
        for (uint32_t r = 0; r < 3; r++) {
            bits[r] = reduce_get(COLL_REDUCE_FP32, values[r], i);
            memcpy(&x[r], &bits[r], sizeof(x[r]));
        }
        const volatile float first = x[0] + x[1], all = first + x[2], product = x[2] * (1 / 3.0f);
        const uint32_t around = bits_of(fmaf(x[1], 1 / 3.0f, fmaf(x[0], 1 / 3.0f, product)));
        if (of(in_fp32, bits) != bits_of(all * (1 / 3.0f)) || of(ring, bits) != around)
            ck_abort_msg("%x, %x and %x", bits[0], bits[1], bits[2]);
    }
}
END_TEST

START_TEST(order_matters)
{
    const uint32_t fp32[] = {0x3f800000, 0x4cbebc20, 0xccbebc20}; /* 1, 1e8, -1e8 */
    const uint32_t bf16[] = {0x3f80, 0x3b80, 0x3b80, 0x3b80};     /* 1, three times 2^-8 */
    struct coll_reduce three = ask(COLL_REDUCE_FP32, COLL_REDUCE_SUM, 3),
                       four = ask(COLL_REDUCE_BF16, COLL_REDUCE_SUM, 4);
    ck_assert_uint_eq(0, of(three, fp32));
    ck_assert_uint_eq(0x3f82, of(four, bf16)); /* 1 + 3/256, a tie: even */
    three.order = four.order = COLL_REDUCE_NCCL_RING;
    ck_assert_uint_eq(0x3f800000, of(three, fp32)); /* 1 comes last */
    three.rank = 1;
    ck_assert_uint_eq(0, of(three, fp32)); /* -1e8, 1, 1e8 */
    four.rank = 3;
    ck_assert_uint_eq(0x3f80, of(four, bf16)); /* 1 comes first: each 2^-8 is lost */
    four.rank = 0;
    ck_assert_uint_eq(0x3f82, of(four, bf16));
}
END_TEST

/* ---- What is no ordinary number ---------------------------------------------------------------------------------- */

START_TEST(signs_of_zero_infinities_and_subnormals_are_kept)
{
    ck_assert_uint_eq(0x8000, of_two(COLL_REDUCE_BF16, COLL_REDUCE_SUM, 0x8000, 0x8000));
    ck_assert_uint_eq(0, of_two(COLL_REDUCE_BF16, COLL_REDUCE_SUM, 0x8000, 0));
    ck_assert_uint_eq(0, of_two(COLL_REDUCE_FP16, COLL_REDUCE_SUM, 0x3c00, 0xbc00));
    ck_assert_uint_eq(2, of_two(COLL_REDUCE_BF16, COLL_REDUCE_SUM, 1, 1));
    ck_assert_uint_eq(0x0400, of_two(COLL_REDUCE_FP16, COLL_REDUCE_SUM, 0x03ff, 1));
    ck_assert_uint_eq(0x007fffff, of_two(COLL_REDUCE_FP32, COLL_REDUCE_SUM, 0x00800000, 0x80000001));
    ck_assert_uint_eq(0xff80, of_two(COLL_REDUCE_BF16, COLL_REDUCE_SUM, 0xff80, 0x7f7f));
    ck_assert_uint_eq(0x7c00, of_two(COLL_REDUCE_FP16, COLL_REDUCE_SUM, 0x7bff, 0x4c00)); /* 65504 + 16 */
    ck_assert_uint_eq(0x7bff, of_two(COLL_REDUCE_FP16, COLL_REDUCE_SUM, 0x7bff, 0x4bff)); /* a little less */
}
END_TEST

START_TEST(what_is_no_number_is_always_the_same_bits)
{
    static const uint32_t none[] = {0x7fff, 0x7fff, 0x7fffffff}, infinite[] = {0x7f80, 0x7c00, 0x7f800000};
    static const uint32_t signs[] = {0x8000, 0x8000, 0x80000000};
    const enum coll_reduce_type type = (enum coll_reduce_type)_i;
    for (int op = COLL_REDUCE_SUM; op <= COLL_REDUCE_AVG; op++) {
        for (int order = 0; order < COLL_REDUCE_ORDERS; order++) {
            struct coll_reduce reduce = ask(type, (enum coll_reduce_operation)op, 3);
            reduce.order = (enum coll_reduce_order)order;
            const uint32_t opposite[] = {infinite[type], infinite[type] | signs[type], 1};
            const uint32_t payload[] = {1, infinite[type] | signs[type] | 1, 5};
            ck_assert_uint_eq(none[type], of(reduce, opposite));
            ck_assert_uint_eq(none[type], of(reduce, payload));
            reduce.sources = 1;
            ck_assert_uint_eq(none[type], of(reduce, &payload[1]));
        }
    }
}
END_TEST

START_TEST(extremes_prefer_numbers_and_order_zeroes)
{
    static const uint32_t rising[] = {0xff80, 0xc000, 0x8001, 0x8000, 0x0000, 0x0001, 0x3f80, 0x7f80};
    for (int a = 0; a < COUNT(rising); a++) {
        for (int b = 0; b < COUNT(rising); b++) {
            ck_assert_uint_eq(rising[a > b ? a : b], of_two(COLL_REDUCE_BF16, COLL_REDUCE_MAX, rising[a], rising[b]));
            ck_assert_uint_eq(rising[a < b ? a : b], of_two(COLL_REDUCE_BF16, COLL_REDUCE_MIN, rising[a], rising[b]));
        }
        ck_assert_uint_eq(rising[a], of_two(COLL_REDUCE_BF16, COLL_REDUCE_MAX, 0xffc1, rising[a]));
        ck_assert_uint_eq(rising[a], of_two(COLL_REDUCE_BF16, COLL_REDUCE_MIN, rising[a], 0x7f81));
    }
    ck_assert_uint_eq(0x7fff, of_two(COLL_REDUCE_FP16, COLL_REDUCE_MIN, 0xfc01, 0x7e00));
    ck_assert_uint_eq(0x7fffffff, of_two(COLL_REDUCE_FP32, COLL_REDUCE_MAX, 0xffc00001, 0x7f800001));
}
END_TEST

START_TEST(means_of_two_are_halves_of_sums_in_both_orders_where_halves_are_exact)
{
    struct rng rng = rng_init(740 + (uint64_t)_i);
    const enum coll_reduce_type type = (enum coll_reduce_type)(_i % 3);
    struct coll_reduce reduce = ask(type, COLL_REDUCE_AVG, 2);
    static uint8_t other[4 * ALL];
    for (uint32_t r = 0; r < 2; r++)
        reduce_fill(&rng, type, ADDEND_BELL, values[r], ALL);
    run(&reduce);
    memcpy(other, sums, sizeof(other));
    reduce.order = COLL_REDUCE_NCCL_RING;
    run(&reduce);
    ck_assert_mem_eq(other, sums, ALL * coll_reduce_element_bytes(type));
    /* where one is not exact */
    const uint32_t tiny[] = {1, 1};
    ck_assert_uint_eq(0, of(reduce, (const uint32_t[]){0, 1}));
    reduce.order = COLL_REDUCE_IN_FP32;
    ck_assert_uint_eq(1, of(reduce, tiny));
}
END_TEST

/* ---- Where it is ------------------------------------------------------------------------------------------------- */

START_TEST(it_may_be_in_place_and_anywhere_that_elements_may_be)
{
    struct rng rng = rng_init(750 + (uint64_t)_i);
    const enum coll_reduce_type type = (enum coll_reduce_type)(_i % 3);
    const size_t element = coll_reduce_element_bytes(type), count = 1 + rng_below(&rng, 50);
    struct coll_reduce apart = ask(type, COLL_REDUCE_SUM, 3), placed;
    struct guarded memory[3];
    apart.count = count;
    apart.order = (enum coll_reduce_order)(_i / 3 % 2);
    placed = apart;
    for (uint32_t r = 0; r < 3; r++) {
        reduce_fill(&rng, type, ADDENDS, values[r], count);
        guarded_init(&memory[r], count * element + element * rng_below(&rng, 8));
        placed.source[r] = memory[r].bytes;
        memcpy(memory[r].bytes, values[r], count * element);
    }
    placed.dst = memory[_i % 2].bytes;
    run(&apart);
    run(&placed);
    ck_assert_mem_eq(sums, placed.dst, count * element);
    ck_assert_mem_eq(values[2], memory[2].bytes, count * element);
    for (uint32_t r = 0; r < 3; r++) {
        ck_assert(is_filled(memory[r].bytes + count * element, memory[r].size - count * element, CANARY));
        guarded_fini(&memory[r]);
    }
}
END_TEST

START_TEST(as_many_ranks_as_there_may_be_are_added)
{
    struct coll_reduce reduce = ask(COLL_REDUCE_FP16, COLL_REDUCE_SUM, COLL_REDUCE_SOURCES_MAX);
    for (uint32_t i = 0; i < COLL_REDUCE_SOURCES_MAX; i++) {
        reduce.source[i] = values[0] + 2 * i;
        reduce_put(COLL_REDUCE_FP16, values[0], i, 0x3c00);
    }
    reduce.count = 1;
    run(&reduce);
    ck_assert_uint_eq(0x6400, reduce_get(COLL_REDUCE_FP16, sums, 0)); /* 1024 */
    reduce.operation = COLL_REDUCE_AVG;
    run(&reduce);
    ck_assert_uint_eq(0x3c00, reduce_get(COLL_REDUCE_FP16, sums, 0));
}
END_TEST

START_TEST(bad_arguments_are_refused)
{
    const struct coll_reduce good = ask(COLL_REDUCE_FP32, COLL_REDUCE_SUM, 2);
    struct coll_reduce bad[10];
    for (int i = 0; i < COUNT(bad); i++)
        bad[i] = good;
    bad[0].type = COLL_REDUCE_TYPES;
    bad[1].operation = COLL_REDUCE_OPERATIONS;
    bad[2].order = COLL_REDUCE_ORDERS;
    bad[3].sources = 0;
    bad[4].sources = COLL_REDUCE_SOURCES_MAX + 1;
    bad[5].rank = 2;
    bad[6].source[1] = NULL;
    bad[7].dst = NULL;
    bad[8].dst = values[1] + 4;
    bad[9].count = SIZE_MAX / 2;
    for (int i = 0; i < COUNT(bad); i++)
        ck_assert_int_eq(STRAIT_ERR_INVALID, coll_reduce_scalar(&bad[i]));
    bad[7].count = 0;
    ck_assert_int_eq(STRAIT_OK, coll_reduce_scalar(&bad[7]));
    bad[0] = good;
    bad[0].source[1] = values[1] + 2;
    ck_assert_int_eq(STRAIT_ERR_ALIGNMENT, coll_reduce_scalar(&bad[0]));
    bad[0].type = COLL_REDUCE_BF16;
    ck_assert_int_eq(STRAIT_OK, coll_reduce_scalar(&bad[0]));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("collective_reduce");
    TCase *tcase = tcase_create("sums");
    tcase_add_unchecked_fixture(tcase, setup, NULL);
    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, every_value_of_16_bits_plus_others_is_rounded_once_in_both_orders, 0, PARTNERS);
    tcase_add_loop_test(tcase, the_ring_rounds_after_each_rank_and_means_are_fused_but_for_the_first, 0, 16 * ADDENDS);
    tcase_add_loop_test(tcase, in_fp32_values_are_added_by_rank_and_rounded_to_the_type_once, 0, 4 * ADDENDS);
    tcase_add_loop_test(tcase, sums_and_means_of_fp32_are_those_of_the_processor, 0, ADDENDS);
    tcase_add_test(tcase, order_matters);
    tcase_add_test(tcase, signs_of_zero_infinities_and_subnormals_are_kept);
    tcase_add_loop_test(tcase, what_is_no_number_is_always_the_same_bits, 0, COLL_REDUCE_TYPES);
    tcase_add_test(tcase, extremes_prefer_numbers_and_order_zeroes);
    tcase_add_loop_test(tcase, means_of_two_are_halves_of_sums_in_both_orders_where_halves_are_exact, 0, 3);
    tcase_add_loop_test(tcase, it_may_be_in_place_and_anywhere_that_elements_may_be, 0, 60);
    tcase_add_test(tcase, as_many_ranks_as_there_may_be_are_added);
    tcase_add_test(tcase, bad_arguments_are_refused);
    suite_add_tcase(s, tcase);
    return run_suite(s);
}
