/* Who knocks without being a peer: other secrets, other versions, raw sockets that say nothing, too much or the wrong
 * thing. */
#include "tests/peers/peer_node.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/auth.h"
#include "daemon/base/tls.h"
#ifdef STRAIT_HAVE_UCX
#include "transport/ucx.h"
#endif

/* ---- Secrets ----------------------------------------------------------------------------------------------------- */

TEST(who_knows_the_secret_is_let_in)
{
    pair_init("shm");
    node_secret(&a, SECRET);
    node_secret(&b, SECRET);
    pair_open();
    connect_nodes(&a, &b);
    ck_assert_uint_eq(0, a.metrics.auth_failures + b.metrics.auth_failures);
}

static const struct {
    const char *dialler, *acceptor, *why;
    bool both_count;
} strangers[] = {
    {SECRET, "another secret of enough bytes", "the secrets differ", false},
    {SECRET, NULL, "a secret is demanded here", true},
    {NULL, SECRET, "the peer demands a secret", true},
};

TEST_LOOP(who_does_not_know_the_secret_is_refused, COUNT(strangers))
{
    pair_init("shm");
    if (strangers[_i].dialler != NULL)
        node_secret(&a, strangers[_i].dialler);
    if (strangers[_i].acceptor != NULL)
        node_secret(&b, strangers[_i].acceptor);
    pair_open();
    EXPECT(strstr(get(&a, &b)->why, strangers[_i].why) != NULL);
    EXPECT(b.metrics.auth_failures >= 1);
    ck_assert(!strangers[_i].both_count || a.metrics.auth_failures >= 1);
    RUN_UNTIL((get(&a, &b), false), 200);
    ck_assert_uint_eq(0, a.ups + b.ups);
}

TEST(a_secret_that_cannot_be_read_is_told)
{
    char why[512] = "";
    node_init(&a, "a", "shm");
    snprintf(a.options.secret_file, sizeof(a.options.secret_file), "%s/none", folder);
    ck_assert_int_ne(STRAIT_OK, node_try(&a, why, sizeof(why)));
    ck_assert_ptr_nonnull(strstr(why, "none"));
}

#ifdef STRAIT_HAVE_UCX
TEST_LOOP(options_of_ucx_that_mean_nothing_are_told, 5)
{
    static const char *const bad[] = {"colour=red", "tls", "port=high", "tls=tcp port=70000", "listen=nowhere"};
    char why[512] = "";
    node_init(&a, "a", "shm");
    snprintf(a.options.ucx, sizeof(a.options.ucx), "%s", bad[_i]);
    ck_assert_int_eq(STRAIT_ERR_INVALID, node_try(&a, why, sizeof(why)));
    ck_assert_ptr_nonnull(strstr(why, bad[_i]));
}

/* UCX 1.13 ends the process when it is dialled there. */
TEST(ucx_listens_over_ipv6_only_where_its_version_bears_that)
{
    char why[512] = "", version[32];
    const bool sound = ucx_is_sound_over_tcp(version, sizeof(version));
    node_init(&a, "a", "ucx");
    snprintf(a.options.ucx, sizeof(a.options.ucx), "listen=::1");
    node_open(&a);
    ck_assert_int_eq(sound, peers_can_travel(a.peers, why, sizeof(why)));
    ck_assert(sound || strstr(why, "breaks over IPv6") != NULL);
}
#endif

/* ---- Strangers: raw connections ---------------------------------------------------------------------------------- */

static struct channel *stranger; /* a connection to b on which the test says what it likes */
static struct tls *stranger_tls;

static void raw_close(void)
{
    channel_destroy(stranger);
    tls_destroy(stranger_tls);
    stranger = NULL;
    stranger_tls = NULL;
}

/* The stranger speaks over this socket, and knows b's secret, if there is one. */
static void raw_over(int fd)
{
    raw_close();
    ck_assert_int_eq(STRAIT_OK, channel_create(fd, MESSAGE_BYTES_MAX, 1 << 20, &stranger));
    if (b.options.secret_file[0] == 0)
        return;
    const struct credentials_files files = {b.options.secret_file, "", "", "", ""};
    struct credentials *credentials;
    char why[256];
    ck_assert_int_eq(STRAIT_OK, credentials_read(&files, &credentials, why, sizeof(why)));
    stranger_tls = tls_create(credentials, "b", false);
    credentials_release(credentials);
    channel_use(stranger, tls_layer(stranger_tls));
}

static void raw_connect(const char *secret)
{
    if (b.peers == NULL)
        node_start(&b, "b", "shm", secret);
    raw_over(dial_b_from(INADDR_LOOPBACK));
}

static void stranger_teardown(void)
{
    raw_close();
    teardown();
}

/* The next message, or MESSAGE_NONE when the connection ended. */
static enum message_type raw_next(struct message *message)
{
    int fds[CHANNEL_FDS_MAX];
    uint32_t fd_count;
    bool ended = false;
    for (;;) {
        enum strait_status status = channel_next(stranger, message, fds, &fd_count);
        if (status == STRAIT_OK)
            return message->type;
        ck_assert_int_eq(STRAIT_ERR_AGAIN, status);
        if (ended)
            return MESSAGE_NONE;
        (void)channel_flush(stranger);
        uv_run(&loop, UV_RUN_ONCE);
        ended = channel_read(stranger) != STRAIT_OK;
    }
}

/* Requires that it is of this type. */
static void comes(enum message_type type)
{
    struct message message = {0};
    ck_assert_int_eq(type, raw_next(&message));
    if (type != MESSAGE_NONE)
        message_fini(&message);
}

static void raw_send(const struct message *message)
{
    ck_assert_int_eq(STRAIT_OK, channel_send(stranger, message, NULL, 0));
    channel_flush(stranger);
}

static struct message raw_hello(const uint8_t nonce[NONCE_BYTES])
{
    return (struct message){
        .type = MESSAGE_PEER_HELLO,
        .peer_hello = {.version = PROTOCOL_VERSION,
                       .version_min = PROTOCOL_VERSION_MIN,
                       .node = 77,
                       .incarnation = 78,
                       .nonce = view_of(nonce, NONCE_BYTES),
                       .address = view_of("10.0.0.1:9", 10),
                       .dialled = view_of("b:1", 3)},
    };
}

static const struct {
    uint32_t version, version_min;
    enum message_type then;
} newer[] = {{PROTOCOL_VERSION + 5, PROTOCOL_VERSION + 1, MESSAGE_NONE},
             {PROTOCOL_VERSION + 5, PROTOCOL_VERSION_MIN, MESSAGE_PEER_LINKS}};

TEST_LOOP(a_newer_peer_is_let_in_if_it_still_speaks_ours, COUNT(newer))
{
    static const uint8_t nonce[NONCE_BYTES] = {1};
    raw_connect(NULL);
    struct message hello = raw_hello(nonce);
    hello.peer_hello.version = newer[_i].version;
    hello.peer_hello.version_min = newer[_i].version_min;
    raw_send(&hello);
    comes(MESSAGE_PEER_HELLO); /* in any case, so that both can tell */
    comes(newer[_i].then);
}

/* Reads a hello as it is on the wire. */
static ssize_t read_hello(int fd, uint8_t hello[512])
{
    ssize_t size;
    RUN_UNTIL((size = recv(fd, hello, 512, MSG_DONTWAIT)) >= 0, SECONDS(20));
    ck_assert_int_gt(size, 8);
    return size;
}

/* All but its nonce is the same on every connection, so that its first bytes are known before it comes. */
TEST(a_hello_that_is_sent_back_is_refused)
{
    static const uint8_t nonce[NONCE_BYTES] = {1};
    uint8_t hello[512];
    raw_connect(NULL);
    const struct message mine = raw_hello(nonce);
    raw_send(&mine);
    (void)read_hello(channel_fd(stranger), hello);
    const int fd = dial_b_from(INADDR_LOOPBACK);
    ck_assert_int_eq(8, (int)send(fd, hello, 8, MSG_NOSIGNAL));
    const ssize_t size = read_hello(fd, hello);
    ck_assert_int_eq((int)size - 8, (int)send(fd, hello + 8, (size_t)size - 8, MSG_NOSIGNAL));
    EXPECT(is_ended(fd));
    ck_assert_uint_eq(0, b.metrics.peer_errors + b.metrics.auth_failures); /* it is a hello */
    close(fd);
}

/* To whom says nothing, or less than tells what it is, nothing is said. */
TEST_LOOP(who_connects_speaks_first, 8)
{
    char byte;
    ssize_t got;
    pair_init("tcp");
    b.options.connect_ms = 300;
    pair_open();
    const int fd = dial_b_from(INADDR_LOOPBACK);
    ck_assert_int_eq(_i, (int)send(fd, "STRDATA1", (size_t)_i, MSG_NOSIGNAL));
    uint32_t turns = 0;
    uint64_t begun = uv_hrtime();
    while ((got = recv(fd, &byte, 1, MSG_DONTWAIT)) < 0 && errno == EAGAIN) {
        turns++;
        uv_run(&loop, UV_RUN_ONCE);
        ck_assert_uint_lt(ms_since(begun), SECONDS(20));
    }
    ck_assert_int_le(got, 0);
    ck_assert_uint_ge(ms_since(begun), 250);
    ck_assert_uint_le(turns, 20 + ms_since(begun)); /* the pulse of these tests wakes the loop twice in 4 ms */
    connect_nodes(&a, &b);
    close(fd);
}

/* Connections that say they carry chunks, of no link that is awaited. */
TEST_LOOP(data_of_no_link_is_sent_away, 2)
{
    uint8_t preamble[32] = "STRDATA1";
    pair_start(_i == 0 ? "tcp" : "loopback");
    for (int i = 0; i < 300; i++) {
        const int fd = dial_b_from(INADDR_LOOPBACK);
        auth_random(preamble + 8, sizeof(preamble) - 8);
        (void)send(fd, preamble, i % 2 == 0 ? sizeof(preamble) : 8, MSG_NOSIGNAL);
        EXPECT(is_ended(fd));
        close(fd);
    }
    send_note(&a, "still there");
    EXPECT(b.messages == 1);
    ck_assert_uint_eq(0, a.downs + b.downs);
}

/* Somebody between the stranger and b, who writes down what the stranger says. */
static struct {
    int near, far;
    uint8_t said[65536];
    size_t size;
} between;

static void relay(int from, int to, bool record)
{
    uint8_t bytes[4096];
    ssize_t got = recv(from, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got <= 0)
        return;
    if (record) {
        memcpy(between.said + between.size, bytes, (size_t)got);
        between.size += (size_t)got;
    }
    ck_assert_int_eq(got, send(to, bytes, (size_t)got, MSG_NOSIGNAL));
}

TEST(what_a_peer_has_said_is_of_no_use_when_it_is_said_again)
{
    static const uint8_t nonce[NONCE_BYTES] = {9};
    struct message hello = raw_hello(nonce), message = {0};
    int pair[2];
    node_start(&b, "b", "shm", SECRET);
    ck_assert_int_eq(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
    between.near = pair[1], between.far = dial_b_from(INADDR_LOOPBACK), between.size = 0;
    raw_over(pair[0]);
    raw_send(&hello);
    int fds[CHANNEL_FDS_MAX];
    uint32_t fd_count, links = 0;
    while (links == 0) {
        relay(between.near, between.far, true);
        relay(between.far, between.near, false);
        uv_run(&loop, UV_RUN_ONCE);
        (void)channel_flush(stranger);
        ck_assert_int_eq(STRAIT_OK, channel_read(stranger));
        for (; channel_next(stranger, &message, fds, &fd_count) == STRAIT_OK; message_fini(&message))
            links += message.type == MESSAGE_PEER_LINKS;
    }
    close(between.near), close(between.far);
    ck_assert_uint_eq(0, b.metrics.auth_failures);
    ck_assert_ptr_null(memmem(between.said, between.size, "10.0.0.1:9", 10)); /* of the hello */
    int fd = dial_b_from(INADDR_LOOPBACK);
    ck_assert_int_eq((int)between.size, (int)send(fd, between.said, between.size, MSG_NOSIGNAL));
    EXPECT(is_ended(fd));
    ck_assert_uint_eq(1, b.metrics.auth_failures);
    close(fd);
}

/* Messages that are not due, by what has been sent before. */
TEST_LOOP(a_message_out_of_turn_ends_the_connection, 3)
{
    static const uint8_t nonce[NONCE_BYTES] = {1};
    struct message message = {0}, note = note_message("?"), beat = {.type = MESSAGE_HEARTBEAT};
    raw_connect(NULL);
    struct message hello = raw_hello(nonce);
    if (_i >= 1)
        raw_send(&hello);
    raw_send(_i == 1 ? &beat : &note);
    while (raw_next(&message) != MESSAGE_NONE)
        message_fini(&message);
    ck_assert_uint_eq(1, b.metrics.peer_errors);
}

/* A peer that sends without a pause what costs it next to nothing: other connections and timers have their turns. */
TEST(a_peer_that_never_stops_sending_takes_no_more_than_its_share)
{
    enum { MANY = 30000 };
    static const uint8_t nonce[NONCE_BYTES] = {1};
    static const uint8_t id[CODEBOOK_ID_BYTES] = {1};
    const struct message hello = raw_hello(nonce);
    const struct message set = {.type = MESSAGE_CODEBOOK, .codebook.id = view_of(id, sizeof(id))};
    const struct message links = {.type = MESSAGE_PEER_LINKS, .peer_links = {.slot_bytes = 4096, .slot_count = 1}};
    node_init(&b, "b", "shm");
    node_secret(&b, SECRET);
    b.options.connect_ms = SECONDS(20);
    node_open(&b);
    raw_connect(SECRET);
    raw_send(&hello);
    comes(MESSAGE_PEER_HELLO);
    comes(MESSAGE_PEER_LINKS);
    raw_send(&links);
    for (int i = 0; i < MANY; i++)
        ck_assert_int_eq(STRAIT_OK, channel_send(stranger, &set, NULL, 0));
    for (int i = 0; i < 10; i++) /* it cannot decide on a transport: the end */
        ck_assert_int_eq(STRAIT_OK, channel_send(stranger, &links, NULL, 0));
    uint32_t turns = 0;
    for (; b.metrics.peer_errors == 0; turns++) {
        ck_assert_uint_lt(turns, 100 * MANY);
        (void)channel_flush(stranger);
        uv_run(&loop, UV_RUN_NOWAIT);
    }
    ck_assert_uint_ge(turns, MANY / 100); /* 32 records by each of two reads in a turn */
    ck_assert_uint_eq(0, channel_queued(stranger));
}

static const char *const no_addresses[] = {
    "10.0.0.1", "10.0.0.1:0", "10.0.0.1:9,", "*:9", "[::]:9", "[::1:9", "a b:9", "a:1,b:2,c:3,d:4,e:5,f:6,g:7,h:8,i:9"};

TEST_LOOP(who_listens_where_nobody_can_dial_breaks_the_protocol, COUNT(no_addresses))
{
    static const uint8_t nonce[NONCE_BYTES] = {1};
    struct message hello = raw_hello(nonce), message = {0};
    hello.peer_hello.address = view_of(no_addresses[_i], strlen(no_addresses[_i]));
    raw_connect(NULL);
    raw_send(&hello);
    while (raw_next(&message) != MESSAGE_NONE)
        message_fini(&message);
    ck_assert_uint_eq(1, b.metrics.peer_errors);
}

TEST(who_is_proved_but_makes_no_link_is_closed_in_time)
{
    static const uint8_t nonce[NONCE_BYTES] = {1};
    struct message hello = raw_hello(nonce);
    node_init(&b, "b", "shm");
    node_secret(&b, SECRET);
    b.options.connect_ms = 200;
    node_open(&b);
    raw_connect(SECRET);
    raw_send(&hello);
    comes(MESSAGE_PEER_HELLO);
    uint64_t begun = uv_hrtime(), late = machine_late_ms();
    comes(MESSAGE_PEER_LINKS);
    comes(MESSAGE_NONE);
    ck_assert_uint_ge(ms_since(begun), 100);
    ck_assert_uint_le(ms_since(begun), 5000 + machine_late_ms() - late);
}

TEST(a_large_frame_before_the_proof_is_refused)
{
    node_start(&b, "b", "shm", NULL);
    int fd = dial_b_from(INADDR_LOOPBACK);
    const uint32_t length[2] = {4097};
    ck_assert_int_eq(8, (int)write(fd, length, 8));
    EXPECT(is_ended(fd));
    ck_assert_uint_eq(1, b.metrics.peer_errors);
    close(fd);
}

/* Whoever says nothing is closed for the sake of others of its host, not for the sake of all. */
TEST(strangers_of_one_host_leave_room_for_others)
{
    enum { MANY = 200, HOST_MAX = 32 };
    int fds[MANY];
    node_start(&b, "b", "shm", SECRET);
    const int quiet = dial_b_from(INADDR_LOOPBACK + 1);
    for (int i = 0; i < MANY; i++) {
        fds[i] = dial_b_from(INADDR_LOOPBACK + 2);
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    }
    EXPECT(is_ended(fds[MANY - HOST_MAX - 1]));
    ck_assert(!is_ended(fds[MANY - HOST_MAX]));
    ck_assert(!is_ended(quiet));
    for (int i = 0; i < MANY; i++)
        close(fds[i]);
    close(quiet);
}

static void count_half_open(void *arg, struct peer *peer)
{
    *(uint32_t *)arg += !peer->dialled && peer->state == PEER_PROVING;
}

TEST(strangers_do_not_disturb_who_is_there_or_who_comes)
{
    enum { STRANGERS = 1000 };
    static int fds[STRANGERS];
    uint32_t half_open = 0;
    static const uint8_t preamble[32] = "STRDATA1";
    pair_init("tcp");
    node_init(&c, "c", "tcp");
    node_secret(&a, SECRET);
    node_secret(&b, SECRET);
    node_secret(&c, SECRET);
    pair_open();
    node_open(&c);
    connect_nodes(&a, &b);
    for (int i = 0; i < STRANGERS; i++) {
        fds[i] = dial_b_from(INADDR_LOOPBACK);
        if (i % 3 == 2) /* as if it carried chunks, or a part of that */
            ck_assert_int_ge(send(fds[i], preamble, (size_t)(i % sizeof(preamble) + 1), MSG_NOSIGNAL), 1);
        if (i % 3 == 1) { /* garbage; others say nothing */
            uint64_t garbage = 0x0101010100000040u + (uint64_t)i * 0x9e3779b97f4a7c15u * 65536;
            ck_assert_int_eq(8, (int)send(fds[i], &garbage, 8, MSG_NOSIGNAL));
        }
        if (i % 50 == 0)
            uv_run(&loop, UV_RUN_NOWAIT);
    }
    send_note(&a, "still there");
    connect_nodes(&c, &b);
    EXPECT(b.messages == 1);
    peers_each(b.peers, count_half_open, &half_open);
    ck_assert_uint_ge(half_open, 1);
    ck_assert_uint_le(half_open, 128);
    ck_assert_uint_eq(0, a.downs);
    for (int i = 0; i < STRANGERS; i++)
        EXPECT(is_ended(fds[i])); /* none of them stays beyond the time to connect */
    for (int i = 0; i < STRANGERS; i++)
        close(fds[i]);
    ck_assert_uint_eq(0, a.downs);
    ck_assert_uint_eq(0, c.downs);
}

static void garbage_into(int fd, uint32_t seed)
{
    uint8_t bytes[512];
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)((seed = seed * 1664525 + 1013904223) >> 24);
    bytes[0] = (uint8_t)(seed % 200), bytes[1] = bytes[2] = bytes[3] = 0; /* a length that will do */
    (void)send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL);
}

TEST(shm_hellos_of_strangers_are_refused)
{
    struct message hello = {.type = MESSAGE_SHM_HELLO, .shm_hello = {.token = 5, .node = 6}};
    int pair[2];
    node_start(&b, "b", "shm", NULL);
    for (int round = 0; round < 2; round++) {
        struct channel *channel;
        ck_assert_int_eq(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
        ck_assert_int_eq(STRAIT_OK, channel_create(pair[1], 4096, 4096, &channel));
        if (round == 1) { /* more than the hello has come */
            garbage_into(pair[0], 1);
            channel_read(channel);
        }
        peers_accept_shm(b.peers, channel, &hello.shm_hello);
        ck_assert(is_ended(pair[0]));
        close(pair[0]);
    }
}

TEST(garbage_ends_its_own_connection)
{
    node_start(&b, "b", "shm", NULL);
    for (uint32_t i = 0; i < 50; i++) {
        int fd = dial_b_from(INADDR_LOOPBACK);
        garbage_into(fd, i);
        EXPECT(is_ended(fd));
        close(fd);
    }
    ck_assert_uint_eq(0, b.ups);
}

int main(void)
{
    (void)machine_watch();
    return run_tests("peer_stranger", setup, stranger_teardown);
}
