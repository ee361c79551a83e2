/* Inputs of the commands: the headers of safetensors files, and the classes that names of tensors tell. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal/bytes.h"
#include "tests/run_suite.h"
#include "tests/support.h"
#include "tools/input.h"

/* ---- Files ----------------------------------------------------------------------------------------------------- */

/* A header in memory that ends where the readable page does: reading on would be a crash. */
static struct guarded file_of_bytes(const void *bytes, size_t size)
{
    struct guarded file;
    guarded_init(&file, size);
    memcpy(file.bytes, bytes, size);
    return file;
}

static struct guarded file_of(const char *json)
{
    size_t size = strlen(json);
    struct guarded file;
    guarded_init(&file, 8 + size);
    store_le64(file.bytes, size);
    memcpy(file.bytes + 8, json, size);
    return file;
}

/* The verdict on a file of this header and so many bytes of data. The list must be empty or ended. */
static enum strait_status parse(struct safetensors *list, const char *json, uint64_t data_bytes, const char **why)
{
    struct guarded file = file_of(json);
    enum strait_status status = safetensors_init(list, file.bytes, file.size, file.size + data_bytes, why);
    guarded_fini(&file);
    return status;
}

/* ---- Good files ------------------------------------------------------------------------------------------------ */

#define TENSOR(name, dtype, shape, begin, end) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" #begin "," #end "]}"

static const struct good_case {
    const char *json;
    uint64_t data_bytes;
    uint32_t count;
} good_cases[] = {
    {"{}", 0, 0},
    {"{}", 100, 0},
    {"{ }  \n\t\r ", 0, 0},
    {"{\"__metadata__\":{}}", 0, 0},
    {"{\"__metadata__\":{\"format\":\"pt\",\"x\":\"\"}," TENSOR("a", "BF16", "2,3", 0, 12) "}", 12, 1},
    {"{" TENSOR("scalar", "F32", "", 0, 4) "}", 4, 1},
    {"{" TENSOR("empty", "F32", "0", 0, 0) "}", 0, 1},
    {"{" TENSOR("0", "F32", "4,0,4", 4, 4) "," TENSOR("b", "U8", "4", 4, 8) "," TENSOR("a", "U8", "4", 0, 4) "}", 8, 3},
    {"{" TENSOR("", "I64", "1", 0, 8) "}", 8, 1},
    {"{" TENSOR("gap before", "U8", "1", 7, 8) "," TENSOR("gap after", "U8", "1", 3, 4) "}", 20, 2},
    {"{" TENSOR("two to a byte", "F4", "3,2", 0, 3) "}", 3, 1},
    {"{" TENSOR("of a type to come", "F5_E1M3", "7", 0, 9) "}", 9, 1},
    {"{\"a\":{\"data_offsets\":[0,2],\"note\":null,\"shape\":[1],\"dtype\":\"F16\"}}", 2, 1},
    {"{" TENSOR("at 2^52", "U8", "1", 4503599627370496, 4503599627370497) "}", (uint64_t)1 << 53, 1},
    {"{" TENSOR("__metadata__2", "U8", "1", 0, 1) "}", 1, 1},
};

TEST_LOOP(a_good_file_is_read, COUNT(good_cases))
{
    struct safetensors list;
    const char *why = "unset";
    ck_assert_int_eq(STRAIT_OK, parse(&list, good_cases[_i].json, good_cases[_i].data_bytes, &why));
    ck_assert_ptr_null(why);
    ck_assert_uint_eq(good_cases[_i].count, list.count);
    ck_assert_uint_eq(8 + strlen(good_cases[_i].json), list.data_begin);
    safetensors_fini(&list);
}

TEST(tensors_come_in_the_order_of_their_place)
{
    struct safetensors list;
    const char *why;
    static const char json[] = "{" TENSOR("c", "BF16", "4", 10, 18) "," TENSOR("b", "F8_E4M3", "0", 10, 10) "," TENSOR(
        "d", "F32", "1", 20, 24) "," TENSOR("a", "I16", "1", 2, 4) "}";
    static const char *const names[] = {"a", "b", "c", "d"}, *const dtypes[] = {"I16", "F8_E4M3", "BF16", "F32"};
    static const uint64_t begins[] = {2, 10, 10, 20}, ends[] = {4, 10, 18, 24};
    ck_assert_int_eq(STRAIT_OK, parse(&list, json, 24, &why));
    ck_assert_uint_eq(4, list.count);
    for (uint32_t i = 0; i < list.count; i++) {
        ck_assert_str_eq(names[i], list.tensors[i].name);
        ck_assert_str_eq(dtypes[i], list.tensors[i].dtype);
        ck_assert_uint_eq(list.data_begin + begins[i], list.tensors[i].begin);
        ck_assert_uint_eq(list.data_begin + ends[i], list.tensors[i].end);
    }
    safetensors_fini(&list);
}

TEST(escapes_in_names_are_undone)
{
    struct safetensors list;
    const char *why;
    ck_assert_int_eq(STRAIT_OK, parse(&list, "{" TENSOR("a\\u002e\\\"b\\/\xc3\xa9", "U8", "1", 0, 1) "}", 1, &why));
    ck_assert_str_eq("a.\"b/\xc3\xa9", list.tensors[0].name);
    safetensors_fini(&list);
    static const char zeroes[] = "{" TENSOR("a", "U8", "1", 0, 1) "," TENSOR("a\\u0000", "U8", "1", 1, 2) "," TENSOR(
        "a\\\\u0000", "U8", "1", 2, 3) "}";
    ck_assert_int_eq(STRAIT_OK, parse(&list, zeroes, 3, &why));
    ck_assert_uint_eq(3, list.count);
    ck_assert_str_eq("a", list.tensors[0].name);
    ck_assert_str_eq("a\xe2\x90\x80", list.tensors[1].name);
    ck_assert_str_eq("a\\u0000", list.tensors[2].name);
    safetensors_fini(&list);
}

TEST(a_list_can_be_ended_twice)
{
    struct safetensors list;
    const char *why;
    ck_assert_int_eq(STRAIT_OK, parse(&list, "{" TENSOR("a", "U8", "1", 0, 1) "}", 1, &why));
    safetensors_fini(&list);
    safetensors_fini(&list);
    ck_assert_uint_eq(0, list.count);
}

TEST(dtypes_have_their_element_types)
{
    static const struct {
        const char *dtype;
        enum strait_element element;
    } known[] = {
        {"BF16", STRAIT_ELEMENT_BF16},        {"F16", STRAIT_ELEMENT_FP16},         {"F32", STRAIT_ELEMENT_FP32},
        {"F8_E4M3", STRAIT_ELEMENT_FP8_E4M3}, {"F8_E5M2", STRAIT_ELEMENT_FP8_E5M2}, {"I16", STRAIT_ELEMENT_BYTES},
        {"BOOL", STRAIT_ELEMENT_BYTES},       {"F64", STRAIT_ELEMENT_BYTES},        {"bf16", STRAIT_ELEMENT_BYTES},
        {"", STRAIT_ELEMENT_BYTES},
    };
    for (int i = 0; i < COUNT(known); i++)
        ck_assert_int_eq(known[i].element, safetensors_element(known[i].dtype));
}

/* ---- Bad files ------------------------------------------------------------------------------------------------- */

static const struct bad_case {
    const char *json;
    uint64_t data_bytes;
    const char *why; /* part of it */
} bad_cases[] = {
    {"", 0, "not a JSON object"},
    {" {}", 0, "not a JSON object"},
    {"[]", 0, "not a JSON object"},
    {"{", 0, "not a JSON object"},
    {"{}x", 0, "not a JSON object"},
    {"{}{}", 0, "not a JSON object"},
    {"{\"a\":", 0, "not a JSON object"},
    {"{\"a\":\"", 0, "not a JSON object"},
    {"{\"a\":\"\\", 0, "not a JSON object"},
    {"{\"a\":\"\\u12", 0, "not a JSON object"},
    {"{\"a\":1", 0, "not a JSON object"},
    {"{\"a\":tru", 0, "not a JSON object"},
    {"{\"a\":[1,", 0, "not a JSON object"},
    {"{a:1}", 0, "not a JSON object"},
    {"{\"a\":1}", 0, "not described by an object"},
    {"{\"a\":[]}", 0, "not described by an object"},
    {"{\"a\":null}", 0, "not described by an object"},
    {"{\"a\":{}}", 0, "lacks"},
    {"{\"a\":{\"b\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}}", 1, "lacks"},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "lacks"},
    {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "lacks"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "lacks"},
    {"{\"a\":{\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "lacks"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":{\"0\":1},\"data_offsets\":[0,1]}}", 1, "lacks"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":\"0,1\"}}", 1, "lacks"},
    {"{\"a\":{\"DTYPE\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "lacks"},
    {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "twice"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "twice"},
    {"{" TENSOR("a", "A_TYPE_OF_SIXTEEN", "1", 0, 1) "}", 1, "dtype is too long"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[]}}", 1, "not two numbers"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, "not two numbers"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 2, "not two numbers"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[[0],[1]]}}", 1, "not a number"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[\"1\"],\"data_offsets\":[0,1]}}", 1, "not a number"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[true],\"data_offsets\":[0,1]}}", 1, "not a number"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[[1]],\"data_offsets\":[0,1]}}", 1, "not a number"},
    {"{" TENSOR("a", "U8", "-1", 0, 1) "}", 1, "not a whole number"},
    {"{" TENSOR("a", "U8", "1.5", 0, 1) "}", 1, "not a whole number"},
    {"{" TENSOR("a", "U8", "1e-3", 0, 1) "}", 1, "not a whole number"},
    {"{" TENSOR("a", "U8", "1e400", 0, 1) "}", 1, "not a whole number"},
    {"{" TENSOR("a", "U8", "-1e400", 0, 1) "}", 1, "not a whole number"},
    {"{" TENSOR("a", "U8", "9007199254740992", 0, 1) "}", 1, "not a whole number"},
    {"{" TENSOR("a", "U8", "1", -1, 0) "}", 1, "not a whole number"},
    {"{" TENSOR("a", "U8", "1", 0, 1e300) "}", 1, "not a whole number"},
    {"{" TENSOR("a", "U8", "1", 0.5, 1.5) "}", 2, "not a whole number"},
    {"{" TENSOR("a", "U8", "1", 2, 1) "}", 2, "ends before it begins"},
    {"{" TENSOR("a", "U8", "1", 0, 1) "}", 0, "beyond the end"},
    {"{" TENSOR("a", "U8", "0", 1, 1) "}", 0, "beyond the end"},
    {"{" TENSOR("a", "U8", "1", 9007199254740990, 9007199254740991) "}", 8, "beyond the end"},
    {"{" TENSOR("a", "BF16", "3", 0, 5) "}", 8, "do not match"},
    {"{" TENSOR("a", "BF16", "2,2", 0, 4) "}", 8, "do not match"},
    {"{" TENSOR("a", "BF16", "", 0, 4) "}", 8, "do not match"},
    {"{" TENSOR("a", "BF16", "0", 0, 2) "}", 8, "do not match"},
    {"{" TENSOR("a", "F4", "3", 0, 1) "}", 8, "do not match"},
    {"{" TENSOR("a", "BF16", "4294967296,4294967296", 0, 0) "}", 8, "more values"},
    {"{" TENSOR("a", "NEW", "4294967296,4294967296,4", 0, 0) "}", 8, "more values"},
    {"{" TENSOR("a", "U8", "4", 0, 4) "," TENSOR("b", "U8", "4", 3, 7) "}", 8, "overlap"},
    {"{" TENSOR("a", "U8", "8", 0, 8) "," TENSOR("b", "U8", "0", 4, 4) "}", 8, "overlap"},
    {"{" TENSOR("a", "U8", "4", 0, 4) "," TENSOR("b", "U8", "4", 0, 4) "}", 8, "overlap"},
    {"{" TENSOR("a", "U8", "1", 0, 1) "," TENSOR("a", "U8", "1", 2, 3) "}", 8, "same name"},
    {"{\"__metadata__\":[]}", 0, "is not an object"},
    {"{\"__metadata__\":\"\"}", 0, "is not an object"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "other than strings"},
    {"{\"__metadata__\":{\"a\":{}}}", 0, "other than strings"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "comes twice"},
    {"{" TENSOR("a\\u0000b", "U8", "1", 0, 1) "," TENSOR("a\\u0000b", "U8", "1", 2, 3) "}", 8, "same name"},
};

TEST_LOOP(a_bad_file_is_refused_and_says_why, COUNT(bad_cases))
{
    struct safetensors list = {0};
    const char *why = NULL;
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, parse(&list, bad_cases[_i].json, bad_cases[_i].data_bytes, &why));
    ck_assert_ptr_nonnull(why);
    ck_assert_msg(strstr(why, bad_cases[_i].why) != NULL, "'%s' has no '%s': %s", why, bad_cases[_i].why,
                  bad_cases[_i].json);
}

TEST(deep_nesting_is_refused)
{
    size_t depth = 1000000;
    char *json = malloc(depth + 6);
    struct safetensors list;
    const char *why;
    memcpy(json, "{\"a\":", 5);
    memset(json + 5, '[', depth);
    json[depth + 5] = '\0';
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, parse(&list, json, 0, &why));
    free(json);
}

static const char whole[] = "{\"__metadata__\":{\"by\":\"\\u00e9\"}," TENSOR("a.0.k", "BF16", "2,2", 0,
                                                                             8) "," TENSOR("b", "U8", "3", 8, 11) "}";

TEST(no_beginning_of_a_header_is_a_header)
{
    for (size_t cut = 0; cut < 8 + strlen(whole); cut++) {
        struct guarded all = file_of(whole), file = file_of_bytes(all.bytes, cut);
        struct safetensors list;
        const char *why = NULL;
        ck_assert_int_eq(STRAIT_ERR_TRUNCATED, safetensors_init(&list, file.bytes, cut, cut, &why));
        ck_assert_ptr_nonnull(why);
        ck_assert_int_eq(STRAIT_ERR_TRUNCATED, safetensors_init(&list, file.bytes, cut, 1000, &why));
        ck_assert_int_eq(STRAIT_ERR_TRUNCATED, safetensors_init(&list, all.bytes, all.size, cut, &why));
        guarded_fini(&file);
        guarded_fini(&all);
    }
}

TEST(a_header_cut_short_by_its_own_length_is_refused)
{
    struct guarded file = file_of(whole);
    for (size_t length = 0; length < strlen(whole); length++) {
        struct safetensors list;
        const char *why;
        store_le64(file.bytes, length);
        struct guarded shorter = file_of_bytes(file.bytes, 8 + length);
        ck_assert_int_eq(STRAIT_ERR_CORRUPT, safetensors_init(&list, shorter.bytes, 8 + length, 1000, &why));
        guarded_fini(&shorter);
    }
    guarded_fini(&file);
}

static void assert_sound(const struct safetensors *list, uint64_t file_size)
{
    uint64_t end = list->data_begin;
    for (uint32_t i = 0; i < list->count; i++) {
        ck_assert_uint_ge(list->tensors[i].begin, end);
        ck_assert_uint_ge(list->tensors[i].end, list->tensors[i].begin);
        end = list->tensors[i].end;
    }
    ck_assert_uint_le(end, file_size);
}

/* Some stay good: a name is as good as another. But no list ever points outside the file. */
TEST(a_header_with_one_byte_changed_is_refused_or_sound)
{
    struct guarded file = file_of(whole);
    for (size_t i = 0; i < file.size * 256; i++) {
        struct safetensors list;
        const char *why = NULL;
        uint8_t before = file.bytes[i / 256];
        uint64_t file_size = file.size + 11;
        file.bytes[i / 256] = (uint8_t)i;
        if (safetensors_init(&list, file.bytes, file.size, file_size, &why) == STRAIT_OK) {
            assert_sound(&list, file_size);
            safetensors_fini(&list);
        } else {
            ck_assert_ptr_nonnull(why);
        }
        file.bytes[i / 256] = before;
    }
    guarded_fini(&file);
}

/* ---- Lengths --------------------------------------------------------------------------------------------------- */

static const struct length_case {
    uint64_t length, file_size;
    enum strait_status status;
    bool probed;
} lengths[] = {
    {2, 10, STRAIT_OK, true},
    {2, 9, STRAIT_ERR_TRUNCATED, false},
    {3, 10, STRAIT_ERR_TRUNCATED, false},
    {1, 10, STRAIT_ERR_CORRUPT, false},
    {0, 10, STRAIT_ERR_CORRUPT, false},
    {100000000, 10, STRAIT_ERR_TRUNCATED, false},
    {100000000, 100000008, STRAIT_ERR_TRUNCATED, true}, /* the header is not all there, but it could be one */
    {100000001, 200000000, STRAIT_ERR_CORRUPT, false},
    {UINT64_MAX, UINT64_MAX, STRAIT_ERR_CORRUPT, false},
    {UINT64_MAX - 7, 10, STRAIT_ERR_CORRUPT, false},
};

TEST_LOOP(the_length_of_the_header_is_checked, COUNT(lengths))
{
    const struct length_case *test = &lengths[_i];
    uint8_t head[10];
    struct safetensors list = {0};
    const char *why = NULL;
    store_le64(head, test->length);
    memcpy(head + 8, "{}", 2);
    ck_assert_int_eq(test->status, safetensors_init(&list, head, sizeof(head), test->file_size, &why));
    ck_assert_int_eq(test->probed, safetensors_probe(head, sizeof(head), test->file_size));
    safetensors_fini(&list);
}

TEST(other_files_are_not_taken_for_safetensors)
{
    uint8_t head[10] = {2, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    for (size_t size = 0; size <= 8; size++)
        ck_assert(!safetensors_probe(head, size, 10));
    ck_assert(safetensors_probe(head, 9, 10));
    head[8] = '[';
    ck_assert(!safetensors_probe(head, 10, 10));
    ck_assert(!safetensors_probe("\x89PNG\r\n\x1a\n{}", 10, 10));
}

/* ---- Classes --------------------------------------------------------------------------------------------------- */

enum { OTHER = STRAIT_ROLE_OTHER, K = STRAIT_ROLE_K, V = STRAIT_ROLE_V };

static struct class_rules *rules; /* the defaults, fresh for every test */

static void setup(void)
{
    rules = class_rules_create();
    ck_assert_ptr_nonnull(rules);
}

static void teardown(void)
{
    class_rules_destroy(rules);
}

static void assert_class(const char *name, int role, int32_t layer)
{
    struct strait_class class = class_of(rules, name);
    ck_assert_msg((int)class.role == role && class.layer == layer, "'%.80s' is role %d layer %d, not role %d layer %d",
                  name, (int)class.role, class.layer, role, layer);
}

static void add_rule(const char *rule)
{
    const char *why = "unset";
    ck_assert_int_eq(STRAIT_OK, class_rules_add(rules, rule, &why));
    ck_assert_ptr_null(why);
}

/* ---- Defaults -------------------------------------------------------------------------------------------------- */

static const struct name_case {
    const char *name;
    int role;
    int32_t layer;
} names[] = {
    /* cached K and V */
    {"layers.0.k", K, 0},
    {"layers.11.v", V, 11},
    {"layers.7.key", K, 7},
    {"layers.7.value", V, 7},
    {"layers.7.keys", K, 7},
    {"layers.7.values", V, 7},
    {"layers.3.k_cache", K, 3},
    {"layers.3.v_cache", V, 3},
    {"layers.3.self_attn.key_cache", K, 3},
    {"layers.3.attn.past_value", V, 3},
    {"layers.3.k_cache.0", K, 3},
    {"model.layers.31.self_attn.attn.v_cache", V, 31},
    {"request.12.layers.5.k", K, 5},
    {"rank0/layer_5/v", V, 5},
    {"layer5.k", K, 5},
    {"transformer.h.9.attn.k", K, 9},
    {"blk.4.k", K, 4},
    {"decoder.block.2.v", V, 2},
    {"decoder_layers.2.value_states", V, 2},
    {"past_key_values.6.key", K, 6},
    {"past_key_values.6.value", V, 6},
    {"past_key_values.6.decoder.key", K, 6},
    {"present.1.encoder.value", V, 1},
    {"kv_cache.8.k", K, 8},
    {"8.v", V, 8},
    {"key_cache.2", K, 2},
    {"value_cache.2", V, 2},
    {"cache.k_cache_2", K, 2},
    {"k_cache/layer_2", K, 2},
    {"cache_k_l13", K, 13},
    {"cache_v_l13", V, 13},
    {"k", K, -1},
    {"v_cache", V, -1},
    {"pool/value_cache", V, -1},
    /* weights and the rest, with a layer */
    {"model.layers.17.self_attn.k_proj.weight", OTHER, 17},
    {"model.layers.17.self_attn.v_proj.bias", OTHER, 17},
    {"model.layers.17.self_attn.k_proj", OTHER, 17},
    {"model.layers.17.self_attn.k_norm.weight", OTHER, 17},
    {"model.layers.17.self_attn.k_scale", OTHER, 17},
    {"model.layers.17.mlp.experts.3.down_proj.weight", OTHER, 17},
    {"layers.1.mlp.down_proj.exp_avg", OTHER, 1},
    {"layers.6.kv_cache", OTHER, 6},
    {"transformer.h.5.attn.c_attn.weight", OTHER, 5},
    {"h.5.ln_1.bias", OTHER, 5},
    {"blk.22.attn_k.weight", OTHER, 22},
    {"blk.22.attn_v", OTHER, 22},
    {"encoder.layer.3.attention.self.key.weight", OTHER, 3},
    {"vision.resblocks.3.mlp", OTHER, 3},
    {"layers.12", OTHER, 12},
    {"layers.2147483647.w", OTHER, INT32_MAX},
    /* no layer */
    {"model.embed_tokens.weight", OTHER, -1},
    {"lm_head.weight", OTHER, -1},
    {"model.layers.norm.weight", OTHER, -1},
    {"key.weight", OTHER, -1},
    {"kv", OTHER, -1},
    {"monkey", OTHER, -1},
    {"state.5.exp_avg", OTHER, -1},
    {"width.3", OTHER, -1},
    {"layers.2147483648.w", OTHER, -1},
    {"layers.99999999999999999999999999.k", K, -1},
    {"", OTHER, -1},
    {".", OTHER, -1},
    {"layers..k", K, -1},
    {"\xff\xfe.layers.3.\x80.k", K, 3},
};

TEST_FIXTURE(classes, setup, teardown);

TEST_LOOP(a_name_tells_the_class, COUNT(names))
{
    assert_class(names[_i].name, names[_i].role, names[_i].layer);
}

TEST(a_name_of_megabytes_has_no_class)
{
    size_t size = 10 * 1000 * 1000;
    char *name = malloc(size + 1);
    memset(name, '.', size);
    strcpy(name + size - 11, ".layers.3.k");
    assert_class(name, OTHER, -1);
    free(name);
}

TEST(a_long_name_has_a_class)
{
    char name[4097];
    memset(name, '.', sizeof(name));
    strcpy(name + sizeof(name) - 12, ".layers.3.k");
    assert_class(name, K, 3);
}

/* ---- Rules ----------------------------------------------------------------------------------------------------- */

TEST(a_rule_goes_before_the_defaults)
{
    add_rule("^layers\\.([0-9]+)\\.k$=v");
    assert_class("layers.3.k", V, 3);
    assert_class("layers.3.k.k", K, 3);
}

TEST(a_later_rule_goes_before_an_earlier_one)
{
    add_rule("^a=k");
    add_rule("^ab=v");
    assert_class("ab", V, -1);
    assert_class("ac", K, -1);
}

TEST(a_rule_may_hold_equals_signs)
{
    add_rule("a=b=OTHER");
    add_rule("c==K");
    assert_class("layers.3.a=b.k", OTHER, -1);
    assert_class("c=", K, -1);
    assert_class("c", OTHER, -1);
}

TEST(the_first_group_of_digits_is_the_layer)
{
    add_rule("(req[0-9]*)_(stage([0-9]+))?_([0-9]+)=k");
    assert_class("req1_stage2_3", K, 2);
    assert_class("req1__3", K, 3);
    add_rule("^x([0-9])[0-9]*=v");
    assert_class("x123", V, 1);
    add_rule("^y(.*)z=v");
    assert_class("yz", V, -1);
    assert_class("y+3z", V, -1);
    assert_class("y007z", V, 7);
}

static const struct bad_rule {
    const char *rule, *why;
} bad_rules[] = {
    {"", "REGEX=ROLE"},
    {"abc", "REGEX=ROLE"},
    {"=k", "REGEX=ROLE"},
    {"a=", "role"},
    {"a=q", "role"},
    {"a=vk", "role"},
    {"a=k ", "role"},
    {"(=k", "regular expression"},
    {"[a=k", "regular expression"},
    {"a{2,1}=v", "regular expression"},
    {"*[=other", "regular expression"},
    {"()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()=k", "groups"},
};

TEST_LOOP(a_bad_rule_is_refused_and_changes_nothing, COUNT(bad_rules))
{
    const char *why = NULL;
    ck_assert_int_eq(STRAIT_ERR_INVALID, class_rules_add(rules, bad_rules[_i].rule, &why));
    ck_assert_ptr_nonnull(why);
    ck_assert_msg(strstr(why, bad_rules[_i].why) != NULL, "'%s' has no '%s'", why, bad_rules[_i].why);
    assert_class("layers.3.k", K, 3);
}

TEST(no_rules_can_be_destroyed)
{
    class_rules_destroy(NULL);
}

int main(void)
{
    return run_tests("input", NULL, NULL);
}
