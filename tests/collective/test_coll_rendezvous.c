/* Rendezvous in shared memory and by TCP: whichever ranks join, and whenever,
 * all decide alike, and no name is left. Peers that break the server's rules
 * are disconnected, without harm to others. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "collective/comm.h"
#include "collective/rendezvous.h"
#include "tests/run_suite.h"
#include "tests/support.h"

enum { RANKS = 5, NEVER = -1 };

static struct coll_ballot ballot_of(int rank)
{
    return (struct coll_ballot){.able = 1, .blocks = 1, .thread = (uint64_t)rank + 1};
}

static bool until_limit(struct coll_rdv *rdv, int64_t ms, void *argument)
{
    (void)rdv;
    return ms < *(const int *)argument;
}

/* ---- Backends
 * ----------------------------------------------------------------------------------------------------
 */

static struct coll_rdv_endpoint server; /* none: shared memory */

static void use_shm(void)
{
    memset(&server, 0, sizeof(server));
}

static void use_tcp(void)
{
    coll_id id = {{0}};
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    coll_unique_id_put(&id);
    coll_unique_id_read(&id, &server);
    require(server.address.family != 0);
}

static struct coll_key random_key(void)
{
    struct coll_key key = coll_key_random();
    key.server = server;
    return key;
}

/* Names of the key's, as others see them. */
static bool has_name(const struct coll_key *key)
{
    char name[64];
    snprintf(name, sizeof(name), "/dev/shm/strait-coll-%016llx%016llx", (unsigned long long)key->words[0],
             (unsigned long long)key->words[1]);
    return access(name, F_OK) == 0;
}

/* ---- Several ranks
 * -----------------------------------------------------------------------------------------------
 */

struct joiner {
    pthread_t thread;
    struct coll_key key;
    int rank, after_us, limit_ms;
    struct coll_ballot ballot;
    enum coll_verdict verdict;
};

static void *join_and_wait(void *argument)
{
    struct joiner *joiner = argument;
    usleep((useconds_t)joiner->after_us);
    struct coll_rdv *rdv = coll_rdv_join(&joiner->key, joiner->rank, RANKS);
    require(rdv != NULL);
    coll_rdv_vote(rdv, COLL_PHASE_PRESENT, &joiner->ballot);
    joiner->verdict = coll_rdv_wait(rdv, COLL_PHASE_PRESENT, until_limit, &joiner->limit_ms);
    coll_rdv_leave(rdv);
    return NULL;
}

/* The verdict of all of them. */
static enum coll_verdict join_all(struct joiner *joiners)
{
    const struct coll_key key = random_key();
    for (int rank = 0; rank < RANKS; rank++) {
        joiners[rank].key = key;
        joiners[rank].rank = rank;
        if (joiners[rank].after_us != NEVER)
            require(pthread_create(&joiners[rank].thread, NULL, join_and_wait, &joiners[rank]) == 0);
    }
    enum coll_verdict all = COLL_VERDICT_OPEN;
    for (int rank = 0; rank < RANKS; rank++) {
        if (joiners[rank].after_us == NEVER)
            continue;
        require(pthread_join(joiners[rank].thread, NULL) == 0);
        ck_assert(all == COLL_VERDICT_OPEN || all == joiners[rank].verdict);
        all = joiners[rank].verdict;
    }
    ck_assert(!has_name(&key));
    return all;
}

static void expect_all(struct joiner *joiners, int limit_ms)
{
    for (int rank = 0; rank < RANKS; rank++)
        joiners[rank] = (struct joiner){.limit_ms = limit_ms, .ballot = ballot_of(rank)};
}

START_TEST(ranks_that_all_join_go)
{
    struct joiner joiners[RANKS];
    expect_all(joiners, 60000);
    ck_assert_int_eq(join_all(joiners), COLL_VERDICT_GO);
}
END_TEST

START_TEST(a_missing_rank_keeps_all_raw)
{
    struct joiner joiners[RANKS];
    expect_all(joiners, 50);
    joiners[_i].after_us = NEVER;
    ck_assert_int_eq(join_all(joiners), COLL_VERDICT_RAW);
}
END_TEST

/* Around the moment that the others give up; whatever it is, it is the same for all. A loaded machine may hold up the
 * others as long as the late one: then that comes later still, until they have given up once. */
START_TEST(a_late_rank_decides_as_the_others)
{
    int verdicts[3] = {0};
    int late_us = 15000;
    for (unsigned turn = 0; turn < 20 || (verdicts[COLL_VERDICT_RAW] == 0 && late_us < 4000000); turn++) {
        struct joiner joiners[RANKS];
        expect_all(joiners, 30);
        for (int rank = 0; rank < RANKS; rank++)
            joiners[rank].after_us = rank == (int)(turn % RANKS) ? late_us : (int)(turn * 7 % 50);
        verdicts[join_all(joiners)]++;
        late_us += turn < 20 ? 1500 : late_us;
    }
    ck_assert_int_eq(verdicts[COLL_VERDICT_OPEN], 0);
    ck_assert_int_gt(verdicts[COLL_VERDICT_RAW], 0);
}
END_TEST

START_TEST(one_ballot_that_differs_keeps_all_raw)
{
    struct joiner joiners[RANKS];
    expect_all(joiners, 60000);
    struct coll_ballot *ballot = &joiners[_i % RANKS].ballot;
    if (_i / RANKS == 0)
        ballot->able = 0;
    else if (_i / RANKS == 1)
        ballot->blocks = 0;
    else
        ballot->index++;
    ck_assert_int_eq(join_all(joiners), COLL_VERDICT_RAW);
}
END_TEST

START_TEST(only_what_blocks_may_have_two_ranks_in_a_thread)
{
    struct joiner joiners[RANKS];
    expect_all(joiners, 60000);
    for (int rank = 0; rank < RANKS; rank++) {
        joiners[rank].ballot.thread = 1;
        joiners[rank].ballot.blocks = _i == 0;
    }
    ck_assert_int_eq(join_all(joiners), _i == 0 ? COLL_VERDICT_GO : COLL_VERDICT_RAW);
}
END_TEST

/* ---- Processes that end
 * ------------------------------------------------------------------------------------------
 */

static void join_and_end(const struct coll_key *key)
{
    const pid_t child = fork();
    require(child >= 0);
    if (child == 0) {
        const struct coll_ballot ballot = ballot_of(1);
        struct coll_rdv *rdv = coll_rdv_join(key, 1, 2);
        if (rdv != NULL)
            coll_rdv_vote(rdv, COLL_PHASE_PRESENT, &ballot);
        _exit(rdv == NULL);
    }
    int status;
    require(waitpid(child, &status, 0) == child && status == 0);
}

/* The second time, the process ends before the other rank joins. */
START_TEST(a_rank_that_has_ended_is_not_counted_on)
{
    static int limit_ms = 60000;
    char reason[160];
    const struct coll_key key = random_key();
    const struct coll_ballot ballot = ballot_of(0);
    struct coll_rdv *before = _i == 0 ? coll_rdv_join(&key, 0, 2) : NULL;
    join_and_end(&key);
    struct coll_rdv *rdv = before != NULL ? before : coll_rdv_join(&key, 0, 2);
    ck_assert_ptr_nonnull(rdv);
    coll_rdv_vote(rdv, COLL_PHASE_PRESENT, &ballot);
    ck_assert_int_eq(coll_rdv_wait(rdv, COLL_PHASE_PRESENT, until_limit, &limit_ms), COLL_VERDICT_RAW);
    coll_rdv_reason(rdv, COLL_PHASE_PRESENT, reason, sizeof(reason));
    ck_assert_str_eq(reason, "rank 1 has ended");
    ck_assert(!has_name(&key));
    coll_rdv_leave(rdv);
}
END_TEST

/* ---- Texts and keys
 * ----------------------------------------------------------------------------------------------
 */

START_TEST(missing_ranks_are_named)
{
    static int limit_ms = 1;
    char reason[200];
    const struct coll_key key = random_key();
    const struct coll_ballot ballot = ballot_of(1);
    struct coll_rdv *rdv = coll_rdv_join(&key, 1, 4);
    ck_assert_ptr_nonnull(rdv);
    coll_rdv_vote(rdv, COLL_PHASE_PRESENT, &ballot);
    ck_assert_int_eq(coll_rdv_wait(rdv, COLL_PHASE_PRESENT, until_limit, &limit_ms), COLL_VERDICT_RAW);
    coll_rdv_reason(rdv, COLL_PHASE_PRESENT, reason, sizeof(reason));
    ck_assert_ptr_nonnull(strstr(reason, "ranks 0, 2, 3 did not come in time"));
    coll_rdv_leave(rdv);
}
END_TEST

START_TEST(keys_differ_with_what_they_are_of)
{
    const struct coll_key parent = coll_key_of("abc", 3), other = coll_key_of("abd", 3), none = {0};
    const struct coll_key same = coll_key_of("abc", 3);
    ck_assert_mem_eq(&parent, &same, sizeof(parent));
    const struct coll_key keys[] = {parent,
                                    other,
                                    coll_key_child(&parent, 1, 0, 0),
                                    coll_key_child(&parent, 2, 0, 0),
                                    coll_key_child(&parent, 1, 1, 0),
                                    coll_key_child(&parent, 1, 0, 1),
                                    coll_key_child(&other, 1, 0, 0)};
    for (size_t i = 0; i < COUNT(keys); i++)
        for (size_t j = 0; j < i; j++)
            ck_assert_mem_ne(&keys[i], &keys[j], sizeof(keys[i]));
    const struct coll_key child = coll_key_child(&none, 1, 0, 0);
    ck_assert(coll_key_is_none(&child) && coll_rdv_join(&child, 0, 2) == NULL);
}
END_TEST

/* Of one communicator, as two ranks know it, one of which the other's shrink
 * leaves out. */
START_TEST(ranks_that_a_shrink_leaves_out_find_the_next_split)
{
    coll_comm here = (coll_comm)(uintptr_t)0x1000, there = (coll_comm)(uintptr_t)0x2000;
    const struct coll_key key = coll_key_random();
    coll_comm_insert(here, 0, 3);
    coll_comm_insert(there, 1, 3);
    coll_comm_set_key(here, &key);
    coll_comm_set_key(there, &key);
    const struct coll_key shrunk = coll_comm_child_key(here, COLL_BY_SHRINK, 0);
    const struct coll_key split = coll_comm_child_key(here, COLL_BY_SPLIT, 0);
    const struct coll_key same = coll_comm_child_key(there, COLL_BY_SPLIT, 0);
    require(memcmp(split.words, same.words, sizeof(same.words)) == 0);
    require(memcmp(split.words, shrunk.words, sizeof(shrunk.words)) != 0);
    coll_comm_remove(here);
    coll_comm_remove(there);
}
END_TEST

/* ---- The server
 * ----------------------------------------------------------------------------------------------------
 */

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

static void open_server(void)
{
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    rdv_server = rdv_server_open(&endpoint);
    require(rdv_server != NULL && endpoint.address.family == 4);
}

static void close_server(void)
{
    rdv_server_close(rdv_server);
}

/* ---- Connections
 * ---------------------------------------------------------------------------------------------------
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

/* The next state, whether it is an answer or told. False: it was disconnected. */
static bool get_any(int socket, struct coll_vote_state *state, enum coll_vote_phase *told)
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
    *told = rdv_state_told(frame);
    return true;
}

/* The answer to what was asked. */
static bool get(int socket, struct coll_vote_state *state)
{
    enum coll_vote_phase told;
    bool good;
    while ((good = get_any(socket, state, &told)) && told != COLL_VOTE_PHASES)
        require(state->result != COLL_VOTE_OPEN);
    return good;
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
 * ----------------------------------------------------------------------------------------
 */

static const struct wrong {
    int byte; /* of the secret; -1: none */
    uint32_t rank, ranks;
} wrongs[] = {{0, 0, 2},  {COLL_SECRET_BYTES - 1, 0, 2}, {-1, 2, 2},         {-1, UINT32_MAX, 2}, {-1, 0, 1},
              {-1, 0, 0}, {-1, 0, RDV_RANKS_MAX + 1},    {-1, 1, UINT32_MAX}};

START_TEST(a_peer_that_is_none_of_the_ranks_is_disconnected)
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

/* A frame that comes byte by byte is one; of one that does not end nobody but
 * its sender hears. */
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

/* With more connections than are taken those that have said nothing make room.
 */
START_TEST(unauthenticated_connections_make_room_for_ranks)
{
    enum { UNAUTHENTICATED = 100, ACCEPTED = 64 };
    int unauthenticated[UNAUTHENTICATED];
    struct rlimit files = {4 * ACCEPTED, 4 * ACCEPTED};
    close_server();
    require(setrlimit(RLIMIT_NOFILE, &files) == 0);
    open_server();
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
START_TEST(a_rank_that_comes_without_descriptors_is_heard_later)
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

/* ---- Many ranks ----------------------------------------------------------------------------------------------- */

START_TEST(results_are_told_unasked)
{
    struct coll_vote_state state;
    enum coll_vote_phase told;
    const int first = join(8, 0, 2), second = join(8, 1, 2);
    ck_assert_int_eq(request_state(first, RDV_VOTE, COLL_PHASE_PRESENT), COLL_VOTE_OPEN);
    ck_assert_int_eq(request_state(second, RDV_VOTE, COLL_PHASE_PRESENT), COLL_VOTE_GO);
    ck_assert(get_any(first, &state, &told));
    ck_assert_int_eq(told, COLL_PHASE_PRESENT);
    ck_assert_int_eq(state.result, COLL_VOTE_GO);
    close(second); /* what is still open has a result then */
    ck_assert(get_any(first, &state, &told));
    ck_assert_int_eq(state.result, COLL_VOTE_ENDED);
    ck_assert(get_any(first, &state, &told));
    ck_assert_int_eq(told, COLL_PHASE_ABLE);
    close(first);
    require_count(0, 0);
}
END_TEST

/* Each asks twice: to join, and to vote. */
START_TEST(as_many_ranks_as_there_may_be_are_told_the_result)
{
    enum { FILES = 4 * RDV_RANKS_MAX + 64 };
    static int sockets[RDV_RANKS_MAX];
    struct rlimit files;
    struct coll_vote_state state;
    enum coll_vote_phase told;
    require(getrlimit(RLIMIT_NOFILE, &files) == 0);
    if (files.rlim_max < FILES)
        return;
    files.rlim_cur = FILES; /* after the server was opened */
    require(setrlimit(RLIMIT_NOFILE, &files) == 0);
    for (uint32_t rank = 0; rank < RDV_RANKS_MAX; rank++)
        ck_assert((sockets[rank] = join(8, rank, RDV_RANKS_MAX)) >= 0);
    for (uint32_t rank = 0; rank < RDV_RANKS_MAX; rank++)
        ck_assert_int_eq(request_state(sockets[rank], RDV_VOTE, COLL_PHASE_PRESENT),
                         rank + 1 < RDV_RANKS_MAX ? COLL_VOTE_OPEN : COLL_VOTE_GO);
    for (uint32_t rank = 0; rank + 1 < RDV_RANKS_MAX; rank++) {
        ck_assert(get_any(sockets[rank], &state, &told));
        ck_assert(told == COLL_PHASE_PRESENT && state.result == COLL_VOTE_GO && state.all);
    }
    for (uint32_t rank = 0; rank < RDV_RANKS_MAX; rank++)
        close(sockets[rank]);
    require_count(0, 0);
}
END_TEST

/* ---- Ranks that break rules
 * --------------------------------------------------------------------------------------
 */

/* A connected rank joins no second time, and how many ranks there are the first
 * one says. */
static const uint32_t second_ranks[][2] = {{0, 2}, {1, 3}};

START_TEST(a_rank_that_contradicts_the_first_is_disconnected)
{
    const int first = join(8, 0, 2);
    ck_assert_int_eq(join(8, second_ranks[_i][0], second_ranks[_i][1]), -1);
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

START_TEST(a_frame_that_is_no_request_is_disconnected)
{
    static const int bad[][2] = {{0, 0}, {RDV_ACTIONS, 0}, {RDV_VOTE, COLL_VOTE_PHASES}, {-1, -1}};
    const int first = join(8, 0, 2), second = join(8, 1, 2);
    ck_assert_int_eq(request_state(second, RDV_VOTE, COLL_PHASE_PRESENT), COLL_VOTE_OPEN);
    ck_assert_int_eq(request_state(second, (enum rdv_action)bad[_i][0], (enum coll_vote_phase)bad[_i][1]),
                     COLL_VOTE_LOST);
    require_ended(first, second);
}
END_TEST

/* A rank that goes on without the others is not answered; who comes to what it
 * has passed is told. */
START_TEST(a_rank_that_has_passed_an_operation_is_not_waited_for_in_it)
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

/* ---- What is decided
 * ---------------------------------------------------------------------------------------------
 */

/* What was said before the end is not counted on, though it is read before the
 * end is seen. */
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

/* Everybody has left; who comes then hears what they have heard, as long as
 * there is room to remember. */
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

static TCase *rendezvous_case(const char *name, void (*choose_backend)(void))
{
    TCase *tests = tcase_create(name);
    tcase_set_timeout(tests, 60);
    tcase_add_checked_fixture(tests, choose_backend, NULL);
    tcase_add_test(tests, ranks_that_all_join_go);
    tcase_add_loop_test(tests, a_missing_rank_keeps_all_raw, 0, RANKS);
    tcase_add_test(tests, a_late_rank_decides_as_the_others);
    tcase_add_loop_test(tests, one_ballot_that_differs_keeps_all_raw, 0, 3 * RANKS);
    tcase_add_loop_test(tests, only_what_blocks_may_have_two_ranks_in_a_thread, 0, 2);
    tcase_add_loop_test(tests, a_rank_that_has_ended_is_not_counted_on, 0, 2);
    tcase_add_test(tests, missing_ranks_are_named);
    return tests;
}

static TCase *server_case(void)
{
    TCase *tests = tcase_create("server");
    tcase_set_timeout(tests, 90);
    tcase_add_checked_fixture(tests, open_server, close_server);
    tcase_add_test(tests, results_are_told_unasked);
    tcase_add_test(tests, as_many_ranks_as_there_may_be_are_told_the_result);
    tcase_add_loop_test(tests, a_peer_that_is_none_of_the_ranks_is_disconnected, 0, COUNT(wrongs));
    tcase_add_test(tests, other_protocols_are_disconnected);
    tcase_add_test(tests, half_a_frame_keeps_nobody_waiting);
    tcase_add_test(tests, unauthenticated_connections_make_room_for_ranks);
    tcase_add_test(tests, a_rank_that_comes_without_descriptors_is_heard_later);
    tcase_add_loop_test(tests, a_rank_that_contradicts_the_first_is_disconnected, 0, COUNT(second_ranks));
    tcase_add_test(tests, nobody_votes_twice_in_a_phase);
    tcase_add_test(tests, the_first_phase_comes_first);
    tcase_add_loop_test(tests, a_frame_that_is_no_request_is_disconnected, 0, 4);
    tcase_add_test(tests, a_rank_that_has_passed_an_operation_is_not_waited_for_in_it);
    tcase_add_test(tests, a_rank_that_has_gone_is_not_counted_on);
    tcase_add_test(tests, late_ranks_learn_the_result);
    return tests;
}

int main(void)
{
    TCase *keys = tcase_create("keys");
    tcase_add_test(keys, keys_differ_with_what_they_are_of);
    tcase_add_test(keys, ranks_that_a_shrink_leaves_out_find_the_next_split);
    Suite *suite = suite_create("rendezvous");
    suite_add_tcase(suite, rendezvous_case("shm", use_shm));
    suite_add_tcase(suite, rendezvous_case("tcp", use_tcp));
    suite_add_tcase(suite, keys);
    suite_add_tcase(suite, server_case());
    return run_suite(suite);
}
