/* A codec whose calls are work of a stream: the best variant for the host does them when the stream comes to them. It
 * demands of addresses and scratch what the kernels demand. */
#include <string.h>

#include "kernels/codec.h"
#include "tests/fakes/gpu.h"
#include "tests/fakes/coll_kernels.h"

#define SCRATCH_ENDS 64u /* bytes at both ends of scratch that are looked at */

struct item {
    struct strait_encode_item encode;
    struct strait_decode_item decode;
    struct strait_region region;
};

/* A call's arguments, of which the caller keeps nothing. */
struct launch {
    bool is_encode;
    uint32_t count;
    struct item *items;
    struct strait_encode_params params;
    uint8_t *scratch;
    size_t scratch_size;
};

/* ---- What has to hold -------------------------------------------------------------------------------------------- */

static bool is_aligned(const void *pointer, uintptr_t to)
{
    return (uintptr_t)pointer % to == 0;
}

static uint64_t scratch_of(const struct strait_pages *list)
{
    return ((uint64_t)list->region_count * list->id_count * 64 + 4096) / 64 * 64;
}

static uint64_t encode_scratch_size(const struct strait_encode_item *items, uint32_t count)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += scratch_of(&items[i].src);
    return bytes;
}

static uint64_t decode_scratch_size(const struct strait_decode_item *items, uint32_t count)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += scratch_of(&items[i].dst);
    return bytes;
}

/* It is zero before its first use, and left so by each one for the next; two at once would see each other. */
static void hold_scratch(const struct launch *launch, uint8_t expected, uint8_t left)
{
    for (size_t i = 0; i < SCRATCH_ENDS; i++) {
        uint8_t *first = launch->scratch + i, *last = launch->scratch + launch->scratch_size - 1 - i;
        demand(*first == expected && *last == expected);
        *first = *last = left;
    }
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

static void run(coll_stream stream, void *argument)
{
    const struct launch *launch = argument;
    const struct strait_codec *best = strait_codec_get(NULL);
    const struct strait_run how = {.size = sizeof(how)};
    hold_scratch(launch, 0, 1);
    for (uint32_t i = 0; i < launch->count; i++) {
        struct item *item = &launch->items[i];
        fake_pass_time(stream, 1e-15 * fake_gpu.code_fs * item->region.page_count * item->region.row_bytes);
        item->encode.src.regions = item->decode.dst.regions = &item->region;
        demand((launch->is_encode ? strait_encode_batch(best, &launch->params, &item->encode, 1, &how)
                                  : strait_decode_batch(best, NULL, &item->decode, 1, &how)) == STRAIT_OK);
    }
    hold_scratch(launch, 1, 0);
}

static void end(void *argument)
{
    free(((struct launch *)argument)->items);
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

static struct launch prepare(const struct strait_run *with, uint32_t count)
{
    struct launch launch = {.count = count,
                            .items = calloc(count, sizeof(*launch.items)),
                            .scratch = with->scratch,
                            .scratch_size = with->scratch_size};
    demand(launch.items != NULL && fake_stream_device(with->stream) == fake_device());
    demand(with->class_stats == NULL && with->tables == NULL);
    return launch;
}

static bool fails(void)
{
    return fake_gpu.fail_work > 0 && atomic_fetch_sub(&fake_gpu.fail_work, 1) == 1;
}

static enum strait_status encode(const struct device_encode *call)
{
    if (call->run->scratch_size < encode_scratch_size(call->items, call->count))
        return STRAIT_ERR_NO_SPACE;
    for (uint32_t i = 0; i < call->count; i++)
        if (!is_aligned(call->items[i].dst, 16) || !is_aligned(call->items[i].result, 8))
            return STRAIT_ERR_ALIGNMENT;
    if (fails())
        return STRAIT_ERR_DEVICE;
    struct launch launch = prepare(call->run, call->count);
    launch.is_encode = true;
    launch.params = (struct strait_encode_params){sizeof(launch.params), call->element, call->mode, NULL};
    for (uint32_t i = 0; i < call->count; i++) {
        demand(call->items[i].src.region_count == 1 && call->items[i].src.ids == NULL);
        launch.items[i] = (struct item){.encode = call->items[i], .region = call->items[i].src.regions[0]};
    }
    fake_queue(call->run->stream, run, end, &launch, sizeof(launch));
    return STRAIT_OK;
}

static enum strait_status decode(const struct device_decode *call)
{
    if (call->run->scratch_size < decode_scratch_size(call->items, call->count))
        return STRAIT_ERR_NO_SPACE;
    for (uint32_t i = 0; i < call->count; i++)
        if (!is_aligned(call->items[i].src, 16) || !is_aligned(call->items[i].result, 8))
            return STRAIT_ERR_ALIGNMENT;
    if (fails())
        return STRAIT_ERR_DEVICE;
    struct launch launch = prepare(call->run, call->count);
    for (uint32_t i = 0; i < call->count; i++) {
        demand(call->items[i].dst.region_count == 1 && call->items[i].dst.ids == NULL);
        launch.items[i] = (struct item){.decode = call->items[i], .region = call->items[i].dst.regions[0]};
    }
    fake_queue(call->run->stream, run, end, &launch, sizeof(launch));
    return STRAIT_OK;
}

static enum strait_status load(void)
{
    return STRAIT_OK;
}

const struct strait_codec *fake_codec(void)
{
    static const struct device_ops ops = {
        DEVICE_OPS_VERSION, encode_scratch_size, decode_scratch_size, encode, decode, load};
    static const struct strait_codec codec = {.name = "fake", .device = &ops};
    return &codec;
}
