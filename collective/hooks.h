/* The functions that are looked at; api.h lists them. Each passes its arguments on to coll_thread.nccl unchanged and
 * returns what NCCL returned. */
#ifndef STRAIT_COLLECTIVE_HOOKS_H
#define STRAIT_COLLECTIVE_HOOKS_H

#include "collective/load.h"

#define COLL_DECLARE_FORWARD(returns, name, parameters)
#define COLL_DECLARE_HOOK(returns, name, parameters)            COLL_TYPE_##returns coll_hook_##name parameters;
#define COLL_DECLARE(returns, name, parameters, arguments, way) COLL_DECLARE_##way(returns, name, parameters)
COLL_API(COLL_DECLARE)
#undef COLL_DECLARE
#undef COLL_DECLARE_HOOK
#undef COLL_DECLARE_FORWARD

#endif
