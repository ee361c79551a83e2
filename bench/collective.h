/* strait bench collective: its rows, what ranks send, and the shared memory in which the ranks, which are separate
 * processes, leave their measurements. */
#ifndef STRAIT_BENCH_COLLECTIVE_H
#define STRAIT_BENCH_COLLECTIVE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "bench/bench.h"
#include "bench/ranks.h"
#include "collective/api.h"

/* ---- Options ----------------------------------------------------------------------------------------------------- */

#define COLLECTIVE_UNIT      16u /* bytes: parts of ranks are multiples of it */
#define COLLECTIVE_RANKS_MAX 16u

enum collective_op {
    COLLECTIVE_ALL_GATHER,
    COLLECTIVE_ALL_TO_ALL,
    COLLECTIVE_REDUCE_SCATTER,
    COLLECTIVE_ALL_REDUCE,
    COLLECTIVE_SENDRECV,  /* each rank to the next, in a group */
    COLLECTIVE_BROADCAST, /* of the first rank */
    COLLECTIVE_OPS,
};

enum collective_type {
    COLLECTIVE_BF16,
    COLLECTIVE_FP16,
    COLLECTIVE_FP32,
    COLLECTIVE_FP32_BF16, /* FP32 for NCCL, but the values are widened BF16 */
    COLLECTIVE_TYPES,
};

/* Tensors of one kind, recognised by their names; all of them; or none. */
enum collective_data {
    COLLECTIVE_WEIGHTS,
    COLLECTIVE_GRADIENTS,
    COLLECTIVE_ACTIVATIONS,
    COLLECTIVE_MOMENTS, /* an optimizer's running means of gradients */
    COLLECTIVE_SQUARES, /* and of their squares */
    COLLECTIVE_OTHER,
    COLLECTIVE_TENSORS, /* all tensors, one after another */
    COLLECTIVE_RANDOM,  /* random bits, except one that keeps sums finite */
    COLLECTIVE_DATAS,
};

/* Links that NCCL may use between the GPUs. NCCL reads these variables once per process. */
enum collective_links {
    COLLECTIVE_AS_IS,
    COLLECTIVE_SHM,    /* NCCL_P2P_DISABLE=1: through host memory */
    COLLECTIVE_SOCKET, /* also NCCL_SHM_DISABLE=1: over TCP */
    COLLECTIVE_LINKS,
};

extern const char *const collective_op_names[];    /* NULL-terminated */
extern const char *const collective_type_names[];  /* NULL-terminated */
extern const char *const collective_data_names[];  /* NULL-terminated */
extern const char *const collective_links_names[]; /* NULL-terminated */

struct collective_options {
    struct bench_options common;
    struct number_list ops, types, datas, links, sizes; /* datas empty: the kinds that the files have */
    uint64_t gpus;                                      /* 0: all */
    uint64_t ranks;                                     /* 0: one on each GPU */
    uint64_t hosts;                                     /* on which ranks are, as NCCL is told; 0: it is not told */
    uint64_t repeats, warmups;
    uint64_t singles;    /* calls of each row that are timed one by one, before all others */
    uint64_t iterations; /* per repeat; 0: as many as take some milliseconds */
    uint64_t seconds;    /* time limit for all rows of one kind of links */
    const char *library, *nccl;
    struct text_list environment; /* "NAME=value" */
};

/* ---- Values (data.c) -------------------------------------------------------------------------------- */

/* Kind of a tensor, derived from its name: one of those before COLLECTIVE_TENSORS. In training, tensors of different
 * kinds never share a message, nor a block of the codec, whose codes count from one range of exponents. */
enum collective_data collective_kind_of(const char *name);

/* Values that ranks send: a pattern for each type, which every rank repeats, starting at its own place in it, so that
 * all ranks know what the others send. */
struct collective_values {
    uint8_t *bytes;  /* the pattern twice, so that a period can be read from any place; NULL: not wanted */
    uint64_t period; /* bytes of the pattern, a multiple of 16 */
};

extern const unsigned collective_type_bytes[COLLECTIVE_TYPES];

/* Takes the tensors of the kind and type, back to back; `bytes` stays NULL when the files have none. FP32_BF16 is made
 * from BF16, and so is FP16 where the files have none: the nearest values, without infinities. False: a file cannot be
 * read or has too few values, or no memory; the error is on stderr. The caller must call collective_values_fini()
 * either way. */
bool collective_values_init(struct collective_values *values, enum collective_data data, enum collective_type type,
                            const struct text_list *inputs);
void collective_values_fini(struct collective_values *values); /* safe on zeroes */

/* Where in the pattern a rank's data begins, which differs between the buffers that are used in turn. */
uint64_t collective_values_start(const struct collective_values *values, unsigned rank, unsigned slot);

/* Adds up elements index..index+count-1 of what all ranks send from this slot, in the documented order (in FP32, from
 * rank 0 upward, rounded once; first those of each host of `each` ranks, of which there is a whole number), and writes
 * them to dst. */
void collective_values_sum(const struct collective_values *values, enum collective_type type, unsigned ranks,
                           unsigned each, unsigned slot, uint64_t index, uint64_t count, uint8_t *dst);

/* Rounds to nearest, ties to even. */
uint16_t collective_fp16_of(float value);
float collective_fp16_value(uint16_t bits);
uint16_t collective_bf16_of(float value);

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

#define WAY_TEXT_BYTES 96u

/* How libstrait-coll did its calls of an operation and type, as it reports it. */
struct collective_wire {
    char name[WAY_TEXT_BYTES];  /* the last decision; "-": unknown */
    uint64_t calls, compressed; /* all calls, and those that went compressed */
    uint64_t bytes;             /* handed to NCCL for compressed calls, by this rank */
};

/* Parses a report of libstrait-coll. */
void collective_wire_parse(const char *report, enum collective_op op, enum collective_type type,
                           struct collective_wire *wire);

/* The two ways that are compared. */
enum collective_way { COLLECTIVE_PLAIN, COLLECTIVE_STRAIT, COLLECTIVE_WAYS };

struct collective_row {
    enum collective_data data;
    enum collective_type type;
    enum collective_op op;
    uint64_t size; /* as asked for */
};

/* Each rank's part is a multiple of 16 bytes: `bytes` is `size` rounded down to that, and the base of all rates. */
struct collective_shape {
    uint64_t bytes, send_bytes, receive_bytes;
    uint64_t handed; /* bytes that a rank hands to NCCL for others, in messages to each or one to all */
    uint64_t count;  /* NCCL's argument */
    double bus;      /* bus bandwidth / algorithm bandwidth, as in nccl-tests */
    bool reduces;
    unsigned slots; /* buffers used in turn, so that small ones do not stay in the caches */
};

struct collective_plan {
    const struct collective_options *options;
    unsigned ranks, gpus; /* rank r is on GPU r % gpus */
    struct collective_row *rows;
    unsigned row_count;
    struct collective_values values[COLLECTIVE_DATAS][COLLECTIVE_TYPES];
    uint64_t send_bytes, receive_bytes; /* of all slots, of the largest rows */
};

/* ---- Between the processes --------------------------------------------------------------------------------------- */

struct collective_result {
    _Atomic uint64_t wrong; /* wrong 16-byte pieces, of all ranks and repeats */
    _Atomic uint32_t done;  /* ranks that finished the row */
    uint32_t iterations;
    struct collective_wire wire;
    uint64_t ns[]; /* [repeat][way][rank], of one call; single calls follow the repeats */
};

/* Position of a rank, printed when it hangs. */
enum collective_phase {
    COLLECTIVE_OPENING,
    COLLECTIVE_CONNECTING,
    COLLECTIVE_WARMING,
    COLLECTIVE_MEASURING,
    COLLECTIVE_CHECKING,
    COLLECTIVE_ENDING,
    COLLECTIVE_ENDED,
};

struct collective_position {
    _Atomic uint32_t phase, way, row; /* row: from 0, valid once the rank is at one */
};

struct collective_shared {
    struct ranks_barrier barrier;
    coll_id ids[COLLECTIVE_WAYS];
    struct collective_position positions[COLLECTIVE_RANKS_MAX];
    char gpu[128], nccl[256];
    int nccl_version, driver, runtime;
    size_t result_bytes;
    uint8_t results[];
};

struct collective_shape collective_shape_of(const struct collective_row *row, unsigned ranks);

struct collective_result *collective_result_of(const struct collective_shared *shared, unsigned row);
uint64_t *collective_ns_of(const struct collective_plan *plan, struct collective_result *result, unsigned repeat,
                           enum collective_way way, unsigned rank);

/* Times are those of the slowest rank; medians. */
struct collective_figures {
    double p50_ns[COLLECTIVE_WAYS], algbw[COLLECTIVE_WAYS], busbw[COLLECTIVE_WAYS]; /* 10^9 bytes per second */
    double ratio;           /* of what went compressed: bytes of the values / bytes handed to NCCL; 0: nothing did */
    double x, x_min, x_max; /* time of plain / time of strait, per repeat: above 1 strait is faster */
};

void collective_figures_make(const struct collective_plan *plan, const struct collective_row *row,
                             struct collective_result *result, struct collective_figures *figures);

/* Number of GPUs, by a process of its own: this one must not have CUDA before it forks. For 0, `why` says why. */
unsigned collective_count_gpus(char *why, size_t size);

/* ---- Ranks (collective_rank.c) ----------------------------------------------------------------------------------- */

/* One rank, which is a process of its own: measures all rows together with the others. False: this or another rank
 * failed; the error is on stderr and shared->barrier.failed is set. */
bool collective_rank_run(const struct collective_plan *plan, struct collective_shared *shared, unsigned number);

#endif
