/* Codebook sets and histograms, and the files that hold them: what comes back, and what is refused. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/codebook.pb-c.h"
#include "kernels/codebook_file.h"
#include "kernels/value_ops.h"
#include "tests/run_suite.h"
#include "tests/support.h"

static struct strait_codebook *set, *back; /* what a test makes, and what it reads */
static struct codebook_histogram *list, *list_back;
static uint8_t *bytes; /* a file */
static size_t size;

static void teardown(void)
{
    strait_codebook_destroy(set);
    strait_codebook_destroy(back);
    free(list);
    free(list_back);
    free(bytes);
    set = back = NULL;
    list = list_back = NULL;
    bytes = NULL;
}

/* A permutation that differs from seed to seed: an odd factor has an inverse modulo 256. */
static void fill_ranking(uint8_t ranking[256], uint32_t seed)
{
    for (unsigned r = 0; r < 256; r++)
        ranking[r] = (uint8_t)((2 * seed + 1) * r + (seed >> 7) + 100);
}

static struct strait_codebook *create_set(uint32_t count, const struct strait_class *classes)
{
    struct strait_codebook *made = NULL;
    uint8_t(*rankings)[256] = malloc(sizeof(*rankings) * count);
    for (uint32_t t = 0; t < count; t++)
        fill_ranking(rankings[t], t);
    ck_assert_int_eq(STRAIT_OK, strait_codebook_create((const uint8_t(*)[256])rankings, classes, count, &made));
    free(rankings);
    return made;
}

TEST(a_set_has_1_to_65535_permutations)
{
    static uint8_t rankings[65536][256];
    for (int t = 0; t < 65536; t++)
        test_ranking(rankings[t], 3);
    const uint8_t(*const given)[256] = (const uint8_t(*)[256])rankings;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_codebook_create(given, NULL, 0, &set));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_codebook_create(given, NULL, 65536, &set));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_codebook_create(NULL, NULL, 1, &set));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_codebook_create(given, NULL, 1, NULL));
    rankings[65534][255] = 0;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_codebook_create(given, NULL, 65535, &set));
    ck_assert_ptr_null(set);
    rankings[65534][255] = 255;
    ck_assert_int_eq(STRAIT_OK, strait_codebook_create(given, NULL, 65535, &set));
    ck_assert_uint_eq(65535, strait_codebook_count(set));
    ck_assert_mem_eq(rankings[3], strait_codebook_ranking(set, 65534), 256);
    ck_assert_ptr_null(strait_codebook_ranking(set, 65535));
    strait_codebook_destroy(NULL);
}

TEST(equal_ids_mean_equal_tables)
{
    uint8_t rankings[2][256];
    struct strait_codebook *sets[4];
    test_ranking(rankings[0], 0);
    test_ranking(rankings[1], 1);
    const uint8_t(*const given)[256] = (const uint8_t(*)[256])rankings;
    const struct strait_class classes[] = {{STRAIT_ROLE_OTHER, -1}, {STRAIT_ROLE_K, 3}};
    ck_assert_int_eq(STRAIT_OK, strait_codebook_create(given, NULL, 2, &sets[0]));
    ck_assert_int_eq(STRAIT_OK, strait_codebook_create(given, classes, 2, &sets[1]));
    ck_assert_int_eq(STRAIT_OK, strait_codebook_create(given, NULL, 1, &sets[2]));
    ck_assert_int_eq(STRAIT_OK, strait_codebook_create(given + 1, NULL, 1, &sets[3]));
    ck_assert_mem_eq(strait_codebook_id(sets[0]), strait_codebook_id(sets[1]), 16);
    ck_assert_mem_ne(strait_codebook_id(sets[0]), strait_codebook_id(sets[2]), 16);
    ck_assert_mem_ne(strait_codebook_id(sets[2]), strait_codebook_id(sets[3]), 16);
    for (int i = 0; i < 4; i++)
        strait_codebook_destroy(sets[i]);
}

static const struct lookup {
    struct strait_class wanted;
    uint32_t table;
} lookups[] = {
    {{STRAIT_ROLE_K, 3}, 1},       {{STRAIT_ROLE_K, 4}, 2},     {{STRAIT_ROLE_K, -1}, 2},
    {{STRAIT_ROLE_V, 3}, 3},       {{STRAIT_ROLE_V, 4}, 0},     {{STRAIT_ROLE_V, -1}, 0},
    {{STRAIT_ROLE_OTHER, 3}, 4},   {{STRAIT_ROLE_OTHER, 0}, 4}, {{STRAIT_ROLE_OTHER, -1}, 4},
    {{(enum strait_role)9, 3}, 0},
};

TEST(a_class_is_found_exactly_or_by_role_or_not)
{
    const struct strait_class classes[] = {
        {STRAIT_ROLE_K, 3}, {STRAIT_ROLE_K, 3}, {STRAIT_ROLE_K, -1}, {STRAIT_ROLE_V, 3}, {STRAIT_ROLE_OTHER, -1}};
    struct strait_codebook *unclassed = test_codebook();
    set = create_set(5, classes);
    for (int i = 0; i < COUNT(lookups); i++) {
        ck_assert_uint_eq(lookups[i].table, strait_codebook_find(set, lookups[i].wanted));
        ck_assert_uint_eq(0, strait_codebook_find(unclassed, lookups[i].wanted));
    }
    ck_assert_int_eq(STRAIT_ROLE_OTHER, strait_codebook_class(set, 0).role);
    ck_assert_int_eq(-1, strait_codebook_class(set, 0).layer);
    ck_assert_int_eq(-1, strait_codebook_class(set, 5).layer);
    ck_assert_int_eq(3, strait_codebook_class(set, 3).layer);
    ck_assert_int_eq(STRAIT_ROLE_V, strait_codebook_class(set, 3).role);
    strait_codebook_destroy(unclassed);
}

static const struct strait_class bad_classes[][3] = {
    {{STRAIT_ROLE_OTHER, -1}, {STRAIT_ROLE_K, 3}, {STRAIT_ROLE_K, 3}},
    {{STRAIT_ROLE_OTHER, -1}, {STRAIT_ROLE_OTHER, -1}, {STRAIT_ROLE_OTHER, -1}},
    {{STRAIT_ROLE_OTHER, -1}, {STRAIT_ROLE_K, -2}, {STRAIT_ROLE_K, 3}},
    {{STRAIT_ROLE_OTHER, -1}, {STRAIT_ROLE_K, 0}, {(enum strait_role)4, 3}},
    {{STRAIT_ROLE_OTHER, -1}, {(enum strait_role) - 1, 0}, {STRAIT_ROLE_K, 3}},
};

TEST_LOOP(a_class_that_comes_twice_or_is_none_is_refused, COUNT(bad_classes))
{
    uint8_t rankings[3][256];
    for (uint32_t t = 0; t < 3; t++)
        test_ranking(rankings[t], t);
    ck_assert_int_eq(STRAIT_ERR_INVALID,
                     strait_codebook_create((const uint8_t(*)[256])rankings, bad_classes[_i], 3, &set));
    ck_assert_ptr_null(set);
}

TEST(a_histogram_counts_exponents_at_any_address)
{
    struct rng rng = rng_init(900);
    uint8_t values[2048];
    rng_fill(&rng, values, sizeof(values));
    for (size_t count = 0; count < 1000; count += 1 + count / 9) {
        uint64_t counts[256], expected[256];
        uint8_t *src = values + sizeof(values) - 2 * count - count % 2;
        for (int e = 0; e < 256; e++)
            counts[e] = expected[e] = (uint64_t)e << 40;
        for (size_t i = 0; i < count; i++)
            expected[get_value(src, i) >> 7 & 255]++;
        strait_histogram_add(counts, src, count);
        ck_assert_mem_eq(expected, counts, sizeof(counts));
    }
}

TEST(a_histogram_ranks_by_count_then_by_exponent)
{
    uint64_t counts[256] = {[200] = UINT64_MAX, [7] = UINT64_MAX - 1, [90] = 5, [80] = 5, [255] = 1};
    const uint8_t first[] = {200, 7, 80, 90, 255, 0, 1, 2, 3, 4, 5, 6, 8};
    uint8_t ranking[256];
    strait_histogram_rank(ranking, counts);
    ck_assert_mem_eq(first, ranking, sizeof(first));
    ck_assert_int_eq(STRAIT_OK, strait_codebook_create((const uint8_t(*)[256])ranking, NULL, 1, &set));
}

/* Histograms count the exponents that are coded. */
TEST_LOOP(histograms_are_those_of_the_halves, STRAIT_ELEMENT_FP8_E5M2 + 1)
{
    enum { VALUES = 65536 };
    static uint8_t values[4 * VALUES], high_halves[2 * VALUES], low_bits[2 * VALUES];
    static uint64_t counts[256], of_high_halves[256];
    struct rng rng = rng_init(302);
    rng_fill(&rng, values, sizeof(values));
    for (uint32_t i = 0; i < VALUES && _i == STRAIT_ELEMENT_FP16; i++)
        put_value(values, i, (uint16_t)i);
    if (_i == STRAIT_ELEMENT_FP16)
        values_scalar.split_fp16(high_halves, low_bits, low_bits + VALUES / 4, values, VALUES);
    else if (_i == STRAIT_ELEMENT_FP32)
        values_scalar.split_fp32(high_halves, low_bits, values, VALUES);
    else
        memcpy(high_halves, values, sizeof(high_halves));
    bool has = _i >= STRAIT_ELEMENT_BF16 && _i <= STRAIT_ELEMENT_FP32;
    ck_assert_int_eq(has ? STRAIT_OK : STRAIT_ERR_INVALID,
                     strait_histogram_add_values(counts, (enum strait_element)_i, values, VALUES));
    if (has)
        strait_histogram_add(of_high_halves, high_halves, VALUES);
    ck_assert_mem_eq(of_high_halves, counts, sizeof(counts));
}

#define MARK   0x42435453u
#define TABLES 4u

/* ---- Sets ------------------------------------------------------------------------------------------------------ */

static const struct strait_class sorted_classes[TABLES] = {
    {STRAIT_ROLE_OTHER, -1}, {STRAIT_ROLE_OTHER, -1}, {STRAIT_ROLE_K, 0}, {STRAIT_ROLE_V, INT32_MAX}};
static const struct strait_class unsorted_classes[TABLES] = {
    {STRAIT_ROLE_OTHER, -1}, {STRAIT_ROLE_V, 3}, {STRAIT_ROLE_K, -1}, {STRAIT_ROLE_OTHER, 7}};

static const struct set_case {
    uint32_t count;
    const struct strait_class *classes;
} set_cases[] = {{1, NULL},
                 {1, sorted_classes},
                 {2, NULL},
                 {2, sorted_classes},
                 {4, NULL},
                 {4, sorted_classes},
                 {4, unsorted_classes},
                 {STRAIT_CODEBOOK_TABLES_MAX, NULL}};

/* The set's file. */
static void serialize_set(void)
{
    size = strait_codebook_serialized_size(set);
    bytes = malloc(size);
    ck_assert_int_eq(STRAIT_OK, strait_codebook_serialize(set, bytes, size));
}

static void assert_same_class(struct strait_class a, struct strait_class b)
{
    ck_assert_int_eq(a.role, b.role);
    ck_assert_int_eq(a.layer, b.layer);
}

/* The file is read as the same set. */
static void assert_read_back(void)
{
    ck_assert_int_eq(STRAIT_OK, strait_codebook_parse(bytes, size, &back));
    ck_assert_uint_eq(strait_codebook_count(set), strait_codebook_count(back));
    ck_assert_mem_eq(strait_codebook_id(set), strait_codebook_id(back), STRAIT_CODEBOOK_ID_BYTES);
    for (uint32_t t = 0; t < strait_codebook_count(set); t++) {
        struct strait_class class = strait_codebook_class(set, t);
        ck_assert_mem_eq(strait_codebook_ranking(set, t), strait_codebook_ranking(back, t), 256);
        assert_same_class(class, strait_codebook_class(back, t));
        ck_assert_uint_eq(strait_codebook_find(set, class), strait_codebook_find(back, class));
    }
}

TEST_LOOP(a_set_comes_back_from_its_file, COUNT(set_cases))
{
    set = create_set(set_cases[_i].count, set_cases[_i].classes);
    serialize_set();
    ck_assert_uint_le(size, CODEBOOK_FILE_BYTES_MAX);
    assert_read_back();
    uint8_t *again = malloc(size);
    ck_assert_uint_eq(size, strait_codebook_serialized_size(back));
    ck_assert_int_eq(STRAIT_OK, strait_codebook_serialize(back, again, size));
    ck_assert_mem_eq(bytes, again, size);
    free(again);
}

/* Not all changes are seen: the id covers the rankings, not the classes. */
TEST(no_changed_byte_changes_a_ranking_unseen)
{
    set = create_set(TABLES, sorted_classes);
    serialize_set();
    for (size_t i = 0; i < 8 * size; i++) {
        struct strait_codebook *changed = NULL;
        bytes[i / 8] ^= (uint8_t)(1u << i % 8);
        if (strait_codebook_parse(bytes, size, &changed) == STRAIT_OK)
            ck_assert_mem_eq(strait_codebook_id(set), strait_codebook_id(changed), STRAIT_CODEBOOK_ID_BYTES);
        strait_codebook_destroy(changed);
        bytes[i / 8] ^= (uint8_t)(1u << i % 8);
    }
}

/* ---- Files that protobuf wrote --------------------------------------------------------------------------------- */

/* A message with all its storage, valid until a case spoils it. */
struct draft {
    Strait__CodebookSet set;
    Strait__Table tables[TABLES];
    Strait__Table *pointers[TABLES];
    uint8_t id[STRAIT_CODEBOOK_ID_BYTES];
    uint8_t rankings[TABLES][256];
    uint64_t counts[TABLES][256];
};

static void draft_common(struct draft *draft)
{
    memset(draft, 0, sizeof(*draft));
    strait__codebook_set__init(&draft->set);
    draft->set.mark = MARK;
    draft->set.version = 1;
    draft->set.n_tables = TABLES;
    draft->set.tables = draft->pointers;
    for (uint32_t t = 0; t < TABLES; t++) {
        strait__table__init(&draft->tables[t]);
        draft->pointers[t] = &draft->tables[t];
        draft->tables[t].role = (Strait__Role)sorted_classes[t].role;
        draft->tables[t].layer = sorted_classes[t].layer;
    }
}

static void draft_set(struct draft *draft)
{
    struct strait_codebook *made = create_set(TABLES, sorted_classes);
    draft_common(draft);
    memcpy(draft->id, strait_codebook_id(made), sizeof(draft->id));
    draft->set.id = (ProtobufCBinaryData){.len = sizeof(draft->id), .data = draft->id};
    for (uint32_t t = 0; t < TABLES; t++) {
        memcpy(draft->rankings[t], strait_codebook_ranking(made, t), 256);
        draft->tables[t].ranking = (ProtobufCBinaryData){.len = 256, .data = draft->rankings[t]};
    }
    strait_codebook_destroy(made);
}

static void add_counts(struct draft *draft)
{
    for (uint32_t t = 0; t < TABLES; t++) {
        draft->counts[t][t] = 1000 + t;
        draft->tables[t].counts = draft->counts[t];
        draft->tables[t].n_counts = 256;
    }
}

/* Without the fallback, as a partial file has none: three classes. */
static void draft_partial(struct draft *draft)
{
    draft_common(draft);
    add_counts(draft);
    draft->set.tables++;
    draft->set.n_tables--;
    for (uint32_t t = 1; t < TABLES; t++)
        draft->set.values += 1000 + t;
}

static void pack_draft(const struct draft *draft)
{
    free(bytes);
    size = strait__codebook_set__get_packed_size(&draft->set);
    bytes = malloc(size);
    strait__codebook_set__pack(&draft->set, bytes);
}

TEST(a_set_is_written_as_protobuf_writes_it)
{
    struct draft draft;
    draft_set(&draft);
    pack_draft(&draft);
    set = create_set(TABLES, sorted_classes);
    uint8_t *written = malloc(size);
    ck_assert_uint_eq(size, strait_codebook_serialized_size(set));
    ck_assert_int_eq(STRAIT_OK, strait_codebook_serialize(set, written, size));
    ck_assert_mem_eq(bytes, written, size);
    ck_assert_mem_eq("\x0d"
                     "STCB",
                     bytes, 5);
    free(written);
}

TEST(a_set_with_counts_is_the_same_set)
{
    struct draft draft;
    draft_set(&draft);
    add_counts(&draft);
    pack_draft(&draft);
    set = create_set(TABLES, sorted_classes);
    assert_read_back();
}

/* The mark and the version once more, at the end: the last one counts. */
TEST(a_field_that_comes_twice_counts_the_last_time)
{
    static const uint8_t other_mark_again[] = {0x0d, 'N', 'O', 'N', 'E'}, version_again[] = {0x10, 0x02};
    set = create_set(TABLES, sorted_classes);
    serialize_set();
    bytes = realloc(bytes, size + 5);
    memcpy(bytes + size, other_mark_again, 5);
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, strait_codebook_parse(bytes, size + 5, &back));
    memcpy(bytes + size, version_again, 2);
    ck_assert_int_eq(STRAIT_ERR_UNSUPPORTED, strait_codebook_parse(bytes, size + 2, &back));
}

TEST(bad_arguments_are_told)
{
    uint8_t byte = 0;
    set = create_set(1, NULL);
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_codebook_parse(NULL, 0, &back));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_codebook_parse(&byte, 1, NULL));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_codebook_serialize(set, NULL, 1000));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_codebook_serialize(NULL, &byte, 1));
}

/* ---- Partial files --------------------------------------------------------------------------------------------- */

#define CLASSES 3u

/* A list of so many, and room for one more. */
static void make_list(uint32_t count)
{
    list = calloc(count + 1, sizeof(*list));
    for (uint32_t i = 0; i <= count; i++) {
        list[i].class =
            count == CLASSES ? sorted_classes[i % CLASSES + 1] : (struct strait_class){STRAIT_ROLE_V, (int32_t)i};
        list[i].counts[i % 256] = 1;
        list[i].counts[255] = (uint64_t)1 << (10 * (i % 3) + 20);
    }
}

static void serialize_list(uint32_t count)
{
    size = codebook_partial_serialized_size(list, count);
    bytes = malloc(size);
    ck_assert_int_eq(STRAIT_OK, codebook_partial_serialize(list, count, bytes, size));
}

static const uint32_t list_lengths[] = {1, CLASSES, STRAIT_CODEBOOK_TABLES_MAX - 1};

TEST_LOOP(histograms_come_back_from_their_file, COUNT(list_lengths))
{
    const uint32_t length = list_lengths[_i];
    uint32_t count = 0;
    make_list(length);
    if (length == 1) {
        memset(list[0].counts, 0, sizeof(list[0].counts));
        list[0].counts[120] = UINT64_MAX;
    }
    serialize_list(length);
    ck_assert(codebook_file_probe(bytes, size));
    ck_assert_int_eq(STRAIT_OK, codebook_partial_parse(bytes, size, &list_back, &count));
    ck_assert_uint_eq(length, count);
    for (uint32_t i = 0; i < length; i++) {
        assert_same_class(list[i].class, list_back[i].class);
        ck_assert_mem_eq(list[i].counts, list_back[i].counts, sizeof(list[i].counts));
    }
    if (length == STRAIT_CODEBOOK_TABLES_MAX - 1)
        ck_assert_int_eq(STRAIT_ERR_INVALID, codebook_partial_serialize(list, length + 1, bytes, size));
}

TEST(a_file_beyond_the_limit_is_not_written)
{
    uint32_t count = 45000;
    make_list(count);
    for (uint32_t i = 0; i < count; i++)
        for (unsigned e = 0; e < 256; e++)
            list[i].counts[e] = (uint64_t)1 << 40; /* six bytes each: 69 MB */
    size = codebook_partial_serialized_size(list, count);
    bytes = malloc(size);
    ck_assert_uint_gt(size, CODEBOOK_FILE_BYTES_MAX);
    ck_assert_int_eq(STRAIT_ERR_NO_SPACE, codebook_partial_serialize(list, count, bytes, size));
}

#define LIST_FAULTS(X)                                                   \
    X(wrong_order, l[0].class = (struct strait_class){STRAIT_ROLE_V, 0}) \
    X(same_class, l[1].class = l[0].class)                               \
    X(strange_role, l[2].class.role = (enum strait_role)9)               \
    X(strange_layer, l[0].class.layer = -2)                              \
    X(no_values, memset(l[1].counts, 0, sizeof(l[1].counts)))            \
    X(too_many_values, l[1].counts[7] = UINT64_MAX - 1)                  \
    X(sum_of_zero, memset(l[0].counts, 0, sizeof(l[0].counts));          \
      l[0].counts[3] = l[0].counts[4] = (uint64_t)1 << 63) /* modulo 2^64 */

#define X(name, ...)                               \
    static void name(struct codebook_histogram *l) \
    {                                              \
        __VA_ARGS__;                               \
    }
LIST_FAULTS(X)
#undef X

static void (*const bad_lists[])(struct codebook_histogram *list) = {
#define X(name, ...) name,
    LIST_FAULTS(X)
#undef X
};

TEST_LOOP(a_list_with_one_fault_is_not_written, COUNT(bad_lists))
{
    make_list(CLASSES);
    bad_lists[_i](list);
    size = codebook_partial_serialized_size(list, CLASSES);
    bytes = malloc(size);
    ck_assert_int_eq(STRAIT_ERR_INVALID, codebook_partial_serialize(list, CLASSES, bytes, size));
    ck_assert_int_eq(STRAIT_ERR_INVALID, codebook_partial_serialize(list, 0, bytes, size));
}

/* ---- Files that are refused ------------------------------------------------------------------------------------ */

enum { SET = 1, PARTIAL = 2, BOTH = 3 };

/* What each kind says of such bytes; what it read is freed. */
static enum strait_status parse(int kind, const uint8_t *src, size_t src_size)
{
    uint32_t count;
    enum strait_status status = kind == SET ? strait_codebook_parse(src, src_size, &back)
                                            : codebook_partial_parse(src, src_size, &list_back, &count);
    ck_assert_int_eq(status == STRAIT_OK, back != NULL || list_back != NULL);
    strait_codebook_destroy(back);
    free(list_back);
    back = NULL;
    list_back = NULL;
    return status;
}

/* Name, files that it is for, what is found, what people are told of a set, how it is made. */
#define FILE_FAULTS(X)                                                                                   \
    X(no_mark, BOTH, CORRUPT, "does not begin", d->set.mark = 0)                                         \
    X(other_mark, BOTH, CORRUPT, "does not begin", d->set.mark = MARK + 1)                               \
    X(no_version, BOTH, CORRUPT, "no version", d->set.version = 0)                                       \
    X(newer_version, BOTH, UNSUPPORTED, "does not read", d->set.version = 2)                             \
    X(no_id, SET, CORRUPT, "no id", d->set.id.len = 0)                                                   \
    X(short_id, SET, CORRUPT, "not 16 bytes long", d->set.id.len--)                                      \
    X(wrong_id, SET, CORRUPT, "a sum of all tables", d->id[15] ^= 1)                                     \
    X(no_tables, BOTH, CORRUPT, "no table", d->set.n_tables = 0)                                         \
    X(table_lost, BOTH, CORRUPT, "one is missing", d->set.n_tables--)                                    \
    X(no_ranking, SET, CORRUPT, "without ranking", d->tables[1].ranking.len = 0)                         \
    X(short_ranking, SET, CORRUPT, "not 256 bytes long", d->tables[1].ranking.len = 255)                 \
    X(exponent_twice, SET, CORRUPT, "twice", d->rankings[3][255] = d->rankings[3][0])                    \
    X(rankings_swapped, SET, CORRUPT, "a sum of all tables", d->tables[1].ranking.data = d->rankings[2]; \
      d->tables[2].ranking.data = d->rankings[1])                                                        \
    X(unknown_role, BOTH, CORRUPT, "roles and layers", d->tables[2].role = (Strait__Role)4)              \
    X(negative_role, BOTH, CORRUPT, "roles and layers", d->tables[2].role = (Strait__Role)-1)            \
    X(negative_layer, BOTH, CORRUPT, "roles and layers", d->tables[2].layer = -3)                        \
    X(unclassed, BOTH, CORRUPT, "roles and layers", d->tables[1].layer = -2)                             \
    X(class_twice, BOTH, CORRUPT, "roles and layers", d->tables[3].role = d->tables[2].role;             \
      d->tables[3].layer = d->tables[2].layer)                                                           \
    X(fallback_of_layer, SET, CORRUPT, "roles and layers", d->tables[0].layer = 0)                       \
    X(fallback_of_role, SET, CORRUPT, "roles and layers", d->tables[0].role = STRAIT__ROLE__ROLE_K)      \
    X(few_counts, BOTH, CORRUPT, "", add_counts(d); d->tables[2].n_counts = 255)                         \
    X(a_partial_file, SET, CORRUPT, "partial file", draft_partial(d))                                    \
    X(a_set, PARTIAL, INVALID, "", draft_set(d))                                                         \
    X(with_ranking, PARTIAL, CORRUPT, "",                                                                \
      d->tables[2].ranking = (ProtobufCBinaryData){.len = 256, .data = d->rankings[2]};                  \
      fill_ranking(d->rankings[2], 1))                                                                   \
    X(no_counts, PARTIAL, CORRUPT, "", d->tables[2].n_counts = 0)                                        \
    X(counts_of_zero, PARTIAL, CORRUPT, "", memset(d->counts[2], 0, sizeof(d->counts[2])))               \
    X(counts_too_large, PARTIAL, CORRUPT, "", d->counts[3][9] = UINT64_MAX)                              \
    X(no_values_told, PARTIAL, CORRUPT, "", d->set.values = 0)                                           \
    X(other_values_told, PARTIAL, CORRUPT, "", d->set.values++)                                          \
    X(unsorted, PARTIAL, CORRUPT, "", d->tables[1].role = STRAIT__ROLE__ROLE_V)

static const char *why_of(const uint8_t *src, size_t src_size)
{
    size_t offset = SIZE_MAX;
    const char *why = codebook_file_why(src, src_size, &offset);
    ck_assert_uint_le(offset, src_size);
    return why;
}

/* "The end, and ...", "... cut off", or, between two fields, that tables are missing. */
static bool is_about_length(const char *why)
{
    return strstr(why, "it is empty") != NULL || strstr(why, "begin") != NULL || strstr(why, "the end, and") != NULL ||
           strstr(why, "cut off") != NULL || strstr(why, "one is missing") != NULL;
}

#define X(name, kinds, status, why, ...) \
    static void name(struct draft *d)    \
    {                                    \
        __VA_ARGS__;                     \
    }
FILE_FAULTS(X)
#undef X

static const struct file_fault {
    void (*spoil)(struct draft *draft);
    int kinds;
    enum strait_status status;
    const char *why; /* a part of what is told of a set */
} file_faults[] = {
#define X(name, kinds, status, why, ...) {name, kinds, STRAIT_ERR_##status, why},
    FILE_FAULTS(X)
#undef X
};

TEST_LOOP(a_file_with_one_fault_is_refused, COUNT(file_faults))
{
    const struct file_fault *fault = &file_faults[_i];
    for (int kind = SET; kind <= PARTIAL; kind++) {
        struct draft draft;
        if ((fault->kinds & kind) == 0)
            continue;
        (kind == SET ? draft_set : draft_partial)(&draft);
        fault->spoil(&draft);
        pack_draft(&draft);
        ck_assert_int_eq(fault->status, parse(kind, bytes, size));
        if (kind == SET)
            ck_assert_ptr_nonnull(strstr(why_of(bytes, size), fault->why));
    }
}

TEST_RANGE(no_beginning_of_a_file_is_one, SET, PARTIAL + 1)
{
    struct draft draft;
    (_i == SET ? draft_set : draft_partial)(&draft);
    pack_draft(&draft);
    ck_assert_int_eq(STRAIT_OK, parse(_i, bytes, size));
    for (size_t cut = 0; cut < size; cut++) {
        uint8_t *exact = malloc(cut + 1); /* so that a sanitizer sees one byte read too many */
        memcpy(exact, bytes, cut);
        ck_assert_int_eq(STRAIT_ERR_CORRUPT, parse(_i, exact, cut));
        if (_i == SET)
            ck_assert_msg(is_about_length(why_of(exact, cut)), "%zu: %s", cut, why_of(exact, cut));
        free(exact);
    }
}

TEST(no_file_is_written_into_one_byte_too_few)
{
    set = create_set(TABLES, sorted_classes);
    make_list(CLASSES);
    size = strait_codebook_serialized_size(set) + codebook_partial_serialized_size(list, CLASSES);
    bytes = calloc(size, 1);
    ck_assert_int_eq(STRAIT_ERR_NO_SPACE,
                     strait_codebook_serialize(set, bytes, strait_codebook_serialized_size(set) - 1));
    ck_assert_int_eq(
        STRAIT_ERR_NO_SPACE,
        codebook_partial_serialize(list, CLASSES, bytes, codebook_partial_serialized_size(list, CLASSES) - 1));
    ck_assert(is_filled(bytes, size, 0));
}

/* Counts whose table is not that of any other: exponent 100 + t is the most frequent one. */
static void count_table(uint64_t counts[256], uint32_t t)
{
    memset(counts, 0, 256 * sizeof(counts[0]));
    for (unsigned r = 0; r < 30; r++)
        counts[(100 + t + r) % 256] = 1u << (30 - r);
}

static uint64_t table_counts[TABLES][256];

static void create_counted(void)
{
    for (uint32_t t = 0; t < TABLES; t++)
        count_table(table_counts[t], t);
    memset(table_counts[1], 0, sizeof(table_counts[1]));
    ck_assert_int_eq(
        STRAIT_OK, strait_codebook_create_counted((const uint64_t(*)[256])table_counts, sorted_classes, TABLES, &set));
}

static void assert_is_counted(const struct strait_codebook *found)
{
    for (uint32_t t = 0; t < TABLES; t++) {
        const uint64_t *counts = strait_codebook_counts(found, t);
        /* ranks 0 to 2 take 2 bits, 3 to 5 four, and a 64th of the values eight or more */
        if (t == 1) {
            ck_assert_ptr_null(counts);
            ck_assert_uint_eq(0, strait_codebook_expected(found, t));
            continue;
        }
        ck_assert_mem_eq(counts, table_counts[t], sizeof(table_counts[t]));
        ck_assert_uint_eq(2313, strait_codebook_expected(found, t));
    }
    ck_assert_ptr_null(strait_codebook_counts(found, TABLES));
    ck_assert_uint_eq(0, strait_codebook_expected(found, TABLES));
}

TEST(a_set_tells_what_it_was_made_of_and_its_id_does_not)
{
    struct strait_codebook *plain, *parsed;
    uint8_t rankings[TABLES][256];

    create_counted();
    assert_is_counted(set);
    for (uint32_t t = 0; t < TABLES; t++)
        strait_histogram_rank(rankings[t], table_counts[t]);
    ck_assert_int_eq(STRAIT_OK,
                     strait_codebook_create((const uint8_t(*)[256])rankings, sorted_classes, TABLES, &plain));
    ck_assert_mem_eq(strait_codebook_id(plain), strait_codebook_id(set), STRAIT_CODEBOOK_ID_BYTES);
    ck_assert_ptr_null(strait_codebook_counts(plain, 0));
    ck_assert_uint_eq(0, strait_codebook_expected(plain, 0));
    ck_assert_uint_lt(strait_codebook_serialized_size(plain), strait_codebook_serialized_size(set));
    strait_codebook_destroy(plain);
    serialize_set();
    ck_assert_int_eq(STRAIT_OK, strait_codebook_parse(bytes, size, &parsed));
    assert_is_counted(parsed);
    strait_codebook_destroy(parsed);
    for (size_t cut = 1; cut < size; cut++)
        ck_assert_int_ne(STRAIT_OK, strait_codebook_parse(bytes, cut, &parsed));
}

TEST(counts_are_left_out_of_sets_that_they_make_too_large_for_peers)
{
    enum { MANY = 4096 };
    uint64_t(*counts)[256] = malloc(MANY * sizeof(*counts));
    struct strait_codebook *parsed;

    for (uint32_t t = 0; t < MANY; t++)
        count_table(counts[t], t);
    ck_assert_int_eq(STRAIT_OK, strait_codebook_create_counted((const uint64_t(*)[256])counts, NULL, MANY, &set));
    free(counts);
    serialize_set();
    ck_assert_uint_le(size, 1280u * 1024); /* MESSAGE_SET_BYTES_MAX of proto */
    ck_assert_int_eq(STRAIT_OK, strait_codebook_parse(bytes, size, &parsed));
    ck_assert_ptr_null(strait_codebook_counts(parsed, 5));
    ck_assert_uint_eq(2313, strait_codebook_expected(parsed, 5));
    strait_codebook_destroy(parsed);
}

TEST(sets_of_counts_refuse_what_sets_of_rankings_refuse)
{
    create_counted();
    const uint64_t(*counts)[256] = (const uint64_t(*)[256])table_counts;
    struct strait_codebook *other;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_codebook_create_counted(NULL, NULL, 1, &other));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_codebook_create_counted(counts, NULL, 1, NULL));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_codebook_create_counted(counts, NULL, 0, &other));
    ck_assert_int_eq(STRAIT_ERR_INVALID,
                     strait_codebook_create_counted(counts, NULL, STRAIT_CODEBOOK_TABLES_MAX + 1, &other));
}

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

/* Histograms of three kinds, a few of each, in an order of their own. */
enum { GROUPED = 9 };
static const unsigned kind_of_grouped[GROUPED] = {2, 0, 1, 1, 0, 2, 2, 0, 1};

static void make_grouped(uint64_t counts[GROUPED][256])
{
    for (unsigned i = 0; i < GROUPED; i++) {
        count_table(counts[i], 40 * kind_of_grouped[i]);
        for (unsigned e = 0; e < 256; e++)
            counts[i][e] *= 3 - kind_of_grouped[i] + i % 2; /* kind 0 has the largest, then 1 */
    }
}

TEST(histograms_that_are_alike_are_one_group)
{
    uint64_t counts[GROUPED][256];
    uint32_t group[GROUPED], count = 0;

    make_grouped(counts);
    ck_assert_int_eq(STRAIT_OK, strait_histogram_group((const uint64_t(*)[256])counts, GROUPED, 64, group, &count));
    ck_assert_uint_eq(3, count);
    for (unsigned i = 0; i < GROUPED; i++)
        ck_assert_uint_eq(kind_of_grouped[i], group[i]);
}

TEST(groups_are_the_same_in_any_order)
{
    uint64_t counts[GROUPED][256], turned[GROUPED][256];
    uint32_t group[GROUPED], count = 0;

    make_grouped(counts);
    for (unsigned shift = 1; shift < GROUPED; shift++) {
        for (unsigned i = 0; i < GROUPED; i++)
            memcpy(turned[i], counts[(i + shift) % GROUPED], sizeof(turned[i]));
        ck_assert_int_eq(STRAIT_OK, strait_histogram_group((const uint64_t(*)[256])turned, GROUPED, 64, group, &count));
        for (unsigned i = 0; i < GROUPED; i++)
            ck_assert_uint_eq(kind_of_grouped[(i + shift) % GROUPED], group[i]);
    }
}

TEST(groups_are_no_more_than_wanted)
{
    uint64_t counts[GROUPED][256] = {0};
    uint32_t group[GROUPED], count = 0;

    make_grouped(counts);
    ck_assert_int_eq(STRAIT_OK, strait_histogram_group((const uint64_t(*)[256])counts, GROUPED, 2, group, &count));
    ck_assert_uint_eq(2, count);
    for (unsigned i = 0; i < GROUPED; i++)
        ck_assert_uint_lt(group[i], 2);
    ck_assert_int_eq(STRAIT_OK, strait_histogram_group((const uint64_t(*)[256])counts, 0, 2, group, &count));
    ck_assert_uint_eq(0, count);
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_histogram_group(NULL, 1, 2, group, &count));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_histogram_group((const uint64_t(*)[256])counts, 1, 0, group, &count));
}

/* Empty tables take two bytes in a file and a hundred in memory. */
static const size_t bomb_tables[] = {65535, 65536, 1000000, CODEBOOK_FILE_BYTES_MAX / 2 - 8, CODEBOOK_FILE_BYTES_MAX};

TEST_LOOP(a_file_of_many_empty_tables_is_refused, COUNT(bomb_tables))
{
    static const uint8_t head[] = {0x0d, 'S', 'T', 'C', 'B', 0x10, 0x01};
    size = sizeof(head) + 2 * bomb_tables[_i];
    bytes = calloc(size, 1);
    memcpy(bytes, head, sizeof(head));
    for (size_t i = sizeof(head); i < size; i += 2)
        bytes[i] = 0x22;
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, parse(SET, bytes, size));
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, parse(PARTIAL, bytes, size));
}

int main(void)
{
    print_conditions();
    return run_tests("codebook", NULL, teardown);
}
