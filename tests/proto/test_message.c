/* Messages: golden frames, sizes, texts, what later versions may send, and random changes. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/proto/wire.h"
#include "tests/run_suite.h"
#include "tests/support.h"

static uint8_t many_bytes[STRAIT_AUX_BYTES_MAX]; /* zeros */

/* Sanitizers need time and memory of their own. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MEASURES = 0 };
#else
enum { MEASURES = 1 };
#endif

/* ---- Golden frames ----------------------------------------------------------------------------------------------- */

START_TEST(a_golden_frame_comes_out_as_it_went_in)
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
END_TEST

START_TEST(no_beginning_of_a_frame_is_one)
{
    const struct golden *golden = golden_number(_i);
    struct message message;
    for (size_t cut = LENGTH_BYTES; cut < golden->size; cut++) {
        ck_assert_int_eq(STRAIT_ERR_CORRUPT,
                         message_unpack(golden->frame + LENGTH_BYTES, cut - LENGTH_BYTES, &message));
        ck_assert_ptr_null(message.owner);
    }
}
END_TEST

START_TEST(every_type_has_a_name_and_a_frame_and_no_other_number_has)
{
    int types = 0;
    for (int type = -1; type < 100; type++) {
        const char *name = message_name((enum message_type)type);
        if (strcmp(name, "unknown") == 0 || strcmp(name, "none") == 0)
            continue;
        ck_assert_int_eq(type, golden_message(name)->type);
        types++;
    }
    ck_assert_int_eq(37, types);
    ck_assert_uint_eq(37, message_kind_count);
    ck_assert_str_eq("none", message_name(MESSAGE_NONE));
    ck_assert_str_eq("unknown", message_name((enum message_type)61));
}
END_TEST

/* ---- Sizes ----------------------------------------------------------------------------------------------------- */

START_TEST(a_frame_holds_8_mib_and_no_more)
{
    uint8_t *text = malloc(MESSAGE_BYTES_MAX + 1), *frame = NULL;
    size_t size;
    struct message message = {.type = MESSAGE_STATS_TEXT}, back;
    const size_t overhead = 2 + 4 + 1 + 4; /* two tags, one of two bytes, and two lengths of four */
    memset(text, 'x', MESSAGE_BYTES_MAX + 1);
    message.text.text = view_of(text, MESSAGE_BYTES_MAX - overhead);
    frame = packed(&message, &size);
    ck_assert_uint_eq(LENGTH_BYTES + MESSAGE_BYTES_MAX, size);
    ck_assert_int_eq(STRAIT_OK, message_unpack(frame + LENGTH_BYTES, MESSAGE_BYTES_MAX, &back));
    require_same_message(&message, &back);
    message_fini(&back);
    free(frame);
    message.text.text.size++;
    ck_assert_int_eq(STRAIT_ERR_NO_SPACE, message_pack(&message, &frame, &size));
    ck_assert_int_eq(STRAIT_ERR_NO_SPACE, message_unpack(text, MESSAGE_BYTES_MAX + 1, &back));
    free(text);
}
END_TEST

/* Lists of every length that is allowed at once: the budget of the unpacker has to bear it. */
START_TEST(the_longest_lists_come_back)
{
    uint32_t *ids = malloc(MESSAGE_IDS_MAX * sizeof(*ids));
    struct wire_page_list *lists = calloc(MESSAGE_LIST_MAX, sizeof(*lists));
    struct message message = *golden_message("offer"), back;
    size_t size;
    for (uint32_t i = 0; i < MESSAGE_IDS_MAX; i++)
        ids[i] = i * 2654435761u;
    for (uint32_t i = 0; i < MESSAGE_LIST_MAX; i++)
        lists[i] = (struct wire_page_list){.group = i % 64, .first = i * 256, .count = 256, .ids = ids + i * 256};
    message.offer.lists = lists;
    message.offer.list_count = MESSAGE_LIST_MAX;
    message.offer.aux = view_of(many_bytes, STRAIT_AUX_BYTES_MAX);
    uint8_t *frame = packed(&message, &size);
    ck_assert_int_eq(STRAIT_OK, message_unpack(frame + LENGTH_BYTES, size - LENGTH_BYTES, &back));
    require_same_message(&message, &back);
    message_fini(&back);
    free(frame);
    free(lists);
    free(ids);
}
END_TEST

START_TEST(the_largest_pool_comes_back)
{
    struct wire_region *regions = malloc(STRAIT_REGIONS_MAX * sizeof(*regions));
    struct message message = *golden_message("pool-register"), back;
    size_t size;
    for (uint32_t i = 0; i < STRAIT_REGIONS_MAX; i++)
        regions[i] = message.pool_register.regions[i % 4];
    message.pool_register.regions = regions;
    message.pool_register.region_count = STRAIT_REGIONS_MAX;
    uint8_t *frame = packed(&message, &size);
    ck_assert_int_eq(STRAIT_OK, message_unpack(frame + LENGTH_BYTES, size - LENGTH_BYTES, &back));
    require_same_message(&message, &back);
    message_fini(&back);
    free(frame);
    free(regions);
}
END_TEST

START_TEST(ids_are_aligned_wherever_they_were_on_the_wire)
{
    struct message message = *golden_message("expect"), back;
    size_t size;
    message.expect.key = view_of(many_bytes, (size_t)_i);
    uint8_t *frame = packed(&message, &size);
    ck_assert_int_eq(STRAIT_OK, message_unpack(frame + LENGTH_BYTES, size - LENGTH_BYTES, &back));
    ck_assert_uint_eq(0, (uintptr_t)back.expect.lists[0].ids % sizeof(uint32_t));
    ck_assert_uint_eq(0, (uintptr_t)back.expect.lists[3].ids % sizeof(uint32_t));
    message_fini(&back);
    free(frame);
}
END_TEST

/* Two bytes of an unknown field are kept as forty: 8 MiB of them would be 160. */
START_TEST(a_peer_cannot_make_the_unpacker_take_much_memory)
{
    uint8_t *body = malloc(MESSAGE_BYTES_MAX);
    struct message message;
    for (size_t i = 0; i < MESSAGE_BYTES_MAX; i += 2)
        memcpy(body + i, "\x68\x01", 2);
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, message_unpack(body, MESSAGE_BYTES_MAX, &message));
    free(body);
}
END_TEST

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double fastest_pack(const struct message *message)
{
    double fastest = 1;
    for (int i = 0; i < 50; i++) {
        size_t size;
        double before = seconds();
        uint8_t *frame = packed(message, &size);
        double took = seconds() - before;
        fastest = took < fastest ? took : fastest;
        free(frame);
    }
    return fastest;
}

START_TEST(a_hundred_thousand_ids_are_packed_in_well_under_a_millisecond)
{
    static uint32_t ids[100000];
    const struct wire_page_list list = {.count = COUNT(ids), .ids = ids};
    struct message message = *golden_message("expect");
    message.expect.lists = &list;
    message.expect.list_count = 1;
    ck_assert_double_lt(fastest_pack(&message), 300e-6);
}
END_TEST

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
    size_t size;
    struct message back;
    uint8_t *frame = packed(message, &size);
    ck_assert_int_eq(STRAIT_OK, message_unpack(frame + LENGTH_BYTES, size - LENGTH_BYTES, &back));
    size_t kept = back.pool_status.text.size;
    ck_assert_mem_eq(message->pool_status.text.data, back.pool_status.text.data, kept);
    message_fini(&back);
    free(frame);
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

START_TEST(a_long_text_is_cut_between_characters)
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
END_TEST

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

START_TEST(unknown_fields_of_the_envelope_and_of_the_message_come_out_again)
{
    size_t size;
    Strait__Wire__Envelope *envelope = wire_of(&golden_number(_i)->message);
    add_unknown(&envelope->base, 1);
    add_unknown((ProtobufCMessage *)envelope->hello, 2);
    uint8_t *body = wire_packed(envelope, &size);
    require_comes_out_again(body, size);
    free(body);
}
END_TEST

START_TEST(unknown_fields_of_list_items_come_out_again)
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
END_TEST

START_TEST(unknown_fields_survive_a_change_of_known_ones)
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
END_TEST

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

START_TEST(a_body_is_one_message_of_a_known_type)
{
    const struct body_case *of = &body_cases[_i];
    struct message message;
    ck_assert_int_eq(of->status, message_unpack(of->bytes, of->size, &message));
    if (of->status == STRAIT_OK)
        require_comes_out_again((const uint8_t *)of->bytes + of->skipped, of->size - of->skipped);
    message_fini(&message);
}
END_TEST

/* ---- Random changes -------------------------------------------------------------------------------------------- */

static void mutate(struct rng *rng, uint8_t *body, size_t size)
{
    for (uint32_t changes = 1 + rng_below(rng, 4); changes > 0; changes--) {
        uint32_t at = rng_below(rng, (uint32_t)size);
        body[at] = rng_below(rng, 2) == 0 ? (uint8_t)rng_next(rng) : (uint8_t)(body[at] ^ (1u << rng_below(rng, 8)));
    }
}

/* A message that was read can be written, and reads the same again. */
static void require_reads_again(const struct message *message)
{
    size_t size;
    struct message back;
    uint8_t *frame = packed(message, &size);
    ck_assert_int_eq(STRAIT_OK, message_unpack(frame + LENGTH_BYTES, size - LENGTH_BYTES, &back));
    require_same_message(message, &back);
    message_fini(&back);
    free(frame);
}

START_TEST(a_changed_message_is_refused_or_is_another_valid_one)
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
            require_reads_again(&message);
        else
            ck_assert(status == STRAIT_ERR_CORRUPT || status == STRAIT_ERR_UNSUPPORTED);
        message_fini(&message);
    }
    free(body);
    free(frame);
}
END_TEST

/* ---- Suite ------------------------------------------------------------------------------------------------------- */

static Suite *message_suite(void)
{
    Suite *suite = suite_create("message");
    TCase *golden = tcase_create("golden"), *sizes = tcase_create("sizes");
    TCase *later = tcase_create("later versions"), *random = tcase_create("random");
    tcase_add_loop_test(golden, a_golden_frame_comes_out_as_it_went_in, 0, GOLDEN_COUNT);
    tcase_add_loop_test(golden, no_beginning_of_a_frame_is_one, 0, GOLDEN_COUNT);
    tcase_add_test(golden, every_type_has_a_name_and_a_frame_and_no_other_number_has);
    suite_add_tcase(suite, golden);
    tcase_add_checked_fixture(sizes, pieces_init, pieces_fini);
    tcase_add_test(sizes, a_frame_holds_8_mib_and_no_more);
    tcase_add_test(sizes, the_longest_lists_come_back);
    tcase_add_test(sizes, the_largest_pool_comes_back);
    tcase_add_loop_test(sizes, ids_are_aligned_wherever_they_were_on_the_wire, 1, 9);
    tcase_add_test(sizes, a_peer_cannot_make_the_unpacker_take_much_memory);
    tcase_add_loop_test(sizes, a_long_text_is_cut_between_characters, 0, COUNT(text_cases));
    if (MEASURES)
        tcase_add_test(sizes, a_hundred_thousand_ids_are_packed_in_well_under_a_millisecond);
    suite_add_tcase(suite, sizes);
    tcase_add_checked_fixture(later, pieces_init, pieces_fini);
    tcase_add_loop_test(later, unknown_fields_of_the_envelope_and_of_the_message_come_out_again, 0, GOLDEN_COUNT);
    tcase_add_test(later, unknown_fields_of_list_items_come_out_again);
    tcase_add_test(later, unknown_fields_survive_a_change_of_known_ones);
    tcase_add_loop_test(later, a_body_is_one_message_of_a_known_type, 0, COUNT(body_cases));
    suite_add_tcase(suite, later);
    tcase_add_loop_test(random, a_changed_message_is_refused_or_is_another_valid_one, 0, GOLDEN_COUNT);
    suite_add_tcase(suite, random);
    return suite;
}

int main(void)
{
    printf("STRAIT_TEST_SEED=%llu\n", (unsigned long long)test_seed());
    return run_suite(message_suite());
}
