#include "collective/engine/figures.h"

#include <stdio.h>
#include <string.h>

#include "collective/engine/ccomm.h"
#include "collective/engine/op.h"

/* GB/s; 0: not measured. */
static double rate_of(double per_byte)
{
    return per_byte > 0 ? 1e-9 / per_byte : 0;
}

static void fill_links(const struct coll_ccomm *ccomm, struct coll_figures *figures)
{
    const struct link_costs *cost = &ccomm->cost;
    figures->measured = !ccomm->forced;
    figures->start_us = cost->start * 1e6;
    figures->gather = rate_of(cost->per[LINK_GATHER]);
    figures->exchange = rate_of(cost->per[LINK_EXCHANGE]);
    figures->scatter = rate_of(cost->per[LINK_SCATTER]);
    figures->overflow = rate_of(cost->overflow);
    figures->rails = ccomm->shared.rails.each;
    figures->local = rate_of(figures->rails > 0 ? cost->per[LINK_LOCAL] : 0);
    figures->rail = rate_of(figures->rails > 0 ? cost->per[LINK_RAIL] : 0);
    figures->shm = rate_of(cost->per[LINK_SHM]);
    figures->encode = rate_of(cost->encode);
    figures->decode = rate_of(cost->decode);
}

/* Sends and receives are never compared: what ranks share of them stays untouched, as it takes memory only where it is
 * used. */
static void fill_kind(struct coll_ccomm *ccomm, unsigned local_class, struct coll_figures *figures)
{
    const enum coll_operation operation = ccomm_local_class_operation(ccomm, local_class);
    struct coll_kind_figures *kind = &figures->of[operation][ccomm_local_class_type(local_class)];
    uint64_t compared;
    kind->overflows += tally_overflows(ccomm, local_class);
    if (operation == COLL_SEND || operation == COLL_RECV)
        return;
    const double ratio = op_class_compared(ccomm, local_class, &compared);
    if (compared > 0 && kind->compared == 0) {
        kind->compared = compared;
        kind->ratio = ratio;
    }
}

void ccomm_figures(struct coll_ccomm *ccomm, bool look, struct coll_figures *figures)
{
    memset(figures, 0, sizeof(*figures));
    if (look)
        tally_read(ccomm);
    for (int rank = 0; rank < ccomm->ranks; rank++)
        figures->hosts += ccomm->shared.groups.leader[rank] == rank;
    figures->memory = ccomm_memory(ccomm);
    figures->host_memory = host_bytes(ccomm) + shm_bytes(ccomm);
    figures->hosted = staging_hosted(&ccomm->stagings);
    snprintf(figures->table, sizeof(figures->table), "%s", ccomm->table);
    fill_links(ccomm, figures);
    for (unsigned local_class = 0; local_class < ccomm_local_classes(ccomm); local_class++)
        fill_kind(ccomm, local_class, figures);
}
