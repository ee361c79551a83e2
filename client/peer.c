/* Pools as other nodes see them: export, import and comparison, and notifications to their owners. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/client.h"
#include "proto/reshape.h"

/* ---- Export ------------------------------------------------------------------------------------------------------ */

/* The own pool as peers see it; points into pool and client. */
static struct pool_blob pool_describe(const struct strait_pool *pool)
{
    const struct strait_client *client = pool->client;
    struct pool_blob blob = {
        .pool = pool->id,
        .version = client->welcomed ? client->version : PROTOCOL_VERSION,
        .version_min = PROTOCOL_VERSION_MIN,
        .region_count = pool->region_count,
        .regions = pool->regions,
    };
    memcpy(blob.address, client->address, sizeof(blob.address));
    memcpy(blob.codebook_id, client->codebook_id, sizeof(blob.codebook_id));
    memcpy(blob.compat, pool->compat, sizeof(blob.compat));
    return blob;
}

enum strait_status strait_pool_export(const struct strait_pool *pool, void *dst, size_t dst_capacity, size_t *size)
{
    if (pool == NULL || size == NULL || (dst == NULL && dst_capacity > 0))
        return STRAIT_ERR_INVALID;
    if (!pool->client->welcomed)
        return STRAIT_ERR_AGAIN;
    struct pool_blob blob = pool_describe(pool);
    return blob_pack(&blob, dst, dst_capacity, size);
}

/* ---- Import and comparison --------------------------------------------------------------------------------------- */

enum strait_status strait_peer_import(struct strait_client *client, const void *src, size_t src_size,
                                      struct strait_peer **peer)
{
    if (client == NULL || peer == NULL || (src == NULL && src_size > 0))
        return STRAIT_ERR_INVALID;
    struct strait_peer *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return STRAIT_ERR_NO_MEMORY;
    enum strait_status status = src_size > 0 ? blob_unpack(src, src_size, &made->blob) : STRAIT_ERR_TRUNCATED;
    if (status != STRAIT_OK) {
        free(made);
        return status;
    }
    made->client = client;
    made->next = client->peers;
    made->link = &client->peers;
    if (made->next != NULL)
        made->next->link = &made->next;
    client->peers = made;
    *peer = made;
    return STRAIT_OK;
}

void peer_destroy(struct strait_peer *peer)
{
    *peer->link = peer->next;
    if (peer->next != NULL)
        peer->next->link = peer->link;
    struct strait_client *client = peer->client;
    for (uint32_t i = 0; peer->note_count > 0 && i < MESSAGE_NOTES_MAX; i++)
        if (client->notes[i] != NULL && client->notes[i]->peer == peer) {
            client->notes[i]->peer = NULL;
            peer->note_count--;
        }
    blob_fini(&peer->blob);
    free(peer);
}

void strait_peer_remove(struct strait_peer *peer)
{
    if (peer != NULL)
        peer_destroy(peer);
}

/* Codebooks are not compared before the daemon's first answer, as its set is not known until then. */
static uint32_t compared_bits(const struct strait_pool *pool)
{
    return pool->client->welcomed ? UINT32_MAX : ~(uint32_t)STRAIT_MISMATCH_CODEBOOK;
}

#define LAYOUT_BITS (STRAIT_MISMATCH_PAGE_SIZE | STRAIT_MISMATCH_LAYOUT | STRAIT_MISMATCH_LAYERS)

/* Whether pages of one layout can be rearranged into the other; `why` (may have size 0) says why not. `paged`: page by
 * page, as what is read is numbered by pages. */
static bool can_reshape(const struct pool_blob *own, const struct pool_blob *peer, bool paged, char *why,
                        size_t why_size)
{
    struct reshape reshape = {0};
    bool can = reshape_make(peer, own, &reshape, why, why_size) == STRAIT_OK;
    for (uint32_t g = 0; can && paged && g < reshape.group_count; g++)
        can = reshape.groups[g].tiles[RESHAPE_SOURCE] == reshape.groups[g].tiles[RESHAPE_SINK];
    reshape_fini(&reshape);
    return can;
}

static uint32_t check(const struct strait_pool *pool, const struct strait_peer *peer, bool paged, char *why,
                      size_t why_size)
{
    const struct pool_blob own = pool_describe(pool);
    const uint32_t bits = blob_mismatch(&own, &peer->blob) & compared_bits(pool);
    if ((bits & LAYOUT_BITS) == 0 || (bits & STRAIT_MISMATCH_FATAL & ~LAYOUT_BITS) != 0 ||
        !can_reshape(&own, &peer->blob, paged, why, why_size))
        return bits;
    return (bits & ~LAYOUT_BITS) | STRAIT_MISMATCH_RESHAPED;
}

uint32_t strait_peer_check(const struct strait_pool *pool, const struct strait_peer *peer)
{
    return check(pool, peer, false, NULL, 0);
}

bool peer_readable(const struct strait_pool *pool, const struct strait_peer *peer)
{
    return (check(pool, peer, true, NULL, 0) & STRAIT_MISMATCH_FATAL) == 0;
}

size_t strait_peer_explain(const struct strait_pool *pool, const struct strait_peer *peer, char *dst,
                           size_t dst_capacity)
{
    char why[400] = "";
    const struct pool_blob own = pool_describe(pool);
    const uint32_t bits = check(pool, peer, false, why, sizeof(why));
    const bool reshaped = (bits & STRAIT_MISMATCH_RESHAPED) != 0;
    size_t size = blob_explain(&own, &peer->blob, (bits & ~STRAIT_MISMATCH_RESHAPED) | (reshaped ? LAYOUT_BITS : 0),
                               dst, dst_capacity);
    const char *more = reshaped ? "pages are rearranged" : why;
    if (more[0] == '\0')
        return size;
    const int added =
        snprintf(size < dst_capacity ? dst + size : NULL, size < dst_capacity ? dst_capacity - size : 0, "; %s", more);
    return size + (added > 0 ? (size_t)added : 0);
}

/* ---- Notes that are not answered --------------------------------------------------------------------------------- */

static void note_detach(struct strait_client *client, struct note *note)
{
    const size_t bytes = note->failed.event.key_size + note->size;
    client->note_count--;
    client->note_bytes -= bytes;
    if (note->peer == NULL)
        return;
    note->peer->note_count--;
    note->peer->note_bytes -= bytes;
}

static struct note *note_take(struct strait_client *client, uint32_t number)
{
    struct note *note = client->notes[number];
    client->notes[number] = NULL;
    note_detach(client, note);
    return note;
}

/* It was delivered, or nobody is to hear of it. */
static void note_end(struct strait_client *client, uint32_t number)
{
    free(note_take(client, number));
}

/* A failure is told even where there is no memory for its text. */
static void note_fail(struct strait_client *client, uint32_t number, struct view text)
{
    struct note *note = note_take(client, number);
    char *copy = strndup((const char *)text.data, text.size);
    note->failed.event.text = copy != NULL ? copy : "not delivered; out of memory for the reason";
    note->failed.payload[0] = copy;
    event_push(client, &note->failed);
}

void notes_answered(struct strait_client *client, const struct message_noted *message)
{
    for (uint32_t i = 0; i < message->note_count; i++) {
        const uint32_t number = message->notes[i];
        if (client->notes == NULL || number >= MESSAGE_NOTES_MAX || client->notes[number] == NULL)
            continue;
        if (message->failed)
            note_fail(client, number, message->text);
        else
            note_end(client, number);
    }
}

void notes_fail(struct strait_client *client, const char *text)
{
    for (uint32_t i = 0; client->note_count > 0 && i < MESSAGE_NOTES_MAX; i++)
        if (client->notes[i] != NULL)
            note_fail(client, i, view_of(text, strlen(text)));
}

void notes_destroy(struct strait_client *client)
{
    for (uint32_t i = 0; client->note_count > 0 && i < MESSAGE_NOTES_MAX; i++)
        if (client->notes[i] != NULL)
            note_end(client, i);
    free(client->notes);
    client->notes = NULL;
}

/* ---- Notifications ----------------------------------------------------------------------------------------------- */

static bool has_credit(const struct strait_peer *peer, size_t bytes)
{
    const struct strait_client *client = peer->client;
    return client->note_count < MESSAGE_NOTES_MAX && client->note_bytes + bytes <= MESSAGE_NOTES_BYTES_MAX &&
           peer->note_count < PEER_NOTES_MAX && peer->note_bytes + bytes <= PEER_BYTES_MAX;
}

static uint32_t free_number(struct strait_client *client)
{
    while (client->notes[client->next_note % MESSAGE_NOTES_MAX] != NULL)
        client->next_note++;
    return client->next_note++ % MESSAGE_NOTES_MAX;
}

static struct note *note_create(struct strait_peer *peer, const void *key, size_t key_size, size_t size)
{
    struct note *note = calloc(1, sizeof(*note) + key_size);
    if (note == NULL)
        return NULL;
    note->peer = peer;
    note->pool = peer->blob.pool;
    note->size = size;
    memcpy(note->key, key, key_size);
    note->failed.heap = true;
    note->failed.event.type = STRAIT_EVENT_NOTIFY_FAILED;
    note->failed.event.key = note->key;
    note->failed.event.key_size = key_size;
    note->failed.event.data = note->pool.bytes;
    note->failed.event.data_size = sizeof(note->pool);
    return note;
}

static void note_attach(struct strait_client *client, uint32_t number, struct note *note)
{
    const size_t bytes = note->failed.event.key_size + note->size;
    answer_due(client, &client->note_count);
    client->note_bytes += bytes;
    note->peer->note_count++;
    note->peer->note_bytes += bytes;
    client->notes[number] = note;
}

static struct message note_message(const struct strait_peer *peer, uint32_t number, struct view key, struct view data)
{
    struct message message = {.type = MESSAGE_NOTIFY};
    message.notify.note = number;
    message.notify.peer_pool = peer->blob.pool;
    message.notify.peer_address = view_of(peer->blob.address, strlen(peer->blob.address));
    message.notify.key = key;
    message.notify.data = data;
    return message;
}

enum strait_status strait_notify(struct strait_peer *peer, const void *key, size_t key_size, const void *data,
                                 size_t data_size)
{
    if (peer == NULL || !bytes_valid(key, key_size, 1, STRAIT_KEY_BYTES_MAX) ||
        !bytes_valid(data, data_size, 0, STRAIT_NOTE_BYTES_MAX))
        return STRAIT_ERR_INVALID;
    struct strait_client *client = peer->client;
    if (!has_credit(peer, key_size + data_size))
        return STRAIT_ERR_AGAIN;
    if (client->notes == NULL && (client->notes = calloc(MESSAGE_NOTES_MAX, sizeof(struct note *))) == NULL)
        return STRAIT_ERR_NO_MEMORY;
    struct note *note = note_create(peer, key, key_size, data_size);
    if (note == NULL)
        return STRAIT_ERR_NO_MEMORY;
    const uint32_t number = free_number(client);
    struct message message = note_message(peer, number, view_of(key, key_size), view_of(data, data_size));
    note_attach(client, number, note);
    enum strait_status status = outbox_send(client, &message, NULL, NULL);
    if (status != STRAIT_OK)
        note_end(client, number);
    outbox_flush(client);
    return status;
}
