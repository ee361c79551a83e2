/* Two owners of transports for the tests, in one process or two: they exchange chunks with known content, count every
 * callback, and sleep in poll whenever a transport permits it. */
#ifndef STRAIT_TESTS_TRANSPORT_SIDES_H
#define STRAIT_TESTS_TRANSPORT_SIDES_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal/bytes.h"
#include "tests/run_suite.h"
#include "tests/support.h"
#include "transport/transport.h"

#define SLOTS      8u
#define SLOT_BYTES ((size_t)4 << 20)
#define WAIT_MS    20000

struct side {
    const struct transport_ops *ops;
    struct transport *transport;
    struct link *link;
    struct transport_arena arena;
    uint8_t *source; /* SLOTS slots to send from */
    void *handle;

    /* Behaviour. */
    bool unchecked;       /* content is not checked: the peer reuses its slots at any time */
    bool refuse;          /* answer `arriving` with no */
    bool close_on_broken; /* close at once, as every owner should */
    bool close_on_arriving;
    uint64_t next; /* number of the next chunk */

    /* Events so far. */
    unsigned connected, broken, closed, arriving, arrived, arrived_badly, sent, sent_badly, late;
    const char *why;
    uint64_t last_sequence, highest_sequence;
    unsigned overtaken; /* chunks that arrived after a later one */
    size_t last_size;
    bool sending[SLOTS];      /* source slots of sends whose `sent` has not come */
    unsigned landing[SLOTS];  /* chunks for own slots whose `arrived` has not come */
    uint64_t sequence[SLOTS]; /* numbers of the chunks that come into them */
    size_t size[SLOTS];
    unsigned damaged; /* chunks that arrived with wrong bytes */
};

/* The kinds of transport that a test of all of them loops over: those of this build, nccl's without NCCL and without a
 * GPU. With STRAIT_TEST_UCX_ON_GPUS in the environment it is UCX alone, as it is between GPUs, whose memory the host's
 * stands in for. */
int kind_count(void);
const struct transport_ops *kind_at(int index);

/* Whether arenas are in GPU memory, if the kind of transport supports both; else they are in host memory. */
extern bool sides_on_gpus;
uint32_t side_memory(const struct transport_ops *ops);

/* Makes the side with a link of shared memory whose other end a test plays by hand: returns its socket. */
int side_open_by_hand(struct side *side, enum link_side which, const void *address, size_t size);
/* Ends both; a side that was not made has no `transport`. */
void side_close_by_hand(struct side *side, int peer);

/* A sealed memfd of this many bytes, mapped to *base. */
int make_arena(size_t size, void **base);

/* Creates a transport that nobody uses, over memory of that kind, and destroys it. */
enum strait_status transport_try(const struct transport_ops *ops, uint32_t memory, const char *options);

/* `options` NULL: options that suit the tests. */
void side_init(struct side *side, const struct transport_ops *ops, const char *options);
void side_fini(struct side *side);

/* Both sides of a test that has both. */
extern struct side sides[2];
void sides_init(const struct transport_ops *ops, const char *options);
void sides_up(const struct transport_ops *ops, const char *options); /* connected, too */

/* Opens the links of two sides of this process, connects them, and waits until they are up. */
void sides_open(struct side both[2]);
void sides_begin(struct side both[2]);
void sides_connect(struct side both[2]);
/* The same with a side of another process, through `control`, a stream socket; `fd` is for link_open. */
void side_connect(struct side *side, int fd, enum link_side which, int control);

/* Sends the next chunk from source slot `slot` to the same slot of the peer. */
enum strait_status side_send(struct side *side, unsigned slot, size_t size);
/* Whether the slot can be sent from, as far as this side knows. */
bool side_may_send(const struct side *side, unsigned slot);

/* Progress, then poll for at most `timeout` ms, but not when something is due. */
void sides_step(struct side *of, unsigned count, int timeout);

/* Steps until `condition`; fails after WAIT_MS. */
#define WAIT_UNTIL(sides, count, condition)                                                              \
    do {                                                                                                 \
        uint64_t wait_start_ = milliseconds();                                                           \
        while (!(condition)) {                                                                           \
            ck_assert_msg(milliseconds() - wait_start_ < WAIT_MS, "waited in vain for: %s", #condition); \
            sides_step(sides, count, 100);                                                               \
        }                                                                                                \
    } while (0)
uint64_t milliseconds(void);

/* Closes both links, requires that nothing is in flight then, and frees everything. */
void sides_close(struct side both[2]);
void sides_teardown(void); /* the same for `sides` that are open: of every test */

#endif
