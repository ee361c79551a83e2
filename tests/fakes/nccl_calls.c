#include "tests/fakes/nccl_calls.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "tests/support.h"

#define REFUSED   (-1)
#define LATE      (-2)
#define QUEUE     4u /* operations of a communicator at a time: more than the transport should give */
#define SLICE_MS  2
#define NAME_SIZE 20u

struct fake_nccl fake_nccl;

struct stream {
    uint64_t begun, over;
};

struct event {
    const struct stream *stream;
    uint64_t until;
};

struct operation {
    uint8_t *data;
    size_t size;
    struct stream *stream;
    uint32_t number;
};

struct comm {
    pthread_t thread;
    pthread_cond_t work;
    int rank, fd, state;
    char name[NAME_SIZE]; /* of the socket */
    bool aborting;
    struct operation queue[QUEUE];
    uint64_t asked, taken;     /* of the queue */
    struct operation posting;  /* not in the queue yet */
    uint64_t posting_until_us; /* 0: nothing is being posted */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of everything here */
static _Thread_local bool entered;

void fake_nccl_reset(void)
{
    memset(&fake_nccl, 0, sizeof(fake_nccl));
    fake_nccl.multiprocessors = 132;
}

static uint64_t microseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static void sleep_us(uint32_t us)
{
    nanosleep(&(struct timespec){.tv_sec = us / 1000000, .tv_nsec = (long)(us % 1000000) * 1000}, NULL);
}

static const char *fake_text(int error)
{
    return error == LATE ? FAKE_NCCL_LATE : FAKE_NCCL_REFUSED;
}

static int fake_locate(const void *pointer, struct nccl_place *place)
{
    static _Atomic uint32_t asked;
    uint32_t who[2] = {(uint32_t)getpid(), ++asked};
    if (pointer == NULL)
        return REFUSED;
    *place = (struct nccl_place){.multiprocessors = fake_nccl.multiprocessors};
    if (!fake_nccl.same_gpu)
        memcpy(place->identity, who, sizeof(who));
    return NCCL_DONE;
}

static int fake_enter(int device)
{
    require(device == 0);
    entered = true;
    return NCCL_DONE;
}

/* ---- Streams and events ------------------------------------------------------------------------------------------ */

static int stream_create(void **stream)
{
    require(entered);
    *stream = calloc(1, sizeof(struct stream));
    require(*stream != NULL);
    fake_nccl.live++;
    return NCCL_DONE;
}

static int stream_state(void *arg)
{
    const struct stream *stream = arg;
    pthread_mutex_lock(&lock);
    bool busy = stream->over < stream->begun || fake_nccl.stuck;
    pthread_mutex_unlock(&lock);
    return busy ? NCCL_BUSY : NCCL_DONE;
}

static void stream_destroy(void *stream)
{
    require(stream_state(stream) == NCCL_DONE);
    free(stream);
    fake_nccl.live--;
}

static int event_create(void **event)
{
    require(entered);
    *event = calloc(1, sizeof(struct event));
    require(*event != NULL);
    fake_nccl.live++;
    return NCCL_DONE;
}

static void event_destroy(void *event)
{
    free(event);
    fake_nccl.live--;
}

static int event_record(void *arg, void *stream)
{
    struct event *event = arg;
    pthread_mutex_lock(&lock);
    require(event->stream == NULL || event->stream->over >= event->until); /* it is not waited for any more */
    event->stream = stream;
    event->until = event->stream->begun;
    pthread_mutex_unlock(&lock);
    return NCCL_DONE;
}

static int event_state(void *arg)
{
    const struct event *event = arg;
    pthread_mutex_lock(&lock);
    require(event->stream != NULL);
    bool busy = event->stream->over < event->until;
    pthread_mutex_unlock(&lock);
    return busy ? NCCL_BUSY : NCCL_DONE;
}

/* ---- The thread of a communicator -------------------------------------------------------------------------------- */

static bool is_aborting(struct comm *comm)
{
    pthread_mutex_lock(&lock);
    bool aborting = comm->aborting;
    pthread_mutex_unlock(&lock);
    return aborting;
}

static void hang(struct comm *comm)
{
    while (!is_aborting(comm))
        sleep_us(SLICE_MS * 1000);
}

static struct sockaddr_un address_of(const struct comm *comm, socklen_t *size)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path + 1, comm->name, NAME_SIZE); /* behind a zero: without a file */
    *size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + NAME_SIZE);
    return address;
}

static int accept_peer(struct comm *comm)
{
    socklen_t size;
    struct sockaddr_un address = address_of(comm, &size);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), fd = -1;
    require(listener >= 0 && bind(listener, (struct sockaddr *)&address, size) == 0 && listen(listener, 1) == 0);
    while (fd < 0 && !is_aborting(comm)) {
        struct pollfd poller = {.fd = listener, .events = POLLIN};
        poll(&poller, 1, SLICE_MS);
        fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    }
    close(listener);
    return fd;
}

static int reach_peer(struct comm *comm)
{
    socklen_t size;
    struct sockaddr_un address = address_of(comm, &size);
    while (!is_aborting(comm)) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        require(fd >= 0);
        if (connect(fd, (struct sockaddr *)&address, size) == 0)
            return fd;
        close(fd);
        sleep_us(SLICE_MS * 1000);
    }
    return -1;
}

/* True: all of it. A socket that ends is not noticed, as a GPU does not notice what became of its peer. */
static bool move_bytes(struct comm *comm, const struct operation *operation)
{
    size_t done = 0;
    while (done < operation->size && !is_aborting(comm)) {
        struct pollfd poller = {.fd = comm->fd, .events = comm->rank == 0 ? POLLOUT : POLLIN};
        if (poll(&poller, 1, SLICE_MS) == 0)
            continue;
        ssize_t moved = comm->rank == 0 ? send(comm->fd, operation->data + done, operation->size - done, MSG_NOSIGNAL)
                                        : recv(comm->fd, operation->data + done, operation->size - done, 0);
        if (moved == 0 || (moved < 0 && errno != EAGAIN))
            hang(comm);
        else if (moved > 0)
            done += (size_t)moved;
    }
    return done == operation->size;
}

static bool is_from(uint32_t number, uint32_t first)
{
    return first != 0 && number >= first;
}

static void run_operation(struct comm *comm, const struct operation *operation)
{
    if (fake_nccl.delay_us > 0)
        sleep_us(fake_nccl.delay_us);
    if (is_from(operation->number, fake_nccl.hang_operation))
        hang(comm);
    move_bytes(comm, operation);
    pthread_mutex_lock(&lock);
    if (operation->number == fake_nccl.late_operation)
        comm->state = LATE;
    comm->taken++;
    operation->stream->over++; /* also when it was aborted: nothing touches its memory any more */
    pthread_mutex_unlock(&lock);
}

/* False: the end. */
static bool next_operation(struct comm *comm, struct operation *operation)
{
    pthread_mutex_lock(&lock);
    while (comm->taken == comm->asked && !comm->aborting)
        pthread_cond_wait(&comm->work, &lock);
    bool any = comm->taken < comm->asked; /* those that were aborted, too: their stream has to drain */
    if (any)
        *operation = comm->queue[comm->taken % QUEUE];
    pthread_mutex_unlock(&lock);
    return any;
}

static void *comm_run(void *arg)
{
    struct comm *comm = arg;
    struct operation operation;
    if (fake_nccl.hang_join)
        hang(comm);
    comm->fd = comm->rank == 0 ? accept_peer(comm) : reach_peer(comm);
    pthread_mutex_lock(&lock);
    if (comm->fd >= 0)
        comm->state = NCCL_DONE;
    pthread_mutex_unlock(&lock);
    while (next_operation(comm, &operation))
        run_operation(comm, &operation);
    return NULL;
}

/* ---- Communicators ----------------------------------------------------------------------------------------------- */

static int make_id(uint8_t id[NCCL_ID_BYTES])
{
    memset(id, 0, NCCL_ID_BYTES);
    require(entered && getrandom(id, NAME_SIZE, 0) == (ssize_t)NAME_SIZE);
    return fake_nccl.fail_id ? REFUSED : NCCL_DONE;
}

static int join(void **out, const uint8_t id[NCCL_ID_BYTES], int rank, uint32_t blocks)
{
    require(entered && (rank == 0 || rank == 1) && blocks > 0);
    *out = NULL;
    if (++fake_nccl.joined == fake_nccl.fail_join)
        return REFUSED;
    struct comm *comm = calloc(1, sizeof(*comm));
    require(comm != NULL);
    comm->rank = rank;
    comm->state = NCCL_BUSY;
    comm->fd = -1;
    memcpy(comm->name, id, NAME_SIZE);
    pthread_cond_init(&comm->work, NULL);
    require(pthread_create(&comm->thread, NULL, comm_run, comm) == 0);
    fake_nccl.live++;
    *out = comm;
    return NCCL_BUSY;
}

/* Under the lock. */
static void enqueue(struct comm *comm, const struct operation *operation)
{
    require(comm->asked - comm->taken < QUEUE);
    comm->queue[comm->asked++ % QUEUE] = *operation;
    operation->stream->begun++;
    pthread_cond_signal(&comm->work);
}

/* Under the lock: what was posted is on its stream once its time has come, or rather when somebody looks. */
static int current_state(struct comm *comm)
{
    if (comm->posting_until_us == 0 || comm->state != NCCL_DONE)
        return comm->state;
    if (microseconds() < comm->posting_until_us)
        return NCCL_BUSY;
    comm->posting_until_us = 0;
    enqueue(comm, &comm->posting);
    return NCCL_DONE;
}

static int state(void *arg)
{
    pthread_mutex_lock(&lock);
    int code = current_state(arg);
    pthread_mutex_unlock(&lock);
    return code;
}

/* Under the lock. */
static int begin(struct comm *comm, const struct operation *operation)
{
    require(comm->posting_until_us == 0 && comm->state != NCCL_BUSY); /* nothing may be asked of one that is busy */
    if (comm->state != NCCL_DONE || operation->number == fake_nccl.fail_operation)
        return REFUSED;
    if (fake_nccl.posting_us == 0) {
        enqueue(comm, operation);
        return NCCL_DONE;
    }
    comm->posting = *operation;
    comm->posting_until_us = microseconds() + fake_nccl.posting_us;
    return NCCL_BUSY;
}

static int operate(struct comm *comm, void *data, size_t size, void *stream)
{
    struct operation operation = {.data = data, .size = size, .stream = stream, .number = ++fake_nccl.operations};
    require(entered && size > 0);
    pthread_mutex_lock(&lock);
    int code = begin(comm, &operation);
    pthread_mutex_unlock(&lock);
    return code;
}

static int send_bytes(void *comm, const void *data, size_t size, void *stream)
{
    require(((const struct comm *)comm)->rank == 0);
    return operate(comm, (void *)(uintptr_t)data, size, stream);
}

static int receive_bytes(void *comm, void *data, size_t size, void *stream)
{
    require(((const struct comm *)comm)->rank == 1);
    return operate(comm, data, size, stream);
}

static void abort_comm(void *arg)
{
    struct comm *comm = arg;
    pthread_mutex_lock(&lock);
    comm->aborting = true;
    pthread_cond_signal(&comm->work);
    pthread_mutex_unlock(&lock);
    pthread_join(comm->thread, NULL);
    if (comm->fd >= 0)
        close(comm->fd);
    pthread_cond_destroy(&comm->work);
    free(comm);
    fake_nccl.aborted++;
    fake_nccl.live--;
}

const struct nccl_calls fake_nccl_calls = {
    .version = NCCL_CALLS_VERSION,
    .library = FAKE_NCCL_LIBRARY,
    .within_process = true,
    .text = fake_text,
    .locate = fake_locate,
    .enter = fake_enter,
    .make_id = make_id,
    .join = join,
    .state = state,
    .send = send_bytes,
    .receive = receive_bytes,
    .abort = abort_comm,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_state = stream_state,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_state = event_state,
};

/* In place of the plugin that knows the real one: for daemons that are processes of their own. */
__attribute__((visibility("default"))) nccl_calls_get strait_transport_nccl_calls;

const struct nccl_calls *strait_transport_nccl_calls(const char *library, char *why, size_t why_size)
{
    (void)library, (void)why, (void)why_size;
    fake_nccl_reset();
    return &fake_nccl_calls;
}
