#include "collective/engine/tally.h"

#include <stdlib.h>

#include "collective/engine/ccomm.h"

bool tally_make(struct coll_ccomm *ccomm)
{
    pthread_mutex_init(&ccomm->tally.lock, NULL);
    ccomm->tally.classes = calloc(ccomm_local_classes(ccomm), sizeof(*ccomm->tally.classes));
    return ccomm->tally.classes != NULL;
}

void tally_end(struct coll_ccomm *ccomm)
{
    if (ccomm->tally.classes == NULL)
        return;
    pthread_mutex_destroy(&ccomm->tally.lock);
    free(ccomm->tally.classes);
}

static void note(struct coll_ccomm *ccomm, const struct report *report)
{
    if (report->local_class >= ccomm_local_classes(ccomm))
        return;
    struct tally_class *of = &ccomm->tally.classes[report->local_class];
    of->reported = report->count > of->reported ? report->count : of->reported;
    of->probes += (report->share & REPORT_PROBE) != 0;
}

/* A report may be overwritten while it is copied: then its number is known afterwards to be too old. */
static bool copy(const struct host_status *host_status, uint64_t number, struct report *report)
{
    const struct report *from = &host_status->reports[number % REPORTS_MAX];
    report->count = __atomic_load_n(&from->count, __ATOMIC_RELAXED);
    report->local_class = __atomic_load_n(&from->local_class, __ATOMIC_RELAXED);
    report->share = __atomic_load_n(&from->share, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __atomic_load_n(&host_status->reported, __ATOMIC_RELAXED) - number < REPORTS_MAX;
}

void tally_read(struct coll_ccomm *ccomm)
{
    const struct host_status *host_status = ccomm->host_status;
    struct tally *tally = &ccomm->tally;
    const uint64_t reported = __atomic_load_n(&host_status->reported, __ATOMIC_ACQUIRE);
    struct report report;
    if (__atomic_load_n(&tally->read, __ATOMIC_RELAXED) == reported) /* as mostly */
        return;
    pthread_mutex_lock(&tally->lock);
    uint64_t number = tally->read;
    if (number < reported && reported - number > REPORTS_MAX)
        number = reported - REPORTS_MAX;
    for (; number < reported; number++)
        if (copy(host_status, number, &report))
            note(ccomm, &report);
    __atomic_store_n(&tally->read, number, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&tally->lock);
}

uint64_t tally_overflows(struct coll_ccomm *ccomm, unsigned local_class)
{
    pthread_mutex_lock(&ccomm->tally.lock);
    const struct tally_class of = ccomm->tally.classes[local_class];
    pthread_mutex_unlock(&ccomm->tally.lock);
    return of.reported > of.probes ? of.reported - of.probes : 0;
}
