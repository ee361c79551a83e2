/* strait bench: runs the bench that is named. */
#include "tools/commands.h"

#include <stdio.h>
#include <string.h>

#include "bench/bench_codec.h"
#include "bench/bench_collective.h"
#include "bench/bench_transfer.h"
#include "tools/util.h"

static const char usage[] =
    "Usage: strait bench BENCH [OPTION]...\n"
    "\n"
    "  codec      speed and ratio of the codec in memory, beside memcpy and general compressors\n"
    "  transfer   transfers from pool to pool, beside memcpy, ucx_perftest and iperf3\n"
    "  collective collectives between GPUs, by NCCL and by way of libstrait-coll\n"
    "\n"
    "strait bench BENCH --help tells more.\n";

int cmd_bench(int argc, char **argv)
{
    static char name[] = "strait bench";

    if (argc >= 2 && strcmp(argv[1], "codec") == 0)
        return bench_codec(argc - 1, argv + 1);
    if (argc >= 2 && strcmp(argv[1], "transfer") == 0)
        return bench_transfer(argc - 1, argv + 1);
    if (argc >= 2 && strcmp(argv[1], "collective") == 0)
        return bench_collective(argc - 1, argv + 1);
    if (argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        fputs(usage, stdout);
        return EXIT_CODE_OK;
    }
    command_begin(argv, name);
    if (argc >= 2)
        print_error(NULL, "no bench '%s'", argv[1]);
    fputs(usage, stderr);
    return EXIT_CODE_USAGE;
}
