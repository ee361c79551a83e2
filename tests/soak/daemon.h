/* A straitd of our own: on loopback, in a folder of ours, killed with this process. */
#ifndef STRAIT_TESTS_SOAK_DAEMON_H
#define STRAIT_TESTS_SOAK_DAEMON_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define DAEMON_PATH_MAX 128u

struct daemon_options {
    const char *transports;
    uint64_t arena_bytes, chunk_bytes;
};

struct soak_daemon {
    const char *program, *folder; /* borrowed; in the folder is a file "codebook" */
    char name[16];
    struct daemon_options options;
    pid_t pid;             /* 0: not running */
    unsigned port;         /* for other daemons: the same in every life, as blobs tell it; 0: not chosen yet */
    int reserved;          /* keeps it */
    unsigned metrics_port; /* of this life */
    long log_begin;        /* of this life */
    char socket[DAEMON_PATH_MAX], log[DAEMON_PATH_MAX];
};

void daemon_init(struct soak_daemon *daemon, const char *program, const char *folder, const char *name,
                 const struct daemon_options *options);

/* Starts it and waits until it is ready. False: it does not run, which was complained about. */
bool daemon_start(struct soak_daemon *daemon);
/* Starts it; daemon_await_ready follows. */
bool daemon_launch(struct soak_daemon *daemon);
bool daemon_await_ready(struct soak_daemon *daemon);

/* False: it has ended by itself, which was complained about. */
bool daemon_runs(struct soak_daemon *daemon);
/* By SIGTERM; complains when it does not end, or with another status than 0. Nothing happens to one that does not run.
 */
void daemon_stop(struct soak_daemon *daemon);
/* By SIGKILL. */
void daemon_kill(struct soak_daemon *daemon);

#endif
