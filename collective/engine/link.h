/* The connections of a communicator whose ranks are not all on one host. They carry overflow (carry.h) and agree on
 * steps (agree.h). One thread of the process does this for all of its communicators: it calls neither CUDA nor NCCL,
 * waits for no GPU, and polls memory that kernels write. */
#ifndef STRAIT_COLLECTIVE_ENGINE_LINK_H
#define STRAIT_COLLECTIVE_ENGINE_LINK_H

#include <stdbool.h>
#include <stddef.h>

#include "collective/engine/greet.h"

struct coll_member;
struct link;

/* Starts to listen. False: no memory, or no address that others could reach. */
bool link_prepare(struct coll_member *member, struct greet_card *card);
/* Called for all ranks, in this order: connects to those of higher rank, accepts those of lower rank, and awaits the
 * answers of the higher ones. False: a rank is not reached. Cards are by rank. */
bool link_connect(struct coll_member *member, const struct greet_card *cards);
bool link_accept(struct coll_member *member, const struct greet_card *cards);
bool link_await(struct coll_member *member, const struct greet_card *own);
/* When all ranks are connected: the rings are carried from now on. False: no memory, or no thread. */
bool link_begin(struct coll_member *member);

/* Text that tells how many ranks it is connected to, to be appended; empty: there is no link. */
void link_describe(const struct coll_member *member, char *text, size_t size);

/* No more operations will come: that other ranks end, or this one, is no failure. Any thread. */
void link_finish(struct coll_member *member);
/* Waits until what this rank's kernels have written has arrived, unless it was aborted. Then connections end, and none
 * of its memory is read any more. */
void link_leave(struct coll_member *member);
void link_end(struct coll_member *member);

#endif
