/* A straitd of our own: on loopback, in a folder of ours, killed with this process. */
#ifndef STRAIT_TESTS_SOAK_DAEMON_H
#define STRAIT_TESTS_SOAK_DAEMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* What all parts of the soak test have in common: the clock, and what is said when a rule is broken. */

#define MIB (UINT64_C(1) << 20)

double now_seconds(void); /* monotonic */
uint64_t now_ms(void);

/* A rule was broken: told on stderr (the first ones), and counted. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
uint32_t complaints(void);

/* So many that nothing is learned from going on. */
bool too_many_complaints(void);

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

/* A daemon's figures, as /metrics tells them, and as the kernel does. */

/* The text of GET /metrics; the caller frees it. NULL: no answer. */
char *figures_fetch(const struct soak_daemon *daemon);
/* The value of a name, with its labels; -1: there is none. */
int64_t figure_read(const char *text, const char *name);
/* Sum over all labels. */
int64_t figure_sum(const char *text, const char *family);

/* Seconds below which a share of a histogram lies, interpolated in its bucket; -1: empty or not told. */
double figure_quantile(const char *text, const char *family, double quantile);

struct process_size {
    uint64_t resident, anonymous; /* bytes; resident has pools and arenas in it, anonymous the heap only */
    uint32_t descriptors, threads;
};

bool process_size_read(pid_t pid, struct process_size *size);

/* What daemons take of the machine, second by second. */

#define WATCH_SETTLED_S 180u /* by then a daemon has what it needs */
#define WATCH_JUDGED_S  240u /* runs that are shorter tell nothing */

struct watch {
    const struct soak_daemon *daemon; /* borrowed */
    struct process_size *samples;     /* one a second */
    size_t count, room;
};

void watch_init(struct watch *watch, const struct soak_daemon *daemon);
void watch_fini(struct watch *watch);
void watch_sample(struct watch *watch);

/* The last sample; zeroes when there is none. */
struct process_size watch_last(const struct watch *watch);

/* By how much the largest sample after minute 3 exceeds the smallest, as a share of that; -1: too short a run. */
double watch_resident_spread(const struct watch *watch);
/* Complains when resident memory was not flat, or heap or descriptors grew. */
void watch_judge(const struct watch *watch);

#endif
