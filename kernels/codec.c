#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <strait/codec.h>
#include <string.h>

#include "internal/bytes.h"
#include "internal/element.h"
#include "kernels/chunk.h"
#include "kernels/codec.h"

/* ---- Variants --------------------------------------------------------------------------------------------------- */

static bool always(void)
{
    return true;
}

#ifdef STRAIT_X86
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
           __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("bmi2");
}
#endif

#define CPU_CODEC(NAME, SUPPORTED)                                                                                   \
    {                                                                                                                \
        .name = #NAME, .supported = SUPPORTED, .scratch_size = sizeof(struct chunk_scratch), .blocks = &block_##NAME \
    }

/* Best first. */
static const struct strait_codec codecs[] = {
#ifdef STRAIT_X86
    CPU_CODEC(avx512, has_avx512),
    CPU_CODEC(avx2, has_avx2),
#endif
#ifdef STRAIT_AARCH64
    CPU_CODEC(neon, always),
#endif
    CPU_CODEC(scalar, always),
};

#define CODEC_COUNT (sizeof(codecs) / sizeof(codecs[0]))

static const struct strait_codec *codec_by_name(const char *name)
{
    for (size_t i = 0; i < CODEC_COUNT; i++)
        if (strcmp(codecs[i].name, name) == 0 && codecs[i].supported())
            return &codecs[i];
    return NULL;
}

/* Default variant (codec NULL). Looked up only once, because another thread may change the environment. */
static const struct strait_codec *default_codec(void)
{
    static const struct strait_codec *_Atomic chosen;
    const struct strait_codec *codec = atomic_load_explicit(&chosen, memory_order_acquire);
    if (codec != NULL)
        return codec;
    const char *wanted = getenv("STRAIT_CODEC");
    codec = wanted == NULL ? NULL : codec_by_name(wanted);
    for (size_t i = 0; codec == NULL; i++)
        if (codecs[i].supported())
            codec = &codecs[i];
    atomic_store_explicit(&chosen, codec, memory_order_release);
    return codec;
}

#define CUDA_PLUGIN "libstrait-cuda.so.0"

static struct strait_codec cuda = {.name = "cuda"};
static device_ops_get *get_ops;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The plugin stays loaded: a driver that has been started cannot be unloaded safely. */
static void load_plugin(void)
{
    void *plugin = dlopen(CUDA_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    if (plugin != NULL)
        *(void **)&get_ops = dlsym(plugin, DEVICE_OPS_SYMBOL);
}

/* The variant "cuda", NULL when it is unavailable. The plugin is looked for once, the device at every call. */
static const struct strait_codec *codec_cuda(void)
{
    pthread_once(&once, load_plugin);
    if (get_ops == NULL)
        return NULL;
    const struct device_ops *ops = get_ops();
    if (ops == NULL || ops->version != DEVICE_OPS_VERSION)
        return NULL;
    pthread_mutex_lock(&lock);
    cuda.device = ops; /* the same each time */
    pthread_mutex_unlock(&lock);
    return &cuda;
}

const struct strait_codec *strait_codec_get(const char *name)
{
    if (name != NULL && strcmp(name, "cuda") == 0)
        return codec_cuda();
    return name != NULL ? codec_by_name(name) : default_codec();
}

const char *strait_codec_name_at(uint32_t index)
{
    return index < CODEC_COUNT ? codecs[index].name : NULL;
}

enum strait_status strait_codec_prepare(const struct strait_codec *codec)
{
    return codec == NULL || codec->device == NULL ? STRAIT_OK : codec->device->prepare();
}

uint32_t strait_codec_describe(const struct strait_codec *codec, char *text, uint32_t size)
{
    if (codec->device != NULL)
        return codec->device->describe(text, size);
    const uint32_t length = (uint32_t)strlen(codec->name), fit = length < size ? length : size - 1;
    if (size > 0) {
        memcpy(text, codec->name, fit);
        text[fit] = '\0';
    }
    return length;
}

const char *strait_version(void)
{
    return STRAIT_VERSION;
}

const char *strait_codec_name(const struct strait_codec *codec)
{
    return codec->name;
}

size_t strait_scratch_size(const struct strait_codec *codec)
{
    return (codec == NULL ? strait_codec_get(NULL) : codec)->scratch_size;
}

/* ---- Histograms ------------------------------------------------------------------------------------------------- */

#define LANES 4 /* neighbours often share an exponent: with separate counters their increments are independent */

void strait_histogram_add(uint64_t counts[256], const void *values, size_t count)
{
    const uint8_t *src = values;
    uint64_t lanes[LANES][256] = {{0}};
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        uint64_t four = load_le64(src + 2 * i);
        lanes[0][(four >> 7) & 255]++;
        lanes[1][(four >> 23) & 255]++;
        lanes[2][(four >> 39) & 255]++;
        lanes[3][(four >> 55) & 255]++;
    }
    for (; i < count; i++)
        lanes[0][(load_le16(src + 2 * i) >> 7) & 255]++;
    for (unsigned e = 0; e < 256; e++)
        counts[e] += lanes[0][e] + lanes[1][e] + lanes[2][e] + lanes[3][e];
}

/* Zero, infinity and NaN keep their places; the other exponents move up by the difference of the biases. */
static void add_fp16(uint64_t counts[256], const uint8_t *src, size_t count)
{
    uint64_t own[32] = {0};
    for (size_t i = 0; i < count; i++)
        own[load_le16(src + 2 * i) >> 10 & 31]++;
    counts[0] += own[0];
    counts[255] += own[31];
    for (unsigned e = 1; e < 31; e++)
        counts[e + 112] += own[e];
}

enum strait_status strait_histogram_add_values(uint64_t counts[256], enum strait_element element, const void *values,
                                               size_t count)
{
    switch (element) {
    case STRAIT_ELEMENT_BF16:
        strait_histogram_add(counts, values, count);
        return STRAIT_OK;
    case STRAIT_ELEMENT_FP16:
        add_fp16(counts, values, count);
        return STRAIT_OK;
    case STRAIT_ELEMENT_FP32:
        for (size_t i = 0; i < count; i++)
            counts[load_le32(values + 4 * i) >> 23 & 255]++;
        return STRAIT_OK;
    default:
        return STRAIT_ERR_INVALID;
    }
}

/* ---- Calls on chunks: argument checks, then the chosen variant -------------------------------------------------- */

/* Checks the fields of a run that calls for one chunk and for many share. */
static enum strait_status check_resources(const struct strait_codec *codec, const struct strait_run *run)
{
    if (run == NULL || run->size < RUN_SIZE_FIRST)
        return STRAIT_ERR_INVALID;
    if (run->size >= RUN_SIZE_CACHING && run->caching > STRAIT_CACHING_LINK)
        return STRAIT_ERR_INVALID;
    if (run->scratch == NULL)
        return codec->device == NULL ? STRAIT_OK : STRAIT_ERR_NO_SPACE;
    if ((uintptr_t)run->scratch % 64 != 0)
        return STRAIT_ERR_ALIGNMENT;
    return run->scratch_size >= codec->scratch_size ? STRAIT_OK : STRAIT_ERR_NO_SPACE;
}

/* Whether the memory for a chunk's results is consistent. */
static bool reports_fit(const struct strait_result *result, const int32_t *page_status, uint32_t page_status_count)
{
    return result != NULL && (page_status == NULL) == (page_status_count == 0);
}

/* Finds the variant of a call for one chunk and checks its run; `pages` is its page list or its chunk. */
static enum strait_status begin_call(const struct strait_codec **codec, const struct strait_run *run, const void *pages)
{
    *codec = *codec == NULL ? strait_codec_get(NULL) : *codec;
    enum strait_status status = check_resources(*codec, run);
    if (status == STRAIT_ERR_INVALID || !reports_fit(run->result, run->page_status, run->page_status_count))
        return STRAIT_ERR_INVALID;
    return status == STRAIT_OK && pages == NULL ? STRAIT_ERR_INVALID : status;
}

/* Finds the variant of a call for many chunks and checks its run, whose items have the results. */
static enum strait_status begin_batch(const struct strait_codec **codec, const struct strait_run *run,
                                      const void *items, uint32_t count)
{
    *codec = *codec == NULL ? strait_codec_get(NULL) : *codec;
    enum strait_status status = check_resources(*codec, run);
    if (status == STRAIT_ERR_INVALID || run->result != NULL || run->page_status != NULL || run->metadata != NULL)
        return STRAIT_ERR_INVALID;
    return status == STRAIT_OK && items == NULL && count > 0 ? STRAIT_ERR_INVALID : status;
}

/* Copies a run, which may be of an older and shorter version, and completes its fields. */
static struct strait_run complete_run(const struct strait_run *run)
{
    struct strait_run complete = {0};
    memcpy(&complete, run, run->size < sizeof(complete) ? run->size : sizeof(complete));
    complete.size = sizeof(complete);
    return complete;
}

static enum strait_status check_params(const struct strait_encode_params *params, const struct strait_pages *src)
{
    if (params == NULL || params->size < sizeof(*params) || (unsigned)params->element > STRAIT_ELEMENT_FP8_E5M2 ||
        (unsigned)params->mode > STRAIT_MODE_PARTS)
        return STRAIT_ERR_INVALID;
    if (params->codebook == NULL && element_uses_tables(params->element, params->mode))
        return STRAIT_ERR_INVALID;
    if ((uintptr_t)params->absent % 16 != 0)
        return STRAIT_ERR_ALIGNMENT;
    enum strait_status status = pages_check(src, element_bytes(params->element));
    if (status != STRAIT_OK)
        return status;
    uint32_t tables = params->codebook == NULL ? 1 : params->codebook->count;
    for (uint32_t r = 0; r < src->region_count; r++)
        if (src->regions[r].table >= tables)
            return STRAIT_ERR_CODEBOOK;
    return STRAIT_OK;
}

/* Checks everything about one chunk to encode except the run and the parameters. */
static enum strait_status check_encode_item(const struct strait_encode_params *params,
                                            const struct strait_encode_item *item)
{
    enum strait_status status = check_params(params, &item->src);
    if (status != STRAIT_OK)
        return status;
    uint64_t bound = strait_encode_bound(&item->src);
    if (bound == 0 || item->dst == NULL)
        return STRAIT_ERR_INVALID;
    return item->dst_capacity < bound ? STRAIT_ERR_NO_SPACE : STRAIT_OK;
}

/* The run of one item when items run one after another. */
static struct strait_run run_of_item(const struct strait_run *run, struct strait_result *result, int32_t *page_status,
                                     uint32_t page_status_count)
{
    struct strait_run one = complete_run(run);
    one.result = result;
    one.page_status = page_status;
    one.page_status_count = page_status_count;
    return one;
}

/* Encodes checked items. */
static enum strait_status encode_items(const struct strait_codec *codec, const struct strait_encode_params *params,
                                       const struct strait_encode_item *items, uint32_t count,
                                       const struct strait_run *run)
{
    if (codec->device != NULL) {
        struct strait_run complete = complete_run(run);
        struct device_encode call = {.items = items,
                                     .count = count,
                                     .element = params->element,
                                     .mode = params->mode,
                                     .absent = params->absent,
                                     .codebook_id = params->codebook == NULL ? NULL : params->codebook->id,
                                     .run = &complete};
        return codec->device->encode(&call);
    }
    for (uint32_t i = 0; i < count; i++) {
        struct strait_run one = run_of_item(run, items[i].result, items[i].page_status, items[i].page_status_count);
        chunk_encode(codec->blocks, params, items[i].dst, &items[i].src, &one);
        if (items[i].flag != NULL && items[i].result->status == STRAIT_OK)
            __atomic_store_n(items[i].flag, items[i].flag_value, __ATOMIC_RELEASE);
    }
    return STRAIT_OK;
}

enum strait_status strait_encode(const struct strait_codec *codec, const struct strait_encode_params *params, void *dst,
                                 uint64_t dst_capacity, const struct strait_pages *src, const struct strait_run *run)
{
    enum strait_status status = begin_call(&codec, run, src);
    if (status != STRAIT_OK)
        return status;
    const struct strait_encode_item item = {.src = *src,
                                            .dst = dst,
                                            .dst_capacity = dst_capacity,
                                            .result = run->result,
                                            .page_status = run->page_status,
                                            .page_status_count = run->page_status_count};
    status = check_encode_item(params, &item);
    return status == STRAIT_OK ? encode_items(codec, params, &item, 1, run) : status;
}

enum strait_status strait_encode_batch(const struct strait_codec *codec, const struct strait_encode_params *params,
                                       const struct strait_encode_item *items, uint32_t count,
                                       const struct strait_run *run)
{
    enum strait_status status = begin_batch(&codec, run, items, count);
    for (uint32_t i = 0; i < count && status == STRAIT_OK; i++) {
        bool fits = items[i].reserved == 0 && (uintptr_t)items[i].flag % sizeof(*items[i].flag) == 0 &&
                    reports_fit(items[i].result, items[i].page_status, items[i].page_status_count);
        status = fits ? check_encode_item(params, &items[i]) : STRAIT_ERR_INVALID;
    }
    return status != STRAIT_OK || count == 0 ? status : encode_items(codec, params, items, count, run);
}

/* Rows may overlap when they are read, but not when they are written. */
static enum strait_status check_rows(const struct strait_pages *dst)
{
    for (uint32_t r = 0; r < dst->region_count; r++) {
        const struct strait_region *region = &dst->regions[r];
        const uint32_t columns = region->columns > 1 ? region->columns : 1, piece = region->row_bytes / columns;
        if ((region->rows > 1 && region->row_stride < (columns > 1 ? piece : region->row_bytes)) ||
            (columns > 1 && region->column_stride < piece))
            return STRAIT_ERR_INVALID;
    }
    return STRAIT_OK;
}

static enum strait_status check_decode_item(const struct strait_decode_item *item)
{
    enum strait_status status = item->src == NULL ? STRAIT_ERR_INVALID : pages_check(&item->dst, 1);
    return status == STRAIT_OK ? check_rows(&item->dst) : status;
}

/* The item's copy of the metadata; NULL: there is none, or it is shorter than its header says. */
static const void *metadata_copy(const struct strait_decode_item *item)
{
    struct strait_chunk_info info;
    if (item->metadata == NULL || item->metadata_size == 0)
        return item->metadata;
    if (item->metadata_size < STRAIT_CHUNK_HEADER_BYTES)
        return NULL;
    return strait_chunk_info(item->metadata, item->src_size, &info) == STRAIT_OK &&
                   info.metadata_bytes > item->metadata_size
               ? NULL
               : item->metadata;
}

/* How many bytes of an item's source to read; what is not a chunk is refused whatever its size. */
static uint64_t chunk_size(const struct strait_decode_item *item)
{
    struct strait_chunk_info info;
    const void *copy = metadata_copy(item), *header = copy != NULL ? copy : item->src;
    if ((item->flags & STRAIT_DECODE_AT_MOST) == 0 || strait_chunk_info(header, item->src_size, &info) != STRAIT_OK)
        return item->src_size;
    return info.chunk_bytes < item->src_size ? info.chunk_bytes : item->src_size;
}

/* Decodes checked items. */
static enum strait_status decode_items(const struct strait_codec *codec, const struct strait_codebook *codebook,
                                       const struct strait_decode_item *items, uint32_t count,
                                       const struct strait_run *run)
{
    if (codec->device != NULL) {
        struct strait_run complete = complete_run(run);
        struct device_decode call = {.items = items,
                                     .count = count,
                                     .codebook_id = codebook == NULL ? NULL : codebook->id,
                                     .table_count = codebook == NULL ? 0 : codebook->count,
                                     .run = &complete};
        return codec->device->decode(&call);
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct strait_decode_item *item = &items[i];
        struct strait_run one = run_of_item(run, item->result, item->page_status, item->page_status_count);
        one.metadata = metadata_copy(item);
        chunk_decode(codec->blocks, codebook, &item->dst, item->select, item->src, chunk_size(item), &one);
    }
    return STRAIT_OK;
}

enum strait_status strait_decode(const struct strait_codec *codec, const struct strait_codebook *codebook,
                                 const struct strait_pages *dst, const uint32_t *select, const void *src,
                                 uint64_t src_size, const struct strait_run *run)
{
    enum strait_status status = begin_call(&codec, run, dst);
    if (status != STRAIT_OK)
        return status;
    const struct strait_decode_item item = {.dst = *dst,
                                            .select = select,
                                            .src = src,
                                            .src_size = src_size,
                                            .metadata = run->metadata,
                                            .result = run->result,
                                            .page_status = run->page_status,
                                            .page_status_count = run->page_status_count};
    status = check_decode_item(&item);
    return status == STRAIT_OK ? decode_items(codec, codebook, &item, 1, run) : status;
}

enum strait_status strait_decode_batch(const struct strait_codec *codec, const struct strait_codebook *codebook,
                                       const struct strait_decode_item *items, uint32_t count,
                                       const struct strait_run *run)
{
    enum strait_status status = begin_batch(&codec, run, items, count);
    for (uint32_t i = 0; i < count && status == STRAIT_OK; i++) {
        bool fits = (items[i].flags & ~(uint32_t)STRAIT_DECODE_AT_MOST) == 0 &&
                    reports_fit(items[i].result, items[i].page_status, items[i].page_status_count);
        status = fits ? check_decode_item(&items[i]) : STRAIT_ERR_INVALID;
    }
    return status != STRAIT_OK || count == 0 ? status : decode_items(codec, codebook, items, count, run);
}

uint64_t strait_encode_scratch_size(const struct strait_codec *codec, const struct strait_encode_item *items,
                                    uint32_t count)
{
    codec = codec == NULL ? strait_codec_get(NULL) : codec;
    for (uint32_t i = 0; i < count; i++)
        if (pages_check(&items[i].src, 1) != STRAIT_OK)
            return 0;
    return codec->device == NULL ? codec->scratch_size : codec->device->encode_scratch_size(items, count);
}

uint64_t strait_decode_scratch_size(const struct strait_codec *codec, const struct strait_decode_item *items,
                                    uint32_t count)
{
    codec = codec == NULL ? strait_codec_get(NULL) : codec;
    for (uint32_t i = 0; i < count; i++)
        if (pages_check(&items[i].dst, 1) != STRAIT_OK)
            return 0;
    return codec->device == NULL ? codec->scratch_size : codec->device->decode_scratch_size(items, count);
}

enum strait_status strait_verify(const struct strait_codec *codec, const struct strait_codebook *codebook,
                                 const void *src, uint64_t src_size, const struct strait_run *run)
{
    enum strait_status status = begin_call(&codec, run, src);
    if (status == STRAIT_OK && codec->device != NULL)
        status = STRAIT_ERR_UNSUPPORTED;
    if (status == STRAIT_OK)
        chunk_decode(codec->blocks, codebook, NULL, NULL, src, src_size, run);
    return status;
}
