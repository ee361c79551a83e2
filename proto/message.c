#include "proto/message.h"

#include <stdlib.h>
#include <string.h>

#include "internal/bytes.h"
#include "proto/fields.h"

#define LENGTH_BYTES 4u

/* What unpacking may allocate beyond twice the received bytes; the longest lists take less than half of it. */
#define UNPACK_BYTES_MORE ((size_t)4 * 1024 * 1024)

static const struct kind {
    enum message_type type;
    const char *name;
    const struct layout *layout;
} kinds[] = {
    {MESSAGE_HELLO, "hello", &hello_layout},
    {MESSAGE_POOL_REGISTER, "pool-register", &pool_register_layout},
    {MESSAGE_POOL_REMOVE, "pool-remove", &pool_remove_layout},
    {MESSAGE_EXPECT, "expect", &expect_layout},
    {MESSAGE_OFFER, "offer", &offer_layout},
    {MESSAGE_APPEND, "append", &append_layout},
    {MESSAGE_START, "start", &start_layout},
    {MESSAGE_ABORT, "abort", &transfer_layout},
    {MESSAGE_RELEASE, "release", &transfer_layout},
    {MESSAGE_NOTIFY, "notify", &notify_layout},
    {MESSAGE_STATS, "stats", &stats_layout},
    {MESSAGE_POLICY, "policy", &policy_layout},
    {MESSAGE_WORDS, "words", &words_layout},
    {MESSAGE_WAIT, "wait", &wait_layout},
    {MESSAGE_WELCOME, "welcome", &welcome_layout},
    {MESSAGE_POOL_STATUS, "pool-status", &pool_status_layout},
    {MESSAGE_STATE, "state", &state_layout},
    {MESSAGE_DRAINED, "drained", &transfer_layout},
    {MESSAGE_LAYERS, "layers", &layers_layout},
    {MESSAGE_NOTE, "note", &note_layout},
    {MESSAGE_STATS_TEXT, "stats-text", &stats_text_layout},
    {MESSAGE_PEER_HELLO, "peer-hello", &peer_hello_layout},
    {MESSAGE_PEER_PROOF, "peer-proof", &peer_proof_layout},
    {MESSAGE_PEER_LINKS, "peer-links", &peer_links_layout},
    {MESSAGE_HEARTBEAT, "heartbeat", &heartbeat_layout},
    {MESSAGE_ARENA, "arena", &arena_layout},
    {MESSAGE_REACH, "reach", &reach_layout},
    {MESSAGE_GPU_LINK, "gpu-link", &gpu_link_layout},
    {MESSAGE_ANNOUNCE, "announce", &announce_layout},
    {MESSAGE_REQUEST, "request", &request_layout},
    {MESSAGE_SEGMENTS, "segments", &segments_layout},
    {MESSAGE_GRANT, "grant", &grant_layout},
    {MESSAGE_REVOKE, "revoke", &grant_id_layout},
    {MESSAGE_RELEASED, "released", &grant_id_layout},
    {MESSAGE_END, "end", &end_layout},
    {MESSAGE_PEER_NOTE, "peer-note", &note_layout},
    {MESSAGE_SHM_HELLO, "shm-hello", &shm_hello_layout},
};

static const struct kind *kind_of(int type)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if ((int)kinds[i].type == type)
            return &kinds[i];
    return NULL;
}

const char *message_name(enum message_type type)
{
    const struct kind *kind = kind_of((int)type);
    if (kind != NULL)
        return kind->name;
    return type == MESSAGE_NONE ? "none" : "unknown";
}

/* All members of either union start at its beginning; those of the generated one are pointers. */
static void *plain_body(const struct message *message)
{
    return (void *)&message->hello;
}

/* ---- Unpacking -------------------------------------------------------------------------------------------------- */

struct owner {
    struct bump bump;
    Strait__Wire__Envelope *envelope;
};

static enum strait_status envelope_unpack(struct owner *owner, const void *body, size_t size)
{
    ProtobufCAllocator allocator = fields_allocator(&owner->bump);
    owner->envelope = strait__wire__envelope__unpack(&allocator, size, body);
    if (owner->envelope != NULL)
        return STRAIT_OK;
    return owner->bump.out_of_memory ? STRAIT_ERR_NO_MEMORY : STRAIT_ERR_CORRUPT;
}

/* A message type of a later version looks like an unknown field of the envelope. */
static enum strait_status body_unpack(struct message *message, struct owner *owner)
{
    const Strait__Wire__Envelope *envelope = owner->envelope;
    const struct kind *kind = kind_of((int)envelope->body_case);
    if (fields_check_unknown(&envelope->base) != STRAIT_OK)
        return STRAIT_ERR_CORRUPT;
    if (kind == NULL || envelope->hello == NULL)
        return envelope->base.n_unknown_fields > 0 ? STRAIT_ERR_UNSUPPORTED : STRAIT_ERR_CORRUPT;
    message->type = kind->type;
    enum strait_status status = fields_unpack(kind->layout, plain_body(message), envelope->hello, &owner->bump);
    if (status == STRAIT_ERR_NO_MEMORY && !owner->bump.out_of_memory)
        return STRAIT_ERR_CORRUPT; /* over the budget, which no valid message needs */
    return status;
}

enum strait_status message_unpack(const void *body, size_t size, struct message *message)
{
    *message = (struct message){.type = MESSAGE_NONE};
    if (size > MESSAGE_BYTES_MAX)
        return STRAIT_ERR_NO_SPACE;
    struct owner *owner = calloc(1, sizeof(*owner));
    if (owner == NULL)
        return STRAIT_ERR_NO_MEMORY;
    bump_init(&owner->bump, 2 * size + UNPACK_BYTES_MORE);
    message->owner = owner;
    enum strait_status status = envelope_unpack(owner, body, size);
    if (status == STRAIT_OK)
        status = body_unpack(message, owner);
    if (status != STRAIT_OK)
        message_fini(message);
    return status;
}

void message_fini(struct message *message)
{
    struct owner *owner = message->owner;
    if (owner != NULL) {
        bump_fini(&owner->bump);
        free(owner);
    }
    *message = (struct message){.type = MESSAGE_NONE};
}

/* ---- Packing ---------------------------------------------------------------------------------------------------- */

/* When protobuf-c packs into memory, it writes a nested message and then moves it to make room for its length, once per
 * level. What it appends to a buffer is copied only once. */
struct output {
    ProtobufCBuffer base;
    uint8_t *at;
};

static void output_append(ProtobufCBuffer *buffer, size_t size, const uint8_t *bytes)
{
    struct output *output = (struct output *)buffer;
    memcpy(output->at, bytes, size);
    output->at += size;
}

static enum strait_status frame_create(const Strait__Wire__Envelope *envelope, uint8_t **frame, size_t *size)
{
    size_t body = strait__wire__envelope__get_packed_size(envelope);
    if (body > MESSAGE_BYTES_MAX)
        return STRAIT_ERR_NO_SPACE;
    uint8_t *bytes = malloc(LENGTH_BYTES + body);
    if (bytes == NULL)
        return STRAIT_ERR_NO_MEMORY;
    struct output output = {.base = {.append = output_append}, .at = bytes + LENGTH_BYTES};
    store_le32(bytes, (uint32_t)body);
    strait__wire__envelope__pack_to_buffer(envelope, &output.base);
    *frame = bytes;
    *size = LENGTH_BYTES + body;
    return STRAIT_OK;
}

/* The unpacked envelope outlives the call, so its unknown fields can be lent. */
static void keep_unknown(Strait__Wire__Envelope *envelope, const struct message *message)
{
    const struct owner *owner = message->owner;
    if (owner == NULL || owner->envelope == NULL || owner->envelope->body_case != envelope->body_case)
        return;
    envelope->base.n_unknown_fields = owner->envelope->base.n_unknown_fields;
    envelope->base.unknown_fields = owner->envelope->base.unknown_fields;
    fields_keep_unknown((ProtobufCMessage *)envelope->hello, (const ProtobufCMessage *)owner->envelope->hello);
}

static enum strait_status pack_with(struct bump *bump, const struct kind *kind, const struct message *message,
                                    uint8_t **frame, size_t *size)
{
    Strait__Wire__Envelope envelope = STRAIT__WIRE__ENVELOPE__INIT;
    void *body = bump_alloc(bump, kind->layout->wire->sizeof_message);
    if (body == NULL)
        return STRAIT_ERR_NO_MEMORY;
    enum strait_status status = fields_pack(kind->layout, body, plain_body(message), bump);
    if (status != STRAIT_OK)
        return status == STRAIT_ERR_NO_MEMORY ? status : STRAIT_ERR_INVALID;
    envelope.body_case = (Strait__Wire__Envelope__BodyCase)kind->type;
    envelope.hello = body;
    keep_unknown(&envelope, message);
    return frame_create(&envelope, frame, size);
}

enum strait_status message_pack(const struct message *message, uint8_t **frame, size_t *size)
{
    struct bump bump;
    const struct kind *kind = kind_of((int)message->type);
    if (kind == NULL)
        return STRAIT_ERR_INVALID;
    bump_init(&bump, SIZE_MAX);
    enum strait_status status = pack_with(&bump, kind, message, frame, size);
    bump_fini(&bump);
    return status;
}
