/* What reports in JSON share. Objects are built without a look at memory: cJSON passes NULL on, and what is missing in
 * the end makes json_print fail or print less. */
#ifndef STRAIT_TOOLS_JSON_H
#define STRAIT_TOOLS_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct cJSON;

/* Prints the object and a newline, and deletes it. False, which stderr has been told: no memory, or output failed. */
bool json_print(struct cJSON *object, FILE *stream);

/* Adds `size` bytes, at most 32, as hexadecimal digits in their order. */
void json_add_hex(struct cJSON *object, const char *name, const uint8_t *bytes, size_t size);

/* Adds a number that is more than 0, else null: not known. */
void json_add_known(struct cJSON *object, const char *name, double value);

#endif
