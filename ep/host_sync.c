#include "ep/host.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A wait looks for some microseconds, then sleeps until it is woken: ranks may be more than processors. It looks again
 * after SLEEP_NS, as a rank may be killed between its signal and the waking. */
#define LOOKS    200u
#define SLEEP_NS 20000000u

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

static struct ep_wake *wake_of(const struct ep_group_view *group, uint32_t rank)
{
    return (struct ep_wake *)(group->arenas[rank] + group->at.wake);
}

/* Either the sleeper sees the flag, or this sees that it sleeps: both store before they load, in one order for all. */
void ep_host_set_flag(const struct ep_group_view *group, uint32_t owner, enum ep_flag kind, uint32_t by, uint64_t epoch)
{
    struct ep_wake *wake = wake_of(group, owner);

    __atomic_store_n(ep_flag_of(group, owner, kind, by), epoch, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&wake->sleeps, __ATOMIC_SEQ_CST) == 0)
        return;
    __atomic_add_fetch(&wake->number, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &wake->number, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* The manifest of a signal, which begins with its first range. */
static struct ep_manifest *manifest_of(const struct ep_group_view *group, uint32_t rank, enum ep_flag kind,
                                       uint64_t epoch)
{
    struct ep_manifest *manifest = ep_manifest_of(group, kind, epoch, rank);

    if (__atomic_load_n(&manifest->value, __ATOMIC_RELAXED) != epoch) {
        manifest->count = 0;
        __atomic_store_n(&manifest->value, epoch, __ATOMIC_RELAXED);
    }
    return manifest;
}

void ep_host_add_range(const struct ep_group_view *group, uint32_t rank, enum ep_flag kind, uint64_t epoch,
                       const void *memory, uint64_t bytes)
{
    const uint8_t *at = memory, *own = group->arenas[group->rank];

    if (!ep_is_remote(group, rank) || bytes == 0)
        return;
    struct ep_manifest *manifest = manifest_of(group, rank, kind, epoch);
    const bool of_sender = (uintptr_t)at - (uintptr_t)own < group->at.bytes;
    manifest->ranges[manifest->count++] =
        (struct ep_range){.offset = (uint64_t)(at - (of_sender ? own : group->arenas[rank])),
                          .bytes = bytes,
                          .rows = 1,
                          .flags = of_sender ? EP_OF_SENDER : 0};
}

void ep_host_add_listed(const struct ep_group_view *group, uint32_t rank, enum ep_flag kind, uint64_t epoch,
                        uint32_t rows, uint32_t row_bytes)
{
    if (!ep_is_remote(group, rank) || rows == 0)
        return;
    struct ep_manifest *manifest = manifest_of(group, rank, kind, epoch);
    manifest->ranges[manifest->count++] =
        (struct ep_range){.offset = (uint64_t)(ep_rows_of(group, rank, epoch, row_bytes, 0) - group->arenas[rank]),
                          .bytes = row_bytes,
                          .rows = rows,
                          .flags = EP_LISTED};
}

void ep_host_signal(const struct ep_group_view *group, enum ep_flag kind, uint64_t epoch)
{
    for (uint32_t rank = 0; rank < group->rank_count; rank++) {
        if (!ep_host_active(group, rank))
            continue;
        ep_host_set_flag(group, rank, kind, group->rank, epoch);
        if (!ep_is_remote(group, rank))
            continue;
        (void)manifest_of(group, rank, kind, epoch); /* of a signal about nothing */
        __atomic_store_n(ep_signal_of(group, kind, rank), epoch, __ATOMIC_RELEASE);
    }
}

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bool is_set(const uint64_t *flag, uint64_t epoch)
{
    return __atomic_load_n(flag, __ATOMIC_SEQ_CST) >= epoch;
}

/* False: the flag has not come by the deadline, which begins to run when the first wait was in vain. */
static bool wait_flag(struct ep_wake *wake, const uint64_t *flag, uint64_t epoch, uint64_t timeout_ns,
                      uint64_t *deadline)
{
    for (uint32_t looked = 0; looked < LOOKS; looked++)
        if (is_set(flag, epoch))
            return true;
    for (;;) {
        const uint64_t now = now_ns();
        if (*deadline == 0)
            *deadline = timeout_ns < UINT64_MAX - now ? now + timeout_ns : UINT64_MAX;
        if (now >= *deadline)
            return is_set(flag, epoch);
        const uint64_t left = *deadline - now;
        const struct timespec most = {.tv_nsec = left < SLEEP_NS ? (long)left : (long)SLEEP_NS};
        const uint32_t number = __atomic_load_n(&wake->number, __ATOMIC_SEQ_CST);
        __atomic_store_n(&wake->sleeps, 1, __ATOMIC_SEQ_CST);
        if (!is_set(flag, epoch))
            syscall(SYS_futex, &wake->number, FUTEX_WAIT, number, &most, NULL, 0);
        __atomic_store_n(&wake->sleeps, 0, __ATOMIC_SEQ_CST);
        if (is_set(flag, epoch))
            return true;
    }
}

bool ep_host_wait(const struct ep_group_view *group, enum ep_flag kind, uint64_t epoch)
{
    uint64_t deadline = 0;

    for (uint32_t rank = 0; rank < group->rank_count && !ep_host_failed(group); rank++)
        if (ep_host_active(group, rank) &&
            !wait_flag(wake_of(group, group->rank), ep_flag_of(group, group->rank, kind, rank), epoch,
                       group->timeout_ns, &deadline))
            missing(group, rank);
    return !ep_host_failed(group);
}
