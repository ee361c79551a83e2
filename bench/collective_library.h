/* NCCL, or libstrait-coll in its place, opened by path: both are in one process, independently of each other. */
#ifndef STRAIT_BENCH_COLLECTIVE_LIBRARY_H
#define STRAIT_BENCH_COLLECTIVE_LIBRARY_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/collective_options.h"
#include "collective/nccl_types.h"

struct collective_library {
    const char *path; /* where the loader found it */
    coll_result (*GetVersion)(int *version);
    coll_result (*GetUniqueId)(coll_id *id);
    coll_result (*CommInitRank)(coll_comm *made, int ranks, coll_id id, int rank);
    coll_result (*CommDestroy)(coll_comm comm);
    coll_result (*AllGather)(const void *send, void *receive, size_t count, coll_type type, coll_comm comm,
                             coll_stream stream);
    coll_result (*AlltoAll)(const void *send, void *receive, size_t count, coll_type type, coll_comm comm,
                            coll_stream stream);
    coll_result (*ReduceScatter)(const void *send, void *receive, size_t count, coll_type type,
                                 coll_reduction reduction, coll_comm comm, coll_stream stream);
    coll_result (*AllReduce)(const void *send, void *receive, size_t count, coll_type type, coll_reduction reduction,
                             coll_comm comm, coll_stream stream);
    coll_result (*Send)(const void *send, size_t count, coll_type type, int peer, coll_comm comm, coll_stream stream);
    coll_result (*Recv)(void *receive, size_t count, coll_type type, int peer, coll_comm comm, coll_stream stream);
    coll_result (*GroupStart)(void);
    coll_result (*GroupEnd)(void);
    const char *(*GetErrorString)(coll_result result);
    const char *(*GetLastError)(coll_comm comm);                      /* NULL: it has none */
    size_t (*report)(coll_comm comm, char *dst, size_t dst_capacity); /* of libstrait-coll; NULL: it is NCCL */
};

/* False: it cannot be opened or lacks a function; the error is on stderr. It is never closed. */
bool collective_library_open(struct collective_library *library, const char *name);

/* False, with a message on stderr, when the result is an error. */
bool collective_library_ok(const struct collective_library *library, coll_result result, const char *what);

#endif
