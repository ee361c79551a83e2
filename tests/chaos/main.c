/* chaos: two daemons and their clients under faults, with every byte watched. See README.md. */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <strait/codec.h>

#include "tests/chaos/world.h"
#include "tests/support.h"

#define CELLS      (FAULTS * PHASES)
#define WORLDS_MAX 8u

struct plan {
    struct setting setting;
    const char *transport;
    uint64_t seed, transfers, seconds, hits, worlds;
    uint64_t fault, phase; /* FAULTS, PHASES: all */
    bool local, keep, verbose;
    bool fail_fast; /* the first violation ends the run */
    bool partly;    /* cells that were not met when the time is up are not failures */
    char folder[64];
};

/* ---- What all worlds share ------------------------------------------------------------------------------------ */

void violation(struct world *w, const char *format, ...)
{
    char text[320];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (atomic_fetch_add(&w->totals->violations, 1) == 0)
        snprintf(w->totals->first, sizeof(w->totals->first), "%s", text);
    printf("VIOLATION after %.1f s, world %u (%s), %s: %s\n", (double)(now_ns() - w->totals->began_ns) * 1e-9,
           w->number, w->transport, w->scene, text);
    fflush(stdout);
}

void totals_max(_Atomic int64_t *most, int64_t value)
{
    int64_t seen = atomic_load(most);
    while (value > seen && !atomic_compare_exchange_weak(most, &seen, value))
        ;
}

/* ---- Codebooks ------------------------------------------------------------------------------------------------ */

/* The two sets rank the exponents differently: good enough to code with, and with different ids. */
static bool make_codebook(const char *folder, uint32_t number)
{
    static const struct strait_class other = {.role = STRAIT_ROLE_OTHER, .layer = -1};
    uint8_t rankings[1][256];
    uint64_t counts[256];
    char name[32];
    struct strait_codebook *codebook;
    for (uint32_t e = 0; e < 256; e++)
        counts[e] = e < 120 ? e / 8 : 1u << (20 - (e - 120) / 8 - (e == 120 + number ? 1 : 0));
    strait_histogram_rank(rankings[0], counts);
    if (number != 0) {
        uint8_t first = rankings[0][0];
        rankings[0][0] = rankings[0][1];
        rankings[0][1] = first;
    }
    if (strait_codebook_create((const uint8_t(*)[256])rankings, &other, 1, &codebook) != STRAIT_OK)
        return false;
    snprintf(name, sizeof(name), "codebook-%u", number);
    bool good = codebook_write(folder, name, codebook);
    strait_codebook_destroy(codebook);
    return good;
}

/* ---- One world ------------------------------------------------------------------------------------------------ */

/* tcp, the default between hosts, is every other one. */
static const char *transport_of(const struct plan *plan, uint32_t number)
{
    static const char *const in_turn[] = {"shm", "tcp", CHAOS_UCX ? "ucx" : "shm", "tcp"};
    return strcmp(plan->transport, "all") == 0 ? in_turn[number % COUNT(in_turn)] : plan->transport;
}

static bool has_ucx(const struct plan *plan)
{
    for (uint32_t i = 0; i < plan->worlds; i++)
        if (strcmp(transport_of(plan, i), "ucx") == 0)
            return true;
    return false;
}

/* Device faults are possible only with devices, those of UCX's port only where a world uses it. */
static bool is_possible(const struct plan *plan, enum fault fault)
{
    return (plan->setting.devices > 0 || fault < F_SOURCE_DEVICE) && (fault != F_UCX_PORT || has_ucx(plan));
}

static bool is_wanted(const struct plan *plan, const struct totals *totals, uint32_t cell, bool local)
{
    enum fault fault = (enum fault)(cell / PHASES);
    enum phase phase = (enum phase)(cell % PHASES);
    if (!is_possible(plan, fault))
        return false;
    if ((plan->fault < FAULTS && fault != plan->fault) || (plan->phase < PHASES && phase != plan->phase))
        return false;
    if (local)
        return scenario_is_local(fault, phase) && atomic_load(&totals->local[fault][phase]) < plan->hits;
    return atomic_load(&totals->table[fault][phase]) < plan->hits;
}

static bool is_complete(const struct plan *plan, const struct totals *totals, bool local)
{
    for (uint32_t cell = 0; cell < CELLS; cell++)
        if (is_wanted(plan, totals, cell, local))
            return false;
    return local || atomic_load(&totals->transfers) >= plan->transfers;
}

static bool is_time_up(const struct plan *plan, const struct totals *totals)
{
    return now_ns() - totals->began_ns >= plan->seconds * 1000000000ull ||
           (plan->fail_fast && atomic_load(&totals->violations) > 0);
}

/* The next cell that is not full; when all are full, any cell, until there were as many transfers as asked for. */
static uint32_t next_cell(const struct plan *plan, struct totals *totals, const uint16_t *order, bool local)
{
    uint32_t cell = 0;
    for (uint32_t i = 0; i < CELLS; i++) {
        cell = order[atomic_fetch_add(&totals->cursor[local], 1) % CELLS];
        if (is_wanted(plan, totals, cell, local))
            return cell;
    }
    while (!is_possible(plan, (enum fault)(cell / PHASES)))
        cell = order[atomic_fetch_add(&totals->cursor[local], 1) % CELLS];
    if (plan->fault < FAULTS)
        cell = (uint32_t)plan->fault * PHASES + cell % PHASES;
    return plan->phase < PHASES ? cell / PHASES * PHASES + (uint32_t)plan->phase : cell;
}

static void shuffle(struct world *w, uint16_t *order)
{
    for (uint32_t i = 0; i < CELLS; i++)
        order[i] = (uint16_t)i;
    for (uint32_t i = CELLS - 1; i > 0; i--) {
        uint32_t j = draw(w, i + 1);
        uint16_t cell = order[i];
        order[i] = order[j];
        order[j] = cell;
    }
}

static int run_world(const struct plan *plan, struct totals *totals, uint32_t number)
{
    static struct world world; /* zeroed */
    struct world *w = &world;
    uint16_t order[CELLS];
    w->is_local = number == plan->worlds;
    w->setting = &plan->setting;
    w->transport = w->is_local ? "local" : transport_of(plan, number);
    /* One of tcp and UCX, and one of two of tcp; the seed chooses. */
    w->encrypts = !w->is_local && strcmp(w->transport, "shm") != 0 && (number / 2 + plan->seed) % 2 == 1;
    w->number = number;
    w->totals = totals;
    w->next_tag = 1;
    snprintf(w->scene, sizeof(w->scene), "at the beginning");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    w->random = plan->seed * 0x9e3779b97f4a7c15u | 1;
    shuffle(w, order); /* the same in all worlds */
    w->random ^= (uint64_t)(number + 1) << 40;
    if (!world_open(w))
        return 1;
    bool goes_on = true;
    while (goes_on && !is_complete(plan, totals, w->is_local) && !is_time_up(plan, totals)) {
        uint32_t cell = next_cell(plan, totals, order, w->is_local);
        goes_on = scenario_run(w, (enum fault)(cell / PHASES), (enum phase)(cell % PHASES));
        if (plan->verbose)
            printf("%.2f s, world %u: %s\n", (double)(now_ns() - totals->began_ns) * 1e-9, number, w->scene);
    }
    snprintf(w->scene, sizeof(w->scene), "at the end");
    world_close(w);
    return goes_on ? 0 : 1;
}

/* ---- The report ----------------------------------------------------------------------------------------------- */

static uint32_t print_table(const struct plan *plan, const struct totals *totals, bool local)
{
    uint32_t empty = 0;
    printf("\n%-24s", local ? "under one daemon" : "fault \\ state");
    for (int p = 0; p < PHASES; p++)
        printf("%10s", phase_names[p]);
    printf("\n");
    for (uint32_t f = 0; f < FAULTS; f++) {
        if (!is_possible(plan, (enum fault)f) || (local && !scenario_is_local((enum fault)f, DONE)))
            continue;
        printf("%-24s", fault_name((enum fault)f));
        for (uint32_t p = 0; p < PHASES; p++) {
            if (local && !scenario_is_local((enum fault)f, (enum phase)p))
                printf("%10s", "-");
            else
                printf("%10u", atomic_load(local ? &totals->local[f][p] : &totals->table[f][p]));
            empty += is_wanted(plan, totals, f * PHASES + p, local);
        }
        printf("\n");
    }
    return empty;
}

static void print_points(const struct totals *totals)
{
    printf("\nstruck while held                      source    sink\n");
    for (int i = 0; i < CHAOS_POINTS; i++) {
        uint32_t source = atomic_load(&totals->points[0][i]), sink = atomic_load(&totals->points[1][i]);
        if (source + sink > 0)
            printf("  %-35s%8u%8u\n", point_names[i], source, sink);
    }
}

static int report(const struct plan *plan, const struct totals *totals)
{
    uint32_t empty = print_table(plan, totals, false);
    if (plan->local)
        empty += print_table(plan, totals, true);
    print_points(totals);
    uint32_t transfers = atomic_load(&totals->transfers), violations = atomic_load(&totals->violations);
    printf(
        "\n%u transfers (%u verdicts done, %u failed) in %u scenarios, %.0f s; seed %llu; the fault missed %u times\n",
        transfers, atomic_load(&totals->done), atomic_load(&totals->failed), atomic_load(&totals->scenarios),
        (double)(now_ns() - totals->began_ns) * 1e-9, (unsigned long long)plan->seed, atomic_load(&totals->missed));
    printf("failed for a connection that an earlier fault had cost: %u\n", atomic_load(&totals->excused));
    printf("latest verdict: sink %+.0f ms, source %+.0f ms of its deadline (%u ms allowed); slowest recovery %.0f ms\n",
           (double)atomic_load(&totals->late_ns[SINK]) * 1e-6, (double)atomic_load(&totals->late_ns[SOURCE]) * 1e-6,
           TOLERANCE_MS, (double)atomic_load(&totals->recovery_ns) * 1e-6);
    printf("the machine kept everybody waiting for %llu ms in all\n", (unsigned long long)machine_late_ms());
    printf("daemons started %u, ended by rubbish on UCX's port %u; at rest %lld times in the longest life, with at most"
           " %lld descriptors and %+lld KiB\n",
           atomic_load(&totals->lives), atomic_load(&totals->crashes), (long long)atomic_load(&totals->rests),
           (long long)atomic_load(&totals->descriptors), (long long)atomic_load(&totals->growth_kib));
    if (violations > 0) {
        printf("chaos: FAIL: %u violations, the first: %s\n", violations, totals->first);
        return 1;
    }
    if (plan->partly && empty > 0)
        printf("time is up: %u cells have fewer than %u hits\n", empty, (uint32_t)plan->hits);
    if (!plan->partly && (empty > 0 || transfers < plan->transfers)) {
        printf("chaos: FAIL: time is up: %u cells have fewer than %u hits, %u of %u transfers\n", empty,
               (uint32_t)plan->hits, transfers, (uint32_t)plan->transfers);
        return 1;
    }
    printf("chaos: PASS\n");
    return 0;
}

/* ---- Options ----------------------------------------------------------------------------------------------------- */

static const struct memory_kind *memory_kind_of(const char *name)
{
    static const struct memory_kind *const kinds[] = {
        &memory_host,
        &memory_fake,
#ifdef TESTS_CHAOS_CUDA
        &memory_cuda,
#endif
    };
    for (int i = 0; i < COUNT(kinds); i++)
        if (strcmp(name, kinds[i]->name) == 0)
            return kinds[i];
    return NULL;
}

/* NULL, or what is wrong. */
static const char *check(const struct plan *plan)
{
    const struct setting *setting = &plan->setting;
    if (setting->program == NULL)
        return "--daemon is needed";
    if (setting->memory == NULL)
        return "this build has no such memory";
    if (setting->memory != &memory_host && (setting->plugin == NULL || setting->behind == NULL))
        return "pools of devices need --plugin and --behind";
    if (setting->memory == &memory_host && plan->fault >= F_SOURCE_DEVICE && plan->fault < FAULTS)
        return "no device can fail: pools are the host's";
    return NULL;
}

/* 0, or the exit status for bad usage. */
static int take_options(struct plan *plan, int argc, char **argv)
{
    struct setting *setting = &plan->setting;
    const char *memory = "host";
    const struct program_option options[] = {
        {"daemon", "STRAITD-CHAOS", "the program", .text = &setting->program},
        {"seed", "N", "of what is drawn at random (1)", .number = &plan->seed, .most = UINT64_MAX},
        {"transfers", "N", "at least so many (0)", .number = &plan->transfers, .most = UINT32_MAX},
        {"hits", "N", "of every fault in every state (5)", .number = &plan->hits, .most = UINT32_MAX},
        {"seconds", "N", "then it has failed (600)", .number = &plan->seconds, .most = UINT32_MAX},
        {"partly", NULL, "no: then it ends, whatever was not met", .flag = &plan->partly},
        {"transport", "KIND", "shm, tcp, ucx, or all: worlds of shm, tcp, ucx, tcp in turn (all)",
         .text = &plan->transport},
        {"worlds", "N", "pairs of daemons at once (3)", .number = &plan->worlds, .least = 1, .most = WORLDS_MAX},
        {"local", NULL, "and one world with both sides under one daemon", .flag = &plan->local},
        {"fail-fast", NULL, "the first violation ends the run", .flag = &plan->fail_fast},
        {"fault", "N", "only this row, from 0", .number = &plan->fault, .most = FAULTS - 1},
        {"state", "N", "only this column, from 0", .number = &plan->phase, .most = PHASES - 1},
        {"memory", "KIND", "of pools: host, fake or cuda (host); 77 where there is no such device", .text = &memory},
        {"plugin", "FOLDER", "of fake, cuda: where the plugin in front of the daemons' own is",
         .text = &setting->plugin},
        {"behind", "FILE", "and that one", .text = &setting->behind},
        {"straitd", "OPTION", "one more option --name=value of all daemons", .list = setting->options,
         .most = COUNT(setting->options) - 1},
        {"keep", NULL, "leaves the daemons' logs", .flag = &plan->keep},
        {"verbose", NULL, "names every scenario", .flag = &plan->verbose},
    };
    const struct program program = {"chaos", options, COUNT(options)};
    if (!program_take_options(&program, argc, argv))
        return 2;
    setting->memory = memory_kind_of(memory);
    const char *problem = check(plan);
    return problem != NULL ? program_refuse(&program, problem) : 0;
}

/* ---- The program ---------------------------------------------------------------------------------------------- */

static bool ended_well(pid_t pid)
{
    int status = pid > 0 ? process_reap(pid) : 1;
    if (status != 0)
        fprintf(stderr, "chaos: FAIL: a world ended with status %x\n", (unsigned)status);
    return pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool run_worlds(const struct plan *plan, struct totals *totals)
{
    bool good = true;
    pid_t pids[WORLDS_MAX + 1];
    for (uint32_t i = 0; i < plan->worlds + plan->local; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            int result = run_world(plan, totals, i);
            fflush(stdout);
            _exit(result);
        }
    }
    for (uint32_t i = 0; i < plan->worlds + plan->local; i++)
        good &= ended_well(pids[i]);
    return good;
}

int main(int argc, char **argv)
{
    struct plan plan = {
        .seed = 1, .hits = 5, .seconds = 600, .worlds = 3, .transport = "all", .fault = FAULTS, .phase = PHASES};
    int status = take_options(&plan, argc, argv);
    if (status != 0)
        return status;
    plan.setting.folder = plan.folder;
    plan.setting.devices = plan.setting.memory->devices();
    if (plan.setting.memory != &memory_host && plan.setting.devices == 0) {
        printf("skipped: no device of kind %s here\n", plan.setting.memory->name);
        return 77;
    }
    struct totals *totals = mmap(NULL, sizeof(*totals), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (totals == MAP_FAILED || !folder_make(plan.folder, "chaos") || !make_codebook(plan.folder, 0) ||
        !make_codebook(plan.folder, 1) || !secret_make(plan.folder)) {
        fprintf(stderr, "chaos: cannot prepare %s\n", plan.folder);
        return 1;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGPIPE, SIG_IGN);
    pages_begin();
    if (!machine_watch()) {
        fprintf(stderr, "chaos: no process to watch the machine\n");
        return 1;
    }
    totals->began_ns = now_ns();
    totals->late_ns[SOURCE] = totals->late_ns[SINK] = INT64_MIN / 2;
    bool good = run_worlds(&plan, totals);
    status = report(&plan, totals);
    if (plan.keep)
        printf("logs are in %s\n", plan.folder);
    else
        folder_remove(plan.folder);
    return good ? status : 1;
}
