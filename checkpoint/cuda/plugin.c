/* The plugin: what libstrait-checkpoint opens for memory of GPUs. */
#include "checkpoint/cuda/cuda.h"

__attribute__((visibility("default"))) checkpoint_plugin_get strait_checkpoint_plugin;

const struct checkpoint_plugin *strait_checkpoint_plugin(void)
{
    static const struct checkpoint_plugin plugin = {CHECKPOINT_PLUGIN_VERSION, &encoder_cuda, &target_cuda};
    int devices = 0;
    return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0 ? &plugin : NULL;
}
