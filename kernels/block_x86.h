/* Functions that the variants for AVX2 and AVX-512 share. */
#ifndef STRAIT_KERNELS_BLOCK_X86_H
#define STRAIT_KERNELS_BLOCK_X86_H

#include <immintrin.h>
#include <stdint.h>

/* Of the largest and the second largest bytes of 32 lanes: the second largest of all. Lanes are merged in pairs; after
 * the last step only the lowest counts. */
static inline uint8_t second_of_32(__m256i first, __m256i second)
{
    __m128i a = _mm256_castsi256_si128(first), b = _mm256_extracti128_si256(first, 1);
    __m128i s = _mm_max_epu8(_mm256_castsi256_si128(second), _mm256_extracti128_si256(second, 1));
    s = _mm_max_epu8(s, _mm_min_epu8(a, b));
    a = _mm_max_epu8(a, b);
#define MERGE(BYTES)                               \
    b = _mm_srli_si128(a, BYTES);                  \
    s = _mm_max_epu8(s, _mm_srli_si128(s, BYTES)); \
    s = _mm_max_epu8(s, _mm_min_epu8(a, b));       \
    a = _mm_max_epu8(a, b)
    MERGE(8);
    MERGE(4);
    MERGE(2);
    MERGE(1);
#undef MERGE
    return (uint8_t)_mm_cvtsi128_si32(s);
}

#endif
