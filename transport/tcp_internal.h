#ifndef STRAIT_TRANSPORT_TCP_INTERNAL_H
#define STRAIT_TRANSPORT_TCP_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/socket.h>

#include "transport/core.h"
#include "transport/tcp.h"

#define SECRET_BYTES        TCP_SECRET_BYTES
#define PREAMBLE_BYTES      32u /* magic, id of the link, secret */
#define FRAGMENT_HEAD       32u
#define FRAGMENT_HEAD_MAX   (FRAGMENT_HEAD + TRANSPORT_HEADER_MAX)
#define FRAGMENT_BYTES      262144u /* of a chunk that goes by several connections */
#define TURN_BYTES          262144u /* read of a connection and written of a link per progress: others get their turn */
#define INPUT_BYTES         4096u
#define FRAGMENTS_MAX       32   /* that a connection takes at a time */
#define CONNECTIONS_MAX     16   /* of a link */
#define CONNECTIONS_DEFAULT 4    /* of a link */
#define PENDING_MAX         128  /* unproved connections: beyond these the oldest is closed */
#define INCOMING_MAX        1024 /* chunks of a link of which a part has come; honest peers stay far below */

extern const uint8_t tcp_connect_magic[TCP_FIRST_BYTES], tcp_accept_magic[TCP_FIRST_BYTES];

/* A chunk to send. */
struct message {
    struct event event;
    TAILQ_ENTRY(message) entry;
    const uint8_t *data;
    size_t size, taken, written; /* bytes; of these, in fragments of connections; of these, given to the system */
    uint64_t number;
    uint32_t header_size;
    uint8_t header[TRANSPORT_HEADER_MAX];
};

/* A part of a chunk that a connection has taken to send. */
struct fragment {
    struct message *message;
    const uint8_t *data;
    size_t size;
    uint32_t head_size;
    uint8_t head[FRAGMENT_HEAD_MAX];
};

/* A chunk that is being received. Its bytes are counted twice, when a fragment begins and when it has come: so no
 * fragment of it is under way when it is complete, whatever the peer says. */
struct incoming {
    struct event event; /* begun if `address` is not NULL */
    TAILQ_ENTRY(incoming) entry;
    uint8_t *address; /* NULL: refused */
    uint64_t number;
    size_t size, begun, received;
};

enum connection_state {
    CONNECTION_NONE,
    CONNECTION_DIALLING, /* connect is under way */
    CONNECTION_ASKING,   /* dialled, the preamble was sent, and its answer is awaited */
    CONNECTION_PROVED,   /* accepted, and link_connect has still to say who the peer is */
    CONNECTION_UP,
};

/* A connection of a link. */
struct connection {
    struct tcp_link *link;
    enum connection_state state;
    int fd; /* -1: none */
    uint8_t secret[SECRET_BYTES], peer_secret[SECRET_BYTES];

    struct fragment fragments[FRAGMENTS_MAX];
    unsigned first, end; /* of `fragments`, those that are not written yet */
    size_t done;         /* bytes written of the first */
    bool blocked;        /* the socket takes no more for now */

    struct incoming *chunk; /* of the fragment that is being received; NULL: none */
    uint8_t *into;          /* where its bytes go; NULL: nowhere */
    size_t left;            /* of its bytes */
    uint32_t in_size;
    uint8_t in[INPUT_BYTES];
};

struct tcp_link {
    struct core_link core;
    enum link_side side;
    uint64_t id, peer_id;
    bool mute; /* a write has failed; what the peer said last is still to be read */
    struct sockaddr_storage reach;
    socklen_t reach_size; /* 0: not told */
    TAILQ_HEAD(, message) out;
    struct message *next_out; /* the first that is not taken entirely; NULL: none */
    uint64_t numbered;        /* chunks sent */
    TAILQ_HEAD(, incoming) in;
    unsigned incoming;
    unsigned up, count; /* connections */
    struct connection connections[];
};

/* An accepted connection that has not proved itself. */
struct pending {
    int fd; /* -1: none */
    uint32_t got;
    int64_t until;
    uint8_t preamble[PREAMBLE_BYTES];
};

struct tcp_options {
    struct address listen;
    bool adopts; /* the owner listens */
    uint32_t connections;
};

struct tcp {
    struct core core;
    struct tcp_options options;
    int epoll, timer;
    int listener;           /* -1: no link awaits its peer, or the owner listens */
    bool resting, ticking;  /* no descriptor is left for those who connect; the timer runs */
    bool links_changed;     /* perhaps no link awaits its peer any more */
    struct address address; /* as peers are told, with the port */
    struct pending pending[PENDING_MAX];
    uint8_t refused[65536]; /* bytes that nobody wants are read to here */
};

static inline struct tcp *tcp_of(const struct tcp_link *link)
{
    return (struct tcp *)link->core.core;
}

/* ---- tcp_stream.c: connections of links -------------------------------------------------------------------------- */

bool tcp_watch(struct tcp *tcp, int fd, void *what, uint32_t events);
/* Closing alone would leave it in the set for as long as a forked child has a copy. */
void tcp_drop(struct tcp *tcp, int *fd);

/* Nothing of the link is read or written from here on. */
void tcp_shut(struct tcp_link *link);

/* Reads up to a preamble and no further. 1: it is complete; 0: more has to come; -1: it ended. */
int tcp_preamble_read(int fd, uint8_t preamble[PREAMBLE_BYTES], uint32_t *got);
/* Takes constant time, so as not to reveal how much of it is right. */
bool tcp_preamble_is(const uint8_t preamble[PREAMBLE_BYTES], const uint8_t magic[TCP_FIRST_BYTES],
                     const struct connection *conn);
/* The accepted side, once the peer has proved itself and link_connect has said who that is. */
void tcp_answer(struct connection *conn);

bool tcp_may_write(const struct tcp_link *link);
void tcp_flush(struct tcp_link *link);
void tcp_serve(struct connection *conn, uint32_t events);

/* ---- tcp_accept.c: those who connect ----------------------------------------------------------------------------- */

bool tcp_listen(struct tcp *tcp);
/* Where no link awaits its peer, whoever connects is a stranger. */
void tcp_unlisten_if_idle(struct tcp *tcp);
void tcp_accept(struct tcp *tcp);
void tcp_tick(struct tcp *tcp);
void tcp_read_pending(struct tcp *tcp, struct pending *pending);

#endif
