/* Values of options that several benches take. All functions print to stderr why they fail. */
#ifndef STRAIT_BENCH_VALUES_H
#define STRAIT_BENCH_VALUES_H

#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <strait/strait.h>

#define DAEMON_OPTIONS_MAX 16u
#define CODINGS_MAX        4u

/* Passes every option to `set`, until --help is found. `set` returns false for a bad option, also for an unknown one,
 * about which getopt_long has printed an error. Operands are errors too. */
bool options_read(int argc, char **argv, const char *letters, const struct option *known,
                  bool (*set)(void *options, int option, const char *text), void *options, bool *help);

extern const char *const coding_names[]; /* by enum strait_coding */

/* Always false. */
bool value_too_many(const char *option, unsigned max);
bool value_number(const char *option, const char *text, uint64_t min, uint64_t max, uint32_t *number);
/* Bytes of a page. */
bool value_page(const char *text, uint64_t *bytes);
/* Calls `take` for each name of a list with commas between them. */
bool value_each(const char *text, bool (*take)(void *arg, const char *name), void *arg);
/* Adds the coding unless it is in the list already. */
bool value_coding(const char *name, enum strait_coding codings[CODINGS_MAX], unsigned *count);
/* Adds an option for every daemon, "name=value". `daemon` holds DAEMON_OPTIONS_MAX. */
bool value_daemon(const char *text, const char **daemon, unsigned *count);

/* --save, before anything is measured: whether the file can be written. Its content is unchanged. path NULL: true. */
bool value_save_check(const char *path);
/* --save: lets `print` write to the file. path NULL: does nothing. */
bool value_save(const char *path, bool (*print)(const void *arg, FILE *stream), const void *arg);

#endif
