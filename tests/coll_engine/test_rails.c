/* Sums of several hosts with several ranks each: first inside a host, then by rail, between ranks of the same place.
 * What crosses between hosts is less than a ring moves, and the bits are those of the documented order, by a reference
 * of its own. */
#include <math.h>
#include <string.h>

#include "tests/coll_engine/harness.h"

enum { RANKS = 16, EACH = 8, HOSTS = RANKS / EACH, PAGE = 32768 };

/* So many neighbours are on one host. */
static void set_hosts(const char *neighbours)
{
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("STRAIT_TEST_HOSTS", neighbours, 1);
}

static void set_up(void)
{
    set_hosts("8");
}

/* ---- The documented order, one value after another --------------------------------------------------------------- */

/* Bits of the mantissa, exponent of the smallest normal value, the largest exponent. */
struct format {
    int mantissa, least, most;
};

static struct format format_of(int type)
{
    return type == COLL_BF16   ? (struct format){7, -126, 127}
           : type == COLL_FP16 ? (struct format){10, -14, 15}
                               : (struct format){23, -126, 127};
}

static double value_of(int type, const uint8_t *at)
{
    const struct format format = format_of(type);
    const int bits = type == COLL_FP32 ? 32 : 16;
    uint32_t x = 0;
    memcpy(&x, at, (size_t)bits / 8);
    const int exponent = (int)(x >> format.mantissa & ((1u << (bits - 1 - format.mantissa)) - 1));
    const double fraction = (double)(x & ((1u << format.mantissa) - 1));
    const double value =
        exponent == 0 ? ldexp(fraction, format.least - format.mantissa)
                      : ldexp(fraction + ldexp(1, format.mantissa), format.least - 1 + exponent - format.mantissa);
    require(format.least - 1 + exponent <= format.most); /* a finite one */
    return x >> (bits - 1) != 0 ? -value : value;
}

/* Rounded to the nearest value of the type, ties to even. */
static double rounded(int type, double x)
{
    const struct format format = format_of(type);
    int exponent;
    if (x == 0)
        return x;
    (void)frexp(x, &exponent);
    exponent = exponent - 1 < format.least ? format.least : exponent - 1;
    const double unit = ldexp(1, exponent - format.mantissa), result = rint(x / unit) * unit;
    require(fabs(result) < ldexp(1, format.most + 1));
    return result;
}

/* In FP32: each addition and product of two such values is exact in double, or nearly so, before it is rounded. */
static double plus(double a, double b)
{
    return (double)((float)a + (float)b);
}

/* Of `count` values, or their mean. */
static double added(int type, const double *values, int count, int reduction)
{
    double sum = values[0];
    for (int i = 1; i < count; i++)
        sum = plus(sum, values[i]);
    if (reduction == COLL_AVG)
        sum = (double)((float)sum * (float)(1.0 / count));
    return rounded(type, sum);
}

/* Value `at` of what each rank has, in FP32 by rank inside each host and then by host; each 1: by rank. */
static double sum_of(int type, uint8_t *const parts[], size_t at, int ranks, int each, int reduction)
{
    double values[RANKS], sums[RANKS];
    for (int rank = 0; rank < ranks; rank++)
        values[rank] = value_of(type, parts[rank] + at * element_bytes(type));
    if (each == 1)
        return added(type, values, ranks, reduction);
    for (int host = 0; host < ranks / each; host++)
        sums[host] = added(type, values + host * each, each, reduction);
    return added(type, sums, ranks / each, reduction);
}

struct scene {
    enum coll_operation what;
    int type, reduction;
    bool in_place;
    enum values kind;
    size_t count; /* of a part */
};

static const struct scene scenes[] = {
    {COLL_REDUCE_SCATTER, COLL_BF16, COLL_SUM, false, VALUES_NORMAL, PAGE / 2 + 5},
    {COLL_REDUCE_SCATTER, COLL_BF16, COLL_AVG, true, VALUES_NORMAL, PAGE / 2 + 1},
    {COLL_REDUCE_SCATTER, COLL_FP16, COLL_AVG, false, VALUES_NORMAL, PAGE / 2 + 3},
    {COLL_REDUCE_SCATTER, COLL_FP32, COLL_SUM, true, VALUES_WIDENED, PAGE / 4 + 7},
    {COLL_ALL_REDUCE, COLL_BF16, COLL_SUM, true, VALUES_NORMAL, PAGE / 2 + 8},
    {COLL_ALL_REDUCE, COLL_BF16, COLL_AVG, false, VALUES_NORMAL, PAGE / 2},
    {COLL_ALL_REDUCE, COLL_FP16, COLL_SUM, false, VALUES_NORMAL, PAGE / 2 + 16},
    {COLL_ALL_REDUCE, COLL_FP32, COLL_AVG, true, VALUES_WIDENED, PAGE / 4 + 8},
};

/* Of an all_reduce some values are behind the parts. */
static size_t count_of(const struct scene *scene)
{
    return scene->what == COLL_ALL_REDUCE ? scene->count * RANKS + 8 * RANKS - 3 : scene->count;
}

static struct operation operation_of(const struct scene *scene)
{
    return (struct operation){.what = scene->what,
                              .type = scene->type,
                              .reduction = scene->reduction,
                              .count = count_of(scene),
                              .kind = scene->kind};
}

/* Of up to so many operations: copies of what each rank has, as in place it is lost. */
enum { SUMS = 4, NUMBERS = EACH };
static uint8_t *had[NUMBERS][RANKS];

static void sums_new(const struct rank *rank, struct operation *operation, int number, bool in_place)
{
    const size_t parts = operation_scatters(operation->what) ? (size_t)rank->ranks : 1;
    operation_new(rank, operation, 0, in_place);
    had[number][rank->rank] = values_new(rank, operation->type, parts * operation->count);
}

static void sums_fill(const struct rank *rank, const struct operation *operation, int number)
{
    const size_t parts = operation_scatters(operation->what) ? (size_t)rank->ranks : 1;
    operation_fill(rank, operation);
    memcpy(had[number][rank->rank], operation->out, parts * operation->count * element_bytes(operation->type));
}

/* Of a reduce_scatter all values; of an all_reduce each rank looks at some, which together are all. When it is over on
 * this rank, all ranks have filled in theirs; they meet before they fill in others. */
static void sums_check_by(const struct rank *rank, const struct operation *operation, int number, int each)
{
    const size_t bytes = element_bytes(operation->type), ranks = (size_t)rank->ranks;
    const size_t whole = operation->count / ranks / 8 * 8 * ranks;
    const bool all = operation->what == COLL_ALL_REDUCE;
    uint8_t *parts[RANKS];
    fake_stream_wait(rank->stream);
    for (int from = 0; from < rank->ranks; from++)
        parts[from] = had[number][from] + (all ? 0 : (size_t)rank->rank * operation->count * bytes);
    for (size_t at = all ? (size_t)rank->rank : 0; at < operation->count; at += all ? ranks : 1) {
        const int of_host = all && at >= whole ? 1 : each;
        const double sum = sum_of(operation->type, parts, at, rank->ranks, of_host, operation->reduction);
        require(value_of(operation->type, operation->in + at * bytes) == sum);
    }
    ranks_meet();
}

static void sums_check(const struct rank *rank, const struct operation *operation, int number)
{
    sums_check_by(rank, operation, number, EACH);
}

/* All ranks meet around it: bytes that cross between hosts from before to after. */
static uint64_t crossed(const struct rank *rank, const struct operation *operation)
{
    static _Atomic uint64_t before;
    ranks_meet();
    before = fake_gpu.crossed;
    ranks_meet();
    require_ok(operation_post(rank, operation));
    fake_stream_wait(rank->stream);
    ranks_meet();
    return fake_gpu.crossed - before;
}

/* By a ring each host gets from the one before as much as each rank from the one before it. */
static uint64_t by_ring(const struct operation *operation)
{
    const uint64_t bytes = operation->count * element_bytes(operation->type);
    return operation->what == COLL_ALL_REDUCE ? HOSTS * 2 * (RANKS - 1) * (bytes / RANKS) : HOSTS * (RANKS - 1) * bytes;
}

static void sum_by_rails(struct rank *rank)
{
    const struct scene *scene = &scenes[*(const int *)rank->argument];
    const bool scatters = scene->what == COLL_REDUCE_SCATTER;
    struct operation operation = operation_of(scene);
    const unsigned turns = scene == &scenes[0] ? 2 : 1;
    sums_new(rank, &operation, 0, scene->in_place);
    for (unsigned turn = 0; turn < turns; turn++) {
        operation.seed = seed_of(turn, 0, 0);
        sums_fill(rank, &operation, 0);
        const uint64_t bytes = crossed(rank, &operation), most = by_ring(&operation);
        require(bytes > 0 && bytes <= most);
        if (rank->rank == 0 && turn == 0)
            printf("%s of %s: %.2f of what a ring moves between hosts\n", scatters ? "reduce_scatter" : "all_reduce",
                   type_name(scene->type), (double)bytes / (double)most);
        sums_check(rank, &operation, 0);
    }
    require_told(rank->comm, scatters ? "reduce_scatter" : "all_reduce", type_name(scene->type), turns, turns);
}

/* ---- What does not fit ------------------------------------------------------------------------------------------- */

/* Ranks of both hosts have noise, in FP32 with values that can be added up. */
static void overflow_on_rails(struct rank *rank)
{
    enum { TIMES = 3 };
    const bool grouped = *(const int *)rank->argument % 2 != 0;
    const struct scene scene = {*(const int *)rank->argument < 2 ? COLL_REDUCE_SCATTER : COLL_ALL_REDUCE,
                                COLL_FP32,
                                COLL_SUM,
                                false,
                                VALUES_NORMAL,
                                PAGE / 4 + 9};
    struct operation operation = operation_of(&scene);
    const uint64_t taken = fake_gpu.taken;
    sums_new(rank, &operation, 0, false);
    ranks_meet();
    for (unsigned turn = 0; turn < TIMES; turn++) {
        operation.seed = seed_of(turn, 0, 0);
        sums_fill(rank, &operation, 0);
        if (grouped)
            require_ok(ncclGroupStart());
        require_ok(operation_post(rank, &operation));
        if (grouped)
            require_ok(ncclGroupEnd());
        sums_check(rank, &operation, 0);
    }
    require(fake_gpu.taken > taken);
}

/* What a rank of the first host has for the other one's ranks of a place needs more room: of the first rail twice, at a
 * distance that is chance, then of the second one, which gets it though its ranks have seen no overflow before. */
static void overflow_on_one_rail(struct rank *rank)
{
    enum { PAGES = 4, VALUES = PAGES * PAGE / 2, FIRST = 100, SECOND = 200, LATER = 250, TURNS = 260 };
    uint16_t *out = values_new(rank, COLL_BF16, 4 * VALUES), *in = values_new(rank, COLL_BF16, VALUES);
    uint64_t taken = 0;
    for (unsigned turn = 0; turn < TURNS; turn++) {
        const int part = turn % FIRST == 0 && turn < SECOND ? 2 : turn == SECOND + 1 || turn > LATER ? 3 : -1;
        values_fill(out, COLL_BF16, 4 * VALUES, VALUES_NORMAL, seed_of(turn, rank->rank, 0));
        if (rank->rank == 0 && (part >= 0 || turn == SECOND))
            values_fill(out + (turn == SECOND ? 3 : part) * VALUES, COLL_BF16, PAGE / 2, VALUES_NOISE, turn);
        require_ok(ncclReduceScatter(out, in, VALUES, COLL_BF16, COLL_SUM, rank->comm, rank->stream));
        fake_stream_wait(rank->stream);
        ranks_meet();
        if (turn == SECOND + 1)
            taken = fake_gpu.taken;
        require(turn < LATER || fake_gpu.taken == taken);
        ranks_meet();
    }
    require(taken > 0);
    require_told(rank->comm, "reduce_scatter", "bf16", TURNS, TURNS);
}

START_TEST(rails_that_overflow_get_room_whatever_others_did)
{
    set_hosts("2");
    ranks_run(4, overflow_on_one_rail, NULL);
}
END_TEST

/* ---- Graphs, and memory that is registered ----------------------------------------------------------------------- */

static void replay(struct rank *rank)
{
    enum { LAUNCHES = 3 };
    static const struct scene *const captured[] = {&scenes[0], &scenes[5]};
    struct operation operations[COUNT(captured)];
    for (int i = 0; i < COUNT(captured); i++) {
        operations[i] = operation_of(captured[i]);
        sums_new(rank, &operations[i], i, false);
    }
    if (rank->rank == 0) {
        fake_nccl.watched = operations[0].out;
        fake_nccl.watched_bytes = RANKS * operations[0].count * 2;
    }
    ranks_meet();
    fake_capture_begin(rank->stream);
    for (int i = 0; i < COUNT(captured); i++)
        require_ok(operation_post(rank, &operations[i])); /* in the same memory, one after the other */
    struct fake_graph *graph = fake_capture_end(rank->stream);
    for (unsigned turn = 0; turn < LAUNCHES; turn++) {
        for (int i = 0; i < COUNT(captured); i++) {
            operations[i].seed = seed_of(turn, 0, 0);
            sums_fill(rank, &operations[i], i);
        }
        fake_graph_launch(graph, rank->stream);
        for (int i = 0; i < COUNT(captured); i++)
            sums_check(rank, &operations[i], i);
    }
    require(fake_nccl.watched_sent == 0);
    ranks_meet();
    fake_graph_end(graph);
}

/* What NCCL has registered is sent to memory that it has not; the values are copied before. */
static void sum_registered(struct rank *rank)
{
    const bool registers = *(const int *)rank->argument != 0;
    const struct scene *scene = &scenes[0];
    struct operation operation = operation_of(scene);
    void *handle = NULL;
    sums_new(rank, &operation, 0, false);
    sums_fill(rank, &operation, 0);
    if (rank->rank == 0) {
        fake_nccl.watched = operation.out;
        fake_nccl.watched_bytes = RANKS * operation.count * 2;
    }
    if (registers)
        require_ok(ncclCommRegister(rank->comm, operation.out, RANKS * operation.count * 2, &handle));
    ranks_meet();
    require_ok(operation_post(rank, &operation));
    sums_check(rank, &operation, 0);
    require((fake_nccl.watched_sent == 0) == registers);
    if (registers)
        require_ok(ncclCommDeregister(rank->comm, handle));
}

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

/* Operations of one, two and three phases, and sends, on two communicators and streams. Odd ranks have the sends in a
 * group of their own. */
static void group_all(struct rank *rank)
{
    enum { TIMES = 2, MANY = 40000 };
    static const struct scene *const sums[SUMS] = {&scenes[0], &scenes[5], &scenes[2], &scenes[6]};
    struct rank second = *rank;
    struct operation operations[SUMS];
    struct gather gather = gather_new(rank, COLL_BF16, MANY, VALUES_NORMAL);
    uint8_t *out = values_new(rank, COLL_BF16, MANY), *in = values_new(rank, COLL_BF16, MANY);
    second.stream = fake_stream_make();
    require_ok(ncclCommSplit(rank->comm, 0, rank->rank, &second.comm, NULL));
    for (int i = 0; i < SUMS; i++) {
        operations[i] = operation_of(sums[i]);
        sums_new(rank, &operations[i], i, false);
    }
    for (unsigned turn = 0; turn < TIMES; turn++) {
        gather_fill(rank, &gather, VALUES_NORMAL, seed_of(turn, 0, 50));
        values_fill(out, COLL_BF16, MANY, VALUES_NORMAL, seed_of(turn, rank->rank, 60));
        require_ok(ncclGroupStart());
        for (int i = 0; i < SUMS; i++) {
            operations[i].seed = seed_of(turn, 0, 100 * i);
            sums_fill(rank, &operations[i], i);
            require_ok(operation_post(i % 2 == 0 ? rank : &second, &operations[i]));
        }
        require_ok(gather_post(rank, &gather));
        if (rank->rank % 2 != 0) {
            require_ok(ncclGroupEnd());
            require_ok(ncclGroupStart());
        }
        require_ok(ncclSend(out, MANY, COLL_BF16, rank_next(rank), rank->comm, rank->stream));
        require_ok(ncclRecv(in, MANY, COLL_BF16, rank_before(rank), rank->comm, rank->stream));
        require_ok(ncclGroupEnd());
        fake_stream_wait(second.stream);
        gather_check(rank, &gather);
        require(values_are(in, COLL_BF16, MANY, VALUES_NORMAL, seed_of(turn, rank_before(rank), 60)));
        for (int i = 0; i < SUMS; i++)
            sums_check(rank, &operations[i], i);
    }
    require_told(rank->comm, "reduce_scatter", "bf16", TIMES, TIMES);
    require_told(second.comm, "all_reduce", "bf16", TIMES, TIMES);
    ranks_meet();
    require_ok(ncclCommDestroy(second.comm));
    fake_stream_end(second.stream);
}

/* ---- A GPU without memory ---------------------------------------------------------------------------------------- */

/* Between hosts it goes on by memory of the host; what is kept from phase to phase is there, too. */
static void sum_without_memory(struct rank *rank)
{
    enum { TIMES = 3, FULL = 1 };
    struct operation operations[2] = {operation_of(&scenes[1]), operation_of(&scenes[5])};
    for (int i = 0; i < COUNT(operations); i++) {
        operations[i].count = i == 0 ? 1 << 20 : 1 << 22; /* more than there was before */
        sums_new(rank, &operations[i], i, false);
    }
    ranks_meet();
    fake_gpu.full = 1u << FULL;
    for (unsigned turn = 0; turn < TIMES; turn++)
        for (int i = 0; i < COUNT(operations); i++) {
            operations[i].seed = seed_of(turn, 0, 10 * i);
            sums_fill(rank, &operations[i], i);
            require_ok(operation_post(rank, &operations[i]));
            sums_check_by(rank, &operations[i], i, 2);
        }
    require_told(rank->comm, "reduce_scatter", "bf16", TIMES, TIMES);
    require_told(rank->comm, "all_reduce", "bf16", TIMES, TIMES);
    fake_gpu.full = 0;
}

START_TEST(a_gpu_without_memory_sums_by_that_of_the_host)
{
    set_hosts("2");
    ranks_run(4, sum_without_memory, NULL);
}
END_TEST

/* ---- Other placements -------------------------------------------------------------------------------------------- */

/* Hosts by rank, and ranks of each host by which sums go first; 1: by rank, as on one host. */
static const struct placement {
    int ranks, each;
    int hosts[8];
} placements[] = {
    {8, 4, {1, 1, 1, 1, 2, 2, 2, 2}},
    {6, 2, {1, 1, 2, 2, 3, 3}},
    {8, 1, {1, 2, 1, 2, 1, 2, 1, 2}},
    {6, 1, {1, 1, 1, 1, 2, 2}},
    {4, 1, {1, 2, 3, 4}},
    {4, 1, {1, 1, 1, 1}},
    {8, 1, {1, 1, 2, 2, 2, 2, 1, 1}},
    {8, 1, {1, 1, 2, 2, 3, 3, 1, 1}},
};

static void sum_anywhere(struct rank *rank)
{
    const struct placement *placement = rank->argument;
    struct operation operation = operation_of(&scenes[0]);
    sums_new(rank, &operation, 0, false);
    sums_fill(rank, &operation, 0);
    require_ok(operation_post(rank, &operation));
    sums_check_by(rank, &operation, 0, placement->each);
    require_told(rank->comm, "reduce_scatter", "bf16", 1, 1);
}

START_TEST(only_even_hosts_whose_ranks_follow_each_other_have_rails)
{
    unsetenv("STRAIT_TEST_HOSTS");
    for (int i = 0; i < placements[_i].ranks; i++)
        fake_gpu.hosts[i] = (uint32_t)placements[_i].hosts[i];
    ranks_run(placements[_i].ranks, sum_anywhere, &placements[_i]);
}
END_TEST

/* The ring's order is that of NCCL's own reduce_scatter, which knows no hosts. */
static void sum_around(struct rank *rank)
{
    struct operation operation = operation_of(&scenes[0]);
    operation.order = COLL_REDUCE_NCCL_RING;
    operation_new(rank, &operation, 0, false);
    operation_fill(rank, &operation);
    require_ok(operation_post(rank, &operation));
    operation_check(rank, &operation);
    require_told(rank->comm, "reduce_scatter", "bf16", 1, 1);
}

START_TEST(the_order_of_the_ring_is_kept)
{
    set_hosts("2");
    setenv("STRAIT_COLL_ORDER", "nccl-ring", 1);
    ranks_run(4, sum_around, NULL);
}
END_TEST

/* Children have rails of their own: four ranks of each host, a rail itself, eight ranks and four. */
static void sum_in_children(struct rank *rank)
{
    const int host = rank->rank / EACH, place = rank->rank % EACH;
    const struct {
        int color, rank, ranks, each;
    } children[] = {{place / 4, 4 * host + place % 4, 8, 4},
                    {place, host, 2, 1},
                    {rank->rank >= 12, rank->rank % 12, rank->rank >= 12 ? 4 : 12, 1}};
    for (int i = 0; i < COUNT(children); i++) {
        struct rank child = *rank;
        require_ok(ncclCommSplit(rank->comm, children[i].color, rank->rank, &child.comm, NULL));
        child.rank = children[i].rank;
        child.ranks = children[i].ranks;
        for (int k = 0; k < 2; k++) {
            struct operation operation = operation_of(k == 0 ? &scenes[0] : &scenes[5]);
            sums_new(&child, &operation, children[i].color, false);
            sums_fill(&child, &operation, children[i].color);
            require_ok(operation_post(&child, &operation));
            sums_check_by(&child, &operation, children[i].color, children[i].each);
        }
        require_told(child.comm, "reduce_scatter", "bf16", 1, 1);
        require_told(child.comm, "all_reduce", "bf16", 1, 1);
        ranks_meet();
        require_ok(ncclCommDestroy(child.comm));
    }
}

static void sum_in(const struct rank *rank, coll_comm comm, int ranks, int each)
{
    struct rank of_comm = *rank;
    struct operation operation = operation_of(&scenes[0]);
    of_comm.comm = comm;
    of_comm.ranks = ranks;
    sums_new(&of_comm, &operation, 0, false);
    sums_fill(&of_comm, &operation, 0);
    require_ok(operation_post(&of_comm, &operation));
    sums_check_by(&of_comm, &operation, 0, each);
    require_told(comm, "reduce_scatter", "bf16", 1, 1);
}

/* Three ranks of two hosts become four, two of each, and then the same without any left out. */
static void sum_grown_and_shrunk(struct rank *rank)
{
    enum { FEW = 3, ALL = 4 };
    static coll_id grow_id;
    coll_comm first = NULL, grown = NULL, shrunk = NULL;
    fake_device_set(rank->rank);
    rank->stream = fake_stream_make();
    if (rank->rank < FEW) {
        require_ok(ncclCommInitRank(&first, FEW, rank->id, rank->rank));
        sum_in(rank, first, FEW, 1);
    } else {
        ranks_meet();
    }
    if (rank->rank == 0)
        require_ok(ncclCommGetUniqueId(first, &grow_id));
    ranks_meet();
    const bool is_new = rank->rank == FEW;
    require_ok(ncclCommGrow(first, ALL, is_new || rank->rank == 0 ? &grow_id : NULL, is_new ? FEW : -1, &grown, NULL));
    sum_in(rank, grown, ALL, 2);
    require_ok(ncclCommShrink(grown, NULL, 0, &shrunk, NULL, COLL_SHRINK_ABORT));
    sum_in(rank, shrunk, ALL, 2);
    if (first != NULL)
        require_ok(ncclCommDestroy(first));
    require_ok(ncclCommDestroy(shrunk));
    require_ok(ncclCommAbort(grown));
    fake_stream_end(rank->stream);
}

START_TEST(communicators_that_grow_and_shrink_have_rails_of_their_own)
{
    set_hosts("2");
    ranks_start(4, sum_grown_and_shrunk, NULL);
}
END_TEST

/* ---- A rank that does not come ----------------------------------------------------------------------------------- */

enum { LOST = 3, SOON_MS = 300, PATIENCE_MS = 20000 };

/* What rank 3 has for its rail, which is rank 1, does not fit and is not sent: rank 1 waits until it is aborted, or
 * until it is told; those of the other rail go on. */
static void lose(struct rank *rank)
{
    const bool waits = *(const bool *)rank->argument;
    const struct scene scene = {COLL_REDUCE_SCATTER, COLL_FP32, COLL_SUM, false, VALUES_NORMAL, PAGE / 4 + 9};
    struct operation operation = operation_of(&scene);
    rank_begin(rank);
    sums_new(rank, &operation, 0, false);
    sums_fill(rank, &operation, 0);
    ranks_meet();
    fake_gpu.lost = 1u << LOST;
    require_ok(operation_post(rank, &operation));
    if (rank->rank % 2 == 0) {
        sums_check_by(rank, &operation, 0, 2);
        require(error_of(rank->comm) == COLL_SUCCESS);
    } else {
        ranks_meet();
    }
    if (rank->rank == 1 && waits) {
        await_error(rank->comm);
        require(ends_within(rank->stream, PATIENCE_MS));
        require(operation_post(rank, &operation) == COLL_REMOTE_ERROR);
    } else if (rank->rank == 1) {
        require(!ends_within(rank->stream, SOON_MS));
    }
    ranks_meet();
    rank_abort(rank);
}

START_TEST(a_rail_that_waits_is_told_or_aborted)
{
    const bool waits = _i == 1;
    set_hosts("2");
    fake_gpu.hurry = waits ? 20 : 0;
    ranks_start(4, lose, &waits);
}
END_TEST

/* ---- What auto makes of it --------------------------------------------------------------------------------------- */

enum { FAR_FS = 1000000 /* 8 Gbit/s of each rank */, MANY = 1 << 18, TURNS = 60 };

static void sum_often(struct rank *rank)
{
    const bool near = *(const bool *)rank->argument;
    const struct scene scene = {COLL_REDUCE_SCATTER, COLL_BF16, COLL_SUM, false, VALUES_NORMAL, MANY};
    struct operation operation = operation_of(&scene);
    operation_new(rank, &operation, 0, false);
    operation_fill(rank, &operation);
    for (unsigned turn = 0; turn < (near ? TURNS : TURNS / 10); turn++) {
        require_ok(operation_post(rank, &operation));
        fake_stream_wait(rank->stream);
        ranks_meet();
    }
    const struct told told = told_of(rank->comm, "reduce_scatter", "bf16");
    if (near)
        require(told.compressed > TURNS / 2);
    else
        require(told.compressed == 0 && strcmp(told.reason, "raw: the link is fast") == 0);
}

/* Where ranks of a host reach each other soon, and where they do so no sooner than those of others. */
START_TEST(auto_weighs_rails_by_the_links_that_they_take)
{
    const bool near = _i == 1;
    set_hosts("2");
    links_begin(10000, FAR_FS);
    fake_gpu.near_fs = near ? FAR_FS / 64 : FAR_FS;
    fake_gpu.ring_fs = FAR_FS;
    ranks_run(4, sum_often, &near);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("rails");
    tcase_add_checked_fixture(tests, set_up, NULL);
    add_ranks(tests, "bits_are_of_the_documented_order_and_less_crosses_than_by_a_ring", ranks_run, sum_by_rails, RANKS,
              COUNT(scenes));
    add_ranks(tests, "sums_that_do_not_fit_arrive", ranks_run, overflow_on_rails, RANKS, 4);
    add_ranks(tests, "graphs_hold_all_phases", ranks_run, replay, RANKS, 1);
    add_ranks(tests, "registered_memory_is_not_sent_from", ranks_run, sum_registered, RANKS, 2);
    add_ranks(tests, "groups_run_phase_by_phase", ranks_run, group_all, RANKS, 1);
    tcase_add_test(tests, rails_that_overflow_get_room_whatever_others_did);
    tcase_add_test(tests, a_gpu_without_memory_sums_by_that_of_the_host);
    tcase_add_loop_test(tests, only_even_hosts_whose_ranks_follow_each_other_have_rails, 0, COUNT(placements));
    tcase_add_test(tests, the_order_of_the_ring_is_kept);
    add_ranks(tests, "children_have_rails_of_their_own", ranks_run, sum_in_children, RANKS, 1);
    tcase_add_test(tests, communicators_that_grow_and_shrink_have_rails_of_their_own);
    tcase_add_loop_test(tests, a_rail_that_waits_is_told_or_aborted, 0, 2);
    tcase_add_loop_test(tests, auto_weighs_rails_by_the_links_that_they_take, 0, 2);
    return suite_run("rails", tests);
}
