/* Shared by the files of the sink's half of a leg: sink.c carries out the actions of its state machine by these. */
#ifndef STRAIT_DAEMON_SINK_PRIVATE_H
#define STRAIT_DAEMON_SINK_PRIVATE_H

#include "daemon/sink.h"

/* ---- sink_messages.c --------------------------------------------------------------------------------------------- */

void sink_send_request(struct sink *sink, const struct leg_action *action);
void sink_send_grant(struct sink *sink, const struct leg_grant *grant);
void sink_send_revoke(struct sink *sink, uint64_t grant);
void sink_send_end(struct sink *sink, enum strait_reason reason);

/* ---- sink_grants.c ----------------------------------------------------------------------------------------------- */

/* Adds slots for open grants to the event: as many as the sink's first chunks can use and nobody else needs. */
void sink_open(struct sink *sink, struct leg_event *start);
void sink_free_slot(struct sink *sink, const struct leg_grant *grant);

/* ---- sink_chunks.c ----------------------------------------------------------------------------------------------- */

void sink_decode_chunk(struct sink *sink, const struct leg_grant *grant); /* an arrived chunk; sink_copied follows */

#endif
