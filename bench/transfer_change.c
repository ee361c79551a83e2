#include "bench/transfer_change.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/util.h"

#define SECOND 1000000000u

struct change_run {
    struct transfer_bench *bench;
    struct change *change;
    struct move move;
    uint64_t *request_ns;
    uint64_t began;
    double rate;
    struct node_figures before;
};

static bool set_rate(struct change_run *run, double rate)
{
    run->rate = rate;
    return bench_link_shape(&run->bench->paths[PATH_LINK].link, rate, run->bench->options->burst);
}

/* Splits what moved between two times, measured from the beginning, over the seconds. */
static void share_out(struct change *change, uint64_t from, uint64_t to, double bytes, double wire_bytes)
{
    for (uint64_t at = from; at < to;) {
        uint64_t second = at / SECOND, end = (second + 1) * SECOND < to ? (second + 1) * SECOND : to;
        double part = (double)(end - at) / (double)(to - from);
        if (second >= change->count)
            return;
        change->list[second].bytes += part * bytes;
        change->list[second].wire_bytes += part * wire_bytes;
        change->list[second].ns += (double)(end - at);
        at = end;
    }
}

static bool move_once(struct change_run *run)
{
    struct node_figures source, sink;
    uint64_t ns, wrong, from = clock_ns() - run->began, second;

    if (!move_requests(&run->move, &ns, run->request_ns, &wrong) || !bench_path_figures(run->move.path, &source, &sink))
        return false;
    run->change->wrong += wrong;
    share_out(run->change, from, from + ns, (double)shape_bytes(run->move.shape),
              (double)(source.wire_bytes - run->before.wire_bytes));
    run->before = source;
    second = (from + ns) / SECOND;
    if (second < run->change->count) {
        run->change->list[second].rate = run->rate;
        memcpy(run->change->list[second].policy, source.policy, sizeof(source.policy));
    }
    return true;
}

static bool run_half(struct change_run *run, double rate, uint64_t until)
{
    bool good = set_rate(run, rate);

    while (good && clock_ns() - run->began < until)
        good = move_once(run);
    return good;
}

static bool run_both(struct change_run *run)
{
    const struct transfer_options *options = run->bench->options;
    struct node_figures sink;
    uint64_t whole = options->seconds * (uint64_t)SECOND, ns, wrong;

    if (!set_rate(run, options->change[0]) || !move_requests(&run->move, &ns, run->request_ns, &wrong) ||
        !bench_path_figures(run->move.path, &run->before, &sink))
        return false;
    run->change->wrong = wrong;
    run->began = clock_ns();
    return run_half(run, options->change[0], whole / 2) && run_half(run, options->change[1], whole);
}

bool change_run(struct transfer_bench *bench, struct change *change)
{
    struct bench_path *path = &bench->paths[PATH_LINK];
    struct change_run run = {.bench = bench, .change = change};
    bool good;

    *change = (struct change){.count = bench->options->seconds};
    change->list = calloc(change->count, sizeof(change->list[0]));
    run.request_ns = calloc(bench->options->requests, sizeof(run.request_ns[0]));
    if (change->list == NULL || run.request_ns == NULL) {
        print_error(NULL, "out of memory");
        free(run.request_ns);
        return false;
    }
    run.move = (struct move){.path = path,
                             .pools = &bench->pools[PATH_LINK][0],
                             .shape = &bench->shapes[0],
                             .data = &bench->data,
                             .coding = STRAIT_CODING_AUTO,
                             .direction = bench->options->pull ? STRAIT_PULL : STRAIT_PUSH};
    good = bench_path_open(path, PATH_LINK, NULL, &bench->site);
    if (good && !path->up)
        snprintf(change->skipped, sizeof(change->skipped), "no path link: %s", path->why);
    else
        good = good && bench_path_add_pools(path, &bench->pools[PATH_LINK][0], &bench->shapes[0], &bench->data) &&
               run_both(&run);
    free(run.request_ns);
    return good;
}

void change_fini(struct change *change)
{
    free(change->list);
    *change = (struct change){0};
}
