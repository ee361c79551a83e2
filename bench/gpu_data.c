#include "bench/gpu_data.h"

#include <stdlib.h>
#include <string.h>

#include "bench/random.h"
#include "bench/tables.h"
#include "tools/util.h"

#define REGIONS_MAX 64u

_Static_assert(sizeof(((struct strait_pool_region *)0)->ipc) == GPU_HANDLE_BYTES, "a handle fits");

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

/* The largest power of two up to the number of tensors, as in the codec's bench, so that the values are the same. */
static uint32_t count_regions(const struct tensors *tensors)
{
    uint32_t count = 1;

    while (2 * count <= tensors->spans.count && 2 * count <= REGIONS_MAX)
        count *= 2;
    return count;
}

static bool size_pool(struct gpu_data *data, const struct gpu_options *options)
{
    uint32_t regions = count_regions(&data->tensors);
    uint64_t most = 0, least = UINT64_MAX, round = regions * options->page_bytes;

    for (unsigned i = 0; i < options->size_count; i++) {
        most = options->sizes[i] > most ? options->sizes[i] : most;
        least = options->sizes[i] < least ? options->sizes[i] : least;
    }
    if (least < round || most / round > STRAIT_TRANSFER_PAGES_MAX) {
        print_error(NULL, "--size: a request has 1 to %u pages in each of %u regions", STRAIT_TRANSFER_PAGES_MAX,
                    regions);
        return false;
    }
    data->layout = (struct gpu_layout){
        .regions = regions, .pages = (uint32_t)(most / round), .page_bytes = (uint32_t)options->page_bytes};
    return true;
}

uint32_t gpu_data_ids(const struct gpu_data *data, uint64_t bytes)
{
    return (uint32_t)(bytes / data->layout.regions / data->layout.page_bytes);
}

uint32_t gpu_data_first(const struct gpu_data *data, uint32_t ids, uint64_t turn)
{
    return (uint32_t)(turn % (data->layout.pages / ids)) * ids;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static bool allocate(struct gpu_data *data, int from, int to)
{
    uint64_t size = data->layout.regions * gpu_region_bytes(&data->layout);

    data->from = calloc(data->layout.pages, sizeof(data->from[0]));
    data->to = calloc(data->layout.pages, sizeof(data->to[0]));
    data->wanted = calloc(data->layout.pages, sizeof(data->wanted[0]));
    if (data->from == NULL || data->to == NULL || data->wanted == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    return gpu_alloc(&data->source, from, size) && gpu_alloc(&data->sink, to, size) &&
           gpu_alloc(&data->reference, to, size);
}

static bool fill(struct gpu_data *data)
{
    const uint64_t bytes = gpu_region_bytes(&data->layout);
    uint64_t ns;

    for (uint32_t r = 0; r < data->layout.regions; r++) {
        const struct span *span = &data->tensors.spans.list[r];
        if (!gpu_tile(&data->source, r * bytes, bytes, span->data, 2 * span->values))
            return false;
    }
    return gpu_stamp(&data->source) && gpu_copy(&data->reference, 0, &data->source, 0, data->source.size, false, &ns);
}

bool gpu_data_init(struct gpu_data *data, const struct gpu_options *options, int from, int to)
{
    *data = (struct gpu_data){0};
    if (!tables_open(&data->tensors, options->sources.inputs, options->sources.input_count))
        return false;
    data->codebook = tables_choose(&data->tensors, options->sources.codebook, options->sources.calibs,
                                   options->sources.calib_count, 1);
    if (data->codebook == NULL || !size_pool(data, options) || !allocate(data, from, to) || !fill(data)) {
        gpu_data_fini(data);
        return false;
    }
    random_order(data->from, data->layout.pages, 1);
    random_order(data->to, data->layout.pages, 2);
    return true;
}

void gpu_data_fini(struct gpu_data *data)
{
    gpu_free(&data->source);
    gpu_free(&data->sink);
    gpu_free(&data->reference);
    free(data->from);
    free(data->to);
    free(data->wanted);
    strait_codebook_destroy(data->codebook);
    tensors_close(&data->tensors);
    *data = (struct gpu_data){0};
}

void gpu_data_regions(const struct gpu_data *data, const struct gpu_memory *memory, struct strait_pool_region *regions)
{
    const struct gpu_layout *layout = &data->layout;

    for (uint32_t r = 0; r < layout->regions; r++) {
        struct strait_class class = data->tensors.spans.list[r].class;
        regions[r] = (struct strait_pool_region){
            .handle = STRAIT_HANDLE_CUDA_IPC,
            .device = memory->gpu,
            .fd = -1,
            .offset = r * gpu_region_bytes(layout),
            .page_stride = layout->page_bytes,
            .page_count = layout->pages,
            .rows = 1,
            .row_bytes = layout->page_bytes,
            .element = STRAIT_ELEMENT_BF16,
            .role = class.role,
            .layer = class.layer,
        };
        memcpy(regions[r].ipc, memory->handle, sizeof(regions[r].ipc));
    }
}

/* ---- Checking ---------------------------------------------------------------------------------------------------- */

bool gpu_data_wrong_pages(struct gpu_data *data, uint32_t first, uint32_t ids, uint64_t *wrong)
{
    for (uint32_t i = 0; i < data->layout.pages; i++)
        data->wanted[i] = -1;
    for (uint32_t i = 0; i < ids; i++)
        data->wanted[data->to[first + i]] = (int32_t)data->from[first + i];
    return gpu_wrong_pages(&data->sink, &data->reference, &data->layout, data->wanted, wrong);
}

bool gpu_data_spoil(struct gpu_data *data, uint32_t first)
{
    return gpu_flip(&data->sink, data->to[first] * (uint64_t)data->layout.page_bytes + data->layout.page_bytes / 2);
}

bool gpu_data_source_is_whole(struct gpu_data *data, bool *whole)
{
    uint64_t differences, ns;

    if (!gpu_copy(&data->sink, 0, &data->source, 0, data->source.size, false, &ns) ||
        !gpu_differences(&data->sink, 0, &data->reference, 0, data->source.size, &differences))
        return false;
    *whole = differences == 0;
    return true;
}
