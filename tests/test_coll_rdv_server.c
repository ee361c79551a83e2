/* A process that ranks meet at, and who does not keep to the rules: hung up on, without harm to others. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "collective/rdv_server.h"
#include "tests/support.h"

static struct rdv_server *rdv_server;
static struct coll_rdv_endpoint place;

static void set_up(void)
{
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    rdv_server = rdv_server_open(&place);
    require(rdv_server != NULL && place.address.family == 4);
}

static void tear_down(void)
{
    rdv_server_close(rdv_server);
}

/* ---- Who comes --------------------------------------------------------------------------------------------------- */

static void turn(void)
{
    rdv_server_wait(rdv_server, 1);
    rdv_server_progress(rdv_server);
}

static int call(void)
{
    const int made = address_connect(&place.address, 10000);
    require(made >= 0);
    return made;
}

static void put(int socket, const uint8_t *frame, size_t size)
{
    require(send(socket, frame, size, MSG_NOSIGNAL) == (ssize_t)size);
}

/* False: it was hung up. */
static bool get(int socket, struct coll_vote_state *view)
{
    uint8_t frame[MEET_FRAME_BYTES];
    size_t got = 0;
    while (got < sizeof(frame)) {
        turn();
        const ssize_t size = recv(socket, frame + got, sizeof(frame) - got, MSG_DONTWAIT);
        if (size == 0 || (size < 0 && errno != EAGAIN))
            return false;
        got += size > 0 ? (size_t)size : 0;
    }
    require(meet_view_get(frame, view));
    return true;
}

static struct meet_hello hello_of(uint64_t key, uint32_t rank, uint32_t ranks)
{
    struct meet_hello hello = {.words = {key, ~key}, .rank = rank, .ranks = ranks};
    memcpy(hello.secret, place.secret, COLL_SECRET_BYTES);
    return hello;
}

static bool say_hello(int socket, const struct meet_hello *hello)
{
    uint8_t frame[MEET_FRAME_BYTES];
    struct coll_vote_state view;
    meet_hello_put(frame, hello);
    put(socket, frame, sizeof(frame));
    return get(socket, &view);
}

/* -1: it was hung up. */
static int come(uint64_t key, uint32_t rank, uint32_t ranks)
{
    const struct meet_hello hello = hello_of(key, rank, ranks);
    const int socket = call();
    if (say_hello(socket, &hello))
        return socket;
    close(socket);
    return -1;
}

static struct meet_request request_of(enum meet_action action, enum coll_vote_phase round)
{
    return (struct meet_request){action, round, {.able = 1, .blocks = 1}};
}

/* COLL_ENDING_LOST: it was hung up. */
static enum coll_vote_result ask(int socket, enum meet_action action, enum coll_vote_phase round)
{
    const struct meet_request request = request_of(action, round);
    uint8_t frame[MEET_FRAME_BYTES];
    struct coll_vote_state view;
    meet_request_put(frame, &request);
    put(socket, frame, sizeof(frame));
    return get(socket, &view) ? view.ending : COLL_VOTE_LOST;
}

static void require_count(unsigned guests, unsigned tables)
{
    unsigned found[2];
    for (unsigned turns = 0;
         rdv_server_counts(rdv_server, &found[0], &found[1]), found[0] != guests || found[1] != tables; turns++) {
        require(turns < 10000);
        turn();
    }
}

/* Two ranks still decide as they would. */
static void require_good(uint64_t key, int first)
{
    const int second = come(key, 1, 2);
    require(second >= 0);
    for (int round = COLL_PHASE_PRESENT; round < COLL_VOTE_PHASES; round++) {
        ck_assert_int_eq(ask(first, MEET_SAY, (enum coll_vote_phase)round), COLL_VOTE_OPEN);
        ck_assert_int_eq(ask(second, MEET_SAY, (enum coll_vote_phase)round), COLL_VOTE_GO);
        ck_assert_int_eq(ask(first, MEET_LOOK, (enum coll_vote_phase)round), COLL_VOTE_GO);
    }
    close(first);
    close(second);
}

/* ---- Strangers --------------------------------------------------------------------------------------------------- */

static const struct wrong {
    int byte; /* of the secret; -1: none */
    uint32_t rank, ranks;
} wrongs[] = {{0, 0, 2},   {COLL_SECRET_BYTES - 1, 0, 2},
              {-1, 2, 2},  {-1, UINT32_MAX, 2},
              {-1, 0, 1},  {-1, 0, 0},
              {-1, 0, 65}, {-1, 1, UINT32_MAX}};

START_TEST(who_is_none_of_the_ranks_is_hung_up_on)
{
    struct meet_hello hello = hello_of(7, wrongs[_i].rank, wrongs[_i].ranks);
    const int first = come(8, 0, 2), socket = call();
    if (wrongs[_i].byte >= 0)
        hello.secret[wrongs[_i].byte] ^= 1;
    ck_assert(!say_hello(socket, &hello));
    close(socket);
    require_count(1, 1);
    require_good(8, first);
    require_count(0, 0);
}
END_TEST

START_TEST(who_speaks_otherwise_is_hung_up_on)
{
    struct coll_vote_state view;
    const int first = come(8, 0, 2), socket = call();
    put(socket, (const uint8_t *)"GET / HTTP/1.1\r\nHost: this one\r\nAccept: */*\r\n\r\n", 48);
    ck_assert(!get(socket, &view));
    close(socket);
    require_good(8, first);
    require_count(0, 0);
}
END_TEST

/* A frame that comes byte by byte is one; of one that does not end nobody but its sender hears. */
START_TEST(half_a_frame_keeps_nobody_waiting)
{
    uint8_t frame[MEET_FRAME_BYTES];
    const struct meet_hello hello = hello_of(8, 0, 2);
    struct coll_vote_state view;
    const int slow = call(), other = call();
    meet_hello_put(frame, &hello);
    put(slow, frame, 20);
    for (unsigned i = 0; i < sizeof(frame); i++) {
        put(other, frame + i, 1);
        turn();
    }
    ck_assert(get(other, &view));
    require_good(8, other);
    require_count(1, 0);
    ck_assert(!get(slow, &view)); /* its time is over */
    require_count(0, 0);
    close(slow);
}
END_TEST

/* With more connections than are taken those that have said nothing make room. */
START_TEST(strangers_make_room_for_ranks)
{
    enum { STRANGERS = 100, TAKEN = 64 };
    int strangers[STRANGERS];
    struct rlimit files = {4 * TAKEN, 4 * TAKEN};
    tear_down();
    require(setrlimit(RLIMIT_NOFILE, &files) == 0);
    set_up();
    const int first = come(8, 0, 2);
    for (unsigned i = 0; i < STRANGERS; i++) {
        strangers[i] = call();
        turn();
    }
    require_count(TAKEN, 1);
    require_good(8, first);
    for (unsigned i = 0; i < STRANGERS; i++)
        close(strangers[i]);
    require_count(0, 0);
}
END_TEST

/* Who calls then is heard when there are some again. */
START_TEST(without_descriptors_nobody_is_lost)
{
    enum { MOST = 256 };
    const struct meet_hello hello = hello_of(8, 0, 2);
    struct rlimit files = {MOST, MOST};
    int taken[MOST], count = 0;
    const int first = call();
    require(setrlimit(RLIMIT_NOFILE, &files) == 0);
    while ((taken[count] = dup(first)) >= 0)
        count++;
    for (unsigned i = 0; i < 5; i++)
        turn();
    unsigned guests, tables;
    rdv_server_counts(rdv_server, &guests, &tables);
    ck_assert_uint_eq(guests, 0);
    while (count > 0)
        close(taken[--count]);
    ck_assert(say_hello(first, &hello));
    require_good(8, first);
    require_count(0, 0);
}
END_TEST

/* ---- Ranks that break rules -------------------------------------------------------------------------------------- */

START_TEST(a_rank_that_is_there_comes_no_second_time)
{
    const int first = come(8, 0, 2);
    ck_assert_int_eq(come(8, 0, 2), -1);
    require_good(8, first);
    require_count(0, 0);
}
END_TEST

START_TEST(how_many_ranks_there_are_the_first_says)
{
    const int first = come(8, 0, 2);
    ck_assert_int_eq(come(8, 1, 3), -1);
    require_good(8, first);
    require_count(0, 0);
}
END_TEST

/* Whose word it was the others go without. */
static void require_ended(int first, int second)
{
    ck_assert_int_eq(ask(first, MEET_LOOK, COLL_PHASE_PRESENT), COLL_VOTE_ENDED);
    close(first);
    close(second);
}

START_TEST(nobody_says_a_second_word)
{
    const int first = come(8, 0, 2), second = come(8, 1, 2);
    ck_assert_int_eq(ask(second, MEET_SAY, COLL_PHASE_PRESENT), COLL_VOTE_OPEN);
    ck_assert_int_eq(ask(second, MEET_SAY, COLL_PHASE_PRESENT), COLL_VOTE_LOST);
    require_ended(first, second);
}
END_TEST

START_TEST(the_first_word_comes_first)
{
    const int first = come(8, 0, 2), second = come(8, 1, 2);
    ck_assert_int_eq(ask(second, MEET_SAY, COLL_PHASE_ABLE), COLL_VOTE_LOST);
    close(second);
    require_good(8, first);
    require_count(0, 0);
}
END_TEST

START_TEST(what_is_no_request_is_hung_up_on)
{
    static const int bad[][2] = {{0, 0}, {MEET_ACTIONS, 0}, {MEET_SAY, COLL_VOTE_PHASES}, {-1, -1}};
    const int first = come(8, 0, 2), second = come(8, 1, 2);
    ck_assert_int_eq(ask(second, MEET_SAY, COLL_PHASE_PRESENT), COLL_VOTE_OPEN);
    ck_assert_int_eq(ask(second, (enum meet_action)bad[_i][0], (enum coll_vote_phase)bad[_i][1]), COLL_VOTE_LOST);
    require_ended(first, second);
}
END_TEST

/* A rank that goes on without the others is not answered; who comes to what it has passed is told. */
START_TEST(who_passes_an_operation_is_not_waited_for_in_it)
{
    const struct meet_request request = {.action = MEET_PASS, .word = {.index = 1}};
    uint8_t frame[MEET_FRAME_BYTES];
    const int first = come(8, 0, 2), second = come(8, 1, 2);
    ck_assert_int_eq(ask(first, MEET_SAY, COLL_PHASE_PRESENT), COLL_VOTE_OPEN);
    ck_assert_int_eq(ask(second, MEET_SAY, COLL_PHASE_PRESENT), COLL_VOTE_GO);
    meet_request_put(frame, &request);
    put(second, frame, sizeof(frame));
    ck_assert_int_eq(ask(second, MEET_LOOK, COLL_PHASE_REACHED), COLL_VOTE_OPEN);
    ck_assert_int_eq(ask(first, MEET_SAY, COLL_PHASE_REACHED), COLL_VOTE_DIFFERS);
    close(first);
    close(second);
}
END_TEST

/* ---- What is decided --------------------------------------------------------------------------------------------- */

/* What was said before the end is not counted on, though it is read before the end is seen. */
START_TEST(a_rank_that_has_gone_is_not_counted_on)
{
    const struct meet_request request = request_of(MEET_SAY, COLL_PHASE_PRESENT);
    uint8_t frame[MEET_FRAME_BYTES];
    const int first = come(8, 0, 2), second = come(8, 1, 2);
    meet_request_put(frame, &request);
    put(second, frame, sizeof(frame));
    close(second);
    put(first, frame, sizeof(frame));
    struct coll_vote_state view;
    ck_assert(get(first, &view));
    ck_assert_int_eq(view.ending, COLL_VOTE_ENDED);
    ck_assert_int_eq(view.about, 1);
    close(first);
}
END_TEST

/* Everybody has left; who comes then hears what they have heard, as long as there is room to remember. */
START_TEST(who_comes_late_hears_what_was_decided)
{
    enum { LATER = 300, REMEMBERED = 256 };
    for (unsigned key = 0; key < LATER; key++) {
        const int first = come(key, 0, 2);
        ck_assert_int_eq(ask(first, MEET_SAY, COLL_PHASE_PRESENT), COLL_VOTE_OPEN);
        ck_assert_int_eq(ask(first, MEET_GIVE_UP, COLL_PHASE_PRESENT), COLL_VOTE_ABSENT);
        close(first);
        require_count(0, key < REMEMBERED ? key + 1 : REMEMBERED);
    }
    const int last = come(LATER - 1, 1, 2), forgotten = come(0, 1, 2);
    ck_assert_int_eq(ask(last, MEET_SAY, COLL_PHASE_PRESENT), COLL_VOTE_ABSENT);
    ck_assert_int_eq(ask(forgotten, MEET_SAY, COLL_PHASE_PRESENT), COLL_VOTE_OPEN);
    close(last);
    close(forgotten);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("hall");
    tcase_set_timeout(tests, 90);
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_loop_test(tests, who_is_none_of_the_ranks_is_hung_up_on, 0, COUNT(wrongs));
    tcase_add_test(tests, who_speaks_otherwise_is_hung_up_on);
    tcase_add_test(tests, half_a_frame_keeps_nobody_waiting);
    tcase_add_test(tests, strangers_make_room_for_ranks);
    tcase_add_test(tests, without_descriptors_nobody_is_lost);
    tcase_add_test(tests, a_rank_that_is_there_comes_no_second_time);
    tcase_add_test(tests, how_many_ranks_there_are_the_first_says);
    tcase_add_test(tests, nobody_says_a_second_word);
    tcase_add_test(tests, the_first_word_comes_first);
    tcase_add_loop_test(tests, what_is_no_request_is_hung_up_on, 0, 4);
    tcase_add_test(tests, who_passes_an_operation_is_not_waited_for_in_it);
    tcase_add_test(tests, a_rank_that_has_gone_is_not_counted_on);
    tcase_add_test(tests, who_comes_late_hears_what_was_decided);
    Suite *suite = suite_create("hall");
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
