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
 *                      a round trip. 262144 over TCP, where that takes longer than copying, 32768 where RDMA may be used
 *   keepalive=TIME     UCX_KEEPALIVE_INTERVAL, "5s"; an idle peer that is gone is noticed after about twice that
 *
 * Other settings are read from the environment, by UCX, as ever. Two are put there unless they are set, as 1.13.1 takes
 * them from nowhere else: UCX_TCP_CONN_NB=y, or it would block in connect, and UCX_TCP_CM_REUSEADDR=y, or a port could
 * not be listened on again for a while.
 *
 * link_close forces the endpoint shut. Over tcp nothing touches the slots from then on; over RDMA that is no proof that
 * the peer's adapter has stopped writing (not tested: no such hardware was at hand).
 *
 * UCX's own ports are for trusted networks: its wire format has no checks against malice, over tcp a peer can name the
 * address to write to (UCX_TCP_PUT_ENABLE=n prevents that, for about a quarter of the throughput). */
#ifndef STRAIT_TRANSPORT_UCX_H
#define STRAIT_TRANSPORT_UCX_H

#include "transport/transport.h"

extern const struct transport_ops transport_ucx;

/* transport_leave_signals, of UCX. */
void ucx_leave_signals(void);

#endif
