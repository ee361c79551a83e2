/* strait demo */
#include "bench/demo.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "bench/moves.h"
#include "bench/table.h"
#include "tools/commands.h"

#define DEMO_BYTES  (32u * 1024 * 1024) /* about the size of all pages together */
#define WINDOW_STEP 97u /* values between the beginnings of successive pages; odd, so that pages differ */

static const char usage[] =
    "usage: strait demo [--json] [--fault flip]\n"
    "\n"
    "Starts two straitd on this machine, gives each a worker, moves a real KV cache from one to the other, on every\n"
    "path and in every coding that there is, and compares the hash of each page at its source and where it landed.\n"
    "Everything is on loopback and in a folder of its own; nothing is left behind.\n"
    "\n"
    "  --json               report as JSON\n"
    "  --fault flip         turn over a bit of a page that has landed, to see the comparison fail\n"
    "  -h, --help           print this\n"
    "\n"
    "Exit status: 0 every page is what was sent, 1 not so, 2 bad usage.\n";

/* ---- Pages ------------------------------------------------------------------------------------------------------- */

static uint8_t *page_at(const struct demo *demo, const struct strait_memory *memory, uint32_t region, uint32_t page)
{
    return (uint8_t *)memory->base + ((size_t)region * demo->pages + page) * DEMO_PAGE_BYTES;
}

/* Fills the page from a window of the tensor, taken as a ring. Every page has another window, so that a misplaced page
 * is noticed. */
static void fill_page(uint8_t *page, const struct span *span, uint32_t index)
{
    uint64_t size = 2 * span->values, at = 2 * ((uint64_t)index * WINDOW_STEP % span->values);

    for (uint64_t done = 0, part; done < DEMO_PAGE_BYTES; done += part) {
        part = size - at < DEMO_PAGE_BYTES - done ? size - at : DEMO_PAGE_BYTES - done;
        memcpy(page + done, span->data + at, part);
        at = 0;
    }
}

static void hash(uint8_t dst[DEMO_HASH_BYTES], const void *src, size_t size)
{
    XXH128_canonical_t canonical;

    XXH128_canonicalFromHash(&canonical, XXH3_128bits(src, size));
    memcpy(dst, canonical.digest, DEMO_HASH_BYTES);
}

/* Hashes all pages of a memory by logical index, whose pages are at `ids`. */
static void hash_pages(const struct demo *demo, uint8_t (*hashes)[DEMO_HASH_BYTES], const struct strait_memory *memory,
                       const uint32_t *ids)
{
    for (uint32_t i = 0; i < demo_pages(demo); i++)
        hash(hashes[i], page_at(demo, memory, i / demo->pages, ids[i % demo->pages]), DEMO_PAGE_BYTES);
}

static bool make_pages(struct demo *demo)
{
    const struct spans *spans = &demo->values.tensors.spans;

    if (spans->count > DEMO_BYTES / DEMO_PAGE_BYTES) {
        print_error(NULL, "not a sample for this: %zu BF16 tensors", spans->count);
        return false;
    }
    demo->regions = (uint32_t)spans->count;
    demo->pages = DEMO_BYTES / DEMO_PAGE_BYTES / demo->regions;
    demo->from = calloc(demo->pages, sizeof(demo->from[0]));
    demo->to = calloc(demo->pages, sizeof(demo->to[0]));
    demo->hashes = calloc(demo_pages(demo), sizeof(demo->hashes[0]));
    demo->landed = calloc(demo_pages(demo), sizeof(demo->landed[0]));
    if (demo->from == NULL || demo->to == NULL || demo->hashes == NULL || demo->landed == NULL ||
        strait_alloc(demo_bytes(demo), &demo->source) != STRAIT_OK ||
        strait_alloc(demo_bytes(demo), &demo->landing) != STRAIT_OK) {
        print_error(NULL, "out of memory");
        return false;
    }
    for (uint32_t region = 0; region < demo->regions; region++)
        for (uint32_t page = 0; page < demo->pages; page++)
            fill_page(page_at(demo, &demo->source, region, page), &spans->list[region], page);
    random_order(demo->from, demo->pages, 1);
    random_order(demo->to, demo->pages, 2);
    hash_pages(demo, demo->hashes, &demo->source, demo->from);
    return true;
}

/* ---- The check --------------------------------------------------------------------------------------------------- */

/* Where pages of a round land. */
struct landing {
    struct demo *demo;
    struct demo_row *row;
    bool flips; /* a bit, before the pages are looked at */
};

static bool wipe(void *arg)
{
    const struct landing *landing = arg;

    memset(landing->demo->landing.base, 0, landing->demo->landing.size);
    return true;
}

static void note_bad(const struct demo *demo, struct demo_row *row, uint32_t index)
{
    uint32_t logical = index % demo->pages;
    struct demo_bad *bad = &row->bad[row->bad_count++];

    *bad = (struct demo_bad){
        .region = index / demo->pages, .source_page = demo->from[logical], .sink_page = demo->to[logical]};
    memcpy(bad->sent, demo->hashes[index], DEMO_HASH_BYTES);
    memcpy(bad->landed, demo->landed[index], DEMO_HASH_BYTES);
}

/* Checks every page and lists in the row those that differ; after a round with a bad page, no more. */
static bool count_wrong(void *arg, uint64_t *wrong)
{
    const struct landing *landing = arg;
    struct demo *demo = landing->demo;
    struct demo_row *row = landing->row;
    uint32_t count = demo_pages(demo);

    *wrong = 0;
    if (landing->flips)
        page_at(demo, &demo->landing, demo->regions / 2, demo->to[demo->pages / 2])[4711] ^= 0x10;
    if (row->bad_count > 0)
        return true;
    hash_pages(demo, demo->landed, &demo->landing, demo->to);
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

/* Moves all pages in one round that is not measured and in DEMO_ROUNDS that are. A fault is injected on the first path
 * only. */
static bool measure(struct demo *demo, struct bench_path *path, const struct bench_pools *pools,
                    enum strait_coding coding, struct demo_row *row)
{
    struct landing landing = {demo, row, false};
    const struct move move = {.path = path,
                              .pools = pools,
                              .bytes = demo_bytes(demo),
                              .pages = demo->pages,
                              .requests = 1,
                              .from = demo->from,
                              .to = demo->to,
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
            demo->flip && row->path == demo->rows[0].path && coding == STRAIT_CODING_TIERED && round == DEMO_ROUNDS - 1;
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

static bool add_pool(const struct demo *demo, struct bench_side *side, const struct strait_memory *memory,
                     struct strait_pool **pool)
{
    struct strait_pool_region *regions = calloc(demo->regions, sizeof(regions[0]));
    bool added;

    if (regions == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    for (uint32_t i = 0; i < demo->regions; i++)
        regions[i] = (struct strait_pool_region){
            .handle = STRAIT_HANDLE_MEMFD,
            .device = -1,
            .fd = memory->fd,
            .offset = (uint64_t)i * demo->pages * DEMO_PAGE_BYTES,
            .page_stride = DEMO_PAGE_BYTES,
            .page_count = demo->pages,
            .rows = 1,
            .row_bytes = DEMO_PAGE_BYTES,
            .element = STRAIT_ELEMENT_BF16,
            .role = demo->values.tensors.spans.list[i].class.role,
            .layer = demo->values.tensors.spans.list[i].class.layer,
        };
    added = bench_side_register(side, regions, demo->regions, pool);
    free(regions);
    return added;
}

/* Measures a path with daemons that have its transport only. */
static bool move_path(struct demo *demo, enum path_kind kind, const char *name)
{
    static const enum strait_coding codings[] = {STRAIT_CODING_RAW, STRAIT_CODING_TOP16, STRAIT_CODING_TIERED};
    const unsigned count = kind == PATH_LOCAL ? 1 : sizeof(codings) / sizeof(codings[0]); /* one daemon copies */
    struct bench_pools pools = {0};
    struct bench_path path;
    bool moved = bench_path_open(&path, kind, name, NULL, &demo->site) &&
                 add_pool(demo, path.source, &demo->source, &pools.source) &&
                 add_pool(demo, path.sink, &demo->landing, &pools.sink) && bench_path_introduce(&path, &pools);

    for (unsigned i = 0; moved && i < count; i++)
        moved = add_row(demo, &path, &pools, codings[i]);
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
    if (demo->source.base != NULL)
        strait_free(&demo->source);
    if (demo->landing.base != NULL)
        strait_free(&demo->landing);
    free(demo->from);
    free(demo->to);
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

int cmd_demo(int argc, char **argv)
{
    static char name[] = "strait demo";
    static struct demo demo;
    const struct cli_option list[] = {{"json", .flag = &demo.json}, {"fault", .set = set_fault, .values = "flip"}};
    enum exit_code code;

    command_begin(argv, name);
    if (!options_parse(list, sizeof(list) / sizeof(list[0]), &demo, usage, argc, argv, &code))
        return code;
    if (optind != argc) {
        print_error(NULL, "takes no arguments; see strait demo --help");
        return EXIT_CODE_USAGE;
    }
    return run(&demo) ? EXIT_CODE_OK : EXIT_CODE_DATA;
}
