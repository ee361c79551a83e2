/* Network addresses as people write them: "127.0.0.1:7350", "[::1]:7350", "node7.rack2:7350". */
#ifndef STRAIT_DAEMON_BASE_ADDRESS_H
#define STRAIT_DAEMON_BASE_ADDRESS_H

#include <stdbool.h>
#include <sys/socket.h>

#define ADDRESS_HOST_MAX 254u /* of a host's name or number, with its NUL */

/* Splits "host:port"; an IPv6 host stands in brackets and is returned without them. False: not of this form, and
 * nothing is written. */
bool address_split(const char *text, char host[ADDRESS_HOST_MAX], unsigned *port);
/* The same with a numeric host only: never asks a name server. */
bool address_numeric(const char *text, struct sockaddr_storage *address);

bool address_is_loopback(const struct sockaddr_storage *address);
bool address_is_wildcard(const struct sockaddr_storage *address); /* 0.0.0.0 or [::] */
unsigned address_port(const struct sockaddr_storage *address);

#endif
