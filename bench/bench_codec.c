#include "bench/bench_codec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/cases.h"
#include "bench/data.h"
#include "bench/device_codec.h"
#include "bench/machine.h"
#include "bench/measure.h"
#include "bench/options.h"
#include "bench/report.h"
#include "bench/rivals.h"
#include "bench/tables.h"
#include "bench/values.h"
#include "tools/calibrate.h"
#include "tools/util.h"

#define ESCAPE_SEED 1u

struct bench {
    const struct codec_options *options;
    struct machine machine;
    struct tensors tensors;
    struct strait_codebook *codebook;
    struct data data;
    struct data_figures data_figures;
    struct buffers buffers;
    struct bench_chunks chunks[PAGES_MAX]; /* one for each page size */
    struct case_list cases;
    uint64_t piece_bytes;
};

/* ---- Data ------------------------------------------------------------------------------------------------------ */

static bool choose_codebook(struct bench *bench)
{
    const struct codec_options *options = bench->options;

    bench->codebook = tables_choose(&bench->tensors, options->sources.codebook, options->sources.calibs,
                                    options->sources.calib_count, options->threads);
    return bench->codebook != NULL;
}

static uint8_t *touched_memory(uint64_t bytes)
{
    uint8_t *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);

    if (memory == NULL)
        print_error(NULL, "out of memory");
    else
        memset(memory, 0xFF, bytes);
    return memory;
}

static bool prepare_data(struct bench *bench)
{
    const struct codec_options *options = bench->options;

    if (!tables_open(&bench->tensors, options->sources.inputs, options->sources.input_count) ||
        !choose_codebook(bench) || !data_init(&bench->data, &bench->tensors, bench->codebook, options->size))
        return false;
    if (options->escapes > 0 && !data_add_escapes(&bench->data, bench->codebook, options->escapes, ESCAPE_SEED))
        return false;
    bench->buffers.raw = bench->data.bytes;
    bench->buffers.raw_bytes = bench->data.size;
    bench->buffers.back = touched_memory(bench->data.size);
    /* A piece that spanned two copies of a tensor would flatter every compressor with a window. */
    bench->piece_bytes = options->chunk_bytes < bench->data.period ? options->chunk_bytes : bench->data.period;
    bench->piece_bytes = bench->piece_bytes / 2 * 2;
    return bench->buffers.back != NULL &&
           data_measure(&bench->data, bench->codebook, options->threads, &bench->data_figures);
}

/* ---- Cases ----------------------------------------------------------------------------------------------------- */

static bool add_copies(struct bench *bench, unsigned threads)
{
    const struct codec_options *options = bench->options;
    bool ok = copy_case_add(&bench->cases, &bench->buffers, 0, options->chunk_bytes, threads);

    for (unsigned p = 0; ok && p < options->page_count; p++)
        ok = copy_case_add(&bench->cases, &bench->buffers, options->pages[p], options->chunk_bytes, threads);
    return ok;
}

/* Every variant in every mode. */
static bool add_strait(struct bench *bench, const struct bench_chunks *chunks, unsigned threads)
{
    const struct codec_options *options = bench->options;

    for (unsigned v = 0; v < options->variant_count; v++) {
        for (unsigned m = 0; m < options->mode_count; m++) {
            struct strait_case_params params = {chunks, options->variants[v], bench->codebook, options->modes[m],
                                                threads};
            if (!strait_case_add(&bench->cases, &bench->buffers, &params))
                return false;
        }
    }
    return true;
}

static bool add_rivals(struct bench *bench, unsigned threads)
{
    for (unsigned i = 0; i < RIVAL_COUNT; i++) {
        const struct rival *rival = &rivals[i];
        if (rival->ops == NULL || !rival_listed(rival, bench->options->rivals))
            continue;
        if (!rival_case_add(&bench->cases, &bench->buffers, rival, false, bench->piece_bytes, threads) ||
            !rival_case_add(&bench->cases, &bench->buffers, rival, true, bench->piece_bytes, threads))
            return false;
    }
    return true;
}

/* The limit of any coder of single exponents. */
static bool add_limit(struct case_list *cases, const char *mode, double exponent_bits)
{
    struct bench_case *added = case_list_add(cases);

    if (added == NULL)
        return false;
    snprintf(added->name, sizeof(added->name), "order-0 limit");
    added->mode = mode;
    added->limit = 16 / (8 + exponent_bits);
    return true;
}

/* memcpy next to our codec, then the slow ones, so that cases that are compared run close in time. */
static bool add_cases(struct bench *bench)
{
    unsigned threads = bench->options->threads;
    unsigned counts[2] = {1, threads};
    bool ok = true;

    for (unsigned c = 0; ok && c < (threads > 1 ? 2 : 1); c++) {
        ok = add_copies(bench, counts[c]);
        for (unsigned p = 0; ok && p < bench->options->page_count; p++)
            ok = add_strait(bench, &bench->chunks[p], counts[c]);
    }
    for (unsigned c = 0; ok && c < (threads > 1 ? 2 : 1); c++)
        ok = add_rivals(bench, counts[c]);
    return ok && add_limit(&bench->cases, "by class", bench->data_figures.class_bits) &&
           add_limit(&bench->cases, "one table", bench->data_figures.global_bits);
}

static bool prepare_cases(struct bench *bench)
{
    const struct codec_options *options = bench->options;
    uint64_t coded = 0;

    for (unsigned p = 0; p < options->page_count; p++)
        if (!bench_chunks_init(&bench->chunks[p], &bench->data, bench->buffers.back, options->pages[p],
                               options->chunk_bytes))
            return false;
    if (!add_cases(bench) || !case_list_set_repeats(&bench->cases, options->repeats))
        return false;
    for (unsigned i = 0; i < bench->cases.count; i++)
        if (bench->cases.list[i].coded_capacity > coded)
            coded = bench->cases.list[i].coded_capacity;
    bench->buffers.coded = touched_memory(coded);
    return bench->buffers.coded != NULL;
}

/* ---- The run --------------------------------------------------------------------------------------------------- */

static bool report(const struct bench *bench)
{
    struct bench_report all = {
        .options = bench->options,
        .machine = &bench->machine,
        .tensors = &bench->tensors,
        .data = &bench->data,
        .data_figures = &bench->data_figures,
        .codebook = bench->codebook,
        .cases = &bench->cases,
        .seed = ESCAPE_SEED,
        .piece_bytes = bench->piece_bytes,
    };

    if (bench->options->json)
        return report_json(&all, stdout);
    report_print(&all, stdout);
    return true;
}

/* Measures on a device: only the tensors and tables are the same. */
static bool run_device(struct bench *bench)
{
#ifdef STRAIT_BENCH_CUDA
    const struct codec_options *options = bench->options;

    return value_save_check(options->save) &&
           tables_open(&bench->tensors, options->sources.inputs, options->sources.input_count) &&
           choose_codebook(bench) && device_codec_run(options, &bench->machine, &bench->tensors, bench->codebook);
#else
    (void)bench;
    print_error(NULL, "--device: strait was built without CUDA");
    return false;
#endif
}

static bool run(struct bench *bench)
{
    machine_describe(&bench->machine);
    if (bench->options->device)
        return run_device(bench);
    if (!prepare_data(bench) || !prepare_cases(bench))
        return false;
    measure_cases(&bench->cases, &bench->buffers);
    if (!report(bench))
        return false;
    if (!measure_passed(&bench->cases))
        print_error(NULL, "a check failed: what was decoded is not what was encoded");
    return measure_passed(&bench->cases);
}

static void bench_fini(struct bench *bench)
{
    case_list_fini(&bench->cases);
    for (unsigned p = 0; p < PAGES_MAX; p++)
        bench_chunks_fini(&bench->chunks[p]);
    free(bench->buffers.coded);
    free(bench->buffers.back);
    data_fini(&bench->data);
    strait_codebook_destroy(bench->codebook);
    tensors_close(&bench->tensors);
}

static enum exit_code run_options(const struct codec_options *options)
{
    struct bench bench = {.options = options};
    bool ok;

    if (options->help) {
        fputs(codec_usage, stdout);
        return EXIT_CODE_OK;
    }
    ok = run(&bench);
    bench_fini(&bench);
    return ok ? EXIT_CODE_OK : EXIT_CODE_DATA;
}

int bench_codec(int argc, char **argv)
{
    static char name[] = "strait bench codec";
    struct codec_options options;
    enum exit_code code = EXIT_CODE_USAGE;

    command_begin(argv, name);
    if (codec_options_init(&options, argc, argv))
        code = run_options(&options);
    codec_options_fini(&options);
    return code;
}
