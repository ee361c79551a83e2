#include "tests/soak/relay.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/daemon.h"

#define PAIRS_MAX    64u
#define BUFFER_BYTES (256u * 1024)

/* Bytes on their way from one connection to the other. */
struct stream {
    uint8_t bytes[BUFFER_BYTES];
    size_t begin, end;
};

/* The connection that was accepted, and the one that was made for it. */
struct pair {
    int fds[2];
    struct stream streams[2]; /* from fds[i] */
};

struct relay_state {
    const struct relay *relay;
    int listeners[RELAY_FRONTS_MAX]; /* -1: cut */
    struct pair *pairs[PAIRS_MAX];
    uint64_t back_ms; /* 0: it is not cut */
};

/* ---- Sockets ----------------------------------------------------------------------------------------------------- */

/* Bound and listening, or connected; -1: it cannot be. */
static int socket_at(const char *host, unsigned port, bool listens)
{
    const struct addrinfo wanted = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char service[16];
    const int on = 1;
    snprintf(service, sizeof(service), "%u", port);
    if (getaddrinfo(host, service, &wanted, &found) != 0)
        return -1;
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool good = fd >= 0;
    if (good && listens)
        good = setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
               bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, 64) == 0;
    else if (good)
        good = connect(fd, found->ai_addr, found->ai_addrlen) == 0; /* of this host: answered at once */
    freeaddrinfo(found);
    if (good && fcntl(fd, F_SETFL, O_NONBLOCK) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static void pair_close(struct relay_state *state, uint32_t index)
{
    struct pair *pair = state->pairs[index];
    if (pair == NULL)
        return;
    close(pair->fds[0]);
    close(pair->fds[1]);
    free(pair);
    state->pairs[index] = NULL;
}

/* A daemon that is away, or too many connections: the new one is closed. */
static void pair_accept(struct relay_state *state, uint32_t front)
{
    uint32_t index = 0;
    const int fd = accept4(state->listeners[front], NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    while (index < PAIRS_MAX && state->pairs[index] != NULL)
        index++;
    struct pair *pair = index < PAIRS_MAX ? calloc(1, sizeof(*pair)) : NULL;
    const int behind = pair != NULL ? socket_at(state->relay->host, state->relay->behind[front], false) : -1;
    if (behind < 0) {
        free(pair);
        close(fd);
        return;
    }
    pair->fds[0] = fd;
    pair->fds[1] = behind;
    state->pairs[index] = pair;
}

static bool has_failed(ssize_t got)
{
    return got < 0 && errno != EAGAIN && errno != EINTR;
}

/* Reads what there is room for, writes what there is. False: one side has ended, and all that it sent was passed on as
 * far as the other takes it. */
static bool stream_move(struct stream *stream, int from, int to)
{
    if (stream->begin == stream->end) {
        stream->begin = stream->end = 0;
        const ssize_t got = recv(from, stream->bytes, BUFFER_BYTES, 0);
        if (got == 0 || has_failed(got))
            return false;
        stream->end = got > 0 ? (size_t)got : 0;
    }
    if (stream->begin == stream->end)
        return true;
    const ssize_t sent = send(to, stream->bytes + stream->begin, stream->end - stream->begin, MSG_NOSIGNAL);
    stream->begin += sent > 0 ? (size_t)sent : 0;
    return !has_failed(sent);
}

static short events_of(const struct pair *pair, int i)
{
    const struct stream *out = &pair->streams[i], *in = &pair->streams[1 - i];
    return (short)((out->begin == out->end ? POLLIN : 0) | (in->begin != in->end ? POLLOUT : 0));
}

/* ---- Cuts -------------------------------------------------------------------------------------------------------- */

static void cut(struct relay_state *state, uint32_t ms)
{
    for (uint32_t i = 0; i < PAIRS_MAX; i++)
        pair_close(state, i);
    for (uint32_t i = 0; i < state->relay->count; i++) {
        close(state->listeners[i]);
        state->listeners[i] = -1;
    }
    state->back_ms = now_ms() + ms;
}

static bool come_back(struct relay_state *state)
{
    state->back_ms = 0;
    for (uint32_t i = 0; i < state->relay->count; i++)
        if ((state->listeners[i] = socket_at(state->relay->host, state->relay->front[i], true)) < 0)
            return false;
    return true;
}

/* ---- The process ------------------------------------------------------------------------------------------------- */

static uint32_t watch(const struct relay_state *state, int orders, struct pollfd *fds)
{
    uint32_t count = 0;
    fds[count++] = (struct pollfd){.fd = orders, .events = POLLIN};
    for (uint32_t i = 0; i < state->relay->count; i++)
        fds[count++] = (struct pollfd){.fd = state->listeners[i], .events = POLLIN}; /* -1 is passed over */
    for (uint32_t i = 0; i < PAIRS_MAX; i++)
        for (int side = 0; side < 2; side++)
            fds[count++] = state->pairs[i] == NULL ? (struct pollfd){.fd = -1}
                                                   : (struct pollfd){.fd = state->pairs[i]->fds[side],
                                                                     .events = events_of(state->pairs[i], side)};
    return count;
}

static void __attribute__((noreturn)) relay_run(const struct relay *relay, int orders)
{
    static struct relay_state state;
    struct pollfd fds[1 + RELAY_FRONTS_MAX + 2 * PAIRS_MAX];
    uint32_t ms;
    state.relay = relay;
    bool listens = come_back(&state);
    while (listens) {
        const uint64_t now = now_ms();
        if (state.back_ms != 0 && now >= state.back_ms) {
            listens = come_back(&state);
            continue;
        }
        const uint32_t count = watch(&state, orders, fds);
        (void)poll(fds, count, state.back_ms != 0 ? (int)(state.back_ms - now) : -1);
        if (fds[0].revents != 0) {
            if (read(orders, &ms, sizeof(ms)) != sizeof(ms))
                _exit(0);
            cut(&state, ms);
            continue;
        }
        for (uint32_t i = 0; i < PAIRS_MAX; i++) {
            struct pair *pair = state.pairs[i];
            const struct pollfd *ready = &fds[1 + relay->count + 2 * i];
            if (pair == NULL || (ready[0].revents | ready[1].revents) == 0)
                continue;
            if (!stream_move(&pair->streams[0], pair->fds[0], pair->fds[1]) ||
                !stream_move(&pair->streams[1], pair->fds[1], pair->fds[0]))
                pair_close(&state, i);
        }
        for (uint32_t i = 0; i < relay->count; i++)
            if (fds[1 + i].revents != 0)
                pair_accept(&state, i);
    }
    fprintf(stderr, "relay: cannot listen: %s\n", strerror(errno));
    _exit(1);
}

bool relay_start(struct relay *relay)
{
    int orders[2];
    const pid_t parent = getpid();
    if (pipe2(orders, O_CLOEXEC) != 0)
        return false;
    fflush(NULL);
    relay->pid = fork();
    if (relay->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(orders[1]);
        if (getppid() != parent)
            _exit(1);
        relay_run(relay, orders[0]);
    }
    close(orders[0]);
    relay->orders = orders[1];
    if (relay->pid > 0)
        return true;
    close(relay->orders);
    relay->pid = 0;
    return false;
}

void relay_cut(struct relay *relay, uint32_t ms)
{
    if (write(relay->orders, &ms, sizeof(ms)) != sizeof(ms))
        fprintf(stderr, "relay: it is not there any more\n");
}

void relay_stop(struct relay *relay)
{
    if (relay->pid == 0)
        return;
    close(relay->orders);
    kill(relay->pid, SIGKILL);
    (void)process_reap(relay->pid);
    relay->pid = 0;
}
