/* The place where ranks meet travels in the unique id: NCCL uses only its first bytes and leaves the others zero. There
 * the process that asks for an id puts a card with its own place (hall.h), which it opens then. An id that already has
 * something there stays unchanged. Any thread. */
#ifndef STRAIT_COLLECTIVE_CARD_H
#define STRAIT_COLLECTIVE_CARD_H

#include "collective/key.h"
#include "collective/nccl_types.h"

void coll_card_put(coll_id *id);
/* If there is none, *place is all zero. */
void coll_card_read(const coll_id *id, struct coll_place *place);

/* Around fork. In the child, coll_card_clear before unlocking forgets the parent's place; the child will open its
 * own. */
void coll_card_lock(void);
void coll_card_unlock(void);
void coll_card_clear(void);

#endif
