#include "daemon/withdraw.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "daemon/node.h"

#define WITHDRAWALS    4096u  /* at most this many wait, */
#define OF_ONE_ADDRESS 512u   /* so many of them for one daemon, */
#define WITHDRAWAL_MS  60000u /* and for this long, as tombstones do: then a name may mean something new */

void withdraw_remove(struct node *node, struct withdrawal_entry *entry)
{
    DL_DELETE(node->exchange.withdrawals, entry);
    node->exchange.withdrawal_count--;
    free(entry);
}

/* Forgets the oldest of that address, or of all, where there is no room for one more. */
static void make_room(struct node *node, const char *address)
{
    struct exchange *x = &node->exchange;
    struct withdrawal_entry *entry, *oldest = NULL;
    uint32_t count = 0;
    DL_FOREACH (x->withdrawals, entry)
        if (strcmp(entry->address, address) == 0) {
            oldest = oldest != NULL ? oldest : entry;
            count++;
        }
    if (count < OF_ONE_ADDRESS && x->withdrawal_count < WITHDRAWALS)
        return;
    node->metrics.withdrawals_lost++;
    withdraw_remove(node, oldest != NULL ? oldest : x->withdrawals);
}

void withdraw_post(struct node *node, const struct withdrawal *what, const char *address, uint32_t uid)
{
    struct exchange *x = &node->exchange;
    struct withdrawal_entry *entry = calloc(1, sizeof(*entry) + strlen(address) + 1);
    if (entry == NULL) {
        node->metrics.withdrawals_lost++;
        return;
    }
    make_room(node, address);
    entry->what = *what;
    entry->expires = uv_now(node->loop) + WITHDRAWAL_MS;
    entry->uid = uid;
    strcpy(entry->address, address);
    DL_APPEND(x->withdrawals, entry);
    x->withdrawal_count++;
    x->withdrew = true;
}

void withdraw_cancel(struct node *node, const struct name *source, const struct name *sink, bool from_sink)
{
    struct withdrawal_entry *entry, *next;
    DL_FOREACH_SAFE (node->exchange.withdrawals, entry, next)
        if (entry->what.from_sink == from_sink && memcmp(&entry->what.source, source, sizeof(*source)) == 0 &&
            memcmp(&entry->what.sink, sink, sizeof(*sink)) == 0)
            withdraw_remove(node, entry);
}

void withdraw_forget_peer(struct node *node, const struct peer *peer)
{
    struct withdrawal_entry *entry;
    DL_FOREACH (node->exchange.withdrawals, entry)
        if (entry->sent_to == peer)
            entry->sent_to = NULL;
}

void withdraw_expire(struct node *node, uint64_t now)
{
    struct withdrawal_entry *entry, *next;
    DL_FOREACH_SAFE (node->exchange.withdrawals, entry, next)
        if (now >= entry->expires)
            withdraw_remove(node, entry);
}

void withdraw_fini(struct node *node)
{
    while (node->exchange.withdrawals != NULL)
        withdraw_remove(node, node->exchange.withdrawals);
}

struct message withdraw_message(const struct withdrawal *what)
{
    struct message message = {.type = MESSAGE_WITHDRAW};
    const struct name *source = &what->source, *sink = &what->sink;
    message.withdraw =
        (struct message_withdraw){.source_pool = source->pool,
                                  .sink_pool = sink->pool,
                                  .source_key = view_of(source->key, source->size),
                                  .sink_key = view_of(sink->key, sink->size),
                                  .tenant = view_of(source->tenant, strnlen(source->tenant, sizeof(source->tenant))),
                                  .from_sink = what->from_sink,
                                  .reason = (uint32_t)what->reason};
    return message;
}

enum strait_reason withdraw_reason(enum strait_reason reason)
{
    switch (reason) {
    case STRAIT_REASON_BUSY: /* what was busy there says nothing about this side's pages */
    case STRAIT_REASON_NO_MEMORY:
    case STRAIT_REASON_TIMEOUT:
    case STRAIT_REASON_LEASE_EXPIRED:
        return STRAIT_REASON_PEER_ABORT;
    default:
        return leg_peer_reason(reason);
    }
}

const char *withdraw_text(enum strait_reason reason)
{
    switch (reason) {
    case STRAIT_REASON_ABORTED:
        return "the other side was aborted";
    case STRAIT_REASON_BUSY:
        return "the other side was refused: its name or its pages are in use";
    case STRAIT_REASON_NO_MEMORY:
        return "the other side was refused: a limit of its daemon or its tenant";
    case STRAIT_REASON_GEOMETRY:
        return "the other side was refused: its pages do not fit";
    case STRAIT_REASON_NOT_SERVED:
        return "the other side does not serve all of these pages, or no longer does";
    case STRAIT_REASON_TIMEOUT:
        return "the other side's deadline has passed";
    case STRAIT_REASON_LEASE_EXPIRED:
        return "the other side's lease has expired";
    case STRAIT_REASON_LOCAL:
        return "the other side's daemon stops, or its client is gone";
    default:
        return "the other side has failed";
    }
}
