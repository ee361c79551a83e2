/* NCCL: chunks from the memory of one GPU to that of another, of two hosts or of one. NCCL moves bytes that both sides
 * have agreed on, in an agreed order, and nothing else; so every link has a *carrier*, a link of another transport of
 * this process, for all that is small: the headers, and the agreement.
 *
 *   sender                                   receiver
 *   link_send        --- chunk, header --->  `arriving`: into this slot; ncclRecv, as number n of this direction
 *   ncclSend, when   <-- go, n ------------
 *   it is n's turn   ======= bytes ========
 *   `sent`                                   `arrived`
 *
 * So what the owner refuses does not travel, and nothing waits on a GPU but for a peer that has already said yes:
 * NCCL's kernels occupy multiprocessors while they wait. The price is one more way of the carrier before a chunk's
 * bytes; chunks are agreed on while others travel.
 *
 * Memory is of the GPU that the arena is on, for sending and receiving; `data` has to be complete when link_send is
 * called, as no stream but our own is waited for. What has `arrived` can be read by whatever is launched then.
 *
 * A peer that dies or stops in mid-transfer leaves a kernel that waits for it. It is aborted when the carrier breaks,
 * or after timeout_ms; `closed` comes when the GPU is through with the link, and never if it does not stop (a GPU that
 * failed so is of no more use to the process). link_abandon: for owners that exit.
 *
 * Options:
 *   carrier=NAME     the other transport, "ucx". One that takes chunks of host memory, not a direct one
 *   timeout_ms=N     10000: the longest time for an operation of NCCL, and for making its communicators
 *   blocks=N         8: of threads on the GPU, for each direction of a link; 1, 2, 4, 8, 16 or 32. All links together
 *                    have to fit into the multiprocessors (2 x blocks each), or they could wait for one another
 *   library=PATH     libnccl.so.2, where the system finds it: 2.18 or later, of the same version at all peers
 *   all others       the carrier's, such as listen= and port=
 *
 * link_open: ERR_AGAIN when the GPU has no room for another link. A link breaks at once whose two ends are on one GPU,
 * in one process, or have different versions of NCCL.
 *
 * NCCL listens on ports of its own, which believe what they hear: as with UCX, for trusted networks. */
#ifndef STRAIT_TRANSPORT_NCCL_H
#define STRAIT_TRANSPORT_NCCL_H

#include "transport/transport.h"

struct nccl_calls;

extern const struct transport_ops transport_nccl;

/* What of making a transport takes long the first time, loading NCCL and starting its driver: on any thread, before one
 * is made with these options over this memory. What fails will fail there again, and is told then. */
void nccl_prepare(const char *options, const void *memory);

/* For tests, before the first transport is made: these calls instead of the plugin's. */
void nccl_use_calls(const struct nccl_calls *calls);

#endif
