/* Kinds: values of role other that one table fits, whatever their tensors are called. Names tell K from V, and of which
 * layer, but not weights from gradients or from moments of an optimizer, which have little in common. So tensors of
 * role other are counted one by one, histograms that are alike are joined to kinds, each with a table, and an encoder
 * finds the table by the values. A kind is a class of role other and of a layer from CODEBOOK_KIND_LAYER on. */
#ifndef STRAIT_TOOLS_KINDS_H
#define STRAIT_TOOLS_KINDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <strait/codec.h>

#include "kernels/codebook_file.h"

#define KINDS_MAX 64u /* tables of kinds in a set */

/* The class that a tensor is counted under before kinds are joined: one for each type and name. */
struct strait_class kind_of(enum strait_element element, const char *name);
bool kind_is(struct strait_class class);

/* Joins the classes of kind_of in a list, which is in ascending order of class, to at most KINDS_MAX kinds, numbered
 * from CODEBOOK_KIND_LAYER on, the largest first. ERR_NO_MEMORY: the list is as before. */
enum strait_status kinds_join(struct codebook_histogram *list, uint32_t *list_count);

/* The table by which the exponents that were counted take the fewest bits. */
uint32_t kinds_find_table(const struct strait_codebook *codebook, const uint64_t counts[256]);

/* "k 3", "other", "kind 0": how a class is called in reports. */
#define CLASS_NAME_BYTES 24
void class_name(char name[CLASS_NAME_BYTES], struct strait_class class);
struct cJSON;
/* Adds "role" and "layer", and "kind" to that of a kind. */
void class_json(struct cJSON *object, struct strait_class class);

#endif
