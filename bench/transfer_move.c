#include "bench/transfer_move.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/util.h"

#define PATIENCE_MS         60000u /* deadline and lease, */
#define PATIENCE_MS_PER_MIB 100u   /* plus this for large requests on slow links */
#define LOOK_NS             100000000u
#define SPIN_NS             20000000u

struct tickets {
    struct ticket *source, *sink;
    uint64_t *started;
    uint32_t count;
    char key[32]; /* key of the round; each request appends its number */
};

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

static bool fine(enum strait_status status, const char *call)
{
    if (status != STRAIT_OK)
        print_error(NULL, "%s: %s", call, strait_status_string(status));
    return status == STRAIT_OK;
}

static bool tickets_init(struct tickets *tickets, uint32_t count)
{
    static uint64_t rounds;

    *tickets = (struct tickets){.count = count};
    snprintf(tickets->key, sizeof(tickets->key), "round-%llu", (unsigned long long)++rounds);
    tickets->source = calloc(count, sizeof(tickets->source[0]));
    tickets->sink = calloc(count, sizeof(tickets->sink[0]));
    tickets->started = calloc(count, sizeof(tickets->started[0]));
    if (tickets->source != NULL && tickets->sink != NULL && tickets->started != NULL)
        return true;
    print_error(NULL, "out of memory");
    return false;
}

static void tickets_fini(struct tickets *tickets)
{
    for (uint32_t i = 0; tickets->source != NULL && tickets->sink != NULL && i < tickets->count; i++) {
        strait_release(tickets->source[i].transfer);
        strait_release(tickets->sink[i].transfer);
    }
    free(tickets->source);
    free(tickets->sink);
    free(tickets->started);
}

static int key_of(const struct tickets *tickets, uint32_t request, char key[48])
{
    return snprintf(key, 48, "%s-%u", tickets->key, (unsigned)request);
}

static struct strait_page_list pages_of(const struct shape *shape, const uint32_t *ids, uint32_t request)
{
    return (struct strait_page_list){.count = shape->pages, .ids = ids + (size_t)request * shape->pages};
}

static uint32_t patience_of(const struct shape *shape)
{
    return PATIENCE_MS + (uint32_t)(shape_bytes(shape) >> 20) * PATIENCE_MS_PER_MIB;
}

static bool offer(const struct move *move, struct tickets *tickets, uint32_t request, bool later)
{
    char key[48];
    struct strait_page_list list = pages_of(move->shape, move->shape->from, request);
    struct strait_offer_params params = {
        .size = sizeof(params),
        .key = key,
        .key_size = (size_t)key_of(tickets, request, key),
        .lists = &list,
        .list_count = 1,
        .lease_ms = patience_of(move->shape),
        .later = later,
        .last = !later,
        .context = &tickets->source[request],
    };
    return fine(strait_offer(move->pools->source, &params, &tickets->source[request].transfer), "offer");
}

static bool expect(const struct move *move, struct tickets *tickets, uint32_t request)
{
    char key[48];
    struct strait_page_list list = pages_of(move->shape, move->shape->to, request);
    struct strait_expect_params params = {
        .size = sizeof(params),
        .key = key,
        .key_size = (size_t)key_of(tickets, request, key),
        .lists = &list,
        .list_count = 1,
        .deadline_ms = patience_of(move->shape),
        .context = &tickets->sink[request],
    };
    return fine(strait_expect(move->pools->sink, &params, &tickets->sink[request].transfer), "expect");
}

static bool start(const struct move *move, struct tickets *tickets, uint32_t request)
{
    struct strait_start_params params = {.size = sizeof(params), .direction = move->direction};

    if (move->direction == STRAIT_PUSH)
        return fine(strait_start(tickets->source[request].transfer, move->pools->sink_peer, &params), "start");
    return fine(strait_start(tickets->sink[request].transfer, move->pools->source_peer, &params), "start");
}

/* The calls of the side that waits; those of the side that starts follow below. */
static bool call_first(const struct move *move, struct tickets *tickets, uint32_t request, bool later)
{
    return move->direction == STRAIT_PUSH ? expect(move, tickets, request) : offer(move, tickets, request, later);
}

static bool call_then(const struct move *move, struct tickets *tickets, uint32_t request, bool later)
{
    bool made;

    tickets->started[request] = clock_ns();
    made = move->direction == STRAIT_PUSH ? offer(move, tickets, request, later) : expect(move, tickets, request);
    return made && start(move, tickets, request);
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

static bool ticket_good(const struct move *move, const struct ticket *ticket, const char *side)
{
    if (ticket->state != STRAIT_FAILED || !ticket->ended)
        return true;
    print_error(NULL, "a transfer over %s failed at the %s: %s%s%s", move->path->name, side,
                strait_reason_string(ticket->reason), ticket->text[0] != '\0' ? ": " : "", ticket->text);
    bench_path_tell_logs(move->path);
    return false;
}

/* Done, or waits. */
static bool wait_ended(const struct move *move, const struct ticket *tickets, uint32_t count, const char *side,
                       bool drained)
{
    for (uint32_t i = 0; i < count; i++) {
        while (!tickets[i].ended || (drained && !tickets[i].drained))
            if (!bench_path_work(move->path, LOOK_NS))
                return false;
        if (!ticket_good(move, &tickets[i], side))
            return false;
    }
    return true;
}

/* Handles events until that time on the clock; at least once, even if it has passed. */
static bool work_until(const struct move *move, uint64_t until)
{
    do {
        uint64_t now = clock_ns();
        if (!bench_path_work(move->path, until > now ? until - now : 0))
            return false;
    } while (clock_ns() < until);
    return true;
}

static bool wipe(const struct move *move)
{
    if (move->landing != NULL)
        return move->landing->wipe(move->landing->arg);
    shape_wipe(move->shape, move->data);
    return true;
}

static bool count_wrong(const struct move *move, uint64_t *wrong)
{
    if (move->landing != NULL)
        return move->landing->count_wrong(move->landing->arg, wrong);
    *wrong = shape_wrong_pages(move->shape, move->data);
    return true;
}

static bool begin(const struct move *move)
{
    return wipe(move) && fine(strait_set_policy(move->pools->source, move->coding), "set_policy");
}

static bool finish(const struct move *move, const struct tickets *tickets, uint64_t *wrong)
{
    if (!wait_ended(move, tickets->source, tickets->count, "source", true) ||
        !wait_ended(move, tickets->sink, tickets->count, "sink", true))
        return false;
    return count_wrong(move, wrong);
}

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

static bool run_requests(const struct move *move, struct tickets *tickets)
{
    bool good = begin(move);

    for (uint32_t i = 0; good && i < tickets->count; i++)
        good = call_first(move, tickets, i, false);
    good = good && bench_path_work(move->path, 0); /* makes sure that all are written to the daemon's socket */
    for (uint32_t i = 0; good && i < tickets->count; i++)
        good = call_then(move, tickets, i, false);
    return good && wait_ended(move, tickets->sink, tickets->count, "sink", false);
}

static void read_times(const struct tickets *tickets, uint64_t *ns, uint64_t *request_ns)
{
    uint64_t last = 0;

    for (uint32_t i = 0; i < tickets->count; i++) {
        if (tickets->sink[i].ended_ns > last)
            last = tickets->sink[i].ended_ns;
        request_ns[i] = tickets->sink[i].ended_ns - tickets->started[i];
    }
    *ns = last - tickets->started[0];
}

bool move_requests(const struct move *move, uint64_t *ns, uint64_t *request_ns, uint64_t *wrong)
{
    struct tickets tickets;
    bool good = tickets_init(&tickets, move->shape->requests) && run_requests(move, &tickets);

    if (good)
        read_times(&tickets, ns, request_ns);
    good = good && finish(move, &tickets, wrong);
    tickets_fini(&tickets);
    return good;
}

/* For one request: first polls without sleeping, as an engine does between two steps. */
static bool spin_until_ended(const struct move *move, const struct ticket *ticket)
{
    uint64_t end = clock_ns() + SPIN_NS;

    while (!ticket->ended && clock_ns() < end)
        if (!bench_path_work(move->path, 0))
            return false;
    return wait_ended(move, ticket, 1, "sink", false);
}

static bool run_from_start(const struct move *move, struct tickets *tickets)
{
    if (!fine(strait_set_policy(move->pools->source, move->coding), "set_policy") || !offer(move, tickets, 0, false) ||
        !expect(move, tickets, 0) || !bench_path_work(move->path, 0) || !wipe(move) || !bench_path_work(move->path, 0))
        return false;
    tickets->started[0] = clock_ns();
    return start(move, tickets, 0) && spin_until_ended(move, &tickets->sink[0]);
}

bool move_from_start(const struct move *move, uint64_t *ns, uint64_t *wrong)
{
    struct tickets tickets;
    uint64_t request_ns;
    bool good = tickets_init(&tickets, 1) && run_from_start(move, &tickets);

    if (good)
        read_times(&tickets, ns, &request_ns);
    good = good && finish(move, &tickets, wrong);
    tickets_fini(&tickets);
    return good;
}

/* ---- Layers ------------------------------------------------------------------------------------------------------ */

static bool append(struct tickets *tickets, const struct layer_plan *plan, uint32_t layer, uint32_t layers, bool last)
{
    struct strait_append_params params = {
        .size = sizeof(params),
        .layer_first = (int32_t)layer,
        .layer_count = layers,
        .last = last,
        .aux = last ? plan->aux : NULL,
        .aux_size = last ? plan->aux_bytes : 0,
    };
    return fine(strait_append(tickets->source[0].transfer, &params), "append");
}

/* Appends all layers, but not yet `last`; *appended: when the last layer was appended. */
static bool append_layers(const struct move *move, struct tickets *tickets, const struct layer_plan *plan,
                          struct layer_times *times, uint64_t *appended)
{
    for (uint32_t i = 0; i < plan->layers; i++) {
        bool last = i + 1 == plan->layers;
        if (!work_until(move, tickets->started[0] + i * plan->every_ms * 1000000ull))
            return false;
        if (last) {
            times->landed_before = tickets->sink[0].layers;
            *appended = clock_ns();
        }
        if (!append(tickets, plan, i, 1, last && plan->aux_after_ms == 0))
            return false;
    }
    return true;
}

static bool run_layers(const struct move *move, struct tickets *tickets, const struct layer_plan *plan,
                       struct layer_times *times)
{
    uint64_t appended = 0, said;
    const struct ticket *sink = &tickets->sink[0];

    tickets->sink[0].aux = plan->aux;
    tickets->sink[0].aux_size = plan->aux_bytes;
    if (!begin(move) || !call_first(move, tickets, 0, true) || !bench_path_work(move->path, 0) ||
        !call_then(move, tickets, 0, true) || !append_layers(move, tickets, plan, times, &appended))
        return false;
    said = appended;
    if (plan->aux_after_ms > 0) {
        if (!work_until(move, appended + plan->aux_after_ms * 1000000ull))
            return false;
        said = clock_ns();
        if (!append(tickets, plan, 0, 0, true))
            return false;
    }
    if (!wait_ended(move, sink, 1, "sink", false))
        return false;
    times->total_ns = sink->ended_ns - tickets->started[0];
    times->behind_ns = sink->layer_ns > appended ? sink->layer_ns - appended : 0;
    times->done_ns = sink->ended_ns - said;
    return true;
}

/* Layers that were never reported, and wrong aux bytes, count as wrong pages. */
static uint64_t missing(const struct ticket *sink, const struct layer_plan *plan)
{
    return (sink->layers != plan->layers) + sink->aux_wrong;
}

bool move_layers(const struct move *move, const struct layer_plan *plan, struct layer_times *times, uint64_t *wrong)
{
    struct tickets tickets;
    bool good = tickets_init(&tickets, 1) && run_layers(move, &tickets, plan, times) && finish(move, &tickets, wrong);

    if (good)
        *wrong += missing(&tickets.sink[0], plan);
    tickets_fini(&tickets);
    return good;
}
