/* Device variants of the codec: the interface to their plugins. A plugin is a shared object that knows this header and
 * nothing else of the library, and needs no symbol from it. Public arguments have been checked before these functions
 * run. */
#ifndef STRAIT_KERNELS_DEVICE_H
#define STRAIT_KERNELS_DEVICE_H

#include <stdint.h>

#include <strait/codec.h>

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
};

/* Incremented with every change of the structs above, or of the table image. */
#define DEVICE_OPS_VERSION 2u

/* The function that a plugin exports under the name DEVICE_OPS_SYMBOL; it returns NULL when the current device is
 * unsupported. */
typedef const struct device_ops *device_ops_get(void);
#define DEVICE_OPS_SYMBOL "strait_device_ops"

/* The variant "cuda", NULL when it is unavailable. The plugin is looked for once, the device at every call. */
const struct strait_codec *codec_cuda(void);

#ifdef __cplusplus
}
#endif
#endif
