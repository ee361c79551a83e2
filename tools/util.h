/* Helpers of all commands: messages, numbers, threads, progress, options. Functions that return bool have printed to
 * stderr why they failed, unless their comment says otherwise. */
#ifndef STRAIT_TOOLS_UTIL_H
#define STRAIT_TOOLS_UTIL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <strait/codec.h>

#include "internal/clock.h"

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

/* That name. */
const char *command_running(void);

/* Bytes of the UTF-8 character at text, and its code; 0: there is none. */
unsigned text_character(const char *text, uint32_t *code);
/* Whether a terminal obeys the character instead of showing it: controls, and those that turn or break lines. */
bool text_is_control(uint32_t code);

/* A copy of foreign text, such as the name of a file or a tensor, for a terminal: bytes that are no UTF-8 and controls
 * become \xNN. The caller frees it. NULL: out of memory. */
char *text_printable(const char *text);
/* Writes that copy. */
void text_put(const char *text, FILE *stream);

/* Prints "COMMAND: FILE: text", printable, and a newline to stderr, at once. file NULL: "COMMAND: text". Any thread. */
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

/* ---- Programs ---------------------------------------------------------------------------------------------------- */

/* $STRAITD, or the straitd installed with this program. The caller frees it. NULL: there is none, which was printed to
 * stderr. */
char *find_straitd(void);

/* ---- Options of several commands --------------------------------------------------------------------------------- */

/* An option as the help of its command has it. */
struct option_listed {
    const char *name;
    char letter;          /* 0: none */
    const char *argument; /* "SET"; NULL: it takes none */
    const char *values;   /* all that the argument may be, separated by spaces; NULL: anything */
    const char *help;     /* the first line of it; "": none */
};
typedef void option_listener(void *arg, const struct option_listed *option);

/* While there is a listener, commands list their options to it, in the order of their tables, instead of doing anything
 * else. NULL: none. */
void options_listen(option_listener *listener, void *arg);
/* True: there is one, and the option was passed to it (NULL: only look). */
bool options_list(const struct option_listed *option);

#define OPTION_THREADS_MAX 1024u
#define CLI_OPTIONS_MAX    16u

/* One option of a command, and where its value goes: one of the fields behind the letter. */
struct cli_option {
    const char *name;
    char letter; /* 0: none */
    bool *flag;
    const char **text;
    unsigned *threads;                 /* 0 stands for all processors */
    const struct strait_codec **codec; /* variant of the codec by its name */
    bool (*set)(void *options, const char *text);
    const char *values; /* of struct option_listed */
};

/* Reads options up to the operands, argv[optind] onward. False: an option is wrong, or help was asked for and printed;
 * *code is the exit status. */
bool options_parse(const struct cli_option *list, unsigned count, void *options, const char *usage, int argc,
                   char **argv, enum exit_code *code);
/* Whether `count` operands are left at argv[optind]. False: printed that the command takes `what`. */
bool operands_are(int argc, int count, const char *what);
/* A size such as 32K, within min..max; `option` is named in the error. */
bool option_size(const char *option, const char *text, uint64_t min, uint64_t max, uint64_t *size);
/* One of `count` names: its index. */
bool option_name(const char *option, const char *text, const char *const *names, unsigned count, unsigned *index);

#endif
