#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "internal/bytes.h"
#include "transport/nccl.h"
#include "transport/nccl_internal.h"
#include "transport/nccl_wire.h"

/* Outgoing and incoming chunks: the agreement about them, and their way through the engine. */

static struct nccl_chunk *chunk_of(struct nccl_op *op)
{
    return (struct nccl_chunk *)((char *)op - offsetof(struct nccl_chunk, op));
}

/* ---- Sending chunks
 * ----------------------------------------------------------------------------------------------------- */

static void append(struct nccl_chunk **list, struct nccl_chunk *chunk)
{
    while (*list != NULL)
        list = &(*list)->next;
    chunk->next = NULL;
    *list = chunk;
}

enum strait_status nccl_link_send(struct link *base, const void *header, size_t header_size, const void *data,
                                  size_t size, void *handle, uint64_t cookie)
{
    struct nccl_link *link = (struct nccl_link *)base;
    (void)handle;
    if (header_size > TRANSPORT_HEADER_MAX || (data == NULL && size > 0))
        return STRAIT_ERR_INVALID;
    if (link->core.state != LINK_CONNECTED)
        return STRAIT_ERR_IO;
    struct nccl_chunk *chunk = calloc(1, sizeof(*chunk));
    if (chunk == NULL)
        return STRAIT_ERR_NO_MEMORY;
    chunk->op.data = (void *)(uintptr_t)data; /* only read */
    chunk->op.size = size;
    chunk->id = ++link->last_id;
    enum strait_status status = nccl_send_chunk_message(link, chunk, header, header_size);
    if (status != STRAIT_OK) {
        free(chunk);
        return status;
    }
    event_begin(&chunk->event, &link->core, EVENT_SENT, cookie);
    if (size > 0)
        append(&link->unanswered, chunk);
    return STRAIT_OK;
}

static struct nccl_chunk *take_unanswered(struct nccl_link *link, uint64_t id)
{
    struct nccl_chunk **at = &link->unanswered, *chunk;
    while ((chunk = *at) != NULL && chunk->id != id)
        at = &chunk->next;
    if (chunk != NULL)
        *at = chunk->next;
    return chunk;
}

static void insert_early(struct nccl_link *link, struct nccl_chunk *chunk)
{
    struct nccl_chunk **at = &link->early;
    while (*at != NULL && (*at)->place < chunk->place)
        at = &(*at)->next;
    chunk->next = *at;
    *at = chunk;
}

/* NCCL has no names for operations: the n-th send of a direction goes to its n-th receive. */
static void post_those_in_turn(struct nccl_link *link)
{
    struct nccl_chunk *chunk;
    while ((chunk = link->early) != NULL && chunk->place == link->sent) {
        link->early = chunk->next;
        link->sent++;
        nccl_engine_post(link->engine, NCCL_OUT, &chunk->op);
    }
}

void nccl_chunk_answered(struct nccl_link *link, const struct nccl_message *message)
{
    struct nccl_chunk *chunk = take_unanswered(link, message->id);
    if (chunk == NULL) {
        nccl_link_break(link, "the peer answers what was not asked");
        return;
    }
    if (message->type == NCCL_REFUSED) {
        event_due(&chunk->event, STRAIT_OK);
        return;
    }
    chunk->place = message->value;
    insert_early(link, chunk);
    post_those_in_turn(link);
}

/* ---- Receiving chunks
 * --------------------------------------------------------------------------------------------------- */

/* The peer sends chunks only after it has heard that this side is ready; but its own READY may arrive later than its
 * chunk. */
static bool is_connected(struct nccl_link *link)
{
    if (link->core.state == LINK_CONNECTING && link->sent_ready) {
        link->received_ready = true;
        nccl_link_connected_if_ready(link);
        core_deliver(link->core.core); /* `connected` has to come first */
    } else if (link->core.state == LINK_CONNECTING) {
        nccl_link_break(link, "the peer sends before its time");
    }
    return link->core.state == LINK_CONNECTED;
}

/* The receive is posted to the engine before the peer hears of it. */
static void accept_chunk(struct nccl_link *link, struct nccl_chunk *chunk, const struct landing *landing)
{
    event_begin(&chunk->event, &link->core, EVENT_ARRIVED, landing->cookie);
    chunk->op.data = landing->address;
    if (chunk->op.size == 0) {
        event_due(&chunk->event, STRAIT_OK);
        return;
    }
    struct nccl_message go = {.type = NCCL_GO, .id = chunk->id, .value = link->received++};
    nccl_engine_post(link->engine, NCCL_IN, &chunk->op);
    if (link->core.state == LINK_CONNECTED) /* not if the owner has closed it meanwhile */
        nccl_send_message(link, &go, NULL, 0);
}

static void refuse_chunk(struct nccl_link *link, struct nccl_chunk *chunk)
{
    struct nccl_message refused = {.type = NCCL_REFUSED, .id = chunk->id};
    if (chunk->op.size > 0 && link->core.state == LINK_CONNECTED)
        nccl_send_message(link, &refused, NULL, 0);
    free(chunk);
}

void nccl_chunk_arrives(struct nccl_link *link, const struct nccl_message *message, const void *header,
                        size_t header_size)
{
    const struct transport *transport = link->core.base.transport;
    if (!is_connected(link))
        return;
    struct nccl_chunk *chunk = calloc(1, sizeof(*chunk)); /* before asking: an accepted chunk must get its callback */
    if (chunk == NULL) {
        nccl_link_break(link, "out of memory");
        return;
    }
    chunk->id = message->id;
    chunk->op.size = (size_t)message->value;
    struct landing landing =
        transport->events.arriving(transport->owner, &link->core.base, header, header_size, chunk->op.size);
    if (landing.address != NULL)
        accept_chunk(link, chunk, &landing);
    else
        refuse_chunk(link, chunk);
}

/* ---- Both -------------------------------------------------------------------------------------------------------- */

void nccl_chunks_over(struct nccl_op *op)
{
    struct nccl_op *next;
    for (; op != NULL; op = next) {
        next = op->next;
        event_due(&chunk_of(op)->event, op->done ? STRAIT_OK : STRAIT_ERR_IO);
    }
}

static void fail_list(struct nccl_chunk **list)
{
    struct nccl_chunk *chunk;
    while ((chunk = *list) != NULL) {
        *list = chunk->next;
        event_due(&chunk->event, STRAIT_ERR_IO);
    }
}

void nccl_chunks_fail(struct nccl_link *link)
{
    fail_list(&link->early);
    fail_list(&link->unanswered);
}

/* Messages over the carrier, and its other events. */

/* An outgoing message. */
struct tx_message {
    struct nccl_chunk *chunk; /* a chunk without bytes: it is sent when this message is */
    uint8_t payload[NCCL_MESSAGE_PAYLOAD];
};

/* An incoming message. */
struct rx_message {
    struct nccl_message message;
    size_t payload_size;
    uint8_t payload[NCCL_MESSAGE_PAYLOAD];
};

/* ---- Sending messages
 * ------------------------------------------------------------------------------------------------------ */

static enum strait_status send_message(struct nccl_link *link, const struct nccl_message *message, const void *payload,
                                       size_t payload_size, struct nccl_chunk *chunk)
{
    uint8_t header[NCCL_MESSAGE_BYTES];
    struct tx_message *tx_message = malloc(sizeof(*tx_message));
    if (tx_message == NULL)
        return STRAIT_ERR_NO_MEMORY;
    tx_message->chunk = chunk;
    if (payload_size > 0)
        memcpy(tx_message->payload, payload, payload_size);
    nccl_message_write(header, message);
    enum strait_status status = link_send(link->carrier, header, sizeof(header), tx_message->payload, payload_size,
                                          NULL, (uint64_t)(uintptr_t)tx_message);
    if (status != STRAIT_OK)
        free(tx_message);
    return status;
}

void nccl_send_message(struct nccl_link *link, const struct nccl_message *message, const void *payload,
                       size_t payload_size)
{
    if (link->carrier_closing || send_message(link, message, payload, payload_size, NULL) != STRAIT_OK)
        nccl_link_break(link, "the carrier does not take messages");
}

enum strait_status nccl_send_chunk_message(struct nccl_link *link, struct nccl_chunk *chunk, const void *header,
                                           size_t header_size)
{
    struct nccl_message message = {.type = NCCL_CHUNK, .id = chunk->id, .value = chunk->op.size};
    return send_message(link, &message, header, header_size, chunk->op.size == 0 ? chunk : NULL);
}

static void on_sent(void *owner, struct link *carrier, uint64_t cookie, enum strait_status status)
{
    struct tx_message *tx_message = (struct tx_message *)(uintptr_t)cookie;
    struct nccl_link *link = carrier->owner;
    (void)owner;
    if (tx_message->chunk != NULL)
        event_due(&tx_message->chunk->event, status);
    free(tx_message);
    if (status != STRAIT_OK)
        nccl_link_break(link, "the carrier lost a message");
}

/* ---- Receiving messages
 * ----------------------------------------------------------------------------------------------------- */

/* The communicators are made from the ids in the two hellos. */
static void on_hello(struct nccl_link *link, const uint8_t *id)
{
    if (link->received_hello) {
        nccl_link_break(link, "the peer said hello twice");
        return;
    }
    link->received_hello = true;
    nccl_engine_join(link->engine, id);
}

/* `connected` has to come before chunks that may follow at once. */
static void on_ready(struct nccl_link *link)
{
    link->received_ready = true;
    nccl_link_connected_if_ready(link);
    core_deliver(link->core.core);
}

static void dispatch_message(struct nccl_link *link, const struct rx_message *rx_message)
{
    switch (rx_message->message.type) {
    case NCCL_HELLO:
        on_hello(link, rx_message->payload);
        break;
    case NCCL_READY:
        on_ready(link);
        break;
    case NCCL_CHUNK:
        nccl_chunk_arrives(link, &rx_message->message, rx_message->payload, rx_message->payload_size);
        break;
    default:
        nccl_chunk_answered(link, &rx_message->message);
    }
}

static bool takes_messages(const struct nccl_link *link)
{
    return link->core.state == LINK_CONNECTING || link->core.state == LINK_CONNECTED;
}

static struct landing on_arriving(void *owner, struct link *carrier, const void *header, size_t header_size,
                                  size_t size)
{
    struct nccl_link *link = carrier->owner;
    struct nccl_message message;
    (void)owner;
    if (!takes_messages(link))
        return (struct landing){.address = NULL};
    struct rx_message *rx_message = NULL;
    if (nccl_message_read(header, header_size, size, &message) != STRAIT_OK)
        nccl_link_break(link, "the peer does not say what it should");
    else if ((rx_message = malloc(sizeof(*rx_message))) == NULL)
        nccl_link_break(link, "out of memory");
    if (rx_message == NULL)
        return (struct landing){.address = NULL};
    rx_message->message = message;
    rx_message->payload_size = size;
    return (struct landing){.address = rx_message->payload, .cookie = (uint64_t)(uintptr_t)rx_message};
}

/* Messages are answered here and not in on_arriving, which may run deep inside the carrier. */
static void on_arrived(void *owner, struct link *carrier, uint64_t cookie, enum strait_status status)
{
    struct rx_message *rx_message = (struct rx_message *)(uintptr_t)cookie;
    struct nccl_link *link = carrier->owner;
    (void)owner;
    if (status != STRAIT_OK)
        nccl_link_break(link, "the carrier lost a message");
    else if (takes_messages(link))
        dispatch_message(link, rx_message);
    free(rx_message);
}

/* ---- The carrier's link ------------------------------------------------------------------------------------------ */

static void on_connected(void *owner, struct link *carrier)
{
    const struct nccl *nccl = owner;
    struct nccl_link *link = carrier->owner;
    struct nccl_engine_config config = {.calls = nccl->calls,
                                        .device = nccl->place.device,
                                        .blocks = nccl->options.blocks,
                                        .timeout_ms = nccl->options.timeout_ms,
                                        .wake = nccl->wake};
    if (takes_messages(link) && nccl_engine_start(&config, &link->engine) != STRAIT_OK)
        nccl_link_break(link, "no threads for it");
}

static void on_broken(void *owner, struct link *carrier, const char *why)
{
    (void)owner;
    nccl_link_break(carrier->owner, why);
}

static void on_closed(void *owner, struct link *carrier)
{
    struct nccl_link *link = carrier->owner;
    (void)owner;
    link->carrier = NULL;
}

const struct transport_events nccl_carrier_events = {
    .arriving = on_arriving,
    .arrived = on_arrived,
    .sent = on_sent,
    .connected = on_connected,
    .broken = on_broken,
    .closed = on_closed,
};

/* A link from its start to its end: the carrier connects, the engine makes an id, hellos exchange the ids, the engines
 * connect, and each side tells that it is ready. */

static struct nccl *nccl_of(const struct nccl_link *link)
{
    return (struct nccl *)link->core.core;
}

/* ---- Start ------------------------------------------------------------------------------------------------------- */

/* Kernels that wait for a peer's kernels, which in turn wait for a multiprocessor, could wait for ever. */
static bool has_room(const struct nccl *nccl)
{
    uint64_t blocks = (uint64_t)(nccl->core.link_count + 1) * NCCL_DIRECTIONS * nccl->options.blocks;
    return blocks <= nccl->place.multiprocessors;
}

enum strait_status nccl_link_open(struct transport *transport, int fd, enum link_side side, void *link_owner,
                                  struct link **out)
{
    struct nccl *nccl = (struct nccl *)transport;
    (void)fd;
    if (!has_room(nccl))
        return STRAIT_ERR_AGAIN;
    struct nccl_link *link = calloc(1, sizeof(*link));
    if (link == NULL)
        return STRAIT_ERR_NO_MEMORY;
    enum strait_status status = link_open(nccl->carrier, -1, side, link, &link->carrier);
    if (status != STRAIT_OK) {
        free(link);
        return status;
    }
    core_link_add(&nccl->core, &link->core, link_owner);
    *out = &link->core.base;
    return STRAIT_OK;
}

/* An id that is the same for all transports of this process, whatever thread asks, but not inherited by a forked child.
 */
static void own_process(uint8_t dst[NCCL_PLACE_BYTES])
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static uint8_t process[NCCL_PLACE_BYTES];
    static pid_t drawn_by;
    pthread_mutex_lock(&lock);
    if (drawn_by != getpid() && getrandom(process, sizeof(process), 0) == sizeof(process))
        drawn_by = getpid();
    memcpy(dst, process, NCCL_PLACE_BYTES);
    pthread_mutex_unlock(&lock);
}

size_t nccl_link_address(struct link *base, void *dst, size_t capacity)
{
    struct nccl_link *link = (struct nccl_link *)base;
    const struct nccl *nccl = nccl_of(link);
    uint8_t carrier[LINK_ADDRESS_MAX];
    struct nccl_address address = {.library = nccl->calls->library, .carrier = carrier};
    if (link->carrier == NULL)
        return 0;
    address.carrier_size = link_address(link->carrier, carrier, sizeof(carrier));
    own_process(address.process);
    memcpy(address.identity, nccl->place.identity, NCCL_PLACE_BYTES);
    size_t size = NCCL_ADDRESS_FIXED + address.carrier_size;
    if (size <= capacity && address.carrier_size <= NCCL_ADDRESS_CARRIER)
        nccl_address_write(dst, &address);
    return size;
}

/* Why the two ends cannot be connected, where NCCL would find out only after some time or not at all. NULL: no reason
 * is known. */
static const char *objection(const struct nccl *nccl, const struct nccl_address *peer)
{
    uint8_t process[NCCL_PLACE_BYTES];
    own_process(process);
    if (peer->library != nccl->calls->library)
        return "the peer has another version of NCCL";
    if (memcmp(peer->identity, nccl->place.identity, NCCL_PLACE_BYTES) == 0)
        return "both ends are on the same GPU";
    if (!nccl->calls->within_process && memcmp(peer->process, process, NCCL_PLACE_BYTES) == 0)
        return "both ends are in the same process";
    return NULL;
}

enum strait_status nccl_link_connect(struct link *base, const void *src, size_t size)
{
    struct nccl_link *link = (struct nccl_link *)base;
    struct nccl_address address;
    if (link->core.state != LINK_OPEN)
        return STRAIT_ERR_INVALID;
    enum strait_status status = nccl_address_read(src, size, &address);
    if (status != STRAIT_OK)
        return status;
    const char *why = objection(nccl_of(link), &address);
    if (why == NULL) {
        status = link_connect(link->carrier, address.carrier, address.carrier_size);
        if (status != STRAIT_OK)
            return status;
    }
    link->core.state = LINK_CONNECTING;
    if (why != NULL)
        nccl_link_break(link, why);
    return STRAIT_OK;
}

void nccl_link_connected_if_ready(struct nccl_link *link)
{
    if (link->core.state == LINK_CONNECTING && link->sent_ready && link->received_ready)
        core_link_connected(&link->core);
}

static void say_hello(struct nccl_link *link, const uint8_t *id)
{
    struct nccl_message hello = {.type = NCCL_HELLO, .value = NCCL_VERSION};
    link->sent_hello = true;
    nccl_send_message(link, &hello, id, NCCL_ID_BYTES);
}

static void say_ready(struct nccl_link *link)
{
    struct nccl_message ready = {.type = NCCL_READY};
    link->sent_ready = true;
    nccl_send_message(link, &ready, NULL, 0);
    nccl_link_connected_if_ready(link);
}

void nccl_link_take_news(struct nccl_link *link)
{
    struct nccl_news news;
    if (link->engine == NULL || link->abandoned)
        return;
    nccl_engine_take(link->engine, &news);
    nccl_chunks_over(news.over);
    link->drained = news.drained;
    if (news.failed != NULL)
        nccl_link_break(link, news.failed);
    if (link->core.state == LINK_CONNECTING && news.id_made && !link->sent_hello)
        say_hello(link, news.id);
    if (link->core.state == LINK_CONNECTING && news.ready && !link->sent_ready)
        say_ready(link);
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

/* Nothing is sent any more. The end of the carrier's link tells the peer. */
static void wind_down(struct nccl_link *link)
{
    if (link->carrier != NULL && !link->carrier_closing)
        link_close(link->carrier);
    link->carrier_closing = true;
    if (link->engine != NULL)
        nccl_engine_end(link->engine);
    nccl_chunks_fail(link);
}

void nccl_link_break(struct nccl_link *link, const char *why)
{
    if (link->core.state >= LINK_BROKEN)
        return;
    core_link_break(&link->core, why);
    wind_down(link);
}

void nccl_link_close(struct link *base)
{
    struct nccl_link *link = (struct nccl_link *)base;
    if (core_link_close(&link->core))
        wind_down(link);
}

void nccl_link_abandon(struct link *base)
{
    struct nccl_link *link = (struct nccl_link *)base;
    if (link->core.state != LINK_CLOSING || link->abandoned || link->engine == NULL)
        return;
    link->abandoned = true;
    nccl_chunks_over(nccl_engine_abandon(link->engine));
}

bool nccl_link_quiet(struct core_link *base)
{
    const struct nccl_link *link = (const struct nccl_link *)base;
    return link->carrier == NULL && (link->engine == NULL || link->drained || link->abandoned);
}

void nccl_link_release(struct core_link *base)
{
    struct nccl_link *link = (struct nccl_link *)base;
    if (link->engine != NULL)
        nccl_engine_release(link->engine);
    free(link);
}

#define CARRIER_ARENA_BYTES 4096u

/* ---- Creation ---------------------------------------------------------------------------------------------------- */

static bool watch(const struct nccl *nccl, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    return epoll_ctl(nccl->poll, EPOLL_CTL_ADD, fd, &event) == 0;
}

static enum strait_status make_carrier(struct nccl *nccl)
{
    nccl->carrier_arena = aligned_alloc(CARRIER_ARENA_BYTES, CARRIER_ARENA_BYTES);
    if (nccl->carrier_arena == NULL)
        return STRAIT_ERR_NO_MEMORY;
    struct transport_arena arena = {
        .base = nccl->carrier_arena, .size = CARRIER_ARENA_BYTES, .fd = -1, .memory = TRANSPORT_HOST};
    return transport_create(nccl->options.carrier, &arena, &nccl_carrier_events, nccl, nccl->options.rest,
                            &nccl->carrier);
}

static void nccl_destroy(struct transport *transport)
{
    struct nccl *nccl = (struct nccl *)transport;
    transport_destroy(nccl->carrier);
    free(nccl->carrier_arena);
    if (nccl->wake >= 0)
        close(nccl->wake);
    if (nccl->poll >= 0)
        close(nccl->poll);
    free(nccl);
}

/* On failure, nccl_destroy undoes what has been built. */
static enum strait_status build(struct nccl *nccl)
{
    nccl->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    nccl->poll = epoll_create1(EPOLL_CLOEXEC);
    if (nccl->wake < 0 || nccl->poll < 0 || !watch(nccl, nccl->wake))
        return STRAIT_ERR_IO;
    enum strait_status status = make_carrier(nccl);
    if (status == STRAIT_OK && !watch(nccl, transport_fd(nccl->carrier)))
        status = STRAIT_ERR_IO;
    return status;
}

static enum strait_status find_gpu(const struct nccl_options *options, const struct transport_arena *arena,
                                   const struct nccl_calls **calls, struct nccl_place *place)
{
    *calls = nccl_load(options->library[0] != '\0' ? options->library : NULL);
    if (*calls == NULL)
        return STRAIT_ERR_UNSUPPORTED;
    return (*calls)->locate(arena->base, place) == NCCL_DONE ? STRAIT_OK : STRAIT_ERR_INVALID;
}

void nccl_prepare(const char *text, const void *memory)
{
    struct nccl_options options;
    struct transport_arena arena = {.base = (void *)(uintptr_t)memory};
    const struct nccl_calls *calls;
    struct nccl_place place;
    if (nccl_options_read(text, &options) != STRAIT_OK)
        return;
    free(options.rest);
    (void)find_gpu(&options, &arena, &calls, &place);
}

static enum strait_status create_with(const struct transport_arena *arena, const struct transport_events *events,
                                      void *owner, const struct nccl_options *options, struct transport **transport)
{
    const struct nccl_calls *calls;
    struct nccl_place place;
    enum strait_status status = find_gpu(options, arena, &calls, &place);
    if (status != STRAIT_OK)
        return status;
    struct nccl *nccl = calloc(1, sizeof(*nccl));
    if (nccl == NULL)
        return STRAIT_ERR_NO_MEMORY;
    core_init(&nccl->core, &transport_nccl, events, owner);
    nccl->core.quiet = nccl_link_quiet;
    nccl->core.release = nccl_link_release;
    nccl->calls = calls;
    nccl->options = *options;
    nccl->place = place;
    status = build(nccl);
    nccl->options.rest = NULL;
    if (status == STRAIT_OK)
        *transport = &nccl->core.base;
    else
        nccl_destroy(&nccl->core.base);
    return status;
}

/* Checks only the text: NCCL is loaded when a GPU is taken into use. */
static enum strait_status nccl_check(const char *text)
{
    struct nccl_options options;
    enum strait_status status = nccl_options_read(text, &options);
    if (status != STRAIT_OK)
        return status;
    status = transport_check(options.carrier, options.rest);
    free(options.rest);
    return status;
}

static enum strait_status nccl_create(const struct transport_arena *arena, const struct transport_events *events,
                                      void *owner, const char *text, struct transport **transport)
{
    struct nccl_options options;
    if (arena->base == NULL || arena->size == 0 || arena->memory != TRANSPORT_CUDA)
        return STRAIT_ERR_INVALID;
    enum strait_status status = nccl_options_read(text, &options);
    if (status != STRAIT_OK)
        return status;
    status = create_with(arena, events, owner, &options, transport);
    free(options.rest);
    return status;
}

/* ---- Progress ---------------------------------------------------------------------------------------------------- */

static int nccl_fd(const struct transport *transport)
{
    return ((const struct nccl *)transport)->poll;
}

static bool take_news(struct nccl *nccl)
{
    eventfd_t count;
    if (eventfd_read(nccl->wake, &count) != 0)
        return false;
    for (struct core_link *link = nccl->core.links; link != NULL; link = link->next)
        nccl_link_take_news((struct nccl_link *)link);
    return true;
}

static bool nccl_progress(struct transport *transport)
{
    struct nccl *nccl = (struct nccl *)transport;
    bool any = core_deliver(&nccl->core);
    any |= transport_progress(nccl->carrier);
    any |= take_news(nccl);
    any |= core_deliver(&nccl->core);
    return core_reap(&nccl->core) || any;
}

static enum strait_status nccl_arm(struct transport *transport)
{
    struct nccl *nccl = (struct nccl *)transport;
    return core_is_due(&nccl->core) ? STRAIT_ERR_AGAIN : transport_arm(nccl->carrier);
}

/* ---- The table --------------------------------------------------------------------------------------------------- */

/* NCCL copies from any memory of the GPU, so nothing needs registration. */
const struct transport_ops transport_nccl = {
    .name = "nccl",
    .send_memory = TRANSPORT_CUDA,
    .receive_memory = TRANSPORT_CUDA,
    .direct = false,
    .missing = nccl_missing,
    .check = nccl_check,
    .create = nccl_create,
    .destroy = nccl_destroy,
    .fd = nccl_fd,
    .progress = nccl_progress,
    .arm = nccl_arm,
    .open = nccl_link_open,
    .address = nccl_link_address,
    .connect = nccl_link_connect,
    .close = nccl_link_close,
    .abandon = nccl_link_abandon,
    .send = nccl_link_send,
};
