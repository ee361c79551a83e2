/* The codec of the fake GPUs, as kernels/device.h has it. */
#include <string.h>

#include "kernels/codebook.h"
#include "kernels/device.h"
#include "tests/fakes/gpu.h"

#define SCRATCH_ENDS 64u /* bytes at both ends of scratch that are looked at */

/* One chunk, and the host's part of its arguments, which may be gone when it runs. */
struct item {
    struct strait_encode_item encode;
    struct strait_decode_item decode;
    struct strait_region *regions;
    struct strait_pages list; /* the encoded or the decoded one's */
};

struct launch {
    bool is_encode;
    uint32_t count, table_count;
    struct item *items;
    struct strait_encode_params params;
    struct strait_run run;
    uint8_t id[STRAIT_CODEBOOK_ID_BYTES];
    bool has_codebook;
    int device;
};

/* ---- What has to hold -------------------------------------------------------------------------------------------- */

static bool is_aligned(const void *pointer, uintptr_t to)
{
    return (uintptr_t)pointer % to == 0;
}

static uint64_t scratch_size(const struct strait_pages *list)
{
    return ((uint64_t)list->region_count * list->id_count * 64 + 4096) / 64 * 64;
}

static uint64_t encode_scratch_size(const struct strait_encode_item *items, uint32_t count)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += scratch_size(&items[i].src);
    return bytes;
}

static uint64_t decode_scratch_size(const struct strait_decode_item *items, uint32_t count)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += scratch_size(&items[i].dst);
    return bytes;
}

static void require_reachable(const void *bytes, uint64_t size, int device)
{
    demand(size == 0 || fake_codec_host.reaches == NULL || fake_codec_host.reaches(bytes, size, device));
}

static void require_pages(const struct strait_pages *list, int device)
{
    require_reachable(list->ids, list->ids != NULL ? list->id_count * sizeof(uint32_t) : 0, device);
    for (uint32_t r = 0; r < list->region_count; r++) {
        const struct strait_region *region = &list->regions[r];
        uint64_t span = (uint64_t)(region->rows - 1) * region->row_stride + region->row_bytes;
        for (uint32_t i = 0; i < list->id_count; i++) {
            uint32_t id = list->ids != NULL ? list->ids[i] : i;
            if (id < region->page_count)
                require_reachable((uint8_t *)region->base + id * region->page_stride, span, device);
        }
    }
}

/* It is zeroed before its first use, and by each one for the next; two at once would see each other. */
static void hold_scratch(const struct strait_run *run, int device, uint8_t expected, uint8_t left)
{
    uint8_t *bytes = run->scratch;
    require_reachable(bytes, run->scratch_size, device);
    for (size_t i = 0; i < SCRATCH_ENDS; i++) {
        demand(bytes[i] == expected && bytes[run->scratch_size - 1 - i] == expected);
        bytes[i] = bytes[run->scratch_size - 1 - i] = left;
    }
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

/* The set whose image it is: with as many tables as give its id. */
static struct strait_codebook *codebook_of(const struct launch *launch)
{
    const uint8_t *image = launch->run.tables;
    const struct table_image *tables = (const struct table_image *)(image + IMAGE_HEADER_BYTES);
    struct strait_codebook *codebook;
    uint8_t(*rankings)[256] = calloc(STRAIT_CODEBOOK_TABLES_MAX, 256);
    demand(rankings != NULL);
    require_reachable(image, IMAGE_HEADER_BYTES, launch->device);
    demand(memcmp(image, launch->id, sizeof(launch->id)) == 0);
    for (uint32_t count = 1;; count++) {
        require_reachable(&tables[count - 1], sizeof(*tables), launch->device);
        for (unsigned e = 0; e < 256; e++)
            rankings[count - 1][tables[count - 1].rank[e]] = (uint8_t)e;
        demand(strait_codebook_create((const uint8_t(*)[256])rankings, NULL, count, &codebook) == STRAIT_OK);
        if (memcmp(strait_codebook_id(codebook), launch->id, sizeof(launch->id)) == 0)
            break;
        strait_codebook_destroy(codebook);
    }
    free(rankings);
    return codebook;
}

static double values_of(const struct strait_pages *list)
{
    double bytes = 0;
    for (uint32_t r = 0; r < list->region_count; r++)
        bytes += (double)list->id_count * list->regions[r].rows * list->regions[r].row_bytes;
    return bytes;
}

static void run_items(const struct launch *launch, const struct strait_codebook *codebook)
{
    const struct strait_codec *best = strait_codec_get(NULL);
    const struct strait_run run = {
        .size = sizeof(run), .class_stats = launch->run.class_stats, .class_count = launch->run.class_count};
    struct strait_encode_params params = launch->params;
    params.codebook = codebook;
    for (uint32_t i = 0; i < launch->count; i++) {
        struct item *item = &launch->items[i];
        require_pages(&item->list, launch->device);
        item->encode.src = item->decode.dst = item->list;
        enum strait_status status = launch->is_encode ? strait_encode_batch(best, &params, &item->encode, 1, &run)
                                                      : strait_decode_batch(best, codebook, &item->decode, 1, &run);
        demand(status == STRAIT_OK);
    }
}

/* Again each time that a graph is launched. */
static void run(coll_stream stream, void *argument)
{
    const struct launch *launch = argument;
    struct strait_codebook *codebook = NULL;
    if (fake_codec_host.begin != NULL)
        fake_codec_host.begin();
    require_reachable(launch->run.class_stats, launch->run.class_count * sizeof(struct strait_class_stats),
                      launch->device);
    hold_scratch(&launch->run, launch->device, 0, 1);
    if (launch->has_codebook)
        codebook = codebook_of(launch);
    run_items(launch, codebook);
    hold_scratch(&launch->run, launch->device, 1, 0);
    strait_codebook_destroy(codebook);
    for (uint32_t i = 0; i < launch->count; i++)
        fake_pass_time(stream, 1e-15 * fake_gpu.codec_fs[launch->device] * values_of(&launch->items[i].list));
}

static void end(void *argument)
{
    const struct launch *launch = argument;
    for (uint32_t i = 0; i < launch->count; i++)
        free(launch->items[i].regions);
    free(launch->items);
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

static struct launch prepare(const struct strait_run *with, uint32_t count, const uint8_t *codebook_id)
{
    struct launch launch = {.count = count,
                            .items = calloc(count, sizeof(*launch.items)),
                            .run = *with,
                            .has_codebook = codebook_id != NULL,
                            .device = fake_codec_host.device()};
    demand(launch.items != NULL && launch.device >= 0);
    fake_occupy(with->sm_budget);
    demand(fake_stream_device(fake_codec_host.stream(with->stream)) == launch.device);
    if (codebook_id != NULL)
        memcpy(launch.id, codebook_id, sizeof(launch.id));
    return launch;
}

static void keep_list(struct item *item, const struct strait_pages *list)
{
    item->regions = calloc(list->region_count, sizeof(*item->regions));
    demand(item->regions != NULL);
    memcpy(item->regions, list->regions, list->region_count * sizeof(*item->regions));
    item->list = *list;
    item->list.regions = item->regions;
}

static enum strait_status start(const struct launch *launch)
{
    if (fake_codec_host.fails()) {
        end((void *)(uintptr_t)launch);
        return STRAIT_ERR_DEVICE;
    }
    fake_queue(fake_codec_host.stream(launch->run.stream), run, end, launch, sizeof(*launch));
    return STRAIT_OK;
}

static bool reports_aligned(const struct strait_result *result, const int32_t *page_status, const uint32_t *ids)
{
    return is_aligned(result, 8) && is_aligned(page_status, 4) && is_aligned(ids, 4);
}

static enum strait_status encode(const struct device_encode *call)
{
    for (uint32_t i = 0; i < call->count; i++) {
        const struct strait_encode_item *item = &call->items[i];
        if (!is_aligned(item->dst, 16) || !reports_aligned(item->result, item->page_status, item->src.ids))
            return STRAIT_ERR_ALIGNMENT;
    }
    if (call->codebook_id != NULL && call->run->tables == NULL)
        return STRAIT_ERR_INVALID;
    if (call->run->scratch_size < encode_scratch_size(call->items, call->count))
        return STRAIT_ERR_NO_SPACE;
    struct launch launch = prepare(call->run, call->count, call->codebook_id);
    launch.is_encode = true;
    launch.params = (struct strait_encode_params){
        .size = sizeof(launch.params), .element = call->element, .mode = call->mode, .absent = call->absent};
    for (uint32_t i = 0; i < call->count; i++) {
        launch.items[i].encode = call->items[i];
        keep_list(&launch.items[i], &call->items[i].src);
    }
    return start(&launch);
}

static enum strait_status decode(const struct device_decode *call)
{
    for (uint32_t i = 0; i < call->count; i++) {
        const struct strait_decode_item *item = &call->items[i];
        if (!is_aligned(item->src, 16) || !is_aligned(item->select, 4) ||
            !reports_aligned(item->result, item->page_status, item->dst.ids))
            return STRAIT_ERR_ALIGNMENT;
    }
    if (call->codebook_id != NULL && call->run->tables == NULL)
        return STRAIT_ERR_INVALID;
    if (call->run->scratch_size < decode_scratch_size(call->items, call->count))
        return STRAIT_ERR_NO_SPACE;
    struct launch launch = prepare(call->run, call->count, call->codebook_id);
    for (uint32_t i = 0; i < call->count; i++) {
        launch.items[i].decode = call->items[i];
        keep_list(&launch.items[i], &call->items[i].dst);
    }
    return start(&launch);
}

static enum strait_status load(void)
{
    return fake_codec_host.device() >= 0 ? STRAIT_OK : STRAIT_ERR_DEVICE;
}

static uint32_t describe(char *text, uint32_t size)
{
    return (uint32_t)snprintf(text, size, "the processor's");
}

const struct device_ops fake_codec_ops = {
    DEVICE_OPS_VERSION, encode_scratch_size, decode_scratch_size, encode, decode, load, describe};

/* The plugin's entry, for processes that have the fake driver. */
__attribute__((visibility("default"))) const struct device_ops *strait_device_ops(void);
const struct device_ops *strait_device_ops(void)
{
    return fake_codec_host.device() >= 0 ? &fake_codec_ops : NULL;
}
