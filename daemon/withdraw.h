/* Withdrawals: requests of this node's clients that ended before they met their other side, and that side's daemon does
 * not know it yet. They wait for its connection, as long as they matter. */
#ifndef STRAIT_DAEMON_WITHDRAW_H
#define STRAIT_DAEMON_WITHDRAW_H

#include "daemon/request.h"

struct withdrawal {
    struct name source, sink; /* the pair; one of them has ended */
    bool from_sink;           /* it is the expectation, otherwise the offer */
    enum strait_reason reason;
};

/* A withdrawal that the other side's daemon may not know yet. */
struct withdrawal_entry {
    struct withdrawal what;
    uint64_t expires;     /* loop's clock */
    struct peer *sent_to; /* the connection by which it was sent; NULL: none, or that is down */
    uint64_t mark;        /* of that connection: once it is handled, the other side knows */
    struct withdrawal_entry *prev, *next;
    uint32_t uid;   /* of the client whose request has ended */
    char address[]; /* of the other side's daemon; "": it is this one */
};

/* Queues it; exchange.c delivers it. Without memory or room the other side waits for its lease or deadline. */
void withdraw_post(struct node *node, const struct withdrawal *what, const char *address, uint32_t uid);
/* The pair is tried again: what ended before is not what the other side waits for. */
void withdraw_cancel(struct node *node, const struct name *source, const struct name *sink, bool from_sink);
/* The connection is down: what was sent by it, and perhaps not handled, is sent again. */
void withdraw_forget_peer(struct node *node, const struct peer *peer);
void withdraw_remove(struct node *node, struct withdrawal_entry *entry);
void withdraw_expire(struct node *node, uint64_t now); /* the loop's clock */
void withdraw_fini(struct node *node);

struct message withdraw_message(const struct withdrawal *what); /* borrows from it */

/* How the other side's end looks from here, and in words; static. */
enum strait_reason withdraw_reason(enum strait_reason reason);
const char *withdraw_text(enum strait_reason reason);

#endif
