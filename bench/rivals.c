#include "bench/rivals.h"

#include <string.h>

#include "tools/util.h"

/* ---- zstd ------------------------------------------------------------------------------------------------------ */

#ifdef STRAIT_BENCH_ZSTD
#include <stdlib.h>
#include <zstd.h>

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

static const struct rival_ops zstd_ops = {ZSTD_compressBound, zstd_create, zstd_destroy, zstd_compress,
                                          zstd_decompress};
#define ZSTD_OPS &zstd_ops
#else
#define ZSTD_OPS NULL
#endif

/* ---- lz4 ------------------------------------------------------------------------------------------------------- */

#ifdef STRAIT_BENCH_LZ4
#include <lz4.h>
#include <stdlib.h>

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

static const struct rival_ops lz4_ops = {lz4_bound, lz4_create, free, lz4_compress, lz4_decompress};
#define LZ4_OPS &lz4_ops
#else
#define LZ4_OPS NULL
#endif

/* ---- The list -------------------------------------------------------------------------------------------------- */

const struct rival rivals[RIVAL_COUNT] = {
    {"zstd", "zstd-1", ZSTD_OPS, 1, false},
    {"zstd", "zstd-3", ZSTD_OPS, 3, false},
    {"zstd", "zstd-19", ZSTD_OPS, 19, true},
    {"lz4", "lz4", LZ4_OPS, 1, false},
};

static bool is_word(const char *begin, size_t size, const char *word)
{
    return strlen(word) == size && memcmp(begin, word, size) == 0;
}

static bool names(const struct rival *rival, const char *begin, size_t size)
{
    return is_word(begin, size, rival->name) || is_word(begin, size, rival->family);
}

bool rival_listed(const struct rival *rival, const char *list)
{
    if (list == NULL)
        return true;
    for (const char *word = list;; word++) {
        size_t size = strcspn(word, ",");
        if (names(rival, word, size))
            return true;
        word += size;
        if (*word == '\0')
            return false;
    }
}

static bool is_known(const char *begin, size_t size)
{
    for (unsigned i = 0; i < RIVAL_COUNT; i++)
        if (names(&rivals[i], begin, size))
            return true;
    return false;
}

bool rival_list_check(const char *list)
{
    if (list == NULL || strcmp(list, "none") == 0)
        return true;
    for (const char *word = list;; word++) {
        size_t size = strcspn(word, ",");
        if (!is_known(word, size)) {
            print_error(NULL, "--rivals: unknown name '%.*s'", (int)size, word);
            return false;
        }
        word += size;
        if (*word == '\0')
            return true;
    }
}
