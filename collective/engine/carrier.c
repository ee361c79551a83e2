#include "collective/engine/carrier.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "collective/engine/link_parts.h"
#include "collective/engine/member.h"

/* How often it polls memory that kernels write, as they wake nobody: often for a while after anything moved. Sockets
 * wake it at once. */
enum { SOON_NS = 20000, LATER_NS = 1000000, BUSY_TURNS = 2000, SOCKETS_MAX = 1024 };

/* All of it is under the lock. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct link *first;
    pid_t process; /* in which the thread runs; 0: it has not been started */
    bool over;     /* the process ends: CUDA's memory may be gone already */
} carrier = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* Sockets beyond SOCKETS_MAX are polled as often as kernels' memory is. */
static nfds_t list_sockets(struct pollfd *sockets)
{
    nfds_t count = 0;
    for (const struct link *link = carrier.first; link != NULL; link = link->next)
        for (int rank = 0; rank < link->member->ranks && count < SOCKETS_MAX; rank++)
            if (link->carries[rank].socket >= 0)
                sockets[count++] =
                    (struct pollfd){.fd = link->carries[rank].socket,
                                    .events = (short)(POLLIN | (link->carries[rank].blocked ? POLLOUT : 0))};
    return count;
}

/* Called with the lock held, and releases it meanwhile. */
static void rest(bool busy)
{
    static struct pollfd sockets[SOCKETS_MAX]; /* used by the thread alone */
    const nfds_t count = list_sockets(sockets);
    pthread_mutex_unlock(&carrier.lock);
    (void)ppoll(sockets, count, &(struct timespec){.tv_nsec = busy ? SOON_NS : LATER_NS}, NULL);
    pthread_mutex_lock(&carrier.lock);
}

static void *run(void *argument)
{
    unsigned quiet = BUSY_TURNS;
    (void)prctl(PR_SET_TIMERSLACK, 1000UL);
    pthread_mutex_lock(&carrier.lock);
    while (!carrier.over) {
        bool moved = false;
        while (carrier.first == NULL && !carrier.over)
            pthread_cond_wait(&carrier.changed, &carrier.lock);
        for (struct link *link = carrier.first; link != NULL && !carrier.over; link = link->next)
            moved |= link_turn(link);
        quiet = moved ? 0 : quiet + (quiet < BUSY_TURNS);
        if (!carrier.over)
            rest(quiet < BUSY_TURNS);
    }
    pthread_mutex_unlock(&carrier.lock);
    return argument;
}

/* Registered after CUDA's exit handler, so it runs before that. In a forked child the lock is as it was at the fork. */
static void stop(void)
{
    if (carrier.process != getpid())
        return;
    pthread_mutex_lock(&carrier.lock);
    carrier.over = true;
    pthread_mutex_unlock(&carrier.lock);
}

/* A child closes its copies of the connections: otherwise they would not end with its parent. */
static void before_fork(void)
{
    pthread_mutex_lock(&carrier.lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&carrier.lock);
}

static void be_child(void)
{
    for (struct link *link = carrier.first; link != NULL; link = link->next)
        for (int rank = 0; rank < link->member->ranks; rank++)
            if (link->carries[rank].socket >= 0)
                close(link->carries[rank].socket);
    carrier.first = NULL;
    carrier.process = 0;
    pthread_mutex_unlock(&carrier.lock);
}

static bool prepare(void)
{
    static bool prepared;
    if (!prepared)
        prepared = atexit(stop) == 0 && pthread_atfork(before_fork, after_fork, be_child) == 0;
    return prepared;
}

/* All signals are blocked: they are for the program's threads. */
static bool start(void)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = prepare() && pthread_create(&thread, NULL, run, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started)
        pthread_detach(thread);
    carrier.process = started ? getpid() : 0;
    return started;
}

bool carrier_is_ours(void)
{
    return carrier.process == getpid();
}

bool carrier_take(struct link *link)
{
    pthread_mutex_lock(&carrier.lock);
    const bool good = carrier.process == getpid() || start();
    if (good) {
        link->carried = true;
        link->next = carrier.first;
        carrier.first = link;
        pthread_cond_signal(&carrier.changed);
    }
    pthread_mutex_unlock(&carrier.lock);
    return good;
}

void carrier_finish(struct link *link)
{
    pthread_mutex_lock(&carrier.lock);
    link->finished = true;
    pthread_mutex_unlock(&carrier.lock);
}

bool carrier_drop(struct link *link, bool (*done)(const struct link *link))
{
    if (!link->carried || !carrier_is_ours())
        return true;
    pthread_mutex_lock(&carrier.lock);
    const bool drops = done == NULL || carrier.over || done(link);
    for (struct link **at = &carrier.first; *at != NULL && drops; at = &(*at)->next)
        if (*at == link) {
            *at = link->next;
            break;
        }
    link->carried = !drops;
    pthread_mutex_unlock(&carrier.lock);
    return drops;
}
