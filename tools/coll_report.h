/* Reports of libstrait-coll (collective/report_file.h): reads the files of processes, which are foreign bytes, and
 * merges what the ranks of each communicator have written. */
#ifndef STRAIT_TOOLS_COLL_REPORT_H
#define STRAIT_TOOLS_COLL_REPORT_H

#include <stdbool.h>
#include <stddef.h>

struct cJSON;

enum {
    COLL_FILE_MAX = 16 << 20,      /* bytes of a file */
    COLL_FILES_MAX = 16384,        /* of one reading */
    COLL_COMMS_MAX = 4096,         /* communicators of a file */
    COLL_ROWS_MAX = 256,           /* operations and types of a communicator */
    COLL_FILE_RANKS_MAX = 1 << 16, /* of a communicator */
    COLL_RAW_MAX = 16,             /* reasons of an operation */
    COLL_STRING_MAX = 4096,        /* bytes of a string */
};

/* Numbers are those of the file, in doubles, as JSON has them. Texts are the tree's; print them with text_printable. */

struct coll_raw {
    const char *why;
    double calls, bytes;
};

struct coll_row {
    const char *operation, *type;
    double calls, bytes, grouped, captured, failed, compressed, plain_bytes, wire_bytes, probes, overflows;
    double compared, x; /* x: NCCL's time by that of compressed operations; < 0: not known */
    double nccl_seconds, coded_seconds, overflow_seconds; /* of those compressed, by the links; < 0: not known */
    struct coll_raw raw[COLL_RAW_MAX];
    unsigned raw_count;
    double calls_least, calls_most; /* of a merged row: by rank */
};

enum { COLL_RATES = 9, COLL_RATE_LOCAL = 4, COLL_RATE_RAIL, COLL_RATE_SHM };
extern const char *const coll_rate_names[COLL_RATES]; /* of links and codec */

struct coll_process;
struct coll_communicator {
    const struct coll_process *process;
    const char *id, *state, *why, *table; /* id NULL: not known */
    double number;
    int rank, ranks; /* -1: not known */
    bool ended, pinned, has_figures;
    double hosts, rails;                              /* rails: by which sums go between hosts; 0 or less: by none */
    double start_us, rates[COLL_RATES];               /* GB/s; < 0: not known */
    double messages, persistent, host, host_messages; /* bytes of memory */
    struct coll_row *rows;
    unsigned row_count;
};

struct coll_process {
    struct cJSON *tree;
    char *file;
    const char *library, *nccl_path, *host, *mode;
    double nccl, process, started, written, dropped;
    bool exited, encrypted;
    struct coll_communicator *communicators;
    unsigned count;
};

/* Reads the text of a file. False: it is no such report, `why` says; there is nothing to free. */
bool coll_process_parse(struct coll_process *process, const char *text, size_t size, char *why, size_t why_size);
void coll_process_free(struct coll_process *process);

/* All ranks of a communicator of which there are files. */
struct coll_group {
    const struct coll_communicator **members; /* by rank, each once */
    unsigned count;
    int ranks;
    struct coll_row
        *rows; /* sums over the members, but for overflows of collectives, which all see: those of the one with most */
    unsigned row_count;
    char **differences; /* in what members are not alike, as sentences */
    unsigned difference_count;
};

struct coll_groups {
    struct coll_group *list; /* in the order in which processes began and made them */
    unsigned count;
};

/* Merges; `groups` refers to the processes. False: no memory. */
bool coll_merge(struct coll_groups *groups, const struct coll_process *processes, unsigned count);
void coll_groups_free(struct coll_groups *groups);

#endif
