/* The node inside the client's process, on pages that are plain memory. */
#include "tests/node/harness.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/channel.h"

#define SIZES "arena-bytes = 2M\nchunk-bytes = 256K\n"
#define SMALL SIZES "transports = shm\n" /* nothing but what the test needs */

static const struct geometry shape = {.pages = 32, .layers = 3, .pointers = true};

TEST(plain_memory_moves_inside_one_process)
{
    struct pair pair = pair_embedded(SMALL, shape);
    move_all(pair.source, pair.sink);
    pair_quiet(&pair);
}

TEST(two_embedded_nodes_reach_each_other)
{
    static const char options[] = SIZES "listen = 127.0.0.1:0\ntransports = tcp\n";
    struct test_pool *source = pool_open(party_embedded(options), shape);
    struct test_pool *sink = pool_open(party_embedded(options), shape);
    pool_fill(source, 1);
    struct flow *o = offer_all(source, "k"), *e = expect_all(sink, "k", 0);
    flow_start(o, sink);
    arrives(e, o);
}

/* Not under the thread sanitizer: the node's thread is detached, and a descriptor that gets the number of one which it
 * has closed counts as a race there. */
#ifndef __SANITIZE_THREAD__
TEST(closing_the_client_ends_its_node)
{
    struct party *first = party_embedded(SMALL); /* what libuv keeps is there after it */
    (void)pool_open(first, shape);
    party_close(first);
    pump_for(50);
    int before = open_descriptors();
    for (int i = 0; i < 3; i++) {
        struct party *party = party_embedded(SMALL);
        struct test_pool *pool = pool_open(party, shape);
        struct flow *e = EXPECT(pool, "k", LISTS({.count = 8}));
        WAIT(stat_of(party, "gauges.live_expectations") == 1);
        flow_release(e); /* a live one */
        party_close(party);
    }
    WAIT(open_descriptors() <= before + 6); /* memories of the pools */
}
#endif

/* When the child exits it has none of its parent's nodes to tell and to wait for. Not with the sanitizers, for which
 * what a child inherits and cannot use is leaked. */
TEST_LOOP(a_forked_child_may_embed_a_node_of_its_own, SANITIZED ? 0 : 1)
{
    struct test_pool *pool = pool_open(party_embedded(SMALL), shape);
    uint64_t began = now_ms();
    pid_t child = fork();
    if (child == 0) {
        struct party *own = party_embedded(SMALL);
        (void)pool_open(own, shape);
        party_close(own);
        exit(0);
    }
    int status = 1;
    ck_assert_int_eq(child, waitpid(child, &status, 0));
    ck_assert_int_eq(0, status);
    ck_assert_uint_lt(now_ms() - began, 5000);
    ck_assert(pool_as_imagined(pool));
}

/* ---- Options that are wrong -------------------------------------------------------------------------------------- */

/* What the library says on stderr while it refuses to open a client; to be freed. */
static char *refusal(const char *options, enum strait_status with)
{
    char path[256], *text = calloc(1, 1024);
    struct strait_client_config config = {.size = sizeof(config), .embedded = options};
    struct strait_client *none = NULL;
    snprintf(path, sizeof(path), "%s/refusal", folder);
    int kept = dup(STDERR_FILENO), said = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    ck_assert(text != NULL && kept >= 0 && said >= 0 && dup2(said, STDERR_FILENO) >= 0);
    enum strait_status status = strait_client_open(&config, &none);
    ck_assert_int_ge(dup2(kept, STDERR_FILENO), 0);
    ck_assert_int_eq(status, with);
    ck_assert_ptr_null(none);
    ck_assert_int_ge(pread(said, text, 1023, 0), 0);
    close(kept);
    close(said);
    unlink(path);
    return text;
}

static const struct bad_options {
    const char *options, *told;
    enum strait_status with;
} bad_options[] = {
    {"no-such-option = 1", "embedded options:1: no option is called no-such-option", STRAIT_ERR_INVALID},
    {SMALL "arena-bytes = many\n", "embedded options:4: arena-bytes: many is not a size", STRAIT_ERR_INVALID},
    {"listen = 8.8.8.8:1\n", "listen: 8.8.8.8:1 is not a loopback address", STRAIT_ERR_INVALID},
    {SMALL "codebook = /nonexistent\n", "codebook: /nonexistent: No such file or directory", STRAIT_ERR_IO},
    {SIZES "transports = ucx\nucx-options = tls=foo\n", "transports = ucx: none can be used (ucx: ", STRAIT_ERR_IO},
};

TEST_LOOP(bad_options_are_told_at_once, COUNT(bad_options))
{
    const struct bad_options *bad = &bad_options[_i];
    char *text = refusal(bad->options, bad->with);
    ck_assert_msg(strncmp(text, "strait: no embedded daemon: ", 28) == 0, "%s", text);
    ck_assert_msg(strncmp(text + 28, bad->told, strlen(bad->told)) == 0, "%s", text);
    ck_assert_ptr_eq(strchr(text, '\n'), text + strlen(text) - 1); /* a line */
    free(text);
}

/* ---- With a socket: others come to it ---------------------------------------------------------------------------- */

/* Its path is that of nodes[number], as if that one ran. */
static struct party *embedded_with_socket(int number)
{
    char options[512];
    struct node_options *o = &nodes[number].options;
    snprintf(o->socket, sizeof(o->socket), "%s/embedded-%d", folder, number);
    snprintf(options, sizeof(options), SMALL "listen = 127.0.0.1:0\nsocket = %s\n", o->socket);
    return party_embedded(options);
}

/* A peer that wants shared memory comes to the socket, too, and leaves it as a client would. */
TEST(two_embedded_nodes_share_memory)
{
    struct party *a = embedded_with_socket(0), *b = embedded_with_socket(1);
    struct test_pool *source = pool_open(a, shape), *sink = pool_open(b, shape);
    for (int i = 0; i < 3; i++) {
        move_all(source, sink);
        move_all(sink, source);
        pump_for(50);
    }
    ck_assert_uint_eq(0, a->disconnects + b->disconnects);
    ck_assert_double_eq(0, stat_of(a, "counters.peers_lost"));
}

TEST(a_client_of_an_embedded_node_may_leave)
{
    struct party *inside = embedded_with_socket(0);
    struct test_pool *pool = pool_open(inside, shape), *other = pool_open(inside, shape);
    for (int i = 0; i < 3; i++) {
        struct party *outside = party_open(&nodes[0]);
        struct test_pool *theirs = pool_open(outside, (struct geometry){.pages = 32, .layers = 3});
        move_all(pool, theirs);
        party_close(outside);
        pump_for(50);
    }
    move_all(pool, other);
    ck_assert_uint_eq(0, inside->disconnects);
}

static void say(struct channel *channel, const struct message *message)
{
    ck_assert_int_eq(STRAIT_OK, channel_send(channel, message, NULL, 0));
    ck_assert_int_eq(STRAIT_OK, channel_flush(channel));
}

static int32_t hear_status(struct channel *channel)
{
    int fds[CHANNEL_FDS_MAX];
    uint32_t count;
    for (uint64_t end = now_ms() + 5000 * SLOW; now_ms() < end;) {
        struct pollfd polled = {.fd = channel_fd(channel), .events = POLLIN};
        struct message message;
        if (poll(&polled, 1, 100) > 0)
            ck_assert_int_eq(STRAIT_OK, channel_read(channel));
        while (channel_next(channel, &message, fds, &count) == STRAIT_OK) {
            int32_t status = message.pool_status.status;
            bool is_status = message.type == MESSAGE_POOL_STATUS;
            message_fini(&message);
            if (is_status)
                return status;
        }
    }
    return STRAIT_OK;
}

/* The library would not even ask. */
TEST(a_pointer_is_refused_from_another_process)
{
    static uint8_t bytes[4096];
    struct party *inside = embedded_with_socket(0);
    struct channel *channel;
    struct message hello = {.type = MESSAGE_HELLO,
                            .hello = {.version = PROTOCOL_VERSION, .version_min = PROTOCOL_VERSION_MIN, .pid = 1}};
    struct wire_region region = {.handle = STRAIT_HANDLE_POINTER,
                                 .device = -1,
                                 .pointer = (uint64_t)(uintptr_t)bytes,
                                 .page_stride = 1024,
                                 .page_count = 4,
                                 .rows = 1,
                                 .row_bytes = 1024,
                                 .element = STRAIT_ELEMENT_BF16,
                                 .role = STRAIT_ROLE_K};
    struct message pool = {.type = MESSAGE_POOL_REGISTER,
                           .pool_register = {.pool = {{7}}, .region_count = 1, .regions = &region}};
    ck_assert_int_eq(STRAIT_OK,
                     channel_create(unix_dial(nodes[0].options.socket), MESSAGE_BYTES_MAX, 1u << 20, &channel));
    say(channel, &hello);
    say(channel, &pool);
    ck_assert_int_eq(STRAIT_ERR_INVALID, hear_status(channel));
    channel_destroy(channel);
    (void)pool_open(inside, (struct geometry){.pages = 4, .pointers = true});
}

int main(void)
{
    return node_main("node_embedded");
}
