#include "checkpoint/format.h"

#include <string.h>

#include <xxhash.h>

#include "internal/bytes.h"

#define FILE_VERSION        2u
#define HASHED_HEADER_BYTES 24u
#define USED_HEADER_BYTES   32u
#define HASHED_TAIL_BYTES   32u

static const uint8_t magic_file[4] = {'S', 'T', 'R', 'F'};
static const uint8_t magic_end[8] = {'S', 'T', 'R', 'F', 'E', 'N', 'D', '2'};

static bool all_zero(const uint8_t *src, size_t bytes)
{
    uint8_t any = 0;

    for (size_t i = 0; i < bytes; i++)
        any |= src[i];
    return any == 0;
}

/* ---- Types ------------------------------------------------------------------------------------------------------- */

static const struct checkpoint_dtype dtypes[] = {
    {"BF16", 2, STRAIT_ELEMENT_BF16}, {"F16", 2, STRAIT_ELEMENT_FP16},         {"F32", 4, STRAIT_ELEMENT_FP32},
    {"F64", 8, STRAIT_ELEMENT_BYTES}, {"F8_E4M3", 1, STRAIT_ELEMENT_FP8_E4M3}, {"F8_E5M2", 1, STRAIT_ELEMENT_FP8_E5M2},
    {"I8", 1, STRAIT_ELEMENT_BYTES},  {"I16", 2, STRAIT_ELEMENT_BYTES},        {"I32", 4, STRAIT_ELEMENT_BYTES},
    {"I64", 8, STRAIT_ELEMENT_BYTES}, {"U8", 1, STRAIT_ELEMENT_BYTES},         {"U16", 2, STRAIT_ELEMENT_BYTES},
    {"U32", 4, STRAIT_ELEMENT_BYTES}, {"U64", 8, STRAIT_ELEMENT_BYTES},        {"BOOL", 1, STRAIT_ELEMENT_BYTES},
    {"C64", 8, STRAIT_ELEMENT_BYTES}, {"BYTES", 1, STRAIT_ELEMENT_BYTES},
};

const struct checkpoint_dtype *checkpoint_dtype_find(const char *name)
{
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return &dtypes[i];
    return NULL;
}

uint32_t strait_checkpoint_dtype_bytes(const char *dtype)
{
    const struct checkpoint_dtype *found = dtype != NULL ? checkpoint_dtype_find(dtype) : NULL;

    return found != NULL ? found->bytes : 0;
}

/* Bytes of the UTF-8 character that begins here, none of them zero; 0: it is none. */
static unsigned character_bytes(const uint8_t *at)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000}; /* longer forms of smaller numbers are none */
    const unsigned bytes = at[0] < 0x80   ? 1
                           : at[0] < 0xC0 ? 0
                           : at[0] < 0xE0 ? 2
                           : at[0] < 0xF0 ? 3
                           : at[0] < 0xF8 ? 4
                                          : 0;
    uint32_t code = bytes == 1 ? at[0] : at[0] & (0x7Fu >> bytes);

    for (unsigned i = 1; i < bytes; i++) {
        if ((at[i] & 0xC0) != 0x80)
            return 0;
        code = code << 6 | (at[i] & 0x3F);
    }
    return bytes == 0 || code < least[bytes] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000) ? 0 : bytes;
}

bool checkpoint_name_valid(const char *name)
{
    const uint8_t *at = (const uint8_t *)name;

    while (*at != 0) {
        const unsigned bytes = character_bytes(at);
        at += bytes;
        if (bytes == 0 || at - (const uint8_t *)name > STRAIT_CHECKPOINT_NAME_MAX)
            return false;
    }
    return at > (const uint8_t *)name;
}

void checkpoint_file_name(char name[CHECKPOINT_FILE_NAME_BYTES], uint32_t rank)
{
    snprintf(name, CHECKPOINT_FILE_NAME_BYTES, "%05u.strait", rank);
}

void checkpoint_sum(uint8_t sum[16], const void *bytes, size_t size)
{
    const XXH128_hash_t hash = XXH3_128bits(bytes, size);

    store_le64(sum, hash.low64);
    store_le64(sum + 8, hash.high64);
}

/* ---- A rank's file ----------------------------------------------------------------------------------------------- */

void checkpoint_header_build(uint8_t dst[CHECKPOINT_HEADER_BYTES], const uint8_t save_id[STRAIT_CHECKPOINT_ID_BYTES])
{
    memset(dst, 0, CHECKPOINT_HEADER_BYTES);
    memcpy(dst, magic_file, sizeof(magic_file));
    dst[4] = FILE_VERSION;
    memcpy(dst + 8, save_id, STRAIT_CHECKPOINT_ID_BYTES);
    store_le64(dst + HASHED_HEADER_BYTES, XXH3_64bits(dst, HASHED_HEADER_BYTES));
}

enum strait_status checkpoint_header_parse(uint8_t save_id[STRAIT_CHECKPOINT_ID_BYTES], const uint8_t *src,
                                           uint64_t size, char *text, size_t text_size)
{
    if (size < CHECKPOINT_HEADER_BYTES)
        return checkpoint_fail(text, text_size, STRAIT_ERR_TRUNCATED, "has %llu bytes, less than a header",
                               (unsigned long long)size);
    if (memcmp(src, magic_file, sizeof(magic_file)) != 0)
        return checkpoint_fail(text, text_size, STRAIT_ERR_CORRUPT, "does not begin with STRF");
    if (src[4] != FILE_VERSION)
        return checkpoint_fail(text, text_size, STRAIT_ERR_UNSUPPORTED, "has version %u, not %u", src[4], FILE_VERSION);
    if (load_le64(src + HASHED_HEADER_BYTES) != XXH3_64bits(src, HASHED_HEADER_BYTES))
        return checkpoint_fail(text, text_size, STRAIT_ERR_INTEGRITY, "the header's checksum differs");
    if (!all_zero(src + 5, 3) || !all_zero(src + USED_HEADER_BYTES, CHECKPOINT_HEADER_BYTES - USED_HEADER_BYTES))
        return checkpoint_fail(text, text_size, STRAIT_ERR_CORRUPT, "reserved bytes of the header are not zero");
    memcpy(save_id, src + 8, STRAIT_CHECKPOINT_ID_BYTES);
    return STRAIT_OK;
}

void checkpoint_tail_build(uint8_t dst[CHECKPOINT_TAIL_BYTES], uint64_t footer_offset, const void *footer,
                           uint32_t footer_bytes)
{
    store_le64(dst, footer_offset);
    store_le64(dst + 8, footer_bytes);
    checkpoint_sum(dst + 16, footer, footer_bytes);
    store_le64(dst + HASHED_TAIL_BYTES, XXH3_64bits(dst, HASHED_TAIL_BYTES));
    memcpy(dst + 40, magic_end, sizeof(magic_end));
}

enum strait_status checkpoint_tail_parse(struct checkpoint_tail *tail, const uint8_t *src, uint64_t file_bytes,
                                         char *text, size_t text_size)
{
    if (file_bytes < CHECKPOINT_FILE_BYTES_MIN)
        return checkpoint_fail(text, text_size, STRAIT_ERR_TRUNCATED, "has %llu bytes, less than header and tail",
                               (unsigned long long)file_bytes);
    if (memcmp(src + 40, magic_end, sizeof(magic_end)) != 0)
        return checkpoint_fail(text, text_size, STRAIT_ERR_TRUNCATED, "does not end with STRFEND2");
    if (load_le64(src + HASHED_TAIL_BYTES) != XXH3_64bits(src, HASHED_TAIL_BYTES))
        return checkpoint_fail(text, text_size, STRAIT_ERR_INTEGRITY, "the tail's checksum differs");
    const uint64_t offset = load_le64(src), bytes = load_le64(src + 8), end = file_bytes - CHECKPOINT_TAIL_BYTES;
    if (offset % CHECKPOINT_ALIGNMENT != 0 || offset < CHECKPOINT_HEADER_BYTES || offset > end ||
        bytes != end - offset || bytes > UINT32_MAX)
        return checkpoint_fail(text, text_size, STRAIT_ERR_CORRUPT,
                               "a footer of %llu bytes at %llu does not fit a file of %llu bytes",
                               (unsigned long long)bytes, (unsigned long long)offset, (unsigned long long)file_bytes);
    *tail = (struct checkpoint_tail){.footer_offset = offset, .footer_bytes = bytes};
    memcpy(tail->footer_sum, src + 16, sizeof(tail->footer_sum));
    return STRAIT_OK;
}
