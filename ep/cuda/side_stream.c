/* Side stream of a group with parts ("Parts" in ep/kernels.h): it forks from the stream of a call, and what that does
 * with a part waits for an event that is recorded here. */
#include "ep/cuda/backend.h"

#include <pthread.h>

/* Groups of this process that have a side stream. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ep_cuda *open_sides;

/* Whether another rank of this process, a thread, has the same GPU. */
static bool is_shared(const struct ep_cuda *cuda)
{
    bool shared = false;

    pthread_mutex_lock(&lock);
    for (const struct ep_cuda *other = open_sides; other != NULL; other = other->next_side)
        shared |= other->device == cuda->device && other->rank != cuda->rank;
    pthread_mutex_unlock(&lock);
    return shared;
}

static void enlist(struct ep_cuda *cuda)
{
    pthread_mutex_lock(&lock);
    cuda->next_side = open_sides;
    open_sides = cuda;
    pthread_mutex_unlock(&lock);
}

static void delist(struct ep_cuda *cuda)
{
    struct ep_cuda **at = &open_sides;

    pthread_mutex_lock(&lock);
    while (*at != NULL && *at != cuda)
        at = &(*at)->next_side;
    if (*at != NULL)
        *at = cuda->next_side;
    pthread_mutex_unlock(&lock);
}

enum strait_status ep_cuda_side_open(struct ep_cuda *cuda)
{
    cudaError_t error = cudaStreamCreateWithFlags(&cuda->side, cudaStreamNonBlocking);

    if (error == cudaSuccess)
        error = cudaEventCreateWithFlags(&cuda->forked, cudaEventDisableTiming);
    for (uint32_t part = 0; part < EP_PARTS_MAX && error == cudaSuccess; part++)
        error = cudaEventCreateWithFlags(&cuda->parts[part], cudaEventDisableTiming);
    if (!ep_cuda_good(error))
        return error == cudaErrorMemoryAllocation ? STRAIT_ERR_NO_MEMORY : STRAIT_ERR_DEVICE;
    enlist(cuda);
    return STRAIT_OK;
}

void ep_cuda_side_close(struct ep_cuda *cuda)
{
    delist(cuda);
    for (uint32_t part = 0; part < EP_PARTS_MAX; part++)
        if (cuda->parts[part] != NULL)
            (void)ep_cuda_good(cudaEventDestroy(cuda->parts[part]));
    if (cuda->forked != NULL)
        (void)ep_cuda_good(cudaEventDestroy(cuda->forked));
    if (cuda->side != NULL)
        (void)ep_cuda_good(cudaStreamDestroy(cuda->side));
}

bool ep_cuda_record_part(const struct ep_cuda *cuda, uint32_t part)
{
    return cuda->side == NULL || ep_cuda_good(cudaEventRecord(cuda->parts[part], cuda->side));
}

bool ep_cuda_wait_part(const struct ep_cuda *cuda, uint32_t part, cudaStream_t stream)
{
    return cuda->side == NULL || ep_cuda_good(cudaStreamWaitEvent(stream, cuda->parts[part], 0));
}

void ep_cuda_share_budget(const struct ep_cuda *cuda, const struct ep_group_view *whole, uint32_t part,
                          struct ep_group_view *group)
{
    const bool ended = part + 1 >= whole->at.parts; /* what the side stream has to do */
    const bool alone = whole->at.parts == 0 || (ended && !is_shared(cuda));

    group->sm_budget = alone ? whole->sm_budget : ep_cuda_half_budget(whole);
}

bool ep_cuda_side_fork(const struct ep_cuda *cuda, cudaStream_t stream)
{
    return ep_cuda_good(cudaEventRecord(cuda->forked, stream)) &&
           ep_cuda_good(cudaStreamWaitEvent(cuda->side, cuda->forked, 0));
}

void ep_cuda_side_view(struct ep_group_view *group)
{
    const uint64_t chunks = (uint64_t)group->rank_count * ep_arena_chunks(&group->at);

    group->coding.side = 1;
    group->sm_budget = ep_cuda_half_budget(group);
    if (!group->coded)
        return;
    group->coding.rows += chunks * group->at.chunk_rows;
    group->coding.counts += chunks;
    group->coding.results += chunks;
}
