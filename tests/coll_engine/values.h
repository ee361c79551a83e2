/* Values for tests, which follow from a seed. */
#ifndef STRAIT_TESTS_COLL_ENGINE_VALUES_H
#define STRAIT_TESTS_COLL_ENGINE_VALUES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum values {
    VALUES_NORMAL,  /* as of weights and gradients: they fit; of FP32 with all bits of their mantissas */
    VALUES_WIDENED, /* BF16 in FP32 */
    VALUES_NOISE,   /* of any bits: never fit */
};

size_t element_bytes(int type);
const char *type_name(int type); /* in reports */
void values_fill(void *values, int type, size_t count, enum values kind, uint64_t seed);

/* Whether they are those; says where they are not. */
bool values_are(const void *values, int type, size_t count, enum values kind, uint64_t seed);

#endif
