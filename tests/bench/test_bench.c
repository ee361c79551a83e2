#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/collective.h"
#include "bench/table.h"
#include "internal/bytes.h"
#include "tests/run_suite.h"

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

TEST(every_fp16_number_comes_back)
{
    for (uint32_t bits = 0; bits <= UINT16_MAX; bits++)
        if ((bits >> 10 & 31) != 31)
            ck_assert_uint_eq(collective_fp16_of(collective_fp16_value((uint16_t)bits)), bits);
}

TEST(fp16_is_rounded_to_the_nearest_and_ties_to_even)
{
    static const struct {
        float value;
        uint16_t bits;
    } cases[] = {
        {1.0f, 0x3C00},
        {-2.0f, 0xC000},
        {1.0f + 0x1p-11f, 0x3C00},
        {1.0f + 0x1.8p-11f, 0x3C01},
        {1.0f + 0x3p-11f, 0x3C02},
        {65519.99f, 0x7BFF},
        {65520.0f, 0x7C00},
        {-INFINITY, 0xFC00},
        {0x1p-24f, 0x0001},
        {0x1p-25f, 0x0000},
        {0x1.8p-24f, 0x0002},
        {-0x1p-26f, 0x8000},
        {0x1.ff8p-15f, 0x03FF},
        {0x1.ffcp-15f, 0x0400},
        {0x1p-14f, 0x0400},
        {-0.0f, 0x8000},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        ck_assert_msg(collective_fp16_of(cases[i].value) == cases[i].bits, "%a: %04x", (double)cases[i].value,
                      collective_fp16_of(cases[i].value));
    ck_assert_uint_gt(collective_fp16_of(NAN) & 0x7FFF, 0x7C00);
}

TEST(bf16_is_rounded_to_the_nearest_and_ties_to_even)
{
    ck_assert_uint_eq(collective_bf16_of(1.0f), 0x3F80);
    ck_assert_uint_eq(collective_bf16_of(1.0f + 0x1p-8f), 0x3F80);
    ck_assert_uint_eq(collective_bf16_of(1.0f + 0x3p-8f), 0x3F82);
    ck_assert_uint_eq(collective_bf16_of(-1.0f - 0x1.01p-8f), 0xBF81);
    ck_assert_uint_eq(collective_bf16_of(0x1.ffp127f), 0x7F80);
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

static const struct text_list no_inputs;

TEST(names_tell_what_tensors_are_of)
{
    static const struct {
        const char *name;
        enum collective_data kind;
    } names[] = {
        {"model.layers.3.input_layernorm.weight", COLLECTIVE_WEIGHTS},
        {"layers.1.mlp.down_proj.weight_fp32", COLLECTIVE_WEIGHTS},
        {"q_proj.bias", COLLECTIVE_WEIGHTS},
        {"layers.1.mlp.down_proj.grad_bf16", COLLECTIVE_GRADIENTS},
        {"lm_head.weight.grad", COLLECTIVE_GRADIENTS},
        {"layers.1.mlp_input_bf16", COLLECTIVE_ACTIVATIONS},
        {"hidden_states.4", COLLECTIVE_ACTIVATIONS},
        {"lm_head.weight.exp_avg", COLLECTIVE_MOMENTS},
        {"lm_head.weight.exp_avg_sq", COLLECTIVE_SQUARES},
        {"layers.3.k", COLLECTIVE_OTHER},
        {"", COLLECTIVE_OTHER},
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        ck_assert_msg(collective_kind_of(names[i].name) == names[i].kind, "%s", names[i].name);
}

TEST(random_values_are_finite_and_widened_ones_have_no_low_bits)
{
    static const uint64_t masks[] = {0xBFFFBFFFBFFFBFFF, 0xBFFFBFFFBFFFBFFF, 0xBFFFFFFFBFFFFFFF, 0xBFFF0000BFFF0000};
    struct collective_values values;

    for (enum collective_type type = 0; type < COLLECTIVE_TYPES; type++) {
        ck_assert(collective_values_init(&values, COLLECTIVE_RANDOM, type, &no_inputs));
        ck_assert_uint_eq(values.period % 16, 0);
        ck_assert_mem_eq(values.bytes, values.bytes + values.period, values.period);
        uint64_t seen = 0;
        for (uint64_t at = 0; at < values.period; at += 8)
            seen |= load_le64(values.bytes + at);
        ck_assert_uint_eq(seen, masks[type]);
        collective_values_fini(&values);
    }
}

/* Three ranks with 1, 2^-8 and 2^-8: added in FP32 and rounded once they make 1 + 2^-7; rounded in between, 1, as with
 * a fourth rank, of 0, on two hosts. */
TEST(sums_are_made_in_fp32_and_rounded_once)
{
    enum { PERIOD = 4 * 1237 * 4096 };
    struct collective_values values = {calloc(2, PERIOD), PERIOD};
    static const uint16_t sent[] = {0x3F80, 0x3B80, 0x3B80};
    uint8_t sum[2];

    ck_assert_ptr_nonnull(values.bytes);
    for (unsigned rank = 0; rank < 3; rank++)
        store_le16(values.bytes + collective_values_start(&values, rank, 0) + 2 * 5, sent[rank]);
    collective_values_sum(&values, COLLECTIVE_BF16, 3, 3, 0, 5, 1, sum);
    ck_assert_uint_eq(load_le16(sum), 0x3F81);
    collective_values_sum(&values, COLLECTIVE_BF16, 4, 4, 0, 5, 1, sum);
    ck_assert_uint_eq(load_le16(sum), 0x3F81);
    collective_values_sum(&values, COLLECTIVE_BF16, 4, 2, 0, 5, 1, sum);
    ck_assert_uint_eq(load_le16(sum), 0x3F80);
    collective_values_sum(&values, COLLECTIVE_BF16, 2, 2, 0, 5, 1, sum);
    ck_assert_uint_eq(load_le16(sum), 0x3F80);
    collective_values_sum(&values, COLLECTIVE_BF16, 3, 3, 0, 4, 1, sum);
    ck_assert_uint_eq(load_le16(sum), 0);
    collective_values_fini(&values);
}

/* A period that is shorter than what is added up at once, and one that is longer. */
TEST(sums_of_many_are_those_of_each)
{
    static const uint64_t periods[] = {208, 48 * 1024};
    enum { FIRST = 7, COUNT = 30000 };
    uint8_t *many = malloc(4 * COUNT), one[4];

    ck_assert_ptr_nonnull(many);
    for (unsigned p = 0; p < 2; p++)
        for (enum collective_type type = 0; type < COLLECTIVE_TYPES; type++) {
            struct collective_values values = {malloc(2 * periods[p]), periods[p]};
            const unsigned bytes = collective_type_bytes[type];
            ck_assert_ptr_nonnull(values.bytes);
            for (uint64_t i = 0; i < 2 * periods[p]; i++)
                values.bytes[i] = (uint8_t)(0x3A + i % periods[p] * 13 % 8);
            collective_values_sum(&values, type, 4, 4, 1, FIRST, COUNT, many);
            for (uint64_t i = 0; i < COUNT; i++) {
                collective_values_sum(&values, type, 4, 4, 1, FIRST + i, 1, one);
                ck_assert_mem_eq(many + i * bytes, one, bytes);
            }
            collective_values_fini(&values);
        }
    free(many);
}

TEST(ranks_and_slots_send_different_parts_of_the_pattern)
{
    const struct collective_values values = {NULL, (uint64_t)16 << 20};

    for (unsigned a = 0; a < 64; a++)
        for (unsigned b = 0; b < a; b++)
            ck_assert_uint_ne(collective_values_start(&values, a % 4, a / 4),
                              collective_values_start(&values, b % 4, b / 4));
}

/* ---- Shapes and figures ------------------------------------------------------------------------------------------ */

TEST(shapes_are_those_of_nccl_tests)
{
    static const struct {
        uint64_t send, receive, count, handed;
        double bus;
    } of[COLLECTIVE_OPS] = {{1 << 20, 4 << 20, 1 << 19, 1 << 20, 0.75}, {4 << 20, 4 << 20, 1 << 19, 3 << 20, 0.75},
                            {4 << 20, 1 << 20, 1 << 19, 3 << 20, 0.75}, {4 << 20, 4 << 20, 1 << 21, 4 << 20, 1.5},
                            {4 << 20, 4 << 20, 1 << 21, 4 << 20, 1},    {4 << 20, 4 << 20, 1 << 21, 4 << 20, 1}};

    for (enum collective_op op = 0; op < COLLECTIVE_OPS; op++) {
        struct collective_row row = {COLLECTIVE_TENSORS, COLLECTIVE_BF16, op, (4 << 20) + 63};
        struct collective_shape shape = collective_shape_of(&row, 4);
        ck_assert_uint_eq(shape.bytes, 4 << 20);
        ck_assert_uint_eq(shape.send_bytes, of[op].send);
        ck_assert_uint_eq(shape.receive_bytes, of[op].receive);
        ck_assert_uint_eq(shape.count, of[op].count);
        ck_assert(shape.bus == of[op].bus);
        ck_assert_uint_eq(shape.handed, of[op].handed);
        ck_assert(shape.reduces == (op == COLLECTIVE_REDUCE_SCATTER || op == COLLECTIVE_ALL_REDUCE));
        ck_assert_uint_eq(shape.slots, 16);
        row.size = (uint64_t)1 << 30;
        ck_assert_uint_eq(collective_shape_of(&row, 4).slots, 1);
    }
}

TEST(the_slowest_rank_counts_and_quotients_are_of_one_repeat)
{
    static const uint64_t ns[3][2][2] = {{{100, 400}, {200, 100}}, {{300, 100}, {600, 1}}, {{1000, 1}, {50, 250}}};
    struct collective_options options = {.repeats = 3};
    struct collective_plan plan = {.options = &options, .ranks = 2};
    struct collective_row row = {COLLECTIVE_TENSORS, COLLECTIVE_BF16, COLLECTIVE_ALL_REDUCE, 4096};
    struct collective_result *result = calloc(1, sizeof(*result) + sizeof(ns));
    struct collective_figures figures;

    ck_assert_ptr_nonnull(result);
    for (unsigned i = 0; i < 12; i++)
        *collective_ns_of(&plan, result, i / 4, i / 2 % 2, i % 2) = ns[i / 4][i / 2 % 2][i % 2];
    collective_figures_make(&plan, &row, result, &figures);
    ck_assert(figures.p50_ns[COLLECTIVE_PLAIN] == 400 && figures.p50_ns[COLLECTIVE_STRAIT] == 250);
    ck_assert(figures.algbw[COLLECTIVE_PLAIN] == 10.24 && figures.busbw[COLLECTIVE_PLAIN] == 10.24);
    ck_assert(figures.x_min == 0.5 && figures.x == 2 && figures.x_max == 4);
    free(result);
}

/* ---- The way ----------------------------------------------------------------------------------------------------- */

TEST(the_way_is_read_out_of_the_report)
{
    static const char report[] =
        "strait-coll 0.1.0, process 4242, NCCL 22809 from /usr/lib/x86_64-linux-gnu/libnccl.so.2\n"
        "communicator 0x55d0c0ffee00, rank 0 of 8\n"
        "operation      type         calls            bytes  in groups   captured  failed  way\n"
        "all_gather     bf16           320      21474836480          0        320       0  raw: no such wire\n"
        "all_gather     fp32             1                4          0          0       0  peer\n"
        "send           bf16            16             4096         16          0       0  raw: too small\n";
    struct collective_wire wire;

    collective_wire_parse(report, COLLECTIVE_ALL_GATHER, COLLECTIVE_BF16, &wire);
    ck_assert_str_eq(wire.name, "raw: no such wire");
    collective_wire_parse(report, COLLECTIVE_ALL_GATHER, COLLECTIVE_FP32_BF16, &wire);
    ck_assert_str_eq(wire.name, "peer");
    collective_wire_parse(report, COLLECTIVE_SENDRECV, COLLECTIVE_BF16, &wire);
    ck_assert_str_eq(wire.name, "raw: too small");
    collective_wire_parse(report, COLLECTIVE_ALL_REDUCE, COLLECTIVE_BF16, &wire);
    ck_assert_str_eq(wire.name, "-");
    ck_assert_uint_eq(wire.calls, 0);
}

TEST(what_went_compressed_is_read_out_of_the_report)
{
    static const char report[] =
        "operation      type  calls  bytes  in groups  captured  failed  compressed  their bytes  way\n"
        "all_reduce     fp32     30    120          0         0       1          23        10700  the last: "
        "compressed\n";
    struct collective_wire wire;

    collective_wire_parse(report, COLLECTIVE_ALL_REDUCE, COLLECTIVE_FP32, &wire);
    ck_assert_str_eq(wire.name, "compressed");
    ck_assert_uint_eq(wire.calls, 30);
    ck_assert_uint_eq(wire.compressed, 23);
    ck_assert_uint_eq(wire.bytes, 10700);
}

/* ---- Reports ----------------------------------------------------------------------------------------------------- */

TEST(figures_are_medians_and_nearest_ranks)
{
    static const char *const names[] = {"p50", "min", "max", "p10", "p90", "p99", NULL};
    static const double figures[] = {5.5, 1, 10, 1, 9, 10};
    double samples[] = {3, 10, 1, 2, 9, 8, 7, 4, 5, 6};
    cJSON *row = cJSON_CreateObject();

    row_add_figures(row, "ms", samples, 10, names);
    for (unsigned i = 0; names[i] != NULL; i++)
        ck_assert(cJSON_GetObjectItem(cJSON_GetObjectItem(row, "ms"), names[i])->valuedouble == figures[i]);
    cJSON_Delete(row);
}

static const struct column check_columns[] = {{"case", NULL, "case", COLUMN_TEXT},
                                              {"wrong", NULL, "check", COLUMN_CHECK}};
static const struct table check_table[] = {TABLE("rows", NULL, NULL, check_columns)};

static bool report_passes(double wrong)
{
    struct bench_options options = {0};
    struct report report;

    ck_assert(report_init(&report, &options));
    for (int i = 0; i < 2; i++) {
        cJSON *row = report_add_row(&report, "rows");
        cJSON_AddStringToObject(row, "case", "strait");
        cJSON_AddNumberToObject(row, "wrong", i * wrong);
    }
    bool passes = report_finish(&report, check_table, 1);
    report_fini(&report);
    return passes;
}

TEST(a_report_fails_when_one_row_is_wrong)
{
    ck_assert(report_passes(0));
    ck_assert(!report_passes(1));
}

/* With arguments: the benches of GPUs without a GPU, by gpu_memory.c, and with fakes/nccl_processes.c in place of NCCL.
 */
int main(int argc, char **argv)
{
    if (argc == 1)
        return run_tests("bench", NULL, NULL);
    if (strcmp(argv[1], "transfer") == 0)
        return bench_transfer_device(argc - 1, argv + 1);
    return strcmp(argv[1], "collective") == 0 ? bench_collective(argc - 1, argv + 1) : EXIT_CODE_USAGE;
}
