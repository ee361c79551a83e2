/* Values that benches measure with: tensors of the inputs, the codebook, random orders, and what ranks send. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/codec.h"
#include "bench/collective.h"
#include "tools/files.h"
#include "internal/bytes.h"
#include "internal/element.h"

#define DATA_ALIGNMENT 4096u
#define RANDOM_BYTES   ((uint64_t)16 << 20)
#define FP16_MAX       65504.0f

const char *const collective_type_names[] = {"bf16", "fp16", "fp32", "fp32-bf16", NULL};
const unsigned collective_type_bytes[] = {2, 2, 4, 4};

bool inputs_exist(const struct bench_options *options)
{
    if (options->inputs.count == 0)
        print_error(NULL, "no --input, and no KV cache beside this program");
    return options->inputs.count > 0;
}

static bool open_tensors(struct tensors *tensors, const struct text_list *paths, enum strait_element element)
{
    struct class_rules *rules = class_rules_create();
    bool opened = false;

    if (rules == NULL)
        print_error(NULL, "out of memory");
    else
        opened = tensors_open(tensors, paths->list, paths->count, tensors_take_safetensors, rules, 1u << element);
    class_rules_destroy(rules);
    if (opened && tensors->bytes == 0) {
        print_error(paths->list[0], "no values of type %s", element_name(element));
        tensors_close(tensors);
        opened = false;
    }
    return opened;
}

/* Reorders the spans. */
static struct strait_codebook *calibrate(struct tensors *tensors, unsigned threads)
{
    struct strait_codebook *codebook = NULL;
    struct histograms histograms = {0};
    struct progress progress;
    enum strait_status status = STRAIT_ERR_NO_MEMORY;

    progress_begin(&progress, "calibrating", tensors->bytes, false);
    if (spans_count(&tensors->spans, NULL, threads, &progress, &histograms, NULL))
        status = histograms_codebook(&histograms, false, &codebook);
    progress_end(&progress);
    histograms_fini(&histograms);
    if (status != STRAIT_OK)
        print_error(NULL, "cannot make a codebook: %s", strait_status_string(status));
    return status == STRAIT_OK ? codebook : NULL;
}

bool values_open(struct bench_values *values, const struct bench_options *options, unsigned threads)
{
    const enum strait_element element = options->element != 0 ? options->element : STRAIT_ELEMENT_BF16;
    struct tensors calib;

    *values = (struct bench_values){0};
    if (!inputs_exist(options) || !open_tensors(&values->tensors, &options->inputs, element)) {
        values->tensors = (struct tensors){0};
        return false;
    }
    if (options->codebook != NULL)
        return codebook_load(options->codebook, &values->codebook);
    if (options->calibs.count == 0) {
        values->codebook = calibrate(&values->tensors, threads);
    } else if (open_tensors(&calib, &options->calibs, element)) {
        values->codebook = calibrate(&calib, threads);
        tensors_close(&calib);
    }
    return values->codebook != NULL;
}

void values_close(struct bench_values *values)
{
    strait_codebook_destroy(values->codebook);
    tensors_close(&values->tensors);
    *values = (struct bench_values){0};
}

uint32_t values_regions(const struct bench_values *values)
{
    uint32_t count = 1;

    while (2 * count <= values->tensors.spans.count && 2 * count <= VALUE_REGIONS_MAX)
        count *= 2;
    return count;
}

void spans_fill(uint8_t *to, uint64_t size, const struct spans *spans, size_t first, size_t count)
{
    uint64_t at = 0;

    for (size_t i = 0; at < size; i = (i + 1) % count) {
        const struct span *span = &spans->list[first + i];
        uint64_t bytes = element_bytes(span->element) * span->values;
        bytes = bytes < size - at ? bytes : size - at;
        memcpy(to + at, span->data, bytes);
        at += bytes;
    }
}

uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15;

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
}

void random_order(uint32_t *ids, uint32_t count, uint64_t seed)
{
    for (uint32_t i = 0; i < count; i++)
        ids[i] = i;
    for (uint32_t i = count; i > 1; i--) {
        uint32_t j = (uint32_t)((random_next(&seed) >> 32) * i >> 32), id = ids[i - 1];
        ids[i - 1] = ids[j];
        ids[j] = id;
    }
}

/* ---- Data of the codec ------------------------------------------------------------------------------------------- */

/* Of a tensor larger than `size`, only the first `size` bytes are taken. */
bool data_init(struct data *data, const struct bench_values *values, uint64_t size, enum strait_element element)
{
    const struct spans *spans = &values->tensors.spans;
    const uint64_t width = element_bytes(element);
    uint64_t count = 0, at = 0;

    data->element = element;
    while (data->size < size) {
        const struct span *span = &spans->list[count++ % spans->count];
        data->size += width * span->values < size ? width * span->values : size / 2 * 2;
        if (count <= spans->count)
            data->period = data->size;
    }
    data->bytes = aligned_alloc(DATA_ALIGNMENT, (data->size + DATA_ALIGNMENT - 1) / DATA_ALIGNMENT * DATA_ALIGNMENT);
    data->plan.segments = calloc(count, sizeof(data->plan.segments[0]));
    if (data->bytes == NULL || data->plan.segments == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    for (uint64_t i = 0; i < count; i++) {
        const struct span *span = &spans->list[i % spans->count];
        uint64_t bytes = width * span->values < size ? width * span->values : size / 2 * 2;
        if (width == 1 && i < spans->count)
            fp8_cast(data->bytes + at, span->data, bytes, element);
        else
            memcpy(data->bytes + at,
                   width == 1 ? data->bytes + data->plan.segments[i - spans->count].begin : span->data, bytes);
        data->plan.segments[i] =
            (struct segment){.begin = at, .end = at + bytes, .element = element, .class = span->class};
        at += bytes;
    }
    data->plan.segment_count = (uint32_t)count;
    plan_use_tables(&data->plan, values->codebook);
    return true;
}

static void sum_figures(const struct histograms *histograms, const struct strait_codebook *codebook,
                        struct data_figures *figures)
{
    double values = 0;
    uint64_t total[256];

    *figures = (struct data_figures){.classes = histograms->count};
    for (uint32_t i = 0; i < histograms->count; i++) {
        const uint64_t *counts = histograms->list[i].counts;
        const uint8_t *ranking =
            strait_codebook_ranking(codebook, strait_codebook_find(codebook, histograms->list[i].class));
        double all = 0, top16 = 0, tiered = 0;
        for (unsigned r = 0; r < 256; r++) {
            double count = (double)counts[ranking[r]];
            all += count;
            top16 += r >= TOP16_ESCAPE_RANK ? count : 0;
            tiered += r >= TIERED_ESCAPE_RANK ? count : 0;
        }
        figures->worst_top16 = fmax(figures->worst_top16, top16 / all);
        figures->worst_tiered = fmax(figures->worst_tiered, tiered / all);
        figures->class_bits += entropy_bits(counts, all);
        figures->top16 += top16;
        figures->tiered += tiered;
        values += all;
    }
    histograms_total(histograms, total);
    figures->all_bits = entropy_bits(total, values) / values;
    figures->class_bits /= values;
    figures->top16 /= values;
    figures->tiered /= values;
}

bool data_measure(const struct data *data, const struct strait_codebook *codebook, unsigned threads,
                  struct data_figures *figures)
{
    struct histograms histograms = {0};
    struct spans spans = {0};
    struct progress progress;
    bool counted = true;

    for (uint32_t i = 0; counted && i < data->plan.segment_count; i++) {
        const struct segment *segment = &data->plan.segments[i];
        counted = spans_add(&spans, (struct span){.class = segment->class,
                                                  .element = STRAIT_ELEMENT_BF16,
                                                  .data = data->bytes + segment->begin,
                                                  .values = (segment->end - segment->begin) / 2});
    }
    progress_begin(&progress, "counting", data->size, false);
    counted = counted && spans_count(&spans, NULL, threads, &progress, &histograms, NULL);
    progress_end(&progress);
    spans_fini(&spans);
    if (counted)
        sum_figures(&histograms, codebook, figures);
    histograms_fini(&histograms);
    return counted;
}

/* ---- Kinds ------------------------------------------------------------------------------------------------------- */

/* The first of these words that a name contains decides: a gradient of a weight is a gradient, the weight of a layer
 * that normalises its input is a weight. */
static const struct {
    const char *word;
    enum collective_data kind;
} words[] = {
    {"exp_avg_sq", COLLECTIVE_SQUARES},     {"exp_avg", COLLECTIVE_MOMENTS},   {"momentum", COLLECTIVE_MOMENTS},
    {"grad", COLLECTIVE_GRADIENTS},         {"weight", COLLECTIVE_WEIGHTS},    {"bias", COLLECTIVE_WEIGHTS},
    {"activation", COLLECTIVE_ACTIVATIONS}, {"input", COLLECTIVE_ACTIVATIONS}, {"output", COLLECTIVE_ACTIVATIONS},
    {"hidden", COLLECTIVE_ACTIVATIONS},
};

enum collective_data collective_kind_of(const char *name)
{
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strstr(name, words[i].word) != NULL)
            return words[i].kind;
    return COLLECTIVE_OTHER;
}

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

static float float_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

uint16_t collective_bf16_of(float value)
{
    uint32_t bits = bits_of(value);

    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* The hardware's rounding in the addition: of numbers that FP16 holds with its full precision, and then of those at its
 * fixed steps of 2^-24. */
uint16_t collective_fp16_of(float value)
{
    uint32_t sign = bits_of(value) >> 16 & 0x8000, bits = bits_of(value) & 0x7FFFFFFF;

    if (bits >= bits_of(65520.0f))
        return (uint16_t)(sign | (bits > bits_of(INFINITY) ? 0x7E00 : 0x7C00));
    if (bits < bits_of(0x1p-14f))
        return (uint16_t)(sign | (uint32_t)lrintf(float_of(bits) * 0x1p24f));
    bits += 0xFFF + (bits >> 13 & 1);
    return (uint16_t)(sign | (bits - ((127u - 15u) << 23)) >> 13);
}

float collective_fp16_value(uint16_t bits)
{
    uint32_t exponent = bits >> 10 & 31, mantissa = bits & 0x3FF;
    float size = exponent == 0 ? (float)mantissa * 0x1p-24f : float_of((exponent + 127 - 15) << 23 | mantissa << 13);

    return (bits & 0x8000) != 0 ? -size : size;
}

/* ---- Patterns ---------------------------------------------------------------------------------------------------- */

/* Makes room for the pattern, which is filled once and then doubled. */
static bool allocate(struct collective_values *values, uint64_t period)
{
    values->period = period / 16 * 16;
    values->bytes = malloc(2 * period + 16);
    if (values->bytes == NULL)
        print_error(NULL, "out of memory");
    return values->bytes != NULL;
}

static bool complete(struct collective_values *values)
{
    memcpy(values->bytes + values->period, values->bytes, values->period);
    return true;
}

static bool fill_random(struct collective_values *values, enum collective_type type)
{
    uint64_t seed = 20 + type, mask = type >= COLLECTIVE_FP32 ? 0xBFFFFFFFBFFFFFFF : 0xBFFFBFFFBFFFBFFF;

    if (!allocate(values, RANDOM_BYTES))
        return false;
    if (type == COLLECTIVE_FP32_BF16)
        mask &= 0xFFFF0000FFFF0000;
    for (uint64_t at = 0; at < values->period; at += 8)
        store_le64(values->bytes + at, random_next(&seed) & mask);
    return complete(values);
}

/* Appends the values of a span, in the wanted type; returns their end. */
static uint8_t *append(uint8_t *dst, const struct span *span, enum collective_type type)
{
    unsigned bytes = collective_type_bytes[type];

    if (span->element != STRAIT_ELEMENT_BF16 || type == COLLECTIVE_BF16) {
        memcpy(dst, span->data, span->values * bytes);
        return dst + span->values * bytes;
    }
    for (uint64_t i = 0; i < span->values; i++, dst += bytes) {
        uint32_t wide = (uint32_t)load_le16(span->data + 2 * i) << 16;
        if (type == COLLECTIVE_FP16)
            store_le16(dst, collective_fp16_of(fmaxf(-FP16_MAX, fminf(float_of(wide), FP16_MAX))));
        else
            store_le32(dst, wide);
    }
    return dst;
}

static bool take_values(struct collective_values *values, enum collective_type type, const struct tensors *tensors)
{
    uint64_t count = 0;

    for (size_t i = 0; i < tensors->spans.count; i++)
        count += tensors->spans.list[i].values;
    if (count < 16) {
        print_error(NULL, "--input: too few values of type %s", collective_type_names[type]);
        return false;
    }
    if (!allocate(values, count * collective_type_bytes[type]))
        return false;
    uint8_t *end = values->bytes;
    for (size_t i = 0; i < tensors->spans.count; i++)
        end = append(end, &tensors->spans.list[i], type);
    return complete(values);
}

static bool is_wanted(const char *name, int data)
{
    return data == COLLECTIVE_TENSORS || collective_kind_of(name) == (enum collective_data)data;
}

/* Takes nothing when the files have no such values. */
static bool take_element(struct collective_values *values, enum collective_data data, enum collective_type type,
                         enum strait_element element, const struct text_list *inputs)
{
    struct tensors tensors;
    bool taken;

    if (!tensors_open_wanted(&tensors, inputs->list, inputs->count, 1u << element, is_wanted, (int)data))
        return false;
    taken = tensors.spans.count == 0 || take_values(values, type, &tensors);
    tensors_close(&tensors);
    return taken;
}

static bool fill_tensors(struct collective_values *values, enum collective_data data, enum collective_type type,
                         const struct text_list *inputs)
{
    static const enum strait_element first[] = {STRAIT_ELEMENT_BF16, STRAIT_ELEMENT_FP16, STRAIT_ELEMENT_FP32,
                                                STRAIT_ELEMENT_BF16};

    if (!take_element(values, data, type, first[type], inputs))
        return false;
    return values->bytes != NULL || type != COLLECTIVE_FP16 ||
           take_element(values, data, type, STRAIT_ELEMENT_BF16, inputs);
}

bool collective_values_init(struct collective_values *values, enum collective_data data, enum collective_type type,
                            const struct text_list *inputs)
{
    *values = (struct collective_values){0};
    return data == COLLECTIVE_RANDOM ? fill_random(values, type) : fill_tensors(values, data, type, inputs);
}

void collective_values_fini(struct collective_values *values)
{
    free(values->bytes);
    *values = (struct collective_values){0};
}

uint64_t collective_values_start(const struct collective_values *values, unsigned rank, unsigned slot)
{
    return ((uint64_t)rank * 1237 + (uint64_t)slot * 311) * 4096 % values->period / 16 * 16;
}

/* ---- Sums -------------------------------------------------------------------------------------------------------- */

#define SUMS_AT_ONCE 1024u

static float value_of(const uint8_t *src, enum collective_type type)
{
    switch (type) {
    case COLLECTIVE_BF16:
        return float_of((uint32_t)load_le16(src) << 16);
    case COLLECTIVE_FP16:
        return collective_fp16_value(load_le16(src));
    default:
        return float_of(load_le32(src));
    }
}

static void store_sum(uint8_t *dst, enum collective_type type, float sum)
{
    if (type == COLLECTIVE_BF16)
        store_le16(dst, collective_bf16_of(sum));
    else if (type == COLLECTIVE_FP16)
        store_le16(dst, collective_fp16_of(sum));
    else
        store_le32(dst, bits_of(sum));
}

/* Of the ranks of one host, rounded to the type; of so few values that none of the ranks has more than a period of
 * them.
 */
static void sum_host(const struct collective_values *values, enum collective_type type, unsigned first, unsigned each,
                     unsigned slot, uint64_t index, uint64_t count, float *sums)
{
    const unsigned bytes = collective_type_bytes[type];
    uint8_t rounded[sizeof(float)];

    for (unsigned rank = first; rank < first + each; rank++) {
        const uint8_t *src =
            values->bytes + (collective_values_start(values, rank, slot) + index * bytes) % values->period;
        for (uint64_t i = 0; i < count; i++)
            sums[i] = rank == first ? value_of(src + i * bytes, type) : sums[i] + value_of(src + i * bytes, type);
    }
    for (uint64_t i = 0; i < count; i++) {
        store_sum(rounded, type, sums[i]);
        sums[i] = value_of(rounded, type);
    }
}

static void sum_some(const struct collective_values *values, enum collective_type type, unsigned ranks, unsigned each,
                     unsigned slot, uint64_t index, uint64_t count, uint8_t *dst)
{
    float sums[SUMS_AT_ONCE], host[SUMS_AT_ONCE];

    for (unsigned first = 0; first < ranks; first += each) {
        sum_host(values, type, first, each, slot, index, count, host);
        for (uint64_t i = 0; i < count; i++)
            sums[i] = first == 0 ? host[i] : sums[i] + host[i];
    }
    for (uint64_t i = 0; i < count; i++)
        store_sum(dst + i * collective_type_bytes[type], type, sums[i]);
}

void collective_values_sum(const struct collective_values *values, enum collective_type type, unsigned ranks,
                           unsigned each, unsigned slot, uint64_t index, uint64_t count, uint8_t *dst)
{
    const unsigned bytes = collective_type_bytes[type];
    const uint64_t period = values->period / bytes, most = period < SUMS_AT_ONCE ? period : SUMS_AT_ONCE;

    for (uint64_t at = 0, some; at < count; at += some) {
        some = count - at < most ? count - at : most;
        sum_some(values, type, ranks, each, slot, index + at, some, dst + at * bytes);
    }
}
