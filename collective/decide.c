#include "collective/decide.h"

static bool can_be_compressed(const struct coll_call *call)
{
    return call->type == COLL_BF16 || call->type == COLL_FP16 || call->type == COLL_FP32;
}

struct coll_decision coll_decide(const struct coll_standing *standing, const struct coll_call *call)
{
    const char *reason = "no compressed wire in this version";
    if (standing->pinned)
        reason = "pinned";
    else if (standing->ending)
        reason = "ending";
    else if (standing->ranks == 1)
        reason = "one rank";
    else if (!can_be_compressed(call))
        reason = "type is not compressed";
    return (struct coll_decision){COLL_PASS, reason};
}
