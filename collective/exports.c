/* NCCL's functions under both of their names. NCCL's own calls arrive here too, because these symbols precede its own,
 * and go straight back. */
#include <strait/export.h>

#include "collective/group.h"
#include "collective/hooks.h"

#define ABSENT_RESULT(name)  return coll_absent(name)
#define ABSENT_TEXT(name)    return (void)coll_absent(name), "strait-coll: there is no NCCL"
#define ABSENT_NOTHING(name) return (void)coll_absent(name)
#define ABSENT_NUMBER(name)  return (void)coll_absent(name), -1
#define ABSENT_TEAM(name)    return (void)coll_absent(name), no_team

static const coll_team no_team;

static bool is_hooked(const struct coll_library *library)
{
    return !library->forward && coll_thread.in_nccl == 0;
}

#define GO_FORWARD(table, name, arguments) return (table)->name arguments
#define GO_HOOK(table, name, arguments)     \
    do {                                    \
        if (!is_hooked(library))            \
            return (table)->name arguments; \
        coll_thread.nccl = (table);         \
        return coll_hook_##name arguments;  \
    } while (0)

#define EXPORT(prefix, returns, name, parameters, arguments, way) \
    STRAIT_API COLL_TYPE_##returns prefix##name parameters;       \
    STRAIT_API COLL_TYPE_##returns prefix##name parameters        \
    {                                                             \
        const struct coll_library *library = coll_library();      \
        if (library->prefix.name == NULL)                         \
            ABSENT_##returns(#prefix #name);                      \
        GO_##way(&library->prefix, name, arguments);              \
    }

#define X(returns, name, parameters, arguments, way, ...)   \
    EXPORT(nccl, returns, name, parameters, arguments, way) \
    EXPORT(pnccl, returns, name, parameters, arguments, way)
COLL_API(X)
#undef X
