#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#include "internal/bytes.h"
#include "proto/bump.h"
#include "proto/fields.h"
#include "proto/message.h"

#define BLOCK_BYTES_FIRST ((size_t)512)
#define BLOCK_BYTES_MAX   ((size_t)64 * 1024)

#if defined(__SANITIZE_ADDRESS__)
#define BLOCK_PER_PIECE 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define BLOCK_PER_PIECE 1
#endif
#endif

struct bump_block {
    struct bump_block *next;
    alignas(max_align_t) unsigned char bytes[];
};

void bump_init(struct bump *bump, size_t budget)
{
    *bump = (struct bump){.left = budget, .block_bytes = BLOCK_BYTES_FIRST};
}

void bump_fini(struct bump *bump)
{
    for (struct bump_block *block = bump->blocks, *next; block != NULL; block = next) {
        next = block->next;
        free(block);
    }
    *bump = (struct bump){0};
}

/* AddressSanitizer only checks what malloc returned, so in its builds every piece gets a block of its own. */
static size_t next_block_bytes(struct bump *bump, size_t size)
{
#ifdef BLOCK_PER_PIECE
    (void)bump;
    return size;
#else
    size_t bytes = bump->block_bytes;
    if (bump->block_bytes < BLOCK_BYTES_MAX)
        bump->block_bytes *= 2;
    return bytes > size ? bytes : size;
#endif
}

static bool add_block(struct bump *bump, size_t size)
{
    size_t bytes = next_block_bytes(bump, size);
    struct bump_block *block = malloc(sizeof(*block) + bytes);
    if (block == NULL) {
        bump->out_of_memory = true;
        return false;
    }
    block->next = bump->blocks;
    bump->blocks = block;
    bump->at = block->bytes;
    bump->room = bytes;
    return true;
}

void *bump_alloc(struct bump *bump, size_t size)
{
    if (size > bump->left)
        return NULL;
    size_t piece = (size + alignof(max_align_t) - 1) & ~(alignof(max_align_t) - 1);
    if (piece < size || piece > bump->left)
        return NULL;
    if ((piece > bump->room || bump->blocks == NULL) && !add_block(bump, piece))
        return NULL;
    void *bytes = bump->at;
    bump->at += piece;
    bump->room -= piece;
    bump->left -= piece;
    return bytes;
}

void *bump_zeroed(struct bump *bump, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        return NULL;
    void *zeroed = bump_alloc(bump, bytes);
    return zeroed == NULL ? NULL : memset(zeroed, 0, bytes);
}

#define FIELD_NUMBER_MAX ((1u << 29) - 1)

/* protobuf-c counts list items in a size_t. */
_Static_assert(sizeof(size_t) == sizeof(uint64_t), "64-bit processors only");

/* ---- What a field may hold -------------------------------------------------------------------------------------- */

static bool in_range(const struct field *field, int64_t value)
{
    return value >= field->min && value <= field->max;
}

static uint32_t load_u32(const void *base, size_t offset)
{
    uint32_t value;
    memcpy(&value, (const char *)base + offset, sizeof(value));
    return value;
}

static int32_t load_i32(const void *base, size_t offset)
{
    return (int32_t)load_u32(base, offset);
}

static uint64_t load_u64(const void *base, size_t offset)
{
    uint64_t value;
    memcpy(&value, (const char *)base + offset, sizeof(value));
    return value;
}

static enum strait_status unsupported_unless(bool known)
{
    return known ? STRAIT_OK : STRAIT_ERR_UNSUPPORTED;
}

static enum strait_status number_check(const struct field *field, const void *plain)
{
    switch (field->kind) {
    case FIELD_U32:
        return corrupt_unless(in_range(field, load_u32(plain, field->plain)));
    case FIELD_I32:
        return corrupt_unless(in_range(field, load_i32(plain, field->plain)));
    case FIELD_KNOWN:
        return unsupported_unless(in_range(field, load_u32(plain, field->plain)));
    case FIELD_KNOWN_SIGNED:
        return unsupported_unless(in_range(field, load_i32(plain, field->plain)));
    case FIELD_BITS:
        return unsupported_unless((load_u32(plain, field->plain) & ~field->max) == 0);
    case FIELD_NOT_ZERO:
        return corrupt_unless(load_u64(plain, field->plain) != 0);
    default:
        return STRAIT_OK;
    }
}

static enum strait_status view_check(const struct field *field, const struct view *view)
{
    if (view->size > MESSAGE_BYTES_MAX || (view->data == NULL && view->size > 0))
        return STRAIT_ERR_CORRUPT;
    bool nul = view->size > 0 && memchr(view->data, 0, view->size) != NULL;
    bool fits = in_range(field, (int64_t)view->size);
    switch (field->kind) {
    case FIELD_BYTES:
        return corrupt_unless(fits);
    case FIELD_BYTES_OR_NONE:
        return corrupt_unless(fits || view->size == 0);
    case FIELD_NAME:
        return corrupt_unless(fits && !nul);
    default: /* FIELD_TEXT */
        return corrupt_unless(!nul);
    }
}

/* The length up to which a text for people is sent: at most MESSAGE_TEXT_MAX, whole UTF-8 sequences. */
static size_t text_cut(const uint8_t *text, size_t size)
{
    if (size <= MESSAGE_TEXT_MAX)
        return size;
    size_t cut = MESSAGE_TEXT_MAX;
    while (cut > MESSAGE_TEXT_MAX - 3 && (text[cut] & 0xc0) == 0x80)
        cut--;
    return cut;
}

/* ---- Unpacking -------------------------------------------------------------------------------------------------- */

static enum strait_status unpack_view(const struct field *field, struct view *view, const ProtobufCBinaryData *bytes)
{
    *view = view_of(bytes->len > 0 ? bytes->data : NULL, bytes->len);
    enum strait_status status = view_check(field, view);
    if (status == STRAIT_OK && field->kind == FIELD_TEXT)
        view->size = text_cut(view->data, view->size);
    return status;
}

static enum strait_status unpack_pool(struct pool_id *pool, const ProtobufCBinaryData *bytes)
{
    if (bytes->len != sizeof(pool->bytes))
        return STRAIT_ERR_CORRUPT;
    memcpy(pool->bytes, bytes->data, sizeof(pool->bytes));
    return STRAIT_OK;
}

/* Bump memory is aligned for numbers, and so are the bytes that protobuf-c copied there, so the ids need not be copied.
 * `count` precedes the ids in the table, so it has been checked and stored by then. */
static enum strait_status unpack_ids(const struct field *field, void *plain, const ProtobufCBinaryData *bytes)
{
    const uint32_t *ids = bytes->len > 0 ? (const uint32_t *)(const void *)bytes->data : NULL;
    uint64_t count = load_u32(plain, field->plain_count);
    if (ids != NULL && bytes->len != count * sizeof(uint32_t))
        return STRAIT_ERR_CORRUPT;
    memcpy((char *)plain + field->plain, &ids, sizeof(ids));
    return STRAIT_OK;
}

static void set_list(const struct field *field, void *plain, const void *items, size_t count)
{
    uint32_t narrow = (uint32_t)count;
    memcpy((char *)plain + field->plain, &items, sizeof(items));
    memcpy((char *)plain + field->plain_count, &narrow, sizeof(narrow));
}

static enum strait_status unpack_numbers(const struct field *field, void *plain, const void *numbers, size_t count)
{
    if (count > (size_t)field->max)
        return STRAIT_ERR_CORRUPT;
    set_list(field, plain, count > 0 ? numbers : NULL, count);
    return STRAIT_OK;
}

static enum strait_status unpack_list(const struct field *field, void *plain, void *const *wires, size_t count,
                                      struct bump *bump)
{
    const struct layout *item = field->item;
    if (count > MESSAGE_BYTES_MAX || !in_range(field, (int64_t)count))
        return STRAIT_ERR_CORRUPT;
    char *items = count > 0 ? bump_zeroed(bump, count, item->plain_bytes) : NULL;
    if (count > 0 && items == NULL)
        return STRAIT_ERR_NO_MEMORY;
    set_list(field, plain, items, count);
    enum strait_status status = STRAIT_OK;
    for (size_t i = 0; i < count && status == STRAIT_OK; i++)
        status = fields_unpack(item, items + i * item->plain_bytes, wires[i], bump);
    return status;
}

static enum strait_status unpack_number(const struct field *field, void *plain, const void *wire)
{
    char *to = (char *)plain + field->plain;
    const char *from = (const char *)wire + field->wire;
    if (field->kind == FIELD_BOOL)
        *(bool *)to = load_u32(wire, field->wire) != 0;
    else
        memcpy(to, from, field->kind == FIELD_U64 || field->kind == FIELD_NOT_ZERO ? 8 : 4);
    return number_check(field, plain);
}

static enum strait_status unpack_field(const struct field *field, void *plain, const void *wire, struct bump *bump)
{
    void *to = (char *)plain + field->plain;
    const void *from = (const char *)wire + field->wire;
    switch (field->kind) {
    case FIELD_BYTES:
    case FIELD_BYTES_OR_NONE:
    case FIELD_NAME:
    case FIELD_TEXT:
        return unpack_view(field, to, from);
    case FIELD_POOL:
        return unpack_pool(to, from);
    case FIELD_IDS:
        return unpack_ids(field, plain, from);
    case FIELD_NUMBERS:
        return unpack_numbers(field, plain, *(const void *const *)from, load_u64(wire, field->wire_count));
    case FIELD_LIST:
        return unpack_list(field, plain, *(void *const *const *)from, load_u64(wire, field->wire_count), bump);
    default:
        return unpack_number(field, plain, wire);
    }
}

/* protobuf-c accepts field numbers that no field can have, if they are encoded in more bytes than necessary. Packed
 * again, they would become something that it rejects. */
enum strait_status fields_check_unknown(const ProtobufCMessage *wire)
{
    for (unsigned i = 0; i < wire->n_unknown_fields; i++)
        if (wire->unknown_fields[i].tag == 0 || wire->unknown_fields[i].tag > FIELD_NUMBER_MAX)
            return STRAIT_ERR_CORRUPT;
    return STRAIT_OK;
}

enum strait_status fields_unpack(const struct layout *layout, void *plain, const void *wire, struct bump *bump)
{
    enum strait_status status = fields_check_unknown(wire);
    for (uint32_t i = 0; i < layout->field_count && status == STRAIT_OK; i++)
        status = unpack_field(&layout->fields[i], plain, wire, bump);
    return status != STRAIT_OK || layout->check == NULL ? status : layout->check(plain);
}

/* ---- Packing ---------------------------------------------------------------------------------------------------- */

static enum strait_status pack_view(const struct field *field, ProtobufCBinaryData *bytes, const struct view *view)
{
    enum strait_status status = view_check(field, view);
    size_t size = field->kind == FIELD_TEXT && status == STRAIT_OK ? text_cut(view->data, view->size) : view->size;
    *bytes = (ProtobufCBinaryData){.len = size, .data = (uint8_t *)view->data};
    return status;
}

static enum strait_status pack_ids(const struct field *field, ProtobufCBinaryData *bytes, const void *plain)
{
    uint32_t *ids;
    memcpy(&ids, (const char *)plain + field->plain, sizeof(ids));
    size_t count = ids == NULL ? 0 : load_u32(plain, field->plain_count);
    if (count > MESSAGE_IDS_MAX)
        return STRAIT_ERR_CORRUPT;
    *bytes = (ProtobufCBinaryData){.len = count * sizeof(*ids), .data = (uint8_t *)ids};
    return STRAIT_OK;
}

static enum strait_status pack_items(const struct layout *item, void **wires, const char *items, size_t count,
                                     struct bump *bump)
{
    char *wire = bump_alloc(bump, count * item->wire->sizeof_message);
    enum strait_status status = wire == NULL ? STRAIT_ERR_NO_MEMORY : STRAIT_OK;
    for (size_t i = 0; i < count && status == STRAIT_OK; i++) {
        wires[i] = wire + i * item->wire->sizeof_message;
        status = fields_pack(item, wires[i], items + i * item->plain_bytes, bump);
    }
    return status;
}

/* Packs both kinds of list, after the check that they share. */
static enum strait_status pack_list(const struct field *field, void *wire, const void *plain, struct bump *bump)
{
    size_t count = load_u32(plain, field->plain_count);
    void *items, *to;
    memcpy(&items, (const char *)plain + field->plain, sizeof(items));
    if (!in_range(field, (int64_t)count) || (count > 0 && items == NULL))
        return STRAIT_ERR_CORRUPT;
    if (count == 0)
        return STRAIT_OK;
    to = field->kind == FIELD_LIST ? bump_alloc(bump, count * sizeof(void *)) : items;
    if (to == NULL)
        return STRAIT_ERR_NO_MEMORY;
    memcpy((char *)wire + field->wire, &to, sizeof(to));
    memcpy((char *)wire + field->wire_count, &count, sizeof(count));
    return field->kind == FIELD_LIST ? pack_items(field->item, to, items, count, bump) : STRAIT_OK;
}

static enum strait_status pack_number(const struct field *field, void *wire, const void *plain)
{
    const char *from = (const char *)plain + field->plain;
    char *to = (char *)wire + field->wire;
    if (field->kind == FIELD_BOOL)
        *(protobuf_c_boolean *)(void *)to = *(const bool *)from;
    else
        memcpy(to, from, field->kind == FIELD_U64 || field->kind == FIELD_NOT_ZERO ? 8 : 4);
    return number_check(field, plain);
}

static enum strait_status pack_field(const struct field *field, void *wire, const void *plain, struct bump *bump)
{
    const void *from = (const char *)plain + field->plain;
    ProtobufCBinaryData *bytes = (void *)((char *)wire + field->wire);
    switch (field->kind) {
    case FIELD_BYTES:
    case FIELD_BYTES_OR_NONE:
    case FIELD_NAME:
    case FIELD_TEXT:
        return pack_view(field, bytes, from);
    case FIELD_POOL:
        *bytes = (ProtobufCBinaryData){.len = STRAIT_POOL_ID_BYTES, .data = (uint8_t *)from};
        return STRAIT_OK;
    case FIELD_IDS:
        return pack_ids(field, bytes, plain);
    case FIELD_NUMBERS:
    case FIELD_LIST:
        return pack_list(field, wire, plain, bump);
    default:
        return pack_number(field, wire, plain);
    }
}

enum strait_status fields_pack(const struct layout *layout, void *wire, const void *plain, struct bump *bump)
{
    enum strait_status status = STRAIT_OK;
    protobuf_c_message_init(layout->wire, wire);
    for (uint32_t i = 0; i < layout->field_count && status == STRAIT_OK; i++)
        status = pack_field(&layout->fields[i], wire, plain, bump);
    return status != STRAIT_OK || layout->check == NULL ? status : layout->check(plain);
}

/* ---- Unknown fields --------------------------------------------------------------------------------------------- */

static void *pointer_at(const void *base, size_t offset)
{
    void *pointer;
    memcpy(&pointer, (const char *)base + offset, sizeof(pointer));
    return pointer;
}

/* Items correspond as long as both lists have the same number of them. */
static void keep_in_list(const ProtobufCFieldDescriptor *field, const void *to, const void *from)
{
    ProtobufCMessage **to_items = pointer_at(to, field->offset), **from_items = pointer_at(from, field->offset);
    uint64_t count = load_u64(to, field->quantifier_offset);
    if (count != load_u64(from, field->quantifier_offset))
        return;
    for (uint64_t i = 0; i < count; i++)
        fields_keep_unknown(to_items[i], from_items[i]);
}

/* Apart from the envelope, which message.c handles, messages contain other messages only in lists. */
void fields_keep_unknown(ProtobufCMessage *to, const ProtobufCMessage *from)
{
    to->n_unknown_fields = from->n_unknown_fields;
    to->unknown_fields = from->unknown_fields;
    for (unsigned i = 0; i < from->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &from->descriptor->fields[i];
        if (field->type == PROTOBUF_C_TYPE_MESSAGE && field->label == PROTOBUF_C_LABEL_REPEATED)
            keep_in_list(field, to, from);
    }
}

/* ---- protobuf-c's memory ---------------------------------------------------------------------------------------- */

static void *allocate(void *bump, size_t size)
{
    return bump_alloc(bump, size);
}

static void forget(void *bump, void *block)
{
    (void)bump;
    (void)block;
}

ProtobufCAllocator fields_allocator(struct bump *bump)
{
    return (ProtobufCAllocator){.alloc = allocate, .free = forget, .allocator_data = bump};
}

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
