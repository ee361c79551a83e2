/* Trace contexts of requests, as the traceparent header of W3C Trace Context names them, and their 25 bytes on the
 * wire: trace id, parent id, flags. */
#ifndef STRAIT_PROTO_TRACE_H
#define STRAIT_PROTO_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#define TRACE_ID_BYTES   16u
#define TRACE_SPAN_BYTES 8u
#define TRACE_BYTES      (TRACE_ID_BYTES + TRACE_SPAN_BYTES + 1)

/* Reads a traceparent. NULL: it was read; otherwise what is wrong with it, a static text, and `context` is undefined.
 * Versions above 00 are read as far as that one goes. */
const char *trace_parse(const char *traceparent, uint8_t context[TRACE_BYTES]);

/* Neither of the ids is zero, as the specification demands. */
bool trace_is_valid(const uint8_t context[TRACE_BYTES]);

/* Whoever began the trace wants its spans. */
static inline bool trace_is_sampled(const uint8_t context[TRACE_BYTES])
{
    return (context[TRACE_BYTES - 1] & 1) != 0;
}

#endif
