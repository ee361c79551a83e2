/* A peer that says of its GPUs, and of what it reaches, what is not so: no memory is written to that it has not given
 * away, its connection ends or what it says is of no use, and the node goes on. */
#include "tests/node/harness.h"
#include "tests/node/rogue.h"

#include <unistd.h>

#include "daemon/peers/peer.h"

enum { PAGES = 64, LAYERS = 2, FAR_FIRST = 100, FAR_SLOT_BYTES = 260 << 10 };

static const struct wire_span all_pages = {.count = PAGES};

/* Two nodes with a GPU's pool each, between which chunks go from GPU to GPU. */
static struct scene {
    struct pair pair;
    struct rogue rogue;
    struct fake_handle handle;
    uint32_t reached; /* mappings of the honest ones */
} s;

static void setup(void)
{
    node_setup();
    s.pair = pair_open(SHM, (struct geometry){.pages = PAGES, .layers = LAYERS, .gpu = 1, .sink_gpu = 2});
    move_until(s.pair.source, s.pair.sink, "peer");
    WAIT(fake_control()->reached == 2); /* each the other's */
    s.reached = fake_control()->reached;
    rogue_init(&s.rogue, FAR_SLOT_BYTES);
    s.handle = rogue_handle(&s.rogue);
}

static void teardown(void)
{
    rogue_leave(&s.rogue);
    WAIT(fake_control()->reached == s.reached); /* nothing of the rogue's stays mapped */
    double before = wire_bytes(s.pair.source, "peer");
    move_all(s.pair.source, s.pair.sink);
    ck_assert_double_gt(wire_bytes(s.pair.source, "peer"), before);
    pair_quiet(&s.pair);
    rogue_fini(&s.rogue);
    node_teardown();
}

static struct message arena_of(void)
{
    return rogue_arena(&s.rogue, &s.handle, 1, FAR_FIRST);
}

/* Until all that was said before has been taken. */
static void settle(void)
{
    const struct message stranger = {.type = MESSAGE_REVOKE,
                                     .grant_id = {.leg = 99, .epoch = {.incarnation = 666, .counter = 99}, .grant = 1}};
    uint32_t before = s.rogue.heard.released_count;
    rogue_say(&s.rogue, &stranger);
    ROGUE_WAIT(&s.rogue, s.rogue.went_down || s.rogue.heard.released_count > before);
}

/* ---- ARENA that cannot be used ----------------------------------------------------------------------------------- */

enum { LISTENER = -1, LARGER = 1 };

static const struct {
    int32_t fd, pid;                 /* of the handle; 0: as they are, LISTENER: no memory at all */
    uint32_t slot_bytes, slot_count; /* 0: as they are, LARGER: than the node's */
    uint64_t flags_at;               /* beyond its memory */
    bool unknown;                    /* its slots are none: who grants one is let go */
} useless[] = {{.fd = 999},
               {.pid = INT32_MAX},
               {.fd = LISTENER},
               {.slot_count = 2 * ROGUE_FAR_SLOTS + 1},
               {.flags_at = 1u << 30},
               {.slot_bytes = LARGER, .slot_count = 1, .unknown = true},
               {.slot_bytes = UINT32_MAX, .unknown = true},
               {.slot_count = UINT32_MAX - FAR_FIRST}};

static struct message useless_arena(int i)
{
    if (useless[i].fd != 0)
        s.handle.fd = useless[i].fd == LISTENER ? s.rogue.listener : useless[i].fd;
    if (useless[i].pid != 0)
        s.handle.pid = useless[i].pid;
    struct message arena = arena_of();
    if (useless[i].slot_bytes != 0)
        arena.arena.slot_bytes = useless[i].slot_bytes;
    if (useless[i].slot_bytes == LARGER)
        arena.arena.slot_bytes = gpu_slot_bytes(s.pair.a->options.gpu_chunk_bytes) + 4096;
    if (useless[i].slot_count != 0)
        arena.arena.slot_count = useless[i].slot_count;
    arena.arena.flags_at = useless[i].flags_at;
    return arena;
}

/* The offer's chunks cross the host's memory; a grant of such a slot fails it. */
static void grant_one(uint64_t leg, uint32_t slot)
{
    const struct message grant = {
        .type = MESSAGE_GRANT,
        .grant = {.leg = leg, .epoch = {.incarnation = 666, .counter = leg}, .grant = 1, .count = 1, .slot = slot}};
    rogue_say(&s.rogue, &grant);
}

static struct flow *offer_to_rogue(const char *key, uint64_t leg)
{
    struct pool_blob blob = blob_of(s.pair.source);
    struct message request = rogue_request(&blob, key, leg, &all_pages);
    s.rogue.heard.last = false;
    struct flow *offer = offer_all(s.pair.source, key);
    rogue_say(&s.rogue, &request);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.last);
    blob_fini(&blob);
    return offer;
}

TEST_LOOP(an_arena_that_cannot_be_reached_is_not_used, COUNT(useless))
{
    rogue_meet(&s.rogue, s.pair.a);
    struct message arena = useless_arena(_i);
    rogue_say(&s.rogue, &arena);
    settle();
    struct flow *near = offer_to_rogue("near", 1), *far = offer_to_rogue("far", 2);
    grant_one(1, 3);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.chunk_count == 1);
    ck_assert_uint_eq(0, s.rogue.heard.reach_count);
    grant_one(2, FAR_FIRST);
    ROGUE_WAIT(&s.rogue, far->decided);
    ROGUE_WAIT(&s.rogue, s.rogue.went_down == useless[_i].unknown);
    ends_failed(far, useless[_i].unknown ? STRAIT_REASON_PEER_DOWN : STRAIT_REASON_GEOMETRY);
    ck_assert(rogue_untouched(&s.rogue, 1u << 3, 0));
    rogue_leave(&s.rogue);
    ends_failed(near, STRAIT_REASON_PEER_DOWN);
}

/* ---- ARENA that breaks the protocol ------------------------------------------------------------------------------ */

static const struct {
    uint32_t device, first, count;
} second[] = {
    {1, FAR_FIRST, ROGUE_FAR_SLOTS - 1},        /* less of the same */
    {1, FAR_FIRST + 50, ROGUE_FAR_SLOTS},       /* another for that device */
    {2, FAR_FIRST, ROGUE_FAR_SLOTS},            /* these numbers for another device */
    {2, FAR_FIRST + ROGUE_FAR_SLOTS - 1, 1},    /* the last of them */
    {2, FAR_FIRST - 1, 2},                      /* the first of them */
    {2, ROGUE_SLOTS, UINT32_MAX - ROGUE_SLOTS}, /* all of them */
    {2, 1, 1},
    {2, ROGUE_SLOTS - 1, ROGUE_FAR_SLOTS}, /* the host's */
};

TEST_LOOP(arenas_that_share_numbers_end_the_connection, COUNT(second))
{
    rogue_meet(&s.rogue, s.pair.a);
    struct message arena = arena_of();
    rogue_say(&s.rogue, &arena);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.reach_count == 1);
    arena.arena.device = second[_i].device;
    arena.arena.first_slot = second[_i].first;
    arena.arena.slot_count = second[_i].count;
    rogue_say(&s.rogue, &arena);
    ROGUE_WAIT(&s.rogue, s.rogue.went_down);
    ck_assert(rogue_untouched(&s.rogue, 0, 0));
}

/* As it is when there is another way to it; the memory stays that of the first. */
TEST(an_arena_may_be_told_of_again)
{
    rogue_meet(&s.rogue, s.pair.a);
    struct message arena = arena_of();
    rogue_say(&s.rogue, &arena);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.reach_count == 1);
    for (int i = 0; i < 100; i++) {
        s.handle.fd = 1000 + i;
        rogue_say(&s.rogue, &arena);
    }
    settle();
    ck_assert(!s.rogue.went_down);
    struct flow *offer = offer_to_rogue("far", 1);
    grant_one(1, FAR_FIRST);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.chunk_count == 1);
    ck_assert(rogue_untouched(&s.rogue, 0, 1));
    rogue_leave(&s.rogue);
    ends_failed(offer, STRAIT_REASON_PEER_DOWN);
}

TEST(a_daemon_may_have_many_gpus)
{
    rogue_meet(&s.rogue, s.pair.a);
    for (uint32_t device = 0; device < MESSAGE_DEVICES_MAX; device++) {
        struct message arena = rogue_arena(&s.rogue, &s.handle, device, FAR_FIRST + device * ROGUE_FAR_SLOTS);
        rogue_say(&s.rogue, &arena);
    }
    ROGUE_WAIT(&s.rogue, s.rogue.heard.reach.devices == UINT64_MAX);
    struct flow *offer = offer_to_rogue("k", 1);
    grant_one(1, FAR_FIRST + MESSAGE_DEVICES_MAX * ROGUE_FAR_SLOTS - 1);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.chunk_count == 1);
    ck_assert(rogue_untouched(&s.rogue, 0, 1u << (ROGUE_FAR_SLOTS - 1)));
    rogue_leave(&s.rogue);
    ends_failed(offer, STRAIT_REASON_PEER_DOWN);
}

/* ---- Memory of others -------------------------------------------------------------------------------------------- */

/* Who was told of an arena can pass its handle on. What is then stored there is no chunk to its owner. */
TEST(an_arena_of_another_daemon_gets_no_chunk_into_its_pages)
{
    rogue_meet(&s.rogue, s.pair.b);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.arena_count == 1);
    s.handle = s.rogue.heard.handle;
    struct message arena = arena_of();
    arena.arena.slot_bytes = s.rogue.heard.arena.slot_bytes;
    rogue_leave(&s.rogue);
    rogue_meet(&s.rogue, s.pair.a);
    s.rogue.heard.reach_count = 0;
    rogue_say(&s.rogue, &arena);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.reach_count == 1);
    struct flow *offer = offer_to_rogue("k", 1);
    grant_one(1, FAR_FIRST);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.chunk_count == 1);
    ck_assert(pool_as_imagined(s.pair.sink));
    ck_assert(rogue_untouched(&s.rogue, 0, 0));
    rogue_leave(&s.rogue);
    ends_failed(offer, STRAIT_REASON_PEER_DOWN);
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

/* After the farewell of its link, which takes another way than what it says. */
TEST_LOOP(an_arena_after_the_farewell_is_let_go_of, 2)
{
    for (int i = 0; i < 10; i++) {
        rogue_meet(&s.rogue, s.pair.a);
        struct message arena = arena_of();
        if (_i == 0)
            link_close(s.rogue.peer->link);
        rogue_say(&s.rogue, &arena);
        if (_i == 1)
            link_close(s.rogue.peer->link);
        ROGUE_WAIT(&s.rogue, s.rogue.went_down);
    }
    ck_assert(rogue_untouched(&s.rogue, 0, 0));
}

TEST(a_peer_that_leaves_at_once_is_let_go_of)
{
    for (int i = 0; i < 10; i++) {
        rogue_meet(&s.rogue, s.pair.a);
        struct message arena = arena_of();
        rogue_say(&s.rogue, &arena);
        if (i % 2 == 0)
            settle();
        peer_drop(s.rogue.peer, "enough");
        ROGUE_WAIT(&s.rogue, s.rogue.went_down);
    }
}

/* ---- REACH ------------------------------------------------------------------------------------------------------- */

TEST_LOOP(pools_that_nobody_asks_for_cost_little, 2)
{
    enum { MANY = 6000 };
    rogue_meet(&s.rogue, s.pair.b);
    for (uint32_t i = 0; i < MANY; i++) {
        struct message reach = {.type = MESSAGE_REACH, .reach = {.devices = UINT64_MAX}};
        memcpy(&reach.reach.pool, &i, sizeof(i));
        rogue_say(&s.rogue, &reach);
        if (i % 2 == 1 && _i == 1) { /* and is gone again, twice */
            reach.reach.devices = 0;
            rogue_say(&s.rogue, &reach);
            rogue_say(&s.rogue, &reach);
        }
    }
    settle();
    ck_assert(!s.rogue.went_down);
}

/* That the source's GPUs reach GPUs that this node has not, or has no arena on. */
TEST_LOOP(what_is_said_of_other_pools_changes_nothing, 2)
{
    rogue_meet(&s.rogue, s.pair.b);
    struct pool_blob blob = blob_of(s.pair.source);
    struct message reach = {.type = MESSAGE_REACH, .reach = {.pool = blob.pool, .devices = _i == 0 ? UINT64_MAX : 0}};
    rogue_say(&s.rogue, &reach);
    settle();
    double before = wire_bytes(s.pair.source, "pinned");
    move_all(s.pair.source, s.pair.sink); /* as its own daemon reaches it */
    ck_assert_double_eq(before, wire_bytes(s.pair.source, "pinned"));
    ck_assert(!s.rogue.went_down);
    blob_fini(&blob);
}

int main(void)
{
    (void)machine_watch();
    return run_tests("node_rogue_reach", setup, teardown);
}
