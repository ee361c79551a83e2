/* Handing over from one straitd to the next, each of them also played by the test: what either does when the other one
 * is late or dies in the middle. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/lock.h"
#include "proto/channel.h"
#include "tests/node/harness.h"
#include "tests/node/process.h"
#include "tests/support.h"

TEST_CASE(node_handover);

/* ---- Under load -------------------------------------------------------------------------------------------------- */

enum { REQUESTS = 300, HANDOVER_EACH = 100 };

/* True: it was DONE on both sides. Whoever hears that it failed ends the other side, as frameworks do. */
static bool pull_once(struct test_pool *source, struct test_pool *sink, uint32_t number)
{
    struct flow *o = OFFER(source, name_of(number), LISTS({.count = 4, .first_id = number % 12}), .last = true);
    struct flow *e = PULL(sink, o, LISTS({.count = 4, .first_id = (number + 5) % 12}));
    WAIT((o->decided && e->decided) || (o->decided && o->state != STRAIT_DONE) ||
         (e->decided && e->state != STRAIT_DONE));
    if (!o->decided)
        strait_abort(o->transfer);
    if (!e->decided)
        strait_abort(e->transfer);
    WAIT(o->decided && o->drained && e->decided && e->drained);
    const bool done = o->state == STRAIT_DONE && e->state == STRAIT_DONE;
    if (done)
        landed(e, o);
    else
        undefined(e);
    flow_release(o);
    flow_release(e);
    return done;
}

static struct party *connected_party(const struct test_node *node)
{
    struct party *party = party_open(node);
    WAIT(party->connects == 1);
    return party;
}

/* Daemons take the place of others under load: of the source's, of the sink's, or of the only one. */
TEST_LOOP(requests_that_retry_once_outlive_handovers, 3)
{
    struct test_node a, b;
    char listen[32];
    test_node_init(&a, "a", "shm");
    test_node_init(&b, "b", "shm");
    const bool one = _i == 2;
    snprintf(listen, sizeof(listen), "127.0.0.1:%u", reserve_port());
    struct test_node *replaced = _i == 1 ? &b : &a;
    pid_t pid = straitd_start((struct straitd){.socket = replaced->options.socket, .listen = listen});
    pid_t other = one ? 0 : straitd_start((struct straitd){.socket = (replaced == &a ? &b : &a)->options.socket});
    struct party *from = connected_party(&a), *to = one ? connected_party(&a) : connected_party(&b);
    struct test_pool *source = pool_open(from, (struct geometry){.pages = 16}),
                     *sink = pool_open(to, (struct geometry){.pages = 16});
    pool_fill(source, 7);
    uint32_t number = 0, failed = 0, handovers = 0;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        pid_t before = 0;
        if (i % HANDOVER_EACH == HANDOVER_EACH / 2) {
            before = pid;
            pid = straitd_start(
                (struct straitd){.socket = replaced->options.socket, .listen = listen, .options = {"--replace"}});
            handovers++;
        }
        do { /* requests go on while the new daemon starts and the old one ends */
            const bool done = pull_once(source, sink, number++);
            failed += !done;
            ck_assert_msg(done || pull_once(source, sink, number++), "request %u failed twice", i);
        } while (before != 0 && waitpid(before, NULL, WNOHANG) == 0);
    }
    ck_assert_uint_eq(REQUESTS / HANDOVER_EACH, handovers);
    printf("%u requests, %u handovers, %u failed once\n", number, handovers, failed);
    kill(pid, SIGTERM);
    straitd_ends(pid, 0);
    if (other != 0) {
        kill(other, SIGTERM);
        straitd_ends(other, 0);
    }
}

TEST(a_daemon_goes_on_when_the_one_that_was_to_take_its_place_dies)
{
    struct test_node node;
    char lock[sizeof(node.options.socket) + 8];
    test_node_init(&node, "a", "shm");
    const pid_t pid = straitd_start((struct straitd){.socket = node.options.socket});
    struct party *party = connected_party(&node);
    const pid_t bad = straitd_start((struct straitd){.socket = node.options.socket, .options = {"--replace"}});
    kill(bad, SIGKILL);
    ck_assert_int_eq(bad, waitpid(bad, NULL, 0));
    pump_for(100);
    if (party->connects == 1) { /* else it was ready already */
        struct party *another = connected_party(&node);
        ck_assert_uint_eq(0, party->disconnects);
        ck_assert_uint_eq(1, another->connects);
        kill(pid, SIGTERM);
        straitd_ends(pid, 0);
    } else {
        straitd_ends(pid, 0);
    }
    snprintf(lock, sizeof(lock), "%s.lock", node.options.socket);
    ck_assert_int_eq(0, access(lock, F_OK));
}

/* ---- The test in place of the new daemon ------------------------------------------------------------------------- */

enum { QUEUE = 1 << 16 };

static const struct message ask = {.type = MESSAGE_HANDOVER},
                            ready = {.type = MESSAGE_HANDOVER, .handover.ready = true},
                            confirm = {.type = MESSAGE_HANDOVER, .handover.draining = true};

/* The other daemon, and what it has handed out. */
struct other {
    struct channel *channel;
    int fds[CHANNEL_FDS_MAX];
    uint32_t fd_count;
};

static void say(struct other *other, const struct message *message)
{
    ck_assert_int_eq(STRAIT_OK, channel_send(other->channel, message, other->fds, message->handover.fd_count));
    ck_assert_int_eq(STRAIT_OK, channel_flush(other->channel));
}

/* False: the connection has ended. */
static bool hear(struct other *other, struct message_handover *handover)
{
    struct message message;
    int fds[CHANNEL_FDS_MAX];
    uint32_t count = 0;
    enum strait_status status, read = STRAIT_OK;
    const uint64_t end = wait_clock() + 15000000000u * SLOW;
    while ((status = channel_next(other->channel, &message, fds, &count)) == STRAIT_ERR_AGAIN && read == STRAIT_OK) {
        ck_assert(wait_clock() < end);
        pump(5);
        read = channel_read(other->channel);
    }
    if (status != STRAIT_OK)
        return false;
    ck_assert_int_eq(MESSAGE_HANDOVER, (int)message.type);
    *handover = message.handover; /* nothing in it points elsewhere */
    message_fini(&message);
    for (uint32_t i = 0; i < count; i++)
        other->fds[other->fd_count++] = fds[i];
    return true;
}

static void part(struct other *other)
{
    channel_destroy(other->channel);
    for (uint32_t i = 0; i < other->fd_count; i++)
        close(other->fds[i]);
}

/* Asks, and gets lock and sockets. */
static struct other other_asked(const struct test_node *node)
{
    struct other other = {.fd_count = 0};
    struct message_handover answer;
    ck_assert_int_eq(STRAIT_OK,
                     channel_create(unix_dial(node->options.socket), MESSAGE_BYTES_MAX, QUEUE, &other.channel));
    say(&other, &ask);
    ck_assert(hear(&other, &answer));
    ck_assert_uint_eq(3, answer.fd_count); /* lock, clients, peers */
    ck_assert_uint_eq(3, other.fd_count);
    return other;
}

struct replaced {
    struct test_node node;
    char log[128], next_log[128];
    pid_t pid;
    struct party *party;
};

static void replaced_start(struct replaced *replaced, const char *option)
{
    test_node_init(&replaced->node, "a", "shm");
    snprintf(replaced->log, sizeof(replaced->log), "%s/old.log", folder);
    snprintf(replaced->next_log, sizeof(replaced->next_log), "%s/new.log", folder);
    replaced->pid = straitd_start(
        (struct straitd){.socket = replaced->node.options.socket, .log = replaced->log, .options = {option}});
    replaced->party = connected_party(&replaced->node);
}

static void starts_again(const struct test_node *node)
{
    const pid_t pid = straitd_start((struct straitd){.socket = node->options.socket});
    (void)connected_party(node);
    straitd_stop(pid);
}

static pid_t next_start(struct replaced *replaced)
{
    return straitd_start(
        (struct straitd){.socket = replaced->node.options.socket, .log = replaced->next_log, .options = {"--replace"}});
}

TEST(the_new_daemon_knows_that_the_old_one_drains_and_then_that_it_has_ended)
{
    struct replaced replaced;
    replaced_start(&replaced, NULL);
    struct test_pool *pool = pool_open(replaced.party, (struct geometry){.pages = 16});
    const pid_t next = next_start(&replaced);
    log_says(replaced.next_log, "msg=\"handover confirmed\" pid=");
    straitd_ends(replaced.pid, 0);
    log_says(replaced.next_log, "msg=\"the daemon before has ended\" pid=");
    ck_assert(log_has(replaced.log, "msg=\"handover begins\" pid="));
    ck_assert(log_has(replaced.log, "msg=\"handed over\" pid="));
    ck_assert(!log_has(replaced.log, "level=warn") && !log_has(replaced.next_log, "level=warn"));
    WAIT(replaced.party->connects == 2);
    pool_fill(pool, 1);
    straitd_stop(next);
}

TEST(a_daemon_goes_on_and_says_so_when_the_new_one_ends_before_it_is_ready)
{
    struct replaced replaced;
    replaced_start(&replaced, NULL);
    struct other other = other_asked(&replaced.node);
    part(&other);
    log_says(replaced.log, "msg=\"handover failed\" pid=");
    ck_assert(log_has(replaced.log, "why=\"it ended before it was ready\""));
    (void)connected_party(&replaced.node);
    ck_assert_uint_eq(0, replaced.party->disconnects);
    const pid_t next = next_start(&replaced);
    log_says(replaced.next_log, "msg=\"handover confirmed\"");
    straitd_ends(replaced.pid, 0);
    straitd_stop(next);
}

/* Or two would accept on the same sockets. */
TEST(one_daemon_at_a_time_takes_over)
{
    struct replaced replaced;
    replaced_start(&replaced, NULL);
    struct other other = other_asked(&replaced.node);
    straitd_ends(next_start(&replaced), 1);
    ck_assert(log_has(replaced.next_log, "the daemon that runs there does not hand over"));
    ck_assert_uint_eq(0, replaced.party->disconnects);
    say(&other, &ready);
    struct message_handover answer;
    ck_assert(hear(&other, &answer) && answer.draining);
    straitd_ends(replaced.pid, 0);
    part(&other);
}

TEST(a_new_daemon_that_is_late_is_told_and_still_awaited_and_its_end_does_not_keep_the_old_one)
{
    struct replaced replaced;
    struct message_handover answer;
    replaced_start(&replaced, "--drain-timeout=300ms");
    struct test_pool *pool = pool_open(replaced.party, (struct geometry){.pages = 16});
    struct other other = other_asked(&replaced.node);
    log_says(replaced.log, "msg=\"handover not complete\" pid=");
    (void)connected_party(&replaced.node);
    struct flow *o = OFFER(pool, "live", LISTS({.count = 1}));
    (void)stats_text(replaced.party);
    say(&other, &ready);
    ck_assert(hear(&other, &answer) && answer.draining);
    ends_failed(o, STRAIT_REASON_LOCAL); /* nobody has asked for it */
    part(&other);
    straitd_ends(replaced.pid, 0);
    starts_again(&replaced.node); /* nothing is in its way */
}

/* The socket's name is that of the process which has the socket now. */
TEST(the_socket_stays_when_the_old_daemon_is_stopped_after_it_has_handed_the_sockets_out)
{
    struct replaced replaced;
    struct message_handover message;
    replaced_start(&replaced, NULL);
    struct other other = other_asked(&replaced.node);
    straitd_stop(replaced.pid);
    ck_assert_int_eq(0, access(replaced.node.options.socket, F_OK));
    ck_assert(!hear(&other, &message));
    part(&other);
    starts_again(&replaced.node);
}

/* As long as it lives it answers. */
TEST(a_daemon_that_is_being_stopped_still_hands_over)
{
    struct replaced replaced;
    struct message_handover answer;
    replaced_start(&replaced, NULL);
    struct test_pool *pool = pool_open(replaced.party, (struct geometry){.pages = 16});
    struct flow *e = EXPECT(pool, "live", LISTS({.count = 1})); /* keeps it from ending, but for drain-timeout */
    (void)stats_text(replaced.party);
    struct other other = other_asked(&replaced.node);
    kill(replaced.pid, SIGTERM);
    log_says(replaced.log, "msg=stopping");
    ck_assert(!e->decided);
    say(&other, &ready);
    ck_assert(hear(&other, &answer) && answer.draining);
    straitd_ends(replaced.pid, 0);
    ck_assert_int_eq(0, access(replaced.node.options.socket, F_OK));
    part(&other);
}

/* ---- The test in place of the old daemon ------------------------------------------------------------------------- */

/* Serves the path, hands lock and socket to the new daemon, and waits for the message after that if it is to come. */
static struct other other_replaced(struct replaced *replaced, pid_t *next)
{
    struct other other = {.fd_count = 0};
    struct message_handover message;
    pid_t holder;
    char why[300];
    test_node_init(&replaced->node, "a", "shm");
    snprintf(replaced->next_log, sizeof(replaced->next_log), "%s/new.log", folder);
    const char *path = replaced->node.options.socket;
    ck_assert_int_eq(STRAIT_OK, lock_acquire(path, &other.fds[0], &holder, why, sizeof(why)));
    ck_assert_int_eq(STRAIT_OK, listen_unix(path, 0600, &other.fds[1], why, sizeof(why)));
    other.fd_count = 2;
    *next = next_start(replaced);
    struct pollfd dialled = {.fd = other.fds[1], .events = POLLIN};
    ck_assert_int_eq(1, poll(&dialled, 1, 15000 * SLOW));
    const int fd = accept4(other.fds[1], NULL, NULL, SOCK_CLOEXEC);
    ck_assert_int_eq(STRAIT_OK, channel_create(fd, MESSAGE_BYTES_MAX, QUEUE, &other.channel));
    ck_assert(hear(&other, &message));
    const struct message answer = {.type = MESSAGE_HANDOVER, .handover.fd_count = 2};
    say(&other, &answer);
    return other;
}

static void is_ready(struct other *other)
{
    struct message_handover message;
    ck_assert(hear(other, &message) && message.ready);
}

/* Before it has heard that the new one is ready, or after. */
TEST_LOOP(the_new_daemon_serves_when_the_old_one_dies_in_the_middle, 2)
{
    struct replaced replaced;
    pid_t next;
    struct other other = other_replaced(&replaced, &next);
    if (_i == 1)
        is_ready(&other);
    part(&other);
    log_says(replaced.next_log, "msg=\"handover not confirmed\" pid=");
    ck_assert(log_has(replaced.next_log, "why=\"the other daemon ended\""));
    (void)connected_party(&replaced.node);
    straitd_stop(next);
}

TEST(the_new_daemon_says_that_the_old_one_is_late_and_serves)
{
    struct replaced replaced;
    pid_t next;
    struct other other = other_replaced(&replaced, &next);
    is_ready(&other);
    (void)connected_party(&replaced.node);
    log_says(replaced.next_log, "why=\"no answer within 5000 ms\"");
    say(&other, &confirm);
    log_says(replaced.next_log, "msg=\"handover confirmed\" pid=");
    part(&other);
    log_says(replaced.next_log, "msg=\"the daemon before has ended\" pid=");
    (void)connected_party(&replaced.node);
    straitd_stop(next);
}

int main(void)
{
    return node_main("node_handover");
}
