/* Shared by the files of the sink's half of a leg: sink.c carries out the actions of its state machine by these. */
#ifndef STRAIT_DAEMON_SINK_PRIVATE_H
#define STRAIT_DAEMON_SINK_PRIVATE_H

#include "daemon/sink.h"

/* ---- sink_messages.c --------------------------------------------------------------------------------------------- */

void sink_send_request(struct sink *sink, const struct leg_grant *open);
void sink_send_grant(struct sink *sink, const struct leg_grant *grant);
void sink_send_revoke(struct sink *sink, uint64_t grant);
void sink_send_end(struct sink *sink, enum strait_reason reason);

/* ---- sink_grants.c ----------------------------------------------------------------------------------------------- */

/* The arena for a grant whose units are not known yet; NULL: none. Only where nobody else needs the slot. */
struct receive_arena *sink_may_open(const struct sink *sink);
uint32_t sink_take_slot(struct sink *sink, struct receive_arena *arena); /* for its next grant; there must be one */
void sink_free_slot(struct sink *sink, const struct leg_grant *grant);

/* ---- sink_chunks.c ----------------------------------------------------------------------------------------------- */

void sink_decode_chunk(struct sink *sink, const struct leg_grant *grant); /* an arrived chunk; sink_copied follows */

#endif
