/* What ranks on different hosts go by, each part alone: who shares memory, at which address they listen, and frames
 * that are not in order. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "collective/engine/hosts.h"
#include "collective/engine/proxy.h"
#include "tests/run_suite.h"
#include "tests/support.h"
#include "transport/loopback.h"
#include "transport/rank_address.h"

/* ---- Who shares memory ------------------------------------------------------------------------------------------- */

/* By rank: whom it sees, and the leader that it has then. */
static const struct {
    int ranks;
    struct rank_set sees[4];
    uint8_t leaders[4];
} divisions[] = {
    {4, {{{15}}, {{15}}, {{15}}, {{15}}}, {0, 0, 0, 0}},
    {4, {{{1}}, {{2}}, {{4}}, {{8}}}, {0, 1, 2, 3}},
    {4, {{{3}}, {{3}}, {{12}}, {{12}}}, {0, 0, 2, 2}},
    {3, {{{1}}, {{3}}, {{6}}, {{0}}}, {0, 0, 2, 0}}, /* a chain: the second leads nobody */
    {3, {{{7}}, {{2}}, {{4}}, {{0}}}, {0, 1, 2, 0}}, /* seen alone */
    {4, {{{5}}, {{10}}, {{5}}, {{10}}}, {0, 1, 0, 1}},
};

TEST_LOOP(ranks_that_see_each_other_share, COUNT(divisions))
{
    struct host_groups groups;
    host_groups_of(&groups, divisions[_i].sees, divisions[_i].ranks);
    for (int rank = 0; rank < divisions[_i].ranks; rank++)
        ck_assert_uint_eq(groups.leader[rank], divisions[_i].leaders[rank]);
}

static const struct {
    const char *list, *name;
    bool listed;
} interfaces[] = {{"eth", "eth0", true},        {"=eth", "eth0", false},    {"=eth0", "eth0", true},
                  {"ib,eth1", "eth1", true},    {"ib,eth1", "eth0", false}, {"^docker,lo", "lo", false},
                  {"^docker,lo", "eth0", true}, {"^=lo", "lo0", true},      {"=eth1,eth0", "eth0", true},
                  {"=eth0", "eth", false},      {",", "eth0", false}};

TEST_LOOP(interfaces_are_named_as_nccl_does, COUNT(interfaces))
{
    ck_assert_int_eq(address_listed(interfaces[_i].list, interfaces[_i].name), interfaces[_i].listed);
}

/* ---- What is not in order ---------------------------------------------------------------------------------------- */

enum { SLOT_BYTES = 8192 };

/* Flags of a ring. */
struct flags {
    struct ring_flag full[RING_SLOTS], taken[RING_SLOTS];
    struct ring_record records[2][RING_RECORDS];
};

static struct ring_parts parts_of(struct flags *flags, uint8_t *slots)
{
    return (struct ring_parts){flags->full, flags->taken, {flags->records[0], flags->records[1]}, slots};
}

/* Rings of the peer under test, with a link in memory to one that says what the test wants. */
struct world {
    struct flags to, from;
    uint8_t to_slots[RING_SLOTS * SLOT_BYTES], from_slots[RING_SLOTS * SLOT_BYTES];
    uint8_t guard[SLOT_BYTES];
    struct proxy_peer peer, other;
    struct transport *transport;
    unsigned links;
};

static bool take_some(void *arg, int rank, const struct frame *frame)
{
    (void)arg;
    (void)rank;
    return frame->type == FRAME_ASK && frame->small < 3;
}

static void world_link(struct world *world)
{
    struct proxy_peer *ends[2] = {&world->peer, &world->other};
    uint8_t addresses[2][LINK_ADDRESS_MAX];
    size_t sizes[2];
    memset(&world->peer, 0, sizeof(world->peer));
    memset(&world->other, 0, sizeof(world->other));
    world->peer = (struct proxy_peer){.slot_bytes = SLOT_BYTES,
                                      .depth = RING_SLOTS,
                                      .records = RING_RECORDS,
                                      .to = parts_of(&world->to, world->to_slots),
                                      .from = parts_of(&world->from, world->from_slots),
                                      .on_consensus = take_some};
    for (int i = 0; i < 2; i++) {
        require(link_open(world->transport, -1, i == 0 ? LINK_ACCEPTED : LINK_DIALLED, ends[i], &ends[i]->link) == 0);
        sizes[i] = link_address(ends[i]->link, addresses[i], LINK_ADDRESS_MAX);
        world->links++;
    }
    for (int i = 0; i < 2; i++)
        require(link_connect(ends[i]->link, addresses[!i], sizes[!i]) == STRAIT_OK);
}

static struct world *world_make(void)
{
    struct world *world = calloc(1, sizeof(*world));
    const struct transport_arena arena = {.fd = -1, .memory = TRANSPORT_HOST};
    require(world != NULL && transport_create(&transport_loopback, &arena, &proxy_events, &world->links, NULL,
                                              &world->transport) == STRAIT_OK);
    world_link(world);
    return world;
}

static void progress(struct world *world)
{
    while (transport_progress(world->transport))
        ;
}

static void world_unlink(struct world *world)
{
    proxy_peer_end(&world->peer, NULL);
    proxy_peer_end(&world->other, NULL);
    while (world->links > 0)
        progress(world);
}

static void world_end(struct world *world)
{
    world_unlink(world);
    transport_destroy(world->transport);
    free(world);
}

static void tell(struct world *world, struct frame frame, const void *values, size_t size)
{
    uint8_t header[FRAME_BYTES];
    frame_put(header, &frame);
    progress(world);
    if (world->other.link != NULL)
        require(link_send(world->other.link, header, FRAME_BYTES, values, size, NULL, size > 0) == STRAIT_OK);
    progress(world);
}

static bool is_ended(const struct world *world)
{
    return world->peer.link == NULL && world->peer.trouble != NULL;
}

static const struct frame disorder[] = {
    {0, 0, 0, 0, 0},
    {FRAME_TYPES, 0, 0, 0, 0},
    {UINT32_MAX, 0, 0, 0, 0},
    {FRAME_SLOT, 0, 0, 0, 0},
    {FRAME_SLOT, SLOT_BYTES + 1, 0, 0, 0},
    {FRAME_SLOT, UINT32_MAX, 0, 0, 0},
    {FRAME_SLOT, 16, UINT64_MAX, 0, 0},
    {FRAME_TAKEN, 0, 0, 0, 0},
    {FRAME_TAKEN, 0, 1, 0, 0}, /* nothing was sent */
    {FRAME_TAKEN, 0, UINT64_MAX, 0, 0},
    {FRAME_RECORD, 2, 0, 0, 0},
    {FRAME_RECORD, 0, UINT64_MAX, 0, 0},
    {FRAME_ASK, 3, 0, 0, 0},
    {FRAME_PROMISE, 0, 0, 0, 0},
    {FRAME_STEP, 0, 0, 0, 0},
    {FRAME_FLUSHED, 0, 0, 0, 0}, /* nothing was asked */
};

/* Slots come with as many bytes as they say, or as they could say. */
TEST_LOOP(what_is_not_in_order_ends_the_connection, COUNT(disorder))
{
    static const uint8_t values[SLOT_BYTES + 1];
    struct world *world = world_make();
    const struct frame *frame = &disorder[_i];
    tell(world, *frame, values, frame->type == FRAME_SLOT && frame->small <= sizeof(values) ? frame->small : 0);
    ck_assert(is_ended(world));
    world_end(world);
}

TEST_LOOP(values_belong_to_slots_and_are_as_long_as_they_say, 3)
{
    static const uint8_t values[16];
    static const struct frame frames[] = {
        {FRAME_SLOT, 15, 0, 0, 0}, {FRAME_SLOT, 17, 0, 0, 0}, {FRAME_ASK, 0, 0, 0, 0}};
    struct world *world = world_make();
    tell(world, frames[_i], values, sizeof(values));
    ck_assert(is_ended(world));
    ck_assert_uint_eq(world->from.full[0].number, 0);
    world_end(world);
}

TEST_LOOP(headers_are_frames, 2)
{
    static const uint8_t header[FRAME_BYTES + 1] = {FRAME_LEAVE};
    struct world *world = world_make();
    progress(world);
    require(link_send(world->other.link, header, _i == 0 ? FRAME_BYTES - 1 : FRAME_BYTES + 1, NULL, 0, NULL, 0) == 0);
    progress(world);
    ck_assert(is_ended(world) && !world->peer.left);
    world_end(world);
}

/* A slot that has not been taken is not written over. */
TEST(slots_come_when_there_is_room)
{
    uint8_t values[16];
    struct world *world = world_make();
    memset(values, 7, sizeof(values));
    tell(world, (struct frame){.type = FRAME_SLOT, .small = sizeof(values), .a = 5}, values, sizeof(values));
    ck_assert(world->peer.link != NULL);
    ck_assert_uint_eq(world->from.full[5].number, 6);
    ck_assert_uint_eq(world->from.full[5].bytes, sizeof(values));
    ck_assert_mem_eq(world->from_slots + 5 * SLOT_BYTES, values, sizeof(values));
    tell(world, (struct frame){.type = FRAME_SLOT, .small = sizeof(values), .a = 5 + RING_SLOTS}, values,
         sizeof(values));
    ck_assert(is_ended(world));
    world_end(world);
}

/* At most two slots are on their way; the next ones follow as these have been sent, and all are sent once. */
TEST(full_slots_are_sent_in_the_order_of_their_numbers)
{
    struct world *world = world_make();
    progress(world);
    world->other.slot_bytes = SLOT_BYTES;
    world->other.depth = RING_SLOTS;
    world->other.from = parts_of(&world->from, world->from_slots);
    for (uint64_t number = 70; number >= 60; number--) {
        world->to.full[number % RING_SLOTS].bytes = SLOT_BYTES;
        world->to.full[number % RING_SLOTS].number = number + 1;
    }
    for (uint64_t number = 60; number <= 70; number += 2) {
        proxy_peer_send(&world->peer);
        ck_assert_uint_eq(world->peer.slots, number == 70 ? 1 : 2);
        progress(world);
        ck_assert_uint_eq(world->peer.slots, 0);
        ck_assert_uint_eq(world->from.full[number % RING_SLOTS].number, number + 1);
    }
    proxy_peer_send(&world->peer);
    ck_assert_uint_eq(world->peer.frames, 0);
    world_end(world);
}

TEST(a_flush_is_answered_once)
{
    struct world *world = world_make();
    progress(world);
    world->other.flushing = true;
    tell(world, (struct frame){.type = FRAME_FLUSH}, NULL, 0);
    ck_assert(world->other.flushed && world->peer.link != NULL);
    tell(world, (struct frame){.type = FRAME_FLUSH}, NULL, 0);
    ck_assert(is_ended(world));
    world_end(world);
}

TEST_RANGE(no_bytes_do_harm, 1, 5)
{
    static const uint8_t noise[2 * SLOT_BYTES] = {1};
    struct rng rng = rng_init((uint64_t)_i);
    struct world *world = world_make();
    for (unsigned turn = 0; turn < 300; turn++) {
        for (unsigned i = 0; i < 40 && world->peer.link != NULL; i++) {
            const struct frame frame = {.type = (uint32_t)(rng_next(&rng) % (FRAME_TYPES + 1)),
                                        .small = (uint32_t)(rng_next(&rng) >> (32 + rng_next(&rng) % 32)),
                                        .a = rng_next(&rng) >> rng_next(&rng) % 64,
                                        .b = rng_next(&rng)};
            const bool fits = frame.type == FRAME_SLOT && frame.small <= sizeof(noise) && rng_next(&rng) % 8 != 0;
            tell(world, frame, noise, fits ? frame.small : rng_next(&rng) % 4 == 0);
        }
        world_unlink(world);
        world_link(world);
    }
    for (unsigned i = 0; i < SLOT_BYTES; i++)
        ck_assert_uint_eq(world->guard[i], 0);
    world_end(world);
}

int main(void)
{
    return run_tests("coll_proxy", NULL, NULL);
}
