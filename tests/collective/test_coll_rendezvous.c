/* Rendezvous in shared memory and by TCP: whichever ranks join, and whenever, all decide alike, and no name is left. */
#include <check.h>
#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collective/rendezvous.h"
#include "collective/comm.h"
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

/* ---- Backends ---------------------------------------------------------------------------------------------------- */

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

/* ---- Several ranks ----------------------------------------------------------------------------------------------- */

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

/* Around the moment that the others give up; whatever it is, it is the same for all. */
START_TEST(a_late_rank_decides_as_the_others)
{
    int verdicts[3] = {0};
    for (unsigned turn = 0; turn < 50; turn++) {
        struct joiner joiners[RANKS];
        expect_all(joiners, 6);
        for (int rank = 0; rank < RANKS; rank++)
            joiners[rank].after_us = rank == (int)(turn % RANKS) ? 3000 + (int)(turn * 120) : (int)(turn * 7 % 50);
        verdicts[join_all(joiners)]++;
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

/* ---- Processes that end ------------------------------------------------------------------------------------------ */

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

/* ---- Texts and keys ---------------------------------------------------------------------------------------------- */

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

/* Of one communicator, as two ranks know it, one of which the other's shrink leaves out. */
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

int main(void)
{
    TCase *keys = tcase_create("keys");
    tcase_add_test(keys, keys_differ_with_what_they_are_of);
    tcase_add_test(keys, ranks_that_a_shrink_leaves_out_find_the_next_split);
    Suite *suite = suite_create("rendezvous");
    suite_add_tcase(suite, rendezvous_case("shm", use_shm));
    suite_add_tcase(suite, rendezvous_case("tcp", use_tcp));
    suite_add_tcase(suite, keys);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
