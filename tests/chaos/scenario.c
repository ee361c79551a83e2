/* One scenario after another. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <strait/strait.h>

#include "tests/chaos/scene.h"
#include "tests/support.h"

#define REACH_MS 800u  /* for the transfer to reach the point */
#define OVER_MS  4000u /* until everything must have drained */

const char *const fault_names[FAULTS] = {
#define X(name, text) text,
    CHAOS_FAULTS(X)
#undef X
};
const char *const phase_names[PHASES] = {"BOOTSTRAP", "READY",    "ENCODING", "SENDING",
                                         "ARRIVING",  "DECODING", "DONE",     "DRAINING"};

/* ---- One scenario --------------------------------------------------------------------------------------------- */

struct chaos_side *injector(struct world *w, int side)
{
    return &w->shared->sides[daemon_of(w, side)];
}

/* A side whose daemon or client did not run cannot tell in time. */
void excuse(struct world *w, int side, uint32_t more_ms)
{
    uint64_t due = now_ns() + (uint64_t)more_ms * MS;
    for (uint32_t i = 0; i < TRANSFERS_MAX; i++)
        if (w->transfers[i].id != 0 && w->transfers[i].halves[side].due_ns < due)
            w->transfers[i].halves[side].due_ns = due;
}

/* A lease begins when the daemon hears of it. The sink's library knows the deadline; the source's has none. */
void excuse_offers(struct world *w)
{
    excuse(w, SOURCE, LEASE_MS + PEER_TIMEOUT_MS);
}

/* Sometimes waits before a job goes on: it may run on long after the fault has struck everything else. */
void let_go(struct world *w, const struct scene *s)
{
    if (in_job(s->place) && draw(w, 2) == 0)
        (void)world_pump(w, 10 + draw(w, 40), NULL, NULL);
    if (daemon_of(w, s->place->side) == SOURCE && !in_job(s->place))
        excuse_offers(w);
    atomic_store(&injector(w, s->place->side)->go, 1);
}

static bool is_over(struct world *w, void *arg)
{
    const struct transfer *t = arg;
    if (t != NULL)
        return pair_over(t);
    for (uint32_t i = 0; i < TRANSFERS_MAX; i++)
        if (w->transfers[i].id != 0 && !pair_over(&w->transfers[i]))
            return false;
    return true;
}

static bool is_held(struct world *w, void *arg)
{
    const struct scene *s = arg;
    return atomic_load(&injector(w, s->place->side)->held) != 0;
}

static bool is_held_or_over(struct world *w, void *arg)
{
    const struct scene *s = arg;
    return is_held(w, arg) || pair_over(s->target);
}

static bool is_encoding(struct world *w, void *arg)
{
    (void)arg;
    return atomic_load(&injector(w, SOURCE)->hits[AT_ENCODE]) > 0;
}

static bool is_decided(struct world *w, void *arg)
{
    const struct half *half = arg;
    (void)w;
    return half->decided;
}

/* Either side may be first; either or both may start. */
void begin_transfer(struct world *w, struct transfer *t, const struct scene *s)
{
    bool is_target = t == s->target, pushed = is_target && s->place->setup == PUSHED;
    uint32_t how = draw(w, 3);
    bool source_starts = pushed || how != 0, sink_starts = !pushed && (how != 1 || is_target);
    uint32_t lease = s->fault == F_LEASE && is_target ? 150 : LEASE_MS; /* enough to find each other */
    uint32_t deadline = s->fault == F_DEADLINE && is_target ? 60 : DEADLINE_MS;
    if (draw(w, 2) == 0) {
        pair_offer(w, t, lease, source_starts);
        pair_expect(w, t, deadline, sink_starts);
    } else {
        pair_expect(w, t, deadline, sink_starts);
        pair_offer(w, t, lease, source_starts);
    }
}

static uint32_t target_size(struct world *w, const struct scene *s)
{
    if (s->fault == F_REPLAY)
        return 6; /* one chunk, with the grant, the slot and the size of the transfer before */
    if (s->place->setup == STARVED)
        return 16; /* all slots */
    if (in_job(s->place) || s->place->setup != PLAIN)
        return 10 + draw(w, 7); /* chunks that are worth a worker */
    return 1 + draw(w, 16);
}

/* Of the time that a side had, a good part passed while the machine ran nobody. */
static bool was_kept(const struct transfer *t)
{
    const struct half *source = &t->halves[SOURCE], *sink = &t->halves[SINK];
    uint64_t time_ms = source->time_ms < sink->time_ms ? source->time_ms : sink->time_ms;
    return (source->kept_ns > sink->kept_ns ? source->kept_ns : sink->kept_ns) > time_ms * MS / 4;
}

/* A transfer whose messages and chunks are kept, to come again in another one. */
static bool record_one(struct world *w, const struct scene *s)
{
    for (int side = 0; side < 2; side++)
        atomic_store(&injector(w, side)->record, 1);
    struct transfer *t = pair_make(w, target_size(w, s));
    pair_expect(w, t, DEADLINE_MS, true);
    pair_offer(w, t, LEASE_MS, false);
    bool over = world_pump(w, OVER_MS, is_over, t);
    for (int side = 0; side < 2; side++)
        atomic_store(&injector(w, side)->record, 0);
    return over && (pair_done(t) || was_kept(t));
}

/* Waits until a daemon is held at the place; false: the transfer did not pass there this time. */
static bool reach_place(struct world *w, struct scene *s)
{
    struct chaos_side *held = injector(w, s->place->side);
    bool chunks = s->place->at >= AT_CHUNK && s->place->at <= AT_COPIED && s->place->setup == PLAIN;
    if (s->place->setup == STARVED || s->place->setup == ABORTED_FIRST)
        atomic_store(&injector(w, SOURCE)->slow_ms, s->place->setup == STARVED ? 110 : 25);
    atomic_store(&held->skip, chunks && s->fault != F_REPLAY && s->fault != F_DEADLINE ? draw(w, 2) : 0);
    atomic_store(&held->armed, (uint32_t)s->place->at + 1);
    begin_transfer(w, s->target, s);
    if (s->place->setup == STARVED && world_pump(w, REACH_MS, is_encoding, NULL))
        begin_transfer(w, s->other, s);
    if (s->place->setup == ABORTED_FIRST && world_pump(w, REACH_MS, is_encoding, NULL))
        pair_abort(w, s->target, SOURCE);
    (void)world_pump(w, REACH_MS, is_held_or_over, s);
    if (!is_held(w, s)) {
        atomic_store(&held->armed, 0);
        let_go(w, s);
        return false;
    }
    if (s->place->setup == ABORTED) {
        pair_abort(w, s->target, s->place->side);
        (void)world_pump(w, 300, is_decided, &s->target->halves[s->place->side]);
    }
    return true;
}

/* ---- What must be true afterwards ----------------------------------------------------------------------------- */

/* Faults that must not cost a transfer anything but time; of the target also that it fails alone. */
static bool must_be_done(const struct scene *s, const struct transfer *t)
{
    switch (s->fault) {
    case F_STOP_SOURCE_CLIENT:
    case F_STOP_SINK_CLIENT:
    case F_FULL:
    case F_DOUBLE:
    case F_REPLAY:
    case F_OTHER_PORTS:
        return t != s->target || s->place->phase != DRAINING;
    case F_LEASE:
        return t != s->target || (s->place->phase != DRAINING && s->place->phase != BOOTSTRAP);
    case F_ABORT_SOURCE:
    case F_ABORT_SINK:
    case F_DEADLINE:
        return t != s->target;
    default:
        return false;
    }
}

static int64_t sum_of(const struct world *w, const char *metric)
{
    int64_t sum = 0;
    for (int side = 0; side <= daemon_of(w, SINK); side++) {
        char *text = NULL;
        for (int i = 0; i < 5 && text == NULL; i++)
            text = metrics_fetch(w->sides[side].metrics);
        sum += text != NULL ? metric_read(text, metric) : 0;
        free(text);
    }
    return sum;
}

/* What an earlier fault has left behind may still cost a connection. What these faults do may not. */
static bool lost_connection(struct world *w, const struct scene *s)
{
    if (sum_of(w, "strait_peers_lost_total") == s->lost)
        return false;
    if ((s->fault == F_DOUBLE || s->fault == F_REPLAY) && sum_of(w, "strait_peer_errors_total") != s->errors)
        violation(w, "a message that came twice or late was taken for a violation of the protocol");
    atomic_fetch_add(&w->totals->excused, 1);
    return true;
}

static void check_verdicts(struct world *w, const struct scene *s)
{
    for (uint32_t i = 0; i < TRANSFERS_MAX; i++) {
        const struct transfer *t = &w->transfers[i];
        if (t->id == 0)
            continue;
        if (!pair_over(t))
            violation(w, "transfer %u is not over: source %s%s, sink %s%s", t->id,
                      t->halves[SOURCE].decided ? "decided" : "waits", t->halves[SOURCE].drained ? ", drained" : "",
                      t->halves[SINK].decided ? "decided" : "waits", t->halves[SINK].drained ? ", drained" : "");
        else if (must_be_done(s, t) && !pair_done(t) && !was_kept(t) && !lost_connection(w, s))
            violation(w, "transfer %u%s failed for nothing: source %s, sink %s", t->id,
                      t == s->target ? " (the target)" : "", strait_reason_string((int)t->halves[SOURCE].reason),
                      strait_reason_string((int)t->halves[SINK].reason));
    }
}

/* The next request uses the very pages that the fault struck, as soon as they are free. */
static struct transfer *make_again(struct world *w, const struct transfer *old)
{
    struct transfer *t = pair_make(w, old->count);
    if (t == NULL)
        return NULL;
    for (int side = 0; side < 2; side++) {
        struct pages *pages = &w->sides[side].pages;
        bool vacant = true;
        for (uint32_t i = 0; i < t->count; i++)
            pages->taken[t->halves[side].pages[i]] = 0;
        for (uint32_t i = 0; i < t->count; i++)
            vacant &= !pages->taken[old->halves[side].pages[i]];
        if (vacant)
            memcpy(t->halves[side].pages, old->halves[side].pages, t->count * sizeof(old->halves[side].pages[0]));
        for (uint32_t i = 0; i < t->count; i++)
            pages->taken[t->halves[side].pages[i]] = 1;
    }
    for (uint32_t i = 0; i < t->count; i++)
        t->tags[i] = w->sides[SOURCE].pages.tags[t->halves[SOURCE].pages[i]];
    return t;
}

static bool recover(struct world *w, const struct scene *s)
{
    uint64_t until = s->restored_ns + ready_ms(w) * (uint64_t)MS;
    while (fair_ns() < until) {
        struct transfer *t = world_ready(w) ? make_again(w, s->target) : NULL;
        if (t == NULL)
            return false;
        pair_expect(w, t, DEADLINE_MS, true);
        pair_offer(w, t, LEASE_MS, draw(w, 2) == 0);
        (void)world_pump(w, OVER_MS, is_over, t);
        if (pair_done(t)) {
            totals_max(&w->totals->recovery_ns, (int64_t)(fair_ns() - s->restored_ns));
            return true;
        }
        if (!pair_over(t))
            return true; /* check_verdicts says so */
        t->id = 0;       /* its entry is needed */
    }
    violation(w, "no transfer has worked for %u ms after the fault", ready_ms(w));
    return true;
}

static void count(struct world *w, const struct scene *s)
{
    bool struck = s->struck;
    if (s->fault == F_DOUBLE || s->fault == F_REORDER) {
        struck = false;
        for (int side = 0; side < 2; side++)
            struck |= atomic_load(&injector(w, side)->doubled) + atomic_load(&injector(w, side)->reordered) > 0;
    }
    if (!struck) {
        atomic_fetch_add(&w->totals->missed, 1);
        return;
    }
    atomic_fetch_add(
        w->is_local ? &w->totals->local[s->fault][s->place->phase] : &w->totals->table[s->fault][s->place->phase], 1);
    atomic_fetch_add(&w->totals->points[s->place->side][s->place->at], 1);
}

static void settle(struct world *w)
{
    for (int side = 0; side < 2; side++) {
        struct chaos_side *injected = injector(w, side);
        memset((void *)injected, 0, sizeof(*injected));
        atomic_store(&injected->forget, 1);
    }
    transfers_forget(w);
}

/* A GPU's fault can never strike a pool in host memory, which is made now and then: makes another pool. */
static void leave_host(struct world *w, enum fault fault)
{
    if (fault != F_SOURCE_DEVICE && fault != F_SINK_DEVICE)
        return;
    const int side = fault == F_SINK_DEVICE;
    if (w->sides[side].client != 0 && w->sides[side].pages.device < 0)
        worker_close(w, side);
}

bool scenario_run(struct world *w, enum fault fault, enum phase phase)
{
    struct scene s = {.fault = fault, .place = place_choose(w, phase)};
    snprintf(w->scene, sizeof(w->scene), "%s in %s, %s at the %s", fault_names[fault], phase_names[phase],
             point_names[s.place->at], s.place->side == SOURCE ? "source" : "sink");
    atomic_fetch_add(&w->totals->scenarios, 1);
    leave_host(w, fault);
    if (!world_ready(w))
        return false;
    if (fault == F_REPLAY && !record_one(w, &s)) {
        violation(w, "a transfer that nothing disturbs failed");
        settle(w);
        return true;
    }
    s.lost = sum_of(w, "strait_peers_lost_total");
    s.errors = sum_of(w, "strait_peer_errors_total");
    s.target = pair_make(w, target_size(w, &s));
    s.other = pair_make(w, 1 + draw(w, 8));
    bool held = reach_place(w, &s);
    if (s.place->setup != STARVED || !s.other->halves[SINK].begun)
        begin_transfer(w, s.other, &s);
    if (held)
        strike(w, &s);
    s.restored_ns = fair_ns();
    bool ready = world_ready(w);
    (void)world_pump(w, OVER_MS, is_over, s.target);
    world_check(w);
    ready = ready && recover(w, &s);
    (void)world_pump(w, OVER_MS, is_over, NULL);
    check_verdicts(w, &s);
    count(w, &s);
    if (ready)
        world_at_rest(w);
    world_check(w);
    settle(w);
    return ready;
}
