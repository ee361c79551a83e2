/* UCX: one endpoint per link, with the bytes as active messages; large chunks go by rendezvous, straight from the send
 * arena into the slot: UCX itself packs, sends and unpacks the rkeys. The accepted side's address names the listener
 * and a token of the link. The dialled side connects and sends the token in its hello, and every chunk carries the
 * token of the link that it is for.
 *
 * Endpoints are made through a listener, not from worker addresses: only then does closing one end break the other, and
 * end every transfer between the two (with UCX 1.13.1 over tcp).
 *
 * Options:
 *   listen=ADDRESS     IPv4 or IPv6 address that peers connect to; 127.0.0.1. Not a wildcard: peers are told it
 *   port=NUMBER        port to listen on; 0, any
 *   tls=LIST           UCX_TLS; UCX's choice. Never posix, sysv, cma, xpmem, self, or a name for several of them: a
 *                      list of these is refused
 *   devices=LIST       UCX_NET_DEVICES; lo when listening on a loopback address, else UCX's choice
 *   eager=BYTES        smaller chunks come with their headers and are copied; others go straight into their slots,
 *                      after a round trip. 262144 over TCP, where that takes longer than copying, 32768 with RDMA
 *   keepalive=TIME     UCX_KEEPALIVE_INTERVAL, 5s; an idle peer that is gone is noticed after about twice that
 *
 * UCX reads other settings from the environment, as usual. Three are put there unless they are set, because 1.13.1
 * takes them from nowhere else: UCX_TCP_CONN_NB=y, or UCX would block in connect; UCX_TCP_CM_REUSEADDR=y, or a port
 * could not be listened on again for a while; UCX_TCP_CM_PRIV_DATA_LEN=64k, the buffer for what a process that connects
 * to the listener sends first. When that buffer is full of nonsense, UCX reads nothing from then on, neither more bytes
 * nor the end, but is woken by them: its thread occupies a CPU until the transport is destroyed. With UCX's default of
 * 2 KiB, anyone who mistakes the port can cause that; nobody sends 64 KiB by mistake. Threads that read the environment
 * meanwhile are safe; those that change it are not: their change may be lost.
 *
 * link_close forces the endpoint shut. Over tcp nothing touches the slots from then on; over RDMA that does not prove
 * that the peer's adapter has stopped writing (not tested: no such hardware was at hand).
 *
 * Memory is the host's or, where UCX was built with CUDA and finds a GPU, that of the GPU which the arena is on, for
 * sending too. UCX picks a path for it (cuda_ipc between GPUs of a host, RDMA to and from the GPU, else through buffers
 * of the host). Such chunks are always fetched, however small they are. `data` has to be complete when link_send is
 * called, because UCX's streams wait for no others. If tls= names transports, CUDA's have to be among them. When a link
 * is closed while the last piece of a chunk is being copied from UCX's buffers to the GPU, it does not wait for that
 * copy.
 *
 * It listens while there is a link. UCX's own ports are for trusted networks: its wire format has no checks against
 * malice, and over tcp a peer can name the address to write to (UCX_TCP_PUT_ENABLE=n prevents that, for about a quarter
 * of the throughput). */
#ifndef STRAIT_TRANSPORT_UCX_H
#define STRAIT_TRANSPORT_UCX_H

#include "transport/transport.h"

extern const struct transport_ops transport_ucx;

/* Does what takes long when the first transport over a GPU's memory is made: loads UCX's modules and starts the driver.
 * May be called on any thread. What fails here fails there again and is reported there. */
void ucx_prepare(const struct transport_arena *arena);

/* Whether this UCX stands what strangers send to its ports for TCP: from 1.17 on. Writes its version, too. */
bool ucx_is_sound_over_tcp(char *version, size_t size);

/* Whether the library is installed that UCX's modules for RDMA are linked to. Without it UCX leaves them out, and would
 * use TCP without a word. */
bool ucx_can_load_rdma(void);

/* Names of the components that UCX has loaded, its modules among them ("self,tcp,sysv,posix,ib"), as many as fit. */
void ucx_components(char *names, size_t size);

/* For tests without a GPU, before the first transport is made: arenas of CUDA memory are in host memory. */
void ucx_stand_in(void);

/* UCX's part of transport_leave_signals. */
void ucx_leave_signals(void);

#endif
