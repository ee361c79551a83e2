#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/client.h"

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

void events_init(struct event_list *list)
{
    *list = (struct event_list){.end = &list->first};
}

static void append(struct event_list *list, struct event_node *node)
{
    node->next = NULL;
    *list->end = node;
    list->end = &node->next;
    list->count++;
}

static struct event_node *take_first(struct event_list *list)
{
    struct event_node *node = list->first;
    if (node == NULL)
        return NULL;
    list->first = node->next;
    if (list->first == NULL)
        list->end = &list->first;
    list->count--;
    return node;
}

/* ---- Nodes ------------------------------------------------------------------------------------------------------- */

struct event_node *event_create(enum strait_event_type type)
{
    struct event_node *node = calloc(1, sizeof(*node));
    if (node == NULL)
        return NULL;
    node->heap = true;
    node->event.type = type;
    return node;
}

void event_signal(struct strait_client *client)
{
    uint64_t one = 1;
    if (!client->signalled)
        client->signalled = write(client->event_fd, &one, sizeof(one)) == sizeof(one);
}

static void event_quiet(struct strait_client *client)
{
    uint64_t count;
    if (client->signalled)
        client->signalled = read(client->event_fd, &count, sizeof(count)) != sizeof(count);
}

void event_push(struct strait_client *client, struct event_node *node)
{
    if (node->event.text == NULL)
        node->event.text = "";
    if (node->event.transfer != NULL)
        node->event.transfer->waiting++;
    append(&client->waiting, node);
    event_signal(client);
}

static void free_payload(struct event_node *node)
{
    for (int i = 0; i < 3; i++) {
        free(node->payload[i]);
        node->payload[i] = NULL;
    }
}

/* Must be the last use of a node, which may be part of the object that this frees. */
static void node_done(struct event_node *node)
{
    struct strait_transfer *transfer = node->event.transfer;
    free_payload(node);
    if (node->event.type == STRAIT_EVENT_POOL_REMOVED)
        pool_destroy(node->event.pool);
    else if (node->heap)
        free(node);
    if (transfer != NULL && transfer->released && transfer->handed + transfer->waiting == 0)
        transfer_destroy(transfer);
}

/* ---- Handing out ------------------------------------------------------------------------------------------------- */

void events_recycle(struct strait_client *client)
{
    struct event_node *node;
    while ((node = take_first(&client->handed)) != NULL) {
        if (node->event.transfer != NULL)
            node->event.transfer->handed--;
        node_done(node);
    }
}

uint32_t events_hand_out(struct strait_client *client, struct strait_event *events, uint32_t capacity)
{
    uint32_t count = 0;
    while (count < capacity && client->waiting.first != NULL) {
        struct event_node *node = take_first(&client->waiting);
        if (node->event.transfer != NULL) {
            node->event.transfer->waiting--;
            node->event.transfer->handed++;
        }
        append(&client->handed, node);
        events[count++] = node->event;
    }
    if (client->waiting.first == NULL && !client->input_left)
        event_quiet(client);
    else
        event_signal(client);
    return count;
}

void events_drop(struct strait_client *client, const struct strait_transfer *transfer)
{
    struct event_list kept, all = client->waiting;
    events_init(&kept);
    while (all.first != NULL) {
        struct event_node *node = all.first;
        all.first = node->next;
        if (transfer != NULL && node->event.transfer != transfer) {
            append(&kept, node);
            continue;
        }
        if (node->event.transfer != NULL)
            node->event.transfer->waiting--;
        node_done(node);
    }
    events_init(&client->waiting);
    if (kept.first != NULL) {
        client->waiting = kept;
    }
}

/* ---- Events of a transfer ---------------------------------------------------------------------------------------- */

/* Each node is used only once, because states only rise. */
static struct event_node *prepare(struct strait_transfer *transfer, int which, enum strait_event_type type)
{
    struct event_node *node = &transfer->nodes[which];
    node->event.type = type;
    node->event.transfer = transfer;
    node->event.context = transfer->context;
    node->event.state = transfer->state;
    node->event.reason = transfer->reason;
    node->event.drained = transfer->drained;
    return node;
}

void transfer_advance(struct strait_transfer *transfer, enum strait_state state)
{
    if (transfer->ended || state <= transfer->state || state >= STRAIT_DONE)
        return;
    transfer->state = state;
    event_push(transfer->client,
               prepare(transfer, state == STRAIT_READY ? NODE_READY : NODE_TRANSFERRING, STRAIT_EVENT_STATE));
}

static void end(struct strait_transfer *transfer, enum strait_state state, enum strait_reason reason, bool drained)
{
    transfer->ended = true;
    transfer->state = state;
    transfer->reason = reason;
    transfer->drained = drained;
    stream_release(transfer);
    free(transfer->lists);
    transfer->lists = NULL;
}

/* Moves the failed pages received so far, if any, into the verdict. */
static void move_failed(struct strait_transfer *transfer, struct event_node *node)
{
    node->event.failed = node->payload[0] = transfer->failed;
    node->event.failed_count = transfer->failed_count;
    transfer->failed = NULL;
    transfer->failed_count = transfer->failed_capacity = 0;
}

void transfer_done(struct strait_transfer *transfer, void *aux, size_t aux_size)
{
    if (transfer->ended) {
        free(aux);
        return;
    }
    end(transfer, STRAIT_DONE, STRAIT_REASON_NONE, true);
    struct event_node *node = prepare(transfer, NODE_VERDICT, STRAIT_EVENT_STATE);
    node->event.data = node->payload[1] = aux;
    node->event.data_size = aux_size;
    event_push(transfer->client, node);
}

void transfer_fail(struct strait_transfer *transfer, enum strait_reason reason, bool drained, const char *text)
{
    if (transfer->ended)
        return;
    end(transfer, STRAIT_FAILED, reason, drained);
    struct event_node *node = prepare(transfer, NODE_VERDICT, STRAIT_EVENT_STATE);
    node->event.text = node->payload[2] = strdup(text); /* without memory there is only the reason */
    move_failed(transfer, node);
    event_push(transfer->client, node);
}

void transfer_drained(struct strait_transfer *transfer)
{
    if (!transfer->ended || transfer->drained)
        return;
    transfer->drained = true;
    event_push(transfer->client, prepare(transfer, NODE_DRAINED, STRAIT_EVENT_DRAINED));
}

/* ---- Verdicts of the library ------------------------------------------------------------------------------------- */

static uint32_t fill_failed(struct strait_failed_page *failed, const struct wire_page_list *list)
{
    for (uint32_t i = 0; i < list->count; i++) {
        uint32_t id = list->ids != NULL ? list->ids[i] : list->first_id + i;
        failed[i] = (struct strait_failed_page){list->group, id};
    }
    return list->count;
}

/* No page is known to be in place, so all are reported. Without memory the verdict comes without the list. */
static void name_all_pages(struct strait_transfer *transfer)
{
    free(transfer->failed);
    transfer->failed_count = transfer->failed_capacity = 0;
    transfer->failed =
        transfer->sink && transfer->pages > 0 ? malloc(transfer->pages * sizeof(*transfer->failed)) : NULL;
    for (uint32_t i = 0; transfer->failed != NULL && i < transfer->list_count; i++)
        transfer->failed_count += fill_failed(transfer->failed + transfer->failed_count, &transfer->lists[i]);
}

void transfer_give_up(struct strait_transfer *transfer, enum strait_reason reason, bool drained, const char *text)
{
    if (transfer->ended)
        return;
    outbox_drop_transfer(transfer->client, transfer);
    name_all_pages(transfer);
    transfer_fail(transfer, reason, drained || !transfer->known, text);
}

/* The library never ends an offer that the daemon knows: the daemons renew its lease or end it. */
uint64_t transfer_due(const struct strait_transfer *transfer)
{
    if (transfer->ended || (transfer->known && !transfer->sink))
        return NEVER;
    return transfer->deadline + (transfer->known ? GRACE_MS : 0);
}

static void expire(struct strait_transfer *transfer)
{
    if (transfer->sink)
        transfer_give_up(transfer, STRAIT_REASON_TIMEOUT, false, "no word from the daemon until the deadline");
    else
        transfer_give_up(transfer, STRAIT_REASON_LEASE_EXPIRED, false, "no daemon took the offer");
}

void transfers_expire(struct strait_client *client, uint64_t now)
{
    if (now < client->next_due)
        return;
    client->next_due = NEVER;
    for (struct strait_transfer *transfer = client->transfers; transfer != NULL; transfer = transfer->next) {
        if (transfer_due(transfer) <= now)
            expire(transfer);
        uint64_t due = transfer_due(transfer);
        client->next_due = due < client->next_due ? due : client->next_due;
    }
}

void transfers_fail(struct strait_client *client, enum strait_reason reason, bool drained, const char *text)
{
    for (struct strait_transfer *transfer = client->transfers; transfer != NULL; transfer = transfer->next)
        transfer_give_up(transfer, reason, drained, text);
}

void transfers_drained(struct strait_client *client)
{
    for (struct strait_transfer *transfer = client->transfers; transfer != NULL; transfer = transfer->next) {
        transfer_drained(transfer);
        transfer->known = transfer->known && !transfer->ended;
    }
}

/* ---- The end of the handle --------------------------------------------------------------------------------------- */

void transfer_destroy(struct strait_transfer *transfer)
{
    table_remove(transfer);
    stream_release(transfer);
    for (int i = 0; i < NODES; i++)
        for (int k = 0; k < 3; k++)
            free(transfer->nodes[i].payload[k]);
    free(transfer->failed);
    free(transfer->lists);
    free(transfer);
}
