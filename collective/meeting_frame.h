/* The protocol between ranks and the process they meet at, over TCP: frames of one size, numbers little-endian. A rank
 * says hello and is answered with a view of the first round; then each request is answered with a view of its round.
 * Whoever sends anything else is disconnected without an answer. */
#ifndef STRAIT_COLLECTIVE_MEETING_FRAME_H
#define STRAIT_COLLECTIVE_MEETING_FRAME_H

#include "collective/board.h"
#include "collective/key.h"
#include "internal/bytes.h"

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

#endif
