#include "tests/coll_engine/harness.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/run_suite.h"

enum { RANKS_MAX = FAKE_GPUS, PATIENCE_MS = 20000 };

static pthread_barrier_t barrier;

struct memory {
    void **blocks;
    size_t count;
};

struct start {
    struct rank rank;
    struct memory memory;
    void (*body)(struct rank *);
    bool whole;
};

/* ---- Ranks ------------------------------------------------------------------------------------------------------- */

void rank_begin(struct rank *rank)
{
    fake_device_set(rank->rank);
    rank->stream = fake_stream_make();
    require_ok(ncclCommInitRank(&rank->comm, rank->ranks, rank->id, rank->rank));
}

void rank_end(struct rank *rank)
{
    fake_stream_wait(rank->stream);
    require_ok(error_of(rank->comm));
    ranks_meet();
    require_ok(ncclCommDestroy(rank->comm));
    fake_stream_end(rank->stream);
}

void rank_abort(struct rank *rank)
{
    require_ok(ncclCommAbort(rank->comm));
    fake_stream_wait(rank->stream);
    fake_stream_end(rank->stream);
}

int rank_next(const struct rank *rank)
{
    return (rank->rank + 1) % rank->ranks;
}

int rank_before(const struct rank *rank)
{
    return (rank->rank + rank->ranks - 1) % rank->ranks;
}

void ranks_meet(void)
{
    (void)pthread_barrier_wait(&barrier);
}

static void *run(void *argument)
{
    struct start *start = argument;
    if (start->whole)
        rank_begin(&start->rank);
    start->body(&start->rank);
    if (start->whole)
        rank_end(&start->rank);
    values_free_all(&start->rank);
    return NULL;
}

/* STRAIT_TEST_HOSTS=N: so many neighbours are on one host, and others on others. STRAIT_TEST_SHM=1: GPUs have channels
 * in host memory, twice as fast as the slow link that overlap_begin makes. */
static void set_hosts(int ranks)
{
    if (getenv("STRAIT_TEST_SHM") != NULL)
        fake_gpu.shm_fs = 5000000; /* 0.2 GB/s */
    const char *told = getenv("STRAIT_TEST_HOSTS");
    const int neighbours = told != NULL ? atoi(told) : 0;
    for (int i = 0; i < ranks && neighbours > 0; i++)
        fake_gpu.hosts[i] = 1 + (uint32_t)(i / neighbours);
}

static void start_all(const coll_id *id, int ranks, void (*body)(struct rank *), const void *argument, bool whole)
{
    static struct start starts[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    set_hosts(ranks);
    require(pthread_barrier_init(&barrier, NULL, (unsigned)ranks) == 0);
    for (int i = 0; i < ranks; i++) {
        starts[i] = (struct start){.rank = {.rank = i, .ranks = ranks, .id = *id}, .body = body, .whole = whole};
        starts[i].rank.argument = (void *)(uintptr_t)argument;
        starts[i].rank.memory = &starts[i].memory;
        require(pthread_create(&threads[i], NULL, run, &starts[i]) == 0);
    }
    for (int i = 0; i < ranks; i++)
        require(pthread_join(threads[i], NULL) == 0);
    pthread_barrier_destroy(&barrier);
}

void ranks_run(int ranks, void (*body)(struct rank *), const void *argument)
{
    coll_id id;
    require_ok(ncclGetUniqueId(&id));
    ranks_run_with_id(&id, ranks, body, argument);
}

void ranks_run_with_id(const coll_id *id, int ranks, void (*body)(struct rank *), const void *argument)
{
    start_all(id, ranks, body, argument, true);
    require(fake_gpu.made == 0);
}

void ranks_start_with_id(const coll_id *id, int ranks, void (*body)(struct rank *), const void *argument)
{
    start_all(id, ranks, body, argument, false);
    require(fake_gpu.made == 0);
}

void ranks_start(int ranks, void (*body)(struct rank *), const void *argument)
{
    ranks_start_and_leak(ranks, body, argument);
    require(fake_gpu.made == 0);
}

void ranks_start_and_leak(int ranks, void (*body)(struct rank *), const void *argument)
{
    coll_id id;
    require_ok(ncclGetUniqueId(&id));
    start_all(&id, ranks, body, argument, false);
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

void *values_at(const struct rank *rank, int type, size_t count, size_t shift)
{
    struct memory *memory = rank->memory;
    const size_t size = element_bytes(type), bytes = (count + shift) * size + 1;
    uint8_t *block = malloc(bytes);
    memory->blocks = realloc(memory->blocks, (memory->count + 1) * sizeof(*memory->blocks));
    require(block != NULL && memory->blocks != NULL);
    memory->blocks[memory->count++] = block;
    memset(block, 0x5b, bytes);
    return block + shift * size;
}

void *values_new(const struct rank *rank, int type, size_t count)
{
    return values_at(rank, type, count, 0);
}

void values_free_all(const struct rank *rank)
{
    struct memory *memory = rank->memory;
    for (size_t i = 0; i < memory->count; i++)
        free(memory->blocks[i]);
    free(memory->blocks);
    *memory = (struct memory){0};
}

struct gather gather_new(const struct rank *rank, int type, size_t count, enum values kind)
{
    struct gather made = {.type = type,
                          .count = count,
                          .own = values_new(rank, type, count),
                          .all = values_new(rank, type, (size_t)rank->ranks * count)};
    gather_fill(rank, &made, kind, 0);
    return made;
}

void gather_fill(const struct rank *rank, struct gather *gather, enum values kind, uint64_t seed)
{
    gather->kind = kind;
    gather->seed = seed;
    memset(gather->all, 0x5b, gather->count * (size_t)rank->ranks * element_bytes(gather->type));
    values_fill(gather->own, gather->type, gather->count, kind, seed + (uint64_t)rank->rank);
}

coll_result gather_post(const struct rank *rank, const struct gather *gather)
{
    return ncclAllGather(gather->own, gather->all, gather->count, gather->type, rank->comm, rank->stream);
}

void gather_check(const struct rank *rank, const struct gather *gather)
{
    fake_stream_wait(rank->stream);
    require(parts_are(gather->all, gather->type, gather->count, rank->ranks, gather->kind, gather->seed, 1));
}

void gather_run(const struct rank *rank, const struct gather *gather, bool grouped)
{
    if (grouped)
        require_ok(ncclGroupStart());
    const coll_result result = gather_post(rank, gather);
    comm_settle(rank->comm, grouped ? ncclGroupEnd() : result);
    gather_check(rank, gather);
}

void rank_gather(const struct rank *rank, coll_comm comm, bool compressed)
{
    struct rank of_comm = *rank;
    of_comm.comm = comm;
    const struct gather gather = gather_new(rank, COLL_BF16, 40001, VALUES_NORMAL);
    gather_run(&of_comm, &gather, false);
    require_told(comm, "all_gather", "bf16", 1, compressed);
}

coll_result pair_post(const struct rank *rank, void *values, int type, size_t count)
{
    return rank->rank == 0 ? ncclSend(values, count, type, 1, rank->comm, rank->stream)
                           : ncclRecv(values, count, type, 0, rank->comm, rank->stream);
}

coll_result ring_post(const struct rank *rank, const void *out, void *in, int type, size_t count)
{
    require_ok(ncclGroupStart());
    require_ok(ncclSend(out, count, type, rank_next(rank), rank->comm, rank->stream));
    require_ok(ncclRecv(in, count, type, rank_before(rank), rank->comm, rank->stream));
    return ncclGroupEnd();
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

bool operation_scatters(enum coll_operation what)
{
    return what == COLL_ALL_TO_ALL || what == COLL_REDUCE_SCATTER;
}

bool operation_reduces(enum coll_operation what)
{
    return what == COLL_ALL_REDUCE || what == COLL_REDUCE_SCATTER;
}

static enum values kind_of(const struct operation *operation, int rank)
{
    return rank < 32 && (operation->others >> rank & 1) != 0 ? operation->other : operation->kind;
}

void operation_new(const struct rank *rank, struct operation *operation, size_t shift, bool in_place)
{
    const size_t count = operation->count, all = count * (size_t)rank->ranks;
    const size_t own = (size_t)rank->rank * count * element_bytes(operation->type);
    const bool scatters = operation_scatters(operation->what);
    const bool gathers = operation->what == COLL_ALL_GATHER || operation->what == COLL_ALL_TO_ALL;
    operation->in = values_at(rank, operation->type, gathers ? all : count, shift);
    operation->out = in_place && operation->what == COLL_ALL_GATHER
                         ? operation->in + own
                         : values_at(rank, operation->type, scatters ? all : count, shift);
    if (in_place && (operation_reduces(operation->what) || operation->what == COLL_BROADCAST))
        operation->in = operation->out + (scatters ? own : 0);
}

void operation_fill(const struct rank *rank, const struct operation *operation)
{
    parts_fill(operation->out, operation->type, operation->count, operation_scatters(operation->what) ? rank->ranks : 1,
               kind_of(operation, rank->rank), operation->seed + SEED_STEP * (uint64_t)rank->rank, 1);
}

coll_result operation_post(const struct rank *rank, const struct operation *operation)
{
    const uint8_t *out = operation->out;
    uint8_t *in = operation->in;
    const size_t count = operation->count;
    const int type = operation->type;
    switch (operation->what) {
    case COLL_ALL_GATHER:
        return ncclAllGather(out, in, count, type, rank->comm, rank->stream);
    case COLL_ALL_TO_ALL:
        return ncclAlltoAll(out, in, count, type, rank->comm, rank->stream);
    case COLL_REDUCE_SCATTER:
        return ncclReduceScatter(out, in, count, type, operation->reduction, rank->comm, rank->stream);
    case COLL_ALL_REDUCE:
        return ncclAllReduce(out, in, count, type, operation->reduction, rank->comm, rank->stream);
    case COLL_BROADCAST: /* the others have nothing to send */
        if (in == out)
            return ncclBcast(in, count, type, operation->root, rank->comm, rank->stream);
        return ncclBroadcast(rank->rank == operation->root ? out : NULL, in, count, type, operation->root, rank->comm,
                             rank->stream);
    default:
        return ring_post(rank, out, in, type, count);
    }
}

/* Ranks of each host, where the order of sums is by host; 0: it is not. */
static int ranks_by_host(const struct rank *rank, const struct operation *operation)
{
    int each = 1;
    while (each < rank->ranks && fake_gpu.hosts[each] == fake_gpu.hosts[0])
        each++;
    bool even = operation->order == COLL_REDUCE_IN_FP32 && each > 1 && each < rank->ranks && rank->ranks % each == 0;
    for (int i = each; i < rank->ranks; i++)
        even &= (fake_gpu.hosts[i] == fake_gpu.hosts[i - 1]) == (i % each != 0);
    return even ? each : 0;
}

/* Adds up by host, and then what comes of that: in the place of each host's first source. The values behind the parts
 * of an all_reduce are added by rank. */
static bool sum_by_host(const struct rank *rank, const struct operation *operation, const struct coll_reduce *all,
                        int each)
{
    const size_t ranks = (size_t)rank->ranks, bytes = element_bytes(operation->type);
    const size_t whole = operation->what == COLL_ALL_REDUCE ? operation->count / ranks / 8 * 8 * ranks : all->count;
    struct coll_reduce sum = *all, local = *all, hosts = *all;
    bool good = true;
    sum.count -= whole;
    for (size_t i = 0; i < ranks; i++)
        sum.source[i] = (const uint8_t *)all->source[i] + whole * bytes;
    sum.dst = (uint8_t *)all->dst + whole * bytes;
    good = sum.count == 0 || coll_reduce_scalar(&sum) == STRAIT_OK;
    local.count = hosts.count = whole;
    local.sources = (uint32_t)each;
    hosts.sources = (uint32_t)(rank->ranks / each);
    local.rank = hosts.rank = 0;
    for (uint32_t host = 0; host < hosts.sources && good; host++) {
        for (int i = 0; i < each; i++)
            local.source[i] = all->source[host * (uint32_t)each + (uint32_t)i];
        local.dst = (void *)(uintptr_t)local.source[0];
        hosts.source[host] = local.dst;
        good = coll_reduce_scalar(&local) == STRAIT_OK;
    }
    return good && coll_reduce_scalar(&hosts) == STRAIT_OK;
}

/* The sum that reductions are specified by, of the parts for rank `part`. */
static bool is_sum(const struct rank *rank, const struct operation *operation, int part)
{
    const int each = ranks_by_host(rank, operation);
    const size_t bytes = operation->count * element_bytes(operation->type);
    struct coll_reduce reduce = {.type = operation->type == COLL_BF16   ? COLL_REDUCE_BF16
                                         : operation->type == COLL_FP16 ? COLL_REDUCE_FP16
                                                                        : COLL_REDUCE_FP32,
                                 .operation = operation->reduction == COLL_AVG ? COLL_REDUCE_AVG : COLL_REDUCE_SUM,
                                 .order = operation->order,
                                 .sources = (uint32_t)rank->ranks,
                                 .rank = (uint32_t)part,
                                 .count = operation->count};
    uint8_t *memory = malloc(((size_t)rank->ranks + 1) * bytes);
    require(memory != NULL);
    reduce.dst = memory;
    for (int from = 0; from < rank->ranks; from++) {
        uint8_t *values = memory + ((size_t)from + 1) * bytes;
        values_fill(values, operation->type, operation->count, kind_of(operation, from),
                    operation->seed + SEED_STEP * (uint64_t)from + (uint64_t)part);
        reduce.source[from] = values;
    }
    require(each > 0 ? sum_by_host(rank, operation, &reduce, each) : coll_reduce_scalar(&reduce) == STRAIT_OK);
    const bool same = memcmp(operation->in, memory, bytes) == 0;
    free(memory);
    return same;
}

void operation_check(const struct rank *rank, const struct operation *operation)
{
    const size_t bytes = operation->count * element_bytes(operation->type);
    const int part = operation_scatters(operation->what) ? rank->rank : 0;
    int from = 0, until = rank->ranks;
    fake_stream_wait(rank->stream);
    if (operation_reduces(operation->what)) {
        require(is_sum(rank, operation, part));
        return;
    }
    if (operation->what == COLL_SEND || operation->what == COLL_BROADCAST) {
        from = operation->what == COLL_SEND ? rank_before(rank) : operation->root;
        until = from + 1;
    }
    for (const uint8_t *at = operation->in; from < until; from++, at += bytes)
        require(values_are(at, operation->type, operation->count, kind_of(operation, from),
                           operation->seed + SEED_STEP * (uint64_t)from + (uint64_t)part));
}

/* ---- What communicators and streams tell ------------------------------------------------------------------------- */

coll_result error_of(coll_comm comm)
{
    coll_result error;
    require_ok(ncclCommGetAsyncError(comm, &error));
    return error;
}

void comm_settle(coll_comm comm, coll_result result)
{
    while (result == COLL_IN_PROGRESS)
        result = error_of(comm);
    require_ok(result);
}

/* As much longer as tests may take. */
static int patience_ms(void)
{
    const char *multiplier = getenv("CK_TIMEOUT_MULTIPLIER");
    const int times = multiplier != NULL ? atoi(multiplier) / 10 : 1;
    return PATIENCE_MS * (times > 1 ? times : 1);
}

void await_error(coll_comm comm)
{
    for (int i = 0; error_of(comm) == COLL_SUCCESS; i++) {
        require(i < patience_ms());
        usleep(1000);
    }
}

void await_halted(void)
{
    for (int i = 0; fake_gpu.halted == 0; i++) {
        require(i < patience_ms());
        usleep(1000);
    }
}

bool ends_within(coll_stream stream, int milliseconds)
{
    for (int i = 0; i < milliseconds; i++) {
        if (fake_stream_idle(stream))
            return true;
        usleep(1000);
    }
    return false;
}

long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* By name, as the library may have been preloaded. */
static size_t report(coll_comm comm, char *dst, size_t dst_capacity)
{
    size_t (*found)(coll_comm, char *, size_t) = NULL;
    *(void **)&found = dlsym(RTLD_DEFAULT, "strait_coll_report");
    require(found != NULL);
    return found(comm, dst, dst_capacity);
}

struct told told_of(coll_comm comm, const char *operation, const char *type)
{
    static _Thread_local char text[1 << 16];
    struct told told = {0};
    require(report(comm, text, sizeof(text)) <= sizeof(text));
    for (char *rest = text, *line; (line = strtok_r(rest, "\n", &rest)) != NULL;) {
        char of[32], row[32];
        unsigned long long calls, bytes, grouped, captured, failed, compressed, wire;
        int end = 0;
        if (sscanf(line, "%31s %31s %llu %llu %llu %llu %llu %llu %llu %n", of, row, &calls, &bytes, &grouped,
                   &captured, &failed, &compressed, &wire, &end) < 9)
            continue;
        if (strcmp(of, operation) != 0 || strcmp(row, type) != 0)
            continue;
        told = (struct told){.calls = calls, .compressed = compressed, .wire = wire};
        snprintf(told.reason, sizeof(told.reason), "%s", line + end);
    }
    return told;
}

void require_told(coll_comm comm, const char *operation, const char *type, unsigned long long calls,
                  unsigned long long compressed)
{
    const struct told told = told_of(comm, operation, type);
    if (told.calls != calls || told.compressed != compressed)
        fprintf(stderr, "%s: %llu calls, %llu compressed: %s\n", operation, told.calls, told.compressed, told.reason);
    require(told.calls == calls && told.compressed == compressed);
}

/* ---- Links and overlap ------------------------------------------------------------------------------------------- */

void links_begin(uint32_t ns, uint32_t fs_per_byte)
{
    setenv("STRAIT_COLL", "auto", 1);
    for (int device = 0; device < FAKE_GPUS; device++) {
        fake_gpu.link_ns[device] = ns;
        fake_gpu.link_fs[device] = fs_per_byte;
        fake_gpu.codec_fs[device] = 100; /* 10 TB/s */
    }
}

void overlap_begin(void)
{
    links_begin(0, 10000000); /* 0.1 GB/s */
    setenv("STRAIT_COLL_TABLE", "all_gather=1,all_to_all=1,reduce_scatter=1,all_reduce=1,pairs=1,broadcast=1", 1);
}

void overlap_warm_up(const struct rank *rank, coll_comm comm, int type)
{
    const size_t count = 65536 / element_bytes(type), all = count * (size_t)rank->ranks;
    uint8_t *own = values_new(rank, type, all), *result = values_new(rank, type, all);
    memset(own, 0, all * element_bytes(type));
    for (int i = 0; i < OVERLAP_AFTER; i++) {
        require_ok(ncclAllGather(own, result, count, type, comm, rank->stream));
        require_ok(ncclAlltoAll(own, result, count, type, comm, rank->stream));
        require_ok(ncclReduceScatter(own, result, count, type, COLL_SUM, comm, rank->stream));
        require_ok(ncclAllReduce(own, result, all, type, COLL_SUM, comm, rank->stream));
        require_ok(ncclBroadcast(own, result, count, type, i % rank->ranks, comm, rank->stream));
    }
    fake_stream_wait(rank->stream);
    ranks_meet();
}

/* ---- Suites ------------------------------------------------------------------------------------------------------ */

void add_loop(TCase *tests, const TTest *test, int from, int until)
{
    static int loops;
    const int stride = STRIDE > 1 ? STRIDE : getenv("STRAIT_TEST_ALL") != NULL ? 1 : 3;
    const int all = until - from, first = loops++ % (stride < all ? stride : all);
    for (int at = from + first; at < until; at += stride)
        tcase_add_loop_test(tests, test, at, at + 1);
}

enum { ROWS_MAX = 32, SCENES_MAX = 16 };

static struct {
    TTest test;
    void (*start)(int, void (*)(struct rank *), const void *);
    void (*body)(struct rank *);
    int ranks;
} rows[ROWS_MAX];

static void run_row(int number)
{
    const int row = number / SCENES_MAX, scene = number % SCENES_MAX;
    rows[row].start(rows[row].ranks, rows[row].body, &scene);
}

void add_ranks(TCase *tests, const char *name, void (*start)(int, void (*)(struct rank *), const void *),
               void (*body)(struct rank *), int ranks, int scenes)
{
    static int count;
    const int first = count * SCENES_MAX;
    require(count < ROWS_MAX && scenes <= SCENES_MAX);
    rows[count].test = (TTest){.name = name, .fn = run_row, .file = __FILE__, .line = __LINE__};
    rows[count].start = start;
    rows[count].body = body;
    rows[count].ranks = ranks;
    tcase_add_loop_test(tests, &rows[count++].test, first, first + scenes);
}

/* CTest's own limit comes later, and does not say which test it was. */
int suite_run(const char *name, TCase *tests)
{
    enum { SECONDS = 20 }; /* ten times as many, and sixty times under sanitizers: CK_TIMEOUT_MULTIPLIER */
    Suite *suite = suite_create(name);
    setenv("STRAIT_COLL", "compress", 1);
    tcase_set_timeout(tests, SECONDS);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
