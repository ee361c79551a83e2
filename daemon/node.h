/* One node of the service: everything that a daemon is. All of it is touched by the loop's thread only; jobs and the
 * log have threads of their own and talk to it through callbacks. */
#ifndef STRAIT_DAEMON_NODE_H
#define STRAIT_DAEMON_NODE_H

#include <uv.h>

#include "daemon/memory/arena.h"
#include "daemon/exchange.h"
#include "daemon/equipment/http.h"
#include "daemon/gpu_links.h"
#include "daemon/memory/job.h"
#include "daemon/equipment/log.h"
#include "daemon/equipment/metrics.h"
#include "daemon/equipment/options.h"
#include "daemon/peers/peer.h"
#include "daemon/peers/watch.h"
#include "daemon/receive.h"

struct session;

struct node {
    uv_loop_t *loop;
    struct node_options options;
    struct log *log;
    struct metrics metrics;
    struct strait_codebook *codebook; /* NULL: none */
    struct devices *devices;          /* GPUs */
    struct jobs *jobs;
    unsigned workers; /* threads that code */
    unsigned processors;
    struct receive receive;
    struct arena send;
    struct gpu_wires wires;
    struct gpu_links *gpu_links; /* utlist: of GPUs in use */
    struct peers *peers;
    struct http *http;
    struct exchange exchange;

    struct session *sessions; /* utlist */
    uint32_t session_count;
    struct mapping *mappings; /* registrations, oldest first: the first is being mapped */
    bool sessions_ended;      /* some can be freed */
    bool backlog;             /* some have messages that waited */
    bool client_gone;         /* embedded: the one inside */

    int listen_fd, lock_fd;
    struct watch *listener;
    struct watch_count watches;
    uv_timer_t tick;
    uv_prepare_t prepare;                    /* the end of a turn */
    uv_idle_t again;                         /* active: another turn at once */
    uint64_t began, turn_began, idle_before; /* uv_hrtime, the loop's sleep until then */
    uint64_t attentive_until;                /* uv_hrtime: until then the loop does not sleep */
    uint64_t id, incarnation, epoch_counter;
    uint64_t gpus_failed; /* bits, by number */

    bool started;  /* all of it was made */
    bool draining; /* no new requests */
    bool stopping; /* everything is being closed */
    uint64_t drain_until;
    bool peers_closed, handles_closing; /* steps of stopping that are done */
    uint32_t handles;                   /* of libuv, to be closed */
    void (*stopped)(void *owner);
    void (*gpu_failed)(void *owner); /* before it stops of that; NULL: it does not. May be set after node_create */
    void *owner;
};

/* Makes a node on a loop: arenas, codebook, sockets. Blocks while memory is faulted in. `client_fd`: embedded mode, the
 * daemon's end of its client's socket (taken), with whose end the node stops; else -1. `stopped` is called when a
 * stop has come to its end: node_destroy may follow. ERR_NO_MEMORY: *node is NULL. With other errors `why` says what
 * failed, and *node is a node that must be stopped all the same. */
enum strait_status node_create(uv_loop_t *loop, const struct node_options *options, struct log *log, int client_fd,
                               void (*stopped)(void *owner), void *owner, struct node **node, char *why,
                               size_t why_size);

/* Stops: `drain` lets transfers come to their end first, for at most drain-timeout. Then all is closed. */
void node_stop(struct node *node, bool drain);
void node_destroy(struct node *node); /* NULL is allowed */

/* A GPU has failed: all requests on those that have get their verdict, and the node may stop (gpu-failure). */
void node_gpu_failed(void *node);
/* The peers have been closed: exchange.c says so. */
void node_peers_closed(struct node *node);
/* Something has happened to a transfer between GPUs, and the next thing will happen soon: the loop looks for it without
 * sleeping for a while, as to be woken takes longer than a chunk between two GPUs. */
void node_attend(struct node *node);
/* Something lives that deadlines watch over. */
void node_wake(struct node *node);

/* What `strait status` and strait_stats show: JSON, malloc'ed. */
char *node_report(struct node *node, size_t *size);
char *node_metrics(struct node *node, size_t *size);

#endif
