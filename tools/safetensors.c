#include "tools/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "internal/bytes.h"

#define LENGTH_BYTES     8u
#define HEADER_BYTES_MAX 100000000u          /* the limit of the format's own reader */
#define EXACT_MAX        ((uint64_t)1 << 53) /* the JSON reader may have rounded numbers from here on */
#define METADATA_NAME    "__metadata__"

/* ---- Element types --------------------------------------------------------------------------------------------- */

static const struct dtype {
    const char *name;
    unsigned bits;
    enum strait_element element;
} dtypes[] = {
    {"BF16", 16, STRAIT_ELEMENT_BF16},       {"F16", 16, STRAIT_ELEMENT_FP16},
    {"F32", 32, STRAIT_ELEMENT_FP32},        {"F8_E4M3", 8, STRAIT_ELEMENT_FP8_E4M3},
    {"F8_E5M2", 8, STRAIT_ELEMENT_FP8_E5M2}, {"F8_E8M0", 8, STRAIT_ELEMENT_BYTES},
    {"F6_E2M3", 6, STRAIT_ELEMENT_BYTES},    {"F6_E3M2", 6, STRAIT_ELEMENT_BYTES},
    {"F4", 4, STRAIT_ELEMENT_BYTES},         {"F64", 64, STRAIT_ELEMENT_BYTES},
    {"C64", 64, STRAIT_ELEMENT_BYTES},       {"I64", 64, STRAIT_ELEMENT_BYTES},
    {"U64", 64, STRAIT_ELEMENT_BYTES},       {"I32", 32, STRAIT_ELEMENT_BYTES},
    {"U32", 32, STRAIT_ELEMENT_BYTES},       {"I16", 16, STRAIT_ELEMENT_BYTES},
    {"U16", 16, STRAIT_ELEMENT_BYTES},       {"I8", 8, STRAIT_ELEMENT_BYTES},
    {"U8", 8, STRAIT_ELEMENT_BYTES},         {"BOOL", 8, STRAIT_ELEMENT_BYTES},
};

/* NULL for a name this version does not know. */
static const struct dtype *find_dtype(const char *name)
{
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return &dtypes[i];
    return NULL;
}

enum strait_element safetensors_element(const char *dtype)
{
    const struct dtype *known = find_dtype(dtype);
    return known == NULL ? STRAIT_ELEMENT_BYTES : known->element;
}

/* ---- One tensor ------------------------------------------------------------------------------------------------ */

/* The checks below return what is wrong, as static text, or NULL. */

struct entry {
    const cJSON *dtype, *shape, *offsets;
};

static const char *read_number(const cJSON *item, uint64_t *value)
{
    if (!cJSON_IsNumber(item))
        return "a shape or offset is not a number";
    double number = item->valuedouble;
    if (!(number >= 0 && number < (double)EXACT_MAX) || number != (double)(uint64_t)number)
        return "a shape or offset is not a whole number from 0 to 2^53";
    *value = (uint64_t)number;
    return NULL;
}

static const char *read_entry(const cJSON *item, struct entry *entry)
{
    if (!cJSON_IsObject(item))
        return "a tensor is not described by an object";
    const cJSON *field;
    cJSON_ArrayForEach(field, item)
    {
        const cJSON **slot = strcmp(field->string, "dtype") == 0          ? &entry->dtype
                             : strcmp(field->string, "shape") == 0        ? &entry->shape
                             : strcmp(field->string, "data_offsets") == 0 ? &entry->offsets
                                                                          : NULL;
        if (slot != NULL && *slot != NULL)
            return "a tensor has dtype, shape or data_offsets twice";
        if (slot != NULL)
            *slot = field;
    }
    if (!cJSON_IsString(entry->dtype) || !cJSON_IsArray(entry->shape) || !cJSON_IsArray(entry->offsets))
        return "a tensor lacks a dtype string, a shape list or a data_offsets list";
    return NULL;
}

/* The tensor's size in bits. */
static const char *read_shape(const cJSON *shape, unsigned bits_per_value, uint64_t *bits)
{
    const cJSON *item;
    *bits = bits_per_value;
    cJSON_ArrayForEach(item, shape)
    {
        uint64_t dimension = 0;
        const char *why = read_number(item, &dimension);
        if (why != NULL)
            return why;
        if (__builtin_mul_overflow(*bits, dimension, bits))
            return "a shape has more values than a file can hold";
    }
    return NULL;
}

static const char *read_offsets(const cJSON *offsets, uint64_t data_bytes, struct safetensor *tensor)
{
    if (cJSON_GetArraySize(offsets) != 2)
        return "data_offsets are not two numbers";
    const char *why = read_number(offsets->child, &tensor->begin);
    if (why == NULL)
        why = read_number(offsets->child->next, &tensor->end);
    if (why != NULL)
        return why;
    if (tensor->begin > tensor->end)
        return "a tensor ends before it begins";
    if (tensor->end > data_bytes)
        return "a tensor reaches beyond the end of the file";
    return NULL;
}

static const char *check_size(const cJSON *shape, const struct safetensor *tensor)
{
    const struct dtype *dtype = find_dtype(tensor->dtype);
    uint64_t bits;
    const char *why = read_shape(shape, dtype == NULL ? 1 : dtype->bits, &bits);
    if (why != NULL || dtype == NULL)
        return why; /* for an unknown type the size is unknown too */
    if (bits % 8 != 0 || bits / 8 != tensor->end - tensor->begin)
        return "a tensor's data_offsets do not match its shape and dtype";
    return NULL;
}

/* Reads everything but the name. data_offsets stay as in the file: relative to its data section. */
static const char *read_tensor(struct safetensor *tensor, const cJSON *item, uint64_t data_bytes)
{
    struct entry entry = {0};
    const char *why = read_entry(item, &entry);
    if (why != NULL)
        return why;
    size_t length = strlen(entry.dtype->valuestring);
    if (length >= sizeof(tensor->dtype))
        return "a tensor's dtype is too long to be one";
    memcpy(tensor->dtype, entry.dtype->valuestring, length + 1);
    why = read_offsets(entry.offsets, data_bytes, tensor);
    return why != NULL ? why : check_size(entry.shape, tensor);
}

/* ---- All of them ----------------------------------------------------------------------------------------------- */

static const char *check_metadata(const cJSON *item)
{
    const cJSON *value;
    if (!cJSON_IsObject(item))
        return METADATA_NAME " is not an object";
    cJSON_ArrayForEach(value, item)
    {
        if (!cJSON_IsString(value))
            return METADATA_NAME " holds something other than strings";
    }
    return NULL;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct safetensor *)a)->name, ((const struct safetensor *)b)->name);
}

static int by_place(const void *a, const void *b)
{
    const struct safetensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) /* an empty tensor sorts before the one that begins at the same place */
        return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

static const char *check_names(struct safetensors *list)
{
    qsort(list->tensors, list->count, sizeof(list->tensors[0]), by_name);
    for (uint32_t i = 1; i < list->count; i++)
        if (strcmp(list->tensors[i - 1].name, list->tensors[i].name) == 0)
            return "two tensors have the same name";
    return NULL;
}

/* Leaves the list sorted by place. Gaps are allowed, as no tensor covers them. */
static const char *check_places(struct safetensors *list)
{
    qsort(list->tensors, list->count, sizeof(list->tensors[0]), by_place);
    for (uint32_t i = 1; i < list->count; i++)
        if (list->tensors[i].begin < list->tensors[i - 1].end)
            return "two tensors overlap";
    return NULL;
}

static enum strait_status read_tensors(struct safetensors *list, const cJSON *root, uint64_t data_bytes,
                                       const char **why)
{
    unsigned metadata = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, root)
    {
        if (strcmp(item->string, METADATA_NAME) == 0) {
            *why = metadata++ > 0 ? METADATA_NAME " comes twice" : check_metadata(item);
        } else {
            struct safetensor *tensor = &list->tensors[list->count];
            tensor->name = strdup(item->string);
            if (tensor->name == NULL) {
                *why = "out of memory";
                return STRAIT_ERR_NO_MEMORY;
            }
            list->count++;
            *why = read_tensor(tensor, item, data_bytes);
            tensor->begin += list->data_begin;
            tensor->end += list->data_begin;
        }
        if (*why != NULL)
            return STRAIT_ERR_CORRUPT;
    }
    *why = check_names(list);
    if (*why == NULL)
        *why = check_places(list);
    return *why == NULL ? STRAIT_OK : STRAIT_ERR_CORRUPT;
}

/* ---- The header ------------------------------------------------------------------------------------------------ */

static bool is_blank(const char *text, const char *end)
{
    while (text < end && (*text == ' ' || *text == '\t' || *text == '\r' || *text == '\n'))
        text++;
    return text == end;
}

/* NULL when the text is not one JSON object with nothing but blanks after it. The caller must cJSON_Delete() it. */
static cJSON *parse_object(const char *text, size_t size)
{
    const char *rest;
    if (size == 0 || text[0] != '{')
        return NULL;
    cJSON *root = cJSON_ParseWithLengthOpts(text, size, &rest, 0);
    if (root != NULL && is_blank(rest, text + size))
        return root;
    cJSON_Delete(root);
    return NULL;
}

static enum strait_status check_length(const void *head, uint64_t head_size, uint64_t file_size, const char **why)
{
    *why = "ends inside the header";
    if (head_size < LENGTH_BYTES || file_size < LENGTH_BYTES)
        return STRAIT_ERR_TRUNCATED;
    uint64_t header_bytes = load_le64(head);
    if (header_bytes > HEADER_BYTES_MAX) {
        *why = "says that its header is longer than 100 MB";
        return STRAIT_ERR_CORRUPT;
    }
    if (header_bytes > file_size - LENGTH_BYTES || header_bytes > head_size - LENGTH_BYTES)
        return STRAIT_ERR_TRUNCATED;
    return STRAIT_OK;
}

bool safetensors_probe(const void *head, uint64_t head_size, uint64_t size)
{
    if (head_size <= LENGTH_BYTES || size <= LENGTH_BYTES)
        return false;
    uint64_t header_bytes = load_le64(head);
    return header_bytes >= 2 && header_bytes <= HEADER_BYTES_MAX && header_bytes <= size - LENGTH_BYTES &&
           ((const uint8_t *)head)[LENGTH_BYTES] == '{';
}

enum strait_status safetensors_init(struct safetensors *list, const void *head, uint64_t head_size, uint64_t file_size,
                                    const char **why)
{
    enum strait_status status = check_length(head, head_size, file_size, why);
    if (status != STRAIT_OK)
        return status;
    uint64_t header_bytes = load_le64(head);
    *list = (struct safetensors){.data_begin = LENGTH_BYTES + header_bytes};
    cJSON *root = parse_object((const char *)head + LENGTH_BYTES, header_bytes);
    if (root == NULL) {
        *why = "its header is not a JSON object";
        return STRAIT_ERR_CORRUPT;
    }
    *why = "out of memory";
    status = STRAIT_ERR_NO_MEMORY;
    list->tensors = calloc((size_t)cJSON_GetArraySize(root) + 1, sizeof(list->tensors[0]));
    if (list->tensors != NULL) {
        *why = NULL;
        status = read_tensors(list, root, file_size - list->data_begin, why);
    }
    cJSON_Delete(root);
    if (status != STRAIT_OK)
        safetensors_fini(list);
    return status;
}

void safetensors_fini(struct safetensors *list)
{
    for (uint32_t i = 0; i < list->count; i++)
        free(list->tensors[i].name);
    free(list->tensors);
    *list = (struct safetensors){0};
}
