/* uint8 that holds BF16, as frameworks move buffers of several types: it is compressed where it shrinks, at any
 * address, and what is anything else arrives too. */
#include <string.h>

#include "tests/coll_engine/harness.h"

enum { COUNT_OF = 1 << 17, LINK_NS = 10000, SLOW_FS = 1600000 /* 5 Gbit/s */ };

/* One operation of bytes: what it sends and receives lie `shift` bytes behind an even address. */
struct bytes {
    enum coll_operation what;
    size_t size; /* of one part */
    uint8_t *out, *in;
};

static size_t parts_of(const struct rank *rank, const struct bytes *bytes, bool out)
{
    const bool one = out ? !operation_scatters(bytes->what) : bytes->what == COLL_SEND;
    return one ? 1 : (size_t)rank->ranks;
}

static struct bytes bytes_new(const struct rank *rank, enum coll_operation what, size_t size, size_t shift)
{
    struct bytes made = {.what = what, .size = size};
    made.out = values_at(rank, COLL_UINT8, size * parts_of(rank, &made, true), shift);
    made.in = values_at(rank, COLL_UINT8, size * parts_of(rank, &made, false), shift);
    return made;
}

static void bytes_fill(const struct rank *rank, const struct bytes *bytes, enum values kind, unsigned turn)
{
    const size_t parts = parts_of(rank, bytes, true), count = bytes->size / 2;
    uint16_t *values = malloc(parts * count * 2);
    require(values != NULL);
    parts_fill(values, COLL_BF16, count, (int)parts, kind, seed_of(turn, rank->rank, 0), 1);
    for (size_t part = 0; part < parts; part++) {
        memcpy(bytes->out + part * bytes->size, values + part * count, count * 2);
        if (bytes->size % 2 != 0)
            bytes->out[(part + 1) * bytes->size - 1] = 0x6b;
    }
    free(values);
    memset(bytes->in, 0x5b, bytes->size * parts_of(rank, bytes, false));
}

static coll_result bytes_post(const struct rank *rank, const struct bytes *bytes)
{
    switch (bytes->what) {
    case COLL_ALL_GATHER:
        return ncclAllGather(bytes->out, bytes->in, bytes->size, COLL_UINT8, rank->comm, rank->stream);
    case COLL_ALL_TO_ALL:
        return ncclAlltoAll(bytes->out, bytes->in, bytes->size, COLL_UINT8, rank->comm, rank->stream);
    default:
        return ring_post(rank, bytes->out, bytes->in, COLL_UINT8, bytes->size);
    }
}

static void bytes_check(const struct rank *rank, const struct bytes *bytes, enum values kind, unsigned turn)
{
    const size_t parts = parts_of(rank, bytes, false), count = bytes->size / 2;
    uint16_t *values = malloc(count * 2);
    require(values != NULL);
    fake_stream_wait(rank->stream);
    for (size_t part = 0; part < parts; part++) {
        const int from = bytes->what == COLL_SEND ? rank_before(rank) : (int)part;
        const int to = operation_scatters(bytes->what) ? rank->rank : 0;
        memcpy(values, bytes->in + part * bytes->size, count * 2);
        require(values_are(values, COLL_BF16, count, kind, seed_of(turn, from, to)));
        require(bytes->size % 2 == 0 || bytes->in[(part + 1) * bytes->size - 1] == 0x6b);
    }
    free(values);
}

/* ---- Whatever they hold, wherever they lie ----------------------------------------------------------------------- */

/* Of each operation; some ranks have odd addresses, and others have not. What does not fit is moved again. */
static void move_all(struct rank *rank)
{
    static const enum coll_operation operations[] = {COLL_ALL_GATHER, COLL_ALL_TO_ALL, COLL_SEND};
    static const size_t sizes[] = {40002, 2 * COUNT_OF, 2 * COUNT_OF + 6, 40001};
    const int scene = *(const int *)rank->argument;
    unsigned turn = 0;
    for (unsigned i = 0; i < COUNT(operations) * COUNT(sizes); i++)
        for (size_t shift = 0; shift < 2; shift++, turn++) {
            const enum values kind = (turn + (unsigned)scene) % 3 == 2 ? VALUES_NOISE : VALUES_NORMAL;
            const struct bytes bytes = bytes_new(rank, operations[i % 3], sizes[i / 3], (size_t)rank->rank % 2 * shift);
            bytes_fill(rank, &bytes, kind, turn);
            require_ok(bytes_post(rank, &bytes));
            bytes_check(rank, &bytes, kind, turn);
        }
    require(told_of(rank->comm, "all_gather", "uint8").compressed > 0);
    require(told_of(rank->comm, "all_to_all", "uint8").compressed > 0);
    require(told_of(rank->comm, "send", "uint8").compressed > 0);
}

START_TEST(bytes_arrive_whatever_they_hold)
{
    fake_gpu.jitter_us = 100;
    setenv("STRAIT_COLL_BYTES", "bf16", 1);
    ranks_run(2 + _i % 2, move_all, &_i);
}
END_TEST

/* With ends that stay uncompressed, as coding overlaps with transfer. */
static void move_overlapped(struct rank *rank)
{
    enum { TURNS = OVERLAP_AFTER + 6 };
    const struct bytes bytes = bytes_new(rank, COLL_ALL_GATHER, 2 * COUNT_OF, rank->rank == 1);
    unsigned long long wire[TURNS + 1] = {0};
    for (unsigned turn = 0; turn < TURNS; turn++) {
        bytes_fill(rank, &bytes, VALUES_NORMAL, turn);
        require_ok(bytes_post(rank, &bytes));
        bytes_check(rank, &bytes, VALUES_NORMAL, turn);
        ranks_meet();
        wire[turn + 1] = told_of(rank->comm, "all_gather", "uint8").wire;
    }
    require(wire[TURNS] - wire[TURNS - 1] > wire[1] && wire[TURNS] - wire[TURNS - 1] < 2 * COUNT_OF);
}

START_TEST(bytes_at_odd_addresses_overlap_too)
{
    links_begin(LINK_NS, SLOW_FS);
    setenv("STRAIT_COLL_BYTES", "bf16", 1);
    ranks_run(2, move_overlapped, NULL);
}
END_TEST

/* ---- What `auto` finds out --------------------------------------------------------------------------------------- */

/* On one host and between two. */
static void set_link(int scene)
{
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("STRAIT_TEST_HOSTS", scene % 2 == 0 ? "2" : "1", 1);
    links_begin(LINK_NS, SLOW_FS);
    fake_gpu.ring_fs = 357000;
}

static _Atomic uint64_t taken_before;

static struct told gather_turns(struct rank *rank, enum values kind, unsigned turns, size_t size)
{
    const struct bytes bytes = bytes_new(rank, COLL_ALL_GATHER, size, 0);
    bytes_fill(rank, &bytes, kind, 0);
    ranks_meet();
    taken_before = fake_gpu.taken;
    ranks_meet();
    for (unsigned turn = 0; turn < turns; turn++) {
        memset(bytes.in, 0x5b, size * (size_t)rank->ranks);
        require_ok(bytes_post(rank, &bytes));
        bytes_check(rank, &bytes, kind, 0);
    }
    return told_of(rank->comm, "all_gather", "uint8");
}

/* Where coding overlaps with transfer, ends stay uncompressed. */
static void gather_bf16(struct rank *rank)
{
    const struct told told = gather_turns(rank, VALUES_NORMAL, 100, 2 * COUNT_OF);
    require(told.compressed > 60 && told.wire < 85 * told.compressed * 2 * COUNT_OF / 100);
}

START_TEST(bytes_that_hold_bf16_are_found)
{
    set_link(_i);
    ranks_run(2, gather_bf16, NULL);
}
END_TEST

/* A few probes are all that it costs. */
static void gather_noise(struct rank *rank)
{
    const struct told told = gather_turns(rank, VALUES_NOISE, 400, 2 * COUNT_OF);
    require(told.compressed > 0 && told.compressed <= 12 && fake_gpu.taken == taken_before);
}

START_TEST(bytes_that_hold_anything_else_are_never_moved_twice)
{
    set_link(_i);
    ranks_run(2, gather_noise, NULL);
}
END_TEST

static void require_raw(struct rank *rank, size_t size, const char *reason)
{
    const struct told told = gather_turns(rank, VALUES_NORMAL, 6, size);
    require(told.compressed == 0 && strcmp(told.reason, reason) == 0);
}

static void gather_odd(struct rank *rank)
{
    require_raw(rank, 2 * COUNT_OF + 1, "raw: an odd number of bytes");
}

static void gather_told(struct rank *rank)
{
    require_raw(rank, 2 * COUNT_OF, "raw: bytes are to go raw");
}

/* The two sides of a send may give other types than each other. */
static void send_bytes(struct rank *rank)
{
    const struct bytes bytes = bytes_new(rank, COLL_SEND, 2 * COUNT_OF, 0);
    bytes_fill(rank, &bytes, VALUES_NORMAL, 0);
    require_ok(bytes_post(rank, &bytes));
    bytes_check(rank, &bytes, VALUES_NORMAL, 0);
    const struct told told = told_of(rank->comm, "send", "uint8");
    require(told.compressed == 0 && strcmp(told.reason, "raw: sends of bytes are to go raw") == 0);
}

START_TEST(sends_of_bytes_are_raw_unless_told)
{
    set_link(_i);
    ranks_run(2, send_bytes, NULL);
}
END_TEST

START_TEST(odd_sizes_are_raw)
{
    set_link(_i);
    ranks_run(2, gather_odd, NULL);
}
END_TEST

START_TEST(bytes_can_be_left_raw)
{
    set_link(_i);
    setenv("STRAIT_COLL_BYTES", "raw", 1);
    ranks_run(2, gather_told, NULL);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("bytes");
    add_loop(tests, bytes_arrive_whatever_they_hold, 0, 6);
    tcase_add_test(tests, bytes_at_odd_addresses_overlap_too);
    tcase_add_loop_test(tests, bytes_that_hold_bf16_are_found, 0, 2);
    tcase_add_loop_test(tests, bytes_that_hold_anything_else_are_never_moved_twice, 0, 2);
    tcase_add_loop_test(tests, sends_of_bytes_are_raw_unless_told, 0, 2);
    tcase_add_loop_test(tests, odd_sizes_are_raw, 0, 2);
    tcase_add_loop_test(tests, bytes_can_be_left_raw, 0, 2);
    return suite_run("bytes", tests);
}
