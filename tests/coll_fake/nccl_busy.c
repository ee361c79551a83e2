/* Communicators that do not block: what was asked for is done by and by, while the program asks whether it is. */
#include <sched.h>
#include <string.h>

#include "tests/coll_fake/nccl.h"

enum { QUESTIONS = 3 };

struct deferred {
    struct deferred *next;
    struct item *items;
    unsigned count;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void fake_busy_make(coll_comm comm)
{
    pthread_mutex_lock(&lock);
    comm->patient = comm->making = true;
    comm->questions = QUESTIONS;
    pthread_mutex_unlock(&lock);
}

/* Until it is over nobody has the child. */
void fake_busy_split(coll_comm comm, coll_comm *child)
{
    pthread_mutex_lock(&lock);
    *child = NULL;
    comm->child = child;
    comm->questions = QUESTIONS;
    pthread_mutex_unlock(&lock);
}

void fake_busy_launch(const struct item *items, unsigned count)
{
    struct deferred *deferred = calloc(1, sizeof(*deferred));
    demand(deferred != NULL && (deferred->items = malloc(count * sizeof(*items))) != NULL);
    memcpy(deferred->items, items, count * sizeof(*items));
    deferred->count = count;
    pthread_mutex_lock(&lock);
    deferred->next = items[0].comm->deferred;
    items[0].comm->deferred = deferred;
    items[0].comm->questions = QUESTIONS;
    pthread_mutex_unlock(&lock);
}

static void end_deferred(coll_comm comm, bool launch)
{
    for (struct deferred *deferred; (deferred = comm->deferred) != NULL;) {
        comm->deferred = deferred->next;
        if (launch)
            fake_nccl_launch(deferred->items, deferred->count);
        free(deferred->items);
        free(deferred);
    }
}

static void end_split(coll_comm comm)
{
    if (comm->child == NULL)
        return;
    coll_comm made = fake_split_finish(comm);
    if (made != NULL)
        made->patient = true;
    *comm->child = made;
    comm->child = NULL;
}

/* A question goes by. */
static bool is_busy(coll_comm comm)
{
    if ((comm->making && !fake_comm_is_whole(comm)) || (comm->child != NULL && !fake_split_is_told(comm)))
        return true;
    if (comm->questions > 0 && --comm->questions > 0)
        return true;
    comm->making = false;
    end_split(comm);
    end_deferred(comm, true);
    return false;
}

bool fake_busy_is(coll_comm comm)
{
    pthread_mutex_lock(&lock);
    const bool busy = comm->making || comm->questions > 0;
    pthread_mutex_unlock(&lock);
    return busy;
}

void fake_busy_end(coll_comm comm)
{
    pthread_mutex_lock(&lock);
    end_deferred(comm, false);
    pthread_mutex_unlock(&lock);
}

#pragma GCC visibility push(default)
int pncclCommGetAsyncError(coll_comm comm, coll_result *error)
{
    if (comm == NULL)
        return INVALID_ARGUMENT;
    demand(!atomic_exchange(&comm->asked, true) || !comm->patient); /* NCCL frees twice what was in progress */
    if (comm->patient)
        sched_yield();
    pthread_mutex_lock(&lock);
    *error = is_busy(comm) ? COLL_IN_PROGRESS : COLL_SUCCESS;
    pthread_mutex_unlock(&lock);
    comm->asked = false;
    return COLL_SUCCESS;
}
ALIAS(CommGetAsyncError)
#pragma GCC visibility pop
