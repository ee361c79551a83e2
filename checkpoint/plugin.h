/* The plugin for memory of GPUs: libstrait-checkpoint-cuda, opened when such memory is saved or loaded first. It knows
 * this header and those that it includes, and needs no symbol of the library. */
#ifndef STRAIT_CHECKPOINT_PLUGIN_H
#define STRAIT_CHECKPOINT_PLUGIN_H

#include "checkpoint/encoder.h"
#include "checkpoint/target.h"

/* Incremented with every change of the structs that it has in common with the library. */
#define CHECKPOINT_PLUGIN_VERSION 1u

struct checkpoint_plugin {
    uint32_t version; /* CHECKPOINT_PLUGIN_VERSION */
    const struct encoder *encoder;
    const struct target *target;
};

/* NULL: there is no GPU. */
typedef const struct checkpoint_plugin *checkpoint_plugin_get(void);
#define CHECKPOINT_PLUGIN_SYMBOL "strait_checkpoint_plugin"

/* NULL: there is none; *why is a text that stays. Any thread. */
const struct checkpoint_plugin *checkpoint_plugin_find(const char **why);

#endif
