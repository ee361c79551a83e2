/* Points at which a test can inject faults. Nothing in the daemon sets the hook; only a program that links its own
 * injector does (tests/chaos/inject.c). So the code under test is the code that is shipped, and no option or variable
 * of straitd turns faults on. Without a hook a point costs one branch, which is always predicted. */
#ifndef STRAIT_DAEMON_BASE_FAULT_H
#define STRAIT_DAEMON_BASE_FAULT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

enum fault_point {
    /* Messages between daemons. where: struct peer; what: struct message. True: the message is dropped, or the hook has
     * taken it. */
    FAULT_SEND,  /* about to be queued; handshakes and heartbeats too */
    FAULT_SENT,  /* queued */
    FAULT_TAKE,  /* read, about to be acted upon */
    FAULT_TAKEN, /* acted upon */
    /* Chunks. where: struct peer. */
    FAULT_CHUNK,      /* about to be sent; what: struct fault_chunk */
    FAULT_CHUNK_SENT, /* given to the transport; what: struct fault_chunk */
    FAULT_CHUNK_DONE, /* the transport is done with it; what: its cookie. True: the chunk was the hook's own */
    FAULT_ARRIVING,
    FAULT_ARRIVED,
    /* Jobs, mostly on a worker thread. */
    FAULT_ENCODE,
    FAULT_ENCODED,
    FAULT_DECODE,
    FAULT_DECODED,
    FAULT_COPY,
    FAULT_COPIED,
    /* Messages to a client. where: struct session; what: struct message. */
    FAULT_TELL,
    FAULT_TOLD,
};

struct link;

struct fault_chunk {
    struct link *link; /* the link it goes by: the connection's own, or a GPU link */
    const void *header;
    size_t header_size;
    const void *data;
    size_t size;
    void *handle;
};

typedef bool fault_function(enum fault_point point, void *where, const void *what);

/* May be set at any time; called on any thread of a daemon. */
extern fault_function *_Atomic fault_hook;

static inline bool fault_at(enum fault_point point, void *where, const void *what)
{
    fault_function *hook = atomic_load_explicit(&fault_hook, memory_order_acquire);
    return __builtin_expect(hook != NULL, 0) && hook(point, where, what);
}

#endif
