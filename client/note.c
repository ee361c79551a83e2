#include <string.h>

#include "client/client.h"

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
    connection_flush(peer->client);
    return status;
}

enum strait_status strait_stats(struct strait_client *client)
{
    if (client == NULL)
        return STRAIT_ERR_INVALID;
    if (client->state != READY)
        return STRAIT_ERR_AGAIN;
    struct message message = {.type = MESSAGE_STATS};
    enum strait_status status = outbox_send(client, &message, NULL, NULL);
    connection_flush(client);
    return status;
}
