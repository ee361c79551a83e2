#ifndef STRAIT_TOOLS_INPUT_H
#define STRAIT_TOOLS_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <strait/codec.h>

/* Memory that grows and is reused, so that a pipeline allocates only while it warms up. */

/* Starts as zeroes; 64-byte aligned. The owner ends it with buffer_fini. */
struct buffer {
    uint8_t *data;
    size_t capacity;
};

/* Makes room for `size` bytes and keeps the first `used`. False: no memory, and nothing changed. */
bool buffer_reserve(struct buffer *buffer, size_t used, uint64_t size);
/* Makes room for `size` bytes; new ones are zeroes, and the others are kept. False: no memory. */
bool buffer_reserve_zeroes(struct buffer *buffer, uint64_t size);
void buffer_fini(struct buffer *buffer);

/* An input of any kind: a regular file, which any thread may read at any offset, or a pipe (or a file that reports no
 * size), which is read forward once. */

#define SOURCE_SIZE_UNKNOWN UINT64_MAX

struct source {
    const char *name; /* for messages: the path, or "stdin" */
    int fd;
    unsigned mode; /* permissions of a file; for anything else, those of a world-readable file */
    bool seekable;
    struct timespec changed; /* when a file was last written to, before it was read */
    uint64_t base;           /* where the input begins in a seekable file: stdin may be positioned in its middle */
    uint64_t size;           /* of the input; SOURCE_SIZE_UNKNOWN for a pipe */
    uint64_t position;       /* of source_read */
    struct buffer head;      /* the first bytes: what was peeked at */
    size_t head_size;
};

/* Opens a path, borrowed for the source's life; "-" is stdin. Prints to stderr when it fails. */
bool source_open(struct source *source, const char *path);
void source_close(struct source *source);

/* Whether writing to `output` ("-": stdout) leaves the input intact, as it is not the same file. If not, prints to
 * stderr. */
bool source_survives(const struct source *source, const char *output);

/* Copies the rest of a pipe to an unnamed file in $TMPDIR, so that it can be read twice. Only before source_read. */
bool source_spool(struct source *source);

/* Reads the first `size` bytes of the input, or all of a shorter one, into source->head. Only before source_read. */
bool source_peek(struct source *source, uint64_t size);

/* Reads on from the position. *got is less than size only at the end of the input. */
bool source_read(struct source *source, void *dst, size_t size, size_t *got);

/* Reads at an offset of a seekable source, any thread. Fewer bytes than asked for are an error. */
bool source_read_at(const struct source *source, uint64_t offset, void *dst, size_t size);

/* Call it when everything was read: it is an error if a seekable source was written to, or has grown, since it was
 * opened. */
bool source_check_end(const struct source *source);

/* Reads the header of a safetensors file in memory. The file is untrusted: everything is checked. */

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

/* Whether the bytes look like a safetensors file of `size` bytes, perhaps cut off: a plausible header length, then '{'.
 */
bool safetensors_probe(const void *head, uint64_t head_size, uint64_t size);

/* Parses. file_size is the size of the whole file, of which `head_size` bytes are at head; at least the header must be.
 * On success the caller owns *list and must safetensors_fini() it. On failure *why (static text) says what is wrong.
 * ERR_TRUNCATED, ERR_CORRUPT, ERR_NO_MEMORY. */
enum strait_status safetensors_init(struct safetensors *list, const void *head, uint64_t head_size, uint64_t file_size,
                                    const char **why);
void safetensors_fini(struct safetensors *list);

/* Element type of a dtype name; STRAIT_ELEMENT_BYTES for integers, booleans and unknown names. */
enum strait_element safetensors_element(const char *dtype);

/* Derives a tensor's codebook class from its name: K, V or other, and the layer. */

struct class_rules; /* an ordered list of patterns: the first that matches decides */

/* Rules with the defaults for common models. The caller owns them. NULL when out of memory. */
struct class_rules *class_rules_create(void);
void class_rules_destroy(struct class_rules *rules);

/* Adds a rule before all others: "REGEX=ROLE" with ROLE k, v or other; the first group of the POSIX extended regex that
 * holds only digits is the layer. ERR_INVALID (*why, static text, says what is wrong), ERR_NO_MEMORY. */
enum strait_status class_rules_add(struct class_rules *rules, const char *rule, const char **why);

/* Class of a tensor name; {OTHER, -1} when nothing matches. Any thread. */
struct strait_class class_of(const struct class_rules *rules, const char *name);

#endif
