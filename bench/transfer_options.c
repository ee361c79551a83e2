#include "bench/transfer_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <strait/codec.h>

#include "bench/options.h"
#include "tools/util.h"
#include "tools/pipeline.h"

#define PAGES_COUNT_MAX    (1024u * 1024)
#define REQUESTS_COUNT_MAX 1024u
#define RATE_MAX           1000.0

const char *const path_names[PATH_KINDS] = {"local", "shm", "tcp", "link"};

const char transfer_usage[] =
    "Usage: strait bench transfer [OPTION]...\n"
    "Measures transfers from pool to pool, from start to DONE at the sink, beside memcpy, ucx_perftest and iperf3.\n"
    "Starts its own daemons ($STRAITD, or the straitd beside this program) and looks at every page that lands.\n"
    "\n"
    "What is moved\n"
    "      --page=SIZE         bytes of a page, a multiple of 16, once or more; 32K\n"
    "      --pages=N           pages of a request in each region, once or more; 8192\n"
    "      --regions=N         regions of the pools; 0: one for each tensor of the input, with its table; 1\n"
    "      --requests=N        requests at once; 1\n"
    "      --whole             also as one request of one region, its pages large and in order\n"
    "      --input=FILE        safetensors file, once or more; a KV cache that comes with the program\n"
    "      --calib=FILE        make the codebook of these tensors, once or more; of the input\n"
    "      --codebook=SET      codebook set, as strait calibrate makes it\n"
    "      --noise             random bits, which do not shrink, in place of the input's values\n"
    "How\n"
    "      --path=LIST         of local (one daemon), shm, tcp (loopback), link (namespaces, root); local,shm,tcp\n"
    "      --coding=LIST       of raw, top16, tiered, auto; raw\n"
    "      --direction=LIST    of pull, push; pull\n"
    "      --daemon=TEXT       one more option for every straitd, as \"name=value\", once or more\n"
    "      --repeats=N         run everything N times in turn; 5\n"
    "      --samples=N         transfers of a row in each turn; 0: one, or as many small ones as make 16M; 0\n"
    "      --no-rivals         without memcpy, ucx_perftest and iperf3\n"
    "The link\n"
    "      --rate=LIST         Gbit/s, one group of rows each; 1\n"
    "      --burst=SIZE        of the token bucket; 512K\n"
    "      --change=FROM,TO    instead: coding auto while the rate changes in the middle, by the second\n"
    "      --seconds=N         of that; 12\n"
    "Layer by layer\n"
    "      --layers=N          also a request of N layers (regions), appended one by one, and one layer alone\n"
    "      --every=MS          between two appends; 10\n"
    "      --aux=SIZE          a payload that comes with DONE\n"
    "      --aux-after=MS      how long behind the last layer it is there; 0\n"
    "Other\n"
    "      --device            between pools in GPU memory, with options of its own: --device --help\n"
    "      --idle=SECONDS      processor time of idle, connected daemons afterwards; 0: not measured\n"
    "      --json              the figures for machines\n"
    "  -h, --help\n"
    "\n"
    "Exit status: 0 done, 1 a transfer failed or a page is wrong, 2 bad usage.\n";

/* ---- Values ---------------------------------------------------------------------------------------------------- */

static bool read_rate(const char *option, const char *text, double *rate)
{
    char *end;

    *rate = strtod(text, &end);
    if (end != text && *end == '\0' && *rate >= 0.001 && *rate <= RATE_MAX)
        return true;
    print_error(NULL, "%s takes rates from 0.001 to %g Gbit/s, not '%s'", option, RATE_MAX, text);
    return false;
}

/* ---- Single options -------------------------------------------------------------------------------------------- */

static bool add_page(struct transfer_options *options, const char *text)
{
    if (options->page_byte_count == TRANSFER_SIZES_MAX)
        return value_too_many("--page", TRANSFER_SIZES_MAX);
    return value_page(text, &options->page_bytes[options->page_byte_count++]);
}

static bool add_pages(struct transfer_options *options, const char *text)
{
    if (options->page_count == TRANSFER_SIZES_MAX)
        return value_too_many("--pages", TRANSFER_SIZES_MAX);
    return value_number("--pages", text, 1, PAGES_COUNT_MAX, &options->pages[options->page_count++]);
}

static bool add_path(void *arg, const char *name)
{
    struct transfer_options *options = arg;
    unsigned index;

    if (!option_name("--path", name, path_names, PATH_KINDS, &index))
        return false;
    options->paths[index] = true;
    return true;
}

static bool add_coding(void *arg, const char *name)
{
    struct transfer_options *options = arg;

    return value_coding(name, options->codings, &options->coding_count);
}

static bool add_direction(void *arg, const char *name)
{
    struct transfer_options *options = arg;
    static const char *const names[] = {"pull", "push"};
    unsigned index;

    if (!option_name("--direction", name, names, 2, &index))
        return false;
    *(index == 0 ? &options->pull : &options->push) = true;
    return true;
}

static bool add_rate(void *arg, const char *name)
{
    struct transfer_options *options = arg;

    if (options->rate_count == TRANSFER_SIZES_MAX)
        return value_too_many("--rate", TRANSFER_SIZES_MAX);
    return read_rate("--rate", name, &options->rates[options->rate_count++]);
}

static bool add_change(void *arg, const char *name)
{
    struct transfer_options *options = arg;

    if (options->change[1] > 0)
        return value_too_many("--change", 2);
    return read_rate("--change", name, &options->change[options->change[0] > 0]);
}

/* ---- All of them ----------------------------------------------------------------------------------------------- */

enum {
    OPT_PAGE = 256,
    OPT_PAGES,
    OPT_REGIONS,
    OPT_REQUESTS,
    OPT_WHOLE,
    OPT_NOISE,
    OPT_PATH,
    OPT_CODING,
    OPT_DIRECTION,
    OPT_DAEMON,
    OPT_REPEATS,
    OPT_SAMPLES,
    OPT_NO_RIVALS,
    OPT_RATE,
    OPT_BURST,
    OPT_CHANGE,
    OPT_SECONDS,
    OPT_LAYERS,
    OPT_EVERY,
    OPT_AUX,
    OPT_AUX_AFTER,
    OPT_IDLE,
    OPT_JSON,
};

static const struct option long_options[] = {
    {"page", required_argument, NULL, OPT_PAGE},
    {"pages", required_argument, NULL, OPT_PAGES},
    {"regions", required_argument, NULL, OPT_REGIONS},
    {"requests", required_argument, NULL, OPT_REQUESTS},
    {"whole", no_argument, NULL, OPT_WHOLE},
    SOURCE_OPTIONS,
    {"noise", no_argument, NULL, OPT_NOISE},
    {"path", required_argument, NULL, OPT_PATH},
    {"coding", required_argument, NULL, OPT_CODING},
    {"direction", required_argument, NULL, OPT_DIRECTION},
    {"daemon", required_argument, NULL, OPT_DAEMON},
    {"repeats", required_argument, NULL, OPT_REPEATS},
    {"samples", required_argument, NULL, OPT_SAMPLES},
    {"no-rivals", no_argument, NULL, OPT_NO_RIVALS},
    {"rate", required_argument, NULL, OPT_RATE},
    {"burst", required_argument, NULL, OPT_BURST},
    {"change", required_argument, NULL, OPT_CHANGE},
    {"seconds", required_argument, NULL, OPT_SECONDS},
    {"layers", required_argument, NULL, OPT_LAYERS},
    {"every", required_argument, NULL, OPT_EVERY},
    {"aux", required_argument, NULL, OPT_AUX},
    {"aux-after", required_argument, NULL, OPT_AUX_AFTER},
    {"idle", required_argument, NULL, OPT_IDLE},
    {"json", no_argument, NULL, OPT_JSON},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static bool set_link_option(struct transfer_options *options, int option, const char *text)
{
    switch (option) {
    case OPT_RATE:
        return value_each(text, add_rate, options);
    case OPT_BURST:
        return option_size("--burst", text, 4096, 1u << 30, &options->burst);
    case OPT_CHANGE:
        return value_each(text, add_change, options);
    case OPT_SECONDS:
        return value_number("--seconds", text, 2, 3600, &options->seconds);
    case OPT_LAYERS:
        return value_number("--layers", text, 2, 1024, &options->layers);
    case OPT_EVERY:
        return value_number("--every", text, 0, 60000, &options->every_ms);
    case OPT_AUX:
        return option_size("--aux", text, 0, STRAIT_AUX_BYTES_MAX, &options->aux_bytes);
    case OPT_AUX_AFTER:
        return value_number("--aux-after", text, 0, 60000, &options->aux_after_ms);
    case OPT_IDLE:
        return value_number("--idle", text, 0, 3600, &options->idle_seconds);
    default:
        return sources_set(&options->sources, option, text); /* getopt_long has reported unknown options */
    }
}

/* Sets one option; false when it is wrong, with the error on stderr. */
static bool set_option(void *arg, int option, const char *text)
{
    struct transfer_options *options = arg;

    switch (option) {
    case OPT_PAGE:
        return add_page(options, text);
    case OPT_PAGES:
        return add_pages(options, text);
    case OPT_REGIONS:
        return value_number("--regions", text, 0, STRAIT_REGIONS_MAX, &options->regions);
    case OPT_REQUESTS:
        return value_number("--requests", text, 1, REQUESTS_COUNT_MAX, &options->requests);
    case OPT_WHOLE:
        return options->whole = true;
    case OPT_NOISE:
        return options->noise = true;
    case OPT_PATH:
        return value_each(text, add_path, options);
    case OPT_CODING:
        return value_each(text, add_coding, options);
    case OPT_DIRECTION:
        return value_each(text, add_direction, options);
    case OPT_DAEMON:
        return value_daemon(text, options->daemon, &options->daemon_count);
    case OPT_REPEATS:
        return value_number("--repeats", text, 1, REPEATS_MAX, &options->repeats);
    case OPT_SAMPLES:
        return value_number("--samples", text, 0, TRANSFER_SAMPLES_MAX, &options->samples);
    case OPT_NO_RIVALS:
        options->rivals = false;
        return true;
    case OPT_JSON:
        return options->json = true;
    default:
        return set_link_option(options, option, text);
    }
}

static bool has_path(const struct transfer_options *options)
{
    for (unsigned i = 0; i < PATH_KINDS; i++)
        if (options->paths[i])
            return true;
    return false;
}

static bool set_defaults(struct transfer_options *options)
{
    if (options->page_byte_count == 0)
        options->page_bytes[options->page_byte_count++] = 32 * 1024;
    if (options->page_count == 0)
        options->pages[options->page_count++] = options->change[1] > 0 ? 1024 : 8192; /* shows a change soon */
    if (!has_path(options))
        options->paths[PATH_LOCAL] = options->paths[PATH_SHM] = options->paths[PATH_TCP] = true;
    if (options->coding_count == 0)
        options->codings[options->coding_count++] = STRAIT_CODING_RAW;
    if (!options->pull && !options->push)
        options->pull = true;
    if (options->rate_count == 0)
        options->rates[options->rate_count++] = 1;
    if (options->change[1] > 0) {
        memset(options->paths, 0, sizeof(options->paths));
        options->paths[PATH_LINK] = true;
        options->coding_count = 1;
        options->codings[0] = STRAIT_CODING_AUTO;
    }
    return sources_complete(&options->sources);
}

static bool check_options(const struct transfer_options *options)
{
    const char *why = NULL;

    if (options->change[0] > 0 && options->change[1] == 0)
        why = "--change takes two rates, such as 1,10";
    else if ((options->aux_bytes > 0 || options->aux_after_ms > 0) && options->layers == 0)
        why = "--aux and --aux-after belong to --layers";
    else if (options->layers > 0 && options->requests > 1)
        why = "--layers goes with one request at a time";
    if (why != NULL)
        print_error(NULL, "%s", why);
    return why == NULL;
}

bool transfer_options_init(struct transfer_options *options, int argc, char **argv)
{
    *options = (struct transfer_options){
        .regions = 1,
        .requests = 1,
        .rivals = true,
        .repeats = 5,
        .burst = 512 * 1024,
        .seconds = 12,
        .every_ms = 10,
    };
    return sources_init(&options->sources, argc) &&
           options_read(argc, argv, "h", long_options, set_option, options, &options->help) &&
           (options->help || (check_options(options) && set_defaults(options)));
}

void transfer_options_fini(struct transfer_options *options)
{
    sources_fini(&options->sources);
}
