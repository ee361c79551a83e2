/* Shared by the files of the source's half of a leg: source.c carries out the actions of its state machine by these. */
#ifndef STRAIT_DAEMON_SOURCE_PRIVATE_H
#define STRAIT_DAEMON_SOURCE_PRIVATE_H

#include "daemon/source.h"

/* ---- source_messages.c ------------------------------------------------------------------------------------------- */

void source_send_segments(struct source *source, const struct leg_action *action);
void source_send_released(struct source *source, uint64_t grant);
void source_send_end(struct source *source, enum strait_reason reason);

/* ---- source_chunks.c --------------------------------------------------------------------------------------------- */

/* How many units from `first` on make one chunk for this slot, as the sink would cut it. 0: no page fits. */
uint32_t source_cut(const struct source *source, uint32_t slot, uint32_t first);
void source_encode_chunk(struct source *source, const struct leg_grant *grant);   /* ENCODED follows, */
void source_transmit_chunk(struct source *source, const struct leg_grant *grant); /* and SENT */
void source_end_flight(struct source *source, uint64_t grant);                    /* frees the chunk's memory */

#endif
