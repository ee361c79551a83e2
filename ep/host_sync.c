#include "ep/host.h"

#include <sched.h>
#include <time.h>

/* A wait looks at once, then lets others run, since ranks may be more than processors, then sleeps in between. */
#define LOOKS    64u
#define YIELDS   2000u
#define SLEEP_NS 20000

uint64_t ep_host_epoch(const struct ep_group_view *group, const struct ep_handle_view *handle, bool begin)
{
    if (begin)
        handle->state->epoch = ++group->state->epoch;
    return handle->state->epoch;
}

bool ep_host_active(const struct ep_group_view *group, uint32_t rank)
{
    return (group->state->active >> rank & 1) != 0;
}

bool ep_host_failed(const struct ep_group_view *group)
{
    return group->state->failed != 0;
}

void ep_host_fail(const struct ep_group_view *group, enum strait_status status, uint32_t rank)
{
    if (group->state->failed != 0)
        return;
    group->state->failed = status;
    __atomic_store_n(group->report, ep_report_pack(status, rank), __ATOMIC_RELEASE);
}

/* A rank that has not come: left out, or the end of the group. */
static void missing(const struct ep_group_view *group, uint32_t rank)
{
    if (!group->masked) {
        ep_host_fail(group, STRAIT_ERR_TIMEOUT, rank);
        return;
    }
    uint64_t none = 0;
    group->state->active &= ~(1ull << rank);
    __atomic_compare_exchange_n(group->report, &none, ep_report_pack(STRAIT_ERR_TIMEOUT, rank), false, __ATOMIC_RELEASE,
                                __ATOMIC_RELAXED);
}

void ep_host_signal(const struct ep_group_view *group, enum ep_flag kind, uint64_t epoch)
{
    for (uint32_t rank = 0; rank < group->rank_count; rank++)
        if (ep_host_active(group, rank))
            __atomic_store_n(ep_flag_of(group, rank, kind, group->rank), epoch, __ATOMIC_RELEASE);
}

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* False: the flag has not come by the deadline, which begins to run when the first look of the wait was in vain. */
static bool wait_flag(const uint64_t *flag, uint64_t epoch, uint64_t timeout_ns, uint64_t *deadline)
{
    for (uint32_t looked = 0; __atomic_load_n(flag, __ATOMIC_ACQUIRE) < epoch; looked++) {
        if (looked < LOOKS)
            continue;
        const uint64_t now = now_ns();
        if (*deadline == 0)
            *deadline = timeout_ns < UINT64_MAX - now ? now + timeout_ns : UINT64_MAX;
        else if (now >= *deadline)
            return false;
        if (looked < LOOKS + YIELDS)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    }
    return true;
}

bool ep_host_wait(const struct ep_group_view *group, enum ep_flag kind, uint64_t epoch)
{
    uint64_t deadline = 0;

    for (uint32_t rank = 0; rank < group->rank_count && !ep_host_failed(group); rank++)
        if (ep_host_active(group, rank) &&
            !wait_flag(ep_flag_of(group, group->rank, kind, rank), epoch, group->timeout_ns, &deadline))
            missing(group, rank);
    return !ep_host_failed(group);
}
