/* The thread that moves again, uncompressed, what did not fit. All ranks learn of the same operations, so their threads
 * do the same, on a communicator and a stream of their own, while the operations' streams wait on the GPU. Then they
 * agree from which operation on there is more room. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "collective/engine/member.h"

/* How often it looks: soon after something was asked for, and while nothing is, but for graphs. */
enum { LOOK_NS = 50 * 1000, IDLE_NS = 2 * 1000 * 1000, BUSY_LOOKS = 2000 };

/* ---- In which order ---------------------------------------------------------------------------------------------- */

/* Collectives first, then by who sends to whom: the same on both sides, whatever the order of their groups. */
static uint64_t rank_order(const struct coll_member *member, const struct repair_job *job)
{
    if (job->peer < 0)
        return 0;
    const uint32_t me = (uint32_t)member->rank, peer = (uint32_t)job->peer;
    const uint32_t from = job->send != NULL ? me : peer, to = job->send != NULL ? peer : me;
    return 1 + (uint64_t)from * RANKS_MAX + to;
}

/* Kinds of a pair differ in their type; keys of both sides rank types alike. */
static bool is_before(const struct coll_member *member, const struct repair_job *a, const struct repair_job *b)
{
    const uint64_t x = rank_order(member, a), y = rank_order(member, b);
    if (x != y)
        return x < y;
    if (a->key != b->key)
        return a->key < b->key;
    return a->index < b->index;
}

static void sort(const struct coll_member *member, struct repair_job *jobs, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        for (uint32_t j = i; j > 0 && is_before(member, &jobs[j], &jobs[j - 1]); j--) {
            struct repair_job job = jobs[j];
            jobs[j] = jobs[j - 1];
            jobs[j - 1] = job;
        }
}

/* ---- Moving ------------------------------------------------------------------------------------------------------ */

static bool has_peer(const struct coll_member *member, const struct repair_job *job, int peer)
{
    return job->peer < 0 ? peer != member->rank : peer == job->peer;
}

static coll_result move_job(const struct coll_member *member, const struct repair_job *job)
{
    const struct coll_table *nccl = member->host.nccl;
    coll_result result = COLL_SUCCESS;
    for (int peer = 0; peer < member->ranks && result == COLL_SUCCESS; peer++) {
        const uint64_t at = job->peer < 0 ? (uint64_t)peer : 0;
        if (!has_peer(member, job, peer))
            continue;
        if (job->send != NULL)
            result = nccl->Send((const uint8_t *)job->send + at * job->send_stride, job->bytes, COLL_UINT8, peer,
                                member->repairs, member->stream);
        if (job->receive != NULL && result == COLL_SUCCESS)
            result = nccl->Recv((uint8_t *)job->receive + at * job->receive_stride, job->bytes, COLL_UINT8, peer,
                                member->repairs, member->stream);
    }
    return result;
}

/* Both ends of a job tell each other a number: of rank r about job j at counters[ranks * (1 + j) + r]. */
static coll_result tell_job(const struct coll_member *member, const struct repair_job *job, uint32_t number)
{
    const struct coll_table *nccl = member->host.nccl;
    const size_t size = sizeof(uint64_t);
    uint64_t *of_job = member->counters + (size_t)member->ranks * number;
    coll_result result = COLL_SUCCESS;
    for (int peer = 0; peer < member->ranks && result == COLL_SUCCESS; peer++) {
        if (!has_peer(member, job, peer))
            continue;
        result = nccl->Send(of_job + member->rank, size, COLL_UINT8, peer, member->repairs, member->stream);
        if (result == COLL_SUCCESS)
            result = nccl->Recv(of_job + peer, size, COLL_UINT8, peer, member->repairs, member->stream);
    }
    return result;
}

typedef coll_result job_function(const struct coll_member *member, const struct repair_job *job, uint32_t number);

static coll_result move_numbered(const struct coll_member *member, const struct repair_job *job, uint32_t number)
{
    (void)number;
    return move_job(member, job);
}

/* After an abort `repairs` is gone. */
static bool begin_calls(struct coll_member *member)
{
    pthread_mutex_lock(&member->lock);
    member->calling = !member->aborted;
    const bool may = member->calling;
    pthread_mutex_unlock(&member->lock);
    return may;
}

static void end_calls(struct coll_member *member)
{
    pthread_mutex_lock(&member->lock);
    member->calling = false;
    pthread_cond_broadcast(&member->told);
    pthread_mutex_unlock(&member->lock);
}

static bool group(struct coll_member *member, const struct repair_job *jobs, uint32_t count, job_function *each)
{
    const struct coll_table *nccl = member->host.nccl;
    if (!begin_calls(member))
        return false;
    coll_result result = nccl->GroupStart();
    for (uint32_t i = 0; i < count && result == COLL_SUCCESS; i++)
        result = each(member, &jobs[i], i);
    coll_result end = nccl->GroupEnd();
    end_calls(member);
    return result == COLL_SUCCESS && end == COLL_SUCCESS && member->gpu->stream_wait(member->stream);
}

/* ---- Agreeing ---------------------------------------------------------------------------------------------------- */

static void agree(struct coll_member *member, const struct repair_job *job, const uint64_t *issued)
{
    struct level *level = &member->levels[job->key];
    uint64_t most = 0;
    for (int rank = 0; rank < member->ranks; rank++)
        if ((rank == member->rank || has_peer(member, job, rank)) && issued[rank] > most)
            most = issued[rank];
    pthread_mutex_lock(&member->lock);
    if (levels_overflowed(level, job->index, levels_fitting(member_key_type(job->key), job->share)))
        levels_step(level, job->index, most);
    pthread_mutex_unlock(&member->lock);
}

/* Nothing is issued between the telling and the step: so no rank has issued what the step is about. All threads are
 * here by now, so that is not for long. */
static bool tell(struct coll_member *member, const struct repair_job *jobs, uint32_t count)
{
    const size_t size = sizeof(uint64_t) * (size_t)member->ranks * count;
    uint64_t *issued = calloc(1, size);
    if (issued == NULL)
        return false;
    pthread_mutex_lock(&member->lock);
    member->telling = true;
    for (uint32_t i = 0; i < count; i++)
        issued[(size_t)member->ranks * i + (size_t)member->rank] = member->levels[jobs[i].key].issued;
    pthread_mutex_unlock(&member->lock);
    bool good =
        member->gpu->copy(member->counters, issued, size, member->stream) && group(member, jobs, count, tell_job) &&
        member->gpu->copy(issued, member->counters, size, member->stream) && member->gpu->stream_wait(member->stream);
    for (uint32_t i = 0; i < count && good; i++)
        agree(member, &jobs[i], issued + (size_t)member->ranks * i);
    pthread_mutex_lock(&member->lock);
    member->telling = false;
    pthread_cond_broadcast(&member->told);
    pthread_mutex_unlock(&member->lock);
    free(issued);
    return good;
}

/* ---- The thread -------------------------------------------------------------------------------------------------- */

static bool repair(struct coll_member *member, struct mail *mail)
{
    uint32_t count = mail->count < JOBS_MAX ? mail->count : JOBS_MAX;
    sort(member, mail->jobs, count);
    return mail->count <= JOBS_MAX && group(member, mail->jobs, count, move_numbered) &&
           tell(member, mail->jobs, count);
}

static bool look_at(struct coll_member *member, struct mail *mail)
{
    const uint64_t posted = __atomic_load_n(&mail->posted, __ATOMIC_ACQUIRE);
    if (posted == mail->done)
        return false;
    if (!repair(member, mail)) {
        member_fail(member, COLL_REMOTE_ERROR, "what did not fit could not be moved");
        __atomic_store_n(&mail->abort, 1, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&mail->done, posted, __ATOMIC_RELEASE);
    return true;
}

static bool look(struct coll_member *member)
{
    struct coll_staging *staging = __atomic_load_n(&member->stagings.first, __ATOMIC_ACQUIRE);
    bool any = false;
    member_look(member);
    for (; staging != NULL; staging = staging->next)
        any |= look_at(member, staging->mail);
    return any;
}

static void *run(void *argument)
{
    struct coll_member *member = argument;
    uint64_t seen = 0;
    unsigned looks = 0;
    bool ending = false;
    member->host.enter();
    member->gpu->thread_begin(member->device);
    while (!ending) {
        pthread_mutex_lock(&member->lock);
        ending = member->ending;
        const uint64_t decided = member->decided;
        pthread_mutex_unlock(&member->lock);
        looks = look(member) || decided != seen ? 0 : looks + 1;
        seen = decided;
        nanosleep(&(struct timespec){.tv_nsec = looks < BUSY_LOOKS ? LOOK_NS : IDLE_NS}, NULL);
    }
    return NULL;
}

bool repair_warm(struct coll_member *member)
{
    const struct repair_job job = {.peer = -1};
    return tell_job(member, &job, 0) == COLL_SUCCESS;
}

bool repair_begin(struct coll_member *member)
{
    member->running = pthread_create(&member->thread, NULL, run, member) == 0;
    return member->running;
}

void repair_end(struct coll_member *member)
{
    if (!member->running)
        return;
    pthread_mutex_lock(&member->lock);
    member->ending = true;
    pthread_mutex_unlock(&member->lock);
    pthread_join(member->thread, NULL);
    member->running = false;
}
