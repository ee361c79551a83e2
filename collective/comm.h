/* Registry of communicators: what is known of each one, what was counted for each and for the process, and the
 * functions of NCCL that wait for communicators that do not block. Any thread; one lock, held for a few instructions at
 * a time and never while NCCL is called. */
#ifndef STRAIT_COLLECTIVE_COMM_H
#define STRAIT_COLLECTIVE_COMM_H

#include <pthread.h>
#include <stdlib.h>

#include "collective/api.h"
#include "collective/engine/plan.h"
#include "collective/nccl.h"
#include "collective/rendezvous.h"

enum coll_route {
    COLL_ROUTE_NCCL,     /* NCCL does it at once, with the arguments unchanged */
    COLL_ROUTE_DEFER,    /* NCCL does it when its group ends (group.h) */
    COLL_ROUTE_COMPRESS, /* the engine compresses what NCCL moves (engine.h) */
    COLL_ROUTE_TIMED,    /* NCCL does it at once, and the engine times that */
    COLL_ROUTE_REJECT,   /* another thread has ended its communicator meanwhile */
};

struct coll_ccomm;
struct coll_comm_entry;
struct coll_lazy_join;

/* Properties of a communicator that are the same on all of its ranks. */
struct coll_comm_info {
    int rank, ranks;                  /* -1: not known */
    int memory;                       /* number of registered buffers and windows */
    bool pinned;                      /* the program has pinned it to raw */
    bool ending;                      /* finalized or revoked */
    struct coll_ccomm *ccomm;         /* NULL: it stays raw */
    const char *why;                  /* why it stays raw; static */
    struct coll_lazy_join *lazy_join; /* not NULL: not blocking, and not joined yet */
    struct coll_comm_entry *held;     /* of coll_comm_get */
};

struct coll_decision {
    enum coll_route route;
    const char *reason;  /* static */
    uint64_t wire;       /* bytes that NCCL was handed, if not those of the call */
    uint64_t values;     /* and of the values that they stand for */
    bool probe;          /* it was sent with room for any result */
    struct op_cost cost; /* by the links as measured; 0: not measured */
};

/* Calls that went raw for one reason. */
struct coll_raw_count {
    const char *reason; /* static; NULL: none */
    uint64_t calls, bytes;
};
enum { COLL_REASONS_MAX = 8 /* the last one stands for all others */ };
#define COLL_OTHER_REASONS "other reasons"

struct coll_count {
    uint64_t calls, bytes;              /* that NCCL accepted */
    uint64_t grouped, captured, failed; /* failed: refused by NCCL at once, and not in `calls` */
    uint64_t compressed;                /* how many of the calls */
    uint64_t wire;                      /* bytes that NCCL was handed for them */
    uint64_t values;                    /* and of the values that they stand for */
    const char *reason;                 /* of the last decision */
    uint64_t probes;                    /* of those compressed */
    struct op_cost cost;                /* sums over those compressed */
    struct coll_raw_count raw[COLL_REASONS_MAX];
};

struct coll_counts {
    struct coll_count of[COLL_OPERATIONS][COLL_TYPES];
};

/* State of a communicator that does not block and has not joined yet (join.h). */
struct coll_lazy_join {
    pthread_mutex_t lock; /* of all fields below; held while the communicator joins */
    struct coll_key key;
    struct coll_rdv *rdv; /* NULL: the number of ranks is not known yet */
    uint32_t raw_ops;     /* collectives that went raw */
    bool paired, over;
};

/* Inserts a communicator that is ready or being made, in place of an entry of the same address. ranks -1: not known. */
void coll_comm_insert(coll_comm comm, int rank, int ranks);
/* Removes a communicator before NCCL ends it, since its address may then become another one's. */
void coll_comm_remove(coll_comm comm);
/* Removes a communicator whose entry the caller goes on to use and has to release. NULL: not known. */
struct coll_comm_entry *coll_comm_detach(coll_comm comm);
/* False: the communicator is not known, and *info is that of an unknown one. */
bool coll_comm_lookup(coll_comm comm, struct coll_comm_info *info);

/* As coll_comm_lookup, for a call that uses the ccomm or joins: info->held then keeps the entry and the ccomm
 * although another thread may abort the communicator meanwhile. held NULL: there is nothing to release. */
bool coll_comm_get(coll_comm comm, struct coll_comm_info *info);
/* Gives back a held entry. The last holder of a removed one gets the ccomm, and has to make it leave; others get NULL.
 */
struct coll_ccomm *coll_comm_put(struct coll_comm_entry *held);
struct coll_ccomm *coll_comm_ccomm(const struct coll_comm_entry *held); /* NULL also for NULL */
bool coll_comm_is_removed(const struct coll_comm_entry *held);
bool coll_comm_is_closing(const struct coll_comm_entry *held); /* removed, finalized or revoked */
/* The following have no effect on a communicator that is not known. */
void coll_comm_set_ranks(coll_comm comm, int rank, int ranks);
void coll_comm_set_ending(coll_comm comm);
void coll_comm_add_memory(coll_comm comm, int change);
/* Whether memory was ever registered with any communicator: NCCL shares registrations within a family of them. */
bool coll_comm_any_memory(void);
/* ccomm NULL: the communicator stays raw because of `why`, a static text. */
void coll_comm_set_ccomm(coll_comm comm, struct coll_ccomm *ccomm, const char *why);
/* The same for the held entry of a communicator that has joined lazily. */
void coll_comm_end_lazy_join(struct coll_comm_entry *held, struct coll_ccomm *ccomm, const char *why);
/* Makes the state of a lazy join, which is freed with the entry. Without memory the communicator stays raw. */
void coll_comm_begin_lazy_join(coll_comm comm, const struct coll_key *key, const char *why);
/* Keys of a communicator and of its children. Children are numbered in the order of the calls that make them, which is
 * the same on all ranks; splits, shrinks and growths by themselves, as ranks that a shrink leaves out do not call it.
 */
void coll_comm_set_key(coll_comm comm, const struct coll_key *key);
enum coll_comm_origin { COLL_BY_SPLIT, COLL_BY_SHRINK, COLL_BY_GROW, COLL_ORIGINS };
struct coll_key coll_comm_child_key(coll_comm comm, enum coll_comm_origin origin, int64_t color);
/* The key that the next such call will give, which the root of a growing communicator needs ahead. */
struct coll_key coll_comm_next_key(coll_comm comm, enum coll_comm_origin origin, int64_t color);
/* Of the process: ncclSetEncryption has asked for encryption. Communicators that are made from then on have no
 * connections of this library, so those of several hosts stay raw. */
void coll_set_encrypted(bool encrypted);
bool coll_is_encrypted(void);
/* A child that NCCL is still making: it stores the child at *slot, and tells only those who ask for errors of the
 * parent. That memory is the program's, and is there until the program has been told. */
void coll_comm_await_child(coll_comm parent, coll_comm *slot, const struct coll_key *key);
/* NCCL has said that the communicator is ready: enters its children, which join lazily. Called with the query lock
 * held, so that no thread was told before. Returns how many there are in `made`. */
enum { COLL_CHILDREN_MAX = 64 };
#define COLL_NOT_JOINED "it does not block, and has not joined yet"
unsigned coll_comm_note_ready(coll_comm comm, coll_comm *made, unsigned most);
bool coll_comm_pin(coll_comm comm, bool raw);
void coll_comm_pin_all(bool raw); /* also those made later */

/* Counts a call that returns to the program with this result. */
void coll_comm_count(const struct coll_call *call, const struct coll_decision *decision, coll_result result);

/* Copies the counts of a communicator; comm NULL: of the process. False: not known. */
bool coll_comm_counts(coll_comm comm, struct coll_comm_info *info, struct coll_counts *counts);

bool coll_comm_any_counts(void); /* any call was counted */

/* ---- For reports ------------------------------------------------------------------------------------------------- */

enum { COLL_TOLD_MAX = 400 };

/* All that is known of a communicator here. */
struct coll_comm_copy {
    struct coll_comm_info info; /* held is NULL */
    struct coll_counts counts;
    uint64_t number;          /* of the communicators of this process, from 1 on */
    uint64_t id;              /* the same on all ranks, and of no other one; 48 bits; 0: not known */
    char told[COLL_TOLD_MAX]; /* what was found when it joined */
};

/* Sets what was found when the communicator joined, or failed to. */
void coll_comm_set_told(coll_comm comm, const char *told);
/* Stores the communicators of this process, at most `most`, and not those that a forked child has from its parent.
 * Returns how many there are. */
unsigned coll_comm_list(coll_comm *list, unsigned most);
/* False: not known. */
bool coll_comm_copy(coll_comm comm, struct coll_comm_copy *copy);

/* Around fork; in the child, coll_comm_clear_counts before unlocking sets all counts to zero. */
void coll_comm_lock(void);
void coll_comm_unlock(void);
void coll_comm_clear_counts(void);

/* ---- Functions of NCCL that wait --------------------------------------------------------------------------------- */

/* NCCL's function table (pncclX) whose calls wait until ncclInProgress clears: callers cannot go on before their work
 * is on a stream. Groups, and the operations that this library puts into them, are wrapped; all others are NCCL's own.
 * Any thread. */
const struct coll_table *coll_nccl_blocking(void);

/* Lock around every call of ncclCommGetAsyncError: it completes work in progress, which NCCL does not support from two
 * threads at once, such as a watchdog and a waiting thread. Held for no longer than that call. */
void coll_nccl_query_lock(void);
void coll_nccl_query_unlock(void);

/* Returns `result`, or its outcome on `comm` if it is in progress: an error also if another thread has ended the
 * communicator meanwhile. */
coll_result coll_nccl_wait(coll_comm comm, coll_result result);

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

/* Returns `items` with room for one more than `count`, maybe moved; NULL, and nothing changed, without memory. */
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
