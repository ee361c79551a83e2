#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <strait/collective.h>
#include <string.h>

#include "collective/engine.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const struct coll_engine_ops *engine;
static char why[256];

/* Opens the plugin next to this library's file, whatever symbolic links lead to it. */
static void *open_beside(void)
{
    Dl_info info;
    char own[PATH_MAX], path[PATH_MAX];
    if (dladdr((const void *)(uintptr_t)strait_coll_version, &info) == 0 || realpath(info.dli_fname, own) == NULL)
        return NULL;
    int folder = (int)(strrchr(own, '/') - own);
    int size = snprintf(path, sizeof(path), "%.*s/" COLL_ENGINE_LIBRARY, folder, own);
    return size < (int)sizeof(path) ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

static void load(void)
{
    void *plugin = open_beside();
    if (plugin == NULL) /* by the search path of the loader */
        plugin = dlopen(COLL_ENGINE_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (plugin == NULL) {
        snprintf(why, sizeof(why), "%s", dlerror());
        return;
    }
    coll_engine_get *get = NULL;
    void *symbol = dlsym(plugin, COLL_ENGINE_SYMBOL);
    memcpy(&get, &symbol, sizeof(get));
    snprintf(why, sizeof(why), COLL_ENGINE_LIBRARY " is not one of ours");
    engine = get != NULL ? get(why, sizeof(why)) : NULL;
    if (engine == NULL || engine->version == COLL_ENGINE_VERSION)
        return;
    snprintf(why, sizeof(why), COLL_ENGINE_LIBRARY " is of another version");
    engine = NULL;
}

const char *coll_engine_why(void)
{
    return why;
}

const struct coll_engine_ops *coll_engine(void)
{
    pthread_once(&once, load);
    return engine;
}
