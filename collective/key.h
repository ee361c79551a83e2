/* What a communicator is found by among all that are made meanwhile, and where its ranks meet: both follow from how it
 * was made, so that nobody has to be told of them. */
#ifndef STRAIT_COLLECTIVE_KEY_H
#define STRAIT_COLLECTIVE_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collective/address.h"

enum { COLL_SECRET_BYTES = 16 };

/* A process that can be asked (hall.h), and what shows that who asks was told of it. All zero: none. */
struct coll_place {
    struct address address;
    uint8_t secret[COLL_SECRET_BYTES];
};

/* The same on all ranks of a communicator. Words of no other one's that is made meanwhile; all zero: none. */
struct coll_key {
    uint64_t words[2];
    struct coll_place place;
};

struct coll_key coll_key_of(const void *bytes, size_t size);
/* At its parent's place. */
struct coll_key coll_key_child(const struct coll_key *parent, uint64_t way, uint64_t number, int64_t color);
struct coll_key coll_key_draw(void); /* for ranks of one call */
bool coll_key_is_none(const struct coll_key *key);
bool coll_key_has_place(const struct coll_key *key);

#endif
