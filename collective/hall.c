#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "collective/grow.h"
#include "collective/hall.h"
#include "internal/bytes.h"

struct hall_table {
    struct hall_table *older;
    uint64_t words[2];
    unsigned seated;
    struct coll_board board;
    int sockets[HALL_RANKS_MAX]; /* by rank; -1: nobody */
};

/* ---- Tables ------------------------------------------------------------------------------------------------------ */

/* Also false if there is unread data before the end: nobody waits for the answer. */
static bool is_there(const void *whom, int rank)
{
    const struct hall_table *table = whom;
    struct pollfd look = {.fd = table->sockets[rank], .events = POLLRDHUP};
    return look.fd >= 0 && poll(&look, 1, 0) == 0;
}

static void end(struct hall_tables *tables, struct hall_table *ended)
{
    struct hall_table **at = &tables->newest;
    while (*at != ended)
        at = &(*at)->older;
    *at = ended->older;
    tables->count--;
    free(ended->board.sheet);
    free(ended);
}

/* Frees the oldest table at which nobody sits. */
static bool hall_table_make_room(struct hall_tables *tables)
{
    struct hall_table *oldest = NULL;
    for (struct hall_table *table = tables->newest; table != NULL; table = table->older)
        oldest = table->seated == 0 ? table : oldest;
    if (oldest != NULL)
        end(tables, oldest);
    return oldest != NULL;
}

static struct hall_table *make(struct hall_tables *tables, const struct meet_hello *hello)
{
    if (tables->count == HALL_TABLES_MAX && !hall_table_make_room(tables))
        return NULL;
    struct hall_table *made = calloc(1, sizeof(*made));
    struct coll_sheet *sheet = calloc(1, coll_sheet_size((int)hello->ranks));
    if (made == NULL || sheet == NULL) {
        free(made);
        free(sheet);
        return NULL;
    }
    *made =
        (struct hall_table){.older = tables->newest,
                            .words = {hello->words[0], hello->words[1]},
                            .board = {.sheet = sheet, .ranks = (int)hello->ranks, .is_there = is_there, .whom = made}};
    for (int rank = 0; rank < HALL_RANKS_MAX; rank++)
        made->sockets[rank] = -1;
    tables->newest = made;
    tables->count++;
    return made;
}

static struct hall_table *find(const struct hall_tables *tables, const struct meet_hello *hello)
{
    struct hall_table *table = tables->newest;
    while (table != NULL && (table->words[0] != hello->words[0] || table->words[1] != hello->words[1]))
        table = table->older;
    return table;
}

/* ---- Seats ------------------------------------------------------------------------------------------------------- */

bool hall_sit(struct hall_tables *tables, const struct meet_hello *hello, int socket, struct hall_seat *seat)
{
    if (hello->ranks < 2 || hello->ranks > HALL_RANKS_MAX || hello->rank >= hello->ranks)
        return false;
    const int rank = (int)hello->rank;
    struct hall_table *table = find(tables, hello);
    if (table == NULL)
        table = make(tables, hello);
    if (table == NULL || table->board.ranks != (int)hello->ranks || table->sockets[rank] >= 0 ||
        coll_board_has_said(&table->board, rank, COLL_ROUND_PRESENT))
        return false;
    table->sockets[rank] = socket;
    table->seated++;
    *seat = (struct hall_seat){table, rank};
    return true;
}

/* One word for each round, and COLL_ROUND_PRESENT before all others. */
static bool may_say(const struct hall_seat *seat, enum coll_round round)
{
    const struct coll_board *board = &seat->table->board;
    return !coll_board_has_said(board, seat->rank, round) &&
           (round == COLL_ROUND_PRESENT || coll_board_has_said(board, seat->rank, COLL_ROUND_PRESENT));
}

static void leave(const struct hall_seat *seat)
{
    for (int round = 0; round < COLL_ROUNDS; round++)
        coll_board_decide(&seat->table->board, (enum coll_round)round, COLL_ENDING_LEFT, seat->rank);
}

bool hall_hear(const struct hall_seat *seat, const struct meet_request *request, struct coll_view *view)
{
    const struct coll_board *board = &seat->table->board;
    if (request->action == MEET_SAY) {
        if (!may_say(seat, request->round))
            return false;
        coll_board_say(board, seat->rank, request->round, &request->word);
        coll_board_judge(board, request->round);
    } else if (request->action == MEET_GIVE_UP) {
        coll_board_decide(board, request->round, COLL_ENDING_ABSENT, seat->rank);
    } else if (request->action == MEET_PASS) {
        coll_board_pass(board, seat->rank, request->word.index);
        coll_board_judge(board, COLL_ROUND_REACHED);
    } else if (request->action == MEET_LEAVE) {
        leave(seat);
        return false;
    }
    *view = coll_board_view(board, request->round);
    return true;
}

/* Decides for the others what can be told now. */
void hall_rise(struct hall_tables *tables, struct hall_seat *seat)
{
    struct hall_table *table = seat->table;
    const int rank = seat->rank;
    if (table == NULL)
        return;
    table->sockets[rank] = -1;
    table->seated--;
    *seat = (struct hall_seat){0};
    for (int round = 0; round < COLL_ROUNDS; round++)
        coll_board_judge(&table->board, (enum coll_round)round);
    const struct coll_view view = coll_board_view(&table->board, COLL_ROUND_PRESENT);
    if (table->seated == 0 && (view.all || view.ending == COLL_ENDING_OPEN))
        end(tables, table);
}

void hall_clear(struct hall_tables *tables)
{
    while (tables->newest != NULL)
        end(tables, tables->newest);
}

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
static bool hall_make_room(struct hall *hall)
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
    if (hall->count >= hall->most && !hall_make_room(hall)) {
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

/* magic, family, port, scope, address, secret, zeros: "STRCARD1" */
#define MAGIC UINT64_C(0x3144524143525453)
enum { CARD_AT = 64, CARD_BYTES = COLL_ID_BYTES - CARD_AT };

/* ---- In bytes ---------------------------------------------------------------------------------------------------- */

static void store(uint8_t *card, const struct coll_place *place)
{
    store_le64(card, MAGIC);
    store_le16(card + 8, place->address.family);
    store_le16(card + 10, place->address.port);
    store_le32(card + 12, place->address.scope);
    memcpy(card + 16, place->address.bytes, sizeof(place->address.bytes));
    memcpy(card + 32, place->secret, COLL_SECRET_BYTES);
}

void coll_card_read(const coll_id *id, struct coll_place *place)
{
    const uint8_t *card = (const uint8_t *)id->bytes + CARD_AT;
    memset(place, 0, sizeof(*place));
    if (load_le64(card) != MAGIC)
        return;
    place->address =
        (struct address){.family = load_le16(card + 8), .port = load_le16(card + 10), .scope = load_le32(card + 12)};
    memcpy(place->address.bytes, card + 16, sizeof(place->address.bytes));
    memcpy(place->secret, card + 32, COLL_SECRET_BYTES);
}

/* ---- The process's place ----------------------------------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    struct hall *hall; /* NULL: it has not been opened */
    struct coll_place place;
} own = {.lock = PTHREAD_MUTEX_INITIALIZER};

void coll_card_lock(void)
{
    pthread_mutex_lock(&own.lock);
}

void coll_card_unlock(void)
{
    pthread_mutex_unlock(&own.lock);
}

void coll_card_clear(void)
{
    if (own.hall != NULL)
        hall_close(own.hall);
    own.hall = NULL;
}

/* Runs for as long as the process does: children of a communicator may be made at any time. */
static void *run(void *argument)
{
    struct hall *hall = argument;
    for (;;) {
        hall_await(hall, -1);
        coll_card_lock();
        hall_serve(hall);
        coll_card_unlock();
    }
    return NULL;
}

/* All signals are blocked: they are for the program's threads. */
static bool start(struct hall *hall)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(&thread, NULL, run, hall) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started)
        pthread_detach(thread);
    return started;
}

static bool open_own(void)
{
    struct hall *opened = own.hall == NULL ? hall_open(&own.place) : NULL;
    if (opened != NULL && start(opened))
        own.hall = opened;
    else if (opened != NULL)
        hall_close(opened);
    return own.hall != NULL;
}

/* An id named by NCCL_COMM_ID is the same in all processes, and each of them may have asked for it. */
void coll_card_put(coll_id *id)
{
    static const uint8_t nothing[CARD_BYTES];
    uint8_t *card = (uint8_t *)id->bytes + CARD_AT;
    const char *named = getenv("NCCL_COMM_ID");
    if ((named != NULL && *named != '\0') || memcmp(card, nothing, CARD_BYTES) != 0)
        return;
    coll_card_lock();
    if (open_own())
        store(card, &own.place);
    coll_card_unlock();
}
