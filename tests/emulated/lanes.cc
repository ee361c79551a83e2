#include "tests/emulated/lanes.h"

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/emulated/state.h"

namespace emulated
{

position *here;

static lane *current;
static uint64_t step, last_progress; // of the scheduler, in this launch
static const void *kernel, *kernel_parameters;
static std::vector<warp *> warps;

// ---- Compute capability ---------------------------------------------------------------------------------------------

static uint32_t of_gpu;

uint32_t capability()
{
    return of_gpu;
}

bool compiled_for(uint32_t capability)
{
    if (of_gpu != 0 && of_gpu != capability)
        fail("kernels are compiled for different compute capabilities");
    of_gpu = capability;
    return true;
}

// ---- Requests of lanes ----------------------------------------------------------------------------------------------

lane *running()
{
    return current;
}

uint32_t random_below(uint32_t limit)
{
    static uint64_t x;
    if (x == 0) {
        const char *seed = getenv("STRAIT_TEST_SEED");
        x = 0x9E3779B97F4A7C15ull ^ (seed == nullptr ? 0 : strtoull(seed, nullptr, 0) * 0xBF58476D1CE4E5B9ull);
    }
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return static_cast<uint32_t>(x >> 16) % limit;
}

void record_progress()
{
    last_progress = step;
}

static void print_lanes()
{
    for (const warp *w : warps)
        for (uint32_t i = 0; i < LANES; i++) {
            const lane *l = w->lanes[i], *before = w->lanes[i == 0 ? 0 : i - 1];
            if (i == 0 || l->state != before->state || l->last.line != before->last.line)
                fprintf(stderr, "block %u thread %u: %s after %s:%d\n", l->at.block.x, l->at.thread.x,
                        l->state == state::ready           ? "runs"
                        : l->state == state::in_collective ? "is in a warp collective"
                        : l->state == state::at_barrier    ? "is at a barrier"
                        : l->state == state::at_named      ? "is at a named barrier"
                                                           : "has ended",
                        l->last.file, l->last.line);
        }
}

void fail(const char *why)
{
    print_lanes();
    if (current != nullptr)
        fprintf(stderr, "in block %u, thread %u, after %s:%d: ", current->at.block.x, current->at.thread.x,
                current->last.file, current->last.line);
    fprintf(stderr, "%s\n", why);
    abort();
}

uint8_t *shared_memory()
{
    return current->of->of->shared;
}

void yield()
{
    switch_to_scheduler();
}

void pause()
{
    if (random_below(4) == 0)
        switch_to_scheduler();
}

// ---- Warp collectives -----------------------------------------------------------------------------------------------

static void check_collective(const warp *w, const lane *last)
{
    for (const lane *l : w->lanes)
        if (l->what != last->what || l->last.line != last->last.line || strcmp(l->last.file, last->last.file) != 0)
            fail("lanes of a warp are in different collectives");
}

// Lanes with the value of this one.
static uint32_t lanes_like(const warp *w, uint64_t value)
{
    uint32_t lanes = 0;
    for (uint32_t i = 0; i < LANES; i++)
        lanes |= static_cast<uint32_t>(w->lanes[i]->value == value) << i;
    return lanes;
}

static void complete_collective(warp *w, collective what)
{
    uint64_t sum = 0, either = 0, greatest = 0, least = ~0ull, ballot = 0, scan = 0;
    for (uint32_t i = 0; i < LANES; i++) {
        const uint64_t value = w->lanes[i]->value;
        sum += value;
        either |= value;
        greatest = value > greatest ? value : greatest;
        least = value < least ? value : least;
        ballot |= static_cast<uint64_t>(value != 0) << i;
    }
    for (lane *l : w->lanes) {
        scan += l->value;
        l->state = state::ready;
        l->result = what == collective::shuffle    ? w->lanes[l->argument % LANES]->value
                    : what == collective::ballot   ? ballot
                    : what == collective::any      ? ballot != 0
                    : what == collective::all      ? ballot == 0xffffffffu
                    : what == collective::add      ? sum
                    : what == collective::either   ? either
                    : what == collective::greatest ? greatest
                    : what == collective::least    ? least
                    : what == collective::scan     ? scan
                    : what == collective::match    ? lanes_like(w, l->value)
                                                   : 0;
    }
    w->arrived = 0;
}

uint64_t warp_collective(collective what, uint64_t value, uint32_t argument, source_line at)
{
    lane *self = current;
    warp *w = self->of;
    self->what = what, self->value = value, self->argument = argument, self->last = at;
    if (w->ended > 0)
        fail("lanes of the warp have ended");
    self->state = state::in_collective;
    record_progress();
    if (++w->arrived < LANES) {
        switch_to_scheduler();
    } else {
        check_collective(w, self);
        complete_collective(w, what);
        pause();
    }
    return self->result;
}

// ---- Fibers ---------------------------------------------------------------------------------------------------------

constexpr size_t STACK_BYTES = 128 << 10;
static std::vector<uint8_t *> stacks; // free ones
static void *scheduler_stack;

// Saves what a function must leave as it is, and goes on where another fiber did that.
extern "C" void emulated_switch(void **save, void *to);
asm(".text\n"
    ".globl emulated_switch\n"
    ".type emulated_switch, @function\n"
    "emulated_switch:\n"
    "    push %rbp\n    push %rbx\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
    "    mov %rsp, (%rdi)\n"
    "    mov %rsi, %rsp\n"
    "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbx\n    pop %rbp\n"
    "    ret\n"
    ".size emulated_switch, .-emulated_switch\n");

void switch_to_scheduler()
{
    emulated_switch(&current->stack_pointer, scheduler_stack);
}

static void run_lane()
{
    reinterpret_cast<void (*)(const void *)>(const_cast<void *>(kernel))(kernel_parameters);
    if (!current->stores.empty() || current->loads != nullptr)
        fail("a thread has ended before its bulk copies");
    current->state = state::ended;
    switch_to_scheduler();
}

static uint8_t *get_stack()
{
    if (stacks.empty()) {
        void *stack = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (stack == MAP_FAILED)
            fail("no memory for stacks");
        return static_cast<uint8_t *>(stack);
    }
    uint8_t *stack = stacks.back();
    stacks.pop_back();
    return stack;
}

static lane *make_lane(warp *of, const position &at)
{
    lane *l = new lane();
    l->at = at, l->of = of, l->stack = get_stack(), l->last = {"the beginning", 0};
    void **top = reinterpret_cast<void **>(l->stack + STACK_BYTES - 64);
    *--top = nullptr; // nobody returns there
    *--top = reinterpret_cast<void *>(run_lane);
    top -= 6; // registers
    l->stack_pointer = top;
    return l;
}

// ---- Scheduler ------------------------------------------------------------------------------------------------------

constexpr uint64_t STALL_STEPS = 2000000; // steps without progress: then nobody will make any

static thread_block *begin_block(uint32_t number, uint32_t blocks, uint32_t threads, uint32_t shared_bytes)
{
    thread_block *block = new thread_block();
    block->shared = static_cast<uint8_t *>(aligned_alloc(1024, (shared_bytes + 1023) / 1024 * 1024));
    memset(block->shared, 0xDB, shared_bytes);
    block->threads = threads, block->warps_left = threads / LANES;
    for (uint32_t first = 0; first < threads; first += LANES) {
        warp *w = new warp();
        w->of = block;
        for (uint32_t i = 0; i < LANES; i++)
            w->lanes[i] =
                make_lane(w, {make_uint3(first + i, 0, 0), make_uint3(number, 0, 0), dim3(threads), dim3(blocks)});
        warps.push_back(w);
    }
    return block;
}

static bool can_run(const lane *l)
{
    switch (l->state) {
    case state::ready:
        return true;
    case state::at_barrier:
        return barrier_passed(l->barrier, l->parity);
    case state::at_named:
        return l->of->of->named[l->named].generation != l->generation;
    default:
        return false;
    }
}

static void run_warp(warp *w)
{
    const uint32_t first = random_below(LANES);
    for (uint32_t i = 0; i < LANES; i++) {
        lane *l = w->lanes[(first + i) % LANES];
        if (!can_run(l))
            continue;
        if (l->state != state::ready)
            record_progress();
        l->state = state::ready;
        current = l, here = &l->at;
        emulated_switch(&scheduler_stack, l->stack_pointer);
        current = nullptr;
        if (l->state == state::ended)
            w->ended++, record_progress();
    }
}

// Whether it was the last of its block.
static bool end_warp(uint32_t number)
{
    warp *w = warps[number];
    thread_block *block = w->of;
    warps[number] = warps.back();
    warps.pop_back();
    for (lane *l : w->lanes) {
        stacks.push_back(l->stack);
        delete l;
    }
    delete w;
    if (--block->warps_left > 0)
        return false;
    free(block->shared);
    delete block;
    return true;
}

// Some warps sleep now and then, for as long as this launch likes, while others can do something.
static bool sleeps(warp *w, uint32_t often, uint32_t long_at_most)
{
    if (often != 0 && random_below(often) == 0)
        w->asleep_until = step + random_below(long_at_most);
    return w->asleep_until > step && step - last_progress < 2000;
}

// How long a launch that makes no progress waits for other processes, of EMULATED_WAIT_SECONDS; 0: there are none.
static uint64_t wait_limit_ns()
{
    static const char *seconds = getenv("EMULATED_WAIT_SECONDS");
    return seconds != nullptr ? strtoull(seconds, nullptr, 10) * 1000000000u : 0;
}

static uint64_t clock_ns()
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

// After steps without progress. `since`: when this was first so, 0 not yet. False: nobody will make any.
static bool may_go_on(uint64_t &since)
{
    since = since == 0 ? clock_ns() : since;
    usleep(50);
    return clock_ns() - since < wait_limit_ns();
}

void run_launch(const void *function, const void *parameters, uint32_t blocks, uint32_t threads, uint32_t shared_bytes)
{
    static const uint32_t sleepers[4][2] = {{0, 1}, {2000, 20000}, {300, 3000}, {40, 400}};
    const uint32_t *habit = sleepers[random_below(4)], room = 2 + random_below(blocks); // blocks side by side
    uint32_t begun = 0, side_by_side = 0;
    const uint64_t stall = wait_limit_ns() > 0 ? 5000 : STALL_STEPS;
    uint64_t since = 0;
    kernel = function, kernel_parameters = parameters;
    for (step = last_progress = 0; begun < blocks || !warps.empty(); step++) {
        if (begun < blocks && side_by_side < room && (side_by_side == 0 || random_below(50) == 0)) {
            begin_block(begun++, blocks, threads, shared_bytes);
            side_by_side++;
        }
        if (random_below(3) == 0)
            finish_a_load();
        if (step - last_progress <= stall)
            since = 0;
        else if (!may_go_on(since))
            fail("the launch does not end");
        const uint32_t number = random_below(static_cast<uint32_t>(warps.size()));
        if (sleeps(warps[number], habit[0], habit[1]))
            continue;
        run_warp(warps[number]);
        if (warps[number]->ended == LANES && end_warp(number))
            side_by_side--;
    }
    if (has_loads())
        fail("the launch has ended before its bulk copies");
}

} // namespace emulated
