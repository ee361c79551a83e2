/* A communicator that is compressed, as seen by one of its ranks. */
#ifndef STRAIT_COLLECTIVE_ENGINE_CCOMM_H
#define STRAIT_COLLECTIVE_ENGINE_CCOMM_H

#include <pthread.h>
#include <stdbool.h>

#include "collective/engine.h"
#include "collective/engine/compare.h"
#include "collective/engine/gpu.h"
#include "collective/engine/hosts.h"
#include "collective/engine/tally.h"

/* Bytes are types of their own: uint8 that may hold BF16. */
enum { CCOMM_TYPES = 4, CCOMM_OPERATIONS = 6 };

/* Cost model of the links between ranks, measured and the same on all of them: sending S bytes to each other rank (of
 * the host, of the rail) takes `start` + S x `per[use]` seconds; a message that overflows takes S x `overflow` more.
 * `use` is by operation of NCCL: seconds per byte of one rank's message, while all ranks send as much to each other. */
enum link_use {
    LINK_GATHER,   /* all_gather */
    LINK_EXCHANGE, /* a message from each rank to each other one, by send and recv */
    LINK_SCATTER,  /* reduce_scatter */
    LINK_LOCAL,    /* where there are rails: from each rank to each other one of its host, by send and recv */
    LINK_RAIL,     /* the same to each other one of its rail */
    LINK_SHM,      /* the same to each other one of all, through the channels of shm.h */
    LINK_USES,
};
struct link_costs {
    double start;          /* of any */
    double per[LINK_USES]; /* 0: none was measured */
    double overflow;       /* of overflow */
    double encode, decode; /* of coding each byte of values, on the slowest GPU */
};

/* Probe that link costs are measured with; made before ranks exchange whether they are able. */
/* Besides large messages of each use; of the codec, for each byte. */
enum { PROBE_SMALL = LINK_USES, PROBE_OVERFLOW, PROBE_ENCODE, PROBE_DECODE, PROBES };
struct link_probe {
    uint8_t *memory; /* one message to send, and one from each rank */
    size_t size;     /* of that memory */
    gpu_event begin, end;
    double seconds[PROBES]; /* 0: not measured */
    bool over;              /* nothing more is measured; the same on all ranks */
    bool bad, raw;          /* something has failed here; on some rank, so that all stay raw */
};

/* Memory with the channels of shm.h, if ranks have some. */
struct shm_shared {
    struct segment segment;
    struct segment_info info;
    struct shm_channels channels;
    bool pinned, good; /* good: nothing has failed so far */
};

struct coll_staging;
struct staging_list {
    struct coll_staging *first; /* readers without the lock see complete entries: new ones are only put in front */
    /* Bytes in all of them, for other threads: of the GPU for calls outside of graphs, for graphs; and of the host. */
    uint64_t calls, graphs, hosted;
};

struct coll_ccomm {
    struct coll_engine_host host;
    const struct gpu_ops *gpu;
    const struct strait_codec *codec;
    coll_comm comm;
    int rank, ranks, device;
    unsigned multiprocessors;
    bool forced; /* compressed whatever it costs */
    struct link_costs cost;
    struct link_probe probe;
    struct timings timings;
    struct tally tally;
    char table[COLL_SIZES_TEXT]; /* STRAIT_COLL_TABLE as this communicator decides, for reports */

    struct staging_list stagings;
    struct keepalive *keepalive; /* watches the processes of other ranks */

    struct shared_resources shared;
    struct shm_shared shm;
    struct host_status *host_status;
    struct ring_ends *ends;
    struct overflow_counter *overflow_counters; /* by local class */

    gpu_event last;   /* end of all operations so far */
    gpu_event joined; /* of streams_join, while it is called */

    uint64_t *issued;      /* ops issued, by local class; under the lock of shared.classes, as is `reports_read` */
    uint64_t reports_read; /* reports in host_status that were read */

    pthread_mutex_t lock; /* of `failed` */
    int failed;           /* a coll_result */
    bool aborted;
    coll_stream stream;          /* used while joining */
    struct coll_join_args *args; /* while joining */
    uint8_t *gathered;           /* in the GPU's memory: what was gathered from all ranks, then this rank's own */
    uint64_t votes;              /* by ccomm_gather_good */
    struct coll_ccomm *next;     /* in the list of those that could not be freed */
};

/* Op class of a phase of a call, as this rank numbers them; of sends and receives, by peer. gathers: the phase of an
 * all_reduce that gathers the sums. */
unsigned ccomm_local_class(const struct coll_ccomm *ccomm, const struct coll_call *call, bool gathers);
unsigned ccomm_local_classes(const struct coll_ccomm *ccomm);
coll_type ccomm_local_class_type(unsigned local_class);
enum coll_operation ccomm_local_class_operation(const struct coll_ccomm *ccomm, unsigned local_class);

/* Gathers a record from each rank, on the communicator's GPU and stream: ccomm_gather in a group that the caller opens,
 * ccomm_gathered after it. One gather at a time. */
enum { CCOMM_GATHER_MAX = 256 }; /* bytes of a record, whatever the number of ranks */
/* False: the others get no record of this rank's, or one that means nothing. */
bool ccomm_gather(struct coll_ccomm *ccomm, const void *own, size_t size);
/* Returns the records of all ranks, to be freed; NULL: no memory, the GPU failed, or a rank has gone. */
void *ccomm_gathered(struct coll_ccomm *ccomm, size_t size);

/* Waits for the stream while the communicator joins. False: the GPU failed, or a rank has gone, without which NCCL may
 * never end what it moves. */
bool ccomm_wait(struct coll_ccomm *ccomm);
/* While it joins, that is because a rank has gone. */
bool ccomm_has_failed(struct coll_ccomm *ccomm);

/* Gathers whether all is good on each rank, in a group that the caller opens; and after it, whether it is on all of
 * them: false where that is not known. Returns false: no memory, or the GPU or NCCL failed. */
bool ccomm_gather_good(struct coll_ccomm *ccomm, bool good);
bool ccomm_all_good(struct coll_ccomm *ccomm, bool *all);

/* Sets the reason why a communicator that is joining stays raw. Returns false. */
bool ccomm_stay_raw(struct coll_ccomm *ccomm, const char *why);

/* Keeps the first failure, and prints it on stderr. */
void ccomm_fail(struct coll_ccomm *ccomm, coll_result result, const char *why);

/* Makes all our kernels on this communicator's GPU stop waiting, within a moment and for good. Any thread, at any time
 * until the communicator leaves; it only writes memory and calls nothing. */
void ccomm_abort_kernels(struct coll_ccomm *ccomm);

/* Turns an error that kernels found into a failure. */
void ccomm_poll_error(struct coll_ccomm *ccomm);

/* codec_rate.c: sets this rank's `cost` of coding, until ranks have agreed: measured with the probe, which is zero
 * before and after, on the communicator's GPU; or assumed. */
void codec_rate_measure(struct coll_ccomm *ccomm);
void codec_rate_assume(struct coll_ccomm *ccomm);

/* measure.c: measure_prepare makes the probe, on the communicator's GPU; measure_links, which is collective, sets
 * `cost` and makes the channels of shm.h where they may pay; channels_make makes them where nothing is measured;
 * measure_end ends the probe, whether it was made or not. After a failure probe.raw is set on all ranks, or, on a rank
 * that does not know what the others know, probe.bad alone. */
bool measure_prepare(struct coll_ccomm *ccomm);
void measure_links(struct coll_ccomm *const ccomms[], unsigned count);
void channels_make(struct coll_ccomm *const ccomms[], unsigned count);
void measure_end(struct coll_ccomm *ccomm);

/* join.c: joining and leaving (collective/engine.h). */
void ccomms_prepare(const struct gpu_ops *gpu, const struct coll_engine_host *host, struct coll_join_args *joins,
                    unsigned count);
void ccomms_join(const struct coll_engine_host *host, struct coll_join_args *joins, unsigned count);
void ccomm_abort(struct coll_ccomm *ccomm);
void ccomm_suspend(struct coll_ccomm *ccomm);
void ccomm_resume(struct coll_ccomm *ccomm);
struct coll_memory ccomm_memory(struct coll_ccomm *ccomm);
void ccomm_leave(struct coll_ccomm *ccomm);

#endif
