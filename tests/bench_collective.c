/* `strait bench collective` without a GPU: fake_gpu_memory.c, and moving_nccl.c in place of NCCL. */
#include "bench/bench_collective.h"

int main(int argc, char **argv)
{
    return bench_collective_device(argc, argv);
}
