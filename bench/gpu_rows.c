#include "bench/gpu_rows.h"

#include <stdlib.h>
#include <string.h>

#include "bench/transfer_move.h"
#include "bench/transfer_process.h"
#include "tools/util.h"

#define SETTLE_NS 60000000000u

/* ---- Planning ---------------------------------------------------------------------------------------------------- */

/* Returns its index; -1 when out of memory, which was printed to stderr. */
static int add_row(struct gpu_bench *bench, struct gpu_row row)
{
    row.ns = calloc(bench->options->repeats, sizeof(row.ns[0]));
    if (row.ns == NULL) {
        print_error(NULL, "out of memory");
        return -1;
    }
    bench->rows[bench->row_count] = row;
    return (int)bench->row_count++;
}

static bool add_moves(struct gpu_bench *bench, enum gpu_wire wire, struct gpu_row like)
{
    const struct gpu_options *options = bench->options;
    int first = (int)bench->row_count, raw = -1;

    like.wire = wire;
    for (unsigned c = 0; c < options->coding_count; c++) {
        like.coding = options->codings[c];
        int added = add_row(bench, like);
        if (added < 0)
            return false;
        if (like.coding == STRAIT_CODING_RAW)
            raw = added;
    }
    for (int i = first; i < (int)bench->row_count; i++)
        bench->rows[i].raw = i == raw ? -1 : raw;
    return true;
}

static bool plan_size(struct gpu_bench *bench, uint64_t size)
{
    const struct gpu_layout *layout = &bench->data.layout;
    uint32_t ids = gpu_data_ids(&bench->data, size);
    struct gpu_row row = {.kind = GPU_ROW_COPY,
                          .bytes = (uint64_t)ids * layout->regions * layout->page_bytes,
                          .ids = ids,
                          .copy = -1,
                          .raw = -1};
    int copy = add_row(bench, row);
    bool good = copy >= 0;

    row.kind = GPU_ROW_EVENTS;
    good = good && add_row(bench, row) >= 0;
    row.kind = GPU_ROW_MOVE;
    row.copy = copy;
    for (enum gpu_wire wire = 0; good && wire < GPU_WIRES; wire++)
        good = !bench->options->wires[wire] || add_moves(bench, wire, row);
    return good;
}

bool gpu_rows_plan(struct gpu_bench *bench)
{
    for (unsigned i = 0; i < bench->options->size_count; i++)
        if (!plan_size(bench, bench->options->sizes[i]))
            return false;
    return true;
}

void gpu_rows_fini(struct gpu_bench *bench)
{
    for (unsigned i = 0; i < bench->row_count; i++)
        free(bench->rows[i].ns);
    bench->row_count = 0;
}

bool gpu_rows_right(const struct gpu_bench *bench)
{
    for (unsigned i = 0; i < bench->row_count; i++)
        if (bench->rows[i].wrong > 0)
            return false;
    return !bench->source_bad;
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

/* Copies one piece of the source's memory to the same place at the sink. */
static bool sample_copy(struct gpu_bench *bench, struct gpu_row *row, uint64_t *ns)
{
    struct gpu_data *data = &bench->data;
    uint64_t at = bench->turn++ % (data->source.size / row->bytes) * row->bytes, differences;

    if (!gpu_wipe(&data->sink) ||
        !gpu_copy(&data->sink, at, &data->source, at, row->bytes, row->kind == GPU_ROW_EVENTS, ns) ||
        !gpu_differences(&data->sink, at, &data->reference, at, row->bytes, &differences))
        return false;
    row->wrong += differences;
    return true;
}

/* ---- Transfers --------------------------------------------------------------------------------------------------- */

/* The pages of one transfer. */
struct gpu_landing {
    struct gpu_bench *bench;
    uint32_t first, ids;
};

static bool wipe(void *arg)
{
    const struct gpu_landing *landing = arg;

    return gpu_wipe(&landing->bench->data.sink);
}

static bool count_wrong(void *arg, uint64_t *wrong)
{
    const struct gpu_landing *landing = arg;
    struct gpu_bench *bench = landing->bench;

    if (bench->options->fault && !bench->spoilt) {
        bench->spoilt = true;
        if (!gpu_data_spoil(&bench->data, landing->first))
            return false;
    }
    return gpu_data_wrong_pages(&bench->data, landing->first, landing->ids, wrong);
}

static bool sample_move(struct gpu_bench *bench, struct gpu_row *row, uint64_t *ns)
{
    struct gpu_data *data = &bench->data;
    struct gpu_pair *pair = &bench->pairs[row->wire];
    struct gpu_landing pages = {bench, gpu_data_first(data, row->ids, bench->turn++), row->ids};
    const struct shape shape = {.page_bytes = data->layout.page_bytes,
                                .pages = row->ids,
                                .regions = data->layout.regions,
                                .requests = 1,
                                .from = data->from + pages.first,
                                .to = data->to + pages.first};
    const struct landing landing = {wipe, count_wrong, &pages};
    const struct move move = {.path = &pair->path,
                              .pools = &pair->pools,
                              .shape = &shape,
                              .landing = &landing,
                              .coding = row->coding,
                              .direction = STRAIT_PULL};
    uint64_t wrong;

    if (!move_from_start(&move, ns, &wrong))
        return false;
    row->wrong += wrong;
    return true;
}

static bool sample(struct gpu_bench *bench, struct gpu_row *row, uint64_t *ns)
{
    return row->kind == GPU_ROW_MOVE ? sample_move(bench, row, ns) : sample_copy(bench, row, ns);
}

/* ---- Turns ------------------------------------------------------------------------------------------------------- */

static void add_counted(struct gpu_row *row, const struct gpu_counted *before, const struct gpu_counted *after)
{
    node_figures_add(&row->used, &before->source, (uint64_t)-1);
    node_figures_add(&row->used, &before->sink, (uint64_t)-1);
    node_figures_add(&row->used, &after->source, 1);
    node_figures_add(&row->used, &after->sink, 1);
    wire_figures_add(&row->wires, &before->wires, &after->wires);
    memcpy(row->used.transport, after->source.transport, sizeof(row->used.transport));
    memcpy(row->used.policy, after->source.policy, sizeof(row->used.policy));
}

static bool run_turn(struct gpu_bench *bench, struct gpu_row *row)
{
    struct gpu_pair *pair = &bench->pairs[row->wire];
    struct gpu_counted before, after;
    bool counts = row->kind == GPU_ROW_MOVE;

    if ((counts && !gpu_pair_count(pair, &before)) || !sample(bench, row, &row->ns[row->count]) ||
        (counts && !gpu_pair_count(pair, &after)))
        return false;
    row->count++;
    if (counts)
        add_counted(row, &before, &after);
    return !interrupted();
}

/* Runs rows first..end-1, which are of one size. */
static bool run_size(struct gpu_bench *bench, unsigned first, unsigned end)
{
    unsigned count = end - first;
    uint64_t forgotten;

    for (unsigned warmup = 0; warmup < bench->options->warmups; warmup++)
        for (unsigned i = first; i < end; i++)
            if (!sample(bench, &bench->rows[i], &forgotten))
                return false;
    for (unsigned turn = 0; turn < bench->options->repeats; turn++)
        for (unsigned i = 0; i < count; i++)
            if (!run_turn(bench, &bench->rows[first + (turn + i) % count]))
                return false;
    return true;
}

/* Moves pages until the daemons use the way to be measured: links between two GPUs take up to seconds to come up, and
 * chunks go through the host meanwhile. */
static bool settle_link(struct gpu_bench *bench, struct gpu_row *row)
{
    const uint64_t end = clock_ns() + SETTLE_NS;
    struct gpu_pair *pair = &bench->pairs[row->wire];
    struct gpu_counted now;
    uint64_t forgotten;

    do {
        if (!sample(bench, row, &forgotten) || !gpu_pair_count(pair, &now) || interrupted())
            return false;
        if (wire_figures_of(&now.wires, gpu_wire_counters[row->wire]) > 0)
            return true;
        sleep_ms(20);
    } while (clock_ns() < end);
    print_error(NULL, "the daemons do not connect the GPUs by %s", gpu_wire_names[row->wire]);
    bench_path_tell_logs(&pair->path);
    return false;
}

static bool settle(struct gpu_bench *bench)
{
    bool done[GPU_WIRES] = {[GPU_WIRE_PEER] = true, [GPU_WIRE_PINNED] = true};

    for (unsigned i = 0; i < bench->row_count; i++) {
        struct gpu_row *row = &bench->rows[i];
        if (row->kind == GPU_ROW_MOVE && !done[row->wire] && !settle_link(bench, row))
            return false;
        if (row->kind == GPU_ROW_MOVE)
            done[row->wire] = true;
    }
    return true;
}

bool gpu_rows_run(struct gpu_bench *bench)
{
    bool whole;

    if (!settle(bench))
        return false;
    for (unsigned first = 0, end; first < bench->row_count; first = end) {
        for (end = first + 1; end < bench->row_count && bench->rows[end].kind != GPU_ROW_COPY;)
            end++;
        if (!run_size(bench, first, end))
            return false;
    }
    if (!gpu_data_source_is_whole(&bench->data, &whole))
        return false;
    bench->source_bad = !whole;
    return true;
}
