/* What the environment asks for, read once per process, when NCCL is first called.
 *
 *   STRAIT_COLL        raw (the default): nothing is compressed, auto: what is faster so, compress: all that can be,
 *                      off: calls are passed on and not looked at
 *   STRAIT_COLL_ORDER  fp32 (the default): sums are FP32, by rank, rounded once; nccl-ring: as NCCL's ring adds
 *   STRAIT_COLL_PAIRS  0: sends and receives are not compressed
 *   STRAIT_COLL_PARTS  1: all_reduce of two ranks goes in parts, as that of more does
 *   STRAIT_COLL_PIECES  how operations that are in no group overlap coding with moving. auto (the default): large ones
 *                      have a head and a tail that are left as they are, HEAD+TAIL: all have, of so many KiB; 2 to 8:
 *                      so many messages, 1: not at all
 *   STRAIT_COLL_WIRE   nccl (the default), peer: ranks that can reach each other's memory do that, auto: where it is
 *                      faster
 *   STRAIT_COLL_PEER   how they do it, for measuring (engine/peer_plan.h)
 *   STRAIT_COLL_PRINT  1: the report goes to stderr when a communicator is destroyed and when the process ends
 *   STRAIT_COLL_WAIT   seconds that ranks wait for the others of a new communicator to say that they compress: 5
 *   STRAIT_COLL_MEET   where they say it. auto (the default): at the process that the communicator's id is of, by TCP,
 *                      when it has something to listen on, else in the host's memory; host: there, nccl: they vote by
 *                      NCCL
 *   STRAIT_COLL_NCCL   the path of NCCL's library */
#ifndef STRAIT_COLLECTIVE_SETTINGS_H
#define STRAIT_COLLECTIVE_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

enum coll_wire { COLL_WIRE_NCCL, COLL_WIRE_AUTO, COLL_WIRE_PEER };

enum coll_meet { COLL_MEET_AUTO, COLL_MEET_HOST, COLL_MEET_NCCL };

struct coll_pieces {
    uint32_t count; /* of messages; 0: one, and what is before and behind it is left as it is */
    uint32_t given; /* not 0: that is `head` and `tail`, KiB; else it follows from the size */
    uint32_t head, tail;
};

struct coll_settings {
    bool off, raw, forced, ring, pairs, parts, print;
    unsigned wait_ms;
    struct coll_pieces pieces;
    enum coll_wire wire;
    enum coll_meet meet;
    const char *peer;    /* tuning of that wire; NULL: as it is */
    const char *library; /* NULL: not named */
};

/* Says on stderr which values it does not understand, which are then as if they were not set, and which names of
 * variables (STRAIT_COLL_...) it does not know. */
struct coll_settings coll_settings_read(void);

/* A line on stderr. */
__attribute__((format(printf, 1, 2))) void coll_say(const char *format, ...);

#endif
