/* One end of an NCCL link, on a GPU of its own, in a process of its own. Chunks carry their number and size in the
 * header and in every byte. */
#ifndef STRAIT_TESTS_GPU_NCCL_SIDE_H
#define STRAIT_TESTS_GPU_NCCL_SIDE_H

#include "tests/gpu/device.h"
#include "transport/transport.h"

#define SLOT_BYTES    ((size_t)16 << 20)
#define SEND_SLOTS    8u
#define RECEIVE_SLOTS 32u /* the receiver chooses one that is free: senders are ahead of what it has looked at */

struct nccl_side {
    int number;  /* 0 or 1: of the GPU, too */
    int control; /* a stream socket to the other side */
    struct transport *transport;
    struct link *link;
    uint8_t *arena, *source, *staging; /* of the GPU, of the GPU, of the host */

    /* What to do. */
    bool unchecked;        /* content is not looked at, nor made */
    unsigned refuse_every; /* 0: none */

    /* What happened. */
    unsigned connected, broken, closed, arriving, arrived, arrived_badly, refused, sent, sent_badly;
    const char *why;
    uint64_t next;            /* number of the next chunk */
    bool sending[SEND_SLOTS]; /* without `sent` */
    bool landing[RECEIVE_SLOTS];
    uint64_t sequence[RECEIVE_SLOTS];
    size_t size[RECEIVE_SLOTS];
};

uint64_t now_us(void);
uint64_t now_ms(void);

/* False: NCCL is not to be had here, and why was printed. */
bool side_create(struct nccl_side *side, const char *options);
void side_destroy(struct nccl_side *side);

/* Progress, then sleep for at most `timeout` ms, but not when something is due. */
void side_step(struct nccl_side *side, int timeout);
#define SIDE_AWAIT(side, seconds, condition)                    \
    do {                                                        \
        uint64_t await_start_ = now_ms();                       \
        while (!(condition)) {                                  \
            require(now_ms() - await_start_ < (seconds)*1000u); \
            side_step(side, 100);                               \
        }                                                       \
    } while (0)

/* Tells the other side something, and hears what it tells. */
void side_tell(struct nccl_side *side, const void *bytes, size_t size);
void side_hear(struct nccl_side *side, void *bytes, size_t size);
/* Until the other side is there, too. */
void side_meet(struct nccl_side *side);

/* With the other side, which does the same. */
void side_open(struct nccl_side *side);
void side_connect(struct nccl_side *side);
void side_close(struct nccl_side *side);  /* and waits for the end */
void side_forget(struct nccl_side *side); /* the counters */

/* Sends the next chunk when a slot is free. False: none is. */
bool side_send(struct nccl_side *side, size_t size);
unsigned side_under_way(const struct nccl_side *side);
/* Nothing may come any more: what is written over the arena stays for some time. */
void side_watch_arena(struct nccl_side *side);

#endif
