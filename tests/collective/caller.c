/* caller [--local|--global LIBRARY] [--pnccl] SUBJECT: calls NCCL. Built three ways: linked with it, as a module that
 * is linked with it and opened by another program, and linked with nothing, opening it by name.
 *
 * Environment: FAKE_NCCL: the path of the fake that is to be reached in the end. */
#include "tests/collective/caller.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fakes/cuda.h"

/* Threads, processes and streams that are captured. */

enum { process_FP32 = 7, process_SUM = 0, THREADS = 8, ROUNDS = 200, FORKS = 20 };

static coll_id process_id;

static coll_comm process_make(int rank, int ranks)
{
    coll_comm comm = NULL;
    require(nccl.CommInitRank(&comm, ranks, process_id, rank) == COLL_SUCCESS && comm != NULL);
    return comm;
}

static void process_reduce(coll_comm comm)
{
    require(nccl.AllReduce(NULL, NULL, 1, process_FP32, process_SUM, comm, NULL) == COLL_SUCCESS);
}

/* ---- Threads -------------------------------------------------------------------------------------------------------
 */

static void round_of(coll_comm shared, int rank)
{
    coll_comm own = process_make(rank, THREADS);
    require(nccl.GroupStart() == COLL_SUCCESS);
    require(nccl.Send(NULL, 2, process_FP32, 0, own, NULL) == COLL_SUCCESS);
    require(nccl.Recv(NULL, 2, process_FP32, 0, own, NULL) == COLL_SUCCESS);
    require(nccl.GroupEnd() == COLL_SUCCESS);
    process_reduce(shared);
    process_reduce(own);
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
void check_threads(void)
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

/* ---- Processes -----------------------------------------------------------------------------------------------------
 */

static void await(pid_t child)
{
    int status;
    require(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static atomic_bool stop;

static void *go_on(void *comm)
{
    while (!atomic_load(&stop)) {
        process_reduce(comm);
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
            process_reduce(comm);
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
void check_fork(void)
{
    coll_comm comm = process_make(0, 2);
    fork_often(comm);
    fflush(NULL);
    pid_t calls = fork();
    if (calls == 0) {
        process_reduce(comm);
        fork_and_exit(); /* the locks are the child's own */
        exit(0);
    }
    await(calls);
    fork_and_exit();
    require(nccl.CommDestroy(comm) == COLL_SUCCESS);
}

/* ---- Capture -------------------------------------------------------------------------------------------------------
 */

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

static void reduce_on(coll_comm comm, coll_stream stream)
{
    require(nccl.AllReduce(NULL, NULL, 1, process_FP32, process_SUM, comm, stream) == COLL_SUCCESS);
}

/* The driver is the one of tests/fake_cuda; at first it has not been loaded. */
void check_capture(void)
{
    int (*destroy)(void *) = NULL;
    coll_comm comm = process_make(0, 2);
    coll_stream stream = NULL;
    process_reduce(comm);
    struct fake_cuda_control *control = load_driver(&stream, &destroy);
    require(nccl.CommDestroy(process_make(0, 2)) == COLL_SUCCESS); /* by when NCCL has loaded the driver */
    reduce_on(comm, stream);
    require_row(comm, "all_reduce", "fp32", "2 8 0 0 0");
    control->capturing = 1;
    reduce_on(comm, stream);
    require_row(comm, "all_reduce", "fp32", "3 12 0 1 0");
    control->capturing = 0;
    reduce_on(comm, stream);
    require_row(comm, "all_reduce", "fp32", "4 16 0 1 0");
    require(destroy(stream) == 0 && nccl.CommDestroy(comm) == COLL_SUCCESS);
}

/* What libstrait-coll knows after calls of a program: communicators, groups, counts. Bytes are not moved by the fake.
 */

enum { use_FP32 = 7, BF16 = 9, use_SUM = 0, AUTO = 0, RAW = 1 };

static coll_id use_id;

static coll_comm use_make(int rank, int ranks)
{
    coll_comm comm = NULL;
    require(nccl.CommInitRank(&comm, ranks, use_id, rank) == COLL_SUCCESS && comm != NULL);
    return comm;
}

static void use_reduce(coll_comm comm, size_t count, int type)
{
    require(nccl.AllReduce(NULL, NULL, count, type, use_SUM, comm, NULL) == COLL_SUCCESS);
}

/* ---- Groups --------------------------------------------------------------------------------------------------------
 */

static void group(coll_comm comm, int depth)
{
    for (int i = 0; i < depth; i++)
        require(nccl.GroupStart() == COLL_SUCCESS);
    require(nccl.Send(NULL, 10, BF16, 1, comm, NULL) == COLL_SUCCESS);
    require(nccl.Recv(NULL, 10, BF16, 1, comm, NULL) == COLL_SUCCESS);
    for (int i = 0; i < depth; i++)
        require(nccl.GroupEnd() == COLL_SUCCESS);
}

void check_groups(void)
{
    coll_comm comm = use_make(0, 2), made[3] = {NULL};
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
    require(nccl.CommInitRank(&made[0], 4, use_id, 1) == COLL_SUCCESS);
    require(nccl.CommInitRank(&made[1], 4, use_id, 3) == COLL_SUCCESS);
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
    require(nccl.CommInitRank(&stays, 4, use_id, 1) == COLL_SUCCESS);
    nccl.answer(3, 0);
    require(nccl.GroupEnd() == 3 && stays == NULL);
    nccl.answer(0, 0);
    require(nccl.CommDestroy(comm) == COLL_SUCCESS);
}

/* ---- Communicators -------------------------------------------------------------------------------------------------
 */

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
    require(nccl.CommInitRankConfig(&child, 9, use_id, 8, &blocking) == COLL_IN_PROGRESS);
    require(report_has(child, ", rank 8 of 9\n"));
    require(nccl.CommDestroy(child) == COLL_SUCCESS);
}

static void check_pins(coll_comm comm)
{
    coll_comm other = use_make(0, 2);
    require(!report_has(comm, "pinned"));
    require(nccl.pin(comm, RAW) == 0 && report_has(comm, ", pinned to raw\n") && !report_has(other, "pinned"));
    use_reduce(comm, 1, use_FP32);
    require(report_has(comm, "raw: pinned\n"));
    require(nccl.pin(comm, AUTO) == 0 && !report_has(comm, "pinned to raw"));
    require(nccl.pin(comm, 2) == -1 && nccl.pin(comm, -1) == -1 && nccl.pin((coll_comm)&comm, RAW) == -1);
    require(nccl.pin(NULL, RAW) == 0 && report_has(comm, "pinned to raw") && report_has(other, "pinned to raw"));
    require(nccl.CommDestroy(other) == COLL_SUCCESS);
    other = use_make(0, 2);
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

void check_comms(void)
{
    coll_comm comm = use_make(5, 6), child = (coll_comm)&use_id;
    void *handle = NULL;
    require(report_has(comm, ", rank 5 of 6\n"));
    require(nccl.CommSplit(comm, -1, 0, &child, NULL) == COLL_SUCCESS && child == NULL);
    require(nccl.CommSplit(comm, 1, 0, &child, NULL) == COLL_SUCCESS && report_has(child, ", rank 2 of 3\n"));
    require(nccl.CommDestroy(child) == COLL_SUCCESS);
    require(nccl.CommShrink(comm, NULL, 0, &child, NULL, 0) == COLL_SUCCESS && report_has(child, ", rank 0 of 3\n"));
    require(nccl.CommFinalize(child) == COLL_SUCCESS && report_has(child, ", ending\n"));
    require(nccl.CommDestroy(child) == COLL_SUCCESS);
    require(nccl.CommRegister(comm, &use_id, sizeof(use_id), &handle) == COLL_SUCCESS &&
            report_has(comm, ", 1 registered\n"));
    require(nccl.CommDeregister(comm, handle) == COLL_SUCCESS && !report_has(comm, "registered"));
    check_not_blocking(comm);
    check_pins(comm);
    check_all();
    nccl.answer(3, 0);
    require(nccl.CommInitRank(&child, 2, use_id, 0) == 3);
    nccl.answer(0, 0);
    require(nccl.CommDestroy(comm) == COLL_SUCCESS && nccl.CommDestroy(NULL) == COLL_SUCCESS);
}

/* ---- Counts --------------------------------------------------------------------------------------------------------
 */

void check_counts(void)
{
    coll_comm comm = use_make(0, 2);
    const char *path = NULL;
    int version = 0;
    require(nccl.nccl != NULL && nccl.report != NULL && nccl.pin != NULL && nccl.version != NULL);
    require(nccl.nccl(&path, &version) == 0 && version == FAKE_VERSION && strcmp(path, getenv("FAKE_NCCL")) == 0);
    require(nccl.version()[0] != '\0' && report_has(NULL, path));
    use_reduce(comm, 1000, BF16);
    use_reduce(comm, 24, BF16);
    use_reduce(comm, 3, use_FP32);
    use_reduce(NULL, 1, 12); /* neither communicator nor type are known */
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
    comm = use_make(1, 2);
    require(!report_has(comm, "all_reduce"));
    require(nccl.CommDestroy(comm) == COLL_SUCCESS);
}

struct caller nccl;

/* ---- Finding it ----------------------------------------------------------------------------------------------------
 */

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
#define X(name) *(void **)&nccl.name = find(prefix, #name);
    FAKE_NAMES(X)
#undef X
}

#ifdef CALLER_LINKED
static void link_functions(void)
{
#define X(name) nccl.name = nccl##name;
    FAKE_NAMES(X)
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

/* ---- Reports -------------------------------------------------------------------------------------------------------
 */

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

bool report_has(coll_comm comm, const char *part)
{
    char *text = report_of(comm);
    bool has = strstr(text, part) != NULL;
    free(text);
    return has;
}

void require_row(coll_comm comm, const char *operation, const char *type, const char *numbers)
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

/* ---- The program ---------------------------------------------------------------------------------------------------
 */

static const struct {
    const char *name;
    void (*check)(void);
} subjects[] = {
    {"every", check_every}, {"older", check_older},   {"missing", check_missing}, {"groups", check_groups},
    {"comms", check_comms}, {"counts", check_counts}, {"capture", check_capture}, {"threads", check_threads},
    {"fork", check_fork},   {"real", check_real},
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

FAKE_VISIBLE int caller_main(int argc, char **argv);
int caller_main(int argc, char **argv)
{
    const char *prefix = "nccl";
    int i = 1;
    for (; i < argc - 1; i++) {
        if (strcmp(argv[i], "--pnccl") == 0)
            prefix = "pnccl";
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
