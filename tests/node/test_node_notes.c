/* Notes arrive in order, or their sender hears that they did not; who does not read harms nobody. */
#include "daemon/peers/peer.h"
#include "tests/node/harness.h"
#include "tests/node/rogue.h"

enum { CREDIT = 256 }; /* notes to one peer that the library lets wait for their answers */

/* Sends the numbers from `first` on, until the library takes no more, or all are sent. */
static uint32_t post(struct strait_peer *peer, uint32_t first, uint32_t end, size_t size)
{
    static char data[STRAIT_NOTE_BYTES_MAX];
    for (; first < end; first++) {
        int length = snprintf(data, sizeof(data), "%u ", first);
        enum strait_status status = strait_notify(peer, "k", 1, data, size > (size_t)length ? size : (size_t)length);
        if (status == STRAIT_ERR_AGAIN)
            return first;
        ck_assert_int_eq(STRAIT_OK, status);
    }
    return first;
}

/* The same, while both clients run. */
static void post_all(struct strait_peer *peer, uint32_t end, size_t size)
{
    for (uint32_t sent = 0; sent < end;) {
        sent = post(peer, sent, end, size);
        pump(1);
    }
}

static void require_in_order(const struct party *to, uint32_t count)
{
    ck_assert_uint_eq(count, to->notes);
    ck_assert_uint_eq(0, to->notes_astray);
}

/* Sends notes until none has been taken for `ms`, or one has failed; returns how many there are with the `sent` ones.
 */
static uint32_t post_until_full(const struct pair *pair, struct strait_peer *peer, uint32_t sent, uint32_t ms)
{
    uint32_t before;
    do {
        before = sent;
        sent = post(peer, sent, UINT32_MAX, 1000);
        pump_for(ms);
    } while (sent > before && pair->from->notes_failed == 0);
    return sent;
}

/* The first ones wait for the connection. */
TEST_LOOP(many_notes_arrive_in_order, WIRES)
{
    enum { MANY = 4000 };
    struct pair pair = pair_open(_i, (struct geometry){0});
    struct strait_peer *peer = peer_of(pair.from, pair.sink);
    post_all(peer, MANY, 0);
    WAIT(pair.to->notes >= MANY);
    require_in_order(pair.to, MANY);
    ck_assert_uint_eq(0, pair.from->notes_failed);
    WAIT(stat_of(pair.from, "counters.notes_delivered") == MANY);
    ck_assert(stat_of(pair.from, "counters.notes_failed") == 0);
}

TEST_LOOP(a_receiver_that_does_not_read_gets_all_that_was_taken_and_stops_nobody, WIRES)
{
    struct pair pair = pair_open(_i, (struct geometry){0});
    struct party *other = party_open(pair.b);
    struct test_pool *others = pool_open(other, (struct geometry){0});
    struct strait_peer *peer = peer_of(pair.from, pair.sink), *second = peer_of(pair.from, others);
    struct flow *e = EXPECT(pair.sink, "k", LISTS({.count = 4}));
    (void)stats_text(pair.to);
    pair.to->deaf = true;
    const uint32_t sent = post_until_full(&pair, peer, 0, 50); /* neither socket nor daemon nor library takes more */
    ck_assert_uint_ge(sent, 256);
    ck_assert_uint_lt(sent, 4000);
    post_all(second, 1000, 0);
    WAIT(other->notes == 1000);
    require_in_order(other, 1000);
    pair.to->deaf = false;
    WAIT(pair.to->notes >= sent);
    require_in_order(pair.to, sent);
    ck_assert_uint_eq(0, pair.from->notes_failed);
    ck_assert(!e->decided);
    ck_assert_uint_eq(1, pair.to->connects);
}

/* A receiver that ends, or does not read for long enough. */
static void fails(int wire, bool ends, const char *why)
{
    struct pair pair = pair_init(wire);
    pair.a->options.peer_timeout_ms = pair.b->options.peer_timeout_ms = ends ? 4000 : 150;
    pair.a->options.connect_ms = pair.b->options.connect_ms = 4000;
    pair_start(&pair, (struct geometry){0});
    struct strait_peer *peer = peer_of(pair.from, pair.sink);
    post_all(peer, 1, 0);
    WAIT(pair.to->notes == 1);
    pair.to->deaf = true;
    uint32_t sent = 1;
    if (ends) {
        /* What is not answered by then waits for the receiver to read. */
        sent = post_until_full(&pair, peer, sent, 50 * SLOW);
        party_close(pair.to);
        WAIT(pair.from->notes_failed > 0);
    } else {
        WAIT((sent = post(peer, sent, UINT32_MAX, 1000), pair.from->notes_failed > 0));
    }
    ck_assert_msg(strstr(pair.from->first_text, why) != NULL, "%s", pair.from->first_text);
    if (ends) {
        post_all(peer, CREDIT, 0); /* all earlier ones are answered */
        uint32_t most = sent + CREDIT;
        WAIT(strstr(pair.from->note_text, "has the pool") != NULL);
        ck_assert_uint_lt(pair.from->notes_failed, most); /* what the socket had taken counts as delivered */
        return;
    }
    pair.to->deaf = false;
    WAIT(pair.to->notes + pair.from->notes_failed == sent);
}

TEST_LOOP(a_receiver_that_ends_fails_what_it_was_not_given, WIRES)
{
    fails(_i, true, "the receiver has gone");
}

TEST(a_receiver_that_does_not_read_for_long_fails_what_waits)
{
    fails(SAME, false, "has not read its notes for 450 ms");
}

TEST(notes_to_a_peer_that_cannot_be_reached_fail_and_say_why)
{
    struct pair pair = pair_init(SHM);
    char port[32], gone[40];
    snprintf(port, sizeof(port), "127.0.0.1:%u", reserve_port());
    snprintf(gone, sizeof(gone), "%s: ", port);
    snprintf(pair.b->options.listen, sizeof(pair.b->options.listen), "%s", port);
    pair.a->options.peer_timeout_ms = 100;
    pair_start(&pair, (struct geometry){0});
    struct strait_peer *peer = peer_of(pair.from, pair.sink);
    test_node_stop(pair.b);
    post_all(peer, 600, 0); /* more than wait at once: they fail, and others take their places */
    WAIT(pair.from->notes_failed == 600);
    ck_assert_msg(strncmp(pair.from->note_text, gone, strlen(gone)) == 0, "%s", pair.from->note_text);
}

/* Those on the way when the other daemon ends; none of them twice. */
TEST(notes_on_the_way_to_a_daemon_that_ends_fail)
{
    struct pair pair = pair_open(SHM, (struct geometry){0});
    struct strait_peer *peer = peer_of(pair.from, pair.sink);
    post_all(peer, 1, 0);
    WAIT(pair.to->notes == 1);
    pair.to->deaf = true;
    (void)post_until_full(&pair, peer, 1, 20);
    test_node_stop(pair.b);
    post_all(peer, CREDIT, 0); /* all earlier ones are answered */
    ck_assert_uint_gt(pair.from->notes_failed, 0);
    ck_assert_uint_le(pair.from->notes_failed, CREDIT);
}

/* The other daemon stands still, until this one gives its connection up and dials again: what had been sent before
 * still arrives there, and none of it behind later notes. */
TEST_LOOP(notes_past_a_daemon_that_stood_still_arrive_in_order, 3)
{
    static const size_t sizes[] = {0, 4096, 16384};
    struct pair pair = pair_init(_i == 1 ? SHM : TCP);
    pair.a->options.peer_timeout_ms = 300;
    pair.b->options.peer_timeout_ms = 4000;
    pair_start(&pair, (struct geometry){0});
    struct strait_peer *peer = peer_of(pair.from, pair.sink);
    post_all(peer, 1, 0);
    WAIT(pair.to->notes == 1);
    uint32_t sent = 1;
    for (int round = 0; round < 3; round++) {
        test_node_freeze(pair.b, true);
        for (uint64_t end = now_ms() + 500; now_ms() < end; pump(1))
            sent = post(peer, sent, UINT32_MAX, sizes[_i]);
        test_node_freeze(pair.b, false);
        for (uint64_t end = now_ms() + 300; now_ms() < end; pump(1))
            sent = post(peer, sent, UINT32_MAX, sizes[_i]);
    }
    uint32_t last = sent;
    while (sent == last) {
        sent = post(peer, sent, last + 1, 0);
        pump(1);
    }
    WAIT(pair.to->next_note == sent);
    ck_assert_uint_eq(0, pair.to->notes_back);
    ck_assert_uint_gt(pair.from->notes_failed, 0);
    ck_assert_uint_ge(pair.to->notes + pair.from->notes_failed, sent);
}

static void rogue_notes(struct rogue *rogue, const struct pool_blob *pool, const char *data)
{
    const uint32_t before = rogue->heard.noted_count;
    const struct message note = {
        .type = MESSAGE_PEER_NOTE,
        .note = {.note = before, .pool = pool->pool, .key = view_of("k", 1), .data = view_of(data, strlen(data))}};
    rogue_say(rogue, &note);
    ROGUE_WAIT(rogue, rogue->heard.noted_count > before);
}

/* Two connections of one daemon, as when it has given the first one up, which is not read to its end yet. */
TEST(notes_by_a_connection_that_was_given_up_are_refused)
{
    static struct rogue older, newer;
    struct pair pair = pair_open(SHM, (struct geometry){0});
    struct pool_blob pool = blob_of(pair.sink);
    rogue_init(&older, 4096);
    rogue_init(&newer, 4096);
    rogue_meet(&older, pair.b);
    rogue_notes(&older, &pool, "0 ");
    ck_assert_str_eq("", older.heard.noted);
    rogue_meet(&newer, pair.b);
    rogue_notes(&newer, &pool, "1 ");
    ck_assert_str_eq("", newer.heard.noted);
    rogue_notes(&older, &pool, "2 ");
    ck_assert_ptr_nonnull(strstr(older.heard.noted, "another connection"));
    rogue_notes(&newer, &pool, "2 ");
    WAIT(pair.to->notes == 3);
    require_in_order(pair.to, 3);
    rogue_leave(&older), rogue_leave(&newer);
    rogue_fini(&older), rogue_fini(&newer);
    blob_fini(&pool);
}

TEST(notes_of_a_client_that_goes_still_arrive)
{
    struct pair pair = pair_open(SHM, (struct geometry){0});
    struct party *brief = party_open(pair.a);
    struct strait_peer *peer = peer_of(brief, pair.sink);
    WAIT(brief->connects == 1);
    ck_assert_uint_eq(200, post(peer, 0, 200, 0));
    (void)stats_text(brief); /* the daemon has taken them */
    party_close(brief);
    WAIT(pair.to->notes == 200);
    require_in_order(pair.to, 200);
}

int main(void)
{
    return node_main("node_notes");
}
