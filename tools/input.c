#include <cjson/cJSON.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <regex.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal/bytes.h"
#include "tools/input.h"
#include "tools/util.h"
#include "tools/files.h"

#define ALIGNMENT 64u

bool buffer_reserve(struct buffer *buffer, size_t used, uint64_t size)
{
    uint8_t *grown;

    if (size <= buffer->capacity)
        return true;
    if (size > SIZE_MAX - ALIGNMENT)
        return false;
    size = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    grown = aligned_alloc(ALIGNMENT, size);
    if (grown == NULL)
        return false;
    if (used > 0)
        memcpy(grown, buffer->data, used);
    free(buffer->data);
    buffer->data = grown;
    buffer->capacity = size;
    return true;
}

bool buffer_reserve_zeroes(struct buffer *buffer, uint64_t size)
{
    size_t before = buffer->capacity;

    if (!buffer_reserve(buffer, before, size))
        return false;
    if (buffer->capacity > before)
        memset(buffer->data + before, 0, buffer->capacity - before);
    return true;
}

void buffer_fini(struct buffer *buffer)
{
    free(buffer->data);
    *buffer = (struct buffer){0};
}

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

/* Zero characters in names, which would end them, become U+2400, their picture. */
static void picture_zeroes(char *text, size_t size)
{
    for (size_t at = 0; at + 6 <= size; at++)
        if (text[at] == '\\') {
            at++;
            if (memcmp(text + at, "u0000", 5) == 0)
                memcpy(text + at, "u2400", 5);
        }
}

/* NULL when the text is not one JSON object with nothing but blanks after it. The caller must cJSON_Delete() it. */
static cJSON *parse_object(const char *text, size_t size)
{
    const char *rest;
    if (size == 0 || text[0] != '{' || memchr(text, '\0', size) != NULL)
        return NULL;
    char *copy = memmem(text, size, "\\u0000", 6) == NULL ? NULL : malloc(size);
    if (copy != NULL) {
        memcpy(copy, text, size);
        picture_zeroes(copy, size);
        text = copy;
    }
    cJSON *root = cJSON_ParseWithLengthOpts(text, size, &rest, 0);
    const bool whole = root != NULL && is_blank(rest, text + size);
    free(copy);
    if (whole)
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
    const uint8_t *json = (const uint8_t *)head + LENGTH_BYTES;
    const bool is_cut = header_bytes > size - LENGTH_BYTES; /* then it has to look more like one */
    return header_bytes >= 2 && header_bytes <= HEADER_BYTES_MAX && json[0] == '{' &&
           (!is_cut || (head_size > LENGTH_BYTES + 1 && json[1] == '"'));
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

#define GROUPS_MAX     32    /* of a regex, including the whole match */
#define NAME_BYTES_MAX 4096u /* no model has longer names, and regexec is slow on them */

struct class_rule {
    regex_t regex;
    enum strait_role role;
    struct class_rule *next;
};

struct class_rules {
    struct class_rule *first;
};

/* ---- Defaults -------------------------------------------------------------------------------------------------- */

/* Parts of a name end at a dot or slash. A cached K is a part of its own at the end of the name: `layers.3.k`,
 * `past_key_values.3.key`, `model.layers.3.self_attn.k_cache`, `key_cache.3`. Weights end in another part
 * (`k_proj.weight`) or have a longer one (`attn_k`), so they are `other`, with their layer. */
#define AT      "(^|[./])"
#define LAYER   AT "([[:alpha:]_]*(layers?|blocks?|blk)[._/]?|h[./])([0-9]+)" /* layers.3, h.3, blk.3, layer_3 */
#define BETWEEN "[./](.*[./])?"
#define K       "(past_|cached?_)?(k|key|keys)(_cache|_states?)?"
#define V       "(past_|cached?_)?(v|value|values)(_cache|_states?)?"
#define PIECE   "([._/][0-9]+)?$"                  /* a cache in several pieces: layers.3.k_cache.0 */
#define INDEX   "[._/](l|layers?[._/]?)?([0-9]+)$" /* key_cache.3, cache_k_l3, k_cache/layer_3 */

static const char *const default_rules[] = {
    LAYER BETWEEN K PIECE "=k",
    LAYER BETWEEN V PIECE "=v",
    AT "([0-9]+)" BETWEEN K "$=k", /* past_key_values.3.key, present.3.decoder.key */
    AT "([0-9]+)" BETWEEN V "$=v",
    AT K INDEX "=k",
    AT V INDEX "=v",
    AT K "$=k",
    AT V "$=v",
    LAYER "([._/]|$)=other",
};

/* ---- Rules ----------------------------------------------------------------------------------------------------- */

static bool parse_role(const char *text, enum strait_role *role)
{
    static const char *const names[] = {
        [STRAIT_ROLE_OTHER] = "other",
        [STRAIT_ROLE_K] = "k",
        [STRAIT_ROLE_V] = "v",
        [STRAIT_ROLE_KV] = "kv",
    };
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcasecmp(text, names[i]) == 0) {
            *role = (enum strait_role)i;
            return true;
        }
    }
    return false;
}

/* On success the caller owns *made, with its regex. */
static enum strait_status rule_create(const char *pattern, enum strait_role role, struct class_rule **made,
                                      const char **why)
{
    struct class_rule *rule = malloc(sizeof(*rule));
    *why = "out of memory";
    if (rule == NULL)
        return STRAIT_ERR_NO_MEMORY;
    int failed = regcomp(&rule->regex, pattern, REG_EXTENDED);
    if (failed == 0 && rule->regex.re_nsub < GROUPS_MAX) {
        rule->role = role;
        *made = rule;
        return STRAIT_OK;
    }
    if (failed == 0)
        regfree(&rule->regex);
    free(rule);
    if (failed == REG_ESPACE)
        return STRAIT_ERR_NO_MEMORY;
    *why = failed != 0 ? "not a POSIX extended regular expression" : "more than 31 groups";
    return STRAIT_ERR_INVALID;
}

enum strait_status class_rules_add(struct class_rules *rules, const char *rule, const char **why)
{
    enum strait_role role;
    struct class_rule *made;
    const char *equals = strrchr(rule, '='); /* the last one: a regex may hold others */
    *why = "not of the form REGEX=ROLE";
    if (equals == NULL || equals == rule)
        return STRAIT_ERR_INVALID;
    *why = "the role is not k, v, kv or other";
    if (!parse_role(equals + 1, &role))
        return STRAIT_ERR_INVALID;
    char *pattern = strndup(rule, (size_t)(equals - rule));
    *why = "out of memory";
    if (pattern == NULL)
        return STRAIT_ERR_NO_MEMORY;
    enum strait_status status = rule_create(pattern, role, &made, why);
    free(pattern);
    if (status != STRAIT_OK)
        return status;
    made->next = rules->first;
    rules->first = made;
    *why = NULL;
    return STRAIT_OK;
}

struct class_rules *class_rules_create(void)
{
    struct class_rules *rules = calloc(1, sizeof(*rules));
    if (rules == NULL)
        return NULL;
    for (size_t i = sizeof(default_rules) / sizeof(default_rules[0]); i-- > 0;) {
        const char *why;
        if (class_rules_add(rules, default_rules[i], &why) != STRAIT_OK) {
            class_rules_destroy(rules);
            return NULL;
        }
    }
    return rules;
}

void class_rules_destroy(struct class_rules *rules)
{
    if (rules == NULL)
        return;
    for (struct class_rule *rule = rules->first, *next; rule != NULL; rule = next) {
        next = rule->next;
        regfree(&rule->regex);
        free(rule);
    }
    free(rules);
}

/* ---- Matching -------------------------------------------------------------------------------------------------- */

static bool group_is_number(const char *name, regmatch_t group)
{
    for (regoff_t i = group.rm_so; i < group.rm_eo; i++)
        if (!isdigit((unsigned char)name[i]))
            return false;
    return group.rm_so >= 0 && group.rm_eo > group.rm_so; /* a group that took no part has offsets of -1 */
}

/* -1 for numbers that no layer has. */
static int32_t read_layer(const char *name, regmatch_t group)
{
    int64_t number = 0;
    for (regoff_t i = group.rm_so; i < group.rm_eo; i++) {
        number = 10 * number + (name[i] - '0');
        if (number > INT32_MAX)
            return -1;
    }
    return (int32_t)number;
}

static int32_t layer_of(const char *name, const regmatch_t groups[GROUPS_MAX])
{
    for (unsigned g = 1; g < GROUPS_MAX; g++)
        if (group_is_number(name, groups[g]))
            return read_layer(name, groups[g]);
    return -1;
}

struct strait_class class_of(const struct class_rules *rules, const char *name)
{
    regmatch_t groups[GROUPS_MAX];
    if (strnlen(name, NAME_BYTES_MAX + 1) <= NAME_BYTES_MAX)
        for (const struct class_rule *rule = rules->first; rule != NULL; rule = rule->next)
            if (regexec(&rule->regex, name, GROUPS_MAX, groups, 0) == 0)
                return (struct strait_class){.role = rule->role, .layer = layer_of(name, groups)};
    return (struct strait_class){.role = STRAIT_ROLE_OTHER, .layer = -1};
}

#define SPOOL_STEP (1u << 20)

static bool fail(const struct source *source)
{
    print_error(source->name, "%s", strerror(errno));
    return false;
}

#define UNSURE_BYTES 65536 /* of the largest file whose size may be wrong: a memory page, on any machine */

/* Finds out what the descriptor is. A failed seek is not an error: a pipe has no position. A file of size 0 may still
 * have bytes, as those of /proc do, and one of a page that takes no space on a disk may have fewer, as those of /sys
 * do: both are read forward like a pipe. */
static void classify(struct source *source)
{
    struct stat st;
    off_t base = lseek(source->fd, 0, SEEK_CUR);

    source->size = SOURCE_SIZE_UNKNOWN;
    source->mode = OUTPUT_MODE;
    if (base < 0 || fstat(source->fd, &st) != 0 || !S_ISREG(st.st_mode))
        return;
    source->mode = st.st_mode & 0777;
    if (st.st_size == 0 || (st.st_blocks == 0 && st.st_size <= UNSURE_BYTES))
        return;
    source->seekable = true;
    source->changed = st.st_mtim;
    source->base = (uint64_t)base;
    source->size = st.st_size > base ? (uint64_t)(st.st_size - base) : 0;
}

bool source_open(struct source *source, const char *path)
{
    bool is_stdin = strcmp(path, "-") == 0;

    *source = (struct source){.name = is_stdin ? "stdin" : path, .fd = STDIN_FILENO};
    if (!is_stdin)
        source->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (source->fd < 0)
        return fail(source);
    classify(source);
    if (source->seekable)
        (void)posix_fadvise(source->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    return true;
}

void source_close(struct source *source)
{
    if (source->fd > STDIN_FILENO)
        close(source->fd);
    source->fd = -1;
    buffer_fini(&source->head);
}

bool source_survives(const struct source *source, const char *output)
{
    struct stat in, out;
    bool is_stdout = strcmp(output, "-") == 0;
    int found = is_stdout ? fstat(STDOUT_FILENO, &out) : stat(output, &out);

    if (found != 0 || fstat(source->fd, &in) != 0 || !S_ISREG(in.st_mode) || in.st_dev != out.st_dev ||
        in.st_ino != out.st_ino)
        return true;
    print_error(is_stdout ? "stdout" : output, "is the input itself: name another file");
    return false;
}

/* ---- Reading --------------------------------------------------------------------------------------------------- */

/* read(2) until the buffer is full or the input ends. */
static bool read_all(const struct source *source, uint8_t *dst, size_t size, size_t *got)
{
    size_t done = 0;

    while (done < size) {
        ssize_t n = read(source->fd, dst + done, size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail(source);
        if (n == 0)
            break;
        done += (size_t)n;
    }
    *got = done;
    return true;
}

bool source_read_at(const struct source *source, uint64_t offset, void *dst, size_t size)
{
    uint8_t *to = dst;

    while (size > 0) {
        ssize_t n = pread(source->fd, to, size, (off_t)(source->base + offset));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail(source);
        if (n == 0) {
            print_error(source->name, "became shorter while it was read: no byte %" PRIu64, offset);
            return false;
        }
        to += n;
        offset += (uint64_t)n;
        size -= (size_t)n;
    }
    return true;
}

bool source_check_end(const struct source *source)
{
    uint8_t byte;
    ssize_t n;

    struct stat st;

    if (!source->seekable)
        return true;
    do
        n = pread(source->fd, &byte, 1, (off_t)(source->base + source->size));
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return fail(source);
    if (n > 0)
        print_error(source->name, "grew while it was read: more follows byte %" PRIu64, source->size);
    if (n > 0)
        return false;
    if (fstat(source->fd, &st) != 0)
        return fail(source);
    if (st.st_mtim.tv_sec != source->changed.tv_sec || st.st_mtim.tv_nsec != source->changed.tv_nsec) {
        print_error(source->name, "was written to while it was read");
        return false;
    }
    return true;
}

/* Peeked bytes have already left a pipe. A seekable source's descriptor is still at the beginning: see peek. */
static size_t take_head(struct source *source, uint8_t *dst, size_t size)
{
    size_t left = source->position < source->head_size ? source->head_size - (size_t)source->position : 0;
    size_t n = size < left ? size : left;

    if (n > 0)
        memcpy(dst, source->head.data + source->position, n);
    return n;
}

bool source_read(struct source *source, void *dst, size_t size, size_t *got)
{
    size_t head = take_head(source, dst, size);

    if (!read_all(source, (uint8_t *)dst + head, size - head, got))
        return false;
    *got += head;
    source->position += *got;
    return true;
}

/* Allocates memory as bytes arrive, not `size` at once: the size may come from a hostile header. */
bool source_peek(struct source *source, uint64_t size)
{
    while (source->head_size < size) {
        uint64_t step = source->head_size + SPOOL_STEP < size ? SPOOL_STEP : size - source->head_size;
        uint64_t room = source->head_size + step;
        size_t got;

        if (room > source->head.capacity && !buffer_reserve(&source->head, source->head_size, room * 3 / 2)) {
            print_error(source->name, "out of memory");
            return false;
        }
        if (!read_all(source, source->head.data + source->head_size, step, &got))
            return false;
        source->head_size += got;
        if (got < step)
            break;
    }
    return true;
}

/* ---- Spooling -------------------------------------------------------------------------------------------------- */

/* An unnamed file, which disappears with its descriptor, however the process ends. */
static int temp_file(void)
{
    const char *folder = getenv("TMPDIR");
    char path[4096];
    int fd;

    if (folder == NULL || folder[0] == '\0')
        folder = "/tmp";
    fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0)
        return fd;
    /* Not every file system has O_TMPFILE. */
    if ((size_t)snprintf(path, sizeof(path), "%s/strait-XXXXXX", folder) >= sizeof(path)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        unlink(path);
    return fd;
}

static bool write_all(int fd, const uint8_t *data, size_t size)
{
    while (size > 0) {
        ssize_t n = write(fd, data, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        data += n;
        size -= (size_t)n;
    }
    return true;
}

/* Copies the peeked bytes and then the rest, in steps through the buffer `step`. */
static bool copy_to(struct source *source, int fd, uint8_t *step)
{
    size_t got = SPOOL_STEP;
    uint64_t size = source->head_size;
    bool written = write_all(fd, source->head.data, source->head_size);

    while (written && got == SPOOL_STEP) {
        if (!read_all(source, step, SPOOL_STEP, &got))
            return false;
        written = write_all(fd, step, got);
        size += got;
    }
    if (!written) {
        print_error(source->name, "cannot write to a temporary file: %s", strerror(errno));
        return false;
    }
    source->size = size;
    return true;
}

/* From now on the temporary file is the input, as if it had just been peeked at. */
static void switch_to(struct source *source, int fd)
{
    struct stat st;

    if (source->fd > STDIN_FILENO)
        close(source->fd);
    source->fd = fd;
    source->base = 0;
    source->seekable = true;
    source->changed = fstat(fd, &st) == 0 ? st.st_mtim : (struct timespec){0};
    (void)lseek(fd, (off_t)source->head_size, SEEK_SET);
}

bool source_spool(struct source *source)
{
    uint8_t *step = malloc(SPOOL_STEP);
    int fd = temp_file();
    bool ok = false;

    if (step == NULL || fd < 0)
        print_error(source->name, "cannot create a temporary file: %s", strerror(errno));
    else
        ok = copy_to(source, fd, step);
    if (ok)
        switch_to(source, fd);
    else if (fd >= 0)
        close(fd);
    free(step);
    return ok;
}
