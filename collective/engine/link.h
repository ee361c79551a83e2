/* A communicator whose ranks are not all on one host: connections to those on others, over which what does not fit is
 * carried (carry.h) and steps are agreed on (agree.h). A thread of the process does it for all of its communicators: it
 * calls neither CUDA nor NCCL, waits for no GPU, and looks at memory that kernels write. */
#ifndef STRAIT_COLLECTIVE_ENGINE_LINK_H
#define STRAIT_COLLECTIVE_ENGINE_LINK_H

#include <stdbool.h>
#include <stddef.h>

#include "collective/engine/greet.h"

struct coll_member;
struct link;

/* Listens. False: no memory, or no address that others could reach. */
bool link_prepare(struct coll_member *member, struct greet_card *card);
/* All ranks, one after the other: connects to those of higher ranks, takes in those of lower ones, and hears who has
 * taken it in. False: a rank is not reached. Cards are by rank. */
bool link_connect(struct coll_member *member, const struct greet_card *cards);
bool link_accept(struct coll_member *member, const struct greet_card *cards);
bool link_await(struct coll_member *member, const struct greet_card *own);
/* When all ranks are connected: from now on rings are carried. False: no memory, or no thread. */
bool link_begin(struct coll_member *member);

/* To how many ranks, as text behind other text; empty: there is no link. */
void link_describe(const struct coll_member *member, char *text, size_t size);

/* Nothing more will be asked of it: that others end, or this rank does, is no failure. Any thread. */
void link_finish(struct coll_member *member);
/* Waits until what this rank's kernels have written has arrived, unless it was aborted; then connections end, and none
 * of its memory is looked at any more. */
void link_leave(struct coll_member *member);
void link_end(struct coll_member *member);

#endif
