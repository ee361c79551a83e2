/* How chunks to a peer are coded: pinned by an option or by the pool, else what its link makes worth while. */
#ifndef STRAIT_DAEMON_POLICY_H
#define STRAIT_DAEMON_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/codec.h>

#define POLICY_MODES (STRAIT_MODE_TIERED + 1) /* enum strait_mode is the index; AUTO's place is unused */

struct node;
struct peer;
struct pool_ref;
struct job_result;

/* What is known of a peer's link and of what coding costs here. Bytes a second, smoothed; 0: not measured yet. */
struct policy {
    double wire;                 /* coded bytes, while chunks were under way */
    double encode[POLICY_MODES]; /* raw bytes, one worker */
    double far[POLICY_MODES];    /* raw bytes, a GPU into the memory of the peer's */
    uint32_t far_samples[POLICY_MODES];
    uint32_t sending;            /* chunks under way */
    uint64_t busy_since, busy_bytes;
    char reason[128]; /* of the latest decision, for people */
};

/* What is known of a pool's pages: how they shrink. */
struct policy_pool {
    double ratio[POLICY_MODES]; /* raw / coded; 0: not measured yet */
    uint32_t chunks;            /* decided so far */
};

/* The mode for the next chunk from this pool to this peer; `far`: into the memory of its GPU. */
enum strait_mode policy_mode(struct node *node, struct peer *peer, struct pool_ref *pool, bool far);

/* What was measured: a chunk was encoded; one was given to the link; one was carried (`bytes` 0: it was not). */
void policy_encoded(struct peer *peer, struct pool_ref *pool, enum strait_mode mode, bool far,
                    const struct job_result *result);
void policy_sending(struct peer *peer);
void policy_sent(struct peer *peer, uint64_t bytes);

#endif
