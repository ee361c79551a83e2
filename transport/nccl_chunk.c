/* Outgoing and incoming chunks: the agreement about them, and their way through the engine. */
#include <stdlib.h>
#include <string.h>

#include "transport/nccl_internal.h"

static struct nccl_chunk *chunk_of(struct nccl_op *op)
{
    return (struct nccl_chunk *)((char *)op - offsetof(struct nccl_chunk, op));
}

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

static void append(struct nccl_chunk **list, struct nccl_chunk *chunk)
{
    while (*list != NULL)
        list = &(*list)->next;
    chunk->next = NULL;
    *list = chunk;
}

enum strait_status nccl_link_send(struct link *base, const void *header, size_t header_size, const void *data,
                                  size_t size, void *handle, uint64_t cookie)
{
    struct nccl_link *link = (struct nccl_link *)base;
    (void)handle;
    if (header_size > TRANSPORT_HEADER_MAX || (data == NULL && size > 0))
        return STRAIT_ERR_INVALID;
    if (link->core.state != LINK_CONNECTED)
        return STRAIT_ERR_IO;
    struct nccl_chunk *chunk = calloc(1, sizeof(*chunk));
    if (chunk == NULL)
        return STRAIT_ERR_NO_MEMORY;
    chunk->op.data = (void *)(uintptr_t)data; /* only read */
    chunk->op.size = size;
    chunk->id = ++link->last_id;
    enum strait_status status = nccl_say_chunk(link, chunk, header, header_size);
    if (status != STRAIT_OK) {
        free(chunk);
        return status;
    }
    event_begin(&chunk->event, &link->core, EVENT_SENT, cookie);
    if (size > 0)
        append(&link->unanswered, chunk);
    return STRAIT_OK;
}

static struct nccl_chunk *take_unanswered(struct nccl_link *link, uint64_t id)
{
    struct nccl_chunk **at = &link->unanswered, *chunk;
    while ((chunk = *at) != NULL && chunk->id != id)
        at = &chunk->next;
    if (chunk != NULL)
        *at = chunk->next;
    return chunk;
}

static void insert_early(struct nccl_link *link, struct nccl_chunk *chunk)
{
    struct nccl_chunk **at = &link->early;
    while (*at != NULL && (*at)->place < chunk->place)
        at = &(*at)->next;
    chunk->next = *at;
    *at = chunk;
}

/* NCCL has no names for operations: the n-th send of a direction goes to its n-th receive. */
static void post_those_in_turn(struct nccl_link *link)
{
    struct nccl_chunk *chunk;
    while ((chunk = link->early) != NULL && chunk->place == link->sent) {
        link->early = chunk->next;
        link->sent++;
        nccl_engine_post(link->engine, NCCL_OUT, &chunk->op);
    }
}

void nccl_chunk_answered(struct nccl_link *link, const struct nccl_message *message)
{
    struct nccl_chunk *chunk = take_unanswered(link, message->id);
    if (chunk == NULL) {
        nccl_link_break(link, "the peer answers what was not asked");
        return;
    }
    if (message->type == NCCL_REFUSED) {
        event_due(&chunk->event, STRAIT_OK);
        return;
    }
    chunk->place = message->value;
    insert_early(link, chunk);
    post_those_in_turn(link);
}

/* ---- Receiving --------------------------------------------------------------------------------------------------- */

/* The peer sends chunks only after it has heard that this side is ready; but its own READY may arrive later than its
 * chunk. */
static bool is_connected(struct nccl_link *link)
{
    if (link->core.state == LINK_CONNECTING && link->said_ready) {
        link->heard_ready = true;
        nccl_link_settle(link);
        core_deliver(link->core.core); /* `connected` has to come first */
    } else if (link->core.state == LINK_CONNECTING) {
        nccl_link_break(link, "the peer sends before its time");
    }
    return link->core.state == LINK_CONNECTED;
}

/* The receive is posted to the engine before the peer hears of it. */
static void accept_chunk(struct nccl_link *link, struct nccl_chunk *chunk, const struct landing *landing)
{
    event_begin(&chunk->event, &link->core, EVENT_ARRIVED, landing->cookie);
    chunk->op.data = landing->address;
    if (chunk->op.size == 0) {
        event_due(&chunk->event, STRAIT_OK);
        return;
    }
    struct nccl_message go = {.type = NCCL_GO, .id = chunk->id, .value = link->received++};
    nccl_engine_post(link->engine, NCCL_IN, &chunk->op);
    if (link->core.state == LINK_CONNECTED) /* not if the owner has closed it meanwhile */
        nccl_say(link, &go, NULL, 0);
}

static void refuse_chunk(struct nccl_link *link, struct nccl_chunk *chunk)
{
    struct nccl_message refused = {.type = NCCL_REFUSED, .id = chunk->id};
    if (chunk->op.size > 0 && link->core.state == LINK_CONNECTED)
        nccl_say(link, &refused, NULL, 0);
    free(chunk);
}

void nccl_chunk_arrives(struct nccl_link *link, const struct nccl_message *message, const void *header,
                        size_t header_size)
{
    const struct transport *transport = link->core.base.transport;
    if (!is_connected(link))
        return;
    struct nccl_chunk *chunk = calloc(1, sizeof(*chunk)); /* before asking: an accepted chunk must get its callback */
    if (chunk == NULL) {
        nccl_link_break(link, "out of memory");
        return;
    }
    chunk->id = message->id;
    chunk->op.size = (size_t)message->value;
    struct landing landing =
        transport->events.arriving(transport->owner, &link->core.base, header, header_size, chunk->op.size);
    if (landing.address != NULL)
        accept_chunk(link, chunk, &landing);
    else
        refuse_chunk(link, chunk);
}

/* ---- Both -------------------------------------------------------------------------------------------------------- */

void nccl_chunks_over(struct nccl_op *op)
{
    struct nccl_op *next;
    for (; op != NULL; op = next) {
        next = op->next;
        event_due(&chunk_of(op)->event, op->done ? STRAIT_OK : STRAIT_ERR_IO);
    }
}

static void fail_list(struct nccl_chunk **list)
{
    struct nccl_chunk *chunk;
    while ((chunk = *list) != NULL) {
        *list = chunk->next;
        event_due(&chunk->event, STRAIT_ERR_IO);
    }
}

void nccl_chunks_fail(struct nccl_link *link)
{
    fail_list(&link->early);
    fail_list(&link->unanswered);
}
