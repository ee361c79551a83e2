#include "collective/engine/watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "collective/engine/life.h"
#include "collective/engine/member.h"

#define LOOK_NS UINT64_C(50000000)

struct watch {
    struct life own;
    struct life_card card;
    struct life_card *told; /* in the GPU's memory: of all ranks, then of this one */
    uint64_t looked_ns;     /* last; atomic */
    int gone;               /* a rank, + 1; atomic */
    int here;               /* ranks of this process, this one too */
    int watched;            /* ranks; set when `ranks` is: atomic */
    struct {
        int file; /* of life_find, or -1 */
        int32_t process;
    } ranks[];
};

bool watch_prepare(struct coll_member *member)
{
    const size_t ranks = (size_t)member->ranks;
    struct watch *watch = calloc(1, sizeof(*watch) + ranks * sizeof(watch->ranks[0]));
    if (watch == NULL)
        return false;
    member->watch = watch;
    for (size_t i = 0; i < ranks; i++)
        watch->ranks[i].file = -1;
    (void)life_begin(&watch->own, &watch->card);
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

/* From now on others may look. */
static void publish(struct watch *watch, int ranks)
{
    int watched = 0;
    for (int rank = 0; rank < ranks; rank++)
        watched += watch->ranks[rank].file >= 0;
    __atomic_store_n(&watch->watched, watched, __ATOMIC_RELEASE);
}

static void follow(struct watch *watch, int rank, const struct life_card *card)
{
    if (life_is_own(card)) {
        watch->here++;
        return;
    }
    watch->ranks[rank].file = life_find(&watch->own, card);
    watch->ranks[rank].process = card->process;
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
    publish(watch, member->ranks);
    free(cards);
    return good;
}

void watch_describe(const struct coll_member *member, char *text, size_t size)
{
    const int others = member->ranks - member->watch->here;
    snprintf(text, size, "%d of %d other processes watched", member->watch->watched, others);
}

/* ---- Looking ----------------------------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* One of those that come at once looks. */
static bool is_time(struct watch *watch)
{
    const uint64_t now = now_ns();
    uint64_t last = __atomic_load_n(&watch->looked_ns, __ATOMIC_RELAXED);
    return now - last >= LOOK_NS &&
           __atomic_compare_exchange_n(&watch->looked_ns, &last, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

static int find_gone(const struct coll_member *member)
{
    const struct watch *watch = member->watch;
    for (int rank = 0; rank < member->ranks; rank++)
        if (watch->ranks[rank].file >= 0 && life_look(watch->ranks[rank].file) == LIFE_ENDED)
            return rank + 1;
    return 0;
}

static void tell_gone(struct coll_member *member, int rank)
{
    char why[80];
    snprintf(why, sizeof(why), "process %d, which is rank %d, has ended without leaving",
             member->watch->ranks[rank].process, rank);
    member_fail(member, COLL_REMOTE_ERROR, why);
}

void watch_look(struct coll_member *member)
{
    struct watch *watch = member->watch;
    if (watch == NULL || __atomic_load_n(&watch->watched, __ATOMIC_ACQUIRE) == 0 || watch->own.process != getpid() ||
        !is_time(watch))
        return;
    int gone = __atomic_load_n(&watch->gone, __ATOMIC_RELAXED);
    if (gone == 0 && (gone = find_gone(member)) != 0) {
        __atomic_store_n(&watch->gone, gone, __ATOMIC_RELAXED);
        tell_gone(member, gone - 1);
    }
    if (gone != 0) /* also what has been asked for since */
        member_give_up(member);
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

void watch_leave(struct coll_member *member)
{
    if (member->watch != NULL)
        life_leave(&member->watch->own);
}

void watch_end(struct coll_member *member)
{
    struct watch *watch = member->watch;
    if (watch == NULL)
        return;
    for (int rank = 0; rank < member->ranks; rank++)
        if (watch->ranks[rank].file >= 0)
            close(watch->ranks[rank].file);
    life_end(&watch->own);
    member->gpu->release(watch->told);
    member->watch = NULL;
    free(watch);
}
