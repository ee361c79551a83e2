#include <stdlib.h>
#include <string.h>

#include "client/client.h"

/* ---- A block that is filled front to back ------------------------------------------------------------------------ */

struct block {
    uint8_t *at;
};

static size_t rounded(size_t size)
{
    return (size + 15) & ~(size_t)15;
}

static void *put(struct block *block, const void *data, size_t size)
{
    void *copy = block->at;
    if (size > 0)
        memcpy(copy, data, size);
    block->at += rounded(size);
    return copy;
}

static void put_view(struct block *block, struct view *view)
{
    if (view->size > 0)
        view->data = put(block, view->data, view->size);
}

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

static size_t lists_size(const struct wire_page_list *lists, uint32_t count)
{
    size_t size = rounded(count * sizeof(*lists));
    for (uint32_t i = 0; i < count; i++)
        size += lists[i].ids != NULL ? rounded(lists[i].count * sizeof(uint32_t)) : 0;
    return size;
}

static struct wire_page_list *put_lists(struct block *block, const struct wire_page_list *lists, uint32_t count)
{
    struct wire_page_list *copy = put(block, lists, count * sizeof(*lists));
    for (uint32_t i = 0; i < count; i++)
        if (copy[i].ids != NULL)
            copy[i].ids = put(block, copy[i].ids, copy[i].count * sizeof(uint32_t));
    return copy;
}

struct wire_page_list *lists_copy(const struct strait_page_list *lists, uint32_t count)
{
    size_t size = rounded(count * sizeof(struct wire_page_list));
    for (uint32_t i = 0; i < count; i++)
        size += lists[i].ids != NULL ? rounded(lists[i].count * sizeof(uint32_t)) : 0;
    struct wire_page_list *copy = malloc(size > 0 ? size : 1);
    if (copy == NULL)
        return NULL;
    struct block block = {(uint8_t *)copy + rounded(count * sizeof(*copy))};
    for (uint32_t i = 0; i < count; i++) {
        const struct strait_page_list *from = &lists[i];
        copy[i] = (struct wire_page_list){from->group, from->first, from->count, from->first_id, NULL};
        if (from->ids != NULL)
            copy[i].ids = put(&block, from->ids, from->count * sizeof(uint32_t));
    }
    return copy;
}

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

/* The pointers in a message that the client sends. */
struct parts {
    struct view *views[3];
    const struct wire_page_list **lists;
    uint32_t list_count;
};

static struct parts parts_of(struct message *m)
{
    switch (m->type) {
    case MESSAGE_EXPECT:
        return (struct parts){{&m->expect.key}, &m->expect.lists, m->expect.list_count};
    case MESSAGE_OFFER:
        return (struct parts){{&m->offer.key, &m->offer.aux, &m->offer.ready}, &m->offer.lists, m->offer.list_count};
    case MESSAGE_APPEND:
        return (struct parts){{&m->append.aux, &m->append.ready}, &m->append.lists, m->append.list_count};
    case MESSAGE_START:
        return (struct parts){{&m->start.peer_address, &m->start.peer_key}, NULL, 0};
    case MESSAGE_NOTIFY:
        return (struct parts){{&m->notify.peer_address, &m->notify.key, &m->notify.data}, NULL, 0};
    default: /* the others hold no pointers; registrations are not copied */
        return (struct parts){{NULL}, NULL, 0};
    }
}

enum strait_status message_copy(struct message *message, void **block)
{
    struct parts parts = parts_of(message);
    size_t size = parts.lists != NULL ? lists_size(*parts.lists, parts.list_count) : 0;
    for (int i = 0; i < 3; i++)
        size += parts.views[i] != NULL ? rounded(parts.views[i]->size) : 0;
    *block = malloc(size > 0 ? size : 1);
    if (*block == NULL)
        return STRAIT_ERR_NO_MEMORY;
    struct block rest = {*block};
    if (parts.lists != NULL)
        *parts.lists = put_lists(&rest, *parts.lists, parts.list_count);
    for (int i = 0; i < 3; i++)
        if (parts.views[i] != NULL)
            put_view(&rest, parts.views[i]);
    return STRAIT_OK;
}
