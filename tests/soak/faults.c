/* Faults of all kinds, one after another at random moments, while transfers go on between two daemons without end.
 * Every transfer is judged: its verdicts come in time, DONE means right bytes, whose other side has ended hears of it,
 * and what no fault touched is DONE. Nothing is written but what is expected, and nothing is left. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/certificates.h"
#include "tests/soak/faults.h"

#define PEER_TIMEOUT_MS (600u * SOAK_SLOWER)
#define DEADLINE_MS     (1000u * SOAK_SLOWER)
#define LEASE_MS        (8000u * SOAK_SLOWER) /* much longer than a source may wait for its sink's end */
#define MARGIN_MS       (200u * SOAK_SLOWER)  /* of a verdict, after its deadline */
#define TOLD_MS         (500u * SOAK_SLOWER) /* from the end of one side to that of the other, while they are connected */
#define HEALED_MS       (5000u * SOAK_SLOWER) /* from the end of a fault until requests succeed */
#define LEAVES_MS       (5000u * SOAK_SLOWER) /* of a daemon: its drain-timeout is 2 s */
#define STUCK_MS        (5000u * SOAK_SLOWER) /* after lease and deadline */
#define STOP_SHORT_MS   200u
#define STOP_LONG_MS    (2 * PEER_TIMEOUT_MS + 200)
#define CUT_MS          500u
#define CALM_MS         200u /* between faults, at most */
#define PAGES_MAX       16u
#define HELD_MS         5000u /* deadline of a move that only keeps a page and a name */
#define WATCHED_EACH_MS 50u
#define KEPT_MOST_MS    (LEASE_MS / 2)
#define LATE_EXCUSES_MS (PEER_TIMEOUT_MS / 3) /* what got no processor for so long may fail */

static const struct form faults_form = {
    .name = "16 KiB, 2 layers", .page_bytes = 16384, .layers = 2, .roles = 2, .ids = 512};

static double later(double a, double b)
{
    return a > b ? a : b;
}

/* Time in which somebody here could do nothing. With other programs beside, a step of a transfer may wait for seconds.
 */
static uint64_t kept_ms(void)
{
    return machine_late_ms() + world_waited_ms();
}

/* By how much limits are longer now: never so much that waiting for a whole lease could pass for it. */
static double kept_since(uint64_t before_ms)
{
    const uint64_t ms = kept_ms() - before_ms;
    return (double)(ms < KEPT_MOST_MS ? ms : KEPT_MOST_MS);
}

/* ---- Faults: what each does -------------------------------------------------------------------------------------- */

static struct soak_daemon *struck_daemon(struct trial *trial)
{
    return &trial->world.daemons[trial->node];
}

static bool is_due(const struct trial *trial)
{
    return now_ms() >= trial->due;
}

/* The next move that begins gives up: see slot_begin. */
static void strike_abort(struct trial *trial)
{
    trial->struck = NULL;
}

static bool abort_is_over(struct trial *trial)
{
    return trial->struck != NULL && !trial->struck->used;
}

static void strike_cut(struct trial *trial)
{
    relay_cut(&trial->world.relay, CUT_MS);
    trial->due = now_ms() + CUT_MS;
    trial->struck = NULL;
}

static bool cut_is_over(struct trial *trial)
{
    return is_due(trial) && (trial->fault == F_CUT || trial->struck != NULL);
}

static void strike_reload(struct trial *trial)
{
    kill(struck_daemon(trial)->pid, SIGHUP);
}

static void strike_stop(struct trial *trial)
{
    kill(struck_daemon(trial)->pid, SIGSTOP);
    trial->due = now_ms() + (trial->fault == F_STOP_SHORT ? STOP_SHORT_MS : STOP_LONG_MS);
}

static bool stop_is_over(struct trial *trial)
{
    const bool due = is_due(trial);
    if (due)
        kill(struck_daemon(trial)->pid, SIGCONT);
    return due;
}

static void strike_kill(struct trial *trial)
{
    daemon_kill(struck_daemon(trial));
    trial->due = now_ms() + rng_below(&trial->rng, 300);
}

static bool kill_is_over(struct trial *trial)
{
    return is_due(trial) && daemon_launch(struck_daemon(trial));
}

static void strike_leave(struct trial *trial)
{
    trial->due = now_ms() + LEAVES_MS;
    if (trial->fault == F_REPLACE)
        (void)daemon_replace(struck_daemon(trial));
    else
        daemon_leave(struck_daemon(trial));
}

static bool leave_is_over(struct trial *trial)
{
    struct soak_daemon *daemon = struck_daemon(trial);
    if (!daemon_left(daemon)) {
        if (is_due(trial) && trial->step++ == 0)
            complain("daemon %s does not leave", daemon->name);
        return false;
    }
    return trial->fault == F_REPLACE || daemon_launch(daemon);
}

static void strike_taken(struct trial *trial)
{
    trial->step = 0;
}

static bool taken_is_over(struct trial *trial);

static const struct fault_row {
    const char *name;
    enum harm harm;
    void (*strike)(struct trial *trial);
    bool (*is_over)(struct trial *trial); /* NULL: at once */
} fault_rows[FAULTS + 1] = {
    [F_ABORT_SOURCE] = {"abort by the source", HARM_ONE, strike_abort, abort_is_over},
    [F_ABORT_SINK] = {"abort by the sink", HARM_ONE, strike_abort, abort_is_over},
    [F_ABORT_COLD] = {"abort, not connected", HARM_LINK, strike_cut, cut_is_over},
    [F_PAGE_TAKEN] = {"refused, page taken", HARM_ONE, strike_taken, taken_is_over},
    [F_NAME_TAKEN] = {"refused, name taken", HARM_ONE, strike_taken, taken_is_over},
    [F_RELOAD] = {"SIGHUP", HARM_NONE, strike_reload, NULL},
    [F_STOP_SHORT] = {"SIGSTOP, short", HARM_NONE, strike_stop, stop_is_over},
    [F_STOP_LONG] = {"SIGSTOP, long", HARM_LINK, strike_stop, stop_is_over},
    [F_CUT] = {"connection cut", HARM_LINK, strike_cut, cut_is_over},
    [F_KILL] = {"kill -9, restart", HARM_PROCESS, strike_kill, kill_is_over},
    [F_REPLACE] = {"straitd --replace", HARM_PROCESS, strike_leave, leave_is_over},
    [F_TERMINATE] = {"SIGTERM, restart", HARM_PROCESS, strike_leave, leave_is_over},
    [F_NONE] = {"none", HARM_NONE, NULL, NULL},
};

const char *fault_name(enum fault fault)
{
    return fault_rows[fault].name;
}

/* ---- Moves ------------------------------------------------------------------------------------------------------- */

/* More than one move may be touched now. */
static bool is_storm(const struct trial *trial)
{
    return fault_rows[trial->fault].harm >= HARM_LINK;
}

static void touch(struct slot *slot, enum fault fault)
{
    const enum harm harm = fault_rows[fault].harm;
    slot->harm = harm > slot->harm ? harm : slot->harm;
    slot->fault = fault;
    slot->touched_at = now_seconds();
}

/* The fault wants a move of its own, and has none yet. One that strikes where there is no connection waits until both
 * daemons know that. */
static bool wants_abort(const struct trial *trial)
{
    if (trial->fault == F_ABORT_COLD)
        return trial->struck == NULL && now_ms() + CUT_MS / 2 >= trial->due;
    return (trial->fault == F_ABORT_SOURCE || trial->fault == F_ABORT_SINK) && trial->struck == NULL;
}

static void give_up_later(struct trial *trial, struct slot *slot)
{
    const bool cold = trial->fault == F_ABORT_COLD;
    const bool sink = cold ? rng_below(&trial->rng, 2) == 0 : trial->fault == F_ABORT_SINK;
    slot->abort = sink ? &slot->move.sink : &slot->move.source;
    slot->abort_due = now_ms() + (cold ? 0 : rng_below(&trial->rng, 10));
    touch(slot, trial->fault);
    trial->struck = slot;
}

static void slot_begin(struct trial *trial, struct slot *slot, const struct move_plan *plan)
{
    slot->used = true;
    slot->is_late = false;
    slot->harm = HARM_NONE;
    slot->fault = F_NONE;
    slot->abort = NULL;
    slot->kept_ms = kept_ms();
    slot->touched_at = now_seconds();
    if (trial->fault != F_NONE && fault_rows[trial->fault].harm != HARM_ONE)
        touch(slot, trial->fault);
    move_prepare(&slot->move, plan);
    if (wants_abort(trial) && plan->taken == TAKEN_NOTHING)
        give_up_later(trial, slot);
    move_begin(&slot->move);
    trial->live++;
}

/* False: no pages are vacant on this way. */
static bool draw_plan(struct trial *trial, struct move_plan *plan)
{
    struct rng *rng = &trial->rng;
    const struct route *route = trial->ways[rng_below(rng, 2)];
    *plan = (struct move_plan){.route = route,
                               .pages = 1 + rng_below(rng, 1 + rng_below(rng, PAGES_MAX)),
                               .style = rng_below(rng, STYLES),
                               .parts = 2,
                               .starter = rng_below(rng, STARTERS),
                               .source_first = rng_below(rng, 2),
                               .own_names = rng_below(rng, 2),
                               .aux = rng_below(rng, 4) == 0,
                               .gap_ms = rng_below(rng, 4) == 0 ? rng_below(rng, 20) : 0,
                               .pause_ms = rng_below(rng, 10),
                               .deadline_ms = DEADLINE_MS,
                               .lease_ms = LEASE_MS};
    if (plan->style == STYLE_CHUNKS && plan->pages < plan->parts)
        plan->style = STYLE_WHOLE;
    return plan->pages <= route->source->vacant_count && plan->pages <= route->sink->vacant_count;
}

/* ---- A page or a name that is taken ------------------------------------------------------------------------------ */

static bool begin_taker(struct trial *trial, struct slot *slot)
{
    struct move_plan plan;
    if (!draw_plan(trial, &plan) || plan.pages < 2)
        return false;
    plan.style = STYLE_CHUNKS;
    plan.own_names = plan.held = true;
    plan.gap_ms = 0;
    plan.deadline_ms = HELD_MS;
    slot_begin(trial, slot, &plan);
    return true;
}

static bool begin_refused(struct trial *trial, struct slot *slot, const struct move *taker)
{
    struct move_plan plan;
    if (!draw_plan(trial, &plan) || plan.route != taker->plan.route)
        return false;
    plan.own_names = true;
    plan.taken = trial->fault == F_PAGE_TAKEN ? TAKEN_PAGE : TAKEN_NAME;
    plan.taker = taker;
    if (plan.taken == TAKEN_NAME) /* the source would offer to the other one */
        plan.starter = rng_below(&trial->rng, 2) == 0 ? START_PULL : START_SINK;
    slot_begin(trial, slot, &plan);
    touch(slot, trial->fault);
    return true;
}

/* The taker waits while another is refused; then it goes on, and is DONE as if nothing had happened. */
static bool taken_is_over(struct trial *trial)
{
    struct slot *taker = &trial->slots[trial->slot_count], *refused = taker + 1;
    if (trial->step == 0)
        trial->step = begin_taker(trial, taker);
    else if (trial->step == 1 && !taker->used)
        return true; /* it failed, which was complained about */
    else if (trial->step == 1 && taker->move.sink.state >= STRAIT_READY)
        trial->step += begin_refused(trial, refused, &taker->move);
    else if (trial->step == 2 && !refused->used) {
        move_release(&taker->move);
        trial->step++;
    }
    return trial->step == 3 && !taker->used;
}

/* ---- What must be true of a move --------------------------------------------------------------------------------- */

static double ms_after(double end, double begin)
{
    return (end - begin) * 1e3;
}

static bool was_done(const struct move *move)
{
    return move->source.state == STRAIT_DONE && move->sink.state == STRAIT_DONE;
}

/* From then on a side has to hear of the other one's end. */
static double tellable_at(const struct trial *trial, const struct slot *slot, const struct move_end *ended,
                          const struct move_end *other)
{
    const double begin = later(ended->decided_at, other->begun_at);
    if (slot->harm < HARM_LINK)
        return begin;
    return later(begin, is_storm(trial) ? now_seconds() : trial->healed_at);
}

/* A sink that is told nothing has its deadline; a source is given up as a framework does it. */
static void check_told(struct trial *trial, struct slot *slot, struct move_end *ended, struct move_end *other)
{
    if (!ended->decided || !other->begun || other->decided || slot->is_late)
        return;
    const double ms = ms_after(now_seconds(), tellable_at(trial, slot, ended, other));
    if (ms <= TOLD_MS + kept_since(slot->kept_ms))
        return;
    slot->is_late = true;
    if (slot->harm <= HARM_LINK) {
        trial->stranded++;
        complain(
            "the %s was told nothing for %.0f ms, with \"%s\" of %s; ms since it began %.0f, the other began %.0f and "
            "ended %.0f, the fault %.0f",
            other->is_sink ? "sink" : "source", ms, fault_rows[slot->fault].name, struck_daemon(trial)->name,
            ms_after(now_seconds(), other->begun_at), ms_after(now_seconds(), ended->begun_at),
            ms_after(now_seconds(), ended->decided_at), ms_after(now_seconds(), slot->touched_at));
        move_complain(&slot->move);
    } else {
        trial->accounts[slot->fault].given_up++;
    }
    if (!other->is_sink)
        strait_abort(other->transfer);
}

/* A verdict that does not come at all is one that does not come in time. False: nothing is learned from going on. */
static bool check_stuck(struct trial *trial, struct slot *slot)
{
    const double ms = ms_after(now_seconds(), slot->move.began), kept = kept_since(slot->kept_ms);
    if (ms <= LEASE_MS + HELD_MS + STUCK_MS + kept)
        return true;
    trial->late++;
    complain("not over after %.0f ms; drained: source %d, sink %d; fault \"%s\"", ms, slot->move.source.drained,
             slot->move.sink.drained, fault_rows[slot->fault].name);
    move_complain(&slot->move);
    return false;
}

static void check_late(struct trial *trial, const struct slot *slot, const struct move_end *end, uint32_t limit_ms)
{
    const double ms = ms_after(end->decided_at, end->begun_at);
    if (!end->decided || ms <= limit_ms + MARGIN_MS + kept_since(slot->kept_ms))
        return;
    trial->late++;
    complain("the verdict of a %s came after %.0f ms of %u, with \"%s\"", end->is_sink ? "sink" : "source", ms,
             limit_ms, fault_rows[slot->fault].name);
    move_complain(&slot->move);
}

/* What a busy machine may cost. */
static bool is_of_time(const struct move_end *end)
{
    return end->state == STRAIT_DONE || end->reason == STRAIT_REASON_TIMEOUT ||
           end->reason == STRAIT_REASON_PEER_DOWN || end->reason == STRAIT_REASON_PEER_ABORT ||
           end->reason == STRAIT_REASON_LEASE_EXPIRED;
}

static void check_verdicts(struct trial *trial, const struct slot *slot)
{
    const struct move *move = &slot->move;
    const struct move_plan *plan = &move->plan;
    const enum strait_reason sink = move->sink.reason;
    check_late(trial, slot, &move->sink, plan->deadline_ms);
    check_late(trial, slot, &move->source, plan->lease_ms + plan->deadline_ms + PEER_TIMEOUT_MS);
    if (plan->taken != TAKEN_NOTHING && (move->sink.state != STRAIT_FAILED || sink != STRAIT_REASON_BUSY) &&
        !is_storm(trial)) {
        complain("a sink that names what is taken is not refused");
        move_complain(move);
    }
    if (move->source.state == STRAIT_DONE && move->sink.state != STRAIT_DONE && sink != STRAIT_REASON_LOCAL &&
        sink != STRAIT_REASON_TIMEOUT) {
        complain("DONE at the source alone, with \"%s\"", fault_rows[slot->fault].name);
        move_complain(move);
    }
    if (slot->harm != HARM_NONE || was_done(move))
        return;
    if (kept_since(slot->kept_ms) > LATE_EXCUSES_MS && is_of_time(&move->source) && is_of_time(&move->sink)) {
        trial->excused++;
        return;
    }
    trial->failed_for_nothing++;
    complain("no fault touched it, and it failed; the one at that time: \"%s\"", fault_rows[trial->fault].name);
    move_complain(move);
}

static void account_for(struct trial *trial, const struct slot *slot)
{
    struct account *account = &trial->accounts[slot->fault];
    const struct move *move = &slot->move;
    const struct move_end *ends[2] = {&move->source, &move->sink};
    account->moves++;
    account->done += was_done(move);
    for (int i = 0; i < 2; i++)
        samples_add(&account->verdicts,
                    later(0, ms_after(ends[i]->decided_at, later(slot->touched_at, ends[i]->begun_at))));
    const struct move_end *first = ends[ends[1]->decided_at < ends[0]->decided_at];
    const struct move_end *second = first == ends[0] ? ends[1] : ends[0];
    if (!was_done(move) && !slot->is_late)
        samples_add(&account->told, later(0, ms_after(second->decided_at, later(first->decided_at, second->begun_at))));
}

/* A move that began after the fault's end shows that requests succeed again. */
static void slot_end(struct trial *trial, struct slot *slot)
{
    struct move *move = &slot->move;
    const bool done = was_done(move);
    check_verdicts(trial, slot);
    account_for(trial, slot);
    if (trial->restored && done && move->began >= trial->restored_at)
        trial->healed[move->plan.route == trial->ways[1]] = true;
    if (!move_finish(move) && done)
        trial->wrong++;
    slot->used = false;
    slot->rest_until = done ? 0 : now_ms() + 50 + rng_below(&trial->rng, 50);
    trial->live--;
    trial->ended++;
}

static bool slot_turn(struct trial *trial, struct slot *slot)
{
    struct move *move = &slot->move;
    move_turn(move);
    if (slot->abort != NULL && slot->abort->begun && now_ms() >= slot->abort_due) {
        strait_abort(slot->abort->transfer);
        slot->abort = NULL;
    }
    check_told(trial, slot, &move->sink, &move->source);
    check_told(trial, slot, &move->source, &move->sink);
    if (move_over(move))
        slot_end(trial, slot);
    return !slot->used || check_stuck(trial, slot);
}

/* ---- One fault after another ------------------------------------------------------------------------------------- */

static void shuffle(struct trial *trial)
{
    for (uint32_t i = 0; i < FAULTS; i++)
        trial->deck[i] = i;
    for (uint32_t i = FAULTS - 1; i > 0; i--) {
        const uint32_t j = rng_below(&trial->rng, i + 1), card = trial->deck[i];
        trial->deck[i] = trial->deck[j];
        trial->deck[j] = card;
    }
    trial->deck_at = 0;
}

static enum fault next_fault(struct trial *trial)
{
    for (;;) {
        if (trial->deck_at == FAULTS)
            shuffle(trial);
        const enum fault fault = (enum fault)trial->deck[trial->deck_at++];
        trial->decks += trial->deck_at == FAULTS;
        if (trial->only != F_NONE ? fault == trial->only
                                  : !trial->is_last_part || fault_rows[fault].harm != HARM_PROCESS)
            return fault;
    }
}

static void fault_begin(struct trial *trial)
{
    trial->fault = next_fault(trial);
    trial->node = rng_below(&trial->rng, 2);
    trial->step = 0;
    trial->restored = trial->healed[0] = trial->healed[1] = false;
    trial->accounts[trial->fault].strikes++;
    for (uint32_t i = 0; i < trial->slot_count; i++)
        if (trial->slots[i].used && fault_rows[trial->fault].harm != HARM_ONE)
            touch(&trial->slots[i], trial->fault);
    fault_rows[trial->fault].strike(trial);
}

static void fault_end(struct trial *trial)
{
    if (is_storm(trial))
        trial->healed_at = now_seconds();
    trial->fault = F_NONE;
    trial->next_due = now_ms() + rng_below(&trial->rng, CALM_MS);
}

static void fault_turn(struct trial *trial)
{
    const struct fault_row *row = &fault_rows[trial->fault];
    if (!trial->restored) {
        trial->restored = row->is_over == NULL || row->is_over(trial);
        trial->restored_at = now_seconds();
        trial->restored_kept_ms = kept_ms();
    }
    if (!trial->restored)
        return;
    const double ms = ms_after(now_seconds(), trial->restored_at);
    const bool too_long = ms > HEALED_MS + kept_since(trial->restored_kept_ms);
    if (too_long && is_storm(trial))
        complain("requests do not succeed for %.0f ms after \"%s\" at daemon %s", ms, row->name,
                 struck_daemon(trial)->name);
    if (!is_storm(trial) || (trial->healed[0] && trial->healed[1]) || too_long)
        fault_end(trial);
}

/* ---- The run ----------------------------------------------------------------------------------------------------- */

static bool is_enough(const struct trial *trial)
{
    return trial->ended >= trial->wanted && trial->decks != 0;
}

/* Pages that no sink has named are looked at all the time. */
static void watch_pages(struct trial *trial)
{
    if (now_ms() < trial->watch_due)
        return;
    trial->watch_due = now_ms() + WATCHED_EACH_MS;
    for (uint32_t i = 0; i < 2; i++)
        if (!pool_is_wiped(trial->ways[i]->sink)) {
            trial->wrong++;
            complain("a page was written to that nobody expects, near \"%s\"", fault_rows[trial->fault].name);
            pool_watch(trial->ways[i]->sink);
        }
}

static void next_part(struct trial *trial)
{
    const uint64_t part = trial->wanted / 3;
    if (trial->decks != 0 && trial->ended >= 2 * part && trial->fault == F_NONE)
        trial->is_last_part = true;
    if (!trial->is_last_part || trial->sized_at != 0 || trial->ended < 2 * part + part / 5 || trial->fault != F_NONE)
        return;
    sizes_take(trial);
}

static bool turn(struct trial *trial, bool more)
{
    bool good = true;
    for (uint32_t i = 0; i < trial->slot_count + 2; i++) {
        struct slot *slot = &trial->slots[i];
        struct move_plan plan;
        if (slot->used)
            good = slot_turn(trial, slot) && good;
        else if (more && i < trial->slot_count && now_ms() >= slot->rest_until && draw_plan(trial, &plan))
            slot_begin(trial, slot, &plan);
    }
    return good;
}

static void load(struct trial *trial)
{
    bool good = true;
    while (good && !too_many_complaints()) {
        const bool more = !is_enough(trial) || trial->fault != F_NONE;
        world_look_waited(&trial->world);
        good = turn(trial, more) && world_pump(&trial->world, 1);
        if (trial->fault != F_NONE)
            fault_turn(trial);
        else if (more && now_ms() >= trial->next_due)
            fault_begin(trial);
        watch_pages(trial);
        next_part(trial);
        if (!more && trial->live == 0)
            break;
    }
}

/* ---- The beginning ----------------------------------------------------------------------------------------------- */

#define EXTRA_MAX     16
#define CERTIFICATE_S (24L * 3600)

/* Options of both daemons, in static memory. False: out of room, or no secret can be written. */
static bool make_options(const struct soak_options *options, const char *folder, const char **extra)
{
    static char texts[EXTRA_MAX][160];
    int count = 0;
    snprintf(texts[count++], sizeof(texts[0]), "--peer-timeout=%ums", PEER_TIMEOUT_MS);
    if (options->secret) {
        if (!secret_make(folder))
            return false;
        snprintf(texts[count++], sizeof(texts[0]), "--secret-file=%s/secret", folder);
    }
    if (options->certificates) {
        struct authority authority = authority_make("soak");
        const char *const names[3] = {"certificate", "key", "ca"};
        char paths[3][128];
        for (int i = 0; i < 3; i++) {
            snprintf(paths[i], sizeof(paths[i]), "%s/%s.pem", folder, names[i]);
            snprintf(texts[count++], sizeof(texts[0]), "--tls-%s=%s", names[i], paths[i]);
        }
        certificate_write(&authority, "IP:127.0.0.1,IP:::1", CERTIFICATE_S, 1, paths[0], paths[1]);
        authority_write(&authority, paths[2]);
        authority_free(&authority);
    }
    for (int i = 0; i < COUNT(options->daemon_options) && options->daemon_options[i] != NULL; i++)
        snprintf(texts[count++], sizeof(texts[0]), "--%s", options->daemon_options[i]);
    for (int i = 0; i < count; i++)
        extra[i] = texts[i];
    extra[count] = NULL;
    return true;
}

/* A pool is of sources or of sinks only, so that what is written to the latter can be watched. */
static bool begin(struct trial *trial, const struct soak_options *options)
{
    trial->rng = rng_init(options->seed);
    trial->slot_count = (uint32_t)options->concurrency;
    trial->slots = calloc(trial->slot_count + 2, sizeof(*trial->slots));
    trial->wanted = options->transfers;
    trial->fault = F_NONE;
    trial->only = options->fault < FAULTS ? (enum fault)options->fault : F_NONE;
    require(trial->slots != NULL);
    for (uint32_t i = 0; i < 2; i++) {
        if ((trial->ways[i] = world_route(&trial->world, i, 1 - i, i)) == NULL)
            return false;
        pool_watch(trial->ways[i]->sink);
        trial->world.workers[i].may_lose = true;
    }
    shuffle(trial);
    return true;
}

bool soak_faults(const struct soak_options *options)
{
    static struct trial trial;
    const struct form both[2] = {faults_form, faults_form};
    const char *extra[EXTRA_MAX] = {NULL};
    char folder[64];
    if (strcmp(options->transport, "shm") != 0 && strcmp(options->transport, "tcp") != 0 &&
        !(SOAK_UCX && strcmp(options->transport, "ucx") == 0))
        return false;
    if (!folder_make(folder, "faults") || !make_options(options, folder, extra)) {
        complain("%s: %s", folder, strerror(errno));
        return true;
    }
    const struct daemon_options daemon = {.transports = options->transport,
                                          .arena_bytes = 8 * MIB,
                                          .chunk_bytes = MIB / 4,
                                          .host = options->host,
                                          .relayed = true,
                                          .extra = extra};
    const struct world_plan plan = {.daemon_count = 2,
                                    .worker_count = 2,
                                    .form_count = 2,
                                    .daemons = {daemon, daemon},
                                    .worker_nodes = {0, 1},
                                    .forms = both};
    if (world_init(&trial.world, options->daemon, &plan) && begin(&trial, options)) {
        const double began = now_seconds();
        load(&trial);
        world_check_rest(&trial.world);
        trial.watch_due = 0;
        watch_pages(&trial);
        trial_report(&trial, options->seed, now_seconds() - began);
    }
    world_fini(&trial.world);
    free(trial.slots);
    folder_remove(folder);
    return true;
}
