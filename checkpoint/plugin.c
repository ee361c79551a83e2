#include "checkpoint/plugin.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#define PLUGIN "libstrait-checkpoint-cuda.so.0"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const struct checkpoint_plugin *found;
static char trouble[300];

static void find(void)
{
    void *library = dlopen(PLUGIN, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(trouble, sizeof(trouble), "memory of GPUs needs " PLUGIN ": %s", dlerror());
        return;
    }
    checkpoint_plugin_get *get;
    *(void **)&get = dlsym(library, CHECKPOINT_PLUGIN_SYMBOL);
    const struct checkpoint_plugin *plugin = get != NULL ? get() : NULL;
    if (plugin != NULL && plugin->version == CHECKPOINT_PLUGIN_VERSION) {
        found = plugin;
        return;
    }
    snprintf(trouble, sizeof(trouble), PLUGIN " finds no GPU, or is of another version than this library");
    dlclose(library);
}

const struct checkpoint_plugin *checkpoint_plugin_find(const char **why)
{
    pthread_once(&once, find);
    *why = trouble;
    return found;
}
