/* The choice of a mode.
 *
 * Chunks of a leg overlap: one is encoded while another travels. So a mode carries raw bytes as fast as the slower of
 * its two stages: the encoders (`encode` of one worker, times the workers) and the link (`wire` times the ratio of the
 * mode on this pool's pages). The mode with the largest of these minima is taken. Values not measured yet are assumed:
 * a slow link, the codec's usual ratios, an encoder that keeps up; so a cold start compresses, and the first chunks
 * provide the measurements.
 *
 * What can be measured depends on the type of the values: FP16 takes twice the time of BF16, and shrinks less. So
 * ratios and speeds are kept by type and mode.
 *
 * What no stage tells is what processors do that serve all of them: the decoders of a sink on the same host, or the
 * network of the kernel. So whole legs over a network are timed, by runs of chunks of one mode (coding_runs.h), and
 * what a mode was measured to carry that way counts in place of the minimum above.
 *
 * Pages that do not shrink go raw, and so do pages that the processor codes too slowly for the link. Raw chunks tell
 * nothing about the other modes, so every so often one chunk is coded anyway. In the same way `base` is tried beside
 * the tables: a codebook set that does not fit the pages shows by its ratio, and `base` needs none. */
#include "daemon/policy.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "daemon/node.h"
#include "daemon/session.h"
#include "internal/element.h"
#include "kernels/device_modes.h"

#define PROBE_CHUNKS   64u                /* where raw is better, one chunk in so many is coded: 1 to 2 % of the time */
#define OTHER_CHUNKS   256u               /* where a coding is better, one chunk in so many has another one */
#define WIRE_BYTES     (2u * 1024 * 1024) /* a sample of the link has at least so many bytes */
#define WIRE_NS        2000000u           /* and takes at least this long */
#define USUAL_WIRE     100e6
#define LEAST_GAIN     1.01 /* for less, no other mode is taken */
#define PEER_SAMPLES   8u
#define PEER_LEG_BYTES (128ull << 20) /* in smaller legs, launches take much of the time of encoders */
#define PEER_FADES     0.95           /* what is left of them with the next chunk */
#define PROBE_RUN      4u             /* chunks of such a leg, */
#define PROBE_RUNS     64u            /* one in so many, that have another mode: half a percent of the time */
#define HOST_SAMPLES   16u            /* chunks by the host before GPU links are tried, */
#define LINK_SAMPLES   32u            /* each for so many chunks */
#define LINK_MARGIN    1.1            /* how much faster the host must be */
#define LINK_REST_NS   60000000000u   /* a link that has lost is tried again after this */

static const char *const mode_names[POLICY_MODES] = {
    [STRAIT_MODE_RAW] = "raw",   [STRAIT_MODE_TOP16] = "top16", [STRAIT_MODE_TIERED] = "tiered",
    [STRAIT_MODE_BASE] = "base", [STRAIT_MODE_SPLIT] = "split", [STRAIT_MODE_PARTS] = "parts",
};

/* ---- What a chunk can be coded by -------------------------------------------------------------------------------- */

#define BLOCK(name) (1u << STRAIT_BLOCK_##name)

/* The modes of each type besides RAW; of two that carry as much the first is taken. */
static const struct coder {
    enum strait_element element;
    enum strait_mode mode;
    uint32_t blocks; /* modes of blocks that a decoder must know */
    double ratio;    /* usually */
    bool tried;      /* now and then, where another mode is better */
} coders[] = {
    {STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED, BLOCK(TIERED), 1.48, true},
    {STRAIT_ELEMENT_BF16, STRAIT_MODE_TOP16, BLOCK(TOP16) | BLOCK(TOP16_ESCAPES), 1.33, false},
    {STRAIT_ELEMENT_BF16, STRAIT_MODE_BASE, BLOCK(BASE), 1.47, true},
    {STRAIT_ELEMENT_FP16, STRAIT_MODE_PARTS, BLOCK(PARTS), 1.16, true},
    {STRAIT_ELEMENT_FP16, STRAIT_MODE_SPLIT, BLOCK(SPLIT), 1.16, true},
    {STRAIT_ELEMENT_FP16, STRAIT_MODE_BASE, BLOCK(SPLIT), 1.16, true},
    {STRAIT_ELEMENT_FP32, STRAIT_MODE_PARTS, BLOCK(PARTS), 1.19, true},
    {STRAIT_ELEMENT_FP32, STRAIT_MODE_SPLIT, BLOCK(SPLIT) | BLOCK(FP32Z), 1.19, true},
    {STRAIT_ELEMENT_FP32, STRAIT_MODE_BASE, BLOCK(SPLIT) | BLOCK(FP32Z), 1.19, true},
    {STRAIT_ELEMENT_FP8_E4M3, STRAIT_MODE_BASE, BLOCK(FP8), 1.19, true},
    {STRAIT_ELEMENT_FP8_E5M2, STRAIT_MODE_BASE, BLOCK(FP8), 1.40, true},
};

static const struct coder raw_coder = {.mode = STRAIT_MODE_RAW, .ratio = 1};

/* A chunk to be coded, and what is known about that. */
struct choice {
    struct policy *policy;
    const struct policy_pool *pool;
    enum strait_element element;
    const struct coder *list[1 + sizeof(coders) / sizeof(coders[0])]; /* RAW, then what the peer can decode */
    uint32_t count;
    const char *why; /* added to the reason: why others are left out; NULL: nothing is added */
    char poor[64];
};

/* Why no tables can be used. NULL: the peer decodes by our set. GPUs have the tables of the set in force only,
 * processors those of all sets that were fetched. */
static const char *why_no_tables(const struct node *node, const struct peer *peer, bool to_gpu)
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

/* Whether both sides know these block modes, in the memory that the pages are in. */
static bool both_know(const struct peer *peer, bool to_gpu, const struct pool_ref *pool, uint32_t blocks)
{
    const bool from_gpu = pool->pool->devices != NULL;
    const uint32_t by_gpu = to_gpu ? (blocks & BLOCKS_TOLD_BY_GPUS) << BLOCKS_BY_GPUS : 0;
    return ((blocks | by_gpu) & ~peer->block_modes) == 0 && (!from_gpu || (blocks & ~DEVICE_BLOCK_MODES) == 0);
}

static struct choice choice_of(const struct node *node, const struct peer *peer, bool to_gpu,
                               const struct pool_ref *pool, enum strait_element element)
{
    struct choice c = {.policy = &((struct peer_use *)peer->owner)->policy,
                       .pool = &pool->policy,
                       .element = element,
                       .list = {&raw_coder},
                       .count = 1};
    const char *tables = why_no_tables(node, peer, to_gpu);
    bool known = false;
    for (uint32_t i = 0; i < sizeof(coders) / sizeof(coders[0]); i++) {
        const struct coder *coder = &coders[i];
        if (coder->element != element)
            continue;
        known = true;
        if (!both_know(peer, to_gpu, pool, coder->blocks))
            continue;
        if (tables != NULL && element_uses_tables(element, coder->mode))
            c.why = tables;
        else
            c.list[c.count++] = coder;
    }
    if (c.count == 1 && c.why == NULL)
        c.why = known ? "the peer's release decodes none of its modes" : "values of this type are not coded";
    return c;
}

static const struct coder *offered(const struct choice *c, enum strait_mode mode)
{
    for (uint32_t i = 0; i < c->count; i++)
        if (c->list[i]->mode == mode)
            return c->list[i];
    return NULL;
}

/* ---- Reasons ----------------------------------------------------------------------------------------------------- */

static void __attribute__((format(printf, 3, 4)))
set_reason(const struct choice *c, const struct coder *coder, const char *format, ...)
{
    char *text = c->policy->reason;
    const size_t size = sizeof(c->policy->reason);
    va_list args;
    int used =
        snprintf(text, size, "%s%s%s: ", mode_names[coder->mode], c->element != STRAIT_ELEMENT_BF16 ? " of " : "",
                 c->element != STRAIT_ELEMENT_BF16 ? element_name(c->element) : "");
    va_start(args, format);
    used += vsnprintf(text + used, size - (size_t)used, format, args);
    va_end(args);
    if (c->why != NULL && used > 0 && (size_t)used < size)
        snprintf(text + used, size - (size_t)used, "; %s", c->why);
}

/* ---- Pinned ------------------------------------------------------------------------------------------------------ */

_Static_assert((int)STRAIT_CODING_RAW == (int)STRAIT_MODE_RAW && (int)STRAIT_CODING_PARTS == (int)STRAIT_MODE_PARTS,
               "codings are the codec's modes");

static enum strait_mode pinned_by_option(const char *coding)
{
    for (int mode = STRAIT_MODE_RAW; mode < (int)POLICY_MODES; mode++)
        if (strcmp(coding, mode_names[mode]) == 0)
            return (enum strait_mode)mode;
    return STRAIT_MODE_AUTO;
}

/* The pinned mode as the type has it: TIERED and SPLIT are one, and stand for TOP16 where there is none. Where no
 * tables can be used, BASE takes their place, and that of PARTS where a type or the peer has none. */
static const struct coder *pinned_coder(const struct choice *c, enum strait_mode mode)
{
    const bool by_tables = mode == STRAIT_MODE_TOP16 || mode == STRAIT_MODE_TIERED || mode == STRAIT_MODE_SPLIT;
    if (by_tables && c->element != STRAIT_ELEMENT_BF16)
        mode = STRAIT_MODE_SPLIT;
    else if (mode == STRAIT_MODE_SPLIT)
        mode = STRAIT_MODE_TIERED;
    const struct coder *coder = offered(c, mode);
    if (coder == NULL && mode != STRAIT_MODE_RAW)
        coder = offered(c, STRAIT_MODE_BASE);
    return coder != NULL ? coder : &raw_coder;
}

/* ---- Measured ---------------------------------------------------------------------------------------------------- */

static double known_or(double measured, double usual)
{
    return measured > 0 ? measured : usual;
}

static double ratio_of(const struct choice *c, const struct coder *coder)
{
    return known_or(c->pool->types[c->element].ratio[coder->mode], coder->ratio);
}

/* Raw bytes a second that a mode can carry. Over the bus between a GPU and shared memory (no wire), which is far slower
 * than the codec, only the ratio counts. */
static double goodput(const struct choice *c, const struct coder *coder, const struct policy_wire *wire,
                      unsigned workers)
{
    if (wire == NULL)
        return ratio_of(c, coder);
    const double link = known_or(wire->rate, USUAL_WIRE) * ratio_of(c, coder);
    const double encoders = wire->encode[c->element][coder->mode] * workers;
    return encoders > 0 && encoders < link ? encoders : link;
}

/* Of the modes that are tried now and then, another one than the best; NULL: there is none. */
static const struct coder *another(const struct choice *c, const struct coder *best, uint32_t turn)
{
    const struct coder *others[sizeof(coders) / sizeof(coders[0])];
    uint32_t count = 0;
    for (uint32_t i = 1; i < c->count; i++)
        if (c->list[i]->tried && c->list[i] != best)
            others[count++] = c->list[i];
    return count != 0 ? others[turn % count] : NULL;
}

/* What this chunk is coded by, when `best` is the best. */
static enum strait_mode this_time(const struct choice *c, const struct coder *best)
{
    const uint32_t chunks = c->pool->types[c->element].chunks;
    const uint32_t period = best->mode == STRAIT_MODE_RAW ? PROBE_CHUNKS : OTHER_CHUNKS;
    const struct coder *other = chunks % period == 0 ? another(c, best, chunks / period) : NULL;
    return other != NULL ? other->mode : best->mode;
}

/* The ratio that the tables were measured to reach, if it is why BASE is better; else 0. */
static double poor_ratio(const struct choice *c, const struct coder *best)
{
    double most = 0;
    if (best->mode != STRAIT_MODE_BASE)
        return 0;
    for (uint32_t i = 1; i < c->count; i++) {
        const double ratio = c->pool->types[c->element].ratio[c->list[i]->mode];
        if (element_uses_tables(c->element, c->list[i]->mode) && ratio > most)
            most = ratio;
    }
    return most * LEAST_GAIN < ratio_of(c, best) ? most : 0;
}

static const char *name_of(const struct policy *policy, const struct policy_wire *wire)
{
    return wire == &policy->links[LINK_BY_NCCL]  ? "NCCL"
           : wire == &policy->links[LINK_BY_UCX] ? "UCX between GPUs"
                                                 : "link";
}

/* Tells why `best` is the best, by what was measured. */
static void explain(struct choice *c, const struct coder *best, const struct policy_wire *wire, double most, bool timed)
{
    const double ratio = poor_ratio(c, best);
    if (ratio != 0) {
        snprintf(c->poor, sizeof(c->poor), "the codebook set fits badly, ratio %.2f", ratio);
        c->why = c->poor;
    }
    if (wire != NULL)
        set_reason(c, best, "%s %.2f GB/s%s, ratio %.2f, %s %.2f GB/s", name_of(c->policy, wire),
                   known_or(wire->rate, USUAL_WIRE) * 1e-9, wire->rate > 0 ? "" : " (assumed)", ratio_of(c, best),
                   timed ? "carries" : "would carry", most * 1e-9);
    else if (best->mode != STRAIT_MODE_RAW)
        set_reason(c, best, "the bus between GPU and shared memory");
    else
        set_reason(c, best, "pages of the GPU do not shrink");
}

static enum strait_mode choose(struct choice *c, const struct policy_wire *wire, unsigned workers)
{
    const struct coder *best = c->list[0];
    double most = goodput(c, best, wire, workers);
    for (uint32_t i = 1; i < c->count; i++) {
        const double rate = goodput(c, c->list[i], wire, workers);
        if (rate <= most * LEAST_GAIN)
            continue;
        most = rate;
        best = c->list[i];
    }
    explain(c, best, wire, most, false);
    return this_time(c, best);
}

/* The same by runs, in which whole legs were timed. */
static enum strait_mode choose_run(struct choice *c, const struct policy_wire *wire, unsigned workers)
{
    struct coding_runs *runs = &c->policy->runs;
    struct coding_candidate candidates[1 + sizeof(coders) / sizeof(coders[0])];
    uint32_t count = 0;
    for (uint32_t i = 0; i < c->count; i++) {
        const struct coder *coder = c->list[i];
        const double ratio = c->pool->types[c->element].ratio[coder->mode];
        if (coder->mode == STRAIT_MODE_RAW || ratio == 0 || ratio > LEAST_GAIN)
            candidates[count++] = (struct coding_candidate){.mode = coder->mode,
                                                            .expected = goodput(c, coder, wire, workers),
                                                            .tried = coder->tried || coder == &raw_coder};
    }
    const enum strait_mode mode = coding_mode(runs, c->element, candidates, count, LEAST_GAIN, uv_hrtime());
    const struct coder *coder = offered(c, mode);
    const double rate = coding_rate(runs, c->element, mode);
    explain(c, coder, wire, known_or(rate, goodput(c, coder, wire, workers)), rate > 0);
    return this_time(c, coder);
}

/* Coded bytes a second into the peer's GPU. 0: this mode has not been measured. */
static double peer_rate(const struct choice *c, enum strait_mode mode)
{
    return c->policy->peer[c->element][mode].samples < PEER_SAMPLES
               ? 0
               : c->policy->peer[c->element][mode].bytes * 1e9 / c->policy->peer[c->element][mode].ns;
}

/* When encoders write into the other GPU's memory, encoder and link are one stage: a mode's rate is the one that its
 * chunks had. What has not been measured is assumed to be as fast as the fastest, so that the mode with the best ratio
 * is taken at first. In a large leg, where it costs least, some chunks in a row have another mode now and then; in a
 * small one a single chunk, which tells how the pages shrink. */
static enum strait_mode choose_for_peer(const struct choice *c, uint64_t leg_bytes)
{
    const uint32_t run = c->pool->types[c->element].chunks / PROBE_RUN;
    const struct coder *best = c->list[0];
    char rates[96];
    double fastest = 1, most = 0;
    int used = 0;
    for (uint32_t i = 0; i < c->count; i++)
        if (peer_rate(c, c->list[i]->mode) > fastest)
            fastest = peer_rate(c, c->list[i]->mode);
    for (uint32_t i = 0; i < c->count; i++) {
        const double measured = peer_rate(c, c->list[i]->mode);
        const double rate = ratio_of(c, c->list[i]) * known_or(measured, fastest);
        if (rate > most * LEAST_GAIN) {
            most = rate;
            best = c->list[i];
        }
        if (measured > 0 && (size_t)used < sizeof(rates))
            used += snprintf(rates + used, sizeof(rates) - (size_t)used, "%s%s %.0f", used > 0 ? ", " : "",
                             mode_names[c->list[i]->mode], rate * 1e-9);
    }
    if (used == 0)
        set_reason(c, best, "into the peer's GPU, not measured yet");
    else
        set_reason(c, best, "into the peer's GPU, %s GB/s", rates);
    if (leg_bytes < PEER_LEG_BYTES)
        return this_time(c, best);
    return run % PROBE_RUNS == PROBE_RUNS - 1 ? c->list[run / PROBE_RUNS % c->count]->mode : best->mode;
}

enum strait_mode policy_mode(struct node *node, struct peer *peer, bool to_gpu, struct pool_ref *pool,
                             enum strait_element element, struct chunk_path path, uint64_t leg_bytes)
{
    struct choice c = choice_of(node, peer, to_gpu, pool, element);
    enum strait_mode mode = (enum strait_mode)pool->pool->coding;
    const char *by = "the pool";
    pool->policy.types[element].chunks++;
    if (mode == STRAIT_MODE_AUTO) {
        mode = pinned_by_option(node->options.coding);
        by = "the option coding";
    }
    if (mode != STRAIT_MODE_AUTO) {
        const struct coder *coder = pinned_coder(&c, mode);
        if (mode == STRAIT_MODE_RAW || coder->mode == mode)
            c.why = NULL;
        set_reason(&c, coder, "pinned by %s", by);
        return coder->mode;
    }
    if (c.count == 1) {
        const char *why = c.why;
        c.why = NULL;
        set_reason(&c, &raw_coder, "%s", why);
        return STRAIT_MODE_RAW;
    }
    if (path.wire == WIRE_PEER)
        return choose_for_peer(&c, leg_bytes);
    if (path_is_link(path))
        return choose(&c, &c.policy->links[wire_link(path.wire)], 1);
    if (peer->direct && pool->pool->devices == NULL) {
        c.why = NULL;
        set_reason(&c, &raw_coder, "shared memory");
        return STRAIT_MODE_RAW;
    }
    if (policy_times(peer, path, leg_bytes))
        return choose_run(&c, &c.policy->link, node->workers);
    return choose(&c, peer->direct ? NULL : &c.policy->link, node->workers);
}

bool policy_times(const struct peer *peer, struct chunk_path path, uint64_t leg_bytes)
{
    return !path.gpus && !peer->direct && leg_bytes >= CODING_LEG_BYTES;
}

static void forget_tables(struct policy_pool *pool)
{
    for (uint32_t i = 0; i < sizeof(coders) / sizeof(coders[0]); i++)
        if (element_uses_tables(coders[i].element, coders[i].mode))
            pool->types[coders[i].element].ratio[coders[i].mode] = 0;
}

static void forget_peer(void *arg, struct peer *peer)
{
    struct peer_use *use = peer->owner;
    (void)arg;
    if (use == NULL)
        return;
    memset(use->policy.peer, 0, sizeof(use->policy.peer)); /* encoded into its GPU: the rates are those of ratios */
    memset(use->policy.runs.rates, 0, sizeof(use->policy.runs.rates));
}

void policy_codebook_changed(struct node *node)
{
    struct pool_ref *pool, *next;
    HASH_ITER (hh, node->exchange.pools, pool, next)
        forget_tables(&pool->policy);
    peers_each(node->peers, forget_peer, NULL);
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

/* Results of chunks that one launch encodes come in bursts: a sum tells more than single ones. */
static void peer_encoded(struct policy *policy, enum strait_element element, enum strait_mode mode,
                         const struct job_result *result)
{
    policy->peer[element][mode].bytes = policy->peer[element][mode].bytes * PEER_FADES + (double)result->bytes;
    policy->peer[element][mode].ns = policy->peer[element][mode].ns * PEER_FADES + (double)result->nanoseconds;
    policy->peer[element][mode].samples++;
}

void policy_encoded(struct peer *peer, struct pool_ref *pool, enum strait_element element, enum strait_mode mode,
                    struct chunk_path path, uint64_t leg_bytes, const struct job_result *result)
{
    struct policy *policy = &((struct peer_use *)peer->owner)->policy;
    struct policy_wire *wire = wire_of(policy, path);
    if (result->reason != STRAIT_REASON_NONE || result->nanoseconds == 0 || result->bytes == 0)
        return;
    smooth(&pool->policy.types[element].ratio[mode], (double)result->raw_bytes / (double)result->bytes);
    if (path.wire == WIRE_PEER) {
        if (leg_bytes >= PEER_LEG_BYTES)
            peer_encoded(policy, element, mode, result);
        return;
    }
    smooth(&wire->encode[element][mode], (double)result->raw_bytes * 1e9 / (double)result->nanoseconds);
    wire->element = element;
    wire->mode = mode;
    wire->samples++;
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

void policy_carried(struct peer *peer, enum strait_element element, enum strait_mode mode, uint64_t raw_bytes)
{
    coding_carried(&((struct peer_use *)peer->owner)->policy.runs, element, mode, raw_bytes);
}

void policy_leg(struct peer *peer, bool under_way)
{
    struct peer_use *use = peer->owner;
    if (use != NULL)
        (under_way ? coding_leg_began : coding_leg_ended)(&use->policy.runs, uv_hrtime());
}

/* ---- A link between GPUs, or host memory ------------------------------------------------------------------------- */

/* Raw bytes a second: encoding and sending overlap. A chunk encoded straight into the peer's memory needs no
 * sending. */
static double rate_of(const struct policy_wire *wire, bool direct)
{
    const double encode = wire->encode[wire->element][wire->mode];
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
