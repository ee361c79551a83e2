/* strait bench transfer --device: pages that daemons move between pools in GPU memory, beside cudaMemcpyPeer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/daemons.h"
#include "bench/device.h"
#include "bench/table.h"
#include "tools/pipeline.h"
#include "tools/report.h"

#define SETTLE_NS 60000000000u
#define COUNT_NS  1000000000u

_Static_assert(sizeof(((struct strait_pool_region *)0)->ipc) == GPU_HANDLE_BYTES, "a handle fits");

/* ---- Options ----------------------------------------------------------------------------------------------------- */

/* How chunks of GPU pages may travel, among the ways that daemons can be told to use. */
enum wire {
    WIRE_PEER,   /* from GPU to GPU */
    WIRE_PINNED, /* through pinned host memory */
    WIRE_NCCL,   /* from GPU to GPU, over NCCL */
    WIRE_UCX,    /* from GPU to GPU, over UCX */
    WIRES,
};
static const char *const wire_names[] = {"peer", "pinned", "nccl", "ucx", NULL};
static const enum bench_wire wire_counters[WIRES] = {BENCH_PEER, BENCH_PINNED, BENCH_NCCL, BENCH_UCX_CUDA};

struct device_options {
    struct bench_options common;
    bool device; /* always, in effect */
    struct number_list wires, codings, sizes;
    struct text_list daemon;
    uint64_t from, to, page, repeats, warmups;
};

#define GPU_ANY 64u /* the next GPU if there is one */

#define OPTIONS struct device_options
static const struct bench_option known_options[] = {
    {OPTION(FLAG, device, "device", NULL, NULL, "this bench, in place of the one in host memory")},
    {OPTION(NUMBER, from, "from-gpu", "0", "N", "GPU of the source's pool"), .max = GPU_ANY - 1},
    {OPTION(NUMBER, to, "to-gpu", NULL, "N", "GPU of the sink's pool; 1, or 0 where it is the only one"),
     .max = GPU_ANY - 1},
    {OPTION(NAMES, wires, "wires", "peer,pinned", "LIST",
            "of peer (from GPU to GPU), pinned (by way of the host), nccl, ucx: two daemons each"),
     .names = wire_names},
    {OPTION(NAMES, codings, "coding", "raw,top16,tiered,auto", "LIST", "codings"), .names = coding_names},
    {OPTION(SIZE, page, "page", "32K", "SIZE", "bytes of a page, a multiple of 16"), .min = PLAN_PAGE_MULTIPLE,
     .max = STRAIT_PAGE_BYTES_MAX, .multiple = PLAN_PAGE_MULTIPLE},
    {OPTION(SIZES, sizes, "size", "8M,64M,256M,1G", "LIST", "bytes of a request"), .min = 16},
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

/* ---- State ------------------------------------------------------------------------------------------------------- */

enum row_kind {
    ROW_COPY,   /* cudaMemcpyPeer of one piece, timed by the host's clock */
    ROW_EVENTS, /* the same, timed between two events */
    ROW_MOVE,   /* pages, moved by daemons */
};

struct row {
    enum row_kind kind;
    enum wire wire;
    enum strait_coding coding;
    uint64_t bytes;
    uint32_t ids;  /* in each region */
    int copy, raw; /* rows with which it is compared; -1: none */

    /* Results. */
    uint64_t *ns;             /* one per turn; owned */
    unsigned count;           /* turns so far */
    uint64_t wrong;           /* wrong pages; for a copy, wrong 16-byte pieces */
    struct node_figures used; /* counted by both daemons together during all turns; texts: of the source */
};

#define ROWS_MAX 1024u

/* Pools have the size of the largest request. Region r repeats tensor r and belongs to its class. Every GPU_STAMP_STEP
 * bytes carry a number, so that a page in another's place is noticed. */
struct bench {
    const struct device_options *asked;
    int from, to;
    struct gpu_about about;
    struct bench_values values;
    struct gpu_layout layout;
    struct gpu_memory source, sink;
    struct gpu_memory reference; /* a copy of the source, on the sink's GPU */
    uint32_t *from_ids, *to_ids; /* ids of all pages, in random order */
    int32_t *wanted;             /* for checking: which page of the source each page of the sink should equal */
    struct bench_site site;
    struct bench_path paths[WIRES];
    struct bench_pools pools[WIRES];
    struct row rows[ROWS_MAX];
    unsigned row_count;
    uint64_t turn; /* counts transfers: each uses other pages than the one before */
    bool flipped;  /* the fault that was asked for has been made */
};

/* ---- Pools ------------------------------------------------------------------------------------------------------- */

static bool choose_gpus(struct bench *bench)
{
    char why[256];
    int count = (int)gpu_count(why, sizeof(why));

    if (count == 0) {
        print_error(NULL, "--device: no GPU: %s", why);
        return false;
    }
    bench->from = (int)bench->asked->from;
    bench->to = bench->asked->to == GPU_ANY ? (count > 1 ? 1 : 0) : (int)bench->asked->to;
    if (bench->from < count && bench->to < count)
        return true;
    print_error(NULL, "--from-gpu and --to-gpu: there are GPUs 0 to %d", count - 1);
    return false;
}

static bool choose_layout(struct bench *bench)
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
    bench->layout = (struct gpu_layout){regions, (uint32_t)(most / round), (uint32_t)bench->asked->page};
    return true;
}

static bool make_memory(struct bench *bench)
{
    const uint64_t region_bytes = gpu_region_bytes(&bench->layout), size = bench->layout.regions * region_bytes;
    uint64_t ns;

    bench->from_ids = calloc(bench->layout.pages, sizeof(bench->from_ids[0]));
    bench->to_ids = calloc(bench->layout.pages, sizeof(bench->to_ids[0]));
    bench->wanted = calloc(bench->layout.pages, sizeof(bench->wanted[0]));
    if (bench->from_ids == NULL || bench->to_ids == NULL || bench->wanted == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    random_order(bench->from_ids, bench->layout.pages, 1);
    random_order(bench->to_ids, bench->layout.pages, 2);
    if (!gpu_alloc(&bench->source, bench->from, size) || !gpu_alloc(&bench->sink, bench->to, size) ||
        !gpu_alloc(&bench->reference, bench->to, size))
        return false;
    for (uint32_t r = 0; r < bench->layout.regions; r++) {
        const struct span *span = &bench->values.tensors.spans.list[r];
        if (!gpu_tile(&bench->source, r * region_bytes, region_bytes, span->data, 2 * span->values))
            return false;
    }
    return gpu_stamp(&bench->source) && gpu_copy(&bench->reference, 0, &bench->source, 0, size, false, &ns);
}

static bool add_pool(const struct bench *bench, struct bench_side *side, const struct gpu_memory *memory,
                     struct strait_pool **pool)
{
    const struct gpu_layout *layout = &bench->layout;
    struct strait_pool_region regions[VALUE_REGIONS_MAX];

    for (uint32_t r = 0; r < layout->regions; r++) {
        struct strait_class class = bench->values.tensors.spans.list[r].class;
        regions[r] = (struct strait_pool_region){
            .handle = STRAIT_HANDLE_CUDA_IPC,
            .device = memory->gpu,
            .fd = -1,
            .offset = r * gpu_region_bytes(layout),
            .page_stride = layout->page_bytes,
            .page_count = layout->pages,
            .rows = 1,
            .row_bytes = layout->page_bytes,
            .element = STRAIT_ELEMENT_BF16,
            .role = class.role,
            .layer = class.layer,
        };
        memcpy(regions[r].ipc, memory->handle, sizeof(regions[r].ipc));
    }
    return bench_side_register(side, regions, layout->regions, pool);
}

static bool open_path(struct bench *bench, enum wire wire)
{
    struct bench_path *path = &bench->paths[wire];
    struct bench_pools *pools = &bench->pools[wire];
    char option[32];

    snprintf(option, sizeof(option), "--gpu-wires=%s", wire_names[wire]);
    return bench_path_open(path, PATH_SHM, wire_names[wire], option, &bench->site) &&
           add_pool(bench, &path->source, &bench->source, &pools->source) &&
           add_pool(bench, &path->sink, &bench->sink, &pools->sink) && bench_path_introduce(path, pools);
}

/* ---- Choosing the rows ------------------------------------------------------------------------------------------- */

/* Returns its index; -1 when out of memory, which was printed to stderr. */
static int add_row(struct bench *bench, struct row row)
{
    row.ns = calloc(bench->asked->repeats, sizeof(row.ns[0]));
    if (row.ns == NULL || bench->row_count == ROWS_MAX) {
        print_error(NULL, "out of memory");
        free(row.ns);
        return -1;
    }
    bench->rows[bench->row_count] = row;
    return (int)bench->row_count++;
}

/* The rows of one size: copies, then every wire and coding. */
static bool plan_size(struct bench *bench, uint64_t size)
{
    const struct gpu_layout *layout = &bench->layout;
    const struct number_list *codings = &bench->asked->codings;
    uint32_t ids = (uint32_t)(size / layout->regions / layout->page_bytes);
    struct row row = {.kind = ROW_COPY,
                      .bytes = (uint64_t)ids * layout->regions * layout->page_bytes,
                      .ids = ids,
                      .copy = -1,
                      .raw = -1};
    int copy = add_row(bench, row);

    row.kind = ROW_EVENTS;
    if (copy < 0 || add_row(bench, row) < 0)
        return false;
    row.kind = ROW_MOVE;
    row.copy = copy;
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

/* ---- Samples ----------------------------------------------------------------------------------------------------- */

/* Copies one piece of the source's memory to the same place at the sink. */
static bool sample_copy(struct bench *bench, struct row *row, uint64_t *ns)
{
    uint64_t at = bench->turn++ % (bench->source.size / row->bytes) * row->bytes, differences;

    if (!gpu_wipe(&bench->sink) ||
        !gpu_copy(&bench->sink, at, &bench->source, at, row->bytes, row->kind == ROW_EVENTS, ns) ||
        !gpu_differences(&bench->sink, at, &bench->reference, at, row->bytes, &differences))
        return false;
    row->wrong += differences;
    return true;
}

/* The pages of one transfer. */
struct landing {
    struct bench *bench;
    uint32_t first, ids;
};

static bool wipe(void *arg)
{
    const struct landing *landing = arg;

    return gpu_wipe(&landing->bench->sink);
}

/* Landed pages must equal the source's, all others must be wiped. */
static bool count_wrong(void *arg, uint64_t *wrong)
{
    const struct landing *landing = arg;
    struct bench *bench = landing->bench;
    const uint64_t page_bytes = bench->layout.page_bytes;

    for (uint32_t i = 0; i < bench->layout.pages; i++)
        bench->wanted[i] = -1;
    for (uint32_t i = landing->first; i < landing->first + landing->ids; i++)
        bench->wanted[bench->to_ids[i]] = (int32_t)bench->from_ids[i];
    if (bench->asked->common.fault.count > 0 && !bench->flipped &&
        !gpu_flip(&bench->sink, bench->to_ids[landing->first] * page_bytes + page_bytes / 2))
        return false;
    bench->flipped = true;
    return gpu_wrong_pages(&bench->sink, &bench->reference, &bench->layout, bench->wanted, wrong);
}

/* Each turn takes other ids than the one before, as far as there are any. */
static bool sample_move(struct bench *bench, struct row *row, uint64_t *ns)
{
    struct landing landing = {bench, (uint32_t)(bench->turn++ % (bench->layout.pages / row->ids)) * row->ids, row->ids};
    const struct move move = {.path = &bench->paths[row->wire],
                              .pools = &bench->pools[row->wire],
                              .bytes = row->bytes,
                              .pages = row->ids,
                              .requests = 1,
                              .from = bench->from_ids + landing.first,
                              .to = bench->to_ids + landing.first,
                              .coding = row->coding,
                              .direction = STRAIT_PULL,
                              .wipe = wipe,
                              .count_wrong = count_wrong,
                              .arg = &landing};
    uint64_t wrong;

    if (!move_from_start(&move, ns, &wrong))
        return false;
    row->wrong += wrong;
    return true;
}

static bool sample(struct bench *bench, struct row *row, uint64_t *ns)
{
    return row->kind == ROW_MOVE ? sample_move(bench, row, ns) : sample_copy(bench, row, ns);
}

/* Counters of both daemons of a path. */
struct counted {
    struct node_figures source, sink;
};

static bool count(struct bench *bench, const struct row *row, struct counted *counted)
{
    return row->kind != ROW_MOVE || bench_path_figures(&bench->paths[row->wire], &counted->source, &counted->sink);
}

static bool run_turn(struct bench *bench, struct row *row)
{
    struct counted before = {0}, after = {0};

    if (!count(bench, row, &before) || !sample(bench, row, &row->ns[row->count]))
        return false;
    const uint64_t end = clock_ns() + COUNT_NS;
    do { /* the source may count a chunk after it has landed */
        if (!count(bench, row, &after))
            return false;
    } while (row->kind == ROW_MOVE && after.source.raw_bytes < before.source.raw_bytes + row->bytes &&
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
    uint64_t forgotten;

    for (uint64_t warmup = 0; warmup < bench->asked->warmups; warmup++)
        for (unsigned i = first; i < end; i++)
            if (!sample(bench, &bench->rows[i], &forgotten))
                return false;
    for (unsigned turn = 0; turn < bench->asked->repeats; turn++)
        for (unsigned i = 0; i < end - first; i++)
            if (!run_turn(bench, &bench->rows[first + (turn + i) % (end - first)]))
                return false;
    return true;
}

/* Moves pages until the daemons use the wire to be measured: links between two GPUs take up to seconds to come up, and
 * chunks go through the host meanwhile. */
static bool settle(struct bench *bench, struct row *row)
{
    const uint64_t end = clock_ns() + SETTLE_NS;
    struct counted now;
    uint64_t forgotten;

    do {
        if (!sample(bench, row, &forgotten) || !count(bench, row, &now) || interrupted())
            return false;
        if (now.source.wires[wire_counters[row->wire]] > 0)
            return true;
        sleep_ms(20);
    } while (clock_ns() < end);
    print_error(NULL, "the daemons do not connect the GPUs by %s", wire_names[row->wire]);
    bench_path_print_logs(&bench->paths[row->wire]);
    return false;
}

static bool run_rows(struct bench *bench)
{
    bool settled[WIRES] = {[WIRE_PEER] = true, [WIRE_PINNED] = true};

    for (unsigned i = 0; i < bench->row_count; i++) {
        struct row *row = &bench->rows[i];
        if (row->kind == ROW_MOVE && !settled[row->wire] && !settle(bench, row))
            return false;
        settled[row->wire] |= row->kind == ROW_MOVE;
    }
    for (unsigned first = 0, end; first < bench->row_count; first = end) {
        for (end = first + 1; end < bench->row_count && bench->rows[end].kind != ROW_COPY;)
            end++;
        if (!run_size(bench, first, end))
            return false;
    }
    return true;
}

/* ---- The report -------------------------------------------------------------------------------------------------- */

#define LABEL                                                                                                         \
    {"bytes", NULL, "size", COLUMN_SIZE}, {"case", NULL, "case", COLUMN_TEXT}, {"coding", NULL, "mode", COLUMN_TEXT}, \
    {                                                                                                                 \
        "path", NULL, "path", COLUMN_TEXT                                                                             \
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
    {"wrong", NULL, "check", COLUMN_CHECK},
};
static const struct column stage_columns[] = {
    LABEL,
    STAGE_COLUMNS,
};
static const struct table tables[] = {
    TABLE("rows", NULL, NULL, columns),
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

static void report_row(struct report *report, const struct bench *bench, const struct row *row)
{
    static const char *const kinds[] = {"copy", "events", "strait"}, *const figures[] = {"p50", "p10", "p90", NULL};
    cJSON *object = report_add_row(report, "rows");
    double rates[REPEATS_MAX], mean_ms = 0;

    cJSON_AddStringToObject(object, "case", kinds[row->kind]);
    cJSON_AddNumberToObject(object, "bytes", (double)row->bytes);
    for (unsigned i = 0; i < row->count; i++) {
        rates[i] = (double)row->bytes / (double)row->ns[i];
        mean_ms += (double)row->ns[i] * 1e-6 / row->count;
    }
    row_add_figures(object, "GBps", rates, row->count, figures);
    cJSON_AddNumberToObject(object, "p50_ms", (double)row->bytes / median_of(rates, row->count) * 1e-6);
    if (row->kind == ROW_MOVE) {
        cJSON_AddStringToObject(object, "path", wire_names[row->wire]);
        cJSON_AddStringToObject(object, "coding", coding_names[row->coding]);
        node_figures_report(&row->used, row->count, mean_ms, row->coding, object);
        json_add_known(object, "x_copy", compare(bench, row, row->copy));
        json_add_known(object, "x_raw", compare(bench, row, row->raw));
    }
    cJSON_AddNumberToObject(object, "wrong", (double)row->wrong);
    row_add_times(object, "ns", row->ns, row->count);
}

static void report_facts(struct report *report, const struct bench *bench)
{
    cJSON *root = report->root, *devices = cJSON_AddArrayToObject(root, "devices");

    for (int i = 0; i < 2; i++) {
        cJSON *device = cJSON_CreateObject();
        cJSON_AddNumberToObject(device, "number", i == 0 ? bench->from : bench->to);
        cJSON_AddStringToObject(device, "name", bench->about.names[i]);
        cJSON_AddItemToArray(devices, device);
    }
    cJSON_AddBoolToObject(root, "direct", bench->about.direct);
    cJSON_AddNumberToObject(root, "driver", bench->about.driver);
    cJSON_AddNumberToObject(root, "runtime", bench->about.runtime);
    report_add_values(report, &bench->values);
    cJSON_AddNumberToObject(root, "regions", bench->layout.regions);
    cJSON_AddNumberToObject(root, "pages", bench->layout.pages);
    cJSON_AddNumberToObject(root, "page_bytes", bench->layout.page_bytes);
    row_add_texts(root, "daemon_options", bench->asked->daemon.list, bench->asked->daemon.count);
    cJSON_AddNumberToObject(root, "repeats", (double)bench->asked->repeats);
    cJSON_AddNumberToObject(root, "warmups", (double)bench->asked->warmups);
}

/* ---- The run ----------------------------------------------------------------------------------------------------- */

/* Whether nobody has written to the source, which is compared with its copy. */
static bool check_source(struct bench *bench)
{
    uint64_t differences, ns;

    if (!gpu_copy(&bench->sink, 0, &bench->source, 0, bench->source.size, false, &ns) ||
        !gpu_differences(&bench->sink, 0, &bench->reference, 0, bench->source.size, &differences))
        return false;
    if (differences > 0)
        print_error(NULL, "the source's pool has been written to");
    return differences == 0;
}

static bool run(struct bench *bench, struct report *report)
{
    const struct device_options *asked = bench->asked;
    bool good = choose_gpus(bench) && gpu_open(bench->from, bench->to, &bench->about) &&
                values_open(&bench->values, &asked->common, 1) && choose_layout(bench) && make_memory(bench) &&
                bench_site_init(&bench->site, &asked->daemon, bench->values.codebook);

    for (enum wire wire = 0; good && wire < WIRES; wire++)
        good = !list_has(&asked->wires, wire) || open_path(bench, wire);
    for (unsigned i = 0; good && i < asked->sizes.count; i++)
        good = plan_size(bench, asked->sizes.list[i]);
    if (!good || !run_rows(bench))
        return false;
    report_facts(report, bench);
    for (unsigned i = 0; i < bench->row_count; i++)
        report_row(report, bench, &bench->rows[i]);
    good = check_source(bench);
    cJSON_AddBoolToObject(report->root, "source_whole", good);
    return report_finish(report, tables, sizeof(tables) / sizeof(tables[0])) && good;
}

static void bench_fini(struct bench *bench)
{
    for (enum wire wire = 0; wire < WIRES; wire++)
        bench_path_close(&bench->paths[wire]);
    bench_site_fini(&bench->site);
    for (unsigned i = 0; i < bench->row_count; i++)
        free(bench->rows[i].ns);
    gpu_free(&bench->source);
    gpu_free(&bench->sink);
    gpu_free(&bench->reference);
    free(bench->from_ids);
    free(bench->to_ids);
    free(bench->wanted);
    values_close(&bench->values);
}

int bench_transfer_device(int argc, char **argv)
{
    static struct device_options asked = {.to = GPU_ANY};
    static struct bench bench = {.asked = &asked};
    struct report report;
    enum exit_code code;

    if (!options_read(&command, &asked, argc, argv, &code))
        return code;
    if (!daemon_options_good(&asked.daemon))
        return EXIT_CODE_USAGE;
    interrupts_catch();
    bool good = report_init(&report, &asked.common) && run(&bench, &report);
    bench_fini(&bench);
    report_fini(&report);
    if (interrupted())
        print_error(NULL, "interrupted");
    return good ? EXIT_CODE_OK : EXIT_CODE_DATA;
}
