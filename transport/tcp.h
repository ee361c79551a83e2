/* TCP: one connection per link, made by the dialled side. The accepted side's address names the transport's listener
 * and a secret of the link, which the dialled side has to show first; the answer is the secret of its own link. Nothing
 * else of either is read before, so whoever knows neither secret costs a descriptor for ten seconds at most. The
 * transport listens while an accepted link awaits its peer.
 *
 * On the wire, little-endian: a hello of 24 bytes each way (magic, secret); then records (core.h), each a chunk: a head
 * of 16 bytes ("CHNK", size of the header, size of the bytes), the header and the bytes, which are received straight
 * into the landing. An invalid record breaks the link.
 *
 * A peer whose process ends is noticed at once, a host that disappears silently within half a minute. Nothing is
 * encrypted: who can read the network can impersonate a peer.
 *
 * Options:
 *   listen=ADDRESS     IPv4 or IPv6 address that peers connect to, with %INTERFACE if link-local; 127.0.0.1. Not a
 *                      wildcard: peers are told it
 *   port=NUMBER        port to listen on; 0, any */
#ifndef STRAIT_TRANSPORT_TCP_H
#define STRAIT_TRANSPORT_TCP_H

#include "transport/transport.h"

#define TCP_ADDRESS_BYTES 48u /* of a link_address */

extern const struct transport_ops transport_tcp;

#endif
