/* Phases that move rows: as kernels alone or with the coder's launches, in stream order or, by parts, beside it
 * ("Parts" in ep/kernels.h): send and stage then have a stream of their own, which begins where the call's stream is
 * and is waited for by receive and reduce. Nothing beside the stream waits for what comes after it in the stream, so
 * launches that share a queue cannot wait for each other. */
#include "ep/cuda/backend.h"
#include "ep/cuda/phases.h"

enum strait_status ep_cuda_beside_open(struct ep_cuda *cuda)
{
    cudaError_t error = cudaStreamCreateWithFlags(&cuda->beside, cudaStreamNonBlocking);

    if (error == cudaSuccess)
        error = cudaEventCreateWithFlags(&cuda->forked, cudaEventDisableTiming);
    if (error == cudaSuccess)
        error = cudaEventCreateWithFlags(&cuda->joined, cudaEventDisableTiming);
    if (!ep_cuda_good(error))
        return error == cudaErrorMemoryAllocation ? STRAIT_ERR_NO_MEMORY : STRAIT_ERR_DEVICE;
    return STRAIT_OK;
}

void ep_cuda_beside_close(struct ep_cuda *cuda)
{
    if (cuda->forked != NULL)
        (void)ep_cuda_good(cudaEventDestroy(cuda->forked));
    if (cuda->joined != NULL)
        (void)ep_cuda_good(cudaEventDestroy(cuda->joined));
    if (cuda->beside != NULL)
        (void)ep_cuda_good(cudaStreamDestroy(cuda->beside));
}

static bool by_parts(const struct ep_group_view *group)
{
    return group->at.parts > 0;
}

/* Half of the multiprocessors, as two phases run at once. */
static void halve(struct ep_group_view *group)
{
    group->sm_budget = (group->sm_budget + 1) / 2;
}

static bool begin_beside(const struct ep_cuda *cuda, cudaStream_t stream)
{
    return ep_cuda_good(cudaEventRecord(cuda->forked, stream)) &&
           ep_cuda_good(cudaStreamWaitEvent(cuda->beside, cuda->forked, 0));
}

static bool wait_beside(const struct ep_cuda *cuda, cudaStream_t stream)
{
    return ep_cuda_good(cudaEventRecord(cuda->joined, cuda->beside)) &&
           ep_cuda_good(cudaStreamWaitEvent(stream, cuda->joined, 0));
}

#define LAUNCH(name, args, stream)                                  \
    (cuda->coder != NULL ? ep_cuda_coded_##name(cuda, args, stream) \
                         : ep_cuda_good(ep_cuda_##name(args, cuda->multiprocessors, stream)))

bool ep_cuda_run_send(const struct ep_cuda *cuda, const struct ep_send_args *args, cudaStream_t stream)
{
    struct ep_send_args beside = *args;

    if (!by_parts(&args->group) || args->signal != EP_FLAG_DATA)
        return LAUNCH(send, args, stream);
    halve(&beside.group);
    ep_cuda_beside(&beside.group);
    return begin_beside(cuda, stream) && LAUNCH(send, &beside, cuda->beside);
}

bool ep_cuda_run_receive(const struct ep_cuda *cuda, const struct ep_receive_args *args, cudaStream_t stream)
{
    struct ep_receive_args own = *args;

    if (!by_parts(&args->group))
        return LAUNCH(receive, args, stream);
    halve(&own.group);
    const bool good = LAUNCH(receive, &own, stream);
    return wait_beside(cuda, stream) && good;
}

bool ep_cuda_run_stage(const struct ep_cuda *cuda, const struct ep_stage_args *args, cudaStream_t stream)
{
    const struct ep_settle_args begin = {.group = args->group, .handle = args->handle};
    struct ep_stage_args beside = *args;

    if (!by_parts(&args->group))
        return LAUNCH(stage, args, stream);
    halve(&beside.group);
    ep_cuda_beside(&beside.group);
    return ep_cuda_good(ep_cuda_begin(&begin, cuda->multiprocessors, stream)) && begin_beside(cuda, stream) &&
           LAUNCH(stage, &beside, cuda->beside);
}

bool ep_cuda_run_send_back(const struct ep_cuda *cuda, const struct ep_send_back_args *args, cudaStream_t stream)
{
    return LAUNCH(send_back, args, stream);
}

bool ep_cuda_run_reduce(const struct ep_cuda *cuda, const struct ep_reduce_args *args, cudaStream_t stream)
{
    struct ep_reduce_args own = *args;

    if (!by_parts(&args->group))
        return LAUNCH(reduce, args, stream);
    halve(&own.group);
    const bool good = LAUNCH(reduce, &own, stream);
    return wait_beside(cuda, stream) && good;
}
