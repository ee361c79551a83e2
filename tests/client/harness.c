/* The fake daemon: a channel behind a listening socket. It reads, as the client does, in step() alone. */
#include "tests/client/harness.h"

#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct fake_daemon fake = {.codebook_id = {1, 2, 3}};
struct seen seen[SEEN_MAX];
uint32_t seen_count;
struct strait_client *client;
struct strait_memory memory;

/* ---- A daemon that does what a test tells it --------------------------------------------------------------------- */

void fake_listen(void)
{
    fake.listener = unix_listen(fake.path);
}

void fake_stop_listening(void)
{
    if (fake.listener >= 0)
        close(fake.listener);
    fake.listener = -1;
    unlink(fake.path);
}

void fake_forget(void)
{
    for (uint32_t i = 0; i < fake.count; i++) {
        message_fini(&fake.got[i].message);
        for (uint32_t k = 0; k < fake.got[i].fd_count; k++)
            close(fake.got[i].fds[k]);
    }
    fake.count = 0;
}

void fake_hang_up(void)
{
    channel_destroy(fake.channel);
    fake.channel = NULL;
    socket_ring_close(&fake.ring);
}

static void fake_accept(void)
{
    int fd = fake.listener >= 0 ? accept4(fake.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK) : -1;
    if (fd < 0)
        return;
    fake.ended = false;
    ck_assert_int_eq(STRAIT_OK, channel_create(fd, MESSAGE_BYTES_MAX, 64u << 20, &fake.channel));
}

static void fake_take_rings(struct got *got)
{
    ck_assert_uint_eq(1, got->fd_count);
    ck_assert(socket_ring_map(&fake.ring, fake.channel, &got->message.rings, got->fds[0]));
    close(got->fds[0]);
    message_fini(&got->message);
    fake_say(&(struct message){.type = MESSAGE_RING});
    channel_send_by(fake.channel, &fake.ring.layer.layer);
    ck_assert(channel_receive_by(fake.channel, &fake.ring.layer.layer));
    (void)socket_ring_sleep(&fake.ring, true); /* so that it is woken as often as can be */
}

/* What it sees first of all: the socket's end. */
static void fake_look(void)
{
    if (fake.ring.file.base == NULL)
        return;
    ring_layer_socket_ready(&fake.ring.layer);
    (void)socket_ring_sleep(&fake.ring, true);
}

void fake_step(void)
{
    if (fake.channel == NULL)
        fake_accept();
    if (fake.channel == NULL || fake.deaf)
        return;
    uint64_t before;
    fake_look();
    do { /* until nothing more is there, or the end */
        before = channel_received(fake.channel);
        fake.ended |= channel_read(fake.channel) != STRAIT_OK;
    } while (!fake.ended && channel_received(fake.channel) > before);
    for (;;) {
        struct got *got = &fake.got[fake.count];
        ck_assert_uint_lt(fake.count, GOT_MAX);
        enum strait_status status = channel_next(fake.channel, &got->message, got->fds, &got->fd_count);
        if (status == STRAIT_ERR_AGAIN)
            break;
        ck_assert_int_eq(STRAIT_OK, status);
        if (got->message.type == MESSAGE_RINGS) {
            fake_take_rings(got);
            fake.ended |= channel_read(fake.channel) != STRAIT_OK;
            continue;
        }
        if (got->message.type != MESSAGE_PING) {
            fake.count++;
            continue;
        }
        message_fini(&got->message);
        fake.pings++;
        fake_say(&(struct message){.type = MESSAGE_PONG});
    }
    channel_flush(fake.channel);
}

void fake_say(const struct message *message)
{
    ck_assert_int_eq(STRAIT_OK, channel_send(fake.channel, message, NULL, 0));
    do
        ck_assert_int_eq(STRAIT_OK, channel_flush(fake.channel));
    while (channel_wants_write(fake.channel));
}

void fake_say_bytes(const void *bytes, size_t size)
{
    const struct iovec piece = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = size};
    struct channel_layer *layer = &fake.ring.layer.layer;
    ck_assert_int_eq((int)size, fake.ring.file.base != NULL
                                    ? (int)layer->send(layer, -1, &piece, 1)
                                    : (int)send(channel_fd(fake.channel), bytes, size, MSG_NOSIGNAL));
}

void fake_welcome(uint32_t version)
{
    struct message message = {.type = MESSAGE_WELCOME};
    message.welcome.version = version;
    message.welcome.incarnation = 77;
    message.welcome.address = view_of(ADDRESS, strlen(ADDRESS));
    message.welcome.codebook_id = view_of(fake.codebook_id, sizeof(fake.codebook_id));
    message.welcome.daemon = view_of("fake", 4);
    message.welcome.rings = getenv("STRAIT_TEST_RINGS") != NULL;
    fake_say(&message);
}

void fake_greet(void)
{
    until(find_got(MESSAGE_HELLO, 0) != NULL);
    fake_welcome(PROTOCOL_VERSION);
}

void fake_state(uint64_t transfer, enum strait_state state, enum strait_reason reason, bool drained)
{
    struct message message = {.type = MESSAGE_STATE};
    message.state.transfer = transfer;
    message.state.state = state;
    message.state.reason = reason;
    message.state.drained = drained;
    fake_say(&message);
}

void fake_drained(uint64_t transfer)
{
    fake_say(&(struct message){.type = MESSAGE_DRAINED, .transfer.transfer = transfer});
}

void fake_pool_status(const struct strait_pool *pool, enum strait_status status, bool removed)
{
    struct message message = {.type = MESSAGE_POOL_STATUS};
    memcpy(&message.pool_status.pool, strait_pool_id(pool), STRAIT_POOL_ID_BYTES);
    message.pool_status.status = status;
    message.pool_status.removed = removed;
    message.pool_status.text = view_of("because", 7);
    fake_say(&message);
}

/* ---- What the client told, kept beyond its next poll ------------------------------------------------------------- */

static struct strait_page_list *copy_lists(const struct strait_event *event)
{
    struct strait_page_list *lists = calloc(event->landed_count + 1, sizeof(*lists));
    for (uint32_t i = 0; i < event->landed_count; i++) {
        lists[i] = event->landed[i];
        if (lists[i].ids != NULL)
            lists[i].ids =
                memcpy(malloc(lists[i].count * sizeof(uint32_t)), lists[i].ids, lists[i].count * sizeof(uint32_t));
    }
    return lists;
}

static void keep_event(const struct strait_event *event)
{
    ck_assert_uint_lt(seen_count, SEEN_MAX);
    struct seen *kept = &seen[seen_count++];
    kept->event = *event;
    snprintf(kept->text, sizeof(kept->text), "%s", event->text);
    kept->failed = calloc(event->failed_count + 1, sizeof(*kept->failed));
    kept->landed = copy_lists(event);
    kept->data = calloc(1, event->data_size + 1);
    for (uint32_t i = 0; i < event->failed_count; i++)
        kept->failed[i] = event->failed[i];
    if (event->data_size > 0)
        memcpy(kept->data, event->data, event->data_size);
}

void forget_events(void)
{
    for (uint32_t i = 0; i < seen_count; i++) {
        for (uint32_t k = 0; k < seen[i].event.landed_count; k++)
            free((void *)seen[i].landed[k].ids);
        free(seen[i].landed);
        free(seen[i].failed);
        free(seen[i].data);
    }
    seen_count = 0;
}

void step(void)
{
    struct strait_event events[16];
    fake_step();
    uint32_t count = strait_poll(client, events, 16);
    for (uint32_t i = 0; i < count; i++)
        keep_event(&events[i]);
    fake_step();
}

long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void rest(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 300000}, NULL);
}

void settle(void)
{
    for (int i = 0; i < 8; i++)
        step();
}

const struct seen *find_event(enum strait_event_type type, uint32_t nth)
{
    for (uint32_t i = 0; i < seen_count; i++)
        if (seen[i].event.type == type && nth-- == 0)
            return &seen[i];
    return NULL;
}

uint32_t count_events(enum strait_event_type type)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < seen_count; i++)
        count += seen[i].event.type == type;
    return count;
}

void ended(const struct seen *end, const struct strait_transfer *transfer, enum strait_reason reason, bool drained,
           uint32_t failed_count)
{
    ck_assert_ptr_nonnull(end);
    ck_assert_ptr_eq(transfer, end->event.transfer);
    ck_assert_int_eq(reason == STRAIT_REASON_NONE ? STRAIT_DONE : STRAIT_FAILED, end->event.state);
    ck_assert_int_eq(reason, end->event.reason);
    ck_assert_int_eq(drained, end->event.drained);
    ck_assert_uint_eq(failed_count, end->event.failed_count);
}

const struct message *find_got(enum message_type type, uint32_t nth)
{
    for (uint32_t i = 0; i < fake.count; i++)
        if (fake.got[i].message.type == type && nth-- == 0)
            return &fake.got[i].message;
    return NULL;
}

/* ---- Setting up -------------------------------------------------------------------------------------------------- */

static int descriptors_before;
int descriptors_kept;

void client_setup(void)
{
    descriptors_before = open_descriptors();
    strcpy(fake.folder, "/tmp/strait-client-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(fake.folder));
    snprintf(fake.path, sizeof(fake.path), "%s/socket", fake.folder);
    fake.listener = -1;
    fake.deaf = false;
    fake.pings = 0;
    ck_assert_int_eq(STRAIT_OK, strait_alloc((size_t)PAGES * PAGE_BYTES * 4, &memory));
}

void client_teardown(void)
{
    strait_client_close(client);
    client = NULL;
    strait_free(&memory);
    fake_forget();
    fake_hang_up();
    fake_stop_listening();
    forget_events();
    rmdir(fake.folder);
    ck_assert_int_eq(descriptors_before + descriptors_kept, open_descriptors());
}

void open_client(void)
{
    struct strait_client_config config = {.size = sizeof(config), .socket = fake.path};
    ck_assert_int_eq(STRAIT_OK, strait_client_open(&config, &client));
}

void open_client_alone(void)
{
    char text[256];
    open_client();
    until(seen_count == 1);
    ck_assert_int_eq(STRAIT_EVENT_CONNECTION, seen[0].event.type);
    ck_assert(!seen[0].event.connected && seen[0].event.status == STRAIT_ERR_IO);
    snprintf(text, sizeof(text), "no daemon at %s: No such file or directory", fake.path);
    ck_assert_str_eq(text, seen[0].event.text);
    forget_events();
}

void connect_client(void)
{
    fake_listen();
    open_client();
    fake_greet();
    until(strait_client_connected(client));
}

struct strait_pool_region region_of(uint32_t group, int32_t layer, uint32_t role)
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

struct strait_pool *register_pool(void)
{
    struct strait_pool_region regions[2] = {region_of(0, 0, STRAIT_ROLE_V), region_of(0, 0, STRAIT_ROLE_K)};
    return try_pool(regions, 2, STRAIT_OK);
}

struct strait_pool *connected_pool(void)
{
    connect_client();
    return register_pool();
}

struct strait_pool *try_pool(struct strait_pool_region *regions, uint32_t count, enum strait_status status)
{
    struct strait_pool_params params = {.size = sizeof(params), .regions = regions, .region_count = count};
    struct strait_pool *pool = NULL;
    ck_assert_int_eq(status, strait_pool_register(client, &params, &pool));
    ck_assert_int_eq(status == STRAIT_OK, pool != NULL);
    return pool;
}

struct strait_expect_params expect_params(const struct strait_page_list *lists, uint32_t count)
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

struct strait_offer_params offer_params(const struct strait_page_list *lists, uint32_t count)
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

enum strait_status read_page(struct strait_pool *pool, struct strait_read_params params)
{
    const struct strait_page_list list = {.count = 1};
    struct strait_transfer *transfer = NULL;
    struct strait_peer *peer = import_peer(pool);
    params.lists = params.peer_lists = &list;
    params.list_count = params.peer_list_count = 1;
    params.deadline_ms = 60000;
    enum strait_status status = strait_read(pool, peer, &params, &transfer);
    strait_peer_remove(peer);
    return status;
}

struct strait_transfer *expect_pages(struct strait_pool *pool, uint32_t first, uint32_t count, uint32_t deadline_ms)
{
    struct strait_page_list list = {.first_id = first, .count = count};
    struct strait_expect_params params = expect_params(&list, 1);
    struct strait_transfer *transfer = NULL;
    params.deadline_ms = deadline_ms;
    ck_assert_int_eq(STRAIT_OK, strait_expect(pool, &params, &transfer));
    return transfer;
}

struct expected expected(uint32_t deadline_ms)
{
    struct expected e = {.pool = connected_pool()};
    e.transfer = expect_pages(e.pool, 5, 3, deadline_ms);
    until(find_got(MESSAGE_EXPECT, 0) != NULL);
    e.id = find_got(MESSAGE_EXPECT, 0)->expect.transfer;
    forget_events();
    return e;
}

struct strait_peer *import_peer(const struct strait_pool *pool)
{
    uint8_t blob[4096];
    size_t size = 0;
    struct strait_peer *peer = NULL;
    ck_assert_int_eq(STRAIT_OK, strait_pool_export(pool, blob, sizeof(blob), &size));
    ck_assert_int_eq(STRAIT_OK, strait_peer_import(client, blob, size, &peer));
    return peer;
}
