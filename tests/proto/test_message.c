/* Messages: golden frames, each row of the table at its bounds and beyond, rules across fields, sizes, texts, what
 * later versions may send, and random changes. test_message --fields prints the rows in the form of
 * tests/data/messages.fields. */
#include <check.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "internal/bytes.h"
#include "proto/message_table.h"
#include "tests/proto/frames.h"
#include "tests/run_suite.h"
#include "tests/support.h"

#define FIELDS       "tests/data/messages.fields"
#define LENGTH_BYTES FRAME_LENGTH_BYTES
#define GOLDEN_COUNT 98

static uint8_t many_bytes[STRAIT_AUX_BYTES_MAX];

/* Sanitizers need time and memory of their own. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MEASURES = 0 };
#else
enum { MEASURES = 1 };
#endif

/* ---- Packed and generated messages ------------------------------------------------------------------------------- */

static const struct golden *golden_number(int i)
{
    int count;
    const struct golden *frames = golden_frames(&count);
    ck_assert_int_eq(GOLDEN_COUNT, count);
    return &frames[i];
}

static uint8_t *packed(const struct message *message, size_t *size)
{
    uint8_t *frame = NULL;
    ck_assert_int_eq(STRAIT_OK, message_pack(message, &frame, size));
    ck_assert_uint_eq(*size - LENGTH_BYTES, load_le32(frame));
    return frame;
}

/* What the message is after a way over the wire. */
static struct message back_of(const struct message *message)
{
    size_t size;
    struct message back;
    uint8_t *frame = packed(message, &size);
    ck_assert_int_eq(STRAIT_OK, message_unpack(frame + LENGTH_BYTES, size - LENGTH_BYTES, &back));
    free(frame);
    return back;
}

static void require_comes_back(const struct message *message)
{
    struct message back = back_of(message);
    require_same_message(message, &back);
    message_fini(&back);
}

static struct bump pieces; /* memory of the generated messages of a test */

static void pieces_init(void)
{
    bump_init(&pieces, SIZE_MAX);
}

static void pieces_fini(void)
{
    bump_fini(&pieces);
}

static Strait__Wire__Envelope *wire_of(const struct message *message)
{
    size_t size;
    ProtobufCAllocator allocator = bump_allocator(&pieces);
    uint8_t *frame = packed(message, &size);
    Strait__Wire__Envelope *envelope =
        strait__wire__envelope__unpack(&allocator, size - LENGTH_BYTES, frame + LENGTH_BYTES);
    free(frame);
    ck_assert_ptr_nonnull(envelope);
    return envelope;
}

static uint8_t *wire_packed(const Strait__Wire__Envelope *envelope, size_t *size)
{
    *size = strait__wire__envelope__get_packed_size(envelope);
    uint8_t *body = malloc(*size);
    ck_assert_uint_eq(*size, strait__wire__envelope__pack(envelope, body));
    return body;
}

/* ---- Golden frames ----------------------------------------------------------------------------------------------- */

TEST_LOOP(a_golden_frame_comes_out_as_it_went_in, GOLDEN_COUNT)
{
    const struct golden *golden = golden_number(_i);
    struct message message;
    size_t size;
    uint8_t *copy = malloc(golden->size);
    memcpy(copy, golden->frame, golden->size);
    ck_assert_int_eq(STRAIT_OK, message_unpack(copy + LENGTH_BYTES, golden->size - LENGTH_BYTES, &message));
    memset(copy, 0xee, golden->size); /* nothing points into the caller's bytes */
    free(copy);
    uint8_t *frame = packed(&message, &size);
    ck_assert_uint_eq(golden->size, size);
    ck_assert_mem_eq(golden->frame, frame, size);
    free(frame);
    message_fini(&message);
    ck_assert_ptr_null(message.owner);
    message_fini(&message);
}

TEST_LOOP(no_beginning_of_a_frame_is_one, GOLDEN_COUNT)
{
    const struct golden *golden = golden_number(_i);
    struct message message;
    for (size_t cut = LENGTH_BYTES; cut < golden->size; cut++) {
        ck_assert_int_eq(STRAIT_ERR_CORRUPT,
                         message_unpack(golden->frame + LENGTH_BYTES, cut - LENGTH_BYTES, &message));
        ck_assert_ptr_null(message.owner);
    }
}

TEST(every_type_has_a_name_and_a_frame_and_no_other_number_has)
{
    int types = 0;
    for (int type = -1; type < 100; type++) {
        const char *name = message_name((enum message_type)type);
        if (strcmp(name, "unknown") == 0 || strcmp(name, "none") == 0)
            continue;
        ck_assert_int_eq(type, golden_message(name)->type);
        types++;
    }
    ck_assert_int_eq(58, types);
    ck_assert_uint_eq(58, message_kind_count);
    ck_assert_str_eq("none", message_name(MESSAGE_NONE));
    ck_assert_str_eq("unknown", message_name((enum message_type)61));
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

static void print_fields(FILE *file, const char *name, const struct message_layout *layout)
{
    static const char *const types[] = {
        [FIELD_U32] = "u32",         [FIELD_I32] = "i32",
        [FIELD_U64] = "u64",         [FIELD_BOOL] = "bool",
        [FIELD_POOL] = "pool",       [FIELD_BYTES] = "bytes",
        [FIELD_NAME] = "name",       [FIELD_BYTES_OR_NONE] = "bytes-or-none",
        [FIELD_TEXT] = "text",       [FIELD_IDS] = "ids",
        [FIELD_NUMBERS] = "numbers", [FIELD_LIST] = "list",
    };
    for (uint32_t i = 0; i < layout->field_count; i++) {
        const struct field *f = &layout->fields[i];
        fprintf(file, "%s.%s %s %" PRId64 "..%" PRId64 "%s%s\n", name, f->name, types[f->type], f->min, f->max,
                f->known ? " known" : "", layout->check != NULL ? " checked" : "");
        if (f->item != NULL) {
            char item[128];
            snprintf(item, sizeof(item), "%s.%s[]", name, f->name);
            print_fields(file, item, f->item);
        }
    }
}

static void print_all_fields(FILE *file)
{
    for (size_t i = 0; i < message_kind_count; i++)
        print_fields(file, message_kinds[i].name, &message_kinds[i].layout);
}

TEST(fields_and_bounds_are_those_of_the_protocols_version)
{
    char *now = NULL, was[32768];
    size_t size = 0;
    FILE *memory = open_memstream(&now, &size), *file = fopen(FIELDS, "r");
    ck_assert(memory != NULL && file != NULL);
    print_all_fields(memory);
    fclose(memory);
    size_t read = fread(was, 1, sizeof(was) - 1, file);
    was[read] = '\0';
    fclose(file);
    size_t line = 0; /* where the first line begins that differs */
    for (size_t i = 0; was[i] != '\0' && was[i] == now[i]; i++)
        line = was[i] == '\n' ? i + 1 : line;
    ck_assert_msg(strcmp(was, now) == 0, "was %.*s, is %.*s", (int)strcspn(was + line, "\n"), was + line,
                  (int)strcspn(now + line, "\n"), now + line);
    free(now);
}

/* A message's plain struct and its generated one, which a test may change as it likes. */
struct both {
    const struct message_layout *layout;
    void *plain, *wire;
};

/* Packs and unpacks by one row, or (NULL) by all rows, without the rules across fields. */
static void expect_both(const struct both *both, const struct field *row, enum strait_status status)
{
    struct message_layout rows = *both->layout;
    if (row != NULL) {
        rows.fields = row;
        rows.field_count = 1;
    }
    void *plain = bump_alloc(&pieces, rows.plain_bytes), *wire = bump_alloc(&pieces, rows.wire->sizeof_message);
    rows.check = NULL;
    memset(plain, 0, rows.plain_bytes);
    ck_assert_int_eq(status, fields_unpack(&rows, plain, both->wire, &pieces));
    if (both->plain != NULL)
        ck_assert_int_eq(status, fields_pack(&rows, wire, both->plain, &pieces));
}

/* Not packed with what the plain struct has now. */
static void expect_refused(const struct both *both)
{
    struct message_layout rows = *both->layout;
    rows.check = NULL;
    void *wire = bump_alloc(&pieces, rows.wire->sizeof_message);
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, fields_pack(&rows, wire, both->plain, &pieces));
}

static void *at(void *base, size_t offset)
{
    return (char *)base + offset;
}

static void try_number(const struct both *both, const struct field *f, int64_t value, enum strait_status status)
{
    size_t bytes = f->type == FIELD_U64 ? 8 : 4;
    uint64_t plain_before = 0, wire_before = 0;
    memcpy(&plain_before, at(both->plain, f->plain), bytes);
    memcpy(&wire_before, at(both->wire, f->wire), bytes);
    memcpy(at(both->plain, f->plain), &value, bytes);
    memcpy(at(both->wire, f->wire), &value, bytes);
    expect_both(both, f, status);
    memcpy(at(both->plain, f->plain), &plain_before, bytes);
    memcpy(at(both->wire, f->wire), &wire_before, bytes);
}

static void check_number(const struct both *both, const struct field *f)
{
    enum strait_status beyond = f->known ? STRAIT_ERR_UNSUPPORTED : STRAIT_ERR_CORRUPT;
    int64_t lowest = f->type == FIELD_I32 ? INT32_MIN : 0, highest = f->type == FIELD_I32 ? INT32_MAX : UINT32_MAX;
    if (f->type == FIELD_U64)
        highest = -1; /* all bits set */
    int64_t max = f->type == FIELD_U64 ? highest : f->max;
    try_number(both, f, f->min, STRAIT_OK);
    try_number(both, f, max, STRAIT_OK);
    if (f->min != lowest) {
        try_number(both, f, f->min - 1, beyond);
        try_number(both, f, lowest, beyond);
    }
    if (max != highest) {
        try_number(both, f, max + 1, beyond);
        try_number(both, f, highest, beyond);
    }
}

static void try_bytes(const struct both *both, const struct field *f, const void *data, size_t size,
                      enum strait_status status)
{
    struct view view = view_of(data, size), view_before = {0};
    ProtobufCBinaryData *bytes = at(both->wire, f->wire), bytes_before = *bytes;
    *bytes = (ProtobufCBinaryData){.len = size, .data = (uint8_t *)(uintptr_t)data};
    if (f->type != FIELD_POOL) {
        memcpy(&view_before, at(both->plain, f->plain), sizeof(view));
        memcpy(at(both->plain, f->plain), &view, sizeof(view));
    }
    struct both wire_alone = {both->layout, NULL, both->wire};
    expect_both(f->type == FIELD_POOL ? &wire_alone : both, f, status);
    if (f->type != FIELD_POOL)
        memcpy(at(both->plain, f->plain), &view_before, sizeof(view));
    *bytes = bytes_before;
}

static void check_bytes(const struct both *both, const struct field *f)
{
    static uint8_t many[MESSAGE_BYTES_MAX + 1];
    static const uint8_t nul[] = {'a', 0, 'b'};
    bool text = f->type == FIELD_NAME || f->type == FIELD_TEXT;
    size_t min = f->type == FIELD_POOL ? STRAIT_POOL_ID_BYTES : (size_t)f->min;
    size_t max = f->type == FIELD_POOL ? STRAIT_POOL_ID_BYTES : (size_t)f->max;
    if (many[0] == 0)
        memset(many, 'x', sizeof(many));
    try_bytes(both, f, many, min, STRAIT_OK);
    try_bytes(both, f, many, max, STRAIT_OK);
    try_bytes(both, f, many, max + 1, STRAIT_ERR_CORRUPT);
    if (min > 0) {
        try_bytes(both, f, many, 0, f->type == FIELD_BYTES_OR_NONE ? STRAIT_OK : STRAIT_ERR_CORRUPT);
        if (min > 1)
            try_bytes(both, f, many, min - 1, STRAIT_ERR_CORRUPT);
    }
    if (max >= sizeof(nul))
        try_bytes(both, f, nul, sizeof(nul), text || min > sizeof(nul) ? STRAIT_ERR_CORRUPT : STRAIT_OK);
    if (f->type != FIELD_POOL) {
        struct view *view = at(both->plain, f->plain), before = *view;
        *view = view_of(NULL, max);
        expect_refused(both);
        *view = before;
    }
}

/* Lists of the first item again and again. */
static void try_list(const struct both *both, const struct field *f, uint32_t count, enum strait_status status)
{
    size_t plain_size = f->item != NULL ? f->item->plain_bytes : 4, wire_size = f->item != NULL ? sizeof(void *) : 4;
    void **plain = at(both->plain, f->plain), **wire = at(both->wire, f->wire), *before[] = {*plain, *wire};
    uint32_t *plain_count = at(both->plain, f->plain_count), plain_was = *plain_count;
    size_t *wire_count = at(both->wire, f->wire_count), wire_was = *wire_count;
    char *items = bump_alloc(&pieces, (count + 1) * plain_size), *wires = bump_alloc(&pieces, (count + 1) * wire_size);
    for (uint32_t i = 0; i < count; i++) {
        memcpy(items + i * plain_size, before[0], plain_size);
        memcpy(wires + i * wire_size, before[1], wire_size);
    }
    *plain = items;
    *wire = wires;
    *plain_count = count;
    *wire_count = count;
    expect_both(both, f, status);
    if (count > 0 && status == STRAIT_OK) {
        *plain = NULL;
        expect_refused(both);
    }
    *plain = before[0];
    *wire = before[1];
    *plain_count = plain_was;
    *wire_count = wire_was;
}

static int checked; /* rows */

static void check_rows(const struct both *both);

static void check_list(const struct both *both, const struct field *f)
{
    uint32_t count;
    memcpy(&count, at(both->plain, f->plain_count), sizeof(count));
    if (count == 0)
        return; /* another golden frame of this type has some */
    try_list(both, f, (uint32_t)f->min, STRAIT_OK);
    try_list(both, f, (uint32_t)f->max, STRAIT_OK);
    try_list(both, f, (uint32_t)f->max + 1, STRAIT_ERR_CORRUPT);
    if (f->min > 0)
        try_list(both, f, (uint32_t)f->min - 1, STRAIT_ERR_CORRUPT);
    checked++;
    for (uint32_t i = 0; i < count && f->item != NULL; i++) {
        char *items = *(char **)at(both->plain, f->plain);
        void **wires = *(void ***)at(both->wire, f->wire);
        check_rows(&(struct both){f->item, items + i * f->item->plain_bytes, wires[i]});
    }
}

/* Ids on the wire are as many as the count says, or none. */
static void check_ids(const struct both *both, const struct field *f)
{
    ProtobufCBinaryData *bytes = at(both->wire, f->wire), before = *bytes;
    struct both wire_alone = {both->layout, NULL, both->wire};
    if (before.len == 0)
        return;
    static const int off[] = {-4, -2, 2};
    for (int i = 0; i < COUNT(off); i++) {
        bytes->len = before.len + (size_t)off[i];
        if (bytes->len > 0)
            expect_both(&wire_alone, NULL, STRAIT_ERR_CORRUPT);
    }
    bytes->len = 0;
    expect_both(&wire_alone, NULL, STRAIT_OK);
    *bytes = before;
    checked++;
}

static void check_rows(const struct both *both)
{
    expect_both(both, NULL, STRAIT_OK);
    for (uint32_t i = 0; i < both->layout->field_count; i++) {
        const struct field *f = &both->layout->fields[i];
        if (f->type == FIELD_LIST || f->type == FIELD_NUMBERS) {
            check_list(both, f);
        } else if (f->type == FIELD_IDS) {
            check_ids(both, f);
        } else {
            if (f->type == FIELD_U32 || f->type == FIELD_I32 || f->type == FIELD_U64)
                check_number(both, f);
            else if (f->type != FIELD_BOOL)
                check_bytes(both, f);
            checked++;
        }
    }
}

static int rows_of(const struct message_layout *layout)
{
    int rows = 0;
    for (uint32_t i = 0; i < layout->field_count; i++)
        rows += 1 + (layout->fields[i].item != NULL ? rows_of(layout->fields[i].item) : 0);
    return rows;
}

TEST_LOOP(every_row_holds_at_its_bounds_and_not_beyond, (int)message_kind_count)
{
    const struct message_kind *kind = &message_kinds[_i];
    int count;
    const struct golden *frames = golden_frames(&count);
    checked = 0;
    for (int i = 0; i < count; i++)
        if (frames[i].message.type == kind->type) {
            struct message message;
            ck_assert_int_eq(STRAIT_OK,
                             message_unpack(frames[i].frame + LENGTH_BYTES, frames[i].size - LENGTH_BYTES, &message));
            check_rows(&(struct both){&kind->layout, &message.hello, wire_of(&message)->hello});
            message_fini(&message);
        }
    ck_assert_int_ge(checked, rows_of(&kind->layout));
}

/* ---- Rules across fields ----------------------------------------------------------------------------------------- */

static Strait__Wire__PageList long_list = STRAIT__WIRE__PAGE_LIST__INIT;
static Strait__Wire__PageList *three_long_lists[] = {&long_list, &long_list, &long_list};
static Strait__Wire__Segment wide_segment = STRAIT__WIRE__SEGMENT__INIT;
static Strait__Wire__Segment *two_wide_segments[] = {&wide_segment, &wide_segment};

/* Name, golden frame, field of the envelope, what is changed. */
#define WIRE_FAULTS(X)                                                                                              \
    X(hello_versions_swapped, "hello", hello, m->version_min = 4)                                                   \
    X(pool_fd_of_none, "pool-register", pool_register, m->fd_count = 1)                                             \
    X(pool_ipc_missing, "pool-register", pool_register, m->regions[2]->ipc.len = 0)                                 \
    X(list_first, "expect", expect, m->lists[1]->first = UINT32_MAX - 999)                                          \
    X(list_first_id, "expect", expect, m->lists[1]->first_id = UINT32_MAX - 998)                                    \
    X(list_total, "expect", expect, m->lists[1]->count = STRAIT_TRANSFER_PAGES_MAX - 5)                             \
    X(list_ids_total, "append", append, (m->lists = three_long_lists, m->n_lists = 3))                              \
    X(offer_aux_before_last, "offer", offer, m->last = 0)                                                           \
    X(offer_event_size, "offer-event", offer, m->ready.len = 7)                                                     \
    X(offer_event_later, "offer-event", offer, m->later = 1)                                                        \
    X(offer_trace_of_zero, "offer-trace", offer, memset(m->trace.data, 0, 16))                                      \
    X(expect_parent_of_zero, "expect-trace", expect, memset(m->trace.data + 16, 0, 8))                              \
    X(append_event_size, "append-event", append, m->ready.len = 63)                                                 \
    X(append_layers_beyond, "append", append, (m->layer_first = INT32_MAX, m->layer_count = 1))                     \
    X(sample_bytes_beyond, "sample-most", sample, m->bytes++)                                                       \
    X(layers_below, "layers", layers, m->layers[0] = -2)                                                            \
    X(pages_ids_total, "pages", pages, (m->lists = three_long_lists, m->n_lists = 3))                               \
    X(peer_versions_swapped, "peer-hello", peer_hello, m->version_min = 3)                                          \
    X(arena_slots_beyond, "arena", arena, m->first_slot = UINT32_MAX)                                               \
    X(arena_flags_in_a_slot, "arena-flags", arena, m->flags_at -= 8)                                                \
    X(arena_flags_out_of_step, "arena-flags", arena, m->flags_at += 4)                                              \
    X(arena_flags_beyond, "arena-flags", arena, m->flags_at = UINT64_MAX - 7)                                       \
    X(arena_flags_of_no_memory, "arena-flags", arena, m->ipc.len = 0)                                               \
    X(gpu_link_refused_with_address, "gpu-link", gpu_link,                                                          \
      (m->why = (ProtobufCBinaryData){.len = 3, .data = many_bytes}))                                               \
    X(request_span_beyond, "request", request, m->spans[1]->first = UINT32_MAX - 2)                                 \
    X(request_total, "request", request, m->spans[0]->count = 2)                                                    \
    X(request_slot_of_no_grant, "request-open", request, m->grant = 0)                                              \
    X(request_grant_of_no_slot, "request-open", request, m->n_slots = 0)                                            \
    X(request_grant_and_more, "request-open", request, m->more = 1)                                                 \
    X(request_grants_beyond, "request-open-many", request, m->grant++)                                              \
    X(segment_region_beyond, "segments", segments, m->segments[1]->region_count = 2)                                \
    X(segment_first_beyond, "segments", segments, m->segments[1]->count = 2)                                        \
    X(segment_many_units, "segments", segments,                                                                     \
      (m->segments[0]->region_count = 1024, m->segments[0]->count = STRAIT_TRANSFER_PAGES_MAX))                     \
    X(segments_many_units, "segments", segments, (m->segments = two_wide_segments, m->n_segments = 2))              \
    X(segments_before, "segments", segments, m->before = UINT32_MAX - 160000)                                       \
    X(segments_aux_before_last, "segments", segments, m->last = 0)                                                  \
    X(segments_units_of_no_grant, "segments-open", segments, m->grant = 0)                                          \
    X(segments_grant_of_no_units, "segments-open", segments, m->n_granted = 0)                                      \
    X(segments_grant_later, "segments-open", segments, m->before = 1)                                               \
    X(segments_grants_beyond, "segments-open-many", segments, m->grant++)                                           \
    X(segments_grant_of_nothing, "segments-open-many", segments, m->granted[6] = 0)                                 \
    X(segments_granted_beyond, "segments-open-many", segments, m->granted[7]++)                                     \
    X(segments_granted_far_beyond, "segments-open-many", segments, (m->granted[0] = 2, m->granted[1] = UINT32_MAX)) \
    X(grant_beyond, "grant", grant, m->count = 294967296)                                                           \
    X(end_in_between, "end", end, m->state = STRAIT_READY)                                                          \
    X(end_done_by_source, "end", end, m->from_sink = 0)

#define X(id, golden, field, change)                                \
    static void change_##id(const Strait__Wire__Envelope *envelope) \
    {                                                               \
        __auto_type m = envelope->field;                            \
        change;                                                     \
    }
WIRE_FAULTS(X)
#undef X

static const struct wire_fault {
    const char *golden;
    void (*change)(const Strait__Wire__Envelope *envelope);
} wire_faults[] = {
#define X(id, golden, field, change) {golden, change_##id},
    WIRE_FAULTS(X)
#undef X
};

static void fill_faults(void)
{
    memset(many_bytes, 'x', sizeof(many_bytes));
    long_list.count = MESSAGE_IDS_MAX / 4 + 100000;
    long_list.ids = (ProtobufCBinaryData){.len = 4 * (size_t)long_list.count, .data = calloc(long_list.count, 4)};
    wide_segment.region_count = 512;
    wide_segment.count = STRAIT_TRANSFER_PAGES_MAX;
}

/* Neither read nor, by a writer that has the fault itself, written. */
TEST_LOOP(a_message_with_one_fault_is_refused, COUNT(wire_faults))
{
    const struct wire_fault *fault = &wire_faults[_i];
    size_t size;
    struct message message;
    fill_faults();
    Strait__Wire__Envelope *envelope = wire_of(golden_message(fault->golden));
    fault->change(envelope);
    uint8_t *body = wire_packed(envelope, &size);
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, message_unpack(body, size, &message));
    message_fini(&message);
    free(body);
    free(long_list.ids.data);
}

TEST(a_message_outside_the_limits_is_not_packed)
{
    struct message messages[] = {*golden_message("stats"), *golden_message("stats"), *golden_message("append"),
                                 *golden_message("end"), *golden_message("policy")};
    uint8_t *frame = NULL;
    size_t size = 17;
    messages[0].type = MESSAGE_NONE;
    messages[1].type = (enum message_type)61;
    messages[2].append.last = false;
    messages[3].end.from_sink = false;
    messages[4].policy.coding = STRAIT_CODING_PARTS + 1;
    for (int i = 0; i < COUNT(messages); i++) {
        ck_assert_int_eq(STRAIT_ERR_INVALID, message_pack(&messages[i], &frame, &size));
        ck_assert_ptr_null(frame);
        ck_assert_uint_eq(17, size);
    }
}

/* ---- Sizes ----------------------------------------------------------------------------------------------------- */

TEST(a_frame_holds_8_mib_and_no_more)
{
    uint8_t *text = malloc(MESSAGE_BYTES_MAX + 1), *frame = NULL;
    size_t size;
    struct message message = {.type = MESSAGE_STATS_TEXT}, back;
    const size_t overhead = 2 + 4 + 1 + 4; /* two tags, one of two bytes, and two lengths of four */
    memset(text, 'x', MESSAGE_BYTES_MAX + 1);
    message.text.text = view_of(text, MESSAGE_BYTES_MAX - overhead);
    free(packed(&message, &size));
    ck_assert_uint_eq(LENGTH_BYTES + MESSAGE_BYTES_MAX, size);
    require_comes_back(&message);
    message.text.text.size++;
    ck_assert_int_eq(STRAIT_ERR_NO_SPACE, message_pack(&message, &frame, &size));
    ck_assert_int_eq(STRAIT_ERR_NO_SPACE, message_unpack(text, MESSAGE_BYTES_MAX + 1, &back));
    free(text);
}

/* Lists of every length that is allowed at once: the budget of the unpacker has to bear it. */
TEST(the_longest_lists_come_back)
{
    uint32_t *ids = malloc(MESSAGE_IDS_MAX * sizeof(*ids));
    struct wire_page_list *lists = calloc(MESSAGE_LIST_MAX, sizeof(*lists));
    struct message message = *golden_message("offer");
    for (uint32_t i = 0; i < MESSAGE_IDS_MAX; i++)
        ids[i] = i * 2654435761u;
    for (uint32_t i = 0; i < MESSAGE_LIST_MAX; i++)
        lists[i] = (struct wire_page_list){.group = i % 64, .first = i * 256, .count = 256, .ids = ids + i * 256};
    message.offer.lists = lists;
    message.offer.list_count = MESSAGE_LIST_MAX;
    message.offer.aux = view_of(many_bytes, STRAIT_AUX_BYTES_MAX);
    require_comes_back(&message);
    free(lists);
    free(ids);
}

TEST(the_largest_pool_comes_back)
{
    struct wire_region *regions = malloc(STRAIT_REGIONS_MAX * sizeof(*regions));
    struct message message = *golden_message("pool-register");
    for (uint32_t i = 0; i < STRAIT_REGIONS_MAX; i++)
        regions[i] = message.pool_register.regions[i % 4];
    message.pool_register.regions = regions;
    message.pool_register.region_count = STRAIT_REGIONS_MAX;
    require_comes_back(&message);
    free(regions);
}

TEST_RANGE(ids_are_aligned_wherever_they_were_on_the_wire, 1, 9)
{
    struct message message = *golden_message("expect");
    message.expect.key = view_of(many_bytes, (size_t)_i);
    struct message back = back_of(&message);
    ck_assert_uint_eq(0, (uintptr_t)back.expect.lists[0].ids % sizeof(uint32_t));
    ck_assert_uint_eq(0, (uintptr_t)back.expect.lists[3].ids % sizeof(uint32_t));
    message_fini(&back);
}

/* Two bytes of an unknown field are kept as forty: 8 MiB of them would be 160. */
TEST(a_peer_cannot_make_the_unpacker_take_much_memory)
{
    uint8_t *body = malloc(MESSAGE_BYTES_MAX);
    struct message message;
    for (size_t i = 0; i < MESSAGE_BYTES_MAX; i += 2)
        memcpy(body + i, "\x68\x01", 2);
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, message_unpack(body, MESSAGE_BYTES_MAX, &message));
    free(body);
}

static double fastest_pack(const struct message *message)
{
    double fastest = 1;
    for (int i = 0; i < 50; i++) {
        size_t size;
        double before = clock_s();
        uint8_t *frame = packed(message, &size);
        double took = clock_s() - before;
        fastest = took < fastest ? took : fastest;
        free(frame);
    }
    return fastest;
}

TEST_LOOP(a_hundred_thousand_ids_are_packed_in_well_under_a_millisecond, MEASURES)
{
    static uint32_t ids[100000];
    const struct wire_page_list list = {.count = COUNT(ids), .ids = ids};
    struct message message = *golden_message("expect");
    message.expect.lists = &list;
    message.expect.list_count = 1;
    ck_assert_double_lt(fastest_pack(&message), 300e-6);
}

/* ---- Texts ----------------------------------------------------------------------------------------------------- */

static const struct text_case {
    const char *end; /* what a text of x continues with when `before` of them are over */
    size_t before, kept;
} text_cases[] = {
    {"", 1023, 1023},
    {"", 1024, 1024},
    {"x", 1024, 1024},
    {"\xc3\xa9", 1022, 1024},
    {"\xc3\xa9", 1023, 1023},
    {"\xf0\x9f\x98\x80", 1020, 1024},
    {"\xf0\x9f\x98\x80", 1021, 1021},
    {"\xf0\x9f\x98\x80", 1023, 1023},
    {"\x80\x80\x80\x80\x80\x80\x80", 1018, 1021}, /* no UTF-8: cut somewhere near */
};

static size_t text_back(const struct message *message)
{
    struct message back = back_of(message);
    size_t kept = back.pool_status.text.size;
    ck_assert_mem_eq(message->pool_status.text.data, back.pool_status.text.data, kept);
    message_fini(&back);
    return kept;
}

/* Not by the writer alone: another writer may not. */
static size_t text_from_wire(const struct message *message, const char *text)
{
    size_t size;
    struct message back;
    Strait__Wire__Envelope *envelope = wire_of(message);
    envelope->pool_status->text = (ProtobufCBinaryData){.len = strlen(text), .data = (uint8_t *)text};
    uint8_t *body = wire_packed(envelope, &size);
    ck_assert_int_eq(STRAIT_OK, message_unpack(body, size, &back));
    size_t kept = back.pool_status.text.size;
    message_fini(&back);
    free(body);
    return kept;
}

TEST_LOOP(a_long_text_is_cut_between_characters, COUNT(text_cases))
{
    const struct text_case *of = &text_cases[_i];
    char text[2048];
    struct message message = *golden_message("pool-status");
    memset(text, 'x', of->before);
    strcpy(text + of->before, of->end);
    message.pool_status.text = view_of(text, strlen(text));
    ck_assert_uint_eq(of->kept, text_back(&message));
    ck_assert_uint_eq(of->kept, text_from_wire(&message, text));
}

/* ---- What a later version may send ------------------------------------------------------------------------------ */

static void add_unknown(ProtobufCMessage *message, unsigned count)
{
    static uint8_t text[] = "\x05later";
    static uint8_t word[] = "\x01\x02\x03\x04";
    static ProtobufCMessageUnknownField fields[] = {
        {.tag = 1000, .wire_type = PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED, .len = 6, .data = text},
        {.tag = 77, .wire_type = PROTOBUF_C_WIRE_TYPE_32BIT, .len = 4, .data = word},
    };
    message->n_unknown_fields = count;
    message->unknown_fields = fields;
}

static void require_comes_out_again(const uint8_t *body, size_t size)
{
    struct message message;
    size_t frame_size;
    ck_assert_int_eq(STRAIT_OK, message_unpack(body, size, &message));
    uint8_t *frame = packed(&message, &frame_size);
    ck_assert_uint_eq(LENGTH_BYTES + size, frame_size);
    ck_assert_mem_eq(body, frame + LENGTH_BYTES, size);
    free(frame);
    message_fini(&message);
}

TEST_LOOP(unknown_fields_of_the_envelope_and_of_the_message_come_out_again, GOLDEN_COUNT)
{
    size_t size;
    Strait__Wire__Envelope *envelope = wire_of(&golden_number(_i)->message);
    add_unknown(&envelope->base, 1);
    add_unknown((ProtobufCMessage *)envelope->hello, 2);
    uint8_t *body = wire_packed(envelope, &size);
    require_comes_out_again(body, size);
    free(body);
}

TEST(unknown_fields_of_list_items_come_out_again)
{
    size_t size;
    Strait__Wire__Envelope *envelopes[] = {wire_of(golden_message("pool-register")), wire_of(golden_message("state")),
                                           wire_of(golden_message("request")), wire_of(golden_message("segments"))};
    add_unknown(&envelopes[0]->pool_register->regions[2]->base, 2);
    add_unknown(&envelopes[1]->state->failed[0]->base, 1);
    add_unknown(&envelopes[1]->state->failed[3]->base, 2);
    add_unknown(&envelopes[2]->request->spans[1]->base, 1);
    add_unknown(&envelopes[3]->segments->segments[1]->base, 1);
    for (int i = 0; i < COUNT(envelopes); i++) {
        uint8_t *body = wire_packed(envelopes[i], &size);
        require_comes_out_again(body, size);
        free(body);
    }
}

TEST(unknown_fields_survive_a_change_of_known_ones)
{
    size_t size, changed_size;
    struct message message;
    Strait__Wire__Envelope *envelope = wire_of(golden_message("grant"));
    add_unknown(&envelope->grant->base, 2);
    uint8_t *body = wire_packed(envelope, &size);
    ck_assert_int_eq(STRAIT_OK, message_unpack(body, size, &message));
    message.grant.slot = 16;
    uint8_t *frame = packed(&message, &changed_size);
    free(body);
    envelope->grant->slot = 16;
    body = wire_packed(envelope, &size);
    ck_assert_uint_eq(LENGTH_BYTES + size, changed_size);
    ck_assert_mem_eq(body, frame + LENGTH_BYTES, size);
    free(body);
    free(frame);
    message_fini(&message);
}

static const struct body_case {
    const char *bytes;
    size_t size;
    enum strait_status status;
    size_t skipped; /* bytes at the beginning that do not come out again */
} body_cases[] = {
    {"", 0, STRAIT_ERR_CORRUPT, 0},
    {"\x9a\x06\x00", 3, STRAIT_ERR_UNSUPPORTED, 0},                             /* message 99 */
    {"\x98\x06\x00", 3, STRAIT_ERR_UNSUPPORTED, 0},                             /* field 99, no message */
    {"\x5a\x00", 2, STRAIT_OK, 0},                                              /* 11: STATS */
    {"\x5a\x00\x9a\x06\x00", 5, STRAIT_OK, 0},                                  /* and a field of a later version */
    {"\x58\x00", 2, STRAIT_ERR_CORRUPT, 0},                                     /* 11 is no number */
    {"\x5a\x01", 2, STRAIT_ERR_CORRUPT, 0},                                     /* ends early */
    {"\x5a\x00\x42\x02\x08\x07", 6, STRAIT_OK, 2},                              /* STATS, ABORT: the last one counts */
    {"\x00\x00", 2, STRAIT_ERR_CORRUPT, 0},                                     /* field 0 */
    {"\x80\x00\x00", 3, STRAIT_ERR_CORRUPT, 0},                                 /* field 0, longer than need be */
    {"\x5a\x03\x80\x00\x00", 5, STRAIT_ERR_CORRUPT, 0},                         /* the same inside STATS */
    {"\xf8\xff\xff\xff\x1f\x00", 6, STRAIT_ERR_CORRUPT, 0},                     /* a field beyond the last number */
    {"\x5b\x5c", 2, STRAIT_ERR_CORRUPT, 0},                                     /* a group */
    {"\x42\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 13, STRAIT_OK, 0}, /* ABORT of 2^64 - 1 */
};

TEST_LOOP(a_body_is_one_message_of_a_known_type, COUNT(body_cases))
{
    const struct body_case *of = &body_cases[_i];
    struct message message;
    ck_assert_int_eq(of->status, message_unpack(of->bytes, of->size, &message));
    if (of->status == STRAIT_OK)
        require_comes_out_again((const uint8_t *)of->bytes + of->skipped, of->size - of->skipped);
    message_fini(&message);
}

/* ---- Random changes -------------------------------------------------------------------------------------------- */

static void mutate(struct rng *rng, uint8_t *body, size_t size)
{
    for (uint32_t changes = 1 + rng_below(rng, 4); changes > 0; changes--) {
        uint32_t at = rng_below(rng, (uint32_t)size);
        body[at] = rng_below(rng, 2) == 0 ? (uint8_t)rng_next(rng) : (uint8_t)(body[at] ^ (1u << rng_below(rng, 8)));
    }
}

TEST_LOOP(a_changed_message_is_refused_or_is_another_valid_one, GOLDEN_COUNT)
{
    struct rng rng = rng_init(500 + (uint64_t)_i);
    size_t size;
    uint8_t *frame = packed(&golden_number(_i)->message, &size);
    size -= LENGTH_BYTES;
    uint8_t *body = malloc(size);
    for (int round = 0; round < 1000 / STRIDE; round++) {
        struct message message;
        memcpy(body, frame + LENGTH_BYTES, size);
        mutate(&rng, body, size);
        enum strait_status status = message_unpack(body, size, &message);
        if (status == STRAIT_OK)
            require_comes_back(&message); /* what was read can be written */
        else
            ck_assert(status == STRAIT_ERR_CORRUPT || status == STRAIT_ERR_UNSUPPORTED);
        message_fini(&message);
    }
    free(body);
    free(frame);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--fields") == 0) {
        print_all_fields(stdout);
        return EXIT_SUCCESS;
    }
    printf("STRAIT_TEST_SEED=%llu\n", (unsigned long long)test_seed());
    return run_tests("message", pieces_init, pieces_fini);
}
