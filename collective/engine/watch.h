/* Ranks of one host watch each other: when a rank's process ends without having left, the communicators of the others
 * fail, and our kernels that wait on their GPUs give up. One thread of the process watches; it calls neither CUDA nor
 * NCCL. */
#ifndef STRAIT_COLLECTIVE_ENGINE_WATCH_H
#define STRAIT_COLLECTIVE_ENGINE_WATCH_H

#include <stdbool.h>
#include <stddef.h>

struct coll_member;
struct watch;

/* On the member's GPU, before ranks tell each other whether they are able. False: no memory. */
bool watch_prepare(struct coll_member *member);
/* Called for all ranks, on their GPUs: watch_tell in a group that the caller opens, watch_begin after it. False: the
 * GPU or NCCL failed. */
bool watch_tell(struct coll_member *member);
bool watch_begin(struct coll_member *member);
/* The rank is in this process, or in one that can be looked at, so it is on this host. */
bool watch_sees(const struct coll_member *member, int rank);
/* Text that tells how many of the others are watched. */
void watch_describe(const struct coll_member *member, char *text, size_t size);
/* This rank issues no more operations: the end of its process does not concern the others, nor theirs this rank. */
void watch_leave(struct coll_member *member);
/* On the member's GPU. */
void watch_end(struct coll_member *member);

#endif
