#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal/bytes.h"
#include "tests/run_suite.h"
#include "tools/input.h"

#define COUNT(array) (int)(sizeof(array) / sizeof((array)[0]))

/* ---- Files ----------------------------------------------------------------------------------------------------- */

/* A header in memory that ends where the readable page does: reading on would be a crash. */
struct file {
    uint8_t *pages;
    size_t pages_size;
    uint8_t *head;
    size_t head_size;
};

static void file_init_bytes(struct file *file, const void *bytes, size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), readable = (size + page) / page * page;
    file->pages_size = readable + page;
    file->pages = mmap(NULL, file->pages_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(file->pages, MAP_FAILED);
    ck_assert_int_eq(0, mprotect(file->pages + readable, page, PROT_NONE));
    file->head = file->pages + readable - size;
    file->head_size = size;
    memcpy(file->head, bytes, size);
}

static void file_init(struct file *file, const char *json)
{
    size_t size = strlen(json);
    uint8_t *bytes = malloc(8 + size);
    store_le64(bytes, size);
    memcpy(bytes + 8, json, size);
    file_init_bytes(file, bytes, 8 + size);
    free(bytes);
}

static void file_fini(struct file *file)
{
    munmap(file->pages, file->pages_size);
}

/* The verdict on a file of this header and so many bytes of data. The list must be empty or ended. */
static enum strait_status parse(struct safetensors *list, const char *json, uint64_t data_bytes, const char **why)
{
    struct file file;
    file_init(&file, json);
    enum strait_status status = safetensors_init(list, file.head, file.head_size, file.head_size + data_bytes, why);
    file_fini(&file);
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
        struct file file, all;
        struct safetensors list;
        const char *why = NULL;
        file_init(&all, whole);
        file_init_bytes(&file, all.head, cut);
        ck_assert_int_eq(STRAIT_ERR_TRUNCATED, safetensors_init(&list, file.head, cut, cut, &why));
        ck_assert_ptr_nonnull(why);
        ck_assert_int_eq(STRAIT_ERR_TRUNCATED, safetensors_init(&list, file.head, cut, 1000, &why));
        ck_assert_int_eq(STRAIT_ERR_TRUNCATED, safetensors_init(&list, all.head, all.head_size, cut, &why));
        file_fini(&file);
        file_fini(&all);
    }
}

TEST(a_header_cut_short_by_its_own_length_is_refused)
{
    struct file file;
    file_init(&file, whole);
    for (size_t length = 0; length < strlen(whole); length++) {
        struct safetensors list;
        const char *why;
        struct file shorter;
        store_le64(file.head, length);
        file_init_bytes(&shorter, file.head, 8 + length);
        ck_assert_int_eq(STRAIT_ERR_CORRUPT, safetensors_init(&list, shorter.head, 8 + length, 1000, &why));
        file_fini(&shorter);
    }
    file_fini(&file);
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
    struct file file;
    file_init(&file, whole);
    for (size_t i = 0; i < file.head_size * 256; i++) {
        struct safetensors list;
        const char *why = NULL;
        uint8_t before = file.head[i / 256];
        uint64_t file_size = file.head_size + 11;
        file.head[i / 256] = (uint8_t)i;
        if (safetensors_init(&list, file.head, file.head_size, file_size, &why) == STRAIT_OK) {
            assert_sound(&list, file_size);
            safetensors_fini(&list);
        } else {
            ck_assert_ptr_nonnull(why);
        }
        file.head[i / 256] = before;
    }
    file_fini(&file);
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

int main(void)
{
    return run_tests("safetensors", NULL, NULL);
}
