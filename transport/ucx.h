/* UCX: one endpoint per link, the bytes as active messages; large chunks by rendezvous, straight from the send arena
 * into the slot. The accepted side's address names the listener and a token of the link; the dialled side connects and
 * says the token in its hello, and every chunk carries the token of the link that it is for.
 *
 * Endpoints are made through a listener, not from worker addresses: only then does closing one end break the other, and
 * end every transfer of the two (with UCX 1.13.1 over tcp).
 *
 * Options:
 *   listen=ADDRESS     IPv4 or IPv6 address that peers connect to; 127.0.0.1. Not a wildcard: peers are told it
 *   port=NUMBER        port to listen on; 0, any
 *   tls=LIST           UCX_TLS; UCX's choice
 *   devices=LIST       UCX_NET_DEVICES; lo when listening on a loopback address, else UCX's choice
 *   eager=BYTES        chunks below come with their headers and are copied; others are received into their slots, after
 *                      a round trip. 262144 over TCP, where that takes longer than copying, 32768 with RDMA
 *   keepalive=TIME     UCX_KEEPALIVE_INTERVAL, 5s; an idle peer that is gone is noticed after about twice that
 *
 * Other settings are read from the environment, by UCX, as ever. Three are put there unless they are set, as 1.13.1
 * takes them from nowhere else: UCX_TCP_CONN_NB=y, or it would block in connect; UCX_TCP_CM_REUSEADDR=y, or a port
 * could not be listened on again for a while; UCX_TCP_CM_PRIV_DATA_LEN=64k, the room for what somebody says who
 * connects to its listener. When that is full of nonsense, UCX reads nothing from then on, neither more bytes nor the
 * end, but is woken by them: its thread takes a processor until the transport is destroyed. With 2 KiB, as UCX has it,
 * whoever mistakes the port can do that; 64 KiB have to be meant. Threads that read the environment meanwhile are safe,
 * those that change it are not: their change may be lost.
 *
 * link_close forces the endpoint shut. Over tcp nothing touches the slots from then on; over RDMA that is no proof that
 * the peer's adapter has stopped writing (not tested: no such hardware was at hand).
 *
 * Memory is the host's or, where UCX was built with CUDA and finds a GPU, that of the GPU which the arena is on, for
 * sending too: UCX takes the way that it has for it (cuda_ipc between GPUs of a host, RDMA to and from the GPU, else
 * through buffers of the host). Chunks are always fetched then, however small they are. `data` has to be complete when
 * link_send is called, as UCX's own streams wait for no others. With tls=, cuda has to be among those that are named.
 * A link closed while the last piece of a chunk is copied from UCX's buffers to the GPU does not wait for that copy.
 *
 * UCX's own ports are for trusted networks: its wire format has no checks against malice, over tcp a peer can name the
 * address to write to (UCX_TCP_PUT_ENABLE=n prevents that, for about a quarter of the throughput). */
#ifndef STRAIT_TRANSPORT_UCX_H
#define STRAIT_TRANSPORT_UCX_H

#include "transport/transport.h"

extern const struct transport_ops transport_ucx;

/* What of making a transport over a GPU's memory takes long the first time, loading UCX's modules and starting the
 * driver: on any thread. What fails will fail there again, and is told then. */
void ucx_prepare(const struct transport_arena *arena);

/* For tests without a GPU, before the first transport is made: arenas of CUDA's memory are the host's. */
void ucx_stand_in(void);

/* transport_leave_signals, of UCX. */
void ucx_leave_signals(void);

#endif
