/* Two daemons, a client of each, and their pools, with which one scenario after another runs. Side 0 is the source's,
 * side 1 the sink's. */
#ifndef STRAIT_TESTS_CHAOS_WORLD_H
#define STRAIT_TESTS_CHAOS_WORLD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "tests/chaos/inject.h"
#include "tests/chaos/pages.h"
#include "tests/daemon.h"
#include "tests/support.h"

/* Faults, states, and how often each pair was met; shared by the processes of all worlds. */

/* Their order is that of --fault. */
enum fault {
    F_KILL_SOURCE_DAEMON,
    F_KILL_SINK_DAEMON,
    F_KILL_SOURCE_CLIENT,
    F_KILL_SINK_CLIENT,
    F_STOP_SOURCE_DAEMON,
    F_STOP_SINK_DAEMON,
    F_STOP_SOURCE_CLIENT,
    F_STOP_SINK_CLIENT,
    F_RESTART_SOURCE_DAEMON,
    F_RESTART_SINK_DAEMON,
    F_RESTART_SOURCE_CLIENT,
    F_RESTART_SINK_CLIENT,
    F_CUT,
    F_DARK,
    F_ABORT_SOURCE,
    F_ABORT_SINK,
    F_LEASE,
    F_DEADLINE,
    F_CODEBOOK,
    F_FULL,
    F_DOUBLE,
    F_REPLAY,
    F_REORDER,
    F_UCX_PORT,
    F_OTHER_PORTS,
    F_SOURCE_DEVICE,
    F_SINK_DEVICE,
    FAULTS,
};

enum phase { BOOTSTRAP, READY, ENCODING, SENDING, ARRIVING, DECODING, DONE, DRAINING, PHASES };

struct totals {
    _Atomic uint32_t table[FAULTS][PHASES];
    _Atomic uint32_t local[FAULTS][PHASES];   /* both sides under one daemon */
    _Atomic uint32_t points[2][CHAOS_POINTS]; /* faults that struck while held there, by side */
    _Atomic uint32_t cursor[2];               /* index of the next pair: between two daemons, under one */
    _Atomic uint32_t transfers, done, failed, scenarios, missed, rounds;
    _Atomic uint32_t violations;
    _Atomic uint32_t excused;    /* transfers that failed because a connection was lost for an earlier fault */
    _Atomic uint32_t lives;      /* daemons started */
    _Atomic uint32_t crashes;    /* of daemons under attack */
    _Atomic int64_t late_ns[2];  /* the latest verdict, after (below 0: before) it was due, by side */
    _Atomic int64_t recovery_ns; /* longest until a transfer was done again */
    _Atomic int64_t descriptors, growth_kib, rests; /* maxima over daemons: at rest, since its start, number of rests */
    uint64_t began_ns;
    char first[512]; /* violation */
};

/* ---- Workers ----------------------------------------------------------------------------------------------------- */

#define CLIENT_BLOB_MAX 1024u

enum order_type {
    ORDER_IMPORT = 1, /* blob */
    ORDER_OFFER,
    ORDER_EXPECT,
    ORDER_ABORT,
    ORDER_CLOSE, /* strait_client_close, and end */
};

struct order {
    uint32_t type;
    uint32_t id;      /* of the transfer */
    uint32_t time_ms; /* lease or deadline */
    uint32_t start;   /* 1: pairs it with the peer's pool at once */
    uint32_t count;
    uint32_t pages[POOL_PAGES];
    uint32_t blob_size;
    uint8_t blob[CLIENT_BLOB_MAX];
};

enum news_type {
    NEWS_POOL = 1, /* registered; blob */
    NEWS_STATE,
    NEWS_DRAINED,
    NEWS_REFUSED, /* a call of the library failed: `reason` is its status */
};

struct news {
    uint32_t type;
    uint32_t id;
    uint32_t state, reason, drained;
    uint64_t at_ns; /* CLOCK_MONOTONIC */
    uint32_t blob_size;
    uint8_t blob[CLIENT_BLOB_MAX];
};

/* Forks a worker of either side (client.c), a process so that it can be killed, that uses libstrait as the driver
 * orders: its pool is `pages`, at the daemon of `socket`. Returns its pid, or -1; *channel takes orders and gives news,
 * one to a packet, without blocking. */
pid_t client_start(const char *socket, const struct pages *pages, int *channel);

/* ---- Worlds ------------------------------------------------------------------------------------------------------ */

struct world;
void violation(struct world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
void totals_max(_Atomic int64_t *most, int64_t value);

#define SOURCE        0
#define SINK          1
#define TRANSFERS_MAX 16u
#define ORPHANS_MAX   8u
#define MS            1000000u /* ns */

/* Times of every daemon and transfer, in ms. Sanitizers multiply what is computed, not what is waited for. */
#define DEADLINE_MS     (SANITIZED ? 2000u : 1000u)
#define LEASE_MS        DEADLINE_MS
#define PEER_TIMEOUT_MS 300u
#define TOLERANCE_MS    200u /* of a verdict, after the deadline */

/* One side of a transfer. */
struct half {
    bool begun, decided, drained;
    bool lost; /* its client was killed: no more news */
    uint32_t pages[POOL_PAGES];
    uint32_t state, reason;
    uint64_t began_ns, due_ns; /* the latter is the verdict's deadline */
    uint32_t time_ms;          /* deadline or lease */
    uint64_t late_ns, kept_ns; /* machine_late_ns, when it began; from then to its verdict */
};

struct transfer {
    uint32_t id, count;        /* id 0: unused */
    uint64_t tags[POOL_PAGES]; /* what the source's pages hold */
    struct half halves[2];
};

struct side {
    pid_t daemon, client; /* 0: not running */
    int channel;
    bool registered; /* the daemon has the pool */
    bool imported;   /* the client knows the other's pool */
    uint32_t blob_size;
    uint8_t blob[CLIENT_BLOB_MAX];
    struct pages pages;
    uint32_t codebook; /* which of the two sets its daemon uses */
    unsigned port, metrics;
    char socket[160];
    uint32_t rests;                 /* how often this daemon was checked at rest */
    uint32_t descriptors, resident; /* values at the second check; resident in KiB */
    bool attacked;                  /* garbage was written to UCX's port: it may end by itself */
};

/* A pool whose client was killed: the daemon may use it until it releases it. */
struct orphan {
    struct pages pages;
    pid_t daemon;
    uint64_t since_ns;
};

/* What all daemons and pools of a run have in common. */
struct setting {
    const char *program;              /* straitd-chaos */
    const char *folder;               /* for all files */
    const struct memory_kind *memory; /* of most pools */
    uint32_t devices;                 /* devices that have it; 0: it is host memory */
    const char *plugin, *behind;      /* the folder of the plugin in front, the file of the one behind; NULL: none */
    const char *options[8];           /* "--name=value", of all daemons; the last is NULL */
};

struct world {
    const struct setting *setting;
    const char *transport;
    uint32_t number;
    bool is_local; /* both clients have the source's daemon */
    bool encrypts; /* the daemons speak TLS, and encrypt pages */
    uint64_t random;
    struct totals *totals;
    struct chaos_shared *shared;
    char shared_path[160];
    struct side sides[2];
    struct orphan orphans[ORPHANS_MAX];
    struct transfer transfers[TRANSFERS_MAX];
    uint32_t next_id;
    uint64_t next_tag;
    uint32_t generation; /* of pools, for their names */
    char scene[160];     /* description of the scene, for messages */
};

/* Which daemon serves a side's client. */
static inline int daemon_of(const struct world *w, int side)
{
    return w->is_local ? SOURCE : side;
}

/* Time within which new requests have to work again. The GPU contexts of the daemons of all worlds are made one after
 * another. */
static inline uint32_t ready_ms(const struct world *w)
{
    return w->setting->memory->has_driver ? 12000 : 5000;
}

uint64_t fair_ns(void); /* a clock that stands still while the machine stalls: for limits */
uint32_t draw(struct world *w, uint32_t below);

bool world_open(struct world *w);
/* Ends everything and checks what is left. */
void world_close(struct world *w);

void daemon_start(struct world *w, int side);
void daemon_reap(struct world *w, int side);       /* after a kill: waits for its end */
bool daemon_died(struct world *w, int side);       /* by itself, which is a violation unless it was attacked */
void daemon_terminated(struct world *w, int side); /* after SIGTERM: waits for an orderly end */
void worker_kill(struct world *w, int side);
void worker_close(struct world *w, int side); /* an orderly end */

/* Starts what does not run and waits until transfers are possible. False, with a violation, after 5 s. */
bool world_ready(struct world *w);

/* Takes news until `until` returns true: true; or for `ms` of fair_ns: false. */
bool world_pump(struct world *w, uint32_t ms, bool (*until)(struct world *w, void *arg), void *arg);

void send_order(struct world *w, int side, struct order *order);

/* NULL: the pools do not have that many free pages. */
struct transfer *pair_make(struct world *w, uint32_t count);
void pair_offer(struct world *w, struct transfer *t, uint32_t lease_ms, bool start);
void pair_expect(struct world *w, struct transfer *t, uint32_t deadline_ms, bool start);
void pair_abort(struct world *w, struct transfer *t, int side);
bool pair_over(const struct transfer *t); /* both sides are drained, or lost */
bool pair_done(const struct transfer *t); /* at the sink */
void transfers_forget(struct world *w);   /* all are over */

/* All pages and guards of both pools and of orphans. */
void world_check(struct world *w);
/* Waits until both daemons hold no slot, no page and no transfer, and checks their descriptors. */
void world_at_rest(struct world *w);
/* ---- Scenarios (scenario.c) -------------------------------------------------------------------------------------- */

const char *fault_name(enum fault fault);
extern const char *const phase_names[PHASES], *const point_names[CHAOS_POINTS];

/* Whether the pair is possible when both sides are under one daemon. */
bool scenario_is_local(enum fault fault, enum phase phase);

/* Holds one transfer in a state, lets a fault strike, checks everything, and requires that a transfer over the same
 * pages is soon DONE. False: the world cannot go on. */
bool scenario_run(struct world *w, enum fault fault, enum phase phase);

#endif
