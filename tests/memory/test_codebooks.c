/* The sets of a daemon: its own, and those of peers, which are limited in number and kept as long as they are claimed.
 * And the parts in which a peer sends one. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/memory/codebook_parts.h"
#include "daemon/memory/codebooks.h"
#include "tests/run_suite.h"
#include "tests/support.h"

/* ---- Sets that differ by their number ---------------------------------------------------------------------------- */

static struct strait_codebook *set_of_tables(unsigned number, uint32_t tables)
{
    uint8_t(*rankings)[256] = malloc(tables * sizeof(*rankings));
    struct strait_codebook *set;
    for (uint32_t t = 0; t < tables; t++)
        for (unsigned i = 0; i < 256; i++)
            rankings[t][i] = (uint8_t)(number + t + i);
    ck_assert_int_eq(STRAIT_OK, strait_codebook_create((const uint8_t(*)[256])rankings, NULL, tables, &set));
    free(rankings);
    return set;
}

static struct strait_codebook *set_of(unsigned number)
{
    return set_of_tables(number, 1);
}

/* Valid until the next call. */
static const uint8_t *id_of(unsigned number)
{
    static uint8_t id[STRAIT_CODEBOOK_ID_BYTES];
    struct strait_codebook *set = set_of(number);
    memcpy(id, strait_codebook_id(set), sizeof(id));
    strait_codebook_destroy(set);
    return id;
}

static struct codebooks *all;

static void setup(void)
{
    ck_assert_int_eq(STRAIT_OK, codebooks_create(set_of(0), NULL, &all));
}

static void teardown(void)
{
    codebooks_release(all);
}

static void replace(struct codebooks *next)
{
    codebooks_release(all);
    all = next;
}

static enum strait_status add(unsigned number)
{
    struct codebooks *next;
    struct strait_codebook *set = set_of(number);
    const enum strait_status status = codebooks_add(set, all, &next);
    if (status == STRAIT_OK)
        replace(next);
    else
        strait_codebook_destroy(set);
    return status;
}

static void reload(unsigned number)
{
    struct codebooks *next;
    ck_assert_int_eq(STRAIT_OK, codebooks_create(set_of(number), all, &next));
    replace(next);
    ck_assert_mem_eq(id_of(number), strait_codebook_id(codebooks_current(all)), STRAIT_CODEBOOK_ID_BYTES);
}

static bool has(unsigned number)
{
    const uint8_t *id = id_of(number);
    const bool found = memcmp(strait_codebook_id(codebooks_find(all, id)), id, STRAIT_CODEBOOK_ID_BYTES) == 0;
    ck_assert_int_eq(found, codebooks_have(all, id));
    return found;
}

/* ---- Sets of peers ----------------------------------------------------------------------------------------------- */

TEST(a_set_of_a_peer_is_found_and_encodes_nothing)
{
    ck_assert(!has(1));
    ck_assert_int_eq(STRAIT_OK, add(1));
    ck_assert(has(1));
    ck_assert_mem_eq(id_of(0), strait_codebook_id(codebooks_current(all)), STRAIT_CODEBOOK_ID_BYTES);
    ck_assert_int_eq(STRAIT_ERR_INVALID, add(1));
    ck_assert_int_eq(STRAIT_ERR_INVALID, add(0));
}

TEST(a_node_without_a_set_keeps_those_of_peers)
{
    struct codebooks *none;
    ck_assert_int_eq(STRAIT_OK, codebooks_create(NULL, NULL, &none));
    replace(none);
    ck_assert(!codebooks_have(all, id_of(1)));
    ck_assert_ptr_null(codebooks_find(all, id_of(1)));
    ck_assert_int_eq(STRAIT_OK, add(1));
    ck_assert(has(1));
    ck_assert_ptr_null(codebooks_current(all));
}

TEST(of_unclaimed_sets_the_one_used_longest_ago_goes)
{
    for (unsigned i = 1; i <= CODEBOOKS_OTHERS; i++)
        ck_assert_int_eq(STRAIT_OK, add(i));
    ck_assert(codebooks_claim(all, id_of(1)));
    codebooks_leave(all, id_of(1)); /* used after 2, which is the oldest now */
    ck_assert_int_eq(STRAIT_OK, add(20));
    ck_assert(!has(2));
    ck_assert(has(1) && has(20));
    for (unsigned i = 3; i <= CODEBOOKS_OTHERS; i++)
        ck_assert(has(i));
}

TEST(a_claimed_set_stays_and_there_is_no_room_beside_claimed_ones)
{
    for (unsigned i = 1; i <= CODEBOOKS_OTHERS; i++) {
        ck_assert(codebooks_have_room(all));
        ck_assert_int_eq(STRAIT_OK, add(i));
        ck_assert(codebooks_claim(all, id_of(i)));
    }
    ck_assert(codebooks_claim(all, id_of(5))); /* by a second peer */
    ck_assert(!codebooks_have_room(all));
    ck_assert_int_eq(STRAIT_ERR_NO_SPACE, add(20));
    codebooks_leave(all, id_of(5));
    ck_assert_int_eq(STRAIT_ERR_NO_SPACE, add(20));
    codebooks_leave(all, id_of(5));
    ck_assert_int_eq(STRAIT_OK, add(20));
    ck_assert(has(20) && !has(5));
    ck_assert(!codebooks_claim(all, id_of(5)));
}

TEST(reloads_keep_the_sets_of_peers_and_their_claims)
{
    ck_assert_int_eq(STRAIT_OK, add(100));
    ck_assert_int_eq(STRAIT_OK, add(101));
    ck_assert(codebooks_claim(all, id_of(100)));
    for (unsigned i = 1; i <= 5; i++)
        reload(i);
    ck_assert(has(100) && has(101));
    ck_assert(has(5) && has(4) && has(3));
    ck_assert(!has(2) && !has(1) && !has(0));
}

TEST(an_own_set_that_a_peer_may_send_by_outlives_reloads)
{
    ck_assert(codebooks_claim(all, id_of(0)));
    for (unsigned i = 1; i <= 5; i++)
        reload(i);
    ck_assert(has(0) && !has(1));
    codebooks_leave(all, id_of(0));
    reload(6);
    for (unsigned i = 100; i < 100 + CODEBOOKS_OTHERS; i++)
        ck_assert_int_eq(STRAIT_OK, add(i));
    ck_assert(!has(0));
}

/* The id covers the rankings, not the classes by which an encoder finds them. */
TEST(a_set_of_the_operator_takes_the_place_of_a_peers_and_its_claims)
{
    ck_assert_int_eq(STRAIT_OK, add(1));
    ck_assert(codebooks_claim(all, id_of(1)));
    const struct strait_codebook *foreign = codebooks_find(all, id_of(1));
    reload(1);
    ck_assert_ptr_eq(codebooks_current(all), codebooks_find(all, id_of(1)));
    ck_assert_ptr_ne(foreign, codebooks_current(all));
    for (unsigned i = 2; i <= 6; i++)
        reload(i);
    ck_assert(has(1));
    codebooks_leave(all, id_of(1));
}

/* Jobs hold the codebooks that there were when they began. */
TEST(what_is_held_stays_as_it_was)
{
    ck_assert_int_eq(STRAIT_OK, add(1));
    struct codebooks *held = codebooks_hold(all);
    for (unsigned i = 2; i <= 2 + CODEBOOKS_OTHERS; i++)
        ck_assert_int_eq(STRAIT_OK, add(i));
    ck_assert(!has(1));
    ck_assert(codebooks_have(held, id_of(1)));
    ck_assert_uint_eq(1, strait_codebook_count(codebooks_find(held, id_of(1))));
    codebooks_release(held);
}

/* ---- Parts ------------------------------------------------------------------------------------------------------- */

enum { MANY = 3000 }; /* tables: several parts */

static struct codebook_parts parts;
static uint8_t *bytes;
static uint32_t size;

static void parts_setup(void)
{
    struct strait_codebook *set = set_of_tables(3, MANY);
    size = (uint32_t)strait_codebook_serialized_size(set);
    bytes = malloc(size);
    ck_assert_int_eq(STRAIT_OK, strait_codebook_serialize(set, bytes, size));
    parts = (struct codebook_parts){.size = 0};
    memcpy(parts.id, strait_codebook_id(set), sizeof(parts.id));
    strait_codebook_destroy(set);
}

static void parts_teardown(void)
{
    codebook_parts_fini(&parts);
    free(bytes);
}

static struct message_codebook_part part_at(uint32_t offset)
{
    const uint32_t left = size - offset;
    return (struct message_codebook_part){
        .id = view_of(parts.id, sizeof(parts.id)),
        .size = size,
        .offset = offset,
        .bytes = view_of(bytes + offset, left < MESSAGE_SET_PART_MAX ? left : MESSAGE_SET_PART_MAX)};
}

static enum codebook_parts_state take_all(void)
{
    enum codebook_parts_state state = CODEBOOK_PARTS_MORE;
    for (uint32_t offset = 0; state == CODEBOOK_PARTS_MORE; offset += MESSAGE_SET_PART_MAX) {
        const struct message_codebook_part part = part_at(offset);
        state = codebook_parts_take(&parts, &part);
    }
    return state;
}

TEST(parts_make_the_set)
{
    struct strait_codebook *set;
    parts_setup();
    ck_assert_uint_gt(size, 2 * MESSAGE_SET_PART_MAX);
    ck_assert_int_eq(CODEBOOK_PARTS_ALL, take_all());
    ck_assert_int_eq(STRAIT_OK, codebook_parts_read(&parts, &set));
    ck_assert_uint_eq(MANY, strait_codebook_count(set));
    ck_assert_mem_eq(parts.id, strait_codebook_id(set), sizeof(parts.id));
    strait_codebook_destroy(set);
    parts_teardown();
}

TEST(another_set_is_not_taken_for_the_one_asked_for)
{
    struct strait_codebook *set = NULL;
    parts_setup();
    parts.id[15] ^= 1;
    ck_assert_int_eq(CODEBOOK_PARTS_ALL, take_all());
    ck_assert_int_eq(STRAIT_ERR_CODEBOOK, codebook_parts_read(&parts, &set));
    ck_assert_ptr_null(set);
    parts_teardown();
}

/* Changed in its last table. The set says an id of its own, which is not believed. */
TEST(a_changed_set_is_none)
{
    struct strait_codebook *set = NULL;
    parts_setup();
    const uint8_t last = bytes[size - 1];
    bytes[size - 1] = bytes[size - 2];
    bytes[size - 2] = last;
    ck_assert_int_eq(CODEBOOK_PARTS_ALL, take_all());
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, codebook_parts_read(&parts, &set));
    ck_assert_ptr_null(set);
    parts_teardown();
}

static void refuses(struct message_codebook_part part, enum codebook_parts_state state)
{
    ck_assert_int_eq(state, codebook_parts_take(&parts, &part));
    ck_assert_uint_le(parts.got, parts.size);
    parts_teardown();
}

#define REFUSES(name, after, change, state)                                            \
    TEST(name)                                                                         \
    {                                                                                  \
        parts_setup();                                                                 \
        struct message_codebook_part part = part_at(0);                                \
        if ((after) != 0) {                                                            \
            ck_assert_int_eq(CODEBOOK_PARTS_MORE, codebook_parts_take(&parts, &part)); \
            part = part_at(after);                                                     \
        }                                                                              \
        change;                                                                        \
        refuses(part, state);                                                          \
    }

static const uint8_t other_id[STRAIT_CODEBOOK_ID_BYTES] = {1};

REFUSES(a_set_that_is_gone, 0, part.size = 0, CODEBOOK_PARTS_GONE)
REFUSES(a_set_that_goes_in_between, MESSAGE_SET_PART_MAX, part.size = 0, CODEBOOK_PARTS_GONE)
REFUSES(a_set_that_is_too_large, 0, part.size = MESSAGE_SET_BYTES_MAX + 1, CODEBOOK_PARTS_TOO_LARGE)
REFUSES(a_part_without_bytes, 0, part.bytes.size = 0, CODEBOOK_PARTS_WRONG)
REFUSES(a_part_of_one_byte, 0, part.bytes.size = 1, CODEBOOK_PARTS_WRONG)
REFUSES(a_part_that_is_too_short, MESSAGE_SET_PART_MAX, part.bytes.size--, CODEBOOK_PARTS_WRONG)
REFUSES(a_part_that_came_before, MESSAGE_SET_PART_MAX, part.offset = 0, CODEBOOK_PARTS_WRONG)
REFUSES(a_part_that_is_not_next, 0, part.offset = 1, CODEBOOK_PARTS_WRONG)
REFUSES(a_set_that_grows, MESSAGE_SET_PART_MAX, part.size++, CODEBOOK_PARTS_WRONG)
REFUSES(a_part_of_another_set, 0, part.id = view_of(other_id, sizeof(other_id)), CODEBOOK_PARTS_WRONG)

int main(void)
{
    return run_tests("codebooks", setup, teardown);
}
