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

#define DEMO_PAGE_BYTES 16384u /* 16 tokens of 4 KV heads of 128 values */
#define DEMO_ROUNDS     3u     /* measured rounds, after one that is not measured */
#define DEMO_ROWS_MAX   8u

enum { DEMO_HASH_BYTES = 16, DEMO_BAD_MAX = 16 };

/* A page that differs from what was sent. */
struct demo_bad {
    uint32_t region, source_page, sink_page;
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
    struct bench_values values;
    struct bench_site site;
    struct strait_memory source, landing; /* pages, region after region; a region repeats a tensor */
    uint32_t regions, pages;              /* pages: of each region */
    uint32_t *from, *to;                  /* ids by logical index: pages of them */
    uint8_t (*hashes)[DEMO_HASH_BYTES], (*landed)[DEMO_HASH_BYTES]; /* [region][logical index] */
    struct demo_row rows[DEMO_ROWS_MAX];                            /* those that were measured */
    uint32_t row_count;
    bool complete; /* rows has every row that was planned */
};

static inline uint32_t demo_pages(const struct demo *demo)
{
    return demo->regions * demo->pages;
}

static inline uint64_t demo_bytes(const struct demo *demo)
{
    return (uint64_t)demo_pages(demo) * DEMO_PAGE_BYTES;
}

/* ---- Report (demo_report.c) -------------------------------------------------------------------------------------- */

bool demo_verified(const struct demo *demo);
void demo_print_head(const struct demo *demo, FILE *stream);
void demo_print_row(const struct demo *demo, const struct demo_row *row, FILE *stream);
void demo_print_end(const struct demo *demo, FILE *stream);
/* False: output failed, which was printed to stderr. */
bool demo_print_json(const struct demo *demo, FILE *stream);

#endif
