/* Packing and unpacking of messages: the rows of message_table.c between plain structs and protobuf-c's. */
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#include "internal/bytes.h"
#include "proto/message_table.h"

#define LENGTH_BYTES     4u
#define FIELD_NUMBER_MAX ((1u << 29) - 1)

/* Memory that unpacking may take beyond twice the received bytes; the longest lists take less than half of it. */
#define UNPACK_BYTES_MORE ((size_t)4 * 1024 * 1024)

/* protobuf-c counts list items in a size_t. */
_Static_assert(sizeof(size_t) == sizeof(uint64_t), "64-bit processors only");

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* AddressSanitizer only checks what malloc returned, so in its builds every piece gets a block of its own. */
#define BLOCK_BYTES ((size_t)4096)
#if defined(__SANITIZE_ADDRESS__)
#undef BLOCK_BYTES
#define BLOCK_BYTES ((size_t)0)
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#undef BLOCK_BYTES
#define BLOCK_BYTES ((size_t)0)
#endif
#endif

struct bump_block {
    struct bump_block *next;
    alignas(max_align_t) unsigned char bytes[];
};

void bump_init(struct bump *bump, size_t budget)
{
    *bump = (struct bump){.left = budget};
}

void bump_fini(struct bump *bump)
{
    for (struct bump_block *block = bump->blocks, *next; block != NULL; block = next) {
        next = block->next;
        free(block);
    }
    *bump = (struct bump){0};
}

void *bump_alloc(struct bump *bump, size_t size)
{
    size_t piece = (size + alignof(max_align_t) - 1) & ~(alignof(max_align_t) - 1);
    if (piece < size || piece > bump->left)
        return NULL;
    if (piece > bump->room || bump->blocks == NULL) {
        size_t bytes = piece > BLOCK_BYTES ? piece : BLOCK_BYTES;
        struct bump_block *block = malloc(sizeof(*block) + bytes);
        bump->out_of_memory = block == NULL;
        if (block == NULL)
            return NULL;
        block->next = bump->blocks;
        bump->blocks = block;
        bump->at = block->bytes;
        bump->room = bytes;
    }
    void *bytes = bump->at;
    bump->at += piece;
    bump->room -= piece;
    bump->left -= piece;
    return bytes;
}

static void *allocate(void *bump, size_t size)
{
    return bump_alloc(bump, size);
}

static void release_nothing(void *bump, void *block)
{
    (void)bump;
    (void)block;
}

ProtobufCAllocator bump_allocator(struct bump *bump)
{
    return (ProtobufCAllocator){.alloc = allocate, .free = release_nothing, .allocator_data = bump};
}

/* ---- Fields by their offsets ------------------------------------------------------------------------------------- */

static uint32_t load_u32(const void *base, size_t offset)
{
    uint32_t value;
    memcpy(&value, (const char *)base + offset, sizeof(value));
    return value;
}

static uint64_t load_u64(const void *base, size_t offset)
{
    uint64_t value;
    memcpy(&value, (const char *)base + offset, sizeof(value));
    return value;
}

static void *load_pointer(const void *base, size_t offset)
{
    void *pointer;
    memcpy(&pointer, (const char *)base + offset, sizeof(pointer));
    return pointer;
}

static void store(void *base, size_t offset, const void *value, size_t size)
{
    memcpy((char *)base + offset, value, size);
}

/* ---- Bounds ------------------------------------------------------------------------------------------------------ */

static bool in_range(const struct field *field, int64_t value)
{
    return value >= field->min && value <= field->max;
}

static enum strait_status number_check(const struct field *field, const void *plain)
{
    bool fits = true;
    if (field->type == FIELD_U32)
        fits = in_range(field, load_u32(plain, field->plain));
    else if (field->type == FIELD_I32)
        fits = in_range(field, (int32_t)load_u32(plain, field->plain));
    else if (field->type == FIELD_U64)
        fits = load_u64(plain, field->plain) >= (uint64_t)field->min;
    return fits ? STRAIT_OK : field->known ? STRAIT_ERR_UNSUPPORTED : STRAIT_ERR_CORRUPT;
}

static enum strait_status view_check(const struct field *field, struct view view)
{
    if (view.size > MESSAGE_BYTES_MAX || (view.data == NULL && view.size > 0))
        return STRAIT_ERR_CORRUPT;
    if (view.size == 0 && field->type == FIELD_BYTES_OR_NONE)
        return STRAIT_OK;
    bool text = field->type == FIELD_NAME || field->type == FIELD_TEXT;
    bool nul = text && view.size > 0 && memchr(view.data, 0, view.size) != NULL;
    return corrupt_unless(in_range(field, (int64_t)view.size) && !nul);
}

/* The length up to which a text for people is sent: at most MESSAGE_TEXT_MAX, whole UTF-8 sequences. */
static size_t text_cut(struct view text)
{
    if (text.size <= MESSAGE_TEXT_MAX)
        return text.size;
    size_t cut = MESSAGE_TEXT_MAX;
    while (cut > MESSAGE_TEXT_MAX - 3 && (text.data[cut] & 0xc0) == 0x80)
        cut--;
    return cut;
}

/* Numbers, which both structs have at their offsets; protobuf-c's bool is an int. */
static void number_copy(const struct field *field, void *to, size_t to_offset, const void *from, size_t from_offset)
{
    store(to, to_offset, (const char *)from + from_offset, field->type == FIELD_U64 ? 8 : 4);
}

/* ---- Unpacking --------------------------------------------------------------------------------------------------- */

static enum strait_status unpack_view(const struct field *field, struct view *view, const ProtobufCBinaryData *bytes)
{
    *view = view_of(bytes->len > 0 ? bytes->data : NULL, bytes->len);
    enum strait_status status = view_check(field, *view);
    if (status == STRAIT_OK && field->type == FIELD_TEXT)
        view->size = text_cut(*view);
    return status;
}

/* Bump memory is aligned for numbers, and so are the bytes that protobuf-c copied there, so the ids need not be copied.
 * `count` precedes the ids in the table, so it has been checked and stored by then. */
static enum strait_status unpack_ids(const struct field *field, void *plain, const ProtobufCBinaryData *bytes)
{
    const uint32_t *ids = bytes->len > 0 ? (const uint32_t *)(const void *)bytes->data : NULL;
    uint64_t count = load_u32(plain, field->plain_count);
    store(plain, field->plain, &ids, sizeof(ids));
    return corrupt_unless(ids == NULL || bytes->len == count * sizeof(uint32_t));
}

static enum strait_status unpack_list(const struct field *field, void *plain, const void *wire, struct bump *bump)
{
    const struct message_layout *item = field->item;
    uint64_t count = load_u64(wire, field->wire_count);
    char *items = NULL;
    if (count > MESSAGE_BYTES_MAX || !in_range(field, (int64_t)count))
        return STRAIT_ERR_CORRUPT;
    if (count > 0 && field->type == FIELD_NUMBERS)
        items = load_pointer(wire, field->wire);
    else if (count > 0 && (items = bump_alloc(bump, count * item->plain_bytes)) == NULL)
        return STRAIT_ERR_NO_MEMORY;
    uint32_t narrow = (uint32_t)count;
    store(plain, field->plain, &items, sizeof(items));
    store(plain, field->plain_count, &narrow, sizeof(narrow));
    if (count == 0 || field->type == FIELD_NUMBERS)
        return STRAIT_OK;
    enum strait_status status = STRAIT_OK;
    void *const *wires = load_pointer(wire, field->wire);
    memset(items, 0, count * item->plain_bytes);
    for (uint64_t i = 0; i < count && status == STRAIT_OK; i++)
        status = fields_unpack(item, items + i * item->plain_bytes, wires[i], bump);
    return status;
}

static enum strait_status unpack_field(const struct field *field, void *plain, const void *wire, struct bump *bump)
{
    void *to = (char *)plain + field->plain;
    const ProtobufCBinaryData *bytes = (const void *)((const char *)wire + field->wire);
    switch (field->type) {
    case FIELD_BYTES:
    case FIELD_BYTES_OR_NONE:
    case FIELD_NAME:
    case FIELD_TEXT:
        return unpack_view(field, to, bytes);
    case FIELD_POOL:
        if (bytes->len != STRAIT_POOL_ID_BYTES)
            return STRAIT_ERR_CORRUPT;
        memcpy(to, bytes->data, STRAIT_POOL_ID_BYTES);
        return STRAIT_OK;
    case FIELD_IDS:
        return unpack_ids(field, plain, bytes);
    case FIELD_NUMBERS:
    case FIELD_LIST:
        return unpack_list(field, plain, wire, bump);
    case FIELD_BOOL:
        *(bool *)to = load_u32(wire, field->wire) != 0;
        return STRAIT_OK;
    default:
        number_copy(field, plain, field->plain, wire, field->wire);
        return number_check(field, plain);
    }
}

/* protobuf-c accepts field numbers that no field can have, if they are encoded in more bytes than necessary. Packed
 * again, they would become something that it rejects. */
static enum strait_status unknown_check(const ProtobufCMessage *wire)
{
    for (unsigned i = 0; i < wire->n_unknown_fields; i++)
        if (wire->unknown_fields[i].tag == 0 || wire->unknown_fields[i].tag > FIELD_NUMBER_MAX)
            return STRAIT_ERR_CORRUPT;
    return STRAIT_OK;
}

enum strait_status fields_unpack(const struct message_layout *layout, void *plain, const void *wire, struct bump *bump)
{
    enum strait_status status = unknown_check(wire);
    for (uint32_t i = 0; i < layout->field_count && status == STRAIT_OK; i++)
        status = unpack_field(&layout->fields[i], plain, wire, bump);
    return status != STRAIT_OK || layout->check == NULL ? status : layout->check(plain);
}

/* ---- Packing ----------------------------------------------------------------------------------------------------- */

static enum strait_status pack_list(const struct field *field, void *wire, const void *plain, struct bump *bump)
{
    const struct message_layout *item = field->item;
    size_t count = load_u32(plain, field->plain_count);
    char *items = load_pointer(plain, field->plain);
    if (!in_range(field, (int64_t)count) || (count > 0 && items == NULL))
        return STRAIT_ERR_CORRUPT;
    if (count == 0)
        return STRAIT_OK;
    store(wire, field->wire, &items, sizeof(items));
    store(wire, field->wire_count, &count, sizeof(count));
    if (field->type == FIELD_NUMBERS)
        return STRAIT_OK;
    void **wires = bump_alloc(bump, count * sizeof(void *));
    char *bodies = bump_alloc(bump, count * item->wire->sizeof_message);
    if (wires == NULL || bodies == NULL)
        return STRAIT_ERR_NO_MEMORY;
    store(wire, field->wire, &wires, sizeof(wires));
    enum strait_status status = STRAIT_OK;
    for (size_t i = 0; i < count && status == STRAIT_OK; i++) {
        wires[i] = bodies + i * item->wire->sizeof_message;
        status = fields_pack(item, wires[i], items + i * item->plain_bytes, bump);
    }
    return status;
}

static enum strait_status pack_field(const struct field *field, void *wire, const void *plain, struct bump *bump)
{
    const void *from = (const char *)plain + field->plain;
    ProtobufCBinaryData *bytes = (void *)((char *)wire + field->wire);
    const struct view *view = from;
    enum strait_status status;
    switch (field->type) {
    case FIELD_BYTES:
    case FIELD_BYTES_OR_NONE:
    case FIELD_NAME:
    case FIELD_TEXT:
        status = view_check(field, *view);
        *bytes = (ProtobufCBinaryData){.len = view->size, .data = (uint8_t *)view->data};
        if (status == STRAIT_OK && field->type == FIELD_TEXT)
            bytes->len = text_cut(*view);
        return status;
    case FIELD_POOL:
        *bytes = (ProtobufCBinaryData){.len = STRAIT_POOL_ID_BYTES, .data = (uint8_t *)from};
        return STRAIT_OK;
    case FIELD_IDS:
        bytes->data = load_pointer(plain, field->plain);
        bytes->len = bytes->data == NULL ? 0 : load_u32(plain, field->plain_count) * sizeof(uint32_t);
        return corrupt_unless(bytes->len <= MESSAGE_IDS_MAX * sizeof(uint32_t));
    case FIELD_NUMBERS:
    case FIELD_LIST:
        return pack_list(field, wire, plain, bump);
    case FIELD_BOOL:
        *(protobuf_c_boolean *)(void *)bytes = *(const bool *)from;
        return STRAIT_OK;
    default:
        number_copy(field, wire, field->wire, plain, field->plain);
        return number_check(field, plain);
    }
}

enum strait_status fields_pack(const struct message_layout *layout, void *wire, const void *plain, struct bump *bump)
{
    enum strait_status status = STRAIT_OK;
    protobuf_c_message_init(layout->wire, wire);
    for (uint32_t i = 0; i < layout->field_count && status == STRAIT_OK; i++)
        status = pack_field(&layout->fields[i], wire, plain, bump);
    return status != STRAIT_OK || layout->check == NULL ? status : layout->check(plain);
}

/* ---- Unknown fields ---------------------------------------------------------------------------------------------- */

/* Lends the unknown fields of one generated message, and of the messages inside it, to another of the same type. Items
 * of lists correspond as long as both lists have the same number of them. Apart from the envelope, messages contain
 * other messages only in lists. */
static void unknown_lend(ProtobufCMessage *to, const ProtobufCMessage *from)
{
    to->n_unknown_fields = from->n_unknown_fields;
    to->unknown_fields = from->unknown_fields;
    for (unsigned i = 0; i < from->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &from->descriptor->fields[i];
        if (field->type != PROTOBUF_C_TYPE_MESSAGE || field->label != PROTOBUF_C_LABEL_REPEATED)
            continue;
        ProtobufCMessage **to_items = load_pointer(to, field->offset), **from_items = load_pointer(from, field->offset);
        uint64_t count = load_u64(to, field->quantifier_offset);
        if (count == load_u64(from, field->quantifier_offset))
            for (uint64_t k = 0; k < count; k++)
                unknown_lend(to_items[k], from_items[k]);
    }
}

/* ---- Messages by type -------------------------------------------------------------------------------------------- */

static const struct message_kind *kind_of(int type)
{
    for (size_t i = 0; i < message_kind_count; i++)
        if ((int)message_kinds[i].type == type)
            return &message_kinds[i];
    return NULL;
}

const char *message_name(enum message_type type)
{
    const struct message_kind *kind = kind_of((int)type);
    return kind != NULL ? kind->name : type == MESSAGE_NONE ? "none" : "unknown";
}

/* All members of either union start at its beginning; those of the generated one are pointers. */
static void *plain_body(const struct message *message)
{
    return (void *)&message->hello;
}

/* ---- Envelopes: unpacking ---------------------------------------------------------------------------------------- */

struct owner {
    struct bump bump;
    Strait__Wire__Envelope *envelope;
};

static enum strait_status envelope_unpack(struct owner *owner, const void *body, size_t size)
{
    ProtobufCAllocator allocator = bump_allocator(&owner->bump);
    owner->envelope = strait__wire__envelope__unpack(&allocator, size, body);
    if (owner->envelope != NULL)
        return STRAIT_OK;
    return owner->bump.out_of_memory ? STRAIT_ERR_NO_MEMORY : STRAIT_ERR_CORRUPT;
}

/* A message type of a later version looks like an unknown field of the envelope. */
static enum strait_status body_unpack(struct message *message, struct owner *owner)
{
    const Strait__Wire__Envelope *envelope = owner->envelope;
    const struct message_kind *kind = kind_of((int)envelope->body_case);
    if (unknown_check(&envelope->base) != STRAIT_OK)
        return STRAIT_ERR_CORRUPT;
    if (kind == NULL || envelope->hello == NULL)
        return envelope->base.n_unknown_fields > 0 ? STRAIT_ERR_UNSUPPORTED : STRAIT_ERR_CORRUPT;
    message->type = kind->type;
    enum strait_status status = fields_unpack(&kind->layout, plain_body(message), envelope->hello, &owner->bump);
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

/* ---- Envelopes: packing ------------------------------------------------------------------------------------------ */

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
    unknown_lend((ProtobufCMessage *)envelope->hello, (const ProtobufCMessage *)owner->envelope->hello);
}

static enum strait_status pack_with(struct bump *bump, const struct message_kind *kind, const struct message *message,
                                    uint8_t **frame, size_t *size)
{
    Strait__Wire__Envelope envelope = STRAIT__WIRE__ENVELOPE__INIT;
    void *body = bump_alloc(bump, kind->layout.wire->sizeof_message);
    if (body == NULL)
        return STRAIT_ERR_NO_MEMORY;
    enum strait_status status = fields_pack(&kind->layout, body, plain_body(message), bump);
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
    const struct message_kind *kind = kind_of((int)message->type);
    if (kind == NULL)
        return STRAIT_ERR_INVALID;
    bump_init(&bump, SIZE_MAX);
    enum strait_status status = pack_with(&bump, kind, message, frame, size);
    bump_fini(&bump);
    return status;
}
