/* Phases that move rows: as kernels alone or with the coder's launches; with parts ("Parts" in ep/kernels.h) send and
 * stage on the side stream, and receive and reduce on the call's, part by part after them. */
#include "ep/cuda/backend.h"
#include "ep/cuda/phases.h"

#define LAUNCH(name, args, stream) ep_cuda_good(ep_cuda_##name(args, cuda->multiprocessors, stream))
/* All of a phase without parts. */
#define WHOLE(name) (args->group.coded ? ep_cuda_coded_##name(cuda, args, stream) : LAUNCH(name, args, stream))

/* A phase on the side stream. Without rows the last part alone is launched, but all end. */
#define ON_SIDE(name)                                                                     \
    static bool name##_on_side(const struct ep_cuda *cuda, struct ep_##name##_args *args) \
    {                                                                                     \
        const uint32_t parts = args->group.at.parts;                                      \
        bool good = true;                                                                 \
        ep_cuda_side_view(&args->group);                                                  \
        if (args->group.coded && args->rows != NULL)                                      \
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
        const struct ep_group_view whole = args->group;                                                         \
        const uint32_t parts = whole.at.parts;                                                                  \
        bool good = true;                                                                                       \
        if (whole.coded)                                                                                        \
            return ep_cuda_coded_##name(cuda, args, stream);                                                    \
        for (args->part = (alone) ? parts - 1 : 0; args->part < parts && good; args->part++) {                  \
            ep_cuda_share_budget(cuda, &whole, args->part, &args->group);                                       \
            good = ep_cuda_wait_part(cuda, args->part, stream) && LAUNCH(name, args, stream);                   \
        }                                                                                                       \
        return good;                                                                                            \
    }
BY_PARTS(receive, args->rows == NULL)
BY_PARTS(reduce, false)

/* ---- Groups of several hosts: after what signals, what tells the proxy of it ---------------------------------------
 */

static bool tell(const struct ep_cuda *cuda, const struct ep_manifest_args *args, cudaStream_t stream)
{
    return args->group.remote == 0 || LAUNCH(manifest, args, stream);
}

/* A signal about nothing. */
static bool tell_signal(const struct ep_cuda *cuda, const struct ep_group_view *group,
                        const struct ep_handle_view *handle, enum ep_flag kind, cudaStream_t stream)
{
    const struct ep_manifest_args args = {.group = *group, .handle = *handle, .kind = kind};

    return tell(cuda, &args, stream);
}

/* The same of a phase on the side stream: the progress of its one part is about all of it. Then the part ends. */
static bool tell_side(const struct ep_cuda *cuda, struct ep_manifest_args *args, cudaStream_t stream)
{
    const enum ep_flag kind = args->kind;

    args->kind = EP_FLAG_PROGRESS;
    return args->group.remote == 0 ||
           (tell(cuda, args, stream) && tell_signal(cuda, &args->group, &args->handle, kind, stream) &&
            ep_cuda_record_part(cuda, 0));
}

static struct ep_manifest_args sent_by(const struct ep_send_args *args)
{
    return (struct ep_manifest_args){.group = args->group,
                                     .handle = args->handle,
                                     .kind = args->signal,
                                     .about = EP_ABOUT_SENT,
                                     .row_bytes = args->row_bytes,
                                     .scale_bytes = args->scale_bytes,
                                     .lists = args->lists,
                                     .weights = args->weights != NULL,
                                     .scales = args->scales != NULL,
                                     .rows = args->rows != NULL};
}

static struct ep_manifest_args staged_by(const struct ep_stage_args *args)
{
    return (struct ep_manifest_args){.group = args->group,
                                     .handle = args->handle,
                                     .kind = EP_FLAG_READY,
                                     .about = EP_ABOUT_STAGED,
                                     .announce = args->announce,
                                     .row_bytes = args->row_bytes,
                                     .weights = args->weights != NULL,
                                     .rows = args->rows != NULL,
                                     .announced = true};
}

/* ---- Phases ------------------------------------------------------------------------------------------------------ */

bool ep_cuda_run_announce(const struct ep_cuda *cuda, const struct ep_announce_args *args, cudaStream_t stream)
{
    const struct ep_manifest_args told = {
        .group = args->group, .handle = args->handle, .kind = EP_FLAG_READY, .announced = true};

    return LAUNCH(announce, args, stream) && tell(cuda, &told, stream);
}

/* Coded: rows for the rank itself go to the outputs on the call's stream, while the side stream encodes the first. */
static bool give_own(const struct ep_cuda *cuda, struct ep_send_args *side, cudaStream_t stream)
{
    struct ep_send_args own = *side;

    if (!side->group.coded || side->own == NULL || side->rows == NULL)
        return true;
    side->own = NULL;
    side->keep_own = true;
    own.weights = NULL;
    own.scales = NULL;
    own.group.sm_budget = ep_cuda_half_budget(&own.group);
    return LAUNCH(send, &own, stream);
}

bool ep_cuda_run_send(const struct ep_cuda *cuda, const struct ep_send_args *args, cudaStream_t stream)
{
    struct ep_manifest_args told = sent_by(args);
    struct ep_send_args side = *args;

    if (args->group.at.parts == 0 || args->signal != EP_FLAG_DATA)
        return WHOLE(send) && tell(cuda, &told, stream);
    ep_cuda_side_view(&told.group);
    return ep_cuda_side_fork(cuda, stream) && give_own(cuda, &side, stream) && send_on_side(cuda, &side) &&
           tell_side(cuda, &told, cuda->side);
}

bool ep_cuda_run_receive(const struct ep_cuda *cuda, const struct ep_receive_args *args, cudaStream_t stream)
{
    struct ep_receive_args own = *args;

    return args->group.at.parts == 0 ? WHOLE(receive) : receive_by_parts(cuda, &own, stream);
}

bool ep_cuda_run_stage(const struct ep_cuda *cuda, const struct ep_stage_args *args, cudaStream_t stream)
{
    const struct ep_settle_args begin = {.group = args->group, .handle = args->handle};
    struct ep_manifest_args told = staged_by(args);
    struct ep_stage_args own = *args;

    if (args->group.at.parts == 0)
        return WHOLE(stage) && tell(cuda, &told, stream);
    ep_cuda_side_view(&told.group);
    return LAUNCH(begin, &begin, stream) && ep_cuda_side_fork(cuda, stream) && stage_on_side(cuda, &own) &&
           tell_side(cuda, &told, cuda->side);
}

bool ep_cuda_run_send_back(const struct ep_cuda *cuda, const struct ep_send_back_args *args, cudaStream_t stream)
{
    const struct ep_manifest_args told = {.group = args->group,
                                          .handle = args->handle,
                                          .kind = EP_FLAG_DATA,
                                          .about = EP_ABOUT_BACK,
                                          .row_bytes = args->row_bytes};

    return WHOLE(send_back) && tell(cuda, &told, stream);
}

bool ep_cuda_run_reduce(const struct ep_cuda *cuda, const struct ep_reduce_args *args, cudaStream_t stream)
{
    struct ep_reduce_args own = *args;

    if (!(args->group.at.parts == 0 ? WHOLE(reduce) : reduce_by_parts(cuda, &own, stream)))
        return false;
    return args->group.low_latency || tell_signal(cuda, &args->group, &args->handle, EP_FLAG_DONE, stream);
}
