#include "collective/engine/phase.h"

unsigned phase_count(const struct coll_member *member, const struct coll_call *call)
{
    return call->operation == COLL_ALL_REDUCE && (member->ranks > 2 || member->host.settings.parts) ? 2 : 1;
}

static size_t part_of(const struct coll_member *member, const struct coll_call *call)
{
    return call->count / (size_t)member->ranks / 8 * 8;
}

static uint64_t element_bytes(const struct coll_call *call)
{
    return call->type == COLL_FP32 ? 4 : 2;
}

struct coll_call phase_cut(const struct coll_call *call, size_t at, size_t count)
{
    struct coll_call part = *call;
    part.send = (const uint8_t *)call->send + at * element_bytes(call);
    part.receive = (uint8_t *)call->receive + at * element_bytes(call);
    part.count = count;
    return part;
}

struct coll_call phase_call(const struct coll_member *member, const struct coll_call *call, unsigned phase)
{
    if (phase_count(member, call) == 1)
        return *call;
    const size_t part = part_of(member, call);
    struct coll_call own = phase_cut(call, (size_t)member->rank * part, part);
    if (phase == 0) {
        own.operation = COLL_REDUCE_SCATTER;
        own.send = call->send;
    } else {
        own.operation = COLL_ALL_GATHER;
        own.send = own.receive;
        own.receive = call->receive;
    }
    return own;
}

struct coll_call phase_rest(const struct coll_member *member, const struct coll_call *call, unsigned phase)
{
    if (phase > 0 || phase_count(member, call) == 1)
        return phase_cut(call, 0, 0);
    const size_t parts = part_of(member, call) * (size_t)member->ranks;
    return phase_cut(call, parts, call->count - parts);
}
