#include "tests/soak/mixed.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/soak/figures.h"
#include "tests/soak/report.h"

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
    int64_t value = figure_read(text, row->name);
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
    static const char *const names[] = {"strait_chunks_refused_total", "strait_clients_refused_total",
                                        "strait_client_errors_total",  "strait_peers_lost_total",
                                        "strait_peer_errors_total",    "strait_auth_failures_total"};
    for (int i = 0; i < COUNT(names); i++)
        if (figure_read(text, names[i]) != 0)
            complain("daemon %s: %s is %" PRId64, daemon->name, names[i], figure_read(text, names[i]));
    if (figure_sum(text, "strait_transfers_failed_total") != 0)
        complain("daemon %s: strait_transfers_failed_total is %" PRId64 " in all", daemon->name,
                 figure_sum(text, "strait_transfers_failed_total"));
}

static void judge_daemon(struct mixed *mixed, uint32_t node, const char *text)
{
    const struct soak_daemon *daemon = &mixed->world.daemons[node];
    double half = figure_quantile(text, STALLS, 0.5), most = figure_quantile(text, STALLS, 0.999);
    double spread = watch_resident_spread(&mixed->watches[node]);
    const struct process_size size = watch_last(&mixed->watches[node]);
    printf("\ndaemon %s (%s)%*s %16s %16s\n", daemon->name, daemon->options.transports,
           40 - (int)strlen(daemon->options.transports), "", "daemon", "clients");
    compare_all(mixed, node, text);
    check_faults(daemon, text);
    printf("  loop stalls: p50 %.3f ms, p99.9 %.3f ms, of %" PRId64 " turns\n", half * 1e3, most * 1e3,
           figure_read(text, STALLS "_count"));
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
    int64_t local = figure_read(text, "strait_chunks_sent_total{coding=\"local\"}");
    sums->chunks_sent += figure_sum(text, "strait_chunks_sent_total") - local;
    sums->chunks_landed += figure_read(text, "strait_chunks_landed_total");
    sums->wire_sent += figure_read(text, "strait_chunk_wire_bytes_total{direction=\"sent\"}");
    sums->wire_landed += figure_read(text, "strait_chunk_wire_bytes_total{direction=\"landed\"}");
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

void mixed_judge(struct mixed *mixed)
{
    struct sums sums = {0};
    world_check_rest(&mixed->world);
    print_load(mixed);
    check_load(mixed);
    for (uint32_t node = 0; node < mixed->world.daemon_count; node++) {
        char *text = figures_fetch(&mixed->world.daemons[node]);
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
