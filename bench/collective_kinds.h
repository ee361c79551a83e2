/* The kind of a tensor, derived from its name. In training, tensors of different kinds never share a message, nor a
 * block of the codec, whose codes count from one range of exponents. */
#ifndef STRAIT_BENCH_COLLECTIVE_KINDS_H
#define STRAIT_BENCH_COLLECTIVE_KINDS_H

#include "bench/collective_options.h"

/* One of the kinds before COLLECTIVE_TENSORS. */
enum collective_data collective_kind_of(const char *name);

#endif
