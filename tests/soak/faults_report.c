#include "tests/soak/faults.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Memory is judged in the last part of a long run, in which no daemon ends. */
#define JUDGED_TRANSFERS 5000u
#define RESIDENT_MORE    0.05
#define HEAP_MORE        (2 * MIB)
#define DESCRIPTORS_MORE 8u

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

void samples_add(struct samples *samples, double ms)
{
    if (samples->count == samples->room) {
        samples->room = samples->room != 0 ? 2 * samples->room : 256;
        samples->ms = realloc(samples->ms, samples->room * sizeof(double));
        require(samples->ms != NULL);
    }
    samples->ms[samples->count++] = ms;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double samples_at(const struct samples *samples, double share)
{
    return samples->count == 0 ? 0 : samples->ms[(size_t)(share * (double)(samples->count - 1))];
}

void sizes_take(struct trial *trial)
{
    trial->sized_at = trial->ended;
    for (uint32_t i = 0; i < 2; i++)
        (void)process_size_read(trial->world.daemons[i].pid, &trial->sizes[i]);
}

/* ---- The report -------------------------------------------------------------------------------------------------- */

static void print_samples(struct samples *samples)
{
    if (samples->count != 0)
        qsort(samples->ms, samples->count, sizeof(double), compare);
    printf("  %8.1f %8.1f %8.1f", samples_at(samples, 0.5), samples_at(samples, 0.99), samples_at(samples, 1));
}

static void print_accounts(struct trial *trial)
{
    printf("%-22s %7s %9s %9s %8s   verdict: p50, p99, max ms   told: p50, p99, max ms\n", "fault", "strikes",
           "transfers", "DONE", "given up");
    for (uint32_t i = 0; i <= FAULTS; i++) {
        struct account *account = &trial->accounts[i];
        printf("%-22s %7u %9u %9u %8u", fault_name((enum fault)i), account->strikes, account->moves, account->done,
               account->given_up);
        print_samples(&account->verdicts);
        print_samples(&account->told);
        printf("\n");
        free(account->verdicts.ms);
        free(account->told.ms);
    }
}

static void judge_sizes(struct trial *trial)
{
    const uint64_t since = trial->sized_at != 0 ? trial->ended - trial->sized_at : 0;
    const bool judged = since >= JUDGED_TRANSFERS;
    for (uint32_t i = 0; i < 2; i++) {
        const struct soak_daemon *daemon = &trial->world.daemons[i];
        const struct process_size then = trial->sizes[i];
        struct process_size now;
        if (trial->sized_at == 0 || !process_size_read(daemon->pid, &now))
            continue;
        printf("daemon %s, over %" PRIu64 " transfers%s: resident %.1f to %.1f MiB, heap %.1f to %.1f MiB, descriptors "
               "%u to %u\n",
               daemon->name, since, judged ? "" : " (too few to judge)", (double)then.resident / MIB,
               (double)now.resident / MIB, (double)then.anonymous / MIB, (double)now.anonymous / MIB, then.descriptors,
               now.descriptors);
        if (judged &&
            ((double)now.resident > (double)then.resident * (1 + RESIDENT_MORE) ||
             now.anonymous > then.anonymous + HEAP_MORE || now.descriptors > then.descriptors + DESCRIPTORS_MORE))
            complain("daemon %s grows", daemon->name);
    }
}

void trial_report(struct trial *trial, uint64_t seed, double seconds)
{
    print_accounts(trial);
    judge_sizes(trial);
    printf("%" PRIu64 " transfers in %.1f s, seed %" PRIu64 ": wrong bytes %" PRIu64 ", late verdicts %" PRIu64
           ", stranded %" PRIu64 ", failed for nothing %" PRIu64 ", excused by a busy machine %" PRIu64 "\n",
           trial->ended, seconds, seed, trial->wrong, trial->late, trial->stranded, trial->failed_for_nothing,
           trial->excused);
}
