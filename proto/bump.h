/* The memory of one message: allocated piece by piece, released at once, and limited by a budget, because what a peer
 * sends decides how much a parser allocates: two bytes can ask for a hundred. */
#ifndef STRAIT_PROTO_BUMP_H
#define STRAIT_PROTO_BUMP_H

#include <stdbool.h>
#include <stddef.h>

struct bump_block;

struct bump {
    struct bump_block *blocks;
    unsigned char *at;  /* free bytes in the latest block */
    size_t room;        /* how many */
    size_t block_bytes; /* of the next block: blocks grow */
    size_t left;        /* of the budget */
    bool out_of_memory; /* malloc failed; a NULL without this means that the budget is spent */
};

void bump_init(struct bump *bump, size_t budget);
void bump_fini(struct bump *bump);

/* Aligned for any type, not zeroed; NULL when there is no memory or budget. */
void *bump_alloc(struct bump *bump, size_t size);

/* `count` times `size` zeroed bytes. */
void *bump_zeroed(struct bump *bump, size_t count, size_t size);

#endif
