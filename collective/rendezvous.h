/* Rendezvous of the ranks of a communicator, by which they agree, without NCCL, whether all of them compress. */
#ifndef STRAIT_COLLECTIVE_RENDEZVOUS_H
#define STRAIT_COLLECTIVE_RENDEZVOUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "collective/api.h"
#include "collective/ranks.h"
#include "internal/bytes.h"
#include "transport/rank_address.h"

/* ---- Keys -------------------------------------------------------------------------------------------------------- */

/* Rendezvous key: a hash of the ncclUniqueId (of a child: of its parent's key, the call's number and the color), and
 * the address of the rendezvous server. Derived locally, without a message. */

enum { COLL_SECRET_BYTES = 16 };

/* Address of a rendezvous server (rdv_server.c), and the secret by which its clients authenticate. All zero: none. */
struct coll_rdv_endpoint {
    struct address address;
    uint8_t secret[COLL_SECRET_BYTES];
};

/* The same on all ranks of a communicator. The words differ from those of every other communicator made meanwhile; all
 * zero: no key. */
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

/* Voting page for communicator bootstrap. Every rank casts one ballot in each phase; the first caller that can evaluate
 * a phase publishes its result by compare-and-swap, so that all ranks read the same result. The page is in memory that
 * processes share, or in that of the rendezvous server. */

/* In this order: the rank has joined; it has issued as many operations as the others (communicators that do not block);
 * it is able to compress. */
enum coll_vote_phase { COLL_PHASE_PRESENT, COLL_PHASE_REACHED, COLL_PHASE_ABLE, COLL_VOTE_PHASES };

/* Ballot of one rank. A phase passes only if `blocks` and `index` are the same on all ranks. */
struct coll_ballot {
    uint32_t able;
    uint32_t blocks; /* its communicator blocks */
    uint32_t index;  /* number of its next operation */
    uint32_t paired; /* it has issued a send or recv before */
    uint64_t
        thread; /* random number of the calling thread: ranks of one thread may share a blocking communicator only */
};

/* Result of a phase. GO: all ranks continue; every other result keeps all ranks raw. LOST is never published: the rank
 * has lost its connection to the server. */
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

/* All zero: no ballot has been cast. */
struct coll_vote_page;
size_t coll_vote_page_size(int ranks);

struct coll_vote {
    struct coll_vote_page *page;
    int ranks;
    /* Whether a rank that has joined is still alive. */
    bool (*is_alive)(const void *owner, int rank);
    const void *owner;
};

enum { COLL_MISSING_MAX = 8 };

/* State of a phase. */
struct coll_vote_state {
    enum coll_vote_result result;
    int rank;    /* the rank that caused the result */
    bool all;    /* all ranks have cast their ballots of COLL_PHASE_PRESENT */
    bool paired; /* any ballot of COLL_PHASE_REACHED is paired */
    int missing; /* number of ranks without a ballot in this phase; the first of them: */
    int first_missing[COLL_MISSING_MAX];
};

bool coll_vote_has_cast(const struct coll_vote *vote, int rank, enum coll_vote_phase phase);
/* At most once for each rank and phase. */
void coll_vote_cast(const struct coll_vote *vote, int rank, enum coll_vote_phase phase,
                    const struct coll_ballot *ballot);
/* Records that the rank has issued so many raw operations before its ballot of COLL_PHASE_REACHED. */
void coll_vote_note_raw(const struct coll_vote *vote, int rank, uint32_t begun);
/* Publishes the result if it follows from the ballots so far, and from which ranks are alive; the second one asks for
 * that only when all ranks have cast their ballots, where the end of a rank is noticed otherwise. */
void coll_vote_evaluate(const struct coll_vote *vote, enum coll_vote_phase phase);
void coll_vote_evaluate_ballots(const struct coll_vote *vote, enum coll_vote_phase phase);
/* Has no effect if the phase has a result already. */
void coll_vote_publish(const struct coll_vote *vote, enum coll_vote_phase phase, enum coll_vote_result result,
                       int rank);
bool coll_vote_is_decided(const struct coll_vote *vote, enum coll_vote_phase phase);
struct coll_vote_state coll_vote_status(const struct coll_vote *vote, enum coll_vote_phase phase);

/* ---- The rendezvous ---------------------------------------------------------------------------------------------- */

/* Agreement of the ranks of a communicator, before any of them asks NCCL for anything, by one vote. All ranks get the
 * same results, even one that joins after the others have given up waiting for it, and even if one dies.
 *
 * Two backends: TCP to the server that the key names (rdv_server.c), and else a page of shared memory named by the key,
 * whose name is unlinked when all ranks have joined or waiting has ended.
 *
 * NCCL is never called. A rendezvous is used by one thread at a time. */

enum coll_verdict { COLL_VERDICT_OPEN, COLL_VERDICT_GO, COLL_VERDICT_RAW };

struct coll_rdv;

/* NULL: the server cannot be reached within seconds, or refuses this rank; or there is no shared memory. */
struct coll_rdv *coll_rdv_join(const struct coll_key *key, int rank, int ranks);
/* At most once for each phase, in the order of phases. Waits for no other rank, at most for the server's answer. */
void coll_rdv_vote(struct coll_rdv *rdv, enum coll_vote_phase phase, const struct coll_ballot *ballot);
/* Records that this rank has issued so many raw operations before COLL_PHASE_REACHED: ranks whose ballot is about an
 * earlier operation do not wait for it. */
void coll_rdv_note_raw(struct coll_rdv *rdv, uint32_t begun);
/* Waits until the phase has a result, and until all ranks have joined to read it or have had some time to. Meanwhile
 * calls `go_on` with the milliseconds so far; when that returns false, an open phase is aborted: all ranks get RAW. */
enum coll_verdict coll_rdv_wait(struct coll_rdv *rdv, enum coll_vote_phase phase,
                                bool (*go_on)(struct coll_rdv *rdv, int64_t ms, void *argument), void *argument);
/* Writes the reason of COLL_VERDICT_RAW. */
void coll_rdv_reason(struct coll_rdv *rdv, enum coll_vote_phase phase, char *text, size_t size);
/* Writes the ranks without a ballot in a phase: "rank 3", "ranks 0, 2, 3". */
void coll_rdv_missing(struct coll_rdv *rdv, enum coll_vote_phase phase, char *text, size_t size);
/* Whether any ballot of COLL_PHASE_REACHED is paired, once that phase has passed. */
bool coll_rdv_any_paired(struct coll_rdv *rdv);
/* Frees the rendezvous, and aborts its open phases for the other ranks. NULL is allowed. */
void coll_rdv_leave(struct coll_rdv *rdv);

/* Backend. */

struct coll_rdv_ops {
    void (*vote)(struct coll_rdv *rdv, enum coll_vote_phase phase, const struct coll_ballot *ballot);
    void (*note_raw)(struct coll_rdv *rdv, uint32_t begun);
    struct coll_vote_state (*poll)(struct coll_rdv *rdv, enum coll_vote_phase phase); /* what is known here */
    struct coll_vote_state (*ask)(struct coll_rdv *rdv, enum coll_vote_phase phase);  /* as it is now */
    /* Waits for so long, or until there may be something new to poll. */
    void (*rest)(struct coll_rdv *rdv, int64_t ns);
    /* Abort the phase, unless it has a result: all ranks get RAW. */
    void (*abort)(struct coll_rdv *rdv, enum coll_vote_phase phase);
    /* Frees the rendezvous. */
    void (*leave)(struct coll_rdv *rdv);
    int64_t poll_min_ns, poll_max_ns; /* time between two polls */
    int64_t linger_ms; /* how long to stay after a result: a page of shared memory lives only as long as its users */
};

/* First communicator of each backend's struct. */
struct coll_rdv {
    const struct coll_rdv_ops *ops;
    int rank, ranks;
};

/* ---- Frames ------------------------------------------------------------------------------------------------------ */

/* TCP protocol between ranks and the rendezvous server: frames of one size, numbers little-endian. The hello of a rank
 * is answered with the state of the first phase, and each request with the state of its phase. When a phase gets its
 * result, the server tells all ranks that are connected, so they need not ask again and again: that state is no answer,
 * and says so. The server disconnects whoever sends anything else, without an answer. */

enum { RDV_FRAME_BYTES = 48 };

/* magic, rank, ranks, key, secret: "STRMEET2" */
#define RDV_HELLO UINT64_C(0x325445454d525453)

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
/* RDV_NOTE_RAW and RDV_LEAVE are not answered. */
enum rdv_action { RDV_VOTE = 1, RDV_POLL, RDV_ABORT, RDV_LEAVE, RDV_NOTE_RAW, RDV_ACTIONS };

struct rdv_request {
    enum rdv_action action;
    enum coll_vote_phase phase;
    struct coll_ballot ballot; /* for RDV_VOTE; for RDV_NOTE_RAW only its index */
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

/* magic "VIEW"; result, flags and, of what is told unasked, the phase; rank; missing; first_missing */
#define RDV_STATE UINT32_C(0x57454956)
enum { RDV_STATE_ALL = 1 << 8, RDV_STATE_PAIRED = 1 << 9, RDV_STATE_TOLD = 1 << 10, RDV_STATE_PHASE_AT = 16 };

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

/* Makes a frame with a state one that is told unasked. */
static inline void rdv_state_tell(uint8_t frame[RDV_FRAME_BYTES], enum coll_vote_phase phase)
{
    store_le32(frame + 4, load_le32(frame + 4) | RDV_STATE_TOLD | (uint32_t)phase << RDV_STATE_PHASE_AT);
}

/* The phase of a state that was told unasked; COLL_VOTE_PHASES: it is an answer, or has no valid phase. */
static inline enum coll_vote_phase rdv_state_told(const uint8_t frame[RDV_FRAME_BYTES])
{
    const uint32_t what = load_le32(frame + 4), phase = what >> RDV_STATE_PHASE_AT;
    return (what & RDV_STATE_TOLD) != 0 && phase < COLL_VOTE_PHASES ? (enum coll_vote_phase)phase : COLL_VOTE_PHASES;
}

/* ==== The server (rdv_server.c) =================================================================================== */

/* Rendezvous server for communicator bootstrap over TCP, run by the process that called ncclGetUniqueId, as NCCL's
 * bootstrap root is. One poll loop; connections authenticate by a secret that travels in the unique id.
 *
 * All input is untrusted: a connection until it has shown the secret, and its requests even then. A peer that breaks a
 * rule is disconnected, without harm to others. The number of connections and the time of half a frame are limited. The
 * server waits for nobody, calls no NCCL, and launches nothing. */

/* ---- Entries ----------------------------------------------------------------------------------------------------- */

/* One entry, with its vote, for each communicator whose ranks join here, found by its key. An entry is freed with its
 * last connection if all ranks have joined. Otherwise it is kept, so that a late rank gets the result of the others,
 * until newer entries need the room. */

/* Larger communicators do not join. */
enum { RDV_ENTRIES_MAX = 256, RDV_RANKS_MAX = COLL_RANKS_MAX };

struct rdv_entries {
    struct rdv_entry *newest;
    unsigned count;
};

/* Rank of an entry. */
struct rdv_slot {
    struct rdv_entry *entry; /* NULL: none */
    int rank;
};

/* ---- The server -------------------------------------------------------------------------------------------------- */

struct rdv_server;

/* NULL: no address to listen at, or no memory. */
struct rdv_server *rdv_server_open(struct coll_rdv_endpoint *endpoint);
/* Waits for events, for at most so many milliseconds; -1: without limit. */
void rdv_server_wait(struct rdv_server *server, int milliseconds);
/* Handles the events that rdv_server_wait has found. */
void rdv_server_progress(struct rdv_server *server);
/* Takes over a connection that was accepted elsewhere. */
void rdv_server_adopt(struct rdv_server *server, int socket);
/* Closes this process's descriptors; a forked child may do so while its parent goes on serving. */
void rdv_server_close(struct rdv_server *server);

/* Numbers of connections and of entries. */
void rdv_server_counts(const struct rdv_server *server, unsigned *conns, unsigned *entries);

/* ---- Unique ids -------------------------------------------------------------------------------------------------- */

/* Payload of ncclUniqueId: NCCL uses only the first bytes of an id and leaves the others zero, where the endpoint of
 * the server of this process, started by the first id, is stored. An id whose last bytes are in use stays unchanged.
 * Any thread. */
void coll_unique_id_put(coll_id *id);
/* An id without a payload gives an endpoint of zeros. */
void coll_unique_id_read(const coll_id *id, struct coll_rdv_endpoint *endpoint);

/* The same for an id by which a communicator grows. Ranks of the parent derive the child's key from the parent's, and
 * have no id but for one of them; new ranks have nothing else: so the key itself is the payload. Put stores it in an id
 * that is zero behind what NCCL uses; read returns no key if there is none. */
void coll_grow_id_put(coll_id *id, const struct coll_key *key);
struct coll_key coll_grow_id_read(const coll_id *id);

/* Around fork. In the child, coll_unique_id_clear before unlocking drops the parent's server; the child's first id
 * starts one of its own. */
void coll_unique_id_lock(void);
void coll_unique_id_unlock(void);
void coll_unique_id_clear(void);

#endif
