/* The kernel that adds up, against its scalar twin, bit for bit, with what lies around the results.
 *
 *   test_collective_reduce_cuda             all of what follows but times
 *   test_collective_reduce_cuda --short     few trials, every buffer an allocation of its own: for compute-sanitizer
 *   test_collective_reduce_cuda --trials N  N random ones only
 *   test_collective_reduce_cuda --times     only how fast it is */
#include <string.h>

#include "collective/cuda/reduce.h"
#include "tests/reduce_times.h"
#include "tests/reduce_values.h"

#define require_cuda(call) require((call) == cudaSuccess)

enum { BUFFERS = COLL_REDUCE_SOURCES_MAX + 1, SLACK = 64 };

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
    for (uint32_t i = 0; i < buffers; i++) {
        const size_t size = exact ? trial->offset[i] + bytes : trial->room;
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
    for (uint32_t i = 0; i < buffers_of(trial); i++)
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
        trial->offset[i] = alignment == ALIGNED ? 0
                           : alignment == ALIKE ? same
                                                : element * rng_below(rng, 16 / element);
}

static const uint32_t ranks[] = {1, 2, 3, 4, 5, 8, 9, 17, 64};

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
    require_cuda(cudaGetLastError());
}

int main(int argc, char **argv)
{
    const bool few = argc == 2 && strcmp(argv[1], "--short") == 0, times = argc == 2 && strcmp(argv[1], "--times") == 0;
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
        time_reduce(stream);
    } else if (trials) {
        random_trials((unsigned)strtoul(argv[2], NULL, 0));
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
