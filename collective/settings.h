/* The settings in the environment, read once per process, when NCCL is first called.
 *
 *   STRAIT_COLL        auto (the default): what is faster so is compressed; compress: all that can be; raw (or off):
 *                      nothing is, which switches the library off but for its counts
 *   STRAIT_COLL_ORDER  fp32 (the default): sums are FP32, by rank, rounded once; nccl-ring: as NCCL's ring adds
 *   STRAIT_COLL_BYTES  what uint8 of even sizes holds. auto (the default): in collectives maybe BF16, as probes tell;
 *                      bf16: BF16, in sends and receives too; raw: it is not compressed
 *   STRAIT_COLL_PAIRS  0: sends and receives are not compressed
 *   STRAIT_COLL_PRINT  1: the report goes to stderr when a communicator is destroyed and when the process ends
 *   STRAIT_COLL_SMS    how many multiprocessors coding and adding up may occupy; all
 *   STRAIT_COLL_REPORT a folder, in which each process keeps a report of what it does (report_file.h)
 *   STRAIT_COLL_TABLE  from which size on operations are compressed, by operation and type, whatever was measured
 *                      (struct coll_sizes)
 *   STRAIT_COLL_WAIT   how long ranks wait for the others of a new communicator to join: seconds, or as in `200ms`; 5
 *   STRAIT_COLL_MEET   where they join. auto (the default): by TCP at the process that made the communicator's id, if
 *                      it can listen, else in host memory; host: in host memory
 *   STRAIT_COLL_NCCL   the path of NCCL's library */
#ifndef STRAIT_COLLECTIVE_SETTINGS_H
#define STRAIT_COLLECTIVE_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "collective/api.h"

/* Thresholds: the size from which on operations are compressed, by operation and type, as measured for a communicator
 * or as given by STRAIT_COLL_TABLE. As text, entries with commas between them, of which later ones win:
 *
 *   OPERATION=SIZE          of all types
 *   OPERATION:TYPE=SIZE
 *
 * Operations: all_gather, all_to_all, reduce_scatter, all_reduce, pairs, which are sends and receives, and broadcast.
 * Types: bf16, fp16, fp32. Sizes: bytes as the report counts them, count times size of the element; K, M and G are
 * powers of 1024; `never` is larger than all. */

enum { COLL_SIZES_OPERATIONS = 6, COLL_SIZES_TYPES = 3, COLL_SIZES_TEXT = 768 /* room for any table */ };
#define COLL_SIZES_NEVER UINT64_MAX

struct coll_sizes {
    uint64_t given;                                         /* 0: the table is empty */
    uint64_t from[COLL_SIZES_OPERATIONS][COLL_SIZES_TYPES]; /* 0: no entry */
};

/* Operation of each row and type of each column. */
extern const enum coll_operation coll_sizes_operations[COLL_SIZES_OPERATIONS];
extern const coll_type coll_sizes_types[COLL_SIZES_TYPES];

/* Parses a table. False: it is malformed, and `sizes` is empty. */
bool coll_sizes_read(struct coll_sizes *sizes, const char *text);

/* Writes the shortest text of a table. */
void coll_sizes_write(const struct coll_sizes *sizes, char text[COLL_SIZES_TEXT]);

/* Returns the threshold in bytes for the call's operation and type; 0: no entry. */
uint64_t coll_sizes_from(const struct coll_sizes *sizes, const struct coll_call *call);

enum coll_bytes { COLL_BYTES_AUTO, COLL_BYTES_BF16, COLL_BYTES_RAW };

/* Whether kernels of ours move messages through memory of the host, in place of NCCL: where that was measured to be
 * faster; nowhere; wherever they can. */
enum coll_shm { COLL_SHM_AUTO, COLL_SHM_NEVER, COLL_SHM_ALWAYS };

struct coll_settings {
    enum coll_bytes bytes;
    enum coll_shm shm;
    bool raw, forced, ring, pairs, print;
    bool shm_only; /* ranks never join by TCP */
    unsigned wait_ms;
    unsigned sms; /* multiprocessors that kernels of the library may occupy; 0: all */
    struct coll_sizes table;
    const char *report;  /* folder for reports; NULL: none are written */
    const char *library; /* path of NCCL's library; NULL: to be searched */
};

/* Says on stderr which values are not understood, which then count as not set, and which names of variables
 * (STRAIT_COLL_...) are unknown. */
struct coll_settings coll_settings_read(void);

/* Prints a line on stderr. */
__attribute__((format(printf, 1, 2))) void coll_log(const char *format, ...);

#endif
