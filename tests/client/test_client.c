/* libstrait and its daemon: how a client connects, what it makes of daemons that end or talk nonsense, and what it can
 * do without one. */
#include "tests/client/harness.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "internal/default_socket.h"

#define OTHER_USER 12345 /* whom this process becomes when it is root's */

/* ---- Connecting -------------------------------------------------------------------------------------------------- */

TEST(the_client_greets_and_tells_when_it_is_connected)
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

TEST(a_daemon_of_another_version_is_told_once_and_fails_what_waits)
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

static void end_at_deadline(const struct strait_event *event)
{
    ck_assert_int_eq(STRAIT_FAILED, event->state);
    ck_assert_int_eq(STRAIT_REASON_TIMEOUT, event->reason);
    ck_assert(event->drained);
    ck_assert_ptr_eq(&memory, event->context);
    ck_assert_uint_eq(2, event->failed_count);
    ck_assert_uint_eq(7, event->failed[0].id);
    ck_assert_uint_eq(8, event->failed[1].id);
}

TEST(without_a_daemon_transfers_end_at_their_deadline_and_lease)
{
    open_client();
    ck_assert(!strait_client_connected(client));
    struct strait_pool *pool = register_pool();
    long began = now_ms();
    struct strait_transfer *sink = expect_pages(pool, 7, 2, 60), *source = NULL;
    struct strait_offer_params params = offer_params(NULL, 0);
    params.lease_ms = 90;
    ck_assert_int_eq(STRAIT_OK, strait_offer(pool, &params, &source));
    uint32_t ended = 0;
    for (int i = 0; i < 2; i++) { /* in either order, when both are due before anybody looks */
        struct strait_event event;
        ck_assert_uint_eq(1, strait_wait(client, &event, 1, PATIENCE_MS));
        ck_assert_int_ge((int)(now_ms() - began), event.transfer == sink ? 55 : 85);
        ended |= event.transfer == sink ? 1 : event.transfer == source ? 2 : 4;
        if (event.transfer == sink) {
            end_at_deadline(&event);
        } else {
            ck_assert_int_eq(STRAIT_REASON_LEASE_EXPIRED, event.reason);
            ck_assert(event.drained);
        }
    }
    ck_assert_uint_eq(3, ended);
    fake_listen(); /* the daemon that comes hears nothing of them */
    until(find_got(MESSAGE_HELLO, 0) != NULL);
    fake_welcome(PROTOCOL_VERSION);
    until(find_got(MESSAGE_POOL_REGISTER, 0) != NULL);
    settle();
    ck_assert_uint_eq(2, fake.count);
}

TEST(what_was_begun_while_the_daemon_was_away_arrives_in_order_after_the_pools)
{
    open_client();
    struct strait_pool *pool = register_pool();
    struct strait_transfer *sink = expect_pages(pool, 1, 2, 60000), *source = NULL;
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
    ck_assert_uint_le(expect->deadline_ms, 59960);
    ck_assert_uint_gt(expect->deadline_ms, 50000);
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

TEST(a_lost_daemon_fails_what_it_knew_and_gets_the_pools_again)
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

TEST(attempts_become_rarer_and_the_descriptor_wakes_for_them)
{
    long began = now_ms();
    open_client();
    for (int i = 0; i < 4; i++) { /* 20, 40, 80, 160 ms */
        struct pollfd fd = {.fd = strait_client_fd(client), .events = POLLIN};
        ck_assert_int_eq(1, poll(&fd, 1, PATIENCE_MS));
        ck_assert_int_ge((int)(now_ms() - began), (20 << i) - 15);
        began = now_ms(); /* not behind the call that decides when the next one is due */
        ck_assert_uint_eq(0, strait_poll(client, NULL, 0));
        ck_assert_int_eq(0, poll(&fd, 1, 0));
    }
}

/* ---- Bad daemons ------------------------------------------------------------------------------------------------- */

static const struct bad_bytes {
    uint8_t bytes[16];
    size_t size;
} bad_bytes[] = {
    {{8, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255}, 12}, /* no message */
    {{255, 255, 255, 255}, 4},                                  /* longer than anything */
    {{1, 0, 128, 0}, 4},                                        /* one byte too long */
    {{0, 0, 0, 0}, 4},                                          /* empty */
};

TEST_LOOP(garbage_breaks_the_connection_but_pages_are_free_only_after_the_daemons_end, COUNT(bad_bytes))
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

TEST(an_end_in_mid_frame_is_an_end)
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

TEST(what_came_before_the_end_still_counts)
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

TEST(messages_about_nothing_known_are_ignored)
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

TEST_LOOP(messages_out_of_place_break_the_connection, 3)
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

TEST_LOOP(random_bytes_do_no_harm, 4)
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

/* ---- The rest ---------------------------------------------------------------------------------------------------- */

TEST(memory_is_sealed_zeroed_and_whole_pages)
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

TEST(what_cannot_be_opened_says_why)
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

/* A folder as XDG_RUNTIME_DIR names it, of a user other than root, which the case's process becomes. */
static void own_folder(char folder[32])
{
    char inner[64];
    strcpy(folder, "/tmp/strait-user-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(inner, sizeof(inner), "%s/strait", folder);
    ck_assert_int_eq(0, mkdir(inner, 0755));
    if (geteuid() == 0) {
        ck_assert_int_eq(0, chmod(folder, 0755));
        ck_assert_int_eq(0, chown(folder, OTHER_USER, (gid_t)-1));
        ck_assert_int_eq(0, chown(inner, OTHER_USER, (gid_t)-1));
        ck_assert_int_eq(0, seteuid(OTHER_USER));
    }
    setenv("XDG_RUNTIME_DIR", folder, 1);
    unsetenv("STRAIT_SOCKET");
}

static void remove_own_folder(const char *folder)
{
    char inner[64];
    ck_assert_int_eq(0, seteuid(getuid()));
    snprintf(inner, sizeof(inner), "%s/strait", folder);
    fake_stop_listening();
    rmdir(inner);
    ck_assert_int_eq(0, rmdir(folder));
}

TEST(a_daemon_of_the_users_own_is_found_when_it_comes)
{
    char folder[32], first[sizeof(fake.path)];
    memcpy(first, fake.path, sizeof(first));
    own_folder(folder);
    ck_assert_int_eq(STRAIT_OK, strait_client_open(NULL, &client));
    settle();
    snprintf(fake.path, sizeof(fake.path), "%s/strait/straitd.sock", folder);
    fake_listen();
    until(find_got(MESSAGE_HELLO, 0) != NULL);
    strait_client_close(client);
    client = NULL;
    remove_own_folder(folder);
    memcpy(fake.path, first, sizeof(first));
}

TEST(a_socket_that_others_have_put_there_is_none_of_ours)
{
    char folder[32], own[SOCKET_PATH_MAX + 1], first[sizeof(fake.path)];
    memcpy(first, fake.path, sizeof(first));
    own_folder(folder);
    ck_assert(socket_of_user(own));
    ck_assert_str_eq(SOCKET_OF_NODE, socket_find(own)); /* nothing is there */
    snprintf(fake.path, sizeof(fake.path), "%s/strait/straitd.sock", folder);
    fake_listen();
    ck_assert_str_eq(fake.path, socket_find(own));
    if (getuid() == 0) {
        ck_assert_int_eq(0, seteuid(0));
        ck_assert_str_eq(SOCKET_OF_NODE, socket_find(own)); /* root's is the node's */
        ck_assert_int_eq(0, chown(fake.path, OTHER_USER + 1, (gid_t)-1));
        ck_assert_int_eq(0, seteuid(OTHER_USER));
        ck_assert_str_eq(SOCKET_OF_NODE, socket_find(own));
        ck_assert_int_eq(0, seteuid(0));
        ck_assert_int_eq(0, chown(fake.path, 0, (gid_t)-1));
        ck_assert_int_eq(0, seteuid(OTHER_USER));
        ck_assert_str_eq(fake.path, socket_find(own));
    }
    fake_stop_listening();
    ck_assert_int_eq(0, symlink(first, fake.path)); /* not a socket by itself */
    ck_assert_str_eq(SOCKET_OF_NODE, socket_find(own));
    setenv("STRAIT_SOCKET", "/told", 1);
    ck_assert_str_eq("/told", socket_find(own));
    remove_own_folder(folder);
    memcpy(fake.path, first, sizeof(first));
}

TEST(states_and_reasons_have_names)
{
    ck_assert_str_eq("failed", strait_state_string(STRAIT_FAILED));
    ck_assert_str_eq("done", strait_state_string(STRAIT_DONE));
    ck_assert_str_eq("unknown state", strait_state_string(5));
    ck_assert_str_eq("unknown state", strait_state_string(-1));
    ck_assert_str_eq("checksum mismatch", strait_reason_string(STRAIT_REASON_INTEGRITY));
    ck_assert_str_eq("unknown reason", strait_reason_string(99));
}

int main(void)
{
    return client_main("client");
}
