/* Communicators of the fake NCCL: made by all ranks together, which are threads. */
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "tests/fakes/nccl.h"

static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
static struct world *worlds; /* that lack ranks */

enum { ID_USED = 40 }; /* bytes; what is behind them is for others */

/* ---- Worlds ------------------------------------------------------------------------------------------------------ */

static struct world *world_make(int ranks)
{
    struct world *world = calloc(1, sizeof(*world));
    demand(world != NULL && ranks > 0 && ranks <= WORLD_MAX);
    pthread_mutex_init(&world->lock, NULL);
    pthread_cond_init(&world->changed, NULL);
    world->ranks = ranks;
    return world;
}

static void world_drop(struct world *world)
{
    pthread_mutex_lock(&world->lock);
    const bool last = --world->references == 0;
    pthread_mutex_unlock(&world->lock);
    if (!last)
        return;
    pthread_mutex_destroy(&world->lock);
    pthread_cond_destroy(&world->changed);
    free(world);
}

static struct world *world_of(const coll_id *id, int ranks)
{
    pthread_mutex_lock(&making);
    struct world **at = &worlds;
    while (*at != NULL && memcmp(&(*at)->id, id, ID_USED) != 0)
        at = &(*at)->next;
    struct world *world = *at;
    if (world == NULL) {
        world = *at = world_make(ranks);
        world->id = *id;
    }
    demand(world->ranks == ranks);
    world->references++;
    if (++world->joined == ranks)
        *at = world->next;
    pthread_mutex_unlock(&making);
    return world;
}

static coll_comm comm_make(struct world *world, int rank, int device)
{
    coll_comm comm = calloc(1, sizeof(*comm));
    demand(comm != NULL && rank >= 0 && rank < world->ranks);
    *comm = (struct ncclComm){.world = world, .rank = rank, .device = device};
    world->devices[rank] = device;
    return comm;
}

static bool is_complete(const struct world *world)
{
    pthread_mutex_lock(&making);
    const bool complete = world->joined == world->ranks;
    pthread_mutex_unlock(&making);
    return complete;
}

coll_comm fake_comm_begin(int ranks, const coll_id *id, int rank, int device)
{
    struct world *world = world_of(id, ranks);
    pthread_mutex_lock(&world->lock);
    if (is_complete(world))
        pthread_cond_broadcast(&world->changed);
    pthread_mutex_unlock(&world->lock);
    return comm_make(world, rank, device);
}

bool fake_comm_is_whole(coll_comm comm)
{
    return is_complete(comm->world);
}

void fake_comm_finish(coll_comm comm)
{
    struct world *world = comm->world;
    pthread_mutex_lock(&world->lock);
    while (!is_complete(world))
        pthread_cond_wait(&world->changed, &world->lock);
    pthread_mutex_unlock(&world->lock);
}

/* ---- Split ------------------------------------------------------------------------------------------------------- */

static bool goes_before(const struct world *world, int a, int b)
{
    const int x = world->splitting.keys[a], y = world->splitting.keys[b];
    return x != y ? x < y : a < b;
}

/* By the last rank that tells. */
static void host_groups_of(struct world *world)
{
    for (int rank = 0; rank < world->ranks; rank++) {
        const int color = world->splitting.colors[rank];
        int before = 0, same = 0, first = rank;
        for (int other = 0; other < world->ranks; other++) {
            if (world->splitting.colors[other] != color)
                continue;
            same++;
            before += goes_before(world, other, rank);
            first = other < first ? other : first;
        }
        if (first == rank && color >= 0) {
            world->splitting.made[rank] = world_make(same);
            world->splitting.made[rank]->references = world->splitting.made[rank]->joined = same;
        }
        world->splitting.made[rank] = color >= 0 ? world->splitting.made[first] : NULL;
        world->splitting.rank_of[rank] = before;
    }
}

void fake_split_begin(coll_comm comm, int color, int key)
{
    struct world *world = comm->world;
    pthread_mutex_lock(&world->lock);
    while (world->splitting.told == world->ranks) /* some have yet to take what the split before made */
        pthread_cond_wait(&world->changed, &world->lock);
    world->splitting.colors[comm->rank] = color;
    world->splitting.keys[comm->rank] = key;
    if (++world->splitting.told == world->ranks)
        host_groups_of(world);
    pthread_cond_broadcast(&world->changed);
    pthread_mutex_unlock(&world->lock);
}

bool fake_split_is_told(coll_comm comm)
{
    pthread_mutex_lock(&comm->world->lock);
    const bool told = comm->world->splitting.told == comm->world->ranks;
    pthread_mutex_unlock(&comm->world->lock);
    return told;
}

coll_comm fake_split_finish(coll_comm comm)
{
    struct world *world = comm->world;
    pthread_mutex_lock(&world->lock);
    while (world->splitting.told < world->ranks)
        pthread_cond_wait(&world->changed, &world->lock);
    struct world *made = world->splitting.made[comm->rank];
    const int rank = world->splitting.rank_of[comm->rank];
    if (++world->splitting.taken == world->ranks)
        world->splitting.told = world->splitting.taken = 0;
    pthread_cond_broadcast(&world->changed);
    pthread_mutex_unlock(&world->lock);
    return made != NULL ? comm_make(made, rank, comm->device) : NULL;
}

/* ---- The end, and what is known of one --------------------------------------------------------------------------- */

void fake_world_wake(struct world *world)
{
    pthread_cond_broadcast(&world->changed);
    for (struct running *running = world->running; running != NULL; running = running->next)
        pthread_cond_signal(&running->done);
}

static void release(coll_comm comm)
{
    struct world *world = comm->world;
    fake_busy_end(comm);
    if (comm->last != NULL)
        fake_event_end(comm->last);
    free(comm);
    world_drop(world);
}

void fake_comm_work_over(coll_comm comm)
{
    struct world *world = comm->world;
    pthread_mutex_lock(&world->lock);
    const bool last = --comm->underway == 0 && comm->aborted;
    pthread_cond_broadcast(&world->changed);
    pthread_mutex_unlock(&world->lock);
    if (last)
        release(comm);
}

/* What an abort leaves on streams does nothing when they come to it. */
static void end(coll_comm comm, bool abort)
{
    struct world *world = comm->world;
    pthread_mutex_lock(&world->lock);
    comm->aborted |= abort;
    fake_world_wake(world);
    while (comm->underway > 0 && !abort)
        pthread_cond_wait(&world->changed, &world->lock);
    const bool over = comm->underway == 0;
    pthread_mutex_unlock(&world->lock);
    if (over)
        release(comm);
}

#pragma GCC visibility push(default)
int pncclCommDestroy(coll_comm comm)
{
    if (comm == NULL)
        return COLL_SUCCESS;
    end(comm, false);
    return COLL_SUCCESS;
}
ALIAS(CommDestroy)

int pncclCommAbort(coll_comm comm)
{
    if (comm == NULL)
        return COLL_SUCCESS;
    end(comm, true);
    return COLL_SUCCESS;
}
ALIAS(CommAbort)

/* Blocks until nothing is under way. */
int pncclCommFinalize(coll_comm comm)
{
    struct world *world = comm->world;
    pthread_mutex_lock(&world->lock);
    while (comm->underway > 0)
        pthread_cond_wait(&world->changed, &world->lock);
    pthread_mutex_unlock(&world->lock);
    return COLL_SUCCESS;
}
ALIAS(CommFinalize)

/* Of one rank of those that are to grow. */
int pncclCommGetUniqueId(coll_comm comm, coll_id *id)
{
    (void)pncclGetUniqueId(id);
    pthread_mutex_lock(&comm->world->lock);
    comm->world->grown = *id;
    pthread_cond_broadcast(&comm->world->changed);
    pthread_mutex_unlock(&comm->world->lock);
    return COLL_SUCCESS;
}
ALIAS(CommGetUniqueId)

/* Waits for the GPU, as NCCL does. As if NCCL had 1000 bytes of what it frees, and 2000 others. */
int pncclCommSuspend(coll_comm comm, int flags)
{
    demand(!comm->suspended && flags == 1);
    fake_device_wait(comm->device);
    comm->suspended = true;
    return COLL_SUCCESS;
}
ALIAS(CommSuspend)

int pncclCommResume(coll_comm comm)
{
    demand(comm->suspended);
    comm->suspended = false;
    return COLL_SUCCESS;
}
ALIAS(CommResume)

int pncclCommMemStats(coll_comm comm, int statistic, uint64_t *value)
{
    const uint64_t values[] = {1000, comm->suspended, 2000, 3000};
    demand(statistic >= 0 && statistic < 4);
    *value = values[statistic];
    return COLL_SUCCESS;
}
ALIAS(CommMemStats)

int pncclSetEncryption(const coll_encryption *encryption)
{
    demand(encryption->head.magic == COLL_CONFIG_MAGIC && encryption->head.size == sizeof(*encryption));
    return COLL_SUCCESS;
}
ALIAS(SetEncryption)

/* Sends that are watched (fake.h) stand for what it would change. */
int pncclCommRegister(coll_comm comm, void *buffer, size_t size, void **handle)
{
    demand(comm != NULL && size > 0);
    *handle = buffer;
    return COLL_SUCCESS;
}
ALIAS(CommRegister)

int pncclCommDeregister(coll_comm comm, void *handle)
{
    demand(comm != NULL && handle != NULL);
    return COLL_SUCCESS;
}
ALIAS(CommDeregister)

int pncclCommRevoke(coll_comm comm, int flags)
{
    demand(flags == 0);
    pthread_mutex_lock(&comm->world->lock);
    comm->revoked = true;
    fake_world_wake(comm->world);
    pthread_mutex_unlock(&comm->world->lock);
    return COLL_SUCCESS;
}
ALIAS(CommRevoke)

int pncclCommCount(coll_comm comm, int *count)
{
    demand(!fake_busy_is(comm));
    fake_nccl.counted++;
    *count = comm->world->ranks;
    return COLL_SUCCESS;
}
ALIAS(CommCount)

int pncclCommUserRank(coll_comm comm, int *rank)
{
    demand(!fake_busy_is(comm));
    *rank = comm->rank;
    return COLL_SUCCESS;
}
ALIAS(CommUserRank)

int pncclCommCuDevice(coll_comm comm, int *device)
{
    *device = comm->device;
    return COLL_SUCCESS;
}
ALIAS(CommCuDevice)

int pncclGetVersion(int *version)
{
    *version = 22809;
    return COLL_SUCCESS;
}
ALIAS(GetVersion)

int pncclGetUniqueId(coll_id *id)
{
    static atomic_int number;
    memset(id, 0, sizeof(*id));
    snprintf(id->bytes, sizeof(id->bytes), "fake %d of %d", atomic_fetch_add(&number, 1), getpid());
    return COLL_SUCCESS;
}
ALIAS(GetUniqueId)

const char *pncclGetErrorString(coll_result result)
{
    return result == COLL_SUCCESS ? "no error" : "an error of the fake NCCL";
}
ALIAS(GetErrorString)
#pragma GCC visibility pop

/* ---- Communicators that do not block: what was asked for is done step by step, while the program polls ----------- */

enum { QUESTIONS = 3 };

struct deferred {
    struct deferred *next;
    struct item *items;
    unsigned count;
};

static pthread_mutex_t busy_lock = PTHREAD_MUTEX_INITIALIZER;

void fake_busy_make(coll_comm comm)
{
    pthread_mutex_lock(&busy_lock);
    comm->nonblocking = comm->making = true;
    comm->questions = QUESTIONS;
    pthread_mutex_unlock(&busy_lock);
}

/* Until it is over nobody has the child. */
void fake_busy_split(coll_comm comm, coll_comm *child)
{
    pthread_mutex_lock(&busy_lock);
    *child = NULL;
    comm->child = child;
    comm->questions = QUESTIONS;
    pthread_mutex_unlock(&busy_lock);
}

void fake_busy_launch(const struct item *items, unsigned count)
{
    struct deferred *deferred = calloc(1, sizeof(*deferred));
    demand(deferred != NULL && (deferred->items = malloc(count * sizeof(*items))) != NULL);
    memcpy(deferred->items, items, count * sizeof(*items));
    deferred->count = count;
    pthread_mutex_lock(&busy_lock);
    deferred->next = items[0].comm->deferred;
    items[0].comm->deferred = deferred;
    items[0].comm->questions = QUESTIONS;
    pthread_mutex_unlock(&busy_lock);
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
        made->nonblocking = true;
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
    pthread_mutex_lock(&busy_lock);
    const bool busy = comm->making || comm->questions > 0;
    pthread_mutex_unlock(&busy_lock);
    return busy;
}

void fake_busy_end(coll_comm comm)
{
    pthread_mutex_lock(&busy_lock);
    end_deferred(comm, false);
    pthread_mutex_unlock(&busy_lock);
}

#pragma GCC visibility push(default)
int pncclCommGetAsyncError(coll_comm comm, coll_result *error)
{
    if (comm == NULL)
        return INVALID_ARGUMENT;
    demand(!atomic_exchange(&comm->asked, true) || !comm->nonblocking); /* NCCL frees twice what was in progress */
    if (comm->nonblocking)
        sched_yield();
    pthread_mutex_lock(&busy_lock);
    *error = is_busy(comm) ? COLL_IN_PROGRESS : COLL_SUCCESS;
    pthread_mutex_unlock(&busy_lock);
    comm->asked = false;
    return COLL_SUCCESS;
}
ALIAS(CommGetAsyncError)
#pragma GCC visibility pop
