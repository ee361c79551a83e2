/* Where ranks meet travels with what their communicator is made by: NCCL uses the first bytes of a unique id, and
 * leaves the others zero. In these the process that asks for one puts a card, with its own place (hall.h), which it
 * opens then. An id that has something there already stays as it is. Any thread. */
#ifndef STRAIT_COLLECTIVE_CARD_H
#define STRAIT_COLLECTIVE_CARD_H

#include "collective/key.h"
#include "collective/nccl_types.h"

void coll_card_put(coll_id *id);
/* None: *place is all zero. */
void coll_card_read(const coll_id *id, struct coll_place *place);

/* Around fork; the child, before it unlocks, has no place any more, and opens its own. */
void coll_card_lock(void);
void coll_card_unlock(void);
void coll_card_clear(void);

#endif
