/* The benches of GPUs without a GPU: fakes/gpu_memory.c, and fakes/nccl_processes.c in place of NCCL. */
#include <string.h>

#include "bench/bench.h"

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "transfer") == 0)
        return bench_transfer_device(argc - 1, argv + 1);
    return argc > 1 && strcmp(argv[1], "collective") == 0 ? bench_collective(argc - 1, argv + 1) : EXIT_CODE_USAGE;
}
