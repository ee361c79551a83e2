#include <check.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "internal/bytes.h"
#include "proto/blob.h"
#include "proto/strait.pb-c.h"
#include "tests/run_suite.h"
#include "tests/support.h"

/* In the pool's order: two groups, one layer with three regions of which two are alike. */
static const struct blob_region regions[] = {
    {0, -1, 0, 0, 1, 100, 0, 10, 0, 0, 0, 0},
    {0, 0, 1, 1, 16, 256, 8, 1000, 1, 16, 0, 0},
    {0, 0, 2, 1, 16, 256, 8, 1000, 1, 16, 0, 8},
    {0, 0, 2, 1, 16, 128, 8, 1000, 2, 16, 24, 32},
    {0, 1, 1, 1, 16, 256, 8, 1000, 1, 16, 0, 0},
    {0, 1, 2, 1, 16, 256, 8, 1000, 1, 16, 0, 0},
    {63, 0, 3, 5, 1, 16777216, 1, 1, 2, 64, UINT32_MAX - 1, UINT32_MAX},
    {63, INT32_MAX, 2, 2, 16777216, 1, UINT32_MAX, UINT32_MAX, 0, UINT32_MAX, 0, 0},
};
enum { REGIONS = COUNT(regions) };

/* A pool whose regions a test may change. */
struct pool {
    struct pool_blob blob;
    struct blob_region regions[REGIONS];
};

static void pool_init(struct pool *pool)
{
    *pool = (struct pool){.blob = {.pool = {"0123456789abcde"},
                                   .address = "decode-7.example:7601",
                                   .version = 3,
                                   .version_min = 2,
                                   .codebook_id = "fedcba987654321",
                                   .compat = "model",
                                   .region_count = REGIONS}};
    memcpy(pool->regions, regions, sizeof(regions));
    pool->blob.regions = pool->regions;
}

static uint8_t *packed(const struct pool_blob *blob, size_t *size)
{
    size_t written = 0;
    ck_assert_int_eq(STRAIT_ERR_NO_SPACE, blob_pack(blob, NULL, 0, size));
    uint8_t *bytes = malloc(*size);
    ck_assert_int_eq(STRAIT_ERR_NO_SPACE, blob_pack(blob, bytes, *size - 1, &written));
    ck_assert_uint_eq(*size, written);
    ck_assert_int_eq(STRAIT_OK, blob_pack(blob, bytes, *size, &written));
    ck_assert_uint_eq(*size, written);
    return bytes;
}

static void require_same(const struct pool_blob *a, const struct pool_blob *b)
{
    require(memcmp(a->pool.bytes, b->pool.bytes, sizeof(a->pool.bytes)) == 0);
    require(strcmp(a->address, b->address) == 0);
    require(a->version == b->version && a->version_min == b->version_min);
    require(memcmp(a->codebook_id, b->codebook_id, sizeof(a->codebook_id)) == 0);
    require(strcmp(a->compat, b->compat) == 0);
    require(a->region_count == b->region_count);
    for (uint32_t i = 0; i < a->region_count; i++) {
        const struct blob_region *x = &a->regions[i], *y = &b->regions[i];
        require(x->group == y->group && x->layer == y->layer && x->role == y->role && x->element == y->element);
        require(x->rows == y->rows && x->row_bytes == y->row_bytes);
        require(x->heads == y->heads && x->page_count == y->page_count);
        require(x->layout == y->layout && x->tokens == y->tokens);
    }
}

/* Of a test: a pool, and what it is packed to. */
static struct pool pool;
static uint8_t *bytes;
static size_t size;

static void setup(void)
{
    pool_init(&pool);
    bytes = packed(&pool.blob, &size);
}

static void teardown(void)
{
    free(bytes);
}

static enum strait_status unpack(const uint8_t *blob_bytes, size_t blob_size)
{
    struct pool_blob blob;
    enum strait_status status = blob_unpack(blob_bytes, blob_size, &blob);
    if (status == STRAIT_OK)
        blob_fini(&blob);
    return status;
}

/* ---- Form ------------------------------------------------------------------------------------------------------ */

TEST_LOOP(a_pool_comes_back, 5)
{
    struct pool_blob back;
    if (_i == 1)
        memset(pool.blob.codebook_id, 0, sizeof(pool.blob.codebook_id));
    if (_i == 2)
        memset(pool.blob.address, 0, sizeof(pool.blob.address));
    if (_i == 3)
        memset(pool.blob.address, 'x', MESSAGE_ADDRESS_MAX);
    if (_i == 4)
        pool.blob.version = UINT16_MAX;
    free(bytes);
    bytes = packed(&pool.blob, &size);
    ck_assert_int_eq(STRAIT_OK, blob_unpack(bytes, size, &back));
    memset(bytes, 0xee, size); /* nothing points into the caller's bytes */
    require_same(&pool.blob, &back);
    blob_fini(&back);
    blob_fini(&back);
}

TEST(the_largest_pool_comes_back)
{
    struct pool_blob back;
    pool.blob.region_count = STRAIT_REGIONS_MAX;
    pool.blob.regions = malloc(STRAIT_REGIONS_MAX * sizeof(*pool.blob.regions));
    for (uint32_t i = 0; i < STRAIT_REGIONS_MAX; i++)
        pool.blob.regions[i] = regions[REGIONS - 1];
    free(bytes);
    bytes = packed(&pool.blob, &size);
    ck_assert_uint_le(size, BLOB_HEADER_BYTES + BLOB_BODY_MAX);
    ck_assert_int_eq(STRAIT_OK, blob_unpack(bytes, size, &back));
    require_same(&pool.blob, &back);
    blob_fini(&back);
    free(pool.blob.regions);
}

/* One region, byte by byte: the form is told by this and by blob.h alone. */
TEST(a_small_pool_has_its_golden_bytes)
{
    static const uint8_t body[] = "\x0a\x10"
                                  "0123456789abcde\0"
                                  "\x12\x03"
                                  "a:1"
                                  "\x22\x0c"
                                  "\x08\x01\x10\x01\x18\x02\x28\x01\x30\x64\x40"
                                  "\x05";
    struct blob_region region = {.group = 1, .layer = -1, .role = 2, .rows = 1, .row_bytes = 100, .page_count = 5};
    struct pool_blob blob = {.pool = {"0123456789abcde"},
                             .address = "a:1",
                             .version = 2,
                             .version_min = 1,
                             .region_count = 1,
                             .regions = &region};
    uint8_t header[BLOB_HEADER_BYTES] = {'S', 't', 'r', 'P', 1, 0, 1, 0, 2, 0, 0, 0, sizeof(body)};
    free(bytes);
    bytes = packed(&blob, &size);
    header[12]--; /* the string's end */
    store_le64(header + 16, XXH3_64bits(body, sizeof(body) - 1));
    ck_assert_uint_eq(BLOB_HEADER_BYTES + sizeof(body) - 1, size);
    ck_assert_mem_eq(header, bytes, sizeof(header));
    ck_assert_mem_eq(body, bytes + BLOB_HEADER_BYTES, sizeof(body) - 1);
}

TEST(no_beginning_of_a_blob_is_one)
{
    for (size_t cut = 0; cut < size; cut++)
        ck_assert_int_eq(STRAIT_ERR_TRUNCATED, unpack(bytes, cut));
    bytes = realloc(bytes, size + 1);
    bytes[size] = 0;
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, unpack(bytes, size + 1));
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, unpack((const uint8_t *)"Stra", 4));
}

/* But for the protocol versions, which the sum does not cover and which may be any. */
TEST(no_changed_bit_is_overlooked)
{
    for (size_t bit = 0; bit < 8 * size; bit++) {
        bool version = bit / 8 >= 6 && bit / 8 < 10;
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        if (!version)
            ck_assert_int_ne(STRAIT_OK, unpack(bytes, size));
        else
            unpack(bytes, size);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    ck_assert_int_eq(STRAIT_OK, unpack(bytes, size));
}

static const struct header_case {
    size_t at;
    uint8_t value;
    enum strait_status status;
} header_cases[] = {
    {3, 'Q', STRAIT_ERR_CORRUPT},    {4, 2, STRAIT_ERR_UNSUPPORTED},
    {5, 1, STRAIT_ERR_UNSUPPORTED},  {4, 0, STRAIT_ERR_CORRUPT},
    {6, 4, STRAIT_ERR_CORRUPT},      {6, 0, STRAIT_ERR_CORRUPT},
    {8, 1, STRAIT_ERR_CORRUPT},      {9, 1, STRAIT_OK},
    {10, 1, STRAIT_ERR_CORRUPT},     {12, 0, STRAIT_ERR_CORRUPT},
    {13, 255, STRAIT_ERR_TRUNCATED}, {15, 1, STRAIT_ERR_CORRUPT},
    {16, 0x55, STRAIT_ERR_CORRUPT},
};

TEST_LOOP(a_header_with_one_fault_is_refused, COUNT(header_cases))
{
    bytes[header_cases[_i].at] = header_cases[_i].value;
    ck_assert_int_eq(header_cases[_i].status, unpack(bytes, size));
}

/* ---- Bodies ---------------------------------------------------------------------------------------------------- */

static Strait__Wire__BlobRegion *too_many[STRAIT_REGIONS_MAX + 1];

#define BODY_FAULTS(X)                                                                       \
    X(pool_id, m->pool.len = 15, CORRUPT)                                                    \
    X(no_pool_id, m->pool.len = 0, CORRUPT)                                                  \
    X(address_with_nul, m->address.data[3] = 0, CORRUPT)                                     \
    X(codebook, m->codebook_id.len = 15, CORRUPT)                                            \
    X(no_region, m->n_regions = 0, CORRUPT)                                                  \
    X(many_regions, (m->regions = too_many, m->n_regions = STRAIT_REGIONS_MAX + 1), CORRUPT) \
    X(group, m->regions[7]->group = 64, CORRUPT)                                             \
    X(layer, m->regions[0]->layer = -2, CORRUPT)                                             \
    X(role, m->regions[0]->role = 4, UNSUPPORTED)                                            \
    X(element, m->regions[0]->element = 6, UNSUPPORTED)                                      \
    X(rows, m->regions[0]->rows = 0, CORRUPT)                                                \
    X(row_bytes, m->regions[0]->row_bytes = 0, CORRUPT)                                      \
    X(page_bytes, m->regions[7]->row_bytes = 2, CORRUPT)                                     \
    X(page_bytes_of_many, m->regions[0]->rows = UINT32_MAX, CORRUPT)                         \
    X(no_page, m->regions[0]->page_count = 0, CORRUPT)                                       \
    X(order_of_groups, m->regions[0]->group = 1, CORRUPT)                                    \
    X(order_of_layers, m->regions[3]->layer = 2, CORRUPT)                                    \
    X(order_of_roles, m->regions[4]->role = 0, OK_)                                          \
    X(order_in_layer, m->regions[1]->role = 2, OK_)                                          \
    X(order_in_layer_swapped, (m->regions[1]->role = 2, m->regions[2]->role = 1), CORRUPT)

#define STATUS_CORRUPT     STRAIT_ERR_CORRUPT
#define STATUS_UNSUPPORTED STRAIT_ERR_UNSUPPORTED
#define STATUS_OK_         STRAIT_OK
#define X(id, change, status)                          \
    static void change_##id(Strait__Wire__PoolBlob *m) \
    {                                                  \
        change;                                        \
    }
BODY_FAULTS(X)
#undef X

static const struct body_fault {
    void (*change)(Strait__Wire__PoolBlob *body);
    enum strait_status status;
} body_faults[] = {
#define X(id, change, status) {change_##id, STATUS_##status},
    BODY_FAULTS(X)
#undef X
};

/* A body behind a header that fits it. */
static uint8_t *sealed(const uint8_t *body, size_t body_size)
{
    uint8_t *blob = malloc(BLOB_HEADER_BYTES + body_size);
    static const uint8_t begin[12] = {'S', 't', 'r', 'P', 1, 0, 2, 0, 3, 0, 0, 0};
    memcpy(blob, begin, sizeof(begin));
    store_le32(blob + 12, (uint32_t)body_size);
    store_le64(blob + 16, XXH3_64bits(body, body_size));
    memcpy(blob + BLOB_HEADER_BYTES, body, body_size);
    return blob;
}

TEST_LOOP(a_body_with_one_fault_is_refused, COUNT(body_faults))
{
    uint8_t *body = malloc(1 << 20);
    Strait__Wire__PoolBlob *wire =
        strait__wire__pool_blob__unpack(NULL, size - BLOB_HEADER_BYTES, bytes + BLOB_HEADER_BYTES);
    Strait__Wire__PoolBlob changed = *wire;
    for (int i = 0; i < COUNT(too_many); i++)
        too_many[i] = wire->regions[0];
    body_faults[_i].change(&changed);
    size_t body_size = strait__wire__pool_blob__pack(&changed, body);
    uint8_t *blob = sealed(body, body_size);
    ck_assert_int_eq(body_faults[_i].status, unpack(blob, BLOB_HEADER_BYTES + body_size));
    strait__wire__pool_blob__free_unpacked(wire, NULL);
    free(blob);
    free(body);
}

TEST(a_body_that_is_no_message_is_refused)
{
    static const char *const bodies[] = {"", "\x0a", "\xff\xff\xff\xff", "\x0a\x7f", "\x00\x00"};
    for (int i = 0; i < COUNT(bodies); i++) {
        uint8_t *blob = sealed((const uint8_t *)bodies[i], strlen(bodies[i]));
        ck_assert_int_eq(STRAIT_ERR_CORRUPT, unpack(blob, BLOB_HEADER_BYTES + strlen(bodies[i])));
        free(blob);
    }
}

TEST(fields_of_a_later_version_are_ignored)
{
    struct pool_blob back;
    bytes = realloc(bytes, size + 3);
    memcpy(bytes + size, "\x98\x06\x01", 3); /* field 99 */
    uint8_t *blob = sealed(bytes + BLOB_HEADER_BYTES, size + 3 - BLOB_HEADER_BYTES);
    ck_assert_int_eq(STRAIT_OK, blob_unpack(blob, size + 3, &back));
    require_same(&pool.blob, &back);
    blob_fini(&back);
    free(blob);
}

#define SPOILS(X)                                                             \
    X(no_version, m->blob.version_min = 0)                                    \
    X(versions_swapped, m->blob.version_min = 4)                              \
    X(long_version, m->blob.version = UINT16_MAX + 1)                         \
    X(endless_address, memset(m->blob.address, 'x', sizeof(m->blob.address))) \
    X(region_of_none, m->blob.region_count = 0)                               \
    X(regions_of_too_many, m->blob.region_count = STRAIT_REGIONS_MAX + 1)     \
    X(regions_nowhere, m->blob.regions = NULL)                                \
    X(region_without_rows, m->regions[2].rows = 0)                            \
    X(unknown_element, m->regions[2].element = 6)                             \
    X(out_of_order, m->regions[0].layer = 3)

#define X(id, change)                      \
    static void spoil_##id(struct pool *m) \
    {                                      \
        change;                            \
    }
SPOILS(X)
#undef X

static void (*const spoils[])(struct pool *m) = {
#define X(id, change) spoil_##id,
    SPOILS(X)
#undef X
};

TEST_LOOP(a_pool_outside_the_limits_is_not_packed, COUNT(spoils))
{
    spoils[_i](&pool);
    ck_assert_int_eq(STRAIT_ERR_INVALID, blob_pack(&pool.blob, bytes, size, &size));
    ck_assert_uint_eq(0, size);
}

/* ---- Comparing ------------------------------------------------------------------------------------------------- */

/* Takes a region out. */
static void pool_without(struct pool *m, uint32_t region)
{
    m->blob.region_count--;
    memmove(m->regions + region, m->regions + region + 1, (REGIONS - 1 - region) * sizeof(regions[0]));
}

#define MISMATCHES(X)                                                                         \
    X(nothing, (void)m, 0)                                                                    \
    X(page_count, m->regions[1].page_count = 7, 0)                                            \
    X(address, m->blob.address[0] = 'x', 0)                                                   \
    X(pool, m->blob.pool.bytes[0] = 1, 0)                                                     \
    X(row_bytes, m->regions[1].row_bytes = 128, STRAIT_MISMATCH_PAGE_SIZE)                    \
    X(rows, m->regions[1].rows = 8, STRAIT_MISMATCH_PAGE_SIZE | STRAIT_MISMATCH_LAYOUT)       \
    X(shape, (m->regions[1].rows = 8, m->regions[1].row_bytes = 512), STRAIT_MISMATCH_LAYOUT) \
    X(element, m->regions[5].element = 2, STRAIT_MISMATCH_DTYPE)                              \
    X(heads, m->regions[5].heads = 4, STRAIT_MISMATCH_LAYOUT)                                 \
    X(tokens, m->regions[5].tokens = 32, STRAIT_MISMATCH_LAYOUT)                              \
    X(layout, m->regions[5].layout = STRAIT_LAYOUT_HND, STRAIT_MISMATCH_LAYOUT)               \
    X(numbered, m->regions[5].heads_total = 16, STRAIT_MISMATCH_LAYOUT)                       \
    X(compat, strcpy(m->blob.compat, "other"), STRAIT_MISMATCH_COMPAT)                        \
    X(role, m->regions[5].role = 0, STRAIT_MISMATCH_LAYOUT)                                   \
    X(group, (m->regions[6].group = 62, m->regions[7].group = 62), STRAIT_MISMATCH_LAYOUT)    \
    X(fewer_in_layer, pool_without(m, 3), STRAIT_MISMATCH_LAYOUT)                             \
    X(fewer_layers, (pool_without(m, 5), pool_without(m, 4)), STRAIT_MISMATCH_LAYERS)         \
    X(other_layer, m->regions[7].layer = 1, STRAIT_MISMATCH_LAYERS)                           \
    X(codebook, m->blob.codebook_id[0] = 0, STRAIT_MISMATCH_CODEBOOK)                         \
    X(newer, (m->blob.version = 9, m->blob.version_min = 4), STRAIT_MISMATCH_VERSION)         \
    X(older, (m->blob.version = 1, m->blob.version_min = 1), STRAIT_MISMATCH_VERSION)         \
    X(overlapping, (m->blob.version = 9, m->blob.version_min = 3), 0)

#define X(id, change, bits)                 \
    static void differ_##id(struct pool *m) \
    {                                       \
        change;                             \
    }
MISMATCHES(X)
#undef X

static const struct mismatch {
    void (*differ)(struct pool *m);
    uint32_t bits;
} mismatches[] = {
#define X(id, change, bits) {differ_##id, bits},
    MISMATCHES(X)
#undef X
};

static uint64_t geometry_of(const struct pool *m)
{
    return blob_geometry(m->regions, m->blob.region_count, view_of(m->blob.compat, strlen(m->blob.compat)));
}

/* Daemons compare the hash: it has to agree with the result that the client got. */
TEST_LOOP(a_mismatch_is_told_by_its_bits_and_by_the_geometry, COUNT(mismatches))
{
    struct pool a, b;
    const uint32_t geometry = STRAIT_MISMATCH_FATAL & ~(uint32_t)STRAIT_MISMATCH_VERSION;
    pool_init(&a);
    pool_init(&b);
    mismatches[_i].differ(&b);
    ck_assert_uint_eq(mismatches[_i].bits, blob_mismatch(&a.blob, &b.blob));
    ck_assert_uint_eq(mismatches[_i].bits, blob_mismatch(&b.blob, &a.blob));
    bool same = geometry_of(&a) == geometry_of(&b);
    ck_assert_int_eq((mismatches[_i].bits & geometry) == 0, same);
}

/* ---- In words -------------------------------------------------------------------------------------------------- */

/* The text of the pool as it is, here, and of one that differs, there; the other way round `back`. */
static const struct words {
    void (*differ)(struct pool *m);
    const char *text, *back;
} words[] = {
    {differ_nothing, "", ""},
    {differ_row_bytes, "group 0, layer 0, K: pages of 4096 bytes here, 2048 there",
     "group 0, layer 0, K: pages of 2048 bytes here, 4096 there"},
    {differ_rows,
     "group 0, layer 0, K: pages of 4096 bytes here, 2048 there; "
     "group 0, layer 0, K: 16 rows of 256 bytes here, 8 of 256 there",
     "group 0, layer 0, K: pages of 2048 bytes here, 4096 there; "
     "group 0, layer 0, K: 8 rows of 256 bytes here, 16 of 256 there"},
    {differ_element, "group 0, layer 1, V: bf16 here, fp16 there", "group 0, layer 1, V: fp16 here, bf16 there"},
    {differ_heads, "group 0, layer 1, V: 8 heads here, 4 there", "group 0, layer 1, V: 4 heads here, 8 there"},
    {differ_tokens, "group 0, layer 1, V: pages of 16 tokens here, 32 there",
     "group 0, layer 1, V: pages of 32 tokens here, 16 there"},
    {differ_layout, "group 0, layer 1, V: order NHD here, order HND there",
     "group 0, layer 1, V: order HND here, order NHD there"},
    {differ_numbered, "group 0, layer 1, V: heads not numbered here, heads 0 to 7 of 16 there",
     "group 0, layer 1, V: heads 0 to 7 of 16 here, heads not numbered there"},
    {differ_compat, "compatibility token \"model\" here, \"other\" there",
     "compatibility token \"other\" here, \"model\" there"},
    {differ_group, "group 62, layer 0, KV: missing here, 0 regions here, 2 there",
     "group 62, layer 0, KV: missing there, 2 regions here, 0 there"},
    {differ_fewer_in_layer, "group 0, layer 0, V: missing there, 6 regions here, 5 there",
     "group 0, layer 0, V: missing here, 5 regions here, 6 there"},
    {differ_fewer_layers, "group 0, layer 1, K: missing there, 3 layers here, 2 there",
     "group 0, layer 1, K: missing here, 2 layers here, 3 there"},
    {differ_codebook,
     "codebook set 66656463626139383736353433323100 here, 00656463626139383736353433323100 there: "
     "pages are coded without tables",
     "codebook set 00656463626139383736353433323100 here, 66656463626139383736353433323100 there: "
     "pages are coded without tables"},
    {differ_newer, "protocol versions 2 to 3 here, 4 to 9 there", "protocol versions 4 to 9 here, 2 to 3 there"},
};

TEST_LOOP(a_mismatch_is_told_in_words, COUNT(words))
{
    char text[512];
    struct pool a, b;
    pool_init(&a);
    pool_init(&b);
    words[_i].differ(&b);
    ck_assert_uint_eq(strlen(words[_i].text), blob_explain(&a.blob, &b.blob, UINT32_MAX, text, sizeof(text)));
    ck_assert_str_eq(words[_i].text, text);
    ck_assert_uint_eq(strlen(words[_i].back), blob_explain(&b.blob, &a.blob, UINT32_MAX, text, sizeof(text)));
    ck_assert_str_eq(words[_i].back, text);
}

TEST(of_a_mismatch_only_what_is_asked_for_is_told)
{
    char text[512];
    struct pool a, b;
    pool_init(&a);
    pool_init(&b);
    memset(a.blob.codebook_id, 0, sizeof(a.blob.codebook_id));
    b.regions[0].layer = -1;
    b.regions[0].row_bytes = 99;
    const uint32_t codebook = STRAIT_MISMATCH_CODEBOOK;
    ck_assert_uint_ne(0, blob_explain(&a.blob, &b.blob, ~codebook, text, sizeof(text)));
    ck_assert_str_eq("group 0, other: pages of 100 bytes here, 99 there", text);
    ck_assert_uint_ne(0, blob_explain(&a.blob, &b.blob, codebook, text, sizeof(text)));
    ck_assert_str_eq("codebook set none here, 66656463626139383736353433323100 there: pages are coded without tables",
                     text);
}

/* Each capacity in memory of its own, for sanitizers. */
TEST(a_text_is_cut_to_the_memory_that_it_has)
{
    char whole[512];
    struct pool a, b;
    pool_init(&a);
    pool_init(&b);
    differ_rows(&b);
    differ_codebook(&b);
    const size_t length = blob_explain(&a.blob, &b.blob, UINT32_MAX, whole, sizeof(whole));
    ck_assert_uint_eq(length, blob_explain(&a.blob, &b.blob, UINT32_MAX, NULL, 0));
    for (size_t capacity = 1; capacity <= length + 1; capacity++) {
        char *cut = malloc(capacity);
        ck_assert_uint_eq(length, blob_explain(&a.blob, &b.blob, UINT32_MAX, cut, capacity));
        ck_assert_uint_eq(capacity - 1, strlen(cut));
        ck_assert_int_eq(0, memcmp(whole, cut, capacity - 1));
        free(cut);
    }
}

static int compare(const struct blob_region *a, const struct blob_region *b)
{
    if (a->group != b->group)
        return a->group < b->group ? -1 : 1;
    if (a->layer != b->layer)
        return a->layer < b->layer ? -1 : 1;
    return a->role == b->role ? 0 : a->role < b->role ? -1 : 1;
}

TEST_LOOP(regions_are_sorted_and_equal_ones_keep_their_order, 22)
{
    enum { MOST = 200 };
    struct rng rng = rng_init(600 + (uint64_t)_i);
    struct blob_region before[MOST] = {{0}}, after[MOST];
    uint32_t order[MOST], count = _i < 20 ? (uint32_t)_i : MOST - 21 + (uint32_t)_i;
    for (uint32_t i = 0; i < count; i++)
        before[i] = (struct blob_region){.group = rng_below(&rng, 2),
                                         .layer = (int32_t)rng_below(&rng, 9) - 1,
                                         .role = rng_below(&rng, 3),
                                         .page_count = i};
    memcpy(after, before, sizeof(before));
    blob_sort(after, order, count);
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_uint_eq(order[i], after[i].page_count);
        ck_assert_mem_eq(&before[order[i]], &after[i], sizeof(after[i]));
        int compared = i == 0 ? -1 : compare(&after[i - 1], &after[i]);
        ck_assert(compared < 0 || (compared == 0 && order[i - 1] < order[i]));
    }
}

int main(void)
{
    return run_tests("blob", setup, teardown);
}
