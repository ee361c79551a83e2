/* What the engine needs of GPUs: memory, order, and some small kernels. Made of the CUDA runtime in collective/cuda,
 * and of plain memory by tests. Everything is queued on a stream and nothing waits, unless it says so. False, or an
 * error: it failed, as a GPU fails. */
#ifndef STRAIT_COLLECTIVE_ENGINE_GPU_H
#define STRAIT_COLLECTIVE_ENGINE_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <strait/codec.h>

#include "collective/engine/peer_gpu.h"
#include "collective/engine/rings.h"
#include "collective/nccl_types.h"
#include "collective/reduce.h"

enum {
    HEAD_BYTES = 128, /* of a message */
    RANKS_MAX = 512,  /* that a head has room for; communicators of more than sums are made of stay raw */
    ROW_WORDS = RANKS_MAX / 64,
    REPORTS_MAX = 64,
    MESSAGE_MAGIC = 0x53434d33,
    MAIL_BAD_HEAD = 1, /* what a message begins with was changed on its way, or is not of this operation */
};

/* Begins every message. row: bit j: this rank's message to rank j did not fit; of a message to all, and of one to a
 * single rank, bit 0. most: the largest main part of all of this rank's messages, UINT64_MAX when one could not be
 * encoded. Every rank that gets a message from every other one so knows of all, and how much room there should be. */
struct message_head {
    uint32_t magic;
    uint32_t tail_status, main_status, reserved;
    uint64_t tail_bytes, main_bytes;
    uint64_t first; /* slot of the values in the ring to who gets it, when it did not fit */
    uint64_t row[ROW_WORDS];
    uint64_t most;
    uint64_t sum; /* of what is before it (head.h) */
    uint8_t padding[HEAD_BYTES - 56 - 8 * ROW_WORDS];
};

/* A message of some kind did not fit. */
struct report {
    uint64_t count; /* of such operations of the kind, this one too */
    uint64_t index; /* the operation's */
    uint32_t key;
    uint32_t share; /* 1024ths that main parts of the kind needed since the report before; 1024: cannot be encoded */
};

/* Of what is to be reported, by key; in the GPU's memory, zero at first. */
struct tally {
    uint64_t count;
    uint32_t share, reserved;
};

/* In pinned memory, of a member. */
struct mail {
    uint32_t abort;    /* kernels give up; any thread may set it, and a kernel that has */
    uint32_t failed;   /* the first failure: an enum strait_status, negative as they are, or MAIL_BAD_HEAD */
    uint64_t reported; /* reports so far, written behind them; the last REPORTS_MAX of them are there */
    struct report reports[REPORTS_MAX];
};

/* Where messages lie: one every `stride` bytes, all but number `skip`. */
struct message_list {
    uint8_t *base;
    uint64_t stride;
    uint32_t count, skip;                 /* skip >= count: none */
    uint64_t tail_at, main_at, main_room; /* in a message; tail_at 0: it has none, main_at 0 likewise */
};

/* What is not MESSAGE_FITS is not decoded. */
enum message_found { MESSAGE_FITS, MESSAGE_OVERFLOWS, MESSAGE_BAD };

/* Values of a step as they are, for those of its messages that do not fit: by rank, at multiples of the strides, or
 * with strides of 0 one for all or of one peer. In the GPU's memory, so that a kernel finds those of a whole group. */
struct exchange_job {
    const uint8_t *send, *sent;  /* values, heads; NULL: nothing is sent */
    uint8_t *receive, *received; /* likewise */
    const uint32_t *found;       /* by message that was received: an enum message_found */
    uint64_t send_stride, sent_stride, receive_stride, received_stride, bytes;
    int32_t peer; /* -1: all others */
    uint32_t reserved;
    uint64_t number; /* of its messages' records; by the kernel that takes it down */
};

/* Writes the heads and records of messages from the results of their encoder: of each its tail's, then its main part's.
 * When any did not fit, all get slots. And the step's job. */
struct gpu_seal {
    struct message_list list;            /* count 0: none */
    const struct strait_result *results; /* as many as the list has parts, skipped ones left out */
    struct ring_set rings;
    struct ring_ends *ends;
    uint64_t slots; /* that the values of a message take */
    struct exchange_job job, *place;
};

/* Looks which of the messages did not fit, and reports it. A head that is not whole is a failure, after which nothing
 * waits any more. */
struct gpu_check {
    struct message_list list; /* received; count 0: none */
    const uint8_t *own;       /* the head of one that was sent, or NULL */
    uint32_t bit;             /* of this rank in the rows of what it receives */
    uint32_t *found;          /* set, by message: an enum message_found */
    uint64_t unit;            /* bytes of values in a 1024th of a main part */
    struct mail *mail;
    struct tally *tally; /* of the kind */
    uint64_t index;
    uint32_t key, reserved;
};

/* exchange.h says what the kinds are. */
enum exchange_kind { EXCHANGE_BESIDE, EXCHANGE_BEHIND };

struct gpu_exchange {
    struct ring_set rings;
    struct ring_ends *ends;
    const struct exchange_job *jobs;
    struct mail *mail;
    uint64_t patience_ns, pair_patience_ns; /* without that anything moves */
    uint32_t count;                         /* of jobs */
    enum exchange_kind kind;
};

/* Before decoding: what was moved as it is is no chunk any more, so that it is not decoded. */
struct gpu_void {
    struct message_list list;
    const uint32_t *found;
};

/* After decoding: what was not moved as it is has to be right. */
struct gpu_verify {
    struct message_list list;            /* count and skip say which messages the results are of */
    const struct strait_result *results; /* as of gpu_seal */
    const uint32_t *found;
    struct mail *mail;
};

struct gpu_ops {
    /* NULL: kernels that wait for those of other ranks run as they have to; else why not, static. */
    const char *(*trouble)(void);
    /* What NCCL was told of the host that the current device is in; of two that differ nothing is shared. 0: nothing.
     */
    uint64_t (*host)(void);
    const struct strait_codec *(*codec)(void); /* of the current device; NULL: it has none */
    bool (*prepare)(void);                     /* loads what is launched on the current device, the codec's apart */
    bool (*enter)(int device, int *before);
    void (*leave)(int before);
    /* Also while a stream is captured. */
    void *(*allocate)(size_t size, bool zero); /* in the current device; waits, when it is to be zero */
    void (*release)(void *memory);
    void *(*allocate_pinned)(size_t size); /* reached by GPU and host at the same address; zero */
    void (*release_pinned)(void *memory);
    void *(*share)(void *memory, size_t size); /* whole pages of the host's; where the current device reaches them */
    void (*unshare)(void *memory);
    coll_stream (*stream_make)(void);
    void (*stream_end)(coll_stream stream);
    bool (*stream_wait)(coll_stream stream);        /* waits */
    uint64_t (*stream_capture)(coll_stream stream); /* number of the capture that it is part of; 0: none */
    gpu_event (*event_make)(bool timed);
    void (*event_end)(gpu_event event);
    bool (*event_record)(gpu_event event, coll_stream stream);
    bool (*event_follow)(coll_stream stream, gpu_event event); /* what comes on the stream comes after it */
    /* The same from within a graph that is captured: whenever it runs, of what is outside of it. */
    bool (*event_record_outside)(gpu_event event, coll_stream stream);
    bool (*event_follow_outside)(coll_stream stream, gpu_event event);
    bool (*event_over)(gpu_event event);                   /* also when there is an error */
    double (*event_seconds)(gpu_event from, gpu_event to); /* of two that are over; < 0: an error */
    bool (*zero)(void *memory, size_t size, coll_stream stream);
    bool (*copy)(void *dst, const void *src, size_t size, coll_stream stream);
    bool (*seal)(const struct gpu_seal *seal, coll_stream stream);
    bool (*check)(const struct gpu_check *check, coll_stream stream);
    bool (*exchange)(const struct gpu_exchange *exchange, coll_stream stream);
    bool (*make_void)(const struct gpu_void *what, coll_stream stream);
    bool (*verify)(const struct gpu_verify *verify, coll_stream stream);
    bool (*reduce)(const struct coll_reduce *reduce, coll_stream stream);
    const struct gpu_peer_ops *peer;
};

#endif
