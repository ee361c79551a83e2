/* strait bench ep: its rows, the routing that all ranks know of each other, and the shared memory in which the ranks,
 * which are processes, leave their measurements. */
#ifndef STRAIT_BENCH_EP_H
#define STRAIT_BENCH_EP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <strait/ep.h>

#include "bench/bench.h"
#include "bench/collective.h"
#include "bench/daemons.h"
#include "bench/ranks.h"

/* ---- Options ----------------------------------------------------------------------------------------------------- */

enum ep_type { EP_BF16, EP_FP16, EP_FP32, EP_FP8, EP_TYPES }; /* FP8: with a scale for each 128; combined in BF16 */
enum ep_skew { EP_UNIFORM, EP_ZIPF, EP_ONE, EP_SKEWS };

#define EP_SCALED 128u /* values of FP8 that share a scale */

extern const char *const ep_algorithm_names[]; /* by enum strait_ep_algorithm */
extern const char *const ep_layout_names[];    /* by enum strait_ep_layout */
extern const char *const ep_coding_names[];    /* by enum strait_ep_coding */
extern const char *const ep_type_names[];
extern const char *const ep_skew_names[];

struct ep_options {
    struct bench_options common;
    bool device;
    struct number_list algorithms, layouts, codings, types, skews, tokens, rates;
    uint64_t hosts, hidden, experts, topk, ranks, sms;
    uint64_t repeats, warmups, iterations, seconds; /* iterations 0: 1 on the host, 20 on GPUs */
    bool own;                                       /* tensors are not in the group's heap */
};

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

struct ep_row {
    enum strait_ep_algorithm algorithm;
    enum strait_ep_layout layout;
    enum strait_ep_coding coding;
    enum ep_type type;
    enum ep_skew skew;
    uint32_t tokens;
};

struct ep_plan {
    const struct ep_options *options;
    const struct ep_memory *memory;
    unsigned ranks;
    uint32_t local;         /* experts of a rank */
    struct bench_link link; /* made: between the first half of the ranks and the second */
    uint32_t iterations;
    struct ep_row *rows;
    unsigned row_count;
    struct collective_values values[EP_TYPES];
};

uint32_t ep_type_bytes(enum ep_type type);
uint32_t ep_row_bytes(const struct ep_plan *plan, enum ep_type type);
uint32_t ep_scale_bytes(const struct ep_plan *plan, enum ep_type type); /* 0: it has none */
/* The type that rows are combined in. */
enum ep_type ep_combined(enum ep_type type);
enum strait_element ep_element(enum ep_type type);

/* ---- Routing and reference (ep_reference.c) ---------------------------------------------------------------------- */

/* Of all ranks: [ranks][tokens][topk]. */
struct ep_routing {
    int32_t *topk; /* -1: none */
    float *weights;
    uint64_t rows, selections; /* of the rank that receives most: tokens, and pairs of token and expert */
    uint64_t most_rows;        /* that a tensor of the layout has on any rank */
};

/* False: no memory. The same on all ranks. */
bool ep_routing_init(struct ep_routing *routing, const struct ep_plan *plan, const struct ep_row *row);
void ep_routing_fini(struct ep_routing *routing);

/* What a rank has for a token. */
void ep_fill_row(const struct ep_plan *plan, enum ep_type type, unsigned rank, uint32_t token, uint8_t *dst);
void ep_fill_scales(const struct ep_plan *plan, enum ep_type type, unsigned rank, uint32_t token, uint8_t *dst);

/* How many rows of what arrived at a rank are wrong. scales: NULL: there are none. */
uint64_t ep_wrong_rows(const struct ep_plan *plan, const struct ep_row *row, const struct ep_routing *routing,
                       unsigned rank, const uint8_t *rows, const uint8_t *scales);
/* How many sums of a rank's tokens are wrong, where experts return what they get. */
uint64_t ep_wrong_sums(const struct ep_plan *plan, const struct ep_row *row, const struct ep_routing *routing,
                       unsigned rank, const uint8_t *sums);

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* Where tensors are. Calls are complete when they return; those that return false have printed why. */
struct ep_memory {
    enum strait_ep_memory kind;
    bool (*count)(unsigned *ranks); /* as many as there are devices, where 0 are asked for */
    bool (*open)(unsigned rank);    /* in the rank's process */
    void *(*alloc)(uint64_t bytes); /* NULL: no room, which is not printed */
    void (*free)(void *memory);
    bool (*write)(void *to, const void *from, uint64_t bytes);
    bool (*read)(void *to, const void *from, uint64_t bytes);
    bool (*finish)(void); /* waits for what is under way */
    struct CUstream_st *(*stream)(void);
    const char *(*name)(void);
};

extern const struct ep_memory ep_host_memory;

/* ---- Between the processes --------------------------------------------------------------------------------------- */

enum ep_phase { EP_UPDATE, EP_DISPATCH, EP_COMBINE, EP_PHASES };
#define EP_GATHER_BYTES 65536u /* of a rank, while a group is made */
#define EP_NAME_BYTES   64u

struct ep_result {
    _Atomic uint64_t wrong; /* rows and sums, of all ranks */
    _Atomic uint32_t done;  /* ranks that finished the row */
    uint64_t rows, selections;
    /* Of all ranks to others, in the dispatches and combines that were checked and timed. */
    _Atomic uint64_t sent_bytes, raw_bytes;
    uint64_t arena_bytes;
    bool coded;
    char medium[EP_NAME_BYTES];
    uint64_t ns[]; /* [repeat][phase][rank], of one call */
};

struct ep_shared {
    struct ranks_barrier barrier;
    char device[256];
    size_t result_bytes;
    uint8_t gathered[RANKS_PROCESSES_MAX][EP_GATHER_BYTES];
    uint8_t results[];
};

struct ep_result *ep_result_of(const struct ep_shared *shared, unsigned row);
uint64_t *ep_ns_of(const struct ep_plan *plan, struct ep_result *result, unsigned repeat, enum ep_phase phase,
                   unsigned rank);

/* One rank (ep_rank.c): measures all rows together with the others. False: this or another rank failed; the error is on
 * stderr. */
bool ep_rank_run(const struct ep_plan *plan, struct ep_shared *shared, unsigned number);

/* The bench on that memory. */
int bench_ep_on(const struct ep_memory *memory, int argc, char **argv);

#endif
