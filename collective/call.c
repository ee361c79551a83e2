#include "collective/call.h"

const char *coll_operation_name(enum coll_operation operation)
{
    static const char *const names[] = {
#define X(name, text) text,
        COLL_OPERATION_MAP(X)
#undef X
    };
    return names[operation];
}

const char *coll_type_name(unsigned type)
{
    static const char *const names[] = {
#define X(name, value, bytes, text) text,
        COLL_TYPE_MAP(X)
#undef X
    };
    return names[type];
}

unsigned coll_type_row(coll_type type)
{
    return type >= 0 && type < COLL_UNKNOWN ? (unsigned)type : COLL_UNKNOWN;
}

uint64_t coll_call_bytes(const struct coll_call *call)
{
    static const uint8_t bytes[] = {
#define X(name, value, size, text) size,
        COLL_TYPE_MAP(X)
#undef X
    };
    return (uint64_t)call->count * bytes[coll_type_row(call->type)];
}
