#include "bench/moves.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tools/util.h"

#define LEASE_MS         60000u /* deadline and lease, */
#define LEASE_MS_PER_MIB 100u   /* plus this for large requests on slow links */
#define LOOK_NS          100000000u
#define SPIN_NS          20000000u

/* Moves under way. Request r of move m is number m * moves[0].requests + r. */
struct moving {
    const struct move *moves;
    unsigned moves_count;
    struct bench_side *sides[BENCH_SIDES_MAX]; /* of all moves, each once, the sinks first: their events are timed */
    unsigned sides_count;
    struct bench_leg *source, *sink; /* by number */
    uint64_t *started;               /* by number */
    uint32_t count;
    uint64_t round; /* part of the keys */
};

static bool succeeded(enum strait_status status, const char *call)
{
    if (status != STRAIT_OK)
        print_error(NULL, "%s: %s", call, strait_status_string(status));
    return status == STRAIT_OK;
}

static void add_side(struct moving *moving, struct bench_side *side)
{
    for (unsigned i = 0; i < moving->sides_count; i++)
        if (moving->sides[i] == side)
            return;
    moving->sides[moving->sides_count++] = side;
}

static bool moving_init(struct moving *moving, const struct move *moves, unsigned count)
{
    static uint64_t rounds;

    *moving =
        (struct moving){.moves = moves, .moves_count = count, .count = count * moves[0].requests, .round = ++rounds};
    for (unsigned i = 0; i < count; i++)
        add_side(moving, moves[i].path->sink);
    for (unsigned i = 0; i < count; i++)
        add_side(moving, moves[i].path->source);
    moving->source = calloc(moving->count, sizeof(moving->source[0]));
    moving->sink = calloc(moving->count, sizeof(moving->sink[0]));
    moving->started = calloc(moving->count, sizeof(moving->started[0]));
    if (moving->source != NULL && moving->sink != NULL && moving->started != NULL)
        return true;
    print_error(NULL, "out of memory");
    return false;
}

static void moving_fini(struct moving *moving)
{
    for (uint32_t i = 0; moving->source != NULL && moving->sink != NULL && i < moving->count; i++) {
        strait_release(moving->source[i].transfer);
        strait_release(moving->sink[i].transfer);
    }
    free(moving->source);
    free(moving->sink);
    free(moving->started);
}

static bool work(struct moving *moving, uint64_t timeout_ns)
{
    return bench_sides_work(moving->sides, moving->sides_count, timeout_ns);
}

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

static const struct move *move_of(const struct moving *moving, uint32_t number)
{
    return &moving->moves[number / moving->moves[0].requests];
}

static bool offer_or_expect(struct moving *moving, uint32_t number, bool offers)
{
    const struct move *move = move_of(moving, number);
    const uint32_t pages = offers || move->sink_pages == 0 ? move->pages : move->sink_pages;
    const uint32_t *ids = (offers ? move->from : move->to) + (size_t)(number % move->requests) * pages;
    const struct strait_page_list list = {.count = pages, .ids = ids};
    const uint32_t limit_ms = LEASE_MS + (uint32_t)(move->bytes >> 20) * LEASE_MS_PER_MIB;
    char key[48];
    size_t key_size =
        (size_t)snprintf(key, sizeof(key), "round-%llu-%u", (unsigned long long)moving->round, (unsigned)number);
    struct strait_offer_params offer = {
        .size = sizeof(offer),
        .key = key,
        .key_size = key_size,
        .lists = &list,
        .list_count = 1,
        .lease_ms = limit_ms,
        .last = true,
        .context = &moving->source[number],
    };
    struct strait_expect_params expect = {
        .size = sizeof(expect),
        .key = key,
        .key_size = key_size,
        .lists = &list,
        .list_count = 1,
        .deadline_ms = limit_ms,
        .context = &moving->sink[number],
    };

    if (offers)
        return succeeded(strait_offer(move->pools->source, &offer, &moving->source[number].transfer), "offer");
    return succeeded(strait_expect(move->pools->sink, &expect, &moving->sink[number].transfer), "expect");
}

/* The source has no part in it. */
static bool read_pages(struct moving *moving, uint32_t number)
{
    const struct move *move = move_of(moving, number);
    const size_t first = (size_t)(number % move->requests) * move->pages;
    const struct strait_page_list to = {.count = move->pages, .ids = move->to + first},
                                  from = {.count = move->pages, .ids = move->from + first};
    const struct strait_read_params params = {
        .size = sizeof(params),
        .lists = &to,
        .list_count = 1,
        .peer_lists = &from,
        .peer_list_count = 1,
        .deadline_ms = LEASE_MS + (uint32_t)(move->bytes >> 20) * LEASE_MS_PER_MIB,
        .context = &moving->sink[number],
    };
    moving->source[number] = (struct bench_leg){.state = STRAIT_DONE, .ended = true, .drained = true};
    return succeeded(strait_read(move->pools->sink, move->pools->source_peer, &params, &moving->sink[number].transfer),
                     "read");
}

static bool start(struct moving *moving, uint32_t number)
{
    const struct move *move = move_of(moving, number);
    const struct strait_start_params params = {.size = sizeof(params), .direction = move->direction};

    if (move->direction == STRAIT_PUSH)
        return succeeded(strait_start(moving->source[number].transfer, move->pools->sink_peer, &params), "start");
    return succeeded(strait_start(moving->sink[number].transfer, move->pools->source_peer, &params), "start");
}

static bool wait_ended(struct moving *moving, const struct bench_leg *legs, const char *side, bool drained)
{
    for (uint32_t i = 0; i < moving->count; i++) {
        const struct bench_leg *leg = &legs[i];
        const struct bench_path *path = move_of(moving, i)->path;
        while (!leg->ended || (drained && !leg->drained))
            if (!work(moving, moving->moves[0].polls ? 0 : LOOK_NS))
                return false;
        if (leg->state == STRAIT_FAILED) {
            print_error(NULL, "a transfer over %s failed at the %s: %s%s%s", path->name, side,
                        strait_reason_string(leg->reason), leg->text[0] != '\0' ? ": " : "", leg->text);
            bench_path_print_logs(path);
            return false;
        }
    }
    return true;
}

static bool wipe(const struct moving *moving)
{
    return moving->moves[0].wipe(moving->moves[0].arg);
}

/* When both sides have let go of the pages. */
static bool check(struct moving *moving, uint64_t *wrong)
{
    return wait_ended(moving, moving->source, "source", true) && wait_ended(moving, moving->sink, "sink", true) &&
           moving->moves[0].count_wrong(moving->moves[0].arg, wrong);
}

/* ---- Moves ------------------------------------------------------------------------------------------------------- */

static bool set_policies(const struct moving *moving)
{
    bool good = true;

    for (unsigned i = 0; good && i < moving->moves_count; i++)
        good = succeeded(strait_set_policy(moving->moves[i].pools->source, moving->moves[i].coding), "set_policy");
    return good;
}

static uint64_t latest(const struct moving *moving, uint32_t first, uint32_t count)
{
    uint64_t last = 0;

    for (uint32_t i = first; i < first + count; i++)
        last = moving->sink[i].ended_ns > last ? moving->sink[i].ended_ns : last;
    return last;
}

/* The side that waits makes its calls before the time begins. */
static bool run_requests(struct moving *moving)
{
    const bool push = moving->moves[0].direction == STRAIT_PUSH, reads = moving->moves[0].reads;
    bool good = set_policies(moving) && wipe(moving);

    if (reads)
        good = good && succeeded(strait_pool_serve(moving->moves[0].pools->source, NULL, 0), "serve");
    for (uint32_t i = 0; good && !reads && i < moving->count; i++)
        good = offer_or_expect(moving, i, !push);
    good = good && work(moving, 0); /* makes sure that all are written to the daemon's socket */
    if (moving->moves[0].gap_us != 0)
        usleep(moving->moves[0].gap_us);
    for (uint32_t i = 0; good && i < moving->count; i++) {
        moving->started[i] = clock_ns();
        good = reads ? read_pages(moving, i) : offer_or_expect(moving, i, push) && start(moving, i);
    }
    return good && wait_ended(moving, moving->sink, "sink", false);
}

bool move_requests(const struct move *move, uint64_t *ns, uint64_t *request_ns, uint64_t *wrong)
{
    struct moving moving;
    bool good = moving_init(&moving, move, 1) && run_requests(&moving);

    for (uint32_t i = 0; good && i < moving.count; i++)
        request_ns[i] = moving.sink[i].ended_ns - moving.started[i];
    if (good)
        *ns = latest(&moving, 0, moving.count) - moving.started[0];
    good = good && check(&moving, wrong);
    moving_fini(&moving);
    return good;
}

/* Starts a request of each move, then another one of each. */
static bool start_all(struct moving *moving)
{
    const uint32_t requests = moving->moves[0].requests;

    for (uint32_t request = 0; request < requests; request++)
        for (unsigned i = 0; i < moving->moves_count; i++) {
            const uint32_t number = i * requests + request;
            moving->started[number] = clock_ns();
            if (!start(moving, number))
                return false;
        }
    return true;
}

static bool all_ended(const struct moving *moving)
{
    bool ended = true;

    for (uint32_t i = 0; ended && i < moving->count; i++)
        ended = moving->sink[i].ended;
    return ended;
}

/* Both sides make their calls before; then the clients poll without sleeping, as an engine does between two steps. */
static bool run_from_start(struct moving *moving)
{
    bool good = set_policies(moving);

    for (uint32_t i = 0; good && i < moving->count; i++)
        good = offer_or_expect(moving, i, true) && offer_or_expect(moving, i, false);
    if (!good || !work(moving, 0) || !wipe(moving) || !work(moving, 0) || !start_all(moving))
        return false;
    while (!all_ended(moving) && clock_ns() < moving->started[0] + SPIN_NS)
        if (!work(moving, 0))
            return false;
    return wait_ended(moving, moving->sink, "sink", false);
}

bool moves_from_start(const struct move *moves, unsigned count, uint64_t *move_ns, uint64_t *request_ns,
                      uint64_t *wrong)
{
    const uint32_t requests = moves[0].requests;
    struct moving moving;
    bool good = moving_init(&moving, moves, count) && run_from_start(&moving);

    for (uint32_t i = 0; good && i < moving.count; i++)
        request_ns[i] = moving.sink[i].ended_ns - moving.started[i];
    for (unsigned i = 0; good && i < count; i++)
        move_ns[i] = latest(&moving, i * requests, requests) - moving.started[0];
    good = good && check(&moving, wrong);
    moving_fini(&moving);
    return good;
}
