#include <stdlib.h>

#include "collective/engine/ccomm.h"

/* Links that carry more than this to all others, in bytes a second, go by NVLink: nothing through host memory does. */
#define FAST 100e9

bool shm_wants(const struct coll_ccomm *ccomm)
{
    const double others = ccomm->ranks - 1, per = ccomm->cost.per[LINK_GATHER];
    if (ccomm->host.settings.shm == COLL_SHM_NEVER || ccomm->ranks > SHM_RANKS_MAX || ccomm->shared.multi_host)
        return false;
    return ccomm->host.settings.shm == COLL_SHM_ALWAYS || (!ccomm->forced && per * FAST > others);
}

/* ---- The memory, of all that want it ----------------------------------------------------------------------------- */

/* Rank 0's, as on a single host it leads. Failing to make or reach it is no failure: NCCL moves messages then. */
bool shm_gather_made(struct coll_ccomm *ccomm)
{
    struct shm_shared *shm = &ccomm->shm;
    const bool able = ccomm->gpu->has_shm();
    shm->good = able && (ccomm->rank != 0 || segment_make(&shm->segment, shm_size((uint32_t)ccomm->ranks),
                                                          (struct segment_hole){0}, &shm->info));
    const bool told = ccomm_gather(ccomm, &shm->info, sizeof(shm->info));
    shm->good &= told;
    return told;
}

static bool map_channels(struct coll_ccomm *ccomm, const struct segment_info *info)
{
    struct shm_shared *shm = &ccomm->shm;
    const uint32_t ranks = (uint32_t)ccomm->ranks;
    if (ccomm->rank != 0 && !segment_open(&shm->segment, shm_size(ranks), info))
        return false;
    uint8_t *reached = ccomm->gpu->register_host(shm->segment.memory, shm->segment.size);
    if (reached == NULL)
        return false;
    shm->pinned = true;
    uint8_t *counters = reached + SHM_COUNTERS_AT;
    shm->channels = (struct shm_channels){
        .counters = (struct shm_counters *)(void *)counters,
        .slots = counters + shm_counters_size(ranks),
        .moved = ccomm->gpu->allocate(shm_moved_count(ranks) * sizeof(*shm->channels.moved), true),
        .rank = (uint32_t)ccomm->rank,
        .ranks = ranks,
        .channels = shm_channels_each(ranks),
    };
    return shm->channels.moved != NULL;
}

bool shm_reach(struct coll_ccomm *ccomm)
{
    struct segment_info *infos = ccomm_gathered(ccomm, sizeof(*infos));
    ccomm->shm.good = ccomm->shm.good && infos != NULL && map_channels(ccomm, &infos[0]);
    free(infos);
    return true; /* others wait for what this rank gathers next */
}

bool shm_gather_reached(struct coll_ccomm *ccomm)
{
    return ccomm_gather_good(ccomm, ccomm->shm.good);
}

bool shm_accept(struct coll_ccomm *ccomm)
{
    bool all;
    const bool moved = ccomm_all_good(ccomm, &all);
    segment_settle(&ccomm->shm.segment);
    if (!all && !ccomm_has_failed(ccomm)) /* freeing GPU memory would wait for what a rank that has gone holds up */
        shm_end(ccomm);
    return moved;
}

uint64_t shm_bytes(const struct coll_ccomm *ccomm)
{
    return ccomm->shm.segment.memory != NULL ? ccomm->shm.segment.size : 0;
}

uint64_t shm_gpu_bytes(const struct coll_ccomm *ccomm)
{
    const struct shm_channels *channels = &ccomm->shm.channels;
    return channels->moved != NULL ? shm_moved_count(channels->ranks) * sizeof(*channels->moved) : 0;
}

void shm_end(struct coll_ccomm *ccomm)
{
    struct shm_shared *shm = &ccomm->shm;
    ccomm->gpu->release(shm->channels.moved);
    if (shm->pinned)
        ccomm->gpu->unregister_host(shm->segment.memory);
    segment_close(&shm->segment);
    *shm = (struct shm_shared){.segment.file = -1};
}

/* ---- Moving ------------------------------------------------------------------------------------------------------ */

bool shm_move(const struct coll_ccomm *ccomm, const struct gpu_shm *message, coll_stream stream)
{
    struct gpu_shm what = *message;
    what.channels = ccomm->shm.channels;
    what.host_status = ccomm->host_status;
    return what.bytes == 0 || ccomm->gpu->shm(&what, stream);
}
