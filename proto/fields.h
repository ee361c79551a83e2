/* One table per message says which field of the plain struct corresponds to which field of the generated one, and what
 * it may hold. Packing and unpacking walk the same table, so that nothing can be written that would not be read.
 * Private to proto/.
 *
 * A message is named by a pair, `#define GRANT struct message_grant, Strait__Wire__Grant`, and its fields as in
 * U32(GRANT, slot, 0, UINT32_MAX). The compiler checks that both structs have such a field, of the right types. */
#ifndef STRAIT_PROTO_FIELDS_H
#define STRAIT_PROTO_FIELDS_H

#include "proto/bump.h"
#include "proto/message.h"
#include "proto/strait.pb-c.h"

enum field_kind {
    FIELD_U32,
    FIELD_I32,
    FIELD_U64,
    FIELD_NOT_ZERO, /* 64 bits, not 0 */
    FIELD_BOOL,
    FIELD_KNOWN, /* an enum: values outside the range are ERR_UNSUPPORTED */
    FIELD_KNOWN_SIGNED,
    FIELD_BITS, /* bits outside `max` are ERR_UNSUPPORTED */
    FIELD_BYTES,
    FIELD_BYTES_OR_NONE, /* empty, or as many as the range allows */
    FIELD_NAME,          /* bytes without NUL */
    FIELD_TEXT,          /* for people: without NUL; cut if too long */
    FIELD_POOL,
    FIELD_IDS,     /* `count` of them, as in the struct, or none */
    FIELD_NUMBERS, /* 32 bits */
    FIELD_LIST,
};

struct field {
    enum field_kind kind;
    uint16_t plain, wire;             /* offsets */
    uint16_t plain_count, wire_count; /* of lists */
    int64_t min, max;                 /* of a number, a length, or a list's count */
    const struct layout *item;        /* of lists */
};

struct layout {
    const ProtobufCMessageDescriptor *wire;
    size_t plain_bytes;
    const struct field *fields;
    uint32_t field_count;
    enum strait_status (*check)(const void *plain); /* checks across fields, or NULL */
};

/* ERR_CORRUPT, ERR_UNSUPPORTED, ERR_NO_MEMORY. The result points into `wire` and the bump memory. */
enum strait_status fields_unpack(const struct layout *layout, void *plain, const void *wire, struct bump *bump);

/* The same errors. Initializes `wire` first; the result points into `plain` and the bump memory. */
enum strait_status fields_pack(const struct layout *layout, void *wire, const void *plain, struct bump *bump);

/* ERR_CORRUPT when an unknown field has a number that no field can have. fields_unpack does this for its own messages.
 */
enum strait_status fields_check_unknown(const ProtobufCMessage *wire);

/* Lends the unknown fields of one generated message, and of the messages inside it, to another of the same type. */
void fields_keep_unknown(ProtobufCMessage *to, const ProtobufCMessage *from);

/* The allocator for protobuf-c. */
ProtobufCAllocator fields_allocator(struct bump *bump);

/* ---- Checks that several messages share ------------------------------------------------------------------------- */

/* Whether first .. first + count are numbers of 32 bits. */
static inline bool range_fits(uint32_t first, uint32_t count)
{
    return count <= UINT32_MAX - first;
}

static inline enum strait_status corrupt_unless(bool valid)
{
    return valid ? STRAIT_OK : STRAIT_ERR_CORRUPT;
}

/* ---- The tables ------------------------------------------------------------------------------------------------- */

extern const struct layout page_list_layout;

extern const struct layout hello_layout, welcome_layout, notify_layout, note_layout, stats_layout, stats_text_layout;
extern const struct layout policy_layout, words_layout, wait_layout;
extern const struct layout pool_register_layout, pool_remove_layout, pool_status_layout;
extern const struct layout expect_layout, offer_layout, append_layout, start_layout, transfer_layout, state_layout;
extern const struct layout layers_layout;
extern const struct layout arena_layout, reach_layout, gpu_link_layout;
extern const struct layout peer_hello_layout, peer_proof_layout, peer_links_layout, heartbeat_layout, shm_hello_layout;
extern const struct layout announce_layout, request_layout, segments_layout, grant_layout, grant_id_layout, end_layout;

/* ---- Writing a table -------------------------------------------------------------------------------------------- */

/* The offset of a field, which must be of this type. */
#define OFFSET_OF(type, name, of) \
    (offsetof(type, name) + 0 * sizeof(char[__builtin_types_compatible_p(__typeof__(((type *)0)->name), of) ? 1 : -1]))

#define FIELD(k, P, W, plain_name, plain_type, wire_name, wire_type, lowest, highest)                           \
    {                                                                                                           \
        .kind = (k), .plain = OFFSET_OF(P, plain_name, plain_type), .wire = OFFSET_OF(W, wire_name, wire_type), \
        .min = (lowest), .max = (highest)                                                                       \
    }
#define LIST_FIELD(k, P, W, count, name, plain_type, wire_type, lowest, highest, of)                                 \
    {                                                                                                                \
        .kind = (k), .plain = OFFSET_OF(P, name, plain_type), .wire = OFFSET_OF(W, name, wire_type),                 \
        .plain_count = OFFSET_OF(P, count, uint32_t), .wire_count = OFFSET_OF(W, n_##name, size_t), .min = (lowest), \
        .max = (highest), .item = (of)                                                                               \
    }

#define VIEW_FIELD(k, P, W, name, min, max) FIELD(k, P, W, name, struct view, name, ProtobufCBinaryData, min, max)

/* The first macro expands a pair to two arguments for the second. */
#define U32(...)                            U32_(__VA_ARGS__)
#define U32_(P, W, name, min, max)          FIELD(FIELD_U32, P, W, name, uint32_t, name, uint32_t, min, max)
#define I32(...)                            I32_(__VA_ARGS__)
#define I32_(P, W, name, min, max)          FIELD(FIELD_I32, P, W, name, int32_t, name, int32_t, min, max)
#define U64(...)                            U64_(__VA_ARGS__)
#define U64_(P, W, name)                    FIELD(FIELD_U64, P, W, name, uint64_t, name, uint64_t, 0, 0)
#define NOT_ZERO(...)                       NOT_ZERO_(__VA_ARGS__)
#define NOT_ZERO_(P, W, name)               FIELD(FIELD_NOT_ZERO, P, W, name, uint64_t, name, uint64_t, 0, 0)
#define BOOL(...)                           BOOL_(__VA_ARGS__)
#define BOOL_(P, W, name)                   FIELD(FIELD_BOOL, P, W, name, bool, name, protobuf_c_boolean, 0, 0)
#define KNOWN(...)                          KNOWN_(__VA_ARGS__)
#define KNOWN_(P, W, name, min, max)        FIELD(FIELD_KNOWN, P, W, name, uint32_t, name, uint32_t, min, max)
#define KNOWN_SIGNED(...)                   KNOWN_SIGNED_(__VA_ARGS__)
#define KNOWN_SIGNED_(P, W, name, min, max) FIELD(FIELD_KNOWN_SIGNED, P, W, name, int32_t, name, int32_t, min, max)
#define BITS(...)                           BITS_(__VA_ARGS__)
#define BITS_(P, W, name, mask)             FIELD(FIELD_BITS, P, W, name, uint32_t, name, uint32_t, 0, mask)
#define POOL(...)                           POOL_(__VA_ARGS__)
#define POOL_(P, W, name)                   FIELD(FIELD_POOL, P, W, name, struct pool_id, name, ProtobufCBinaryData, 0, 0)
#define BYTES(...)                          BYTES_(__VA_ARGS__)
#define BYTES_(P, W, name, min, max)        VIEW_FIELD(FIELD_BYTES, P, W, name, min, max)
#define BYTES_OR_NONE(...)                  BYTES_OR_NONE_(__VA_ARGS__)
#define BYTES_OR_NONE_(P, W, name, size)    VIEW_FIELD(FIELD_BYTES_OR_NONE, P, W, name, size, size)
#define NAME(...)                           NAME_(__VA_ARGS__)
#define NAME_(P, W, name, max)              VIEW_FIELD(FIELD_NAME, P, W, name, 0, max)
#define TEXT(...)                           TEXT_(__VA_ARGS__)
#define TEXT_(P, W, name)                   VIEW_FIELD(FIELD_TEXT, P, W, name, 0, 0)
#define NUMBERS(...)                        NUMBERS_(__VA_ARGS__)
#define NUMBERS_(P, W, count, name, max) \
    LIST_FIELD(FIELD_NUMBERS, P, W, count, name, const int32_t *, int32_t *, 0, max, NULL)
#define COUNTS(...) COUNTS_(__VA_ARGS__)
#define COUNTS_(P, W, count, name, max) \
    LIST_FIELD(FIELD_NUMBERS, P, W, count, name, const uint32_t *, uint32_t *, 0, max, NULL)
#define LIST(...) LIST_(__VA_ARGS__)
#define LIST_(P, W, count, name, ITEM_P, ITEM_W, min, max, of) \
    LIST_FIELD(FIELD_LIST, P, W, count, name, const ITEM_P *, ITEM_W **, min, max, of)

/* Fields that several messages have. */
#define KEY(pair, name)               BYTES(pair, name, 1, STRAIT_KEY_BYTES_MAX)
#define ADDRESS(pair, name)           NAME(pair, name, MESSAGE_ADDRESS_MAX)
#define AUX(pair)                     BYTES(pair, aux, 0, STRAIT_AUX_BYTES_MAX)
#define PAGE_LISTS(pair, count, name) LIST(pair, count, name, PAGE_LIST, 0, MESSAGE_LIST_MAX, &page_list_layout)
#define EPOCH(...)                    EPOCH_(__VA_ARGS__)
#define EPOCH_(P, W)                                                                             \
    FIELD(FIELD_NOT_ZERO, P, W, epoch.incarnation, uint64_t, epoch_incarnation, uint64_t, 0, 0), \
        FIELD(FIELD_U64, P, W, epoch.counter, uint64_t, epoch_counter, uint64_t, 0, 0)

#define PAGE_LIST struct wire_page_list, Strait__Wire__PageList

#define LAYOUT(...) LAYOUT_(__VA_ARGS__)
#define LAYOUT_(P, W, descriptor_name, table, check_function)                                                \
    {                                                                                                        \
        .wire = &strait__wire__##descriptor_name##__descriptor, .plain_bytes = sizeof(P), .fields = (table), \
        .field_count = sizeof(table) / sizeof((table)[0]), .check = (check_function)                         \
    }

#endif
