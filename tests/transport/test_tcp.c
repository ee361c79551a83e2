/* What the tcp transport does with those that connect to it: who proves itself, who is sent away and when, and what
 * comes of bytes that are no records. The other end is a plain socket. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "tests/transport/sides.h"
#include "transport/core.h"
#include "transport/tcp.h"

enum { HELLO_BYTES = 24, SECRET_AT = 8, SECRET_BYTES = 16, SIDE_HEADER_BYTES = 24 };

static struct side side; /* of every test */

/* The side's link, and the address that its peer would get. */
static void open_link(enum link_side which, uint8_t address[TCP_ADDRESS_BYTES])
{
    ck_assert_int_eq(STRAIT_OK, link_open(side.transport, -1, which, &side, &side.link));
    ck_assert_uint_eq(TCP_ADDRESS_BYTES, link_address(side.link, address, TCP_ADDRESS_BYTES));
}

static void set_up(void)
{
    side_init(&side, &transport_tcp, NULL);
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
static void await_peer(uint8_t address[TCP_ADDRESS_BYTES])
{
    uint8_t peer[TCP_ADDRESS_BYTES];
    open_link(LINK_ACCEPTED, address);
    memcpy(peer, address, sizeof(peer));
    for (unsigned i = 0; i < SECRET_BYTES; i++)
        peer[SECRET_AT + i] = (uint8_t)(i + 1);
    ck_assert_int_eq(STRAIT_OK, link_connect(side.link, peer, sizeof(peer)));
}

static struct sockaddr_in place_of(const uint8_t address[TCP_ADDRESS_BYTES])
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(load_le16(address + 6)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static int dial(const uint8_t address[TCP_ADDRESS_BYTES])
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

static void hello_for(uint8_t hello[HELLO_BYTES], const uint8_t address[TCP_ADDRESS_BYTES])
{
    memcpy(hello, "STRCALL2", 8);
    memcpy(hello + 8, address + SECRET_AT, SECRET_BYTES);
}

/* A peer that has proved itself. */
static int peer_connect(void)
{
    uint8_t address[TCP_ADDRESS_BYTES], hello[HELLO_BYTES], answer[HELLO_BYTES];
    await_peer(address);
    const int made = dial(address);
    hello_for(hello, address);
    say(made, hello, HELLO_BYTES);
    WAIT_UNTIL(&side, 1, side.connected);
    ck_assert_int_eq(HELLO_BYTES, recv(made, answer, HELLO_BYTES, MSG_WAITALL));
    ck_assert_mem_eq(answer, "STRANSW2", 8);
    for (unsigned i = 0; i < SECRET_BYTES; i++)
        ck_assert_uint_eq(i + 1, answer[8 + i]);
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

/* By the byte of the hello that is wrong, or how much of it comes before the end. */
static const struct {
    int wrong;
    unsigned size;
} strangers[] = {{0, HELLO_BYTES},  {7, HELLO_BYTES}, {8, HELLO_BYTES},
                 {23, HELLO_BYTES}, {-1, 0},          {-1, HELLO_BYTES - 1}};

TEST_LOOP(strangers_are_sent_away_and_keep_nobody_waiting, COUNT(strangers))
{
    uint8_t address[TCP_ADDRESS_BYTES], hello[HELLO_BYTES], record[RECORD_MAX];
    await_peer(address);
    hello_for(hello, address);
    if (strangers[_i].wrong >= 0)
        hello[strangers[_i].wrong] ^= 1;
    const int made = dial(address);
    say(made, hello, strangers[_i].size);
    if (strangers[_i].size == HELLO_BYTES)
        say(made, record, record_write(record, "header", 6, 0));
    else
        ck_assert_int_eq(0, shutdown(made, SHUT_WR));
    WAIT_UNTIL(&side, 1, is_sent_away(made));
    ck_assert_uint_eq(0, side.connected + side.arriving + side.broken);
    close(made);
    const int good = dial(address);
    hello_for(hello, address);
    say(good, hello, HELLO_BYTES);
    WAIT_UNTIL(&side, 1, side.connected);
    close(good);
}

TEST_LOOP(an_answer_that_is_wrong_breaks_the_link, HELLO_BYTES + 1)
{
    static const uint8_t header[SIDE_HEADER_BYTES];
    uint8_t address[TCP_ADDRESS_BYTES], answer[HELLO_BYTES], record[RECORD_MAX];
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(at);
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(0, bind(listener, (const struct sockaddr *)&at, sizeof(at)));
    ck_assert_int_eq(0, listen(listener, 1));
    ck_assert_int_eq(0, getsockname(listener, (struct sockaddr *)&at, &size));
    open_link(LINK_DIALLED, address);
    memcpy(answer, "STRANSW2", 8);
    memcpy(answer + 8, address + SECRET_AT, SECRET_BYTES);
    if (_i < HELLO_BYTES)
        answer[_i] ^= 1;
    store_le16(address + 6, ntohs(at.sin_port));
    ck_assert_int_eq(STRAIT_OK, link_connect(side.link, address, sizeof(address)));
    const int made = accept(listener, NULL, NULL);
    say(made, answer, HELLO_BYTES);
    say(made, record, record_write(record, header, sizeof(header), 0));
    WAIT_UNTIL(&side, 1, side.closed || side.arriving > 0);
    ck_assert_uint_eq(_i >= HELLO_BYTES, side.connected);
    ck_assert_uint_eq(_i < HELLO_BYTES, side.broken);
    close(made);
    close(listener);
}

TEST(a_peer_that_calls_before_it_is_expected_is_answered_later)
{
    uint8_t address[TCP_ADDRESS_BYTES], hello[HELLO_BYTES], byte;
    open_link(LINK_ACCEPTED, address);
    const int made = dial(address), second = dial(address);
    hello_for(hello, address);
    say(made, hello, HELLO_BYTES);
    say(second, hello, HELLO_BYTES / 2);
    for (int i = 0; i < 10; i++)
        sides_step(&side, 1, 10);
    ck_assert_int_eq(-1, recv(made, &byte, 1, MSG_DONTWAIT)); /* neither answered nor sent away */
    (void)send(second, hello + HELLO_BYTES / 2, HELLO_BYTES / 2, MSG_NOSIGNAL);
    WAIT_UNTIL(&side, 1, recv(second, &byte, 1, MSG_DONTWAIT) == 0 || errno != EAGAIN);
    ck_assert_int_eq(STRAIT_OK, link_connect(side.link, address, sizeof(address)));
    WAIT_UNTIL(&side, 1, side.connected);
    close(made);
    close(second);
}

TEST(it_listens_while_a_peer_is_awaited)
{
    uint8_t address[TCP_ADDRESS_BYTES];
    const int peer = peer_connect();
    link_address(side.link, address, sizeof(address));
    const struct sockaddr_in at = place_of(address);
    const int made = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(-1, connect(made, (const struct sockaddr *)&at, sizeof(at)));
    ck_assert_int_eq(ECONNREFUSED, errno);
    close(made);
    close(peer);
}

/* ---- Those that say nothing -------------------------------------------------------------------------------------- */

enum { PENDING_MAX = 128 };

TEST(beyond_the_limit_the_oldest_stranger_goes)
{
    int made[PENDING_MAX + 3];
    uint8_t address[TCP_ADDRESS_BYTES], hello[HELLO_BYTES];
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
    hello_for(hello, address);
    say(made[COUNT(made) - 1], hello, HELLO_BYTES);
    WAIT_UNTIL(&side, 1, side.connected);
    for (int i = 3; i < COUNT(made) - 1; i++)
        ck_assert(is_sent_away(made[i])); /* as nobody else is awaited */
    for (int i = 0; i < COUNT(made); i++)
        close(made[i]);
}

TEST(who_says_nothing_for_ten_seconds_is_sent_away)
{
    uint8_t address[TCP_ADDRESS_BYTES], hello[HELLO_BYTES];
    await_peer(address);
    const int made = dial(address);
    const uint64_t start = milliseconds();
    hello_for(hello, address);
    say(made, hello, HELLO_BYTES - 1);
    WAIT_UNTIL(&side, 1, is_sent_away(made));
    ck_assert_uint_ge(milliseconds() - start, 9900);
    ck_assert_uint_eq(0, side.connected + side.broken);
    close(made);
}

/* Without descriptors the transport sleeps, instead of being woken by the connection that it cannot accept. */
TEST(without_descriptors_it_rests)
{
    uint8_t address[TCP_ADDRESS_BYTES], hello[HELLO_BYTES];
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
    hello_for(hello, address);
    say(made, hello, HELLO_BYTES);
    WAIT_UNTIL(&side, 1, side.connected);
    close(made);
}

/* ---- Bytes that are no records ----------------------------------------------------------------------------------- */

static const struct {
    uint32_t header_size;
    uint64_t size;
    int wrong; /* byte of the magic; -1: none */
} malformed[] = {{SIDE_HEADER_BYTES, 0, 0},
                 {SIDE_HEADER_BYTES, 0, 3},
                 {TRANSPORT_HEADER_MAX + 1, 0, -1},
                 {UINT32_MAX, 0, -1},
                 {SIDE_HEADER_BYTES, UINT64_C(1) << 32, -1},
                 {SIDE_HEADER_BYTES, UINT64_MAX, -1}};

TEST_LOOP(malformed_records_break_the_link, COUNT(malformed))
{
    uint8_t record[256] = {'C', 'H', 'N', 'K'};
    const int made = peer_connect();
    if (malformed[_i].wrong >= 0)
        record[malformed[_i].wrong] ^= 0x20;
    store_le32(record + 4, malformed[_i].header_size);
    store_le64(record + 8, malformed[_i].size);
    say(made, record, sizeof(record));
    WAIT_UNTIL(&side, 1, side.closed);
    ck_assert_str_eq("the peer sent a malformed record", side.why);
    ck_assert_uint_eq(0, side.arriving);
    close(made);
}

/* A record and its bytes, one byte at a time, and then an end in the middle of the next one. */
TEST(records_may_come_in_pieces)
{
    enum { BYTES = 300 };
    static const uint8_t header[SIDE_HEADER_BYTES];
    uint8_t stream[RECORD_MAX + BYTES];
    side.unchecked = true;
    const int made = peer_connect();
    const size_t head = record_write(stream, header, sizeof(header), BYTES);
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
    uint8_t records[100 * RECORD_MAX];
    size_t size = 0;
    for (int i = 0; i < 100; i++)
        size += record_write(records + size, header, sizeof(header), 0);
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
    while (side.sent < SLOTS || got < SLOTS * (SLOT_BYTES + RECORD_HEAD + SIDE_HEADER_BYTES)) {
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
    static uint8_t bytes[RECORD_HEAD + SIDE_HEADER_BYTES + 100], header[SIDE_HEADER_BYTES];
    ck_assert_int_eq(sizeof(bytes), recv(made, bytes, sizeof(bytes), MSG_WAITALL));
    say(made, bytes, record_write(bytes, header, sizeof(header), 0));
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
} addresses[] = {{0, 'U'}, {3, '2'}, {4, 5}, {4, 0}, {5, 1}, {44, 1}, {47, 1}};

TEST_LOOP(addresses_of_another_form_are_corrupt, COUNT(addresses))
{
    uint8_t address[TCP_ADDRESS_BYTES];
    open_link(LINK_DIALLED, address);
    address[addresses[_i].byte] = addresses[_i].value;
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, link_connect(side.link, address, sizeof(address)));
}

TEST(nobody_at_the_address_breaks_the_link)
{
    uint8_t address[TCP_ADDRESS_BYTES];
    open_link(LINK_DIALLED, address); /* nobody listens for it */
    ck_assert_int_eq(STRAIT_OK, link_connect(side.link, address, sizeof(address)));
    WAIT_UNTIL(&side, 1, side.closed);
    ck_assert_str_eq("the peer is not reached", side.why);
}

static const struct {
    const char *options;
    enum strait_status status;
} options[] = {{"", STRAIT_OK},
               {"listen=127.0.0.2", STRAIT_OK},
               {"port=0 listen=127.0.0.1", STRAIT_OK},
               {"listen=192.0.2.1", STRAIT_ERR_IO}, /* not of this machine */
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
    uint8_t address[TCP_ADDRESS_BYTES];
    char text[32];
    await_peer(address);
    snprintf(text, sizeof(text), "port=%u", load_le16(address + 6));
    for (int i = 0; i < 3; i++) {
        tear_down();
        side_init(&side, &transport_tcp, text);
        const int made = peer_connect();
        link_address(side.link, address, sizeof(address));
        ck_assert_uint_eq((unsigned)atoi(text + 5), load_le16(address + 6));
        link_close(side.link); /* the first to close: the port is kept in TIME_WAIT */
        WAIT_UNTIL(&side, 1, side.closed);
        close(made);
    }
}

int main(void)
{
    return run_tests("tcp", set_up, tear_down);
}
