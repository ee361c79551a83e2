/* Pairing of offers and expectations: when a client starts one, when REQUEST or ANNOUNCE comes from a peer, and when
 * the other side of a pending one comes. */
#ifndef STRAIT_DAEMON_MATCH_H
#define STRAIT_DAEMON_MATCH_H

#include "daemon/expectation.h"
#include "daemon/offer.h"
#include "daemon/pending.h"
#include "daemon/source.h"
#include "daemon/withdraw.h"

/* A client starts its request: adds a leg to one source, or looks for one more expectation, at an address or under this
 * daemon. `consumers`: of the offer, as the client says; 0: it does not. */
void match_start_expectation(struct expectation *expectation, const struct name *source, const char *address,
                             bool local, uint32_t consumers);
void match_start_offer(struct offer *offer, const struct name *sink, const char *address, bool local);
/* Its pages are known: pairs it with those that wait for it. */
void match_expectation(struct expectation *expectation);
void match_offer(struct offer *offer);

/* The pool of that id may be read now: begins the reads that wait for it. */
void match_served(struct node *node, const struct pool_id *id);

/* Messages of peers. False: the peer broke the protocol. */
bool match_request(struct node *node, struct peer *peer, const struct message_request *message);
/* The peer has told how that pool of its clients is laid out. */
void match_described(struct node *node, struct peer *peer, const struct name *pool);
bool match_announce(struct node *node, struct peer *peer, const struct message_announce *message);
void match_end(struct node *node, struct peer *peer,
               const struct message_end *end); /* the leg is not wanted any more */
void match_withdraw_message(struct node *node, struct peer *peer, const struct message_withdraw *message);
/* One side of a pair has ended, over that connection (NULL: under this daemon): tells the other side, now or when it
 * comes. */
void match_withdraw(struct node *node, struct peer *peer, const struct withdrawal *what);
/* A request of this node has failed, or was never admitted: refuses those that wait for it. */
void match_refuse(struct node *node, const struct name *name, bool is_offer, enum strait_reason reason);
/* Refuses all that wait for requests that cannot come any more. */
void match_drain(struct node *node);

/* The source leg that a message of this peer is about; NULL: there is none, or it has another epoch. */
struct source *match_source(struct node *node, struct peer *peer, uint64_t leg, const struct epoch *epoch);
/* Tells the peer that a leg has failed, or never began. */
void match_send_end(struct peer *peer, uint64_t leg, const struct epoch *epoch, bool from_sink,
                    enum strait_reason reason);
/* Gives a grant back that no leg of ours holds. */
void match_send_released(struct peer *peer, const struct message_grant_id *id);

void match_expire(struct node *node, uint64_t now); /* the loop's clock */

#endif
