#include "bench/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/cases.h"
#include "bench/rivals.h"
#include "bench/values.h"
#include "tools/util.h"
#include "tools/pipeline.h"

#define CHUNK_MAX      (1024u * 1024 * 1024)
#define SIZE_MAX_BYTES (1024ull * 1024 * 1024 * 1024)

const char codec_usage[] =
    "Usage: strait bench codec [OPTION]...\n"
    "Measures the codec on real BF16 tensors in memory, beside memcpy and general compressors.\n"
    "\n"
    "      --input=FILE        safetensors file to measure on, once or more; a KV cache that comes with the program\n"
    "      --calib=FILE        make the codebook of these tensors, once or more; of the input\n"
    "      --codebook=SET      codebook set, as strait calibrate makes it\n"
    "      --page=SIZE         bytes of a page, a multiple of 16, once or more; 32K\n"
    "      --chunk=SIZE        bytes of a chunk before compression; 4M\n"
    "      --size=SIZE         repeat the tensors until they are this large: past the caches; 512M\n"
    "      --repeats=N         run everything N times in turn; 5\n"
    "  -T, --threads=N         also with N threads, 0: one per processor; 1\n"
    "      --variant=NAME      scalar, avx2 or avx512, once or more; all that run here\n"
    "      --mode=NAME         raw, top16, tiered, base or split, once or more; the first three\n"
    "      --escapes=PERCENT   overwrite so many values with exponents that are rare in every table; 0\n"
    "      --rivals=LIST       of zstd, zstd-1, zstd-3, zstd-19, lz4, or none; all that were built in\n"
    "      --device            measure the CUDA variant on pools in GPU memory: of --size bytes (1G) and a quarter of\n"
    "                          it, of the first --page, in chunks of --chunk (16M); copies and small batches besides\n"
    "      --cases=LIST        of these, with --device: codec, limited (few multiprocessors), small (4K pages), "
    "graphs,\n"
    "                          beside (matrix products of cuBLAS); all\n"
    "      --cublas=FILE       library to take for that; libcublas.so.13 or .12\n"
    "      --json              the figures for machines\n"
    "      --save=FILE         with --device: the same to a file, besides\n"
    "  -h, --help\n"
    "\n"
    "Exit status: 0 done, 1 a check failed or bad data, 2 bad usage.\n";

/* ---- Single options -------------------------------------------------------------------------------------------- */

static bool too_many(const char *option, unsigned max)
{
    print_error(NULL, "%s may be given at most %u times", option, max);
    return false;
}

static bool add_page(struct codec_options *options, const char *text)
{
    uint64_t bytes;

    if (options->page_count == PAGES_MAX)
        return too_many("--page", PAGES_MAX);
    if (!option_size("--page", text, PLAN_PAGE_MULTIPLE, STRAIT_PAGE_BYTES_MAX, &bytes))
        return false;
    if (bytes % PLAN_PAGE_MULTIPLE != 0) {
        print_error(NULL, "--page takes a multiple of %u", PLAN_PAGE_MULTIPLE);
        return false;
    }
    options->pages[options->page_count++] = bytes;
    return true;
}

static bool add_variant(struct codec_options *options, const char *text)
{
    if (options->variant_count == VARIANTS_MAX)
        return too_many("--variant", VARIANTS_MAX);
    options->variants[options->variant_count] = strcmp(text, "cuda") == 0 ? NULL : strait_codec_get(text);
    if (options->variants[options->variant_count++] == NULL) {
        print_error(NULL, "--variant: this build or processor has no '%s'", text);
        return false;
    }
    return true;
}

static bool add_mode(struct codec_options *options, const char *text)
{
    unsigned index;

    if (options->mode_count == MODES_MAX)
        return too_many("--mode", MODES_MAX);
    if (!option_name("--mode", text, &mode_names[STRAIT_MODE_RAW], 5, &index))
        return false;
    options->modes[options->mode_count++] = (enum strait_mode)(STRAIT_MODE_RAW + index);
    return true;
}

static bool add_case(void *arg, const char *name)
{
    static const char *const names[DEVICE_CASES] = {"codec", "limited", "small", "graphs", "beside"};
    struct codec_options *options = arg;
    unsigned index;

    if (!option_name("--cases", name, names, DEVICE_CASES, &index))
        return false;
    return options->cases[index] = true;
}

static bool set_escapes(struct codec_options *options, const char *text)
{
    char *end;
    double percent = strtod(text, &end);

    if (end == text || *end != '\0' || !(percent >= 0 && percent <= 100)) {
        print_error(NULL, "--escapes takes a percentage, not '%s'", text);
        return false;
    }
    options->escapes = percent / 100;
    return true;
}

static bool set_repeats(struct codec_options *options, const char *text)
{
    uint64_t number;

    if (!parse_number(text, REPEATS_MAX, &number) || number == 0) {
        print_error(NULL, "--repeats takes a number from 1 to %u, not '%s'", REPEATS_MAX, text);
        return false;
    }
    options->repeats = (unsigned)number;
    return true;
}

static bool set_rivals(struct codec_options *options, const char *text)
{
    options->rivals = text;
    return rival_list_check(text);
}

/* ---- All of them ----------------------------------------------------------------------------------------------- */

enum {
    OPT_PAGE = 256,
    OPT_CHUNK,
    OPT_SIZE,
    OPT_REPEATS,
    OPT_VARIANT,
    OPT_MODE,
    OPT_ESCAPES,
    OPT_RIVALS,
    OPT_DEVICE,
    OPT_CASES,
    OPT_CUBLAS,
    OPT_SAVE,
    OPT_JSON,
};

static const struct option long_options[] = {
    SOURCE_OPTIONS,
    {"page", required_argument, NULL, OPT_PAGE},
    {"chunk", required_argument, NULL, OPT_CHUNK},
    {"size", required_argument, NULL, OPT_SIZE},
    {"repeats", required_argument, NULL, OPT_REPEATS},
    {"threads", required_argument, NULL, 'T'},
    {"variant", required_argument, NULL, OPT_VARIANT},
    {"mode", required_argument, NULL, OPT_MODE},
    {"escapes", required_argument, NULL, OPT_ESCAPES},
    {"rivals", required_argument, NULL, OPT_RIVALS},
    {"device", no_argument, NULL, OPT_DEVICE},
    {"cases", required_argument, NULL, OPT_CASES},
    {"cublas", required_argument, NULL, OPT_CUBLAS},
    {"save", required_argument, NULL, OPT_SAVE},
    {"json", no_argument, NULL, OPT_JSON},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static bool set_device_option(struct codec_options *options, int option, const char *text)
{
    switch (option) {
    case OPT_DEVICE:
        return options->device = true;
    case OPT_CASES:
        return value_each(text, add_case, options);
    case OPT_CUBLAS:
        options->cublas = text;
        return true;
    case OPT_SAVE:
        options->save = text;
        return true;
    default:
        return sources_set(&options->sources, option, text); /* getopt_long has reported unknown options */
    }
}

/* Sets one option; false when it is wrong, with the error on stderr. */
static bool set_option(void *arg, int option, const char *text)
{
    struct codec_options *options = arg;

    switch (option) {
    case OPT_PAGE:
        return add_page(options, text);
    case OPT_CHUNK:
        return option_size("--chunk", text, PLAN_PAGE_MULTIPLE, CHUNK_MAX, &options->chunk_bytes);
    case OPT_SIZE:
        return option_size("--size", text, PLAN_PAGE_MULTIPLE, SIZE_MAX_BYTES, &options->size);
    case OPT_REPEATS:
        return set_repeats(options, text);
    case OPT_VARIANT:
        return add_variant(options, text);
    case OPT_MODE:
        return add_mode(options, text);
    case OPT_ESCAPES:
        return set_escapes(options, text);
    case OPT_RIVALS:
        return set_rivals(options, text);
    case OPT_JSON:
        return options->json = true;
    case 'T':
        return option_threads(text, &options->threads);
    default:
        return set_device_option(options, option, text);
    }
}

static void set_default_variants(struct codec_options *options)
{
    static const char *const names[] = {"scalar", "avx2", "avx512"};

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const struct strait_codec *codec = strait_codec_get(names[i]);
        if (codec != NULL)
            options->variants[options->variant_count++] = codec;
    }
}

static void set_default_modes(struct codec_options *options)
{
    for (unsigned mode = STRAIT_MODE_RAW; mode <= STRAIT_MODE_TIERED; mode++)
        options->modes[options->mode_count++] = (enum strait_mode)mode;
}

static bool has_cases(const struct codec_options *options)
{
    bool any = false;

    for (unsigned i = 0; i < DEVICE_CASES; i++)
        any |= options->cases[i];
    return any;
}

static void set_default_cases(struct codec_options *options)
{
    if (has_cases(options))
        return;
    for (unsigned i = 0; i < DEVICE_CASES; i++)
        options->cases[i] = true;
}

static bool set_defaults(struct codec_options *options)
{
    set_default_cases(options);
    if (options->size == 0)
        options->size = options->device ? 1024 * 1024 * 1024 : 512 * 1024 * 1024;
    if (options->chunk_bytes == 0)
        options->chunk_bytes = options->device ? 16 * 1024 * 1024 : 4 * 1024 * 1024;
    if (options->page_count == 0)
        options->pages[options->page_count++] = 32 * 1024;
    if (options->variant_count == 0)
        set_default_variants(options);
    if (options->mode_count == 0)
        set_default_modes(options);
    return sources_complete(&options->sources);
}

/* An option that would be ignored, or NULL. */
static const char *misplaced(const struct codec_options *options)
{
    if (!options->device && (has_cases(options) || options->cublas != NULL || options->save != NULL))
        return "--cases, --cublas and --save are for --device";
    if (options->device && (options->variant_count > 0 || options->mode_count > 0 || options->rivals != NULL ||
                            options->threads != 1 || options->escapes > 0))
        return "--variant, --mode, --rivals, --threads and --escapes are not for --device";
    return NULL;
}

static bool check_options(const struct codec_options *options)
{
    const char *why = misplaced(options);

    for (unsigned i = 0; i < options->page_count; i++)
        if (options->chunk_bytes > 0 && options->pages[i] > options->chunk_bytes)
            why = "--page is larger than --chunk";
    if (why != NULL)
        print_error(NULL, "%s", why);
    return why == NULL;
}

bool codec_options_init(struct codec_options *options, int argc, char **argv)
{
    *options = (struct codec_options){
        .repeats = 5,
        .threads = 1,
    };
    return sources_init(&options->sources, argc) &&
           options_read(argc, argv, "T:h", long_options, set_option, options, &options->help) &&
           (options->help || (check_options(options) && set_defaults(options)));
}

void codec_options_fini(struct codec_options *options)
{
    sources_fini(&options->sources);
}
