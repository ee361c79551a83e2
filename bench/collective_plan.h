/* The rows of `strait bench collective`, what a rank sends and receives in each, and the shared memory in which the
 * ranks, which are separate processes, leave their measurements. */
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

/* What a rank is doing, printed when it hangs. */
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
    _Atomic uint32_t phase, way, row; /* row: from 0, valid once the rank is at one */
};

struct collective_shared {
    _Atomic bool failed;              /* a rank has failed: the others give up when they notice */
    _Atomic uint32_t arrived, passed; /* of a barrier */
    coll_id ids[COLLECTIVE_WAYS];
    struct collective_place places[COLLECTIVE_RANKS_MAX];
    char gpu[128], nccl[256];
    int nccl_version, driver, runtime;
    size_t result_bytes;
    uint8_t results[];
};

/* Makes the shapes, then the values; links are not part of a row. False: failed, with the error on stderr. The caller
 * must call collective_plan_fini() either way. */
bool collective_plan_init(struct collective_plan *plan, const struct collective_options *options, unsigned ranks,
                          unsigned gpus);
void collective_plan_fini(struct collective_plan *plan);

struct collective_shape collective_shape_of(const struct collective_row *row, unsigned ranks);

/* Zeroed memory, shared with processes that this one forks. NULL: no memory, which was printed to stderr. */
struct collective_shared *collective_shared_create(const struct collective_plan *plan);
void collective_shared_destroy(struct collective_shared *shared, const struct collective_plan *plan);

struct collective_result *collective_result_of(const struct collective_shared *shared, unsigned row);
uint64_t *collective_ns_of(const struct collective_plan *plan, struct collective_result *result, unsigned repeat,
                           enum collective_way way, unsigned rank);

/* A barrier of all ranks. False: one has failed. */
bool collective_meet(struct collective_shared *shared, unsigned ranks);

#endif
