/* The second half of transfer_rows.h: running them. */
#include "bench/transfer_rows.h"

#include <stdio.h>
#include <string.h>

#include "bench/transfer_process.h"
#include "bench/transfer_rivals.h"
#include "tools/util.h"

#define MESSAGES_MIN 16u /* of the bandwidth test */
#define MESSAGES_MAX 256u

/* ---- Single samples ---------------------------------------------------------------------------------------------- */

static struct move move_of(struct transfer_bench *bench, const struct row *row)
{
    return (struct move){
        .path = &bench->paths[row->path],
        .pools = &bench->pools[row->path][row->shape],
        .shape = &bench->shapes[row->shape],
        .data = &bench->data,
        .coding = row->coding,
        .direction = row->direction,
    };
}

static bool sample_requests(struct transfer_bench *bench, struct row *row)
{
    struct move move = move_of(bench, row);
    uint64_t wrong;

    if (!move_requests(&move, &row->ns[row->count], &row->request_ns[(size_t)row->count * move.shape->requests],
                       &wrong))
        return false;
    row->wrong += wrong;
    return true;
}

static bool sample_layers(struct transfer_bench *bench, struct row *row)
{
    const struct transfer_options *options = bench->options;
    struct move move = move_of(bench, row);
    struct layer_plan plan = {move.shape->regions, options->every_ms, options->aux_after_ms, bench->aux,
                              options->aux_bytes};
    uint64_t wrong;

    if (!move_layers(&move, &plan, &row->layers[row->count], &wrong))
        return false;
    row->ns[row->count] = row->request_ns[row->count] = row->layers[row->count].total_ns;
    row->wrong += wrong;
    return true;
}

static void sample_copy(struct transfer_bench *bench, struct row *row)
{
    const struct shape *shape = &bench->shapes[row->shape];

    shape_wipe(shape, &bench->data);
    row->ns[row->count] = rival_copy(shape, &bench->data);
    row->request_ns[row->count] = row->ns[row->count];
    row->wrong += shape_wrong_pages(shape, &bench->data);
}

/* Sends as many bytes as the shape has, in messages. */
static bool sample_ucx(struct transfer_bench *bench, struct row *row)
{
    uint64_t bytes = shape_bytes(&bench->shapes[row->shape]), messages = bytes / RIVAL_MESSAGE_BYTES;

    if (row->kind == ROW_UCX_LATENCY)
        return rival_ucx_latency(bytes, &row->ns[row->count], &row->request_ns[row->count], row->skipped,
                                 sizeof(row->skipped));
    messages = messages < MESSAGES_MIN ? MESSAGES_MIN : messages > MESSAGES_MAX ? MESSAGES_MAX : messages;
    row->bytes = messages * RIVAL_MESSAGE_BYTES;
    if (!rival_ucx_bandwidth((uint32_t)messages, &row->ns[row->count], row->skipped, sizeof(row->skipped)))
        return false;
    row->request_ns[row->count] = row->ns[row->count];
    return true;
}

/* Scales the result to the bytes of the shape, so that all samples have the same number. */
static bool sample_iperf(struct transfer_bench *bench, struct row *row)
{
    uint64_t bytes, ns;

    if (!rival_iperf(&bench->paths[PATH_LINK].link, &bytes, &ns, row->skipped, sizeof(row->skipped)))
        return false;
    row->ns[row->count] = (uint64_t)((double)ns * (double)row->bytes / (double)bytes);
    row->request_ns[row->count] = row->ns[row->count];
    return true;
}

/* False: the run must end, or a tool has no figure, and `skipped` says why. */
static bool sample(struct transfer_bench *bench, struct row *row)
{
    switch (row->kind) {
    case ROW_REQUESTS:
        return sample_requests(bench, row);
    case ROW_LAYERS:
        return sample_layers(bench, row);
    case ROW_COPY:
        sample_copy(bench, row);
        return true;
    case ROW_IPERF:
        return sample_iperf(bench, row);
    default:
        return sample_ucx(bench, row);
    }
}

/* ---- Counters ---------------------------------------------------------------------------------------------------- */

static bool count_figures(struct transfer_bench *bench, struct row *row, uint64_t sign)
{
    struct bench_path *path = &bench->paths[row->path];
    struct node_figures source, sink;

    if (!row_is_transfer(row))
        return true;
    if (!bench_path_figures(path, &source, &sink))
        return false;
    node_figures_add(&row->used, &source, sign);
    if (!bench_path_is_local(path)) /* a single daemon is counted once */
        node_figures_add(&row->used, &sink, sign);
    memcpy(row->used.transport, source.transport, sizeof(source.transport));
    memcpy(row->used.policy, source.policy, sizeof(source.policy));
    return true;
}

/* ---- Turns ------------------------------------------------------------------------------------------------------- */

static bool run_samples(struct transfer_bench *bench, struct row *row)
{
    bool good = count_figures(bench, row, (uint64_t)-1);

    for (unsigned i = 0; good && i < row->samples; i++) {
        good = sample(bench, row);
        if (!good)
            break;
        row->wall_ns += row->ns[row->count++];
    }
    return good && count_figures(bench, row, 1);
}

/* A row whose tool has no figure is skipped; a failed transfer ends the run. */
static bool run_turn(struct transfer_bench *bench, struct row *row)
{
    if (row->skipped[0] != '\0')
        return true;
    return run_samples(bench, row) || (!row_is_transfer(row) && row->skipped[0] != '\0' && !interrupted());
}

/* Takes one sample to fault in the memory and connect to the peer, and keeps only its count of wrong pages. */
static bool warm_up(struct transfer_bench *bench, struct row *row)
{
    if (row->skipped[0] != '\0' || row->kind == ROW_UCX_BANDWIDTH || row->kind == ROW_UCX_LATENCY ||
        row->kind == ROW_IPERF)
        return true;
    return sample(bench, row);
}

/* Runs rows first..end-1. Each turn begins with the next row, so that no row always follows the same one. */
static bool run_group(struct transfer_bench *bench, unsigned first, unsigned end)
{
    struct row *rows = bench->rows.list;
    unsigned count = end - first;

    for (unsigned i = first; i < end; i++)
        if (!warm_up(bench, &rows[i]))
            return false;
    for (unsigned turn = 0; turn < bench->rows.repeats; turn++)
        for (unsigned i = 0; i < count; i++)
            if (!run_turn(bench, &rows[first + (turn + i) % count]))
                return false;
    return true;
}

/* ---- Paths ------------------------------------------------------------------------------------------------------- */

static bool open_path(struct transfer_bench *bench, enum path_kind kind)
{
    struct bench_path *path = &bench->paths[kind];

    if (!bench_path_open(path, kind, NULL, &bench->site))
        return false;
    for (unsigned i = 0; path->up && i < bench->shape_count; i++)
        if (!bench_path_add_pools(path, &bench->pools[kind][i], &bench->shapes[i], &bench->data))
            return false;
    return true;
}

static void skip_rows(struct transfer_bench *bench, enum path_kind kind)
{
    for (unsigned i = 0; i < bench->rows.count; i++)
        if (bench->rows.list[i].path == kind)
            snprintf(bench->rows.list[i].skipped, sizeof(bench->rows.list[i].skipped), "no path %s: %s",
                     path_names[kind], bench->paths[kind].why);
}

static bool open_paths(struct transfer_bench *bench)
{
    for (enum path_kind kind = 0; kind < PATH_KINDS; kind++) {
        if (!bench->options->paths[kind])
            continue;
        if (!open_path(bench, kind))
            return false;
        if (!bench->paths[kind].up)
            skip_rows(bench, kind);
    }
    return true;
}

static bool measure_idle(struct transfer_bench *bench)
{
    uint64_t before[PATH_KINDS][2];

    if (bench->options->idle_seconds == 0)
        return true;
    sleep_ms(500); /* for cleanup after the last transfer */
    for (int kind = 0; kind < PATH_KINDS; kind++) {
        before[kind][0] = process_cpu_ms(bench->paths[kind].source.pid);
        before[kind][1] = process_cpu_ms(bench->paths[kind].sink.pid);
    }
    sleep_ms(bench->options->idle_seconds * 1000);
    for (int kind = 0; kind < PATH_KINDS; kind++) {
        bench->idle_cpu_ms[kind][0] = process_cpu_ms(bench->paths[kind].source.pid) - before[kind][0];
        bench->idle_cpu_ms[kind][1] = process_cpu_ms(bench->paths[kind].sink.pid) - before[kind][1];
    }
    return !interrupted();
}

bool rows_run(struct transfer_bench *bench)
{
    const struct row_list *rows = &bench->rows;

    if (!open_paths(bench))
        return false;
    for (unsigned first = 0, end; first < rows->count; first = end) {
        const struct row *row = &rows->list[first];
        for (end = first + 1; end < rows->count && rows->list[end].rate == row->rate;)
            end++;
        if (row->rate > 0 && bench->paths[PATH_LINK].up &&
            !bench_link_shape(&bench->paths[PATH_LINK].link, row->rate, bench->options->burst))
            return false;
        if (!run_group(bench, first, end))
            return false;
    }
    return measure_idle(bench);
}
