/* The shm transport with rings, against a peer that is played by hand at the other end of the socket and of the rings:
 * records, room, who is woken, the end, and a peer that writes there what it likes. */
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "internal/ring.h"
#include "tests/transport/sides.h"
#include "transport/shm.h"
#include "transport/shm_hello.h"

#define PAGE    4096u
#define RECORDS (16u * 1024) /* bytes of the ring of records */

static const uint32_t sizes[] = {RECORDS, 64u * 1024};

static struct side side;
static int peer;
static struct ring_file file;
static struct ring in, out; /* the peer's */

static void send_hello(int rings)
{
    uint8_t hello[SHM_HELLO_BYTES];
    const int fds[SHM_HELLO_FDS] = {sealed_memory(PAGE, F_SEAL_SHRINK | F_SEAL_GROW, NULL), rings};
    shm_hello_write(hello, PAGE);
    require(shm_hello_send(peer, hello, sizeof(hello), fds) == sizeof(hello));
    close(fds[0]);
}

/* Returns the second descriptor of the hello, or -1. */
static int receive_hello(void)
{
    uint8_t hello[SHM_HELLO_BYTES];
    int fds[SHM_HELLO_FDS] = {-1, -1};
    require(shm_hello_receive(peer, hello, sizeof(hello), fds) == sizeof(hello));
    close(fds[0]);
    return fds[1];
}

static void open_side(enum link_side which, bool takes)
{
    static const char rings = SHM_TAKES_RINGS;
    peer = side_open_by_hand(&side, which, &rings, takes);
}

static void take_rings(int fd, uint32_t which)
{
    file = (struct ring_file){.side = which, .pairs = 2, .sizes = sizes};
    require(fd >= 0 && ring_file_map(&file, fd));
    close(fd);
    in = ring_file_ring(&file, 0, false);
    out = ring_file_ring(&file, 0, true);
}

/* The side is the accepted one, and both have rings. */
static void connect_by_hand(void)
{
    open_side(LINK_ACCEPTED, true);
    take_rings(receive_hello(), 1);
    send_hello(-1);
    WAIT_UNTIL(&side, 1, side.connected);
}

static void close_side(void)
{
    const bool open = side.transport != NULL;
    side_close_by_hand(&side, peer);
    if (open)
        ring_file_unmap(&file);
}

/* A record with the header that the sides agree on; returns its length. */
static size_t make_record(uint8_t *dst, uint64_t sequence, uint64_t slot)
{
    memcpy(dst, "CHNK", 4);
    store_le32(dst + 4, 24);
    store_le64(dst + 8, 0);
    store_le64(dst + 16, sequence);
    store_le64(dst + 24, slot);
    store_le64(dst + 32, 0);
    return 40;
}

static bool was_woken(void)
{
    char byte;
    return recv(peer, &byte, 1, MSG_DONTWAIT) == 1;
}

static void send_chunk(unsigned slot)
{
    static const uint8_t header[24];
    side.sending[slot] = true;
    ck_assert_int_eq(STRAIT_OK, link_send(side.link, header, sizeof(header), NULL, 0, NULL, slot));
    while (transport_progress(side.transport))
        ;
}

/* ---- Hellos ------------------------------------------------------------------------------------------------------ */

TEST(rings_are_for_those_who_take_them)
{
    struct ring a, b;
    open_side(LINK_ACCEPTED, false);
    ck_assert_int_eq(-1, receive_hello());
    send_hello(-1);
    WAIT_UNTIL(&side, 1, side.connected);
    ck_assert(!link_rings(side.link, &a, &b));
    ck_assert(!transport_sleep(side.transport, true));
    close_side();
    connect_by_hand();
    ck_assert(link_rings(side.link, &a, &b));
    ck_assert_uint_eq(sizes[1], a.size);
}

static const struct offer {
    int seals;
    size_t size;
    bool good;
} offers[] = {
    {F_SEAL_SHRINK | F_SEAL_GROW, 4096 + 2 * (RECORDS + 64 * 1024), true},
    {F_SEAL_SHRINK | F_SEAL_GROW, 4096 + 2 * (RECORDS + 64 * 1024) - 1, false},
    {F_SEAL_GROW, 4096 + 2 * (RECORDS + 64 * 1024), false},
};

TEST_LOOP(a_dialler_takes_only_rings_that_can_be_used, COUNT(offers))
{
    uint8_t record[40];
    open_side(LINK_DIALLED, false);
    int before = open_descriptors(), fd = sealed_memory(offers[_i].size, offers[_i].seals, NULL);
    send_hello(fd);
    WAIT_UNTIL(&side, 1, side.connected || side.broken);
    ck_assert_uint_eq(offers[_i].good, side.connected);
    ck_assert_int_eq(before + 1, open_descriptors());
    if (!side.connected) {
        close(fd);
        return;
    }
    take_rings(fd, 0);
    require(ring_put(&out, record, make_record(record, 0, 0)) == sizeof(record));
    ck_assert(transport_look(side.transport));
    ck_assert_uint_eq(1, side.arrived);
}

/* ---- Records ----------------------------------------------------------------------------------------------------- */

TEST(records_come_in_any_pieces)
{
    static uint8_t stream[40 * 2000];
    size_t size = 0, at = 0;
    connect_by_hand();
    for (uint64_t i = 0; i < 2000; i++)
        size += make_record(stream + size, i, i % SLOTS);
    for (size_t piece = 1; at < size; piece = piece % 9973 + 13) {
        at += ring_put(&out, stream + at, piece < size - at ? piece : size - at);
        (void)transport_look(side.transport);
    }
    (void)transport_look(side.transport);
    ck_assert_uint_eq(2000, side.arrived);
    ck_assert_uint_eq(1999, side.last_sequence);
    ck_assert_uint_eq(0, side.broken);
    ck_assert(!transport_look(side.transport));
}

TEST(a_sender_waits_for_room)
{
    static uint8_t got[RECORDS];
    const uint32_t record = 40, fit = RECORDS / record;
    connect_by_hand();
    for (uint32_t i = 0; i < fit + 3; i++)
        send_chunk(i < fit ? 0 : i - fit);
    ck_assert_uint_eq(fit, side.sent);
    ck_assert(!transport_sleep(side.transport, true));
    struct pollfd idle = {.fd = transport_fd(side.transport), .events = POLLIN};
    ck_assert_int_eq(0, poll(&idle, 1, 10)); /* the socket has room, but that is no reason to wake up */
    ck_assert_uint_eq(fit * record, ring_take(&in, got, sizeof(got)));
    ck_assert(ring_is_waited_for(&in) && ring_must_wake(ring_file_sleeps(&file, true)));
    ck_assert(transport_look(side.transport));
    while (transport_progress(side.transport))
        ;
    ck_assert_uint_eq(fit + 3, side.sent);
    ck_assert_uint_eq(0, side.sent_badly);
    ck_assert(!ring_is_waited_for(&in));
}

TEST(only_a_peer_that_sleeps_is_woken)
{
    uint8_t record[40];
    connect_by_hand();
    for (uint32_t i = 0; i < 4; i++) {
        ring_sleep(ring_file_sleeps(&file, false), i >= 2);
        send_chunk(0);
        ck_assert_uint_eq(i >= 2, was_woken());
        ck_assert(!was_woken());
    }
    ck_assert(!transport_sleep(side.transport, true));
    require(ring_put(&out, record, make_record(record, 0, 0)) == sizeof(record));
    ck_assert(ring_must_wake(ring_file_sleeps(&file, true)));
    ck_assert(!ring_must_wake(ring_file_sleeps(&file, true)));
    ck_assert(transport_sleep(side.transport, true)); /* it came before the loop could sleep */
    ck_assert(!transport_sleep(side.transport, false));
    ck_assert(!ring_must_wake(ring_file_sleeps(&file, true)));
    ck_assert(transport_look(side.transport));
    ck_assert(!transport_sleep(side.transport, true));
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

TEST_LOOP(what_was_put_in_before_the_end_arrives, 2)
{
    uint8_t record[40];
    connect_by_hand();
    for (uint64_t i = 0; i < 300; i++)
        require(ring_put(&out, record, make_record(record, i, i % SLOTS)) == sizeof(record));
    require(ring_put(&out, record, 17) == 17);
    if (_i == 1)
        require(send(peer, "CHNK good bye.\0\0", 16, 0) == 16);
    close(peer);
    WAIT_UNTIL(&side, 1, side.broken);
    ck_assert_uint_eq(300, side.arrived);
    peer = -1;
}

TEST(a_farewell_follows_bytes_that_woke_the_peer)
{
    uint8_t bytes[64] = {0};
    connect_by_hand();
    for (uint32_t i = 0; i < 3; i++) {
        ring_sleep(ring_file_sleeps(&file, false), true);
        send_chunk(0);
    }
    link_close(side.link);
    WAIT_UNTIL(&side, 1, recv(peer, bytes, sizeof(bytes), MSG_DONTWAIT | MSG_PEEK) == 3 + 16);
    ck_assert_mem_eq(bytes + 3, "CHNK good bye.\0", 16);
}

/* ---- A hostile peer ---------------------------------------------------------------------------------------------- */

static const struct lie {
    bool put;
    uint32_t by;
} lies[] = {
    {true, RECORDS + 1}, {true, UINT32_MAX}, {true, 1u << 31},
    {false, 1},          {false, 1u << 31},  {false, UINT32_MAX - RECORDS},
};

TEST_LOOP(an_index_that_cannot_be_breaks_the_link, COUNT(lies))
{
    connect_by_hand();
    if (lies[_i].put)
        out.head->put += lies[_i].by;
    else
        in.head->taken += lies[_i].by;
    if (!lies[_i].put)
        send_chunk(0);
    (void)transport_look(side.transport);
    WAIT_UNTIL(&side, 1, side.broken);
    ck_assert_uint_eq(0, side.arriving);
    ck_assert(!transport_look(side.transport));
    ck_assert(!transport_sleep(side.transport, true));
}

TEST(a_malformed_record_breaks_the_link)
{
    uint8_t record[40];
    connect_by_hand();
    make_record(record, 0, 0);
    store_le32(record + 4, TRANSPORT_HEADER_MAX + 1);
    require(ring_put(&out, record, sizeof(record)) == sizeof(record));
    ck_assert(transport_look(side.transport));
    WAIT_UNTIL(&side, 1, side.broken);
    ck_assert_uint_eq(0, side.arriving);
}

/* Whatever is in the shared memory: no access out of bounds, and no call that does not return. */
TEST(any_change_of_the_shared_memory_does_no_harm)
{
    struct rng rng = rng_init(1);
    uint8_t record[40];
    connect_by_hand();
    for (uint32_t round = 0; round < 3000; round++) {
        side.unchecked = side.refuse = true;
        for (uint32_t i = 0; i < 20; i++)
            file.base[rng_below(&rng, (uint32_t)(i < 5 ? 2048 : ring_file_size(&file)))] = (uint8_t)rng_next(&rng);
        out.head->put = out.own; /* so that it can go on */
        if (rng_below(&rng, 4) != 0)
            (void)ring_put(&out, record, make_record(record, round, round % SLOTS));
        if (!side.broken && !side.sending[0])
            send_chunk(0);
        (void)transport_sleep(side.transport, true);
        (void)transport_look(side.transport);
        sides_step(&side, 1, 0);
        while (was_woken())
            ;
        if (side.broken) {
            close_side();
            connect_by_hand();
        }
    }
}

int main(void)
{
    return run_tests("shm_rings", NULL, close_side);
}
