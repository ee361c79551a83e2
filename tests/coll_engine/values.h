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

/* The same for parts that follow each other, whose seeds do so by `step`. */
void parts_fill(void *values, int type, size_t count, int parts, enum values kind, uint64_t seed, uint64_t step);
bool parts_are(const void *values, int type, size_t count, int parts, enum values kind, uint64_t seed, uint64_t step);

/* FP32 of whole numbers, whose sums are exact in whatever order; `fits` false: with all bits of their mantissas, added
 * up from rank 0 on. Seeds of ranks follow each other. */
void values_fill_whole(float *values, size_t count, bool fits, uint64_t seed);

/* Whether they are the sums of what all ranks have; `fits` false: that rank 0's do not. */
bool values_are_sums(const float *sums, size_t count, int ranks, bool fits, uint64_t seed);

#endif
