#include "tests/node/rogue_sink.h"

const uint32_t first_slots[] = {0, FAR_FIRST};
const struct wire_span all_pages = {.count = PAGES};

void scene_meet(struct scene *s)
{
    struct fake_handle handle = rogue_handle(&s->rogue);
    struct message arena = rogue_arena(&s->rogue, &handle, 1, FAR_FIRST);
    rogue_meet(&s->rogue, s->pair.a);
    s->blob = blob_of(s->source);
    if (s->where != FAR)
        return;
    rogue_say(&s->rogue, &arena);
    ROGUE_WAIT(&s->rogue, s->rogue.heard.reach_count != 0);
    ck_assert_mem_eq(&s->blob.pool, &s->rogue.heard.reach.pool, sizeof(s->blob.pool));
    ck_assert_uint_eq(1u << 1, s->rogue.heard.reach.devices);
}

void scene_init(struct scene *s, enum where where)
{
    memset(s, 0, sizeof(*s));
    s->where = where;
    pair_open(&s->pair, SHM);
    struct geometry shape = {.pages = PAGES, .layers = LAYERS, .gpu = 1};
    s->source = pool_open(s->pair.source, shape);
    shape.gpu = 2;
    s->sink = pool_open(s->pair.sink, shape);
    rogue_init(&s->rogue, FAR_SLOT_BYTES);
    far_move(s->source, s->sink);
}

void scene_offer(struct scene *s)
{
    struct message request = rogue_request(&s->blob, "r", 1, &all_pages);
    pool_fill(s->source, 1);
    s->offer = flow_offer(s->source, (struct strait_offer_params){KEY("r"), LISTS({.count = PAGES}), .last = true});
    rogue_say(&s->rogue, &request);
    ROGUE_WAIT(&s->rogue, s->rogue.heard.last);
    ck_assert_uint_eq(UNITS, s->rogue.heard.units);
}

void scene_begin(struct scene *s, enum where where)
{
    scene_init(s, where);
    scene_meet(s);
    scene_offer(s);
}

void scene_end(struct scene *s, uint32_t written)
{
    rogue_leave(&s->rogue);
    WAIT(s->offer == NULL || (s->offer->decided && s->offer->drained));
    ck_assert(rogue_untouched(&s->rogue, s->where == NEAR ? written : 0, s->where == FAR ? written : 0));
    ck_assert(pool_as_imagined(s->source));
    far_move(s->source, s->sink);
    wait_quiet(s->pair.source);
    wait_quiet(s->pair.sink);
    ck_assert_uint_eq(0, s->pair.source->disconnects);
    blob_fini(&s->blob);
    rogue_fini(&s->rogue);
}

struct message grant_of(const struct scene *s, uint64_t id, uint32_t first, uint32_t count, uint32_t slot)
{
    return (struct message){.type = MESSAGE_GRANT,
                            .grant = {.leg = 1,
                                      .epoch = {.incarnation = 666, .counter = 1},
                                      .grant = id,
                                      .first = first,
                                      .count = count,
                                      .slot = first_slots[s->where] + slot}};
}

void grant(struct scene *s, uint64_t id, uint32_t first, uint32_t count, uint32_t slot)
{
    struct message message = grant_of(s, id, first, count, slot);
    rogue_say(&s->rogue, &message);
}

void end_done(struct scene *s)
{
    const struct message done = {
        .type = MESSAGE_END,
        .end = {.leg = 1, .epoch = {.incarnation = 666, .counter = 1}, .from_sink = true, .state = STRAIT_DONE}};
    rogue_say(&s->rogue, &done);
    ROGUE_WAIT(&s->rogue, s->offer->decided);
    ends_done(s->offer);
}
