/* Shared by the parts of `strait demo`. Functions that return bool have printed to stderr why they failed, unless a
 * signal asked the demo to end. */
#ifndef STRAIT_TOOLS_DEMO_H
#define STRAIT_TOOLS_DEMO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include <strait/codec.h>
#include <strait/strait.h>

/* ---- Signals (demo_daemon.c): an end that leaves nothing behind -------------------------------------------------- */

/* From now on a terminating signal is only recorded; the demo checks for it, cleans up and ends. */
void demo_signals_catch(void);
bool demo_interrupted(void);
/* Called after the cleanup: ends the process by the recorded signal, if there was one. */
void demo_signals_obey(void);

/* ---- Sample (demo.c) --------------------------------------------------------------------------------------------- */

#define DEMO_PAGE_BYTES 16384u              /* 16 tokens of 4 KV heads of 128 values */
#define DEMO_BYTES      (32u * 1024 * 1024) /* about the size of all pages together */

struct demo_sample {
    const char *path;
    struct strait_memory memory;  /* the source's pages, region after region */
    struct strait_class *classes; /* of each region: one layer's K or V */
    uint32_t region_count;
    uint32_t page_count; /* of each region */
    uint8_t *set;        /* a codebook set calibrated on the sample, as the bytes of its file */
    size_t set_size;
};

/* Reads the KV cache that comes with the program. Zeroes *sample first; call demo_sample_fini in any case. */
bool demo_sample_init(struct demo_sample *sample);
void demo_sample_fini(struct demo_sample *sample);

static inline uint32_t demo_pages(const struct demo_sample *sample)
{
    return sample->region_count * sample->page_count;
}

static inline uint64_t demo_bytes(const struct demo_sample *sample)
{
    return (uint64_t)demo_pages(sample) * DEMO_PAGE_BYTES;
}

static inline uint8_t *demo_page(const struct strait_memory *memory, const struct demo_sample *sample, uint32_t region,
                                 uint32_t page)
{
    return (uint8_t *)memory->base + ((size_t)region * sample->page_count + page) * DEMO_PAGE_BYTES;
}

/* ---- Two straitd (demo_daemon.c) --------------------------------------------------------------------------------- */

#define DEMO_CONNECT_MS 20000u
#define DEMO_PATH_MAX   96u /* of files in the demo's folder: a socket's path has to be short */

struct demo_daemon {
    pid_t pid; /* 0: not running */
    const char *name;
    char socket[DEMO_PATH_MAX];
    char log[DEMO_PATH_MAX];
};

/* A private folder for sockets, logs and the codebook set. */
bool demo_folder_create(char folder[DEMO_PATH_MAX]);
void demo_folder_remove(const char *folder);
bool demo_file_write(const char *path, const void *data, size_t size);

/* $STRAITD, or the straitd installed with this program. The caller frees it. NULL: there is none, which was printed to
 * stderr. */
char *demo_straitd(void);

/* Starts straitd, on loopback and a free port, with this codebook set; it dies with this process. */
bool demo_daemon_start(struct demo_daemon *daemon, const char *straitd, const char *folder, const char *name,
                       const char *transport, const char *set);
/* False: it has ended, which was printed to stderr. */
bool demo_daemon_runs(struct demo_daemon *daemon);
/* Waits until it has its socket. A client that finds none tries again only after a while. False: it has ended, or the
 * demo is to end. */
bool demo_daemon_listens(struct demo_daemon *daemon);
/* Prints the last lines of its log, if there is one, to stderr. */
void demo_daemon_print_log(const struct demo_daemon *daemon);
/* Asks it to end and waits; kills it when it does not. False: it did not end cleanly. Safe on zeroes. */
bool demo_daemon_stop(struct demo_daemon *daemon);

/* ---- A worker at a daemon (demo.c) ------------------------------------------------------------------------------- */

struct demo_side {
    struct demo_daemon *daemon; /* borrowed */
    struct strait_client *client;
    struct strait_pool *pool;
    bool registered;           /* the daemon has the pool */
    bool failed;               /* pool refused or connection lost, which was printed */
    enum strait_state verdict; /* of the transfer in progress; BOOTSTRAP: none yet */
    char *stats;               /* the last answer; owned */
};

/* A worker on each side. */
struct demo_pair {
    struct demo_side *source, *sink;
};

/* Connects and registers `memory` as a pool of the sample's shape. Call demo_side_close in any case. */
bool demo_side_open(struct demo_side *side, struct demo_daemon *daemon, const struct demo_sample *sample,
                    const struct strait_memory *memory);
/* Safe on zeroes. */
void demo_side_close(struct demo_side *side);

/* Handles the events of both sides until `reached` returns true. False: not within `ms`, or something failed. */
bool demo_until(const struct demo_pair *pair, bool (*reached)(const struct demo_pair *pair), unsigned ms,
                const char *what);

struct cJSON;
/* The source's statistics; the caller deletes them. NULL: failed. */
struct cJSON *demo_stats(const struct demo_pair *pair);

/* ---- One row of the table (demo.c) ------------------------------------------------------------------------------- */

enum { DEMO_HASH_BYTES = 16, DEMO_BAD_MAX = 16 };

/* A page that differs from what was sent. */
struct demo_bad {
    uint32_t region, source_page, sink_page;
    uint8_t sent[DEMO_HASH_BYTES], landed[DEMO_HASH_BYTES]; /* XXH3-128 */
};

struct demo_row {
    const char *path;   /* "network", "shm", "local" */
    char transport[16]; /* as the daemon reports it */
    const char *coding;
    enum strait_coding pin;
    bool flip; /* flip a bit of a landed page, to see the check fail */

    uint64_t raw_bytes;
    uint64_t wire_bytes; /* bytes sent between daemons; 0 under one daemon */
    double seconds;      /* median */
    uint32_t pages_right;
    uint8_t sent[DEMO_HASH_BYTES], landed[DEMO_HASH_BYTES]; /* XXH3-128 of the hashes of all pages, in order */
    struct demo_bad bad[DEMO_BAD_MAX];                      /* the first ones */
    uint32_t bad_count;                                     /* entries of `bad` */
};

/* Which page goes where, and what it should contain. */
struct demo_plan {
    const struct demo_sample *sample;
    const struct strait_memory *landing; /* the sink's pages */
    uint32_t *from, *to;                 /* ids by logical index: page_count of them */
    uint8_t (*hashes)[DEMO_HASH_BYTES];  /* [region][logical index], of the source's pages */
};

/* Zeroes *plan first; call demo_plan_fini in any case. */
bool demo_plan_init(struct demo_plan *plan, const struct demo_sample *sample, const struct strait_memory *landing);
void demo_plan_fini(struct demo_plan *plan);

#define DEMO_ROUNDS 3u /* measured rounds, after one that is not measured */

/* Moves everything and checks every page. False: it could not be moved; pages that differ are listed in the row. */
bool demo_move(const struct demo_pair *pair, const struct demo_plan *plan, struct demo_row *row);

/* ---- Report (demo_report.c) -------------------------------------------------------------------------------------- */

struct demo_report {
    const struct demo_sample *sample;
    const struct demo_row *rows; /* one per path that was measured */
    uint32_t row_count;
    bool complete; /* rows has every path that was planned */
    bool flip;
};

bool demo_verified(const struct demo_report *report);
void demo_print_head(const struct demo_sample *sample, FILE *stream);
void demo_print_row(const struct demo_row *row, const struct demo_sample *sample, FILE *stream);
void demo_print_end(const struct demo_report *report, FILE *stream);
/* False: output failed, which was printed to stderr. */
bool demo_print_json(const struct demo_report *report, FILE *stream);

#endif
