/* TCP: one or more connections per link, made by the dialled side. The accepted side's address names the link and has
 * a secret for each of its connections, which the dialled side has to show first; the answer is the secret of its own
 * link's connection. Nothing else of either is read before, so whoever knows no secret costs a descriptor for ten
 * seconds at most. A secret admits one connection, once: whoever has read it from the network can at most be quicker
 * than its owner, and so keep the link from coming up.
 *
 * Where the connections go: to the transport's own listener, which is open while an accepted link awaits its peer; or,
 * with listen=none, to a listener of the owner's, which tells such connections from its own by their first bytes
 * (tcp_is_preamble) and hands them over (tcp_adopt). Then an address names no place: the owner of the dialled link says
 * where its own connection to the peer got to (tcp_reach), which is right through any name, family, or translation of
 * addresses.
 *
 * On the wire, little-endian: a preamble of 32 bytes each way (magic, id of the link, secret); then fragments of
 * chunks, each a head of 32 bytes, the chunk's header, and bytes that are received straight into the landing. A link
 * with one connection sends chunks whole and in order; with more, a connection that can take bytes takes the next
 * 256 KiB. An invalid fragment breaks the link, as does the end of one of its connections; what was under way on the
 * others is lost then.
 *
 * A peer whose process ends is noticed at once, a host that disappears silently within half a minute. Nothing is
 * encrypted: who can read the network reads the chunks, and who can change what it carries can impersonate a peer.
 *
 * Options:
 *   listen=ADDRESS     IPv4 or IPv6 address that peers connect to, with %INTERFACE if link-local; 127.0.0.1. Not a
 *                      wildcard: peers are told it. none: the owner listens
 *   port=NUMBER        port to listen on; 0, any
 *   connections=NUMBER connections of a link, 1 to 16; 4. Both sides have to allow as many */
#ifndef STRAIT_TRANSPORT_TCP_H
#define STRAIT_TRANSPORT_TCP_H

#include <sys/socket.h>

#include "transport/transport.h"

#define TCP_ADDRESS_BYTES(connections) (40u + 16u * (connections)) /* of a link_address */
#define TCP_FIRST_BYTES                8u                          /* that tell what a connection is */

extern const struct transport_ops transport_tcp;

/* Whether a connection that begins with these TCP_FIRST_BYTES is one for tcp_adopt. */
bool tcp_is_preamble(const void *first);
/* Takes over a connection that the owner accepted (non-blocking, close-on-exec) and from which it has read nothing. It
 * is closed unless it proves in time which link it belongs to. */
void tcp_adopt(struct transport *transport, int fd);
/* Before link_connect of a dialled link whose peer listens with listen=none: where its connections go. */
void tcp_reach(struct link *link, const struct sockaddr *peer, socklen_t size);
/* Of a dialled link: whether something has taken its connections; the peer has not answered them before the link is
 * connected. */
bool tcp_is_reached(const struct link *link);

/* For owners that tell each other once how to reach them, and make links later: a link of one connection that has just
 * been opened gets an id and a secret that the peer's owner knows, instead of those that were drawn; and the address of
 * such a link, which names no place, for the peer's link_connect. The id has to be the only one of its side's links. */
#define TCP_SECRET_BYTES 16u
void tcp_name(struct link *link, uint64_t id, const uint8_t secret[TCP_SECRET_BYTES]);
void tcp_address_write(uint8_t address[TCP_ADDRESS_BYTES(1)], uint64_t id, const uint8_t secret[TCP_SECRET_BYTES]);

#endif
