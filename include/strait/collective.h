/*
 * strait/collective.h - control over libstrait-coll, which compresses what NCCL's collectives move
 *
 * libstrait-coll exports all functions of NCCL 2.32 (nccl.h, under both of their names, and what nccl_device.h asks of
 * the host) and passes them on to the NCCL that is installed. Programs call NCCL as before; the functions below are for
 * those that want to see what happens or to control it. docs/collectives.md tells how the library gets between a
 * program and NCCL, and which environment variables it reads.
 *
 * Calls are compressed where that was measured to be faster when the communicator was made. All others are passed on
 * unchanged; with STRAIT_COLL=raw, all are.
 *
 * Counts: `calls` and `bytes` count what NCCL accepted, `failed` what it refused at once. Bytes are the count argument
 * times the size of an element: for all_gather, all_to_all, gather and scatter what goes to or comes from one rank, for
 * reduce_scatter what one rank receives. Calls of ncclBcast are broadcasts. What NCCL does inside one call counts once.
 *
 * Threads: every function may be called from any thread, at any time. They make no CUDA calls; strait_coll_nccl loads
 * NCCL if no call has yet, the others never call it.
 *
 * After fork a child starts with counts of zero.
 */
#ifndef STRAIT_COLLECTIVE_H
#define STRAIT_COLLECTIVE_H

#include <stddef.h>

#include <strait/export.h>
#include <strait/status.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ncclComm; /* what ncclComm_t points to */

/* Version of this library, "0.1.0"; static. */
STRAIT_API const char *strait_coll_version(void);

/* The NCCL to which calls are passed on: the path of its library, static, and its version from ncclGetVersion (22809 is
 * 2.28.9; 0: it gave none). ERR_UNSUPPORTED: none was found, which was reported on stderr; nothing is set. */
STRAIT_API enum strait_status strait_coll_nccl(const char **path, int *version);

/* How a communicator's operations are carried out. */
enum strait_coll_choice {
    STRAIT_COLL_AUTO = 0, /* the library decides */
    STRAIT_COLL_RAW = 1,  /* by NCCL, uncompressed */
};

/* Pins a choice, from the next call on. comm: a communicator that this process made through this library and has not
 * destroyed; one made in a group counts only after the group has ended. NULL: all communicators, future ones included.
 * All ranks of a communicator have to make the same choice before the same call. STRAIT_COLL=raw pins all when NCCL
 * is first called; nothing can then be compressed in that process. ERR_INVALID: no such communicator, or no
 * such choice. */
STRAIT_API enum strait_status strait_coll_pin(struct ncclComm *comm, int choice);

/* Writes a text of several lines, always terminated when dst_capacity > 0: the libraries, the communicator, and a table
 * of its counts by operation and type. comm NULL: counts of the process since it began, destroyed communicators
 * included. Returns the size of the whole text with its terminating zero; more than dst_capacity means that it did not
 * fit (dst may be NULL when dst_capacity is 0). 0, and dst untouched: no such communicator. The text is for people and
 * may change. */
STRAIT_API size_t strait_coll_report(struct ncclComm *comm, char *dst, size_t dst_capacity);

#ifdef __cplusplus
}
#endif
#endif
