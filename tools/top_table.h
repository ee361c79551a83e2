/* The tables and the JSON document of `strait top`. */
#ifndef STRAIT_TOOLS_TOP_TABLE_H
#define STRAIT_TOOLS_TOP_TABLE_H

#include <stdio.h>

#include "tools/sample.h"

enum top_sort { TOP_BY_NAME, TOP_BY_BYTES, TOP_BY_ERRORS, TOP_SORTS };
extern const char *const top_sort_names[TOP_SORTS];

/* A daemon, and its samples. */
struct top_node {
    const char *socket;        /* borrowed */
    struct sample before, now; /* before: not there at first */
};

/* Prints two tables, of daemons and of their peers. Texts of others are printed without control characters. */
void top_print(FILE *out, const struct top_node *nodes, unsigned count, enum top_sort sort);
/* The same as one document, NUL-terminated, malloc'ed; NULL without memory. */
char *top_json(const struct top_node *nodes, unsigned count, enum top_sort sort);

#endif
