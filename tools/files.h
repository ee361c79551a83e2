/* Whole files: inputs that are mapped, and outputs that appear under their name when they are complete. Functions that
 * return bool have printed to stderr why they failed. */
#ifndef STRAIT_TOOLS_FILES_H
#define STRAIT_TOOLS_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <strait/codec.h>

/* A whole input file, mapped read-only. */
struct input {
    const char *path;    /* borrowed from the caller */
    const uint8_t *data; /* never NULL, also when size is 0 */
    uint64_t size;
};

/* Maps a regular file, or a copy of standard input ("-"). On success the caller must input_close() it. A file that
 * shrinks while it is mapped ends the process with EXIT_CODE_DATA and a message. */
bool input_open(struct input *input, const char *path);
void input_close(struct input *input);

/* An output file that appears under its name only when it is complete. Until then it has no name, where the file system
 * has such files, and disappears however the process ends; elsewhere it has another name, and is removed by a signal
 * that ends the process, from outside or for a limit, of one output at a time. Anything but a regular file (a device, a
 * pipe) is written in place; "-" is stdout. */
struct output {
    char *path;    /* for messages and the final rename */
    char *temp;    /* the other name; NULL: none */
    bool in_place; /* else the path gets its file in the end */
    int fd;        /* may be written, sought or mapped directly */
    bool replace;  /* a file that has the name at the time of the commit is replaced */
};

#define OUTPUT_MODE 0666u /* for a new output that holds nothing confidential */

/* mode: the permissions of a new file, less those of the umask; a file that is replaced keeps its own. On success, end
 * with output_commit or output_abandon. */
bool output_open(struct output *output, const char *path, unsigned mode, bool replace);
/* Appends at the file position. */
bool output_write(struct output *output, const void *data, size_t size);
/* Makes the file durable and gives it its name. Closes the output in any case. On failure nothing is left behind, and a
 * file that got that name meanwhile is unchanged, unless it was to be replaced. */
bool output_commit(struct output *output);
/* Closes the output and removes what was written. */
void output_abandon(struct output *output);

/* Reads a codebook set. The caller owns it. */
bool codebook_load(const char *path, struct strait_codebook **codebook);

/* Whether a command may write to `path`: unless forced, not over a file, and no binary data to a terminal. */
bool output_allowed(const char *path, bool force);

/* Reads the first bytes of a regular file, *got of them, and its size. Prints nothing. False: it cannot be read, or is
 * something else; *got is 0, and so is *size unless it is a file. */
#define FILE_HEAD_BYTES 64u
bool file_head(const char *path, uint8_t head[FILE_HEAD_BYTES], uint64_t *got, uint64_t *size);

/* Whether an operand can be meant as OUT. An existing file is more likely a further IN, as the second match of a
 * pattern, if `is_kept` says so of its first bytes (none if it cannot be read) and its size; it is left to -o to name
 * it. If not, prints to stderr `why`, what the file is. */
typedef bool operand_kept(const uint8_t *head, uint64_t head_size, uint64_t size);
bool operand_is_output(const char *path, operand_kept *is_kept, const char *why);

#endif
