/* Rendezvous server: peers that break its rules are disconnected, without harm to others. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "collective/rendezvous.h"
#include "tests/support.h"

/* In place of the system's, for time limits that nobody waits for. */
static int64_t ahead_s;

int clock_gettime(clockid_t clock, struct timespec *now)
{
    const int result = (int)syscall(SYS_clock_gettime, clock, now);
    now->tv_sec += clock == CLOCK_MONOTONIC ? ahead_s : 0;
    return result;
}

static struct rdv_server *rdv_server;
static struct coll_rdv_endpoint endpoint;

static void set_up(void)
{
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    rdv_server = rdv_server_open(&endpoint);
    require(rdv_server != NULL && endpoint.address.family == 4);
}

static void tear_down(void)
{
    rdv_server_close(rdv_server);
}

/* ---- Connections ---------------------------------------------------------------------------------------------------
 */

static void progress(void)
{
    rdv_server_wait(rdv_server, 1);
    rdv_server_progress(rdv_server);
}

static int call(void)
{
    const int made = address_connect(&endpoint.address, 10000);
    require(made >= 0);
    return made;
}

static void put(int socket, const uint8_t *frame, size_t size)
{
    require(send(socket, frame, size, MSG_NOSIGNAL) == (ssize_t)size);
}

/* False: it was disconnected. */
static bool get(int socket, struct coll_vote_state *state)
{
    uint8_t frame[RDV_FRAME_BYTES];
    size_t got = 0;
    while (got < sizeof(frame)) {
        progress();
        const ssize_t size = recv(socket, frame + got, sizeof(frame) - got, MSG_DONTWAIT);
        if (size == 0 || (size < 0 && errno != EAGAIN))
            return false;
        got += size > 0 ? (size_t)size : 0;
    }
    require(rdv_state_read(frame, state));
    return true;
}

static struct rdv_hello hello_of(uint64_t key, uint32_t rank, uint32_t ranks)
{
    struct rdv_hello hello = {.words = {key, ~key}, .rank = rank, .ranks = ranks};
    memcpy(hello.secret, endpoint.secret, COLL_SECRET_BYTES);
    return hello;
}

static bool send_hello(int socket, const struct rdv_hello *hello)
{
    uint8_t frame[RDV_FRAME_BYTES];
    struct coll_vote_state state;
    rdv_hello_write(frame, hello);
    put(socket, frame, sizeof(frame));
    return get(socket, &state);
}

/* -1: it was disconnected. */
static int join(uint64_t key, uint32_t rank, uint32_t ranks)
{
    const struct rdv_hello hello = hello_of(key, rank, ranks);
    const int socket = call();
    if (send_hello(socket, &hello))
        return socket;
    close(socket);
    return -1;
}

static struct rdv_request request_of(enum rdv_action action, enum coll_vote_phase phase)
{
    return (struct rdv_request){action, phase, {.able = 1, .blocks = 1}};
}

/* COLL_VOTE_LOST: it was disconnected. */
static enum coll_vote_result request_state(int socket, enum rdv_action action, enum coll_vote_phase phase)
{
    const struct rdv_request request = request_of(action, phase);
    uint8_t frame[RDV_FRAME_BYTES];
    struct coll_vote_state state;
    rdv_request_write(frame, &request);
    put(socket, frame, sizeof(frame));
    return get(socket, &state) ? state.result : COLL_VOTE_LOST;
}

static void require_count(unsigned connections, unsigned entries)
{
    unsigned found[2];
    for (unsigned times = 0;
         rdv_server_counts(rdv_server, &found[0], &found[1]), found[0] != connections || found[1] != entries; times++) {
        require(times < 10000);
        progress();
    }
}

/* Two ranks still decide as they would. */
static void require_usable(uint64_t key, int first)
{
    const int second = join(key, 1, 2);
    require(second >= 0);
    for (int phase = COLL_PHASE_PRESENT; phase < COLL_VOTE_PHASES; phase++) {
        ck_assert_int_eq(request_state(first, RDV_VOTE, (enum coll_vote_phase)phase), COLL_VOTE_OPEN);
        ck_assert_int_eq(request_state(second, RDV_VOTE, (enum coll_vote_phase)phase), COLL_VOTE_GO);
        ck_assert_int_eq(request_state(first, RDV_POLL, (enum coll_vote_phase)phase), COLL_VOTE_GO);
    }
    close(first);
    close(second);
}

/* ---- Unauthenticated peers
 * --------------------------------------------------------------------------------------------------- */

static const struct wrong {
    int byte; /* of the secret; -1: none */
    uint32_t rank, ranks;
} wrongs[] = {{0, 0, 2},   {COLL_SECRET_BYTES - 1, 0, 2},
              {-1, 2, 2},  {-1, UINT32_MAX, 2},
              {-1, 0, 1},  {-1, 0, 0},
              {-1, 0, 65}, {-1, 1, UINT32_MAX}};

START_TEST(who_is_none_of_the_ranks_is_disconnected)
{
    struct rdv_hello hello = hello_of(7, wrongs[_i].rank, wrongs[_i].ranks);
    const int first = join(8, 0, 2), socket = call();
    if (wrongs[_i].byte >= 0)
        hello.secret[wrongs[_i].byte] ^= 1;
    ck_assert(!send_hello(socket, &hello));
    close(socket);
    require_count(1, 1);
    require_usable(8, first);
    require_count(0, 0);
}
END_TEST

START_TEST(other_protocols_are_disconnected)
{
    struct coll_vote_state state;
    const int first = join(8, 0, 2), socket = call();
    put(socket, (const uint8_t *)"GET / HTTP/1.1\r\nHost: this one\r\nAccept: */*\r\n\r\n", 48);
    ck_assert(!get(socket, &state));
    close(socket);
    require_usable(8, first);
    require_count(0, 0);
}
END_TEST

/* A frame that comes byte by byte is one; of one that does not end nobody but its sender hears. */
START_TEST(half_a_frame_keeps_nobody_waiting)
{
    uint8_t frame[RDV_FRAME_BYTES];
    const struct rdv_hello hello = hello_of(8, 0, 2);
    struct coll_vote_state state;
    const int slow = call(), other = call();
    rdv_hello_write(frame, &hello);
    put(slow, frame, 20);
    for (unsigned i = 0; i < sizeof(frame); i++) {
        put(other, frame + i, 1);
        progress();
    }
    ck_assert(get(other, &state));
    require_usable(8, other);
    require_count(1, 0);
    ahead_s += 9;
    require_count(1, 0); /* a frame may take ten seconds */
    ahead_s += 2;
    ck_assert(!get(slow, &state)); /* its time is over */
    require_count(0, 0);
    close(slow);
}
END_TEST

/* With more connections than are taken those that have said nothing make room. */
START_TEST(unauthenticated_connections_make_room_for_ranks)
{
    enum { UNAUTHENTICATED = 100, ACCEPTED = 64 };
    int unauthenticated[UNAUTHENTICATED];
    struct rlimit files = {4 * ACCEPTED, 4 * ACCEPTED};
    tear_down();
    require(setrlimit(RLIMIT_NOFILE, &files) == 0);
    set_up();
    const int first = join(8, 0, 2);
    for (unsigned i = 0; i < UNAUTHENTICATED; i++) {
        unauthenticated[i] = call();
        progress();
    }
    require_count(ACCEPTED, 1);
    require_usable(8, first);
    for (unsigned i = 0; i < UNAUTHENTICATED; i++)
        close(unauthenticated[i]);
    require_count(0, 0);
}
END_TEST

/* Who calls then is heard when there are some again. */
START_TEST(without_descriptors_nobody_is_lost)
{
    enum { MOST = 256 };
    const struct rdv_hello hello = hello_of(8, 0, 2);
    struct rlimit files = {MOST, MOST};
    int taken[MOST], count = 0;
    const int first = call();
    require(setrlimit(RLIMIT_NOFILE, &files) == 0);
    while ((taken[count] = dup(first)) >= 0)
        count++;
    for (unsigned i = 0; i < 5; i++)
        progress();
    unsigned connections, entries;
    rdv_server_counts(rdv_server, &connections, &entries);
    ck_assert_uint_eq(connections, 0);
    while (count > 0)
        close(taken[--count]);
    ck_assert(send_hello(first, &hello));
    require_usable(8, first);
    require_count(0, 0);
}
END_TEST

/* ---- Ranks that break rules -------------------------------------------------------------------------------------- */

START_TEST(a_connected_rank_joins_no_second_time)
{
    const int first = join(8, 0, 2);
    ck_assert_int_eq(join(8, 0, 2), -1);
    require_usable(8, first);
    require_count(0, 0);
}
END_TEST

START_TEST(how_many_ranks_there_are_the_first_says)
{
    const int first = join(8, 0, 2);
    ck_assert_int_eq(join(8, 1, 3), -1);
    require_usable(8, first);
    require_count(0, 0);
}
END_TEST

/* Whose word it was the others go without. */
static void require_ended(int first, int second)
{
    ck_assert_int_eq(request_state(first, RDV_POLL, COLL_PHASE_PRESENT), COLL_VOTE_ENDED);
    close(first);
    close(second);
}

START_TEST(nobody_votes_twice_in_a_phase)
{
    const int first = join(8, 0, 2), second = join(8, 1, 2);
    ck_assert_int_eq(request_state(second, RDV_VOTE, COLL_PHASE_PRESENT), COLL_VOTE_OPEN);
    ck_assert_int_eq(request_state(second, RDV_VOTE, COLL_PHASE_PRESENT), COLL_VOTE_LOST);
    require_ended(first, second);
}
END_TEST

START_TEST(the_first_phase_comes_first)
{
    const int first = join(8, 0, 2), second = join(8, 1, 2);
    ck_assert_int_eq(request_state(second, RDV_VOTE, COLL_PHASE_ABLE), COLL_VOTE_LOST);
    close(second);
    require_usable(8, first);
    require_count(0, 0);
}
END_TEST

START_TEST(what_is_no_request_is_disconnected)
{
    static const int bad[][2] = {{0, 0}, {RDV_ACTIONS, 0}, {RDV_VOTE, COLL_VOTE_PHASES}, {-1, -1}};
    const int first = join(8, 0, 2), second = join(8, 1, 2);
    ck_assert_int_eq(request_state(second, RDV_VOTE, COLL_PHASE_PRESENT), COLL_VOTE_OPEN);
    ck_assert_int_eq(request_state(second, (enum rdv_action)bad[_i][0], (enum coll_vote_phase)bad[_i][1]),
                     COLL_VOTE_LOST);
    require_ended(first, second);
}
END_TEST

/* A rank that goes on without the others is not answered; who comes to what it has passed is told. */
START_TEST(who_passes_an_operation_is_not_waited_for_in_it)
{
    const struct rdv_request request = {.action = RDV_NOTE_RAW, .ballot = {.index = 1}};
    uint8_t frame[RDV_FRAME_BYTES];
    const int first = join(8, 0, 2), second = join(8, 1, 2);
    ck_assert_int_eq(request_state(first, RDV_VOTE, COLL_PHASE_PRESENT), COLL_VOTE_OPEN);
    ck_assert_int_eq(request_state(second, RDV_VOTE, COLL_PHASE_PRESENT), COLL_VOTE_GO);
    rdv_request_write(frame, &request);
    put(second, frame, sizeof(frame));
    ck_assert_int_eq(request_state(second, RDV_POLL, COLL_PHASE_REACHED), COLL_VOTE_OPEN);
    ck_assert_int_eq(request_state(first, RDV_VOTE, COLL_PHASE_REACHED), COLL_VOTE_DIFFERS);
    close(first);
    close(second);
}
END_TEST

/* ---- What is decided --------------------------------------------------------------------------------------------- */

/* What was said before the end is not counted on, though it is read before the end is seen. */
START_TEST(a_rank_that_has_gone_is_not_counted_on)
{
    const struct rdv_request request = request_of(RDV_VOTE, COLL_PHASE_PRESENT);
    uint8_t frame[RDV_FRAME_BYTES];
    const int first = join(8, 0, 2), second = join(8, 1, 2);
    rdv_request_write(frame, &request);
    put(second, frame, sizeof(frame));
    close(second);
    put(first, frame, sizeof(frame));
    struct coll_vote_state state;
    ck_assert(get(first, &state));
    ck_assert_int_eq(state.result, COLL_VOTE_ENDED);
    ck_assert_int_eq(state.rank, 1);
    close(first);
}
END_TEST

/* Everybody has left; who comes then hears what they have heard, as long as there is room to remember. */
START_TEST(late_ranks_learn_the_result)
{
    enum { LATER = 300, REMEMBERED = 256 };
    for (unsigned key = 0; key < LATER; key++) {
        const int first = join(key, 0, 2);
        ck_assert_int_eq(request_state(first, RDV_VOTE, COLL_PHASE_PRESENT), COLL_VOTE_OPEN);
        ck_assert_int_eq(request_state(first, RDV_ABORT, COLL_PHASE_PRESENT), COLL_VOTE_MISSING);
        close(first);
        require_count(0, key < REMEMBERED ? key + 1 : REMEMBERED);
    }
    const int last = join(LATER - 1, 1, 2), forgotten = join(0, 1, 2);
    ck_assert_int_eq(request_state(last, RDV_VOTE, COLL_PHASE_PRESENT), COLL_VOTE_MISSING);
    ck_assert_int_eq(request_state(forgotten, RDV_VOTE, COLL_PHASE_PRESENT), COLL_VOTE_OPEN);
    close(last);
    close(forgotten);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("server");
    tcase_set_timeout(tests, 90);
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_loop_test(tests, who_is_none_of_the_ranks_is_disconnected, 0, COUNT(wrongs));
    tcase_add_test(tests, other_protocols_are_disconnected);
    tcase_add_test(tests, half_a_frame_keeps_nobody_waiting);
    tcase_add_test(tests, unauthenticated_connections_make_room_for_ranks);
    tcase_add_test(tests, without_descriptors_nobody_is_lost);
    tcase_add_test(tests, a_connected_rank_joins_no_second_time);
    tcase_add_test(tests, how_many_ranks_there_are_the_first_says);
    tcase_add_test(tests, nobody_votes_twice_in_a_phase);
    tcase_add_test(tests, the_first_phase_comes_first);
    tcase_add_loop_test(tests, what_is_no_request_is_disconnected, 0, 4);
    tcase_add_test(tests, who_passes_an_operation_is_not_waited_for_in_it);
    tcase_add_test(tests, a_rank_that_has_gone_is_not_counted_on);
    tcase_add_test(tests, late_ranks_learn_the_result);
    Suite *suite = suite_create("rdv_server");
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
