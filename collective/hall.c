#include "collective/hall.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "collective/clock.h"
#include "collective/hall_table.h"

/* A frame has to be complete within FRAME_MS, and so does a connection's first one. When descriptors run out, nothing
 * is accepted for DEAF_MS. */
enum { GUESTS_MAX = 1024, FRAME_MS = 10000, LOOK_MS = 500, DEAF_MS = 100 };

struct guest {
    int socket;
    struct hall_seat seat; /* without a table: a stranger */
    int64_t since_ms;      /* when the current frame began; for a stranger, when it came */
    size_t got;
    uint8_t frame[MEET_FRAME_BYTES];
};

struct hall {
    int listener;
    uint8_t secret[COLL_SECRET_BYTES];
    int64_t deaf_until_ms;
    struct hall_tables tables;
    unsigned count, most;
    struct guest guests[GUESTS_MAX];
    struct pollfd ready[GUESTS_MAX + 1]; /* of guests in their order, then of the listener */
};

/* ---- Guests ------------------------------------------------------------------------------------------------------ */

static bool is_stranger(const struct guest *guest)
{
    return guest->seat.table == NULL;
}

/* The last guest takes its place in the array. */
static void see_off(struct hall *hall, unsigned number)
{
    struct guest *guest = &hall->guests[number];
    hall_rise(&hall->tables, &guest->seat);
    (void)close(guest->socket);
    *guest = hall->guests[--hall->count];
}

/* Sends off the stranger that has been there longest. */
static bool make_room(struct hall *hall)
{
    unsigned oldest = hall->count;
    for (unsigned i = 0; i < hall->count; i++)
        if (is_stranger(&hall->guests[i]) &&
            (oldest == hall->count || hall->guests[i].since_ms < hall->guests[oldest].since_ms))
            oldest = i;
    if (oldest == hall->count)
        return false;
    see_off(hall, oldest);
    return true;
}

void hall_take(struct hall *hall, int socket)
{
    if (hall->count >= hall->most && !make_room(hall)) {
        (void)close(socket);
        return;
    }
    address_tune(socket);
    hall->guests[hall->count++] = (struct guest){.socket = socket, .since_ms = now_ms()};
}

static void let_in(struct hall *hall)
{
    const int socket = accept4(hall->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket >= 0)
        hall_take(hall, socket);
    else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
        hall->deaf_until_ms = now_ms() + DEAF_MS;
}

/* ---- Frames ------------------------------------------------------------------------------------------------------ */

/* In constant time, so as not to reveal how much of it is right. */
static bool knows_secret(const struct hall *hall, const struct meet_hello *hello)
{
    unsigned differs = 0;
    for (unsigned i = 0; i < COLL_SECRET_BYTES; i++)
        differs |= hall->secret[i] ^ hello->secret[i];
    return differs == 0;
}

static bool hear_hello(struct hall *hall, struct guest *guest, struct coll_view *view)
{
    const struct meet_request look = {.action = MEET_LOOK, .round = COLL_ROUND_PRESENT};
    struct meet_hello hello;
    return meet_hello_get(guest->frame, &hello) && knows_secret(hall, &hello) &&
           hall_sit(&hall->tables, &hello, guest->socket, &guest->seat) && hall_hear(&guest->seat, &look, view);
}

static bool hear_request(const struct guest *guest, struct coll_view *view, bool *answered)
{
    struct meet_request request;
    if (!meet_request_get(guest->frame, &request))
        return false;
    *answered = request.action != MEET_PASS;
    return hall_hear(&guest->seat, &request, view);
}

/* A guest that goes on asking without reading the answers runs out of buffer, and is sent off. */
static bool answer(struct hall *hall, struct guest *guest)
{
    uint8_t frame[MEET_FRAME_BYTES];
    struct coll_view view;
    bool answered = true;
    if (!(is_stranger(guest) ? hear_hello(hall, guest, &view) : hear_request(guest, &view, &answered)))
        return false;
    guest->got = 0;
    if (!answered)
        return true;
    meet_view_put(frame, &view);
    return send(guest->socket, frame, sizeof(frame), MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(frame);
}

/* False: the guest has to be sent off. */
static bool listen_to(struct hall *hall, struct guest *guest)
{
    const ssize_t size = recv(guest->socket, guest->frame + guest->got, MEET_FRAME_BYTES - guest->got, MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (size <= 0)
        return false;
    if (guest->got == 0 && !is_stranger(guest))
        guest->since_ms = now_ms();
    guest->got += (size_t)size;
    return guest->got < MEET_FRAME_BYTES || answer(hall, guest);
}

/* ---- A turn ------------------------------------------------------------------------------------------------------ */

static bool is_timed(const struct guest *guest)
{
    return is_stranger(guest) || guest->got > 0;
}

void hall_await(struct hall *hall, int milliseconds)
{
    const bool deaf = hall->deaf_until_ms > now_ms();
    int most = deaf ? DEAF_MS : milliseconds;
    for (unsigned i = 0; i < hall->count; i++) {
        hall->ready[i] = (struct pollfd){.fd = hall->guests[i].socket, .events = POLLIN};
        if (is_timed(&hall->guests[i]) && (most < 0 || most > LOOK_MS))
            most = LOOK_MS;
    }
    hall->ready[hall->count] = (struct pollfd){.fd = deaf ? -1 : hall->listener, .events = POLLIN};
    if (poll(hall->ready, hall->count + 1, most) >= 0)
        return;
    for (unsigned i = 0; i <= hall->count; i++) /* after an error, nothing is known of them */
        hall->ready[i].revents = 0;
}

/* Goes from the last guest to the first, as the last one replaces one that is sent off. */
void hall_serve(struct hall *hall)
{
    const bool called = hall->ready[hall->count].revents != 0;
    const int64_t late_ms = now_ms() - FRAME_MS;
    for (unsigned i = hall->count; i-- > 0;) {
        struct guest *guest = &hall->guests[i];
        if ((hall->ready[i].revents != 0 && !listen_to(hall, guest)) || (is_timed(guest) && guest->since_ms < late_ms))
            see_off(hall, i);
    }
    if (called)
        let_in(hall);
}

/* ---- Opened and closed ------------------------------------------------------------------------------------------- */

/* Most of a process's descriptors are left to the program. */
static unsigned guests_most(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur / 4 >= GUESTS_MAX)
        return GUESTS_MAX;
    return files.rlim_cur >= 64 ? (unsigned)files.rlim_cur / 4 : 16;
}

struct hall *hall_open(struct coll_place *place)
{
    struct hall *made = calloc(1, sizeof(*made));
    memset(place, 0, sizeof(*place));
    if (made == NULL || getrandom(made->secret, COLL_SECRET_BYTES, 0) != COLL_SECRET_BYTES ||
        (made->listener = address_listen(&place->address)) < 0) {
        free(made);
        return NULL;
    }
    made->most = guests_most();
    memcpy(place->secret, made->secret, COLL_SECRET_BYTES);
    return made;
}

void hall_close(struct hall *hall)
{
    for (unsigned i = 0; i < hall->count; i++)
        (void)close(hall->guests[i].socket);
    (void)close(hall->listener);
    hall_clear(&hall->tables);
    free(hall);
}

void hall_count(const struct hall *hall, unsigned *guests, unsigned *tables)
{
    *guests = hall->count;
    *tables = hall->tables.count;
}
