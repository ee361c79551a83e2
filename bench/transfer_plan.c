/* The first half of transfer_rows.h: choosing the rows. */
#include "bench/transfer_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/util.h"

#define WHOLE_PAGE_MAX (1024u * 1024)      /* fits into any chunk worth measuring */
#define SAMPLE_BYTES   (16u * 1024 * 1024) /* of a row and turn, made of small transfers */
#define SAMPLES_AUTO   100u                /* maximum, unless more are asked for */
#define LATENCY_BYTES  (256u * 1024)       /* up to this size a request is compared with the latency of a message */

const char *const row_kind_names[] = {"strait", "strait layers", "memcpy", "ucx_am_bw", "ucx_am_lat", "iperf3"};

/* ---- Shapes ------------------------------------------------------------------------------------------------------ */

static struct shape *add_shape(struct transfer_bench *bench, uint64_t page_bytes, uint32_t pages, uint32_t regions,
                               uint32_t requests)
{
    struct shape *shape = &bench->shapes[bench->shape_count++];

    *shape = (struct shape){.page_bytes = page_bytes, .pages = pages, .regions = regions, .requests = requests};
    return shape;
}

/* Adds a shape with as many bytes in a single region, which starts at the beginning of the memory. */
static void add_whole(struct transfer_bench *bench, const struct shape *like)
{
    uint64_t bytes = shape_bytes(like), page = WHOLE_PAGE_MAX;

    while (bytes % page != 0)
        page /= 2;
    add_shape(bench, page, (uint32_t)(bytes / page), 1, 1)->whole = true;
}

static void plan_shapes(struct transfer_bench *bench)
{
    const struct transfer_options *options = bench->options;
    uint32_t regions = options->regions == 0 ? (uint32_t)bench->data.tensors.spans.count : options->regions;

    for (unsigned p = 0; p < options->page_byte_count; p++) {
        for (unsigned c = 0; c < options->page_count && options->layers == 0; c++) {
            add_shape(bench, options->page_bytes[p], options->pages[c], regions, options->requests);
            if (options->whole)
                add_whole(bench, &bench->shapes[bench->shape_count - 1]);
        }
    }
    if (options->layers > 0) {
        add_shape(bench, options->page_bytes[0], options->pages[0], 1, 1)->layered = true;
        add_shape(bench, options->page_bytes[0], options->pages[0], options->layers, 1)->layered = true;
    }
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

static unsigned samples_of(const struct transfer_bench *bench, const struct row *row)
{
    uint64_t bytes = shape_bytes(&bench->shapes[row->shape]), count = SAMPLE_BYTES / bytes;

    if (row->kind != ROW_REQUESTS && row->kind != ROW_COPY)
        return 1;
    if (bench->options->samples > 0)
        return bench->options->samples;
    return count < 1 ? 1 : count > SAMPLES_AUTO ? SAMPLES_AUTO : (unsigned)count;
}

/* Adds a row; -1 when out of memory, which was printed to stderr. */
static int add_row(struct transfer_bench *bench, struct row row)
{
    struct row_list *rows = &bench->rows;
    unsigned requests = row.kind == ROW_REQUESTS ? bench->shapes[row.shape].requests : 1;
    size_t count;

    if (rows->count == rows->capacity) {
        unsigned capacity = 2 * rows->capacity + 16;
        struct row *list = realloc(rows->list, capacity * sizeof(list[0]));
        if (list == NULL)
            goto no_memory;
        rows->list = list;
        rows->capacity = capacity;
    }
    row.samples = samples_of(bench, &row);
    row.bytes = shape_bytes(&bench->shapes[row.shape]);
    count = (size_t)row.samples * rows->repeats;
    row.ns = calloc(count, sizeof(row.ns[0]));
    row.request_ns = calloc(count * requests, sizeof(row.request_ns[0]));
    row.layers = calloc(count, sizeof(row.layers[0]));
    rows->list[rows->count] = row;
    if (row.ns != NULL && row.request_ns != NULL && row.layers != NULL)
        return (int)rows->count++;
    rows->count++; /* so that rows_fini frees what it has */
no_memory:
    print_error(NULL, "out of memory");
    return -1;
}

/* Rows with which the transfers of a path are compared: within a host a copy of the same pages, over TCP the tools. */
struct bases {
    int copy;
    int tool;
};

/* Adds the rows of one shape, path and rate. On a link they are compared with the first raw one. */
static bool add_transfers(struct transfer_bench *bench, const struct row *like, int base)
{
    const struct transfer_options *options = bench->options;
    bool codes = like->path != PATH_LOCAL; /* one daemon copies */

    for (unsigned d = 0; d < 2; d++) {
        if (!(d == 0 ? options->pull : options->push))
            continue;
        for (unsigned c = 0; c < (codes ? options->coding_count : 1); c++) {
            struct row row = *like;
            row.direction = d == 0 ? STRAIT_PULL : STRAIT_PUSH;
            row.coding = codes ? options->codings[c] : STRAIT_CODING_RAW;
            row.base = row.kind == ROW_LAYERS ? -1 : base; /* no base: its pace is fixed */
            int added = add_row(bench, row);
            if (added < 0)
                return false;
            if (row.path == PATH_LINK && row.kind == ROW_REQUESTS && row.coding == STRAIT_CODING_RAW && d == 0)
                base = added;
        }
    }
    return true;
}

/* The whole row that corresponds to a scattered one, whose shape its own directly follows. -1: none. */
static int find_whole(const struct transfer_bench *bench, const struct row *like)
{
    for (unsigned i = 0; bench->options->whole && i < bench->rows.count; i++) {
        const struct row *row = &bench->rows.list[i];
        if (row->kind == like->kind && row->path == like->path && row->rate == like->rate &&
            row->shape == like->shape + 1 && row->coding == like->coding && row->direction == like->direction)
            return (int)i;
    }
    return -1;
}

/* Compares scattered rows with the corresponding whole ones, the best comparison. */
static void compare_with_whole(struct transfer_bench *bench)
{
    for (unsigned i = 0; i < bench->rows.count; i++) {
        struct row *row = &bench->rows.list[i];
        int whole = bench->shapes[row->shape].whole || row->kind != ROW_REQUESTS ? -1 : find_whole(bench, row);
        if (whole >= 0)
            row->base = whole;
    }
}

static bool add_tool(struct transfer_bench *bench, unsigned shape, struct bases *bases)
{
    bool small = shape_bytes(&bench->shapes[shape]) <= LATENCY_BYTES;
    struct row row = {
        .kind = small ? ROW_UCX_LATENCY : ROW_UCX_BANDWIDTH, .path = PATH_TCP, .shape = shape, .base = -1};

    return !bench->options->rivals || (bases->tool = add_row(bench, row)) >= 0;
}

static bool add_copy(struct transfer_bench *bench, unsigned shape, struct bases *bases)
{
    struct row row = {.kind = ROW_COPY, .path = PATH_LOCAL, .shape = shape, .base = -1};

    return !bench->options->rivals || (bases->copy = add_row(bench, row)) >= 0;
}

static bool plan_host_rows(struct transfer_bench *bench, unsigned shape)
{
    const bool *paths = bench->options->paths;
    bool layered = bench->shapes[shape].layered; /* compared with one layer alone */
    enum row_kind kind = layered && bench->shapes[shape].regions > 1 ? ROW_LAYERS : ROW_REQUESTS;
    struct bases bases = {-1, -1};

    if ((paths[PATH_LOCAL] || paths[PATH_SHM]) && !layered && !add_copy(bench, shape, &bases))
        return false;
    for (enum path_kind path = PATH_LOCAL; path <= PATH_TCP; path++) {
        struct row row = {.kind = kind, .path = path, .shape = shape};
        if (!paths[path])
            continue;
        if (path == PATH_TCP && !layered && !add_tool(bench, shape, &bases))
            return false;
        if (!add_transfers(bench, &row, path == PATH_TCP ? bases.tool : bases.copy))
            return false;
    }
    return true;
}

static bool plan_link_rows(struct transfer_bench *bench, double rate)
{
    struct row tool = {.kind = ROW_IPERF, .path = PATH_LINK, .rate = rate, .base = -1};
    int base = bench->options->rivals ? add_row(bench, tool) : -1;

    if (bench->options->rivals && base < 0)
        return false;
    for (unsigned shape = 0; shape < bench->shape_count; shape++) {
        bool layers = bench->shapes[shape].layered && bench->shapes[shape].regions > 1;
        struct row row = {.kind = layers ? ROW_LAYERS : ROW_REQUESTS, .path = PATH_LINK, .shape = shape, .rate = rate};
        if (!add_transfers(bench, &row, base))
            return false;
    }
    return true;
}

bool rows_plan(struct transfer_bench *bench)
{
    const struct transfer_options *options = bench->options;
    bool good = true;

    bench->rows.repeats = options->repeats;
    plan_shapes(bench);
    for (unsigned i = 0; i < bench->shape_count && good; i++)
        good = shape_init(&bench->shapes[i], &bench->data);
    for (unsigned i = 0; i < bench->shape_count && good; i++)
        good = plan_host_rows(bench, i);
    for (unsigned i = 0; i < options->rate_count && good && options->paths[PATH_LINK]; i++)
        good = plan_link_rows(bench, options->rates[i]);
    compare_with_whole(bench);
    return good;
}

void rows_fini(struct row_list *rows)
{
    for (unsigned i = 0; i < rows->count; i++) {
        free(rows->list[i].ns);
        free(rows->list[i].request_ns);
        free(rows->list[i].layers);
    }
    free(rows->list);
    *rows = (struct row_list){0};
}

bool rows_right(const struct row_list *rows)
{
    for (unsigned i = 0; i < rows->count; i++)
        if (rows->list[i].wrong > 0)
            return false;
    return true;
}
