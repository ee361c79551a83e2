/* The settings in the environment, read once per process, when NCCL is first called.
 *
 *   STRAIT_COLL        auto (the default): what is faster so is compressed; compress: all that can be; raw (or off):
 *                      nothing is, which switches the library off but for its counts
 *   STRAIT_COLL_ORDER  fp32 (the default): sums are FP32, by rank, rounded once; nccl-ring: as NCCL's ring adds
 *   STRAIT_COLL_PAIRS  0: sends and receives are not compressed
 *   STRAIT_COLL_PARTS  1: an all_reduce of two ranks goes in parts, as that of more does
 *   STRAIT_COLL_PIECES  how operations outside of groups overlap coding with moving. auto (the default): large ones
 * leave a head and a tail uncompressed; HEAD+TAIL: all do, of so many KiB; 2 to 8: so many messages; 1: no overlap
 *   STRAIT_COLL_PRINT  1: the report goes to stderr when a communicator is destroyed and when the process ends
 *   STRAIT_COLL_TABLE  from which size on operations are compressed, by operation and type, whatever was measured
 *                      (sizes.h)
 *   STRAIT_COLL_WAIT   how long ranks wait for the others of a new communicator to join: seconds, or as in `200ms`; 5
 *   STRAIT_COLL_MEET   where they join. auto (the default): by TCP at the process that made the communicator's id, if
 *                      it can listen, else in host memory; host: in host memory
 *   STRAIT_COLL_NCCL   the path of NCCL's library */
#ifndef STRAIT_COLLECTIVE_SETTINGS_H
#define STRAIT_COLLECTIVE_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "collective/sizes.h"

struct coll_pieces {
    uint32_t count; /* number of messages; 0: one, with an uncompressed head and tail */
    uint32_t given; /* not 0: `head` and `tail` are given, in KiB; else they follow from the size */
    uint32_t head, tail;
};

struct coll_settings {
    bool raw, forced, ring, pairs, parts, print;
    bool shm_only; /* ranks never join by TCP */
    unsigned wait_ms;
    struct coll_pieces pieces;
    struct coll_sizes table;
    const char *library; /* path of NCCL's library; NULL: not given */
};

/* Says on stderr which values are not understood, which then count as not set, and which names of variables
 * (STRAIT_COLL_...) are unknown. */
struct coll_settings coll_settings_read(void);

/* Prints a line on stderr. */
__attribute__((format(printf, 1, 2))) void coll_say(const char *format, ...);

#endif
