/* What a client may not do, what it costs it, and that others do not notice. */
#include "tests/node_harness.h"

#include <errno.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/channel.h"
#include "tests/message_samples.h"

/* ---- Options ----------------------------------------------------------------------------------------------------- */

START_TEST(too_many_transfers_fail_and_the_others_live)
{
    struct pair pair;
    pair_init(&pair, (enum wire)_i);
    nodes[0].options.transfers = nodes[1].options.transfers = 4;
    pair_start(&pair);
    struct test_pool *source = pool_open(pair.source, (struct geometry){0}),
                     *sink = pool_open(pair.sink, (struct geometry){0});
    struct flow *e[5], *o;
    pool_fill(source, 1);
    for (uint32_t i = 0; i < 5; i++) {
        char key[4] = {(char)('a' + i), '\0'};
        e[i] = flow_expect(sink, (struct strait_expect_params){KEY(key), LISTS({.count = 2, .first_id = 2 * i})});
    }
    ends_failed(e[4], STRAIT_REASON_NO_MEMORY);
    ck_assert_uint_ne(0, strlen(e[4]->text));
    o = flow_offer(source, (struct strait_offer_params){KEY("a"), LISTS({.count = 2}), .last = true});
    flow_start(e[0], source);
    arrives(e[0], o);
    e[4] = flow_expect(sink, (struct strait_expect_params){KEY("e"), LISTS({.count = 2, .first_id = 8})});
    o = flow_offer(source, (struct strait_offer_params){KEY("e"), LISTS({.count = 2}), .last = true});
    flow_start(e[4], source);
    arrives(e[4], o);
    for (int i = 1; i < 4; i++)
        ck_assert(!e[i]->decided);
}
END_TEST

START_TEST(a_client_too_many_waits_until_another_leaves)
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
    pump_for(200);
    ck_assert(!strait_client_connected(parties[2]->client));
    ck_assert_double_ge(stat_of(parties[0], "counters.clients_refused"), 1);
    party_close(parties[1]);
    WAIT(parties[2]->connects == 1);
    ck_assert_uint_eq(0, parties[0]->disconnects);
}
END_TEST

START_TEST(a_pool_over_the_quota_is_refused_and_fits_later)
{
    struct geometry large = {.pages = 256}, small = {.pages = 8};
    test_node_init(&nodes[0], "a", "shm");
    nodes[0].options.pool_bytes = 2u << 20;
    test_node_start(&nodes[0]);
    struct party *party = party_open(&nodes[0]);
    struct test_pool *first = pool_open(party, large), *second = pool_try(party, large);
    struct flow *e = flow_expect(second, (struct strait_expect_params){KEY("k"), LISTS({.count = 2})});
    ends_failed(e, STRAIT_REASON_LOCAL);
    ck_assert(second->told && second->status != STRAIT_OK);
    ck_assert_uint_ne(0, strlen(second->text));
    (void)pool_open(party, small);
    strait_pool_remove(first->pool);
    WAIT(first->removed);
    (void)pool_open(party, large);
}
END_TEST

START_TEST(requests_too_many_to_wait_fail_and_the_others_wait)
{
    enum { ROOM = 4 };
    struct pair pair;
    pair_init(&pair, (enum wire)(1 + _i));
    nodes[0].options.parked = ROOM;
    pair_start(&pair);
    struct test_pool *source = pool_open(pair.source, (struct geometry){0}),
                     *sink = pool_open(pair.sink, (struct geometry){0});
    struct flow *e[ROOM + 1];
    pool_fill(source, 1);
    for (uint32_t i = 0; i <= ROOM; i++) {
        char key[4] = {(char)('a' + i), '\0'};
        e[i] = flow_expect(sink, (struct strait_expect_params){KEY(key), LISTS({.count = 2, .first_id = 2 * i})});
        flow_start(e[i], source);
        if (i < ROOM)
            WAIT(stat_of(pair.source, "gauges.parked") == i + 1);
    }
    WAIT(e[ROOM]->decided);
    ck_assert_int_eq(STRAIT_FAILED, e[ROOM]->state);
    for (int i = 0; i < ROOM; i++)
        ck_assert(!e[i]->decided);
    struct flow *o = flow_offer(source, (struct strait_offer_params){KEY("a"), LISTS({.count = 2}), .last = true});
    arrives(e[0], o);
}
END_TEST

/* 256 spans for each that may wait: these need 1100. */
START_TEST(a_request_too_fragmented_to_wait_fails)
{
    enum { FITS = 1000, PIECES = 1100 };
    struct geometry many = {.pages = PIECES, .row_bytes = 64};
    struct pair pair;
    pair_init(&pair, (enum wire)(1 + _i));
    nodes[0].options.parked = 4;
    pair_start(&pair);
    struct test_pool *source = pool_open(pair.source, many), *sink = pool_open(pair.sink, many);
    static struct strait_page_list lists[PIECES];
    for (uint32_t i = 0; i < PIECES; i++)
        lists[i] = (struct strait_page_list){.first = 2 * i, .count = 1, .first_id = i};
    for (uint32_t count = FITS; count <= PIECES; count += PIECES - FITS) {
        struct strait_expect_params params = {KEY("k"), .lists = lists, .list_count = count};
        struct flow *e = flow_expect(sink, params);
        flow_start(e, source);
        WAIT(e->decided || stat_of(pair.source, "gauges.parked") == 1);
        ck_assert(e->decided == (count == PIECES));
        strait_abort(e->transfer);
        ends_failed(e, count == PIECES ? STRAIT_REASON_NO_MEMORY : STRAIT_REASON_ABORTED);
        WAIT(stat_of(pair.source, "gauges.parked") == 0);
    }
}
END_TEST

START_TEST(notes_do_not_end_who_does_not_read_them)
{
    enum { NOTES = 1200 }; /* of 64 KiB: more than the daemon keeps for one client */
    static char data[STRAIT_NOTE_BYTES_MAX];
    test_node_init(&nodes[0], "a", "shm");
    test_node_start(&nodes[0]);
    struct party *writer = party_open(&nodes[0]), *deaf = party_open(&nodes[0]);
    struct test_pool *pool = pool_open(deaf, (struct geometry){0});
    struct flow *e = flow_expect(pool, (struct strait_expect_params){KEY("k"), LISTS({.count = 4})});
    struct strait_peer *peer = peer_of(writer, pool);
    (void)stats_text(deaf);
    deaf->deaf = true;
    for (int i = 0; i < NOTES; i++) {
        while (strait_notify(peer, "k", 1, data, sizeof(data)) == STRAIT_ERR_AGAIN)
            pump(1);
        if (i % 16 == 0)
            pump(0);
    }
    ck_assert_double_eq(2, stat_of(writer, "gauges.clients"));
    deaf->deaf = false;
    (void)stats_text(deaf);
    ck_assert(!e->decided);
    ck_assert_uint_eq(1, deaf->connects);
}
END_TEST

START_TEST(a_client_that_reads_nothing_is_let_go)
{
    double clients = 2;
    test_node_init(&nodes[0], "a", "shm");
    test_node_start(&nodes[0]);
    struct party *other = party_open(&nodes[0]), *deaf = party_open(&nodes[0]);
    struct test_pool *pool = pool_open(deaf, (struct geometry){0});
    struct flow *e = flow_expect(pool, (struct strait_expect_params){KEY("k"), LISTS({.count = 4})});
    (void)stats_text(deaf);
    deaf->deaf = true;
    while (clients == 2) { /* until the answers are more than the daemon keeps for one client */
        for (int i = 0; i < 500; i++)
            (void)strait_stats(deaf->client);
        clients = stat_of(other, "gauges.clients");
    }
    ck_assert_double_eq(1, clients);
    ck_assert_double_eq(0, stat_of(other, "gauges.pools"));
    deaf->deaf = false;
    ends_failed(e, STRAIT_REASON_LOCAL);
    WAIT(deaf->connects == 2);
    ck_assert_uint_eq(0, other->disconnects);
}
END_TEST

/* ---- Hostile clients --------------------------------------------------------------------------------------------- */

/* A pair of clients that goes on working, and what must be as before in the end. */
struct bystander {
    struct party *party;
    struct test_pool *source, *sink;
    uint32_t turn, descriptors;
};

static void bystander_works(struct bystander *b)
{
    char key[16];
    snprintf(key, sizeof(key), "%u", ++b->turn);
    pool_fill(b->source, b->turn);
    struct flow *o = flow_offer(b->source, (struct strait_offer_params){KEY(key), LISTS({.count = 16}), .last = true});
    struct flow *e = flow_expect(b->sink, (struct strait_expect_params){KEY(key), LISTS({.count = 16})});
    flow_start(e, b->source);
    arrives(e, o);
}

static void bystander_init(struct bystander *b)
{
    memset(b, 0, sizeof(*b));
    test_node_init(&nodes[0], "a", "shm");
    nodes[0].options.clients = 4096;
    test_node_start(&nodes[0]);
    b->party = party_open(&nodes[0]);
    b->source = pool_open(b->party, (struct geometry){0});
    b->sink = pool_open(b->party, (struct geometry){0});
    bystander_works(b);
    b->descriptors = open_descriptors();
}

static void bystander_fini(struct bystander *b)
{
    WAIT(stat_of(b->party, "gauges.clients") == 1);
    ck_assert_double_eq(2, stat_of(b->party, "gauges.pools"));
    bystander_works(b);
    WAIT(open_descriptors() <= b->descriptors);
    ck_assert_uint_eq(0, b->party->disconnects);
}

static int dial(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, nodes[0].options.socket, strlen(nodes[0].options.socket) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ck_assert_int_ge(fd, 0);
    while (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        ck_assert_int_eq(EAGAIN, errno); /* the backlog is full */
        usleep(1000);
    }
    return fd;
}

/* False: the daemon has closed. */
static bool send_bytes(int fd, const void *bytes, size_t size)
{
    for (size_t sent = 0; sent < size;) {
        struct pollfd ready = {.fd = fd, .events = POLLOUT};
        ssize_t n = send(fd, (const uint8_t *)bytes + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0)
            sent += (size_t)n;
        else if (errno != EAGAIN || poll(&ready, 1, 10000) != 1)
            return false;
    }
    return true;
}

static void send_message(int fd, const struct message *message)
{
    uint8_t *frame;
    size_t size;
    ck_assert_int_eq(STRAIT_OK, message_pack(message, &frame, &size));
    (void)send_bytes(fd, frame, size);
    free(frame);
}

static int dial_and_greet(void)
{
    struct message hello = {.type = MESSAGE_HELLO,
                            .hello = {.version = PROTOCOL_VERSION, .version_min = PROTOCOL_VERSION_MIN, .pid = 1}};
    int fd = dial();
    send_message(fd, &hello);
    return fd;
}

/* Waits until the daemon ends the connection. */
static bool is_let_go(int fd)
{
    char scrap[4096];
    for (uint64_t end = now_ms() + 5000 * SLOW; now_ms() < end;) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        (void)poll(&ready, 1, 100);
        ssize_t n = recv(fd, scrap, sizeof(scrap), MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN))
            return true;
    }
    return false;
}

START_TEST(random_bytes_end_their_connection_only)
{
    struct bystander b;
    enum { CHUNK = 1 << 20 };
    uint8_t *bytes = malloc(CHUNK);
    struct rng rng = rng_init(1);
    bystander_init(&b);
    for (int i = 0; i < 100; i++) {
        int fd = i % 2 != 0 ? dial() : dial_and_greet();
        rng_fill(&rng, bytes, CHUNK);
        if (i % 4 == 0) /* a frame of a likely length: all of it is read */
            bytes[2] = bytes[3] = 0;
        (void)send_bytes(fd, bytes, CHUNK);
        ck_assert(is_let_go(fd));
        close(fd);
        if (i % 10 == 0)
            bystander_works(&b);
    }
    free(bytes);
    bystander_fini(&b);
}
END_TEST

START_TEST(half_open_connections_cost_nothing)
{
    enum { MANY = 900 };
    struct bystander b;
    static int fds[MANY];
    bystander_init(&b);
    for (int i = 0; i < MANY; i++) {
        fds[i] = dial();
        if (i % 3 == 0)
            (void)send_bytes(fds[i], "\x40\0\0\0\x08", 5); /* the beginning of a frame */
        if (i % 300 == 0)
            bystander_works(&b);
    }
    bystander_works(&b);
    WAIT(stat_of(b.party, "gauges.clients") == MANY + 1);
    for (int i = 0; i < MANY; i++)
        close(fds[i]);
    bystander_fini(&b);
}
END_TEST

/* Valid frames of every type with some bits of theirs changed. */
START_TEST(mutated_frames_harm_nobody)
{
    struct bystander b;
    struct rng rng = rng_init(2);
    bystander_init(&b);
    for (int round = 0; round < 600 / SLOW; round++) {
        const struct message *sample = &samples[rng_below(&rng, (uint32_t)sample_count)].message;
        uint8_t *frame;
        size_t size;
        ck_assert_int_eq(STRAIT_OK, message_pack(sample, &frame, &size));
        int fd = dial_and_greet();
        for (uint32_t bits = rng_below(&rng, 4); bits > 0; bits--)
            frame[4 + rng_below(&rng, (uint32_t)size - 4)] ^= (uint8_t)(1u << rng_below(&rng, 8));
        (void)send_bytes(fd, frame, size);
        (void)send_bytes(fd, frame, size);
        free(frame);
        if (round % 8 == 0)
            (void)poll(NULL, 0, 1);
        close(fd);
        if (round % 100 == 0)
            bystander_works(&b);
    }
    bystander_fini(&b);
}
END_TEST

static void send_with_fds(int fd, const struct message *message, int passed, uint32_t count)
{
    uint8_t *frame;
    size_t size;
    char control[CMSG_SPACE(8 * sizeof(int))] = {0};
    ck_assert_int_eq(STRAIT_OK, message_pack(message, &frame, &size));
    struct iovec bytes = {.iov_base = frame, .iov_len = size};
    struct msghdr header = {.msg_iov = &bytes, .msg_iovlen = 1};
    if (count != 0) {
        header.msg_control = control;
        header.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(count * sizeof(int));
        for (uint32_t i = 0; i < count; i++)
            memcpy(CMSG_DATA(c) + i * sizeof(int), &passed, sizeof(int));
    }
    ck_assert_int_eq((int)size, (int)sendmsg(fd, &header, MSG_NOSIGNAL));
    free(frame);
}

static const struct pool_id own_pool = {{7}};

static struct message registration(struct wire_region *region)
{
    *region = (struct wire_region){.handle = STRAIT_HANDLE_MEMFD,
                                   .device = -1,
                                   .page_stride = 4096,
                                   .page_count = 16,
                                   .rows = 1,
                                   .row_bytes = 4096,
                                   .element = STRAIT_ELEMENT_BF16,
                                   .role = STRAIT_ROLE_K};
    return (struct message){.type = MESSAGE_POOL_REGISTER,
                            .pool_register = {.pool = own_pool, .fd_count = 1, .region_count = 1, .regions = region}};
}

START_TEST(descriptors_that_do_not_belong_are_closed)
{
    struct bystander b;
    struct strait_memory memory;
    struct wire_region region;
    struct message pool = registration(&region), stats = {.type = MESSAGE_STATS};
    ck_assert_int_eq(STRAIT_OK, strait_alloc(16 * 4096, &memory));
    bystander_init(&b);
    for (uint32_t i = 0; i < 40; i++) {
        int fd = dial_and_greet();
        if (i % 4 == 0)
            send_with_fds(fd, &pool, memory.fd, 0);
        else if (i % 4 == 1)
            send_with_fds(fd, &pool, memory.fd, 2 + i % 5);
        else if (i % 4 == 2)
            send_with_fds(fd, &stats, memory.fd, 1 + i % 7);
        else
            send_with_fds(fd, &pool, fd, 1); /* a socket is no memory */
        if (i % 4 == 1 || i % 4 == 2)
            ck_assert(is_let_go(fd));
        close(fd);
    }
    strait_free(&memory);
    bystander_fini(&b);
}
END_TEST

static void share_words(int fd, int words, uint32_t count)
{
    const struct message message = {.type = MESSAGE_WORDS, .words = {.count = count}};
    send_with_fds(fd, &message, words, 1);
}

static int unsealed_memory(size_t size)
{
    int fd = memfd_create("words", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_eq(0, ftruncate(fd, (off_t)size));
    return fd;
}

START_TEST(words_that_cannot_be_shared_end_their_connection)
{
    struct bystander b;
    struct strait_memory memory;
    const struct message wait = {.type = MESSAGE_WAIT, .wait = {.transfer = 1, .layer = -1, .word = 9, .value = 1}};
    int unsealed = unsealed_memory(4096);
    ck_assert_int_eq(STRAIT_OK, strait_alloc(4096, &memory));
    bystander_init(&b);
    for (uint32_t i = 0; i < 6; i++) {
        int fd = dial_and_greet();
        if (i == 0)
            share_words(fd, unsealed, 16);
        else if (i == 1)
            share_words(fd, memory.fd, 4096); /* more than there are */
        else if (i == 2)
            share_words(fd, fd, 16);
        if (i == 3 || i == 4)
            share_words(fd, memory.fd, i == 3 ? 16 : 9);
        if (i == 3)
            share_words(fd, memory.fd, 16); /* twice */
        if (i >= 4)
            send_message(fd, &wait); /* of a word that is not there */
        ck_assert(is_let_go(fd));
        close(fd);
    }
    int fd = dial_and_greet();
    share_words(fd, memory.fd, 10);
    send_message(fd, &wait); /* for what nobody knows */
    WAIT(((_Atomic uint32_t *)memory.base)[9] == 1);
    close(fd);
    close(unsealed);
    strait_free(&memory);
    bystander_fini(&b);
}
END_TEST

/* A greeted client with a pool, that then says what the library never would. */
static int dial_with_pool(struct strait_memory *memory)
{
    struct wire_region region;
    struct message pool = registration(&region);
    int fd = dial_and_greet();
    send_with_fds(fd, &pool, memory->fd, 1);
    return fd;
}

#define OFFER(number, ...)                \
    {                                     \
        .type = MESSAGE_OFFER, .offer = { \
            .transfer = (number),         \
            .pool = {{7}},                \
            .key = {KEY_BYTES, 1},        \
            .consumers = 1,               \
            .lease_ms = 60000,            \
            __VA_ARGS__                   \
        }                                 \
    }
#define EXPECT(number, ...)                 \
    {                                       \
        .type = MESSAGE_EXPECT, .expect = { \
            .transfer = (number),           \
            .pool = {{7}},                  \
            .key = {KEY_BYTES, 1},          \
            .sources = 1,                   \
            .deadline_ms = 60000,           \
            __VA_ARGS__                     \
        }                                   \
    }
#define START(number)                                                               \
    {                                                                               \
        .type = MESSAGE_START, .start = {.transfer = (number), .peer_pool = {{7}} } \
    }
#define APPEND(number, ...)                                                    \
    {                                                                          \
        .type = MESSAGE_APPEND, .append = {.transfer = (number), __VA_ARGS__ } \
    }
#define KEY_BYTES (const uint8_t *)"k"

static const struct wire_page_list low = {.count = 4}, high = {.count = 4, .first_id = 8};

enum { PLOT_MAX = 8 };
static const struct {
    const char *what;
    struct message messages[PLOT_MAX];
} plots[] = {
    {"started before its lists are complete, of an offer that is",
     {OFFER(1, .last = true, .list_count = 1, .lists = &low), EXPECT(2, .more = true, .list_count = 1, .lists = &high),
      START(2)}},
    {"started before its lists are complete, which then come",
     {OFFER(1, .last = true, .list_count = 1, .lists = &low), EXPECT(2, .more = true), START(2),
      EXPECT(2, .list_count = 1, .lists = &high)}},
    {"an offer started before its lists are complete",
     {EXPECT(2, .list_count = 1, .lists = &high), OFFER(1, .more = true, .list_count = 1, .lists = &low), START(1)}},
    {"both started, neither complete", {OFFER(1, .more = true), EXPECT(2, .more = true), START(1), START(2)}},
    {"the payload over and over",
     {OFFER(1, .list_count = 0), APPEND(1, .last = true, .more = true, .aux = {(const uint8_t *)"one", 3}),
      APPEND(1, .last = true, .more = true, .aux = {(const uint8_t *)"two", 3}),
      APPEND(1, .last = true, .aux = {(const uint8_t *)"three", 5})}},
    {"append after last",
     {OFFER(1, .last = true, .list_count = 1, .lists = &low), APPEND(1, .list_count = 1, .lists = &high)}},
    {"append to an expectation", {EXPECT(2, .list_count = 1, .lists = &high), APPEND(2, .last = true)}},
    {"append before the lists are complete", {OFFER(1, .more = true), APPEND(1, .last = true)}},
    {"a number used twice",
     {EXPECT(1, .list_count = 1, .lists = &high), EXPECT(1, .list_count = 1, .lists = &low), OFFER(1, .last = true)}},
    {"to itself, its own pages",
     {OFFER(1, .last = true, .list_count = 1, .lists = &low), EXPECT(2, .list_count = 1, .lists = &low), START(2)}},
    {"an offer that looks for itself", {OFFER(1, .last = true, .list_count = 1, .lists = &low), START(1), START(1)}},
    {"ended before it is complete",
     {EXPECT(2, .more = true, .list_count = 1, .lists = &high),
      {.type = MESSAGE_ABORT, .transfer = {2}},
      EXPECT(2, .list_count = 1, .lists = &low),
      {.type = MESSAGE_RELEASE, .transfer = {2}}}},
    {"pages made ready twice",
     {OFFER(1, .later = true, .list_count = 1, .lists = &low), EXPECT(2, .list_count = 1, .lists = &high), START(2),
      APPEND(1, .layer_count = 1), APPEND(1, .layer_count = 1), APPEND(1, .last = true)}},
    {"the pool goes while they run",
     {OFFER(1, .list_count = 1, .lists = &low),
      EXPECT(2, .list_count = 1, .lists = &high),
      START(2),
      START(1),
      {.type = MESSAGE_POOL_REMOVE, .pool_remove = {.pool = {{7}}}},
      APPEND(1, .last = true),
      START(2)}},
};

/* Turns of the loop pass between the parts, so that the first has been forgotten when the second comes. */
START_TEST(a_request_that_failed_stays_dead_when_its_other_parts_come)
{
    static const struct wire_page_list beyond = {.count = 4, .first_id = 15};
    const struct message first[] = {EXPECT(1, .more = true, .list_count = 1, .lists = &beyond),
                                    OFFER(1, .more = true, .list_count = 1, .lists = &beyond)};
    const struct message second[] = {EXPECT(1, .list_count = 1, .lists = &low),
                                     OFFER(1, .list_count = 1, .lists = &low)};
    struct bystander b;
    struct strait_memory memory;
    ck_assert_int_eq(STRAIT_OK, strait_alloc(16 * 4096, &memory));
    bystander_init(&b);
    double expectations = stat_of(b.party, "gauges.live_expectations"), offers = stat_of(b.party, "gauges.live_offers");
    int fd = dial_with_pool(&memory);
    send_message(fd, &first[_i]);
    pump_for(50);
    send_message(fd, &second[_i]);
    pump_for(50);
    ck_assert_double_eq(expectations, stat_of(b.party, "gauges.live_expectations"));
    ck_assert_double_eq(offers, stat_of(b.party, "gauges.live_offers"));
    bystander_works(&b);
    close(fd);
    strait_free(&memory);
    bystander_fini(&b);
    wait_quiet(b.party);
}
END_TEST

START_TEST(what_no_library_says_harms_nobody)
{
    struct bystander b;
    struct strait_memory memory;
    bool leaves_at_once = _i % 2 != 0;
    ck_assert_int_eq(STRAIT_OK, strait_alloc(16 * 4096, &memory));
    bystander_init(&b);
    int fd = dial_with_pool(&memory);
    for (int i = 0; i < PLOT_MAX && plots[_i / 2].messages[i].type != MESSAGE_NONE; i++)
        send_message(fd, &plots[_i / 2].messages[i]);
    if (!leaves_at_once)
        pump_for(30);
    bystander_works(&b);
    close(fd);
    strait_free(&memory);
    bystander_fini(&b);
    wait_quiet(b.party);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("node_limits");
    TCase *tcase = node_case(suite, "limits");
    tcase_add_loop_test(tcase, too_many_transfers_fail_and_the_others_live, 0, WIRES);
    tcase_add_test(tcase, a_client_too_many_waits_until_another_leaves);
    tcase_add_test(tcase, a_pool_over_the_quota_is_refused_and_fits_later);
    tcase_add_loop_test(tcase, requests_too_many_to_wait_fail_and_the_others_wait, 0, WIRES - 1);
    tcase_add_loop_test(tcase, a_request_too_fragmented_to_wait_fails, 0, WIRES - 1);
    tcase_add_test(tcase, notes_do_not_end_who_does_not_read_them);
    tcase_add_test(tcase, a_client_that_reads_nothing_is_let_go);
    tcase = node_case(suite, "hostile");
    tcase_add_test(tcase, random_bytes_end_their_connection_only);
    tcase_add_test(tcase, half_open_connections_cost_nothing);
    tcase_add_test(tcase, mutated_frames_harm_nobody);
    tcase_add_test(tcase, descriptors_that_do_not_belong_are_closed);
    tcase_add_test(tcase, words_that_cannot_be_shared_end_their_connection);
    tcase_add_loop_test(tcase, a_request_that_failed_stays_dead_when_its_other_parts_come, 0, 2);
    tcase_add_loop_test(tcase, what_no_library_says_harms_nobody, 0, 2 * COUNT(plots));
    return node_main(suite);
}
