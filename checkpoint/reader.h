/* Checkpoint that is open for reading: its index, and what the footers of its files say, which are read when they are
 * first needed. */
#ifndef STRAIT_CHECKPOINT_READER_H
#define STRAIT_CHECKPOINT_READER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <strait/checkpoint.h>

#include "checkpoint/format.h"

#define READER_TEXT_BYTES 512u /* of a reason */

/* Bytes of the pages of a file, and the modes of their blocks. */
struct reader_page {
    uint64_t stored_before; /* bytes of all pages of the file before this one, headers not counted */
    uint32_t raw_bytes;
    uint32_t modes; /* bit m: some block has enum strait_block_mode m */
};

/* What is known of a file; the lock is for all of it until `known` is set, then nothing but `pages` changes. */
struct reader_file {
    pthread_mutex_t lock;
    bool known; /* its header and footer are right */
    struct checkpoint_chunk *chunks;
    uint64_t *first_page; /* of each chunk, counted in the file; one more for the end */
    uint32_t *by_page;    /* stored shards of the file, places in the index, in the order of their pages */
    uint32_t chunk_count;
    uint32_t stored_count;
    uint32_t first_shard; /* of the index, and how many the file has */
    uint32_t shard_count;
    struct reader_page *pages; /* one more for the end; NULL: not read so far */
};

struct strait_checkpoint_reader {
    char *path;
    int folder; /* descriptor */
    struct checkpoint_index index;
    struct reader_file *files;
    char (*names)[CHECKPOINT_FILE_NAME_BYTES]; /* of its files */
    uint64_t *reach;                           /* of each tensor: largest size of a shard in the first dimension */
    uint64_t raw_bytes;
    uint64_t stored_bytes;
};

/* ---- Bytes of files ---------------------------------------------------------------------------------------------- */

/* Opens a file of a folder for reading. direct: past the page cache where the file system can. *bytes: its size.
 * ERR_IO, ERR_TRUNCATED (there is none). */
enum strait_status reader_open_at(int folder, const char *name, bool direct, int *fd, uint64_t *bytes, char *text,
                                  size_t text_size);

/* Reads the bytes begin..end-1 of a file to dst, a multiple of CHECKPOINT_ALIGNMENT, as is begin; with a descriptor
 * that passes the page cache, dst has room up to the next multiple. ERR_TRUNCATED when the file ends before, ERR_IO. */
enum strait_status reader_read(int fd, uint64_t begin, uint64_t end, uint8_t *dst, char *text, size_t text_size);

/* ---- Files of a checkpoint --------------------------------------------------------------------------------------- */

/* Reads the footer of a file if it is not known. Any thread. What fails is tried again by the next call; `why`, of
 * READER_TEXT_BYTES, is for people and does not name the file. */
enum strait_status reader_know(struct strait_checkpoint_reader *reader, uint32_t file, char *why);

/* Reads the metadata of all chunks of a file, if it has not been done before. Any thread. NULL: some could not be read.
 */
const struct reader_page *reader_pages(struct strait_checkpoint_reader *reader, uint32_t file);

/* The first page of a stored shard, counted in its file, which is known. */
uint64_t reader_first_page(const struct strait_checkpoint_reader *reader, const struct checkpoint_shard *shard);

/* The chunk of a file that has a page. */
uint32_t reader_chunk_of(const struct reader_file *file, uint64_t page);

/* The shard that a shard without pages is the rounding of; the shard itself for others. */
const struct checkpoint_shard *reader_source(const struct strait_checkpoint_reader *reader,
                                             const struct checkpoint_shard *shard);

/* Checks that a chunk's metadata, which `src` begins with, is what the footer says; size: bytes that are there.
 * ERR_TRUNCATED: more are needed, up to info->metadata_bytes, which is set when it is not 0. */
enum strait_status reader_check_chunk(const struct checkpoint_chunk *chunk, const uint8_t *src, uint64_t size,
                                      struct strait_chunk_info *info);

/* Whether options of a load or a verification, or none, are known here. */
static inline bool reader_options_valid(const struct strait_checkpoint_load_options *options)
{
    return options == NULL ||
           (options->size >= sizeof(*options) && (options->flags & ~(uint32_t)STRAIT_CHECKPOINT_CACHED) == 0);
}

/* Places in the index of the shards of a tensor, sorted by their boxes. */
static inline const uint32_t *reader_shards(const struct strait_checkpoint_reader *reader, uint32_t tensor)
{
    return reader->index.order + reader->index.tensors[tensor].first;
}

#endif
