/* Shared by the shm*.c files: what a link of shared memory (shm.h) is made of. */
#ifndef STRAIT_TRANSPORT_SHM_INTERNAL_H
#define STRAIT_TRANSPORT_SHM_INTERNAL_H

#include "transport/core.h"

#define RECORD_HEAD 16u
#define RECORD_MAX  (RECORD_HEAD + TRANSPORT_HEADER_MAX)
#define INPUT_BYTES 8192u

extern const uint8_t shm_record_magic[4];

/* The last bytes of a link whose side ended it in order. Without them the peer's process is dying or dead. */
extern const uint8_t shm_farewell[RECORD_HEAD];

struct shm {
    struct core core;
    struct transport_arena arena;
    int epoll;
};

/* Bytes on their way to the socket: a record, the hello, or the farewell. */
struct message {
    struct event event;
    struct message *next;
    uint32_t size;
    bool hello;
    uint8_t bytes[RECORD_MAX + RECORD_HEAD]; /* the farewell may have to follow the rest of a record */
};

struct shm_link {
    struct core_link core;
    int fd;
    int process;   /* pidfd of the peer's process; -1: it is this one, or unknown */
    bool sees_end; /* the peer's process is known; it may be this one */
    enum link_side side;
    uint32_t watched;          /* epoll events; 0: not watched */
    bool shared;               /* the hello was sent, and our arena with it */
    bool greeted;              /* the peer's hello has come */
    bool finishing;            /* closing: only the farewell is left to send */
    bool dying;                /* the input ended without a farewell: `process` is watched instead of the socket */
    bool ended;                /* the peer stores no more */
    uint8_t last[RECORD_HEAD]; /* latest input, once nothing of it is processed any more */
    struct message *out_head, **out_tail;
    uint32_t out_written; /* of the first message */
    int in_arena;         /* the descriptor that came with the hello; -1: none */
    uint32_t in_size;
    uint8_t in[INPUT_BYTES];
    void *map;
    size_t map_size;
};

static inline struct shm *shm_of(const struct shm_link *link)
{
    return (struct shm *)link->core.core;
}

/* ---- shm_send.c: what waits for the socket ----------------------------------------------------------------------- */

/* Watches the socket, or the process of a dying peer, for other epoll events; 0: for none. */
bool shm_watch(struct shm_link *link, uint32_t events);
/* Breaks the link. A broken link is not watched until link_close: its end of file would wake us all the time. */
void shm_fail(struct shm_link *link, const char *why);
/* Drops what waits, and makes its callbacks due. */
void shm_out_fail(struct shm_link *link);
/* Writes what the socket takes. */
void shm_flush(struct shm_link *link);
bool shm_send_hello(struct shm_link *link); /* false: out of memory */
/* Drops all messages except one that has been written in part, and appends the farewell. */
void shm_send_farewell(struct shm_link *link);
enum strait_status shm_link_send(struct link *base, const void *header, size_t header_size, const void *data,
                                 size_t size, void *handle, uint64_t cookie);

/* ---- shm_receive.c: what comes from it, and its end -------------------------------------------------------------- */

/* Called with the epoll events of what is watched. */
void shm_serve(struct shm_link *link, uint32_t events);

#endif
