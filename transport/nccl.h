/* NCCL: chunks from the memory of one GPU to that of another, on two hosts or on one. NCCL only moves bytes that both
 * sides have agreed on, in an agreed order. So every link has a *carrier*, a link of another transport of this process,
 * for everything small: the headers and the agreement.
 *
 *   sender                                   receiver
 *   link_send        --- chunk, header --->  `arriving`: into this slot; ncclRecv, as number n of this direction
 *   ncclSend, when   <-- go, n ------------
 *   it is n's turn   ======= bytes ========
 *   `sent`                                   `arrived`
 *
 * So what the owner refuses never travels, and a GPU waits only for a peer that has already agreed: NCCL's kernels
 * occupy multiprocessors while they wait. The price is one more message of the carrier before a chunk's bytes; chunks
 * are agreed on while others travel.
 *
 * Memory to send from and to receive into is that of the GPU which the arena is on. `data` has to be complete when
 * link_send is called, because the transport waits for no stream but its own. What has `arrived` can be read by
 * anything launched after that.
 *
 * A peer that dies or stops in mid-transfer leaves a kernel waiting for it. That kernel is aborted when the carrier
 * breaks, or after timeout_ms. `closed` comes when the GPU is done with the link. If the GPU never stops, it never
 * comes; a GPU that failed like this is of no more use to the process. link_abandon is for owners that exit.
 *
 * Options:
 *   carrier=NAME     the other transport, "ucx". It must take chunks of host memory and not be a direct one
 *   timeout_ms=N     10000: the longest time for an operation of NCCL, and for making its communicators
 *   blocks=N         8: thread blocks on the GPU for each direction of a link; 1, 2, 4, 8, 16 or 32. Those of all
 *                    links (2 x blocks each) have to fit into the multiprocessors, or links could wait for each other
 *   library=PATH     libnccl.so.2, where the system finds it: 2.18 or later, the same version at all peers
 *   all others       the carrier's, such as listen= and port=
 *
 * link_open: ERR_AGAIN when the GPU has no room for another link. A link breaks at once if its two ends are on one GPU
 * or in one process, or have different versions of NCCL.
 *
 * NCCL listens on ports of its own and believes what it hears there: like UCX, it is for trusted networks. */
#ifndef STRAIT_TRANSPORT_NCCL_H
#define STRAIT_TRANSPORT_NCCL_H

#include "transport/transport.h"

struct nccl_calls;

extern const struct transport_ops transport_nccl;

/* Does what takes long when the first transport is made: loads NCCL and starts its driver. May be called on any thread,
 * before a transport is made with these options over this memory. What fails here fails there again and is reported
 * there. */
void nccl_prepare(const char *options, const void *memory);

/* For tests, before the first transport is made: uses these calls instead of the plugin's. */
void nccl_use_calls(const struct nccl_calls *calls);

#endif
