/* Which pages of a failed expectation are not in place, as its client is told. */
#ifndef STRAIT_DAEMON_MISSING_H
#define STRAIT_DAEMON_MISSING_H

#include "daemon/node.h"

/* Tells the client, in front of the verdict, the first STRAIT_FAILED_PAGES_MAX pages that are not in place, by their
 * ids. False: there are more. */
bool missing_tell(struct expectation *expectation);

#endif
