/* Values of options that more than one bench takes. All tell stderr why they fail. */
#ifndef STRAIT_BENCH_VALUES_H
#define STRAIT_BENCH_VALUES_H

#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <strait/strait.h>

#define DAEMON_OPTIONS_MAX 16u
#define CODINGS_MAX        4u

/* Hands every option to `set`, which is false when it is wrong (also for what is no option: stderr has been told),
 * until there is --help. Operands are wrong, too. */
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
/* Adds what is not in the list yet. */
bool value_coding(const char *name, enum strait_coding codings[CODINGS_MAX], unsigned *count);
/* One more option of every daemon, "name=value". `daemon` holds DAEMON_OPTIONS_MAX. */
bool value_daemon(const char *text, const char **daemon, unsigned *count);

/* --save, before anything is measured: can it be written? What is there stays as it is. path NULL: true. */
bool value_save_check(const char *path);
/* --save: lets `print` write to a file. path NULL: nothing is to be done. */
bool value_save(const char *path, bool (*print)(const void *arg, FILE *stream), const void *arg);

#endif
