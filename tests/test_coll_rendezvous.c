/* Where ranks meet, in the host's memory and at a process that is asked: whoever comes, and whenever, all of them
 * decide alike, and no name is left. */
#include <check.h>
#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collective/rdv_server.h"
#include "collective/rendezvous.h"
#include "collective/comm.h"
#include "tests/support.h"

enum { RANKS = 5, NEVER = -1 };

static struct coll_ballot word_of(int rank)
{
    return (struct coll_ballot){.able = 1, .blocks = 1, .thread = (uint64_t)rank + 1};
}

static bool until_limit(struct coll_rdv *meeting, int64_t ms, void *argument)
{
    (void)meeting;
    return ms < *(const int *)argument;
}

/* ---- Places ------------------------------------------------------------------------------------------------------ */

static struct coll_rdv_endpoint place; /* none: the host's memory */

static void meet_here(void)
{
    memset(&place, 0, sizeof(place));
}

static void meet_there(void)
{
    coll_id id = {{0}};
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    coll_unique_id_put(&id);
    coll_unique_id_read(&id, &place);
    require(place.address.family != 0);
}

static struct coll_key draw(void)
{
    struct coll_key key = coll_key_draw();
    key.place = place;
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

struct visitor {
    pthread_t thread;
    struct coll_key key;
    int rank, after_us, limit_ms;
    struct coll_ballot word;
    enum coll_verdict verdict;
};

static void *visit(void *argument)
{
    struct visitor *visitor = argument;
    usleep((useconds_t)visitor->after_us);
    struct coll_rdv *meeting = coll_rdv_join(&visitor->key, visitor->rank, RANKS);
    require(meeting != NULL);
    coll_rdv_vote(meeting, COLL_PHASE_PRESENT, &visitor->word);
    visitor->verdict = coll_rdv_wait(meeting, COLL_PHASE_PRESENT, until_limit, &visitor->limit_ms);
    coll_rdv_leave(meeting);
    return NULL;
}

/* What all of them decide. */
static enum coll_verdict visit_all(struct visitor *visitors)
{
    const struct coll_key key = draw();
    for (int rank = 0; rank < RANKS; rank++) {
        visitors[rank].key = key;
        visitors[rank].rank = rank;
        if (visitors[rank].after_us != NEVER)
            require(pthread_create(&visitors[rank].thread, NULL, visit, &visitors[rank]) == 0);
    }
    enum coll_verdict all = COLL_VERDICT_OPEN;
    for (int rank = 0; rank < RANKS; rank++) {
        if (visitors[rank].after_us == NEVER)
            continue;
        require(pthread_join(visitors[rank].thread, NULL) == 0);
        ck_assert(all == COLL_VERDICT_OPEN || all == visitors[rank].verdict);
        all = visitors[rank].verdict;
    }
    ck_assert(!has_name(&key));
    return all;
}

static void all_come(struct visitor *visitors, int limit_ms)
{
    for (int rank = 0; rank < RANKS; rank++)
        visitors[rank] = (struct visitor){.limit_ms = limit_ms, .word = word_of(rank)};
}

START_TEST(ranks_that_all_come_go)
{
    struct visitor visitors[RANKS];
    all_come(visitors, 60000);
    ck_assert_int_eq(visit_all(visitors), COLL_VERDICT_GO);
}
END_TEST

START_TEST(a_rank_that_does_not_come_keeps_all_raw)
{
    struct visitor visitors[RANKS];
    all_come(visitors, 50);
    visitors[_i].after_us = NEVER;
    ck_assert_int_eq(visit_all(visitors), COLL_VERDICT_RAW);
}
END_TEST

/* Around the moment that the others give up; whatever it is, it is the same for all. */
START_TEST(a_rank_that_comes_late_decides_as_the_others)
{
    int verdicts[3] = {0};
    for (unsigned turn = 0; turn < 150; turn++) {
        struct visitor visitors[RANKS];
        all_come(visitors, 6);
        for (int rank = 0; rank < RANKS; rank++)
            visitors[rank].after_us = rank == (int)(turn % RANKS) ? 3000 + (int)(turn * 40) : (int)(turn * 7 % 50);
        verdicts[visit_all(visitors)]++;
    }
    ck_assert_int_eq(verdicts[COLL_VERDICT_OPEN], 0);
    ck_assert_int_gt(verdicts[COLL_VERDICT_RAW], 0);
}
END_TEST

START_TEST(one_word_that_differs_keeps_all_raw)
{
    struct visitor visitors[RANKS];
    all_come(visitors, 60000);
    struct coll_ballot *word = &visitors[_i % RANKS].word;
    if (_i / RANKS == 0)
        word->able = 0;
    else if (_i / RANKS == 1)
        word->blocks = 0;
    else
        word->index++;
    ck_assert_int_eq(visit_all(visitors), COLL_VERDICT_RAW);
}
END_TEST

START_TEST(only_what_blocks_may_have_two_ranks_in_a_thread)
{
    struct visitor visitors[RANKS];
    all_come(visitors, 60000);
    for (int rank = 0; rank < RANKS; rank++) {
        visitors[rank].word.thread = 1;
        visitors[rank].word.blocks = _i == 0;
    }
    ck_assert_int_eq(visit_all(visitors), _i == 0 ? COLL_VERDICT_GO : COLL_VERDICT_RAW);
}
END_TEST

/* ---- Processes that end ------------------------------------------------------------------------------------------ */

static void come_and_end(const struct coll_key *key)
{
    const pid_t child = fork();
    require(child >= 0);
    if (child == 0) {
        const struct coll_ballot word = word_of(1);
        struct coll_rdv *meeting = coll_rdv_join(key, 1, 2);
        if (meeting != NULL)
            coll_rdv_vote(meeting, COLL_PHASE_PRESENT, &word);
        _exit(meeting == NULL);
    }
    int status;
    require(waitpid(child, &status, 0) == child && status == 0);
}

/* Also what a process that was killed has left there long ago. */
START_TEST(a_rank_that_has_ended_is_not_counted_on)
{
    static int limit_ms = 60000;
    char why[160];
    const struct coll_key key = draw();
    const struct coll_ballot word = word_of(0);
    struct coll_rdv *before = _i == 0 ? coll_rdv_join(&key, 0, 2) : NULL;
    come_and_end(&key);
    struct coll_rdv *meeting = before != NULL ? before : coll_rdv_join(&key, 0, 2);
    ck_assert_ptr_nonnull(meeting);
    coll_rdv_vote(meeting, COLL_PHASE_PRESENT, &word);
    ck_assert_int_eq(coll_rdv_wait(meeting, COLL_PHASE_PRESENT, until_limit, &limit_ms), COLL_VERDICT_RAW);
    coll_rdv_reason(meeting, COLL_PHASE_PRESENT, why, sizeof(why));
    ck_assert_str_eq(why, "rank 1 has ended");
    ck_assert(!has_name(&key));
    coll_rdv_leave(meeting);
}
END_TEST

/* ---- Texts and keys ---------------------------------------------------------------------------------------------- */

START_TEST(who_does_not_come_is_named)
{
    static int limit_ms = 1;
    char why[200];
    const struct coll_key key = draw();
    const struct coll_ballot word = word_of(1);
    struct coll_rdv *meeting = coll_rdv_join(&key, 1, 4);
    ck_assert_ptr_nonnull(meeting);
    coll_rdv_vote(meeting, COLL_PHASE_PRESENT, &word);
    ck_assert_int_eq(coll_rdv_wait(meeting, COLL_PHASE_PRESENT, until_limit, &limit_ms), COLL_VERDICT_RAW);
    coll_rdv_reason(meeting, COLL_PHASE_PRESENT, why, sizeof(why));
    ck_assert_ptr_nonnull(strstr(why, "ranks 0, 2, 3 did not come in time"));
    coll_rdv_leave(meeting);
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
    const struct coll_key key = coll_key_draw();
    coll_comm_insert(here, 0, 3);
    coll_comm_insert(there, 1, 3);
    coll_track_key(here, &key);
    coll_track_key(there, &key);
    const struct coll_key shrunk = coll_comm_child_key(here, COLL_BY_SHRINK, 0);
    const struct coll_key split = coll_comm_child_key(here, COLL_BY_SPLIT, 0);
    const struct coll_key same = coll_comm_child_key(there, COLL_BY_SPLIT, 0);
    require(memcmp(split.words, same.words, sizeof(same.words)) == 0);
    require(memcmp(split.words, shrunk.words, sizeof(shrunk.words)) != 0);
    coll_comm_remove(here);
    coll_comm_remove(there);
}
END_TEST

static TCase *meetings(const char *name, void (*choose_place)(void))
{
    TCase *tests = tcase_create(name);
    tcase_set_timeout(tests, 60);
    tcase_add_checked_fixture(tests, choose_place, NULL);
    tcase_add_test(tests, ranks_that_all_come_go);
    tcase_add_loop_test(tests, a_rank_that_does_not_come_keeps_all_raw, 0, RANKS);
    tcase_add_test(tests, a_rank_that_comes_late_decides_as_the_others);
    tcase_add_loop_test(tests, one_word_that_differs_keeps_all_raw, 0, 3 * RANKS);
    tcase_add_loop_test(tests, only_what_blocks_may_have_two_ranks_in_a_thread, 0, 2);
    tcase_add_loop_test(tests, a_rank_that_has_ended_is_not_counted_on, 0, 2);
    tcase_add_test(tests, who_does_not_come_is_named);
    return tests;
}

int main(void)
{
    TCase *keys = tcase_create("keys");
    tcase_add_test(keys, keys_differ_with_what_they_are_of);
    tcase_add_test(keys, ranks_that_a_shrink_leaves_out_find_the_next_split);
    Suite *suite = suite_create("meeting");
    suite_add_tcase(suite, meetings("here", meet_here));
    suite_add_tcase(suite, meetings("there", meet_there));
    suite_add_tcase(suite, keys);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
