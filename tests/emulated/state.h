// State that the parts of the emulated GPU share.
#ifndef STRAIT_TESTS_EMULATED_STATE_H
#define STRAIT_TESTS_EMULATED_STATE_H

#include <vector>

#include "tests/emulated/lanes.h"

namespace emulated
{

enum class state { ready, in_collective, at_barrier, at_named, ended };

struct thread_block;
struct warp;

struct bulk_store_state {
    void *dst;
    const void *src;
    uint32_t bytes;
    bool is_read;
    std::vector<uint8_t> data;
};

struct lane_loads;

struct lane {
    position at;
    void *stack_pointer;
    uint8_t *stack;
    emulated::state state;
    warp *of;
    // Operands and result of a warp collective.
    collective what;
    uint64_t value, result;
    uint32_t argument;
    source_line last;
    // Barrier, or bulk stores, that the lane waits for.
    const uint64_t *barrier;
    uint32_t parity, named, generation;
    std::vector<bulk_store_state> stores;
    lane_loads *loads; // that the lane has not yet arrived for; nullptr: none
};

constexpr uint32_t LANES = 32, NAMED_BARRIERS = 16;

struct warp {
    lane *lanes[LANES];
    thread_block *of;
    uint32_t arrived, ended;
    uint64_t asleep_until;
};

struct named_barrier {
    uint32_t arrived, threads, generation;
    bool all, result;
    source_line at;
};

struct thread_block {
    uint8_t *shared;
    uint32_t threads, warps_left;
    named_barrier named[NAMED_BARRIERS];
};

lane *running(); // NULL in the scheduler
uint32_t random_below(uint32_t limit);
// Tells the scheduler that the launch is not stuck.
void record_progress();
void switch_to_scheduler();
[[noreturn]] void fail(const char *why);
uint32_t capability(); // times 10
// Lets one load that is under way arrive, if there is one.
void finish_a_load();
bool has_loads();

// Runs a kernel, which takes its parameters by reference, to its end.
void run_launch(const void *function, const void *parameters, uint32_t blocks, uint32_t threads, uint32_t shared_bytes);

} // namespace emulated
#endif
