#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "collective/engine/overflow_tcp.h"
#include "collective/engine/hosts.h"
#include "collective/engine/ccomm.h"

/* Seeing need be neither symmetric nor transitive: a leader follows nobody. */
void host_groups_of(struct host_groups *groups, const uint64_t *sees, int ranks)
{
    for (int rank = 0; rank < ranks; rank++) {
        int leader = 0;
        while (leader < rank && (groups->leader[leader] != leader || (sees[rank] >> leader & 1) == 0))
            leader++;
        groups->leader[rank] = (uint8_t)leader;
    }
}

#define NAME "strait-coll-rings"

static bool map(struct segment *segment, int file)
{
    void *memory = mmap(NULL, segment->size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    segment->memory = memory != MAP_FAILED ? memory : NULL;
    return segment->memory != NULL;
}

bool segment_make(struct segment *segment, size_t size, struct segment_card *card)
{
    struct stat status;
    *segment = (struct segment){.size = size, .file = memfd_create(NAME, MFD_CLOEXEC)};
    *card = (struct segment_card){.process = getpid(), .file = segment->file};
    if (segment->file >= 0 && getrandom(&card->token, sizeof(card->token), 0) == sizeof(card->token) &&
        posix_fallocate(segment->file, 0, (off_t)size) == 0 && fstat(segment->file, &status) == 0 &&
        map(segment, segment->file)) {
        card->inode = status.st_ino;
        memcpy(segment->memory, &card->token, sizeof(card->token));
        return true;
    }
    segment_close(segment);
    return false;
}

/* Reading the link has no effect on its target, which may be anything, on another host. */
static bool is_ours(const char *path)
{
    char name[64] = "";
    return readlink(path, name, sizeof(name) - 1) > 0 && strncmp(name, "/memfd:" NAME, strlen("/memfd:" NAME)) == 0;
}

static bool is_it(int file, size_t size, const struct segment_card *card)
{
    uint64_t token;
    struct stat status;
    return fstat(file, &status) == 0 && status.st_ino == card->inode && status.st_size == (off_t)size &&
           pread(file, &token, sizeof(token), 0) == sizeof(token) && token == card->token;
}

bool segment_open(struct segment *segment, size_t size, const struct segment_card *card)
{
    char path[64];
    *segment = (struct segment){.size = size, .file = -1};
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", card->process, card->file);
    if (!is_ours(path))
        return false;
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return false;
    const bool good = is_it(file, size, card) && map(segment, file);
    close(file);
    return good;
}

void segment_settle(struct segment *segment)
{
    if (segment->file >= 0)
        close(segment->file);
    segment->file = -1;
}

void segment_close(struct segment *segment)
{
    segment_settle(segment);
    if (segment->memory != NULL)
        (void)munmap(segment->memory, segment->size);
    segment->memory = NULL;
}

#define LOOK_NS 100000000

struct watch {
    struct coll_ccomm *ccomm;
    struct watch *next; /* in the list of the thread */
    struct liveness own;
    struct liveness_card card;
    struct liveness_card *told; /* in the GPU's memory: of all ranks, then of this one */
    int here;                   /* ranks in this process, including this one */
    int gone;                   /* rank + 1 of one that has gone; 0: none */
    struct {
        int file; /* of liveness_find, or -1 */
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
    for (int rank = 0; rank < watch->ccomm->ranks; rank++)
        if (watch->ranks[rank].file >= 0 && liveness_poll(watch->ranks[rank].file) == LIVENESS_ENDED)
            return rank + 1;
    return 0;
}

static void tell_gone(const struct watch *watch)
{
    char why[80];
    snprintf(why, sizeof(why), "process %d, which is rank %d, has ended without leaving",
             watch->ranks[watch->gone - 1].process, watch->gone - 1);
    ccomm_fail(watch->ccomm, COLL_REMOTE_ERROR, why);
}

static void look(struct watch *watch)
{
    if (watch->gone == 0 && (watch->gone = find_gone(watch)) != 0)
        tell_gone(watch);
    if (watch->gone != 0) /* also stops what was launched since */
        ccomm_abort_kernels(watch->ccomm);
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
    for (int rank = 0; rank < watch->ccomm->ranks; rank++) {
        if (watch->ranks[rank].file >= 0)
            close(watch->ranks[rank].file);
        watch->ranks[rank].file = -1;
    }
}

/* ---- Joining ------------------------------------------------------------------------------------------------------
 */

bool watch_prepare(struct coll_ccomm *ccomm)
{
    const size_t ranks = (size_t)ccomm->ranks;
    struct watch *watch = calloc(1, sizeof(*watch) + ranks * sizeof(watch->ranks[0]));
    if (watch == NULL)
        return false;
    watch->ccomm = ccomm;
    ccomm->watch = watch;
    for (size_t i = 0; i < ranks; i++)
        watch->ranks[i].file = -1;
    (void)liveness_begin(&watch->own, &watch->card);
    watch->card.host = ccomm->gpu->host();
    watch->told = ccomm->gpu->allocate(sizeof(watch->card) * (ranks + 1), false);
    return watch->told != NULL;
}

bool watch_gather(struct coll_ccomm *ccomm)
{
    const struct watch *watch = ccomm->watch;
    struct liveness_card *own = watch->told + ccomm->ranks;
    return ccomm->gpu->copy(own, &watch->card, sizeof(*own), ccomm->stream) &&
           ccomm->host.nccl->AllGather(own, watch->told, sizeof(*own), COLL_UINT8, ccomm->comm, ccomm->stream) ==
               COLL_SUCCESS;
}

static void follow(struct watch *watch, int rank, const struct liveness_card *card)
{
    if (card->host != watch->card.host)
        return;
    watch->ranks[rank].seen = true;
    if (liveness_is_own(card)) {
        watch->here++;
        return;
    }
    watch->ranks[rank].file = liveness_find(&watch->own, card);
    watch->ranks[rank].seen = watch->ranks[rank].file >= 0;
    watch->ranks[rank].process = card->process;
}

bool watch_sees(const struct coll_ccomm *ccomm, int rank)
{
    return ccomm->watch->ranks[rank].seen;
}

static int watched(const struct watch *watch)
{
    int count = 0;
    for (int rank = 0; rank < watch->ccomm->ranks; rank++)
        count += watch->ranks[rank].file >= 0;
    return count;
}

bool watch_begin(struct coll_ccomm *ccomm)
{
    const size_t size = sizeof(struct liveness_card) * (size_t)ccomm->ranks;
    struct watch *watch = ccomm->watch;
    struct liveness_card *cards = malloc(size);
    const bool good = cards != NULL && ccomm->gpu->copy(cards, watch->told, size, ccomm->stream) &&
                      ccomm->gpu->stream_wait(ccomm->stream);
    for (int rank = 0; rank < ccomm->ranks && good; rank++)
        follow(watch, rank, &cards[rank]);
    free(cards);
    if (watched(watch) > 0 && !enlist(watch))
        forget_others(watch);
    return good;
}

void watch_describe(const struct coll_ccomm *ccomm, char *text, size_t size)
{
    const int others = ccomm->ranks - ccomm->watch->here;
    snprintf(text, size, "%d of %d other processes watched", watched(ccomm->watch), others);
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

void watch_leave(struct coll_ccomm *ccomm)
{
    if (ccomm->watch == NULL || ccomm->watch->own.process != getpid())
        return;
    liveness_leave(&ccomm->watch->own);
    forget_others(ccomm->watch);
}

void watch_end(struct coll_ccomm *ccomm)
{
    struct watch *watch = ccomm->watch;
    if (watch == NULL)
        return;
    forget_others(watch);
    liveness_end(&watch->own);
    ccomm->gpu->release(watch->told);
    ccomm->watch = NULL;
    free(watch);
}

#define PAGE ((size_t)64 << 10) /* of any machine */

static size_t rings_at(const struct coll_ccomm *ccomm)
{
    return (op_classes_size(ccomm->ranks) + PAGE - 1) / PAGE * PAGE;
}

static size_t rings_size(const struct coll_ccomm *ccomm)
{
    const uint32_t ranks = (uint32_t)ccomm->ranks;
    return (ring_flags_size(ranks) + ring_slots_size(ranks) + PAGE - 1) / PAGE * PAGE;
}

bool host_prepare(struct coll_ccomm *ccomm)
{
    struct share *share = &ccomm->share;
    share->segment.file = -1;
    share->told = ccomm->gpu->allocate(sizeof(share->card) * ((size_t)ccomm->ranks + 1), false);
    return share->told != NULL;
}

/* ---- What ranks tell each other ---------------------------------------------------------------------------------- */

/* Gathers a word or a card from each rank, always through the same memory. */
static bool tell(struct coll_ccomm *ccomm, const void *what, size_t size)
{
    uint8_t *told = (uint8_t *)ccomm->share.told, *own = told + size * (size_t)ccomm->ranks;
    return ccomm->gpu->copy(own, what, size, ccomm->stream) &&
           ccomm->host.nccl->AllGather(own, told, size, COLL_UINT8, ccomm->comm, ccomm->stream) == COLL_SUCCESS;
}

/* Gathered records of all ranks, to be freed; NULL: no memory, or the GPU failed. */
static void *hear(struct coll_ccomm *ccomm, size_t size)
{
    void *all = calloc((size_t)ccomm->ranks, size);
    if (all != NULL && ccomm->gpu->copy(all, ccomm->share.told, size * (size_t)ccomm->ranks, ccomm->stream) &&
        ccomm->gpu->stream_wait(ccomm->stream))
        return all;
    free(all);
    return NULL;
}

static bool tell_good(struct coll_ccomm *ccomm)
{
    const uint64_t good = ccomm->share.good;
    return tell(ccomm, &good, sizeof(good));
}

static bool all_are_good(struct coll_ccomm *ccomm)
{
    uint64_t *good = hear(ccomm, sizeof(*good));
    bool all = good != NULL;
    for (int rank = 0; rank < ccomm->ranks && all; rank++)
        all = good[rank] == 1;
    free(good);
    return all;
}

/* ---- Who shares memory ------------------------------------------------------------------------------------------- */

bool host_gather_seen(struct coll_ccomm *ccomm)
{
    uint64_t sees = UINT64_C(1) << ccomm->rank;
    for (int rank = 0; rank < ccomm->ranks; rank++)
        sees |= (uint64_t)watch_sees(ccomm, rank) << rank;
    return tell(ccomm, &sees, sizeof(sees));
}

bool host_divide(struct coll_ccomm *ccomm)
{
    struct share *share = &ccomm->share;
    uint64_t *sees = hear(ccomm, sizeof(*sees));
    if (sees == NULL)
        return false;
    host_groups_of(&share->groups, sees, ccomm->ranks);
    free(sees);
    for (int rank = 0; rank < ccomm->ranks; rank++)
        share->multi_host |= !host_groups_same(&share->groups, rank, 0);
    const size_t size = rings_at(ccomm) + rings_size(ccomm);
    share->good = share->groups.leader[ccomm->rank] != ccomm->rank ||
                  (segment_make(&share->segment, size, &share->card.segment) &&
                   op_classes_init((struct op_classes *)(void *)share->segment.memory));
    share->good &= !share->multi_host || overflow_tcp_prepare(ccomm, &share->card.endpoint);
    return true;
}

bool host_gather(struct coll_ccomm *ccomm)
{
    return tell(ccomm, &ccomm->share.card, sizeof(ccomm->share.card));
}

static bool reach(struct coll_ccomm *ccomm)
{
    struct share *share = &ccomm->share;
    const uint32_t ranks = (uint32_t)ccomm->ranks;
    share->classes = (struct op_classes *)(void *)share->segment.memory;
    uint8_t *rings = share->segment.memory + rings_at(ccomm);
    uint8_t *reached = ccomm->gpu->share(rings, rings_size(ccomm));
    if (reached == NULL)
        return false;
    share->pinned = rings;
    share->rings = (struct ring_set){.flags = (struct ring_flags *)(void *)reached,
                                     .slots = reached + ring_flags_size(ranks),
                                     .rank = (uint32_t)ccomm->rank,
                                     .ranks = ranks,
                                     .teams = ring_teams(ranks),
                                     .slot_bytes = ring_slot_bytes(ranks)};
    return true;
}

/* ---- Reaching the memory ----------------------------------------------------------------------------------------- */

static struct peer_endpoint *endpoints_of(const struct share_card *cards, int ranks)
{
    struct peer_endpoint *endpoint = calloc((size_t)ranks, sizeof(*endpoint));
    for (int rank = 0; rank < ranks && endpoint != NULL; rank++)
        endpoint[rank] = cards[rank].endpoint;
    return endpoint;
}

static bool open_all(struct coll_ccomm *ccomm, const struct share_card *cards)
{
    struct share *share = &ccomm->share;
    const int leader = share->groups.leader[ccomm->rank];
    const size_t size = rings_at(ccomm) + rings_size(ccomm);
    if ((leader != ccomm->rank && !segment_open(&share->segment, size, &cards[leader].segment)) || !reach(ccomm))
        return false;
    if (!share->multi_host)
        return true;
    share->endpoint = endpoints_of(cards, ccomm->ranks);
    return share->endpoint != NULL && overflow_tcp_connect(ccomm, share->endpoint);
}

bool host_open(struct coll_ccomm *ccomm)
{
    struct share *share = &ccomm->share;
    struct share_card *cards = hear(ccomm, sizeof(*cards));
    if (cards == NULL)
        return false;
    share->good = share->good && open_all(ccomm, cards);
    free(cards);
    return true;
}

bool host_gather_opened(struct coll_ccomm *ccomm)
{
    return tell_good(ccomm);
}

bool host_accept(struct coll_ccomm *ccomm)
{
    struct share *share = &ccomm->share;
    const bool all = all_are_good(ccomm);
    segment_settle(&share->segment);
    if (all && share->multi_host)
        share->good = overflow_tcp_accept(ccomm, share->endpoint);
    return all;
}

bool host_gather_accepted(struct coll_ccomm *ccomm)
{
    return !ccomm->share.multi_host || tell_good(ccomm);
}

/* Once all have accepted, it is too late to stay raw: from here on a failure is the communicator's. */
bool host_settle(struct coll_ccomm *ccomm)
{
    struct share *share = &ccomm->share;
    if (!share->multi_host)
        return true;
    if (!all_are_good(ccomm))
        return false;
    if (!overflow_tcp_await(ccomm, &share->endpoint[ccomm->rank]) || !overflow_tcp_start(ccomm)) {
        ccomm_fail(ccomm, COLL_REMOTE_ERROR, "a rank on another host has gone");
        ccomm_abort_kernels(ccomm);
    }
    return true;
}

void host_end(struct coll_ccomm *ccomm)
{
    struct share *share = &ccomm->share;
    overflow_tcp_end(ccomm);
    free(share->endpoint);
    if (share->pinned != NULL)
        ccomm->gpu->unshare(share->pinned);
    ccomm->gpu->release(share->told);
    segment_close(&share->segment);
    *share = (struct share){.segment.file = -1};
}
