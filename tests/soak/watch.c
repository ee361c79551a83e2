#include "tests/soak/watch.h"

#include <inttypes.h>
#include <stdlib.h>

#include "tests/soak/report.h"
#include "tests/support.h"

#define SPREAD_MAX       0.02
#define HEAP_MORE        (4 * MIB) /* the heap is small: a leak of a page per transfer is more than this in minutes */
#define DESCRIPTORS_MORE 2u

void watch_init(struct watch *watch, const struct soak_daemon *daemon)
{
    *watch = (struct watch){.daemon = daemon};
}

void watch_fini(struct watch *watch)
{
    free(watch->samples);
}

void watch_sample(struct watch *watch)
{
    if (watch->count == watch->room) {
        watch->room = watch->room != 0 ? 2 * watch->room : 64;
        watch->samples = realloc(watch->samples, watch->room * sizeof(*watch->samples));
        require(watch->samples != NULL);
    }
    if (process_size_read(watch->daemon->pid, &watch->samples[watch->count]))
        watch->count++;
}

struct process_size watch_last(const struct watch *watch)
{
    return watch->count != 0 ? watch->samples[watch->count - 1] : (struct process_size){0};
}

static bool is_judged(const struct watch *watch)
{
    return watch->count >= WATCH_JUDGED_S;
}

double watch_resident_spread(const struct watch *watch)
{
    uint64_t least = UINT64_MAX, most = 0;
    for (size_t i = WATCH_SETTLED_S; is_judged(watch) && i < watch->count; i++) {
        uint64_t resident = watch->samples[i].resident;
        least = resident < least ? resident : least;
        most = resident > most ? resident : most;
    }
    return most != 0 ? (double)(most - least) / (double)least : -1;
}

void watch_judge(const struct watch *watch)
{
    if (!is_judged(watch))
        return;
    const struct process_size then = watch->samples[WATCH_SETTLED_S], now = watch_last(watch);
    double spread = watch_resident_spread(watch);
    if (spread > SPREAD_MAX)
        complain("daemon %s: resident memory varied by %.1f %% after minute 3", watch->daemon->name, spread * 100);
    if (now.anonymous > then.anonymous + HEAP_MORE)
        complain("daemon %s: %" PRIu64 " KiB of heap at minute 3, %" PRIu64 " KiB in the end", watch->daemon->name,
                 then.anonymous / 1024, now.anonymous / 1024);
    if (now.descriptors > then.descriptors + DESCRIPTORS_MORE)
        complain("daemon %s: %u descriptors at minute 3, %u in the end", watch->daemon->name, then.descriptors,
                 now.descriptors);
}
