#include "collective/engine/decide.h"

#include "collective/engine/peer.h"
#include "collective/engine/plan.h"

/* What the codec takes, on the safe side: launches and meetings of a step, and raw bytes a second each way. */
#define CODEC_SECONDS    80e-6
#define CODEC_PER_SECOND 1.0e12
/* That much less time, or it is not worth it. */
#define GAIN 0.97

/* Of the link as it was measured, the same on all ranks. */
static bool pays(const struct coll_member *member, const struct plan *plan)
{
    const double raw = (double)plan->raw, others = plan->skip == UINT32_MAX ? 1 : member->ranks - 1;
    const double plain = member->cost.start + raw * member->cost.per_byte;
    const double coded = member->cost.start + (double)plan->shape.message * member->cost.per_byte + CODEC_SECONDS +
                         2 * others * raw / CODEC_PER_SECOND;
    return coded < GAIN * plain;
}

static bool takes_part(const struct coll_member *member, const struct coll_call *call, const char **reason)
{
    *reason = NULL;
    switch (call->operation) {
    case COLL_ALL_GATHER:
    case COLL_ALL_TO_ALL:
        break;
    case COLL_SEND:
    case COLL_RECV:
        if (call->peer == member->rank || call->peer < 0 || call->peer >= member->ranks)
            *reason = "to itself";
        else if (!member->host.settings.pairs) /* docs/collectives.md: both sides have to group alike */
            *reason = "sends and receives are not asked for";
        break;
    case COLL_ALL_REDUCE:
        if (member->ranks > 2)
            *reason = "all_reduce of more than two ranks";
        /* fall through */
    case COLL_REDUCE_SCATTER:
        if (call->reduction != COLL_SUM && call->reduction != COLL_AVG)
            *reason = "neither sum nor average";
        break;
    default:
        *reason = "operation is not compressed";
    }
    return *reason == NULL;
}

bool member_decide(struct coll_member *member, const struct coll_call *call, struct coll_step *step,
                   const char **reason)
{
    struct plan plan;
    *reason = NULL;
    if (peer_decide(member, call, step))
        return true;
    if (!takes_part(member, call, reason))
        return false;
    if (!plan_of(&plan, member, call, 0)) {
        *reason = "too small or too large";
        return false;
    }
    *step = (struct coll_step){.member = member, .call = *call, .key = member_key(member, call)};
    pthread_mutex_lock(&member->lock);
    while (member->telling)
        pthread_cond_wait(&member->told, &member->lock);
    member->decided++;
    step->index = member->levels[step->key].issued++;
    step->level = levels_at(&member->levels[step->key], step->index);
    pthread_mutex_unlock(&member->lock);
    if (!plan_of(&plan, member, call, step->level))
        *reason = "does not shrink";
    else if (!member->forced && !pays(member, &plan))
        *reason = "the link is fast";
    else
        step->wire = plan.sends ? plan.shape.message * (plan.out > 1 ? plan.out - 1 : 1) : 0;
    return *reason == NULL;
}
