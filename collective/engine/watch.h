/* Ranks of one host watch each other: when the process of one ends without having left, the others' communicators fail,
 * and what of ours waits on their GPUs gives up. Without a thread: whoever looks at the member looks. */
#ifndef STRAIT_COLLECTIVE_ENGINE_WATCH_H
#define STRAIT_COLLECTIVE_ENGINE_WATCH_H

#include <stdbool.h>
#include <stddef.h>

struct coll_member;
struct watch;

/* On the member's GPU, before ranks tell each other whether they are able. False: no memory. */
bool watch_prepare(struct coll_member *member);
/* On its GPU, in a group of the caller's and then after it, all ranks. False: the GPU or NCCL failed. */
bool watch_tell(struct coll_member *member);
bool watch_begin(struct coll_member *member);
/* How many of the others are watched, as text. */
void watch_describe(const struct coll_member *member, char *text, size_t size);
/* Now and then: from any thread, as often as one likes. */
void watch_look(struct coll_member *member);
/* This rank asks for nothing any more: the end of its process is none of the others' business. */
void watch_leave(struct coll_member *member);
/* On the member's GPU. */
void watch_end(struct coll_member *member);

#endif
