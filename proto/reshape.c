#include "proto/reshape.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <strait/codec.h>

#include "internal/divisor.h"
#include "internal/element.h"

struct text {
    char *dst;
    size_t capacity, size;
};

__attribute__((format(printf, 2, 3))) static void write_text(struct text *text, const char *format, ...)
{
    va_list arguments;
    if (text->size >= text->capacity)
        return;
    va_start(arguments, format);
    const int size = vsnprintf(text->dst + text->size, text->capacity - text->size, format, arguments);
    va_end(arguments);
    text->size += size > 0 ? (size_t)size : 0;
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

/* What a region holds; or one half of a region of K and V that meets regions of K and regions of V. */
struct tensor {
    const struct blob_region *region;
    uint32_t index; /* of the region, in its group */
    uint32_t role;
    uint32_t nth; /* among those of its layer and role */
    uint32_t half;
};

struct tensors {
    struct tensor *list;
    uint32_t count;
};

static int compare_numbers(uint32_t a, uint32_t b)
{
    return (a > b) - (a < b);
}

/* Regions of no layer are told apart by their groups. */
static int compare_kinds(const struct tensor *a, const struct tensor *b)
{
    const struct blob_region *x = a->region, *y = b->region;
    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    if (x->layer < 0 && x->group != y->group)
        return compare_numbers(x->group, y->group);
    return compare_numbers(a->role, b->role);
}

static int compare_tensors(const void *left, const void *right)
{
    const struct tensor *a = left, *b = right;
    const int kinds = compare_kinds(a, b);
    return kinds != 0 ? kinds : compare_numbers(a->nth, b->nth);
}

static bool has_kv(const struct pool_blob *pool)
{
    for (uint32_t i = 0; i < pool->region_count; i++)
        if (pool->regions[i].role == STRAIT_ROLE_KV)
            return true;
    return false;
}

static bool list_tensors(const struct pool_blob *pool, bool halves, struct tensors *tensors)
{
    tensors->count = 0;
    tensors->list = malloc(((size_t)pool->region_count * 2 + 1) * sizeof(*tensors->list));
    if (tensors->list == NULL)
        return false;
    uint32_t index = 0;
    for (uint32_t i = 0; i < pool->region_count; i++) {
        const struct blob_region *region = &pool->regions[i];
        index = i > 0 && pool->regions[i - 1].group == region->group ? index + 1 : 0;
        struct tensor tensor = {.region = region, .index = index, .role = region->role, .nth = i};
        if (region->role != STRAIT_ROLE_KV || !halves) {
            tensors->list[tensors->count++] = tensor;
            continue;
        }
        for (tensor.half = 1; tensor.half <= 2; tensor.half++) {
            tensor.role = tensor.half == 1 ? STRAIT_ROLE_K : STRAIT_ROLE_V;
            tensors->list[tensors->count++] = tensor;
        }
    }
    qsort(tensors->list, tensors->count, sizeof(*tensors->list), compare_tensors);
    for (uint32_t i = 0, nth = 0; i < tensors->count; i++) {
        nth = i > 0 && compare_kinds(&tensors->list[i - 1], &tensors->list[i]) == 0 ? nth + 1 : 0;
        tensors->list[i].nth = nth;
    }
    return true;
}

/* ---- What does not fit ------------------------------------------------------------------------------------------- */

static uint64_t page_bytes(const struct blob_region *region)
{
    return (uint64_t)region->rows * region->row_bytes;
}

static void write_region(struct text *text, const struct blob_region *region)
{
    static const char *const orders[] = {"no order", "NHD", "HND"};
    write_text(text, "%" PRIu64 " bytes of %s, %" PRIu32 " tokens, %" PRIu32 " heads", page_bytes(region),
               element_name(region->element), region->tokens, region->heads);
    if (region->heads_total != 0)
        write_text(text, " from %" PRIu32 " of %" PRIu32, region->head_first, region->heads_total);
    write_text(text, ", %s", region->layout < sizeof(orders) / sizeof(*orders) ? orders[region->layout] : "?");
}

/* Names both descriptions. */
static void refuse(struct text *text, const struct tensor *a, const struct tensor *b, const char *what)
{
    static const char *const roles[] = {"other", "K", "V", "KV"};
    if (a->region->layer >= 0)
        write_text(text, "layer %" PRId32 ", ", a->region->layer);
    write_text(text, "%s: %s: pages of ", roles[a->role <= STRAIT_ROLE_KV ? a->role : 0], what);
    write_region(text, a->region);
    write_text(text, " at the source; of ");
    write_region(text, b->region);
    write_text(text, " at the sink");
}

static bool has_order(const struct blob_region *region)
{
    return region->layout != STRAIT_LAYOUT_NONE || region->heads == 1 || region->tokens == 1;
}

/* Of pages whose contents are not declared, the rows are all that is known. */
static bool same_pages(const struct tensor *a, const struct tensor *b)
{
    const struct blob_region *x = a->region, *y = b->region;
    const bool declared = x->tokens != 0 && x->heads != 0 && has_order(x);
    return (declared || x->rows == y->rows) && a->half == 0 && b->half == 0 && page_bytes(x) == page_bytes(y) &&
           x->tokens == y->tokens && x->heads == y->heads && x->layout == y->layout && x->head_first == y->head_first &&
           x->heads_total == y->heads_total;
}

/* The bytes that a head has for a token, in a whole region or one half of it; 0: the page is no such product. */
static uint64_t head_bytes(const struct tensor *tensor)
{
    const struct blob_region *region = tensor->region;
    const uint64_t values = (uint64_t)region->tokens * region->heads, parts = tensor->half != 0 ? 2 : 1;
    if (values == 0 || page_bytes(region) % (values * parts) != 0)
        return 0;
    const uint64_t bytes = page_bytes(region) / values / parts;
    return bytes % element_bytes(region->element) == 0 ? bytes : 0;
}

/* Why pages of different layouts cannot be reshaped into one another; NULL: they can. */
static const char *why_not(const struct tensor *a, const struct tensor *b)
{
    const struct blob_region *x = a->region, *y = b->region;
    if (x->element != y->element)
        return "the element types differ";
    if (same_pages(a, b))
        return NULL;
    if (head_bytes(a) == 0 || head_bytes(b) == 0)
        return "tokens and heads do not divide the page, or are not declared";
    if (head_bytes(a) != head_bytes(b))
        return "a head has different sizes";
    if (!has_order(x) || !has_order(y))
        return "the order of tokens and heads is not declared";
    if (x->heads_total != y->heads_total || (x->heads_total == 0 && x->heads != y->heads))
        return "other KV heads";
    return NULL;
}

/* ---- Tiles ------------------------------------------------------------------------------------------------------- */

/* Bytes from one token, and from one head, to the next in a page. */
struct strides {
    uint64_t token, head;
};

static struct strides strides_of(const struct tensor *tensor, uint64_t bytes)
{
    const struct blob_region *region = tensor->region;
    const uint64_t head = tensor->half != 0 ? 2 * bytes : bytes;
    if (region->layout == STRAIT_LAYOUT_HND)
        return (struct strides){.token = head, .head = head * region->tokens};
    return (struct strides){.token = head * region->heads, .head = head};
}

/* Items at two distances as rows, each as long as can be; where they make none, as rows of columns. Returns whether
 * there are no columns. */
static bool fold(uint32_t outer, uint64_t outer_stride, uint32_t inner, uint64_t inner_stride, uint64_t bytes,
                 struct tile_place *place)
{
    place->columns = 1;
    place->column_stride = 0;
    if (inner == 1 || inner_stride == bytes) {
        bytes *= inner;
        inner = 1;
        inner_stride = outer_stride;
    } else if (outer != 1 && outer_stride != inner * inner_stride) {
        place->rows = outer;
        place->row_bytes = (uint32_t)(bytes * inner);
        place->row_stride = (uint32_t)outer_stride;
        place->columns = inner;
        place->column_stride = (uint32_t)inner_stride;
        return false;
    }
    const uint32_t rows = outer * inner;
    const bool is_row = rows == 1 || inner_stride == bytes;
    place->rows = is_row ? 1 : rows;
    place->row_bytes = (uint32_t)(is_row ? bytes * rows : bytes);
    place->row_stride = (uint32_t)(is_row ? 0 : inner_stride);
    return true;
}

/* Tokens and heads of a tile, in either order. */
static bool fold_tile(const struct strides *strides, bool heads_first, uint32_t tokens, uint32_t heads, uint64_t bytes,
                      struct tile_place *place)
{
    return heads_first ? fold(heads, strides->head, tokens, strides->token, bytes, place)
                       : fold(tokens, strides->token, heads, strides->head, bytes, place);
}

/* A pair of tensors: what makes their tiles. */
struct pair {
    const struct tensor *tensors[RESHAPE_SIDES];
    struct strides strides[RESHAPE_SIDES];
    uint64_t bytes; /* of a head and token */
    uint32_t tokens, head, heads;
};

/* The tiles of a pair, with tokens or heads first. Returns whether both sides have rows without columns. */
static bool place_tiles(const struct pair *pair, bool heads_first, struct reshape_region *region)
{
    bool rows = true;
    *region = (struct reshape_region){.layer = pair->tensors[RESHAPE_SOURCE]->region->layer,
                                      .role = pair->tensors[RESHAPE_SOURCE]->role,
                                      .bytes = (uint32_t)(pair->bytes * pair->tokens * pair->heads),
                                      .head = pair->head,
                                      .heads = pair->heads,
                                      .half = pair->tensors[RESHAPE_SINK]->half};
    for (int side = 0; side < RESHAPE_SIDES; side++) {
        const struct tensor *tensor = pair->tensors[side];
        struct tile_place *place = &region->at[side];
        place->region = tensor->index;
        place->offset = (uint32_t)((pair->head - tensor->region->head_first) * pair->strides[side].head +
                                   (tensor->half == 2 ? pair->bytes : 0));
        place->step = (uint32_t)(pair->tokens * pair->strides[side].token);
        rows &= fold_tile(&pair->strides[side], heads_first, pair->tokens, pair->heads, pair->bytes, place);
    }
    return rows;
}

/* Regions that are being collected, each with what it is sorted by. */
struct entry {
    uint32_t group[RESHAPE_SIDES], tiles[RESHAPE_SIDES];
    struct reshape_region region;
};

struct entries {
    struct entry *list;
    uint32_t count;
};

static bool add_entry(struct entries *entries, const struct tensor *a, const struct tensor *b, uint32_t tokens,
                      const struct reshape_region *region)
{
    if (entries->count == STRAIT_REGIONS_MAX)
        return false;
    entries->list[entries->count++] = (struct entry){
        .group = {a->region->group, b->region->group},
        .tiles = {tokens == 0 ? 1 : a->region->tokens / tokens, tokens == 0 ? 1 : b->region->tokens / tokens},
        .region = *region};
    return true;
}

/* A page is one tile. */
static bool add_pages(struct entries *entries, const struct tensor *a, const struct tensor *b)
{
    const uint32_t bytes = (uint32_t)page_bytes(a->region);
    const struct reshape_region region = {.layer = a->region->layer,
                                          .role = a->role,
                                          .bytes = bytes,
                                          .head = a->region->head_first,
                                          .heads = a->region->heads,
                                          .at = {{.region = a->index, .rows = 1, .row_bytes = bytes, .columns = 1},
                                                 {.region = b->index, .rows = 1, .row_bytes = bytes, .columns = 1}}};
    return add_entry(entries, a, b, 0, &region);
}

/* The tiles of two tensors whose pages differ: rows at both sides if an order of tokens and heads makes them. */
static bool add_tiles(struct entries *entries, const struct tensor *a, const struct tensor *b)
{
    const struct blob_region *x = a->region, *y = b->region;
    const uint32_t first = x->head_first > y->head_first ? x->head_first : y->head_first;
    const uint64_t x_end = (uint64_t)x->head_first + x->heads, y_end = (uint64_t)y->head_first + y->heads;
    const uint64_t end = x_end < y_end ? x_end : y_end;
    if (end <= first)
        return true;
    struct pair pair = {.tensors = {a, b},
                        .bytes = head_bytes(a),
                        .tokens = (uint32_t)common_divisor(x->tokens, y->tokens),
                        .head = first,
                        .heads = (uint32_t)(end - first)};
    pair.strides[RESHAPE_SOURCE] = strides_of(a, pair.bytes);
    pair.strides[RESHAPE_SINK] = strides_of(b, pair.bytes);
    struct reshape_region region;
    if (!place_tiles(&pair, false, &region) && !place_tiles(&pair, true, &region))
        (void)place_tiles(&pair, y->layout == STRAIT_LAYOUT_HND, &region);
    return add_entry(entries, a, b, pair.tokens, &region);
}

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

static int compare_groups(const struct entry *a, const struct entry *b)
{
    for (int side = 0; side < RESHAPE_SIDES; side++)
        if (a->group[side] != b->group[side])
            return compare_numbers(a->group[side], b->group[side]);
    for (int side = 0; side < RESHAPE_SIDES; side++)
        if (a->tiles[side] != b->tiles[side])
            return compare_numbers(a->tiles[side], b->tiles[side]);
    return 0;
}

static int compare_entries(const void *left, const void *right)
{
    const struct entry *a = left, *b = right;
    const int groups = compare_groups(a, b);
    if (groups != 0)
        return groups;
    const struct reshape_region *x = &a->region, *y = &b->region;
    if (x->at[RESHAPE_SOURCE].region != y->at[RESHAPE_SOURCE].region)
        return compare_numbers(x->at[RESHAPE_SOURCE].region, y->at[RESHAPE_SOURCE].region);
    if (x->at[RESHAPE_SINK].region != y->at[RESHAPE_SINK].region)
        return compare_numbers(x->at[RESHAPE_SINK].region, y->at[RESHAPE_SINK].region);
    if (x->at[RESHAPE_SOURCE].offset != y->at[RESHAPE_SOURCE].offset)
        return compare_numbers(x->at[RESHAPE_SOURCE].offset, y->at[RESHAPE_SOURCE].offset);
    return compare_numbers(x->at[RESHAPE_SINK].offset, y->at[RESHAPE_SINK].offset);
}

/* False: more than STRAIT_GROUPS_MAX. */
static bool group_entries(const struct entries *entries, struct reshape *reshape)
{
    for (uint32_t i = 0; i < entries->count; i++) {
        const struct entry *entry = &entries->list[i];
        if (i == 0 || compare_groups(entry - 1, entry) != 0) {
            if (reshape->group_count == STRAIT_GROUPS_MAX)
                return false;
            struct reshape_group *group = &reshape->groups[reshape->group_count++];
            *group = (struct reshape_group){.first = i};
            memcpy(group->group, entry->group, sizeof(group->group));
            memcpy(group->tiles, entry->tiles, sizeof(group->tiles));
        }
        reshape->groups[reshape->group_count - 1].count++;
        reshape->regions[reshape->region_count++] = entry->region;
    }
    return true;
}

/* Pages of two groups share their indexes, so all regions of them must say that a page of one is as many of the other.
 * Returns an entry, after others of the groups, that says something else; NULL: none does. */
static const struct entry *find_uneven(const struct entries *entries)
{
    for (uint32_t i = 1; i < entries->count; i++) {
        const struct entry *a = &entries->list[i - 1], *b = a + 1;
        const bool together =
            a->group[RESHAPE_SOURCE] == b->group[RESHAPE_SOURCE] && a->group[RESHAPE_SINK] == b->group[RESHAPE_SINK];
        if (together && (uint64_t)a->tiles[RESHAPE_SOURCE] * b->tiles[RESHAPE_SINK] !=
                            (uint64_t)b->tiles[RESHAPE_SOURCE] * a->tiles[RESHAPE_SINK])
            return b;
    }
    return NULL;
}

/* ---- Making ------------------------------------------------------------------------------------------------------ */

/* Walks both lists in their common order; what only one of them has is passed over. */
static enum strait_status pair_tensors(const struct tensors *source, const struct tensors *sink,
                                       struct entries *entries, struct text *why)
{
    uint32_t i = 0, j = 0;
    while (i < source->count && j < sink->count) {
        const struct tensor *a = &source->list[i], *b = &sink->list[j];
        const int compared = compare_tensors(a, b);
        i += compared <= 0;
        j += compared >= 0;
        if (compared != 0)
            continue;
        const char *reason = why_not(a, b);
        if (reason != NULL) {
            refuse(why, a, b, reason);
            return STRAIT_ERR_INVALID;
        }
        if (!(same_pages(a, b) ? add_pages : add_tiles)(entries, a, b)) {
            refuse(why, a, b, "too many regions");
            return STRAIT_ERR_INVALID;
        }
    }
    if (entries->count > 0)
        return STRAIT_OK;
    write_text(why, "the pools have no layer and head in common");
    return STRAIT_ERR_INVALID;
}

static enum strait_status make(const struct tensors *source, const struct tensors *sink, struct entries *entries,
                               struct reshape *reshape, struct text *why)
{
    enum strait_status status = pair_tensors(source, sink, entries, why);
    if (status != STRAIT_OK)
        return status;
    qsort(entries->list, entries->count, sizeof(*entries->list), compare_entries);
    const struct entry *uneven = find_uneven(entries);
    if (uneven != NULL) {
        write_text(why,
                   "layer %" PRId32 ": %" PRIu32 " pages at the source are %" PRIu32
                   " at the sink, but not in other regions of their groups",
                   uneven->region.layer, uneven->tiles[RESHAPE_SINK], uneven->tiles[RESHAPE_SOURCE]);
        return STRAIT_ERR_INVALID;
    }
    reshape->groups = malloc(STRAIT_GROUPS_MAX * sizeof(*reshape->groups));
    reshape->regions = malloc(entries->count * sizeof(*reshape->regions));
    if (reshape->groups == NULL || reshape->regions == NULL)
        return STRAIT_ERR_NO_MEMORY;
    if (group_entries(entries, reshape))
        return STRAIT_OK;
    write_text(why, "tiles of more than %u groups of pages", STRAIT_GROUPS_MAX);
    return STRAIT_ERR_INVALID;
}

enum strait_status reshape_make(const struct pool_blob *source, const struct pool_blob *sink, struct reshape *reshape,
                                char *why, size_t why_size)
{
    struct text text = {.dst = why, .capacity = why_size};
    struct tensors a = {0}, b = {0};
    struct entries entries = {.list = malloc(STRAIT_REGIONS_MAX * sizeof(*entries.list))};
    struct reshape made = {0};
    if (why_size > 0)
        why[0] = '\0';
    enum strait_status status = STRAIT_ERR_NO_MEMORY;
    if (strcmp(source->compat, sink->compat) != 0) {
        write_text(&text, "compatibility token \"%s\" at the source, \"%s\" at the sink", source->compat, sink->compat);
        status = STRAIT_ERR_INVALID;
    } else if (entries.list != NULL && list_tensors(source, !has_kv(sink), &a) &&
               list_tensors(sink, !has_kv(source), &b)) {
        status = make(&a, &b, &entries, &made, &text);
    }
    free(a.list);
    free(b.list);
    free(entries.list);
    if (status == STRAIT_OK)
        *reshape = made;
    else
        reshape_fini(&made);
    return status;
}

void reshape_fini(struct reshape *reshape)
{
    free(reshape->groups);
    free(reshape->regions);
    *reshape = (struct reshape){0};
}

/* ---- Pages as tiles ---------------------------------------------------------------------------------------------- */

/* Pages [first, first + count) as tiles. False: beyond 32 bits. */
static bool tiles_of(uint32_t tiles, uint32_t *first, uint32_t *count)
{
    const uint64_t begin = (uint64_t)*first * tiles, size = (uint64_t)*count * tiles;
    if (begin + size > UINT32_MAX)
        return false;
    *first = (uint32_t)begin;
    *count = (uint32_t)size;
    return true;
}

struct wire_span *reshape_wanted(const struct reshape *reshape, enum reshape_side side, const struct wire_span *wanted,
                                 uint32_t count, uint32_t *tiles)
{
    struct wire_span *spans = malloc(((size_t)reshape->group_count * count + 1) * sizeof(*spans));
    *tiles = 0;
    for (uint32_t g = 0; spans != NULL && g < reshape->group_count; g++)
        for (uint32_t i = 0; i < count; i++) {
            const struct reshape_group *group = &reshape->groups[g];
            struct wire_span span = {.group = g, .first = wanted[i].first, .count = wanted[i].count};
            if (wanted[i].group != group->group[side])
                continue;
            if (!tiles_of(group->tiles[side], &span.first, &span.count)) {
                free(spans);
                return NULL;
            }
            spans[(*tiles)++] = span;
        }
    return spans;
}

enum strait_status reshape_segment(const struct reshape *reshape, const struct segment *segment,
                                   enum strait_status (*emit)(void *owner, const struct segment *tiles), void *owner)
{
    for (uint32_t g = 0; g < reshape->group_count; g++) {
        const struct reshape_group *group = &reshape->groups[g];
        if (group->group[RESHAPE_SOURCE] != segment->group)
            continue;
        const struct reshape_region *regions = reshape->regions + group->first;
        uint32_t begin = 0;
        while (begin < group->count && regions[begin].at[RESHAPE_SOURCE].region < segment->region_first)
            begin++;
        uint32_t end = begin;
        while (end < group->count &&
               regions[end].at[RESHAPE_SOURCE].region - segment->region_first < segment->region_count)
            end++;
        struct segment tiles = {g, begin, end - begin, segment->first, segment->count};
        if (end == begin)
            continue;
        if (!tiles_of(group->tiles[RESHAPE_SOURCE], &tiles.first, &tiles.count))
            return STRAIT_ERR_INVALID;
        enum strait_status status = emit(owner, &tiles);
        if (status != STRAIT_OK)
            return status;
    }
    return STRAIT_OK;
}

/* ---- Two sources of one sink ------------------------------------------------------------------------------------- */

bool reshape_regions_overlap(const struct reshape_region *a, const struct reshape_region *b)
{
    if (a->half != 0 && b->half != 0 && a->half != b->half)
        return false;
    if (a->heads == 0 || b->heads == 0)
        return true;
    return (uint64_t)a->head + a->heads > b->head && (uint64_t)b->head + b->heads > a->head;
}
