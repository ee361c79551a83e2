/* UCX 1.13.1 takes some settings only from the environment. The process may have threads that call getenv(), such as
 * those of a serving framework that embeds us, and setenv() may free the array that they are walking through. So a
 * longer copy replaces the array, and the old one is left as it was. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "transport/ucx_internal.h"

#define SETTINGS 3

extern char **environ;

static char settings[SETTINGS][32] = {"UCX_TCP_CONN_NB=y", "UCX_TCP_CM_REUSEADDR=y", "UCX_TCP_CM_PRIV_DATA_LEN=64k"};

static bool is_set(char **array, const char *setting)
{
    size_t name = (size_t)(strchr(setting, '=') - setting) + 1;
    for (; array != NULL && *array != NULL; array++)
        if (strncmp(*array, setting, name) == 0)
            return true;
    return false;
}

static enum strait_status add_missing(void)
{
    char **before = __atomic_load_n(&environ, __ATOMIC_ACQUIRE);
    size_t count = 0, missing = 0;
    while (before != NULL && before[count] != NULL)
        count++;
    for (size_t i = 0; i < SETTINGS; i++)
        missing += !is_set(before, settings[i]);
    if (missing == 0)
        return STRAIT_OK;

    char **after = calloc(count + missing + 1, sizeof(*after));
    if (after == NULL)
        return STRAIT_ERR_NO_MEMORY;
    if (count > 0)
        memcpy(after, before, count * sizeof(*after));
    for (size_t i = 0; i < SETTINGS; i++)
        if (!is_set(before, settings[i]))
            after[count++] = settings[i];
    __atomic_store_n(&environ, after, __ATOMIC_RELEASE);
    return STRAIT_OK;
}

enum strait_status ucx_environment(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    enum strait_status status = add_missing();
    pthread_mutex_unlock(&lock);
    return status;
}
