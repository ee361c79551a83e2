/* What happens in the world: jobs end, links break, daemons crash; a list of all that can happen in a state, and doing
 * one of it; and what holds in every state. */
#include "tests/protocol/model_world.h"

#include <string.h>

#include "tests/support.h"

/* ---- Jobs -------------------------------------------------------------------------------------------------------- */

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

/* The decoder finds the chunk by its flag, or, in a fault although that is set, does not. Then what has arrived
 * meanwhile is decoded after all. */
static void finish_wait(struct world *world, struct job *job, bool fault)
{
    struct job ended = *job;
    remove_job(world, SINK, job);
    const bool flagged = world->flags[ended.slot].epoch == ended.epoch + 1 && world->flags[ended.slot].id == ended.id;
    struct leg_event event = {.type = SINK_ABSENT, .grant = ended.id};
    if (flagged && !fault) {
        claim(world->flags[ended.slot].first == ended.first && world->flags[ended.slot].count == ended.count,
              "a chunk is decoded for the range that it was made for");
        ended.chunk.version = world->flags[ended.slot].version;
        land(world, &ended);
        event.type = SINK_DECODED;
    }
    if (leg_live(world, SINK, ended.epoch))
        sink_event(world, ended.epoch, event);
    struct job *held = find_job(world, SINK, JOB_HELD, ended.epoch, ended.id);
    if (held != NULL && event.type == SINK_ABSENT)
        held->kind = JOB_DECODE;
    sort_jobs(world->jobs[SINK]);
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
    if (setting.direct == FLAGGED && !fault && job->arena == world->arena) {
        world->flags[job->slot].epoch = (uint8_t)(epoch + 1);
        world->flags[job->slot].id = id;
        world->flags[job->slot].first = job->first;
        world->flags[job->slot].count = job->count;
        world->flags[job->slot].version = world->version;
    }
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
    case JOB_WAIT:
        finish_wait(world, job, fault);
        break;
    default:
        finish_send(world, job, fault);
    }
}

/* ---- Links and crashes ------------------------------------------------------------------------------------------- */

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

/* With as many open grants as the leg takes: a slot of one that it does not would come back with the name of no
 * grant. */
static void start(struct world *world, uint8_t epoch)
{
    struct leg_event event = {.type = SINK_START};
    uint32_t room = world->sink[epoch].state == STRAIT_BOOTSTRAP ? setting.window : 0;
    for (uint32_t i = 0; i < LEG_GRANTS && room > 0; i++)
        room -= world->sink[epoch].grants[i].id != 0;
    for (uint32_t slot = 0; setting.open && slot < setting.slots && event.opens < room; slot++)
        if (world->slots[slot].epoch == 0)
            event.slots[event.opens++] = slot;
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
    memset(world->flags, 0, sizeof(world->flags));
    world->arena++;
    world->quiet = 1;
}

void expect(struct world *world)
{
    uint8_t epoch = world->expected++;
    sink_init(&world->sink[epoch], setting.window);
    world->phase[SINK][epoch] = PHASE_LIVE;
    start(world, epoch);
}

/* ---- Choices ----------------------------------------------------------------------------------------------------- */

const char *const choice_names[] = {"deliver", "finish job", "grant",    "encode",  "finish", "more",   "notice",
                                    "quiet",   "reconnect",  "wait",     "reclaim", "abort",  "expect", "drop",
                                    "double",  "damage",     "fail job", "break",   "crash"};

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

static bool leg_over(const struct sink_leg *leg)
{
    return leg->state == STRAIT_FAILED || leg->state == STRAIT_DONE;
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
    for (uint32_t i = 0; i < LEG_GRANTS && setting.direct == FLAGGED && !leg_over(leg); i++)
        if (leg->grants[i].state == GRANT_GIVEN && !world->flags[leg->grants[i].slot].waited)
            offer(choices, WAIT, epoch, (int)leg->grants[i].id);
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

void list_choices(const struct world *world, struct choices *choices)
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

void abort_leg(struct world *world, enum side side, uint8_t epoch, enum strait_reason reason)
{
    if (side == SINK)
        sink_event(world, epoch, (struct leg_event){.type = SINK_FAIL, .reason = reason});
    else
        source_event(world, epoch, (struct leg_event){.type = SOURCE_FAIL, .reason = reason});
}

void apply(struct world *world, struct choice choice)
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
    case WAIT:
        wait_for_chunk(world, choice.a, choice.b);
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

/* ---- What holds in every state ----------------------------------------------------------------------------------- */

static bool holds_slot(const struct world *world, const struct job *job)
{
    return world->slots[job->slot].epoch == job->epoch + 1 && world->slots[job->slot].id == job->id;
}

void check_jobs(const struct world *world)
{
    for (int i = 0; i < JOBS_MAX; i++) {
        const struct job *sink = &world->jobs[SINK][i], *source = &world->jobs[SOURCE][i];
        claim(sink->kind == JOB_NONE || holds_slot(world, sink), "a slot belongs to whose chunk is in it");
        claim((sink->kind != JOB_DECODE && sink->kind != JOB_WAIT) ||
                  (leg_live(world, SINK, sink->epoch) && (world->told[SINK][sink->epoch] & TOLD_DRAINED) == 0),
              "pages are written for a live expectation only");
        bool writes = setting.direct && source->kind == JOB_ENCODE && source->arena == world->arena;
        claim(!writes || holds_slot(world, source), "a source writes a slot only while it is granted to it");
    }
}
