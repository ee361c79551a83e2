/* How large messages are, and where their parts lie: a function of count, type and level alone.
 *
 *   head | tail: what is left behind whole pages, as a chunk of one page | main part: a chunk of whole pages
 *
 * The tail has room for whatever it becomes, the main part for what the level gives it, so a message that fits is sent
 * with as many bytes as one that is shorter. */
#ifndef STRAIT_COLLECTIVE_ENGINE_SHAPE_H
#define STRAIT_COLLECTIVE_ENGINE_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/codec.h>

#include "collective/call.h"

enum { SHAPE_PAGE = 32768 };

struct shape {
    enum strait_element element;
    uint64_t raw;                  /* bytes of the values */
    uint32_t pages, tail_bytes;    /* raw */
    uint64_t tail_at, main_at;     /* in a message; 0: there is none */
    uint64_t tail_room, main_room; /* on the way */
    uint64_t main_bound;           /* of what the encoder may write */
    uint64_t message, encoded;     /* bytes on the way; of room for the encoder. Multiples of 128 */
};

/* False: it cannot be compressed, or gains nothing by it. */
bool shape_of(struct shape *shape, coll_type type, uint64_t count, unsigned level);

/* The parts of a message as pages at `raw`: of 0 to 2, in the order of the message. */
struct shape_part {
    struct strait_region region;
    uint64_t at, room, bound;
};
unsigned shape_parts(const struct shape *shape, void *raw, struct shape_part parts[2]);

/* List of a part, which has to stay where it is. */
struct strait_pages shape_pages(const struct shape_part *part);

#endif
