/* Phases on GPUs against their twins on processors, bit for bit. Ranks run phase after phase in one process, so that no
 * kernel ever waits: with memory of the host that a GPU reaches, or on the emulator of kernels. After each phase all
 * memory of all ranks is compared: arenas, handles, outputs, state. Coded groups are compared with groups that are not,
 * but for rows in arenas.
 *
 *   ep_phases [groups [seed [small [state]]]]   small: few tokens with short rows, so that many shapes are tried in
 * little time; state: of the generator, as it was told of the group that failed
 */
#include <cuda_runtime_api.h>
#include <string.h>

#include "ep/cuda/backend.h"
#include "ep/cuda/phases.h"
#include "ep/host.h"
#include "tests/support.h"

#define require_cuda(call) require((call) == cudaSuccess)

enum { RANKS = 40, PIECES = 40, MULTIPROCESSORS = 3 };

/* Memory of a rank that is compared. */
struct piece {
    const char *name;
    uint8_t *memory;
    uint64_t bytes;
};

struct rank {
    struct ep_group_view group;
    struct ep_handle_view handle;
    struct piece pieces[PIECES];
    uint32_t piece_count, lasting; /* all; those that are not of a call alone */
    void *scratch;
    struct ep_cuda cuda; /* of GPUs */
    void *own;
    /* Of the step. */
    uint8_t *topk, *rows, *scales, *expert_rows, *scales_out, *sums;
    float *weights, *gradients;
    int32_t *counts;
    void *topk_out;
};

/* The same ranks here and there. */
struct world {
    bool cuda;
    struct rank ranks[RANKS];
};

static struct world worlds[2] = {{.cuda = false}, {.cuda = true}};
static struct rng rng;
static struct ep_host host; /* not coded: nothing in it */
static struct strait_ep_config config;
static struct ep_arena at;
static uint32_t coded_groups;
static uint64_t shapes;
static bool small;
static uint64_t group_state; /* of the generator, before the group was drawn */
static uint64_t phases, failures, survived, damaged;
static bool with_codec; /* there is a codec for this GPU */
static bool coded, far; /* worlds[1]: coded; its own rows are not in arenas */
static uint64_t hosts;  /* bit r: rank r is on the second of two hosts; 0: there is one. Replicas are the arenas */
static bool hostile;    /* kernels run alone, on what no rank would write, and must not touch other memory */
/* Of the step. */
static struct {
    enum strait_ep_layout layout;
    enum strait_element type;
    uint32_t topk, alignment, tokens[RANKS], row_bytes, scale_bytes, number_bytes, row_count;
    bool weights, scales, global_ids, wide_ids, gradients, heap, peers, wants;
    bool own;        /* rows of ranks for themselves stay out of the arenas */
    bool raw;        /* of a coded group, as one whose calls choose has them */
    uint64_t absent; /* ranks that do nothing */
} step;

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static void *allocate(const struct world *world, uint64_t bytes)
{
    void *memory;

    if (bytes == 0)
        bytes = 16;
    if (world->cuda)
        require_cuda(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped));
    else
        require((memory = malloc(bytes)) != NULL);
    memset(memory, 0, bytes);
    return memory;
}

/* Of the state: atomic operations of GPUs are at home in their own memory. */
static struct ep_state *allocate_state(const struct world *world)
{
    void *memory;

    if (!world->cuda)
        return allocate(world, sizeof(struct ep_state));
    require_cuda(cudaMallocManaged(&memory, sizeof(struct ep_state), cudaMemAttachGlobal));
    memset(memory, 0, sizeof(struct ep_state));
    return memory;
}

static void release_state(const struct world *world, struct ep_state *state)
{
    if (world->cuda)
        require_cuda(cudaFree(state));
    else
        free(state);
}

static void release(const struct world *world, void *memory)
{
    if (world->cuda)
        require_cuda(cudaFreeHost(memory));
    else
        free(memory);
}

static void *piece(struct world *world, struct rank *rank, const char *name, uint64_t bytes)
{
    require(rank->piece_count < PIECES);
    struct piece *made = &rank->pieces[rank->piece_count++];
    *made = (struct piece){name, allocate(world, bytes), bytes};
    return made->memory;
}

/* Bytes of the same value in both worlds. */
static void fill(uint8_t *memory, uint64_t bytes, uint64_t seed)
{
    struct rng own = rng_init(seed);
    for (uint64_t i = 0; i < bytes; i++)
        memory[i] = (uint8_t)rng_next(&own);
}

static void drop_pieces(struct world *world, struct rank *rank, uint32_t kept)
{
    while (rank->piece_count > kept)
        release(world, rank->pieces[--rank->piece_count].memory);
}

/* ---- Comparison -------------------------------------------------------------------------------------------------- */

static void differ(const char *phase, uint32_t rank, const char *what, uint64_t place)
{
    fprintf(stderr, "%s: rank %u of %u: %s differs at %llu (%s, layout %d, type %d, topk %u, row %u)\n", phase, rank,
            config.rank_count, what, (unsigned long long)place, config.algorithm == STRAIT_EP_LOW_LATENCY ? "LL" : "HT",
            (int)step.layout, (int)step.type, step.topk, step.row_bytes);
    fprintf(stderr, "the generator's state before this group: %#llx\n", (unsigned long long)group_state);
    abort();
}

static void compare_bytes(const char *phase, uint32_t rank, const char *what, const void *a, const void *b,
                          uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes && memcmp(a, b, bytes) != 0; i++)
        if (((const uint8_t *)a)[i] != ((const uint8_t *)b)[i])
            differ(phase, rank, what, i);
}

static bool any_failed(void)
{
    bool failed = false;
    for (uint32_t rank = 0; rank < config.rank_count; rank++)
        failed |= worlds[0].ranks[rank].group.state->failed != 0;
    return failed;
}

/* Where a rank has failed outputs are undefined, but not epochs and signals. */
static void compare(const char *phase, uint32_t rank)
{
    const struct rank *a = &worlds[0].ranks[rank], *b = &worlds[1].ranks[rank];
    const struct ep_state *one = a->group.state, *other = b->group.state;

    if (one->epoch != other->epoch || one->active != other->active || one->failed != other->failed ||
        a->handle.state->epoch != b->handle.state->epoch || *a->group.report != *b->group.report) {
        fprintf(stderr, "epochs %llu %llu, active %llx %llx, failed %d %d, report %llx %llx\n",
                (unsigned long long)one->epoch, (unsigned long long)other->epoch, (unsigned long long)one->active,
                (unsigned long long)other->active, one->failed, other->failed, (unsigned long long)*a->group.report,
                (unsigned long long)*b->group.report);
        differ(phase, rank, "state", 0);
    }
    for (int i = 0; i < COUNT(other->tickets); i++)
        require(other->tickets[i] == 0);
    const uint64_t flags = (uint64_t)EP_FLAG_KINDS * config.rank_count * sizeof(uint64_t);
    compare_bytes(phase, rank, "flags", a->group.arenas[rank] + at.flags, b->group.arenas[rank] + at.flags, flags);
    if (any_failed())
        return;
    for (uint32_t i = 0; i < a->piece_count; i++) {
        const struct piece *x = &a->pieces[i], *y = &b->pieces[i];
        const uint64_t bytes = i == 0 && (coded || far) ? at.rows : x->bytes;
        compare_bytes(phase, rank, x->name, x->memory, y->memory, bytes);
    }
}

/* Runs a phase that moves rows. */
#define RUN_ROWS(name)                                                                   \
    static void run_##name(const struct rank *rank, const struct ep_##name##_args *args) \
    {                                                                                    \
        require(ep_cuda_run_##name(&rank->cuda, args, NULL));                            \
    }
#define RUN(name)                                                                        \
    static void run_##name(const struct rank *rank, const struct ep_##name##_args *args) \
    {                                                                                    \
        (void)rank;                                                                      \
        require_cuda(ep_cuda_##name(args, MULTIPROCESSORS, NULL));                       \
    }
RUN(route)
RUN_ROWS(announce)
RUN_ROWS(send)
RUN(plan)
RUN_ROWS(receive)
RUN_ROWS(stage)
RUN_ROWS(send_back)
RUN_ROWS(reduce)
RUN(settle)

/* Runs a phase on all ranks in both worlds and compares. `args` is an expression of `r`, a rank. */
#define PHASE(name, type, ...)                                                                  \
    do {                                                                                        \
        for (int w = hostile; w < 2; w++)                                                       \
            for (uint32_t i = 0; i < config.rank_count; i++) {                                  \
                const struct rank *r = &worlds[w].ranks[i];                                     \
                const struct type args = {.group = r->group, .handle = r->handle, __VA_ARGS__}; \
                if ((step.absent >> i & 1) != 0)                                                \
                    continue;                                                                   \
                if (worlds[w].cuda)                                                             \
                    run_##name(r, &args);                                                       \
                else                                                                            \
                    require(ep_host_##name(&host, &args, NULL) == STRAIT_OK);                   \
            }                                                                                   \
        require_cuda(cudaDeviceSynchronize());                                                  \
        for (uint32_t i = 0; i < config.rank_count && !hostile; i++)                            \
            compare(#name, i);                                                                  \
        phases++;                                                                               \
    } while (0)

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

static bool one_in(uint32_t n)
{
    return rng_below(&rng, n) == 0;
}

static void draw_config(void)
{
    const bool many = !small && one_in(12), long_rows = !small && one_in(8);
    const uint32_t ranks = small  ? 1 + rng_below(&rng, 3)
                           : many ? 33 + rng_below(&rng, RANKS - 32)
                                  : 1 + rng_below(&rng, 6);

    config = (struct strait_ep_config){.rank_count = ranks,
                                       .algorithm = one_in(2) ? STRAIT_EP_LOW_LATENCY : STRAIT_EP_HIGH_THROUGHPUT};
    config.experts =
        ranks * (!small && one_in(10) ? 1 + rng_below(&rng, STRAIT_EP_EXPERTS_MAX / ranks) : 1 + rng_below(&rng, 6));
    config.tokens_max = small || many || long_rows ? 1 + rng_below(&rng, 4) : 1 + rng_below(&rng, one_in(6) ? 220 : 24);
    config.row_bytes_max = 16 * (long_rows ? 1 + rng_below(&rng, 2000) : 1 + rng_below(&rng, small ? 4 : 12));
    config.scale_bytes_max = one_in(2) ? 4 * rng_below(&rng, 6) : 0;
    config.topk_max = 1 + rng_below(&rng, !small && one_in(6) ? STRAIT_EP_TOPK_MAX : small ? 4 : 8);
    config.overflow = one_in(6) ? STRAIT_EP_TRAP : STRAIT_EP_DROP;
    config.mask = config.algorithm == STRAIT_EP_LOW_LATENCY && one_in(3);
    config.heap_bytes = one_in(2) ? (uint64_t)config.row_bytes_max * ranks * config.tokens_max : 0;
    config.receive_max = one_in(3) ? 1 + rng_below(&rng, ranks * config.tokens_max) : 0;
    config.sm_budget = 1 + rng_below(&rng, small ? 2 : 4);
    far = one_in(3);
    coded = with_codec && ranks * ranks * config.tokens_max * config.topk_max <= 400 && one_in(small ? 8 : 2);
    hosts = one_in(3) ? rng_next(&rng) & ((1ull << ranks) - 1) : 0;
    far |= hosts != 0;
    const bool parts = (hosts != 0 ? coded : far || coded) && config.algorithm == STRAIT_EP_HIGH_THROUGHPUT;
    const uint32_t most = hosts != 0 ? 1 : EP_PARTS_MAX;
    require(ep_arena_plan(&config, coded ? EP_ROWS_CODED : EP_ROWS_RAW, parts ? 1 + rng_below(&rng, most) : 0, &at) ==
            STRAIT_OK);
}

static void open_cuda(struct rank *rank)
{
    const struct ep_open_args args = {.config = &config, .at = at, .coded = true, .coding = &rank->group.coding};

    rank->cuda = (struct ep_cuda){.multiprocessors = MULTIPROCESSORS, .far = far, .own = rank->own};
    require_cuda(cudaGetDevice(&rank->cuda.device));
    require_cuda(cudaStreamCreateWithFlags(&rank->cuda.stream, cudaStreamNonBlocking));
    require(at.parts == 0 || ep_cuda_side_open(&rank->cuda) == STRAIT_OK);
    require(!coded || ep_cuda_coder_open(&rank->cuda, &args) == STRAIT_OK);
}

static void close_cuda(struct rank *rank)
{
    ep_cuda_coder_close(&rank->cuda);
    ep_cuda_side_close(&rank->cuda);
    require_cuda(cudaStreamDestroy(rank->cuda.stream));
}

/* What tells a proxy. That of coded rows is another than that of raw ones. */
static void make_signals(struct world *world, struct rank *rank)
{
    struct ep_group_view *view = &rank->group;
    const uint32_t before = rank->piece_count;
    const uint64_t ranks = config.rank_count, all = ((uint64_t)config.topk_max + 1) * config.tokens_max;

    view->remote = (hosts >> view->rank & 1) != 0 ? ~hosts & ((1ull << ranks) - 1) : hosts;
    view->place_count = (uint32_t)all;
    view->signals = piece(world, rank, "signals", EP_FLAG_KINDS * ranks * sizeof(*view->signals));
    view->manifests = piece(world, rank, "manifests", EP_FLAG_KINDS * EP_MANIFESTS * ranks * sizeof(*view->manifests));
    view->places = piece(world, rank, "places", EP_BUFFERS_LL * ranks * all * sizeof(*view->places));
    for (uint32_t i = before; i < rank->piece_count && coded; i++)
        rank->pieces[i].bytes = 0;
}

static void make_view(struct world *world, uint32_t number)
{
    struct rank *rank = &world->ranks[number];
    struct ep_group_view *view = &rank->group;
    const uint32_t all = config.rank_count * config.tokens_max;

    *view = (struct ep_group_view){.at = at,
                                   .timeout_ns = 1,
                                   .rank = number,
                                   .rank_count = config.rank_count,
                                   .experts = config.experts,
                                   .local_experts = config.experts / config.rank_count,
                                   .tokens_max = config.tokens_max,
                                   .topk_max = config.topk_max,
                                   .sm_budget = config.sm_budget,
                                   .low_latency = config.algorithm == STRAIT_EP_LOW_LATENCY,
                                   .masked = config.mask,
                                   .drop = config.overflow == STRAIT_EP_DROP};
    view->coded = world->cuda && coded;
    rank->own = world->cuda && (coded || far) ? allocate(world, at.row_buffers * at.rows_stride) : NULL;
    view->coding.own = rank->own;
    if (world->cuda)
        open_cuda(rank);
    view->receive_max = config.receive_max != 0 && config.receive_max < all ? config.receive_max : all;
    view->state = allocate_state(world);
    view->report = allocate(world, sizeof(*view->report));
    view->state->active = (1ull << config.rank_count) - 1;
    if (config.mask && step.absent != 0 && (step.absent >> 62) != 0) /* left out before */
        view->state->active &= ~step.absent;
    for (uint32_t r = 0; r < config.rank_count; r++)
        view->arenas[r] = world->ranks[r].pieces[0].memory;
    if (hosts != 0)
        make_signals(world, rank);
    rank->lasting = rank->piece_count;
}

static void make_group(void)
{
    for (int w = 0; w < 2; w++) {
        for (uint32_t r = 0; r < config.rank_count; r++) {
            worlds[w].ranks[r].piece_count = 0;
            piece(&worlds[w], &worlds[w].ranks[r], "the arena", at.bytes);
        }
        for (uint32_t r = 0; r < config.rank_count; r++)
            make_view(&worlds[w], r);
    }
}

static void make_handle(struct world *world, struct rank *rank)
{
    const uint64_t ranks = config.rank_count, tokens = config.tokens_max, topk = step.topk;
    struct ep_handle_view *view = &rank->handle;

    *view = (struct ep_handle_view){.layout = step.layout, .topk = step.topk, .expert_alignment = step.alignment};
    view->state = allocate(world, sizeof(*view->state));
    view->own_topk = piece(world, rank, "own_topk", tokens * topk * 4);
    view->send_index = piece(world, rank, "send_index", tokens * ranks * 4);
    view->send_token = piece(world, rank, "send_token", ranks * tokens * 4);
    view->send_count = piece(world, rank, "send_count", ranks * 4);
    view->send_base = piece(world, rank, "send_base", ranks * 4);
    view->recv_count = piece(world, rank, "recv_count", ranks * 4);
    view->recv_base = piece(world, rank, "recv_base", ranks * 4);
    view->numbers = piece(world, rank, "numbers", ranks * tokens * (topk + 1) * 4);
    view->expert_row = piece(world, rank, "expert_row", ranks * tokens * topk * 4);
    view->totals = piece(world, rank, "totals", (2 + rank->group.local_experts) * 4);
    view->weights = piece(world, rank, "weights", tokens * topk * 4);
    view->scratch = rank->scratch = allocate(world, ep_cuda_scratch_bytes(&rank->group));
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

static bool low_latency(void)
{
    return config.algorithm == STRAIT_EP_LOW_LATENCY;
}

/* Rows that a tensor of a dispatch has room for. */
static uint32_t rows_of_tensor(void)
{
    const uint32_t all = config.rank_count * config.tokens_max, local = config.experts / config.rank_count;

    if (step.layout != STRAIT_EP_EXPERT_MAJOR)
        return all;
    return low_latency() ? local * all : all * step.topk + local * step.alignment;
}

static void draw_step(void)
{
    static const enum strait_element types[] = {STRAIT_ELEMENT_BF16, STRAIT_ELEMENT_FP16, STRAIT_ELEMENT_FP32};
    const enum strait_ep_layout other = low_latency() ? STRAIT_EP_RANK_MAJOR : STRAIT_EP_FLAT;

    step.layout = one_in(2) ? STRAIT_EP_EXPERT_MAJOR : other;
    step.type = types[rng_below(&rng, 3)];
    step.topk = 1 + rng_below(&rng, config.topk_max);
    step.alignment = !low_latency() && step.layout == STRAIT_EP_EXPERT_MAJOR ? 1 + rng_below(&rng, 9) : 1;
    step.row_bytes = 16 * (1 + rng_below(&rng, config.row_bytes_max / 16));
    step.scale_bytes = config.scale_bytes_max != 0 ? 4 * (1 + rng_below(&rng, config.scale_bytes_max / 4)) : 0;
    step.scales = step.scale_bytes != 0;
    step.number_bytes = one_in(2) ? 4 : 8;
    step.weights = !one_in(3);
    step.global_ids = one_in(2);
    step.wide_ids = one_in(2);
    step.gradients = !low_latency() && one_in(2);
    step.heap = config.heap_bytes != 0 && !coded && step.layout == STRAIT_EP_FLAT && one_in(2);
    step.peers =
        !hostile && !coded && hosts == 0 && !low_latency() && step.layout == STRAIT_EP_FLAT && !step.heap && one_in(2);
    step.wants = !one_in(4);
    step.own = !step.heap && !step.peers && one_in(2);
    step.raw = coded && hosts == 0 && !low_latency() && one_in(3);
    for (uint32_t r = 0; r < config.rank_count; r++)
        worlds[1].ranks[r].group.coded = coded && !step.raw;
    for (uint32_t r = 0; r < config.rank_count; r++)
        step.tokens[r] = one_in(6) ? 0 : one_in(3) ? config.tokens_max : rng_below(&rng, config.tokens_max + 1);
    while ((uint64_t)rows_of_tensor() * step.row_bytes > 4u << 20 && step.row_bytes > 16)
        step.row_bytes = (step.row_bytes / 2 + 15) / 16 * 16;
    step.row_count = one_in(step.heap ? 6 : 25) ? rng_below(&rng, rows_of_tensor() + 1) : rows_of_tensor();
}

static int64_t draw_number(uint32_t habit)
{
    const uint32_t experts = config.experts;

    if (one_in(9))
        return one_in(2) ? -1 : (int64_t)experts + rng_below(&rng, 1000);
    return habit == 0 ? 0 : rng_below(&rng, habit == 1 && experts > 3 ? 3 : experts);
}

/* Inputs, of which both worlds have the same. */
static void make_inputs(void)
{
    for (uint32_t r = 0; r < config.rank_count; r++) {
        const uint64_t seed = rng_next(&rng), numbers = (uint64_t)step.tokens[r] * step.topk;
        const uint32_t habit = rng_below(&rng, 5);
        struct rng before = rng;
        for (int w = 0; w < 2; w++) {
            struct world *world = &worlds[w];
            struct rank *rank = &world->ranks[r];
            const uint64_t row = step.row_bytes, rows = rows_of_tensor();
            rng = before;
            rank->topk = piece(world, rank, "topk", numbers * step.number_bytes);
            for (uint64_t i = 0; i < numbers; i++) {
                const int64_t number = draw_number(habit);
                if (step.number_bytes == 8)
                    ((int64_t *)rank->topk)[i] = number;
                else
                    ((int32_t *)rank->topk)[i] = (int32_t)number;
            }
            rank->rows = piece(world, rank, "rows", step.tokens[r] * row);
            rank->scales = piece(world, rank, "scales", (uint64_t)step.tokens[r] * step.scale_bytes);
            rank->weights = piece(world, rank, "weights in", numbers * 4);
            rank->expert_rows =
                step.heap ? rank->group.arenas[r] + at.heap : piece(world, rank, "rows out", rows * row);
            rank->gradients = piece(world, rank, "weights out", rows * step.topk * 4);
            rank->scales_out = piece(world, rank, "scales out", rows * step.scale_bytes);
            rank->topk_out = piece(world, rank, "topk out", rows * step.topk * (step.wide_ids ? 8 : 4));
            rank->counts = piece(world, rank, "counts", (2 * rank->group.local_experts + config.rank_count + 1) * 4ull);
            rank->sums = piece(world, rank, "sums", step.tokens[r] * row);
            fill(rank->rows, step.tokens[r] * row, seed);
            fill(rank->scales, (uint64_t)step.tokens[r] * step.scale_bytes, seed + 1);
            fill((uint8_t *)rank->weights, numbers * 4, seed + 2);
        }
    }
}

/* Both worlds: what the experts made of rows, and gradients of weights. */
static void make_results(void)
{
    const uint64_t seed = rng_next(&rng), rows = step.heap ? config.heap_bytes / step.row_bytes : rows_of_tensor();

    for (int w = 0; w < 2; w++)
        for (uint32_t r = 0; r < config.rank_count; r++) {
            fill(worlds[w].ranks[r].expert_rows, rows * step.row_bytes, seed + r);
            fill((uint8_t *)worlds[w].ranks[r].gradients, (uint64_t)rows_of_tensor() * step.topk * 4, seed + r + 1000);
        }
}

/* A word of the arenas that peers have written, in both worlds, becomes what it must not be. */
static void spoil(uint32_t rank, uint64_t offset, uint32_t value)
{
    for (int w = 0; w < 2; w++)
        memcpy(worlds[w].ranks[rank].group.arenas[rank] + offset, &value, sizeof(value));
}

/* Words of announcements, counts and numbers in all arenas become others that may just be right. */
static void garble(void)
{
    const uint32_t most[] = {2, config.tokens_max + 2, config.experts + 2, UINT32_MAX};

    for (uint32_t r = 0; r < config.rank_count; r++) {
        uint8_t *arena = worlds[1].ranks[r].group.arenas[r];
        const uint32_t often = 1 + rng_below(&rng, 200);
        for (uint64_t offset = at.announce; offset < at.weights; offset += 4) {
            const uint32_t value = rng_below(&rng, most[rng_below(&rng, COUNT(most))]) - one_in(20);
            if (one_in(often))
                memcpy(arena + offset, &value, sizeof(value));
        }
    }
}

/* Bytes of chunks become others. */
static void garble_chunks(void)
{
    const uint32_t often = 1 + rng_below(&rng, 2000);
    const uint64_t bytes = (uint64_t)at.row_buffers * config.rank_count * ep_arena_chunks(&at) * at.chunk_bytes;

    for (uint32_t r = 0; r < config.rank_count; r++)
        for (uint64_t offset = 0; offset < bytes; offset++)
            if (one_in(often))
                worlds[1].ranks[r].group.arenas[r][at.chunks + offset] ^= (uint8_t)(1u << rng_below(&rng, 8));
}

static void spoil_lists(void)
{
    if (hostile && coded && one_in(2)) {
        garble_chunks();
        return;
    }
    if (hostile) {
        garble();
        return;
    }
    const struct rank *rank = &worlds[0].ranks[rng_below(&rng, config.rank_count)];
    const uint32_t me = rank->group.rank, from = rng_below(&rng, config.rank_count);
    const uint64_t epoch = rank->handle.state->epoch;
    const uint8_t *base = rank->group.arenas[me];
    const uint32_t count = ep_counts_of(&rank->group, me, epoch, from)[me];

    /* A row that does not come leaves what was there before: of another call where own rows are not in the arena. */
    if (far || coded || one_in(2) || count == 0 || count > config.tokens_max) {
        const uint8_t *place = (const uint8_t *)&ep_counts_of(&rank->group, me, epoch, from)[me];
        spoil(me, (uint64_t)(place - base), config.tokens_max + 1 + rng_below(&rng, 5));
        return;
    }
    const uint64_t record = (uint64_t)from * config.tokens_max + rng_below(&rng, count);
    const int32_t *numbers = ep_numbers_of(&rank->group, me, epoch, step.topk, record);
    const uint32_t k = one_in(2) ? step.topk : rng_below(&rng, step.topk);
    /* A token that comes twice leaves the row of either; an expert may. */
    const int32_t other = k == step.topk ? -2 : (int32_t)config.experts;
    const int32_t odd[] = {-1, (int32_t)config.tokens_max, INT32_MIN, INT32_MAX, other};
    const uint32_t which = rng_below(&rng, COUNT(odd));
    spoil(me, (uint64_t)((const uint8_t *)(numbers + k) - base), (uint32_t)odd[which]);
}

static struct ep_announce announce_of(const struct rank *rank, uint64_t rows, bool spoiled)
{
    struct ep_announce said = {0, 0};

    if (step.heap) {
        said.offset = at.heap;
        said.rows = config.heap_bytes / step.row_bytes < rows ? config.heap_bytes / step.row_bytes : rows;
    }
    if (step.peers)
        said = (struct ep_announce){EP_IN_PEERS, rows < rows_of_tensor() ? rows : rows_of_tensor()};
    if (spoiled && !coded && rank->group.rank == 0) { /* coded: nobody looks at it */
        said.offset = said.offset == 0 ? 16 : said.offset + config.heap_bytes;
        said.rows = 3;
    }
    return said;
}

static struct ep_peers peers_of(int w)
{
    struct ep_peers peers = {0};

    for (uint32_t r = 0; r < config.rank_count && step.peers; r++)
        peers.tensors[r] = worlds[w].ranks[r].expert_rows;
    return peers;
}

static void run_low_latency(void)
{
    const bool by_expert = step.layout == STRAIT_EP_EXPERT_MAJOR;

    PHASE(send, ep_send_args, .rows = step.tokens[i] ? r->rows : NULL,
          .weights = step.weights && step.tokens[i] ? r->weights : NULL,
          .scales = step.scales && step.tokens[i] ? r->scales : NULL, .row_bytes = step.row_bytes,
          .scale_bytes = step.scale_bytes, .tokens = step.tokens[i], .type = step.type, .signal = EP_FLAG_DATA,
          .begin = true, .lists = true, .keep_weights = by_expert && step.weights && step.tokens[i],
          .own = step.own && !by_expert ? r->expert_rows : NULL, .own_rows = rows_of_tensor(),
          .keep_own = step.own && by_expert);
    if (hostile || one_in(40))
        spoil_lists();
    PHASE(receive, ep_receive_args, .rows = r->expert_rows, .weights = step.weights ? r->gradients : NULL,
          .scales = step.scales ? r->scales_out : NULL, .topk = by_expert ? NULL : r->topk_out,
          .expert_counts = by_expert && step.wants ? r->counts : NULL,
          .rank_counts = step.wants ? r->counts + r->group.local_experts : NULL, .row_bytes = step.row_bytes,
          .scale_bytes = step.scale_bytes, .type = step.type, .global_ids = step.global_ids, .wide_ids = step.wide_ids,
          .own = step.own && by_expert ? r->rows : NULL, .own_given = step.own && !by_expert);
    make_results();
    PHASE(send_back, ep_send_back_args, .rows = r->expert_rows, .row_bytes = step.row_bytes, .type = step.type,
          .keep_own = step.own);
    if (hostile && coded && one_in(2))
        garble_chunks();
    PHASE(reduce, ep_reduce_args, .rows = r->sums, .own = step.own ? r->expert_rows : NULL,
          .weights = by_expert && step.weights ? r->handle.weights : NULL, .row_bytes = step.row_bytes,
          .tokens = step.tokens[i], .type = step.type);
}

static void run_high_throughput(void)
{
    const bool flat = step.layout == STRAIT_EP_FLAT, bad_dispatch = one_in(50), bad_combine = one_in(50);

    PHASE(send, ep_send_args, .tokens = step.tokens[i], .signal = EP_FLAG_ROUTE, .begin = true, .lists = true);
    if (hostile || one_in(40))
        spoil_lists();
    PHASE(plan, ep_plan_args, .expert_counts = step.wants ? r->counts : NULL,
          .expert_offsets = !flat && step.wants ? r->counts + r->group.local_experts : NULL,
          .rank_counts = step.wants ? r->counts + 2 * r->group.local_experts : NULL,
          .total = step.wants ? r->counts + 2 * r->group.local_experts + config.rank_count : NULL);
    PHASE(announce, ep_announce_args, .announce = announce_of(r, step.row_count, bad_dispatch));
    if (hostile && one_in(2))
        garble();
    PHASE(send, ep_send_args, .rows = step.tokens[i] ? r->rows : NULL,
          .weights = step.weights && step.tokens[i] ? r->weights : NULL,
          .scales = step.scales && step.tokens[i] ? r->scales : NULL, .row_bytes = step.row_bytes,
          .scale_bytes = step.scale_bytes, .tokens = step.tokens[i], .type = step.type, .signal = EP_FLAG_DATA,
          .peers = peers_of(w), .own = step.own ? r->expert_rows : NULL, .own_rows = step.row_count);
    if (hostile && coded && one_in(2))
        garble_chunks();
    PHASE(receive, ep_receive_args, .rows = step.heap || step.peers ? NULL : r->expert_rows,
          .weights = step.weights ? r->gradients : NULL, .scales = step.scales ? r->scales_out : NULL,
          .topk = flat ? r->topk_out : NULL, .row_bytes = step.row_bytes, .scale_bytes = step.scale_bytes,
          .row_count = step.row_count, .type = step.type, .global_ids = step.global_ids, .wide_ids = step.wide_ids,
          .own_given = step.own);
    make_results();
    PHASE(stage, ep_stage_args, .rows = step.heap || step.peers ? NULL : r->expert_rows,
          .weights = step.gradients ? r->gradients : NULL, .announce = announce_of(r, UINT64_MAX, bad_combine),
          .row_bytes = step.row_bytes, .type = step.type, .keep_own = step.own && flat);
    if (hostile && one_in(2))
        garble();
    PHASE(reduce, ep_reduce_args, .rows = r->sums, .own = step.own && flat ? r->expert_rows : NULL,
          .weights_out = step.gradients ? r->weights : NULL, .row_bytes = step.row_bytes, .tokens = step.tokens[i],
          .type = step.type, .peers = peers_of(w));
    PHASE(settle, ep_settle_args, );
}

static void run_step(void)
{
    shapes++;
    draw_step();
    for (int w = 0; w < 2; w++)
        for (uint32_t r = 0; r < config.rank_count; r++)
            make_handle(&worlds[w], &worlds[w].ranks[r]);
    make_inputs();
    for (uint32_t again = 0; again < (small ? 1 : 2); again++) {
        PHASE(route, ep_route_args, .topk = r->topk, .topk_bytes = step.number_bytes, .tokens = step.tokens[i]);
        if (low_latency())
            run_low_latency();
        else
            run_high_throughput();
    }
    for (int w = 0; w < 2; w++)
        for (uint32_t r = 0; r < config.rank_count; r++) {
            struct rank *rank = &worlds[w].ranks[r];
            release(&worlds[w], rank->handle.state);
            release(&worlds[w], rank->scratch);
            drop_pieces(&worlds[w], rank, rank->lasting);
        }
}

static void run_group(void)
{
    group_state = rng.state;
    draw_config();
    step.absent = 0;
    if (one_in(9)) /* a rank that never comes; with its high bit set, one that was left out before */
        step.absent = 1ull << rng_below(&rng, config.rank_count) | (one_in(2) ? 1ull << 62 : 0);
    make_group();
    coded_groups += coded;
    for (uint32_t i = 0; i < (hostile ? 1 : small ? 12 : 3) && !any_failed(); i++)
        run_step();
    failures += any_failed();
    for (uint32_t r = 0; r < config.rank_count; r++) {
        survived += hostile && worlds[1].ranks[r].group.state->failed == 0;
        damaged += hostile && worlds[1].ranks[r].group.state->failed == STRAIT_ERR_INTEGRITY;
    }
    for (int w = 0; w < 2; w++)
        for (uint32_t r = 0; r < config.rank_count; r++) {
            if (w == 1)
                close_cuda(&worlds[w].ranks[r]);
            if (worlds[w].ranks[r].own != NULL)
                release(&worlds[w], worlds[w].ranks[r].own);
            release_state(&worlds[w], worlds[w].ranks[r].group.state);
            release(&worlds[w], worlds[w].ranks[r].group.report);
            drop_pieces(&worlds[w], &worlds[w].ranks[r], 0);
        }
}

int main(int argc, char **argv)
{
    const uint32_t groups = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 0) : 40;
    int devices = 0;

    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("skipped: there is no GPU\n");
        return 77;
    }
    with_codec = strait_codec_get("cuda") != NULL;
    small = argc > 3 && strcmp(argv[3], "small") == 0;
    rng = rng_init(argc > 2 ? strtoull(argv[2], NULL, 0) : 1);
    if (argc > 4)
        rng.state = strtoull(argv[4], NULL, 0);
    for (uint32_t i = 0; i < groups; i++)
        run_group();
    hostile = true;
    for (uint32_t i = 0; i < groups; i++)
        run_group();
    printf("%llu ranks went on with what others made up, %llu found damaged rows\n", (unsigned long long)survived,
           (unsigned long long)damaged);
    printf("%u groups, %u of them coded, %llu shapes, %llu phases, %llu groups failed as they should\n", groups,
           coded_groups, (unsigned long long)shapes, (unsigned long long)phases, (unsigned long long)failures);
    require(groups < 15 || (failures > 0 && survived > 0 && (damaged > 0 || !with_codec)));
    return 0;
}
