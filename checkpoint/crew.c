#include "checkpoint/crew.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "internal/thread.h"

uint32_t crew_threads(uint32_t asked)
{
    cpu_set_t set;
    if (asked != 0)
        return asked < CREW_THREADS_MAX ? asked : CREW_THREADS_MAX;
    const int count = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : (int)CREW_THREADS_DEFAULT;
    return count < 1 ? 1 : count < (int)CREW_THREADS_DEFAULT ? (uint32_t)count : CREW_THREADS_DEFAULT;
}

struct crew {
    const struct crew_work *work;
    uint64_t count;
    _Atomic uint64_t next;
};

static void *take_jobs(void *arg)
{
    struct crew *crew = arg;
    const struct crew_work *work = crew->work;
    void *state = work->open != NULL ? work->open(work->context) : NULL;
    if (work->open != NULL && state == NULL)
        return NULL;
    for (uint64_t job; (job = atomic_fetch_add(&crew->next, 1)) < crew->count;)
        work->run(work->context, state, job);
    if (work->close != NULL)
        work->close(work->context, state);
    return NULL;
}

bool crew_run(const struct crew_work *work, uint64_t count, uint32_t threads)
{
    struct crew crew = {.work = work, .count = count};
    pthread_t others[CREW_THREADS_MAX];
    uint32_t started = 0;
    if (count == 0)
        return true;
    if (threads > count)
        threads = (uint32_t)count;
    while (started < threads && thread_start(&others[started], take_jobs, &crew) == 0)
        started++;
    if (started == 0)
        take_jobs(&crew);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(others[i], NULL);
    return atomic_load(&crew.next) >= count;
}
