/* Variant of the codec: block coders for one instruction set, around which chunk.c loops, or a device plugin. */
#ifndef STRAIT_KERNELS_CODEC_H
#define STRAIT_KERNELS_CODEC_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/block.h"
#include "kernels/device.h"

struct strait_codec {
    const char *name;
    bool (*supported)(void);
    size_t scratch_size;
    const struct block_ops *blocks;  /* CPU variants only */
    const struct device_ops *device; /* device variants only */
};

#endif
