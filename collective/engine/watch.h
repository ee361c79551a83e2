/* Ranks of one host watch each other: when the process of one ends without having left, the others' communicators fail,
 * and what of ours waits on their GPUs gives up. A thread of the process looks; it calls neither CUDA nor NCCL. */
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
/* It is one of this process, or one whose process can be looked at: it is on this host. */
bool watch_sees(const struct coll_member *member, int rank);
/* How many of the others are watched, as text. */
void watch_describe(const struct coll_member *member, char *text, size_t size);
/* This rank asks for nothing any more: the end of its process is none of the others' business, nor theirs of it. */
void watch_leave(struct coll_member *member);
/* On the member's GPU. */
void watch_end(struct coll_member *member);

#endif
