#include <cstring>
#include <utility>

#include "tests/emulated/state.h"

namespace emulated
{

// ---- Barriers in shared memory ------------------------------------------------------------------------------------

struct word {
    uint16_t parity : 1, arrivals : 15;
    uint16_t pending;
    int32_t bytes;
};
static_assert(sizeof(word) == sizeof(uint64_t), "it is in the source_line of the barrier");

static word load(const uint64_t *barrier)
{
    word w;
    if (reinterpret_cast<uintptr_t>(barrier) % 8 != 0)
        fail("a barrier is not aligned");
    memcpy(&w, barrier, sizeof(w));
    return w;
}

// A phase ends when all have arrived, and all bytes have.
static void store(uint64_t *barrier, word w)
{
    if (w.pending == 0 && w.bytes == 0) {
        w.parity ^= 1;
        w.pending = w.arrivals;
        record_progress();
    }
    memcpy(barrier, &w, sizeof(w));
}

void barrier_begin(uint64_t *barrier, uint32_t arrivals)
{
    word w = load(barrier);
    w.parity = 0, w.arrivals = arrivals & 0x7fff, w.pending = static_cast<uint16_t>(arrivals), w.bytes = 0;
    memcpy(barrier, &w, sizeof(w));
}

static void arrive(uint64_t *barrier, uint32_t arrivals, uint32_t bytes)
{
    word w = load(barrier);
    if (arrivals > w.pending)
        fail("more arrive than a barrier expects");
    if (bytes >= 1u << 20)
        fail("more bytes are announced than a barrier can count");
    w.pending = static_cast<uint16_t>(w.pending - arrivals);
    w.bytes += static_cast<int32_t>(bytes);
    store(barrier, w);
}

void barrier_arrive(uint64_t *barrier, uint32_t arrivals)
{
    arrive(barrier, arrivals, 0);
    pause();
}

void barrier_expect(uint64_t *barrier, uint32_t bytes)
{
    arrive(barrier, 1, bytes);
}

void barrier_expect_only(uint64_t *barrier, uint32_t bytes)
{
    arrive(barrier, 0, bytes);
}

bool barrier_passed(const uint64_t *barrier, uint32_t parity)
{
    return load(barrier).parity != (parity & 1);
}

void barrier_wait(uint64_t *barrier, uint32_t parity)
{
    pause();
    while (!barrier_passed(barrier, parity)) {
        lane *self = running();
        self->barrier = barrier;
        self->parity = parity;
        self->state = state::at_barrier;
        switch_to_scheduler();
    }
}

// ---- Named barriers -------------------------------------------------------------------------------------------------

static bool same(source_line a, source_line b)
{
    return a.line == b.line && strcmp(a.file, b.file) == 0;
}

bool sync_named(uint32_t id, uint32_t threads, bool value, source_line at)
{
    lane *self = running();
    thread_block *block = self->of->of;
    if (id >= NAMED_BARRIERS || threads > block->threads || threads % LANES != 0)
        fail("there is no such named barrier");
    named_barrier &barrier = block->named[id];
    self->last = at;
    if (barrier.arrived == 0)
        barrier.threads = threads, barrier.all = true, barrier.at = at;
    if (barrier.threads != threads || !same(barrier.at, at))
        fail("threads are at a named barrier on different lines");
    barrier.all = barrier.all && value;
    record_progress();
    if (++barrier.arrived == threads) {
        barrier.arrived = 0;
        barrier.generation++;
        return barrier.result = barrier.all;
    }
    self->named = id;
    self->generation = barrier.generation;
    self->state = state::at_named;
    switch_to_scheduler();
    return barrier.result;
}

void sync_block()
{
    sync_named(0, running()->of->of->threads, true, {"__syncthreads", 0});
}

// ---- Loads ----------------------------------------------------------------------------------------------------------

static void check_copy(const void *dst, const void *src, uint32_t bytes)
{
    if ((reinterpret_cast<uintptr_t>(dst) | reinterpret_cast<uintptr_t>(src) | bytes) % 16 != 0 || bytes == 0)
        fail("a copy has a size or an address that is no multiple of 16");
}

static void check_bulk(const void *dst, const void *src, uint32_t bytes)
{
    if (capability() < 90)
        fail("there are no bulk copies before 9.0");
    check_copy(dst, src, bytes);
}

struct bulk_load_state {
    void *dst;
    const void *src;
    uint32_t bytes;
    uint64_t *barrier;
};
static std::vector<bulk_load_state> bulk_loads;

void bulk_load(void *dst, const void *src, uint32_t bytes, uint64_t *barrier)
{
    check_bulk(dst, src, bytes);
    bulk_loads.push_back({dst, src, bytes, barrier});
    pause();
}

static void finish_bulk_load(uint32_t which)
{
    const bulk_load_state done = bulk_loads[which];
    bulk_loads[which] = bulk_loads.back();
    bulk_loads.pop_back();
    memcpy(done.dst, done.src, done.bytes);
    word w = load(done.barrier);
    w.bytes -= static_cast<int32_t>(done.bytes);
    if (w.bytes < 0)
        fail("more bytes come than a barrier expects");
    store(done.barrier, w);
}

// Loads of a lane up to its arrival.
struct lane_loads {
    std::vector<std::pair<void *, const void *>> under_way;
    uint64_t *barrier; // nullptr: the lane may load more
};
static std::vector<lane_loads *> of_lanes;

static lane_loads *open_loads()
{
    lane *self = running();
    if (self->loads == nullptr)
        of_lanes.push_back(self->loads = new lane_loads());
    return self->loads;
}

void lane_load(void *dst, const void *src)
{
    check_copy(dst, src, 16);
    open_loads()->under_way.push_back({dst, src});
}

void arrive_loaded(uint64_t *barrier)
{
    open_loads()->barrier = barrier;
    running()->loads = nullptr;
    pause();
}

static void finish_lane_loads(uint32_t which)
{
    lane_loads *done = of_lanes[which];
    for (const std::pair<void *, const void *> &one : done->under_way)
        memcpy(one.first, one.second, 16);
    done->under_way.clear();
    if (done->barrier == nullptr)
        return;
    arrive(done->barrier, 1, 0);
    of_lanes[which] = of_lanes.back();
    of_lanes.pop_back();
    delete done;
}

void finish_a_load()
{
    const uint32_t bulk = static_cast<uint32_t>(bulk_loads.size()), lanes = static_cast<uint32_t>(of_lanes.size());
    if (bulk + lanes == 0)
        return;
    const uint32_t which = random_below(bulk + lanes);
    if (which < bulk)
        finish_bulk_load(which);
    else
        finish_lane_loads(which - bulk);
    record_progress();
}

bool has_loads()
{
    return !bulk_loads.empty() || !of_lanes.empty();
}

// ---- Bulk copies ----------------------------------------------------------------------------------------------------

// What it would read must be there.
void bulk_prefetch(const void *src, uint32_t bytes)
{
    check_copy(src, src, bytes);
    for (uint32_t i = 0; i < bytes; i += 16)
        (void)static_cast<const volatile uint8_t *>(src)[i];
    (void)static_cast<const volatile uint8_t *>(src)[bytes - 1];
}

void bulk_store(void *dst, const void *src, uint32_t bytes)
{
    check_bulk(dst, src, bytes);
    running()->stores.push_back({dst, src, bytes, false, {}});
}

static void wait_a_while()
{
    for (uint32_t i = random_below(6); i > 0; i--)
        switch_to_scheduler();
}

// As late as can be.
void wait_read()
{
    wait_a_while();
    for (bulk_store_state &one : running()->stores) {
        const uint8_t *from = static_cast<const uint8_t *>(one.src);
        if (!one.is_read)
            one.data.assign(from, from + one.bytes);
        one.is_read = true;
    }
}

void wait_stores()
{
    wait_read();
    wait_a_while();
    for (const bulk_store_state &one : running()->stores)
        memcpy(one.dst, one.data.data(), one.bytes);
    running()->stores.clear();
}

} // namespace emulated
