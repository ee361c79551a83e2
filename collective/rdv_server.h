#ifndef STRAIT_COLLECTIVE_RDV_SERVER_H
#define STRAIT_COLLECTIVE_RDV_SERVER_H

#include "collective/key.h"
#include "collective/rendezvous.h"
#include "collective/nccl_types.h"
#include "collective/reduce.h"
#include "internal/bytes.h"

/* The protocol between ranks and the process they meet at, over TCP: frames of one size, numbers little-endian. A rank
 * says hello and is answered with a view of the first round; then each request is answered with a view of its round.
 * Whoever sends anything else is disconnected without an answer. */

enum { MEET_FRAME_BYTES = 48 };

/* magic, rank, ranks, key, secret: "STRMEET1" */
#define MEET_HELLO UINT64_C(0x315445454d525453)

struct meet_hello {
    uint64_t words[2];
    uint32_t rank, ranks;
    uint8_t secret[COLL_SECRET_BYTES];
};

static inline void meet_hello_put(uint8_t frame[MEET_FRAME_BYTES], const struct meet_hello *hello)
{
    store_le64(frame, MEET_HELLO);
    store_le32(frame + 8, hello->rank);
    store_le32(frame + 12, hello->ranks);
    store_le64(frame + 16, hello->words[0]);
    store_le64(frame + 24, hello->words[1]);
    memcpy(frame + 32, hello->secret, COLL_SECRET_BYTES);
}

/* False: it is not a hello. */
static inline bool meet_hello_get(const uint8_t frame[MEET_FRAME_BYTES], struct meet_hello *hello)
{
    *hello = (struct meet_hello){.words = {load_le64(frame + 16), load_le64(frame + 24)},
                                 .rank = load_le32(frame + 8),
                                 .ranks = load_le32(frame + 12)};
    memcpy(hello->secret, frame + 32, COLL_SECRET_BYTES);
    return load_le64(frame) == MEET_HELLO;
}

/* action, round, word, zeros */
/* MEET_PASS and MEET_LEAVE are not answered. */
enum meet_action { MEET_SAY = 1, MEET_LOOK, MEET_GIVE_UP, MEET_LEAVE, MEET_PASS, MEET_ACTIONS };

struct meet_request {
    enum meet_action action;
    enum coll_vote_phase round;
    struct coll_ballot word; /* for MEET_SAY; for MEET_PASS only its index */
};

static inline void meet_request_put(uint8_t frame[MEET_FRAME_BYTES], const struct meet_request *request)
{
    memset(frame, 0, MEET_FRAME_BYTES);
    store_le32(frame, request->action);
    store_le32(frame + 4, request->round);
    store_le32(frame + 8, request->word.able);
    store_le32(frame + 12, request->word.blocks);
    store_le32(frame + 16, request->word.index);
    store_le32(frame + 20, request->word.paired);
    store_le64(frame + 24, request->word.thread);
}

static inline bool meet_request_get(const uint8_t frame[MEET_FRAME_BYTES], struct meet_request *request)
{
    const uint32_t action = load_le32(frame), round = load_le32(frame + 4);
    if (action < MEET_SAY || action >= MEET_ACTIONS || round >= COLL_VOTE_PHASES)
        return false;
    *request = (struct meet_request){.action = (enum meet_action)action,
                                     .round = (enum coll_vote_phase)round,
                                     .word = {.able = load_le32(frame + 8),
                                              .blocks = load_le32(frame + 12),
                                              .index = load_le32(frame + 16),
                                              .paired = load_le32(frame + 20),
                                              .thread = load_le64(frame + 24)}};
    return true;
}

/* magic "VIEW"; ending, and flags for what all and any have said; about; absent; named */
#define MEET_VIEW UINT32_C(0x57454956)
enum { MEET_VIEW_ALL = 1 << 8, MEET_VIEW_PAIRED = 1 << 9 };

static inline void meet_view_put(uint8_t frame[MEET_FRAME_BYTES], const struct coll_vote_state *view)
{
    const uint32_t flags = (view->all ? MEET_VIEW_ALL : 0u) | (view->paired ? MEET_VIEW_PAIRED : 0u);
    store_le32(frame, MEET_VIEW);
    store_le32(frame + 4, (uint32_t)view->ending | flags);
    store_le32(frame + 8, (uint32_t)view->about);
    store_le32(frame + 12, (uint32_t)view->absent);
    for (int i = 0; i < COLL_NAMED_MAX; i++)
        store_le32(frame + 16 + 4 * i, (uint32_t)view->named[i]);
}

static inline bool meet_view_get(const uint8_t frame[MEET_FRAME_BYTES], struct coll_vote_state *view)
{
    const uint32_t what = load_le32(frame + 4), ending = what & 0xff;
    *view = (struct coll_vote_state){.ending = (enum coll_vote_result)ending,
                                     .about = (int)load_le32(frame + 8),
                                     .all = (what & MEET_VIEW_ALL) != 0,
                                     .paired = (what & MEET_VIEW_PAIRED) != 0,
                                     .absent = (int)load_le32(frame + 12)};
    for (int i = 0; i < COLL_NAMED_MAX; i++)
        view->named[i] = (int)load_le32(frame + 16 + 4 * i);
    return load_le32(frame) == MEET_VIEW && ending < COLL_VOTE_LOST && view->absent >= 0;
}

/* The boards of a hall (hall.h): one for each communicator whose ranks meet there, found by its key. No I/O except
 * checking whether a connection has ended.
 *
 * All input is untrusted: hall_hear and hall_sit reject a rank that breaks a rule, so that it is disconnected, and
 * others come to no harm. A board goes with its last rank if all have come, as no other rank will. Otherwise it stays,
 * so that a late rank hears what the others have heard, until newer boards take up all the room. */

/* Larger communicators do not join. */
enum { RDV_ENTRIES_MAX = 256, RDV_RANKS_MAX = COLL_REDUCE_SOURCES_MAX };

struct rdv_entries {
    struct rdv_entry *newest;
    unsigned count;
};

/* A rank's place at a table. */
struct rdv_slot {
    struct rdv_entry *table; /* NULL: none */
    int rank;
};

/* False: this rank, connected by `socket`, is refused. */
bool rdv_admit(struct rdv_entries *tables, const struct meet_hello *hello, int socket, struct rdv_slot *seat);
/* Does what is requested; *view is the answer, if there is one. False: it breaks a rule, or is MEET_LEAVE. */
bool rdv_handle(const struct rdv_slot *seat, const struct meet_request *request, struct coll_vote_state *view);
/* The rank's connection has ended, or is about to. The table may be freed. */
void rdv_depart(struct rdv_entries *tables, struct rdv_slot *seat);
/* Frees all tables. */
void rdv_entries_free(struct rdv_entries *tables);

/* A process's place to meet (meeting.h), for ranks anywhere: it listens, and answers their requests. A connection is
 * untrusted until it shows the secret, and its requests are validated even then. The number of connections, and how
 * long half a frame may last, are limited. Nothing here waits for anybody, calls NCCL, or launches anything. */

struct rdv_server;

/* NULL: it cannot listen anywhere, or there is no memory. */
struct rdv_server *rdv_server_open(struct coll_rdv_endpoint *place);
/* Waits until there is something to do, for at most so many milliseconds; -1: without limit. */
void rdv_server_wait(struct rdv_server *rdv_server, int milliseconds);
/* Does what there is to do then. */
void rdv_server_progress(struct rdv_server *rdv_server);
/* Takes over a connection that was accepted elsewhere. */
void rdv_server_adopt(struct rdv_server *rdv_server, int socket);
/* Closes what this process has of it; a forked child may do so while its parent goes on. */
void rdv_server_close(struct rdv_server *rdv_server);

/* Numbers of connections and of boards. */
void rdv_server_counts(const struct rdv_server *rdv_server, unsigned *conns, unsigned *tables);

/* The place where ranks meet travels in the unique id: NCCL uses only its first bytes and leaves the others zero. There
 * the process that asks for an id puts a card with its own place (hall.h), which it opens then. An id that already has
 * something there stays unchanged. Any thread. */

void coll_unique_id_put(coll_id *id);
/* If there is none, *place is all zero. */
void coll_unique_id_read(const coll_id *id, struct coll_rdv_endpoint *place);

/* Around fork. In the child, coll_card_clear before unlocking forgets the parent's place; the child will open its
 * own. */
void coll_unique_id_lock(void);
void coll_unique_id_unlock(void);
void coll_unique_id_clear(void);

#endif
