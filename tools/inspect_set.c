/* A codebook set, or the histograms that sets are made of. */
#include "tools/inspect.h"

#include <inttypes.h>
#include <stdlib.h>

#include <cjson/cJSON.h>

#include "kernels/codebook_file.h"
#include "tools/json.h"

static const char *const role_names[] = {
    [STRAIT_ROLE_OTHER] = "other",
    [STRAIT_ROLE_K] = "k",
    [STRAIT_ROLE_V] = "v",
};

static void print_class(struct strait_class class)
{
    if (class.layer < 0)
        printf("%-6s %6s", role_names[class.role], "-");
    else
        printf("%-6s %6" PRId32, role_names[class.role], class.layer);
}

static void class_json(cJSON *object, struct strait_class class)
{
    cJSON_AddStringToObject(object, "role", role_names[class.role]);
    cJSON_AddNumberToObject(object, "layer", class.layer);
}

/* ---- Sets ------------------------------------------------------------------------------------------------------ */

static bool print_set(const struct input *input, const struct strait_codebook *codebook)
{
    uint32_t count = strait_codebook_count(codebook);

    printf("%s: codebook set of %" PRIu32 " tables, id ", input->path, count);
    print_hex(stdout, strait_codebook_id(codebook), STRAIT_CODEBOOK_ID_BYTES);
    printf("\n%5s %-6s %6s  exponents, most frequent first\n", "table", "role", "layer");
    for (uint32_t t = 0; t < count; t++) {
        printf("%5" PRIu32 " ", t);
        if (t == 0)
            printf("%-13s", "fallback");
        else
            print_class(strait_codebook_class(codebook, t));
        printf("  ");
        print_top(stdout, strait_codebook_ranking(codebook, t));
        putchar('\n');
    }
    return true;
}

static bool print_set_json(const struct input *input, const struct strait_codebook *codebook)
{
    cJSON *object = cJSON_CreateObject(), *list;

    cJSON_AddStringToObject(object, "input", input->path);
    cJSON_AddStringToObject(object, "kind", "codebook_set");
    json_add_hex(object, "codebook_id", strait_codebook_id(codebook), STRAIT_CODEBOOK_ID_BYTES);
    list = cJSON_AddArrayToObject(object, "tables");
    for (uint32_t t = 0; t < strait_codebook_count(codebook); t++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddNumberToObject(item, "table", t);
        class_json(item, strait_codebook_class(codebook, t));
        cJSON_AddItemToObject(item, "top", top_json(strait_codebook_ranking(codebook, t)));
        cJSON_AddItemToArray(list, item);
    }
    return json_print(object, stdout);
}

/* ---- Histograms ------------------------------------------------------------------------------------------------ */

static uint64_t values_of(const struct codebook_histogram *histogram)
{
    uint64_t values = 0;

    for (unsigned e = 0; e < 256; e++)
        values += histogram->counts[e];
    return values;
}

static bool print_partial(const struct input *input, const struct codebook_histogram *list, uint32_t count)
{
    printf("%s: histograms of %" PRIu32 " classes\n%-6s %6s %16s  exponents, most frequent first\n", input->path, count,
           "role", "layer", "values");
    for (uint32_t i = 0; i < count; i++) {
        uint8_t ranking[256];
        strait_histogram_rank(ranking, list[i].counts);
        print_class(list[i].class);
        printf(" %16" PRIu64 "  ", values_of(&list[i]));
        print_top(stdout, ranking);
        putchar('\n');
    }
    return true;
}

static bool print_partial_json(const struct input *input, const struct codebook_histogram *list, uint32_t count)
{
    cJSON *object = cJSON_CreateObject(), *classes;

    cJSON_AddStringToObject(object, "input", input->path);
    cJSON_AddStringToObject(object, "kind", "histograms");
    classes = cJSON_AddArrayToObject(object, "classes");
    for (uint32_t i = 0; i < count; i++) {
        cJSON *item = cJSON_CreateObject();
        class_json(item, list[i].class);
        cJSON_AddNumberToObject(item, "values", (double)values_of(&list[i]));
        cJSON_AddItemToArray(classes, item);
    }
    return json_print(object, stdout);
}

static bool inspect_partial(const struct input *input, const struct inspect_options *options)
{
    struct codebook_histogram *list;
    uint32_t count;
    bool ok;

    if (codebook_partial_parse(input->data, input->size, &list, &count) != STRAIT_OK)
        return false;
    ok = (options->json ? print_partial_json : print_partial)(input, list, count);
    free(list);
    return ok;
}

/* An input that is no set may be a partial file; if it is neither, the error is the one from reading it as a set. */
bool inspect_set(const struct input *input, const struct inspect_options *options)
{
    struct strait_codebook *codebook;
    enum strait_status status = strait_codebook_parse(input->data, input->size, &codebook);
    bool ok;

    if (status != STRAIT_OK) {
        ok = inspect_partial(input, options);
        if (!ok)
            print_error(input->path, "codebook set: %s", strait_status_string(status));
        return ok;
    }
    ok = (options->json ? print_set_json : print_set)(input, codebook);
    strait_codebook_destroy(codebook);
    return ok;
}
