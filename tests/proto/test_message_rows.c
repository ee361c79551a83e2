/* Rows of the messages' table: each at its bounds and beyond, and the rules across fields. test_message_rows --fields
 * prints the rows in the form of tests/data/messages.fields. */
#include <check.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tests/proto/wire.h"
#include "tests/run_suite.h"
#include "tests/support.h"

#define FIELDS "tests/data/messages.fields"

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

START_TEST(fields_and_bounds_are_those_of_protocol_version_1)
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
    ck_assert_str_eq(was, now);
    free(now);
}
END_TEST

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
    struct view *view = at(both->plain, f->plain), view_before = *view;
    ProtobufCBinaryData *bytes = at(both->wire, f->wire), bytes_before = *bytes;
    *bytes = (ProtobufCBinaryData){.len = size, .data = (uint8_t *)(uintptr_t)data};
    if (f->type != FIELD_POOL)
        *view = view_of(data, size);
    struct both wire_alone = {both->layout, NULL, both->wire};
    expect_both(f->type == FIELD_POOL ? &wire_alone : both, f, status);
    if (f->type != FIELD_POOL)
        *view = view_before;
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
        struct message_layout rows = *both->layout;
        rows.check = NULL;
        *view = view_of(NULL, max);
        ck_assert_int_eq(STRAIT_ERR_CORRUPT,
                         fields_pack(&rows, bump_alloc(&pieces, rows.wire->sizeof_message), both->plain, &pieces));
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
        struct message_layout rows = *both->layout;
        rows.check = NULL;
        *plain = NULL;
        ck_assert_int_eq(STRAIT_ERR_CORRUPT,
                         fields_pack(&rows, bump_alloc(&pieces, rows.wire->sizeof_message), both->plain, &pieces));
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

START_TEST(every_row_holds_at_its_bounds_and_not_beyond)
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
END_TEST

/* ---- Rules across fields ----------------------------------------------------------------------------------------- */

static uint8_t many_bytes[STRAIT_AUX_BYTES_MAX];
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
    X(append_event_size, "append-event", append, m->ready.len = 63)                                                 \
    X(append_layers_beyond, "append", append, (m->layer_first = INT32_MAX, m->layer_count = 1))                     \
    X(layers_below, "layers", layers, m->layers[0] = -2)                                                            \
    X(peer_versions_swapped, "peer-hello", peer_hello, m->version_min = 3)                                          \
    X(announce_without_key, "announce", announce, (m->stop = 0, m->sink_key.len = 0))                               \
    X(arena_slots_beyond, "arena", arena, m->first_slot = UINT32_MAX)                                               \
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

static void free_faults(void)
{
    free(long_list.ids.data);
}

/* Neither read nor, by a writer that has the fault itself, written. */
START_TEST(a_message_with_one_fault_is_refused)
{
    const struct wire_fault *fault = &wire_faults[_i];
    size_t size;
    struct message message;
    Strait__Wire__Envelope *envelope = wire_of(golden_message(fault->golden));
    fault->change(envelope);
    uint8_t *body = wire_packed(envelope, &size);
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, message_unpack(body, size, &message));
    message_fini(&message);
    free(body);
}
END_TEST

START_TEST(a_message_outside_the_limits_is_not_packed)
{
    struct message messages[] = {*golden_message("stats"), *golden_message("stats"), *golden_message("append"),
                                 *golden_message("end"), *golden_message("policy")};
    uint8_t *frame = NULL;
    size_t size = 17;
    messages[0].type = MESSAGE_NONE;
    messages[1].type = (enum message_type)61;
    messages[2].append.last = false;
    messages[3].end.from_sink = false;
    messages[4].policy.coding = 4;
    for (int i = 0; i < COUNT(messages); i++) {
        ck_assert_int_eq(STRAIT_ERR_INVALID, message_pack(&messages[i], &frame, &size));
        ck_assert_ptr_null(frame);
        ck_assert_uint_eq(17, size);
    }
}
END_TEST

/* ---- Suite ------------------------------------------------------------------------------------------------------- */

static Suite *rows_suite(void)
{
    Suite *suite = suite_create("message_rows");
    TCase *rows = tcase_create("rows");
    tcase_add_unchecked_fixture(rows, fill_faults, free_faults);
    tcase_add_checked_fixture(rows, pieces_init, pieces_fini);
    tcase_add_test(rows, fields_and_bounds_are_those_of_protocol_version_1);
    tcase_add_loop_test(rows, every_row_holds_at_its_bounds_and_not_beyond, 0, (int)message_kind_count);
    tcase_add_loop_test(rows, a_message_with_one_fault_is_refused, 0, COUNT(wire_faults));
    tcase_add_test(rows, a_message_outside_the_limits_is_not_packed);
    suite_add_tcase(suite, rows);
    return suite;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--fields") == 0) {
        print_all_fields(stdout);
        return EXIT_SUCCESS;
    }
    return run_suite(rows_suite());
}
