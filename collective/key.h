/* How a communicator is found among all that are being made, and where its ranks meet. Both follow from how it was
 * made, so nobody has to be told of them. */
#ifndef STRAIT_COLLECTIVE_KEY_H
#define STRAIT_COLLECTIVE_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collective/address.h"

enum { COLL_SECRET_BYTES = 16 };

/* A process that can be asked (hall.h), and the secret that proves that the asker was told of it. All zero: none. */
struct coll_rdv_endpoint {
    struct address address;
    uint8_t secret[COLL_SECRET_BYTES];
};

/* The same on all ranks of a communicator. The words differ from those of any other one made meanwhile; all zero:
 * none. */
struct coll_key {
    uint64_t words[2];
    struct coll_rdv_endpoint place;
};

struct coll_key coll_key_of(const void *bytes, size_t size);
/* It has its parent's place. */
struct coll_key coll_key_child(const struct coll_key *parent, uint64_t way, uint64_t number, int64_t color);
struct coll_key coll_key_draw(void); /* random, for ranks that one call makes */
bool coll_key_is_none(const struct coll_key *key);
bool coll_key_has_place(const struct coll_key *key);

#endif
