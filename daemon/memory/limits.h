/* Memory that this process may use: that of the machine, or less where its control groups say so (memory.max of version
 * 2, memory.limit_in_bytes of version 1). A process that takes more is killed, not refused. */
#ifndef STRAIT_DAEMON_MEMORY_LIMITS_H
#define STRAIT_DAEMON_MEMORY_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct memory_limit {
    uint64_t bytes; /* of the group, or below, that leaves least; UINT64_MAX: there is no limit */
    uint64_t used;  /* of them, without what the kernel gives up when memory is short */
    char file[256]; /* that has the limit */
};

/* Reads the limits of the groups that this process is in. `root` stands before "/proc/self/..." and the mount points:
 * "" but in tests. What cannot be read limits nothing. */
void memory_limit_read(const char *root, struct memory_limit *limit);

/* Are `bytes` within the machine's memory and the limit? If not, `why` has the numbers. */
bool memory_fits(uint64_t bytes, const struct memory_limit *limit, char *why, size_t why_size);

/* Text about the limits of address space and of locked memory (RLIMIT_AS, RLIMIT_MEMLOCK) that are set, for the error
 * of a mapping that failed; "": there are none. */
void memory_rlimits_text(char *text, size_t size);

#endif
