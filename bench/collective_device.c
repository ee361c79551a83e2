#include <stdio.h>
#include <stdlib.h>

#include "bench/bench_collective.h"
#include "bench/collective_report.h"
#include "bench/collective_run.h"
#include "bench/transfer_process.h"
#include "bench/values.h"
#include "tools/util.h"

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Sets how many GPUs there are for how many ranks. False: too few, which was printed to stderr. */
static bool choose_ranks(const struct collective_options *options, unsigned *ranks, unsigned *gpus)
{
    char why[256];
    const unsigned all = collective_count_gpus(why, sizeof(why));

    *gpus = options->gpus > 0 ? options->gpus : least(all, COLLECTIVE_RANKS_MAX);
    *ranks = options->ranks > 0 ? options->ranks : *gpus;
    *gpus = least(*gpus, *ranks);
    if (all == 0)
        print_error(NULL, "no GPU: %s", why);
    else if (options->gpus > all)
        print_error(NULL, "--gpus: there are %u", all);
    else if (*ranks < 2)
        print_error(NULL, "one GPU: collectives need two, or --ranks");
    else
        return true;
    return false;
}

static bool print_json(const void *arg, FILE *stream)
{
    return collective_report_json(arg, stream);
}

static bool report(const struct collective_report *all)
{
    const struct collective_options *options = all->plan->options;
    bool printed = options->json ? collective_report_json(all, stdout) : collective_report_print(all, stdout);

    return value_save(options->save, print_json, all) && printed;
}

static bool run_links(const struct collective_plan *plan, struct collective_shared **shared)
{
    for (enum collective_links links = 0; links < COLLECTIVE_LINKS; links++) {
        if (!plan->options->links[links])
            continue;
        shared[links] = collective_shared_create(plan);
        if (shared[links] == NULL || !collective_run(plan, links, shared[links]))
            return false;
    }
    return true;
}

static enum collective_links first_links(const struct collective_plan *plan)
{
    enum collective_links links = 0;

    while (links + 1 < COLLECTIVE_LINKS && !plan->options->links[links])
        links++;
    return links;
}

static bool run_plan(const struct collective_plan *plan, const struct command_line *line)
{
    struct collective_shared *shared[COLLECTIVE_LINKS] = {0};
    struct machine machine;
    const struct collective_report all = {plan, &machine, line, shared};

    machine_describe(&machine);
    bool ran = run_links(plan, shared);
    /* A run that failed or took too long is still reported, as far as it was measured. */
    bool good = (ran || collective_row_is_done(&all, first_links(plan), 0)) && report(&all) && ran;
    if (good && !collective_report_is_right(&all)) {
        print_error(NULL, "a result is not as it has to be");
        good = false;
    }
    for (enum collective_links links = 0; links < COLLECTIVE_LINKS; links++)
        collective_shared_destroy(shared[links], plan);
    return good;
}

static enum exit_code run_options(const struct collective_options *options, const struct command_line *line)
{
    struct collective_plan plan = {0};
    unsigned ranks, gpus;
    bool good;

    if (options->help) {
        fputs(collective_usage, stdout);
        return EXIT_CODE_OK;
    }
    if (!value_save_check(options->save) || !choose_ranks(options, &ranks, &gpus))
        return EXIT_CODE_DATA;
    interrupts_catch();
    good = collective_plan_init(&plan, options, ranks, gpus) && run_plan(&plan, line);
    collective_plan_fini(&plan);
    if (interrupted())
        print_error(NULL, "interrupted");
    return good ? EXIT_CODE_OK : EXIT_CODE_DATA;
}

int bench_collective_device(int argc, char **argv)
{
    static char name[] = "strait bench collective";
    struct collective_options options;
    struct command_line line;
    enum exit_code code = EXIT_CODE_USAGE;

    command_begin(argv, name);
    if (!command_line_init(&line, argc, argv))
        return EXIT_CODE_DATA;
    if (collective_options_init(&options, argc, argv))
        code = run_options(&options, &line);
    collective_options_fini(&options);
    command_line_fini(&line);
    return code;
}
