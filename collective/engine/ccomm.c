#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "collective/engine/ccomm.h"

/* Sums need different room than the values that they are made of. */
static unsigned operation_row(enum coll_operation operation, bool gathers)
{
    return operation == COLL_ALL_GATHER       ? 0
           : operation == COLL_ALL_TO_ALL     ? 1
           : operation == COLL_REDUCE_SCATTER ? 2
           : operation == COLL_BROADCAST      ? 5
                                              : 3 + gathers;
}

enum coll_operation ccomm_local_class_operation(const struct coll_ccomm *ccomm, unsigned local_class)
{
    static const enum coll_operation rows[CCOMM_OPERATIONS] = {COLL_ALL_GATHER, COLL_ALL_TO_ALL, COLL_REDUCE_SCATTER,
                                                               COLL_ALL_REDUCE, COLL_ALL_REDUCE, COLL_BROADCAST};
    const unsigned row = local_class / CCOMM_TYPES;
    if (row < CCOMM_OPERATIONS)
        return rows[row];
    return row - CCOMM_OPERATIONS < (unsigned)ccomm->ranks ? COLL_SEND : COLL_RECV;
}

coll_type ccomm_local_class_type(unsigned local_class)
{
    static const coll_type types[CCOMM_TYPES] = {COLL_BF16, COLL_FP16, COLL_FP32, COLL_UINT8};
    return types[local_class % CCOMM_TYPES];
}

unsigned ccomm_local_classes(const struct coll_ccomm *ccomm)
{
    return CCOMM_OPERATIONS * CCOMM_TYPES + 2 * (unsigned)ccomm->ranks * CCOMM_TYPES;
}

unsigned ccomm_local_class(const struct coll_ccomm *ccomm, const struct coll_call *call, bool gathers)
{
    const unsigned type = call->type == COLL_BF16 ? 0 : call->type == COLL_FP16 ? 1 : call->type == COLL_FP32 ? 2 : 3;
    if (call->operation != COLL_SEND && call->operation != COLL_RECV)
        return operation_row(call->operation, gathers) * CCOMM_TYPES + type;
    const unsigned row = (call->operation == COLL_RECV ? (unsigned)ccomm->ranks : 0) + (unsigned)call->peer;
    return CCOMM_OPERATIONS * CCOMM_TYPES + row * CCOMM_TYPES + type;
}

bool ccomm_gather(struct coll_ccomm *ccomm, const void *own, size_t size)
{
    uint8_t *sent = ccomm->gathered + size * (size_t)ccomm->ranks;
    const bool copied = ccomm->gpu->copy(sent, own, size, ccomm->stream);
    /* In any case, as the others wait for it. */
    return ccomm->host.nccl->AllGather(sent, ccomm->gathered, size, COLL_UINT8, ccomm->comm, ccomm->stream) ==
               COLL_SUCCESS &&
           copied;
}

/* Looks at once, and less and less often: by a fifth of the time that it takes at most it is late. */
bool ccomm_wait(struct coll_ccomm *ccomm)
{
    enum { LOOK_NS = 20000, LOOK_NS_MAX = 20000000 };
    const struct gpu_ops *gpu = ccomm->gpu;
    const bool recorded = gpu->event_record(ccomm->joined, ccomm->stream);
    for (long ns = LOOK_NS; recorded && !gpu->event_over(ccomm->joined); ns += ns < LOOK_NS_MAX ? ns / 4 : 0) {
        if (ccomm_has_failed(ccomm))
            return false;
        nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
    }
    return gpu->stream_wait(ccomm->stream);
}

void *ccomm_gathered(struct coll_ccomm *ccomm, size_t size)
{
    void *all = calloc((size_t)ccomm->ranks, size);
    if (all != NULL && ccomm_wait(ccomm) &&
        ccomm->gpu->copy(all, ccomm->gathered, size * (size_t)ccomm->ranks, ccomm->stream) &&
        ccomm->gpu->stream_wait(ccomm->stream))
        return all;
    free(all);
    return NULL;
}

/* What a rank gathers that is good: different each time, so that no record of before is taken for it. */
static uint64_t vote_of(const struct coll_ccomm *ccomm)
{
    return UINT64_C(0x676f6f6400000000) + ccomm->votes;
}

bool ccomm_gather_good(struct coll_ccomm *ccomm, bool good)
{
    ccomm->votes++;
    const uint64_t own = good ? vote_of(ccomm) : 0;
    return ccomm_gather(ccomm, &own, sizeof(own));
}

bool ccomm_all_good(struct coll_ccomm *ccomm, bool *all)
{
    uint64_t *good = ccomm_gathered(ccomm, sizeof(*good));
    const bool moved = good != NULL;
    *all = moved;
    for (int rank = 0; rank < ccomm->ranks && *all; rank++)
        *all = good[rank] == vote_of(ccomm);
    free(good);
    return moved;
}

bool ccomm_stay_raw(struct coll_ccomm *ccomm, const char *why)
{
    snprintf(ccomm->args->why, sizeof(ccomm->args->why), "%s", why);
    return false;
}

void ccomm_fail(struct coll_ccomm *ccomm, coll_result result, const char *why)
{
    pthread_mutex_lock(&ccomm->lock);
    const bool first = ccomm->failed == COLL_SUCCESS;
    if (first)
        ccomm->failed = result;
    pthread_mutex_unlock(&ccomm->lock);
    if (first)
        ccomm->host.log("communicator %p, rank %d of %d: %s", (void *)ccomm->comm, ccomm->rank, ccomm->ranks, why);
}

bool ccomm_has_failed(struct coll_ccomm *ccomm)
{
    pthread_mutex_lock(&ccomm->lock);
    const bool failed = ccomm->failed != COLL_SUCCESS;
    pthread_mutex_unlock(&ccomm->lock);
    return failed;
}

void ccomm_abort_kernels(struct coll_ccomm *ccomm)
{
    __atomic_store_n(&ccomm->host_status->abort, 1, __ATOMIC_RELEASE);
}

static const char *text_of(uint32_t failed)
{
    return failed == STATUS_BAD_HEADER ? "a message's head was changed on its way: it is not known what did not fit"
           : failed == (uint32_t)STRAIT_ERR_IO ? "what did not fit could not be moved"
                                               : strait_status_string((enum strait_status)failed);
}

void ccomm_poll_error(struct coll_ccomm *ccomm)
{
    const uint32_t failed = __atomic_load_n(&ccomm->host_status->failed, __ATOMIC_ACQUIRE);
    if (failed != 0)
        ccomm_fail(ccomm, failed == (uint32_t)STRAIT_ERR_IO ? COLL_REMOTE_ERROR : COLL_INTERNAL_ERROR, text_of(failed));
}
