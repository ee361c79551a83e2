/* Finds the plugin that knows NCCL, and remembers what was missing. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

#include "transport/nccl_internal.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct nccl_calls *found;
static char why_not[256];

/* The plugin stays loaded: a driver that has been started cannot be unloaded safely. */
static const struct nccl_calls *load(const char *library)
{
    nccl_calls_get *get = NULL;
    void *plugin = dlopen(NCCL_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    if (plugin != NULL)
        *(void **)&get = dlsym(plugin, NCCL_PLUGIN_SYMBOL);
    if (get == NULL) {
        const char *error = dlerror();
        snprintf(why_not, sizeof(why_not), "no plugin for NCCL: %s", error != NULL ? error : NCCL_PLUGIN);
        return NULL;
    }
    const struct nccl_calls *calls = get(library, why_not, sizeof(why_not));
    if (calls == NULL || calls->version == NCCL_CALLS_VERSION)
        return calls;
    snprintf(why_not, sizeof(why_not), "%s is of another version than this program", NCCL_PLUGIN);
    return NULL;
}

const struct nccl_calls *nccl_load(const char *library)
{
    pthread_mutex_lock(&lock);
    if (found == NULL)
        found = load(library);
    if (found != NULL)
        why_not[0] = '\0';
    const struct nccl_calls *calls = found;
    pthread_mutex_unlock(&lock);
    return calls;
}

void nccl_lacks(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&lock);
    vsnprintf(why_not, sizeof(why_not), format, arguments);
    pthread_mutex_unlock(&lock);
    va_end(arguments);
}

void nccl_missing(char *dst, size_t size)
{
    pthread_mutex_lock(&lock);
    snprintf(dst, size, "%s", why_not);
    pthread_mutex_unlock(&lock);
}

void nccl_use_calls(const struct nccl_calls *calls)
{
    pthread_mutex_lock(&lock);
    found = calls;
    pthread_mutex_unlock(&lock);
}
