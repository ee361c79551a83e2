/* strait bench collective: collectives between the GPUs of this machine, by NCCL alone and through libstrait-coll. */
#ifndef STRAIT_BENCH_BENCH_COLLECTIVE_H
#define STRAIT_BENCH_BENCH_COLLECTIVE_H

/* argv[0] is "collective". Returns an exit code. */
int bench_collective(int argc, char **argv);

/* The same, in builds that link CUDA or its substitute (gpu_memory.h). */
int bench_collective_device(int argc, char **argv);

#endif
