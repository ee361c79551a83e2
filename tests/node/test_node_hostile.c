/* Clients that send what no library does: bytes, descriptors and messages. It costs them their connection at most, and
 * others do not notice. */
#include "tests/node/harness.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/socket_ring.h"
#include "tests/proto/frames.h"

/* ---- A pair of clients that must not be affected, and a client whose bytes the test writes itself ---------------- */

/* A client of nodes[0] with two pools that keeps working, and the state that must be unchanged in the end. */
static struct {
    struct party *party;
    struct test_pool *source, *sink;
    int descriptors;
} bystander;

static void bystander_works(void)
{
    move_all(bystander.source, bystander.sink);
}

static void setup(void)
{
    node_setup();
    test_node_init(&nodes[0], "a", "shm");
    nodes[0].options.clients = 200;
    nodes[0].options.clients_per_user = 200;
    test_node_start(&nodes[0]);
    bystander.party = party_open(&nodes[0]);
    bystander.source = pool_open(bystander.party, (struct geometry){0});
    bystander.sink = pool_open(bystander.party, (struct geometry){0});
    bystander_works();
    bystander.descriptors = open_descriptors();
}

static void teardown(void)
{
    /* First none whose hello is still to be read, then none beside the bystander. */
    WAIT(stat_of(bystander.party, "gauges.clients_half_open") == 0 && stat_of(bystander.party, "gauges.clients") == 1);
    ck_assert_double_eq(2, stat_of(bystander.party, "gauges.pools"));
    bystander_works();
    WAIT(open_descriptors() <= bystander.descriptors);
    ck_assert_uint_eq(0, bystander.party->disconnects);
    wait_quiet(bystander.party);
    node_teardown();
}

static int dial(void)
{
    return unix_dial(nodes[0].options.socket);
}

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

/* With `count` copies of the descriptor. */
static void send_fds(int fd, const struct message *message, int passed, uint32_t count)
{
    uint8_t *frame;
    size_t size;
    ck_assert_int_eq(STRAIT_OK, message_pack(message, &frame, &size));
    send_with_rights(fd, frame, size, passed, count);
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

/* ---- Bytes ------------------------------------------------------------------------------------------------------- */

TEST(random_bytes_end_their_connection_only)
{
    enum { CHUNK = 1 << 20 };
    uint8_t *bytes = malloc(CHUNK);
    struct rng rng = rng_init(1);
    for (int i = 0; i < 100; i++) {
        int fd = i % 2 != 0 ? dial() : dial_and_greet();
        rng_fill(&rng, bytes, CHUNK);
        if (i % 4 == 0) /* a frame of a likely length: all of it is read */
            bytes[2] = bytes[3] = 0;
        (void)send_bytes(fd, bytes, CHUNK);
        ck_assert(is_let_go(fd));
        close(fd);
        if (i % 10 == 0)
            bystander_works();
    }
    free(bytes);
}

/* More than there may be clients: they take no places, and only so many of them are kept. */
TEST(half_open_connections_keep_nobody_out)
{
    enum { MANY = 900, KEPT = 256 };
    static int fds[MANY];
    for (int i = 0; i < MANY; i++) {
        fds[i] = dial();
        if (i % 3 == 0)
            (void)send_bytes(fds[i], "\x40\0\0\0\x08", 5); /* the beginning of a frame */
        if (i % 300 == 0)
            bystander_works();
    }
    bystander_works();
    WAIT(stat_of(bystander.party, "counters.clients_refused_half_open") +
             stat_of(bystander.party, "counters.clients_refused_no_hello") >=
         MANY - KEPT);
    ck_assert_double_le(stat_of(bystander.party, "gauges.clients_half_open"), KEPT);
    ck_assert_double_eq(1, stat_of(bystander.party, "gauges.clients"));
    struct party *late = party_open(&nodes[0]);
    WAIT(late->connects == 1);
    party_close(late);
    for (int i = 0; i < MANY; i++)
        close(fds[i]);
}

/* What accepting fails with; 0: it works. This takes the place of the C library's function. */
static int accept_error;

int accept4(int fd, struct sockaddr *address, socklen_t *size, int flags)
{
    const int error = __atomic_load_n(&accept_error, __ATOMIC_SEQ_CST);
    if (error == 0)
        return (int)syscall(SYS_accept4, fd, address, size, flags);
    errno = error;
    return -1;
}

/* EMFILE is the system's own. */
static const int shortages[] = {EMFILE, ENFILE, ENOBUFS, ENOMEM};

/* At the socket of clients and at that of peers; metrics keep a descriptor (test_http). */
TEST_LOOP(without_descriptors_the_loop_rests_and_then_accepts_who_has_waited, COUNT(shortages))
{
    static const char garbage[64] = "GET / HTTP/1.0\r\n\r\n";
    struct sockaddr_un clients = {.sun_family = AF_UNIX};
    struct sockaddr_in peers = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    strcpy(clients.sun_path, nodes[0].options.socket);
    peers.sin_port = htons((uint16_t)atoi(strrchr(peers_address(nodes[0].node->peers), ':') + 1));
    bystander_works();
    int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), peer = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (shortages[_i] == EMFILE)
        descriptors_forbid();
    else
        __atomic_store_n(&accept_error, shortages[_i], __ATOMIC_SEQ_CST);
    int failed = connect(client, (struct sockaddr *)&clients, sizeof(clients)) |
                 connect(peer, (struct sockaddr *)&peers, sizeof(peers));
    double cpu = process_cpu_s();
    (void)poll(NULL, 0, 350);
    cpu = process_cpu_s() - cpu;
    __atomic_store_n(&accept_error, 0, __ATOMIC_SEQ_CST);
    if (shortages[_i] == EMFILE)
        descriptors_allow();
    ck_assert_int_eq(0, failed);
    ck_assert_double_lt(cpu, 0.15);
    double rests = stat_of(bystander.party, "counters.accept_rests_clients");
    ck_assert(rests >= 1 && rests <= 20);
    rests = stat_of(bystander.party, "counters.accept_rests_peers");
    ck_assert(rests >= 1 && rests <= 20);
    WAIT(stat_of(bystander.party, "gauges.clients_half_open") == 1);
    close(client);
    ck_assert(send_bytes(peer, garbage, sizeof(garbage)));
    ck_assert(is_let_go(peer));
    close(peer);
}

/* Each of them waits for a connection of its own, which is refused again and again. */
TEST(notes_to_as_many_addresses_as_a_client_may_name_leave_the_loop_time)
{
    enum { CLIENTS = 2 };
    int fds[CLIENTS];
    char address[32];
    for (uint32_t i = 0; i < CLIENTS; i++) {
        fds[i] = dial_and_greet();
        for (uint32_t n = 0; n < MESSAGE_NOTES_MAX; n++) {
            snprintf(address, sizeof(address), "127.%u.%u.%u:1", 1 + i, n / 250, 1 + n % 250);
            struct message note = {.type = MESSAGE_NOTIFY,
                                   .notify = {.peer_pool = own_pool,
                                              .peer_address = view_of(address, strlen(address)),
                                              .key = view_of("k", 1),
                                              .note = n}};
            send_message(fds[i], &note);
        }
    }
    (void)stats_text(bystander.party);
    pump_for(300); /* their back-offs have grown */
    double cpu = process_cpu_s();
    pump_for(1000);
    cpu = process_cpu_s() - cpu;
    ck_assert_double_lt(cpu, 0.5 * SLOW);
    bystander_works();
    for (int i = 0; i < CLIENTS; i++)
        close(fds[i]);
}

/* Two bytes ask for kilobytes that take long to write. */
TEST(who_asks_for_statistics_all_the_time_leaves_the_loop_time)
{
    enum { CLIENTS = 100, EACH = 64 };
    const struct message stats = {.type = MESSAGE_STATS};
    uint8_t *frame, frames[EACH * 16];
    size_t size;
    int fds[CLIENTS];
    ck_assert_int_eq(STRAIT_OK, message_pack(&stats, &frame, &size));
    ck_assert_uint_le(size, 16);
    for (int i = 0; i < EACH; i++)
        memcpy(frames + (size_t)i * size, frame, size);
    free(frame);
    for (int i = 0; i < CLIENTS; i++)
        fds[i] = dial_and_greet();
    WAIT(stat_of(bystander.party, "gauges.clients") == CLIENTS + 1);
    for (int i = 0; i < CLIENTS; i++)
        ck_assert(send_bytes(fds[i], frames, EACH * size));
    const double cpu = process_cpu_s();
    for (int i = 0; i < 3; i++)
        bystander_works();
    ck_assert_double_lt(process_cpu_s() - cpu, 0.2 * SLOW);
    for (int i = 0; i < CLIENTS; i++)
        close(fds[i]);
}

/* Valid frames of every type with some bits of theirs changed. */
TEST(mutated_frames_harm_nobody)
{
    struct rng rng = rng_init(2);
    int count;
    const struct golden *frames = golden_frames(&count);
    for (int round = 0; round < 600 / SLOW; round++) {
        uint8_t *frame;
        size_t size;
        const struct message *message = &frames[rng_below(&rng, (uint32_t)count)].message;
        ck_assert_int_eq(STRAIT_OK, message_pack(message, &frame, &size));
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
            bystander_works();
    }
}

/* ---- Signs of life ----------------------------------------------------------------------------------------------- */

static uint32_t pongs_of(struct channel *channel, uint32_t wanted)
{
    uint32_t pongs = 0;
    for (uint64_t end = now_ms() + 5000 * SLOW; now_ms() < end && pongs < wanted;) {
        struct pollfd ready = {.fd = channel_fd(channel), .events = POLLIN};
        struct message message = {0};
        int fds[CHANNEL_FDS_MAX];
        uint32_t fd_count;
        (void)poll(&ready, 1, 100);
        ck_assert_int_eq(STRAIT_OK, channel_read(channel));
        while (channel_next(channel, &message, fds, &fd_count) == STRAIT_OK) {
            pongs += message.type == MESSAGE_PONG;
            message_fini(&message);
        }
    }
    return pongs;
}

TEST(each_ping_is_answered)
{
    struct message ping = {.type = MESSAGE_PING};
    struct channel *channel;
    int fd = dial_and_greet();
    send_message(fd, &ping);
    send_message(fd, &ping);
    ck_assert_int_eq(STRAIT_OK, channel_create(fd, MESSAGE_BYTES_MAX, 1 << 20, &channel));
    ck_assert_uint_eq(2, pongs_of(channel, 2));
    channel_destroy(channel);
}

/* ---- Credit ------------------------------------------------------------------------------------------------------ */

TEST_LOOP(who_sends_more_notes_than_credit_is_let_go, 2)
{
    static const char data[STRAIT_NOTE_BYTES_MAX];
    const uint32_t fit = _i == 0 ? MESSAGE_NOTES_MAX : MESSAGE_NOTES_BYTES_MAX / STRAIT_NOTE_BYTES_MAX - 1;
    struct message note = {.type = MESSAGE_NOTIFY};
    note.notify.peer_address = view_of("127.0.0.1:1", 11); /* they wait for a connection */
    note.notify.key = view_of("k", 1);
    note.notify.data = view_of(data, _i == 0 ? 0 : sizeof(data));
    int fd = dial_and_greet();
    for (note.notify.note = 0; note.notify.note < fit; note.notify.note++)
        send_message(fd, &note);
    bystander_works();
    ck_assert(stat_of(bystander.party, "gauges.clients") == 2);
    for (note.notify.note = 0; note.notify.note < 2; note.notify.note++)
        send_message(fd, &note);
    ck_assert(is_let_go(fd));
    close(fd);
    bystander_works();
}

/* ---- The log ----------------------------------------------------------------------------------------------------- */

TEST(who_breaks_the_protocol_again_and_again_does_not_flood_the_log)
{
    enum { TIMES = 300 };
    static const uint8_t rubbish[64] = {0xff, 0xff, 0xff, 0x7f, 1};
    char text[65536] = "";
    int written = memfd_create("log", MFD_CLOEXEC), lines = 0;
    struct log *log;
    ck_assert_int_eq(STRAIT_OK, log_create(written, LOG_INFO, &log));
    test_node_init(&nodes[1], "b", "shm");
    nodes[1].log = log;
    test_node_start(&nodes[1]);
    const uint64_t begun = now_ms();
    for (int i = 0; i < TIMES; i++) {
        int fd = unix_dial(nodes[1].options.socket);
        (void)send_bytes(fd, rubbish, sizeof(rubbish));
        ck_assert(is_let_go(fd));
        close(fd);
    }
    const int seconds = (int)((now_ms() - begun) / 1000) + 2; /* that it touched */
    test_node_stop(&nodes[1]);
    log_destroy(log);
    ck_assert_int_gt((int)pread(written, text, sizeof(text) - 1, 0), 0);
    close(written);
    for (const char *at = text; (at = strstr(at, "pid=")) != NULL; at++)
        lines++;
    ck_assert_int_ge(lines, 1);
    ck_assert_int_le(lines, 10 * seconds);
    ck_assert_ptr_nonnull(strstr(text, "why=\"frame of 2147483647 bytes, at most 8388608\""));
}

/* ---- Descriptors ------------------------------------------------------------------------------------------------- */

TEST(descriptors_that_do_not_belong_are_closed)
{
    struct strait_memory memory;
    struct wire_region region;
    struct message pool = registration(&region), stats = {.type = MESSAGE_STATS};
    ck_assert_int_eq(STRAIT_OK, strait_alloc(16 * 4096, &memory));
    for (uint32_t i = 0; i < 40; i++) {
        int fd = dial_and_greet();
        if (i % 4 == 0)
            send_message(fd, &pool);
        else if (i % 4 == 1)
            send_fds(fd, &pool, memory.fd, 2 + i % 5);
        else if (i % 4 == 2)
            send_fds(fd, &stats, memory.fd, 1 + i % 7);
        else
            send_fds(fd, &pool, fd, 1); /* a socket is no memory */
        if (i % 4 == 1 || i % 4 == 2)
            ck_assert(is_let_go(fd));
        close(fd);
    }
    strait_free(&memory);
}

static void share_words(int fd, int words, uint32_t count)
{
    const struct message message = {.type = MESSAGE_WORDS, .words = {.count = count}};
    send_fds(fd, &message, words, 1);
}

/* Not every kernel has it. */
static int huge_memory(void)
{
    int fd = memfd_create("words", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    if (fd < 0 || ftruncate(fd, 2 << 20) != 0)
        return fd < 0 ? sealed_memory(4096, 0, NULL) : fd;
    ck_assert_int_eq(0, fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK));
    return fd;
}

TEST(words_that_cannot_be_shared_end_their_connection)
{
    struct strait_memory memory;
    const struct message wait = {.type = MESSAGE_WAIT, .wait = {.transfer = 1, .layer = -1, .word = 9, .value = 1}};
    int unsealed = sealed_memory(4096, 0, NULL), huge = huge_memory();
    ck_assert_int_eq(STRAIT_OK, strait_alloc(4096, &memory));
    for (uint32_t i = 0; i < 7; i++) {
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
        if (i == 6)
            share_words(fd, huge, 16);
        else if (i >= 4)
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
    close(huge);
    strait_free(&memory);
}

/* ---- Rings ------------------------------------------------------------------------------------------------------- */

static const uint32_t ring_sizes[] = {4096};

static void share_rings(int fd, int memfd, uint32_t bytes)
{
    const struct message message = {.type = MESSAGE_RINGS, .rings = {.bytes = bytes}};
    send_fds(fd, &message, memfd, 1);
}

TEST(rings_that_cannot_be_used_end_their_connection)
{
    const struct ring_file model = {.pairs = 1, .sizes = ring_sizes};
    const int unsealed = sealed_memory(ring_file_size(&model), 0, NULL), good = ring_file_make(&model);
    for (uint32_t i = 0; i < 4; i++) {
        int fd = dial_and_greet();
        if (i == 0)
            share_rings(fd, unsealed, 4096);
        else if (i == 1)
            share_rings(fd, good, 8192); /* more than there is */
        else if (i == 2)
            share_rings(fd, fd, 4096);
        else
            send_message(fd, &(struct message){.type = MESSAGE_RINGS, .rings.bytes = 4096}); /* without */
        ck_assert(is_let_go(fd));
        close(fd);
    }
    close(unsealed);
    close(good);
}

/* A client that has rings, and writes into them, and into what is beside them, what it likes. */
TEST_LOOP(whatever_a_ring_has_harms_nobody_else, 12)
{
    struct ring_file file = {.pairs = 1, .sizes = ring_sizes};
    const struct message stats = {.type = MESSAGE_STATS};
    struct rng rng = rng_init((uint64_t)_i);
    const int memfd = ring_file_make(&file), fd = dial_and_greet();
    uint8_t *frame, bytes[256];
    size_t size;
    require(ring_file_map(&file, memfd));
    struct ring out = ring_file_ring(&file, 0, true);
    share_rings(fd, memfd, 4096);
    ck_assert_int_eq(STRAIT_OK, message_pack(&stats, &frame, &size));
    for (uint32_t i = 0; i < 200; i++) { /* never taken out: its ring for the answers gets full */
        (void)ring_put(&out, frame, size);
        if (ring_must_wake(ring_file_sleeps(&file, true)) && send(fd, "", 1, MSG_NOSIGNAL) < 0)
            break;
    }
    for (uint32_t i = 0; i < 50; i++) {
        rng_fill(&rng, bytes, sizeof(bytes));
        if (_i % 4 == 0)
            memcpy(file.base + rng_below(&rng, 1024 - sizeof(bytes)), bytes, sizeof(bytes));
        else if (_i % 4 == 1)
            out.head->put += rng_below(&rng, 8192);
        else if (_i % 4 == 2)
            (void)ring_put(&out, bytes, sizeof(bytes));
        else
            send_with_rights(fd, bytes, sizeof(bytes), memfd, 3); /* that no frame has */
        if (send(fd, "", 1, MSG_NOSIGNAL) < 0)
            break;
    }
    bystander_works();
    close(fd);
    close(memfd);
    free(frame);
    ring_file_unmap(&file);
}

static bool is_offered_rings(struct channel *channel)
{
    struct message welcome = channel_await(channel, MESSAGE_WELCOME);
    bool offered = welcome.welcome.rings;
    message_fini(&welcome);
    return offered;
}

static struct channel *dial_by_channel(void)
{
    struct channel *channel;
    ck_assert_int_eq(STRAIT_OK, channel_create(dial_and_greet(), MESSAGE_BYTES_MAX, 1u << 20, &channel));
    return channel;
}

static void exchange(struct channel *channel, const struct message *message, int fd, enum message_type answer)
{
    ck_assert_int_eq(STRAIT_OK, channel_send(channel, message, &fd, channel_fds_of(message)));
    ck_assert_int_eq(STRAIT_OK, channel_flush(channel));
    struct message back = channel_await(channel, answer);
    message_fini(&back);
}

/* A client that is offered rings may take them, however many have come meanwhile. One that takes none leaves its place
 * to the next. */
TEST(rings_are_offered_to_no_more_clients_than_may_have_them)
{
    enum { CLIENTS = 150, RINGED_AT_MOST = 64 };
    static const struct message stats = {.type = MESSAGE_STATS},
                                rings = {.type = MESSAGE_RINGS, .rings = {.bytes = 4096}};
    const struct ring_file model = {.pairs = 1, .sizes = ring_sizes};
    const int memfd = ring_file_make(&model);
    struct channel *channels[CLIENTS], *next;
    bool offered[CLIENTS];
    int count = 0, declines = -1;
    for (int i = 0; i < CLIENTS; i++)
        channels[i] = dial_by_channel();
    for (int i = 0; i < CLIENTS; i++) {
        offered[i] = is_offered_rings(channels[i]);
        count += offered[i];
        if (offered[i])
            declines = i;
    }
    ck_assert_int_ge(count, 2);
    ck_assert_int_le(count, RINGED_AT_MOST);
    for (int i = 0; i < declines; i++)
        if (offered[i])
            exchange(channels[i], &rings, memfd, MESSAGE_RING);
    exchange(channels[declines], &stats, -1, MESSAGE_STATS_TEXT);
    next = dial_by_channel();
    ck_assert(is_offered_rings(next));
    exchange(next, &rings, memfd, MESSAGE_RING);
    channel_destroy(next);
    for (int i = 0; i < CLIENTS; i++)
        channel_destroy(channels[i]);
    close(memfd);
}

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

/* A greeted client with a pool, that then says what the library never would. */
static int dial_with_pool(struct strait_memory *memory)
{
    struct wire_region region;
    struct message pool = registration(&region);
    int fd = dial_and_greet();
    send_fds(fd, &pool, memory->fd, 1);
    return fd;
}

#define SAY_OFFER(number, ...)            \
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
#define SAY_EXPECT(number, ...)             \
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
#define SAY_START(number)                                                           \
    {                                                                               \
        .type = MESSAGE_START, .start = {.transfer = (number), .peer_pool = {{7}} } \
    }
#define SAY_APPEND(number, ...)                                                \
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
     {SAY_OFFER(1, .last = true, .list_count = 1, .lists = &low),
      SAY_EXPECT(2, .more = true, .list_count = 1, .lists = &high), SAY_START(2)}},
    {"started before its lists are complete, which then come",
     {SAY_OFFER(1, .last = true, .list_count = 1, .lists = &low), SAY_EXPECT(2, .more = true), SAY_START(2),
      SAY_EXPECT(2, .list_count = 1, .lists = &high)}},
    {"an offer started before its lists are complete",
     {SAY_EXPECT(2, .list_count = 1, .lists = &high), SAY_OFFER(1, .more = true, .list_count = 1, .lists = &low),
      SAY_START(1)}},
    {"both started, neither complete",
     {SAY_OFFER(1, .more = true), SAY_EXPECT(2, .more = true), SAY_START(1), SAY_START(2)}},
    {"the payload over and over",
     {SAY_OFFER(1, .list_count = 0), SAY_APPEND(1, .last = true, .more = true, .aux = {(const uint8_t *)"one", 3}),
      SAY_APPEND(1, .last = true, .more = true, .aux = {(const uint8_t *)"two", 3}),
      SAY_APPEND(1, .last = true, .aux = {(const uint8_t *)"three", 5})}},
    {"append after last",
     {SAY_OFFER(1, .last = true, .list_count = 1, .lists = &low), SAY_APPEND(1, .list_count = 1, .lists = &high)}},
    {"append to an expectation", {SAY_EXPECT(2, .list_count = 1, .lists = &high), SAY_APPEND(2, .last = true)}},
    {"append before the lists are complete", {SAY_OFFER(1, .more = true), SAY_APPEND(1, .last = true)}},
    {"a number used twice",
     {SAY_EXPECT(1, .list_count = 1, .lists = &high), SAY_EXPECT(1, .list_count = 1, .lists = &low),
      SAY_OFFER(1, .last = true)}},
    {"to itself, its own pages",
     {SAY_OFFER(1, .last = true, .list_count = 1, .lists = &low), SAY_EXPECT(2, .list_count = 1, .lists = &low),
      SAY_START(2)}},
    {"an offer that looks for itself",
     {SAY_OFFER(1, .last = true, .list_count = 1, .lists = &low), SAY_START(1), SAY_START(1)}},
    {"ended before it is complete",
     {SAY_EXPECT(2, .more = true, .list_count = 1, .lists = &high),
      {.type = MESSAGE_ABORT, .transfer = {2}},
      SAY_EXPECT(2, .list_count = 1, .lists = &low),
      {.type = MESSAGE_RELEASE, .transfer = {2}}}},
    {"pages made ready twice",
     {SAY_OFFER(1, .later = true, .list_count = 1, .lists = &low), SAY_EXPECT(2, .list_count = 1, .lists = &high),
      SAY_START(2), SAY_APPEND(1, .layer_count = 1), SAY_APPEND(1, .layer_count = 1), SAY_APPEND(1, .last = true)}},
    {"the pool goes while they run",
     {SAY_OFFER(1, .list_count = 1, .lists = &low),
      SAY_EXPECT(2, .list_count = 1, .lists = &high),
      SAY_START(2),
      SAY_START(1),
      {.type = MESSAGE_POOL_REMOVE, .pool_remove = {.pool = {{7}}}},
      SAY_APPEND(1, .last = true),
      SAY_START(2)}},
};

/* Turns of the loop pass between the parts, so that the first has been forgotten when the second comes. */
TEST_LOOP(a_request_that_failed_stays_dead_when_its_other_parts_come, 2)
{
    static const struct wire_page_list beyond = {.count = 4, .first_id = 15};
    const struct message first[] = {SAY_EXPECT(1, .more = true, .list_count = 1, .lists = &beyond),
                                    SAY_OFFER(1, .more = true, .list_count = 1, .lists = &beyond)};
    const struct message second[] = {SAY_EXPECT(1, .list_count = 1, .lists = &low),
                                     SAY_OFFER(1, .list_count = 1, .lists = &low)};
    struct strait_memory memory;
    ck_assert_int_eq(STRAIT_OK, strait_alloc(16 * 4096, &memory));
    double expectations = stat_of(bystander.party, "gauges.live_expectations"),
           offers = stat_of(bystander.party, "gauges.live_offers");
    int fd = dial_with_pool(&memory);
    send_message(fd, &first[_i]);
    pump_for(50);
    send_message(fd, &second[_i]);
    pump_for(50);
    ck_assert_double_eq(expectations, stat_of(bystander.party, "gauges.live_expectations"));
    ck_assert_double_eq(offers, stat_of(bystander.party, "gauges.live_offers"));
    bystander_works();
    close(fd);
    strait_free(&memory);
}

TEST_LOOP(what_no_library_says_harms_nobody, 2 * COUNT(plots))
{
    struct strait_memory memory;
    bool leaves_at_once = _i % 2 != 0;
    ck_assert_int_eq(STRAIT_OK, strait_alloc(16 * 4096, &memory));
    int fd = dial_with_pool(&memory);
    for (int i = 0; i < PLOT_MAX && plots[_i / 2].messages[i].type != MESSAGE_NONE; i++)
        send_message(fd, &plots[_i / 2].messages[i]);
    if (!leaves_at_once)
        pump_for(30);
    bystander_works();
    close(fd);
    strait_free(&memory);
}

int main(void)
{
    (void)machine_watch();
    return run_tests("node_hostile", setup, teardown);
}
