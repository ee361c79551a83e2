/* Legs with both halves under this daemon: the same state machines and messages, without a connection between them, and
 * one copy from page to page instead of encode, link and decode. */
#ifndef STRAIT_DAEMON_LOCAL_H
#define STRAIT_DAEMON_LOCAL_H

#include "daemon/sink.h"
#include "daemon/source.h"

extern const struct sink_port sink_over_memory;
extern const struct source_port source_over_memory;

#endif
