#include <stdlib.h>

#include "client/client.h"

/* ---- Checking ---------------------------------------------------------------------------------------------------- */

static bool ids_below(const uint32_t *ids, uint32_t count, uint32_t limit)
{
    uint32_t highest = 0;
    for (uint32_t i = 0; i < count; i++)
        highest = ids[i] > highest ? ids[i] : highest;
    return count == 0 || highest < limit;
}

static bool list_valid(const struct strait_pool *pool, const struct strait_page_list *list)
{
    if (list->group >= pool->group_count || list->count > STRAIT_TRANSFER_PAGES_MAX ||
        list->count > UINT32_MAX - list->first)
        return false;
    uint32_t limit = pool->group_pages[list->group];
    if (list->ids != NULL)
        return ids_below(list->ids, list->count, limit);
    return list->count <= limit && list->first_id <= limit - list->count;
}

enum strait_status lists_check(const struct strait_pool *pool, const struct strait_page_list *lists, uint32_t count,
                               uint64_t *pages)
{
    if (count > 0 && lists == NULL)
        return STRAIT_ERR_INVALID;
    for (uint32_t i = 0; i < count; i++) {
        if (!list_valid(pool, &lists[i]))
            return STRAIT_ERR_INVALID;
        *pages += lists[i].count;
        if (*pages > STRAIT_TRANSFER_PAGES_MAX)
            return STRAIT_ERR_INVALID;
    }
    return STRAIT_OK;
}

/* ---- Splitting --------------------------------------------------------------------------------------------------- */

/* Where the next message begins in the lists. */
struct cursor {
    const struct strait_page_list *lists;
    uint32_t count;  /* lists left */
    uint32_t offset; /* pages of the first list that were sent already */
};

static struct wire_page_list part_of(const struct strait_page_list *list, uint32_t offset, uint32_t count)
{
    return (struct wire_page_list){
        .group = list->group,
        .first = list->first + offset,
        .count = count,
        .first_id = list->ids != NULL ? 0 : list->first_id + offset,
        .ids = list->ids != NULL ? list->ids + offset : NULL,
    };
}

static void next_list(struct cursor *cursor)
{
    cursor->lists++;
    cursor->count--;
    cursor->offset = 0;
}

/* Fills one message's lists and returns their number. Empty lists are skipped, so after the last page none is left. */
static uint32_t next_lists(struct cursor *cursor, struct wire_page_list *wire)
{
    uint32_t filled = 0, room = MESSAGE_IDS_MAX;
    while (cursor->count > 0 && filled < MESSAGE_LIST_MAX && room > 0) {
        uint32_t left = cursor->lists->count - cursor->offset;
        uint32_t take = left < room ? left : room;
        if (take > 0)
            wire[filled++] = part_of(cursor->lists, cursor->offset, take);
        room -= take;
        cursor->offset += take;
        if (take == left)
            next_list(cursor);
    }
    while (cursor->count > 0 && cursor->lists->count == 0)
        next_list(cursor);
    return filled;
}

/* Only the last message may say that nothing follows. */
static struct message part_message(const struct message *whole, const struct wire_page_list *lists, uint32_t count,
                                   bool more)
{
    struct message part = *whole;
    if (part.type == MESSAGE_EXPECT) {
        part.expect.lists = lists;
        part.expect.list_count = count;
        part.expect.more = more;
    } else if (part.type == MESSAGE_OFFER) {
        part.offer.lists = lists;
        part.offer.list_count = count;
        part.offer.more = more;
        part.offer.last = whole->offer.last && !more;
        part.offer.aux = more ? view_of(NULL, 0) : whole->offer.aux;
    } else {
        part.append.lists = lists;
        part.append.list_count = count;
        part.append.more = more;
        part.append.last = whole->append.last && !more;
        part.append.aux = more ? view_of(NULL, 0) : whole->append.aux;
    }
    return part;
}

enum strait_status lists_send(struct strait_transfer *transfer, const struct message *message,
                              const struct strait_page_list *lists, uint32_t count)
{
    struct cursor cursor = {lists, count, 0};
    uint32_t most = count < MESSAGE_LIST_MAX ? count + 1 : MESSAGE_LIST_MAX;
    struct wire_page_list *wire = malloc(most * sizeof(*wire));
    enum strait_status status = wire != NULL ? STRAIT_OK : STRAIT_ERR_NO_MEMORY;
    bool more = true;
    while (status == STRAIT_OK && more) {
        uint32_t filled = next_lists(&cursor, wire);
        more = cursor.count > 0;
        struct message part = part_message(message, wire, filled, more);
        status = outbox_send(transfer->client, &part, transfer, NULL);
    }
    free(wire);
    return status;
}
