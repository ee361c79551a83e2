/* Pools of different layouts: the tiles of random pairs, byte by byte, and what is refused. */
#include <check.h>
#include <string.h>

#include "tests/proto/pairs.h"
#include "tests/run_suite.h"

enum { PAIRS = 3000 / STRIDE, LOOPS = 4 };

static void setup(void)
{
}
static void teardown(void)
{
}

/* ---- Every byte -------------------------------------------------------------------------------------------------- */

static uint32_t common_multiple(uint32_t a, uint32_t b)
{
    uint32_t multiple = a;
    while (multiple % b != 0)
        multiple += a;
    return multiple;
}

/* Bytes of the sink's pages over the tokens that are a whole number of pages of both, by region and page. */
struct seen {
    uint8_t *bytes;
    uint32_t pages;
    size_t offsets[PAIR_REGIONS_MAX + 1];
};

static void seen_init(struct seen *seen, const struct pair *pair, uint32_t tokens)
{
    const struct pool_blob *sink = &pair->pools[RESHAPE_SINK].blob;
    seen->pages = tokens / pair->tokens[RESHAPE_SINK];
    seen->offsets[0] = 0;
    for (uint32_t i = 0; i < sink->region_count; i++)
        seen->offsets[i + 1] =
            seen->offsets[i] + (size_t)seen->pages * sink->regions[i].rows * sink->regions[i].row_bytes;
    seen->bytes = calloc(seen->offsets[sink->region_count] + 1, 1);
    require(seen->bytes != NULL);
}

static bool same_label(const struct label *a, const struct label *b)
{
    return a->layer == b->layer && a->role == b->role && a->token == b->token && a->head == b->head &&
           a->byte == b->byte;
}

/* One tile: inside the pages, of the same bytes in the same order at both sides. */
static void check_tile(const struct pair *pair, const struct reshape_group *group, const struct reshape_region *region,
                       uint32_t tile, struct seen *seen)
{
    const struct blob_region *regions[RESHAPE_SIDES];
    for (int side = 0; side < RESHAPE_SIDES; side++) {
        const struct tile_place *at = &region->at[side];
        regions[side] = pair_region(pair, side, group->group[side], at->region);
        require(regions[side] != NULL && regions[side]->layer == region->layer);
        require((uint64_t)at->rows * at->row_bytes == region->bytes && at->row_bytes % at->columns == 0);
    }
    for (uint32_t i = 0; i < region->bytes; i++) {
        struct label labels[RESHAPE_SIDES];
        uint64_t offset = 0;
        for (int side = 0; side < RESHAPE_SIDES; side++) {
            const struct blob_region *own = regions[side];
            const uint32_t tiles = group->tiles[side];
            offset = tile_byte(&region->at[side], tile % tiles, i);
            require(offset < (uint64_t)own->rows * own->row_bytes);
            labels[side] = pair_label(pair, own, tile / tiles, offset);
        }
        require(same_label(&labels[RESHAPE_SOURCE], &labels[RESHAPE_SINK]));
        const struct blob_region *sink = regions[RESHAPE_SINK];
        const size_t index = seen->offsets[sink - pair->pools[RESHAPE_SINK].regions] +
                             (size_t)(tile / group->tiles[RESHAPE_SINK]) * sink->rows * sink->row_bytes + offset;
        require(seen->bytes[index]++ == 0);
    }
}

/* Whether a pool has this byte of the model, for any token. */
static bool has(const struct pair *pair, enum reshape_side side, const struct label *label)
{
    const struct pool_blob *blob = &pair->pools[side].blob;
    for (uint32_t i = 0; i < blob->region_count; i++) {
        const struct blob_region *region = &blob->regions[i];
        if (region->layer == label->layer && (region->role == label->role || region->role == STRAIT_ROLE_KV) &&
            label->head >= region->head_first && label->head < region->head_first + region->heads)
            return true;
    }
    return false;
}

/* Exactly what both have has come; returns how many bytes. */
static size_t check_seen(const struct pair *pair, const struct seen *seen)
{
    const struct pool_blob *sink = &pair->pools[RESHAPE_SINK].blob;
    size_t total = 0;
    for (uint32_t i = 0; i < sink->region_count; i++) {
        const uint32_t bytes = sink->regions[i].rows * sink->regions[i].row_bytes;
        for (size_t at = 0; at < (size_t)seen->pages * bytes; at++) {
            const struct label label = pair_label(pair, &sink->regions[i], (uint32_t)(at / bytes), at % bytes);
            require(seen->bytes[seen->offsets[i] + at] == has(pair, RESHAPE_SOURCE, &label));
            total += seen->bytes[seen->offsets[i] + at];
        }
    }
    return total;
}

/* Groups are those of pools that meet, in order; regions of each rise by the source's region. */
static void check_order(const struct reshape *reshape)
{
    uint32_t next = 0;
    for (uint32_t g = 0; g < reshape->group_count; g++) {
        const struct reshape_group *group = &reshape->groups[g];
        require(group->first == next && group->count > 0);
        next += group->count;
        for (uint32_t i = 1; i < group->count; i++)
            require(reshape->regions[group->first + i - 1].at[RESHAPE_SOURCE].region <=
                    reshape->regions[group->first + i].at[RESHAPE_SOURCE].region);
        require(g == 0 || group[-1].group[RESHAPE_SOURCE] <= group->group[RESHAPE_SOURCE]);
    }
    require(next == reshape->region_count);
}

static enum strait_status make(const struct pair *pair, struct reshape *reshape)
{
    char why[400];
    enum strait_status status =
        reshape_make(&pair->pools[RESHAPE_SOURCE].blob, &pair->pools[RESHAPE_SINK].blob, reshape, why, sizeof(why));
    require(status == STRAIT_OK || (status == STRAIT_ERR_INVALID && strstr(why, "in common") != NULL));
    require((status == STRAIT_OK) == (why[0] == '\0'));
    return status;
}

static size_t check_pair(const struct pair *pair)
{
    struct reshape reshape = {0};
    struct seen seen;
    const uint32_t tokens = common_multiple(pair->tokens[RESHAPE_SOURCE], pair->tokens[RESHAPE_SINK]);
    seen_init(&seen, pair, tokens);
    if (make(pair, &reshape) == STRAIT_OK) {
        check_order(&reshape);
        for (uint32_t g = 0; g < reshape.group_count; g++) {
            const struct reshape_group *group = &reshape.groups[g];
            const uint32_t tiles = seen.pages * group->tiles[RESHAPE_SINK];
            require(tokens / pair->tokens[RESHAPE_SOURCE] * group->tiles[RESHAPE_SOURCE] == tiles);
            for (uint32_t i = 0; i < group->count * tiles; i++)
                check_tile(pair, group, &reshape.regions[group->first + i / tiles], i % tiles, &seen);
        }
    }
    const size_t total = check_seen(pair, &seen);
    require((total > 0) == (reshape.region_count > 0));
    reshape_fini(&reshape);
    free(seen.bytes);
    return total;
}

TEST_LOOP(tiles_are_what_both_pools_have, LOOPS)
{
    struct rng rng = rng_init(100 + (uint64_t)_i);
    struct pair pair;
    size_t total = 0;
    for (int i = 0; i < PAIRS / LOOPS; i++) {
        pair_random(&pair, &rng);
        total += check_pair(&pair);
    }
    ck_assert_uint_gt(total, 0);
}

/* ---- Wanted pages and segments ----------------------------------------------------------------------------------- */

enum { MOST = 96 }; /* pages that are numbered */

TEST(wanted_pages_are_their_tiles)
{
    struct rng rng = rng_init(200);
    for (int i = 0; i < 500; i++) {
        struct pair pair;
        struct reshape reshape = {0};
        pair_random(&pair, &rng);
        if (make(&pair, &reshape) != STRAIT_OK)
            continue;
        const enum reshape_side side = rng_below(&rng, 2);
        const uint32_t own = reshape.groups[rng_below(&rng, reshape.group_count)].group[side];
        const struct wire_span wanted[] = {{own, rng_below(&rng, 9), 1 + rng_below(&rng, 9)},
                                           {own, 40 + rng_below(&rng, 9), 1 + rng_below(&rng, 9)}};
        uint32_t count, at = 0;
        struct wire_span *tiles = reshape_wanted(&reshape, side, wanted, 2, &count);
        ck_assert_ptr_nonnull(tiles);
        for (uint32_t g = 0; g < reshape.group_count; g++)
            for (int w = 0; w < 2 && reshape.groups[g].group[side] == own; w++, at++) {
                const uint32_t each = reshape.groups[g].tiles[side];
                ck_assert_uint_lt(at, count);
                ck_assert(tiles[at].group == g && tiles[at].first == wanted[w].first * each &&
                          tiles[at].count == wanted[w].count * each);
            }
        ck_assert_uint_eq(at, count);
        free(tiles);
        reshape_fini(&reshape);
    }
}

/* Units of tiles, by group, region and page of the source. */
struct emitted {
    const struct reshape *reshape;
    uint32_t tiles[PAIR_REGIONS_MAX];
    uint32_t first, count; /* pages */
};

static enum strait_status emit(void *owner, const struct segment *segment)
{
    struct emitted *emitted = owner;
    const struct reshape_group *group = &emitted->reshape->groups[segment->group];
    ck_assert_uint_lt(segment->group, emitted->reshape->group_count);
    ck_assert(segment->region_count > 0 && segment->region_first + segment->region_count <= group->count);
    ck_assert_uint_eq(segment->first, emitted->first * group->tiles[RESHAPE_SOURCE]);
    ck_assert_uint_eq(segment->count, emitted->count * group->tiles[RESHAPE_SOURCE]);
    for (uint32_t i = 0; i < segment->region_count; i++)
        emitted->tiles[group->first + segment->region_first + i]++;
    return STRAIT_OK;
}

TEST(segments_of_pages_are_those_of_tiles)
{
    struct rng rng = rng_init(300);
    for (int i = 0; i < 500; i++) {
        struct pair pair;
        struct reshape reshape = {0};
        pair_random(&pair, &rng);
        if (make(&pair, &reshape) != STRAIT_OK)
            continue;
        const struct segment segment = {rng_below(&rng, PAIR_GROUPS), rng_below(&rng, 4), 1 + rng_below(&rng, 4),
                                        rng_below(&rng, 40), 1 + rng_below(&rng, 40)};
        struct emitted emitted = {.reshape = &reshape, .first = segment.first, .count = segment.count};
        ck_assert_int_eq(reshape_segment(&reshape, &segment, emit, &emitted), STRAIT_OK);
        for (uint32_t g = 0; g < reshape.group_count; g++)
            for (uint32_t r = 0; r < reshape.groups[g].count; r++) {
                const uint32_t index = reshape.groups[g].first + r;
                const uint32_t region = reshape.regions[index].at[RESHAPE_SOURCE].region;
                const bool meant = reshape.groups[g].group[RESHAPE_SOURCE] == segment.group &&
                                   region >= segment.region_first &&
                                   region < segment.region_first + segment.region_count;
                ck_assert_uint_eq(emitted.tiles[index], meant);
            }
        reshape_fini(&reshape);
    }
}

/* ---- Two sources of one sink ------------------------------------------------------------------------------------- */

static void mark(const struct pair *pair, const struct reshape *reshape, struct seen *seen, bool *twice)
{
    for (uint32_t g = 0; g < reshape->group_count; g++) {
        const struct reshape_group *group = &reshape->groups[g];
        for (uint32_t i = 0; i < group->count * group->tiles[RESHAPE_SINK]; i++) {
            const struct reshape_region *region = &reshape->regions[group->first + i / group->tiles[RESHAPE_SINK]];
            const struct tile_place *at = &region->at[RESHAPE_SINK];
            const struct blob_region *own = pair_region(pair, RESHAPE_SINK, group->group[RESHAPE_SINK], at->region);
            for (uint32_t b = 0; b < region->bytes; b++)
                *twice |= seen->bytes[seen->offsets[own - pair->pools[RESHAPE_SINK].regions] +
                                      tile_byte(at, i % group->tiles[RESHAPE_SINK], b)]++ != 0;
        }
    }
}

/* Whether some region of one overlaps one of the other. */
static bool overlap(const struct reshape *a, const struct reshape *b)
{
    for (uint32_t i = 0; i < a->group_count * b->group_count; i++) {
        const struct reshape_group *x = &a->groups[i / b->group_count], *y = &b->groups[i % b->group_count];
        for (uint32_t k = 0; k < x->count * y->count && x->group[RESHAPE_SINK] == y->group[RESHAPE_SINK]; k++) {
            const struct reshape_region *p = &a->regions[x->first + k / y->count],
                                        *q = &b->regions[y->first + k % y->count];
            if (p->at[RESHAPE_SINK].region == q->at[RESHAPE_SINK].region && reshape_regions_overlap(p, q))
                return true;
        }
    }
    return false;
}

TEST(sources_overlap_where_they_bring_the_same_bytes)
{
    struct rng rng = rng_init(400);
    int found[2] = {0, 0};
    for (int i = 0; i < 2000 / STRIDE; i++) {
        struct pair a, b;
        struct reshape x = {0}, y = {0};
        struct seen seen;
        bool twice = false;
        pair_random(&a, &rng);
        pair_random(&b, &rng);
        b.head_bytes = a.head_bytes;
        b.tokens[RESHAPE_SINK] = a.tokens[RESHAPE_SINK];
        memcpy(b.pools[RESHAPE_SINK].regions, a.pools[RESHAPE_SINK].regions, sizeof(a.pools[0].regions));
        b.pools[RESHAPE_SINK].blob.region_count = a.pools[RESHAPE_SINK].blob.region_count;
        if (reshape_make(&a.pools[RESHAPE_SOURCE].blob, &a.pools[RESHAPE_SINK].blob, &x, NULL, 0) == STRAIT_OK &&
            reshape_make(&b.pools[RESHAPE_SOURCE].blob, &b.pools[RESHAPE_SINK].blob, &y, NULL, 0) == STRAIT_OK) {
            seen_init(&seen, &a, a.tokens[RESHAPE_SINK]);
            mark(&a, &x, &seen, &twice);
            ck_assert(!twice);
            mark(&b, &y, &seen, &twice);
            ck_assert_int_eq(overlap(&x, &y), twice);
            ck_assert_int_eq(overlap(&y, &x), twice);
            found[twice]++;
            free(seen.bytes);
        }
        reshape_fini(&x);
        reshape_fini(&y);
    }
    ck_assert_int_gt(found[0], 0);
    ck_assert_int_gt(found[1], 0);
}

/* ---- What is refused --------------------------------------------------------------------------------------------- */

static const struct blob_region plain = {.role = STRAIT_ROLE_K,
                                         .element = STRAIT_ELEMENT_BF16,
                                         .rows = 1,
                                         .row_bytes = 16 * 4 * 8,
                                         .heads = 4,
                                         .page_count = 10,
                                         .layout = STRAIT_LAYOUT_NHD,
                                         .tokens = 16};

static const struct {
    struct blob_region sink;
    const char *text;
} refusals[] = {
    {{0, 0, 1, 2, 1, 512, 4, 10, 1, 16, 0, 0}, "element types"},
    {{0, 0, 1, 1, 1, 1024, 4, 10, 1, 16, 0, 0}, "different sizes"},
    {{0, 0, 1, 1, 1, 512, 0, 10, 1, 16, 0, 0}, "do not divide"},
    {{0, 0, 1, 1, 1, 512, 4, 10, 1, 0, 0, 0}, "do not divide"},
    {{0, 0, 1, 1, 1, 510, 4, 10, 1, 16, 0, 0}, "do not divide"},
    {{0, 0, 1, 1, 1, 512, UINT32_MAX, 10, 1, UINT32_MAX, 0, 0}, "do not divide"},
    {{0, 0, 1, 1, 1, 512, 1u << 31, 10, 1, UINT32_MAX, 0, 0}, "do not divide"},
    {{0, 0, 1, 1, 1, 512, 4, 10, 0, 16, 0, 0}, "order"},
    {{0, 0, 1, 1, 1, 256, 2, 10, 1, 16, 0, 0}, "KV heads"},
    {{0, 0, 1, 1, 1, 256, 2, 10, 1, 16, 0, 4}, "KV heads"},
    {{0, 1, 1, 1, 1, 512, 4, 10, 1, 16, 0, 0}, "in common"},
    {{0, 0, 2, 1, 1, 512, 4, 10, 1, 16, 0, 0}, "in common"},
};

TEST_LOOP(pools_that_do_not_fit_are_refused, COUNT(refusals))
{
    struct blob_region a = plain, b = refusals[_i].sink;
    const struct pool_blob source = {.region_count = 1, .regions = &a}, sink = {.region_count = 1, .regions = &b};
    struct reshape reshape = {0};
    char why[400], cut[20];
    ck_assert_int_eq(reshape_make(&source, &sink, &reshape, why, sizeof(why)), STRAIT_ERR_INVALID);
    ck_assert_msg(strstr(why, refusals[_i].text) != NULL, "%s", why);
    const bool names = strstr(why, "at the source") != NULL && strstr(why, "at the sink") != NULL;
    ck_assert_msg(names || strstr(why, "in common") != NULL, "%s", why);
    ck_assert_int_eq(reshape_make(&source, &sink, &reshape, cut, sizeof(cut)), STRAIT_ERR_INVALID);
    ck_assert_int_eq(strncmp(cut, why, sizeof(cut) - 1), 0);
    ck_assert_int_eq(reshape_make(&source, &sink, &reshape, NULL, 0), STRAIT_ERR_INVALID);
    ck_assert_ptr_null(reshape.regions);
}

/* Region 1 has pages of one size at both sides, which would be paired one by one; those of region 0 are paired two by
 * two: whose page 1 is meant? Where region 1 has as many tokens more, or is in a group of its own, nothing is unclear.
 */
TEST_LOOP(regions_of_a_group_agree_on_what_a_page_is, 3)
{
    struct blob_region a[] = {plain, plain}, b[] = {plain, plain};
    const struct pool_blob source = {.region_count = 2, .regions = a}, sink = {.region_count = 2, .regions = b};
    struct reshape reshape = {0};
    char why[400];
    b[0].tokens *= 2;
    b[0].row_bytes *= 2;
    a[1].layer = b[1].layer = 1;
    if (_i == 1) {
        b[1].tokens *= 2;
        b[1].row_bytes *= 2;
    }
    a[1].group = b[1].group = _i == 2;
    enum strait_status status = reshape_make(&source, &sink, &reshape, why, sizeof(why));
    ck_assert_int_eq(status, _i == 0 ? STRAIT_ERR_INVALID : STRAIT_OK);
    ck_assert(_i != 0 || (strstr(why, "at the source") != NULL && strstr(why, "at the sink") != NULL));
    reshape_fini(&reshape);
}

TEST(compatibility_tokens_are_equal)
{
    struct blob_region region = plain;
    const struct pool_blob source = {.compat = "this", .region_count = 1, .regions = &region},
                           sink = {.compat = "that", .region_count = 1, .regions = &region};
    struct reshape reshape = {0};
    char why[400];
    ck_assert_int_eq(reshape_make(&source, &sink, &reshape, why, sizeof(why)), STRAIT_ERR_INVALID);
    ck_assert(strstr(why, "\"this\"") != NULL && strstr(why, "\"that\"") != NULL);
}

TEST(regions_of_two_halves_stay_within_the_limit)
{
    static struct blob_region packed[STRAIT_REGIONS_MAX], halves[STRAIT_REGIONS_MAX];
    struct pool_blob source = {.regions = packed}, sink = {.region_count = STRAIT_REGIONS_MAX, .regions = halves};
    struct reshape reshape = {0};
    for (uint32_t i = 0; i < STRAIT_REGIONS_MAX; i++) {
        packed[i] = halves[i] = plain;
        packed[i].role = STRAIT_ROLE_KV;
        packed[i].row_bytes *= 2;
        packed[i].layer = (int32_t)i;
        halves[i].role = STRAIT_ROLE_K + i % 2;
        halves[i].layer = (int32_t)(i / 2);
    }
    source.region_count = STRAIT_REGIONS_MAX;
    ck_assert_int_eq(reshape_make(&source, &sink, &reshape, NULL, 0), STRAIT_OK);
    ck_assert_uint_eq(reshape.region_count, STRAIT_REGIONS_MAX);
    reshape_fini(&reshape);
}

/* Each region of the source in a group of its own, and each of the sink in another. */
TEST_RANGE(pairs_of_groups_have_a_limit, 64, 66)
{
    struct blob_region a[66], b[66];
    const struct pool_blob source = {.region_count = (uint32_t)_i, .regions = a},
                           sink = {.region_count = (uint32_t)_i, .regions = b};
    struct reshape reshape = {0};
    char why[400];
    for (uint32_t i = 0; i < 66; i++) {
        a[i] = b[i] = plain;
        a[i].layer = b[i].layer = (int32_t)i;
        a[i].group = i < 64 ? i : 63;
        b[i].group = i < 64 ? i : 62;
    }
    enum strait_status status = reshape_make(&source, &sink, &reshape, why, sizeof(why));
    ck_assert_int_eq(status, _i == 64 ? STRAIT_OK : STRAIT_ERR_INVALID);
    ck_assert(_i == 64 || strstr(why, "groups") != NULL);
    reshape_fini(&reshape);
}

static enum strait_status ignore(void *owner, const struct segment *segment)
{
    (void)owner;
    (void)segment;
    return STRAIT_OK;
}

TEST(indexes_of_tiles_have_32_bits)
{
    struct blob_region a = plain, b = plain;
    const struct pool_blob source = {.region_count = 1, .regions = &a}, sink = {.region_count = 1, .regions = &b};
    struct reshape reshape = {0};
    uint32_t count;
    b.tokens = 1;
    b.row_bytes = 4 * 8;
    ck_assert_int_eq(reshape_make(&source, &sink, &reshape, NULL, 0), STRAIT_OK);
    ck_assert_uint_eq(reshape.groups[0].tiles[RESHAPE_SOURCE], 16);
    const uint32_t last = UINT32_MAX / 16 - 1;
    struct wire_span span = {0, last, 1};
    struct wire_span *tiles = reshape_wanted(&reshape, RESHAPE_SOURCE, &span, 1, &count);
    ck_assert(tiles != NULL && count == 1 && tiles[0].first == last * 16 && tiles[0].count == 16);
    free(tiles);
    span.count = 2;
    ck_assert_ptr_null(reshape_wanted(&reshape, RESHAPE_SOURCE, &span, 1, &count));
    struct segment segment = {0, 0, 1, last, 1};
    ck_assert_int_eq(reshape_segment(&reshape, &segment, ignore, NULL), STRAIT_OK);
    segment.count = UINT32_MAX - last;
    ck_assert_int_eq(reshape_segment(&reshape, &segment, ignore, NULL), STRAIT_ERR_INVALID);
    reshape_fini(&reshape);
}

int main(void)
{
    return run_tests("reshape", setup, teardown);
}
