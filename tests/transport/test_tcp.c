/* What the tcp transport does with those that connect to it: who proves itself, who is sent away and when, and what
 * comes of bytes that are no fragments. The other end is a plain socket. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "tests/fragment.h"
#include "tests/transport/sides.h"
#include "transport/tcp.h"

enum {
    SECRET_BYTES = 16,
    PREAMBLE_BYTES = 32,
    ID_AT = 32, /* in an address */
    SECRET_AT = 40,
    ADDRESS_BYTES = TCP_ADDRESS_BYTES(1),
    SIDE_HEADER_BYTES = 24,
};

static struct side side; /* of every test */

/* The side's link, and the address that its peer would get. */
static void open_link(enum link_side which, uint8_t address[ADDRESS_BYTES])
{
    ck_assert_int_eq(STRAIT_OK, link_open(side.transport, -1, which, &side, &side.link));
    ck_assert_uint_eq(ADDRESS_BYTES, link_address(side.link, address, ADDRESS_BYTES));
}

static void set_up(void)
{
    side_init(&side, &transport_tcp, "connections=1");
}

static void tear_down(void)
{
    if (side.link != NULL) {
        link_close(side.link);
        WAIT_UNTIL(&side, 1, side.closed);
    }
    side_fini(&side);
}

/* With the secret of a peer that would dial: bytes 1, 2, 3, ... */
static void await_peer(uint8_t address[ADDRESS_BYTES])
{
    uint8_t peer[ADDRESS_BYTES];
    open_link(LINK_ACCEPTED, address);
    memcpy(peer, address, sizeof(peer));
    for (unsigned i = 0; i < SECRET_BYTES; i++)
        peer[SECRET_AT + i] = (uint8_t)(i + 1);
    ck_assert_int_eq(STRAIT_OK, link_connect(side.link, peer, sizeof(peer)));
}

static struct sockaddr_in place_of(const uint8_t address[ADDRESS_BYTES])
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(load_le16(address + 6)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static int dial(const uint8_t address[ADDRESS_BYTES])
{
    const struct sockaddr_in at = place_of(address);
    const int made = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_ge(made, 0);
    ck_assert_int_eq(0, connect(made, (const struct sockaddr *)&at, sizeof(at)));
    return made;
}

static void say(int made, const void *bytes, size_t size)
{
    ck_assert_int_eq((int)size, (int)send(made, bytes, size, MSG_NOSIGNAL));
}

static void preamble_for(uint8_t preamble[PREAMBLE_BYTES], const uint8_t address[ADDRESS_BYTES])
{
    memcpy(preamble, "STRDATA1", 8);
    memcpy(preamble + 8, address + ID_AT, 8);
    memcpy(preamble + 16, address + SECRET_AT, SECRET_BYTES);
}

/* A peer that has proved itself. */
static int peer_connect(void)
{
    uint8_t address[ADDRESS_BYTES], preamble[PREAMBLE_BYTES], answer[PREAMBLE_BYTES];
    await_peer(address);
    const int made = dial(address);
    preamble_for(preamble, address);
    say(made, preamble, PREAMBLE_BYTES);
    WAIT_UNTIL(&side, 1, side.connected);
    ck_assert_int_eq(PREAMBLE_BYTES, recv(made, answer, PREAMBLE_BYTES, MSG_WAITALL));
    ck_assert_mem_eq(answer, "STRANSW3", 8);
    for (unsigned i = 0; i < SECRET_BYTES; i++)
        ck_assert_uint_eq(i + 1, answer[16 + i]);
    return made;
}

static bool is_sent_away(int made)
{
    char byte;
    const ssize_t got = recv(made, &byte, 1, MSG_DONTWAIT);
    ck_assert_int_le(got, 0); /* nothing is said to strangers */
    return got == 0 || errno != EAGAIN;
}

/* ---- Who is let in ----------------------------------------------------------------------------------------------- */

/* By the byte of the preamble that is wrong, or how much of it comes before the end. */
static const struct {
    int wrong;
    unsigned size;
} strangers[] = {{0, PREAMBLE_BYTES},     {7, PREAMBLE_BYTES}, {8, PREAMBLE_BYTES}, {23, PREAMBLE_BYTES}, {-1, 0},
                 {-1, PREAMBLE_BYTES - 1}};

TEST_LOOP(strangers_are_sent_away_and_keep_nobody_waiting, COUNT(strangers))
{
    uint8_t address[ADDRESS_BYTES], preamble[PREAMBLE_BYTES], record[FRAGMENT_MAX];
    await_peer(address);
    preamble_for(preamble, address);
    if (strangers[_i].wrong >= 0)
        preamble[strangers[_i].wrong] ^= 1;
    const int made = dial(address);
    say(made, preamble, strangers[_i].size);
    if (strangers[_i].size == PREAMBLE_BYTES)
        say(made, record, chunk_write(record, 0, "header", 6, 0));
    else
        ck_assert_int_eq(0, shutdown(made, SHUT_WR));
    WAIT_UNTIL(&side, 1, is_sent_away(made));
    ck_assert_uint_eq(0, side.connected + side.arriving + side.broken);
    close(made);
    const int good = dial(address);
    preamble_for(preamble, address);
    say(good, preamble, PREAMBLE_BYTES);
    WAIT_UNTIL(&side, 1, side.connected);
    close(good);
}

TEST_LOOP(an_answer_that_is_wrong_breaks_the_link, PREAMBLE_BYTES + 1)
{
    static const uint8_t header[SIDE_HEADER_BYTES];
    uint8_t address[ADDRESS_BYTES], answer[PREAMBLE_BYTES], record[FRAGMENT_MAX];
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(at);
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(0, bind(listener, (const struct sockaddr *)&at, sizeof(at)));
    ck_assert_int_eq(0, listen(listener, 1));
    ck_assert_int_eq(0, getsockname(listener, (struct sockaddr *)&at, &size));
    open_link(LINK_DIALLED, address);
    memcpy(answer, "STRANSW3", 8);
    memcpy(answer + 8, address + ID_AT, 8);
    memcpy(answer + 16, address + SECRET_AT, SECRET_BYTES);
    if (_i < PREAMBLE_BYTES)
        answer[_i] ^= 1;
    store_le16(address + 6, ntohs(at.sin_port));
    ck_assert_int_eq(STRAIT_OK, link_connect(side.link, address, sizeof(address)));
    const int made = accept(listener, NULL, NULL);
    say(made, answer, PREAMBLE_BYTES);
    say(made, record, chunk_write(record, 0, header, sizeof(header), 0));
    WAIT_UNTIL(&side, 1, side.closed || side.arriving > 0);
    ck_assert_uint_eq(_i >= PREAMBLE_BYTES, side.connected);
    ck_assert_uint_eq(_i < PREAMBLE_BYTES, side.broken);
    close(made);
    close(listener);
}

TEST(a_peer_that_calls_before_it_is_expected_is_answered_later)
{
    uint8_t address[ADDRESS_BYTES], preamble[PREAMBLE_BYTES], byte;
    open_link(LINK_ACCEPTED, address);
    const int made = dial(address), second = dial(address);
    preamble_for(preamble, address);
    say(made, preamble, PREAMBLE_BYTES);
    say(second, preamble, PREAMBLE_BYTES / 2);
    for (int i = 0; i < 10; i++)
        sides_step(&side, 1, 10);
    ck_assert_int_eq(-1, recv(made, &byte, 1, MSG_DONTWAIT)); /* neither answered nor sent away */
    (void)send(second, preamble + PREAMBLE_BYTES / 2, PREAMBLE_BYTES / 2, MSG_NOSIGNAL);
    WAIT_UNTIL(&side, 1, recv(second, &byte, 1, MSG_DONTWAIT) == 0 || errno != EAGAIN);
    ck_assert_int_eq(STRAIT_OK, link_connect(side.link, address, sizeof(address)));
    WAIT_UNTIL(&side, 1, side.connected);
    close(made);
    close(second);
}

TEST(it_listens_while_a_peer_is_awaited)
{
    uint8_t address[ADDRESS_BYTES];
    const int peer = peer_connect();
    link_address(side.link, address, sizeof(address));
    const struct sockaddr_in at = place_of(address);
    const int made = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(-1, connect(made, (const struct sockaddr *)&at, sizeof(at)));
    ck_assert_int_eq(ECONNREFUSED, errno);
    close(made);
    close(peer);
}

/* ---- Several connections, and a listener of the owner's ---------------------------------------------------------- */

enum { CONNECTIONS = 3, LARGE_BYTES = TCP_ADDRESS_BYTES(CONNECTIONS) };

/* An end of a connection, as its owner hands it over; the other end in *made. */
static int accepted(int *made)
{
    int ends[2];
    ck_assert_int_eq(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends));
    *made = ends[1];
    return ends[0];
}

static void preamble_of(uint8_t preamble[PREAMBLE_BYTES], const uint8_t *address, unsigned connection)
{
    preamble_for(preamble, address);
    memcpy(preamble + 16, address + TCP_ADDRESS_BYTES(connection), SECRET_BYTES);
}

/* Each secret admits one connection, once, in any order; the link is up with the last one, and its chunks may come in
 * fragments by any of them. */
TEST(a_link_is_up_when_all_connections_have_proved_themselves)
{
    static const uint8_t header[SIDE_HEADER_BYTES];
    uint8_t address[LARGE_BYTES], preamble[PREAMBLE_BYTES], bytes[FRAGMENT_MAX + 100] = {0};
    int made[CONNECTIONS], again;
    tear_down();
    side_init(&side, &transport_tcp, "listen=none connections=3");
    side.unchecked = true;
    ck_assert_int_eq(STRAIT_OK, link_open(side.transport, -1, LINK_ACCEPTED, &side, &side.link));
    ck_assert_uint_eq(LARGE_BYTES, link_address(side.link, address, LARGE_BYTES));
    ck_assert_uint_eq(0, load_le16(address + 4)); /* it names no place */
    ck_assert_int_eq(STRAIT_OK, link_connect(side.link, address, LARGE_BYTES));
    for (unsigned i = 0; i < CONNECTIONS; i++) {
        const unsigned which = CONNECTIONS - 1 - i;
        preamble_of(preamble, address, which);
        ck_assert(tcp_is_preamble(preamble));
        const int fd = accepted(&made[which]);
        say(made[which], preamble, PREAMBLE_BYTES);
        ck_assert_uint_eq(0, side.connected);
        tcp_adopt(side.transport, fd);
        const int second = accepted(&again);
        say(again, preamble, PREAMBLE_BYTES);
        tcp_adopt(side.transport, second);
        for (int k = 0; k < 3; k++)
            sides_step(&side, 1, 1);
        ck_assert(is_sent_away(again));
        close(again);
    }
    WAIT_UNTIL(&side, 1, side.connected);
    for (unsigned i = 0; i < CONNECTIONS; i++) {
        const struct fragment fragment = {.number = 7,
                                          .header_size = SIDE_HEADER_BYTES,
                                          .chunk_size = 300,
                                          .offset = 100 * (CONNECTIONS - 1 - i),
                                          .size = 100};
        const size_t head = fragment_write(bytes, &fragment, header);
        memset(bytes + head, (int)i + 1, 100);
        say(made[i], bytes, head + 100);
        WAIT_UNTIL(&side, 1, side.arriving == 1 && side.arrived == (i == CONNECTIONS - 1));
    }
    for (unsigned i = 0; i < 300; i++)
        ck_assert_uint_eq(CONNECTIONS - i / 100, ((uint8_t *)side.arena.base)[i]);
    close(made[1]); /* the end of one ends the link */
    WAIT_UNTIL(&side, 1, side.closed);
    close(made[0]);
    close(made[2]);
}

/* An address without a place is for who was told one, and the other way round. */
TEST(where_connections_go_is_said_once)
{
    uint8_t address[ADDRESS_BYTES];
    const struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = 1};
    open_link(LINK_DIALLED, address);
    tcp_reach(side.link, (const struct sockaddr *)&at, sizeof(at));
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, link_connect(side.link, address, ADDRESS_BYTES));
    memset(address + 4, 0, 24);
    link_close(side.link);
    WAIT_UNTIL(&side, 1, side.closed);
    side.closed = 0;
    ck_assert_int_eq(STRAIT_OK, link_open(side.transport, -1, LINK_DIALLED, &side, &side.link));
    ck_assert_int_eq(STRAIT_ERR_INVALID, link_connect(side.link, address, ADDRESS_BYTES));
}

/* ---- Those that say nothing -------------------------------------------------------------------------------------- */

enum { PENDING_MAX = 128 };

TEST(beyond_the_limit_the_oldest_stranger_goes)
{
    int made[PENDING_MAX + 3];
    uint8_t address[ADDRESS_BYTES], preamble[PREAMBLE_BYTES];
    await_peer(address);
    for (int i = 0; i < COUNT(made); i++) {
        made[i] = dial(address);
        for (int k = 0; k < 3; k++)
            sides_step(&side, 1, 1);
    }
    WAIT_UNTIL(&side, 1, is_sent_away(made[2]));
    ck_assert(is_sent_away(made[0]) && is_sent_away(made[1]));
    for (int i = 3; i < COUNT(made); i++)
        ck_assert(!is_sent_away(made[i]));
    preamble_for(preamble, address);
    say(made[COUNT(made) - 1], preamble, PREAMBLE_BYTES);
    WAIT_UNTIL(&side, 1, side.connected);
    for (int i = 3; i < COUNT(made) - 1; i++)
        ck_assert(is_sent_away(made[i])); /* as nobody else is awaited */
    for (int i = 0; i < COUNT(made); i++)
        close(made[i]);
}

TEST(who_says_nothing_for_ten_seconds_is_sent_away)
{
    uint8_t address[ADDRESS_BYTES], preamble[PREAMBLE_BYTES];
    await_peer(address);
    const int made = dial(address);
    const uint64_t start = milliseconds();
    preamble_for(preamble, address);
    say(made, preamble, PREAMBLE_BYTES - 1);
    WAIT_UNTIL(&side, 1, is_sent_away(made));
    ck_assert_uint_ge(milliseconds() - start, 9900);
    ck_assert_uint_eq(0, side.connected + side.broken);
    close(made);
}

/* Without descriptors the transport sleeps, instead of being woken by the connection that it cannot accept. */
TEST(without_descriptors_it_rests)
{
    uint8_t address[ADDRESS_BYTES], preamble[PREAMBLE_BYTES];
    struct rlimit before, none;
    await_peer(address);
    const int made = dial(address);
    ck_assert_int_eq(0, getrlimit(RLIMIT_NOFILE, &before));
    none = (struct rlimit){.rlim_cur = 3, .rlim_max = before.rlim_max};
    ck_assert_int_eq(0, setrlimit(RLIMIT_NOFILE, &none));
    unsigned wakes = 0;
    for (uint64_t start = milliseconds(); milliseconds() - start < 300;) {
        struct pollfd ready = {.fd = transport_fd(side.transport), .events = POLLIN};
        while (transport_progress(side.transport))
            wakes++;
        none.rlim_cur = before.rlim_cur; /* poll refuses more descriptors than the limit */
        ck_assert_int_eq(0, setrlimit(RLIMIT_NOFILE, &before));
        (void)poll(&ready, 1, 50);
        none.rlim_cur = 3;
        ck_assert_int_eq(0, setrlimit(RLIMIT_NOFILE, &none));
    }
    ck_assert_int_eq(0, setrlimit(RLIMIT_NOFILE, &before));
    ck_assert_uint_le(wakes, 5);
    preamble_for(preamble, address);
    say(made, preamble, PREAMBLE_BYTES);
    WAIT_UNTIL(&side, 1, side.connected);
    close(made);
}

/* ---- Bytes that are no fragments --------------------------------------------------------------------------------- */

static const struct {
    struct fragment fragment;
    int wrong; /* byte of the magic; -1: none */
} malformed[] = {{{.header_size = SIDE_HEADER_BYTES}, 0},
                 {{.header_size = SIDE_HEADER_BYTES}, 3},
                 {{.header_size = SIDE_HEADER_BYTES, .zero = 1}, -1},
                 {{.header_size = TRANSPORT_HEADER_MAX + 1}, -1},
                 {{.header_size = UINT32_MAX}, -1},
                 {{.header_size = SIDE_HEADER_BYTES, .size = 1}, -1},
                 {{.header_size = SIDE_HEADER_BYTES, .chunk_size = 1}, -1},
                 {{.header_size = SIDE_HEADER_BYTES, .chunk_size = 9, .offset = 10}, -1},
                 {{.header_size = SIDE_HEADER_BYTES, .chunk_size = 9, .offset = UINT32_MAX, .size = 2}, -1},
                 {{.header_size = SIDE_HEADER_BYTES, .chunk_size = 9, .offset = 5, .size = 5}, -1}};

TEST_LOOP(malformed_fragments_break_the_link, COUNT(malformed))
{
    static const uint8_t header[SIDE_HEADER_BYTES];
    uint8_t bytes[256] = {0};
    const int made = peer_connect();
    fragment_write(bytes, &malformed[_i].fragment, header);
    if (malformed[_i].wrong >= 0)
        bytes[malformed[_i].wrong] ^= 0x20;
    say(made, bytes, sizeof(bytes));
    WAIT_UNTIL(&side, 1, side.closed);
    ck_assert_str_eq("the peer sent a malformed fragment", side.why);
    ck_assert_uint_eq(0, side.arriving);
    close(made);
}

/* A second fragment that its chunk has no room for, or of a chunk of another size: the chunk is never complete. */
static const struct fragment excess[] = {{.chunk_size = 100, .offset = 0, .size = 100},
                                         {.chunk_size = 100, .offset = 49, .size = 51},
                                         {.chunk_size = 101, .offset = 50, .size = 50}};

TEST_LOOP(more_than_a_chunk_has_breaks_the_link, COUNT(excess))
{
    static const uint8_t header[SIDE_HEADER_BYTES];
    struct fragment fragment = {.header_size = SIDE_HEADER_BYTES, .chunk_size = 100, .size = 50};
    uint8_t bytes[2 * FRAGMENT_MAX + 150] = {0};
    const int made = peer_connect();
    const size_t first = fragment_write(bytes, &fragment, header) + 50;
    fragment = excess[_i];
    fragment.header_size = SIDE_HEADER_BYTES;
    say(made, bytes, first + fragment_write(bytes + first, &fragment, header) + fragment.size);
    WAIT_UNTIL(&side, 1, side.closed);
    ck_assert_str_eq("the peer sent more than a chunk has", side.why);
    ck_assert_uint_eq(1, side.arriving);
    ck_assert_uint_eq(1, side.arrived_badly);
    ck_assert_uint_eq(0, side.arrived);
    close(made);
}

/* Chunks that nobody wants and that never end. */
TEST(a_peer_begins_only_so_many_chunks)
{
    static const uint8_t header[SIDE_HEADER_BYTES];
    const int made = peer_connect();
    side.refuse = true;
    for (unsigned i = 0; i < 1025; i++) {
        const struct fragment fragment = {
            .number = i, .header_size = SIDE_HEADER_BYTES, .chunk_size = 2, .offset = 1, .size = 1};
        uint8_t bytes[FRAGMENT_MAX + 1] = {0};
        say(made, bytes, fragment_write(bytes, &fragment, header) + 1);
        sides_step(&side, 1, 0);
    }
    WAIT_UNTIL(&side, 1, side.closed);
    ck_assert_str_eq("the peer begins too many chunks at once", side.why);
    ck_assert_uint_eq(1024, side.arriving);
    close(made);
}

/* A fragment and its bytes, one byte at a time, and then an end in the middle of the next one. */
TEST(fragments_may_come_in_pieces)
{
    enum { BYTES = 300 };
    static const uint8_t header[SIDE_HEADER_BYTES];
    uint8_t stream[FRAGMENT_MAX + BYTES];
    side.unchecked = true;
    const int made = peer_connect();
    const size_t head = chunk_write(stream, 0, header, sizeof(header), BYTES);
    memset(stream + head, 0x5a, BYTES);
    for (size_t i = 0; i < head + BYTES; i++) {
        ck_assert_uint_eq(0, side.arrived);
        ck_assert_uint_eq(i >= head, side.arriving);
        say(made, stream + i, 1);
        for (int k = 0; k < 2; k++)
            sides_step(&side, 1, 1);
    }
    WAIT_UNTIL(&side, 1, side.arrived == 1);
    ck_assert_mem_eq(side.arena.base, stream + head, BYTES);
    say(made, stream, head + 1);
    close(made);
    WAIT_UNTIL(&side, 1, side.closed);
    ck_assert_uint_eq(1, side.arrived_badly);
}

/* What the peer said before it went is taken, although nothing can be sent to it any more. */
TEST(a_peer_is_heard_to_the_end)
{
    static const uint8_t header[SIDE_HEADER_BYTES];
    const int made = peer_connect();
    for (unsigned slot = 0; slot < SLOTS; slot++)
        ck_assert_int_eq(STRAIT_OK, side_send(&side, slot, SLOT_BYTES));
    for (int i = 0; i < 20; i++)
        sides_step(&side, 1, 1);
    uint8_t records[100 * FRAGMENT_MAX];
    size_t size = 0;
    for (int i = 0; i < 100; i++)
        size += chunk_write(records + size, (uint64_t)i, header, sizeof(header), 0);
    say(made, records, size); /* at once: a reset discards what has not left */
    close(made);              /* with bytes unread: a reset */
    WAIT_UNTIL(&side, 1, side.closed);
    ck_assert_uint_eq(100, side.arrived);
    ck_assert_uint_ge(side.sent_badly, 1);
    ck_assert_uint_eq(SLOTS, side.sent + side.sent_badly);
}

TEST(what_a_peer_does_not_read_waits)
{
    const int made = peer_connect();
    for (unsigned slot = 0; slot < SLOTS; slot++)
        ck_assert_int_eq(STRAIT_OK, side_send(&side, slot, SLOT_BYTES));
    for (int i = 0; i < 50; i++)
        sides_step(&side, 1, 2);
    const unsigned sent = side.sent;
    ck_assert_uint_lt(sent, SLOTS);
    ck_assert_int_eq(STRAIT_OK, transport_arm(side.transport)); /* it may sleep */
    static uint8_t bytes[1 << 16];
    size_t got = 0;
    while (side.sent < SLOTS || got < SLOTS * (SLOT_BYTES + FRAGMENT_HEAD + SIDE_HEADER_BYTES)) {
        sides_step(&side, 1, 0);
        const ssize_t size = recv(made, bytes, sizeof(bytes), MSG_DONTWAIT);
        ck_assert(size > 0 || (size < 0 && errno == EAGAIN));
        got += size > 0 ? (size_t)size : 0;
    }
    close(made);
}

/* ---- Forks ------------------------------------------------------------------------------------------------------- */

/* A child that closed its copies neither keeps a connection up, nor takes it from its parent. */
TEST(connections_end_with_the_parent)
{
    const int made = peer_connect();
    int told[2];
    char byte = 0;
    ck_assert_int_eq(0, pipe(told));
    const pid_t child = fork();
    if (child == 0) {
        close(made);
        transport_after_fork(side.transport);
        tear_down();
        (void)!write(told[1], &byte, 1);
        for (;;)
            pause();
    }
    ck_assert_int_eq(1, read(told[0], &byte, 1));
    ck_assert_int_eq(STRAIT_OK, side_send(&side, 0, 100));
    WAIT_UNTIL(&side, 1, side.sent == 1);
    static uint8_t bytes[FRAGMENT_HEAD + SIDE_HEADER_BYTES + 100], header[SIDE_HEADER_BYTES];
    ck_assert_int_eq(sizeof(bytes), recv(made, bytes, sizeof(bytes), MSG_WAITALL));
    say(made, bytes, chunk_write(bytes, 0, header, sizeof(header), 0));
    WAIT_UNTIL(&side, 1, side.arrived == 1);
    link_close(side.link);
    WAIT_UNTIL(&side, 1, side.closed && recv(made, &byte, 1, MSG_DONTWAIT) == 0);
    ck_assert_int_eq(0, kill(child, SIGKILL));
    ck_assert_int_eq(child, waitpid(child, NULL, 0));
    close(made);
}

/* ---- Addresses --------------------------------------------------------------------------------------------------- */

static const struct {
    unsigned byte;
    uint8_t value;
} addresses[] = {{0, 'U'}, {3, '1'}, {4, 5}, {5, 1}, {28, 1}, {31, 1}};

TEST_LOOP(addresses_of_another_form_are_corrupt, COUNT(addresses))
{
    uint8_t address[ADDRESS_BYTES];
    open_link(LINK_DIALLED, address);
    address[addresses[_i].byte] = addresses[_i].value;
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, link_connect(side.link, address, sizeof(address)));
}

TEST(nobody_at_the_address_breaks_the_link)
{
    uint8_t address[ADDRESS_BYTES];
    open_link(LINK_DIALLED, address); /* nobody listens for it */
    ck_assert_int_eq(STRAIT_OK, link_connect(side.link, address, sizeof(address)));
    WAIT_UNTIL(&side, 1, side.closed);
    ck_assert_str_eq("the connection was refused", side.why);
}

static const struct {
    const char *options;
    enum strait_status status;
} options[] = {{"", STRAIT_OK},
               {"listen=127.0.0.2", STRAIT_OK},
               {"port=0 listen=127.0.0.1", STRAIT_OK},
               {"listen=192.0.2.1", STRAIT_ERR_IO}, /* not of this machine */
               {"listen=none", STRAIT_OK},
               {"connections=16", STRAIT_OK},
               {"connections=0", STRAIT_ERR_INVALID},
               {"connections=17", STRAIT_ERR_INVALID},
               {"connections=4x", STRAIT_ERR_INVALID},
               {"connections=", STRAIT_ERR_INVALID},
               {"listen=::%1", STRAIT_ERR_INVALID},
               {"listen=fe80::1%no-such-interface", STRAIT_ERR_INVALID},
               {"listen=127.0.0.1%1", STRAIT_ERR_INVALID},
               {"listen=localhost", STRAIT_ERR_INVALID},
               {"port=", STRAIT_ERR_INVALID},
               {"tls=tcp", STRAIT_ERR_INVALID}};

TEST_LOOP(options_say_where_it_listens, COUNT(options))
{
    const enum strait_status expected = options[_i].status;
    ck_assert_int_eq(expected, transport_try(&transport_tcp, TRANSPORT_HOST, options[_i].options));
    ck_assert_int_eq(expected == STRAIT_ERR_INVALID ? expected : STRAIT_OK,
                     transport_check(&transport_tcp, options[_i].options));
}

TEST(a_port_can_be_listened_at_again)
{
    uint8_t address[ADDRESS_BYTES];
    char text[32];
    await_peer(address);
    snprintf(text, sizeof(text), "connections=1 port=%u", load_le16(address + 6));
    for (int i = 0; i < 3; i++) {
        tear_down();
        side_init(&side, &transport_tcp, text);
        const int made = peer_connect();
        link_address(side.link, address, sizeof(address));
        ck_assert_uint_eq((unsigned)atoi(strstr(text, "port=") + 5), load_le16(address + 6));
        link_close(side.link); /* the first to close: the port is kept in TIME_WAIT */
        WAIT_UNTIL(&side, 1, side.closed);
        close(made);
    }
}

int main(void)
{
    return run_tests("tcp", set_up, tear_down);
}
