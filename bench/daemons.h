/* Daemons that the bench starts, their clients and pools, and other programs that it runs. */
#ifndef STRAIT_BENCH_DAEMONS_H
#define STRAIT_BENCH_DAEMONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <strait/codec.h>
#include <strait/strait.h>

#include "bench/bench.h"
#include "bench/table.h"

/* ---- Processes (process.c) --------------------------------------------------------------------------------------- */

#define PROCESS_ARGS_MAX 96u

/* A command line under construction; what it points to must outlive its use. */
struct command {
    const char *words[PROCESS_ARGS_MAX]; /* NULL after the last */
    unsigned count;
    const char *const *environment; /* "NAME=value" to set, NULL-terminated; or NULL */
};

/* More than PROCESS_ARGS_MAX words are a bug of the caller. */
void command_add(struct command *command, const char *word);

/* Starts the command in its own process group, without STRAITD_ variables from the environment, with output to the file
 * (NULL: discarded); it dies with this process. 0: failed, errno is set. */
pid_t process_start(const struct command *command, const char *output);
/* Whether the process still runs; if it has ended, reaps it, with its status (NULL: forgotten), and sets *pid to 0. */
bool process_runs(pid_t *pid, int *status);
/* Asks the process to end, waits a while, then kills it. Returns its status. Safe on 0. */
int process_stop(pid_t *pid);
/* Processor time of a process in milliseconds (utime + stime); 0 when it is gone. */
uint64_t process_cpu_ms(pid_t pid);

/* From now on a terminating signal is only recorded, so that daemons, files and namespaces can be removed first. */
void interrupts_catch(void);
/* Called after the cleanup: ends the process by the recorded signal, if there was one. */
void interrupts_obey(void);
bool interrupted(void);
/* Sleeps; returns early when interrupted. */
void sleep_ms(unsigned ms);

/* ---- The link (process.c) ---------------------------------------------------------------------------------------- */

#define LINK_NAME_BYTES 24
#define REASON_BYTES    256

struct bench_link_end {
    char space[LINK_NAME_BYTES];  /* network namespace */
    char device[LINK_NAME_BYTES]; /* in it */
    const char *address;
};

/* Two network namespaces with a link of a chosen rate between them: a pair of virtual Ethernet devices, each with a
 * token bucket. Needs root, ip and tc. */
struct bench_link {
    bool made;
    struct bench_link_end ends[2];
};

/* False: `why` says why. On success the caller must bench_link_close() it. */
bool bench_link_open(struct bench_link *link, char *why, size_t why_size);
/* Sets the rate of both directions. False when it failed, with the error on stderr. */
bool bench_link_shape(const struct bench_link *link, uint64_t kilobits, uint64_t burst);
/* Removes the namespaces, and with them the devices. Safe on zeroes. */
void bench_link_close(struct bench_link *link);

/* ---- Tools to compare with (process.c) --------------------------------------------------------------------------- */

#define UCX_MESSAGE_BYTES (4u * 1024 * 1024) /* of the bandwidth test: that of a chunk */

/* All put the reason in `why` when there is no figure.
 * ucx_perftest -t ucp_am_bw -s 4m over loopback: nanoseconds for `messages` messages. */
bool tool_ucx_bandwidth(uint32_t messages, uint64_t *ns, char *why, size_t why_size);
/* ucx_perftest -t ucp_am_lat over loopback: one way, half a round trip. Median and 99th percentile are of two runs. */
bool tool_ucx_latency(uint64_t bytes, uint64_t *p50_ns, uint64_t *p99_ns, char *why, size_t why_size);
/* iperf3 over the link for a second: bytes received, and nanoseconds. */
bool tool_iperf(const struct bench_link *link, uint64_t *bytes, uint64_t *ns, char *why, size_t why_size);

/* ---- Daemons ----------------------------------------------------------------------------------------------------- */

#define FOLDER_BYTES 64
#define FILE_BYTES   96 /* paths of files in the folder: a socket's path has to be short */

/* How the bytes travel from pool to pool. */
enum path_kind {
    PATH_LOCAL, /* both pools at one daemon */
    PATH_SHM,   /* two daemons, shared memory */
    PATH_TCP,   /* two daemons, tcp on loopback */
    PATH_LINK,  /* two daemons in network namespaces, tcp on a shaped link */
    PATH_KINDS,
};
extern const char *const path_names[]; /* NULL-terminated */

enum bench_stage { BENCH_QUEUE, BENCH_ENCODE, BENCH_WIRE, BENCH_DECODE, BENCH_COPY, BENCH_STAGES };

/* Wire that chunks travelled over; in GPU memory: peer, pinned, nccl and ucx-cuda. */
enum bench_wire { BENCH_SHM, BENCH_TCP, BENCH_UCX, BENCH_PINNED, BENCH_PEER, BENCH_NCCL, BENCH_UCX_CUDA, BENCH_WIRES };

enum { BENCH_PHASES = 10 }; /* of a request: six at the sink, then four at the source (docs/operations.md) */

/* A daemon's counters since its start, as it reports them to its clients. */
struct node_figures {
    struct {
        uint64_t count, sum_us;
    } stages[BENCH_STAGES];
    struct {
        uint64_t count, sum_us;
    } phases[BENCH_PHASES];
    uint64_t raw_bytes, wire_bytes;
    uint64_t wires[BENCH_WIRES];     /* bytes sent */
    char transport[16], policy[128]; /* of its last peer, in force now */
};

/* used += sign * now, for all counters. */
void node_figures_add(struct node_figures *used, const struct node_figures *now, uint64_t sign);

/* Adds to a row what `count` transfers have used, each: "ratio", "wire_bytes", "wires", "wire" (their names),
 * "phases_us" of one request and "client_us", what the wall time of
 * one request has beyond those of the sink; "stages_ms" and, of the
 * wall time `wall_ms`, "stages_by_wall"; "chunks", "transport" and, for `coding` auto, the
 * latest "policy". */
void node_figures_report(const struct node_figures *used, unsigned count, double wall_ms, enum strait_coding coding,
                         cJSON *row);

/* Columns of the phases. */
#define PHASE_COLUMNS                                                                                               \
    {"wall_ms", NULL, "wall", COLUMN_NUMBER}, {"phases_us.start", NULL, "start", COLUMN_NUMBER},                    \
        {"phases_us.connect", NULL, "connect", COLUMN_NUMBER}, {"phases_us.answer", NULL, "answer", COLUMN_NUMBER}, \
        {"phases_us.chunks", NULL, "chunks", COLUMN_NUMBER}, {"phases_us.decode", NULL, "decode", COLUMN_NUMBER},   \
        {"phases_us.verdict", NULL, "verdict", COLUMN_NUMBER}, {"client_us", NULL, "client", COLUMN_NUMBER},        \
        {"phases_us.source_offer", NULL, "s: offer", COLUMN_NUMBER},                                                \
        {"phases_us.source_encode", NULL, "s: encode", COLUMN_NUMBER},                                              \
        {"phases_us.source_send", NULL, "s: send", COLUMN_NUMBER},                                                  \
    {                                                                                                               \
        "phases_us.source_end", NULL, "s: end", COLUMN_NUMBER                                                       \
    }

/* Columns of the stages. */
#define STAGE_COLUMNS                                                                                         \
    {"wall_ms", NULL, "wall", COLUMN_NUMBER}, {"stages_ms.queue", NULL, "queue", COLUMN_NUMBER},              \
        {"stages_ms.encode", NULL, "encode", COLUMN_NUMBER}, {"stages_ms.wire", NULL, "wire", COLUMN_NUMBER}, \
        {"stages_ms.decode", NULL, "decode", COLUMN_NUMBER}, {"stages_ms.copy", NULL, "copy", COLUMN_NUMBER}, \
        {"stages_by_wall", NULL, "sum/wall", COLUMN_NUMBER}, {"chunks", NULL, "chunks", COLUMN_NUMBER},       \
        {"transport", NULL, "transport", COLUMN_TEXT},                                                        \
    {                                                                                                         \
        "policy", NULL, "latest coding", COLUMN_TEXT                                                          \
    }

/* The folder, in $TMPDIR, of sockets, logs and the codebook set, and what all daemons have in common. */
struct bench_site {
    const struct text_list *daemon; /* further options of every one: "name=value" */
    char *straitd;                  /* owned */
    char folder[FOLDER_BYTES];
    char codebook[FILE_BYTES];
};

/* Whether each is "name=value"; if not, the error is on stderr. */
bool daemon_options_good(const struct text_list *daemon);
/* On success the caller must bench_site_fini() it, when all daemons have ended. `daemon` must outlive it. */
bool bench_site_init(struct bench_site *site, const struct text_list *daemon, const struct strait_codebook *codebook);
void bench_site_fini(struct bench_site *site); /* safe on zeroes */

/* One side of a transfer: the context of its events. */
struct bench_leg {
    struct strait_transfer *transfer;
    enum strait_state state;
    enum strait_reason reason;
    char text[96];
    bool ended, drained;
    uint64_t ended_ns;              /* clock_ns */
    uint64_t raw_bytes, wire_bytes; /* of the verdict */
};

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

/* The two ends between which pages move: one daemon or two, and a client at each end. */
struct bench_path {
    enum path_kind kind;
    const char *name;
    bool up;
    char why[REASON_BYTES]; /* why the path is down, if it is */
    struct bench_link link;
    struct bench_side *source, *sink; /* its own, but for one that belongs to another path */
    struct bench_side own[2];
};

/* Starts daemons and clients and waits for them. If this machine cannot make the link, the path stays down, with the
 * reason in `why`. False: something else failed; the error is on stderr. `name`: in files and messages; `option`: of
 * the daemons, "--name=value", or NULL. The caller must bench_path_close() it either way, and must not copy it. */
bool bench_path_open(struct bench_path *path, enum path_kind kind, const char *name, const char *option,
                     const struct bench_site *site);
/* The same beside another path, shm or tcp, with one more daemon: this path has the other's source, or its sink, too.
 * It is to be closed before the other. */
bool bench_path_open_beside(struct bench_path *path, const struct bench_path *other, bool shares_source,
                            const char *name, const char *option, const struct bench_site *site);
/* Ends the daemons. False: one of them did not end cleanly, which was printed to stderr. Safe on zeroes. */
bool bench_path_close(struct bench_path *path);

/* A daemon that listens at `listen`, "10.0.0.1:0", for peers on other hosts, without a secret unless the site's options
 * have one; and its client. False: failed, with the error on stderr. The caller must bench_side_close() it either way,
 * and must not copy it. */
bool bench_side_open(struct bench_side *side, const char *name, const char *listen, const struct bench_site *site);
bool bench_side_close(struct bench_side *side); /* as bench_path_close */

/* Handles what the clients of these sides, at most BENCH_SIDES_MAX, have been told, those of the first one first; waits
 * for something if there is nothing. False: a daemon has ended or refused a pool, or the bench is interrupted. */
#define BENCH_SIDES_MAX 16u
bool bench_sides_work(struct bench_side *const *sides, unsigned count, uint64_t timeout_ns);

/* Prints the daemons' warnings to stderr. */
void bench_side_print_log(const struct bench_side *side);
void bench_path_print_logs(const struct bench_path *path);
/* Asks the daemons of source and sink for their counters; with one daemon, both are the same. */
bool bench_path_figures(struct bench_path *path, struct node_figures *source, struct node_figures *sink);

/* ---- Pools ------------------------------------------------------------------------------------------------------- */

/* Pools of both ends of a path. They live as long as the path. */
struct bench_pools {
    struct strait_pool *source, *sink;
    struct strait_peer *source_peer; /* the source's pool, imported by the sink's client */
    struct strait_peer *sink_peer;
};

/* Registers a pool at one side. All functions here return false when they failed, with the error on stderr. */
bool bench_side_register(struct bench_side *side, const struct strait_pool_region *regions, uint32_t count,
                         struct strait_pool **pool);
/* Waits until the side's daemon has mapped them. */
bool bench_side_await_pools(struct bench_side *side);
/* When both sides have registered theirs: waits until the daemons have mapped the pools, and imports each at the other
 * side. */
bool bench_path_introduce(struct bench_path *path, struct bench_pools *pools);

#endif
