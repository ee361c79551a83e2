/* A look at the beginning of an input: a safetensors file is planned tensor by tensor, anything else as one piece. */
#ifndef STRAIT_TOOLS_EXAMINE_H
#define STRAIT_TOOLS_EXAMINE_H

#include <stdbool.h>

#include "tools/classes.h"
#include "tools/plan.h"
#include "tools/source.h"

/* Makes the plan and peeks at all of the preamble. What looks like a safetensors file and is none becomes one piece
 * too, with a warning. raw: do not look. On failure (I/O, memory) stderr has been told. The caller ends a plan with
 * plan_fini. */
bool examine(struct plan *plan, struct source *source, const struct class_rules *rules, enum strait_element element,
             bool raw);

#endif
