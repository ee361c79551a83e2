#include "bench/pairs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(((struct strait_pool_region *)0)->ipc) == GPU_HANDLE_BYTES, "a handle fits");

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

bool pairs_choose(struct pairs *pairs, uint64_t from, uint64_t to, uint64_t sources, uint64_t sinks)
{
    char why[256];
    const unsigned count = gpu_count(why, sizeof(why));

    if (count == 0) {
        print_error(NULL, "--device: no GPU: %s", why);
        return false;
    }
    to = to == GPU_ANY ? (count > 1) : to;
    if (from >= count || to >= count) {
        print_error(NULL, "--from-gpu and --to-gpu: there are GPUs 0 to %u", count - 1);
        return false;
    }
    *pairs = (struct pairs){.count = (unsigned)(sources > sinks ? sources : sinks), .shares_source = sinks > 1};
    for (unsigned i = 0; i < pairs->count; i++) {
        struct pair *pair = &pairs->list[i];
        pair->from = (int)((from + (sources > 1 ? i : 0)) % count);
        pair->to = (int)((to + (sinks > 1 ? i : 0)) % count);
        if (!gpu_open(pair->from, pair->to, &pair->about))
            return false;
    }
    return true;
}

static bool make_pair(const struct pairs *pairs, struct pair *pair)
{
    const uint64_t region_bytes = gpu_region_bytes(&pairs->layout), size = pairs->layout.regions * region_bytes;
    const uint64_t first = (uint64_t)(pair - pairs->list) * (size / GPU_STAMP_STEP);
    uint64_t ns;

    if (!gpu_alloc(&pair->source, pair->from, size) || !gpu_alloc(&pair->sink, pair->to, size) ||
        !gpu_alloc(&pair->reference, pair->to, size))
        return false;
    for (uint32_t r = 0; r < pairs->layout.regions; r++) {
        const struct span *span = &pairs->values->tensors.spans.list[r];
        if (!gpu_tile(&pair->source, r * region_bytes, region_bytes, span->data, 2 * span->values))
            return false;
    }
    return gpu_stamp(&pair->source, first) && gpu_copy(&pair->reference, 0, &pair->source, 0, size, false, &ns);
}

bool pairs_make(struct pairs *pairs, const struct bench_values *values, const struct gpu_layout *layout)
{
    const uint32_t pages = layout->pages;
    bool good = true;

    pairs->values = values;
    pairs->layout = *layout;
    pairs->from_ids = calloc(pages, sizeof(pairs->from_ids[0]));
    pairs->to_ids = calloc(pages, sizeof(pairs->to_ids[0]));
    pairs->wanted = calloc(pages, sizeof(pairs->wanted[0]));
    if (pairs->from_ids == NULL || pairs->to_ids == NULL || pairs->wanted == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    random_order(pairs->from_ids, pages, 1);
    random_order(pairs->to_ids, pages, 2);
    for (unsigned i = 0; good && i < pairs->count; i++)
        good = make_pair(pairs, &pairs->list[i]);
    return good;
}

/* The first pair's daemons end last. */
void pairs_fini(struct pairs *pairs)
{
    for (unsigned i = pairs->count; i-- > 0;) {
        struct pair *pair = &pairs->list[i];
        for (unsigned way = 0; way < PAIRS_WAYS; way++)
            bench_path_close(&pair->paths[way]);
        gpu_free(&pair->source);
        gpu_free(&pair->sink);
        gpu_free(&pair->reference);
    }
    free(pairs->from_ids);
    free(pairs->to_ids);
    free(pairs->wanted);
    *pairs = (struct pairs){0};
}

/* ---- Daemons ----------------------------------------------------------------------------------------------------- */

static bool add_pool(const struct pairs *pairs, struct bench_side *side, const struct gpu_memory *memory,
                     struct strait_pool **pool)
{
    const struct gpu_layout *layout = &pairs->layout;
    struct strait_pool_region regions[VALUE_REGIONS_MAX];

    for (uint32_t r = 0; r < layout->regions; r++) {
        struct strait_class class = pairs->values->tensors.spans.list[r].class;
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

/* The pairs after the first have its source, or its sink. */
static bool connect_pair(struct pairs *pairs, unsigned number, unsigned way, const char *option,
                         const struct bench_site *site)
{
    struct pair *pair = &pairs->list[number];
    struct bench_path *path = &pair->paths[way], *first = &pairs->list[0].paths[way];
    struct bench_pools *pools = &pair->pools[way];
    const char *name = pair->names[way];

    if (!(number == 0 ? bench_path_open(path, PATH_SHM, name, option, site)
                      : bench_path_open_beside(path, first, pairs->shares_source, name, option, site)))
        return false;
    return add_pool(pairs, path->source, &pair->source, &pools->source) &&
           add_pool(pairs, path->sink, &pair->sink, &pools->sink) && bench_path_introduce(path, pools);
}

bool pairs_connect(struct pairs *pairs, unsigned way, const char *name, const char *option,
                   const struct bench_site *site)
{
    bool good = true;

    for (unsigned i = 0; good && i < pairs->count; i++) {
        char *own = pairs->list[i].names[way];
        snprintf(own, sizeof(pairs->list[i].names[way]), i == 0 ? "%.8s" : "%.8s-%u", name, i + 1);
        good = connect_pair(pairs, i, way, option, site);
    }
    return good;
}

bool pairs_figures(struct pairs *pairs, unsigned way, struct node_figures *source, struct node_figures *sink)
{
    for (unsigned i = 0; i < pairs->count; i++) {
        struct node_figures of_source, of_sink;
        if (!bench_path_figures(&pairs->list[i].paths[way], &of_source, &of_sink))
            return false;
        if (i == 0) {
            *source = of_source;
            *sink = of_sink;
        } else if (pairs->shares_source) {
            node_figures_add(sink, &of_sink, 1);
        } else {
            node_figures_add(source, &of_source, 1);
        }
    }
    return true;
}

/* ---- Checking ---------------------------------------------------------------------------------------------------- */

bool pairs_check_sources(struct pairs *pairs)
{
    uint64_t differences, ns;

    for (unsigned i = 0; i < pairs->count; i++) {
        const struct pair *pair = &pairs->list[i];
        const uint64_t size = pair->source.size;
        if (!gpu_copy(&pair->sink, 0, &pair->source, 0, size, false, &ns) ||
            !gpu_differences(&pair->sink, 0, &pair->reference, 0, size, &differences))
            return false;
        if (differences > 0) {
            print_error(NULL, "the source's pool has been written to");
            return false;
        }
    }
    return true;
}

struct pair *landing_pair(const struct landing *landing, unsigned i)
{
    return &landing->pairs->list[(landing->pair + i) % landing->pairs->count];
}

bool landing_wipe(const struct landing *landing)
{
    bool good = true;

    for (unsigned i = 0; good && i < landing->count; i++)
        good = gpu_wipe(&landing_pair(landing, i)->sink);
    return good;
}

bool landing_count_wrong(const struct landing *landing, uint64_t *wrong)
{
    struct pairs *pairs = landing->pairs;

    for (uint32_t i = 0; i < pairs->layout.pages; i++)
        pairs->wanted[i] = -1;
    for (uint32_t i = landing->first; i < landing->first + landing->ids; i++)
        pairs->wanted[pairs->to_ids[i]] = (int32_t)pairs->from_ids[i];
    *wrong = 0;
    for (unsigned i = 0; i < landing->count; i++) {
        const struct pair *pair = landing_pair(landing, i);
        uint64_t found;
        if (!gpu_wrong_pages(&pair->sink, &pair->reference, &pairs->layout, pairs->wanted, &found))
            return false;
        *wrong += found;
    }
    return true;
}
