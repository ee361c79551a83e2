/* The kernels of collective/engine/gpu.h, as work on streams. */
#ifndef STRAIT_TESTS_FAKES_COLL_KERNELS_H
#define STRAIT_TESTS_FAKES_COLL_KERNELS_H

#include "collective/engine/gpu.h"

/* All arguments are copied. */
void kernel_write_headers(const struct gpu_write_headers *seal, coll_stream stream);
void kernel_check(const struct gpu_check *check, coll_stream stream);
void kernel_exchange(const struct gpu_exchange *exchange, coll_stream stream);
void kernel_verify(const struct gpu_verify *verify, coll_stream stream);
void kernel_reduce(const struct coll_reduce *reduce, coll_stream stream);

#endif
