/* The source's half of a leg: announces which of the pages that the sink wants are ready, encodes and sends them. */
#ifndef STRAIT_DAEMON_SOURCE_H
#define STRAIT_DAEMON_SOURCE_H

#include "daemon/exchange.h"

/* A chunk on its way out. */
struct inflight_chunk {
    struct source *source;
    uint64_t grant;
    struct arena *from; /* it is encoded in a slot of this arena of ours; NULL: straight into the peer's arena */
    uint32_t send_slot;
    enum gpu_path wire;
    struct gpu_ends ends; /* of a GPU link */
    uint64_t size, raw_bytes;
    uint64_t since;
    enum strait_mode mode;
    struct inflight_chunk *next;
};

struct source {
    struct node *node;
    struct offer *offer;
    uint64_t id; /* of the leg, drawn by the sink */
    struct epoch epoch;
    struct source_leg leg;
    struct segments segments;
    uint64_t bytes; /* bytes of the pages in them */
    struct wire_span *wanted;
    uint32_t wanted_count;
    struct peer *peer;
    struct sink *local;
    bool is_local;
    bool superseded; /* the sink asked again over another connection: how this leg ends does not count */
    struct inflight_chunk *flights;
    uint64_t queued_at;
    bool waiting; /* in exchange.encoding */
    struct source *next;
    struct source *closed_next;
    struct source *wprev, *wnext;
    UT_hash_handle hh; /* exchange.sources, by (peer, id) */
    struct source_key at;
};

#define ENCODING_JOBS_MAX 8u /* jobs that encode or copy at once: enough to keep the workers busy */

struct source *source_create(struct offer *offer, struct peer *peer, struct sink *local, uint64_t id,
                             const struct epoch *epoch, struct wire_span *wanted, uint32_t wanted_count);
void source_free(struct source *source);
bool source_apply(struct source *source, const struct leg_event *event);
void source_event(struct source *source, enum leg_event_type type, enum strait_reason reason);

/* source_messages.c: the request has met its offer: tells the sink what is ready of what it wants, and uses its open
 * grants for that or releases them. */
enum strait_reason source_bind(struct source *source, const struct open_grants *open);
/* `count` more segments of the offer, from `from` on, are ready: tells the sink about those that it wants. */
enum strait_reason source_more(struct source *source, uint32_t from, uint32_t count);

/* source_chunks.c */
void source_encodes(struct node *node); /* begins queued chunks, leg by leg */
void source_sent(struct node *node, uint64_t cookie, enum strait_status status);
/* A GPU link has ended: chunks on it will not arrive. */
void source_gpu_link_ended(struct node *node, struct peer *peer, struct gpu_ends ends);

#endif
