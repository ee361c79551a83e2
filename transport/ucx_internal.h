#ifndef STRAIT_TRANSPORT_UCX_INTERNAL_H
#define STRAIT_TRANSPORT_UCX_INTERNAL_H

#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <strait/status.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <ucp/api/ucp.h>

#include "transport/core.h"

/* Address of a UCX link: its listener, and a token of the link. */

#define UCX_ADDRESS_BYTES 48u

/* 0 4 "UCX1" | 4 2 IP version, 4 or 6 | 6 2 port | 8 8 token | 16 16 IP address, zero-padded | 32 4 IPv6 scope | 36 4
 * zero | 40 8 FNV-1a over all bytes before. All little-endian, except for the IP address. */
struct ucx_address {
    struct sockaddr_storage at;
    socklen_t at_size;
    uint64_t token;
};

void ucx_address_write(uint8_t dst[UCX_ADDRESS_BYTES], const struct ucx_address *address);
/* ERR_INVALID: not the size of an address. ERR_CORRUPT: the bytes are not an address. */
enum strait_status ucx_address_read(const void *src, size_t size, struct ucx_address *address);

/* State shared by ucx.c and ucx_setup.c. */

#define UCX_AM_HELLO 0u
#define UCX_AM_CHUNK 1u

#define UCX_TOKEN_BYTES 8u

/* Connected endpoints whose hello has not come. Anyone may connect: beyond this many, the oldest is closed to make room
 * for one that may be a peer. Within one round, as many again may come. */
#define UCX_PENDING_MAX  32u
#define UCX_PENDING_ROOM (2 * UCX_PENDING_MAX)

/* Rounds of progress after an endpoint was closed: what UCX still has to do about it (discarding its lanes) is done in
 * the next one or two. */
#define UCX_ROUNDS_TO_REST 8u

struct ucx_options {
    ucp_config_t *config;
    struct sockaddr_storage listen;
    socklen_t listen_size;
    size_t eager_bytes;
};

/* An endpoint from a connection request. */
struct ucx_pending {
    ucp_ep_h ep;
    bool failed;
};

struct ucx {
    struct core core;
    struct transport_arena arena;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_listener_h listener; /* NULL: there has been no link for a while */
    int64_t idle_since;      /* in nanoseconds; 0: there is a link, or no listener */
    struct sockaddr_storage listen;
    socklen_t listen_size;
    ucp_mem_h arena_handle;
    ucs_memory_type_t memory;   /* of the arena, and of everything sent */
    void *cuda_context;         /* NULL: host memory */
    struct ucx_address address; /* of the listener; tokens belong to links */
    int fd;
    bool progressing;
    size_t eager_bytes; /* smaller chunks come with their headers; others into their slots, after a round trip, as do
                           all that go to a GPU */
    uint64_t rounds;
    struct ucx_pending pending[UCX_PENDING_ROOM]; /* oldest first */
    uint32_t pending_count;
    struct ucx_op *fetches; /* to be begun after this round, latest first */
    LIST_HEAD(, ucx_op) ops;
};

struct ucx_link {
    struct core_link core;
    enum link_side side;
    uint64_t token, peer_token; /* in incoming and in outgoing chunks */
    ucp_ep_h ep;
    bool received_hello; /* the peer's hello has come */
    bool ep_closed;      /* in round `closed_at` */
    uint64_t closed_at;
};

/* A send or a receive. UCX reads the header until the operation ends. */
struct ucx_op {
    struct event event;
    LIST_ENTRY(ucx_op) entry; /* in the list of operations that have not ended */
    bool orphaned;            /* its link is gone, and `event` must not be used */
    uint8_t header[UCX_TOKEN_BYTES + TRANSPORT_HEADER_MAX];
    struct { /* of an accepted chunk that has to be fetched */
        void *descriptor, *address;
        size_t size;
        struct ucx_op *next;
    } fetch;
};

/* ---- ucx_setup.c ------------------------------------------------------------------------------------------------- */

/* Sets what UCX reads only from the environment, unless it is set. Any thread. OK or ERR_NO_MEMORY.
 */
enum strait_status ucx_environment(void);

/* Parses `text`. The config is to be released by the caller. */
enum strait_status ucx_options_read(const char *text, struct ucx_options *options);

/* The type of an arena's memory. */
ucs_memory_type_t ucx_memory_type(const struct transport_arena *arena);
/* The CUDA context of the arena; NULL for host memory. */
void *ucx_cuda_context(const struct transport_arena *arena);
/* To be called before calls of UCX that may call CUDA: makes the context current on this thread. */
void ucx_cuda_enter(void *context);
/* Whether this UCX can send and receive such memory. */
bool ucx_cuda_is_there(ucp_context_h context);
void ucx_missing(char *dst, size_t size);
/* Makes and destroys ucx->context and ucx->worker. ERR_UNSUPPORTED: it cannot use the arena's memory; ERR_IO,
 * ERR_NO_MEMORY. */
enum strait_status ucx_make_worker(struct ucx *ucx, const ucp_config_t *config);
void ucx_destroy_worker(struct ucx *ucx);
enum strait_status ucx_check(const char *text); /* as in transport_ops */

static inline enum strait_status ucx_status(ucs_status_t status)
{
    return status == UCS_OK ? STRAIT_OK : status == UCS_ERR_NO_MEMORY ? STRAIT_ERR_NO_MEMORY : STRAIT_ERR_IO;
}

/* ---- ucx.c ------------------------------------------------------------------------------------------------------- */

/* Endpoints and hellos. */
enum strait_status ucx_listen(struct ucx *ucx); /* unless it listens already */
void ucx_unlisten(struct ucx *ucx);
enum strait_status ucx_peer_dial(struct ucx_link *link, const struct ucx_address *address);
void ucx_peer_send_hello(struct ucx_link *link);
ucs_status_t ucx_on_hello(void *arg, const void *header, size_t header_size, void *data, size_t size,
                          const ucp_am_recv_param_t *param);
void ucx_ep_close(ucp_ep_h ep);
bool ucx_drop_failed_pending(struct ucx *ucx);

/* Links and chunks. */
bool ucx_begin_fetches(struct ucx *ucx); /* after a round; false: there were none */
enum strait_status ucx_link_open(struct transport *transport, int fd, enum link_side side, void *link_owner,
                                 struct link **link);
size_t ucx_link_address(struct link *link, void *dst, size_t capacity);
enum strait_status ucx_link_connect(struct link *link, const void *address, size_t size);
void ucx_link_close(struct link *link);
void ucx_link_abandon(struct link *link);
enum strait_status ucx_link_send(struct link *link, const void *header, size_t header_size, const void *data,
                                 size_t size, void *handle, uint64_t cookie);
ucs_status_t ucx_on_chunk(void *arg, const void *header, size_t header_size, void *data, size_t size,
                          const ucp_am_recv_param_t *param);
/* Closes the endpoints of links whose close is due. Not called from UCX's own callbacks. */
bool ucx_close_endpoints(struct ucx *ucx);
bool ucx_close_is_due(const struct ucx *ucx);
bool ucx_link_quiet(struct core_link *link);
void ucx_link_release(struct core_link *link);

/* NULL: out of memory. */
struct ucx_op *ucx_op_begin(struct ucx_link *link, enum event_kind kind, uint64_t cookie);
/* Ends a request, from the callbacks of sends and receives. */
void ucx_op_end(struct ucx_op *op, ucs_status_t status);
/* Sends `op`'s header and data; the op's event becomes due when that ends. */
void ucx_op_send(struct ucx_link *link, struct ucx_op *op, unsigned id, size_t header_size, const void *data,
                 size_t size, ucp_mem_h handle);

#endif
