/* The file container of FORMAT.md section 7, in memory: no I/O here. Readers take untrusted bytes.
 *
 * Order of use when reading forward: container_read_header, the preamble, the tables, then chunks (strait_chunk_info
 * finds their sizes) until the footer's magic; container_write_footer then gives what the footer has to be, byte for
 * byte. With random access: container_read_tail on the last bytes, container_check_footer on the footer that it
 * locates. */
#ifndef STRAIT_KERNELS_CONTAINER_H
#define STRAIT_KERNELS_CONTAINER_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/codec.h>

#define CONTAINER_VERSION      1u /* the only one so far, hence that of every file whose header can be read */
#define CONTAINER_HEADER_BYTES 48u
#define CONTAINER_TABLE_BYTES  256u
#define CONTAINER_ENTRY_BYTES  24u /* one chunk's record in the footer */
#define CONTAINER_TAIL_BYTES   48u /* the fixed end of the footer */
#define CONTAINER_PREAMBLE_MAX (1u << 30)

struct container_header {
    uint64_t preamble_bytes;
    uint32_t table_count;
    uint8_t codebook_id[STRAIT_CODEBOOK_ID_BYTES];
};

struct container_chunk {
    uint64_t file_offset;
    uint64_t raw_offset; /* of its first byte in the data, which begins after the preamble */
    uint32_t chunk_bytes;
    uint32_t page_count;
};

struct container_tail {
    uint64_t footer_offset;
    uint64_t original_bytes; /* preamble and data */
    uint8_t hash[16];        /* XXH3-128 of the original, as stored in the file: see container_store_hash */
};

/* XXH3-128 as a file holds it: low 64 bits, high 64 bits. */
void container_store_hash(uint8_t dst[16], uint64_t low, uint64_t high);

/* Whether a file, or a footer (what follows the last chunk), begins here. Looks at four bytes. */
bool container_is_file(const uint8_t *src, uint64_t src_size);
bool container_is_footer(const uint8_t *src, uint64_t src_size);

void container_write_header(uint8_t dst[CONTAINER_HEADER_BYTES], const struct container_header *header);

/* ERR_TRUNCATED (shorter than a header), ERR_CORRUPT, ERR_UNSUPPORTED, ERR_INTEGRITY (the header's hash); sets *header
 * on OK only. */
enum strait_status container_read_header(struct container_header *header, const uint8_t *src, uint64_t src_size);

/* Offsets of the tables and of the first chunk. */
uint64_t container_tables_offset(const struct container_header *header);
uint64_t container_chunks_offset(const struct container_header *header);

/* The footer as a whole, container_footer_bytes(count) bytes long. */
uint64_t container_footer_bytes(uint32_t count);
void container_write_footer(uint8_t *dst, const struct container_chunk *chunks, uint32_t count,
                            const struct container_tail *tail);

/* Reads from the last CONTAINER_TAIL_BYTES bytes of a file where its footer begins. ERR_TRUNCATED without the end mark.
 */
enum strait_status container_read_tail(struct container_tail *tail, const uint8_t src[CONTAINER_TAIL_BYTES]);

/* Checks a whole footer, from src to the end of the file, against its tail and the header: end mark (ERR_TRUNCATED),
 * hash (ERR_INTEGRITY), count, chunks back to back from the tables to the footer, raw offsets that add up from zero
 * (ERR_CORRUPT). After that, chunk i is container_footer_chunk(src, i). Sets *count and *tail on OK only. */
enum strait_status container_check_footer(const uint8_t *src, uint64_t src_size, const struct container_header *header,
                                          uint32_t *count, struct container_tail *tail);
struct container_chunk container_footer_chunk(const uint8_t *footer, uint32_t index);

#endif
