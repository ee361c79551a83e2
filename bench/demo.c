/* strait demo */
#include "bench/demo.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "bench/moves.h"
#include "bench/table.h"
#include "tools/commands.h"

#define DEMO_VALUES (16u * 1024 * 1024) /* about those of all pages together */

/* What values may be, and the codings that are measured: those that differ for the type. */
static const struct type {
    const char *name;
    enum strait_element element;
    unsigned count;
    enum strait_coding codings[3];
} types[] = {
    {"bf16", STRAIT_ELEMENT_BF16, 3, {STRAIT_CODING_RAW, STRAIT_CODING_TOP16, STRAIT_CODING_TIERED}},
    {"fp16", STRAIT_ELEMENT_FP16, 3, {STRAIT_CODING_RAW, STRAIT_CODING_BASE, STRAIT_CODING_SPLIT}},
    {"fp32", STRAIT_ELEMENT_FP32, 3, {STRAIT_CODING_RAW, STRAIT_CODING_BASE, STRAIT_CODING_SPLIT}},
    {"fp8_e4m3", STRAIT_ELEMENT_FP8_E4M3, 2, {STRAIT_CODING_RAW, STRAIT_CODING_BASE}},
    {"fp8_e5m2", STRAIT_ELEMENT_FP8_E5M2, 2, {STRAIT_CODING_RAW, STRAIT_CODING_BASE}},
    {"bytes", STRAIT_ELEMENT_BYTES, 1, {STRAIT_CODING_RAW}},
};
#define TYPES (sizeof(types) / sizeof(types[0]))

static const struct type *type_of(enum strait_element element)
{
    const struct type *type = types;

    while (type->element != element)
        type++;
    return type;
}

static const char usage[] =
    "usage: strait demo [--sink-layout LAYOUT] [--dtype TYPE] [--json] [--fault flip]\n"
    "\n"
    "Starts two straitd on this machine, gives each a worker, moves a real KV cache from one to the other, on every\n"
    "path and in every coding that there is, and compares the hash of each page that landed with what it has to be.\n"
    "Everything is on loopback and in a folder of its own; nothing is left behind.\n"
    "\n"
    "  --sink-layout LAYOUT of the decode worker's pool, whose pages are rearranged on the way: words with commas, of\n"
    "                       nhd, hnd, tokens=N (of a page), packed (K and V in one region), cross-layer (a page of "
    "all\n"
    "                       layers together); nhd,tokens=16, which the prefill worker has, unless given\n"
    "  --dtype TYPE         bf16, fp16, fp32, fp8_e4m3 or fp8_e5m2: the cache in that type (bf16); bytes: in INT8,\n"
    "                       which moves raw, as FP4 does\n"
    "  --json               report as JSON\n"
    "  --fault flip         turn over a bit of a page that has landed, to see the comparison fail\n"
    "  -h, --help           print this\n"
    "\n"
    "Exit status: 0 every page is what was sent, 1 not so, 2 bad usage.\n";

/* ---- Pages ------------------------------------------------------------------------------------------------------- */

static void hash(uint8_t dst[DEMO_HASH_BYTES], const void *src, size_t size)
{
    XXH128_canonical_t canonical;

    XXH128_canonicalFromHash(&canonical, XXH3_128bits(src, size));
    memcpy(dst, canonical.digest, DEMO_HASH_BYTES);
}

/* Hashes all pages of the sink by logical index, as they are at `base`. */
static void hash_pages(const struct demo *demo, uint8_t (*hashes)[DEMO_HASH_BYTES], const uint8_t *base)
{
    const struct demo_pool *pool = &demo->sink;

    for (uint32_t i = 0; i < demo_pages(demo); i++)
        hash(hashes[i], base + demo_pool_offset(pool, i / pool->pages, pool->ids[i % pool->pages]), pool->page_bytes);
}

/* The sink's pages as they have to be are made from the values, not from the source's pages. */
static bool fill_pages(struct demo *demo, const struct demo_model *model)
{
    uint8_t *wanted = calloc(1, demo_pool_bytes(&demo->sink));

    demo->hashes = calloc(demo_pages(demo), sizeof(demo->hashes[0]));
    demo->landed = calloc(demo_pages(demo), sizeof(demo->landed[0]));
    const bool made = wanted != NULL && demo->hashes != NULL && demo->landed != NULL &&
                      strait_alloc(demo_pool_bytes(&demo->source), &demo->source_memory) == STRAIT_OK &&
                      strait_alloc(demo_pool_bytes(&demo->sink), &demo->sink_memory) == STRAIT_OK;
    if (made) {
        demo_pool_fill(&demo->source, demo->source_memory.base, model);
        demo_pool_fill(&demo->sink, wanted, model);
        hash_pages(demo, demo->hashes, wanted);
    } else {
        print_error(NULL, "out of memory");
    }
    free(wanted);
    return made;
}

static bool make_pages(struct demo *demo)
{
    static const struct demo_layout source = {.tokens = DEMO_TOKENS};
    const struct spans *spans = &demo->values.tensors.spans;
    const uint32_t page_values = DEMO_TOKENS * DEMO_HEADS * DEMO_HEAD_VALUES;
    const uint32_t tokens = (uint32_t)(DEMO_VALUES / page_values / (spans->count > 0 ? spans->count : 1)) * DEMO_TOKENS;
    struct demo_model model;
    const bool made = demo_model_init(&model, spans, demo->element, tokens) &&
                      demo_pool_init(&demo->source, &model, &source, 1) &&
                      demo_pool_init(&demo->sink, &model, &demo->sink_layout, 2) && fill_pages(demo, &model);

    free(model.values);
    return made;
}

/* ---- The check --------------------------------------------------------------------------------------------------- */

#define FLIPPED 4711u /* the byte of a page that a fault changes, of pages as long as that */

/* Where pages of a round land. */
struct landing {
    struct demo *demo;
    struct demo_row *row;
    bool flips; /* a bit, before the pages are looked at */
};

static bool wipe(void *arg)
{
    const struct landing *landing = arg;

    memset(landing->demo->sink_memory.base, 0, landing->demo->sink_memory.size);
    return true;
}

static void note_bad(const struct demo *demo, struct demo_row *row, uint32_t index)
{
    const struct demo_pool *pool = &demo->sink;
    uint32_t logical = index % pool->pages;
    struct demo_bad *bad = &row->bad[row->bad_count++];

    *bad = (struct demo_bad){.region = index / pool->pages,
                             .source_page = demo_alike(demo) ? demo->source.ids[logical] : 0,
                             .sink_page = pool->ids[logical]};
    memcpy(bad->sent, demo->hashes[index], DEMO_HASH_BYTES);
    memcpy(bad->landed, demo->landed[index], DEMO_HASH_BYTES);
}

/* Checks every page and lists in the row those that differ; after a round with a bad page, no more. */
static bool count_wrong(void *arg, uint64_t *wrong)
{
    const struct landing *landing = arg;
    struct demo *demo = landing->demo;
    struct demo_row *row = landing->row;
    const struct demo_pool *pool = &demo->sink;
    uint32_t count = demo_pages(demo);

    *wrong = 0;
    if (landing->flips)
        ((uint8_t *)demo->sink_memory.base)[demo_pool_offset(pool, pool->regions / 2, pool->ids[pool->pages / 2]) +
                                            FLIPPED % pool->page_bytes] ^= 0x10;
    if (row->bad_count > 0)
        return true;
    hash_pages(demo, demo->landed, demo->sink_memory.base);
    for (uint32_t i = 0; i < count; i++) {
        bool same = memcmp(demo->landed[i], demo->hashes[i], DEMO_HASH_BYTES) == 0;
        *wrong += !same;
        if (!same && row->bad_count < DEMO_BAD_MAX)
            note_bad(demo, row, i);
    }
    row->pages_right = count - (uint32_t)*wrong;
    hash(row->sent, demo->hashes, sizeof(demo->hashes[0]) * count);
    hash(row->landed, demo->landed, sizeof(demo->landed[0]) * count);
    return true;
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

/* The last coding of a type shrinks its values most. */
static bool is_last_coding(const struct demo *demo, enum strait_coding coding)
{
    const struct type *type = type_of(demo->element);

    return coding == type->codings[type->count - 1];
}

/* Moves all pages in one round that is not measured and in DEMO_ROUNDS that are. A fault is injected on the first path
 * only, in the last coding. */
static bool measure(struct demo *demo, struct bench_path *path, const struct bench_pools *pools,
                    enum strait_coding coding, struct demo_row *row)
{
    struct landing landing = {demo, row, false};
    const struct move move = {.path = path,
                              .pools = pools,
                              .bytes = demo_bytes(demo),
                              .pages = demo->source.pages,
                              .sink_pages = demo->sink.pages,
                              .requests = 1,
                              .from = demo->source.ids,
                              .to = demo->sink.ids,
                              .coding = coding,
                              .direction = STRAIT_PULL,
                              .wipe = wipe,
                              .count_wrong = count_wrong,
                              .arg = &landing};
    struct node_figures before, after, sink;
    double seconds[DEMO_ROUNDS];
    uint64_t ns, request_ns, wrong;

    if (!move_requests(&move, &ns, &request_ns, &wrong) || !bench_path_figures(path, &before, &sink))
        return false;
    for (uint32_t round = 0; round < DEMO_ROUNDS; round++) {
        landing.flips =
            demo->flip && row->path == demo->rows[0].path && is_last_coding(demo, coding) && round == DEMO_ROUNDS - 1;
        if (!move_requests(&move, &ns, &request_ns, &wrong))
            return false;
        seconds[round] = (double)ns * 1e-9;
    }
    if (!bench_path_figures(path, &after, &sink))
        return false;
    row->seconds = median_of(seconds, DEMO_ROUNDS);
    row->wire_bytes = (after.wire_bytes - before.wire_bytes) / DEMO_ROUNDS;
    snprintf(row->transport, sizeof(row->transport), "%s", row->wire_bytes == 0 ? "copy" : after.transport);
    return true;
}

static bool add_row(struct demo *demo, struct bench_path *path, const struct bench_pools *pools,
                    enum strait_coding coding)
{
    struct demo_row *row = &demo->rows[demo->row_count];

    *row = (struct demo_row){.path = path->name, .coding = path->kind == PATH_LOCAL ? "none" : coding_names[coding]};
    if (!measure(demo, path, pools, coding, row))
        return false;
    demo->row_count++;
    if (!demo->json)
        demo_print_row(demo, row, stdout);
    return true;
}

static bool add_pool(const struct demo_pool *pool, struct bench_side *side, const struct strait_memory *memory,
                     struct strait_pool **registered)
{
    struct strait_pool_region regions[VALUE_REGIONS_MAX];

    demo_pool_regions(pool, memory->fd, regions);
    return bench_side_register(side, regions, pool->regions, registered);
}

/* Measures a path with daemons that have its transport only. */
static bool move_path(struct demo *demo, enum path_kind kind, const char *name)
{
    const struct type *type = type_of(demo->element);
    const unsigned count = kind == PATH_LOCAL ? 1 : type->count; /* one daemon copies */
    struct bench_pools pools = {0};
    struct bench_path path;
    bool moved = bench_path_open(&path, kind, name, NULL, &demo->site) &&
                 add_pool(&demo->source, path.source, &demo->source_memory, &pools.source) &&
                 add_pool(&demo->sink, path.sink, &demo->sink_memory, &pools.sink) &&
                 bench_path_introduce(&path, &pools);

    for (unsigned i = 0; moved && i < count; i++)
        moved = add_row(demo, &path, &pools, type->codings[i]);
    return bench_path_close(&path) && moved;
}

/* ---- All of it --------------------------------------------------------------------------------------------------- */

static bool prepare(struct demo *demo, const struct text_list *daemon)
{
    const char *input = default_input();
    struct bench_options options = {.inputs = {.list = {input}, .count = input != NULL}};

    return values_open(&demo->values, &options, 1) && make_pages(demo) &&
           bench_site_init(&demo->site, daemon, demo->values.codebook);
}

static bool move_all(struct demo *demo)
{
    if (!demo->json)
        demo_print_head(demo, stdout);
    return move_path(demo, PATH_TCP, "network") && move_path(demo, PATH_SHM, "shm") &&
           move_path(demo, PATH_LOCAL, "local");
}

static bool report(const struct demo *demo)
{
    if (demo->json)
        return demo_print_json(demo, stdout) && demo_verified(demo);
    demo_print_end(demo, stdout);
    return demo_verified(demo);
}

static void clean_up(struct demo *demo)
{
    bench_site_fini(&demo->site);
    if (demo->source_memory.base != NULL)
        strait_free(&demo->source_memory);
    if (demo->sink_memory.base != NULL)
        strait_free(&demo->sink_memory);
    free(demo->source.ids);
    free(demo->sink.ids);
    free(demo->hashes);
    free(demo->landed);
    values_close(&demo->values);
}

static bool run(struct demo *demo)
{
    const struct text_list daemon = {.list = {"arena-bytes=64M"}, .count = 1};

    interrupts_catch();
    if (demo->json)
        errors_keep();
    demo->complete = prepare(demo, &daemon) && move_all(demo);
    bool verified = !interrupted() && report(demo);
    clean_up(demo);
    interrupts_obey();
    return verified;
}

/* ---- Options ----------------------------------------------------------------------------------------------------- */

static bool set_fault(void *demo, const char *text)
{
    if (strcmp(text, "flip") == 0)
        return ((struct demo *)demo)->flip = true;
    print_error(NULL, "--fault knows flip, not '%s'", text);
    return false;
}

static bool set_layout(void *demo, const char *text)
{
    return demo_layout_read(&((struct demo *)demo)->sink_layout, "--sink-layout", text);
}

static bool set_type(void *demo, const char *text)
{
    for (unsigned i = 0; i < TYPES; i++)
        if (strcmp(text, types[i].name) == 0) {
            ((struct demo *)demo)->element = types[i].element;
            return true;
        }
    print_error(NULL, "--dtype: '%s' is none of bf16, fp16, fp32, fp8_e4m3, fp8_e5m2, bytes (INT8, FP4)", text);
    return false;
}

int cmd_demo(int argc, char **argv)
{
    static char name[] = "strait demo";
    static struct demo demo = {.element = STRAIT_ELEMENT_BF16, .sink_layout = {.tokens = DEMO_TOKENS}};
    const struct cli_option list[] = {{"sink-layout", .set = set_layout},
                                      {"dtype", .set = set_type, .values = "bf16 fp16 fp32 fp8_e4m3 fp8_e5m2 bytes"},
                                      {"json", .flag = &demo.json},
                                      {"fault", .set = set_fault, .values = "flip"}};
    enum exit_code code;

    command_begin(argv, name);
    if (!options_parse(list, sizeof(list) / sizeof(list[0]), &demo, usage, argc, argv, &code))
        return code;
    if (!operands_are(argc, 0, "no arguments"))
        return EXIT_CODE_USAGE;
    return run(&demo) ? EXIT_CODE_OK : EXIT_CODE_DATA;
}
