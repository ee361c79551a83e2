/* The kernels of collective/engine/exchange.h: its text, with blocks of one thread, which take turns. */
#include <string.h>
#include <unistd.h>

#include "tests/coll_fake/exchange_thread.h"
#include "tests/fakes/gpu.h"
#include "tests/coll_fake/kernels.h"

static _Thread_local uint64_t bytes_taken; /* by the kernel that runs */

EXCHANGE_FN void exchange_put(uint8_t *slot, const uint8_t *values, uint64_t bytes)
{
    atomic_fetch_add(&fake_gpu.offered, 1);
    memcpy(slot, values, bytes);
}

EXCHANGE_FN void exchange_take(uint8_t *values, const uint8_t *slot, uint64_t bytes)
{
    atomic_fetch_add(&fake_gpu.taken, 1);
    bytes_taken += bytes;
    memcpy(values, slot, bytes);
}

#include "collective/engine/exchange.h"

enum { BLOCKS_MAX = 128, PAUSE_US = 100 };

struct running {
    struct gpu_exchange call;
    coll_stream stream;
};

/* Of one block. True: it is over. */
static bool turn(const struct gpu_exchange *call, struct exchange_block *block, bool waits, uint64_t *waited_ns)
{
    enum exchange_state state = exchange_step(call, block);
    *waited_ns = state == EXCHANGE_MOVED ? 0 : *waited_ns;
    return state == EXCHANGE_DONE || (state == EXCHANGE_WAITS && !waits);
}

static void give_up(struct host_status *host_status)
{
    __atomic_store_n(&host_status->failed, (uint32_t)STRAIT_ERR_IO, __ATOMIC_RELEASE);
    __atomic_store_n(&host_status->abort, 1, __ATOMIC_RELEASE);
}

/* Branches of a fake graph run one after another: there the one beside cannot wait for what comes behind it. */
static void move_all(coll_stream stream, const struct running *running)
{
    const struct gpu_exchange call = running->call;
    const bool waits = call.kind == EXCHANGE_BEHIND || stream == running->stream;
    const uint64_t hurry = fake_gpu.hurry != 0 ? fake_gpu.hurry : 1;
    const uint32_t count = ring_blocks(&call.rings);
    struct exchange_block blocks[BLOCKS_MAX];
    uint64_t waited_ns[BLOCKS_MAX] = {0};
    bool over[BLOCKS_MAX] = {false};
    demand(count > 0 && count <= BLOCKS_MAX);
    if ((fake_gpu.lost >> fake_stream_device(stream) & 1) != 0)
        return;
    for (uint32_t i = 0; i < count; i++)
        blocks[i] = exchange_begin(&call, i);
    for (uint32_t left = count; left > 0 && __atomic_load_n(&call.host_status->abort, __ATOMIC_ACQUIRE) == 0;) {
        bool moved = false;
        for (uint32_t i = 0; i < count; i++) {
            const uint64_t before = waited_ns[i];
            if (over[i])
                continue;
            over[i] = turn(&call, &blocks[i], waits, &waited_ns[i]);
            left -= over[i];
            waited_ns[i] += PAUSE_US * 1000 * hurry;
            moved |= over[i] || waited_ns[i] <= before;
            if (over[i] || waited_ns[i] < exchange_patience(&call, &blocks[i]))
                continue;
            if (!exchange_fails(&call))
                return;
            give_up(call.host_status);
        }
        if (!moved)
            usleep(PAUSE_US);
    }
}

static void run_exchange(coll_stream stream, void *argument)
{
    bytes_taken = 0;
    move_all(stream, argument);
    fake_pass_time(stream, (double)fake_gpu.ring_fs * 1e-15 * (double)bytes_taken);
}

void kernel_exchange(const struct gpu_exchange *exchange, coll_stream stream)
{
    const struct running running = {*exchange, stream};
    fake_queue(stream, run_exchange, NULL, &running, sizeof(running));
}
