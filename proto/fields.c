#include "proto/fields.h"

#include <string.h>

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
