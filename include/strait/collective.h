/*
 * strait/collective.h - NCCL's collectives, to be compressed on their way
 *
 * libstrait-coll exports all functions of NCCL 2.28 (nccl.h, under both of their names, and what nccl_device.h asks of
 * the host) and passes them on to the NCCL that is installed. Programs call NCCL as ever; what is here is for those
 * that want to know or to choose. docs/collectives.md tells how it gets between a program and NCCL, and which variables
 * of the environment it reads.
 *
 * Unless STRAIT_COLL asks for more, every call goes on as it came, and is counted.
 *
 * Counts: `calls` and `bytes` of what NCCL accepted, `failed` of what it refused at once. Bytes are the count argument
 * times the size of an element: for all_gather, all_to_all, gather and scatter what goes to or comes from one rank, for
 * reduce_scatter what one rank receives. Calls of ncclBcast are broadcasts. What NCCL does inside one call counts once.
 *
 * Threads: every function from any thread, at any time. They call no CUDA; strait_coll_nccl loads NCCL if no call has
 * yet, the others never call it.
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

/* Of this library, "0.1.0"; static. */
STRAIT_API const char *strait_coll_version(void);

/* The NCCL that calls go on to: the path of its library, static, and its version as ncclGetVersion tells it (22809 is
 * 2.28.9; 0: it did not tell). ERR_UNSUPPORTED: none was found, as was said on stderr; nothing is set. */
STRAIT_API enum strait_status strait_coll_nccl(const char **path, int *version);

/* How operations of a communicator go. */
enum strait_coll_choice {
    STRAIT_COLL_AUTO = 0, /* as this library finds best */
    STRAIT_COLL_RAW = 1,  /* as NCCL has it */
};

/* From the next call on. comm: of a communicator that this process made through this library and has not destroyed, in
 * a group only after the group has ended; NULL: of all, those that are yet to be made too. All ranks of a communicator
 * have to choose alike before the same call. STRAIT_COLL=raw, the default, pins all when NCCL is first called, and
 * nothing can be compressed in that process then. ERR_INVALID: not such a communicator, or not such a choice. */
STRAIT_API enum strait_status strait_coll_pin(struct ncclComm *comm, int choice);

/* Writes a text of several lines, always ended when dst_capacity > 0: the libraries, the communicator, and a table of
 * what was counted of it, by operation and type. comm NULL: of the process since it began, which includes communicators
 * that are gone. Returns the size of the whole text with its end, which is more than dst_capacity when it did not fit
 * (dst may be NULL when that is 0); 0, and dst untouched: no such communicator. For people: the text may change. */
STRAIT_API size_t strait_coll_report(struct ncclComm *comm, char *dst, size_t dst_capacity);

#ifdef __cplusplus
}
#endif
#endif
