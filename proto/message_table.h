/* Table of the messages' fields: one row a field, with its type and bounds. Packing, unpacking and the check of the
 * bounds walk the same rows, so that nothing can be written that would not be read. Private to proto/ and its tests.
 *
 * MESSAGE(grant, struct message_grant, Grant) = {...} names the plain struct and the generated one of `grant`; its rows
 * are U32(grant, slot, 0, UINT32_MAX) and the like. The compiler checks that both structs have a field of that name and
 * of the right types. */
#ifndef STRAIT_PROTO_MESSAGE_TABLE_H
#define STRAIT_PROTO_MESSAGE_TABLE_H

#include "proto/message.h"
#include "proto/strait.pb-c.h"

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* Memory of one message: allocated piece by piece, released at once, and limited by a budget, because a peer's bytes
 * decide how much a parser allocates: two bytes can ask for a hundred. */
struct bump {
    struct bump_block *blocks;
    unsigned char *at;  /* free bytes in the latest block */
    size_t room;        /* their number */
    size_t left;        /* of the budget */
    bool out_of_memory; /* malloc failed; a NULL without this means that the budget is spent */
};

void bump_init(struct bump *bump, size_t budget);
void bump_fini(struct bump *bump);
/* Aligned for any type, not zeroed; NULL when there is no memory or budget. */
void *bump_alloc(struct bump *bump, size_t size);
/* The allocator for protobuf-c. */
ProtobufCAllocator bump_allocator(struct bump *bump);

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

enum field_type {
    FIELD_U32,
    FIELD_I32,
    FIELD_U64,
    FIELD_BOOL,
    FIELD_POOL,
    FIELD_BYTES,
    FIELD_BYTES_OR_NONE, /* empty, or as many as the range allows */
    FIELD_NAME,          /* bytes without NUL */
    FIELD_TEXT,          /* for people: without NUL; cut if too long */
    FIELD_IDS,           /* `count` of them, as in the struct, or none */
    FIELD_NUMBERS,       /* a list of 32-bit numbers */
    FIELD_LIST,
};

struct field {
    const char *name;
    enum field_type type;
    bool known;           /* an enum or bits: beyond the bounds a value is ERR_UNSUPPORTED, not ERR_CORRUPT */
    uint16_t plain, wire; /* offsets */
    uint16_t plain_count, wire_count;  /* of lists */
    int64_t min, max;                  /* of a number (of 64 bits: only min, 0 or 1), a length, or a list's count */
    const struct message_layout *item; /* of lists */
};

struct message_layout {
    const ProtobufCMessageDescriptor *wire;
    size_t plain_bytes;
    const struct field *fields;
    uint32_t field_count;
    enum strait_status (*check)(const void *plain); /* checks across fields, or NULL */
};

struct message_kind {
    enum message_type type;
    const char *name;
    struct message_layout layout;
};

extern const struct message_kind message_kinds[];
extern const size_t message_kind_count;

/* ERR_CORRUPT, ERR_UNSUPPORTED, ERR_NO_MEMORY. The result points into `wire` and the bump memory. */
enum strait_status fields_unpack(const struct message_layout *layout, void *plain, const void *wire, struct bump *bump);
/* The same errors. Initializes `wire` first; the result points into `plain` and the bump memory. */
enum strait_status fields_pack(const struct message_layout *layout, void *wire, const void *plain, struct bump *bump);

static inline enum strait_status corrupt_unless(bool valid)
{
    return valid ? STRAIT_OK : STRAIT_ERR_CORRUPT;
}

/* ---- Writing rows ------------------------------------------------------------------------------------------------ */

#define MESSAGE(m, plain_struct, wire_struct)     \
    typedef plain_struct m##_plain;               \
    typedef Strait__Wire__##wire_struct m##_wire; \
    static const struct field m##_fields[]

/* The offset of a field, which must be of this type. */
#define OFFSET_OF(type, name, of) \
    (offsetof(type, name) + 0 * sizeof(char[__builtin_types_compatible_p(__typeof__(((type *)0)->name), of) ? 1 : -1]))

#define FIELD(m, field_name, field_type, plain_type, wire_field, wire_type, ...)                                \
    {                                                                                                           \
        .name = #field_name, .type = FIELD_##field_type, .plain = OFFSET_OF(m##_plain, field_name, plain_type), \
        .wire = OFFSET_OF(m##_wire, wire_field, wire_type), __VA_ARGS__                                         \
    }
#define RANGE(lowest, highest) .min = (lowest), .max = (highest)

#define U32(m, n, ...)            FIELD(m, n, U32, uint32_t, n, uint32_t, RANGE(__VA_ARGS__))
#define I32(m, n, ...)            FIELD(m, n, I32, int32_t, n, int32_t, RANGE(__VA_ARGS__))
#define U64(m, n)                 FIELD(m, n, U64, uint64_t, n, uint64_t, .min = 0)
#define NOT_ZERO(m, n)            FIELD(m, n, U64, uint64_t, n, uint64_t, .min = 1)
#define BOOL(m, n)                FIELD(m, n, BOOL, bool, n, protobuf_c_boolean, .min = 0)
#define KNOWN(m, n, ...)          FIELD(m, n, U32, uint32_t, n, uint32_t, RANGE(__VA_ARGS__), .known = true)
#define KNOWN_SIGNED(m, n, ...)   FIELD(m, n, I32, int32_t, n, int32_t, RANGE(__VA_ARGS__), .known = true)
#define POOL(m, n)                FIELD(m, n, POOL, struct pool_id, n, ProtobufCBinaryData, .min = 0)
#define VIEW(m, n, type, ...)     FIELD(m, n, type, struct view, n, ProtobufCBinaryData, RANGE(__VA_ARGS__))
#define BYTES(m, n, ...)          VIEW(m, n, BYTES, __VA_ARGS__)
#define BYTES_OR_NONE(m, n, size) VIEW(m, n, BYTES_OR_NONE, size, size)
#define NAME(m, n, most)          VIEW(m, n, NAME, 0, most)
#define TEXT(m, n)                VIEW(m, n, TEXT, 0, MESSAGE_BYTES_MAX)
#define COUNTED(m, n, count) \
    .plain_count = OFFSET_OF(m##_plain, count, uint32_t), .wire_count = OFFSET_OF(m##_wire, n_##n, size_t)
#define NUMBERS(m, n, count, type, most) \
    FIELD(m, n, NUMBERS, const type *, n, type *, RANGE(0, most), COUNTED(m, n, count))
#define LIST(m, n, count, of, ...)                                                                   \
    FIELD(m, n, LIST, const of##_plain *, n, of##_wire **, RANGE(__VA_ARGS__), COUNTED(m, n, count), \
          .item = &of##_layout)

/* Fields of several messages. */
#define KEY(m, n)     BYTES(m, n, 1, STRAIT_KEY_BYTES_MAX)
#define ADDRESS(m, n) NAME(m, n, MESSAGE_ADDRESS_MAX)
#define AUX(m)        BYTES(m, aux, 0, STRAIT_AUX_BYTES_MAX)
#define EPOCH(m)                                                                       \
    FIELD(m, epoch.incarnation, U64, uint64_t, epoch_incarnation, uint64_t, .min = 1), \
        FIELD(m, epoch.counter, U64, uint64_t, epoch_counter, uint64_t, .min = 0)

#define LAYOUT(m, descriptor_name, check_function)                                                                 \
    {                                                                                                              \
        .wire = &strait__wire__##descriptor_name##__descriptor, .plain_bytes = sizeof(m##_plain),                  \
        .fields = m##_fields, .field_count = sizeof(m##_fields) / sizeof(m##_fields[0]), .check = (check_function) \
    }

#endif
