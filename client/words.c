#include "client/words.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static struct words *spare;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct words *words_create(void)
{
    struct words *words = calloc(1, sizeof(*words));
    struct strait_memory memory;
    if (words == NULL || strait_alloc(WORDS_BYTES, &memory) != STRAIT_OK) {
        free(words);
        return NULL;
    }
    words->process = getpid();
    words->fd = memory.fd;
    words->at = memory.base;
    return words;
}

/* After fork the parent goes on using these words, whose memory the child shares: a child must make its own. */
static struct words *take_spare(void)
{
    pthread_mutex_lock(&lock);
    if (spare != NULL && spare->process != getpid())
        spare = NULL;
    struct words *words = spare;
    if (words != NULL)
        spare = words->next;
    pthread_mutex_unlock(&lock);
    return words;
}

struct words *words_get(void)
{
    struct words *words = take_spare();
    return words != NULL ? words : words_create();
}

void words_put(struct words *words)
{
    if (words == NULL || words->process != getpid())
        return;
    pthread_mutex_lock(&lock);
    words->next = spare;
    spare = words;
    pthread_mutex_unlock(&lock);
}

static bool is_free(const struct words *words, uint32_t word)
{
    return (int32_t)(__atomic_load_n(&words->at[word], __ATOMIC_ACQUIRE) - words->issued[word]) >= 0;
}

bool words_take(struct words *words, uint32_t *word, uint32_t *value)
{
    for (uint32_t i = 0; i < WORDS_COUNT; i++) {
        uint32_t at = (words->cursor + i) % WORDS_COUNT;
        if (!is_free(words, at))
            continue;
        words->cursor = at + 1;
        *word = at;
        *value = ++words->issued[at];
        return true;
    }
    return false;
}

void words_raise(struct words *words, uint32_t word, uint32_t value)
{
    uint32_t *at = &words->at[word], old = __atomic_load_n(at, __ATOMIC_RELAXED);
    while ((int32_t)(value - old) > 0)
        if (__atomic_compare_exchange_n(at, &old, value, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            return;
}
