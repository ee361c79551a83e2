#include "kernels/value_loops.h"

const struct value_ops values_avx2 = VALUE_OPS;
