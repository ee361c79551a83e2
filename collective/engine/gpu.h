/* What the engine needs of GPUs: memory, order, and four small kernels. Made of the CUDA runtime in collective/cuda,
 * and of plain memory by tests. Everything is queued on a stream and nothing waits, unless it says so. False, or an
 * error: it failed, as a GPU fails. */
#ifndef STRAIT_COLLECTIVE_ENGINE_GPU_H
#define STRAIT_COLLECTIVE_ENGINE_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <strait/codec.h>

#include "collective/engine/peer_gpu.h"
#include "collective/nccl_types.h"
#include "collective/reduce.h"

enum {
    HEAD_BYTES = 128, /* of a message */
    RANKS_MAX = 512,  /* that a head has room for; communicators of more than sums are made of stay raw */
    ROW_WORDS = RANKS_MAX / 64,
    JOBS_MAX = 1024, /* of a group */
    MESSAGE_MAGIC = 0x53434d31,
};

/* Begins every message. row: bit j: this rank's message to rank j did not fit; of a message to all, and of one to a
 * single rank, bit 0. Every rank that gets a message from every other one so knows of all. */
struct message_head {
    uint32_t magic;
    uint32_t tail_status, main_status, reserved;
    uint64_t tail_bytes, main_bytes;
    uint64_t row[ROW_WORDS];
    uint8_t padding[HEAD_BYTES - 32 - 8 * ROW_WORDS];
};

/* What is moved again, uncompressed, when something did not fit: of a collective to and from all others, else to or
 * from `peer`. */
struct repair_job {
    const void *send; /* NULL: nothing */
    void *receive;    /* NULL: nothing */
    uint64_t send_stride, receive_stride, bytes;
    uint64_t index;
    uint32_t key;
    int32_t peer; /* -1: all */
};

/* In pinned memory, between kernels and the thread that repairs. */
struct mail {
    uint64_t posted, done; /* counted up: by the kernel, by the thread */
    uint32_t abort;        /* kernels give up */
    uint32_t failed;       /* a message was not what it should have been: an enum strait_status, negative as they are */
    uint32_t count;        /* of jobs */
    uint32_t reserved;
    struct repair_job jobs[JOBS_MAX];
};

/* In the GPU's memory, zero at first. */
struct mail_control {
    uint64_t posts;
    uint32_t count; /* of jobs that were found, until a meeting */
    uint32_t reserved;
};

/* Where messages lie: one every `stride` bytes, all but number `skip`. */
struct message_list {
    uint8_t *base;
    uint64_t stride;
    uint32_t count, skip;                 /* skip >= count: none */
    uint64_t tail_at, main_at, main_room; /* in a message; tail_at 0: it has none, main_at 0 likewise */
};

/* Writes the heads of messages from the results of their encoder: of each its tail's, then its main part's. */
struct gpu_seal {
    struct message_list list;
    const struct strait_result *results; /* as many as the list has parts, skipped ones left out */
};

/* Looks for messages that did not fit, and if there are any adds the job. */
struct gpu_check {
    struct message_list list; /* received; count 0: none */
    const uint8_t *own;       /* the head of one that was sent, or NULL */
    bool whole;               /* any bit of the rows counts, else bit 0 */
    uint32_t *found;          /* set: whether there are any */
    struct mail *mail;
    struct mail_control *control;
    struct repair_job job;
};

/* When jobs were added: waits until the thread has done them, for so long and then fails. */
struct gpu_meet {
    struct mail *mail;
    struct mail_control *control;
    uint64_t patience_ns;
};

/* Before decoding: what was moved again is no chunk any more, so that it is not decoded. */
struct gpu_void {
    struct message_list list;
    const uint32_t *found;
};

/* After decoding: what was not moved again has to be right. */
struct gpu_verify {
    const struct strait_result *results;
    uint32_t count;
    const uint32_t *found;
    struct mail *mail;
};

struct gpu_ops {
    /* NULL: what is launched beside kernels that wait cannot be counted on to run; why, static. */
    const char *(*trouble)(void);
    const struct strait_codec *(*codec)(void); /* of the current device; NULL: it has none */
    bool (*prepare)(void);                     /* loads what is launched on the current device, the codec's apart */
    bool (*enter)(int device, int *before);
    void (*leave)(int before);
    /* Also while a stream is captured. */
    void *(*allocate)(size_t size, bool zero); /* in the current device; waits, when it is to be zero */
    void (*release)(void *memory);
    void *(*allocate_pinned)(size_t size); /* reached by GPU and host at the same address; zero */
    void (*release_pinned)(void *memory);
    coll_stream (*stream_make)(void);
    void (*stream_end)(coll_stream stream);
    bool (*stream_wait)(coll_stream stream);        /* waits */
    uint64_t (*stream_capture)(coll_stream stream); /* number of the capture that it is part of; 0: none */
    gpu_event (*event_make)(bool timed);
    void (*event_end)(gpu_event event);
    bool (*event_record)(gpu_event event, coll_stream stream);
    bool (*event_follow)(coll_stream stream, gpu_event event); /* what comes on the stream comes after it */
    bool (*event_over)(gpu_event event);                       /* also when there is an error */
    double (*event_seconds)(gpu_event from, gpu_event to);     /* of two that are over; < 0: an error */
    bool (*zero)(void *memory, size_t size, coll_stream stream);
    bool (*copy)(void *dst, const void *src, size_t size, coll_stream stream);
    bool (*seal)(const struct gpu_seal *seal, coll_stream stream);
    bool (*check)(const struct gpu_check *check, coll_stream stream);
    bool (*meet)(const struct gpu_meet *meet, coll_stream stream);
    bool (*make_void)(const struct gpu_void *what, coll_stream stream);
    bool (*verify)(const struct gpu_verify *verify, coll_stream stream);
    bool (*reduce)(const struct coll_reduce *reduce, coll_stream stream);
    void (*thread_begin)(int device); /* in a thread of ours */
    const struct gpu_peer_ops *peer;
};

#endif
