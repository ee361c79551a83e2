#include "checkpoint/load_plan.h"

#include <string.h>

#define STEPS_MAX (1u << 24) /* comparisons of boxes for one request */

enum strait_status load_plan_init(struct load_plan *plan, struct strait_checkpoint_reader *reader, uint64_t seed)
{
    *plan = (struct load_plan){.reader = reader, .seed = seed};
    plan->file_bytes = calloc(reader->index.file_count + (size_t)1, sizeof(*plan->file_bytes));
    return plan->file_bytes != NULL ? STRAIT_OK : STRAIT_ERR_NO_MEMORY;
}

void load_plan_fini(struct load_plan *plan)
{
    arena_free(&plan->arena);
    free(plan->pieces);
    free(plan->needs);
    free(plan->file_bytes);
    *plan = (struct load_plan){.reader = NULL};
}

/* ---- Pieces ------------------------------------------------------------------------------------------------------ */

/* A request as it is cut into pieces: what is left of it. */
struct cutting {
    struct load_plan *plan;
    uint32_t dims;
    struct checkpoint_box *left;
    size_t left_count, left_room;
    bool no_memory;
    uint32_t steps;
};

static bool keep_box(struct load_plan *plan, const struct checkpoint_box *box, const uint64_t **at,
                     const uint64_t **size)
{
    uint64_t *kept = arena_take(&plan->arena, (2 * box->dims + 1) * sizeof(*kept));
    if (kept == NULL)
        return false;
    if (box->dims > 0) {
        memcpy(kept, box->offsets, box->dims * sizeof(*kept));
        memcpy(kept + box->dims, box->sizes, box->dims * sizeof(*kept));
    }
    *at = kept;
    *size = kept + box->dims;
    return true;
}

static bool leave(void *context, const struct checkpoint_box *box)
{
    struct cutting *cutting = context;
    struct checkpoint_box kept = {.dims = box->dims};
    cutting->no_memory = !list_grow((void **)&cutting->left, cutting->left_count, &cutting->left_room, sizeof(kept)) ||
                         !keep_box(cutting->plan, box, &kept.offsets, &kept.sizes);
    if (!cutting->no_memory)
        cutting->left[cutting->left_count++] = kept;
    return !cutting->no_memory;
}

static bool add_piece(struct load_plan *plan, const struct checkpoint_box *part, uint32_t request, uint32_t shard)
{
    struct piece piece = {.request = request, .shard = shard};
    if (!list_grow((void **)&plan->pieces, plan->piece_count, &plan->piece_room, sizeof(piece)) ||
        !keep_box(plan, part, &piece.at, &piece.size))
        return false;
    plan->pieces[plan->piece_count++] = piece;
    return true;
}

/* Cuts from what is left all that a shard has. Returns the bytes; UINT64_MAX: it failed. */
static uint64_t cut(struct cutting *cutting, const struct checkpoint_box *shard_box, uint32_t request, uint32_t shard)
{
    uint64_t at[STRAIT_CHECKPOINT_DIMS_MAX], size[STRAIT_CHECKPOINT_DIMS_MAX], values = 0;
    const size_t before = cutting->left_count;
    size_t kept = 0;
    for (size_t i = 0; i < before; i++) {
        const struct checkpoint_box box = cutting->left[i],
                                    part = {.offsets = at, .sizes = size, .dims = cutting->dims};
        if (cutting->steps++ > STEPS_MAX)
            return UINT64_MAX;
        if (!checkpoint_box_intersect(&box, shard_box, at, size)) {
            cutting->left[kept++] = box;
            continue;
        }
        cutting->no_memory = !add_piece(cutting->plan, &part, request, shard);
        if (cutting->no_memory || !checkpoint_box_subtract(&box, &part, leave, cutting))
            return UINT64_MAX;
        values += checkpoint_box_values(&part);
    }
    memmove(cutting->left + kept, cutting->left + before, (cutting->left_count - before) * sizeof(*cutting->left));
    cutting->left_count -= before - kept;
    return values;
}

static bool was_tried(const struct request *request, uint32_t shard)
{
    for (const struct tried *tried = request->tried; tried != NULL; tried = tried->before)
        if (tried->shard == shard)
            return true;
    return false;
}

/* The replica, of `count` shards with equal boxes, of whose file the least is to be read; UINT32_MAX: all were tried.
 * Where files are equal the first one is another in each process and for each tensor. */
static uint32_t choose(const struct load_plan *plan, const uint32_t *shards, uint32_t count,
                       const struct request *request)
{
    const uint32_t start = (uint32_t)((plan->seed + shards[0]) * 0x9E3779B97F4A7C15u >> 32) % count;
    uint32_t chosen = UINT32_MAX;
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t shard = shards[(start + i) % count];
        const uint64_t bytes = plan->file_bytes[plan->reader->index.shards[shard].file];
        if (bytes < least && !was_tried(request, shard)) {
            chosen = shard;
            least = bytes;
        }
    }
    return chosen;
}

/* The first shard, of those sorted by offset, that begins at or behind `at` in the first dimension. */
static uint32_t first_from(const struct checkpoint_index *index, const uint32_t *order, uint32_t count, uint64_t at)
{
    uint32_t low = 0, high = count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (index->shards[order[middle]].offsets[0] < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static enum strait_status cut_request(struct cutting *cutting, uint32_t tensor, const struct request *request,
                                      uint32_t number)
{
    struct load_plan *plan = cutting->plan;
    const struct checkpoint_index *index = &plan->reader->index;
    const uint32_t *order = reader_shards(plan->reader, tensor), count = index->tensors[tensor].count;
    const struct checkpoint_box wanted = {.offsets = request->at, .sizes = request->size, .dims = cutting->dims};
    uint64_t at[STRAIT_CHECKPOINT_DIMS_MAX], size[STRAIT_CHECKPOINT_DIMS_MAX];
    uint32_t i = 0, end = count, same;
    if (cutting->dims > 0) {
        const uint64_t reach = plan->reader->reach[tensor];
        i = first_from(index, order, count, wanted.offsets[0] >= reach ? wanted.offsets[0] - reach + 1 : 0);
        end = first_from(index, order, count, wanted.offsets[0] + wanted.sizes[0]);
    }
    if (!leave(cutting, &wanted))
        return STRAIT_ERR_NO_MEMORY;
    for (; i < end && cutting->left_count > 0; i += same) {
        const struct checkpoint_box box = load_plan_shard_box(&index->shards[order[i]]);
        for (same = 1; i + same < end; same++) {
            const struct checkpoint_box next = load_plan_shard_box(&index->shards[order[i + same]]);
            if (!checkpoint_box_equal(&box, &next))
                break;
        }
        const bool meets = checkpoint_box_intersect(&wanted, &box, at, size);
        const uint32_t shard = meets ? choose(plan, order + i, same, request) : UINT32_MAX;
        if (shard == UINT32_MAX)
            continue;
        const uint64_t values = cut(cutting, &box, number, shard);
        if (values == UINT64_MAX)
            return cutting->no_memory ? STRAIT_ERR_NO_MEMORY : STRAIT_ERR_UNSUPPORTED;
        plan->file_bytes[index->shards[shard].file] += values * index->shards[shard].dtype->bytes;
    }
    return cutting->left_count == 0 ? STRAIT_OK : STRAIT_ERR_CORRUPT;
}

enum strait_status load_plan_request(struct load_plan *plan, uint32_t tensor, const struct request *requests,
                                     uint32_t number)
{
    const struct checkpoint_shard *shard = &plan->reader->index.shards[reader_shards(plan->reader, tensor)[0]];
    struct cutting cutting = {.plan = plan, .dims = shard->dims};
    const size_t before = plan->piece_count;
    const enum strait_status status = cut_request(&cutting, tensor, &requests[number], number);
    free(cutting.left);
    if (status != STRAIT_OK)
        plan->piece_count = before;
    return status;
}

/* ---- Needs ------------------------------------------------------------------------------------------------------- */

void load_plan_page(const struct checkpoint_shard *source, uint64_t page, uint64_t *first, uint64_t *end)
{
    const uint64_t per_page = source->page_bytes / source->dtype->bytes, values = source->bytes / source->dtype->bytes;
    *first = page * per_page;
    *end = values - *first < per_page ? values : *first + per_page;
}

/* The last value of the shard that a walk meets. */
static uint64_t last_value(const struct walk *walk)
{
    uint64_t last = walk->first;
    for (uint32_t d = 0; d < walk->dims; d++)
        last += (walk->size[d] - 1) * walk->src[d];
    return last;
}

/* Adds the need of a chunk whose pages first..last, counted in the shard, may have values of the piece. The first page
 * of the chunk has the number chunk_page there, which may be negative. */
static enum strait_status add_need(struct load_plan *plan, const struct walk *walk,
                                   const struct checkpoint_shard *source, struct need need, uint64_t first,
                                   uint64_t last, int64_t chunk_page)
{
    uint64_t begin, end, unused;
    load_plan_page(source, first, &begin, &unused);
    load_plan_page(source, last, &unused, &end);
    if (!walk_touches(walk, begin, end))
        return STRAIT_OK;
    if (!list_grow((void **)&plan->needs, plan->need_count, &plan->need_room, sizeof(need)))
        return STRAIT_ERR_NO_MEMORY;
    need.first = (uint32_t)((int64_t)first - chunk_page);
    need.last = (uint32_t)((int64_t)last - chunk_page);
    plan->needs[plan->need_count++] = need;
    return STRAIT_OK;
}

enum strait_status load_plan_needs(struct load_plan *plan, uint32_t number, const struct box_memory *memory,
                                   enum strait_checkpoint_memory kind)
{
    const struct piece *piece = &plan->pieces[number];
    const struct checkpoint_shard *shard = &plan->reader->index.shards[piece->shard];
    const struct checkpoint_shard *source = reader_source(plan->reader, shard);
    const struct reader_file *file = &plan->reader->files[shard->file];
    const struct checkpoint_box box = load_plan_shard_box(shard),
                                part = {.offsets = piece->at, .sizes = piece->size, .dims = shard->dims};
    const uint64_t base = reader_first_page(plan->reader, source), per_page = source->page_bytes / source->dtype->bytes;
    enum strait_status status = STRAIT_OK;
    struct walk walk;
    walk_init(&walk, &box, &part, memory);
    const uint64_t end = last_value(&walk) / per_page + 1;
    uint64_t page = walk.first / per_page;
    for (uint32_t c = reader_chunk_of(file, base + page); page < end && status == STRAIT_OK; c++) {
        const uint64_t chunk_end = file->first_page[c + 1] - base, stop = chunk_end < end ? chunk_end : end;
        const struct need need = {.file = shard->file, .chunk = c, .memory = kind, .piece = number};
        status = add_need(plan, &walk, source, need, page, stop - 1, (int64_t)file->first_page[c] - (int64_t)base);
        page = stop;
    }
    return status;
}

static int compare_needs(const void *a, const void *b)
{
    const struct need *x = a, *y = b;
    const uint32_t keys[][2] = {
        {x->file, y->file}, {x->chunk, y->chunk}, {x->memory, y->memory}, {x->first, y->first}, {x->piece, y->piece}};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (keys[i][0] != keys[i][1])
            return keys[i][0] < keys[i][1] ? -1 : 1;
    return 0;
}

void load_plan_sort(struct load_plan *plan)
{
    if (plan->need_count > 0)
        qsort(plan->needs, plan->need_count, sizeof(*plan->needs), compare_needs);
}
