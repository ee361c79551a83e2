/* Slots of the host's memory and of GPUs' under one row of numbers, and what chunks for a GPU's are cut to. */
#include <check.h>
#include <string.h>

#include "daemon/memory/arena.h"
#include "tests/run_suite.h"
#include "tests/support.h"

enum { HOST_SLOT = 8192, HOST_SLOTS = 5, GPU_SLOT = 4096, GPU_SLOTS = 3, TARGET = 5000 };

static struct receive receive;
static uint8_t gpu[DEVICES_MAX][GPU_SLOT * GPU_SLOTS];
static uint64_t flags[DEVICES_MAX][GPU_SLOTS];

static void setup(void)
{
    memset(gpu, CANARY, sizeof(gpu));
    ck_assert_int_eq(STRAIT_OK, receive_init(&receive, HOST_SLOT, HOST_SLOTS, TARGET));
}

static void teardown(void)
{
    receive_fini(&receive);
    ck_assert_uint_eq(0, receive.slot_count); /* and again does no harm */
    receive_fini(&receive);
    ck_assert(is_filled(gpu[0], sizeof(gpu), CANARY)); /* no processor touches it */
}

static void add(int32_t device)
{
    ck_assert_int_eq(STRAIT_OK, receive_add(&receive, device, gpu[device], GPU_SLOT, GPU_SLOTS, flags[device]));
}

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

TEST(the_hosts_slots_are_the_first)
{
    ck_assert_uint_eq(1, receive.arena_count);
    ck_assert_uint_eq(HOST_SLOTS, receive.slot_count);
    const struct receive_arena *host = receive.arenas[0];
    ck_assert_ptr_eq(receive_host(&receive), &host->slots);
    ck_assert_int_eq(-1, host->device);
    ck_assert_uint_eq(0, host->first);
    ck_assert_uint_eq(TARGET, host->target);
    for (uint32_t slot = 0; slot < HOST_SLOTS; slot++) {
        ck_assert_ptr_eq(host, receive_arena_of(&receive, slot));
        ck_assert_ptr_eq(host->slots.base + (size_t)slot * HOST_SLOT, receive_address(&receive, slot));
        ck_assert_ptr_null(receive_flag(&receive, slot));
    }
}

TEST(slots_of_gpus_are_numbered_on)
{
    static const int32_t order[] = {7, 0, DEVICES_MAX - 1};
    for (uint32_t a = 0; a < COUNT(order); a++) {
        add(order[a]);
        struct receive_arena *arena = receive_of_device(&receive, order[a]);
        uint32_t first = HOST_SLOTS + a * GPU_SLOTS;
        ck_assert_ptr_nonnull(arena);
        ck_assert_uint_eq(1 + a, arena->index);
        ck_assert_uint_eq(first, arena->first);
        ck_assert_uint_eq(first + GPU_SLOTS, receive.slot_count);
        for (uint32_t i = 0; i < GPU_SLOTS; i++) {
            ck_assert_ptr_eq(arena, receive_arena_of(&receive, first + i));
            ck_assert_ptr_eq(gpu[order[a]] + i * GPU_SLOT, receive_address(&receive, first + i));
            ck_assert_ptr_eq(&flags[order[a]][i], receive_flag(&receive, first + i));
        }
    }
    ck_assert_ptr_null(receive_of_device(&receive, 1));
    ck_assert_ptr_eq(receive.arenas[0], receive_of_device(&receive, -1));
}

TEST(every_gpu_has_room_and_no_more)
{
    for (int32_t device = 0; device < DEVICES_MAX; device++)
        add(device);
    ck_assert_uint_eq(HOST_SLOTS + DEVICES_MAX * GPU_SLOTS, receive.slot_count);
    ck_assert_int_eq(STRAIT_ERR_NO_MEMORY, receive_add(&receive, DEVICES_MAX, gpu[0], GPU_SLOT, GPU_SLOTS, NULL));
    ck_assert_uint_eq(HOST_SLOTS + DEVICES_MAX * GPU_SLOTS, receive.slot_count);
    ck_assert_uint_eq(RECEIVE_ARENAS_MAX, receive.arena_count);
}

TEST(an_arena_without_slots_is_refused)
{
    ck_assert_int_ne(STRAIT_OK, receive_add(&receive, 0, gpu[0], GPU_SLOT, 0, NULL));
    ck_assert_uint_eq(HOST_SLOTS, receive.slot_count);
    ck_assert_uint_eq(1, receive.arena_count);
    receive_fini(&receive);
    ck_assert_int_ne(STRAIT_OK, receive_init(&receive, HOST_SLOT, 0, TARGET));
    ck_assert_uint_eq(0, receive.arena_count);
}

/* ---- Taking ------------------------------------------------------------------------------------------------------ */

/* A slot that was taken holds nothing of who had it before, and belongs to the arena that was asked for. */
TEST(slots_are_taken_from_the_arena_that_is_asked)
{
    struct rng rng = rng_init(1);
    bool mine[HOST_SLOTS + 2 * GPU_SLOTS] = {false};
    struct sink *holder = (struct sink *)(uintptr_t)16; /* never looked at */
    add(3);
    add(4);
    for (int i = 0; i < 20000; i++) {
        struct receive_arena *arena = receive.arenas[rng_below(&rng, 3)];
        uint32_t slot = rng_below(&rng, receive.slot_count);
        if (mine[slot]) {
            receive_give(&receive, slot);
            ck_assert_ptr_null(receive.slots[slot].sink);
            mine[slot] = false;
            continue;
        }
        slot = receive_take(&receive, arena);
        if (slot == ARENA_NONE) {
            ck_assert_uint_eq(arena->slots.slot_count, arena->slots.used);
            continue;
        }
        ck_assert_uint_ge(slot, arena->first);
        ck_assert_uint_lt(slot - arena->first, arena->slots.slot_count);
        ck_assert(!mine[slot]);
        ck_assert_ptr_eq(arena, receive_arena_of(&receive, slot));
        const struct slot *taken = &receive.slots[slot];
        ck_assert(taken->sink == NULL && taken->grant == 0 && taken->size == 0);
        receive.slots[slot] = (struct slot){.sink = holder, .grant = 9, .size = 99, .arena = arena->index};
        mine[slot] = true;
    }
}

TEST(slots_that_are_held_stay_held_when_an_arena_is_added)
{
    uint32_t held = receive_take(&receive, receive.arenas[0]);
    struct sink *holder = (struct sink *)(uintptr_t)16;
    receive.slots[held] = (struct slot){.sink = holder, .grant = 9, .size = 99};
    for (int32_t device = 0; device < 8; device++)
        add(device);
    ck_assert_ptr_eq(holder, receive.slots[held].sink);
    ck_assert_uint_eq(9, receive.slots[held].grant);
    ck_assert_uint_eq(99, receive.slots[held].size);
    ck_assert_uint_eq(1, receive.arenas[0]->slots.used);
    receive_give(&receive, held);
    ck_assert_uint_eq(0, receive.arenas[0]->slots.used);
}

/* ---- What chunks are cut to -------------------------------------------------------------------------------------- */

enum { MIB = 1 << 20, GPU_CHUNKS = 8 };

static const uint64_t leg_bytes[] = {0, 1, 4096, MIB, 15 * MIB, 16 * MIB, 17 * MIB, 100 * MIB, 1ull << 32, 1ull << 50};
static const uint64_t chunk_bytes[] = {4096, 256 << 10, 2 * MIB, 16 * MIB, 64 * MIB};

TEST_LOOP(a_target_is_within_its_slot_and_grows_with_the_leg, COUNT(chunk_bytes))
{
    uint32_t slot = gpu_slot_bytes(chunk_bytes[_i]);
    uint64_t before = 0;
    for (int i = 0; i < COUNT(leg_bytes); i++) {
        uint64_t target = gpu_chunk_target(slot, leg_bytes[i]);
        ck_assert_uint_le(target, slot);
        ck_assert_uint_ge(target, before);
        ck_assert_uint_ge(target, slot < 2 * MIB ? slot : 2 * MIB);
        before = target;
    }
    ck_assert_uint_eq(slot, before);
}

/* Pages as models have them. */
static uint64_t bound_of(uint64_t page_bytes, uint64_t pages)
{
    static uint8_t byte;
    const struct strait_region region = {.base = &byte, .rows = 1, .row_bytes = (uint32_t)page_bytes};
    return strait_encode_bound(
        &(struct strait_pages){.regions = &region, .region_count = 1, .id_count = (uint32_t)pages});
}

static const uint64_t page_bytes[] = {4096, 16 << 10, 64 << 10, 1 << 20};

TEST_LOOP(a_chunk_of_so_many_bytes_fits_its_slot, COUNT(page_bytes))
{
    uint64_t page = page_bytes[_i];
    for (int i = 1; i < COUNT(chunk_bytes); i++)
        if (chunk_bytes[i] >= page)
            ck_assert_uint_le(bound_of(page, chunk_bytes[i] / page), gpu_slot_bytes(chunk_bytes[i]));
    ck_assert_uint_eq(0, gpu_slot_bytes(chunk_bytes[0] + 1) % 4096);
}

/* Eight are as many as may be under way: an eighth of the leg's pages, and what is told about them, fit the target. */
TEST_LOOP(a_leg_is_eight_chunks_or_chunks_as_large_as_slots, COUNT(page_bytes))
{
    uint64_t page = page_bytes[_i];
    uint32_t slot = gpu_slot_bytes(64 * MIB);
    for (uint64_t leg = 16 * MIB; leg <= 512 * MIB; leg += 16 * MIB)
        ck_assert_uint_le(bound_of(page, leg / GPU_CHUNKS / page), gpu_chunk_target(slot, leg));
    ck_assert_uint_eq(slot, gpu_chunk_target(slot, 513 * MIB));
}

TEST(a_leg_is_so_many_chunks)
{
    static const struct {
        uint64_t leg, chunks;
    } expected[] = {{1, 1},         {2 * MIB, 1},    {4 * MIB, 2},
                    {15 * MIB, 8},  {16 * MIB, 8},   {64 * MIB, 8},
                    {120 * MIB, 8}, {160 * MIB, 10}, {1ull << 40, (1ull << 40) / (16 * MIB) * 64 / 65 + 1}};
    const uint32_t slot = gpu_slot_bytes(16 * MIB);
    for (int i = 0; i < COUNT(expected); i++)
        ck_assert_uint_eq(expected[i].chunks, gpu_chunk_count(slot, expected[i].leg));
    ck_assert_uint_eq(0, gpu_chunk_count(slot, 0));
}

/* The last 48 MiB of 256 in chunks of 16: the last 16 become 8, 4 and 4. What is cut to less than 8 stays as it is, and
 * so does a leg that has no more chunks than grants. */
TEST(the_last_chunks_are_smaller)
{
    static const uint64_t expected[] = {16, 16, 8, 4, 4};
    uint64_t left = 48 * MIB;
    for (int i = 0; i < COUNT(expected); i++) {
        uint64_t target = gpu_tail_target(16 * MIB, 256 * MIB, left);
        ck_assert_uint_eq(expected[i] * MIB, target);
        left -= target;
    }
    ck_assert_uint_eq(0, left);
    ck_assert_uint_eq(2 * MIB, gpu_tail_target(2 * MIB, 256 * MIB, MIB));
    ck_assert_uint_eq(4 * MIB, gpu_tail_target(8 * MIB, 256 * MIB, 1));
    ck_assert_uint_eq(8 * MIB, gpu_tail_target(8 * MIB, 64 * MIB, 1));
}

int main(void)
{
    return run_tests("receive", setup, teardown);
}
