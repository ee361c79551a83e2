#ifndef STRAIT_COLLECTIVE_ENGINE_HOSTS_H
#define STRAIT_COLLECTIVE_ENGINE_HOSTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collective/engine/levels.h"
#include "collective/engine/proxy.h"
#include "collective/engine/rings.h"
#include "collective/ranks.h"

/* Which ranks share memory of a host. Each rank tells which others it sees (liveness.c); from that, all of them find
 * the same leaders. A leader's followers open its memory. */

/* By rank: whose memory it uses, which is the lowest leader that it sees, or its own. */
struct host_groups {
    uint16_t leader[COLL_RANKS_MAX];
};

/* sees: for each rank, those that it sees. */
void host_groups_of(struct host_groups *groups, const struct rank_set *sees, int ranks);

/* The leader of the next host, if the rank leads its own: by number, and of the last one the first; else -1. */
static inline int host_groups_next(const struct host_groups *groups, int rank, int ranks)
{
    if (groups->leader[rank] != rank)
        return -1;
    for (int next = rank + 1; next < ranks; next++)
        if (groups->leader[next] == next)
            return next;
    return rank > 0 ? 0 : -1; /* rank 0 always leads */
}

static inline bool host_groups_same(const struct host_groups *groups, int a, int b)
{
    return groups->leader[a] == groups->leader[b];
}

/* Rails of a communicator whose ranks are on several hosts: a rail is the ranks that have the same place on their
 * hosts. There are rails where all hosts have the same number of ranks, two or more, whose numbers follow each other:
 * rank `host` x each + `place`. */
struct rails {
    uint32_t hosts, each; /* hosts, and ranks of each of them; 0 and 0: there are no rails */
};

/* The same on all ranks. */
struct rails rails_of(const struct host_groups *groups, int ranks);

/* Host memory that processes share: a file in memory, which one of them makes and the others find by way of /proc. It
 * has no name, so it is gone when the last process that has it ends. */

/* The first 8 bytes of the memory are a token that identifies it; the rest is zero at first. */
struct segment {
    uint8_t *memory; /* NULL: there is none */
    size_t size;
    int file; /* while others may still look for it; -1 afterwards */
};

/* How others find it. */
struct segment_info {
    uint64_t token, inode;
    int32_t process, file;
};

/* Part of a segment whose memory is allocated when it is first used; of size 0: none. */
struct segment_hole {
    size_t at, size;
};
/* False: there is not enough memory, or no such file. All of the memory but the hole is allocated here, so that nobody
 * is killed for lack of it later; where a container may not have so much, the kernel may kill one of its processes
 * here. */
bool segment_make(struct segment *segment, size_t size, struct segment_hole hole, struct segment_info *info);
/* False: the segment cannot be seen from here, for example from another host. */
bool segment_open(struct segment *segment, size_t size, const struct segment_info *info);
/* Nobody will look for it any more. */
void segment_settle(struct segment *segment);
void segment_close(struct segment *segment);

/* A process's sign of life, for other processes of its host: a file in memory that it keeps locked. The kernel unlocks
 * it when the process ends, however it does, and when it executes another program; a stopped process keeps the lock,
 * and its forked children never have it. A process that leaves in order first writes so into the file.
 *
 * Others find the file by way of /proc, which needs the right to look at that process: the same user, and one PID
 * namespace. They recognise the file by its inode and its first bytes, so a process number that means another process,
 * here or by now, does no harm. */

struct liveness {
    int file; /* -1: there is none */
    int32_t process;
};

/* How others find the file. All zero: nowhere. */
struct liveness_info {
    uint64_t self;  /* the process: the same in all of its records, and in no other's */
    uint64_t nonce; /* the file's first bytes */
    uint64_t inode;
    int32_t process, file;
    uint64_t host; /* as in gpu.h; processes of other hosts are not looked for */
};

enum liveness_state { LIVENESS_ALIVE, LIVENESS_LEFT, LIVENESS_ENDED };

/* False: no such file can be had, and nobody can find this process. */
bool liveness_begin(struct liveness *life, struct liveness_info *info);
/* The process leaves in order: its end does not count as one. */
void liveness_leave(struct liveness *life);
void liveness_end(struct liveness *life);

/* The record is the calling process's own. */
bool liveness_is_own(const struct liveness_info *info);
/* A descriptor for liveness_poll, to be closed by the caller; -1: the process cannot be seen from here. Never call
 * it for the own process: by closing the descriptor it would lose its own lock. */
int liveness_find(const struct liveness *own, const struct liveness_info *info);
enum liveness_state liveness_poll(int found);

/* Ranks of one host watch each other: when a rank's process ends without having left, the communicators of the others
 * fail, and our kernels that wait on their GPUs give up. One thread of the process watches; it calls neither CUDA nor
 * NCCL. */

struct coll_ccomm;
struct keepalive;

/* Before ranks vote whether they are able. False: no memory. */
bool keepalive_prepare(struct coll_ccomm *ccomm);
/* Called for all ranks, on their GPUs: keepalive_gather in a group that the caller opens, keepalive_begin after it.
 * False: the GPU or NCCL failed. */
bool keepalive_gather(struct coll_ccomm *ccomm);
bool keepalive_begin(struct coll_ccomm *ccomm);
/* Text that tells how many of the others are watched. */
void keepalive_describe(const struct coll_ccomm *ccomm, char *text, size_t size);
/* This rank issues no more operations: the end of its process does not concern the others, nor theirs this rank. */
void keepalive_leave(struct coll_ccomm *ccomm);
/* On the communicator's GPU. */
void keepalive_end(struct coll_ccomm *ccomm);

/* Memory that the ranks of a communicator share on a host: the table of op classes (levels.h), and the rings of
 * rings.h, which their GPUs reach. Ranks of one host share memory that the lowest of them makes (host_groups); ranks on
 * different hosts are connected (proxy.h). */

struct coll_ccomm;

/* Record that a rank sends to the others: the segment it made, if it leads, and how to reach it, if ranks are on
 * several hosts. */
struct peer_info {
    struct segment_info segment;
    struct proxy_info proxy;
};

struct shared_resources {
    struct host_groups groups;
    struct rank_set here; /* that share this rank's memory, itself among them */
    bool multi_host;      /* they are on several hosts */
    struct rails rails;   /* by which sums go */
    struct segment segment;
    struct peer_info info; /* this rank's own */
    struct op_classes *classes;
    void *pinned;                      /* the part with the rings, pinned */
    uint32_t *ring_numbers;            /* of host_rings */
    struct ring_set rings, host_rings; /* as the GPU reaches them, and as the host does */
    struct proxy *proxy;               /* NULL: all are on one host */
    bool good;                         /* nothing has failed so far */
};

/* What a rank tells the others of connections that it has dialled, for the reason that all of them give. */
struct reach_info {
    int32_t rank;  /* that it could not connect to; -1: there is none */
    char host[48]; /* the name of this rank's, or its beginning */
    char why[52];  /* if there is one */
};

/* Called for all ranks, in this order, on their GPUs; each `gather` in a group that the caller opens. False: the GPU or
 * NCCL failed; from `accept` and `settle` also that some rank cannot reach the memory or another rank, which all ranks
 * find alike. host_gather_accepted waits for connections between hosts, if there are several. */
bool host_gather_seen(struct coll_ccomm *ccomm);
bool host_divide(struct coll_ccomm *ccomm);
bool host_gather(struct coll_ccomm *ccomm);
bool host_open(struct coll_ccomm *ccomm);
bool host_gather_opened(struct coll_ccomm *ccomm);
bool host_accept(struct coll_ccomm *ccomm);
bool host_gather_accepted(struct coll_ccomm *ccomm);
bool host_settle(struct coll_ccomm *ccomm);

/* Bytes of the memory that ranks of this host share, without pages that are allocated when they are used. */
uint64_t host_bytes(const struct coll_ccomm *ccomm);

/* On the communicator's GPU, when nothing of ours runs on it. */
void host_end(struct coll_ccomm *ccomm);

#endif
