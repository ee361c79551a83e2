/* Transfers of libstrait: how what the caller asks for reaches the daemon, and what the daemon's answers become. */
#include "tests/client/harness.h"

#include <poll.h>
#include <sys/socket.h>
#include <time.h>

/* ---- Verbs ------------------------------------------------------------------------------------------------------- */

TEST(every_field_of_a_transfer_arrives)
{
    struct strait_pool *pool = connected_pool();
    struct strait_peer *peer = import_peer(pool);
    uint32_t ids[2] = {11, 3};
    struct strait_page_list lists[2] = {{.first = 6, .count = 2, .ids = ids}, {.first = 2, .count = 4, .first_id = 20}};
    struct strait_expect_params expect = expect_params(lists, 2);
    struct strait_transfer *sink = NULL, *source = NULL;
    expect.sources = 3;
    expect.deadline_ms = 100000;
    ck_assert_int_eq(STRAIT_OK, strait_expect(pool, &expect, &sink));
    struct strait_offer_params offer = offer_params(lists, 1);
    offer.consumers = 2;
    offer.lease_ms = 77777;
    offer.later = true;
    ck_assert_int_eq(STRAIT_OK, strait_offer(pool, &offer, &source));
    struct strait_append_params append = {.size = sizeof(append), .layer_first = 4, .layer_count = 2};
    ck_assert_int_eq(STRAIT_OK, strait_append(source, &append));
    append = (struct strait_append_params){
        .size = sizeof(append), .lists = &lists[1], .list_count = 1, .last = true, .aux = "aux", .aux_size = 3};
    ck_assert_int_eq(STRAIT_OK, strait_append(source, &append));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_append(source, &append));
    struct strait_start_params start = {
        .size = sizeof(start), .direction = STRAIT_PULL, .peer_key = "theirs", .peer_key_size = 6, .consumers = 4};
    struct strait_start_params push = {.size = sizeof(push), .direction = STRAIT_PUSH};
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_start(sink, peer, &push));
    ck_assert_int_eq(STRAIT_OK, strait_start(sink, peer, &start));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_start(source, peer, &start));
    start.consumers = STRAIT_PARTS_MAX + 1;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_start(sink, peer, &start));
    ck_assert_int_eq(STRAIT_OK, strait_start(source, peer, NULL));
    until(find_got(MESSAGE_START, 1) != NULL);

    const struct message_expect *expectation = &find_got(MESSAGE_EXPECT, 0)->expect;
    ck_assert_mem_eq(strait_pool_id(pool), expectation->pool.bytes, STRAIT_POOL_ID_BYTES);
    ck_assert_uint_eq(7, expectation->key.size);
    ck_assert_mem_eq("request", expectation->key.data, 7);
    ck_assert_uint_eq(3, expectation->sources);
    ck_assert(expectation->deadline_ms > 90000 && expectation->deadline_ms <= 100000 && !expectation->more);
    ck_assert_uint_eq(2, expectation->list_count);
    ck_assert_uint_eq(6, expectation->lists[0].first);
    ck_assert_mem_eq(ids, expectation->lists[0].ids, sizeof(ids));
    ck_assert_uint_eq(2, expectation->lists[1].first);
    ck_assert_uint_eq(4, expectation->lists[1].count);
    ck_assert_uint_eq(20, expectation->lists[1].first_id);
    ck_assert_ptr_null(expectation->lists[1].ids);

    const struct message_offer *offered = &find_got(MESSAGE_OFFER, 0)->offer;
    ck_assert_uint_ne(expectation->transfer, offered->transfer);
    ck_assert(offered->consumers == 2 && !offered->asked);
    ck_assert_uint_eq(4, find_got(MESSAGE_START, 0)->start.consumers);
    ck_assert(offered->lease_ms > 67777 && offered->lease_ms <= 77777);
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

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

TEST(arguments_that_make_no_sense_are_refused)
{
    struct strait_pool *pool = connected_pool();
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
    REFUSED(expect, strait_expect, p.size = offsetof(struct strait_expect_params, traceparent) - 1);
    REFUSED(expect, strait_expect, p.size = 0);
    REFUSED(expect, strait_expect, p.traceparent = "00");
    REFUSED(offer, strait_offer, p.size = offsetof(struct strait_offer_params, traceparent) + 1);
    REFUSED(offer, strait_offer, p.traceparent = "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    REFUSED(offer, strait_offer, p.lease_ms = 0);
    REFUSED(offer, strait_offer, p.consumers = STRAIT_PARTS_MAX + 1);
    REFUSED(offer, strait_offer, p.consumers = STRAIT_CONSUMERS_ASKED - 1);
    REFUSED(offer, strait_offer, p.last = p.later = true);
    REFUSED(offer, strait_offer, (p.later = true, p.ready = large));
    REFUSED(offer, strait_offer, (p.aux = large, p.aux_size = 1)); /* without last */
    REFUSED(offer, strait_offer, (p.last = true, p.aux = large, p.aux_size = sizeof(large)));
    REFUSED(offer, strait_offer, (p.last = true, p.aux_size = 1));
    struct strait_offer_params params = offer_params(NULL, 0);
    ck_assert_int_eq(STRAIT_ERR_INVALID,
                     read_page(pool, (struct strait_read_params){.size = sizeof(struct strait_read_params),
                                                                 .traceparent = TRACEPARENT "-"}));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_offer(NULL, &params, &transfer));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_offer(pool, NULL, &transfer));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_offer(pool, &params, NULL));
    ck_assert_ptr_null(transfer);
    ck_assert_int_eq(STRAIT_OK, strait_offer(pool, &params, &transfer));
    params.ready = large; /* all of the pool is in the host's memory */
    ck_assert_int_eq(STRAIT_ERR_UNSUPPORTED, strait_offer(pool, &params, &transfer));
    struct strait_append_params append = {.size = sizeof(append), .ready = &append};
    ck_assert_int_eq(STRAIT_ERR_UNSUPPORTED, strait_append(transfer, &append));
    append = (struct strait_append_params){.size = sizeof(append), .layer_first = INT32_MAX, .layer_count = 1};
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_append(transfer, &append));
    struct strait_transfer *sink = expect_pages(pool, 0, 1, 60000);
    append.layer_count = 0;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_append(sink, &append));
    ck_assert_int_eq(STRAIT_ERR_UNSUPPORTED, strait_wait_stream(sink, 0, NULL));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_set_policy(pool, (enum strait_coding)(STRAIT_CODING_PARTS + 1)));
    settle();
    ck_assert_ptr_null(find_got(MESSAGE_APPEND, 0));
    ck_assert_ptr_null(find_got(MESSAGE_EXPECT, 1));
    ck_assert_ptr_null(find_got(MESSAGE_OFFER, 1));
}

/* Lists of all parts together, against those that were given. */
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

TEST_LOOP(long_lists_are_split_and_nothing_is_lost, 12)
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

/* All that there is, or (NULL) nothing yet. */
static struct strait_transfer *offer_pages(struct strait_pool *pool, const struct strait_page_list *list,
                                           uint32_t lease_ms)
{
    struct strait_transfer *transfer = NULL;
    struct strait_offer_params params = offer_params(list, list != NULL);
    params.lease_ms = lease_ms;
    params.last = list != NULL;
    ck_assert_int_eq(STRAIT_OK, strait_offer(pool, &params, &transfer));
    return transfer;
}

/* A daemon that does not read for a while: what exceeds the socket and the channel waits, in order. */
TEST(a_slow_daemon_loses_nothing)
{
    enum { OFFERS = 20, LENGTH = 1000000 };
    static uint32_t ids[LENGTH];
    struct strait_pool *pool = connected_pool();
    struct strait_page_list list = {.count = LENGTH, .ids = ids};
    struct strait_transfer *transfers[OFFERS];
    fake.deaf = true;
    for (uint32_t i = 0; i < OFFERS; i++)
        transfers[i] = offer_pages(pool, &list, 600000 + i * 10000);
    step(); /* once: at the second one of a slow machine the daemon might count as hung */
    ck_assert_int_eq(STRAIT_OK, strait_stats(client)); /* small enough for what room is left, but not its turn */
    strait_release(transfers[OFFERS - 1]);             /* had not gone out yet: there is nothing to tell */
    fake.deaf = false;
    until(find_got(MESSAGE_OFFER, OFFERS - 2) != NULL);
    for (uint32_t i = 0; i < OFFERS - 1; i++)
        ck_assert_uint_gt(find_got(MESSAGE_OFFER, i)->offer.lease_ms, 500000 + i * 10000);
    until(find_got(MESSAGE_STATS, 0) != NULL);
    ck_assert_int_eq(MESSAGE_STATS, fake.got[fake.count - 1].message.type);
    ck_assert_ptr_null(find_got(MESSAGE_OFFER, OFFERS - 1));
    ck_assert_ptr_null(find_got(MESSAGE_RELEASE, 0));
}

static void offer_some(struct strait_pool *pool, struct strait_transfer **transfers, uint32_t count)
{
    struct strait_page_list list = {.count = 1};
    for (uint32_t i = 0; i < count; i++)
        transfers[i] = offer_pages(pool, &list, 60000);
}

TEST(what_is_corked_is_sent_together)
{
    struct strait_pool *pool = connected_pool();
    struct strait_transfer *transfers[24];
    settle();
    fake_forget();
    strait_cork(client);
    strait_cork(client);
    offer_some(pool, transfers, 8);
    strait_uncork(client);
    offer_some(pool, transfers + 8, 8);
    fake_step();
    ck_assert_uint_eq(0, fake.count);
    strait_uncork(client);
    fake_step();
    ck_assert_ptr_nonnull(find_got(MESSAGE_OFFER, 15));
    for (uint32_t i = 0; i + 1 < 16; i++)
        ck_assert_uint_lt(find_got(MESSAGE_OFFER, i)->offer.transfer, find_got(MESSAGE_OFFER, i + 1)->offer.transfer);

    strait_uncork(client); /* nothing is left to take back */
    offer_some(pool, transfers + 16, 1);
    fake_step();
    ck_assert_ptr_nonnull(find_got(MESSAGE_OFFER, 16));

    strait_cork(client); /* who polls is not kept waiting by it */
    offer_some(pool, transfers + 17, 1);
    until(find_got(MESSAGE_OFFER, 17) != NULL);
    strait_uncork(client);
}

TEST(a_corked_client_that_closes_leaks_nothing)
{
    struct strait_pool *pool = connected_pool();
    struct strait_transfer *transfers[4];
    strait_cork(client);
    offer_some(pool, transfers, 4);
    fake_hang_up();
    until(count_events(STRAIT_EVENT_CONNECTION) > 0);
}

static int compare_longs(const void *a, const void *b)
{
    long x = *(const long *)a, y = *(const long *)b;
    return (x > y) - (x < y);
}

TEST(a_hundred_thousand_pages_cost_the_caller_less_than_a_millisecond)
{
    enum { ROUNDS = 15, LENGTH = 100000 };
    static uint32_t ids[LENGTH];
    long took[ROUNDS];
    struct strait_pool *pool = connected_pool();
    for (uint32_t i = 0; i < LENGTH; i++)
        ids[i] = i * 31 % PAGES;
    struct strait_page_list list = {.count = LENGTH, .ids = ids};
    for (int i = 0; i < ROUNDS; i++) {
        struct strait_expect_params params = expect_params(&list, 1);
        struct strait_transfer *transfer = NULL;
        struct timespec from, to;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from); /* the caller's, whatever else runs */
        ck_assert_int_eq(STRAIT_OK, strait_expect(pool, &params, &transfer));
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
        took[i] = (to.tv_sec - from.tv_sec) * 1000000 + (to.tv_nsec - from.tv_nsec) / 1000;
        until(find_got(MESSAGE_EXPECT, 0) != NULL);
        fake_forget();
    }
    qsort(took, ROUNDS, sizeof(took[0]), compare_longs);
    printf("100000 page ids: median %ld us, worst %ld us\n", took[ROUNDS / 2], took[ROUNDS - 1]);
    if (!SANITIZED)
        ck_assert_int_lt((int)took[0], 1000); /* the others shared their processor's caches */
}

TEST(notes_and_statistics_come_and_go)
{
    struct strait_pool *pool = connected_pool();
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

static void fake_noted(const struct message *notify, const char *failed)
{
    struct message message = {.type = MESSAGE_NOTED};
    message.noted = (struct message_noted){.note_count = 1,
                                           .notes = &notify->notify.note,
                                           .failed = failed[0] != '\0',
                                           .text = view_of(failed, strlen(failed))};
    fake_say(&message);
}

static uint32_t notify_until_again(struct strait_peer *peer, size_t size)
{
    static const uint8_t data[STRAIT_NOTE_BYTES_MAX];
    uint32_t count = 0;
    while (strait_notify(peer, "key", 3, data, size) == STRAIT_OK)
        count++;
    ck_assert_int_eq(STRAIT_ERR_AGAIN, strait_notify(peer, "key", 3, data, size));
    return count;
}

TEST(a_note_that_failed_is_an_event_and_one_that_arrived_is_none)
{
    struct strait_pool *pool = connected_pool();
    struct strait_peer *peer = import_peer(pool);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(STRAIT_OK, strait_notify(peer, &"abcd"[i], 1, "data", 4));
    until(find_got(MESSAGE_NOTIFY, 3) != NULL);
    forget_events();
    fake_noted(find_got(MESSAGE_NOTIFY, 2), ""); /* in any order: those to other pools have another fate */
    fake_noted(find_got(MESSAGE_NOTIFY, 1), "no such pool");
    fake_noted(find_got(MESSAGE_NOTIFY, 1), "");
    until(seen_count == 1);
    ck_assert_int_eq(STRAIT_EVENT_NOTIFY_FAILED, seen[0].event.type);
    ck_assert_str_eq("no such pool", seen[0].text);
    ck_assert_mem_eq(strait_pool_id(pool), seen[0].data, STRAIT_POOL_ID_BYTES);
    ck_assert_uint_eq(1, seen[0].event.key_size);
    strait_peer_remove(peer);
    fake_stop_listening();
    fake_hang_up();
    until(seen_count == 4); /* whatever has no answer has failed */
    ck_assert_int_eq(STRAIT_EVENT_CONNECTION, seen[1].event.type);
    for (int i = 2; i < 4; i++) {
        ck_assert_int_eq(STRAIT_EVENT_NOTIFY_FAILED, seen[i].event.type);
        ck_assert_str_eq("the connection to the daemon ended", seen[i].text);
    }
}

TEST(notes_are_taken_as_long_as_there_is_credit)
{
    struct strait_pool *pool = connected_pool();
    struct strait_peer *peers[5];
    for (int i = 0; i < 5; i++)
        peers[i] = import_peer(pool);
    fake.deaf = true;
    ck_assert_uint_eq(256, notify_until_again(peers[0], 0));
    ck_assert_uint_eq(15, notify_until_again(peers[1], STRAIT_NOTE_BYTES_MAX)); /* 1 MiB with their keys */
    ck_assert_uint_eq(256, notify_until_again(peers[2], 0));
    ck_assert_uint_eq(256, notify_until_again(peers[3], 0));
    ck_assert_uint_eq(1024 - 3 * 256 - 15, notify_until_again(peers[4], 0));
    fake_noted(&(struct message){.notify.note = 0}, "");
    for (long end = now_ms() + PATIENCE_MS; strait_notify(peers[0], "key", 3, NULL, 0) == STRAIT_ERR_AGAIN; rest()) {
        ck_assert_uint_eq(0, strait_poll(client, NULL, 0));
        ck_assert_int_lt((int)now_ms(), (int)end);
    }
    ck_assert_int_eq(STRAIT_ERR_AGAIN, strait_notify(peers[0], "key", 3, NULL, 0));
    fake.deaf = false;
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

TEST(states_only_move_up_and_layers_are_told)
{
    struct expected e = expected(60000);
    fake_state(e.id, STRAIT_BOOTSTRAP, STRAIT_REASON_NONE, false); /* it began there */
    fake_state(e.id, STRAIT_TRANSFERRING, STRAIT_REASON_NONE, false);
    settle();
    fake_state(e.id, STRAIT_READY, STRAIT_REASON_NONE, false);
    settle();
    ck_assert_uint_eq(1, seen_count);
    fake_state(e.id, STRAIT_TRANSFERRING, STRAIT_REASON_NONE, false);
    settle();
    ck_assert_uint_eq(1, seen_count);
    fake_say(&(struct message){.type = MESSAGE_LAYERS,
                               .layers = {.transfer = e.id, .layer_count = 2, .layers = (int32_t[]){1, 0}}});
    struct message done = {.type = MESSAGE_STATE};
    done.state.transfer = e.id;
    done.state.state = STRAIT_DONE;
    done.state.drained = true;
    done.state.aux = view_of("aux", 3);
    fake_say(&done);
    fake_state(e.id, STRAIT_FAILED, STRAIT_REASON_CODEC, true);
    fake_drained(e.id);
    until(seen_count == 4);
    settle();
    ck_assert_uint_eq(4, seen_count);
    for (int i = 0; i < 4; i++) {
        ck_assert_ptr_eq(e.transfer, seen[i].event.transfer);
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
    struct strait_progress progress = strait_transfer_progress(e.transfer);
    ck_assert_int_eq(STRAIT_DONE, progress.state);
    ck_assert(progress.drained);
    ck_assert_uint_eq(2, progress.layers_landed);
}

TEST(pages_in_place_are_told)
{
    static const uint32_t ids[] = {9, 4, 1};
    static const struct wire_page_list lists[] = {{.first = 3, .count = 3, .ids = ids},
                                                  {.group = 1, .first = 8, .count = 2, .first_id = 5}};
    struct expected e = expected(60000);
    struct message pages = {.type = MESSAGE_PAGES,
                            .pages = {.transfer = e.id, .list_count = COUNT(lists), .lists = lists}};
    fake_say(&pages);
    fake_state(e.id, STRAIT_TRANSFERRING, STRAIT_REASON_NONE, false); /* which they say, too */
    pages.pages.transfer++;
    fake_say(&pages); /* of none */
    pages.pages.transfer = e.id;
    until(seen_count == 1);
    settle();
    ck_assert_uint_eq(1, seen_count);
    const struct strait_event *event = &seen[0].event;
    ck_assert_int_eq(STRAIT_EVENT_PAGES, event->type);
    ck_assert_int_eq(STRAIT_TRANSFERRING, event->state);
    ck_assert_ptr_eq(e.transfer, event->transfer);
    ck_assert_ptr_eq(&memory, event->context);
    ck_assert_uint_eq(COUNT(lists), event->landed_count);
    const struct strait_page_list *landed = seen[0].landed;
    ck_assert(landed[0].group == 0 && landed[0].first == 3 && landed[0].count == 3);
    ck_assert_mem_eq(ids, landed[0].ids, sizeof(ids));
    ck_assert(landed[1].group == 1 && landed[1].first == 8 && landed[1].count == 2 && landed[1].first_id == 5);
    ck_assert_ptr_null(landed[1].ids);
    ck_assert_uint_eq(5, strait_transfer_progress(e.transfer).pages_landed);
    strait_abort(e.transfer);
    fake_state(e.id, STRAIT_FAILED, STRAIT_REASON_ABORTED, true);
    fake_say(&pages); /* late */
    until(seen_count == 2);
    settle();
    ck_assert_uint_eq(2, seen_count);
}

TEST(failed_pages_come_in_parts_and_drained_later)
{
    struct expected e = expected(60000);
    uint32_t ids[2] = {30, 10};
    struct wire_page_list parts[3] = {
        {.first = 4, .count = 2, .ids = ids}, {.count = 3, .first_id = 100}, {.count = 0}};
    for (int i = 0; i < 3; i++) {
        struct message message = {.type = MESSAGE_STATE};
        message.state.transfer = e.id;
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
    ended(&seen[0], e.transfer, STRAIT_REASON_INTEGRITY, false, 5);
    ck_assert_str_eq("chunk 3", seen[0].text);
    static const uint32_t wanted[5] = {30, 10, 100, 101, 102};
    for (int i = 0; i < 5; i++)
        ck_assert_uint_eq(wanted[i], seen[0].failed[i].id);
    ck_assert(!strait_transfer_progress(e.transfer).drained);
    fake_drained(e.id);
    fake_drained(e.id);
    until(seen_count == 2);
    settle();
    ck_assert_uint_eq(2, seen_count);
    ck_assert_int_eq(STRAIT_EVENT_DRAINED, seen[1].event.type);
    ck_assert(seen[1].event.drained);
    ck_assert_int_eq(STRAIT_REASON_INTEGRITY, seen[1].event.reason);
}

TEST_LOOP(the_library_gives_the_verdict_of_a_silent_daemon, 3)
{
    long began = now_ms();
    uint64_t late = machine_late_ms();
    struct expected e = expected(50);
    until(seen_count == 1);
    ck_assert_int_ge((int)(now_ms() - began), 145);
    ck_assert_uint_lt((uint64_t)(now_ms() - began), 1000 + machine_late_ms() - late);
    ended(&seen[0], e.transfer, STRAIT_REASON_TIMEOUT, false, 3);
    if (_i == 0) {
        fake_state(e.id, STRAIT_DONE, STRAIT_REASON_NONE, true); /* too late */
    } else if (_i == 1) {
        fake_state(e.id, STRAIT_FAILED, STRAIT_REASON_CODEC, false);
        settle();
        ck_assert_uint_eq(1, seen_count);
        fake_drained(e.id);
    } else {
        fake_hang_up();
    }
    until(count_events(STRAIT_EVENT_DRAINED) == 1);
    ck_assert_uint_eq(1, count_events(STRAIT_EVENT_STATE));
    ck_assert_int_eq(STRAIT_FAILED, strait_transfer_progress(e.transfer).state);
    ck_assert_int_eq(STRAIT_REASON_TIMEOUT, strait_transfer_progress(e.transfer).reason);
}

TEST(the_lease_of_an_offer_is_the_daemons_affair)
{
    struct strait_pool *pool = connected_pool();
    (void)offer_pages(pool, NULL, 30);
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

/* A daemon that hangs, and later goes on as if nothing had been. */
TEST(a_daemon_that_hangs_is_reported_and_its_offers_end_once)
{
    struct strait_pool *pool = connected_pool();
    struct strait_transfer *transfer = offer_pages(pool, NULL, 30);
    until(find_got(MESSAGE_OFFER, 0) != NULL);
    fake_pool_status(pool, STRAIT_OK, false);
    until(count_events(STRAIT_EVENT_POOL) == 1);
    forget_events();
    fake.deaf = true;
    until(seen_count == 2);
    ck_assert_int_eq(STRAIT_EVENT_CONNECTION, seen[0].event.type);
    ck_assert(!seen[0].event.connected);
    ck_assert_int_eq(STRAIT_ERR_AGAIN, seen[0].event.status);
    ck_assert_str_eq("the daemon does not answer", seen[0].text);
    ended(&seen[1], transfer, STRAIT_REASON_LEASE_EXPIRED, false, 0);
    ck_assert(!strait_client_connected(client));
    ck_assert_int_eq(STRAIT_ERR_AGAIN, strait_stats(client));
    fake.deaf = false;
    until(count_events(STRAIT_EVENT_CONNECTION) == 2 && find_got(MESSAGE_ABORT, 0) != NULL);
    ck_assert(find_event(STRAIT_EVENT_CONNECTION, 1)->event.connected);
    ck_assert(strait_client_connected(client));
    ck_assert_uint_eq(0, count_events(STRAIT_EVENT_DRAINED));
    fake_state(find_got(MESSAGE_OFFER, 0)->offer.transfer, STRAIT_FAILED, STRAIT_REASON_ABORTED, false);
    fake_drained(find_got(MESSAGE_OFFER, 0)->offer.transfer);
    until(count_events(STRAIT_EVENT_DRAINED) == 1);
    ck_assert_uint_eq(1, count_events(STRAIT_EVENT_STATE));
    /* Nothing is due from the daemon any more, so it is left alone. */
    uint32_t pings = fake.pings;
    for (long end = now_ms() + PING_PERIOD_MS + 100; now_ms() < end; rest())
        step();
    ck_assert_uint_eq(pings, fake.pings);
    ck_assert_uint_eq(2, count_events(STRAIT_EVENT_CONNECTION));
}

/* A daemon that is slow, but alive, renews leases as long as it likes. */
TEST(a_daemon_that_answers_pings_keeps_its_offers)
{
    struct strait_pool *pool = connected_pool();
    (void)offer_pages(pool, NULL, 30);
    forget_events();
    until(fake.pings == 1);
    for (long end = now_ms() + 100; now_ms() < end; rest())
        step();
    ck_assert_uint_eq(0, seen_count);
}

TEST(abort_is_the_daemons_to_confirm_and_idempotent)
{
    struct expected e = expected(60000);
    strait_abort(e.transfer);
    strait_abort(e.transfer);
    until(find_got(MESSAGE_ABORT, 0) != NULL);
    settle();
    ck_assert_ptr_null(find_got(MESSAGE_ABORT, 1));
    ck_assert_uint_eq(e.id, find_got(MESSAGE_ABORT, 0)->transfer.transfer);
    ck_assert_uint_eq(0, seen_count);
    fake_state(e.id, STRAIT_FAILED, STRAIT_REASON_ABORTED, true);
    until(seen_count == 1);
    ck_assert_int_eq(STRAIT_REASON_ABORTED, seen[0].event.reason);
    strait_abort(e.transfer);
    settle();
    ck_assert_ptr_null(find_got(MESSAGE_ABORT, 1));
}

TEST(declining_expects_nothing_starts_and_gives_up)
{
    struct strait_pool *pool = connected_pool();
    struct strait_peer *peer = import_peer(pool);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(STRAIT_OK, strait_decline(pool, peer, "unwanted", 8));
    until(find_got(MESSAGE_RELEASE, 1) != NULL);
    const struct message_expect *expect[2] = {&find_got(MESSAGE_EXPECT, 0)->expect,
                                              &find_got(MESSAGE_EXPECT, 1)->expect};
    const struct message_start *start = &find_got(MESSAGE_START, 0)->start;
    ck_assert_uint_eq(0, expect[0]->list_count);
    ck_assert_uint_eq(expect[0]->transfer, start->transfer);
    ck_assert_mem_eq("unwanted", start->peer_key.data, 8);
    ck_assert_uint_eq(expect[1]->transfer, find_got(MESSAGE_RELEASE, 1)->transfer.transfer);
    ck_assert(expect[0]->key.size == expect[1]->key.size &&
              memcmp(expect[0]->key.data, expect[1]->key.data, expect[0]->key.size) != 0);
    settle();
    ck_assert_uint_eq(0, count_events(STRAIT_EVENT_STATE));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_decline(pool, peer, "", 0));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_decline(NULL, peer, "k", 1));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_decline(pool, NULL, "k", 1));
}

TEST(what_the_daemon_never_saw_is_aborted_at_once)
{
    open_client_alone();
    struct strait_pool *pool = register_pool();
    struct strait_transfer *transfer = expect_pages(pool, 0, 2, 60000), *released = expect_pages(pool, 2, 2, 60000);
    strait_abort(transfer);
    strait_release(released);
    settle();
    ck_assert_uint_eq(1, seen_count);
    ended(&seen[0], transfer, STRAIT_REASON_ABORTED, true, 2);
    fake_listen();
    fake_greet();
    until(find_got(MESSAGE_POOL_REGISTER, 0) != NULL);
    settle();
    ck_assert_uint_eq(2, fake.count);
}

/* Given up while no daemon is there: the next one hears of a request that has ended, and then whom that concerns. */
TEST(the_source_of_what_no_daemon_saw_is_told_by_the_next)
{
    struct strait_pool *pool = connected_pool();
    struct strait_peer *peer = import_peer(pool);
    fake_forget();
    fake_hang_up();
    until(find_got(MESSAGE_HELLO, 0) != NULL);
    struct strait_transfer *never = expect_pages(pool, 0, 2, 60000), *transfer = expect_pages(pool, 2, 2, 60000);
    ck_assert_int_eq(STRAIT_OK, strait_start(transfer, peer, NULL));
    strait_abort(never); /* it names nobody */
    strait_abort(transfer);
    strait_release(transfer);
    fake_welcome(PROTOCOL_VERSION);
    until(find_got(MESSAGE_START, 0) != NULL);
    const struct message *expect = find_got(MESSAGE_EXPECT, 0), *abort = find_got(MESSAGE_ABORT, 0),
                         *start = find_got(MESSAGE_START, 0);
    ck_assert(expect->expect.more && expect->expect.list_count == 0);
    ck_assert_uint_eq(expect->expect.transfer, abort->transfer.transfer);
    ck_assert_uint_eq(expect->expect.transfer, start->start.transfer);
    ck_assert(expect < abort && abort < start);
    settle();
    ck_assert_ptr_null(find_got(MESSAGE_EXPECT, 1));
}

/* Ends that no daemon could be told of: beyond 512 they are lost, and the caller who names one more hears it. */
TEST(so_many_ends_wait_for_the_next_daemon)
{
    enum { MOST = 512 };
    struct strait_pool *pool = connected_pool();
    struct strait_peer *peer = import_peer(pool);
    fake_hang_up();
    until(count_events(STRAIT_EVENT_CONNECTION) == 2);
    for (int i = 0; i <= MOST; i++) {
        struct strait_transfer *transfer = expect_pages(pool, 0, 1, 60000);
        strait_abort(transfer);
        ck_assert_int_eq(i < MOST ? STRAIT_OK : STRAIT_ERR_AGAIN, strait_start(transfer, peer, NULL));
        strait_release(transfer);
    }
}

TEST(a_released_transfer_is_told_to_the_daemon_and_silent)
{
    struct expected e = expected(60000);
    fake_state(e.id, STRAIT_READY, STRAIT_REASON_NONE, false);
    fake_state(e.id, STRAIT_FAILED, STRAIT_REASON_CODEC, false);
    struct strait_event events[2];
    ck_assert_uint_eq(1, strait_wait(client, events, 1, PATIENCE_MS)); /* the verdict still waits */
    ck_assert_int_eq(STRAIT_READY, events[0].state);
    strait_release(e.transfer);
    ck_assert_ptr_eq(e.transfer, events[0].transfer); /* valid until the next poll: nothing reads freed memory */
    ck_assert_int_eq(STRAIT_FAILED, strait_transfer_progress(events[0].transfer).state);
    until(find_got(MESSAGE_RELEASE, 0) != NULL);
    ck_assert_uint_eq(e.id, find_got(MESSAGE_RELEASE, 0)->transfer.transfer);
    fake_drained(e.id);
    settle();
    ck_assert_uint_eq(0, seen_count);
    strait_release(NULL);
}

TEST(the_descriptor_is_readable_exactly_while_there_is_something_to_do)
{
    struct strait_event event;
    struct expected e = expected(60000);
    struct pollfd fd = {.fd = strait_client_fd(client), .events = POLLIN};
    ck_assert_int_eq(0, poll(&fd, 1, 0));
    fake_state(e.id, STRAIT_READY, STRAIT_REASON_NONE, false);
    fake_state(e.id, STRAIT_DONE, STRAIT_REASON_NONE, true);
    ck_assert_int_eq(1, poll(&fd, 1, 0));
    ck_assert_uint_eq(1, strait_poll(client, &event, 1));
    ck_assert_int_eq(1, poll(&fd, 1, 0)); /* one more is here, though the socket is empty */
    ck_assert_uint_eq(1, strait_poll(client, &event, 1));
    ck_assert_int_eq(0, poll(&fd, 1, 0));
    ck_assert_uint_eq(0, strait_wait(client, &event, 1, 20));
    strait_pool_remove(e.pool);
    fake_hang_up();
    ck_assert_int_eq(1, poll(&fd, 1, 0));
}

static bool is_readable(void)
{
    struct pollfd fd = {.fd = strait_client_fd(client), .events = POLLIN};
    return poll(&fd, 1, 0) == 1;
}

static bool is_asleep(void)
{
    return __atomic_load_n(ring_file_sleeps(&fake.ring.file, true), __ATOMIC_SEQ_CST) != 0;
}

/* Nobody wakes it then, and its descriptor is readable, in case that it sleeps on it next; and soon no more. */
TEST(a_client_that_polls_without_a_pause_is_not_woken)
{
    struct strait_event event;
    if (SANITIZED)
        return; /* no calls of theirs are without a pause */
    setenv("STRAIT_TEST_RINGS", "1", 1);
    struct expected e = expected(60000);
    ck_assert(is_asleep() && !is_readable());
    for (long end = now_ms() + PATIENCE_MS; is_asleep() && now_ms() < end;)
        for (int i = 0; i < 40 && (i == 0 || is_asleep()); i++)
            ck_assert_uint_eq(0, strait_poll(client, NULL, 0));
    ck_assert(!is_asleep() && is_readable());
    fake_state(e.id, STRAIT_READY, STRAIT_REASON_NONE, false);
    ck_assert_uint_eq(1, strait_poll(client, &event, 1));
    for (uint32_t calls = 0; is_readable(); calls++) { /* as one that sleeps on the descriptor does */
        ck_assert_uint_lt(calls, 100000);
        ck_assert_uint_eq(0, strait_poll(client, NULL, 0));
    }
    ck_assert(is_asleep());
    fake_state(e.id, STRAIT_DONE, STRAIT_REASON_NONE, true);
    ck_assert(is_readable() && !is_asleep());
    ck_assert_uint_eq(1, strait_poll(client, &event, 1));
    ck_assert_int_eq(STRAIT_DONE, event.state);
    ck_assert(is_asleep() && !is_readable());
}

/* That says nothing about whether the daemon still writes to the pages: the end of the socket does. */
TEST(an_index_that_cannot_be_is_not_the_end_of_the_daemon)
{
    setenv("STRAIT_TEST_RINGS", "1", 1);
    struct expected e = expected(60000);
    fake.ring.layer.out.head->put += 1u << 30;
    require(send(channel_fd(fake.channel), "", 1, MSG_NOSIGNAL) == 1);
    until(!strait_client_connected(client));
    ck_assert(!strait_transfer_progress(e.transfer).drained);
    fake_hang_up();
    until(strait_transfer_progress(e.transfer).drained);
}

/* Events pile up for who does not look: reading stops, and nothing is lost. */
TEST(many_events_come_in_order)
{
    enum { LAYERS = 5000 };
    struct expected e = expected(60000);
    for (int32_t i = 0; i < LAYERS; i++) {
        struct message message = {.type = MESSAGE_LAYERS, .layers = {.transfer = e.id, .layer_count = 1, .layers = &i}};
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

TEST(thousands_of_transfers_keep_apart)
{
    enum { TRANSFERS = 3000 };
    static struct strait_transfer *transfers[TRANSFERS];
    struct strait_pool *pool = connected_pool();
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

int main(void)
{
    return client_main("client_verbs");
}
