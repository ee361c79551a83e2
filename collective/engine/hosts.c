#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "internal/thread.h"
#include "collective/engine/hosts.h"
#include "collective/engine/ccomm.h"
#include "transport/rank_address.h"

/* Seeing need be neither symmetric nor transitive: a leader follows nobody. */
void host_groups_of(struct host_groups *groups, const struct rank_set *sees, int ranks)
{
    for (int rank = 0; rank < ranks; rank++) {
        int leader = 0;
        while (leader < rank && (groups->leader[leader] != leader || !rank_set_has(&sees[rank], (uint32_t)leader)))
            leader++;
        groups->leader[rank] = (uint16_t)leader;
    }
}

struct rails rails_of(const struct host_groups *groups, int ranks)
{
    int each = 1;
    while (each < ranks && host_groups_same(groups, each, 0))
        each++;
    bool even = each > 1 && each < ranks && ranks % each == 0;
    for (int rank = 0; rank < ranks && even; rank++)
        even = groups->leader[rank] == rank / each * each;
    return even ? (struct rails){(uint32_t)(ranks / each), (uint32_t)each} : (struct rails){0, 0};
}

#define NAME "strait-coll-rings"

static bool map(struct segment *segment, int file)
{
    void *memory = mmap(NULL, segment->size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    segment->memory = memory != MAP_FAILED ? memory : NULL;
    return segment->memory != NULL;
}

static bool allocate(int file, size_t size, struct segment_hole hole)
{
    const size_t behind = hole.at + hole.size;
    if (hole.size == 0)
        return posix_fallocate(file, 0, (off_t)size) == 0;
    return ftruncate(file, (off_t)size) == 0 && posix_fallocate(file, 0, (off_t)hole.at) == 0 &&
           posix_fallocate(file, (off_t)behind, (off_t)(size - behind)) == 0;
}

bool segment_make(struct segment *segment, size_t size, struct segment_hole hole, struct segment_info *info)
{
    struct stat status;
    *segment = (struct segment){.size = size, .file = memfd_create(NAME, MFD_CLOEXEC)};
    *info = (struct segment_info){.process = getpid(), .file = segment->file};
    if (segment->file >= 0 && getrandom(&info->token, sizeof(info->token), 0) == sizeof(info->token) &&
        allocate(segment->file, size, hole) && fstat(segment->file, &status) == 0 && map(segment, segment->file)) {
        info->inode = status.st_ino;
        memcpy(segment->memory, &info->token, sizeof(info->token));
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

static bool is_it(int file, size_t size, const struct segment_info *info)
{
    uint64_t token;
    struct stat status;
    return fstat(file, &status) == 0 && status.st_ino == info->inode && status.st_size == (off_t)size &&
           pread(file, &token, sizeof(token), 0) == sizeof(token) && token == info->token;
}

bool segment_open(struct segment *segment, size_t size, const struct segment_info *info)
{
    char path[64];
    *segment = (struct segment){.size = size, .file = -1};
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", info->process, info->file);
    if (!is_ours(path))
        return false;
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return false;
    const bool good = is_it(file, size, info) && map(segment, file);
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

struct keepalive {
    struct coll_ccomm *ccomm;
    struct keepalive *next; /* in the list of the thread */
    struct liveness own;
    struct liveness_info info;
    int here; /* ranks in this process, including this one */
    int gone; /* rank + 1 of one that has gone; 0: none */
    struct {
        int file; /* of liveness_find, or -1 */
        int32_t process;
        bool seen;
    } ranks[];
};

/* ---- The thread that looks, one of the process ------------------------------------------------------------------- */

/* All of it is under the lock. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct keepalive *first;
    pid_t process; /* in which the thread runs; 0: it has not been started */
    bool over;     /* the process ends: CUDA's memory may be gone already */
} keepalive_thread = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static int find_gone(const struct keepalive *keepalive)
{
    for (int rank = 0; rank < keepalive->ccomm->ranks; rank++)
        if (keepalive->ranks[rank].file >= 0 && liveness_poll(keepalive->ranks[rank].file) == LIVENESS_ENDED)
            return rank + 1;
    return 0;
}

static void look(struct keepalive *keepalive)
{
    if (keepalive->gone == 0 && (keepalive->gone = find_gone(keepalive)) != 0) {
        char why[80];
        snprintf(why, sizeof(why), "process %d, which is rank %d, has ended without leaving",
                 keepalive->ranks[keepalive->gone - 1].process, keepalive->gone - 1);
        ccomm_fail(keepalive->ccomm, COLL_REMOTE_ERROR, why);
    }
    if (keepalive->gone != 0) /* also stops what was launched since */
        ccomm_abort_kernels(keepalive->ccomm);
}

static void *run(void *argument)
{
    pthread_mutex_lock(&keepalive_thread.lock);
    while (!keepalive_thread.over) {
        while (keepalive_thread.first == NULL)
            pthread_cond_wait(&keepalive_thread.changed, &keepalive_thread.lock);
        for (struct keepalive *keepalive = keepalive_thread.first; keepalive != NULL && !keepalive_thread.over;
             keepalive = keepalive->next)
            look(keepalive);
        pthread_mutex_unlock(&keepalive_thread.lock);
        nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
        pthread_mutex_lock(&keepalive_thread.lock);
    }
    pthread_mutex_unlock(&keepalive_thread.lock);
    return argument;
}

/* Registered after CUDA's exit handler, so it runs before that. In a forked child the lock is as it was at the fork. */
static void stop(void)
{
    if (keepalive_thread.process != getpid())
        return;
    pthread_mutex_lock(&keepalive_thread.lock);
    keepalive_thread.over = true;
    pthread_mutex_unlock(&keepalive_thread.lock);
}

static bool start(void)
{
    pthread_t thread;
    const bool started = atexit(stop) == 0 && thread_start(&thread, run, NULL) == 0;
    if (started)
        pthread_detach(thread);
    keepalive_thread.process = started ? getpid() : 0;
    return started;
}

static bool enlist(struct keepalive *keepalive)
{
    pthread_mutex_lock(&keepalive_thread.lock);
    const bool good = keepalive_thread.process == getpid() || start();
    if (good) {
        keepalive->next = keepalive_thread.first;
        keepalive_thread.first = keepalive;
        pthread_cond_signal(&keepalive_thread.changed);
    }
    pthread_mutex_unlock(&keepalive_thread.lock);
    return good;
}

static void forget_others(struct keepalive *keepalive)
{
    pthread_mutex_lock(&keepalive_thread.lock);
    struct keepalive **at = &keepalive_thread.first;
    while (*at != NULL && *at != keepalive)
        at = &(*at)->next;
    if (*at != NULL)
        *at = keepalive->next;
    pthread_mutex_unlock(&keepalive_thread.lock);
    for (int rank = 0; rank < keepalive->ccomm->ranks; rank++) {
        if (keepalive->ranks[rank].file >= 0)
            close(keepalive->ranks[rank].file);
        keepalive->ranks[rank].file = -1;
    }
}

/* ---- Joining ----------------------------------------------------------------------------------------------------- */

bool keepalive_prepare(struct coll_ccomm *ccomm)
{
    const size_t ranks = (size_t)ccomm->ranks;
    struct keepalive *keepalive = calloc(1, sizeof(*keepalive) + ranks * sizeof(keepalive->ranks[0]));
    if (keepalive == NULL)
        return false;
    keepalive->ccomm = ccomm;
    ccomm->keepalive = keepalive;
    for (size_t i = 0; i < ranks; i++)
        keepalive->ranks[i].file = -1;
    (void)liveness_begin(&keepalive->own, &keepalive->info);
    keepalive->info.host = ccomm->gpu->host();
    return true;
}

bool keepalive_gather(struct coll_ccomm *ccomm)
{
    return ccomm_gather(ccomm, &ccomm->keepalive->info, sizeof(ccomm->keepalive->info));
}

static void follow(struct keepalive *keepalive, int rank, const struct liveness_info *info)
{
    if (info->host != keepalive->info.host)
        return;
    keepalive->ranks[rank].seen = true;
    if (liveness_is_own(info)) {
        keepalive->here++;
        return;
    }
    keepalive->ranks[rank].file = liveness_find(&keepalive->own, info);
    keepalive->ranks[rank].seen = keepalive->ranks[rank].file >= 0;
    keepalive->ranks[rank].process = info->process;
}

static int tracked(const struct keepalive *keepalive)
{
    int count = 0;
    for (int rank = 0; rank < keepalive->ccomm->ranks; rank++)
        count += keepalive->ranks[rank].file >= 0;
    return count;
}

bool keepalive_begin(struct coll_ccomm *ccomm)
{
    struct keepalive *keepalive = ccomm->keepalive;
    struct liveness_info *infos = ccomm_gathered(ccomm, sizeof(*infos));
    const bool good = infos != NULL;
    for (int rank = 0; rank < ccomm->ranks && good; rank++)
        follow(keepalive, rank, &infos[rank]);
    free(infos);
    if (tracked(keepalive) > 0 && !enlist(keepalive))
        forget_others(keepalive);
    return good;
}

void keepalive_describe(const struct coll_ccomm *ccomm, char *text, size_t size)
{
    const int others = ccomm->ranks - ccomm->keepalive->here;
    snprintf(text, size, "%d of %d other processes watched", tracked(ccomm->keepalive), others);
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

void keepalive_leave(struct coll_ccomm *ccomm)
{
    if (ccomm->keepalive == NULL || ccomm->keepalive->own.process != getpid())
        return;
    liveness_leave(&ccomm->keepalive->own);
    forget_others(ccomm->keepalive);
}

void keepalive_end(struct coll_ccomm *ccomm)
{
    struct keepalive *keepalive = ccomm->keepalive;
    if (keepalive == NULL)
        return;
    forget_others(keepalive);
    liveness_end(&keepalive->own);
    ccomm->keepalive = NULL;
    free(keepalive);
}

#define PAGE ((size_t)64 << 10) /* of any machine */

static size_t rings_at(const struct coll_ccomm *ccomm)
{
    return (op_classes_size(ccomm->ranks) + PAGE - 1) / PAGE * PAGE;
}

static size_t rings_size(const struct coll_ccomm *ccomm)
{
    const uint32_t ranks = (uint32_t)ccomm->ranks;
    const size_t count = ring_count(&ccomm->shared.here, ranks);
    return (ring_flags_size(ranks, count) + ring_slots_size(ranks, count) + PAGE - 1) / PAGE * PAGE;
}

/* With many ranks there are far more pairs of them than a program sends between. */
static struct segment_hole hole_of(const struct coll_ccomm *ccomm)
{
    const size_t pairs = op_classes_pairs_at();
    return ccomm->ranks <= RING_FEW_RANKS ? (struct segment_hole){0}
                                          : (struct segment_hole){pairs, rings_at(ccomm) - pairs};
}

uint64_t host_bytes(const struct coll_ccomm *ccomm)
{
    return ccomm->shared.segment.size - hole_of(ccomm).size;
}

/* ---- Who shares memory ------------------------------------------------------------------------------------------- */

bool host_gather_seen(struct coll_ccomm *ccomm)
{
    struct rank_set sees = {0};
    for (int rank = 0; rank < ccomm->ranks; rank++)
        if (rank == ccomm->rank || ccomm->keepalive->ranks[rank].seen)
            rank_set_add(&sees, (uint32_t)rank);
    return ccomm_gather(ccomm, &sees, sizeof(sees));
}

bool host_divide(struct coll_ccomm *ccomm)
{
    struct shared_resources *shared = &ccomm->shared;
    struct rank_set *sees = ccomm_gathered(ccomm, sizeof(*sees));
    if (sees == NULL)
        return false;
    host_groups_of(&shared->groups, sees, ccomm->ranks);
    free(sees);
    for (int rank = 0; rank < ccomm->ranks; rank++) {
        shared->multi_host |= !host_groups_same(&shared->groups, rank, 0);
        if (host_groups_same(&shared->groups, rank, ccomm->rank))
            rank_set_add(&shared->here, (uint32_t)rank);
    }
    if (!ccomm->host.settings.ring) /* whose order is NCCL's, which knows no hosts */
        shared->rails = rails_of(&shared->groups, ccomm->ranks);
    const size_t size = rings_at(ccomm) + rings_size(ccomm);
    shared->good = shared->groups.leader[ccomm->rank] != ccomm->rank ||
                   (segment_make(&shared->segment, size, hole_of(ccomm), &shared->info.segment) &&
                    op_classes_init((struct op_classes *)(void *)shared->segment.memory));
    shared->good &= !shared->multi_host || ccomm->host.encrypted || proxy_prepare(ccomm, &shared->info.proxy);
    return true;
}

bool host_gather(struct coll_ccomm *ccomm)
{
    return ccomm_gather(ccomm, &ccomm->shared.info, sizeof(ccomm->shared.info));
}

/* For the host, and in the GPU's own memory for the GPU. */
static bool number_rings(struct coll_ccomm *ccomm)
{
    struct shared_resources *shared = &ccomm->shared;
    const uint32_t ranks = (uint32_t)ccomm->ranks;
    const size_t size = 2 * (size_t)ranks * sizeof(*shared->ring_numbers);
    uint32_t *reached = ring_ends_numbers(ccomm->ends, ranks);
    if ((shared->ring_numbers = malloc(size)) == NULL)
        return false;
    ring_numbers(shared->ring_numbers, &shared->here, (uint32_t)ccomm->rank, ranks);
    shared->host_rings.numbers = shared->ring_numbers;
    shared->rings.numbers = reached;
    return ccomm->gpu->copy(reached, shared->ring_numbers, size, ccomm->stream) &&
           ccomm->gpu->stream_wait(ccomm->stream);
}

static bool reach(struct coll_ccomm *ccomm)
{
    struct shared_resources *shared = &ccomm->shared;
    const uint32_t ranks = (uint32_t)ccomm->ranks;
    shared->classes = (struct op_classes *)(void *)shared->segment.memory;
    uint8_t *rings = shared->segment.memory + rings_at(ccomm);
    uint8_t *reached = ccomm->gpu->register_host(rings, rings_size(ccomm));
    if (reached == NULL)
        return false;
    shared->pinned = rings;
    shared->rings = (struct ring_set){.flags = reached,
                                      .slots = reached + ring_flags_size(ranks, ring_count(&shared->here, ranks)),
                                      .bell = proxy_is_lazy(ccomm) ? &ccomm->host_status->bell : NULL,
                                      .rank = (uint32_t)ccomm->rank,
                                      .ranks = ranks,
                                      .teams = ring_teams(ranks),
                                      .slot_bytes = ring_slot_bytes(ranks),
                                      .depth = ring_depth(ranks),
                                      .records = ring_records(ranks)};
    shared->host_rings = shared->rings;
    shared->host_rings.flags = rings;
    shared->host_rings.slots = rings + (shared->rings.slots - reached);
    return number_rings(ccomm);
}

/* ---- Reaching the memory ----------------------------------------------------------------------------------------- */

static bool open_all(struct coll_ccomm *ccomm, const struct peer_info *infos)
{
    struct shared_resources *shared = &ccomm->shared;
    const int leader = shared->groups.leader[ccomm->rank];
    const size_t size = rings_at(ccomm) + rings_size(ccomm);
    if ((leader != ccomm->rank && !segment_open(&shared->segment, size, &infos[leader].segment)) || !reach(ccomm))
        return false;
    if (!shared->multi_host)
        return true;
    for (int rank = 0; rank < ccomm->ranks; rank++)
        proxy_connect(ccomm, rank, &infos[rank].proxy);
    return proxy_start(ccomm);
}

bool host_open(struct coll_ccomm *ccomm)
{
    struct shared_resources *shared = &ccomm->shared;
    struct peer_info *infos = ccomm_gathered(ccomm, sizeof(*infos));
    if (infos == NULL)
        return false;
    shared->good = shared->good && open_all(ccomm, infos);
    free(infos);
    return true;
}

bool host_gather_opened(struct coll_ccomm *ccomm)
{
    return ccomm_gather_good(ccomm, ccomm->shared.good);
}

bool host_accept(struct coll_ccomm *ccomm)
{
    struct shared_resources *shared = &ccomm->shared;
    bool all;
    (void)ccomm_all_good(ccomm, &all); /* without an answer it stays raw, as where a rank has another one */
    segment_settle(&shared->segment);
    if (all && shared->multi_host)
        proxy_expect(ccomm);
    return all || ccomm_stay_raw(ccomm, "not all ranks reach the memory of their host, or have an address for others");
}

/* ---- Reaching other hosts ---------------------------------------------------------------------------------------- */

bool host_gather_accepted(struct coll_ccomm *ccomm)
{
    struct reach_info own = {.rank = -1};
    int rank;
    if (!ccomm->shared.multi_host)
        return true;
    const char *why = proxy_await(ccomm, &rank);
    if (why != NULL) {
        own.rank = rank;
        snprintf(own.why, sizeof(own.why), "%s", why);
    }
    if (gethostname(own.host, sizeof(own.host) - 1) != 0 || own.host[0] == '\0')
        snprintf(own.host, sizeof(own.host), "(without a name)");
    return ccomm_gather(ccomm, &own, sizeof(own));
}

/* What others have told is printed. */
static void tidy(struct reach_info *info)
{
    char *const texts[] = {info->host, info->why};
    info->host[sizeof(info->host) - 1] = info->why[sizeof(info->why) - 1] = '\0';
    for (unsigned i = 0; i < 2; i++)
        for (char *at = texts[i]; *at != '\0'; at++)
            if (*at < ' ' || *at > '~')
                *at = '?';
}

/* The same text on all ranks. */
static bool stay_raw_apart(struct coll_ccomm *ccomm, const struct reach_info *infos, int rank, int others)
{
    const int to = infos[rank].rank;
    char at[ADDRESS_TEXT], more[40] = "", why[sizeof(ccomm->args->why)];
    address_write(proxy_address(ccomm, to), at);
    if (others > 0)
        snprintf(more, sizeof(more), " (%d more could not, either)", others);
    snprintf(why, sizeof(why),
             "rank %d on host %s could not connect to rank %d on host %s, %s%s: %s. Let TCP pass between hosts, to any "
             "port, or name a network that does by NCCL_SOCKET_IFNAME",
             rank, infos[rank].host, to, infos[to].host, at, more, infos[rank].why);
    return ccomm_stay_raw(ccomm, why);
}

/* False: a rank could not connect to another one. */
static bool all_are_reached(struct coll_ccomm *ccomm, struct reach_info *infos)
{
    int first = -1, count = 0;
    for (int rank = ccomm->ranks - 1; rank >= 0; rank--) {
        tidy(&infos[rank]);
        if (infos[rank].rank < 0 || infos[rank].rank >= ccomm->ranks)
            continue;
        first = rank;
        count++;
    }
    return first < 0 || stay_raw_apart(ccomm, infos, first, count - 1);
}

/* Once all have accepted, it is too late to stay raw: from here on a failure is the communicator's. */
bool host_settle(struct coll_ccomm *ccomm)
{
    struct shared_resources *shared = &ccomm->shared;
    if (!shared->multi_host)
        return true;
    struct reach_info *infos = ccomm_gathered(ccomm, sizeof(*infos));
    const bool reached = infos != NULL && all_are_reached(ccomm, infos);
    free(infos);
    if (!reached)
        return false;
    if (!proxy_settle(ccomm)) {
        ccomm_fail(ccomm, COLL_REMOTE_ERROR, "a rank on another host has gone");
        ccomm_abort_kernels(ccomm);
    }
    return true;
}

void host_end(struct coll_ccomm *ccomm)
{
    struct shared_resources *shared = &ccomm->shared;
    proxy_end(ccomm);
    if (shared->pinned != NULL)
        ccomm->gpu->unregister_host(shared->pinned);
    segment_close(&shared->segment);
    free(shared->ring_numbers);
    *shared = (struct shared_resources){.segment.file = -1};
}
