/* What encodes chunks: a table of functions for each kind of memory that tensors are in. */
#ifndef STRAIT_CHECKPOINT_ENCODER_H
#define STRAIT_CHECKPOINT_ENCODER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <strait/codec.h>

#define ENCODER_PAGE_BYTES   32768u
#define ENCODER_CHUNK_BYTES  (4u << 20)
#define ENCODER_PIECES_MAX   16384u
#define ENCODER_PAGES_MAX    (2u * (ENCODER_CHUNK_BYTES / ENCODER_PAGE_BYTES) + 1)
#define ENCODER_BUFFER_BYTES (ENCODER_CHUNK_BYTES + (128u << 10)) /* of a chunk, tables of its pages included */

/* Bytes of a shard in a chunk, from a byte of a page on. Of more than one page, or with a page of its own: consecutive
 * pages, from byte 0 on. */
struct piece {
    const uint8_t *data;
    uint64_t bytes;
    uint32_t page;
    uint32_t byte;
};

/* A chunk to encode: pieces of one element type, at most ENCODER_CHUNK_BYTES in pages of ENCODER_PAGE_BYTES, each of
 * which ends where its last piece ends. */
struct contents {
    struct piece *pieces;
    uint32_t piece_count;
    uint32_t page_count;
    uint64_t bytes; /* of the pieces */
    enum strait_element element;
};

struct encoder_options {
    enum strait_mode mode;
    uint32_t sm_budget;
};

struct encoder_text {
    char *text;
    size_t size;
};

struct encoder {
    /* For one thread: each calls the others with a state of its own. */
    enum strait_status (*prepare)(void **state, const struct encoder_options *options, struct encoder_text told);
    /* Encodes to dst in host memory, of ENCODER_BUFFER_BYTES, aligned to 4096. */
    enum strait_status (*encode)(void *state, const struct contents *contents, uint8_t *dst, uint64_t *bytes,
                                 struct encoder_text told);
    /* Whether all `count` BF16 values are the F32 values' roundings to nearest even. Any alignment. */
    enum strait_status (*compare)(void *state, const void *fp32, const void *bf16, uint64_t count, bool *equal,
                                  struct encoder_text told);
    void (*finish)(void *state); /* NULL is allowed */
};

extern const struct encoder encoder_host;

#endif
