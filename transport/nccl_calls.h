/* What the NCCL transport asks of NCCL and CUDA. Behind this interface is a plugin, a shared object that knows both;
 * the transport loads it when one is made, and without it, or without a GPU, there is none. The tests have calls of
 * their own, whose GPU is threads and whose memory is the host's.
 *
 * Every int is NCCL_DONE, NCCL_BUSY where that is said, or, negative, an error. All but `abort` and the first calls of
 * a process (which load libraries and start the driver) return soon. Calls about one communicator, stream or event
 * come from one thread, which called `enter` before; those of the owner, before the second group, from any. */
#ifndef STRAIT_TRANSPORT_NCCL_CALLS_H
#define STRAIT_TRANSPORT_NCCL_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NCCL_DONE 0
#define NCCL_BUSY 1

#define NCCL_ID_BYTES    128u /* an ncclUniqueId */
#define NCCL_PLACE_BYTES 16u

/* Where memory is. */
struct nccl_place {
    int device;
    uint32_t multiprocessors;
    uint8_t identity[NCCL_PLACE_BYTES]; /* of the GPU: NCCL connects no GPU with itself */
};

struct nccl_calls {
    uint32_t version; /* NCCL_CALLS_VERSION */
    uint32_t library; /* version of NCCL, 22809 for 2.28.9: both ends of a link need the same */
    /* Both ends of a link may be in one process. NCCL's may not: one would store straight into the other's memory, and
     * could go on with that after the other has aborted. */
    bool within_process;

    const char *(*text)(int error);                               /* static */
    int (*locate)(const void *pointer, struct nccl_place *place); /* an error: not memory of a GPU */

    int (*enter)(int device);                  /* of this thread */
    int (*make_id)(uint8_t id[NCCL_ID_BYTES]); /* of a communicator to be */
    /* Rank 0 or 1 of two, at most so many blocks of threads on the GPU at a time. BUSY: see `state`. *comm is NULL
     * after an error. */
    int (*join)(void **comm, const uint8_t id[NCCL_ID_BYTES], int rank, uint32_t blocks);
    int (*state)(void *comm); /* of what was last asked of it; BUSY: nothing else may be asked */
    /* To the other rank and from it. BUSY: it is on the stream only when `state` says DONE. */
    int (*send)(void *comm, const void *data, size_t size, void *stream);
    int (*receive)(void *comm, void *data, size_t size, void *stream);
    /* At any time, once: what it has on streams ends soon, and it is gone. */
    void (*abort)(void *comm);

    int (*stream_create)(void **stream);
    void (*stream_destroy)(void *stream);
    int (*stream_state)(void *stream); /* BUSY: something on it is not over */
    int (*event_create)(void **event);
    void (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_state)(void *event); /* BUSY: what was on the stream when it was recorded is not over */
};

/* Grows with every change of what is above. */
#define NCCL_CALLS_VERSION 1u

/* The plugin, and what it exports: NULL, and why, when NCCL is not to be had. `library`: the path of libnccl, or NULL;
 * only that of the first call in a process that succeeds is looked at. */
#define NCCL_PLUGIN        "libstrait-transport-nccl.so.0"
#define NCCL_PLUGIN_SYMBOL "strait_transport_nccl_calls"
typedef const struct nccl_calls *nccl_calls_get(const char *library, char *why, size_t why_size);

#endif
