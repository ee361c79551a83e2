/* The table behind options.h: one row per option. Only the option_*.c and options*.c files use it, and what
 * prints them. */
#ifndef STRAIT_DAEMON_BASE_OPTION_TABLE_H
#define STRAIT_DAEMON_BASE_OPTION_TABLE_H

#include "daemon/base/options.h"

enum option_kind {
    OPTION_TEXT,      /* also a path */
    OPTION_LISTEN,    /* list of host:port of this host, or empty */
    OPTION_ADVERTISE, /* list of host:port that others can dial, or empty */
    OPTION_ONE_OF,    /* one of `choices` */
    OPTION_LIST,      /* some of `choices`, each once, in any order */
    OPTION_SWITCH,
    OPTION_COUNT,    /* uint32_t */
    OPTION_BYTES,    /* uint64_t; K, M, G, T */
    OPTION_DURATION, /* uint32_t milliseconds; ms, s */
};

struct option_row {
    const char *section; /* heading in the sample before this row, or NULL */
    const char *name;
    bool reloads; /* SIGHUP applies a new value; else that takes a restart */
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

/* What else stands on the daemon's command line. */
struct option_command {
    const char *name, *argument; /* argument NULL: it takes none */
    const char *help;
};
extern const struct option_command option_commands[];
extern const size_t option_command_count;

#define OPTION_VALUE_MAX (OPTION_TEXT_MAX + 8u) /* any value as text, with its NUL */

/* NULL: no such option. */
const struct option_row *option_find(const char *name, size_t size);
/* Replacement of an option of earlier versions, as a phrase; NULL: there was none of this name. */
const char *option_gone(const char *name, size_t size);
/* Sets one option from text, in the struct that the row's offset is of. False: `why` says what would be valid, and
 * nothing changes. */
bool option_set(const struct option_row *row, void *options, const char *value, size_t size, char *why,
                size_t why_size);

/* Takes the "name = value" of a line; `where` is "file:line". */
typedef enum strait_status (*option_assign)(void *arg, const char *where, const char *name, size_t name_size,
                                            const char *value, size_t value_size, struct option_error *error);
/* Calls `take` for each line that is neither blank nor a comment, until one fails. */
enum strait_status option_lines(const char *text, size_t size, const char *where, option_assign take, void *arg,
                                struct option_error *error);
enum strait_status option_file_lines(const char *path, option_assign take, void *arg, struct option_error *error);

#endif
