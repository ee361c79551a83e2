#include "bench/timing.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "tools/util.h"

struct queue {
    work_item *fn;
    void *arg;
    uint32_t count;
    _Atomic uint32_t next;
    atomic_bool failed;
};

static void drain(void *arg, unsigned thread)
{
    struct queue *queue = arg;
    uint32_t item;

    while ((item = atomic_fetch_add(&queue->next, 1)) < queue->count)
        if (!queue->fn(queue->arg, thread, item))
            queue->failed = true;
}

static uint64_t cpu_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}

struct elapsed time_items(unsigned threads, uint32_t count, work_item *fn, void *arg, bool *ok)
{
    struct queue queue = {.fn = fn, .arg = arg, .count = count};
    struct elapsed elapsed;
    uint64_t used = cpu_ns();
    uint64_t started = clock_ns();

    parallel_run(threads, drain, &queue);
    elapsed.wall_ns = clock_ns() - started;
    elapsed.cpu_ns = cpu_ns() - used;
    if (elapsed.wall_ns == 0)
        elapsed.wall_ns = 1;
    if (queue.failed)
        *ok = false;
    return elapsed;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

struct spread spread_of(double *samples, unsigned count)
{
    qsort(samples, count, sizeof(samples[0]), by_value);
    return (struct spread){
        .p50 = (samples[(count - 1) / 2] + samples[count / 2]) / 2,
        .min = samples[0],
        .max = samples[count - 1],
    };
}
