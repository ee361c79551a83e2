#include "ep/plugin.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const struct ep_ops *found;
static char trouble[300];

static void find(void)
{
    void *library = dlopen(EP_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(trouble, sizeof(trouble), "memory of GPUs needs " EP_PLUGIN ": %s", dlerror());
        return;
    }
    ep_plugin_get *get;
    *(void **)&get = dlsym(library, EP_PLUGIN_SYMBOL);
    const struct ep_ops *ops = get != NULL ? get() : NULL;
    if (ops != NULL && ops->version == EP_OPS_VERSION) {
        found = ops;
        return;
    }
    snprintf(trouble, sizeof(trouble), EP_PLUGIN " finds no GPU, or is of another version than this library");
    dlclose(library);
}

const struct ep_ops *ep_plugin_find(const char **why)
{
    pthread_once(&once, find);
    *why = trouble;
    return found;
}
