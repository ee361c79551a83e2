#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <strait/strait.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/gpu.h"

/* 0: too large. */
static size_t whole_pages(size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return size > INT64_MAX - page ? 0 : (size + page - 1) / page * page;
}

/* A daemon maps the memory: if it could shrink, the daemon could die of SIGBUS. */
static bool size_and_seal(int fd, size_t size)
{
    return ftruncate(fd, (off_t)size) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0;
}

enum strait_status strait_alloc(size_t size, struct strait_memory *memory)
{
    if (size == 0 || memory == NULL)
        return STRAIT_ERR_INVALID;
    size_t whole = whole_pages(size);
    if (whole == 0)
        return STRAIT_ERR_NO_MEMORY;
    int fd = memfd_create("strait", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return STRAIT_ERR_NO_MEMORY;
    void *base = size_and_seal(fd, whole) ? mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (base == MAP_FAILED) {
        close(fd);
        return STRAIT_ERR_NO_MEMORY;
    }
    *memory = (struct strait_memory){.fd = fd, .base = base, .size = whole};
    return STRAIT_OK;
}

void strait_free(struct strait_memory *memory)
{
    if (memory == NULL || memory->base == NULL)
        return;
    munmap(memory->base, memory->size);
    close(memory->fd);
    *memory = (struct strait_memory){.fd = -1};
}

static struct gpu the_gpu;
static bool complete;
static pthread_mutex_t gpu_lock = PTHREAD_MUTEX_INITIALIZER;

static const struct entry {
    const char *name;
    size_t offset;
} entries[] = {
    {"cuStreamGetCtx", offsetof(struct gpu, stream_context)},
    {"cuCtxPushCurrent_v2", offsetof(struct gpu, context_push)},
    {"cuCtxPopCurrent_v2", offsetof(struct gpu, context_pop)},
    {"cuStreamIsCapturing", offsetof(struct gpu, stream_is_capturing)},
    {"cuMemHostRegister_v2", offsetof(struct gpu, host_register)},
    {"cuMemHostGetDevicePointer_v2", offsetof(struct gpu, host_device_pointer)},
    {"cuStreamWaitValue32_v2", offsetof(struct gpu, stream_wait_value)},
};

static bool find_all(void *driver)
{
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
        void *found = dlsym(driver, entries[i].name);
        if (found == NULL)
            return false;
        *(void **)((char *)&the_gpu + entries[i].offset) = found;
    }
    return true;
}

/* Looks again at every call until the driver is found, as the program may load it at any time. */
const struct gpu *gpu_driver(void)
{
    pthread_mutex_lock(&gpu_lock);
    if (!complete) {
        void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
        complete = driver != NULL && find_all(driver);
    }
    bool found = complete;
    pthread_mutex_unlock(&gpu_lock);
    return found ? &the_gpu : NULL;
}

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
