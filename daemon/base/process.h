/* Figures of this process, as the system counts them. */
#ifndef STRAIT_DAEMON_BASE_PROCESS_H
#define STRAIT_DAEMON_BASE_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

/* Figures that the system does not tell are 0. */
struct process_figures {
    uint64_t began_ns; /* since 1970 */
    uint64_t cpu_ns;   /* of all threads */
    uint64_t resident_bytes, virtual_bytes;
    uint64_t open_fds, max_fds; /* max_fds: the soft limit; UINT64_MAX: none */
};

/* Reads /proc: some tens of microseconds. `began_ns` is read once, where it is 0, so that a step of the clock does not
 * change it. Any thread. */
void process_read(struct process_figures *figures);

#endif
