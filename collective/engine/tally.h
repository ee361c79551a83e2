/* Counts of overflows for reports. GPUs report each overflow, and each probe, in host_status (gpu.h); levels.c and
 * reports read it independently of each other. */
#ifndef STRAIT_COLLECTIVE_ENGINE_TALLY_H
#define STRAIT_COLLECTIVE_ENGINE_TALLY_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct coll_ccomm;

struct tally_class {
    uint64_t reported; /* overflows and probes, as the GPU counts them: also those of reports that were overwritten */
    uint64_t probes;   /* of the reports that were read */
};

struct tally {
    pthread_mutex_t lock;
    uint64_t read;               /* reports of host_status that were read */
    struct tally_class *classes; /* by local class */
};

/* False: no memory. */
bool tally_make(struct coll_ccomm *ccomm);
void tally_end(struct coll_ccomm *ccomm);

/* Reads what the GPU has reported since. Any thread, as long as host_status is there. */
void tally_read(struct coll_ccomm *ccomm);

/* Overflows of a local class, as read so far. Any thread. */
uint64_t tally_overflows(struct coll_ccomm *ccomm, unsigned local_class);

#endif
