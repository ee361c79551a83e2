#include "bench/bench_transfer.h"

#include <stdio.h>
#include <stdlib.h>

#include "bench/gpu_options.h"
#include "bench/gpu_transfer.h"
#include "bench/machine.h"
#include "bench/transfer_change.h"
#include "bench/transfer_options.h"
#include "bench/transfer_process.h"
#include "bench/transfer_report.h"
#include "bench/transfer_rows.h"
#include "tools/util.h"

static bool make_aux(struct transfer_bench *bench)
{
    uint64_t size = bench->options->aux_bytes;

    if (size == 0)
        return true;
    bench->aux = malloc(size);
    for (uint64_t i = 0; bench->aux != NULL && i < size; i++)
        bench->aux[i] = (uint8_t)(i * 31 + (i >> 8));
    if (bench->aux == NULL)
        print_error(NULL, "out of memory");
    return bench->aux != NULL;
}

static bool report(const struct transfer_bench *bench, const struct machine *machine, const struct change *change,
                   const struct command_line *line)
{
    struct transfer_report all = {bench, machine, change, line};

    return bench->options->json ? transfer_report_json(&all, stdout) : transfer_report_print(&all, stdout);
}

static bool told_right(bool right)
{
    if (!right)
        print_error(NULL, "a page is not what was sent, or something is missing");
    return right;
}

static bool run_rows(struct transfer_bench *bench, const struct machine *machine, const struct command_line *line)
{
    return rows_run(bench) && report(bench, machine, NULL, line) && told_right(rows_right(&bench->rows));
}

static bool run_change(struct transfer_bench *bench, const struct machine *machine, const struct command_line *line)
{
    struct change change;
    bool good = change_run(bench, &change) && report(bench, machine, &change, line) && told_right(change.wrong == 0);

    change_fini(&change);
    return good;
}

static bool run(struct transfer_bench *bench, const struct command_line *line)
{
    struct machine machine;

    machine_describe(&machine);
    if (!transfer_data_init(&bench->data, bench->options) ||
        !bench_site_init(&bench->site, bench->options->daemon, bench->options->daemon_count, bench->data.codebook) ||
        !make_aux(bench) || !rows_plan(bench))
        return false;
    return bench->options->change[1] > 0 ? run_change(bench, &machine, line) : run_rows(bench, &machine, line);
}

static void bench_fini(struct transfer_bench *bench)
{
    for (int kind = 0; kind < PATH_KINDS; kind++)
        bench_path_close(&bench->paths[kind]);
    bench_site_fini(&bench->site);
    rows_fini(&bench->rows);
    for (unsigned i = 0; i < bench->shape_count; i++)
        shape_fini(&bench->shapes[i]);
    transfer_data_fini(&bench->data);
    free(bench->aux);
}

static enum exit_code run_options(const struct transfer_options *options, const struct command_line *line)
{
    struct transfer_bench *bench;
    bool ok;

    if (options->help) {
        fputs(transfer_usage, stdout);
        return EXIT_CODE_OK;
    }
    bench = calloc(1, sizeof(*bench));
    if (bench == NULL) {
        print_error(NULL, "out of memory");
        return EXIT_CODE_DATA;
    }
    bench->options = options;
    interrupts_catch();
    ok = run(bench, line);
    bench_fini(bench);
    free(bench);
    if (interrupted())
        print_error(NULL, "interrupted");
    return ok ? EXIT_CODE_OK : EXIT_CODE_DATA;
}

static int bench_device(int argc, char **argv)
{
#ifdef STRAIT_BENCH_CUDA
    return bench_transfer_device(argc, argv);
#else
    static char name[] = "strait bench transfer";

    (void)argc;
    command_begin(argv, name);
    print_error(NULL, "--device: strait was built without CUDA");
    return EXIT_CODE_DATA;
#endif
}

int bench_transfer(int argc, char **argv)
{
    static char name[] = "strait bench transfer";
    struct transfer_options options;
    struct command_line line;
    enum exit_code code = EXIT_CODE_USAGE;

    if (gpu_options_asked(argc, argv))
        return bench_device(argc, argv);
    command_begin(argv, name);
    if (!command_line_init(&line, argc, argv))
        return EXIT_CODE_DATA;
    if (transfer_options_init(&options, argc, argv))
        code = run_options(&options, &line);
    transfer_options_fini(&options);
    command_line_fini(&line);
    return code;
}
