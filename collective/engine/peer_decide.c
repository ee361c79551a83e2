/* Decides which operations go by the wire `peer`. */
#include "collective/engine/peer_entry.h"
#include "collective/engine/peer_flows.h"

static bool is_sum(const struct coll_call *call)
{
    return call->reduction == COLL_SUM || call->reduction == COLL_AVG;
}

/* How many messages a rank encodes; `count` becomes the number of values of the shortest. False: the operation does not
 * go this way. */
static bool messages_of(const struct coll_member *member, const struct coll_call *call, uint64_t *count,
                        unsigned *messages)
{
    const struct peer_block last = peer_block_of(call->count, member->ranks, member->ranks - 1);
    *count = call->count;
    *messages = (unsigned)member->ranks - 1;
    switch (call->operation) {
    case COLL_ALL_GATHER:
        *messages = 1;
        return true;
    case COLL_ALL_TO_ALL:
        return true;
    case COLL_REDUCE_SCATTER:
        return is_sum(call);
    case COLL_ALL_REDUCE: /* blocks of others, then the sum of the own one */
        *count = last.at < call->count ? last.count : 0;
        *messages = (unsigned)member->ranks;
        return is_sum(call);
    case COLL_SEND:
    case COLL_RECV:
        *messages = call->operation == COLL_SEND;
        return member->host.settings.pairs && call->peer != member->rank && call->peer >= 0 &&
               call->peer < member->ranks;
    default:
        return false;
    }
}

/* As measured for all_gather. That is NCCL's slowest operation, so others have to gain more, by what was seen of them
 * on two GPUs (bench/RESULTS.md, "Collectives"). */
static bool pays(const struct coll_member *member, const struct coll_call *call, const struct peer_cut *cut)
{
    const struct link_cost *own = &member->peer->own, *plain = &member->peer->plain;
    const double bytes = (double)cut->pages * PEER_PAGE + cut->tail_bytes;
    const double gain = call->operation == COLL_ALL_GATHER ? 0.97 : call->operation == COLL_ALL_REDUCE ? 0.78 : 0.85;
    return own->start + bytes * own->per_byte < gain * (plain->start + bytes * plain->per_byte);
}

static uint64_t message_bytes(const struct peer_cut *cut)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < cut->pieces; i++)
        bytes += peer_piece_of(cut, i).room;
    return bytes;
}

bool peer_decide(struct coll_member *member, const struct coll_call *call, struct coll_step *step)
{
    uint64_t count;
    unsigned messages;
    struct peer_cut cut;
    if (member->peer == NULL || !messages_of(member, call, &count, &messages) ||
        !peer_cut_of(&cut, call->type, count, &member->peer->tuning))
        return false;
    if (peer_compared(member) && !pays(member, call, &cut))
        return false;
    *step = (struct coll_step){.member = member, .call = *call, .phases = 1, .pieces = 1, .peer = true};
    step->wire = messages * message_bytes(&cut);
    return true;
}
