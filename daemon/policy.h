/* How chunks to a peer are coded: fixed by an option or by the pool, else chosen by what pays on its link. */
#ifndef STRAIT_DAEMON_POLICY_H
#define STRAIT_DAEMON_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/codec.h>

#include "daemon/base/metrics.h"
#include "daemon/coding_runs.h"
#include "proto/message.h"

struct node;
struct peer;
struct pool_ref;
struct job_result;

/* Measurements of a wire and of the cost of coding for it here. Bytes a second, smoothed; 0: not measured yet. */
struct policy_wire {
    double rate;                               /* coded bytes, over the time in which chunks were under way */
    double raw_rate;                           /* raw bytes of the same chunks */
    double encode[POLICY_TYPES][POLICY_MODES]; /* raw bytes, by one worker or by the GPU */
    uint32_t sending;                          /* chunks under way */
    uint64_t busy_since, busy_bytes, busy_raw;
    enum strait_element element; /* of the latest chunk that was encoded, */
    enum strait_mode mode;       /* and how; */
    uint32_t samples;            /* how many there were */
};

/* State of the policy for a peer. */
struct policy {
    struct policy_wire link, pinned;         /* the connection's; and GPUs' chunks on it, shared */
    struct policy_wire links[LINK_BY_COUNT]; /* GPU links */
    struct coding_runs runs;                 /* legs between pages of the host, over a network */
    struct { /* coded bytes, and the time in which a GPU encoded them into the memory of a peer's; the latest count most
              */
        double bytes, ns;
        uint32_t samples;
    } peer[POLICY_TYPES][POLICY_MODES];
    struct { /* gpu-wires=auto: GPU links compared with host memory */
        bool began;
        bool lost[LINK_BY_COUNT];        /* the host was faster, */
        uint64_t lost_at[LINK_BY_COUNT]; /* uv_hrtime */
    } trial;
    char reason[192]; /* of the latest decision, for people */
};

/* How well a pool's pages compress, by the type of their values. */
struct policy_pool {
    struct {
        double ratio[POLICY_MODES]; /* raw / coded; 0: not measured yet */
        uint32_t chunks;            /* decided so far */
    } types[POLICY_TYPES];
};

/* The mode for the next chunk, of values of this type, from this pool to this peer, whose pool has pages on a GPU
 * (to_gpu) or has not. Never one that the peer does not decode. `leg_bytes`: of all pages of its leg. */
enum strait_mode policy_mode(struct node *node, struct peer *peer, bool to_gpu, struct pool_ref *pool,
                             enum strait_element element, struct chunk_path path, uint64_t leg_bytes);
/* Another codebook set is in force: what was measured with the old one is forgotten. */
void policy_codebook_changed(struct node *node);

/* Reports events to measure: a chunk was encoded; one was given to the link; one was carried (`bytes` 0: it was
 * not). */
void policy_encoded(struct peer *peer, struct pool_ref *pool, enum strait_element element, enum strait_mode mode,
                    struct chunk_path path, uint64_t leg_bytes, const struct job_result *result);
void policy_sending(struct peer *peer, struct chunk_path path);
void policy_sent(struct peer *peer, struct chunk_path path, uint64_t bytes, uint64_t raw_bytes);
/* The same of a chunk that was carried, of a leg that is timed; and whether the chunks of such a leg are under way. */
bool policy_times(const struct peer *peer, struct chunk_path path, uint64_t leg_bytes);
void policy_carried(struct peer *peer, enum strait_element element, enum strait_mode mode, uint64_t raw_bytes);
void policy_leg(struct peer *peer, bool under_way);

/* gpu-wires=auto: do chunks for GPUs that cannot be stored to go by such a GPU link rather than by host memory?
 * policy_judge is called now and then: has that changed? */
bool policy_uses_link(const struct node *node, const struct peer *peer, enum message_link_by by);
bool policy_compare_links(const struct node *node, struct peer *peer);
/* Of several links that are up, the one with the highest rank is used. */
double policy_rank(const struct peer *peer, enum message_link_by by);
/* Raw bytes a second by the host, and by such a link; 0: not measured. */
void policy_rates(const struct peer *peer, enum message_link_by by, double *host, double *link);

#endif
