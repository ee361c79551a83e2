/* The table of a kind of memory: the library's own for processors, that of the plugin libstrait-ep-cuda for GPUs, which
 * is opened when a group of such memory is made first. */
#ifndef STRAIT_EP_PLUGIN_H
#define STRAIT_EP_PLUGIN_H

#include "ep/kernels.h"

/* NULL: there is none; *why is a text that stays. Any thread. */
const struct ep_ops *ep_plugin_find(const char **why);

#endif
