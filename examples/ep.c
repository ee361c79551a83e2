/* ep: a layer of eight experts on four processes. Each routes its tokens to two experts; an expert multiplies rows with
 * its number. The processes are children of this one and agree by memory that they share; in a training the gather is
 * MPI's, or that of torch.distributed. */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <strait/ep.h>

enum { RANKS = 4, EXPERTS = 8, TOKENS = 16, TOPK = 2, HIDDEN = 64 };

/* Where the processes meet. */
struct shared {
    atomic_uint arrived;
    unsigned char gathered[8][RANKS][4096]; /* one for each gather: a group makes four */
};

struct self {
    struct shared *shared;
    unsigned rank, gathers;
};

static int gather(void *context, const void *send, void *receive, size_t bytes)
{
    struct self *self = context;
    const unsigned turn = self->gathers++;

    if (turn == 8 || bytes > 4096)
        return 1;
    memcpy(self->shared->gathered[turn][self->rank], send, bytes);
    atomic_fetch_add(&self->shared->arrived, 1);
    while (atomic_load(&self->shared->arrived) < RANKS * (turn + 1))
        sched_yield();
    for (unsigned rank = 0; rank < RANKS; rank++)
        memcpy((char *)receive + rank * bytes, self->shared->gathered[turn][rank], bytes);
    return 0;
}

static void check(enum strait_status status, const char *what)
{
    if (status == STRAIT_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, strait_status_string(status));
    exit(EXIT_FAILURE);
}

static float tokens[TOKENS][HIDDEN] __attribute__((aligned(16))), sums[TOKENS][HIDDEN] __attribute__((aligned(16)));

/* One step: tokens to their experts, what the experts make of them, and the sums back. */
static void step(struct strait_ep_group *group, struct strait_ep_handle *handle, const int32_t numbers[TOKENS][TOPK])
{
    const uint32_t most = RANKS * TOKENS;
    int32_t total, *local = malloc(most * TOPK * sizeof(*local));
    float *rows = strait_ep_alloc(group, most * sizeof(tokens[0]));
    const struct strait_ep_routing routing = {
        .size = sizeof(routing), .topk = numbers, .tokens = TOKENS, .topk_bytes = 4, .total = &total};
    const struct strait_ep_tensor own = {tokens, sizeof(tokens[0]), STRAIT_ELEMENT_FP32};
    const struct strait_ep_tensor came = {rows, sizeof(tokens[0]), STRAIT_ELEMENT_FP32};
    const struct strait_ep_tensor summed = {sums, sizeof(sums[0]), STRAIT_ELEMENT_FP32};
    const struct strait_ep_dispatch_in in = {.size = sizeof(in), .tokens = own};
    const struct strait_ep_dispatch_out out = {.size = sizeof(out), .tokens = came, .topk = local, .rows = most};
    const struct strait_ep_combine_in back = {.size = sizeof(back), .tokens = came};
    const struct strait_ep_combine_out sum = {.size = sizeof(sum), .tokens = summed};

    if (rows == NULL || local == NULL)
        check(STRAIT_ERR_NO_MEMORY, "memory");
    check(strait_ep_update(handle, &routing, NULL), "update");
    check(strait_ep_dispatch(handle, &in, &out, STRAIT_EP_GLOBAL_IDS, NULL), "dispatch");
    for (int32_t row = 0; row < total; row++) {
        float factor = 0; /* of all experts of the token that are here */
        for (unsigned k = 0; k < TOPK; k++)
            factor += local[row * TOPK + (int32_t)k] >= 0 ? (float)local[row * TOPK + (int32_t)k] : 0;
        for (unsigned i = 0; i < HIDDEN; i++)
            rows[row * HIDDEN + (int32_t)i] *= factor;
    }
    check(strait_ep_combine(handle, &back, &sum, 0, NULL), "combine");
    strait_ep_free(group, rows);
    free(local);
}

static void run(struct shared *shared, unsigned rank)
{
    struct self self = {shared, rank, 0};
    const struct strait_ep_config config = {.size = sizeof(config),
                                            .all_gather = gather,
                                            .context = &self,
                                            .rank = rank,
                                            .rank_count = RANKS,
                                            .algorithm = STRAIT_EP_HIGH_THROUGHPUT,
                                            .memory = STRAIT_EP_HOST,
                                            .experts = EXPERTS,
                                            .tokens_max = TOKENS,
                                            .row_bytes_max = sizeof(tokens[0]),
                                            .topk_max = TOPK,
                                            .heap_bytes = RANKS * sizeof(tokens)};
    const struct strait_ep_handle_config shape = {.size = sizeof(shape), .layout = STRAIT_EP_FLAT, .topk = TOPK};
    struct strait_ep_group *group;
    struct strait_ep_handle *handle;
    int32_t numbers[TOKENS][TOPK];
    char text[200];

    for (unsigned t = 0; t < TOKENS; t++) {
        for (unsigned i = 0; i < HIDDEN; i++)
            tokens[t][i] = (float)(rank * 100 + t);
        numbers[t][0] = (int32_t)((rank + t) % EXPERTS);
        numbers[t][1] = (int32_t)((rank + 3 * t + 1) % EXPERTS);
    }
    const enum strait_status status = strait_ep_group_create(&config, &group, text, sizeof(text));
    if (status != STRAIT_OK)
        check(status, text);
    check(strait_ep_handle_create(group, &shape, &handle), "handle");
    step(group, handle, numbers);
    for (unsigned t = 0; t < TOKENS; t++) {
        const int32_t a = numbers[t][0], b = numbers[t][1];
        if (sums[t][5] != tokens[t][5] * (float)(a == b ? a : a + b))
            check(STRAIT_ERR_CORRUPT, "a sum");
    }
    strait_ep_handle_destroy(handle);
    strait_ep_group_destroy(group);
}

int main(void)
{
    struct shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int failed = shared == MAP_FAILED, status;

    for (unsigned rank = 0; rank < RANKS && !failed; rank++)
        if (fork() == 0) {
            run(shared, rank);
            return 0;
        }
    while (wait(&status) > 0)
        failed = failed || status != 0;
    printf("%u tokens through %u experts of %u processes: %s\n", RANKS * TOKENS, EXPERTS, RANKS,
           failed ? "failed" : "all sums are right");
    return failed;
}
