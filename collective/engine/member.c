#include "collective/engine/member.h"

#include "collective/engine/peer.h"

static unsigned type_row(coll_type type)
{
    return type == COLL_BF16 ? 0 : type == COLL_FP16 ? 1 : 2;
}

static unsigned operation_row(enum coll_operation operation)
{
    return operation == COLL_ALL_GATHER       ? 0
           : operation == COLL_ALL_TO_ALL     ? 1
           : operation == COLL_REDUCE_SCATTER ? 2
                                              : 3;
}

unsigned member_keys(const struct coll_member *member)
{
    return MEMBER_OPERATIONS * MEMBER_TYPES + 2 * (unsigned)member->ranks * MEMBER_TYPES;
}

unsigned member_key(const struct coll_member *member, const struct coll_call *call)
{
    const unsigned type = type_row(call->type);
    if (call->operation != COLL_SEND && call->operation != COLL_RECV)
        return operation_row(call->operation) * MEMBER_TYPES + type;
    const unsigned row = (call->operation == COLL_RECV ? (unsigned)member->ranks : 0) + (unsigned)call->peer;
    return MEMBER_OPERATIONS * MEMBER_TYPES + row * MEMBER_TYPES + type;
}

void member_fail(struct coll_member *member, coll_result result, const char *why)
{
    pthread_mutex_lock(&member->lock);
    const bool first = member->failed == COLL_SUCCESS;
    if (first)
        member->failed = result;
    pthread_mutex_unlock(&member->lock);
    if (first)
        member->host.say("communicator %p, rank %d of %d: %s", (void *)member->comm, member->rank, member->ranks, why);
}

void member_look(struct coll_member *member)
{
    const struct coll_staging *staging = __atomic_load_n(&member->stagings.first, __ATOMIC_ACQUIRE);
    peer_look(member);
    for (; staging != NULL; staging = staging->next) {
        const uint32_t failed = __atomic_load_n(&staging->mail->failed, __ATOMIC_ACQUIRE);
        if (failed != 0)
            member_fail(member, COLL_INTERNAL_ERROR, strait_status_string((enum strait_status)failed));
    }
}
