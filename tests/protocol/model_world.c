/* What is in the world, what its legs say, and what messages bring them. */
#include "tests/protocol/model_world.h"

#include <string.h>

struct setting setting;
enum bug bug;
const char *violation;

/* ---- The world --------------------------------------------------------------------------------------------------- */

struct job *find_job(struct world *world, enum side side, enum job_kind kind, uint8_t epoch, uint8_t id)
{
    for (int i = 0; i < JOBS_MAX; i++) {
        struct job *job = &world->jobs[side][i];
        if (job->kind == kind && job->epoch == epoch && job->id == id)
            return job;
    }
    return NULL;
}

bool any_job(const struct world *world, enum side side, enum job_kind kind, uint8_t epoch)
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

void sort_jobs(struct job *jobs)
{
    for (int i = 1; i < JOBS_MAX; i++)
        for (int j = i; j > 0 && by_bytes(&jobs[j - 1], &jobs[j], sizeof(*jobs)) > 0; j--) {
            struct job swapped = jobs[j];
            jobs[j] = jobs[j - 1];
            jobs[j - 1] = swapped;
        }
}

void sort_net(struct message *net)
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

void remove_job(struct world *world, enum side side, struct job *job)
{
    memset(job, 0, sizeof(*job));
    sort_jobs(world->jobs[side]);
}

enum side addressee(const struct message *message)
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

void purge(struct world *world, enum side side)
{
    for (int i = 0; i < NET_MAX && bug != BUG_TOKEN; i++)
        if (world->net[i].kind != 0 && addressee(&world->net[i]) == side)
            memset(&world->net[i], 0, sizeof(world->net[i]));
    sort_net(world->net);
}

/* ---- What the legs say ------------------------------------------------------------------------------------------- */

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
        claim(!any_job(world, SINK, JOB_DECODE, epoch) && !any_job(world, SINK, JOB_WAIT, epoch),
              "nothing writes a sink's pages after drained");
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
    world->flags[grant->slot].waited = 0;
}

/* Open grants are held from their request on. */
static void on_request(struct world *world, uint8_t epoch, const struct leg_action *action)
{
    const struct leg_grant *grants = world->sink[epoch].grants;
    struct message message = {.kind = TO_SOURCE_REQUEST, .epoch = epoch, .id = (uint8_t)action->grant.id};
    for (uint32_t i = 0, opens = 0; i < LEG_GRANTS && opens < action->count; i++) {
        if (grants[i].id < action->grant.id)
            continue;
        hold(world, epoch, &grants[i]);
        message.open |= (uint8_t)((grants[i].slot + 1) << 4 * opens++);
    }
    post(world, message);
}

/* From unit 0 on, the open grants that are used are named. */
static void on_segments(struct world *world, uint8_t epoch, const struct leg_action *action)
{
    const struct source_leg *leg = &world->source[epoch];
    struct message message = {.kind = TO_SINK_SEGMENTS,
                              .epoch = epoch,
                              .first = (uint8_t)action->first,
                              .count = (uint8_t)action->count,
                              .last = action->last};
    if (action->first == 0) {
        message.id = (uint8_t)leg->opened;
        for (uint32_t i = 0; i < SLOTS_MAX; i++)
            message.open |= (uint8_t)(leg->opened_units[i] << 4 * i);
    }
    post(world, message);
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

/* A decoder that waits for the chunk has it now. */
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
    job->kind = find_job(world, SINK, JOB_WAIT, epoch, (uint8_t)grant->id) != NULL ? JOB_HELD : JOB_DECODE;
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
        on_request(world, epoch, action);
        break;
    case LEG_SEND_SEGMENTS:
        on_segments(world, epoch, action);
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

void sink_event(struct world *world, uint8_t epoch, struct leg_event event)
{
    sink_does(world, epoch, event);
    struct leg_grant *grants = world->sink[epoch].grants;
    for (uint32_t i = 0; i < LEG_GRANTS && bug == BUG_REVOKE_FREES && event.type == SINK_RECLAIM; i++)
        if (grants[i].state == GRANT_REVOKING)
            sink_does(world, epoch, (struct leg_event){.type = SINK_RELEASED, .grant = grants[i--].id});
    if (bug == BUG_EARLY_ACK && event.type == SINK_ARRIVED && leg_live(world, SINK, epoch))
        sink_does(world, epoch, (struct leg_event){.type = SINK_DECODED, .grant = event.grant});
}

void wait_for_chunk(struct world *world, uint8_t epoch, uint8_t id)
{
    sink_does(world, epoch, (struct leg_event){.type = SINK_AHEAD, .grant = id});
    for (uint32_t i = 0; i < LEG_GRANTS; i++) {
        struct leg_grant *grant = &world->sink[epoch].grants[i];
        if (grant->id != id || !grant->ahead)
            continue;
        const struct job job = {.kind = JOB_WAIT,
                                .epoch = epoch,
                                .id = id,
                                .first = (uint8_t)grant->first,
                                .count = (uint8_t)grant->count,
                                .slot = (uint8_t)grant->slot,
                                .arena = world->arena};
        add_job(world, SINK, &job);
        world->flags[grant->slot].waited = 1;
        grant->ahead = bug != BUG_UNWATCHED;
    }
}

void source_event(struct world *world, uint8_t epoch, struct leg_event event)
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

/* ---- Delivering -------------------------------------------------------------------------------------------------- */

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

static void segments(struct world *world, uint8_t epoch, const struct message *message)
{
    struct leg_event event = {.type = SINK_SEGMENTS,
                              .grant = message->id,
                              .before = message->first,
                              .count = message->count,
                              .last = message->last};
    while (open_of(message, event.opens) != 0 && (bug != BUG_UNNAMED || event.opens == 0)) {
        event.units[event.opens] = open_of(message, event.opens);
        event.opens++;
    }
    world->disturbed |= message->first > world->sink[epoch].ready;
    sink_event(world, epoch, event);
}

void to_sink(struct world *world, const struct message *message)
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
        segments(world, e, message);
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

/* `ready` units of the offer are so when the request comes, and `fit` fit into each slot of its open grants. */
static void request(struct world *world, const struct message *message, uint8_t ready, bool last, uint8_t fit)
{
    uint8_t epoch = message->epoch;
    if (world->phase[SOURCE][epoch] == PHASE_OVER && bug != BUG_TOMBSTONE) {
        for (uint32_t i = 0; open_of(message, i) != 0 && bug != BUG_MUTE; i++)
            post_id(world, TO_SINK_RELEASED, epoch, message->id + i);
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
    struct leg_event event = {.type = SOURCE_BIND, .grant = message->id, .count = ready, .last = last};
    for (uint8_t slot; (slot = open_of(message, event.opens)) != 0; event.opens++) {
        event.slots[event.opens] = slot - 1u;
        event.units[event.opens] = ready < fit ? ready : fit;
        ready -= (uint8_t)event.units[event.opens];
    }
    source_event(world, epoch, event);
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

void to_source(struct world *world, const struct message *message, uint8_t how)
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
