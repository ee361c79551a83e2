#include <check.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <strait/codec.h>
#include <strait/strait.h>

#include "proto/blob.h"
#include "proto/channel.h"
#include "tests/support.h"

#define ADDRESS     "node7.example:7470"
#define SEEN_MAX    6000
#define GOT_MAX     64
#define PATIENCE_MS 3000
#define PAGES       4096u
#define PAGE_BYTES  256u

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

/* ---- A daemon that does what a test tells it
 * --------------------------------------------------------------------------- */

struct got {
    struct message message;
    int fds[CHANNEL_FDS_MAX];
    uint32_t fd_count;
};

static struct {
    char folder[32], path[64];
    int listener;
    struct channel *channel;
    bool ended, deaf;
    struct got got[GOT_MAX];
    uint32_t count;
} fake;

static void fake_listen(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, fake.path);
    unlink(fake.path);
    fake.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ck_assert_int_eq(0, bind(fake.listener, (struct sockaddr *)&address, sizeof(address)));
    ck_assert_int_eq(0, listen(fake.listener, 8));
}

static void fake_stop_listening(void)
{
    if (fake.listener >= 0)
        close(fake.listener);
    fake.listener = -1;
    unlink(fake.path);
}

static void fake_forget(void)
{
    for (uint32_t i = 0; i < fake.count; i++) {
        message_fini(&fake.got[i].message);
        for (uint32_t k = 0; k < fake.got[i].fd_count; k++)
            close(fake.got[i].fds[k]);
    }
    fake.count = 0;
}

static void fake_hang_up(void)
{
    channel_destroy(fake.channel);
    fake.channel = NULL;
}

static void fake_accept(void)
{
    int fd = fake.listener >= 0 ? accept4(fake.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK) : -1;
    if (fd < 0)
        return;
    fake.ended = false;
    ck_assert_int_eq(STRAIT_OK, channel_create(fd, MESSAGE_BYTES_MAX, 64u << 20, &fake.channel));
}

static void fake_step(void)
{
    if (fake.channel == NULL)
        fake_accept();
    if (fake.channel == NULL || fake.deaf)
        return;
    fake.ended |= channel_read(fake.channel) != STRAIT_OK;
    for (;;) {
        struct got *got = &fake.got[fake.count];
        ck_assert_uint_lt(fake.count, GOT_MAX);
        enum strait_status status = channel_next(fake.channel, &got->message, got->fds, &got->fd_count);
        if (status == STRAIT_ERR_AGAIN)
            break;
        ck_assert_int_eq(STRAIT_OK, status);
        fake.count++;
    }
    channel_flush(fake.channel);
}

static void fake_say(const struct message *message)
{
    ck_assert_int_eq(STRAIT_OK, channel_send(fake.channel, message, NULL, 0));
    while (channel_wants_write(fake.channel))
        ck_assert_int_eq(STRAIT_OK, channel_flush(fake.channel));
}

static void fake_say_bytes(const void *bytes, size_t size)
{
    ck_assert_int_eq((int)size, (int)send(channel_fd(fake.channel), bytes, size, MSG_NOSIGNAL));
}

static uint8_t codebook_id[CODEBOOK_ID_BYTES] = {1, 2, 3};

static void fake_welcome(uint32_t version)
{
    struct message message = {.type = MESSAGE_WELCOME};
    message.welcome.version = version;
    message.welcome.incarnation = 77;
    message.welcome.address = view_of(ADDRESS, strlen(ADDRESS));
    message.welcome.codebook_id = view_of(codebook_id, sizeof(codebook_id));
    message.welcome.daemon = view_of("fake", 4);
    fake_say(&message);
}

static void fake_state(uint64_t transfer, enum strait_state state, enum strait_reason reason, bool drained)
{
    struct message message = {.type = MESSAGE_STATE};
    message.state.transfer = transfer;
    message.state.state = state;
    message.state.reason = reason;
    message.state.drained = drained;
    fake_say(&message);
}

static void fake_drained(uint64_t transfer)
{
    fake_say(&(struct message){.type = MESSAGE_DRAINED, .transfer.transfer = transfer});
}

static void fake_pool_status(const struct strait_pool *pool, enum strait_status status, bool removed)
{
    struct message message = {.type = MESSAGE_POOL_STATUS};
    memcpy(&message.pool_status.pool, strait_pool_id(pool), STRAIT_POOL_ID_BYTES);
    message.pool_status.status = status;
    message.pool_status.removed = removed;
    message.pool_status.text = view_of("because", 7);
    fake_say(&message);
}

/* ---- What the client told, kept beyond its next poll
 * --------------------------------------------------------------------- */

struct seen {
    struct strait_event event;
    char text[128];
    struct strait_failed_page *failed;
    uint8_t *data;
};

static struct seen seen[SEEN_MAX];
static uint32_t seen_count;
static struct strait_client *client;
static struct strait_memory memory;

static void keep_event(const struct strait_event *event)
{
    ck_assert_uint_lt(seen_count, SEEN_MAX);
    struct seen *kept = &seen[seen_count++];
    kept->event = *event;
    snprintf(kept->text, sizeof(kept->text), "%s", event->text);
    kept->failed = calloc(event->failed_count + 1, sizeof(*kept->failed));
    kept->data = calloc(1, event->data_size + 1);
    for (uint32_t i = 0; i < event->failed_count; i++)
        kept->failed[i] = event->failed[i];
    if (event->data_size > 0)
        memcpy(kept->data, event->data, event->data_size);
}

static void forget_events(void)
{
    for (uint32_t i = 0; i < seen_count; i++) {
        free(seen[i].failed);
        free(seen[i].data);
    }
    seen_count = 0;
}

static void step(void)
{
    struct strait_event events[16];
    fake_step();
    uint32_t count = strait_poll(client, events, 16);
    for (uint32_t i = 0; i < count; i++)
        keep_event(&events[i]);
    fake_step();
}

static long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void rest(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 300000}, NULL);
}

#define until(condition)                                                          \
    do {                                                                          \
        long end_ = now_ms() + PATIENCE_MS;                                       \
        while (step(), !(condition)) {                                            \
            ck_assert_msg(now_ms() < end_, "did not come to be: %s", #condition); \
            rest();                                                               \
        }                                                                         \
    } while (0)

/* Whatever is under way arrives. */
static void settle(void)
{
    for (int i = 0; i < 8; i++)
        step();
}

static const struct seen *find_event(enum strait_event_type type, uint32_t nth)
{
    for (uint32_t i = 0; i < seen_count; i++)
        if (seen[i].event.type == type && nth-- == 0)
            return &seen[i];
    return NULL;
}

static uint32_t count_events(enum strait_event_type type)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < seen_count; i++)
        count += seen[i].event.type == type;
    return count;
}

static const struct message *find_got(enum message_type type, uint32_t nth)
{
    for (uint32_t i = 0; i < fake.count; i++)
        if (fake.got[i].message.type == type && nth-- == 0)
            return &fake.got[i].message;
    return NULL;
}

/* ---- Setting up
 * -------------------------------------------------------------------------------------------------------------- */

static int open_descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

static int descriptors_before;

static void set_up(void)
{
    descriptors_before = open_descriptors();
    strcpy(fake.folder, "/tmp/strait-client-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(fake.folder));
    snprintf(fake.path, sizeof(fake.path), "%s/socket", fake.folder);
    fake.listener = -1;
    ck_assert_int_eq(STRAIT_OK, strait_alloc((size_t)PAGES * PAGE_BYTES * 4, &memory));
}

/* Nothing is left behind, in any test. */
static void tear_down(void)
{
    strait_client_close(client);
    client = NULL;
    strait_free(&memory);
    fake_forget();
    fake_hang_up();
    fake_stop_listening();
    forget_events();
    rmdir(fake.folder);
    ck_assert_int_eq(descriptors_before, open_descriptors());
}

static void open_client(void)
{
    struct strait_client_config config = {.size = sizeof(config), .socket = fake.path};
    ck_assert_int_eq(STRAIT_OK, strait_client_open(&config, &client));
}

static void connect_client(void)
{
    fake_listen();
    open_client();
    until(find_got(MESSAGE_HELLO, 0) != NULL);
    fake_welcome(PROTOCOL_VERSION);
    until(strait_client_connected(client));
}

static struct strait_pool_region region_of(uint32_t group, int32_t layer, uint32_t role)
{
    return (struct strait_pool_region){
        .handle = STRAIT_HANDLE_MEMFD,
        .device = -1,
        .fd = memory.fd,
        .page_stride = PAGE_BYTES,
        .page_count = PAGES,
        .rows = 1,
        .row_bytes = PAGE_BYTES,
        .element = STRAIT_ELEMENT_BF16,
        .role = role,
        .layer = layer,
        .group = group,
    };
}

static struct strait_pool *register_pool(void)
{
    struct strait_pool_region regions[2] = {region_of(0, 0, STRAIT_ROLE_V), region_of(0, 0, STRAIT_ROLE_K)};
    struct strait_pool_params params = {.size = sizeof(params), .regions = regions, .region_count = 2};
    struct strait_pool *pool = NULL;
    ck_assert_int_eq(STRAIT_OK, strait_pool_register(client, &params, &pool));
    return pool;
}

static struct strait_expect_params expect_params(const struct strait_page_list *lists, uint32_t count)
{
    return (struct strait_expect_params){
        .size = sizeof(struct strait_expect_params),
        .key = "request",
        .key_size = 7,
        .lists = lists,
        .list_count = count,
        .deadline_ms = 10000,
        .context = &memory,
    };
}

static struct strait_offer_params offer_params(const struct strait_page_list *lists, uint32_t count)
{
    return (struct strait_offer_params){
        .size = sizeof(struct strait_offer_params),
        .key = "request",
        .key_size = 7,
        .lists = lists,
        .list_count = count,
        .lease_ms = 10000,
        .context = &memory,
    };
}

static struct strait_transfer *expect_pages(struct strait_pool *pool, uint32_t first, uint32_t count,
                                            uint32_t deadline_ms)
{
    struct strait_page_list list = {.first_id = first, .count = count};
    struct strait_expect_params params = expect_params(&list, 1);
    struct strait_transfer *transfer = NULL;
    params.deadline_ms = deadline_ms;
    ck_assert_int_eq(STRAIT_OK, strait_expect(pool, &params, &transfer));
    return transfer;
}

/* A connected client whose one pool the daemon has, and one expectation it knows; its number. */
static struct strait_transfer *expected(struct strait_pool **pool, uint64_t *id, uint32_t deadline_ms)
{
    connect_client();
    *pool = register_pool();
    struct strait_transfer *transfer = expect_pages(*pool, 5, 3, deadline_ms);
    until(find_got(MESSAGE_EXPECT, 0) != NULL);
    *id = find_got(MESSAGE_EXPECT, 0)->expect.transfer;
    forget_events();
    return transfer;
}

static struct strait_peer *import_peer(const struct strait_pool *pool)
{
    uint8_t blob[4096];
    size_t size = 0;
    struct strait_peer *peer = NULL;
    ck_assert_int_eq(STRAIT_OK, strait_pool_export(pool, blob, sizeof(blob), &size));
    ck_assert_int_eq(STRAIT_OK, strait_peer_import(client, blob, size, &peer));
    return peer;
}

/* ---- Connecting
 * -------------------------------------------------------------------------------------------------------------- */

START_TEST(the_client_greets_and_tells_when_it_is_connected)
{
    connect_client();
    const struct message_hello *hello = &find_got(MESSAGE_HELLO, 0)->hello;
    ck_assert_uint_eq(PROTOCOL_VERSION, hello->version);
    ck_assert_uint_eq(PROTOCOL_VERSION_MIN, hello->version_min);
    ck_assert_uint_eq((uint32_t)getpid(), hello->pid);
    ck_assert_uint_gt(hello->library.size, 0);
    ck_assert_uint_eq(1, seen_count);
    ck_assert_int_eq(STRAIT_EVENT_CONNECTION, seen[0].event.type);
    ck_assert(seen[0].event.connected);
}
END_TEST

START_TEST(a_daemon_of_another_version_is_told_once_and_fails_what_waits)
{
    fake_listen();
    open_client();
    struct strait_pool *pool = register_pool();
    struct strait_transfer *transfer = expect_pages(pool, 0, 2, 60000);
    for (int i = 0; i < 3; i++) {
        until(find_got(MESSAGE_HELLO, 0) != NULL);
        fake_welcome(PROTOCOL_VERSION + 1);
        until(fake.ended);
        fake_forget();
        fake_hang_up();
    }
    ck_assert_uint_eq(1, count_events(STRAIT_EVENT_CONNECTION));
    ck_assert_int_eq(STRAIT_ERR_UNSUPPORTED, find_event(STRAIT_EVENT_CONNECTION, 0)->event.status);
    ck_assert(!find_event(STRAIT_EVENT_CONNECTION, 0)->event.connected);
    const struct seen *failed = find_event(STRAIT_EVENT_STATE, 0);
    ck_assert_ptr_eq(transfer, failed->event.transfer);
    ck_assert_int_eq(STRAIT_REASON_LOCAL, failed->event.reason);
    ck_assert(failed->event.drained);
    ck_assert_str_ne("", failed->text);
}
END_TEST

START_TEST(without_a_daemon_transfers_end_at_their_deadline_and_lease)
{
    open_client();
    ck_assert(!strait_client_connected(client));
    struct strait_pool *pool = register_pool();
    struct strait_transfer *sink = expect_pages(pool, 7, 2, 60), *source = NULL;
    struct strait_offer_params params = offer_params(NULL, 0);
    params.lease_ms = 90;
    long began = now_ms();
    ck_assert_int_eq(STRAIT_OK, strait_offer(pool, &params, &source));
    struct strait_event event;
    ck_assert_uint_eq(1, strait_wait(client, &event, 1, PATIENCE_MS));
    ck_assert_int_ge((int)(now_ms() - began), 55);
    ck_assert_ptr_eq(sink, event.transfer);
    ck_assert_int_eq(STRAIT_FAILED, event.state);
    ck_assert_int_eq(STRAIT_REASON_TIMEOUT, event.reason);
    ck_assert(event.drained);
    ck_assert_ptr_eq(&memory, event.context);
    ck_assert_uint_eq(2, event.failed_count);
    ck_assert_uint_eq(7, event.failed[0].id);
    ck_assert_uint_eq(8, event.failed[1].id);
    ck_assert_uint_eq(1, strait_wait(client, &event, 1, PATIENCE_MS));
    ck_assert_ptr_eq(source, event.transfer);
    ck_assert_int_eq(STRAIT_REASON_LEASE_EXPIRED, event.reason);
    ck_assert(event.drained);
    fake_listen(); /* the daemon that comes hears nothing of them */
    until(find_got(MESSAGE_HELLO, 0) != NULL);
    fake_welcome(PROTOCOL_VERSION);
    until(find_got(MESSAGE_POOL_REGISTER, 0) != NULL);
    settle();
    ck_assert_uint_eq(2, fake.count);
}
END_TEST

START_TEST(what_was_begun_while_the_daemon_was_away_arrives_in_order_after_the_pools)
{
    open_client();
    struct strait_pool *pool = register_pool();
    struct strait_transfer *sink = expect_pages(pool, 1, 2, 5000), *source = NULL;
    uint32_t ids[3] = {9, 8, 7};
    struct strait_page_list list = {.first = 4, .count = 3, .ids = ids};
    struct strait_offer_params offer = offer_params(&list, 1);
    ck_assert_int_eq(STRAIT_OK, strait_offer(pool, &offer, &source));
    memset(ids, 0xff, sizeof(ids)); /* borrowed for the call only */
    struct strait_append_params append = {.size = sizeof(append), .last = true, .aux = "tail", .aux_size = 4};
    ck_assert_int_eq(STRAIT_OK, strait_append(source, &append));
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    fake_listen();
    until(find_got(MESSAGE_HELLO, 0) != NULL);
    settle();
    ck_assert_uint_eq(1, fake.count); /* nothing before the answer */
    fake_welcome(PROTOCOL_VERSION);
    until(fake.count == 5);
    ck_assert_int_eq(MESSAGE_POOL_REGISTER, fake.got[1].message.type);
    const struct message_expect *expect = &fake.got[2].message.expect;
    ck_assert_int_eq(MESSAGE_EXPECT, fake.got[2].message.type);
    ck_assert_uint_le(expect->deadline_ms, 4960);
    ck_assert_uint_gt(expect->deadline_ms, 1000);
    const struct message_offer *got = &fake.got[3].message.offer;
    ck_assert_int_eq(MESSAGE_OFFER, fake.got[3].message.type);
    ck_assert_uint_eq(4, got->lists[0].first);
    ck_assert_mem_eq(((uint32_t[]){9, 8, 7}), got->lists[0].ids, sizeof(ids));
    ck_assert_int_eq(MESSAGE_APPEND, fake.got[4].message.type);
    ck_assert_mem_eq("tail", fake.got[4].message.append.aux.data, 4);
    fake_state(expect->transfer, STRAIT_DONE, STRAIT_REASON_NONE, true);
    until(count_events(STRAIT_EVENT_STATE) == 1);
    ck_assert_ptr_eq(sink, find_event(STRAIT_EVENT_STATE, 0)->event.transfer);
}
END_TEST

START_TEST(a_lost_daemon_fails_what_it_knew_and_gets_the_pools_again)
{
    struct strait_pool *pool;
    uint64_t id;
    struct strait_transfer *transfer = expected(&pool, &id, 60000);
    uint8_t pool_id[STRAIT_POOL_ID_BYTES];
    memcpy(pool_id, strait_pool_id(pool), sizeof(pool_id));
    fake_forget();
    fake_stop_listening();
    fake_hang_up();
    until(count_events(STRAIT_EVENT_STATE) == 1);
    const struct strait_event *failed = &find_event(STRAIT_EVENT_STATE, 0)->event;
    ck_assert_ptr_eq(transfer, failed->transfer);
    ck_assert_int_eq(STRAIT_REASON_LOCAL, failed->reason);
    ck_assert(failed->drained);
    ck_assert_uint_eq(3, failed->failed_count);
    ck_assert(!find_event(STRAIT_EVENT_CONNECTION, 0)->event.connected);
    ck_assert(!strait_client_connected(client));
    struct strait_transfer *next = expect_pages(pool, 5, 3, 60000); /* the same pages and name: free again */
    settle();
    fake_listen();
    until(find_got(MESSAGE_HELLO, 0) != NULL);
    fake_welcome(PROTOCOL_VERSION);
    until(fake.count == 3);
    ck_assert_int_eq(MESSAGE_POOL_REGISTER, fake.got[1].message.type);
    ck_assert_mem_eq(pool_id, fake.got[1].message.pool_register.pool.bytes, sizeof(pool_id));
    ck_assert_uint_eq(1, fake.got[1].fd_count);
    ck_assert_uint_ne(id, fake.got[2].message.expect.transfer);
    fake_state(id, STRAIT_DONE, STRAIT_REASON_NONE, true); /* of the past: changes nothing */
    fake_state(fake.got[2].message.expect.transfer, STRAIT_DONE, STRAIT_REASON_NONE, true);
    until(count_events(STRAIT_EVENT_STATE) == 2);
    settle();
    ck_assert_uint_eq(2, count_events(STRAIT_EVENT_STATE));
    ck_assert_ptr_eq(next, find_event(STRAIT_EVENT_STATE, 1)->event.transfer);
    strait_release(transfer); /* the new daemon never heard of it */
    strait_release(next);
    until(find_got(MESSAGE_RELEASE, 0) != NULL);
    settle();
    ck_assert_uint_ne(id, find_got(MESSAGE_RELEASE, 0)->transfer.transfer);
    ck_assert_ptr_null(find_got(MESSAGE_RELEASE, 1));
}
END_TEST

START_TEST(attempts_become_rarer_and_the_descriptor_wakes_for_them)
{
    open_client();
    for (int i = 0; i < 4; i++) { /* 20, 40, 80, 160 ms */
        struct pollfd fd = {.fd = strait_client_fd(client), .events = POLLIN};
        long began = now_ms();
        ck_assert_int_eq(1, poll(&fd, 1, PATIENCE_MS));
        ck_assert_int_ge((int)(now_ms() - began), (20 << i) - 15);
        ck_assert_uint_eq(0, strait_poll(client, NULL, 0));
        ck_assert_int_eq(0, poll(&fd, 1, 0));
    }
}
END_TEST

/* ---- Bad daemons
 * --------------------------------------------------------------------------------------------------------------- */

static const struct bad_bytes {
    uint8_t bytes[16];
    size_t size;
} bad_bytes[] = {
    {{8, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255}, 12}, /* no message */
    {{255, 255, 255, 255}, 4},                                  /* longer than anything */
    {{1, 0, 128, 0}, 4},                                        /* one byte too long */
    {{0, 0, 0, 0}, 4},                                          /* empty */
};

START_TEST(garbage_breaks_the_connection_but_pages_are_free_only_after_the_daemons_end)
{
    struct strait_pool *pool;
    uint64_t id;
    struct strait_transfer *transfer = expected(&pool, &id, 60000);
    fake_say_bytes(bad_bytes[_i].bytes, bad_bytes[_i].size);
    until(count_events(STRAIT_EVENT_STATE) == 1 && fake.ended);
    const struct strait_event *event = &find_event(STRAIT_EVENT_STATE, 0)->event;
    ck_assert_int_eq(STRAIT_REASON_LOCAL, event->reason);
    ck_assert(!event->drained);
    ck_assert_int_ne(STRAIT_OK, find_event(STRAIT_EVENT_CONNECTION, 0)->event.status);
    settle();
    ck_assert_uint_eq(0, count_events(STRAIT_EVENT_DRAINED));
    ck_assert(!strait_transfer_progress(transfer).drained);
    fake_forget();
    fake_hang_up();
    until(count_events(STRAIT_EVENT_DRAINED) == 1);
    ck_assert_ptr_eq(transfer, find_event(STRAIT_EVENT_DRAINED, 0)->event.transfer);
    ck_assert(strait_transfer_progress(transfer).drained);
    until(find_got(MESSAGE_HELLO, 0) != NULL); /* and again */
}
END_TEST

START_TEST(an_end_in_mid_frame_is_an_end)
{
    struct strait_pool *pool;
    uint64_t id;
    expected(&pool, &id, 60000);
    fake_say_bytes((uint8_t[]){40, 0, 0, 0, 1, 2, 3}, 7);
    settle();
    ck_assert_uint_eq(0, seen_count);
    fake_forget();
    fake_hang_up();
    until(count_events(STRAIT_EVENT_STATE) == 1);
    ck_assert(find_event(STRAIT_EVENT_STATE, 0)->event.drained);
}
END_TEST

START_TEST(what_came_before_the_end_still_counts)
{
    struct strait_pool *pool;
    uint64_t id;
    expected(&pool, &id, 60000);
    fake_state(id, STRAIT_DONE, STRAIT_REASON_NONE, true);
    fake_hang_up();
    until(count_events(STRAIT_EVENT_CONNECTION) == 1);
    settle();
    ck_assert_uint_eq(1, count_events(STRAIT_EVENT_STATE));
    ck_assert_int_eq(STRAIT_DONE, find_event(STRAIT_EVENT_STATE, 0)->event.state);
}
END_TEST

START_TEST(messages_about_nothing_known_are_ignored)
{
    struct strait_pool *pool;
    uint64_t id;
    struct strait_transfer *transfer = expected(&pool, &id, 60000);
    fake_state(id + 1, STRAIT_DONE, STRAIT_REASON_NONE, true);
    fake_state(0, STRAIT_FAILED, STRAIT_REASON_TIMEOUT, false);
    fake_drained(id + 99);
    fake_drained(id); /* before a verdict */
    fake_say(&(struct message){.type = MESSAGE_LAYERS,
                               .layers = {.transfer = UINT64_MAX, .layer_count = 1, .layers = (int32_t[]){0}}});
    fake_say(&(struct message){.type = MESSAGE_POOL_STATUS, .pool_status.pool = {{1}}});
    fake_say(&(struct message){.type = MESSAGE_NOTE, .note = {.pool = {{1}}, .key = view_of("k", 1)}});
    fake_pool_status(pool, STRAIT_OK, true); /* nobody asked to remove it */
    settle();
    ck_assert_uint_eq(0, seen_count);
    ck_assert(strait_client_connected(client));
    ck_assert_int_eq(STRAIT_BOOTSTRAP, strait_transfer_progress(transfer).state);
}
END_TEST

START_TEST(messages_out_of_place_break_the_connection)
{
    struct strait_pool *pool;
    uint64_t id;
    struct wire_page_list half = {.count = STRAIT_TRANSFER_PAGES_MAX};
    expected(&pool, &id, 60000);
    if (_i == 0)
        fake_welcome(PROTOCOL_VERSION); /* twice */
    else if (_i == 1)
        fake_say(&(struct message){.type = MESSAGE_STATS}); /* not for clients */
    else
        for (int i = 0; i < 2; i++) /* more pages than a transfer can have */
            fake_say(&(struct message){
                .type = MESSAGE_STATE,
                .state = {
                    .transfer = id, .reason = STRAIT_REASON_CODEC, .more = true, .failed = &half, .failed_count = 1}});
    until(fake.ended && count_events(STRAIT_EVENT_STATE) == 1);
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, find_event(STRAIT_EVENT_CONNECTION, 0)->event.status);
    ck_assert_uint_eq(3, find_event(STRAIT_EVENT_STATE, 0)->event.failed_count);
}
END_TEST

START_TEST(random_bytes_do_no_harm)
{
    struct rng rng = rng_init(_i);
    fake_listen();
    open_client();
    struct strait_pool *pool = register_pool();
    for (int i = 0; i < 40; i++) {
        until(find_got(MESSAGE_HELLO, 0) != NULL);
        if (i % 2 == 0)
            fake_welcome(PROTOCOL_VERSION);
        struct strait_transfer *transfer = expect_pages(pool, 0, 4, 60000);
        uint8_t bytes[256];
        uint32_t size = 1 + rng_below(&rng, sizeof(bytes));
        rng_fill(&rng, bytes, size);
        if (rng_below(&rng, 2) == 0 && size > 4) /* a frame at least */
            memcpy(bytes, (uint32_t[]){size - 4}, 4);
        fake_say_bytes(bytes, size);
        settle();
        fake_hang_up();
        fake_forget();
        settle();
        strait_release(transfer);
        forget_events();
    }
}
END_TEST

/* ---- Pools
 * ---------------------------------------------------------------------------------------------------------------------
 */

START_TEST(a_pool_arrives_in_order_with_one_descriptor_for_each_memory)
{
    connect_client();
    int again = dup(memory.fd);
    struct strait_memory other;
    ck_assert_int_eq(STRAIT_OK, strait_alloc((size_t)PAGES * PAGE_BYTES, &other));
    struct strait_pool_region regions[4] = {region_of(1, 0, 0), region_of(0, 1, 2), region_of(0, 1, 1),
                                            region_of(0, 0, 2)};
    regions[0].fd = other.fd;
    regions[0].element = STRAIT_ELEMENT_FP32;
    regions[1].fd = again;
    regions[1].offset = PAGES * PAGE_BYTES;
    regions[1].heads = 8;
    regions[2].rows = 2;
    regions[2].row_bytes = PAGE_BYTES / 4;
    regions[2].row_stride = PAGE_BYTES / 2;
    struct strait_pool_params params = {.size = sizeof(params), .regions = regions, .region_count = 4};
    struct strait_pool *pool = NULL;
    ck_assert_int_eq(STRAIT_OK, strait_pool_register(client, &params, &pool));
    ck_assert_int_eq(STRAIT_OK, strait_set_policy(pool, STRAIT_CODING_RAW));
    close(again);
    memset(regions, 0xff, sizeof(regions));
    until(find_got(MESSAGE_POLICY, 0) != NULL);
    const struct got *got = &fake.got[1];
    const struct message_pool_register *made = &got->message.pool_register;
    ck_assert_mem_eq(strait_pool_id(pool), made->pool.bytes, STRAIT_POOL_ID_BYTES);
    ck_assert_uint_eq(4, made->region_count);
    static const uint32_t order[4][3] = {{0, 0, 2}, {0, 1, 1}, {0, 1, 2}, {1, 0, 0}};
    for (int i = 0; i < 4; i++) {
        ck_assert_uint_eq(order[i][0], made->regions[i].group);
        ck_assert_int_eq((int)order[i][1], made->regions[i].layer);
        ck_assert_uint_eq(order[i][2], made->regions[i].role);
        ck_assert_int_eq(-1, made->regions[i].device);
        ck_assert_uint_eq(STRAIT_HANDLE_MEMFD, made->regions[i].handle);
    }
    ck_assert_uint_eq(PAGE_BYTES / 2, made->regions[1].row_stride);
    ck_assert_uint_eq(PAGES * PAGE_BYTES, made->regions[2].offset);
    ck_assert_uint_eq(8, made->regions[2].heads);
    ck_assert_uint_eq(STRAIT_ELEMENT_FP32, made->regions[3].element);
    ck_assert_uint_eq(2, made->fd_count);
    ck_assert_uint_eq(2, got->fd_count);
    ck_assert_uint_eq(made->regions[0].fd, made->regions[2].fd);
    ck_assert_uint_ne(made->regions[0].fd, made->regions[3].fd);
    for (int i = 0; i < 4; i++) {
        struct stat theirs, ours;
        fstat(got->fds[made->regions[i].fd], &theirs);
        fstat(i == 3 ? other.fd : memory.fd, &ours);
        ck_assert_uint_eq(ours.st_ino, theirs.st_ino);
    }
    ck_assert_uint_eq(STRAIT_CODING_RAW, find_got(MESSAGE_POLICY, 0)->policy.coding);
    strait_free(&other);
}
END_TEST

typedef void (*spoil)(struct strait_pool_region *);
static struct strait_memory shrinkable;

#define SPOIL(name, ...)                                \
    static void name(struct strait_pool_region *region) \
    {                                                   \
        __VA_ARGS__;                                    \
    }
SPOIL(bad_handle, region->handle = (enum strait_handle)9)
SPOIL(no_handle, region->handle = (enum strait_handle)0)
SPOIL(plain_pointer, region->handle = STRAIT_HANDLE_POINTER; region->pointer = memory.base)
SPOIL(no_descriptor, region->fd = -1)
SPOIL(not_a_memfd, region->fd = STDERR_FILENO)
SPOIL(not_sealed, region->fd = shrinkable.fd)
SPOIL(on_a_gpu, region->device = 0)
SPOIL(ipc_of_no_gpu, region->handle = STRAIT_HANDLE_CUDA_IPC)
SPOIL(beyond_the_end, region->offset = memory.size - (uint64_t)PAGES * PAGE_BYTES + 2)
SPOIL(overflowing_stride, region->page_stride = UINT64_MAX / 2 & ~1ull)
SPOIL(overflowing_offset, region->offset = UINT64_MAX - 1)
SPOIL(overflowing_rows, region->rows = 2; region->row_bytes = 2; region->row_stride = UINT64_MAX - 1)
SPOIL(odd_offset, region->offset = 1)
SPOIL(odd_stride, region->page_stride = PAGE_BYTES + 1)
SPOIL(odd_page, region->row_bytes = PAGE_BYTES - 1)
SPOIL(odd_rows, region->rows = 2; region->row_bytes = 2; region->row_stride = 3)
SPOIL(no_pages, region->page_count = 0)
SPOIL(no_rows, region->rows = 0)
SPOIL(empty_rows, region->row_bytes = 0)
SPOIL(huge_page, region->rows = 1 << 16; region->row_bytes = 1 << 16; region->page_count = 1)
SPOIL(overlapping_pages, region->page_stride = PAGE_BYTES - 2)
SPOIL(overlapping_rows, region->rows = 4; region->row_bytes = 64; region->row_stride = 62)
SPOIL(bad_element, region->element = 6)
SPOIL(bad_role, region->role = 3)
SPOIL(bad_layer, region->layer = -2)
SPOIL(far_group, region->group = STRAIT_GROUPS_MAX)
SPOIL(group_gap, region->group = 2)
SPOIL(two_elements, region->element = STRAIT_ELEMENT_FP16)

static const spoil spoils[] = {
    bad_handle, no_handle,     plain_pointer,     no_descriptor,      not_a_memfd,        not_sealed,
    on_a_gpu,   ipc_of_no_gpu, beyond_the_end,    overflowing_stride, overflowing_offset, overflowing_rows,
    odd_offset, odd_stride,    odd_page,          odd_rows,           no_pages,           no_rows,
    empty_rows, huge_page,     overlapping_pages, overlapping_rows,   bad_element,        bad_role,
    bad_layer,  far_group,     group_gap,         two_elements,
};

START_TEST(regions_that_make_no_sense_are_refused)
{
    open_client();
    shrinkable.fd = memfd_create("shrinkable", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_eq(0, ftruncate(shrinkable.fd, (off_t)memory.size));
    struct strait_pool_region regions[2] = {region_of(0, 0, 1), region_of(0, 0, 2)};
    struct strait_pool_params params = {.size = sizeof(params), .regions = regions, .region_count = 2};
    struct strait_pool *pool = NULL;
    ck_assert_int_eq(STRAIT_OK, strait_pool_register(client, &params, &pool));
    pool = NULL;
    spoils[_i](&regions[1]);
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_pool_register(client, &params, &pool));
    ck_assert_ptr_null(pool);
    close(shrinkable.fd);
}
END_TEST

START_TEST(layouts_with_rows_outside_of_pages_are_fine)
{
    open_client();
    struct strait_pool_region region = region_of(0, 0, 1);
    region.rows = 4; /* [rows][pages][64 bytes] */
    region.row_bytes = region.page_stride = 64;
    region.row_stride = 64 * PAGES;
    struct strait_pool_params params = {.size = sizeof(params), .regions = &region, .region_count = 1};
    struct strait_pool *pool = NULL;
    ck_assert_int_eq(STRAIT_OK, strait_pool_register(client, &params, &pool));
    region.row_stride -= 2;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_pool_register(client, &params, &pool));
}
END_TEST

START_TEST(params_of_another_release_are_refused_unless_the_rest_is_zero)
{
    open_client();
    struct strait_pool_region region = region_of(0, 0, 1);
    struct {
        struct strait_pool_params params;
        uint64_t later;
    } newer = {{.size = sizeof(newer), .regions = &region, .region_count = 1}, 0};
    struct strait_pool *pool = NULL;
    ck_assert_int_eq(STRAIT_OK, strait_pool_register(client, &newer.params, &pool));
    newer.later = 1;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_pool_register(client, &newer.params, &pool));
    newer.params.size = sizeof(newer.params) - 1;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_pool_register(client, &newer.params, &pool));
    newer.params = (struct strait_pool_params){.size = sizeof(newer.params), .regions = &region};
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_pool_register(client, &newer.params, &pool));
    newer.params.region_count = STRAIT_REGIONS_MAX + 1;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_pool_register(client, &newer.params, &pool));
}
END_TEST

START_TEST(more_memories_than_travel_with_a_frame_are_refused)
{
    open_client();
    struct strait_pool_region regions[CHANNEL_FDS_MAX + 1];
    struct strait_memory memories[CHANNEL_FDS_MAX + 1];
    for (uint32_t i = 0; i <= CHANNEL_FDS_MAX; i++) {
        ck_assert_int_eq(STRAIT_OK, strait_alloc((size_t)PAGES * PAGE_BYTES, &memories[i]));
        regions[i] = region_of(0, (int32_t)i, 1);
        regions[i].fd = memories[i].fd;
    }
    struct strait_pool_params params = {
        .size = sizeof(params), .regions = regions, .region_count = CHANNEL_FDS_MAX + 1};
    struct strait_pool *pool = NULL;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_pool_register(client, &params, &pool));
    params.region_count--;
    ck_assert_int_eq(STRAIT_OK, strait_pool_register(client, &params, &pool));
    for (uint32_t i = 0; i <= CHANNEL_FDS_MAX; i++)
        strait_free(&memories[i]);
}
END_TEST

START_TEST(a_refused_pool_fails_what_uses_it)
{
    struct strait_pool *pool;
    uint64_t id;
    struct strait_transfer *transfer = expected(&pool, &id, 60000);
    fake_pool_status(pool, STRAIT_ERR_NO_MEMORY, false);
    until(count_events(STRAIT_EVENT_STATE) == 1);
    ck_assert_ptr_eq(pool, find_event(STRAIT_EVENT_POOL, 0)->event.pool);
    ck_assert_int_eq(STRAIT_ERR_NO_MEMORY, find_event(STRAIT_EVENT_POOL, 0)->event.status);
    ck_assert_str_eq("because", find_event(STRAIT_EVENT_POOL, 0)->text);
    ck_assert_ptr_eq(transfer, find_event(STRAIT_EVENT_STATE, 0)->event.transfer);
    struct strait_transfer *later = expect_pages(pool, 0, 1, 60000);
    until(count_events(STRAIT_EVENT_STATE) == 2);
    const struct strait_event *event = &find_event(STRAIT_EVENT_STATE, 1)->event;
    ck_assert_ptr_eq(later, event->transfer);
    ck_assert_int_eq(STRAIT_REASON_LOCAL, event->reason);
    ck_assert(event->drained);
    ck_assert_ptr_null(find_got(MESSAGE_EXPECT, 1));
}
END_TEST

START_TEST(a_pool_is_gone_when_the_daemon_let_go_of_it)
{
    struct strait_pool *pool;
    uint64_t id;
    struct strait_transfer *transfer = expected(&pool, &id, 60000);
    strait_pool_remove(pool);
    strait_pool_remove(pool);
    until(find_got(MESSAGE_POOL_REMOVE, 0) != NULL);
    ck_assert_ptr_null(find_got(MESSAGE_POOL_REMOVE, 1));
    ck_assert_uint_eq(id, find_got(MESSAGE_ABORT, 0)->transfer.transfer);
    struct strait_expect_params params = expect_params(NULL, 0);
    struct strait_transfer *none = NULL;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_expect(pool, &params, &none));
    settle();
    ck_assert_uint_eq(0, seen_count);
    fake_state(id, STRAIT_FAILED, STRAIT_REASON_ABORTED, false);
    fake_drained(id);
    fake_pool_status(pool, STRAIT_OK, true);
    until(seen_count == 3);
    ck_assert_int_eq(STRAIT_EVENT_STATE, seen[0].event.type);
    ck_assert_int_eq(STRAIT_EVENT_DRAINED, seen[1].event.type);
    ck_assert_int_eq(STRAIT_EVENT_POOL_REMOVED, seen[2].event.type);
    ck_assert_ptr_eq(pool, seen[2].event.pool);
    ck_assert(strait_transfer_progress(transfer).drained);
}
END_TEST

START_TEST(a_pool_goes_at_once_without_a_daemon_and_with_its_end)
{
    open_client();
    struct strait_pool *pool = register_pool();
    struct strait_transfer *transfer = expect_pages(pool, 0, 1, 60000);
    strait_pool_remove(pool);
    settle();
    ck_assert_uint_eq(2, seen_count);
    ck_assert_ptr_eq(transfer, seen[0].event.transfer);
    ck_assert_int_eq(STRAIT_REASON_ABORTED, seen[0].event.reason);
    ck_assert_int_eq(STRAIT_EVENT_POOL_REMOVED, seen[1].event.type);
    fake_listen();
    until(find_got(MESSAGE_HELLO, 0) != NULL);
    fake_welcome(PROTOCOL_VERSION);
    until(strait_client_connected(client));
    ck_assert_uint_eq(1, fake.count); /* no pool */
    pool = register_pool();
    strait_pool_remove(pool);
    settle();
    ck_assert_uint_eq(1, count_events(STRAIT_EVENT_POOL_REMOVED));
    fake_hang_up();
    until(count_events(STRAIT_EVENT_POOL_REMOVED) == 2);
}
END_TEST

/* ---- Peers
 * ---------------------------------------------------------------------------------------------------------------------
 */

START_TEST(a_pool_is_exported_once_the_daemon_told_its_address)
{
    uint8_t bytes[4096];
    size_t size = 0;
    fake_listen();
    open_client();
    struct strait_pool *pool = register_pool();
    ck_assert_int_eq(STRAIT_ERR_AGAIN, strait_pool_export(pool, bytes, sizeof(bytes), &size));
    until(find_got(MESSAGE_HELLO, 0) != NULL);
    fake_welcome(PROTOCOL_VERSION);
    until(strait_client_connected(client));
    ck_assert_int_eq(STRAIT_ERR_NO_SPACE, strait_pool_export(pool, NULL, 0, &size));
    ck_assert_uint_gt(size, BLOB_HEADER_BYTES);
    ck_assert_int_eq(STRAIT_OK, strait_pool_export(pool, bytes, size, &size));
    struct pool_blob blob;
    ck_assert_int_eq(STRAIT_OK, blob_unpack(bytes, size, &blob));
    ck_assert_str_eq(ADDRESS, blob.address);
    ck_assert_mem_eq(strait_pool_id(pool), blob.pool.bytes, STRAIT_POOL_ID_BYTES);
    ck_assert_mem_eq(codebook_id, blob.codebook_id, sizeof(codebook_id));
    ck_assert_uint_eq(2, blob.region_count);
    ck_assert_uint_eq(STRAIT_ROLE_K, blob.regions[0].role);
    blob_fini(&blob);
    fake_hang_up();
    until(!strait_client_connected(client)); /* what is known stays known */
    ck_assert_int_eq(STRAIT_OK, strait_pool_export(pool, bytes, sizeof(bytes), &size));
}
END_TEST

START_TEST(blobs_that_are_none_are_refused_by_reason)
{
    uint8_t bytes[4096];
    size_t size = 0;
    struct strait_peer *peer = NULL;
    connect_client();
    struct strait_pool *pool = register_pool();
    ck_assert_int_eq(STRAIT_OK, strait_pool_export(pool, bytes, sizeof(bytes), &size));
    for (size_t cut = 0; cut < size; cut++)
        ck_assert_int_eq(STRAIT_ERR_TRUNCATED, strait_peer_import(client, bytes, cut, &peer));
    bytes[size - 1] ^= 1;
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, strait_peer_import(client, bytes, size, &peer));
    ck_assert_ptr_null(peer);
}
END_TEST

START_TEST(pools_are_compared_and_only_codebooks_may_differ)
{
    connect_client();
    struct strait_pool *pool = register_pool();
    struct strait_peer *peer = import_peer(pool);
    ck_assert_uint_eq(0, strait_peer_check(pool, peer));
    struct strait_pool_region region = region_of(0, 3, 1);
    region.row_bytes = PAGE_BYTES / 2;
    struct strait_pool_params params = {.size = sizeof(params), .regions = &region, .region_count = 1};
    struct strait_pool *other = NULL;
    ck_assert_int_eq(STRAIT_OK, strait_pool_register(client, &params, &other));
    ck_assert_uint_ne(0, strait_peer_check(other, peer) & STRAIT_MISMATCH_FATAL);
    struct strait_transfer *transfer = expect_pages(other, 0, 1, 60000);
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_start(transfer, peer, NULL));
    struct strait_transfer *same = expect_pages(pool, 0, 1, 60000);
    ck_assert_int_eq(STRAIT_OK, strait_start(same, peer, NULL));
    codebook_id[0] ^= 1; /* the daemon comes back with another one */
    fake_forget();
    fake_hang_up();
    until(find_got(MESSAGE_HELLO, 0) != NULL);
    struct strait_transfer *waits = expect_pages(pool, 0, 1, 60000);
    ck_assert_int_eq(STRAIT_OK, strait_start(waits, peer, NULL));
    strait_peer_remove(peer);
    fake_welcome(PROTOCOL_VERSION);
    until(find_got(MESSAGE_START, 0) != NULL);
    ck_assert_uint_eq(STRAIT_MISMATCH_CODEBOOK, find_got(MESSAGE_START, 0)->start.mismatch);
    peer = import_peer(pool);
    ck_assert_uint_eq(0, strait_peer_check(pool, peer));
}
END_TEST

/* ---- Verbs
 * ---------------------------------------------------------------------------------------------------------------------
 */

START_TEST(every_field_of_a_transfer_arrives)
{
    connect_client();
    struct strait_pool *pool = register_pool();
    struct strait_peer *peer = import_peer(pool);
    uint32_t ids[2] = {11, 3};
    struct strait_page_list lists[2] = {{.first = 6, .count = 2, .ids = ids}, {.first = 2, .count = 4, .first_id = 20}};
    struct strait_expect_params expect = expect_params(lists, 2);
    struct strait_transfer *sink = NULL, *source = NULL;
    expect.sources = 3;
    ck_assert_int_eq(STRAIT_OK, strait_expect(pool, &expect, &sink));
    struct strait_offer_params offer = offer_params(lists, 1);
    offer.consumers = 2;
    offer.lease_ms = 777;
    offer.later = true;
    ck_assert_int_eq(STRAIT_OK, strait_offer(pool, &offer, &source));
    struct strait_append_params append = {.size = sizeof(append), .layer_first = 4, .layer_count = 2};
    ck_assert_int_eq(STRAIT_OK, strait_append(source, &append));
    append = (struct strait_append_params){
        .size = sizeof(append), .lists = &lists[1], .list_count = 1, .last = true, .aux = "aux", .aux_size = 3};
    ck_assert_int_eq(STRAIT_OK, strait_append(source, &append));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_append(source, &append));
    struct strait_start_params start = {
        .size = sizeof(start), .direction = STRAIT_PULL, .peer_key = "theirs", .peer_key_size = 6};
    ck_assert_int_eq(STRAIT_OK, strait_start(sink, peer, &start));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_start(source, peer, &start));
    ck_assert_int_eq(STRAIT_OK, strait_start(source, peer, NULL));
    until(find_got(MESSAGE_START, 1) != NULL);

    const struct message_expect *expectation = &find_got(MESSAGE_EXPECT, 0)->expect;
    ck_assert_mem_eq(strait_pool_id(pool), expectation->pool.bytes, STRAIT_POOL_ID_BYTES);
    ck_assert_uint_eq(7, expectation->key.size);
    ck_assert_mem_eq("request", expectation->key.data, 7);
    ck_assert_uint_eq(3, expectation->sources);
    ck_assert(expectation->deadline_ms > 9000 && expectation->deadline_ms <= 10000 && !expectation->more);
    ck_assert_uint_eq(2, expectation->list_count);
    ck_assert_uint_eq(6, expectation->lists[0].first);
    ck_assert_mem_eq(ids, expectation->lists[0].ids, sizeof(ids));
    ck_assert_uint_eq(2, expectation->lists[1].first);
    ck_assert_uint_eq(4, expectation->lists[1].count);
    ck_assert_uint_eq(20, expectation->lists[1].first_id);
    ck_assert_ptr_null(expectation->lists[1].ids);

    const struct message_offer *offered = &find_got(MESSAGE_OFFER, 0)->offer;
    ck_assert_uint_ne(expectation->transfer, offered->transfer);
    ck_assert_uint_eq(2, offered->consumers);
    ck_assert(offered->lease_ms > 600 && offered->lease_ms <= 777);
    ck_assert(offered->later && !offered->last && !offered->more);
    ck_assert_uint_eq(1, offered->list_count);

    const struct message_append *layers = &find_got(MESSAGE_APPEND, 0)->append;
    ck_assert_uint_eq(offered->transfer, layers->transfer);
    ck_assert_int_eq(4, layers->layer_first);
    ck_assert_uint_eq(2, layers->layer_count);
    ck_assert_uint_eq(0, layers->list_count);
    ck_assert(!layers->last);
    const struct message_append *last = &find_got(MESSAGE_APPEND, 1)->append;
    ck_assert(last->last && last->list_count == 1 && last->aux.size == 3);

    const struct message_start *started = &find_got(MESSAGE_START, 0)->start;
    ck_assert_uint_eq(expectation->transfer, started->transfer);
    ck_assert_mem_eq(strait_pool_id(pool), started->peer_pool.bytes, STRAIT_POOL_ID_BYTES);
    ck_assert_uint_eq(strlen(ADDRESS), started->peer_address.size);
    ck_assert_mem_eq(ADDRESS, started->peer_address.data, strlen(ADDRESS));
    ck_assert_uint_eq(6, started->peer_key.size);
    ck_assert_uint_eq(STRAIT_PULL, started->direction);
    ck_assert_uint_eq(0, started->mismatch);
    ck_assert_uint_eq(0, find_got(MESSAGE_START, 1)->start.peer_key.size);
}
END_TEST

START_TEST(arguments_that_make_no_sense_are_refused)
{
    connect_client();
    struct strait_pool *pool = register_pool();
    struct strait_transfer *transfer = NULL;
    uint32_t ids[2] = {0, PAGES};
    static uint8_t large[STRAIT_AUX_BYTES_MAX + 1];
    struct strait_page_list bad_lists[] = {
        {.group = 1, .count = 1},
        {.first = UINT32_MAX, .count = 2},
        {.first_id = PAGES - 1, .count = 2},
        {.first_id = UINT32_MAX, .count = 2},
        {.count = 2, .ids = ids},
        {.count = STRAIT_TRANSFER_PAGES_MAX + 1},
    };
    for (int i = 0; i < COUNT(bad_lists); i++) {
        struct strait_expect_params bad = expect_params(&bad_lists[i], 1);
        struct strait_offer_params worse = offer_params(&bad_lists[i], 1);
        ck_assert_int_eq(STRAIT_ERR_INVALID, strait_expect(pool, &bad, &transfer));
        ck_assert_int_eq(STRAIT_ERR_INVALID, strait_offer(pool, &worse, &transfer));
    }
#define REFUSED(type, verb, change)                                      \
    do {                                                                 \
        struct strait_##type##_params p = type##_params(NULL, 0);        \
        change;                                                          \
        ck_assert_int_eq(STRAIT_ERR_INVALID, verb(pool, &p, &transfer)); \
    } while (0)
    REFUSED(expect, strait_expect, p.key_size = 0);
    REFUSED(expect, strait_expect, p.key_size = STRAIT_KEY_BYTES_MAX + 1);
    REFUSED(expect, strait_expect, p.key = NULL);
    REFUSED(expect, strait_expect, p.deadline_ms = 0);
    REFUSED(expect, strait_expect, p.deadline_ms = 86400001);
    REFUSED(expect, strait_expect, p.sources = STRAIT_PARTS_MAX + 1);
    REFUSED(expect, strait_expect, p.list_count = 1);
    REFUSED(expect, strait_expect, p.size--);
    REFUSED(offer, strait_offer, p.lease_ms = 0);
    REFUSED(offer, strait_offer, p.consumers = STRAIT_PARTS_MAX + 1);
    REFUSED(offer, strait_offer, p.last = p.later = true);
    REFUSED(offer, strait_offer, (p.aux = large, p.aux_size = 1)); /* without last */
    REFUSED(offer, strait_offer, (p.last = true, p.aux = large, p.aux_size = sizeof(large)));
    REFUSED(offer, strait_offer, (p.last = true, p.aux_size = 1));
    struct strait_offer_params params = offer_params(NULL, 0);
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_offer(NULL, &params, &transfer));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_offer(pool, NULL, &transfer));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_offer(pool, &params, NULL));
    ck_assert_ptr_null(transfer);
    ck_assert_int_eq(STRAIT_OK, strait_offer(pool, &params, &transfer));
    struct strait_append_params append = {.size = sizeof(append), .ready = &append};
    ck_assert_int_eq(STRAIT_ERR_UNSUPPORTED, strait_append(transfer, &append));
    append = (struct strait_append_params){.size = sizeof(append), .layer_first = INT32_MAX, .layer_count = 1};
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_append(transfer, &append));
    struct strait_transfer *sink = expect_pages(pool, 0, 1, 60000);
    append.layer_count = 0;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_append(sink, &append));
    ck_assert_int_eq(STRAIT_ERR_UNSUPPORTED, strait_wait_stream(sink, 0, NULL));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_set_policy(pool, (enum strait_coding)4));
    settle();
    ck_assert_ptr_null(find_got(MESSAGE_APPEND, 0));
    ck_assert_ptr_null(find_got(MESSAGE_EXPECT, 1));
    ck_assert_ptr_null(find_got(MESSAGE_OFFER, 1));
}
END_TEST

/* What parts say together, against what was listed. */
static void check_parts(const uint32_t *ids, uint64_t total)
{
    uint64_t at = 0;
    bool more = true;
    for (uint32_t i = 0; i < fake.count; i++) {
        const struct message_offer *part = &fake.got[i].message.offer;
        if (fake.got[i].message.type != MESSAGE_OFFER)
            continue;
        ck_assert(more);
        more = part->more;
        ck_assert_int_eq(!more, part->last);
        ck_assert_uint_eq(more ? 0 : 3, part->aux.size);
        for (uint32_t k = 0; k < part->list_count; k++) {
            ck_assert_uint_eq(at, part->lists[k].first);
            ck_assert_mem_eq(ids + at, part->lists[k].ids, part->lists[k].count * sizeof(*ids));
            at += part->lists[k].count;
        }
    }
    ck_assert(!more);
    ck_assert_uint_eq(total, at);
}

START_TEST(long_lists_are_split_and_nothing_is_lost)
{
    static const uint32_t lengths[][2] = {{1, 2500000}, {5000, 3}, {3, 1048576}, {4096, 1}, {4097, 1}, {2, 1048575}};
    uint32_t count = lengths[_i % COUNT(lengths)][0], length = lengths[_i % COUNT(lengths)][1];
    bool connected = _i < COUNT(lengths);
    uint32_t *ids = malloc(sizeof(*ids) * count * length);
    struct strait_page_list *lists = calloc(count + 2, sizeof(*lists)); /* two empty ones at the end */
    for (uint32_t i = 0; i < count * length; i++)
        ids[i] = i * 7 % PAGES;
    for (uint32_t i = 0; i < count; i++)
        lists[i] = (struct strait_page_list){.first = i * length, .count = length, .ids = ids + i * length};
    if (connected)
        connect_client();
    else
        open_client();
    struct strait_pool *pool = register_pool();
    struct strait_offer_params params = offer_params(lists, count + 2);
    struct strait_transfer *transfer = NULL;
    params.last = true;
    params.aux = "end";
    params.aux_size = 3;
    ck_assert_int_eq(STRAIT_OK, strait_offer(pool, &params, &transfer));
    if (!connected) {
        fake_listen();
        until(find_got(MESSAGE_HELLO, 0) != NULL);
        fake_welcome(PROTOCOL_VERSION);
    }
    until(strait_client_connected(client));
    ck_assert_int_eq(STRAIT_OK, strait_stats(client)); /* comes behind */
    until(find_got(MESSAGE_STATS, 0) != NULL);
    check_parts(ids, (uint64_t)count * length);
    free(lists);
    free(ids);
}
END_TEST

/* A daemon that does not read for a while: what exceeds the socket and the channel waits, in order. */
START_TEST(a_slow_daemon_loses_nothing)
{
    enum { OFFERS = 20, LENGTH = 1000000 };
    static uint32_t ids[LENGTH];
    connect_client();
    struct strait_pool *pool = register_pool();
    struct strait_page_list list = {.count = LENGTH, .ids = ids};
    struct strait_transfer *transfers[OFFERS];
    fake.deaf = true;
    for (uint32_t i = 0; i < OFFERS; i++) {
        struct strait_offer_params params = offer_params(&list, 1);
        params.lease_ms = 60000 + i * 10000;
        params.last = true;
        ck_assert_int_eq(STRAIT_OK, strait_offer(pool, &params, &transfers[i]));
        step();
    }
    ck_assert_int_eq(STRAIT_OK, strait_stats(client)); /* small enough for what room is left, but not its turn */
    strait_release(transfers[OFFERS - 1]);             /* had not gone out yet: there is nothing to tell */
    fake.deaf = false;
    until(find_got(MESSAGE_OFFER, OFFERS - 2) != NULL);
    for (uint32_t i = 0; i < OFFERS - 1; i++)
        ck_assert_uint_gt(find_got(MESSAGE_OFFER, i)->offer.lease_ms, 50000 + i * 10000);
    until(find_got(MESSAGE_STATS, 0) != NULL);
    ck_assert_int_eq(MESSAGE_STATS, fake.got[fake.count - 1].message.type);
    ck_assert_ptr_null(find_got(MESSAGE_OFFER, OFFERS - 1));
    ck_assert_ptr_null(find_got(MESSAGE_RELEASE, 0));
}
END_TEST

static int compare_longs(const void *a, const void *b)
{
    long x = *(const long *)a, y = *(const long *)b;
    return (x > y) - (x < y);
}

START_TEST(a_hundred_thousand_pages_cost_the_caller_less_than_a_millisecond)
{
    enum { ROUNDS = 15, LENGTH = 100000 };
    static uint32_t ids[LENGTH];
    long took[ROUNDS];
    connect_client();
    struct strait_pool *pool = register_pool();
    for (uint32_t i = 0; i < LENGTH; i++)
        ids[i] = i * 31 % PAGES;
    struct strait_page_list list = {.count = LENGTH, .ids = ids};
    for (int i = 0; i < ROUNDS; i++) {
        struct strait_expect_params params = expect_params(&list, 1);
        struct strait_transfer *transfer = NULL;
        struct timespec from, to;
        clock_gettime(CLOCK_MONOTONIC, &from);
        ck_assert_int_eq(STRAIT_OK, strait_expect(pool, &params, &transfer));
        clock_gettime(CLOCK_MONOTONIC, &to);
        took[i] = (to.tv_sec - from.tv_sec) * 1000000 + (to.tv_nsec - from.tv_nsec) / 1000;
        until(find_got(MESSAGE_EXPECT, 0) != NULL);
        fake_forget();
    }
    qsort(took, ROUNDS, sizeof(took[0]), compare_longs);
    printf("100000 page ids: median %ld us, worst %ld us\n", took[ROUNDS / 2], took[ROUNDS - 1]);
    if (!SANITIZED)
        ck_assert_int_lt((int)took[ROUNDS / 2], 1000);
}
END_TEST

START_TEST(notes_and_statistics_come_and_go)
{
    connect_client();
    struct strait_pool *pool = register_pool();
    struct strait_peer *peer = import_peer(pool);
    ck_assert_int_eq(STRAIT_OK, strait_notify(peer, "key", 3, "hello", 5));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_notify(peer, "key", 3, NULL, 5));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_notify(peer, "", 0, NULL, 0));
    ck_assert_int_eq(STRAIT_OK, strait_stats(client));
    until(find_got(MESSAGE_STATS, 0) != NULL);
    const struct message_notify *notify = &find_got(MESSAGE_NOTIFY, 0)->notify;
    ck_assert_mem_eq(strait_pool_id(pool), notify->peer_pool.bytes, STRAIT_POOL_ID_BYTES);
    ck_assert_mem_eq("hello", notify->data.data, 5);
    forget_events();
    struct message note = {.type = MESSAGE_NOTE, .note = {.key = view_of("about", 5), .data = view_of("that", 4)}};
    memcpy(&note.note.pool, strait_pool_id(pool), STRAIT_POOL_ID_BYTES);
    fake_say(&note);
    fake_say(&(struct message){.type = MESSAGE_STATS_TEXT, .text.text = view_of("{}", 2)});
    until(seen_count == 2);
    ck_assert_ptr_eq(pool, seen[0].event.pool);
    ck_assert_uint_eq(5, seen[0].event.key_size);
    ck_assert_str_eq("that", (char *)seen[0].data);
    ck_assert_int_eq(STRAIT_EVENT_STATS, seen[1].event.type);
    ck_assert_str_eq("{}", (char *)seen[1].data);
    fake_stop_listening();
    fake_hang_up();
    until(!strait_client_connected(client));
    ck_assert_int_eq(STRAIT_ERR_AGAIN, strait_stats(client));
    enum strait_status status = STRAIT_OK; /* what is kept for a daemon that is away has a limit */
    for (int i = 0; i < 10000 && status == STRAIT_OK; i++)
        status = strait_notify(peer, "key", 3, NULL, 0);
    ck_assert_int_eq(STRAIT_ERR_AGAIN, status);
}
END_TEST

/* ---- Events
 * --------------------------------------------------------------------------------------------------------------------
 */

START_TEST(states_only_move_up_and_layers_are_told)
{
    struct strait_pool *pool;
    uint64_t id;
    struct strait_transfer *transfer = expected(&pool, &id, 60000);
    fake_state(id, STRAIT_BOOTSTRAP, STRAIT_REASON_NONE, false); /* it began there */
    fake_state(id, STRAIT_TRANSFERRING, STRAIT_REASON_NONE, false);
    settle();
    fake_state(id, STRAIT_READY, STRAIT_REASON_NONE, false);
    settle();
    ck_assert_uint_eq(1, seen_count);
    fake_state(id, STRAIT_TRANSFERRING, STRAIT_REASON_NONE, false);
    settle();
    ck_assert_uint_eq(1, seen_count);
    fake_say(&(struct message){.type = MESSAGE_LAYERS,
                               .layers = {.transfer = id, .layer_count = 2, .layers = (int32_t[]){1, 0}}});
    struct message done = {.type = MESSAGE_STATE};
    done.state.transfer = id;
    done.state.state = STRAIT_DONE;
    done.state.drained = true;
    done.state.aux = view_of("aux", 3);
    fake_say(&done);
    fake_state(id, STRAIT_FAILED, STRAIT_REASON_CODEC, true);
    fake_drained(id);
    until(seen_count == 4);
    settle();
    ck_assert_uint_eq(4, seen_count);
    for (int i = 0; i < 4; i++) {
        ck_assert_ptr_eq(transfer, seen[i].event.transfer);
        ck_assert_ptr_eq(&memory, seen[i].event.context);
    }
    ck_assert_int_eq(STRAIT_TRANSFERRING, seen[0].event.state);
    ck_assert(!seen[0].event.drained);
    ck_assert_int_eq(1, seen[1].event.layer);
    ck_assert_int_eq(0, seen[2].event.layer);
    ck_assert_int_eq(STRAIT_DONE, seen[3].event.state);
    ck_assert(seen[3].event.drained);
    ck_assert_uint_eq(3, seen[3].event.data_size);
    ck_assert_mem_eq("aux", seen[3].data, 3);
    struct strait_progress progress = strait_transfer_progress(transfer);
    ck_assert_int_eq(STRAIT_DONE, progress.state);
    ck_assert(progress.drained);
    ck_assert_uint_eq(2, progress.layers_landed);
}
END_TEST

START_TEST(failed_pages_come_in_parts_and_drained_later)
{
    struct strait_pool *pool;
    uint64_t id;
    struct strait_transfer *transfer = expected(&pool, &id, 60000);
    uint32_t ids[2] = {30, 10};
    struct wire_page_list parts[3] = {
        {.first = 4, .count = 2, .ids = ids}, {.count = 3, .first_id = 100}, {.count = 0}};
    for (int i = 0; i < 3; i++) {
        struct message message = {.type = MESSAGE_STATE};
        message.state.transfer = id;
        message.state.state = STRAIT_FAILED;
        message.state.reason = STRAIT_REASON_INTEGRITY;
        message.state.more = i < 2;
        message.state.text = view_of("chunk 3", 7);
        message.state.failed = &parts[i];
        message.state.failed_count = 1;
        fake_say(&message);
        settle();
        ck_assert_uint_eq(i < 2 ? 0 : 1, seen_count);
    }
    ck_assert_int_eq(STRAIT_REASON_INTEGRITY, seen[0].event.reason);
    ck_assert_str_eq("chunk 3", seen[0].text);
    ck_assert(!seen[0].event.drained);
    ck_assert_uint_eq(5, seen[0].event.failed_count);
    static const uint32_t wanted[5] = {30, 10, 100, 101, 102};
    for (int i = 0; i < 5; i++)
        ck_assert_uint_eq(wanted[i], seen[0].failed[i].id);
    ck_assert(!strait_transfer_progress(transfer).drained);
    fake_drained(id);
    fake_drained(id);
    until(seen_count == 2);
    settle();
    ck_assert_uint_eq(2, seen_count);
    ck_assert_int_eq(STRAIT_EVENT_DRAINED, seen[1].event.type);
    ck_assert(seen[1].event.drained);
    ck_assert_int_eq(STRAIT_REASON_INTEGRITY, seen[1].event.reason);
}
END_TEST

START_TEST(the_library_gives_the_verdict_of_a_silent_daemon)
{
    struct strait_pool *pool;
    uint64_t id;
    long began = now_ms();
    struct strait_transfer *transfer = expected(&pool, &id, 50);
    until(seen_count == 1);
    ck_assert_int_ge((int)(now_ms() - began), 145);
    ck_assert_int_lt((int)(now_ms() - began), 1000);
    ck_assert_ptr_eq(transfer, seen[0].event.transfer);
    ck_assert_int_eq(STRAIT_REASON_TIMEOUT, seen[0].event.reason);
    ck_assert(!seen[0].event.drained);
    ck_assert_uint_eq(3, seen[0].event.failed_count);
    if (_i == 0) {
        fake_state(id, STRAIT_DONE, STRAIT_REASON_NONE, true); /* too late */
    } else if (_i == 1) {
        fake_state(id, STRAIT_FAILED, STRAIT_REASON_CODEC, false);
        settle();
        ck_assert_uint_eq(1, seen_count);
        fake_drained(id);
    } else {
        fake_hang_up();
    }
    until(count_events(STRAIT_EVENT_DRAINED) == 1);
    ck_assert_uint_eq(1, count_events(STRAIT_EVENT_STATE));
    ck_assert_int_eq(STRAIT_FAILED, strait_transfer_progress(transfer).state);
    ck_assert_int_eq(STRAIT_REASON_TIMEOUT, strait_transfer_progress(transfer).reason);
}
END_TEST

START_TEST(the_lease_of_an_offer_is_the_daemons_affair)
{
    connect_client();
    struct strait_pool *pool = register_pool();
    struct strait_transfer *transfer = NULL;
    struct strait_offer_params params = offer_params(NULL, 0);
    params.lease_ms = 30;
    ck_assert_int_eq(STRAIT_OK, strait_offer(pool, &params, &transfer));
    forget_events();
    long end = now_ms() + 200;
    while (now_ms() < end) {
        step();
        rest();
    }
    ck_assert_uint_eq(0, seen_count);
    fake_state(find_got(MESSAGE_OFFER, 0)->offer.transfer, STRAIT_FAILED, STRAIT_REASON_LEASE_EXPIRED, true);
    until(seen_count == 1);
    ck_assert_uint_eq(0, seen[0].event.failed_count);
}
END_TEST

START_TEST(abort_is_the_daemons_to_confirm_and_idempotent)
{
    struct strait_pool *pool;
    uint64_t id;
    struct strait_transfer *transfer = expected(&pool, &id, 60000);
    strait_abort(transfer);
    strait_abort(transfer);
    until(find_got(MESSAGE_ABORT, 0) != NULL);
    settle();
    ck_assert_ptr_null(find_got(MESSAGE_ABORT, 1));
    ck_assert_uint_eq(id, find_got(MESSAGE_ABORT, 0)->transfer.transfer);
    ck_assert_uint_eq(0, seen_count);
    fake_state(id, STRAIT_FAILED, STRAIT_REASON_ABORTED, true);
    until(seen_count == 1);
    ck_assert_int_eq(STRAIT_REASON_ABORTED, seen[0].event.reason);
    strait_abort(transfer);
    settle();
    ck_assert_ptr_null(find_got(MESSAGE_ABORT, 1));
}
END_TEST

START_TEST(what_the_daemon_never_saw_is_aborted_at_once)
{
    open_client();
    struct strait_pool *pool = register_pool();
    struct strait_transfer *transfer = expect_pages(pool, 0, 2, 60000), *released = expect_pages(pool, 2, 2, 60000);
    strait_abort(transfer);
    strait_release(released);
    settle();
    ck_assert_uint_eq(1, seen_count);
    ck_assert_int_eq(STRAIT_REASON_ABORTED, seen[0].event.reason);
    ck_assert(seen[0].event.drained);
    fake_listen();
    until(find_got(MESSAGE_HELLO, 0) != NULL);
    fake_welcome(PROTOCOL_VERSION);
    until(find_got(MESSAGE_POOL_REGISTER, 0) != NULL);
    settle();
    ck_assert_uint_eq(2, fake.count);
}
END_TEST

START_TEST(a_released_transfer_is_told_to_the_daemon_and_silent)
{
    struct strait_pool *pool;
    uint64_t id;
    struct strait_transfer *transfer = expected(&pool, &id, 60000);
    fake_state(id, STRAIT_READY, STRAIT_REASON_NONE, false);
    fake_state(id, STRAIT_FAILED, STRAIT_REASON_CODEC, false);
    struct strait_event events[2];
    ck_assert_uint_eq(1, strait_wait(client, events, 1, PATIENCE_MS)); /* the verdict still waits */
    ck_assert_int_eq(STRAIT_READY, events[0].state);
    strait_release(transfer);
    ck_assert_ptr_eq(transfer, events[0].transfer); /* valid until the next poll: nothing reads freed memory */
    ck_assert_int_eq(STRAIT_FAILED, strait_transfer_progress(events[0].transfer).state);
    until(find_got(MESSAGE_RELEASE, 0) != NULL);
    ck_assert_uint_eq(id, find_got(MESSAGE_RELEASE, 0)->transfer.transfer);
    fake_drained(id);
    settle();
    ck_assert_uint_eq(0, seen_count);
    strait_release(NULL);
}
END_TEST

START_TEST(the_descriptor_is_readable_exactly_while_there_is_something_to_do)
{
    struct strait_pool *pool;
    uint64_t id;
    struct strait_event event;
    expected(&pool, &id, 60000);
    struct pollfd fd = {.fd = strait_client_fd(client), .events = POLLIN};
    ck_assert_int_eq(0, poll(&fd, 1, 0));
    fake_state(id, STRAIT_READY, STRAIT_REASON_NONE, false);
    fake_state(id, STRAIT_DONE, STRAIT_REASON_NONE, true);
    ck_assert_int_eq(1, poll(&fd, 1, 0));
    ck_assert_uint_eq(1, strait_poll(client, &event, 1));
    ck_assert_int_eq(1, poll(&fd, 1, 0)); /* one more is here, though the socket is empty */
    ck_assert_uint_eq(1, strait_poll(client, &event, 1));
    ck_assert_int_eq(0, poll(&fd, 1, 0));
    ck_assert_uint_eq(0, strait_wait(client, &event, 1, 20));
    strait_pool_remove(pool);
    fake_hang_up();
    ck_assert_int_eq(1, poll(&fd, 1, 0));
}
END_TEST

/* Events pile up for who does not look: reading stops, and nothing is lost. */
START_TEST(many_events_come_in_order)
{
    enum { LAYERS = 5000 };
    struct strait_pool *pool;
    uint64_t id;
    expected(&pool, &id, 60000);
    for (int32_t i = 0; i < LAYERS; i++) {
        struct message message = {.type = MESSAGE_LAYERS, .layers = {.transfer = id, .layer_count = 1, .layers = &i}};
        ck_assert_int_eq(STRAIT_OK, channel_send(fake.channel, &message, NULL, 0));
    }
    channel_flush(fake.channel);
    for (int i = 0; i < 200; i++) {
        ck_assert_uint_eq(0, strait_poll(client, NULL, 0));
        channel_flush(fake.channel);
    }
    until(seen_count == LAYERS);
    for (int32_t i = 0; i < LAYERS; i++)
        ck_assert_int_eq(i, seen[i].event.layer);
}
END_TEST

START_TEST(thousands_of_transfers_keep_apart)
{
    enum { TRANSFERS = 3000 };
    static struct strait_transfer *transfers[TRANSFERS];
    connect_client();
    struct strait_pool *pool = register_pool();
    uint64_t first = 0;
    for (uint32_t i = 0; i < TRANSFERS; i++) {
        transfers[i] = expect_pages(pool, i, 1, 60000);
        until(find_got(MESSAGE_EXPECT, 0) != NULL);
        first = i == 0 ? find_got(MESSAGE_EXPECT, 0)->expect.transfer : first;
        ck_assert_uint_eq(first + i, find_got(MESSAGE_EXPECT, 0)->expect.transfer);
        fake_forget();
    }
    forget_events();
    for (uint32_t i = 0; i < TRANSFERS; i += 3) {
        strait_release(transfers[i]);
        step();
        fake_forget();
    }
    for (uint32_t i = 0; i < TRANSFERS; i++) {
        fake_state(first + i, STRAIT_DONE, STRAIT_REASON_NONE, true);
        step();
        fake_forget();
    }
    until(seen_count == TRANSFERS - TRANSFERS / 3);
    for (uint32_t i = 0, at = 0; i < TRANSFERS; i++)
        if (i % 3 != 0)
            ck_assert_ptr_eq(transfers[i], seen[at++].event.transfer);
}
END_TEST

/* ---- The rest
 * ------------------------------------------------------------------------------------------------------------------ */

START_TEST(memory_is_sealed_zeroed_and_whole_pages)
{
    struct strait_memory made;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_alloc(0, &made));
    ck_assert_int_eq(STRAIT_ERR_NO_MEMORY, strait_alloc(SIZE_MAX, &made));
    ck_assert_int_eq(STRAIT_OK, strait_alloc(5000, &made));
    ck_assert_uint_eq(8192, made.size);
    ck_assert_int_eq(F_SEAL_SHRINK, fcntl(made.fd, F_GET_SEALS) & F_SEAL_SHRINK);
    ck_assert_int_eq(FD_CLOEXEC, fcntl(made.fd, F_GETFD));
    ck_assert_int_eq(-1, ftruncate(made.fd, 0));
    ck_assert(is_filled(made.base, made.size, 0));
    memset(made.base, 1, made.size);
    strait_free(&made);
    strait_free(&made);
    strait_free(NULL);
}
END_TEST

START_TEST(what_cannot_be_opened_says_why)
{
    struct strait_client *none = NULL;
    struct strait_client_config config = {.size = sizeof(config), .embedded = ""};
    if (dlopen("libstrait-node.so.0", RTLD_NOW) == NULL)
        ck_assert_int_eq(STRAIT_ERR_UNSUPPORTED, strait_client_open(&config, &none));
    char longest[200];
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    config = (struct strait_client_config){.size = sizeof(config), .socket = longest};
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_client_open(&config, &none));
    config.socket = "";
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_client_open(&config, &none));
    config.size = 0;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_client_open(&config, &none));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_client_open(NULL, NULL));
    ck_assert_ptr_null(none);
    strait_client_close(NULL);
    setenv("STRAIT_SOCKET", fake.path, 1);
    fake_listen();
    ck_assert_int_eq(STRAIT_OK, strait_client_open(NULL, &client));
    until(find_got(MESSAGE_HELLO, 0) != NULL);
}
END_TEST

START_TEST(states_and_reasons_have_names)
{
    ck_assert_str_eq("failed", strait_state_string(STRAIT_FAILED));
    ck_assert_str_eq("done", strait_state_string(STRAIT_DONE));
    ck_assert_str_eq("unknown state", strait_state_string(5));
    ck_assert_str_eq("unknown state", strait_state_string(-1));
    ck_assert_str_eq("checksum mismatch", strait_reason_string(STRAIT_REASON_INTEGRITY));
    ck_assert_str_eq("unknown reason", strait_reason_string(99));
}
END_TEST

static TCase *add_case(Suite *suite, const char *name)
{
    TCase *tests = tcase_create(name);
    tcase_add_checked_fixture(tests, set_up, tear_down);
    suite_add_tcase(suite, tests);
    return tests;
}

static Suite *client_suite(void)
{
    Suite *suite = suite_create("client");
    TCase *tests = add_case(suite, "connection");
    tcase_add_test(tests, the_client_greets_and_tells_when_it_is_connected);
    tcase_add_test(tests, a_daemon_of_another_version_is_told_once_and_fails_what_waits);
    tcase_add_test(tests, without_a_daemon_transfers_end_at_their_deadline_and_lease);
    tcase_add_test(tests, what_was_begun_while_the_daemon_was_away_arrives_in_order_after_the_pools);
    tcase_add_test(tests, a_lost_daemon_fails_what_it_knew_and_gets_the_pools_again);
    tcase_add_test(tests, attempts_become_rarer_and_the_descriptor_wakes_for_them);
    tcase_add_loop_test(tests, garbage_breaks_the_connection_but_pages_are_free_only_after_the_daemons_end, 0,
                        COUNT(bad_bytes));
    tcase_add_test(tests, an_end_in_mid_frame_is_an_end);
    tcase_add_test(tests, what_came_before_the_end_still_counts);
    tcase_add_test(tests, messages_about_nothing_known_are_ignored);
    tcase_add_loop_test(tests, messages_out_of_place_break_the_connection, 0, 3);
    tcase_add_loop_test(tests, random_bytes_do_no_harm, 0, 4);
    tests = add_case(suite, "pool");
    tcase_add_test(tests, a_pool_arrives_in_order_with_one_descriptor_for_each_memory);
    tcase_add_loop_test(tests, regions_that_make_no_sense_are_refused, 0, COUNT(spoils));
    tcase_add_test(tests, layouts_with_rows_outside_of_pages_are_fine);
    tcase_add_test(tests, params_of_another_release_are_refused_unless_the_rest_is_zero);
    tcase_add_test(tests, more_memories_than_travel_with_a_frame_are_refused);
    tcase_add_test(tests, a_refused_pool_fails_what_uses_it);
    tcase_add_test(tests, a_pool_is_gone_when_the_daemon_let_go_of_it);
    tcase_add_test(tests, a_pool_goes_at_once_without_a_daemon_and_with_its_end);
    tcase_add_test(tests, a_pool_is_exported_once_the_daemon_told_its_address);
    tcase_add_test(tests, blobs_that_are_none_are_refused_by_reason);
    tcase_add_test(tests, pools_are_compared_and_only_codebooks_may_differ);
    tests = add_case(suite, "verbs");
    tcase_add_test(tests, every_field_of_a_transfer_arrives);
    tcase_add_test(tests, arguments_that_make_no_sense_are_refused);
    tcase_add_loop_test(tests, long_lists_are_split_and_nothing_is_lost, 0, 12);
    tcase_add_test(tests, a_slow_daemon_loses_nothing);
    tcase_add_test(tests, a_hundred_thousand_pages_cost_the_caller_less_than_a_millisecond);
    tcase_add_test(tests, notes_and_statistics_come_and_go);
    tests = add_case(suite, "events");
    tcase_add_test(tests, states_only_move_up_and_layers_are_told);
    tcase_add_test(tests, failed_pages_come_in_parts_and_drained_later);
    tcase_add_loop_test(tests, the_library_gives_the_verdict_of_a_silent_daemon, 0, 3);
    tcase_add_test(tests, the_lease_of_an_offer_is_the_daemons_affair);
    tcase_add_test(tests, abort_is_the_daemons_to_confirm_and_idempotent);
    tcase_add_test(tests, what_the_daemon_never_saw_is_aborted_at_once);
    tcase_add_test(tests, a_released_transfer_is_told_to_the_daemon_and_silent);
    tcase_add_test(tests, the_descriptor_is_readable_exactly_while_there_is_something_to_do);
    tcase_add_test(tests, many_events_come_in_order);
    tcase_add_test(tests, thousands_of_transfers_keep_apart);
    tests = add_case(suite, "rest");
    tcase_add_test(tests, memory_is_sealed_zeroed_and_whole_pages);
    tcase_add_test(tests, what_cannot_be_opened_says_why);
    tcase_add_test(tests, states_and_reasons_have_names);
    return suite;
}

int main(void)
{
    print_conditions();
    SRunner *runner = srunner_create(client_suite());
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
