/* GPU streams that wait for a transfer. A stream waits for a word. The daemon raises the word when the pages are in
 * place or the transfer has failed; the library raises it when it gives the verdict itself. */
#include <stdlib.h>

#include "client/client.h"
#include "client/gpu.h"
#include "client/words.h"

struct stream_wait {
    uint32_t word, value;
};

/* ---- What may be waited for -------------------------------------------------------------------------------------- */

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

/* ---- Words ------------------------------------------------------------------------------------------------------- */

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

/* Gets the client its words. A daemon that is not connected is told of them when it connects. */
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

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

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
    connection_flush(transfer->client);
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
