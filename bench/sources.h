/* The inputs of every bench: files of values, and the codebook. */
#ifndef STRAIT_BENCH_SOURCES_H
#define STRAIT_BENCH_SOURCES_H

#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>

struct sources {
    const char **inputs; /* owned; the strings are argv's or static */
    unsigned input_count;
    const char **calibs; /* owned */
    unsigned calib_count;
    const char *codebook; /* NULL: calibrate, on `calibs` or on the inputs */
};

/* Makes room for as many of each as there are arguments. False when it failed, with the error on stderr. */
bool sources_init(struct sources *sources, int argc);
void sources_fini(struct sources *sources);

/* Their options, for getopt_long. */
enum { OPT_INPUT = 512, OPT_CALIB, OPT_CODEBOOK };
#define SOURCE_OPTIONS                                                                            \
    {"input", required_argument, NULL, OPT_INPUT}, {"calib", required_argument, NULL, OPT_CALIB}, \
    {                                                                                             \
        "codebook", required_argument, NULL, OPT_CODEBOOK                                         \
    }
/* False: not one of these options. */
bool sources_set(struct sources *sources, int option, const char *text);
/* The default input is the one that comes with the program: in its installation, or in the source tree around a build
 * folder. False when it is in neither, or when options exclude each other, with the error on stderr. */
bool sources_complete(struct sources *sources);

/* "NAME, NAME" */
void names_print(const char *const *names, unsigned count, FILE *stream);
/* "; codebook NAME", or what it was calibrated on. */
void sources_print_codebook(const struct sources *sources, FILE *stream);

#endif
