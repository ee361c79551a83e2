/* How large messages are, and where their parts lie: a function of count, type and level alone.
 *
 *   head | tail: the values behind whole pages, as a chunk of one page | main part: a chunk of whole pages
 *
 * The tail has room for any result, the main part for what the level gives it. All messages that fit are sent with the
 * same number of bytes, even if they encode to fewer. */
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
    uint64_t tail_room, main_room; /* bytes on the wire */
    uint64_t main_bound;           /* the most that the encoder may write */
    uint64_t message, encoded;     /* bytes on the wire; bytes of room for the encoder. Multiples of 128 */
};

/* False: it cannot be compressed, or would gain nothing. */
bool shape_of(struct shape *shape, coll_type type, uint64_t count, unsigned level);

/* The parts of a message whose values are at `raw`: 0 to 2, in the order of the message. */
struct shape_part {
    struct strait_region region;
    uint64_t at, room, bound;
};
unsigned shape_parts(const struct shape *shape, void *raw, struct shape_part parts[2]);

/* The pages of a part, which has to stay where it is. */
struct strait_pages shape_pages(const struct shape_part *part);

#endif
