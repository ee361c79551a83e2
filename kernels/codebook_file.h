/* Codebook files (codebook.proto, FORMAT.md section 9): the part that strait_codebook_parse does not cover, which is
 * the histograms that sets are made from. Readers take untrusted bytes. */
#ifndef STRAIT_KERNELS_CODEBOOK_FILE_H
#define STRAIT_KERNELS_CODEBOOK_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <strait/codec.h>

#define CODEBOOK_FILE_BYTES_MAX (64u * 1024 * 1024) /* readers refuse larger files; no set is that large */

/* Classes of role other and of layers from here on are kinds: see codebook.proto. */
#define CODEBOOK_KIND_LAYER (1 << 30)

/* The exponents counted for one class. */
struct codebook_histogram {
    struct strait_class class;
    uint64_t counts[256]; /* values per exponent */
};

/* Orders classes by role, then layer. */
int codebook_class_compare(struct strait_class a, struct strait_class b);

/* Whether the bytes begin like a set or a partial file. */
bool codebook_file_probe(const void *src, size_t src_size);

/* What is wrong, for people, with a set that strait_codebook_parse refuses, and at which offset. */
const char *codebook_file_why(const void *src, size_t src_size, size_t *offset);

/* Bits that mode tiered spends on the exponents that were counted, with a table of this ranking. */
uint64_t codebook_tiered_bits(const uint64_t counts[256], const uint8_t ranking[256]);

/* Reads a partial file. On success the caller must free() *list: *count >= 1 histograms in ascending order of class,
 * none of them empty, whose values all together fit 64 bits.
 * ERR_INVALID: this is a set. ERR_CORRUPT, ERR_UNSUPPORTED (newer version), ERR_NO_MEMORY. */
enum strait_status codebook_partial_parse(const void *src, size_t src_size, struct codebook_histogram **list,
                                          uint32_t *count);

/* Bytes that codebook_partial_serialize writes. */
size_t codebook_partial_serialized_size(const struct codebook_histogram *list, uint32_t count);
/* Writes a partial file; equal lists give equal bytes. ERR_INVALID: the list is not as codebook_partial_parse returns
 * it, or has STRAIT_CODEBOOK_TABLES_MAX classes or more (a set made from it needs a fallback table too). ERR_NO_SPACE:
 * dst_capacity is below codebook_partial_serialized_size, or that is above CODEBOOK_FILE_BYTES_MAX. */
enum strait_status codebook_partial_serialize(const struct codebook_histogram *list, uint32_t count, void *dst,
                                              size_t dst_capacity);

#endif
