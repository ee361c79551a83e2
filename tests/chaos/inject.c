/* Linked into straitd-chaos: at the points of daemon/base/fault.h it does what the driver asks for (inject.h).
 * Only the loop's thread touches state other than the shared file; on workers a point only counts, waits, or holds. */
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/base/fault.h"
#include "daemon/node.h"
#include "daemon/peers/peer_internal.h"
#include "daemon/session.h"
#include "daemon/sink.h"
#include "tests/chaos/inject.h"
#if STRAIT_HAVE_UCX
#include "transport/ucx.h"
#endif

#define OVERTAKE_MS 20u /* a message that none has overtaken by then is sent */
#define COPIES      64u
#define OWN_COOKIE  (1ull << 63) /* no chunk of a source has it: those are addresses */

static struct chaos_shared *shared;
static struct chaos_side *me;
static struct peers *all; /* known once a peer has been seen */
static bool injecting;    /* what is sent now is ours */

static uint64_t now_ms(void)
{
    return uv_hrtime() / 1000000;
}

/* ---- Peers that may be gone ----------------------------------------------------------------------------------- */

struct ticket { /* a connection, by what no other one has */
    struct peer *peer;
    uint64_t token;
};

struct search {
    const struct ticket *ticket;
    bool found;
};

static void match(void *arg, struct peer *peer)
{
    struct search *search = arg;
    search->found |= peer == search->ticket->peer && peer->token == search->ticket->token && peer->state == PEER_UP;
}

static bool is_there(const struct ticket *ticket)
{
    struct search search = {.ticket = ticket};
    if (all != NULL)
        peers_each(all, match, &search);
    return search.found;
}

/* ---- Copies of what was sent ---------------------------------------------------------------------------------- */

/* A chunk's bytes in host memory, held by a copy and by each time that it is being sent. */
struct content {
    uint32_t holders;
    uint8_t bytes[];
};

struct copy {
    struct ticket ticket;
    uint8_t *frame; /* NULL: a chunk */
    size_t size;
    uint8_t header[TRANSPORT_HEADER_MAX];
    size_t header_size;
    struct link *link;
    struct content *content; /* NULL: none, or `data` */
    const void *data;        /* on a GPU, in a send arena, which stays: whatever is there by then */
    void *handle;
};

static struct copy copies[COPIES];
static uint32_t copy_count;

static struct copy late; /* held back until another message overtakes it */
static uint64_t late_until;

static void content_release(struct content *content)
{
    if (content != NULL && --content->holders == 0)
        free(content);
}

static void copy_fini(struct copy *copy)
{
    free(copy->frame);
    content_release(copy->content);
}

static void drop_copies(void)
{
    for (uint32_t i = 0; i < copy_count; i++)
        copy_fini(&copies[i]);
    copy_count = 0;
}

static bool copy_message(struct copy *copy, struct peer *peer, const struct message *message)
{
    *copy = (struct copy){.ticket = {peer, peer->token}};
    return message_pack(message, &copy->frame, &copy->size) == STRAIT_OK;
}

/* The slot of a chunk is another chunk's once it is sent, so what can be read is copied. */
static bool copy_chunk(struct copy *copy, struct peer *peer, const struct fault_chunk *chunk)
{
    *copy = (struct copy){
        .ticket = {peer, peer->token}, .size = chunk->size, .header_size = chunk->header_size, .link = chunk->link};
    memcpy(copy->header, chunk->header, chunk->header_size);
    if (chunk->link != peer->link) {
        copy->data = chunk->data;
        copy->handle = chunk->handle;
    } else if (chunk->data != NULL) {
        copy->content = malloc(sizeof(*copy->content) + chunk->size);
        if (copy->content == NULL)
            return false;
        copy->content->holders = 1;
        memcpy(copy->content->bytes, chunk->data, chunk->size);
    }
    return true;
}

static bool can_send(const struct copy *copy)
{
    const struct peer_link *link;
    LIST_FOREACH(link, &connection_of(copy->ticket.peer)->links, entry)
    {
        if (link->link == copy->link)
            return link->connected && !link->closing;
    }
    return false;
}

static bool send_chunk_copy(const struct copy *copy)
{
    struct content *content = copy->content;
    const void *data = content != NULL ? content->bytes : copy->data;
    if (!can_send(copy) || link_send(copy->link, copy->header, copy->header_size, data, copy->size, copy->handle,
                                     OWN_COOKIE | (uint64_t)(uintptr_t)content) != STRAIT_OK)
        return false;
    if (content != NULL)
        content->holders++; /* until `sent`, which comes later */
    return true;
}

static bool is_own(uint64_t cookie)
{
    if ((cookie & OWN_COOKIE) == 0)
        return false;
    content_release((struct content *)(uintptr_t)(cookie & ~OWN_COOKIE));
    return true;
}

static bool send_copy(const struct copy *copy)
{
    struct message message;
    bool sent = false;
    if (!is_there(&copy->ticket))
        return false;
    injecting = true;
    if (copy->frame == NULL) {
        sent = send_chunk_copy(copy);
    } else if (message_unpack(copy->frame + 4, copy->size - 4, &message) == STRAIT_OK) {
        sent = peer_send(copy->ticket.peer, &message) == STRAIT_OK;
        message_fini(&message);
    }
    injecting = false;
    return sent;
}

static void replay(void)
{
    for (uint32_t i = 0; i < copy_count; i++)
        atomic_fetch_add(&me->replayed, send_copy(&copies[i]));
    drop_copies();
}

static void let_late_go(bool overtaken)
{
    if (late.frame == NULL)
        return;
    bool sent = send_copy(&late);
    atomic_fetch_add(&me->reordered, sent && overtaken);
    free(late.frame);
    late.frame = NULL;
}

/* ---- Sockets -------------------------------------------------------------------------------------------------- */

static void shut_control(void *arg, struct peer *peer)
{
    (void)arg;
    struct connection *c = connection_of(peer);
    if (peer->state == PEER_UP && c->channel != NULL && shutdown(channel_fd(c->channel), SHUT_RDWR) == 0)
        atomic_fetch_add(&me->cuts, 1);
}

/* Shuts the connections of UCX and of metrics. Not those of shm: there is no network between two processes of one host,
 * and the end of its socket proves that the other side no longer touches anything. */
static void shut_tcp(void)
{
    for (int fd = 3; fd < 256; fd++) {
        struct sockaddr_storage address;
        socklen_t size = sizeof(address);
        if (getpeername(fd, (struct sockaddr *)&address, &size) == 0 && address.ss_family == AF_INET &&
            shutdown(fd, SHUT_RDWR) == 0)
            atomic_fetch_add(&me->cuts, 1);
    }
}

static void cut(uint32_t how)
{
    if (how == 2)
        shut_tcp();
    else if (all != NULL)
        peers_each(all, shut_control, NULL);
}

/* ---- Holding -------------------------------------------------------------------------------------------------- */

/* Does, on the loop's thread, what the driver asked for meanwhile. */
static void obey(void)
{
    uint32_t how = atomic_exchange(&me->cut, 0);
    if (how != 0)
        cut(how);
    if (atomic_exchange(&me->forget, 0) != 0)
        drop_copies();
    if (atomic_exchange(&me->replay, 0) != 0)
        replay();
    if (late.frame != NULL && now_ms() >= late_until)
        let_late_go(false);
}

/* Sends what was queued so far, so that a point "after sent" really is after it. */
static void flush(enum fault_point point, void *where)
{
    if (point == FAULT_SENT)
        (void)channel_flush(connection_of(where)->channel);
    const struct session *session = where;
    if (point == FAULT_TOLD && session->channel != NULL && !session->ending)
        (void)channel_flush(session->channel);
}

static void reach(enum fault_point point, void *where, int at)
{
    if (!hold_reached(me, at))
        return;
    flush(point, where);
    hold(me);
}

/* ---- Points --------------------------------------------------------------------------------------------------- */

static int message_point(enum fault_point point, const struct message *message)
{
    switch (message->type) {
#define X(name)          \
    case MESSAGE_##name: \
        return AT_SEND_##name + (int)(point - FAULT_SEND);
        CHAOS_MESSAGES(X)
#undef X
    default:
        return -1;
    }
}

static int verdict_point(enum fault_point point, const struct message *message)
{
    if (message->type != MESSAGE_STATE || message->state.more ||
        (message->state.state != STRAIT_DONE && message->state.state != STRAIT_FAILED))
        return -1;
    return point == FAULT_TELL ? AT_TELL : AT_TOLD;
}

static int point_of(enum fault_point point, const void *what)
{
    switch (point) {
    case FAULT_SEND:
    case FAULT_SENT:
    case FAULT_TAKE:
    case FAULT_TAKEN:
        return injecting ? -1 : message_point(point, what);
    case FAULT_CHUNK:
    case FAULT_CHUNK_SENT:
        return AT_CHUNK + (int)(point - FAULT_CHUNK);
    case FAULT_ARRIVING:
    case FAULT_ARRIVED:
        return AT_ARRIVING + (int)(point - FAULT_ARRIVING);
    case FAULT_ENCODE:
    case FAULT_ENCODED:
    case FAULT_DECODE:
    case FAULT_DECODED:
    case FAULT_COPY:
    case FAULT_COPIED:
        return AT_ENCODE + (int)(point - FAULT_ENCODE);
    case FAULT_TELL:
    case FAULT_TOLD:
        return verdict_point(point, what);
    default:
        return -1;
    }
}

/* True: the message is not sent now. */
static bool on_send(struct peer *peer, const struct message *message)
{
    if (atomic_load(&me->dark) != 0) {
        atomic_fetch_add(&me->darkened, 1);
        return true;
    }
    if (injecting || message_point(FAULT_SEND, message) < 0)
        return false;
    if (atomic_load(&me->record) != 0 && copy_count < COPIES && copy_message(&copies[copy_count], peer, message))
        copy_count++;
    if (hold_take_one(&me->doubles)) {
        injecting = true;
        atomic_fetch_add(&me->doubled, peer_send(peer, message) == STRAIT_OK);
        injecting = false;
    }
    if (late.frame == NULL && hold_take_one(&me->reorders) && copy_message(&late, peer, message)) {
        late_until = now_ms() + OVERTAKE_MS;
        return true;
    }
    return false;
}

static void on_chunk_sent(struct peer *peer, const struct fault_chunk *chunk)
{
    const bool records = atomic_load(&me->record) != 0 && copy_count < COPIES, doubles = hold_take_one(&me->doubles);
    struct copy copy;
    if ((!records && !doubles) || !copy_chunk(&copy, peer, chunk))
        return;
    if (doubles)
        atomic_fetch_add(&me->doubled, send_copy(&copy));
    if (records)
        copies[copy_count++] = copy;
    else
        copy_fini(&copy);
}

/* ---- The hook ------------------------------------------------------------------------------------------------- */

static bool hook(enum fault_point point, void *where, const void *what)
{
    int at = point_of(point, what);
    bool has_peer = point <= FAULT_CHUNK_SENT;
    if (has_peer)
        all = ((struct peer *)where)->peers;
    if (at >= 0)
        reach(point, where, at);
    if ((point == FAULT_ENCODE || point == FAULT_COPY) && atomic_load(&me->slow_ms) != 0)
        hold_rest((long)atomic_load(&me->slow_ms) * 1000);
    if (has_peer && !injecting)
        obey();
    switch (point) {
    case FAULT_SEND:
        return on_send(where, what);
    case FAULT_SENT:
        if (!injecting && message_point(point, what) >= 0)
            let_late_go(true);
        return false;
    case FAULT_CHUNK_SENT:
        on_chunk_sent(where, what);
        return false;
    case FAULT_CHUNK_DONE:
        return is_own(*(const uint64_t *)what);
    default:
        return false;
    }
}

/* Before main: without the variable this is a straitd like any other. */
static void __attribute__((constructor)) begin(void)
{
    shared = hold_begin(&me);
    if (shared != NULL)
        fault_hook = hook;
#if STRAIT_HAVE_UCX
    if (shared != NULL && shared->fakes)
        ucx_stand_in();
#endif
}
