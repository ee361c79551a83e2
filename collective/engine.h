/* Engine of compressed collectives: a plugin, loaded when the first communicator is made. It is separate because it
 * needs the codec and CUDA, which a library that is preloaded under every program must not. */
#ifndef STRAIT_COLLECTIVE_ENGINE_H
#define STRAIT_COLLECTIVE_ENGINE_H

#include "collective/api.h"
#include "collective/engine/plan.h"
#include "collective/nccl.h"

/* A compressed communicator, the engine's counterpart of one of NCCL's. */
struct coll_ccomm;
struct coll_comm_entry;

/* A communicator that NCCL has made, and that is to join. */
struct coll_join_args {
    coll_comm comm;
    int rank, ranks;
    bool able;                    /* this rank is able to compress; after the vote, all ranks are */
    bool paired;                  /* some ranks have sent or received before, so pairs stay raw */
    struct coll_ccomm *candidate; /* the engine's, between prepare and join; NULL: no memory */
    struct coll_ccomm *ccomm;     /* result: NULL if it stays raw */
    char why[400];                /* result: why it stays raw, or what was measured */
};

/* Why a communicator of more than COLL_RANKS_MAX ranks stays raw. */
#define COLL_TOO_MANY_RANKS "more than 1024 ranks"

/* Why an op is raw that would be compressed. */
#define COLL_LEFT_RAW "timed, to compare"

enum { COLL_PHASES_MAX = 3 };

/* One phase of an op, as decided. */
struct coll_phase {
    uint64_t index; /* number among the operations of its kind */
    unsigned level;
    unsigned local_class;
    struct op_cost cost;
    struct plan plan;
};

/* An op: one compressed operation under way. Fields below `wire` belong to the engine. */
struct coll_op {
    struct coll_ccomm *ccomm;
    struct coll_call call;
    unsigned phases;     /* number of phases, each of which is encoded, moved and decoded */
    unsigned phase;      /* the next one, from 0 */
    uint32_t head, tail; /* pages left uncompressed before and behind the coded ones */
    uint64_t wire;       /* bytes handed to NCCL */
    uint64_t values;     /* and of the values that they stand for */
    double plain;        /* seconds that NCCL takes for all of it, by the link */
    struct coll_phase of[COLL_PHASES_MAX];
    bool probe;    /* sent with room for any result */
    bool left_raw; /* NCCL moves it uncompressed, and is timed (compare.h); it has one phase */
    bool timed;    /* it is to be timed, if that can be */
    bool counted;  /* as one of its kind, also if it goes raw */
    bool differs;  /* grouping mismatch, overlapped on another rank and grouped here: the op fails when it is issued */
    struct timing *timing; /* while it is timed */
    struct coll_staging *staging;
    size_t at;                    /* offset of its part of the staging memory */
    unsigned number;              /* of its job, within the staging memory */
    size_t kept_at;               /* offset of what the local phase keeps for the rail's (plan.h) */
    uint8_t *kept;                /* where that is: the staging memory may have grown since */
    struct coll_comm_entry *held; /* the library's: keeps `ccomm` until the op is over */
    unsigned group_index;         /* the library's: number of the op in its group */
};

/* Bytes of GPU memory that a communicator has, as ncclCommMemStats tells them apart: what suspend frees, also while it
 * is suspended, and all else. */
struct coll_memory {
    uint64_t suspendable, persistent;
};

/* What the engine knows of a communicator, for reports. */
struct coll_kind_figures {
    uint64_t overflows; /* operations, each time that they ran, in which a message of any rank did not fit */
    uint64_t compared;  /* how often operations that were left raw were compared with compressed ones */
    double ratio;       /* compressed by raw, the last time */
};

struct coll_figures {
    unsigned hosts;
    bool measured;                                            /* else rates are 0, but for the codec's */
    double start_us;                                          /* of any operation */
    double gather, exchange, scatter, overflow;               /* GB/s to each other rank (struct link_costs) */
    unsigned rails;                                           /* by which sums go between hosts; 0: there are none */
    double local, rail;                                       /* GB/s to each other rank of a host, and of a rail */
    double shm;                                               /* GB/s to each other rank, through channels of ours */
    double encode, decode;                                    /* GB/s of values */
    struct coll_memory memory;                                /* of the GPU */
    uint64_t hosted;                                          /* bytes of host memory in place of that */
    uint64_t host_memory;                                     /* bytes of the memory that ranks of this host share */
    char table[COLL_SIZES_TEXT];                              /* STRAIT_COLL_TABLE that decides alike */
    struct coll_kind_figures of[COLL_OPERATIONS][COLL_TYPES]; /* by operation and type */
};

struct coll_engine_host {
    const struct coll_table *nccl;
    struct coll_settings settings;
    bool encrypted; /* the program has asked NCCL to encrypt: no connections are made */
    /* Called once by each thread of the engine: NCCL's calls on such a thread are not intercepted. */
    void (*enter)(void);
    /* Prints a line on stderr. */
    __attribute__((format(printf, 1, 2))) void (*log)(const char *format, ...);
};

struct coll_engine_ops {
    uint32_t version; /* COLL_ENGINE_VERSION */
    /* Not collective: allocates what joining needs. Sets `able`, or else `why`. join has to be called with the same
     * array afterwards. */
    void (*prepare)(const struct coll_engine_host *host, struct coll_join_args *joins, unsigned count);
    /* Collective, for those that are able after the vote: every rank of each of them joins at the same time, in
     * any order within one call. The others are dropped. */
    void (*join)(const struct coll_engine_host *host, struct coll_join_args *joins, unsigned count);
    /* Whether the call is to be compressed; if so, it counts in its class, and `op` is to be run. A function of the
     * call's arguments and of state that all ranks hold alike, so all ranks decide alike. */
    bool (*decide)(struct coll_ccomm *ccomm, const struct coll_call *call, struct coll_op *op, const char **reason);
    /* Uncounts ops that were decided about in the group that this thread ends, when none of the group is issued. In any
     * order. */
    void (*forget)(const struct coll_op *ops, unsigned count);
    /* Orders at least two streams, all or none captured, against each other: work queued next on any of them runs after
     * the work queued on all of them so far. */
    coll_result (*join_streams)(struct coll_ccomm *ccomm, const coll_stream *streams, unsigned count);
    /* The three stages of a phase, each for all ops of a group at once: encode; move, which hands messages to NCCL in
     * an open group; decode, after that group has ended. Ops with another phase follow, together. Nothing waits. A
     * failure leaves the communicator as a failure of NCCL would. */
    coll_result (*encode)(struct coll_op *ops, unsigned count);
    coll_result (*move)(struct coll_op *ops, unsigned count);
    coll_result (*decode)(struct coll_op *ops, unsigned count);
    /* All three stages at once, for one ungrouped op that has a head or a tail, or is left raw. */
    coll_result (*pass)(struct coll_op *ops, unsigned count);
    /* Returns COLL_SUCCESS, or the first failure so far. */
    coll_result (*error)(struct coll_ccomm *ccomm);
    /* Makes the communicator fail, unless it has already. */
    void (*fail)(struct coll_ccomm *ccomm, coll_result result);
    /* Ends the engine's kernels on its GPU at once. */
    void (*abort)(struct coll_ccomm *ccomm);
    /* When all operations are over: frees the GPU memory of messages, except that of graphs, which know its addresses;
     * and allocates it again. What cannot be had then is tried again by the next operation. */
    void (*suspend)(struct coll_ccomm *ccomm);
    void (*resume)(struct coll_ccomm *ccomm);
    struct coll_memory (*memory)(struct coll_ccomm *ccomm);
    /* Any thread. look: what the GPU has reported since counts too; only while CUDA has not ended. Else what is known
     * from calls. */
    void (*figures)(struct coll_ccomm *ccomm, bool look, struct coll_figures *figures);
    /* No more operations follow: the end of this rank's process is no failure for the others then. */
    void (*finish)(struct coll_ccomm *ccomm);
    /* Frees the communicator. Called by its last user, when all operations are over or right after abort. */
    void (*leave)(struct coll_ccomm *ccomm);
};

#define COLL_ENGINE_VERSION 15u

/* The plugin's function of the name COLL_ENGINE_SYMBOL. Returns NULL, and a text in `why`, if it cannot be used here.
 */
typedef const struct coll_engine_ops *coll_engine_get(char *why, size_t why_size);
#define COLL_ENGINE_LIBRARY "libstrait-coll-cuda.so.0"
#define COLL_ENGINE_SYMBOL  "strait_coll_engine"

/* Returns the engine, loaded by the first call; NULL: none can be used. Any thread. */
const struct coll_engine_ops *coll_engine(void);
/* Returns the reason, a static text, after coll_engine has returned NULL. */
const char *coll_engine_why(void);

#endif
