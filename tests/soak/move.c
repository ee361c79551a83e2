#include "tests/soak/move.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "tests/support.h"

#define AUX_MAX 4096u
#define NEVER   UINT64_MAX

const char *const style_names[STYLES] = {"whole", "appended by pages", "appended by layers"};
const char *const starter_names[STARTERS] = {"push", "pull", "source", "sink", "both"};

struct tally tallies[DAEMONS_MAX];

static const struct form *form_of(const struct move *move)
{
    return &move->plan.route->source->form;
}

static struct pool *pool_of(const struct move_end *end)
{
    const struct route *route = end->move->plan.route;
    return end->is_sink ? route->sink : route->source;
}

static struct tally *tally_of(const struct move_end *end)
{
    return &tallies[pool_of(end)->worker->node];
}

uint64_t move_bytes(const struct move_plan *plan)
{
    return plan->pages * form_id_bytes(&plan->route->source->form);
}

/* ---- Contents ---------------------------------------------------------------------------------------------------- */

/* Every page of every move is another one, so that one in a wrong place or of another time shows. */
static void stamp(uint8_t *page, uint32_t page_bytes, const struct move *move, uint32_t unit)
{
    const uint32_t mark[4] = {move->number, unit, ~move->number, ~unit};
    memcpy(page, mark, sizeof(mark));
    memcpy(page + page_bytes - sizeof(mark), mark, sizeof(mark));
}

static uint8_t *page_of(const struct move_end *end, uint32_t unit)
{
    return pool_page(pool_of(end), unit / end->move->plan.pages, end->ids[unit % end->move->plan.pages]);
}

static void fill_source(struct move *move)
{
    const struct form *form = form_of(move);
    for (uint32_t unit = 0; unit < move->plan.pages * form_regions(form); unit++) {
        uint8_t *page = page_of(&move->source, unit);
        stamp(page, form->page_bytes, move, unit);
        move->hashes[unit] = XXH3_64bits(page, form->page_bytes);
    }
}

/* Pages of the sink that are not another move's begin here. */
static uint32_t first_own(const struct move *move)
{
    return move->plan.taken == TAKEN_PAGE ? 1 : 0;
}

static void wipe_sink(const struct move *move)
{
    for (uint32_t i = first_own(move); i < move->plan.pages; i++)
        pool_wipe(move->plan.route->sink, move->sink.ids[i]);
}

static void spoil(struct move *move, const char *what, uint32_t number)
{
    complain("transfer %u (%u pages of %s, %s, %s): %s %u", move->number, move->plan.pages, form_of(move)->name,
             style_names[move->plan.style], starter_names[move->plan.starter], what, number);
    move->intact = false;
}

/* Stops at the first page that is wrong. */
static void check_units(struct move *move, uint32_t first, uint32_t count)
{
    for (uint32_t unit = first; unit < first + count && move->intact; unit++)
        if (XXH3_64bits(page_of(&move->sink, unit), form_of(move)->page_bytes) != move->hashes[unit])
            spoil(move, "wrong bytes landed in unit", unit);
}

static void check_all(struct move *move)
{
    check_units(move, 0, move->plan.pages * form_regions(form_of(move)));
}

/* ---- The aux payload --------------------------------------------------------------------------------------------- */

static size_t aux_size(const struct move *move)
{
    return move->plan.aux ? 1 + move->number * 37 % AUX_MAX : 0;
}

static uint8_t aux_byte(const struct move *move, size_t index)
{
    return (uint8_t)(move->number + index * 7);
}

/* Valid until the next call. */
static const uint8_t *aux_bytes(const struct move *move)
{
    static uint8_t bytes[AUX_MAX];
    for (size_t i = 0; i < aux_size(move); i++)
        bytes[i] = aux_byte(move, i);
    return bytes;
}

static void check_aux(struct move *move, const struct strait_event *event)
{
    if (event->data_size != aux_size(move) ||
        (event->data_size != 0 && memcmp(event->data, aux_bytes(move), event->data_size) != 0))
        spoil(move, "the aux payload is wrong, of bytes:", (uint32_t)event->data_size);
}

/* ---- Preparing --------------------------------------------------------------------------------------------------- */

static uint32_t count_appends(const struct move_plan *plan)
{
    if (plan->style == STYLE_WHOLE)
        return 0;
    return plan->style == STYLE_CHUNKS ? plan->parts - 1 : plan->route->source->form.layers;
}

void move_prepare(struct move *move, const struct move_plan *plan)
{
    static uint32_t last_number;
    const struct form *form = &plan->route->source->form;
    *move = (struct move){.plan = *plan,
                          .number = ++last_number,
                          .source = {.move = move},
                          .sink = {.move = move, .is_sink = true},
                          .appends = count_appends(plan),
                          .intact = true};
    move->source.ids = calloc(plan->pages, sizeof(uint32_t));
    move->sink.ids = calloc(plan->pages, sizeof(uint32_t));
    move->hashes = calloc((size_t)plan->pages * form_regions(form), sizeof(uint64_t));
    require(move->source.ids != NULL && move->sink.ids != NULL && move->hashes != NULL);
    pool_take(plan->route->source, move->source.ids, plan->pages);
    if (plan->taken == TAKEN_PAGE)
        move->sink.ids[0] = plan->taker->sink.ids[0];
    pool_take(plan->route->sink, move->sink.ids + first_own(move), plan->pages - first_own(move));
    fill_source(move);
    wipe_sink(move);
}

/* ---- Beginning --------------------------------------------------------------------------------------------------- */

struct name {
    char text[48];
    size_t size;
};

static struct name name_of(const struct move_end *end)
{
    struct name name;
    const char *side = !end->move->plan.own_names ? "request" : end->is_sink ? "sink" : "source";
    const bool taken = end->is_sink && end->move->plan.taken == TAKEN_NAME;
    const struct move *named = taken ? end->move->plan.taker : end->move;
    name.size = (size_t)snprintf(name.text, sizeof(name.text), "%s-%u", side, named->number);
    return name;
}

static bool starts(const struct move_end *end)
{
    enum starter starter = end->move->plan.starter;
    if (starter == START_BOTH)
        return true;
    return end->is_sink == (starter == START_PULL || starter == START_SINK);
}

static enum strait_status start(const struct move_end *end)
{
    const struct move_plan *plan = &end->move->plan;
    const struct name other = name_of(end->is_sink ? &end->move->source : &end->move->sink);
    struct strait_start_params params = {.size = sizeof(params)};
    if (plan->starter == START_PUSH || plan->starter == START_PULL)
        params.direction = plan->starter == START_PUSH ? STRAIT_PUSH : STRAIT_PULL;
    if (plan->own_names) {
        params.peer_key = other.text;
        params.peer_key_size = other.size;
    }
    return strait_start(end->transfer, end->is_sink ? plan->route->to_source : plan->route->to_sink, &params);
}

static struct strait_page_list list_of(const struct move_end *end, uint32_t first, uint32_t count)
{
    return (struct strait_page_list){.first = first, .count = count, .ids = end->ids + first};
}

static uint32_t part_begin(const struct move_plan *plan, uint32_t part)
{
    return (uint32_t)((uint64_t)plan->pages * part / plan->parts);
}

/* In two lists, the later one first, as a list's place among them means nothing. */
static enum strait_status expect(struct move_end *end)
{
    const struct move_plan *plan = &end->move->plan;
    const struct name name = name_of(end);
    uint32_t half = plan->pages / 2;
    struct strait_page_list lists[2] = {list_of(end, half, plan->pages - half), list_of(end, 0, half)};
    const struct strait_expect_params params = {.size = sizeof(params),
                                                .key = name.text,
                                                .key_size = name.size,
                                                .lists = lists,
                                                .list_count = half != 0 ? 2 : 1,
                                                .deadline_ms = plan->deadline_ms,
                                                .context = end};
    tally_of(end)->expectations++;
    return strait_expect(pool_of(end)->pool, &params, &end->transfer);
}

static enum strait_status offer(struct move_end *end)
{
    const struct move *move = end->move;
    const struct move_plan *plan = &move->plan;
    const struct name name = name_of(end);
    bool last = move->appends == 0;
    const struct strait_page_list list =
        list_of(end, 0, plan->style == STYLE_CHUNKS ? part_begin(plan, 1) : plan->pages);
    const struct strait_offer_params params = {.size = sizeof(params),
                                               .key = name.text,
                                               .key_size = name.size,
                                               .lists = &list,
                                               .list_count = 1,
                                               .lease_ms = plan->lease_ms != 0 ? plan->lease_ms : plan->deadline_ms,
                                               .later = plan->style == STYLE_LAYERS,
                                               .last = last,
                                               .aux = last ? aux_bytes(move) : NULL,
                                               .aux_size = last ? aux_size(move) : 0,
                                               .context = end};
    tally_of(end)->offers++;
    return strait_offer(pool_of(end)->pool, &params, &end->transfer);
}

/* A call that is refused ends its side. */
static void settle(struct move_end *end, enum strait_status status, const char *call)
{
    if (status == STRAIT_OK)
        return;
    spoil(end->move, call, (uint32_t)-status);
    end->decided = end->drained = true;
}

static void begin_side(struct move_end *end)
{
    struct move *move = end->move;
    end->begun = true;
    end->begun_at = now_seconds();
    end->state = STRAIT_BOOTSTRAP;
    settle(end, end->is_sink ? expect(end) : offer(end), "begin was refused with error -");
    if (!end->decided && starts(end))
        settle(end, start(end), "start was refused with error -");
    if (!end->is_sink)
        move->append_due = move->plan.held ? NEVER : now_ms() + move->plan.pause_ms;
}

void move_begin(struct move *move)
{
    move->began = now_seconds();
    begin_side(move->plan.source_first ? &move->source : &move->sink);
    move->second_due = now_ms() + move->plan.gap_ms;
    if (move->plan.gap_ms == 0)
        begin_side(move->plan.source_first ? &move->sink : &move->source);
}

/* ---- Going on ---------------------------------------------------------------------------------------------------- */

static void append(struct move *move)
{
    const struct move_plan *plan = &move->plan;
    bool by_layers = plan->style == STYLE_LAYERS, last = ++move->appended == move->appends;
    uint32_t first = by_layers ? 0 : part_begin(plan, move->appended);
    const struct strait_page_list list =
        list_of(&move->source, first, by_layers ? 0 : part_begin(plan, move->appended + 1) - first);
    const struct strait_append_params params = {.size = sizeof(params),
                                                .lists = by_layers ? NULL : &list,
                                                .list_count = by_layers ? 0 : 1,
                                                .layer_first = by_layers ? (int32_t)move->appended - 1 : 0,
                                                .layer_count = by_layers ? 1 : 0,
                                                .last = last,
                                                .aux = last ? aux_bytes(move) : NULL,
                                                .aux_size = last ? aux_size(move) : 0};
    settle(&move->source, strait_append(move->source.transfer, &params), "append was refused with error -");
    move->append_due = now_ms() + plan->pause_ms;
}

void move_turn(struct move *move)
{
    uint64_t now = now_ms();
    if ((!move->source.begun || !move->sink.begun) && now >= move->second_due)
        begin_side(move->source.begun ? &move->sink : &move->source);
    if (move->source.begun && !move->source.decided && move->appended < move->appends && now >= move->append_due)
        append(move);
}

void move_release(struct move *move)
{
    move->append_due = 0;
}

void move_abort(struct move *move)
{
    if (move->source.transfer != NULL)
        strait_abort(move->source.transfer);
    if (move->sink.transfer != NULL)
        strait_abort(move->sink.transfer);
}

bool move_over(const struct move *move)
{
    return move->source.decided && move->source.drained && move->sink.decided && move->sink.drained;
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

static void on_done(struct move_end *end, const struct strait_event *event)
{
    struct move *move = end->move;
    struct tally *tally = tally_of(end);
    uint64_t bytes = move_bytes(&move->plan);
    bool local = route_is_local(move->plan.route);
    if (!end->is_sink) {
        tally->source_done++;
        tally->sent_bytes += local ? 0 : bytes;
        return;
    }
    tally->sink_done++;
    tally->landed_bytes += local ? 0 : bytes;
    tally->local_bytes += local ? bytes : 0;
    check_aux(move, event);
    if (move->layers_landed != form_of(move)->layers)
        spoil(move, "layers told of until DONE:", move->layers_landed);
}

static void on_state(struct move_end *end, const struct strait_event *event)
{
    if (end->decided)
        spoil(end->move, "an event after the verdict, state", event->state);
    if (event->state != STRAIT_FAILED && event->state <= end->state)
        spoil(end->move, "not upwards, to state", event->state);
    end->state = event->state;
    end->reason = event->reason;
    if (event->state != STRAIT_DONE && event->state != STRAIT_FAILED)
        return;
    end->decided = true;
    end->decided_at = now_seconds();
    end->drained = event->drained;
    if (event->state == STRAIT_DONE)
        on_done(end, event);
}

/* A layer that is told of is in place. It is looked at again with DONE; at once only where the rest comes later. */
static void on_layer(struct move *move, int32_t layer)
{
    const struct form *form = form_of(move);
    move->layers_landed++;
    if (layer < 0 || (uint32_t)layer >= form->layers)
        spoil(move, "there is no layer", (uint32_t)layer);
    else if (move->plan.style == STYLE_LAYERS)
        check_units(move, (uint32_t)layer * form->roles * move->plan.pages, form->roles * move->plan.pages);
}

void move_take(const struct strait_event *event)
{
    struct move_end *end = event->context;
    if (event->type == STRAIT_EVENT_STATE)
        on_state(end, event);
    else if (event->type == STRAIT_EVENT_DRAINED)
        end->drained = true;
    else
        on_layer(end->move, event->layer);
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

bool move_finish(struct move *move)
{
    bool done = move->source.state == STRAIT_DONE && move->sink.state == STRAIT_DONE;
    if (move->sink.state == STRAIT_DONE)
        check_all(move);
    strait_release(move->source.transfer);
    strait_release(move->sink.transfer);
    pool_give(move->plan.route->source, move->source.ids, move->plan.pages);
    if (move->plan.route->sink->watched)
        wipe_sink(move);
    pool_give(move->plan.route->sink, move->sink.ids + first_own(move), move->plan.pages - first_own(move));
    free(move->source.ids);
    free(move->sink.ids);
    free(move->hashes);
    move->source.ids = move->sink.ids = NULL;
    move->hashes = NULL;
    move->source.transfer = move->sink.transfer = NULL;
    return done && move->intact;
}

void move_complain(const struct move *move)
{
    const struct route *route = move->plan.route;
    complain("transfer %u, %s to %s, %u pages of %s, %s, started by %s: source %s (%s), sink %s (%s) after %.3f s",
             move->number, route->source->worker->daemon->name, route->sink->worker->daemon->name, move->plan.pages,
             form_of(move)->name, style_names[move->plan.style], starter_names[move->plan.starter],
             strait_state_string((int)move->source.state), strait_reason_string((int)move->source.reason),
             strait_state_string((int)move->sink.state), strait_reason_string((int)move->sink.reason),
             now_seconds() - move->began);
}

void group_init(struct group *group, uint32_t room)
{
    *group = (struct group){.moves = calloc(room, sizeof(struct move)), .room = room};
    require(group->moves != NULL);
}

struct move *group_add(struct group *group, const struct move_plan *plan)
{
    require(group->count < group->room);
    move_prepare(&group->moves[group->count], plan);
    return &group->moves[group->count++];
}

void group_begin(struct group *group)
{
    for (uint32_t i = 0; i < group->count; i++)
        move_begin(&group->moves[i]);
}

static bool all(struct group *group, bool (*reached)(const struct move *move))
{
    bool all_reached = true;
    for (uint32_t i = 0; group != NULL && i < group->count; i++) {
        move_turn(&group->moves[i]);
        all_reached = reached(&group->moves[i]) && all_reached;
    }
    return all_reached;
}

bool groups_until(struct world *world, struct group *group, struct group *other,
                  bool (*reached)(const struct move *move), uint64_t ms, const char *what)
{
    for (uint64_t end = now_ms() + ms;;) {
        bool first = all(group, reached), second = all(other, reached);
        if (first && second)
            return true;
        if (!world_pump(world, 1))
            return false;
        if (now_ms() > end) {
            complain("%s: not within %u ms", what, (unsigned)ms);
            return false;
        }
    }
}

uint32_t group_finish(struct group *group)
{
    uint32_t done = 0;
    for (uint32_t i = 0; i < group->count; i++) {
        struct move *move = &group->moves[i];
        if (move->source.state != STRAIT_DONE || move->sink.state != STRAIT_DONE)
            move_complain(move);
        done += move_finish(move);
    }
    free(group->moves);
    *group = (struct group){0};
    return done;
}
