/* The kernel that adds up, against its scalar twin, bit for bit, with what lies around the results.
 *
 *   collective_reduce_cuda             all of what follows but times
 *   collective_reduce_cuda --short     few trials, every buffer an allocation of its own: for compute-sanitizer
 *   collective_reduce_cuda --emulated  few trials, and nothing that kernels on the host cannot do
 *   collective_reduce_cuda --trials N  N random ones only
 *   collective_reduce_cuda --times     only how fast it is */
#include <string.h>

#include "collective/cuda/reduce.h"
#include "tests/collective/reduce_values.h"

#define require_cuda(call) require((call) == cudaSuccess)

enum { BUFFERS = COLL_REDUCE_SOURCES_MAX + 1, SLACK = 64, LISTED_MAX = 64 };

static cudaStream_t stream;
static bool exact; /* every buffer is an allocation of just its size */
static unsigned done;

/* ---- A trial: buffers here and the same there -------------------------------------------------------------------- */

struct trial {
    struct coll_reduce reduce; /* addresses of the host */
    uint32_t offset[BUFFERS];  /* bytes, of each source and of dst, from a multiple of 16 */
    int in_place;              /* which source is dst; -1: none */
    unsigned budget;
    enum addend addend;

    size_t room; /* bytes of each buffer, with what is around */
    uint8_t *host, *back, *device[BUFFERS];
};

static uint32_t buffers_of(const struct trial *trial)
{
    return trial->reduce.sources + (trial->in_place < 0);
}

/* More sources than a launch lists lie in one allocation, evenly spaced. */
static bool is_spaced(const struct trial *trial)
{
    return trial->reduce.sources > LISTED_MAX;
}

static void place(struct trial *trial, uint32_t buffer, bool on_device, const void **at)
{
    const size_t before = exact ? 0 : SLACK;
    const uint8_t *base = on_device ? trial->device[buffer] : trial->host + buffer * trial->room;
    *at = base + before + trial->offset[buffer];
}

static struct coll_reduce placed(struct trial *trial, bool on_device)
{
    struct coll_reduce reduce = trial->reduce;
    const void *dst;
    for (uint32_t i = 0; i < reduce.sources; i++)
        place(trial, i, on_device, &reduce.source[i]);
    place(trial, trial->in_place < 0 ? reduce.sources : (uint32_t)trial->in_place, on_device, &dst);
    reduce.dst = (void *)(uintptr_t)dst;
    return reduce;
}

/* Host and device buffers with the same values; what is not a value is CANARY. Sizes are round when not exact, so that
 * offsets are what they say. */
static void trial_init(struct trial *trial, struct rng *rng)
{
    const size_t bytes = trial->reduce.count * coll_reduce_element_bytes(trial->reduce.type);
    const uint32_t buffers = buffers_of(trial);
    trial->room = exact ? bytes + 16 : (bytes + 2 * SLACK + 31) / 16 * 16;
    require((trial->host = malloc(buffers * trial->room)) != NULL && (trial->back = malloc(trial->room)) != NULL);
    memset(trial->host, CANARY, buffers * trial->room);
    const struct coll_reduce reduce = placed(trial, false);
    for (uint32_t i = 0; i < reduce.sources; i++)
        reduce_fill(rng, reduce.type, trial->addend, (uint8_t *)(uintptr_t)reduce.source[i], reduce.count);
    uint8_t *all = NULL;
    if (is_spaced(trial))
        require_cuda(cudaMalloc((void **)&all, buffers * trial->room));
    for (uint32_t i = 0; i < buffers; i++) {
        const size_t size = exact ? trial->offset[i] + bytes : trial->room;
        trial->device[i] = all + i * trial->room;
        if (!is_spaced(trial))
            require_cuda(exact ? cudaMalloc((void **)&trial->device[i], size == 0 ? 1 : size)
                               : cudaMallocAsync((void **)&trial->device[i], size, stream));
        require_cuda(
            cudaMemcpyAsync(trial->device[i], trial->host + i * trial->room, size, cudaMemcpyHostToDevice, stream));
    }
}

static void compare(struct trial *trial, const char *what)
{
    const struct coll_reduce *r = &trial->reduce;
    const size_t bytes = r->count * coll_reduce_element_bytes(r->type);
    for (uint32_t i = 0; i < buffers_of(trial); i++) {
        const size_t size = exact ? trial->offset[i] + bytes : trial->room;
        const uint8_t *here = trial->host + i * trial->room;
        require_cuda(cudaMemcpyAsync(trial->back, trial->device[i], size, cudaMemcpyDeviceToHost, stream));
        require_cuda(cudaStreamSynchronize(stream));
        if (memcmp(here, trial->back, size) == 0)
            continue;
        size_t at = 0;
        while (here[at] == trial->back[at])
            at++;
        fprintf(
            stderr,
            "%s: type %d operation %d order %d, %u sources, rank %u, %zu elements, in place %d, budget %u: buffer %u "
            "byte %zu of %zu (values from %u) is %02x and not %02x\n",
            what, r->type, r->operation, r->order, r->sources, r->rank, r->count, trial->in_place, trial->budget, i, at,
            size, (exact ? 0 : SLACK) + trial->offset[i], trial->back[at], here[at]);
        abort();
    }
}

static void trial_fini(struct trial *trial)
{
    if (is_spaced(trial))
        require_cuda(cudaFree(trial->device[0]));
    for (uint32_t i = 0; i < buffers_of(trial) && !is_spaced(trial); i++)
        require_cuda(exact ? cudaFree(trial->device[i]) : cudaFreeAsync(trial->device[i], stream));
    free(trial->host);
    free(trial->back);
}

static void run_trial(struct trial *trial, struct rng *rng)
{
    trial_init(trial, rng);
    const struct coll_reduce here = placed(trial, false), there = placed(trial, true);
    require_cuda(coll_reduce_launch(&there, trial->budget, stream));
    require(coll_reduce_scalar(&here) == STRAIT_OK);
    compare(trial, "differs");
    trial_fini(trial);
    done++;
}

/* ---- Chosen and random ------------------------------------------------------------------------------------------- */

static const unsigned budgets[] = {0, 0, 1, 3, 1000};

enum alignment { ALIGNED, ALIKE, UNLIKE, ALIGNMENTS };

static void choose_offsets(struct trial *trial, struct rng *rng, enum alignment alignment)
{
    const uint32_t element = (uint32_t)coll_reduce_element_bytes(trial->reduce.type);
    const uint32_t same = element * rng_below(rng, 16 / element);
    for (uint32_t i = 0; i < BUFFERS; i++)
        trial->offset[i] = alignment == ALIGNED                     ? 0
                           : alignment == ALIKE || is_spaced(trial) ? same
                                                                    : element * rng_below(rng, 16 / element);
    if (alignment == UNLIKE && is_spaced(trial)) /* one that is elsewhere, as a rank's own values are */
        trial->offset[rng_below(rng, buffers_of(trial))] = element * rng_below(rng, 16 / element);
}

static const uint32_t ranks[] = {1, 2, 3, 4, 5, 8, 9, 17, 64, 65, 130, 1024};

static void chosen(unsigned one_in)
{
    static const size_t counts[] = {1, 5, 8, 9, 31, 777, 4099};
    struct rng rng = rng_init(760);
    for (int type = 0; type < COLL_REDUCE_TYPES; type++)
        for (int op = 0; op < COLL_REDUCE_OPERATIONS; op++)
            for (int order = 0; order < COLL_REDUCE_ORDERS; order++)
                for (int n = 0; n < COUNT(ranks); n++)
                    for (int c = 0; c < COUNT(counts); c++)
                        for (int a = 0; a < ALIGNMENTS; a++) {
                            struct trial trial = {.reduce = {.type = (enum coll_reduce_type)type,
                                                             .operation = (enum coll_reduce_operation)op,
                                                             .order = (enum coll_reduce_order)order,
                                                             .sources = ranks[n],
                                                             .rank = rng_below(&rng, ranks[n]),
                                                             .count = counts[c]},
                                                  .in_place = (int)rng_below(&rng, 2 * ranks[n]) - (int)ranks[n],
                                                  .addend = (enum addend)rng_below(&rng, ADDENDS + 1),
                                                  .budget = budgets[rng_below(&rng, COUNT(budgets))]};
                            if (trial.in_place < 0)
                                trial.in_place = -1;
                            choose_offsets(&trial, &rng, (enum alignment)a);
                            if (rng_below(&rng, one_in) == 0)
                                run_trial(&trial, &rng);
                        }
    printf("%u chosen trials agree\n", done);
}

static void random_trials(unsigned count)
{
    struct rng rng = rng_init(761);
    for (done = 0; done < count;) {
        const uint32_t n = rng_below(&rng, 3) == 0 ? ranks[rng_below(&rng, COUNT(ranks))] : 2 + rng_below(&rng, 7);
        const uint32_t most = rng_below(&rng, 20) == 0 ? 600000 : rng_below(&rng, 3) == 0 ? 20000 : 300;
        struct trial trial = {
            .reduce = {.type = (enum coll_reduce_type)rng_below(&rng, COLL_REDUCE_TYPES),
                       .operation = (enum coll_reduce_operation)rng_below(&rng, COLL_REDUCE_OPERATIONS),
                       .order = (enum coll_reduce_order)rng_below(&rng, COLL_REDUCE_ORDERS),
                       .sources = n,
                       .rank = rng_below(&rng, n),
                       .count = rng_below(&rng, most / n + 1)},
            .in_place = rng_below(&rng, 3) == 0 ? (int)rng_below(&rng, n) : -1,
            .addend = (enum addend)rng_below(&rng, ADDENDS + 1),
            .budget = budgets[rng_below(&rng, COUNT(budgets))]};
        choose_offsets(&trial, &rng, (enum alignment)rng_below(&rng, ALIGNMENTS));
        run_trial(&trial, &rng);
    }
    printf("%u random trials agree\n", done);
}

/* ---- Every value ------------------------------------------------------------------------------------------------- */

/* Each of 65536 with a few dozen others. */
static void every_value(enum coll_reduce_type type)
{
    enum { ALL = 65536, PARTNERS = 24 };
    struct rng rng = rng_init(762);
    for (int way = 0; way < COLL_REDUCE_OPERATIONS * COLL_REDUCE_ORDERS; way++) {
        struct trial trial = {.reduce = {.type = type,
                                         .operation = (enum coll_reduce_operation)(way / COLL_REDUCE_ORDERS),
                                         .order = (enum coll_reduce_order)(way % COLL_REDUCE_ORDERS),
                                         .sources = 2,
                                         .rank = (uint32_t)way % 2,
                                         .count = ALL * PARTNERS},
                              .in_place = -1,
                              .addend = ADDENDS};
        trial_init(&trial, &rng);
        const struct coll_reduce here = placed(&trial, false), there = placed(&trial, true);
        uint8_t *values = (uint8_t *)(uintptr_t)here.source[0], *partners = (uint8_t *)(uintptr_t)here.source[1];
        for (uint32_t i = 0; i < ALL * PARTNERS; i++) {
            put_value(values, i, (uint16_t)i);
            put_value(partners, i, get_value(partners, i / ALL * ALL));
        }
        for (uint32_t i = 0; i < 2; i++)
            require_cuda(cudaMemcpyAsync(trial.device[i], trial.host + i * trial.room, trial.room,
                                         cudaMemcpyHostToDevice, stream));
        require_cuda(coll_reduce_launch(&there, 0, stream));
        require(coll_reduce_scalar(&here) == STRAIT_OK);
        compare(&trial, "values");
        trial_fini(&trial);
    }
}

/* ---- Graphs and errors ------------------------------------------------------------------------------------------- */

/* Captured once, launched with other values each time. */
static void in_a_graph(void)
{
    struct rng rng = rng_init(763);
    struct trial trial = {.reduce = {.type = COLL_REDUCE_BF16, .sources = 3, .count = 5001}, .in_place = 1};
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    trial_init(&trial, &rng);
    const struct coll_reduce here = placed(&trial, false), there = placed(&trial, true);
    require_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    require_cuda(coll_reduce_launch(&there, 2, stream));
    require_cuda(cudaStreamEndCapture(stream, &graph));
    require_cuda(cudaGraphInstantiate(&ready, graph, 0));
    for (int i = 0; i < 3; i++) { /* the result is added to again */
        require_cuda(cudaGraphLaunch(ready, stream));
        require(coll_reduce_scalar(&here) == STRAIT_OK);
        compare(&trial, "graph");
    }
    require_cuda(cudaGraphExecDestroy(ready));
    require_cuda(cudaGraphDestroy(graph));
    trial_fini(&trial);
    printf("a graph agrees\n");
}

static void bad_arguments(void)
{
    struct coll_reduce none = {.sources = 2}, bad = {.sources = 2, .count = 8};
    require_cuda(coll_reduce_launch(&none, 0, stream));
    require(coll_reduce_launch(&bad, 0, stream) == cudaErrorInvalidValue);
    none.sources = 0;
    require(coll_reduce_launch(&none, 0, stream) == cudaErrorInvalidValue);
    static uint64_t somewhere;
    struct coll_reduce strewn = {.sources = 3 * LISTED_MAX, .count = 1, .dst = &somewhere};
    for (uint32_t i = 0; i < strewn.sources; i++) /* no three of them are evenly spaced */
        strewn.source[i] = (const uint8_t *)strewn.dst + 4096 + (size_t)i * i * 8;
    require(coll_reduce_launch(&strewn, 0, stream) == cudaErrorInvalidValue);
    require_cuda(cudaGetLastError());
}

/* ---- Times ------------------------------------------------------------------------------------------------------- */

enum { RUNS = 15, SOURCES = 8 };
static const size_t LARGEST = (size_t)256 << 20;

static const struct timed {
    const char *name;
    enum coll_reduce_type type;
    enum coll_reduce_operation operation;
    enum coll_reduce_order order;
    uint32_t sources;
    unsigned budget;
    uint32_t shift; /* of source 1, in bytes */
} timed[] = {{"bf16 sum", COLL_REDUCE_BF16, COLL_REDUCE_SUM, COLL_REDUCE_IN_FP32, 2, 0, 0},
             {"bf16 sum", COLL_REDUCE_BF16, COLL_REDUCE_SUM, COLL_REDUCE_IN_FP32, 3, 0, 0},
             {"bf16 sum", COLL_REDUCE_BF16, COLL_REDUCE_SUM, COLL_REDUCE_IN_FP32, 4, 0, 0},
             {"bf16 sum", COLL_REDUCE_BF16, COLL_REDUCE_SUM, COLL_REDUCE_IN_FP32, 8, 0, 0},
             {"bf16 ring avg", COLL_REDUCE_BF16, COLL_REDUCE_AVG, COLL_REDUCE_NCCL_RING, 4, 0, 0},
             {"bf16 max", COLL_REDUCE_BF16, COLL_REDUCE_MAX, COLL_REDUCE_IN_FP32, 4, 0, 0},
             {"fp16 sum", COLL_REDUCE_FP16, COLL_REDUCE_SUM, COLL_REDUCE_IN_FP32, 2, 0, 0},
             {"fp32 sum", COLL_REDUCE_FP32, COLL_REDUCE_SUM, COLL_REDUCE_IN_FP32, 2, 0, 0},
             {"fp32 sum", COLL_REDUCE_FP32, COLL_REDUCE_SUM, COLL_REDUCE_IN_FP32, 4, 0, 0},
             {"bf16 sum", COLL_REDUCE_BF16, COLL_REDUCE_SUM, COLL_REDUCE_IN_FP32, 2, 0, 2},
             {"bf16 sum", COLL_REDUCE_BF16, COLL_REDUCE_SUM, COLL_REDUCE_IN_FP32, 2, 0, 8},
             {"bf16 sum", COLL_REDUCE_BF16, COLL_REDUCE_SUM, COLL_REDUCE_IN_FP32, 2, 8, 0},
             {"bf16 sum", COLL_REDUCE_BF16, COLL_REDUCE_SUM, COLL_REDUCE_IN_FP32, 2, 16, 0},
             {"bf16 sum", COLL_REDUCE_BF16, COLL_REDUCE_SUM, COLL_REDUCE_IN_FP32, 2, 32, 0},
             {"bf16 sum", COLL_REDUCE_BF16, COLL_REDUCE_SUM, COLL_REDUCE_IN_FP32, 4, 16, 0}};

static uint8_t *source[SOURCES], *target;
static cudaEvent_t begin, end;

static int by_time(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* What is measured: one launch; or, without ranks, a copy; or, of a piece smaller than all, both for one piece after
 * another: what is copied there is added from there, as if it had been decoded. */
struct work {
    struct coll_reduce reduce;
    unsigned budget;
    size_t bytes, piece;
};

static void launch(const struct work *work)
{
    if (work->reduce.sources == 0)
        require_cuda(cudaMemcpyAsync(target, source[0], work->bytes, cudaMemcpyDeviceToDevice, stream));
    else if (work->piece == 0)
        require_cuda(coll_reduce_launch(&work->reduce, work->budget, stream));
    else
        for (size_t at = 0; at < work->bytes; at += work->piece) {
            struct coll_reduce part = work->reduce;
            part.source[0] = source[0] + at;
            part.dst = target + at;
            part.count = work->piece / coll_reduce_element_bytes(part.type);
            require_cuda(cudaMemcpyAsync(source[1], source[2] + at, work->piece, cudaMemcpyDeviceToDevice, stream));
            require_cuda(coll_reduce_launch(&part, work->budget, stream));
        }
}

/* The median, in milliseconds. */
static double measure(const struct work *work)
{
    float ms[RUNS];
    for (int i = -3; i < RUNS; i++) {
        float once;
        require_cuda(cudaEventRecord(begin, stream));
        launch(work);
        require_cuda(cudaEventRecord(end, stream));
        require_cuda(cudaEventSynchronize(end));
        require_cuda(cudaEventElapsedTime(&once, begin, end));
        if (i >= 0)
            ms[i] = once;
    }
    qsort(ms, RUNS, sizeof(ms[0]), by_time);
    return (double)ms[RUNS / 2];
}

/* Of `bytes` bytes of result. */
static void time_one(const struct timed *what, size_t bytes)
{
    struct work work = {.reduce = {.type = what->type,
                                   .operation = what->operation,
                                   .order = what->order,
                                   .sources = what->sources,
                                   .dst = target,
                                   .count = bytes / coll_reduce_element_bytes(what->type)},
                        .budget = what->budget};
    for (uint32_t i = 0; i < what->sources; i++)
        work.reduce.source[i] = source[i] + (i == 1 ? what->shift : 0);
    const double ms = measure(&work);
    const double moved = (double)bytes * (what->sources + 1);
    printf("%-14s %u ranks, SMs %3u, shift %u: %4zu MiB %8.1f us, %6.0f GB/s of results, %6.0f GB/s of memory\n",
           what->name, what->sources, what->budget, what->shift, bytes >> 20, ms * 1e3, (double)bytes / 1e6 / ms,
           moved / 1e6 / ms);
}

static void time_copy(size_t bytes)
{
    const struct work work = {.bytes = bytes};
    const double ms = measure(&work);
    printf("%-14s %34zu MiB %8.1f us, %6.0f GB/s of results, %6.0f GB/s of memory\n", "copy", bytes >> 20, ms * 1e3,
           (double)bytes / 1e6 / ms, 2 * (double)bytes / 1e6 / ms);
}

static void time_pieces(size_t piece)
{
    struct work work = {.reduce = {.type = COLL_REDUCE_BF16, .sources = 2, .source = {NULL, source[1]}},
                        .bytes = LARGEST,
                        .piece = piece};
    const double ms = measure(&work);
    printf("copies and sums of 2 ranks, pieces of %3zu MiB: %4zu MiB %8.1f us, %6.0f GB/s of results\n", piece >> 20,
           LARGEST >> 20, ms * 1e3, (double)LARGEST / 1e6 / ms);
}

static void time_reduce(void)
{
    static const size_t sizes[] = {(size_t)1 << 20, (size_t)16 << 20, (size_t)256 << 20};
    require_cuda(cudaEventCreate(&begin));
    require_cuda(cudaEventCreate(&end));
    require_cuda(cudaMalloc((void **)&target, LARGEST));
    for (int i = 0; i < SOURCES; i++) {
        require_cuda(cudaMalloc((void **)&source[i], LARGEST + 16));
        require_cuda(cudaMemsetAsync(source[i], 0x3c + i, LARGEST + 16, stream));
    }
    for (int s = 0; s < COUNT(sizes); s++) {
        time_copy(sizes[s]);
        for (int i = 0; i < COUNT(timed); i++)
            time_one(&timed[i], sizes[s]);
    }
    for (size_t piece = (size_t)2 << 20; piece <= LARGEST; piece *= 2)
        time_pieces(piece);
    for (int i = 0; i < SOURCES; i++)
        cudaFree(source[i]);
    cudaFree(target);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
}

int main(int argc, char **argv)
{
    const bool few = argc == 2 && strcmp(argv[1], "--short") == 0, times = argc == 2 && strcmp(argv[1], "--times") == 0;
    const bool emulated = argc == 2 && strcmp(argv[1], "--emulated") == 0;
    const bool trials = argc == 3 && strcmp(argv[1], "--trials") == 0;
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("skipped: no GPU\n");
        return 77;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("STRAIT_TEST_SEED=%llu\n", (unsigned long long)test_seed());
    require_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    exact = few;
    if (times) {
        time_reduce();
    } else if (trials) {
        random_trials((unsigned)strtoul(argv[2], NULL, 0));
    } else if (emulated) {
        bad_arguments();
        chosen(10);
        random_trials(300);
    } else {
        bad_arguments();
        chosen(few ? 30 : 1);
        in_a_graph();
        random_trials(few ? 40 : 1500);
    }
    if (argc == 1) {
        every_value(COLL_REDUCE_BF16);
        every_value(COLL_REDUCE_FP16);
        printf("every value agrees\n");
    }
    require_cuda(cudaStreamDestroy(stream));
    return 0;
}
