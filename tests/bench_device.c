/* `strait bench transfer --device` without a GPU: fake_gpu_memory.c. */
#include "bench/gpu_transfer.h"

int main(int argc, char **argv)
{
    return bench_transfer_device(argc, argv);
}
