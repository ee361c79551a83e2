/* Options of a transport: "name=value" pairs separated by spaces. */
#ifndef STRAIT_TRANSPORT_OPTIONS_H
#define STRAIT_TRANSPORT_OPTIONS_H

#include <strait/status.h>

#define OPTION_MAX 256u /* bytes of a pair with its zero */

struct option {
    char *name, *value; /* in `text` */
    char text[OPTION_MAX];
};

/* The next pair of *options, which moves past it; OK with name NULL at the end. NULL is an empty list. ERR_INVALID: not
 * a pair, or too long. */
enum strait_status option_next(const char **options, struct option *option);

/* OK for an empty list: a transport without options. */
enum strait_status options_none(const char *options);

#endif
