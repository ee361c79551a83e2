/* NCCL and CUDA as the NCCL transport uses them. Behind this interface is a plugin, a shared object that knows both.
 * It is loaded when a transport is made; without it, or without a GPU, there is no such transport. The tests have calls
 * of their own, whose GPU is made of threads and whose memory is the host's.
 *
 * Every int is NCCL_DONE, NCCL_BUSY where mentioned, or a negative error. All calls return soon, except for `abort` and
 * the first calls of a process, which load libraries and start the driver. Calls about one communicator, stream or
 * event come from one thread, which has called `enter` before. The first group of calls, before `enter`, comes from the
 * owner, on any thread. */
#ifndef STRAIT_TRANSPORT_NCCL_CALLS_H
#define STRAIT_TRANSPORT_NCCL_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NCCL_DONE 0
#define NCCL_BUSY 1

#define NCCL_ID_BYTES    128u /* an ncclUniqueId */
#define NCCL_PLACE_BYTES 16u

/* Where memory lies. */
struct nccl_place {
    int device;
    uint32_t multiprocessors;
    uint8_t identity[NCCL_PLACE_BYTES]; /* of the GPU: NCCL cannot connect a GPU with itself */
};

struct nccl_calls {
    uint32_t version; /* NCCL_CALLS_VERSION */
    uint32_t library; /* version of NCCL, 22809 for 2.28.9; both ends of a link need the same */
    /* Whether both ends of a link may be in one process. With NCCL they may not: one would store straight into the
     * other's memory, and could go on doing so after the other has aborted. */
    bool within_process;

    const char *(*text)(int error);                               /* static */
    int (*locate)(const void *pointer, struct nccl_place *place); /* an error: this is not memory of a GPU */

    int (*enter)(int device);                  /* sets this thread's GPU */
    int (*make_id)(uint8_t id[NCCL_ID_BYTES]); /* of a communicator to be made */
    /* Joins as rank 0 or 1 of two, with at most `blocks` thread blocks on the GPU at a time. BUSY: see `state`. *comm
     * is NULL after an error. */
    int (*join)(void **comm, const uint8_t id[NCCL_ID_BYTES], int rank, uint32_t blocks);
    int (*state)(void *comm); /* of the last call on it; BUSY: no other call is allowed yet */
    /* To and from the other rank. BUSY: the operation is on the stream only once `state` says DONE. */
    int (*send)(void *comm, const void *data, size_t size, void *stream);
    int (*receive)(void *comm, void *data, size_t size, void *stream);
    /* At any time, once: what the communicator has on streams ends soon, and the communicator is freed. */
    void (*abort)(void *comm);

    int (*stream_create)(void **stream);
    void (*stream_destroy)(void *stream);
    int (*stream_state)(void *stream); /* BUSY: something on it has not ended */
    int (*event_create)(void **event);
    void (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_state)(void *event); /* BUSY: something that was on the stream when it was recorded has not ended */
};

/* Incremented with every change of the structs above. */
#define NCCL_CALLS_VERSION 1u

/* The plugin and the function that it exports, which returns NULL, and why, when NCCL is unavailable. `library`: the
 * path of libnccl, or NULL; only that of the first successful call in a process counts. */
#define NCCL_PLUGIN        "libstrait-transport-nccl.so.0"
#define NCCL_PLUGIN_SYMBOL "strait_transport_nccl_calls"
typedef const struct nccl_calls *nccl_calls_get(const char *library, char *why, size_t why_size);

#endif
