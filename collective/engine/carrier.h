/* The thread of the process that carries for all links. Any thread may call these. */
#ifndef STRAIT_COLLECTIVE_ENGINE_CARRIER_H
#define STRAIT_COLLECTIVE_ENGINE_CARRIER_H

#include <stdbool.h>

struct link;

/* False: there is no thread to be had. */
bool carrier_take(struct link *link);
/* Sets link->finished. */
void carrier_finish(struct link *link);
/* Not carried from now on, if `done` says so; NULL: in any case. True: it is not carried. */
bool carrier_drop(struct link *link, bool (*done)(const struct link *link));
/* The thread runs in this process, and not in the one that it was forked from. */
bool carrier_is_ours(void);

#endif
