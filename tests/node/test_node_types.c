/* Pages of all types of values between two nodes: what they are coded by where both have the same codebook set,
 * different ones or none, that a set which fits badly is found out, and pools that have several types. Values are those
 * of a real KV cache, as BF16, FP16 and FP32. */
#include "tests/node/harness.h"

static const char *const counters[] = {"raw", "top16", "tiered", "base", "split", "parts"};
static const enum strait_mode counted[] = {STRAIT_MODE_RAW,  STRAIT_MODE_TOP16, STRAIT_MODE_TIERED,
                                           STRAIT_MODE_BASE, STRAIT_MODE_SPLIT, STRAIT_MODE_PARTS};

static const struct {
    enum strait_element element;
    enum strait_mode by_tables, without; /* when `tiered` is pinned */
    bool parts;                          /* what is chosen for it, in host memory */
    double ratio;                        /* at least, by those two */
    const char *name;
} types[] = {
    {STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED, STRAIT_MODE_BASE, false, 1.43, ""},
    {STRAIT_ELEMENT_FP16, STRAIT_MODE_SPLIT, STRAIT_MODE_BASE, true, 1.14, " of fp16"},
    {STRAIT_ELEMENT_FP32, STRAIT_MODE_SPLIT, STRAIT_MODE_BASE, true, 1.17, " of fp32"},
    {STRAIT_ELEMENT_FP8_E4M3, STRAIT_MODE_BASE, STRAIT_MODE_BASE, false, 1.15, " of fp8_e4m3"},
    {STRAIT_ELEMENT_FP8_E5M2, STRAIT_MODE_BASE, STRAIT_MODE_BASE, false, 1.35, " of fp8_e5m2"},
};

enum sets { SAME_SET, OTHER_SET, NO_SET, SETS };

/* ---- Nodes and figures ------------------------------------------------------------------------------------------- */

static uint8_t slice_ranking[256];

/* A pair whose pools hold real values, and whose sets, if any, are made of these. */
static struct pair pair_of(int wire, enum sets sets, const char *coding)
{
    struct pair pair = pair_init(wire);
    uint64_t counts[256] = {0};
    size_t count;
    const uint16_t *values = pools_use_slice(&count);
    strait_histogram_add(counts, values, count);
    strait_histogram_rank(slice_ranking, counts);
    if (sets != NO_SET)
        use_ranking(pair.a, "a", slice_ranking);
    if (sets == SAME_SET)
        use_ranking(pair.b, "b", slice_ranking);
    else if (sets == OTHER_SET)
        use_codebook(pair.b, "b", 0x10);
    strcpy(pair.a->options.coding, coding);
    return pair;
}

/* Starts them with as many encoders as make the choice one of ratios, however slow a build or a busy machine is. */
static void start_fast(struct pair *pair, struct geometry geometry)
{
    pair_start(pair, geometry);
    pair->a->node->workers = 1000; /* nothing is coded before */
}

static bool says(struct party *party, const char *text)
{
    return strstr(stats_text(party), text) != NULL;
}

static double sent_as(struct party *party, enum strait_mode mode)
{
    char path[64];
    for (int i = 0; i < COUNT(counted); i++)
        if (counted[i] == mode)
            snprintf(path, sizeof(path), "counters.chunks_sent_%s", counters[i]);
    return stat_of(party, path);
}

static double sent_as_any(struct party *party)
{
    double all = 0;
    for (int i = 0; i < COUNT(counted); i++)
        all += sent_as(party, counted[i]);
    return all;
}

static double raw_bytes(const struct test_pool *pool)
{
    const struct geometry *g = &pool->geometry;
    double bytes = 0;
    for (uint32_t group = 0; group < g->groups; group++)
        bytes += (double)g->pages * g->layers * g->roles * pool_page_bytes(pool, group);
    return bytes;
}

/* Bytes on the wire of one move of all pages. */
static double move_measured(struct test_pool *source, struct test_pool *sink)
{
    struct party *party = source->party;
    const double raw = stat_of(party, "counters.raw_bytes_sent"), wire = stat_of(party, "counters.wire_bytes_sent");
    move_all(source, sink);
    WAIT(stat_of(party, "counters.raw_bytes_sent") >= raw + raw_bytes(source));
    return stat_of(party, "counters.wire_bytes_sent") - wire;
}

/* What the codec makes of all pages of the pool's one region, in one chunk. */
static double bytes_of_codec(const struct test_pool *pool, enum strait_mode mode)
{
    const uint32_t bytes = pool_page_bytes(pool, 0), pages = pool->geometry.pages;
    struct strait_codebook *set;
    struct strait_result result;
    const struct strait_region region = {.base = (void *)(uintptr_t)pool_page(pool, 0, 0),
                                         .page_stride = (uint64_t)(pool_page(pool, 0, 1) - pool_page(pool, 0, 0)),
                                         .page_count = pages,
                                         .rows = 1,
                                         .row_bytes = bytes};
    const struct strait_pages list = {.regions = &region, .region_count = 1, .id_count = pages};
    const struct strait_run run = {.size = sizeof(run), .result = &result};
    const uint64_t room = strait_encode_bound(&list);
    ck_assert_int_eq(STRAIT_OK, strait_codebook_create((const uint8_t(*)[256])slice_ranking, NULL, 1, &set));
    const struct strait_encode_params params = {.size = sizeof(params),
                                                .element = pool_element(pool, 0),
                                                .mode = mode,
                                                .codebook = mode == STRAIT_MODE_BASE ? NULL : set};
    ck_assert_int_eq(STRAIT_OK, strait_encode(NULL, &params, keep(room), room, &list, &run));
    ck_assert_int_eq(STRAIT_OK, result.status);
    strait_codebook_destroy(set);
    return (double)result.bytes;
}

/* ---- One type ---------------------------------------------------------------------------------------------------- */

/* The coding is pinned, so that it is used in shared memory too. */
TEST_LOOP(pages_of_each_type_are_coded_by_what_both_know, COUNT(types) * SETS * 2)
{
    const int type = _i / 2 % COUNT(types);
    const enum sets sets = (enum sets)(_i / 2 / COUNT(types));
    const enum strait_mode mode = sets == NO_SET ? types[type].without : types[type].by_tables;
    struct pair pair = pair_of(_i % 2 == 0 ? SHM : TCP, sets, "tiered");
    char reason[160];
    pair_start(&pair, (struct geometry){.pages = 32, .row_bytes = 16384, .element = types[type].element});
    move_all(pair.source, pair.sink);
    if (sets == OTHER_SET)
        WAIT(says(pair.from, "\"codebook_known\":true"));
    const double before = sent_as(pair.from, mode), others = sent_as_any(pair.from) - before;
    const double wire = move_measured(pair.source, pair.sink), expected = bytes_of_codec(pair.source, mode);
    ck_assert_double_gt(sent_as(pair.from, mode), before);
    ck_assert_double_eq(others, sent_as_any(pair.from) - sent_as(pair.from, mode));
    ck_assert_double_ge(raw_bytes(pair.source) / expected, types[type].ratio);
    ck_assert_double_ge(wire, expected);
    ck_assert_double_le(wire, expected * 1.002); /* it was cut into chunks, which have a header each */
    snprintf(reason, sizeof(reason), "\"coding\":\"%s%s: pinned by the option coding%s",
             counters[mode == STRAIT_MODE_RAW ? 0 : mode - 1], types[type].name,
             mode == STRAIT_MODE_RAW                                          ? "; values of this type are not coded"
             : sets == NO_SET && types[type].by_tables != types[type].without ? "; no codebook set is loaded"
                                                                              : "");
    ck_assert_msg(says(pair.from, reason), "%s: %s", reason, stats_text(pair.from));
    pair_quiet(&pair);
}

/* Before anything is measured, a slow link is assumed: what shrinks is coded. */
TEST_LOOP(a_cold_start_codes_what_shrinks, COUNT(types) * SETS)
{
    const int type = _i % COUNT(types);
    const enum sets sets = (enum sets)(_i / COUNT(types));
    struct pair pair = pair_of(TCP, sets, "auto");
    pair_start(&pair, (struct geometry){.pages = 16, .element = types[type].element});
    move_all(pair.source, pair.sink); /* one chunk, perhaps before the peer knows the set */
    const double by_tables = sent_as(pair.from, types[type].by_tables),
                 without = sent_as(pair.from, types[type].without);
    ck_assert_double_eq(1, sent_as_any(pair.from));
    if (types[type].parts)
        ck_assert_double_eq(1, sent_as(pair.from, STRAIT_MODE_PARTS));
    else if (sets == SAME_SET)
        ck_assert_double_eq(1, by_tables);
    else if (sets == NO_SET)
        ck_assert_double_eq(1, without);
    else
        ck_assert_double_eq(1, types[type].by_tables == types[type].without ? by_tables : by_tables + without);
}

static const struct {
    enum strait_coding coding;
    enum strait_element element;
    enum strait_mode mode;
} pinned[] = {
    {STRAIT_CODING_RAW, STRAIT_ELEMENT_FP16, STRAIT_MODE_RAW},
    {STRAIT_CODING_TOP16, STRAIT_ELEMENT_FP16, STRAIT_MODE_SPLIT},
    {STRAIT_CODING_TOP16, STRAIT_ELEMENT_FP32, STRAIT_MODE_SPLIT},
    {STRAIT_CODING_TIERED, STRAIT_ELEMENT_FP8_E5M2, STRAIT_MODE_BASE},
    {STRAIT_CODING_BASE, STRAIT_ELEMENT_BF16, STRAIT_MODE_BASE},
    {STRAIT_CODING_BASE, STRAIT_ELEMENT_FP16, STRAIT_MODE_BASE},
    {STRAIT_CODING_BASE, STRAIT_ELEMENT_FP32, STRAIT_MODE_BASE},
    {STRAIT_CODING_SPLIT, STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED},
    {STRAIT_CODING_SPLIT, STRAIT_ELEMENT_FP32, STRAIT_MODE_SPLIT},
    {STRAIT_CODING_PARTS, STRAIT_ELEMENT_FP16, STRAIT_MODE_PARTS},
    {STRAIT_CODING_PARTS, STRAIT_ELEMENT_FP32, STRAIT_MODE_PARTS},
    {STRAIT_CODING_PARTS, STRAIT_ELEMENT_BF16, STRAIT_MODE_BASE},
    {STRAIT_CODING_PARTS, STRAIT_ELEMENT_FP8_E4M3, STRAIT_MODE_BASE},
};

TEST_LOOP(a_coding_pinned_by_the_pool_is_what_comes_nearest_for_its_type, COUNT(pinned))
{
    struct pair pair = pair_of(SHM, SAME_SET, "raw");
    pair_start(&pair, (struct geometry){.pages = 40, .layers = 2, .element = pinned[_i].element});
    ck_assert_int_eq(STRAIT_OK, strait_set_policy(pair.source->pool, pinned[_i].coding));
    move_all(pair.source, pair.sink);
    ck_assert_double_gt(sent_as(pair.from, pinned[_i].mode), 0);
    ck_assert_double_eq(sent_as_any(pair.from), sent_as(pair.from, pinned[_i].mode));
}

/* ---- Bits that never change -------------------------------------------------------------------------------------- */

/* The values were BF16 before: FP16 has three bits more that are zero. The codec alone has the same ratio. */
TEST_LOOP(values_of_a_narrower_type_shrink_as_that_type_does, SETS)
{
    struct pair pair = pair_of(TCP, (enum sets)_i, "auto");
    pools_use_zero_rests();
    start_fast(&pair, (struct geometry){.pages = 32, .row_bytes = 16384, .element = STRAIT_ELEMENT_FP16});
    move_all(pair.source, pair.sink);
    const double wire = move_measured(pair.source, pair.sink);
    ck_assert_double_eq(sent_as_any(pair.from), sent_as(pair.from, STRAIT_MODE_PARTS));
    ck_assert_double_ge(raw_bytes(pair.source) / wire, 1.35);
    pair_quiet(&pair);
}

/* ---- A set that does not fit ------------------------------------------------------------------------------------- */

/* Chunks are small, so the link is not measured, and taken to be slow. */
TEST(a_set_that_fits_badly_is_passed_over_and_one_that_fits_is_taken_again)
{
    const struct geometry shape = {.pages = 32, .element = types[0].element};
    struct pair pair = pair_of(TCP, NO_SET, "auto");
    use_codebook(pair.a, "a", 0x10); /* ranks none of the values */
    use_codebook(pair.b, "b", 0x10);
    start_fast(&pair, shape);
    move_all(pair.source, pair.sink);
    ck_assert_double_eq(1, sent_as(pair.from, types[0].by_tables));
    for (int i = 0; i < 4; i++)
        move_all(pair.source, pair.sink);
    ck_assert_double_eq(1, sent_as(pair.from, types[0].by_tables));
    ck_assert_double_eq(4, sent_as(pair.from, STRAIT_MODE_BASE));
    ck_assert(says(pair.from, "; the codebook set fits badly, ratio "));
    const double base = move_measured(pair.source, pair.sink);
    ck_assert_double_ge(raw_bytes(pair.source) / base, types[0].ratio);

    use_ranking(pair.a, "a", slice_ranking);
    use_ranking(pair.b, "b", slice_ranking);
    test_node_reload(pair.b);
    test_node_reload(pair.a);
    WAIT(says(pair.from, "\"codebook_matches\":true"));
    for (int i = 0; i < 4; i++)
        move_all(pair.source, pair.sink);
    ck_assert_double_eq(5, sent_as(pair.from, types[0].by_tables));
    ck_assert(!says(pair.from, "fits badly"));
}

/* Base is tried now and then where tables are better, and the other way round. */
TEST(another_mode_is_tried_now_and_then)
{
    enum { MOVES = 520 }; /* two times in so many */
    struct pair pair = pair_of(TCP, SAME_SET, "auto");
    start_fast(&pair, (struct geometry){.pages = 2, .row_bytes = 16384});
    for (int i = 0; i < MOVES; i++)
        move_all(pair.source, pair.sink);
    ck_assert_double_eq(MOVES, sent_as_any(pair.from));
    ck_assert_double_eq(2, sent_as(pair.from, STRAIT_MODE_BASE));
    ck_assert_double_eq(MOVES - 2, sent_as(pair.from, STRAIT_MODE_TIERED));
}

/* ---- Several types ----------------------------------------------------------------------------------------------- */

static const struct {
    int wire;
    uint32_t gpu, sink_gpu;
    const char *gpu_wires;
} places[] = {
    {SAME, 0, 0, "peer"}, {SHM, 0, 0, "peer"},   {TCP, 0, 0, "peer"},
    {SHM, 1, 2, "peer"},  {SHM, 1, 2, "pinned"}, {TCP, 1, 2, "pinned"},
};

/* KV pages in BF16, a state in FP32 and one in FP16, with pages of their own sizes, in one request. */
TEST_LOOP(a_request_may_have_pages_of_several_types, COUNT(places) * SETS)
{
    const int place = _i % COUNT(places);
    const enum sets sets = (enum sets)(_i / COUNT(places));
    struct pair pair = pair_of(places[place].wire, sets, places[place].gpu != 0 ? "auto" : "split");
    for (int i = 0; i < 2; i++)
        strcpy(nodes[i].options.gpu_wires, places[place].gpu_wires);
    pair_start(&pair, (struct geometry){.pages = 40,
                                        .groups = 3,
                                        .layers = 2,
                                        .row_bytes = 16384,
                                        .hybrid = true,
                                        .gpu = places[place].gpu,
                                        .sink_gpu = places[place].sink_gpu});
    for (int i = 0; i < 3; i++)
        move_all(pair.source, pair.sink);
    pair_quiet(&pair);
    if (places[place].wire == SAME || places[place].gpu != 0)
        return;
    if (sets == SAME_SET) {
        ck_assert_double_gt(sent_as(pair.from, STRAIT_MODE_TIERED), 0);
        ck_assert_double_gt(sent_as(pair.from, STRAIT_MODE_SPLIT), 0);
    } else {
        ck_assert_double_gt(sent_as(pair.from, STRAIT_MODE_BASE), 0);
    }
    ck_assert_double_eq(0, sent_as(pair.from, STRAIT_MODE_RAW));
}

/* A GPU's pages of each type, by each coding. */
TEST_LOOP(gpus_code_all_types, COUNT(types) * SETS)
{
    const int type = _i % COUNT(types);
    const enum sets sets = (enum sets)(_i / COUNT(types));
    struct pair pair = pair_of(SHM, sets, "split");
    pair_start(&pair,
               (struct geometry){.pages = 64, .layers = 2, .element = types[type].element, .gpu = 1, .sink_gpu = 2});
    struct test_pool *host =
        pool_open(pair.to, (struct geometry){.pages = 64, .layers = 2, .element = types[type].element});
    move_until(pair.source, pair.sink, "peer");
    for (int i = 0; i < 2; i++) {
        move_all(pair.source, pair.sink);
        move_all(pair.source, host);
        move_all(host, pair.source);
    }
    ck_assert_double_gt(sent_as(pair.from, sets == NO_SET ? types[type].without : types[type].by_tables), 0);
    ck_assert_double_eq(types[type].by_tables == STRAIT_MODE_RAW ? sent_as_any(pair.from) : 0,
                        sent_as(pair.from, STRAIT_MODE_RAW));
    pair_quiet(&pair);
}

int main(void)
{
    return node_main("node_types");
}
