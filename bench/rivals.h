/* General compressors that were found when this was built. */
#ifndef STRAIT_BENCH_RIVALS_H
#define STRAIT_BENCH_RIVALS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A compressor; contexts are made before anything is timed, one per thread. */
struct rival_ops {
    size_t (*bound)(size_t size);
    void *(*create)(int level); /* NULL: out of memory */
    void (*destroy)(void *context);
    size_t (*compress)(void *context, void *dst, size_t capacity, const void *src, size_t size); /* 0: failed */
    bool (*decompress)(void *context, void *dst, size_t size, const void *src, size_t src_size);
};

struct rival {
    const char *family;          /* "zstd" */
    const char *name;            /* "zstd-1" */
    const struct rival_ops *ops; /* NULL: this build lacks it */
    int level;
    bool slow; /* runs on a sample */
};

#define RIVAL_COUNT 4u
extern const struct rival rivals[RIVAL_COUNT];

/* Whether a list such as "zstd-1,lz4" names the rival or its family; NULL names all, "none" names none. */
bool rival_listed(const struct rival *rival, const char *list);
/* False, with the error on stderr, when the list has a name that no build knows. */
bool rival_list_check(const char *list);

#endif
