/* What operators limit: how much clients may have, what it costs those who want more, and that others do not notice. */
#include "tests/node/harness.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/channel.h"

TEST_CASE(node_limits);

TEST_LOOP(too_many_transfers_fail_and_the_others_live, WIRES)
{
    struct pair pair = pair_init(_i);
    nodes[0].options.transfers = nodes[1].options.transfers = 4;
    pair_start(&pair, (struct geometry){0});
    struct flow *e[5];
    for (uint32_t i = 0; i < 5; i++)
        e[i] = EXPECT(pair.sink, name_of(i), LISTS({.count = 2, .first_id = 2 * i}));
    ends_failed(e[4], STRAIT_REASON_NO_MEMORY);
    ck_assert_uint_ne(0, strlen(e[4]->text));
    pull(e[0], OFFER(pair.source, "0", LISTS({.count = 2}), .last = true));
    e[4] = EXPECT(pair.sink, "4", LISTS({.count = 2, .first_id = 8}));
    pull(e[4], OFFER(pair.source, "4", LISTS({.count = 2}), .last = true));
    for (int i = 1; i < 4; i++)
        ck_assert(!e[i]->decided);
}

TEST(a_client_too_many_waits_until_another_leaves)
{
    struct party *parties[3];
    test_node_init(&nodes[0], "a", "shm");
    nodes[0].options.clients = 2;
    test_node_start(&nodes[0]);
    for (int i = 0; i < 2; i++) {
        parties[i] = party_open(&nodes[0]);
        WAIT(parties[i]->connects == 1);
    }
    parties[2] = party_open(&nodes[0]);
    WAIT(parties[2]->disconnects == 1);
    ck_assert_str_eq("too many clients (option clients=2)", parties[2]->lost);
    WAIT(stat_of(parties[0], "counters.clients_refused") >= 2); /* it tries again, and is told no more */
    ck_assert(!strait_client_connected(parties[2]->client));
    ck_assert_uint_eq(1, parties[2]->disconnects);
    double loop_ns = stat_of(parties[0], "counters.loop_cpu_ns"),
           all_ns = stat_of(parties[0], "counters.process_cpu_ns");
    ck_assert(loop_ns > 0 && all_ns > loop_ns);
    party_close(parties[1]);
    WAIT(parties[2]->connects == 1);
    ck_assert_uint_eq(0, parties[0]->disconnects);
}

/* A connection of another user, which only root can make: -1. */
static int dial_as_other(const char *path)
{
    enum { OTHER = 12345 };
    if (geteuid() != 0)
        return -1;
    ck_assert_int_eq(0, chmod(folder, 0755));
    ck_assert_int_eq(0, chmod(path, 0666));
    ck_assert_int_eq(0, (int)syscall(SYS_setresuid, -1, OTHER, -1)); /* of this thread */
    int fd = unix_dial(path);
    ck_assert_int_eq(0, (int)syscall(SYS_setresuid, -1, 0, -1));
    return fd;
}

static void say_hello(int fd)
{
    const struct message hello = {
        .type = MESSAGE_HELLO, .hello = {.version = PROTOCOL_VERSION, .version_min = PROTOCOL_VERSION_MIN, .pid = 1}};
    uint8_t *frame;
    size_t size;
    ck_assert_int_eq(STRAIT_OK, message_pack(&hello, &frame, &size));
    ck_assert_int_eq((int)size, (int)send(fd, frame, size, MSG_NOSIGNAL));
    free(frame);
}

/* The daemon's first message on this connection; the caller calls message_fini. */
static struct message first_message(int fd)
{
    struct channel *channel;
    struct message message;
    int fds[CHANNEL_FDS_MAX];
    uint32_t count;
    ck_assert_int_eq(STRAIT_OK, channel_create(dup(fd), MESSAGE_BYTES_MAX, 4096, &channel));
    enum strait_status status = STRAIT_ERR_AGAIN;
    WAIT(status == STRAIT_OK ||
         (channel_read(channel), status = channel_next(channel, &message, fds, &count)) == STRAIT_OK);
    channel_destroy(channel);
    return message;
}

static void is_refused(int fd, const char *why)
{
    struct message message = first_message(fd);
    char byte;
    ck_assert_int_eq(MESSAGE_REFUSED, message.type);
    ck_assert_int_eq(STRAIT_ERR_NO_SPACE, message.refused.status);
    ck_assert_uint_eq(strlen(why), message.refused.text.size);
    ck_assert_mem_eq(why, message.refused.text.data, message.refused.text.size);
    message_fini(&message);
    WAIT(recv(fd, &byte, 1, MSG_DONTWAIT) == 0);
    close(fd);
}

TEST(a_user_does_not_take_the_places_of_others)
{
    struct party *parties[4];
    char why[96];
    test_node_init(&nodes[0], "a", "shm");
    nodes[0].options.clients = 4;
    test_node_start(&nodes[0]);
    for (int i = 0; i < 4; i++) {
        parties[i] = party_open(&nodes[0]);
        WAIT(parties[i]->connects + parties[i]->disconnects == 1);
    }
    snprintf(why, sizeof(why), "too many clients of user %u (option clients-per-user=3)", geteuid());
    ck_assert_str_eq(why, parties[3]->lost);
    WAIT(stat_of(parties[0], "counters.clients_refused_per_user") >= 1);
    int other = dial_as_other(nodes[0].options.socket);
    if (other < 0)
        return;
    say_hello(other);
    struct message message = first_message(other);
    ck_assert_int_eq(MESSAGE_WELCOME, message.type);
    message_fini(&message);
    ck_assert_double_eq(4, stat_of(parties[0], "gauges.clients"));
    party_close(parties[0]); /* all places were taken; now one is free */
    WAIT(parties[3]->connects == 1);
    close(other);
}

/* Nothing, half a frame, or a byte now and then. */
TEST_LOOP(a_connection_that_sends_no_hello_in_time_is_refused, 3)
{
    test_node_init(&nodes[0], "a", "shm");
    nodes[0].options.connect_ms = 200;
    test_node_start(&nodes[0]);
    struct party *party = party_open(&nodes[0]);
    WAIT(party->connects == 1);
    int fd = unix_dial(nodes[0].options.socket);
    const uint64_t begun = now_ms();
    struct pollfd answer = {.fd = fd, .events = POLLIN};
    if (_i > 0)
        (void)!send(fd, "\x40\0\0\0\x08", 5, MSG_NOSIGNAL);
    while (poll(&answer, 1, 20) == 0 && now_ms() - begun < 30000)
        if (_i == 2)
            (void)!send(fd, "x", 1, MSG_NOSIGNAL);
    ck_assert_uint_ge(now_ms() - begun, 150);
    is_refused(fd, "no hello within 200 ms (option peer-timeout)");
    WAIT(stat_of(party, "counters.clients_refused_no_hello") == 1);
    ck_assert_double_eq(0, stat_of(party, "gauges.clients_half_open"));
    ck_assert_uint_eq(0, party->disconnects);
}

TEST(a_pool_over_the_quota_is_refused_and_fits_later)
{
    struct geometry large = {.pages = 256}, small = {.pages = 8};
    test_node_init(&nodes[0], "a", "shm");
    nodes[0].options.pool_bytes = 2u << 20;
    test_node_start(&nodes[0]);
    struct party *party = party_open(&nodes[0]);
    struct test_pool *first = pool_open(party, large), *second = pool_try(party, large);
    struct flow *e = EXPECT(second, "k", LISTS({.count = 2}));
    ends_failed(e, STRAIT_REASON_LOCAL);
    ck_assert(second->told && second->status != STRAIT_OK);
    ck_assert_uint_ne(0, strlen(second->text));
    (void)pool_open(party, small);
    strait_pool_remove(first->pool);
    WAIT(first->removed);
    (void)pool_open(party, large);
}

/* Also what it says is ready, layer by layer. */
TEST(what_a_request_takes_is_charged_to_its_client)
{
    enum { PAGES = 64, LAYERS = 32 };
    struct pair pair = pair_open(SAME, (struct geometry){.pages = PAGES, .layers = LAYERS});
    const double before = stat_of(pair.from, "gauges.request_bytes");
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = PAGES}), .later = true);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t page = 0; page < PAGES; page++)
            APPEND(o, LISTS({.first = page, .count = 1, .first_id = page}), .layer_first = (int32_t)layer,
                   .layer_count = 1, .last = layer == LAYERS - 1 && page == PAGES - 1);
    WAIT(stat_of(pair.from, "gauges.request_bytes") >= before + 16 * PAGES * LAYERS);
    pull(EXPECT(pair.sink, "k", LISTS({.count = PAGES})), o);
    WAIT(stat_of(pair.from, "gauges.request_bytes") == before);
}

TEST_LOOP(requests_too_many_to_wait_fail_and_the_others_wait, WIRES - 1)
{
    enum { ROOM = 4 };
    struct pair pair = pair_init(1 + _i);
    nodes[0].options.parked = ROOM;
    pair_start(&pair, (struct geometry){0});
    struct flow *e[ROOM + 1];
    for (uint32_t i = 0; i <= ROOM; i++) {
        e[i] = EXPECT(pair.sink, name_of(i), LISTS({.count = 2, .first_id = 2 * i}));
        flow_start(e[i], pair.source);
        if (i < ROOM)
            WAIT(stat_of(pair.from, "gauges.parked") == i + 1);
    }
    WAIT(e[ROOM]->decided);
    ck_assert_int_eq(STRAIT_FAILED, e[ROOM]->state);
    for (int i = 0; i < ROOM; i++)
        ck_assert(!e[i]->decided);
    arrives(e[0], OFFER(pair.source, "0", LISTS({.count = 2}), .last = true));
}

/* 256 spans for each that may wait: these need 1100. */
TEST_LOOP(a_request_too_fragmented_to_wait_fails, WIRES - 1)
{
    enum { FITS = 1000, PIECES = 1100 };
    struct pair pair = pair_init(1 + _i);
    nodes[0].options.parked = 4;
    pair_start(&pair, (struct geometry){.pages = PIECES, .row_bytes = 64});
    static struct strait_page_list lists[PIECES];
    for (uint32_t i = 0; i < PIECES; i++)
        lists[i] = (struct strait_page_list){.first = 2 * i, .count = 1, .first_id = i};
    for (uint32_t count = FITS; count <= PIECES; count += PIECES - FITS) {
        struct flow *e = EXPECT(pair.sink, "k", .lists = lists, .list_count = count);
        flow_start(e, pair.source);
        WAIT(e->decided || stat_of(pair.from, "gauges.parked") == 1);
        ck_assert(e->decided == (count == PIECES));
        strait_abort(e->transfer);
        ends_failed(e, count == PIECES ? STRAIT_REASON_NO_MEMORY : STRAIT_REASON_ABORTED);
        WAIT(stat_of(pair.from, "gauges.parked") == 0);
    }
}

TEST(a_client_that_reads_nothing_is_let_go)
{
    double clients = 2;
    struct pair pair = pair_open(SAME, (struct geometry){0});
    struct party *other = pair.from, *deaf = pair.to;
    struct flow *e = EXPECT(pair.sink, "k", LISTS({.count = 4}));
    (void)stats_text(deaf);
    deaf->deaf = true;
    while (clients == 2) { /* until the answers are more than the daemon keeps for one client */
        for (int i = 0; i < 500; i++)
            (void)strait_stats(deaf->client);
        clients = stat_of(other, "gauges.clients");
    }
    ck_assert_double_eq(1, clients);
    ck_assert_double_eq(1, stat_of(other, "gauges.pools"));
    deaf->deaf = false;
    ends_failed(e, STRAIT_REASON_LOCAL);
    WAIT(deaf->connects == 2);
    ck_assert_uint_eq(0, other->disconnects);
}

int main(void)
{
    return node_main("node_limits");
}
