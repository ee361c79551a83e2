/* Reads the header of a safetensors file in memory. The file is untrusted: everything is checked. */
#ifndef STRAIT_TOOLS_SAFETENSORS_H
#define STRAIT_TOOLS_SAFETENSORS_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/codec.h>

struct safetensor {
    char *name;     /* owned by the list */
    char dtype[16]; /* as in the file: "BF16", "F32", ... */
    uint64_t begin; /* byte offsets in the file (not in its data section) */
    uint64_t end;
};

/* Tensors sorted by begin; they do not overlap and lie inside the file. */
struct safetensors {
    uint64_t data_begin; /* end of the length field and the JSON header */
    struct safetensor *tensors;
    uint32_t count;
};

/* Whether the bytes look like a safetensors file of `size` bytes: a plausible header length, then '{'. */
bool safetensors_probe(const void *head, uint64_t head_size, uint64_t size);

/* Parses. file_size is the size of the whole file, of which `head_size` bytes are at head; at least the header must be.
 * On success the caller owns *list and must safetensors_fini() it. On failure *why (static text) says what is wrong.
 * ERR_TRUNCATED, ERR_CORRUPT, ERR_NO_MEMORY. */
enum strait_status safetensors_init(struct safetensors *list, const void *head, uint64_t head_size, uint64_t file_size,
                                    const char **why);
void safetensors_fini(struct safetensors *list);

/* Element type of a dtype name; STRAIT_ELEMENT_BYTES for integers, booleans and unknown names. */
enum strait_element safetensors_element(const char *dtype);

#endif
