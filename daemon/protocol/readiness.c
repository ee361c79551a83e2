#include "daemon/protocol/readiness.h"

#include <stdlib.h>
#include <string.h>

#define LATER 0u /* the row of pages that were listed as `later`; a region's is 1 + its place */

static uint64_t *row_of(const struct ready_group *group, uint32_t row)
{
    return group->rows + (size_t)row * group->words;
}

static uint64_t bits_below(uint32_t count)
{
    return count >= 64 ? ~0ull : (1ull << count) - 1;
}

/* Bits [first, first + count) of a row: sets them, or (test) tells whether any is set. */
static bool apply_bits(uint64_t *row, uint32_t first, uint32_t count, bool test)
{
    for (uint32_t bit = first, many; bit < first + count; bit += many) {
        const uint32_t from = bit % 64, left = first + count - bit;
        many = left < 64 - from ? left : 64 - from;
        const uint64_t mask = bits_below(many) << from;
        if (test && (row[bit / 64] & mask) != 0)
            return true;
        row[bit / 64] |= test ? 0 : mask;
    }
    return false;
}

/* ---- Rows ------------------------------------------------------------------------------------------------------- */

/* Makes rows long enough for the group's pages; new bits are clear. */
static bool grow(struct ready_group *group, const struct page_group *pages)
{
    if (pages->id_count <= group->words * 64ull)
        return true;
    const uint32_t rows = group->region_count + 1;
    uint32_t words = (pages->id_count + 63) / 64;
    words = words < 2 * group->words ? 2 * group->words : words;
    uint64_t *grown = calloc((size_t)rows * words, sizeof(*grown));
    if (grown == NULL)
        return false;
    for (uint32_t r = 0; r < rows && group->words > 0; r++)
        memcpy(grown + (size_t)r * words, row_of(group, r), group->words * sizeof(*grown));
    free(group->rows);
    group->rows = grown;
    group->words = words;
    return true;
}

enum strait_status readiness_init(struct readiness *readiness, const struct page_set *pages,
                                  const uint32_t *region_counts, bool later)
{
    *readiness = (struct readiness){.group_count = pages->group_count};
    readiness->groups = calloc(pages->group_count + 1u, sizeof(*readiness->groups));
    if (readiness->groups == NULL)
        return STRAIT_ERR_NO_MEMORY;
    for (uint32_t g = 0; g < pages->group_count; g++) {
        struct ready_group *group = &readiness->groups[g];
        const uint32_t count = pages->groups[g].id_count;
        group->region_count = region_counts[g];
        if (!grow(group, &pages->groups[g])) {
            readiness_fini(readiness);
            return STRAIT_ERR_NO_MEMORY;
        }
        for (uint32_t row = later ? LATER : 1; count > 0 && row < (later ? 1 : 1 + group->region_count); row++)
            apply_bits(row_of(group, row), 0, count, false);
    }
    return STRAIT_OK;
}

void readiness_fini(struct readiness *readiness)
{
    for (uint32_t g = 0; readiness->groups != NULL && g < readiness->group_count; g++)
        free(readiness->groups[g].rows);
    free(readiness->groups);
    *readiness = (struct readiness){.groups = NULL};
}

uint64_t readiness_bytes(const struct readiness *readiness)
{
    uint64_t bytes = 0;
    for (uint32_t g = 0; readiness->groups != NULL && g < readiness->group_count; g++)
        bytes += (uint64_t)(readiness->groups[g].region_count + 1) * readiness->groups[g].words * sizeof(uint64_t);
    return bytes;
}

/* ---- Units ------------------------------------------------------------------------------------------------------ */

/* The ordinals of the pages from `first` on, as far as they follow one another; at most `most`. */
static uint32_t run_at(const struct page_set *pages, uint32_t group, uint32_t first, uint32_t most, uint32_t *ordinal)
{
    uint32_t count = page_set_run(pages, group, first);
    count = count < most ? count : most;
    const uint32_t *ids = page_set_ids(pages, group, first, count);
    *ordinal = ids == NULL ? 0 : (uint32_t)(ids - pages->groups[group].ids);
    return ids == NULL ? 0 : count;
}

enum strait_status readiness_add(struct readiness *readiness, const struct page_set *pages,
                                 const struct wire_page_list *list, bool later)
{
    struct ready_group *group = &readiness->groups[list->group];
    if (!grow(group, &pages->groups[list->group]))
        return STRAIT_ERR_NO_MEMORY;
    for (uint32_t done = 0, count, ordinal; later && done < list->count; done += count) {
        count = run_at(pages, list->group, list->first + done, list->count - done, &ordinal);
        if (count == 0)
            return STRAIT_ERR_INVALID;
        apply_bits(row_of(group, LATER), ordinal, count, false);
    }
    return STRAIT_OK;
}

enum strait_status readiness_mark(struct readiness *readiness, const struct page_set *pages,
                                  const struct segment *segment)
{
    const struct ready_group *group = &readiness->groups[segment->group];
    const uint32_t begin = 1 + segment->region_first, end = begin + segment->region_count;
    for (int marking = 0; marking < 2; marking++)
        for (uint32_t done = 0, count, ordinal; done < segment->count; done += count) {
            count = run_at(pages, segment->group, segment->first + done, segment->count - done, &ordinal);
            if (count == 0)
                return STRAIT_ERR_INVALID;
            for (uint32_t row = begin; row < end; row++)
                if (apply_bits(row_of(group, row), ordinal, count, !marking))
                    return STRAIT_ERR_INVALID;
        }
    return STRAIT_OK;
}

/* ---- All that was listed as `later` ----------------------------------------------------------------------------- */

/* The end of the run of ordinals from `at` on, below `end`, that are listed as `later` and not ready in a row (wanted),
 * or of those that are not so. */
static uint32_t run_end(const struct ready_group *group, uint32_t row, uint32_t at, uint32_t end, bool wanted)
{
    const uint64_t *later = row_of(group, LATER), *ready = row_of(group, row);
    while (at < end) {
        const uint64_t due = later[at / 64] & ~ready[at / 64];
        if (at % 64 == 0 && end - at >= 64 && due == (wanted ? ~0ull : 0))
            at += 64;
        else if ((due >> at % 64 & 1) == wanted)
            at++;
        else
            break;
    }
    return at;
}

static bool emit_due(const struct ready_group *group, const struct page_set *pages, struct segment *segment,
                     uint32_t limit, bool (*emit)(void *owner, const struct segment *segment), void *owner)
{
    const uint32_t row = 1 + segment->region_first;
    struct page_cursor cursor = {0};
    const struct page_span *span;
    while ((span = page_group_next(&pages->groups[segment->group], &cursor)) != NULL) {
        uint32_t end = span->ordinal + span->count;
        end = end < limit ? end : limit;
        for (uint32_t at = span->ordinal; at < end;) {
            const uint32_t from = run_end(group, row, at, end, false);
            at = run_end(group, row, from, end, true);
            segment->first = span->first + (from - span->ordinal);
            segment->count = at - from;
            if (at > from && !emit(owner, segment))
                return false;
        }
    }
    return true;
}

/* Regions that are ready in the same pages follow one another in one segment. */
static uint32_t equal_rows(const struct ready_group *group, uint32_t row, uint32_t end)
{
    uint32_t next = row + 1;
    while (next < end && memcmp(row_of(group, row), row_of(group, next), group->words * sizeof(uint64_t)) == 0)
        next++;
    return next;
}

bool readiness_mark_later(struct readiness *readiness, const struct page_set *pages, uint32_t group_index,
                          uint32_t begin, uint32_t end, uint32_t limit,
                          bool (*emit)(void *owner, const struct segment *segment), void *owner)
{
    const struct ready_group *group = &readiness->groups[group_index];
    const uint32_t known = pages->groups[group_index].id_count;
    limit = limit < known ? limit : known;
    if (limit == 0)
        return true;
    for (uint32_t row = 1 + begin, next; row < 1 + end; row = next) {
        next = equal_rows(group, row, 1 + end);
        struct segment segment = {.group = group_index, .region_first = row - 1, .region_count = next - row};
        if (!emit_due(group, pages, &segment, limit, emit, owner))
            return false;
        for (uint32_t same = row; same < next; same++)
            for (uint32_t w = 0; w * 64 < limit; w++)
                row_of(group, same)[w] |= row_of(group, LATER)[w] & bits_below(limit - w * 64);
    }
    return true;
}

/* The logical index of a page. */
static uint32_t index_of(const struct page_group *pages, uint32_t ordinal)
{
    struct page_cursor cursor = {0};
    const struct page_span *span;
    while ((span = page_group_next(pages, &cursor)) != NULL)
        if (ordinal - span->ordinal < span->count)
            return span->first + (ordinal - span->ordinal);
    return 0;
}

bool readiness_is_complete(const struct readiness *readiness, const struct page_set *pages, struct segment *missing)
{
    for (uint32_t g = 0; g < readiness->group_count; g++) {
        const struct ready_group *group = &readiness->groups[g];
        const uint32_t count = pages->groups[g].id_count;
        for (uint32_t r = 0; r < group->region_count; r++)
            for (uint32_t w = 0; w * 64 < count; w++) {
                const uint64_t left = ~row_of(group, 1 + r)[w] & bits_below(count - w * 64);
                if (left == 0)
                    continue;
                const uint32_t ordinal = w * 64 + (uint32_t)__builtin_ctzll(left);
                *missing = (struct segment){g, r, 1, index_of(&pages->groups[g], ordinal), 1};
                return false;
            }
    }
    return true;
}
