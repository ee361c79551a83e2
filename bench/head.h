/* The head of every report: the program, the machine and the command. */
#ifndef STRAIT_BENCH_HEAD_H
#define STRAIT_BENCH_HEAD_H

#include <stdbool.h>
#include <stdio.h>

#include "bench/machine.h"

struct cJSON;

/* The arguments as they were given, because getopt_long changes their order. */
struct command_line {
    int argc;
    char **argv; /* owned */
};

/* False when it failed, with the error on stderr. */
bool command_line_init(struct command_line *line, int argc, char **argv);
void command_line_fini(struct command_line *line);

/* line NULL: without the command. */
void head_print(const struct machine *machine, const struct command_line *line, FILE *stream);
void head_json(struct cJSON *root, const struct machine *machine, const struct command_line *line);

#endif
