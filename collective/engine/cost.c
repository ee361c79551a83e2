#include "collective/engine/cost.h"

static bool is_pair(const struct plan *plan)
{
    return plan->call.operation == COLL_SEND || plan->call.operation == COLL_RECV;
}

/* What was measured is a message to each other rank. */
static double pair(const struct coll_member *member)
{
    return member->cost.per[LINK_EXCHANGE] / (member->ranks - 1);
}

double cost_plain(const struct coll_member *member, const struct plan *plan)
{
    const double *per = member->cost.per;
    switch (plan->call.operation) {
    case COLL_ALL_GATHER:
        return per[LINK_GATHER];
    case COLL_REDUCE_SCATTER:
        return per[LINK_SCATTER];
    case COLL_ALL_REDUCE: /* of two ranks: each part crosses as in a reduce_scatter and as in an all_gather */
        return (per[LINK_SCATTER] + per[LINK_GATHER]) / 2;
    default:
        return is_pair(plan) ? pair(member) : per[LINK_EXCHANGE];
    }
}

double cost_coded(const struct coll_member *member, const struct plan *plan)
{
    if (is_pair(plan))
        return pair(member);
    return member->cost.per[plan->call.operation == COLL_ALL_GATHER ? LINK_GATHER : LINK_EXCHANGE];
}

double cost_most(const struct coll_member *member)
{
    double most = 0;
    for (int use = 0; use < LINK_USES; use++)
        most = member->cost.per[use] > most ? member->cost.per[use] : most;
    return most;
}
