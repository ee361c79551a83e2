#include "tools/ordered.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "tools/util.h"

struct ordered {
    const struct ordered_steps *steps;
    void *job;
    uint8_t *slots;
    size_t slot_bytes;
    pthread_mutex_t taking; /* held during `take`; guards taken and drained */
    uint64_t taken;
    bool drained;
    pthread_mutex_t giving; /* held during `give`; guards given, and who may set stopped */
    pthread_cond_t turn;
    uint64_t given;
    atomic_bool stopped; /* also read before taking: nothing is taken that would not be given */
};

static bool take(struct ordered *o, void *slot, uint64_t *ticket)
{
    bool taken;

    pthread_mutex_lock(&o->taking);
    taken = !o->drained && !o->stopped && o->steps->take(o->job, slot);
    o->drained = !taken;
    *ticket = o->taken;
    o->taken += taken;
    pthread_mutex_unlock(&o->taking);
    return taken;
}

/* Every ticket passes here, also after a stop, so that no thread waits for a turn that never comes. */
static bool give(struct ordered *o, void *slot, uint64_t ticket)
{
    bool go_on;

    pthread_mutex_lock(&o->giving);
    while (o->given != ticket)
        pthread_cond_wait(&o->turn, &o->giving);
    go_on = !o->stopped && o->steps->give(o->job, slot);
    o->stopped = !go_on;
    o->given++;
    pthread_cond_broadcast(&o->turn);
    pthread_mutex_unlock(&o->giving);
    return go_on;
}

static void worker(void *arg, unsigned index)
{
    struct ordered *o = arg;
    void *slot = o->slots + index * o->slot_bytes;
    uint64_t ticket;

    while (take(o, slot, &ticket)) {
        o->steps->work(o->job, slot);
        if (!give(o, slot, ticket))
            return;
    }
}

void ordered_run(const struct ordered_steps *steps, void *job, void *slots, size_t slot_bytes, unsigned threads)
{
    struct ordered o = {.steps = steps, .job = job, .slots = slots, .slot_bytes = slot_bytes};

    pthread_mutex_init(&o.taking, NULL);
    pthread_mutex_init(&o.giving, NULL);
    pthread_cond_init(&o.turn, NULL);
    parallel_run(threads, worker, &o);
    pthread_cond_destroy(&o.turn);
    pthread_mutex_destroy(&o.giving);
    pthread_mutex_destroy(&o.taking);
}
