/* The two ends that pages move between: daemons of our own and a client at each. */
#ifndef STRAIT_BENCH_TRANSFER_PATH_H
#define STRAIT_BENCH_TRANSFER_PATH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <strait/codec.h>
#include <strait/strait.h>

#include "bench/transfer_counters.h"
#include "bench/transfer_link.h"
#include "bench/transfer_options.h"

#define FOLDER_BYTES 64
#define FILE_BYTES   96 /* of files in it: a socket's path has to be short */
#define REASON_BYTES 256

/* Where sockets, logs and the codebook set are, and what all daemons are. */
struct bench_site {
    const char *const *daemon; /* further options of every one: "name=value" */
    unsigned daemon_count;
    char *straitd; /* owned */
    char folder[FOLDER_BYTES];
    char codebook[FILE_BYTES];
};

/* On success the caller must bench_site_fini() it, when all daemons have ended. `daemon` must outlive it. */
bool bench_site_init(struct bench_site *site, const char *const *daemon, unsigned daemon_count,
                     const struct strait_codebook *codebook);
void bench_site_fini(struct bench_site *site); /* safe on zeroes */

/* A client, and the daemon that it is at. */
struct bench_side {
    char name[16]; /* "tcp-source" */
    pid_t pid;     /* 0: none of its own */
    char socket[FILE_BYTES], log[FILE_BYTES];
    struct strait_client *client;
    struct node_figures figures; /* the last answer */
    bool answered;
    uint32_t pools_asked, pools_ready;
    bool refused; /* a pool, which stderr has been told */
};

/* What sets the daemons of one path apart from those of others of its kind. */
struct path_setup {
    const char *name;               /* of the path: in files and messages */
    const char *const *options;     /* "--name=value", NULL-terminated; or NULL */
    const char *const *environment; /* "NAME=value", NULL-terminated; or NULL */
    bool metrics;                   /* to be served, on a free port of loopback */
};

struct bench_path {
    enum path_kind kind;
    const char *name;
    bool up;
    char why[REASON_BYTES]; /* not up: why not */
    struct bench_link link;
    struct bench_side source, sink;
};

/* One side of a transfer: context of its events. */
struct ticket {
    struct strait_transfer *transfer;
    enum strait_state state;
    enum strait_reason reason;
    char text[96];
    bool ended, drained;
    uint64_t ended_ns;
    uint32_t layers;   /* that have landed */
    uint64_t layer_ns; /* when the last one did */
    const void *aux;   /* what should come with DONE */
    size_t aux_size;
    bool aux_wrong;
};

/* Starts daemons and clients and waits for them. A link that cannot be made here leaves the path down, with the reason
 * in `why`; false, which stderr has been told, is for what should have worked. setup NULL: the path is named for its
 * kind. The caller must bench_path_close() it either way. */
bool bench_path_open(struct bench_path *path, enum path_kind kind, const struct path_setup *setup,
                     const struct bench_site *site);
void bench_path_close(struct bench_path *path);

/* Hands out what there is of events, and waits for the next for so long at most. False, which stderr has been told: a
 * daemon has ended, a pool was refused, or a signal wants the bench to end. */
bool bench_path_work(struct bench_path *path, uint64_t timeout_ns);

/* Prints what the daemons had to warn of to stderr. */
void bench_path_tell_logs(const struct bench_path *path);

/* Asks the daemons for their counters: those of the source and of the sink, the same twice when it is one daemon. */
bool bench_path_figures(struct bench_path *path, struct node_figures *source, struct node_figures *sink);

/* The two sides' daemons are one. */
static inline bool bench_path_is_local(const struct bench_path *path)
{
    return path->kind == PATH_LOCAL;
}

#endif
