/* The choice of a mode.
 *
 * Chunks of a leg overlap: one is encoded while another travels. So a mode carries raw bytes as fast as the slower of
 * its two stages: the encoders (`encode` of one worker, times the workers) and the link (`wire` times the ratio of the
 * mode on this pool's pages). The mode with the largest of these minima is taken. Values not measured yet are assumed:
 * a slow link, the codec's usual ratios, an encoder that keeps up; so a cold start compresses, and the first chunks
 * provide the measurements.
 *
 * Pages that do not shrink go raw, and so do pages that the processor codes too slowly for the link. Raw chunks tell
 * nothing about the other modes, so every so often one chunk is coded anyway. */
#include "daemon/policy.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/node.h"
#include "daemon/session.h"

#define PROBE_CHUNKS 64u                /* where raw is better, one chunk in so many is coded: 1 to 2 % of the time */
#define WIRE_BYTES   (2u * 1024 * 1024) /* a sample of the link has at least so many bytes */
#define WIRE_NS      2000000u           /* and takes at least this long */
#define USUAL_WIRE   100e6
#define PEER_SAMPLES 8u
#define HOST_SAMPLES 16u          /* chunks by the host before GPU links are tried, */
#define LINK_SAMPLES 32u          /* each for so many chunks */
#define LINK_MARGIN  1.1          /* how much faster the host must be */
#define LINK_REST_NS 60000000000u /* a link that has lost is tried again after this */

static const double usual_ratio[POLICY_MODES] = {
    [STRAIT_MODE_RAW] = 1, [STRAIT_MODE_TOP16] = 1.33, [STRAIT_MODE_TIERED] = 1.48};
static const char *const mode_names[POLICY_MODES] = {
    [STRAIT_MODE_RAW] = "raw", [STRAIT_MODE_TOP16] = "top16", [STRAIT_MODE_TIERED] = "tiered"};

static enum strait_mode pinned_by_pool(uint32_t coding)
{
    switch (coding) {
    case STRAIT_CODING_RAW:
        return STRAIT_MODE_RAW;
    case STRAIT_CODING_TOP16:
        return STRAIT_MODE_TOP16;
    case STRAIT_CODING_TIERED:
        return STRAIT_MODE_TIERED;
    default:
        return STRAIT_MODE_AUTO;
    }
}

static enum strait_mode pinned_by_option(const char *coding)
{
    for (int mode = STRAIT_MODE_RAW; mode < (int)POLICY_MODES; mode++)
        if (strcmp(coding, mode_names[mode]) == 0)
            return (enum strait_mode)mode;
    return STRAIT_MODE_AUTO;
}

static enum strait_mode set_reason(struct policy *policy, enum strait_mode mode, const char *reason)
{
    snprintf(policy->reason, sizeof(policy->reason), "%s: %s", mode_names[mode], reason);
    return mode;
}

static double known_or(double measured, double usual)
{
    return measured > 0 ? measured : usual;
}

/* Raw bytes a second that a mode can carry. */
static double goodput(const struct policy_wire *wire, const struct policy_pool *pool, int mode, unsigned workers)
{
    double link = known_or(wire->rate, USUAL_WIRE) * known_or(pool->ratio[mode], usual_ratio[mode]);
    double coder = wire->encode[mode] * workers;
    return coder > 0 && coder < link ? coder : link;
}

static const char *name_of(const struct policy *policy, const struct policy_wire *wire)
{
    return wire == &policy->links[LINK_BY_NCCL]  ? "NCCL"
           : wire == &policy->links[LINK_BY_UCX] ? "UCX between GPUs"
                                                 : "link";
}

static enum strait_mode choose(struct policy *policy, const struct policy_wire *wire, unsigned workers,
                               const struct policy_pool *pool)
{
    enum strait_mode best = STRAIT_MODE_RAW;
    double most = 0;
    for (int mode = STRAIT_MODE_RAW; mode < (int)POLICY_MODES; mode++) {
        double rate = goodput(wire, pool, mode, workers);
        if (rate <= most * 1.01) /* not for a negligible gain */
            continue;
        most = rate;
        best = (enum strait_mode)mode;
    }
    snprintf(policy->reason, sizeof(policy->reason), "%s: %s %.2f GB/s%s, ratio %.2f, would carry %.2f GB/s",
             mode_names[best], name_of(policy, wire), known_or(wire->rate, USUAL_WIRE) * 1e-9,
             wire->rate > 0 ? "" : " (assumed)", known_or(pool->ratio[best], usual_ratio[best]), most * 1e-9);
    if (best == STRAIT_MODE_RAW && pool->chunks % PROBE_CHUNKS == 0)
        return STRAIT_MODE_TIERED;
    return best;
}

/* When encoders write into the other GPU's memory, encoder and link are one stage: a mode's rate is the one that its
 * chunks had. Each mode has a few chunks at first, and one in so many later on, so that changes are noticed. */
static enum strait_mode choose_for_peer(struct policy *policy, const struct policy_pool *pool)
{
    static const enum strait_mode modes[] = {STRAIT_MODE_TIERED, STRAIT_MODE_TOP16, STRAIT_MODE_RAW};
    const uint32_t count = sizeof(modes) / sizeof(modes[0]);
    enum strait_mode best = STRAIT_MODE_TIERED;
    for (uint32_t i = 0; i < count; i++) {
        if (policy->peer_samples[modes[i]] < PEER_SAMPLES)
            return set_reason(policy, modes[i], "into the peer's GPU, being measured");
        if (policy->peer_encode[modes[i]] > policy->peer_encode[best])
            best = modes[i];
    }
    snprintf(policy->reason, sizeof(policy->reason), "%s: into the peer's GPU, raw %.0f, top16 %.0f, tiered %.0f GB/s",
             mode_names[best], policy->peer_encode[STRAIT_MODE_RAW] * 1e-9,
             policy->peer_encode[STRAIT_MODE_TOP16] * 1e-9, policy->peer_encode[STRAIT_MODE_TIERED] * 1e-9);
    return pool->chunks % PROBE_CHUNKS == 0 ? modes[pool->chunks / PROBE_CHUNKS % count] : best;
}

/* Why no chunk can be coded that the peer could decode. NULL: it decodes by our set. GPUs have the tables of the set in
 * force only, processors those of all sets that were fetched. */
static const char *why_raw(const struct node *node, const struct peer *peer, bool to_gpu)
{
    const struct peer_use *use = peer->owner;
    if (node_codebook(node) == NULL)
        return "no codebook set is loaded";
    if (peer->codebook_matches || (use->codebooks.known && !to_gpu))
        return NULL;
    if (use->codebooks.known)
        return "GPUs of the peer have another codebook set";
    return peer->has_codebook ? "the peer has another codebook set" : "the peer has no codebook set";
}

enum strait_mode policy_mode(struct node *node, struct peer *peer, bool to_gpu, struct pool_ref *pool,
                             struct chunk_path path)
{
    struct policy *policy = &((struct peer_use *)peer->owner)->policy;
    const char *raw = why_raw(node, peer, to_gpu);
    pool->policy.chunks++;
    if (raw != NULL)
        return set_reason(policy, STRAIT_MODE_RAW, raw);
    enum strait_mode mode = pinned_by_pool(pool->pool->coding);
    if (mode != STRAIT_MODE_AUTO)
        return set_reason(policy, mode, "pinned by the pool");
    mode = pinned_by_option(node->options.coding);
    if (mode != STRAIT_MODE_AUTO)
        return set_reason(policy, mode, "pinned by the option coding");
    if (path.wire == WIRE_PEER)
        return choose_for_peer(policy, &pool->policy);
    if (path_is_link(path))
        return choose(policy, &policy->links[wire_link(path.wire)], 1, &pool->policy);
    if (peer->direct && pool->pool->devices != NULL) {
        /* Between a GPU and shared memory lies a bus that is far slower than the codec: pages that shrink are coded. */
        double ratio = known_or(pool->policy.ratio[STRAIT_MODE_TIERED], usual_ratio[STRAIT_MODE_TIERED]);
        if (ratio > 1.02 || pool->policy.chunks % PROBE_CHUNKS == 0)
            return set_reason(policy, STRAIT_MODE_TIERED, "the bus between GPU and shared memory");
        return set_reason(policy, STRAIT_MODE_RAW, "pages of the GPU do not shrink");
    }
    if (peer->direct)
        return set_reason(policy, STRAIT_MODE_RAW, "shared memory");
    return choose(policy, &policy->link, node->workers, &pool->policy);
}

/* ---- Measurements ------------------------------------------------------------------------------------------------ */

static void smooth(double *value, double sample)
{
    *value = *value == 0 ? sample : *value + (sample - *value) / 4;
}

static struct policy_wire *wire_of(struct policy *policy, struct chunk_path path)
{
    if (path_is_link(path))
        return &policy->links[wire_link(path.wire)];
    return path.wire == WIRE_PINNED ? &policy->pinned : &policy->link;
}

void policy_encoded(struct peer *peer, struct pool_ref *pool, enum strait_mode mode, struct chunk_path path,
                    const struct job_result *result)
{
    struct policy *policy = &((struct peer_use *)peer->owner)->policy;
    double *encode = path.wire == WIRE_PEER ? policy->peer_encode : wire_of(policy, path)->encode;
    if (result->reason != STRAIT_REASON_NONE || result->nanoseconds == 0 || result->bytes == 0)
        return;
    smooth(&encode[mode], (double)result->raw_bytes * 1e9 / (double)result->nanoseconds);
    policy->peer_samples[mode] += path.wire == WIRE_PEER;
    wire_of(policy, path)->mode = mode;
    wire_of(policy, path)->samples += path.wire != WIRE_PEER;
    smooth(&pool->policy.ratio[mode], (double)result->raw_bytes / (double)result->bytes);
}

void policy_sending(struct peer *peer, struct chunk_path path)
{
    struct policy_wire *w = wire_of(&((struct peer_use *)peer->owner)->policy, path);
    if (w->sending++ != 0)
        return;
    w->busy_since = uv_hrtime();
    w->busy_bytes = w->busy_raw = 0;
}

void policy_sent(struct peer *peer, struct chunk_path path, uint64_t bytes, uint64_t raw_bytes)
{
    struct policy_wire *w = wire_of(&((struct peer_use *)peer->owner)->policy, path);
    uint64_t now = uv_hrtime();
    w->sending--;
    w->busy_bytes += bytes;
    w->busy_raw += raw_bytes;
    uint64_t busy = now - w->busy_since;
    if (bytes == 0 || w->busy_bytes < WIRE_BYTES || busy < WIRE_NS)
        return;
    smooth(&w->rate, (double)w->busy_bytes * 1e9 / (double)busy);
    smooth(&w->raw_rate, (double)w->busy_raw * 1e9 / (double)busy);
    w->busy_since = now;
    w->busy_bytes = w->busy_raw = 0;
}

/* ---- A link between GPUs, or host memory ------------------------------------------------------------------------- */

/* Raw bytes a second: encoding and sending overlap. A chunk encoded straight into the peer's memory needs no
 * sending. */
static double rate_of(const struct policy_wire *wire, bool direct)
{
    const double encode = wire->encode[wire->mode];
    return direct || wire->raw_rate > encode ? encode : wire->raw_rate;
}

void policy_rates(const struct peer *peer, enum message_link_by by, double *host, double *link)
{
    const struct policy *policy = &((const struct peer_use *)peer->owner)->policy;
    *host = rate_of(peer->direct ? &policy->pinned : &policy->link, peer->direct);
    *link = rate_of(&policy->links[by], false);
}

bool policy_uses_link(const struct node *node, const struct peer *peer, enum message_link_by by)
{
    const struct policy *policy = &((const struct peer_use *)peer->owner)->policy;
    return !node->wires.measured || (policy->trial.began && !policy->trial.lost[by]);
}

/* Each link is tried before the best one is chosen. */
double policy_rank(const struct peer *peer, enum message_link_by by)
{
    const struct policy *policy = &((const struct peer_use *)peer->owner)->policy;
    const double rate = rate_of(&policy->links[by], false);
    if (policy->trial.lost[by])
        return 0;
    return policy->links[by].samples < LINK_SAMPLES || rate == 0 ? INFINITY : rate;
}

/* Compares a link with host memory. True: it is used no longer, or tried again. */
static bool compare_link(struct policy *policy, const struct peer *peer, enum message_link_by by)
{
    double host, link;
    const uint64_t now = uv_hrtime();
    if (policy->trial.lost[by] && now - policy->trial.lost_at[by] < LINK_REST_NS)
        return false;
    policy_rates(peer, by, &host, &link);
    if (!policy->trial.lost[by] &&
        (policy->links[by].samples < LINK_SAMPLES || link == 0 || host <= link * LINK_MARGIN))
        return false;
    policy->trial.lost[by] = !policy->trial.lost[by];
    policy->trial.lost_at[by] = now;
    policy->links[by].samples = 0;
    return true;
}

/* The host is measured first, because it is available first. */
bool policy_compare_links(const struct node *node, struct peer *peer)
{
    struct policy *policy = &((struct peer_use *)peer->owner)->policy;
    bool changed = false;
    if (!node->wires.measured)
        return false;
    if (!policy->trial.began)
        return policy->trial.began = policy->link.samples + policy->pinned.samples >= HOST_SAMPLES;
    for (int by = 0; by < LINK_BY_COUNT; by++)
        changed |= compare_link(policy, peer, (enum message_link_by)by);
    return changed;
}
