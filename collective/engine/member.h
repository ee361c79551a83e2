/* A communicator that is compressed, as one rank of it sees it. */
#ifndef STRAIT_COLLECTIVE_ENGINE_MEMBER_H
#define STRAIT_COLLECTIVE_ENGINE_MEMBER_H

#include <pthread.h>
#include <stdbool.h>

#include "collective/engine.h"
#include "collective/engine/gpu.h"
#include "collective/engine/share.h"
#include "collective/engine/staging.h"

enum { MEMBER_TYPES = 3, MEMBER_OPERATIONS = 5 };

/* What was found of the link between ranks, the same on all of them: a message of S bytes to each other rank takes
 * `start` + S x `per_byte` seconds; one that does not fit S x `repair` more. */
struct link_cost {
    double start, per_byte, repair;
};

/* With what it is found; made before ranks tell each other whether they are able. */
struct link_probe {
    uint8_t *memory; /* a message, and one of each rank */
    gpu_event begin, end;
    double seconds[3]; /* of a small message, a large one, and one that does not fit */
};

struct coll_member {
    struct coll_engine_host host;
    const struct gpu_ops *gpu;
    const struct strait_codec *codec;
    coll_comm comm;
    int rank, ranks, device;
    unsigned multiprocessors;
    bool forced; /* compressed whatever it costs */
    struct link_cost cost;
    struct link_probe probe;

    struct staging_list stagings;
    struct peer_wire *peer; /* NULL: there is none; why */
    char no_peer[112];
    struct watch *watch; /* of the others' processes (watch.h) */

    struct share share;
    struct mail *mail;
    struct ring_ends *ends;
    struct tally *tallies; /* by key */

    gpu_event last; /* of all that was asked for (order.h) */

    uint64_t *issued; /* operations, by key. Under the lock of share.kinds, as is `heard` */
    uint64_t heard;   /* reports of the mail that were read */

    pthread_mutex_t lock; /* of `failed` */
    int failed;           /* a coll_result */
    bool aborted;
    coll_stream stream;       /* of the beginning */
    struct coll_member *next; /* of those that could not be freed */
};

/* Of a phase of a call; of sends and receives by peer. */
unsigned member_key(const struct coll_member *member, const struct coll_call *call, unsigned phase);
unsigned member_keys(const struct coll_member *member);
coll_type member_key_type(unsigned key);

/* The first failure is kept, and said on stderr. */
void member_fail(struct coll_member *member, coll_result result, const char *why);

/* What of ours waits on its GPU waits no longer: within a moment, and for good. Any thread, at any time until the
 * member leaves; nothing is called but memory is written. */
void member_give_up(struct coll_member *member);

/* What kernels found to be wrong is a failure. */
void member_look(struct coll_member *member);

/* measure.c: makes the probe, on the member's GPU; sets `cost`, which is collective; ends the probe, made or not. */
bool measure_prepare(struct coll_member *member);
bool measure_links(struct coll_member *const members[], unsigned count);
/* Bytes of its large messages. */
size_t measure_large(const struct coll_member *member);

/* measure_rings.c, on the member's GPU: moves a message of so many bytes from each rank to each other one as what does
 * not fit is moved, between the probe's events; for the n-th time, from 0 on. When that was done so many times, slots
 * are counted on from there; false: it went wrong. */
size_t measure_repaired(const struct coll_member *member);
bool measure_repair(struct coll_member *member, unsigned turn);
bool measure_repair_end(struct coll_member *member, unsigned turns);
void measure_end(struct coll_member *member);

#endif
