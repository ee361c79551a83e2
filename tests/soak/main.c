/* soak: daemons and their clients under load for as long as one likes, and three scenarios of shared arenas and
 * restarts. Exit status: 0, all rules were kept; 1, at least one was broken; 2, the options are wrong. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support.h"
#include "tests/soak/daemon.h"
#include "tests/soak/soak.h"

static const char usage_text[] =
    "usage: soak --daemon PATH [options]\n"
    "  --scenario NAME     mixed (default), one-slot, deadline or restart\n"
    "  --seconds N         of mixed load (60); resident memory is judged in runs of 4 minutes and more\n"
    "  --transport NAME    shm, ucx, local (mixed only), or mixed: all that there are (default)\n"
    "  --concurrency N     transfers in flight in mixed load (64)\n"
    "  --stall-ms N        limit of the 99.9th percentile of loop stalls (20)\n";

static int usage(FILE *out)
{
    fputs(usage_text, out);
    return out == stdout ? 0 : 2;
}

static bool one_of(const char *text, const char *const *names)
{
    for (; *names != NULL; names++)
        if (strcmp(text, *names) == 0)
            return true;
    return false;
}

static bool read_number(const char *text, uint32_t most, uint32_t *number)
{
    char *end;
    unsigned long value = strtoul(text, &end, 10);
    *number = (uint32_t)value;
    return *text >= '0' && *text <= '9' && *end == '\0' && value >= 1 && value <= most;
}

static bool take_option(struct soak_options *options, int option, const char *text)
{
    switch (option) {
    case 'd':
        options->daemon = text;
        return true;
    case 'n':
        options->scenario = text;
        return one_of(text, (const char *const[]){"mixed", "one-slot", "deadline", "restart", NULL});
    case 't':
        options->transport = text;
        return one_of(text, (const char *const[]){"mixed", "shm", "ucx", "local", NULL});
    case 's':
        return read_number(text, 7 * 24 * 3600, &options->seconds);
    case 'c':
        return read_number(text, 1024, &options->concurrency);
    case 'l':
        return read_number(text, 60000, &options->stall_ms);
    default:
        return false;
    }
}

static bool read_options(struct soak_options *options, int argc, char **argv)
{
    static const struct option known[] = {{"daemon", required_argument, NULL, 'd'},
                                          {"scenario", required_argument, NULL, 'n'},
                                          {"transport", required_argument, NULL, 't'},
                                          {"seconds", required_argument, NULL, 's'},
                                          {"concurrency", required_argument, NULL, 'c'},
                                          {"stall-ms", required_argument, NULL, 'l'},
                                          {0}};
    int option;
    while ((option = getopt_long(argc, argv, "", known, NULL)) != -1)
        if (!take_option(options, option, optarg))
            return false;
    bool local = strcmp(options->transport, "local") == 0;
    return optind == argc && options->daemon != NULL && !(local && strcmp(options->scenario, "mixed") != 0);
}

typedef void scenario(const struct soak_options *options, const char *transport);

/* Over the transport that was asked for, or over all. */
static void run_scenario(const struct soak_options *options, scenario *run)
{
    bool all = strcmp(options->transport, "mixed") == 0;
    if (all || strcmp(options->transport, "shm") == 0)
        run(options, "shm");
    if ((all && SOAK_UCX) || strcmp(options->transport, "ucx") == 0)
        run(options, "ucx");
}

static void run(const struct soak_options *options)
{
    if (strcmp(options->scenario, "mixed") == 0)
        soak_mixed(options);
    else if (strcmp(options->scenario, "one-slot") == 0)
        run_scenario(options, soak_one_slot);
    else if (strcmp(options->scenario, "deadline") == 0)
        run_scenario(options, soak_deadline);
    else
        run_scenario(options, soak_restart);
}

int main(int argc, char **argv)
{
    struct soak_options options = {
        .scenario = "mixed", .transport = "mixed", .seconds = 60, .concurrency = 64, .stall_ms = 20};
    if (argc == 2 && strcmp(argv[1], "--help") == 0)
        return usage(stdout);
    if (!read_options(&options, argc, argv))
        return usage(stderr);
    if (access(options.daemon, X_OK) != 0) {
        fprintf(stderr, "soak: %s is no program\n", options.daemon);
        return 2;
    }
    (void)machine_watch();
    run(&options);
    if (complaints() != 0)
        printf("soak: %u rules broken\n", complaints());
    else
        printf("soak: all rules kept\n");
    return complaints() != 0;
}
