/* Helpers for reports in JSON. Code that builds objects does not check for lack of memory: cJSON passes NULL on, and
 * json_print then fails or prints less. */
#ifndef STRAIT_TOOLS_JSON_H
#define STRAIT_TOOLS_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct cJSON;

/* Prints the object and a newline, and deletes it. False: no memory, or output failed; the error is on stderr. */
bool json_print(struct cJSON *object, FILE *stream);

/* Adds `size` bytes, at most 32, as hexadecimal digits in their order. */
void json_add_hex(struct cJSON *object, const char *name, const uint8_t *bytes, size_t size);

/* Adds the number if it is above 0, else null, for "not known". */
void json_add_known(struct cJSON *object, const char *name, double value);

#endif
