/* strait bench collective: NCCL's collectives between the GPUs of one machine, by NCCL alone and by way of
 * libstrait-coll, in one process per rank. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/collective.h"
#include "bench/daemons.h"
#include "bench/device.h"
#include "bench/ranks.h"
#include "bench/table.h"
#include "tools/report.h"

/* ---- Options ----------------------------------------------------------------------------------------------------- */

const char *const collective_op_names[] = {"all_gather", "all_to_all", "reduce_scatter", "all_reduce", "sendrecv",
                                           "broadcast",  NULL};
const char *const collective_data_names[] = {"weights", "gradients", "activations", "moments", "squares",
                                             "other",   "tensors",   "random",      NULL};
const char *const collective_links_names[] = {"as-is", "shm", "socket", NULL};

#define OPTIONS struct collective_options
static const struct bench_option known_options[] = {
    {OPTION(NAMES, ops, "ops", "all_gather,all_to_all,reduce_scatter,all_reduce,sendrecv,broadcast", "LIST",
            "collectives"),
     .names = collective_op_names},
    {OPTION(NAMES, types, "types", "bf16,fp32-bf16", "LIST",
            "of bf16, fp16, fp32, and fp32-bf16: FP32 that holds BF16"),
     .names = collective_type_names},
    {OPTION(NAMES, datas, "data", NULL, "LIST",
            "of weights, gradients, activations, moments, squares (of moments), other: tensors of that kind, by "
            "their names; tensors: all, one after another; random: bits that cannot be compressed; each kind that the "
            "files have, by itself"),
     .names = collective_data_names},
    {OPTION(NAMES, links, "links", "as-is", "LIST",
            "of as-is, shm (with NCCL_P2P_DISABLE=1), socket (and NCCL_SHM_DISABLE=1): what NCCL may use between GPUs"),
     .names = collective_links_names},
    {OPTION(SIZES, sizes, "size", "1M,16M,64M,256M", "LIST", "bytes, of all ranks together where there are parts"),
     .min = (uint64_t)COLLECTIVE_UNIT * COLLECTIVE_RANKS_MAX},
    {OPTION(NUMBER, gpus, "gpus", NULL, "N", "so many GPUs; all"), .min = 1, .max = COLLECTIVE_RANKS_MAX},
    {OPTION(NUMBER, ranks, "ranks", NULL, "N",
            "so many ranks, dealt out to the GPUs; one on each. NCCL takes several on one GPU if they are on hosts of "
            "their own (--hosts), and from 2.30 on with --env=NCCL_MULTI_RANK_GPU_ENABLE=1"),
     .min = 2, .max = COLLECTIVE_RANKS_MAX},
    {OPTION(NUMBER, hosts, "hosts", NULL, "N",
            "NCCL is told (NCCL_HOSTID) that the ranks are on so many hosts, the first of them on the first; nothing"),
     .min = 1, .max = COLLECTIVE_RANKS_MAX},
    {OPTION(TEXT, library, "library", "libstrait-coll.so.0", "FILE", "libstrait-coll")},
    {OPTION(TEXT, nccl, "nccl", "libnccl.so.2", "FILE", "NCCL")},
    {OPTION(TEXTS, environment, "env", NULL, "NAME=VALUE",
            "environment of the ranks, such as STRAIT_COLL=raw, once or more")},
    {OPTION(NUMBER, repeats, "repeats", "9", "N", "run everything N times in turn"), .min = 1, .max = REPEATS_MAX},
    {OPTION(NUMBER, warmups, "warmups", "3", "N", "calls of each row before"), .min = 1, .max = REPEATS_MAX},
    {OPTION(NUMBER, singles, "singles", "0", "N", "before all else N calls of each row, each alone, for the slowest"),
     .max = REPEATS_MAX},
    {OPTION(NUMBER, iterations, "iterations", NULL, "N", "calls of one repeat; as many as take 20 ms, up to 100"),
     .min = 1, .max = REPEATS_MAX},
    {OPTION(NUMBER, seconds, "timeout", "300", "SECONDS", "for all rows of one kind of links"), .min = 1, .max = 86400},
};
static char command_name[] = "strait bench collective";
static const struct bench_command command = {
    .name = command_name,
    .summary = "Measures collectives of NCCL between the GPUs of this machine, a process each: NCCL alone and the same "
               "calls by way of libstrait-coll, in turn and in one process. Compares every result bit for bit.",
    .options = known_options,
    .option_count = sizeof(known_options) / sizeof(known_options[0]),
};

static bool check_options(const struct collective_options *asked)
{
    for (unsigned i = 0; i < asked->environment.count; i++) {
        const char *text = asked->environment.list[i], *equals = strchr(text, '=');
        if (equals == NULL || equals == text) {
            print_error(NULL, "--env takes NAME=VALUE, not '%s'", text);
            return false;
        }
    }
    return true;
}

/* ---- The plan ---------------------------------------------------------------------------------------------------- */

static void add_row(struct collective_plan *plan, struct collective_row row)
{
    struct collective_shape shape = collective_shape_of(&row, plan->ranks);
    uint64_t send = shape.slots * shape.send_bytes, receive = shape.slots * shape.receive_bytes;

    plan->rows[plan->row_count++] = row;
    plan->send_bytes = send > plan->send_bytes ? send : plan->send_bytes;
    plan->receive_bytes = receive > plan->receive_bytes ? receive : plan->receive_bytes;
}

static void add_rows(struct collective_plan *plan, enum collective_data data, enum collective_type type)
{
    const struct collective_options *options = plan->options;

    for (enum collective_op op = 0; op < COLLECTIVE_OPS; op++)
        for (unsigned i = 0; list_has(&options->ops, op) && i < options->sizes.count; i++)
            add_row(plan, (struct collective_row){data, type, op, options->sizes.list[i]});
}

static bool has_data(const struct collective_plan *plan, enum collective_data data)
{
    bool found = false;

    for (enum collective_type type = 0; type < COLLECTIVE_TYPES; type++)
        found |= plan->values[data][type].bytes != NULL;
    if (!found)
        print_error(NULL, "--input: no values for %s of the types that are wanted", collective_data_names[data]);
    return found;
}

static bool has_type(const struct collective_plan *plan, enum collective_type type)
{
    bool found = false;

    for (enum collective_data data = 0; data < COLLECTIVE_DATAS; data++)
        found |= plan->values[data][type].bytes != NULL;
    if (!found)
        print_error(NULL, "--input: no values for type %s", collective_type_names[type]);
    return found;
}

/* Whether everything that was asked for has rows. */
static bool has_all(const struct collective_plan *plan)
{
    const struct collective_options *options = plan->options;
    bool all = true;

    for (enum collective_type type = 0; all && type < COLLECTIVE_TYPES; type++)
        all = !list_has(&options->types, type) || has_type(plan, type);
    for (enum collective_data data = 0; all && data < COLLECTIVE_DATAS; data++)
        all = !list_has(&options->datas, data) || has_data(plan, data);
    return all;
}

static bool collective_plan_init(struct collective_plan *plan, const struct collective_options *asked, unsigned ranks,
                                 unsigned gpus)
{
    *plan = (struct collective_plan){.options = asked, .ranks = ranks, .gpus = gpus};
    plan->rows = calloc((size_t)COLLECTIVE_DATAS * COLLECTIVE_TYPES * COLLECTIVE_OPS * LIST_MAX, sizeof(plan->rows[0]));
    if (plan->rows == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    bool only_random = asked->datas.count == 1 && asked->datas.list[0] == COLLECTIVE_RANDOM;
    if (!only_random && !inputs_exist(&asked->common))
        return false;
    for (enum collective_data data = 0; data < COLLECTIVE_DATAS; data++)
        for (enum collective_type type = 0; type < COLLECTIVE_TYPES; type++) {
            bool kind = asked->datas.count == 0 && data < COLLECTIVE_TENSORS;
            if (!(kind || list_has(&asked->datas, data)) || !list_has(&asked->types, type))
                continue;
            if (!collective_values_init(&plan->values[data][type], data, type, &asked->common.inputs))
                return false;
            if (plan->values[data][type].bytes != NULL)
                add_rows(plan, data, type);
        }
    return has_all(plan);
}

static void collective_plan_fini(struct collective_plan *plan)
{
    for (enum collective_data data = 0; data < COLLECTIVE_DATAS; data++)
        for (enum collective_type type = 0; type < COLLECTIVE_TYPES; type++)
            collective_values_fini(&plan->values[data][type]);
    free(plan->rows);
    *plan = (struct collective_plan){0};
}

/* ---- Between the processes --------------------------------------------------------------------------------------- */

static size_t result_bytes(const struct collective_plan *plan)
{
    return sizeof(struct collective_result) +
           (size_t)(plan->options->repeats + plan->options->singles) * COLLECTIVE_WAYS * plan->ranks * sizeof(uint64_t);
}

static size_t shared_bytes(const struct collective_plan *plan)
{
    return sizeof(struct collective_shared) + plan->row_count * result_bytes(plan);
}

static struct collective_shared *collective_shared_create(const struct collective_plan *plan)
{
    struct collective_shared *shared = ranks_memory(shared_bytes(plan));

    if (shared != NULL)
        shared->result_bytes = result_bytes(plan);
    return shared;
}

static void collective_shared_destroy(struct collective_shared *shared, const struct collective_plan *plan)
{
    if (shared != NULL)
        munmap(shared, shared_bytes(plan));
}

/* ---- GPUs -------------------------------------------------------------------------------------------------------- */

struct count {
    unsigned gpus;
    char why[256];
};

static void send_count(int fd)
{
    struct count count = {0};

    count.gpus = gpu_count(count.why, sizeof(count.why));
    _exit(write(fd, &count, sizeof(count)) == sizeof(count) ? 0 : 1);
}

unsigned collective_count_gpus(char *why, size_t size)
{
    struct count count = {.why = "the process that looks for them ended"};
    int ends[2], status;

    if (pipe(ends) != 0) {
        snprintf(why, size, "%s", strerror(errno));
        return 0;
    }
    pid_t pid = fork();
    if (pid == 0)
        send_count(ends[1]);
    close(ends[1]);
    if (pid > 0 && read(ends[0], &count, sizeof(count)) != sizeof(count))
        count.gpus = 0;
    close(ends[0]);
    if (pid > 0)
        waitpid(pid, &status, 0);
    snprintf(why, size, "%s", count.why);
    return count.gpus;
}

/* ---- Ranks ------------------------------------------------------------------------------------------------------- */

struct rank_run {
    const struct collective_plan *plan;
    enum collective_links links;
    struct collective_shared *shared;
};

static void set_environment(const struct collective_plan *plan, enum collective_links links, unsigned number)
{
    const struct collective_options *options = plan->options;
    char host[32];

    if (links != COLLECTIVE_AS_IS)
        setenv("NCCL_P2P_DISABLE", "1", 1);
    if (links == COLLECTIVE_SOCKET)
        setenv("NCCL_SHM_DISABLE", "1", 1);
    snprintf(host, sizeof(host), "host%u", (unsigned)(number * options->hosts / plan->ranks));
    if (options->hosts > 0)
        setenv("NCCL_HOSTID", host, 1);
    for (unsigned i = 0; i < options->environment.count; i++) {
        char *text = strdup(options->environment.list[i]);
        char *value = text != NULL ? strchr(text, '=') : NULL;
        if (value == NULL)
            continue;
        *value = '\0';
        setenv(text, value + 1, 1);
        free(text);
    }
}

static bool run_rank(void *context, unsigned number)
{
    const struct rank_run *run = context;

    set_environment(run->plan, run->links, number);
    return collective_rank_run(run->plan, run->shared, number);
}

static void print_position(const struct collective_plan *plan, const struct collective_shared *shared, unsigned number)
{
    static const char *const phases[] = {
        "opens libraries and its GPU", "connects", "warms up", "measures", "checks", "ends", "has ended"};
    static const char *const ways[] = {"NCCL alone", "libstrait-coll"};
    const struct collective_position *position = &shared->positions[number];
    const uint32_t phase = atomic_load(&position->phase), index = atomic_load(&position->row);
    const bool by_way = phase >= COLLECTIVE_CONNECTING && phase <= COLLECTIVE_MEASURING;
    const struct collective_row *row = &plan->rows[index < plan->row_count ? index : 0];

    if (phase < COLLECTIVE_WARMING || phase > COLLECTIVE_CHECKING)
        print_error(NULL, "rank %u %s%s%s", number, phases[phase], by_way ? ": " : "",
                    by_way ? ways[atomic_load(&position->way)] : "");
    else
        print_error(NULL, "rank %u %s%s%s: %s of %s %s, %llu bytes", number, phases[phase], by_way ? " by " : "",
                    by_way ? ways[atomic_load(&position->way)] : "", collective_op_names[row->op],
                    collective_data_names[row->data], collective_type_names[row->type], (unsigned long long)row->size);
}

static void print_positions(void *context)
{
    const struct rank_run *run = context;

    for (unsigned i = 0; i < run->plan->ranks; i++)
        print_position(run->plan, run->shared, i);
}

static bool run_ranks(const struct collective_plan *plan, enum collective_links links, struct collective_shared *shared)
{
    struct rank_run run = {plan, links, shared};
    const struct ranks ranks = {.count = plan->ranks,
                                .seconds = plan->options->seconds,
                                .barrier = &shared->barrier,
                                .run = run_rank,
                                .explain = print_positions,
                                .context = &run};

    return ranks_run(&ranks);
}

/* ---- The report -------------------------------------------------------------------------------------------------- */

#define LABEL                                                                                                        \
    {"links", NULL, "links", COLUMN_TEXT}, {"data", NULL, "data", COLUMN_TEXT}, {"type", NULL, "type", COLUMN_TEXT}, \
        {"operation", NULL, "operation", COLUMN_TEXT},                                                               \
    {                                                                                                                \
        "size", NULL, "size", COLUMN_SIZE                                                                            \
    }

static const struct column columns[] = {
    LABEL,
    {"nccl.p50_ns", "NCCL", "us", COLUMN_US},
    {"nccl.algbw_GBps", "NCCL", "algbw", COLUMN_NUMBER},
    {"nccl.busbw_GBps", "NCCL", "busbw", COLUMN_NUMBER},
    {"strait.p50_ns", "strait", "us", COLUMN_US},
    {"strait.algbw_GBps", "strait", "algbw", COLUMN_NUMBER},
    {"strait.busbw_GBps", "strait", "busbw", COLUMN_NUMBER},
    {"x", NULL, "x", COLUMN_NUMBER},
    {"x_min", NULL, "min", COLUMN_NUMBER},
    {"x_max", NULL, "max", COLUMN_NUMBER},
    {"ratio", NULL, "ratio", COLUMN_NUMBER},
    {"wrong", NULL, "check", COLUMN_CHECK},
    {"way", NULL, "way", COLUMN_TEXT},
    {"compressed", "calls", "compressed", COLUMN_COUNT},
    {"calls", "calls", "all", COLUMN_COUNT},
};
static const struct column single_columns[] = {
    LABEL,
    {"singles.nccl_p50_ns", "NCCL us", "p50", COLUMN_US},
    {"singles.nccl_max_ns", "NCCL us", "slowest", COLUMN_US},
    {"singles.strait_p50_ns", "strait us", "p50", COLUMN_US},
    {"singles.strait_max_ns", "strait us", "slowest", COLUMN_US},
    {"singles.slowest", NULL, "number", COLUMN_COUNT},
    {"singles.worst", NULL, "worst", COLUMN_NUMBER},
};
static const struct table tables[] = {
    TABLE("rows", NULL, NULL, columns),
    TABLE("rows", "single calls, from the first that has these values", "singles", single_columns),
};
static const char *const way_names[] = {"nccl", "strait"};

/* The slowest rank's time of one call of a repeat; single calls are numbered after the repeats. */
static double slowest_ns(const struct collective_plan *plan, struct collective_result *result, unsigned repeat,
                         enum collective_way way)
{
    uint64_t most = 0;

    for (unsigned rank = 0; rank < plan->ranks; rank++) {
        uint64_t ns = *collective_ns_of(plan, result, repeat, way, rank);
        most = ns > most ? ns : most;
    }
    return (double)most;
}

void collective_figures_make(const struct collective_plan *plan, const struct collective_row *row,
                             struct collective_result *result, struct collective_figures *figures)
{
    const struct collective_shape shape = collective_shape_of(row, plan->ranks);
    const unsigned repeats = (unsigned)plan->options->repeats;
    double samples[REPEATS_MAX];

    for (enum collective_way way = 0; way < COLLECTIVE_WAYS; way++) {
        for (unsigned i = 0; i < repeats; i++)
            samples[i] = slowest_ns(plan, result, i, way);
        figures->p50_ns[way] = median_of(samples, repeats);
        figures->algbw[way] = (double)shape.bytes / figures->p50_ns[way];
        figures->busbw[way] = figures->algbw[way] * shape.bus;
    }
    for (unsigned i = 0; i < repeats; i++)
        samples[i] = slowest_ns(plan, result, i, COLLECTIVE_PLAIN) / slowest_ns(plan, result, i, COLLECTIVE_STRAIT);
    figures->x = median_of(samples, repeats); /* sorts */
    figures->x_min = samples[0];
    figures->x_max = samples[repeats - 1];
    figures->ratio =
        result->wire.bytes == 0 ? 0 : (double)(shape.handed * result->wire.compressed) / (double)result->wire.bytes;
}

/* Cost of single calls, apart from averages. */
static void add_singles(cJSON *row, const struct collective_plan *plan, struct collective_result *result)
{
    const unsigned count = (unsigned)plan->options->singles;
    double samples[REPEATS_MAX], p50[COLLECTIVE_WAYS], most[COLLECTIVE_WAYS] = {0};
    unsigned which = 0;

    if (count == 0)
        return;
    for (enum collective_way way = 0; way < COLLECTIVE_WAYS; way++) {
        for (unsigned i = 0; i < count; i++) {
            samples[i] = slowest_ns(plan, result, (unsigned)plan->options->repeats + i, way);
            if (samples[i] > most[way]) {
                most[way] = samples[i];
                which = i; /* in the end, that of libstrait-coll, which comes last */
            }
        }
        p50[way] = median_of(samples, count);
    }
    cJSON *object = cJSON_AddObjectToObject(row, "singles");
    cJSON_AddNumberToObject(object, "nccl_p50_ns", p50[COLLECTIVE_PLAIN]);
    cJSON_AddNumberToObject(object, "nccl_max_ns", most[COLLECTIVE_PLAIN]);
    cJSON_AddNumberToObject(object, "strait_p50_ns", p50[COLLECTIVE_STRAIT]);
    cJSON_AddNumberToObject(object, "strait_max_ns", most[COLLECTIVE_STRAIT]);
    cJSON_AddNumberToObject(object, "slowest", which + 1);
    cJSON_AddNumberToObject(object, "worst", p50[COLLECTIVE_PLAIN] / most[COLLECTIVE_STRAIT]);
}

static void report_row(struct report *report, const struct collective_plan *plan, enum collective_links links,
                       const struct collective_row *row, struct collective_result *result)
{
    cJSON *object = report_add_row(report, "rows");
    struct collective_figures figures;

    collective_figures_make(plan, row, result, &figures);
    cJSON_AddStringToObject(object, "links", collective_links_names[links]);
    cJSON_AddStringToObject(object, "data", collective_data_names[row->data]);
    cJSON_AddStringToObject(object, "type", collective_type_names[row->type]);
    cJSON_AddStringToObject(object, "operation", collective_op_names[row->op]);
    cJSON_AddNumberToObject(object, "size", (double)row->size);
    cJSON_AddNumberToObject(object, "bytes", (double)collective_shape_of(row, plan->ranks).bytes);
    cJSON_AddNumberToObject(object, "iterations", result->iterations);
    for (enum collective_way way = 0; way < COLLECTIVE_WAYS; way++) {
        cJSON *one = cJSON_AddObjectToObject(object, way_names[way]), *repeats;
        cJSON_AddNumberToObject(one, "p50_ns", figures.p50_ns[way]);
        cJSON_AddNumberToObject(one, "algbw_GBps", figures.algbw[way]);
        cJSON_AddNumberToObject(one, "busbw_GBps", figures.busbw[way]);
        repeats = cJSON_AddArrayToObject(one, "ns");
        for (unsigned i = 0; i < plan->options->repeats; i++) {
            cJSON *ranks = cJSON_CreateArray();
            for (unsigned rank = 0; rank < plan->ranks; rank++)
                cJSON_AddItemToArray(ranks, cJSON_CreateNumber((double)*collective_ns_of(plan, result, i, way, rank)));
            cJSON_AddItemToArray(repeats, ranks);
        }
    }
    cJSON_AddNumberToObject(object, "x", figures.x);
    cJSON_AddNumberToObject(object, "x_min", figures.x_min);
    cJSON_AddNumberToObject(object, "x_max", figures.x_max);
    cJSON_AddStringToObject(object, "way", result->wire.name);
    cJSON_AddNumberToObject(object, "calls", (double)result->wire.calls);
    cJSON_AddNumberToObject(object, "compressed", (double)result->wire.compressed);
    cJSON_AddNumberToObject(object, "wire_bytes", (double)result->wire.bytes);
    json_add_known(object, "ratio", figures.ratio);
    add_singles(object, plan, result);
    cJSON_AddNumberToObject(object, "wrong", (double)atomic_load(&result->wrong));
}

static void report_facts(struct report *report, const struct collective_plan *plan,
                         const struct collective_shared *shared)
{
    const struct text_list *environment = &plan->options->environment;
    cJSON *root = report->root;

    cJSON_AddStringToObject(root, "gpu", shared->gpu);
    cJSON_AddNumberToObject(root, "ranks", plan->ranks);
    cJSON_AddNumberToObject(root, "gpus", plan->gpus);
    if (plan->options->hosts > 0)
        cJSON_AddNumberToObject(root, "hosts", (double)plan->options->hosts);
    cJSON_AddNumberToObject(root, "driver", shared->driver);
    cJSON_AddNumberToObject(root, "runtime", shared->runtime);
    cJSON_AddStringToObject(root, "nccl", shared->nccl);
    cJSON_AddNumberToObject(root, "nccl_version", shared->nccl_version);
    report_add_values(report, NULL);
    row_add_texts(root, "environment", environment->list, environment->count);
    cJSON_AddNumberToObject(root, "repeats", (double)plan->options->repeats);
}

/* ---- The run ----------------------------------------------------------------------------------------------------- */

static unsigned least(uint64_t a, uint64_t b)
{
    return (unsigned)(a < b ? a : b);
}

/* Sets how many GPUs there are for how many ranks. False: too few, which was printed to stderr. */
static bool choose_ranks(const struct collective_options *asked, unsigned *ranks, unsigned *gpus)
{
    char why[256];
    const unsigned all = collective_count_gpus(why, sizeof(why));

    *gpus = asked->gpus > 0 ? (unsigned)asked->gpus : least(all, COLLECTIVE_RANKS_MAX);
    *ranks = asked->ranks > 0 ? (unsigned)asked->ranks : *gpus;
    *gpus = least(*gpus, *ranks);
    if (all == 0)
        print_error(NULL, "no GPU: %s", why);
    else if (asked->gpus > all)
        print_error(NULL, "--gpus: there are %u", all);
    else if (*ranks < 2)
        print_error(NULL, "one GPU: collectives need two, or --ranks");
    else if (asked->hosts > *ranks)
        print_error(NULL, "--hosts: there are %u ranks", *ranks);
    else
        return true;
    return false;
}

/* Runs links one after another. Rows that were measured before a failure are reported, too. */
static bool run_links(struct report *report, const struct collective_plan *plan)
{
    unsigned reported = 0;
    bool ran = true;

    for (enum collective_links links = 0; ran && links < COLLECTIVE_LINKS; links++) {
        if (!list_has(&plan->options->links, links))
            continue;
        struct collective_shared *shared = collective_shared_create(plan);
        if (shared == NULL)
            return false;
        ran = run_ranks(plan, links, shared);
        for (unsigned i = 0; i < plan->row_count; i++) {
            struct collective_result *result = collective_result_of(shared, i);
            if (atomic_load(&result->done) != plan->ranks)
                continue;
            if (reported++ == 0)
                report_facts(report, plan, shared);
            report_row(report, plan, links, &plan->rows[i], result);
        }
        collective_shared_destroy(shared, plan);
    }
    return (reported == 0 || report_finish(report, tables, sizeof(tables) / sizeof(tables[0]))) && ran;
}

int bench_collective(int argc, char **argv)
{
    static struct collective_options asked;
    struct collective_plan plan = {0};
    struct report report;
    enum exit_code code;
    unsigned ranks, gpus;

    if (!command_read(&command, &asked, argc, argv, &code))
        return code;
    if (!check_options(&asked))
        return EXIT_CODE_USAGE;
    bool good = report_init(&report, &asked.common) && choose_ranks(&asked, &ranks, &gpus);
    interrupts_catch();
    good = good && collective_plan_init(&plan, &asked, ranks, gpus) && run_links(&report, &plan);
    collective_plan_fini(&plan);
    report_fini(&report);
    if (interrupted())
        print_error(NULL, "interrupted");
    return good ? EXIT_CODE_OK : EXIT_CODE_DATA;
}
