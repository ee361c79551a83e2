#include "bench/data.h"

#include <stdlib.h>
#include <string.h>

#include "bench/random.h"
#include "bench/tables.h"
#include "internal/bytes.h"

#define DATA_ALIGNMENT 4096u

/* ---- Tiles ----------------------------------------------------------------------------------------------------- */

static uint64_t tile_bytes(const struct span *span, uint64_t limit)
{
    return 2 * span->values < limit ? 2 * span->values : limit / 2 * 2;
}

/* Counts the copies and sets data->size and period. */
static uint64_t count_tiles(struct data *data, const struct spans *spans, uint64_t size)
{
    uint64_t count = 0;

    while (data->size < size) {
        data->size += tile_bytes(&spans->list[count % spans->count], size);
        count++;
        if (count == spans->count)
            data->period = data->size;
    }
    if (count < spans->count)
        data->period = data->size;
    return count;
}

static void copy_tiles(struct data *data, const struct spans *spans, uint64_t count, uint64_t size)
{
    uint64_t at = 0;

    for (uint64_t i = 0; i < count; i++) {
        const struct span *span = &spans->list[i % spans->count];
        uint64_t bytes = tile_bytes(span, size);

        memcpy(data->bytes + at, span->data, bytes);
        data->plan.segments[i] = (struct segment){at, at + bytes, STRAIT_ELEMENT_BF16, span->class, 0};
        at += bytes;
    }
    data->plan.segment_count = (uint32_t)count;
}

bool data_init(struct data *data, const struct tensors *tensors, const struct strait_codebook *codebook, uint64_t size)
{
    uint64_t count;

    *data = (struct data){0};
    count = count_tiles(data, &tensors->spans, size);
    if (count <= UINT32_MAX) {
        uint64_t whole = (data->size + DATA_ALIGNMENT - 1) / DATA_ALIGNMENT * DATA_ALIGNMENT;
        data->bytes = aligned_alloc(DATA_ALIGNMENT, whole);
        data->plan.segments = calloc(count, sizeof(data->plan.segments[0]));
    }
    if (data->bytes == NULL || data->plan.segments == NULL) {
        print_error(NULL, "out of memory");
        data_fini(data);
        return false;
    }
    copy_tiles(data, &tensors->spans, count, size);
    plan_use_tables(&data->plan, codebook);
    return true;
}

void data_fini(struct data *data)
{
    free(data->bytes);
    plan_fini(&data->plan);
    *data = (struct data){0};
}

/* ---- Escapes --------------------------------------------------------------------------------------------------- */

bool data_add_escapes(struct data *data, const struct strait_codebook *codebook, double share, uint64_t seed)
{
    uint8_t exponents[256];
    uint64_t count = tables_common_escapes(codebook, exponents);
    uint64_t threshold = (uint64_t)(share * 0x1p32);

    if (count == 0) {
        print_error(NULL, "--escapes: every exponent is frequent in some table");
        return false;
    }
    for (uint64_t at = 0; at + 2 <= data->size; at += 2) {
        uint64_t random = random_next(&seed);
        unsigned exponent = exponents[(random & UINT32_MAX) * count >> 32];

        if (random >> 32 < threshold)
            store_le16(data->bytes + at, (uint16_t)((load_le16(data->bytes + at) & 0x807F) | exponent << 7));
    }
    return true;
}
