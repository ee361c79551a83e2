/* The process's thread that carries for all links. Any thread may call these functions. */
#ifndef STRAIT_COLLECTIVE_ENGINE_CARRIER_H
#define STRAIT_COLLECTIVE_ENGINE_CARRIER_H

#include <stdbool.h>

struct link;

/* False: no thread can be had. */
bool carrier_take(struct link *link);
/* Sets link->finished. */
void carrier_finish(struct link *link);
/* Stops carrying the link if `done` returns true or is NULL. True: it is not carried any more. */
bool carrier_drop(struct link *link, bool (*done)(const struct link *link));
/* False in a process that was forked from the one in which the thread runs. */
bool carrier_is_ours(void);

#endif
