/* test_message --write FOLDER writes the golden frames anew. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "internal/bytes.h"
#include "proto/message_table.h"
#include "tests/message_samples.h"
#include "tests/run_suite.h"
#include "tests/support.h"

#define GOLDEN       "tests/data/messages"
#define LENGTH_BYTES 4u

/* Sanitizers need time and memory of their own. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MEASURES = 0 };
#else
enum { MEASURES = 1 };
#endif

static uint8_t *packed(const struct message *message, size_t *size)
{
    uint8_t *frame = NULL;
    ck_assert_int_eq(STRAIT_OK, message_pack(message, &frame, size));
    ck_assert_uint_eq(*size - LENGTH_BYTES, load_le32(frame));
    return frame;
}

/* ---- Golden frames --------------------------------------------------------------------------------------------- */

static void golden_path(char path[4096], const char *folder, const char *name)
{
    require(snprintf(path, 4096, "%s/%s.hex", folder, name) < 4096);
}

/* Bytes in hex, 32 in a line. */
static uint8_t *golden_read(const char *name, size_t *size)
{
    char path[4096];
    uint8_t *bytes = malloc(4096);
    unsigned byte;
    golden_path(path, GOLDEN, name);
    FILE *file = fopen(path, "r");
    require(file != NULL && bytes != NULL);
    for (*size = 0; fscanf(file, "%2x", &byte) == 1; bytes[(*size)++] = (uint8_t)byte)
        require(*size < 4096);
    require(feof(file));
    fclose(file);
    return bytes;
}

static void golden_write(const char *folder, const struct sample *sample)
{
    char path[4096];
    uint8_t *frame;
    size_t size;
    golden_path(path, folder, sample->name);
    FILE *file = fopen(path, "w");
    require(file != NULL && message_pack(&sample->message, &frame, &size) == STRAIT_OK);
    for (size_t i = 0; i < size; i++)
        fprintf(file, "%02x%s", frame[i], i % 32 == 31 || i + 1 == size ? "\n" : "");
    require(fclose(file) == 0);
    free(frame);
}

START_TEST(a_message_packs_to_its_golden_frame)
{
    size_t size, golden_size;
    uint8_t *frame = packed(&samples[_i].message, &size), *golden = golden_read(samples[_i].name, &golden_size);
    ck_assert_uint_eq(golden_size, size);
    ck_assert_mem_eq(golden, frame, size);
    free(golden);
    free(frame);
}
END_TEST

START_TEST(a_golden_frame_unpacks_to_every_field_of_its_message)
{
    size_t size;
    struct message message;
    uint8_t *golden = golden_read(samples[_i].name, &size);
    ck_assert_int_eq(STRAIT_OK, message_unpack(golden + LENGTH_BYTES, size - LENGTH_BYTES, &message));
    memset(golden, 0xee, size); /* nothing points into the caller's bytes */
    free(golden);
    require_same_message(&samples[_i].message, &message);
    message_fini(&message);
    ck_assert_ptr_null(message.owner);
    message_fini(&message);
}
END_TEST

START_TEST(no_beginning_of_a_frame_is_one)
{
    size_t size;
    struct message message;
    uint8_t *frame = packed(&samples[_i].message, &size);
    for (size_t cut = LENGTH_BYTES; cut < size; cut++) {
        ck_assert_int_eq(STRAIT_ERR_CORRUPT, message_unpack(frame + LENGTH_BYTES, cut - LENGTH_BYTES, &message));
        ck_assert_ptr_null(message.owner);
    }
    free(frame);
}
END_TEST

START_TEST(every_type_has_a_name_and_a_sample_and_no_other_number_has)
{
    int types = 0;
    for (int type = -1; type < 100; type++) {
        const char *name = message_name((enum message_type)type);
        if (strcmp(name, "unknown") == 0 || strcmp(name, "none") == 0)
            continue;
        ck_assert_int_eq(type, sample_of(name)->type);
        types++;
    }
    ck_assert_int_eq(37, types);
    ck_assert_str_eq("none", message_name(MESSAGE_NONE));
    ck_assert_str_eq("unknown", message_name((enum message_type)61));
}
END_TEST

/* ---- Faults in what comes -------------------------------------------------------------------------------------- */

static const uint8_t nul_in_text[] = {'a', 0, 'b'};
static uint8_t many_bytes[STRAIT_AUX_BYTES_MAX + 1];
static Strait__Wire__PageList long_list = STRAIT__WIRE__PAGE_LIST__INIT;
static Strait__Wire__PageList *three_long_lists[] = {&long_list, &long_list, &long_list};
static Strait__Wire__PageList *too_many_lists[MESSAGE_LIST_MAX + 1];
static Strait__Wire__Segment wide_segment = STRAIT__WIRE__SEGMENT__INIT;
static Strait__Wire__Segment *two_wide_segments[] = {&wide_segment, &wide_segment};

static uint32_t nine_counts[MESSAGE_OPEN_MAX + 1] = {1, 1, 1, 1, 1, 1, 1, 1, 1};

#define SET(field, bytes, size) (m->field = (ProtobufCBinaryData){.len = (size), .data = (uint8_t *)(bytes)})

/* Name, sample, field of the envelope, what is changed, what reading it says. */
#define WIRE_FAULTS(X)                                                                                              \
    X(hello_version_0, "hello", hello, m->version = 0, ERR_CORRUPT)                                                 \
    X(hello_versions_swapped, "hello", hello, m->version_min = 4, ERR_CORRUPT)                                      \
    X(hello_text_with_nul, "hello", hello, SET(library, nul_in_text, 3), ERR_CORRUPT)                               \
    X(welcome_incarnation_0, "welcome", welcome, m->incarnation = 0, ERR_CORRUPT)                                   \
    X(welcome_long_address, "welcome", welcome, SET(address, many_bytes, MESSAGE_ADDRESS_MAX + 1), ERR_CORRUPT)     \
    X(welcome_address_with_nul, "welcome", welcome, SET(address, nul_in_text, 3), ERR_CORRUPT)                      \
    X(welcome_short_codebook, "welcome", welcome, m->codebook_id.len = 15, ERR_CORRUPT)                             \
    X(pool_id_short, "pool-remove", pool_remove, m->pool.len = 15, ERR_CORRUPT)                                     \
    X(pool_id_long, "pool-remove", pool_remove, SET(pool, many_bytes, 17), ERR_CORRUPT)                             \
    X(pool_id_missing, "policy", policy, m->pool.len = 0, ERR_CORRUPT)                                              \
    X(pool_many_fds, "pool-register", pool_register, m->fd_count = 65, ERR_CORRUPT)                                 \
    X(pool_no_region, "pool-register", pool_register, m->n_regions = 0, ERR_CORRUPT)                                \
    X(pool_fd_of_none, "pool-register", pool_register, m->fd_count = 1, ERR_CORRUPT)                                \
    X(pool_new_handle, "pool-register", pool_register, m->regions[0]->handle = 5, ERR_UNSUPPORTED)                  \
    X(pool_no_handle, "pool-register", pool_register, m->regions[0]->handle = 0, ERR_UNSUPPORTED)                   \
    X(pool_new_element, "pool-register", pool_register, m->regions[1]->element = 6, ERR_UNSUPPORTED)                \
    X(pool_new_role, "pool-register", pool_register, m->regions[1]->role = 3, ERR_UNSUPPORTED)                      \
    X(pool_new_coding, "pool-register", pool_register, m->coding = 4, ERR_UNSUPPORTED)                              \
    X(pool_layer_below, "pool-register", pool_register, m->regions[0]->layer = -2, ERR_CORRUPT)                     \
    X(pool_group_beyond, "pool-register", pool_register, m->regions[0]->group = 64, ERR_CORRUPT)                    \
    X(pool_ipc_short, "pool-register", pool_register, m->regions[2]->ipc.len = 63, ERR_CORRUPT)                     \
    X(pool_ipc_missing, "pool-register", pool_register, m->regions[2]->ipc.len = 0, ERR_CORRUPT)                    \
    X(pool_status_new, "pool-status", pool_status, m->status = -14, ERR_UNSUPPORTED)                                \
    X(pool_status_positive, "pool-status", pool_status, m->status = 1, ERR_UNSUPPORTED)                             \
    X(key_empty, "expect", expect, m->key.len = 0, ERR_CORRUPT)                                                     \
    X(key_long, "offer", offer, SET(key, many_bytes, STRAIT_KEY_BYTES_MAX + 1), ERR_CORRUPT)                        \
    X(expect_many_sources, "expect", expect, m->sources = 65, ERR_CORRUPT)                                          \
    X(expect_many_lists, "expect", expect, (m->lists = too_many_lists, m->n_lists = MESSAGE_LIST_MAX + 1),          \
      ERR_CORRUPT)                                                                                                  \
    X(list_group, "expect", expect, m->lists[0]->group = 64, ERR_CORRUPT)                                           \
    X(list_first, "expect", expect, m->lists[1]->first = UINT32_MAX - 999, ERR_CORRUPT)                             \
    X(list_first_id, "expect", expect, m->lists[1]->first_id = UINT32_MAX - 998, ERR_CORRUPT)                       \
    X(list_count, "expect", expect, m->lists[1]->count = STRAIT_TRANSFER_PAGES_MAX + 1, ERR_CORRUPT)                \
    X(list_total, "expect", expect, m->lists[1]->count = STRAIT_TRANSFER_PAGES_MAX - 5, ERR_CORRUPT)                \
    X(list_fewer_ids, "expect", expect, m->lists[0]->ids.len = 16, ERR_CORRUPT)                                     \
    X(list_half_an_id, "expect", expect, m->lists[0]->ids.len = 18, ERR_CORRUPT)                                    \
    X(list_ids_of_nothing, "expect", expect, m->lists[0]->count = 0, ERR_CORRUPT)                                   \
    X(list_ids_total, "append", append, (m->lists = three_long_lists, m->n_lists = 3), ERR_CORRUPT)                 \
    X(offer_long_aux, "offer", offer, SET(aux, many_bytes, STRAIT_AUX_BYTES_MAX + 1), ERR_CORRUPT)                  \
    X(offer_aux_before_last, "offer", offer, m->last = 0, ERR_CORRUPT)                                              \
    X(offer_event_size, "offer-event", offer, m->ready.len = 7, ERR_CORRUPT)                                        \
    X(offer_event_later, "offer-event", offer, m->later = 1, ERR_CORRUPT)                                           \
    X(append_event_size, "append-event", append, m->ready.len = 63, ERR_CORRUPT)                                    \
    X(append_layer_below, "append", append, m->layer_first = -2, ERR_CORRUPT)                                       \
    X(append_layers_beyond, "append", append, (m->layer_first = INT32_MAX, m->layer_count = 1), ERR_CORRUPT)        \
    X(no_words, "words", words, m->count = 0, ERR_CORRUPT)                                                          \
    X(many_words, "words", words, m->count = MESSAGE_WORDS_MAX + 1, ERR_CORRUPT)                                    \
    X(wait_for_layer_below, "wait", wait, m->layer = -2, ERR_CORRUPT)                                               \
    X(wait_for_word_beyond, "wait", wait, m->word = MESSAGE_WORDS_MAX, ERR_CORRUPT)                                 \
    X(start_new_direction, "start", start, m->direction = 3, ERR_UNSUPPORTED)                                       \
    X(start_new_mismatch, "start", start, m->mismatch = 64, ERR_UNSUPPORTED)                                        \
    X(start_long_key, "start", start, SET(peer_key, many_bytes, STRAIT_KEY_BYTES_MAX + 1), ERR_CORRUPT)             \
    X(notify_long_data, "notify", notify, SET(data, many_bytes, STRAIT_NOTE_BYTES_MAX + 1), ERR_CORRUPT)            \
    X(note_long_data, "peer-note", peer_note, SET(data, many_bytes, STRAIT_NOTE_BYTES_MAX + 1), ERR_CORRUPT)        \
    X(policy_new_coding, "policy", policy, m->coding = UINT32_MAX, ERR_UNSUPPORTED)                                 \
    X(state_new_state, "state", state, m->state = 5, ERR_UNSUPPORTED)                                               \
    X(state_new_reason, "state", state, m->reason = 12, ERR_UNSUPPORTED)                                            \
    X(layers_below, "layers", layers, m->layers[0] = -2, ERR_CORRUPT)                                               \
    X(stats_text_with_nul, "stats-text", stats_text, SET(text, nul_in_text, 3), ERR_CORRUPT)                        \
    X(peer_nonce_short, "peer-hello", peer_hello, m->nonce.len = 31, ERR_CORRUPT)                                   \
    X(peer_nonce_missing, "peer-hello", peer_hello, m->nonce.len = 0, ERR_CORRUPT)                                  \
    X(peer_incarnation_0, "peer-hello", peer_hello, m->incarnation = 0, ERR_CORRUPT)                                \
    X(peer_versions_swapped, "peer-hello", peer_hello, m->version_min = 3, ERR_CORRUPT)                             \
    X(peer_mac_long, "peer-proof", peer_proof, SET(mac, many_bytes, 33), ERR_CORRUPT)                               \
    X(links_path_with_nul, "peer-links", peer_links, SET(shm_path, nul_in_text, 3), ERR_CORRUPT)                    \
    X(links_long_ucx, "peer-links", peer_links, SET(ucx_address, many_bytes, MESSAGE_UCX_ADDRESS_MAX + 1),          \
      ERR_CORRUPT)                                                                                                  \
    X(announce_without_key, "announce", announce, (m->stop = 0, m->sink_key.len = 0), ERR_CORRUPT)                  \
    X(request_epoch_0, "request", request, m->epoch_incarnation = 0, ERR_CORRUPT)                                   \
    X(request_empty_span, "request", request, m->spans[0]->count = 0, ERR_CORRUPT)                                  \
    X(request_span_beyond, "request", request, m->spans[1]->first = UINT32_MAX - 2, ERR_CORRUPT)                    \
    X(request_total, "request", request, m->spans[0]->count = 2, ERR_CORRUPT)                                       \
    X(request_slot_of_no_grant, "request-open", request, m->grant = 0, ERR_CORRUPT)                                 \
    X(request_grant_of_no_slot, "request-open", request, m->n_slots = 0, ERR_CORRUPT)                               \
    X(request_grant_and_more, "request-open", request, m->more = 1, ERR_CORRUPT)                                    \
    X(request_many_slots, "request-open", request, (m->slots = nine_counts, m->n_slots = MESSAGE_OPEN_MAX + 1),     \
      ERR_CORRUPT)                                                                                                  \
    X(request_grants_beyond, "request-open-many", request, m->grant++, ERR_CORRUPT)                                 \
    X(segments_epoch_0, "segments", segments, m->epoch_incarnation = 0, ERR_CORRUPT)                                \
    X(segment_no_region, "segments", segments, m->segments[0]->region_count = 0, ERR_CORRUPT)                       \
    X(segment_no_page, "segments", segments, m->segments[0]->count = 0, ERR_CORRUPT)                                \
    X(segment_region_beyond, "segments", segments, m->segments[1]->region_count = 2, ERR_CORRUPT)                   \
    X(segment_first_beyond, "segments", segments, m->segments[1]->count = 2, ERR_CORRUPT)                           \
    X(segment_many_units, "segments", segments,                                                                     \
      (m->segments[0]->region_count = 1024, m->segments[0]->count = STRAIT_TRANSFER_PAGES_MAX), ERR_CORRUPT)        \
    X(segments_many_units, "segments", segments, (m->segments = two_wide_segments, m->n_segments = 2), ERR_CORRUPT) \
    X(segments_before, "segments", segments, m->before = UINT32_MAX - 160000, ERR_CORRUPT)                          \
    X(segments_aux_before_last, "segments", segments, m->last = 0, ERR_CORRUPT)                                     \
    X(segments_units_of_no_grant, "segments-open", segments, m->grant = 0, ERR_CORRUPT)                             \
    X(segments_grant_of_no_units, "segments-open", segments, m->n_granted = 0, ERR_CORRUPT)                         \
    X(segments_grant_later, "segments-open", segments, m->before = 1, ERR_CORRUPT)                                  \
    X(segments_many_grants, "segments-open", segments,                                                              \
      (m->granted = nine_counts, m->n_granted = MESSAGE_OPEN_MAX + 1), ERR_CORRUPT)                                 \
    X(segments_grants_beyond, "segments-open-many", segments, m->grant++, ERR_CORRUPT)                              \
    X(segments_grant_of_nothing, "segments-open-many", segments, m->granted[6] = 0, ERR_CORRUPT)                    \
    X(segments_granted_beyond, "segments-open-many", segments, m->granted[7]++, ERR_CORRUPT)                        \
    X(segments_granted_far_beyond, "segments-open-many", segments, (m->granted[0] = 2, m->granted[1] = UINT32_MAX), \
      ERR_CORRUPT)                                                                                                  \
    X(grant_of_nothing, "grant", grant, m->count = 0, ERR_CORRUPT)                                                  \
    X(grant_beyond, "grant", grant, m->count = 294967296, ERR_CORRUPT)                                              \
    X(revoke_epoch_0, "revoke", revoke, m->epoch_incarnation = 0, ERR_CORRUPT)                                      \
    X(end_new_reason, "end", end, m->reason = 12, ERR_UNSUPPORTED)                                                  \
    X(end_new_state, "end", end, m->state = 5, ERR_UNSUPPORTED)                                                     \
    X(end_in_between, "end", end, m->state = STRAIT_READY, ERR_CORRUPT)                                             \
    X(end_done_by_source, "end", end, m->from_sink = 0, ERR_CORRUPT)

#define X(id, sample, field, change, status)                        \
    static void change_##id(const Strait__Wire__Envelope *envelope) \
    {                                                               \
        __auto_type m = envelope->field;                            \
        change;                                                     \
    }
WIRE_FAULTS(X)
#undef X

static const struct wire_fault {
    const char *sample;
    void (*change)(const Strait__Wire__Envelope *envelope);
    enum strait_status status;
} wire_faults[] = {
#define X(id, sample, field, change, status) {sample, change_##id, STRAIT_##status},
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
    for (int i = 0; i < COUNT(too_many_lists); i++) {
        too_many_lists[i] = malloc(sizeof(*too_many_lists[i]));
        strait__wire__page_list__init(too_many_lists[i]);
    }
}

static void free_faults(void)
{
    free(long_list.ids.data);
    for (int i = 0; i < COUNT(too_many_lists); i++)
        free(too_many_lists[i]);
}

/* What the generated messages of a test are made of. */
static struct bump pieces;

static void pieces_init(void)
{
    bump_init(&pieces, SIZE_MAX);
}

static void pieces_fini(void)
{
    bump_fini(&pieces);
}

static void *pieces_alloc(void *bump, size_t size)
{
    return bump_alloc(bump, size);
}

static void pieces_keep(void *bump, void *block)
{
    (void)bump;
    (void)block;
}

/* A generated message that a test may change as it likes. */
static Strait__Wire__Envelope *wire_of(const struct message *message)
{
    size_t size;
    ProtobufCAllocator allocator = {.alloc = pieces_alloc, .free = pieces_keep, .allocator_data = &pieces};
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

START_TEST(a_message_with_one_fault_is_refused)
{
    const struct wire_fault *fault = &wire_faults[_i];
    size_t size;
    struct message message;
    Strait__Wire__Envelope *envelope = wire_of(sample_of(fault->sample));
    fault->change(envelope);
    uint8_t *body = wire_packed(envelope, &size);
    ck_assert_int_eq(fault->status, message_unpack(body, size, &message));
    message_fini(&message);
    free(body);
}
END_TEST

/* ---- Faults in what goes --------------------------------------------------------------------------------------- */

static const uint32_t some_ids[2];
static const struct wire_page_list bad_list = {.group = 64}, no_ids = {.count = STRAIT_TRANSFER_PAGES_MAX + 1};
static const struct wire_page_list full_list = {.count = MESSAGE_IDS_MAX + 1, .ids = some_ids};
static const struct wire_span empty_span;
static const struct segment empty_segment;

#define MESSAGE_FAULTS(X)                                                                          \
    X(no_type, "stats", type, *m = MESSAGE_NONE)                                                   \
    X(new_type, "stats", type, *m = (enum message_type)61)                                         \
    X(version_0, "hello", hello.version, *m = 0)                                                   \
    X(address_long, "welcome", welcome.address, *m = view_of(many_bytes, MESSAGE_ADDRESS_MAX + 1)) \
    X(address_of_nothing, "welcome", welcome.address.data, *m = NULL)                              \
    X(text_with_nul, "welcome", welcome.daemon, *m = view_of(nul_in_text, 3))                      \
    X(no_key, "expect", expect.key.size, *m = 0)                                                   \
    X(no_incarnation, "grant", grant.epoch.incarnation, *m = 0)                                    \
    X(no_regions, "pool-register", pool_register.region_count, *m = 0)                             \
    X(many_regions, "pool-register", pool_register.region_count, *m = STRAIT_REGIONS_MAX + 1)      \
    X(regions_null, "pool-register", pool_register.regions, *m = NULL)                             \
    X(lists_null, "expect", expect.lists, *m = NULL)                                               \
    X(many_lists, "expect", expect.list_count, *m = MESSAGE_LIST_MAX + 1)                          \
    X(list_group, "expect", expect, (m->lists = &bad_list, m->list_count = 1))                     \
    X(list_count, "offer", offer, (m->lists = &no_ids, m->list_count = 1))                         \
    X(list_ids, "state", state, (m->failed = &full_list, m->failed_count = 1))                     \
    X(aux_early, "append", append.last, *m = false)                                                \
    X(coding, "policy", policy.coding, *m = 4)                                                     \
    X(status, "pool-status", pool_status.status, *m = 1)                                           \
    X(reason, "state", state.reason, *m = 12)                                                      \
    X(many_layers, "layers", layers.layer_count, *m = MESSAGE_LIST_MAX + 1)                        \
    X(layers_null, "layers", layers.layers, *m = NULL)                                             \
    X(nonce, "peer-hello", peer_hello.nonce.size, *m = 31)                                         \
    X(mac, "peer-proof", peer_proof.mac.size, *m = 0)                                              \
    X(span, "request", request, (m->spans = &empty_span, m->span_count = 1))                       \
    X(segment, "segments", segments, (m->segments = &empty_segment, m->segment_count = 1))         \
    X(done_by_source, "end", end.from_sink, *m = false)

#define X(id, sample, field, change)                \
    static void spoil_##id(struct message *message) \
    {                                               \
        __auto_type m = &message->field;            \
        change;                                     \
    }
MESSAGE_FAULTS(X)
#undef X

static const struct message_fault {
    const char *sample;
    void (*spoil)(struct message *message);
} message_faults[] = {
#define X(id, sample, field, change) {sample, spoil_##id},
    MESSAGE_FAULTS(X)
#undef X
};

START_TEST(a_message_outside_the_limits_is_not_packed)
{
    struct message message = *sample_of(message_faults[_i].sample);
    uint8_t *frame = NULL;
    size_t size = 17;
    message_faults[_i].spoil(&message);
    ck_assert_int_eq(STRAIT_ERR_INVALID, message_pack(&message, &frame, &size));
    ck_assert_ptr_null(frame);
    ck_assert_uint_eq(17, size);
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
    struct message message = *sample_of("offer"), back;
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
    struct message message = *sample_of("pool-register"), back;
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
    struct message message = *sample_of("expect"), back;
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
    struct message message = *sample_of("expect");
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
    struct message message = *sample_of("pool-status");
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
    Strait__Wire__Envelope *envelope = wire_of(&samples[_i].message);
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
    Strait__Wire__Envelope *envelopes[] = {wire_of(sample_of("pool-register")), wire_of(sample_of("state")),
                                           wire_of(sample_of("request")), wire_of(sample_of("segments"))};
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
    Strait__Wire__Envelope *envelope = wire_of(sample_of("grant"));
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

/* What is read can be written, and reads the same again. */
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
    uint8_t *frame = packed(&samples[_i].message, &size);
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

/* ---- The suite ------------------------------------------------------------------------------------------------- */

static Suite *message_suite(void)
{
    Suite *suite = suite_create("message");
    TCase *golden = tcase_create("golden"), *faults = tcase_create("faults"), *sizes = tcase_create("sizes");
    TCase *later = tcase_create("later versions"), *random = tcase_create("random");
    tcase_add_loop_test(golden, a_message_packs_to_its_golden_frame, 0, sample_count);
    tcase_add_loop_test(golden, a_golden_frame_unpacks_to_every_field_of_its_message, 0, sample_count);
    tcase_add_loop_test(golden, no_beginning_of_a_frame_is_one, 0, sample_count);
    tcase_add_test(golden, every_type_has_a_name_and_a_sample_and_no_other_number_has);
    suite_add_tcase(suite, golden);
    tcase_add_unchecked_fixture(faults, fill_faults, free_faults);
    tcase_add_checked_fixture(faults, pieces_init, pieces_fini);
    tcase_add_loop_test(faults, a_message_with_one_fault_is_refused, 0, COUNT(wire_faults));
    tcase_add_loop_test(faults, a_message_outside_the_limits_is_not_packed, 0, COUNT(message_faults));
    suite_add_tcase(suite, faults);
    tcase_add_unchecked_fixture(sizes, fill_faults, free_faults);
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
    tcase_add_loop_test(later, unknown_fields_of_the_envelope_and_of_the_message_come_out_again, 0, sample_count);
    tcase_add_test(later, unknown_fields_of_list_items_come_out_again);
    tcase_add_test(later, unknown_fields_survive_a_change_of_known_ones);
    tcase_add_loop_test(later, a_body_is_one_message_of_a_known_type, 0, COUNT(body_cases));
    suite_add_tcase(suite, later);
    tcase_add_loop_test(random, a_changed_message_is_refused_or_is_another_valid_one, 0, sample_count);
    suite_add_tcase(suite, random);
    return suite;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--write") == 0) {
        for (int i = 0; i < sample_count; i++)
            golden_write(argv[2], &samples[i]);
        return EXIT_SUCCESS;
    }
    printf("STRAIT_TEST_SEED=%llu\n", (unsigned long long)test_seed());
    return run_suite(message_suite());
}
