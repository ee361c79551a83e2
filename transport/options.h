/* Options of a transport: "name=value" pairs separated by spaces. */
#ifndef STRAIT_TRANSPORT_OPTIONS_H
#define STRAIT_TRANSPORT_OPTIONS_H

#include <strait/status.h>

#define OPTION_MAX 256u /* bytes of a pair, including its zero */

struct option {
    char *name, *value; /* in `text` */
    char text[OPTION_MAX];
};

/* Takes the next pair from *options. OK with name NULL at the end; NULL is an empty list. ERR_INVALID: not a pair, or
 * too long. */
enum strait_status option_next(const char **options, struct option *option);

/* For a transport without options: OK if the list is empty. */
enum strait_status options_none(const char *options);

#endif
