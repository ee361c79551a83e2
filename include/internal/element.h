/* Sizes, names and coding of the elements that pages consist of. */
#ifndef STRAIT_INTERNAL_ELEMENT_H
#define STRAIT_INTERNAL_ELEMENT_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/codec.h>

/* Bytes of one element: addresses, strides and rows are multiples of it. 1 for an unknown type. */
static inline uint32_t element_bytes(uint32_t element)
{
    switch (element) {
    case STRAIT_ELEMENT_BF16:
    case STRAIT_ELEMENT_FP16:
        return 2;
    case STRAIT_ELEMENT_FP32:
        return 4;
    default:
        return 1;
    }
}

/* Whether this mode codes values of the type by the tables of a codebook set, and needs one. */
static inline bool element_uses_tables(uint32_t element, enum strait_mode mode)
{
    if (mode == STRAIT_MODE_RAW || mode == STRAIT_MODE_BASE || mode == STRAIT_MODE_PARTS)
        return false;
    return element == STRAIT_ELEMENT_BF16 ||
           (mode == STRAIT_MODE_SPLIT && (element == STRAIT_ELEMENT_FP16 || element == STRAIT_ELEMENT_FP32));
}

static inline const char *element_name(uint32_t element)
{
    switch (element) {
    case STRAIT_ELEMENT_BYTES:
        return "bytes";
    case STRAIT_ELEMENT_BF16:
        return "bf16";
    case STRAIT_ELEMENT_FP16:
        return "fp16";
    case STRAIT_ELEMENT_FP32:
        return "fp32";
    case STRAIT_ELEMENT_FP8_E4M3:
        return "fp8_e4m3";
    case STRAIT_ELEMENT_FP8_E5M2:
        return "fp8_e5m2";
    default:
        return "unknown";
    }
}

#endif
