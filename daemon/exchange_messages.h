/* Shared by the exchange's files that deal with peers. */
#ifndef STRAIT_DAEMON_EXCHANGE_MESSAGES_H
#define STRAIT_DAEMON_EXCHANGE_MESSAGES_H

#include "daemon/exchange.h"

/* Callback of the peers. False: the peer broke the protocol. */
bool exchange_message(void *owner, struct peer *peer, const struct message *message);

/* The source leg that a message of this peer is about; NULL: there is none, or it has another epoch. */
struct source *exchange_find_source(struct node *node, struct peer *peer, uint64_t leg, const struct epoch *epoch);

/* match.c: the two messages that look for the other side of a leg. */
bool exchange_request(struct node *node, struct peer *peer, const struct message_request *r);
bool exchange_announce(struct node *node, struct peer *peer, const struct message_announce *a);

/* Tells the peer that a leg has failed, or never began. */
void exchange_send_end(struct peer *peer, uint64_t leg, const struct epoch *epoch, bool from_sink,
                       enum strait_reason reason);

/* Gives a grant back that no leg of ours holds. */
void exchange_send_released(struct peer *peer, const struct message_grant_id *id);

#endif
