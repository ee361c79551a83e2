/* A codebook set as the CUDA kernels read it: a header, then for each table what encoders and decoders look up. */
#ifndef STRAIT_KERNELS_TABLE_IMAGE_H
#define STRAIT_KERNELS_TABLE_IMAGE_H

#include <stdint.h>

#define IMAGE_HEADER_BYTES 64u

/* Its parts (sizes below) are multiples of 16 bytes, so that each travels to shared memory as one bulk copy. */
struct table_image {
    /* By exponent: the code in tier 1 in the low 16 bits, that in tier 2 in the high ones. 3 and 0..2: the code is in
     * tier 2; 3 and 3: it is in a later tier. */
    uint32_t tiers[256];
    uint8_t tier3[512];  /* by sign and exponent: the code in tier 3; 15: the exponent goes on to tier 4 */
    uint32_t top16[256]; /* by exponent: the rank, or IMAGE_ESCAPE */
    /* Exponents by rank, for decoders. */
    uint8_t first[8];  /* ranks 0..5 */
    uint8_t second[8]; /* zeroes */
    uint8_t third[16]; /* ranks 6..20 */
    uint8_t codes[16]; /* ranks 0..15 */
    uint8_t padding[16];
    uint8_t rank[256]; /* by exponent */
};

#define IMAGE_ESCAPE       0x80000000u
#define IMAGE_TIERS_BYTES  1536u /* tiers and tier3 */
#define IMAGE_TOP16_BYTES  1024u
#define IMAGE_DECODE_BYTES 64u

#endif
