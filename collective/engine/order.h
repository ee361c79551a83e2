/* Operations of a communicator run one after another, whatever streams and graphs they are in, as NCCL's parts of them
 * do: they use the same rings, and those of one staging memory the same memory. */
#ifndef STRAIT_COLLECTIVE_ENGINE_ORDER_H
#define STRAIT_COLLECTIVE_ENGINE_ORDER_H

#include <stdbool.h>

#include "collective/nccl_types.h"

struct coll_member;
struct coll_staging;

/* What is queued next on the stream runs after what was marked last. */
bool order_follow(struct coll_member *member, const struct coll_staging *staging, coll_stream stream);
/* order_mark marks what is queued on the stream so far, for other steps of its group; order_end marks a whole
 * operation, for all later ones. */
bool order_mark(struct coll_member *member, struct coll_staging *staging, coll_stream stream);
bool order_end(struct coll_member *member, struct coll_staging *staging, coll_stream stream);

/* As coll_engine_ops.tie, on the member's GPU. */
bool order_tie(struct coll_member *member, const coll_stream *streams, unsigned count);

#endif
