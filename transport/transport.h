/* How opaque chunks travel between two daemons. A transport knows nothing of transfers, codecs or messages: it carries
 * a small header and up to a slot of bytes from a sender to the slot that the receiver names when the header arrives.
 *
 * There is one `struct transport` per kind and process, and one `struct link` per peer. All calls and all callbacks
 * happen on one thread, the owner's. Callbacks come only from inside transport_progress, never from inside another
 * call, and may call anything except transport_destroy.
 *
 * Start of a link: link_open creates it, and link_address says what the peer needs to reach it. The owners exchange
 * these blobs over a connection they trust; link_connect takes the peer's. `connected` follows once both sides have
 * done so.
 *
 * Life of a chunk, sender: link_send; later exactly one `sent` with its cookie, OK or an error. OK says that `data` may
 * be used again, not that the bytes landed: the peer may have refused them. Receiver, never before `connected`:
 * `arriving` with the header, whose answer names where the bytes go (or refuses them); later exactly one `arrived` if
 * the chunk was accepted. Chunks may overtake one another.
 *
 * End of a link: link_close; then every accepted chunk and every send still gets its callback (with ERR_IO if it did
 * not happen), and last comes `closed`. From then on nothing of this link, on either side, touches this side's memory,
 * and slots that were granted to the peer can be used again. The same holds when a link breaks by itself: after
 * `broken` the owner calls link_close. Before link_close the caller must have stopped writing to memory from link_map.
 *
 * With a direct transport `closed` waits for the end of the peer's side of the link, which comes when the peer has
 * called link_close too or is dead. A stopped process keeps its slots in quarantine, because it could write to them
 * when it continues. With a transport whose bytes pass through this process `closed` comes at once, and breaks the
 * peer's side. An owner that is about to give up its arena need not wait for that: link_abandon. */
#ifndef STRAIT_TRANSPORT_TRANSPORT_H
#define STRAIT_TRANSPORT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <strait/status.h>

#define TRANSPORT_HEADER_MAX 96u   /* bytes of a header */
#define LINK_ADDRESS_MAX     4096u /* bytes of a link_address */

/* Memory kinds that a transport can send from and receive into. */
enum transport_memory {
    TRANSPORT_HOST = 1,
    TRANSPORT_CUDA = 2,
};

/* The receive arena: memory that peers may write through this transport. */
struct transport_arena {
    void *base;
    size_t size;
    int fd;          /* the sealed memfd behind it; -1: none */
    uint32_t memory; /* enum transport_memory */
};

/* Where an arriving chunk goes. With a direct transport the bytes are already in the arena, where the header says by
 * agreement of the owners; address is only compared with NULL. */
struct landing {
    void *address; /* NULL: refuse the chunk; its bytes are dropped and `arrived` does not follow */
    uint64_t cookie;
};

struct transport;
struct link;
struct ring; /* internal/ring.h */

/* Which end of the owners' connection this side is; it decides which of the two speaks first. */
enum link_side {
    LINK_ACCEPTED = 1,
    LINK_DIALLED = 2,
};

struct transport_events {
    /* `header` may be read until the callback returns; `size` is what the sender claims to send. */
    struct landing (*arriving)(void *owner, struct link *link, const void *header, size_t header_size, size_t size);
    void (*arrived)(void *owner, struct link *link, uint64_t cookie, enum strait_status status);
    void (*sent)(void *owner, struct link *link, uint64_t cookie, enum strait_status status);
    void (*connected)(void *owner, struct link *link);               /* chunks may be sent; at most once */
    void (*broken)(void *owner, struct link *link, const char *why); /* at most once; sends fail from now on */
    void (*closed)(void *owner, struct link *link);                  /* last: the link is freed after it returns */
};

/* A kind of transport. */
struct transport_ops {
    const char *name;                     /* "shm", "ucx", "nccl", "tcp", "loopback" */
    uint32_t send_memory, receive_memory; /* enum transport_memory, or'ed */
    bool direct;                          /* the sender stores straight into the receiver's arena: link_map */

    bool by_readiness; /* progress is needed only while the fd is readable, or arm returns ERR_AGAIN */

    void (*missing)(char *dst, size_t size);          /* NULL: nothing can be missing */
    enum strait_status (*check)(const char *options); /* NULL: only `create` checks them */
    enum strait_status (*create)(const struct transport_arena *arena, const struct transport_events *events,
                                 void *owner, const char *options, struct transport **transport);
    void (*destroy)(struct transport *transport);    /* all links must have been closed */
    void (*after_fork)(struct transport *transport); /* NULL: a child keeps its copies of descriptors */
    int (*fd)(const struct transport *transport);
    bool (*progress)(struct transport *transport);
    enum strait_status (*arm)(struct transport *transport);
    enum strait_status (*memory)(struct transport *transport, void *base, size_t size,
                                 void **handle); /* NULL: no need */
    void (*memory_release)(struct transport *transport, void *handle);

    enum strait_status (*open)(struct transport *transport, int fd, enum link_side side, void *link_owner,
                               struct link **link);
    size_t (*address)(struct link *link, void *dst, size_t capacity);
    enum strait_status (*connect)(struct link *link, const void *address, size_t size);
    void (*close)(struct link *link);
    void (*abandon)(struct link *link);                          /* NULL: links close without the peer */
    bool (*sees_end)(const struct link *link);                   /* NULL: false */
    void *(*map)(struct link *link, size_t offset, size_t size); /* NULL: not direct */
    /* Rings in memory that both ends share: all of these, or none. */
    bool (*rings)(struct link *link, struct ring *in, struct ring *out);
    void (*wake)(struct link *link);
    bool (*look)(struct transport *transport);
    bool (*sleep)(struct transport *transport, bool sleeps);
    enum strait_status (*send)(struct link *link, const void *header, size_t header_size, const void *data, size_t size,
                               void *handle, uint64_t cookie);
};

/* First member of every transport's own struct. */
struct transport {
    const struct transport_ops *ops;
    struct transport_events events;
    void *owner;
};
/* First member of every link's own struct. */
struct link {
    struct transport *transport;
    void *owner; /* of the link: free for the owner's use */
};

/* The kinds in this build, best first, NULL past the last; or by name, NULL when absent. */
const struct transport_ops *transport_at(uint32_t index);
const struct transport_ops *transport_find(const char *name);

/* Whether a device for RDMA has an active port; `devices` is RDMA_DEVICES, but for tests. */
#define RDMA_DEVICES "/sys/class/infiniband"
bool transport_rdma_is_active(const char *devices);

/* Gives back the signals that libraries of transports took when they were loaded (UCX: those of errors, and SIGHUP),
 * unless the user wants UCX to have them (UCX_HANDLE_ERRORS or UCX_DEBUG_SIGNO is set). For the main function of our
 * own programs only: in other programs UCX may have them on purpose. */
void transport_leave_signals(void);

/* Creates a transport whose peers write into `arena` (borrowed, as are the events' functions). `options` are
 * "name=value" pairs separated by spaces, whose meaning depends on the transport (ucx: tls=, devices=, ...); unknown
 * names are ERR_INVALID. ERR_IO: the system refused. ERR_UNSUPPORTED: this machine lacks what the transport needs, see
 * transport_missing. */
static inline enum strait_status transport_create(const struct transport_ops *ops, const struct transport_arena *arena,
                                                  const struct transport_events *events, void *owner,
                                                  const char *options, struct transport **transport)
{
    return ops->create(arena, events, owner, options, transport);
}
/* Whether transport_create would accept the options, as far as can be told without looking at the machine's devices:
 * OK, ERR_INVALID. */
static inline enum strait_status transport_check(const struct transport_ops *ops, const char *options)
{
    return ops->check != NULL && ops->check(options) == STRAIT_ERR_INVALID ? STRAIT_ERR_INVALID : STRAIT_OK;
}
/* Description, for people, of what the last transport_create of this kind that returned ERR_UNSUPPORTED did not find;
 * otherwise empty. */
static inline void transport_missing(const struct transport_ops *ops, char *dst, size_t size)
{
    if (size > 0)
        dst[0] = '\0';
    if (ops->missing != NULL)
        ops->missing(dst, size);
}
static inline void transport_destroy(struct transport *transport)
{
    if (transport != NULL)
        transport->ops->destroy(transport);
}
/* In a forked child, whose parent was in no call of this transport at the fork: closes the child's copies of
 * descriptors, so that connections end with the parent, and touches nothing that both share. From then on the child may
 * only close the links and destroy the transport. */
static inline void transport_after_fork(struct transport *transport)
{
    if (transport->ops->after_fork != NULL)
        transport->ops->after_fork(transport);
}

/* Polls readable when transport_progress has something to do, provided that transport_arm has returned OK since the
 * last progress. */
static inline int transport_fd(const struct transport *transport)
{
    return transport->ops->fd(transport);
}
/* Does a bounded amount of work (well under a millisecond) and calls back. False: nothing was left to do. */
static inline bool transport_progress(struct transport *transport)
{
    return transport->ops->progress(transport);
}
/* To be called before blocking. OK; ERR_AGAIN: call progress first, something is due; ERR_IO: the transport is broken.
 */
static inline enum strait_status transport_arm(struct transport *transport)
{
    return transport->ops->arm(transport);
}
/* Registers memory to send from (for RDMA); the handle is passed to link_send. */
static inline enum strait_status transport_memory(struct transport *transport, void *base, size_t size, void **handle)
{
    *handle = NULL;
    return transport->ops->memory != NULL ? transport->ops->memory(transport, base, size, handle) : STRAIT_OK;
}
static inline void transport_memory_release(struct transport *transport, void *handle)
{
    if (transport->ops->memory_release != NULL)
        transport->ops->memory_release(transport, handle);
}

/* Creates a link for both directions. `fd`: for shm, the connected unix stream socket between the two owners; the link
 * takes it over, even on failure, and from now on it carries only the link's own bytes. Otherwise -1. */
enum strait_status link_open(struct transport *transport, int fd, enum link_side side, void *link_owner,
                             struct link **link);
/* Address of this link for the peer's link_connect: at most LINK_ADDRESS_MAX bytes, perhaps none. Returns the
 * length; written to dst if it fits. The address admits whoever holds it to this link, so it is for the peer only. */
static inline size_t link_address(struct link *link, void *dst, size_t capacity)
{
    return link->transport->ops->address(link, dst, capacity);
}
/* Once per link, with the peer's link_address. Never blocks: `connected` or `broken` follows, or neither while the peer
 * does not answer, so the owner needs a timer. ERR_CORRUPT, ERR_INVALID: not an address of this kind; ERR_IO,
 * ERR_NO_MEMORY: refused by the system. Even then the link has to be closed; `broken` does not come. */
static inline enum strait_status link_connect(struct link *link, const void *address, size_t size)
{
    return link->transport->ops->connect(link, address, size);
}
/* Begins the end of a link, connected or not; `closed` always follows. */
static inline void link_close(struct link *link)
{
    link->transport->ops->close(link);
}
/* After link_close: `closed` follows without waiting for the peer's side, which may go on storing into the arena's
 * file. Only for an owner that reads nothing of the arena any more and frees it next. Before link_close this does
 * nothing. */
static inline void link_abandon(struct link *link)
{
    if (link->transport->ops->abandon != NULL)
        link->transport->ops->abandon(link);
}
/* Whether `closed` of this link comes only when the peer has closed its side in order, or its process has ended with
 * everything that it had started. Then memory outside the arena may be lent to the peer in the same way. */
static inline bool link_sees_end(const struct link *link)
{
    return link->transport->ops->sees_end != NULL && link->transport->ops->sees_end(link);
}
/* Direct transports: the peer's arena at [offset, offset + size) as memory to write to; NULL when out of bounds. Other
 * transports: NULL. */
static inline void *link_map(struct link *link, size_t offset, size_t size)
{
    return link->transport->ops->map != NULL ? link->transport->ops->map(link, offset, size) : NULL;
}
/* Rings of a connected link that are free for its owner, both ends of which then speak through them; valid until
 * `closed`. False: there are none. */
static inline bool link_rings(struct link *link, struct ring *in, struct ring *out)
{
    return link->transport->ops->rings != NULL && link->transport->ops->rings(link, in, out);
}
/* To be called after bytes were put into the owner's ring, or taken out although the other end waits for room: wakes
 * the other end if it sleeps. */
static inline void link_wake(struct link *link)
{
    link->transport->ops->wake(link);
}
/* Takes what has come by rings, and calls back, like transport_progress but without a system call. False: nothing. */
static inline bool transport_look(struct transport *transport)
{
    return transport->ops->look != NULL && transport->ops->look(transport);
}
/* Says in shared memory whether the owner's thread sleeps, so that peers wake it, and must be told before it does:
 * while it does not sleep, it has to look instead. True: it sleeps, and there is something to look for already. The
 * owner looks at its own rings afterwards. */
static inline bool transport_sleep(struct transport *transport, bool sleeps)
{
    return transport->ops->sleep != NULL && transport->ops->sleep(transport, sleeps);
}
/* Sends a chunk. `data` (with the handle of transport_memory that covers it, or NULL) must stay valid until `sent`; the
 * header is copied. Direct transports: data is NULL, as the bytes are already in the peer's arena, or elsewhere by
 * agreement of the owners; `size` is for the owners to check. ERR_IO: the link is broken or not connected; no `sent`
 * follows then. */
static inline enum strait_status link_send(struct link *link, const void *header, size_t header_size, const void *data,
                                           size_t size, void *handle, uint64_t cookie)
{
    return link->transport->ops->send(link, header, header_size, data, size, handle, cookie);
}

#endif
