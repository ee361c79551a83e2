#include "tests/coll_engine/harness.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RANKS_MAX = 8 };

static pthread_barrier_t barrier;

struct start {
    struct rank rank;
    coll_id id;
    void (*body)(struct rank *);
};

/* ---- Ranks ------------------------------------------------------------------------------------------------------- */

void rank_begin(struct rank *rank, coll_id id)
{
    fake_device_set(rank->rank);
    rank->stream = fake_stream_make();
    require_ok(ncclCommInitRank(&rank->comm, rank->ranks, id, rank->rank));
}

void rank_end(struct rank *rank)
{
    coll_result error;
    fake_stream_wait(rank->stream);
    require_ok(ncclCommGetAsyncError(rank->comm, &error));
    require_ok(error);
    ranks_meet();
    require_ok(ncclCommDestroy(rank->comm));
    fake_stream_end(rank->stream);
}

static void *run_plain(void *argument)
{
    struct start *start = argument;
    start->body(&start->rank);
    return NULL;
}

static void *run_whole(void *argument)
{
    struct start *start = argument;
    rank_begin(&start->rank, start->id);
    start->body(&start->rank);
    rank_end(&start->rank);
    return NULL;
}

void ranks_meet(void)
{
    (void)pthread_barrier_wait(&barrier);
}

/* STRAIT_TEST_HOSTS=N: so many neighbours are on one host, and others on others. */
static void set_hosts(int ranks)
{
    const char *told = getenv("STRAIT_TEST_HOSTS");
    const int neighbours = told != NULL ? atoi(told) : 0;
    for (int i = 0; i < ranks && neighbours > 0; i++)
        fake_gpu.hosts[i] = 1 + (uint32_t)(i / neighbours);
}

static void start_all(int ranks, void *(*run)(void *), void (*body)(struct rank *), void *argument)
{
    struct start starts[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    coll_id id;
    set_hosts(ranks);
    require_ok(ncclGetUniqueId(&id));
    require(pthread_barrier_init(&barrier, NULL, (unsigned)ranks) == 0);
    for (int i = 0; i < ranks; i++) {
        starts[i] = (struct start){{.rank = i, .ranks = ranks, .argument = argument}, id, body};
        require(pthread_create(&threads[i], NULL, run, &starts[i]) == 0);
    }
    for (int i = 0; i < ranks; i++)
        require(pthread_join(threads[i], NULL) == 0);
    pthread_barrier_destroy(&barrier);
}

void ranks_run(int ranks, void (*body)(struct rank *), void *argument)
{
    start_all(ranks, run_whole, body, argument);
    require(fake_gpu.made == 0);
}

void ranks_start(int ranks, void (*body)(struct rank *), void *argument)
{
    start_all(ranks, run_plain, body, argument);
}

/* ---- What they gather -------------------------------------------------------------------------------------------- */

enum { COUNT_OF = 40001 };

struct gathered {
    uint8_t *own, *all;
};

static struct gathered gather_begin(const struct rank *rank)
{
    const struct gathered made = {values_new(COLL_BF16, COUNT_OF, 0),
                                  values_new(COLL_BF16, (size_t)rank->ranks * COUNT_OF, 0)};
    values_fill(made.own, COLL_BF16, COUNT_OF, VALUES_NORMAL, (unsigned)rank->rank);
    return made;
}

static void gather_check(const struct rank *rank, struct gathered *values)
{
    fake_stream_wait(rank->stream);
    for (int from = 0; from < rank->ranks; from++)
        require(
            values_are(values->all + (size_t)from * COUNT_OF * 2, COLL_BF16, COUNT_OF, VALUES_NORMAL, (unsigned)from));
    values_free(values->own, COLL_BF16, 0);
    values_free(values->all, COLL_BF16, 0);
}

void rank_gather(const struct rank *rank, coll_comm comm, bool compressed)
{
    struct gathered values = gather_begin(rank);
    require_ok(ncclAllGather(values.own, values.all, COUNT_OF, COLL_BF16, comm, rank->stream));
    gather_check(rank, &values);
    const struct told told = told_of(comm, "all_gather", "bf16");
    require(told.calls == 1 && told.compressed == compressed);
}

/* ---- Overlap of coding and transfer -------------------------------------------------------------------------------
 */

void overlap_begin(void)
{
    setenv("STRAIT_COLL", "auto", 1); /* measures the link */
    setenv("STRAIT_COLL_TABLE", "all_gather=1,all_to_all=1,reduce_scatter=1,all_reduce=1,pairs=1", 1);
    for (int device = 0; device < FAKE_GPUS; device++)
        fake_gpu.link_fs[device] = 10000000; /* 0.1 GB/s */
}

void overlap_warm_up(const struct rank *rank, coll_comm comm, int type)
{
    const size_t count = 65536 / element_bytes(type), all = count * (size_t)rank->ranks;
    uint8_t *own = values_new(type, all, 0), *result = values_new(type, all, 0);
    memset(own, 0, all * element_bytes(type));
    for (int i = 0; i < OVERLAP_AFTER; i++) {
        require_ok(ncclAllGather(own, result, count, type, comm, rank->stream));
        require_ok(ncclAlltoAll(own, result, count, type, comm, rank->stream));
        require_ok(ncclReduceScatter(own, result, count, type, COLL_SUM, comm, rank->stream));
        require_ok(ncclAllReduce(own, result, all, type, COLL_SUM, comm, rank->stream));
    }
    fake_stream_wait(rank->stream);
    ranks_meet();
    values_free(own, type, 0);
    values_free(result, type, 0);
}

/* ---- Without the library ----------------------------------------------------------------------------------------- */

struct plain_nccl plain_nccl(void)
{
    struct plain_nccl plain;
    void *nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
    require(nccl != NULL);
    *(void **)&plain.CommInitRank = dlsym(nccl, "pncclCommInitRank");
    *(void **)&plain.CommDestroy = dlsym(nccl, "pncclCommDestroy");
    *(void **)&plain.AllGather = dlsym(nccl, "pncclAllGather");
    require(plain.CommInitRank != NULL && plain.CommDestroy != NULL && plain.AllGather != NULL);
    return plain;
}

void rank_without_library(struct rank *rank, coll_id id, void (*then)(void))
{
    const struct plain_nccl nccl = plain_nccl();
    fake_device_set(rank->rank);
    rank->stream = fake_stream_make();
    require_ok(nccl.CommInitRank(&rank->comm, rank->ranks, id, rank->rank));
    then();
    struct gathered values = gather_begin(rank);
    require_ok(nccl.AllGather(values.own, values.all, COUNT_OF, COLL_BF16, rank->comm, rank->stream));
    gather_check(rank, &values);
    ranks_meet();
    require_ok(nccl.CommDestroy(rank->comm));
    fake_stream_end(rank->stream);
}

/* ---- The report -------------------------------------------------------------------------------------------------- */

/* By name, as the library may have been preloaded. */
static size_t report(coll_comm comm, char *dst, size_t dst_capacity)
{
    size_t (*found)(coll_comm, char *, size_t) = NULL;
    *(void **)&found = dlsym(RTLD_DEFAULT, "strait_coll_report");
    require(found != NULL);
    return found(comm, dst, dst_capacity);
}

coll_result error_of(coll_comm comm)
{
    coll_result error;
    require_ok(ncclCommGetAsyncError(comm, &error));
    return error;
}

long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
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

void await_error(coll_comm comm)
{
    for (int i = 0; error_of(comm) == COLL_SUCCESS; i++) {
        require(i < 20000);
        usleep(1000);
    }
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

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

void *values_new(int type, size_t count, size_t shift)
{
    const size_t size = element_bytes(type);
    uint8_t *memory = malloc((count + shift) * size + 1);
    require(memory != NULL);
    memset(memory, 0x5b, (count + shift) * size + 1);
    return memory + shift * size;
}

void values_free(void *values, int type, size_t shift)
{
    free((uint8_t *)values - shift * element_bytes(type));
}

/* ---- Suites ------------------------------------------------------------------------------------------------------ */

void add_loop(TCase *tests, const TTest *test, int from, int until)
{
    static int loops;
    const int all = until - from, first = loops++ % (STRIDE < all ? STRIDE : all);
    for (int at = from + first; at < until; at += STRIDE)
        tcase_add_loop_test(tests, test, at, at + 1);
}

int suite_run(const char *name, TCase *tests)
{
    Suite *suite = suite_create(name);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
