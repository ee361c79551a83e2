#include "bench/gpu_options.h"

#include <string.h>

#include "bench/options.h"
#include "tools/util.h"

#define GPU_SIZE_MAX (1ull << 40)

const char *const gpu_wire_names[GPU_WIRES] = {"peer", "pinned", "nccl", "ucx"};
const char *const gpu_wire_counters[GPU_WIRES] = {"peer", "pinned", "nccl", "ucx"};

const char gpu_usage[] =
    "Usage: strait bench transfer --device [OPTION]...\n"
    "Measures transfers between pools in GPU memory, from start to DONE at the sink, beside cudaMemcpyPeer. Starts "
    "its\n"
    "own daemons ($STRAITD, or the straitd beside this program) and looks at every page that lands.\n"
    "\n"
    "      --from-gpu=N        GPU of the source's pool; 0\n"
    "      --to-gpu=N          GPU of the sink's pool; 1, or 0 where it is the only one\n"
    "      --wires=LIST        of peer (from GPU to GPU), pinned (by way of the host), nccl, ucx: two "
    "daemons\n"
    "                          each; peer,pinned\n"
    "      --coding=LIST       of raw, top16, tiered, auto; all\n"
    "      --page=SIZE         bytes of a page, a multiple of 16; 32K\n"
    "      --size=LIST         bytes of a request; 8M,64M,256M,1G\n"
    "      --input=FILE        safetensors file, once or more; a KV cache that comes with the program\n"
    "      --calib=FILE        make the codebook of these tensors, once or more; of the input\n"
    "      --codebook=SET      codebook set, as strait calibrate makes it\n"
    "      --daemon=TEXT       one more option for every straitd, as \"name=value\", once or more\n"
    "      --repeats=N         run everything N times in turn; 20\n"
    "      --warmups=N         transfers of each row before; 3\n"
    "      --fault=flip        turn over one bit of a page that has landed: the bench has to notice\n"
    "      --json              the figures for machines\n"
    "      --save=FILE         the same to a file, besides\n"
    "  -h, --help\n"
    "\n"
    "Exit status: 0 done, 1 a transfer failed, a page is wrong or there is no GPU, 2 bad usage.\n";

/* ---- Single options -------------------------------------------------------------------------------------------- */

static bool add_wire(void *arg, const char *name)
{
    struct gpu_options *options = arg;
    unsigned index;

    if (!option_name("--wires", name, gpu_wire_names, GPU_WIRES, &index))
        return false;
    return options->wires[index] = true;
}

static bool add_coding(void *arg, const char *name)
{
    struct gpu_options *options = arg;

    return value_coding(name, options->codings, &options->coding_count);
}

static bool add_size(void *arg, const char *text)
{
    struct gpu_options *options = arg;

    if (options->size_count == GPU_SIZES_MAX)
        return value_too_many("--size", GPU_SIZES_MAX);
    return option_size("--size", text, 16, GPU_SIZE_MAX, &options->sizes[options->size_count++]);
}

static bool set_gpu(const char *option, const char *text, int *gpu)
{
    uint32_t number;

    if (!value_number(option, text, 0, 63, &number))
        return false;
    *gpu = (int)number;
    return true;
}

static bool set_fault(struct gpu_options *options, const char *text)
{
    static const char *const names[] = {"flip"};
    unsigned index;

    return options->fault = option_name("--fault", text, names, 1, &index);
}

/* ---- All of them ----------------------------------------------------------------------------------------------- */

enum {
    OPT_DEVICE = 256,
    OPT_FROM,
    OPT_TO,
    OPT_WIRES,
    OPT_CODING,
    OPT_PAGE,
    OPT_SIZE,
    OPT_DAEMON,
    OPT_REPEATS,
    OPT_WARMUPS,
    OPT_FAULT,
    OPT_JSON,
    OPT_SAVE,
};

static const struct option long_options[] = {
    {"device", no_argument, NULL, OPT_DEVICE},
    {"from-gpu", required_argument, NULL, OPT_FROM},
    {"to-gpu", required_argument, NULL, OPT_TO},
    {"wires", required_argument, NULL, OPT_WIRES},
    {"coding", required_argument, NULL, OPT_CODING},
    {"page", required_argument, NULL, OPT_PAGE},
    {"size", required_argument, NULL, OPT_SIZE},
    SOURCE_OPTIONS,
    {"daemon", required_argument, NULL, OPT_DAEMON},
    {"repeats", required_argument, NULL, OPT_REPEATS},
    {"warmups", required_argument, NULL, OPT_WARMUPS},
    {"fault", required_argument, NULL, OPT_FAULT},
    {"json", no_argument, NULL, OPT_JSON},
    {"save", required_argument, NULL, OPT_SAVE},
    {"help", no_argument, NULL, 'h'},
    {0},
};

bool gpu_options_asked(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--device") == 0)
            return true;
    return false;
}

/* Options for the data and the report. */
static bool set_data_option(struct gpu_options *options, int option, const char *text)
{
    switch (option) {
    case OPT_PAGE:
        return value_page(text, &options->page_bytes);
    case OPT_SIZE:
        return value_each(text, add_size, options);
    case OPT_FAULT:
        return set_fault(options, text);
    case OPT_JSON:
        return options->json = true;
    case OPT_SAVE:
        options->save = text;
        return true;
    default:
        return option == OPT_DEVICE || sources_set(&options->sources, option, text); /* getopt_long told of others */
    }
}

/* Sets one option; false when it is wrong, with the error on stderr. */
static bool set_option(void *arg, int option, const char *text)
{
    struct gpu_options *options = arg;

    switch (option) {
    case OPT_FROM:
        return set_gpu("--from-gpu", text, &options->from);
    case OPT_TO:
        return set_gpu("--to-gpu", text, &options->to);
    case OPT_WIRES:
        return value_each(text, add_wire, options);
    case OPT_CODING:
        return value_each(text, add_coding, options);
    case OPT_DAEMON:
        return value_daemon(text, options->daemon, &options->daemon_count);
    case OPT_REPEATS:
        return value_number("--repeats", text, 1, REPEATS_MAX, &options->repeats);
    case OPT_WARMUPS:
        return value_number("--warmups", text, 0, REPEATS_MAX, &options->warmups);
    default:
        return set_data_option(options, option, text);
    }
}

static bool set_defaults(struct gpu_options *options)
{
    static const enum strait_coding codings[] = {STRAIT_CODING_RAW, STRAIT_CODING_TOP16, STRAIT_CODING_TIERED,
                                                 STRAIT_CODING_AUTO};
    static const uint64_t sizes[] = {8ull << 20, 64ull << 20, 256ull << 20, 1ull << 30};

    if (!options->wires[GPU_WIRE_PEER] && !options->wires[GPU_WIRE_PINNED] && !options->wires[GPU_WIRE_NCCL] &&
        !options->wires[GPU_WIRE_UCX])
        options->wires[GPU_WIRE_PEER] = options->wires[GPU_WIRE_PINNED] = true;
    if (options->coding_count == 0) {
        memcpy(options->codings, codings, sizeof(codings));
        options->coding_count = sizeof(codings) / sizeof(codings[0]);
    }
    if (options->size_count == 0) {
        memcpy(options->sizes, sizes, sizeof(sizes));
        options->size_count = sizeof(sizes) / sizeof(sizes[0]);
    }
    return sources_complete(&options->sources);
}

bool gpu_options_init(struct gpu_options *options, int argc, char **argv)
{
    *options = (struct gpu_options){
        .from = -1,
        .to = -1,
        .page_bytes = 32 * 1024,
        .repeats = 20,
        .warmups = 3,
    };
    return sources_init(&options->sources, argc) &&
           options_read(argc, argv, "h", long_options, set_option, options, &options->help) &&
           (options->help || set_defaults(options));
}

void gpu_options_fini(struct gpu_options *options)
{
    sources_fini(&options->sources);
}
