#include "kernels/value_loops.h"

const struct value_ops values_scalar = VALUE_OPS;
