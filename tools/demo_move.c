#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <xxhash.h>

#include "tools/demo.h"
#include "tools/util.h"

#define TRANSFER_MS 60000u
#define BLOB_ROOM   65536u

/* ---- The plan ---------------------------------------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Pages in random order, as after a while in a page allocator. */
static void shuffle(uint32_t *ids, uint32_t count, uint64_t seed)
{
    for (uint32_t i = 0; i < count; i++)
        ids[i] = i;
    for (uint32_t i = count; i > 1; i--) {
        uint32_t other = (uint32_t)(next_random(&seed) % i), id = ids[i - 1];
        ids[i - 1] = ids[other];
        ids[other] = id;
    }
}

static void hash(uint8_t dst[DEMO_HASH_BYTES], const void *src, size_t size)
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(src, size));
    memcpy(dst, canonical.digest, DEMO_HASH_BYTES);
}

static void hash_page(uint8_t dst[DEMO_HASH_BYTES], const struct demo_sample *sample,
                      const struct strait_memory *memory, uint32_t region, uint32_t page)
{
    hash(dst, demo_page(memory, sample, region, page), DEMO_PAGE_BYTES);
}

bool demo_plan_init(struct demo_plan *plan, const struct demo_sample *sample, const struct strait_memory *landing)
{
    *plan = (struct demo_plan){.sample = sample, .landing = landing};
    plan->from = calloc(sample->page_count, sizeof(plan->from[0]));
    plan->to = calloc(sample->page_count, sizeof(plan->to[0]));
    plan->hashes = calloc(demo_pages(sample), sizeof(plan->hashes[0]));
    if (plan->from == NULL || plan->to == NULL || plan->hashes == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    shuffle(plan->from, sample->page_count, 1);
    shuffle(plan->to, sample->page_count, 2);
    for (uint32_t i = 0; i < demo_pages(sample); i++)
        hash_page(plan->hashes[i], sample, &sample->memory, i / sample->page_count, plan->from[i % sample->page_count]);
    return true;
}

void demo_plan_fini(struct demo_plan *plan)
{
    free(plan->from);
    free(plan->to);
    free(plan->hashes);
    *plan = (struct demo_plan){0};
}

/* ---- One transfer ------------------------------------------------------------------------------------------------ */

static bool begin_offer(const struct demo_side *source, const struct demo_plan *plan, const char *key,
                        struct strait_transfer **transfer)
{
    struct strait_page_list list = {.count = plan->sample->page_count, .ids = plan->from};
    struct strait_offer_params params = {.size = sizeof(params),
                                         .key = key,
                                         .key_size = strlen(key),
                                         .lists = &list,
                                         .list_count = 1,
                                         .lease_ms = TRANSFER_MS,
                                         .last = true};
    return strait_offer(source->pool, &params, transfer) == STRAIT_OK;
}

static bool begin_expect(const struct demo_side *sink, const struct demo_plan *plan, const char *key,
                         const struct strait_peer *peer, struct strait_transfer **transfer)
{
    struct strait_page_list list = {.count = plan->sample->page_count, .ids = plan->to};
    struct strait_expect_params params = {.size = sizeof(params),
                                          .key = key,
                                          .key_size = strlen(key),
                                          .lists = &list,
                                          .list_count = 1,
                                          .deadline_ms = TRANSFER_MS};
    return strait_expect(sink->pool, &params, transfer) == STRAIT_OK &&
           strait_start(*transfer, peer, NULL) == STRAIT_OK;
}

static bool sink_decided(const struct demo_pair *pair)
{
    return pair->sink->verdict != STRAIT_BOOTSTRAP;
}

static bool both_decided(const struct demo_pair *pair)
{
    return sink_decided(pair) && pair->source->verdict != STRAIT_BOOTSTRAP;
}

static bool both_done(const struct demo_pair *pair)
{
    return pair->sink->verdict == STRAIT_DONE && pair->source->verdict == STRAIT_DONE;
}

static bool transfer_once(const struct demo_pair *pair, const struct demo_plan *plan, const struct strait_peer *peer,
                          double *seconds)
{
    static unsigned number;
    char key[32];
    struct strait_transfer *offer = NULL, *expectation = NULL;
    snprintf(key, sizeof(key), "demo-%u", ++number);
    memset(plan->landing->base, 0, plan->landing->size);
    pair->source->verdict = pair->sink->verdict = STRAIT_BOOTSTRAP;
    uint64_t begin = clock_ns();
    bool begun =
        begin_offer(pair->source, plan, key, &offer) && begin_expect(pair->sink, plan, key, peer, &expectation);
    if (!begun)
        print_error(NULL, "the transfer cannot be begun");
    bool landed = begun && demo_until(pair, sink_decided, TRANSFER_MS + 1000, "the transfer");
    *seconds = (double)(clock_ns() - begin) * 1e-9;
    bool done = landed && demo_until(pair, both_decided, TRANSFER_MS + 1000, "the transfer") && both_done(pair);
    strait_release(offer);
    strait_release(expectation);
    return done;
}

/* ---- The check ------------------------------------------------------------------------------------------------- */

static void flip_bit(const struct demo_plan *plan)
{
    const struct demo_sample *sample = plan->sample;
    demo_page(plan->landing, sample, sample->region_count / 2, plan->to[sample->page_count / 2])[4711] ^= 0x10;
}

static void note_bad(struct demo_row *row, const struct demo_plan *plan, uint32_t index, const uint8_t *landed)
{
    if (row->bad_count == DEMO_BAD_MAX)
        return;
    struct demo_bad *bad = &row->bad[row->bad_count++];
    uint32_t logical = index % plan->sample->page_count;
    *bad = (struct demo_bad){
        .region = index / plan->sample->page_count, .source_page = plan->from[logical], .sink_page = plan->to[logical]};
    memcpy(bad->sent, plan->hashes[index], DEMO_HASH_BYTES);
    memcpy(bad->landed, landed, DEMO_HASH_BYTES);
}

/* Checks every page and lists those that differ in the row; false: out of memory. */
static bool check_pages(const struct demo_plan *plan, struct demo_row *row)
{
    uint32_t count = demo_pages(plan->sample), right = 0;
    uint8_t(*landed)[DEMO_HASH_BYTES] = calloc(count, sizeof(landed[0]));
    if (landed == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        hash_page(landed[i], plan->sample, plan->landing, i / plan->sample->page_count,
                  plan->to[i % plan->sample->page_count]);
        bool same = memcmp(landed[i], plan->hashes[i], DEMO_HASH_BYTES) == 0;
        right += same;
        if (!same)
            note_bad(row, plan, i, landed[i]);
    }
    row->pages_right = right;
    hash(row->sent, plan->hashes, sizeof(plan->hashes[0]) * count);
    hash(row->landed, landed, sizeof(landed[0]) * count);
    free(landed);
    return true;
}

/* ---- Figures --------------------------------------------------------------------------------------------------- */

static double counter(const struct cJSON *stats, const char *name)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(stats, "counters"), name);
    return cJSON_IsNumber(value) ? value->valuedouble : 0;
}

/* The transport of the only peer. */
static void name_transport(struct demo_row *row, const struct cJSON *stats)
{
    const cJSON *peer;
    snprintf(row->transport, sizeof(row->transport), "%s", "copy");
    if (row->wire_bytes == 0)
        return;
    cJSON_ArrayForEach(peer, cJSON_GetObjectItemCaseSensitive(stats, "peers"))
    {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(peer, "transport"));
        if (name != NULL)
            snprintf(row->transport, sizeof(row->transport), "%s", name);
    }
}

static bool take_figures(const struct demo_pair *pair, struct demo_row *row, double wire_before)
{
    struct cJSON *stats = demo_stats(pair);
    if (stats == NULL)
        return false;
    row->wire_bytes = (uint64_t)((counter(stats, "wire_bytes_sent") - wire_before) / DEMO_ROUNDS);
    name_transport(row, stats);
    cJSON_Delete(stats);
    return true;
}

static bool wire_bytes_sent(const struct demo_pair *pair, double *bytes)
{
    struct cJSON *stats = demo_stats(pair);
    if (stats == NULL)
        return false;
    *bytes = counter(stats, "wire_bytes_sent");
    cJSON_Delete(stats);
    return true;
}

/* ---- A row ----------------------------------------------------------------------------------------------------- */

static int by_size(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Stops at the first round with a bad page. */
static bool measure(const struct demo_pair *pair, const struct demo_plan *plan, const struct strait_peer *peer,
                    struct demo_row *row)
{
    double seconds[DEMO_ROUNDS], first, before;
    if (!transfer_once(pair, plan, peer, &first) || !check_pages(plan, row) || !wire_bytes_sent(pair, &before))
        return false;
    for (uint32_t round = 0; round < DEMO_ROUNDS; round++) {
        if (!transfer_once(pair, plan, peer, &seconds[round]))
            return false;
        if (row->flip && round == DEMO_ROUNDS - 1)
            flip_bit(plan);
        if (row->bad_count == 0 && !check_pages(plan, row))
            return false;
    }
    qsort(seconds, DEMO_ROUNDS, sizeof(seconds[0]), by_size);
    row->seconds = seconds[DEMO_ROUNDS / 2];
    return take_figures(pair, row, before);
}

static bool know_each_other(const struct demo_pair *pair, struct strait_peer **peer)
{
    uint8_t *blob = malloc(BLOB_ROOM);
    size_t size;
    bool known = blob != NULL && strait_pool_export(pair->source->pool, blob, BLOB_ROOM, &size) == STRAIT_OK &&
                 strait_peer_import(pair->sink->client, blob, size, peer) == STRAIT_OK;
    free(blob);
    if (!known)
        print_error(NULL, "the pool cannot be exported or imported");
    return known;
}

bool demo_move(const struct demo_pair *pair, const struct demo_plan *plan, struct demo_row *row)
{
    struct strait_peer *peer;
    row->raw_bytes = demo_bytes(plan->sample);
    if (!know_each_other(pair, &peer))
        return false;
    enum strait_status status = strait_set_policy(pair->source->pool, row->pin);
    if (status != STRAIT_OK)
        print_error(NULL, "coding %s: %s", row->coding, strait_status_string(status));
    bool moved = status == STRAIT_OK && measure(pair, plan, peer, row);
    strait_peer_remove(peer);
    return moved;
}
