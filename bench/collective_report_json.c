/* The second half of collective_report.h. */
#include "bench/collective_report.h"

#include <cjson/cJSON.h>
#include <stdlib.h>

#include "tools/util.h"

static const char *const way_names[] = {"nccl", "strait"};

static void add_times(cJSON *way, const struct collective_plan *plan, struct collective_result *result,
                      enum collective_way which)
{
    cJSON *repeats = cJSON_AddArrayToObject(way, "ns");

    for (unsigned i = 0; i < plan->options->repeats; i++) {
        cJSON *ranks = cJSON_CreateArray();
        for (unsigned rank = 0; rank < plan->ranks; rank++)
            cJSON_AddItemToArray(ranks, cJSON_CreateNumber((double)*collective_ns_of(plan, result, i, which, rank)));
        cJSON_AddItemToArray(repeats, ranks);
    }
}

static void add_singles(cJSON *row, const struct collective_plan *plan, struct collective_result *result)
{
    struct collective_singles singles;

    if (!collective_singles_make(plan, result, &singles))
        return;
    cJSON *object = cJSON_AddObjectToObject(row, "singles");
    cJSON_AddNumberToObject(object, "nccl_p50_ns", singles.p50[COLLECTIVE_PLAIN]);
    cJSON_AddNumberToObject(object, "nccl_max_ns", singles.slowest[COLLECTIVE_PLAIN]);
    cJSON_AddNumberToObject(object, "strait_p50_ns", singles.p50[COLLECTIVE_STRAIT]);
    cJSON_AddNumberToObject(object, "strait_max_ns", singles.slowest[COLLECTIVE_STRAIT]);
    cJSON_AddNumberToObject(object, "slowest", singles.which + 1);
}

static cJSON *make_row(const struct collective_plan *plan, enum collective_links links,
                       const struct collective_row *row, struct collective_result *result, double *samples)
{
    cJSON *object = cJSON_CreateObject();
    struct collective_figures figures;

    collective_figures_make(plan, row, result, samples, &figures);
    cJSON_AddStringToObject(object, "links", collective_links_names[links]);
    cJSON_AddStringToObject(object, "data", collective_data_names[row->data]);
    cJSON_AddStringToObject(object, "type", collective_type_names[row->type]);
    cJSON_AddStringToObject(object, "operation", collective_op_names[row->op]);
    cJSON_AddNumberToObject(object, "bytes", (double)collective_shape_of(row, plan->ranks).bytes);
    cJSON_AddNumberToObject(object, "iterations", result->iterations);
    for (enum collective_way way = 0; way < COLLECTIVE_WAYS; way++) {
        cJSON *one = cJSON_AddObjectToObject(object, way_names[way]);
        cJSON_AddNumberToObject(one, "p50_ns", figures.ns[way].p50);
        cJSON_AddNumberToObject(one, "algbw_GBps", figures.algbw[way]);
        cJSON_AddNumberToObject(one, "busbw_GBps", figures.busbw[way]);
        add_times(one, plan, result, way);
    }
    cJSON_AddNumberToObject(object, "x", figures.speedup.p50);
    cJSON_AddNumberToObject(object, "x_min", figures.speedup.min);
    cJSON_AddNumberToObject(object, "x_max", figures.speedup.max);
    cJSON_AddStringToObject(object, "way", result->wire.name);
    cJSON_AddNumberToObject(object, "calls", (double)result->wire.calls);
    cJSON_AddNumberToObject(object, "compressed", (double)result->wire.compressed);
    cJSON_AddNumberToObject(object, "wire_bytes", (double)result->wire.bytes);
    json_add_known(object, "ratio", figures.ratio);
    add_singles(object, plan, result);
    cJSON_AddNumberToObject(object, "wrong", (double)atomic_load(&result->wrong));
    return object;
}

static void add_machine(cJSON *root, const struct collective_report *report)
{
    const struct collective_options *options = report->plan->options;
    const struct collective_shared *shared = NULL;

    for (enum collective_links links = 0; links < COLLECTIVE_LINKS; links++)
        shared = report->shared[links] != NULL ? report->shared[links] : shared;
    cJSON_AddStringToObject(root, "gpu", shared->gpu);
    cJSON_AddNumberToObject(root, "ranks", report->plan->ranks);
    cJSON_AddNumberToObject(root, "gpus", report->plan->gpus);
    cJSON_AddNumberToObject(root, "driver", shared->driver);
    cJSON_AddNumberToObject(root, "runtime", shared->runtime);
    cJSON_AddStringToObject(root, "nccl", shared->nccl);
    cJSON_AddNumberToObject(root, "nccl_version", shared->nccl_version);
    if (options->sources.input_count > 0)
        cJSON_AddItemToObject(root, "inputs",
                              cJSON_CreateStringArray(options->sources.inputs, (int)options->sources.input_count));
    cJSON_AddItemToObject(root, "environment",
                          cJSON_CreateStringArray(options->environment, (int)options->environment_count));
    cJSON_AddNumberToObject(root, "repeats", options->repeats);
}

bool collective_report_json(const struct collective_report *report, FILE *stream)
{
    const struct collective_plan *plan = report->plan;
    double *samples = calloc(plan->options->repeats, sizeof(*samples));
    cJSON *root = cJSON_CreateObject(), *rows;

    if (samples == NULL) {
        print_error(NULL, "out of memory");
        cJSON_Delete(root);
        return false;
    }
    head_json(root, report->machine, report->line);
    add_machine(root, report);
    rows = cJSON_AddArrayToObject(root, "rows");
    for (enum collective_links links = 0; links < COLLECTIVE_LINKS; links++)
        for (unsigned i = 0; i < plan->row_count; i++)
            if (collective_row_is_done(report, links, i))
                cJSON_AddItemToArray(rows, make_row(plan, links, &plan->rows[i],
                                                    collective_result_of(report->shared[links], i), samples));
    free(samples);
    return json_print(root, stream);
}
