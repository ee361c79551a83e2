/* The command `strait bench`, and the options of its benches, which are tables. */
#include "bench/bench.h"

#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <strait/strait.h>

#include "tools/commands.h"

#define OPTIONS_MAX 48u
#define HELP_COLUMN 26
#define HELP_WIDTH  118
#define RATE_MAX    1000.0 /* Gbit/s */

const char *const mode_names[] = {
    [STRAIT_MODE_AUTO] = "auto",     [STRAIT_MODE_RAW] = "raw",      [STRAIT_MODE_TOP16] = "top16",
    [STRAIT_MODE_TIERED] = "tiered", [STRAIT_MODE_BASE] = "base",    [STRAIT_MODE_SPLIT] = "split",
    [STRAIT_MODE_PARTS] = "parts",   [STRAIT_MODE_PARTS + 1] = NULL,
};
const char *const coding_names[] = {"auto", "raw", "top16", "tiered", "base", "split", "parts", NULL};

#define OPTIONS struct bench_options
static const char *const faults[] = {"flip", NULL};
static const struct bench_option input_option = {OPTION(
    TEXTS, inputs, "input", NULL, "FILE", "safetensors file, once or more; a KV cache that comes with the program")};
static const struct bench_option codebook_options[] = {
    {OPTION(TEXTS, calibs, "calib", NULL, "FILE", "make the codebook of these tensors, once or more; of the input")},
    {OPTION(TEXT, codebook, "codebook", NULL, "SET", "codebook set, as strait calibrate makes it")},
};
static const struct bench_option report_options[] = {
    {OPTION(NAMES, fault, "fault", NULL, "flip", "turn over one bit of what arrived: the bench has to notice"),
     .names = faults},
    {OPTION(FLAG, json, "json", NULL, NULL, "the figures as JSON")},
    {OPTION(TEXT, save, "save", NULL, "FILE", "the same to a file as well")},
};

/* All options of a bench, its own and those that it shares. */
struct option_set {
    const struct bench_option *list[OPTIONS_MAX];
    bool given[OPTIONS_MAX];
    unsigned count;
};

static void add_options(struct option_set *set, const struct bench_option *options, unsigned count)
{
    for (unsigned i = 0; i < count && set->count < OPTIONS_MAX; i++)
        set->list[set->count++] = &options[i];
}

bool list_has(const struct number_list *list, uint64_t value)
{
    for (unsigned i = 0; i < list->count; i++)
        if (list->list[i] == value)
            return true;
    return false;
}

/* ---- One value --------------------------------------------------------------------------------------------------- */

static bool read_rate(const char *flag, const char *text, uint64_t *kilobits)
{
    char *end;
    double rate = strtod(text, &end);

    if (end == text || *end != '\0' || !(rate >= 0.001 && rate <= RATE_MAX)) {
        print_error(NULL, "%s takes rates from 0.001 to %g Gbit/s, not '%s'", flag, RATE_MAX, text);
        return false;
    }
    *kilobits = (uint64_t)(rate * 1e6 + 0.5);
    return true;
}

static bool read_number(const struct bench_option *option, const char *flag, const char *text, uint64_t *value)
{
    uint64_t max = option->max == 0 ? (uint64_t)1 << 40 : option->max;
    unsigned count = 0, index;

    switch (option->type) {
    case OPTION_RATES:
        return read_rate(flag, text, value);
    case OPTION_NAMES:
        while (option->names[count] != NULL)
            count++;
        if (!option_name(flag, text, option->names, count, &index))
            return false;
        *value = index;
        return true;
    case OPTION_SIZE:
    case OPTION_SIZES:
        if (!option_size(flag, text, option->min, max, value))
            return false;
        if (option->multiple != 0 && *value % option->multiple != 0) {
            print_error(NULL, "%s takes a multiple of %llu", flag, (unsigned long long)option->multiple);
            return false;
        }
        return true;
    default:
        if (parse_number(text, max, value) && *value >= option->min)
            return true;
        print_error(NULL, "%s takes a number from %llu to %llu, not '%s'", flag, (unsigned long long)option->min,
                    (unsigned long long)max, text);
        return false;
    }
}

/* Adds all values of a text with commas; names only once. */
static bool add_numbers(const struct bench_option *option, const char *flag, const char *text, struct number_list *list)
{
    char *copy = strdup(text), *rest = copy;
    bool good = copy != NULL;
    uint64_t value;

    while (good && rest != NULL) {
        good = read_number(option, flag, strsep(&rest, ","), &value);
        if (good && list->count == LIST_MAX) {
            print_error(NULL, "%s takes at most %u values", flag, LIST_MAX);
            good = false;
        }
        if (good && !(option->type == OPTION_NAMES && list_has(list, value)))
            list->list[list->count++] = value;
    }
    free(copy);
    return good;
}

static bool set_option(const struct bench_option *option, void *options, const char *text)
{
    char *field = (char *)options + option->field, flag[40];

    snprintf(flag, sizeof(flag), "--%s", option->name);
    switch (option->type) {
    case OPTION_FLAG:
        return *(bool *)field = true;
    case OPTION_TEXT:
        *(const char **)field = text;
        return true;
    case OPTION_TEXTS: {
        struct text_list *list = (struct text_list *)field;
        if (list->count == LIST_MAX) {
            print_error(NULL, "%s may be given at most %u times", flag, LIST_MAX);
            return false;
        }
        list->list[list->count++] = text;
        return true;
    }
    case OPTION_NUMBER:
    case OPTION_SIZE:
        return read_number(option, flag, text, (uint64_t *)field);
    default:
        return add_numbers(option, flag, text, (struct number_list *)field);
    }
}

/* ---- Help -------------------------------------------------------------------------------------------------------- */

/* Prints words from the column on, in as many lines as they need. */
static void print_wrapped(const char *text, int at, int column)
{
    while (*text != '\0') {
        int length = (int)strcspn(text, " ");
        if (at > column && at + 1 + length > HELP_WIDTH) {
            printf("\n%*s", column, "");
            at = column;
        }
        at += printf("%s%.*s", at > column ? " " : "", length, text);
        text += length + (text[length] == ' ');
    }
    putchar('\n');
}

static void print_option(const struct bench_option *option)
{
    char text[1024], letter[8] = "    ";
    int at;

    if (option->letter != '\0')
        snprintf(letter, sizeof(letter), "-%c, ", option->letter);
    at = printf("  %s--%s%s%s", letter, option->name, option->argument != NULL ? "=" : "",
                option->argument != NULL ? option->argument : "");
    at += printf("%*s", at < HELP_COLUMN ? HELP_COLUMN - at : 1, "");
    snprintf(text, sizeof(text), "%s%s%s", option->help, option->initial != NULL ? "; " : "",
             option->initial != NULL ? option->initial : "");
    print_wrapped(text, at < HELP_COLUMN ? at : HELP_COLUMN, HELP_COLUMN);
}

static void print_help(const struct bench_command *command, const struct option_set *set)
{
    printf("Usage: %s [OPTION]...\n", command->name);
    print_wrapped(command->summary, 0, 0);
    putchar('\n');
    for (unsigned i = 0; i < set->count; i++)
        print_option(set->list[i]);
    printf("  -h, --help\n\nExit status: 0 done, 1 something failed or is wrong, 2 bad usage.\n");
}

static void list_options(const struct option_set *set)
{
    for (unsigned i = 0; i < set->count; i++) {
        const struct bench_option *option = set->list[i];
        char values[512] = "";
        for (unsigned n = 0; option->names != NULL && option->names[n] != NULL; n++)
            snprintf(values + strlen(values), sizeof(values) - strlen(values), "%s%s", n > 0 ? " " : "",
                     option->names[n]);
        options_list(&(struct option_listed){.name = option->name,
                                             .letter = option->letter,
                                             .argument = option->type == OPTION_FLAG ? NULL : option->argument,
                                             .values = values[0] != '\0' ? values : NULL,
                                             .help = option->help});
    }
    options_list(&(struct option_listed){.name = "help", .letter = 'h', .help = "print this"});
}

/* ---- All options ------------------------------------------------------------------------------------------------- */

/* In an installation of the program, or in the source tree around a build folder. */
const char *default_input(void)
{
    static const char *const places[] = {"../share/strait/kv-slice.safetensors",
                                         "../../../tests/data/kv-slice.safetensors"};
    static char path[PATH_MAX + 64];
    char folder[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", folder, sizeof(folder) - 1);

    folder[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash != NULL)
        slash[1] = '\0';
    for (unsigned i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        snprintf(path, sizeof(path), "%s%s", folder, places[i]);
        if (access(path, R_OK) == 0)
            return path;
    }
    return NULL;
}

static bool set_defaults(const struct option_set *set, struct bench_options *options)
{
    for (unsigned i = 0; i < set->count; i++)
        if (!set->given[i] && set->list[i]->initial != NULL &&
            !set_option(set->list[i], options, set->list[i]->initial))
            return false;
    if (options->codebook != NULL && options->calibs.count > 0) {
        print_error(NULL, "--codebook and --calib exclude each other");
        return false;
    }
    if (options->inputs.count == 0 && (options->inputs.list[0] = default_input()) != NULL)
        options->inputs.count = 1;
    return true;
}

bool command_read(const struct bench_command *command, void *options, int argc, char **argv, enum exit_code *code)
{
    struct bench_options *common = options;
    struct option_set set = {0};
    struct option known[OPTIONS_MAX + 2] = {0};
    char letters[2 * OPTIONS_MAX] = "h";
    int found;

    *code = EXIT_CODE_USAGE;
    add_options(&set, command->options, command->option_count);
    add_options(&set, &input_option, 1);
    add_options(&set, codebook_options, command->codebook ? 2 : 0);
    add_options(&set, report_options, sizeof(report_options) / sizeof(report_options[0]));
    if (options_list(NULL)) {
        list_options(&set);
        *code = EXIT_CODE_OK;
        return false;
    }
    common->argc = argc;
    common->argv = calloc((size_t)argc + 1, sizeof(argv[0])); /* kept until the process ends */
    if (common->argv == NULL)
        return false;
    memcpy(common->argv, argv, (size_t)argc * sizeof(argv[0]));
    command_begin(argv, command->name);
    for (unsigned i = 0; i < set.count; i++) {
        const struct bench_option *option = set.list[i];
        known[i] = (struct option){option->name, option->type == OPTION_FLAG ? no_argument : required_argument, NULL,
                                   option->letter != '\0' ? option->letter : 256 + (int)i};
        if (option->letter != '\0')
            snprintf(letters + strlen(letters), 3, "%c:", option->letter);
    }
    known[set.count] = (struct option){"help", no_argument, NULL, 'h'};
    while ((found = getopt_long(argc, argv, letters, known, NULL)) != -1) {
        if (found == 'h') {
            print_help(command, &set);
            *code = EXIT_CODE_OK;
            return false;
        }
        for (unsigned i = 0; found != '?' && i < set.count; i++)
            if (known[i].val == found) {
                set.given[i] = true;
                found = set_option(set.list[i], options, optarg) ? found : '?';
            }
        if (found == '?')
            return false;
    }
    if (optind < argc) {
        print_error(NULL, "takes options only; --input names a file");
        return false;
    }
    return set_defaults(&set, common);
}

/* ---- The command ------------------------------------------------------------------------------------------------- */

#ifdef STRAIT_BENCH_CUDA
#define WITH_CUDA(bench) (bench)
#else
#define WITH_CUDA(bench) without_cuda

static int without_cuda(int argc, char **argv)
{
    static char name[] = "strait bench";

    (void)argc;
    if (options_list(NULL))
        return EXIT_CODE_OK;
    command_begin(argv, name);
    print_error(NULL, "strait was built without CUDA");
    return EXIT_CODE_DATA;
}
#endif

static const struct {
    const char *name, *about;
    bench_function *host, *device; /* `device`: with --device */
} benches[] = {
    {"codec", "speed and ratio of the codec in memory, beside memcpy", bench_codec, WITH_CUDA(bench_codec_device)},
    {"transfer", "transfers from pool to pool, beside memcpy, ucx_perftest and iperf3", bench_transfer,
     WITH_CUDA(bench_transfer_device)},
    {"hosts", "the same between two hosts, with a command on each", bench_hosts, NULL},
    {"collective", "collectives between GPUs, by NCCL and by way of libstrait-coll", WITH_CUDA(bench_collective), NULL},
    {"checkpoint", "saves of a training state, raw and coded, past the page cache and through it", bench_checkpoint,
     NULL},
    {"ep", "expert parallelism: dispatch and combine between ranks", bench_ep, WITH_CUDA(bench_ep_device)},
};

const char *const bench_names[] = {"codec",      "transfer", "hosts", "collective",
                                   "checkpoint", "ep",       NULL}; /* in the order of `benches` */
_Static_assert(sizeof(bench_names) / sizeof(bench_names[0]) == sizeof(benches) / sizeof(benches[0]) + 1,
               "each bench has its name");

static void print_usage(FILE *stream)
{
    fprintf(stream, "Usage: strait bench BENCH [--device] [OPTION]...\n\n");
    for (unsigned i = 0; i < sizeof(benches) / sizeof(benches[0]); i++)
        fprintf(stream, "  %-11s%s\n", benches[i].name, benches[i].about);
    fprintf(stream, "\nstrait bench BENCH --help tells more; with --device, codec, transfer and ep measure GPUs.\n");
}

static bool has_device(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--device") == 0)
            return true;
    return false;
}

int cmd_bench(int argc, char **argv)
{
    static char name[] = "strait bench";

    for (unsigned i = 0; argc >= 2 && i < sizeof(benches) / sizeof(benches[0]); i++)
        if (strcmp(argv[1], benches[i].name) == 0) {
            bool device = benches[i].device != NULL && has_device(argc, argv);
            return (device ? benches[i].device : benches[i].host)(argc - 1, argv + 1);
        }
    if (argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        print_usage(stdout);
        return EXIT_CODE_OK;
    }
    command_begin(argv, name);
    if (argc >= 2)
        print_error(NULL, "no bench '%s'", argv[1]);
    print_usage(stderr);
    return EXIT_CODE_USAGE;
}
