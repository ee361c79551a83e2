/* Spans of requests that belong to a trace: one line of the log for each when it ends, with its phases. */
#ifndef STRAIT_DAEMON_SPAN_H
#define STRAIT_DAEMON_SPAN_H

#include "daemon/base/metrics.h"
#include "proto/message.h"

struct node;
struct request;

/* What a request's span tells besides what the request itself knows. */
struct span {
    bool sampled; /* a line is wanted */
    uint8_t context[TRACE_BYTES];
    uint8_t wires;       /* bits of enum gpu_path: the ways that chunks have gone */
    uint8_t codings;     /* source: bits of enum coding_counter: how they were coded */
    struct timeline leg; /* source: of the latest leg that began or was DONE; `began` 0: none */
};

/* `context`: of the client's message; empty: none. */
void span_begin(struct span *span, struct view context);
/* The request has its verdict. */
void span_end(const struct request *request);
/* A request of this name, and with this context, was not admitted. */
void span_refused(struct node *node, struct view context, bool is_offer, struct view key, enum strait_reason reason,
                  const char *why);

#endif
