/* What a tensor is of, told from its name: what is of different kinds never shares a message in training, nor a block
 * of the codec, which counts from one range of exponents. */
#ifndef STRAIT_BENCH_COLLECTIVE_KINDS_H
#define STRAIT_BENCH_COLLECTIVE_KINDS_H

#include "bench/collective_options.h"

/* One of the kinds before COLLECTIVE_TENSORS. */
enum collective_data collective_kind_of(const char *name);

#endif
