#ifndef STRAIT_TOOLS_UTIL_H
#define STRAIT_TOOLS_UTIL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <strait/codec.h>

/* Shared by the commands: messages, numbers, files, threads. Functions that return bool have printed to stderr why they
 * failed, unless they say otherwise. */

/* Exit codes of every command. */
enum exit_code {
    EXIT_CODE_OK = 0,
    EXIT_CODE_DATA = 1, /* bad data, or input or output failed */
    EXIT_CODE_USAGE = 2,
};

/* ---- Messages -------------------------------------------------------------------------------------------------- */

/* Makes every message name the command ("strait encode"), also those of getopt_long, which takes it from argv[0].
 * Call it first. `name` must stay valid until the process ends. */
void command_begin(char **argv, char *name);

/* Prints "COMMAND: FILE: text" and a newline to stderr, at once. file NULL: "COMMAND: text". Any thread. */
void print_error(const char *file, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* From now on print_error also keeps its messages ("FILE: text"), for a report. Call it before threads start. */
void errors_keep(void);
/* The kept messages, in order: *count of them, owned by util. Call it after the last thread has ended. */
char *const *errors_kept(size_t *count);

/* ---- Numbers --------------------------------------------------------------------------------------------------- */

/* Reads a decimal number 0..max. False, silently, for anything else. */
bool parse_number(const char *text, uint64_t max, uint64_t *value);

/* The same with an optional K, M, G or T for 2^10, 2^20, 2^30, 2^40: "4M" is 4194304. False, silently, otherwise. */
bool parse_size(const char *text, uint64_t max, uint64_t *value);

/* Nanoseconds of a clock that never steps back. */
uint64_t clock_ns(void);

/* ---- Files ----------------------------------------------------------------------------------------------------- */

/* A whole input file, mapped read-only. */
struct input {
    const char *path;    /* borrowed from the caller */
    const uint8_t *data; /* never NULL, also when size is 0 */
    uint64_t size;
};

/* Maps a regular file. On success the caller must input_close() it. A file that shrinks while it is mapped ends the
 * process with EXIT_CODE_DATA and a message. */
bool input_open(struct input *input, const char *path);
void input_close(struct input *input);

/* An output file that appears under its name only when it is complete. One at a time: a signal that ends the process,
 * from outside or for a limit, removes the unfinished file. Anything but a regular file (a device, a pipe) is written
 * in place; "-" is stdout. */
struct output {
    char *path;   /* for messages and the final rename */
    char *temp;   /* NULL: written in place */
    int fd;       /* may be written, sought or mapped directly */
    bool replace; /* a file that has the name at the time of the commit is replaced */
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

/* ---- Threads --------------------------------------------------------------------------------------------------- */

/* Processors this process may run on, at least 1. */
unsigned cpu_count(void);

/* Runs fn(arg, index) in `threads` threads, index 0 in the caller, and waits for all. When the system refuses threads,
 * fewer run, without notice: fn must take its work from a shared queue, not by its index. */
void parallel_run(unsigned threads, void (*fn)(void *arg, unsigned index), void *arg);

/* ---- Progress -------------------------------------------------------------------------------------------------- */

#define PROGRESS_TOTAL_UNKNOWN UINT64_MAX /* of a pipe */

/* A line on stderr, rewritten a few times per second; nothing when stderr is not a terminal. */
struct progress {
    const char *what; /* borrowed: "reading" */
    uint64_t total;   /* bytes */
    uint64_t started;
    _Atomic uint64_t done;
    _Atomic uint64_t next; /* time of the next update */
    bool shown;
};

void progress_begin(struct progress *progress, const char *what, uint64_t total, bool quiet);
/* Any thread. */
void progress_add(struct progress *progress, uint64_t bytes);
/* Removes the line. */
void progress_end(struct progress *progress);

/* Helpers for reports in JSON. Code that builds objects does not check for lack of memory: cJSON passes NULL on, and
 * json_print then fails or prints less. */

struct cJSON;

/* Prints the object and a newline, and deletes it. False: no memory, or output failed; the error is on stderr. */
bool json_print(struct cJSON *object, FILE *stream);

/* Adds `size` bytes, at most 32, as hexadecimal digits in their order. */
void json_add_hex(struct cJSON *object, const char *name, const uint8_t *bytes, size_t size);

/* Adds the number if it is above 0, else null, for "not known". */
void json_add_known(struct cJSON *object, const char *name, double value);

/* Argument parsing that encode, decode and inspect share. All functions print to stderr why they fail. */

#define OPTION_THREADS_MAX 1024u

/* -T N: 0 stands for all processors. */
bool option_threads(const char *text, unsigned *threads);
/* A size such as 32K, within min..max; `option` is named in the error. */
bool option_size(const char *option, const char *text, uint64_t min, uint64_t max, uint64_t *size);
/* One of `count` names: its index. */
bool option_name(const char *option, const char *text, const char *const *names, unsigned count, unsigned *index);
/* --codec NAME; text NULL: the best one. */
bool option_codec(const char *text, const struct strait_codec **codec);

/* Reads a codebook set. The caller owns it. */
bool codebook_load(const char *path, struct strait_codebook **codebook);

/* Whether a command may write to `path`: unless forced, not over a file, and no binary data to a terminal. */
bool output_allowed(const char *path, bool force);

/* Codec statistics summed over chunks, for the reports of encode and decode. */

struct cJSON;

struct totals {
    uint64_t chunks;
    uint64_t pages;
    uint64_t values[STRAIT_BLOCK_MODES]; /* of 2 bytes each */
    struct strait_class_stats coded;
};

/* Adds the result of some pages and their statistics per table, then zeroes the latter for the next ones. The caller
 * counts the chunks. */
void totals_add(struct totals *totals, uint32_t pages, const struct strait_result *result,
                struct strait_class_stats *stats, uint32_t table_count);

/* "top16", "tiered", ...: index enum strait_block_mode. */
extern const char *const block_mode_names[STRAIT_BLOCK_MODES_ALL];

/* One line: "  blocks: tiered 99.12%, raw 0.88%". Nothing when there were no values. */
void totals_print(const struct totals *totals, FILE *stream);
/* Adds the fields chunks, pages, mode_bytes, coded_values, escapes and escape_rate. */
void totals_json(const struct totals *totals, struct cJSON *object);

/* a / b, 0 when b is 0. */
double ratio_of(uint64_t a, uint64_t b);

#endif
