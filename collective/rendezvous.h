#ifndef STRAIT_COLLECTIVE_RENDEZVOUS_H
#define STRAIT_COLLECTIVE_RENDEZVOUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collective/key.h"

/* What the ranks of a communicator say, each in a place of its own, and what follows for all: for each question one
 * ending, set once by whoever can first tell. The memory may be shared by several processes, or belong to the one that
 * is asked. */

/* The questions, in this order: whether a rank has come, is equally far (of communicators that do not block), and is
 * able. */
enum coll_vote_phase { COLL_PHASE_PRESENT, COLL_PHASE_REACHED, COLL_PHASE_ABLE, COLL_VOTE_PHASES };

/* What a rank says. */
struct coll_ballot {
    uint32_t able;
    uint32_t blocks; /* its communicator blocks; the same on all ranks */
    uint32_t index;  /* of its next operation; the same on all ranks */
    uint32_t paired; /* it has sent or received before */
    uint64_t thread; /* the thread that speaks; unlike all other ranks', unless the communicator blocks */
};

/* How a round ended. LOST is local to a rank that cannot ask any more. */
enum coll_vote_result {
    COLL_VOTE_OPEN,
    COLL_VOTE_GO,
    COLL_VOTE_ABSENT,
    COLL_VOTE_ENDED,
    COLL_VOTE_UNABLE,
    COLL_VOTE_DIFFERS,
    COLL_VOTE_ONE_THREAD,
    COLL_VOTE_LEFT,
    COLL_VOTE_LOST,
    COLL_VOTE_RESULTS
};

/* All zero: nobody has said anything. */
struct coll_vote_page;
size_t coll_vote_page_size(int ranks);

struct coll_vote {
    struct coll_vote_page *sheet;
    int ranks;
    /* Whether a rank that has come is still there. */
    bool (*is_there)(const void *whom, int rank);
    const void *whom;
};

enum { COLL_NAMED_MAX = 8 };

/* What a rank is told about a round. */
struct coll_vote_state {
    enum coll_vote_result ending;
    int about;   /* the rank that the ending is about */
    bool all;    /* all have said that they are there */
    bool paired; /* any rank has said so in COLL_ROUND_REACHED */
    int absent;  /* number of ranks that have said nothing in this round; the first of them: */
    int named[COLL_NAMED_MAX];
};

bool coll_vote_has_cast(const struct coll_vote *board, int rank, enum coll_vote_phase round);
/* At most once for each rank and round. */
void coll_vote_cast(const struct coll_vote *board, int rank, enum coll_vote_phase round,
                    const struct coll_ballot *word);
/* The rank has begun so many operations before COLL_ROUND_REACHED. */
void coll_vote_note_raw(const struct coll_vote *board, int rank, uint32_t begun);
/* Decides whatever can be decided by now. */
void coll_vote_evaluate(const struct coll_vote *board, enum coll_vote_phase round);
/* Does nothing if it is already decided. */
void coll_vote_publish(const struct coll_vote *board, enum coll_vote_phase round, enum coll_vote_result ending,
                       int about);
struct coll_vote_state coll_vote_status(const struct coll_vote *board, enum coll_vote_phase round);
/* Returns true to exactly one caller, which then removes what exists only once. */
bool coll_vote_claim_unlink(const struct coll_vote *board);

/* How the ranks of a communicator find out whether all of them want to join, before any of them asks NCCL for anything.
 * Each rank says its words; what follows for all is one ending per question, set once (board.h). So all ranks decide
 * alike, even one that comes when the others have given up waiting for it, and even if one ends.
 *
 * The key determines the place, so nobody has to be told of it: a process that is asked by TCP (hall.h), or else a page
 * of host memory, whose name is removed when all ranks have come or waiting has ended.
 *
 * Nothing here calls NCCL. A meeting is used by one thread at a time. */

enum coll_verdict { COLL_VERDICT_OPEN, COLL_VERDICT_GO, COLL_VERDICT_RAW };

struct coll_rdv;

/* NULL: the place cannot be reached within seconds, or refuses; or there is no such memory. */
struct coll_rdv *coll_rdv_join(const struct coll_key *key, int rank, int ranks);
/* At most once for each round, in the order of rounds. Waits for no other rank, at most for the place's answer. */
void coll_rdv_vote(struct coll_rdv *meeting, enum coll_vote_phase round, const struct coll_ballot *word);
/* Tells that so many operations have begun before COLL_ROUND_REACHED: a rank that says it is at an earlier one need not
 * be waited for. */
void coll_rdv_note_raw(struct coll_rdv *meeting, uint32_t begun);
/* A rank that can no longer ask gets COLL_VERDICT_RAW. To the others it has ended. What it was told before is the same
 * for all; but an answer that was on its way when its connection broke is known only to the others. */
enum coll_verdict coll_rdv_poll(struct coll_rdv *meeting, enum coll_vote_phase round);
/* Waits until the verdict is not open, and all ranks have come to read it or had some time to. Meanwhile calls `go_on`
 * with the milliseconds so far; when that returns false, waiting ends for everybody, and what is open becomes raw. */
enum coll_verdict coll_rdv_wait(struct coll_rdv *meeting, enum coll_vote_phase round,
                                bool (*go_on)(struct coll_rdv *meeting, int64_t ms, void *argument), void *argument);
/* Why the verdict is COLL_VERDICT_RAW. */
void coll_rdv_reason(struct coll_rdv *meeting, enum coll_vote_phase round, char *text, size_t size);
/* The ranks that have said nothing in a round, as text: "rank 3", "ranks 1, 2 and 5". */
void coll_rdv_missing(struct coll_rdv *meeting, enum coll_vote_phase round, char *text, size_t size);
/* Whether any rank has said so, when all have said that they are equally far. */
bool coll_rdv_any_paired(struct coll_rdv *meeting);
/* The others need not wait for this rank in what is still open. NULL is allowed. */
void coll_rdv_leave(struct coll_rdv *meeting);

/* What each kind of place implements of a meeting (meeting.h). */

struct coll_rdv_ops {
    void (*say)(struct coll_rdv *meeting, enum coll_vote_phase round, const struct coll_ballot *word);
    void (*pass)(struct coll_rdv *meeting, uint32_t begun);
    struct coll_vote_state (*look)(struct coll_rdv *meeting, enum coll_vote_phase round);
    /* What is open in the round becomes raw, and waiting ends. */
    void (*give_up)(struct coll_rdv *meeting, enum coll_vote_phase round);
    /* Frees it. */
    void (*leave)(struct coll_rdv *meeting);
    int64_t least_ns, most_ns; /* time between two looks */
    int64_t linger_ms;         /* how long to stay after a decision: others find it only while somebody is there */
};

/* First member of each kind's struct. */
struct coll_rdv {
    const struct coll_rdv_ops *kind;
    int rank, ranks;
};

/* Precondition: the key is not none, and the rank is in range. */
struct coll_rdv *coll_rdv_join_shm(const struct coll_key *key, int rank, int ranks);
struct coll_rdv *coll_rdv_join_tcp(const struct coll_key *key, int rank, int ranks);

#endif
