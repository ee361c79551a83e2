/* GPU operations of the engine: memory, order, and some small kernels. collective/cuda implements it with the CUDA
 * runtime, tests with plain memory. Everything is queued on a stream and nothing waits, unless stated. False or an
 * error means that the GPU failed. */
#ifndef STRAIT_COLLECTIVE_ENGINE_GPU_H
#define STRAIT_COLLECTIVE_ENGINE_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <strait/codec.h>

#include "collective/engine/rings.h"
#include "collective/engine/shm.h"
#include "collective/api.h"
#include "collective/ranks.h"
#include "collective/reduce.h"

typedef struct CUevent_st *gpu_event;

enum {
    HEAD_BYTES = 256, /* of a message */
    REPORTS_MAX = 64,
    MESSAGE_MAGIC = 0x53434d34,
    STATUS_BAD_HEADER = 1, /* a head was changed on its way, or belongs to another operation */
};

/* Begins every message. row: bit j: this rank's message number j overflows; of a message to all ranks or to a single
 * one, bit 0. most: the largest main part of all of this rank's messages; UINT64_MAX if one could not be encoded. A
 * rank that gets a message from every other one thus knows of all overflows, and how much room there should be. */
struct message_head {
    uint32_t magic;
    uint32_t tail_status, main_status, reserved;
    uint64_t tail_bytes, main_bytes;
    uint64_t first; /* slot of the values in the receiver's ring, if the message overflows */
    struct rank_set row;
    uint64_t most;
    uint64_t sum; /* head_sum of all fields before it */
    uint8_t padding[HEAD_BYTES - 56 - sizeof(struct rank_set)];
};

/* The checksum of a message's head, the same on GPUs and here: any single flipped bit changes it. Rows decide whether
 * ranks wait for each other, so a damaged one must not be believed. */

#ifdef __CUDACC__
#define HEAD_FUNCTION __host__ __device__ static inline
#else
#define HEAD_FUNCTION static inline
#endif

/* Every step is a bijection of the state and of the word, so different inputs stay different. */
HEAD_FUNCTION uint64_t head_sum(const struct message_head *head)
{
    const uint64_t *words = (const uint64_t *)(const void *)head;
    uint64_t sum = UINT64_C(0x9e3779b97f4a7c15);
    for (unsigned i = 0; i < offsetof(struct message_head, sum) / sizeof(*words); i++) {
        sum = (sum ^ words[i]) * UINT64_C(0xbf58476d1ce4e5b9);
        sum ^= sum >> 31;
    }
    return sum;
}

/* A message of an op class overflowed, or it was a probe. */
struct report {
    uint64_t count; /* such operations of the op class and probes, including this one */
    uint64_t index; /* the operation's */
    uint32_t local_class;
    uint32_t share; /* 1024ths that main parts of the op class needed since the last report; 1024: cannot be encoded */
};
#define REPORT_PROBE (UINT32_C(1) << 31) /* with the share: of a probe (budget.h) */

/* Overflow counters by local class, to be reported; in the GPU's memory, initially zero. */
struct overflow_counter {
    uint64_t count;
    uint32_t share, reserved;
};

/* Written by kernels for the host, in pinned memory; one for each communicator. */
struct host_status {
    uint32_t abort;    /* kernels give up; set by any thread, or by a kernel that has given up */
    uint32_t failed;   /* the first failure: an enum strait_status, negative as it is, or STATUS_BAD_HEADER */
    uint64_t bell;     /* 1: kernels have changed flags of rings (ring_set) */
    uint64_t reported; /* reports so far, written after them; the last REPORTS_MAX are kept */
    struct report reports[REPORTS_MAX];
};

/* Where messages lie: one every `stride` bytes, except number `skip`. */
struct message_list {
    uint8_t *base;
    uint64_t stride;
    uint32_t count, skip;                 /* skip >= count: none */
    uint64_t tail_at, main_at, main_room; /* in a message; 0: it has no tail, no main part */
};

/* Only MESSAGE_FITS is decoded. */
enum message_found { MESSAGE_FITS, MESSAGE_OVERFLOWS, MESSAGE_BAD };

/* The values of an op, uncompressed, for those of its messages that overflow: by number of the message, at multiples of
 * the strides; a stride of 0 means one for all ranks, or for a single peer. In the GPU's memory, so that a kernel finds
 * those of a whole group. */
struct exchange_job {
    const uint8_t *send, *sent;  /* values, heads; NULL: nothing is sent */
    uint8_t *receive, *received; /* values, heads; NULL: nothing is received */
    const uint32_t *found;       /* by received message: an enum message_found */
    uint64_t send_stride, sent_stride, receive_stride, received_stride, bytes;
    int32_t peer;         /* -1: all others, of those that have a message */
    uint32_t root;        /* 1 + the only rank that sends; 0: all do */
    uint32_t first, step; /* message i is that of rank first + i * step; there are those of all such ranks */
    uint64_t number;      /* of its messages' records; set by the kernel that stores the job */
};

/* Number of a rank's message in a job; EXCHANGE_NO_MESSAGE: the rank has none. */
#define EXCHANGE_NO_MESSAGE UINT32_MAX
HEAD_FUNCTION uint32_t exchange_message(const struct exchange_job *job, uint32_t rank)
{
    return rank < job->first || (rank - job->first) % job->step != 0 ? EXCHANGE_NO_MESSAGE
                                                                     : (rank - job->first) / job->step;
}

#undef HEAD_FUNCTION

/* Writes the heads and records of messages from the encoder's results, and stores the op's job. Results of each
 * message: its tail's, then its main part's. If any message overflows, all get slots. A rank that sends nothing in a
 * collective writes that it fits: records of collectives have no gaps. */
struct gpu_write_headers {
    struct message_list list;            /* count 0: none */
    const struct strait_result *results; /* one for each part in the list, without skipped messages */
    struct ring_set rings;
    struct ring_ends *ends;
    uint64_t slots; /* that one message's values take */
    struct exchange_job job, *place;
};

/* Checks which messages overflow, and reports it: they are not chunks then, and are not decoded. A damaged head is a
 * failure, after which nothing waits any more. */
struct gpu_check {
    struct message_list list; /* received; count 0: none */
    const uint8_t *own;       /* the head of a message that was sent, or NULL */
    uint32_t bit;             /* the bit of this rank's message in the rows of what it receives */
    uint32_t *found;          /* result, by message: an enum message_found */
    uint64_t unit;            /* bytes of values in one 1024th of a main part */
    struct host_status *host_status;
    struct ring_ends *ends;                    /* NCCL has moved all (ring_ends.moving) */
    struct overflow_counter *overflow_counter; /* of the op class */
    uint64_t index;
    uint32_t local_class;
    uint32_t probe; /* REPORT_PROBE: it is reported even if all of it fits; else 0 */
};

/* Explained in exchange.h. */
enum exchange_kind { EXCHANGE_BESIDE, EXCHANGE_BEHIND };

struct gpu_exchange {
    struct ring_set rings;
    struct ring_ends *ends;
    const struct exchange_job *jobs;
    struct host_status *host_status;
    uint64_t patience_ns, pair_patience_ns; /* how long nothing may move */
    uint32_t count;                         /* of jobs */
    enum exchange_kind kind;
};

/* A message from each rank to each other one, through the channels of shm.h. That for a rank, and that from it, are at
 * the rank's multiple of the strides; bytes are even, and so are addresses. */
struct gpu_shm {
    struct shm_channels channels;    /* as host_status, set by shm_move */
    struct host_status *host_status; /* of the communicator */
    const uint8_t *send;
    uint8_t *receive;
    uint64_t send_stride, receive_stride, bytes;
    uint64_t patience_ns; /* how long nothing may move before the communicator fails; 0: for ever */
};

/* After decoding: all messages that were not moved uncompressed must have decoded well. */
struct gpu_verify {
    struct message_list list;            /* count and skip tell which messages the results belong to */
    const struct strait_result *results; /* as in gpu_write_headers */
    const uint32_t *found;
    struct host_status *host_status;
};

struct gpu_ops {
    /* NULL: kernels that wait for those of other ranks run as they must; else the reason why not, static. */
    const char *(*trouble)(void);
    /* Hash of the host id that NCCL was given for the current device; two that differ share nothing. 0: none. */
    uint64_t (*host)(void);
    const struct strait_codec *(*codec)(void); /* for the current device; NULL: there is none */
    unsigned (*multiprocessors)(void);         /* of the current device; 0: unknown */
    bool (*prepare)(void);                     /* loads what is launched, except the codec, on the current device */
    bool (*enter)(int device, int *before);
    void (*leave)(int before);
    /* Allowed while a stream is captured. */
    void *(*allocate)(size_t size, bool zero); /* on the current device; waits if `zero` */
    void (*release)(void *memory);
    void *(*allocate_pinned)(size_t size); /* GPU and host reach it at the same address; zero */
    void (*release_pinned)(void *memory);
    void *(*register_host)(void *memory,
                           size_t size); /* whole pages of host memory; returns the current device's address */
    void (*unregister_host)(void *memory);
    coll_stream (*stream_make)(void);
    void (*stream_end)(coll_stream stream);
    bool (*stream_wait)(coll_stream stream);        /* waits */
    uint64_t (*stream_capture)(coll_stream stream); /* id of the capture that the stream is part of; 0: none */
    gpu_event (*event_make)(bool timed);
    void (*event_end)(gpu_event event);
    bool (*event_record)(gpu_event event, coll_stream stream);
    bool (*event_follow)(coll_stream stream, gpu_event event); /* later work on the stream follows the event */
    /* The same from within a captured graph, each time that it runs, for work outside of it. */
    bool (*event_record_outside)(gpu_event event, coll_stream stream);
    bool (*event_follow_outside)(coll_stream stream, gpu_event event);
    bool (*event_over)(gpu_event event);                   /* true after an error, too */
    double (*event_seconds)(gpu_event from, gpu_event to); /* between two that are over; < 0: an error */
    bool (*zero)(void *memory, size_t size, coll_stream stream);
    bool (*copy)(void *dst, const void *src, size_t size, coll_stream stream);
    /* `rows` of `size` bytes each, at multiples of the strides. */
    bool (*copy_rows)(void *dst, size_t dst_stride, const void *src, size_t src_stride, size_t size, size_t rows,
                      coll_stream stream);
    bool (*write_headers)(const struct gpu_write_headers *headers, coll_stream stream);
    bool (*check)(const struct gpu_check *check, coll_stream stream);
    bool (*exchange)(const struct gpu_exchange *exchange, coll_stream stream);
    bool (*has_shm)(void); /* whether the current device's kernels move messages through channels */
    bool (*shm)(const struct gpu_shm *shm, coll_stream stream);
    bool (*verify)(const struct gpu_verify *verify, coll_stream stream);
    /* sm_budget: multiprocessors to occupy; 0: all. */
    bool (*reduce)(const struct coll_reduce *reduce, unsigned sm_budget, coll_stream stream);
};

/* The engine on given GPUs, as its plugin exports it (collective/engine.h). Called once for each process; *gpu has to
 * stay. */
struct coll_engine_ops;
const struct coll_engine_ops *engine_ops(const struct gpu_ops *gpu);

#endif
