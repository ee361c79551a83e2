/* A process's place to meet (meeting.h), for ranks anywhere: it listens, and answers their requests. A connection is
 * untrusted until it shows the secret, and its requests are validated even then. The number of connections, and how
 * long half a frame may last, are limited. Nothing here waits for anybody, calls NCCL, or launches anything. */
#ifndef STRAIT_COLLECTIVE_HALL_H
#define STRAIT_COLLECTIVE_HALL_H

#include "collective/key.h"

struct hall;

/* NULL: it cannot listen anywhere, or there is no memory. */
struct hall *hall_open(struct coll_place *place);
/* Waits until there is something to do, for at most so many milliseconds; -1: without limit. */
void hall_await(struct hall *hall, int milliseconds);
/* Does what there is to do then. */
void hall_serve(struct hall *hall);
/* Takes over a connection that was accepted elsewhere. */
void hall_take(struct hall *hall, int socket);
/* Closes what this process has of it; a forked child may do so while its parent goes on. */
void hall_close(struct hall *hall);

/* Numbers of connections and of boards. */
void hall_count(const struct hall *hall, unsigned *guests, unsigned *tables);

#endif
