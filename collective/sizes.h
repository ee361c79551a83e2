/* From which size on operations are compressed, by operation and type: what was measured of a communicator, or what its
 * ranks were told to take instead (STRAIT_COLL_TABLE). As text, entries with commas between them, of which later ones
 * win:
 *
 *   OPERATION=SIZE          of all types
 *   OPERATION:TYPE=SIZE
 *
 * Operations are all_gather, all_to_all, reduce_scatter, all_reduce and pairs, which are sends and receives; types
 * bf16, fp16 and fp32. Sizes are bytes as the report counts them, count times size of the element; K, M and G are
 * powers of 1024; `never` is larger than all. */
#ifndef STRAIT_COLLECTIVE_SIZES_H
#define STRAIT_COLLECTIVE_SIZES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collective/call.h"

enum { COLL_SIZES_OPERATIONS = 5, COLL_SIZES_TYPES = 3, COLL_SIZES_TEXT = 640 /* room for any table */ };
#define COLL_SIZES_NEVER UINT64_MAX

struct coll_sizes {
    uint64_t given;                                         /* 0: nothing is said of anything */
    uint64_t from[COLL_SIZES_OPERATIONS][COLL_SIZES_TYPES]; /* 0: nothing is said of it */
};

/* The operation and type of a row and column. */
extern const enum coll_operation coll_sizes_operations[COLL_SIZES_OPERATIONS];
extern const coll_type coll_sizes_types[COLL_SIZES_TYPES];

/* False: it is not understood, and `sizes` says nothing. */
bool coll_sizes_read(struct coll_sizes *sizes, const char *text);

/* The shortest text that says the same. */
void coll_sizes_write(const struct coll_sizes *sizes, char text[COLL_SIZES_TEXT]);

/* What it says of this call. */
uint64_t coll_sizes_from(const struct coll_sizes *sizes, const struct coll_call *call);

#endif
