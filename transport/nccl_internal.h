/* What the files of the NCCL transport share. */
#ifndef STRAIT_TRANSPORT_NCCL_INTERNAL_H
#define STRAIT_TRANSPORT_NCCL_INTERNAL_H

#include "transport/core.h"
#include "transport/nccl.h"
#include "transport/nccl_engine.h"
#include "transport/nccl_wire.h"
#include "transport/options.h"

struct nccl_options {
    const struct transport_ops *carrier;
    uint32_t timeout_ms, blocks;
    char library[OPTION_MAX]; /* empty: where the system finds it */
    char *rest;               /* the carrier's options; to be freed by the caller */
};

struct nccl {
    struct core core;
    const struct nccl_calls *calls;
    struct nccl_options options; /* without `rest` */
    struct nccl_place place;
    struct transport *carrier;
    void *carrier_arena; /* a page: messages of the carrier land in memory of their own */
    int poll, wake;      /* an epoll of the carrier's descriptor and of the eventfd that engines write to */
};

/* A chunk, of either direction. `op` is lent to the engine once the peers have agreed. */
struct nccl_chunk {
    struct event event; /* first */
    struct nccl_op op;
    uint64_t id;    /* outgoing: the peer's answer carries it */
    uint64_t place; /* outgoing, once it may be sent: its number */
    struct nccl_chunk *next;
};

struct nccl_link {
    struct core_link core;
    struct link *carrier; /* NULL once it is closed */
    struct nccl_engine *engine;
    bool carrier_closing, greeted, said_hello, said_ready, heard_ready, drained, abandoned;
    uint64_t last_id;              /* of outgoing chunks */
    uint64_t received, sent;       /* how many incoming and outgoing chunks have a number */
    struct nccl_chunk *unanswered; /* waiting for the peer's answer, oldest first */
    struct nccl_chunk *early;      /* may be sent once all with lower numbers have been; in order of number */
};

/* nccl_load.c: the calls of NCCL and CUDA; NULL when unavailable. */
const struct nccl_calls *nccl_load(const char *library);
/* transport_missing, and what records its text. */
void nccl_missing(char *dst, size_t size);
void nccl_lacks(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* nccl_options.c. ERR_INVALID, ERR_UNSUPPORTED (no such carrier in this build), ERR_NO_MEMORY. */
enum strait_status nccl_options_read(const char *text, struct nccl_options *options);

/* nccl_link.c: a link from its start to its end. */
enum strait_status nccl_link_open(struct transport *transport, int fd, enum link_side side, void *link_owner,
                                  struct link **link);
size_t nccl_link_address(struct link *link, void *dst, size_t capacity);
enum strait_status nccl_link_connect(struct link *link, const void *address, size_t size);
void nccl_link_close(struct link *link);
void nccl_link_abandon(struct link *link);
void nccl_link_break(struct nccl_link *link, const char *why);
/* `connected` becomes due once both sides are ready. */
void nccl_link_settle(struct nccl_link *link);
/* Takes the news of the link's engine. */
void nccl_link_hear_engine(struct nccl_link *link);
bool nccl_link_quiet(struct core_link *link);
void nccl_link_release(struct core_link *link);

/* nccl_talk.c: messages over the carrier. */
extern const struct transport_events nccl_carrier_events;
/* Breaks the link if the message cannot be sent. */
void nccl_say(struct nccl_link *link, const struct nccl_message *message, const void *payload, size_t payload_size);
/* Sends the message of a chunk. For a chunk without bytes, its event becomes due when that is sent. Returns what
 * link_send returns. */
enum strait_status nccl_say_chunk(struct nccl_link *link, struct nccl_chunk *chunk, const void *header,
                                  size_t header_size);

/* nccl_chunk.c: outgoing and incoming chunks. */
enum strait_status nccl_link_send(struct link *link, const void *header, size_t header_size, const void *data,
                                  size_t size, void *handle, uint64_t cookie);
void nccl_chunk_arrives(struct nccl_link *link, const struct nccl_message *message, const void *header,
                        size_t header_size);
void nccl_chunk_answered(struct nccl_link *link, const struct nccl_message *message);
/* Takes a list of ended operations from the engine. */
void nccl_chunks_over(struct nccl_op *ops);
/* Fails the chunks that wait for the peer's answer. */
void nccl_chunks_fail(struct nccl_link *link);

#endif
