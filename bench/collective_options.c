#include "bench/collective_options.h"

#include <string.h>

#include "bench/options.h"
#include "bench/values.h"
#include "tools/util.h"

#define SIZE_MIN    ((uint64_t)16 * COLLECTIVE_RANKS_MAX) /* at least 16 bytes for every rank */
#define SIZE_MAX_   ((uint64_t)1 << 40)
#define SECONDS_MAX 86400u

const char *const collective_op_names[] = {"all_gather", "all_to_all", "reduce_scatter", "all_reduce", "sendrecv"};
const char *const collective_type_names[] = {"bf16", "fp16", "fp32", "fp32-bf16"};
const char *const collective_data_names[] = {"weights", "gradients", "activations", "moments",
                                             "squares", "other",     "tensors",     "random"};
const char *const collective_links_names[] = {"as-is", "shm", "socket"};

const char collective_usage[] =
    "Usage: strait bench collective [OPTION]...\n"
    "Measures collectives of NCCL between the GPUs of this machine, a process each: NCCL alone and the same calls by\n"
    "way of libstrait-coll, in turn and in one process. Compares every result bit for bit.\n"
    "\n"
    "      --ops=LIST          of all_gather, all_to_all, reduce_scatter, all_reduce, sendrecv; all\n"
    "      --types=LIST        of bf16, fp16, fp32, and fp32-bf16: FP32 that carries BF16; bf16,fp32-bf16\n"
    "      --data=LIST         of weights, gradients, activations, moments, squares (of moments), other: tensors of "
    "that\n"
    "                          kind, as their names tell; tensors: all, one behind the other; random: bits that "
    "cannot\n"
    "                          be compressed; each kind that the files have, by itself\n"
    "      --links=LIST        of as-is, shm (with NCCL_P2P_DISABLE=1), socket (and NCCL_SHM_DISABLE=1): what NCCL "
    "may\n"
    "                          use between the GPUs; as-is\n"
    "      --size=LIST         bytes, of all ranks together where there are parts; 1M,16M,64M,256M\n"
    "      --input=FILE        safetensors file, once or more; a KV cache that comes with the program\n"
    "      --gpus=N            so many GPUs; all\n"
    "      --ranks=N           so many ranks, dealt out to the GPUs; one on each. NCCL takes several on one GPU if,\n"
    "                          as it is told, they are on hosts of their own (--env=NCCL_HOSTID=host%r), and from\n"
    "                          2.30 on with --env=NCCL_MULTI_RANK_GPU_ENABLE=1\n"
    "      --library=FILE      libstrait-coll; libstrait-coll.so.0, where the loader finds it\n"
    "      --nccl=FILE         NCCL; libnccl.so.2, where the loader finds it\n"
    "      --env=NAME=VALUE    environment of the ranks, such as STRAIT_COLL=raw, once or more; %r in it is a rank's "
    "number\n"
    "      --repeats=N         run everything N times in turn; 9\n"
    "      --warmups=N         calls of each row before; 3\n"
    "      --singles=N         before all else N calls of each row, each alone: the slowest is told; 0\n"
    "      --iterations=N      calls of one repeat; as many as take 20 ms, up to 100\n"
    "      --timeout=SECONDS   for all rows of one kind of links; 300\n"
    "      --fault=flip        turn over one bit of a result: the bench has to notice\n"
    "      --json              the figures for machines\n"
    "      --save=FILE         the same to a file, besides\n"
    "  -h, --help\n"
    "\n"
    "Exit status: 0 done, 1 a call failed, a result is wrong or there is no GPU for each rank, 2 bad usage.\n";

/* ---- Single options -------------------------------------------------------------------------------------------- */

static bool choose(const char *option, const char *name, const char *const *names, unsigned count, bool *chosen)
{
    unsigned index;

    if (!option_name(option, name, names, count, &index))
        return false;
    return chosen[index] = true;
}

static bool add_op(void *arg, const char *name)
{
    struct collective_options *options = arg;

    return choose("--ops", name, collective_op_names, COLLECTIVE_OPS, options->ops);
}

static bool add_type(void *arg, const char *name)
{
    struct collective_options *options = arg;

    return choose("--types", name, collective_type_names, COLLECTIVE_TYPES, options->types);
}

static bool add_data(void *arg, const char *name)
{
    struct collective_options *options = arg;

    return choose("--data", name, collective_data_names, COLLECTIVE_DATAS, options->datas);
}

static bool add_links(void *arg, const char *name)
{
    struct collective_options *options = arg;

    return choose("--links", name, collective_links_names, COLLECTIVE_LINKS, options->links);
}

static bool add_size(void *arg, const char *text)
{
    struct collective_options *options = arg;

    if (options->size_count == COLLECTIVE_SIZES_MAX)
        return value_too_many("--size", COLLECTIVE_SIZES_MAX);
    return option_size("--size", text, SIZE_MIN, SIZE_MAX_, &options->sizes[options->size_count++]);
}

static bool add_environment(struct collective_options *options, const char *text)
{
    const char *equals = strchr(text, '=');

    if (options->environment_count == COLLECTIVE_ENVIRONMENT_MAX)
        return value_too_many("--env", COLLECTIVE_ENVIRONMENT_MAX);
    if (equals == NULL || equals == text) {
        print_error(NULL, "--env takes NAME=VALUE, not '%s'", text);
        return false;
    }
    options->environment[options->environment_count++] = text;
    return true;
}

static bool set_fault(struct collective_options *options, const char *text)
{
    static const char *const names[] = {"flip"};
    unsigned index;

    return options->fault = option_name("--fault", text, names, 1, &index);
}

/* ---- All of them ----------------------------------------------------------------------------------------------- */

enum {
    OPT_OPS = 256,
    OPT_TYPES,
    OPT_DATA,
    OPT_LINKS,
    OPT_SIZE,
    OPT_GPUS,
    OPT_RANKS,
    OPT_LIBRARY,
    OPT_NCCL,
    OPT_ENV,
    OPT_REPEATS,
    OPT_WARMUPS,
    OPT_SINGLES,
    OPT_ITERATIONS,
    OPT_TIMEOUT,
    OPT_FAULT,
    OPT_JSON,
    OPT_SAVE,
};

static const struct option long_options[] = {
    {"ops", required_argument, NULL, OPT_OPS},
    {"types", required_argument, NULL, OPT_TYPES},
    {"data", required_argument, NULL, OPT_DATA},
    {"links", required_argument, NULL, OPT_LINKS},
    {"size", required_argument, NULL, OPT_SIZE},
    {"input", required_argument, NULL, OPT_INPUT},
    {"gpus", required_argument, NULL, OPT_GPUS},
    {"ranks", required_argument, NULL, OPT_RANKS},
    {"library", required_argument, NULL, OPT_LIBRARY},
    {"nccl", required_argument, NULL, OPT_NCCL},
    {"env", required_argument, NULL, OPT_ENV},
    {"repeats", required_argument, NULL, OPT_REPEATS},
    {"warmups", required_argument, NULL, OPT_WARMUPS},
    {"singles", required_argument, NULL, OPT_SINGLES},
    {"iterations", required_argument, NULL, OPT_ITERATIONS},
    {"timeout", required_argument, NULL, OPT_TIMEOUT},
    {"fault", required_argument, NULL, OPT_FAULT},
    {"json", no_argument, NULL, OPT_JSON},
    {"save", required_argument, NULL, OPT_SAVE},
    {"help", no_argument, NULL, 'h'},
    {0},
};

/* Options of the report and of the run. */
static bool set_other_option(struct collective_options *options, int option, const char *text)
{
    switch (option) {
    case OPT_LIBRARY:
        options->library = text;
        return true;
    case OPT_NCCL:
        options->nccl = text;
        return true;
    case OPT_ENV:
        return add_environment(options, text);
    case OPT_FAULT:
        return set_fault(options, text);
    case OPT_JSON:
        return options->json = true;
    case OPT_SAVE:
        options->save = text;
        return true;
    default:
        return sources_set(&options->sources, option, text); /* getopt_long has reported unknown options */
    }
}

static bool set_number_option(struct collective_options *options, int option, const char *text)
{
    switch (option) {
    case OPT_GPUS:
        return value_number("--gpus", text, 1, COLLECTIVE_RANKS_MAX, &options->gpus);
    case OPT_RANKS:
        return value_number("--ranks", text, 2, COLLECTIVE_RANKS_MAX, &options->ranks);
    case OPT_REPEATS:
        return value_number("--repeats", text, 1, REPEATS_MAX, &options->repeats);
    case OPT_WARMUPS:
        return value_number("--warmups", text, 1, REPEATS_MAX, &options->warmups);
    case OPT_SINGLES:
        return value_number("--singles", text, 0, REPEATS_MAX, &options->singles);
    case OPT_ITERATIONS:
        return value_number("--iterations", text, 1, REPEATS_MAX, &options->iterations);
    case OPT_TIMEOUT:
        return value_number("--timeout", text, 1, SECONDS_MAX, &options->seconds);
    default:
        return set_other_option(options, option, text);
    }
}

/* Sets one option; false when it is wrong, with the error on stderr. */
static bool set_option(void *arg, int option, const char *text)
{
    struct collective_options *options = arg;

    switch (option) {
    case OPT_OPS:
        return value_each(text, add_op, options);
    case OPT_TYPES:
        return value_each(text, add_type, options);
    case OPT_DATA:
        return value_each(text, add_data, options);
    case OPT_LINKS:
        return value_each(text, add_links, options);
    case OPT_SIZE:
        return value_each(text, add_size, options);
    default:
        return set_number_option(options, option, text);
    }
}

static bool any(const bool *chosen, unsigned count)
{
    bool found = false;

    for (unsigned i = 0; i < count; i++)
        found |= chosen[i];
    return found;
}

static bool set_defaults(struct collective_options *options)
{
    static const uint64_t sizes[] = {1u << 20, 16u << 20, 64u << 20, 256u << 20};

    if (!any(options->ops, COLLECTIVE_OPS))
        memset(options->ops, true, sizeof(options->ops));
    if (!any(options->types, COLLECTIVE_TYPES))
        options->types[COLLECTIVE_BF16] = options->types[COLLECTIVE_FP32_BF16] = true;
    options->kinds = !any(options->datas, COLLECTIVE_DATAS);
    if (options->kinds)
        memset(options->datas, true, COLLECTIVE_TENSORS * sizeof(options->datas[0]));
    if (!any(options->links, COLLECTIVE_LINKS))
        options->links[COLLECTIVE_AS_IS] = true;
    if (options->size_count == 0) {
        memcpy(options->sizes, sizes, sizeof(sizes));
        options->size_count = sizeof(sizes) / sizeof(sizes[0]);
    }
    return !any(options->datas, COLLECTIVE_RANDOM) || sources_complete(&options->sources);
}

bool collective_options_init(struct collective_options *options, int argc, char **argv)
{
    *options = (struct collective_options){
        .library = "libstrait-coll.so.0",
        .nccl = "libnccl.so.2",
        .repeats = 9,
        .warmups = 3,
        .seconds = 300,
    };
    return sources_init(&options->sources, argc) &&
           options_read(argc, argv, "h", long_options, set_option, options, &options->help) &&
           (options->help || set_defaults(options));
}

void collective_options_fini(struct collective_options *options)
{
    sources_fini(&options->sources);
}
