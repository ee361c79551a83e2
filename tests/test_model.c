/* The model test: one sink's daemon and one source's daemon, made of nothing but their legs, and everything that can
 * happen around them: messages and chunks delivered in any order, lost, doubled or damaged, jobs that end well or
 * badly, aborts, grants asked back, links that break, daemons that crash, the same pages expected again. Every order of
 * events up to a depth is explored; every state that is reached is checked, and from each of them a run without further
 * faults has to come to its end. Ghosts know what the daemons cannot know: which bytes are where, and who may still
 * write.
 *
 * Assumed of the environment, and shown to be needed by leaving each out: messages and chunks of a link that a side has
 * seen closed do not reach it (connection tokens), epochs are compared, closed source legs are remembered, and a sink
 * is told QUIET only when no job of the source can write its slots any more. */
#include <check.h>
#include <string.h>

#include "daemon/protocol/leg.h"
#include "tests/support.h"

enum { EPOCHS = 2, SLOTS_MAX = 2, NET_MAX = 8, JOBS_MAX = 6, DEPTH_MAX = 40 };

struct setting {
    uint8_t units, slots, window, send_slots;
    bool direct;    /* the source's job writes the sink's slot itself */
    bool open;      /* requests bring a grant, when a slot is free */
    uint8_t faults; /* at most, on one path */
    uint8_t depth;  /* of events that are explored, */
    uint8_t ahead;  /* after so many of a fair run */
};

/* What can be left out or done wrong. The machines stay as they are: the world around them is changed. */
enum bug {
    BUG_NONE,
    BUG_EPOCH,         /* messages reach whatever leg is live */
    BUG_EARLY_ACK,     /* landed before it is decoded */
    BUG_BAD_LANDS,     /* decoders that find nothing wrong */
    BUG_REVOKE_FREES,  /* slots asked back are taken back at once */
    BUG_QUIET_EARLY,   /* QUIET while a job of the source still writes */
    BUG_TOKEN,         /* what belongs to an old link is let in */
    BUG_DRAINED_EARLY, /* pages are free with the verdict */
    BUG_SEEN,          /* grants are not remembered */
    BUG_TOMBSTONE,     /* nor are source legs */
    BUG_MUTE,          /* what was not used is not given back */
    BUG_NO_DEADLINE,   /* verdicts wait for ever */
    BUG_EARLY_DECODE,  /* an open grant is taken for one of all units */
    BUG_FORGETFUL,     /* the slot is granted while the chunk arrives */
    BUGS
};

static struct setting setting;
static enum bug bug;
static const char *violation; /* the first one found */

static void claim(bool holds, const char *fact)
{
    if (!holds && violation == NULL)
        violation = fact;
}

/* ---- The world -------------------------------------------------------------------------------------------------- */

enum side { SINK, SOURCE };

enum message_kind {
    TO_SOURCE_REQUEST = 1,
    TO_SOURCE_GRANT,
    TO_SOURCE_REVOKE,
    TO_SOURCE_END,
    TO_SINK_SEGMENTS,
    TO_SINK_RELEASED,
    TO_SINK_END,
    TO_SINK_CHUNK,
};

struct message {
    uint8_t kind, epoch, link, first, count, id;
    union {
        uint8_t slot, last, reason, version;
    };
    union {
        uint8_t bad;    /* a chunk was damaged */
        uint8_t opened; /* units that are the open grant's */
    };
};

enum job_kind { JOB_NONE, JOB_ARRIVE, JOB_DECODE, JOB_ENCODE, JOB_SEND, JOB_HELD /* came before its range */ };

/* What runs beside a daemon, and what it has in hands. */
struct job {
    uint8_t kind, epoch, id, first, count, slot, arena, unused;
    struct message chunk;
};

/* How a request is met: the units that are ready, and these flags. */
enum { LAST = 16, ONE_FITS = 32 };

enum phase { PHASE_NONE, PHASE_LIVE, PHASE_OVER };
enum told { TOLD_VERDICT = 1, TOLD_DRAINED = 2, TOLD_CLOSED = 4 };

struct world {
    struct sink_leg sink[EPOCHS];
    struct source_leg source[EPOCHS];
    struct message net[NET_MAX];
    struct job jobs[2][JOBS_MAX];
    uint8_t phase[2][EPOCHS], tomb[2][EPOCHS], told[2][EPOCHS];
    uint8_t landed[EPOCHS], done[EPOCHS],
        offered[EPOCHS]; /* units in place; the sink said DONE; version of the offer */
    struct {
        uint8_t epoch, id; /* of the holder: epoch + 1, or 0 */
    } slots[SLOTS_MAX];
    uint8_t version; /* of what the source's pages hold */
    uint8_t send_used, expected, link;
    uint8_t arena, mapped; /* the sink's receive arena is a new one after a crash; the one that the source knows */
    uint8_t broken, noticed[2], quiet;
    uint8_t faults, disturbed, crowded, unused[5];
};

/* Compared as words. */
_Static_assert(sizeof(struct world) % 8 == 0, "whole words");

static bool leg_live(const struct world *world, enum side side, uint8_t epoch)
{
    return world->phase[side][epoch] == PHASE_LIVE;
}

static struct job *find_job(struct world *world, enum side side, enum job_kind kind, uint8_t epoch, uint8_t id)
{
    for (int i = 0; i < JOBS_MAX; i++) {
        struct job *job = &world->jobs[side][i];
        if (job->kind == kind && job->epoch == epoch && job->id == id)
            return job;
    }
    return NULL;
}

static bool any_job(const struct world *world, enum side side, enum job_kind kind, uint8_t epoch)
{
    for (int i = 0; i < JOBS_MAX; i++)
        if (world->jobs[side][i].kind == kind && world->jobs[side][i].epoch == epoch)
            return true;
    return false;
}

/* Equal sets are equal bytes. */
static int by_bytes(const void *a, const void *b, size_t size)
{
    static const uint8_t zero[sizeof(struct job)];
    bool no_a = memcmp(a, zero, size) == 0, no_b = memcmp(b, zero, size) == 0;
    return no_a || no_b ? no_a - no_b : memcmp(a, b, size);
}

static void sort_jobs(struct job *jobs)
{
    for (int i = 1; i < JOBS_MAX; i++)
        for (int j = i; j > 0 && by_bytes(&jobs[j - 1], &jobs[j], sizeof(*jobs)) > 0; j--) {
            struct job swapped = jobs[j];
            jobs[j] = jobs[j - 1];
            jobs[j - 1] = swapped;
        }
}

static void sort_net(struct message *net)
{
    for (int i = 1; i < NET_MAX; i++)
        for (int j = i; j > 0 && by_bytes(&net[j - 1], &net[j], sizeof(*net)) > 0; j--) {
            struct message swapped = net[j];
            net[j] = net[j - 1];
            net[j - 1] = swapped;
        }
}

static void add_job(struct world *world, enum side side, const struct job *job)
{
    struct job *at = &world->jobs[side][JOBS_MAX - 1];
    if (at->kind != JOB_NONE) {
        world->crowded = 1;
        return;
    }
    *at = *job;
    sort_jobs(world->jobs[side]);
}

static void remove_job(struct world *world, enum side side, struct job *job)
{
    memset(job, 0, sizeof(*job));
    sort_jobs(world->jobs[side]);
}

static enum side addressee(const struct message *message)
{
    return message->kind < TO_SINK_SEGMENTS ? SOURCE : SINK;
}

static void post(struct world *world, struct message message)
{
    if (world->broken)
        return;
    message.link = world->link;
    if (world->net[NET_MAX - 1].kind != 0) {
        world->crowded = 1; /* such paths are not followed */
        return;
    }
    world->net[NET_MAX - 1] = message;
    sort_net(world->net);
}

/* A side has seen the link closed: nothing of it reaches that side. */
static void purge(struct world *world, enum side side)
{
    for (int i = 0; i < NET_MAX && bug != BUG_TOKEN; i++)
        if (world->net[i].kind != 0 && addressee(&world->net[i]) == side)
            memset(&world->net[i], 0, sizeof(world->net[i]));
    sort_net(world->net);
}

/* ---- What the legs say ------------------------------------------------------------------------------------------ */

static void source_event(struct world *world, uint8_t epoch, struct leg_event event);
static void sink_event(struct world *world, uint8_t epoch, struct leg_event event);

static void on_verdict(struct world *world, enum side side, uint8_t epoch, enum strait_reason reason)
{
    claim((world->told[side][epoch] & TOLD_VERDICT) == 0, "a verdict is told once");
    world->told[side][epoch] |= TOLD_VERDICT;
    world->tomb[side][epoch] = (uint8_t)reason;
    if (reason != STRAIT_REASON_NONE)
        return;
    if (side == SOURCE) {
        claim(world->done[epoch], "a source is done only when its sink said so");
        return;
    }
    claim(world->landed[epoch] == (1u << setting.units) - 1, "DONE means that every unit is in place");
    world->done[epoch] = 1;
}

/* The framework writes its pages at once. */
static void reuse_pages(struct world *world, uint8_t epoch)
{
    for (uint8_t e = 0; e < EPOCHS; e++) {
        bool offered = e != epoch && leg_live(world, SOURCE, e) && (world->told[SOURCE][e] & TOLD_DRAINED) == 0;
        if (offered)
            return;
    }
    world->version++;
    for (uint8_t e = 0; e < EPOCHS; e++)
        claim(!any_job(world, SOURCE, JOB_ENCODE, e), "nothing reads a source's pages after drained");
}

static void on_drained(struct world *world, enum side side, uint8_t epoch)
{
    claim(world->told[side][epoch] == TOLD_VERDICT, "drained is told once, after the verdict");
    world->told[side][epoch] |= TOLD_DRAINED;
    if (side == SOURCE)
        reuse_pages(world, epoch);
    else
        claim(!any_job(world, SINK, JOB_DECODE, epoch), "nothing writes a sink's pages after drained");
}

static void on_closed(struct world *world, enum side side, uint8_t epoch)
{
    claim(world->told[side][epoch] == (TOLD_VERDICT | TOLD_DRAINED), "a leg is closed once, after drained");
    world->told[side][epoch] |= TOLD_CLOSED;
    world->phase[side][epoch] = PHASE_OVER;
    for (int s = 0; s < setting.slots && side == SINK; s++)
        claim(world->slots[s].epoch != epoch + 1, "a closed leg holds no slots");
}

static void on_free_slot(struct world *world, enum side side, uint8_t epoch, const struct leg_grant *grant)
{
    if (side == SOURCE) {
        claim(world->send_used > 0, "a send slot is freed once");
        world->send_used--;
        return;
    }
    claim(world->slots[grant->slot].epoch == epoch + 1 && world->slots[grant->slot].id == grant->id,
          "a slot is freed once, by its holder");
    memset(&world->slots[grant->slot], 0, sizeof(world->slots[grant->slot]));
    struct job *held = find_job(world, SINK, JOB_HELD, epoch, (uint8_t)grant->id);
    if (held != NULL)
        remove_job(world, SINK, held);
}

static void hold(struct world *world, uint8_t epoch, const struct leg_grant *grant)
{
    claim(world->slots[grant->slot].epoch == 0, "a slot is granted to one at a time");
    world->slots[grant->slot].epoch = (uint8_t)(epoch + 1);
    world->slots[grant->slot].id = (uint8_t)grant->id;
}

/* An open grant is held from the first request that brings it on. */
static void on_request(struct world *world, uint8_t epoch, const struct leg_grant *open)
{
    bool held = world->slots[open->slot].epoch == epoch + 1 && world->slots[open->slot].id == open->id;
    if (open->id != 0 && !held)
        hold(world, epoch, open);
    post(world, (struct message){
                    .kind = TO_SOURCE_REQUEST, .epoch = epoch, .id = (uint8_t)open->id, .slot = (uint8_t)open->slot});
}

static void on_give(struct world *world, uint8_t epoch, const struct leg_grant *grant)
{
    hold(world, epoch, grant);
    post(world, (struct message){.kind = TO_SOURCE_GRANT,
                                 .epoch = epoch,
                                 .first = (uint8_t)grant->first,
                                 .count = (uint8_t)grant->count,
                                 .id = (uint8_t)grant->id,
                                 .slot = (uint8_t)grant->slot});
}

static void on_encode(struct world *world, uint8_t epoch, const struct leg_grant *grant)
{
    world->send_used++;
    claim((world->told[SOURCE][epoch] & TOLD_DRAINED) == 0, "no job begins after drained");
    const struct job job = {.kind = JOB_ENCODE,
                            .epoch = epoch,
                            .id = (uint8_t)grant->id,
                            .first = (uint8_t)grant->first,
                            .count = (uint8_t)grant->count,
                            .slot = (uint8_t)grant->slot,
                            .arena = world->mapped};
    add_job(world, SOURCE, &job);
}

static void on_transmit(struct world *world, uint8_t epoch, const struct leg_grant *grant)
{
    struct job *job = find_job(world, SOURCE, JOB_SEND, epoch, (uint8_t)grant->id);
    claim(job != NULL, "what is sent was encoded");
    if (job != NULL)
        post(world, job->chunk);
}

static void on_decode(struct world *world, uint8_t epoch, const struct leg_grant *grant)
{
    struct job *job = find_job(world, SINK, JOB_ARRIVE, epoch, (uint8_t)grant->id);
    if (job == NULL)
        job = find_job(world, SINK, JOB_HELD, epoch, (uint8_t)grant->id);
    claim(job != NULL, "what is decoded has arrived");
    if (job == NULL)
        return;
    claim(job->chunk.epoch == epoch && job->chunk.first == grant->first && job->chunk.count == grant->count,
          "a chunk is decoded for the range and the epoch that it was made for");
    job->kind = JOB_DECODE;
    job->first = (uint8_t)grant->first; /* not known when an open grant's chunk came */
    job->count = (uint8_t)grant->count;
    sort_jobs(world->jobs[SINK]);
}

static void post_id(struct world *world, enum message_kind kind, uint8_t epoch, uint64_t id)
{
    post(world, (struct message){.kind = (uint8_t)kind, .epoch = epoch, .id = (uint8_t)id});
}

static void post_end(struct world *world, enum side from, uint8_t epoch, enum strait_reason reason)
{
    enum message_kind kind = from == SINK ? TO_SOURCE_END : TO_SINK_END;
    post(world, (struct message){.kind = (uint8_t)kind, .epoch = epoch, .reason = (uint8_t)reason});
}

static void act(struct world *world, enum side side, uint8_t epoch, const struct leg_action *action)
{
    switch (action->type) {
    case LEG_SEND_REQUEST:
        on_request(world, epoch, &action->grant);
        break;
    case LEG_SEND_SEGMENTS:
        post(world, (struct message){.kind = TO_SINK_SEGMENTS,
                                     .epoch = epoch,
                                     .first = (uint8_t)action->first,
                                     .count = (uint8_t)action->count,
                                     .id = (uint8_t)action->grant.id,
                                     .opened = (uint8_t)action->grant.count,
                                     .last = action->last});
        break;
    case LEG_SEND_GRANT:
        on_give(world, epoch, &action->grant);
        break;
    case LEG_SEND_REVOKE:
        post_id(world, TO_SOURCE_REVOKE, epoch, action->grant.id);
        break;
    case LEG_SEND_RELEASED:
        if (bug != BUG_MUTE)
            post_id(world, TO_SINK_RELEASED, epoch, action->grant.id);
        break;
    case LEG_SEND_END:
        post_end(world, side, epoch, action->reason);
        break;
    case LEG_ENCODE:
        on_encode(world, epoch, &action->grant);
        break;
    case LEG_TRANSMIT:
        on_transmit(world, epoch, &action->grant);
        break;
    case LEG_DECODE:
        on_decode(world, epoch, &action->grant);
        break;
    case LEG_FREE_SLOT:
        on_free_slot(world, side, epoch, &action->grant);
        break;
    case LEG_VERDICT:
        on_verdict(world, side, epoch, action->reason);
        if (bug == BUG_DRAINED_EARLY && side == SOURCE)
            reuse_pages(world, epoch);
        break;
    case LEG_DRAINED:
        on_drained(world, side, epoch);
        break;
    case LEG_CLOSED:
        on_closed(world, side, epoch);
        break;
    case LEG_ACCEPT: /* looked for by knock() */
    case LEG_STATE:
    case LEG_COMPLETE:
        break;
    }
}

static bool act_all(struct world *world, enum side side, uint8_t epoch, const struct leg_actions *actions)
{
    bool accepted = false;
    for (uint32_t i = 0; i < actions->count; i++) {
        act(world, side, epoch, &actions->list[i]);
        accepted |= actions->list[i].type == LEG_ACCEPT;
        claim(actions->list[i].type != LEG_CLOSED || i + 1 == actions->count, "nothing follows CLOSED");
    }
    if (world->phase[side][epoch] == PHASE_OVER) { /* forgotten, but for the verdict */
        if (side == SINK)
            memset(&world->sink[epoch], 0, sizeof(world->sink[epoch]));
        else
            memset(&world->source[epoch], 0, sizeof(world->source[epoch]));
    }
    return accepted;
}

static bool sink_does(struct world *world, uint8_t epoch, struct leg_event event)
{
    struct leg_actions actions;
    if (bug == BUG_NO_DEADLINE && event.type == SINK_FAIL)
        return false;
    struct leg_grant *grants = world->sink[epoch].grants;
    for (uint32_t i = 0; i < LEG_GRANTS && bug == BUG_EARLY_DECODE && event.type == SINK_ARRIVED; i++)
        if (grants[i].id == event.grant && grants[i].count == 0)
            grants[i].count = setting.units;
    bool honest = sink_step(&world->sink[epoch], &event, &actions);
    bool accepted = act_all(world, SINK, epoch, &actions);
    claim(honest || bug != BUG_NONE, "an honest source is believed");
    if (!honest && leg_live(world, SINK, epoch))
        sink_does(world, epoch, (struct leg_event){.type = SINK_FAIL, .reason = STRAIT_REASON_GEOMETRY});
    return accepted;
}

static void sink_event(struct world *world, uint8_t epoch, struct leg_event event)
{
    sink_does(world, epoch, event);
    struct leg_grant *grants = world->sink[epoch].grants;
    for (uint32_t i = 0; i < LEG_GRANTS && bug == BUG_REVOKE_FREES && event.type == SINK_RECLAIM; i++)
        if (grants[i].state == GRANT_REVOKING)
            sink_does(world, epoch, (struct leg_event){.type = SINK_RELEASED, .grant = grants[i--].id});
    if (bug == BUG_EARLY_ACK && event.type == SINK_ARRIVED && leg_live(world, SINK, epoch))
        sink_does(world, epoch, (struct leg_event){.type = SINK_DECODED, .grant = event.grant});
}

static void source_event(struct world *world, uint8_t epoch, struct leg_event event)
{
    struct leg_actions actions;
    if (bug == BUG_SEEN)
        world->source[epoch].seen = 0;
    bool honest = source_step(&world->source[epoch], &event, &actions);
    act_all(world, SOURCE, epoch, &actions);
    claim(honest || bug != BUG_NONE, "an honest sink is believed");
    if (!honest && leg_live(world, SOURCE, epoch))
        source_event(world, epoch, (struct leg_event){.type = SOURCE_FAIL, .reason = STRAIT_REASON_GEOMETRY});
}

/* ---- Delivering ------------------------------------------------------------------------------------------------- */

static void knock(struct world *world, uint8_t epoch, const struct message *chunk)
{
    if (!sink_does(world, epoch, (struct leg_event){.type = SINK_ARRIVING, .grant = chunk->id}))
        return; /* refused */
    struct job job = {.kind = JOB_ARRIVE, .epoch = epoch, .id = chunk->id, .arena = world->arena, .chunk = *chunk};
    const struct leg_grant *grants = world->sink[epoch].grants;
    for (uint32_t i = 0; i < LEG_GRANTS; i++)
        if (grants[i].id == chunk->id) {
            job.first = (uint8_t)grants[i].first;
            job.count = (uint8_t)grants[i].count;
            job.slot = (uint8_t)grants[i].slot;
        }
    add_job(world, SINK, &job);
    if (bug == BUG_FORGETFUL)
        memset(&world->slots[job.slot], 0, sizeof(world->slots[job.slot]));
}

static void to_forgotten_sink(struct world *world, const struct message *message)
{
    bool over = world->phase[SINK][message->epoch] == PHASE_OVER;
    enum strait_reason reason = over ? (enum strait_reason)world->tomb[SINK][message->epoch] : STRAIT_REASON_LOCAL;
    if (message->kind == TO_SINK_SEGMENTS)
        post_end(world, SINK, message->epoch, reason);
}

static void to_sink(struct world *world, const struct message *message)
{
    uint8_t e = message->epoch;
    if (bug == BUG_EPOCH && !leg_live(world, SINK, e) && leg_live(world, SINK, EPOCHS - 1 - e))
        e = EPOCHS - 1 - e;
    if (!leg_live(world, SINK, e)) {
        to_forgotten_sink(world, message);
        return;
    }
    switch (message->kind) {
    case TO_SINK_SEGMENTS:
        world->disturbed |= message->first > world->sink[e].ready;
        sink_event(world, e,
                   (struct leg_event){.type = SINK_SEGMENTS,
                                      .grant = message->id,
                                      .first = message->opened,
                                      .before = message->first,
                                      .count = message->count,
                                      .last = message->last});
        break;
    case TO_SINK_RELEASED:
        sink_event(world, e, (struct leg_event){.type = SINK_RELEASED, .grant = message->id});
        break;
    case TO_SINK_END:
        sink_event(
            world, e,
            (struct leg_event){.type = SINK_END, .reason = leg_peer_reason((enum strait_reason)message->reason)});
        break;
    default:
        knock(world, e, message);
    }
}

/* `ready` units of the offer are so when the request comes, `fit` of them for its open grant. */
static void request(struct world *world, const struct message *message, uint8_t ready, bool last, uint8_t fit)
{
    uint8_t epoch = message->epoch;
    if (world->phase[SOURCE][epoch] == PHASE_OVER && bug != BUG_TOMBSTONE) {
        if (message->id != 0 && bug != BUG_MUTE)
            post_id(world, TO_SINK_RELEASED, epoch, message->id);
        if (world->tomb[SOURCE][epoch] != STRAIT_REASON_NONE)
            post_end(world, SOURCE, epoch, (enum strait_reason)world->tomb[SOURCE][epoch]);
        return;
    }
    if (!leg_live(world, SOURCE, epoch)) {
        source_init(&world->source[epoch]);
        world->phase[SOURCE][epoch] = PHASE_LIVE;
        world->told[SOURCE][epoch] = 0;
        world->offered[epoch] = world->version;
    }
    source_event(world, epoch,
                 (struct leg_event){.type = SOURCE_BIND,
                                    .grant = message->id,
                                    .slot = message->slot,
                                    .first = fit,
                                    .count = ready,
                                    .last = last});
}

static void to_forgotten_source(struct world *world, const struct message *message)
{
    uint8_t e = message->epoch;
    enum strait_reason reason = (enum strait_reason)world->tomb[SOURCE][e];
    if (message->kind == TO_SOURCE_END)
        return;
    if (bug != BUG_MUTE)
        post_id(world, TO_SINK_RELEASED, e, message->id);
    if (world->phase[SOURCE][e] == PHASE_NONE)
        reason = STRAIT_REASON_LOCAL;
    if (message->kind == TO_SOURCE_GRANT && reason != STRAIT_REASON_NONE)
        post_end(world, SOURCE, e, reason);
}

static void to_source(struct world *world, const struct message *message, uint8_t how)
{
    uint8_t e = message->epoch;
    if (message->kind == TO_SOURCE_REQUEST) {
        uint8_t ready = how % LAST;
        request(world, message, ready, (how & LAST) != 0, (how & ONE_FITS) != 0 ? 1 : ready);
        return;
    }
    if (bug == BUG_EPOCH && !leg_live(world, SOURCE, e) && leg_live(world, SOURCE, EPOCHS - 1 - e))
        e = EPOCHS - 1 - e;
    if (!leg_live(world, SOURCE, e)) {
        to_forgotten_source(world, message);
        return;
    }
    struct leg_event event = {.grant = message->id};
    switch (message->kind) {
    case TO_SOURCE_GRANT:
        event.type = SOURCE_GRANT;
        event.first = message->first;
        event.count = message->count;
        event.slot = message->slot;
        break;
    case TO_SOURCE_REVOKE:
        event.type = SOURCE_REVOKE;
        break;
    default:
        event.type = SOURCE_END;
        event.reason = leg_peer_reason((enum strait_reason)message->reason);
    }
    source_event(world, e, event);
}

/* ---- Jobs ------------------------------------------------------------------------------------------------------- */

static void land(struct world *world, const struct job *job)
{
    claim(job->chunk.version == world->offered[job->epoch], "what lands is what was offered");
    for (uint8_t u = job->first; u < job->first + job->count; u++) {
        claim((world->landed[job->epoch] >> u & 1) == 0, "a unit lands once");
        world->landed[job->epoch] |= (uint8_t)(1u << u);
    }
}

static void finish_decode(struct world *world, struct job *job, bool fault)
{
    const struct job ended = *job;
    remove_job(world, SINK, job);
    bool good = !fault && !ended.chunk.bad;
    if (good)
        land(world, &ended);
    enum strait_reason reason = good || bug == BUG_BAD_LANDS ? STRAIT_REASON_NONE : STRAIT_REASON_INTEGRITY;
    if (leg_live(world, SINK, ended.epoch))
        sink_event(world, ended.epoch, (struct leg_event){.type = SINK_DECODED, .grant = ended.id, .reason = reason});
}

static bool is_early(const struct sink_leg *leg, uint8_t id)
{
    for (uint32_t i = 0; i < LEG_GRANTS; i++)
        if (leg->grants[i].id == id && leg->grants[i].state == GRANT_EARLY)
            return true;
    return false;
}

static void finish_arrive(struct world *world, struct job *job, bool fault)
{
    const struct job ended = *job;
    const struct leg_event event = {
        .type = SINK_ARRIVED, .grant = ended.id, .reason = fault ? STRAIT_REASON_PEER_DOWN : STRAIT_REASON_NONE};
    if (leg_live(world, SINK, ended.epoch))
        sink_event(world, ended.epoch, event);
    struct job *left = find_job(world, SINK, JOB_ARRIVE, ended.epoch, ended.id);
    if (left == NULL)
        return;
    if (is_early(&world->sink[ended.epoch], ended.id))
        left->kind = JOB_HELD;
    else
        remove_job(world, SINK, left);
    sort_jobs(world->jobs[SINK]);
}

static void finish_encode(struct world *world, struct job *job, bool fault)
{
    const uint8_t epoch = job->epoch, id = job->id;
    job->kind = JOB_SEND; /* TRANSMIT looks for it */
    job->chunk = (struct message){.kind = TO_SINK_CHUNK,
                                  .epoch = epoch,
                                  .first = job->first,
                                  .count = job->count,
                                  .id = id,
                                  .version = world->version};
    sort_jobs(world->jobs[SOURCE]);
    source_event(world, epoch,
                 (struct leg_event){
                     .type = SOURCE_ENCODED, .grant = id, .reason = fault ? STRAIT_REASON_CODEC : STRAIT_REASON_NONE});
    bool sending = false;
    for (uint32_t i = 0; i < SOURCE_GRANTS && leg_live(world, SOURCE, epoch); i++)
        sending |= world->source[epoch].grants[i].id == id && world->source[epoch].grants[i].state == GRANT_SENDING;
    if (!sending)
        remove_job(world, SOURCE, find_job(world, SOURCE, JOB_SEND, epoch, id));
}

static void finish_send(struct world *world, struct job *job, bool fault)
{
    const uint8_t epoch = job->epoch, id = job->id;
    remove_job(world, SOURCE, job);
    if (leg_live(world, SOURCE, epoch))
        source_event(world, epoch,
                     (struct leg_event){.type = SOURCE_SENT,
                                        .grant = id,
                                        .reason = fault ? STRAIT_REASON_PEER_DOWN : STRAIT_REASON_NONE});
}

static void finish_job(struct world *world, enum side side, int index, bool fault)
{
    struct job *job = &world->jobs[side][index];
    switch (job->kind) {
    case JOB_ARRIVE:
        finish_arrive(world, job, fault);
        break;
    case JOB_DECODE:
        finish_decode(world, job, fault);
        break;
    case JOB_ENCODE:
        finish_encode(world, job, fault);
        break;
    default:
        finish_send(world, job, fault);
    }
}

/* ---- Links and crashes ------------------------------------------------------------------------------------------ */

static void notice(struct world *world, enum side side)
{
    world->noticed[side] = 1;
    purge(world, side);
    for (uint8_t e = 0; e < EPOCHS; e++) {
        bool needs_link = side == SOURCE || (world->sink[e].state != STRAIT_BOOTSTRAP && !world->sink[e].complete);
        if (!leg_live(world, side, e) || !needs_link)
            continue;
        if (side == SINK)
            sink_event(world, e, (struct leg_event){.type = SINK_FAIL, .reason = STRAIT_REASON_PEER_DOWN});
        else
            source_event(world, e, (struct leg_event){.type = SOURCE_FAIL, .reason = STRAIT_REASON_PEER_DOWN});
    }
}

static bool may_be_quiet(const struct world *world)
{
    if (!world->noticed[SINK] || world->quiet)
        return false;
    if (!setting.direct || bug == BUG_QUIET_EARLY)
        return true;
    for (uint8_t e = 0; e < EPOCHS; e++)
        if (any_job(world, SOURCE, JOB_ENCODE, e))
            return false;
    return world->noticed[SOURCE];
}

static void be_quiet(struct world *world)
{
    world->quiet = 1;
    for (uint8_t e = 0; e < EPOCHS; e++)
        if (leg_live(world, SINK, e))
            sink_event(world, e, (struct leg_event){.type = SINK_QUIET});
}

/* A slot of a leg that takes none comes back with the name of no grant. */
static void start(struct world *world, uint8_t epoch)
{
    struct leg_event event = {.type = SINK_START};
    while (setting.open && event.slot < setting.slots && world->slots[event.slot].epoch != 0)
        event.slot++;
    event.count = setting.open && event.slot < setting.slots && world->sink[epoch].state == STRAIT_BOOTSTRAP;
    sink_event(world, epoch, event);
}

static void reconnect(struct world *world)
{
    world->link++;
    world->mapped = world->arena;
    world->broken = world->noticed[SINK] = world->noticed[SOURCE] = world->quiet = 0;
    for (uint8_t e = 0; e < EPOCHS; e++)
        if (leg_live(world, SINK, e))
            start(world, e);
}

static void crash(struct world *world, enum side side)
{
    world->broken = world->noticed[side] = 1;
    purge(world, side);
    memset(world->jobs[side], 0, sizeof(world->jobs[side]));
    memset(world->phase[side], 0, sizeof(world->phase[side]));
    memset(world->told[side], 0, sizeof(world->told[side]));
    memset(world->tomb[side], 0, sizeof(world->tomb[side]));
    if (side == SOURCE) {
        memset(world->source, 0, sizeof(world->source));
        world->send_used = 0;
        world->version++;
        return;
    }
    memset(world->sink, 0, sizeof(world->sink));
    memset(world->slots, 0, sizeof(world->slots));
    world->arena++;
    world->quiet = 1;
}

static void expect(struct world *world)
{
    uint8_t epoch = world->expected++;
    sink_init(&world->sink[epoch], setting.window);
    world->phase[SINK][epoch] = PHASE_LIVE;
    start(world, epoch);
}

/* ---- Choices ---------------------------------------------------------------------------------------------------- */

enum choice_kind {
    DELIVER,    /* a: message; b: how a request is met */
    FINISH_JOB, /* a: side, b: job */
    GRANT,      /* a: epoch, b: units */
    ENCODE,     /* a: epoch */
    FINISH,     /* a: epoch */
    MORE,       /* a: epoch, b: units, 16: last */
    NOTICE,     /* a: side */
    QUIET,
    RECONNECT,
    /* What a fair run does without. */
    UNFAIR,
    RECLAIM = UNFAIR, /* a: epoch */
    ABORT,            /* a: side, b: epoch */
    EXPECT_AGAIN,
    /* Faults. */
    DROP,   /* a: message */
    DOUBLE, /* a: message, b as in DELIVER */
    DAMAGE, /* a: message */
    FAIL_JOB,
    BREAK,
    CRASH, /* a: side */
};

static const char *const choice_names[] = {"deliver", "finish job", "grant",     "encode",   "finish", "more",
                                           "notice",  "quiet",      "reconnect", "reclaim",  "abort",  "expect",
                                           "drop",    "double",     "damage",    "fail job", "break",  "crash"};

enum { CHOICES_MAX = 160 };

struct choice {
    uint8_t kind, a, b;
};

struct choices {
    int count;
    struct choice list[CHOICES_MAX];
};

static void offer(struct choices *choices, enum choice_kind kind, int a, int b)
{
    require(choices->count < CHOICES_MAX);
    choices->list[choices->count++] = (struct choice){(uint8_t)kind, (uint8_t)a, (uint8_t)b};
}

/* A request that binds may find all units ready, none or one. */
static void offer_delivery(const struct world *world, struct choices *choices, enum choice_kind kind, int index)
{
    const struct message *message = &world->net[index];
    offer(choices, kind, index, setting.units | LAST);
    if (message->kind != TO_SOURCE_REQUEST || leg_live(world, SOURCE, message->epoch))
        return;
    for (int ready = 0; ready < setting.units; ready++)
        offer(choices, kind, index, ready);
    if (message->id != 0 && setting.units > 1)
        offer(choices, kind, index, setting.units | LAST | ONE_FITS);
}

static void offer_messages(const struct world *world, struct choices *choices, bool faults)
{
    for (int i = 0; i < NET_MAX && world->net[i].kind != 0; i++) {
        if (i > 0 && memcmp(&world->net[i], &world->net[i - 1], sizeof(world->net[i])) == 0)
            continue;
        if (bug != BUG_TOKEN && world->net[i].link != world->link)
            continue;
        offer_delivery(world, choices, DELIVER, i);
        if (!faults)
            continue;
        offer_delivery(world, choices, DOUBLE, i);
        offer(choices, DROP, i, 0);
        if (world->net[i].kind == TO_SINK_CHUNK && !world->net[i].bad)
            offer(choices, DAMAGE, i, 0);
    }
}

static void offer_jobs(const struct world *world, struct choices *choices, bool faults)
{
    for (int side = SINK; side <= SOURCE; side++)
        for (int i = 0; i < JOBS_MAX && world->jobs[side][i].kind != JOB_NONE; i++) {
            if (world->jobs[side][i].kind == JOB_HELD)
                continue;
            offer(choices, FINISH_JOB, side, i);
            bool lost = world->jobs[side][i].kind == JOB_SEND && world->broken;
            if (faults || lost)
                offer(choices, FAIL_JOB, side, i);
        }
}

static bool slot_free(const struct world *world)
{
    for (int s = 0; s < setting.slots; s++)
        if (world->slots[s].epoch == 0)
            return true;
    return false;
}

static void offer_sink(const struct world *world, struct choices *choices, uint8_t epoch)
{
    const struct sink_leg *leg = &world->sink[epoch];
    uint32_t first, count;
    if (!world->noticed[SINK] && slot_free(world) && sink_wants(leg, &first, &count)) {
        offer(choices, GRANT, epoch, (int)count);
        if (count > 1)
            offer(choices, GRANT, epoch, 1);
    }
    if (sink_unused(leg) > 0 && leg->state != STRAIT_FAILED)
        offer(choices, RECLAIM, epoch, 0);
    if (leg->complete && leg->state == STRAIT_TRANSFERRING)
        offer(choices, FINISH, epoch, 0);
    if (leg->state != STRAIT_FAILED)
        offer(choices, ABORT, SINK, epoch);
}

static void offer_source(const struct world *world, struct choices *choices, uint8_t epoch)
{
    const struct source_leg *leg = &world->source[epoch];
    if (world->send_used < setting.send_slots && source_wants(leg))
        offer(choices, ENCODE, epoch, 0);
    if (leg->state == STRAIT_FAILED || leg->state == STRAIT_DONE)
        return;
    int rest = setting.units - (int)leg->ready;
    if (!leg->last && leg->state != STRAIT_BOOTSTRAP) {
        offer(choices, MORE, epoch, rest | LAST);
        if (rest > 0)
            offer(choices, MORE, epoch, 1);
    }
    offer(choices, ABORT, SOURCE, epoch);
}

static void offer_links(const struct world *world, struct choices *choices, bool faults)
{
    for (int side = SINK; side <= SOURCE; side++) {
        if (world->broken && !world->noticed[side])
            offer(choices, NOTICE, side, 0);
        if (faults)
            offer(choices, CRASH, side, 0);
    }
    if (may_be_quiet(world))
        offer(choices, QUIET, 0, 0);
    if (world->noticed[SINK] && world->noticed[SOURCE] && world->quiet)
        offer(choices, RECONNECT, 0, 0);
    if (faults && !world->broken)
        offer(choices, BREAK, 0, 0);
}

/* Pages may be expected again when they are free. */
static bool may_expect(const struct world *world)
{
    return world->expected < EPOCHS && !world->noticed[SINK] &&
           (world->phase[SINK][0] != PHASE_LIVE || (world->told[SINK][0] & TOLD_DRAINED) != 0);
}

static void list_choices(const struct world *world, struct choices *choices)
{
    bool faults = world->faults < setting.faults;
    choices->count = 0;
    offer_messages(world, choices, faults);
    offer_jobs(world, choices, faults);
    for (uint8_t e = 0; e < EPOCHS; e++) {
        if (leg_live(world, SINK, e))
            offer_sink(world, choices, e);
        if (leg_live(world, SOURCE, e))
            offer_source(world, choices, e);
    }
    offer_links(world, choices, faults);
    if (may_expect(world))
        offer(choices, EXPECT_AGAIN, 0, 0);
}

static void deliver(struct world *world, int index, int how, bool keep)
{
    const struct message message = world->net[index];
    if (!keep) {
        memset(&world->net[index], 0, sizeof(world->net[index]));
        sort_net(world->net);
    }
    if (addressee(&message) == SINK)
        to_sink(world, &message);
    else
        to_source(world, &message, (uint8_t)how);
}

static void give(struct world *world, uint8_t epoch, uint8_t count)
{
    uint8_t slot = 0;
    while (world->slots[slot].epoch != 0)
        slot++;
    sink_event(world, epoch, (struct leg_event){.type = SINK_GRANT, .slot = slot, .count = count});
}

static void abort_leg(struct world *world, enum side side, uint8_t epoch, enum strait_reason reason)
{
    if (side == SINK)
        sink_event(world, epoch, (struct leg_event){.type = SINK_FAIL, .reason = reason});
    else
        source_event(world, epoch, (struct leg_event){.type = SOURCE_FAIL, .reason = reason});
}

static void apply(struct world *world, struct choice choice)
{
    if (choice.kind > UNFAIR)
        world->disturbed = 1;
    if (choice.kind >= DROP)
        world->faults++;
    switch (choice.kind) {
    case DELIVER:
    case DOUBLE:
        deliver(world, choice.a, choice.b, choice.kind == DOUBLE);
        break;
    case FINISH_JOB:
    case FAIL_JOB:
        finish_job(world, (enum side)choice.a, choice.b, choice.kind == FAIL_JOB);
        break;
    case GRANT:
        give(world, choice.a, choice.b);
        break;
    case ENCODE:
        source_event(world, choice.a, (struct leg_event){.type = SOURCE_ENCODE});
        break;
    case FINISH:
        sink_event(world, choice.a, (struct leg_event){.type = SINK_FINISH});
        break;
    case MORE:
        source_event(world, choice.a,
                     (struct leg_event){.type = SOURCE_MORE, .count = choice.b % LAST, .last = choice.b >= LAST});
        break;
    case NOTICE:
        notice(world, (enum side)choice.a);
        break;
    case QUIET:
        be_quiet(world);
        break;
    case RECONNECT:
        reconnect(world);
        break;
    case RECLAIM:
        sink_event(world, choice.a, (struct leg_event){.type = SINK_RECLAIM});
        break;
    case ABORT:
        abort_leg(world, (enum side)choice.a, choice.b, STRAIT_REASON_ABORTED);
        break;
    case EXPECT_AGAIN:
        expect(world);
        break;
    case DROP:
        memset(&world->net[choice.a], 0, sizeof(world->net[choice.a]));
        sort_net(world->net);
        break;
    case DAMAGE:
        world->net[choice.a].bad = 1;
        sort_net(world->net);
        break;
    case BREAK:
        world->broken = 1;
        break;
    case CRASH:
        crash(world, (enum side)choice.a);
        break;
    }
}

/* ---- What holds in every state ---------------------------------------------------------------------------------- */

static bool holds_slot(const struct world *world, const struct job *job)
{
    return world->slots[job->slot].epoch == job->epoch + 1 && world->slots[job->slot].id == job->id;
}

static void check_jobs(const struct world *world)
{
    for (int i = 0; i < JOBS_MAX; i++) {
        const struct job *sink = &world->jobs[SINK][i], *source = &world->jobs[SOURCE][i];
        claim(sink->kind == JOB_NONE || holds_slot(world, sink), "a slot belongs to whose chunk is in it");
        claim(sink->kind != JOB_DECODE ||
                  (leg_live(world, SINK, sink->epoch) && (world->told[SINK][sink->epoch] & TOLD_DRAINED) == 0),
              "pages are written for a live expectation only");
        bool writes = setting.direct && source->kind == JOB_ENCODE && source->arena == world->arena;
        claim(!writes || holds_slot(world, source), "a source writes a slot only while it is granted to it");
    }
}

/* ---- Fair runs -------------------------------------------------------------------------------------------------- */

enum { FAIR_STEPS = 400 };

/* Does what is to be done until nothing is left. */
static void run_fair(struct world *world)
{
    struct choices choices;
    for (int step = 0; step < FAIR_STEPS && violation == NULL; step++) {
        list_choices(world, &choices);
        int i = 0;
        while (i < choices.count && choices.list[i].kind >= UNFAIR)
            i++;
        if (i == choices.count)
            return;
        apply(world, choices.list[i]);
        check_jobs(world);
        if (world->crowded)
            return;
    }
    claim(false, "a run without faults comes to rest");
}

static void check_free(const struct world *world, const char *fact)
{
    for (int s = 0; s < setting.slots; s++)
        claim(world->slots[s].epoch == 0, fact);
    claim(world->send_used == 0, fact);
}

static void time_out(struct world *world)
{
    for (uint8_t e = 0; e < EPOCHS; e++) {
        if (leg_live(world, SINK, e))
            abort_leg(world, SINK, e, STRAIT_REASON_TIMEOUT);
        if (leg_live(world, SOURCE, e))
            abort_leg(world, SOURCE, e, STRAIT_REASON_LEASE_EXPIRED);
    }
}

static void check_over(const struct world *world)
{
    for (uint8_t e = 0; e < EPOCHS; e++)
        claim(!leg_live(world, SINK, e) && !leg_live(world, SOURCE, e), "every leg comes to its end");
}

/* Undisturbed transfers end with DONE. On a link without faults nothing else than a verdict is needed to close all legs
 * and free all slots; otherwise the end of the link is. */
static void check_ending(const struct world *from)
{
    struct world world = *from;
    world.faults = setting.faults;
    run_fair(&world);
    if (!world.disturbed && !world.crowded)
        claim(world.done[0] && world.phase[SOURCE][0] == PHASE_OVER && world.tomb[SOURCE][0] == STRAIT_REASON_NONE,
              "a transfer that nothing disturbs is done");
    time_out(&world);
    run_fair(&world);
    if (from->faults == 0 && !world.crowded) {
        check_free(&world, "a link without faults gives back all slots");
        check_over(&world);
    }
    world.broken |= !world.crowded;
    run_fair(&world);
    if (world.crowded)
        return;
    check_free(&world, "all slots become free");
    check_over(&world);
}

/* ---- Exploring -------------------------------------------------------------------------------------------------- */

enum { WORDS = sizeof(struct world) / 8, MAP_WORDS = (WORDS + 63) / 64 };

/* A state without its zeros: a map of the words that are there, then these. */
struct packed {
    uint16_t words;
    uint8_t depth;
    uint8_t path[DEPTH_MAX]; /* places in the lists of choices, from the beginning */
    uint64_t data[MAP_WORDS + WORDS];
};

static void pack(const struct world *world, struct packed *packed)
{
    const uint64_t *words = (const uint64_t *)(const void *)world;
    uint16_t count = MAP_WORDS;
    memset(packed->data, 0, MAP_WORDS * sizeof(packed->data[0]));
    for (int w = 0; w < WORDS; w++)
        if (words[w] != 0) {
            packed->data[w / 64] |= 1ull << w % 64;
            packed->data[count++] = words[w];
        }
    packed->words = count;
}

static void unpack(const struct packed *packed, struct world *world)
{
    uint64_t *words = (uint64_t *)(void *)world;
    const uint64_t *data = packed->data + MAP_WORDS;
    for (int w = 0; w < WORDS; w++)
        words[w] = (packed->data[w / 64] >> w % 64 & 1) != 0 ? *data++ : 0;
}

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 29;
}

static uint64_t hash_of(const struct packed *packed)
{
    uint64_t hash = 0x243F6A8885A308D3u;
    for (uint16_t i = 0; i < packed->words; i++)
        hash = mix(hash, packed->data[i]);
    hash = mix(hash, packed->words);
    return hash == 0 ? 1 : hash;
}

/* The states met: their hashes, of 64 bits. */
struct visited {
    uint64_t *table;
    uint64_t capacity, count;
};

static bool insert_hash(struct visited *visited, uint64_t hash)
{
    uint64_t at = hash & (visited->capacity - 1);
    while (visited->table[at] != 0 && visited->table[at] != hash)
        at = (at + 1) & (visited->capacity - 1);
    bool is_new = visited->table[at] == 0;
    visited->table[at] = hash;
    visited->count += is_new;
    return is_new;
}

static void grow(struct visited *visited)
{
    struct visited larger = {.capacity = visited->capacity == 0 ? 1u << 16 : visited->capacity * 2};
    larger.table = calloc(larger.capacity, sizeof(*larger.table));
    require(larger.table != NULL);
    for (uint64_t i = 0; i < visited->capacity; i++)
        if (visited->table[i] != 0)
            insert_hash(&larger, visited->table[i]);
    free(visited->table);
    *visited = larger;
}

static bool visit(struct visited *visited, uint64_t hash)
{
    if (visited->count * 2 >= visited->capacity)
        grow(visited);
    return insert_hash(visited, hash);
}

/* The states of one depth, one after another. */
struct level {
    uint8_t *bytes;
    size_t size, capacity;
};

static size_t packed_size(const struct packed *packed)
{
    return offsetof(struct packed, data) + packed->words * sizeof(packed->data[0]);
}

static void level_add(struct level *level, const struct packed *packed)
{
    size_t size = packed_size(packed);
    if (level->capacity - level->size < size) {
        level->capacity = level->capacity * 2 + 65536;
        level->bytes = realloc(level->bytes, level->capacity);
        require(level->bytes != NULL);
    }
    memcpy(level->bytes + level->size, packed, size);
    level->size += size;
}

static void begin(struct world *world)
{
    struct choices choices;
    memset(world, 0, sizeof(*world));
    expect(world);
    for (int i = 0; i < setting.ahead; i++) {
        list_choices(world, &choices);
        apply(world, choices.list[0]);
    }
}

static void print_choice(const struct world *world, struct choice choice)
{
    printf("    %s %d %d", choice_names[choice.kind], choice.a, choice.b);
    if (choice.kind == DELIVER || choice.kind == DROP || choice.kind == DOUBLE || choice.kind == DAMAGE) {
        static const char *const names[] = {"",         "request",  "grant", "revoke", "end to source",
                                            "segments", "released", "end",   "chunk"};
        const struct message *message = &world->net[choice.a];
        printf(": %s of epoch %d, grant %d, %d + %d", names[message->kind], message->epoch, message->id, message->first,
               message->count);
    }
    if (choice.kind == FINISH_JOB || choice.kind == FAIL_JOB) {
        static const char *const names[] = {"", "arrive", "decode", "encode", "send", "held"};
        const struct job *job = &world->jobs[choice.a][choice.b];
        printf(": %s of epoch %d, grant %d", names[job->kind], job->epoch, job->id);
    }
    printf("\n");
}

static void print_path(const uint8_t *path, int depth)
{
    struct world world;
    struct choices choices;
    begin(&world);
    printf("  after:\n");
    for (int i = 0; i < depth; i++) {
        list_choices(&world, &choices);
        print_choice(&world, choices.list[path[i]]);
        apply(&world, choices.list[path[i]]);
    }
}

struct tally {
    uint64_t states, transitions, crowded;
};

/* One step from a state: false when it led nowhere new. */
static bool take(const struct world *from, struct choice choice, struct visited *visited, struct packed *next,
                 struct tally *tally)
{
    struct world world = *from;
    apply(&world, choice);
    check_jobs(&world);
    tally->transitions++;
    if (violation != NULL)
        return true;
    tally->crowded += world.crowded;
    if (world.crowded)
        return false;
    pack(&world, next);
    if (!visit(visited, hash_of(next)))
        return false;
    check_ending(&world);
    return true;
}

static void expand(const struct packed *packed, struct visited *visited, struct level *next_level, struct tally *tally)
{
    struct world world;
    struct choices choices;
    struct packed next;
    unpack(packed, &world);
    list_choices(&world, &choices);
    for (int i = 0; i < choices.count && violation == NULL; i++) {
        if (!take(&world, choices.list[i], visited, &next, tally))
            continue;
        memcpy(next.path, packed->path, packed->depth);
        next.path[packed->depth] = (uint8_t)i;
        next.depth = (uint8_t)(packed->depth + 1);
        if (violation != NULL && bug == BUG_NONE)
            print_path(next.path, next.depth);
        if (next.depth < setting.depth && violation == NULL)
            level_add(next_level, &next);
    }
}

/* Breadth first, so that what is found is found on a shortest path. */
static struct tally explore(void)
{
    struct tally tally = {0};
    struct visited visited = {0};
    struct level level = {0}, next = {0};
    struct world world;
    struct packed packed = {0};
    violation = NULL;
    begin(&world);
    pack(&world, &packed);
    visit(&visited, hash_of(&packed));
    level_add(&level, &packed);
    for (int depth = 0; depth < setting.depth && violation == NULL; depth++) {
        for (size_t at = 0; at < level.size && violation == NULL; at += packed_size(&packed)) {
            memcpy(&packed, level.bytes + at, offsetof(struct packed, data));
            memcpy(packed.data, level.bytes + at + offsetof(struct packed, data),
                   packed.words * sizeof(packed.data[0]));
            expand(&packed, &visited, &next, &tally);
        }
        struct level done = level;
        level = next;
        next = done;
        next.size = 0;
    }
    tally.states = visited.count;
    free(visited.table);
    free(level.bytes);
    free(next.bytes);
    return tally;
}

/* ---- Facts ------------------------------------------------------------------------------------------------------ */

/* STRAIT_MODEL_DEPTH adds to the depths. Sanitizers are slow and look for something else. */
static uint8_t deeper(uint8_t depth)
{
    const char *more = getenv("STRAIT_MODEL_DEPTH");
    int wanted = depth + (more == NULL ? 0 : atoi(more));
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    wanted -= 3;
#endif
    return (uint8_t)(wanted < 1 ? 1 : wanted > DEPTH_MAX ? DEPTH_MAX : wanted);
}

static const struct setting settings[] = {
    /* units, slots, window, send slots, direct, open, faults, depth, ahead */
    {1, 1, 1, 1, false, false, 1, 12, 0}, {1, 1, 1, 1, true, false, 1, 12, 0},  {1, 1, 1, 1, false, false, 2, 10, 2},
    {1, 1, 1, 1, true, false, 2, 10, 2},  {2, 1, 1, 1, false, false, 1, 12, 2}, {2, 1, 1, 1, true, false, 1, 12, 2},
    {2, 2, 2, 2, false, false, 1, 10, 2}, {2, 2, 2, 2, true, false, 1, 10, 2},  {1, 1, 1, 1, false, true, 1, 12, 0},
    {1, 1, 1, 1, true, true, 1, 12, 0},   {1, 1, 1, 1, false, true, 2, 9, 0},   {1, 1, 1, 1, true, true, 2, 9, 0},
    {2, 2, 2, 2, false, true, 1, 9, 0},   {2, 2, 2, 2, true, true, 1, 9, 0},
};

static void print_setting(const struct tally *tally)
{
    printf("%d units, %d slots, window %d, %s, %s%d faults, depth %d + %d: %llu states, %llu steps, %llu beyond the "
           "network\n",
           setting.units, setting.slots, setting.window, setting.direct ? "direct" : "staged",
           setting.open ? "open, " : "", setting.faults, setting.ahead, setting.depth,
           (unsigned long long)tally->states, (unsigned long long)tally->transitions,
           (unsigned long long)tally->crowded);
    fflush(stdout);
}

START_TEST(no_order_of_events_breaks_a_promise)
{
    setting = settings[_i];
    setting.depth = deeper(setting.depth);
    bug = BUG_NONE;
    const struct tally tally = explore();
    print_setting(&tally);
    ck_assert_msg(violation == NULL, "not so: %s", violation);
    ck_assert_uint_gt(tally.states, 100);
}
END_TEST

/* How far to look for what each planted bug does, and where. */
static const struct planted {
    enum bug bug;
    const char *name;
    struct setting setting;
} planted[] = {
    {BUG_EPOCH, "epochs are not compared", {1, 1, 1, 1, false, false, 1, 20, 0}},
    {BUG_EARLY_ACK, "acknowledged before decoded", {1, 1, 1, 1, false, false, 0, 20, 0}},
    {BUG_BAD_LANDS, "damage is not seen", {1, 1, 1, 1, false, false, 1, 20, 0}},
    {BUG_REVOKE_FREES, "slots are taken back at once", {1, 1, 1, 1, true, false, 0, 20, 0}},
    {BUG_QUIET_EARLY, "quiet while the source writes", {1, 1, 1, 1, true, false, 1, 20, 0}},
    {BUG_TOKEN, "old links are let in", {1, 1, 1, 1, true, false, 2, 20, 0}},
    {BUG_DRAINED_EARLY, "drained with the verdict", {1, 1, 1, 1, false, false, 0, 20, 0}},
    {BUG_SEEN, "grants are not remembered", {1, 1, 1, 1, true, false, 1, 20, 0}},
    {BUG_TOMBSTONE, "source legs are not remembered", {1, 1, 1, 1, true, false, 2, 20, 0}},
    {BUG_MUTE, "unused grants are not given back", {1, 1, 1, 1, false, false, 0, 20, 0}},
    {BUG_NO_DEADLINE, "no deadline", {1, 1, 1, 1, false, false, 1, 20, 0}},
    {BUG_MUTE, "open grants are not given back", {1, 1, 1, 1, false, true, 0, 20, 0}},
    {BUG_EARLY_DECODE, "decoded before its range is known", {2, 1, 1, 1, false, true, 0, 20, 0}},
    {BUG_FORGETFUL, "slots are free while a chunk arrives", {1, 1, 1, 1, false, false, 0, 20, 0}},
};

START_TEST(every_planted_bug_is_found)
{
    setting = planted[_i].setting;
    bug = planted[_i].bug;
    const struct tally tally = explore();
    printf("%s: %s (%llu states)\n", planted[_i].name, violation == NULL ? "not found" : violation,
           (unsigned long long)tally.states);
    fflush(stdout);
    ck_assert_ptr_nonnull(violation);
}
END_TEST

/* Long paths with many faults, a few of all that there are. */
START_TEST(long_random_paths_break_no_promise)
{
    struct rng rng = rng_init(900 + (uint64_t)_i);
    struct world world, next;
    struct choices choices;
    bug = BUG_NONE;
    violation = NULL;
    for (int walk = 0; walk < 3000 / STRIDE; walk++) {
        setting = settings[rng_below(&rng, COUNT(settings))];
        setting.units = (uint8_t)(1 + rng_below(&rng, 4));
        setting.open = rng_below(&rng, 2) != 0;
        setting.faults = (uint8_t)rng_below(&rng, 6);
        begin(&world);
        for (int step = 0; step < 120 && violation == NULL; step++) {
            list_choices(&world, &choices);
            if (choices.count == 0)
                break;
            struct choice choice = choices.list[rng_below(&rng, (uint32_t)choices.count)];
            if (choice.kind > UNFAIR && rng_below(&rng, 4) != 0)
                continue; /* else nothing would ever get far */
            next = world;
            apply(&next, choice);
            check_jobs(&next);
            if (next.crowded || next.version > 200)
                continue;
            world = next;
            if (violation == NULL)
                check_ending(&world);
        }
        ck_assert_msg(violation == NULL, "walk %d: not so: %s", walk, violation);
    }
}
END_TEST

static Suite *model_suite(void)
{
    Suite *suite = suite_create("model");
    TCase *tcase = tcase_create("model");
    tcase_set_timeout(tcase, 30); /* times CK_TIMEOUT_MULTIPLIER */
    tcase_add_loop_test(tcase, no_order_of_events_breaks_a_promise, 0, COUNT(settings));
    tcase_add_loop_test(tcase, every_planted_bug_is_found, 0, COUNT(planted));
    tcase_add_loop_test(tcase, long_random_paths_break_no_promise, 0, 4);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    SRunner *runner = srunner_create(model_suite());
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
