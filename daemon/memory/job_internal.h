/* What job.c, which makes, runs and reports jobs, has in common with job_pages.c, which has their work. */
#ifndef STRAIT_DAEMON_MEMORY_JOB_INTERNAL_H
#define STRAIT_DAEMON_MEMORY_JOB_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/memory/job.h"

struct jobs {
    uv_loop_t *loop;
    struct codebooks *codebooks; /* those of new jobs */
    uint64_t small_bytes;
    uint32_t running;
    uint32_t handles;         /* open ones */
    uv_check_t check;         /* reports small jobs, right after the turn's I/O */
    uv_idle_t idle;           /* keeps that turn from blocking */
    struct job *first, **end; /* small jobs that are done but not reported */
    struct devices *devices;  /* NULL: no GPUs */
    uv_prepare_t turn;        /* end of the turn: submits the collected jobs to their devices */
    struct job *collected, **collected_end;
};

struct job;

typedef void job_work(struct job *job);

/* A job; the copies of its arguments that it needs follow it in memory. */
struct job {
    uv_work_t request;
    struct jobs *jobs;
    struct job *next;
    job_work *work;
    job_done *done;
    void *owner;
    uint64_t cookie;
    uint64_t created;
    struct job_result result;
    struct codebooks *codebooks; /* those of when it was made */

    struct strait_pages pages; /* of the piece, in its pool */
    enum strait_element element;
    enum strait_mode mode;    /* encode */
    bool by_tables;           /* the chunk is coded by tables; decode: known when its metadata is */
    void *dst;                /* encode */
    const void *src;          /* decode */
    uint64_t size;            /* encode: of dst; decode: of src */
    bool on_gpu, on_peer_gpu; /* the chunk is in a GPU's memory; in another GPU's */
    uint64_t *flag, flag_value;
    bool alone;
    struct seal seal;              /* of the chunk */
    struct strait_pages src_pages; /* copy */
    struct strait_class_stats *stats;
    uint32_t stats_count;

    int32_t device; /* holds the pages; -1: the host */
    int32_t src_device;
    struct device_task task;
    uint8_t *metadata; /* decode on a device */
    struct job *collected_next;
};

/* The arguments of a job: what to do, with which pages, and whom to tell. */
struct job_order {
    job_work *work;
    const struct pool *pool;
    const struct piece *piece;
    const uint32_t *ids;
    const struct pool *src_pool; /* copy */
    const uint32_t *src_ids;
    job_done *done;
    void *owner;
    uint64_t cookie;
};

/* Makes a job with copies of the ids and regions. ERR_INVALID: the piece is not one of the pool's; ERR_NO_MEMORY. */
enum strait_status job_make(struct jobs *jobs, const struct job_order *order, struct job **job);
void job_drop(struct job *job); /* frees a job that was not started */
/* Runs the job in place or hands it to a worker, depending on its size. From here on it owns itself. */
void job_start(struct job *job);
/* Hands a part of a job to a worker, or runs it here if that cannot be done. `worked` is called on the loop's thread.
 */
void job_start_part(struct job *job, job_work *work, uv_after_work_cb worked);
/* Keeps a job, whose task is described, for its device, which gets it at the end of the turn. */
void job_collect(struct job *job);
/* Ends a job whose result is set. From the loop's callbacks only. */
void job_finish(struct job *job);
/* Ends a job at once; it is reported by jobs_report, or else in the next turn. */
void job_tell_soon(struct job *job);

#endif
