/* NCCL's functions under both of their names. NCCL's own calls arrive here too, because these symbols precede its own,
 * and go straight back. */
#include <strait/export.h>

#include "collective/group.h"
#include "collective/api.h"

/* Results of functions that the installed NCCL lacks, or of all without NCCL. */
#define MISSING_RESULT  missing
#define MISSING_TEXT    "strait-coll: there is no NCCL"
#define MISSING_NOTHING (void)missing
#define MISSING_NUMBER  -1
#define MISSING_TEAM    no_team

static const coll_team no_team;

#define GO_FORWARD(table, name, arguments) return (table)->name arguments
#define GO_HOOK(table, name, arguments)                   \
    do {                                                  \
        if (library->forward || coll_thread.in_nccl != 0) \
            return (table)->name arguments;               \
        coll_thread.nccl = (table);                       \
        return coll_hook_##name arguments;                \
    } while (0)

#define EXPORT(prefix, returns, name, parameters, arguments, way)           \
    STRAIT_API COLL_TYPE_##returns prefix##name parameters;                 \
    STRAIT_API COLL_TYPE_##returns prefix##name parameters                  \
    {                                                                       \
        const struct coll_library *library = coll_library();                \
        if (library->prefix.name == NULL) {                                 \
            const coll_result missing = coll_report_missing(#prefix #name); \
            return (void)missing, MISSING_##returns;                        \
        }                                                                   \
        GO_##way(&library->prefix, name, arguments);                        \
    }

#define X(returns, name, parameters, arguments, way, ...)   \
    EXPORT(nccl, returns, name, parameters, arguments, way) \
    EXPORT(pnccl, returns, name, parameters, arguments, way)
COLL_API(X)
#undef X
