/* What a worker is told whose other side is not reached, or does not come: the text says what its daemon knows, and
 * what only people can mend ends early. */
#include <fcntl.h>
#include <unistd.h>

#include "tests/node/harness.h"

static const struct geometry shape = {.pages = 16};

enum { SHORT_MS = 600 * SLOW, LONG_MS = 60000 };

/* ---- The other daemon is not reached ----------------------------------------------------------------------------- */

static void give_secret(struct test_node *node, const char *secret)
{
    struct node_options *o = &node->options;
    snprintf(o->secret_file, sizeof(o->secret_file), "%.200s.secret", o->socket);
    unlink(o->secret_file);
    const int fd = open(o->secret_file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    ck_assert_int_eq((int)strlen(secret), (int)write(fd, secret, strlen(secret)));
    close(fd);
}

static void other_secrets(struct pair *pair)
{
    give_secret(pair->a, "one secret of enough bytes");
    give_secret(pair->b, "another secret of enough bytes");
}

static void secret_there(struct pair *pair)
{
    give_secret(pair->a, "one secret of enough bytes");
}

static void secret_here(struct pair *pair)
{
    give_secret(pair->b, "one secret of enough bytes");
}

static void encrypted_here(struct pair *pair)
{
    test_node_encrypt(pair->a);
    test_node_encrypt(pair->b);
    pair->a->options.encrypt_pages = false;
}

static void nothing_in_common(struct pair *pair)
{
    strcpy(pair->a->options.transports, "shm");
    strcpy(pair->b->options.transports, "tcp");
}

/* Seen from the sink's daemon, b. */
static const struct trouble {
    void (*prepare)(struct pair *pair);
    const char *why; /* part of the text */
} troubles[] = {
    {other_secrets, "the secrets differ"},
    {secret_there, "the peer demands a secret"},
    {secret_here, ""},
    {encrypted_here, "encrypted pages are demanded here"},
    {nothing_in_common, "no transport: tcp: not offered by the peer"},
};

/* The text begins with the address that was dialled. */
static void says(const struct flow *flow, const char *why)
{
    ck_assert_msg(strncmp(flow->text, "127.0.0.1:", 10) == 0 && strstr(flow->text, why) != NULL, "%s", flow->text);
}

/* The sink pulls. */
TEST_LOOP(a_pull_that_only_people_can_mend_ends_early, COUNT(troubles))
{
    struct pair pair = pair_init(TCP);
    troubles[_i].prepare(&pair);
    pair_start(&pair, shape);
    for (int again = 0; again < (_i == 0 ? 2 : 1); again++) { /* the second one is dialled for, too */
        struct flow *e = EXPECT(pair.sink, "k", LISTS({.count = 8}), .deadline_ms = LONG_MS);
        uint64_t since = wait_clock();
        flow_start(e, pair.source);
        ends_failed(e, STRAIT_REASON_PEER_DOWN);
        ck_assert_uint_lt(ms_since(since), 5000 * SLOW);
        says(e, troubles[_i].why);
        ck_assert_uint_eq(8, e->failed_count);
    }
}

/* The source pushes. */
TEST_LOOP(a_push_that_only_people_can_mend_ends_early, COUNT(troubles))
{
    struct pair pair = pair_init(TCP);
    troubles[_i].prepare(&pair);
    pair_start(&pair, shape);
    struct flow *o = OFFER(pair.sink, "k", LISTS({.count = 8}), .last = true, .lease_ms = LONG_MS);
    uint64_t since = wait_clock();
    flow_start(o, pair.source);
    ends_failed(o, STRAIT_REASON_PEER_DOWN);
    ck_assert_uint_lt(ms_since(since), 5000 * SLOW);
    says(o, troubles[_i].why);
}

/* What was mended is found by the next request. */
TEST(a_secret_that_is_mended_is_tried_again)
{
    struct pair pair = pair_init(TCP);
    other_secrets(&pair);
    pair_start(&pair, shape);
    struct flow *e = EXPECT(pair.sink, "k", LISTS({.count = 8}), .deadline_ms = LONG_MS);
    flow_start(e, pair.source);
    ends_failed(e, STRAIT_REASON_PEER_DOWN);
    give_secret(pair.b, "one secret of enough bytes");
    test_node_reload(pair.b);
    struct flow *o = OFFER(pair.source, "again", LISTS({.count = 8}), .last = true);
    e = EXPECT(pair.sink, "again", LISTS({.count = 8}), .deadline_ms = LONG_MS);
    pull(e, o);
}

/* ---- Time may heal it -------------------------------------------------------------------------------------------- */

/* Of a node that ends in the test: at a port that no node of another test gets meanwhile. */
static struct pair pair_to_end(void)
{
    struct pair pair = pair_init(TCP);
    snprintf(pair.a->options.listen, sizeof(pair.a->options.listen), "127.0.0.1:%u", reserve_port());
    return pair;
}

TEST(a_deadline_says_why_the_peer_is_not_reached)
{
    struct pair pair = pair_to_end();
    pair.b->options.unreachable_ms = 0;
    pair_start(&pair, shape);
    test_node_stop(pair.a);
    struct flow *e = EXPECT(pair.sink, "k", LISTS({.count = 8}), .deadline_ms = SHORT_MS);
    struct flow *o = OFFER(pair.sink, "o", LISTS({.count = 8, .first_id = 8}), .last = true, .lease_ms = SHORT_MS);
    flow_start(e, pair.source);
    flow_start(o, pair.source);
    ends_failed(e, STRAIT_REASON_TIMEOUT);
    ends_failed(o, STRAIT_REASON_LEASE_EXPIRED);
    says(e, "Connection refused (");
    says(o, "Connection refused (");
}

/* Who is away for longer than a restart takes is not waited for. The second request finds it away already. */
TEST(a_daemon_that_is_gone_ends_what_waits_for_it)
{
    struct pair pair = pair_to_end();
    pair.b->options.unreachable_ms = 500;
    pair_start(&pair, shape);
    move_all(pair.source, pair.sink);
    struct strait_peer *gone = peer_of(pair.to, pair.source);
    test_node_stop(pair.a);
    for (int again = 0; again < 2; again++) {
        const uint64_t since = wait_clock();
        struct flow *e = EXPECT(pair.sink, name_of(2), LISTS({.count = 8}), .deadline_ms = LONG_MS);
        struct flow *o =
            OFFER(pair.sink, name_of(3), LISTS({.count = 8, .first_id = 8}), .last = true, .lease_ms = LONG_MS);
        ck_assert_int_eq(STRAIT_OK, strait_start(e->transfer, gone, NULL));
        ck_assert_int_eq(STRAIT_OK, strait_start(o->transfer, gone, NULL));
        ends_failed(e, STRAIT_REASON_PEER_DOWN);
        ends_failed(o, STRAIT_REASON_PEER_DOWN);
        ck_assert_uint_lt(ms_since(since), 3000 * SLOW);
        says(e, "Connection refused (");
        says(o, "Connection refused (");
        flow_release(e);
        flow_release(o);
    }
}

/* ---- The daemon is reached, and the other side does not come ----------------------------------------------------- */

TEST_LOOP(a_deadline_says_that_the_other_side_has_not_come, WIRES)
{
    struct pair pair = pair_open(_i, shape);
    const char *who = _i == SAME ? "this daemon has" : "127.0.0.1:";
    struct flow *e = EXPECT(pair.sink, "k", LISTS({.count = 4}), .deadline_ms = SHORT_MS);
    struct flow *o = OFFER(pair.source, "o", LISTS({.count = 4}), .last = true, .lease_ms = SHORT_MS);
    flow_start(e, pair.source);
    flow_start(o, pair.sink);
    ends_failed(e, STRAIT_REASON_TIMEOUT);
    ends_failed(o, STRAIT_REASON_LEASE_EXPIRED);
    ck_assert_msg(strncmp(e->text, who, strlen(who)) == 0 && strstr(e->text, "no offer of that name") != NULL, "%s",
                  e->text);
    ck_assert_msg(strncmp(o->text, who, strlen(who)) == 0 && strstr(o->text, "no expectation of that name") != NULL,
                  "%s", o->text);
}

TEST_LOOP(a_deadline_says_what_is_missing, WIRES)
{
    struct pair pair = pair_open(_i, shape);
    struct flow *alone = EXPECT(pair.sink, "alone", LISTS({.count = 1}), .deadline_ms = SHORT_MS);
    struct flow *two =
        EXPECT(pair.sink, "two", LISTS({.count = 4, .first_id = 4}), .sources = 2, .deadline_ms = SHORT_MS);
    struct flow *part = OFFER(pair.source, "two", LISTS({.count = 2}), .lease_ms = LONG_MS);
    struct flow *half = EXPECT(pair.sink, "half", LISTS({.count = 4, .first_id = 8}), .deadline_ms = SHORT_MS);
    struct flow *rest = OFFER(pair.source, "half", LISTS({.count = 2}), .lease_ms = LONG_MS);
    struct flow *nobody = OFFER(pair.source, "nobody", LISTS({.count = 2}), .consumers = 2, .lease_ms = SHORT_MS);
    flow_start(two, pair.source);
    flow_start(half, pair.source);
    ends_failed(alone, STRAIT_REASON_TIMEOUT);
    ends_failed(two, STRAIT_REASON_TIMEOUT);
    ends_failed(half, STRAIT_REASON_TIMEOUT);
    ends_failed(nobody, STRAIT_REASON_LEASE_EXPIRED);
    ck_assert_str_eq("no source was named, and none has announced itself", alone->text);
    ck_assert_str_eq("1 of 2 sources have come", two->text);
    ck_assert_str_eq("8192 bytes have landed, and pages are missing", half->text);
    ck_assert_str_eq("0 of 2 consumers have come", nobody->text);
    ends_failed(part, STRAIT_REASON_TIMEOUT);
    ends_failed(rest, STRAIT_REASON_TIMEOUT);
    ck_assert_str_eq("the other side's deadline has passed", part->text);
}

int main(void)
{
    return node_main("node_why");
}
