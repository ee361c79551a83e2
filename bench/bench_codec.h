/* strait bench codec */
#ifndef STRAIT_BENCH_BENCH_CODEC_H
#define STRAIT_BENCH_BENCH_CODEC_H

/* Gets the arguments from its own name onward; returns an enum exit_code. */
int bench_codec(int argc, char **argv);

#endif
