/* What compresses, behind libstrait-coll: a plugin that is loaded when the first communicator is made, as it needs the
 * codec and CUDA, which what is preloaded under every program must not. */
#ifndef STRAIT_COLLECTIVE_ENGINE_H
#define STRAIT_COLLECTIVE_ENGINE_H

#include "collective/call.h"
#include "collective/load.h"

/* A communicator that is to be compressed: what a plugin made of it. */
struct coll_member;
struct coll_tracked;

/* One to be joined, made by NCCL and ready. */
struct coll_candidate; /* what a plugin has made ready for one */
struct coll_joining {
    coll_comm comm;
    int rank, ranks;
    bool able;                        /* this rank is; when ranks have voted, all of them are */
    bool paired;                      /* some have sent or received before, so that goes on as it is */
    struct coll_candidate *candidate; /* NULL: there was no memory even for that */
    struct coll_member *member;       /* result: NULL when it stays raw */
    char why[320];                    /* result: why it does, or what was found of it */
};

enum { COLL_PHASES_MAX = 2, COLL_PIECES_MAX = 8 };

/* What was decided for a phase of an operation. */
struct coll_phase {
    uint64_t index; /* among those of its kind */
    unsigned level;
    unsigned key;
};

/* One operation on its way. What is below `wire` belongs to the plugin. */
struct coll_step {
    struct coll_member *member;
    struct coll_call call;
    unsigned phases;     /* how often it is encoded, moved and decoded */
    unsigned phase;      /* which of them is next, from 0 on */
    unsigned pieces;     /* of its messages; 1: they are not cut */
    uint32_t head, tail; /* pages that are left as they are before and behind what is coded; then it is one piece */
    uint64_t wire;       /* bytes that NCCL is handed */
    struct coll_phase of[COLL_PHASES_MAX];
    bool peer; /* it goes by the wire `peer`, in one phase: what is below is not used */
    unsigned piece;
    struct coll_staging *staging;
    size_t at;                 /* of its part of the staging memory */
    unsigned number;           /* of its job, among those of the staging memory */
    struct coll_tracked *held; /* the library's: what keeps `member` until the step is over */
};

struct coll_engine_host {
    const struct coll_table *nccl;
    struct coll_settings settings;
    /* A thread of the plugin calls this once: what NCCL calls from there is passed on and not looked at. */
    void (*enter)(void);
    /* A line on stderr. */
    __attribute__((format(printf, 1, 2))) void (*say)(const char *format, ...);
};

struct coll_engine_ops {
    uint32_t version; /* COLL_ENGINE_VERSION */
    /* Alone: what joining takes. Sets `able`, or else `why`; a call of join with the same ones has to follow. */
    void (*prepare)(const struct coll_engine_host *host, struct coll_joining *joinings, unsigned count);
    /* Collective, for those that are able: every rank of every one of them joins at the same time, in any order within
     * one call. Those that are not are given up, unless ranks have not voted: then they do that now, by NCCL. */
    void (*join)(const struct coll_engine_host *host, struct coll_joining *joinings, unsigned count, bool voted);
    /* Whether this call is to be compressed; it counts as one of its kind then. A function of its arguments and of
     * what all ranks hold: all decide alike. `step` is to be run when it is. */
    bool (*decide)(struct coll_member *member, const struct coll_call *call, struct coll_step *step,
                   const char **reason);
    /* The three parts of a phase, for all steps of a group at once: encoding; what NCCL moves, in a group that is open;
     * decoding, when that group has ended. Then come those steps that have another phase, together. Nothing waits. A
     * failure leaves the communicator as one of NCCL's would. */
    coll_result (*encode)(struct coll_step *steps, unsigned count);
    coll_result (*move)(struct coll_step *steps, unsigned count);
    coll_result (*decode)(struct coll_step *steps, unsigned count);
    /* All three of them at once, of a step that is alone and has pieces, a head or a tail. */
    coll_result (*pass)(struct coll_step *steps, unsigned count);
    /* COLL_SUCCESS, or what went wrong with it since. */
    coll_result (*error)(struct coll_member *member);
    /* Ends what of ours runs on its GPU, at once. */
    void (*abort)(struct coll_member *member);
    /* Nothing more will be asked of it: that it ends is no failure of the others'. */
    void (*finish)(struct coll_member *member);
    /* When all that was asked for is over; after abort at once. By the last thread that has to do with it. */
    void (*leave)(struct coll_member *member);
};

#define COLL_ENGINE_VERSION 6u

/* What a plugin exports under the name COLL_ENGINE_SYMBOL; NULL: why it cannot be used is in `why`. */
typedef const struct coll_engine_ops *coll_engine_get(char *why, size_t why_size);
#define COLL_ENGINE_LIBRARY "libstrait-coll-cuda.so.0"
#define COLL_ENGINE_SYMBOL  "strait_coll_engine"

/* The plugin, looked for once; NULL when there is none that can be used. Any thread. */
const struct coll_engine_ops *coll_engine(void);
/* Why there is none, when it has been looked for; static. */
const char *coll_engine_why(void);

#endif
