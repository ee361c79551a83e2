/* The rows of the table: what is run, and its results. */
#ifndef STRAIT_BENCH_CASES_H
#define STRAIT_BENCH_CASES_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/codec.h>

#include "bench/chunks.h"
#include "bench/timing.h"

/* Shared by all cases, which run one after another. */
struct buffers {
    const uint8_t *raw; /* the data */
    uint8_t *coded;
    uint8_t *back; /* as large as raw */
    uint64_t raw_bytes;
};

/* One way to encode and decode. An item, the unit of work of a thread, is a chunk. */
struct case_kind {
    work_item *encode;                          /* raw to coded; arg is the case's state, as below */
    work_item *decode;                          /* coded to back */
    uint64_t (*coded_bytes)(const void *state); /* after encode: of all items, every byte */
    void (*destroy)(void *state);
};

#define CASE_NAME_BYTES 24

struct bench_case {
    const struct case_kind *kind; /* NULL: a limit, nothing runs */
    bool is_memcpy;               /* the other cases are compared with it */
    void *state;                  /* owned */
    char name[CASE_NAME_BYTES];
    const char *variant; /* borrowed, like mode; "-" when there is none */
    const char *mode;
    unsigned threads;
    uint32_t items;
    uint64_t page_bytes; /* 0: none */
    uint64_t raw_bytes;
    uint64_t coded_capacity; /* of the buffer of coded bytes */
    uint64_t table_bytes;

    /* Results. */
    uint64_t coded_bytes;
    double limit;                    /* ratio of a case where nothing runs */
    uint64_t *encode_ns, *decode_ns; /* one per repeat; in the case list's memory */
    uint64_t wall_ns, cpu_ns;        /* of all timed runs */
    bool ok;                         /* every decoded buffer equalled the source, and all repeats coded to one size */
};

struct case_list {
    struct bench_case *list;
    unsigned count, capacity;
    unsigned repeats;
    uint64_t *samples; /* owned; all encode_ns and decode_ns */
};

/* A new zeroed case with `ok` set; NULL when out of memory, which was printed to stderr. Valid until the next call. */
struct bench_case *case_list_add(struct case_list *cases);
/* Makes room for the samples, once all cases have been added. */
bool case_list_set_repeats(struct case_list *cases, unsigned repeats);
/* Safe on zeroes. */
void case_list_fini(struct case_list *cases);

/* ---- The kinds ------------------------------------------------------------------------------------------------- */

/* memcpy from raw to coded and from there to back: one call per thread (page_bytes 0), or one call per page. */
bool copy_case_add(struct case_list *cases, const struct buffers *buffers, uint64_t page_bytes, uint64_t chunk_bytes,
                   unsigned threads);

struct strait_case_params {
    const struct bench_chunks *chunks; /* must outlive the case, like the codebook */
    const struct strait_codec *codec;
    const struct strait_codebook *codebook;
    enum strait_mode mode;
    unsigned threads;
};

bool strait_case_add(struct case_list *cases, const struct buffers *buffers, const struct strait_case_params *params);

struct rival;

/* A general compressor on pieces of `piece_bytes`; `split`: only on the exponents, the rest is stored. */
bool rival_case_add(struct case_list *cases, const struct buffers *buffers, const struct rival *rival, bool split,
                    uint64_t piece_bytes, unsigned threads);

extern const char *const mode_names[]; /* by enum strait_mode */

#endif
