/* Shared memory, the CUDA driver, and GPU streams that wait for transfers. */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <strait/strait.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/client.h"
#include "client/gpu.h"

/* ---- Memory that can be shared ----------------------------------------------------------------------------------- */

enum strait_status strait_alloc(size_t size, struct strait_memory *memory)
{
    if (size == 0 || memory == NULL)
        return STRAIT_ERR_INVALID;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t whole = size > INT64_MAX - page ? 0 : (size + page - 1) / page * page;
    if (whole == 0)
        return STRAIT_ERR_NO_MEMORY;
    int fd = memfd_create("strait", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return STRAIT_ERR_NO_MEMORY;
    /* A daemon maps the memory: if it could shrink, the daemon could die of SIGBUS. */
    void *base =
        ftruncate(fd, (off_t)whole) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0
            ? mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
            : MAP_FAILED;
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

/* ---- The driver -------------------------------------------------------------------------------------------------- */

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
static const struct gpu *gpu_driver(void)
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

/* ---- Words ------------------------------------------------------------------------------------------------------- */

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

/* Takes an unused word, and the value to wait for. False: all are in use. */
static bool words_take(struct words *words, uint32_t *word, uint32_t *value)
{
    for (uint32_t i = 0; i < WORDS_COUNT; i++) {
        uint32_t at = (words->cursor + i) % WORDS_COUNT;
        if ((int32_t)(__atomic_load_n(&words->at[at], __ATOMIC_ACQUIRE) - words->issued[at]) < 0)
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

/* GPU streams that wait for a transfer. A stream waits for a word. The daemon raises the word when the pages are in
 * place or the transfer has failed; the library raises it when it gives the verdict itself. */

struct stream_wait {
    uint32_t word, value;
};

/* ---- Streams that wait for a transfer: arguments ----------------------------------------------------------------- */

static bool has_layer(const struct strait_pool *pool, int32_t layer)
{
    for (uint32_t r = 0; r < pool->region_count; r++)
        if (pool->wire[r].layer == layer)
            return true;
    return false;
}

/* A removed pool has ended its transfers: they have their verdicts, and nothing has to wait. */
static enum strait_status check(const struct strait_transfer *transfer, int32_t layer)
{
    if (transfer == NULL || !transfer->sink || layer < -1)
        return STRAIT_ERR_INVALID;
    if (transfer->client->embedded != NULL)
        return STRAIT_ERR_UNSUPPORTED;
    if (transfer->pool == NULL)
        return STRAIT_OK;
    if (!pool_on_gpu(transfer->pool))
        return STRAIT_ERR_UNSUPPORTED;
    return layer < 0 || has_layer(transfer->pool, layer) ? STRAIT_OK : STRAIT_ERR_INVALID;
}

/* ---- Streams that wait for a transfer: the client's words -------------------------------------------------------- */

/* Pins the words through the current context, for all contexts. */
static enum strait_status pin(struct words *words, const struct gpu *gpu)
{
    if (!words->pinned && gpu->host_register(words->at, WORDS_BYTES, GPU_REGISTER_FLAGS) != 0)
        return STRAIT_ERR_DEVICE;
    words->pinned = true;
    return STRAIT_OK;
}

struct message words_message(void)
{
    return (struct message){.type = MESSAGE_WORDS, .words = {.count = WORDS_COUNT}};
}

/* Gives the client words. A daemon that is not connected gets the message about them when it connects. */
static enum strait_status open_words(struct strait_client *client, const struct gpu *gpu)
{
    if (client->words != NULL)
        return STRAIT_OK;
    struct words *words = words_get();
    if (words == NULL)
        return STRAIT_ERR_NO_MEMORY;
    enum strait_status status = pin(words, gpu);
    client->words = words;
    if (status == STRAIT_OK && client->state == READY) {
        struct message message = words_message();
        status = outbox_send(client, &message, NULL, NULL);
    }
    if (status == STRAIT_OK)
        return STRAIT_OK;
    client->words = NULL;
    words_put(words);
    return status;
}

/* ---- Streams that wait for a transfer: waiting and release ------------------------------------------------------- */

static struct stream_wait *add_wait(struct strait_transfer *transfer)
{
    size_t size = (transfer->wait_count + 1) * sizeof(*transfer->waits);
    struct stream_wait *waits = realloc(transfer->waits, size);
    if (waits == NULL)
        return NULL;
    transfer->waits = waits;
    return &waits[transfer->wait_count];
}

static enum strait_status send_wait(struct strait_transfer *transfer, int32_t layer, const struct stream_wait *wait)
{
    struct message message = {.type = MESSAGE_WAIT};
    message.wait =
        (struct message_wait){.transfer = transfer->id, .layer = layer, .word = wait->word, .value = wait->value};
    return outbox_send(transfer->client, &message, transfer, NULL);
}

/* Sends the message before the stream waits: if the daemon were not asked, the stream would wait until the verdict. */
static enum strait_status begin_wait(struct strait_transfer *transfer, int32_t layer, const struct gpu *gpu,
                                     void *stream)
{
    struct words *words = transfer->client->words;
    struct stream_wait *wait = add_wait(transfer);
    uint64_t address;
    if (wait == NULL || !words_take(words, &wait->word, &wait->value))
        return STRAIT_ERR_NO_MEMORY;
    enum strait_status status = send_wait(transfer, layer, wait);
    if (status == STRAIT_OK && (gpu->host_device_pointer(&address, &words->at[wait->word], 0) != 0 ||
                                gpu->stream_wait_value(stream, address, wait->value, GPU_WAIT_GEQ) != 0))
        status = STRAIT_ERR_DEVICE;
    if (status == STRAIT_OK)
        transfer->wait_count++;
    else
        words_raise(words, wait->word, wait->value);
    return status;
}

/* Runs with the stream's context current. */
static enum strait_status wait_in_context(struct strait_transfer *transfer, int32_t layer, const struct gpu *gpu,
                                          void *stream)
{
    int capturing = 0;
    if (gpu->stream_is_capturing(stream, &capturing) != 0)
        return STRAIT_ERR_DEVICE;
    if (capturing != 0)
        return STRAIT_ERR_INVALID;
    enum strait_status status = open_words(transfer->client, gpu);
    return status == STRAIT_OK ? begin_wait(transfer, layer, gpu, stream) : status;
}

enum strait_status strait_wait_stream(struct strait_transfer *transfer, int32_t layer, void *stream)
{
    enum strait_status status = check(transfer, layer);
    if (status != STRAIT_OK || transfer->ended)
        return status;
    const struct gpu *gpu = gpu_driver();
    void *context = NULL;
    if (gpu == NULL)
        return STRAIT_ERR_UNSUPPORTED;
    if (gpu->stream_context(stream, &context) != 0 || gpu->context_push(context) != 0)
        return STRAIT_ERR_DEVICE;
    status = wait_in_context(transfer, layer, gpu, stream);
    (void)gpu->context_pop(&context);
    outbox_flush(transfer->client);
    return status;
}

void stream_release(struct strait_transfer *transfer)
{
    for (uint32_t i = 0; i < transfer->wait_count; i++)
        words_raise(transfer->client->words, transfer->waits[i].word, transfer->waits[i].value);
    free(transfer->waits);
    transfer->waits = NULL;
    transfer->wait_count = 0;
}
