#include <stdlib.h>

#include "client/client.h"

#define BUCKETS_FIRST 64u

/* Ids count up, so their low bits spread well. */
static struct strait_transfer **bucket_of(const struct strait_client *client, uint64_t id)
{
    return &client->buckets[id & (client->bucket_count - 1)];
}

static void add_to_bucket(struct strait_client *client, struct strait_transfer *transfer)
{
    struct strait_transfer **bucket = bucket_of(client, transfer->id);
    transfer->bucket_next = *bucket;
    *bucket = transfer;
}

/* Without memory the old buckets still work, only slower; the first allocation must succeed. */
static enum strait_status grow(struct strait_client *client)
{
    if (client->transfer_count < client->bucket_count)
        return STRAIT_OK;
    uint32_t count = client->bucket_count > 0 ? client->bucket_count * 2 : BUCKETS_FIRST;
    struct strait_transfer **buckets = calloc(count, sizeof(struct strait_transfer *));
    if (buckets == NULL)
        return client->buckets != NULL ? STRAIT_OK : STRAIT_ERR_NO_MEMORY;
    free(client->buckets);
    client->buckets = buckets;
    client->bucket_count = count;
    for (struct strait_transfer *transfer = client->transfers; transfer != NULL; transfer = transfer->next)
        add_to_bucket(client, transfer);
    return STRAIT_OK;
}

enum strait_status table_insert(struct strait_client *client, struct strait_transfer *transfer)
{
    if (grow(client) != STRAIT_OK)
        return STRAIT_ERR_NO_MEMORY;
    transfer->id = ++client->last_id;
    add_to_bucket(client, transfer);
    transfer->next = client->transfers;
    transfer->link = &client->transfers;
    if (transfer->next != NULL)
        transfer->next->link = &transfer->next;
    client->transfers = transfer;
    client->transfer_count++;
    return STRAIT_OK;
}

struct strait_transfer *table_find(const struct strait_client *client, uint64_t id)
{
    struct strait_transfer *transfer = client->buckets != NULL ? *bucket_of(client, id) : NULL;
    while (transfer != NULL && transfer->id != id)
        transfer = transfer->bucket_next;
    return transfer;
}

void table_remove(struct strait_transfer *transfer)
{
    if (transfer->link == NULL)
        return;
    struct strait_transfer **at = bucket_of(transfer->client, transfer->id);
    while (*at != transfer)
        at = &(*at)->bucket_next;
    *at = transfer->bucket_next;
    *transfer->link = transfer->next;
    if (transfer->next != NULL)
        transfer->next->link = transfer->link;
    transfer->link = NULL;
    transfer->client->transfer_count--;
}
