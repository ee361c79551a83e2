/* soak: daemons and their clients under load for as long as one likes, and three scenarios of shared arenas and
 * restarts. Exit status: 0, all rules were kept; 1, at least one was broken; 2, the options are wrong. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/soak/world.h"
#include "tests/support.h"

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

static bool read_number(const char *text, uint32_t most, uint32_t *number)
{
    char *end;
    unsigned long value = strtoul(text, &end, 10);
    *number = (uint32_t)value;
    return *text >= '0' && *text <= '9' && *end == '\0' && value >= 1 && value <= most;
}

static bool read_options(struct soak_options *options, int argc, char **argv)
{
    const struct {
        const char *name, **text;
        uint32_t *number, most;
    } rows[] = {{"daemon", &options->daemon, NULL, 0},
                {"scenario", &options->scenario, NULL, 0},
                {"transport", &options->transport, NULL, 0},
                {"seconds", NULL, &options->seconds, 7 * 24 * 3600},
                {"concurrency", NULL, &options->concurrency, 1024},
                {"stall-ms", NULL, &options->stall_ms, 60000}};
    struct option known[COUNT(rows) + 1] = {{.name = NULL}};
    for (int i = 0; i < COUNT(rows); i++)
        known[i] = (struct option){rows[i].name, required_argument, NULL, i};
    for (int i; (i = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        if (i == '?' || (rows[i].number != NULL && !read_number(optarg, rows[i].most, rows[i].number)))
            return false;
        if (rows[i].text != NULL)
            *rows[i].text = optarg;
    }
    return optind == argc && options->daemon != NULL;
}

/* False: there is no such scenario over this transport. */
static bool run(const struct soak_options *options)
{
    const char *transport = options->transport;
    bool mixed = strcmp(options->scenario, "mixed") == 0, local = strcmp(transport, "local") == 0;
    if (strcmp(transport, "mixed") != 0 && strcmp(transport, "shm") != 0 && strcmp(transport, "ucx") != 0 &&
        !(mixed && local))
        return false;
    if (!mixed)
        return soak_scenario(options);
    soak_mixed(options);
    return true;
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
    if (!run(&options))
        return usage(stderr);
    if (complaints() != 0)
        printf("soak: %u rules broken\n", complaints());
    else
        printf("soak: all rules kept\n");
    return complaints() != 0;
}
