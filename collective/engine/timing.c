#include "collective/engine/compare.h"
#include "collective/engine/op.h"

bool timings_make(struct coll_ccomm *ccomm)
{
    bool good = true;
    ccomm->timings.kept = ccomm->rank == 0 && !ccomm->forced;
    for (unsigned i = 0; i < TIMINGS && good && ccomm->timings.kept; i++) {
        struct timing *timing = &ccomm->timings.of[i];
        timing->begin = ccomm->gpu->event_make(true);
        timing->end = ccomm->gpu->event_make(true);
        good = timing->begin != NULL && timing->end != NULL;
    }
    return good;
}

void timings_end(struct coll_ccomm *ccomm)
{
    for (unsigned i = 0; i < TIMINGS; i++) {
        struct timing *timing = &ccomm->timings.of[i];
        if (timing->begin != NULL)
            ccomm->gpu->event_end(timing->begin);
        if (timing->end != NULL)
            ccomm->gpu->event_end(timing->end);
        *timing = (struct timing){0};
    }
}

void timing_begin(struct coll_op *op)
{
    struct coll_ccomm *ccomm = op->ccomm;
    for (unsigned i = 0; i < TIMINGS && op->timed && op->timing == NULL; i++) {
        struct timing *timing = &ccomm->timings.of[i];
        if (timing->busy || !ccomm->gpu->event_record(timing->begin, op->call.stream))
            continue;
        timing->local_class = op->of[0].local_class;
        timing->raw = op->left_raw;
        timing->plain = op->plain;
        op->timing = timing;
    }
}

void timing_end(const struct coll_op *op)
{
    if (op->timing != NULL)
        op->timing->busy = op->ccomm->gpu->event_record(op->timing->end, op->call.stream);
}

/* Whether an event is over may only be asked with the GPU entered (gpu.h). */
void timings_read(struct coll_ccomm *ccomm)
{
    const struct gpu_ops *gpu = ccomm->gpu;
    bool any = false;
    int before;
    for (unsigned i = 0; i < TIMINGS; i++)
        any |= ccomm->timings.of[i].busy;
    if (!any || !gpu->enter(ccomm->device, &before))
        return;
    for (unsigned i = 0; i < TIMINGS; i++) {
        struct timing *timing = &ccomm->timings.of[i];
        if (!timing->busy || !gpu->event_over(timing->end))
            continue;
        const double seconds = gpu->event_seconds(timing->begin, timing->end);
        timing->busy = false;
        if (seconds > 0 && timing->plain > 0)
            op_class_timed(ccomm, timing->local_class, timing->raw, seconds / timing->plain);
    }
    gpu->leave(before);
}
