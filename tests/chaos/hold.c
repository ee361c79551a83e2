#include "tests/chaos/inject.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define HOLD_MS 3000u /* after this time the driver is taken for dead */

struct chaos_shared *hold_begin(struct chaos_side **side)
{
    const char *value = getenv(CHAOS_VARIABLE);
    const char *colon = value != NULL ? strrchr(value, ':') : NULL;
    char path[256];
    if (colon == NULL || (size_t)(colon - value) >= sizeof(path))
        return NULL;
    memcpy(path, value, (size_t)(colon - value));
    path[colon - value] = 0;
    struct chaos_shared *shared = MAP_FAILED;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0)
        shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED)
        abort();
    close(fd);
    *side = &shared->sides[colon[1] == '1'];
    return shared;
}

bool hold_take_one(_Atomic uint32_t *counter)
{
    uint32_t left = atomic_load(counter);
    while (left > 0)
        if (atomic_compare_exchange_weak(counter, &left, left - 1))
            return true;
    return false;
}

bool hold_reached(struct chaos_side *side, int at)
{
    uint32_t wanted = (uint32_t)at + 1;
    atomic_fetch_add(&side->hits[at], 1);
    return atomic_load(&side->armed) == wanted && !hold_take_one(&side->skip) &&
           atomic_compare_exchange_strong(&side->armed, &wanted, 0);
}

void hold_rest(long microseconds)
{
    const struct timespec time = {.tv_sec = microseconds / 1000000, .tv_nsec = microseconds % 1000000 * 1000};
    nanosleep(&time, NULL);
}

static uint64_t now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000u + (uint64_t)time.tv_nsec / 1000000u;
}

void hold(struct chaos_side *side)
{
    uint64_t until = now_ms() + HOLD_MS;
    atomic_store(&side->held, 1);
    while (atomic_load(&side->go) == 0 && now_ms() < until)
        hold_rest(200);
    atomic_store(&side->held, 0);
}
