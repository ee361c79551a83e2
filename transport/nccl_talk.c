/* Messages over the carrier, and its other events. */
#include <stdlib.h>
#include <string.h>

#include "transport/nccl_internal.h"

/* An outgoing message. */
struct saying {
    struct nccl_chunk *chunk; /* a chunk without bytes: it is sent when this message is */
    uint8_t payload[NCCL_MESSAGE_PAYLOAD];
};

/* An incoming message. */
struct hearing {
    struct nccl_message message;
    size_t payload_size;
    uint8_t payload[NCCL_MESSAGE_PAYLOAD];
};

/* ---- Saying ------------------------------------------------------------------------------------------------------ */

static enum strait_status say(struct nccl_link *link, const struct nccl_message *message, const void *payload,
                              size_t payload_size, struct nccl_chunk *chunk)
{
    uint8_t header[NCCL_MESSAGE_BYTES];
    struct saying *saying = malloc(sizeof(*saying));
    if (saying == NULL)
        return STRAIT_ERR_NO_MEMORY;
    saying->chunk = chunk;
    if (payload_size > 0)
        memcpy(saying->payload, payload, payload_size);
    nccl_message_write(header, message);
    enum strait_status status = link_send(link->carrier, header, sizeof(header), saying->payload, payload_size, NULL,
                                          (uint64_t)(uintptr_t)saying);
    if (status != STRAIT_OK)
        free(saying);
    return status;
}

void nccl_say(struct nccl_link *link, const struct nccl_message *message, const void *payload, size_t payload_size)
{
    if (link->carrier_closing || say(link, message, payload, payload_size, NULL) != STRAIT_OK)
        nccl_link_break(link, "the carrier does not take messages");
}

enum strait_status nccl_say_chunk(struct nccl_link *link, struct nccl_chunk *chunk, const void *header,
                                  size_t header_size)
{
    struct nccl_message message = {.type = NCCL_CHUNK, .id = chunk->id, .value = chunk->op.size};
    return say(link, &message, header, header_size, chunk->op.size == 0 ? chunk : NULL);
}

static void on_sent(void *owner, struct link *carrier, uint64_t cookie, enum strait_status status)
{
    struct saying *saying = (struct saying *)(uintptr_t)cookie;
    struct nccl_link *link = carrier->owner;
    (void)owner;
    if (saying->chunk != NULL)
        event_due(&saying->chunk->event, status);
    free(saying);
    if (status != STRAIT_OK)
        nccl_link_break(link, "the carrier lost a message");
}

/* ---- Hearing ----------------------------------------------------------------------------------------------------- */

/* The communicators are made from the ids in the two hellos. */
static void on_hello(struct nccl_link *link, const uint8_t *id)
{
    if (link->greeted) {
        nccl_link_break(link, "the peer said hello twice");
        return;
    }
    link->greeted = true;
    nccl_engine_join(link->engine, id);
}

/* `connected` has to come before chunks that may follow at once. */
static void on_ready(struct nccl_link *link)
{
    link->heard_ready = true;
    nccl_link_settle(link);
    core_deliver(link->core.core);
}

static void understand(struct nccl_link *link, const struct hearing *hearing)
{
    switch (hearing->message.type) {
    case NCCL_HELLO:
        on_hello(link, hearing->payload);
        break;
    case NCCL_READY:
        on_ready(link);
        break;
    case NCCL_CHUNK:
        nccl_chunk_arrives(link, &hearing->message, hearing->payload, hearing->payload_size);
        break;
    default:
        nccl_chunk_answered(link, &hearing->message);
    }
}

static bool listens(const struct nccl_link *link)
{
    return link->core.state == LINK_CONNECTING || link->core.state == LINK_CONNECTED;
}

static struct landing on_arriving(void *owner, struct link *carrier, const void *header, size_t header_size,
                                  size_t size)
{
    struct nccl_link *link = carrier->owner;
    struct nccl_message message;
    (void)owner;
    if (!listens(link))
        return (struct landing){.address = NULL};
    struct hearing *hearing = NULL;
    if (nccl_message_read(header, header_size, size, &message) != STRAIT_OK)
        nccl_link_break(link, "the peer does not say what it should");
    else if ((hearing = malloc(sizeof(*hearing))) == NULL)
        nccl_link_break(link, "out of memory");
    if (hearing == NULL)
        return (struct landing){.address = NULL};
    hearing->message = message;
    hearing->payload_size = size;
    return (struct landing){.address = hearing->payload, .cookie = (uint64_t)(uintptr_t)hearing};
}

/* Messages are answered here and not in on_arriving, which may run deep inside the carrier. */
static void on_arrived(void *owner, struct link *carrier, uint64_t cookie, enum strait_status status)
{
    struct hearing *hearing = (struct hearing *)(uintptr_t)cookie;
    struct nccl_link *link = carrier->owner;
    (void)owner;
    if (status != STRAIT_OK)
        nccl_link_break(link, "the carrier lost a message");
    else if (listens(link))
        understand(link, hearing);
    free(hearing);
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
    if (listens(link) && nccl_engine_start(&config, &link->engine) != STRAIT_OK)
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
