/* Reports to the client which pages of a failed expectation are not in place. */
#ifndef STRAIT_DAEMON_MISSING_H
#define STRAIT_DAEMON_MISSING_H

#include "daemon/node.h"

/* Sends the client, before the verdict, the ids of the first STRAIT_FAILED_PAGES_MAX pages that are not in place.
 * False: there are more. */
bool missing_tell(struct expectation *expectation);

#endif
