/* Arguments of NCCL EP's functions: structs of any version, tensor descriptors, and what is said of wrong ones. */
#ifndef STRAIT_EP_NCCL_EP_ARGUMENTS_H
#define STRAIT_EP_NCCL_EP_ARGUMENTS_H

#include <stdbool.h>
#include <strait/ep.h>

#include "ep/nccl_ep/abi.h"
#include "ep/nccl_ep/device.h"

/* Says why a call fails, as one line on stderr, where NCCL_DEBUG is WARN, INFO or TRACE; returns `result`. */
nep_result nep_refuse(nep_result result, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Says what is ignored, in the same way. */
void nep_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The result for a status of libstrait-ep other than OK. `text`: what is known besides; may be empty. */
nep_result nep_result_of(enum strait_status status, const char *function, const char *text);

/* Copies a caller's struct, which may be longer or shorter than ours, but not than its first version; what it lacks is
 * zero. NULL is taken where `optional`, and leaves zeroes. `name`: for what is said. */
nep_result nep_take(void *to, size_t to_size, const void *from, size_t least, bool optional, const char *name);
#define NEP_TAKE(to, from, least, optional) nep_take(&(to), sizeof(to), from, least, optional, #from)

/* A tensor as rows: the last dimension is a row, the others are multiplied. One dimension: rows of one value. */
struct nep_view {
    void *data;
    size_t rows, values, row_bytes; /* values, row_bytes: of a row */
    unsigned dims;
    int type;
    nep_window window; /* that data lies in, or NULL */
    uint64_t window_offset;
};

/* Reads a descriptor. data NULL: it is not there, which is wrong unless `optional`. Windows are looked up with NCCL. */
nep_result nep_view(struct nep_view *view, const struct nep_tensor *tensor, nep_comm comm, bool optional,
                    const char *name);
/* Where tensors of all ranks lie that are at the same place of a window as this one. False: it is in none, or the ranks
 * do not reach each other's. */
bool nep_peers(const struct nep_view *view, uint32_t rank_count, void *peers[STRAIT_EP_RANKS_MAX]);
size_t nep_type_bytes(int type); /* 0: unknown */
struct strait_ep_tensor nep_rows(const struct nep_view *view);

#endif
