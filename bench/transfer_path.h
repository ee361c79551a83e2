/* The two ends between which pages move: daemons that the bench starts, and a client at each. */
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
#define FILE_BYTES   96 /* paths of files in the folder: a socket's path has to be short */
#define REASON_BYTES 256

/* The folder of sockets, logs and the codebook set, and what all daemons have in common. */
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

/* A client, and its daemon. */
struct bench_side {
    char name[16]; /* "tcp-source" */
    pid_t pid;     /* 0: none of its own */
    char socket[FILE_BYTES], log[FILE_BYTES];
    struct strait_client *client;
    struct node_figures figures; /* the last answer */
    bool answered;
    uint32_t pools_asked, pools_ready;
    bool refused; /* a pool was refused, which was printed to stderr */
};

/* How the daemons of a path differ from those of other paths of its kind. */
struct path_setup {
    const char *name;               /* of the path: in files and messages */
    const char *const *options;     /* "--name=value", NULL-terminated; or NULL */
    const char *const *environment; /* "NAME=value", NULL-terminated; or NULL */
    bool metrics;                   /* serve metrics, on a free port of loopback */
};

struct bench_path {
    enum path_kind kind;
    const char *name;
    bool up;
    char why[REASON_BYTES]; /* why the path is down, if it is */
    struct bench_link link;
    struct bench_side source, sink;
};

/* One side of a transfer: the context of its events. */
struct ticket {
    struct strait_transfer *transfer;
    enum strait_state state;
    enum strait_reason reason;
    char text[96];
    bool ended, drained;
    uint64_t ended_ns;
    uint32_t layers;   /* number that have landed */
    uint64_t layer_ns; /* when the last one landed */
    const void *aux;   /* what should come with DONE */
    size_t aux_size;
    bool aux_wrong;
};

/* Starts daemons and clients and waits for them. If this machine cannot make the link, the path stays down, with the
 * reason in `why`. False: something else failed; the error is on stderr. setup NULL: the path is named after its kind.
 * The caller must call bench_path_close() either way. */
bool bench_path_open(struct bench_path *path, enum path_kind kind, const struct path_setup *setup,
                     const struct bench_site *site);
void bench_path_close(struct bench_path *path);

/* Handles pending events; if there are none, waits for the next, at most timeout_ns. False, with the error on stderr: a
 * daemon has ended, a pool was refused, or a signal asked the bench to end. */
bool bench_path_work(struct bench_path *path, uint64_t timeout_ns);

/* Prints the daemons' warnings to stderr. */
void bench_path_tell_logs(const struct bench_path *path);

/* Asks the daemons of source and sink for their counters; with one daemon, both are the same. */
bool bench_path_figures(struct bench_path *path, struct node_figures *source, struct node_figures *sink);

/* Whether both sides share one daemon. */
static inline bool bench_path_is_local(const struct bench_path *path)
{
    return path->kind == PATH_LOCAL;
}

#endif
