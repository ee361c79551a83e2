/* Examination of what a daemon of these options finds on this host, for `strait doctor`: facts, no judgement. */
#ifndef STRAIT_DAEMON_EXAMINE_H
#define STRAIT_DAEMON_EXAMINE_H

#include <stdio.h>

#include "daemon/base/options.h"

#define EXAMINE_SCHEMA_VERSION 1

/* Prints one JSON object: the options that matter, what node_check finds wrong with them, addresses, limits, the codec,
 * UCX and its modules, RDMA, and what probe_peer finds at each of the `peer_count` lists. Blocks. The options have
 * passed options_check. False: no memory. */
bool node_examine(const struct node_options *options, const char *const *peers, unsigned peer_count, FILE *out);

#endif
