/* Arenas: what they map, and that a slot is never taken twice. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/memory/arena.h"
#include "tests/run_suite.h"
#include "tests/support.h"

enum { SLOT = 64 * 1024, SLOTS = 37 };

static struct arena arena;

static void teardown(void)
{
    arena_fini(&arena);
}

TEST_LOOP(slots_are_apart_zeroed_and_writable_to_the_last_byte, 2)
{
    ck_assert_int_eq(arena_init(&arena, _i == 1, SLOT, SLOTS), STRAIT_OK);
    ck_assert_uint_eq(arena.size, (size_t)SLOT * SLOTS);
    for (uint32_t i = 0; i < SLOTS; i++) {
        uint32_t slot = arena_take(&arena);
        ck_assert_uint_lt(slot, SLOTS);
        ck_assert(is_filled(arena_slot(&arena, slot), SLOT, 0)); /* nobody else's either */
        memset(arena_slot(&arena, slot), (int)slot + 1, SLOT);
    }
    ck_assert_uint_eq(arena_take(&arena), ARENA_NONE);
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        ck_assert(is_filled(arena_slot(&arena, slot), SLOT, (uint8_t)(slot + 1)));
}

TEST(the_slot_given_last_is_taken_first)
{
    ck_assert_int_eq(arena_init(&arena, false, SLOT, SLOTS), STRAIT_OK);
    for (uint32_t i = 0; i < 9; i++)
        ck_assert_uint_eq(arena_take(&arena), i);
    arena_give(&arena, 3);
    arena_give(&arena, 7);
    ck_assert_uint_eq(arena.used, 7);
    ck_assert_uint_eq(arena_take(&arena), 7);
    ck_assert_uint_eq(arena_take(&arena), 3);
    ck_assert_uint_eq(arena_take(&arena), 9);
}

TEST(a_slot_is_never_taken_twice_whatever_is_given)
{
    struct rng rng = rng_init(1);
    bool mine[SLOTS] = {false};
    uint32_t held = 0;
    ck_assert_int_eq(arena_init(&arena, false, 4096, SLOTS), STRAIT_OK);
    for (int i = 0; i < 20000; i++) {
        if (rng_below(&rng, 2) == 0) {
            uint32_t slot = arena_take(&arena);
            ck_assert_int_eq(slot == ARENA_NONE, held == SLOTS);
            if (slot != ARENA_NONE) {
                ck_assert(!mine[slot]);
                mine[slot] = true;
                held++;
            }
        } else {
            uint32_t slot = rng_below(&rng, SLOTS + 2); /* often free already, sometimes none */
            arena_give(&arena, slot);
            held -= slot < SLOTS && mine[slot];
            if (slot < SLOTS)
                mine[slot] = false;
        }
        ck_assert_uint_eq(arena.used, held);
    }
}

TEST(a_shared_arena_is_one_memory_for_all_who_map_it_and_cannot_be_resized)
{
    ck_assert_int_eq(arena_init(&arena, true, SLOT, SLOTS), STRAIT_OK);
    uint8_t *other = mmap(NULL, arena.size, PROT_READ | PROT_WRITE, MAP_SHARED, arena.fd, 0);
    ck_assert_ptr_ne(other, MAP_FAILED);
    other[5 * SLOT + 17] = 42;
    ck_assert_uint_eq(arena_slot(&arena, 5)[17], 42);
    ck_assert_int_eq(ftruncate(arena.fd, 4096), -1);
    ck_assert_int_eq(errno, EPERM);
    ck_assert_int_eq(ftruncate(arena.fd, (off_t)arena.size * 2), -1);
    ck_assert_int_eq(fcntl(arena.fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), -1); /* nor sealed further by a peer */
    ck_assert_int_eq(fcntl(arena.fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    munmap(other, arena.size);
}

TEST_LOOP(memory_is_there_when_the_arena_is, 2)
{
    unsigned char there[SLOTS * SLOT / 4096];
    ck_assert_int_eq(arena_init(&arena, _i == 1, SLOT, SLOTS), STRAIT_OK);
    ck_assert_int_eq(mincore(arena.base, arena.size, there), 0);
    for (size_t i = 0; i < sizeof(there); i++)
        ck_assert_uint_eq(there[i] & 1, 1);
}

TEST_LOOP(sizes_that_cannot_be_are_refused, 12)
{
    static const uint32_t sizes[][2] = {{0, 4}, {4096, 0}, {4095, 4}, {4097, 4}, {2048, 4}, {4096, UINT32_MAX}};
    ck_assert_int_eq(arena_init(&arena, _i % 2 == 1, sizes[_i / 2][0], sizes[_i / 2][1]), STRAIT_ERR_INVALID);
    arena_fini(&arena);
    ck_assert_int_eq(fcntl(0, F_GETFD) < 0 ? errno : 0, 0); /* descriptor 0 is not an arena's */
}

TEST_LOOP(more_than_there_is_room_for_is_no_memory_and_leaves_nothing_open, 2)
{
    int before = dup(0), after;
    close(before);
    ck_assert_int_eq(arena_init(&arena, _i == 1, 1u << 31, 1u << 20), STRAIT_ERR_NO_MEMORY); /* 2^51 bytes */
    ck_assert_ptr_null(arena.base);
    after = dup(0);
    close(after);
    ck_assert_int_eq(before, after);
}

TEST(a_zeroed_arena_can_be_finished_and_so_can_one_twice)
{
    struct arena zeroed = {0};
    arena_fini(&zeroed);
    ck_assert_int_ge(fcntl(0, F_GETFD), 0);
    ck_assert_int_eq(arena_init(&arena, true, 4096, 1), STRAIT_OK);
    int fd = arena.fd;
    arena_fini(&arena);
    ck_assert_int_eq(fcntl(fd, F_GETFD), -1);
    arena_fini(&arena);
    ck_assert_ptr_null(arena.base);
}

/* ---- Faulting in ------------------------------------------------------------------------------------------------ */

enum { TOUCHED_PAGES = 64, ROUNDS = 3000 };

static void *count_up(void *arg)
{
    uint64_t *words = arg;
    for (int i = 0; i < ROUNDS; i++)
        for (int p = 0; p < TOUCHED_PAGES; p++)
            __atomic_fetch_add(&words[p * 512], 1, __ATOMIC_RELAXED);
    return NULL;
}

TEST(touching_memory_loses_nothing_that_others_write_meanwhile)
{
    pthread_t thread;
    uint64_t *words = map_huge(TOUCHED_PAGES * 4096, -1);
    ck_assert_ptr_nonnull(words);
    ck_assert_int_eq(pthread_create(&thread, NULL, count_up, words), 0);
    for (int i = 0; i < ROUNDS; i++)
        map_touch(words, TOUCHED_PAGES * 4096);
    pthread_join(thread, NULL);
    for (int p = 0; p < TOUCHED_PAGES; p++)
        ck_assert_uint_eq(words[p * 512], ROUNDS);
    map_drop(words, TOUCHED_PAGES * 4096);
}

TEST(touching_reaches_every_page_and_no_other)
{
    const size_t page = 4096;
    uint8_t *base = map_huge(16 * page, -1);
    unsigned char there[16];
    ck_assert_int_eq(madvise(base, 16 * page, MADV_NOHUGEPAGE), 0);
    map_touch(base + 3 * page + 100, 5 * page); /* pages 3 to 8 */
    ck_assert_int_eq(mincore(base, 16 * page, there), 0);
    for (size_t i = 0; i < 16; i++)
        ck_assert_uint_eq(there[i] & 1, i >= 3 && i <= 8);
    map_drop(base, 16 * page);
}

TEST(where_nothing_is_mapped_populating_says_so)
{
    uint8_t *base = map_huge(4 * 4096, -1);
    ck_assert_int_eq(map_populate(base + 1, 4 * 4096 - 1), 0);
    munmap(base + 4096, 4096);
    ck_assert_int_eq(map_populate(base, 4 * 4096), ENOMEM);
    ck_assert_int_eq(mprotect(base + 8192, 4096, PROT_READ), 0);
    ck_assert_int_eq(map_populate(base + 8192, 4096), EACCES);
    map_drop(base, 4 * 4096);
}

int main(void)
{
    return run_tests("arena", NULL, teardown);
}
