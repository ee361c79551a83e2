/* Device variants of the codec: the interface to their plugins. A plugin is a shared object that knows this header and
 * nothing else of the library, and needs no symbol from it. Public arguments have been checked before these functions
 * run. */
#ifndef STRAIT_KERNELS_DEVICE_H
#define STRAIT_KERNELS_DEVICE_H

#include <stdint.h>

#include <strait/codec.h>

#include "kernels/device_modes.h"

#ifdef __cplusplus
extern "C" {
#endif

struct device_encode {
    const struct strait_encode_item *items;
    uint32_t count;
    enum strait_element element;
    enum strait_mode mode;
    const uint8_t *codebook_id; /* NULL: none */
    const struct strait_run *run;
    const void *absent; /* of strait_encode_params */
};

struct device_decode {
    const struct strait_decode_item *items;
    uint32_t count;
    const uint8_t *codebook_id; /* NULL: none */
    uint32_t table_count;
    const struct strait_run *run;
};

struct device_ops {
    uint32_t version; /* DEVICE_OPS_VERSION */
    uint64_t (*encode_scratch_size)(const struct strait_encode_item *items, uint32_t count);
    uint64_t (*decode_scratch_size)(const struct strait_decode_item *items, uint32_t count);
    /* Enqueue only. ERR_INVALID (no tables), ERR_ALIGNMENT, ERR_NO_SPACE (scratch), ERR_DEVICE. */
    enum strait_status (*encode)(const struct device_encode *call);
    enum strait_status (*decode)(const struct device_decode *call);
    enum strait_status (*prepare)(void); /* strait_codec_prepare */
    /* strait_codec_describe: the length of the text, 0 when the current device has no kernels. */
    uint32_t (*describe)(char *text, uint32_t size);
};

/* Incremented with every change of the structs above, or of the table image. */
#define DEVICE_OPS_VERSION 4u

/* The function that a plugin exports under the name DEVICE_OPS_SYMBOL; it returns NULL when the current device is
 * unsupported. */
typedef const struct device_ops *device_ops_get(void);
#define DEVICE_OPS_SYMBOL "strait_device_ops"

/* Codebook set as plugins read it: a header, then for each table what encoders and decoders look up. */
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

#ifdef __cplusplus
}
#endif
#endif
