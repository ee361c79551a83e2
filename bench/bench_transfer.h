/* strait bench transfer */
#ifndef STRAIT_BENCH_BENCH_TRANSFER_H
#define STRAIT_BENCH_BENCH_TRANSFER_H

/* Gets the arguments from its own name onward; returns an enum exit_code. */
int bench_transfer(int argc, char **argv);

#endif
