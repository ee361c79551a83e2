/* The rows of `strait bench collective`, what of each a rank sends and receives, and where the ranks, which are
 * processes of their own, leave what they measured. */
#ifndef STRAIT_BENCH_COLLECTIVE_PLAN_H
#define STRAIT_BENCH_COLLECTIVE_PLAN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "bench/collective_options.h"
#include "bench/collective_values.h"
#include "bench/collective_wire.h"

/* What is compared. */
enum collective_way { COLLECTIVE_PLAIN, COLLECTIVE_STRAIT, COLLECTIVE_WAYS };

struct collective_row {
    enum collective_data data;
    enum collective_type type;
    enum collective_op op;
    uint64_t size; /* as asked for */
};

/* Sizes are multiples of 16 for each rank: `bytes` is what of `size` is left then, and what rates are made of. */
struct collective_shape {
    uint64_t bytes, send_bytes, receive_bytes;
    uint64_t handed; /* bytes that a rank hands to NCCL for others, in messages to each or one to all */
    uint64_t count;  /* NCCL's argument */
    double bus;      /* bus bandwidth by algorithm bandwidth, as nccl-tests has it */
    bool reduces;
    unsigned slots; /* buffers that take turns, so that small ones do not stay in the caches */
};

struct collective_plan {
    const struct collective_options *options;
    unsigned ranks;
    struct collective_row *rows;
    unsigned row_count;
    struct collective_values values[COLLECTIVE_DATAS][COLLECTIVE_TYPES];
    uint64_t send_bytes, receive_bytes; /* of all slots, of the largest rows */
};

/* ---- Between the processes --------------------------------------------------------------------------------------- */

struct collective_result {
    _Atomic uint64_t wrong; /* 16-byte pieces that are not as they have to be, of all ranks and repeats */
    _Atomic uint32_t done;  /* ranks that came to its end */
    uint32_t iterations;
    struct collective_wire wire;
    uint64_t ns[]; /* [repeat][way][rank], of one call; single ones behind the repeats */
};

/* What a rank does, told when it comes to no end. */
enum collective_phase {
    COLLECTIVE_OPENING,
    COLLECTIVE_CONNECTING,
    COLLECTIVE_WARMING,
    COLLECTIVE_MEASURING,
    COLLECTIVE_CHECKING,
    COLLECTIVE_ENDING,
    COLLECTIVE_ENDED,
};

struct collective_place {
    _Atomic uint32_t phase, way, row; /* row: from 0, once it is at one */
};

struct collective_shared {
    _Atomic bool failed;              /* a rank has: the others give up when they notice */
    _Atomic uint32_t arrived, passed; /* of a barrier */
    coll_id ids[COLLECTIVE_WAYS];
    struct collective_place places[COLLECTIVE_RANKS_MAX];
    char gpu[128], nccl[256];
    int nccl_version, driver, runtime;
    size_t result_bytes;
    uint8_t results[];
};

/* Shapes and values, in this order: links are not of a row. False, which stderr has been told. The caller must
 * collective_plan_fini() it either way. */
bool collective_plan_init(struct collective_plan *plan, const struct collective_options *options, unsigned ranks);
void collective_plan_fini(struct collective_plan *plan);

struct collective_shape collective_shape_of(const struct collective_row *row, unsigned ranks);

/* Zeroed, and shared with processes that this one forks. NULL, which stderr has been told: no memory. */
struct collective_shared *collective_shared_create(const struct collective_plan *plan);
void collective_shared_destroy(struct collective_shared *shared, const struct collective_plan *plan);

struct collective_result *collective_result_of(const struct collective_shared *shared, unsigned row);
uint64_t *collective_ns_of(const struct collective_plan *plan, struct collective_result *result, unsigned repeat,
                           enum collective_way way, unsigned rank);

/* Until all ranks are here. False: one has failed. */
bool collective_meet(struct collective_shared *shared, unsigned ranks);

#endif
