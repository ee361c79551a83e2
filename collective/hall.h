/* A process's place to meet (meeting.h), for ranks wherever they are: it listens, and answers what they ask. What comes
 * is foreign until it shows the secret, and is looked at for what it is even then; how much of it there can be, and how
 * long half a frame may last, has limits. Nothing here waits for anybody, calls NCCL, or launches anything. */
#ifndef STRAIT_COLLECTIVE_HALL_H
#define STRAIT_COLLECTIVE_HALL_H

#include "collective/key.h"

struct hall;

/* NULL: there is nothing to listen on, or no memory. */
struct hall *hall_open(struct coll_place *place);
/* Until there is something to do, or these milliseconds have gone by; -1: without an end. */
void hall_await(struct hall *hall, int milliseconds);
/* What there was to do then. */
void hall_serve(struct hall *hall);
/* A connection that was made otherwise: closed here. */
void hall_take(struct hall *hall, int socket);
/* Closes what a process has of it, which may be the child of the one that goes on with it. */
void hall_close(struct hall *hall);

/* Connections, and boards. */
void hall_count(const struct hall *hall, unsigned *guests, unsigned *tables);

#endif
