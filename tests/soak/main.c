/* soak: daemons and their clients under load for as long as one likes, and scenarios of shared arenas, restarts and
 * faults. Exit status: 0, all rules were kept; 1, at least one was broken; 2, the options are wrong.
 *
 * The load is everything at once: sizes from a page to 64 MiB, page sizes, who starts, who comes first,
 * appends by pages and by layers, codings, transports. Nothing may fail, nothing may grow, and in the end daemons and
 * clients must have counted the same. */
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/soak/move.h"
#include "tests/support.h"

/* ---- What daemons take of the machine, second by second ---------------------------------------------------------- */

#define SPREAD_MAX       0.02
#define HEAP_MORE        (4 * MIB) /* the heap is small: a leak of a page per transfer is more than this in minutes */
#define DESCRIPTORS_MORE 2u
#define WATCH_SETTLED_S  180u /* by then a daemon has what it needs */
#define WATCH_JUDGED_S   240u /* runs that are shorter tell nothing */

struct watch {
    const struct soak_daemon *daemon; /* borrowed */
    struct process_size *samples;     /* one a second */
    size_t count, room;
};

static void watch_sample(struct watch *watch)
{
    if (watch->count == watch->room) {
        watch->room = watch->room != 0 ? 2 * watch->room : 64;
        watch->samples = realloc(watch->samples, watch->room * sizeof(*watch->samples));
        require(watch->samples != NULL);
    }
    if (process_size_read(watch->daemon->pid, &watch->samples[watch->count]))
        watch->count++;
}

/* Zeroes when there is none. */
static struct process_size watch_last(const struct watch *watch)
{
    return watch->count != 0 ? watch->samples[watch->count - 1] : (struct process_size){0};
}

static bool is_judged(const struct watch *watch)
{
    return watch->count >= WATCH_JUDGED_S;
}

/* By how much the largest sample after minute 3 exceeds the smallest, as a share of that; -1: too short a run. */
static double watch_resident_spread(const struct watch *watch)
{
    uint64_t least = UINT64_MAX, most = 0;
    for (size_t i = WATCH_SETTLED_S; is_judged(watch) && i < watch->count; i++) {
        uint64_t resident = watch->samples[i].resident;
        least = resident < least ? resident : least;
        most = resident > most ? resident : most;
    }
    return most != 0 ? (double)(most - least) / (double)least : -1;
}

/* Complains when resident memory was not flat, or heap or descriptors grew. */
static void watch_judge(const struct watch *watch)
{
    if (!is_judged(watch))
        return;
    const struct process_size then = watch->samples[WATCH_SETTLED_S], now = watch_last(watch);
    double spread = watch_resident_spread(watch);
    if (spread > SPREAD_MAX)
        complain("daemon %s: resident memory varied by %.1f %% after minute 3", watch->daemon->name, spread * 100);
    if (now.anonymous > then.anonymous + HEAP_MORE)
        complain("daemon %s: %" PRIu64 " KiB of heap at minute 3, %" PRIu64 " KiB in the end", watch->daemon->name,
                 then.anonymous / 1024, now.anonymous / 1024);
    if (now.descriptors > then.descriptors + DESCRIPTORS_MORE)
        complain("daemon %s: %u descriptors at minute 3, %u in the end", watch->daemon->name, then.descriptors,
                 now.descriptors);
}

/* ---- The run ----------------------------------------------------------------------------------------------------- */

struct slot {
    bool used;
    struct move move;
};

struct mixed {
    struct world world;
    struct watch watches[DAEMONS_MAX];
    struct slot *slots;
    uint32_t slot_count, live;
    struct rng rng;
    double sampled, seconds, stall_seconds;
    uint64_t done, bytes, smallest, largest; /* transfers that were DONE and right */
    uint64_t by_style[STYLES], by_starter[STARTERS], by_form[FORMS_MAX];
    uint64_t live_sum, live_samples;
};

#define STALLS "strait_loop_stall_seconds"

/* ---- What both counted ------------------------------------------------------------------------------------------- */

struct row {
    const char *name; /* as the daemon tells it */
    uint64_t clients; /* what the clients counted */
};

static uint32_t workers_at(const struct world *world, uint32_t node)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < world->worker_count; i++)
        count += world->workers[i].node == node;
    return count;
}

static void compare(const struct soak_daemon *daemon, const char *text, const struct row *row)
{
    int64_t value = metric_read(text, row->name);
    bool equal = value >= 0 && (uint64_t)value == row->clients;
    printf("  %-52s %16" PRId64 " %16" PRIu64 "%s\n", row->name, value, row->clients, equal ? "" : "  DIFFERENT");
    if (!equal)
        complain("daemon %s: %s is %" PRId64 ", but clients counted %" PRIu64, daemon->name, row->name, value,
                 row->clients);
}

static void compare_all(const struct mixed *mixed, uint32_t node, const char *text)
{
    const struct tally *t = &tallies[node];
    uint32_t workers = workers_at(&mixed->world, node);
    const struct row rows[] = {{"strait_transfers_started_total{role=\"source\"}", t->offers},
                               {"strait_transfers_started_total{role=\"sink\"}", t->expectations},
                               {"strait_transfers_done_total{role=\"source\"}", t->source_done},
                               {"strait_transfers_done_total{role=\"sink\"}", t->sink_done},
                               {"strait_chunk_raw_bytes_total{direction=\"sent\"}", t->sent_bytes},
                               {"strait_chunk_raw_bytes_total{direction=\"landed\"}", t->landed_bytes},
                               {"strait_local_bytes_total", t->local_bytes},
                               {"strait_clients_accepted_total", workers},
                               {"strait_clients", workers},
                               {"strait_pools", (uint64_t)workers * mixed->world.form_count}};
    for (int i = 0; i < COUNT(rows); i++)
        compare(&mixed->world.daemons[node], text, &rows[i]);
}

/* What no client sees, and what must not have happened. */
static void check_faults(const struct soak_daemon *daemon, const char *text)
{
    static const char *const names[] = {"strait_chunks_refused_total", "strait_client_errors_total",
                                        "strait_peers_lost_total", "strait_peer_errors_total",
                                        "strait_auth_failures_total"};
    static const char *const families[] = {"strait_transfers_failed_total", "strait_clients_refused_total",
                                           "strait_accept_rests_total"};
    for (int i = 0; i < COUNT(names); i++)
        if (metric_read(text, names[i]) != 0)
            complain("daemon %s: %s is %" PRId64, daemon->name, names[i], metric_read(text, names[i]));
    for (int i = 0; i < COUNT(families); i++)
        if (metric_sum(text, families[i]) != 0)
            complain("daemon %s: %s is %" PRId64 " in all", daemon->name, families[i], metric_sum(text, families[i]));
}

static void judge_daemon(struct mixed *mixed, uint32_t node, const char *text)
{
    const struct soak_daemon *daemon = &mixed->world.daemons[node];
    double half = metric_quantile(text, STALLS, 0.5), most = metric_quantile(text, STALLS, 0.999);
    double spread = watch_resident_spread(&mixed->watches[node]);
    const struct process_size size = watch_last(&mixed->watches[node]);
    printf("\ndaemon %s (%s)%*s %16s %16s\n", daemon->name, daemon->options.transports,
           40 - (int)strlen(daemon->options.transports), "", "daemon", "clients");
    compare_all(mixed, node, text);
    check_faults(daemon, text);
    printf("  loop stalls: p50 %.3f ms, p99.9 %.3f ms, of %" PRId64 " turns\n", half * 1e3, most * 1e3,
           metric_read(text, STALLS "_count"));
    if (most < 0 || most >= mixed->stall_seconds)
        complain("daemon %s: p99.9 of loop stalls is %.3f ms", daemon->name, most * 1e3);
    printf("  resident %.1f MiB, heap %.1f MiB, %u descriptors, %u threads", (double)size.resident / MIB,
           (double)size.anonymous / MIB, size.descriptors, size.threads);
    if (spread >= 0)
        printf("; resident after minute 3 within %.2f %%\n", spread * 100);
    else
        printf("; not judged: fewer than %u seconds\n", WATCH_JUDGED_S);
    watch_judge(&mixed->watches[node]);
}

/* ---- All daemons together ---------------------------------------------------------------------------------------- */

struct sums {
    int64_t chunks_sent, chunks_landed, wire_sent, wire_landed;
};

static void add(struct sums *sums, const char *text)
{
    int64_t local = metric_read(text, "strait_chunks_sent_total{coding=\"local\"}");
    sums->chunks_sent += metric_sum(text, "strait_chunks_sent_total") - local;
    sums->chunks_landed += metric_read(text, "strait_chunks_landed_total");
    sums->wire_sent += metric_read(text, "strait_chunk_wire_bytes_total{direction=\"sent\"}");
    sums->wire_landed += metric_read(text, "strait_chunk_wire_bytes_total{direction=\"landed\"}");
}

static void compare_sums(const struct sums *sums)
{
    printf("\nall daemons: %" PRId64 " chunks sent, %" PRId64 " landed; %" PRId64 " bytes on the wire, %" PRId64
           " landed\n",
           sums->chunks_sent, sums->chunks_landed, sums->wire_sent, sums->wire_landed);
    if (sums->chunks_sent != sums->chunks_landed || sums->wire_sent != sums->wire_landed)
        complain("what daemons sent is not what daemons received");
}

static void print_load(const struct mixed *mixed)
{
    double gib = (double)mixed->bytes / (double)(1024 * MIB);
    printf("\n%" PRIu64 " transfers DONE and right in %.1f s: %.1f GiB, %.2f GiB/s; from %" PRIu64 " to %" PRIu64
           " bytes; %.1f of %u in flight on average\n",
           mixed->done, mixed->seconds, gib, gib / mixed->seconds, mixed->smallest, mixed->largest,
           mixed->live_samples != 0 ? (double)mixed->live_sum / (double)mixed->live_samples : 0, mixed->slot_count);
    for (uint32_t i = 0; i < STYLES; i++)
        printf("  %-20s %8" PRIu64 "\n", style_names[i], mixed->by_style[i]);
    for (uint32_t i = 0; i < STARTERS; i++)
        printf("  started: %-11s %8" PRIu64 "\n", starter_names[i], mixed->by_starter[i]);
    for (uint32_t i = 0; i < mixed->world.form_count; i++)
        printf("  %-20s %8" PRIu64 "\n", mixed->world.workers[0].pools[i].form.name, mixed->by_form[i]);
}

/* A load that leaves kinds out would prove less than it says. */
static void check_load(const struct mixed *mixed)
{
    bool all = mixed->done >= mixed->slot_count;
    for (uint32_t i = 0; i < STYLES; i++)
        all = all && mixed->by_style[i] != 0;
    for (uint32_t i = 0; i < STARTERS; i++)
        all = all && mixed->by_starter[i] != 0;
    for (uint32_t i = 0; i < mixed->world.form_count; i++)
        all = all && mixed->by_form[i] != 0;
    if (!all)
        complain("the load was not of all kinds");
}

/* Compares what daemons and clients counted, looks at stalls and memory, and prints all of it. */
static void mixed_judge(struct mixed *mixed)
{
    struct sums sums = {0};
    world_check_rest(&mixed->world);
    print_load(mixed);
    check_load(mixed);
    for (uint32_t node = 0; node < mixed->world.daemon_count; node++) {
        char *text = daemon_metrics(&mixed->world.daemons[node]);
        if (text == NULL) {
            complain("daemon %s does not serve /metrics", mixed->world.daemons[node].name);
            continue;
        }
        judge_daemon(mixed, node, text);
        add(&sums, text);
        free(text);
    }
    compare_sums(&sums);
}

#define DEADLINE_MS (60u * 1000)
#define LARGEST     (64 * MIB)
#define PAUSE_MS    200u /* between appends, at most */
#define GAP_MS      30u  /* between the beginnings of both sides, at most */
#define TOLD_EVERY  15u  /* seconds */

static const struct form forms[] = {
    {.name = "4 KiB, 1 region", .page_bytes = 4096, .layers = 1, .roles = 1, .ids = 4096},
    {.name = "16 KiB, 8 layers",
     .page_bytes = 16384,
     .layers = 8,
     .roles = 2,
     .ids = 256,
     .element = STRAIT_ELEMENT_FP16},
    {.name = "64 KiB, 4 layers", .page_bytes = 65536, .layers = 4, .roles = 2, .ids = 160, .interleaved = true},
    {.name = "256 KiB, 2 layers",
     .page_bytes = 262144,
     .layers = 2,
     .roles = 2,
     .ids = 80,
     .element = STRAIT_ELEMENT_FP32},
};

static const struct daemon_options both = {.transports = "shm,ucx", .arena_bytes = 64 * MIB, .chunk_bytes = 4 * MIB};
static const struct daemon_options shm_only = {.transports = "shm", .arena_bytes = 64 * MIB, .chunk_bytes = 4 * MIB};
static const struct daemon_options ucx_only = {.transports = "ucx", .arena_bytes = 64 * MIB, .chunk_bytes = 4 * MIB};

/* ---- The plan ---------------------------------------------------------------------------------------------------- */

static struct world_plan world_plan(const char *transport)
{
    struct world_plan plan = {.forms = forms, .form_count = COUNT(forms), .worker_count = 4, .daemon_count = 2};
    const uint32_t nodes[WORKERS_MAX] = {0, 1, 0, 1, 2};
    memcpy(plan.worker_nodes, nodes, sizeof(nodes));
    plan.daemons[0] = plan.daemons[1] = strcmp(transport, "ucx") == 0 ? ucx_only : shm_only;
    if (strcmp(transport, "local") == 0) {
        plan.daemon_count = 1;
        memset(plan.worker_nodes, 0, sizeof(plan.worker_nodes));
    } else if (strcmp(transport, "mixed") == 0 && SOAK_UCX) {
        plan.daemons[0] = plan.daemons[1] = both;
        plan.daemons[2] = ucx_only;
        plan.daemon_count = 3;
        plan.worker_count = 5;
    }
    return plan;
}

/* Pairs of workers: those of the two daemons, and what `mixed` has beside. */
static bool make_routes(struct world *world, const char *transport)
{
    static const uint32_t pairs[][2] = {{0, 1}, {2, 3}, {0, 2}, {4, 0}};
    uint32_t count = strcmp(transport, "mixed") != 0 ? 2 : world->worker_count > 4 ? 4 : 3;
    for (uint32_t pair = 0; pair < count; pair++)
        for (uint32_t form = 0; form < world->form_count; form++)
            if (world_route(world, pairs[pair][0], pairs[pair][1], form) == NULL ||
                world_route(world, pairs[pair][1], pairs[pair][0], form) == NULL)
                return false;
    return true;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* From 1 to `most`, small ones more often: as many between 1 and 2 as between `most` / 2 and `most`, and more. */
static uint32_t draw_size(struct rng *rng, uint32_t most)
{
    double share = (double)rng_below(rng, 1u << 20) / (1u << 20);
    return least(most, (uint32_t)pow(most + 1.0, pow(share, 1.5)));
}

/* False: no pages are vacant on this way. */
static bool draw_plan(struct mixed *mixed, struct move_plan *plan)
{
    struct rng *rng = &mixed->rng;
    const struct route *route = &mixed->world.routes[rng_below(rng, mixed->world.route_count)];
    uint32_t vacant = least(route->source->vacant_count, route->sink->vacant_count);
    uint32_t most = (uint32_t)(LARGEST / form_id_bytes(&route->source->form));
    if (vacant == 0)
        return false;
    *plan = (struct move_plan){.route = route,
                               .pages = draw_size(rng, least(vacant, most)),
                               .style = rng_below(rng, STYLES),
                               .parts = 2 + rng_below(rng, 4),
                               .starter = rng_below(rng, STARTERS),
                               .source_first = rng_below(rng, 2),
                               .own_names = rng_below(rng, 2),
                               .aux = rng_below(rng, 4) == 0,
                               .gap_ms = rng_below(rng, 2) * rng_below(rng, GAP_MS),
                               .pause_ms = rng_below(rng, PAUSE_MS),
                               .deadline_ms = DEADLINE_MS};
    if (plan->style == STYLE_CHUNKS && plan->pages < plan->parts)
        plan->style = STYLE_WHOLE;
    return true;
}

/* ---- The load ---------------------------------------------------------------------------------------------------- */

/* A worker's pools are in the order of forms. */
static size_t form_index(const struct route *route)
{
    return (size_t)(route->source - route->source->worker->pools);
}

static void count(struct mixed *mixed, const struct move *move)
{
    const struct move_plan *plan = &move->plan;
    uint64_t bytes = move_bytes(plan);
    mixed->bytes += bytes;
    mixed->smallest = mixed->done == 0 || bytes < mixed->smallest ? bytes : mixed->smallest;
    mixed->largest = bytes > mixed->largest ? bytes : mixed->largest;
    mixed->done++;
    mixed->by_style[plan->style]++;
    mixed->by_starter[plan->starter]++;
    mixed->by_form[form_index(plan->route)]++;
}

static void end_slot(struct mixed *mixed, struct slot *slot)
{
    bool failed = slot->move.source.state != STRAIT_DONE || slot->move.sink.state != STRAIT_DONE;
    if (failed)
        move_complain(&slot->move);
    if (move_finish(&slot->move))
        count(mixed, &slot->move);
    slot->used = false;
    mixed->live--;
}

static void fill_slot(struct mixed *mixed, struct slot *slot)
{
    struct move_plan plan;
    if (!draw_plan(mixed, &plan))
        return;
    move_prepare(&slot->move, &plan);
    move_begin(&slot->move);
    slot->used = true;
    mixed->live++;
}

/* One look at every slot. What is over makes room for the next, while there shall be more. */
static void turn(struct mixed *mixed, bool more)
{
    for (uint32_t i = 0; i < mixed->slot_count; i++) {
        struct slot *slot = &mixed->slots[i];
        if (slot->used)
            move_turn(&slot->move);
        if (slot->used && move_over(&slot->move))
            end_slot(mixed, slot);
        if (!slot->used && more)
            fill_slot(mixed, slot);
    }
}

static void tell_progress(const struct mixed *mixed, double seconds)
{
    printf("%6.0f s  %8" PRIu64 " done  %8.1f GiB  %2u in flight  resident MiB", seconds, mixed->done,
           (double)mixed->bytes / (double)(1024 * MIB), mixed->live);
    for (uint32_t i = 0; i < mixed->world.daemon_count; i++) {
        const struct process_size size = watch_last(&mixed->watches[i]);
        printf("  %s %.1f (heap %.1f)", mixed->world.daemons[i].name, (double)size.resident / MIB,
               (double)size.anonymous / MIB);
    }
    printf("\n");
    fflush(stdout);
}

static void sample(struct mixed *mixed, double seconds)
{
    if (seconds < mixed->sampled + 1)
        return;
    mixed->sampled = floor(seconds);
    for (uint32_t i = 0; i < mixed->world.daemon_count; i++)
        watch_sample(&mixed->watches[i]);
    mixed->live_sum += mixed->live;
    mixed->live_samples++;
    if ((uint64_t)mixed->sampled % TOLD_EVERY == 0)
        tell_progress(mixed, seconds);
}

static void load(struct mixed *mixed, double seconds)
{
    double begin = now_seconds(), elapsed = 0;
    while ((elapsed < seconds || mixed->live != 0) && !too_many_complaints()) {
        turn(mixed, elapsed < seconds);
        if (!world_pump(&mixed->world, 2))
            break;
        elapsed = now_seconds() - begin;
        if (elapsed < seconds)
            sample(mixed, elapsed);
    }
    mixed->seconds = elapsed;
}

/* ---- The run ----------------------------------------------------------------------------------------------------- */

static void begin(struct mixed *mixed, const struct soak_options *options)
{
    mixed->rng = rng_init(3);
    mixed->slot_count = (uint32_t)options->concurrency;
    mixed->stall_seconds = (double)options->stall_ms * 1e-3;
    mixed->slots = calloc(options->concurrency, sizeof(*mixed->slots));
    require(mixed->slots != NULL);
    for (uint32_t i = 0; i < mixed->world.daemon_count; i++)
        mixed->watches[i].daemon = &mixed->world.daemons[i];
}

static void end(struct mixed *mixed)
{
    for (uint32_t i = 0; i < DAEMONS_MAX; i++)
        free(mixed->watches[i].samples);
    world_fini(&mixed->world);
    free(mixed->slots);
}

static void soak_mixed(const struct soak_options *options)
{
    static struct mixed mixed;
    const struct world_plan plan = world_plan(options->transport);
    if (world_init(&mixed.world, options->daemon, &plan) && make_routes(&mixed.world, options->transport)) {
        begin(&mixed, options);
        load(&mixed, (double)options->seconds);
        mixed_judge(&mixed);
    }
    end(&mixed);
}

/* ---- The program ------------------------------------------------------------------------------------------------- */

/* False: there is no such scenario over this transport. */
static bool run(const struct soak_options *options)
{
    const char *transport = options->transport;
    bool mixed = strcmp(options->scenario, "mixed") == 0, local = strcmp(transport, "local") == 0;
    if (strcmp(options->scenario, "faults") == 0)
        return soak_faults(options);
    if (strcmp(transport, "mixed") != 0 && strcmp(transport, "shm") != 0 && strcmp(transport, "ucx") != 0 &&
        !(mixed && local))
        return false;
    if (!mixed)
        return soak_scenario(options);
    soak_mixed(options);
    return true;
}

int main(int argc, char **argv)
{
    struct soak_options options = {.scenario = "mixed",
                                   .transport = "mixed",
                                   .seconds = 60,
                                   .concurrency = 64,
                                   .stall_ms = 20,
                                   .transfers = 2000,
                                   .seed = 1,
                                   .host = "127.0.0.1",
                                   .fault = UINT64_MAX};
    const struct program_option rows[] = {
        {"daemon", "PATH", "the program", .text = &options.daemon},
        {"scenario", "NAME", "mixed (default), one-slot, deadline, restart or faults", .text = &options.scenario},
        {"seconds", "N", "of mixed load (60); resident memory is judged in runs of 4 minutes and more",
         .number = &options.seconds, .least = 1, .most = 7 * 24 * 3600},
        {"transport", "NAME", "shm, ucx, local (mixed only), tcp (faults only), or mixed: all that there are (default)",
         .text = &options.transport},
        {"concurrency", "N", "transfers in flight in mixed load (64)", .number = &options.concurrency, .least = 1,
         .most = 1024},
        {"stall-ms", "N", "limit of the 99.9th percentile of loop stalls (20)", .number = &options.stall_ms, .least = 1,
         .most = 60000},
        {"transfers", "N", "of faults, at least (2000)", .number = &options.transfers, .least = 1, .most = 100000000},
        {"seed", "N", "of what faults draws at random (1)", .number = &options.seed, .most = UINT64_MAX},
        {"fault", "N", "the only one of faults, in the order of the report, from 0", .number = &options.fault,
         .most = UINT32_MAX},
        {"host", "ADDRESS", "of the daemons of faults: 127.0.0.1 (default) or ::1", .text = &options.host},
        {"secret", NULL, "the daemons of faults have one, and speak TLS", .flag = &options.secret},
        {"certificates", NULL, "or certificates", .flag = &options.certificates},
        {"option", "NAME=VALUE", "one more option of the daemons of faults", .list = options.daemon_options,
         .most = COUNT(options.daemon_options) - 1}};
    const struct program program = {"soak", rows, COUNT(rows)};
    if (!program_take_options(&program, argc, argv))
        return 2;
    if (options.daemon == NULL || access(options.daemon, X_OK) != 0)
        return program_refuse(&program, "--daemon has to name a program");
    (void)machine_watch();
    if (!run(&options))
        return program_refuse(&program, "there is no such scenario over this transport");
    if (complaints() != 0)
        printf("soak: %u rules broken\n", complaints());
    else
        printf("soak: all rules kept\n");
    return complaints() != 0;
}
