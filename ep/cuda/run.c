/* Phases that move rows: as kernels alone or with the coder's launches; with parts ("Parts" in ep/kernels.h) send and
 * stage on the side stream, and receive and reduce on the call's, part by part after them. */
#include "ep/cuda/backend.h"
#include "ep/cuda/phases.h"

/* Half of the multiprocessors, as two phases run at once. */
static void halve(struct ep_group_view *group)
{
    group->sm_budget = (group->sm_budget + 1) / 2;
}

#define LAUNCH(name, args, stream) ep_cuda_good(ep_cuda_##name(args, cuda->multiprocessors, stream))
/* All of a phase without parts. */
#define WHOLE(name) (cuda->coder != NULL ? ep_cuda_coded_##name(cuda, args, stream) : LAUNCH(name, args, stream))

/* A phase on the side stream. Without rows the last part alone is launched, but all end. */
#define ON_SIDE(name)                                                                     \
    static bool name##_on_side(const struct ep_cuda *cuda, struct ep_##name##_args *args) \
    {                                                                                     \
        const uint32_t parts = args->group.at.parts;                                      \
        bool good = true;                                                                 \
        halve(&args->group);                                                              \
        ep_cuda_side_view(&args->group);                                                  \
        if (cuda->coder != NULL && args->rows != NULL)                                    \
            return ep_cuda_coded_##name(cuda, args, cuda->side);                          \
        for (args->part = 0; args->part < parts && good; args->part++) {                  \
            if (args->rows != NULL || args->part + 1 == parts)                            \
                good = LAUNCH(name, args, cuda->side);                                    \
            good = good && ep_cuda_record_part(cuda, args->part);                         \
        }                                                                                 \
        return good;                                                                      \
    }
ON_SIDE(send)
ON_SIDE(stage)

/* A phase on the call's stream. Coded chunks go by parts in the coder; without rows the last part alone is waited for.
 */
#define BY_PARTS(name, alone)                                                                                   \
    static bool name##_by_parts(const struct ep_cuda *cuda, struct ep_##name##_args *args, cudaStream_t stream) \
    {                                                                                                           \
        const uint32_t parts = args->group.at.parts;                                                            \
        bool good = true;                                                                                       \
        halve(&args->group);                                                                                    \
        if (cuda->coder != NULL)                                                                                \
            return ep_cuda_coded_##name(cuda, args, stream);                                                    \
        for (args->part = (alone) ? parts - 1 : 0; args->part < parts && good; args->part++)                    \
            good = ep_cuda_wait_part(cuda, &args->group, args->part, stream) && LAUNCH(name, args, stream);     \
        return good;                                                                                            \
    }
BY_PARTS(receive, args->rows == NULL)
BY_PARTS(reduce, false)

bool ep_cuda_run_send(const struct ep_cuda *cuda, const struct ep_send_args *args, cudaStream_t stream)
{
    struct ep_send_args own = *args;

    if (args->group.at.parts == 0 || args->signal != EP_FLAG_DATA)
        return WHOLE(send);
    return ep_cuda_side_fork(cuda, stream) && send_on_side(cuda, &own);
}

bool ep_cuda_run_receive(const struct ep_cuda *cuda, const struct ep_receive_args *args, cudaStream_t stream)
{
    struct ep_receive_args own = *args;

    return args->group.at.parts == 0 ? WHOLE(receive) : receive_by_parts(cuda, &own, stream);
}

bool ep_cuda_run_stage(const struct ep_cuda *cuda, const struct ep_stage_args *args, cudaStream_t stream)
{
    const struct ep_settle_args begin = {.group = args->group, .handle = args->handle};
    struct ep_stage_args own = *args;

    if (args->group.at.parts == 0)
        return WHOLE(stage);
    return LAUNCH(begin, &begin, stream) && ep_cuda_side_fork(cuda, stream) && stage_on_side(cuda, &own);
}

bool ep_cuda_run_send_back(const struct ep_cuda *cuda, const struct ep_send_back_args *args, cudaStream_t stream)
{
    return WHOLE(send_back);
}

bool ep_cuda_run_reduce(const struct ep_cuda *cuda, const struct ep_reduce_args *args, cudaStream_t stream)
{
    struct ep_reduce_args own = *args;

    return args->group.at.parts == 0 ? WHOLE(reduce) : reduce_by_parts(cuda, &own, stream);
}
