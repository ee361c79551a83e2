/* The part of libstrait-coll that compresses: a plugin, loaded when the first communicator is made. It is separate
 * because it needs the codec and CUDA, and a library preloaded under every program must not. */
#ifndef STRAIT_COLLECTIVE_ENGINE_H
#define STRAIT_COLLECTIVE_ENGINE_H

#include "collective/call.h"
#include "collective/engine/plan.h"
#include "collective/nccl.h"

/* A communicator that is to be compressed, as a plugin has made it. */
struct coll_ccomm;
struct coll_comm_entry;

/* A communicator that is to join, made by NCCL and ready. */
struct coll_join_scratch; /* what a plugin has prepared for one */
struct coll_join_args {
    coll_comm comm;
    int rank, ranks;
    bool able;                           /* this rank is able to compress; after the vote, all ranks are */
    bool paired;                         /* some ranks have sent or received before, so pairs stay raw */
    struct coll_join_scratch *candidate; /* NULL: there was no memory even for that */
    struct coll_ccomm *member;           /* result: NULL if it stays raw */
    char why[400];                       /* result: why it stays raw, or what was measured */
};

enum { COLL_PHASES_MAX = 2 };

/* What was decided for one phase of an operation. */
struct coll_phase {
    uint64_t index; /* number among the operations of its kind */
    unsigned level;
    unsigned key;
    struct plan plan;
};

/* One operation under way. Fields below `wire` belong to the plugin. */
struct coll_op {
    struct coll_ccomm *member;
    struct coll_call call;
    unsigned phases;     /* how often it is encoded, moved and decoded */
    unsigned phase;      /* the next one, from 0 */
    uint32_t head, tail; /* pages left uncompressed before and behind the coded ones */
    uint64_t wire;       /* bytes handed to NCCL */
    struct coll_phase of[COLL_PHASES_MAX];
    bool counted; /* as one of its kind, also if it goes raw */
    bool differs; /* another rank has it in no group, and has begun it as such: an error, if it comes to be */
    struct coll_staging *staging;
    size_t at;                    /* offset of its part of the staging memory */
    unsigned number;              /* of its job, within the staging memory */
    struct coll_comm_entry *held; /* the library's: keeps `member` until the step is over */
    unsigned turn;                /* likewise: number of the step in its group */
};

struct coll_engine_host {
    const struct coll_table *nccl;
    struct coll_settings settings;
    /* Called once by each thread of the plugin: what NCCL calls on such a thread is passed on and not looked at. */
    void (*enter)(void);
    /* Prints a line on stderr. */
    __attribute__((format(printf, 1, 2))) void (*say)(const char *format, ...);
};

struct coll_engine_ops {
    uint32_t version; /* COLL_ENGINE_VERSION */
    /* Not collective: allocates what joining needs. Sets `able`, or else `why`. join has to be called with the same
     * joinings afterwards. */
    void (*prepare)(const struct coll_engine_host *host, struct coll_join_args *joinings, unsigned count);
    /* Collective, for the joinings that are able after the vote: every rank of each of them joins at the same time, in
     * any order within one call. The others are given up. */
    void (*join)(const struct coll_engine_host *host, struct coll_join_args *joinings, unsigned count);
    /* Whether this call is to be compressed; if so, it counts as one of its kind, and `step` is to be run. A function
     * of the call's arguments and of what all ranks hold, so all ranks decide alike. */
    bool (*decide)(struct coll_ccomm *member, const struct coll_call *call, struct coll_op *step, const char **reason);
    /* These steps, which were decided about in the group that this thread ends, do not come to be: they do not count.
     * In any order, but for all of the group that do. */
    void (*forget)(const struct coll_op *steps, unsigned count);
    /* What is queued next on any of these streams, of which there are at least two, all or none captured, runs after
     * what is queued on all of them by now. */
    coll_result (*tie)(struct coll_ccomm *member, const coll_stream *streams, unsigned count);
    /* The three parts of a phase, each for all steps of a group at once: encode; move, which hands NCCL what it moves,
     * in an open group; decode, after that group has ended. Steps with another phase follow, together. Nothing waits. A
     * failure leaves the communicator as a failure of NCCL would. */
    coll_result (*encode)(struct coll_op *steps, unsigned count);
    coll_result (*move)(struct coll_op *steps, unsigned count);
    coll_result (*decode)(struct coll_op *steps, unsigned count);
    /* All three parts at once, for one step outside of groups that has a head or a tail. */
    coll_result (*pass)(struct coll_op *steps, unsigned count);
    /* COLL_SUCCESS, or what has failed since. */
    coll_result (*error)(struct coll_ccomm *member);
    /* Makes it fail, unless it has already. */
    void (*fail)(struct coll_ccomm *member, coll_result result);
    /* Ends our kernels on its GPU at once. */
    void (*abort)(struct coll_ccomm *member);
    /* No more operations will come: that this rank ends is no failure for the others. */
    void (*finish)(struct coll_ccomm *member);
    /* Called when all operations are over, or right after abort, by the last thread that uses it. */
    void (*leave)(struct coll_ccomm *member);
};

#define COLL_ENGINE_VERSION 11u

/* What a plugin exports under the name COLL_ENGINE_SYMBOL. NULL: it cannot be used, and `why` says why. */
typedef const struct coll_engine_ops *coll_engine_get(char *why, size_t why_size);
#define COLL_ENGINE_LIBRARY "libstrait-coll-cuda.so.0"
#define COLL_ENGINE_SYMBOL  "strait_coll_engine"

/* The plugin, looked for once; NULL if none can be used. Any thread. */
const struct coll_engine_ops *coll_engine(void);
/* Why there is none, once it has been looked for; static. */
const char *coll_engine_why(void);

#endif
