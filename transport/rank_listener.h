/* Listener of a rank for links of TCP that other ranks dial. Connections that have not said yet whose they are cost a
 * descriptor each for ten seconds, and are few. Not thread-safe. */
#ifndef STRAIT_TRANSPORT_RANK_LISTENER_H
#define STRAIT_TRANSPORT_RANK_LISTENER_H

#include <stdbool.h>
#include <stdint.h>

#include "internal/address.h"
#include "transport/tcp.h"

enum { RANK_STRANGERS_MAX = 64 };

struct rank_stranger {
    int file; /* -1: none */
    int64_t until_ms;
};

struct rank_listener {
    int file;   /* to be polled for reading; -1: it does not listen */
    bool ready; /* somebody has connected, or may have: the owner sets it after it has polled */
    struct rank_stranger strangers[RANK_STRANGERS_MAX];
};

/* So that rank_listener_close may be called. */
void rank_listener_init(struct rank_listener *listener);
/* Listens; *address is what other ranks are told. False: no address that others could reach, or no memory. */
bool rank_listener_open(struct rank_listener *listener, struct address *address);
/* Takes those who have connected, and hands to the transport (tcp, listen=none) those whose link `awaits` names: the
 * number that a connection begins with is the link's (tcp_name) at the rank that dials. It proves itself there. */
void rank_listener_accept(struct rank_listener *listener, struct transport *transport,
                          bool (*awaits)(void *arg, uint64_t number), void *arg);
void rank_listener_close(struct rank_listener *listener);

#endif
