#include "daemon/protocol/coverage.h"

#include <stdlib.h>

/* Two bits per unit, in rows of whole words: one row for each region of a group, indexed by the ordinals of its
 * pages. */
struct cover_group {
    uint32_t region_count;
    const uint32_t *layer_of; /* per region: index into coverage->layers, or NO_LAYER */
    uint32_t words;           /* words of a row */
    uint64_t *claimed, *landed;
};

struct cover_layer {
    int32_t layer;
    uint64_t left; /* units expected but not landed */
};

struct coverage {
    const struct page_set *pages;
    uint32_t group_count, layer_count;
    struct cover_group *groups;
    struct cover_layer *layers; /* rising; only layers of which something is expected */
    uint32_t *layer_of;         /* for the regions of all groups */
    uint64_t *bits;
    uint64_t left; /* units */
    uint32_t layers_landed;
};

#define NO_LAYER UINT32_MAX

/* ---- Bits of a row ----------------------------------------------------------------------------------------------- */

/* Bits of word w that lie in [first, first + count). */
static uint64_t word_mask(uint32_t w, uint32_t first, uint32_t count)
{
    uint64_t begin = (uint64_t)w * 64, end = (uint64_t)first + count;
    uint64_t mask = ~0ull;
    if (first > begin)
        mask &= ~0ull << (first - begin);
    if (end < begin + 64)
        mask &= ~0ull >> (begin + 64 - end);
    return mask;
}

static uint32_t last_word(uint32_t first, uint32_t count)
{
    return (first + count - 1) / 64;
}

static bool all_are(const uint64_t *row, uint32_t first, uint32_t count, bool value)
{
    for (uint32_t w = first / 64; w <= last_word(first, count); w++) {
        uint64_t mask = word_mask(w, first, count);
        if ((row[w] & mask) != (value ? mask : 0))
            return false;
    }
    return true;
}

static void set_all(uint64_t *row, uint32_t first, uint32_t count)
{
    for (uint32_t w = first / 64; w <= last_word(first, count); w++)
        row[w] |= word_mask(w, first, count);
}

/* ---- Making ------------------------------------------------------------------------------------------------------ */

static int by_layer(const void *a, const void *b)
{
    int32_t left = ((const struct cover_layer *)a)->layer, right = ((const struct cover_layer *)b)->layer;
    return (left > right) - (left < right);
}

/* Collects the layer of each region of which something is expected, unordered and with duplicates. */
static uint32_t list_layers(struct coverage *coverage, const struct coverage_group *groups)
{
    uint32_t count = 0;
    for (uint32_t g = 0; g < coverage->group_count; g++)
        for (uint32_t r = 0; r < groups[g].region_count; r++)
            if (groups[g].layers[r] >= 0 && coverage->pages->groups[g].id_count > 0)
                coverage->layers[count++].layer = groups[g].layers[r];
    return count;
}

static void unite_layers(struct coverage *coverage, uint32_t count)
{
    if (count > 0)
        qsort(coverage->layers, count, sizeof(*coverage->layers), by_layer);
    for (uint32_t i = 0; i < count; i++)
        if (i == 0 || coverage->layers[i].layer != coverage->layers[coverage->layer_count - 1].layer)
            coverage->layers[coverage->layer_count++].layer = coverage->layers[i].layer;
}

static uint32_t find_layer(const struct coverage *coverage, int32_t layer)
{
    const struct cover_layer key = {.layer = layer};
    if (coverage->layer_count == 0)
        return NO_LAYER;
    const struct cover_layer *found =
        bsearch(&key, coverage->layers, coverage->layer_count, sizeof(*coverage->layers), by_layer);
    return found == NULL ? NO_LAYER : (uint32_t)(found - coverage->layers);
}

static uint32_t row_words(const struct page_set *pages, uint32_t group)
{
    return pages->groups[group].id_count / 64 + (pages->groups[group].id_count % 64 != 0);
}

/* Counts the words and regions of all rows. False: more than is allowed. */
static bool measure(const struct page_set *pages, const struct coverage_group *groups, uint32_t group_count,
                    uint64_t *words, uint64_t *regions)
{
    *words = *regions = 0;
    for (uint32_t g = 0; g < group_count; g++) {
        *regions += groups[g].region_count;
        *words += (uint64_t)groups[g].region_count * row_words(pages, g) * 2;
        if (*words > COVERAGE_BYTES_MAX / sizeof(uint64_t))
            return false;
    }
    return true;
}

static void fill_groups(struct coverage *coverage, const struct coverage_group *groups)
{
    uint64_t *bits = coverage->bits;
    uint32_t *layer_of = coverage->layer_of;
    for (uint32_t g = 0; g < coverage->group_count; g++) {
        struct cover_group *group = &coverage->groups[g];
        uint64_t words = (uint64_t)groups[g].region_count * row_words(coverage->pages, g);
        *group =
            (struct cover_group){groups[g].region_count, layer_of, row_words(coverage->pages, g), bits, bits + words};
        for (uint32_t r = 0; r < group->region_count; r++) {
            layer_of[r] = find_layer(coverage, groups[g].layers[r]);
            uint32_t pages = coverage->pages->groups[g].id_count;
            coverage->left += pages;
            if (layer_of[r] != NO_LAYER)
                coverage->layers[layer_of[r]].left += pages;
        }
        bits += 2 * words;
        layer_of += group->region_count;
    }
}

enum strait_status coverage_create(const struct page_set *pages, const struct coverage_group *groups,
                                   uint32_t group_count, struct coverage **coverage)
{
    uint64_t words, regions;
    if (group_count != pages->group_count)
        return STRAIT_ERR_INVALID;
    if (!measure(pages, groups, group_count, &words, &regions))
        return STRAIT_ERR_NO_MEMORY;
    struct coverage *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return STRAIT_ERR_NO_MEMORY;
    made->pages = pages;
    made->group_count = group_count;
    made->groups = calloc(group_count + 1u, sizeof(*made->groups));
    made->layers = calloc(regions + 1, sizeof(*made->layers));
    made->layer_of = calloc(regions + 1, sizeof(*made->layer_of));
    made->bits = calloc(words + 1, sizeof(*made->bits));
    if (made->groups == NULL || made->layers == NULL || made->layer_of == NULL || made->bits == NULL) {
        coverage_destroy(made);
        return STRAIT_ERR_NO_MEMORY;
    }
    unite_layers(made, list_layers(made, groups));
    fill_groups(made, groups);
    *coverage = made;
    return STRAIT_OK;
}

void coverage_destroy(struct coverage *coverage)
{
    if (coverage == NULL)
        return;
    free(coverage->groups);
    free(coverage->layers);
    free(coverage->layer_of);
    free(coverage->bits);
    free(coverage);
}

/* ---- Units ------------------------------------------------------------------------------------------------------- */

/* A run of ordinals: a rectangle of logical indexes maps to a few of them. */
struct run {
    uint32_t ordinal, count;
};

/* The run at `first`, at most `most` long; false: that page is not expected. */
static bool run_at(const struct coverage *coverage, uint32_t group, uint32_t first, uint32_t most, struct run *run)
{
    uint32_t count = page_set_run(coverage->pages, group, first);
    if (count == 0)
        return false;
    run->count = count < most ? count : most;
    run->ordinal =
        (uint32_t)(page_set_ids(coverage->pages, group, first, run->count) - coverage->pages->groups[group].ids);
    return true;
}

enum verb { NOT_CLAIMED, CLAIM, LANDABLE, LAND };

static bool apply_row(const struct cover_group *group, uint32_t region, const struct run *run, enum verb verb)
{
    uint64_t *claimed = group->claimed + (uint64_t)region * group->words;
    uint64_t *landed = group->landed + (uint64_t)region * group->words;
    switch (verb) {
    case NOT_CLAIMED:
        return all_are(claimed, run->ordinal, run->count, false);
    case CLAIM:
        set_all(claimed, run->ordinal, run->count);
        return true;
    case LANDABLE:
        return all_are(claimed, run->ordinal, run->count, true) && all_are(landed, run->ordinal, run->count, false);
    case LAND:
        set_all(landed, run->ordinal, run->count);
        return true;
    }
    return false;
}

/* Applies the verb to every unit; stops at the first that is not expected or for which the verb fails. */
static bool apply(struct coverage *coverage, const struct piece *piece, enum verb verb)
{
    const struct cover_group *group = &coverage->groups[piece->group];
    struct run run;
    for (uint32_t done = 0; done < piece->count; done += run.count) {
        if (!run_at(coverage, piece->group, piece->first + done, piece->count - done, &run))
            return false;
        for (uint32_t r = 0; r < piece->region_count; r++)
            if (!apply_row(group, piece->region_first + r, &run, verb))
                return false;
    }
    return true;
}

static bool in_range(const struct coverage *coverage, const struct piece *piece)
{
    return piece->group < coverage->group_count && piece->region_count > 0 && piece->count > 0 &&
           (uint64_t)piece->region_first + piece->region_count <= coverage->groups[piece->group].region_count &&
           piece->count <= UINT32_MAX - piece->first;
}

bool coverage_claim(struct coverage *coverage, const struct segment *segment)
{
    const struct piece piece = {segment->group, segment->region_first, segment->region_count, segment->first,
                                segment->count};
    return in_range(coverage, &piece) && apply(coverage, &piece, NOT_CLAIMED) && apply(coverage, &piece, CLAIM);
}

bool coverage_land(struct coverage *coverage, const struct piece *piece, void (*layer)(void *owner, int32_t layer),
                   void *owner)
{
    if (!in_range(coverage, piece) || !apply(coverage, piece, LANDABLE))
        return false;
    apply(coverage, piece, LAND);
    coverage->left -= (uint64_t)piece->region_count * piece->count;
    for (uint32_t r = piece->region_first; r < piece->region_first + piece->region_count; r++) {
        uint32_t index = coverage->groups[piece->group].layer_of[r];
        if (index == NO_LAYER)
            continue;
        coverage->layers[index].left -= piece->count;
        if (coverage->layers[index].left > 0)
            continue;
        coverage->layers_landed++;
        if (layer != NULL)
            layer(owner, coverage->layers[index].layer);
    }
    return true;
}

void layers_add(void *owner, int32_t layer)
{
    struct layers *layers = owner;
    if (layers->count < STRAIT_REGIONS_MAX)
        layers->list[layers->count++] = layer;
}

bool coverage_complete(const struct coverage *coverage)
{
    return coverage->left == 0;
}

bool coverage_layer_landed(const struct coverage *coverage, int32_t layer)
{
    uint32_t index = find_layer(coverage, layer);
    return index == NO_LAYER || coverage->layers[index].left == 0;
}

uint32_t coverage_layers_landed(const struct coverage *coverage)
{
    return coverage->layers_landed;
}

/* The ordinal behind the last one that has landed in a row, of those of a span. 0: none has. */
static uint32_t last_landed(const uint64_t *row, const struct page_span *span)
{
    for (uint32_t i = span->count; i > 0; i--) {
        const uint32_t ordinal = span->ordinal + i - 1;
        if ((row[ordinal / 64] >> ordinal % 64 & 1) != 0)
            return ordinal + 1;
    }
    return 0;
}

#define NOT_LANDED UINT32_MAX

/* The ordinal of the first one that has landed in a row, of those of a span. NOT_LANDED: none has. */
static uint32_t first_landed(const uint64_t *row, const struct page_span *span)
{
    for (uint32_t i = 0; i < span->count; i++) {
        const uint32_t ordinal = span->ordinal + i;
        if ((row[ordinal / 64] >> ordinal % 64 & 1) != 0)
            return ordinal;
    }
    return NOT_LANDED;
}

static bool is_claimed(const struct cover_group *group, uint32_t region)
{
    const uint64_t *row = group->claimed + (uint64_t)region * group->words;
    for (uint32_t w = 0; w < group->words; w++)
        if (row[w] != 0)
            return true;
    return false;
}

bool coverage_end(const struct coverage *coverage, uint32_t g, uint32_t *end)
{
    const struct cover_group *group = &coverage->groups[g];
    uint32_t common = 0;
    for (uint32_t r = 0; r < group->region_count; r++) {
        if (!is_claimed(group, r))
            continue;
        const uint64_t *row = group->landed + (uint64_t)r * group->words;
        struct page_cursor cursor = {0};
        const struct page_span *span;
        uint32_t last = 0;
        while ((span = page_group_next(&coverage->pages->groups[g], &cursor)) != NULL) {
            const uint32_t ordinal = last_landed(row, span);
            last = ordinal != 0 ? span->first + (ordinal - span->ordinal) : last;
        }
        if (last == 0 || (common != 0 && last != common))
            return false;
        common = last;
    }
    if (common != 0)
        *end = common;
    return common != 0;
}

bool coverage_begin(const struct coverage *coverage, uint32_t g, uint32_t *begin)
{
    const struct cover_group *group = &coverage->groups[g];
    uint32_t common = 0;
    bool found = false;
    for (uint32_t r = 0; r < group->region_count; r++) {
        if (!is_claimed(group, r))
            continue;
        const uint64_t *row = group->landed + (uint64_t)r * group->words;
        struct page_cursor cursor = {0};
        const struct page_span *span;
        uint32_t ordinal = NOT_LANDED;
        while (ordinal == NOT_LANDED && (span = page_group_next(&coverage->pages->groups[g], &cursor)) != NULL)
            ordinal = first_landed(row, span);
        if (ordinal == NOT_LANDED)
            return false;
        const uint32_t first = span->first + (ordinal - span->ordinal);
        if (found && first != common)
            return false;
        common = first;
        found = true;
    }
    if (found)
        *begin = common;
    return found;
}

/* ---- What has landed, and what is missing ------------------------------------------------------------------------ */

/* Ranges being reported: a range is passed on when the next one does not continue it. */
struct ranges {
    bool (*range)(void *owner, const struct wire_page_list *range);
    void *owner;
    bool landed; /* of pages that have landed in all regions; otherwise of the others */
    struct wire_page_list next;
    bool enough;
};

static void tell_next(struct ranges *ranges)
{
    if (ranges->next.count > 0 && !ranges->enough)
        ranges->enough = !ranges->range(ranges->owner, &ranges->next);
    ranges->next.count = 0;
}

static void add_run(struct ranges *ranges, uint32_t group, uint32_t first, uint32_t count, const uint32_t *ids)
{
    struct wire_page_list *next = &ranges->next;
    if (next->count > 0 && next->ids + next->count == ids) {
        next->count += count;
        return;
    }
    tell_next(ranges);
    *next = (struct wire_page_list){.group = group, .first = first, .count = count, .ids = ids};
}

enum { STRETCH = 64 }; /* words examined together, row after row, because rows are far apart in memory */

/* Pages of `count` words from `first` on that have landed in every region. */
static void landed_everywhere(const struct cover_group *group, uint32_t first, uint32_t count, uint64_t *landed)
{
    for (uint32_t i = 0; i < count; i++)
        landed[i] = ~0ull;
    for (uint32_t r = 0; r < group->region_count; r++) {
        const uint64_t *row = group->landed + (uint64_t)r * group->words + first;
        uint64_t any = 0;
        for (uint32_t i = 0; i < count; i++)
            any |= landed[i] &= row[i];
        if (any == 0)
            return;
    }
}

/* The number of consecutive set bits from `from` on; bit `from` is set. */
static uint32_t ones(uint64_t bits, uint32_t from)
{
    uint64_t zeros = ~(bits >> from);
    return zeros == 0 ? 64 : (uint32_t)__builtin_ctzll(zeros);
}

static void ranges_of_word(struct ranges *ranges, uint32_t g, const struct page_span *span, const uint32_t *ids,
                           uint32_t w, uint64_t bits)
{
    while (bits != 0) {
        uint32_t from = (uint32_t)__builtin_ctzll(bits), count = ones(bits, from), ordinal = w * 64 + from;
        add_run(ranges, g, span->first + (ordinal - span->ordinal), count, ids + ordinal);
        bits &= from + count == 64 ? 0 : ~0ull << (from + count);
    }
}

/* Of a span of group g, or a part of one. */
static void ranges_of_span(struct ranges *ranges, const struct coverage *coverage, uint32_t g,
                           const struct page_span *span)
{
    const uint32_t *ids = coverage->pages->groups[g].ids;
    uint64_t landed[STRETCH];
    uint32_t last = last_word(span->ordinal, span->count), count;
    for (uint32_t w = span->ordinal / 64; w <= last && !ranges->enough; w += count) {
        count = last - w + 1 < STRETCH ? last - w + 1 : STRETCH;
        landed_everywhere(&coverage->groups[g], w, count, landed);
        for (uint32_t i = 0; i < count; i++) {
            const uint64_t wanted = ranges->landed ? landed[i] : ~landed[i];
            ranges_of_word(ranges, g, span, ids, w + i, wanted & word_mask(w + i, span->ordinal, span->count));
        }
        if (ranges->next.count >= COVERAGE_RANGE_MAX)
            tell_next(ranges);
    }
    tell_next(ranges); /* another span's ids may follow in memory, but its indexes do not */
}

void coverage_missing(const struct coverage *coverage, bool (*range)(void *owner, const struct wire_page_list *range),
                      void *owner)
{
    struct ranges ranges = {.range = range, .owner = owner};
    for (uint32_t g = 0; g < coverage->group_count; g++) {
        struct page_cursor cursor = {0};
        const struct page_span *span;
        while (!ranges.enough && (span = page_group_next(&coverage->pages->groups[g], &cursor)) != NULL)
            ranges_of_span(&ranges, coverage, g, span);
    }
}

void coverage_whole(const struct coverage *coverage, const struct piece *piece,
                    bool (*range)(void *owner, const struct wire_page_list *range), void *owner)
{
    struct ranges ranges = {.range = range, .owner = owner, .landed = true};
    struct run run;
    for (uint32_t done = 0; done < piece->count && !ranges.enough; done += run.count) {
        if (!run_at(coverage, piece->group, piece->first + done, piece->count - done, &run))
            return;
        ranges_of_span(&ranges, coverage, piece->group,
                       &(struct page_span){piece->first + done, run.count, run.ordinal});
    }
}
