/* Demo of an installation: pages of a real KV cache that move between daemons, by every path and in every coding. */
#ifndef STRAIT_BENCH_DEMO_H
#define STRAIT_BENCH_DEMO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <strait/strait.h>

#include "bench/bench.h"
#include "bench/daemons.h"

#define DEMO_TOKENS      16u /* of a page of the source */
#define DEMO_HEADS       4u
#define DEMO_HEAD_VALUES 128u
#define DEMO_TOKENS_MAX  1024u /* of a page of the sink */
#define DEMO_ROUNDS      3u    /* measured rounds, after one that is not measured */
#define DEMO_ROWS_MAX    8u

enum { DEMO_HASH_BYTES = 16, DEMO_BAD_MAX = 16, DEMO_LAYOUT_TEXT_BYTES = 48 };

/* ---- Pools (demo_layout.c) --------------------------------------------------------------------------------------- */

struct demo_layout {
    bool hnd;         /* head by head; else token by token */
    bool packed;      /* K and V of a layer in one region, of each token and head first K */
    bool cross_layer; /* a page of all regions lies together */
    uint32_t tokens;  /* of a page */
};

/* The words of a layout, "hnd,tokens=64"; those that are not there are those of the source. False: not such words,
 * which was printed to stderr. */
bool demo_layout_read(struct demo_layout *layout, const char *option, const char *text);
const char *demo_layout_text(const struct demo_layout *layout, char text[DEMO_LAYOUT_TEXT_BYTES]);

/* A cache: K and V of each layer, [layer][K, V][token][head][value]. */
struct demo_model {
    enum strait_element element;
    uint32_t tokens, layers;
    int32_t layer[VALUE_REGIONS_MAX]; /* the model's numbers of them */
    uint8_t *values;                  /* owned */
};

/* Takes the tensors as the cache of `tokens` tokens, in that type. What FP16 and FP32 have beyond BF16 is random; FP8
 * has a scale for each tensor. False: failed, with the error on stderr. The caller frees model->values. */
bool demo_model_init(struct demo_model *model, const struct spans *spans, enum strait_element element, uint32_t tokens);

/* One side's pages, all of which belong to the request. */
struct demo_pool {
    struct demo_layout layout;
    enum strait_element element;
    uint32_t regions, pages, page_bytes; /* pages: of each region */
    int32_t layer[VALUE_REGIONS_MAX];    /* of the model's layers */
    uint32_t *ids;                       /* by logical index; owned */
};

/* Page ids are in an order that the seed determines. False: out of memory, which was printed to stderr. The caller
 * frees pool->ids. */
bool demo_pool_init(struct demo_pool *pool, const struct demo_model *model, const struct demo_layout *layout,
                    uint64_t seed);
uint64_t demo_pool_bytes(const struct demo_pool *pool);
struct strait_class demo_pool_class(const struct demo_pool *pool, uint32_t region);
/* Bytes from the beginning of the pool's memory to a page. */
size_t demo_pool_offset(const struct demo_pool *pool, uint32_t region, uint32_t page);
/* Puts each head of each token where it belongs. What the last page has beyond the tokens is not written. */
void demo_pool_fill(const struct demo_pool *pool, void *base, const struct demo_model *model);
/* Writes pool->regions regions. */
void demo_pool_regions(const struct demo_pool *pool, int fd, struct strait_pool_region *regions);

/* ---- The demo ---------------------------------------------------------------------------------------------------- */

/* A page that differs from what was sent. */
struct demo_bad {
    uint32_t region, source_page, sink_page;                /* source_page: if demo_alike */
    uint8_t sent[DEMO_HASH_BYTES], landed[DEMO_HASH_BYTES]; /* XXH3-128 */
};

/* A path and a coding. */
struct demo_row {
    const char *path;   /* "network", "shm", "local" */
    char transport[16]; /* as the daemon reports it */
    const char *coding;

    uint64_t wire_bytes; /* bytes sent between daemons in a round; 0 under one daemon */
    double seconds;      /* median */
    uint32_t pages_right;
    uint8_t sent[DEMO_HASH_BYTES], landed[DEMO_HASH_BYTES]; /* XXH3-128 of the hashes of all pages, in order */
    struct demo_bad bad[DEMO_BAD_MAX];                      /* the first ones */
    uint32_t bad_count;                                     /* entries of `bad` */
};

struct demo {
    bool json;
    bool flip; /* flip a bit of a landed page, to see the check fail */
    enum strait_element element;
    struct demo_layout sink_layout;
    struct bench_values values;
    struct bench_site site;
    struct demo_pool source, sink;
    struct strait_memory source_memory, sink_memory;
    uint8_t (*hashes)[DEMO_HASH_BYTES];  /* [region][logical index] of the sink's pages as they have to be, */
    uint8_t (*landed)[DEMO_HASH_BYTES];  /* and as they are */
    struct demo_row rows[DEMO_ROWS_MAX]; /* those that were measured */
    uint32_t row_count;
    bool complete; /* rows has every row that was planned */
};

/* Pages that land. */
static inline uint32_t demo_pages(const struct demo *demo)
{
    return demo->sink.regions * demo->sink.pages;
}

/* Bytes of a round, all of which the source's pages are full of. */
static inline uint64_t demo_bytes(const struct demo *demo)
{
    return demo_pool_bytes(&demo->source);
}

/* Whether a page has the same contents at both sides. */
static inline bool demo_alike(const struct demo *demo)
{
    const struct demo_layout *layout = &demo->sink.layout;

    return layout->tokens == demo->source.layout.tokens && !layout->hnd && !layout->packed;
}

/* ---- Report (demo_report.c) -------------------------------------------------------------------------------------- */

bool demo_verified(const struct demo *demo);
void demo_print_head(const struct demo *demo, FILE *stream);
void demo_print_row(const struct demo *demo, const struct demo_row *row, FILE *stream);
void demo_print_end(const struct demo *demo, FILE *stream);
/* False: output failed, which was printed to stderr. */
bool demo_print_json(const struct demo *demo, FILE *stream);

#endif
