#include "bench/ranks.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/daemons.h"
#include "tools/util.h"

#define POLL_MS  10u
#define GRACE_NS 2000000000u /* for ranks to notice that one failed: a library may wait for it forever */

void *ranks_memory(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (memory != MAP_FAILED)
        return memory;
    print_error(NULL, "out of memory");
    return NULL;
}

/* Each barrier is a round of `ranks` arrivals; the last rank to arrive releases the round. */
bool ranks_wait(struct ranks_barrier *barrier, unsigned ranks)
{
    uint32_t round = atomic_fetch_add(&barrier->arrived, 1) / ranks + 1;

    if (atomic_load(&barrier->arrived) >= round * ranks)
        atomic_store(&barrier->passed, round);
    while (atomic_load(&barrier->passed) < round) {
        if (atomic_load(&barrier->failed))
            return false;
        sched_yield();
    }
    return !atomic_load(&barrier->failed);
}

/* 0: failed, with the error on stderr. */
static pid_t start(const struct ranks *ranks, unsigned number)
{
    pid_t parent = getpid(), pid;

    fflush(NULL);
    pid = fork();
    if (pid < 0)
        print_error(NULL, "a process cannot be started: %s", strerror(errno));
    if (pid != 0)
        return pid > 0 ? pid : 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    bool good = ranks->run(ranks->context, number);
    fflush(NULL);
    _exit(good ? 0 : 1);
}

/* Whether the rank still runs. If it ended with an error, all ranks fail. */
static bool rank_runs(pid_t *pid, unsigned number, struct ranks_barrier *barrier)
{
    int status;

    if (*pid == 0 || waitpid(*pid, &status, WNOHANG) == 0)
        return *pid != 0;
    *pid = 0;
    if (WIFSIGNALED(status))
        print_error(NULL, "rank %u ended by signal %d", number, WTERMSIG(status));
    else if (WEXITSTATUS(status) > 1) /* not one of our statuses, for which the rank has printed the error */
        print_error(NULL, "rank %u ended with exit status %d", number, WEXITSTATUS(status));
    if (status != 0)
        atomic_store(&barrier->failed, true);
    return false;
}

static unsigned count_running(const struct ranks *ranks, pid_t *pids)
{
    unsigned running = 0;

    for (unsigned i = 0; i < ranks->count; i++)
        running += rank_runs(&pids[i], i, ranks->barrier);
    return running;
}

static void kill_all(pid_t *pids, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (pids[i] != 0) {
            kill(pids[i], SIGKILL);
            waitpid(pids[i], NULL, 0);
            pids[i] = 0;
        }
}

/* Prints where the ranks were that were asked to end, or took too long. */
static void explain(const struct ranks *ranks)
{
    if (!interrupted())
        print_error(NULL, "the ranks did not end within %u s (--timeout)", (unsigned)ranks->seconds);
    if (ranks->explain != NULL)
        ranks->explain(ranks->context);
}

/* Waits until the ranks have ended, or should have. */
static void await(const struct ranks *ranks, pid_t *pids)
{
    uint64_t deadline = clock_ns() + ranks->seconds * UINT64_C(1000000000);
    bool failed = false;

    while (count_running(ranks, pids) > 0 && !interrupted() && clock_ns() < deadline) {
        if (!failed && atomic_load(&ranks->barrier->failed)) {
            failed = true;
            deadline = clock_ns() + GRACE_NS;
        }
        sleep_ms(POLL_MS);
    }
    if (!atomic_load(&ranks->barrier->failed) && (interrupted() || clock_ns() >= deadline))
        explain(ranks);
}

bool ranks_run(const struct ranks *ranks)
{
    pid_t pids[RANKS_PROCESSES_MAX] = {0};
    bool good = true;

    for (unsigned i = 0; good && i < ranks->count; i++)
        good = (pids[i] = start(ranks, i)) != 0;
    if (!good)
        atomic_store(&ranks->barrier->failed, true);
    await(ranks, pids);
    good = good && count_running(ranks, pids) == 0 && !atomic_load(&ranks->barrier->failed);
    kill_all(pids, ranks->count);
    return good;
}
