#include "tests/chaos/plan.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/chaos/world.h"

static const struct memory_kind *const kinds[] = {
    &memory_host,
    &memory_fake,
#ifdef TESTS_CHAOS_CUDA
    &memory_cuda,
#endif
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static int usage(const char *problem)
{
    if (problem != NULL)
        fprintf(stderr, "chaos: %s\n", problem);
    fprintf(stderr, "usage: chaos --daemon STRAITD-CHAOS [options]\n"
                    "  --seed N             of what is drawn at random (1)\n"
                    "  --transfers N        at least so many (0)\n"
                    "  --hits N             of every fault in every state (5)\n"
                    "  --seconds N          then it has failed (600)\n"
                    "  --partly             no: then it ends, whatever was not met\n"
                    "  --transport KIND     shm, ucx or both: one world each (both); others as straitd knows them\n"
                    "  --worlds N           pairs of daemons at once (2)\n"
                    "  --fail-fast          the first violation ends the run\n"
                    "  --fault N --state N  only this row, only this column, from 0\n"
                    "  --local              and one world with both sides under one daemon\n"
                    "  --memory KIND        of pools: host, fake or cuda (host); 77 where there is no such device\n"
                    "  --plugin FOLDER      of fake, cuda: where the plugin in front of the daemons' own is\n"
                    "  --behind FILE        and that one\n"
                    "  --straitd OPTION     one more option --name=value of all daemons\n"
                    "  --keep --verbose     leaves the daemons' logs; names every scenario\n");
    return 2;
}

static bool number_of(const char *text, uint64_t *value)
{
    char *end;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return errno == 0 && *end == 0 && *text >= '0' && *text <= '9';
}

static bool take_memory(struct plan *plan, const char *name)
{
    for (uint32_t i = 0; i < KINDS; i++)
        if (strcmp(name, kinds[i]->name) == 0) {
            plan->setting.memory = kinds[i];
            return true;
        }
    return false;
}

static bool take_daemon_option(struct plan *plan, const char *option)
{
    const char **options = plan->setting.options;
    uint32_t most = sizeof(plan->setting.options) / sizeof(options[0]) - 1, count = 0;
    while (count < most && options[count] != NULL)
        count++;
    if (count == most)
        return false;
    options[count] = option;
    return true;
}

static bool take_number(struct plan *plan, int option, uint64_t value)
{
    switch (option) {
    case 's':
        plan->seed = value;
        return true;
    case 't':
        plan->transfers = (uint32_t)value;
        return true;
    case 'h':
        plan->hits = (uint32_t)value;
        return true;
    case 'T':
        plan->seconds = (uint32_t)value;
        return true;
    case 'w':
        plan->worlds = (uint32_t)value;
        return true;
    case 'f':
        plan->fault = (int)value;
        return value < FAULTS;
    default:
        plan->phase = (int)value;
        return value < PHASES;
    }
}

/* NULL, or what is wrong. */
static const char *take_other(struct plan *plan, int option, const char *text)
{
    switch (option) {
    case 'd':
        plan->setting.program = text;
        return NULL;
    case 'P':
        plan->setting.plugin = text;
        return NULL;
    case 'B':
        plan->setting.behind = text;
        return NULL;
    case 'x':
        plan->transport = text;
        return NULL;
    case 'm':
        return take_memory(plan, text) ? NULL : "this build has no such memory";
    case 'o':
        return take_daemon_option(plan, text) ? NULL : "too many options of daemons";
    default:
        return "";
    }
}

/* NULL, or what is wrong: "" after getopt said it. */
static const char *take_option(struct plan *plan, int option, const char *text)
{
    uint64_t value;
    switch (option) {
    case 'l':
        plan->local = true;
        return NULL;
    case 'k':
        plan->keep = true;
        return NULL;
    case 'v':
        plan->verbose = true;
        return NULL;
    case 'p':
        plan->partly = true;
        return NULL;
    case 'F':
        plan->fail_fast = true;
        return NULL;
    case 's':
    case 't':
    case 'h':
    case 'T':
    case 'w':
    case 'f':
    case 'S':
        return number_of(text, &value) && take_number(plan, option, value) ? NULL
                                                                           : "a number is needed, or a smaller one";
    default:
        return take_other(plan, option, text);
    }
}

static const char *check(const struct plan *plan)
{
    const struct setting *setting = &plan->setting;
    if (setting->program == NULL || plan->worlds < 1 || plan->worlds > WORLDS_MAX)
        return "--daemon is needed, and 1 to 8 worlds";
    if (setting->memory != &memory_host && (setting->plugin == NULL || setting->behind == NULL))
        return "pools of devices need --plugin and --behind";
    if (setting->memory == &memory_host && plan->fault >= F_SOURCE_DEVICE)
        return "no device can fail: pools are the host's";
    return NULL;
}

int plan_take_options(struct plan *plan, int argc, char **argv)
{
    static const struct option options[] = {{"daemon", required_argument, NULL, 'd'},
                                            {"seed", required_argument, NULL, 's'},
                                            {"transfers", required_argument, NULL, 't'},
                                            {"hits", required_argument, NULL, 'h'},
                                            {"seconds", required_argument, NULL, 'T'},
                                            {"transport", required_argument, NULL, 'x'},
                                            {"worlds", required_argument, NULL, 'w'},
                                            {"fault", required_argument, NULL, 'f'},
                                            {"state", required_argument, NULL, 'S'},
                                            {"memory", required_argument, NULL, 'm'},
                                            {"plugin", required_argument, NULL, 'P'},
                                            {"behind", required_argument, NULL, 'B'},
                                            {"straitd", required_argument, NULL, 'o'},
                                            {"partly", no_argument, NULL, 'p'},
                                            {"fail-fast", no_argument, NULL, 'F'},
                                            {"local", no_argument, NULL, 'l'},
                                            {"keep", no_argument, NULL, 'k'},
                                            {"verbose", no_argument, NULL, 'v'},
                                            {NULL, 0, NULL, 0}};
    int option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        const char *problem = take_option(plan, option, optarg);
        if (problem != NULL)
            return usage(problem[0] != 0 ? problem : NULL);
    }
    const char *problem = optind < argc ? "what is the rest?" : check(plan);
    return problem != NULL ? usage(problem) : 0;
}
