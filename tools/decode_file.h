#ifndef STRAIT_TOOLS_DECODE_FILE_H
#define STRAIT_TOOLS_DECODE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <strait/codec.h>

#include "kernels/container.h"
#include "tools/input.h"
#include "tools/util.h"
#include "tools/files.h"
#include "tools/report.h"

/* Length and XXH3-128 of the uncompressed bytes, computed as they pass. */

struct XXH3_state_s;

struct digest {
    struct XXH3_state_s *state;
    uint64_t bytes;
};

/* False: out of memory. digest_fini may follow in any case. */
bool digest_init(struct digest *digest);
void digest_fini(struct digest *digest);

void digest_add(struct digest *digest, const void *data, size_t size);

/* The hash so far, in the byte order of the file format. */
void digest_hash(const struct digest *digest, uint8_t hash[16]);

/* 32 digits, most significant first, as xxhsum -H2 prints them. */
#define DIGEST_HEX_BYTES 33
void digest_hex(char hex[DIGEST_HEX_BYTES], const uint8_t hash[16]);

/* Reads a Strait file (FORMAT.md section 7) forward, so that it may come from a pipe. The file is untrusted: everything
 * that can be checked without decoding is checked; failures are printed to stderr with their place in the file. */

struct file_reader {
    struct source *source; /* borrowed */
    uint64_t offset;       /* of the next read, in the file */
    struct container_header header;
    uint64_t preamble_left;
    struct strait_codebook *codebook;               /* owned; NULL: the file has no tables */
    uint32_t chunk_count;                           /* chunks read */
    uint8_t footer_head[STRAIT_CHUNK_HEADER_BYTES]; /* of the footer, read where a chunk might begin */
};

/* Reads the header. Call file_reader_fini in any case. */
bool file_reader_init(struct file_reader *reader, struct source *source);
void file_reader_fini(struct file_reader *reader);

/* Reads the next part of the preamble; *got is 0 when all of it has been read. */
bool file_reader_preamble(struct file_reader *reader, uint8_t *dst, size_t size, size_t *got);

/* Reads the tables, after the preamble. */
bool file_reader_tables(struct file_reader *reader);

/* Reads the next chunk and parses its header. */
enum file_part { FILE_PART_CHUNK, FILE_PART_FOOTER, FILE_PART_FAILED };
enum file_part file_reader_chunk(struct file_reader *reader, struct buffer *chunk, struct strait_chunk_info *info);

/* After FILE_PART_FOOTER: reads the footer to the end of the file; the footer must describe what was read. */
bool file_reader_finish(struct file_reader *reader, const struct container_chunk *chunks, uint32_t count,
                        const struct digest *digest);

/* The chunks of a file, as its footer lists them. */

/* Starts as zeroes. */
struct chunk_list {
    struct container_chunk *list;
    uint32_t count;
    uint32_t capacity;
};

/* False: out of memory, which was printed to stderr. */
bool chunk_list_add(struct chunk_list *chunks, struct container_chunk chunk);
void chunk_list_fini(struct chunk_list *chunks);

/* Decodes one chunk, piece by piece: a chunk of a hostile file may decode to a thousand times its size, so only a
 * limited number of its pages is in memory at a time. An ordinary chunk is one piece. */

/* Starts as zeroes; its memory is reused for the next chunk. */
struct chunk_decoder {
    struct buffer chunk; /* filled by the owner: info.chunk_bytes bytes */
    struct strait_chunk_info info;

    /* Set by chunk_decoder_begin. */
    enum strait_status status; /* of the chunk as a whole */
    struct buffer pages;       /* struct strait_page_info, info.page_count of them */
    uint64_t raw_bytes;        /* of all pages */
    uint32_t end;              /* no page from here on is decoded: all are, unless the owner lowers it */

    /* Set by chunk_decoder_piece. */
    uint32_t first; /* the pages of the piece; the owner may set it to the first page to decode, once */
    uint32_t count;
    struct buffer raw; /* their bytes, back to back: piece_bytes of them */
    uint64_t piece_bytes;
    struct strait_result result;
    struct buffer page_status; /* int32_t, one per page of the piece */
    struct buffer stats;       /* struct strait_class_stats, added to; the owner makes it big enough for the codebook */

    struct buffer regions, select, scratch;
};

void chunk_decoder_fini(struct chunk_decoder *decoder);

/* Reads the page tables of the chunk in decoder->chunk; decodes no piece yet. */
void chunk_decoder_begin(struct chunk_decoder *decoder);

/* Decodes the next piece; false when there is none. Must not be called after a status that is not OK. Errors of the
 * chunk are reported in decoder->status, errors of pages in decoder->result and page_status. */
bool chunk_decoder_piece(struct chunk_decoder *decoder, const struct strait_codec *codec,
                         const struct strait_codebook *codebook);

static inline const struct strait_page_info *chunk_decoder_page(const struct chunk_decoder *decoder, uint32_t index)
{
    return (const struct strait_page_info *)decoder->pages.data + index;
}

/* The pipeline of `strait decode`: chunks are read forward, decoded and checked side by side, and written in order. */

/* All borrowed. */
struct decode_task {
    struct source *source;
    const struct strait_codec *codec;
    unsigned threads;
    struct output *output; /* NULL: check only; the run then continues after bad pages and reports all of them */
    struct progress *progress;
};

struct decode_outcome {
    uint64_t unplain_bytes;
    uint64_t file_bytes;
    uint32_t table_count;
    uint8_t hash[16]; /* XXH3-128 of the uncompressed bytes */
    struct totals totals;
};

/* Decodes the whole file. False when anything is wrong, with the error on stderr; the output is then correct as far as
 * it goes, but incomplete. */
bool decode_file(const struct decode_task *task, struct decode_outcome *outcome);

#endif
