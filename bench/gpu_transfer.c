#include "bench/gpu_transfer.h"

#include <stdio.h>
#include <stdlib.h>

#include "bench/gpu_report.h"
#include "bench/gpu_rows.h"
#include "bench/transfer_process.h"
#include "tools/util.h"

/* ---- The run ----------------------------------------------------------------------------------------------------- */

static bool choose_gpus(struct gpu_bench *bench)
{
    const struct gpu_options *options = bench->options;
    char why[256];
    int count = (int)gpu_count(why, sizeof(why));

    if (count == 0) {
        print_error(NULL, "--device: no GPU: %s", why);
        return false;
    }
    bench->from = options->from < 0 ? 0 : options->from;
    bench->to = options->to < 0 ? (count > 1 ? 1 : 0) : options->to;
    if (bench->from < count && bench->to < count)
        return true;
    print_error(NULL, "--from-gpu and --to-gpu: there are GPUs 0 to %d", count - 1);
    return false;
}

static bool open_pairs(struct gpu_bench *bench)
{
    const struct gpu_options *options = bench->options;

    bench->can_choose = gpu_pairs_can_choose(&bench->site);
    for (enum gpu_wire wire = 0; wire < GPU_WIRES; wire++)
        if (options->wires[wire] &&
            !gpu_pair_open(&bench->pairs[wire], wire, bench->can_choose, &bench->data, &bench->site))
            return false;
    return true;
}

static bool print_json(const void *arg, FILE *stream)
{
    return gpu_report_json(arg, stream);
}

static bool report(const struct gpu_bench *bench, const struct command_line *line)
{
    struct gpu_report all = {bench, line};
    bool printed = bench->options->json ? gpu_report_json(&all, stdout) : gpu_report_print(&all, stdout);

    return value_save(bench->options->save, print_json, &all) && printed;
}

static bool run(struct gpu_bench *bench, const struct command_line *line)
{
    const struct gpu_options *options = bench->options;

    machine_describe(&bench->machine);
    if (!choose_gpus(bench) || !gpu_open(bench->from, bench->to, &bench->about) ||
        !gpu_data_init(&bench->data, options, bench->from, bench->to) ||
        !bench_site_init(&bench->site, options->daemon, options->daemon_count, bench->data.codebook) ||
        !open_pairs(bench) || !gpu_rows_plan(bench) || !gpu_rows_run(bench) || !report(bench, line))
        return false;
    if (!gpu_rows_right(bench))
        print_error(NULL, "a page is not what was sent");
    return gpu_rows_right(bench);
}

static void bench_fini(struct gpu_bench *bench)
{
    for (enum gpu_wire wire = 0; wire < GPU_WIRES; wire++)
        gpu_pair_close(&bench->pairs[wire]);
    bench_site_fini(&bench->site);
    gpu_rows_fini(bench);
    gpu_data_fini(&bench->data);
}

static enum exit_code run_options(const struct gpu_options *options, const struct command_line *line)
{
    struct gpu_bench *bench;
    bool ok;

    if (options->help) {
        fputs(gpu_usage, stdout);
        return EXIT_CODE_OK;
    }
    if (!value_save_check(options->save))
        return EXIT_CODE_DATA;
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

int bench_transfer_device(int argc, char **argv)
{
    static char name[] = "strait bench transfer";
    struct gpu_options options;
    struct command_line line;
    enum exit_code code = EXIT_CODE_USAGE;

    command_begin(argv, name);
    if (!command_line_init(&line, argc, argv))
        return EXIT_CODE_DATA;
    if (gpu_options_init(&options, argc, argv))
        code = run_options(&options, &line);
    gpu_options_fini(&options);
    command_line_fini(&line);
    return code;
}
