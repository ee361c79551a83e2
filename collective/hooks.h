#ifndef STRAIT_COLLECTIVE_HOOKS_H
#define STRAIT_COLLECTIVE_HOOKS_H

#include <stddef.h>

#include "collective/nccl.h"
#include "collective/call.h"

/* The report of what was counted, for people. */

/* Implements strait_coll_report (include/strait/collective.h). */
size_t coll_report(coll_comm comm, char *dst, size_t dst_capacity);

/* Prints on stderr, if STRAIT_COLL_PRINT is set: for a communicator that ends, and for the process. */
void coll_report_ended(coll_comm comm);
void coll_report_process(void);

/* The functions that are looked at; api.h lists them. Each passes its arguments on to coll_thread.nccl unchanged and
 * returns what NCCL returned. */

#define COLL_DECLARE_FORWARD(returns, name, parameters)
#define COLL_DECLARE_HOOK(returns, name, parameters)                 COLL_TYPE_##returns coll_hook_##name parameters;
#define COLL_DECLARE(returns, name, parameters, arguments, way, ...) COLL_DECLARE_##way(returns, name, parameters)
COLL_API(COLL_DECLARE)
#undef COLL_DECLARE
#undef COLL_DECLARE_HOOK
#undef COLL_DECLARE_FORWARD

#endif
