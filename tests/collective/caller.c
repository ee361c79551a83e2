/* caller [--local|--global LIBRARY | --module MODULE] [--pnccl] SUBJECT: calls NCCL. Built three ways: linked with it,
 * as a module that is linked with it and opened by another program, and linked with nothing, opening it by name.
 *
 * Environment: FAKE_NCCL: the path of the fake that is to be reached in the end. FAKE_CUDA: that of the fake driver. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/collective/fake_nccl.h"
#include "tests/fakes/cuda.h"

/* Stays in release builds. */
#define require(condition)                                                                          \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "%s:%d: %s: not true: %s\n", __FILE__, __LINE__, __func__, #condition); \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)

static struct {
    /* NULL: not found by its name. */
#define X(returns, name, parameters, ...) COLL_TYPE_##returns(*name) parameters;
    COLL_API(X)
#undef X
    /* The fake itself, whatever lies before it; NULL: there is none (FAKE_NCCL is not set). */
    __typeof__(fake_take) *take;
    __typeof__(fake_answer) *answer;
    __typeof__(fake_last_error) *last_error;
    /* Of libstrait-coll; NULL: this process has not got it. */
    size_t (*report)(struct ncclComm *comm, char *dst, size_t dst_capacity);
    int (*pin)(struct ncclComm *comm, int choice);
    int (*nccl)(const char **path, int *version);
    const char *(*version)(void);
} nccl;

/* ---- Finding it -------------------------------------------------------------------------------------------------- */

static void *opened = RTLD_DEFAULT;

static void *find(const char *prefix, const char *name)
{
    char symbol[64];
    snprintf(symbol, sizeof(symbol), "%s%s", prefix, name);
    return dlsym(opened, symbol);
}

static void open_library(const char *path, int flag)
{
    opened = dlopen(path, RTLD_NOW | flag);
    if (opened == NULL)
        fprintf(stderr, "%s\n", dlerror());
    require(opened != NULL);
}

static void find_functions(const char *prefix)
{
#define X(returns, name, ...) *(void **)&nccl.name = find(prefix, #name);
    COLL_API(X)
#undef X
}

#ifdef CALLER_LINKED
static void link_functions(void)
{
#define X(returns, name, ...) nccl.name = nccl##name;
    COLL_API(X)
#undef X
}
#endif

static void find_fake(void)
{
    const char *path = getenv("FAKE_NCCL");
    void *fake = path != NULL ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (fake == NULL)
        return;
    *(void **)&nccl.take = dlsym(fake, "fake_take");
    *(void **)&nccl.answer = dlsym(fake, "fake_answer");
    *(void **)&nccl.last_error = dlsym(fake, "fake_last_error");
    require(nccl.take != NULL && nccl.answer != NULL && nccl.last_error != NULL);
}

static void find_strait(void)
{
    *(void **)&nccl.report = find("strait_coll_", "report");
    *(void **)&nccl.pin = find("strait_coll_", "pin");
    *(void **)&nccl.nccl = find("strait_coll_", "nccl");
    *(void **)&nccl.version = find("strait_coll_", "version");
}

/* Before the fake is opened here by its path: else it would be found as what the process has already. */
static void let_it_look(void)
{
    const char *path;
    int version;
    if (nccl.nccl != NULL)
        (void)nccl.nccl(&path, &version);
}

/* ---- Reports ----------------------------------------------------------------------------------------------------- */

/* With single spaces. To be freed. */
static char *report_of(coll_comm comm)
{
    size_t size = nccl.report(comm, NULL, 0), used = 0;
    char *text = malloc(size + 1);
    require(size > 0 && text != NULL && nccl.report(comm, text, size) == size && strlen(text) == size - 1);
    for (const char *from = text; *from != '\0'; from++)
        if (*from != ' ' || (used > 0 && text[used - 1] != ' '))
            text[used++] = *from;
    text[used] = '\0';
    return text;
}

static bool report_has(coll_comm comm, const char *part)
{
    char *text = report_of(comm);
    bool has = strstr(text, part) != NULL;
    free(text);
    return has;
}

static void require_row(coll_comm comm, const char *operation, const char *type, const char *numbers)
{
    char row[256];
    snprintf(row, sizeof(row), "\n%s %s %s 0 0 raw: ", operation, type, numbers);
    if (!report_has(comm, row)) {
        char *text = report_of(comm);
        fprintf(stderr, "no such row: %s\nin:\n%s", row + 1, text);
        free(text);
        exit(1);
    }
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

enum { THREADS = 8, ROUNDS = 200, FORKS = 20, AUTO = 0, RAW = 1 };

static coll_id no_id;

static coll_comm make(int rank, int ranks)
{
    coll_comm made = NULL;
    require(nccl.CommInitRank(&made, ranks, no_id, rank) == COLL_SUCCESS && made != NULL);
    return made;
}

static void reduce_on(coll_comm comm, size_t count, int type, coll_stream stream)
{
    require(nccl.AllReduce(NULL, NULL, count, type, COLL_SUM, comm, stream) == COLL_SUCCESS);
}

static void reduce(coll_comm comm, size_t count, int type)
{
    reduce_on(comm, count, type, NULL);
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

static void round_of(coll_comm shared, int rank)
{
    coll_comm own = make(rank, THREADS);
    require(nccl.GroupStart() == COLL_SUCCESS);
    require(nccl.Send(NULL, 2, COLL_FP32, 0, own, NULL) == COLL_SUCCESS);
    require(nccl.Recv(NULL, 2, COLL_FP32, 0, own, NULL) == COLL_SUCCESS);
    require(nccl.GroupEnd() == COLL_SUCCESS);
    reduce(shared, 1, COLL_FP32);
    reduce(own, 1, COLL_FP32);
    require_row(own, "all_reduce", "fp32", "1 4 0 0 0");
    require(nccl.pin(own, 1) == 0);
    require(nccl.CommDestroy(own) == COLL_SUCCESS);
    nccl.take();
}

struct job {
    coll_comm shared;
    int rank;
};

static void *work(void *argument)
{
    const struct job *job = argument;
    for (int i = 0; i < ROUNDS; i++)
        round_of(job->shared, job->rank);
    return NULL;
}

/* The first calls of the process, too, come from all at once. */
static void check_threads(void)
{
    static char shared[8];
    pthread_t threads[THREADS];
    struct job jobs[THREADS];
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (struct job){(coll_comm)(void *)shared, i};
        require(pthread_create(&threads[i], NULL, work, &jobs[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++)
        require(pthread_join(threads[i], NULL) == 0);
    require_row(NULL, "send", "fp32", "1600 12800 1600 0 0");
    require_row(NULL, "recv", "fp32", "1600 12800 1600 0 0");
    require_row(NULL, "all_reduce", "fp32", "3200 12800 0 0 0");
}

/* ---- Processes --------------------------------------------------------------------------------------------------- */

static void await(pid_t child)
{
    int status;
    require(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static atomic_bool stop;

static void *go_on(void *comm)
{
    while (!atomic_load(&stop)) {
        reduce(comm, 1, COLL_FP32);
        nccl.take();
    }
    return NULL;
}

/* While another thread calls, so that locks are held when the process forks. */
static void fork_often(coll_comm comm)
{
    pthread_t thread;
    require(pthread_create(&thread, NULL, go_on, comm) == 0);
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        if (child == 0) {
            reduce(comm, 1, COLL_FP32);
            require_row(NULL, "all_reduce", "fp32", "1 4 0 0 0");
            _exit(0);
        }
        await(child);
    }
    atomic_store(&stop, true);
    require(pthread_join(thread, NULL) == 0);
}

static void fork_and_exit(void)
{
    pid_t child = fork();
    if (child == 0)
        exit(0);
    await(child);
}

/* With STRAIT_COLL_PRINT three reports of processes come: not of children that call nothing. */
static void check_fork(void)
{
    coll_comm comm = make(0, 2);
    fork_often(comm);
    fflush(NULL);
    pid_t calls = fork();
    if (calls == 0) {
        reduce(comm, 1, COLL_FP32);
        fork_and_exit(); /* the locks are the child's own */
        exit(0);
    }
    await(calls);
    fork_and_exit();
    require(nccl.CommDestroy(comm) == COLL_SUCCESS);
}

/* ---- Capture ----------------------------------------------------------------------------------------------------- */

static struct fake_cuda_control *load_driver(coll_stream *stream, int (**destroy)(void *))
{
    int (*start)(unsigned) = NULL, (*retain)(void **, int) = NULL, (*push)(void *) = NULL,
        (*create)(void *, unsigned) = NULL;
    void *context = NULL;
    void *driver = dlopen(getenv("FAKE_CUDA"), RTLD_NOW | RTLD_LOCAL);
    require(driver != NULL);
    *(void **)&start = dlsym(driver, "cuInit");
    *(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
    *(void **)&push = dlsym(driver, "cuCtxPushCurrent_v2");
    *(void **)&create = dlsym(driver, "cuStreamCreate");
    *(void **)destroy = dlsym(driver, "cuStreamDestroy_v2");
    struct fake_cuda_control *control = dlsym(driver, "fake_cuda_control");
    require(start != NULL && retain != NULL && push != NULL && start(0) == 0 && retain(&context, 0) == 0 &&
            push(context) == 0);
    require(create != NULL && *destroy != NULL && control != NULL && create(stream, 0) == 0);
    return control;
}

/* The driver is the one of tests/fake_cuda; at first it has not been loaded. */
static void check_capture(void)
{
    int (*destroy)(void *) = NULL;
    coll_comm comm = make(0, 2);
    coll_stream stream = NULL;
    reduce(comm, 1, COLL_FP32);
    struct fake_cuda_control *control = load_driver(&stream, &destroy);
    require(nccl.CommDestroy(make(0, 2)) == COLL_SUCCESS); /* by when NCCL has loaded the driver */
    reduce_on(comm, 1, COLL_FP32, stream);
    require_row(comm, "all_reduce", "fp32", "2 8 0 0 0");
    control->capturing = 1;
    reduce_on(comm, 1, COLL_FP32, stream);
    require_row(comm, "all_reduce", "fp32", "3 12 0 1 0");
    control->capturing = 0;
    reduce_on(comm, 1, COLL_FP32, stream);
    require_row(comm, "all_reduce", "fp32", "4 16 0 1 0");
    require(destroy(stream) == 0 && nccl.CommDestroy(comm) == COLL_SUCCESS);
}

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

static void group(coll_comm comm, int depth)
{
    for (int i = 0; i < depth; i++)
        require(nccl.GroupStart() == COLL_SUCCESS);
    require(nccl.Send(NULL, 10, COLL_BF16, 1, comm, NULL) == COLL_SUCCESS);
    require(nccl.Recv(NULL, 10, COLL_BF16, 1, comm, NULL) == COLL_SUCCESS);
    for (int i = 0; i < depth; i++)
        require(nccl.GroupEnd() == COLL_SUCCESS);
}

static void check_groups(void)
{
    coll_comm comm = make(0, 2), made[3] = {NULL};
    /* Ends without a start, then groups within groups, then calls outside of them. */
    require(nccl.GroupEnd() == COLL_INVALID_USAGE);
    group(comm, 0);
    require_row(comm, "send", "bf16", "1 20 0 0 0");
    group(comm, 1);
    group(comm, 3);
    require_row(comm, "send", "bf16", "3 60 2 0 0");
    group(comm, 0);
    require_row(comm, "recv", "bf16", "4 80 2 0 0");
    /* A simulated end is one too. */
    require(nccl.GroupStart() == COLL_SUCCESS && nccl.GroupSimulateEnd(NULL) == COLL_SUCCESS);
    group(comm, 0);
    require_row(comm, "send", "bf16", "5 100 2 0 0");
    /* Communicators made in a group are known when it ends. */
    require(nccl.GroupStart() == COLL_SUCCESS && nccl.GroupStart() == COLL_SUCCESS);
    require(nccl.CommInitRank(&made[0], 4, no_id, 1) == COLL_SUCCESS);
    require(nccl.CommInitRank(&made[1], 4, no_id, 3) == COLL_SUCCESS);
    require(nccl.CommSplit(comm, 0, 0, &made[2], NULL) == COLL_SUCCESS);
    require(nccl.GroupEnd() == COLL_SUCCESS && made[0] == NULL);
    require(nccl.GroupEnd() == COLL_SUCCESS && made[0] != NULL && made[2] != NULL);
    require(report_has(made[0], ", rank 1 of 4\n") && report_has(made[1], ", rank 3 of 4\n"));
    require(report_has(made[2], ", rank 2 of 3\n"));
    for (int i = 0; i < 3; i++)
        require(nccl.CommDestroy(made[i]) == COLL_SUCCESS);
    /* Those of a group that fails are not. */
    coll_comm stays = NULL;
    require(nccl.GroupStart() == COLL_SUCCESS);
    require(nccl.CommInitRank(&stays, 4, no_id, 1) == COLL_SUCCESS);
    nccl.answer(3, 0);
    require(nccl.GroupEnd() == 3 && stays == NULL);
    nccl.answer(0, 0);
    require(nccl.CommDestroy(comm) == COLL_SUCCESS);
}

/* ---- Communicators ----------------------------------------------------------------------------------------------- */

static void check_not_blocking(coll_comm parent)
{
    int blocking = 0;
    coll_result error;
    coll_comm child = NULL;
    require(nccl.CommSplit(parent, 1, 0, &child, &blocking) == COLL_IN_PROGRESS);
    require(report_has(child, "communicator") && !report_has(child, ", rank "));
    require(nccl.CommGetAsyncError(child, &error) == COLL_SUCCESS && error == COLL_IN_PROGRESS);
    require(!report_has(child, ", rank "));
    require(nccl.CommGetAsyncError(child, &error) == COLL_SUCCESS && error == COLL_SUCCESS);
    require(report_has(child, ", rank 2 of 3\n"));
    require(nccl.CommAbort(child) == COLL_SUCCESS && nccl.report(child, NULL, 0) == 0);
    require(nccl.CommInitRankConfig(&child, 9, no_id, 8, &blocking) == COLL_IN_PROGRESS);
    require(report_has(child, ", rank 8 of 9\n"));
    require(nccl.CommDestroy(child) == COLL_SUCCESS);
}

static void check_pins(coll_comm comm)
{
    coll_comm other = make(0, 2);
    require(!report_has(comm, "pinned"));
    require(nccl.pin(comm, RAW) == 0 && report_has(comm, ", pinned to raw\n") && !report_has(other, "pinned"));
    reduce(comm, 1, COLL_FP32);
    require(report_has(comm, "raw: pinned\n"));
    require(nccl.pin(comm, AUTO) == 0 && !report_has(comm, "pinned to raw"));
    require(nccl.pin(comm, 2) == -1 && nccl.pin(comm, -1) == -1 && nccl.pin((coll_comm)&comm, RAW) == -1);
    require(nccl.pin(NULL, RAW) == 0 && report_has(comm, "pinned to raw") && report_has(other, "pinned to raw"));
    require(nccl.CommDestroy(other) == COLL_SUCCESS);
    other = make(0, 2);
    require(report_has(other, "pinned to raw") && nccl.pin(NULL, AUTO) == 0 && !report_has(other, "pinned to raw"));
    require(nccl.CommDestroy(other) == COLL_SUCCESS && nccl.pin(other, RAW) == -1);
}

static void check_all(void)
{
    coll_comm made[3];
    require(nccl.CommInitAll(made, 3, NULL) == COLL_SUCCESS);
    require(report_has(made[0], ", rank 0 of 3\n") && report_has(made[2], ", rank 2 of 3\n"));
    for (int i = 0; i < 3; i++)
        require(nccl.CommDestroy(made[i]) == COLL_SUCCESS && nccl.report(made[i], NULL, 0) == 0);
}

static void check_comms(void)
{
    coll_comm comm = make(5, 6), child = (coll_comm)&no_id;
    void *handle = NULL;
    require(report_has(comm, ", rank 5 of 6\n"));
    require(nccl.CommSplit(comm, -1, 0, &child, NULL) == COLL_SUCCESS && child == NULL);
    require(nccl.CommSplit(comm, 1, 0, &child, NULL) == COLL_SUCCESS && report_has(child, ", rank 2 of 3\n"));
    require(nccl.CommDestroy(child) == COLL_SUCCESS);
    require(nccl.CommShrink(comm, NULL, 0, &child, NULL, 0) == COLL_SUCCESS && report_has(child, ", rank 0 of 3\n"));
    require(nccl.CommFinalize(child) == COLL_SUCCESS && report_has(child, ", ending\n"));
    require(nccl.CommDestroy(child) == COLL_SUCCESS);
    require(nccl.CommGrow(comm, 9, NULL, -1, &child, NULL) == COLL_SUCCESS && report_has(child, ", rank 1 of 9\n"));
    require(nccl.CommDestroy(child) == COLL_SUCCESS);
    require(nccl.CommGrow(NULL, 9, &no_id, 8, &child, NULL) == COLL_SUCCESS && report_has(child, ", rank 8 of 9\n"));
    require(nccl.CommDestroy(child) == COLL_SUCCESS);
    require(nccl.CommRegister(comm, &no_id, sizeof(no_id), &handle) == COLL_SUCCESS &&
            report_has(comm, ", 1 registered\n"));
    require(nccl.CommDeregister(comm, handle) == COLL_SUCCESS && !report_has(comm, "registered"));
    check_not_blocking(comm);
    check_pins(comm);
    check_all();
    nccl.answer(3, 0);
    require(nccl.CommInitRank(&child, 2, no_id, 0) == 3);
    nccl.answer(0, 0);
    require(nccl.CommDestroy(comm) == COLL_SUCCESS && nccl.CommDestroy(NULL) == COLL_SUCCESS);
}

/* ---- Counts ------------------------------------------------------------------------------------------------------ */

static void check_counts(void)
{
    coll_comm comm = make(0, 2);
    const char *path = NULL;
    int version = 0;
    require(nccl.nccl != NULL && nccl.report != NULL && nccl.pin != NULL && nccl.version != NULL);
    require(nccl.nccl(&path, &version) == 0 && version == FAKE_VERSION && strcmp(path, getenv("FAKE_NCCL")) == 0);
    require(nccl.version()[0] != '\0' && report_has(NULL, path));
    reduce(comm, 1000, COLL_BF16);
    reduce(comm, 24, COLL_BF16);
    reduce(comm, 3, COLL_FP32);
    reduce(NULL, 1, 12); /* neither communicator nor type are known */
    require(nccl.Bcast(NULL, 5, 8, 0, comm, NULL) == COLL_SUCCESS);
    nccl.answer(4, 0);
    require(nccl.AllGather(NULL, NULL, 5, 0, comm, NULL) == 4);
    nccl.answer(COLL_IN_PROGRESS, 0);
    require(nccl.AllGather(NULL, NULL, 6, 0, comm, NULL) == COLL_IN_PROGRESS);
    nccl.answer(0, 0);
    require_row(comm, "all_reduce", "bf16", "2 2048 0 0 0");
    require_row(comm, "all_reduce", "fp32", "1 12 0 0 0");
    require_row(comm, "broadcast", "fp64", "1 40 0 0 0"); /* once, though NCCL calls itself */
    require_row(comm, "all_gather", "int8", "1 6 0 0 1");
    require(!report_has(comm, "unknown") && !report_has(comm, "\nsend "));
    require_row(NULL, "all_reduce", "unknown", "1 0 0 0 0");
    /* Of a buffer that is too small the beginning is written, and an end. */
    char part[40];
    memset(part, 'x', sizeof(part));
    size_t size = nccl.report(comm, part, 20);
    require(size > 100 && strlen(part) == 19 && part[20] == 'x');
    require(nccl.CommDestroy(comm) == COLL_SUCCESS);
    require_row(NULL, "all_reduce", "bf16", "2 2048 0 0 0"); /* what was, stays */
    comm = make(1, 2);
    require(!report_has(comm, "all_reduce"));
    require(nccl.CommDestroy(comm) == COLL_SUCCESS);
}

/* ---- Encryption -------------------------------------------------------------------------------------------------- */

static void set_encryption(int mode)
{
    const coll_encryption encryption = {.head = {sizeof(encryption), COLL_CONFIG_MAGIC, FAKE_VERSION}, .mode = mode};
    require(nccl.SetEncryption(&encryption) == COLL_SUCCESS);
}

static void check_encrypt(void)
{
    static const coll_encryption unknown = {.mode = 0};
    static const char text[] = "\nncclSetEncryption: communicators that are made from now on stay raw between hosts";
    const char *told;
    require(!report_has(NULL, text));
    nccl.answer(4, 0);
    require(nccl.SetEncryption(&unknown) == 4 && !report_has(NULL, text)); /* refused */
    nccl.answer(0, 0);
    set_encryption(0);
    require(!report_has(NULL, text));
    set_encryption(1);
    set_encryption(1);
    coll_comm comm = make(0, 2);
    require(report_has(NULL, text) && report_has(comm, text));
    /* No id has the address of a server. */
    coll_id id = {{0}};
    nccl.take();
    require(nccl.GetUniqueId(&id) == COLL_SUCCESS && memcmp(&id, &no_id, sizeof(id)) == 0);
    told = nccl.take();
    require(strncmp(told, "GetUniqueId ", 12) == 0);
    set_encryption(0);
    require(!report_has(NULL, text));
    require(nccl.GetUniqueId(&id) == COLL_SUCCESS && memcmp(&id, &no_id, sizeof(id)) != 0);
    require(nccl.CommDestroy(comm) == COLL_SUCCESS);
}

#define POINTER(n) ((void *)(uintptr_t)(0x100000000001 * (n)))

static coll_comm comm = POINTER(7);
static coll_stream stream = POINTER(9);
static int answer;

/* What comes after the first line is asked for by libstrait-coll itself, and only where a communicator is made. */
static void require_told(const char *expected, bool alone)
{
    const char *lines = nccl.take();
    size_t size = strlen(expected);
    if (strncmp(lines, expected, size) == 0 && lines[size] == '\n' && (!alone || lines[size + 1] == '\0'))
        return;
    fprintf(stderr, "expected: %s\nNCCL was told: %s\n", expected, lines);
    exit(1);
}

#define TOLD(call, alone, ...)                             \
    do {                                                   \
        char expected[1024];                               \
        snprintf(expected, sizeof(expected), __VA_ARGS__); \
        nccl.take();                                       \
        require((nccl.call) == answer);                    \
        require_told(expected, alone);                     \
    } while (0)
#define CHECK(call, ...) TOLD(call, true, __VA_ARGS__)

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static void check_operations(size_t count, int type, int op)
{
    void *send = POINTER(3), *recv = POINTER(5);
    void *c = comm, *s = stream;
    CHECK(AllGather(send, recv, count, type, comm, stream), "AllGather %p %p %zu %d %p %p", send, recv, count, type, c,
          s);
    CHECK(AllReduce(send, recv, count, type, op, comm, stream), "AllReduce %p %p %zu %d %d %p %p", send, recv, count,
          type, op, c, s);
    CHECK(AlltoAll(send, recv, count, type, comm, stream), "AlltoAll %p %p %zu %d %p %p", send, recv, count, type, c,
          s);
    CHECK(Bcast(recv, count, type, 4, comm, stream), "Broadcast %p %p %zu %d 4 %p %p", recv, recv, count, type, c, s);
    CHECK(Broadcast(send, recv, count, type, 5, comm, stream), "Broadcast %p %p %zu %d 5 %p %p", send, recv, count,
          type, c, s);
    CHECK(Gather(send, recv, count, type, 6, comm, stream), "Gather %p %p %zu %d 6 %p %p", send, recv, count, type, c,
          s);
    CHECK(Reduce(send, recv, count, type, op, 7, comm, stream), "Reduce %p %p %zu %d %d 7 %p %p", send, recv, count,
          type, op, c, s);
    CHECK(ReduceScatter(send, recv, count, type, op, comm, stream), "ReduceScatter %p %p %zu %d %d %p %p", send, recv,
          count, type, op, c, s);
    CHECK(Scatter(send, recv, count, type, 8, comm, stream), "Scatter %p %p %zu %d 8 %p %p", send, recv, count, type, c,
          s);
    CHECK(Send(send, count, type, 9, comm, stream), "Send %p %zu %d 9 %p %p", send, count, type, c, s);
    CHECK(Recv(recv, count, type, -1, comm, stream), "Recv %p %zu %d -1 %p %p", recv, count, type, c, s);
}

static void check_configured(size_t count, int type, int op)
{
    static const coll_call_config wanted = {.head = {sizeof(wanted), COLL_CONFIG_MAGIC, FAKE_VERSION}};
    const coll_call_config *config = op == COLL_SUM ? NULL : &wanted;
    void *send = POINTER(3), *recv = POINTER(5);
    void *c = comm, *s = stream, *g = (void *)(uintptr_t)config;
    CHECK(AllGatherConfig(send, recv, count, type, comm, stream, config), "AllGatherConfig %p %p %zu %d %p %p %p", send,
          recv, count, type, c, s, g);
    CHECK(AllReduceConfig(send, recv, count, type, op, comm, stream, config),
          "AllReduceConfig %p %p %zu %d %d %p %p %p", send, recv, count, type, op, c, s, g);
    CHECK(AlltoAllConfig(send, recv, count, type, comm, stream, config), "AlltoAllConfig %p %p %zu %d %p %p %p", send,
          recv, count, type, c, s, g);
    CHECK(BroadcastConfig(send, recv, count, type, 5, comm, stream, config), "BroadcastConfig %p %p %zu %d 5 %p %p %p",
          send, recv, count, type, c, s, g);
    CHECK(GatherConfig(send, recv, count, type, 6, comm, stream, config), "GatherConfig %p %p %zu %d 6 %p %p %p", send,
          recv, count, type, c, s, g);
    CHECK(ReduceConfig(send, recv, count, type, op, 7, comm, stream, config), "ReduceConfig %p %p %zu %d %d 7 %p %p %p",
          send, recv, count, type, op, c, s, g);
    CHECK(ReduceScatterConfig(send, recv, count, type, op, comm, stream, config),
          "ReduceScatterConfig %p %p %zu %d %d %p %p %p", send, recv, count, type, op, c, s, g);
    CHECK(ScatterConfig(send, recv, count, type, 8, comm, stream, config), "ScatterConfig %p %p %zu %d 8 %p %p %p",
          send, recv, count, type, c, s, g);
}

/* 12 types and one that is unknown; built-in reductions and one of the user's. */
static void check_all_operations(void)
{
    static const int reductions[] = {0, 1, 2, 3, 4, 5, 0x7fffffff};
    for (int type = -1; type <= 12; type++)
        for (size_t i = 0; i < sizeof(reductions) / sizeof(reductions[0]); i++)
            check_operations(1000 + (size_t)type, type, reductions[i]);
    for (size_t i = 0; i < sizeof(reductions) / sizeof(reductions[0]); i++)
        check_configured(1000, 9, reductions[i]);
    check_operations(0, 7, 0);
    check_operations(SIZE_MAX, 9, 0);
}

/* ---- Communicators ----------------------------------------------------------------------------------------------- */

static void make_id(coll_id *id, char text[2 * COLL_ID_BYTES + 1])
{
    for (unsigned i = 0; i < COLL_ID_BYTES; i++) {
        id->bytes[i] = (char)(3 * i + 130);
        snprintf(text + 2 * i, 3, "%02x", (unsigned char)id->bytes[i]);
    }
}

static void check_making(void)
{
    coll_id id;
    char text[2 * COLL_ID_BYTES + 1];
    coll_comm made[2] = {POINTER(11), POINTER(12)};
    int devices[2], list[2];
    void *slot = made, *config = POINTER(13);
    make_id(&id, text);
    CHECK(GetUniqueId(&id), "GetUniqueId %p", (void *)&id);
    TOLD(CommInitRank(made, 8, id, 3), false, "CommInitRank %p 8 %s 3", slot, text);
    TOLD(CommInitRankConfig(made, 8, id, 3, config), false, "CommInitRankConfig %p 8 %s 3 %p", slot, text, config);
    TOLD(CommInitRankScalable(made, 8, 3, 1, &id, config), false, "CommInitRankScalable %p 8 3 1 %p %p", slot,
         (void *)&id, config);
    TOLD(CommInitAll(made, 2, devices), false, "CommInitAll %p 2 %p", slot, (void *)devices);
    TOLD(CommSplit(comm, 5, -6, made, config), false, "CommSplit %p 5 -6 %p %p", (void *)comm, slot, config);
    TOLD(CommShrink(comm, list, 2, made, config, 1), false, "CommShrink %p %p 2 %p %p 1", (void *)comm, (void *)list,
         slot, config);
    TOLD(CommGrow(comm, 9, &id, -1, made, config), false, "CommGrow %p 9 %p -1 %p %p", (void *)comm, (void *)&id, slot,
         config);
    TOLD(CommGrow(NULL, 9, &id, 8, made, config), false, "CommGrow %p 9 %p 8 %p %p", NULL, (void *)&id, slot, config);
    CHECK(CommGetUniqueId(comm, &id), "CommGetUniqueId %p %p", (void *)comm, (void *)&id);
}

static void check_communicators(void)
{
    void *c = comm, *handle = NULL, *pointer = POINTER(15);
    int number = 0;
    coll_result error = 7;
    CHECK(CommFinalize(comm), "CommFinalize %p", c);
    CHECK(CommRevoke(comm, 3), "CommRevoke %p 3", c);
    CHECK(CommDestroy(comm), "CommDestroy %p", c);
    CHECK(CommAbort(comm), "CommAbort %p", c);
    CHECK(CommGetAsyncError(comm, &error), "CommGetAsyncError %p %p", c, (void *)&error);
    CHECK(CommCount(comm, &number), "CommCount %p %p", c, (void *)&number);
    CHECK(CommCuDevice(comm, &number), "CommCuDevice %p %p", c, (void *)&number);
    CHECK(CommUserRank(comm, &number), "CommUserRank %p %p", c, (void *)&number);
    CHECK(CommRegister(comm, pointer, 77, &handle), "CommRegister %p %p 77 %p", c, pointer, (void *)&handle);
    CHECK(CommDeregister(comm, pointer), "CommDeregister %p %p", c, pointer);
    CHECK(CommWindowRegister(comm, pointer, 78, (coll_window *)&handle, 1), "CommWindowRegister %p %p 78 %p 1", c,
          pointer, (void *)&handle);
    CHECK(CommWindowDeregister(comm, pointer), "CommWindowDeregister %p %p", c, pointer);
    CHECK(RedOpCreatePreMulSum(&number, pointer, 9, 1, comm), "RedOpCreatePreMulSum %p %p 9 1 %p", (void *)&number,
          pointer, c);
    CHECK(RedOpDestroy(6, comm), "RedOpDestroy 6 %p", c);
    CHECK(CommSuspend(comm, 1), "CommSuspend %p 1", c);
    CHECK(CommResume(comm), "CommResume %p", c);
    CHECK(CommMemStats(comm, 3, pointer), "CommMemStats %p 3 %p", c, pointer);
    CHECK(SetEncryption(NULL), "SetEncryption %p", NULL);
    CHECK(WinGetUserPtr(comm, pointer, &handle), "WinGetUserPtr %p %p %p", c, pointer, (void *)&handle);
    CHECK(CommQueryProperties(comm, pointer), "CommQueryProperties %p %p", c, pointer);
}

static void check_signals(void)
{
    void *c = comm, *s = stream, *send = POINTER(3), *window = POINTER(5);
    CHECK(PutSignal(send, 7, 9, 1, window, 8, 2, 3, 4u, comm, stream), "PutSignal %p 7 9 1 %p 8 2 3 4 %p %p", send,
          window, c, s);
    CHECK(Signal(1, 2, 3, 4u, comm, stream), "Signal 1 2 3 4 %p %p", c, s);
    CHECK(WaitSignal(5, send, comm, stream), "WaitSignal 5 %p %p %p", send, c, s);
}

/* The types of their values differ, and what they are passed as does not. */
static void check_parameters(void)
{
    void *slot = POINTER(3), *value = POINTER(5);
    coll_param param = POINTER(7);
    CHECK(ParamBind(slot, "KEY"), "ParamBind %p KEY", slot);
#define PARAM(type) CHECK(ParamGet##type(param, value), "ParamGet" #type " %p %p", (void *)param, value)
    PARAM(I8);
    PARAM(I16);
    PARAM(I32);
    PARAM(I64);
    PARAM(U8);
    PARAM(U16);
    PARAM(U32);
    PARAM(U64);
    PARAM(Str);
#undef PARAM
    CHECK(ParamGet(param, value, 77, slot), "ParamGet %p %p 77 %p", (void *)param, value, slot);
    CHECK(ParamGetParameter("KEY", value, slot), "ParamGetParameter KEY %p %p", value, slot);
    CHECK(ParamGetAllParameterKeys(value, slot), "ParamGetAllParameterKeys %p %p", value, slot);
    nccl.take();
    nccl.ParamDumpAll();
    require_told("ParamDumpAll", true);
}

/* ---- All else ---------------------------------------------------------------------------------------------------- */

static void check_others(void)
{
    void *slot = NULL;
    int version = 0;
    CHECK(MemAlloc(&slot, 1234), "MemAlloc %p 1234", (void *)&slot);
    CHECK(MemFree(POINTER(17)), "MemFree %p", POINTER(17));
    CHECK(GetVersion(&version), "GetVersion %p", (void *)&version);
    require(version == FAKE_VERSION);
    CHECK(GroupStart(), "GroupStart");
    CHECK(GroupEnd(), "GroupEnd");
    CHECK(GroupSimulateEnd(POINTER(18)), "GroupSimulateEnd %p", POINTER(18));
}

static void check_texts(void)
{
    nccl.take();
    require(nccl.GetErrorString(5) == nccl.last_error() + 5);
    require_told("GetErrorString 5", true);
    require(nccl.GetLastError(comm) == nccl.last_error());
    char expected[64];
    snprintf(expected, sizeof(expected), "GetLastError %p", (void *)comm);
    require_told(expected, true);
    nccl.ResetDebugInit();
    require_told("ResetDebugInit", true);
}

static void require_team(coll_team team, int first, const char *name)
{
    char expected[64];
    snprintf(expected, sizeof(expected), "%s %p", name, (void *)comm);
    require(team.ranks == first + answer && team.rank == team.ranks + 1 && team.stride == -team.ranks);
    require_told(expected, true);
}

static void check_device(void)
{
    void *c = comm, *a = POINTER(20), *b = POINTER(21);
    coll_team team = {101, 102, 103};
    CHECK(DevCommCreate(comm, a, b), "DevCommCreate %p %p %p", c, a, b);
    CHECK(DevCommDestroy(comm, b), "DevCommDestroy %p %p", c, b);
    CHECK(GinBarrierCreateRequirement(comm, team, 4, a, b), "GinBarrierCreateRequirement %p 101 102 103 4 %p %p", c, a,
          b);
    CHECK(LsaBarrierCreateRequirement(team, 4, a, b), "LsaBarrierCreateRequirement 101 102 103 4 %p %p", a, b);
    CHECK(LLA2ACreateRequirement(5, 6, a, b), "LLA2ACreateRequirement 5 6 %p %p", a, b);
    CHECK(LLA2ACalcSlots(7, 8), "LLA2ACalcSlots 7 8");
    CHECK(TeamRankToWorld(comm, team, 2), "TeamRankToWorld %p 101 102 103 2", c);
    CHECK(TeamRankToLsa(comm, team, 1), "TeamRankToLsa %p 101 102 103 1", c);
    require_team(nccl.TeamWorld(comm), 10, "TeamWorld");
    require_team(nccl.TeamLsa(comm), 20, "TeamLsa");
    require_team(nccl.TeamRail(comm), 30, "TeamRail");
    require_team(nccl.TeamCftMultimem(comm), 50, "TeamCftMultimem");
    const coll_team flat = nccl.TeamCft(comm, 2);
    require(flat.ranks == 40 + answer && flat.rank == flat.ranks + 1 && flat.stride == -flat.ranks);
}

static void check_pointers(void)
{
    void *window = POINTER(5), *slot = POINTER(20), *at = POINTER(21);
    coll_team team = {101, 102, 103};
    const coll_multimem multimem = {POINTER(22)};
    CHECK(GinInboxA2ACreateRequirement(team, 4, 5, slot, at), "GinInboxA2ACreateRequirement 101 102 103 4 5 %p %p",
          slot, at);
    CHECK(GinOutboxCreateRequirement(4, 5, slot, at), "GinOutboxCreateRequirement 4 5 %p %p", slot, at);
    CHECK(GetLsaDevicePointer(window, 6, 1, slot), "GetLsaDevicePointer %p 6 1 %p", window, slot);
    CHECK(GetLsaMultimemDevicePointer(window, 6, slot), "GetLsaMultimemDevicePointer %p 6 %p", window, slot);
    CHECK(GetMultimemDevicePointer(window, 6, multimem, slot), "GetMultimemDevicePointer %p 6 %p %p", window,
          multimem.base, slot);
    CHECK(GetPeerDevicePointer(window, 6, 1, slot), "GetPeerDevicePointer %p 6 1 %p", window, slot);
    CHECK(GetCftDeviceLeInfo(window, 6, 1, team, slot, at), "GetCftDeviceLeInfo %p 6 1 101 102 103 %p %p", window, slot,
          at);
    CHECK(GetMultimemDeviceLeInfo(window, 6, slot, at), "GetMultimemDeviceLeInfo %p 6 %p %p", window, slot, at);
    CHECK(GetPeerDeviceLeInfo(window, 6, 1, slot, at), "GetPeerDeviceLeInfo %p 6 1 %p %p", window, slot, at);
}

static void check_every(void)
{
    int version = 0;
    require(nccl.GetVersion(&version) == COLL_SUCCESS); /* when it is found, it is asked for its version */
    /* 0 last: groups that have begun for NCCL end there, as they are told to no more than answer. */
    for (answer = 7; answer >= 0; answer--) {
        nccl.answer(answer, 1);
        check_all_operations();
        check_making();
        if (answer > 0) /* of a communicator that exists, more is asked */
            check_communicators();
        check_others();
        check_texts();
        check_device();
        check_pointers();
        check_signals();
        check_parameters();
    }
}

/* ---- NCCLs that lack some, or all -------------------------------------------------------------------------------- */

static void require_no_team(coll_team team)
{
    require(team.ranks == 0 && team.rank == 0 && team.stride == 0);
}

/* What an older NCCL has works, what it has not is refused. */
static void check_older(void)
{
    int version = 0;
    void *window = NULL;
    require(nccl.GetVersion(&version) == COLL_SUCCESS && version == FAKE_VERSION_OLD);
    nccl.answer(3, 1);
    require(nccl.AllReduce(NULL, NULL, 1, 7, 0, comm, stream) == 3);
    for (int i = 0; i < 3; i++) {
        require(nccl.AlltoAll(NULL, NULL, 1, 7, comm, stream) == COLL_INVALID_USAGE);
        require(nccl.Scatter(NULL, NULL, 1, 7, 0, comm, stream) == COLL_INVALID_USAGE);
        require(nccl.CommShrink(comm, NULL, 0, NULL, NULL, 0) == COLL_INVALID_USAGE);
        require(nccl.CommWindowRegister(comm, NULL, 1, (coll_window *)&window, 0) == COLL_INVALID_USAGE);
        require(nccl.GroupSimulateEnd(NULL) == COLL_INVALID_USAGE);
        require(nccl.DevCommCreate(comm, NULL, NULL) == COLL_INVALID_USAGE);
        require_no_team(nccl.TeamWorld(comm));
        require(nccl.TeamRankToLsa(comm, (coll_team){1, 0, 1}, 0) == -1);
        require(nccl.CommGrow(comm, 3, NULL, -1, NULL, NULL) == COLL_INVALID_USAGE);
        require(nccl.CommSuspend(comm, 1) == COLL_INVALID_USAGE && nccl.CommResume(comm) == COLL_INVALID_USAGE);
        require(nccl.BroadcastConfig(NULL, NULL, 1, 7, 0, comm, stream, NULL) == COLL_INVALID_USAGE);
        require(nccl.SetEncryption(NULL) == COLL_INVALID_USAGE);
        require(nccl.ParamGetI64(NULL, NULL) == COLL_INVALID_USAGE);
        require_no_team(nccl.TeamCft(comm, 0));
        nccl.ParamDumpAll();
    }
}

/* Without NCCL everything is refused, with a text. */
static void check_missing(void)
{
    int version = 77;
    coll_id id = {{0}};
    coll_comm made = NULL;
    const char *path = NULL;
    for (int i = 0; i < 3; i++) {
        require(nccl.GetVersion(&version) == COLL_SYSTEM_ERROR && version == 77);
        require(nccl.CommInitRank(&made, 1, id, 0) == COLL_SYSTEM_ERROR && made == NULL);
        require(nccl.AllReduce(NULL, NULL, 1, 7, 0, comm, stream) == COLL_SYSTEM_ERROR);
        require(nccl.GroupStart() == COLL_SYSTEM_ERROR && nccl.GroupEnd() == COLL_SYSTEM_ERROR);
        require(strstr(nccl.GetErrorString(2), "no NCCL") != NULL);
        require(strstr(nccl.GetLastError(NULL), "no NCCL") != NULL);
        nccl.ResetDebugInit();
    }
    require(nccl.nccl(&path, &version) == -7 && path == NULL && version == 77);
}

/* What NCCL itself does without a GPU. */
static void check_real(void)
{
    int version = 0;
    require(nccl.GetVersion(&version) == COLL_SUCCESS && version / 100 > 0);
    require(nccl.GroupStart() == COLL_SUCCESS && nccl.GroupEnd() == COLL_SUCCESS);
    require(nccl.GroupEnd() == COLL_INVALID_USAGE);
    require(nccl.AllReduce(NULL, NULL, 1, 7, 0, NULL, NULL) == 4); /* ncclInvalidArgument: no communicator */
    require_row(NULL, "all_reduce", "fp32", "0 0 0 0 1");
    require(strlen(nccl.GetErrorString(4)) > 0 && strlen(nccl.GetLastError(NULL)) > 0);
    printf("NCCL %d\n", version);
}

/* ---- The program ------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*check)(void);
} subjects[] = {
    {"every", check_every}, {"older", check_older},   {"missing", check_missing}, {"groups", check_groups},
    {"comms", check_comms}, {"counts", check_counts}, {"capture", check_capture}, {"threads", check_threads},
    {"fork", check_fork},   {"real", check_real},     {"encrypt", check_encrypt},
};

static void run(const char *name)
{
    for (size_t i = 0; i < sizeof(subjects) / sizeof(subjects[0]); i++)
        if (strcmp(subjects[i].name, name) == 0) {
            subjects[i].check();
            return;
        }
    fprintf(stderr, "no subject %s\n", name);
    exit(1);
}

/* A module that is linked with NCCL, opened so that nobody else sees what it brings along, as Python opens the
 * extensions of a framework. */
static int run_module(int argc, char **argv)
{
    int (*module_main)(int, char **) = NULL;
    void *module = argc > 1 ? dlopen(argv[0], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (module == NULL)
        fprintf(stderr, "%s\n", dlerror());
    require(module != NULL);
    *(void **)&module_main = dlsym(module, "caller_main");
    require(module_main != NULL);
    return module_main(argc, argv);
}

FAKE_VISIBLE int caller_main(int argc, char **argv);
int caller_main(int argc, char **argv)
{
    const char *prefix = "nccl";
    int i = 1;
    for (; i < argc - 1; i++) {
        if (strcmp(argv[i], "--pnccl") == 0)
            prefix = "pnccl";
        else if (strcmp(argv[i], "--module") == 0)
            return run_module(argc - i - 1, argv + i + 1);
        else if (strcmp(argv[i], "--local") == 0)
            open_library(argv[++i], RTLD_LOCAL);
        else if (strcmp(argv[i], "--global") == 0)
            open_library(argv[++i], RTLD_GLOBAL);
    }
    require(i < argc);
#ifdef CALLER_LINKED
    if (i == 1) /* nothing was asked for by name */
        link_functions();
#endif
    if (nccl.AllReduce == NULL)
        find_functions(prefix);
    find_strait();
    if (strcmp(argv[i], "threads") != 0)
        let_it_look();
    find_fake();
    run(argv[i]);
    return 0;
}

#ifndef CALLER_MODULE
int main(int argc, char **argv)
{
    return caller_main(argc, argv);
}
#endif
