/* Who knocks without being a peer: other secrets, other versions, raw sockets that say nothing, too much or the wrong
 * thing. */
#include "tests/peers/peer_node.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/auth.h"

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
#endif

/* ---- Strangers: raw connections ---------------------------------------------------------------------------------- */

static int raw_dial(void)
{
    const char *address = peers_address(b.peers);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(strchr(address, ':') + 1))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(0, connect(fd, (struct sockaddr *)&to, sizeof(to)));
    return fd;
}

/* Has the other side closed it? */
static bool is_ended(int fd)
{
    char bytes[4096];
    ssize_t got = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN);
}

static struct channel *stranger; /* a connection to b on which the test says what it likes */

static void raw_connect(const char *secret)
{
    if (b.peers == NULL)
        node_start(&b, "b", "shm", secret);
    channel_destroy(stranger);
    ck_assert_int_eq(STRAIT_OK, channel_create(raw_dial(), MESSAGE_BYTES_MAX, 1 << 20, &stranger));
}

static void stranger_teardown(void)
{
    channel_destroy(stranger);
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

static struct message raw_hello(const uint8_t nonce[NONCE_BYTES], bool secret)
{
    return (struct message){
        .type = MESSAGE_PEER_HELLO,
        .peer_hello = {.version = PROTOCOL_VERSION,
                       .version_min = PROTOCOL_VERSION_MIN,
                       .node = 77,
                       .incarnation = 78,
                       .secret = secret,
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
    struct message hello = raw_hello(nonce, false);
    hello.peer_hello.version = newer[_i].version;
    hello.peer_hello.version_min = newer[_i].version_min;
    raw_send(&hello);
    comes(MESSAGE_PEER_HELLO); /* in any case, so that both can tell */
    comes(newer[_i].then);
}

TEST(a_hello_that_is_sent_back_is_refused)
{
    struct message message = {0};
    raw_connect(SECRET);
    ck_assert_int_eq(MESSAGE_PEER_HELLO, raw_next(&message));
    raw_send(&message);
    message_fini(&message);
    comes(MESSAGE_NONE);
}

enum proof { DIALLERS, ACCEPTORS, GIVEN };

/* Connects and sends a HELLO with a nonce that is always the same, and with a proof, which is made unless it is given:
 * by who dials or, falsely, by who accepts. Returns whether it is answered. */
static bool raw_prove(enum proof proof, uint8_t mac[MAC_BYTES])
{
    static const uint8_t nonce[NONCE_BYTES] = {9};
    struct secret secret = {.size = strlen(SECRET), .bytes = SECRET};
    struct message theirs = {0}, mine = raw_hello(nonce, true), message = {.type = MESSAGE_PEER_PROOF};
    raw_connect(SECRET);
    raw_send(&mine);
    ck_assert_int_eq(MESSAGE_PEER_HELLO, raw_next(&theirs));
    if (proof != GIVEN)
        auth_proof(&secret, proof == DIALLERS, &mine.peer_hello, &theirs.peer_hello, mac);
    message.peer_proof.mac = view_of(mac, MAC_BYTES);
    raw_send(&message);
    enum message_type type = raw_next(&message);
    if (type != MESSAGE_NONE) {
        uint8_t expected[MAC_BYTES];
        auth_proof(&secret, false, &mine.peer_hello, &theirs.peer_hello, expected);
        ck_assert_int_eq(MESSAGE_PEER_PROOF, type);
        ck_assert_mem_eq(expected, message.peer_proof.mac.data, MAC_BYTES);
        message_fini(&message);
    }
    message_fini(&theirs);
    return type != MESSAGE_NONE;
}

TEST(a_proof_is_of_no_use_on_another_connection)
{
    uint8_t mac[MAC_BYTES];
    ck_assert(raw_prove(DIALLERS, mac));
    ck_assert_uint_eq(0, b.metrics.auth_failures);
    ck_assert(!raw_prove(GIVEN, mac));
    ck_assert_uint_eq(1, b.metrics.auth_failures);
}

TEST(the_acceptors_proof_is_not_taken_for_the_diallers)
{
    uint8_t mac[MAC_BYTES];
    ck_assert(!raw_prove(ACCEPTORS, mac));
}

/* Messages that are not due, by what has been sent before. */
TEST_LOOP(a_message_out_of_turn_ends_the_connection, 3)
{
    static const uint8_t nonce[NONCE_BYTES] = {1};
    struct message message = {0}, note = note_message("?"), beat = {.type = MESSAGE_HEARTBEAT};
    raw_connect(NULL);
    struct message hello = raw_hello(nonce, false);
    if (_i >= 1)
        raw_send(&hello);
    raw_send(_i == 1 ? &beat : &note);
    while (raw_next(&message) != MESSAGE_NONE)
        message_fini(&message);
    ck_assert_uint_eq(1, b.metrics.peer_errors);
}

TEST(who_is_proved_but_makes_no_link_is_closed_in_time)
{
    uint8_t mac[MAC_BYTES];
    node_init(&b, "b", "shm");
    node_secret(&b, SECRET);
    b.options.connect_ms = 200;
    node_open(&b);
    ck_assert(raw_prove(DIALLERS, mac));
    uint64_t begun = uv_hrtime(), late = machine_late_ms();
    comes(MESSAGE_PEER_LINKS);
    comes(MESSAGE_NONE);
    ck_assert_uint_ge(ms_since(begun), 100);
    ck_assert_uint_le(ms_since(begun), 5000 + machine_late_ms() - late);
}

TEST(a_large_frame_before_the_proof_is_refused)
{
    node_start(&b, "b", "shm", NULL);
    int fd = raw_dial();
    uint32_t length = 4097;
    ck_assert_int_eq(4, (int)write(fd, &length, 4));
    EXPECT(is_ended(fd));
    close(fd);
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
    pair_init("shm");
    node_init(&c, "c", "shm");
    node_secret(&a, SECRET);
    node_secret(&b, SECRET);
    node_secret(&c, SECRET);
    pair_open();
    node_open(&c);
    connect_nodes(&a, &b);
    for (int i = 0; i < STRANGERS; i++) {
        fds[i] = raw_dial();
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
        int fd = raw_dial();
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
