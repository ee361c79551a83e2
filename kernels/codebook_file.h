/* Codebook files (codebook.proto, FORMAT.md section 8): the part that strait_codebook_parse does not cover, which is
 * the histograms that sets are made from. Readers take untrusted bytes. */
#ifndef STRAIT_KERNELS_CODEBOOK_FILE_H
#define STRAIT_KERNELS_CODEBOOK_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <strait/codec.h>

#define CODEBOOK_FILE_BYTES_MAX (64u * 1024 * 1024) /* readers refuse larger files; no set is that large */

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

/* What a set file says about the values that it was made of: for each of `count` tables the thousandths of a bit that
 * mode tiered spent on an exponent, 0 where that is not known. It is no part of the set, nor of its id: a message of
 * its own that may follow the set's. */
size_t codebook_expected_size(const uint32_t *expected, uint32_t count);
void codebook_expected_serialize(const uint32_t *expected, uint32_t count, void *dst);
/* Reads it from a set file; all zeroes where the file does not have it. What strait_codebook_parse returns for a file
 * that is none. */
enum strait_status codebook_expected_parse(const void *src, size_t src_size, uint32_t *expected, uint32_t count);

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
