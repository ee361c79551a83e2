#ifndef STRAIT_CHECKPOINT_CUDA_PLUGIN_H
#define STRAIT_CHECKPOINT_CUDA_PLUGIN_H

#include "checkpoint/plugin.h"

extern const struct encoder encoder_cuda;
extern const struct target target_cuda;

#endif
