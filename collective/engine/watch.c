#include "collective/engine/watch.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "collective/engine/life.h"
#include "collective/engine/member.h"

#define LOOK_NS 100000000

struct watch {
    struct coll_member *member;
    struct watch *next; /* in the list of the thread */
    struct life own;
    struct life_card card;
    struct life_card *told; /* in the GPU's memory: of all ranks, then of this one */
    int here;               /* ranks in this process, including this one */
    int gone;               /* rank + 1 of one that has gone; 0: none */
    struct {
        int file; /* of life_find, or -1 */
        int32_t process;
        bool seen;
    } ranks[];
};

/* ---- The thread that looks, one of the process --------------------------------------------------------------------
 */

/* All of it is under the lock. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct watch *first;
    pid_t process; /* in which the thread runs; 0: it has not been started */
    bool over;     /* the process ends: CUDA's memory may be gone already */
} watcher = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static int find_gone(const struct watch *watch)
{
    for (int rank = 0; rank < watch->member->ranks; rank++)
        if (watch->ranks[rank].file >= 0 && life_look(watch->ranks[rank].file) == LIFE_ENDED)
            return rank + 1;
    return 0;
}

static void tell_gone(const struct watch *watch)
{
    char why[80];
    snprintf(why, sizeof(why), "process %d, which is rank %d, has ended without leaving",
             watch->ranks[watch->gone - 1].process, watch->gone - 1);
    member_fail(watch->member, COLL_REMOTE_ERROR, why);
}

static void look(struct watch *watch)
{
    if (watch->gone == 0 && (watch->gone = find_gone(watch)) != 0)
        tell_gone(watch);
    if (watch->gone != 0) /* also stops what was launched since */
        member_give_up(watch->member);
}

static void *run(void *argument)
{
    pthread_mutex_lock(&watcher.lock);
    while (!watcher.over) {
        while (watcher.first == NULL)
            pthread_cond_wait(&watcher.changed, &watcher.lock);
        for (struct watch *watch = watcher.first; watch != NULL && !watcher.over; watch = watch->next)
            look(watch);
        pthread_mutex_unlock(&watcher.lock);
        nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
        pthread_mutex_lock(&watcher.lock);
    }
    pthread_mutex_unlock(&watcher.lock);
    return argument;
}

/* Registered after CUDA's exit handler, so it runs before that. In a forked child the lock is as it was at the fork. */
static void stop(void)
{
    if (watcher.process != getpid())
        return;
    pthread_mutex_lock(&watcher.lock);
    watcher.over = true;
    pthread_mutex_unlock(&watcher.lock);
}

/* All signals are blocked: they are for the program's threads. */
static bool start(void)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = atexit(stop) == 0 && pthread_create(&thread, NULL, run, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started)
        pthread_detach(thread);
    watcher.process = started ? getpid() : 0;
    return started;
}

static bool enlist(struct watch *watch)
{
    pthread_mutex_lock(&watcher.lock);
    const bool good = watcher.process == getpid() || start();
    if (good) {
        watch->next = watcher.first;
        watcher.first = watch;
        pthread_cond_signal(&watcher.changed);
    }
    pthread_mutex_unlock(&watcher.lock);
    return good;
}

static void delist(struct watch *watch)
{
    pthread_mutex_lock(&watcher.lock);
    struct watch **at = &watcher.first;
    while (*at != NULL && *at != watch)
        at = &(*at)->next;
    if (*at != NULL)
        *at = watch->next;
    pthread_mutex_unlock(&watcher.lock);
}

static void forget_others(struct watch *watch)
{
    delist(watch);
    for (int rank = 0; rank < watch->member->ranks; rank++) {
        if (watch->ranks[rank].file >= 0)
            close(watch->ranks[rank].file);
        watch->ranks[rank].file = -1;
    }
}

/* ---- Joining ------------------------------------------------------------------------------------------------------
 */

bool watch_prepare(struct coll_member *member)
{
    const size_t ranks = (size_t)member->ranks;
    struct watch *watch = calloc(1, sizeof(*watch) + ranks * sizeof(watch->ranks[0]));
    if (watch == NULL)
        return false;
    watch->member = member;
    member->watch = watch;
    for (size_t i = 0; i < ranks; i++)
        watch->ranks[i].file = -1;
    (void)life_begin(&watch->own, &watch->card);
    watch->card.host = member->gpu->host();
    watch->told = member->gpu->allocate(sizeof(watch->card) * (ranks + 1), false);
    return watch->told != NULL;
}

bool watch_tell(struct coll_member *member)
{
    const struct watch *watch = member->watch;
    struct life_card *own = watch->told + member->ranks;
    return member->gpu->copy(own, &watch->card, sizeof(*own), member->stream) &&
           member->host.nccl->AllGather(own, watch->told, sizeof(*own), COLL_UINT8, member->comm, member->stream) ==
               COLL_SUCCESS;
}

static void follow(struct watch *watch, int rank, const struct life_card *card)
{
    if (card->host != watch->card.host)
        return;
    watch->ranks[rank].seen = true;
    if (life_is_own(card)) {
        watch->here++;
        return;
    }
    watch->ranks[rank].file = life_find(&watch->own, card);
    watch->ranks[rank].seen = watch->ranks[rank].file >= 0;
    watch->ranks[rank].process = card->process;
}

bool watch_sees(const struct coll_member *member, int rank)
{
    return member->watch->ranks[rank].seen;
}

static int watched(const struct watch *watch)
{
    int count = 0;
    for (int rank = 0; rank < watch->member->ranks; rank++)
        count += watch->ranks[rank].file >= 0;
    return count;
}

bool watch_begin(struct coll_member *member)
{
    const size_t size = sizeof(struct life_card) * (size_t)member->ranks;
    struct watch *watch = member->watch;
    struct life_card *cards = malloc(size);
    const bool good = cards != NULL && member->gpu->copy(cards, watch->told, size, member->stream) &&
                      member->gpu->stream_wait(member->stream);
    for (int rank = 0; rank < member->ranks && good; rank++)
        follow(watch, rank, &cards[rank]);
    free(cards);
    if (watched(watch) > 0 && !enlist(watch))
        forget_others(watch);
    return good;
}

void watch_describe(const struct coll_member *member, char *text, size_t size)
{
    const int others = member->ranks - member->watch->here;
    snprintf(text, size, "%d of %d other processes watched", watched(member->watch), others);
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

void watch_leave(struct coll_member *member)
{
    if (member->watch == NULL || member->watch->own.process != getpid())
        return;
    life_leave(&member->watch->own);
    forget_others(member->watch);
}

void watch_end(struct coll_member *member)
{
    struct watch *watch = member->watch;
    if (watch == NULL)
        return;
    forget_others(watch);
    life_end(&watch->own);
    member->gpu->release(watch->told);
    member->watch = NULL;
    free(watch);
}
