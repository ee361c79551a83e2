/* What does not fit, on real GPUs, a process each or a thread each:
 *
 *   collective_overflow [--threads] [--ranks=N] LIBRARY [SCENE ...]
 *
 * LIBRARY is NCCL's or libstrait-coll, opened by its path. Values that cannot be compressed come from one rank, in
 * turn, so that the others have to learn of it: called straight, in a graph, in a group, on two communicators and
 * streams at once, with counts by rank, some of them none, and broadcast. All that arrives is compared. With
 * STRAIT_COLL=compress something has to have been compressed. Exit status 77: too few GPUs. */
#include "collective/reduce.h"
#include "tests/gpu/collective_world.h"

enum { COUNT_OF = 1 << 19, BYTES = 2 * COUNT_OF, TURNS = 12, REPLAYS = 20, UNEVEN = 60007 };

/* ---- Values ------------------------------------------------------------------------------------------------------ */

static uint64_t seed_of(unsigned turn, int from, int to)
{
    return 10000 * (uint64_t)turn + 100 * (uint64_t)from + (uint64_t)to;
}

/* Every third turn one rank's values cannot be compressed. */
static bool is_noisy(const struct rank *rank, unsigned turn, int from)
{
    return turn % 3 == 1 && (int)(turn / 3) % rank->ranks == from;
}

/* Half of all exponents, but none that a sum could make infinite. */
static void make_noise(uint16_t *values, size_t count, uint64_t seed)
{
    struct rng rng = rng_init(seed);
    for (size_t i = 0; i < count; i++) {
        const uint64_t drawn = rng_next(&rng);
        values[i] = (uint16_t)((drawn & 0x807f) | (64 + (drawn >> 16) % 127) << 7);
    }
}

static void make(uint8_t *values, size_t count, bool noisy, uint64_t seed)
{
    if (noisy)
        make_noise((uint16_t *)(void *)values, count, seed);
    else
        values_fill(values, COLL_BF16, count, VALUES_NORMAL, seed);
}

static uint8_t *new_values(size_t count)
{
    uint8_t *values = malloc(count * 2 + 1);
    require(values != NULL);
    return values;
}

/* What this rank sends to each, or to all alike: then only the first. */
static void put(struct rank *rank, unsigned slot, unsigned turn, bool noisy, bool each)
{
    for (int to = 0; to < (each ? rank->ranks : 1); to++)
        make(rank->host + (size_t)to * BYTES, COUNT_OF, noisy, seed_of(turn, rank->number, to));
    require_cuda(cudaMemset(rank->receive[slot], 0xee, (size_t)rank->ranks * BYTES));
    rank_upload(rank, rank->send[slot], (size_t)(each ? rank->ranks : 1) * BYTES);
}

static void get(struct rank *rank, unsigned slot, size_t size)
{
    coll_result error;
    require_cuda(cudaStreamSynchronize(rank->stream[slot]));
    rank_download(rank, rank->receive[slot], size);
    require_nccl(nccl.CommGetAsyncError(rank->comm[slot], &error));
    require_nccl(error);
}

static void require_same(const struct rank *rank, const char *what, unsigned turn, const uint8_t *got,
                         const uint8_t *expected, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (got[i] != expected[i]) {
            fprintf(stderr, "rank %d, %s, turn %u: byte %zu of %zu is wrong\n", rank->number, what, turn, i, size);
            abort();
        }
}

typedef bool noise_function(const struct rank *rank, unsigned turn, int from);

/* Of an all_gather, or of an all_to_all, where each rank has values of its own. */
static void check_all(struct rank *rank, unsigned slot, unsigned turn, noise_function *noisy, bool each)
{
    uint8_t *expected = new_values(COUNT_OF);
    get(rank, slot, (size_t)rank->ranks * BYTES);
    for (int from = 0; from < rank->ranks; from++) {
        make(expected, COUNT_OF, noisy(rank, turn, from), seed_of(turn, from, each ? rank->number : 0));
        require_same(rank, each ? "all_to_all" : "all_gather", turn, rank->host + (size_t)from * BYTES, expected,
                     BYTES);
    }
    free(expected);
}

/* ---- Sums -------------------------------------------------------------------------------------------------------- */

static float float_of(uint16_t value)
{
    const uint32_t bits = (uint32_t)value << 16;
    float wide;
    memcpy(&wide, &bits, sizeof(wide));
    return wide;
}

/* Of two ranks there is one sum, bit for bit. More are added up in another order where the operation goes as it is. */
static void require_sum(const struct rank *rank, unsigned turn, const uint8_t *const *of, const uint16_t *sum)
{
    const uint16_t *got = (const uint16_t *)(void *)rank->host;
    for (size_t i = 0; i < COUNT_OF; i++) {
        float most = 0;
        for (int from = 0; from < rank->ranks; from++) {
            const float value = float_of(((const uint16_t *)(const void *)of[from])[i]);
            most += value < 0 ? -value : value;
        }
        const float apart = float_of(got[i]) - float_of(sum[i]);
        const bool near = rank->ranks > 2 && (apart < 0 ? -apart : apart) <= most * 0x1p-6f;
        if (got[i] != sum[i] && !near) {
            fprintf(stderr, "rank %d, turn %u: sum %zu is wrong\n", rank->number, turn, i);
            abort();
        }
    }
}

static void check_sum(struct rank *rank, unsigned slot, unsigned turn, int block, noise_function *noisy)
{
    uint8_t *sum = new_values(COUNT_OF);
    struct coll_reduce add = {.type = COLL_REDUCE_BF16,
                              .operation = COLL_REDUCE_SUM,
                              .order = COLL_REDUCE_IN_FP32,
                              .sources = (uint32_t)rank->ranks,
                              .dst = sum,
                              .count = COUNT_OF};
    uint8_t *of[WORLD_RANKS_MAX];
    get(rank, slot, BYTES);
    for (int from = 0; from < rank->ranks; from++) {
        add.source[from] = of[from] = new_values(COUNT_OF);
        make(of[from], COUNT_OF, noisy(rank, turn, from), seed_of(turn, from, block));
    }
    require(coll_reduce_scalar(&add) == STRAIT_OK);
    require_sum(rank, turn, (const uint8_t *const *)of, (const uint16_t *)(void *)sum);
    for (int from = 0; from < rank->ranks; from++)
        free(of[from]);
    free(sum);
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static void gather(struct rank *rank, unsigned slot)
{
    require_nccl(nccl.AllGather(rank->send[slot], rank->receive[slot], COUNT_OF, COLL_BF16, rank->comm[slot],
                                rank->stream[slot]));
}

static void exchange(struct rank *rank, unsigned slot, unsigned stream)
{
    require_nccl(nccl.AlltoAll(rank->send[slot], rank->receive[slot], COUNT_OF, COLL_BF16, rank->comm[stream],
                               rank->stream[stream]));
}

/* Of every rank, by turns: as an all_gather of what they have. */
static void broadcast(struct rank *rank, unsigned slot)
{
    for (int root = 0; root < rank->ranks; root++)
        require_nccl(nccl.Broadcast(rank->send[slot], rank->receive[slot] + (size_t)root * BYTES, COUNT_OF, COLL_BF16,
                                    root, rank->comm[slot], rank->stream[slot]));
}

/* ---- Scenes ------------------------------------------------------------------------------------------------------ */

static void play_straight(struct rank *rank)
{
    for (unsigned turn = 0; turn < TURNS; turn++) {
        const bool noisy = is_noisy(rank, turn, rank->number);
        put(rank, 0, turn, noisy, false);
        gather(rank, 0);
        check_all(rank, 0, turn, is_noisy, false);
        put(rank, 0, turn, noisy, true);
        exchange(rank, 0, 0);
        check_all(rank, 0, turn, is_noisy, true);
    }
}

/* Every other turn in one group. */
static void play_broadcasts(struct rank *rank)
{
    for (unsigned turn = 0; turn < TURNS; turn++) {
        put(rank, 0, turn, is_noisy(rank, turn, rank->number), false);
        if (turn % 2 == 0)
            require_nccl(nccl.GroupStart());
        broadcast(rank, 0);
        if (turn % 2 == 0)
            require_nccl(nccl.GroupEnd());
        check_all(rank, 0, turn, is_noisy, false);
    }
}

static void play_sums(struct rank *rank)
{
    for (unsigned turn = 0; turn < TURNS; turn++) {
        put(rank, 0, turn, is_noisy(rank, turn, rank->number), true);
        require_nccl(nccl.ReduceScatter(rank->send[0], rank->receive[0], COUNT_OF, COLL_BF16, COLL_SUM, rank->comm[0],
                                        rank->stream[0]));
        check_sum(rank, 0, turn, rank->number, is_noisy);
        require_nccl(nccl.AllReduce(rank->send[0], rank->receive[0], COUNT_OF, COLL_BF16, COLL_SUM, rank->comm[0],
                                    rank->stream[0]));
        check_sum(rank, 0, turn, 0, is_noisy);
    }
}

/* What was captured keeps its level: every replay with noise overflows. */
static bool is_noisy_in_turn(const struct rank *rank, unsigned turn, int from)
{
    return turn % 2 == 1 && (int)(turn / 2) % rank->ranks == from;
}

static void call_both(struct rank *rank, void *nothing)
{
    (void)nothing;
    gather(rank, 0);
    exchange(rank, 1, 0);
}

static void play_graph(struct rank *rank)
{
    put(rank, 0, 0, false, false);
    put(rank, 1, 0, false, true);
    call_both(rank, NULL); /* connects the ranks, which a capture cannot */
    require_cuda(cudaStreamSynchronize(rank->stream[0]));
    cudaGraphExec_t exec = graph_capture(rank, 0, call_both, NULL);
    for (unsigned turn = 0; turn < REPLAYS; turn++) {
        const bool noisy = is_noisy_in_turn(rank, turn, rank->number);
        put(rank, 0, turn, noisy, false);
        put(rank, 1, turn, noisy, true);
        require_cuda(cudaGraphLaunch(exec, rank->stream[0]));
        check_all(rank, 0, turn, is_noisy_in_turn, false);
        check_all(rank, 1, turn, is_noisy_in_turn, true);
    }
    world_meet(rank);
    require_cuda(cudaGraphExecDestroy(exec));
}

static bool is_quiet(const struct rank *rank, unsigned turn, int from)
{
    (void)rank;
    (void)turn;
    (void)from;
    return false;
}

/* Of the two in it one fits. */
static void play_group(struct rank *rank)
{
    for (unsigned turn = 0; turn < TURNS; turn++) {
        put(rank, 0, turn, false, false);
        put(rank, 1, turn, is_noisy(rank, turn, rank->number), true);
        require_nccl(nccl.GroupStart());
        call_both(rank, NULL);
        require_nccl(nccl.GroupEnd());
        check_all(rank, 0, turn, is_quiet, false);
        check_all(rank, 1, turn, is_noisy, true);
    }
}

/* Several of each under way at once, those of one communicator with noise. */
static void play_two(struct rank *rank)
{
    enum { AT_ONCE = 4 };
    for (unsigned turn = 0; turn < TURNS; turn++) {
        put(rank, 0, turn, is_noisy(rank, turn, rank->number), false);
        put(rank, 1, turn, false, false);
        world_meet(rank);
        for (unsigned i = 0; i < AT_ONCE; i++)
            for (unsigned slot = 0; slot < WORLD_SLOTS; slot++)
                gather(rank, slot);
        check_all(rank, 0, turn, is_noisy, false);
        check_all(rank, 1, turn, is_quiet, false);
    }
}

static size_t uneven(unsigned turn, int from, int to)
{
    return (turn + 2 * (size_t)from + 3 * (size_t)to) % 4 * UNEVEN;
}

static void check_uneven(struct rank *rank, unsigned turn)
{
    uint8_t *expected = new_values(COUNT_OF);
    get(rank, 0, (size_t)rank->ranks * BYTES);
    for (int from = 0; from < rank->ranks; from++) {
        const size_t count = uneven(turn, from, rank->number);
        make(expected, COUNT_OF, is_noisy(rank, turn, from), seed_of(turn, from, rank->number));
        memset(expected + 2 * count, 0xee, BYTES - 2 * count); /* and nothing behind it */
        require_same(rank, "uneven", turn, rank->host + (size_t)from * BYTES, expected, BYTES);
    }
    free(expected);
}

static void play_uneven(struct rank *rank)
{
    for (unsigned turn = 0; turn < TURNS; turn++) {
        put(rank, 0, turn, is_noisy(rank, turn, rank->number), true);
        require_nccl(nccl.GroupStart());
        for (int peer = 0; peer < rank->ranks; peer++) {
            require_nccl(nccl.Send(rank->send[0] + (size_t)peer * BYTES, uneven(turn, rank->number, peer), COLL_BF16,
                                   peer, rank->comm[0], rank->stream[0]));
            require_nccl(nccl.Recv(rank->receive[0] + (size_t)peer * BYTES, uneven(turn, peer, rank->number), COLL_BF16,
                                   peer, rank->comm[0], rank->stream[0]));
        }
        require_nccl(nccl.GroupEnd());
        check_uneven(rank, turn);
    }
}

static const struct world_scene scenes[] = {
    {.name = "straight", play_straight, "all_gather"},
    {.name = "sums", play_sums, "reduce_scatter"},
    {.name = "graph", play_graph, "all_gather"},
    {.name = "group", play_group, "all_to_all"},
    {.name = "two", play_two, "all_gather"},
    {.name = "uneven", play_uneven, "send"},
    {.name = "broadcasts", play_broadcasts, "broadcast"},
};

int main(int argc, char **argv)
{
    return world_main(argc, argv,
                      &(struct world_program){.scenes = scenes, .count = COUNT(scenes), .bytes = BYTES, .slots = 2});
}
