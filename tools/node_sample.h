/* Sample of what a running daemon moves, asked for over its unix socket: exponents counted by class. */
#ifndef STRAIT_TOOLS_NODE_SAMPLE_H
#define STRAIT_TOOLS_NODE_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

struct codebook_histogram;

#define NODE_SAMPLE_BYTES_MAX   (UINT64_C(64) << 30)
#define NODE_SAMPLE_SECONDS_MAX 600.0

/* What to ask for. */
struct node_sampling {
    const char *socket; /* path */
    uint64_t bytes;     /* to look at, at most: 1..NODE_SAMPLE_BYTES_MAX */
    double seconds;     /* to wait, at most: above 0, up to NODE_SAMPLE_SECONDS_MAX */
    uint32_t elements;  /* types of values to count: bit e for enum strait_element e */
};

/* What was looked at. */
struct node_sample {
    uint32_t pools;        /* with pages that could be looked at, */
    uint64_t ready_bytes;  /* and how much that was */
    uint64_t bytes;        /* looked at */
    uint64_t device_bytes; /* passed over: in memory of GPUs, */
    uint64_t other_bytes;  /* or of other types */
    double seconds;
};

/* Takes a sample, which lasts as long as the budget says: *count >= 1 histograms, as of codebook_partial_parse, which
 * the caller must free(). False: there is none, and why was printed to stderr. */
bool node_sample_take(const struct node_sampling *asked, struct codebook_histogram **list, uint32_t *count,
                      struct node_sample *sample);

#endif
