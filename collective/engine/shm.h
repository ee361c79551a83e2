/* Channels through which kernels move an op's messages between the GPUs of one host, in place of NCCL. Where GPUs do
 * not reach each other's memory NCCL copies through host memory too; it gets 24 to 29 GB/s out of links on which these
 * kernels get 31 and more, each way at once. Which of both an op takes follows from what was measured (plan.h, `shm`).
 *
 * Each rank has as many channels to each other one. A channel is a few slots in memory that the ranks share, and two
 * counters, of slots filled and of slots taken; a thread block at each of its ends fills or takes one slot after
 * another. A message is cut into pieces of at most a slot, which the channels take in turn. Both ends know the
 * message's size from their op, and both count the slots of all messages so far, so nothing else has to be said about
 * it. */
#ifndef STRAIT_COLLECTIVE_ENGINE_SHM_H
#define STRAIT_COLLECTIVE_ENGINE_SHM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collective/api.h"

#ifdef __CUDACC__
#define SHM_FN __host__ __device__ static inline
#else
#define SHM_FN static inline
#endif

enum {
    SHM_RANKS_MAX = 16, /* with more, messages go by NCCL */
    /* Of a rank to all others, about: thread blocks that fill, and as many that take. More of them move an operation
     * alone faster (16: 38 GB/s instead of 31 on H200s), but take the multiprocessors of what a program computes beside
     * it: steps of FSDP are then slower than with NCCL's moves. */
    SHM_CHANNELS = 4,
    SHM_DEPTH = 4, /* slots of a channel */
    SHM_SLOT_BYTES = 256 << 10,
    SHM_PIECE_UNIT = 4 << 10,  /* pieces are multiples of it, and the last one what is left */
    SHM_COUNTERS_AT = 4 << 10, /* in the memory, behind what tells it from any other */
};

struct shm_counters {
    uint64_t filled; /* by the channel's sender */
    uint8_t padding[120];
    uint64_t taken; /* by its receiver */
    uint8_t behind[120];
};

/* The channels as one rank's GPU reaches them. */
struct shm_channels {
    struct shm_counters *counters; /* by sender, receiver and channel */
    uint8_t *slots;                /* by sender, receiver but itself, and channel */
    uint64_t *moved; /* in the GPU's memory: slots moved so far; by direction, out before in, peer and channel */
    uint32_t rank, ranks, channels;
};

/* From a rank to each other one; a function of the number of ranks. */
SHM_FN uint32_t shm_channels_each(uint32_t ranks)
{
    uint32_t channels = SHM_CHANNELS;
    while (channels > 1 && channels * (ranks - 1) > SHM_CHANNELS)
        channels /= 2;
    return channels;
}

SHM_FN size_t shm_counters_size(uint32_t ranks)
{
    return (size_t)ranks * ranks * shm_channels_each(ranks) * sizeof(struct shm_counters);
}

/* The numbers of shm_channels.moved. */
SHM_FN size_t shm_moved_count(uint32_t ranks)
{
    return 2 * (size_t)ranks * shm_channels_each(ranks);
}

/* All of the memory, whole pages of any machine. */
SHM_FN size_t shm_size(uint32_t ranks)
{
    const size_t page = (size_t)64 << 10, counters = SHM_COUNTERS_AT + shm_counters_size(ranks);
    return (counters + page - 1) / page * page +
           (size_t)ranks * (ranks - 1) * shm_channels_each(ranks) * SHM_DEPTH * SHM_SLOT_BYTES;
}

/* Ends of channels that a rank's kernel serves: the first half fills, the second takes. */
SHM_FN uint32_t shm_ends(const struct shm_channels *channels)
{
    return 2 * (channels->ranks - 1) * channels->channels;
}

/* Bytes of a piece of a message: a short message is spread over all channels. */
SHM_FN uint64_t shm_piece(const struct shm_channels *channels, uint64_t bytes)
{
    const uint64_t each = (bytes / channels->channels / SHM_PIECE_UNIT + 1) * SHM_PIECE_UNIT;
    return each < SHM_SLOT_BYTES ? each : SHM_SLOT_BYTES;
}

/* ---- Of a communicator (shm.c) ----------------------------------------------------------------------------------- */

struct coll_ccomm;

/* Whether its ranks are to have channels, which all of them find alike: they are on one host, and NCCL moves no more
 * between them than could go through the host's memory, or it is told to (STRAIT_COLL_SHM). */
bool shm_wants(const struct coll_ccomm *ccomm);

/* Called for all ranks, in this order, on their GPUs; each `gather` in a group that the caller opens. False: the GPU or
 * NCCL failed. Without memory for channels, which all ranks find alike, there are none afterwards. */
bool shm_gather_made(struct coll_ccomm *ccomm);
bool shm_reach(struct coll_ccomm *ccomm);
bool shm_gather_reached(struct coll_ccomm *ccomm);
bool shm_accept(struct coll_ccomm *ccomm);

/* Bytes of the memory that all ranks share, and of this rank's GPU; 0: there is none. */
uint64_t shm_bytes(const struct coll_ccomm *ccomm);
uint64_t shm_gpu_bytes(const struct coll_ccomm *ccomm);

/* On the communicator's GPU, when nothing of ours runs on it. */
void shm_end(struct coll_ccomm *ccomm);

/* Launches what moves a message from each rank to each other one (gpu.h), of any number of bytes, on the current
 * device, which must be the communicator's. False: it could not be launched. */
struct gpu_shm;
bool shm_move(const struct coll_ccomm *ccomm, const struct gpu_shm *message, coll_stream stream);

#endif
