/* Derives a tensor's codebook class from its name: K, V or other, and the layer. */
#ifndef STRAIT_TOOLS_CLASSES_H
#define STRAIT_TOOLS_CLASSES_H

#include <strait/codec.h>

struct class_rules; /* an ordered list of patterns: the first that matches decides */

/* Rules with the defaults for common models. The caller owns them. NULL when out of memory. */
struct class_rules *class_rules_create(void);
void class_rules_destroy(struct class_rules *rules);

/* Adds a rule before all others: "REGEX=ROLE" with ROLE k, v or other; the first group of the POSIX extended regex that
 * holds only digits is the layer. ERR_INVALID (*why, static text, says what is wrong), ERR_NO_MEMORY. */
enum strait_status class_rules_add(struct class_rules *rules, const char *rule, const char **why);

/* Class of a tensor name; {OTHER, -1} when nothing matches. Any thread. */
struct strait_class class_of(const struct class_rules *rules, const char *name);

#endif
