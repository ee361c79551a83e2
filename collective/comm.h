#ifndef STRAIT_COLLECTIVE_COMM_H
#define STRAIT_COLLECTIVE_COMM_H

#include <pthread.h>
#include <stdlib.h>

#include "collective/call.h"
#include "collective/nccl.h"
#include "collective/rendezvous.h"

/* What is known of communicators, and what was counted for each and for the process. Any thread; one lock, held for a
 * few instructions at a time and never while NCCL is called. */

enum coll_route {
    COLL_ROUTE_NCCL,     /* NCCL does it at once, with the arguments unchanged */
    COLL_ROUTE_DEFER,    /* NCCL does it when its group ends (group.h) */
    COLL_ROUTE_COMPRESS, /* the engine compresses what NCCL moves (engine.h) */
    COLL_ROUTE_REJECT,   /* another thread has ended its communicator meanwhile */
};

struct coll_ccomm;
struct coll_comm_entry;
struct coll_lazy_join;

/* What is known of a communicator, the same on all of its ranks. */
struct coll_comm_info {
    int rank, ranks;                  /* -1: not known */
    int memory;                       /* number of registered buffers and windows */
    bool pinned;                      /* the program has pinned it to raw */
    bool ending;                      /* finalized or revoked */
    struct coll_ccomm *member;        /* NULL: it stays raw */
    const char *why;                  /* why it stays raw; static */
    struct coll_lazy_join *lazy_join; /* not NULL: it does not block and has not joined yet */
    struct coll_comm_entry *held;     /* of coll_track_hold */
};

struct coll_decision {
    enum coll_route route;
    const char *reason; /* static */
    uint64_t wire;      /* bytes that NCCL was handed, if not those of the call */
};

struct coll_count {
    uint64_t calls, bytes;              /* that NCCL accepted */
    uint64_t grouped, captured, failed; /* failed: refused by NCCL at once, and not in `calls` */
    uint64_t compressed;                /* how many of the calls */
    uint64_t wire;                      /* bytes that NCCL was handed for them */
    uint64_t plain;                     /* bytes that it would have been handed without us */
    const char *reason;                 /* of the last decision */
};

struct coll_counts {
    struct coll_count of[COLL_OPERATIONS][COLL_TYPES];
};

/* State of a communicator that has not joined yet (join.c). */
struct coll_lazy_join {
    pthread_mutex_t lock; /* of all fields below; also held while it joins */
    struct coll_key key;
    struct coll_rdv *rdv; /* NULL: its ranks are not known yet */
    uint32_t raw_ops;     /* collectives that went raw */
    bool paired, over;
};

/* A communicator is ready, or will be; whatever was known of one at this address is forgotten. ranks -1: not known. */
void coll_comm_insert(coll_comm comm, int rank, int ranks);
/* It ends: its address may become another one's. */
void coll_comm_remove(coll_comm comm);
/* Likewise, for a caller that still uses the communicator and holds the result; NULL: it was not known. */
struct coll_comm_entry *coll_comm_detach(coll_comm comm);
/* False: the communicator is not known, and *standing is that of one that nothing is known of. */
bool coll_comm_lookup(coll_comm comm, struct coll_comm_info *info);

/* Likewise, for a call that is going to use the member, or to join: what `standing->held` refers to then survives the
 * communicator, which another thread may abort meanwhile. held is NULL if there is nothing to release. Returns false as
 * above. */
bool coll_comm_get(coll_comm comm, struct coll_comm_info *info);
/* The last holder, after the communicator has gone, gets the member, and has to make it leave; others get NULL. */
struct coll_ccomm *coll_comm_put(struct coll_comm_entry *held);
struct coll_ccomm *coll_comm_member(const struct coll_comm_entry *held); /* NULL also for NULL */
bool coll_comm_is_removed(const struct coll_comm_entry *held);
bool coll_comm_is_closing(const struct coll_comm_entry *held); /* gone, finalized or revoked */
/* These do nothing for a communicator that is not known. */
void coll_comm_set_ranks(coll_comm comm, int rank, int ranks);
void coll_comm_set_ending(coll_comm comm);
void coll_comm_add_memory(coll_comm comm, int change);
/* Whether memory has ever been registered, with any communicator: those of one family share what NCCL knows of it. */
bool coll_comm_any_memory(void);
/* member NULL: it stays raw, because of `why`, which is static. */
void coll_comm_set_member(coll_comm comm, struct coll_ccomm *member, const char *why);
/* Likewise for one that is held, after it has joined. */
void coll_comm_end_lazy_join(struct coll_comm_entry *held, struct coll_ccomm *member, const char *why);
/* It joins later: makes the state of that, which is freed with the communicator's entry. Without memory it stays raw.
 */
void coll_comm_begin_lazy_join(coll_comm comm, const struct coll_key *key, const char *why);
/* The key of a communicator, and keys of its children, numbered in the order of the calls that make them, which is the
 * same on all ranks; splits and shrinks apart, as ranks that a shrink leaves out do not call it. */
void coll_comm_set_key(coll_comm comm, const struct coll_key *key);
enum coll_comm_origin { COLL_BY_SPLIT, COLL_BY_SHRINK, COLL_ORIGINS };
struct coll_key coll_comm_child_key(coll_comm comm, enum coll_comm_origin origin, int64_t color);
bool coll_comm_pin(coll_comm comm, bool raw);
void coll_comm_pin_all(bool raw); /* including those to come */

/* Counts a call that is over, as far as the caller of NCCL can see. */
void coll_comm_count(const struct coll_call *call, const struct coll_decision *decision, coll_result result);

/* Copies of what was counted; comm NULL: for the process. False: not known. */
bool coll_comm_counts(coll_comm comm, struct coll_comm_info *info, struct coll_counts *counts);

bool coll_comm_any_counts(void); /* something was counted */

/* Around fork; in the child, coll_track_clear before unlocking sets all counts to zero. */
void coll_comm_lock(void);
void coll_comm_unlock(void);
void coll_comm_clear_counts(void);

/* NCCL for callers that cannot go on before their work is on a stream. With communicators that do not block, NCCL may
 * return that a call is in progress; these functions then ask until it is not. Groups, and what the library puts into
 * them, are wrapped so; all else is NCCL's own. */

/* The functions named pncclX. Any thread. */
const struct coll_table *coll_nccl_blocking(void);

/* Around ncclCommGetAsyncError, wherever it is called: it completes what was in progress, and NCCL does not support two
 * threads doing so at once, as a watchdog and a waiting thread might. Held for no longer than that call. */
void coll_nccl_query_lock(void);
void coll_nccl_query_unlock(void);

/* Returns `result` or, if that is in progress, its outcome on `comm`: an error also if another thread has ended the
 * communicator meanwhile. */
coll_result coll_nccl_wait(coll_comm comm, coll_result result);

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

/* `items` with room for one more than `count`, maybe elsewhere. Returns NULL, and changes nothing, if there is no
 * memory. */
static inline void *coll_grown(void *items, unsigned count, unsigned *capacity, size_t size)
{
    const unsigned more = *capacity == 0 ? 8 : 2 * *capacity;
    if (count < *capacity)
        return items;
    items = realloc(items, more * size);
    *capacity = items != NULL ? more : *capacity;
    return items;
}

#endif
