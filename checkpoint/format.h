/* The checkpoint's files of FORMAT.md section 8, in memory: no I/O here. Readers take untrusted bytes, allocate no more
 * than a fixed multiple of the input's length, and say what is wrong where. */
#ifndef STRAIT_CHECKPOINT_FORMAT_H
#define STRAIT_CHECKPOINT_FORMAT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <strait/checkpoint.h>
#include <strait/codec.h>

#define CHECKPOINT_ALIGNMENT        4096u /* of chunks and the footer in a rank's file */
#define CHECKPOINT_HEADER_BYTES     4096u
#define CHECKPOINT_TAIL_BYTES       48u
#define CHECKPOINT_FILE_BYTES_MIN   (CHECKPOINT_HEADER_BYTES + CHECKPOINT_TAIL_BYTES)
#define CHECKPOINT_INDEX_HEAD_BYTES 32u
#define CHECKPOINT_INDEX_NAME       "strait.index"
#define CHECKPOINT_FILE_NAME_BYTES  24u /* of a rank's file, with its zero */

/* Takes a text for people; returns the status, so that a function may end with it. */
__attribute__((format(printf, 4, 5))) static inline enum strait_status checkpoint_fail(char *text, size_t size,
                                                                                       enum strait_status status,
                                                                                       const char *format, ...)
{
    va_list arguments;

    if (size > 0) {
        va_start(arguments, format);
        vsnprintf(text, size, format, arguments);
        va_end(arguments);
    }
    return status;
}

/* ---- Types ------------------------------------------------------------------------------------------------------- */

struct checkpoint_dtype {
    const char *name;
    uint32_t bytes;              /* of a value */
    enum strait_element element; /* that the codec takes it for */
};

/* NULL: no such type. Static. */
const struct checkpoint_dtype *checkpoint_dtype_find(const char *name);

/* Whether a string is UTF-8 of 1 to STRAIT_CHECKPOINT_NAME_MAX bytes. */
bool checkpoint_name_valid(const char *name);

/* ---- What files hold --------------------------------------------------------------------------------------------- */

struct checkpoint_chunk {
    uint64_t offset; /* in the file */
    uint32_t bytes;
    uint32_t pages;
    uint64_t metadata_sum;
};

struct checkpoint_shard {
    const char *name;
    const struct checkpoint_dtype *dtype;
    const uint64_t *shape, *offsets, *sizes; /* dims each; never NULL */
    uint64_t bytes;                          /* of the box: sizes and dtype give it */
    uint32_t dims;
    uint32_t first_chunk;
    uint32_t first_page;
    uint32_t first_byte; /* in that page */
    uint32_t page_bytes;
    uint32_t rounded_from; /* 1 + place in the list of its file, or 0 */
    uint32_t file;         /* in an index */
};

/* Whether values of the shard are stored: it is not empty and no rounding of another. */
static inline bool checkpoint_shard_stored(const struct checkpoint_shard *shard)
{
    return shard->bytes > 0 && shard->rounded_from == 0;
}

/* Pages of a shard. */
static inline uint64_t checkpoint_shard_pages(const struct checkpoint_shard *shard)
{
    return checkpoint_shard_stored(shard) ? (shard->bytes + shard->page_bytes - 1) / shard->page_bytes : 0;
}

struct checkpoint_footer {
    uint8_t save_id[STRAIT_CHECKPOINT_ID_BYTES];
    uint32_t rank, rank_count;
    struct checkpoint_chunk *chunks;
    struct checkpoint_shard *shards;
    uint32_t chunk_count, shard_count;
    void *memory; /* of what was parsed: checkpoint_footer_free */
};

struct checkpoint_entry {
    uint64_t bytes; /* of the file */
    uint8_t footer_sum[16];
};

/* Shards of one tensor: order[first] to order[first + count - 1] of the index. */
struct checkpoint_group {
    uint32_t first, count;
};

struct checkpoint_index {
    uint8_t save_id[STRAIT_CHECKPOINT_ID_BYTES];
    uint64_t committed_ns;
    struct checkpoint_entry *files; /* place i is rank i's */
    struct checkpoint_shard *shards;
    struct strait_checkpoint_attachment *attachments;
    uint32_t file_count, shard_count, attachment_count;
    uint32_t tensor_count;
    struct checkpoint_group *tensors; /* in the order of their names' bytes; set by checkpoint_index_group */
    uint32_t *order;                  /* places of shards, by tensor, then as in the list */
    void *memory;
};

/* Name of a rank's file: 00000.strait. */
void checkpoint_file_name(char name[CHECKPOINT_FILE_NAME_BYTES], uint32_t rank);

/* XXH3-128 as files hold it: low 64 bits, high 64 bits. */
void checkpoint_sum(uint8_t sum[16], const void *bytes, size_t size);

/* ---- A rank's file ----------------------------------------------------------------------------------------------- */

void checkpoint_header_build(uint8_t dst[CHECKPOINT_HEADER_BYTES], const uint8_t save_id[STRAIT_CHECKPOINT_ID_BYTES]);

/* size: bytes that are there. ERR_TRUNCATED, ERR_CORRUPT, ERR_UNSUPPORTED, ERR_INTEGRITY; sets save_id on OK only. */
enum strait_status checkpoint_header_parse(uint8_t save_id[STRAIT_CHECKPOINT_ID_BYTES], const uint8_t *src,
                                           uint64_t size, char *text, size_t text_size);

/* What the end of a rank's file says. */
struct checkpoint_tail {
    uint64_t footer_offset;
    uint64_t footer_bytes;
    uint8_t footer_sum[16];
};

void checkpoint_tail_build(uint8_t dst[CHECKPOINT_TAIL_BYTES], uint64_t footer_offset, const void *footer,
                           uint32_t footer_bytes);

/* src: the file's last CHECKPOINT_TAIL_BYTES bytes, or all if there are fewer. ERR_TRUNCATED, ERR_INTEGRITY,
 * ERR_CORRUPT. After OK the footer lies in the file. */
enum strait_status checkpoint_tail_parse(struct checkpoint_tail *tail, const uint8_t *src, uint64_t file_bytes,
                                         char *text, size_t text_size);

/* The footer's message, in malloc()ed memory. Reads all of the struct but `bytes` of shards and `memory`.
 * ERR_NO_MEMORY, ERR_INVALID: it has 4 GiB or more. */
enum strait_status checkpoint_footer_build(const struct checkpoint_footer *footer, uint8_t **message, size_t *bytes);

/* Checks the message against its sum in the tail, and makes all checks of section 8 that the footer alone allows. On OK
 * the caller frees it; on others there is nothing to free. ERR_INTEGRITY, ERR_CORRUPT, ERR_NO_MEMORY. */
enum strait_status checkpoint_footer_parse(struct checkpoint_footer *footer, const uint8_t *message,
                                           const struct checkpoint_tail *tail, char *text, size_t text_size);
void checkpoint_footer_free(struct checkpoint_footer *footer);

/* ---- Index ------------------------------------------------------------------------------------------------------- */

/* The whole file, in malloc()ed memory. */
enum strait_status checkpoint_index_build(const struct checkpoint_index *index, uint8_t **file, size_t *bytes);

/* Bytes of the whole file from its first CHECKPOINT_INDEX_HEAD_BYTES; size: those that are there. ERR_TRUNCATED,
 * ERR_CORRUPT, ERR_UNSUPPORTED. */
enum strait_status checkpoint_index_size(uint64_t *bytes, const uint8_t *src, uint64_t size, char *text,
                                         size_t text_size);

/* Checks the whole file and groups its shards; boxes of each tensor cover it. Else as checkpoint_footer_parse. */
enum strait_status checkpoint_index_parse(struct checkpoint_index *index, const uint8_t *src, uint64_t size, char *text,
                                          size_t text_size);
void checkpoint_index_free(struct checkpoint_index *index);

/* Sets tensors, tensor_count and order (malloc()ed, freed by checkpoint_index_free) from shards. ERR_CORRUPT: shards of
 * a tensor differ in type or shape, or leave a gap. ERR_NO_MEMORY. */
enum strait_status checkpoint_index_group(struct checkpoint_index *index, char *text, size_t text_size);

/* Whether a footer is that of the index's file `file`: its save id, rank, number of ranks and shards. */
enum strait_status checkpoint_index_compare(const struct checkpoint_index *index, uint32_t file,
                                            const struct checkpoint_footer *footer, char *text, size_t text_size);

#endif
