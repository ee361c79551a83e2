/* strait bench ep: dispatch and combine of libstrait-ep between the ranks of this machine, a process each, in memory of
 * the host or on GPUs; as one host or as several. */
#include "bench/ep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bench/codec.h"
#include "bench/daemons.h"
#include "bench/table.h"
#include "tools/report.h"

/* ---- Options ----------------------------------------------------------------------------------------------------- */

const char *const ep_algorithm_names[] = {"ll", "ht", NULL};
const char *const ep_layout_names[] = {"expert-major", "rank-major", "flat", NULL};
const char *const ep_coding_names[] = {"auto", "raw", "coded", NULL};
const char *const ep_type_names[] = {"bf16", "fp16", "fp32", "fp8", NULL};
const char *const ep_skew_names[] = {"uniform", "zipf", "one", NULL};

#define LINK_BURST (512u * 1024) /* of the link's token bucket */

#define OPTIONS struct ep_options
static const struct bench_option known_options[] = {
    {OPTION(FLAG, device, "device", NULL, NULL, "ranks are on GPUs, one on each")},
    {OPTION(NUMBER, ranks, "ranks", NULL, "N", "ranks; on GPUs as many as there are, else 2"), .min = 1,
     .max = STRAIT_EP_RANKS_MAX},
    {OPTION(NUMBER, hosts, "hosts", "1", "N",
            "hosts that ranks are told to be on, as many in a row on each: others are reached by TCP"),
     .min = 1, .max = STRAIT_EP_RANKS_MAX},
    {OPTION(RATES, rates, "rate", NULL, "RATE",
            "of a link between two hosts, in Gbit/s: network namespaces; needs root, ip and tc")},
    {OPTION(NAMES, algorithms, "algorithm", "ll,ht", "LIST", "of ll (low latency), ht (high throughput)"),
     .names = ep_algorithm_names},
    {OPTION(NAMES, layouts, "layout", "rank-major,flat", "LIST",
            "of expert-major, rank-major (ll alone), flat (ht alone)"),
     .names = ep_layout_names},
    {OPTION(NAMES, types, "types", "bf16", "LIST",
            "of bf16, fp16, fp32, and fp8: E4M3 with a scale for each 128 values, combined as bf16"),
     .names = ep_type_names},
    {OPTION(NAMES, codings, "coding", "raw", "LIST", "of raw, coded (compressed), auto (what the library chooses)"),
     .names = ep_coding_names},
    {OPTION(NAMES, skews, "skew", "uniform", "LIST",
            "of uniform, zipf (expert e with a share of 1/(e+1)), one (all to the experts of the first rank)"),
     .names = ep_skew_names},
    {OPTION(NUMBERS, tokens, "tokens", "128", "LIST", "tokens of each rank"), .min = 1, .max = 1u << 16},
    {OPTION(NUMBER, hidden, "hidden", "7168", "N", "values of a token, a multiple of 16"), .min = 16, .max = 1u << 15},
    {OPTION(NUMBER, experts, "experts", "256", "N", "of all ranks together"), .min = 1, .max = STRAIT_EP_EXPERTS_MAX},
    {OPTION(NUMBER, topk, "topk", "8", "N", "experts of a token"), .min = 1, .max = STRAIT_EP_TOPK_MAX},
    {OPTION(NUMBER, sms, "sms", "16", "N", "multiprocessors that a kernel may use, with --device"), .min = 1,
     .max = 1024},
    {OPTION(FLAG, own, "own-memory", NULL, NULL, "tensors of ht are not in memory that ranks share")},
    {OPTION(NUMBER, repeats, "repeats", "20", "N", "samples of each row"), .min = 1, .max = REPEATS_MAX},
    {OPTION(NUMBER, warmups, "warmups", "2", "N", "calls of each row before"), .min = 1, .max = REPEATS_MAX},
    {OPTION(NUMBER, iterations, "iterations", NULL, "N", "calls that a sample is the mean of; 1, with --device 20"),
     .min = 1, .max = REPEATS_MAX},
    {OPTION(NUMBER, seconds, "timeout", "300", "SECONDS", "for all rows"), .min = 1, .max = 86400},
};
static char command_name[] = "strait bench ep";
static const struct bench_command command = {
    .name = command_name,
    .summary =
        "Measures expert parallelism between ranks of this machine, a process each: how long dispatch and combine "
        "take, and how many bytes of rows they move. Checks the first of each against a reference.",
    .options = known_options,
    .option_count = sizeof(known_options) / sizeof(known_options[0]),
};

static bool check_options(const struct ep_options *asked, unsigned ranks)
{
    if (asked->experts % ranks != 0)
        print_error(NULL, "--experts %llu cannot be divided among %u ranks", (unsigned long long)asked->experts, ranks);
    else if (asked->topk > asked->experts)
        print_error(NULL, "--topk %llu of --experts %llu", (unsigned long long)asked->topk,
                    (unsigned long long)asked->experts);
    else if (ranks % asked->hosts != 0)
        print_error(NULL, "%u ranks cannot be divided among --hosts %llu", ranks, (unsigned long long)asked->hosts);
    else if (asked->rates.count > 1 || (asked->rates.count == 1 && asked->hosts != 2))
        print_error(NULL, "--rate takes one rate, of a link between --hosts 2");
    else if (asked->hidden % 16 != 0)
        print_error(NULL, "--hidden takes a multiple of 16");
    else
        return true;
    return false;
}

/* ---- The plan ---------------------------------------------------------------------------------------------------- */

static bool exists(enum strait_ep_algorithm algorithm, enum strait_ep_layout layout)
{
    return layout == STRAIT_EP_EXPERT_MAJOR ||
           layout == (algorithm == STRAIT_EP_LOW_LATENCY ? STRAIT_EP_RANK_MAJOR : STRAIT_EP_FLAT);
}

static void add_rows_of(struct ep_plan *plan, struct ep_row row)
{
    const struct ep_options *asked = plan->options;

    for (unsigned tokens = 0; tokens < asked->tokens.count; tokens++)
        for (enum ep_skew skew = 0; skew < EP_SKEWS; skew++)
            for (enum strait_ep_coding coding = 0; coding <= STRAIT_EP_CODED; coding++) {
                if (!list_has(&asked->skews, skew) || !list_has(&asked->codings, coding))
                    continue;
                row.tokens = (uint32_t)asked->tokens.list[tokens];
                row.skew = skew;
                row.coding = coding;
                plan->rows[plan->row_count++] = row;
            }
}

static bool add_rows(struct ep_plan *plan)
{
    const struct ep_options *asked = plan->options;

    plan->rows = calloc((size_t)2 * 3 * EP_TYPES * EP_SKEWS * 3 * LIST_MAX, sizeof(plan->rows[0]));
    if (plan->rows == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    for (enum strait_ep_algorithm algorithm = 0; algorithm <= STRAIT_EP_HIGH_THROUGHPUT; algorithm++)
        for (enum strait_ep_layout layout = STRAIT_EP_EXPERT_MAJOR; layout <= STRAIT_EP_FLAT; layout++)
            for (enum ep_type type = 0; type < EP_TYPES; type++)
                if (list_has(&asked->algorithms, algorithm) && list_has(&asked->layouts, layout - 1) &&
                    list_has(&asked->types, type) && exists(algorithm, layout))
                    add_rows_of(plan, (struct ep_row){.algorithm = algorithm, .layout = layout, .type = type});
    if (plan->row_count == 0)
        print_error(NULL, "--layout and --algorithm have nothing in common");
    return plan->row_count > 0;
}

/* E4M3 from BF16. */
static bool make_fp8(struct collective_values *fp8, const struct collective_values *bf16)
{
    const uint64_t period = bf16->period / 2 / 16 * 16;

    fp8->period = period;
    fp8->bytes = period > 0 ? malloc(2 * period) : NULL;
    if (fp8->bytes == NULL) {
        print_error(NULL, "--input has too few values, or out of memory");
        return false;
    }
    fp8_cast(fp8->bytes, bf16->bytes, period, STRAIT_ELEMENT_FP8_E4M3);
    memcpy(fp8->bytes + period, fp8->bytes, period);
    return true;
}

static bool read_values(struct ep_plan *plan)
{
    static const enum collective_type sources[] = {COLLECTIVE_BF16, COLLECTIVE_FP16, COLLECTIVE_FP32_BF16};
    const struct text_list *inputs = &plan->options->common.inputs;
    const bool fp8 = list_has(&plan->options->types, EP_FP8);

    if (!inputs_exist(&plan->options->common))
        return false;
    for (enum ep_type type = EP_BF16; type <= EP_FP32; type++) {
        if (!list_has(&plan->options->types, type) && !(fp8 && type == EP_BF16))
            continue;
        if (!collective_values_init(&plan->values[type], COLLECTIVE_TENSORS, sources[type], inputs))
            return false;
        if (plan->values[type].bytes == NULL) {
            print_error(NULL, "--input: no values for type %s", ep_type_names[type]);
            return false;
        }
    }
    return !fp8 || make_fp8(&plan->values[EP_FP8], &plan->values[EP_BF16]);
}

static void ep_plan_fini(struct ep_plan *plan)
{
    for (enum ep_type type = 0; type < EP_TYPES; type++)
        collective_values_fini(&plan->values[type]);
    free(plan->rows);
}

/* ---- Ranks ------------------------------------------------------------------------------------------------------- */

static size_t result_bytes(const struct ep_plan *plan)
{
    return sizeof(struct ep_result) + plan->options->repeats * EP_PHASES * plan->ranks * sizeof(uint64_t);
}

static size_t shared_bytes(const struct ep_plan *plan)
{
    return sizeof(struct ep_shared) + plan->row_count * result_bytes(plan);
}

static struct ep_shared *shared_create(const struct ep_plan *plan)
{
    struct ep_shared *shared = ranks_memory(shared_bytes(plan));

    if (shared != NULL)
        shared->result_bytes = result_bytes(plan);
    return shared;
}

struct rank_run {
    const struct ep_plan *plan;
    struct ep_shared *shared;
};

static bool run_rank(void *context, unsigned number)
{
    const struct rank_run *run = context;

    return ep_rank_run(run->plan, run->shared, number);
}

/* ---- The report -------------------------------------------------------------------------------------------------- */

static const struct column columns[] = {
    {"algorithm", NULL, "", COLUMN_TEXT},
    {"layout", NULL, "layout", COLUMN_TEXT},
    {"type", NULL, "type", COLUMN_TEXT},
    {"coding", NULL, "coding", COLUMN_TEXT},
    {"skew", NULL, "skew", COLUMN_TEXT},
    {"tokens", NULL, "tokens", COLUMN_COUNT},
    {"rows", NULL, "rows", COLUMN_COUNT},
    {"update_ns.p50", "update", "us", COLUMN_US},
    {"dispatch_ns.p50", "dispatch", "us", COLUMN_US},
    {"dispatch_ns.p99", "dispatch", "p99", COLUMN_US},
    {"dispatch_GBps", "dispatch", "GB/s", COLUMN_NUMBER},
    {"dispatch_selected_GBps", "dispatch", "selected", COLUMN_NUMBER},
    {"combine_ns.p50", "combine", "us", COLUMN_US},
    {"combine_ns.p99", "combine", "p99", COLUMN_US},
    {"combine_GBps", "combine", "GB/s", COLUMN_NUMBER},
    {"combine_selected_GBps", "combine", "selected", COLUMN_NUMBER},
    {"ratio", NULL, "ratio", COLUMN_NUMBER},
    {"medium", NULL, "medium", COLUMN_TEXT},
    {"wrong", NULL, "check", COLUMN_CHECK},
};
static const struct table tables[] = {TABLE("rows", NULL, NULL, columns)};
static const char *const phase_keys[] = {"update_ns", "dispatch_ns", "combine_ns"};

/* Times of the slowest rank. Returns the median. */
static double add_times(cJSON *object, const struct ep_plan *plan, struct ep_result *result, enum ep_phase phase)
{
    static const char *const names[] = {"p50", "p90", "p99", "min", "max", NULL};
    const unsigned repeats = (unsigned)plan->options->repeats;
    double samples[REPEATS_MAX];

    for (unsigned i = 0; i < repeats; i++) {
        uint64_t most = 0;
        for (unsigned rank = 0; rank < plan->ranks; rank++) {
            const uint64_t ns = *ep_ns_of(plan, result, i, phase, rank);
            most = ns > most ? ns : most;
        }
        samples[i] = (double)most;
    }
    row_add_figures(object, phase_keys[phase], samples, repeats, names);
    return median_of(samples, repeats);
}

static void report_row(struct report *report, const struct ep_plan *plan, const struct ep_row *row,
                       struct ep_result *result)
{
    cJSON *object = report_add_row(report, "rows");
    const double bytes = ep_row_bytes(plan, row->type) + ep_scale_bytes(plan, row->type);
    const double combined = ep_row_bytes(plan, ep_combined(row->type));

    cJSON_AddStringToObject(object, "algorithm", ep_algorithm_names[row->algorithm]);
    cJSON_AddStringToObject(object, "layout", ep_layout_names[row->layout - 1]);
    cJSON_AddStringToObject(object, "type", ep_type_names[row->type]);
    cJSON_AddStringToObject(object, "coding", ep_coding_names[row->coding]);
    cJSON_AddStringToObject(object, "skew", ep_skew_names[row->skew]);
    cJSON_AddNumberToObject(object, "tokens", row->tokens);
    cJSON_AddNumberToObject(object, "rows", (double)result->rows);
    cJSON_AddNumberToObject(object, "selections", (double)result->selections);
    cJSON_AddNumberToObject(object, "dispatch_row_bytes", bytes);
    cJSON_AddNumberToObject(object, "combine_row_bytes", combined);
    (void)add_times(object, plan, result, EP_UPDATE);
    const double dispatch = add_times(object, plan, result, EP_DISPATCH);
    cJSON_AddNumberToObject(object, "dispatch_GBps", (double)result->rows * bytes / dispatch);
    cJSON_AddNumberToObject(object, "dispatch_selected_GBps", (double)result->selections * bytes / dispatch);
    const double combine = add_times(object, plan, result, EP_COMBINE);
    cJSON_AddNumberToObject(object, "combine_GBps", (double)result->rows * combined / combine);
    cJSON_AddNumberToObject(object, "combine_selected_GBps", (double)result->selections * combined / combine);
    cJSON_AddBoolToObject(object, "coded", result->coded);
    const double sent = (double)atomic_load(&result->sent_bytes), raw = (double)atomic_load(&result->raw_bytes);
    cJSON_AddNumberToObject(object, "sent_bytes", sent);
    cJSON_AddNumberToObject(object, "raw_bytes", raw);
    json_add_known(object, "ratio", sent > 0 ? raw / sent : 0);
    cJSON_AddNumberToObject(object, "arena_bytes", (double)result->arena_bytes);
    cJSON_AddStringToObject(object, "medium", result->medium);
    cJSON_AddNumberToObject(object, "wrong", (double)atomic_load(&result->wrong));
}

static void report_facts(struct report *report, const struct ep_plan *plan, const struct ep_shared *shared)
{
    const struct ep_options *asked = plan->options;
    cJSON *root = report->root;

    cJSON_AddStringToObject(root, "device", shared->device);
    cJSON_AddNumberToObject(root, "ranks", plan->ranks);
    cJSON_AddNumberToObject(root, "hosts", (double)asked->hosts);
    if (asked->rates.count > 0)
        cJSON_AddNumberToObject(root, "rate_Gbps", (double)asked->rates.list[0] / 1e6);
    cJSON_AddNumberToObject(root, "hidden", (double)asked->hidden);
    cJSON_AddNumberToObject(root, "experts", (double)asked->experts);
    cJSON_AddNumberToObject(root, "topk", (double)asked->topk);
    cJSON_AddNumberToObject(root, "sms", plan->memory->kind == STRAIT_EP_CUDA ? (double)asked->sms : 0);
    cJSON_AddNumberToObject(root, "repeats", (double)asked->repeats);
    cJSON_AddNumberToObject(root, "iterations", plan->iterations);
    report_add_values(report, NULL);
    report_note(report,
                "GB/s: bytes of rows that the rank with the most receives, each token once, by the median of the "
                "slowest rank's times; selected: each token once for each of its experts");
}

/* ---- The run ----------------------------------------------------------------------------------------------------- */

/* Rows that were measured before a failure are reported, too. */
static bool run_ranks(struct report *report, const struct ep_plan *plan)
{
    struct ep_shared *shared = shared_create(plan);
    if (shared == NULL)
        return false;
    struct rank_run run = {plan, shared};
    const struct ranks ranks = {.count = plan->ranks,
                                .seconds = plan->options->seconds,
                                .barrier = &shared->barrier,
                                .run = run_rank,
                                .context = &run};
    unsigned reported = 0;
    const bool ran = ranks_run(&ranks);

    for (unsigned i = 0; i < plan->row_count; i++) {
        struct ep_result *result = ep_result_of(shared, i);
        if (atomic_load(&result->done) != plan->ranks)
            continue;
        if (reported++ == 0)
            report_facts(report, plan, shared);
        report_row(report, plan, &plan->rows[i], result);
    }
    munmap(shared, shared_bytes(plan));
    return (reported == 0 || report_finish(report, tables, sizeof(tables) / sizeof(tables[0]))) && ran;
}

/* The link between hosts, if one is wanted. */
static bool open_link(struct ep_plan *plan)
{
    const struct number_list *rates = &plan->options->rates;
    char why[256];

    if (rates->count == 0)
        return true;
    if (bench_link_open(&plan->link, why, sizeof(why)))
        return bench_link_shape(&plan->link, rates->list[0], LINK_BURST);
    print_error(NULL, "--rate: %s", why);
    return false;
}

int bench_ep_on(const struct ep_memory *memory, int argc, char **argv)
{
    static struct ep_options asked;
    struct ep_plan plan = {.options = &asked, .memory = memory};
    struct report report;
    enum exit_code code;

    if (!command_read(&command, &asked, argc, argv, &code))
        return code;
    plan.ranks = (unsigned)asked.ranks;
    if (!memory->count(&plan.ranks))
        return EXIT_CODE_DATA;
    if (!check_options(&asked, plan.ranks))
        return EXIT_CODE_USAGE;
    plan.local = (uint32_t)(asked.experts / plan.ranks);
    plan.iterations = asked.iterations > 0 ? (uint32_t)asked.iterations : memory->kind == STRAIT_EP_CUDA ? 20 : 1;
    if (!add_rows(&plan)) {
        ep_plan_fini(&plan);
        return EXIT_CODE_USAGE;
    }
    bool good = report_init(&report, &asked.common) && read_values(&plan);
    interrupts_catch();
    good = good && open_link(&plan) && run_ranks(&report, &plan);
    bench_link_close(&plan.link);
    ep_plan_fini(&plan);
    report_fini(&report);
    if (interrupted())
        print_error(NULL, "interrupted");
    return good ? EXIT_CODE_OK : EXIT_CODE_DATA;
}

int bench_ep(int argc, char **argv)
{
    return bench_ep_on(&ep_host_memory, argc, argv);
}
