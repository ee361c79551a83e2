/* strait bench transfer --device: transfers between pools in GPU memory. */
#ifndef STRAIT_BENCH_GPU_TRANSFER_H
#define STRAIT_BENCH_GPU_TRANSFER_H

/* Returns the exit status. */
int bench_transfer_device(int argc, char **argv);

#endif
