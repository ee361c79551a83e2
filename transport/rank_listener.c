#include "transport/rank_listener.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "internal/bytes.h"
#include "transport/rank_address.h"

enum { STRANGER_MS = 10000, PREAMBLE_BYTES = 32 };

void rank_listener_init(struct rank_listener *listener)
{
    listener->file = -1;
    listener->ready = true;
    for (unsigned i = 0; i < RANK_STRANGERS_MAX; i++)
        listener->strangers[i].file = -1;
}

bool rank_listener_open(struct rank_listener *listener, struct address *address)
{
    listener->file = address_listen(address);
    return listener->file >= 0;
}

void rank_listener_close(struct rank_listener *listener)
{
    for (unsigned i = 0; i < RANK_STRANGERS_MAX; i++)
        if (listener->strangers[i].file >= 0)
            (void)close(listener->strangers[i].file);
    if (listener->file >= 0)
        (void)close(listener->file);
    rank_listener_init(listener);
}

/* The transport reads the same bytes again, and closes the connection if they do not prove what they say. */
static void admit(struct rank_stranger *stranger, struct transport *transport,
                  bool (*awaits)(void *arg, uint64_t number), void *arg)
{
    uint8_t preamble[PREAMBLE_BYTES];
    const ssize_t size = recv(stranger->file, preamble, sizeof(preamble), MSG_PEEK | MSG_DONTWAIT);
    const bool waits = size < 0 ? errno == EAGAIN || errno == EINTR : size > 0 && size < PREAMBLE_BYTES;
    if (waits && now_ms() < stranger->until_ms)
        return;
    if (size == PREAMBLE_BYTES && tcp_is_preamble(preamble) && awaits(arg, load_le64(preamble + TCP_FIRST_BYTES)))
        tcp_adopt(transport, stranger->file);
    else
        (void)close(stranger->file);
    stranger->file = -1;
}

/* A place that is free, or that of the oldest. */
static struct rank_stranger *place_for(struct rank_listener *listener)
{
    struct rank_stranger *oldest = &listener->strangers[0];
    for (unsigned i = 0; i < RANK_STRANGERS_MAX; i++) {
        struct rank_stranger *stranger = &listener->strangers[i];
        if (stranger->file < 0)
            return stranger;
        if (stranger->until_ms < oldest->until_ms)
            oldest = stranger;
    }
    (void)close(oldest->file);
    return oldest;
}

/* What a rank has to show comes with its connection as a rule, so it takes no place of others. */
void rank_listener_accept(struct rank_listener *listener, struct transport *transport,
                          bool (*awaits)(void *arg, uint64_t number), void *arg)
{
    for (unsigned i = 0; i < RANK_STRANGERS_MAX && listener->ready && listener->file >= 0; i++) {
        const int file = accept4(listener->file, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        listener->ready = file >= 0;
        if (file < 0)
            break;
        struct rank_stranger *stranger = place_for(listener);
        *stranger = (struct rank_stranger){.file = file, .until_ms = now_ms() + STRANGER_MS};
        admit(stranger, transport, awaits, arg);
    }
    for (unsigned i = 0; i < RANK_STRANGERS_MAX; i++)
        if (listener->strangers[i].file >= 0)
            admit(&listener->strangers[i], transport, awaits, arg);
}
