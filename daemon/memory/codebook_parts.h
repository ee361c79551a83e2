/* A codebook set that comes from a peer in parts, and is named by its id. */
#ifndef STRAIT_DAEMON_MEMORY_CODEBOOK_PARTS_H
#define STRAIT_DAEMON_MEMORY_CODEBOOK_PARTS_H

#include <strait/codec.h>

#include "proto/message.h"

enum codebook_parts_state {
    CODEBOOK_PARTS_MORE, /* the part at `got` is next */
    CODEBOOK_PARTS_ALL,
    CODEBOOK_PARTS_GONE, /* the peer has not got it any more */
    CODEBOOK_PARTS_TOO_LARGE,
    CODEBOOK_PARTS_WRONG, /* not the part that was asked for */
    CODEBOOK_PARTS_NO_MEMORY,
};

/* Zero but for the id at first. */
struct codebook_parts {
    uint8_t id[STRAIT_CODEBOOK_ID_BYTES];
    uint8_t *bytes; /* `size` of them; NULL: none has come */
    uint32_t size, got;
};

/* Adds a part, which message_unpack has checked. Memory is taken for MESSAGE_SET_BYTES_MAX bytes at most. After
 * anything but MORE only the calls below are allowed. */
enum codebook_parts_state codebook_parts_take(struct codebook_parts *parts, const struct message_codebook_part *part);
/* Reads the set when ALL have come; any thread. On OK the caller owns *codebook. ERR_CODEBOOK: its id, computed from
 * its tables, is another; ERR_NO_MEMORY; and the errors of strait_codebook_parse. */
enum strait_status codebook_parts_read(const struct codebook_parts *parts, struct strait_codebook **codebook);
void codebook_parts_fini(struct codebook_parts *parts);

#endif
