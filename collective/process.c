/* Events of the process as a whole: it forks, it ends. */
#include <pthread.h>
#include <stdbool.h>

#include "collective/card.h"
#include "collective/load.h"
#include "collective/patient.h"
#include "collective/report.h"
#include "collective/track.h"

/* A child that has not called NCCL itself has nothing to report. */
static bool is_child;

static void before_fork(void)
{
    coll_library_lock();
    coll_patient_lock();
    coll_track_lock();
    coll_card_lock();
}

static void in_parent(void)
{
    coll_card_unlock();
    coll_track_unlock();
    coll_patient_unlock();
    coll_library_unlock();
}

static void in_child(void)
{
    coll_track_clear();
    coll_card_clear();
    is_child = true;
    coll_card_unlock();
    coll_track_unlock();
    coll_patient_unlock();
    coll_library_unlock_in_child();
}

/* The library is linked with -z nodelete, so these stay until the process ends. */
__attribute__((constructor)) static void at_start(void)
{
    pthread_atfork(before_fork, in_parent, in_child);
}

__attribute__((destructor)) static void at_end(void)
{
    if (!is_child || coll_track_any())
        coll_report_process();
}
