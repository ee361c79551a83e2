/* Plans an input by its first bytes: a safetensors file tensor by tensor, anything else as one piece. */
#ifndef STRAIT_TOOLS_EXAMINE_H
#define STRAIT_TOOLS_EXAMINE_H

#include <stdbool.h>

#include "tools/classes.h"
#include "tools/plan.h"
#include "tools/source.h"

/* Makes the plan and peeks at all of the preamble. An input that looks like a safetensors file but is none becomes one
 * piece, with a warning. raw: one piece, whatever the input is. On failure (I/O, memory) the error is on stderr. The
 * caller calls plan_fini. */
bool examine(struct plan *plan, struct source *source, const struct class_rules *rules, enum strait_element element,
             bool raw);

#endif
