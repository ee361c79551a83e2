#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "tools/demo.h"
#include "tools/util.h"

#define CONNECT_MS 20000u
#define STATS_MS   10000u
#define TURN_MS    50 /* a signal or the end of a daemon is noticed within this time */

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

static void take(struct demo_side *side, const struct strait_event *event)
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
        take(side, &events[i]);
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

static bool goes_on(const struct demo_pair *pair)
{
    return !pair->source->failed && !pair->sink->failed && !demo_interrupted() &&
           demo_daemon_runs(pair->source->daemon) && demo_daemon_runs(pair->sink->daemon);
}

static void turn(const struct demo_pair *pair)
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
        if (!goes_on(pair))
            return false;
        if (clock_ns() > end) {
            print_error(NULL, "%s: not within %u seconds", what, ms / 1000);
            return false;
        }
        turn(pair);
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
    struct strait_client_config config = {.size = sizeof(config), .socket = daemon->socket};
    enum strait_status status = strait_client_open(&config, &side->client);
    if (status == STRAIT_OK)
        status = register_pool(side, sample, memory);
    if (status != STRAIT_OK) {
        fail(side, "cannot begin", strait_status_string(status));
        return false;
    }
    struct demo_pair alone = {side, side};
    return demo_until(&alone, is_registered, CONNECT_MS, "an answer of straitd");
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
