/* Processes of one host see each other end (collective/engine/liveness.c), and ranks tell of it. Ranks here are
 * threads, so what others hear of rank 1 is the card of a process that stands in for it. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collective/engine/hosts.h"
#include "tests/coll_engine/harness.h"

enum { COUNT_OF = 40001, PATIENCE_MS = 20000, TOLD_MS = 10000, ABORT_MS = 5000, UNTOLD_MS = 500 };

/* ---- A process that stands in ------------------------------------------------------------------------------------ */

enum way { KILLED, ENDED, BECAME_ANOTHER, KILLED_WITH_A_CHILD, LEFT, STOPPED, WAYS };

struct stand_in {
    pid_t process;
    int control;
    struct liveness_info card;
};

static void await_end(int control)
{
    char byte;
    while (read(control, &byte, 1) > 0)
        ;
    _exit(0);
}

static void go(enum way way, struct liveness *life, int control)
{
    switch (way) {
    case ENDED:
        _exit(0);
    case BECAME_ANOTHER:
        execl("/bin/sleep", "sleep", "60", (char *)NULL);
        _exit(1);
    case KILLED_WITH_A_CHILD:
        if (fork() == 0)
            await_end(control);
        raise(SIGKILL);
        break;
    case LEFT:
        liveness_leave(life);
        liveness_end(life);
        _exit(0);
    case STOPPED:
        raise(SIGSTOP);
        break;
    default:
        raise(SIGKILL);
    }
}

static struct stand_in stand_in_start(void)
{
    struct stand_in made;
    int control[2];
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control) == 0);
    made.process = fork();
    require(made.process >= 0);
    if (made.process == 0) {
        struct liveness life;
        char way;
        close(control[0]);
        require(liveness_begin(&life, &made.card) &&
                write(control[1], &made.card, sizeof(made.card)) == sizeof(made.card));
        if (read(control[1], &way, 1) == 1)
            go((enum way)way, &life, control[1]);
        await_end(control[1]);
    }
    close(control[1]);
    made.control = control[0];
    require(read(made.control, &made.card, sizeof(made.card)) == sizeof(made.card));
    return made;
}

static void stand_in_goes(const struct stand_in *stand_in, enum way way)
{
    const char byte = (char)way;
    require(write(stand_in->control, &byte, 1) == 1);
}

/* Others must see it though nobody has waited for it, as far as the kernel goes. */
static void stand_in_end(const struct stand_in *stand_in)
{
    kill(stand_in->process, SIGKILL);
    require(waitpid(stand_in->process, NULL, 0) == stand_in->process);
    close(stand_in->control);
}

/* ---- Signs of life ----------------------------------------------------------------------------------------------- */

static const enum liveness_state ends_as[WAYS] = {LIVENESS_ENDED, LIVENESS_ENDED, LIVENESS_ENDED,
                                                  LIVENESS_ENDED, LIVENESS_LEFT,  LIVENESS_ALIVE};

static enum liveness_state await_change(int found, int milliseconds)
{
    enum liveness_state state;
    while ((state = liveness_poll(found)) == LIVENESS_ALIVE && milliseconds-- > 0)
        usleep(1000);
    return state;
}

START_TEST(other_processes_see_how_one_ends)
{
    struct liveness own;
    struct liveness_info card;
    struct stand_in other = stand_in_start();
    require(liveness_begin(&own, &card));
    const int found = liveness_find(&own, &other.card);
    require(found >= 0 && liveness_poll(found) == LIVENESS_ALIVE);
    stand_in_goes(&other, (enum way)_i);
    if (_i == STOPPED) {
        siginfo_t stopped;
        require(waitid(P_PID, (id_t)other.process, &stopped, WSTOPPED) == 0);
    }
    require(await_change(found, _i == STOPPED ? UNTOLD_MS : PATIENCE_MS) == ends_as[_i]);
    stand_in_end(&other);
    if (_i == STOPPED)
        require(liveness_poll(found) == LIVENESS_ENDED);
    close(found);
    liveness_end(&own);
}
END_TEST

/* A number of a process may mean another one here, or none, or this one; what is not it is not opened. */
START_TEST(liveness_of_another_process_is_not_found)
{
    struct liveness own, second;
    struct liveness_info card, second_card;
    struct stand_in other = stand_in_start(), third = stand_in_start();
    require(liveness_begin(&own, &card) && liveness_begin(&second, &second_card));
    struct liveness_info wrong[] = {other.card, other.card, other.card, other.card, other.card, second_card, {0}, {0}};
    wrong[0].process = getpid();
    wrong[1].process = third.process; /* which may have it under the same number */
    wrong[2].file = 0;
    wrong[3].inode++;
    wrong[4].nonce ^= 1;
    wrong[7] = (struct liveness_info){.self = other.card.self}; /* of one that has no file to be had */
    for (int i = 0; i < COUNT(wrong); i++)
        require(liveness_find(&own, &wrong[i]) < 0);
    require(liveness_is_own(&second_card) && !liveness_is_own(&other.card) && !liveness_is_own(&wrong[6]));
    stand_in_end(&third);
    stand_in_end(&other);
    liveness_end(&second);
    liveness_end(&own);
}
END_TEST

START_TEST(a_forked_child_is_not_its_parent)
{
    struct liveness own;
    struct liveness_info card;
    int status;
    require(liveness_begin(&own, &card));
    pid_t child = fork();
    if (child == 0) {
        liveness_leave(&own);
        _exit(liveness_is_own(&card));
    }
    require(waitpid(child, &status, 0) == child && status == 0);
    uint64_t sign[2] = {0};
    require(pread(own.file, sign, sizeof(sign), 0) == sizeof(sign) && sign[0] == card.nonce && sign[1] == 0);
    liveness_end(&own);
}
END_TEST

/* ---- Ranks ------------------------------------------------------------------------------------------------------- */

/* What rank 0 waits in when its peer goes. */
enum wait { IN_NCCL, IN_OURS, PASSED_ON, IDLE, WAITS };

struct scene {
    enum wait wait;
    enum way way;
    struct stand_in peer;
};

static bool is_told_within(coll_comm comm, long milliseconds)
{
    const long until = now_ms() + milliseconds;
    while (error_of(comm) == COLL_SUCCESS && now_ms() < until)
        usleep(1000);
    return error_of(comm) != COLL_SUCCESS;
}

static void begin_waiting(struct rank *rank, const struct scene *scene, struct gather *gather)
{
    const bool together = scene->wait == IN_OURS;
    gather_fill(rank, gather, together ? VALUES_NOISE : VALUES_NORMAL, 0);
    if (scene->wait != IDLE && (rank->rank == 0 || together))
        require_ok(gather_post(rank, gather));
    const struct told told = told_of(rank->comm, "all_gather", "bf16");
    require(told.compressed == (told.calls > 0 && scene->wait != PASSED_ON));
}

static void lose_peer(struct rank *rank, struct scene *scene)
{
    const bool told = scene->way != LEFT && scene->way != STOPPED;
    require(!is_told_within(rank->comm, 100));
    stand_in_goes(&scene->peer, scene->way);
    if (told && scene->wait == IN_OURS) /* though nobody asks for errors */
        require(ends_within(rank->stream, TOLD_MS));
    require(is_told_within(rank->comm, told ? TOLD_MS : UNTOLD_MS) == told);
    require(!told || error_of(rank->comm) == COLL_REMOTE_ERROR);
}

/* A rank that does not ask for errors learns of it by the next call, alone or in a group. */
static void require_failing(const struct rank *rank, const struct gather *gather)
{
    require(gather_post(rank, gather) == COLL_REMOTE_ERROR);
    require_ok(ncclGroupStart());
    require_ok(gather_post(rank, gather));
    require(ncclGroupEnd() == COLL_REMOTE_ERROR);
}

static void be_watched(struct rank *rank)
{
    struct scene *scene = rank->argument;
    struct gather gather = gather_new(rank, COLL_BF16, COUNT_OF, VALUES_NORMAL);
    rank_begin(rank);
    ranks_meet();
    fake_gpu.lost = 1u << 1;
    begin_waiting(rank, scene, &gather);
    if (rank->rank == 0)
        lose_peer(rank, scene);
    if (rank->rank == 0 && scene->wait != PASSED_ON && error_of(rank->comm) != COLL_SUCCESS)
        require_failing(rank, &gather);
    ranks_meet();
    const long began = now_ms();
    require_ok(ncclCommAbort(rank->comm));
    fake_stream_wait(rank->stream);
    require(now_ms() - began < ABORT_MS);
    fake_stream_end(rank->stream);
}

static void stand_in_for_rank_1(const struct stand_in *peer)
{
    memcpy(fake_nccl.stand_in_bytes, &peer->card, sizeof(peer->card));
    fake_nccl.stand_in_size = sizeof(peer->card);
    fake_nccl.stand_in = 2;
}

static void play(enum wait wait, enum way way)
{
    struct scene scene = {.wait = wait, .way = way, .peer = stand_in_start()};
    if (wait == PASSED_ON)
        setenv("STRAIT_COLL", "auto", 1);
    stand_in_for_rank_1(&scene.peer);
    ranks_start(2, be_watched, &scene);
    stand_in_end(&scene.peer);
}

START_TEST(a_rank_that_is_killed_is_an_error_of_the_others)
{
    play((enum wait)_i, KILLED);
}
END_TEST

START_TEST(a_rank_that_leaves_or_is_stopped_is_no_error)
{
    play(IDLE, (enum way)_i);
}
END_TEST

static bool is_sign(int file)
{
    char path[32], name[64] = "";
    snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    return readlink(path, name, sizeof(name) - 1) > 0 && strstr(name, "strait-coll-rank") != NULL;
}

/* Signs of life that this process has open, and how many of these, its own, say that their rank has left. */
static int count_signs(int *left)
{
    int found = 0;
    for (int file = 0; file < 1024; file++) {
        uint64_t sign[2] = {0};
        if (!is_sign(file))
            continue;
        found++;
        if (left == NULL)
            continue;
        require(pread(file, sign, sizeof(sign), 0) == sizeof(sign));
        *left += sign[1] != 0;
    }
    return found;
}

/* -1: there are not so many at all. */
static int count_left(int ranks)
{
    int left = 0;
    return count_signs(&left) == ranks ? left : -1;
}

/* ---- While ranks join -------------------------------------------------------------------------------------------- */

static void *begin_alone(void *argument)
{
    rank_begin(argument);
    return argument;
}

/* Rank 0 has opened the sign of life of the process that stands in for rank 1, and they tell each other more: slowly.
 */
static void hold_rank_1_soon(void)
{
    fake_gpu.jitter_us = 100000;
    for (const long began = now_ms(); count_signs(NULL) < 3; usleep(500))
        require(now_ms() - began < PATIENCE_MS);
    fake_gpu.halt = 1u << 1;
}

/* Rank 1 is held while ranks join, and its process ends. The other does not wait for it: while links are measured it
 * gets a communicator that tells so, and before it one that is raw. The thread of rank 1 is left behind. */
START_TEST(a_rank_that_ends_while_ranks_join_is_not_waited_for)
{
    struct rank ranks[2] = {{.rank = 0, .ranks = 2}, {.rank = 1, .ranks = 2}};
    pthread_t threads[2];
    const bool measures = _i == 0;
    const struct stand_in peer = stand_in_start();
    stand_in_for_rank_1(&peer);
    if (measures) {
        links_begin(0, 10000000);
        fake_gpu.holds = 1u << 1;
    }
    require_ok(ncclGetUniqueId(&ranks[0].id));
    ranks[1].id = ranks[0].id;
    for (int i = 0; i < 2; i++)
        require(pthread_create(&threads[i], NULL, begin_alone, &ranks[i]) == 0);
    require(pthread_detach(threads[1]) == 0);
    if (!measures)
        hold_rank_1_soon();
    await_halted();
    usleep(1000 * UNTOLD_MS); /* the other waits */
    const long began = now_ms();
    stand_in_goes(&peer, KILLED);
    require(pthread_join(threads[0], NULL) == 0);
    require(now_ms() - began < TOLD_MS);
    require(error_of(ranks[0].comm) == (measures ? COLL_REMOTE_ERROR : COLL_SUCCESS));
    fake_device_set(0);
    require_ok(ncclCommAbort(ranks[0].comm));
    fake_stream_end(ranks[0].stream);
    stand_in_end(&peer);
}
END_TEST

static void finalize(struct rank *rank)
{
    rank_begin(rank);
    ranks_meet();
    require(count_left(rank->ranks) == 0 && error_of(rank->comm) == COLL_SUCCESS);
    ranks_meet();
    require_ok(ncclCommFinalize(rank->comm));
    ranks_meet();
    require(count_left(rank->ranks) == rank->ranks);
    rank_end(rank);
}

START_TEST(a_rank_that_is_finalized_has_left)
{
    ranks_start(3, finalize, NULL);
    require(count_left(0) == 0);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("watch");
    tcase_add_loop_test(tests, other_processes_see_how_one_ends, 0, WAYS);
    tcase_add_test(tests, liveness_of_another_process_is_not_found);
    tcase_add_test(tests, a_forked_child_is_not_its_parent);
    tcase_add_loop_test(tests, a_rank_that_is_killed_is_an_error_of_the_others, 0, WAITS);
    tcase_add_loop_test(tests, a_rank_that_leaves_or_is_stopped_is_no_error, 0, WAYS);
    tcase_add_loop_test(tests, a_rank_that_ends_while_ranks_join_is_not_waited_for, 0, 2);
    tcase_add_test(tests, a_rank_that_is_finalized_has_left);
    return suite_run("watch", tests);
}
