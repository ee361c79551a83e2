/* Shared by the kinds of jobs. */
#ifndef STRAIT_DAEMON_MEMORY_JOB_PRIVATE_H
#define STRAIT_DAEMON_MEMORY_JOB_PRIVATE_H

#include <stdbool.h>

#include <uv.h>

#include "daemon/memory/job.h"

#define JOB_TABLES_MAX 4096u /* tables of the largest codebook whose escapes are counted: 64 KiB a job */

struct jobs {
    uv_loop_t *loop;
    const struct strait_codebook *codebook;
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

    struct strait_pages pages; /* of the piece, in its pool */
    enum strait_element element;
    enum strait_mode mode;         /* encode */
    void *dst;                     /* encode */
    const void *src;               /* decode */
    uint64_t size;                 /* encode: of dst; decode: of src */
    bool far, away;                /* the chunk is in a GPU's memory; in another GPU's */
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
    struct pool *pool;
    const struct piece *piece;
    const uint32_t *ids;
    struct pool *src_pool; /* copy */
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
/* The same for pages in a device's memory, coded by the device; submitted at the end of the turn. */
void job_start_on_device(struct job *job);
void jobs_submit(struct jobs *jobs); /* submits the collected jobs */
/* Ends a job whose result is set. From the loop's callbacks only. */
void job_finish(struct job *job);
/* Ends a job at once; it is reported in the next turn. */
void job_tell_soon(struct job *job);

/* A copy of the chunk's metadata, which its sender may still be able to change. OK: the caller frees *metadata. */
enum strait_status job_copy_metadata(const struct job *job, uint8_t **metadata, uint64_t *size);
enum strait_reason job_reason_of(enum strait_status status);
enum strait_reason job_encode_reason(enum strait_status status);
/* Adds the codec's counts per mode to job->result. */
void job_count_values(struct job *job, const struct strait_result *result);

#endif
