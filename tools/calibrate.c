#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "internal/element.h"
#include "tools/calibrate.h"
#include "tools/input.h"
#include "tools/kinds.h"
#include "tools/pipeline.h"
#include "tools/util.h"
#include "tools/files.h"
#include "tools/report.h"

#define PIECE_VALUES (8u * 1024 * 1024) /* taken by a thread at a time: 16 MiB */

/* ---- Histograms ------------------------------------------------------------------------------------------------ */

static int by_class(const void *a, const void *b)
{
    const struct codebook_histogram *x = a, *y = b;
    return codebook_class_compare(x->class, y->class);
}

void histogram_sum(uint64_t sum[256], const uint64_t counts[256])
{
    for (unsigned e = 0; e < 256; e++)
        sum[e] += counts[e];
}

/* If the sum over everything fits, so does every partial sum. */
static bool values_fit(const struct codebook_histogram *list, size_t count)
{
    uint64_t total = 0;
    for (size_t i = 0; i < count; i++)
        for (unsigned e = 0; e < 256; e++)
            if (__builtin_add_overflow(total, list[i].counts[e], &total))
                return false;
    return true;
}

/* Merges adjacent entries of the same class; returns how many classes remain. */
static size_t fold(struct codebook_histogram *list, size_t count)
{
    size_t last = 0;
    for (size_t i = 1; i < count; i++) {
        if (by_class(&list[last], &list[i]) == 0)
            histogram_sum(list[last].counts, list[i].counts);
        else if (++last != i)
            list[last] = list[i];
    }
    return count == 0 ? 0 : last + 1;
}

enum strait_status histograms_add(struct histograms *histograms, const struct codebook_histogram *list, uint32_t count)
{
    size_t all = (size_t)histograms->count + count;
    struct codebook_histogram *grown = realloc(histograms->list, sizeof(*grown) * (all + 1));
    if (grown == NULL)
        return STRAIT_ERR_NO_MEMORY;
    histograms->list = grown;
    memcpy(grown + histograms->count, list, sizeof(*grown) * count);
    if (!values_fit(grown, all))
        return STRAIT_ERR_INVALID;
    qsort(grown, all, sizeof(*grown), by_class);
    histograms->count = (uint32_t)fold(grown, all);
    return STRAIT_OK;
}

void histograms_fini(struct histograms *histograms)
{
    free(histograms->list);
    *histograms = (struct histograms){0};
}

void histograms_total(const struct histograms *histograms, uint64_t total[256])
{
    memset(total, 0, 256 * sizeof(total[0]));
    for (uint32_t i = 0; i < histograms->count; i++)
        if (!kind_is(histograms->list[i].class))
            histogram_sum(total, histograms->list[i].counts);
}

static const struct codebook_histogram *find_class(const struct histograms *histograms, enum strait_role role,
                                                   int32_t layer)
{
    const struct codebook_histogram wanted = {.class = {role, layer}};
    return histograms->count == 0 ? NULL
                                  : bsearch(&wanted, histograms->list, histograms->count, sizeof(wanted), by_class);
}

/* All classes, and K and V together of each layer that has both but no values of that kind itself: a pool may have
 * them in one tensor. */
static enum strait_status with_mixes(const struct histograms *counted, struct histograms *all)
{
    uint32_t count = 0;
    struct codebook_histogram *mixes = malloc(sizeof(*mixes) * ((size_t)counted->count + 1));
    for (uint32_t i = 0; mixes != NULL && i < counted->count; i++) {
        const struct codebook_histogram *k = &counted->list[i], *v = find_class(counted, STRAIT_ROLE_V, k->class.layer);
        if (k->class.role != STRAIT_ROLE_K || v == NULL || find_class(counted, STRAIT_ROLE_KV, k->class.layer) != NULL)
            continue;
        mixes[count] = *k;
        mixes[count].class.role = STRAIT_ROLE_KV;
        histogram_sum(mixes[count++].counts, v->counts);
    }
    enum strait_status status = mixes == NULL ? STRAIT_ERR_NO_MEMORY : histograms_add(all, mixes, count);
    if (status == STRAIT_OK)
        status = histograms_add(all, counted->list, counted->count);
    free(mixes);
    return status;
}

/* Table 0 is made of all values; those behind it of the values of each class, unless only table 0 is wanted. */
enum strait_status histograms_codebook(const struct histograms *histograms, bool global,
                                       struct strait_codebook **codebook)
{
    struct histograms all = {0};
    uint64_t(*counts)[256] = NULL;
    struct strait_class *classes = NULL;
    enum strait_status status = global ? STRAIT_OK : with_mixes(histograms, &all);
    if (status != STRAIT_OK)
        goto out;
    status = STRAIT_ERR_NO_MEMORY;
    const uint32_t count = 1 + all.count;
    counts = malloc(sizeof(*counts) * count);
    classes = malloc(sizeof(*classes) * count);
    if (counts == NULL || classes == NULL)
        goto out;
    histograms_total(histograms, counts[0]);
    classes[0] = (struct strait_class){.role = STRAIT_ROLE_OTHER, .layer = -1};
    for (uint32_t t = 1; t < count; t++) {
        memcpy(counts[t], all.list[t - 1].counts, sizeof(counts[t]));
        classes[t] = all.list[t - 1].class;
    }
    status = strait_codebook_create_counted((const uint64_t(*)[256])counts, classes, count, codebook);
out:
    free(classes);
    free(counts);
    histograms_fini(&all);
    return status;
}

/* ---- Spans ----------------------------------------------------------------------------------------------------- */

bool spans_add(struct spans *spans, struct span span)
{
    if (span.values == 0)
        return true;
    if (spans->count == spans->capacity) {
        size_t capacity = spans->capacity == 0 ? 256 : 2 * spans->capacity;
        struct span *grown = realloc(spans->list, sizeof(*grown) * capacity);
        if (grown == NULL) {
            print_error(NULL, "out of memory");
            return false;
        }
        spans->list = grown;
        spans->capacity = capacity;
    }
    spans->list[spans->count++] = span;
    return true;
}

void spans_fini(struct spans *spans)
{
    free(spans->list);
    *spans = (struct spans){0};
}

static int by_place(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    return x->data != y->data ? (x->data > y->data) - (x->data < y->data)
                              : (x->offset > y->offset) - (x->offset < y->offset);
}

static struct codebook_histogram *histogram_of(const struct histograms *histograms, struct strait_class class)
{
    const struct codebook_histogram wanted = {.class = class};
    return bsearch(&wanted, histograms->list, histograms->count, sizeof(wanted), by_class);
}

static int compare_classes(const void *a, const void *b)
{
    return codebook_class_compare(*(const struct strait_class *)a, *(const struct strait_class *)b);
}

/* Makes an empty histogram for each class that is in the list, which may hold them several times. */
static bool make_histograms(struct histograms *histograms, struct strait_class *classes, size_t count)
{
    size_t made = 0;
    qsort(classes, count, sizeof(*classes), compare_classes);
    for (size_t i = 0; i < count; i++)
        if (i == 0 || compare_classes(&classes[made - 1], &classes[i]) != 0)
            classes[made++] = classes[i];
    histograms->list = calloc(made, sizeof(histograms->list[0]));
    if (histograms->list == NULL)
        return false;
    histograms->count = (uint32_t)made;
    for (size_t i = 0; i < made; i++)
        histograms->list[i].class = classes[i];
    return true;
}

/* Gives every class and kind of the spans an empty histogram. */
static bool assign_histograms(struct spans *spans, struct histograms *histograms)
{
    size_t count = 0;
    if (spans->count == 0)
        return true;
    struct strait_class *classes = malloc(2 * spans->count * sizeof(*classes));
    if (classes == NULL)
        return false;
    for (size_t i = 0; i < spans->count; i++) {
        classes[count++] = spans->list[i].class;
        if (kind_is(spans->list[i].kind))
            classes[count++] = spans->list[i].kind;
    }
    const bool made = make_histograms(histograms, classes, count);
    for (size_t i = 0; made && i < spans->count; i++) {
        struct span *span = &spans->list[i];
        span->histogram = histogram_of(histograms, span->class);
        span->of_its_kind = kind_is(span->kind) ? histogram_of(histograms, span->kind) : NULL;
    }
    free(classes);
    return made;
}

/* ---- Counting -------------------------------------------------------------------------------------------------- */

struct counting {
    const struct spans *spans;
    const struct source *source; /* NULL: the values are in memory */
    struct progress *progress;
    const struct histograms *histograms;
    const struct measure *measure; /* NULL: only count */
    atomic_bool failed;
    pthread_mutex_t lock; /* guards the fields below and the histograms */
    size_t next;          /* the span to take from */
    uint64_t taken;       /* values already taken from that span */
};

/* Takes the next piece of the next span. False when nothing is left. */
static bool take_piece(struct counting *counting, struct span *piece)
{
    pthread_mutex_lock(&counting->lock);
    bool found = counting->next < counting->spans->count && !counting->failed;
    if (found) {
        *piece = counting->spans->list[counting->next];
        piece->offset += element_bytes(piece->element) * counting->taken;
        piece->values -= counting->taken;
        if (piece->values > PIECE_VALUES) {
            piece->values = PIECE_VALUES;
            counting->taken += PIECE_VALUES;
        } else {
            counting->next++;
            counting->taken = 0;
        }
    }
    pthread_mutex_unlock(&counting->lock);
    return found;
}

/* The values of a piece: in memory, or read into the buffer. NULL: failed. */
static const uint8_t *piece_data(struct counting *counting, const struct span *piece, struct buffer *buffer)
{
    uint64_t bytes = element_bytes(piece->element) * piece->values;

    if (counting->source == NULL)
        return piece->data + piece->offset;
    if (!buffer_reserve(buffer, 0, bytes)) {
        print_error(counting->source->name, "out of memory");
        return NULL;
    }
    return source_read_at(counting->source, piece->offset, buffer->data, bytes) ? buffer->data : NULL;
}

/* False: it failed, with the error on stderr. */
static bool measure_piece(const struct counting *counting, const struct span *piece, const uint8_t *data)
{
    const struct measure *measure = counting->measure;

    return measure == NULL ||
           measure->add(measure->arg, (uint32_t)(piece->histogram - counting->histograms->list), piece, data);
}

/* Adds each piece to the shared histograms: the cost is negligible next to counting, and saves a set per thread. */
static void count_pieces(void *arg, unsigned index)
{
    struct counting *counting = arg;
    struct buffer buffer = {0};
    struct span piece;
    (void)index;
    while (take_piece(counting, &piece)) {
        uint64_t counts[256] = {0};
        const uint8_t *data = piece_data(counting, &piece, &buffer);
        if (data == NULL || !measure_piece(counting, &piece, data)) {
            counting->failed = true;
            break;
        }
        strait_histogram_add_values(counts, piece.element, data, piece.values);
        pthread_mutex_lock(&counting->lock);
        histogram_sum(piece.histogram->counts, counts);
        if (piece.of_its_kind != NULL)
            histogram_sum(piece.of_its_kind->counts, counts);
        pthread_mutex_unlock(&counting->lock);
        progress_add(counting->progress, element_bytes(piece.element) * piece.values);
    }
    buffer_fini(&buffer);
}

bool spans_count(struct spans *spans, const struct source *source, unsigned threads, struct progress *progress,
                 struct histograms *histograms, const struct measure *measure)
{
    struct counting counting = {.spans = spans,
                                .source = source,
                                .progress = progress,
                                .histograms = histograms,
                                .measure = measure,
                                .lock = PTHREAD_MUTEX_INITIALIZER};
    if (!assign_histograms(spans, histograms)) {
        print_error(NULL, "out of memory");
        return false;
    }
    if (spans->count > 0)
        qsort(spans->list, spans->count, sizeof(spans->list[0]), by_place); /* files are read from front to back */
    parallel_run(threads, count_pieces, &counting);
    pthread_mutex_destroy(&counting.lock);
    return !counting.failed;
}

static bool add_values(struct tensors *tensors, const struct input *input, struct strait_class class,
                       struct strait_class kind, enum strait_element element, uint64_t begin, uint64_t end)
{
    uint64_t values = (end - begin) / element_bytes(element);

    tensors->bytes += element_bytes(element) * values;
    tensors->classed += values > 0 && !kind_is(class);
    return spans_add(
        &tensors->spans,
        (struct span){.class = class, .kind = kind, .element = element, .data = input->data + begin, .values = values});
}

static bool is_wanted(const struct tensors *tensors, const char *name)
{
    return tensors->wanted == NULL || tensors->wanted(name, tensors->kind);
}

static struct strait_class class_by(const struct class_rules *rules, const char *name)
{
    return rules != NULL ? class_of(rules, name) : (struct strait_class){.role = STRAIT_ROLE_OTHER, .layer = -1};
}

/* A tensor may be counted for its class, for its kind, or both. One that no class takes counts for a kind whatever its
 * name: second moments that an optimizer calls `v` are not cached values. */
static bool take_tensor(struct tensors *tensors, const struct input *input, const struct safetensor *tensor,
                        const struct class_rules *rules)
{
    const enum strait_element element = safetensors_element(tensor->dtype);
    const struct strait_class class = class_by(rules, tensor->name), none = {0};
    const bool by_class = (tensors->elements >> element & 1) != 0 && is_wanted(tensors, tensor->name);
    const bool by_kind = (tensors->kinds >> element & 1) != 0 && (class.role == STRAIT_ROLE_OTHER || !by_class);
    const struct strait_class kind = by_kind ? kind_of(element, tensor->name) : none;

    if (!by_class && !by_kind) {
        tensors->skipped++;
        return true;
    }
    return add_values(tensors, input, by_class ? class : kind, by_class ? kind : none, element, tensor->begin,
                      tensor->end);
}

static bool take_list(struct tensors *tensors, const struct input *input, const struct safetensors *list,
                      const struct class_rules *rules)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (!take_tensor(tensors, input, &list->tensors[i], rules))
            return false;
    return true;
}

bool tensors_take_safetensors(struct tensors *tensors, const struct input *input, const struct class_rules *rules)
{
    struct safetensors list;
    const char *why = "out of memory";
    bool taken;

    if (!safetensors_probe(input->data, input->size, input->size)) {
        print_error(input->path, "not a safetensors file");
        return false;
    }
    if (safetensors_init(&list, input->data, input->size, input->size, &why) != STRAIT_OK) {
        print_error(input->path, "bad safetensors file: %s", why);
        return false;
    }
    taken = take_list(tensors, input, &list, rules);
    safetensors_fini(&list);
    return taken;
}

bool tensors_take_raw(struct tensors *tensors, const struct input *input, const struct class_rules *rules)
{
    struct strait_class class = {.role = STRAIT_ROLE_OTHER, .layer = -1};

    enum strait_element element = (enum strait_element)__builtin_ctz(tensors->elements);

    (void)rules;
    if (input->size % element_bytes(element) != 0) {
        print_error(input->path, element_bytes(element) == 2 ? "an odd number of bytes cannot be values of two"
                                                             : "its size is no multiple of the four bytes of a value");
        return false;
    }
    return add_values(tensors, input, class, (struct strait_class){0}, element, 0, input->size);
}

/* ---- All files ------------------------------------------------------------------------------------------------- */

static bool take_files(struct tensors *tensors, const char *const *paths, unsigned count, tensors_take *take,
                       const struct class_rules *rules)
{
    tensors->inputs = calloc(count, sizeof(tensors->inputs[0]));
    if (tensors->inputs == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    for (unsigned i = 0; i < count; i++) {
        if (!input_open(&tensors->inputs[i], paths[i]))
            return false;
        tensors->input_count++;
        if (!take(tensors, &tensors->inputs[i], rules))
            return false;
    }
    return true;
}

static bool take_or_close(struct tensors *tensors, const char *const *paths, unsigned count, tensors_take *take,
                          const struct class_rules *rules)
{
    const bool taken = take_files(tensors, paths, count, take, rules);

    if (!taken)
        tensors_close(tensors);
    return taken;
}

bool tensors_open(struct tensors *tensors, const char *const *paths, unsigned count, tensors_take *take,
                  const struct class_rules *rules, uint32_t elements)
{
    *tensors = (struct tensors){.elements = elements};
    return take_or_close(tensors, paths, count, take, rules);
}

static bool open_kinds(struct tensors *tensors, const char *const *paths, unsigned count, tensors_take *take,
                       const struct class_rules *rules, uint32_t elements, uint32_t kinds)
{
    *tensors = (struct tensors){.elements = elements, .kinds = kinds};
    return take_or_close(tensors, paths, count, take, rules);
}

bool tensors_open_kinds(struct tensors *tensors, const char *const *paths, unsigned count, tensors_take *take,
                        const struct class_rules *rules, uint32_t elements)
{
    if (elements != 0)
        return open_kinds(tensors, paths, count, take, rules, elements, elements);
    if (!open_kinds(tensors, paths, count, take, rules, TENSORS_BF16, TENSORS_CODED))
        return false;
    if (tensors->classed > 0)
        return true;
    tensors_close(tensors);
    return open_kinds(tensors, paths, count, take, rules, TENSORS_CODED, TENSORS_CODED);
}

bool tensors_open_wanted(struct tensors *tensors, const char *const *paths, unsigned count, uint32_t elements,
                         bool (*wanted)(const char *name, int kind), int kind)
{
    *tensors = (struct tensors){.elements = elements, .wanted = wanted, .kind = kind};
    return take_or_close(tensors, paths, count, tensors_take_safetensors, NULL);
}

void tensors_close(struct tensors *tensors)
{
    for (unsigned i = 0; i < tensors->input_count; i++)
        input_close(&tensors->inputs[i]);
    free(tensors->inputs);
    spans_fini(&tensors->spans);
    *tensors = (struct tensors){0};
}

/* ---- Options --------------------------------------------------------------------------------------------------- */

bool calibrate_add_dtype(uint32_t *elements, const char *text)
{
    static const char *const names[] = {"bf16", "fp16", "fp32"};
    unsigned index;
    if (!option_name("--dtype", text, names, 3, &index))
        return false;
    *elements |= 1u << (STRAIT_ELEMENT_BF16 + index);
    return true;
}

bool calibrate_add_rule(struct class_rules *rules, const char *rule)
{
    const char *why = "out of memory";
    if (class_rules_add(rules, rule, &why) == STRAIT_OK)
        return true;
    print_error(NULL, "--class '%s': %s", rule, why);
    return false;
}

/* ---- Costs ----------------------------------------------------------------------------------------------------- */

/* How ranks are coded: FORMAT.md, section 3. The estimate leaves out what depends on the cut into blocks: the u16 count
 * of a block with escapes, padding, tables, and blocks that stay raw. */
#define VALUE_BITS         16.0
#define SIGN_MANTISSA_BITS 8.0
#define TOP16_RANKS        16u
#define TOP16_ESCAPE_BITS  (16.0 + 8.0) /* position and exponent, besides the 4 bits of the code */
#define TIER4_RANK         21u

struct cost cost_of(const uint64_t counts[256], const uint8_t ranking[256])
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
    }
    cost.tiered = (double)codebook_tiered_bits(counts, ranking);
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

static struct cost class_cost(const struct calibrate_report *report, const struct codebook_histogram *counts)
{
    uint32_t table = strait_codebook_find(report->codebook, counts->class);
    return cost_of(counts->counts, strait_codebook_ranking(report->codebook, table));
}

/* The sum over all values: kinds instead of the classes of role other, whose values they are. */
static bool is_in_total(const struct calibrate_report *report, struct strait_class class)
{
    bool has_kinds = false;
    for (uint32_t i = 0; i < report->histograms->count; i++)
        has_kinds |= kind_is(report->histograms->list[i].class);
    return !has_kinds || kind_is(class) || class.role != STRAIT_ROLE_OTHER;
}

/* ---- For people ------------------------------------------------------------------------------------------------ */

#define MIB (1024.0 * 1024)

static void print_row(FILE *stream, const char *name, const struct cost *cost)
{
    fprintf(stream, "%-12s %14" PRIu64 " %8.3f %8.4f %8.3f %8.4f %8.4f %8.4f %8.4f\n", name, cost->values,
            per_value(cost, cost->entropy), 100 * (1 - per_value(cost, cost->top16_escapes)),
            per_value(cost, cost->tiered), ratio(cost, cost->top16), 100 * per_value(cost, cost->top16_escapes),
            ratio(cost, cost->tiered), 100 * per_value(cost, cost->tiered_escapes));
}

static void print_passed_over(FILE *stream, uint64_t bytes, const char *what)
{
    if (bytes > 0)
        fprintf(stream, "; passed over %.1f MiB %s", (double)bytes / MIB, what);
}

static void print_sample(const struct node_sample *sample, FILE *stream)
{
    fprintf(stream, "sampled %.1f of %.1f MiB that were ready, in %" PRIu32 " pool%s, within %.3g s",
            (double)sample->bytes / MIB, (double)sample->ready_bytes / MIB, sample->pools,
            sample->pools == 1 ? "" : "s", sample->seconds);
    print_passed_over(stream, sample->device_bytes, "in GPU memory");
    print_passed_over(stream, sample->other_bytes, "of other types");
    fputc('\n', stream);
}

void calibrate_report_table(const struct calibrate_report *report, FILE *stream)
{
    struct cost total = {0};
    fprintf(stream, "%-12s %14s %8s %8s %8s %8s %8s %8s %8s\n", "", "", "entropy", "top-16", "tiered", "top16", "top16",
            "tiered", "tiered");
    fprintf(stream, "%-12s %14s %8s %8s %8s %8s %8s %8s %8s\n", "class", "values", "bits", "%", "bits", "ratio",
            "esc %", "ratio", "esc %");
    for (uint32_t i = 0; i < report->histograms->count; i++) {
        char name[CLASS_NAME_BYTES];
        struct cost cost = class_cost(report, &report->histograms->list[i]);
        class_name(name, report->histograms->list[i].class);
        print_row(stream, name, &cost);
        if (is_in_total(report, report->histograms->list[i].class))
            cost_add(&total, &cost);
    }
    print_row(stream, "total", &total);
    if (report->sample != NULL)
        print_sample(report->sample, stream);
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

static void add_class_json(cJSON *classes, const struct codebook_histogram *counts, const struct cost *cost)
{
    cJSON *row = cJSON_CreateObject();
    class_json(row, counts->class);
    add_cost_json(row, cost);
    cJSON_AddItemToArray(classes, row);
}

static void add_sample_json(cJSON *object, const struct node_sample *sample)
{
    cJSON_AddNumberToObject(object, "pools", sample->pools);
    cJSON_AddNumberToObject(object, "bytes", (double)sample->bytes);
    cJSON_AddNumberToObject(object, "ready_bytes", (double)sample->ready_bytes);
    cJSON_AddNumberToObject(object, "device_bytes_skipped", (double)sample->device_bytes);
    cJSON_AddNumberToObject(object, "other_bytes_skipped", (double)sample->other_bytes);
    cJSON_AddNumberToObject(object, "seconds", sample->seconds);
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
        if (is_in_total(report, report->histograms->list[i].class))
            cost_add(&total, &cost);
    }
    add_cost_json(cJSON_AddObjectToObject(root, "total"), &total);
    if (report->sample != NULL)
        add_sample_json(cJSON_AddObjectToObject(root, "sample"), report->sample);
    return json_print(root, stream);
}
