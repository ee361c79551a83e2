/* strait bench transfer: pages that daemons move from pool to pool in host memory, beside memcpy, ucx_perftest, iperf3.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "bench/bench.h"
#include "bench/daemons.h"
#include "bench/moves.h"
#include "bench/table.h"
#include "tools/pipeline.h"
#include "tools/report.h"

#define WIPED         0xFF                   /* NaNs: a page of real values never looks wiped */
#define LATENCY_BYTES ((uint64_t)256 * 1024) /* up to this size a request is compared with the latency of a message */
#define MESSAGES_MIN  16u                    /* of the bandwidth test */
#define MESSAGES_MAX  256u

/* ---- Options ----------------------------------------------------------------------------------------------------- */

struct transfer_options {
    struct bench_options common;
    struct number_list page_sizes, pages, paths, codings, directions, rates, types;
    struct text_list daemon;
    uint64_t regions, requests, repeats, samples, gap, burst, idle;
    bool polls, no_rivals;
};

static const char *const direction_names[] = {"pull", "push", "read", NULL};

static const char *const type_names[] = {"bf16", "fp16", "fp32", NULL}; /* from STRAIT_ELEMENT_BF16 on */

#define OPTIONS struct transfer_options
static const struct bench_option known_options[] = {
    {OPTION(SIZES, page_sizes, "page", "32K", "LIST", "bytes of a page, a multiple of 16"), .min = PLAN_PAGE_MULTIPLE,
     .max = STRAIT_PAGE_BYTES_MAX, .multiple = PLAN_PAGE_MULTIPLE},
    {OPTION(NUMBERS, pages, "pages", "8192", "LIST", "pages of a request in each region"), .min = 1, .max = 1u << 20},
    {OPTION(NUMBER, regions, "regions", "1", "N", "regions of the pools; 0: one for each tensor, with its table"),
     .max = STRAIT_REGIONS_MAX},
    {OPTION(NUMBER, requests, "requests", "1", "N", "requests at once"), .min = 1, .max = 1024},
    {OPTION(NAMES, paths, "path", "local,shm,tcp", "LIST",
            "of local (one daemon), shm, tcp (loopback), link (namespaces with a shaped link, root)"),
     .names = path_names},
    {OPTION(NAMES, codings, "coding", "raw", "LIST", "of raw, top16, tiered, base, split, auto"),
     .names = coding_names},
    {OPTION(NAMES, types, "dtype", "bf16", "TYPE", "of the tensors that are taken: bf16, fp16 or fp32"),
     .names = type_names},
    {OPTION(NAMES, directions, "direction", "pull", "LIST", "of pull, push, read (no offer)"),
     .names = direction_names},
    {OPTION(TEXTS, daemon, "daemon", NULL, "NAME=VALUE", "one more option for every straitd, once or more")},
    {OPTION(NUMBER, repeats, "repeats", "5", "N", "run everything N times in turn"), .min = 1, .max = REPEATS_MAX},
    {OPTION(NUMBER, samples, "samples", "0", "N",
            "transfers of a row in each turn; 0: one, or as many small ones as make 16M"),
     .max = SAMPLES_MAX},
    {OPTION(NUMBER, gap, "gap", "0", "US",
            "microseconds between what the other side asks for and the start, in which a daemon falls asleep"),
     .max = 1000000},
    {OPTION(FLAG, polls, "poll", NULL, NULL, "the clients poll instead of sleeping")},
    {OPTION(FLAG, no_rivals, "no-rivals", NULL, NULL, "without memcpy, ucx_perftest and iperf3")},
    {OPTION(RATES, rates, "rate", "1", "LIST", "of the link, Gbit/s, one group of rows each")},
    {OPTION(SIZE, burst, "burst", "512K", "SIZE", "of the link's token bucket"), .min = 4096, .max = 1u << 30},
    {OPTION(NUMBER, idle, "idle", "0", "SECONDS", "afterwards, processor time of idle, connected daemons"),
     .max = 3600},
};
static char command_name[] = "strait bench transfer";
static const struct bench_command command = {
    .name = command_name,
    .summary =
        "Measures transfers from pool to pool, from start to DONE at the sink, beside memcpy, ucx_perftest and "
        "iperf3. Starts its own daemons ($STRAITD, or the straitd beside this program) and looks at every page that "
        "lands. With --device: between pools in GPU memory, with options of its own.",
    .options = known_options,
    .option_count = sizeof(known_options) / sizeof(known_options[0]),
    .codebook = true,
};

/* ---- Pages ------------------------------------------------------------------------------------------------------- */

/* One way to cut the memory into pages. Request q has its own places q * pages onward. */
struct shape {
    uint64_t page_bytes, bytes; /* bytes: of all requests together */
    uint32_t pages;             /* of a request, in each region */
    uint32_t places;            /* of a region: pages of all requests */
    uint32_t *from, *to;        /* page ids of the places, in random order */
    uint64_t *sums;             /* XXH3-64 of the source's pages: [region][place] */
};

#define SHAPES_MAX 64u

enum row_kind { ROW_REQUESTS, ROW_COPY, ROW_UCX_BANDWIDTH, ROW_UCX_LATENCY, ROW_IPERF };
static const char *const row_kind_names[] = {"strait", "memcpy", "ucx_am_bw", "ucx_am_lat", "iperf3"};

struct row {
    enum row_kind kind;
    enum path_kind path;
    unsigned shape;
    enum strait_coding coding;
    unsigned direction; /* in direction_names */
    uint64_t rate;      /* of the link, kbit/s; 0: none */
    int base;           /* index of the row with which it is compared; -1: none */
    unsigned samples;   /* in each turn */

    /* Results; for a row that could not be run, only the reason. */
    char skipped[REASON_BYTES + 32];
    uint64_t bytes;           /* of a sample */
    uint64_t *ns;             /* one per sample, turn by turn; owned */
    uint64_t *request_ns;     /* one per request and sample; owned. Of ROW_UCX_LATENCY: the 99th percentiles */
    unsigned count;           /* samples so far */
    uint64_t wrong;           /* pages */
    uint64_t wall_ns;         /* of all samples */
    struct node_figures used; /* counted by both daemons together during all samples; texts: of the source */
};

struct bench {
    const struct transfer_options *asked;
    struct bench_values values;
    struct strait_memory source, sink;
    uint64_t region_step; /* bytes from one region to the next */
    uint32_t regions;
    struct bench_site site;
    struct bench_path paths[PATH_KINDS];
    struct shape shapes[SHAPES_MAX];
    unsigned shape_count;
    struct bench_pools pools[PATH_KINDS][SHAPES_MAX];
    struct row *rows;
    unsigned row_count;
    bool flipped; /* the fault that was asked for has been made */
};

/* Memory for the largest shape. Region r repeats tensor r; a single region repeats all tensors, one after another. */
static bool make_memory(struct bench *bench)
{
    const struct transfer_options *asked = bench->asked;
    const struct spans *spans = &bench->values.tensors.spans;
    uint64_t most = 0, size;

    for (unsigned p = 0; p < asked->page_sizes.count; p++)
        for (unsigned c = 0; c < asked->pages.count; c++)
            if (asked->page_sizes.list[p] * asked->pages.list[c] > most)
                most = asked->page_sizes.list[p] * asked->pages.list[c];
    bench->regions = asked->regions == 0 ? (uint32_t)spans->count : (uint32_t)asked->regions;
    bench->region_step = most * asked->requests;
    if (__builtin_mul_overflow(bench->region_step, bench->regions, &size) || size > INT64_MAX ||
        strait_alloc(size, &bench->source) != STRAIT_OK || strait_alloc(size, &bench->sink) != STRAIT_OK) {
        print_error(NULL, "no memory for the pages");
        return false;
    }
    if (bench->regions == 1)
        spans_fill(bench->source.base, size, spans, 0, spans->count);
    else
        for (uint32_t r = 0; r < bench->regions; r++)
            spans_fill((uint8_t *)bench->source.base + r * bench->region_step, bench->region_step, spans,
                       r % spans->count, 1);
    memset(bench->sink.base, WIPED, size);
    return true;
}

static uint8_t *page_at(const struct bench *bench, const struct strait_memory *memory, const struct shape *shape,
                        uint32_t region, uint32_t id)
{
    return (uint8_t *)memory->base + region * bench->region_step + id * shape->page_bytes;
}

static bool add_shape(struct bench *bench, uint64_t page_bytes, uint32_t pages)
{
    struct shape *shape = &bench->shapes[bench->shape_count];
    uint32_t places = pages * (uint32_t)bench->asked->requests;

    if (bench->shape_count == SHAPES_MAX) {
        print_error(NULL, "--page and --pages: at most %u pairs", SHAPES_MAX);
        return false;
    }
    bench->shape_count++;
    *shape = (struct shape){.page_bytes = page_bytes,
                            .bytes = page_bytes * places * bench->regions,
                            .pages = pages,
                            .places = places,
                            .from = calloc(places, sizeof(shape->from[0])),
                            .to = calloc(places, sizeof(shape->to[0])),
                            .sums = calloc((size_t)places * bench->regions, sizeof(shape->sums[0]))};
    if (shape->from == NULL || shape->to == NULL || shape->sums == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    random_order(shape->from, places, 1);
    random_order(shape->to, places, 2);
    for (uint32_t r = 0; r < bench->regions; r++)
        for (uint32_t i = 0; i < places; i++)
            shape->sums[(uint64_t)r * places + i] =
                XXH3_64bits(page_at(bench, &bench->source, shape, r, shape->from[i]), page_bytes);
    return true;
}

/* The pages of one sample. */
struct landing {
    struct bench *bench;
    const struct shape *shape;
};

/* Overwrites the sink's pages, so that pages left by an earlier transfer cannot pass the check. */
static bool wipe(void *arg)
{
    const struct landing *landing = arg;
    const struct bench *bench = landing->bench;

    for (uint32_t r = 0; r < bench->regions; r++) /* the ids are all of 0..places-1 */
        memset(page_at(bench, &bench->sink, landing->shape, r, 0), WIPED,
               landing->shape->places * landing->shape->page_bytes);
    return true;
}

static bool count_wrong(void *arg, uint64_t *wrong)
{
    const struct landing *landing = arg;
    const struct shape *shape = landing->shape;
    struct bench *bench = landing->bench;

    if (bench->asked->common.fault.count > 0 && !bench->flipped)
        page_at(bench, &bench->sink, shape, 0, shape->to[0])[shape->page_bytes / 2] ^= 1;
    bench->flipped = true;
    *wrong = 0;
    for (uint32_t r = 0; r < bench->regions; r++)
        for (uint32_t i = 0; i < shape->places; i++)
            *wrong += XXH3_64bits(page_at(bench, &bench->sink, shape, r, shape->to[i]), shape->page_bytes) !=
                      shape->sums[(uint64_t)r * shape->places + i];
    return true;
}

/* ---- Choosing the rows ------------------------------------------------------------------------------------------- */

static bool is_transfer(const struct row *row)
{
    return row->kind == ROW_REQUESTS;
}

static unsigned requests_of(const struct bench *bench, const struct row *row)
{
    return is_transfer(row) ? (unsigned)bench->asked->requests : 1;
}

/* Adds a row and returns its index; -1 when out of memory, which was printed to stderr. */
static int add_row(struct bench *bench, struct row row)
{
    struct row *grown = realloc(bench->rows, (bench->row_count + 1) * sizeof(row));
    uint64_t bytes = bench->shapes[row.shape].bytes;
    size_t count;

    row.samples = 1;
    if (is_transfer(&row) || row.kind == ROW_COPY)
        row.samples = samples_in_turn(bench->asked->samples, bytes);
    row.bytes = bytes;
    count = (size_t)row.samples * bench->asked->repeats;
    row.ns = calloc(count, sizeof(row.ns[0]));
    row.request_ns = calloc(count * requests_of(bench, &row), sizeof(row.request_ns[0]));
    if (grown == NULL || row.ns == NULL || row.request_ns == NULL) {
        print_error(NULL, "out of memory");
        free(row.ns);
        free(row.request_ns);
        return -1;
    }
    bench->rows = grown;
    bench->rows[bench->row_count] = row;
    return (int)bench->row_count++;
}

/* Adds the rows of one shape, path and rate: every direction and coding. On a link they are compared with the first raw
 * one. */
static bool add_transfers(struct bench *bench, struct row row)
{
    const struct transfer_options *asked = bench->asked;

    row.kind = ROW_REQUESTS;
    for (unsigned d = 0; d < asked->directions.count; d++)
        for (unsigned c = 0; c < asked->codings.count; c++) {
            row.direction = (unsigned)asked->directions.list[d];
            row.coding = row.path == PATH_LOCAL ? STRAIT_CODING_RAW : (enum strait_coding)asked->codings.list[c];
            if (row.path == PATH_LOCAL && c > 0)
                continue; /* one daemon copies */
            int added = add_row(bench, row);
            if (added < 0)
                return false;
            if (row.path == PATH_LINK && row.coding == STRAIT_CODING_RAW && d == 0)
                row.base = added;
        }
    return true;
}

/* On one host, transfers are compared with a copy of the same pages; over TCP, with ucx_perftest. */
static bool add_host_rows(struct bench *bench, unsigned shape)
{
    const struct number_list *paths = &bench->asked->paths;
    bool small = bench->shapes[shape].bytes <= LATENCY_BYTES, rivals = !bench->asked->no_rivals;
    struct row copy = {.kind = ROW_COPY, .path = PATH_LOCAL, .shape = shape, .base = -1};
    struct row ucx = {
        .kind = small ? ROW_UCX_LATENCY : ROW_UCX_BANDWIDTH, .path = PATH_TCP, .shape = shape, .base = -1};
    int base = -1;

    if (rivals && (list_has(paths, PATH_LOCAL) || list_has(paths, PATH_SHM)) && (base = add_row(bench, copy)) < 0)
        return false;
    for (enum path_kind path = PATH_LOCAL; path <= PATH_SHM; path++)
        if (list_has(paths, path) && !add_transfers(bench, (struct row){.path = path, .shape = shape, .base = base}))
            return false;
    if (!list_has(paths, PATH_TCP))
        return true;
    base = -1;
    if (rivals && (base = add_row(bench, ucx)) < 0)
        return false;
    return add_transfers(bench, (struct row){.path = PATH_TCP, .shape = shape, .base = base});
}

static bool add_link_rows(struct bench *bench, uint64_t rate)
{
    int base = -1;

    if (!bench->asked->no_rivals &&
        (base = add_row(bench, (struct row){.kind = ROW_IPERF, .path = PATH_LINK, .rate = rate, .base = -1})) < 0)
        return false;
    for (unsigned shape = 0; shape < bench->shape_count; shape++)
        if (!add_transfers(bench, (struct row){.path = PATH_LINK, .shape = shape, .rate = rate, .base = base}))
            return false;
    return true;
}

static bool plan(struct bench *bench)
{
    const struct transfer_options *asked = bench->asked;
    bool good = true;

    for (unsigned p = 0; p < asked->page_sizes.count; p++)
        for (unsigned c = 0; good && c < asked->pages.count; c++)
            good = add_shape(bench, asked->page_sizes.list[p], (uint32_t)asked->pages.list[c]);
    for (unsigned i = 0; good && i < bench->shape_count; i++)
        good = add_host_rows(bench, i);
    for (unsigned i = 0; good && i < asked->rates.count && list_has(&asked->paths, PATH_LINK); i++)
        good = add_link_rows(bench, asked->rates.list[i]);
    return good;
}

/* ---- Samples ----------------------------------------------------------------------------------------------------- */

static bool sample_requests(struct bench *bench, struct row *row)
{
    const struct shape *shape = &bench->shapes[row->shape];
    struct landing landing = {bench, shape};
    const struct move move = {.path = &bench->paths[row->path],
                              .pools = &bench->pools[row->path][row->shape],
                              .bytes = shape->bytes,
                              .pages = shape->pages,
                              .requests = (uint32_t)bench->asked->requests,
                              .from = shape->from,
                              .to = shape->to,
                              .coding = row->coding,
                              .direction = row->direction == 1 ? STRAIT_PUSH : STRAIT_PULL,
                              .reads = row->direction == 2,
                              .gap_us = (uint32_t)bench->asked->gap,
                              .polls = bench->asked->polls,
                              .wipe = wipe,
                              .count_wrong = count_wrong,
                              .arg = &landing};
    uint64_t wrong;

    if (!move_requests(&move, &row->ns[row->count], &row->request_ns[(size_t)row->count * move.requests], &wrong))
        return false;
    row->wrong += wrong;
    return true;
}

/* One thread copies the same pages in the same order. */
static bool sample_copy(struct bench *bench, struct row *row)
{
    const struct shape *shape = &bench->shapes[row->shape];
    struct landing landing = {bench, shape};
    uint64_t wrong;

    wipe(&landing);
    uint64_t began = clock_ns();
    for (uint32_t r = 0; r < bench->regions; r++)
        for (uint32_t i = 0; i < shape->places; i++)
            memcpy(page_at(bench, &bench->sink, shape, r, shape->to[i]),
                   page_at(bench, &bench->source, shape, r, shape->from[i]), shape->page_bytes);
    row->ns[row->count] = row->request_ns[row->count] = clock_ns() - began + 1;
    count_wrong(&landing, &wrong);
    row->wrong += wrong;
    return true;
}

/* Sends as many bytes as the shape has, in messages. */
static bool sample_bandwidth(struct bench *bench, struct row *row)
{
    uint64_t messages = bench->shapes[row->shape].bytes / UCX_MESSAGE_BYTES;

    messages = messages < MESSAGES_MIN ? MESSAGES_MIN : messages > MESSAGES_MAX ? MESSAGES_MAX : messages;
    row->bytes = messages * UCX_MESSAGE_BYTES;
    return tool_ucx_bandwidth((uint32_t)messages, &row->ns[row->count], row->skipped, sizeof(row->skipped));
}

/* Scales the result to the bytes of the shape, so that all samples have the same number. */
static bool sample_iperf(struct bench *bench, struct row *row)
{
    uint64_t bytes, ns;

    if (!tool_iperf(&bench->paths[PATH_LINK].link, &bytes, &ns, row->skipped, sizeof(row->skipped)))
        return false;
    row->ns[row->count] = (uint64_t)((double)ns * (double)row->bytes / (double)bytes);
    return true;
}

/* False: the run must end, or a tool has no figure, and `skipped` says why. */
static bool sample(struct bench *bench, struct row *row)
{
    switch (row->kind) {
    case ROW_REQUESTS:
        return sample_requests(bench, row);
    case ROW_COPY:
        return sample_copy(bench, row);
    case ROW_IPERF:
        return sample_iperf(bench, row);
    case ROW_UCX_LATENCY:
        return tool_ucx_latency(row->bytes, &row->ns[row->count], &row->request_ns[row->count], row->skipped,
                                sizeof(row->skipped));
    default:
        return sample_bandwidth(bench, row);
    }
}

/* Adds what both daemons have counted. */
static bool count_figures(struct bench *bench, struct row *row, uint64_t sign)
{
    struct node_figures source, sink;

    if (!is_transfer(row))
        return true;
    if (!bench_path_figures(&bench->paths[row->path], &source, &sink))
        return false;
    node_figures_add(&row->used, &source, sign);
    if (row->path != PATH_LOCAL) /* a single daemon is counted once */
        node_figures_add(&row->used, &sink, sign);
    memcpy(row->used.transport, source.transport, sizeof(source.transport));
    memcpy(row->used.policy, source.policy, sizeof(source.policy));
    return true;
}

/* A row whose tool has no figure is skipped; a failed transfer ends the run. */
static bool run_turn(struct bench *bench, struct row *row)
{
    bool good = row->skipped[0] == '\0' && count_figures(bench, row, (uint64_t)-1);

    for (unsigned i = 0; good && i < row->samples; i++) {
        good = sample(bench, row);
        if (good)
            row->wall_ns += row->ns[row->count++];
    }
    good = good && count_figures(bench, row, 1);
    return (good || (!is_transfer(row) && row->skipped[0] != '\0')) && !interrupted();
}

/* Runs rows first..end-1, first a sample of each that faults in memory and connects peers and of which only the wrong
 * pages are kept. Each turn begins with the next row, so that no row always follows the same one. */
static bool run_group(struct bench *bench, unsigned first, unsigned end)
{
    unsigned count = end - first;

    for (unsigned i = first; i < end; i++) {
        struct row *row = &bench->rows[i];
        if (row->skipped[0] == '\0' && (is_transfer(row) || row->kind == ROW_COPY) && !sample(bench, row))
            return false;
    }
    for (unsigned turn = 0; turn < bench->asked->repeats; turn++)
        for (unsigned i = 0; i < count; i++) {
            struct row *row = &bench->rows[first + (turn + i) % count];
            if (!(is_transfer(row) && row->skipped[0] != '\0') && !run_turn(bench, row))
                return false;
        }
    return true;
}

/* ---- Paths ------------------------------------------------------------------------------------------------------- */

static bool add_pool(struct bench *bench, struct bench_side *side, const struct strait_memory *memory,
                     const struct shape *shape, struct strait_pool **pool)
{
    const struct spans *spans = &bench->values.tensors.spans;
    struct strait_pool_region *regions = calloc(bench->regions, sizeof(regions[0]));

    for (uint32_t r = 0; regions != NULL && r < bench->regions; r++) {
        struct strait_class class = spans->list[r % spans->count].class;
        if (bench->regions == 1) /* holds values of all tensors */
            class = (struct strait_class){.role = STRAIT_ROLE_OTHER, .layer = -1};
        regions[r] = (struct strait_pool_region){
            .handle = STRAIT_HANDLE_MEMFD,
            .device = -1,
            .fd = memory->fd,
            .offset = r * bench->region_step,
            .page_stride = shape->page_bytes,
            .page_count = shape->places,
            .rows = 1,
            .row_bytes = (uint32_t)shape->page_bytes,
            .element = bench->asked->common.element,
            .role = class.role,
            .layer = class.layer,
        };
    }
    if (regions == NULL)
        print_error(NULL, "out of memory");
    bool added = regions != NULL && bench_side_register(side, regions, bench->regions, pool);
    free(regions);
    return added;
}

static bool open_path(struct bench *bench, enum path_kind kind)
{
    struct bench_path *path = &bench->paths[kind];

    if (!bench_path_open(path, kind, path_names[kind], NULL, &bench->site))
        return false;
    for (unsigned i = 0; path->up && i < bench->shape_count; i++) {
        struct bench_pools *pools = &bench->pools[kind][i];
        if (!add_pool(bench, path->source, &bench->source, &bench->shapes[i], &pools->source) ||
            !add_pool(bench, path->sink, &bench->sink, &bench->shapes[i], &pools->sink) ||
            !bench_path_introduce(path, pools))
            return false;
    }
    for (unsigned i = 0; !path->up && i < bench->row_count; i++)
        if (bench->rows[i].path == kind)
            snprintf(bench->rows[i].skipped, sizeof(bench->rows[i].skipped), "no path %s: %s", path_names[kind],
                     path->why);
    return true;
}

/* Opens all paths, then runs the link's rates one after another. */
static bool run_rows(struct bench *bench)
{
    struct bench_path *link = &bench->paths[PATH_LINK];

    for (enum path_kind kind = 0; kind < PATH_KINDS; kind++)
        if (list_has(&bench->asked->paths, kind) && !open_path(bench, kind))
            return false;
    for (unsigned first = 0, end; first < bench->row_count; first = end) {
        uint64_t rate = bench->rows[first].rate;
        for (end = first + 1; end < bench->row_count && bench->rows[end].rate == rate;)
            end++;
        if ((rate > 0 && link->up && !bench_link_shape(&link->link, rate, bench->asked->burst)) ||
            !run_group(bench, first, end))
            return false;
    }
    return true;
}

/* ---- The report -------------------------------------------------------------------------------------------------- */

#define LABEL                                                                               \
    {"case", NULL, "case", COLUMN_TEXT}, {"path", NULL, "path", COLUMN_TEXT},               \
        {"gigabits", NULL, "Gb/s", COLUMN_NUMBER}, {"coding", NULL, "coding", COLUMN_TEXT}, \
        {"direction", NULL, "dir", COLUMN_TEXT}, {"page_bytes", NULL, "page", COLUMN_SIZE}, \
        {"pages", NULL, "pages", COLUMN_COUNT}, {"regions", NULL, "reg", COLUMN_COUNT},     \
    {                                                                                       \
        "requests", NULL, "req", COLUMN_COUNT                                               \
    }

static const struct column columns[] = {
    LABEL,
    {"bytes", NULL, "bytes", COLUMN_SIZE},
    {"ratio", NULL, "ratio", COLUMN_RATIO},
    {"ms.p50", "ms", "p50", COLUMN_NUMBER},
    {"ms.p90", "ms", "p90", COLUMN_NUMBER},
    {"ms.p99", "ms", "p99", COLUMN_NUMBER},
    {"GBps.p50", "GB/s", "p50", COLUMN_NUMBER},
    {"GBps.min", "GB/s", "min", COLUMN_NUMBER},
    {"GBps.max", "GB/s", "max", COLUMN_NUMBER},
    {"by_base", NULL, "x base", COLUMN_NUMBER},
    {"base", NULL, "base", COLUMN_TEXT},
    {"wrong_pages", NULL, "check", COLUMN_CHECK},
};
static const struct column stage_columns[] = {
    LABEL,
    STAGE_COLUMNS,
};
static const struct column phase_columns[] = {
    LABEL,
    PHASE_COLUMNS,
};
static const struct column idle_columns[] = {
    {"path", NULL, "path", COLUMN_TEXT},
    {"seconds", NULL, "seconds idle", COLUMN_COUNT},
    {"source_ms", NULL, "source ms", COLUMN_NUMBER},
    {"sink_ms", NULL, "sink ms", COLUMN_NUMBER},
};
static const struct table tables[] = {
    TABLE("rows", NULL, NULL, columns),
    TABLE("rows", "stages of one sample, ms of all its chunks together", "stages_ms", stage_columns),
    TABLE("rows", "phases of one request, us; s: at the source's daemon, within answer and chunks", "phases_us",
          phase_columns),
    TABLE("idle", "processor time of idle daemons", NULL, idle_columns),
};

static double by_base(const struct bench *bench, const struct row *row, const struct row *base)
{
    return (double)row->bytes / (double)base->bytes *
           times_by_base(row->ns, row->samples, base->ns, base->samples, (unsigned)bench->asked->repeats);
}

static bool add_times(cJSON *object, const struct bench *bench, const struct row *row)
{
    static const char *const percentiles[] = {"p50", "p90", "p99", NULL};
    size_t count = (size_t)row->count * requests_of(bench, row);
    double *list = calloc(count, sizeof(list[0]));

    if (list == NULL)
        return false;
    for (unsigned i = 0; i < row->count; i++)
        list[i] = (double)row->bytes / (double)row->ns[i];
    row_add_figures(object, "GBps", list, row->count, p50_min_max);
    for (size_t i = 0; i < count; i++)
        list[i] = (double)row->request_ns[i] * 1e-6;
    if (is_transfer(row) || row->kind == ROW_COPY) {
        row_add_figures(object, "ms", list, count, percentiles);
        row_add_times(object, "request_ns", row->request_ns, count);
    } else if (row->kind == ROW_UCX_LATENCY) {
        cJSON *ms = cJSON_AddObjectToObject(object, "ms");
        cJSON_AddNumberToObject(ms, "p99", median_of(list, count));
        for (unsigned i = 0; i < row->count; i++)
            list[i] = (double)row->ns[i] * 1e-6;
        cJSON_AddNumberToObject(ms, "p50", median_of(list, count));
        row_add_times(object, "p99_ns", row->request_ns, count);
    }
    row_add_times(object, "ns", row->ns, row->count);
    free(list);
    return true;
}

static bool report_row(struct report *report, const struct bench *bench, const struct row *row)
{
    const struct shape *shape = &bench->shapes[row->shape];
    const struct row *base =
        row->base < 0 || bench->rows[row->base].skipped[0] != '\0' ? NULL : &bench->rows[row->base];
    cJSON *object = report_add_row(report, "rows");

    cJSON_AddStringToObject(object, "case", row_kind_names[row->kind]);
    cJSON_AddStringToObject(object, "path", path_names[row->path]);
    if (row->rate > 0)
        cJSON_AddNumberToObject(object, "gigabits", (double)row->rate / 1e6);
    if (is_transfer(row)) {
        cJSON_AddStringToObject(object, "coding", row->path == PATH_LOCAL ? "-" : coding_names[row->coding]);
        cJSON_AddStringToObject(object, "direction", direction_names[row->direction]);
    }
    if (is_transfer(row) || row->kind == ROW_COPY) {
        cJSON_AddNumberToObject(object, "page_bytes", (double)shape->page_bytes);
        cJSON_AddNumberToObject(object, "pages", shape->pages);
        cJSON_AddNumberToObject(object, "regions", bench->regions);
        cJSON_AddNumberToObject(object, "requests", (double)bench->asked->requests);
    }
    if (row->skipped[0] != '\0' || row->count == 0) {
        cJSON_AddStringToObject(object, "skipped", row->skipped);
        return true;
    }
    cJSON_AddNumberToObject(object, "bytes", (double)row->bytes);
    cJSON_AddNumberToObject(object, "samples_per_turn", row->samples);
    if (!add_times(object, bench, row))
        return false;
    json_add_known(object, "by_base", base != NULL ? by_base(bench, row, base) : 0);
    cJSON_AddStringToObject(object, "base",
                            base == NULL        ? "-"
                            : is_transfer(base) ? coding_names[base->coding]
                                                : row_kind_names[base->kind]);
    if (is_transfer(row))
        node_figures_report(&row->used, row->count, (double)row->wall_ns * 1e-6 / row->count, row->coding, object);
    if (is_transfer(row) || row->kind == ROW_COPY)
        cJSON_AddNumberToObject(object, "wrong_pages", (double)row->wrong);
    return true;
}

/* Processor time of the daemons while they have nothing to do. */
static bool measure_idle(struct report *report, struct bench *bench)
{
    uint64_t before[PATH_KINDS][2];

    if (bench->asked->idle == 0)
        return true;
    sleep_ms(500); /* for cleanup after the last transfer */
    for (int kind = 0; kind < PATH_KINDS; kind++) {
        const struct bench_path *path = &bench->paths[kind];
        before[kind][0] = path->up ? process_cpu_ms(path->source->pid) : 0;
        before[kind][1] = path->up ? process_cpu_ms(path->sink->pid) : 0;
    }
    sleep_ms((unsigned)bench->asked->idle * 1000);
    for (int kind = 0; kind < PATH_KINDS; kind++) {
        const struct bench_path *path = &bench->paths[kind];
        if (!path->up)
            continue;
        cJSON *row = report_add_row(report, "idle");
        cJSON_AddStringToObject(row, "path", path_names[kind]);
        cJSON_AddNumberToObject(row, "seconds", (double)bench->asked->idle);
        cJSON_AddNumberToObject(row, "source_ms", (double)(process_cpu_ms(path->source->pid) - before[kind][0]));
        if (kind != PATH_LOCAL)
            cJSON_AddNumberToObject(row, "sink_ms", (double)(process_cpu_ms(path->sink->pid) - before[kind][1]));
    }
    return !interrupted();
}

/* ---- The run ----------------------------------------------------------------------------------------------------- */

static bool run(struct bench *bench, struct report *report)
{
    const struct transfer_options *asked = bench->asked;

    if (!values_open(&bench->values, &asked->common, 1) || !make_memory(bench) ||
        !bench_site_init(&bench->site, &asked->daemon, bench->values.codebook) || !plan(bench) || !run_rows(bench))
        return false;
    report_add_values(report, &bench->values);
    row_add_texts(report->root, "daemon_options", asked->daemon.list, asked->daemon.count);
    cJSON_AddNumberToObject(report->root, "repeats", (double)asked->repeats);
    for (unsigned i = 0; i < bench->row_count; i++)
        if (!report_row(report, bench, &bench->rows[i]))
            return false;
    return measure_idle(report, bench) && report_finish(report, tables, sizeof(tables) / sizeof(tables[0]));
}

static void bench_fini(struct bench *bench)
{
    for (int kind = 0; kind < PATH_KINDS; kind++)
        bench_path_close(&bench->paths[kind]);
    bench_site_fini(&bench->site);
    for (unsigned i = 0; i < bench->row_count; i++) {
        free(bench->rows[i].ns);
        free(bench->rows[i].request_ns);
    }
    free(bench->rows);
    for (unsigned i = 0; i < bench->shape_count; i++) {
        free(bench->shapes[i].from);
        free(bench->shapes[i].to);
        free(bench->shapes[i].sums);
    }
    if (bench->source.base != NULL)
        strait_free(&bench->source);
    if (bench->sink.base != NULL)
        strait_free(&bench->sink);
    values_close(&bench->values);
}

int bench_transfer(int argc, char **argv)
{
    static struct transfer_options asked;
    static struct bench bench = {.asked = &asked};
    struct report report;
    enum exit_code code;

    if (!command_read(&command, &asked, argc, argv, &code))
        return code;
    if (!daemon_options_good(&asked.daemon))
        return EXIT_CODE_USAGE;
    if (asked.types.count != 1) {
        print_error(NULL, "--dtype takes one type");
        return EXIT_CODE_USAGE;
    }
    asked.common.element = (enum strait_element)(STRAIT_ELEMENT_BF16 + asked.types.list[0]);
    interrupts_catch();
    bool good = report_init(&report, &asked.common) && run(&bench, &report);
    bench_fini(&bench);
    report_fini(&report);
    if (interrupted())
        print_error(NULL, "interrupted");
    return good ? EXIT_CODE_OK : EXIT_CODE_DATA;
}
