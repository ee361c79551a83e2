#include "bench/transfer_data.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "bench/random.h"
#include "bench/tables.h"
#include "internal/bytes.h"
#include "tools/util.h"

#define WIPED 0xFF /* NaNs: a page of real values never looks wiped */

/* ---- The source's memory --------------------------------------------------------------------------------------- */

/* Repeats the spans first..first+count-1 until `size` bytes are full. */
static void tile(uint8_t *to, uint64_t size, const struct spans *spans, size_t first, size_t count)
{
    uint64_t at = 0;

    for (size_t i = 0; at < size; i = (i + 1) % count) {
        const struct span *span = &spans->list[first + i];
        uint64_t bytes = 2 * span->values < size - at ? 2 * span->values : size - at;
        memcpy(to + at, span->data, bytes);
        at += bytes;
    }
}

static void fill_noise(uint8_t *to, uint64_t size)
{
    uint64_t state = 1;

    for (uint64_t at = 0; at + 8 <= size; at += 8)
        store_le64(to + at, random_next(&state));
}

static void fill(struct transfer_data *data, bool noise)
{
    const struct spans *spans = &data->tensors.spans;
    uint8_t *base = data->source.base;

    if (noise)
        fill_noise(base, data->source.size);
    else if (data->regions == 1)
        tile(base, data->source.size, spans, 0, spans->count);
    else
        for (uint32_t r = 0; r < data->regions; r++)
            tile(base + r * data->region_step, data->region_step, spans, r % spans->count, 1);
}

/* Sizes the memory for the largest shape. */
static void size_regions(struct transfer_data *data, const struct transfer_options *options)
{
    uint64_t most = 0;

    for (unsigned p = 0; p < options->page_byte_count; p++)
        for (unsigned c = 0; c < options->page_count; c++)
            if (options->page_bytes[p] * options->pages[c] > most)
                most = options->page_bytes[p] * options->pages[c];
    data->regions = options->regions == 0 ? (uint32_t)data->tensors.spans.count : options->regions;
    if (options->layers > data->regions)
        data->regions = options->layers;
    data->region_step = most * options->requests;
}

static bool allocate(struct transfer_data *data)
{
    uint64_t size;

    if (__builtin_mul_overflow(data->region_step, data->regions, &size) || size > INT64_MAX ||
        strait_alloc(size, &data->source) != STRAIT_OK) {
        print_error(NULL, "no memory for the source's pages");
        return false;
    }
    if (strait_alloc(size, &data->sink) != STRAIT_OK) {
        strait_free(&data->source);
        print_error(NULL, "no memory for the sink's pages");
        return false;
    }
    return true;
}

bool transfer_data_init(struct transfer_data *data, const struct transfer_options *options)
{
    *data = (struct transfer_data){0};
    if (!tables_open(&data->tensors, options->sources.inputs, options->sources.input_count))
        return false;
    size_regions(data, options);
    data->codebook = tables_choose(&data->tensors, options->sources.codebook, options->sources.calibs,
                                   options->sources.calib_count, 1);
    if (data->codebook == NULL || !allocate(data)) {
        strait_codebook_destroy(data->codebook);
        tensors_close(&data->tensors);
        *data = (struct transfer_data){0};
        return false;
    }
    fill(data, options->noise);
    memset(data->sink.base, WIPED, data->sink.size);
    return true;
}

void transfer_data_fini(struct transfer_data *data)
{
    if (data->source.base == NULL)
        return;
    strait_free(&data->source);
    strait_free(&data->sink);
    strait_codebook_destroy(data->codebook);
    tensors_close(&data->tensors);
    *data = (struct transfer_data){0};
}

struct strait_class transfer_data_class(const struct transfer_data *data, const struct shape *shape, uint32_t region)
{
    const struct spans *spans = &data->tensors.spans;
    struct strait_class class = spans->list[region % spans->count].class;

    if (shape->whole || data->regions == 1) /* holds values of all tensors */
        class = (struct strait_class){.role = STRAIT_ROLE_OTHER, .layer = -1};
    if (shape->layered)
        class.layer = (int32_t)region;
    return class;
}

/* ---- Shapes ---------------------------------------------------------------------------------------------------- */

static void number_pages(struct shape *shape)
{
    uint32_t count = shape_places(shape);

    random_order(shape->from, count, 1);
    random_order(shape->to, count, 2);
    for (uint32_t i = 0; shape->whole && i < count; i++)
        shape->from[i] = shape->to[i] = i;
}

static uint64_t page_sum(const struct shape *shape, const struct strait_memory *memory, uint32_t region, uint32_t id)
{
    return XXH3_64bits(shape_page(shape, memory, region, id), shape->page_bytes);
}

static void sum_pages(struct shape *shape, const struct transfer_data *data)
{
    uint32_t count = shape_places(shape);

    for (uint32_t r = 0; r < shape->regions; r++)
        for (uint32_t i = 0; i < count; i++)
            shape->sums[(uint64_t)r * count + i] = page_sum(shape, &data->source, r, shape->from[i]);
}

bool shape_init(struct shape *shape, const struct transfer_data *data)
{
    uint64_t count = shape_places(shape);

    shape->region_step = data->region_step;
    shape->from = calloc(count, sizeof(shape->from[0]));
    shape->to = calloc(count, sizeof(shape->to[0]));
    shape->sums = calloc(count * shape->regions, sizeof(shape->sums[0]));
    if (shape->from == NULL || shape->to == NULL || shape->sums == NULL) {
        print_error(NULL, "out of memory");
        shape_fini(shape);
        return false;
    }
    number_pages(shape);
    sum_pages(shape, data);
    return true;
}

void shape_fini(struct shape *shape)
{
    free(shape->from);
    free(shape->to);
    free(shape->sums);
    shape->from = shape->to = NULL;
    shape->sums = NULL;
}

void shape_wipe(const struct shape *shape, const struct transfer_data *data)
{
    for (uint32_t r = 0; r < shape->regions; r++) /* the ids are all of 0..places-1 */
        memset(shape_page(shape, &data->sink, r, 0), WIPED, shape_places(shape) * shape->page_bytes);
}

uint64_t shape_wrong_pages(const struct shape *shape, const struct transfer_data *data)
{
    uint32_t count = shape_places(shape);
    uint64_t wrong = 0;

    for (uint32_t r = 0; r < shape->regions; r++)
        for (uint32_t i = 0; i < count; i++)
            wrong += page_sum(shape, &data->sink, r, shape->to[i]) != shape->sums[(uint64_t)r * count + i];
    return wrong;
}
