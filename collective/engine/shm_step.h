/* How kernels move messages through the channels of shm.h. The same text is compiled for GPUs
 * (collective/cuda/exchange.cu) and for tests (tests/fakes/coll_plugin.c). A call does one step of one end of a channel
 * and never waits inside it; who includes this provides what exchange.h asks for.
 *
 * An end that waits goes on to, as NCCL's kernels do: until the other rank's operation has come to it, or the
 * communicator is aborted. While a communicator is made, when nobody can abort it, there is a limit (patience_ns). Both
 * ends of a communicator's channels come to its operations in the same order, as these
 * are the ones that NCCL would move outside of groups (overlap.c). */
#ifndef STRAIT_COLLECTIVE_ENGINE_SHM_STEP_H
#define STRAIT_COLLECTIVE_ENGINE_SHM_STEP_H

#include "collective/engine/exchange.h"

struct shm_end {
    uint32_t peer;
    bool sends;
    uint64_t piece, pieces; /* the next one of this channel, and how many the message has */
    uint64_t number;        /* of the next slot */
    uint64_t *moved;        /* where that is kept */
    struct shm_counters *counters;
    uint8_t *slots;
};

EXCHANGE_FN struct shm_end shm_begin(const struct gpu_shm *call, uint32_t number)
{
    const struct shm_channels *channels = &call->channels;
    const uint32_t half = shm_ends(channels) / 2, at = number % half, channel = at % channels->channels;
    struct shm_end end;
    end.sends = number < half;
    end.peer = at / channels->channels;
    end.peer += end.peer >= channels->rank;
    const uint32_t from = end.sends ? channels->rank : end.peer, to = end.sends ? end.peer : channels->rank;
    const uint64_t pair = (uint64_t)from * (channels->ranks - 1) + to - (to > from);
    const uint64_t piece = shm_piece(channels, call->bytes);
    end.counters = channels->counters + ((uint64_t)from * channels->ranks + to) * channels->channels + channel;
    end.slots = channels->slots + (pair * channels->channels + channel) * SHM_DEPTH * SHM_SLOT_BYTES;
    end.moved = channels->moved + ((end.sends ? 0 : channels->ranks) + end.peer) * channels->channels + channel;
    end.number = *end.moved;
    end.piece = channel;
    end.pieces = (call->bytes + piece - 1) / piece;
    return end;
}

EXCHANGE_FN bool shm_may(const struct shm_end *end)
{
    return end->sends ? end->number < exchange_load(&end->counters->taken) + SHM_DEPTH
                      : end->number < exchange_load(&end->counters->filled);
}

EXCHANGE_FN void shm_copy(const struct gpu_shm *call, const struct shm_end *end)
{
    const uint64_t piece = shm_piece(&call->channels, call->bytes), at = end->piece * piece, left = call->bytes - at;
    const uint64_t bytes = left < piece ? left : piece;
    uint8_t *slot = end->slots + end->number % SHM_DEPTH * SHM_SLOT_BYTES;
    if (end->sends)
        exchange_put(slot, call->send + end->peer * call->send_stride + at, bytes);
    else
        exchange_take(call->receive + end->peer * call->receive_stride + at, slot, bytes);
}

EXCHANGE_FN enum exchange_state shm_step(const struct gpu_shm *call, struct shm_end *end)
{
    if (end->piece >= end->pieces)
        return EXCHANGE_DONE;
    if (exchange_broadcast(exchange_leads() && shm_may(end)) == 0)
        return EXCHANGE_WAITS;
    shm_copy(call, end);
    (void)exchange_broadcast(0);
    end->number++;
    end->piece += call->channels.channels;
    if (exchange_leads()) {
        exchange_store(end->sends ? &end->counters->filled : &end->counters->taken, end->number);
        *end->moved = end->number;
    }
    return EXCHANGE_MOVED;
}

#endif
