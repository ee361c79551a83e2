/* rivals_nccl_ep LIBRARY NCCL: measures update, dispatch and combine of a libnccl_ep.so, NVIDIA's or Strait's, by the
 * one interface that both have, and checks what arrives. Ranks are processes or threads, several on a GPU if need be.
 */
#include <dlfcn.h>
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/ranks.h"
#include "bench/rivals/nccl_ep.h"
#include "collective/api.h"
#include "tools/util.h"

/* ---- Options ----------------------------------------------------------------------------------------------------- */

static struct nepb_options options = {.ranks = 2,
                                      .tokens = 128,
                                      .hidden = 7168,
                                      .experts = 256,
                                      .topk = 8,
                                      .runs = 200,
                                      .steps = 8,
                                      .warm_ms = 1500,
                                      .seconds = 50,
                                      .seed = 1};

static const struct {
    const char *name;
    uint64_t *number; /* else a flag */
    bool *flag;
    uint64_t most;
    const char *about;
} known[] = {
    {"ranks", &options.ranks, NULL, 64, "ranks (2)"},
    {"gpus", &options.gpus, NULL, 64, "GPUs that ranks take in turn; all of them"},
    {"ht", NULL, &options.high_throughput, 0, "high throughput; else low latency"},
    {"expert-major", NULL, &options.expert_major, 0, "rows by expert; else by rank (low latency), or flat"},
    {"fp8", NULL, &options.fp8, 0, "dispatch makes E4M3 with scales of BF16 (low latency)"},
    {"round-scales", NULL, &options.round_scales, 0, "scales of --fp8 are powers of two"},
    {"tokens", &options.tokens, NULL, 1 << 14, "of each rank (128)"},
    {"hidden", &options.hidden, NULL, 1 << 14, "values of a token, BF16, a multiple of 8 (7168)"},
    {"experts", &options.experts, NULL, 1 << 12, "of all ranks (256)"},
    {"topk", &options.topk, NULL, 32, "experts of a token (8)"},
    {"sms", &options.sms, NULL, 1024, "multiprocessors that calls may take; what the library takes"},
    {"runs", &options.runs, NULL, 100000, "steps measured, at least (200)"},
    {"steps", &options.steps, NULL, 64, "of a graph, of which the first is not measured (8)"},
    {"warm-ms", &options.warm_ms, NULL, 60000, "of steps before (1500)"},
    {"seconds", &options.seconds, NULL, 3600, "after which ranks are ended (50)"},
    {"seed", &options.seed, NULL, UINT32_MAX, "of the routing (1)"},
    {"stream", NULL, &options.stream, 0, "calls instead of a graph of them"},
    {"windows", NULL, &options.windows, 0, "rows are in a window of NCCL's"},
    {"threads", NULL, &options.threads, 0, "ranks are threads; else processes"},
    {"host", NULL, &options.host, 0, "memory of the host, for tests"},
};
enum { KNOWN = sizeof(known) / sizeof(known[0]) };

static void usage(void)
{
    puts("usage: rivals_nccl_ep [OPTION ...] LIBRARY NCCL");
    for (size_t i = 0; i < KNOWN; i++)
        printf("  --%s%s: %s\n", known[i].name, known[i].number != NULL ? "=N" : "", known[i].about);
}

static bool check_options(void)
{
    if (options.ranks == 0 || options.tokens == 0 || options.topk == 0 || options.runs == 0 || options.steps == 0)
        print_error(NULL, "--ranks, --tokens, --topk, --runs and --steps are at least 1");
    else if (options.experts % options.ranks != 0 || options.topk > options.experts)
        print_error(NULL, "--experts takes a multiple of the ranks, and --topk no more than these");
    else if (options.hidden < 8 || options.hidden % 8 != 0)
        print_error(NULL, "--hidden takes a multiple of 8");
    else if (options.fp8 && (options.high_throughput || options.hidden % 512 != 0))
        print_error(NULL, "--fp8 is for low latency, and --hidden a multiple of 512");
    else if (options.round_scales && !options.fp8)
        print_error(NULL, "--round-scales is for --fp8");
    else
        return true;
    return false;
}

static bool read_options(int argc, char **argv)
{
    struct option longs[KNOWN + 1] = {0};
    int at, found;

    for (size_t i = 0; i < KNOWN; i++)
        longs[i] = (struct option){.name = known[i].name, .has_arg = known[i].number != NULL};
    while ((found = getopt_long(argc, argv, "", longs, &at)) == 0)
        if (known[at].number == NULL)
            *known[at].flag = true;
        else if (!parse_number(optarg, known[at].most, known[at].number)) {
            print_error(NULL, "--%s takes a number up to %llu", known[at].name, (unsigned long long)known[at].most);
            return false;
        }
    if (found != -1 || argc - optind != 2) {
        usage();
        return false;
    }
    options.library = argv[optind];
    options.nccl = argv[optind + 1];
    return check_options();
}

/* ---- Libraries --------------------------------------------------------------------------------------------------- */

struct nccl {
    coll_result (*GetVersion)(int *version);
    coll_result (*GetUniqueId)(coll_id *id);
    coll_result (*CommInitRank)(coll_comm *made, int ranks, coll_id id, int rank);
    coll_result (*CommDestroy)(coll_comm comm);
    const char *(*GetErrorString)(coll_result result);
};

static void *open_library(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL); /* the one under test finds NCCL in the process */
    if (library == NULL)
        print_error(NULL, "%s", dlerror());
    return library;
}

static bool find(void *library, const char *path, const char *prefix, const char *name, void *function, bool optional)
{
    char text[64];

    snprintf(text, sizeof(text), "%s%s", prefix, name);
    void *found = dlsym(library, text);
    memcpy(function, &found, sizeof(found));
    if (found == NULL && !optional)
        print_error(NULL, "%s has no %s", path, text);
    return found != NULL || optional;
}

static bool open_libraries(struct nepb_library *ours, struct nccl *nccl)
{
    void *below = open_library(options.nccl), *library = below != NULL ? open_library(options.library) : NULL;

#define OF_NCCL(name, to)         find(below, options.nccl, "nccl", #name, &(to)->name, false)
#define OF_NCCL_FOR_WINDOWS(name) find(below, options.nccl, "nccl", #name, &ours->name, !options.windows)
#define OF_LIBRARY(name)          find(library, options.library, "ncclEp", #name, &ours->name, false)
    return library != NULL && OF_NCCL(GetVersion, nccl) && OF_NCCL(GetUniqueId, nccl) && OF_NCCL(CommInitRank, nccl) &&
           OF_NCCL(CommDestroy, nccl) && OF_NCCL(GetErrorString, nccl) && OF_NCCL_FOR_WINDOWS(MemAlloc) &&
           OF_NCCL_FOR_WINDOWS(MemFree) && OF_NCCL_FOR_WINDOWS(CommWindowRegister) &&
           OF_NCCL_FOR_WINDOWS(CommWindowDeregister) && OF_LIBRARY(GetVersion) && OF_LIBRARY(CreateGroup) &&
           OF_LIBRARY(GroupDestroy) && OF_LIBRARY(InitHandle) && OF_LIBRARY(HandleDestroy) &&
           OF_LIBRARY(UpdateHandle) && OF_LIBRARY(Dispatch) && OF_LIBRARY(Combine);
}

/* ---- Between ranks ----------------------------------------------------------------------------------------------- */

enum phase { UPDATE, DISPATCH, COMBINE, STEP, PHASES };
static const char *const phase_names[PHASES] = {"update", "dispatch", "combine", "step"};

struct shared {
    struct ranks_barrier barrier;
    coll_id id;
    _Atomic bool go, uncaptured;
    _Atomic uint64_t wrong_rows, wrong_sums;
    int version, nccl_version;
    uint32_t taken;
    double warm_ms;
    double us[]; /* [run][phase][rank] */
};

static struct shared *shared;
static struct nepb_routing routing;

static uint64_t runs_max(void)
{
    return options.runs + options.steps;
}

static bool wait_all(void)
{
    return ranks_wait(&shared->barrier, (unsigned)options.ranks);
}

/* ---- A rank ------------------------------------------------------------------------------------------------------ */

struct rank {
    struct nepb_step step;
    struct nepb_library library;
    struct nccl nccl;
    struct nepb_event **events; /* [steps][PHASES] */
    struct nepb_graph *graph;   /* NULL: calls */
};

static bool nccl_good(const struct rank *rank, coll_result result, const char *function)
{
    if (result != COLL_SUCCESS)
        print_error(NULL, "rank %u: %s: %s (%d)", rank->step.rank, function, rank->nccl.GetErrorString(result), result);
    return result == COLL_SUCCESS;
}

static bool open_rank(struct rank *rank)
{
    struct nepb_step *step = &rank->step;

    if (!open_libraries(&rank->library, &rank->nccl) ||
        !step->place->open(options.gpus == 0 ? step->rank : step->rank % (unsigned)options.gpus))
        return false;
    if (step->rank == 0) {
        rank->library.GetVersion(&shared->version);
        rank->nccl.GetVersion(&shared->nccl_version);
        if (!nccl_good(rank, rank->nccl.GetUniqueId(&shared->id), "ncclGetUniqueId"))
            return false;
    }
    if (!wait_all() ||
        !nccl_good(rank, rank->nccl.CommInitRank(&step->comm, (int)options.ranks, shared->id, (int)step->rank),
                   "ncclCommInitRank"))
        return false;
    step->stream = step->place->stream();
    return nepb_step_open(step);
}

/* One step of all ranks on wiped outputs, by `run`, compared. */
static bool check(struct rank *rank, bool (*run)(struct rank *rank))
{
    struct nepb_step *step = &rank->step;
    uint64_t rows = 0, sums = 0;

    if (!nepb_wipe(step) || !wait_all() || !run(rank) || !step->place->finish(step->stream) || !wait_all() ||
        !nepb_check(step, &rows, &sums) || !wait_all())
        return false;
    shared->wrong_rows += rows;
    shared->wrong_sums += sums;
    return true;
}

static bool run_once(struct rank *rank)
{
    return nepb_update(&rank->step) && nepb_dispatch(&rank->step) && nepb_combine(&rank->step);
}

/* The steps of a graph, with an event before each phase and behind the last. */
static bool run_steps(struct rank *rank, bool captured)
{
    struct nepb_step *step = &rank->step;
    bool good = true;

    for (uint64_t i = 0; i < options.steps && good; i++) {
        struct nepb_event **events = &rank->events[i * PHASES];
        good = step->place->record(events[UPDATE], step->stream, captured) && nepb_update(step) &&
               step->place->record(events[DISPATCH], step->stream, captured) && nepb_dispatch(step) &&
               step->place->record(events[COMBINE], step->stream, captured) && nepb_combine(step) &&
               step->place->record(events[STEP], step->stream, captured);
    }
    return good;
}

static bool launch(struct rank *rank)
{
    const struct nepb_step *step = &rank->step;
    return rank->graph != NULL ? step->place->launch(rank->graph, step->stream) : run_steps(rank, false);
}

static void drop_graph(struct rank *rank)
{
    if (rank->graph != NULL)
        rank->step.place->drop(rank->graph);
    rank->graph = NULL;
}

/* All ranks have a graph, or none. */
static bool capture(struct rank *rank)
{
    const struct nepb_step *step = &rank->step;

    rank->events = calloc(options.steps * PHASES, sizeof(rank->events[0]));
    for (uint64_t i = 0; rank->events != NULL && i < options.steps * PHASES; i++)
        if ((rank->events[i] = step->place->event()) == NULL)
            return false;
    if (rank->events == NULL || !wait_all())
        return false;
    if (!options.stream && step->place->capture != NULL && step->place->capture(step->stream)) {
        const bool good = run_steps(rank, true);
        rank->graph = step->place->captured(step->stream);
        if (!good)
            drop_graph(rank);
    }
    if (rank->graph == NULL)
        shared->uncaptured = true;
    if (!wait_all())
        return false;
    if (shared->uncaptured)
        drop_graph(rank);
    return true;
}

/* Rank 0 says whether there is another launch; all begin it together. */
static bool agree(const struct rank *rank, bool go, bool *goes)
{
    if (rank->step.rank == 0)
        shared->go = go;
    if (!wait_all())
        return false;
    *goes = shared->go;
    return wait_all();
}

static bool warm_up(struct rank *rank)
{
    const uint64_t begin = clock_ns();
    bool goes;

    while (agree(rank, clock_ns() - begin < options.warm_ms * 1000000, &goes) && goes)
        if (!launch(rank) || !rank->step.place->finish(rank->step.stream))
            return false;
    if (rank->step.rank == 0)
        shared->warm_ms = (double)(clock_ns() - begin) / 1e6;
    return !shared->barrier.failed;
}

static bool take_sample(const struct rank *rank, uint64_t step, uint64_t run)
{
    const struct nepb_place *place = rank->step.place;
    struct nepb_event **events = &rank->events[step * PHASES];
    double *us = &shared->us[run * PHASES * options.ranks + rank->step.rank];

    return place->elapsed(events[UPDATE], events[DISPATCH], &us[UPDATE * options.ranks]) &&
           place->elapsed(events[DISPATCH], events[COMBINE], &us[DISPATCH * options.ranks]) &&
           place->elapsed(events[COMBINE], events[STEP], &us[COMBINE * options.ranks]) &&
           place->elapsed(events[UPDATE], events[STEP], &us[STEP * options.ranks]);
}

/* Half of the time is left for what comes before and behind; a GPU that ranks take in turn needs long for a step. */
static bool measure(struct rank *rank)
{
    const uint64_t begin = clock_ns(), most = options.seconds * 500000000;
    uint64_t run = 0;
    bool goes;

    while (agree(rank, run < options.runs && clock_ns() - begin < most, &goes) && goes) {
        if (!launch(rank) || !rank->step.place->finish(rank->step.stream))
            return false;
        for (uint64_t step = options.steps > 1; step < options.steps; step++, run++)
            if (!take_sample(rank, step, run))
                return false;
    }
    if (rank->step.rank == 0)
        shared->taken = (uint32_t)run;
    return !shared->barrier.failed;
}

static bool run_rank(void *context, unsigned number)
{
    struct rank *rank = calloc(1, sizeof(*rank));

    (void)context;
    if (rank == NULL)
        return false;
    rank->step = (struct nepb_step){.options = &options,
                                    .routing = &routing,
                                    .library = &rank->library,
                                    .place = options.host ? &nepb_host : &nepb_device,
                                    .rank = number};
    if (!open_rank(rank) || !wait_all() || !check(rank, run_once) || !capture(rank) || !warm_up(rank) ||
        !measure(rank) || !check(rank, launch)) {
        shared->barrier.failed = true;
        return false;
    }
    drop_graph(rank);
    nepb_step_close(&rank->step);
    const bool good = wait_all() && nccl_good(rank, rank->nccl.CommDestroy(rank->step.comm), "ncclCommDestroy");
    for (uint64_t i = 0; i < options.steps * PHASES; i++)
        free(rank->events[i]);
    free(rank->events);
    free(rank);
    return good;
}

/* ---- All ranks --------------------------------------------------------------------------------------------------- */

static void *run_thread(void *number)
{
    return run_rank(NULL, (unsigned)(uintptr_t)number) ? number : (void *)-1;
}

static bool run_threads(void)
{
    pthread_t threads[RANKS_PROCESSES_MAX];
    bool good = true;

    alarm((unsigned)options.seconds);
    for (unsigned i = 0; i < options.ranks; i++)
        if (pthread_create(&threads[i], NULL, run_thread, (void *)(uintptr_t)i) != 0) {
            print_error(NULL, "a thread cannot be started");
            exit(EXIT_CODE_DATA);
        }
    for (unsigned i = 0; i < options.ranks; i++) {
        void *result = NULL;
        good = pthread_join(threads[i], &result) == 0 && result != (void *)-1 && good;
    }
    return good;
}

static bool run_processes(void)
{
    return ranks_run(&(struct ranks){
        .count = (unsigned)options.ranks, .seconds = options.seconds, .barrier = &shared->barrier, .run = run_rank});
}

/* ---- Report ------------------------------------------------------------------------------------------------------ */

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of the slowest rank of each run. */
static void print_phase(enum phase phase, double *us)
{
    const uint32_t taken = shared->taken;
    const double of_value = options.fp8 && phase == DISPATCH ? 1 + 4.0 / 128 : 2;
    const double bytes = (double)routing.most_rows * (double)options.hidden * of_value;

    for (uint32_t run = 0; run < taken; run++) {
        us[run] = 0;
        for (uint64_t rank = 0; rank < options.ranks; rank++) {
            const double of_rank = shared->us[((uint64_t)run * PHASES + phase) * options.ranks + rank];
            us[run] = of_rank > us[run] ? of_rank : us[run];
        }
    }
    qsort(us, taken, sizeof(us[0]), by_size);
    const double p50 = us[(taken - 1) / 2];
    printf("%s p50 %.2f us\n%s p99 %.2f us\n%s min %.2f us\n", phase_names[phase], p50, phase_names[phase],
           us[((uint64_t)taken * 99 + 99) / 100 - 1], phase_names[phase], us[0]);
    if (phase == DISPATCH || phase == COMBINE)
        printf("%s rows %.1f GB/s\n", phase_names[phase], bytes / p50 / 1000);
}

static bool report(void)
{
    double *us = calloc(shared->taken + 1, sizeof(us[0]));

    printf("library %s, version %d, NCCL %d\n", options.library, shared->version, shared->nccl_version);
    printf("ranks %llu %s, %s %s%s, %llu tokens, hidden %llu, top-%llu of %llu experts, sms %llu%s, %s\n",
           (unsigned long long)options.ranks, options.threads ? "threads" : "processes",
           options.high_throughput ? "HT" : "LL",
           options.expert_major      ? "expert-major"
           : options.high_throughput ? "flat"
                                     : "rank-major",
           options.round_scales ? ", E4M3 with scales of powers of two"
           : options.fp8        ? ", E4M3 with scales"
                                : "",
           (unsigned long long)options.tokens, (unsigned long long)options.hidden, (unsigned long long)options.topk,
           (unsigned long long)options.experts, (unsigned long long)options.sms,
           options.windows ? ", rows in a window" : "", shared->uncaptured ? "calls" : "a graph");
    printf("rows of a rank %llu\nwrong rows %llu\nwrong sums %llu\nwarm-up %.0f ms\nruns %u\n",
           (unsigned long long)routing.most_rows, (unsigned long long)shared->wrong_rows,
           (unsigned long long)shared->wrong_sums, shared->warm_ms, shared->taken);
    if (us != NULL && shared->taken > 0)
        for (enum phase phase = 0; phase < PHASES; phase++)
            print_phase(phase, us);
    free(us);
    return shared->wrong_rows == 0 && shared->wrong_sums == 0 && shared->taken > 0;
}

int main(int argc, char **argv)
{
    static char name[] = "rivals_nccl_ep";

    command_begin(argv, name);
    if (!read_options(argc, argv))
        return EXIT_CODE_USAGE;
    shared = ranks_memory(sizeof(*shared) + runs_max() * PHASES * options.ranks * sizeof(shared->us[0]));
    if (shared == NULL || !nepb_routing_init(&routing, &options))
        return EXIT_CODE_DATA;
    const bool ran = options.threads ? run_threads() : run_processes();
    const bool good = ran && report();
    nepb_routing_fini(&routing);
    return good ? EXIT_CODE_OK : EXIT_CODE_DATA;
}
