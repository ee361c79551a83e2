/* The table behind options.h: one row per option. Only the option_*.c and options*.c files use it. */
#ifndef STRAIT_DAEMON_BASE_OPTION_TABLE_H
#define STRAIT_DAEMON_BASE_OPTION_TABLE_H

#include "daemon/base/options.h"

enum option_kind {
    OPTION_TEXT,    /* also a path */
    OPTION_NUMERIC, /* numeric host:port, or empty */
    OPTION_ADDRESS, /* host:port whose host may be a name, or empty */
    OPTION_ONE_OF,  /* one of `choices` */
    OPTION_LIST,    /* some of `choices`, each once, in any order */
    OPTION_SWITCH,
    OPTION_COUNT,    /* uint32_t */
    OPTION_BYTES,    /* uint64_t; K, M, G, T */
    OPTION_DURATION, /* uint32_t milliseconds; ms, s */
};

struct option_row {
    const char *section; /* heading in the sample before this row, or NULL */
    const char *name;
    enum option_kind kind;
    size_t offset;       /* in struct node_options */
    uint64_t min, max;   /* of numbers; of texts `max` is the longest length */
    const char *initial; /* default, as text */
    const char *choices; /* separated by commas */
    const char *help;    /* what it does, with units */
    const char *danger;  /* what can go wrong, or NULL */
};

extern const struct option_row option_rows[];
extern const size_t option_row_count;

#define OPTION_VALUE_MAX (OPTION_TEXT_MAX + 8u) /* any value as text, with its NUL */

/* NULL: no such option. */
const struct option_row *option_find(const char *name, size_t size);
/* Replacement of an option of earlier versions, as a phrase; NULL: there was none of this name. */
const char *option_gone(const char *name, size_t size);
/* Sets one option from text. False: `why` says what would be valid, and nothing changes. */
bool option_set(const struct option_row *row, struct node_options *options, const char *value, size_t size, char *why,
                size_t why_size);

#endif
