/* A meeting at a process that is asked by TCP. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "collective/clock.h"
#include "collective/meeting_frame.h"
#include "collective/meeting_kind.h"

/* For making a connection, and for an answer: that process has nothing else to do. If it is stopped for so long, it
 * finds that this rank has gone before it tells anybody that all go on. */
enum { CONNECT_MS = 4000, ANSWER_MS = 20000 };

struct there {
    struct coll_meeting meeting;
    int socket;                          /* -1: the connection has ended */
    struct coll_view views[COLL_ROUNDS]; /* the last one of each round */
};

/* ---- Asking ------------------------------------------------------------------------------------------------------ */

/* If there is no room, the other side has not read for long. */
static bool put(int socket, const uint8_t *frame)
{
    return send(socket, frame, MEET_FRAME_BYTES, MSG_NOSIGNAL | MSG_DONTWAIT) == MEET_FRAME_BYTES;
}

static bool get(int socket, uint8_t *frame)
{
    const int64_t until = now_ms() + ANSWER_MS;
    size_t got = 0;
    for (int64_t left = ANSWER_MS; got < MEET_FRAME_BYTES && left > 0; left = until - now_ms()) {
        struct pollfd ready = {.fd = socket, .events = POLLIN};
        if (poll(&ready, 1, (int)left) < 0 && errno != EINTR)
            return false;
        const ssize_t size = recv(socket, frame + got, MEET_FRAME_BYTES - got, MSG_DONTWAIT);
        if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR))
            return false;
        got += size > 0 ? (size_t)size : 0;
    }
    return got == MEET_FRAME_BYTES;
}

/* Also for a connection that a forked process has inherited. */
static void hang_up(struct there *there)
{
    if (there->socket < 0)
        return;
    (void)shutdown(there->socket, SHUT_RDWR);
    (void)close(there->socket);
    there->socket = -1;
}

/* A decided view is final and is not asked for again. */
static struct coll_view ask(struct there *there, enum coll_round round, const uint8_t *frame)
{
    struct coll_view *view = &there->views[round];
    uint8_t answer[MEET_FRAME_BYTES];
    if (view->ending != COLL_ENDING_OPEN)
        return *view;
    if (there->socket >= 0 && put(there->socket, frame) && get(there->socket, answer) && meet_view_get(answer, view))
        return *view;
    hang_up(there);
    view->ending = COLL_ENDING_LOST;
    return *view;
}

static struct coll_view request(struct coll_meeting *meeting, enum meet_action action, enum coll_round round,
                                const struct coll_word *word)
{
    uint8_t frame[MEET_FRAME_BYTES];
    struct meet_request request = {.action = action, .round = round};
    if (word != NULL)
        request.word = *word;
    meet_request_put(frame, &request);
    return ask((struct there *)meeting, round, frame);
}

/* ---- The kind of meeting ----------------------------------------------------------------------------------------- */

static void say(struct coll_meeting *meeting, enum coll_round round, const struct coll_word *word)
{
    (void)request(meeting, MEET_SAY, round, word);
}

/* Not answered, so that the operation goes on at once. */
static void pass(struct coll_meeting *meeting, uint32_t begun)
{
    struct there *there = (struct there *)meeting;
    uint8_t frame[MEET_FRAME_BYTES];
    meet_request_put(frame, &(struct meet_request){.action = MEET_PASS, .word = {.index = begun}});
    if (there->socket >= 0 && !put(there->socket, frame))
        hang_up(there);
}

static struct coll_view look(struct coll_meeting *meeting, enum coll_round round)
{
    return request(meeting, MEET_LOOK, round, NULL);
}

static void give_up(struct coll_meeting *meeting, enum coll_round round)
{
    (void)request(meeting, MEET_GIVE_UP, round, NULL);
}

static void leave(struct coll_meeting *meeting)
{
    struct there *there = (struct there *)meeting;
    uint8_t frame[MEET_FRAME_BYTES];
    meet_request_put(frame, &(struct meet_request){.action = MEET_LEAVE});
    if (there->socket >= 0)
        (void)put(there->socket, frame);
    hang_up(there);
    free(there);
}

/* Every look costs the one process that all ranks ask. */
static const struct coll_meeting_kind kind = {.say = say,
                                              .pass = pass,
                                              .look = look,
                                              .give_up = give_up,
                                              .leave = leave,
                                              .least_ns = 300000,
                                              .most_ns = 20000000,
                                              .linger_ms = 0};

struct coll_meeting *coll_meeting_come_there(const struct coll_key *key, int rank, int ranks)
{
    uint8_t frame[MEET_FRAME_BYTES];
    struct meet_hello hello = {
        .words = {key->words[0], key->words[1]}, .rank = (uint32_t)rank, .ranks = (uint32_t)ranks};
    struct there *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return NULL;
    made->meeting = (struct coll_meeting){&kind, rank, ranks};
    made->socket = address_connect(&key->place.address, CONNECT_MS);
    memcpy(hello.secret, key->place.secret, COLL_SECRET_BYTES);
    meet_hello_put(frame, &hello);
    if (ask(made, COLL_ROUND_PRESENT, frame).ending != COLL_ENDING_LOST)
        return &made->meeting;
    leave(&made->meeting);
    return NULL;
}
