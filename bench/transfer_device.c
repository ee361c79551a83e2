/* strait bench transfer --device: pages that daemons move between pools in GPU memory, beside cudaMemcpyPeer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/moves.h"
#include "bench/pairs.h"
#include "bench/table.h"
#include "tools/pipeline.h"
#include "tools/report.h"

#define SETTLE_NS 60000000000u
#define COUNT_NS  1000000000u

/* ---- Options ----------------------------------------------------------------------------------------------------- */

/* How chunks of GPU pages may travel, among the ways that daemons can be told to use. */
enum wire {
    WIRE_PEER,   /* from GPU to GPU */
    WIRE_PINNED, /* through pinned host memory */
    WIRE_NCCL,   /* from GPU to GPU, over NCCL */
    WIRE_UCX,    /* from GPU to GPU, over UCX */
    WIRES,
};
_Static_assert(WIRES <= PAIRS_WAYS, "each wire is a way");
static const char *const wire_names[] = {"peer", "pinned", "nccl", "ucx", NULL};
static const enum bench_wire wire_counters[WIRES] = {BENCH_PEER, BENCH_PINNED, BENCH_NCCL, BENCH_UCX_CUDA};

struct device_options {
    struct bench_options common;
    bool device; /* always, in effect */
    struct number_list wires, codings, sizes;
    struct text_list daemon;
    uint64_t from, to, sinks, sources, page, requests, repeats, warmups;
};

#define REQUESTS_MAX 64u

#define OPTIONS struct device_options
static const struct bench_option known_options[] = {
    {OPTION(FLAG, device, "device", NULL, NULL, "this bench, in place of the one in host memory")},
    {OPTION(NUMBER, from, "from-gpu", "0", "N", "GPU of the source's pool"), .max = GPU_ANY - 1},
    {OPTION(NUMBER, to, "to-gpu", NULL, "N", "GPU of the sink's pool; 1, or 0 where it is the only one"),
     .max = GPU_ANY - 1},
    {OPTION(NUMBER, sinks, "sinks", "1", "N", "so many sinks of one source, on the GPUs from --to-gpu on, in turn"),
     .min = 1, .max = PAIRS_MAX},
    {OPTION(NUMBER, sources, "sources", "1", "N",
            "so many sources of one sink, on the GPUs from --from-gpu on, in turn"),
     .min = 1, .max = PAIRS_MAX},
    {OPTION(NAMES, wires, "wires", "peer,pinned", "LIST",
            "of peer (from GPU to GPU), pinned (by way of the host), nccl, ucx: two daemons each"),
     .names = wire_names},
    {OPTION(NAMES, codings, "coding", "raw,top16,tiered,auto", "LIST", "codings"), .names = coding_names},
    {OPTION(SIZE, page, "page", "32K", "SIZE", "bytes of a page, a multiple of 16"), .min = PLAN_PAGE_MULTIPLE,
     .max = STRAIT_PAGE_BYTES_MAX, .multiple = PLAN_PAGE_MULTIPLE},
    {OPTION(SIZES, sizes, "size", "8M,64M,256M,1G", "LIST", "bytes of a request"), .min = 16},
    {OPTION(NUMBER, requests, "requests", "1", "N", "requests at once, of each source or sink"), .min = 1,
     .max = REQUESTS_MAX},
    {OPTION(TEXTS, daemon, "daemon", NULL, "NAME=VALUE", "one more option for every straitd, once or more")},
    {OPTION(NUMBER, repeats, "repeats", "20", "N", "run everything N times in turn"), .min = 1, .max = REPEATS_MAX},
    {OPTION(NUMBER, warmups, "warmups", "3", "N", "transfers of each row before"), .max = REPEATS_MAX},
};
static char command_name[] = "strait bench transfer";
static const struct bench_command command = {
    .name = command_name,
    .summary =
        "With --device: measures transfers between pools in GPU memory, from start to DONE at the sink, beside "
        "cudaMemcpyPeer. Starts its own daemons ($STRAITD, or the straitd beside this program) and looks at every "
        "page that lands.",
    .options = known_options,
    .option_count = sizeof(known_options) / sizeof(known_options[0]),
    .codebook = true,
};

static bool options_good(const struct device_options *asked)
{
    if (asked->sinks > 1 && asked->sources > 1)
        print_error(NULL, "--sinks and --sources exclude each other");
    return (asked->sinks == 1 || asked->sources == 1) && daemon_options_good(&asked->daemon);
}

/* ---- State ------------------------------------------------------------------------------------------------------- */

enum row_kind {
    ROW_COPY,   /* cudaMemcpyPeer of one piece for each pair, timed by the host's clock */
    ROW_EVENTS, /* the same, timed between two events */
    ROW_MOVE,   /* pages, moved by daemons */
};

struct row {
    enum row_kind kind;
    bool in_turn; /* one pair after another, not all at once */
    enum wire wire;
    enum strait_coding coding;
    uint64_t bytes;            /* of a request */
    uint32_t ids;              /* in each region */
    int copy, raw, one_by_one; /* rows with which it is compared; -1: none */

    /* Results. */
    uint64_t *ns;             /* one per turn; owned */
    uint64_t *request_ns;     /* one per turn and request; owned */
    double *spread;           /* one per turn: time of the slowest pair by that of the quickest; owned */
    unsigned count;           /* turns so far */
    uint64_t wrong;           /* wrong pages; for a copy, wrong 16-byte pieces */
    struct node_figures used; /* counted by all daemons together during all turns; texts: of the first source */
};

#define ROWS_MAX 1024u

struct bench {
    const struct device_options *asked;
    struct bench_values values;
    struct pairs pairs; /* pools as large as all requests of the largest size */
    struct bench_site site;
    struct row rows[ROWS_MAX];
    unsigned row_count;
    uint64_t turn; /* counts transfers: each uses other pages than the one before */
    bool flipped;  /* the fault that was asked for has been made */
};

static uint32_t requests_of(const struct bench *bench)
{
    return (uint32_t)bench->asked->requests;
}

/* Bytes of all requests of a row in one turn. */
static uint64_t row_total(const struct bench *bench, const struct row *row)
{
    return row->bytes * requests_of(bench) * bench->pairs.count;
}

/* ---- Choosing the rows ------------------------------------------------------------------------------------------- */

static bool make_pairs(struct bench *bench)
{
    const struct number_list *sizes = &bench->asked->sizes;
    uint32_t regions = values_regions(&bench->values);
    uint64_t most = 0, least = UINT64_MAX, round = regions * bench->asked->page;

    for (unsigned i = 0; i < sizes->count; i++) {
        most = sizes->list[i] > most ? sizes->list[i] : most;
        least = sizes->list[i] < least ? sizes->list[i] : least;
    }
    if (least < round || most / round > STRAIT_TRANSFER_PAGES_MAX) {
        print_error(NULL, "--size: a request has 1 to %u pages in each of %u regions", STRAIT_TRANSFER_PAGES_MAX,
                    regions);
        return false;
    }
    const struct gpu_layout layout = {regions, (uint32_t)(most / round) * requests_of(bench),
                                      (uint32_t)bench->asked->page};
    return pairs_make(&bench->pairs, &bench->values, &layout);
}

static void row_free(struct row *row)
{
    free(row->ns);
    free(row->request_ns);
    free(row->spread);
}

/* Returns its index; -1 when out of memory, which was printed to stderr. */
static int add_row(struct bench *bench, struct row row)
{
    const size_t turns = bench->asked->repeats;

    row.ns = calloc(turns, sizeof(row.ns[0]));
    row.request_ns = calloc(turns * bench->pairs.count * requests_of(bench), sizeof(row.request_ns[0]));
    row.spread = calloc(turns, sizeof(row.spread[0]));
    if (row.ns == NULL || row.request_ns == NULL || row.spread == NULL || bench->row_count == ROWS_MAX) {
        print_error(NULL, "out of memory");
        row_free(&row);
        return -1;
    }
    bench->rows[bench->row_count] = row;
    return (int)bench->row_count++;
}

/* The moves of one size: every wire and coding. */
static bool plan_moves(struct bench *bench, struct row row)
{
    const struct number_list *codings = &bench->asked->codings;

    row.kind = ROW_MOVE;
    for (row.wire = 0; row.wire < WIRES; row.wire++) {
        int first = (int)bench->row_count, raw = -1;
        for (unsigned c = 0; list_has(&bench->asked->wires, row.wire) && c < codings->count; c++) {
            row.coding = (enum strait_coding)codings->list[c];
            int added = add_row(bench, row);
            if (added < 0)
                return false;
            raw = row.coding == STRAIT_CODING_RAW ? added : raw;
        }
        for (int i = first; i < (int)bench->row_count; i++)
            bench->rows[i].raw = i == raw ? -1 : raw;
    }
    return true;
}

/* The rows of one size: copies, then moves; where there are several pairs, first all at once, then one after another.
 */
static bool plan_size(struct bench *bench, uint64_t size)
{
    const struct gpu_layout *layout = &bench->pairs.layout;
    const unsigned ways = bench->pairs.count > 1 ? 2 : 1;
    const int first = (int)bench->row_count;
    uint32_t ids = (uint32_t)(size / layout->regions / layout->page_bytes);
    struct row row = {
        .bytes = (uint64_t)ids * layout->regions * layout->page_bytes, .ids = ids, .raw = -1, .one_by_one = -1};

    for (unsigned way = 0; way < ways; way++) {
        row.in_turn = way == 1;
        row.kind = ROW_COPY;
        row.copy = -1;
        const int copy = add_row(bench, row);
        row.kind = ROW_EVENTS;
        if (copy < 0 || (ways == 1 && add_row(bench, row) < 0))
            return false;
        row.copy = copy;
        if (!plan_moves(bench, row))
            return false;
    }
    const int each = ((int)bench->row_count - first) / (int)ways;
    for (int i = first; ways > 1 && i < first + each; i++)
        bench->rows[i].one_by_one = i + each;
    return true;
}

/* ---- Samples ----------------------------------------------------------------------------------------------------- */

/* Some pairs that move at once, and their times. */
struct sample {
    struct bench *bench;
    struct row *row;
    struct landing landing;
    uint64_t ns, *request_ns; /* request_ns has room for all of them */
    double spread;            /* of moves */
};

static bool wipe(void *arg)
{
    const struct sample *sample = arg;

    return landing_wipe(&sample->landing);
}

static bool count_wrong(void *arg, uint64_t *wrong)
{
    const struct sample *sample = arg;
    const struct landing *landing = &sample->landing;
    struct bench *bench = sample->bench;
    const uint64_t page_bytes = bench->pairs.layout.page_bytes;

    if (bench->asked->common.fault.count > 0 && !bench->flipped &&
        !gpu_flip(&landing_pair(landing, 0)->sink, bench->pairs.to_ids[landing->first] * page_bytes + page_bytes / 2))
        return false;
    bench->flipped = true;
    return landing_count_wrong(landing, wrong);
}

/* Copies one piece of each source's memory to the same place at its sink. */
static bool run_copies(struct sample *sample)
{
    const struct landing *landing = &sample->landing;
    const uint64_t bytes = sample->row->bytes * requests_of(sample->bench);
    const uint64_t at = sample->bench->turn % (landing_pair(landing, 0)->source.size / bytes) * bytes;
    const bool events = sample->row->kind == ROW_EVENTS;
    struct gpu_piece pieces[PAIRS_MAX];
    bool good = landing_wipe(landing);

    for (unsigned i = 0; i < landing->count; i++) {
        const struct pair *pair = landing_pair(landing, i);
        pieces[i] = (struct gpu_piece){&pair->sink, &pair->source, at, at, bytes};
    }
    if (landing->count > 1)
        good = good && gpu_copies(pieces, landing->count, &sample->ns);
    else
        good = good && gpu_copy(pieces[0].to, at, pieces[0].from, at, bytes, events, &sample->ns);
    for (unsigned i = 0; good && i < landing->count; i++) {
        const struct pair *pair = landing_pair(landing, i);
        uint64_t differences;
        good = gpu_differences(&pair->sink, at, &pair->reference, at, bytes, &differences);
        sample->row->wrong += differences;
    }
    return good;
}

static bool run_moves(struct sample *sample)
{
    const struct landing *landing = &sample->landing;
    const uint32_t requests = requests_of(sample->bench);
    const struct row *row = sample->row;
    struct move moves[PAIRS_MAX];
    uint64_t move_ns[PAIRS_MAX], quickest = UINT64_MAX, wrong;

    for (unsigned i = 0; i < landing->count; i++)
        moves[i] = (struct move){.path = &landing_pair(landing, i)->paths[row->wire],
                                 .pools = &landing_pair(landing, i)->pools[row->wire],
                                 .bytes = row->bytes * requests,
                                 .pages = row->ids,
                                 .requests = requests,
                                 .from = landing->pairs->from_ids + landing->first,
                                 .to = landing->pairs->to_ids + landing->first,
                                 .coding = row->coding,
                                 .direction = STRAIT_PULL,
                                 .wipe = wipe,
                                 .count_wrong = count_wrong,
                                 .arg = sample};
    if (!moves_from_start(moves, landing->count, move_ns, sample->request_ns, &wrong))
        return false;
    for (unsigned i = 0; i < landing->count; i++) {
        sample->ns = move_ns[i] > sample->ns ? move_ns[i] : sample->ns;
        quickest = move_ns[i] < quickest ? move_ns[i] : quickest;
    }
    sample->spread = (double)sample->ns / (double)quickest;
    sample->row->wrong += wrong;
    return true;
}

/* Of so many pairs from this one on. Each turn takes other ids than the one before, as far as there are any. */
static bool sample_some(struct bench *bench, struct row *row, unsigned pair, unsigned count, uint64_t *request_ns,
                        struct sample *sample)
{
    const uint32_t ids = row->ids * requests_of(bench);
    const uint32_t first = (uint32_t)(bench->turn % (bench->pairs.layout.pages / ids)) * ids;

    *sample = (struct sample){
        .bench = bench, .row = row, .landing = {&bench->pairs, pair, count, first, ids}, .request_ns = request_ns};
    return row->kind == ROW_MOVE ? run_moves(sample) : run_copies(sample);
}

/* Of all pairs. Each turn begins with another one. */
static bool sample_all(struct bench *bench, struct row *row, uint64_t *request_ns, uint64_t *ns, double *spread)
{
    const unsigned count = bench->pairs.count, first = (unsigned)(bench->turn++ % count);
    const unsigned at_once = row->in_turn ? 1 : count;
    struct sample sample;

    *ns = 0;
    for (unsigned i = 0; i < count; i += at_once) {
        if (!sample_some(bench, row, first + i, at_once, request_ns + (size_t)i * requests_of(bench), &sample))
            return false;
        *ns += sample.ns;
        *spread = sample.spread;
    }
    return true;
}

/* ---- Turns ------------------------------------------------------------------------------------------------------- */

/* Counters of all daemons of a wire. */
struct counted {
    struct node_figures source, sink;
};

static bool count(struct bench *bench, const struct row *row, struct counted *counted)
{
    return row->kind != ROW_MOVE || pairs_figures(&bench->pairs, row->wire, &counted->source, &counted->sink);
}

static bool run_turn(struct bench *bench, struct row *row)
{
    const unsigned turn = row->count;
    uint64_t *request_ns = row->request_ns + (size_t)turn * bench->pairs.count * requests_of(bench);
    struct counted before = {0}, after = {0};

    if (!count(bench, row, &before) || !sample_all(bench, row, request_ns, &row->ns[turn], &row->spread[turn]))
        return false;
    const uint64_t end = clock_ns() + COUNT_NS;
    do { /* the source may count a chunk after it has landed */
        if (!count(bench, row, &after))
            return false;
    } while (row->kind == ROW_MOVE && after.source.raw_bytes < before.source.raw_bytes + row_total(bench, row) &&
             clock_ns() < end);
    row->count++;
    node_figures_add(&row->used, &before.source, (uint64_t)-1);
    node_figures_add(&row->used, &before.sink, (uint64_t)-1);
    node_figures_add(&row->used, &after.source, 1);
    node_figures_add(&row->used, &after.sink, 1);
    memcpy(row->used.transport, after.source.transport, sizeof(row->used.transport));
    memcpy(row->used.policy, after.source.policy, sizeof(row->used.policy));
    return !interrupted();
}

/* Runs rows first..end-1, which are of one size; each turn begins with another row. */
static bool run_size(struct bench *bench, unsigned first, unsigned end)
{
    uint64_t request_ns[PAIRS_MAX * REQUESTS_MAX];
    uint64_t ns;
    double spread;

    for (uint64_t warmup = 0; warmup < bench->asked->warmups; warmup++)
        for (unsigned i = first; i < end; i++)
            if (!sample_all(bench, &bench->rows[i], request_ns, &ns, &spread))
                return false;
    for (unsigned turn = 0; turn < bench->asked->repeats; turn++)
        for (unsigned i = 0; i < end - first; i++)
            if (!run_turn(bench, &bench->rows[first + (turn + i) % (end - first)]))
                return false;
    return true;
}

/* Moves pages of one pair until its daemons use the wire to be measured: links between two GPUs take up to seconds to
 * come up, and chunks go through the host meanwhile. */
static bool settle(struct bench *bench, struct row *row, unsigned pair)
{
    const uint64_t end = clock_ns() + SETTLE_NS;
    const enum bench_wire wire = wire_counters[row->wire];
    uint64_t request_ns[REQUESTS_MAX];
    struct counted before, now;
    struct sample forgotten;

    do {
        if (!count(bench, row, &before) || !sample_some(bench, row, pair, 1, request_ns, &forgotten) ||
            !count(bench, row, &now) || interrupted())
            return false;
        if (now.source.wires[wire] > before.source.wires[wire])
            return true;
        sleep_ms(20);
    } while (clock_ns() < end);
    print_error(NULL, "the daemons do not connect the GPUs by %s", wire_names[row->wire]);
    bench_path_print_logs(&bench->pairs.list[pair].paths[row->wire]);
    return false;
}

static bool settle_all(struct bench *bench)
{
    bool settled[WIRES] = {[WIRE_PEER] = true, [WIRE_PINNED] = true};

    for (unsigned i = 0; i < bench->row_count; i++) {
        struct row *row = &bench->rows[i];
        for (unsigned k = 0; row->kind == ROW_MOVE && !settled[row->wire] && k < bench->pairs.count; k++)
            if (!settle(bench, row, k))
                return false;
        settled[row->wire] |= row->kind == ROW_MOVE;
    }
    return true;
}

static bool run_rows(struct bench *bench)
{
    if (!settle_all(bench))
        return false;
    for (unsigned first = 0, end; first < bench->row_count; first = end) {
        for (end = first + 1; end < bench->row_count && bench->rows[end].bytes == bench->rows[first].bytes;)
            end++;
        if (!run_size(bench, first, end))
            return false;
    }
    return true;
}

/* ---- The report -------------------------------------------------------------------------------------------------- */

#define LABEL                                                                                                         \
    {"bytes", NULL, "size", COLUMN_SIZE}, {"case", NULL, "case", COLUMN_TEXT}, {"coding", NULL, "mode", COLUMN_TEXT}, \
        {"path", NULL, "path", COLUMN_TEXT},                                                                          \
    {                                                                                                                 \
        "pairs", NULL, "pairs", COLUMN_TEXT                                                                           \
    }

static const struct column columns[] = {
    LABEL,
    {"wire", NULL, "wire", COLUMN_TEXT},
    {"wire_bytes", NULL, "wire bytes", COLUMN_COUNT},
    {"ratio", NULL, "ratio", COLUMN_RATIO},
    {"p50_ms", NULL, "ms p50", COLUMN_NUMBER},
    {"GBps.p50", "GB/s", "p50", COLUMN_NUMBER},
    {"GBps.p10", "GB/s", "p10", COLUMN_NUMBER},
    {"GBps.p90", "GB/s", "p90", COLUMN_NUMBER},
    {"x_copy", NULL, "x copy", COLUMN_NUMBER},
    {"x_raw", NULL, "x raw", COLUMN_NUMBER},
    {"x_in_turn", NULL, "x in turn", COLUMN_NUMBER},
    {"request_ms.p50", "request ms", "p50", COLUMN_NUMBER},
    {"request_ms.p99", "request ms", "p99", COLUMN_NUMBER},
    {"spread.p50", "slow/quick", "p50", COLUMN_NUMBER},
    {"spread.max", "slow/quick", "max", COLUMN_NUMBER},
    {"wrong", NULL, "check", COLUMN_CHECK},
};
static const struct column phase_columns[] = {
    LABEL,
    PHASE_COLUMNS,
};
static const struct column stage_columns[] = {
    LABEL,
    STAGE_COLUMNS,
};
static const struct table tables[] = {
    TABLE("rows", NULL, NULL, columns),
    TABLE("rows", "phases of one request, us; s: at the source's daemon, within answer and chunks", "phases_us",
          phase_columns),
    TABLE("rows", "where the time of one transfer goes, in ms; of stages: all its chunks together", "stages_ms",
          stage_columns),
};

/* Compares turn by turn: both rows ran in every turn, so longer disturbances affect both. 0: nothing to compare with.
 */
static double compare(const struct bench *bench, const struct row *row, int with)
{
    double quotients[REPEATS_MAX];

    for (unsigned i = 0; with >= 0 && i < row->count; i++)
        quotients[i] = (double)bench->rows[with].ns[i] / (double)row->ns[i];
    return with < 0 ? 0 : median_of(quotients, row->count);
}

/* Of requests, and of pairs at once. */
static bool add_spread(cJSON *object, const struct bench *bench, const struct row *row)
{
    static const char *const figures[] = {"p50", "p99", NULL};
    const size_t count = (size_t)row->count * bench->pairs.count * requests_of(bench);
    double *list = calloc(count, sizeof(list[0]));

    if (list == NULL)
        return false;
    for (size_t i = 0; i < count; i++)
        list[i] = (double)row->request_ns[i] * 1e-6;
    row_add_figures(object, "request_ms", list, count, figures);
    row_add_times(object, "request_ns", row->request_ns, count);
    if (bench->pairs.count > 1 && !row->in_turn)
        row_add_figures(object, "spread", row->spread, row->count, p50_min_max);
    free(list);
    return true;
}

static bool report_row(struct report *report, const struct bench *bench, const struct row *row)
{
    static const char *const kinds[] = {"copy", "events", "strait"}, *const figures[] = {"p50", "p10", "p90", NULL};
    const double total = (double)row_total(bench, row);
    cJSON *object = report_add_row(report, "rows");
    double rates[REPEATS_MAX], mean_ms = 0;
    bool good = true;

    cJSON_AddStringToObject(object, "case", kinds[row->kind]);
    cJSON_AddNumberToObject(object, "bytes", (double)row->bytes);
    cJSON_AddNumberToObject(object, "all_bytes", total);
    if (bench->pairs.count > 1)
        cJSON_AddStringToObject(object, "pairs", row->in_turn ? "in turn" : "at once");
    for (unsigned i = 0; i < row->count; i++) {
        rates[i] = total / (double)row->ns[i];
        mean_ms += (double)row->ns[i] * 1e-6 / row->count;
    }
    row_add_figures(object, "GBps", rates, row->count, figures);
    cJSON_AddNumberToObject(object, "p50_ms", total / median_of(rates, row->count) * 1e-6);
    if (row->kind == ROW_MOVE) {
        cJSON_AddStringToObject(object, "path", wire_names[row->wire]);
        cJSON_AddStringToObject(object, "coding", coding_names[row->coding]);
        node_figures_report(&row->used, row->count, mean_ms, row->coding, object);
        json_add_known(object, "x_copy", compare(bench, row, row->copy));
        json_add_known(object, "x_raw", compare(bench, row, row->raw));
        good = bench->pairs.count * requests_of(bench) == 1 || add_spread(object, bench, row);
    }
    json_add_known(object, "x_in_turn", compare(bench, row, row->one_by_one));
    cJSON_AddNumberToObject(object, "wrong", (double)row->wrong);
    row_add_times(object, "ns", row->ns, row->count);
    return good;
}

/* Adds a GPU that is the end of a pair. */
static void add_device(cJSON *devices, int number, const char *name)
{
    cJSON *device = cJSON_CreateObject();

    cJSON_AddNumberToObject(device, "number", number);
    cJSON_AddStringToObject(device, "name", name);
    cJSON_AddItemToArray(devices, device);
}

/* Devices are those of the sources, then those of the sinks. */
static void report_facts(struct report *report, const struct bench *bench)
{
    cJSON *root = report->root, *devices = cJSON_AddArrayToObject(root, "devices");
    const struct pair *pairs = bench->pairs.list;
    bool direct = true;

    for (uint64_t i = 0; i < bench->asked->sources; i++)
        add_device(devices, pairs[i].from, pairs[i].about.names[0]);
    for (uint64_t i = 0; i < bench->asked->sinks; i++)
        add_device(devices, pairs[i].to, pairs[i].about.names[1]);
    for (unsigned i = 0; i < bench->pairs.count; i++)
        direct &= pairs[i].about.direct;
    cJSON_AddBoolToObject(root, "direct", direct);
    cJSON_AddNumberToObject(root, "driver", pairs[0].about.driver);
    cJSON_AddNumberToObject(root, "runtime", pairs[0].about.runtime);
    report_add_values(report, &bench->values);
    cJSON_AddNumberToObject(root, "regions", bench->pairs.layout.regions);
    cJSON_AddNumberToObject(root, "pages", bench->pairs.layout.pages);
    cJSON_AddNumberToObject(root, "page_bytes", bench->pairs.layout.page_bytes);
    cJSON_AddNumberToObject(root, "requests", requests_of(bench));
    row_add_texts(root, "daemon_options", bench->asked->daemon.list, bench->asked->daemon.count);
    cJSON_AddNumberToObject(root, "repeats", (double)bench->asked->repeats);
    cJSON_AddNumberToObject(root, "warmups", (double)bench->asked->warmups);
}

/* ---- The run ----------------------------------------------------------------------------------------------------- */

static bool connect_all(struct bench *bench)
{
    char option[32];
    bool good = true;

    for (enum wire wire = 0; good && wire < WIRES; wire++) {
        snprintf(option, sizeof(option), "--gpu-wires=%s", wire_names[wire]);
        good = !list_has(&bench->asked->wires, wire) ||
               pairs_connect(&bench->pairs, wire, wire_names[wire], option, &bench->site);
    }
    return good;
}

static bool run(struct bench *bench, struct report *report)
{
    const struct device_options *asked = bench->asked;
    bool good = pairs_choose(&bench->pairs, asked->from, asked->to, asked->sources, asked->sinks) &&
                values_open(&bench->values, &asked->common, 1) && make_pairs(bench) &&
                bench_site_init(&bench->site, &asked->daemon, bench->values.codebook) && connect_all(bench);

    for (unsigned i = 0; good && i < asked->sizes.count; i++)
        good = plan_size(bench, asked->sizes.list[i]);
    if (!good || !run_rows(bench))
        return false;
    report_facts(report, bench);
    for (unsigned i = 0; good && i < bench->row_count; i++)
        good = report_row(report, bench, &bench->rows[i]);
    good = good && pairs_check_sources(&bench->pairs);
    cJSON_AddBoolToObject(report->root, "source_whole", good);
    return report_finish(report, tables, sizeof(tables) / sizeof(tables[0])) && good;
}

static void bench_fini(struct bench *bench)
{
    for (unsigned i = 0; i < bench->row_count; i++)
        row_free(&bench->rows[i]);
    pairs_fini(&bench->pairs);
    bench_site_fini(&bench->site);
    values_close(&bench->values);
}

int bench_transfer_device(int argc, char **argv)
{
    static struct device_options asked = {.to = GPU_ANY};
    static struct bench bench = {.asked = &asked};
    struct report report;
    enum exit_code code;

    if (!command_read(&command, &asked, argc, argv, &code))
        return code;
    if (!options_good(&asked))
        return EXIT_CODE_USAGE;
    interrupts_catch();
    bool good = report_init(&report, &asked.common) && run(&bench, &report);
    bench_fini(&bench);
    report_fini(&report);
    if (interrupted())
        print_error(NULL, "interrupted");
    return good ? EXIT_CODE_OK : EXIT_CODE_DATA;
}
