/* What the files of the sink's half of a leg share: sink.c carries its machine's actions out by these. */
#ifndef STRAIT_DAEMON_SINK_PRIVATE_H
#define STRAIT_DAEMON_SINK_PRIVATE_H

#include "daemon/sink.h"

/* ---- sink_messages.c --------------------------------------------------------------------------------------------- */

void sink_send_request(struct sink *sink, const struct leg_grant *open);
void sink_send_grant(struct sink *sink, const struct leg_grant *grant);
void sink_send_revoke(struct sink *sink, uint64_t grant);
void sink_send_end(struct sink *sink, enum strait_reason reason);

/* ---- sink_grants.c ----------------------------------------------------------------------------------------------- */

/* Is there room for a grant before it is known what is ready? Only where nobody misses the slot. */
struct receive_arena *sink_may_open(const struct sink *sink);
uint32_t sink_take_slot(struct sink *sink, struct receive_arena *arena); /* for its next grant; there must be one */
void sink_free_slot(struct sink *sink, const struct leg_grant *grant);

/* ---- sink_chunks.c ----------------------------------------------------------------------------------------------- */

void sink_decode_chunk(struct sink *sink, const struct leg_grant *grant); /* which has arrived; sink_copied follows */

#endif
