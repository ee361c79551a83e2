/* A daemon played by the test: it is a peer of nodes over shm, and sends and stores whatever the test wants, in any
 * order. It has a receive arena in host memory, and memory of the fake plugin that it presents as a GPU's; for both it
 * knows which bytes may have been written. It runs on the test's thread while that waits: ROGUE_WAIT. */
#ifndef STRAIT_TESTS_ROGUE_H
#define STRAIT_TESTS_ROGUE_H

#include "tests/node/harness.h"

#include "daemon/chunk_header.h"
#include "proto/blob.h"
#include "tests/fakes/device.h"

enum { ROGUE_SLOTS = 8, ROGUE_FAR_SLOTS = 8, ROGUE_LIST_MAX = 64, ROGUE_SLOT_BYTES = 64 << 10 };

/* What nodes have sent. */
struct rogue_heard {
    struct message_arena arena; /* the latest one, as with all fields that are not lists */
    struct fake_handle handle;
    struct message_reach reach;
    struct message_request request;
    struct message_grant grants[ROGUE_LIST_MAX];
    uint64_t released[ROGUE_LIST_MAX];
    struct chunk_header chunks[ROGUE_LIST_MAX];
    size_t chunk_sizes[ROGUE_LIST_MAX];
    struct message_end end;
    char noted[128]; /* why the latest note was not delivered; "": it was */
    uint32_t noted_count, arena_count, reach_count, request_count, grant_count, released_count, chunk_count,
        segments_count, end_count, sent_count;
    uint32_t ask_count, part_count, known_count; /* of codebook sets: */
    struct message_codebook_ask ask;             /* the latest; what it points to is gone, as with `part` */
    struct message_codebook_part part;
    uint8_t known[CODEBOOK_ID_BYTES];
    uint32_t asked_count, described_count;                       /* of how pools are laid out */
    uint64_t reshaped;                                           /* of the latest SEGMENTS */
    uint32_t units;                                              /* announced */
    uint32_t slots[MESSAGE_OPEN_MAX], granted[MESSAGE_OPEN_MAX]; /* of the latest REQUEST, and the latest SEGMENTS */
    uint32_t granted_count;
    bool last;
};

struct rogue {
    uv_loop_t loop;
    uv_timer_t pulse;
    struct node_options options;
    struct metrics metrics;
    struct peers *peers;
    struct peer *peer; /* the node, while it is up */
    bool went_down, closed;
    char why[128];
    struct transport_arena arena;
    const uint8_t *codebook;         /* the set that it says it has; NULL: none */
    bool codebooks;                  /* it says that it takes sets, as daemons of earlier releases do not */
    uint32_t block_modes;            /* it says that it decodes these; 0: nothing, as daemons of earlier releases */
    bool reshapes;                   /* it says that it takes tiles, which such daemons do not either */
    uint32_t slot_bytes, slot_count; /* as it claims */
    uint8_t *far;                    /* its GPU's memory: the slots, then as many bytes again */
    int far_fd;
    uint32_t far_slot_bytes;
    size_t far_size;
    int listener;
    struct rogue_heard heard;
};

/* Claims its slots as they are; the test may change the claims before rogue_meet. */
void rogue_init(struct rogue *rogue, uint32_t far_slot_bytes);
void rogue_dial(struct rogue *rogue, const struct test_node *node); /* to be repeated while the test waits */
void rogue_meet(struct rogue *rogue, const struct test_node *node); /* dials until the connection is up */
void rogue_leave(struct rogue *rogue);                              /* in order */
void rogue_fini(struct rogue *rogue);

void rogue_say(struct rogue *rogue, const struct message *message);
/* Sends a chunk for the header's slot, whatever its content. */
void rogue_send(struct rogue *rogue, const struct chunk_header *header, size_t size);

/* A name for this memory that the fake plugin knows. */
struct fake_handle rogue_handle(const struct rogue *rogue);
struct message rogue_arena(const struct rogue *rogue, const struct fake_handle *handle, uint32_t device,
                           uint32_t first_slot);
/* A pool as its node describes it. blob_fini is the caller's. */
struct pool_blob blob_of(struct test_pool *pool);
/* A request for pages [0, span->count) of group 0 of the offer with that key; without a grant. */
struct message rogue_request(const struct pool_blob *pool, const char *key, uint64_t leg, const struct wire_span *span);

/* Whether nothing was written outside these slots: bit masks of the host's and of the GPU's. */
bool rogue_untouched(const struct rogue *rogue, uint32_t near_slots, uint32_t far_slots);

void rogue_turn(struct rogue *rogue);

/* Like WAIT, while the rogue runs. */
#define ROGUE_WAIT(rogue, expression)                                   \
    do {                                                                \
        uint64_t rogue_end = wait_clock() + 15000ull * SLOW * 1000000u; \
        while (!(expression) && wait_clock() < rogue_end) {             \
            rogue_turn(rogue);                                          \
            pump(1);                                                    \
        }                                                               \
        ck_assert_msg(expression, #expression);                         \
    } while (0)

#endif
