/* libstrait and its daemon: how a client connects, what it makes of daemons that end or talk nonsense, and what it can
 * do without one. Its pools: what may be registered and how it arrives, how a pool ends, and peers made of exported
 * ones.
 */
#include "tests/client/harness.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "internal/default_socket.h"
#include "proto/blob.h"

#define OTHER_USER 12345 /* whom this process becomes when it is root's */

TEST_CASE(client);

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
    ended(failed, transfer, STRAIT_REASON_LOCAL, true, 2);
    ck_assert_str_ne("", failed->text);
}

TEST(why_the_daemon_refuses_the_client_is_told_once_and_what_waits_is_sent_when_it_does_not)
{
    static const char why[] = "too many clients (option clients=7)";
    const struct message refused = {.type = MESSAGE_REFUSED,
                                    .refused = {.status = STRAIT_ERR_NO_SPACE, .text = view_of(why, sizeof(why) - 1)}};
    fake_listen();
    open_client();
    struct strait_pool *pool = register_pool();
    (void)expect_pages(pool, 0, 2, 60000);
    for (int i = 0; i < 3; i++) {
        until(find_got(MESSAGE_HELLO, 0) != NULL);
        fake_say(&refused);
        until(fake.ended); /* the client leaves by itself */
        fake_forget();
        fake_hang_up();
    }
    ck_assert_uint_eq(1, seen_count);
    ck_assert_int_eq(STRAIT_EVENT_CONNECTION, seen[0].event.type);
    ck_assert(!seen[0].event.connected);
    ck_assert_int_eq(STRAIT_ERR_NO_SPACE, seen[0].event.status);
    ck_assert_str_eq(why, seen[0].text);
    fake_greet();
    until(find_got(MESSAGE_EXPECT, 0) != NULL);
    ck_assert(find_event(STRAIT_EVENT_CONNECTION, 1)->event.connected);
    fake_say(&refused); /* too late */
    until(fake.ended);
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, find_event(STRAIT_EVENT_CONNECTION, 2)->event.status);
}

TEST(without_a_daemon_transfers_end_at_their_deadline_and_lease)
{
    open_client_alone();
    ck_assert(!strait_client_connected(client));
    struct strait_pool *pool = register_pool();
    long began = now_ms(), least = 55;
    struct strait_transfer *sink = expect_pages(pool, 7, 2, 60), *source = NULL;
    struct strait_offer_params params = offer_params(NULL, 0);
    params.lease_ms = 90;
    ck_assert_int_eq(STRAIT_OK, strait_offer(pool, &params, &source));
    for (uint32_t i = 1; i <= 2; i++, least = 85) {
        until(seen_count >= i);
        ck_assert_int_ge((int)(now_ms() - began), (int)least);
    }
    /* In either order, when both are due before anybody looks. */
    const struct seen *end = &seen[seen[0].event.transfer == sink ? 0 : 1];
    ended(end, sink, STRAIT_REASON_TIMEOUT, true, 2);
    ck_assert_ptr_eq(&memory, end->event.context);
    ck_assert_uint_eq(7, end->failed[0].id);
    ck_assert_uint_eq(8, end->failed[1].id);
    ended(end == &seen[0] ? &seen[1] : &seen[0], source, STRAIT_REASON_LEASE_EXPIRED, true, 0);
    fake_listen(); /* the daemon that comes hears nothing of them */
    fake_greet();
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
    struct expected e = expected(60000);
    uint8_t pool_id[STRAIT_POOL_ID_BYTES];
    memcpy(pool_id, strait_pool_id(e.pool), sizeof(pool_id));
    fake_forget();
    fake_stop_listening();
    fake_hang_up();
    until(count_events(STRAIT_EVENT_STATE) == 1);
    ended(find_event(STRAIT_EVENT_STATE, 0), e.transfer, STRAIT_REASON_LOCAL, true, 3);
    ck_assert(!find_event(STRAIT_EVENT_CONNECTION, 0)->event.connected);
    ck_assert(!strait_client_connected(client));
    struct strait_transfer *next = expect_pages(e.pool, 5, 3, 60000); /* the same pages and name: free again */
    settle();
    fake_listen();
    fake_greet();
    until(fake.count == 3);
    ck_assert_int_eq(MESSAGE_POOL_REGISTER, fake.got[1].message.type);
    ck_assert_mem_eq(pool_id, fake.got[1].message.pool_register.pool.bytes, sizeof(pool_id));
    ck_assert_uint_eq(1, fake.got[1].fd_count);
    ck_assert_uint_ne(e.id, fake.got[2].message.expect.transfer);
    fake_state(e.id, STRAIT_DONE, STRAIT_REASON_NONE, true); /* of the past: changes nothing */
    fake_state(fake.got[2].message.expect.transfer, STRAIT_DONE, STRAIT_REASON_NONE, true);
    until(count_events(STRAIT_EVENT_STATE) == 2);
    settle();
    ck_assert_uint_eq(2, count_events(STRAIT_EVENT_STATE));
    ck_assert_ptr_eq(next, find_event(STRAIT_EVENT_STATE, 1)->event.transfer);
    strait_release(e.transfer); /* the new daemon never heard of it */
    strait_release(next);
    until(find_got(MESSAGE_RELEASE, 0) != NULL);
    settle();
    ck_assert_uint_ne(e.id, find_got(MESSAGE_RELEASE, 0)->transfer.transfer);
    ck_assert_ptr_null(find_got(MESSAGE_RELEASE, 1));
}

TEST(attempts_become_rarer_and_the_descriptor_wakes_for_them)
{
    long began = now_ms();
    open_client_alone();
    for (int i = 0; i < 4; i++) { /* 20, 40, 80, 160 ms */
        struct pollfd fd = {.fd = strait_client_fd(client), .events = POLLIN};
        ck_assert_int_eq(1, poll(&fd, 1, PATIENCE_MS));
        ck_assert_int_ge((int)(now_ms() - began), (20 << i) - 15);
        began = now_ms(); /* not behind the call that decides when the next one is due */
        ck_assert_uint_eq(0, strait_poll(client, NULL, 0));
        ck_assert_int_eq(0, poll(&fd, 1, 0));
    }
}

TEST(what_is_new_after_an_idle_daemon_ended_waits_for_the_next)
{
    struct strait_pool *pool = connected_pool();
    settle();
    fake_forget();
    fake_hang_up(); /* nobody has polled since */
    struct strait_transfer *transfer = expect_pages(pool, 5, 3, 60000);
    ck_assert_int_eq(STRAIT_ERR_AGAIN, strait_decline(pool, import_peer(pool), "k", 1));
    until(find_got(MESSAGE_HELLO, 0) != NULL);
    fake_welcome(PROTOCOL_VERSION);
    until(find_got(MESSAGE_EXPECT, 0) != NULL);
    ck_assert_uint_eq(0, count_events(STRAIT_EVENT_STATE));
    fake_state(find_got(MESSAGE_EXPECT, 0)->expect.transfer, STRAIT_DONE, STRAIT_REASON_NONE, true);
    until(count_events(STRAIT_EVENT_STATE) == 1);
    ck_assert_ptr_eq(transfer, find_event(STRAIT_EVENT_STATE, 0)->event.transfer);
}

TEST(who_waits_for_a_pool_hears_what_the_daemon_says_of_it)
{
    const char *why;
    open_client_alone();
    struct strait_pool *pool = register_pool();
    ck_assert_int_eq(STRAIT_ERR_AGAIN, strait_pool_wait(pool, 0, &why));
    ck_assert_ptr_nonnull(strstr(why, "No such file or directory"));
    ck_assert_int_eq(STRAIT_ERR_AGAIN, strait_pool_wait(pool, 5, NULL));
    fake_listen();
    until(find_got(MESSAGE_HELLO, 0) != NULL);
    fake_greet();
    long began = now_ms();
    ck_assert_int_eq(STRAIT_ERR_AGAIN, strait_pool_wait(pool, 30, &why)); /* sleeps: events wait meanwhile */
    ck_assert_int_ge((int)(now_ms() - began), 30);
    ck_assert_str_eq("", why);
    fake_pool_status(pool, STRAIT_ERR_NO_MEMORY, false);
    ck_assert_int_eq(STRAIT_ERR_NO_MEMORY, strait_pool_wait(pool, PATIENCE_MS, &why));
    ck_assert_str_eq("because", why);
    until(count_events(STRAIT_EVENT_POOL) == 1); /* it comes all the same */
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_pool_wait(NULL, 0, NULL));
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
    struct expected e = expected(60000);
    fake_say_bytes(bad_bytes[_i].bytes, bad_bytes[_i].size);
    until(count_events(STRAIT_EVENT_STATE) == 1 && fake.ended);
    ended(find_event(STRAIT_EVENT_STATE, 0), e.transfer, STRAIT_REASON_LOCAL, false, 3);
    ck_assert_int_ne(STRAIT_OK, find_event(STRAIT_EVENT_CONNECTION, 0)->event.status);
    settle();
    ck_assert_uint_eq(0, count_events(STRAIT_EVENT_DRAINED));
    ck_assert(!strait_transfer_progress(e.transfer).drained);
    fake_forget();
    fake_hang_up();
    until(count_events(STRAIT_EVENT_DRAINED) == 1);
    ck_assert_ptr_eq(e.transfer, find_event(STRAIT_EVENT_DRAINED, 0)->event.transfer);
    ck_assert(strait_transfer_progress(e.transfer).drained);
    until(find_got(MESSAGE_HELLO, 0) != NULL); /* and again */
}

TEST(an_end_in_mid_frame_is_an_end)
{
    (void)expected(60000);
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
    struct expected e = expected(60000);
    fake_state(e.id, STRAIT_DONE, STRAIT_REASON_NONE, true);
    fake_hang_up();
    until(count_events(STRAIT_EVENT_CONNECTION) == 1);
    settle();
    ck_assert_uint_eq(1, count_events(STRAIT_EVENT_STATE));
    ck_assert_int_eq(STRAIT_DONE, find_event(STRAIT_EVENT_STATE, 0)->event.state);
}

TEST(messages_about_nothing_known_are_ignored)
{
    struct expected e = expected(60000);
    fake_state(e.id + 1, STRAIT_DONE, STRAIT_REASON_NONE, true);
    fake_state(0, STRAIT_FAILED, STRAIT_REASON_TIMEOUT, false);
    fake_drained(e.id + 99);
    fake_drained(e.id); /* before a verdict */
    fake_say(&(struct message){.type = MESSAGE_LAYERS,
                               .layers = {.transfer = UINT64_MAX, .layer_count = 1, .layers = (int32_t[]){0}}});
    fake_say(&(struct message){.type = MESSAGE_POOL_STATUS, .pool_status.pool = {{1}}});
    fake_say(&(struct message){.type = MESSAGE_NOTE, .note = {.pool = {{1}}, .key = view_of("k", 1)}});
    fake_pool_status(e.pool, STRAIT_OK, true); /* nobody asked to remove it */
    settle();
    ck_assert_uint_eq(0, seen_count);
    ck_assert(strait_client_connected(client));
    ck_assert_int_eq(STRAIT_BOOTSTRAP, strait_transfer_progress(e.transfer).state);
}

TEST_LOOP(messages_out_of_place_break_the_connection, 3)
{
    struct wire_page_list half = {.count = STRAIT_TRANSFER_PAGES_MAX};
    struct expected e = expected(60000);
    if (_i == 0)
        fake_welcome(PROTOCOL_VERSION); /* twice */
    else if (_i == 1)
        fake_say(&(struct message){.type = MESSAGE_STATS}); /* not for clients */
    else
        for (int i = 0; i < 2; i++) /* more pages than a transfer can have */
            fake_say(&(struct message){.type = MESSAGE_STATE,
                                       .state = {.transfer = e.id,
                                                 .reason = STRAIT_REASON_CODEC,
                                                 .more = true,
                                                 .failed = &half,
                                                 .failed_count = 1}});
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

TEST_CASE(client_pools);

/* ---- Pools ------------------------------------------------------------------------------------------------------- */

TEST(a_pool_arrives_in_order_with_one_descriptor_for_each_memory)
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
    struct strait_pool *pool = try_pool(regions, 4, STRAIT_OK);
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
SPOIL(bad_role, region->role = 4)
SPOIL(bad_layout, region->layout = 3)
SPOIL(bad_layer, region->layer = -2)
SPOIL(far_group, region->group = STRAIT_GROUPS_MAX)
SPOIL(group_gap, region->group = 2)
SPOIL(two_elements, region->element = STRAIT_ELEMENT_FP16)

static const spoil spoils[] = {
    bad_handle, no_handle,     plain_pointer,     no_descriptor,      not_a_memfd,        not_sealed,
    on_a_gpu,   ipc_of_no_gpu, beyond_the_end,    overflowing_stride, overflowing_offset, overflowing_rows,
    odd_offset, odd_stride,    odd_page,          odd_rows,           no_pages,           no_rows,
    empty_rows, huge_page,     overlapping_pages, overlapping_rows,   bad_element,        bad_role,
    bad_layout, bad_layer,     far_group,         group_gap,          two_elements,
};

TEST_LOOP(regions_that_make_no_sense_are_refused, COUNT(spoils))
{
    open_client();
    shrinkable.fd = sealed_memory(memory.size, 0, NULL);
    struct strait_pool_region regions[2] = {region_of(0, 0, 1), region_of(0, 0, 2)};
    (void)try_pool(regions, 2, STRAIT_OK);
    spoils[_i](&regions[1]);
    (void)try_pool(regions, 2, STRAIT_ERR_INVALID);
    close(shrinkable.fd);
}

TEST(layouts_with_rows_outside_of_pages_are_fine)
{
    open_client();
    struct strait_pool_region region = region_of(0, 0, 1);
    region.rows = 4; /* [rows][pages][64 bytes] */
    region.row_bytes = region.page_stride = 64;
    region.row_stride = 64 * PAGES;
    (void)try_pool(&region, 1, STRAIT_OK);
    region.row_stride -= 2;
    (void)try_pool(&region, 1, STRAIT_ERR_INVALID);
}

TEST(params_of_another_release_are_refused_unless_the_rest_is_zero)
{
    open_client();
    struct strait_pool_region region = region_of(0, 0, 1);
    struct {
        struct strait_pool_params params;
        uint64_t later;
    } newer = {{.size = sizeof(newer), .regions = &region, .region_count = 1}, 0};
    struct strait_pool *pool = NULL;
    ck_assert_int_eq(STRAIT_OK, strait_pool_register(client, &newer.params, &pool));
    for (size_t i = 0; i < sizeof(region.reserved) / sizeof(region.reserved[0]); i++) {
        region.reserved[i] = 1;
        ck_assert_int_eq(STRAIT_ERR_INVALID, strait_pool_register(client, &newer.params, &pool));
        region.reserved[i] = 0;
    }
    newer.later = 1;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_pool_register(client, &newer.params, &pool));
    newer.params.size = sizeof(newer.params) - 1;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_pool_register(client, &newer.params, &pool));
    newer.params = (struct strait_pool_params){.size = sizeof(newer.params), .regions = &region};
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_pool_register(client, &newer.params, &pool));
    newer.params.region_count = STRAIT_REGIONS_MAX + 1;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_pool_register(client, &newer.params, &pool));
}

TEST(more_memories_than_travel_with_a_frame_are_refused)
{
    open_client();
    struct strait_pool_region regions[CHANNEL_FDS_MAX + 1];
    struct strait_memory memories[CHANNEL_FDS_MAX + 1];
    for (uint32_t i = 0; i <= CHANNEL_FDS_MAX; i++) {
        ck_assert_int_eq(STRAIT_OK, strait_alloc((size_t)PAGES * PAGE_BYTES, &memories[i]));
        regions[i] = region_of(0, (int32_t)i, 1);
        regions[i].fd = memories[i].fd;
    }
    (void)try_pool(regions, CHANNEL_FDS_MAX + 1, STRAIT_ERR_INVALID);
    (void)try_pool(regions, CHANNEL_FDS_MAX, STRAIT_OK);
    for (uint32_t i = 0; i <= CHANNEL_FDS_MAX; i++)
        strait_free(&memories[i]);
}

TEST(a_refused_pool_fails_what_uses_it)
{
    struct expected e = expected(60000);
    fake_pool_status(e.pool, STRAIT_ERR_NO_MEMORY, false);
    until(count_events(STRAIT_EVENT_STATE) == 1);
    ck_assert_ptr_eq(e.pool, find_event(STRAIT_EVENT_POOL, 0)->event.pool);
    ck_assert_int_eq(STRAIT_ERR_NO_MEMORY, find_event(STRAIT_EVENT_POOL, 0)->event.status);
    ck_assert_str_eq("because", find_event(STRAIT_EVENT_POOL, 0)->text);
    ck_assert_ptr_eq(e.transfer, find_event(STRAIT_EVENT_STATE, 0)->event.transfer);
    struct strait_transfer *later = expect_pages(e.pool, 0, 1, 60000);
    until(count_events(STRAIT_EVENT_STATE) == 2);
    ended(find_event(STRAIT_EVENT_STATE, 1), later, STRAIT_REASON_LOCAL, true, 1);
    ck_assert_ptr_null(find_got(MESSAGE_EXPECT, 1));
    ck_assert_int_eq(STRAIT_OK, strait_start(later, import_peer(e.pool), NULL));
    until(find_got(MESSAGE_START, 0) != NULL); /* whom it names need not wait */
    ck_assert(find_got(MESSAGE_EXPECT, 1)->expect.more);
    ck_assert_uint_eq(find_got(MESSAGE_ABORT, 0)->transfer.transfer, find_got(MESSAGE_START, 0)->start.transfer);
}

TEST(a_pool_is_gone_when_the_daemon_let_go_of_it)
{
    struct expected e = expected(60000);
    strait_pool_remove(e.pool);
    strait_pool_remove(e.pool);
    until(find_got(MESSAGE_POOL_REMOVE, 0) != NULL);
    ck_assert_ptr_null(find_got(MESSAGE_POOL_REMOVE, 1));
    ck_assert_uint_eq(e.id, find_got(MESSAGE_ABORT, 0)->transfer.transfer);
    struct strait_expect_params params = expect_params(NULL, 0);
    struct strait_transfer *none = NULL;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_expect(e.pool, &params, &none));
    settle();
    ck_assert_uint_eq(0, seen_count);
    fake_state(e.id, STRAIT_FAILED, STRAIT_REASON_ABORTED, false);
    fake_drained(e.id);
    fake_pool_status(e.pool, STRAIT_OK, true);
    until(seen_count == 3);
    ck_assert_int_eq(STRAIT_EVENT_STATE, seen[0].event.type);
    ck_assert_int_eq(STRAIT_EVENT_DRAINED, seen[1].event.type);
    ck_assert_int_eq(STRAIT_EVENT_POOL_REMOVED, seen[2].event.type);
    ck_assert_ptr_eq(e.pool, seen[2].event.pool);
    ck_assert(strait_transfer_progress(e.transfer).drained);
}

TEST(a_pool_goes_at_once_without_a_daemon_and_with_its_end)
{
    open_client_alone();
    struct strait_pool *pool = register_pool();
    struct strait_transfer *transfer = expect_pages(pool, 0, 1, 60000);
    strait_pool_remove(pool);
    settle();
    ck_assert_uint_eq(2, seen_count);
    ended(&seen[0], transfer, STRAIT_REASON_ABORTED, true, 1);
    ck_assert_int_eq(STRAIT_EVENT_POOL_REMOVED, seen[1].event.type);
    fake_listen();
    fake_greet();
    until(strait_client_connected(client));
    ck_assert_uint_eq(1, fake.count); /* no pool */
    pool = register_pool();
    strait_pool_remove(pool);
    settle();
    ck_assert_uint_eq(1, count_events(STRAIT_EVENT_POOL_REMOVED));
    fake_hang_up();
    until(count_events(STRAIT_EVENT_POOL_REMOVED) == 2);
}

/* ---- Peers ------------------------------------------------------------------------------------------------------- */

TEST(a_pool_is_exported_once_the_daemon_told_its_address)
{
    uint8_t bytes[4096];
    size_t size = 0;
    fake_listen();
    open_client();
    struct strait_pool *pool = register_pool();
    ck_assert_int_eq(STRAIT_ERR_AGAIN, strait_pool_export(pool, bytes, sizeof(bytes), &size));
    fake_greet();
    until(strait_client_connected(client));
    ck_assert_int_eq(STRAIT_ERR_NO_SPACE, strait_pool_export(pool, NULL, 0, &size));
    ck_assert_uint_gt(size, BLOB_HEADER_BYTES);
    ck_assert_int_eq(STRAIT_OK, strait_pool_export(pool, bytes, size, &size));
    struct pool_blob blob;
    ck_assert_int_eq(STRAIT_OK, blob_unpack(bytes, size, &blob));
    ck_assert_str_eq(ADDRESS, blob.address);
    ck_assert_mem_eq(strait_pool_id(pool), blob.pool.bytes, STRAIT_POOL_ID_BYTES);
    ck_assert_mem_eq(fake.codebook_id, blob.codebook_id, sizeof(fake.codebook_id));
    ck_assert_uint_eq(2, blob.region_count);
    ck_assert_uint_eq(STRAIT_ROLE_K, blob.regions[0].role);
    blob_fini(&blob);
    fake_hang_up();
    until(!strait_client_connected(client)); /* what is known stays known */
    ck_assert_int_eq(STRAIT_OK, strait_pool_export(pool, bytes, sizeof(bytes), &size));
}

TEST(blobs_that_are_none_are_refused_by_reason)
{
    uint8_t bytes[4096];
    size_t size = 0;
    struct strait_peer *peer = NULL;
    struct strait_pool *pool = connected_pool();
    ck_assert_int_eq(STRAIT_OK, strait_pool_export(pool, bytes, sizeof(bytes), &size));
    for (size_t cut = 0; cut < size; cut++)
        ck_assert_int_eq(STRAIT_ERR_TRUNCATED, strait_peer_import(client, bytes, cut, &peer));
    bytes[size - 1] ^= 1;
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, strait_peer_import(client, bytes, size, &peer));
    ck_assert_ptr_null(peer);
}

TEST(pools_are_compared_and_only_codebooks_may_differ)
{
    struct strait_pool *pool = connected_pool();
    struct strait_peer *peer = import_peer(pool);
    ck_assert_uint_eq(0, strait_peer_check(pool, peer));
    char text[256];
    ck_assert_uint_eq(0, strait_peer_explain(pool, peer, text, sizeof(text)));
    struct strait_pool_region region = region_of(0, 3, 1);
    region.row_bytes = PAGE_BYTES / 2;
    struct strait_pool *other = try_pool(&region, 1, STRAIT_OK);
    ck_assert_uint_ne(0, strait_peer_check(other, peer) & STRAIT_MISMATCH_FATAL);
    ck_assert_uint_eq(strait_peer_explain(other, peer, NULL, 0), strait_peer_explain(other, peer, text, sizeof(text)));
    ck_assert_str_eq(
        "group 0, layer 0, K: missing here, 1 layers here, 1 there; the pools have no layer and head in common", text);
    struct strait_transfer *transfer = expect_pages(other, 0, 1, 60000);
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_start(transfer, peer, NULL));
    ck_assert_int_eq(STRAIT_OK, strait_decline(other, peer, "k", 1)); /* the source need not wait in vain */
    until(find_got(MESSAGE_START, 0) != NULL);
    struct strait_transfer *same = expect_pages(pool, 0, 1, 60000);
    ck_assert_int_eq(STRAIT_OK, strait_start(same, peer, NULL));
    fake.codebook_id[0] ^= 1; /* the daemon comes back with another one */
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

int main(void)
{
    return client_main("client");
}
