/* NCCL itself against the scalar sums of collective/reduce.h: reduce_scatter by its ring with each protocol, bit for
 * bit, and all_reduce of two ranks. One process, all GPUs of the machine. Without two of them or without NCCL it is
 * skipped. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>
#include <stdlib.h>
#include <string.h>

#include "tests/collective/reduce_values.h"

#define require_cuda(call) require((call) == cudaSuccess)
#define require_nccl(call) require((call) == ncclSuccess)

enum { RANKS_MAX = 8, MOST = 1 << 18 };

/* ---- NCCL -------------------------------------------------------------------------------------------------------- */

static struct {
    ncclResult_t (*GetVersion)(int *);
    ncclResult_t (*CommInitAll)(ncclComm_t *, int, const int *);
    ncclResult_t (*CommDestroy)(ncclComm_t);
    ncclResult_t (*GroupStart)(void);
    ncclResult_t (*GroupEnd)(void);
    ncclResult_t (*ReduceScatter)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t);
    ncclResult_t (*AllReduce)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t);
} nccl;

static bool load_nccl(void)
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return false;
#define FIND(name) require((*(void **)&nccl.name = dlsym(library, "nccl" #name)) != NULL)
    FIND(GetVersion);
    FIND(CommInitAll);
    FIND(CommDestroy);
    FIND(GroupStart);
    FIND(GroupEnd);
    FIND(ReduceScatter);
    FIND(AllReduce);
#undef FIND
    return true;
}

static const ncclDataType_t types[] = {ncclBfloat16, ncclFloat16, ncclFloat32};
static const ncclRedOp_t operations[] = {ncclSum, ncclAvg, ncclMax, ncclMin};
static const char *const type_names[] = {"bf16", "fp16", "fp32"};
static const char *const operation_names[] = {"sum", "avg", "max", "min"};

/* ---- Ranks ------------------------------------------------------------------------------------------------------- */

static struct side {
    ncclComm_t comm;
    cudaStream_t stream;
    uint8_t *input, *output; /* of the device */
    uint8_t *values, *result, *expected;
} sides[RANKS_MAX];
static int ranks;

static void sides_init(void)
{
    for (int r = 0; r < ranks; r++) {
        struct side *side = &sides[r];
        const size_t bytes = (size_t)4 * MOST * (size_t)ranks;
        require_cuda(cudaSetDevice(r));
        require_cuda(cudaStreamCreateWithFlags(&side->stream, cudaStreamNonBlocking));
        require_cuda(cudaMalloc((void **)&side->input, bytes));
        require_cuda(cudaMalloc((void **)&side->output, bytes));
        require((side->values = malloc(bytes)) != NULL && (side->result = malloc(bytes)) != NULL &&
                (side->expected = malloc(bytes)) != NULL);
    }
}

static void communicators(bool make)
{
    ncclComm_t comms[RANKS_MAX];
    if (make)
        require_nccl(nccl.CommInitAll(comms, ranks, NULL));
    for (int r = 0; r < ranks; r++) {
        if (!make)
            require_nccl(nccl.CommDestroy(sides[r].comm));
        sides[r].comm = make ? comms[r] : NULL;
    }
}

/* ---- One operation ----------------------------------------------------------------------------------------------- */

struct asked_sum {
    enum coll_reduce_type type;
    enum coll_reduce_operation operation;
    enum addend addend;
    size_t count; /* of a rank's block; all_reduce: of all */
    bool all;
};

static void fill(const struct asked_sum *asked, struct rng *rng)
{
    const size_t count = asked->count * (asked->all ? 1 : (size_t)ranks);
    for (int r = 0; r < ranks; r++) {
        reduce_fill(rng, asked->type, asked->addend, sides[r].values, count);
        require_cuda(cudaSetDevice(r));
        require_cuda(cudaMemcpyAsync(sides[r].input, sides[r].values, count * coll_reduce_element_bytes(asked->type),
                                     cudaMemcpyHostToDevice, sides[r].stream));
    }
}

static void call(const struct asked_sum *asked)
{
    const ncclDataType_t type = types[asked->type];
    const ncclRedOp_t op = operations[asked->operation];
    require_nccl(nccl.GroupStart());
    for (int r = 0; r < ranks; r++) {
        struct side *s = &sides[r];
        require_cuda(cudaSetDevice(r));
        require_nccl((asked->all ? nccl.AllReduce : nccl.ReduceScatter)(s->input, s->output, asked->count, type, op,
                                                                        s->comm, s->stream));
    }
    require_nccl(nccl.GroupEnd());
    for (int r = 0; r < ranks; r++) {
        const size_t bytes = asked->count * coll_reduce_element_bytes(asked->type);
        require_cuda(cudaSetDevice(r));
        require_cuda(cudaMemcpyAsync(sides[r].result, sides[r].output, bytes, cudaMemcpyDeviceToHost, sides[r].stream));
        require_cuda(cudaStreamSynchronize(sides[r].stream));
    }
}

/* Elements that are not what the scalar sums give in this order. */
static size_t differing(const struct asked_sum *asked, enum coll_reduce_order order)
{
    const size_t element = coll_reduce_element_bytes(asked->type), bytes = asked->count * element;
    size_t wrong = 0;
    for (int r = 0; r < ranks; r++) {
        struct coll_reduce reduce = {.type = asked->type,
                                     .operation = asked->operation,
                                     .order = order,
                                     .sources = (uint32_t)ranks,
                                     .rank = (uint32_t)r,
                                     .dst = sides[r].expected,
                                     .count = asked->count};
        for (int i = 0; i < ranks; i++)
            reduce.source[i] = sides[i].values + (asked->all ? 0 : (size_t)r * bytes);
        require(coll_reduce_scalar(&reduce) == STRAIT_OK);
        for (size_t i = 0; i < asked->count; i++)
            wrong += memcmp(sides[r].expected + i * element, sides[r].result + i * element, element) != 0;
    }
    return wrong;
}

/* ---- All --------------------------------------------------------------------------------------------------------- */

static const size_t counts[] = {1, 1001, 40000, MOST};

/* Whether NCCL is said to give the same bits. What LL128 rounds more often is the same only where products are exact.
 */
static bool said_of_ring(const struct asked_sum *asked, const char *protocol)
{
    const bool halved_exactly = (ranks & (ranks - 1)) == 0 && asked->addend == ADDEND_BELL;
    return asked->operation != COLL_REDUCE_AVG || strcmp(protocol, "LL128") != 0 || halved_exactly;
}

static bool said_in_fp32(const struct asked_sum *asked)
{
    if (asked->operation == COLL_REDUCE_MAX || asked->operation == COLL_REDUCE_MIN)
        return true;
    return ranks == 2 && (asked->operation == COLL_REDUCE_SUM || asked->addend == ADDEND_BELL);
}

static unsigned judge(const struct asked_sum *asked, const char *protocol)
{
    const bool ring = !asked->all && said_of_ring(asked, protocol), in_fp32 = said_in_fp32(asked);
    const size_t by_ring = differing(asked, COLL_REDUCE_NCCL_RING), by_rank = differing(asked, COLL_REDUCE_IN_FP32);
    const bool wrong = (ring && by_ring > 0) || (in_fp32 && by_rank > 0);
    if (wrong || (asked->count == MOST && (by_ring > 0 || by_rank > 0)))
        printf("%s %-7s %s %s values %d, %zu: of %zu differ from NCCL: %zu by the ring (%s), %zu in FP32 (%s)\n",
               wrong ? "WRONG" : "     ", protocol, type_names[asked->type], operation_names[asked->operation],
               asked->addend, asked->count, asked->count * (size_t)ranks, by_ring, ring ? "said 0" : "may", by_rank,
               in_fp32 ? "said 0" : "may");
    return wrong;
}

static unsigned check_protocol(const char *protocol, struct rng *rng, unsigned *done)
{
    unsigned wrong = 0;
    for (int type = 0; type < COLL_REDUCE_TYPES; type++)
        for (int op = 0; op < COLL_REDUCE_OPERATIONS; op++)
            for (int a = 0; a < ADDENDS; a++)
                for (int c = 0; c < COUNT(counts); c++)
                    for (int all = 0; all < (ranks == 2 ? 2 : 1); all++) {
                        const struct asked_sum asked = {(enum coll_reduce_type)type, (enum coll_reduce_operation)op,
                                                        (enum addend)a, counts[c], all != 0};
                        if (asked.count == MOST && (a + op + type + all) % 3 != 0)
                            continue;
                        fill(&asked, rng);
                        call(&asked);
                        wrong += judge(&asked, protocol);
                        (*done)++;
                    }
    return wrong;
}

int main(int argc, char **argv)
{
    static const char *const all[] = {"Simple", "LL", "LL128"};
    struct rng rng = rng_init(770);
    unsigned wrong = 0, done = 0;
    int version;
    if (cudaGetDeviceCount(&ranks) != cudaSuccess || ranks < 2 || !load_nccl()) {
        printf("skipped: %s\n", ranks < 2 ? "fewer than two GPUs" : "no libnccl.so.2");
        return 77;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    ranks = ranks > RANKS_MAX ? RANKS_MAX : ranks;
    require_nccl(nccl.GetVersion(&version));
    sides_init();
    setenv("NCCL_ALGO", "Ring", 1);
    setenv("NCCL_NVLS_ENABLE", "0", 1);
    for (int p = 0; p < COUNT(all); p++) {
        if (argc == 2 && strcmp(argv[1], all[p]) != 0)
            continue;
        setenv("NCCL_PROTO", all[p], 1); /* communicators look when they are made */
        communicators(true);
        wrong += check_protocol(all[p], &rng, &done);
        communicators(false);
    }
    printf("NCCL %d, %d ranks: %u operations, %u not as said\n", version, ranks, done, wrong);
    return wrong == 0 && done > 0 ? 0 : 1;
}
