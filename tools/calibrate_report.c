#include "tools/calibrate_report.h"

#include <inttypes.h>
#include <math.h>

#include <cjson/cJSON.h>

#include "tools/json.h"

/* How ranks are coded: FORMAT.md, section 3. The estimate leaves out what depends on the cut into blocks: the u16 count
 * of a block with escapes, padding, tables, and blocks that stay raw. */
#define VALUE_BITS         16.0
#define SIGN_MANTISSA_BITS 8.0
#define TOP16_RANKS        16u
#define TOP16_ESCAPE_BITS  (16.0 + 8.0) /* position and exponent, besides the 4 bits of the code */
#define TIER2_RANK         3u
#define TIER3_RANK         6u
#define TIER4_RANK         21u

/* Sums over values, so that those of several classes can be added. */
struct cost {
    uint64_t values;
    double entropy; /* bits */
    double top16, tiered;
    double top16_escapes, tiered_escapes;
};

static struct cost cost_of(const uint64_t counts[256], const uint8_t ranking[256])
{
    struct cost cost = {0};
    for (unsigned e = 0; e < 256; e++)
        cost.values += counts[e];
    for (unsigned r = 0; r < 256; r++) {
        double count = (double)counts[ranking[r]];
        bool escapes = r >= TOP16_RANKS;
        if (count > 0)
            cost.entropy += count * log2((double)cost.values / count);
        cost.top16_escapes += escapes ? count : 0;
        cost.top16 += count * (4 + (escapes ? TOP16_ESCAPE_BITS : 0));
        cost.tiered_escapes += r >= TIER4_RANK ? count : 0;
        cost.tiered += count * (2 + (r >= TIER2_RANK ? 2 : 0) + (r >= TIER3_RANK ? 4 : 0) + (r >= TIER4_RANK ? 8 : 0));
    }
    return cost;
}

static void cost_add(struct cost *sum, const struct cost *cost)
{
    sum->values += cost->values;
    sum->entropy += cost->entropy;
    sum->top16 += cost->top16;
    sum->tiered += cost->tiered;
    sum->top16_escapes += cost->top16_escapes;
    sum->tiered_escapes += cost->tiered_escapes;
}

static double per_value(const struct cost *cost, double sum)
{
    return sum / (double)cost->values;
}

/* Never below 1, as blocks that would grow are kept raw. */
static double ratio(const struct cost *cost, double exponent_bits)
{
    double bits = SIGN_MANTISSA_BITS + per_value(cost, exponent_bits);
    return bits < VALUE_BITS ? VALUE_BITS / bits : 1;
}

static struct cost class_cost(const struct calibrate_report *report, const struct codebook_histogram *histogram)
{
    uint32_t table = strait_codebook_find(report->codebook, histogram->class);
    return cost_of(histogram->counts, strait_codebook_ranking(report->codebook, table));
}

static const char *const role_names[] = {
    [STRAIT_ROLE_OTHER] = "other",
    [STRAIT_ROLE_K] = "k",
    [STRAIT_ROLE_V] = "v",
};

/* ---- For people ------------------------------------------------------------------------------------------------ */

#define NAME_BYTES 24

static void name_class(char name[NAME_BYTES], struct strait_class class)
{
    if (class.layer < 0)
        snprintf(name, NAME_BYTES, "%s", role_names[class.role]);
    else
        snprintf(name, NAME_BYTES, "%s %" PRId32, role_names[class.role], class.layer);
}

static void print_row(FILE *stream, const char *name, const struct cost *cost)
{
    fprintf(stream, "%-12s %14" PRIu64 " %8.3f %8.4f %8.3f %8.4f %8.4f %8.4f %8.4f\n", name, cost->values,
            per_value(cost, cost->entropy), 100 * (1 - per_value(cost, cost->top16_escapes)),
            per_value(cost, cost->tiered), ratio(cost, cost->top16), 100 * per_value(cost, cost->top16_escapes),
            ratio(cost, cost->tiered), 100 * per_value(cost, cost->tiered_escapes));
}

void calibrate_report_table(const struct calibrate_report *report, FILE *stream)
{
    struct cost total = {0};
    fprintf(stream, "%-12s %14s %8s %8s %8s %8s %8s %8s %8s\n", "", "", "entropy", "top-16", "tiered", "top16", "top16",
            "tiered", "tiered");
    fprintf(stream, "%-12s %14s %8s %8s %8s %8s %8s %8s %8s\n", "class", "values", "bits", "%", "bits", "ratio",
            "esc %", "ratio", "esc %");
    for (uint32_t i = 0; i < report->histograms->count; i++) {
        char name[NAME_BYTES];
        struct cost cost = class_cost(report, &report->histograms->list[i]);
        name_class(name, report->histograms->list[i].class);
        print_row(stream, name, &cost);
        cost_add(&total, &cost);
    }
    print_row(stream, "total", &total);
}

/* ---- For machines ---------------------------------------------------------------------------------------------- */

static void add_cost_json(cJSON *row, const struct cost *cost)
{
    cJSON_AddNumberToObject(row, "values", (double)cost->values);
    cJSON_AddNumberToObject(row, "entropy_bits", per_value(cost, cost->entropy));
    cJSON_AddNumberToObject(row, "top16_coverage", 1 - per_value(cost, cost->top16_escapes));
    cJSON_AddNumberToObject(row, "top16_ratio", ratio(cost, cost->top16));
    cJSON_AddNumberToObject(row, "top16_escape_rate", per_value(cost, cost->top16_escapes));
    cJSON_AddNumberToObject(row, "tiered_bits", per_value(cost, cost->tiered));
    cJSON_AddNumberToObject(row, "tiered_ratio", ratio(cost, cost->tiered));
    cJSON_AddNumberToObject(row, "tiered_escape_rate", per_value(cost, cost->tiered_escapes));
}

static void add_class_json(cJSON *classes, const struct codebook_histogram *histogram, const struct cost *cost)
{
    cJSON *row = cJSON_CreateObject();
    cJSON_AddStringToObject(row, "role", role_names[histogram->class.role]);
    cJSON_AddNumberToObject(row, "layer", histogram->class.layer);
    add_cost_json(row, cost);
    cJSON_AddItemToArray(classes, row);
}

bool calibrate_report_json(const struct calibrate_report *report, FILE *stream)
{
    struct cost total = {0};
    cJSON *root = cJSON_CreateObject();
    json_add_hex(root, "codebook_id", strait_codebook_id(report->codebook), STRAIT_CODEBOOK_ID_BYTES);
    cJSON_AddNumberToObject(root, "tables", strait_codebook_count(report->codebook));
    cJSON_AddNumberToObject(root, "skipped_tensors", (double)report->skipped);
    cJSON *classes = cJSON_AddArrayToObject(root, "classes");
    for (uint32_t i = 0; i < report->histograms->count; i++) {
        struct cost cost = class_cost(report, &report->histograms->list[i]);
        add_class_json(classes, &report->histograms->list[i], &cost);
        cost_add(&total, &cost);
    }
    add_cost_json(cJSON_AddObjectToObject(root, "total"), &total);
    return json_print(root, stream);
}
