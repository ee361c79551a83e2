/* strait checkpoint diff */
#include <cjson/cJSON.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/checkpoint_open.h"
#include "tools/checkpoint_parts.h"
#include "tools/report.h"
#include "tools/util.h"

static const char usage[] =
    "usage: strait checkpoint diff [OPTION]... A B\n"
    "\n"
    "Compares two checkpoints: tensors that only one of them has, of another type or shape, and those whose values\n"
    "differ, bit by bit: how many, and where the first is. How they were cut into shards makes no difference.\n"
    "\n"
    "  -T, --threads N      threads, 0 for all processors (0)\n"
    "      --json           report as JSON\n"
    "  -q, --quiet          no progress\n"
    "  -h, --help           print this\n"
    "\n"
    "Exit status: 0 done, whether they differ or not, 1 bad data or failed input or output, 2 bad usage.\n";

struct diff_options {
    unsigned threads;
    bool json, quiet;
};

/* A tensor of A, of B or of both. */
struct pair {
    const char *name;
    uint32_t tensor[2]; /* UINT32_MAX: not there */
    bool comparable;    /* of one type and shape */
    uint64_t bytes;
    uint64_t different; /* values */
    uint64_t first;     /* of them, counted in the tensor's order */
};

struct diff {
    const char *paths[2];
    struct strait_checkpoint_reader *readers[2];
    struct pair *pairs;
    uint32_t pair_count;
    uint32_t *tensors[2]; /* of pairs that are comparable */
    uint32_t *pair_of;    /* pairs of these */
    uint32_t comparable;
    uint64_t equal_bytes;
};

/* ---- Pairs ------------------------------------------------------------------------------------------------------- */

static bool same_form(const struct strait_checkpoint_tensor_info *a, const struct strait_checkpoint_tensor_info *b)
{
    return strcmp(a->dtype, b->dtype) == 0 && a->dims == b->dims &&
           (a->dims == 0 || memcmp(a->shape, b->shape, a->dims * sizeof(*a->shape)) == 0);
}

static void add_pair(struct diff *diff, const uint32_t tensor[2])
{
    struct strait_checkpoint_tensor_info infos[2];
    struct pair pair = {.tensor = {tensor[0], tensor[1]}};
    for (unsigned s = 0; s < 2; s++)
        if (tensor[s] != UINT32_MAX) {
            (void)strait_checkpoint_tensor_at(diff->readers[s], tensor[s], &infos[s]);
            pair.name = infos[s].name;
            pair.bytes = infos[s].bytes;
        }
    pair.comparable = tensor[0] != UINT32_MAX && tensor[1] != UINT32_MAX && same_form(&infos[0], &infos[1]);
    if (pair.comparable) {
        diff->tensors[0][diff->comparable] = tensor[0];
        diff->tensors[1][diff->comparable] = tensor[1];
        diff->pair_of[diff->comparable++] = diff->pair_count;
    }
    diff->pairs[diff->pair_count++] = pair;
}

/* Pairs the tensors of both, which are in the order of their names. */
static bool find_pairs(struct diff *diff)
{
    struct strait_checkpoint_info infos[2];
    uint32_t at[2] = {0, 0};
    for (unsigned s = 0; s < 2; s++)
        strait_checkpoint_describe(diff->readers[s], &infos[s]);
    const size_t most = (size_t)infos[0].tensor_count + infos[1].tensor_count + 1;
    diff->pairs = calloc(most, sizeof(*diff->pairs));
    diff->tensors[0] = malloc(most * sizeof(uint32_t));
    diff->tensors[1] = malloc(most * sizeof(uint32_t));
    diff->pair_of = malloc(most * sizeof(uint32_t));
    if (diff->pairs == NULL || diff->tensors[0] == NULL || diff->tensors[1] == NULL || diff->pair_of == NULL)
        return false;
    while (at[0] < infos[0].tensor_count || at[1] < infos[1].tensor_count) {
        struct strait_checkpoint_tensor_info a, b;
        const bool has_a = strait_checkpoint_tensor_at(diff->readers[0], at[0], &a);
        const bool has_b = strait_checkpoint_tensor_at(diff->readers[1], at[1], &b);
        const int order = !has_a ? 1 : !has_b ? -1 : strcmp(a.name, b.name);
        const uint32_t pair[2] = {order <= 0 ? at[0]++ : UINT32_MAX, order >= 0 ? at[1]++ : UINT32_MAX};
        add_pair(diff, pair);
    }
    return true;
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

static void compare_range(struct pair *pair, const struct value_range *range, const uint8_t *other, uint32_t value)
{
    const uint64_t count = range->end - range->first;
    if (memcmp(range->data, other, count * value) == 0)
        return;
    for (uint64_t i = 0; i < count; i++)
        if (memcmp(range->data + i * value, other + i * value, value) != 0 && pair->different++ == 0)
            pair->first = range->first + i;
}

static bool compare_values(struct diff *diff, const struct diff_options *options, uint8_t *memory,
                           struct progress *progress)
{
    struct window window = {.tensors = diff->tensors[0], .count = diff->comparable},
                  other = {.tensors = diff->tensors[1], .count = diff->comparable};
    bool done = true;
    uint32_t at = 0; /* of the comparable ones */
    while (done && window_next(&window, diff->readers[0], memory, WINDOW_BYTES)) {
        done = window_next(&other, diff->readers[1], memory + WINDOW_BYTES, WINDOW_BYTES) &&
               ranges_load(diff->readers[0], diff->paths[0], window.ranges, window.range_count, options->threads) &&
               ranges_load(diff->readers[1], diff->paths[1], other.ranges, other.range_count, options->threads);
        for (size_t r = 0; done && r < window.range_count; r++) {
            struct strait_checkpoint_tensor_info info;
            while (diff->tensors[0][at] != window.ranges[r].tensor)
                at++;
            (void)strait_checkpoint_tensor_at(diff->readers[0], window.ranges[r].tensor, &info);
            compare_range(&diff->pairs[diff->pair_of[at]], &window.ranges[r], other.ranges[r].data,
                          strait_checkpoint_dtype_bytes(info.dtype));
        }
        progress_add(progress, window.bytes);
    }
    if (done && window.range_count > 0) {
        print_error(NULL, "out of memory");
        done = false;
    }
    window_fini(&window);
    window_fini(&other);
    return done;
}

static bool compare(struct diff *diff, const struct diff_options *options)
{
    struct progress progress;
    uint64_t bytes = 0;
    if (!find_pairs(diff)) {
        print_error(NULL, "out of memory");
        return false;
    }
    for (uint32_t i = 0; i < diff->comparable; i++)
        bytes += diff->pairs[diff->pair_of[i]].bytes;
    uint8_t *memory = malloc(2ull * WINDOW_BYTES);
    if (memory == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    progress_begin(&progress, "comparing", bytes, options->quiet);
    const bool done = compare_values(diff, options, memory, &progress);
    progress_end(&progress);
    free(memory);
    for (uint32_t i = 0; i < diff->comparable; i++) {
        const struct pair *pair = &diff->pairs[diff->pair_of[i]];
        diff->equal_bytes += pair->different == 0 ? pair->bytes : 0;
    }
    return done;
}

/* ---- Reports ----------------------------------------------------------------------------------------------------- */

enum kind { KIND_EQUAL, KIND_ONLY_A, KIND_ONLY_B, KIND_FORM, KIND_VALUES, KINDS };
static const char *const kind_names[KINDS] = {"equal", "only_in_a", "only_in_b", "other_form", "other_values"};

static enum kind kind_of_pair(const struct pair *pair)
{
    if (pair->tensor[0] == UINT32_MAX || pair->tensor[1] == UINT32_MAX)
        return pair->tensor[0] != UINT32_MAX ? KIND_ONLY_A : KIND_ONLY_B;
    if (!pair->comparable)
        return KIND_FORM;
    return pair->different > 0 ? KIND_VALUES : KIND_EQUAL;
}

/* "BF16 4096x1024"; "F32" for a scalar. */
static void form_text(const struct diff *diff, const struct pair *pair, unsigned side, char *text, size_t size)
{
    struct strait_checkpoint_tensor_info info;
    (void)strait_checkpoint_tensor_at(diff->readers[side], pair->tensor[side], &info);
    int used = snprintf(text, size, "%s", info.dtype);
    for (uint32_t d = 0; d < info.dims && used >= 0 && (size_t)used < size; d++)
        used += snprintf(text + used, size - (size_t)used, "%s%" PRIu64, d == 0 ? " " : "x", info.shape[d]);
}

static void print_pair(const struct diff *diff, const struct pair *pair)
{
    char forms[2][256] = {"", ""}, *name = text_printable(pair->name);
    const enum kind kind = kind_of_pair(pair);
    for (unsigned s = 0; s < 2; s++)
        if (pair->tensor[s] != UINT32_MAX)
            form_text(diff, pair, s, forms[s], sizeof(forms[s]));
    if (kind == KIND_ONLY_A || kind == KIND_ONLY_B)
        printf("only in %s  %s  %s\n", kind == KIND_ONLY_A ? "A" : "B", name != NULL ? name : "",
               forms[kind == KIND_ONLY_B]);
    else if (kind == KIND_FORM)
        printf("other form   %s  %s in A, %s in B\n", name != NULL ? name : "", forms[0], forms[1]);
    else if (kind == KIND_VALUES)
        printf("other values %s  %s: %" PRIu64 " differ, the first is value %" PRIu64 "\n", name != NULL ? name : "",
               forms[0], pair->different, pair->first);
    free(name);
}

static void print_diff(const struct diff *diff)
{
    uint64_t counts[KINDS] = {0};
    for (uint32_t p = 0; p < diff->pair_count; p++) {
        print_pair(diff, &diff->pairs[p]);
        counts[kind_of_pair(&diff->pairs[p])]++;
    }
    printf("%" PRIu64 " tensors are equal, of %" PRIu64 " bytes; %" PRIu64 " differ in values, %" PRIu64
           " in type or shape; %" PRIu64 " are only in A, %" PRIu64 " only in B\n",
           counts[KIND_EQUAL], diff->equal_bytes, counts[KIND_VALUES], counts[KIND_FORM], counts[KIND_ONLY_A],
           counts[KIND_ONLY_B]);
}

static bool print_json(const struct diff *diff)
{
    cJSON *object = cJSON_CreateObject(), *list;
    uint64_t counts[KINDS] = {0};
    for (uint32_t p = 0; p < diff->pair_count; p++)
        counts[kind_of_pair(&diff->pairs[p])]++;
    cJSON_AddStringToObject(object, "a", diff->paths[0]);
    cJSON_AddStringToObject(object, "b", diff->paths[1]);
    cJSON_AddBoolToObject(object, "equal", counts[KIND_EQUAL] == diff->pair_count);
    cJSON_AddNumberToObject(object, "equal_tensors", (double)counts[KIND_EQUAL]);
    cJSON_AddNumberToObject(object, "equal_bytes", (double)diff->equal_bytes);
    list = cJSON_AddArrayToObject(object, "differences");
    for (uint32_t p = 0; p < diff->pair_count; p++) {
        const struct pair *pair = &diff->pairs[p];
        const enum kind kind = kind_of_pair(pair);
        if (kind == KIND_EQUAL)
            continue;
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "name", pair->name);
        cJSON_AddStringToObject(item, "kind", kind_names[kind]);
        if (kind == KIND_VALUES) {
            cJSON_AddNumberToObject(item, "values", (double)pair->different);
            cJSON_AddNumberToObject(item, "first_value", (double)pair->first);
        }
        cJSON_AddItemToArray(list, item);
    }
    return json_print(object, stdout);
}

/* ---- The command ------------------------------------------------------------------------------------------------- */

static bool diff_paths(char *const *paths, const struct diff_options *options)
{
    struct diff diff = {.paths = {paths[0], paths[1]}};
    bool done = checkpoint_open(paths[0], &diff.readers[0]) && checkpoint_open(paths[1], &diff.readers[1]) &&
                compare(&diff, options);
    if (done && options->json)
        done = print_json(&diff);
    else if (done)
        print_diff(&diff);
    for (unsigned s = 0; s < 2; s++) {
        strait_checkpoint_close(diff.readers[s]);
        free(diff.tensors[s]);
    }
    free(diff.pairs);
    free(diff.pair_of);
    return done;
}

int checkpoint_diff(int argc, char **argv)
{
    static char name[] = "strait checkpoint diff";
    struct diff_options options = {.threads = cpu_count()};
    const struct cli_option list[] = {{"threads", 'T', .threads = &options.threads},
                                      {"json", .flag = &options.json},
                                      {"quiet", 'q', .flag = &options.quiet}};
    enum exit_code code;
    command_begin(argv, name);
    if (!options_parse(list, sizeof(list) / sizeof(list[0]), &options, usage, argc, argv, &code))
        return code;
    if (!operands_are(argc, 2, "two paths"))
        return EXIT_CODE_USAGE;
    return diff_paths(argv + optind, &options) ? EXIT_CODE_OK : EXIT_CODE_DATA;
}
