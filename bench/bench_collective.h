/* strait bench collective: collectives between the GPUs of this machine, by NCCL and by way of libstrait-coll. */
#ifndef STRAIT_BENCH_BENCH_COLLECTIVE_H
#define STRAIT_BENCH_BENCH_COLLECTIVE_H

/* argv[0] is "collective". Returns an exit code. */
int bench_collective(int argc, char **argv);

/* The same where CUDA, or what stands in for it (gpu_memory.h), is linked. */
int bench_collective_device(int argc, char **argv);

#endif
