/* Compressed operations: deciding about them, running them in groups, and running them with overlap. */
#ifndef STRAIT_COLLECTIVE_ENGINE_OP_H
#define STRAIT_COLLECTIVE_ENGINE_OP_H

#include <stdbool.h>

#include "collective/engine/ccomm.h"
#include "collective/engine/plan.h"
#include "collective/api.h"

/* ---- decide.c ---------------------------------------------------------------------------------------------------- */

bool op_decide(struct coll_ccomm *ccomm, const struct coll_call *call, struct coll_op *op, const char **reason);
void op_forget(const struct coll_op *ops, unsigned count);

/* From which size on operations outside of groups are compressed, among powers of two: those of STRAIT_COLL_TABLE, and
 * else what follows from what was measured. */
struct coll_sizes op_size_table(struct coll_ccomm *ccomm);

/* ---- Staging memory ---------------------------------------------------------------------------------------------- */

/* Memory that messages are encoded into and received in. There is one for all calls outside of graphs, and one for
 * every captured graph, as graphs may run beside other operations. Within one, memory is used in the order of its
 * operations. */

struct coll_staging {
    struct coll_staging *next;
    uint64_t capture; /* 0: for calls outside of graphs */
    uint8_t *memory;
    size_t size;
    bool hosted;      /* `memory` is pinned host memory, as the GPU had none */
    size_t suspended; /* bytes that staging_suspend has freed; 0: none */
    struct outgrown {
        void *memory;
        size_t size;
        bool hosted;
    } * outgrown; /* memory that was too small; running work may still use it */
    unsigned outgrown_count;
    gpu_event last; /* for a graph, if `used`: end of its work so far */
    bool used;
    /* A second stream, for overlap and for groups with sends. */
    coll_stream side;
    gpu_event fork, join, arrived;
    /* For the group being prepared: its ops, and the memory they take, which begins with their jobs. */
    uint32_t op_count;
    size_t reserved;
};

/* The staging memory for a stream; NULL: no memory. The one for calls outside of graphs exists from the start, because
 * the driver may block a thread that makes a stream while another thread waits for a GPU, which may be waiting for this
 * very rank. */
struct coll_staging *staging_get(struct staging_list *list, const struct gpu_ops *gpu, coll_stream stream);

void staging_end(struct staging_list *list, const struct gpu_ops *gpu);

/* Frees the memory for calls outside of graphs, none of which runs, and allocates as much again. On the communicator's
 * GPU. */
void staging_suspend(struct staging_list *list, const struct gpu_ops *gpu);
void staging_resume(struct staging_list *list, const struct gpu_ops *gpu);
/* Bytes of GPU memory, of graphs or for calls outside of them; what is suspended counts. And bytes of host memory in
 * its place. Any thread. */
uint64_t staging_bytes(const struct staging_list *list, bool graphs);
uint64_t staging_hosted(const struct staging_list *list);

/* ---- op.c -------------------------------------------------------------------------------------------------------- */

/* Operations of a communicator run one after another, whatever streams and graphs they are in, as NCCL's parts of them
 * do: they use the same rings, and those of one staging memory the same memory. */

/* Makes the stream wait for the event that was recorded last on the communicator. */
bool order_follow(struct coll_ccomm *ccomm, const struct coll_staging *staging, coll_stream stream);
/* Marks a whole operation, for all later ones. */
bool order_end(struct coll_ccomm *ccomm, struct coll_staging *staging, coll_stream stream);

/* As coll_engine_ops.join_streams, on the communicator's GPU. */
bool streams_join(struct coll_ccomm *ccomm, const coll_stream *streams, unsigned count);

/* The kernels of exchange.h, which move the values of messages that overflow, and the points at which they are
 * launched. One launch serves all ops of a staging memory, which are under way together; `last` is the last of these
 * ops. */

/* Behind all checks. */
bool overflow_finish(const struct coll_op *last, bool forked);

/* Launches work for a phase of an op, on the current device, which must be the communicator's. The
 * caller sets the order (op.c, overlap.c). False: it could not be launched. */

/* The plan of the phase that the op is in. */
static inline const struct plan *launch_plan(const struct coll_op *op)
{
    return &op->of[op->phase].plan;
}

/* Copies bytes at odd addresses to where they can be coded, of which the plan is told, and back. */
bool launch_odd_in(struct coll_op *op);
bool launch_odd_out(const struct coll_op *op);
/* Encodes messages and writes their heads. */
bool launch_encode(const struct coll_op *op);
/* Hands NCCL what it moves, on `stream`, in a group that is open. */
coll_result launch_move(const struct coll_op *op, coll_stream stream);
/* Only the values behind the parts of an all_reduce, which are not coded; the same. */
coll_result launch_rest(const struct coll_op *op, coll_stream stream);
/* Checks which messages overflow. */
bool launch_check(const struct coll_op *op);
/* Decodes the others. */
bool launch_decode(const struct coll_op *op);
/* Copies what the rank has for itself, for the whole phase even if a part is left uncompressed, except for a
 * broadcast's; at any time. */
bool launch_own(const struct coll_op *op);
/* Adds up, when everything to be added has arrived. */
bool launch_sums(const struct coll_op *op);

/* The op's part of the staging memory; the parameters of the call's sum of so many sources, except for their addresses.
 */
uint8_t *launch_memory(const struct coll_op *op);
struct coll_reduce launch_sum_of(const struct coll_op *op, const struct coll_call *call, uint32_t sources);

/* Fails the communicator, for the reason `why`. */
coll_result launch_failed(const struct coll_op *op, const char *why);

/* The three parts of a phase (collective/engine.h). */

/* Gives each op its own place in the staging memory of its stream; the memory has to be grown then. */
coll_result ops_reserve(struct coll_op *ops, unsigned count);
/* Grows it. If the GPU has no memory for that, host memory is used, and all ranks go raw soon. False: there is none
 * either. */
bool op_grow_staging(const struct coll_op *op);

coll_result ops_encode(struct coll_op *ops, unsigned count);
coll_result ops_move(struct coll_op *ops, unsigned count);
coll_result ops_decode(struct coll_op *ops, unsigned count);

/* ---- overlap.c --------------------------------------------------------------------------------------------------- */

/* Uncompressed head and tail of an operation outside of groups, so that coding overlaps with moving where NCCL moves:
 * the head moves while the values behind it are encoded, and the tail while the values before it are decoded. That
 * costs wire bytes, so both are only as long as coding takes. A head and a tail cost NCCL one operation each. */

/* Sets how many pages of each message of the op's first phase head and tail take, by the size and the link; 0 and 0:
 * none. A function of what all ranks hold alike. */
void overlap_split(const struct coll_ccomm *ccomm, const struct plan *plan, struct coll_op *op);

/* All three parts of a phase of the op (collective/engine.h). */
coll_result overlap_run(struct coll_op *op);

/* Passes an op that is left raw on to NCCL, and times it. */
coll_result overlap_left_raw(struct coll_op *op);

#endif
