/* Check's record of the last assertion that held, made affordable. Check writes one to a file for every assertion, and
 * its parent reads them all: of a suite with a million assertions that is most of the time. The record matters only
 * where a test crashes or is ended, to say after which assertion that was. A failed assertion names its own place.
 *
 * This takes the place of Check's function in programs linked with --wrap=_mark_point. */
#include <stdatomic.h>
#include <time.h>

void __real__mark_point(const char *file, int line);
void __wrap__mark_point(const char *file, int line);

enum { EXACT = 1000 };

/* Passes on the first records of each test's process, and then one in each tick of the system's coarse clock, which is
 * at most 10 ms: a crash is told with an assertion not much before it. */
void __wrap__mark_point(const char *file, int line)
{
    static atomic_int count;
    static _Atomic long last;
    if (atomic_load_explicit(&count, memory_order_relaxed) >= EXACT) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
        if (atomic_exchange_explicit(&last, now.tv_nsec, memory_order_relaxed) == now.tv_nsec)
            return;
    } else {
        atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
    }
    __real__mark_point(file, line);
}
