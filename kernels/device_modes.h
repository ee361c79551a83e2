/* Block modes of the device variants, apart from device.h: the daemon has a device_ops of its own. */
#ifndef STRAIT_KERNELS_DEVICE_MODES_H
#define STRAIT_KERNELS_DEVICE_MODES_H

#include <strait/codec.h>

/* The block modes that plugins of this release code and decode: bit m is mode m. */
#define DEVICE_BLOCK_MODES                                                                                            \
    (0x1fu | 1u << STRAIT_BLOCK_BASE | 1u << STRAIT_BLOCK_SPLIT | 1u << STRAIT_BLOCK_FP32Z | 1u << STRAIT_BLOCK_FP8 | \
     1u << STRAIT_BLOCK_PARTS)

#endif
