/* Transfers of the demo: pages of the sample, a worker at each daemon, and the check of every page. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "tools/calibrate.h"
#include "tools/demo.h"
#include "tools/input.h"
#include "tools/util.h"

#define WINDOW_STEP 97u /* values between the beginnings of successive pages; odd, so that pages differ */

/* ---- The file --------------------------------------------------------------------------------------------------- */

/* Path of the sample, relative to the program's folder in an installation, or in a build tree. The caller frees it. */
static char *find_sample(void)
{
    static const char place[] = "../share/strait/kv-slice.safetensors";
    char program[PATH_MAX], *path = NULL;
    ssize_t size = readlink("/proc/self/exe", program, sizeof(program) - 1);
    program[size > 0 ? size : 0] = '\0';
    char *slash = strrchr(program, '/');
    if (slash != NULL)
        *slash = '\0';
    if (asprintf(&path, "%s/%s", program, place) < 0) {
        print_error(NULL, "out of memory");
        return NULL;
    }
    if (access(path, R_OK) == 0)
        return path;
    print_error(path, "%s: is the installation complete?", strerror(errno));
    free(path);
    return NULL;
}

/* ---- Pages ------------------------------------------------------------------------------------------------------ */

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

static bool fill_pages(struct demo_sample *sample, const struct spans *spans)
{
    sample->region_count = (uint32_t)spans->count;
    sample->page_count = DEMO_BYTES / DEMO_PAGE_BYTES / sample->region_count;
    sample->classes = calloc(sample->region_count, sizeof(sample->classes[0]));
    if (sample->classes == NULL || strait_alloc(demo_bytes(sample), &sample->memory) != STRAIT_OK) {
        print_error(NULL, "out of memory");
        return false;
    }
    for (uint32_t region = 0; region < sample->region_count; region++) {
        sample->classes[region] = spans->list[region].class;
        for (uint32_t page = 0; page < sample->page_count; page++)
            fill_page(demo_page(&sample->memory, sample, region, page), &spans->list[region], page);
    }
    return true;
}

/* ---- Codebook --------------------------------------------------------------------------------------------------- */

static enum strait_status serialize(const struct strait_codebook *codebook, struct demo_sample *sample)
{
    sample->set_size = strait_codebook_serialized_size(codebook);
    sample->set = malloc(sample->set_size);
    return sample->set == NULL ? STRAIT_ERR_NO_MEMORY
                               : strait_codebook_serialize(codebook, sample->set, sample->set_size);
}

static bool calibrate(struct demo_sample *sample, struct spans *spans)
{
    struct histograms histograms = {0};
    struct progress progress;
    struct strait_codebook *codebook = NULL;
    progress_begin(&progress, "counting", PROGRESS_TOTAL_UNKNOWN, true);
    enum strait_status status = spans_count(spans, 1, &progress, &histograms) ? STRAIT_OK : STRAIT_ERR_NO_MEMORY;
    progress_end(&progress);
    if (status == STRAIT_OK)
        status = histograms_codebook(&histograms, false, &codebook);
    if (status == STRAIT_OK)
        status = serialize(codebook, sample);
    if (status != STRAIT_OK)
        print_error(NULL, "calibration of the sample: %s", strait_status_string(status));
    strait_codebook_destroy(codebook);
    histograms_fini(&histograms);
    return status == STRAIT_OK;
}

/* ---- All of it -------------------------------------------------------------------------------------------------- */

static bool demo_sample_take(struct demo_sample *sample, struct tensors *tensors)
{
    size_t count = tensors->spans.count;
    if (count == 0 || count > DEMO_BYTES / DEMO_PAGE_BYTES) {
        print_error(sample->path, "not a sample for this: %zu BF16 tensors", count);
        return false;
    }
    return calibrate(sample, &tensors->spans) && fill_pages(sample, &tensors->spans);
}

bool demo_sample_init(struct demo_sample *sample)
{
    struct tensors tensors;
    *sample = (struct demo_sample){.path = find_sample(), .memory.fd = -1};
    struct class_rules *rules = class_rules_create();
    if (rules == NULL)
        print_error(NULL, "out of memory");
    bool taken = rules != NULL && sample->path != NULL &&
                 tensors_open(&tensors, &sample->path, 1, tensors_take_safetensors, rules, TENSORS_BF16);
    if (taken) {
        taken = demo_sample_take(sample, &tensors);
        tensors_close(&tensors);
    }
    class_rules_destroy(rules);
    return taken;
}

void demo_sample_fini(struct demo_sample *sample)
{
    if (sample->memory.base != NULL)
        strait_free(&sample->memory);
    free(sample->classes);
    free(sample->set);
    free((char *)(uintptr_t)sample->path);
    *sample = (struct demo_sample){.memory.fd = -1};
}

#define STATS_MS 10000u
#define TURN_MS  50 /* a signal or the end of a daemon is noticed within this time */

/* ---- Events ------------------------------------------------------------------------------------------------------ */

static void fail(struct demo_side *side, const char *what, const char *why)
{
    side->failed = true;
    print_error(NULL, "%s's worker: %s: %s", side->daemon->name, what, why);
}

static void take_pool(struct demo_side *side, const struct strait_event *event)
{
    side->registered = event->status == STRAIT_OK;
    if (!side->registered)
        fail(side, "the daemon refused the pool", event->text);
}

static void take_state(struct demo_side *side, const struct strait_event *event)
{
    if (event->state != STRAIT_DONE && event->state != STRAIT_FAILED)
        return;
    side->verdict = event->state;
    if (event->state == STRAIT_FAILED)
        print_error(NULL, "%s's worker: transfer failed: %s%s%s", side->daemon->name,
                    strait_reason_string((int)event->reason), event->text[0] != '\0' ? ": " : "", event->text);
}

static void take_connection(struct demo_side *side, const struct strait_event *event)
{
    if (event->connected)
        return;
    fail(side, "connection to the daemon lost", event->text != NULL ? event->text : "");
}

static void demo_side_take(struct demo_side *side, const struct strait_event *event)
{
    switch (event->type) {
    case STRAIT_EVENT_POOL:
        take_pool(side, event);
        break;
    case STRAIT_EVENT_STATE:
        take_state(side, event);
        break;
    case STRAIT_EVENT_CONNECTION:
        take_connection(side, event);
        break;
    case STRAIT_EVENT_STATS:
        free(side->stats);
        side->stats = strndup(event->data, event->data_size);
        break;
    default:
        break;
    }
}

static void pump(struct demo_side *side)
{
    struct strait_event events[16];
    uint32_t count = strait_poll(side->client, events, 16);
    for (uint32_t i = 0; i < count; i++)
        demo_side_take(side, &events[i]);
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

static bool is_alive(const struct demo_pair *pair)
{
    return !pair->source->failed && !pair->sink->failed && !demo_interrupted() &&
           demo_daemon_runs(pair->source->daemon) && demo_daemon_runs(pair->sink->daemon);
}

static void poll_both(const struct demo_pair *pair)
{
    struct pollfd fds[2] = {{.fd = strait_client_fd(pair->source->client), .events = POLLIN},
                            {.fd = strait_client_fd(pair->sink->client), .events = POLLIN}};
    poll(fds, 2, TURN_MS);
    pump(pair->source);
    if (pair->sink != pair->source)
        pump(pair->sink);
}

bool demo_until(const struct demo_pair *pair, bool (*reached)(const struct demo_pair *pair), unsigned ms,
                const char *what)
{
    uint64_t end = clock_ns() + ms * UINT64_C(1000000);
    while (!reached(pair)) {
        if (!is_alive(pair))
            return false;
        if (clock_ns() > end) {
            print_error(NULL, "%s: not within %u seconds", what, ms / 1000);
            return false;
        }
        poll_both(pair);
    }
    return true;
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

static enum strait_status register_pool(struct demo_side *side, const struct demo_sample *sample,
                                        const struct strait_memory *memory)
{
    struct strait_pool_region *regions = calloc(sample->region_count, sizeof(*regions));
    if (regions == NULL)
        return STRAIT_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < sample->region_count; i++)
        regions[i] = (struct strait_pool_region){
            .handle = STRAIT_HANDLE_MEMFD,
            .device = -1,
            .fd = memory->fd,
            .offset = (uint64_t)i * sample->page_count * DEMO_PAGE_BYTES,
            .page_stride = DEMO_PAGE_BYTES,
            .page_count = sample->page_count,
            .rows = 1,
            .row_bytes = DEMO_PAGE_BYTES,
            .element = STRAIT_ELEMENT_BF16,
            .role = sample->classes[i].role,
            .layer = sample->classes[i].layer,
        };
    struct strait_pool_params params = {
        .size = sizeof(params), .regions = regions, .region_count = sample->region_count};
    enum strait_status status = strait_pool_register(side->client, &params, &side->pool);
    free(regions);
    return status;
}

static bool is_registered(const struct demo_pair *pair)
{
    return pair->source->registered;
}

bool demo_side_open(struct demo_side *side, struct demo_daemon *daemon, const struct demo_sample *sample,
                    const struct strait_memory *memory)
{
    *side = (struct demo_side){.daemon = daemon};
    if (!demo_daemon_listens(daemon))
        return false;
    struct strait_client_config config = {.size = sizeof(config), .socket = daemon->socket};
    enum strait_status status = strait_client_open(&config, &side->client);
    if (status == STRAIT_OK)
        status = register_pool(side, sample, memory);
    if (status != STRAIT_OK) {
        fail(side, "cannot begin", strait_status_string(status));
        return false;
    }
    struct demo_pair alone = {side, side};
    return demo_until(&alone, is_registered, DEMO_CONNECT_MS, "an answer of straitd");
}

void demo_side_close(struct demo_side *side)
{
    strait_client_close(side->client);
    free(side->stats);
    *side = (struct demo_side){0};
}

/* ---- Statistics -------------------------------------------------------------------------------------------------- */

static bool has_stats(const struct demo_pair *pair)
{
    return pair->source->stats != NULL;
}

struct cJSON *demo_stats(const struct demo_pair *pair)
{
    free(pair->source->stats);
    pair->source->stats = NULL;
    if (strait_stats(pair->source->client) != STRAIT_OK) {
        print_error(NULL, "straitd is away");
        return NULL;
    }
    if (!demo_until(pair, has_stats, STATS_MS, "statistics"))
        return NULL;
    cJSON *stats = cJSON_Parse(pair->source->stats);
    if (stats == NULL)
        print_error(NULL, "straitd's statistics cannot be read");
    return stats;
}

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

static bool exchange_pools(const struct demo_pair *pair, struct strait_peer **peer)
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
    if (!exchange_pools(pair, &peer))
        return false;
    enum strait_status status = strait_set_policy(pair->source->pool, row->pin);
    if (status != STRAIT_OK)
        print_error(NULL, "coding %s: %s", row->coding, strait_status_string(status));
    bool moved = status == STRAIT_OK && measure(pair, plan, peer, row);
    strait_peer_remove(peer);
    return moved;
}
