#ifndef STRAIT_COLLECTIVE_HALL_H
#define STRAIT_COLLECTIVE_HALL_H

#include "collective/key.h"
#include "collective/meeting.h"
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
    enum coll_round round;
    struct coll_word word; /* for MEET_SAY; for MEET_PASS only its index */
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
    if (action < MEET_SAY || action >= MEET_ACTIONS || round >= COLL_ROUNDS)
        return false;
    *request = (struct meet_request){.action = (enum meet_action)action,
                                     .round = (enum coll_round)round,
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

static inline void meet_view_put(uint8_t frame[MEET_FRAME_BYTES], const struct coll_view *view)
{
    const uint32_t flags = (view->all ? MEET_VIEW_ALL : 0u) | (view->paired ? MEET_VIEW_PAIRED : 0u);
    store_le32(frame, MEET_VIEW);
    store_le32(frame + 4, (uint32_t)view->ending | flags);
    store_le32(frame + 8, (uint32_t)view->about);
    store_le32(frame + 12, (uint32_t)view->absent);
    for (int i = 0; i < COLL_NAMED_MAX; i++)
        store_le32(frame + 16 + 4 * i, (uint32_t)view->named[i]);
}

static inline bool meet_view_get(const uint8_t frame[MEET_FRAME_BYTES], struct coll_view *view)
{
    const uint32_t what = load_le32(frame + 4), ending = what & 0xff;
    *view = (struct coll_view){.ending = (enum coll_ending)ending,
                               .about = (int)load_le32(frame + 8),
                               .all = (what & MEET_VIEW_ALL) != 0,
                               .paired = (what & MEET_VIEW_PAIRED) != 0,
                               .absent = (int)load_le32(frame + 12)};
    for (int i = 0; i < COLL_NAMED_MAX; i++)
        view->named[i] = (int)load_le32(frame + 16 + 4 * i);
    return load_le32(frame) == MEET_VIEW && ending < COLL_ENDING_LOST && view->absent >= 0;
}

/* The boards of a hall (hall.h): one for each communicator whose ranks meet there, found by its key. No I/O except
 * checking whether a connection has ended.
 *
 * All input is untrusted: hall_hear and hall_sit reject a rank that breaks a rule, so that it is disconnected, and
 * others come to no harm. A board goes with its last rank if all have come, as no other rank will. Otherwise it stays,
 * so that a late rank hears what the others have heard, until newer boards take up all the room. */

/* Larger communicators do not join. */
enum { HALL_TABLES_MAX = 256, HALL_RANKS_MAX = COLL_REDUCE_SOURCES_MAX };

struct hall_tables {
    struct hall_table *newest;
    unsigned count;
};

/* A rank's place at a table. */
struct hall_seat {
    struct hall_table *table; /* NULL: none */
    int rank;
};

/* False: this rank, connected by `socket`, is refused. */
bool hall_sit(struct hall_tables *tables, const struct meet_hello *hello, int socket, struct hall_seat *seat);
/* Does what is requested; *view is the answer, if there is one. False: it breaks a rule, or is MEET_LEAVE. */
bool hall_hear(const struct hall_seat *seat, const struct meet_request *request, struct coll_view *view);
/* The rank's connection has ended, or is about to. The table may be freed. */
void hall_rise(struct hall_tables *tables, struct hall_seat *seat);
/* Frees all tables. */
void hall_clear(struct hall_tables *tables);

/* A process's place to meet (meeting.h), for ranks anywhere: it listens, and answers their requests. A connection is
 * untrusted until it shows the secret, and its requests are validated even then. The number of connections, and how
 * long half a frame may last, are limited. Nothing here waits for anybody, calls NCCL, or launches anything. */

struct hall;

/* NULL: it cannot listen anywhere, or there is no memory. */
struct hall *hall_open(struct coll_place *place);
/* Waits until there is something to do, for at most so many milliseconds; -1: without limit. */
void hall_await(struct hall *hall, int milliseconds);
/* Does what there is to do then. */
void hall_serve(struct hall *hall);
/* Takes over a connection that was accepted elsewhere. */
void hall_take(struct hall *hall, int socket);
/* Closes what this process has of it; a forked child may do so while its parent goes on. */
void hall_close(struct hall *hall);

/* Numbers of connections and of boards. */
void hall_count(const struct hall *hall, unsigned *guests, unsigned *tables);

/* The place where ranks meet travels in the unique id: NCCL uses only its first bytes and leaves the others zero. There
 * the process that asks for an id puts a card with its own place (hall.h), which it opens then. An id that already has
 * something there stays unchanged. Any thread. */

void coll_card_put(coll_id *id);
/* If there is none, *place is all zero. */
void coll_card_read(const coll_id *id, struct coll_place *place);

/* Around fork. In the child, coll_card_clear before unlocking forgets the parent's place; the child will open its
 * own. */
void coll_card_lock(void);
void coll_card_unlock(void);
void coll_card_clear(void);

#endif
