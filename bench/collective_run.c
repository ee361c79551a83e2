#include "bench/collective_run.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/collective_rank.h"
#include "bench/gpu_memory.h"
#include "bench/transfer_process.h"
#include "tools/util.h"

#define POLL_MS  10u
#define GRACE_NS 5000000000u /* for ranks to notice that one failed: NCCL may wait for it forever */

/* ---- GPUs -------------------------------------------------------------------------------------------------------- */

struct count {
    unsigned gpus;
    char why[256];
};

static void tell_count(int fd)
{
    struct count count = {0};

    count.gpus = gpu_count(count.why, sizeof(count.why));
    _exit(write(fd, &count, sizeof(count)) == sizeof(count) ? 0 : 1);
}

unsigned collective_count_gpus(char *why, size_t size)
{
    struct count count = {.why = "the process that looks for them ended"};
    int ends[2], status;

    if (pipe(ends) != 0) {
        snprintf(why, size, "%s", strerror(errno));
        return 0;
    }
    pid_t pid = fork();
    if (pid == 0)
        tell_count(ends[1]);
    close(ends[1]);
    if (pid > 0 && read(ends[0], &count, sizeof(count)) != sizeof(count))
        count.gpus = 0;
    close(ends[0]);
    if (pid > 0)
        waitpid(pid, &status, 0);
    snprintf(why, size, "%s", count.why);
    return count.gpus;
}

/* ---- Ranks ------------------------------------------------------------------------------------------------------- */

/* `%r` is the rank's number. */
static void set_one(const char *name, const char *value, unsigned number)
{
    const char *at = strstr(value, "%r");
    char text[256];

    if (at != NULL) {
        snprintf(text, sizeof(text), "%.*s%u%s", (int)(at - value), value, number, at + 2);
        value = text;
    }
    setenv(name, value, 1);
}

static void set_environment(const struct collective_options *options, enum collective_links links, unsigned number)
{
    if (links != COLLECTIVE_AS_IS)
        setenv("NCCL_P2P_DISABLE", "1", 1);
    if (links == COLLECTIVE_SOCKET)
        setenv("NCCL_SHM_DISABLE", "1", 1);
    for (unsigned i = 0; i < options->environment_count; i++) {
        char *text = strdup(options->environment[i]);
        char *value = text != NULL ? strchr(text, '=') : NULL;
        if (value == NULL)
            continue;
        *value = '\0';
        set_one(text, value + 1, number);
        free(text);
    }
}

/* 0: failed, with the error on stderr. */
static pid_t start(const struct collective_plan *plan, enum collective_links links, struct collective_shared *shared,
                   unsigned number)
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
    set_environment(plan->options, links, number);
    bool good = collective_rank_run(plan, shared, number);
    fflush(NULL);
    _exit(good ? 0 : 1);
}

/* Whether the rank still runs. If it ended with an error, all ranks fail. */
static bool runs(pid_t *pid, unsigned number, struct collective_shared *shared)
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
        atomic_store(&shared->failed, true);
    return false;
}

static unsigned count_running(pid_t *pids, unsigned count, struct collective_shared *shared)
{
    unsigned running = 0;

    for (unsigned i = 0; i < count; i++)
        running += runs(&pids[i], i, shared);
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

static void print_place(const struct collective_plan *plan, const struct collective_shared *shared, unsigned number)
{
    static const char *const phases[] = {
        "opens libraries and its GPU", "connects", "warms up", "measures", "checks", "ends", "has ended"};
    static const char *const ways[] = {"NCCL alone", "libstrait-coll"};
    const struct collective_place *place = &shared->places[number];
    const uint32_t phase = atomic_load(&place->phase), index = atomic_load(&place->row);
    const bool by_way = phase >= COLLECTIVE_CONNECTING && phase <= COLLECTIVE_MEASURING;
    const struct collective_row *row = &plan->rows[index < plan->row_count ? index : 0];

    if (phase < COLLECTIVE_WARMING || phase > COLLECTIVE_CHECKING)
        print_error(NULL, "rank %u %s%s%s", number, phases[phase], by_way ? ": " : "",
                    by_way ? ways[atomic_load(&place->way)] : "");
    else
        print_error(NULL, "rank %u %s%s%s: %s of %s %s, %llu bytes", number, phases[phase], by_way ? " by " : "",
                    by_way ? ways[atomic_load(&place->way)] : "", collective_op_names[row->op],
                    collective_data_names[row->data], collective_type_names[row->type], (unsigned long long)row->size);
}

/* Prints where the ranks were that were asked to end, or took too long. */
static void print_places(const struct collective_plan *plan, const struct collective_shared *shared)
{
    if (!interrupted())
        print_error(NULL, "the ranks did not end within %u s (--timeout)", plan->options->seconds);
    for (unsigned i = 0; i < plan->ranks; i++)
        print_place(plan, shared, i);
}

/* Waits until the ranks have ended, or should have. */
static void await(const struct collective_plan *plan, pid_t *pids, struct collective_shared *shared)
{
    uint64_t deadline = clock_ns() + plan->options->seconds * UINT64_C(1000000000);
    bool failed = false;

    while (count_running(pids, plan->ranks, shared) > 0 && !interrupted() && clock_ns() < deadline) {
        if (!failed && atomic_load(&shared->failed)) {
            failed = true;
            deadline = clock_ns() + GRACE_NS;
        }
        sleep_ms(POLL_MS);
    }
    if (!atomic_load(&shared->failed) && (interrupted() || clock_ns() >= deadline))
        print_places(plan, shared);
}

bool collective_run(const struct collective_plan *plan, enum collective_links links, struct collective_shared *shared)
{
    pid_t pids[COLLECTIVE_RANKS_MAX] = {0};
    bool good = true;

    for (unsigned i = 0; good && i < plan->ranks; i++)
        good = (pids[i] = start(plan, links, shared, i)) != 0;
    if (!good)
        atomic_store(&shared->failed, true);
    await(plan, pids, shared);
    good = good && count_running(pids, plan->ranks, shared) == 0 && !atomic_load(&shared->failed);
    kill_all(pids, plan->ranks);
    return good;
}
