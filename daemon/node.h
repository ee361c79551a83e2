#ifndef STRAIT_DAEMON_NODE_H
#define STRAIT_DAEMON_NODE_H

#include <uv.h>

#include "daemon/base/http.h"
#include "daemon/base/log.h"
#include "daemon/base/metrics.h"
#include "daemon/base/options.h"
#include "daemon/base/tenants.h"
#include "daemon/base/watch.h"
#include "daemon/exchange.h"
#include "daemon/gpu_links.h"
#include "daemon/memory/arena.h"
#include "daemon/memory/job.h"
#include "daemon/peers/peer.h"
#include "daemon/sampling.h"
#include "internal/busy_poll.h"

/* One node of the service: everything that a daemon consists of. Only the loop's thread touches it; jobs and the log
 * have threads of their own and report through callbacks. */

struct session;

struct node {
    uv_loop_t *loop;
    struct node_options options;
    struct log *log;
    struct metrics metrics;
    struct {
        uint64_t exponent_bits, expected_bits; /* of the metrics, when it was last looked at */
        uint64_t told;                         /* in uv_hrtime; 0: not yet */
    } drift;                                   /* of the codebook set: source.c */
    struct tenants tenants;
    struct codebooks *codebooks; /* NULL: not made yet */
    struct codebook_fetches fetches;
    struct devices *devices; /* GPUs */
    struct jobs *jobs;
    unsigned workers; /* worker threads that code */
    unsigned processors;
    struct receive receive;
    struct arena send;
    struct gpu_wires wires;
    struct gpu_links *gpu_links; /* utlist, one for each GPU in use */
    struct peers *peers;
    struct peers_events peers_events;
    struct http *http;
    struct exchange exchange;
    struct peer_figures_table peer_figures;
    struct sampler sampler;

    struct session *sessions; /* utlist */
    uint32_t session_count;
    uint32_t half_open;       /* sessions of them that have not sent a hello */
    uint32_t ringed;          /* sessions of them that have rings, or may take them now */
    struct mapping *mappings; /* registrations, oldest first; the first is being mapped */
    bool sessions_ended;      /* some sessions can be freed */
    bool backlog;             /* some sessions have messages that wait */
    bool stats_wanted;        /* some have asked for statistics */
    uint64_t stats_turn;      /* counts turns in which some were sent */
    bool client_gone;         /* embedded: the host process's client has gone */

    int lock_fd;
    struct acceptor *acceptor; /* of clients; NULL: none */
    struct watch_count watches;
    uv_timer_t tick;
    uv_prepare_t prepare;                    /* runs at the end of a turn */
    uv_prepare_t late;                       /* runs when everything else of the turn has written */
    uv_check_t check;                        /* reads what has come by the rings of clients */
    uv_idle_t again;                         /* while active, the next turn begins at once */
    uint64_t began, turn_began, idle_before; /* uv_hrtime; the loop's idle time up to then */
    uint64_t lazy_flushed;                   /* uv_hrtime */
    uint64_t busy_poll_until;                /* uv_hrtime until which the loop does not sleep */
    struct busy_poll busy_poll;
    bool yields;      /* the next turn begins when others have run, */
    uint64_t yielded; /* which took so long in this turn */
    uint64_t id, incarnation, epoch_counter;
    uint64_t gpus_failed; /* bit n: device n */
    uint64_t gpus_used;   /* so far, by clients; likewise */

    bool started;       /* creation is complete */
    bool draining;      /* no new requests */
    bool handed_over;   /* another process has the sockets and the lock */
    uint32_t successor; /* pid of the process that accepts in this one's place; 0: none */
    bool keep_socket;   /* its path is the service manager's, or another daemon's */
    bool stopping;      /* everything is being closed */
    uint64_t drain_until;
    bool peers_closed, handles_closing; /* completed steps of stopping */
    uint32_t handles;                   /* libuv handles to be closed */
    void (*stopped)(void *owner);
    void (*gpu_failed)(void *owner); /* called before the node stops because of it; NULL: it does not stop. May be set
                                        after node_create */
    void *owner;
};

/* Makes a node on a loop: arenas, codebook, sockets. Blocks while memory is faulted in. `client_fd`: in embedded mode
 * the daemon's end of its client's socket (taken), and the node stops when that connection ends; else -1. `stopped` is
 * called when a stop is complete: node_destroy may follow. ERR_NO_MEMORY: *node is NULL. With other errors `why` says
 * what failed, and *node is a node that must be stopped all the same. */
enum strait_status node_create(uv_loop_t *loop, const struct node_options *options, struct log *log, int client_fd,
                               void (*stopped)(void *owner), void *owner, struct node **node, char *why,
                               size_t why_size);

/* Checks that the arenas fit into memory (options_complete has been called). They are faulted in when made, and the
 * kernel would kill this process or others rather than refuse. */
bool node_arenas_fit(const struct node_options *options, char *why, size_t why_size);

/* The codebook set in force; NULL: none. */
static inline const struct strait_codebook *node_codebook(const struct node *node)
{
    return node->codebooks != NULL ? codebooks_current(node->codebooks) : NULL;
}

/* Stops the node. `drain` first lets transfers complete, for at most drain-timeout; then everything is closed. */
void node_stop(struct node *node, bool drain);
void node_destroy(struct node *node); /* NULL is allowed */

/* report.c: the metrics as text, malloc'ed; and what `strait status` and strait_stats show, as JSON, sent to each
 * client that has asked for it, one a turn. */
char *node_metrics(struct node *node, size_t *size);
void node_answer_stats(struct node *node);

#endif
