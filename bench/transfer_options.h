/* Options of `strait bench transfer`. */
#ifndef STRAIT_BENCH_TRANSFER_OPTIONS_H
#define STRAIT_BENCH_TRANSFER_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/strait.h>

#include "bench/sources.h"
#include "bench/values.h"

#define TRANSFER_SIZES_MAX   8u /* page sizes, page counts, rates */
#define TRANSFER_SAMPLES_MAX 10000u

/* How the bytes travel from pool to pool. */
enum path_kind {
    PATH_LOCAL, /* both pools at one daemon */
    PATH_SHM,   /* two daemons, shared memory */
    PATH_TCP,   /* two daemons, UCX over TCP on loopback */
    PATH_LINK,  /* two daemons in network namespaces, UCX over TCP on a shaped link */
    PATH_KINDS,
};
extern const char *const path_names[PATH_KINDS];

struct transfer_options {
    struct sources sources;
    bool noise;

    bool paths[PATH_KINDS];
    enum strait_coding codings[CODINGS_MAX];
    unsigned coding_count;
    bool pull, push;
    uint64_t page_bytes[TRANSFER_SIZES_MAX];
    unsigned page_byte_count;
    uint32_t pages[TRANSFER_SIZES_MAX]; /* of a request, in each region */
    unsigned page_count;
    uint32_t regions; /* 0: one for each tensor */
    uint32_t requests;
    bool whole;
    bool rivals;
    unsigned repeats;
    unsigned samples; /* 0: by size */

    double rates[TRANSFER_SIZES_MAX]; /* Gbit/s */
    unsigned rate_count;
    uint64_t burst;   /* bytes */
    double change[2]; /* Gbit/s; 0: no change */
    unsigned seconds; /* of the run with a change */

    uint32_t layers; /* 0: no layer-wise rows */
    unsigned every_ms;
    uint64_t aux_bytes;
    unsigned aux_after_ms;

    unsigned idle_seconds;
    const char *daemon[DAEMON_OPTIONS_MAX]; /* further options of every straitd */
    unsigned daemon_count;
    bool json;
    bool help; /* help was asked for: nothing else is checked */
};

/* Reads the arguments and fills in the defaults. False when they are wrong, with the error on stderr. The caller must
 * call transfer_options_fini() either way. */
bool transfer_options_init(struct transfer_options *options, int argc, char **argv);
void transfer_options_fini(struct transfer_options *options);

extern const char transfer_usage[];

#endif
