/* Rendezvous of the ranks of a communicator, by which they agree, without NCCL, whether all of them compress. */
#ifndef STRAIT_COLLECTIVE_RENDEZVOUS_H
#define STRAIT_COLLECTIVE_RENDEZVOUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "collective/address.h"
#include "internal/bytes.h"

/* ---- Keys -------------------------------------------------------------------------------------------------------- */

/* Rendezvous key: a hash of the ncclUniqueId (of a child: of its parent's key, the call's number and the color), and
 * the address of the rendezvous server. Derived locally, without a message. */

enum { COLL_SECRET_BYTES = 16 };

/* A process that can be asked (hall.h), and the secret that proves that the asker was told of it. All zero: none. */
struct coll_rdv_endpoint {
    struct address address;
    uint8_t secret[COLL_SECRET_BYTES];
};

/* The same on all ranks of a communicator. The words differ from those of any other one made meanwhile; all zero:
 * none. */
struct coll_key {
    uint64_t words[2];
    struct coll_rdv_endpoint server;
};

struct coll_key coll_key_of(const void *bytes, size_t size);
/* Inherits the parent's server. */
struct coll_key coll_key_child(const struct coll_key *parent, uint64_t origin, uint64_t number, int64_t color);
struct coll_key coll_key_random(void); /* random, for ranks that one call makes */
bool coll_key_is_none(const struct coll_key *key);
bool coll_key_has_server(const struct coll_key *key);

/* ---- Votes ------------------------------------------------------------------------------------------------------- */

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
    COLL_VOTE_MISSING,
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
    struct coll_vote_page *page;
    int ranks;
    /* Whether a rank that has come is still there. */
    bool (*is_alive)(const void *owner, int rank);
    const void *owner;
};

enum { COLL_MISSING_MAX = 8 };

/* What a rank is told about a round. */
struct coll_vote_state {
    enum coll_vote_result result;
    int rank;    /* the rank that the ending is about */
    bool all;    /* all have said that they are there */
    bool paired; /* any rank has said so in COLL_ROUND_REACHED */
    int missing; /* number of ranks that have said nothing in this round; the first of them: */
    int first_missing[COLL_MISSING_MAX];
};

bool coll_vote_has_cast(const struct coll_vote *vote, int rank, enum coll_vote_phase phase);
/* At most once for each rank and round. */
void coll_vote_cast(const struct coll_vote *vote, int rank, enum coll_vote_phase phase,
                    const struct coll_ballot *ballot);
/* The rank has begun so many operations before COLL_ROUND_REACHED. */
void coll_vote_note_raw(const struct coll_vote *vote, int rank, uint32_t begun);
/* Decides whatever can be decided by now. */
void coll_vote_evaluate(const struct coll_vote *vote, enum coll_vote_phase phase);
/* Does nothing if it is already decided. */
void coll_vote_publish(const struct coll_vote *vote, enum coll_vote_phase phase, enum coll_vote_result result,
                       int rank);
struct coll_vote_state coll_vote_status(const struct coll_vote *vote, enum coll_vote_phase phase);
/* Returns true to exactly one caller, which then removes what exists only once. */
bool coll_vote_claim_unlink(const struct coll_vote *vote);

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
void coll_rdv_vote(struct coll_rdv *rdv, enum coll_vote_phase phase, const struct coll_ballot *ballot);
/* Tells that so many operations have begun before COLL_ROUND_REACHED: a rank that says it is at an earlier one need not
 * be waited for. */
void coll_rdv_note_raw(struct coll_rdv *rdv, uint32_t begun);
/* A rank that can no longer ask gets COLL_VERDICT_RAW. To the others it has ended. What it was told before is the same
 * for all; but an answer that was on its way when its connection broke is known only to the others. */
enum coll_verdict coll_rdv_poll(struct coll_rdv *rdv, enum coll_vote_phase phase);
/* Waits until the verdict is not open, and all ranks have come to read it or had some time to. Meanwhile calls `go_on`
 * with the milliseconds so far; when that returns false, waiting ends for everybody, and what is open becomes raw. */
enum coll_verdict coll_rdv_wait(struct coll_rdv *rdv, enum coll_vote_phase phase,
                                bool (*go_on)(struct coll_rdv *rdv, int64_t ms, void *argument), void *argument);
/* Why the verdict is COLL_VERDICT_RAW. */
void coll_rdv_reason(struct coll_rdv *rdv, enum coll_vote_phase phase, char *text, size_t size);
/* The ranks that have said nothing in a round, as text: "rank 3", "ranks 1, 2 and 5". */
void coll_rdv_missing(struct coll_rdv *rdv, enum coll_vote_phase phase, char *text, size_t size);
/* Whether any rank has said so, when all have said that they are equally far. */
bool coll_rdv_any_paired(struct coll_rdv *rdv);
/* The others need not wait for this rank in what is still open. NULL is allowed. */
void coll_rdv_leave(struct coll_rdv *rdv);

/* What each kind of place implements of a meeting (meeting.h). */

struct coll_rdv_ops {
    void (*vote)(struct coll_rdv *rdv, enum coll_vote_phase phase, const struct coll_ballot *ballot);
    void (*note_raw)(struct coll_rdv *rdv, uint32_t begun);
    struct coll_vote_state (*poll)(struct coll_rdv *rdv, enum coll_vote_phase phase);
    /* What is open in the round becomes raw, and waiting ends. */
    void (*abort)(struct coll_rdv *rdv, enum coll_vote_phase phase);
    /* Frees it. */
    void (*leave)(struct coll_rdv *rdv);
    int64_t poll_min_ns, poll_max_ns; /* time between two looks */
    int64_t linger_ms; /* how long to stay after a decision: others find it only while somebody is there */
};

/* First member of each kind's struct. */
struct coll_rdv {
    const struct coll_rdv_ops *ops;
    int rank, ranks;
};

/* Precondition: the key is not none, and the rank is in range. */
struct coll_rdv *coll_rdv_join_shm(const struct coll_key *key, int rank, int ranks);
struct coll_rdv *coll_rdv_join_tcp(const struct coll_key *key, int rank, int ranks);

/* ---- Frames ------------------------------------------------------------------------------------------------------ */

/* The protocol between ranks and the process they meet at, over TCP: frames of one size, numbers little-endian. A rank
 * says hello and is answered with a view of the first round; then each request is answered with a view of its round.
 * Whoever sends anything else is disconnected without an answer. */

enum { RDV_FRAME_BYTES = 48 };

/* magic, rank, ranks, key, secret: "STRMEET1" */
#define RDV_HELLO UINT64_C(0x315445454d525453)

struct rdv_hello {
    uint64_t words[2];
    uint32_t rank, ranks;
    uint8_t secret[COLL_SECRET_BYTES];
};

static inline void rdv_hello_write(uint8_t frame[RDV_FRAME_BYTES], const struct rdv_hello *hello)
{
    store_le64(frame, RDV_HELLO);
    store_le32(frame + 8, hello->rank);
    store_le32(frame + 12, hello->ranks);
    store_le64(frame + 16, hello->words[0]);
    store_le64(frame + 24, hello->words[1]);
    memcpy(frame + 32, hello->secret, COLL_SECRET_BYTES);
}

/* False: it is not a hello. */
static inline bool rdv_hello_read(const uint8_t frame[RDV_FRAME_BYTES], struct rdv_hello *hello)
{
    *hello = (struct rdv_hello){.words = {load_le64(frame + 16), load_le64(frame + 24)},
                                .rank = load_le32(frame + 8),
                                .ranks = load_le32(frame + 12)};
    memcpy(hello->secret, frame + 32, COLL_SECRET_BYTES);
    return load_le64(frame) == RDV_HELLO;
}

/* action, round, word, zeros */
/* MEET_PASS and MEET_LEAVE are not answered. */
enum rdv_action { RDV_VOTE = 1, RDV_POLL, RDV_ABORT, RDV_LEAVE, RDV_NOTE_RAW, RDV_ACTIONS };

struct rdv_request {
    enum rdv_action action;
    enum coll_vote_phase phase;
    struct coll_ballot ballot; /* for MEET_SAY; for MEET_PASS only its index */
};

static inline void rdv_request_write(uint8_t frame[RDV_FRAME_BYTES], const struct rdv_request *request)
{
    memset(frame, 0, RDV_FRAME_BYTES);
    store_le32(frame, request->action);
    store_le32(frame + 4, request->phase);
    store_le32(frame + 8, request->ballot.able);
    store_le32(frame + 12, request->ballot.blocks);
    store_le32(frame + 16, request->ballot.index);
    store_le32(frame + 20, request->ballot.paired);
    store_le64(frame + 24, request->ballot.thread);
}

static inline bool rdv_request_read(const uint8_t frame[RDV_FRAME_BYTES], struct rdv_request *request)
{
    const uint32_t action = load_le32(frame), phase = load_le32(frame + 4);
    if (action < RDV_VOTE || action >= RDV_ACTIONS || phase >= COLL_VOTE_PHASES)
        return false;
    *request = (struct rdv_request){.action = (enum rdv_action)action,
                                    .phase = (enum coll_vote_phase)phase,
                                    .ballot = {.able = load_le32(frame + 8),
                                               .blocks = load_le32(frame + 12),
                                               .index = load_le32(frame + 16),
                                               .paired = load_le32(frame + 20),
                                               .thread = load_le64(frame + 24)}};
    return true;
}

/* magic "VIEW"; ending, and flags for what all and any have said; about; absent; named */
#define RDV_STATE UINT32_C(0x57454956)
enum { RDV_STATE_ALL = 1 << 8, RDV_STATE_PAIRED = 1 << 9 };

static inline void rdv_state_write(uint8_t frame[RDV_FRAME_BYTES], const struct coll_vote_state *state)
{
    const uint32_t flags = (state->all ? RDV_STATE_ALL : 0u) | (state->paired ? RDV_STATE_PAIRED : 0u);
    store_le32(frame, RDV_STATE);
    store_le32(frame + 4, (uint32_t)state->result | flags);
    store_le32(frame + 8, (uint32_t)state->rank);
    store_le32(frame + 12, (uint32_t)state->missing);
    for (int i = 0; i < COLL_MISSING_MAX; i++)
        store_le32(frame + 16 + 4 * i, (uint32_t)state->first_missing[i]);
}

static inline bool rdv_state_read(const uint8_t frame[RDV_FRAME_BYTES], struct coll_vote_state *state)
{
    const uint32_t what = load_le32(frame + 4), result = what & 0xff;
    *state = (struct coll_vote_state){.result = (enum coll_vote_result)result,
                                      .rank = (int)load_le32(frame + 8),
                                      .all = (what & RDV_STATE_ALL) != 0,
                                      .paired = (what & RDV_STATE_PAIRED) != 0,
                                      .missing = (int)load_le32(frame + 12)};
    for (int i = 0; i < COLL_MISSING_MAX; i++)
        state->first_missing[i] = (int)load_le32(frame + 16 + 4 * i);
    return load_le32(frame) == RDV_STATE && result < COLL_VOTE_LOST && state->missing >= 0;
}

#endif
