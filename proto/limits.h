/* The last values of enums that are defined by list macros. Private to proto/. */
#ifndef STRAIT_PROTO_LIMITS_H
#define STRAIT_PROTO_LIMITS_H

#include <strait/strait.h>

/* Reasons are numbered without gaps from 0 upward, statuses from 0 downward. */
#define STRAIT_COUNT_ENTRY(name, value, text) +1
enum { REASON_LAST = (STRAIT_REASON_MAP(STRAIT_COUNT_ENTRY)) - 1 };
enum { STATUS_LAST = 1 - (STRAIT_STATUS_MAP(STRAIT_COUNT_ENTRY)) };
#undef STRAIT_COUNT_ENTRY

#endif
