/* Finds the plugin of the CUDA variant. */
#include "kernels/device.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>

#include "kernels/codec.h"

#define CUDA_PLUGIN "libstrait-cuda.so.0"

static struct strait_codec cuda = {.name = "cuda"};
static device_ops_get *get_ops;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The plugin stays loaded: a driver that has been started cannot be unloaded safely. */
static void load_plugin(void)
{
    void *plugin = dlopen(CUDA_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    if (plugin != NULL)
        *(void **)&get_ops = dlsym(plugin, DEVICE_OPS_SYMBOL);
}

const struct strait_codec *codec_cuda(void)
{
    pthread_once(&once, load_plugin);
    if (get_ops == NULL)
        return NULL;
    const struct device_ops *ops = get_ops();
    if (ops == NULL || ops->version != DEVICE_OPS_VERSION)
        return NULL;
    pthread_mutex_lock(&lock);
    cuda.device = ops; /* the same each time */
    pthread_mutex_unlock(&lock);
    return &cuda;
}
