#include "kernels/value_loops.h"

const struct value_ops values_avx512 = VALUE_OPS;
