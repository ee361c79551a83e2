/* strait bench codec: its data, and its cases, which are ways to encode and decode them. */
#ifndef STRAIT_BENCH_CODEC_H
#define STRAIT_BENCH_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench/bench.h"
#include "tools/pipeline.h"

/* ---- Data (data.c) ----------------------------------------------------------------------------------------------- */

/* Tensors back to back, each with the table of its class, repeated until they exceed the caches. */
struct data {
    uint8_t *bytes;
    uint64_t size;
    uint64_t period;  /* the tensors repeat after this many bytes; equals size when they do not */
    struct plan plan; /* one segment for each copy of a tensor */
    enum strait_element element;
};

/* Copies whole tensors until there are at least `size` bytes; of a tensor larger than that, only the first `size`
 * bytes. Values become FP8 where `element` says so. Gets zeroes. False: no memory, which was printed to stderr. The
 * caller frees data->bytes and plan_fini()s the plan. */
bool data_init(struct data *data, const struct bench_values *values, uint64_t size, enum strait_element element);

/* Compression that the exponents of the data allow, and how well the tables fit them. */
struct data_figures {
    double top16, tiered;             /* shares of values that escape */
    double worst_top16, worst_tiered; /* the same for the worst class */
    double class_bits, all_bits;      /* order-0 entropy of exponents, each class by itself and all together */
    uint32_t classes;
};

bool data_measure(const struct data *data, const struct strait_codebook *codebook, unsigned threads,
                  struct data_figures *figures);

/* ---- FP8 --------------------------------------------------------------------------------------------------------- */

/* Casts `count` BF16 values, scaled so that the largest becomes that of the type. */
void fp8_cast(uint8_t *dst, const uint8_t *src, uint64_t count, enum strait_element element);
/* The same as data_measure for FP8 data, whose blocks use no tables: each tensor counts as a class. */
/* Entropy of `count` values, all together. */
double entropy_bits(const uint64_t counts[256], double count);
void fp8_measure(const struct data *data, struct data_figures *figures);
/* The ratio at so many bits for each exponent. */
double fp8_limit(enum strait_element element, double exponent_bits);

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

/* Shared by all cases, which run one after another. */
struct buffers {
    const uint8_t *raw; /* the data */
    uint8_t *coded;
    uint8_t *back; /* as large as raw */
    uint64_t raw_bytes;
};

/* Processes one item, the unit of work of a thread: a chunk. `thread` differs between calls that run at once. */
typedef bool work_item(void *state, unsigned thread, uint32_t item);

struct codec_case {
    work_item *encode, *decode;                 /* raw to coded, coded to back; encode NULL: a limit, nothing runs */
    uint64_t (*coded_bytes)(const void *state); /* after encode: of all items, every byte */
    void (*destroy)(void *state);
    void *state; /* owned */

    const char *name, *variant, *mode; /* borrowed; variant and mode may be NULL */
    bool is_memcpy;                    /* the other cases are compared with it */
    unsigned threads;
    uint32_t items;
    uint64_t page_bytes; /* 0: none */
    uint64_t raw_bytes;
    uint64_t coded_capacity; /* of the buffer of coded bytes */
    uint64_t table_bytes;

    /* Results. */
    uint64_t coded;                  /* bytes */
    double limit;                    /* ratio of a case where nothing runs */
    uint64_t *encode_ns, *decode_ns; /* one per repeat; owned */
    uint64_t wall_ns, cpu_ns;        /* of all timed runs */
    bool ok;                         /* every decoded buffer equalled the source, and all repeats coded to one size */
};

#define CASES_MAX 512u

struct case_list {
    struct codec_case list[CASES_MAX];
    unsigned count;
};

/* Takes the case and its state. */
bool case_add(struct case_list *cases, struct codec_case added);

/* General compressors that this build has, by name; "none" is the last before NULL. */
extern const char *const rival_names[];
/* Adds the compressor of that index, on pieces of `piece_bytes`, on the values as they are and on their exponents alone
 * ("split"). False: out of memory, which was printed to stderr. */
bool rival_add(struct case_list *cases, const struct buffers *buffers, uint64_t index, uint64_t piece_bytes,
               unsigned threads);

#endif
