/* General compressors for `strait bench codec` to compare with, on the unchanged bytes or on the exponents alone. Built
 * with -DSTRAIT_BENCH_RIVALS=ON. */
#include <lz4.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "bench/codec.h"
#include "internal/bytes.h"
#include "tools/input.h"
#include "tools/util.h"

#define SAMPLE_BYTES (8u * 1024 * 1024) /* for each thread, of slow compressors */

/* A compressor; contexts are made before anything is timed, one per thread. */
struct compressor_ops {
    size_t (*bound)(size_t size);
    void *(*create)(int level); /* NULL: out of memory */
    void (*destroy)(void *context);
    size_t (*compress)(void *context, void *dst, size_t capacity, const void *src, size_t size); /* 0: failed */
    bool (*decompress)(void *context, void *dst, size_t size, const void *src, size_t src_size);
};

struct compressor {
    const struct compressor_ops *ops;
    int level;
    bool slow; /* runs on a sample */
};

/* ---- zstd ------------------------------------------------------------------------------------------------------ */

struct zstd_context {
    ZSTD_CCtx *compress;
    ZSTD_DCtx *decompress;
    int level;
};

static void zstd_destroy(void *context)
{
    struct zstd_context *zstd = context;
    ZSTD_freeCCtx(zstd->compress);
    ZSTD_freeDCtx(zstd->decompress);
    free(zstd);
}

static void *zstd_create(int level)
{
    struct zstd_context *zstd = calloc(1, sizeof(*zstd));

    if (zstd == NULL)
        return NULL;
    *zstd = (struct zstd_context){ZSTD_createCCtx(), ZSTD_createDCtx(), level};
    if (zstd->compress != NULL && zstd->decompress != NULL)
        return zstd;
    zstd_destroy(zstd);
    return NULL;
}

static size_t zstd_compress(void *context, void *dst, size_t capacity, const void *src, size_t size)
{
    struct zstd_context *zstd = context;
    size_t made = ZSTD_compressCCtx(zstd->compress, dst, capacity, src, size, zstd->level);
    return ZSTD_isError(made) ? 0 : made;
}

static bool zstd_decompress(void *context, void *dst, size_t size, const void *src, size_t src_size)
{
    struct zstd_context *zstd = context;
    return ZSTD_decompressDCtx(zstd->decompress, dst, size, src, src_size) == size;
}

static const struct compressor_ops zstd_ops = {ZSTD_compressBound, zstd_create, zstd_destroy, zstd_compress,
                                               zstd_decompress};

/* ---- lz4 ------------------------------------------------------------------------------------------------------- */

static size_t lz4_bound(size_t size)
{
    return (size_t)LZ4_compressBound((int)size);
}

static void *lz4_create(int level)
{
    (void)level;
    return malloc((size_t)LZ4_sizeofState());
}

static size_t lz4_compress(void *context, void *dst, size_t capacity, const void *src, size_t size)
{
    return (size_t)LZ4_compress_fast_extState(context, src, dst, (int)size, (int)capacity, 1);
}

static bool lz4_decompress(void *context, void *dst, size_t size, const void *src, size_t src_size)
{
    (void)context;
    return LZ4_decompress_safe(src, dst, (int)src_size, (int)size) == (int)size;
}

static const struct compressor_ops lz4_ops = {lz4_bound, lz4_create, free, lz4_compress, lz4_decompress};

static const struct compressor compressors[] = {
    {&zstd_ops, 1, false}, {&zstd_ops, 3, false}, {&zstd_ops, 19, true}, {&lz4_ops, 1, false}};
const char *const rival_names[] = {"zstd-1", "zstd-3", "zstd-19", "lz4", "none", NULL};

/* ---- Planes ---------------------------------------------------------------------------------------------------- */

/* Plain loops, which compilers vectorize; next to a general compressor their time is negligible. */

static void planes_split(uint8_t *restrict sign_mantissa, uint8_t *restrict exponents, const void *restrict values,
                         size_t count)
{
    const uint8_t *src = values;
    for (size_t i = 0; i < count; i++) {
        uint16_t value = load_le16(src + 2 * i);
        sign_mantissa[i] = (uint8_t)((value >> 8 & 0x80) | (value & 0x7F));
        exponents[i] = (uint8_t)(value >> 7);
    }
}

static void planes_join(void *restrict values, const uint8_t *restrict sign_mantissa, const uint8_t *restrict exponents,
                        size_t count)
{
    uint8_t *dst = values;
    for (size_t i = 0; i < count; i++)
        store_le16(dst + 2 * i,
                   (uint16_t)((sign_mantissa[i] & 0x80) << 8 | exponents[i] << 7 | (sign_mantissa[i] & 0x7F)));
}

struct compressor_thread {
    void *context;
    struct buffer exponents; /* of one piece */
};

struct compressor_state {
    const struct buffers *buffers;
    const struct compressor_ops *ops;
    bool split;
    uint64_t raw_bytes;
    uint64_t piece_bytes;
    uint64_t slot_bytes; /* of a coded piece */
    uint32_t pieces;
    uint64_t *sizes; /* one per piece, set by encode */
    unsigned threads;
    struct compressor_thread *thread;
};

/* ---- Pieces ---------------------------------------------------------------------------------------------------- */

static size_t piece_size(const struct compressor_state *state, uint32_t item)
{
    uint64_t left = state->raw_bytes - item * state->piece_bytes;
    return left < state->piece_bytes ? left : state->piece_bytes;
}

/* A split piece consists of the sign+mantissa plane, then the compressed exponents. */
static bool encode_piece(void *arg, unsigned thread, uint32_t item)
{
    struct compressor_state *state = arg;
    struct compressor_thread *own = &state->thread[thread];
    const uint8_t *src = state->buffers->raw + item * state->piece_bytes;
    uint8_t *dst = state->buffers->coded + item * state->slot_bytes;
    size_t size = piece_size(state, item);
    size_t kept = state->split ? size / 2 : 0;
    size_t made;

    if (state->split) {
        planes_split(dst, own->exponents.data, src, size / 2);
        src = own->exponents.data;
    }
    made = state->ops->compress(own->context, dst + kept, state->slot_bytes - kept, src, size - kept);
    state->sizes[item] = kept + made;
    return made > 0;
}

static bool decode_piece(void *arg, unsigned thread, uint32_t item)
{
    struct compressor_state *state = arg;
    struct compressor_thread *own = &state->thread[thread];
    const uint8_t *src = state->buffers->coded + item * state->slot_bytes;
    uint8_t *dst = state->buffers->back + item * state->piece_bytes;
    size_t size = piece_size(state, item);
    size_t kept = state->split ? size / 2 : 0;
    bool ok = state->ops->decompress(own->context, state->split ? own->exponents.data : dst, size - kept, src + kept,
                                     state->sizes[item] - kept);

    if (ok && state->split)
        planes_join(dst, src, own->exponents.data, size / 2);
    return ok;
}

static uint64_t coded_bytes(const void *arg)
{
    const struct compressor_state *state = arg;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < state->pieces; i++)
        bytes += state->sizes[i];
    return bytes;
}

/* ---- States ---------------------------------------------------------------------------------------------------- */

static void destroy(void *arg)
{
    struct compressor_state *state = arg;

    for (unsigned t = 0; state->thread != NULL && t < state->threads; t++) {
        if (state->thread[t].context != NULL)
            state->ops->destroy(state->thread[t].context);
        buffer_fini(&state->thread[t].exponents);
    }
    free(state->thread);
    free(state->sizes);
    free(state);
}

static bool make_thread(struct compressor_thread *own, const struct compressor *compressor, bool split,
                        uint64_t piece_bytes)
{
    own->context = compressor->ops->create(compressor->level);
    if (own->context == NULL || (split && !buffer_reserve(&own->exponents, 0, piece_bytes / 2)))
        return false;
    if (split)
        memset(own->exponents.data, 0, piece_bytes / 2);
    return true;
}

static void set_sizes(struct compressor_state *state, const struct compressor *compressor, uint64_t piece_bytes)
{
    uint64_t half = piece_bytes / 2;
    uint64_t sample = (uint64_t)SAMPLE_BYTES * state->threads;

    state->raw_bytes = state->buffers->raw_bytes;
    if (compressor->slow && sample < state->raw_bytes)
        state->raw_bytes = sample;
    state->piece_bytes = piece_bytes;
    state->pieces = (uint32_t)((state->raw_bytes + piece_bytes - 1) / piece_bytes);
    state->slot_bytes = state->split ? half + compressor->ops->bound(half) : compressor->ops->bound(piece_bytes);
}

static struct compressor_state *create(const struct buffers *buffers, const struct compressor *compressor, bool split,
                                       uint64_t piece_bytes, unsigned threads)
{
    struct compressor_state *state = calloc(1, sizeof(*state));
    bool ok = state != NULL;

    if (ok) {
        *state =
            (struct compressor_state){.buffers = buffers, .ops = compressor->ops, .split = split, .threads = threads};
        set_sizes(state, compressor, piece_bytes);
        state->sizes = calloc(state->pieces, sizeof(state->sizes[0]));
        state->thread = calloc(threads, sizeof(state->thread[0]));
        ok = state->sizes != NULL && state->thread != NULL;
    }
    for (unsigned t = 0; ok && t < threads; t++)
        ok = make_thread(&state->thread[t], compressor, split, piece_bytes);
    if (ok)
        return state;
    print_error(NULL, "out of memory");
    if (state != NULL)
        destroy(state);
    return NULL;
}

static bool add(struct case_list *cases, const struct buffers *buffers, uint64_t index, bool split,
                uint64_t piece_bytes, unsigned threads)
{
    struct compressor_state *state = create(buffers, &compressors[index], split, piece_bytes, threads);

    return state != NULL && case_add(cases, (struct codec_case){
                                                .encode = encode_piece,
                                                .decode = decode_piece,
                                                .coded_bytes = coded_bytes,
                                                .destroy = destroy,
                                                .state = state,
                                                .name = rival_names[index],
                                                .mode = split ? "split" : "bytes",
                                                .threads = threads,
                                                .items = state->pieces,
                                                .raw_bytes = state->raw_bytes,
                                                .coded_capacity = state->pieces * state->slot_bytes,
                                            });
}

bool rival_add(struct case_list *cases, const struct buffers *buffers, uint64_t index, uint64_t piece_bytes,
               unsigned threads)
{
    return add(cases, buffers, index, false, piece_bytes, threads) &&
           add(cases, buffers, index, true, piece_bytes, threads);
}
