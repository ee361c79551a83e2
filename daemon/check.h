/* Trying a configuration: what a start would need is opened and closed again, and nothing is changed. */
#ifndef STRAIT_DAEMON_CHECK_H
#define STRAIT_DAEMON_CHECK_H

#include <stdio.h>

#include "daemon/base/options.h"

/* Reads the files that the options name, looks up and binds addresses, looks for the lock and the folder of the socket,
 * and compares memory and descriptors with their limits. What a daemon that runs on this socket holds counts as free.
 * Writes a line for each problem and returns how many there are. The options have passed options_check. */
unsigned node_check(const struct node_options *options, FILE *out);

#endif
