#include "collective/engine/greet.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "collective/clock.h"
#include "internal/bytes.h"

/* magic, from, to, secret */
enum { GREETING = 8 + 4 + 4 + GREET_SECRET, GUESTS_MAX = 128 };
#define CALLS   UINT64_C(0x314c4c4143525453) /* "STRCALL1" */
#define ANSWERS UINT64_C(0x31534e4152525453) /* "STRRANS1" */

static void put(uint8_t *greeting, uint64_t magic, int from, int to, const struct greet_card *card)
{
    store_le64(greeting, magic);
    store_le32(greeting + 8, (uint32_t)from);
    store_le32(greeting + 12, (uint32_t)to);
    memcpy(greeting + 16, card->secret, GREET_SECRET);
}

/* In constant time, so as not to reveal how much of it is right. */
static bool is_it(const uint8_t *greeting, uint64_t magic, int from, int to, const struct greet_card *card)
{
    uint8_t right[GREETING];
    unsigned differs = 0;
    put(right, magic, from, to, card);
    for (unsigned i = 0; i < GREETING; i++)
        differs |= right[i] ^ greeting[i];
    return differs == 0;
}

/* Does not block: a new connection's buffer has room. */
static bool say(int socket, uint64_t magic, int from, int to, const struct greet_card *card)
{
    uint8_t greeting[GREETING];
    put(greeting, magic, from, to, card);
    return send(socket, greeting, GREETING, MSG_NOSIGNAL | MSG_DONTWAIT) == GREETING;
}

/* ---- Connecting -------------------------------------------------------------------------------------------------- */

int greet_connect(const struct greet_card *card, int from, int to)
{
    const int connected = address_connect(&card->address, GREET_MILLISECONDS);
    if (connected < 0 || say(connected, CALLS, from, to, card))
        return connected;
    close(connected);
    return -1;
}

bool greet_await(int connected, const struct greet_card *own, int from, int to)
{
    const int64_t until = now_ms() + GREET_MILLISECONDS;
    uint8_t answer[GREETING];
    size_t got = 0;
    for (int64_t left = GREET_MILLISECONDS; got < GREETING && left > 0; left = until - now_ms()) {
        struct pollfd ready = {.fd = connected, .events = POLLIN};
        if (poll(&ready, 1, (int)left) < 0 && errno != EINTR)
            return false;
        const ssize_t size = recv(connected, answer + got, GREETING - got, MSG_DONTWAIT);
        if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR))
            return false;
        got += size > 0 ? (size_t)size : 0;
    }
    return got == GREETING && is_it(answer, ANSWERS, from, to, own);
}

/* ---- Accepting --------------------------------------------------------------------------------------------------- */

int greet_listen(struct greet_card *card)
{
    memset(card, 0, sizeof(*card));
    if (getrandom(card->secret, GREET_SECRET, 0) != GREET_SECRET)
        return -1;
    return address_listen(&card->address);
}

struct guest {
    int socket;
    size_t got;
    uint8_t said[GREETING];
};

struct reception {
    int listener, to;
    const struct greet_card *cards;
    uint64_t awaited;
    int *sockets;
    struct guest guests[GUESTS_MAX];
    unsigned count;
};

/* If there is no room, the guest that has been there longest goes. */
static void let_in(struct reception *here)
{
    const int socket = accept4(here->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket < 0)
        return;
    if (here->count == GUESTS_MAX) {
        close(here->guests[0].socket);
        memmove(here->guests, here->guests + 1, --here->count * sizeof(here->guests[0]));
    }
    here->guests[here->count++] = (struct guest){.socket = socket};
}

/* False: it is a stranger. */
static bool welcome(struct reception *here, const struct guest *guest)
{
    const uint32_t from = load_le32(guest->said + 8);
    if (from >= 64 || (here->awaited >> from & 1) == 0 ||
        !is_it(guest->said, CALLS, (int)from, here->to, &here->cards[here->to]) ||
        !say(guest->socket, ANSWERS, (int)from, here->to, &here->cards[from]))
        return false;
    here->sockets[from] = guest->socket;
    here->awaited &= ~(UINT64_C(1) << from);
    return true;
}

/* False: the guest has been let in or sent away. */
static bool listen_to(struct reception *here, struct guest *guest)
{
    const ssize_t size = recv(guest->socket, guest->said + guest->got, GREETING - guest->got, MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    guest->got += size > 0 ? (size_t)size : 0;
    if (size > 0 && guest->got < GREETING)
        return true;
    if (size <= 0 || !welcome(here, guest))
        close(guest->socket);
    return false;
}

static void look(struct reception *here, int milliseconds)
{
    struct pollfd ready[GUESTS_MAX + 1];
    const unsigned count = here->count;
    for (unsigned i = 0; i < count; i++)
        ready[i] = (struct pollfd){.fd = here->guests[i].socket, .events = POLLIN};
    ready[count] = (struct pollfd){.fd = here->listener, .events = POLLIN};
    (void)poll(ready, count + 1, milliseconds);
    unsigned kept = 0;
    for (unsigned i = 0; i < count; i++)
        if (listen_to(here, &here->guests[i]))
            here->guests[kept++] = here->guests[i];
    here->count = kept;
    let_in(here);
}

bool greet_accept(int listener, const struct greet_card *cards, int to, uint64_t awaited, int *sockets)
{
    struct reception here = {.listener = listener, .to = to, .cards = cards, .awaited = awaited, .sockets = sockets};
    const int64_t until = now_ms() + GREET_MILLISECONDS;
    for (int64_t left = GREET_MILLISECONDS; here.awaited != 0 && left > 0; left = until - now_ms())
        look(&here, (int)left);
    for (unsigned i = 0; i < here.count; i++)
        close(here.guests[i].socket);
    return here.awaited == 0;
}
