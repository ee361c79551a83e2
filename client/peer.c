/* Pools as other nodes see them: export, import and comparison, and notifications to their owners. */
#include <stdlib.h>
#include <string.h>

#include "client/client.h"

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
    blob_fini(&peer->blob);
    free(peer);
}

void strait_peer_remove(struct strait_peer *peer)
{
    if (peer != NULL)
        peer_destroy(peer);
}

/* Codebooks are not compared before the daemon's first answer, as its set is not known until then. */
uint32_t strait_peer_check(const struct strait_pool *pool, const struct strait_peer *peer)
{
    struct pool_blob own = pool_describe(pool);
    uint32_t mismatch = blob_mismatch(&own, &peer->blob);
    return pool->client->welcomed ? mismatch : mismatch & ~(uint32_t)STRAIT_MISMATCH_CODEBOOK;
}

/* ---- Notifications ----------------------------------------------------------------------------------------------- */

static struct message note_message(const struct strait_peer *peer, struct view key, struct view data)
{
    struct message message = {.type = MESSAGE_NOTIFY};
    message.notify.peer_pool = peer->blob.pool;
    message.notify.peer_address = view_of(peer->blob.address, strlen(peer->blob.address));
    message.notify.key = key;
    message.notify.data = data;
    return message;
}

/* Notes have no deadline, so the number that wait for a daemon that is away is limited. */
enum strait_status strait_notify(const struct strait_peer *peer, const void *key, size_t key_size, const void *data,
                                 size_t data_size)
{
    if (peer == NULL || !bytes_valid(key, key_size, 1, STRAIT_KEY_BYTES_MAX) ||
        !bytes_valid(data, data_size, 0, STRAIT_NOTE_BYTES_MAX))
        return STRAIT_ERR_INVALID;
    if (peer->client->outbox.notes >= NOTES_AHEAD)
        return STRAIT_ERR_AGAIN;
    struct message message = note_message(peer, view_of(key, key_size), view_of(data, data_size));
    enum strait_status status = outbox_send(peer->client, &message, NULL, NULL);
    outbox_flush(peer->client);
    return status;
}
